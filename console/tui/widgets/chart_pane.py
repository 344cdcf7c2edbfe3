"""A page with a chart across its whole width, and columns of sections below it."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual.app import ComposeResult

from console.tui.widgets.detail_pane import DetailPane
from console.tui.widgets.pane import Connect
from console.tui.widgets.sections_view import MARGIN, SectionsView
from console.views.sections import Section

D = TypeVar("D")

MIN_ROWS, MAX_ROWS = 5, 17
"""Rows of a chart, without its axis."""


class ChartPane(DetailPane[D]):
    """The chart never scrolls away; what is below it does."""

    DEFAULT_CSS = """
    ChartPane #chart { height: auto; margin-bottom: 1; }
    """
    CHART_SHARE: ClassVar[int] = 2
    """One of so many lines of the page are the chart's rows."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._chart = SectionsView(id="chart")
        self._chart.can_focus = False

    def chart(self, detail: D, width: int, rows: int) -> list[Section]:
        """What is above the columns, in `width` cells; the chart itself has so many rows."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        yield self._chart
        yield from super().compose()

    def _draw(self) -> None:
        if self.detail is not None and self.size.width:
            width = max(20, self.size.width - MARGIN - 1)
            sections = self.chart(self.detail, width, self._rows())
            self._chart.styles.height = sum(1 + len(section.lines) for section in sections) + max(0, len(sections) - 1)
            self._chart.show(sections, width)
        super()._draw()

    def _rows(self) -> int:
        """Odd, so that there is a row for half of the scale."""
        rows = min(MAX_ROWS, max(MIN_ROWS, min(self.size.height // self.CHART_SHARE, self.size.height - 14)))
        return rows - 1 + rows % 2
