"""Changes of the approval policy: who must agree, what changes, the tables of policies, and policies in words.

`change_need` and `check_successor` say what the next policy needs and may not do; `changes` lists its differences and
which of them loosen. The tables hold policies, candidates, votes, freezes by hand and nonces in the journal's database.
`view_of` is `muster policy show`, made from the typed policy alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    select,
)

from engine.model.errors import SpecError
from engine.model.quantities import usd
from runbooks.gate.approval_policy import (
    HOUR_MS,
    MODES,
    ApprovalNeed,
    Caller,
    OwnWork,
    Person,
    Policy,
    PolicyCheck,
    PolicyDifference,
    PolicyView,
    Rule,
    ServiceIdentity,
    fingerprints,
    holder_of,
    holders,
    need,
    roles,
    stricter,
)
from runbooks.gate.policy_files import listing, notes
from runbooks.gate.run_limits import Freeze, PolicyLimits, holds
from runbooks.gate.starting_points import asked
from runbooks.plans.amounts import span
from runbooks.plans.identity import OWNER, TOKEN, WHOLE, Actor, Scope
from runbooks.plans.keys import public_key
from runbooks.plans.typed_plan import TIERS

if TYPE_CHECKING:
    from runbooks.gate.policy_versions import Policies


CHANGE_EXPIRY_MS = 24 * HOUR_MS
"""How long a new policy waits for votes."""


def change_need(policy: Policy) -> ApprovalNeed:
    """The votes that another policy needs, by the policy in force: with two admins or more, the signed vote of an admin
    other than its author; with one, that of an approver; with nobody else, the author's own."""
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
    """The differences between two policies, in words made from the policies alone."""
    found: list[PolicyDifference] = []
    if old.mode != new.mode:
        milder = MODES.index(new.mode) < MODES.index(old.mode)
        found.append(PolicyDifference(text=f"mode {old.mode} -> {new.mode}: {_MODE_WORDS[new.mode]}", loosens=milder))
    _people(old, new, found)
    was_needed, needed = change_need(old), change_need(new)
    if was_needed != needed:
        words = [one.words() for one in (was_needed, needed)]
        text = f"the policy after it needs {words[1]}, where it was {words[0]}"
        found.append(PolicyDifference(text=text, loosens=stricter(was_needed, needed) != needed))
    _rules(old, new, found)
    _limits(old.limits, new.limits, found)
    _own_work(old.own_work or None, new.own_work or None, found)
    was, now = {f.name: f for f in old.freezes}, {f.name: f for f in new.freezes}
    found += (PolicyDifference(text=f"freeze {how}", loosens=name in was) for name, how in _changed(was, now))
    had, has = {s.id: s for s in old.services}, {s.id: s for s in new.services}
    found += (PolicyDifference(text=f"service {how}", loosens=id_ in has) for id_, how in _changed(had, has))
    if old.break_glass != new.break_glass:
        looser = (new.break_glass.factor, -new.break_glass.reason_least, new.break_glass.through_freezes) > (
            old.break_glass.factor, -old.break_glass.reason_least, old.break_glass.through_freezes,
        )  # fmt: skip
        silent = bool(set(old.break_glass.channels) - set(new.break_glass.channels))
        found.append(PolicyDifference(text="break-glass changes", loosens=looser or silent))
    saw, sees = set(old.views or ()), set(new.views or ())
    if saw != sees:
        text = "views change" if saw and sees else "callers see by views" if sees else "whoever may look sees all work"
        found.append(PolicyDifference(text=text, loosens=bool(saw and (not sees or sees - saw))))
    if dict(old.channels) != dict(new.channels):
        gone = sorted(set(old.channels) - set(new.channels))
        names = sorted(dict(set(old.channels) ^ set(new.channels)))
        found.append(PolicyDifference(text=f"channels {', '.join(names)} change", loosens=bool(gone)))
    return tuple(found)


_MODE_WORDS = {
    "solo": "one person may approve everything: no two-person rule",
    "pair": "one person disrupts under their own key, two agree on what is hard to undo",
    "team": "a two-person rule",
}


