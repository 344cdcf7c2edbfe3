"""What every page is: a pane that asks the engine when it is in view, and says where it is and what is selected.

Panes stay mounted while something lies on top of them, so that Back finds the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from msgspec import structs
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message

from console.actions import Action, Context, ScreenName, Target, TargetKind
from console.column_choice import keep_columns, kept_columns
from console.details import Section, text_line
from console.feed import in_thread
from console.query import FilterError
from console.row_filter import matches
from console.screens.sections import MARGIN, SectionsView
from console.selection import MOST
from console.table import Fetch, Place, WindowTable
from console.text import printable, timestamp
from console.views import KEY_COLUMN, LISTS, NEWEST_FIRST, SHARE, ListView, Row, Window, summary
from engine.errors import MusterError, RefusedError, UnreachableError
from engine.query import Term

if TYPE_CHECKING:
    from console.client import Client
    from engine.query import Kind

D = TypeVar("D")

Connect = Callable[[], "Client"]
"""Gives the client of the moment, or raises UnreachableError while there is none."""
WIDE = 100
"""From this width on a page of details has two columns."""
BETWEEN = 2
"""Cells between the two."""


class AsOf(NamedTuple):
    """Of when data are."""

    version: int
    """Of the cell's state; 0 where they are of no version."""
    at_ms: int
    """Cell time, Unix milliseconds UTC."""


class Step(NamedTuple):
    """A page and where on it a person was: what is left of it once it is gone."""

    line: str
    """`Pane.line`: its first word is the page's name."""
    place: dict[str, Any]


class Work(Protocol):
    """Something on a page that takes long."""

    @property
    def note(self) -> str:
        """How far it is, for the title; empty once it is over."""
        ...

    def stop(self) -> bool:
        """End it; false when it is over."""
        ...


