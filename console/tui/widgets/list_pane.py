"""Pages that are a table, and pages that list one kind of object: place, filter, order, columns, marks.

The chosen columns of each list are kept for later openings.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import structs
from textual import on
from textual.app import ComposeResult

from console.actions.key_map import key_of
from console.actions.registry import ActionTarget
from console.client.change_feed import in_thread
from console.forms.filters import FilterError, matches
from console.text.terminal_text import printable, timestamp
from console.tui.widgets.pane import AsOf, Connect, Pane
from console.tui.widgets.table_rows import MOST
from console.tui.widgets.window_table import Fetch, TablePosition, WindowTable
from console.views.lists import (
    KEY_COLUMN,
    LISTS,
    NEWEST_FIRST,
    SHARE,
    ListView,
    Row,
    Window,
    curve_of_row,
    every_column,
    none_found,
    summary,
)
from engine.model.errors import MusterError, RefusedError
from engine.model.list_queries import Term

if TYPE_CHECKING:
    from console.forms.session_state import SessionState
    from engine.model.list_queries import Kind


class PageWork(Protocol):
    """Something on a page that takes long."""

    @property
    def note(self) -> str:
        """Progress, for the title; empty once it is over."""
        ...

    def stop(self) -> bool:
        """End it; false when it is over."""
        ...


class TablePane(Pane):
    """A page that is a table, whose news it passes on."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.table = WindowTable()
        self.work: PageWork | None = None
        """What takes long and is told in the title, such as an export."""
        self._window: Window | None = None
        self._still: AsOf | None = None
        """Of when the rows are that stay."""

    def compose(self) -> ComposeResult:
        yield self.table

    @property
    def as_of(self) -> AsOf | None:
        if self._still is not None:
            return self._still
        return AsOf(self._window.version, self._window.at_ms) if self._window is not None else None

    @property
    def frozen(self) -> AsOf | None:
        return self._still

    def freeze(self) -> None:
        """Rows that were never in view are fetched all the same, and said to be newer."""
        self.table.frozen = self._still is None
        self._still = self.as_of or AsOf(0, 0) if self.table.frozen else None
        if not self.table.frozen:
            self.table.reload()
        self.post_message(self.Changed())

    @property
    def frozen_note(self) -> str:
        if self._still is None:
            return ""
        newer = ", later rows are newer" if self.table.mixed else ""
        return f"as of {timestamp(self._still.at_ms, date=False)}{newer}"

    @property
    def notes(self) -> list[str]:
        """Notes of any table in the title: work under way, and that it is frozen."""
        told = [self.work.note] if self.work is not None and self.work.note else []
        return told + ([self.frozen_note] if self._still is not None else [])

    def place(self) -> dict[str, Any]:
        return dict(self.table.place._asdict())

    def put_back(self, place: dict[str, Any]) -> None:
        """Restore the place. Invalid values of hand or of another version are ignored."""
        numbers = [place.get(name) for name in ("index", "top", "x")]
        if all(isinstance(number, int) and 0 <= number < 1 << 40 for number in numbers):
            index, top, x = (int(number) for number in numbers if isinstance(number, int))
            self.table.put_back(TablePosition(index, str(place.get("id", "")), top, x))

    def clear_one(self) -> bool:
        """Stop what is under way, give up a range, take marks away: the innermost first."""
        if self.work is not None and self.work.stop():
            return True
        if self.table.give_up_range():
            return True
        if self.table.marked:
            self.table.clear_marks()
            return True
        return False

    def reload(self) -> None:
        self.table.reload()

    def look_again(self) -> None:
        """Ask again; a frozen list then stays as it is."""
        if self._still is not None:
            self._still = AsOf(0, 0)
        self.table.look_again()

    @on(WindowTable.Loaded)
    def _loaded(self, event: WindowTable.Loaded) -> None:
        self._window = event.window
        if self._still == AsOf(0, 0):
            self._still = AsOf(event.window.version, event.window.at_ms)
        self.post_message(self.Changed())

    @on(WindowTable.Touched)
    def _touched(self) -> None:
        self.post_message(self.Changed())

    @on(WindowTable.LoadFailed)
    def _load_failed(self, event: WindowTable.LoadFailed) -> None:
        self.post_message(self.AskFailed(event.error))


