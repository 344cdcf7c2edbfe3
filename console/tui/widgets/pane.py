"""Base of every page, and pages of sections: lines with links, in columns or below a chart.

A pane asks the engine while it is in view, and tells its place and its selected objects. It stays mounted below other
pages, so that Back finds the same row. The cursor of a page of sections moves from link to link.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from console.actions.registry import ActionTarget, ConsoleAction, Context, ScreenName, TargetKind
from console.client.change_feed import in_thread
from console.text.terminal_text import cut
from console.text.tones import QUIET, drawn, tones
from console.tui.widgets.drawing import MOVES, Covered, PlacedScroll
from console.views.sections import Line, Section, curve_of, loading, text_line
from engine.model.errors import MusterError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from console.client.protocol import Client


Connect = Callable[[], "Client"]
"""Gives the client of the moment, or raises UnreachableError while there is none."""


class AsOf(NamedTuple):
    """Version and time of data."""

    version: int
    """Version of the cell's state; 0 for data of no version."""
    at_ms: int
    """Cell time, Unix milliseconds UTC."""


class PageStep(NamedTuple):
    """A page and where on it a person was: what is left of it once it is gone."""

    line: str
    """`Pane.line`: its first word is the page's name."""
    place: dict[str, Any]


class Pane(Covered):
    """A page. The app shows one at a time and calls `reload` when something may have changed."""

    DEFAULT_CSS = """
    Pane { height: 1fr; width: 1fr; }
    """
    NAME: ClassVar[ScreenName]
    TARGETS: ClassVar[TargetKind] = ""
    EVERY_S: ClassVar[float] = 1.0
    """Shortest interval of questions while something happens. The title tells the age of the page."""
    TAILS: ClassVar[bool] = False
    """True for a page that lists events one by one."""
    KEEPS: ClassVar[bool] = False
    """True for a page that holds what a person has put together."""
    argument: str = ""
    """Argument of its `:` line."""
    awaited: PageStep | None = None
    """Place to go to once it is mounted."""

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

    class AskFailed(Message):
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
        """The `:` line that leads here, with filter and order: what history, bookmarks and a restored session keep. Its
        first word is the page's name."""
        return f"{self.NAME} {self.argument}".rstrip()

    @property
    def as_of(self) -> AsOf | None:
        """Version and time of the data in view; None where there are none, or time does not matter."""
        return None

    def place(self) -> dict[str, Any]:
        """Where on the page the person is, as JSON can hold it: what `put_back` of a page of the same line takes."""
        return {}

    def put_back(self, place: dict[str, Any]) -> None:
        """Go to that place as soon as there are data. What no longer exists is left out."""

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        """Objects an action would act on."""
        return ()

    def acted_on(self, action: ConsoleAction, context: Context) -> tuple[ActionTarget, ...]:
        """The targets an action is for: all of them, where a person has chosen each."""
        return context.targets

    @property
    def copyable(self) -> str:
        """The text that `y` copies."""
        return " ".join(target.id for target in self.targets)

    @property
    def measured(self) -> str:
        """The argument of `:curve` for what the page is about; empty where nothing of it is measured."""
        return ""

    @property
    def curve(self) -> str:
        """The argument of `:curve` for what is under the cursor, or else for what the page is about."""
        return self.measured

    def reload(self) -> None:
        """Ask again. Called only while the pane is in view."""

    def reload_if_seen(self) -> None:
        """For a timer: what is shown may differ without the state of the cell."""
        if self.display and self.is_attached:
            self.reload()

    def look_again(self) -> None:
        """Ask again because a person wants it."""
        self.reload()

    def land(self) -> None:
        """Take the focus."""
        first = next((widget for widget in self.query("*") if widget.can_focus), None)
        if first is not None:
            self.screen.set_focus(first)

    def clear_one(self) -> bool:
        """Undo the innermost selection or filter; false when there is none and Back may leave."""
        return False

    @property
    def frozen(self) -> AsOf | None:
        """Time of the data that stay because a person froze the page; None while it follows the cell."""
        return None

    def freeze(self) -> None:
        """Stop the updates of what is shown, or have them go on. Raises RefusedError where nothing is updated."""
        raise RefusedError("this page does not update", "Freeze works on a list, the events, or the page of one object")


MARGIN = 2


