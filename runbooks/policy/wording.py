"""A policy in words: what `muster policy show` says, made from the typed policy alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, select

from engine.model.money import usd
from runbooks.people.identity import OWNER, TOKEN, WHOLE, Actor, Scope
from runbooks.plans.amounts import span
from runbooks.plans.typed_plan import TIERS
from runbooks.policy.approval_policy import (
    ApprovalNeed,
    Person,
    Policy,
    Service,
    fingerprints,
    holder_of,
    holders,
    need,
    roles,
)
from runbooks.policy.changes import change_need, changes
from runbooks.policy.files import listing, notes
from runbooks.policy.freezes import Freeze, holds
from runbooks.policy.limits import PolicyLimits
from runbooks.policy.queries import Caller, PolicyCheck, PolicyView
from runbooks.policy.tables import VERSION

if TYPE_CHECKING:
    from runbooks.gate.policy_versions import Policies


def two_people(policy: Policy, owner: str = OWNER) -> str:
    """What the two-person rule is worth on this machine: it cannot be better than its OS accounts and keys."""
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
    """How the engine knows an actor."""
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
    """What putting a policy in force would change. Raises SpecError for one that may not follow the one that is."""
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
    """Who must agree to another policy."""
    needed = change_need(policy)
    if not policy.people:
        return f"{owner} alone, who owns the engine"
    return "the admin alone: there is nobody else" if needed.self_ok else needed.words()


def view_of(policies: Policies) -> PolicyView:
    """The policy in force, and those that wait for votes."""
    return policies.looked(lambda connection: _view(policies, connection))


def _view(policies: Policies, connection: Connection) -> PolicyView:
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
        freezes=tuple(freeze_lines(policies, connection, policies.clock())),
        notes=notes(policy),
        change_need=need_of_change(policy, policies.owner),
        candidates=policies.candidates(connection),
        text=policies.text(connection),
    )


def freeze_lines(policies: Policies, connection: Connection, now_ms: int) -> list[Freeze]:
    """The policy's freezes, and those set by hand that are not over."""
    policy = policies.current(connection)
    return [
        Freeze(spec=spec, by=by, holds=holds(spec, now_ms, "T3", spec.scope))
        for spec, by in (*((spec, "") for spec in policy.freezes), *policies.freezes_by(connection))
    ]


def limits_words(limits: PolicyLimits) -> tuple[tuple[str, str], ...]:
    """(what, at most in an hour)."""
    executions = limits.executions_per_hour
    rows = [
        ("plans run", ", ".join(f"{executions.of(tier):,} of {tier}" for tier in TIERS)),
        ("nodes out of use", f"{_percent(limits.nodes_permille)} of each pool, at least {limits.nodes_least:,}"),
        ("GPUs disturbed", f"{_percent(limits.gpus_permille)} of the cell, at least {limits.gpus_least:,}"),
        ("workloads stopped", f"{limits.workloads_per_hour:,}"),
        ("proposals", f"{limits.proposals_per_author_hour:,} of one author"),
    ]
    if limits.cost_microusd_hour is not None:
        rows.append(("more cost", f"{usd(limits.cost_microusd_hour)} per hour"))
    return tuple(rows)


def need_words(need: ApprovalNeed) -> str:
    """All of it in one line."""
    own = "the author's own will do" if need.self_ok else "not the author, not who asked for it"
    votes = "1 vote" if need.approvals == 1 else f"{need.approvals} votes"
    parts = [f"{votes} of {' and '.join(need.roles) or 'operator'}", own]
    parts += [f"{group.approvals} of {group.name} ({', '.join(group.people)})" for group in need.groups]
    parts += ["signed"] if need.signed else []
    parts += ["digest typed"] if need.typed == "digest" else []
    parts += ["with a reason"] if need.reason else []
    return f"{', '.join(parts)}; {span(need.expiry_ms)} to vote, {span(need.window_ms)} to begin"


def _rules_words(policy: Policy) -> list[tuple[str, str]]:
    """What a person's own plan of each tier needs, then a machine's where that is more, then parts of the cell."""
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


def _service_words(service: Service) -> str:
    scoped = [f"{', '.join(grant.roles)} of {grant.scope.words()}" for grant in service.scoped or ()]
    said = [*(("llm",) if service.kind == "llm" else ()), *(service.roles or ()), *scoped]
    return f"{service.id} ({'; '.join(said)})" if said else service.id


def _person_words(person: Person) -> tuple[str, ...]:
    scoped = [f"{'+'.join(grant.roles)} of {grant.scope.words()}" for grant in person.scoped]
    keys = sorted(fingerprints_of(person))
    return (
        person.id,
        ", ".join((*person.roles, *scoped)) or "viewer",
        ", ".join(person.accounts) or "none",
        ", ".join(keys) or "none",
        "on call" if person.on_call else "",
    )


def fingerprints_of(person: Person) -> list[str]:
    from runbooks.people.keys import public_key

    return [public_key(line).fingerprint for line in person.keys]


def _channel_words(target: str) -> str:
    """Without what may be secret: the path and query of a web address."""
    kind, _, rest = target.partition(":")
    if kind != "webhook":
        return target
    scheme, _, host = rest.partition("://")
    return f"webhook:{scheme}://{host.partition('/')[0].partition('?')[0]}/…"


def _percent(permille: int) -> str:
    return f"{permille / 10:g} %"
