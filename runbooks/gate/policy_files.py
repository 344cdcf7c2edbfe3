"""Policy files: strict YAML read into a policy, the checks that no policy gets round, and files written with one person
more or less.

    schema: muster-policy/v1
    name: cell-a
    version: 1
    people:
      - {id: alice, accounts: [unix:1000], keys: [ssh-ed25519 AAAA… alice], roles: [operator, approver]}
    approvals:
      - {tier: T3, tenants: [prod], approvals: 3}

A value that is left out is that of the built-in policy of the file's mode. docs/approval.md has every key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import yaml

from engine.model.errors import NotFoundError, SpecError
from engine.model.quantities import duration_ms, money_microusd
from engine.model.specs import check_id
from runbooks.gate.approval_policy import (
    BUILT_IN,
    MAX_OWN,
    OWN_ACTIONS,
    OWN_SERVICE,
    SERVICE_ROLES,
    ApprovalNeed,
    ApproverGroup,
    BreakGlass,
    Grant,
    Mode,
    OwnWork,
    Person,
    Policy,
    PolicyView,
    Rule,
    ServiceIdentity,
    Typed,
    ViewRule,
    floor_of,
)
from runbooks.gate.run_limits import ByTier, FreezeSpec, PolicyLimits, check_freeze, moment_ms
from runbooks.plans.amounts import span
from runbooks.plans.identity import TCP, Role, Scope
from runbooks.plans.keys import public_key
from runbooks.plans.typed_plan import TIERS, Origin, Tier
from runbooks.untrusted.stranger_texts import skeleton, why_confusing
from runbooks.untrusted.strict_formats import load, read

ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
ACCOUNT = re.compile(
    r"tcp|unix:(?:0|[1-9][0-9]{0,9})"
    r"|cert:[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?"
    r"|slack:[A-Z0-9]{1,32}/[A-Z0-9]{1,32}"
    r"|slurm:[A-Za-z_][A-Za-z0-9_.-]{0,31}"
    r"|oidc:https?://[a-z0-9.-]+(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]{0,200})?#[!-~]{1,255}"
)
_PERCENT = re.compile(r"([0-9]{1,2})(?:\.([0-9]))?%", re.ASCII)
VIEWER = re.compile(
    rf"everyone|unix-group:[A-Za-z0-9_][A-Za-z0-9_.@ -]{{0,63}}|oidc-group:[!-~]{{1,255}}"
    rf"|(?:person|service):{ID.pattern}|{ACCOUNT.pattern}"
)
RESERVED = frozenset((
    "all", "any", "anybody", "anyone", "everybody", "everyone", "nobody", "none", "person", "service", "system", "tcp",
    "unix", "owner", "muster", "llm",
))  # fmt: skip
"""No id of a person: read in a sentence it would mean somebody else, or everybody."""
HUMAN_ROLES: frozenset[Role] = frozenset(("viewer", "submitter", "operator", "approver", "admin", "auditor"))
MAX_PEOPLE = 500
MAX_RULES = 100
MAX_OF_ONE = 16
"""Accounts, keys or parts of the cell of one person."""
MAX_EXECUTIONS = 10_000


class _Grant(msgspec.Struct, forbid_unknown_fields=True):
    roles: tuple[Role, ...]
    pools: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()


class _Person(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    name: str = ""
    accounts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    scoped: tuple[_Grant, ...] = ()
    on_call: bool = False


class _Service(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    kind: Literal["service", "llm"] = "service"
    accounts: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    scoped: tuple[_Grant, ...] = ()


class _Rule(msgspec.Struct, forbid_unknown_fields=True):
    tier: Tier
    pools: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    approvals: int | None = None
    roles: tuple[Role, ...] | None = None
    expiry: str | None = None
    window: str | None = None
    signed: bool | None = None
    typed: Typed | None = None
    reason: bool | None = None
    own_plans_of: tuple[Origin, ...] | None = None
    groups: tuple[ApproverGroup, ...] = ()


class _Limits(msgspec.Struct, forbid_unknown_fields=True):
    executions_per_hour: dict[Tier, int] = {}
    nodes: int | str | None = None
    gpus: int | str | None = None
    nodes_permille: int | None = None
    nodes_least: int | None = None
    gpus_permille: int | None = None
    gpus_least: int | None = None
    workloads_per_hour: int | None = None
    cost_usd_hour: str | int | None = None
    proposals_per_author_hour: int | None = None


class _Freeze(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    name: str
    tier: Tier = "T1"
    pools: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    weekly: tuple[str, ...] = ()
    zone: str = "UTC"
    from_: str = ""
    until: str = ""
    reason: str = ""


class _View(msgspec.Struct, forbid_unknown_fields=True):
    who: tuple[str, ...]
    tenants: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    own: bool = False


class _File(msgspec.Struct, forbid_unknown_fields=True):
    schema: Literal["muster-policy/v1"]
    name: str
    version: int
    mode: Mode = "team"
    people: tuple[_Person, ...] = ()
    services: tuple[_Service, ...] | None = None
    approvals: tuple[_Rule, ...] = ()
    limits: _Limits | None = None
    freezes: tuple[_Freeze, ...] = ()
    break_glass: BreakGlass | None = None
    views: tuple[_View, ...] = ()
    channels: dict[str, str] = {}
    own_work: OwnWork | Literal["none"] | msgspec.UnsetType = msgspec.UNSET


def read_policy(data: bytes, name: str) -> Policy:
    """The policy that a file says. Raises SpecError naming the line of what is not YAML or of another shape, or the
    field that says what no policy may say."""
    return check_policy(_policy(read(data, name).convert(_File)))


def _policy(file: _File) -> Policy:
    base = BUILT_IN[file.mode]
    own_work = base.own_work if file.own_work is msgspec.UNSET else file.own_work
    return Policy(
        name=file.name,
        version=file.version,
        mode=file.mode,
        people=tuple(_person(person) for person in file.people),
        services=base.services if file.services is None else tuple(map(_service, file.services)),
        rules=_rules(base, file.approvals),
        limits=base.limits if file.limits is None else _limits(base.limits, file.limits),
        freezes=tuple(_freeze(freeze, f"freezes[{i}]") for i, freeze in enumerate(file.freezes)),
        break_glass=base.break_glass if file.break_glass is None else file.break_glass,
        views=tuple(map(_view, file.views)) or msgspec.UNSET,
        channels=tuple(sorted(file.channels.items())),
        own_work=msgspec.UNSET if own_work == "none" else own_work,
    )


def _view(view: _View) -> ViewRule:
    return ViewRule(who=view.who, tenants=view.tenants, teams=view.teams, queues=view.queues, own=view.own)


def _person(person: _Person) -> Person:
    scoped = tuple(Grant(roles=grant.roles, scope=_scope(grant)) for grant in person.scoped)
    return Person(
        id=person.id, name=person.name, accounts=person.accounts, keys=person.keys, roles=person.roles, scoped=scoped,
        on_call=person.on_call,
    )  # fmt: skip


def _service(service: _Service) -> ServiceIdentity:
    scoped = tuple(Grant(roles=grant.roles, scope=_scope(grant)) for grant in service.scoped)
    return ServiceIdentity(
        id=service.id, kind=service.kind, accounts=service.accounts, roles=service.roles or msgspec.UNSET,
        scoped=scoped or msgspec.UNSET,
    )  # fmt: skip


def _scope(given: _Grant | _Rule | _Freeze) -> Scope:
    return Scope(pools=given.pools, queues=given.queues, tenants=given.tenants)


def _rules(base: Policy, given: Iterable[_Rule]) -> tuple[Rule, ...]:
    """The rule of each tier, changed where the file says so, and then those of parts of the cell."""
    found = {rule.tier: rule for rule in base.rules}
    parts: list[Rule] = []
    seen: set[tuple[Tier, Scope]] = set()
    for i, rule in enumerate(given):
        where, scope = f"approvals[{i}]", _scope(rule)
        if (rule.tier, scope) in seen:
            raise SpecError(where, f"{rule.tier} already has such a rule", "Merge the two")
        seen.add((rule.tier, scope))
        made = _rule(found[rule.tier], rule, scope, where)
        if scope == Scope():
            found[rule.tier] = made
        else:
            parts.append(made)
    return (*(found[tier] for tier in TIERS), *parts)


def _rule(base: Rule, given: _Rule, scope: Scope, where: str) -> Rule:
    changed: dict[str, Any] = {"scope": scope, "groups": given.groups}
    for field in ("approvals", "roles", "signed", "typed", "reason"):
        if getattr(given, field) is not None:
            changed[field] = getattr(given, field)
    for field in ("expiry", "window"):
        if getattr(given, field) is not None:
            changed[f"{field}_ms"] = _duration(getattr(given, field), f"{where}.{field}")
    if given.own_plans_of is not None:
        changed["self_ok"] = given.own_plans_of
    return msgspec.structs.replace(base, **changed)


def _limits(base: PolicyLimits, given: _Limits) -> PolicyLimits:
    most = {tier: base.executions_per_hour.of(tier) for tier in TIERS} | given.executions_per_hour
    changed: dict[str, Any] = {"executions_per_hour": ByTier(**most)}
    for field in PolicyLimits.__struct_fields__:
        value = getattr(given, field, None)
        if field != "executions_per_hour" and value is not None:
            changed[field] = value
    for what in ("nodes", "gpus"):
        changed |= _share_or_number(what, getattr(given, what), changed)
    if given.cost_usd_hour is not None:
        try:
            changed["cost_microusd_hour"] = money_microusd(given.cost_usd_hour)
        except ValueError as error:
            raise SpecError("limits.cost_usd_hour", str(error), "") from None
    return msgspec.structs.replace(base, **changed)


def _share_or_number(what: str, given: int | str | None, besides: Mapping[str, object]) -> dict[str, int]:
    """`nodes: 10%` is a share of each pool, rounded down, and never below one; `nodes: 3` is that many of each pool.
    So are `gpus` of the cell, where a share stays above the least number of the built-in policy."""
    if given is None:
        return {}
    where, share, least = f"limits.{what}", f"{what}_permille", f"{what}_least"
    if share in besides or least in besides:
        raise SpecError(where, f"is given besides {share} or {least}", "Give one of the two")
    if isinstance(given, int):
        return {share: 0, least: given}
    found = _PERCENT.fullmatch(given)
    if found is None:
        raise SpecError(where, f"{given[:20]!a} is neither a share nor a number", "Write 10% or 3")
    return {share: int(found[1]) * 10 + int(found[2] or 0)} | ({least: 1} if what == "nodes" else {})


def _freeze(given: _Freeze, where: str) -> FreezeSpec:
    given_ends = (("from", given.from_), ("until", given.until))
    ends = [moment_ms(text, f"{where}.{of}") if text else None for of, text in given_ends]
    return FreezeSpec(
        name=given.name, tier=given.tier, scope=_scope(given), weekly=given.weekly, zone=given.zone, from_ms=ends[0],
        until_ms=ends[1], reason=given.reason,
    )  # fmt: skip


def _duration(text: str, where: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise SpecError(where, str(error), "") from None


# -- what no policy gets round ----------------------------------------------------------------------------------------


def check_policy(policy: Policy) -> Policy:
    """The policy again, if it may be one. Raises SpecError naming the field."""
    _check_id(policy.name, "name")
    if not 1 <= policy.version < 2**31:
        raise SpecError("version", f"{policy.version} is not a version", "Count from 1")
    _check_people(policy.people)
    _check_services(policy)
    for i, rule in enumerate(policy.rules):
        _check_rule(policy, rule, f"approvals, {rule.tier}{'' if i < len(TIERS) else ' on part of the cell'}")
    _check_limits(policy.limits)
    _check_own_work(policy)
    _check_freezes(policy.freezes)
    _check_views(policy.views or ())
    _check_channels(policy)
    return policy


def _check_people(people: tuple[Person, ...]) -> None:
    _check_count(people, MAX_PEOPLE, "people")
    whose_key: dict[bytes, str] = {}
    for i, person in enumerate(people):
        where = f"people[{i}]"
        _check_id(person.id, f"{where}.id")
        if person.id in RESERVED:
            raise SpecError(f"{where}.id", f"'{person.id}' is not a person's name", "Use a person's name")
        if person.name:
            confusing = why_confusing(person.name)
            if confusing or len(person.name) > 64:
                raise SpecError(f"{where}.name", confusing or "is longer than 64 characters", "Use plain one-line text")
        for what, given in (("accounts", person.accounts), ("keys", person.keys), ("scoped", person.scoped)):
            _check_count(given, MAX_OF_ONE, f"{where}.{what}")
        _check_accounts(person.accounts, f"{where}.accounts")
        for k, line in enumerate(person.keys):
            key = public_key(line, f"{where}.keys[{k}]")
            if key.raw in whose_key:
                raise SpecError(
                    f"{where}.keys[{k}]", f"is already the key of {whose_key[key.raw]}", "One key, one person"
                )
            whose_key[key.raw] = person.id
        _check_roles(person.roles, f"{where}.roles")
        for g, grant in enumerate(person.scoped):
            _check_roles(grant.roles, f"{where}.scoped[{g}].roles")
            _check_grant(grant, f"{where}.scoped[{g}]")
            if "admin" in grant.roles or "auditor" in grant.roles:
                raise SpecError(
                    f"{where}.scoped[{g}].roles", "admin and auditor apply to the whole cell", "Use `roles`"
                )
    _check_distinct(((person.id, person.name) for person in people), "people")
    if people:
        _check_admins(people)


def _check_grant(grant: Grant, where: str) -> None:
    _check_scope(grant.scope, where)
    if grant.scope == Scope() or not grant.roles:
        raise SpecError(where, "lacks a scope or a role", "Use `roles` for all of it")


def _check_admins(people: tuple[Person, ...]) -> None:
    admins = [person for person in people if "admin" in person.roles]
    if not admins:
        raise SpecError("people", "no admin: the policy could never be changed again", "Make somebody an admin")
    if len(admins) > 1 and sum(bool(person.keys) for person in admins) < 2:
        raise SpecError(
            "people", "fewer than two admins have a key, so no next policy could be approved",
            "Enrol their keys: `muster policy operator new-key`",
        )  # fmt: skip
    for i, person in enumerate(people):
        if TCP in person.accounts and {"approver", "admin"}.intersection(person.roles) and not person.keys:
            raise SpecError(
                f"people[{i}]", "anybody over TCP would be an approver or admin without proof", "Enrol a key"
            )


def _check_services(policy: Policy) -> None:
    _check_count(policy.services, MAX_PEOPLE, "services")
    _check_distinct(((service.id, "") for service in policy.services), "services")
    taken = {account: person.id for person in policy.people for account in person.accounts}
    for i, service in enumerate(policy.services):
        _check_id(service.id, f"services[{i}].id")
        if service.id == OWN_SERVICE:
            raise SpecError(f"services[{i}].id", f"{OWN_SERVICE} is what Muster itself reports as", "Choose another id")
        _check_accounts(service.accounts, f"services[{i}].accounts")
        for account in service.accounts:
            if account in taken:
                raise SpecError(
                    f"services[{i}].accounts",
                    f"{account} is {taken[account]}'s",
                    "Give each service an account of its own",
                )
            taken[account] = service.id
        _check_service_roles(service, f"services[{i}]")


def _check_service_roles(service: ServiceIdentity, where: str) -> None:
    _check_count(service.scoped or (), MAX_OF_ONE, f"{where}.scoped")
    given = [(service.roles or (), f"{where}.roles")]
    for g, grant in enumerate(service.scoped or ()):
        _check_grant(grant, f"{where}.scoped[{g}]")
        given.append((grant.roles, f"{where}.scoped[{g}].roles"))
    for roles, at in given:
        odd = sorted(set(roles) - SERVICE_ROLES)
        if odd or (roles and service.kind == "llm"):
            raise SpecError(at, f"{', '.join(odd) or 'a model'} is not for a service", "A service may be a submitter")


def _check_rule(policy: Policy, rule: Rule, where: str) -> None:
    floor: ApprovalNeed = floor_of(policy, rule.tier)
    _check_scope(rule.scope, where)
    if not floor.approvals <= rule.approvals <= 20:
        raise SpecError(where, f"{rule.approvals} votes", f"{rule.tier} takes {floor.approvals} to 20")
    odd = set(rule.roles) - {"operator", "approver", "admin"}
    if odd or not rule.roles:
        raise SpecError(
            where, f"votes of {', '.join(sorted(odd)) or 'nobody'}", "Voters are operators, approvers, admins"
        )
    if not set(floor.roles).issubset(rule.roles):
        raise SpecError(where, f"does without {' and '.join(floor.roles)}", "Leave `roles` out")
    for what, given, most in (("expiry", rule.expiry_ms, floor.expiry_ms), ("window", rule.window_ms, floor.window_ms)):
        if not 60_000 <= given <= most:
            raise SpecError(f"{where}.{what}", "is out of range", f"Give 1m to {most // 60_000}m")
    for what in ("signed", "reason"):
        if getattr(floor, what) and not getattr(rule, what):
            raise SpecError(f"{where}.{what}", f"{rule.tier} cannot do without", "Leave it out")
    if floor.typed == "digest" and rule.typed != "digest":
        raise SpecError(f"{where}.typed", f"{rule.tier} needs the start of the digest", "Leave it out")
    if rule.self_ok and not floor.self_ok:
        raise SpecError(
            f"{where}.own_plans_of", f"nobody approves their own {rule.tier}", "Leave it out, or say `mode: solo`"
        )
    if policy.mode != "solo" and {"recommender", "model"}.intersection(rule.self_ok):
        raise SpecError(f"{where}.own_plans_of", "what a machine drafted needs another person's vote", "Leave it out")
    known = {person.id: person for person in policy.people}
    for group in rule.groups:
        _check_id(group.name, f"{where}.groups")
        unknown = [id_ for id_ in group.people if id_ not in known]
        if unknown:
            raise SpecError(f"{where}.groups", f"{group.name} names {unknown[0][:40]!a}, who is not among people", "")
        if not 1 <= group.approvals <= len(set(group.people)):
            raise SpecError(f"{where}.groups", f"{group.name} has fewer people than votes", "Add people")


_MOST: Mapping[str, tuple[int, int]] = {
    "nodes_permille": (0, 500), "nodes_least": (0, 1_000), "gpus_permille": (0, 500), "gpus_least": (0, 10_000),
    "workloads_per_hour": (0, 1_000_000), "proposals_per_author_hour": (1, 100_000),
}  # fmt: skip
"""Least and most that a limit may be: so large that it is none, it may not."""


def _check_limits(limits: PolicyLimits) -> None:
    for name, (least, most) in _MOST.items():
        if not least <= getattr(limits, name) <= most:
            raise SpecError(f"limits.{name}", f"{getattr(limits, name):,} is out of range", f"Give {least} to {most:,}")
    for tier in TIERS:
        if not 0 <= limits.executions_per_hour.of(tier) <= MAX_EXECUTIONS:
            raise SpecError(f"limits.executions_per_hour.{tier}", "is out of range", f"Give 0 to {MAX_EXECUTIONS:,}")
    if limits.cost_microusd_hour is not None and not 0 <= limits.cost_microusd_hour < 2**53:
        raise SpecError("limits.cost_usd_hour", "is out of range", "Give an amount in USD")


def _check_own_work(policy: Policy) -> None:
    rule = policy.own_work
    if not rule:
        return
    odd = sorted(set(rule.actions) - set(OWN_ACTIONS))
    if odd:
        raise SpecError("own_work.actions", f"{odd[0]} is not for owners alone", f"Give some of {listing(OWN_ACTIONS)}")
    for name, least in (("workloads", 1), ("workloads_per_hour", rule.workloads)):
        if not least <= getattr(rule, name) <= MAX_OWN:
            raise SpecError(f"own_work.{name}", "is out of range", f"Give {least:,} to {MAX_OWN:,}")


def _check_freezes(freezes: tuple[FreezeSpec, ...]) -> None:
    _check_count(freezes, MAX_RULES, "freezes")
    _check_distinct(((freeze.name, "") for freeze in freezes), "freezes")
    for i, freeze in enumerate(freezes):
        _check_id(freeze.name, f"freezes[{i}].name")
        _check_scope(freeze.scope, f"freezes[{i}]")
        check_freeze(freeze, f"freezes[{i}]")


def _check_views(views: tuple[ViewRule, ...]) -> None:
    _check_count(views, MAX_PEOPLE, "views")
    for i, view in enumerate(views):
        where = f"views[{i}]"
        _check_count(view.who, MAX_RULES, f"{where}.who")
        wrong = next((name for name in view.who if not VIEWER.fullmatch(name)), None)
        if wrong is not None or not view.who:
            raise SpecError(
                f"{where}.who", f"{(wrong or '')[:40]!a} is nobody",
                "Write unix-group:NAME, oidc-group:NAME, an account, person:ID, service:ID or everyone",
            )  # fmt: skip
        _check_scope(Scope(tenants=view.tenants, queues=view.queues), where)
        _check_count(view.teams, MAX_RULES, f"{where}.teams")
        for team in view.teams:
            tenant, parted, name = team.partition(":")
            if not parted:
                raise SpecError(f"{where}.teams", f"{team[:40]!a} is not TENANT:TEAM", "Write *:TEAM for any tenant")
            for part in (name,) if tenant == "*" else (tenant, name):
                check_id(part, f"{where}.teams")
        if not (view.tenants or view.teams or view.queues or view.own):
            raise SpecError(where, "shows nothing", "Name tenants, teams or queues, or say own: true")


def _check_channels(policy: Policy) -> None:
    names = [name for name, _ in policy.channels]
    _check_count(names, MAX_RULES, "channels")
    for name, target in policy.channels:
        _check_id(name, "channels")
        kind, _, rest = target.partition(":")
        if kind == "file" and rest.startswith("/") and ".." not in rest.split("/"):
            continue
        if kind in ("webhook", "slack") and _is_web_address(rest):
            continue
        if target != "log:":
            raise SpecError(
                f"channels.{name}",
                f"{target[:40]!a} is not a channel",
                "Write log:, file:/path, webhook:https://host/path or slack:https://host/path",
            )
    glass = policy.break_glass
    for name in glass.channels:
        if name not in names:
            raise SpecError("break_glass.channels", f"there is not a channel {name[:40]!a}", "Use one of `channels`")
    if not 1 <= glass.factor <= 2:
        raise SpecError("break_glass.factor", f"{glass.factor} is out of range", "Give 1 or 2")
    if not 10 <= glass.reason_least <= 200:
        raise SpecError("break_glass.reason_least", f"{glass.reason_least} is out of range", "Give 10 to 200")


def _is_web_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        host, port = url.hostname, url.port
    except ValueError:
        return False
    if not host or not text.isprintable() or not text.isascii() or " " in text or len(text) > 500 or url.username:
        return False
    return url.scheme == "https" or (url.scheme == "http" and host in ("127.0.0.1", "localhost", "::1") and port != 0)


def _check_accounts(accounts: tuple[str, ...], where: str) -> None:
    for account in accounts:
        if not ACCOUNT.fullmatch(account):
            raise SpecError(
                where,
                f"{account[:40]!a} is not an account",
                "Write unix:1000, the number of `id -u`, cert:NAME, oidc:ISSUER#SUBJECT, slack:TEAM/USER, slurm:USER, "
                "or tcp",
            )
    if len(set(accounts)) < len(accounts):
        raise SpecError(where, "has an account twice", "Give it once")


def _check_roles(roles: tuple[Role, ...], where: str) -> None:
    if not HUMAN_ROLES.issuperset(roles):
        raise SpecError(where, "drafter is a role of services", "Make it a service, or an operator")
    if len(set(roles)) < len(roles):
        raise SpecError(where, "has a role twice", "Give it once")


def _check_scope(scope: Scope, where: str) -> None:
    for what, names in (("pools", scope.pools), ("queues", scope.queues), ("tenants", scope.tenants)):
        _check_count(names, MAX_RULES, f"{where}.{what}")
        for name in names:
            check_id(name, f"{where}.{what}")


def _check_id(value: str, where: str) -> None:
    if not ID.fullmatch(value):
        raise SpecError(where, f"{value[:40]!a} is not a name", "Use 1 to 64 of a-z, 0-9, '.', '_' and '-'")


def _check_distinct(names: Iterable[tuple[str, str]], where: str) -> None:
    """Ids, and names that are shown, of which none may be taken for that of another."""
    seen: dict[str, tuple[int, str]] = {}
    for i, pair in enumerate(names):
        for text in filter(None, pair):
            number, other = seen.setdefault(skeleton(text), (i, text))
            if number != i:
                same = "is used twice" if other == text else f"could be taken for {other[:40]!a}"
                raise SpecError(f"{where}[{i}]", f"{text[:40]!a} {same}", "Give names that cannot be confused")


def _check_count(given: Any, most: int, where: str) -> None:
    if len(given) > most:
        raise SpecError(where, f"has {len(given):,}", f"At most {most}")


def listing(names: Sequence[str]) -> str:
    """As in "alice, bob and carol"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def notes(policy: Policy) -> tuple[str, ...]:
    """Remarks for whoever puts the policy in force, on what is allowed but risky."""
    found: list[str] = []
    if not policy.people:
        return ("It names nobody: the account that owns the engine's process is operator, approver and admin.",)
    voters = [p for p in policy.people if "approver" in p.roles and (p.keys or policy.mode == "solo")]
    for rule in policy.rules[: len(TIERS)]:
        others = rule.approvals + ("person" not in rule.self_ok)
        if rule.tier in ("T2", "T3") and policy.mode != "solo" and len(voters) < others:
            found.append(
                f"{rule.tier} needs {rule.approvals} approvers with a key besides its author, and there "
                f"{'is' if len(voters) == 1 else 'are'} {len(voters)}: an approver's own plan could not be approved."
            )
    for person in policy.people:
        if "approver" in person.roles and not person.keys and policy.mode != "solo":
            found.append(f"{person.id} is an approver without a key and cannot vote on T2 and T3.")
        if {"admin", "approver"}.issubset(person.roles) and policy.mode != "solo":
            found.append(f"{person.id} is both admin and approver.")
        if TCP in person.accounts:
            found.append(f"Whoever reaches the TCP port of this machine is {person.id}.")
        if not person.accounts and not person.keys:
            found.append(f"{person.id} has neither an account nor a key and can do nothing.")
    shared = {a for p in policy.people for a in p.accounts if sum(a in q.accounts for q in policy.people) > 1}
    for account in sorted(shared):
        who = listing([p.id for p in policy.people if account in p.accounts])
        found.append(f"{account} is shared by {who}: each must say who they are (--as) and sign.")
    if sum("admin" in p.roles for p in policy.people) == 1:
        found.append("There is one admin: should their key be lost, see docs/approval.md.")
    return tuple(found)


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
        raise SpecError("operator", f"no value for {id_[:40]!a}", "Give --account, --key or --role")
    return _text(file)


