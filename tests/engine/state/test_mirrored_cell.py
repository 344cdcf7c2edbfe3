"""Load of no queue, quota held without nodes, and tasks that move: kept in a snapshot, given back in a fork."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import Engine, recover
from engine.journal.event_journal import Journal
from engine.model import external_cells as seen
from engine.model.commands import Observe
from engine.model.specs import (
    CellSpec,
    FlavorQuota,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.cell_state import State
from engine.state.invariants import faults_of

CELL = CellSpec(settings=Settings(decided_by="kubernetes"))
TASK = Resources(cpu_milli=1000, memory_mib=1024, gpu_milli=1000)
SPEC = WorkloadSpec(
    id="a/train_1", queue="q", priority_class="p-0", groups=(TaskGroup(name="main", count=4, request=TASK),)
)
MACHINES: tuple[seen.AnySeen, ...] = (
    seen.PoolSeen(pool=PoolSpec(name="p", capacity=Resources(cpu_milli=8000, memory_mib=8192, gpu_milli=4000))),
    seen.NodeSeen(node=NodeSpec(id="n1", pool="p")),
    seen.NodeSeen(node=NodeSpec(id="n2", pool="p")),
    seen.QueueSeen(queue=QueueSpec(name="q", nominal={"cpu_milli": 16_000, "gpu_milli": 8000})),
    seen.PriorityClassSeen(priority_class=PriorityClassSpec(name="p-0", value=0)),
)


def told(engine: Engine, *facts: seen.AnySeen) -> tuple[str, ...]:
    """What could not be taken as it was seen. Nothing is broken after it."""
    left = engine.command(Observe(seen=facts)).left_out
    assert faults_of(engine.state) == []
    again = State()
    again.load(engine.state.dump())
    assert again.digest() == engine.state.digest()
    return left


def cell() -> Engine:
    engine = Engine.open(None, cell=CELL)
    told(engine, *MACHINES)
    return engine


def running(*places: tuple[str, int], reserves: int = 0) -> seen.WorkloadSeen:
    """The gang with so many tasks on each node, and quota for `reserves` more."""
    holds = tuple(seen.Holding(node=node, resources=TASK, group="main", count=count) for node, count in places)
    more = Resources(cpu_milli=1000 * reserves, gpu_milli=1000 * reserves)
    shares = (seen.QuotaShare(resources=more),) if reserves else ()
    return seen.WorkloadSeen(spec=SPEC, phase="running" if holds else "queued", holds=holds, reserves=shares)


def used(engine: Engine) -> tuple[int, ...]:
    return engine.state.queues.used_vector(engine.state.queues.row_of["q"])


def test_quota_is_charged_once_while_pods_come_one_by_one() -> None:
    engine = cell()
    told(engine, running(reserves=4))
    assert (used(engine)[0], used(engine)[2]) == (4000, 4000)
    told(engine, running(("n1", 1), reserves=3))
    told(engine, running(("n1", 2), ("n2", 1), reserves=1))
    assert used(engine)[2] == 4000
    told(engine, running(("n1", 2), ("n2", 2)))
    assert (used(engine)[0], used(engine)[2]) == (4000, 4000)
    w = engine.state.workloads
    assert (w.attempts[0], w.tasks[0], w.class_at(0).groups) == (1, 4, SPEC.groups)
    told(engine, seen.WorkloadSeen(spec=SPEC, phase="finished"))
    assert used(engine) == (0, 0, 0, 0)


def test_tasks_that_move_give_back_what_they_had() -> None:
    engine = cell()
    told(engine, running(("n1", 4)))
    told(engine, running(("n2", 4)))
    capacity = engine.state.capacity
    assert [sum(capacity.devices(node)) for node in (0, 1)] == [4000, 0]
    assert engine.state.workloads.attempts[0] == 1


def test_load_of_no_queue_takes_room_and_is_cut_where_there_is_none() -> None:
    engine = cell()
    told(engine, seen.NodeLoadSeen(node="n1", resources=TASK, pods=1))
    assert engine.state.capacity.free_vector(0) == (7000, 7168, 3000, 0)
    assert told(engine, seen.NodeLoadSeen(node="n1", resources=Resources(cpu_milli=9000), pods=2))
    assert engine.state.capacity.free_vector(0) == (0, 8192, 4000, 0)
    told(engine, seen.NodeGone(id="n1"))
    assert engine.state.loads.of == {}


def test_a_fork_gives_back_quota_that_is_held_without_nodes() -> None:
    engine = cell()
    told(engine, running(reserves=4))
    state = State()
    state.load(engine.state.dump())
    model = Engine(state, model=True)
    assert used(model) == (0, 0, 0, 0)
    assert model.state.held_quota.of == {}
    assert used(engine)[2] == 4000


# -- nodes that move --------------------------------------------------------------------------------------------------


PLACES = [("p", ""), ("p", "z1"), ("big", "z1"), ("big", "z2"), ("priced", "z2"), ("cpu", "")]
POOLS = {
    "p": PoolSpec(
        name="p",
        capacity=Resources(cpu_milli=8000, memory_mib=8192, gpu_milli=4000),
        price_microusd_hour=3_000_000,
    ),
    "big": PoolSpec(
        name="big",
        capacity=Resources(cpu_milli=16_000, memory_mib=16_384, gpu_milli=4000),
        price_microusd_hour=7_000_000,
    ),
    "priced": PoolSpec(
        name="priced",
        capacity=Resources(cpu_milli=6000, memory_mib=8192, gpu_milli=4000),
        price_microusd_hour=5_000_000,
    ),
    "cpu": PoolSpec(name="cpu", capacity=Resources(cpu_milli=8000, memory_mib=8192)),
}
TREE = (
    seen.QueueSeen(queue=QueueSpec(name="root")),
    seen.QueueSeen(
        queue=QueueSpec(
            name="by-pool",
            parent="root",
            flavors=tuple(FlavorQuota(pool=name, nominal={"gpu_milli": 100_000}) for name in POOLS),
        )
    ),
    seen.QueueSeen(queue=QueueSpec(name="q", parent="root", nominal={"cpu_milli": 900_000, "gpu_milli": 900_000})),
)


def test_a_rack_that_goes_to_another_zone_does_so_with_all_its_nodes() -> None:
    engine = cell()
    before = [seen.NodeSeen(node=NodeSpec(id=name, pool="p", zone="z1", rack="r")) for name in ("n1", "n2")]
    told(engine, *before)
    told(engine, running(("n1", 4)))
    row = engine.state.capacity.row_of["n1"]
    assert engine.state.workloads.tasks[0] == 4
    assert told(engine, *(seen.NodeSeen(node=NodeSpec(id=name, pool="p", zone="z2", rack="r"))
                          for name in ("n1", "n2"))) == ()  # fmt: skip
    capacity = engine.state.capacity
    assert [capacity.places.names[capacity.zone[capacity.row_of[name]]] for name in ("n1", "n2")] == ["z2", "z2"]
    assert capacity.row_of["n1"] != row


def _work(number: int, queue: str, places: list[int]) -> seen.WorkloadSeen:
    spec = msgspec.structs.replace(
        SPEC, id=f"w{number}", queue=queue, groups=(TaskGroup(name="main", count=len(places), request=TASK),)
    )
    holds = tuple(
        seen.Holding(node=f"n{node}", resources=TASK, group="main", count=places.count(node))
        for node in sorted(set(places))
    )
    return seen.WorkloadSeen(spec=spec, phase="running", holds=holds)


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from(PLACES), st.booleans(), st.integers(1, 3_600_000)),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.tuples(st.sampled_from(["q", "by-pool"]), st.lists(st.integers(0, 5), min_size=1, max_size=4)),
             max_size=5),
    st.integers(0, 3),
)  # fmt: skip
def test_nodes_move_with_what_runs_there(
    moves: list[tuple[int, tuple[str, str], bool, int]],
    works: list[tuple[str, list[int]]],
    loaded: int,
) -> None:
    folder = TemporaryDirectory()
    engine = Engine.open(Path(folder.name) / "cell.db", cell=CELL)
    told(engine, *(seen.PoolSeen(pool=pool) for pool in POOLS.values()), *TREE, MACHINES[-1])
    told(engine, *(seen.NodeSeen(node=NodeSpec(id=f"n{i}", pool="p", zone="z1")) for i in range(6)))
    told(engine, *(seen.NodeLoadSeen(node=f"n{i}", resources=TASK, pods=1) for i in range(loaded)))
    engine.advance(1000)
    told(engine, *(_work(number, queue, places) for number, (queue, places) in enumerate(works)))
    state, capacity = engine.state, engine.state.capacity
    tasks = list(state.workloads.tasks)
    for number, (pool, zone), down, later_ms in moves:
        engine.advance(engine.now_ms + later_ms)
        row = capacity.row_of[f"n{number}"]
        may = capacity.can_move(row, capacity.pool_of[pool])
        spec = NodeSpec(id=f"n{number}", pool=pool, zone=zone)
        told(engine, seen.NodeSeen(node=spec, standing="down" if down else "ready"))
        if may:
            assert capacity.row_of[f"n{number}"] == row
            assert capacity.pools[capacity.pool[row]].name == pool
            assert list(state.workloads.tasks) == tasks
        tasks = list(state.workloads.tasks)
        at_ms = engine.now_ms
        used = sum(state.ledger.used.amount(at, at_ms) for at in range(len(POOLS)))
        assert used == sum(state.ledger.grains_of(at, at_ms) for at in range(len(state.workloads.ids)))
        for at in range(len(POOLS)):
            there = [node for node in capacity.row_of.values() if capacity.pool[node] == at]
            assert capacity.pool_nodes[at] == len(there)
            assert state.ledger.cost.rate[at] == len(there) * capacity.pools[at].price_microusd_hour
    engine.close()
    with folder, closing(Journal(Path(folder.name) / "cell.db", 0)) as journal:
        assert recover(journal, use_snapshot=False).digest() == state.digest()
