"""Figures of the twin in words, for shell and screens. Loads nothing of Textual: the shell answers at once.

A figure is its median over the runs, with p10 and p90 behind it where they differ. A change is called better or worse
only where p10 and p90 of the differences agree; otherwise the runs do not tell. Of too few runs for quantiles it is the
least and the most, and no change is called either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.text.terminal_text import duration, money

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engine.model.twin_queries import Figure, Interval

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
    """The median, and p10 to p90 where they differ: `12m (8m..15m)`; of few runs the least and the most: `8m..15m`."""
    return _spread(over, lambda value: amount(unit, value))


def middle(unit: str, over: Interval) -> str:
    """The median alone; of few runs the least and the most."""
    return spread(unit, over) if over.p50 is None else amount(unit, over.p50)


def heads(figures: Sequence[Figure]) -> tuple[str, str, str, str]:
    """Titles above rows of figures: what they are, before, after, and what spread the change has."""
    if any(figure.change.p50 is None for figure in figures):
        return "LEAST..MOST", "BEFORE", "AFTER", "CHANGE"
    return "MEDIANS", "BEFORE", "AFTER", "CHANGE (P10..P90)"


def signed_spread(unit: str, over: Interval) -> str:
    """The same of a change."""
    return _spread(over, lambda value: signed(unit, value))


def _spread(over: Interval, text: Callable[[int], str]) -> str:
    if over.p10 is None or over.p50 is None or over.p90 is None:
        return text(over.least) if over.least == over.most else f"{text(over.least)}..{text(over.most)}"
    return text(over.p50) if over.p10 == over.p90 else f"{text(over.p50)} ({text(over.p10)}..{text(over.p90)})"


def change(figure: Figure) -> tuple[str, str]:
    """The change in words, and the tone it deserves."""
    over = figure.change
    low, high = (over.least, over.most) if over.p10 is None or over.p90 is None else (over.p10, over.p90)
    if low == high == 0:
        return UNCHANGED, "dim"
    text = signed_spread(figure.unit, over)
    if not figure.better or over.p50 is None:
        return text, ""
    if low <= 0 <= high:
        return f"{text} unclear", "dim"
    better = (over.p50 < 0) == (figure.better == "lower")
    return (f"{text} better", "ok") if better else (f"{text} worse", "bad")


def signed(unit: str, value: int) -> str:
    return f"{'+' if value > 0 else ''}{amount(unit, value)}"
