"""What a decision to order nodes costs: 10,000 waiting workloads in 50 shapes, some of them gangs, five pools that may
grow, on a cell that is full."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator

from engine.control import Engine
from engine.elasticity import scale_up
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.specs import (
    Autoscaling,
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)

SIZES = (5_000, 50_000, 130_000)
WAITING = 10_000
SHAPES = 50
GANGS = 100
ROUNDS = 3
POOLS = (
    ("small", 16_000, 65_536, 0, 700_000),
    ("large", 64_000, 262_144, 0, 2_600_000),
    ("lean", 64_000, 131_072, 0, 2_200_000),
    ("gpu4", 48_000, 393_216, 4_000, 12_000_000),
    ("gpu8", 96_000, 1_048_576, 8_000, 25_000_000),
)


def full_cell(nodes: int, *, limited: bool = False, seed: int = 1) -> Engine:
    """So many nodes, all full, and the workloads waiting. `limited`: their queues have quotas, which suffice."""
    pools = tuple(
        PoolSpec(
            name=name,
            capacity=Resources(cpu_milli=cpu, memory_mib=memory, gpu_milli=gpu),
            gpu_model="h100" if gpu else "",
            price_microusd_hour=price,
            scaling=ScalingSpec(most=400_000, zones=("z1", "z2", "z3"), region="r1"),
        )
        for name, cpu, memory, gpu, price in POOLS
    )
    fixed = PoolSpec(name="fixed", capacity=Resources(cpu_milli=16_000, memory_mib=65_536))
    quota = {"cpu_milli": 10**10} if limited else {}
    queues = tuple(QueueSpec(name=f"q{i}", nominal=quota) for i in range(4))
    cell = CellSpec(
        name="bench",
        pools=(*pools, fixed),
        nodes=tuple(NodeSpec(id=f"n{i}", pool="fixed") for i in range(nodes)),
        queues=queues,
        settings=Settings(autoscaling=Autoscaling(expanders=("least-waste", "price"))),
    )
    engine = Engine.open(None, cell=cell, seed=seed)
    whole = (TaskGroup(count=nodes, request=Resources(cpu_milli=16_000, memory_mib=65_536)),)
    engine.command(cmd.Submit(workloads=(WorkloadSpec(id="all", queue="q0", groups=whole),)))
    rng = random.Random(seed)
    shapes = []
    for i in range(SHAPES):
        gpu = rng.choice((1000, 2000, 4000)) if i % 5 == 4 else 0
        shapes.append(
            Resources(cpu_milli=rng.randrange(1, 33) * 500, memory_mib=rng.randrange(1, 65) * 512, gpu_milli=gpu)
        )
    gangs = set(rng.sample(range(WAITING), GANGS))
    workloads = tuple(
        WorkloadSpec(
            id=f"w{i}",
            queue=f"q{i % 4}",
            groups=(TaskGroup(count=rng.randrange(4, 33) if i in gangs else 1, request=shapes[i % SHAPES]),),
        )
        for i in range(WAITING)
    )
    engine.command(cmd.Submit(workloads=workloads))
    engine._clock_ms = 60_000
    engine._tick()
    return engine


def first_fit(engine: Engine) -> dict[int, int]:
    """The reference: every task on the first new node of the cheapest pool that holds it, one after the other, each
    node a plain list. Pool row -> nodes."""
    state = engine.state
    w = state.workloads
    opened: dict[int, list[list[int]]] = {}
    pools = sorted(
        (row for row, pool in enumerate(state.capacity.pools) if pool.scaling is not None),
        key=lambda row: (
            state.capacity.pools[row].capacity.gpu_milli > 0,
            state.capacity.pools[row].price_microusd_hour,
        ),
    )
    for group in state.pending.groups.values():
        for row in group.rows[group.front :]:
            for shape, count in zip(w.class_at(row).shapes, w.class_at(row).counts, strict=True):
                want = (shape.cpu, shape.memory, shape.gpu_milli)
                pool = next(p for p in pools if p in shape.pool_set)
                nodes = opened.setdefault(pool, [])
                size = state.capacity.pools[pool].capacity
                for _ in range(count):
                    for node in nodes:
                        if node[0] >= want[0] and node[1] >= want[1] and node[2] >= want[2]:
                            break
                    else:
                        node = [size.cpu_milli, size.memory_mib, size.gpu_milli]
                        nodes.append(node)
                    for i in range(3):
                        node[i] -= want[i]
    return {pool: len(nodes) for pool, nodes in opened.items()}


def scale_up_rows() -> Iterator[dict[str, object]]:
    """`plan` on full cells of three sizes, and a scan with nothing to do; beside plain first fit. Processor time, the
    median of three."""
    for nodes in SIZES:
        for limited in (False, True) if nodes == SIZES[0] else (False,):
            engine = full_cell(nodes, limited=limited)
            times = []
            for _ in range(ROUNDS):
                begun = time.process_time()
                events = scale_up.plan(engine.state, engine.state.now_ms, {})
                times.append(time.process_time() - begun)
            ordered = Counter[int]()
            for event in events:
                if isinstance(event, ev.Ordered):
                    ordered[event.pool] += event.count
            begun = time.process_time()
            naive = first_fit(engine)
            reference = time.process_time() - begun
            median = statistics.median(times)
            ours, theirs = (
                sum(count * engine.state.capacity.pools[pool].price_microusd_hour for pool, count in found.items())
                / 1e6
                for found in (ordered, naive)
            )
            yield {
                "at": f"{nodes} nodes, {WAITING} waiting" + (", quotas" if limited else ""),
                "result": f"{median * 1000:.0f} ms",
                "seconds": median,
                "nodes": ordered.total(),
                "usd_hour": ours,
                "ratio": reference / median,
                "reference": f"first fit {reference * 1000:.0f} ms, {reference / median:.1f}x; "
                f"nodes for {ours:,.0f} USD/h, its for {theirs:,.0f}",
            }
        engine.command(cmd.Cancel(ids=tuple(f"w{i}" for i in range(WAITING))))
        begun = time.process_time()
        for _ in range(1000):
            scale_up.plan(engine.state, engine.state.now_ms, {})
        yield {
            "at": f"{nodes} nodes, nothing waits",
            "result": f"{(time.process_time() - begun) * 1000:.1f} us",
        }
