"""View models of lists, and the tail of events: query, columns, rows, and the filter on events.

A cell is a text that has passed `printable`, and a tone (see `console.text.tones`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, NamedTuple

from console.forms.filters import COLUMN_TERM, SORT, Value, matches, parse_view
from console.text.terminal_text import NONE, milli, permille, printable, show, timestamp
from console.text.tones import state_look
from engine.model.list_queries import COLUMNS, Column, Kind, Page, Query, Term
from engine.model.overviews import Change

Span = tuple[str, str]
"""Text and the tone it is drawn in."""


class Row(NamedTuple):
    """A line of a table: identity and cells. Equal rows are drawn equally."""

    id: str
    cells: tuple[Span, ...]
    state: str = ""
    asks: tuple[int, int] = (0, 0)
    """Milli-GPU and milli-CPU that it asks for, or has: what marked rows come to."""


class Heading(NamedTuple):
    """Name, title, alignment and width of a column."""

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
        "name", "use", "nodes", "ready", "down", "booting", "gpu_free", "gpu", "ordered", "price", "spot", "least",
        "most", "backed_off", "failures", "headroom", "priority", "suspect", "region", "zones", "machine_type",
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
NEWEST_FIRST = ("-submitted",)
SHARE = Column(
    "quota_use", "QUOTA USE", "permille", "Share of the GPU quota in use, or of the CPU quota where there is none"
)
SHARE_OF = ("gpu_used", "gpu_nominal", "cpu_used", "cpu_nominal")
SUMMED: dict[Kind, tuple[str, str]] = {"workloads": ("gpu", "cpu"), "nodes": ("gpu", "cpu")}
"""Columns by which marked rows are added up."""
_WIDEST = {"id": 40, "name": 60, "queue": 28, "pool": 20, "rack": 16, "reason": 22}


CURVES: dict[Kind, tuple[str, dict[str, str]]] = {
    "queues": ("queue", {
        "queued": "length", "running": "running", "oldest_wait": "age", "gpu_used": "gpu", "gpu_nominal": "gpu",
        "gpu_borrowed": "gpu", "gpu_lent": "gpu", "cpu_used": "cpu", "cpu_nominal": "cpu",
    }),
    "pools": ("pool", {"nodes": "nodes", "ready": "nodes", "down": "nodes_down", "price": "price"}),
    "nodes": ("node", {}),
}  # fmt: skip
"""Kind of a row's subject in the history, and the curve of a column (`console.views.curves`)."""


