"""Pages of nodes: the topology map, and one node.

The map shows zones, blocks, racks or nodes as tiles with a cursor. Enter zooms in, `z` or Esc zooms out, `m` changes
the colouring. An action on a domain acts on its nodes, by id. Only lines in view are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from rich.style import Style
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.timer import Timer

from console.actions.registry import ActionTarget, ConsoleAction, Context
from console.client.change_feed import in_thread
from console.text.terminal_text import cut, printable
from console.text.tones import drawn, tones
from console.tui.widgets.pane import MARGIN as PANE_MARGIN
from console.tui.widgets.pane import Connect, DetailPane
from console.tui.widgets.table_rows import MOST
from console.views.nodes import (
    COLOURINGS,
    LEVELS,
    MapLayout,
    TileLook,
    View,
    drawn_row,
    facts,
    laid_out,
    node_columns,
    read_view,
    spot,
)
from console.views.sections import Section, plural
from engine.model.details import NodeDetail
from engine.model.errors import MusterError
from engine.model.reports import HeatLevel, HeatMap, HeatRequest, HeatTile

if TYPE_CHECKING:
    from console.client.protocol import Client


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

    class CursorMoved(Message):
        """The cursor is on another tile, or the tile under it has changed."""

    class TileChosen(Message):
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
        self.post_message(self.CursorMoved())

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
            self.post_message(self.CursorMoved())

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
            self.post_message(self.TileChosen())

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


PAGE = 2_000
"""Tiles of one answer: more are a page further."""
ROOMY = 600
"""A map begins at the closest level that has at most so many tiles."""
BESIDE_FROM = 76
"""Width from which on the facts are beside the map; below it they are beneath."""
FACTS_WIDTH = 37
FACTS_HEIGHT = 9
REST_S = 0.15
"""The nodes of a domain are asked for when the cursor rests on it this long."""
Known = tuple[tuple[str, str], ...]


class TopologyPane(DetailPane[HeatMap]):
    NAME = "topology"
    TARGETS = "node"
    TWO_FROM = 0
    DEFAULT_CSS = f"""
    TopologyPane Horizontal.-beneath {{ layout: vertical; }}
    TopologyPane #right {{ width: {FACTS_WIDTH}; }}
    TopologyPane Horizontal.-beneath #right {{ width: 1fr; height: {FACTS_HEIGHT}; margin-left: 0; }}
    """

    def __init__(self, connect: Connect, words: str = "") -> None:
        super().__init__(connect)
        self.map = TileMap()
        self._view = read_view(words)
        self._first = 0
        self._out: list[tuple[View, str]] = []
        """Where zooming out goes, and the tile that was zoomed into."""
        self._keep = ""
        """Tile to put the cursor on when the next map is there."""
        self._acted: tuple[ActionTarget, ...] = ()
        self._acted_of: tuple[object, ...] = ()
        """Of which tile they are."""
        self._acts_on = ""
        self._rest: Timer | None = None

    @property
    def crumb(self) -> str:
        return f"topology {self._view.where}".strip()

    @property
    def line(self) -> str:
        return self._view.line

    @property
    def note(self) -> str:
        shown = self.detail
        if shown is None:
            return ""
        count = f"{shown.total:,} {plural(shown.level, shown.total)}"
        if shown.total > len(shown.tiles):
            count = f"{shown.offset + 1:,}-{shown.offset + len(shown.tiles):,} of {count}"
        return f"{count}  ·  by {self._view.colouring}"

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return self._acted if self._acted_of == self._here else ()

    @property
    def copyable(self) -> str:
        return printable(self.map.tile.name) if self.map.tile is not None else ""

    def place(self) -> dict[str, Any]:
        return {"tile": self.copyable, "offset": self._first}

    def put_back(self, place: dict[str, Any]) -> None:
        tile, offset = place.get("tile"), place.get("offset")
        if isinstance(tile, str) and isinstance(offset, int) and 0 <= offset < 1 << 32:
            self._keep, self._first = tile, offset

    # --- asking and drawing

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield self.map
            yield self._right

    def on_mount(self) -> None:
        self.reload()

    def ask(self, client: Client) -> HeatMap:
        view = self._view
        within = dict(view.within)
        for level in [view.level] if view.level is not None else LEVELS[len(within) : -1][::-1]:
            shown = client.topology(HeatRequest(level=level, within=within, offset=self._first, limit=PAGE))
            if shown.total <= ROOMY or view.level is not None:
                break
        if not shown.tiles and shown.offset:
            # What came before has become less since.
            self._first = 0
            return self.ask(client)
        return shown

    def _draw(self) -> None:
        if self.detail is None or not self.size.width:
            return
        shown = self.detail
        spots = [spot(tile, self._view.colouring, shown.dearest_microusd_hour) for tile in shown.tiles]
        self.map.told = "no nodes here"
        keep, self._keep = self._keep, ""
        self.map.show(shown.tiles, spots, shown.level, keep)
        self._draw_facts()

    def _draw_facts(self) -> None:
        tile, shown = self.map.tile, self.detail
        beside = self.size.width >= BESIDE_FROM
        width = (FACTS_WIDTH if beside else self.size.width) - PANE_MARGIN - 1
        sections: list[Section] = []
        if tile is not None and shown is not None:
            sections = facts(tile, shown, self._view.colouring, self._acts_on, width)
        self._right.show(sections, width)
        self.post_message(self.Changed())

    def columns(self, detail: HeatMap, width: int) -> tuple[list[Section], list[Section]]:
        tile = self.map.tile
        return [], facts(tile, detail, self._view.colouring, self._acts_on, width) if tile is not None else []

    def on_resize(self) -> None:
        self.query_one(Horizontal).set_class(self.size.width < BESIDE_FROM, "-beneath")
        self._draw()

    def _refused(self, error: MusterError) -> None:
        if self.detail is None:
            self.map.told = str(error)
            self.map.refresh()
        self.post_message(self.AskFailed(error))

    def land(self) -> None:
        self.screen.set_focus(self.map)

    # --- moving

    @on(TileMap.CursorMoved)
    def _moved(self) -> None:
        if self._acted_of != self._here:
            self._acts_on = "loading the nodes …"
            if self._rest is not None:
                self._rest.stop()
            self._rest = self.set_timer(REST_S, self._find_nodes)
        self._draw_facts()

    @on(TileMap.TileChosen)
    def _chosen(self) -> None:
        tile, shown = self.map.tile, self.detail
        if tile is None or shown is None:
            return
        if shown.level == "node":
            self.post_message(self.Follow(f"node {printable(tile.name)}"))
        else:
            closer = LEVELS[LEVELS.index(shown.level) + 1]
            self._out.append((self._view, tile.name))
            self._look_at(self._view._replace(level=closer, within=self._way(tile, shown)), "")

    def _way(self, tile: HeatTile, shown: HeatMap) -> Known:
        """Path of the tile in the topology, itself included; a node is found without it."""
        levels = LEVELS[: min(LEVELS.index(shown.level) + 1, len(LEVELS) - 1)]
        return tuple((level, getattr(tile, level)) for level in levels)

    def zoom_out(self) -> None:
        """Go back one level, to the tile that was zoomed into."""
        if self._out:
            view, tile = self._out.pop()
            self._look_at(view._replace(colouring=self._view.colouring), tile)
        elif self._view.within:
            level, name = self._view.within[-1]
            wider = self._view._replace(level=LEVELS[LEVELS.index(level)], within=self._view.within[:-1])
            self._look_at(wider, name)
        elif self.detail is not None and self.detail.level != "zone":
            self._look_at(self._view._replace(level=LEVELS[LEVELS.index(self.detail.level) - 1]), "")
        else:
            self.app.notify("this is the whole cell", markup=False, timeout=3)

    def clear_one(self) -> bool:
        if self._out:
            self.zoom_out()
            return True
        return False

    def next_colouring(self) -> None:
        at = COLOURINGS.index(self._view.colouring)
        self._view = self._view._replace(colouring=COLOURINGS[(at + 1) % len(COLOURINGS)])
        self._draw()

    def _look_at(self, view: View, tile: str) -> None:
        self._view, self._keep, self._first = view, tile, 0
        self.look_again()

    @on(TileMap.Beyond)
    def _beyond(self, event: TileMap.Beyond) -> None:
        """Tiles are asked for a page at a time."""
        shown = self.detail
        if shown is None:
            return
        offset = shown.offset + (PAGE if event.pages > 0 else -PAGE)
        if 0 <= offset < shown.total:
            self._first = offset
            self.look_again()

    # --- acting

    def acted_on(self, action: ConsoleAction, context: Context) -> tuple[ActionTarget, ...]:
        """Nodes of a domain for which the action is possible."""
        if len(context.targets) < 2:
            return context.targets
        return tuple(
            target for target in context.targets if not action.disabled_reason(replace(context, targets=(target,)))
        )

    @property
    def _here(self) -> tuple[object, ...]:
        """What the tile under the cursor is, its nodes' states among it."""
        tile, shown = self.map.tile, self.detail
        if tile is None or shown is None:
            return ()
        return (shown.level, tile.zone, tile.block, tile.rack, tile.name, tuple(tile.states.items()))

    def _find_nodes(self) -> None:
        self.run_worker(self._ask_nodes(), exclusive=True, group="nodes")

    async def _ask_nodes(self) -> None:
        """Ask for the nodes of the tile, by id and state: the targets of an action."""
        tile, shown, here = self.map.tile, self.detail, self._here
        if tile is None or shown is None:
            return
        if tile.nodes > MOST:
            self._acted, self._acts_on = (), f"one plan takes at most {MOST:,} nodes: zoom in"
        elif shown.level == "node":
            self._acted, self._acts_on = (_target(tile),), "act on this node"
        else:
            request = HeatRequest(level="node", within=dict(self._way(tile, shown)), limit=MOST)
            try:
                nodes = await in_thread(lambda: self.connect().topology(request))
            except MusterError as error:
                self._acts_on = str(error)
                self._draw_facts()
                return
            self._acted = tuple(_target(each) for each in nodes.tiles)
            self._acts_on = f"act on the {len(self._acted):,} nodes here, where possible"
        self._acted_of = here
        self._draw_facts()


def _target(tile: HeatTile) -> ActionTarget:
    return ActionTarget(tile.name, next(iter(tile.states), ""))


class NodePane(DetailPane[NodeDetail]):
    NAME = "node"
    THIRD = True
    TARGETS = "node"

    def __init__(self, connect: Connect, node_id: str) -> None:
        super().__init__(connect)
        self._node_id = node_id

    @property
    def crumb(self) -> str:
        return cut(printable(self._node_id), 32)

    @property
    def measured(self) -> str:
        return f"node:{self._node_id}"

    @property
    def targets(self) -> tuple[ActionTarget, ...]:
        return (ActionTarget(self._node_id, self.detail.state),) if self.detail else ()

    def ask(self, client: Client) -> NodeDetail:
        return client.node(self._node_id)

    def columns(self, detail: NodeDetail, width: int) -> tuple[list[Section], list[Section]]:
        return node_columns(detail, width)
