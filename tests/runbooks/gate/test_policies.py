"""How a policy comes into force: by the votes the present one asks for, on record, and never for plans in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, insert, select, update

from engine.control import Engine
from engine.model.errors import NotFoundError, RefusedError, SpecError
from runbooks.audit.log import Audit, record_table
from runbooks.gate.approval_policy import (
    SOLO,
    TEAM,
    ApprovalNeed,
    Candidate,
    Person,
    Policy,
    PolicyChange,
    PolicyVote,
    need,
    stricter,
)
from runbooks.gate.policy_changes import NONCE, VERSION, caller_of, change_need, changes, check, two_people, view_of
from runbooks.gate.policy_versions import Policies
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.identity import OWNER, TCP, THIS_ACCOUNT, Actor, AuthRefused, Scope, Signed
from runbooks.plans.keys import signed_by
from tests.support.people import ALICE, BOB, CAROL, DAVE, ERIN, FAITH, NOW_MS, OTTO, actor, key_of, person, sign, team

pytestmark = pytest.mark.both_databases

OWNER_HERE = Actor(subject=OWNER, account=OWNER)
HOUR = 3_600_000


class Clock:
    """Stands still until told."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


class Cell:
    """Policies of a cell kept in memory, with people."""

    def __init__(self, default: Policy = TEAM) -> None:
        self.engine = Engine.open(None)
        self.clock = Clock()
        self.audit = Audit(self.engine, self.clock)
        self.policies = Policies(self.engine, self.audit, self.clock, default)
        self.id = self.engine.record(self.policies.cell)

    @property
    def current(self) -> Policy:
        return self.engine.record(self.policies.current)

    def records(self) -> list[str]:
        return self.engine.record(lambda c: list(c.execute(select(record_table.c.type)).scalars()))

    def newest(self, type_: str) -> dict[str, Any]:
        query = select(record_table.c.body).where(record_table.c.type == type_).order_by(record_table.c.seq.desc())
        body = self.engine.record(lambda c: c.execute(query).scalars().first())
        found: dict[str, Any] = msgspec.json.decode(body)["data"]
        return found

    def sign(self, who: Person, candidate: Candidate, verdict: str = "approve", **more: Any) -> Signed:
        more = {"cell": self.id, "at_ms": self.clock.now_ms, **more}
        return sign(
            who, kind="policy", proposal=candidate.id, revision=candidate.revision, digest=candidate.digest,
            verdict=verdict, **more,
        )  # fmt: skip

    def propose(self, who: Person, text: str) -> Candidate:
        return self.policies.propose(actor(who), PolicyChange(text=text))

    def vote(self, who: Person, candidate: Candidate, verdict: Any = "approve", signed: bool = True) -> Candidate:
        proof = self.sign(who, candidate, verdict) if signed else None
        vote = PolicyVote(candidate=candidate.id, digest=candidate.digest, verdict=verdict, signed=proof)
        return self.policies.vote(actor(who), vote)

    def settle(self, *people: Person, more: str = "") -> Policy:
        """The owner names people."""
        made = self.policies.propose(OWNER_HERE, PolicyChange(text=text_of(*people, more=more)))
        self.policies.vote(OWNER_HERE, PolicyVote(candidate=made.id, digest=made.digest))
        return self.current


def text_of(*people: Person, version: int = 1, more: str = "") -> str:
    """A policy file that names them."""
    lines = ["schema: muster-policy/v1", "name: team-a", f"version: {version}", "people:"]
    for each in people:
        keys = ", ".join(each.keys)
        lines.append(
            f"  - {{id: {each.id}, accounts: [{', '.join(each.accounts)}], keys: [{keys}], roles: "
            f"[{', '.join(each.roles)}]}}"
        )
    return "\n".join([*lines, more]) + "\n"


STAFF = (ALICE, BOB, CAROL, DAVE, ERIN)


@pytest.fixture
def cell() -> Cell:
    found = Cell()
    found.settle(*STAFF)
    return found


def test_the_owner_alone_puts_the_first_policy_in_force_and_the_record_says_so() -> None:
    cell = Cell()
    assert cell.current == TEAM
    policy = cell.settle(*STAFF)
    assert (policy.version, len(policy.people)) == (1, 5)
    assert cell.newest("policy.changed")["alone"] is True
    assert cell.records().count("key.enrolled") == 5
    with pytest.raises(RefusedError, match="may not change"):
        cell.policies.propose(OWNER_HERE, PolicyChange(text=text_of(*STAFF, version=2)))


