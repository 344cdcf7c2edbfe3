"""A column of sections: headed lines of which some are links. The cursor goes from link to link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from console.text.terminal_text import cut
from console.text.tones import QUIET, drawn, tones
from console.tui.widgets.line_widget import MOVES, LeanScroll
from console.views.sections import Line, Section

MARGIN = 2


class SectionsView(LeanScroll, can_focus=True, inherit_bindings=False):
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

    class Moved(Message):
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
        """What is shown, headings among it."""
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
        self.post_message(self.Moved())
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
    note = cut(section.note, max(0, width - cell_len(section.title) - 3))
    rule = width - cell_len(section.title) - cell_len(note) - 2
    return Line(((section.title, "head"), (" " + "─" * rule + " ", "rule"), (note, "dim")))