@dataclass
class ListView:
    """Query of a list, in a form that a person edits piece by piece."""

    kind: Kind
    filter_text: str = ""
    where: tuple[Term, ...] = ()
    sort: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    """Columns in the order in which a person wants them; empty: those of the kind."""

    @classmethod
    def of(cls, kind: Kind) -> ListView:
        """The list as it first opens."""
        return cls(kind, sort=NEWEST_FIRST if kind == "workloads" else ())

    def copy(self) -> ListView:
        """For a thread that reads while the person edits."""
        return replace(self)

    @property
    def headings(self) -> tuple[Heading, ...]:
        return tuple(heading(column) for column in self.columns)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns in view: the chosen ones or those of the kind, and the ones sorted by."""
        names = self.chosen or LISTS[self.kind]
        sorted_by = [] if self.sort == NEWEST_FIRST else [name.removeprefix("-") for name in self.sort]
        extra = [name for name in sorted_by if name not in names]
        known = every_column(self.kind)
        return tuple(known[name] for name in (*names[:3], *extra, *names[3:]))

    def filter(self, text: str) -> None:
        """Replace the filter; `sort:queue,-wait` in it sorts, `columns:id,gpu` chooses columns, and what it does not
        speak of stays. On FilterError all of it stays."""
        told = parse_view(self.kind, text, (SHARE.name,) if self.kind == "queues" else ())
        self.where, self.filter_text = told.terms, told.filter_text
        self.sort = self.sort if told.sort is None else told.sort
        self.chosen = self.chosen if told.columns is None else told.columns

    @property
    def line(self) -> str:
        """The whole view as `filter` takes it; order and columns only where they are not those of the kind."""
        parts = [self.filter_text] if self.filter_text else []
        if self.sort and self.sort != ListView.of(self.kind).sort:
            parts.append(SORT + ",".join(self.sort))
        if self.chosen and self.chosen != LISTS[self.kind]:
            parts.append(COLUMN_TERM + ",".join(self.chosen))
        return " ".join(parts)

    def sort_by(self, name: str, *, then: bool = False) -> None:
        """Sort by a column; again the same column turns the direction. Quantities start with the largest. `then`: by
        this one where what it is sorted by is equal."""
        if name == SHARE.name:
            name = "gpu_used"
        column = next(column for column in COLUMNS[self.kind] if column.name == name)
        forward, backward = name, "-" + name
        if column.unit != "text":
            forward, backward = backward, forward
        if then and self.sort and self.sort[0].removeprefix("-") != name:
            self.sort = (self.sort[0], backward if self.sort[1:] == (forward,) else forward)
            return
        rest = self.sort[1:] if self.sort and self.sort[0].removeprefix("-") == name else ()
        self.sort = (backward if self.sort[:1] == (forward,) else forward, *rest)

    @property
    def asked(self) -> tuple[str, ...]:
        """Columns that the engine is asked for: what is shown, and what a row needs besides."""
        shown = [column.name for column in self.columns if column is not SHARE]
        quota = SHARE_OF if SHARE in self.columns else ()
        state = ("state",) if "state" in every_column(self.kind) else ()
        return tuple(dict.fromkeys((*shown, KEY_COLUMN[self.kind], *state, *quota, *SUMMED.get(self.kind, ()))))

    def query(self, offset: int, limit: int) -> Query:
        return Query(kind=self.kind, columns=self.asked, where=self.where, sort=self.sort, offset=offset, limit=limit)

    def window(self, page: Page, offset: int) -> Window:
        """A page of the engine as rows of the table."""
        index = {name: position for position, name in enumerate(page.columns)}
        columns, key = self.columns, index[KEY_COLUMN[self.kind]]
        state = index.get("state")
        sums = [index[name] for name in SUMMED.get(self.kind, ())]
        rows = [
            Row(
                str(values[key]),
                tuple(cell(column, values, index) for column in columns),
                "" if state is None else str(values[state]),
                (values[sums[0]] or 0, values[sums[1]] or 0) if sums else (0, 0),
            )
            for values in page.rows
        ]
        return Window(offset, rows, page.matched, page.total, page.version, page.at_ms)

    @property
    def order(self) -> tuple[tuple[str, bool], ...]:
        """Column names and whether descending, the one that decides first; none when in creation order."""
        return tuple((name.removeprefix("-"), name.startswith("-")) for name in self.sort)

    def sorted_by(self) -> tuple[str, bool]:
        """The column that decides first; empty when in creation order."""
        return self.order[0] if self.sort else ("", False)


NOTHING_YET = {
    "workloads": "no workloads yet: muster submit work.yaml, or muster submit --help",
    "nodes": "no nodes yet: muster cell define cell.yaml",
    "queues": "no queues yet: muster cell define cell.yaml",
    "pools": "no pools yet: muster cell define cell.yaml",
    "orders": "no orders yet: nodes that are ordered for a pool stand here until they come",
    "reservations": "no reservations yet: muster node reserve keeps nodes for work that comes",
    "events": "no events yet: what happens to work, nodes and queues is listed here",
    "proposals": "no proposals yet: what a capital letter asks for, as D on a node, stands here",
    "incidents": "no incident is open: an alert opens one, or muster incident open TITLE",
}
"""What a list says that has no rows: what will be there, and what brings it there."""


def none_found(page: str, filter_text: str) -> str:
    """What a list without rows says."""
    return f"no {page} match {filter_text}" if filter_text else NOTHING_YET[page]


def every_column(kind: Kind) -> dict[str, Column]:
    """All that can be shown of a kind, by name."""
    share = (SHARE,) if kind == "queues" else ()
    return {column.name: column for column in (*COLUMNS[kind], *share)}


def curve_of_row(kind: Kind, name: str, cells: Mapping[str, str], column: str) -> str:
    """The argument of `:curve` for a row of a list that is sorted by a column; of work it is its queue's. Empty where
    nothing of it is measured."""
    of, curves = CURVES.get(kind, ("", {}))
    if of:
        return f"{of}:{name} {curves.get(column, '')}".rstrip()
    return f"queue:{cells['queue']}" if "queue" in cells else ""


def rows_that_match(rows: Sequence[Row], headings: Sequence[Heading], terms: Sequence[Term]) -> list[Row]:
    """Rows made by the console that satisfy the terms: by each cell's text, a state by its word without its sign."""

    def values(row: Row) -> dict[str, Value]:
        named = {each.name: text for each, (text, _) in zip(headings, row.cells, strict=True)}
        return {name: text.partition(" ")[2] if name in ("state", "status") else text for name, text in named.items()}

    return [row for row in rows if matches(terms, values(row))] if terms else list(rows)