def test_an_author_takes_their_own_back_and_proposes_it_again(cell: Cell) -> None:
    made = cell.propose(DAVE, text_of(*STAFF, version=2))
    with pytest.raises(RefusedError, match=f"muster policy approve {made.id}, or muster policy reject {made.id}"):
        cell.propose(DAVE, text_of(*STAFF, version=2))
    assert cell.vote(DAVE, made, "reject", signed=False).state == "rejected"
    assert cell.propose(DAVE, text_of(*STAFF, version=2)).state == "awaiting"


def test_another_admin_must_agree_to_the_next_and_sign(cell: Cell) -> None:
    made = cell.propose(DAVE, text_of(*STAFF, version=2))
    assert (made.state, made.needs, made.signed, made.alone) == ("awaiting", 1, True, False)
    for who, signed in ((DAVE, True), (DAVE, False), (ERIN, False), (ALICE, True), (FAITH, False)):
        with pytest.raises(RefusedError):
            cell.vote(who, made, signed=signed)
    with pytest.raises(RefusedError, match="does not count"):
        cell.policies.vote(OWNER_HERE, PolicyVote(candidate=made.id, digest=made.digest))
    assert cell.current.version == 1
    assert cell.vote(ERIN, made).state == "in_force"
    assert cell.current.version == 2
    assert cell.newest("policy.changed")["alone"] is False
    kept = cell.newest("policy.vote")["signed"]
    assert kept["subject"] == "person:erin"
    assert cell.records()[-1] == "policy.changed"


def test_where_there_is_one_admin_an_approver_must_agree() -> None:
    cell = Cell()
    cell.settle(ALICE, BOB, DAVE)
    made = cell.propose(DAVE, text_of(ALICE, DAVE, version=2))
    with pytest.raises(RefusedError):
        cell.vote(DAVE, made)
    assert cell.vote(BOB, made).state == "in_force"


def test_who_is_alone_goes_alone_and_it_is_said() -> None:
    cell = Cell()
    cell.settle(person("dave", "admin", "operator", uid=2004))
    made = cell.propose(DAVE, text_of(DAVE, version=2))
    assert made.alone
    with pytest.raises(RefusedError, match="signed"):
        cell.vote(DAVE, made, signed=False)
    assert cell.vote(DAVE, made).state == "in_force"
    assert cell.newest("policy.changed")["alone"] is True


@pytest.mark.parametrize(
    "text",
    [
        text_of(DAVE, version=2),  # sole admin: its author
        text_of(person("dave", "admin", "approver", "operator", uid=2004), version=2, more="mode: solo"),
        text_of(*STAFF, version=2, more="mode: solo\n"),
        text_of(*STAFF, version=2, more="limits: {nodes_permille: 500, workloads_per_hour: 1000000}"),
        text_of(*STAFF, person("eve", "admin", "approver", uid=2004), version=2),
    ],
)
def test_no_policy_brings_about_its_own_approval(cell: Cell, text: str) -> None:
    made = cell.propose(DAVE, text)
    assert any(change.loosens for change in made.changes)
    for who in (DAVE, person("eve", "admin", uid=2004)):
        with pytest.raises(RefusedError):
            cell.vote(who, made)
    assert cell.current.version == 1


def test_a_built_in_policy_is_put_to_the_vote_like_any_other(cell: Cell) -> None:
    made = cell.policies.propose(actor(DAVE), PolicyChange(built_in="solo"))
    with pytest.raises(RefusedError):
        cell.vote(DAVE, made)
    cell.vote(ERIN, made)
    assert (cell.current.mode, cell.current.people) == ("solo", cell.policies.latest().people)
    assert need(cell.current, "T3", "person").self_ok
    with pytest.raises(NotFoundError):
        cell.policies.propose(actor(DAVE), PolicyChange(built_in="anarchy"))
    with pytest.raises(SpecError):
        cell.policies.propose(actor(DAVE), PolicyChange())


def test_alone_one_goes_solo_in_two_steps() -> None:
    cell = Cell()
    made = cell.policies.propose(OWNER_HERE, PolicyChange(built_in="solo"))
    assert made.alone
    cell.policies.vote(OWNER_HERE, PolicyVote(candidate=made.id, digest=made.digest))
    assert cell.current.mode == "solo"


