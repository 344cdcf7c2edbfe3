"""Widgets that draw their lines themselves and need nothing else done to them: no border, no padding, no child.

Textual puts every line of a widget through its styles, and lays the whole screen out anew when what can be scrolled
grows by a line. For lines that are complete as they are drawn neither changes a cell; without both, a page of a table
costs a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

if TYPE_CHECKING:
    _Lines = Widget
else:
    _Lines = object


class LeanLines(_Lines):
    """For widgets whose `render_line` gives lines as wide as the widget. Stands before the widget among the bases."""

    def render_lines(self, crop: Region) -> list[Strip]:
        filters = [each for each in self.get_line_filters() if not isinstance(each, ANSIToTruecolor)]
        lines = [self._lean_line(y, filters) for y in crop.line_range]
        return [line.crop(crop.x, crop.right) for line in lines] if crop.x else lines

    def _lean_line(self, y: int, filters: Sequence[LineFilter]) -> Strip:
        strip = self.render_line(y)
        for each in filters:
            strip = strip.apply_filter(each, self.background_colors[1])
        return strip


class LeanScroll(LeanLines, ScrollView):
    """Scrolls over lines that it draws itself. Who changes `virtual_size` says what is to be drawn anew."""

    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False, repaint=False)

    def watch_virtual_size(self, size: Size) -> None:
        if self.styles.auto_dimensions:
            self.refresh(layout=True)
        elif self.is_mounted and self.size:
            self._scroll_update(size)
