"""Benchmarks of the engine. Each yields rows: `at`, `result` for people, numbers for machines, a reference."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.capacity import NOWHERE, Capacity
from engine.columns import view
from engine.commands import Submit
from engine.control import Engine
from engine.loop import CYCLE_EVERY_MS
from engine.model import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.query import Query, Term
from engine.shape import Shape
from engine.traces.replay import replay

SIZES = (5_000, 50_000, 130_000)
POOLS = (
    PoolSpec(
        name="h100", capacity=Resources(cpu_milli=192_000, memory_mib=2_000_000, gpu_milli=8000), gpu_model="H100"
    ),
    PoolSpec(name="a100", capacity=Resources(cpu_milli=96_000, memory_mib=1_000_000, gpu_milli=4000), gpu_model="A100"),
    PoolSpec(name="cpu", capacity=Resources(cpu_milli=64_000, memory_mib=256_000)),
)
CHURN = 20_000
"""Placements, each followed by the release of a random earlier one, that are timed."""


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


def placement() -> Iterator[dict[str, Any]]:
    """Mixed requests one at a time on a cell 85 % full, against a numpy best-fit scan of all nodes."""
    for size in SIZES:
        rng = random.Random(1)
        capacity = Capacity()
        for pool in POOLS:
            capacity.add_pool(pool)
        for node in nodes(size):
            capacity.add_node(node, 0)
        shapes = [Shape(TaskGroup(request=request), capacity.pools) for request in requests(rng, 256)]
        devices = sum(index.free_devices for index in capacity.indexes)
        live: list[tuple[int, Shape, int]] = []
        while sum(index.free_devices for index in capacity.indexes) > 0.15 * devices:
            for _ in range(200):
                _place(capacity, rng.choice(shapes), live)
        stream = [shapes[rng.randrange(256)] for _ in range(CHURN)]
        begun = time.perf_counter()
        for shape in stream:
            _place(capacity, shape, live)
            pick = rng.randrange(len(live))
            live[pick], live[-1] = live[-1], live[pick]
            node, released, mask = live.pop()
            capacity.give_back(node, released, 1, mask)
        rate = CHURN / (time.perf_counter() - begun)
        scan = _scan_rate(capacity, stream)
        yield {
            "at": f"{size:,} nodes, place + release",
            "result": f"{rate:,.0f}/s",
            "placements_per_s": rate,
            "scan_per_s": scan,
            "ratio": rate / scan,
            "reference": f"numpy full scan, search only: {scan:,.0f}/s ({rate / scan:.0f}x)",
        }


def _place(capacity: Capacity, shape: Shape, live: list[tuple[int, Shape, int]]) -> None:
    node = capacity.find(shape)
    if node != NOWHERE:
        live.append((node, shape, capacity.claim(node, shape, 1)))


def _scan_rate(capacity: Capacity, stream: list[Shape]) -> float:
    """Searches per second of the obvious way: every node compared with numpy, the fullest that fits taken."""
    cpu, memory = view(capacity.free_cpu), view(capacity.free_memory)
    whole = np.bitwise_count(view(capacity.whole)).astype(np.int64)
    partial = view(capacity.partial)
    count = max(20, min(len(stream), 20_000_000 // len(cpu)))
    begun = time.perf_counter()
    for shape in stream[:count]:
        fits = (cpu >= shape.cpu) & (memory >= shape.memory)
        fits &= (whole >= shape.gpus) if not shape.share else ((partial >= shape.share) | (whole > 0))
        rows = np.flatnonzero(fits)
        if len(rows):
            rows[np.argmin(whole[rows] * 1_000_000_000 + cpu[rows])]
    return count / (time.perf_counter() - begun)


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
    rng: random.Random, prefix: str, count: int, groups: list[tuple[TaskGroup, ...]]
) -> tuple[WorkloadSpec, ...]:
    return tuple(
        WorkloadSpec(
            id=f"{prefix}-{i}",
            queue=f"q{i % 10}",
            groups=groups[rng.randrange(len(groups))],
            estimate_ms=60_000,
            simulated_runtime_ms=20_000 + i,
        )
        for i in range(count)
    )


def end_to_end() -> Iterator[dict[str, Any]]:
    """Single-task workloads from the door to the durable journal: check, quota, placement, start and end events."""
    for size in SIZES:
        rng = random.Random(1)
        groups = [(TaskGroup(request=request),) for request in requests(rng, 64)]
        batches = [singles(rng, f"w{n}", 1000, groups) for n in range(40)]
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine.open(Path(folder) / "journal.db", cell=cell(size))
            engine.cycle_every_ms = CYCLE_EVERY_MS
            cycles = []
            begun = time.perf_counter()
            for batch in batches:
                started = time.perf_counter()
                engine.command(Submit(workloads=batch))
                engine.advance(engine.now_ms + 1000)
                cycles.append(time.perf_counter() - started)
            rate = 40_000 / (time.perf_counter() - begun)
            engine.close()
        cycles.sort()
        yield {
            "at": f"{size:,} nodes, 1,000 a transaction",
            "result": f"{rate:,.0f} workloads/s",
            "workloads_per_s": rate,
            "cycle_p50_ms": cycles[20] * 1000,
            "cycle_max_ms": cycles[-1] * 1000,
            "reference": f"turn p50 {cycles[20] * 1000:.0f} ms, longest {cycles[-1] * 1000:.0f} ms; SQLite WAL, FULL",
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
    for at, freed in (("nothing new", 0), ("something freed, nothing fits", 1)):
        begun = time.perf_counter()
        for _ in range(20):
            engine.state.capacity.freed += freed
            engine.scheduler.cycle()
        cycle_us = (time.perf_counter() - begun) / 20 * 1e6
        yield {
            "at": f"{queues:,} queues, {len(rows):,} waiting, {at}",
            "result": f"{cycle_us:,.1f} µs",
            "microseconds": cycle_us,
            "microseconds_per_queue": cycle_us / queues,
            "reference": f"{cycle_us / queues:.2f} µs a queue; to look at every workload once: {loop_us:,.0f} µs",
        }


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


def fork() -> Iterator[dict[str, Any]]:
    """An independent copy of everything, for a what-if."""
    for size, workloads in ((5_000, 100_000), (130_000, 1_000_000)):
        engine = _busy(size, workloads)
        begun = time.perf_counter()
        engine.state.copy()
        seconds = time.perf_counter() - begun
        block = np.zeros(85_600_000, np.uint8)
        begun = time.perf_counter()
        block.copy()
        memory = time.perf_counter() - begun
        yield {
            "at": f"{size:,} nodes, {workloads:,} workloads",
            "result": f"{seconds * 1000:.0f} ms",
            "milliseconds": seconds * 1000,
            "reference": f"numpy copy of 85.6 MB: {memory * 1000:.0f} ms",
        }


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
    """The KTH-SP2 log on 100 processors. Needs the shared traces beside the checkout."""
    log = Path(__file__).parents[2].parent / "shared" / "data" / "swf" / "KTH-SP2-1996-2.swf.gz"
    if not log.exists():
        yield {"at": "KTH-SP2", "result": "skipped", "reference": "no shared traces beside the checkout"}
        return
    for policy, wait, slowdown in (("fcfs", 389_901, 7510.7), ("easy", 6868, 89.07)):
        result = replay(log, "swf", nodes=100, policy=policy)  # type: ignore[arg-type]
        yield {
            "at": f"KTH-SP2, 100 processors, {policy}",
            "result": f"{result.wall_s:.1f} s wall",
            "wall_s": result.wall_s,
            "avg_wait_s": result.avg_wait_s,
            "avg_bounded_slowdown": result.avg_bounded_slowdown,
            "reference": f"wait {result.avg_wait_s:,.0f} s (published {wait:,}), "
            f"slowdown {result.avg_bounded_slowdown:.2f} (published {slowdown})",
        }
