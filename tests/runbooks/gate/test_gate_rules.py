"""The rules of the gate, each by what happens when somebody breaks it. What is refused has no effect, and is on record
where it was somebody's deed. `make mutants` takes the rules away one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
import pytest
from agreement import check_agreement
from before_authorisation import before_authorisation
from cells import CLASSES, small_cell, submit, workload
from gate_cells import HOUR, MINUTE, START, Clock
from gate_crash_worker import WIDE, steps
from gates import ME, gate_of
from people import key_of
from sqlalchemy import select, update
from team import put_in_force

from engine.control import Engine
from engine.model.commands import RemoveNodes, Uncordon
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import SOLO, TEAM, ApprovalNeed, Person, Policy, Rule, Vote, need, tally
from runbooks.gate.run_limits import ByTier, FreezeSpec
from runbooks.gate.store import OUTBOX, PROPOSAL, REVIEW, REVISION, VOTE
from runbooks.plans import typed_plan
from runbooks.plans.checks import Check
from runbooks.plans.identity import Actor
from runbooks.plans.typed_plan import Act, Limits, Note, Party, Proposal, Request, Source, StepRequest, plan_digest

YES = "seen and wanted"
HOLD = steps(("hold", ("w0",)))
TWO = steps(("hold", ("w0",)), ("cordon", ("c0",)))


def person(name: str, *roles: Any, on_call: bool = False) -> Person:
    return Person(id=name, accounts=(f"unix:{3000 + sum(map(ord, name))}",), roles=roles, on_call=on_call)


PEOPLE = (
    person("ann", "operator", "approver", on_call=True), person("bob", "operator", "approver"),
    person("cat", "operator", "approver"), person("vic", "viewer"), person("zoe", "admin"),
)  # fmt: skip
ANN, BOB, CAT, VIC, ZOE = (Actor(subject=one.subject, account=one.accounts[0]) for one in PEOPLE)


def others(approvals: int = 1, **more: Any) -> Policy:
    """Plans of T1 and T2 need so many votes of operators other than who wrote them."""
    rules = tuple(
        Rule(tier=tier, approvals=approvals, roles=("operator",), expiry_ms=HOUR, window_ms=30 * MINUTE)
        for tier in ("T0", "T1", "T2", "T3")
    )
    return msgspec.structs.replace(WIDE, **{"people": PEOPLE, "rules": rules, **more})


class Cell:
    """A gate on a small cell in which w0 waits and r0 runs."""

    def __init__(self, policy: Policy) -> None:
        self.engine = Engine.open(None, cell=small_cell(gpu_nodes=8))
        run = workload("r0", gpu=8000, run=100 * HOUR, estimate=100 * HOUR, queue="b")
        self.engine.command(submit(run, workload("w0", count=8, gpu=8000, queue="b")))
        self.clock = Clock(START)
        self.gate = gate_of(self.engine, policy, self.clock)

    def in_force(self, policy: Policy) -> None:
        """As if everybody had voted for it."""
        put_in_force(self.gate, policy)

    def records(self, type_: str) -> list[dict[str, Any]]:
        query = select(record_table.c.body).where(record_table.c.type == type_)
        return [msgspec.json.decode(body) for body in self.engine.recorded(lambda c: c.execute(query).scalars().all())]

    def write(self, statement: Any) -> None:
        """What somebody who has the file may do to it."""
        self.engine.record(lambda connection: connection.execute(statement))

    def approved(self, request: Request = HOLD, by: Actor = BOB) -> Proposal:
        """What only waits for somebody to execute it."""
        shown = self.gate.propose(ANN, msgspec.structs.replace(request, start="asked"))
        self.gate.approve(by, shown.id, shown.digest, YES)
        return self.gate.proposal(shown.id)

    def approve(self, shown: Proposal, by: Actor = BOB) -> Any:
        return self.gate.approve(by, shown.id, shown.digest, YES)

    def paused(self) -> Proposal:
        """Before its second step, which waits for somebody's word."""
        first, second = TWO.steps
        second = msgspec.structs.replace(second, confirm="operator")
        shown = self.gate.propose(ANN, msgspec.structs.replace(TWO, steps=(first, second)))
        self.approve(shown)
        return self.gate.proposal(shown.id)

    def effects(self) -> dict[str, int]:
        return dict(check_agreement(self.engine))


