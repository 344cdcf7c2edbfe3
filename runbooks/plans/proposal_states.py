"""The life of a proposal, as one table of edges. What is not in the table cannot happen.

    drafted -> simulated -> awaiting -> approved -> executing <-> verifying -> verified
                               |           |            |             |
                               |           |          paused        failed -> rolling_back -> rolled_back
                               |           |-> stale                                      |-> rollback_failed
                               |-> rejected, expired, cancelled, superseded (approved too)

Nothing leads to executing but a claim of what was approved, and going on with what was claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from engine.model.errors import RefusedError

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
        raise RefusedError(f"{name} is {state.replace('_', ' ')}: {DEEDS[event]}", WHAT_THEN.get(state, ""))
    return to


DEEDS: Mapping[Event, str] = {
    "simulated": "it cannot be simulated",
    "denied": "it cannot be denied",
    "submitted": "it cannot be put to the vote",
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
WHAT_THEN: Mapping[State, str] = {
    "awaiting": "Its votes are missing: muster show says whose",
    "approved": "Execute it, or withdraw it",
    "stale": "Revise it to see what it would do now, and vote on that",
    "expired": "Propose it again",
    "rejected": "Propose something else",
    "superseded": "Look at the one that replaced it",
    "cancelled": "Propose it again if it is wanted after all",
    "verified": "It is done; muster rollback takes it back where that is possible",
    "rolled_back": "Propose it again if it is wanted once more",
    "paused": "Resume it, or roll it back",
    "failed": "Roll it back, or look at what it left",
}
