"""Widgets that draw their own lines, and the screen of the pages.

`OneLine` is one line of toned text across the screen: header, tabs, title, footer, banner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from rich.cells import cell_len
from rich.segment import Segments
from rich.style import Style
from textual import events
from textual._compositor import Compositor, CompositorMap, ReflowResult
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.containers import Vertical
from textual.filter import ANSIToTruecolor, LineFilter
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive
from textual.screen import Screen, ScreenResultType
from textual.scroll_view import ScrollView
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.strip import Strip
from textual.widget import Widget

from console.text.terminal_text import cut, printable
from console.text.tones import drawn, tones

if TYPE_CHECKING:
    from typing import Self


NARROW = 60
"""Below this width, as on a phone, a page has one column, and the header only what is urgent."""


class LeanCompositor(Compositor):
    """Textual's, from the front to the back, but it ends once nothing more is to be seen.

    Textual has every widget draw all its lines and cuts them to pieces before it sees that something in front is there
    already. Of a page that is mostly the containers behind it, each as large as the screen.

    CPU from a key to its frame, with and without this: p50 6.3 and 11.4 ms, p99 37 and 69 ms, for budgets of 16 and 50
    ms (2026-11-23, 140x45, `console_bench.py --nodes 5000 --workloads 50000`).
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn_map: CompositorMap = {}
        """Where each widget was when it was drawn last.

        Textual compares a layout with `_full_map`, which it also makes anew, and draws nothing, when somebody asks
        where a widget is that has just come: then the layout that should draw it finds nothing changed.
        """

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        self._full_map = self._drawn_map
        changed = super().reflow(parent, size)
        self._drawn_map = self._full_map
        return changed

    def reflow_visible(self, parent: Widget, size: Size) -> set[Widget]:
        exposed = super().reflow_visible(parent, size)
        self._drawn_map = {**self._drawn_map, **(self._visible_map or {})}
        return exposed

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        cuts = self.cuts
        chops: list[dict[int, Strip | None]] = [dict.fromkeys(line[:-1]) for line in cuts]
        missing = {
            y: {cut for cut, end in pairwise(cuts[y]) if cut < crop.right and end > crop.x}
            for y in crop.line_range
            if y < len(cuts) and is_rendered_line(y)
        }
        for widget, (region, clip) in self.visible_widgets.items():
            seen = region.intersection(clip)
            lines = [y for y in seen.line_range if y in missing] if crop.overlaps(seen) else []
            if not lines:
                continue
            top = lines[0]
            drawn = widget.render_lines(Region(seen.x - region.x, top - region.y, seen.width, lines[-1] - top + 1))
            # What is just being laid out may have fewer lines than it has room for, or shorter ones.
            for y, strip in zip(range(top, lines[-1] + 1), drawn, strict=False):
                if y not in missing:
                    continue
                inside = [at for at in cuts[y] if seen.x <= at <= seen.right]
                pieces = strip.divide([at - seen.x for at in inside[1:]])
                for at, piece in zip(inside, pieces, strict=False):
                    if chops[y][at] is None:
                        chops[y][at] = piece
                    missing[y].discard(at)
                if not missing[y]:
                    del missing[y]
            if not missing:
                break
        return cast("Sequence[Mapping[int, Strip]]", chops)

    def lines(self, wanted: Sequence[int]) -> dict[int, Strip]:
        """These lines of the screen, as they would be drawn now."""
        crop = Region(0, min(wanted), self.size.width, max(wanted) - min(wanted) + 1)
        chops = self._render_chops(crop, set(wanted).__contains__)
        return {y: Strip.join(chops[y].values()) for y in wanted if y < len(chops)}


