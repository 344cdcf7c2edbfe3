"""Figures of the twin in words, for shell and screens. Loads nothing of Textual: the shell answers at once.

A figure is its median over the seeds, with p10 and p90 behind it where they differ. A change is called better or worse
only where p10 and p90 of the differences agree; otherwise the seeds do not tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.text import duration, money

if TYPE_CHECKING:
    from engine.outlook import Figure, Interval

DEVICE_HOUR_MS = 3_600_000
WHOLE_DOLLARS_MICROUSD = 100_000_000
"""From here on cents tell nothing."""
UNCHANGED = "the same"


def amount(unit: str, value: int) -> str:
    """A figure for people, by its unit."""
    match unit:
        case "duration":
            return duration(value)
        case "permille":
            return f"{value / 10:.1f}%"
        case "money":
            return money(value) if abs(value) < WHOLE_DOLLARS_MICROUSD else money(value)[:-3]
        case "device_time":
            return f"{value / DEVICE_HOUR_MS:,.1f} dev-h"
        case _:
            return f"{value:,}"


def spread(unit: str, over: Interval) -> str:
    """The median, and p10 to p90 where they differ: `12m (8m..15m)`."""
    middle = amount(unit, over.p50)
    if over.p10 == over.p90:
        return middle
    return f"{middle} ({amount(unit, over.p10)}..{amount(unit, over.p90)})"


def change(figure: Figure) -> tuple[str, str]:
    """The change in words, and the tone it deserves."""
    over = figure.change
    if over.p10 == over.p90 == 0:
        return UNCHANGED, "dim"
    text = signed(figure.unit, over.p50)
    if over.p10 != over.p90:
        text += f" ({signed(figure.unit, over.p10)}..{signed(figure.unit, over.p90)})"
    if not figure.better:
        return text, ""
    if over.p10 <= 0 <= over.p90:
        return f"{text} unclear", "dim"
    better = (over.p50 < 0) == (figure.better == "lower")
    return (f"{text} better", "ok") if better else (f"{text} worse", "bad")


def signed(unit: str, value: int) -> str:
    return f"{'+' if value > 0 else ''}{amount(unit, value)}"