def test_a_key_stays_its_persons_for_good(cell: Cell) -> None:
    alias = Person(id="alicia", accounts=("unix:2099",), keys=ALICE.keys, roles=("approver",))
    with pytest.raises(SpecError, match="was alice's"):
        cell.propose(DAVE, text_of(BOB, CAROL, DAVE, ERIN, alias, version=2))
    cell.vote(ERIN, cell.propose(DAVE, text_of(BOB, CAROL, DAVE, ERIN, version=2)))
    assert cell.newest("key.revoked")["of"] == "person:alice"
    with pytest.raises(SpecError, match="was alice's"):
        cell.propose(DAVE, text_of(BOB, CAROL, DAVE, ERIN, alias, version=3))
    cell.propose(DAVE, text_of(*STAFF, version=3))


def test_an_admin_who_lost_a_key_proposes_the_next_from_their_own_account(cell: Cell) -> None:
    dave = msgspec.structs.replace(DAVE, keys=(key_of("dave", 1).public.line,))
    made = cell.policies.propose(actor(DAVE), PolicyChange(text=text_of(ALICE, BOB, CAROL, dave, ERIN, version=2)))
    assert cell.vote(ERIN, made).state == "in_force"
    assert {cell.newest("key.revoked")["key"], cell.newest("key.enrolled")["key"]} == {
        key_of("dave", number).public.fingerprint for number in (0, 1)
    }


def test_versions_count_up(cell: Cell) -> None:
    for version in (0, 1):
        with pytest.raises(SpecError, match="version"):
            cell.propose(DAVE, text_of(*STAFF, version=version))


def test_one_that_came_second_falls(cell: Cell) -> None:
    first = cell.propose(DAVE, text_of(*STAFF, version=2))
    second = cell.propose(ERIN, text_of(ALICE, BOB, DAVE, ERIN, version=3))
    cell.vote(ERIN, first)
    with pytest.raises(RefusedError, match="superseded"):
        cell.vote(DAVE, second)
    assert cell.current.version == 2
    assert view_of(cell.policies, THIS_ACCOUNT).candidates == ()


def test_one_made_for_another_built_in_policy_falls() -> None:
    cell = Cell(TEAM)
    made = cell.policies.propose(OWNER_HERE, PolicyChange(text=text_of(*STAFF)))
    other = Policies(cell.engine, cell.audit, cell.clock, SOLO)
    with pytest.raises(RefusedError, match="no longer in force"):
        other.vote(OWNER_HERE, PolicyVote(candidate=made.id, digest=made.digest))


def test_what_waits_too_long_expires_also_when_the_clock_is_set_back(cell: Cell) -> None:
    made = cell.propose(DAVE, text_of(*STAFF, version=2))
    for moved in (24 * HOUR, -HOUR):
        cell.clock.now_ms = NOW_MS + moved
        assert view_of(cell.policies, THIS_ACCOUNT).candidates == ()
        with pytest.raises(RefusedError, match="expired"):
            cell.vote(ERIN, made)
    assert cell.current.version == 1


def test_a_vote_is_given_once_and_a_no_ends_it(cell: Cell) -> None:
    made = cell.propose(DAVE, text_of(*STAFF, version=2))
    with pytest.raises(RefusedError, match="digest"):
        cell.vote(ERIN, msgspec.structs.replace(made, digest="0" * 64))
    assert cell.vote(ERIN, made, "reject").state == "rejected"
    with pytest.raises(RefusedError, match="is rejected"):
        cell.vote(ERIN, made)
    for unknown in ("policy-99", "policy-", "P-1", "policy--1", "policy-１", "policy-1e9", ""):
        with pytest.raises(NotFoundError):
            cell.vote(ERIN, msgspec.structs.replace(made, id=unknown))


def test_a_change_of_the_policy_never_loosens_what_is_in_flight(cell: Cell) -> None:
    was = cell.current
    cell.vote(ERIN, cell.policies.propose(actor(DAVE), PolicyChange(built_in="solo")))
    in_flight = stricter(need(was, "T3", "person"), need(cell.current, "T3", "person"))
    assert (in_flight.approvals, in_flight.self_ok, in_flight.signed) == (2, False, True)
    assert cell.engine.record(lambda c: cell.policies.get(c, was.digest())) == was


