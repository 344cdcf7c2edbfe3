"""Questions about an earlier time of the cell, and their answers. Types only. All times are cell milliseconds."""

from __future__ import annotations

from typing import Literal

import msgspec


class PastStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The times that can be shown, and how far the one that was asked for is."""

    earliest_ms: int
    now_ms: int
    at_ms: int
    state: Literal["none", "building", "ready", "failed"] = "none"
    """`none`: no time was asked for."""
    permille: int = 0
    version: int = 0
    """State version at that time, once it is ready."""
    code: str = ""
    """Error code of one that failed."""
    problem: str = ""
    remedy: str = ""
