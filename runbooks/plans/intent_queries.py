"""What faces show of an intent to another scheduler, and what a person says of one. Loads nothing heavy: faces need it
at their start."""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.model.intent_reports import FarLook, IntentView, IntentWord
from runbooks.plans.typed_plan import Act

MIN_REASON = 10
"""Characters in which must be said what was found."""


class IntentAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says of one in doubt."""

    number: int
    outcome: Literal["done", "undone", "retry"]
    """retry: carry it again; for submissions alone."""
    reason: str


class IntentDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one. Texts of the other scheduler's, and names, are in here: untrusted."""

    version: int
    now_ms: int
    view: IntentView
    wants: tuple[str, ...]
    """What was asked for, in lines."""
    words: tuple[IntentWord, ...]
    """What was said of it, the oldest first."""
    proposal: str = ""
    """The proposal whose step left it; empty for a submission, and where none is found."""
    by: str = ""
    """Subject of who asked for it; empty where that is on no record."""
    agreed: tuple[str, ...] = ()
    """Subjects of who voted for it."""
    act: Act | None = None
    """What would have the same done once more; None for a submission, which is carried again as it is."""
    far: FarLook | None = None
    """None where the other scheduler cannot be asked."""
