"""A plan: exactly what would be executed, in a canonical form whose digest a person approves."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

ActionName = Literal["cancel", "hold", "release", "requeue", "cordon", "uncordon", "drain", "set_policy"]


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked for, with targets resolved to explicit ids. Never edited: an edit is a new plan."""

    action: ActionName
    targets: tuple[str, ...]
    """Ids (or the policy name for set_policy), in the order they are acted on."""
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
    """One line per target, resolved against the live state: "cancel wl-17 (running, 64 GPU, 3.2 h of work lost)"."""
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
