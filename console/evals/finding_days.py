"""Generated cell days for `muster eval findings`: a fault, or a stretch that looks like one and is fine.

The cell and its load are those of `engine.traces.generated_day`, with a growing pool, a labelled pool, two queues that
may not borrow, and work of theirs. Size, load, moment, objects and strength follow from the seed. Everything happens
by commands and reports of agents, as in production; nothing is put into the state. None of it is an incident of the
drafters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from engine.control import Engine
from engine.executors.agent_reports import SampleOf
from engine.model import commands as do
from engine.model.columns import view
from engine.model.commands import AnyCommand, Define, Submit
from engine.model.errors import MusterError
from engine.model.reports import BudgetLine
from engine.model.specs import (
    HOUR_MS,
    BudgetSpec,
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    TaskGroup,
    WorkloadSpec,
)
from engine.traces.generated_day import ai_day

MINUTE_MS, DAY_MS = 60_000, 24 * HOUR_MS
STEP_MS = 5 * MINUTE_MS
"""Cell time between two looks."""
BEAT_MS = 15_000
STRETCH_MS = 6 * HOUR_MS
"""Of a stretch without a fault: a quarter of a cell day."""
WATCHED_MS = HOUR_MS
"""After the fault, in which it has to be found."""
GROW, LABELLED, SPOT = "burst-32c", "nvme-64c", "cpu-96c-spot"
_GROW_SIZE = Resources(cpu_milli=32_000, memory_mib=128 * 1024, disk_mib=512 * 1024)
_LABELLED_SIZE = Resources(cpu_milli=64_000, memory_mib=256 * 1024, disk_mib=4096 * 1024)
LABEL = {"disk": "nvme"}


class Stretch(NamedTuple):
    """What is played: a kind of finding as a fault, or its look-alike."""

    kind: str
    seed: int
    fault: bool

    @property
    def name(self) -> str:
        return f"{self.kind}/{'fault' if self.fault else 'control'}/{self.seed}"


class FindingDay:
    """One cell over a part of a day: STRETCH_MS, or up to WATCHED_MS after its fault."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch
        self.rng = Random(f"{stretch.kind} {stretch.fault} {stretch.seed}")
        self.cell, arrivals = ai_day(self.rng.randrange(10**6), nodes=self.rng.choice((20, 24, 28)))
        self.cell = _with_extras(self.cell)
        # What is there at midnight, and what comes from an hour of the day on.
        from_ms = self.rng.randrange(0, 24 * HOUR_MS - STRETCH_MS)
        arrivals = [(max(at_ms - from_ms, 0), spec) for at_ms, spec in arrivals if not 0 < at_ms < from_ms]
        self.arrivals = sorted([*arrivals, *_extra_work(self.rng)], key=lambda each: each[0])
        self.engine = Engine.open(None, seed=stretch.seed)
        self.do(Define(cell=self.cell))
        self.do(do.SetAutoscaling(changes={"scan_every_ms": 2 * MINUTE_MS}))
        self.begins_ms = self.rng.randrange(200, 280) // 5 * STEP_MS
        self.subjects: tuple[str, ...] = ()
        """Ids and names that the fault is about."""
        self.symptom: Callable[[Engine], int] = _waiting
        self.later: list[tuple[int, Callable[[], None]]] = []
        """(cell ms, what happens then)"""
        self._next = 0
        self._beats: list[Callable[[], None]] = []
        """Called every BEAT_MS: agents that report."""
        self._number = 0

    def steps(self) -> Iterator[int]:
        """Play step by step; yields the cell time after each."""
        scene = SCENES[self.stretch.kind][0 if self.stretch.fault else 1]
        begun = False
        while self.engine.now_ms < (self.begins_ms + WATCHED_MS if self.stretch.fault else STRETCH_MS):
            if not begun and self.engine.now_ms >= self.begins_ms:
                begun = True
                scene(self)
            self._step()
            yield self.engine.now_ms

    def _step(self) -> None:
        """Five minutes: what has arrived is submitted, and what is due within them happens at its time."""
        end_ms = self.engine.now_ms + STEP_MS
        first = self._next
        while self._next < len(self.arrivals) and self.arrivals[self._next][0] <= self.engine.now_ms:
            self._next += 1
        self.submit(*(spec for _, spec in self.arrivals[first : self._next]))
        while self.engine.now_ms < end_ms:
            due = [happens for at_ms, happens in self.later if at_ms <= self.engine.now_ms]
            self.later = [each for each in self.later if each[0] > self.engine.now_ms]
            for happens in (*due, *self._beats):
                happens()
            until_ms = min((end_ms, *(at_ms for at_ms, _ in self.later)))
            self.engine.advance(min(until_ms, self.engine.now_ms + BEAT_MS) if self._beats else until_ms)

    def do(self, command: AnyCommand) -> None:
        self.engine.command(command)

    def submit(self, *specs: WorkloadSpec) -> None:
        """Together; where the cell refuses one at its door, each for itself."""
        try:
            if specs:
                self.engine.command(Submit(workloads=specs))
            return
        except MusterError:
            pass
        for spec in specs:
            try:
                self.engine.command(Submit(workloads=(spec,)))
            except MusterError:
                continue

    def after(self, minutes: float, happens: Callable[[], None]) -> None:
        self.later.append((self.engine.now_ms + round(minutes * MINUTE_MS), happens))

    def nodes(self, pool: str, *, busy: bool | None = None) -> list[str]:
        """Ready nodes of a pool, in an order of the seed."""
        c, a = self.engine.state.capacity, self.engine.state.allocations
        rows = [
            row
            for row, name in enumerate(c.node_ids)
            if c.pools[c.pool[row]].name == pool and c.state[row] == NodeState.READY
            if busy is None or (a.workloads_on(row) > 0) == busy
        ]
        ids = [c.node_ids[row] for row in rows]
        self.rng.shuffle(ids)
        return ids

    def jobs(
        self, stem: str, count: int, *, queue: str, tenant: str, cpus: int = 4, gpus: int = 0, tasks: int = 1,
        pools: tuple[str, ...] = (), priority: str = "normal", minutes: int = 120,
        labels: Mapping[str, str] | None = None, retries: int = 0, failures: int = 0, team: str = "",
    ) -> list[WorkloadSpec]:  # fmt: skip
        number = self._number = self._number + 1000
        group = TaskGroup(
            count=tasks,
            request=Resources(cpu_milli=cpus * 1000, memory_mib=cpus * 2048, gpu_milli=gpus * 1000),
            pools=pools,
            node_labels={key: (value,) for key, value in (labels or {}).items()},
        )
        return [
            WorkloadSpec(
                id=f"{stem}-{number + i}", name=f"{stem}-{i}", queue=queue, tenant=tenant, team=team, groups=(group,),
                priority_class=priority, estimate_ms=minutes * MINUTE_MS,
                simulated_runtime_ms=round(minutes * MINUTE_MS * self.rng.uniform(0.6, 0.95)),
                retries=retries, backoff_ms=20_000, simulated_failures=failures,
            )
            for i in range(count)
        ]  # fmt: skip

    def progress(self, workload: str, slow: Mapping[str, int], samples: int) -> None:
        """Agents of a gang's nodes report once a minute; those of `slow` so many percent of the others."""
        places = self.engine.workload(workload).placement
        nodes = list(dict.fromkeys(place.node for place in places))
        found = self.engine.agents.register(nodes)
        tokens = dict(zip(found.nodes, zip(found.rows, found.epochs, strict=True), strict=True))

        def beat() -> None:
            rows, epochs = np.array(list(tokens.values()), np.int64).T
            self._number += 1
            self.engine.agents.beat(rows, epochs, np.full(len(rows), self._number, np.int64))

        def report(sample: int) -> None:
            for node in nodes:
                row, epoch = tokens[node]
                done = 15 * sample * slow.get(node, 100) // 100
                ranks = [place.rank + i for place in places if place.node == node for i in range(place.tasks)]
                self._number += 1
                self.engine.agents.status(row, epoch, self._number, [SampleOf(workload, rank, done) for rank in ranks])
            if sample < samples:
                self.after(1, lambda: report(sample + 1))

        self._beats.append(beat)
        beat()
        report(1)

    def close(self) -> None:
        self.engine.forget()


