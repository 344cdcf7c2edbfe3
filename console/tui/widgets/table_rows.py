"""Model of a table: rows in memory, marked rows, column widths, and lines as strips.

Rows are held in chunks around the lines in view. Marks are made one by one, as a range, or on all rows that match; an
action acts on exactly these ids, at most as many as one plan may take.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from console.text.terminal_text import cut, fit, fit_name
from console.text.tones import QUIET, drawn
from console.views.lists import Heading, Row, Window

CHUNK = 50
"""Rows fetched and kept together."""
KEEP_CHUNKS = 80


class RowChunks:
    """Rows by index, as they were when they were asked for last."""

    def __init__(self) -> None:
        self.matched = -1
        """How many rows there are; -1 before the first answer."""
        self.generation = 0
        """Grows whenever all is asked for anew: rows of an older one are shown until the new ones are there."""
        self._chunks: dict[int, tuple[int, list[Row]]] = {}
        """Generation and rows by chunk, the oldest answer first."""

    def row(self, index: int) -> Row | None:
        chunk, at = divmod(index, CHUNK)
        rows = self._chunks.get(chunk, _NEVER)[1]
        return rows[at] if 0 <= at < len(rows) and index < self.matched else None

    def row_with(self, name: str) -> Row | None:
        """The row of that id, if it is in memory."""
        return next((row for _, rows in self._chunks.values() for row in rows if row.id == name), None)

    def ask_again(self) -> None:
        """Mark all rows as old."""
        self.generation += 1

    def clear(self) -> None:
        self.matched = -1
        self._chunks.clear()

    def put(self, window: Window, asked: int, generation: int) -> None:
        """Rows that arrived in place of the old ones. `asked`: how many there were to be."""
        for start in range(0, asked, CHUNK):
            self._chunks.pop((window.start + start) // CHUNK, None)
            self._chunks[(window.start + start) // CHUNK] = (generation, window.rows[start : start + CHUNK])
        while len(self._chunks) > KEEP_CHUNKS:
            self._chunks.pop(next(iter(self._chunks)))
        self.matched = window.matched

    def missing(self, top: int, height: int, marking: tuple[int, int]) -> tuple[int, int] | None:
        """Offset and limit of what is to be fetched next: what is in view, then its neighbours, then the range that is
        being marked (first and last index)."""
        first, last = top // CHUNK, max(top, min(top + height - 1, max(0, self.matched - 1))) // CHUNK
        if any(self._chunks.get(chunk, _NEVER)[0] != self.generation for chunk in range(first, last + 1)):
            return first * CHUNK, (last - first + 1) * CHUNK
        for chunk in (last + 1, first - 1):
            if 0 <= chunk * CHUNK < self.matched and chunk not in self._chunks:
                return chunk * CHUNK, CHUNK
        for chunk in range(marking[0] // CHUNK, marking[1] // CHUNK + 1):
            if chunk not in self._chunks:
                return chunk * CHUNK, CHUNK
        return None


def range_at(top: int, height: int) -> tuple[int, int]:
    """Offset and limit of the chunks in view."""
    first, last = max(0, top) // CHUNK, max(0, top + height) // CHUNK
    return first * CHUNK, (last - first + 1) * CHUNK


_NEVER: tuple[int, list[Row]] = (-1, [])
"""A chunk that was never fetched."""


MOST = 1_000
"""Targets that one plan takes: `runbooks.actions.target_readings.MAX_TARGETS`."""


class Selection:
    """Marked rows in the order in which they were marked."""

    def __init__(self) -> None:
        self.marked: dict[str, Row] = {}
        self.anchor: int | None = None
        """Where the range that is being marked began; None while none is."""
        self._before: dict[str, Row] = {}
        self._turns = 0
        """Grows whenever marks come or go, so that a check that was asked for before does not undo what came after."""

    @property
    def turns(self) -> int:
        return self._turns

    def toggle(self, row: Row) -> bool:
        """Mark it or take its mark away. False: there are as many as one plan takes."""
        self._turns += 1
        if self.marked.pop(row.id, None) is None:
            if len(self.marked) >= MOST:
                return False
            self.marked[row.id] = row
        return True

    def take(self, rows: Iterable[Row]) -> None:
        """Replace the rows."""
        self._turns += 1
        self.anchor = None
        self.marked = {row.id: row for row in rows}

    def clear(self) -> None:
        self.take(())

    def begin(self, index: int) -> None:
        """Begin a range; what was marked before stays marked."""
        self.anchor, self._before = index, dict(self.marked)

    def extend(self, rows: Sequence[Row]) -> None:
        """The range holds these now."""
        self._turns += 1
        added = [row for row in rows if row.id not in self._before][: MOST - len(self._before)]
        self.marked = self._before | {row.id: row for row in added}

    def end(self) -> None:
        """Keep what the range holds."""
        self.anchor = None

    def give_up(self) -> None:
        """As before the range was begun."""
        self._turns += 1
        self.anchor, self.marked = None, self._before

    def span(self, cursor: int) -> tuple[int, int]:
        """First and last index of the range that is being marked up to the cursor, no more of them than one plan takes;
        (0, -1) for none."""
        if self.anchor is None:
            return 0, -1
        if cursor >= self.anchor:
            return self.anchor, min(cursor, self.anchor + MOST - 1)
        return max(cursor, self.anchor - MOST + 1), self.anchor

    def refresh(self, rows: Iterable[Row]) -> None:
        """News of rows that may be marked: an action asks for their state."""
        for row in rows:
            if row.id in self.marked:
                self.marked[row.id] = row

    def keep(self, ids: Collection[str]) -> int:
        """Take away the marks of all others; how many those were."""
        gone = [name for name in self.marked if name not in ids]
        for name in gone:
            del self.marked[name]
        self._turns += bool(gone)
        return len(gone)


GUTTER = 2
"""Cells before the first column, for the cursor and the mark."""
GAP = 2
"""Cells behind each column."""
MORE = 2
"""Cells at the right edge that say that there are more columns."""
LEVELS = ("", "²", "³")
"""Signs behind the arrow of the second and third sorted column."""


class VisibleCells(NamedTuple):
    """Range of cells of a line that is in view."""

    width: int
    shift: int
    """Cells scrolled to the right."""
    most_shift: int


class Columns:
    """Headings and the widths that rows have asked for so far."""

    def __init__(self, headings: tuple[Heading, ...] = (), order: tuple[tuple[str, bool], ...] = ()) -> None:
        self.headings = headings
        self.order = order
        """Columns that rows are sorted by, and whether downwards; the first decides first."""
        self._widths = [len(heading.title) + len(self.arrow(heading.name)) for heading in headings]

    def measure(self, rows: Sequence[Row]) -> bool:
        """Widen columns for their content; whether any grew. They never shrink under the reader's eyes."""
        grown = False
        for row in rows:
            for column, (text, _) in enumerate(row.cells):
                width = min(len(text) if text.isascii() else cell_len(text), self.headings[column].most)
                if width > self._widths[column]:
                    self._widths[column] = width
                    grown = True
        return grown

    def arrow(self, name: str) -> str:
        """Sign behind the title of a sorted column: direction, and rank among the sorted columns."""
        for level, (column, down) in enumerate(self.order[: len(LEVELS)]):
            if column == name:
                return (" ↓" if down else " ↑") + LEVELS[level]
        return ""

    def widths(self, across: int) -> list[int]:
        """Cells of each column where there are so many in all: the last one, if it is text, takes what is left."""
        if not self._widths or self.headings[-1].right:
            return self._widths
        left = across - GUTTER - sum(self._widths) - GAP * (len(self._widths) - 1)
        return [*self._widths[:-1], self._widths[-1] + max(0, left)]

    def in_view(self, across: VisibleCells) -> list[int]:
        """Cells of the columns up to the right edge. Of one that stands across it text is cut, and a number left out:
        half of a number is another number."""
        room = across.width + across.shift - GUTTER - (MORE if across.most_shift > across.shift else 0)
        seen: list[int] = []
        for heading, width in zip(self.headings, self.widths(across.width), strict=True):
            if width > room:
                return [*seen, 0 if heading.right else max(0, room)]
            seen.append(width)
            room -= width + GAP
        return seen

    def total(self, across: int) -> int:
        """Cells of a row, of which `across` are in view."""
        widths = self.widths(across)
        return GUTTER + sum(widths) + GAP * (len(widths) - 1)

    def frozen(self, across: int) -> int:
        """Cells that stay when the others scroll: the gutter and the first column."""
        return GUTTER + GAP + (self.widths(across)[0] if self._widths else 0)

    def edges(self, across: int) -> Iterator[int]:
        """Scroll offsets at which a column begins where the frozen one ends."""
        at = 0
        yield at
        for width in self.widths(across)[1:]:
            at += width + GAP
            yield at

    def at(self, x: int, across: int) -> Heading | None:
        """The column at this cell of a row."""
        edge = GUTTER
        for heading, width in zip(self.headings, self.widths(across), strict=False):
            edge += width + GAP
            if x < edge:
                return heading
        return None


