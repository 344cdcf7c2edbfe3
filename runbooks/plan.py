"""A plan: exactly what would be executed, in a canonical form whose digest a person approves."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from engine.model import BudgetSpec, QueueSpec, ReservationSpec

ActionName = Literal[
    "cancel", "hold", "release", "requeue", "suspend", "resume", "cordon", "uncordon", "drain", "hold_queue",
    "drain_queue", "open_queue", "set_quota", "reserve", "unreserve", "set_policy", "consolidate", "interrupt",
    "resize",
    "set_price", "set_budget", "remove_budget", "approve_spending",
    "set_scaling", "set_targets", "set_autoscaling",
]  # fmt: skip


class QueueChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another spec for a queue: quota, weight, order, burst."""

    was: QueueSpec
    """What it has when the change is thought out. The way back; and when it has something else by then, the change is
    refused instead of undoing what somebody else did meanwhile."""
    to: QueueSpec
    over: Literal["refuse", "keep", "evict"] = "refuse"
    """If more is in use than `to` allows: change nothing and name what would have to go; let it run out; or requeue
    the least costly of it."""


class RequestChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another request for the tasks of workloads."""

    group: str = ""
    """May be left out where each has one group."""
    request: dict[str, int]
    """Resource name -> quantity; a resource that is not named keeps its own."""


class MoneyChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another price of a pool, or another spec of a budget."""

    price_microusd_hour: int | None = None
    """What a node costs from now on."""
    budget: BudgetSpec | None = None


class ScalingChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a pool grows and shrinks, what it shall have at times to come, or when the autoscaler acts. What is not
    given stays."""

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


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked for, with targets resolved to explicit ids. Never edited: an edit is a new plan."""

    action: ActionName
    targets: tuple[str, ...]
    """Ids (or the policy name for set_policy), in the order they are acted on."""
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
    reason: str = ""
    requester: str = ""

    def digest(self) -> str:
        """SHA-256 over canonical JSON (sorted keys, no spaces, no floats)."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One line of before/after, measured on a fork."""

    label: str
    before: str
    after: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A plan shown to a person: what, on what, with which effect, how to take it back, until when."""

    id: str
    plan: Plan
    digest: str
    tier: Literal["T0", "T1", "T2", "T3"]
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


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What executing an approved plan did."""

    proposal: str
    digest: str
    version: int
    changed: tuple[str, ...]
    verified: tuple[str, ...]
    """What was read back after execution, one line per check."""
