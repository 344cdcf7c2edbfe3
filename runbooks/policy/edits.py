"""Files of policies that are written here: of one that is built in, and with one person more or less."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import yaml

from engine.model.errors import NotFoundError, SpecError
from runbooks.plans.amounts import span
from runbooks.policy.approval_policy import Person, Policy, Rule, Service
from runbooks.policy.freezes import FreezeSpec
from runbooks.policy.limits import PolicyLimits
from runbooks.policy.queries import PolicyView
from runbooks.untrusted.strict_yaml import load


def with_person(
    view: PolicyView,
    id_: str,
    *,
    accounts: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    roles: tuple[str, ...] = (),
    name: str = "",
) -> str:
    """The text of the next version, in which that person has these accounts, keys and roles besides what they have."""
    file = _next(view)
    people: list[dict[str, Any]] = file.setdefault("people", [])
    found = next((person for person in people if person.get("id") == id_), None)
    if found is None:
        found = {"id": id_}
        people.append(found)
    if name:
        found["name"] = name
    for field, given in (("accounts", accounts), ("keys", keys), ("roles", roles)):
        there = found.setdefault(field, [])
        there.extend(value for value in dict.fromkeys(given) if value not in there)
    if not any((accounts, keys, roles, name)):
        raise SpecError("operator", f"nothing is given to {id_[:40]!a}", "Give --account, --key or --role")
    return _text(file)


def without_person(view: PolicyView, id_: str) -> str:
    """The text of the next version, which does not name that person. Raises NotFoundError."""
    file = _next(view)
    people = file.get("people", [])
    if all(person.get("id") != id_ for person in people):
        raise NotFoundError(f"the policy names no {id_[:40]!a}", "See `muster operator list`")
    file["people"] = [person for person in people if person.get("id") != id_]
    return _text(file)


def text_of(policy: Policy) -> str:
    """A file that says what the policy says, every value written out."""
    file: dict[str, Any] = {
        "schema": policy.schema, "name": policy.name, "version": policy.version, "mode": policy.mode,
        "people": [_holder(person) for person in policy.people],
        "services": [_holder(service) for service in policy.services],
        "approvals": [_rule(rule) for rule in policy.rules],
        "limits": _limits(policy.limits),
        "freezes": [_freeze(freeze) for freeze in policy.freezes],
        "break_glass": msgspec.to_builtins(policy.break_glass),
        "channels": dict(policy.channels),
    }  # fmt: skip
    return _text({key: value for key, value in file.items() if value != []})


def _given(value: msgspec.Struct) -> dict[str, Any]:
    """Its fields, without those that say nothing."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    empty: tuple[Any, ...] = ("", (), [], {})
    return {
        name: field for name, field in fields.items() if field not in empty and field is not None and field is not False
    }


def _holder(of: Person | Service) -> dict[str, Any]:
    scoped = [{"roles": list(grant.roles), **_given(grant.scope)} for grant in of.scoped or ()]
    return {**_given(of), **({"scoped": scoped} if scoped else {})}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "tier": rule.tier, **_given(rule.scope), "approvals": rule.approvals, "roles": list(rule.roles),
        "expiry": span(rule.expiry_ms), "window": span(rule.window_ms), "signed": rule.signed, "typed": rule.typed,
        "reason": rule.reason, "own_plans_of": list(rule.self_ok),
        **({"groups": msgspec.to_builtins(rule.groups)} if rule.groups else {}),
    }  # fmt: skip


def _limits(limits: PolicyLimits) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(limits)
    cost = fields.pop("cost_microusd_hour")
    if cost is not None:
        fields["cost_usd_hour"] = f"{cost // 1_000_000}.{cost % 1_000_000:06d}"
    return fields


def _freeze(freeze: FreezeSpec) -> dict[str, Any]:
    given = _given(freeze)
    scope = given.pop("scope", {})
    for field, name in (("from_ms", "from"), ("until_ms", "until")):
        if field in given:
            given[name] = datetime.fromtimestamp(given.pop(field) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**given, **{what: names for what, names in scope.items() if names}}


def _next(view: PolicyView) -> dict[str, Any]:
    """The file of the policy in force, one version up."""
    file: dict[str, Any] = load(view.text.encode(), "the policy in force")
    file["version"] = view.version + 1
    return file


def _text(file: dict[str, Any]) -> str:
    written: str = yaml.safe_dump(file, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None)
    return written
