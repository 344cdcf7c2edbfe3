"""View models of the lists: what is asked, how a row reads, which columns come first. No Textual in here.

A cell is text and a tone (see `console.theme`); every text has passed `printable`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from console.query import FilterError, Token, parse_filter, tokens
from console.text import NONE, duration, permille, printable, show, timestamp
from console.theme import state_look
from engine.query import COLUMNS, Change, Column, Kind, Page, Query, Term

if TYPE_CHECKING:
    from console.client import Health

Span = tuple[str, str]
"""Text and the tone it is drawn in."""


class Row(NamedTuple):
    """One line of a table: identity and what is drawn. Equal rows are drawn equally."""

    id: str
    cells: tuple[Span, ...]
    state: str = ""


class Heading(NamedTuple):
    """How a table shows a column."""

    name: str
    title: str
    right: bool = False
    most: int = 24
    """Width beyond which a cell is cut. The last column takes what the screen has left."""


class Window(NamedTuple):
    """Rows from `start` on, and the size of the whole."""

    start: int
    rows: list[Row]
    matched: int
    total: int
    version: int
    at_ms: int


LISTS: dict[Kind, tuple[str, ...]] = {
    "workloads": ("id", "state", "queue", "gpu", "wait", "reason", "priority", "tenant", "tasks", "cpu", "run", "name"),
    "nodes": ("id", "state", "use", "gpu_free", "gpu", "workloads", "pool", "rack", "cpu_free", "cpu", "gpu_model"),
    "queues": (
        "name", "state", "queued", "running", "oldest_wait", "quota_use", "gpu_used", "gpu_nominal", "gpu_borrowed",
        "gpu_lent", "share", "weight", "burst", "burst_left", "held", "waiting", "suspended", "cpu_used", "cpu_nominal",
        "parent",
    ),
    "reservations": ("name", "state", "start", "end", "nodes", "queues"),
    "pools": (
        "name", "nodes", "ready", "booting", "ordered", "least", "most", "price", "spot", "backed_off", "failures",
        "headroom", "priority", "suspect", "region", "zones", "machine_type",
    ),
    "orders": (
        "id", "state", "pool", "zone", "nodes", "granted", "booting", "ready", "workload", "ordered", "refused",
        "expires", "ended",
    ),
}  # fmt: skip
"""Columns in order of importance: on a narrow screen the last ones are a scroll to the right away."""

KEY_COLUMN: dict[Kind, str] = {
    "workloads": "id", "nodes": "id", "queues": "name", "reservations": "name", "pools": "name", "orders": "id",
}  # fmt: skip
SORT = "sort:"
NEWEST_FIRST = ("-submitted",)
SHARE = Column(
    "quota_use", "QUOTA USE", "permille", "Share of the GPU quota in use, or of the CPU quota where there is none"
)
_WIDEST = {"id": 40, "name": 60, "queue": 28, "pool": 20, "rack": 16, "reason": 22}


@dataclass
class ListView:
    """What a list shows: the question put to the engine, in a form that a person edits piece by piece."""

    kind: Kind
    filter_text: str = ""
    where: tuple[Term, ...] = ()
    sort: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: Kind) -> ListView:
        """The list as it first opens."""
        return cls(kind, sort=NEWEST_FIRST if kind == "workloads" else ())

    @property
    def headings(self) -> tuple[Heading, ...]:
        return tuple(heading(column) for column in self.columns)

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is shown: this kind's list, and the column it is sorted by should that not be among them."""
        names = LISTS[self.kind]
        sorted_by = self.sort[0].lstrip("-") if self.sort and self.sort != NEWEST_FIRST else ""
        extra = (sorted_by,) if sorted_by and sorted_by not in names else ()
        known = {column.name: column for column in (*COLUMNS[self.kind], SHARE)}
        return tuple(known[name] for name in (*names[:3], *extra, *names[3:]))

    def filter(self, text: str) -> None:
        """Replace the filter; `sort:wait` in it sorts, `sort:-wait` downwards. On FilterError the former one stays."""
        words = tokens(text)
        orders = [word for word in words if word.text.startswith(SORT)]
        for word in orders:
            self._check_column(word)
        for word in orders:
            # Blanks in its place keep the positions that an error points at.
            text = text[: word.start] + " " * len(word.text) + text[word.end :]
        self.where = parse_filter(self.kind, text)
        self.filter_text = " ".join(word.text for word in words if word not in orders)
        if orders:
            self.sort = (orders[-1].text.removeprefix(SORT),)

    def _check_column(self, word: Token) -> None:
        name = word.text.removeprefix(SORT).removeprefix("-")
        names = [column.name for column in COLUMNS[self.kind]]
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"Did you mean {near[0]}?" if near else f"It can be {', '.join(names)}"
            raise FilterError(word.end - len(name), word.end, f"no column '{printable(name)}' to sort by", hint)

    def sort_by(self, name: str) -> None:
        """Sort by a column; again the same column turns the direction. Quantities start with the largest."""
        if name == SHARE.name:
            name = "gpu_used"
        column = next(column for column in COLUMNS[self.kind] if column.name == name)
        forward, backward = name, "-" + name
        if column.unit != "text":
            forward, backward = backward, forward
        self.sort = (backward,) if self.sort == (forward,) else (forward,)

    def query(self, offset: int, limit: int) -> Query:
        names = tuple(column.name for column in self.columns if column is not SHARE)
        return Query(kind=self.kind, columns=names, where=self.where, sort=self.sort, offset=offset, limit=limit)

    def window(self, page: Page, offset: int) -> Window:
        """A page of the engine as rows of the table."""
        index = {name: position for position, name in enumerate(page.columns)}
        columns, key = self.columns, index[KEY_COLUMN[self.kind]]
        state = index.get("state")
        rows = [
            Row(
                str(values[key]),
                tuple(cell(column, values, index) for column in columns),
                "" if state is None else str(values[state]),
            )
            for values in page.rows
        ]
        return Window(offset, rows, page.matched, page.total, page.version, page.at_ms)

    def sorted_by(self) -> tuple[str, bool]:
        """Column name and whether descending; empty when in creation order."""
        if not self.sort:
            return "", False
        return self.sort[0].lstrip("-"), self.sort[0].startswith("-")


