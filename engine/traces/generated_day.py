"""A generated day of a shared AI cell, for machines without traces: the cell (`ai_cell`) and its arrivals (`ai_day`).

The site is described in `site_profile.toml`. Each `TeamHabit` is one habit of one team: fine-tuning in office hours,
ETL at night, services all day. A habit asks for a share of one pool's capacity, averaged over the day, and its arrivals
follow a clock. Together they ask for about as much as there is at the peak of the day, and for less at night. All
randomness comes from the seed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import accumulate
from pathlib import Path
from random import Random

import msgspec

from engine.model.errors import SpecError
from engine.model.specs import (
    HOUR_MS,
    RESOURCES,
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)


class Rack(msgspec.Struct, frozen=True, kw_only=True):
    """How a pool is built: its share of the cell's nodes, and how many stand together."""

    pool: PoolSpec
    share: float
    prefix: str
    """Of node ids."""
    rack_nodes: int
    block_racks: int


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """Who submits, where to, and with what share of the cell as nominal quota."""

    prefix: str
    """Of workload ids."""
    queue: str
    tenant: str
    gpu_share: float
    cpu_share: float


class HabitShape(msgspec.Struct, frozen=True):
    """So many tasks of this request; `weight` says how often, relative to the other shapes of the same work."""

    weight: int
    tasks: int
    request: Resources


class TeamHabit(msgspec.Struct, frozen=True, kw_only=True):
    """A habit of a team. Within a pool the one with the smallest requests comes last: it fills what others leave."""

    kind: str
    team: str
    pool: str
    """Whose capacity `share` is counted in."""
    share: float
    """Of the pool's GPUs (of its CPUs if it has none), averaged over the day."""
    clock: str
    """Name of the clock by which it arrives."""
    median_min: float
    spread: float
    """Standard deviation of the logarithm of the run time."""
    longest_h: int
    shapes: tuple[HabitShape, ...]
    names: tuple[str, ...]
    gpu_models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    """Where tasks without GPUs may run, which no GPU model tells."""
    priorities: tuple[int, int, int] = (1, 8, 1)
    """Weights of the site's priority classes."""
    siblings: int = 1
    """How many like it are submitted within a few minutes, at most."""
    checkpoint_min: int = 0
    launcher: bool = False
    """Gangs of several tasks get a second group: one small task that drives the others."""
    endless: bool = False
    """Services: nobody can say when they end."""


class SiteProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A site: its machines, its teams, and what they submit."""

    racks: tuple[Rack, ...]
    """The last one takes the nodes that rounding leaves over."""
    zones: tuple[str, ...]
    teams: tuple[Team, ...]
    department_of_sum: float
    """The quotas of a department's teams come to this part of what the teams hope for."""
    priority_classes: tuple[PriorityClassSpec, ...]
    habits: tuple[TeamHabit, ...]
    clocks: dict[str, tuple[int, ...]]
    """Name -> relative rate of arrivals in each hour of the day."""
    launcher: Resources
    """What the task asks for that drives a gang."""
    used_permille: dict[str, int]
    """Kind of work -> what it really uses of the CPU and memory it asks for, at the median."""


SITE = msgspec.toml.decode(Path(__file__).with_name("site_profile.toml").read_bytes(), type=SiteProfile)

MINUTE_MS = 60_000
DAY_MS = 24 * HOUR_MS
MIN_NODES = 20
"""With fewer, some queue's quota would be smaller than one 8-GPU node."""
WARM_FILL = 0.7
"""Share of each pool that is asked for at offset 0 of day 0."""

_USED_SPREAD = 0.15
"""Standard deviation of the logarithm of what work uses of its request."""
_USED_STEP = 50
"""In permille: few different figures are enough."""
_LARGE_SHARE = 0.1
"""Habits with a smaller share of their pool have no large work."""
_LARGE_HOURS = 22
"""Longest run of large work: it makes room for that of the next day."""
_LARGE_USE = 600
"""What large work uses of its requests, in permille: its many like tasks fill whole nodes, which must not run short."""
_FIRST_DATE = date(2026, 4, 13)
_ROUND_ESTIMATES_MIN = (10, 15, 30, 60, 120, 240, 480, 720, 1440, 2880, 4320)
"""What users type: round times, nearly always too long."""


