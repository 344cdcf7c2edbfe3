"""Who sees which part of a cell, by the policy and by the token that was shown."""

from __future__ import annotations

import msgspec
import pytest

from engine.model.errors import SpecError
from engine.model.visibility import Visibility, VisiblePart
from runbooks.gate.approval_policy import TEAM, Grant, Membership, Person, Policy, ViewRule, may_log_in, visibility
from runbooks.gate.policy_changes import changes
from runbooks.gate.policy_files import read_policy, text_of
from runbooks.plans.identity import SYSTEM, Actor, Role, Scope

FILE = b"""
schema: muster-policy/v1
name: lab
version: 1
people:
  - {id: dana, accounts: [unix:1001], roles: [admin]}
views:
  - {who: [unix-group:physics, "oidc-group:phys/all", person:ann], tenants: [physics], teams: ["*:vision", "ml:speech"]}
  - {who: [everyone], queues: [shared], own: true}
"""


def policy(*people: Person, views: tuple[ViewRule, ...] = ()) -> Policy:
    return msgspec.structs.replace(TEAM, people=people, views=views or msgspec.UNSET)


def someone(name: str, *roles: Role, **more: object) -> tuple[Person, Actor]:
    account = f"cert:{name}"
    person = Person(id=name, accounts=(account,), roles=roles, **more)  # type: ignore[arg-type]
    return person, Actor(subject=person.subject, account=account)


PHYSICS = ViewRule(who=("unix-group:physics",), tenants=("physics",))
MEMBER = Membership(("ann",), frozenset(("unix-group:physics",)))


def part(**named: object) -> Visibility:
    return Visibility(parts=(VisiblePart(**named),))  # type: ignore[arg-type]


def test_without_views_whoever_may_look_sees_all_but_a_stranger_of_a_provider() -> None:
    assert visibility(policy(), Actor(subject="unix:7", account="unix:7")) is None
    stranger = Actor(subject="oidc:https://id#x", account="token:oidc:https://id#x", groups=("physics",))
    assert visibility(policy(), stranger) == part()


@pytest.mark.parametrize("role", ["operator", "approver", "admin", "auditor"])
def test_who_acts_in_the_whole_cell_sees_all_of_it(role: Role) -> None:
    person, actor = someone("ann", role)
    assert visibility(policy(person, views=(PHYSICS,)), actor, MEMBER) is None
    assert visibility(policy(person, views=(PHYSICS,)), SYSTEM) is None


def test_views_and_roles_in_parts_add_up_and_nothing_is_seen_without() -> None:
    person, actor = someone("ann", "submitter", scoped=(Grant(roles=("approver",), scope=Scope(tenants=("prod",))),))
    own = ViewRule(who=("everyone",), own=True)
    shown = policy(person, views=(PHYSICS, own))
    assert visibility(shown, actor, MEMBER) == part(tenants=("physics", "prod"), teams=(("", "ann"),))
    assert visibility(policy(person, views=(PHYSICS,)), Actor(subject="unix:7", account="unix:7")) == part()


def test_a_token_shows_no_more_than_it_is_for_and_no_more_than_its_holder_sees() -> None:
    person, actor = someone("ann", "operator")
    limited = msgspec.structs.replace(actor, within=Scope(tenants=("a",), queues=("q",)))
    both = (VisiblePart(tenants=("a",)), VisiblePart(queues=("q",)))
    assert visibility(policy(person), limited) == Visibility(parts=both)
    viewer, looking = someone("ben")
    limited = msgspec.structs.replace(looking, within=Scope(tenants=("a",)), groups=("physics",))
    by_group = policy(viewer, views=(ViewRule(who=("oidc-group:physics",), tenants=("physics",)),))
    assert visibility(by_group, limited) == Visibility(parts=(VisiblePart(tenants=("physics",)), both[0]))


def test_a_file_says_views_and_is_written_as_it_was_read() -> None:
    found = read_policy(FILE, "policy")
    assert read_policy(text_of(found).encode(), "again") == found
    assert may_log_in(found, "oidc:https://id#x", ("phys/all",))
    assert not may_log_in(found, "oidc:https://id#x", ("physics",))
    assert msgspec.structs.replace(found, views=msgspec.UNSET).canonical().find(b"views") < 0


@pytest.mark.parametrize(
    "view",
    [
        "{who: [somebody], tenants: [a]}",
        "{who: [], tenants: [a]}",
        "{who: [everyone]}",
        '{who: [everyone], teams: ["vision"]}',
        '{who: [everyone], tenants: ["*"]}',
        '{who: ["unix-group:a\\nb"], tenants: [a]}',
    ],
)
def test_a_view_of_nobody_or_of_nothing_is_refused(view: str) -> None:
    with pytest.raises(SpecError):
        read_policy(FILE + f"  - {view}\n".encode(), "policy")


def test_another_view_loosens_a_policy_and_fewer_do_not() -> None:
    more = ViewRule(who=("everyone",), queues=("q",))
    one, two, none = policy(views=(PHYSICS,)), policy(views=(PHYSICS, more)), policy()
    told = [(each.text, each.loosens) for old, new in ((one, two), (two, one), (one, none), (none, one))
            for each in changes(old, new)]  # fmt: skip
    assert told == [
        ("views change", True), ("views change", False), ("whoever may look sees all work", True),
        ("callers see by views", False),
    ]  # fmt: skip