def heading(column: Column) -> Heading:
    right = column.unit not in ("text", "time") and column.name not in ("use", SHARE.name)
    return Heading(column.name, column.title, right, _WIDEST.get(column.name, 24))


def cell(column: Column, values: Sequence[Any], index: dict[str, int]) -> Span:
    """One value as text and tone."""
    if column is SHARE:
        return _share(values, index)
    value = values[index[column.name]]
    if value is None or value == "":
        return NONE, "faint"
    if column.name == "state":
        glyph, tone = state_look(str(value))
        return f"{glyph} {printable(str(value))}", tone
    if column.name == "use":
        return f"{meter(value, 8)} {permille(value):>4}", "bar" if value < 900 else "warn"
    if column.name == "estimate" and not value:
        return "unknown", "dim"
    return show(column.unit, value), _tone(column, value)


def _tone(column: Column, value: Any) -> str:
    if value == 0:
        return "faint"
    if column.name == "burst":
        return "warn" if value == "burst" else "dim"
    if column.name in ("id", "reason") or (column.name == "name" and column.title == "QUEUE"):
        return ""
    return "dim" if column.unit == "text" else ""


def _share(values: Sequence[Any], index: dict[str, int]) -> Span:
    for used, nominal in (("gpu_used", "gpu_nominal"), ("cpu_used", "cpu_nominal")):
        quota = values[index[nominal]]
        if quota:
            share = (values[index[used]] or 0) * 1000 // quota
            return f"{meter(min(share, 1000), 8)} {permille(share):>4}", "bar" if share < 1000 else "warn"
    return "no quota", "faint"