class SectionsView(PlacedScroll, can_focus=True, inherit_bindings=False):
    """Draws sections with the Line API. Scrolls where there are no links to go to."""

    DEFAULT_CSS = """
    SectionsView { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        Binding("left", "neighbour(-1)", show=False),
        Binding("right", "neighbour(1)", show=False),
        Binding("enter", "follow", show=False),
    ]

    class LinkChosen(Message):
        """Enter or a click on a line with a link."""

        def __init__(self, link: str) -> None:
            super().__init__()
            self.link = link

    class LinkMoved(Message):
        """The person went to another link."""

    class Neighbour(Message):
        """The person wants the column to the left or right."""

        def __init__(self, step: int) -> None:
            super().__init__()
            self.step = step

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._cursor = -1
        self.leads_with_first = False
        """Until a person moves it, the cursor is on the first link, whatever comes first."""
        self._moved = False
        self._place: tuple[int, str] | None = None
        """First line in view and link under the cursor, to go to once there are lines."""
        self._tones: dict[str, Style] = {}

    @property
    def text_width(self) -> int:
        """Cells a line may fill."""
        return max(20, self.size.width - MARGIN - 1)

    @property
    def lines(self) -> list[Line]:
        """All lines of the column, headings among them."""
        return self._lines

    @property
    def link(self) -> str:
        """The link under the cursor."""
        return self._lines[self._cursor].link if 0 <= self._cursor < len(self._lines) else ""

    def show(self, sections: Sequence[Section], width: int = 0) -> None:
        """Draw these instead, made for `width`; the cursor stays on the line with the same link."""
        lines = self._flat(sections, width or self.text_width)
        if lines == self._lines:
            return
        before, link = self._lines, self.link
        self._hold_place(before, lines)
        self._lines = lines
        links = [index for index, line in enumerate(lines) if line.link]
        same = [index for index in links if lines[index].link == link]
        nearest = min(links, key=lambda index: abs(index - self._cursor), default=-1)
        self._cursor = same[0] if same else nearest
        if self.leads_with_first and not self._moved and links:
            self._cursor = links[0]
        size = Size(self.size.width, len(lines))
        if size != self.virtual_size or len(before) != len(lines):
            self.virtual_size = size
            self._go_to_place()
            self.refresh()
            return
        for index, (old, new) in enumerate(zip(before, lines, strict=True)):
            if old != new:
                self._refresh_line(index)

    def place(self) -> dict[str, Any]:
        """Where a person reads: the first line in view, and the link under the cursor."""
        top, link = self._place or (self.scroll_offset.y, self.link)
        return {"top": top, "link": link}

    def put_back(self, place: object) -> None:
        """Go there, as soon as there are lines. What makes no sense counts for nothing."""
        top, link = (place.get("top"), place.get("link")) if isinstance(place, dict) else (None, None)
        if isinstance(top, int) and isinstance(link, str) and (top, link) != (0, ""):
            self._place = (top, link)
            self._moved = True
            self._go_to_place()

    def _go_to_place(self) -> None:
        """Once there are links, or more lines than a first note: what was read may come in several answers."""
        if self._place is None or not self.size.height:
            return
        top, link = self._place
        here = [index for index, line in enumerate(self._lines) if line.link == link]
        if len(self._lines) <= top or (link and not here):
            return
        self._place = None
        self._cursor = here[0] if link else self._cursor
        self.scroll_to(y=top, animate=False, force=True)
        self.refresh()

    def _hold_place(self, before: list[Line], after: list[Line]) -> None:
        """Have the line that is read at the top stay there when lines come or go above it."""
        top = self.scroll_offset.y
        if not 0 < top < len(before) or not before[top].spans:
            return
        same = [index for index, line in enumerate(after) if line == before[top]]
        moved = min(same, key=lambda index: abs(index - top), default=top)
        if moved != top:
            self.virtual_size = Size(self.size.width, len(after))
            self.scroll_to(y=moved, animate=False)

    def _flat(self, sections: Sequence[Section], width: int) -> list[Line]:
        lines: list[Line] = []
        for section in sections:
            if lines:
                lines.append(Line())
            lines.append(_head(section, width))
            lines.extend(section.lines)
        return lines

    def on_mount(self) -> None:
        self.retone()

    def retone(self) -> None:
        self._tones = tones(self.app.current_theme)
        self.refresh()

    def on_focus(self) -> None:
        self._refresh_line(self._cursor)

    def on_blur(self) -> None:
        self._refresh_line(self._cursor)

    def render_line(self, y: int) -> Strip:
        index = y + self.scroll_offset.y
        width, style = self.size.width, self._tones["base"]
        if index >= len(self._lines):
            return Strip.blank(width, style)
        line = self._lines[index]
        here = index == self._cursor and self.has_focus
        if here:
            style += self._tones["cursor"]
        segments = [drawn("▌ " if here else "  ", style + self._tones["accent"])]
        segments += [
            drawn(text, style + self._tones["" if here and tone in QUIET else tone]) for text, tone in line.spans
        ]
        strip = Strip(segments)
        if strip.cell_length > width:
            strip = Strip.join([strip.crop(0, width - 2), Strip([drawn("… ", style + self._tones["dim"])])])
        return strip.adjust_cell_length(width, style)

    def _refresh_line(self, index: int) -> None:
        y = index - self.scroll_offset.y
        if 0 <= y < self.size.height:
            self.refresh(Region(0, y, self.size.width, 1))

    def action_move(self, step: int) -> None:
        self._place, self._moved = None, True
        ahead = range(self._cursor + step, len(self._lines) if step > 0 else -1, step)
        target = next((index for index in ahead if self._lines[index].link), None)
        top, height = self.scroll_offset.y, self.size.height
        if target is None or abs(target - self._cursor) > height:
            self.scroll_to(y=top + step, animate=False)
            return
        old, self._cursor = self._cursor, target
        self._refresh_line(old)
        self._refresh_line(target)
        self.post_message(self.LinkMoved())
        if target < top:
            self.scroll_to(y=max(0, target - 2), animate=False)
        elif target >= top + height:
            self.scroll_to(y=target - height + 1, animate=False)

    def show_cursor(self) -> None:
        """Scroll to where the cursor is."""
        top, height = self.scroll_offset.y, self.size.height
        if not top <= self._cursor < top + height:
            self.scroll_to(y=max(0, self._cursor - height // 2), animate=False)

    def action_page(self, pages: int) -> None:
        self._place, self._moved = None, True
        self.scroll_to(y=self.scroll_offset.y + pages * max(1, self.size.height - 1), animate=False)

    def action_edge(self, side: int) -> None:
        self._place = None
        self.scroll_to(y=0 if side < 0 else len(self._lines), animate=False)

    def action_neighbour(self, step: int) -> None:
        self.post_message(self.Neighbour(step))

    def action_follow(self) -> None:
        if self.link:
            self._moved = True
            self.post_message(self.LinkChosen(self.link))

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        index = -1 if offset is None else offset.y + self.scroll_offset.y
        if 0 <= index < len(self._lines) and self._lines[index].link:
            old, self._cursor = self._cursor, index
            self._refresh_line(old)
            self._refresh_line(index)
            self.action_follow()


def _head(section: Section, width: int) -> Line:
    beside = "; ".join(filter(None, (section.note, section.keys)))
    note = cut(beside, max(0, width - cell_len(section.title) - 3))
    rule = " " + "─" * (width - cell_len(section.title) - cell_len(note) - (2 if note else 1))
    return Line(((section.title, "head"), (rule + " " if note else rule, "rule"), (note, "dim")))


D = TypeVar("D")

WIDE, VERY_WIDE = 100, 200
"""From these widths on a page of details has two columns, and three where it says so."""
BETWEEN = 2
"""Cells between two of them."""


class DetailPane(Pane, Generic[D]):
    """Sections in as many columns as there is room for."""

    DEFAULT_CSS = """
    DetailPane Horizontal { height: 1fr; }
    DetailPane #right, DetailPane #third { margin-left: 2; }
    """
    TWO_FROM: ClassVar[int] = WIDE
    """Width from which on there are two columns."""
    THIRD: ClassVar[bool] = False
    """There are three from `VERY_WIDE` on."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.detail: D | None = None
        self._left = SectionsView(id="left")
        self._right = SectionsView(id="right")
        self._third = SectionsView(id="third")
        self._third.display = False
        self._side = self._left
        """Which of them is to have the keys."""
        self._asking = False
        self._again = False
        self._still: AsOf | None = None
        """Of when the details are that stay."""

    @property
    def as_of(self) -> AsOf | None:
        version, at_ms = getattr(self.detail, "version", None), getattr(self.detail, "now_ms", None)
        return AsOf(version, at_ms) if isinstance(version, int) and isinstance(at_ms, int) else None

    @property
    def curve(self) -> str:
        link = next((view.link for view in self._views if view.has_focus), "")
        # The page of one thing is about that, whatever else it leads to.
        found = curve_of(link) if not self.argument or link.startswith("curve ") else ""
        return found or self.measured

    def ask(self, client: Client) -> D:
        """Fetch what is shown. Called on a thread."""
        raise NotImplementedError

    def columns(self, detail: D, width: int) -> tuple[list[Section], list[Section]]:
        """The sections of the left and the right column, for columns of this width."""
        raise NotImplementedError

    def third(
        self, detail: D, left: list[Section], right: list[Section], width: int
    ) -> tuple[list[Section], list[Section], list[Section]]:
        """The sections in three columns."""
        return spread([*left, *right])

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self._left
            yield self._right
            if self.THIRD:
                yield self._third

    def on_mount(self) -> None:
        self._left.show(self.placeholder_sections())
        self.reload()

    def placeholder_sections(self) -> list[Section]:
        """Sections that are shown until the details have come."""
        return [loading(self.crumb)]

    def place(self) -> dict[str, Any]:
        views = (self._left, self._right, self._third)
        places = {name: view.place() for name, view in zip(_SIDES, views, strict=True) if view is not self._third}
        if self._third.display:
            places["third"] = self._third.place()
        return places | {"side": next((at for at, view in enumerate(views) if view.has_focus), 0)}

    def put_back(self, place: dict[str, Any]) -> None:
        views = (self._left, self._right, self._third)
        for name, view in zip(_SIDES, views, strict=True):
            view.put_back(place.get(name))
        side = place.get("side")
        self._side = views[side] if isinstance(side, int) and 0 <= side < len(views) else self._left

    def land(self) -> None:
        """Take the focus, on the side where it was."""
        self.screen.set_focus(self._side if self._side.display else self._left)

    @property
    def frozen(self) -> AsOf | None:
        return self._still

    def freeze(self) -> None:
        self._still = (self.as_of or AsOf(0, 0)) if self._still is None else None
        if self._still is None:
            self.reload()
        self.post_message(self.Changed())

    def reload(self) -> None:
        if self._still is None:
            self._ask_again()

    def look_again(self) -> None:
        self._ask_again()

    def _ask_again(self) -> None:
        self._again = True
        if not self._asking:
            self._asking = True
            self.run_worker(self._ask())

    async def _ask(self) -> None:
        """Ask until nothing has changed meanwhile, one question at a time."""
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
        """Report an error. Data that were read before stay; while the engine is away the banner says so."""
        if self.detail is None and not isinstance(error, UnreachableError):
            self._left.show([Section(self.crumb, (text_line(str(error), "bad"),))])
        self.post_message(self.AskFailed(error))

    def on_resize(self) -> None:
        self._right.display = self.size.width >= self.TWO_FROM
        self._third.display = self.THIRD and self.size.width >= VERY_WIDE
        self._draw()

    @property
    def _views(self) -> list[SectionsView]:
        """The columns there are, from left to right."""
        return [self._left, *(view for view in (self._right, self._third) if view.display)]

    def _draw(self) -> None:
        """Lay out what is known. Widths follow from this page's own, which is right before the columns' are."""
        if self.detail is None or not self.size.width:
            return
        count = len(self._views)
        width = max(20, (self.size.width - BETWEEN * (count - 1)) // count - MARGIN - 1)
        left, right = self.columns(self.detail, width)
        third: list[Section] = []
        if self._third.display:
            left, right, third = self.third(self.detail, left, right, width)
        elif count == 1:
            left, right = left + right, []
        for view, sections in zip((self._left, self._right, self._third), (left, right, third), strict=True):
            view.show(sections, width)
        self.post_message(self.Changed())

    def text_lines(self) -> list[str]:
        """The page as lines of text, for an incident's notes."""
        lines = [*self._left.lines, *self._right.lines, *self._third.lines]
        return ["".join(text for text, _ in line.spans).rstrip() for line in lines]

    @on(SectionsView.LinkChosen)
    def _link(self, event: SectionsView.LinkChosen) -> None:
        self.post_message(self.Follow(event.link))

    @on(SectionsView.Neighbour)
    def _neighbour(self, event: SectionsView.Neighbour) -> None:
        views = self._views
        here = next((at for at, view in enumerate(views) if view.has_focus), 0)
        self._side = views[max(0, min(here + event.step, len(views) - 1))]
        self._side.focus()


_SIDES = ("left", "right", "third")


def spread(sections: Sequence[Section]) -> tuple[list[Section], list[Section], list[Section]]:
    """In their order over three columns, so that the highest is as low as can be."""
    heights = [len(section.lines) + 2 for section in sections]
    cuts = [(first, second) for first in range(len(heights) + 1) for second in range(first, len(heights) + 1)]
    first, second = min(
        cuts, key=lambda cut: max(sum(heights[: cut[0]]), sum(heights[cut[0] : cut[1]]), sum(heights[cut[1] :]))
    )
    return list(sections[:first]), list(sections[first:second]), list(sections[second:])


MIN_ROWS, MAX_ROWS = 5, 17
"""Rows of a chart, without its axis."""


class ChartPane(DetailPane[D]):
    """The chart never scrolls away; what is below it does."""

    DEFAULT_CSS = """
    ChartPane #chart { height: auto; margin-bottom: 1; }
    """
    CHART_SHARE: ClassVar[int] = 2
    """Divisor of the page's height that gives the rows of the chart."""

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self._chart = SectionsView(id="chart")
        self._chart.can_focus = False

    def chart(self, detail: D, width: int, rows: int) -> list[Section]:
        """Sections above the columns, in `width` cells; the chart itself has that many rows."""
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
