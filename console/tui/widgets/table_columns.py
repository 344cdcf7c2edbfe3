"""The columns of a table: how wide each is, where it begins, and what its title says. No Textual in here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from console.views.lists import Heading, Row

GUTTER = 2
"""Cells before the first column, for the cursor and the mark."""
GAP = 2
"""Cells behind each column."""
LEVELS = ("", "²", "³")
"""Behind the arrow of the second and third column that rows are sorted by."""


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
        """Behind the title of a column that the rows are sorted by: which way, and whether it decides first."""
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

    def total(self, across: int) -> int:
        """Cells of a row, of which `across` are in view."""
        widths = self.widths(across)
        return GUTTER + sum(widths) + GAP * (len(widths) - 1)

    def frozen(self, across: int) -> int:
        """Cells that stay when the others scroll: the gutter and the first column."""
        return GUTTER + GAP + (self.widths(across)[0] if self._widths else 0)

    def edges(self, across: int) -> Iterator[int]:
        """How far it can be scrolled so that a column begins where the frozen one ends."""
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
