"""A table that shows a window onto any number of rows.

It asks for the rows in view (and a chunk around them) on a thread, keeps what it shows until the new rows are there,
and keeps the cursor on the same row when rows move. Drawn with Textual's Line API: cost depends on the height of the
screen, never on the number of rows. Cells are drawn as segments, so no text is ever read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.feed import in_thread
from console.text import fit, printable
from console.theme import drawn, tones
from console.views import Heading, Row, Window
from engine.errors import MusterError

CHUNK = 100
"""Rows fetched and kept together."""
KEEP_CHUNKS = 40
GUTTER = 2
GAP = 2

Fetch = Callable[[int, int], Window]
"""Offset and limit to rows. Blocks; called on a thread."""


class WindowTable(ScrollView, can_focus=True, inherit_bindings=False):
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
        Binding("g,home", "first", show=False),
        Binding("G,end", "last", show=False),
        Binding("left", "shift(-1)", show=False),
        Binding("right", "shift(1)", show=False),
        Binding("enter", "choose", show=False),
        Binding("space", "mark", show=False),
    ]

    class RowChosen(Message):
        """Enter, or a click on the row under the cursor."""

        def __init__(self, row: Row) -> None:
            super().__init__()
            self.row = row

    class SortRequested(Message):
        """A click on a header."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

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

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.empty = "nothing here"
        self.marked: dict[str, Row] = {}
        self.cursor = 0
        self._cursor_id = ""
        self._headings: tuple[Heading, ...] = ()
        self._sorted: tuple[str, bool] = ("", False)
        self._fetch: Fetch | None = None
        self._source = 0
        self._shown = 0
        self._generation = 0
        self._chunks: dict[int, tuple[int, list[Row]]] = {}
        self._matched = -1
        self._loading = False
        self._widths: list[int] = []
        self._strips: LRUCache[object, Strip] = LRUCache(600)
        self._tones: dict[str, Style] = {}

    # --- what the owner of the table calls

    def show(self, headings: tuple[Heading, ...], fetch: Fetch, sorted_by: tuple[str, bool] = ("", False)) -> None:
        """Show other rows, from the top. What is on the screen stays until they have arrived."""
        self._headings, self._fetch, self._sorted = headings, fetch, sorted_by
        self._source += 1
        self.reload()

    def reload(self) -> None:
        """Ask again for the rows in view."""
        self._generation += 1
        self._load_missing()

    @property
    def cursor_row(self) -> Row | None:
        """The row under the cursor, if it has arrived."""
        return self._row(self.cursor)

    def clear_marks(self) -> None:
        self.marked.clear()
        self.refresh()
        self.post_message(self.Touched())

    # --- loading

    def _load_missing(self) -> None:
        if self._fetch is None or self._loading or not self.size.height or self._next_range() is None:
            return
        self._loading = True
        self.run_worker(self._load())

    async def _load(self) -> None:
        """One question at a time, until everything in view is there and new, and its neighbours are there."""
        try:
            while (wanted := self._next_range()) is not None:
                assert self._fetch is not None
                source, generation = self._source, self._generation
                try:
                    window = await in_thread(partial(self._fetch, *wanted))
                except MusterError as error:
                    if generation != self._generation:
                        continue  # asked again meanwhile, perhaps because the engine is back
                    self.post_message(self.LoadFailed(error))
                    return
                if source == self._source:
                    self._take(window, wanted[1], generation)
        finally:
            self._loading = False

    def _next_range(self) -> tuple[int, int] | None:
        """Offset and limit of what is to be fetched next."""
        if self._shown != self._source:
            return 0, CHUNK * (1 + self.size.height // CHUNK)
        first, last = self._chunks_in_view()
        if any(self._chunks.get(chunk, _NEVER)[0] != self._generation for chunk in range(first, last + 1)):
            return first * CHUNK, (last - first + 1) * CHUNK
        for chunk in (last + 1, first - 1):
            if 0 <= chunk * CHUNK < self._matched and chunk not in self._chunks:
                return chunk * CHUNK, CHUNK
        return None

    def _chunks_in_view(self) -> tuple[int, int]:
        top = self.scroll_offset.y
        bottom = min(top + self.size.height - 1, max(0, self._matched - 1))
        return top // CHUNK, max(top, bottom) // CHUNK

    def _take(self, window: Window, asked: int, generation: int) -> None:
        """Put rows that arrived in place of the old ones, and draw what changed."""
        if self._shown != self._source:
            self._start_over()
        before = self._rows_in_view()
        for start in range(0, asked, CHUNK):
            self._chunks.pop((window.start + start) // CHUNK, None)
            self._chunks[(window.start + start) // CHUNK] = (generation, window.rows[start : start + CHUNK])
        while len(self._chunks) > KEEP_CHUNKS:
            self._chunks.pop(next(iter(self._chunks)))
        resized = self._measure(window.rows) or window.matched != self._matched
        self._matched = window.matched
        if resized:
            self._resize_content()
        self._follow(window)
        after = self._rows_in_view()
        if resized or len(before) != len(after):
            self.refresh()
        else:
            for line, (old, new) in enumerate(zip(before, after, strict=True)):
                if old != new:
                    self._refresh_line(line + 1)
        self.post_message(self.Loaded(window))

    def _start_over(self) -> None:
        self._shown = self._source
        self._chunks.clear()
        self._widths = [self._title_width(heading) for heading in self._headings]
        self._matched = -1
        self.cursor, self._cursor_id = 0, ""
        self.set_reactive(WindowTable.scroll_target_y, 0)
        self.scroll_to(0, 0, animate=False)
        self._strips.clear()
        self.refresh()

    def _follow(self, window: Window) -> None:
        """Keep the cursor on its row. At the very top it stays at the top: that is how one watches a tail."""
        self.cursor = max(0, min(self.cursor, self._matched - 1))
        if self._cursor_id and self.cursor > 0:
            for index, row in enumerate(window.rows, window.start):
                if row.id == self._cursor_id:
                    moved, self.cursor = index - self.cursor, index
                    if moved:
                        self.scroll_to(y=self.scroll_offset.y + moved, animate=False)
                    break
        self._note_cursor()

    def _note_cursor(self) -> None:
        row = self.cursor_row
        new = row.id if row else ""
        if new != self._cursor_id:
            self._cursor_id = new
            self.post_message(self.Touched())

    # --- geometry

    @property
    def _width(self) -> int:
        """Cells for text: the scroll bar has the last one."""
        return max(0, self.size.width - 1)

    def _measure(self, rows: Sequence[Row]) -> bool:
        """Widen columns for their content. They never shrink under the reader's eyes."""
        grown = False
        for row in rows:
            for column, (text, _) in enumerate(row.cells):
                width = min(len(text) if text.isascii() else cell_len(text), self._headings[column].most)
                if width > self._widths[column]:
                    self._widths[column] = width
                    grown = True
        if grown:
            self._strips.clear()
        return grown

    def _title_width(self, heading: Heading) -> int:
        return len(heading.title) + (2 if heading.name == self._sorted[0] else 0)

    def _layout(self) -> list[int]:
        """Widths as drawn: the last column, if it is text, takes what is left."""
        if not self._widths or self._headings[-1].right:
            return self._widths
        left = self._width - GUTTER - sum(self._widths) - GAP * (len(self._widths) - 1)
        return [*self._widths[:-1], self._widths[-1] + max(0, left)]

    def _resize_content(self) -> None:
        widths = self._layout()
        size = Size(GUTTER + sum(widths) + GAP * (len(widths) - 1), self._matched + 1)
        if size != self.virtual_size:
            self.virtual_size = size

    def _rows_in_view(self) -> list[Row | None]:
        top = self.scroll_offset.y
        return [self._row(top + line) for line in range(max(0, self.size.height - 1))]

    def _row(self, index: int) -> Row | None:
        chunk, at = divmod(index, CHUNK)
        rows = self._chunks.get(chunk, _NEVER)[1]
        return rows[at] if 0 <= at < len(rows) and index < self._matched else None

    def on_resize(self) -> None:
        self._strips.clear()
        self._resize_content()
        self._reveal()
        self._load_missing()

    def on_mount(self) -> None:
        self._retone()
        self.watch(self.app, "theme", self._retone, init=False)

    def _retone(self) -> None:
        self._tones = tones(self.app.current_theme)
        self._strips.clear()
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
        base = self._tones["base"]
        if y == 0:
            return self._header()
        index = y - 1 + self.scroll_offset.y
        row = self._row(index)
        if row is not None:
            return self._drawn(row, at_cursor=index == self.cursor)
        text = ""
        if self._matched < 0 and y == 1:
            text = "  loading …"
        elif self._matched == 0 and y == 2:
            text = "  " + printable(self.empty)
        elif 0 <= index < self._matched:
            text = "  ·"
        return Strip([drawn(fit(text, self._width), base + self._tones["dim"])], self._width)

    def _drawn(self, row: Row, *, at_cursor: bool) -> Strip:
        marked = row.id in self.marked
        key = (row, at_cursor, at_cursor and self.has_focus, marked, self.scroll_offset.x)
        strip = self._strips.get(key)
        if strip is None:
            style = self._tones["base"]
            if at_cursor:
                style += self._tones["cursor"]
            dot = "●" if marked else " "
            gutter = "▌" + dot if at_cursor and self.has_focus else dot + " "
            segments = [drawn(gutter, style + self._tones["accent"])]
            for (text, tone), heading, width in zip(row.cells, self._headings, self._layout(), strict=True):
                tone = "" if at_cursor and tone == "dim" else tone
                cell = fit(text, width, right=heading.right) + " " * GAP
                segments.append(drawn(cell, style + self._tones[tone]))
            strip = self._in_view(segments, style)
            self._strips[key] = strip
        return strip

    def _header(self) -> Strip:
        style, name, down = self._tones["header"], *self._sorted
        segments = [drawn(" " * GUTTER, style)]
        for heading, width in zip(self._headings, self._layout(), strict=False):
            here = heading.name == name
            title = f"{heading.title} {'↓' if down else '↑'}" if here else heading.title
            cell = fit(title, width, right=heading.right) + " " * GAP
            segments.append(drawn(cell, self._tones["sorted"] if here else style))
        strip = self._in_view(segments, style)
        if self.max_scroll_x > self.scroll_offset.x:
            strip = Strip.join([strip.crop(0, self._width - 2), Strip([drawn(" »", self._tones["sorted"])])])
        return strip

    def _in_view(self, segments: list[Segment], style: Style) -> Strip:
        """The first column stays; the others scroll beneath it."""
        strip, width = Strip(segments).simplify(), self._width
        frozen = min(width, self._frozen())
        shift = self.scroll_offset.x
        if shift:
            strip = Strip.join([strip.crop(0, frozen), strip.crop(frozen + shift, width + shift)])
        return strip.adjust_cell_length(width, style)

    def _frozen(self) -> int:
        return GUTTER + GAP + (self._layout()[0] if self._widths else 0)

    def _refresh_row(self, index: int) -> None:
        self._refresh_line(index + 1 - self.scroll_offset.y)

    def _refresh_line(self, y: int) -> None:
        if 0 < y < self.size.height:
            self.refresh(Region(0, y, self._width, 1))

    # --- moving

    def _go(self, index: int) -> None:
        old, self.cursor = self.cursor, max(0, min(index, self._matched - 1))
        if old != self.cursor:
            self._refresh_row(old)
            self._refresh_row(self.cursor)
            self._reveal()
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
        self._go(self._matched - 1)

    def action_shift(self, columns: int) -> None:
        """Scroll by one column."""
        edges, at = [0], 0
        for width in self._layout()[1:]:
            at += width + GAP
            edges.append(at)
        now = self.scroll_offset.x
        later = [edge for edge in edges if edge > now] if columns > 0 else [edge for edge in edges if edge < now][::-1]
        if later:
            self.scroll_to(x=min(later[0], self.max_scroll_x), animate=False, force=True)
            self.refresh()

    def action_choose(self) -> None:
        if (row := self.cursor_row) is not None:
            self.post_message(self.RowChosen(row))

    def action_mark(self) -> None:
        """Mark or unmark the row under the cursor, and go on to the next."""
        row = self.cursor_row
        if row is None:
            return
        if self.marked.pop(row.id, None) is None:
            self.marked[row.id] = row
        self._refresh_row(self.cursor)
        self._go(self.cursor + 1)
        self.post_message(self.Touched())

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        if offset.y == 0:
            self._click_header(offset.x)
            return
        index = offset.y - 1 + self.scroll_offset.y
        if index == self.cursor:
            self.action_choose()
        elif index < self._matched:
            self._go(index)

    def _click_header(self, x: int) -> None:
        if x >= self._frozen():
            x += self.scroll_offset.x
        edge = GUTTER
        for heading, width in zip(self._headings, self._layout(), strict=False):
            edge += width + GAP
            if x < edge:
                self.post_message(self.SortRequested(heading.name))
                return


_NEVER: tuple[int, list[Row]] = (-1, [])
"""A chunk that was never fetched."""
