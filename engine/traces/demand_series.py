"""Hourly series of demand, and days of jobs drawn after a profile of a site.

A believable day on a shared AI cell, for machines without traces: what there is (`ai_cell`) and who wants it.

Each `TeamHabit` is one habit of one team: fine-tuning in office hours, ETL at night, services all day. It asks for a
share of one pool's capacity, averaged over the day; arrivals follow its clock, so that together they ask for about as
much as there is at the peak of the day and for less at night. All randomness comes from the seed.

Series of demand by the hour, and how well rules of capacity meet them.

The protocol: the capacity of an hour is decided `lead` hours before it, on what was asked for up to then. Each rule is
given the headroom, a factor, with which exactly 1 % of the demanded unit-hours of the last 30 % of the series are
unmet; what counts is how many unit-hours it then provides above demand, in percent of those demanded.
"""

from __future__ import annotations

import csv
import gzip
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, timedelta
from itertools import accumulate
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from engine.capacity.task_shapes import accepts
from engine.model.errors import SpecError
from engine.model.specs import (
    HOUR_MS,
    RESOURCES,
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.demand import DAY, Forecaster, SeasonalBaseline, Series
from engine.traces.site_profile import (
    DEPARTMENT_OF_SUM,
    LAUNCHER,
    PRIORITY_CLASSES,
    RACKS,
    TEAMS,
    USED_PERMILLE,
    WORKS,
    ZONES,
    HabitShape,
    Rack,
    Team,
    TeamHabit,
)

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
        pools=tuple(rack.pool for rack in RACKS),
        nodes=tuple(node for rack in RACKS for node in _pool_nodes(rack, sizes[rack.pool.name])),
        queues=tuple(_queues(sizes)),
        priority_classes=PRIORITY_CLASSES,
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
    for rack in RACKS:
        size = sizes[rack.pool.name]
        capacity = _measure(rack.pool.capacity) * size
        habits = [(work, _fitting(work, size, quotas)) for work in WORKS if work.pool == rack.pool.name]
        if day == 0:
            arrivals += _already_there(rng, habits, round(WARM_FILL * capacity), today)
        for work, shapes in habits:
            arrivals += _arriving(rng, work, shapes, capacity, today)
    arrivals.sort(key=lambda arrival: arrival[0])
    # A draw of its own, which leaves all others as they are.
    return cell, _numbered(arrivals, day, Random(f"ai-day use {seed} {nodes} {day}"))


def _pool_sizes(nodes: int) -> dict[str, int]:
    sizes = {rack.pool.name: round(rack.share * nodes) for rack in RACKS}
    sizes[RACKS[-1].pool.name] += nodes - sum(sizes.values())
    return sizes


def _pool_nodes(rack: Rack, nodes: int) -> Iterator[NodeSpec]:
    block_nodes = rack.rack_nodes * rack.block_racks
    for i in range(nodes):
        block = i // block_nodes
        yield NodeSpec(
            id=f"{rack.prefix}-{i + 1:04d}",
            pool=rack.pool.name,
            zone=ZONES[block % len(ZONES)],
            block=f"{rack.prefix}-b{block + 1}",
            rack=f"{rack.prefix}-b{block + 1}-r{i % block_nodes // rack.rack_nodes + 1}",
        )


def _queues(sizes: dict[str, int]) -> Iterator[QueueSpec]:
    gpus = sum(rack.pool.capacity.gpu_milli * sizes[rack.pool.name] for rack in RACKS) // 1000
    cpus = sum(rack.pool.capacity.cpu_milli * sizes[rack.pool.name] for rack in RACKS) // 1000
    leaves = [
        QueueSpec(
            name=team.queue,
            parent=team.queue.partition("/")[0],
            nominal=_quota(team.gpu_share * DEPARTMENT_OF_SUM * gpus, team.cpu_share * DEPARTMENT_OF_SUM * cpus),
        )
        for team in TEAMS
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
        total["cpu_milli"] += LAUNCHER.cpu_milli
        allowed = all(total[name] <= limit for name, limit in quotas[queue].items())
        if allowed and shape.tasks <= per_node * (pool_nodes // 2):
            fitting.append(shape)
    return fitting


def _already_there(
    rng: Random, habits: list[tuple[TeamHabit, list[HabitShape]]], room: int, today: date
) -> Iterator[tuple[int, WorkloadSpec]]:
    """What runs in one pool at the midnight before day 0, with the run time that is left."""
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
    moments = _moments(rng, work.clock)
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
        priority_class=rng.choices(PRIORITY_CLASSES, work.priorities)[0].name,
        groups=(TaskGroup(name="launcher", request=LAUNCHER), workers) if launched else (workers,),
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
    """What work of a pool is measured in: milli-GPU, or milli-CPU where there are no GPUs."""
    return resources.gpu_milli or resources.cpu_milli


def _pool(work: TeamHabit) -> PoolSpec:
    return next(rack.pool for rack in RACKS if rack.pool.name == work.pool)


def _team(work: TeamHabit) -> Team:
    return next(team for team in TEAMS if team.prefix == work.team)


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
    drawn = use.lognormvariate(math.log(USED_PERMILLE[kind]), _USED_SPREAD)
    return min(max(round(drawn / _USED_STEP), 1) * _USED_STEP, 1000)


UNMET = 0.01
LEADS = (1, 6)
"""Hours."""
QUANTILES = (500, 800, 900, 950)
"""Permille."""
MIN_HOURS = 10 * DAY
"""Shorter series are left out: their test part would be less than three days."""
FULL = "_full"
"""Series whose name ends so are tested on their last 40 %."""
GENERATED_DAYS, GENERATED_NODES = 28, 100
COMPARED = (
    "helios_earth_dev_vcs_gpu_demand", "itp2021_cluster04_gpus_in_use", "kth_sp2_1996_procs_in_use",
    "nab_Twitter_volume_AMZN", "nab_nyc_taxi", "philly2017_active_nodes", "spotgpu2026_gpus_active_A10_h0024-2650",
    "spotgpu2026_gpus_active_h0024-2650",
)  # fmt: skip
"""Series on which the best forecaster known to us was measured by the same protocol."""
BEST_KNOWN = {1: 4.0, 6: 13.5}
"""By lead in hours: its geometric mean over them. Gradient-boosted trees on lags, fitted to each series by itself."""
REACTIVE = ("last value", "max 24 h", "max(last, yesterday)", "peak of train")


class Load(msgspec.Struct, frozen=True):
    """One series."""

    name: str
    demand: Series
    first_test: int
    """Hour at which its test part begins."""


class SeriesScore(msgspec.Struct, frozen=True, kw_only=True):
    """How rules did on one series. Percent of the demanded unit-hours that were provided above demand, by rule; None
    where no headroom leaves as little unmet."""

    series: str
    lead_h: int
    hours: int
    test_hours: int
    over_percent: dict[str, float | None]
    train_over_percent: dict[str, float | None]
    """Of forecasts, by quantile, on the part before the test: what the quantile is chosen by."""


def forecast_rule(permille: int) -> str:
    return f"forecast q{permille / 1000:g}"


def read(folder: str | Path) -> list[Load]:
    """Every `*.csv.gz` of the folder with a column `value`, by name. Raises SpecError naming the file."""
    paths = sorted(Path(folder).glob("*.csv.gz"))
    if not paths:
        raise SpecError("--data", f"'{folder}' holds no *.csv.gz", "Give a folder of hourly series, or none")
    found = []
    for path in paths:
        name = path.name.removesuffix(".csv.gz")
        demand = _column(path)
        if len(demand) >= MIN_HOURS:
            share = 0.6 if name.endswith(FULL) else 0.7
            found.append(Load(name, demand, int(len(demand) * share)))
    return found


def _column(path: Path) -> Series:
    try:
        with gzip.open(path, "rt", newline="") as lines:
            values = np.array([float(row["value"]) for row in csv.DictReader(lines)])
    except (OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise SpecError(str(path), f"is not a series: {error}", "Give lines of time,value") from None
    if not np.isfinite(values).all() or (values < 0).any():
        raise SpecError(str(path), "holds a value that is no demand", "Give numbers of 0 or more")
    return values


def generated(seed: int, days: int = GENERATED_DAYS) -> list[Load]:
    """Units asked for in each pool of the generated AI cell if everything had started when it was submitted: mean of
    each hour, in milli-GPU, or milli-CPU where there are no GPUs."""
    hours = days * DAY
    series: dict[str, Series] = {}
    for day in range(days):
        cell, arrivals = ai_day(seed, nodes=GENERATED_NODES, day=day)
        for at_ms, spec in arrivals:
            for group in spec.groups:
                # The first that it may use: which one it will be given depends on what else runs.
                pool = next(pool for pool in cell.pools if accepts(group, pool))
                units = group.count * (group.request.gpu_milli if pool.capacity.gpu_milli else group.request.cpu_milli)
                begin = (at_ms + day * DAY * HOUR_MS) / HOUR_MS
                demand = series.setdefault(pool.name, np.zeros(hours))
                _add(demand, begin, begin + spec.simulated_runtime_ms / HOUR_MS, units)
    return [Load(f"generated_{name}", demand, int(hours * 0.7)) for name, demand in sorted(series.items())]


def _add(demand: Series, begin: float, end: float, units: int) -> None:
    """So many more from `begin` to `end`, in hours."""
    first, last = int(begin), min(int(end), len(demand) - 1)
    demand[first : last + 1] += units
    demand[first] -= units * (begin - first)
    if end < last + 1:
        demand[last] -= units * (last + 1 - end)


def over_provisioned(demand: Series, capacity: Series, most_headroom: float = 1e9) -> float | None:
    """Unit-hours above demand in percent of those demanded, with the headroom that leaves UNMET of them unmet; None
    when none up to the most does."""
    total = demand.sum()

    def unmet(headroom: float) -> float:
        return float(np.maximum(demand - headroom * capacity, 0).sum() / total)

    low, high = 0.0, 1.0
    while unmet(high) > UNMET:
        low, high = high, 2 * high
        if low >= most_headroom:
            return None
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if unmet(middle) > UNMET else (low, middle)
    return float(np.maximum(high * capacity - demand, 0).sum() / total * 100)


def reactive(load: Load, lead: int) -> dict[str, Series]:
    """What each of REACTIVE provides in each hour of the test part."""
    demand, hours = load.demand, range(load.first_test, len(load.demand))
    last = demand[load.first_test - lead : len(demand) - lead]
    yesterday = demand[load.first_test - DAY : len(demand) - DAY]
    most = np.array([demand[hour - lead - DAY + 1 : hour - lead + 1].max() for hour in hours])
    peak = np.full(len(hours), demand[: load.first_test].max())
    return dict(zip(REACTIVE, (last, most, np.maximum(last, yesterday), peak), strict=True))


def foretold(demand: Series, hours: range, lead: int, permilles: Sequence[int], forecaster: Forecaster) -> Series:
    """[quantile, hour]: what the forecaster says of each of these hours, of which it knows what was asked for up to
    `lead` before."""
    return np.array([forecaster.quantiles(demand[: hour - lead + 1], lead, permilles) for hour in hours]).T


def score(load: Load, lead: int, forecaster: Forecaster | None = None) -> SeriesScore:
    """All rules on one series."""
    forecaster = SeasonalBaseline() if forecaster is None else forecaster
    demand, first = load.demand, load.first_test
    over = {name: over_provisioned(demand[first:], provided) for name, provided in reactive(load, lead).items()}
    train: dict[str, float | None] = {}
    # As long a part as the test part, before it: what comes before that is needed to forecast from.
    before = range(max(first - (len(demand) - first), 2 * DAY + lead), first)
    every = foretold(demand, range(before.start, len(demand)), lead, QUANTILES, forecaster)
    for permille, said in zip(QUANTILES, every, strict=True):
        train[forecast_rule(permille)] = over_provisioned(demand[before.start : first], said[: len(before)])
        over[forecast_rule(permille)] = over_provisioned(demand[first:], said[len(before) :])
    return SeriesScore(
        series=load.name,
        lead_h=lead,
        hours=len(demand),
        test_hours=len(demand) - first,
        over_percent=over,
        train_over_percent=train,
    )


def geometric_means(
    scores: Iterable[SeriesScore], of: Callable[[SeriesScore], dict[str, float | None]]
) -> dict[str, float | None]:
    """By rule, over the series on which every rule has a score above 0; None when there are none."""
    rows = [of(score) for score in scores]
    rows = [row for row in rows if all(value is not None and value > 0 for value in row.values())]
    if not rows:
        return {}
    table = np.log(np.array([[value for value in row.values() if value is not None] for row in rows]))
    return dict(zip(rows[0], np.exp(table.mean(axis=0)).tolist(), strict=True))


def chosen_quantile(scores: Iterable[SeriesScore]) -> int:
    """Permille of the forecast that provides least on the parts before the tests, over all leads; the lower of equals.
    900 when no series tells."""
    means = geometric_means(scores, lambda score: score.train_over_percent)
    return min(QUANTILES, key=lambda permille: (means[forecast_rule(permille)], permille)) if means else 900
