"""The gate on a real engine: what is shown, what executes, and above all what does not."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from effort import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from engine.commands import (
    Cancel,
    ChangeQueue,
    Cordon,
    Hold,
    HoldQueues,
    Release,
    Requeue,
    Reserve,
    Resume,
    Submit,
    Suspend,
    Uncordon,
)
from engine.control import Engine
from engine.errors import JournalError, MusterError, NotFoundError, RefusedError, SpecError
from engine.events import Audited, AuditEntry, NodesChanged
from engine.journal import Journal
from engine.model import (
    ArraySpec,
    BudgetSpec,
    CellSpec,
    NodeSpec,
    NodeState,
    PoolSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)
from runbooks.gate import MAX_OPEN
from runbooks.plan import MoneyChange, Proposal, QueueChange
from runbooks.readings import MAX_TARGETS
from tests.support.gates import Person, gate_of

HOUR = 3_600_000
START = 1_800_000_000_000


class Clock:
    """Wall time that moves when told."""

    def __init__(self) -> None:
        self.now_ms = START

    def __call__(self) -> int:
        return self.now_ms


class Watched:
    """An engine whose audited commands are counted, and whose journal can be made to fail."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.executed: list[AuditEntry] = []
        self.failure: MusterError | None = None

    def command(self, command: Any, *, audit: AuditEntry | None = None) -> Any:
        if self.failure is not None:
            raise self.failure
        receipt = self.engine.command(command, audit=audit)
        if audit is not None:
            self.executed.append(audit)
        return receipt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def work(id_: str, gpus: int = 8, run_ms: int = 10 * HOUR) -> WorkloadSpec:
    group = TaskGroup(request=Resources(cpu_milli=1000, gpu_milli=gpus * 1000))
    return WorkloadSpec(id=id_, queue="q", groups=(group,), estimate_ms=run_ms, simulated_runtime_ms=run_ms)


CELL = CellSpec(
    pools=(PoolSpec(name="p", capacity=Resources(cpu_milli=64_000, memory_mib=1000, gpu_milli=8000)),),
    nodes=tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(3)),
    queues=(QueueSpec(name="q"),),
)
WORK = ("r0", "r1", "w0", "w1", "h0")


def busy_engine(path: Path | None = None) -> Engine:
    """r0 on n0 and r1 on n1 have run an hour; n2 is cordoned; w0 and w1 wait; h0 is on hold."""
    engine = Engine.open(path, cell=CELL)
    engine.command(Cordon(ids=("n2",)))
    engine.command(Submit(workloads=tuple(work(id_) for id_ in WORK)))
    engine.command(Hold(ids=("h0",)))
    engine.advance(engine.now_ms + HOUR)
    return engine


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> Watched:
    return Watched(busy_engine())


@pytest.fixture
def gate(watched: Watched, clock: Clock) -> Person:
    return Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]


def state_of(watched: Watched, id_: str) -> str:
    return watched.engine.workload(id_).state


def effects(proposal: Proposal) -> dict[str, tuple[str, str]]:
    return {effect.label: (effect.before, effect.after) for effect in proposal.effects}


# -- what a proposal shows --------------------------------------------------------------------------------------------


def test_proposing_changes_nothing(gate: Person, watched: Watched) -> None:
    version, digest = watched.version, watched.engine.state.digest()
    for action, targets in (("drain", ["n0"]), ("cancel", ["r0", "w0"]), ("set_policy", ["fcfs"])):
        if watched.overview().policy != targets[0]:
            gate.propose(action, targets)
    assert (watched.version, watched.engine.state.digest()) == (version, digest)
    assert watched.executed == []


def test_proposal_is_bound_to_the_digest_of_its_plan(gate: Person, clock: Clock) -> None:
    proposal = gate.propose("hold", ["w0", "w0", "w1"], reason="budget", requester="ann")
    assert proposal.plan == Plan(action="hold", targets=("w0", "w1"), reason="budget", requester="ann")
    assert proposal.digest == proposal.plan.digest()
    assert proposal.expires_ms == clock.now_ms + EXPIRY_MS
    assert len(proposal.steps) == 2


def test_cancelling_running_work_shows_loss_and_what_starts(gate: Person) -> None:
    proposal = gate.propose("cancel", ["r0"])
    assert proposal.tier == "T3"
    assert proposal.steps == ("cancel r0 (running, 8 GPU, 1.0 h of work lost)",)
    shown = effects(proposal)
    assert shown["Waiting"] == ("2", "1")
    assert shown["Starts because of it"] == ("none", "w0")
    assert shown["Work lost, if now"] == ("none", "8.0 GPU-h")