class WordsPane(TablePane):
    """A table whose rows are chosen by words of their own, not by the filter of the lists."""

    def __init__(self, connect: Connect, words: str = "") -> None:
        super().__init__(connect)
        self._filter = " ".join(words.split())

    @property
    def filter_text(self) -> str:
        return self._filter

    @property
    def counts(self) -> list[str]:
        """Number of rows, and the filter; nothing before the first answer."""
        if self._window is None:
            return []
        if not self._filter:
            return [f"{self._window.total:,}", *self.notes]
        return [f"{self._window.matched:,} of {self._window.total:,}", f"/{printable(self._filter)}", *self.notes]

    @property
    def line(self) -> str:
        return f"{self.NAME} {self._filter}".rstrip()

    def filter(self, text: str) -> None:
        """Show other rows. Raises FilterError and stays as it is when the filter cannot be read."""
        raise NotImplementedError

    def take(self, text: str) -> None:
        """Show what a line says. Raises FilterError."""
        self.filter(text)

    def clear_one(self) -> bool:
        if super().clear_one():
            return True
        if self._filter:
            self.filter("")
            return True
        return False


def kept_columns(app: Any, kind: Kind) -> tuple[str, ...]:
    """None chosen: empty. What is not a column (any more) is left out."""
    kept = _session(app).recall(_key(kind))
    known = every_column(kind)
    return tuple(name for name in kept if name in known) if isinstance(kept, list) else ()


def keep_columns(app: Any, kind: Kind, names: Sequence[str]) -> None:
    """None: forget the choice. The file is written beside the keys."""
    write = partial(_session(app).remember, _key(kind), list(names) or None)
    Thread(target=write, daemon=True, name="muster-columns").start()


def _key(kind: Kind) -> str:
    return f"columns {kind}"


def _session(app: Any) -> SessionState:
    """Session of the app, or one that ends with the process."""
    if getattr(app, "session", None) is None:
        from console.forms.session_state import SessionState

        app.session = SessionState()
    session: SessionState = app.session
    return session