def refused(match: str) -> Any:
    return pytest.raises(RefusedError, match=match)


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Callable[[Policy], Cell]:
    """Makes cells that are closed afterwards."""

    def make(policy: Policy) -> Cell:
        cell = Cell(policy)
        request.addfinalizer(cell.engine.close)
        return cell

    return make


Make = Callable[[Policy], Cell]

# -- votes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", [ANN, VIC, Actor(subject="service:recommender", kind="service", account="unix:9")])
def test_a_vote_that_does_not_count_is_refused_on_record_and_not_kept(made: Make, who: Actor) -> None:
    cell = made(others())
    shown = cell.gate.propose(ANN, HOLD)
    with refused(f"your vote on {shown.id} does not count"):
        cell.approve(shown, by=who)
    assert cell.engine.recorded(lambda c: c.execute(select(VOTE)).all()) == []
    assert [record["actor"]["subject"] for record in cell.records("vote.refused")] == [who.subject]
    assert cell.effects() == {}


def test_a_service_is_told_that_it_is_not_human(made: Make) -> None:
    cell = made(SOLO)
    shown = cell.gate.propose(ME, HOLD)
    with refused("not human: a service never votes"):
        cell.approve(shown, by=Actor(subject=ME.subject, kind="service", account=ME.account))


def test_where_a_yes_must_say_why_an_empty_one_is_refused(made: Make) -> None:
    policy = others()
    cell = made(
        msgspec.structs.replace(policy, rules=tuple(msgspec.structs.replace(r, reason=True) for r in policy.rules))
    )
    shown = cell.gate.propose(ANN, HOLD)
    with refused("an approval needs a reason"):
        cell.gate.approve(BOB, shown.id, shown.digest, "  ")
    assert cell.approve(shown).state == "verified"


def test_votes_fall_with_a_new_revision(made: Make) -> None:
    cell = made(others(approvals=2))
    shown = cell.gate.propose(ANN, HOLD)
    cell.approve(shown, by=BOB)
    revised = cell.gate.revise(ANN, shown.id, steps(("cordon", ("c0",))))
    assert revised.needs == 2
    assert cell.approve(revised, by=CAT).state == "awaiting"
    assert cell.effects() == {}


def test_what_a_service_drafts_is_a_machines_whatever_it_says(made: Make) -> None:
    cell = made(others())
    service = Actor(subject="service:recommender", kind="service", account="unix:9")
    said = msgspec.structs.replace(HOLD, source=Source(kind="operator"))
    assert cell.gate.propose(service, said).plan.origin == "recommender"
    llm = Actor(subject="service:llm-drafter", kind="llm", account="unix:9")
    assert cell.gate.propose(llm, TWO).plan.origin == "model"


def test_the_stricter_of_the_policy_of_then_and_of_now_holds(made: Make) -> None:
    """However lax the one in force has become."""
    cell = made(others(approvals=2))
    shown = cell.gate.propose(ANN, HOLD)
    cell.in_force(others(approvals=2))
    cell.in_force(others(approvals=1, version=2))
    assert cell.approve(shown, by=BOB).state == "awaiting"
    assert cell.approve(shown, by=CAT).state == "verified"
    cell.in_force(others(approvals=2, version=3))
    lax = cell.gate.propose(ANN, steps(("cordon", ("c0",))))
    assert cell.approve(lax, by=BOB).state == "awaiting"


ONE_VOTE = ApprovalNeed(approvals=2, roles=("operator",), expiry_ms=1, window_ms=1, self_ok=True)
AUTHOR = Party(subject="person:otto", kind="human", account="unix:1")