class DrawnOnce(Screen[ScreenResultType]):
    """A screen that draws each frame once, and at once what answers a key. Stands behind `ModalScreen` among the bases.

    Textual draws what it laid out, and again whatever else was changed in the same turn; it draws the whole screen when
    other widgets have the keys; and it does so once all messages have been dealt with, which for a page takes several
    turns. Together with `Covered` and `PlainLines` this takes p99 of a key's CPU from 43 to 27 ms, and all that a key
    costs from 19.0 to 13.6 ms (2026-11-23, 140x45, `console_bench.py --nodes 5000 --workloads 50000`).
    """

    focused: Reactive[Widget | None] = Reactive(None, repaint=False)
    """Who loses the keys and who has them draws that; the rest of the screen is as it was."""
    _gathering = False
    _owed = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._compositor = LeanCompositor()

    def _on_timer_update(self) -> None:
        self._gathering, self._owed = True, False
        try:
            super()._on_timer_update()
        finally:
            self._gathering = False
        if self._owed:
            self._compositor_refresh()

    def _compositor_refresh(self) -> None:
        if self._gathering:
            self._owed = True
        elif self.app.screen is self:
            super()._compositor_refresh()
        elif (regions := self._compositor._dirty_regions) and self in self.app._background_screens:
            # Seen dimly below a dialog. Textual would have all of it drawn again and again.
            self.app.screen.refresh(*regions)
            regions.clear()
            self._dirty_widgets.clear()

    def set_focus(self, widget: Widget | None, scroll_visible: bool = True, from_app_focus: bool = False) -> None:
        """The cursor of what has the keys is drawn with the same frame, not when the widget is told."""
        super().set_focus(widget, scroll_visible, from_app_focus)
        if widget is not None and widget is self.focused:
            widget.has_focus = True

    def draw(self, *, lay_out: bool = True) -> None:
        """Draw all that is to be drawn anew, not when all messages have been dealt with. Without `lay_out` everything
        stays where it is."""
        if not (self.is_current and self.is_attached and self.size):
            return
        if lay_out:
            self._refresh_layout()
        else:
            self._take_repaints()
            self._compositor_refresh()

    def _refresh_layout(self, size: Size | None = None, scroll: bool = False) -> None:
        """Textual draws what has another size with the layout, and then once more."""
        self._take_repaints()
        super()._refresh_layout(size, scroll)
        for widget in self._compositor.visible_widgets:
            widget._repaint_regions.clear()

    def _take_repaints(self) -> None:
        """Take over what widgets want drawn, whether they have said so yet or not."""
        widgets = self._compositor.visible_widgets
        self._compositor.update_widgets({widget for widget in widgets if widget._repaint_regions})


class PageScreen(DrawnOnce[None]):
    """The screen that the pages are on."""

    def _on_screen_suspend(self) -> None:
        # Besides Textual's own. What lies over it draws it.
        self._repaint_required = False


