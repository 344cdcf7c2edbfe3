"""Whose vote counts, on what, and what becomes of it when anything changes meanwhile."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, insert, select

from engine.model.commands import Cancel
from engine.model.errors import NotFoundError, RefusedError, SpecError
from runbooks.gate.approval_policy import Grant, Policy, Scope
from runbooks.gate.store import VOTE
from runbooks.plans.identity import Actor
from runbooks.plans.typed_plan import Proposal
from tests.support.gate_cells import HOUR, MINUTE, Clock, Watched, busy_engine
from tests.support.gates import asked
from tests.support.records import records, types
from tests.support.team import Member, account, changed, count, members, public_key, put_in_force, team, team_gate


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> Watched:
    return Watched(busy_engine())


@pytest.fixture
def of(watched: Watched, clock: Clock) -> dict[str, Member]:
    return members(team_gate(watched, clock))


@pytest.fixture
def suspend(of: dict[str, Member]) -> Proposal:
    """T2: one vote of an approver who is not ann."""
    return of["ann"].propose("suspend", ["r0"])


@pytest.fixture
def cancel(of: dict[str, Member]) -> Proposal:
    """T3: two votes of approvers who are not ben."""
    return of["ben"].propose("cancel", ["r0"])


def refused(member: Member, proposal: Proposal, why: str, **how: Any) -> None:
    """Their yes is refused, for that reason, on record; nothing is kept and nothing is done."""
    gate, engine = member.gate, member.gate._engine
    before, kept = len(records(engine)), count(gate, VOTE)
    signed = how.pop("signed", None) or member.sign(proposal, forged=how.pop("forged", None))
    with pytest.raises(RefusedError, match=why):
        gate.approve(member.actor, proposal.id, proposal.digest, "seen and wanted", signed)
    [record] = records(engine, before)
    assert (record["type"], record["proposal"]) == ("vote.refused", proposal.id)
    assert count(gate, VOTE) == kept
    assert engine.executed == []


def test_an_approver_who_is_not_the_author_is_enough_for_what_disrupts(
    of: dict[str, Member], watched: Watched, suspend: Proposal
) -> None:
    assert of["cat"].yes(suspend).state == "verified"
    assert watched.state_of("r0") == "suspended"
    assert types(watched.engine, of=suspend.id) == [
        "proposal.drafted", "proposal.simulated", "proposal.submitted", "vote.approve", "proposal.approved",
        "proposal.claimed", "exec.effect", "proposal.acted", "exec.verify", "proposal.verified",
    ]  # fmt: skip


def test_what_is_hard_to_undo_needs_two_and_a_reason(of: dict[str, Member], watched: Watched, cancel: Proposal) -> None:
    assert (cancel.tier, cancel.needs) == ("T3", 2)
    with pytest.raises(RefusedError, match="needs a reason"):
        of["cat"].yes(cancel, comment="  ")
    assert of["cat"].yes(cancel).state == "awaiting"
    refused(of["cat"], cancel, "has already voted so")
    assert watched.executed == []
    assert of["dan"].yes(cancel).state == "verified"


@pytest.mark.parametrize("name", ["ann", "eve", "sue", "pat"])
def test_who_is_no_approver_has_no_vote_on_what_disrupts(of: dict[str, Member], suspend: Proposal, name: str) -> None:
    refused(of[name], suspend, r"is not an approver|is the author")


def test_the_author_does_not_count_by_any_of_their_names(of: dict[str, Member], watched: Watched) -> None:
    ben = of["ben"]
    gate = ben.gate
    proposal = ben.propose("suspend", ["r0"])
    refused(ben, proposal, "is the author")
    for other in (
        Member(gate, "ben", key="ben-2"),
        Member(gate, "ben", subject=account("ben")),
        Member(gate, "ben", at="tcp"),
        Member(gate, "ben", at=account("cat")),
    ):
        refused(other, proposal, "is the author")
    by_account = Member(gate, "ben", subject=account("ben")).propose("suspend", ["r1"])
    refused(ben, by_account, "is the author")
    assert watched.executed == []


def test_whoever_asked_for_it_does_not_count(of: dict[str, Member]) -> None:
    ann, gate = of["ann"], of["ann"].gate
    for requester in ("person:cat", "cat", account("cat")):
        proposal = gate.propose(ann.actor, asked("suspend", ["r0"], requester=requester))
        refused(of["cat"], proposal, "asked for it")


@pytest.mark.parametrize("requester", ["nobody", "person:c\u0430t", "Cat", "person:", "cat ", "unix:1", "service:cat"])
def test_a_requester_whom_nobody_knows_is_refused(of: dict[str, Member], requester: str) -> None:
    ann = of["ann"]
    with pytest.raises(SpecError, match="requester"):
        ann.gate.propose(ann.actor, asked("suspend", ["r0"], requester=requester))


def test_a_requester_of_a_machines_draft_counts_as_its_author(of: dict[str, Member]) -> None:
    drafter = Actor(subject="service:llm-drafter", kind="llm", account="unix:7")
    request = asked("hold", ["w0"], requester="person:ann")
    proposal = of["ann"].gate.propose(drafter, request)
    assert (proposal.plan.origin, proposal.self_approvable) == ("model", False)
    refused(of["ann"], proposal, "asked for it")
    assert of["ben"].yes(proposal).state == "verified"


@pytest.mark.parametrize("kind", ["service", "llm", "system"])
def test_only_people_vote(of: dict[str, Member], suspend: Proposal, watched: Watched, kind: Any) -> None:
    gate = of["cat"].gate
    for subject in ("service:recommender", "person:cat", "system"):
        machine = Actor(subject=subject, kind=kind, account=account("cat"), key=of["cat"].sign(suspend).key)
        for signed in (None, of["cat"].sign(suspend)):
            with pytest.raises(RefusedError, match=r"not human|does not vote"):
                gate.approve(machine, suspend.id, suspend.digest, "yes", signed)
    assert watched.executed == []
    assert gate.proposal(suspend.id).votes == ()


def test_an_unsigned_vote_does_not_count_where_it_must_be_signed(
    of: dict[str, Member], suspend: Proposal, watched: Watched
) -> None:
    with pytest.raises(RefusedError, match="not signed with their own key"):
        of["cat"].approve(suspend.id, suspend.digest)
    assert watched.executed == []


def test_one_account_with_two_keys_is_not_two_people(of: dict[str, Member], cancel: Proposal) -> None:
    gate = of["ben"].gate
    refused(Member(gate, "cat", at=account("ben")), cancel, "the author's OS account")
    assert of["cat"].yes(cancel).state == "awaiting"
    refused(Member(gate, "cat", at=account("dan")), cancel, "has already voted so")


FORGERIES: dict[str, dict[str, Any]] = {
    "another digest": {"digest": "0" * 64},
    "another proposal": {"proposal": "P-99"},
    "another revision": {"revision": 2},
    "another verdict": {"verdict": "reject"},
    "for break-glass": {"kind": "breakglass"},
    "for a policy": {"kind": "policy"},
    "for being the author": {"kind": "author"},
    "for another cell": {"cell": "0" * 32},
    "in another's name": {"subject": "person:dan"},
    "in nobody's name": {"subject": "person:mallory"},
    "too old": {"at_ms": 1_800_000_000_000 - 6 * MINUTE},
    "of the future": {"at_ms": 1_800_000_000_000 + 6 * MINUTE},
    "with a nonce that is none": {"nonce": "x"},
}


@pytest.mark.parametrize("fields", FORGERIES.values(), ids=FORGERIES)
def test_a_signature_over_anything_else_is_none(
    of: dict[str, Member], suspend: Proposal, fields: dict[str, Any]
) -> None:
    refused(of["cat"], suspend, r"signature|nonce|no key is enrolled", forged=fields)


def test_a_signature_by_another_key_or_with_its_name_changed_is_none(of: dict[str, Member], suspend: Proposal) -> None:
    cat, dan = of["cat"], of["dan"]
    refused(Member(cat.gate, "cat", key="mallory"), suspend, "not by a key of")
    good = cat.sign(suspend)
    bad = base64.b64encode(bytes(64)).decode()
    for signed in (
        msgspec.structs.replace(good, subject="person:dan"),
        msgspec.structs.replace(good, key=dan.sign(suspend).key),
        msgspec.structs.replace(good, signature=bad),
        msgspec.structs.replace(good, signature="!"),
        msgspec.structs.replace(good, screen="f" * 64),
        msgspec.structs.replace(good, at_ms=good.at_ms + 1),
    ):
        refused(cat, suspend, "signature", signed=signed)
    assert cat.gate.approve(cat.actor, suspend.id, suspend.digest, "yes", good).state == "verified"


def test_a_signature_counts_once(of: dict[str, Member], clock: Clock) -> None:
    """Also after its vote is void: the same plan proposed anew has another id, and the nonce is used up for good."""
    cat, ben, gate = of["cat"], of["ben"], of["cat"].gate
    proposal = ben.propose("cancel", ["r0"])
    signed = cat.sign(proposal)
    gate.vote(cat.actor, proposal.id, proposal.digest, "approve", "yes, really", signed)
    gate.vote(cat.actor, proposal.id, proposal.digest, "abstain", "", cat.sign(proposal, "abstain"))
    refused(cat, proposal, "used before", signed=signed)
    again = ben.propose("cancel", ["r0"], "once more")
    assert again.digest != proposal.digest
    refused(cat, again, "signature", signed=signed)


def test_a_vote_binds_to_the_digest_that_was_shown(of: dict[str, Member], watched: Watched) -> None:
    one, other = of["ann"].propose("suspend", ["r0"]), of["ann"].propose("suspend", ["r1"])
    cat = of["cat"]
    for digest in ("", one.digest[:6], one.digest[:-1], one.digest.upper(), one.digest + "0", other.digest, "\0"):
        with pytest.raises(RefusedError, match="digest"):
            cat.gate.approve(cat.actor, one.id, digest, "yes", cat.sign(one))
    assert watched.executed == []


def test_a_revision_voids_votes_and_what_was_signed_for_the_one_before(of: dict[str, Member], watched: Watched) -> None:
    ben, cat, dan = of["ben"], of["cat"], of["dan"]
    first = ben.propose("cancel", ["r0"])
    cat.yes(first)
    late = dan.sign(first)
    second = ben.gate.revise(ben.actor, first.id, asked("cancel", ["r1"]))
    assert (second.id, second.revision, second.votes, second.needs) == (first.id, 2, (), 2)
    assert second.digest != first.digest
    with pytest.raises(RefusedError, match="digest"):
        ben.gate.approve(dan.actor, first.id, first.digest, "yes", late)
    refused(dan, second, "signature", signed=late)
    assert dan.yes(second).state == "awaiting"
    assert watched.executed == []


def test_only_its_author_revises_it(of: dict[str, Member], suspend: Proposal) -> None:
    for name in ("ben", "cat", "sue"):
        with pytest.raises(RefusedError):
            of[name].gate.revise(of[name].actor, suspend.id, asked("suspend", ["r1"]))
    assert of["ann"].gate.proposal(suspend.id) == suspend


def test_any_no_of_one_who_might_say_yes_ends_it(of: dict[str, Member], cancel: Proposal, watched: Watched) -> None:
    of["cat"].yes(cancel)
    assert of["dan"].vote(cancel, "reject").state == "rejected"
    for name in ("cat", "dan"):
        with pytest.raises(RefusedError, match="rejected"):
            of[name].yes(cancel)
    with pytest.raises(RefusedError, match="rejected"):
        of["ben"].gate.execute(of["ben"].actor, cancel.id)
    assert watched.executed == []


def test_no_of_one_who_has_no_say_changes_nothing(of: dict[str, Member], cancel: Proposal) -> None:
    for name in ("eve", "sue"):
        with pytest.raises(RefusedError, match="no role"):
            of[name].vote(cancel, "reject")
    assert of["ben"].gate.proposal(cancel.id).state == "awaiting"


def test_who_abstains_takes_their_yes_back(of: dict[str, Member], cancel: Proposal, watched: Watched) -> None:
    of["cat"].yes(cancel)
    assert of["cat"].vote(cancel, "abstain").needs == 2
    of["dan"].yes(cancel)
    assert watched.executed == []
    with pytest.raises(RefusedError, match="may not be given"):
        of["eve"].vote(cancel, "abstain")


@pytest.mark.parametrize("verdict", ["yes", "APPROVE", "", "approve ", None])
def test_a_verdict_that_is_none_is_no_yes(of: dict[str, Member], watched: Watched, verdict: Any) -> None:
    proposal = of["ann"].propose("hold", ["w0"])
    with pytest.raises(SpecError, match="verdict"):
        of["ann"].gate.vote(of["ann"].actor, proposal.id, proposal.digest, verdict)
    assert of["ann"].gate.proposal(proposal.id).votes == ()


def test_a_vote_of_one_who_is_no_approver_any_more_does_not_count(
    of: dict[str, Member], cancel: Proposal, watched: Watched
) -> None:
    gate = of["cat"].gate
    of["cat"].yes(cancel)
    put_in_force(gate, changed(team(), "cat", roles=("operator",)))
    assert of["dan"].yes(cancel).state == "awaiting"
    shown = gate.proposal(cancel.id)
    assert shown.needs == 1
    assert {line.subject: line.counts for line in shown.votes}["person:cat"].startswith("is not an approver")
    assert watched.executed == []


@pytest.mark.parametrize("how", [{"roles": ("operator",)}, {"keys": ()}])
def test_a_vote_that_falls_between_approval_and_execution_stops_it(
    of: dict[str, Member], watched: Watched, how: dict[str, Any]
) -> None:
    ann, gate = of["ann"], of["ann"].gate
    request = msgspec.structs.replace(asked("suspend", ["r0"]), start="asked")
    proposal = gate.propose(ann.actor, request)
    assert of["cat"].yes(proposal).state == "approved"
    put_in_force(gate, changed(team(), "cat", **how))
    with pytest.raises(RefusedError, match="no longer counts"):
        gate.execute(ann.actor, proposal.id)
    assert gate.proposal(proposal.id).state == "awaiting"
    assert watched.executed == []
    put_in_force(gate, msgspec.structs.replace(team(), version=3))
    assert watched.executed == [], "the role came back: that alone carries nothing out"
    assert of["cat"].yes(proposal).state == "approved", "it counts again when it is said again"


def test_a_signed_vote_that_was_written_into_the_database_by_hand_does_not_count(
    of: dict[str, Member], cancel: Proposal, watched: Watched
) -> None:
    """Who can write the database has no key: a row with a signature that is another's, or none, is no vote."""
    cat, gate = of["cat"], of["cat"].gate
    cat.vote(cancel)
    row = watched.engine.record(lambda c: dict(c.execute(select(VOTE)).mappings().one()))
    for forged in (row["signed"], None):
        values = row | {"id": row["id"] + 1, "subject": "person:dan", "account": account("dan"), "signed": forged}
        values["key"] = public_key("dan").fingerprint
        watched.engine.record(lambda c, values=values: c.execute(insert(VOTE).values(**values)))
        shown = gate.proposal(cancel.id)
        assert (shown.needs, shown.votes[-1].counts) == (1, "is not signed with their own key")
        watched.engine.record(lambda c: c.execute(delete(VOTE).where(VOTE.c.subject == "person:dan")))
    assert of["dan"].yes(cancel).state == "verified"