def without_person(view: PolicyView, id_: str) -> str:
    """The text of the next version, which does not name that person. Raises NotFoundError."""
    file = _next(view)
    people = file.get("people", [])
    if all(person.get("id") != id_ for person in people):
        raise NotFoundError(f"the policy names no {id_[:40]!a}", "See `muster policy operator list`")
    file["people"] = [person for person in people if person.get("id") != id_]
    return _text(file)


def text_of(policy: Policy) -> str:
    """A file that says what the policy says, every value written out."""
    file: dict[str, Any] = {
        "schema": policy.schema, "name": policy.name, "version": policy.version, "mode": policy.mode,
        "people": [_holder(person) for person in policy.people],
        "services": [_holder(service) for service in policy.services],
        "approvals": [_rule_lines(rule) for rule in policy.rules],
        "limits": _limit_lines(policy.limits),
        "freezes": [_freeze_lines(freeze) for freeze in policy.freezes],
        "break_glass": msgspec.to_builtins(policy.break_glass),
        "views": [_given(view) for view in policy.views or ()],
        "channels": dict(policy.channels),
        "own_work": msgspec.to_builtins(policy.own_work) if policy.own_work else "none",
    }  # fmt: skip
    return _text({key: value for key, value in file.items() if value != []})


def _given(value: msgspec.Struct) -> dict[str, Any]:
    """Its fields, without those that say nothing."""
    fields: dict[str, Any] = msgspec.to_builtins(value)
    empty: tuple[Any, ...] = ("", (), [], {})
    return {
        name: field for name, field in fields.items() if field not in empty and field is not None and field is not False
    }


