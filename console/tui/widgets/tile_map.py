"""A map of tiles with a cursor, drawn with Textual's Line API: its cost is that of the lines in view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.text.terminal_text import printable
from console.text.tones import drawn, tones
from console.views.work.topology import MapLayout, TileLook, drawn_row, laid_out
from engine.model.queries import HeatLevel, HeatTile

MARGIN = 1


class TileMap(ScrollView, can_focus=True, inherit_bindings=False):
    """Tiles by lines below the names of their domains."""

    DEFAULT_CSS = """
    TileMap { height: 1fr; width: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", show=False),
        Binding("right", "step(1)", show=False),
        Binding("up,k", "lines(-1)", show=False),
        Binding("down,j", "lines(1)", show=False),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+d,ctrl+f", "page(1)", show=False),
        Binding("home", "edge(-1)", show=False),
        Binding("G,end", "edge(1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Moved(Message):
        """The cursor is on another tile, or the tile under it has changed."""

    class Chosen(Message):
        """Enter, or a click on the tile under the cursor."""

    class Beyond(Message):
        """The person wants what comes before or after these tiles."""

        def __init__(self, pages: int) -> None:
            super().__init__()
            self.pages = pages

    def __init__(self) -> None:
        super().__init__()
        self.tiles: tuple[HeatTile, ...] = ()
        self.cursor = 0
        self.told = "loading …"
        """What stands where there are no tiles."""
        self._level: HeatLevel = "zone"
        self._spots: tuple[TileLook, ...] = ()
        self._layout = MapLayout((), 1, ())
        self._tones: dict[str, Style] = {}

    @property
    def tile(self) -> HeatTile | None:
        """The tile under the cursor."""
        return self.tiles[self.cursor] if self.cursor < len(self.tiles) else None

    def show(self, tiles: tuple[HeatTile, ...], spots: Sequence[TileLook], level: HeatLevel, keep: str = "") -> None:
        """Draw these. The cursor stays on the tile of that name, or where it was."""
        spots = tuple(spots)
        if (tiles, spots, level) == (self.tiles, self._spots, self._level):
            return
        here = keep or (self.tile.name if self.tile is not None and level == self._level else "")
        same = next((at for at, tile in enumerate(tiles) if here and tile.name == here), None)
        if same is None:
            same = min(self.cursor, max(0, len(tiles) - 1)) if level == self._level else 0
        self.tiles, self._spots, self._level, self.cursor = tiles, spots, level, same
        self._arrange()
        self.post_message(self.Moved())

    def _arrange(self) -> None:
        """Find places for the tiles at this size."""
        if self.size.width:
            width = max(1, self.size.width - MARGIN)
            self._layout = laid_out(self.tiles, self._level, width, self.size.height)
            self.virtual_size = Size(self.size.width, len(self._layout.rows))
            self._reveal()
        self.refresh()

    def on_resize(self) -> None:
        self._arrange()

    def on_mount(self) -> None:
        self.retone()

    def retone(self) -> None:
        self._tones = tones(self.app.current_theme)
        self.refresh()

    def on_focus(self) -> None:
        self._refresh_tile(self.cursor)

    def on_blur(self) -> None:
        self._refresh_tile(self.cursor)

    def render_line(self, y: int) -> Strip:
        width, base = self.size.width, self._tones["base"]
        at = y + self.scroll_offset.y
        if at >= len(self._layout.rows):
            text = f"  {printable(self.told)}" if not self.tiles and y == 1 else ""
            return Strip([drawn(text, base + self._tones["dim"])]).adjust_cell_length(width, base)
        row = self._layout.rows[at]
        spans = drawn_row(row, self._layout, self.tiles, self._spots, self.cursor, width - MARGIN)
        under = self._tones["cursor"]
        segments = [drawn(" " * MARGIN, base)]
        for text, tone in spans:
            style = base + self._tones[tone]
            segments.append(drawn(text, style + under if tone == "strong" and self.has_focus else style))
        return Strip(segments).adjust_cell_length(width, base)

    # --- moving

    def _go(self, tile: int) -> None:
        tile = max(0, min(tile, len(self.tiles) - 1))
        if tile != self.cursor and self.tiles:
            old, self.cursor = self.cursor, tile
            self._refresh_tile(old)
            self._refresh_tile(tile)
            self._reveal()
            self.post_message(self.Moved())

    def _refresh_tile(self, tile: int) -> None:
        if tile < len(self._layout.line_of):
            y = self._layout.line_of[tile] - self.scroll_offset.y
            if 0 <= y < self.size.height:
                self.refresh(Region(0, y, self.size.width, 1))

    def _reveal(self) -> None:
        """Scroll so that the cursor, and the head above it, are in view."""
        if self.cursor >= len(self._layout.line_of):
            return
        line, top, height = self._layout.line_of[self.cursor], self.scroll_offset.y, self.size.height
        if line - 1 < top:
            self.scroll_to(y=max(0, line - 1), animate=False)
        elif line >= top + height:
            self.scroll_to(y=line - height + 1, animate=False)

    def action_step(self, tiles: int) -> None:
        if not 0 <= self.cursor + tiles < len(self.tiles):
            self.post_message(self.Beyond(tiles))
        else:
            self._go(self.cursor + tiles)

    def action_lines(self, lines: int) -> None:
        if self.tiles:
            target = self._layout.moved(self.cursor, lines)
            if target == self.cursor:
                self.post_message(self.Beyond(lines))
            else:
                self._go(target)

    def action_page(self, pages: int) -> None:
        self.action_lines(pages * max(1, self.size.height - 2))

    def action_edge(self, side: int) -> None:
        self._go(0 if side < 0 else len(self.tiles) - 1)

    def action_first(self) -> None:
        self._go(0)

    def action_choose(self) -> None:
        if self.tile is not None:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        tile = self._layout.at(offset.x - MARGIN, offset.y + self.scroll_offset.y)
        if tile is None:
            return
        if tile == self.cursor:
            self.action_choose()
        else:
            self._go(tile)