def test_draining_shows_requeued_work_and_nodes(gate: Person) -> None:
    proposal = gate.propose("drain", ["n0"])
    shown = effects(proposal)
    assert proposal.title == "Drain node n0"
    assert shown["Nodes taking work"] == ("2", "1")
    assert shown["Requeued"] == ("none", "1 workload")
    assert shown["GPU in use"] == ("16 of 24", "8 of 24")


def test_a_budget_that_is_spent_at_once_shows_what_then_waits(gate: Person, watched: Watched) -> None:
    budget = BudgetSpec(name="b", scope="queue", of="q", limit_microusd=0, action="hold")
    shown = effects(gate.propose("set_budget", ["b"], money=MoneyChange(budget=budget)))
    assert shown["Spent of b"] == ("no budget", "$0.00 of $0.00, spent")
    assert shown["Wait for b"] == ("none", "2 workloads"), "w0 and w1; h0 is on hold"
    assert "Wait for b" not in effects(gate.propose("drain", ["n0"]))


def test_uncordon_shows_what_starts(gate: Person) -> None:
    assert effects(gate.propose("uncordon", ["n2"]))["Starts because of it"] == ("none", "w0")


def test_work_that_starts_anyway_is_not_credited_to_the_plan(gate: Person, watched: Watched) -> None:
    # n2 is back, but no scheduling cycle has seen it yet: w0 will start whether h0 is cancelled or not.
    state = watched.engine.state
    state.apply(NodesChanged(array("i", [state.capacity.row("n2")]).tobytes(), NodeState.READY))
    shown = effects(gate.propose("cancel", ["h0"]))
    assert shown["Waiting"] == ("1", "1")
    assert "Starts because of it" not in shown


def test_loss_of_a_cancel_counts_earlier_attempts(gate: Person, watched: Watched) -> None:
    watched.engine.command(Requeue(ids=("r0",)))
    assert watched.engine.workload("r0").attempts == 2
    watched.engine.advance(watched.now_ms + HOUR)
    assert "2.0 h" in gate.propose("cancel", ["r0"]).steps[0]
    assert "1.0 h" in gate.propose("requeue", ["r0"]).steps[0]


def test_work_that_writes_a_checkpoint_when_asked_loses_nothing(gate: Person, watched: Watched) -> None:
    saves = msgspec.structs.replace(work("saves"), checkpoint_cost_ms=60_000)
    watched.engine.command(Cancel(ids=("w0", "w1")))
    watched.engine.command(Uncordon(ids=("n2",)))
    watched.engine.command(Submit(workloads=(saves,)))
    watched.engine.advance(watched.now_ms + HOUR)
    proposal = gate.propose("suspend", ["saves"])
    assert (proposal.tier, proposal.steps) == ("T2", ("suspend saves (running, 8 GPU, 0 min of work lost)",))
    assert effects(proposal)["Work lost, if now"] == ("none", "0.0 CPU-h")


def test_suspending_running_work_is_disruptive_and_shows_what_starts_instead(gate: Person) -> None:
    assert gate.propose("suspend", ["w0"]).tier == "T1"
    proposal = gate.propose("suspend", ["r0"])
    assert proposal.tier == "T2"
    shown = effects(proposal)
    assert shown["Suspended"] == ("0", "1")
    assert shown["Suspended from running"] == ("none", "1 workload")
    assert shown["Work lost, if now"] == ("none", "8.0 GPU-h")
    assert shown["Starts because of it"] == ("none", "w0")


def test_an_array_stands_for_the_members_it_can_apply_to(gate: Person, watched: Watched) -> None:
    sweep = msgspec.structs.replace(work("sweep", gpus=1), array=ArraySpec(last=3))
    watched.engine.command(Submit(workloads=(sweep,)))
    watched.engine.command(Cancel(ids=("sweep/2",)))
    watched.engine.command(Hold(ids=("sweep/1",)))
    proposal = gate.propose("hold", ["w1", "sweep", "sweep/3"])
    assert proposal.plan.targets == ("w1", "sweep/0", "sweep/3")
    gate.approve(proposal.id, proposal.digest, "ann")
    with pytest.raises(NotFoundError, match="sweep"):
        gate.propose("resume", ["sweep"])


# -- queues and reservations ------------------------------------------------------------------------------------------