def _own_work(was: OwnWork | None, now: OwnWork | None, found: list[PolicyDifference]) -> None:
    if was == now:
        return
    looser = now is not None and (
        was is None
        or not set(now.actions) <= set(was.actions)
        or now.workloads > was.workloads
        or now.workloads_per_hour > was.workloads_per_hour
    )
    text = f"owners alone may do with their own work: {own_work_words(now) or 'nothing'}"
    found.append(PolicyDifference(text=text, loosens=looser))


def own_work_words(rule: OwnWork | None) -> str:
    """As in "cancel, hold; 50 workloads at once, 200 an hour"; empty for none."""
    if rule is None:
        return ""
    return f"{', '.join(rule.actions)}; {rule.workloads:,} workloads at once, {rule.workloads_per_hour:,} an hour"


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


def _changed(was: Mapping[str, object], now: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(name, how it changes) of the entries that differ, as in "nights is new", "nights goes", "nights changes"."""
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            yield name, f"{name} {'is new' if name not in was else 'goes' if name not in now else 'changes'}"


METADATA = MetaData()
CELL = Table(
    "cell_identity", METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False), Column("id", String, nullable=False),
)  # fmt: skip
VERSION = Table(
    "policy_version", METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("digest", String, nullable=False, index=True), Column("version", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False), Column("text", LargeBinary, nullable=False),
    Column("at_ms", BigInteger, nullable=False), Column("by", String, nullable=False),
)  # fmt: skip
"""What came into force, in that order; the last one is. `body` is canonical, `text` the file as it was handed in."""
NONCE = Table(
    "signature_nonce", METADATA,
    Column("nonce", String, primary_key=True), Column("at_ms", BigInteger, nullable=False),
)  # fmt: skip
"""Of every signature that was accepted. Never pruned: a clock that is set back revives nothing."""
BOUND = Table(
    "policy_key", METADATA,
    Column("key", String, primary_key=True), Column("subject", String, nullable=False),
)  # fmt: skip
"""Whose a key is, by its fingerprint: for good."""
CANDIDATE = Table(
    "policy_candidate", METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("digest", String, nullable=False), Column("version", Integer, nullable=False),
    Column("based_on", String, nullable=False), Column("body", LargeBinary, nullable=False),
    Column("text", LargeBinary, nullable=False), Column("state", String, nullable=False, index=True),
    Column("author", LargeBinary, nullable=False), Column("at_ms", BigInteger, nullable=False),
)  # fmt: skip
CHANGE_VOTE = Table(
    "policy_vote", METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("number", Integer, nullable=False), Column("subject", String, nullable=False),
    Column("vote", LargeBinary, nullable=False), UniqueConstraint("number", "subject"),
)  # fmt: skip
FREEZE = Table(
    "freeze_by_hand", METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False), Column("body", LargeBinary, nullable=False),
    Column("by", String, nullable=False), Column("at_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False, default=0), Column("ended_by", String, nullable=False, default=""),
)  # fmt: skip


def two_people(policy: Policy, owner: str = OWNER) -> str:
    """The worth of the two-person rule on this machine. It cannot be better than its OS accounts and keys."""
    if policy.mode == "solo":
        return "One person may approve everything here: no two-person rule holds."
    if not policy.people:
        return (
            f"The policy names nobody, so {owner}, the OS account that owns the engine, is the only one who acts: "
            "nothing of T2 or T3 can be approved, because nobody else can vote. Name people, or use solo."
        )
    shared = [
        f"{listing([person.id for person in mine])} share {account}"
        for account in sorted({account for person in policy.people for account in person.accounts})
        if len(mine := holders(policy, account)) > 1
    ]
    if shared:
        return (
            f"{'; '.join(shared)}: one OS account cannot give a true two-person rule. Votes from it count as two only "
            "when both are signed, each with its own key; but who has the account can watch a passphrase being typed."
        )
    keyed = [person.id for person in policy.people if not person.accounts]
    if keyed:
        have = "has" if len(keyed) == 1 else "have"
        return (
            f"{listing(keyed)} {have} no OS account on this machine and can be told from others by keys alone: "
            "two votes are of two people as far as nobody has two keys."
        )
    return (
        f"Each person has an OS account of their own. Who has {owner}, which owns the engine, or is root on its "
        "machine, can still change what the engine keeps: the audit's checkpoints show it, they do not prevent it."
    )


def caller_of(policies: Policies, actor: Actor) -> Caller:
    """The actor as the engine knows them, for clients."""
    policy = policies.latest()
    mine = holders(policy, actor.account)
    unlimited = msgspec.structs.replace(actor, within=WHOLE)
    return Caller(
        subject=actor.subject,
        kind=actor.kind,
        account=actor.account,
        roles=tuple(sorted(roles(policy, unlimited, owner=policies.owner))),
        scoped=_scoped_words(policy, actor),
        token=actor.session.removeprefix(TOKEN),
        deeds=actor.deeds,
        within="" if actor.within == WHOLE else actor.within.words(),
        shared_with=tuple(person.id for person in mine) if len(mine) > 1 else (),
        cell_id=policies.looked(policies.cell),
        now_ms=policies.clock(),
        keys={person.subject: tuple(sorted(fingerprints(policy, person.subject))) for person in policy.people},
        asked_ns=time.monotonic_ns(),
    )


def check(policies: Policies, actor: Actor, text: str, built_in: str = "") -> PolicyCheck:
    """The changes that putting a policy in force would make. Raises SpecError for one that may not follow the one in
    force."""
    now, new = policies.latest(), policies.read(text, built_in)
    policies.looked(lambda connection: policies.check_successor(connection, now, new))
    as_now = policies.account(new, actor)
    return PolicyCheck(
        version=new.version,
        digest=new.digest(),
        mode=new.mode,
        changes=changes(now, new),
        notes=notes(new),
        two_people=two_people(new, policies.owner),
        roles=tuple(sorted(roles(new, as_now, owner=policies.owner))),
        need=need_of_change(now, policies.owner),
    )


def need_of_change(policy: Policy, owner: str = OWNER) -> str:
    """The people who must agree to another policy, in words."""
    needed = change_need(policy)
    if not policy.people:
        return f"{owner} alone, who owns the engine"
    return "the admin alone: there is nobody else" if needed.self_ok else needed.words()


def view_of(policies: Policies, actor: Actor) -> PolicyView:
    """The policy in force, what it lets the asker do alone, and those that wait for votes."""
    return policies.looked(lambda connection: _view(policies, connection, actor))


def _view(policies: Policies, connection: Connection, actor: Actor) -> PolicyView:
    policy = policies.current(connection)
    newest = connection.execute(select(VERSION.c.at_ms, VERSION.c.by).order_by(VERSION.c.seq.desc()).limit(1)).first()
    return PolicyView(
        name=policy.name,
        version=policy.version,
        mode=policy.mode,
        digest=policy.digest(),
        since_ms=newest.at_ms if newest else 0,
        by=newest.by if newest else "",
        two_people=two_people(policy, policies.owner),
        people=tuple(_person_words(person) for person in policy.people),
        rules=tuple(_rules_words(policy)),
        limits=limits_words(policy.limits),
        services=tuple(map(_service_words, policy.services)),
        channels=tuple((name, _channel_words(target)) for name, target in policy.channels),
        freezes=freezes_now(policies, connection, policies.clock()),
        notes=notes(policy),
        change_need=need_of_change(policy, policies.owner),
        own_work=own_work_words(policy.own_work or None),
        alone=tuple(asked(policy, actor, policies.owner)),
        unchosen=not policies.is_chosen(connection),
        candidates=policies.candidates(connection),
        text=policies.text(connection),
    )


def freezes_now(policies: Policies, connection: Connection, now_ms: int) -> tuple[Freeze, ...]:
    """The policy's freezes, and those set by hand that are not over; each with whether it stops plans now."""
    of_policy = ((spec, "") for spec in policies.current(connection).freezes)
    return tuple(
        Freeze(spec=spec, by=by, holds=holds(spec, now_ms, "T3", spec.scope))
        for spec, by in (*of_policy, *policies.freezes_by(connection))
    )


def limits_words(limits: PolicyLimits) -> tuple[tuple[str, str], ...]:
    """(what, at most in an hour)."""
    executions = limits.executions_per_hour
    rows = [
        ("plans run", ", ".join(f"{executions.of(tier):,} of {tier}" for tier in TIERS)),
        ("nodes out of service", f"{_percent(limits.nodes_permille)} of each pool, at least {limits.nodes_least:,}"),
        ("GPUs disturbed", f"{_percent(limits.gpus_permille)} of the cell, at least {limits.gpus_least:,}"),
        ("workloads stopped", f"{limits.workloads_per_hour:,}"),
        ("proposals", f"{limits.proposals_per_author_hour:,} of one author"),
    ]
    if limits.cost_microusd_hour is not None:
        rows.append(("more cost", f"{usd(limits.cost_microusd_hour)} per hour"))
    return tuple(rows)


def need_words(need: ApprovalNeed) -> str:
    """A need in one line."""
    own = "the author's own vote is enough" if need.self_ok or need.own else "not by the author or the requester"
    votes = "1 vote" if need.approvals == 1 else f"{need.approvals} votes"
    parts = [f"{votes} of {' and '.join(need.roles) or 'operator'}", own]
    parts += [f"{group.approvals} of {group.name} ({', '.join(group.people)})" for group in need.groups]
    parts += ["signed"] if need.signed else []
    parts += ["digest typed"] if need.typed == "digest" else []
    parts += ["with a reason"] if need.reason else []
    return f"{', '.join(parts)}; {span(need.expiry_ms)} to vote, {span(need.window_ms)} to start"


def _rules_words(policy: Policy) -> list[tuple[str, str]]:
    """The need of a person's own plan by tier, of a machine's where that is more, then of parts of the cell."""
    nowhere = Scope(pools=("-",))  # no pool is called so: what no rule of a part concerns
    found: list[tuple[str, str]] = []
    for tier in TIERS:
        own, drafted = need(policy, tier, "person", nowhere), need(policy, tier, "model", nowhere)
        found.append((tier, need_words(own)))
        if drafted != own:
            found.append((f"{tier} of a machine", need_words(drafted)))
    for rule in policy.rules:
        if rule.scope != WHOLE:
            needs = need_words(need(policy, rule.tier, "person", rule.scope))
            found.append((f"{rule.tier} on {rule.scope.words()}", needs))
    return found


def _scoped_words(policy: Policy, actor: Actor) -> tuple[str, ...]:
    holder = holder_of(policy, actor)
    grants = (holder.scoped or ()) if holder is not None else ()
    return tuple(f"{', '.join(grant.roles)} of {grant.scope.words()}" for grant in grants)


def _service_words(service: ServiceIdentity) -> str:
    scoped = [f"{', '.join(grant.roles)} of {grant.scope.words()}" for grant in service.scoped or ()]
    said = [*(("llm",) if service.kind == "llm" else ()), *(service.roles or ()), *scoped]
    return f"{service.id} ({'; '.join(said)})" if said else service.id


def _person_words(person: Person) -> tuple[str, ...]:
    scoped = [f"{'+'.join(grant.roles)} of {grant.scope.words()}" for grant in person.scoped]
    keys = sorted(public_key(line).fingerprint for line in person.keys)
    return (
        person.id,
        ", ".join((*person.roles, *scoped)) or "viewer",
        ", ".join(person.accounts) or "none",
        ", ".join(keys) or "none",
        "on call" if person.on_call else "",
    )


def _channel_words(target: str) -> str:
    """Without what may be secret: the path and query of a web address."""
    kind, _, rest = target.partition(":")
    if kind not in ("webhook", "slack"):
        return target
    scheme, _, host = rest.partition("://")
    return f"{kind}:{scheme}://{host.partition('/')[0].partition('?')[0]}/…"


def _percent(permille: int) -> str:
    return f"{permille / 10:g} %"
