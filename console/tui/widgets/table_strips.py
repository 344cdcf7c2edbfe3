"""The lines of a table as strips: heading, rows, and what stands where no row is."""

from __future__ import annotations

from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.cache import LRUCache
from textual.strip import Strip

from console.text.terminal_text import cut, fit, fit_name
from console.text.tones import QUIET, drawn
from console.tui.widgets.table_columns import GAP, GUTTER, Columns
from console.views.lists import Row

NAMES = frozenset(("id", "name", "queue", "parent", "pool", "node", "rack", "tenant", "team", "subject"))
"""Columns of names, which keep their end when they are cut."""


class VisibleCells(NamedTuple):
    """Which cells of a line are in view."""

    width: int
    shift: int
    """Cells scrolled to the right."""
    most_shift: int


class TableDrawing:
    """Strips that were drawn are kept until `forget`."""

    def __init__(self) -> None:
        self.columns = Columns()
        self._tones: dict[str, Style] = {}
        self._styles: dict[tuple[str, bool], Style] = {}
        """By tone, and whether the cursor is on the row."""
        self._strips: LRUCache[object, Strip] = LRUCache(600)

    def retone(self, tones: dict[str, Style]) -> None:
        """Draw in other colours from now on."""
        self._tones = tones
        self._styles.clear()
        self.forget()

    def forget(self) -> None:
        """Widths have changed."""
        self._strips.clear()

    def header(self, across: VisibleCells) -> Strip:
        style, width = self._tones["header"], across.width
        segments = [drawn(" " * GUTTER, style)]
        for heading, cells in zip(self.columns.headings, self.columns.widths(width), strict=False):
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
        key = (row, at_cursor, at_cursor and focused, marked, across.shift)
        strip = self._strips.get(key)
        if strip is None:
            dot = "●" if marked else " "
            gutter = "▌" + dot if at_cursor and focused else dot + " "
            widths = self.columns.widths(across.width)
            # Neighbours of one style are one piece.
            runs = [(gutter, self._style("accent", at_cursor))]
            for (text, tone), heading, width in zip(row.cells, self.columns.headings, widths, strict=True):
                fitted = fit_name if heading.name in NAMES else fit
                cell = fitted(text, width, right=heading.right) + " " * GAP
                style = self._style("" if at_cursor and tone in QUIET else tone, at_cursor)
                if runs[-1][1] is style:
                    runs[-1] = (runs[-1][0] + cell, style)
                else:
                    runs.append((cell, style))
            segments = [drawn(text, style) for text, style in runs]
            strip = self._in_view(segments, self._style("base", at_cursor), across)
            self._strips[key] = strip
        return strip

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
