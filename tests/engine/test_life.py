"""The life of a workload by the passing of time and by others: dependencies, arrays, start times, deadlines, limits,
retries, suspension."""

from __future__ import annotations

import msgspec
import pytest

from engine.control import Engine
from engine.model import commands as cmd
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.specs import ArraySpec, Dependency, WorkloadSpec
from tests.support.cells import small_cell, submit, workload
from tests.support.invariants import check_state

MINUTE = 60_000
HOUR = 60 * MINUTE


@pytest.fixture
def engine() -> Engine:
    return Engine.open(None, cell=small_cell())


def spec(name: str, **fields: object) -> WorkloadSpec:
    """A workload of one CPU that runs a minute, with further fields of WorkloadSpec."""
    return msgspec.structs.replace(workload(name), **fields)


def after(*ids: str, on: str = "finished") -> tuple[Dependency, ...]:
    return tuple(Dependency(id=i, on=on) for i in ids)


def state(engine: Engine, *names: str) -> list[str]:
    return [engine.workload(name).state for name in names]


def refused(engine: Engine, *specs: WorkloadSpec) -> MusterError:
    version = engine.version
    with pytest.raises(MusterError) as caught:
        engine.command(submit(*specs))
    assert engine.version == version, "nothing half-applied"
    return caught.value


# -- dependencies -----------------------------------------------------------------------------------------------------


def test_a_workload_starts_when_all_it_waits_for_has_finished(engine: Engine) -> None:
    engine.command(
        submit(spec("a"), workload("b", run=2 * MINUTE, estimate=2 * MINUTE), spec("c", after=after("a", "b")))
    )
    assert state(engine, "a", "b", "c") == ["running", "running", "waiting"]
    engine.advance(MINUTE)
    assert state(engine, "a", "c") == ["finished", "waiting"]
    engine.advance(2 * MINUTE)
    assert state(engine, "b", "c") == ["finished", "running"]
    check_state(engine.state)


@pytest.mark.parametrize(
    ("on", "cancelled", "starts"),
    [
        ("finished", False, True),
        ("finished", True, False),
        ("failed", False, False),
        ("failed", True, True),
        ("ended", False, True),
        ("ended", True, True),
        ("started", False, True),
    ],
)
def test_what_counts_depends_on_the_kind(engine: Engine, on: str, cancelled: bool, starts: bool) -> None:
    engine.command(submit(spec("a"), spec("b", after=after("a", on=on))))
    if cancelled:
        engine.command(cmd.Cancel(ids=("a",)))
    else:
        engine.advance(MINUTE)
    assert (state(engine, "b") != ["waiting"]) == starts


def test_started_is_met_as_soon_as_the_other_runs(engine: Engine) -> None:
    engine.command(submit(spec("a", held=True), spec("b", after=after("a", on="started"))))
    assert state(engine, "b") == ["waiting"]
    engine.command(cmd.Release(ids=("a",)))
    assert state(engine, "a", "b") == ["running", "running"]


def test_a_dependency_met_before_the_submission_holds_nothing_up(engine: Engine) -> None:
    engine.command(submit(spec("a")))
    engine.advance(MINUTE)
    engine.command(submit(spec("b", after=after("a"))))
    assert state(engine, "b") == ["running"]


def test_dependencies_may_be_given_in_any_order_of_one_submission(engine: Engine) -> None:
    engine.command(submit(spec("c", after=after("b")), spec("b", after=after("a")), spec("a")))
    engine.advance(3 * MINUTE)
    assert state(engine, "a", "b", "c") == ["finished", "finished", "finished"]
    starts = [engine.workload(name).started_ms for name in "abc"]
    assert starts == [0, MINUTE, 2 * MINUTE]


def test_a_ring_of_dependencies_is_refused_and_shown(engine: Engine) -> None:
    error = refused(engine, spec("a", after=after("c")), spec("b", after=after("a")), spec("c", after=after("b")))
    assert isinstance(error, SpecError)
    assert "a -> c -> b -> a" in error.problem


def test_a_workload_cannot_wait_for_itself(engine: Engine) -> None:
    assert "a -> a" in str(refused(engine, spec("a", after=after("a"))))


def test_a_dependency_on_what_never_existed_is_refused(engine: Engine) -> None:
    error = refused(engine, spec("a"), spec("b", after=after("nowhere")))
    assert "unknown workload 'nowhere'" in str(error)