class Pane(Vertical):
    """One page. The app shows one at a time and calls `reload` when something may have changed."""

    DEFAULT_CSS = """
    Pane { height: 1fr; width: 1fr; }
    """
    BLANK = True  # only what is in it is drawn
    NAME: ClassVar[ScreenName]
    TARGETS: ClassVar[TargetKind] = ""
    EVERY_S: ClassVar[float] = 1.0
    """How often it is asked anew at most, while something happens: of an older page the title says how old it is."""
    argument: str = ""
    """What stood behind its name when it was opened."""
    awaited: Step | None = None
    """Where it is to go once it is put up."""

    class Changed(Message):
        """Title, count or selection differ: header and footer want a look."""

    class Follow(Message):
        """Go where this `:` line goes."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Compose(Message):
        """Open the `:` bar with this in it."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Failed(Message):
        """The engine refused what this page asked."""

        def __init__(self, error: MusterError) -> None:
            super().__init__()
            self.error = error

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.connect = connect

    @property
    def crumb(self) -> str:
        return self.NAME

    @property
    def note(self) -> str:
        """Counts, filter and order, for the title line."""
        return ""

    @property
    def line(self) -> str:
        """The `:` line that leads here, with filter and order: what history, bookmarks and a restored session keep. Its
        first word is the page's name."""
        return f"{self.NAME} {self.argument}".rstrip()

    @property
    def as_of(self) -> AsOf | None:
        """Of when what is shown is; None while nothing is, or where time does not matter."""
        return None

    def place(self) -> dict[str, Any]:
        """Where on the page the person is, as JSON can hold it: what `put_back` of a page of the same line takes."""
        return {}

    def put_back(self, place: dict[str, Any]) -> None:
        """Go to that place as soon as there are data. What no longer exists is left out."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """What an action would act on."""
        return ()

    def acted_on(self, action: Action, context: Context) -> tuple[Target, ...]:
        """Which of the targets an action is for: all of them, where a person has chosen each."""
        return context.targets

    @property
    def copyable(self) -> str:
        """What `y` copies."""
        return " ".join(target.id for target in self.targets)

    def reload(self) -> None:
        """Ask again. Called only while the pane is in view."""

    def look_again(self) -> None:
        """Ask again because a person wants it."""
        self.reload()

    def land(self) -> None:
        """Take the focus."""
        first = next((widget for widget in self.query("*") if widget.can_focus), None)
        if first is not None:
            first.focus()

    def clear_one(self) -> bool:
        """Undo the innermost selection or filter; false when there is none and Back may leave."""
        return False

    @property
    def frozen(self) -> AsOf | None:
        """Of when what is shown stays, because a person has stopped its updates; None while it follows the cell."""
        return None

    def freeze(self) -> None:
        """Stop the updates of what is shown, or have them go on. Raises RefusedError where nothing is updated."""
        raise RefusedError("nothing is updated here", "Freeze a list, the events or the page of one thing")


class TablePane(Pane):
    """A page that is a table, whose news it passes on."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.table = WindowTable()
        self.work: Work | None = None
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
        newer = ", rows read since are newer" if self.table.mixed else ""
        return f"as of {timestamp(self._still.at_ms, date=False)}{newer}"

    @property
    def notes(self) -> list[str]:
        """What the title tells of the table whatever is listed: what is under way, and that it stands still."""
        told = [self.work.note] if self.work is not None and self.work.note else []
        return told + ([self.frozen_note] if self._still is not None else [])

    def place(self) -> dict[str, Any]:
        return dict(self.table.place._asdict())

    def put_back(self, place: dict[str, Any]) -> None:
        """What was put into it by hand or by another version counts for nothing."""
        numbers = [place.get(name) for name in ("index", "top", "x")]
        if all(isinstance(number, int) and 0 <= number < 1 << 40 for number in numbers):
            index, top, x = (int(number) for number in numbers if isinstance(number, int))
            self.table.put_back(Place(index, str(place.get("id", "")), top, x))

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
        """What is frozen is looked at once more and then stays as it is."""
        if self._still is not None:
            self._still = AsOf(0, 0)
        self.table.look_again()

    def reload_if_seen(self) -> None:
        """For a timer: what is listed may differ without the state of the cell."""
        if self.display and self.is_attached:
            self.reload()

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
        self.post_message(self.Failed(event.error))


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
        """How many rows there are, and by which words; nothing before the first answer."""
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
        ranging = ["range: v keeps it, esc gives it up"] if self.table.selection.anchor is not None else []
        return "  ·  ".join([*ranging, *self.notes, summary(self.view, self._window, marked)])

    @property
    def line(self) -> str:
        return f"{self.NAME} {self.view.line}".rstrip()

    @property
    def targets(self) -> tuple[Target, ...]:
        if not self.TARGETS:
            return ()
        rows: Sequence[Row] = list(self.table.marked.values())
        if not rows and self.table.cursor_row is not None:
            rows = [self.table.cursor_row]
        return tuple(Target(row.id, row.state) for row in rows)

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
        """What fetches the rows of this view, on a thread."""
        return partial(fetch_rows, self.connect, view)

    def _ask_anew(self, place: Place | None = None) -> None:
        self.table.empty = f"no {self.KIND} match {self.view.filter_text}" if self.view.where else f"no {self.KIND} yet"
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
        error = RefusedError(f"one plan takes at most {MOST:,} {self.KIND}", "Narrow the filter, or act in portions")
        self.post_message(self.Failed(error))

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
                note = f"{gone:,} marked no longer match: they are marked no more"
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


