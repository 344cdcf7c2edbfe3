"""The gate on a real engine: what is shown, what executes, and above all what does not."""

from __future__ import annotations

from array import array
from pathlib import Path

import msgspec
import pytest

from engine.control import Engine
from engine.journal.event_journal import Journal
from engine.model.commands import Cancel, Cordon, Hold, Interrupt, Release, Requeue, Submit, Uncordon
from engine.model.errors import JournalError, NotFoundError, RefusedError, SpecError
from engine.model.events import Audited, NodesChanged
from engine.model.specs import ArraySpec, BudgetSpec, NodeState
from runbooks.actions.declaration import MAX_TARGETS
from runbooks.gate.approval_gate import MAX_OPEN
from runbooks.plans.identity import Actor
from runbooks.plans.typed_plan import Act, MoneyChange, Request, RequestChange, StepRequest
from tests.support.gate_cells import HOUR, START, Clock, Watched, busy_engine, effects, work
from tests.support.gates import ME, Person, asked, gate_of

pytestmark = pytest.mark.both_databases


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> Watched:
    return Watched(busy_engine())


@pytest.fixture
def gate(watched: Watched, clock: Clock) -> Person:
    return Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]


# -- what a proposal shows --------------------------------------------------------------------------------------------


def test_proposing_changes_nothing(gate: Person, watched: Watched) -> None:
    version, digest = watched.version, watched.engine.state.digest()
    for action, targets in (("drain", ["n0"]), ("cancel", ["r0", "w0"]), ("set_policy", ["fcfs"])):
        if watched.overview().policy != targets[0]:
            gate.propose(action, targets)
    assert (watched.version, watched.engine.state.digest()) == (version, digest)
    assert watched.executed == []


def test_proposal_is_bound_to_the_digest_of_its_plan(gate: Person, clock: Clock) -> None:
    proposal = gate.gate.propose(ME, asked("hold", ["w0", "w0", "w1"], reason="budget", requester="ann"))
    [step] = proposal.plan.steps
    assert step.act == Act(action="hold", targets=("w0", "w1"))
    assert (proposal.reason, proposal.plan.requester) == ("budget", "ann")
    assert proposal.digest == proposal.plan.digest()
    assert proposal.expires_ms == proposal.plan.expires_ms == clock.now_ms + 4 * HOUR, "what the policy says of T1"
    assert len(proposal.steps) == 2


