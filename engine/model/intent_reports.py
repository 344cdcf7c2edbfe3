"""What is told of intents (`engine.state.intents`). Loads nothing heavy: faces need it at their start."""

from __future__ import annotations

import msgspec


class IntentView(msgspec.Struct, frozen=True, kw_only=True):
    """An intent as people see it."""

    id: str
    what: str
    """Name of the command, as the shell has it."""
    subjects: tuple[str, ...]
    """Ids it is about, the first ones."""
    count: int
    """How many they are."""
    phase: str
    job: int
    text: str
    at_ms: int
    changed_ms: int
    tries: int
    token: str


class IntentsReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is under way to the other scheduler, and what came of the last ones."""

    at_ms: int
    open: int
    sent: int
    accepted: int
    in_doubt: int
    items: tuple[IntentView, ...]
    """Those under way first, each group with the newest first."""


class IntentWord(msgspec.Struct, frozen=True, kw_only=True):
    """What was said of an intent at some time."""

    at_ms: int
    phase: str
    text: str


class FarLook(msgspec.Struct, frozen=True, kw_only=True):
    """What the other scheduler shows now of what is wanted. Texts of its own are in here: untrusted."""

    at_ms: int
    lines: tuple[str, ...] = ()
    shows: str = ""
    """"done" or "undone" where that is all that can be; empty where it shows neither."""
    since_ms: int = 0
    """From when on its controller runs; 0: it does not say."""
    since_by: str = ""
    """What says so."""
    error: str = ""
    """Why it could not be asked."""
