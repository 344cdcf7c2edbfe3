"""From one policy to the next: what changes, what of it loosens, who must agree, and what no change may do."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from engine.model.errors import SpecError
from runbooks.people.keys import public_key
from runbooks.plans.amounts import span
from runbooks.plans.typed_plan import TIERS
from runbooks.policy.approval_policy import HOUR_MS, ApprovalNeed, Person, Policy, Rule, stricter
from runbooks.policy.limits import PolicyLimits
from runbooks.policy.queries import PolicyDifference

CHANGE_EXPIRY_MS = 24 * HOUR_MS
"""How long a new policy waits for votes."""


def change_need(policy: Policy) -> ApprovalNeed:
    """What putting another policy in force needs, by the policy that is. Where there are two admins it is the signed
    vote of another admin than its author; where there is one, that of an approver; where there is nobody else, the
    author is alone."""
    admins = [person for person in policy.people if "admin" in person.roles]
    approvers = [person for person in policy.people if "approver" in person.roles and person.keys]
    need = ApprovalNeed(
        approvals=1, roles=("admin",), expiry_ms=CHANGE_EXPIRY_MS, window_ms=0, typed="digest", signed=True
    )
    if len(admins) >= 2:
        return need
    if any(person not in admins for person in approvers):
        return msgspec.structs.replace(need, roles=("approver",))
    return msgspec.structs.replace(need, self_ok=True, signed=any(person.keys for person in admins))


def bindings(policy: Policy) -> dict[str, str]:
    """Fingerprint -> subject, of every key in a policy."""
    return {public_key(line).fingerprint: person.subject for person in policy.people for line in person.keys}


def check_successor(old: Policy, new: Policy, bound: Mapping[str, str]) -> None:
    """Raises SpecError for a policy that may not follow `old`. `bound` has the keys of all policies that were ever in
    force: with the key of one person, nobody else can be made of them."""
    if new.version <= old.version:
        raise SpecError("version", f"{new.version} is not above {old.version}, which is in force", "Count up")
    for fingerprint, subject in bindings(new).items():
        other = bound.get(fingerprint, subject)
        if other != subject:
            mine, theirs = subject.removeprefix("person:"), other.removeprefix("person:")
            raise SpecError(
                "people",
                f"the key {fingerprint[:19]}… of {mine} was {theirs}'s",
                "Keep the id of a person; let another person make a key of their own",
            )


def changes(old: Policy, new: Policy) -> tuple[PolicyDifference, ...]:
    """What a reader of the new one must know, in words that are made from the two policies alone."""
    found: list[PolicyDifference] = []
    if old.mode != new.mode:
        text = "one person may approve everything: no two-person rule" if new.mode == "solo" else "a two-person rule"
        found.append(PolicyDifference(text=f"mode {old.mode} -> {new.mode}: {text}", loosens=new.mode == "solo"))
    _people(old, new, found)
    was_needed, needed = change_need(old), change_need(new)
    if was_needed != needed:
        words = [one.words() for one in (was_needed, needed)]
        text = f"the policy after it needs {words[1]}, where it was {words[0]}"
        found.append(PolicyDifference(text=text, loosens=stricter(was_needed, needed) != needed))
    _rules(old, new, found)
    _limits(old.limits, new.limits, found)
    was, now = {f.name: f for f in old.freezes}, {f.name: f for f in new.freezes}
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            how = "is new" if name not in was else "goes" if name not in now else "changes"
            found.append(PolicyDifference(text=f"freeze {name} {how}", loosens=name in was))
    _services(old, new, found)
    if old.break_glass != new.break_glass:
        looser = (new.break_glass.factor, -new.break_glass.reason_least, new.break_glass.through_freezes) > (
            old.break_glass.factor, -old.break_glass.reason_least, old.break_glass.through_freezes,
        )  # fmt: skip
        silent = bool(set(old.break_glass.channels) - set(new.break_glass.channels))
        found.append(PolicyDifference(text="break-glass changes", loosens=looser or silent))
    if dict(old.channels) != dict(new.channels):
        gone = sorted(set(old.channels) - set(new.channels))
        names = sorted(dict(set(old.channels) ^ set(new.channels)))
        found.append(PolicyDifference(text=f"channels {', '.join(names)} change", loosens=bool(gone)))
    return tuple(found)


def _people(old: Policy, new: Policy, found: list[PolicyDifference]) -> None:
    was, now = {p.id: p for p in old.people}, {p.id: p for p in new.people}
    if not was and now:
        found.append(PolicyDifference(text="people are named: only they act from now on", loosens=False))
    if was and not now:
        found.append(
            PolicyDifference(text="nobody is named: the account that owns the engine may do all", loosens=True)
        )
    for id_ in sorted(was.keys() | now.keys()):
        before, after = was.get(id_), now.get(id_)
        if after is None:
            found.append(PolicyDifference(text=f"{id_} goes", loosens=False))
            continue
        had, has = _rights(before), _rights(after)
        gained, lost = sorted(has - had), sorted(had - has)
        if before is None:
            found.append(PolicyDifference(text=f"{id_} is new: {', '.join(gained) or 'no rights'}", loosens=True))
        elif gained or lost:
            signs = [f"+ {right}" for right in gained] + [f"- {right}" for right in lost]
            found.append(PolicyDifference(text=f"{id_}: {', '.join(signs)}", loosens=bool(gained)))


def _rights(person: Person | None) -> set[str]:
    if person is None:
        return set()
    scoped = {f"{role} of {grant.scope.words()}" for grant in person.scoped for role in grant.roles}
    keys = {f"key {public_key(line).fingerprint[:19]}…" for line in person.keys}
    return {*person.roles, *scoped, *person.accounts, *keys, *(("on call",) if person.on_call else ())}


def _rules(old: Policy, new: Policy, found: list[PolicyDifference]) -> None:
    for tier in TIERS:
        was = {rule.scope.words(): rule for rule in old.rules if rule.tier == tier}
        now = {rule.scope.words(): rule for rule in new.rules if rule.tier == tier}
        for where in sorted(was.keys() | now.keys()):
            before, after = was.get(where), now.get(where)
            of = tier if where == "the cell" else f"{tier} on {where}"
            if before == after:
                continue
            if before is None or after is None:
                word = "has a rule of its own" if before is None else "has no rule of its own any more"
                found.append(PolicyDifference(text=f"{of} {word}", loosens=after is None))
                continue
            found.extend(
                PolicyDifference(text=f"{of}: {what} {_value(a)} -> {_value(b)}", loosens=looser)
                for what, a, b, looser in _rule_changes(before, after)
            )


def _rule_changes(a: Rule, b: Rule) -> list[tuple[str, object, object, bool]]:
    rows: list[tuple[str, object, object, bool]] = [
        ("votes", a.approvals, b.approvals, b.approvals < a.approvals),
        ("roles", a.roles, b.roles, not set(a.roles) <= set(b.roles)),
        ("expiry", span(a.expiry_ms), span(b.expiry_ms), b.expiry_ms > a.expiry_ms),
        ("window", span(a.window_ms), span(b.window_ms), b.window_ms > a.window_ms),
        ("signed", a.signed, b.signed, a.signed and not b.signed),
        ("typed", a.typed, b.typed, a.typed == "digest" != b.typed),
        ("reason", a.reason, b.reason, a.reason and not b.reason),
        ("own plans of", a.self_ok, b.self_ok, not set(b.self_ok) <= set(a.self_ok)),
        ("groups", _groups(a), _groups(b), not set(a.groups) <= set(b.groups)),
    ]
    return [row for row in rows if row[1] != row[2]]


def _groups(rule: Rule) -> tuple[str, ...]:
    return tuple(f"{group.approvals} of {group.name} ({', '.join(group.people)})" for group in rule.groups)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    return str(value)


def _limits(old: PolicyLimits, new: PolicyLimits, found: list[PolicyDifference]) -> None:
    for tier in TIERS:
        a, b = old.executions_per_hour.of(tier), new.executions_per_hour.of(tier)
        if a != b:
            found.append(PolicyDifference(text=f"limits.executions_per_hour of {tier} {a} -> {b}", loosens=b > a))
    for name in PolicyLimits.__struct_fields__:
        a, b = getattr(old, name), getattr(new, name)
        if name != "executions_per_hour" and a != b:
            looser = a is not None and (b is None or b > a)
            shown = ["none" if value is None else f"{value:,}" for value in (a, b)]
            found.append(PolicyDifference(text=f"limits.{name} {shown[0]} -> {shown[1]}", loosens=looser))


def _services(old: Policy, new: Policy, found: list[PolicyDifference]) -> None:
    was, now = {s.id: s for s in old.services}, {s.id: s for s in new.services}
    for id_ in sorted(was.keys() | now.keys()):
        if was.get(id_) != now.get(id_):
            how = "is new" if id_ not in was else "goes" if id_ not in now else "changes"
            found.append(PolicyDifference(text=f"service {id_} {how}", loosens=id_ in now))