NAMES = frozenset(("id", "name", "queue", "parent", "pool", "node", "rack", "tenant", "team", "subject"))
"""Columns of names, which keep their end when they are cut."""


MAX_KEPT_LINES = 256
"""Rows of a table that are kept as they were drawn: those of a few screens."""


class TableDrawing:
    """Draws the lines of one table. A row that stands as it stood is not drawn again: whoever comes back from a page,
    or opens a dialog over one, sees the same rows.

    CPU from a key to its frame, with and without that: a page of a list 7.6 and 9.5 ms, its order turned 12.8 and 17.4,
    a dialog opened over it 28 and 35 (medians, budget 16 ms; 2026-11-23, 140x45, 5,000 nodes, a busy machine).
    """

    def __init__(self) -> None:
        self._columns = Columns()
        self._tones: dict[str, Style] = {}
        self._styles: dict[tuple[str, bool], Style] = {}
        """By tone, and whether the cursor is on the row."""
        self._lines: dict[tuple[object, ...], Strip] = {}
        """Row as it was drawn, by all that its look depends on besides the columns and the tones."""

    @property
    def columns(self) -> Columns:
        return self._columns

    @columns.setter
    def columns(self, columns: Columns) -> None:
        self._columns = columns
        self._lines.clear()

    def retone(self, tones: dict[str, Style]) -> None:
        """Draw in other colours from now on."""
        self._tones = tones
        self._styles.clear()
        self._lines.clear()

    def header(self, across: VisibleCells) -> Strip:
        style, width = self._tones["header"], across.width
        segments = [drawn(" " * GUTTER, style)]
        for heading, cells in zip(self.columns.headings, self.columns.in_view(across), strict=False):
            arrow = self.columns.arrow(heading.name)
            # A narrow column keeps its arrow and loses letters of its title.
            title = cut(heading.title, max(0, cells - len(arrow))) + arrow
            cell = fit(title, cells, right=heading.right) + " " * GAP
            segments.append(drawn(cell, self._tones["sorted"] if arrow else style))
        strip = self._in_view(segments, style, across)
        if across.shift:
            frozen = min(self.columns.frozen(width), width)
            hidden = drawn("«", self._tones["sorted"])
            strip = Strip.join([strip.crop(0, max(0, frozen - 1)), Strip([hidden]), strip.crop(frozen, width)])
        if across.most_shift > across.shift:
            strip = Strip.join([strip.crop(0, width - 2), Strip([drawn(" »", self._tones["sorted"])])])
        return strip

    def row(self, row: Row, across: VisibleCells, *, at_cursor: bool, focused: bool, marked: bool) -> Strip:
        dot = "●" if marked else " "
        gutter = "▌" + dot if at_cursor and focused else dot + " "
        widths = tuple(self.columns.in_view(across))
        key = (row.cells, widths, across.width, across.shift, gutter, at_cursor)
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= MAX_KEPT_LINES:
                self._lines.clear()
            line = self._lines[key] = self._row(row, across, widths, gutter, at_cursor=at_cursor)
        return line

    def _row(self, row: Row, across: VisibleCells, widths: Sequence[int], gutter: str, *, at_cursor: bool) -> Strip:
        # Neighbours of one style are one piece.
        runs = [(gutter, self._style("accent", at_cursor))]
        for (text, tone), heading, width in zip(row.cells, self.columns.headings, widths, strict=False):
            fitted = fit_name if heading.name in NAMES else fit
            cell = fitted(text, width, right=heading.right) + " " * GAP
            if tone == "ok" and not at_cursor:
                # What is as it should be has a sign in its colour, and a word that does not call.
                runs.append((cell[:1], self._style(tone, at_cursor)))
                cell, tone = cell[1:], "dim"
            style = self._style("" if at_cursor and tone in QUIET else tone, at_cursor)
            if runs[-1][1] is style:
                runs[-1] = (runs[-1][0] + cell, style)
            else:
                runs.append((cell, style))
        segments = [drawn(text, style) for text, style in runs]
        return self._in_view(segments, self._style("base", at_cursor), across)

    def no_row(self, text: str, width: int) -> Strip:
        return Strip([drawn(fit(text, width), self._tones["base"] + self._tones["dim"])], width)

    def _style(self, tone: str, at_cursor: bool) -> Style:
        style = self._styles.get((tone, at_cursor))
        if style is None:
            ground = self._tones["base"] + self._tones["cursor"] if at_cursor else self._tones["base"]
            style = self._styles[tone, at_cursor] = ground if tone == "base" else ground + self._tones[tone]
        return style

    def _in_view(self, segments: list[Segment], style: Style, across: VisibleCells) -> Strip:
        """The first column stays; the others scroll beneath it."""
        strip, width = Strip(segments), across.width
        frozen = min(width, self.columns.frozen(width))
        if across.shift:
            strip = Strip.join([strip.crop(0, frozen), strip.crop(frozen + across.shift, width + across.shift)])
        return strip.adjust_cell_length(width, style)