@pytest.mark.parametrize(
    ("action", "target", "tier", "expires_ms"),
    [("hold", "w0", "T1", 4 * HOUR), ("suspend", "r0", "T2", HOUR), ("cancel", "r0", "T3", HOUR // 2)],
)
def test_what_is_riskier_expires_sooner(
    gate: Person, clock: Clock, action: str, target: str, tier: str, expires_ms: int
) -> None:
    proposal = gate.propose(action, [target])
    assert (proposal.tier, proposal.expires_ms) == (tier, clock.now_ms + expires_ms)


def test_cancelling_running_work_shows_loss_and_what_starts(gate: Person) -> None:
    proposal = gate.propose("cancel", ["r0"])
    assert proposal.tier == "T3"
    assert proposal.steps == ("cancel r0 (running, 8 GPU, 1.0 h of work lost)",)
    shown = effects(proposal)
    assert shown["Waiting"] == ("2", "1")
    assert shown["Starts as a result"] == ("none", "w0")
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
    assert effects(gate.propose("uncordon", ["n2"]))["Starts as a result"] == ("none", "w0")


def test_work_that_starts_anyway_is_not_credited_to_the_plan(gate: Person, watched: Watched) -> None:
    # n2 is back, but no scheduling cycle has seen it yet: w0 will start whether h0 is cancelled or not.
    state = watched.engine.state
    state.apply(NodesChanged(array("i", [state.capacity.row("n2")]).tobytes(), NodeState.READY))
    shown = effects(gate.propose("cancel", ["h0"]))
    assert shown["Waiting"] == ("1", "1")
    assert "Starts as a result" not in shown


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
    assert (proposal.tier, proposal.steps) == ("T2", ("suspend saves (running, 8 GPU, 0 s of work lost)",))
    assert effects(proposal)["Work lost, if now"] == ("none", "0.0 CPU-h")


def test_suspending_running_work_is_disruptive_and_shows_what_starts_instead(gate: Person) -> None:
    assert gate.propose("suspend", ["w0"]).tier == "T1"
    proposal = gate.propose("suspend", ["r0"])
    assert proposal.tier == "T2"
    shown = effects(proposal)
    assert shown["Suspended"] == ("0", "1")
    assert shown["Suspended from running"] == ("none", "1 workload")
    assert shown["Work lost, if now"] == ("none", "8.0 GPU-h")
    assert shown["Starts as a result"] == ("none", "w0")


def test_an_array_stands_for_the_members_it_can_apply_to(gate: Person, watched: Watched) -> None:
    sweep = msgspec.structs.replace(work("sweep", gpus=1), array=ArraySpec(last=3))
    watched.engine.command(Submit(workloads=(sweep,)))
    watched.engine.command(Cancel(ids=("sweep/2",)))
    watched.engine.command(Hold(ids=("sweep/1",)))
    proposal = gate.propose("hold", ["w1", "sweep", "sweep/3"])
    assert proposal.plan.steps[0].act.targets == ("w1", "sweep/0", "sweep/3")
    gate.approve(proposal.id, proposal.digest)
    with pytest.raises(NotFoundError, match="sweep"):
        gate.propose("resume", ["sweep"])


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


# -- what is refused at the door --------------------------------------------------------------------------------------


def test_every_unknown_target_is_named(gate: Person) -> None:
    with pytest.raises(NotFoundError, match="'ghost-1', 'n0', 'ghost-2'"):
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
    act = Act(action="cancel", targets="w0")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="is text"):
        gate.gate.propose(ME, Request(steps=(StepRequest(act=act),)))


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
    proposal = gate.propose(action, [target])
    clock.now_ms += 1000
    outcome = gate.approve(proposal.id, proposal.digest)
    assert outcome.verified == (f"verified: {found}",)
    assert target in outcome.changed
    assert outcome.version == watched.version
    [entry] = watched.executed
    assert (entry.actor, entry.action, entry.at_wall_ms) == (ME.subject, action, clock.now_ms)
    assert (entry.digest, entry.key) == (proposal.digest, f"{proposal.digest}:1:0")
    assert msgspec.json.decode(entry.plan, type=Act) == proposal.plan.steps[0].act


def test_a_node_that_was_cordoned_first_is_drained_and_stays_cordoned_when_that_is_taken_back(
    gate: Person, watched: Watched
) -> None:
    """Cordon, look, then evict: what everybody does."""
    watched.engine.command(Cordon(ids=("n0",)))
    proposal = gate.propose("drain", ["n0"])
    assert proposal.inverse.startswith("Cordon n0;")
    outcome = gate.approve(proposal.id, proposal.digest)
    assert outcome.verified == ("verified: n0 is draining",)
    assert watched.state_of("r0") == "queued"
    assert gate.gate.rollback(ME, proposal.id, "wrong node").state == "rolled_back"
    assert watched.engine.node("n0").state == "cordoned"
    again = gate.propose("drain", ["n0"])
    assert gate.approve(again.id, again.digest).verified == ("verified: n0 is draining",)
    with pytest.raises(RefusedError, match="n0 is draining, no work left there"):
        gate.propose("drain", ["n0"])


def test_work_is_moved_off_a_node_that_drains_already(gate: Person, watched: Watched) -> None:
    """Its provider has given notice; its work would stop there at the end of it."""
    watched.engine.command(Interrupt(ids=("n0",)))
    assert (watched.engine.node("n0").state, watched.state_of("r0")) == ("draining", "running")
    proposal = gate.propose("drain", ["n0"])
    assert gate.approve(proposal.id, proposal.digest).verified == ("verified: n0 is draining",)
    assert watched.state_of("r0") == "queued"
    with pytest.raises(RefusedError, match="the provider reclaims 'n0'"):
        gate.propose("cordon", ["n0"])


def test_a_drained_node_can_be_made_a_cordoned_one(gate: Person, watched: Watched) -> None:
    for action, state in (("drain", "draining"), ("cordon", "cordoned")):
        proposal = gate.propose(action, ["n0"])
        assert gate.approve(proposal.id, proposal.digest).verified == (f"verified: n0 is {state}",)


def test_policy_switch(gate: Person, watched: Watched) -> None:
    was = watched.overview().policy
    other = "easy" if was == "fcfs" else "fcfs"
    proposal = gate.propose("set_policy", [other])
    assert proposal.inverse == f"Set policy to {was}"
    assert gate.approve(proposal.id, proposal.digest).verified == (f"verified: policy is {other}",)


def test_effect_matches_what_was_shown(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("cancel", ["r0"])
    gate.approve(proposal.id, proposal.digest)
    assert watched.state_of("w0") == "running"
    assert str(watched.overview().states["queued"]) == effects(proposal)["Waiting"][1]


def test_second_approval_says_when_and_by_whom(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("hold", ["w0"])
    gate.approve(proposal.id, proposal.digest)
    watched.engine.command(Release(ids=("w0",)))
    with pytest.raises(RefusedError, match=rf"executed at 2027-01-15 08:00:00 UTC, approved by {ME.subject}"):
        gate.approve(proposal.id, proposal.digest)
    assert len(watched.executed) == 1


def test_wrong_digest(gate: Person, watched: Watched) -> None:
    one, other = gate.propose("hold", ["w0"]), gate.propose("hold", ["w1"])
    for digest in ("", "0" * 64, one.digest.upper(), one.digest[:-1], other.digest):
        with pytest.raises(RefusedError, match="digest"):
            gate.approve(one.id, digest)
    assert watched.executed == []


def test_expiry_is_exact(gate: Person, watched: Watched, clock: Clock) -> None:
    late, in_time = gate.propose("hold", ["w0"]), gate.propose("hold", ["w1"])
    clock.now_ms = late.expires_ms - 1
    gate.approve(in_time.id, in_time.digest)
    clock.now_ms = late.expires_ms
    with pytest.raises(RefusedError, match="expired"):
        gate.approve(late.id, late.digest)
    assert watched.state_of("w0") == "queued"


def test_setting_the_clock_back_revives_nothing(gate: Person, watched: Watched, clock: Clock) -> None:
    proposal, other = gate.propose("hold", ["w0"]), gate.propose("hold", ["w1"])
    clock.now_ms = proposal.expires_ms + 1
    with pytest.raises(RefusedError, match="expired"):
        gate.approve(proposal.id, proposal.digest)
    clock.now_ms = START
    for each in (proposal, other):
        with pytest.raises(RefusedError, match="expired"):
            gate.approve(each.id, each.digest)
    assert watched.executed == []


def test_a_restart_with_the_clock_set_back_revives_nothing(watched: Watched, clock: Clock) -> None:
    before = Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]
    proposal = before.propose("hold", ["w0"])
    clock.now_ms -= 2 * HOUR
    after = Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="expired"):
        after.approve(proposal.id, proposal.digest)
    assert watched.executed == []


def test_small_steps_back_of_the_clock_are_forgiven(gate: Person, clock: Clock) -> None:
    proposal = gate.propose("hold", ["w0"])
    clock.now_ms -= 500
    gate.approve(proposal.id, proposal.digest)


@pytest.mark.parametrize("comment", ["a\nb", "\x1b[2J", "x" * 501, "\u202e"])
def test_comments_are_one_printable_line(gate: Person, watched: Watched, comment: str) -> None:
    proposal = gate.propose("hold", ["w0"])
    with pytest.raises(SpecError):
        gate.approve(proposal.id, proposal.digest, comment)
    assert watched.executed == []


def test_unknown_proposal_is_shown_safely(gate: Person) -> None:
    with pytest.raises(NotFoundError) as caught:
        gate.approve("\x1b[2J", "0" * 64)
    assert "\x1b" not in str(caught.value)


def test_a_restart_forgets_no_proposal_and_gives_no_id_twice(watched: Watched, clock: Clock) -> None:
    first = Person(gate_of(watched, clock=clock)).propose("hold", ["w0"])  # type: ignore[arg-type]
    again = Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]
    assert again.gate.proposal(first.id) == first
    assert again.propose("hold", ["w1"]).id != first.id
    assert again.approve(first.id, first.digest).verified == ("verified: w0 is held",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("action", "target", "start", "late_ms", "state"),
    [
        ("hold", "w0", "approved", 0, "verified"),
        ("hold", "w0", "asked", 0, "approved"),
        ("hold", "w0", "approved", 10 * 60_000, "approved"),
        ("suspend", "r0", "approved", 0, "approved"),
    ],
)
def test_an_engine_that_ended_after_the_last_vote_carries_out_what_is_mild_and_fresh(
    watched: Watched, clock: Clock, action: str, target: str, start: str, late_ms: int, state: str
) -> None:
    before = gate_of(watched.engine, clock=clock)
    request = msgspec.structs.replace(asked(action, [target]), start=start)
    shown = before.propose(ME, request)
    before.vote(ME, shown.id, shown.digest, "approve", "seen and wanted")
    version = watched.version
    clock.now_ms += late_ms
    after = gate_of(watched.engine, clock=clock)
    assert after.proposal(shown.id).state == state
    assert (watched.engine.workload("w0").state == "held") == (state == "verified")
    assert (watched.version > version) == (state == "verified")