def test_every_version_is_kept_and_what_was_changed_outside_changes_nothing(cell: Cell) -> None:
    was = cell.current
    with pytest.raises(NotFoundError):
        cell.engine.record(lambda c: cell.policies.get(c, "0" * 64))
    loose = msgspec.structs.replace(was, mode="solo")
    for body in (loose.canonical(), b"{}", b"\xff"):
        cell.engine.record(lambda c, body=body: c.execute(update(VERSION).values(body=body)))
        other = Policies(cell.engine, cell.audit, cell.clock)
        assert cell.engine.record(other.current) == was
        assert cell.engine.record(lambda c, other=other: other.get(c, was.digest())) == was


def test_a_row_that_no_vote_put_among_the_versions_is_not_the_policy_in_force(cell: Cell) -> None:
    was = cell.current
    loose = msgspec.structs.replace(SOLO, version=9)
    values = {"digest": loose.digest(), "version": 9, "body": loose.canonical(), "text": b"", "at_ms": 1, "by": "x"}
    cell.engine.record(lambda c: c.execute(insert(VERSION).values(**values)))
    for policies in (cell.policies, Policies(cell.engine, cell.audit, cell.clock)):
        assert cell.engine.record(policies.current) == was
    cell.engine.record(lambda c: c.execute(delete(VERSION)))
    assert cell.engine.record(Policies(cell.engine, cell.audit, cell.clock).current) == was


def test_it_is_all_there_after_a_restart(tmp_path: Any) -> None:
    path = tmp_path / "journal.db"
    clock = Clock()

    def opened() -> tuple[Engine, Policies]:
        engine = Engine.open(path)
        return engine, Policies(engine, Audit(engine, clock), clock)

    engine, policies = opened()
    made = policies.propose(OWNER_HERE, PolicyChange(text=text_of(*STAFF)))
    policies.vote(OWNER_HERE, PolicyVote(candidate=made.id, digest=made.digest))
    policies.freeze(actor(ALICE), FreezeSpec(name="f", weekly=("daily 22:00 - 06:00",)))
    identity, kept = engine.record(policies.cell), policies.latest()
    engine.close()
    engine, policies = opened()
    assert policies.latest() == kept
    assert engine.record(policies.cell) == identity
    assert [spec.name for spec in engine.record(policies.freezes)] == ["f"]
    engine.close()


# -- who it is --------------------------------------------------------------------------------------------------------


def authenticate(cell: Cell, who: Actor, signed: Signed, **other: Any) -> Actor:
    known: dict[str, Any] = {"kind": "vote", "proposal": "P-1", "revision": 1, "digest": "d", "verdict": "approve"}
    return cell.engine.record(
        lambda c: cell.policies.authenticated(c, who, signed, now_ms=cell.clock.now_ms, **{**known, **other})
    )


def test_a_signature_proves_a_person_once(cell: Cell) -> None:
    here = Actor(subject=TCP, account=TCP)
    signed = sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d")
    proved = authenticate(cell, here, signed)
    assert proved == Actor(subject="person:alice", account=TCP, signed=True, key=key_of("alice").public.fingerprint)
    with pytest.raises(AuthRefused, match="used before"):
        authenticate(cell, here, signed)
    cell.clock.now_ms -= HOUR
    with pytest.raises(AuthRefused):
        authenticate(cell, here, signed)


def test_what_another_transaction_undid_does_not_use_a_signature_up(cell: Cell) -> None:
    signed = sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d")

    def fails(connection: Any) -> None:
        cell.policies.authenticated(
            connection, actor(ALICE), signed, kind="vote", proposal="P-1", revision=1, digest="d", verdict="approve",
            now_ms=NOW_MS,
        )  # fmt: skip
        raise RefusedError("later", "")

    with pytest.raises(RefusedError, match="later"):
        cell.engine.record(fails)
    assert cell.engine.record(lambda c: c.execute(select(NONCE)).all()) == []
    assert authenticate(cell, actor(ALICE), signed).signed


FOREIGN: list[Callable[[Cell], Signed]] = [
    lambda cell: sign(ALICE, cell="another cell", proposal="P-1", revision=1, digest="d"),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-2", revision=1, digest="d"),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-1", revision=2, digest="d"),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="e"),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d", verdict="reject"),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d", kind="author"),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d", at_ms=NOW_MS - HOUR),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d", key=key_of("bob")),
    lambda cell: sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d", key=key_of("alice", 1)),
    lambda cell: sign("mallory", cell=cell.id, proposal="P-1", revision=1, digest="d"),
    lambda cell: msgspec.structs.replace(
        sign(BOB, cell=cell.id, proposal="P-1", revision=1, digest="d"), subject="person:alice"
    ),
    lambda cell: signed_by(key_of("alice"), kind="vote", subject="alice", at_ms=NOW_MS, cell=cell.id),
]