def test_two_votes_that_may_be_of_one_hand_are_one() -> None:
    """Whoever can use ann's account may also be the one who signs there; and one key is one person's, whatever a policy
    that was never checked says."""
    ann, abe, ada = (person(name, "operator") for name in ("ann", "abe", "ada"))
    line = key_of("abe").public.line
    abe, ada = (msgspec.structs.replace(one, keys=(line,)) for one in (abe, ada))
    policy = msgspec.structs.replace(TEAM, people=(ann, abe, ada))
    key = key_of("abe").public.fingerprint

    def vote(who: Person, account: str, key: str = "") -> Vote:
        return Vote(subject=who.subject, kind="human", account=account, verdict="approve", at_ms=0, key=key)

    plain, there = vote(ann, ann.accounts[0]), vote(abe, ann.accounts[0], key)
    assert tally(policy, (plain, vote(abe, abe.accounts[0], key)), AUTHOR, "", ONE_VOTE).missing == 0
    assert tally(policy, (plain, there), AUTHOR, "", ONE_VOTE).missing == 1
    again = vote(ada, ada.accounts[0], key)
    assert tally(policy, (there, again), AUTHOR, "", ONE_VOTE).missing == 1


@pytest.mark.parametrize("machine", [{"origin": "model"}, {"origin": "recommender"}, {"author": "llm"}])
def test_where_a_policy_says_nothing_of_a_tier_a_machines_draft_still_needs_another(machine: Any) -> None:
    silent = msgspec.structs.replace(TEAM, rules=())
    assert need(silent, "T0", "person").self_ok
    assert not need(silent, "T0", **{"origin": "person", **machine}).self_ok


# -- from approved to done --------------------------------------------------------------------------------------------

FROZEN = FreezeSpec(name="night", tier="T0", from_ms=START, until_ms=START + 20 * MINUTE)


def test_a_freeze_stops_the_claim_and_lets_it_go_on_afterwards(made: Make) -> None:
    cell = made(others(freezes=(FROZEN,)))
    shown = cell.gate.propose(ANN, HOLD)
    with refused("in the freeze 'night'"):
        cell.approve(shown)
    assert (cell.gate.proposal(shown.id).state, cell.effects()) == ("approved", {})
    assert len(cell.records("exec.refused")) == 1
    cell.clock.now_ms += 20 * MINUTE
    assert cell.approve(shown).state == "verified"


def test_what_was_approved_and_could_not_begin_in_time_expires(made: Make) -> None:
    cell = made(others(freezes=(FROZEN,)))
    shown = cell.gate.propose(ANN, HOLD)
    with refused("in the freeze"):
        cell.approve(shown)
    cell.clock.now_ms = cell.gate.proposal(shown.id).expires_ms
    with refused("expired"):
        cell.approve(shown)
    assert (cell.gate.proposal(shown.id).state, cell.effects()) == ("expired", {})


def test_a_freeze_stops_the_next_step(made: Make) -> None:
    later = msgspec.structs.replace(FROZEN, from_ms=START + MINUTE)
    cell = made(others(freezes=(later,)))
    shown = cell.paused()
    cell.clock.now_ms += MINUTE
    assert "freeze 'night'" in cell.gate.confirm(BOB, shown.id, "2").waits_for
    assert cell.effects() == {"hold": 1}
    cell.clock.now_ms += 20 * MINUTE
    assert cell.gate.resume(BOB, shown.id).state == "verified"


def test_a_later_step_whose_target_has_changed_is_not_done(made: Make) -> None:
    cell = made(others())
    shown = cell.paused()
    cell.engine.command(RemoveNodes(ids=("c0",)))
    outcome = cell.gate.confirm(BOB, shown.id, "2")
    assert (outcome.state, cell.effects()) == ("paused", {"hold": 1})
    assert "c0" in outcome.waits_for


def test_a_vote_that_counts_no_longer_does_not_begin_a_plan(made: Make) -> None:
    cell = made(others())
    cell.in_force(others())
    shown = cell.approved()
    without_bob = tuple(one for one in PEOPLE if one.id != "bob")
    cell.in_force(others(people=without_bob, version=2))
    with refused("lacks a vote"):
        cell.gate.execute(CAT, shown.id)
    assert (cell.gate.proposal(shown.id).state, cell.effects()) == ("awaiting", {})
    assert cell.gate.approve(CAT, shown.id, shown.digest, YES).state == "approved"
    assert cell.gate.execute(CAT, shown.id).state == "verified"


def test_a_vote_that_counts_no_longer_does_not_carry_a_plan_on(made: Make) -> None:
    cell = made(others())
    cell.in_force(others())
    shown = cell.paused()
    cell.in_force(others(people=tuple(one for one in PEOPLE if one.id != "bob"), version=2))
    assert "no longer counts" in cell.gate.confirm(CAT, shown.id, "2").waits_for
    assert cell.effects() == {"hold": 1}


