"""The approval policy: who may do what, how many must agree, until when, and within which limits.

All functions are pure: of a policy and of facts, without a clock or a database. `FLOORS` holds the minimum that no
policy can go below; they apply at each use, so a policy that was never checked cannot loosen them. The views of
policies, people and freezes are here too. Importing this module loads neither cryptography nor a database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec

from engine.model.visibility import Visibility, VisiblePart
from runbooks.gate.run_limits import PAIR_LIMITS, SOLO_LIMITS, Freeze, FreezeSpec, PolicyLimits, holds
from runbooks.plans.identity import OWNER, TCP, WHOLE, Actor, Kind, Role, stands_for
from runbooks.plans.identity import Scope as Scope
from runbooks.plans.identity import Signed as Signed
from runbooks.plans.typed_plan import TIERS, ActionName, Origin, OwnedWork, Party, Plan, Tier

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
Deed = Literal[
    "read", "submit", "configure", "propose", "vote", "execute", "pause", "rollback", "cancel", "break_glass", "review",
    "freeze", "thaw", "policy", "runbook", "redact", "export", "key", "respond", "alert",
]  # fmt: skip
Mode = Literal["solo", "pair", "team"]
"""From the mildest to the strictest."""
MODES: tuple[Mode, ...] = get_args(Mode)
Typed = Literal["key", "digest"]
"""How an approval is confirmed: one key, or the beginning of the digest typed."""
Verdict = Literal["approve", "reject", "abstain"]
MACHINES: tuple[Origin, ...] = ("recommender", "model")
OWNER_ROLES: frozenset[Role] = frozenset(("viewer", "operator", "approver", "admin"))

# -- what a policy says -----------------------------------------------------------------------------------------------


class Grant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Roles within a part of the cell."""

    roles: tuple[Role, ...]
    scope: Scope


