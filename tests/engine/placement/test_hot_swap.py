"""Gangs that lose members: replaced in place, fewer, or the whole gang anew."""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model import events as ev
from engine.model.commands import FailNodes, Migrate, Move, RestoreNodes, Submit
from engine.model.specs import (
    CellSpec,
    FlavorQuota,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
    WorkloadState,
)
from tests.support.invariants import WatchedEngine, check_state

MINUTE = 60_000
HOUR = 60 * MINUTE


def cell(racks: int = 4, in_rack: int = 4, blocks: int = 2, **queue) -> CellSpec:
    """Nodes of 8 GPUs, so many to a rack, racks spread over blocks."""
    nodes = tuple(
        NodeSpec(id=f"r{r}-{i}", pool="gpu", rack=f"r{r}", block=f"b{r * blocks // racks}", zone="z")
        for r in range(racks)
        for i in range(in_rack)
    )
    capacity = Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000)
    return CellSpec(
        pools=(PoolSpec(name="gpu", capacity=capacity, gpu_model="H100"),),
        nodes=nodes,
        queues=(QueueSpec(name="root"), QueueSpec(name="q", parent="root", **queue)),
        priority_classes=(PriorityClassSpec(name="normal", value=0), PriorityClassSpec(name="high", value=9)),
    )


def gang(name: str, count: int, *, least: int = 0, gpu: int = 8000, **more) -> WorkloadSpec:
    """So many tasks of whole nodes, two hours of work, a checkpoint each ten minutes."""
    group = TaskGroup(count=count, min_count=least, request=Resources(cpu_milli=1000, gpu_milli=gpu))
    fields = {"hot_swap": True, "estimate_ms": 2 * HOUR, "simulated_runtime_ms": 2 * HOUR} | more
    return WorkloadSpec(id=name, queue="q", groups=(group,), checkpoint_interval_ms=10 * MINUTE, **fields)


def begin(*workloads: WorkloadSpec, spec: CellSpec | None = None) -> WatchedEngine:
    engine = WatchedEngine.open(None, cell=spec or cell())
    engine.command(Submit(workloads=workloads))
    return engine


def nodes_of(engine: Engine, name: str) -> list[str]:
    state = engine.state
    row, a = state.workloads.row(name), state.allocations
    return sorted(state.capacity.node_ids[a.node[i]] for i in a.of_workload(state.workloads.first_allocation[row]))


def swaps(engine: WatchedEngine) -> list[ev.Swapped]:
    return [event for event in engine.witness.history if isinstance(event, ev.Swapped)]


def test_a_lost_member_is_replaced_and_the_others_stay() -> None:
    engine = begin(gang("g", 8))
    before = nodes_of(engine, "g")
    engine.advance(35 * MINUTE)
    w, used = engine.state.workloads, engine.state.queues.used_vector(1)
    receipt = engine.command(FailNodes(ids=(before[0],)))
    after = nodes_of(engine, "g")
    assert set(before[1:]) < set(after)
    assert len(after) == 8
    assert before[0] not in after
    assert receipt.changed == (before[0],)
    assert (w.state[0], w.attempts[0], w.failures[0], w.evictions[0]) == (WorkloadState.RUNNING, 1, 0, 0)
    assert engine.state.queues.used_vector(1) == used
    assert w.submitted[0] == 0
    check_state(engine.state)


def test_its_work_goes_on_from_the_last_checkpoint() -> None:
    engine = begin(gang("g", 8))
    engine.advance(35 * MINUTE)
    engine.command(FailNodes(ids=(nodes_of(engine, "g")[0],)))
    engine.advance(2 * HOUR + 5 * MINUTE - 1)
    assert engine.workload("g").state == "running"
    engine.advance(2 * HOUR + 5 * MINUTE)
    assert engine.workload("g").state == "finished"


def test_thirteen_of_five_hundred_and_twelve_are_replaced_at_once() -> None:
    engine = begin(gang("g", 512), spec=cell(racks=33, in_rack=16))
    before = nodes_of(engine, "g")
    lost = tuple(before[7::40])
    assert len(lost) == 13
    engine.command(FailNodes(ids=lost))
    after = nodes_of(engine, "g")
    assert len(after) == 512
    assert set(after).isdisjoint(lost)
    assert len(set(before) & set(after)) == 499
    assert len(swaps(engine)) == 1
    check_state(engine.state)