def test_who_may_only_look_executes_nothing(made: Make) -> None:
    cell = made(others())
    shown = cell.approved()
    with refused("you may not execute"):
        cell.gate.execute(VIC, shown.id)
    assert cell.effects() == {}
    assert [record["data"]["deed"] for record in cell.records("command.refused")] == ["execute"]


def test_a_step_waits_for_its_word(made: Make) -> None:
    cell = made(others())
    shown = cell.paused()
    assert "waits for confirmation" in shown.note
    assert cell.gate.resume(BOB, shown.id).state == "paused", "to go on is not to say go"
    assert cell.effects() == {"hold": 1}
    with refused("you may not confirm"):
        cell.gate.confirm(VIC, shown.id, "2")
    assert cell.gate.confirm(BOB, shown.id, "2").state == "verified"


def test_what_was_undone_while_it_was_paused_is_not_gone_on_from(made: Make) -> None:
    cell = made(others())
    request = steps(("cordon", ("c0",)), ("hold", ("w0",)))
    second = msgspec.structs.replace(request.steps[1], confirm="operator")
    shown = cell.gate.propose(ANN, msgspec.structs.replace(request, steps=(request.steps[0], second)))
    cell.approve(shown)
    cell.engine.command(Uncordon(ids=("c0",)))
    with refused("still not verified"):
        cell.gate.resume(BOB, shown.id)
    assert cell.effects() == {"cordon": 1}


@pytest.mark.parametrize(("on_fail", "state", "effects"), [
    ("pause", "paused", {"cordon": 1}), ("abort", "failed", {"cordon": 1}),
    ("rollback", "rolled_back", {"cordon": 1, "uncordon": 1}),
])  # fmt: skip
def test_a_step_that_is_not_verified_ends_as_it_says(made: Make, on_fail: Any, state: str, effects: Any) -> None:
    cell = made(others())
    wrong = Check(check="node_state", of="c1", op="==", value="cordoned")
    shown = cell.gate.propose(ANN, steps(("cordon", ("c0",)), verify=(wrong,), on_fail=on_fail))
    assert (cell.approve(shown).state, cell.effects()) == (state, effects)


def test_a_tier_that_has_risen_since_makes_a_plan_stale() -> None:
    """Two nodes of 24 are few; of the 12 that are left they are many."""
    pool = PoolSpec(name="p", capacity=Resources(cpu_milli=64_000))
    nodes = tuple(NodeSpec(id=f"n{i}", pool="p") for i in range(24))
    spec = CellSpec(pools=(pool,), nodes=nodes, queues=(QueueSpec(name="q"),), priority_classes=CLASSES)
    with closing(Engine.open(None, cell=spec)) as engine:
        gate = gate_of(engine, WIDE, Clock(START))
        request = msgspec.structs.replace(steps(("cordon", ("n0", "n1"))), start="asked")
        shown = gate.propose(ME, request)
        assert shown.tier == "T1"
        gate.approve(ME, shown.id, shown.digest, YES)
        engine.command(RemoveNodes(ids=tuple(f"n{i}" for i in range(12, 24))))
        with refused("it was T1 and is T2 now"):
            gate.execute(ME, shown.id)
        assert gate.proposal(shown.id).state == "stale"


# -- once -------------------------------------------------------------------------------------------------------------


def test_a_plan_that_is_set_back_in_the_database_is_not_done_again(made: Make) -> None:
    note = Act(action="open_review", targets=("cell",), note=Note(text="look at it"))
    with before_authorisation():
        cell = made(SOLO)
        shown = cell.gate.propose(ME, Request(steps=(StepRequest(act=note),), start="asked"))
        cell.approve(shown, by=ME)
        cell.gate.execute(ME, shown.id)
    set_back = update(PROPOSAL).values(state="approved", cursor=0, executed_ms=0)
    cell.write(set_back)
    cell.gate = gate_of(cell.engine, SOLO, cell.clock)
    with refused("is already done"):
        cell.gate.execute(ME, shown.id)
    cell.write(set_back.values(note="once more"))
    with refused("the row proposal:1 is not as record"):
        cell.gate.execute(ME, shown.id)
    assert len(cell.engine.recorded(lambda c: c.execute(select(REVIEW)).all())) == 1