def two_for_t1() -> Policy:
    """As the team has it, but nobody approves even what can be taken back alone."""
    rules = tuple(
        msgspec.structs.replace(rule, approvals=2, self_ok=()) if rule.tier == "T1" else rule for rule in team().rules
    )
    return team(rules=rules)


def test_a_looser_policy_with_votes_in_flight_changes_nothing_for_them(watched: Watched, clock: Clock) -> None:
    of = members(team_gate(watched, clock, two_for_t1()))
    proposal = of["ann"].propose("hold", ["w0"])
    assert of["ben"].yes(proposal).state == "awaiting"
    put_in_force(of["ben"].gate, msgspec.structs.replace(team(), version=2))
    refused(of["ann"], proposal, "is the author")
    assert of["ann"].gate.proposal(proposal.id).needs == 1
    assert of["ann"].yes(of["ann"].propose("hold", ["w1"])).state == "verified", "what is proposed now goes by it"
    assert of["pat"].yes(proposal).state == "verified"


def test_a_stricter_policy_with_votes_in_flight_is_what_counts(
    of: dict[str, Member], suspend: Proposal, watched: Watched
) -> None:
    rules = tuple(msgspec.structs.replace(rule, approvals=2) for rule in team().rules)
    put_in_force(of["cat"].gate, msgspec.structs.replace(team(), version=2, rules=rules))
    assert of["cat"].yes(suspend).state == "awaiting"
    assert of["dan"].yes(suspend).state == "verified"


