"""Points in time as people write them in files and flags: `now`, `+6h`, `2026-03-01T14:30` (UTC)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from console.text.terminal_text import read_value
from engine.model.quantity_parsing import duration_ms, shown

if TYPE_CHECKING:
    from console.client.protocol import Client

Now = Callable[[], int]
"""Cell time in Unix milliseconds, asked for only where a time is given relative to it."""


def clock_of(client: Client) -> Now:
    """The cell's clock as it stands when first asked for, so that times given together are relative to the same."""
    return cache(lambda: client.health().now_ms)


def moment_ms(value: Any, now: Now) -> int:
    """Unix milliseconds of cell time. Raises ValueError saying what was expected."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a time; write for example +6h or 2026-03-01T14:30 (UTC)")
    if value == "now":
        return now()
    if value.startswith("+"):
        return now() + duration_ms(value[1:])
    return read_value("time", value)