def test_nothing_but_a_claim_of_what_was_approved_leads_to_executing() -> None:
    assert {edge for edge, to in typed_plan.EDGES.items() if to == "executing"} == {
        ("approved", "claimed"), ("verifying", "continued"), ("paused", "resumed"),
    }  # fmt: skip
    assert {edge for edge, to in typed_plan.EDGES.items() if to == "approved"} == {
        ("awaiting", "approved"), ("awaiting", "broke_glass"),
    }  # fmt: skip
    ends: set[typed_plan.State] = {"rejected", "denied", "superseded", "cancelled", "rolled_back"}
    assert not [edge for edge in typed_plan.EDGES if edge[0] in ends]


def test_a_message_that_is_written_twice_is_one(made: Make) -> None:
    cell = made(SOLO)
    for text in ("first", "again"):
        cell.engine.record(lambda c, text=text: cell.gate.outbox.put(c, "key", 1, "chat", text, START))  # type: ignore[misc]
    assert [row.text for row in cell.engine.recorded(lambda c: c.execute(select(OUTBOX)).all())] == ["first"]


# -- limits -----------------------------------------------------------------------------------------------------------

FEW = msgspec.structs.replace(WIDE.limits, executions_per_hour=ByTier(T0=9, T1=1, T2=9, T3=9))


def test_what_is_approved_and_not_executed_yet_counts_against_the_limits(made: Make) -> None:
    cell = made(others(limits=FEW))
    first = cell.approved()
    with refused("limits.executions_per_hour"):
        cell.gate.propose(ANN, steps(("cordon", ("c0",))))
    cell.gate.execute(BOB, first.id)
    cell.clock.now_ms += HOUR - 1
    with refused("limits.executions_per_hour"):
        cell.gate.propose(ANN, steps(("cordon", ("c0",))))
    cell.clock.now_ms += 1
    assert cell.gate.propose(ANN, steps(("cordon", ("c0",)))).state == "awaiting"


def test_limits_are_looked_at_again_when_it_is_claimed_and_before_each_step(made: Make) -> None:
    """Two plans, each within the limits when it was proposed."""
    cell = made(others(limits=FEW))
    first, second = (
        cell.gate.propose(ANN, steps((action, (id_,)))) for action, id_ in (("hold", "w0"), ("cordon", "c0"))
    )
    cell.approve(first)
    with refused("would exceed the hourly limits"):
        cell.approve(second)
    assert cell.effects() == {"hold": 1}


def test_the_tighter_limits_of_then_and_of_now_hold(made: Make) -> None:
    cell = made(others(limits=FEW))
    cell.in_force(others(limits=FEW))
    first, second = (
        cell.gate.propose(ANN, steps((action, (id_,)))) for action, id_ in (("hold", "w0"), ("cordon", "c0"))
    )
    cell.in_force(others(version=2))
    cell.approve(first)
    with refused("would exceed the hourly limits"):
        cell.approve(second)
    assert cell.effects() == {"hold": 1}


# -- break-glass ------------------------------------------------------------------------------------------------------

WHY = "the cell is on fire and nobody answers"


def test_the_glass_is_broken_by_few_for_one_plan_and_once_until_it_is_reviewed(made: Make) -> None:
    cell = made(others(approvals=2))
    shown = cell.gate.propose(ANN, HOLD)
    for who in (BOB, VIC):
        with refused("you may not use break-glass"):
            cell.gate.break_glass(who, shown.id, shown.digest, WHY)
    with refused("the digest given does not match"):
        cell.gate.break_glass(ANN, shown.id, "0" * 64, WHY)
    with refused("needs a reason"):
        cell.gate.break_glass(ANN, shown.id, shown.digest, "help")
    assert cell.effects() == {}
    assert cell.gate.break_glass(ANN, shown.id, shown.digest, WHY).state == "verified"
    again = cell.gate.propose(ANN, steps(("cordon", ("c0",))))
    with refused("not reviewed yet"):
        cell.gate.break_glass(ANN, again.id, again.digest, WHY)
    with refused("you may not close review 1"):
        cell.gate.close_review(ANN, 1, "all was well with what I did")
    assert cell.effects() == {"hold": 1}
    cell.gate.close_review(CAT, 1, "all was well with what she did")
    assert cell.gate.break_glass(ANN, again.id, again.digest, WHY).state == "verified"


