"""Widgets that draw their lines themselves and need nothing else done to them: no border, no padding, no child.

Textual puts every line of a widget through its styles, and lays the whole screen out anew when what can be scrolled
grows by a line. For lines that are complete as they are drawn neither changes a cell; without both, a page of a table
costs a third.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.reactive import Reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from console.text.tones import drawn

if TYPE_CHECKING:
    from typing import Self

    from console.tui.widgets.compositor import LeanCompositor

    _Lines = Widget
else:
    _Lines = object


MOVES: tuple[BindingType, ...] = (
    Binding("up,k", "move(-1)", show=False),
    Binding("down,j", "move(1)", show=False),
    Binding("pageup,ctrl+u,ctrl+b", "page(-1)", show=False),
    Binding("pagedown,ctrl+d,ctrl+f", "page(1)", show=False),
    Binding("home", "edge(-1)", show=False),
    Binding("G,end", "edge(1)", show=False),
)
"""Keys that move in what scrolls up and down."""


@runtime_checkable
class Toned(Protocol):
    """Keeps the tones it draws in. The app has it take them anew when the theme is another one: a watcher of the app
    would keep each page that ever was in memory."""

    def retone(self) -> None: ...


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

    def _scroll_update(self, virtual_size: Size) -> None:
        """The bars of what was scrolled before it had any say where it is, too."""
        super()._scroll_update(virtual_size)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_y
        if self.show_horizontal_scrollbar:
            self.horizontal_scrollbar.position = self.scroll_x


class Covered(_Lines):
    """For a container that what it holds covers whole: it is never drawn, whatever comes and goes in it. Stands before
    the container among the bases."""

    BLANK = True

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        return super().refresh(*regions, repaint=False, layout=layout, recompose=recompose)


class OverPage(_Lines):
    """For a screen that lies over another, which shines through dimly. Stands before the screen among the bases.

    What lies below is drawn once and kept, and of it only those lines anew that the screen below says are others. It is
    dimmed style by style, not letter by letter.
    """

    _below: dict[int, Strip]
    _below_as: tuple[object, ...] = ()
    """Size and theme of what is kept."""

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        for y in {y for region in regions for y in region.line_range} if self._below_as else ():
            self._below.pop(y, None)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render_lines(self, crop: Region) -> list[Strip]:
        now_as = (self.size, self.app.theme)
        if self._below_as != now_as:
            self._below, self._below_as = {}, now_as
        if missing := [y for y in crop.line_range if y not in self._below]:
            stack = self.app.screen_stack
            below = cast("LeanCompositor", stack[stack.index(self) - 1]._compositor)
            dimmed = _Dimmed(self.styles.background)
            for y, strip in below.lines(missing).items():
                pieces = [drawn(text, dimmed[style]) for text, style, _ in strip if style is not None]
                self._below[y] = Strip(pieces)
        blank = Strip.blank(self.size.width)
        lines = [self._below.get(y, blank) for y in crop.line_range]
        return [line.crop(crop.x, crop.right) for line in lines]


class _Dimmed(dict[Style, Style]):
    """Style -> the same under a tint."""

    def __init__(self, tint: Color) -> None:
        super().__init__()
        self._tint = tint

    def __missing__(self, style: Style) -> Style:
        front, back = (
            (Color.from_rich_color(colour) + self._tint).rich_color if colour is not None else None
            for colour in (style.color, style.bgcolor)
        )
        self[style] = dimmed = style + Style.from_color(front, back)
        return dimmed
