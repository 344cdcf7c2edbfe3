"""Breaking the glass: alone, at once, with a reason and a key, in front of everybody, and looked at afterwards."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest
from sqlalchemy import select

from engine.model.commands import Requeue
from engine.model.errors import RefusedError, SpecError
from runbooks.gate.run_limits import FreezeSpec
from runbooks.gate.store import OUTBOX, REVIEW
from runbooks.plans.identity import Actor
from runbooks.plans.typed_plan import Outcome, Proposal, Source, SourceKind
from tests.support.gate_cells import HOUR, MINUTE, START, Clock, Watched, busy_engine
from tests.support.gates import asked
from tests.support.records import records, types
from tests.support.team import Member, account, changed, count, members, put_in_force, team, team_gate

FIRE = "the house is on fire"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watched() -> Watched:
    return Watched(busy_engine())


@pytest.fixture
def of(watched: Watched, clock: Clock) -> dict[str, Member]:
    return members(team_gate(watched, clock, team(channels=(("ops", "log:"),))))


def break_it(member: Member, proposal: Proposal, reason: str = FIRE, **how: object) -> Outcome:
    signed = member.sign(proposal, "approve", "breakglass", forged=how)
    return member.gate.break_glass(member.actor, proposal.id, proposal.digest, reason, signed)


@pytest.mark.parametrize("name", ["sue", "pat"])
def test_an_admin_and_who_is_on_call_may_and_it_leads_to_a_review(
    of: dict[str, Member], watched: Watched, name: str
) -> None:
    proposal = of["ann"].propose("cancel", ["r0"])
    assert break_it(of[name], proposal).state == "verified"
    assert types(watched.engine, of=proposal.id)[3:10] == [
        "breakglass.used", "proposal.broke_glass", "review.opened", "outbox.queued", "proposal.claimed", "exec.effect",
        "proposal.acted",
    ]  # fmt: skip
    [review] = of["cat"].gate.reviews()
    assert (review.subject, review.forced, review.closed_ms) == (f"person:{name}", True, 0)
    told = watched.engine.record(lambda c: c.execute(select(OUTBOX.c.text)).scalars().all())
    assert told == [f"person:{name} used break-glass for {proposal.id}: {proposal.title}"]


def test_the_channels_named_for_it_are_told_and_no_others(watched: Watched, clock: Clock) -> None:
    policy = team(channels=(("ops", "log:"), ("pager", "log:")))
    paging = msgspec.structs.replace(policy.break_glass, channels=("pager",))
    people = members(team_gate(watched, clock, msgspec.structs.replace(policy, break_glass=paging)))
    break_it(people["sue"], people["ann"].propose("cancel", ["r0"]))
    told = watched.engine.record(lambda c: c.execute(select(OUTBOX.c.channel)).scalars().all())
    assert told == ["pager"]


@pytest.mark.parametrize("name", ["ann", "ben", "cat", "eve"])
def test_nobody_else_may(of: dict[str, Member], watched: Watched, name: str) -> None:
    proposal = of["ann"].propose("suspend", ["r0"])
    with pytest.raises(RefusedError, match="neither an admin nor an operator on call"):
        break_it(of[name], proposal)
    assert types(watched.engine, of=proposal.id)[-1] == "breakglass.refused"
    assert watched.executed == []


@pytest.mark.parametrize("reason", ["", "          ", "fire", "a b c d e f"])
def test_it_needs_a_reason(of: dict[str, Member], watched: Watched, reason: str) -> None:
    proposal = of["ann"].propose("suspend", ["r0"])
    with pytest.raises(RefusedError, match="needs a reason"):
        break_it(of["sue"], proposal, reason)
    assert watched.executed == []


def test_a_reason_is_one_printable_line(of: dict[str, Member]) -> None:
    proposal = of["ann"].propose("suspend", ["r0"])
    for reason in ("the house\nis on fire", "\x1b[2J the house", "\u202e the house is", "x" * 501):
        with pytest.raises(SpecError):
            break_it(of["sue"], proposal, reason)


def test_an_account_alone_is_not_enough_for_what_needs_keys(of: dict[str, Member], watched: Watched) -> None:
    sue, gate = of["sue"], of["sue"].gate
    proposal = of["ann"].propose("suspend", ["r0"])
    for signed in (None, sue.sign(proposal), sue.sign(proposal, "approve", "policy")):
        with pytest.raises(RefusedError, match="signed with your own key|not by a key"):  # noqa: RUF043
            gate.break_glass(sue.actor, proposal.id, proposal.digest, FIRE, signed)
    for forged in ({"digest": "0" * 64}, {"cell": "other"}, {"revision": 2}, {"subject": "person:tom"}):
        with pytest.raises(RefusedError, match="signature"):
            break_it(sue, proposal, FIRE, **forged)
    with pytest.raises(RefusedError, match="signature"):
        break_it(Member(gate, "sue", key="mallory"), proposal)
    assert watched.executed == []


def test_a_machine_never_may(of: dict[str, Member], watched: Watched) -> None:
    proposal = of["ann"].propose("suspend", ["r0"])
    for kind in ("service", "llm", "system"):
        machine = Actor(subject="person:sue", kind=kind, account=account("sue"))  # type: ignore[arg-type]
        for signed in (None, of["sue"].sign(proposal, "approve", "breakglass")):
            with pytest.raises(RefusedError):
                of["sue"].gate.break_glass(machine, proposal.id, proposal.digest, FIRE, signed)
    assert watched.executed == []


@pytest.mark.parametrize("kind", get_args(SourceKind))
def test_what_a_machine_drafted_and_is_hard_to_undo_needs_its_votes(
    of: dict[str, Member], watched: Watched, kind: SourceKind
) -> None:
    drafter = Actor(subject="service:llm-drafter", kind="llm", account="unix:7")
    request = msgspec.structs.replace(asked("cancel", ["r0"]), source=Source(kind=kind))
    proposal = of["sue"].gate.propose(drafter, request)
    with pytest.raises(RefusedError, match="machine's draft"):
        break_it(of["sue"], proposal)
    assert watched.executed == []


def test_while_a_review_is_open_the_same_person_may_not_by_any_of_their_names(
    of: dict[str, Member], watched: Watched
) -> None:
    gate = of["sue"].gate
    one, two, three = (of["ann"].propose("suspend", ["r0"]), of["ann"].propose("suspend", ["r1"]),
                       of["ben"].propose("hold", ["w0"]))  # fmt: skip
    by_account = Member(gate, "sue", subject=account("sue"))
    break_it(by_account, one)
    for again in (of["sue"], by_account, Member(gate, "sue", at="tcp")):
        with pytest.raises(RefusedError, match="not reviewed yet"):
            break_it(again, two)
    with pytest.raises(RefusedError, match="not reviewed yet"):
        gate.break_glass(by_account.actor, three.id, three.digest, FIRE)
    assert len(watched.executed) == 1
    assert break_it(of["tom"], two).state == "verified", "another person may"


def test_nobody_closes_their_own_review_by_any_of_their_names(of: dict[str, Member], watched: Watched) -> None:
    gate = of["sue"].gate
    break_it(of["sue"], of["ann"].propose("suspend", ["r0"]))
    [review] = gate.reviews()
    for own in (of["sue"], Member(gate, "sue", subject=account("sue"))):
        with pytest.raises(RefusedError, match="your own action"):
            gate.close_review(own.actor, review.id, "it was quite right")
    for name in ("ann", "eve", "pat"):
        with pytest.raises(RefusedError, match="may not close"):
            gate.close_review(of[name].actor, review.id, "it was quite right")
    with pytest.raises(SpecError, match="too short"):
        gate.close_review(of["cat"].actor, review.id, "ok")
    gate.close_review(of["cat"].actor, review.id, "it was quite right")
    with pytest.raises(RefusedError, match="no open review"):
        gate.close_review(of["dan"].actor, review.id, "it was quite right")
    assert break_it(of["sue"], of["ann"].propose("suspend", ["r1"])).state == "verified"


def test_it_skips_votes_and_freezes_and_nothing_else(of: dict[str, Member], watched: Watched) -> None:
    gate = of["sue"].gate
    gate.policies.freeze(of["sue"].actor, FreezeSpec(name="night", tier="T1", from_ms=START, until_ms=START + HOUR))
    proposal = of["ann"].propose("suspend", ["r0"])
    watched.engine.command(Requeue(ids=("r0",)))
    with pytest.raises(RefusedError, match="stale"):
        break_it(of["sue"], proposal)
    assert gate.proposal(proposal.id).state == "stale"
    assert count(gate, REVIEW) == 1, "it was broken, so it is looked at"
    again = of["ann"].propose("suspend", ["r0"])
    assert break_it(of["tom"], again).state == "verified", "through the freeze"


def test_what_is_denied_stale_expired_or_over_is_not_to_be_had_by_it(
    of: dict[str, Member], watched: Watched, clock: Clock
) -> None:
    gate = of["sue"].gate
    rejected = of["ann"].propose("suspend", ["r0"])
    of["cat"].vote(rejected, "reject")
    late = of["ann"].propose("suspend", ["r1"])
    clock.now_ms = late.expires_ms
    for proposal in (rejected, late):
        with pytest.raises(RefusedError, match="rejected|expired"):  # noqa: RUF043
            break_it(of["sue"], proposal)
    assert watched.executed == []
    assert gate.reviews() == ()


def test_it_is_over_after_half_an_hour_and_a_no_still_stops_it(
    of: dict[str, Member], watched: Watched, clock: Clock
) -> None:
    gate = of["sue"].gate
    strict = msgspec.structs.replace(team().break_glass, through_freezes=False)
    put_in_force(gate, msgspec.structs.replace(team(), version=2, break_glass=strict))
    gate.policies.freeze(of["sue"].actor, FreezeSpec(name="night", tier="T1", from_ms=START, until_ms=START + 8 * HOUR))
    one, two = of["ann"].propose("suspend", ["r0"]), of["ann"].propose("suspend", ["r1"])
    for member, proposal in ((of["sue"], one), (of["tom"], two)):
        with pytest.raises(RefusedError, match="freeze"):
            break_it(member, proposal)
    assert of["cat"].vote(one, "reject").state == "rejected"
    clock.now_ms += 30 * MINUTE
    with pytest.raises(RefusedError, match="expired"):
        gate.execute(of["ann"].actor, two.id)
    assert watched.executed == []


def test_a_new_revision_is_whole_again(of: dict[str, Member], watched: Watched) -> None:
    ann, gate = of["ann"], of["ann"].gate
    proposal = ann.propose("suspend", ["r0"])
    watched.engine.command(Requeue(ids=("r0",)))
    with pytest.raises(RefusedError, match="stale"):
        break_it(of["sue"], proposal)
    revised = gate.revise(ann.actor, proposal.id, asked("suspend", ["r1"]))
    assert (revised.breakglass, revised.state, revised.needs) == (False, "awaiting", 1)
    with pytest.raises(RefusedError):
        gate.execute(ann.actor, proposal.id)
    assert watched.executed == []


def test_who_is_no_admin_any_more_may_not(of: dict[str, Member], watched: Watched) -> None:
    proposal = of["ann"].propose("suspend", ["r0"])
    put_in_force(of["sue"].gate, changed(team(), "pat", on_call=False))
    with pytest.raises(RefusedError, match="neither an admin nor"):
        break_it(of["pat"], proposal)
    assert watched.executed == []
    assert records(watched.engine)[-1]["type"] == "breakglass.refused"