def _holder(of: Person | ServiceIdentity) -> dict[str, Any]:
    scoped = [{"roles": list(grant.roles), **_given(grant.scope)} for grant in of.scoped or ()]
    return {**_given(of), **({"scoped": scoped} if scoped else {})}


def _rule_lines(rule: Rule) -> dict[str, Any]:
    return {
        "tier": rule.tier, **_given(rule.scope), "approvals": rule.approvals, "roles": list(rule.roles),
        "expiry": span(rule.expiry_ms), "window": span(rule.window_ms), "signed": rule.signed, "typed": rule.typed,
        "reason": rule.reason, "own_plans_of": list(rule.self_ok),
        **({"groups": msgspec.to_builtins(rule.groups)} if rule.groups else {}),
    }  # fmt: skip


def _limit_lines(limits: PolicyLimits) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(limits)
    cost = fields.pop("cost_microusd_hour")
    if cost is not None:
        fields["cost_usd_hour"] = f"{cost // 1_000_000}.{cost % 1_000_000:06d}"
    return fields


def _freeze_lines(freeze: FreezeSpec) -> dict[str, Any]:
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
    if not view.own_work:
        file.setdefault("own_work", "none")  # left out it would be that of a new policy
    return file


def _text(file: dict[str, Any]) -> str:
    written: str = yaml.safe_dump(file, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=None)
    return written