def test_votes_come_too_late_after_expiry_and_the_window_of_execution_is_its_own(
    of: dict[str, Member], watched: Watched, clock: Clock
) -> None:
    ann, gate = of["ann"], of["ann"].gate
    late = ann.propose("suspend", ["r0"])
    request = msgspec.structs.replace(asked("suspend", ["r1"]), start="asked")
    in_time = gate.propose(ann.actor, request)
    clock.now_ms = late.expires_ms - 1
    of["cat"].yes(in_time)
    clock.now_ms += 1
    with pytest.raises(RefusedError, match="expired"):
        of["cat"].yes(late)
    assert gate.proposal(in_time.id).expires_ms == late.expires_ms - 1 + 30 * MINUTE
    clock.now_ms = gate.proposal(in_time.id).expires_ms
    with pytest.raises(RefusedError, match="expired"):
        gate.execute(ann.actor, in_time.id)
    assert watched.executed == []


@pytest.mark.parametrize("name", ["eve", "sue"])
def test_execution_is_for_those_who_may(of: dict[str, Member], watched: Watched, name: str) -> None:
    gate = of["ann"].gate
    request = msgspec.structs.replace(asked("suspend", ["r0"]), start="asked")
    proposal = gate.propose(of["ann"].actor, request)
    of["cat"].yes(proposal)
    before = len(records(watched.engine))
    for deed in (gate.execute, gate.rollback):
        with pytest.raises(RefusedError, match="you may not"):
            deed(of[name].actor, proposal.id)
    assert [one["type"] for one in records(watched.engine, before)] == ["command.refused"] * 2
    assert watched.executed == []


