"""A table that shows a window onto any number of rows.

It asks for the rows in view (and a chunk around them) on a thread, keeps what it shows until the new rows are there,
and keeps the cursor on the same row when rows move. Drawn with Textual's Line API: cost depends on the height of the
screen, never on the number of rows. Cells are drawn as segments, so no text is ever read as markup.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.text.tones import tones
from console.tui.widgets.drawing import PlacedScroll
from console.tui.widgets.table_rows import MOST, Columns, RowChunks, Selection, TableDrawing, VisibleCells, range_at
from console.views.lists import Heading, Row, Window
from engine.model.errors import MusterError

Fetch = Callable[[int, int], Window]
"""Offset and limit to rows. Blocks; called on a thread."""


class TablePosition(NamedTuple):
    """Place of a person in a table."""

    index: int = 0
    """Index of the row under the cursor."""
    id: str = ""
    top: int = 0
    """Index of the first row in view."""
    x: int = 0
    """Cells scrolled to the right."""


class WindowTable(PlacedScroll, can_focus=True, inherit_bindings=False):
    """Rows by window, with a cursor, marks, and a header that sorts."""

    DEFAULT_CSS = """
    WindowTable { height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1.0)", show=False),
        Binding("pagedown,ctrl+f", "page(1.0)", show=False),
        Binding("ctrl+u", "page(-0.5)", show=False),
        Binding("ctrl+d", "page(0.5)", show=False),
        Binding("home", "first", show=False),
        Binding("G,end", "last", show=False),
        Binding("left", "shift(-1)", show=False),
        Binding("right", "shift(1)", show=False),
        Binding("enter", "choose", show=False),
        Binding("space", "mark", show=False),
        Binding("shift+up,K", "stretch(-1)", show=False),
        Binding("shift+down,J", "stretch(1)", show=False),
    ]

    class RowChosen(Message):
        """Enter, or a click on the row under the cursor."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class SortRequested(Message):
        """A click on a header; with Shift, `then`: by this one where the first is equal."""

        def __init__(self, name: str, then: bool = False) -> None:
            super().__init__()
            self.name = name
            self.then = then

    class Loaded(Message):
        """New rows are shown."""

        def __init__(self, window: Window) -> None:
            super().__init__()
            self.window = window

    class LoadFailed(Message):
        """The rows asked for could not be had; the old ones stay."""

        def __init__(self, error: MusterError) -> None:
            super().__init__()
            self.error = error

    class Touched(Message):
        """The cursor is on another row, or the marks changed."""

    class TooMany(Message):
        """More rows were to be marked than one plan takes."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.empty = "empty"
        self.selection = Selection()
        self.markable = False
        """Rows can be marked, because something can be done with several."""
        self.frozen = False
        """Nothing is asked for anew; only rows that were never in view are fetched."""
        self.mixed = False
        """Frozen, and yet some rows in memory are newer than the rest."""
        self.cursor = 0
        self._cursor_id = ""
        self._drawing = TableDrawing()
        self._next: tuple[tuple[Heading, ...], tuple[tuple[str, bool], ...]] = ((), ())
        """Headings and order of the rows that are asked for: those on the screen keep theirs until these come."""
        self._grows_at_top = False
        self._place = TablePosition()
        self._version = 0
        self._fetch: Fetch | None = None
        self._source = 0
        self._shown = 0
        self._rows = RowChunks()
        self._loading = False

    # --- what the owner of the table calls

    def show(
        self,
        headings: tuple[Heading, ...],
        fetch: Fetch,
        sorted_by: tuple[tuple[str, bool], ...] = (),
        *,
        grows_at_top: bool = False,
        place: TablePosition | None = None,
    ) -> None:
        """Show other rows, from the top or from a place. What is on the screen stays until they have arrived.
        `grows_at_top`: new rows come first, so that what is read moves down by as many."""
        self._next, self._fetch, self._grows_at_top = (headings, sorted_by), fetch, grows_at_top
        if headings == self._columns.headings and sorted_by != self._columns.order:
            self._columns.order = sorted_by  # the arrow at once; the rows follow
            self.refresh(Region(0, 0, self.size.width, 1))
        self._place = place or TablePosition()
        self._source += 1
        self._ask_again()

    def reload(self) -> None:
        """Ask again for the rows in view, unless they are to stay as they are."""
        if not self.frozen and self.selection.anchor is None:
            self._ask_again()

    def look_again(self) -> None:
        """Ask again although the rows are frozen."""
        self._ask_again()

    def _ask_again(self) -> None:
        self.mixed = False
        self._rows.ask_again()
        self._load_missing()

    @property
    def cursor_row(self) -> Row | None:
        """The row under the cursor, if it has arrived."""
        return self._row(self.cursor)

    @property
    def headings(self) -> tuple[Heading, ...]:
        """Columns of the rows that are asked for."""
        return self._next[0]

    @property
    def fetch(self) -> Fetch | None:
        """The function that gives the rows."""
        return self._fetch

    @property
    def matched(self) -> int:
        """Number of rows; -1 before the first answer."""
        return self._rows.matched

    @property
    def marked(self) -> dict[str, Row]:
        return self.selection.marked

    @property
    def at_top(self) -> bool:
        """The first row is in view and under the cursor: what is new is seen at once."""
        return self.cursor == 0 and self.scroll_offset.y == 0

    @property
    def place(self) -> TablePosition:
        return TablePosition(self.cursor, self._cursor_id, self.scroll_offset.y, self.scroll_offset.x)

    def put_back(self, place: TablePosition) -> None:
        """Go to a place, and there to its row should that be near."""
        self._place = place
        self._source += 1
        self._ask_again()

    def row_with(self, name: str) -> Row | None:
        """The row of that id, if it is in memory."""
        return self._rows.row_with(name)

    def clear_marks(self) -> None:
        self.selection.clear()
        self.refresh()
        self.post_message(self.Touched())

    def redraw_marks(self) -> None:
        """The marks were changed from outside."""
        self.refresh()
        self.post_message(self.Touched())

    # --- loading

    def _load_missing(self) -> None:
        if self._fetch is None or self._loading or not self.size.height or self._next_range() is None:
            return
        self._loading = True
        self.run_worker(self._load())

    async def _load(self) -> None:
        """Load rows until those in view are new and their neighbours are there, one question at a time."""
        try:
            while (wanted := self._next_range()) is not None:
                assert self._fetch is not None
                source, generation = self._source, self._rows.generation
                try:
                    window = await in_thread(partial(self._fetch, *wanted))
                    moved = self._moved(window) if source == self._shown and self._holds_view(wanted) else 0
                    if moved and not self._covers(window, moved):
                        wanted = range_at(self.scroll_offset.y + moved, self.size.height)
                        window = await in_thread(partial(self._fetch, *wanted))
                        moved = self._moved(window, moved)
                except MusterError as error:
                    if generation != self._rows.generation:
                        continue  # asked again meanwhile, perhaps because the engine is back
                    self.post_message(self.LoadFailed(error))
                    return
                if source == self._source:
                    self._take(window, wanted[1], generation, moved)
        finally:
            self._loading = False

    def _next_range(self) -> tuple[int, int] | None:
        """Offset and limit of what is to be fetched next."""
        if self._shown != self._source:
            return range_at(self._place.top, self.size.height)
        return self._rows.missing(self.scroll_offset.y, self.size.height, self.selection.span(self.cursor))

    def _holds_view(self, wanted: tuple[int, int]) -> bool:
        return wanted[0] <= self.scroll_offset.y < wanted[0] + wanted[1]

    def _covers(self, window: Window, moved: int) -> bool:
        """True where the window has the rows that come into view after a move by so many."""
        top = self.scroll_offset.y + moved
        bottom = min(top + self.size.height, window.matched)
        return window.start <= top and bottom <= window.start + len(window.rows)

    def _moved(self, window: Window, guess: int = 0) -> int:
        """By how many rows what is read has moved since it was drawn. At the very top it stays at the top: that is how
        one watches a tail."""
        index, name = self.cursor, self._cursor_id
        if self.cursor == 0:
            index = self.scroll_offset.y
            row = self._row(index)
            name = row.id if row is not None else ""
        if not index or not name:
            return 0
        here = [at - index for at, row in enumerate(window.rows, window.start) if row.id == name]
        if here:
            return here[0]
        return guess or (max(0, window.matched - self._rows.matched) if self._grows_at_top else 0)

    def _take(self, window: Window, asked: int, generation: int, moved: int = 0) -> None:
        """Put rows that arrived in place of the old ones, and draw what changed."""
        begins = self._shown != self._source
        if begins:
            if not window.rows and window.matched:
                self._place = TablePosition(
                    top=max(0, window.matched - self.size.height)
                )  # that place is there no more
                return
            self._start_over()
        before = self._rows_in_view()
        self._rows.put(window, asked, generation)
        self.mixed = self.mixed or (self.frozen and window.version != self._version)
        if not self.frozen:
            self._version = window.version
        widened = self._columns.measure(window.rows)
        self._resize_content()
        self._follow(begins, moved)
        self.selection.refresh(window.rows)
        self._stretch_range()
        after = self._rows_in_view()
        if widened or len(before) != len(after):
            self.refresh()
        else:
            for line, (old, new) in enumerate(zip(before, after, strict=True)):
                if old != new or new is None:
                    self._refresh_line(line + 1)
        self.post_message(self.Loaded(window))

    def _start_over(self) -> None:
        self._shown = self._source
        self._drawing.columns = Columns(*self._next)
        self._rows.clear()
        self.selection.end()
        self.refresh()

    def _follow(self, begins: bool, moved: int) -> None:
        """Keep the cursor, and what is in view, on the same rows."""
        top = self.scroll_offset.y
        if begins:
            place, self._place = self._place, TablePosition()
            near = range_at(place.top, self.size.height)
            here = [
                at for at in range(*(near[0], sum(near))) if place.id and getattr(self._row(at), "id", "") == place.id
            ]
            self.cursor, self._cursor_id = (here or [place.index])[0], ""
            moved, top = self.cursor - place.index, place.top
            self.scroll_to(x=place.x, animate=False, force=True)
        elif self.cursor > 0:
            self.cursor += moved
        self.cursor = max(0, min(self.cursor, self._rows.matched - 1))
        if begins or moved:
            self.set_reactive(WindowTable.scroll_target_y, max(0, top + moved))
            self.scroll_to(y=max(0, top + moved), animate=False, force=True)
        self._note_cursor()

    def _note_cursor(self) -> None:
        row = self.cursor_row
        new = row.id if row else ""
        if new != self._cursor_id:
            self._cursor_id = new
            self.post_message(self.Touched())

    # --- geometry

    @property
    def _columns(self) -> Columns:
        """Of the rows that are shown."""
        return self._drawing.columns

    @property
    def _width(self) -> int:
        """Cells for text: the scroll bar has the last one."""
        return max(0, self.size.width - 1)

    def _resize_content(self) -> None:
        size = Size(self._columns.total(self._width), self._rows.matched + 1)
        if size != self.virtual_size:
            self.virtual_size = size

    def _rows_in_view(self) -> list[Row | None]:
        top = self.scroll_offset.y
        return [self._row(top + line) for line in range(max(0, self.size.height - 1))]

    def _row(self, index: int) -> Row | None:
        return self._rows.row(index)

    def on_resize(self) -> None:
        self._resize_content()
        self._reveal()
        self._load_missing()

    def on_mount(self) -> None:
        self.retone()

    def retone(self) -> None:
        self._drawing.retone(tones(self.app.current_theme))
        self.refresh()

    def on_focus(self) -> None:
        self._refresh_row(self.cursor)

    def on_blur(self) -> None:
        self._refresh_row(self.cursor)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._load_missing()

    # --- drawing

    def render_line(self, y: int) -> Strip:
        across = VisibleCells(self._width, self.scroll_offset.x, self.max_scroll_x)
        if y == 0:
            return self._drawing.header(across)
        index = y - 1 + self.scroll_offset.y
        row = self._row(index)
        if row is not None:
            at_cursor, marked = index == self.cursor, row.id in self.marked
            return self._drawing.row(row, across, at_cursor=at_cursor, focused=self.has_focus, marked=marked)
        text = ""
        if self._rows.matched < 0 and y == 1:
            text = "  loading …"
        elif self._rows.matched == 0 and y == 2:
            # Of other rows than these nothing is known yet.
            text = "  " + (printable(self.empty) if self._shown == self._source else "loading …")
        elif 0 <= index < self._rows.matched:
            text = "  ·"
        return self._drawing.no_row(text, self._width)

    def _refresh_row(self, index: int) -> None:
        self._refresh_line(index + 1 - self.scroll_offset.y)

    def _refresh_line(self, y: int) -> None:
        if 0 < y < self.size.height:
            self.refresh(Region(0, y, self._width, 1))

    # --- moving

    def _go(self, index: int) -> None:
        old, self.cursor = self.cursor, max(0, min(index, self._rows.matched - 1))
        anchor = self.selection.anchor
        if anchor is not None and abs(old - anchor) < MOST <= abs(self.cursor - anchor):
            self.post_message(self.TooMany())
        if old != self.cursor:
            self._refresh_row(old)
            self._refresh_row(self.cursor)
            self._reveal()
            self._stretch_range()
            self._note_cursor()

    def _reveal(self) -> None:
        """Scroll so that the cursor is in view."""
        top, lines = self.scroll_offset.y, max(1, self.size.height - 1)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + lines:
            self.scroll_to(y=self.cursor - lines + 1, animate=False)

    def action_move(self, lines: int) -> None:
        self._go(self.cursor + lines)

    def action_page(self, pages: float) -> None:
        lines = max(1, int(abs(pages) * (self.size.height - 2)))
        lines = lines if pages > 0 else -lines
        self.scroll_to(y=self.scroll_offset.y + lines, animate=False)
        self._go(self.cursor + lines)

    def action_first(self) -> None:
        self._go(0)

    def action_last(self) -> None:
        self._go(self._rows.matched - 1)

    def action_shift(self, columns: int) -> None:
        """Scroll by one column."""
        edges, now = list(self._columns.edges(self._width)), self.scroll_offset.x
        later = [edge for edge in edges if edge > now] if columns > 0 else [edge for edge in edges if edge < now][::-1]
        if later:
            self.scroll_to(x=min(later[0], self.max_scroll_x), animate=False, force=True)
            self.refresh()

    def action_choose(self) -> None:
        if (row := self.cursor_row) is not None:
            self.post_message(self.RowChosen(row))

    def action_mark(self) -> None:
        """Mark or unmark the row under the cursor, and go on to the next. Ends a range."""
        row = self.cursor_row
        if row is None or not self.markable:
            return
        if self.selection.anchor is not None:
            self.action_range()
            return
        if not self.selection.toggle(row):
            self.post_message(self.TooMany())
        self._refresh_row(self.cursor)
        self._go(self.cursor + 1)
        self.post_message(self.Touched())

    def action_range(self) -> None:
        """Begin a range at the cursor, which moving then stretches; or end it and keep its marks."""
        if not self.markable or self._rows.matched < 1:
            return
        if self.selection.anchor is None:
            self.selection.begin(self.cursor)
            self._stretch_range()
        else:
            self.selection.end()
        self.refresh()
        self.post_message(self.Touched())

    def action_stretch(self, lines: int) -> None:
        """Begin a range, or stretch it."""
        if self.selection.anchor is None:
            self.action_range()
        self._go(self.cursor + lines)

    def give_up_range(self) -> bool:
        """Undo a range that is being marked; false when none is."""
        if self.selection.anchor is None:
            return False
        self.selection.give_up()
        self.redraw_marks()
        return True

    def _stretch_range(self) -> None:
        """The range goes from where it began to the cursor. It holds the rows that are here; others are asked for."""
        first, last = self.selection.span(self.cursor)
        if last < first:
            return
        every = [self._row(index) for index in range(first, last + 1)]
        self.selection.extend([row for row in every if row is not None])
        self.redraw_marks()
        if None in every:
            self._load_missing()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            self._click_header(offset.x, then=event.shift)
            return
        index = offset.y - 1 + self.scroll_offset.y
        if index >= self._rows.matched:
            return
        if event.shift and self.markable:
            if self.selection.anchor is None:
                self.action_range()
            self._go(index)
        elif event.ctrl and self.markable:
            self._go(index)
            if self.cursor_row is not None:
                self.selection.toggle(self.cursor_row)
                self.redraw_marks()
        elif index == self.cursor:
            self.action_choose()
        else:
            self._go(index)

    def on_mouse_scroll_right(self, event: events.MouseScrollRight) -> None:
        event.stop()
        self.action_shift(1)

    def on_mouse_scroll_left(self, event: events.MouseScrollLeft) -> None:
        event.stop()
        self.action_shift(-1)

    def _click_header(self, x: int, *, then: bool) -> None:
        if x >= self._columns.frozen(self._width):
            x += self.scroll_offset.x
        if (heading := self._columns.at(x, self._width)) is not None:
            self.post_message(self.SortRequested(heading.name, then))
