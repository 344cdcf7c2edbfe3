"""Which nodes are given back: what may go and what never does, worked out by hand."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from engine.control import Engine
from engine.elasticity import scale_down
from engine.elasticity.capacity_ahead import Foresight
from engine.model.commands import AddPriorityClasses, Cordon, FailNodes, Reserve, Submit
from engine.model.specs import Affinity, FlavorQuota, PriorityClassSpec, QueueSpec, ReservationSpec, WorkloadSpec
from tests.support.growing_cells import HOUR, MINUTE, cell, job, started, there
from tests.support.invariants import check_state

WAIT = 10 * MINUTE
"""`scale_down_after_ms` and `settle_after_add_ms` of the defaults."""


def on(engine: Engine, name: str) -> list[str]:
    return [place.node for place in engine.workload(name).placement]


def causes(engine: Engine, name: str) -> list[str]:
    """What happened to a workload."""
    return [f"{item.what} {item.detail}" for item in engine.workload(name).history]


# -- empty nodes ------------------------------------------------------------------------------------------------------


def test_empty_nodes_go_once_they_have_been_so_for_long_enough() -> None:
    engine = started(cell(4))
    engine.advance(WAIT - 1)
    assert there(engine) == ["n0", "n1", "n2", "n3"]
    engine.advance(WAIT + MINUTE)
    assert there(engine) == []
    check_state(engine.state)


def test_a_node_that_was_used_meanwhile_begins_anew() -> None:
    engine = started(cell(1))
    engine.advance(8 * MINUTE)
    engine.command(Submit(workloads=(job("short", 6000, run=MINUTE),)))
    engine.advance(18 * MINUTE)
    assert there(engine) == ["n0"]
    engine.advance(20 * MINUTE)
    assert there(engine) == []


@pytest.mark.parametrize(("field", "kept"), [("least", 2), ("headroom", 3)])
def test_never_below_the_least_nor_the_headroom(field: str, kept: int) -> None:
    engine = started(cell(5, **{field: kept}))
    engine.advance(3 * HOUR)
    assert len(there(engine)) == kept
    assert not len(engine.state.orders.pool), "nothing is ordered that was given back"


def test_headroom_is_of_empty_nodes_besides_those_in_use() -> None:
    engine = started(cell(5, headroom=1), job("a", 8000), job("b", 8000))
    engine.advance(HOUR)
    assert len(there(engine)) == 3


def test_other_pools_keep_their_nodes() -> None:
    engine = started(cell(1, fixed=2))
    engine.advance(HOUR)
    assert there(engine) == ["f0", "f1"]


def test_cordoned_and_reserved_nodes_stay() -> None:
    engine = started(cell(4))
    engine.command(Cordon(ids=("n1",)))
    window = ReservationSpec(name="r", nodes=("n2",), start_ms=5 * HOUR, end_ms=6 * HOUR)
    engine.command(Reserve(reservation=window))
    engine.advance(HOUR)
    assert there(engine) == ["n1", "n2"]
    engine.advance(8 * HOUR)
    assert there(engine) == ["n1"]


def test_nothing_is_given_back_soon_after_nodes_were_added() -> None:
    engine = started(cell(2, scale_up_after_ms=0))
    engine.advance(9 * MINUTE)
    engine.command(Submit(workloads=tuple(job(f"w{i}", 8000, run=MINUTE) for i in range(3))))
    engine.advance(12 * MINUTE)
    last = max(engine.state.capacity.born)
    assert last >= 9 * MINUTE
    engine.advance(last + WAIT - MINUTE)
    assert len(there(engine)) == 3
    engine.advance(last + 2 * WAIT + MINUTE)
    assert there(engine) == []


def test_nothing_is_given_back_while_it_is_switched_off() -> None:
    engine = started(cell(2, scale_down_below_permille=0))
    engine.advance(HOUR)
    assert there(engine) == ["n0", "n1"]


def test_nodes_that_are_down_are_given_back_after_a_while() -> None:
    engine = started(cell(1), job("a", 8000))
    engine.advance(5 * MINUTE)
    engine.command(FailNodes(ids=("n0",)))
    engine.advance(5 * MINUTE + WAIT - MINUTE)
    assert "n0" in there(engine)
    engine.advance(5 * MINUTE + WAIT + MINUTE)
    assert "n0" not in there(engine)
    assert engine.workload("a").state == "running"


# -- nodes with work --------------------------------------------------------------------------------------------------


def apart(small: WorkloadSpec, **more: object) -> Engine:
    """n0 has 5 of its 8 CPUs in use by "wide", and n1 has `small`, of 3 CPUs or less, which fits on n0 by now: what
    kept it away has just ended."""
    engine = started(cell(2, **more), job("wide", 5000), job("gap", 3000, run=2 * MINUTE))
    engine.command(Submit(workloads=(small,)))
    assert (on(engine, "wide"), on(engine, "gap"), on(engine, small.id)) == (["n0"], ["n0"], ["n1"])
    return engine


def test_a_node_goes_whose_work_fits_elsewhere() -> None:
    engine = apart(job("small", 3000))
    engine.advance(WAIT - MINUTE)
    assert there(engine) == ["n0", "n1"]
    engine.advance(WAIT + 2 * MINUTE)
    assert there(engine) == ["n0"]
    assert on(engine, "small") == ["n0"]
    assert any("scaled down" in text for text in causes(engine, "small"))
    check_state(engine.state)
    # It wrote a checkpoint when asked: it ends as if it had not been moved.
    engine.advance(9 * HOUR + 2000)
    assert engine.workload("small").state == "finished"


@pytest.mark.parametrize(
    ("small", "queue", "settings"),
    [
        pytest.param(job("small", 3000, priority_class="stone"), {}, {}, id="may not be preempted"),
        pytest.param(job("small", 3000), {"min_runtime_ms": HOUR}, {}, id="younger than its queue's minimum runtime"),
        pytest.param(job("small", 3000), {"disruptions": 0}, {}, id="its queue may not be disrupted"),
        pytest.param(job("small", 3000, checkpoint_cost_ms=0), {}, {}, id="would lose ten minutes of work"),
        pytest.param(job("small", 3000, run=21 * MINUTE), {}, {"scale_down_after_ms": 20 * MINUTE}, id="ends soon"),
        pytest.param(job("small", 3500), {}, {}, id="fits nowhere else"),
        pytest.param(job("small", 3000), {}, {"most_at_once": 0}, id="none at once"),
        pytest.param(job("small", 3000), {}, {"least": 2}, id="the least"),
        pytest.param(job("small", 3000), {}, {"scale_down_below_permille": 375}, id="used enough"),
        pytest.param(
            job("small", 3000, tags={"app": "x"}, apart=(Affinity(tags={"app": "wide"}),)), {}, {}, id="keeps apart"
        ),
    ],
)  # fmt: skip
def test_work_that_stays_keeps_its_node(small: WorkloadSpec, queue: dict[str, int], settings: dict[str, int]) -> None:
    spec = QueueSpec(name="a", **queue)  # type: ignore[arg-type]
    engine = started(cell(2, queues=(spec,), **settings))
    if small.priority_class == "stone":
        stone = PriorityClassSpec(name="stone", value=0, preemptible=False)
        engine.command(AddPriorityClasses(priority_classes=(stone,)))
    engine.command(Submit(workloads=(job("wide", 5000, tags={"app": "wide"}), job("gap", 3000, run=2 * MINUTE))))
    engine.command(Submit(workloads=(small,)))
    assert (on(engine, "wide"), on(engine, "small")) == (["n0"], ["n1"])
    engine.advance(20 * MINUTE + 30_000)
    assert on(engine, "small") == ["n1"]
    assert engine.workload("small").attempts == 1


def test_what_loses_little_is_moved_without_a_checkpoint() -> None:
    engine = apart(job("small", 3000, checkpoint_cost_ms=0, checkpoint_interval_ms=4 * MINUTE))
    engine.advance(WAIT + 2 * MINUTE)
    assert there(engine) == ["n0"]
    assert engine.workload("small").kept_ms == 8 * MINUTE


def test_room_is_not_counted_twice() -> None:
    """Two nodes with 3 CPUs in use each, and room for one of the two beside "wide"."""
    engine = started(cell(3), job("wide", 5000), job("gap", 3000, run=2 * MINUTE))
    for name in ("one", "two"):
        engine.command(Submit(workloads=(job(f"{name}-gap", 5000, run=2 * MINUTE), job(name, 3000))))
    assert [on(engine, name) for name in ("wide", "one", "two")] == [["n0"], ["n1"], ["n2"]]
    engine.advance(WAIT + 3 * MINUTE)
    assert len(there(engine)) == 2
    check_state(engine.state)
    assert engine.workload("one").attempts + engine.workload("two").attempts == 3


def test_work_is_not_moved_to_an_empty_node_only_to_empty_another() -> None:
    engine = started(cell(2, least=1), job("small", 3000))
    assert on(engine, "small") == ["n0"]
    engine.advance(HOUR)
    assert (there(engine), engine.workload("small").attempts) == (["n0"], 1)


def test_a_gang_moves_whole_and_only_if_all_of_it_fits() -> None:
    """Its two tasks are on n1 and n2, which "left" and "right" have left; n0 has room for one of them, or for both."""
    for wide, fits in ((5000, False), (2000, True)):
        engine = started(cell(3), job("wide", wide), job("gap", 8000 - wide, run=2 * MINUTE))
        for name in ("left", "right"):
            engine.command(Submit(workloads=(job(name, 5000, run=2 * MINUTE),)))
        engine.command(Submit(workloads=(job("gang", 3000, tasks=2),)))
        assert on(engine, "gang") == ["n1", "n2"]
        engine.advance(HOUR)
        # Where only one fits beside "wide", the other goes on on the node that is left.
        assert on(engine, "gang") == (on(engine, "wide") if fits else ["n0", "n1"])
        assert len(there(engine)) == (1 if fits else 2)
        check_state(engine.state)


def test_at_most_so_many_nodes_with_work_at_once() -> None:
    engine = started(cell(5, most_at_once=1), job("wide", 2000), job("gap", 6000, run=2 * MINUTE))
    for i in range(3):
        engine.command(Submit(workloads=(job(f"gap{i}", 6500, run=2 * MINUTE), job(f"s{i}", 1500))))
    assert [on(engine, f"s{i}") for i in range(3)] == [["n1"], ["n2"], ["n3"]]
    sizes = []
    for scan in range(8):
        engine.advance(2 * MINUTE + WAIT + scan * 30_000)
        sizes.append(len(there(engine)))
    assert [before - after for before, after in pairwise(sizes) if before != after] == [1, 1, 1]


def test_the_limit_of_a_queue_on_disruptions_holds_across_the_nodes_of_one_scan() -> None:
    spec = QueueSpec(name="a", disruptions=1)
    engine = started(cell(4, queues=(spec,)), job("wide", 2000), job("gap", 6000, run=2 * MINUTE))
    for i in range(2):
        engine.command(Submit(workloads=(job(f"gap{i}", 6500, run=2 * MINUTE), job(f"s{i}", 1500))))
    engine.advance(WAIT + 5 * MINUTE)
    assert sorted(engine.workload(f"s{i}").attempts for i in range(2)) == [1, 2]
    engine.advance(2 * HOUR)
    assert there(engine) == ["n0"]


def test_work_stays_in_the_pool_of_its_quota() -> None:
    """There is room on f0, but the queue has quota of the growing pool alone."""
    quota = FlavorQuota(pool="p", nominal={"cpu_milli": 64_000})
    engine = started(cell(2, fixed=1, queues=(QueueSpec(name="a", flavors=(quota,)),)), job("wide", 8000))
    engine.command(Submit(workloads=(job("small", 3000),)))
    engine.advance(HOUR)
    assert (on(engine, "small"), engine.workload("small").attempts) == (["n1"], 1)


def test_what_waits_and_could_use_the_nodes_keeps_them() -> None:
    """A gang of three needs n1 and n2, and n0 as soon as it is free: giving them back would only delay it."""
    engine = started(cell(3, most=3), job("a", 8000, run=HOUR))
    engine.command(Submit(workloads=(job("gang", 8000, tasks=3, run=HOUR),)))
    engine.advance(HOUR - MINUTE)
    assert len(there(engine)) == 3
    engine.advance(HOUR + MINUTE)
    assert engine.workload("gang").state == "running"


def test_what_waits_for_quota_or_is_too_large_keeps_nothing() -> None:
    spec = QueueSpec(name="a", nominal={"cpu_milli": 72_000})
    engine = started(cell(3, most=3, fixed=6, queues=(spec,)), job("five", 8000, tasks=5))
    engine.command(Submit(workloads=(job("nine", 8000, tasks=9), job("over", 8000, tasks=5))))
    engine.advance(HOUR)
    assert [engine.workload(name).state for name in ("five", "nine", "over")] == ["running", "queued", "queued"]
    assert not [name for name in there(engine) if name[0] == "n" and not engine.node(name).workloads]


def test_a_constant_load_keeps_its_nodes() -> None:
    """Six lanes of tasks of a node each, twenty minutes long, with a minute between: no node is ever idle for long."""
    engine = started(cell(0))
    sizes = set()
    for minute in range(0, 6 * 60, 3):
        engine.advance(minute * MINUTE + 1000)
        names = [f"{lane}-{minute}" for lane in range(6) if minute % 21 == lane * 3]
        if names:
            engine.command(Submit(workloads=tuple(job(name, 8000, run=20 * MINUTE) for name in names)))
        if minute >= 60:
            sizes.add((tuple(there(engine)), len(engine.state.orders.pool)))
    assert len(sizes) == 1, "no node goes and none is ordered"


# -- the plan ---------------------------------------------------------------------------------------------------------


def test_planning_changes_nothing() -> None:
    engine = apart(job("small", 3000))
    engine.advance(WAIT - MINUTE)
    state, now_ms = engine.state, WAIT + 2 * MINUTE
    before = state.digest()
    events = scale_down.plan(state, now_ms, Foresight(state).wanted(now_ms))
    assert {type(event).__name__ for event in events} >= {"NodesChanged", "Evicted", "Placed"}
    assert state.digest() == before
    check_state(state)
    again = scale_down.plan(state, now_ms, Foresight(state).wanted(now_ms))
    assert again == events
    assert there(engine) == ["n0", "n1"]


def test_a_restart_goes_on_counting(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    durable = Engine.open(path, cell=cell(4))
    durable.advance(WAIT - 2 * MINUTE)
    durable.close()
    for use_snapshot in (True, False):
        again = Engine.open(path, use_snapshot=use_snapshot)
        fork = again.fork()
        again.close()
        fork.advance(WAIT - MINUTE)
        assert len(there(fork)) == 4
        fork.advance(WAIT + MINUTE)
        assert there(fork) == []
