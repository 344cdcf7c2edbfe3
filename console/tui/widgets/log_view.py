"""Lines of a log, the newest at the bottom. Draws with the Line API, so that it costs what is in view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from console.text.terminal_text import cut, printable
from console.text.tones import drawn, tones
from console.tui.widgets.line_widget import MOVES, LeanScroll

MAX_LINES = 20_000
"""Held at once: of more the oldest go, and come back when they are scrolled to."""


class LogView(LeanScroll, can_focus=True, inherit_bindings=False):
    """Follows the end until somebody scrolls away from it, and again once they are back there."""

    DEFAULT_CSS = """
    LogView { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *MOVES,
        Binding("left", "aside(-16)", show=False),
        Binding("right", "aside(16)", show=False),
    ]

    class Scrolled(Message):
        """Somebody has moved; `wants_earlier`: above what is held."""

        def __init__(self, wants_earlier: bool) -> None:
            super().__init__()
            self.wants_earlier = wants_earlier

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.empty = ""
        """Said where there are no lines."""
        self.following = True
        self._open_line = ""
        self._aside = 0
        """Cells that are scrolled out of view on the left."""
        self._tones: dict[str, Style] = {}

    def show(self, lines: Sequence[str], open_line: str = "") -> None:
        """These instead."""
        self.lines = list(lines)
        self._open_line = open_line
        self._settle()

    def add(self, lines: Sequence[str], open_line: str) -> int:
        """These behind the others; `open_line` is not ended yet. Returns how many of the oldest had to go."""
        self.lines += lines
        self._open_line = open_line
        gone = max(0, len(self.lines) - MAX_LINES)
        if gone:
            del self.lines[:gone]
        self._settle(-gone)
        return gone

    def put_before(self, lines: Sequence[str]) -> None:
        """These above the others, which stay where they are read."""
        self.lines[:0] = lines
        self._settle(len(lines))

    def _settle(self, moved: int = 0) -> None:
        self.virtual_size = Size(self.size.width, self._count)
        if self.following:
            self.scroll_to(y=max(0, self._count - self.size.height), animate=False, force=True)
        elif moved:
            self.scroll_to(y=max(0, self.scroll_offset.y + moved), animate=False, force=True)
        self.refresh()

    @property
    def _count(self) -> int:
        return len(self.lines) + bool(self._open_line)

    def on_mount(self) -> None:
        self.retone()

    def retone(self) -> None:
        self._tones = tones(self.app.current_theme)
        self.refresh()

    def on_resize(self) -> None:
        self._settle()

    def render_line(self, y: int) -> Strip:
        index, width, style = y + self.scroll_offset.y, self.size.width, self._tones["base"]
        if not self._count and y == 0:
            return Strip([drawn(cut(printable(self.empty), width), style + self._tones["dim"])]).adjust_cell_length(
                width, style
            )
        if index >= self._count:
            return Strip.blank(width, style)
        text = self.lines[index] if index < len(self.lines) else self._open_line
        strip = Strip([drawn(text, style)])
        strip = strip.crop(self._aside, strip.cell_length) if self._aside else strip
        if strip.cell_length > width:
            strip = Strip.join([strip.crop(0, width - 1), Strip([drawn("…", style + self._tones["dim"])])])
        return strip.adjust_cell_length(width, style)

    def action_move(self, step: int) -> None:
        self._go(self.scroll_offset.y + step)

    def action_page(self, pages: int) -> None:
        self._go(self.scroll_offset.y + pages * max(1, self.size.height - 1))

    def action_edge(self, side: int) -> None:
        self._go(-1 if side < 0 else self._count)

    def action_aside(self, cells: int) -> None:
        self._aside = max(0, self._aside + cells)
        self.refresh()

    def on_mouse_scroll_up(self) -> None:
        self._go(self.scroll_offset.y - 3)

    def on_mouse_scroll_down(self) -> None:
        self._go(self.scroll_offset.y + 3)

    def _go(self, top: int) -> None:
        last = max(0, self._count - self.size.height)
        self.following = top >= last
        self.scroll_to(y=min(max(top, 0), last), animate=False, force=True)
        self.refresh()
        self.post_message(self.Scrolled(wants_earlier=top < 0 or (top == 0 and not self.following)))
