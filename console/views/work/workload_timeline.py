"""The life of a workload as a bar over time and a line per state. No Textual in here.

Each state has a sign of its own, so that the bar reads without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from console.text.terminal_text import cut, duration, fit, printable, timestamp
from console.text.tones import state_look
from console.views.lists import Span
from console.views.sections import Line, Section, text_line
from engine.model.queries import HistoryItem

SIGNS = {
    "queued": "░", "held": "╌", "waiting": "·", "suspended": "‖", "placed": "▒", "running": "█", "checkpointing": "▓",
}  # fmt: skip
_BEGINS = {
    "submitted": "queued", "held": "held", "released": "queued", "placed": "placed", "running": "running",
    "finished": "finished", "failed": "failed", "cancelled": "cancelled", "requeued": "queued",
    "suspended": "suspended", "resumed": "queued", "waiting": "waiting", "woke": "queued",
    "checkpointing": "checkpointing",
}  # fmt: skip
"""Transition -> the state that begins with it. Others change something else."""
OVER = ("finished", "failed", "cancelled")
SHOWN_STRETCHES = 8
SHOWN_HISTORY = 100


class TimelineStretch(NamedTuple):
    """A time in one state."""

    state: str
    begin_ms: int
    end_ms: int
    why: str
    """What is said of how it began."""


def stretches(history: Sequence[HistoryItem], now_ms: int) -> list[TimelineStretch]:
    """The states one after another, up to now or to its end; transitions at the same moment count as one."""
    begins = [(item, _BEGINS[item.what]) for item in history if item.what in _BEGINS]
    if not begins:
        return []
    ends = [item.at_ms for item, _ in begins[1:]] + [now_ms]
    found: list[TimelineStretch] = []
    for (item, state), end in zip(begins, ends, strict=True):
        if state in OVER:
            break
        if found and found[-1].state == state:
            found[-1] = found[-1]._replace(end_ms=max(end, item.at_ms))
        elif end > item.at_ms or end == now_ms:
            found.append(TimelineStretch(state, item.at_ms, max(end, item.at_ms), item.detail))
    return found


def bar(found: Sequence[TimelineStretch], width: int) -> tuple[Span, ...]:
    """Cells from its submission to now. A state that was short is there all the same where there is room."""
    if not found or width <= 0:
        return ()
    begin, span = found[0].begin_ms, max(1, found[-1].end_ms - found[0].begin_ms)
    cells = [""] * width
    for stretch in sorted(found, key=lambda each: each.begin_ms - each.end_ms):  # the longest first
        first = min(width - 1, (stretch.begin_ms - begin) * width // span)
        last = max(first + 1, -(-(stretch.end_ms - begin) * width // span))
        for cell in range(first, min(width, last)):
            cells[cell] = stretch.state
    runs = [(state, len(list(run))) for state, run in groupby(cells)]
    return tuple((SIGNS.get(state, " ") * count, _tone(state)) for state, count in runs)


def timeline(history: Sequence[HistoryItem], now_ms: int, width: int) -> list[Section]:
    """Where its time went."""
    found = stretches(history, now_ms)
    if not found:
        return []
    begin, end = found[0].begin_ms, found[-1].end_ms
    left, right = timestamp(begin), "now" if end == now_ms else timestamp(end)
    totals: dict[str, int] = {}
    for stretch in found:
        totals[stretch.state] = totals.get(stretch.state, 0) + stretch.end_ms - stretch.begin_ms
    legend: list[Span] = []
    for state, spent in totals.items():
        legend += [(f"{SIGNS.get(state, ' ')} ", _tone(state)), (f"{state} {duration(spent)}   ", "")]
    lines = [
        Line(bar(found, width)),
        Line(((fit(left, max(0, width - len(right))), "dim"), (right, "dim"))),
        Line(tuple(legend)),
    ]
    if len(found) > 2:
        lines += [_stretch_line(stretch, width) for stretch in reversed(found[-SHOWN_STRETCHES:])]
        if len(found) > SHOWN_STRETCHES:
            lines.append(text_line(f"… and {len(found) - SHOWN_STRETCHES:,} before", "dim"))
    return [Section("Timeline", tuple(lines), duration(end - begin))]


def _stretch_line(stretch: TimelineStretch, width: int) -> Line:
    told = f"{timestamp(stretch.begin_ms)[5:]}  {SIGNS.get(stretch.state, ' ')} "
    head = f"{told}{fit(stretch.state, 13)} {fit(duration(stretch.end_ms - stretch.begin_ms), 8, right=True)}  "
    return Line(((head, ""), (cut(printable(stretch.why), max(0, width - len(head))), "dim")))


def history_section(items: Sequence[HistoryItem], now_ms: int, width: int) -> Section:
    """What happened to it, the newest first."""
    lines = []
    for item in list(reversed(items))[:SHOWN_HISTORY]:
        glyph, tone = state_look(item.what)
        room = max(8, width - 33)
        lines.append(
            Line(
                (
                    (timestamp(item.at_ms), "dim"),
                    (f"  {glyph} ", tone),
                    (fit(printable(item.what), 11), ""),
                    (cut(printable(item.detail), room), "dim"),
                )
            )
        )
    if len(items) > SHOWN_HISTORY:
        lines.append(text_line(f"… and {len(items) - SHOWN_HISTORY:,} before", "dim"))
    ago = f"last {duration(now_ms - items[-1].at_ms)} ago" if items else ""
    return Section("History", tuple(lines) or (text_line("none recorded", "dim"),), ago)


def _tone(state: str) -> str:
    return "info" if state == "checkpointing" else state_look(state)[1]
