"""What the policy makes of tokens, logins and certificates, of services that submit, and of roles in part of a cell."""

from __future__ import annotations

import msgspec
import pytest

from engine.model.errors import SpecError
from runbooks.gate.approval_policy import (
    SOLO,
    TEAM,
    Grant,
    Policy,
    ServiceIdentity,
    Vote,
    holders,
    may,
    need,
    roles,
    tally,
)
from runbooks.gate.policy_files import read_policy, text_of
from runbooks.gate.policy_versions import _of_account
from runbooks.plans.identity import OWNER, TOKEN, Actor, Scope
from runbooks.plans.typed_plan import Party
from tests.support.people import ALICE, BOB, DAVE, NOW_MS, OTTO, person, team

RESEARCH = Scope(tenants=("research",))
SUE = person("sue", "viewer", scoped=(Grant(roles=("operator",), scope=RESEARCH),))


def by_token(who: str, **more: object) -> Actor:
    found = _of_account(team(ALICE, BOB, DAVE, SUE), f"{TOKEN}person:{who}")
    return msgspec.structs.replace(found, **more)


def test_policies_from_before_services_had_roles_keep_their_digest() -> None:
    for policy in (TEAM, SOLO):
        kept = msgspec.json.decode(policy.canonical())
        assert all(set(service) == {"id", "kind", "accounts"} for service in kept["services"])
        assert msgspec.json.decode(policy.canonical(), type=Policy).digest() == policy.digest()


def test_a_token_stands_for_its_person_while_the_policy_names_them() -> None:
    policy = team(ALICE, DAVE)
    assert holders(policy, "token:person:alice") == (ALICE,)
    assert _of_account(policy, "token:person:alice").subject == "person:alice"
    assert _of_account(policy, "token:person:bob").subject == "token:person:bob"
    assert roles(policy, _of_account(policy, "token:person:bob")) == {"viewer"}
    for made_up in ("token:token:person:alice", "person:alice", "token:alice", "token:person:alice "):
        assert roles(policy, _of_account(policy, made_up)) == {"viewer"}, made_up
    assert roles(TEAM, _of_account(TEAM, f"{TOKEN}{OWNER}")) >= {"admin"}
    assert roles(TEAM, _of_account(TEAM, f"{TOKEN}unix:77")) == {"viewer"}


def test_a_token_gives_what_its_holder_has_in_what_it_is_for() -> None:
    policy = team(ALICE, BOB, DAVE, SUE)
    reader = by_token("alice", deeds=("read",))
    assert "does not allow it" in may(policy, reader, "submit")
    part = by_token("alice", within=RESEARCH)
    assert may(policy, part, "submit", scope=RESEARCH) == ""
    assert may(policy, part, "submit", scope=Scope(tenants=("prod",)))
    assert may(policy, part, "submit", scope=Scope(tenants=("prod", "research")))
    assert may(policy, part, "submit")
    assert may(policy, part, "submit", scope=None) == ""
    # Never more than the holder's own.
    assert may(policy, by_token("sue", deeds=("submit",)), "submit", scope=Scope(tenants=("prod",)))
    assert may(policy, by_token("sue", deeds=("policy",)), "policy")


def test_who_acts_in_part_of_the_cell_may_somewhere_and_not_elsewhere() -> None:
    policy = team(ALICE, DAVE, SUE)
    sue = Actor(subject="person:sue", account="tcp", signed=True)
    assert may(policy, sue, "propose", scope=None) == ""
    assert may(policy, sue, "propose", scope=RESEARCH) == ""
    assert may(policy, sue, "propose")
    assert may(policy, sue, "policy", scope=None)
    assert may(policy, Actor(subject="unix:9", account="unix:9"), "propose", scope=None)


def test_two_tokens_of_one_person_are_one_vote_and_of_two_are_two() -> None:
    policy = team(ALICE, BOB, DAVE)
    author = Party(subject="person:otto", kind="human", account="unix:2006")
    wanted = msgspec.structs.replace(need(policy, "T1", "person"), approvals=2, self_ok=False)

    def vote(who: str, account: str) -> Vote:
        return Vote(subject=f"person:{who}", kind="human", account=account, verdict="approve", at_ms=NOW_MS)

    twice = tally(policy, (vote("alice", "token:person:alice"), vote("alice", "unix:2001")), author, "", wanted)
    assert (twice.counted, twice.missing) == (("person:alice",), 1)
    both = tally(policy, (vote("alice", "token:person:alice"), vote("bob", "token:person:bob")), author, "", wanted)
    assert both.missing == 0
    # By a token of one's own, what one wrote on one's account is one's own still.
    mine = Party(subject="unix:2001", kind="human", account="unix:2001")
    assert tally(policy, (vote("alice", "token:person:alice"),), mine, "", wanted).missing == 2


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ("services: [{id: ci, roles: [operator]}]", "not for a service"),
        ("services: [{id: ci, roles: [approver, submitter]}]", "not for a service"),
        ("services: [{id: ci, kind: llm, roles: [submitter]}]", "not for a service"),
        ("services: [{id: ci, scoped: [{roles: [submitter]}]}]", "lacks a scope"),
        ("services: [{id: ci, accounts: ['cert:dana']}]", "dana's"),
    ],
)
def test_what_no_service_may_be(part: str, problem: str) -> None:
    text = f"""schema: muster-policy/v1
name: a
version: 1
people: [{{id: dana, accounts: ['cert:dana'], roles: [admin]}}]
{part}
"""
    with pytest.raises(SpecError, match=problem):
        read_policy(text.encode(), "policy")


@pytest.mark.parametrize(
    "account",
    [
        "token:person:alice", "cert:", "cert:a b", "cert:-a", "oidc:ftp://x#y", "oidc:https://x", "oidc:https://x#",
        "oidc:https://x#a b", "oidc:https://X.example#a", "oidc:https://user@x#a", "OIDC:https://x#a", "unix:-1",
    ],
)  # fmt: skip
def test_what_is_no_account(account: str) -> None:
    people = f'[{{id: d, roles: [admin], accounts: ["{account}"]}}]'
    text = f"{{schema: muster-policy/v1, name: a, version: 1, people: {people}}}"
    with pytest.raises(SpecError, match="not an account"):
        read_policy(text.encode(), "policy")


def test_a_policy_with_all_of_it_is_written_as_it_was_read() -> None:
    policy = team(
        OTTO, DAVE, person("eve", "submitter"),
        services=(
            ServiceIdentity(id="ci", roles=("submitter",)),
            ServiceIdentity(id="b", scoped=(Grant(roles=("submitter",), scope=RESEARCH),)),
        ),
    )  # fmt: skip
    again = read_policy(text_of(policy).encode(), "policy")
    assert again.services == policy.services
    assert again.people == policy.people
    assert may(again, Actor(subject="service:b", kind="service"), "submit", scope=RESEARCH) == ""
    assert may(again, Actor(subject="service:b", kind="service"), "submit")
    assert may(again, Actor(subject="service:ci", kind="service"), "vote", scope=None)