# -- plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_that_was_changed_in_the_database_is_neither_voted_on_nor_executed(made: Make) -> None:
    """Also where the digests beside it were left alone."""
    cell = made(others())
    waits, ready = cell.gate.propose(ANN, steps(("cordon", ("c0",)))), cell.approved()
    for shown in (waits, ready):
        plan = shown.plan.canonical().replace(b'"c0"', b'"c1"').replace(b'"w0"', b'"r0"')
        assert plan_digest(plan) != shown.digest
        cell.write(update(REVISION).where(REVISION.c.number == int(shown.id[2:])).values(plan=plan))
    with refused("is not the one whose digest was shown"):
        cell.approve(waits)
    with refused("is not the one whose digest was shown"):
        cell.gate.execute(BOB, ready.id)
    assert cell.engine.node("c1").state == "ready"
    other = cell.gate.propose(ANN, steps(("cordon", ("c1",))))
    listed = {shown.id: shown for shown in cell.gate.proposals()}
    assert listed[other.id] == other, "one that cannot be read hides the others"
    for shown in (waits, ready):
        found = listed[shown.id]
        assert "is not the one whose digest was shown" in found.note
        assert (found.digest, found.plan.steps, found.steps) == (shown.digest, (), ()), "what was changed is shown"
    assert (listed[waits.id].state, listed[ready.id].state) == ("awaiting", "approved")


def test_a_proposal_is_its_authors_to_revise_and_to_withdraw(made: Make) -> None:
    cell = made(others())
    shown = cell.gate.propose(ANN, HOLD)
    with refused("is person:ann's"):
        cell.gate.revise(BOB, shown.id, steps(("cordon", ("c0",))))
    with refused("you may not withdraw"):
        cell.gate.cancel(VIC, shown.id)
    assert cell.gate.proposal(shown.id).state == "awaiting"
    assert cell.gate.cancel(ANN, shown.id).state == "cancelled"


def test_the_tier_of_a_plan_is_that_of_its_harshest_step_or_of_their_sum(made: Make) -> None:
    gate: Gate = made(SOLO).gate
    mild, harsh = ("cordon", ("c0",)), ("requeue", ("r0",))
    assert [gate.preview(ME, steps(one)).tier for one in (mild, harsh)] == ["T1", "T2"]
    assert gate.preview(ME, steps(mild, harsh)).tier == "T2"
    small = [("cordon", (f"g{i}",)) for i in range(3)]
    together = gate.preview(ME, steps(*small))
    assert ({step.tier for step in together.plan.steps}, together.tier) == ({"T1"}, "T2")
    assert "its steps together take 3 of 8 nodes of gpu" in together.why_tier


def test_what_cannot_be_a_plan_is_refused_before_it_is_one(made: Make) -> None:
    gate: Gate = made(SOLO).gate
    cordon = steps(("cordon", ("c0",)))
    for wrong in ((), (Act(action="uncordon", targets=("c1",)),)):
        with pytest.raises(SpecError, match="rollback"):
            gate.propose(ME, steps(("cordon", ("c0",)), rollback=wrong))
    with refused("exceed its own limits: nodes 1 of at most 0"):
        gate.propose(ME, msgspec.structs.replace(cordon, limits=Limits(nodes=0)))
    unmet = Check(check="node_state", of="c1", op="==", value="cordoned")
    with refused("cannot run now"):
        gate.propose(ME, steps(("cordon", ("c0",)), pre=(unmet,)))
    assert gate.proposals() == ()


def test_everything_that_is_refused_names_what_and_says_what_to_do(made: Make) -> None:
    cell = made(TEAM)
    for call in (
        lambda: cell.gate.propose(VIC, HOLD),
        lambda: cell.gate.execute(ME, "P-1"),
        lambda: cell.gate.vote(ME, "P-x", "", "approve"),
        lambda: cell.gate.close_review(ME, 7, "there is no such review"),
    ):
        with pytest.raises(MusterError) as caught:
            call()
        assert caught.value.problem
        assert caught.value.remedy