def test_forged_foreign_and_stale_signatures_prove_nobody(cell: Cell) -> None:
    for make in FOREIGN:
        with pytest.raises(AuthRefused):
            authenticate(cell, actor(ALICE), make(cell))


def test_a_machine_cannot_hand_in_what_a_person_signed(cell: Cell) -> None:
    signed = sign(ALICE, cell=cell.id, proposal="P-1", revision=1, digest="d")
    kinds: tuple[Any, ...] = ("service", "llm", "system")
    for kind in kinds:
        with pytest.raises(AuthRefused, match="not human"):
            authenticate(cell, Actor(subject="service:llm-drafter", kind=kind, account="unix:1"), signed)


def test_a_request_is_its_accounts_or_its_signers(cell: Cell) -> None:
    policies = cell.policies
    assert policies.identified("unix:2001").subject == "person:alice"
    assert policies.identified("unix:2001", "person:alice").subject == "person:alice"
    assert policies.identified(TCP).subject == TCP
    assert policies.identified("unix:4711").subject == "unix:4711"
    for account, claimed in (("unix:2001", "person:bob"), (TCP, "person:alice"), ("unix:9", "person:nobody")):
        with pytest.raises(AuthRefused, match="not signed"):
            policies.identified(account, claimed)
    assert cell.records().count("auth.refused") == 3
    signed = sign(BOB, cell=cell.id, kind="author", digest="r", verdict="")
    found = policies.identified("unix:2001", "person:bob", signed, "r")
    assert (found.subject, found.account, found.signed) == ("person:bob", "unix:2001", True)
    with pytest.raises(AuthRefused, match="used before"):
        policies.identified("unix:2001", "person:bob", signed, "r")
    other = sign(BOB, cell=cell.id, kind="author", digest="r", verdict="")
    with pytest.raises(AuthRefused):
        policies.identified("unix:2001", "person:bob", other, "another request")


def test_a_shared_account_is_nobody_until_somebody_signs() -> None:
    cell = Cell()
    ann = person("ann", "operator", uid=2001)
    cell.settle(ALICE, ann, DAVE)
    assert cell.policies.identified("unix:2001").subject == "unix:2001"
    with pytest.raises(AuthRefused):
        cell.policies.identified("unix:2001", "person:ann")
    known = caller_of(cell.policies, cell.policies.identified("unix:2001"))
    assert (known.shared_with, known.roles) == (("alice", "ann"), ("viewer",))


def test_the_account_of_a_service_is_that_service() -> None:
    cell = Cell()
    cell.settle(*STAFF, more="services: [{id: drafter-1, kind: llm, accounts: [unix:998]}]")
    assert cell.policies.identified("unix:998") == Actor(subject="service:drafter-1", kind="llm", account="unix:998")


# -- freezes by hand --------------------------------------------------------------------------------------------------


def test_who_acts_may_freeze_and_only_an_admin_or_the_setter_thaws(cell: Cell) -> None:
    night = FreezeSpec(name="night", weekly=("daily 22:00 - 06:00",))
    with pytest.raises(RefusedError, match="may not freeze"):
        cell.policies.freeze(Actor(subject="unix:9", account="unix:9"), night)
    cell.policies.freeze(actor(ALICE), night)
    with pytest.raises(RefusedError, match="already"):
        cell.policies.freeze(actor(BOB), night)
    with pytest.raises(RefusedError, match="may not thaw"):
        cell.policies.thaw(actor(BOB), "night")
    cell.policies.thaw(actor(ALICE), "night")
    with pytest.raises(NotFoundError):
        cell.policies.thaw(actor(DAVE), "night")
    cell.policies.freeze(actor(BOB), night)
    cell.policies.thaw(actor(DAVE), "night")
    assert cell.records()[-4:] == ["freeze.set", "freeze.ended", "freeze.set", "freeze.ended"]
    with pytest.raises(SpecError):
        cell.policies.freeze(actor(BOB), FreezeSpec(name="w"))
    with pytest.raises(SpecError, match="past"):
        cell.policies.freeze(actor(BOB), FreezeSpec(name="w", from_ms=1, until_ms=2))


