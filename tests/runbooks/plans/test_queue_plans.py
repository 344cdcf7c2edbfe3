"""Queues and reservations through the gate: what goes is named before it goes, and nothing is undone unseen."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.model.commands import Cancel, ChangeQueue, HoldQueues, Reserve, Suspend, Unreserve
from engine.model.errors import NotFoundError, RefusedError
from engine.model.specs import ReservationSpec
from runbooks.plans.typed_plan import Act, QueueChange
from tests.support.gate_cells import HOUR, Clock, Watched, busy_engine, change, effects, shared_engine
from tests.support.gates import Person, gate_of


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> Watched:
    return Watched(busy_engine())


@pytest.fixture
def gate(watched: Watched, clock: Clock) -> Person:
    return Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]


@pytest.fixture
def shared() -> Watched:
    return Watched(shared_engine())


@pytest.fixture
def over_shared(shared: Watched, clock: Clock) -> Person:
    return Person(gate_of(shared, clock=clock))  # type: ignore[arg-type]


NO_BORROWING: dict[str, Any] = {"nominal": {"gpu_milli": 8000}, "borrowing_limit": {"gpu_milli": 0}}


def test_a_smaller_quota_is_refused_by_the_names_of_what_would_have_to_go(over_shared: Person, shared: Watched) -> None:
    with pytest.raises(RefusedError, match=r"8 GPU over its limit; work to stop: 'a1'"):
        over_shared.propose("set_quota", ["a"], queue=change(shared, "a", **NO_BORROWING))


def test_eviction_names_who_goes_and_what_it_costs_before_it_happens(over_shared: Person, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", "evict", **NO_BORROWING))
    assert (proposal.tier, proposal.title) == ("T2", "Set quota of queue a")
    assert proposal.steps == (
        "a: borrowing limit gpu not set -> 0 GPU", "requeue a1 (running, 8 GPU, 1.0 h of work lost)",
    )  # fmt: skip
    shown = effects(proposal)
    assert shown["Running"] == ("3", "2")
    assert (shown["Requeued"], shown["Work lost, if now"]) == (("none", "1 workload"), ("none", "8.0 GPU-h"))
    assert proposal.inverse == "Set quota of a back to borrowing limit gpu not set"
    wanted = proposal.plan.steps[0].act
    assert wanted.queue is not None
    outcome = over_shared.approve(proposal.id, proposal.digest)
    assert outcome.changed == ("a", "a1")
    assert outcome.verified == ("verified: a has borrowing limit gpu 0 GPU",)
    assert shared.state_of("a1") == "queued"
    [entry] = shared.executed
    assert msgspec.json.decode(entry.plan, type=Act) == wanted
    back = QueueChange(was=wanted.queue.to, to=wanted.queue.was)
    undo = over_shared.propose("set_quota", ["a"], queue=back)
    assert undo.tier == "T1"
    over_shared.approve(undo.id, undo.digest)
    assert shared.state_of("a1") == "running"


def test_a_kept_excess_runs_out_and_is_told(over_shared: Person, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", "keep", **NO_BORROWING))
    assert proposal.tier == "T1"
    assert effects(proposal)["Over limit"] == ("none", "8 GPU")
    over_shared.approve(proposal.id, proposal.digest)
    assert shared.state_of("a1") == "running"


def test_the_digest_binds_the_whole_spec_and_what_becomes_of_the_excess(over_shared: Person, shared: Watched) -> None:
    wanted = [
        change(shared, "a", "keep", weight=3), change(shared, "a", "evict", weight=3),
        change(shared, "a", "keep", weight=4), change(shared, "a", "keep", weight=3, min_runtime_ms=1),
    ]  # fmt: skip
    assert len({over_shared.propose("set_quota", ["a"], queue=each).digest for each in wanted}) == len(wanted)


def test_a_change_of_a_queue_that_was_changed_meanwhile_is_stale(over_shared: Person, shared: Watched) -> None:
    first, second = change(shared, "a", weight=3), change(shared, "a", weight=5)
    late = over_shared.propose("set_quota", ["a"], queue=second)
    shared.engine.command(ChangeQueue(queue=first.to))
    with pytest.raises(RefusedError, match="stale, nothing was done: a has changed: weight 1 -> 3"):
        over_shared.approve(late.id, late.digest)
    with pytest.raises(RefusedError, match="a has changed: weight 1 -> 3"):
        over_shared.propose("set_quota", ["a"], queue=second)
    assert shared.executed == []


def test_a_change_of_another_queue_does_not_make_it_stale(over_shared: Person, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", weight=3))
    shared.engine.command(ChangeQueue(queue=change(shared, "b", weight=3).to))
    shared.engine.command(HoldQueues(names=("a",)))
    assert over_shared.approve(proposal.id, proposal.digest).verified == ("verified: a has weight 3",)


def test_another_victim_makes_an_eviction_stale(over_shared: Person, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", "evict", **NO_BORROWING))
    shared.engine.command(Suspend(ids=("a1",)))
    with pytest.raises(RefusedError, match="work that was not shown: a2"):
        over_shared.approve(proposal.id, proposal.digest)


def test_a_change_that_changes_nothing_is_refused(over_shared: Person, shared: Watched) -> None:
    with pytest.raises(RefusedError, match="already has that"):
        over_shared.propose("set_quota", ["a"], queue=change(shared, "a"))


def test_draining_a_queue_names_what_it_requeues(over_shared: Person, shared: Watched) -> None:
    proposal = over_shared.propose("drain_queue", ["a"])
    assert proposal.tier == "T3"
    assert proposal.steps == (
        "drain-queue a (open, requeues 2 workloads, 32.0 GPU-h lost)",
        "requeue a0 (running, 8 GPU, 3.0 h of work lost)",
        "requeue a1 (running, 8 GPU, 1.0 h of work lost)",
    )
    outcome = over_shared.approve(proposal.id, proposal.digest)
    assert outcome.verified == ("verified: a is draining",)
    assert (shared.state_of("a0"), shared.state_of("b0")) == ("queued", "running")


def test_a_cohort_is_drained_with_all_below_it_counted_once(over_shared: Person) -> None:
    proposal = over_shared.propose("drain_queue", ["root", "a"])
    assert effects(proposal)["Requeued"] == ("none", "3 workloads")
    assert [step.split()[1] for step in proposal.steps] == ["root", "a", "a0", "a1", "b0"]


def test_work_that_started_meanwhile_makes_a_drain_of_its_queue_stale(over_shared: Person, shared: Watched) -> None:
    proposal = over_shared.propose("drain_queue", ["a"])
    shared.engine.command(Cancel(ids=("b0",)))
    with pytest.raises(RefusedError, match="work that was not shown: a2"):
        over_shared.approve(proposal.id, proposal.digest)


def test_a_held_queue_starts_nothing_until_it_is_opened(over_shared: Person, shared: Watched) -> None:
    hold = over_shared.propose("hold_queue", ["a"])
    assert (hold.tier, hold.inverse) == ("T1", "Open a")
    assert over_shared.approve(hold.id, hold.digest).verified == ("verified: a is held",)
    shared.engine.command(Cancel(ids=("b0",)))
    assert shared.state_of("a2") == "queued"
    reopen = over_shared.propose("open_queue", ["a"])
    assert effects(reopen)["Starts as a result"] == ("none", "a2")
    over_shared.approve(reopen.id, reopen.digest)
    assert shared.state_of("a2") == "running"
    with pytest.raises(RefusedError, match="a is open"):
        over_shared.propose("open_queue", ["a"])


def test_queues_that_do_not_exist_are_named(over_shared: Person) -> None:
    with pytest.raises(NotFoundError, match="ghost"):
        over_shared.propose("hold_queue", ["a", "ghost"])


def test_a_reservation_is_made_and_taken_back(gate: Person, watched: Watched) -> None:
    now_ms = watched.now_ms
    wanted = ReservationSpec(name="m", nodes=("n0", "n1"), start_ms=now_ms + HOUR, end_ms=now_ms + 2 * HOUR)
    proposal = gate.propose("reserve", ["m"], reservation=wanted)
    assert proposal.steps[0].startswith("reserve m: 2 nodes (n0, n1) from ")
    assert gate.approve(proposal.id, proposal.digest).verified == ("verified: m is made",)
    with pytest.raises(RefusedError, match="m is made"):
        gate.propose("reserve", ["m"], reservation=wanted)
    back = gate.propose("unreserve", ["m"])
    assert back.inverse.startswith("Reserve m: 2 nodes (n0, n1) from ")
    assert gate.approve(back.id, back.digest).verified == ("verified: m is not made",)
    with pytest.raises(NotFoundError):
        gate.propose("unreserve", ["m"])


def test_taking_back_another_reservation_than_was_shown_is_stale(gate: Person, watched: Watched) -> None:
    now_ms = watched.now_ms
    first = ReservationSpec(name="m", nodes=("n0",), start_ms=now_ms + HOUR, end_ms=now_ms + 2 * HOUR)
    watched.engine.command(Reserve(reservation=first))
    shown = gate.propose("unreserve", ["m"])
    watched.engine.command(Unreserve(names=("m",)))
    watched.engine.command(Reserve(reservation=msgspec.structs.replace(first, nodes=("n1",))))
    with pytest.raises(RefusedError, match="another reservation"):
        gate.approve(shown.id, shown.digest)