class ListPane(TablePane):
    """A table of one kind."""

    KIND: ClassVar[Kind]

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.view = ListView.of(self.KIND)
        self.table.markable = bool(self.TARGETS)
        self._checking = False

    def on_mount(self) -> None:
        if not self.view.chosen:
            self.view.chosen = kept_columns(self.app, self.KIND)
        self._ask_anew()

    @property
    def note(self) -> str:
        marked = tuple(self.table.marked.values())
        ranging = (
            [f"range: {key_of('mark_range')} keeps it, esc drops it"] if self.table.selection.anchor is not None else []
        )
        return "  ·  ".join([*ranging, *self.notes, summary(self.view, self._window, marked)])

    @property
    def line(self) -> str:
        return f"{self.NAME} {self.view.line}".rstrip()

    @property
    def measured(self) -> str:
        """Of the row under the cursor; the curve is that of the column it is sorted by. Of work it is its queue's."""
        row = self.table.cursor_row
        if row is None:
            return ""
        cells = {heading.name: text for heading, (text, _) in zip(self.table.headings, row.cells, strict=False)}
        return curve_of_row(self.KIND, row.id, cells, self.view.sorted_by()[0])

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        if not self.TARGETS:
            return ()
        rows: Sequence[Row] = list(self.table.marked.values())
        if not rows and self.table.cursor_row is not None:
            rows = [self.table.cursor_row]
        return tuple(ActionTarget(row.id, row.state) for row in rows)

    @property
    def copyable(self) -> str:
        row = self.table.cursor_row
        return super().copyable or (printable(row.id) if row else "")

    def filter(self, text: str) -> None:
        """Show other rows. Raises FilterError and stays as it is when the filter cannot be read."""
        before = self.view.copy()
        self.view.filter(text)
        self._changed_from(before)

    def take(self, text: str) -> None:
        """Show what a line says and nothing of what was there before: order and columns it does not speak of are those
        the page opens with. Raises FilterError and stays as it is."""
        before, self.view = self.view, ListView.of(self.KIND)
        self.view.chosen = kept_columns(self.app, self.KIND)
        try:
            self.view.filter(text)
        except FilterError:
            self.view = before
            raise
        self._changed_from(before)

    def _changed_from(self, before: ListView) -> None:
        if self.view.where != before.where:
            # A mark that the filter hides would be acted on unseen.
            self.table.selection.clear()
        if (self.view.where, self.view.sort) != (before.where, before.sort):
            self._ask_anew()
        elif self.view.chosen != before.chosen:
            self._ask_anew(self.table.place._replace(x=0))

    def sort_by(self, name: str, *, then: bool = False) -> None:
        self.view.sort_by(name, then=then)
        self._ask_anew()

    def choose_columns(self, names: Sequence[str]) -> None:
        """Show these from now on, whenever this page is opened; none: those of the kind."""
        self.view.chosen = tuple(names)
        keep_columns(self.app, self.KIND, self.view.chosen)
        self._ask_anew(self.table.place._replace(x=0))

    def clear_one(self) -> bool:
        if super().clear_one():
            return True
        if self.view.filter_text:
            self.filter("")
            return True
        return False

    def fetcher(self, view: ListView) -> Fetch:
        """The function that fetches rows of this view, on a thread."""
        return partial(fetch_rows, self.connect, view)

    def _ask_anew(self, place: TablePosition | None = None) -> None:
        self.table.empty = none_found(self.KIND, self.view.filter_text if self.view.where else "")
        # The thread reads a copy: the person may edit the view while it asks.
        view = self.view.copy()
        fetch = self.fetcher(view)
        newest_first = view.sort[:1] == NEWEST_FIRST
        self.table.show(view.headings, fetch, view.order, grows_at_top=newest_first, place=place)
        self.post_message(self.Changed())

    @on(WindowTable.SortRequested)
    def _sort_requested(self, event: WindowTable.SortRequested) -> None:
        self.sort_by(event.name, then=event.then)

    # --- marks

    @on(WindowTable.TooMany)
    def _too_many(self) -> None:
        error = RefusedError(f"one plan takes at most {MOST:,} {self.KIND}", "Narrow the filter, or act in batches")
        self.post_message(self.AskFailed(error))

    @on(WindowTable.Loaded)
    def _check_marks(self) -> None:
        """A mark on what the filter lets through no longer would be acted on unseen."""
        if self.table.marked and not self._checking and self.table.selection.anchor is None:
            self._checking = True
            self.run_worker(self._drop_hidden())

    async def _drop_hidden(self) -> None:
        selection, view = self.table.selection, self.view.copy()
        turns, ids = selection.turns, tuple(selection.marked)
        try:
            rows = await in_thread(partial(rows_of, self.connect, view, ids))
        except MusterError:
            return  # the page itself meets it too and tells
        finally:
            self._checking = False
        if turns == selection.turns and view.where == self.view.where:
            selection.refresh(rows)
            if gone := selection.keep({row.id for row in rows}):
                self.table.redraw_marks()
                note = f"{gone:,} marked no longer match: unmarked"
                self.app.notify(printable(note), markup=False, timeout=4)

    async def mark_all(self) -> None:
        """Mark whatever matches the filter, by id. Raises RefusedError where that is more than one plan takes, and
        MusterError."""
        selection, view = self.table.selection, self.view.copy()
        window = await in_thread(partial(fetch_rows, self.connect, view, 0, MOST))
        if window.matched > MOST:
            raise RefusedError(
                f"{window.matched:,} {self.KIND} match, and one plan takes at most {MOST:,}",
                "Narrow the filter, or mark a range with v",
            )
        if view.where == self.view.where:
            selection.take(window.rows)
            self.table.redraw_marks()


def fetch_rows(connect: Connect, view: ListView, offset: int, limit: int) -> Window:
    """Rows of a list from the engine. Blocks."""
    return view.window(connect().query(view.query(offset, limit)), offset)


def rows_of(connect: Connect, view: ListView, ids: Sequence[str]) -> list[Row]:
    """The rows with these ids that the list still holds. Blocks."""
    key = KEY_COLUMN[view.kind]
    named = tuple(Term(key, "=", name) for name in ids)
    # Terms on one column are alternatives: what the filter itself says of ids is looked at here.
    own = [term for term in view.where if term.column == key and term.op in ("=", "~")]
    others = tuple(term for term in view.where if term not in own)
    query = structs.replace(view.query(0, len(ids)), where=(*named, *others), sort=())
    rows = view.window(connect().query(query), 0).rows
    return [row for row in rows if matches(own, {key: row.id})]


def sortable(view: ListView) -> list[str]:
    """Columns to sort by, those on the screen first."""
    shown = [column.name for column in view.columns if column is not SHARE]
    return shown + [name for name in LISTS[view.kind] if name not in shown and name != SHARE.name]