def heading(column: Column) -> Heading:
    right = column.unit not in ("text", "time") and column.name not in ("use", SHARE.name)
    return Heading(column.name, column.title, right, _WIDEST.get(column.name, 24))


def cell(column: Column, values: Sequence[Any], index: dict[str, int]) -> Span:
    """A value as text and tone."""
    if column is SHARE:
        return _share(values, index)
    value = values[index[column.name]]
    if value is None or value == "":
        return NONE, "faint"
    if column.name == "state":
        glyph, tone = state_look(str(value))
        return f"{glyph} {printable(str(value))}", tone
    if column.name == "use":
        return f"{meter(value, 8)} {permille(value):>4}", "bar"
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


def share_of(values: Sequence[Any], index: dict[str, int]) -> int | None:
    """Permille of the quota in use; None without a quota."""
    for used, nominal in (("gpu_used", "gpu_nominal"), ("cpu_used", "cpu_nominal")):
        quota = values[index[nominal]]
        if quota:
            return (values[index[used]] or 0) * 1000 // quota  # type: ignore[no-any-return]
    return None


def _share(values: Sequence[Any], index: dict[str, int]) -> Span:
    share = share_of(values, index)
    if share is None:
        return "no quota", "faint"
    return f"{meter(min(share, 1000), 8)} {permille(share):>4}", "bar"


TRACK = "┄"
"""Sign of what is left of a meter."""