def ai_cell(nodes: int = 400) -> CellSpec:
    """Five pools over three zones, a queue tree of three departments and eight teams, three priority classes."""
    if nodes < MIN_NODES:
        raise SpecError("nodes", f"{nodes} is below {MIN_NODES}", f"Give {MIN_NODES} or more")
    sizes = _pool_sizes(nodes)
    return CellSpec(
        name="ai-day",
        pools=tuple(rack.pool for rack in SITE.racks),
        nodes=tuple(node for rack in SITE.racks for node in _pool_nodes(rack, sizes[rack.pool.name])),
        queues=tuple(_queues(sizes)),
        priority_classes=SITE.priority_classes,
    )


def ai_day(seed: int, *, nodes: int = 400, day: int = 0) -> tuple[CellSpec, list[tuple[int, WorkloadSpec]]]:
    """The cell, and what arrives on one day: (milliseconds since its midnight, workload), in order of arrival.

    Day 0 begins busy: what is there at offset 0 fills each pool to WARM_FILL. Later days continue it with new ids, so
    that a stream can go on day after day.
    """
    cell = ai_cell(nodes)
    # Text, not a tuple: seeds of text are the same in every process and version.
    rng = Random(f"ai-day {seed} {nodes} {day}")
    sizes = _pool_sizes(nodes)
    quotas = _most(cell)
    today = _FIRST_DATE + timedelta(days=day)
    arrivals: list[tuple[int, WorkloadSpec]] = []
    for rack in SITE.racks:
        size = sizes[rack.pool.name]
        capacity = _measure(rack.pool.capacity) * size
        habits = [(work, _fitting(work, size, quotas)) for work in SITE.habits if work.pool == rack.pool.name]
        if day == 0:
            arrivals += _already_there(rng, habits, round(WARM_FILL * capacity), today)
        for work, shapes in habits:
            arrivals += _arriving(rng, work, shapes, capacity, today)
    arrivals.sort(key=lambda arrival: arrival[0])
    # A draw of its own, which leaves all others as they are.
    return cell, _numbered(arrivals, day, Random(f"ai-day use {seed} {nodes} {day}"))