def test_freezes_that_are_over_leave_room_for_others(cell: Cell) -> None:
    for number in range(100):
        cell.policies.freeze(actor(ALICE), FreezeSpec(name=f"f{number}", from_ms=1, until_ms=NOW_MS + HOUR))
    with pytest.raises(RefusedError, match="100 freezes"):
        cell.policies.freeze(actor(ALICE), FreezeSpec(name="one-more", from_ms=1, until_ms=NOW_MS + HOUR))
    cell.clock.now_ms += HOUR
    cell.policies.freeze(actor(ALICE), FreezeSpec(name="f1", from_ms=1, until_ms=NOW_MS + 2 * HOUR))
    assert [spec.name for spec in cell.engine.record(cell.policies.freezes)] == ["f1"]


def test_a_freeze_of_the_policy_is_not_thawed_by_hand() -> None:
    cell = Cell()
    cell.settle(*STAFF, more="freezes: [{name: weekend, weekly: [fri 16:00 - mon 08:00]}]")
    with pytest.raises(RefusedError, match="is the policy's"):
        cell.policies.thaw(actor(DAVE), "weekend")
    with pytest.raises(RefusedError, match="already"):
        cell.policies.freeze(actor(DAVE), FreezeSpec(name="weekend", weekly=("daily 01:00 - 02:00",)))


# -- words ------------------------------------------------------------------------------------------------------------


def test_the_product_says_what_its_two_person_rule_is_worth() -> None:
    assert "no two-person rule holds" in two_people(SOLO)
    assert "nothing of T2 or T3 can be approved" in two_people(TEAM)
    assert "cannot give a true two-person rule" in two_people(team(ALICE, person("ann", "approver", uid=2001), DAVE))
    assert "dave has no OS account" in two_people(team(ALICE, person("dave", "admin")))
    assert "root" in two_people(team())


def test_a_view_shows_what_counts_and_hides_the_secrets_of_addresses() -> None:
    cell = Cell()
    cell.settle(*STAFF, more='channels: {ops: "webhook:https://example.com/hook/s3cret?token=abc"}')
    view = view_of(cell.policies, THIS_ACCOUNT)
    assert view.channels == (("ops", "webhook:https://example.com/…"),)
    assert view.people[0][:3] == ("alice", "operator, approver", "unix:2001")
    assert [tier for tier, _ in view.rules] == ["T0", "T0 of a machine", "T1", "T1 of a machine", "T2", "T3"]
    found = check(cell.policies, actor(ALICE), text_of(ALICE, DAVE, ERIN, version=2))
    assert found.roles == ("approver", "operator", "viewer")
    assert {change.text for change in found.changes} == {"bob goes", "carol goes", "channels ops change"}
    assert cell.current.version == 1


def test_what_loosens_is_told_from_what_does_not() -> None:
    def loosens(new: Policy) -> list[bool]:
        return [change.loosens for change in changes(team(), new)]

    assert changes(team(), team()) == ()
    assert loosens(team(*STAFF[1:])) == [False] * 3
    assert loosens(team(*STAFF, OTTO, FAITH, person("zed", "viewer", uid=1))) == [True]
    assert loosens(team(limits=msgspec.structs.replace(TEAM.limits, workloads_per_hour=1))) == [False]
    assert loosens(team(limits=msgspec.structs.replace(TEAM.limits, workloads_per_hour=501))) == [True]
    assert loosens(team(freezes=(FreezeSpec(name="f", from_ms=1, until_ms=2, scope=Scope()),))) == [False]
    slower = (*TEAM.rules[:3], msgspec.structs.replace(TEAM.rules[3], approvals=3))
    assert loosens(team(rules=slower)) == [False]
    assert [c.loosens for c in changes(team(rules=slower), team())] == [True]


def test_who_must_agree_follows_from_who_there_is() -> None:
    def wanted(*people: Person) -> ApprovalNeed:
        return change_need(team(*people))

    assert (wanted(DAVE, ERIN).roles, wanted(DAVE, ERIN).self_ok) == (("admin",), False)
    assert (wanted(DAVE, ALICE).roles, wanted(DAVE, ALICE).self_ok) == (("approver",), False)
    assert wanted(DAVE, person("x", "approver", uid=1, keys=0)).self_ok
    assert change_need(TEAM).self_ok
    assert not change_need(TEAM).signed