class Person(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One human being, whatever accounts and keys they have: one subject, one vote."""

    id: str
    name: str = ""
    """Shown, never compared."""
    accounts: tuple[str, ...] = ()
    """OS accounts of the engine's machine, by number: "unix:1000"; "oidc:ISSUER#SUBJECT"; "cert:NAME"; "tcp": whoever
    comes over TCP and shows nothing."""
    keys: tuple[str, ...] = ()
    """Public keys as OpenSSH writes them."""
    roles: tuple[Role, ...] = ()
    scoped: tuple[Grant, ...] = ()
    """Roles within parts of the cell."""
    on_call: bool = False
    """May break the glass as an operator."""

    @property
    def subject(self) -> str:
        return f"person:{self.id}"


OWN_SERVICE = "muster"
"""Id of the service as which Muster reports what it found by itself."""


class ServiceIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine's identity. It drafts, may submit where its roles say so, and never votes."""

    id: str
    kind: Literal["service", "llm"] = "service"
    accounts: tuple[str, ...] = ()
    roles: tuple[Role, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of `SERVICE_ROLES`. Left out where there are none: so policies from before there were any keep their digest."""
    scoped: tuple[Grant, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def subject(self) -> str:
        return f"service:{self.id}"


class ViewRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The work that some callers see. While a policy has such rules, whoever acts in no part of the cell sees by them
    alone, and without one nothing but load."""

    who: tuple[str, ...]
    """Accounts ("unix:1000", "oidc:ISSUER#SUBJECT", "cert:NAME"), subjects ("person:alice", "service:ci"), groups
    ("unix-group:physics", "oidc-group:research"), or "everyone"."""
    tenants: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    """"acme:vision"; "*:vision": in any tenant."""
    queues: tuple[str, ...] = ()
    own: bool = False
    """The teams that are called as their OS account: on a mirrored Slurm cluster, their own jobs."""


EVERYONE, UNIX_GROUP, OIDC_GROUP = "everyone", "unix-group:", "oidc-group:"


class ApproverGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """So many of the votes must be of these people."""

    name: str
    people: tuple[str, ...]
    approvals: int = 1


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The votes that plans of a tier need. When several rules apply to a plan, the strictest of each field counts."""

    tier: Tier
    scope: Scope = Scope()
    """Empty: every plan of the tier; else those that touch any of it, to which it is added."""
    approvals: int
    roles: tuple[Role, ...]
    """All of which a voter must have."""
    expiry_ms: int
    """From when it waits for votes."""
    window_ms: int = 30 * MINUTE_MS
    """From the last vote until it must have begun."""
    signed: bool = False
    typed: Typed = "key"
    reason: bool = False
    self_ok: tuple[Origin, ...] = ()
    """By whom it may be thought out so that its author, a human, may give the vote."""
    groups: tuple[ApproverGroup, ...] = ()


OWN_ACTIONS: tuple[ActionName, ...] = ("cancel", "hold", "release", "requeue", "suspend", "resume")
"""What an owner may be let do with their own work alone. None of it makes room, or moves others."""
MAX_OWN = 1_000


class OwnWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person may do with the work that they submitted, by their own vote alone, whatever the tier. The owner is
    the caller whom the door knew at the submission. Anything else that is touched makes it an ordinary plan."""

    actions: tuple[ActionName, ...] = OWN_ACTIONS
    workloads: int = 50
    """Most in one plan."""
    workloads_per_hour: int = 200
    """Most in all such plans of a person. They count against no other limit: nobody is kept from acting by them."""


class BreakGlass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    factor: int = 2
    """By which it may exceed the hourly limits."""
    reason_least: int = 10
    """Printable characters, blanks not counted."""
    through_freezes: bool = True
    channels: tuple[str, ...] = ()
    """That are told of it at once, and of a way back that failed; none: all of the policy's."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of the approval policy of a cell."""

    schema: Literal["muster-policy/v1"] = "muster-policy/v1"
    name: str
    version: int = 0
    mode: Mode = "team"
    """The floors that its rules keep to. Solo: one person may approve everything; there is no two-person rule."""
    people: tuple[Person, ...] = ()
    """None: the OS account that owns the engine's process may do all that people may."""
    services: tuple[ServiceIdentity, ...] = (
        ServiceIdentity(id="recommender"), ServiceIdentity(id="llm-drafter", kind="llm"),
        ServiceIdentity(id="scheduler"),
    )  # fmt: skip
    rules: tuple[Rule, ...]
    limits: PolicyLimits = PolicyLimits()
    freezes: tuple[FreezeSpec, ...] = ()
    break_glass: BreakGlass = BreakGlass()
    views: tuple[ViewRule, ...] | msgspec.UnsetType = msgspec.UNSET
    """Left out where there are none: whoever may look sees the whole cell."""
    channels: tuple[tuple[str, str], ...] = ()
    """(id, where to): "log:", "file:/path", "webhook:https://…", "slack:https://…"."""
    own_work: OwnWork | msgspec.UnsetType = msgspec.UNSET
    """Left out: a person's own work is as anybody's. So policies from before there was this rule say what they said."""

    def canonical(self) -> bytes:
        """The bytes that are signed and hashed, as of a plan."""
        return msgspec.json.encode(self, order="sorted")

    def paged(self) -> tuple[str, ...]:
        """Ids of the channels that are told what cannot wait: those named for break-glass, else all there are."""
        return self.break_glass.channels or tuple(channel for channel, _ in self.channels)

    def digest(self) -> str:
        return hashlib.sha256(b"muster/policy/v1\n" + self.canonical()).hexdigest()


class ApprovalNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The votes and conditions that a plan needs before it may run."""

    approvals: int
    roles: tuple[Role, ...]
    """All of which a voter must have, in all that the plan touches."""
    expiry_ms: int
    window_ms: int
    signed: bool = False
    typed: Typed = "key"
    reason: bool = False
    self_ok: bool = False
    """Author and requester may vote."""
    groups: tuple[ApproverGroup, ...] = ()
    own: bool = False
    """It is about its author's own work: their vote is enough."""

    def words(self) -> str:
        """As in "2 votes of approver, signed with their own key, neither of its author nor of who asked for it"."""
        if self.own:
            return "1 vote, of its author, whose work it is, or of an operator"
        votes = "1 vote" if self.approvals == 1 else f"{self.approvals} votes"
        signed = ", signed with their own key" if self.signed else ""
        others = "" if self.self_ok else ", neither of its author nor of who asked for it"
        of = "".join(f", {group.approvals} of them of {group.name}" for group in self.groups)
        return f"{votes} of {' and '.join(self.roles) or 'operator'}{signed}{others}{of}"


class Vote(msgspec.Struct, frozen=True, kw_only=True):
    """A vote as it was given."""

    subject: str
    kind: Kind
    account: str
    verdict: Verdict
    at_ms: int
    key: str = ""
    """Fingerprint of the key that signed it; empty when it is not signed."""
    comment: str = ""


def vote_of(actor: Actor, verdict: Verdict, at_ms: int) -> Vote:
    """A vote as an actor gives it now, with the key that they proved themselves by."""
    return Vote(
        subject=actor.subject, kind=actor.kind, account=actor.account, verdict=verdict, at_ms=at_ms, key=actor.key
    )


# -- the three that are built in ---------------------------------------------------------------------------------------


_PEOPLE: tuple[Origin, ...] = ("person", "runbook")
"""A runbook was approved by its digest, so what is made of one by a person is no worse than what they write."""
_ANY: tuple[Origin, ...] = ("person", "runbook", "recommender", "model")


def _rules(
    t2_by_oneself: tuple[Origin, ...], t3_by_oneself: tuple[Origin, ...], t3_votes: int, *, solo: bool = False
) -> tuple[Rule, ...]:
    """Rules that differ in who must agree, and in nothing else."""
    mild, signed = _ANY if solo else _PEOPLE, not solo
    return (
        Rule(tier="T0", approvals=1, roles=("operator",), expiry_ms=24 * HOUR_MS, self_ok=mild),
        Rule(tier="T1", approvals=1, roles=("operator",), expiry_ms=4 * HOUR_MS, self_ok=mild),
        Rule(
            tier="T2", approvals=1, roles=("approver",), expiry_ms=HOUR_MS, signed=signed, typed="digest",
            self_ok=t2_by_oneself,
        ),
        Rule(
            tier="T3", approvals=t3_votes, roles=("approver",), expiry_ms=30 * MINUTE_MS, signed=signed,
            typed="digest", reason=True, self_ok=t3_by_oneself,
        ),
    )  # fmt: skip


TEAM = Policy(name="team", rules=_rules((), (), 2), own_work=OwnWork())
"""Nobody approves what they thought out or asked for, except what can be taken back, or is their own. The default."""
PAIR = Policy(name="pair", mode="pair", rules=_rules(_PEOPLE, (), 1), limits=PAIR_LIMITS, own_work=OwnWork())
"""For two people: each disrupts alone, under their own key; what is hard to undo takes both."""
SOLO = Policy(
    name="solo", mode="solo", rules=_rules(_ANY, _ANY, 1, solo=True), limits=SOLO_LIMITS, own_work=OwnWork()
)  # fmt: skip
"""For one person: no two-person rule holds."""
BUILT_IN: dict[str, Policy] = {policy.name: policy for policy in (SOLO, PAIR, TEAM)}
"""The starting points, from the mildest to the strictest."""

# -- who somebody is --------------------------------------------------------------------------------------------------


def person_of(policy: Policy, actor: Actor) -> Person | None:
    """The person of the policy that an actor is proved to be: by a signature, or by an account that is theirs alone."""
    if actor.kind != "human":
        return None
    if actor.subject.startswith("person:"):
        found = next((person for person in policy.people if person.subject == actor.subject), None)
        if found is None or actor.signed:
            return found
        return found if holders(policy, actor.account) == (found,) else None
    mine = holders(policy, actor.account)
    return mine[0] if len(mine) == 1 else None


def holders(policy: Policy, account: str) -> tuple[Person, ...]:
    """The people who have an account, or whom a token was made for."""
    behind = stands_for(account)
    return tuple(
        person
        for person in policy.people
        if behind in person.accounts or (behind != account and behind == person.subject)
    )


def subject_of(policy: Policy, subject: str, account: str) -> str:
    """The subject that counts for a vote: the person whose account it is, where it is one person's alone. Nobody counts
    twice for having been named in between."""
    if subject.startswith("person:") or subject != stands_for(account):
        return subject
    mine = holders(policy, account)
    return mine[0].subject if len(mine) == 1 else subject


def roles(policy: Policy, actor: Actor, scope: Scope = WHOLE, *, owner: str = OWNER) -> frozenset[Role]:
    """The roles of an actor in all that is touched. An actor whom the policy does not know is a viewer. While the
    policy names nobody, the account that owns the engine's process has all roles of people."""
    if not actor.within.covers(scope):
        return frozenset(("viewer",))
    if actor.kind == "system":
        return frozenset()
    if not policy.people and actor.kind == "human" and stands_for(actor.account) == actor.subject == owner:
        return OWNER_ROLES
    holder = holder_of(policy, actor)
    return frozenset(("viewer",)) if holder is None else frozenset(_granted(holder, scope))


def holder_of(policy: Policy, actor: Actor) -> Person | ServiceIdentity | None:
    """The person or the service of the policy that an actor is."""
    if actor.kind in ("service", "llm"):
        return next((service for service in policy.services if service.subject == actor.subject), None)
    return person_of(policy, actor)


def _granted(holder: Person | ServiceIdentity, scope: Scope) -> tuple[Role, ...]:
    scoped = (role for grant in holder.scoped or () if grant.scope.covers(scope) for role in grant.roles)
    drafts: tuple[Role, ...] = ("drafter",) if isinstance(holder, ServiceIdentity) else ()
    return ("viewer", *drafts, *(holder.roles or ()), *scoped)


def somewhere(policy: Policy, actor: Actor, *, owner: str = OWNER) -> frozenset[Role]:
    """The roles of an actor in any part of the cell."""
    everywhere = roles(policy, msgspec.structs.replace(actor, within=WHOLE), owner=owner)
    holder = holder_of(policy, actor)
    if holder is None:
        return everywhere
    return everywhere.union(role for grant in holder.scoped or () for role in grant.roles)


SEES_ALL: frozenset[Role] = frozenset(("operator", "approver", "admin", "auditor"))
"""Whoever has one of these roles in the whole cell sees all of it: they must see what they decide on."""


class Membership(msgspec.Struct, frozen=True):
    """What the system says of the OS accounts of a caller."""

    users: tuple[str, ...] = ()
    """Their names."""
    groups: frozenset[str] = frozenset()
    """"unix-group:physics"."""


NO_MEMBERSHIP = Membership()


def visibility(
    policy: Policy, actor: Actor, membership: Membership = NO_MEMBERSHIP, *, owner: str = OWNER
) -> Visibility | None:
    """The work that an actor may see; None: all of it. A token that is for tenants or queues shows those alone,
    whoever its holder is. Somebody whom only an OpenID provider knows sees nothing but by a rule."""
    by_policy = _visible_by_policy(policy, actor, membership, owner)
    given = (VisiblePart(tenants=actor.within.tenants), VisiblePart(queues=actor.within.queues))
    by_token = tuple(part for part in given if part != VisiblePart())
    if by_policy is None and not by_token:
        return None
    return Visibility(parts=(*(() if by_policy is None else (by_policy,)), *by_token))


def _visible_by_policy(policy: Policy, actor: Actor, membership: Membership, owner: str) -> VisiblePart | None:
    if not policy.views:
        by_provider = stands_for(actor.account).startswith("oidc:")
        return VisiblePart() if by_provider and holder_of(policy, actor) is None else None
    holder = holder_of(policy, actor)
    everywhere = roles(policy, msgspec.structs.replace(actor, within=WHOLE), owner=owner)
    if actor.kind == "system" or everywhere.intersection(SEES_ALL):
        return None
    names = {actor.subject, stands_for(actor.account), EVERYONE, *membership.groups}
    names.update(f"{OIDC_GROUP}{group}" for group in actor.groups)
    rules = [rule for rule in policy.views if names.intersection(rule.who)]
    scopes = [grant.scope for grant in (holder.scoped if holder is not None else ()) or ()]
    # Of a grant of tenants in some queues only: what is in both cannot be told here, and is not shown.
    scopes = [scope for scope in scopes if not (scope.tenants and scope.queues)]
    teams = [tuple(team.split(":", 1)) for rule in rules for team in rule.teams]
    own = membership.users if any(rule.own for rule in rules) else ()
    return VisiblePart(
        tenants=_all_of([*(rule.tenants for rule in rules), *(scope.tenants for scope in scopes)]),
        teams=(*(("" if tenant == "*" else tenant, team) for tenant, team in teams), *(("", user) for user in own)),
        queues=_all_of([*(rule.queues for rule in rules), *(scope.queues for scope in scopes)]),
    )


def may_log_in(policy: Policy, account: str, groups: Sequence[str]) -> bool:
    """True where a view names this account of an OpenID provider, or one of the groups that it says it is in."""
    names = {account, *(f"{OIDC_GROUP}{group}" for group in groups)}
    return any(names.intersection(rule.who) for rule in policy.views or ())


def _all_of(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for several in names for name in several))


_ROLES_FOR: dict[Deed, tuple[Role, ...]] = {
    "read": ("viewer",),
    "submit": ("operator", "submitter"),
    "configure": ("operator", "admin"),
    "propose": ("operator", "drafter"),
    "vote": ("operator", "approver"),
    "execute": ("operator", "approver"),
    "pause": ("operator", "approver", "admin"),
    "rollback": ("operator", "approver"),
    "cancel": ("operator", "approver", "admin"),
    "break_glass": ("admin", "operator"),
    "review": ("approver", "admin"),
    "freeze": ("operator", "approver", "admin"),
    "thaw": ("admin",),
    "policy": ("admin",),
    "runbook": ("approver",),
    "redact": ("admin",),
    "export": ("auditor", "admin"),
    "key": ("admin",),
    "respond": ("operator", "approver", "admin"),
    "alert": ("operator", "admin"),
}
"""Any of these roles will do. Stopping is for all who act; letting go on is not."""


def may(
    policy: Policy, actor: Actor, deed: Deed, tier: Tier = "T0", scope: Scope | None = WHOLE, *, owner: str = OWNER
) -> str:
    """Empty when an actor may do it; else why not. For "vote" that says who may vote on such a tier at all; whether the
    vote counts is for `why_not_counted`. Without a scope: in some part of the cell, which is not known yet."""
    not_for = why_not_token(actor, deed, scope)
    if not_for:
        return not_for
    held = somewhere(policy, actor, owner=owner) if scope is None else roles(policy, actor, scope, owner=owner)
    if deed == "alert" and actor.kind == "service" and actor.deeds is not None:
        return ""  # an admin made its token for that, as for an agent
    wanted = _ROLES_FOR[deed]
    if deed == "propose" and scope is None and policy.own_work:
        wanted += ("submitter",)  # about their own work; what it touches is looked at once it is known
    if deed == "vote":
        if actor.kind != "human":
            return not_human(actor.kind)
        wanted = ("operator", "approver") if TIERS.index(tier) < 2 else ("approver",)
    if deed == "break_glass" and "admin" not in held:
        person = person_of(policy, actor)
        if actor.kind != "human" or person is None or not person.on_call:
            return f"{named(actor)} is neither an admin nor an operator on call"
    if held.intersection(wanted):
        return ""
    person = person_of(policy, actor)
    known = " in this part of the cell" if person is not None and scope not in (None, WHOLE) else ""
    shared = [each.id for each in holders(policy, actor.account)] if person is None and actor.kind == "human" else []
    whose = f": it is shared by {', '.join(shared)}: use --as NAME" if len(shared) > 1 else ""
    if actor.kind == "human":
        wanted = tuple(role for role in wanted if role != "drafter")
    return f"{named(actor)} is not {_either(wanted)}{known}{whose}"


SERVICE_ROLES: frozenset[Role] = frozenset(("viewer", "submitter"))
"""What a policy may let a service be, besides a drafter."""


def why_not_token(actor: Actor, deed: Deed, scope: Scope | None = WHOLE) -> str:
    """Empty where nothing that an actor came with keeps them from a deed; else what the token that was shown is for."""
    if actor.deeds is not None and deed not in actor.deeds:
        return f"this token does not allow it ({', '.join(sorted(actor.deeds)) or 'nothing'})"
    if scope is not None and not actor.within.covers(scope):
        return f"this token covers {actor.within.words()}, not everything this touches"
    return ""


def named(actor: Actor) -> str:
    """The name of an actor in messages."""
    return actor.subject.removeprefix("person:") or "nobody"


def not_human(kind: Kind) -> str:
    return "the system itself does not vote" if kind == "system" else f"not human: a {kind} never votes"


def _either(wanted: Sequence[Role]) -> str:
    words = [f"an {role}" if role[0] in "aeiou" else f"a {role}" for role in wanted]
    return " or ".join(words)


# -- what a plan needs ------------------------------------------------------------------------------------------------

FLOORS: dict[Tier, ApprovalNeed] = {
    "T0": ApprovalNeed(approvals=1, roles=(), expiry_ms=7 * 24 * HOUR_MS, window_ms=4 * HOUR_MS, self_ok=True),
    "T1": ApprovalNeed(approvals=1, roles=(), expiry_ms=24 * HOUR_MS, window_ms=4 * HOUR_MS, self_ok=True),
    "T2": ApprovalNeed(
        approvals=1, roles=("approver",), expiry_ms=4 * HOUR_MS, window_ms=2 * HOUR_MS, signed=True, typed="digest"
    ),
    "T3": ApprovalNeed(
        approvals=2, roles=("approver",), expiry_ms=2 * HOUR_MS, window_ms=HOUR_MS, signed=True, typed="digest",
        reason=True,
    ),
}  # fmt: skip
"""Below this no policy of a team goes. Expiry and window are bounds from above."""
PAIR_FLOORS: dict[Tier, ApprovalNeed] = FLOORS | {
    "T2": msgspec.structs.replace(FLOORS["T2"], self_ok=True),
    "T3": msgspec.structs.replace(FLOORS["T3"], approvals=1),
}
SOLO_FLOORS: dict[Tier, ApprovalNeed] = {
    tier: ApprovalNeed(
        approvals=1, roles=(), expiry_ms=floor.expiry_ms, window_ms=floor.window_ms, typed=floor.typed,
        reason=floor.reason, self_ok=True,
    )
    for tier, floor in FLOORS.items()
}  # fmt: skip


_FLOORS_OF: dict[Mode, dict[Tier, ApprovalNeed]] = {"solo": SOLO_FLOORS, "pair": PAIR_FLOORS, "team": FLOORS}


def floor_of(policy: Policy, tier: Tier) -> ApprovalNeed:
    return _FLOORS_OF[policy.mode][tier]


def is_own(policy: Policy, own: OwnedWork | None, author: Party, requester: str, origin: Origin) -> bool:
    """True when a plan is its author's own affair: a person thought it out, for themselves, and by the policy they may
    do all of it with their own work. An owner who is named by an account is the person whose account it is, where it
    is one person's alone."""
    rule = policy.own_work
    if not rule or own is None or author.kind != "human" or origin in MACHINES:
        return False
    mine = subject_of(policy, author.subject, author.account)
    return (
        own.workloads <= min(rule.workloads, MAX_OWN)
        and set(own.actions) <= set(rule.actions).intersection(OWN_ACTIONS)
        and requester in ("", author.subject)
        and mine == subject_of(policy, own.owner, own.owner)
    )


def need_of(policy: Policy, plan: Plan, scope: Scope) -> ApprovalNeed:
    """The need of a plan that touches this."""
    own = is_own(policy, plan.blast.own or None, plan.author, plan.requester, plan.origin)
    return need(policy, plan.tier, plan.origin, scope, author=plan.author.kind, own=own)


def need(
    policy: Policy,
    tier: Tier,
    origin: Origin,
    scope: Scope = WHOLE,
    *,
    author: Kind = "human",
    own: bool = False,
) -> ApprovalNeed:
    """The need of a plan of this tier: the strictest of the floor and of all rules that concern it. A plan that a
    machine thought out or wrote cannot be approved by its author or requester, except in solo mode. `own`: see
    `is_own`; how it is confirmed is as for anybody's plan."""
    found = floor_of(policy, tier)
    machine = author != "human" or origin in MACHINES
    for rule in policy.rules:
        if rule.tier == tier and rule.scope.meets(scope):
            self_ok = origin in rule.self_ok and (policy.mode == "solo" or not machine)
            found = stricter(found, _need_of(rule, self_ok))
    if machine and policy.mode != "solo":
        found = msgspec.structs.replace(found, self_ok=False)
    if own:
        return msgspec.structs.replace(
            found, approvals=1, roles=(), signed=False, self_ok=True, groups=(), own=True
        )  # fmt: skip
    return found


def _need_of(rule: Rule, self_ok: bool) -> ApprovalNeed:
    return ApprovalNeed(
        approvals=rule.approvals,
        roles=tuple(sorted(rule.roles)),
        expiry_ms=rule.expiry_ms,
        window_ms=rule.window_ms,
        signed=rule.signed,
        typed=rule.typed,
        reason=rule.reason,
        self_ok=self_ok,
        groups=tuple(sorted(rule.groups, key=_by_name)),
    )


def _by_name(group: ApproverGroup) -> tuple[str, tuple[str, ...], int]:
    return group.name, group.people, group.approvals


def stricter(a: ApprovalNeed, b: ApprovalNeed) -> ApprovalNeed:
    """The need that satisfies both: commutative, and never below either."""
    return ApprovalNeed(
        approvals=max(a.approvals, b.approvals),
        roles=tuple(sorted(set(a.roles) | set(b.roles))),
        expiry_ms=min(a.expiry_ms, b.expiry_ms),
        window_ms=min(a.window_ms, b.window_ms),
        signed=a.signed or b.signed,
        typed="digest" if "digest" in (a.typed, b.typed) else "key",
        reason=a.reason or b.reason,
        self_ok=a.self_ok and b.self_ok,
        groups=tuple(sorted(set(a.groups) | set(b.groups), key=_by_name)),
        own=a.own and b.own,
    )


# -- votes ------------------------------------------------------------------------------------------------------------


def why_not_counted(
    policy: Policy,
    vote: Vote,
    author: Party,
    requester: str,
    need: ApprovalNeed,
    scope: Scope = WHOLE,
    *,
    owner: str = OWNER,
) -> str:
    """Empty when a vote counts by the roles and keys of `policy`, the one in force now; else why it does not.

    A rejection counts without signature and whoever wrote the plan: stopping is safe.
    """
    if vote.kind != "human":
        return not_human(vote.kind)
    if vote.verdict == "abstain":
        return "abstains"
    subject = subject_of(policy, vote.subject, vote.account)
    actor = Actor(subject=subject, account=vote.account, signed=bool(vote.key))
    if vote.key and vote.key not in fingerprints(policy, subject):
        return "the key that signed it is no longer enrolled for them"
    held = roles(policy, actor, scope, owner=owner)
    if vote.verdict == "reject":
        return "" if held.intersection(need.roles or ("operator", "approver")) else "has no role that may vote on this"
    if need.own:
        # Its owner asks for it: whoever acts here may say yes to that.
        wanted: tuple[Role, ...] = ("operator",)
        if subject == subject_of(policy, author.subject, author.account):
            held, wanted = somewhere(policy, actor, owner=owner), ("submitter", "operator")
        return "" if held.intersection(wanted) else f"is not {_either(wanted)}"
    missing = [role for role in need.roles if role not in held]
    if missing:
        return f"is not {_either(missing)} for everything this touches"
    if need.signed and not vote.key:
        return "is not signed with their own key"
    if need.self_ok:
        return ""
    if subject == subject_of(policy, author.subject, author.account):
        return "is the author"
    if requester and subject == subject_of(policy, requester, requester):
        return "asked for it"
    if shares_account(policy, vote.account, author, requester) and not (vote.key and author.signed):
        return (
            "comes from the author's OS account: only two signatures prove two people. The "
            "author must have signed it as well: `muster --as AUTHOR proposal new` does"
        )
    return ""


def shares_account(policy: Policy, account: str, author: Party, requester: str) -> bool:
    """True when a vote from an account may come from the plan's author or requester, as far as accounts tell. Nobody
    knows who is behind "tcp"."""
    if author.kind == "human" and _same(account, author.account):
        return True
    asked = {requester} | {a for person in policy.people if person.subject == requester for a in person.accounts}
    return bool(requester) and stands_for(account) in asked


def _same(a: str, b: str) -> bool:
    """True when two accounts may belong to the same person."""
    return stands_for(a) == stands_for(b) or TCP in (a, b)


def fingerprints(policy: Policy, subject: str) -> frozenset[str]:
    """Fingerprints of the keys that are enrolled for a subject."""
    from runbooks.plans.keys import public_key

    return frozenset(
        public_key(line).fingerprint for person in policy.people if person.subject == subject for line in person.keys
    )


class VoteTally(msgspec.Struct, frozen=True, kw_only=True):
    """The count of votes against a need."""

    counted: tuple[str, ...]
    """Subjects whose approval counts, each once."""
    why_not: tuple[str, ...]
    """One for each vote: empty when it counts."""
    missing: int
    """Approvals that are still missing."""
    wanted: str = ""
    """Who may give them, in words; empty when nobody need."""


def tally(
    policy: Policy,
    votes: Sequence[Vote],
    author: Party,
    requester: str,
    need: ApprovalNeed,
    scope: Scope = WHOLE,
    *,
    owner: str = OWNER,
) -> VoteTally:
    """Counts people, not votes: one for each subject, key and, where nothing is signed, account."""
    counted: dict[str, Vote] = {}
    why_not: list[str] = []
    for vote in votes:
        why = why_not_counted(policy, vote, author, requester, need, scope, owner=owner)
        subject = subject_of(policy, vote.subject, vote.account)
        if not why and vote.verdict != "reject":
            if subject in counted:
                why = "has already voted"
            elif any(_one(vote, other) for other in counted.values()):
                why = "comes from the account or the key of another vote"
            else:
                counted[subject] = vote
        why_not.append(why)
    groups = [
        (group, group.approvals - sum(subject.removeprefix("person:") in group.people for subject in counted))
        for group in need.groups
    ]
    short = max(0, need.approvals - len(counted), *(lacking for _, lacking in groups))
    return VoteTally(
        counted=tuple(counted),
        why_not=tuple(why_not),
        missing=short,
        wanted=_wanted(need, groups) if short else "",
    )


def _one(a: Vote, b: Vote) -> bool:
    if a.key and b.key:
        return a.key == b.key
    return _same(a.account, b.account)


def _wanted(need: ApprovalNeed, groups: Sequence[tuple[ApproverGroup, int]]) -> str:
    if need.own:
        return "its author, whose work it is, or an operator"
    who = " and ".join(need.roles) or "operator"
    others = "" if need.self_ok else ", neither its author nor who asked for it"
    signed = ", signed with their own key" if need.signed else ""
    of = "".join(f"; {lacking} of {group.name}" for group, lacking in groups if lacking > 0)
    return f"{who}{others}{signed}{of}"


# -- freezes, limits, break-glass -------------------------------------------------------------------------------------


def frozen(policy: Policy, extra: Sequence[FreezeSpec], at_ms: int, tier: Tier, scope: Scope = WHOLE) -> str:
    """Name of a window that stops plans of this tier at that moment (Unix ms); empty when there is none."""
    return next((spec.name for spec in (*policy.freezes, *extra) if holds(spec, at_ms, tier, scope)), "")


class PolicyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One line of what a new policy changes."""

    text: str
    loosens: bool
    """More may be done, or by more, or with fewer votes."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A new policy and how its vote stands."""

    id: str
    """"policy-3"."""
    revision: int = 0
    """Its version: what a signature over a vote names as the revision."""
    digest: str
    state: str
    """awaiting, in_force, rejected, expired, superseded (another one came into force first)."""
    author: str
    at_ms: int
    expires_ms: int
    changes: tuple[PolicyDifference, ...]
    needs: int
    """Votes that are missing."""
    need: str
    """Of whom, in words."""
    signed: bool
    """The votes must be signed."""
    alone: bool
    """Its author may put it in force alone: there is nobody else."""
    votes: tuple[str, ...]
    """One line each."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """As whom an engine knows whoever asks, and what their signatures need."""

    subject: str
    kind: Kind
    account: str
    roles: tuple[Role, ...]
    """In all of the cell."""
    scoped: tuple[str, ...] = ()
    """Roles in parts of it, in words: "approver of pools h100"."""
    token: str = ""
    """Id of the token that was shown."""
    deeds: tuple[str, ...] | None = None
    """What that token is for; None: all that its holder may do."""
    within: str = ""
    """The part of the cell that it is for, in words."""
    shared_with: tuple[str, ...] = ()
    """People who have the same account, where it is not one person's alone: each must say who they are."""
    cell_id: str
    """Identity of the cell, which signatures name."""
    now_ms: int
    """The engine's wall clock, Unix ms, by which signatures are dated."""
    keys: dict[str, tuple[str, ...]]
    """Subject -> fingerprints of the keys that are enrolled."""
    asked_ns: int = 0
    """Monotonic clock of the asker when this was answered."""
    acts_as: str = ""
    """In whose name the asker acts, by their own word; empty: as `subject`."""

    @property
    def me(self) -> str:
        """The subject whose view is shown. It decides nothing."""
        return self.acts_as or self.subject

    @property
    def proved_by_key(self) -> bool:
        """True when only a signature shows that a statement in that name is theirs."""
        return self.me != self.subject


class PolicyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another policy, as it is handed in: exactly one of the two."""

    text: str = ""
    """The file."""
    built_in: str = ""
    """"solo", "pair" or "team": its rules and limits, for the people, services, freezes and channels that are there."""
    signed: Signed | None = None
    """Over kind "policy", the new version as revision, the new digest, and "propose" as verdict."""


class PolicyVote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    candidate: str
    """"policy-3"."""
    digest: str
    verdict: Verdict = "approve"
    signed: Signed | None = None
    """Over kind "policy", the candidate as proposal, its revision and digest, and the verdict."""


class PolicyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that may be put to the vote."""

    version: int
    digest: str
    mode: str
    changes: tuple[PolicyDifference, ...]
    notes: tuple[str, ...]
    two_people: str
    roles: tuple[Role, ...]
    """Of whoever asks, under it."""
    need: str
    """What putting it in force needs."""


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """The policy in force, and those that wait for votes."""

    name: str
    version: int
    mode: str
    digest: str
    since_ms: int
    """When it came into force, Unix ms; 0: it always was."""
    by: str
    two_people: str
    """What its two-person rule is worth on this machine."""
    people: tuple[tuple[str, ...], ...]
    """(id, roles, accounts, fingerprints, remarks), in words."""
    rules: tuple[tuple[str, str], ...]
    """(tier, and part of the cell; what plans of it need)."""
    limits: tuple[tuple[str, str], ...]
    services: tuple[str, ...]
    channels: tuple[tuple[str, str], ...]
    freezes: tuple[Freeze, ...]
    """Its own, and those set by hand that are not over."""
    notes: tuple[str, ...]
    change_need: str
    """What putting another policy in force needs."""
    own_work: str = ""
    """What owners may do alone with their own work; empty: nothing."""
    alone: tuple[tuple[str, str], ...] = ()
    """(what is done, what it needs besides the asker), for whoever asks, as `starting_points.asked` finds."""
    unchosen: bool = False
    """Nobody has chosen a policy for this cell yet."""
    candidates: tuple[Candidate, ...]
    text: str
    """The file it came from; of one that is built in, a file that says the same."""