def large_work(seed: int, *, nodes: int = 400, day: int = 0) -> list[tuple[int, WorkloadSpec]]:
    """A day of the same teams as few large workloads, for a past that has to be made within seconds: each habit with a
    fair share of its pool has one that is as large as that share, or two one after the other. (milliseconds since its
    midnight, workload), in order."""
    rng = Random(f"large work {seed} {nodes} {day}")
    sizes, quotas = _pool_sizes(nodes), _most(ai_cell(nodes))
    name_day = _FIRST_DATE + timedelta(days=day)
    found = []
    for work in SITE.habits:
        pool = _pool(work)
        shapes = _fitting(work, sizes[pool.name], quotas)
        if work.share < _LARGE_SHARE or not shapes:
            continue
        request = max(shapes, key=_size).request
        longest_h = min(work.longest_h, _LARGE_HOURS)
        for begin_h in range(rng.randrange(4), 24 - longest_h // 2, max(longest_h, 11)):
            fill = work.share * _measure(pool.capacity) * sizes[pool.name] * rng.uniform(0.7, 1)
            shape = HabitShape(1, max(1, int(fill / _measure(request))), request)
            run_ms = round(longest_h * HOUR_MS * rng.uniform(0.8, 1))
            found.append((begin_h * HOUR_MS, _spec(rng, work, shape, run_ms, _name(rng, work, name_day))))
    found.sort(key=lambda arrival: arrival[0])
    numbered = _numbered(found, day, Random(f"large work use {seed} {nodes} {day}"))
    return [(at_ms, msgspec.structs.replace(spec, simulated_usage_permille=_LARGE_USE)) for at_ms, spec in numbered]


def _pool_sizes(nodes: int) -> dict[str, int]:
    sizes = {rack.pool.name: round(rack.share * nodes) for rack in SITE.racks}
    sizes[SITE.racks[-1].pool.name] += nodes - sum(sizes.values())
    return sizes


def _pool_nodes(rack: Rack, nodes: int) -> Iterator[NodeSpec]:
    block_nodes = rack.rack_nodes * rack.block_racks
    for i in range(nodes):
        block = i // block_nodes
        yield NodeSpec(
            id=f"{rack.prefix}-{i + 1:04d}",
            pool=rack.pool.name,
            zone=SITE.zones[block % len(SITE.zones)],
            block=f"{rack.prefix}-b{block + 1}",
            rack=f"{rack.prefix}-b{block + 1}-r{i % block_nodes // rack.rack_nodes + 1}",
        )


def _queues(sizes: dict[str, int]) -> Iterator[QueueSpec]:
    gpus = sum(rack.pool.capacity.gpu_milli * sizes[rack.pool.name] for rack in SITE.racks) // 1000
    cpus = sum(rack.pool.capacity.cpu_milli * sizes[rack.pool.name] for rack in SITE.racks) // 1000
    leaves = [
        QueueSpec(
            name=team.queue,
            parent=team.queue.partition("/")[0],
            nominal=_quota(
                team.gpu_share * SITE.department_of_sum * gpus, team.cpu_share * SITE.department_of_sum * cpus
            ),
        )
        for team in SITE.teams
    ]
    for department in dict.fromkeys(leaf.parent for leaf in leaves):
        yield QueueSpec(name=department)
    yield from leaves


def _most(cell: CellSpec) -> dict[str, dict[str, int]]:
    """The most of each resource that a queue may be given: teams borrow from all of their department."""
    most: dict[str, dict[str, int]] = {}
    for queue in cell.queues:
        department = most.setdefault(queue.parent or queue.name, {})
        for name, quantity in queue.nominal.items():
            department[name] = department.get(name, 0) + quantity
    return {queue.name: most[queue.parent or queue.name] for queue in cell.queues}


def _quota(gpus: float, cpus: float) -> dict[str, int]:
    return {"gpu_milli": math.ceil(gpus) * 1000, "cpu_milli": math.ceil(cpus) * 1000}


def _fitting(work: TeamHabit, pool_nodes: int, quotas: dict[str, dict[str, int]]) -> list[HabitShape]:
    """Shapes that can start in this cell and leave room: at most half the pool, within what the queue may borrow."""
    capacity = _pool(work).capacity
    queue = _team(work).queue
    fitting = []
    for shape in work.shapes:
        asked = dict(zip(RESOURCES, shape.request.vector(), strict=True))
        per_node = min(getattr(capacity, name) // want for name, want in asked.items() if want)
        total = {name: want * shape.tasks for name, want in asked.items()}
        total["cpu_milli"] += SITE.launcher.cpu_milli
        allowed = all(total[name] <= limit for name, limit in quotas[queue].items())
        if allowed and shape.tasks <= per_node * (pool_nodes // 2):
            fitting.append(shape)
    return fitting


def _already_there(
    rng: Random, habits: list[tuple[TeamHabit, list[HabitShape]]], room: int, today: date
) -> Iterator[tuple[int, WorkloadSpec]]:
    """Yield the running work of one pool at the midnight before day 0, with the run time that is left."""
    shares = sum(work.share for work, _ in habits)
    for work, shapes in habits:
        mine = room * work.share / shares
        shares -= work.share
        while fitting := [shape for shape in shapes if _size(shape) <= mine]:
            shape = _weighted(rng, fitting)
            mine -= _size(shape)
            room -= _size(shape)
            # At any one moment long work is met more often than it is submitted.
            run_ms = max(_run_ms(rng, work), _run_ms(rng, work))
            yield 0, _spec(rng, work, shape, max(MINUTE_MS, int(run_ms * rng.random())), _name(rng, work, today))


def _arriving(
    rng: Random, work: TeamHabit, shapes: list[HabitShape], capacity: int, today: date
) -> Iterator[tuple[int, WorkloadSpec]]:
    """Submissions until the work's share of the day (capacity x time) is asked for."""
    budget = work.share * capacity * DAY_MS
    moments = _moments(rng, SITE.clocks[work.clock])
    while True:
        at_ms = next(moments)
        name = _name(rng, work, today)
        for sibling in range(rng.randint(1, work.siblings)):
            shape = _weighted(rng, shapes)
            run_ms = _run_ms(rng, work)
            cost = _size(shape) * run_ms
            if cost > 2 * budget:
                return
            budget -= cost
            full_name = name if work.siblings == 1 else f"{name}-{sibling + 1:02d}"
            yield min(at_ms + sibling * rng.randrange(15_000), DAY_MS - 1), _spec(rng, work, shape, run_ms, full_name)


def _moments(rng: Random, clock: tuple[int, ...]) -> Iterator[int]:
    """Endless times of day with the density of the clock, in no visible order."""
    # Steps of the golden ratio spread any number of them evenly; drawn independently, a few large gangs that happen to
    # come together would decide the load of the whole day.
    position = rng.random()
    edges = list(accumulate(clock))
    while True:
        position = (position + 0.618033988749895) % 1
        reached = position * edges[-1]
        hour = bisect_right(edges, reached)
        yield hour * HOUR_MS + int((reached - edges[hour] + clock[hour]) / clock[hour] * HOUR_MS)


def _spec(rng: Random, work: TeamHabit, shape: HabitShape, run_ms: int, name: str) -> WorkloadSpec:
    """A workload that still lacks its id."""
    team = _team(work)
    launched = work.launcher and shape.tasks > 1
    workers = TaskGroup(
        name="worker" if launched else "main",
        count=shape.tasks,
        request=shape.request,
        gpu_models=work.gpu_models,
        pools=work.pools,
    )
    return WorkloadSpec(
        id="",
        name=name,
        queue=team.queue,
        tenant=team.tenant,
        team=team.prefix,
        tags={"kind": work.kind},
        priority_class=rng.choices(SITE.priority_classes, work.priorities)[0].name,
        groups=(TaskGroup(name="launcher", request=SITE.launcher), workers) if launched else (workers,),
        estimate_ms=0 if work.endless else _estimate_ms(rng, run_ms),
        checkpoint_interval_ms=work.checkpoint_min * MINUTE_MS,
        simulated_runtime_ms=run_ms,
    )


def _run_ms(rng: Random, work: TeamHabit) -> int:
    run_ms = rng.lognormvariate(math.log(work.median_min * MINUTE_MS), work.spread)
    return round(min(max(run_ms, MINUTE_MS), work.longest_h * HOUR_MS))


def _estimate_ms(rng: Random, run_ms: int) -> int:
    """About two and a half times the run time, rounded up to what people type; a few come out too short."""
    guess_min = run_ms / MINUTE_MS * rng.lognormvariate(0.9, 0.6)
    typed = (minutes for minutes in _ROUND_ESTIMATES_MIN if minutes >= guess_min)
    return next(typed, _ROUND_ESTIMATES_MIN[-1]) * MINUTE_MS


def _name(rng: Random, work: TeamHabit, today: date) -> str:
    return rng.choice(work.names).format(date=today.strftime("%m%d"))


def _weighted(rng: Random, shapes: list[HabitShape]) -> HabitShape:
    return rng.choices(shapes, [shape.weight for shape in shapes])[0]


def _size(shape: HabitShape) -> int:
    return _measure(shape.request) * shape.tasks


def _measure(resources: Resources) -> int:
    """Return the measured size of a request: milli-GPU, or milli-CPU where there are no GPUs."""
    return resources.gpu_milli or resources.cpu_milli


def _pool(work: TeamHabit) -> PoolSpec:
    return next(rack.pool for rack in SITE.racks if rack.pool.name == work.pool)


def _team(work: TeamHabit) -> Team:
    return next(team for team in SITE.teams if team.prefix == work.team)


def _numbered(arrivals: list[tuple[int, WorkloadSpec]], day: int, use: Random) -> list[tuple[int, WorkloadSpec]]:
    """Ids count up within each team as its work arrives: `nlp-0042`, and on day 3 `nlp-d3-0042`. Each gets what it
    uses too."""
    counts: Counter[str] = Counter()
    numbered = []
    for at_ms, spec in arrivals:
        counts[spec.team] += 1
        day_part = f"-d{day}" if day else ""
        workload_id = f"{spec.team}{day_part}-{counts[spec.team]:04d}"
        used = _used_permille(use, spec.tags["kind"])
        numbered.append((at_ms, msgspec.structs.replace(spec, id=workload_id, simulated_usage_permille=used)))
    return numbered


def _used_permille(use: Random, kind: str) -> int:
    drawn = use.lognormvariate(math.log(SITE.used_permille[kind]), _USED_SPREAD)
    return min(max(round(drawn / _USED_STEP), 1) * _USED_STEP, 1000)