class DetailPane(Pane, Generic[D]):
    """Sections in one column, or in two on a wide screen."""

    DEFAULT_CSS = """
    DetailPane Horizontal { height: 1fr; }
    DetailPane #right { margin-left: 2; }
    """
    ALWAYS_TWO: ClassVar[bool] = False
    TWO_FROM: ClassVar[int] = WIDE
    """Width from which on there are two columns."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.detail: D | None = None
        self._left = SectionsView(id="left")
        self._right = SectionsView(id="right")
        self._side = self._left
        """Which of the two is to have the keys."""
        self._asking = False
        self._again = False
        self._still: AsOf | None = None
        """Of when the details are that stay."""

    @property
    def as_of(self) -> AsOf | None:
        version, at_ms = getattr(self.detail, "version", None), getattr(self.detail, "now_ms", None)
        return AsOf(version, at_ms) if isinstance(version, int) and isinstance(at_ms, int) else None

    def ask(self, client: Client) -> D:
        """Fetch what is shown. Called on a thread."""
        raise NotImplementedError

    def columns(self, detail: D, width: int) -> tuple[list[Section], list[Section]]:
        """What is shown, for columns of this width."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._left
            yield self._right

    def on_mount(self) -> None:
        self._left.show(self.told_before())
        self.reload()

    def told_before(self) -> list[Section]:
        """What is shown until the details have come."""
        return [Section(self.crumb, (text_line("loading …", "dim"),))]

    def place(self) -> dict[str, Any]:
        return {"left": self._left.place(), "right": self._right.place(), "side": int(self._right.has_focus)}

    def put_back(self, place: dict[str, Any]) -> None:
        self._left.put_back(place.get("left"))
        self._right.put_back(place.get("right"))
        self._side = self._right if place.get("side") else self._left

    def land(self) -> None:
        """Take the focus, on the side where it was."""
        (self._side if self._side.display else self._left).focus()

    @property
    def frozen(self) -> AsOf | None:
        return self._still

    def freeze(self) -> None:
        self._still = (self.as_of or AsOf(0, 0)) if self._still is None else None
        if self._still is None:
            self.reload()
        self.post_message(self.Changed())

    def reload(self) -> None:
        if self._still is None:
            self._ask_again()

    def look_again(self) -> None:
        self._ask_again()

    def _ask_again(self) -> None:
        self._again = True
        if not self._asking:
            self._asking = True
            self.run_worker(self._ask())

    async def _ask(self) -> None:
        """One question at a time; what changed meanwhile is asked for once more."""
        try:
            while self._again and self.is_attached:
                self._again = False
                try:
                    self.detail = await in_thread(lambda: self.ask(self.connect()))
                except MusterError as error:
                    self._refused(error)
                else:
                    self._draw()
        finally:
            self._asking = False

    def _refused(self, error: MusterError) -> None:
        """What was read before stays. While the engine is away the banner says so, not the page."""
        if self.detail is None and not isinstance(error, UnreachableError):
            self._left.show([Section(self.crumb, (text_line(str(error), "bad"),))])
        self.post_message(self.Failed(error))

    def on_resize(self) -> None:
        self._right.display = self.ALWAYS_TWO or self.size.width >= self.TWO_FROM
        self._draw()

    def _draw(self) -> None:
        """Lay out what is known. Widths follow from this page's own, which is right before the columns' are."""
        if self.detail is None or not self.size.width:
            return
        two = self._right.display
        width = max(20, (self.size.width - BETWEEN if two else self.size.width * 2) // 2 - MARGIN - 1)
        left, right = self.columns(self.detail, width)
        self._left.show(left if two else left + right, width)
        self._right.show(right if two else [], width)
        self.post_message(self.Changed())

    def text_lines(self) -> list[str]:
        """The page as lines of text, for an incident's notes."""
        lines = [*self._left.lines, *self._right.lines]
        return ["".join(text for text, _ in line.spans).rstrip() for line in lines]

    @on(SectionsView.LinkChosen)
    def _link(self, event: SectionsView.LinkChosen) -> None:
        self.post_message(self.Follow(event.link))

    @on(SectionsView.Neighbour)
    def _neighbour(self, event: SectionsView.Neighbour) -> None:
        self._side = self._right if event.step > 0 and self._right.display else self._left
        self._side.focus()