def test_waiting_work_can_be_cancelled_held_and_released_without_forgetting_what_it_waits_for(engine: Engine) -> None:
    engine.command(submit(spec("a"), spec("b", after=after("a")), spec("c", after=after("a"))))
    engine.command(cmd.Hold(ids=("b",)))
    engine.command(cmd.Release(ids=("b",)))
    assert state(engine, "b") == ["waiting"]
    engine.command(cmd.Hold(ids=("b",)))
    engine.command(cmd.Cancel(ids=("c",)))
    engine.advance(MINUTE)
    assert state(engine, "b", "c") == ["held", "cancelled"]
    engine.command(cmd.Release(ids=("b",)))
    assert state(engine, "b") == ["running"]


# -- arrays -----------------------------------------------------------------------------------------------------------


def test_an_array_becomes_its_members(engine: Engine) -> None:
    receipt = engine.command(submit(spec("sweep", array=ArraySpec(first=2, last=8, step=3))))
    assert receipt.changed == ("sweep/2", "sweep/5", "sweep/8")
    assert state(engine, "sweep/2", "sweep/5", "sweep/8") == ["running"] * 3


def test_no_more_members_run_at_once_than_the_array_allows(engine: Engine) -> None:
    engine.command(submit(spec("sweep", array=ArraySpec(last=4, max_running=2)), spec("other")))
    names = [f"sweep/{i}" for i in range(5)]
    assert state(engine, *names, "other") == ["running"] * 2 + ["queued"] * 3 + ["running"]
    engine.advance(MINUTE)
    assert state(engine, *names) == ["finished"] * 2 + ["running"] * 2 + ["queued"]
    engine.command(cmd.Requeue(ids=("sweep/2",)))
    assert engine.state.workloads.array_running[0] == 2
    engine.advance(HOUR)
    assert state(engine, *names) == ["finished"] * 5


def test_the_id_of_an_array_stands_for_its_members_that_have_not_ended(engine: Engine) -> None:
    engine.command(submit(spec("sweep", array=ArraySpec(last=2)), spec("next", after=after("sweep", on="ended"))))
    engine.command(cmd.Cancel(ids=("sweep/1",)))
    assert engine.command(cmd.Cancel(ids=("sweep",))).changed == ("sweep/0", "sweep/2")
    assert state(engine, "next") == ["running"]


@pytest.mark.parametrize("array", [ArraySpec(first=3, last=2), ArraySpec(last=1, step=0), ArraySpec(last=10**6)])
def test_senseless_arrays_are_refused(engine: Engine, array: ArraySpec) -> None:
    assert "array" in refused(engine, spec("sweep", array=array)).where


def test_the_names_of_members_are_taken(engine: Engine) -> None:
    engine.command(submit(spec("sweep/1")))
    assert "'sweep/1' already exists" in str(refused(engine, spec("sweep", array=ArraySpec(last=2))))
    assert "'x/0' already exists" in str(refused(engine, spec("x/0"), spec("x", array=ArraySpec(last=2))))


# -- times ------------------------------------------------------------------------------------------------------------


def test_work_does_not_start_before_its_time(engine: Engine) -> None:
    engine.command(submit(spec("a", not_before_ms=HOUR), spec("b", not_before_ms=HOUR, held=True)))
    assert state(engine, "a") == ["waiting"]
    engine.advance(HOUR - 1)
    assert state(engine, "a") == ["waiting"]
    engine.command(cmd.Release(ids=("b",)))
    assert state(engine, "b") == ["waiting"]
    engine.advance(HOUR)
    assert state(engine, "a", "b") == ["running", "running"]


def test_a_deadline_in_the_past_or_nearer_than_the_estimate_is_refused(engine: Engine) -> None:
    engine.advance(HOUR)
    assert refused(engine, spec("a", deadline_ms=HOUR)).where == "workload.deadline_ms"
    assert refused(engine, spec("a", deadline_ms=HOUR + MINUTE - 1)).where == "workload.deadline_ms"
    engine.command(submit(spec("a", deadline_ms=HOUR + MINUTE)))
    assert state(engine, "a") == ["running"]


def test_what_can_no_longer_end_in_time_fails_while_it_waits_and_never_while_it_runs(engine: Engine) -> None:
    full = {"gpu": 8000, "count": 4, "estimate": HOUR, "run": HOUR}
    engine.command(submit(workload("first", **full)))
    late = msgspec.structs.replace(workload("late", gpu=8000, estimate=20 * MINUTE), deadline_ms=HOUR)
    runs_over = msgspec.structs.replace(workload("runs-over", run=HOUR, estimate=MINUTE), deadline_ms=2 * MINUTE)
    engine.command(submit(late, runs_over))
    engine.advance(40 * MINUTE)
    assert state(engine, "late") == ["queued"]
    engine.advance(40 * MINUTE + 1)
    assert state(engine, "late", "runs-over") == ["failed", "running"]
    engine.advance(2 * HOUR)
    assert state(engine, "runs-over") == ["finished"]
    check_state(engine.state)