def meter(share: int, width: int) -> str:
    """A bar for a share in permille, to half a cell; readable without colour. Anything above zero shows, and only a
    whole is full."""
    halves = min(2 * width, max(1 if share > 0 else 0, share * 2 * width // 1000))
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return filled + TRACK * (width - len(filled))


def summary(view: ListView, window: Window | None, marked: Sequence[Row] = ()) -> str:
    """ "412 of 10,000  ·  /state:queued  ·  by queue ↑, wait ↓  ·  3 marked, 24 GPU"."""
    parts = []
    if window is not None:
        count = f"{window.matched:,}"
        parts.append(f"{count} of {window.total:,}" if view.where else count)
    if view.filter_text:
        parts.append(f"/{printable(view.filter_text)}")
    if view.order:
        parts.append("by " + ", ".join(f"{name} {'↓' if down else '↑'}" for name, down in view.order))
    if marked:
        parts.append(marked_text(marked))
    return "  ·  ".join(parts)


def marked_text(marked: Sequence[Row]) -> str:
    """ "3 marked, 24 GPU": how many, and what they come to."""
    gpu, cpu = sum(row.asks[0] for row in marked), sum(row.asks[1] for row in marked)
    sums = f", {milli(gpu)} GPU" if gpu else f", {milli(cpu)} CPU" if cpu else ""
    return f"{len(marked):,} marked{sums}"


EVENT_HEADINGS = (
    Heading("at", "TIME", most=19),
    Heading("what", "EVENT", most=20),
    Heading("subject", "SUBJECT", most=40),
    Heading("detail", "DETAIL", most=200),
)
RETURNED = "requeued"
"""The word for work that goes back to its queue: of events, transitions and restarts."""
EVENT_TONES = {
    "down": "bad", "failed": "bad", "suspect": "warn", RETURNED: "warn", "cancelled": "warn", "held": "warn",
    "draining": "warn", "cordoned": "warn", "drained": "warn", "suspended": "warn", "swapped": "warn",
    "finished": "ok", "running": "ok", "started": "ok", "placed": "info", "resumed": "info",
}  # fmt: skip
"""Tones of events, the worst first."""


class EventLog:
    """The last changes seen, newest first. Grows at one end only, so that what is read stays where it is."""

    def __init__(self, keep: int = 5_000) -> None:
        self._kept: deque[tuple[int, Change]] = deque(maxlen=keep)
        self._serial = 0
        self.missed = 0
        self.at_ms = 0
        """Cell time until which all that happened is here."""
        self.whole = False
        """All that has happened until the last news is here."""

    def add(self, items: Sequence[Change], missed: int = 0, at_ms: int = 0, *, whole: bool = True) -> None:
        """Take in a batch, oldest first, that came at a cell time. `whole`: it has all that happened since the one
        before; else something happened, and nobody asked what."""
        self.whole = whole
        self.missed += missed
        if not whole:
            return
        for item in items:
            self._serial += 1
            self._kept.appendleft((self._serial, item))
        self.at_ms = max(self.at_ms, at_ms, items[-1].at_ms if items else 0)

    def clear(self) -> None:
        self._kept.clear()

    def begin_anew(self) -> None:
        """What is added next is of another time."""
        self.clear()
        self.at_ms = self.missed = 0

    @property
    def serial(self) -> int:
        """Serial of the newest change; grows by one with each."""
        return self._serial

    def window(self, terms: Sequence[Term], offset: int, limit: int) -> Window:
        """Changes that satisfy the terms of a filter, as rows."""
        every = list(self._kept)  # in one step: another thread adds
        now_ms = self.at_ms
        found = [each for each in every if matches(terms, values_of(each[1], now_ms))] if terms else every
        rows = [_event_row(serial, item) for serial, item in found[offset : offset + limit]]
        return Window(offset, rows, len(found), len(every), every[0][1].version if every else 0, now_ms)

    def newer_than(self, serial: int, terms: Sequence[Term]) -> int:
        """Number of newer changes that satisfy the terms."""
        newest = takewhile(lambda each: each[0] > serial, list(self._kept))
        return sum(matches(terms, values_of(item, self.at_ms)) for _, item in newest)

    def newest(self, most: int) -> list[Change]:
        """The last that happened, newest first."""
        return [item for _, item in islice(list(self._kept), most)]

    def about(self, subject: str, most: int) -> list[Change]:
        """The newest that happened to one thing."""
        return list(islice((item for _, item in list(self._kept) if item.subject == subject), most))

    def subjects(self, stem: str, most: int) -> list[str]:
        """Subjects of recent changes with that prefix, for completion."""
        names = (item.subject for _, item in list(self._kept) if item.subject.startswith(stem))
        return list(islice(dict.fromkeys(names), most))


def values_of(item: Change, now_ms: int) -> dict[str, Value]:
    age = max(0, now_ms - item.at_ms)
    return {"at": item.at_ms, "what": item.what, "subject": item.subject, "detail": item.detail, "age": age}


def _event_row(serial: int, item: Change) -> Row:
    what = printable(item.what)
    cells = (
        (timestamp(item.at_ms), "dim"),
        (what, EVENT_TONES.get(what, "")),
        (printable(item.subject), ""),
        (printable(item.detail), "dim"),
    )
    return Row(str(serial), cells, printable(item.subject))
