"""Benchmarks of the engine. Each yields rows: `at`, `result` for people, numbers for machines, a reference."""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.control import Engine
from engine.loop import CYCLE_EVERY_MS
from engine.model.commands import SetPolicy, Submit
from engine.model.list_queries import Query, Term
from engine.model.specs import (
    CellSpec,
    KueueRules,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.state.pending_work import Cause
from engine.traces.replay import replay

SIZES = (5_000, 50_000, 130_000)
BACKLOG_ROUNDS = 3
POOLS = (
    PoolSpec(
        name="h100", capacity=Resources(cpu_milli=192_000, memory_mib=2_000_000, gpu_milli=8000), gpu_model="H100"
    ),
    PoolSpec(name="a100", capacity=Resources(cpu_milli=96_000, memory_mib=1_000_000, gpu_milli=4000), gpu_model="A100"),
    PoolSpec(name="cpu", capacity=Resources(cpu_milli=64_000, memory_mib=256_000)),
)


def nodes(count: int) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(id=f"n{i}", pool=POOLS[(0, 1, 0, 2)[i % 4]].name, rack=f"r{i // 32}") for i in range(count))


def requests(rng: random.Random, count: int) -> list[Resources]:
    """Mixed requests: CPU only, shares of a device, one to eight devices."""
    return [
        Resources(
            cpu_milli=rng.choice([1, 2, 4, 8, 16, 24]) * 1000,
            memory_mib=rng.choice([4, 8, 16, 64, 128]) * 1024,
            gpu_milli=rng.choice([0, 0, 250, 500, 1000, 1000, 2000, 4000, 8000]),
        )
        for _ in range(count)
    ]


def cell(size: int) -> CellSpec:
    queues = [QueueSpec(name="root")]
    queues += [QueueSpec(name=f"q{i}", parent="root", nominal={"gpu_milli": 8000 * size}) for i in range(10)]
    return CellSpec(
        name="bench",
        pools=POOLS,
        nodes=nodes(size),
        queues=tuple(queues),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
    )


def singles(
    rng: random.Random, prefix: str, count: int, groups: list[tuple[TaskGroup, ...]], runtime_ms: int = 20_000
) -> tuple[WorkloadSpec, ...]:
    return tuple(
        WorkloadSpec(
            id=f"{prefix}-{i}",
            queue=f"q{i % 10}",
            groups=groups[rng.randrange(len(groups))],
            estimate_ms=60_000,
            simulated_runtime_ms=runtime_ms + i,
        )
        for i in range(count)
    )


def end_to_end() -> Iterator[dict[str, Any]]:
    """Single-task workloads from the door to the durable journal: check, quota, shares, placement, start and end. What
    comes in thousands, then what comes in hundreds."""
    for size in SIZES:
        yield _rate_row(size, _rate(size, 1000, 40))
    yield _latency_row(130_000, _rate(130_000, 100, 400))


def backlog() -> Iterator[dict[str, Any]]:
    """The same at 5,000 nodes with 11,000 that wait, beside work so short that nothing waits, in the same run. In CPU
    time, so that what else the machine does counts for neither."""
    for _ in range(BACKLOG_ROUNDS):
        free, full = _rate(5000, 1000, 40, runtime_ms=1000), _rate(5000, 1000, 40)
        ratio = full.workloads / full.cpu_s / (free.workloads / free.cpu_s)
        yield {
            "at": f"5,000 nodes, {full.waiting:,} waiting",
            "result": f"{ratio:.2f} of the rate without",
            "ratio": ratio,
            "workloads_per_cpu_s": full.workloads / full.cpu_s,
            "turn_max_cpu_ms": full.longest_cpu_ms,
            "reference": f"{full.workloads / full.cpu_s:,.0f} workloads a CPU second, longest turn "
            f"{full.longest_cpu_ms:.0f} ms CPU; without a backlog {free.workloads / free.cpu_s:,.0f} "
            f"({free.waiting:,} wait), longest {free.longest_cpu_ms:.0f} ms",
        }