class OverPage(DrawnOnce[ScreenResultType]):
    """A screen over another, which shines through dimly. Stands behind `ModalScreen` among the bases.

    What lies below is drawn and dimmed once, and then only those of its lines that change: a dialog takes 35 ms of CPU
    without that, and 23 with it.
    """

    _gathering = True
    """Nothing is drawn before it was laid out for the first time."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._below: dict[int, Strip] = {}
        self._below_as: tuple[object, ...] = ()
        """Size and theme of what is kept."""
        super().__init__(*arguments, **named)

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        for y in {y for region in regions for y in region.line_range}:
            self._below.pop(y, None)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render_lines(self, crop: Region) -> list[Strip]:
        now_as = (self.size, self.app.theme)
        if self._below_as != now_as:
            self._below, self._below_as = {}, now_as
        if missing := [y for y in crop.line_range if y not in self._below]:
            stack = self.app.screen_stack
            below = cast("LeanCompositor", stack[stack.index(self) - 1]._compositor)
            dimmed = DimmedStyles(self.styles.background)
            for y, strip in below.lines(missing).items():
                self._below[y] = Strip([drawn(text, dimmed[style]) for text, style, _ in strip if style is not None])
        blank = Strip.blank(self.size.width)
        return [self._below.get(y, blank).crop(crop.x, crop.right) for y in crop.line_range]


class DimmedStyles(dict[Style, Style]):
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


class Covered(Vertical):
    """A container that what it holds covers whole: it need not be drawn when something comes or goes in it."""

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        return super().refresh(*regions, repaint=False, layout=layout, recompose=recompose)


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


class PlainLines(Widget):
    """Gives its lines to the screen as `render_line` draws them, which is as wide as the widget.

    Textual would put each through the widget's styles: border, padding, opacity, none of which they have. It takes a
    page of a table from 9.8 to 6.6 ms of CPU.
    """

    def render_lines(self, crop: Region) -> list[Strip]:
        if self.parent is None:  # taken off its page between the layout and this frame: a bar cannot be drawn
            return [Strip.blank(crop.width)] * crop.height
        filters = [each for each in self.get_line_filters() if not isinstance(each, ANSIToTruecolor)]
        return [self._plain_line(y, filters).crop(crop.x, crop.right) for y in crop.line_range]

    def _plain_line(self, y: int, filters: Sequence[LineFilter]) -> Strip:
        strip = self.render_line(y)
        for each in filters:
            strip = strip.apply_filter(each, self.background_colors[1])
        return strip


class ThinBar(ScrollBarRender):
    """Half a cell wide, so that no text beside it runs into it."""

    @classmethod
    def render_bar(cls, *arguments: Any, back_color: Color, bar_color: Color, **named: Any) -> Segments:
        thumb = Style(color=bar_color, bgcolor=back_color, meta={"@mouse.down": "grab"})
        rows = super().render_bar(*arguments, back_color=back_color, bar_color=bar_color, **named).segments
        held = [style is not None and style.meta.get("@mouse.down") == "grab" for _, style, _ in rows]
        return Segments([drawn("▐", thumb) if grab else row for grab, row in zip(held, rows, strict=True)], True)


class PlainBar(ScrollBar, PlainLines):
    """Has a line for each line beside it."""

    renderer = ThinBar


class PlacedScroll(ScrollView, PlainLines):
    """Scrolls over lines that it draws itself. Its bars stand right although it was scrolled before it was laid out.

    Who changes `virtual_size` says what is to be drawn anew: Textual would lay out the whole screen because a list has
    a line more.
    """

    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False, repaint=False)

    @property
    def vertical_scrollbar(self) -> ScrollBar:
        if self._vertical_scrollbar is None:
            self._vertical_scrollbar = PlainBar(vertical=True, thickness=self.scrollbar_size_vertical)
            self._vertical_scrollbar.display = False
            self.app._start_widget(self, self._vertical_scrollbar)
        return self._vertical_scrollbar

    def watch_virtual_size(self, size: Size) -> None:
        if self.styles.auto_dimensions:
            self.refresh(layout=True)
        elif self.is_mounted and self.size:
            self._scroll_update(size)

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        """Textual would draw the bars anew each time the screen is laid out."""
        return size != self._size and super()._size_updated(size, virtual_size, container_size, layout)

    def _on_focus(self, event: events.Focus) -> None:
        """Of what has the keys from now on only the cursor is another. Textual would draw all of it anew."""
        event.prevent_default()
        self.has_focus = True

    def _on_blur(self, event: events.Blur) -> None:
        event.prevent_default()
        self.has_focus = False

    def _scroll_update(self, virtual_size: Size) -> None:
        super()._scroll_update(virtual_size)
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_y
        if self.show_horizontal_scrollbar:
            self.horizontal_scrollbar.position = self.scroll_x


Part = tuple[str, str, str]
"""Text, tone, and what a click on it means (empty: nothing)."""


def part(text: str, tone: str = "", press: str = "") -> Part:
    """A part whose text, wherever it comes from, is safe to draw."""
    return printable(text), tone, press


def whole(parts: Sequence[Part], room: int) -> list[Part]:
    """Those from the left that fit: of what can be clicked all or nothing, so that no name of a key is cut in two."""
    kept: list[Part] = []
    for press, group in groupby(parts, key=itemgetter(2)):
        unit = list(group)
        width = sum(cell_len(text) for text, _, _ in unit)
        if width > room:
            for text, tone, _ in () if press else unit:
                # Whoever cuts a line says so behind it.
                kept.append((text if cell_len(text) <= room else cut(text, room + 1)[:-1], tone, ""))
                room = max(0, room - cell_len(text))
            break
        kept += unit
        room -= width
    return kept


class OneLine(PlainLines):
    """Draws parts from the left and parts from the right; repaints only when they differ from before."""

    DEFAULT_CSS = """
    OneLine { height: 1; width: 100%; }
    """

    class Pressed(Message):
        """A click on a part that means something."""

        def __init__(self, press: str) -> None:
            super().__init__()
            self.press = press

    def __init__(self, ground: str, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ground = ground
        self._left: tuple[Part, ...] = ()
        self._right: tuple[Part, ...] = ()
        self._tones: dict[str, Style] = {}

    def show(self, left: Sequence[Part], right: Sequence[Part] = ()) -> None:
        if (tuple(left), tuple(right)) != (self._left, self._right):
            self._left, self._right = tuple(left), tuple(right)
            self.refresh()

    def on_mount(self) -> None:
        self.retone()

    def retone(self) -> None:
        self._tones = tones(self.app.current_theme)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        base = self._tones["base"] + self._tones[self._ground]
        left, right = self._strip(self._left, base), self._strip(self._right, base)
        room = self.size.width - right.cell_length
        if room <= 0:
            return left.adjust_cell_length(self.size.width, base)
        if left.cell_length > room:
            left = self._strip((*whole(self._left, room - 2), ("… ", "", "")), base)
        return Strip.join([left.adjust_cell_length(room, base), right])

    def _strip(self, parts: tuple[Part, ...], base: Style) -> Strip:
        return Strip([drawn(text, base + self._tones[tone]) for text, tone, _ in parts])

    def on_click(self, event: events.Click) -> None:
        edge = self.size.width - sum(cell_len(text) for text, _, _ in self._right)
        side, edge = (self._right, edge) if event.x >= edge else (self._left, 0)
        for text, _, press in side:
            edge += cell_len(text)
            if event.x < edge:
                if press:
                    self.post_message(self.Pressed(press))
                return