def _waiting(engine: Engine) -> int:
    """Milli-GPU and CPUs (16 for a GPU) that wait."""
    w = engine.state.workloads
    rows = np.flatnonzero(view(w.state) == 0)
    return sum(w.class_at(row).request[2] + w.class_at(row).request[0] // 16 for row in rows.tolist())


def _with_extras(cell: CellSpec) -> CellSpec:
    pools = (
        PoolSpec(
            name=GROW, capacity=_GROW_SIZE, price_microusd_hour=1_600_000,
            scaling=ScalingSpec(least=1, most=6, boot_ms=(60_000, 150_000)),
        ),
        PoolSpec(name=LABELLED, capacity=_LABELLED_SIZE, price_microusd_hour=3_200_000),
    )  # fmt: skip
    nodes = (
        NodeSpec(id=f"{GROW}-1", pool=GROW),
        *(NodeSpec(id=f"{LABELLED}-{i}", pool=LABELLED, labels=LABEL) for i in range(1, 4)),
    )
    queues = (
        QueueSpec(name="labs"),
        QueueSpec(name="labs/bio", parent="labs", nominal={"cpu_milli": 64_000}, borrowing_limit={"cpu_milli": 96_000}),
        QueueSpec(name="labs/geo", parent="labs", nominal={"cpu_milli": 96_000}),
        QueueSpec(name="open"),
    )
    return msgspec.structs.replace(
        cell, pools=(*cell.pools, *pools), nodes=(*cell.nodes, *nodes), queues=(*cell.queues, *queues)
    )


def _extra_work(rng: Random) -> Iterator[tuple[int, WorkloadSpec]]:
    """Small work for the pools and queues that were added, all day."""
    at_ms, number = 0, 0
    while at_ms < 24 * HOUR_MS:
        at_ms += round(rng.expovariate(1 / 12) * MINUTE_MS)
        number += 1
        pool, queue = rng.choice(((GROW, "open"), (LABELLED, "open"), (LABELLED, "labs/bio"), (LABELLED, "labs/geo")))
        cpus, minutes = rng.choice((4, 8, 12)), rng.randrange(5, 50)
        group = TaskGroup(
            request=Resources(cpu_milli=cpus * 1000, memory_mib=cpus * 2048), pools=(pool,),
            node_labels={"disk": ("nvme",)} if pool == LABELLED and rng.random() < 0.5 else {},
        )  # fmt: skip
        yield (
            at_ms,
            WorkloadSpec(
                id=f"extra-{number}", name=f"extra-{number}", queue=queue, tenant=f"{queue[-3:]}-lab", groups=(group,),
                estimate_ms=2 * minutes * MINUTE_MS, simulated_runtime_ms=minutes * MINUTE_MS,
            ),
        )  # fmt: skip


# -- scenes: a fault, and a stretch that looks like it and is fine ----------------------------------------------------


def drained(day: FindingDay) -> None:
    """Nodes are drained, or cordoned and left until they are empty, while work waits for just such nodes."""
    pool = day.rng.choice((LABELLED, "cpu-96c", "l40s-4x"))
    ids = day.nodes(pool)
    out = tuple(ids[: day.rng.randrange(1, max(2, len(ids) // 2 + 1))])
    day.subjects = out
    day.do(do.Drain(ids=out))
    cpus, gpus = (16, 0) if pool != "l40s-4x" else (4, 1)
    count = 8 * len(ids)
    queue = "open"
    jobs = day.jobs("etl", count, queue=queue, tenant="ops", cpus=cpus, gpus=gpus, pools=(pool,), minutes=240)
    day.after(day.rng.randrange(0, 4), lambda: day.submit(*jobs))


def drained_briefly(day: FindingDay) -> None:
    """Nodes are drained for a firmware update, one after the other, and back within ten minutes, with work waiting."""
    pool = day.rng.choice((LABELLED, "cpu-96c"))
    for turn, node in enumerate(day.nodes(pool)):
        day.after(20 * turn, lambda node=node: _if_possible(day, do.Drain(ids=(node,))))  # type: ignore[misc]
        day.after(20 * turn + 8, lambda node=node: _if_possible(day, do.Uncordon(ids=(node,))))  # type: ignore[misc]
    jobs = day.jobs("etl", 20, queue="open", tenant="ops", cpus=16, pools=(pool,), minutes=90)
    day.submit(*jobs)
    spare = day.nodes(SPOT)
    if spare:
        _if_possible(day, do.Cordon(ids=(spare[0],)))
        day.after(9, lambda: _if_possible(day, do.Uncordon(ids=(spare[0],))))


def reserved(day: FindingDay) -> None:
    """A reservation keeps nodes for a queue that sends nothing, while others wait for such nodes."""
    nodes = tuple(day.nodes(LABELLED)[: day.rng.randrange(1, 3)])
    day.subjects = ("maintenance-window", *nodes)
    now = day.engine.now_ms
    day.do(do.Drain(ids=nodes))
    day.do(do.Uncordon(ids=nodes))
    spec = ReservationSpec(name="maintenance-window", nodes=nodes, queues=("labs/geo",), start_ms=now + MINUTE_MS,
                           end_ms=now + 8 * HOUR_MS)  # fmt: skip
    day.do(do.Reserve(reservation=spec))
    # Nothing of the lab comes any more.
    day.arrivals = [each for each in day.arrivals if each[1].queue != "labs/geo"]
    day.submit(*day.jobs("scan", 24, queue="open", tenant="ops", cpus=16, pools=(LABELLED,), minutes=240))


def reserved_and_used(day: FindingDay) -> None:
    """The owner of a reservation comes within five minutes, and others wait meanwhile."""
    nodes = tuple(day.nodes(LABELLED)[:2])
    now = day.engine.now_ms
    spec = ReservationSpec(name="demo-window", nodes=nodes, queues=("labs/geo",), start_ms=now + MINUTE_MS,
                           end_ms=now + 3 * HOUR_MS)  # fmt: skip
    _if_possible(day, do.Reserve(reservation=spec))
    use = day.jobs("demo", 4, queue="labs/geo", tenant="geo-lab", cpus=24, pools=(LABELLED,), minutes=300)
    day.after(day.rng.randrange(2, 6), lambda: day.submit(*use))
    day.submit(*day.jobs("scan", 10, queue="open", tenant="ops", cpus=16, pools=(LABELLED,), minutes=60))


def flood(day: FindingDay) -> None:
    """A tenant, new or known, submits far more than ever before, ahead of others."""
    tenant = day.rng.choice(("newcorp", "core"))
    pool = day.rng.choice(("cpu-96c", LABELLED))
    count = day.rng.randrange(80, 260)
    day.subjects = (tenant,)
    others = day.jobs("calib", 12, queue="open", tenant="ops", cpus=16, pools=(pool,), minutes=60)
    mine = day.jobs("sweep", count, queue="open", tenant=tenant, cpus=day.rng.choice((8, 16)), pools=(pool,),
                    priority=day.rng.choice(("high", "normal")), minutes=180)  # fmt: skip
    day.submit(*mine)
    day.after(1, lambda: day.submit(*others))
    ids = {spec.id for spec in mine}

    def others_waiting(engine: Engine) -> int:
        w = engine.state.workloads
        rows = np.flatnonzero(view(w.state) == 0)
        return sum(w.class_at(row).request[0] for row in rows.tolist() if w.ids[row] not in ids)

    day.symptom = others_waiting


def batch(day: FindingDay) -> None:
    """A tenant submits a large sweep of low priority that goes behind all others, or a small one of high priority."""
    pool = "cpu-96c"
    if day.rng.random() < 0.5:
        day.submit(
            *day.jobs("sweep", 150, queue="open", tenant="ops", cpus=8, pools=(pool,), priority="low", minutes=25)
        )
    else:
        day.submit(
            *day.jobs("urgent", 12, queue="open", tenant="newcorp", cpus=4, pools=(pool,), priority="high", minutes=40)
        )
    day.after(
        10, lambda: day.submit(*day.jobs("calib", 6, queue="open", tenant="core", cpus=8, pools=(pool,), minutes=20))
    )


def lost_quota(day: FindingDay) -> None:
    """A queue may no longer borrow, its neighbour is idle, and nodes have room."""
    day.arrivals = [each for each in day.arrivals if each[1].queue != "labs/geo"]
    spec = next(queue for queue in day.cell.queues if queue.name == "labs/bio")
    limit = day.rng.choice((0, 4_000))
    day.do(do.ChangeQueue(queue=msgspec.structs.replace(spec, borrowing_limit={"cpu_milli": limit}), over="keep"))
    day.subjects = ("labs/bio",)
    jobs = day.jobs(
        "align", 10, queue="labs/bio", tenant="bio-lab", cpus=16, pools=(LABELLED, "cpu-96c", GROW), minutes=240
    )
    day.submit(*jobs)


def quota_in_use(day: FindingDay) -> None:
    """A queue waits for quota that its neighbour uses."""
    day.submit(
        *day.jobs("quake", 8, queue="labs/geo", tenant="geo-lab", cpus=12, pools=(LABELLED, "cpu-96c"), minutes=200)
    )
    jobs = day.jobs("align", 14, queue="labs/bio", tenant="bio-lab", cpus=16, pools=(LABELLED, "cpu-96c"), minutes=60)
    day.after(2, lambda: day.submit(*jobs))


def shrunk(day: FindingDay) -> None:
    """A gang waits, and then the nodes or the quota that it needs are taken away for good."""
    if day.rng.random() < 0.5:
        nodes = day.nodes(LABELLED)
        jobs = day.jobs(
            "fluid", 1, queue="open", tenant="ops", cpus=60, tasks=len(nodes), pools=(LABELLED,), minutes=300
        )
        block = day.jobs(
            "block", 3, queue="open", tenant="ops", cpus=20, pools=(LABELLED,), priority="high", minutes=90
        )
        day.submit(*block, *jobs)
        day.after(2, lambda: _if_possible(day, do.Drain(ids=(nodes[0],))))
        day.after(3, lambda: _if_possible(day, do.RemoveNodes(ids=(nodes[0],))))
    else:
        jobs = day.jobs(
            "fluid", 1, queue="labs/geo", tenant="geo-lab", cpus=60, tasks=2, pools=(LABELLED,), minutes=300
        )
        day.submit(
            *day.jobs("block", 3, queue="open", tenant="ops", cpus=20, pools=(LABELLED,), priority="high", minutes=90)
        )
        day.submit(*jobs)
        spec = next(queue for queue in day.cell.queues if queue.name == "labs/geo")
        less = msgspec.structs.replace(spec, nominal={"cpu_milli": 48_000}, borrowing_limit={"cpu_milli": 16_000})
        day.after(2, lambda: _if_possible(day, do.ChangeQueue(queue=less, over="keep")))
    day.subjects = tuple(spec.id for spec in jobs)


def large_gang(day: FindingDay) -> None:
    """A gang as large as its pool waits until that is empty."""
    day.submit(*day.jobs("block", 3, queue="open", tenant="ops", cpus=40, pools=(LABELLED,), minutes=100))
    day.submit(*day.jobs("fluid", 1, queue="open", tenant="ops", cpus=60, tasks=3, pools=(LABELLED,), minutes=30))


def relabelled(day: FindingDay) -> None:
    """Nodes are replaced by others without the label that work asks for."""
    ids = day.nodes(LABELLED)
    day.subjects = (LABELLED, "disk=nvme")
    day.do(do.Drain(ids=tuple(ids)))
    day.submit(*day.jobs("shuffle", 3, queue="open", tenant="ops", cpus=16, labels=LABEL, minutes=60))
    _if_possible(day, do.RemoveNodes(ids=tuple(ids)))
    labels = {"disk": day.rng.choice(("nvm", "ssd"))}
    nodes = tuple(NodeSpec(id=f"{LABELLED}-{i}", pool=LABELLED, labels=labels) for i in range(11, 14))
    day.do(do.AddNodes(nodes=nodes))


def labelled_and_busy(day: FindingDay) -> None:
    """Work waits for nodes with a label, all of which are busy, while others have room."""
    day.submit(*day.jobs("block", 3, queue="open", tenant="ops", cpus=60, labels=LABEL, minutes=100))
    day.after(
        2, lambda: day.submit(*day.jobs("shuffle", 3, queue="open", tenant="ops", cpus=16, labels=LABEL, minutes=60))
    )


def not_growing(day: FindingDay) -> None:
    """Work waits for a pool whose maximum was lowered, or while the autoscaler is off."""
    day.subjects = (GROW, "autoscaler")
    if day.rng.random() < 0.5:
        day.do(do.SetAutoscaling(changes={"enabled": False}))
    else:
        now = sum(pool.nodes for pool in day.engine.overview().pools if pool.name == GROW)
        day.do(do.SetScaling(pool=GROW, most=max(1, now)))
    day.submit(*day.jobs("render", 12, queue="open", tenant="ops", cpus=24, pools=(GROW,), minutes=200))


def growing(day: FindingDay) -> None:
    """Work waits while its pool grows, as far as it may."""
    day.submit(*day.jobs("render", 4, queue="open", tenant="ops", cpus=24, pools=(GROW,), minutes=30))
    day.after(
        40, lambda: day.submit(*day.jobs("render", 5, queue="open", tenant="ops", cpus=24, pools=(GROW,), minutes=15))
    )


def failing(day: FindingDay) -> None:
    """A node is lost and comes back, twice or three times, and gets work again each time."""
    node = (day.nodes("h100-8x", busy=True) or day.nodes("a100-8x", busy=True) or day.nodes("l40s-4x"))[0]
    day.subjects = (node,)
    day.begins_ms = day.engine.now_ms
    gap = day.rng.randrange(3, 8)
    _if_possible(day, do.FailNodes(ids=(node,)))
    day.after(1, lambda: _if_possible(day, do.RestoreNodes(ids=(node,))))
    day.after(gap, lambda: _if_possible(day, do.FailNodes(ids=(node,))))
    day.after(gap + 1, lambda: _if_possible(day, do.RestoreNodes(ids=(node,))))


def rebooted(day: FindingDay) -> None:
    """Nodes are rebooted one after the other, each once."""
    nodes = day.nodes("a100-8x") + day.nodes("l40s-4x")
    for turn, node in enumerate(nodes[:6]):
        day.after(15 * turn, lambda node=node: _if_possible(day, do.FailNodes(ids=(node,))))  # type: ignore[misc]
        day.after(15 * turn + 4, lambda node=node: _if_possible(day, do.RestoreNodes(ids=(node,))))  # type: ignore[misc]


def _gang(day: FindingDay) -> tuple[str, dict[str, int]] | None:
    """A gang of six on three nodes or more that runs, and its tasks by node; None where there is no room."""
    pools = ("cpu-96c", LABELLED, SPOT)
    spec = day.jobs(
        "train", 1, queue="open", tenant="ops", cpus=33, tasks=6, pools=pools, priority="high", minutes=400
    )[0]
    day.submit(spec)
    day.engine.advance(day.engine.now_ms + 1000)
    counts: dict[str, int] = {}
    for place in day.engine.workload(spec.id).placement:
        counts[place.node] = counts.get(place.node, 0) + place.tasks
    return (spec.id, counts) if len(counts) >= 3 else None


def straggling(day: FindingDay) -> None:
    """One node of a gang does its tasks at a part of the speed of the others."""
    gang = _gang(day)
    if gang is None:
        day.begins_ms = day.engine.now_ms + STEP_MS
        day.after(5, lambda: straggling(day))
        return
    slow = min(gang[1], key=lambda node: (gang[1][node], node))
    day.subjects = (slow,)
    day.progress(gang[0], {slow: day.rng.randrange(20, 55)}, 20)


def uneven(day: FindingDay) -> None:
    """The members of a gang differ, as they always do."""
    gang = _gang(day)
    if gang is not None:
        day.progress(gang[0], {node: day.rng.randrange(84, 100) for node in gang[1]}, 20)


def retrying(day: FindingDay) -> None:
    """Work of one kind fails on every attempt, and is tried again."""
    day.subjects = ("decode",)
    jobs = day.jobs("decode", day.rng.randrange(8, 20), queue="open", tenant="ops", cpus=4,
                    pools=("cpu-96c", LABELLED, SPOT), minutes=2, retries=6, failures=7)  # fmt: skip
    day.submit(*jobs)


def flaky(day: FindingDay) -> None:
    """A sweep of which a few fail once and then finish."""
    good = day.jobs("decode", 24, queue="open", tenant="ops", cpus=4, pools=("cpu-96c", SPOT), minutes=8)
    bad = day.jobs(
        "decode", 4, queue="open", tenant="ops", cpus=4, pools=("cpu-96c", SPOT), minutes=8, retries=3, failures=1
    )
    day.submit(*good, *bad)


def taken(day: FindingDay) -> None:
    """The provider takes back much of a spot pool."""
    nodes = day.nodes(SPOT)
    day.subjects = (SPOT,)
    most = max(3, round(len(nodes) * day.rng.uniform(0.4, 0.9)))
    day.do(do.Interrupt(ids=tuple(nodes[:most]), notice_ms=day.rng.choice((120_000, 600_000, 1_800_000))))


def usual_spot(day: FindingDay) -> None:
    """One spot node an hour is taken back, and replaced."""
    for hour, node in enumerate(day.nodes(SPOT)[:2]):
        day.after(60 * hour, lambda node=node: _if_possible(day, do.Interrupt(ids=(node,), notice_ms=120_000)))  # type: ignore[misc]


def spending(day: FindingDay) -> None:
    """A budget that holds work will be spent within hours, long before its window ends."""
    day.subjects = ("platform-week",)
    spent = sum(line.spent_microusd for line in _budget(day, "platform-week", 10**14, "hold"))
    rate = max(line.rate_microusd_hour for line in day.engine.budgets().budgets)
    limit = spent + round(rate * day.rng.uniform(0.3, 2.0)) if rate else spent + 1_000_000
    _budget(day, "platform-week", limit, "hold")


def within_budget(day: FindingDay) -> None:
    """A budget that only warns is nearly spent, and one that holds lasts."""
    spent = sum(line.spent_microusd for line in _budget(day, "research-week", 10**14, "warn"))
    _budget(day, "research-week", spent + 10_000_000, "warn")
    _budget(day, "platform-week", 10**13, "hold")


def _budget(day: FindingDay, name: str, limit: int, action: Literal["hold", "warn"]) -> list[BudgetLine]:
    queue = name.partition("-")[0]
    spec = BudgetSpec(name=name, scope="queue", of=queue, limit_microusd=limit, window_ms=7 * DAY_MS, action=action)
    day.do(do.SetBudgets(budgets=(spec,)))
    return [line for line in day.engine.budgets().budgets if line.spec.name == name]


def mispriced(day: FindingDay) -> None:
    """The price of a pool is set ten times too high or too low, or to nothing."""
    pool = day.rng.choice([pool for pool in day.cell.pools if pool.price_microusd_hour])
    day.subjects = (pool.name,)
    price = round(pool.price_microusd_hour * day.rng.choice((0.0, 0.1, 10.0)))
    day.do(do.SetPrice(pool=pool.name, price_microusd_hour=price))


def new_price(day: FindingDay) -> None:
    """A price changes by a fifth."""
    pool = day.rng.choice([pool for pool in day.cell.pools if pool.price_microusd_hour and not pool.spot])
    factor = day.rng.choice((0.8, 1.2))
    day.do(do.SetPrice(pool=pool.name, price_microusd_hour=round(pool.price_microusd_hour * factor)))


def _if_possible(day: FindingDay, command: AnyCommand) -> None:
    """What is no longer possible, such as for nodes that are gone, does not happen."""
    try:
        day.engine.command(command)
    except MusterError:
        return


Scene = Callable[[FindingDay], None]
SCENES: Mapping[str, tuple[Scene, Scene]] = {
    "forgotten_cordons": (drained, drained_briefly),
    "stale_reservation": (reserved, reserved_and_used),
    "runaway_tenant": (flood, batch),
    "quota_beside_idle": (lost_quota, quota_in_use),
    "never_fits": (shrunk, large_gang),
    "mislabelled_pool": (relabelled, labelled_and_busy),
    "autoscaler_stuck": (not_growing, growing),
    "failing_node": (failing, rebooted),
    "straggler": (straggling, uneven),
    "retry_storm": (retrying, flaky),
    "spot_leaving": (taken, usual_spot),
    "budget_holds": (spending, within_budget),
    "mispriced_pool": (mispriced, new_price),
}
"""Kind of finding -> its fault, and what looks like it and is fine."""