class Rate(NamedTuple):
    """What the turns of a run took."""

    workloads: int
    wall_s: float
    cpu_s: float
    turns_ms: list[float]
    """Ascending. A turn takes a submission, starts what fits, lets time pass, and ends what has run its time."""
    waiting: int
    longest_cpu_ms: float

    @property
    def per_s(self) -> float:
        return self.workloads / self.wall_s

    def percentile_ms(self, percent: int) -> float:
        return self.turns_ms[min(len(self.turns_ms) * percent // 100, len(self.turns_ms) - 1)]


def _rate(size: int, each: int, turns: int, runtime_ms: int = 20_000) -> Rate:
    """So many submissions of so many workloads; as many cell milliseconds pass as there are workloads."""
    rng = random.Random(1)
    groups = [(TaskGroup(request=request),) for request in requests(rng, 64)]
    batches = [singles(rng, f"w{n}", each, groups, runtime_ms) for n in range(turns)]
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.open(Path(folder) / "journal.db", cell=cell(size))
        engine.cycle_every_ms = CYCLE_EVERY_MS
        took, longest = [], 0.0
        cpu, wall = time.process_time(), time.perf_counter()
        for batch in batches:
            begun, begun_cpu = time.perf_counter(), time.process_time()
            engine.command(Submit(workloads=batch))
            engine.advance(engine.now_ms + each)
            took.append((time.perf_counter() - begun) * 1000)
            longest = max(longest, (time.process_time() - begun_cpu) * 1000)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        waiting = sum(map(len, engine.state.pending.groups.values()))
        engine.close()
    return Rate(each * turns, wall, cpu, sorted(took), waiting, longest)


def _rate_row(size: int, found: Rate) -> dict[str, Any]:
    return {
        "at": f"{size:,} nodes, {found.workloads // len(found.turns_ms):,} a turn",
        "result": f"{found.per_s:,.0f} workloads/s",
        "workloads_per_s": found.per_s,
        "workloads_per_cpu_s": found.workloads / found.cpu_s,
        "turn_p50_ms": found.percentile_ms(50),
        "turn_max_ms": found.turns_ms[-1],
        "left_waiting": found.waiting,
        "reference": f"{found.workloads / found.cpu_s:,.0f} a CPU second; turn p50 {found.percentile_ms(50):.0f} ms, "
        f"longest {found.turns_ms[-1]:.0f} ms; {found.waiting:,} wait at the end; SQLite WAL, FULL",
    }


def _latency_row(size: int, found: Rate) -> dict[str, Any]:
    return {
        "at": f"{size:,} nodes, {found.workloads // len(found.turns_ms)} a turn",
        "result": f"p99 {found.percentile_ms(99):.1f} ms",
        "turn_p99_ms": found.percentile_ms(99),
        "turn_p50_ms": found.percentile_ms(50),
        "workloads_per_s": found.per_s,
        "reference": f"p50 {found.percentile_ms(50):.1f} ms, longest {found.turns_ms[-1]:.1f} ms of "
        f"{len(found.turns_ms)} turns; {found.per_s:,.0f} workloads/s",
    }


def gang() -> Iterator[dict[str, Any]]:
    """One gang with a task for every node, durable. No API server, no agent: only the decision and its record."""
    size = 130_000
    whole = CellSpec(
        name="bench",
        pools=(PoolSpec(name="p", capacity=Resources(cpu_milli=8000, memory_mib=32_000)),),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(size)),
        queues=(QueueSpec(name="q"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.open(Path(folder) / "journal.db", cell=whole)
        spec = WorkloadSpec(
            id="gang", queue="q", groups=(TaskGroup(count=size, request=Resources(cpu_milli=8000)),), estimate_ms=1000
        )
        begun = time.perf_counter()
        engine.command(Submit(workloads=(spec,)))
        seconds = time.perf_counter() - begun
        assert engine.workload("gang").state == "running"
        engine.close()
    yield {
        "at": f"{size:,} tasks, one to a node",
        "result": f"{size / seconds:,.0f} tasks/s",
        "tasks_per_s": size / seconds,
        "reference": f"{seconds * 1000:.0f} ms from submission to durable",
    }


def idle_cycle() -> Iterator[dict[str, Any]]:
    """A cycle in which nothing can start: right after another, and after something was freed that helps nobody."""
    queues, each = 1000, 100
    small = CellSpec(
        pools=(POOLS[0],),
        nodes=(NodeSpec(id="n0", pool="h100"),),
        queues=(QueueSpec(name="root"), *(QueueSpec(name=f"q{i}", parent="root") for i in range(queues))),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
    )
    engine = Engine.open(None, cell=small)
    group = TaskGroup(request=Resources(gpu_milli=8000))
    engine.command(Submit(workloads=(WorkloadSpec(id="runs", queue="q0", groups=(group,), estimate_ms=86_400_000),)))
    waiting = [
        WorkloadSpec(id=f"w{i}", queue=f"q{i % queues}", groups=(group,), estimate_ms=60_000)
        for i in range(queues * each)
    ]
    engine.command(Submit(workloads=tuple(waiting)))
    rows = [row for row, state in enumerate(engine.state.workloads.state) if state == WorkloadState.QUEUED]
    begun = time.perf_counter()
    for row in rows:
        engine.state.workloads.class_at(row)
    loop_us = (time.perf_counter() - begun) * 1e6
    for at, again in (("nothing new", False), ("something freed, nothing fits", True)):
        begun = time.perf_counter()
        for _ in range(20):
            if again:
                engine.state.reconsider.ask(Cause.TIME)
            engine.scheduler.cycle()
        cycle_us = (time.perf_counter() - begun) / 20 * 1e6
        yield {
            "at": f"{queues:,} queues, {len(rows):,} waiting, {at}",
            "result": f"{cycle_us:,.1f} µs",
            "microseconds": cycle_us,
            "microseconds_per_queue": cycle_us / queues,
            "reference": f"{cycle_us / queues:.2f} µs a queue; to look at every workload once: {loop_us:,.0f} µs",
        }


def kueue_arrival() -> Iterator[dict[str, Any]]:
    """The scheduling of one arrival by the policy `kueue`, in a cell that is full. Beside it: a look at the state of
    every workload there ever was."""
    for size, waiting in ((5_000, 1_000), (5_000, 10_000), (5_000, 100_000), (50_000, 10_000), (130_000, 10_000)):
        engine = _kueue_cell(size, waiting)
        begun = time.perf_counter()
        states = engine.state.workloads.state
        sum(states[row] == WorkloadState.QUEUED for row in range(len(states)))
        look_us = (time.perf_counter() - begun) * 1e6
        for queue, priority, what in (
            ("q9", "low", "starts"),
            ("q0", "low", "is refused"),
            ("q8", "high", "preempts one"),
        ):
            each_us = [_kueue_arrival_us(engine, f"{what} {n}", queue, priority, n) for n in range(11)]
            median_us = sorted(each_us)[len(each_us) // 2]
            yield {
                "at": f"{size:,} nodes, {waiting:,} waiting, {what}",
                "result": f"{median_us:,.0f} µs",
                "microseconds": median_us,
                "reference": f"to look at each of {len(states):,} workloads: {look_us:,.0f} µs",
            }


ENDED = 100_000
FREE = 64
"""Nodes that nothing runs on."""


def _kueue_cell(size: int, waiting: int) -> Engine:
    """Ten queues of a cohort, each with a tenth of the nodes; all but the last use all of their quota. Before that came
    work that has ended. Behind it waits work of ten sorts in each of nine queues: what is looked at again after a
    preemption."""
    tenth = {"gpu_milli": 800 * size}
    preempts = KueueRules(within_queue="lower_priority")
    queues = (QueueSpec(name=f"q{i}", parent="root", nominal=tenth, kueue=preempts, reclaim="never") for i in range(10))
    spec = CellSpec(
        pools=POOLS[:1],
        nodes=tuple(NodeSpec(id=f"n{i}", pool="h100") for i in range(size)),
        queues=(QueueSpec(name="root"), *queues),
        priority_classes=(PriorityClassSpec(name="low", value=0), PriorityClassSpec(name="high", value=10)),
    )
    engine = Engine.open(None, cell=spec)
    small, whole = (TaskGroup(request=Resources(gpu_milli=quantity)) for quantity in (1000, 8000))
    for first in range(0, ENDED, 10_000):
        rows = range(first, first + 10_000)
        engine.command(Submit(workloads=tuple(_low(f"e{n}", n % 10, small, 1) for n in rows)))
        engine.advance(engine.now_ms + 1000)
    engine.command(Submit(workloads=tuple(_low(f"r{n}", n % 10, whole, 10**9) for n in range(size - 10 * FREE))))
    engine.command(Submit(workloads=tuple(_low(f"f{n}", n % 9, whole, 10**9) for n in range(9 * FREE))))
    engine.advance(engine.now_ms + 1000)
    engine.command(SetPolicy(policy="kueue"))
    for first in range(0, waiting, 10_000):
        rows = range(first, min(first + 10_000, waiting))
        engine.command(Submit(workloads=tuple(_low(f"w{n}", n % 9, whole, 10**9, 60_000 + n % 10) for n in rows)))
    return engine


def _low(name: str, queue: int, group: TaskGroup, runs_ms: int, estimate_ms: int = 60_000) -> WorkloadSpec:
    return WorkloadSpec(
        id=name,
        queue=f"q{queue}",
        priority_class="low",
        groups=(group,),
        estimate_ms=estimate_ms,
        simulated_runtime_ms=runs_ms,
    )


def _kueue_arrival_us(engine: Engine, name: str, queue: str, priority: str, number: int) -> float:
    """Time in the scheduler while a workload of a sort of its own comes that asks for a node."""
    spec = _low(name.replace(" ", "-"), 0, TaskGroup(request=Resources(gpu_milli=8000)), 10**9, 100_000 + number)
    spec = msgspec.structs.replace(spec, queue=queue, priority_class=priority)
    engine.advance(engine.now_ms + 1000)
    cycle, spent = engine.scheduler.cycle, 0.0

    def timed() -> None:
        nonlocal spent
        begun = time.perf_counter()
        cycle()
        spent += time.perf_counter() - begun

    engine.scheduler.cycle = timed  # type: ignore[method-assign]
    engine.command(Submit(workloads=(spec,)))
    engine.scheduler.cycle = cycle  # type: ignore[method-assign]
    return spent * 1e6


def restart() -> Iterator[dict[str, Any]]:
    """From a killed engine's journal to ready."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        engine = Engine.open(path, cell=cell(5000))
        rng = random.Random(2)
        groups = [(TaskGroup(request=request),) for request in requests(rng, 64)]
        batch = 0
        while engine.version < 1_000_000:
            engine.command(Submit(workloads=singles(rng, f"w{batch}", 2000, groups)))
            engine.advance(engine.now_ms + 20_000)
            batch += 1
        events, digest = engine.version, engine.state.digest()
        engine._journal.close()
        begun = time.perf_counter()
        again = Engine.open(path)
        seconds = time.perf_counter() - begun
        assert again.state.digest() == digest
        again._journal.close()
        begun = time.perf_counter()
        Engine.open(path, use_snapshot=False)._journal.close()
        whole = time.perf_counter() - begun
    yield {
        "at": f"{events:,} events, 5,000 nodes",
        "result": f"{seconds:.2f} s",
        "seconds": seconds,
        "without_snapshot_s": whole,
        "reference": f"every event replayed, no snapshot: {whole:.1f} s",
    }


def _busy(size: int, workloads: int) -> Engine:
    """A cell with as many live workloads as asked, most of them waiting."""
    engine = Engine.open(None, cell=cell(size))
    rng = random.Random(3)
    groups = [(TaskGroup(request=request),) for request in requests(rng, 64)]
    for n in range(workloads // 10_000):
        engine.command(Submit(workloads=singles(rng, f"w{n}", 10_000, groups)))
    return engine


def query() -> Iterator[dict[str, Any]]:
    """A window of 50 rows out of a million workloads, as the console asks for it."""
    engine = _busy(50_000, 1_000_000)
    questions = {
        "unsorted": Query(kind="workloads", limit=50, offset=500_000),
        "filtered by state and queue": Query(
            kind="workloads", limit=50, where=(Term("state", "=", "queued"), Term("queue", "=", "q3"))
        ),
        "sorted by GPU": Query(kind="workloads", limit=50, sort=("-gpu",)),
        "name contains": Query(kind="workloads", limit=50, where=(Term("text", "~", "w77-123"),)),
    }
    for name, question in questions.items():
        begun = time.perf_counter()
        engine.query(question)
        first = time.perf_counter() - begun
        begun = time.perf_counter()
        engine.query(Query(kind="workloads", limit=50, offset=1000, where=question.where, sort=question.sort))
        scrolled = time.perf_counter() - begun
        yield {
            "at": f"1,000,000 workloads, {name}",
            "result": f"{first * 1000:.1f} ms",
            "first_ms": first * 1000,
            "scrolled_ms": scrolled * 1000,
            "reference": f"scrolling on: {scrolled * 1000:.2f} ms",
        }


def replay_kth() -> Iterator[dict[str, Any]]:
    """The KTH-SP2 log on 100 processors, through the engine and by counting. Needs the shared traces."""
    log = Path(__file__).parents[2].parent / "shared" / "data" / "swf" / "KTH-SP2-1996-2.swf.gz"
    if not log.exists():
        yield {"at": "KTH-SP2", "result": "skipped", "reference": "no shared traces beside the checkout"}
        return
    published = (("fcfs", 389_901, 7510.7), ("easy", 6868, 89.07))
    for (policy, wait, slowdown), through in product(published, ("engine", "auto")):
        result = replay(log, "swf", nodes=100, policy=policy, through=through)  # type: ignore[arg-type]
        yield {
            "at": f"KTH-SP2, 100 processors, {policy}, {result.through}",
            "result": f"{result.wall_s:.2f} s wall",
            "wall_s": result.wall_s,
            "avg_wait_s": result.avg_wait_s,
            "avg_bounded_slowdown": result.avg_bounded_slowdown,
            "reference": f"wait {result.avg_wait_s:,.0f} s (published {wait:,}), "
            f"slowdown {result.avg_bounded_slowdown:.2f} (published {slowdown})",
        }
