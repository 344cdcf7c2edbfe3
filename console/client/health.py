"""How an engine is. Loaded before the first paint, so apart from the rest of what can be asked
(`console.client.protocol`)."""

from __future__ import annotations

import msgspec


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What `muster doctor` and the console's header say of the engine."""

    name: str
    cell: str
    version: int
    now_ms: int
    """Cell time, Unix milliseconds UTC."""
    speed: float
    """Cell milliseconds per wall millisecond; 1 is real time."""
    paused: bool
    pid: int
    journal: str
    journal_error: str
    """Empty while the journal can be written, and work on this machine is looked after; else what is wrong and what to
    do."""
    software: str
    """Version of Muster that serves."""
    history_error: str = ""
    """Why no history is kept at present; empty while all is well."""
    approval: str = ""
    """"team"; or "solo": one person approves everything, and no two-person rule holds. Empty: nobody can tell now."""
    awaiting: int = 0
    """Proposals that wait for votes."""
    stuck: int = 0
    """Plans that were begun and are paused, or could not be taken back."""
    audit_error: str = ""
    """What is wrong with the audit or what stands beside it, and what that keeps from being done; empty while all is
    well."""
    mirror_error: str = ""
    """Why what is shown of the mirrored cluster is old; empty while it is fresh, or nothing is mirrored."""
