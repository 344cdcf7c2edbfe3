"""Machines that their provider takes back, capacity types, and the turn to on-demand machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from cells import CLASSES
from invariants import check_state

from engine.control import Engine
from engine.controllers import lifetime_ms
from engine.model import commands as cmd
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import (
    Autoscaling,
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.run_times import HistoricRunTimes, uniforms
from engine.state.timers import hazard_ppm_hour, spot_time_ms, turns_at
from engine.twin.rehearsals import Rehearsal

SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
NODE = Resources(cpu_milli=16_000, memory_mib=65_536)
ALONE = Settings(autoscaling=Autoscaling(enabled=False))


def cell(spot: int = 4, certain: int = 2, **scaling: Any) -> CellSpec:
    """Spot machines at a quarter of the price of the others, all of 16 cores."""
    behaviour = ScalingSpec(most=100, **scaling) if scaling else None
    pools = (
        PoolSpec(name="spot", capacity=NODE, spot=True, price_microusd_hour=100_000, scaling=behaviour),
        PoolSpec(name="certain", capacity=NODE, price_microusd_hour=400_000),
    )
    nodes = [NodeSpec(id=f"s{i}", pool="spot") for i in range(spot)]
    nodes += [NodeSpec(id=f"o{i}", pool="certain") for i in range(certain)]
    return CellSpec(
        pools=pools, nodes=tuple(nodes), queues=(QueueSpec(name="q"),), priority_classes=CLASSES, settings=ALONE
    )


def work(name: str, *, count: int = 1, least: int = 0, run: int = HOUR, on_demand: int = 0, kind: Any = "",
         **more: Any) -> WorkloadSpec:  # fmt: skip
    """Tasks of one machine each."""
    group = TaskGroup(
        count=count, min_count=least, request=Resources(cpu_milli=16_000), capacity_type=kind, on_demand=on_demand
    )
    return WorkloadSpec(id=name, queue="q", groups=(group,), simulated_runtime_ms=run, **({"estimate_ms": run} | more))


def engine_with(*workloads: WorkloadSpec, **cell_fields: Any) -> Engine:
    engine = Engine.open(None, seed=1, cell=cell(**cell_fields))
    if workloads:
        engine.command(cmd.Submit(workloads=workloads))
    return engine


def nodes_of(engine: Engine, name: str) -> list[str]:
    return sorted({place.node for place in engine.workload(name).placement})


def history(engine: Engine, name: str) -> list[str]:
    return [f"{item.what} {item.detail}".strip() for item in engine.workload(name).history]


def interrupt(engine: Engine, *ids: str, notice_ms: int = -1) -> tuple[str, ...]:
    return engine.command(cmd.Interrupt(ids=ids, notice_ms=notice_ms)).changed


# -- which pools ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "first"), [("spot", "s"), ("on-demand", "o"), ("", "s")])
def test_a_capacity_type_says_which_pools(kind: str, first: str) -> None:
    engine = engine_with(work("a", kind=kind))
    assert [name[0] for name in nodes_of(engine, "a")] == [first]


def test_work_for_one_kind_waits_though_the_other_has_room() -> None:
    engine = engine_with(work("a", count=4, kind="spot"), work("b", kind="spot"), work("c", kind="on-demand", count=2))
    assert [engine.workload(name).state for name in "abc"] == ["running", "queued", "running"]


def test_a_guaranteed_share_is_on_demand_and_there_from_the_start() -> None:
    engine = engine_with(work("a", count=4, least=2, on_demand=1, elastic=True), spot=1)
    group, certain = engine.state.workloads.class_at(0).groups
    assert (group.name, group.count, group.min_count, group.capacity_type) == ("main", 3, 1, "")
    assert (certain.name, certain.count, certain.min_count, certain.capacity_type) == (
        "main-on-demand", 1, 0, "on-demand",
    )  # fmt: skip
    assert any(name.startswith("o") for name in nodes_of(engine, "a"))


def test_all_on_demand_is_one_group_and_none_is_left_as_it_was() -> None:
    engine = engine_with(work("a", count=2, on_demand=2), work("b", kind="on-demand", on_demand=1))
    w = engine.state.workloads
    assert [[g.capacity_type for g in w.class_at(row).groups] for row in (0, 1)] == [["on-demand"], ["on-demand"]]


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (work("a", count=2, on_demand=3), "on_demand"),
        (work("a", count=4, least=2, on_demand=2), "min_count"),
        (work("a", count=2, on_demand=-1), "on_demand"),
    ],
)
def test_a_share_that_makes_no_sense_is_refused(wrong: WorkloadSpec, where: str) -> None:
    with pytest.raises(SpecError, match=where):
        engine_with(wrong)
    # Together with others nothing else is looked at.
    with pytest.raises(SpecError, match=where):
        engine_with(work("x"), wrong)


# -- the end of a machine ---------------------------------------------------------------------------------------------


def test_what_runs_goes_on_until_the_end_and_then_waits_at_its_age() -> None:
    engine = engine_with(work("a", run=2 * HOUR), work("b", count=5), work("c"))
    engine.advance(10 * MINUTE)
    interrupt(engine, "s0", notice_ms=MINUTE)
    assert (engine.node("s0").state, engine.node("s0").ends_ms) == ("draining", 11 * MINUTE)
    engine.advance(11 * MINUTE - 1)
    assert engine.workload("a").state == "running"
    engine.advance(11 * MINUTE)
    assert "requeued spot taken" in history(engine, "a")
    with pytest.raises(NotFoundError):
        engine.node("s0")
    w = engine.state.workloads
    assert (w.submitted[0], w.failures[0]) == (0, 0)
    check_state(engine.state)


def test_what_ends_before_the_machine_has_ended() -> None:
    engine = engine_with(work("a", run=MINUTE))
    interrupt(engine, "s0", notice_ms=MINUTE)
    engine.advance(2 * MINUTE)
    assert engine.workload("a").state == "finished"
    assert "requeued spot taken" not in history(engine, "a")


@pytest.mark.parametrize(
    ("checkpoint", "notice", "kept"),
    [
        ({"checkpoint_cost_ms": 20 * SECOND}, 20 * SECOND, 30 * MINUTE + 20 * SECOND),
        ({"checkpoint_cost_ms": 20 * SECOND}, 20 * SECOND - 1, 0),
        ({"checkpoint_cost_ms": 20 * SECOND, "checkpoint_interval_ms": 20 * MINUTE}, 5 * SECOND, 20 * MINUTE),
        ({"checkpoint_interval_ms": 20 * MINUTE}, HOUR // 12, 20 * MINUTE),
        ({}, MINUTE, 0),
    ],
)
def test_a_checkpoint_is_written_if_the_notice_is_enough(checkpoint: dict[str, int], notice: int, kept: int) -> None:
    engine = engine_with(work("a", run=2 * HOUR, **checkpoint))
    engine.advance(30 * MINUTE)
    interrupt(engine, "s0", notice_ms=notice)
    engine.advance(30 * MINUTE + notice)
    assert engine.state.workloads.kept[0] == kept


def test_reading_a_checkpoint_back_takes_its_time() -> None:
    engine = engine_with(work("a", run=2 * HOUR, checkpoint_cost_ms=SECOND, restore_ms=3 * MINUTE))
    engine.advance(HOUR)
    interrupt(engine, "s0", notice_ms=MINUTE)
    engine.advance(HOUR + 2 * MINUTE)
    interrupt(engine, *nodes_of(engine, "a"), notice_ms=MINUTE)
    engine.advance(HOUR + 3 * MINUTE)
    assert engine.state.workloads.kept[0] == HOUR + MINUTE, "it was still reading, and has lost nothing more"
    engine.advance(3 * HOUR)
    # An hour and a minute done, two minutes spent on a reading that was cut short, and a whole reading.
    assert engine.state.workloads.ended[0] == 2 * HOUR + 2 * MINUTE + 3 * MINUTE


def test_time_to_read_a_checkpoint_back_counts_where_others_are_kept_waiting() -> None:
    # Why: it would otherwise run into a reservation, or past the start that another was promised.
    engine = engine_with(work("a", run=2 * HOUR, checkpoint_cost_ms=SECOND, restore_ms=3 * MINUTE))
    engine.advance(HOUR)
    engine.command(cmd.Suspend(ids=("a",)))
    w = engine.state.workloads
    assert w.remaining_ms(0) == HOUR + 3 * MINUTE
    engine.command(cmd.Resume(ids=("a",)))
    assert w.expected_end(0, engine.now_ms) == 2 * HOUR + 3 * MINUTE


def test_an_elastic_gang_loses_the_tasks_on_the_machine_alone() -> None:
    engine = engine_with(work("a", count=4, least=2, elastic=True, kind="spot"), certain=0)
    engine.advance(MINUTE)
    interrupt(engine, "s0", "s3", notice_ms=SECOND)
    engine.advance(2 * MINUTE)
    assert (engine.state.workloads.tasks[0], engine.workload("a").state) == (2, "running")
    assert "shrunk 2 tasks less" in history(engine, "a")
    interrupt(engine, "s1", notice_ms=SECOND)
    engine.advance(3 * MINUTE)
    assert engine.workload("a").state == "queued"
    check_state(engine.state)


def test_a_rigid_gang_stops_whole() -> None:
    engine = engine_with(work("a", count=4, kind="spot"), certain=0)
    interrupt(engine, "s2", notice_ms=0)
    engine.advance(1)
    assert engine.workload("a").state == "queued"
    check_state(engine.state)


def test_a_machine_with_notice_takes_no_work_whoever_says_it_is_ready() -> None:
    engine = engine_with(spot=1, certain=0)
    interrupt(engine, "s0", notice_ms=MINUTE)
    with pytest.raises(RefusedError, match="provider reclaims 's0'"):
        engine.command(cmd.Uncordon(ids=("s0",)))
    engine.command(cmd.FailNodes(ids=("s0",)))
    engine.command(cmd.RestoreNodes(ids=("s0",)))
    assert engine.node("s0").state == "draining"


def test_a_reservation_outlives_its_machine() -> None:
    engine = engine_with()
    wanted = ReservationSpec(name="r", nodes=("s0", "s1"), start_ms=MINUTE, end_ms=HOUR)
    engine.command(cmd.Reserve(reservation=wanted))
    interrupt(engine, "s0", notice_ms=SECOND)
    engine.advance(2 * MINUTE)
    check_state(engine.state)
    engine.command(cmd.AddNodes(nodes=(NodeSpec(id="s0", pool="spot"),)))
    engine.advance(2 * HOUR)
    check_state(engine.state)
    assert not engine.state.bookings.reservations


def test_a_preemption_outlives_the_machine_it_makes_room_on(tmp_path: Path) -> None:
    ranks = (PriorityClassSpec(name="low", value=0), PriorityClassSpec(name="high", value=9, preemption="lower"))
    ranked = msgspec.structs.replace(cell(spot=1, certain=0), priority_classes=ranks)
    engine = Engine.open(tmp_path / "cell", cell=ranked)
    engine.command(cmd.Submit(workloads=(work("low", checkpoint_cost_ms=MINUTE, priority_class="low"),)))
    engine.advance(SECOND)
    engine.command(cmd.Submit(workloads=(work("high", priority_class="high"),)))
    assert engine.state.bookings.clearings
    interrupt(engine, "s0", notice_ms=SECOND)
    engine.advance(10 * SECOND)
    check_state(engine.state)
    engine.close()
    engine = Engine.open(tmp_path / "cell")
    engine.advance(2 * MINUTE)
    check_state(engine.state)
    assert not engine.state.bookings.clearings
    assert engine.workload("high").state == "queued"
    engine.close()


# -- notices ----------------------------------------------------------------------------------------------------------


def test_notices_come_twice_for_strangers_and_still_reach_the_others() -> None:
    engine = engine_with()
    assert interrupt(engine, "s0", notice_ms=MINUTE) == ("s0",)
    assert interrupt(engine, "s0", "s0", "nobody", "s1", notice_ms=MINUTE) == ("s1",)
    with pytest.raises(RefusedError, match="'s0' already had notice"):
        interrupt(engine, "s0", notice_ms=2 * MINUTE)
    with pytest.raises(NotFoundError, match="'nobody'"):
        interrupt(engine, "nobody")
    assert interrupt(engine, "s1", notice_ms=SECOND) == ("s1",), "an earlier end counts"
    engine.advance(2 * SECOND)
    assert sorted(engine.state.capacity.row_of) == ["o0", "o1", "s0", "s2", "s3"]


def test_a_notice_is_the_pools_own_unless_it_is_given() -> None:
    engine = engine_with(notice_ms=2 * MINUTE)
    interrupt(engine, "s0")
    interrupt(engine, "o0")
    assert [engine.state.capacity.doomed[engine.state.capacity.row_of[name]] for name in ("s0", "o0")] == [
        2 * MINUTE, 30 * SECOND,
    ]  # fmt: skip


def test_machines_are_taken_as_often_as_their_pool_says() -> None:
    rates = [50, 500]
    for rate in rates:
        lives = [lifetime_ms(part, rate) for part in uniforms(1, [f"n{i}" for i in range(4000)]).tolist()]
        gone = sum(life < HOUR for life in lives) / 4
        assert abs(gone - rate) < 40


@pytest.mark.parametrize("rehearsed", [0, 1])
def test_a_twin_knows_of_machines_only_how_often_they_are_taken(rehearsed: int) -> None:
    """Half of the machines that have outlived five hours should be gone an hour later: not just those that the provider
    will take, and not all that chance might have taken before."""
    engine = Engine.open(None, seed=0, cell=cell(spot=1500, certain=0, taken_permille_hour=500, notice_ms=0))
    engine.advance(5 * HOUR)
    there = set(engine.state.capacity.row_of)
    assert 25 < len(there) < 75
    ahead = Rehearsal(engine.fork(), rehearsed, HistoricRunTimes(engine.state))
    for one in (engine, ahead):
        one.advance(6 * HOUR)
    left, foretold = (set(one.state.capacity.row_of) for one in (engine, ahead))
    assert 0.25 * len(there) < len(foretold) < 0.75 * len(there)
    assert left != foretold


def test_every_machine_has_its_own_end_whatever_becomes_of_others(tmp_path: Path) -> None:
    def ends(engine: Engine, *, restart: bool) -> dict[str, int]:
        engine.advance(HOUR)
        if restart:
            engine.close()
            engine = Engine.open(tmp_path / "j")
        twin = engine.fork()
        twin.advance(40 * HOUR)
        engine.advance(40 * HOUR)
        assert twin.state.digest() == engine.state.digest()
        engine.close()
        capacity = engine.state.capacity
        return {capacity.node_ids[row]: capacity.doomed[row] for row in range(len(capacity.doomed))}

    shape = cell(spot=20, certain=1, taken_permille_hour=200)
    alone = ends(Engine.open(None, seed=5, cell=shape), restart=False)
    stored = ends(Engine.open(tmp_path / "j", seed=5, cell=shape), restart=True)
    assert alone == stored
    assert sum(end >= 0 for end in alone.values()) > 15
    assert alone["o0"] == -1
    other = ends(Engine.open(None, seed=6, cell=shape), restart=False)
    assert other != alone


def test_no_machine_grows_older_than_its_pool_allows() -> None:
    engine = engine_with(spot=5, taken_permille_hour=20, max_age_ms=24 * HOUR, notice_ms=MINUTE)
    engine.advance(24 * HOUR - MINUTE - 1)
    before = engine.state.capacity.state.count(NodeState.READY)
    assert before > 2
    engine.advance(24 * HOUR - MINUTE)
    assert engine.state.capacity.state.count(NodeState.READY) == 2
    engine.advance(24 * HOUR)
    assert sorted(engine.state.capacity.row_of) == ["o0", "o1"]


def test_another_machine_is_ordered_at_the_notice_and_there_when_the_work_needs_it() -> None:
    shape = cell(spot=1, certain=0, notice_ms=2 * MINUTE, boot_ms=(30 * SECOND, 40 * SECOND))
    quick = Settings(autoscaling=Autoscaling(scale_up_after_ms=0))
    engine = Engine.open(None, seed=1, cell=msgspec.structs.replace(shape, settings=quick))
    engine.command(cmd.Submit(workloads=(work("a", run=2 * HOUR, checkpoint_cost_ms=SECOND),)))
    engine.advance(HOUR)
    interrupt(engine, "s0")
    engine.advance(HOUR + 30 * SECOND)
    assert (engine.workload("a").state, sum(engine.state.orders.wanted)) == ("running", 1)
    engine.advance(3 * HOUR)
    assert engine.state.workloads.ended[0] == 2 * HOUR, "it went on elsewhere without a pause"
    assert sum(engine.state.orders.wanted) == 1


# -- deadlines --------------------------------------------------------------------------------------------------------


def test_expected_time_on_spot_machines() -> None:
    assert spot_time_ms(HOUR, 0, 500_000) == HOUR
    assert spot_time_ms(10 * HOUR, HOUR, 100_000) == -(-10 * HOUR * 10 // 9)
    assert spot_time_ms(HOUR, 2 * HOUR, 500_000) is None


def test_work_turns_when_its_slack_runs_out_and_ends_in_time() -> None:
    urgent = work("urgent", run=10 * HOUR, deadline_ms=14 * HOUR, checkpoint_interval_ms=HOUR)
    engine = engine_with(urgent, work("x", count=4, run=9 * HOUR, kind="spot"), spot=4, certain=1,
                         taken_permille_hour=50)  # fmt: skip
    assert nodes_of(engine, "urgent")[0].startswith("s")
    assert turns_at(engine.state, 0) is None, "what runs does not lose slack"
    interrupt(engine, *nodes_of(engine, "urgent"), notice_ms=0)
    engine.advance(4 * HOUR)
    interrupt(engine, *nodes_of(engine, "urgent"), notice_ms=0)
    engine.advance(20 * HOUR)
    assert engine.workload("urgent").state == "finished"
    assert engine.state.workloads.ended[0] <= 14 * HOUR


def test_waiting_work_turns_at_the_moment_the_formula_gives(tmp_path: Path) -> None:
    shape = cell(spot=1, certain=1, taken_permille_hour=50)
    first = Engine.open(tmp_path / "j", seed=1, cell=shape)
    first.command(cmd.Submit(workloads=(work("x", run=30 * HOUR, kind="spot", estimate_ms=30 * HOUR),
                                        work("y", run=30 * HOUR, kind="on-demand"))))  # fmt: skip
    terms = {"deadline_ms": 12 * HOUR, "checkpoint_interval_ms": HOUR, "restore_ms": MINUTE}
    first.command(cmd.Submit(workloads=(work("late", run=10 * HOUR, **terms),)))
    hazard = hazard_ppm_hour(first.state, 0)
    assert hazard == 51_293
    expected = spot_time_ms(10 * HOUR, 31 * MINUTE, hazard)
    assert expected is not None
    at = turns_at(first.state, 2)
    assert at == 12 * HOUR - max(expected, 11 * HOUR + MINUTE)
    first.advance(at - 1)
    assert "turned to on-demand its slack ran out" not in history(first, "late")
    first.close()
    again = Engine.open(tmp_path / "j")
    again.advance(at)
    assert history(again, "late")[-1] == "turned to on-demand its slack ran out"
    assert "TurnedOnDemand" in [reason.token for reason in again.workload("late").reasons]
    groups = again.state.workloads.class_at(2).groups
    assert [group.capacity_type for group in groups] == ["on-demand"]
    again.close()


@pytest.mark.parametrize("fixed", [{"kind": "spot"}, {"kind": "on-demand"}, {"deadline_ms": 0}, {"estimate_ms": 0}])
def test_work_that_has_no_choice_does_not_turn(fixed: dict[str, Any]) -> None:
    engine = engine_with(
        work("x", count=6, run=30 * HOUR), work("a", **({"run": HOUR, "deadline_ms": 2 * HOUR} | fixed))
    )
    assert turns_at(engine.state, 1) is None


def test_work_that_has_no_slack_at_all_never_begins_on_spot_machines() -> None:
    engine = engine_with(work("a", run=10 * HOUR, deadline_ms=10 * HOUR + MINUTE), taken_permille_hour=50)
    assert nodes_of(engine, "a")[0].startswith("o")
    assert history(engine, "a")[1] == "turned to on-demand its slack ran out"


def test_interruptions_are_counted_where_the_pool_says_nothing() -> None:
    engine = engine_with(spot=4)
    assert hazard_ppm_hour(engine.state, 0) == 0
    engine.advance(5 * HOUR)
    interrupt(engine, "s0", "s1", notice_ms=0)
    assert hazard_ppm_hour(engine.state, 0) == 100_000, "two in twenty machine hours"
    interrupt(engine, "s2", notice_ms=0)
    loaded = Engine.open(None, seed=1)
    loaded.state.load(msgspec.msgpack.decode(msgspec.msgpack.encode(engine.state.dump()), strict=False))
    assert hazard_ppm_hour(loaded.state, 0) == hazard_ppm_hour(engine.state, 0)
