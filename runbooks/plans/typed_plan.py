"""The typed plan: acts, steps, and a proposal's life.

An act is one action of the catalogue on explicit targets. A step is an act with its targets as shown, its checks and
its way back. A plan is its steps with everything that a vote is about; a person approves the digest of its canonical
form. A plan holds no floats and no text of models. What is not in the plan is not approved.

`check_bounds` walks everything an act holds: whole ids, possible numbers, one line of text. It knows no single action,
so a new field is checked too.

The life of a proposal is the table `EDGES`:

    drafted -> simulated -> awaiting -> approved -> executing <-> verifying -> verified
                               |           |            |             |
                               |           |          paused        failed -> rolling_back -> rolled_back
                               |           |-> stale                                      |-> rollback_failed
                               |-> rejected, expired, cancelled, superseded (approved too)

Only a claim of an approved plan, or the continuation of a claimed one, leads to executing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec

from engine.model.commands import MAX_EVIDENCE
from engine.model.errors import RefusedError, SpecError
from engine.model.reports import PoolSize
from engine.model.spec_parts import MAX_POOL_NODES, Autoscaling
from engine.model.specs import MAX_QUANTITY, BudgetSpec, Policy, QueueSpec, ReservationSpec, Taint, check_id
from runbooks.plans.checks import Check
from runbooks.plans.identity import Kind

ActionName = Literal[
    "cancel", "hold", "release", "requeue", "suspend", "resume", "cordon", "uncordon", "drain", "hold_queue",
    "drain_queue", "open_queue", "set_quota", "reserve", "unreserve", "set_policy", "consolidate", "interrupt",
    "resize",
    "set_price", "set_budget", "remove_budget", "approve_spending",
    "set_scaling", "set_targets", "set_autoscaling",
    "preempt", "move", "set_priority", "scale_pool", "canary", "notify", "open_review",
    "set_qos", "set_job_priority", "power_up", "power_down", "taint", "untaint",
]  # fmt: skip
Tier = Literal["T0", "T1", "T2", "T3"]
"""T0 tells somebody, T1 can be taken back, T2 disrupts, T3 is hard to undo."""
TIERS: tuple[Tier, ...] = get_args(Tier)
DIGEST_TYPED = 6
"""Characters of a digest that a person types who means just that plan."""
Origin = Literal["person", "runbook", "recommender", "model"]
"""Who drafted it, as far as a policy tells drafters apart. What a machine did needs another person's vote."""
SourceKind = Literal["operator", "runbook", "suggestion", "rule", "model", "service", "agent"]
ORIGINS: dict[SourceKind, Origin] = {
    "operator": "person",
    "runbook": "runbook",
    "suggestion": "recommender",
    "rule": "recommender",
    "service": "recommender",
    "model": "model",
    "agent": "model",
}
"""What each way in counts as for a policy. A new way in, such as a chat, is one line here."""
OnFail = Literal["rollback", "pause", "abort"]
Confirm = Literal["none", "operator", "approver"]
Start = Literal["approved", "asked"]
"""When it is carried out: with the last vote that is needed, or when somebody executes it after that."""
CATALOGUE_VERSION = 1


class QueueChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another spec for a queue: quota, weight, order, burst."""

    was: QueueSpec
    """What it has when the change is thought out. The way back; and when it has something else by then, the change is
    refused instead of undoing what somebody else did meanwhile."""
    to: QueueSpec
    over: Literal["refuse", "keep", "evict"] = "refuse"
    """If more is in use than `to` allows: change nothing and name what would have to go; let it run out; or put
    the least costly of it back into its queue."""


class RequestChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another request for the tasks of workloads."""

    group: str = ""
    """May be left out where each has one group."""
    request: dict[str, int]
    """Resource name -> quantity; a resource that is not named keeps its own."""
    evidence: str = ""
    """What it rests on, for the history of the workload: one line."""


class MoneyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another price of a pool, or another spec of a budget."""

    price_microusd_hour: int | None = None
    """What a node costs from now on."""
    budget: BudgetSpec | None = None


class ScalingChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New limits or targets of a pool, or new settings of the autoscaler. A field that is not given stays."""

    least: int | None = None
    most: int | None = None
    headroom: int | None = None
    priority: int | None = None
    targets: tuple[tuple[int, int], ...] = ()
    """(cell ms, nodes); given for set_targets alone, in place of what was set."""
    preset: str = ""
    """Of the autoscaler's settings; empty: as they are."""
    settings: dict[str, int | bool | tuple[str, ...]] = {}
    """Field of Autoscaling -> value."""


class WorkloadMove(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A running workload that is stopped and goes on elsewhere in the same turn, whole."""

    id: str
    was: tuple[str, ...]
    """Nodes it is on when the move is thought out. When it is on others by then, the move is refused."""
    to: tuple[str, ...]
    """Nodes it goes to, in the order in which they are filled."""


class Canary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another order within some queues, or another policy, measured against what was, then kept or taken back."""

    order: Literal["best_effort", "strict_fifo", "fair"] | None = None
    """For the queues that are the targets. Exactly one of this and `policy` is given."""
    policy: Policy | None = None
    """For the whole cell, whose name is the target."""
    window_ms: int
    """Cell time after which is measured."""
    worst_permille: int = 1100
    """Wait p95 of what starts in the window, in permille of what it was before, above which it is taken back."""
    least_starts: int = 20
    """Starts in the window below which nothing is concluded."""


class Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Words for people, one printable line: data, never a template."""

    text: str


class Act(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One action of the catalogue on explicit targets."""

    action: ActionName
    targets: tuple[str, ...]
    """Ids, in the order they are acted on: of workloads, nodes, queues, pools; the policy's name for set_policy; ids of
    channels for notify."""
    queue: QueueChange | None = None
    """Given exactly for set_quota."""
    reservation: ReservationSpec | None = None
    """Given exactly for reserve."""
    moves: tuple[WorkloadMove, ...] = ()
    """Given exactly for consolidate: one for each target, in that order."""
    resize: RequestChange | None = None
    """Given exactly for resize."""
    money: MoneyChange | None = None
    """Given exactly for set_price, with the price, and set_budget, with the budget."""
    scaling: ScalingChange | None = None
    """Given exactly for set_scaling, set_targets and set_autoscaling, whose target is `autoscaler`."""
    to: str = ""
    """Given exactly for set_priority, a priority class, move, a queue, set_qos, a QOS of Slurm, and set_job_priority, a
    number."""
    nodes: int | None = None
    """Given exactly for scale_pool: how many it shall have."""
    canary: Canary | None = None
    """Given exactly for canary."""
    note: Note | None = None
    """Given exactly for notify and open_review."""
    taint: Taint | None = None
    """Given exactly for taint and untaint."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One target as the engine's state has it at the moment it was read."""

    id: str
    """Id of a workload or node, name of a queue or reservation; for `set_policy` the name of the policy asked for."""
    state: str
    """Label of its state; for `set_policy` the policy in force, for a reservation "made" or "not made"."""
    attempts: int = 0
    """How often a workload was started: tells a restarted one from the run that was shown."""
    tenant: str = ""
    gpu_milli: int = 0
    """That a workload asks for, or a node has, or one node of a pool."""
    cpu_milli: int = 0
    unsaved_ms: int = 0
    """Time a bound workload has run since its last checkpoint, or its start; else 0."""
    worked_ms: int = 0
    """Time a workload has run in all its attempts."""
    pool: str = ""
    work: tuple[str, ...] = ()
    """Workloads with a task on a node; of a queue, those that the action stops."""
    queue: QueueSpec | None = None
    """What a queue has."""
    reservation: ReservationSpec | None = None
    """What a reservation that is made keeps."""
    taints: tuple[Taint, ...] = ()
    """Those that a node has."""
    nodes: tuple[str, ...] = ()
    """Nodes that a bound workload is on, as many as the engine tells."""
    holds: tuple[tuple[str, int], ...] = ()
    """(node, milli-GPU) that a bound workload holds there, of `nodes`."""
    asks: tuple[tuple[str, dict[str, int]], ...] = ()
    """(group, request of one task) of a workload."""
    price_microusd_hour: int = 0
    """Of a node of a pool."""
    budget: BudgetSpec | None = None
    """What a budget that is set says."""
    approved: bool = False
    """Somebody approved the spending of a workload."""
    size: PoolSize | None = None
    """What a pool's size goes by, and is."""
    autoscaling: Autoscaling | None = None
    """The autoscaler's settings."""
    was: str = ""
    """The priority class or the queue of a workload, where that is what changes."""
    owner: str | msgspec.UnsetType = msgspec.UNSET
    """Subject that submitted a workload. Left out where it is not known: so plans of before keep their digest."""
    keeps: tuple[tuple[str, str, int], ...] = ()
    """(node, pool, milli-GPU) that a reservation, once made, keeps from everyone else."""
    count: int = 0
    """Nodes of a pool, where its price is what changes."""


class OwnedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan touches where it is the work of its author, and nothing else: see `approval_policy.OwnWork`."""

    owner: str
    actions: tuple[ActionName, ...]
    workloads: int
    """Targets, and what is stopped besides, each once."""


class Blast(msgspec.Struct, frozen=True, kw_only=True):
    """The extent of what is touched, in the units of the limits."""

    gpu_milli: int = 0
    """Of the work that is stopped and of the nodes that are taken out of use."""
    nodes: tuple[tuple[str, int], ...] = ()
    """(pool, nodes taken out of use), by name."""
    workloads: int = 0
    """Stopped, or moved elsewhere."""
    tenants: tuple[str, ...] = ()
    """Whose work that is, by name."""
    cost_microusd_hour: int = 0
    """By how much the cell may cost more."""
    named_nodes: tuple[tuple[str, str, int], ...] = ()
    """(node, pool, milli-GPU) of those among `nodes` whose names are known, so that none is counted twice."""
    named_work: tuple[tuple[str, int], ...] = ()
    """(workload, milli-GPU counted for it)."""
    named_holds: tuple[tuple[str, str, int], ...] = ()
    """(workload, node, milli-GPU) that stopped work holds there: where the node counts, that does not count again."""
    own: OwnedWork | msgspec.UnsetType = msgspec.UNSET
    """Given where a plan is its author's own affair by the policy that it was made under."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One act inside a plan."""

    id: str
    act: Act
    shown: tuple[Target, ...]
    """The targets as they were when it was simulated, after the steps before it."""
    stops: tuple[Target, ...] = ()
    """Workloads that it stops besides its targets."""
    tier: Tier
    blast: Blast
    pre: tuple[Check, ...] = ()
    """What must hold before it is done."""
    verify: tuple[Check, ...] = ()
    """What must hold afterwards, besides what the catalogue reads back."""
    rollback: tuple[Act, ...] = ()
    """How it is taken back; empty: it cannot be."""
    on_fail: OnFail = "pause"
    confirm: Confirm = "none"
    """Who must say go before it is done, besides the votes on the whole."""
    timeout_ms: int
    """Wall time within which its effect must be seen."""


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """Personal or secret text, kept apart so that it can be erased: what is signed holds this commitment alone."""

    ref: str
    mac: str
    """HMAC-SHA-256 of the text under a key of its own, hex."""


class RunbookRef(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    version: int
    sha256: str
    """Of the file."""


class EvidenceRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    sha256: str


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The source of a plan. `runbooks.gate.approval_gate.source_of` alone decides it; a request can only lower it."""

    kind: SourceKind
    id: str = ""
    """Of the suggestion (R-k3vq7), the draft (D-3), the runbook, the service or the agent."""
    by: str = ""
    """What drafted it: the kind of the finding, the rule, the model."""

    @property
    def origin(self) -> Origin:
        return ORIGINS[self.kind]

    def words(self) -> str:
        """As in "suggestion R-k3vq7 (quota_beside_idle)"."""
        kind = {"rule": "draft by rule", "model": "draft by a model"}.get(self.kind, self.kind)
        return " ".join(part for part in (kind, self.id, f"({self.by})" if self.by else "") if part)


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most that the plan as a whole may touch; None: as the policy says."""

    nodes: int | None = None
    gpus: int | None = None
    workloads: int | None = None
    duration_ms: int | None = None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One line of before/after, measured on a fork."""

    label: str
    before: str
    after: str


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that a fork showed."""

    version: int
    """State version of the cell it was forked from."""
    at_ms: int
    """Cell time."""
    effects: tuple[Effect, ...]


class Party(msgspec.Struct, frozen=True, kw_only=True):
    """An actor as a plan names one: for good."""

    subject: str
    kind: Kind
    account: str
    signed: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The subject of votes. It is never edited: an edit is a new revision, without votes."""

    v: int = 1
    proposal: str
    revision: int
    author: Party
    requester: str = ""
    """Subject for whom a machine or another person wrote it; empty: the author."""
    origin: Origin
    source: Source | None = None
    """None: of a plan that was made before it was recorded; `origin` is all that is known."""
    reason: Sealed | None = None
    steps: tuple[Step, ...]
    tier: Tier
    """The highest of the steps, or higher for their sum. Only rises."""
    blast: Blast
    """Of all steps together."""
    limits: Limits = Limits()
    simulated: Simulated
    evidence: tuple[EvidenceRef, ...] = ()
    policy_digest: str
    catalogue: int = CATALOGUE_VERSION
    runbook: RunbookRef | None = None
    rollback_tier: Tier = "T0"
    """Of taking it back right after it was done, as the fork had it."""
    rolls_back: str = ""
    """Id of the proposal whose effects it takes back; empty: none."""
    start: Start = "approved"
    expires_ms: int
    """Wall clock (Unix ms) after which it must be proposed again."""

    def canonical(self) -> bytes:
        """The bytes that are signed and hashed: JSON with sorted keys and no spaces, as RFC 8785 has it for values
        without floats."""
        return msgspec.json.encode(self, order="sorted")

    def digest(self) -> str:
        return plan_digest(self.canonical())


def plan_digest(canonical: bytes) -> str:
    """SHA-256, hex, in a domain of its own: no other kind of text can have a plan's digest."""
    return hashlib.sha256(b"muster/plan/v1\n" + canonical).hexdigest()


# -- what is asked for ------------------------------------------------------------------------------------------------


class StepRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step as somebody writes it."""

    act: Act
    id: str = ""
    """Empty: its number."""
    pre: tuple[Check, ...] = ()
    verify: tuple[Check, ...] = ()
    rollback: tuple[Act, ...] | None = None
    """None: the inverse that the catalogue knows. Anything else must be an inverse."""
    on_fail: OnFail = "pause"
    confirm: Confirm = "none"


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for a proposal. It cannot set tier, votes or expiry."""

    steps: tuple[StepRequest, ...] = ()
    rolls_back: str = ""
    """Id of a proposal that was carried out: its effects are to be taken back. Given instead of steps, which the engine
    then makes from what is left of them."""
    reason: str = ""
    requester: str = ""
    source: Source | None = None
    """What drafted it, where that was not whoever asks: a suggestion, a draft. None: whoever asks."""
    limits: Limits = Limits()
    evidence: tuple[EvidenceRef, ...] = ()
    start: Start = "approved"


def asks(action: ActionName, targets: Iterable[str], reason: str = "", **parameters: Any) -> Request:
    """A request for one act, as an operator makes it; `parameters` are fields of Act."""
    act = Act(action=action, targets=tuple(targets), **parameters)
    return Request(steps=(StepRequest(act=act),), reason=reason)


# -- what is shown ----------------------------------------------------------------------------------------------------


class VoteLine(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    verdict: Literal["approve", "reject", "abstain"]
    at_ms: int
    comment: str = ""
    counts: str = ""
    """Empty when it counts; else why not."""
    one_account: bool = False
    """It came from the OS account of the author: two keys, but one who has the account may have both."""


class StepStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a step."""

    id: str
    state: Literal["waiting", "done", "verified", "failed", "inconclusive", "rolled_back"] = "waiting"
    at_ms: int = 0
    version: int = 0
    """State version with its effect."""
    cell_ms: int = 0
    """Cell time at which it was done."""
    changed: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()
    """What was read back, one line per check."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A reason that a plan is stale: the shown value against the present one."""

    what: str
    shown: str
    now: str
    text: str
    """Both in a sentence."""


class EarlierPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that was carried out, and whose effect another one takes back."""

    proposal: str
    title: str
    targets: tuple[str, ...]
    """Those of its targets that the other one is about."""
    author: str
    approved_by: tuple[str, ...]
    executed_ms: int
    """Wall clock (Unix ms)."""
    reason: str
    """The author's words, unchecked; empty where none were given."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A plan shown to a person: what, on what, with which effect, how to take it back, until when, and how it stands.
    All words are rendered from the typed plan."""

    id: str
    plan: Plan
    digest: str
    tier: Tier
    title: str
    """Rendered from the typed plan, for example "Drain 2 nodes"."""
    steps: tuple[str, ...]
    """One line per target, resolved against the live state: "cancel wl-17 (running, 64 GPU, 3.2 h of work lost)". What
    acts on queues has a line more for every workload it stops."""
    effects: tuple[Effect, ...]
    inverse: str
    """How it can be taken back, or "cannot be undone"."""
    version: int
    """State version the effects were simulated on."""
    expires_ms: int
    """Wall clock (Unix ms) after which it must be proposed again."""
    revision: int = 1
    state: str = "awaiting"
    """A state of `runbooks.plans.typed_plan`."""
    reason: str = ""
    created_ms: int = 0
    needs: int = 0
    """Votes that are still missing."""
    need: str = ""
    """Who may give them, in words; empty when nobody need."""
    self_approvable: bool = False
    """The author may approve it alone."""
    signed: bool = False
    """Votes must be signed with the voter's own key."""
    typed: Literal["key", "digest"] = "key"
    """How a yes is confirmed: with one key, or by typing the beginning of the digest."""
    wants_reason: bool = False
    """A yes must say why."""
    why_tier: tuple[str, ...] = ()
    """What raised the tier above that of the action."""
    votes: tuple[VoteLine, ...] = ()
    standing: tuple[StepStanding, ...] = ()
    stale: tuple[Difference, ...] = ()
    note: str = ""
    """Why it is in this state, where that needs words: what failed, who rejected it, what it waits for."""
    breakglass: bool = False
    covered: bool = False
    """Of a rollback that is looked at beforehand: the votes that the proposal it takes back has got are enough."""
    carried: tuple[str, ...] = ()
    """How it is carried to another scheduler, as that is reached now, and what is read back; nothing where Muster
    decides, and of what has ended. No part of the plan."""
    takes_back: tuple[EarlierPlan, ...] = ()
    """Plans on the record whose effect on the same targets it takes back, the newest first, such as the cordon of nodes
    that it uncordons. No part of the plan."""


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person is to look at, and to say what was found."""

    id: int
    about: str
    """What it is about: a proposal, or what a plan names."""
    subject: str
    """Whom it is about: somebody else must close it, if it is forced."""
    forced: bool
    """The glass was broken."""
    text: str
    proposal: str = ""
    opened_ms: int
    closed_ms: int = 0
    """0: it is open."""
    closed_by: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of approving or executing a plan."""

    proposal: str
    digest: str
    version: int
    changed: tuple[str, ...]
    verified: tuple[str, ...]
    """What was read back after execution, one line per check."""
    state: str = "verified"
    waits_for: str = ""
    """What must happen before anything is done, or done further; empty when it is done."""


MAX_TEXT = 500
"""Characters of words for people."""
MAX_COMMENT = 500
"""Characters of a reason or a comment."""
MAX_PERSON = 128
"""Characters of a name or subject."""
TEXTS = {"note.text": MAX_TEXT, "resize.evidence": MAX_EVIDENCE}
"""Where an act holds words, and how many characters of them. Everywhere else a text is an id, or a name from a list."""
MAX_ENTRIES = 10_000
"""Of any list or table in an act."""
MINUTE_MS, WEEK_MS = 60_000, 7 * 24 * 3_600_000
NUMBERS = {
    "nodes": (0, MAX_POOL_NODES),
    "canary.window_ms": (MINUTE_MS, WEEK_MS),
    "canary.worst_permille": (1_000, 10_000),
    "canary.least_starts": (1, 100_000),
}
"""(least, most) where an act itself is narrower than the engine, which has the last word on specs."""


def check_bounds(act: Act) -> None:
    """Raises SpecError naming the first field that is out of bounds: what could stand for more than one object, cannot
    be typed, only looks like another letter, or is larger than anything there is."""
    for where, value in _leaves(msgspec.to_builtins(act), ""):
        if isinstance(value, str):
            if where in TEXTS:
                check_line(value, where, TEXTS[where])
            elif value:
                check_id(value, where)
        elif isinstance(value, int) and not isinstance(value, bool):
            least, most = NUMBERS.get(where, (-MAX_QUANTITY, MAX_QUANTITY))
            if not least <= value <= most:
                raise SpecError(where, f"{value} is not between {least} and {most}", "Give a number between them")
    for i, target in enumerate(act.targets):
        check_id(target, f"targets[{i}]")
    if act.note is not None and not act.note.text.strip():
        raise SpecError("note.text", "is empty", "Say something")


def check_line(value: str, where: str, most: int) -> None:
    """Raises SpecError unless a text is one printable line of at most so many characters: it is kept in the audit for
    ever and shown on terminals."""
    if len(value) > most:
        raise SpecError(where, f"{len(value):,} characters", f"Give at most {most}")
    if not value.isprintable():
        raise SpecError(where, "has characters that cannot be printed", "Give one line of plain text")


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything that is no list or table, the keys of tables among them."""
    if isinstance(value, dict):
        _check_size(value, where)
        for key, inner in value.items():
            yield where, key
            yield from _leaves(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        _check_size(value, where)
        for i, inner in enumerate(value):
            yield from _leaves(inner, f"{where}[{i}]")
    else:
        yield where, value


def _check_size(value: Any, where: str) -> None:
    if len(value) > MAX_ENTRIES:
        raise SpecError(where, f"has {len(value):,} entries", f"Give at most {MAX_ENTRIES:,}")


State = Literal[
    "drafted", "simulated", "awaiting", "approved", "executing", "verifying", "paused", "verified", "failed",
    "rolling_back", "rolled_back", "rollback_failed", "rejected", "denied", "stale", "expired", "superseded",
    "cancelled",
]  # fmt: skip
Event = Literal[
    "simulated", "denied", "submitted", "approved", "rejected", "expired", "cancelled", "superseded", "staled",
    "revised", "broke_glass", "claimed", "acted", "continued", "verified", "paused", "failed", "resumed",
    "taken_back", "rolled_back", "rollback_failed", "fell_short", "finished",
]  # fmt: skip

EDGES: Mapping[tuple[State, Event], State] = {
    ("drafted", "simulated"): "simulated",
    ("simulated", "denied"): "denied",
    ("simulated", "submitted"): "awaiting",
    ("awaiting", "approved"): "approved",
    ("awaiting", "broke_glass"): "approved",
    ("awaiting", "rejected"): "rejected",
    ("awaiting", "expired"): "expired",
    ("awaiting", "cancelled"): "cancelled",
    ("awaiting", "superseded"): "superseded",
    ("awaiting", "revised"): "drafted",
    ("approved", "claimed"): "executing",
    ("approved", "rejected"): "rejected",
    ("approved", "expired"): "expired",
    ("approved", "cancelled"): "cancelled",
    ("approved", "superseded"): "superseded",
    ("approved", "staled"): "stale",
    ("approved", "revised"): "drafted",
    ("approved", "fell_short"): "awaiting",
    ("stale", "revised"): "drafted",
    ("stale", "cancelled"): "cancelled",
    ("expired", "revised"): "drafted",
    ("executing", "acted"): "verifying",
    ("executing", "paused"): "paused",
    ("executing", "failed"): "failed",
    ("executing", "finished"): "verified",
    ("verifying", "continued"): "executing",
    ("verifying", "verified"): "verified",
    ("verifying", "paused"): "paused",
    ("verifying", "failed"): "failed",
    ("paused", "resumed"): "executing",
    ("paused", "failed"): "failed",
    ("paused", "taken_back"): "rolling_back",
    ("failed", "taken_back"): "rolling_back",
    ("verified", "taken_back"): "rolling_back",
    ("rollback_failed", "taken_back"): "rolling_back",
    ("rolling_back", "rolled_back"): "rolled_back",
    ("rolling_back", "rollback_failed"): "rollback_failed",
}
"""(state, event) -> the state it leads to."""

OPEN: frozenset[State] = frozenset(("awaiting", "approved"))
"""Those that expire, and that a newer one may replace."""
LIVE: frozenset[State] = frozenset(("executing", "verifying", "paused", "rolling_back"))
"""Those under way: what they touch counts against limits."""
ENDED: frozenset[State] = frozenset(
    (
        "verified", "failed", "rolled_back", "rollback_failed", "rejected", "denied", "stale", "expired", "superseded",
        "cancelled",
    )
)  # fmt: skip


def after(state: State, event: Event, name: str) -> State:
    """The state that `event` leads to. Raises RefusedError, naming the proposal, where the table has no such edge."""
    to = EDGES.get((state, event))
    if to is None:
        raise RefusedError(
            f"{name} is {state.replace('_', ' ')}: {EVENT_REFUSALS[event]}", STATE_REMEDIES.get(state, "")
        )
    return to


EVENT_REFUSALS: Mapping[Event, str] = {
    "simulated": "it cannot be simulated",
    "denied": "it cannot be denied",
    "submitted": "it cannot be proposed",
    "approved": "it cannot be approved",
    "rejected": "it cannot be rejected any more",
    "expired": "it cannot expire",
    "cancelled": "it cannot be withdrawn any more",
    "superseded": "it cannot be replaced",
    "staled": "it cannot become stale",
    "revised": "it cannot be revised",
    "broke_glass": "the glass cannot be broken for it",
    "claimed": "it cannot be executed",
    "acted": "no step can be done",
    "continued": "it cannot go on",
    "verified": "it cannot be verified",
    "paused": "it cannot be paused",
    "failed": "it cannot fail",
    "resumed": "it cannot be resumed",
    "taken_back": "it cannot be rolled back",
    "rolled_back": "it cannot be rolled back",
    "rollback_failed": "it cannot fail to be rolled back",
    "fell_short": "it cannot lack votes again",
    "finished": "it cannot be finished",
}
STATE_REMEDIES: Mapping[State, str] = {
    "awaiting": "Its votes are missing: muster proposal show says whose",
    "approved": "Execute it, or withdraw it",
    "stale": "Revise it to see what it would do now, and vote on that",
    "expired": "Propose it again",
    "rejected": "Propose something else",
    "superseded": "Look at the one that replaced it",
    "cancelled": "Propose it again if it is wanted after all",
    "verified": "It is done; muster proposal rollback undoes it, if possible",
    "rolled_back": "Propose it again if it is wanted once more",
    "paused": "Resume it, or roll it back",
    "failed": "Roll it back, or look at what it left",
}