def test_max_runtime_stops_each_attempt(engine: Engine) -> None:
    engine.command(submit(msgspec.structs.replace(workload("a", run=HOUR), max_runtime_ms=10 * MINUTE)))
    engine.advance(5 * MINUTE)
    engine.command(cmd.Requeue(ids=("a",)))
    engine.advance(15 * MINUTE - 1)
    assert state(engine, "a") == ["running"]
    engine.advance(15 * MINUTE)
    assert state(engine, "a") == ["failed"]
    check_state(engine.state)


def test_the_clock_does_not_go_back(engine: Engine) -> None:
    engine.advance(HOUR)
    with pytest.raises(RefusedError, match="go back"):
        engine.advance(HOUR - 1)
    assert engine.now_ms == HOUR


# -- retries ----------------------------------------------------------------------------------------------------------


def test_work_that_fails_starts_again_later_and_later_as_often_as_it_may(engine: Engine) -> None:
    engine.command(submit(spec("a", simulated_failures=9, retries=2, backoff_ms=10_000)))
    engine.advance(MINUTE // 2)
    assert state(engine, "a") == ["waiting"]
    engine.advance(MINUTE // 2 + 10_000 - 1)
    assert state(engine, "a") == ["waiting"]
    engine.advance(MINUTE // 2 + 11_000)
    assert state(engine, "a") == ["running"]
    engine.advance(HOUR)
    detail = engine.workload("a")
    assert detail.state == "failed"
    assert detail.attempts == 3
    waits = [item.at_ms for item in detail.history if item.what == "woke"]
    failed = [item.at_ms for item in detail.history if item.what == "failed"]
    pauses = [woke - fell for woke, fell in zip(waits, failed, strict=False)]
    assert 10_000 <= pauses[0] <= 11_000
    assert 20_000 <= pauses[1] <= 22_000


def test_it_finishes_when_it_fails_no_more(engine: Engine) -> None:
    engine.command(submit(spec("a", simulated_failures=2, retries=2)))
    engine.advance(HOUR)
    assert state(engine, "a") == ["finished"]


def test_requeues_and_drains_consume_no_attempt(engine: Engine) -> None:
    engine.command(submit(spec("a", simulated_failures=1, retries=1)))
    for _ in range(3):
        engine.command(cmd.Requeue(ids=("a",)))
    engine.advance(HOUR)
    assert state(engine, "a") == ["finished"]


# -- suspend and resume -----------------------------------------------------------------------------------------------


def test_suspended_work_holds_nothing_and_goes_on_from_its_checkpoint(engine: Engine) -> None:
    engine.command(submit(workload("a", gpu=8000, run=HOUR, estimate=HOUR, checkpoint=10 * MINUTE)))
    engine.advance(25 * MINUTE)
    engine.command(cmd.Suspend(ids=("a",)))
    assert state(engine, "a") == ["suspended"]
    assert not any(engine.state.queues.used)
    engine.advance(2 * HOUR)
    assert state(engine, "a") == ["suspended"]
    engine.command(cmd.Resume(ids=("a",)))
    engine.advance(2 * HOUR + 40 * MINUTE - 1)
    assert state(engine, "a") == ["running"]
    engine.advance(2 * HOUR + 40 * MINUTE)
    assert state(engine, "a") == ["finished"]
    check_state(engine.state)


def test_what_can_write_a_checkpoint_when_asked_loses_nothing(engine: Engine) -> None:
    engine.command(submit(msgspec.structs.replace(workload("a", run=HOUR), checkpoint_cost_ms=1000)))
    engine.advance(25 * MINUTE)
    engine.command(cmd.Suspend(ids=("a",)))
    assert engine.workload("a").kept_ms == 25 * MINUTE


def test_only_what_waits_or_runs_is_suspended_and_only_the_suspended_resumed(engine: Engine) -> None:
    engine.command(submit(spec("a"), spec("b", held=True)))
    with pytest.raises(RefusedError, match="'b' is held"):
        engine.command(cmd.Suspend(ids=("a", "b")))
    with pytest.raises(RefusedError, match="'a' is running"):
        engine.command(cmd.Resume(ids=("a",)))
    with pytest.raises(NotFoundError):
        engine.command(cmd.Suspend(ids=("nobody",)))
    assert state(engine, "a", "b") == ["running", "held"]