def test_open_proposals_are_bounded_and_the_oldest_of_the_same_author_gives_way(watched: Watched, clock: Clock) -> None:
    gate = Person(gate_of(watched, clock=clock))  # type: ignore[arg-type]
    bob = Person(gate.gate, Actor(subject="service:recommender", kind="service"))
    theirs = bob.propose("hold", ["w1"])
    made = [
        gate.propose("resize", ["w0"], resize=RequestChange(request={"cpu_milli": 2000 + i}))
        for i in range(MAX_OPEN + 1)
    ]
    with pytest.raises(RefusedError, match="superseded"):
        gate.approve(made[0].id, made[0].digest)
    assert gate.gate.proposal(theirs.id).state == "awaiting"
    gate.approve(made[1].id, made[1].digest)


def test_the_same_asked_for_again_replaces_what_was_asked_for_before(gate: Person) -> None:
    first, second = gate.propose("hold", ["w0"], "one"), gate.propose("hold", ["w0"], "two")
    assert gate.gate.proposal(first.id).state == "superseded"
    with pytest.raises(RefusedError, match="superseded"):
        gate.approve(first.id, first.digest)
    gate.approve(second.id, second.digest)


# -- failure ----------------------------------------------------------------------------------------------------------


def test_a_failing_journal_marks_nothing_executed(gate: Person, watched: Watched) -> None:
    proposal = gate.propose("hold", ["w0"])
    watched.failure = JournalError("the disk is full", "Make room")
    with pytest.raises(JournalError):
        gate.approve(proposal.id, proposal.digest)
    watched.failure = None
    gate.approve(proposal.id, proposal.digest)
    assert len(watched.executed) == 1


def test_audit_and_effect_are_durable_together(tmp_path: Path) -> None:
    path = tmp_path / "cell.db"
    engine = busy_engine(path)
    gate = Person(gate_of(engine, clock=Clock()))
    proposal = gate.propose("cancel", ["r0"], reason="stuck")
    gate.approve(proposal.id, proposal.digest)
    engine.close()
    journal = Journal(path, 0)
    _, batches = journal.load(use_snapshot=False)
    entries = [event.entry for batch in batches for event in batch if isinstance(event, Audited)]
    journal.close()
    assert [(entry.actor, entry.digest) for entry in entries] == [(ME.subject, proposal.digest)]
    again = Engine.open(path)
    assert again.workload("r0").state == "cancelled"
    again.close()