def test_nothing_is_executed_that_is_not_approved_by_any_way_in(of: dict[str, Member], watched: Watched) -> None:
    """Group I, I01: every call there is, by everybody."""
    gate = of["ann"].gate
    proposal = of["ann"].propose("suspend", ["r0"])
    for member in of.values():
        for call in (
            lambda a: gate.execute(a, proposal.id),
            lambda a: gate.resume(a, proposal.id),
            lambda a: gate.resume(a, proposal.id, accept=True),
            lambda a: gate.confirm(a, proposal.id, "1"),
            lambda a: gate.rollback(a, proposal.id),
            lambda a: gate.pause(a, proposal.id),
            lambda a: gate.approve(a, proposal.id, proposal.digest, "yes, of course"),
        ):
            with pytest.raises(RefusedError):
                call(member.actor)
    gate.tick()
    assert gate.proposal(proposal.id).state == "awaiting"
    assert watched.executed == []


def test_another_persons_proposal_is_not_withdrawn_by_who_has_no_say(of: dict[str, Member], suspend: Proposal) -> None:
    with pytest.raises(RefusedError, match="may not withdraw"):
        of["eve"].gate.cancel(of["eve"].actor, suspend.id)
    assert of["ann"].gate.cancel(of["ann"].actor, suspend.id).state == "cancelled"
    with pytest.raises(RefusedError, match="cancelled"):
        of["cat"].yes(suspend)


