"""What every page is: a pane that asks the engine when it is in view, and says where it is and what is selected.

Panes stay mounted while something lies on top of them, so that Back finds the same row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget

from console.actions import ScreenName, Target, TargetKind
from console.details import Section, text_line
from console.feed import in_thread
from console.screens.sections import MARGIN, SectionsView
from console.table import WindowTable
from console.text import printable
from console.views import LISTS, SHARE, ListView, Row, Window, summary
from engine.errors import MusterError, UnreachableError

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


class Pane(Vertical):
    """One page. The app shows one at a time and calls `reload` when something may have changed."""

    DEFAULT_CSS = """
    Pane { height: 1fr; width: 1fr; }
    """
    NAME: ClassVar[ScreenName]
    TARGETS: ClassVar[TargetKind] = ""

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
        """The `:` line that leads here, with filter and order: what history, bookmarks and a restored session keep."""
        return self.NAME

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


class TablePane(Pane):
    """A page that is a table, whose news it passes on."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.table = WindowTable()
        self._window: Window | None = None

    def compose(self) -> ComposeResult:
        yield self.table

    def reload(self) -> None:
        self.table.reload()

    def reload_if_seen(self) -> None:
        """For a timer: what is listed may differ without the state of the cell."""
        if self.display and self.is_attached:
            self.reload()

    @on(WindowTable.Loaded)
    def _loaded(self, event: WindowTable.Loaded) -> None:
        self._window = event.window
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
            return [f"{self._window.total:,}"]
        return [f"{self._window.matched:,} of {self._window.total:,}", f"/{printable(self._filter)}"]

    def filter(self, text: str) -> None:
        """Show other rows."""
        raise NotImplementedError

    def clear_one(self) -> bool:
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

    def on_mount(self) -> None:
        self._ask_anew()

    @property
    def note(self) -> str:
        return summary(self.view, self._window, len(self.table.marked))

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
        before = (self.view.where, self.view.sort)
        self.view.filter(text)
        if (self.view.where, self.view.sort) != before:
            # A mark that the filter hides would be acted on unseen.
            self.table.marked.clear()
            self._ask_anew()

    def sort_by(self, name: str) -> None:
        self.view.sort_by(name)
        self._ask_anew()

    def clear_one(self) -> bool:
        if self.table.marked:
            self.table.clear_marks()
            return True
        if self.view.filter_text:
            self.filter("")
            return True
        return False

    def _ask_anew(self) -> None:
        self.table.empty = f"no {self.KIND} match {self.view.filter_text}" if self.view.where else f"no {self.KIND} yet"
        # The thread reads a copy: the person may edit the view while it asks.
        view = ListView(self.KIND, self.view.filter_text, self.view.where, self.view.sort)
        self.table.show(view.headings, partial(fetch_rows, self.connect, view), view.sorted_by())
        self.post_message(self.Changed())

    @on(WindowTable.SortRequested)
    def _sort_requested(self, event: WindowTable.SortRequested) -> None:
        self.sort_by(event.name)


def fetch_rows(connect: Connect, view: ListView, offset: int, limit: int) -> Window:
    """Rows of a list from the engine. Blocks."""
    return view.window(connect().query(view.query(offset, limit)), offset)


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
        self._asking = False
        self._again = False

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
        self._left.show([Section(self.crumb, (text_line("loading …", "dim"),))])
        self.reload()

    def reload(self) -> None:
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

    @on(SectionsView.LinkChosen)
    def _link(self, event: SectionsView.LinkChosen) -> None:
        self.post_message(self.Follow(event.link))

    @on(SectionsView.Neighbour)
    def _neighbour(self, event: SectionsView.Neighbour) -> None:
        target: Widget = self._right if event.step > 0 and self._right.display else self._left
        target.focus()
