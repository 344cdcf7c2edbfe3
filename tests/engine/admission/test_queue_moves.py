"""Work that waits goes to another queue; queues get another order."""

from __future__ import annotations

import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.reports import ShowbackRequest
from tests.support.cells import small_cell, submit, workload
from tests.support.invariants import check_state

MINUTE = 60_000


@pytest.fixture
def engine() -> Engine:
    """Queue a may use 8 GPUs, of which r uses all; w waits for quota there, and b has room."""
    engine = Engine.open(None, cell=small_cell(quota={"gpu_milli": 8000}))
    engine.command(submit(workload("r", gpu=8000, run=10 * MINUTE), workload("w", gpu=8000, checkpoint=1000)))
    return engine


def to(queue: str, *ids: str) -> cmd.MoveToQueue:
    return cmd.MoveToQueue(ids=ids, queue=queue)


def test_what_waits_for_quota_starts_in_a_queue_that_has_some(engine: Engine) -> None:
    assert engine.workload("w").state == "queued"
    engine.advance(1000)
    engine.command(to("b", "w"))
    work = engine.workload("w")
    assert (work.state, work.queue, work.submitted_ms, work.attempts) == ("running", "b", 0, 1)
    assert ("moved", "to queue b") in [(item.what, item.detail) for item in work.history]
    check_state(engine.state)


@pytest.mark.parametrize("wish", [cmd.Hold(ids=("w",)), cmd.Suspend(ids=("w",))])
def test_what_is_held_or_suspended_stays_so(engine: Engine, wish: cmd.AnyCommand) -> None:
    engine.command(wish)
    state = engine.workload("w").state
    engine.command(to("b", "w"))
    assert (engine.workload("w").state, engine.workload("w").queue) == (state, "b")
    check_state(engine.state)


def test_moving_there_and_back_leaves_it_where_it_was_in_line(engine: Engine) -> None:
    engine.command(submit(workload("later", gpu=8000)))
    engine.command(cmd.HoldQueues(names=("b",)))
    engine.command(to("b", "w"))
    assert engine.workload("later").position == 1
    engine.command(to("a", "w"))
    assert [engine.workload(name).position for name in ("w", "later")] == [1, 2]
    check_state(engine.state)


def test_what_has_cost_something_stays_charged_to_its_old_queue(engine: Engine) -> None:
    engine.command(cmd.HoldQueues(names=("a",)))
    engine.command(cmd.OpenQueues(names=("a",)))
    engine.command(cmd.Cancel(ids=("w",)))
    engine.advance(5 * MINUTE)
    engine.command(cmd.Suspend(ids=("r",)))
    spent = engine.workload("r").cost_microusd
    assert spent > 0
    engine.command(to("b", "r"))
    engine.command(cmd.Resume(ids=("r",)))
    engine.advance(6 * MINUTE)
    lines = {line.name: line.microusd for line in engine.showback(ShowbackRequest(by="queue")).lines}
    assert lines["a"] == spent
    assert lines["b"] > 0
    assert abs(lines["a"] + lines["b"] - engine.workload("r").cost_microusd) <= 1, "each is rounded by itself"
    check_state(engine.state)


def test_what_holds_capacity_or_has_ended_is_refused(engine: Engine) -> None:
    with pytest.raises(RefusedError, match="'r' holds capacity"):
        engine.command(to("b", "w", "r"))
    assert engine.workload("w").queue == "a"
    engine.command(cmd.Cancel(ids=("r",)))
    with pytest.raises(RefusedError, match="'r' has ended"):
        engine.command(to("b", "r"))


def test_a_queue_must_be_able_to_take_it(engine: Engine) -> None:
    with pytest.raises(SpecError, match="no queue 'nowhere'"):
        engine.command(to("nowhere", "w"))
    with pytest.raises(SpecError, match="has queues below it"):
        engine.command(to("root", "w"))
    engine.command(cmd.DrainQueues(names=("b",)))
    with pytest.raises(SpecError, match="'b' is draining"):
        engine.command(to("b", "w"))
    with pytest.raises(NotFoundError, match="ghost"):
        engine.command(to("b", "ghost"))


def test_work_that_could_never_start_there_is_refused(engine: Engine) -> None:
    engine.command(submit(workload("large", gpu=8000, count=4, queue="b", held=True)))
    with pytest.raises(SpecError, match="queue 'a' can be given 8000 at most"):
        engine.command(to("a", "large"))


def test_what_others_make_room_for_gives_that_up(engine: Engine) -> None:
    """The queue it leaves need not be cleared for it any more."""
    engine.command(submit(workload("next", gpu=1000)))
    before = engine.version
    engine.command(to("b", "next"))
    assert engine.version > before
    assert not engine.state.bookings.clearings
    check_state(engine.state)


def test_a_move_is_journalled(tmp_path) -> None:
    path = tmp_path / "cell.db"
    engine = Engine.open(path, cell=small_cell(quota={"gpu_milli": 8000}))
    engine.command(submit(workload("r", gpu=8000), workload("w", gpu=8000)))
    engine.command(to("b", "w"))
    engine.command(cmd.OrderQueues(names=("a", "b"), order="fair"))
    digest = engine.state.digest()
    engine.close()
    for use_snapshot in (True, False):
        again = Engine.open(path, use_snapshot=use_snapshot)
        assert again.state.digest() == digest
        again.close()


def test_only_the_order_of_queues_changes(engine: Engine) -> None:
    was = engine.queue("a").spec
    engine.command(cmd.OrderQueues(names=("a", "b"), order="strict_fifo"))
    assert [engine.queue(name).spec.order for name in ("a", "b", "root")] == ["strict_fifo"] * 2 + ["best_effort"]
    assert engine.queue("a").spec.nominal == was.nominal
    before = engine.state.digest()
    engine.command(cmd.OrderQueues(names=("a",), order="strict_fifo"))
    assert engine.state.digest() == before
    with pytest.raises(NotFoundError, match="no queue 'x'"):
        engine.command(cmd.OrderQueues(names=("a", "x"), order="fair"))
    check_state(engine.state)