def test_asking_for_the_same_does_not_replace_what_somebody_else_asked_for(of: dict[str, Member]) -> None:
    theirs = of["ann"].propose("suspend", ["r0"])
    of["ben"].propose("suspend", ["r0"])
    assert of["ann"].gate.proposal(theirs.id).state == "awaiting"


def test_a_person_out_of_scope_has_no_vote(watched: Watched, clock: Clock) -> None:
    scoped = (Grant(roles=("approver",), scope=Scope(queues=("other",))),)
    of = members(team_gate(watched, clock, changed(team(), "cat", roles=(), scoped=scoped)))
    proposal = of["ann"].propose("drain", ["n0"])
    refused(of["cat"], proposal, "is not an approver for everything this touches")
    watched.engine.command(Cancel(ids=("w0", "w1")))
    assert of["dan"].yes(proposal).state in ("verifying", "verified")


def test_an_unknown_proposal_is_unknown_to_every_call(of: dict[str, Member]) -> None:
    cat, gate = of["cat"], of["cat"].gate
    for id_ in ("P-7", "P-01", "", "../P-1", "P-1\n"):
        for call in (
            lambda i: gate.vote(cat.actor, i, "0" * 64, "approve"),
            lambda i: gate.execute(cat.actor, i),
            lambda i: gate.rollback(cat.actor, i),
            lambda i: gate.break_glass(cat.actor, i, "0" * 64, "the house is on fire"),
            lambda i: gate.revise(of["ann"].actor, i, asked("hold", ["w0"])),
            gate.proposal,
        ):
            with pytest.raises(NotFoundError):
                call(id_)


def test_a_vote_that_is_given_by_account_and_by_name_is_one(watched: Watched, clock: Clock) -> None:
    """Where signatures are not asked for, one person has one vote by whatever way they come."""
    of = members(team_gate(watched, clock, two_for_t1()))
    gate = of["ben"].gate
    proposal = of["ann"].propose("hold", ["w0"])
    assert gate.approve(of["ben"].actor, proposal.id, proposal.digest).state == "awaiting"
    by_account = Member(gate, "ben", subject=account("ben"))
    for signed in (None, by_account.sign(proposal)):
        with pytest.raises(RefusedError):
            gate.approve(by_account.actor, proposal.id, proposal.digest, "again", signed)
        assert watched.executed == []
    clock.now_ms += HOUR
    assert gate.approve(of["pat"].actor, proposal.id, proposal.digest).state == "verified"
