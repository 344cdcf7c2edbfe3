"""Who waits longest, which nodes are lost and what has just happened: the third column of the overview, where there is
room for one. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from console.forms.filters import parse_filter
from console.text.terminal_text import NONE, duration, fit, fit_name, milli, printable, timestamp
from console.text.tones import state_look
from console.views.event_log import EVENT_TONES
from console.views.sections import Line, Section, loading, plural, text_line
from engine.model.queries import Change, Page, Query

MAX_WAITING, MAX_OUT = 12, 8
"""Asked for."""
MIN_EVENTS = 3
_WAITING = ("id", "queue", "gpu", "cpu", "wait", "reason")
_QUEUED = parse_filter("workloads", "state:queued")
_OUT = parse_filter("nodes", "state:down state:suspect")
_NODES = ("id", "state", "pool", "rack", "workloads")


class LongestWait(NamedTuple):
    """Work that has waited longest."""

    id: str
    queue: str
    asks: str
    wait_ms: int
    reason: str


class LostNode(NamedTuple):
    """A node that is lost, or silent."""

    id: str
    state: str
    pool: str
    rack: str
    workloads: int


class RecentColumn(NamedTuple):
    """What the third column tells besides what has just happened."""

    waiting: tuple[LongestWait, ...] = ()
    queued: int = 0
    out: tuple[LostNode, ...] = ()
    nodes_out: int = 0


def questions() -> tuple[Query, Query]:
    """For work that waits, and for nodes that are lost or silent."""
    return (
        Query(kind="workloads", where=_QUEUED, columns=_WAITING, sort=("-wait",), limit=MAX_WAITING),
        Query(kind="nodes", where=_OUT, columns=_NODES, sort=("-state", "id"), limit=MAX_OUT),
    )


def lately(waiting: Page, out: Page) -> RecentColumn:
    return RecentColumn(
        tuple(_waiting(dict(zip(waiting.columns, row, strict=True))) for row in waiting.rows),
        waiting.matched,
        tuple(LostNode(*(row[out.columns.index(name)] or "" for name in _NODES)) for row in out.rows),
        out.matched,
    )


def _waiting(row: dict[str, Any]) -> LongestWait:
    asks = f"{milli(row['gpu'])} GPU" if row["gpu"] else f"{milli(row['cpu'] or 0)} CPU"
    return LongestWait(row["id"], row["queue"] or "", asks, row["wait"] or 0, row["reason"] or "")


def third_column(told: RecentColumn | None, events: Sequence[Change] | None, width: int, height: int) -> list[Section]:
    """Work and nodes first; what happened takes the lines that are left. None: it is not known yet."""
    sections = [loading("Waits longest")] if told is None else _of_work(told, width, height)
    if events is None:
        return [*sections, loading("Just happened")]
    left = height - sum(len(section.lines) + 2 for section in sections) - 1
    happened = [_event(each, width) for each in events[: max(MIN_EVENTS, left)]] or [text_line("nothing yet", "dim")]
    return [*sections, Section("Just happened", tuple(happened), "newest first")]


def _of_work(told: RecentColumn, width: int, height: int) -> list[Section]:
    waits = [_waits(each, width) for each in told.waiting[: max(3, height // 4)]] or [text_line("nothing waits", "dim")]
    outs = [_out(each, width) for each in told.out[: max(2, height // 6)]]
    sections = [Section("Waits longest", tuple(waits), f"{told.queued:,} queued")]
    if outs:
        note = f"{told.nodes_out:,} {plural('node', told.nodes_out)}"
        sections.append(Section("Down or silent", tuple(outs), note))
    return sections


def _waits(each: LongestWait, width: int) -> Line:
    room = max(12, width - 9 - 10)
    named, queue, why = room * 4 // 12, room * 3 // 12, room - room * 4 // 12 - room * 3 // 12
    spans = (
        (fit_name(printable(each.id), named - 1) + " ", "link"),
        (fit_name(printable(each.queue), queue - 1) + " ", ""),
        (f"{each.asks:>9} ", ""),
        (f"{duration(each.wait_ms):>8} ", "dim"),
        (fit(printable(each.reason) or NONE, why), "dim"),
    )
    return Line(spans, f"workload {printable(each.id)}")


def _out(each: LostNode, width: int) -> Line:
    glyph, tone = state_look(each.state)
    where = "  ".join(printable(part) for part in (each.pool, each.rack) if part)
    runs = f"{each.workloads:,} at work" if each.workloads else "empty"
    name = max(8, width // 3)
    spans = (
        (f"{glyph} ", tone),
        (fit_name(printable(each.id), name) + " ", "link"),
        (fit(printable(each.state), 10) + " ", tone),
        (fit(runs, 14) + " ", ""),
        (fit(where, max(4, width - name - 30)), "dim"),
    )
    return Line(spans, f"node {printable(each.id)}")


def _event(each: Change, width: int) -> Line:
    what = printable(each.what)
    subject = max(8, width // 3)
    spans = (
        (timestamp(each.at_ms, date=False) + " ", "dim"),
        (fit(what, 11) + " ", EVENT_TONES.get(what, "")),
        (fit_name(printable(each.subject), subject) + " ", ""),
        (fit(printable(each.detail), max(4, width - subject - 26)), "dim"),
    )
    return Line(spans, f"open {printable(each.subject)}" if each.subject else "")