@pytest.fixture
def shared() -> Watched:
    """Queues a and b under root have 8 GPU of their own each and borrow from each other, on three nodes of 8. a0, a1
    and b0 have run an hour; a2 waits for quota."""
    nominal = {"gpu_milli": 8000}
    queues = (
        QueueSpec(name="root", nominal=nominal),
        QueueSpec(name="a", parent="root", nominal=nominal),
        QueueSpec(name="b", parent="root", nominal=nominal, weight=2),
    )
    engine = Engine.open(None, cell=msgspec.structs.replace(CELL, queues=queues))
    for queue, names in (("a", ("a0",)), ("b", ("b0",)), ("a", ("a1", "a2"))):
        specs = tuple(msgspec.structs.replace(work(name), queue=queue) for name in names)
        engine.command(Submit(workloads=specs))
        engine.advance(engine.now_ms + HOUR)
    return Watched(engine)


@pytest.fixture
def over_shared(shared: Watched, clock: Clock) -> Person:
    return Person(gate_of(shared, clock=clock))  # type: ignore[arg-type]


def change(watched: Watched, name: str, over: str = "refuse", **fields: Any) -> QueueChange:
    was = watched.engine.reader.queue(name, watched.now_ms).spec
    return QueueChange(was=was, to=msgspec.structs.replace(was, **fields), over=over)  # type: ignore[arg-type]


NO_BORROWING: dict[str, Any] = {"nominal": {"gpu_milli": 8000}, "borrowing_limit": {"gpu_milli": 0}}


def test_a_smaller_quota_is_refused_by_the_names_of_what_would_have_to_go(over_shared: Gate, shared: Watched) -> None:
    with pytest.raises(RefusedError, match=r"8 GPU more than it may; would have to go: 'a1'"):
        over_shared.propose("set_quota", ["a"], queue=change(shared, "a", **NO_BORROWING))