def meter(share: int, width: int) -> str:
    """A bar for a share in permille; readable without colour. Anything above zero shows."""
    filled = min(width, max(1 if share > 0 else 0, share * width // 1000))
    return "━" * filled + "┄" * (width - filled)


def summary(view: ListView, window: Window | None, marked: int) -> str:
    """ "412 of 10,000 · state:queued · by wait ↓ · 3 marked"."""
    parts = []
    if window is not None:
        count = f"{window.matched:,}"
        parts.append(f"{count} of {window.total:,}" if view.where else count)
    if view.filter_text:
        parts.append(f"/{printable(view.filter_text)}")
    name, down = view.sorted_by()
    if name:
        parts.append(f"by {name} {'↓' if down else '↑'}")
    if marked:
        parts.append(f"{marked} marked")
    return "  ·  ".join(parts)


def top_bar(health: Health | None, title: str, at_ms: int, version: int, *, read_only: bool, width: int) -> list[Span]:
    """The first line: which cell, its clock and speed, the version shown, and whether one may act."""
    spans: list[Span] = [(" muster ", "brand"), (" ", "top")]
    if health is None:
        return [*spans, (printable(title), "top"), ("  connecting …", "off")]
    spans.append((printable(health.cell or title)[:24], "top"))
    spans.append((f"  {timestamp(at_ms, date=width >= 100)} UTC", "top"))
    spans.append((_pace(health), "caution" if health.paused else "off"))
    spans.append((f"  v{version:,}", "off"))
    if health.journal_error:
        spans.append(("  ✗ journal ", "alarm"))
    elif width >= 100:
        spans.append((f"  engine {printable(health.software)} pid {health.pid}", "off"))
    if read_only:
        spans.append(("  read-only", "key"))
    return spans


def _pace(health: Health) -> str:
    if health.paused:
        return " PAUSED "
    return "" if health.speed == 1 else f" ×{health.speed:g}"


def lost_banner(problem: str, lost_for_s: float, retry_in_s: float, at_ms: int) -> str:
    """What the banner says while the engine does not answer."""
    retry = f"retry in {retry_in_s:.0f}s" if retry_in_s >= 1 else "connecting"
    age = f" · data of {timestamp(at_ms, date=False)}" if at_ms else ""
    return f" ✗ no connection for {duration(int(lost_for_s * 1000))}{age} · {retry} · {printable(problem)}"


def unwritable_banner(health: Health) -> str:
    """What the banner says while nothing can be recorded; empty while all is well."""
    if health.journal_error:
        problem = printable(health.journal_error)
        return f" ✗ the journal cannot be written: nothing can be executed, looking goes on · {problem}"
    return f" ✗ audit: {printable(health.audit_error)}" if health.audit_error else ""


EVENT_HEADINGS = (
    Heading("at", "TIME", most=19),
    Heading("what", "EVENT", most=20),
    Heading("subject", "SUBJECT", most=40),
    Heading("detail", "DETAIL", most=200),
)
_EVENT_TONES = {
    "failed": "bad", "down": "bad", "cancelled": "warn", "requeued": "warn", "held": "warn", "draining": "warn",
    "cordoned": "warn", "drained": "warn", "finished": "ok", "running": "ok", "started": "ok", "placed": "info",
    "suspended": "warn", "resumed": "info", "suspect": "warn", "swapped": "warn",
}  # fmt: skip


class EventLog:
    """The last changes seen, newest first. Grows at one end only, so that what is read stays where it is."""

    def __init__(self, keep: int = 5_000) -> None:
        self._rows: deque[Row] = deque(maxlen=keep)
        self._serial = 0
        self.missed = 0

    def add(self, items: Sequence[Change], missed: int = 0) -> None:
        """Take in a batch, oldest first."""
        self.missed += missed
        for item in items:
            self._serial += 1
            self._rows.appendleft(_event_row(self._serial, item))

    def clear(self) -> None:
        self._rows.clear()

    def window(self, words: Sequence[str], offset: int, limit: int) -> Window:
        """Rows in which every word occurs."""
        lowered = [word.lower() for word in words]
        rows = list(self._rows)  # in one step: another thread adds
        found = [row for row in rows if all(any(word in text.lower() for text, _ in row.cells) for word in lowered)]
        return Window(offset, found[offset : offset + limit], len(found), len(rows), self._serial, 0)


def _event_row(serial: int, item: Change) -> Row:
    what = printable(item.what)
    cells = (
        (timestamp(item.at_ms), "dim"),
        (what, _EVENT_TONES.get(what, "")),
        (printable(item.subject), ""),
        (printable(item.detail), "dim"),
    )
    return Row(str(serial), cells, printable(item.subject))
