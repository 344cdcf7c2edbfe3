"""Random lives of pools that shrink: nothing loses its place, no pool falls below what it is to have, nothing flaps,
and a restart goes on alike."""

from __future__ import annotations

import random

import msgspec
import pytest

from engine.control import Engine
from engine.elasticity.capacity_ahead import Foresight
from engine.model import commands as cmd
from engine.model.errors import MusterError
from engine.model.specs import (
    Affinity,
    Autoscaling,
    CellSpec,
    FlavorQuota,
    NodeSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    Settings,
    Spread,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.cell_state import State
from tests.support.growing_cells import HOUR, MINUTE
from tests.support.invariants import check_state

SCAN_MS = MINUTE
STEPS = 50


def random_cell(rng: random.Random) -> CellSpec:
    """Two pools that grow and shrink, one of them with devices, and one that does not."""
    scaling = [
        ScalingSpec(least=rng.randint(0, 2), most=rng.randint(6, 14), headroom=rng.choice((0, 0, 1)))
        for _ in range(2)
    ]  # fmt: skip
    pools = (
        PoolSpec(name="p", capacity=Resources(cpu_milli=8000, memory_mib=32_000), scaling=scaling[0]),
        PoolSpec(
            name="g", capacity=Resources(cpu_milli=16_000, memory_mib=64_000, gpu_milli=4000), gpu_model="A100",
            scaling=scaling[1],
        ),
        PoolSpec(name="fixed", capacity=Resources(cpu_milli=8000, memory_mib=32_000)),
    )  # fmt: skip
    nodes = [NodeSpec(id=f"{pool}{i}", pool=pool) for pool in ("p", "g", "fixed") for i in range(rng.randint(1, 6))]
    queues = (
        QueueSpec(name="free"),
        QueueSpec(name="calm", disruptions=rng.randint(0, 2), min_runtime_ms=rng.choice((0, 15 * MINUTE))),
        QueueSpec(name="tied", flavors=(FlavorQuota(pool="p", nominal={"cpu_milli": 40_000}),)),
    )
    classes = (
        PriorityClassSpec(name="normal", value=500),
        PriorityClassSpec(name="stone", value=600, preemptible=False),
    )
    settings = Autoscaling(
        scan_every_ms=SCAN_MS,
        scale_down_below_permille=rng.choice((300, 500, 800)),
        scale_down_after_ms=rng.choice((2, 5)) * MINUTE,
        settle_after_add_ms=rng.choice((0, 4)) * MINUTE,
        most_at_once=rng.choice((1, 3, 10)),
        most_lost_ms=rng.choice((0, 5 * MINUTE, HOUR)),
    )
    return CellSpec(
        name="random", pools=pools, nodes=tuple(nodes), queues=queues, priority_classes=classes,
        settings=Settings(autoscaling=settings),
    )  # fmt: skip


def random_work(rng: random.Random, name: str) -> WorkloadSpec:
    gpu = rng.choice((0, 0, 0, 250, 500, 1000, 2000))
    request = Resources(cpu_milli=rng.choice((500, 1500, 3000, 6000)), memory_mib=rng.choice((0, 4000)), gpu_milli=gpu)
    count = rng.choice((1, 1, 1, 2, 3))
    group = TaskGroup(
        count=count,
        min_count=rng.choice((0, 1)) if count > 1 else 0,
        request=request,
        spread=Spread(level="node") if rng.random() < 0.1 else None,
    )
    run_ms = rng.choice((5, 15, 30, 120, 100_000)) * MINUTE
    return WorkloadSpec(
        id=name,
        queue=rng.choice(("free", "free", "calm", "tied")) if not gpu else rng.choice(("free", "calm")),
        groups=(group,),
        priority_class=rng.choice(("normal",) * 5 + ("stone",)),
        elastic=rng.random() < 0.2,
        tags={"app": rng.choice("xy")},
        apart=(Affinity(tags={"app": "x"}),) if rng.random() < 0.1 else (),
        estimate_ms=run_ms,
        simulated_runtime_ms=run_ms,
        checkpoint_cost_ms=rng.choice((0, 1000, 1000)),
        checkpoint_interval_ms=rng.choice((0, 3 * MINUTE)),
    )


def random_command(rng: random.Random, engine: Engine, step: int) -> cmd.AnyCommand:
    nodes = sorted(engine.state.capacity.row_of) or ["none"]
    pool = rng.choice(("p", "g"))
    match rng.randint(0, 11):
        case 0:
            return cmd.Cordon(ids=(rng.choice(nodes),))
        case 1:
            return cmd.Uncordon(ids=(rng.choice(nodes),))
        case 2:
            return cmd.FailNodes(ids=(rng.choice(nodes),))
        case 3:
            at_ms = engine.now_ms + rng.randint(0, 30) * MINUTE
            return cmd.SetTargets(pool=pool, targets=((at_ms, rng.randint(0, 6)), (at_ms + HOUR, 0)))
        case 4:
            return cmd.SetScaling(pool=pool, least=rng.randint(0, 3), headroom=rng.randint(0, 2))
        case 5:
            start = engine.now_ms + rng.randint(0, 20) * MINUTE
            spec = ReservationSpec(name=f"r{step}", nodes=(rng.choice(nodes),), start_ms=start, end_ms=start + HOUR)
            return cmd.Reserve(reservation=spec)
        case 6:
            running = [w for row, w in enumerate(engine.state.workloads.ids) if engine.state.is_bound(row)]
            return cmd.Cancel(ids=(rng.choice(running),)) if running else cmd.OpenQueues(names=("free",))
        case _:
            return cmd.Submit(workloads=tuple(random_work(rng, f"w{step}-{i}") for i in range(rng.randint(1, 4))))


def scaled_down(state: State) -> dict[str, list[int]]:
    """Node ids by state label, of nodes that are there, and how many are ready in each pool."""
    c = state.capacity
    return {
        spec.name: [node for node in c.row_of.values() if c.pool[node] == pool and c.state[node] == NodeState.READY]
        for pool, spec in enumerate(c.pools)
    }


def check_scan(engine: Engine) -> None:
    """Pass one scan, at which nothing else happens that a person did, and check what it did."""
    at_ms = engine.now_ms // SCAN_MS * SCAN_MS + SCAN_MS
    engine.advance(at_ms - 1)
    state, w = engine.state, engine.state.workloads
    ready = scaled_down(state)
    doomed = {name for name, row in state.capacity.row_of.items() if state.capacity.state[row] != NodeState.READY}
    kept = {name for name, row in state.capacity.row_of.items() if state.capacity.booking[row] >= 0}
    attempts = list(w.attempts)
    bound = [row for row in range(len(w.ids)) if state.is_bound(row)]
    wanted = Foresight(state).wanted(at_ms)
    engine.advance(at_ms)
    after = scaled_down(state)
    gone = {name: set(ready[name]) - set(after[name]) for name in ready}
    removed = {
        name: {node for node in nodes if state.capacity.state[node] == NodeState.REMOVED}
        for name, nodes in gone.items()
    }
    assert not removed["fixed"]
    for pool, spec in enumerate(state.capacity.pools):
        if spec.scaling is not None and removed[spec.name]:
            assert len(after[spec.name]) >= wanted[pool], f"{spec.name} is below what it is to have"
            empty = [node for node in after[spec.name] if not state.allocations.workloads_on(node)]
            if spec.scaling.headroom:
                free = [node for node in empty if state.capacity.booking[node] < 0]
                assert len(free) >= spec.scaling.headroom, f"{spec.name} has no headroom left"
    names = {state.capacity.node_ids[node] for nodes in removed.values() for node in nodes}
    assert not names & (doomed | kept), "a node went that was cordoned, down or kept"
    for row in bound:
        moved = w.attempts[row] > attempts[row] and engine.workload(w.ids[row]).history[-2:]
        if moved and any(item.detail == "scaled down" for item in engine.workload(w.ids[row]).history[-4:]):
            assert state.is_bound(row) or w.state[row].terminal, f"{w.ids[row]} lost its place"


def live(seed: int, steps: int) -> Engine:
    rng = random.Random(f"scale down {seed}")
    engine = Engine.open(None, seed=seed, cell=random_cell(rng))
    for step in range(steps):
        try:
            engine.command(random_command(rng, engine, step))
        except MusterError:
            continue
        for _ in range(rng.choice((0, 2, 4, 8))):
            check_scan(engine)
        if step % 10 == 0:
            check_state(engine.state)
    return engine


def check_life(seed: int) -> None:
    engine = live(seed, STEPS)
    check_state(engine.state)
    # A restart, and a fork, go on alike.
    loaded = State()
    loaded.load(msgspec.msgpack.decode(msgspec.msgpack.encode(engine.state.dump())))
    again, fork = Engine(loaded, seed=seed), engine.fork()
    again.go_on_from(engine)
    for other in (engine, again, fork):
        other.advance(other.now_ms + 40 * MINUTE)
    assert engine.state.digest() == fork.state.digest()
    assert engine.state.digest() == again.state.digest()
    # What people do no more, and what ends no more, comes to rest.
    engine.advance(engine.now_ms + 12 * HOUR)
    orders, nodes, moves = (
        len(engine.state.orders.pool),
        len(engine.state.capacity.node_ids),
        sum(engine.state.workloads.attempts),
    )
    engine.advance(engine.now_ms + 6 * HOUR)
    now = len(engine.state.orders.pool), len(engine.state.capacity.node_ids), sum(engine.state.workloads.attempts)
    assert now == (orders, nodes, moves), "it flaps"
    check_state(engine.state)


@pytest.mark.parametrize("seed", [*range(3), 11, 34])
def test_random_lives(seed: int) -> None:
    check_life(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 150))
def test_many_random_lives(seed: int) -> None:
    check_life(seed)
