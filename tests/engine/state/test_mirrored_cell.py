"""Load of no queue, quota held without nodes, and tasks that move: kept in a snapshot, given back in a fork."""

from __future__ import annotations

from engine.control import Engine
from engine.model import external_cells as seen
from engine.model.commands import Observe
from engine.model.specs import (
    CellSpec,
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