def test_eviction_names_who_goes_and_what_it_costs_before_it_happens(over_shared: Gate, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", "evict", **NO_BORROWING))
    assert (proposal.tier, proposal.title) == ("T2", "Set quota of queue a")
    assert proposal.steps == (
        "a: borrowing limit gpu not set -> 0 GPU", "requeue a1 (running, 8 GPU, 1.0 h of work lost)",
    )  # fmt: skip
    shown = effects(proposal)
    assert shown["Running"] == ("3", "2")
    assert (shown["Requeued"], shown["Work lost, if now"]) == (("none", "1 workload"), ("none", "8.0 GPU-h"))
    assert proposal.inverse == "Set quota of a back to borrowing limit gpu not set"
    assert proposal.plan.queue is not None
    outcome = over_shared.approve(proposal.id, proposal.digest, "ann")
    assert outcome.changed == ("a", "a1")
    assert outcome.verified == ("verified: a has borrowing limit gpu 0 GPU",)
    assert state_of(shared, "a1") == "queued"
    [entry] = shared.executed
    assert msgspec.json.decode(entry.plan, type=Plan) == proposal.plan
    back = QueueChange(was=proposal.plan.queue.to, to=proposal.plan.queue.was)
    undo = over_shared.propose("set_quota", ["a"], queue=back)
    assert undo.tier == "T1"
    over_shared.approve(undo.id, undo.digest, "ann")
    assert state_of(shared, "a1") == "running"


def test_a_kept_excess_runs_out_and_is_told(over_shared: Gate, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", "keep", **NO_BORROWING))
    assert proposal.tier == "T1"
    assert effects(proposal)["Above what it may use"] == ("none", "8 GPU")
    over_shared.approve(proposal.id, proposal.digest, "ann")
    assert state_of(shared, "a1") == "running"


def test_the_digest_binds_the_whole_spec_and_what_becomes_of_the_excess(over_shared: Gate, shared: Watched) -> None:
    wanted = [
        change(shared, "a", "keep", weight=3), change(shared, "a", "evict", weight=3),
        change(shared, "a", "keep", weight=4), change(shared, "a", "keep", weight=3, min_runtime_ms=1),
    ]  # fmt: skip
    assert len({over_shared.propose("set_quota", ["a"], queue=each).digest for each in wanted}) == len(wanted)


def test_a_change_of_a_queue_that_was_changed_meanwhile_is_stale(over_shared: Gate, shared: Watched) -> None:
    first, second = change(shared, "a", weight=3), change(shared, "a", weight=5)
    late = over_shared.propose("set_quota", ["a"], queue=second)
    shared.engine.command(ChangeQueue(queue=first.to))
    with pytest.raises(RefusedError, match="stale, nothing was done: a was changed meanwhile: weight 1 -> 3"):
        over_shared.approve(late.id, late.digest, "ann")
    with pytest.raises(RefusedError, match="a was changed meanwhile: weight 1 -> 3"):
        over_shared.propose("set_quota", ["a"], queue=second)
    assert shared.executed == []


def test_a_change_of_another_queue_does_not_make_it_stale(over_shared: Gate, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", weight=3))
    shared.engine.command(ChangeQueue(queue=change(shared, "b", weight=3).to))
    shared.engine.command(HoldQueues(names=("a",)))
    assert over_shared.approve(proposal.id, proposal.digest, "ann").verified == ("verified: a has weight 3",)


def test_another_victim_makes_an_eviction_stale(over_shared: Gate, shared: Watched) -> None:
    proposal = over_shared.propose("set_quota", ["a"], queue=change(shared, "a", "evict", **NO_BORROWING))
    shared.engine.command(Suspend(ids=("a1",)))
    with pytest.raises(RefusedError, match="work now that was not shown: a2"):
        over_shared.approve(proposal.id, proposal.digest, "ann")


def test_a_change_that_changes_nothing_is_refused(over_shared: Gate, shared: Watched) -> None:
    with pytest.raises(RefusedError, match="exactly that"):
        over_shared.propose("set_quota", ["a"], queue=change(shared, "a"))


def test_draining_a_queue_names_what_it_requeues(over_shared: Gate, shared: Watched) -> None:
    proposal = over_shared.propose("drain_queue", ["a"])
    assert proposal.tier == "T3"
    assert proposal.steps == (
        "drain-queue a (open, requeues 2 workloads, 32.0 GPU-h lost)",
        "requeue a0 (running, 8 GPU, 3.0 h of work lost)",
        "requeue a1 (running, 8 GPU, 1.0 h of work lost)",
    )
    outcome = over_shared.approve(proposal.id, proposal.digest, "ann")
    assert outcome.verified == ("verified: a is draining",)
    assert (state_of(shared, "a0"), state_of(shared, "b0")) == ("queued", "running")


def test_a_cohort_is_drained_with_all_below_it_counted_once(over_shared: Gate) -> None:
    proposal = over_shared.propose("drain_queue", ["root", "a"])
    assert effects(proposal)["Requeued"] == ("none", "3 workloads")
    assert [step.split()[1] for step in proposal.steps] == ["root", "a", "a0", "a1", "b0"]


def test_work_that_started_meanwhile_makes_a_drain_of_its_queue_stale(over_shared: Gate, shared: Watched) -> None:
    proposal = over_shared.propose("drain_queue", ["a"])
    shared.engine.command(Cancel(ids=("b0",)))
    with pytest.raises(RefusedError, match="work now that was not shown: a2"):
        over_shared.approve(proposal.id, proposal.digest, "ann")


def test_a_held_queue_starts_nothing_until_it_is_opened(over_shared: Gate, shared: Watched) -> None:
    hold = over_shared.propose("hold_queue", ["a"])
    assert (hold.tier, hold.inverse) == ("T1", "Open a")
    assert over_shared.approve(hold.id, hold.digest, "ann").verified == ("verified: a is held",)
    shared.engine.command(Cancel(ids=("b0",)))
    assert state_of(shared, "a2") == "queued"
    reopen = over_shared.propose("open_queue", ["a"])
    assert effects(reopen)["Starts because of it"] == ("none", "a2")
    over_shared.approve(reopen.id, reopen.digest, "ann")
    assert state_of(shared, "a2") == "running"
    with pytest.raises(RefusedError, match="a is open"):
        over_shared.propose("open_queue", ["a"])


def test_queues_that_do_not_exist_are_named(over_shared: Gate) -> None:
    with pytest.raises(NotFoundError, match="ghost"):
        over_shared.propose("hold_queue", ["a", "ghost"])


def test_a_reservation_is_made_and_taken_back(gate: Person, watched: Watched) -> None:
    now_ms = watched.now_ms
    wanted = ReservationSpec(name="m", nodes=("n0", "n1"), start_ms=now_ms + HOUR, end_ms=now_ms + 2 * HOUR)
    proposal = gate.propose("reserve", ["m"], reservation=wanted)
    assert proposal.steps[0].startswith("reserve m: 2 nodes (n0, n1) from ")
    assert gate.approve(proposal.id, proposal.digest, "ann").verified == ("verified: m is made",)
    with pytest.raises(RefusedError, match="m is made"):
        gate.propose("reserve", ["m"], reservation=wanted)
    back = gate.propose("unreserve", ["m"])
    assert back.inverse.startswith("Reserve m: 2 nodes (n0, n1) from ")
    assert gate.approve(back.id, back.digest, "ann").verified == ("verified: m is not made",)
    with pytest.raises(NotFoundError):
        gate.propose("unreserve", ["m"])


def test_taking_back_another_reservation_than_was_shown_is_stale(gate: Person, watched: Watched) -> None:
    now_ms = watched.now_ms
    first = ReservationSpec(name="m", nodes=("n0",), start_ms=now_ms + HOUR, end_ms=now_ms + 2 * HOUR)
    watched.engine.command(Reserve(reservation=first))
    shown = gate.propose("unreserve", ["m"])
    again = gate.propose("unreserve", ["m"], reason="twice")
    gate.approve(again.id, again.digest, "ann")
    watched.engine.command(Reserve(reservation=msgspec.structs.replace(first, nodes=("n1",))))
    with pytest.raises(RefusedError, match="another reservation"):
        gate.approve(shown.id, shown.digest, "ann")


# -- what is refused at the door --------------------------------------------------------------------------------------


def test_every_unknown_target_is_named(gate: Person) -> None:
    with pytest.raises(NotFoundError, match=r"ghost-1, n0, ghost-2"):
        gate.propose("cancel", ["ghost-1", "r0", "n0", "ghost-2"])
    with pytest.raises(NotFoundError, match="r0"):
        gate.propose("drain", ["r0", "n1"])


def test_every_target_that_does_not_apply_is_named_with_its_state(gate: Person) -> None:
    with pytest.raises(RefusedError, match=r"r0 is running; h0 is held"):
        gate.propose("hold", ["r0", "w0", "h0"])
    with pytest.raises(RefusedError, match="n2 is cordoned"):
        gate.propose("cordon", ["n2"])


@pytest.mark.parametrize(
    "targets", [["*"], ["w*"], [".*"], [""], ["w0", "w?"], ["w0\n"], ["\u0430lpha"], ["w0\u200b"], []]
)
def test_patterns_and_lookalikes_are_not_ids(gate: Person, targets: list[str]) -> None:
    with pytest.raises(SpecError):
        gate.propose("cancel", targets)


def test_one_text_is_not_a_list_of_letters(gate: Person) -> None:
    with pytest.raises(SpecError):
        gate.propose("cancel", "w0")


def test_too_many_targets(gate: Person) -> None:
    with pytest.raises(SpecError, match="1,001"):
        gate.propose("cancel", [f"w{i}" for i in range(MAX_TARGETS + 1)])


@pytest.mark.parametrize("reason", ["x" * 501, "two\nlines", "\x1b[2J", "\u202eevil", "\ud800"])
def test_reasons_are_one_printable_line(gate: Person, reason: str) -> None:
    with pytest.raises(SpecError):
        gate.propose("hold", ["w0"], reason=reason)


def test_policy_in_force_and_unknown_policy(gate: Person, watched: Watched) -> None:
    with pytest.raises(RefusedError):
        gate.propose("set_policy", [watched.overview().policy])
    with pytest.raises(SpecError):
        gate.propose("set_policy", ["random"])


# -- execution --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "target", "found"),
    [
        ("cancel", "r0", "r0 is cancelled"),
        ("hold", "w0", "w0 is held"),
        ("release", "h0", "h0 is queued"),
        ("requeue", "r1", "r1 is running"),
        ("suspend", "r1", "r1 is suspended"),
        ("hold_queue", "q", "q is held"),
        ("drain_queue", "q", "q is draining"),
        ("cordon", "n0", "n0 is cordoned"),
        ("uncordon", "n2", "n2 is ready"),
        ("drain", "n0", "n0 is draining"),
    ],
)
def test_every_action_executes_and_is_read_back(
    gate: Person, watched: Watched, clock: Clock, action: str, target: str, found: str
) -> None:
    proposal = gate.propose(action, [target], requester="ann")
    clock.now_ms += 1000
    outcome = gate.approve(proposal.id, proposal.digest, "ann")
    assert outcome.verified == (f"verified: {found}",)
    assert target in outcome.changed
    assert outcome.version == watched.version
    [entry] = watched.executed
    assert (entry.actor, entry.action, entry.digest, entry.at_wall_ms) == ("ann", action, proposal.digest, clock.now_ms)
    assert hashlib.sha256(entry.plan).hexdigest() == proposal.digest
    assert msgspec.json.decode(entry.plan, type=Plan) == proposal.plan


def test_policy_switch(gate: Person, watched: Watched) -> None:
    was = watched.overview().policy
    other = "easy" if was == "fcfs" else "fcfs"
    proposal = gate.propose("set_policy", [other])
    assert proposal.inverse == f"Set policy to {was}"
    assert gate.approve(proposal.id, proposal.digest, "ann").verified == (f"verified: policy is {other}",)


def test_effect_matches_what_was_shown(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("cancel", ["r0"])
    gate.approve(proposal.id, proposal.digest, "ann")
    assert state_of(watched, "w0") == "running"
    assert str(watched.overview().states["queued"]) == effects(proposal)["Waiting"][1]


def test_second_approval_says_when_and_by_whom(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("hold", ["w0"])
    gate.approve(proposal.id, proposal.digest, "ann")
    watched.engine.command(Release(ids=("w0",)))
    with pytest.raises(RefusedError, match=r"executed at 2027-01-15 08:00:00 UTC, approved by ann"):
        gate.approve(proposal.id, proposal.digest, "bob")
    assert len(watched.executed) == 1


def test_wrong_digest(gate: Person, watched: Watched) -> None:
    one, other = gate.propose("hold", ["w0"]), gate.propose("hold", ["w1"])
    for digest in ("", "0" * 64, one.digest.upper(), one.digest[:-1], other.digest):
        with pytest.raises(RefusedError, match="digest"):
            gate.approve(one.id, digest, "ann")
    assert watched.executed == []


def test_expiry_is_exact(gate: Person, watched: Watched, clock: Clock) -> None:
    late, in_time = gate.propose("hold", ["w0"]), gate.propose("hold", ["w1"])
    clock.now_ms = late.expires_ms - 1
    gate.approve(in_time.id, in_time.digest, "ann")
    clock.now_ms = late.expires_ms
    with pytest.raises(RefusedError, match="expired"):
        gate.approve(late.id, late.digest, "ann")
    assert state_of(watched, "w0") == "queued"


def test_setting_the_clock_back_revives_nothing(gate: Person, watched: Watched, clock: Clock) -> None:
    proposal = gate.propose("hold", ["w0"])
    clock.now_ms = proposal.expires_ms + 1
    with pytest.raises(RefusedError):
        gate.approve(proposal.id, proposal.digest, "ann")
    clock.now_ms = START
    with pytest.raises(NotFoundError):
        gate.approve(proposal.id, proposal.digest, "ann")
    assert watched.executed == []


def test_small_steps_back_of_the_clock_are_forgiven(gate: Person, clock: Clock) -> None:
    proposal = gate.propose("hold", ["w0"])
    clock.now_ms -= 500
    gate.approve(proposal.id, proposal.digest, "ann")


@pytest.mark.parametrize("approver", ["", "a\nb", "x" * 129])
def test_approver_must_have_a_name(gate: Person, watched: Watched, approver: str) -> None:
    proposal = gate.propose("hold", ["w0"])
    with pytest.raises(SpecError):
        gate.approve(proposal.id, proposal.digest, approver)
    assert watched.executed == []


def test_unknown_proposal_is_shown_safely(gate: Person) -> None:
    with pytest.raises(NotFoundError) as caught:
        gate.approve("\x1b[2J", "0" * 64, "ann")
    assert "\x1b" not in str(caught.value)


def test_ids_differ_between_gates(watched: Watched) -> None:
    first = Person(gate_of(watched, clock=Clock())).propose("hold", ["w0"])  # type: ignore[arg-type]
    after_restart = Person(gate_of(watched, clock=Clock())).propose("hold", ["w1"])  # type: ignore[arg-type]
    assert first.id != after_restart.id


def test_open_proposals_are_bounded_and_the_oldest_gives_way(gate: Person) -> None:
    made = [gate.propose("hold", ["w0"], reason=str(i)) for i in range(MAX_OPEN + 1)]
    with pytest.raises(NotFoundError):
        gate.approve(made[0].id, made[0].digest, "ann")
    gate.approve(made[1].id, made[1].digest, "ann")


# -- staleness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "target", "change", "shown", "now"),
    [
        ("cancel", "w0", lambda e: e.command(Uncordon(ids=("n2",))), "queued", "running"),
        ("hold", "w0", lambda e: e.command(Cancel(ids=("w0",))), "queued", "cancelled"),
        ("requeue", "r0", lambda e: e.advance(e.now_ms + 9 * HOUR), "running", "finished"),
        ("cordon", "n0", lambda e: e.command(Cordon(ids=("n0",))), "ready", "cordoned"),
        ("requeue", "r0", lambda e: e.command(Requeue(ids=("r0",))), "attempt 1", "attempt 2"),
    ],
)
def test_a_changed_target_makes_it_stale(
    gate: Person, watched: Watched, action: str, target: str, change: Callable[[Engine], object], shown: str, now: str
) -> None:
    proposal = gate.propose(action, [target])
    change(watched.engine)
    with pytest.raises(RefusedError, match=f"{target} was shown .*{shown} and is .*{now} now"):
        gate.approve(proposal.id, proposal.digest, "ann")
    assert watched.executed == []


def test_a_changed_policy_makes_a_switch_stale(gate: Person, watched: Watched) -> None:
    was = watched.overview().policy
    other = "easy" if was == "fcfs" else "fcfs"
    twice = [gate.propose("set_policy", [other], reason=reason) for reason in ("one", "two")]
    gate.approve(twice[0].id, twice[0].digest, "ann")
    with pytest.raises(RefusedError, match="stale"):
        gate.approve(twice[1].id, twice[1].digest, "ann")


def test_work_that_arrived_unseen_makes_a_drain_stale(gate: Person, watched: Watched) -> None:
    watched.engine.command(Uncordon(ids=("n2",)))
    watched.engine.command(Cancel(ids=("w0", "w1")))
    proposal = gate.propose("drain", ["n2"])
    watched.engine.command(Submit(workloads=(work("late"),)))
    with pytest.raises(RefusedError, match="work now that was not shown: late"):
        gate.approve(proposal.id, proposal.digest, "ann")


def test_work_that_left_does_not_make_a_drain_stale(gate: Person, watched: Watched) -> None:
    watched.engine.command(Cancel(ids=("w0", "w1")))
    proposal = gate.propose("drain", ["n0"])
    watched.engine.command(Cancel(ids=("r0",)))
    assert gate.approve(proposal.id, proposal.digest, "ann").verified == ("verified: n0 is draining",)


def test_a_tier_that_rose_makes_it_stale(gate: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runbooks.gate.pool_nodes", lambda overview: {"p": 100})
    proposal = gate.propose("cordon", ["n0", "n1"])
    assert proposal.tier == "T1"
    monkeypatch.setattr("runbooks.gate.pool_nodes", lambda overview: {"p": 10})
    with pytest.raises(RefusedError, match="it was T1 and is T2 now"):
        gate.approve(proposal.id, proposal.digest, "ann")


def test_unrelated_changes_do_not_make_it_stale(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("hold", ["w1"])
    watched.engine.command(Submit(workloads=(work("other"),)))
    watched.engine.command(Cordon(ids=("n0",)))
    watched.engine.advance(watched.now_ms + HOUR)
    gate.approve(proposal.id, proposal.digest, "ann")
    assert state_of(watched, "w1") == "held"


# -- failure ----------------------------------------------------------------------------------------------------------


def test_a_failing_journal_marks_nothing_executed(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("hold", ["w0"])
    watched.failure = JournalError("the disk is full", "Make room")
    with pytest.raises(JournalError):
        gate.approve(proposal.id, proposal.digest, "ann")
    watched.failure = None
    gate.approve(proposal.id, proposal.digest, "ann")
    assert len(watched.executed) == 1


def test_audit_and_effect_are_durable_together(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    engine = busy_engine(path)
    gate = Person(gate_of(engine, clock=Clock()))
    proposal = gate.propose("cancel", ["r0"], reason="stuck", requester="ann")
    gate.approve(proposal.id, proposal.digest, "bob")
    engine.close()
    journal = Journal(path, 0)
    _, batches = journal.load(use_snapshot=False)
    entries = [event.entry for batch in batches for event in batch if isinstance(event, Audited)]
    journal.close()
    assert [(entry.actor, entry.digest) for entry in entries] == [("bob", proposal.digest)]
    again = Engine.open(path)
    assert again.workload("r0").state == "cancelled"
    again.close()


# -- any sequence -----------------------------------------------------------------------------------------------------


WANTED = st.one_of(
    st.tuples(
        st.sampled_from(("cancel", "hold", "release", "requeue", "suspend", "resume")),
        st.lists(st.sampled_from(WORK), min_size=1, max_size=2),
    ),
    st.tuples(
        st.sampled_from(("cordon", "uncordon", "drain")),
        st.lists(st.sampled_from(("n0", "n1", "n2")), min_size=1, max_size=2),
    ),
    st.tuples(st.sampled_from(("hold_queue", "drain_queue", "open_queue")), st.just(["q"])),
    st.tuples(st.just("set_policy"), st.sampled_from((["fcfs"], ["easy"], ["easy-sjbf"], ["conservative"]))),
    st.tuples(st.sampled_from(("cancel", "drain", "run_shell")), st.sampled_from(([], ["*"], ["ghost"], ["r0", "n0"]))),
)


OVER = st.sampled_from(("refuse", "keep", "evict"))


class GateMachine(RuleBasedStateMachine):
    """Honest and hostile calls in any order. What executed must be what somebody approved, in time and once."""

    proposals: Bundle[Proposal] = Bundle("proposals")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.watched = Watched(busy_engine())
        self.gate = Person(gate_of(self.watched, clock=self.clock))  # type: ignore[arg-type]
        self.rightful: list[tuple[str, str]] = []
        """(proposal id, digest) of approvals that were allowed to succeed, and did."""

    @rule(target=proposals, wanted=WANTED)
    def propose(self, wanted: tuple[str, list[str]]) -> Any:
        before = self.watched.engine.state.digest()
        try:
            return self.gate.propose(*wanted)
        except (SpecError, NotFoundError, RefusedError):
            return multiple()
        finally:
            assert self.watched.engine.state.digest() == before

    @rule(target=proposals, weight=st.sampled_from((1, 2)), gpus=st.sampled_from((8, 16, 24)), over=OVER)
    def propose_a_quota(self, weight: int, gpus: int, over: str) -> Any:
        before = self.watched.engine.state.digest()
        wanted = change(self.watched, "q", over, weight=weight, nominal={"gpu_milli": gpus * 1000})
        try:
            return self.gate.propose("set_quota", ["q"], queue=wanted)
        except RefusedError:
            return multiple()
        finally:
            assert self.watched.engine.state.digest() == before

    @rule(proposal=proposals)
    def approve(self, proposal: Proposal) -> None:
        executed = len(self.watched.executed)
        try:
            outcome = self.gate.approve(proposal.id, proposal.digest, "ann")
        except (NotFoundError, RefusedError):
            assert len(self.watched.executed) == executed
            return
        assert self.clock.now_ms < proposal.expires_ms
        assert all(line.startswith("verified: ") for line in outcome.verified)
        self.rightful.append((proposal.id, proposal.digest))

    @rule(proposal=proposals, other=proposals)
    def approve_with_a_digest_of_another(self, proposal: Proposal, other: Proposal) -> None:
        if proposal.digest == other.digest:
            return
        with pytest.raises((NotFoundError, RefusedError)):
            self.gate.approve(proposal.id, other.digest, "mallory")

    @rule(proposal=proposals)
    def journal_fails(self, proposal: Proposal) -> None:
        self.watched.failure = JournalError("the disk is full")
        with pytest.raises((JournalError, NotFoundError, RefusedError)):
            self.gate.approve(proposal.id, proposal.digest, "ann")
        self.watched.failure = None

    @rule(step_ms=st.sampled_from((1, 60_000, EXPIRY_MS, -500, -60_000)))
    def wall_clock_moves(self, step_ms: int) -> None:
        self.clock.now_ms += step_ms

    @rule(step_ms=st.sampled_from((1, HOUR, 12 * HOUR)))
    def cell_time_passes(self, step_ms: int) -> None:
        self.watched.engine.advance(self.watched.now_ms + step_ms)

    @rule(command=st.sampled_from((Cancel, Hold, Release, Requeue, Suspend, Resume)), id_=st.sampled_from(WORK))
    def workload_changes(self, command: type[Any], id_: str) -> None:
        try:
            self.watched.engine.command(command(ids=(id_,)))
        except RefusedError:
            return

    @rule(command=st.sampled_from((Cordon, Uncordon)), id_=st.sampled_from(("n0", "n1", "n2")))
    def node_changes(self, command: type[Any], id_: str) -> None:
        self.watched.engine.command(command(ids=(id_,)))

    @invariant()
    def executed_is_what_was_rightfully_approved_once(self) -> None:
        assert [entry.digest for entry in self.watched.executed] == [digest for _, digest in self.rightful]
        assert all(entry.actor == "ann" for entry in self.watched.executed)
        ids = [id_ for id_, _ in self.rightful]
        assert len(ids) == len(set(ids))


TestAnySequence = GateMachine.TestCase
TestAnySequence.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None, database=None)


def test_work_saved_by_checkpoints_is_not_shown_as_lost(gate: Person, watched: Watched) -> None:
    saved = msgspec.structs.replace(work("saved", gpus=1), checkpoint_interval_ms=HOUR)
    watched.engine.command(Cancel(ids=("w0", "w1")))
    watched.engine.command(Uncordon(ids=("n2",)))
    watched.engine.command(Submit(workloads=(saved,)))
    watched.engine.advance(watched.now_ms + HOUR + HOUR // 4)
    assert "15 min of work lost" in gate.propose("requeue", ["saved"]).steps[0]
    watched.engine.command(Requeue(ids=("saved",)))
    watched.engine.advance(watched.now_ms + HOUR // 2)
    assert "30 min of work lost" in gate.propose("requeue", ["saved"]).steps[0]