def test_a_rack_is_lost_and_the_gang_stays_in_its_block() -> None:
    engine = begin(gang("g", 4, topology=TopologyRequest(required="block")), spec=cell(racks=6, in_rack=4, blocks=2))
    before = nodes_of(engine, "g")
    rack = before[0].split("-")[0]
    engine.command(FailNodes(ids=tuple(before[:2])))
    after = nodes_of(engine, "g")
    block = {int(rack[1:]) * 2 // 6}
    assert {int(name.split("-")[0][1:]) * 2 // 6 for name in after} == block
    assert set(before[2:]) < set(after)
    engine.command(FailNodes(ids=tuple(name for name in after if name.startswith(rack))))
    check_state(engine.state)


def test_without_room_in_its_domain_it_is_requeued_whole_though_there_is_room_elsewhere() -> None:
    engine = begin(gang("g", 8, topology=TopologyRequest(required="block")), spec=cell(racks=4, in_rack=4, blocks=2))
    engine.advance(25 * MINUTE)
    before = nodes_of(engine, "g")
    engine.command(FailNodes(ids=(before[0],)))
    assert not swaps(engine)
    w = engine.state.workloads
    # The other block has all it needs: it starts there, in the same turn, from its checkpoint.
    assert (w.state[0], w.attempts[0], w.kept[0]) == (WorkloadState.RUNNING, 2, 20 * MINUTE)
    assert set(nodes_of(engine, "g")).isdisjoint(before)


def test_when_spare_nodes_are_missing_the_whole_gang_waits_at_its_age_with_its_checkpoint() -> None:
    engine = begin(gang("g", 14), gang("late", 2))
    engine.command(FailNodes(ids=(nodes_of(engine, "late")[0],)))
    engine.advance(25 * MINUTE)
    engine.command(FailNodes(ids=tuple(nodes_of(engine, "g")[:2])))
    w = engine.state.workloads
    assert not swaps(engine)
    assert (w.state[0], w.kept[0], w.tasks[0], w.submitted[0]) == (WorkloadState.QUEUED, 20 * MINUTE, 0, 0)
    assert engine.workload("g").history[-1].detail == "node lost"
    check_state(engine.state)


def test_without_hot_swap_the_whole_gang_is_requeued() -> None:
    engine = begin(gang("g", 8, hot_swap=False))
    engine.advance(5 * MINUTE)
    engine.command(FailNodes(ids=(nodes_of(engine, "g")[0],)))
    assert not swaps(engine)
    assert engine.state.workloads.attempts[0] == 2


def test_a_gang_that_loses_all_its_nodes_is_requeued() -> None:
    engine = begin(gang("g", 4))
    engine.command(FailNodes(ids=tuple(nodes_of(engine, "g"))))
    assert not swaps(engine)
    assert engine.state.workloads.attempts[0] == 2


def test_an_elastic_gang_runs_on_with_fewer_and_grows_when_nodes_return() -> None:
    engine = begin(gang("g", 16, least=10, elastic=True, hot_swap=False))
    engine.advance(15 * MINUTE)
    lost = tuple(nodes_of(engine, "g")[:4])
    engine.command(FailNodes(ids=lost))
    w = engine.state.workloads
    assert (w.state[0], w.tasks[0], w.attempts[0], w.kept[0]) == (WorkloadState.RUNNING, 12, 1, 10 * MINUTE)
    check_state(engine.state)
    engine.command(RestoreNodes(ids=lost))
    assert w.tasks[0] == 16
    # 110 minutes were left at minute 15.
    engine.advance(125 * MINUTE)
    assert engine.workload("g").state == "finished"


def test_an_elastic_gang_below_its_least_is_requeued() -> None:
    engine = begin(gang("g", 16, least=14, elastic=True, hot_swap=False))
    engine.command(FailNodes(ids=tuple(nodes_of(engine, "g")[:3])))
    assert engine.workload("g").state == "queued"
    check_state(engine.state)


def test_an_elastic_gang_with_hot_swap_takes_what_room_there_is() -> None:
    engine = begin(gang("g", 14, least=4, elastic=True))
    engine.command(FailNodes(ids=tuple(nodes_of(engine, "g")[:5])))
    assert engine.state.workloads.tasks[0] == 11
    assert len(swaps(engine)) == 1


def test_the_more_important_gang_gets_the_spare_nodes() -> None:
    engine = begin(gang("low", 7), gang("high", 7, priority_class="high"))
    lost = (*nodes_of(engine, "low")[:1], *nodes_of(engine, "high")[:2])
    engine.command(FailNodes(ids=lost))
    w = engine.state.workloads
    assert [event.row for event in swaps(engine)] == [1]
    assert (w.attempts[0], w.attempts[1]) == (1, 1)
    assert w.state[0] == WorkloadState.QUEUED
    check_state(engine.state)


def test_two_gangs_share_the_spare_nodes_and_none_is_given_twice() -> None:
    engine = begin(gang("one", 7), gang("two", 7))
    engine.command(FailNodes(ids=(nodes_of(engine, "one")[0], nodes_of(engine, "two")[0])))
    assert len(swaps(engine)) == 2
    assert set(nodes_of(engine, "one")).isdisjoint(nodes_of(engine, "two"))
    check_state(engine.state)


def test_parts_of_nodes_are_replaced_too() -> None:
    engine = begin(gang("g", 6, gpu=3000), gang("other", 20, gpu=1000))
    lost = nodes_of(engine, "g")[0]
    assert len(set(nodes_of(engine, "g"))) == 3
    engine.command(FailNodes(ids=(lost,)))
    assert engine.state.workloads.tasks[0] == 6
    assert lost not in nodes_of(engine, "g")
    check_state(engine.state)


def test_where_quota_is_by_pool_tasks_stay_in_their_pool() -> None:
    capacity = Resources(cpu_milli=64_000, memory_mib=512_000, gpu_milli=8000)
    spec = msgspec.structs.replace(
        cell(racks=1, in_rack=3),
        pools=(PoolSpec(name="gpu", capacity=capacity), PoolSpec(name="other", capacity=capacity)),
        nodes=tuple(NodeSpec(id=f"{pool}{i}", pool=pool) for pool in ("gpu", "other") for i in range(3)),
        queues=(
            QueueSpec(name="root"),
            QueueSpec(
                name="q",
                parent="root",
                flavors=(
                    FlavorQuota(pool="gpu", nominal={"gpu_milli": 16_000}),
                    FlavorQuota(pool="other", nominal={"gpu_milli": 16_000}),
                ),
            ),
        ),
    )
    engine = begin(gang("g", 2), spec=spec)
    assert nodes_of(engine, "g") == ["gpu0", "gpu1"]
    engine.command(FailNodes(ids=("gpu0",)))
    assert nodes_of(engine, "g") == ["gpu1", "gpu2"]
    engine.command(FailNodes(ids=("gpu1",)))
    # Its pool has no other node: it starts anew, in the other pool.
    assert nodes_of(engine, "g") == ["other0", "other1"]
    assert engine.state.workloads.attempts[0] == 2
    check_state(engine.state)


def test_a_swap_survives_restart_and_replay(tmp_path) -> None:
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=cell())
    engine.command(Submit(workloads=(gang("g", 8), gang("e", 4, least=2, elastic=True, hot_swap=False))))
    engine.advance(35 * MINUTE)
    engine.command(FailNodes(ids=(nodes_of(engine, "g")[0], nodes_of(engine, "e")[0])))
    twin = engine.fork()
    digest = engine.state.digest()
    engine._journal.close()  # type: ignore[union-attr]
    again = Engine.open(path, use_snapshot=False)
    assert again.state.digest() == digest
    twin.advance(3 * HOUR)
    again.advance(3 * HOUR)
    assert again.state.digest() == twin.state.digest()
    assert again.workload("g").state == "finished"
    again.close()


def test_a_gang_that_was_moved_and_swapped_within_a_millisecond_ends_once_and_in_time() -> None:
    engine = begin(gang("g", 8, least=4, elastic=True))
    engine.advance(25 * MINUTE)
    lost = nodes_of(engine, "g")[:2]
    engine.command(FailNodes(ids=tuple(lost)))
    engine.command(FailNodes(ids=(nodes_of(engine, "g")[0],)))
    engine.command(RestoreNodes(ids=tuple(lost)))
    engine.advance(2 * HOUR + 5 * MINUTE - 1)
    assert engine.workload("g").state == "running"
    engine.advance(2 * HOUR + 5 * MINUTE)
    assert engine.workload("g").state == "finished"


@pytest.mark.parametrize("swap", [True, False])
def test_moving_goes_on_as_before(swap: bool) -> None:
    engine = begin(gang("g", 2, hot_swap=swap))
    engine.command(Migrate(moves=(Move(id="g", nodes=("r3-0", "r3-1")),)))
    assert nodes_of(engine, "g") == ["r3-0", "r3-1"]
