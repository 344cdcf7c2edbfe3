"""The nodes of the cell: the topology map, and one node as sections.

A tile of the map has a sign for its value, so that the map reads without colour. Brackets mark the cursor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from rich.cells import cell_len

from console.forms.filters import quoted
from console.text.plain_tables import quantity as amount
from console.text.terminal_text import (
    NONE,
    cut,
    cut_name,
    duration,
    fit,
    fit_name,
    milli,
    permille,
    printable,
    timestamp,
    wrap,
)
from console.text.tones import state_look
from console.views.cell_overview import short_money
from console.views.lists import Span
from console.views.sections import Line, Section, fact, fact_bars, metered, plural, quantity, text_line
from engine.model.details import MigInstance, NodeDetail
from engine.model.errors import SpecError
from engine.model.quantities import counted
from engine.model.reports import HeatLevel, HeatMap, HeatTile
from engine.model.specs import LEVELS as TREE_LEVELS

LEVELS: tuple[HeatLevel, ...] = ("zone", "block", "rack", "node")
COLOURINGS = ("use", "fragmentation", "health", "price")
"""In the order in which `m` goes through them."""
_LEVELS_OF_TEN = " ▁▂▃▄▅▆▇█"
_WORST = ("down", "suspect", "draining", "cordoned", "booting", "ready")
SMALL, WIDE = 3, 22
"""Cells of a tile: its sign alone, or with name and number too."""


class TileLook(NamedTuple):
    """Sign, tone and text of a tile for one colouring."""

    sign: str
    number: str
    tone: str


def spot(tile: HeatTile, colouring: str, dearest: int) -> TileLook:
    match colouring:
        case "fragmentation":
            return _fragmentation(tile)
        case "health":
            return _health(tile)
        case "price":
            return _price(tile, dearest)
        case _:
            return TileLook(_sign(tile.use_permille), permille(tile.use_permille), _heat(tile.use_permille))


def _sign(share: int) -> str:
    """▁ for next to nothing up to █ for all; a dot for nothing."""
    return "·" if share <= 0 else _LEVELS_OF_TEN[min(8, max(1, share * 8 // 1000))]


def _heat(share: int) -> str:
    return "faint" if share <= 0 else "info" if share < 500 else "bar" if share < 900 else "accent"


def _fragmentation(tile: HeatTile) -> TileLook:
    """Free GPU on partly used nodes."""
    if not tile.gpu_milli:
        return TileLook("-", "no GPU", "faint")
    if not tile.gpu_free_milli:
        return TileLook("=", "none free", "dim")
    share = tile.split_milli * 1000 // tile.gpu_free_milli
    return TileLook(_sign(share), permille(share), "ok" if not share else "info" if share < 500 else "warn")


def _health(tile: HeatTile) -> TileLook:
    """The worst state there is, and how many nodes are in it."""
    worst = next((state for state in _WORST if tile.states.get(state)), "")
    glyph, tone = state_look(worst)
    bad = sum(count for state, count in tile.states.items() if state != "ready")
    return TileLook(glyph, f"{bad:,} of {tile.nodes:,}" if bad else "all ready", tone)


def _price(tile: HeatTile, dearest: int) -> TileLook:
    """Mean price of a node, beside the dearest of the cell."""
    each = tile.price_microusd_hour // max(1, tile.nodes)
    if not each:
        return TileLook("·", "no price", "faint")
    share = each * 1000 // max(1, dearest)
    spot_ = " spot" if tile.spot == tile.nodes else ""
    return TileLook(_sign(share), f"{short_money(each)}{spot_}", _heat(share))


def legend(colouring: str) -> str:
    return {
        "use": "▁ little … █ all in use, · none; of the scarcest resource",
        "fragmentation": "▁ … █ share of free GPU on partly used nodes, · none, = none free, - no GPU",
        "health": "● ready  ◇ cordoned  ◑ draining  ◔ booting  ? suspect  ✗ down",
        "price": "▁ … █ node price relative to the dearest, · no price",
    }[colouring]


# -- where tiles stand ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MapRow:
    """A line of the map: a head, or tiles from `first` on."""

    head: str = ""
    first: int = 0
    count: int = 0


class MapLayout(NamedTuple):
    rows: tuple[MapRow, ...]
    tile_width: int
    line_of: tuple[int, ...]
    """By tile: the line it is on."""

    def at(self, x: int, y: int) -> int | None:
        """The tile at a place of the map."""
        if not 0 <= y < len(self.rows):
            return None
        row = self.rows[y]
        column = x // self.tile_width
        return row.first + column if 0 <= column < row.count else None

    def moved(self, tile: int, lines: int) -> int:
        """The tile so many lines of tiles further down, as near to the same column as there is one."""
        at = self.line_of[tile]
        column = tile - self.rows[at].first
        tiled = [line for line, row in enumerate(self.rows) if row.count]
        target = self.rows[tiled[max(0, min(len(tiled) - 1, tiled.index(at) + lines))]]
        return target.first + min(column, target.count - 1)


def laid_out(tiles: Sequence[HeatTile], level: HeatLevel, width: int, height: int) -> MapLayout:
    """Tiles below the name of the domain they are in: with names where that leaves all of them in view."""
    wide = _arranged(tiles, level, width, WIDE)
    return wide if len(wide.rows) <= height else _arranged(tiles, level, width, SMALL)


def _arranged(tiles: Sequence[HeatTile], level: HeatLevel, width: int, tile_width: int) -> MapLayout:
    each = max(1, width // tile_width)
    rows: list[MapRow] = []
    line_of: list[int] = []
    first = 0
    for head, group in groupby(tiles, key=lambda tile: head_of(tile, level)):
        count = sum(1 for _ in group)
        if head:
            rows.append(MapRow(head))
        for start in range(first, first + count, each):
            size = min(each, first + count - start)
            line_of += [len(rows)] * size
            rows.append(MapRow("", start, size))
        first += count
    return MapLayout(tuple(rows), tile_width, tuple(line_of))


def head_of(tile: HeatTile, level: HeatLevel) -> str:
    """The domains around tiles of this level."""
    around = LEVELS[: LEVELS.index(level)]
    names = [f"{each} {printable(getattr(tile, each)) or NONE}" for each in around]
    return " › ".join(names)


def drawn_row(
    row: MapRow, layout: MapLayout, tiles: Sequence[HeatTile], spots: Sequence[TileLook], cursor: int, width: int
) -> list[Span]:
    """A line of the map as spans; neighbours of one tone share a span."""
    if not row.count:
        return [(cut(row.head, width), "dim")]
    spans: list[Span] = []
    for at in range(row.first, row.first + row.count):
        left, right = ("[", "]") if at == cursor else (" ", " ")
        shown = spots[at]
        if layout.tile_width == SMALL:
            pieces: list[Span] = [(left + shown.sign + right, shown.tone)]
        else:
            name = fit(short_name(tiles[at], layout.tile_width - 14), layout.tile_width - 14)
            pieces = [(left + name + " ", ""), (shown.sign, shown.tone), (fit(" " + shown.number, 10) + right, "dim")]
        if at == cursor:
            pieces = [(text, "strong") for text, _ in pieces]
        for text, tone in pieces:
            if spans and spans[-1][1] == tone:
                spans[-1] = (spans[-1][0] + text, tone)
            else:
                spans.append((text, tone))
    return spans


def short_name(tile: HeatTile, width: int) -> str:
    """Name of a tile without the name of its domain; long names keep their end."""
    name = printable(tile.name) or NONE
    around = next((printable(each) for each in (tile.rack, tile.block, tile.zone) if each and each != tile.name), "")
    if around and name.startswith(around) and name.removeprefix(around).strip("-_./ "):
        name = name.removeprefix(around).lstrip("-_./ ")
    while cell_len(name) > width:
        name = "…" + name[2 if name.startswith("…") else 1 :]
    return name


# -- the tile under the cursor ----------------------------------------------------------------------------------------


def facts(tile: HeatTile, shown: HeatMap, colouring: str, acts_on: str, width: int) -> list[Section]:
    """Facts of the tile under the cursor, and its possible actions."""
    kind = shown.level
    name = printable(tile.name) or f"no {kind}"
    states = ", ".join(f"{count:,} {printable(state)}" for state, count in tile.states.items())
    lines = [
        *(fact(each, cut(getattr(tile, each) or NONE, width - 11)) for each in LEVELS[: LEVELS.index(kind)]),
        fact("pool", cut(tile.pool, width - 11))
        if tile.pool
        else fact("nodes", cut(f"{tile.nodes:,}: {states}", width - 11)),
        fact("state", states)
        if tile.pool
        else fact("ready", permille(tile.states.get("ready", 0) * 1000 // max(1, tile.nodes))),
        _share("in use", tile.use_permille, width),
    ]
    if tile.gpu_milli:
        free = f"{quantity('gpu_milli', tile.gpu_free_milli)} of {quantity('gpu_milli', tile.gpu_milli)} GPU"
        lines.append(fact("free", cut(free, width - 11)))
        if tile.gpu_free_milli:
            lines.append(_share("fragmented", tile.split_milli * 1000 // tile.gpu_free_milli, width))
    lines.append(fact("price", f"{short_money(tile.price_microusd_hour)}/h" if tile.price_microusd_hour else NONE))
    if tile.spot:
        lines.append(fact("spot", f"{counted(tile.spot, 'node')} interruptible"))
    lines.append(fact("C D U", cut(acts_on, width - 11), "dim"))
    link = f"node {printable(tile.name)}" if kind == "node" else f"nodes {nodes_filter(tile, kind)}"
    word = "↵ opens the node" if kind == "node" else "nodes in a list"
    lines.append(Line(((word, "link"),), link))
    about = Section(f"{kind} {cut(name, max(4, width - len(kind) - 8))}", tuple(lines))
    return [about, Section(f"By {colouring}", tuple(_wrapped(legend(colouring), width)), "m: next")]


def _share(label: str, share: int, width: int) -> Line:
    size = max(4, min(20, width - 18))
    return Line(((fit(label, 11), "dim"), *metered(share, size, "bar"), (f" {permille(share):>4}", "")))


def _wrapped(text: str, width: int) -> list[Line]:
    return [Line(((part, "dim"),)) for part in wrap(text, max(12, width))]


def nodes_filter(tile: HeatTile, level: HeatLevel) -> str:
    """The filter on nodes that are in a domain. What is not known cannot be filtered by, and is left out."""
    names = [(each, getattr(tile, each)) for each in LEVELS[: LEVELS.index(level) + 1]]
    return " ".join(f"{each}:{quoted(printable(name))}" for each, name in names if name)


# -- where one is -----------------------------------------------------------------------------------------------------


class View(NamedTuple):
    """Part of the cell in view, level and colouring. As text: the argument of `:topology`."""

    level: HeatLevel | None = None
    """None: as close as the whole cell has room for."""
    within: tuple[tuple[str, str], ...] = ()
    colouring: str = "use"

    @property
    def line(self) -> str:
        words: list[str] = [self.level or ""]
        words += [f"{level}:{quoted(name) if name else ''}" for level, name in self.within]
        words += [f"by:{self.colouring}"] if self.colouring != "use" else []
        return " ".join(["topology", *filter(None, words)])

    @property
    def where(self) -> str:
        return " › ".join(f"{level} {printable(name) or NONE}" for level, name in self.within)


def read_view(words: str) -> View:
    """Read the argument of `:topology`. Raises SpecError naming the word."""
    view = View()
    for word in words.split():
        name, colon, value = word.partition(":")
        if word.removesuffix("s") in LEVELS:
            view = view._replace(level=LEVELS[LEVELS.index(word.removesuffix("s"))])
        elif colon and name in LEVELS[:-1]:
            view = view._replace(within=(*view.within, (name, value.strip('"'))))
        elif name == "by" and value in COLOURINGS:
            view = view._replace(colouring=value)
        else:
            raise SpecError(
                "", f"'{printable(word)[:40]}' is not a level of the map",
                f"Write zone, block, rack or node; zone:NAME; by:{', by:'.join(COLOURINGS)}",
            )  # fmt: skip
    return view


def node_columns(
    view: NodeDetail, width: int, most_labels: int | None = 6
) -> tuple[list[Section], list[Section]]:  # fmt: skip
    """Left: state, capacity, devices. Right: bound work. `most_labels`: of labels, and of taints; None: all."""
    return [_node_state(view, width, most_labels), _node_capacity(view, width), *_devices(view, width)], [
        _node_work(view, width)
    ]


MAX_OF_A_NAME = 40
"""Cells of the name of one place among several."""


def _node_state(view: NodeDetail, width: int, most_labels: int | None) -> Section:
    glyph, tone = state_look(view.state)
    since = f"for {duration(view.now_ms - view.since_ms)}, since {timestamp(view.since_ms)} UTC"
    lines = [
        Line(((f"{glyph} {printable(view.state)}", tone), (f"  {since}", "dim"))),
        *([fact("excluded", cut(view.note, width - 11), "warn")] if view.note else []),
        *([fact("ends", f"in {duration(view.ends_ms - view.now_ms)}: reclaimed", "warn")] if view.ends_ms else []),
        Line((("pool       ", "dim"), (printable(view.pool), "link")), f"nodes pool:{quoted(printable(view.pool))}"),
        *_places(view, width),
    ]
    if view.rack:
        rack = printable(view.rack)
        lines.append(Line((("rack       ", "dim"), (rack, "link")), f"nodes rack:{quoted(rack)}"))
    lines += [fact("label", printable(f"{key}={value}")) for key, value in sorted(view.labels.items())[:most_labels]]
    lines += [fact("taint", printable(taint)) for taint in view.taints[:most_labels]]
    return Section("State", tuple(lines))


def _places(view: NodeDetail, width: int) -> list[Line]:
    """Its place in the network, widest level first."""
    named = [(level, getattr(view, level)) for level in TREE_LEVELS[:-1]]
    text = " › ".join(f"{level} {cut_name(printable(name), MAX_OF_A_NAME)}" for level, name in named if name) or NONE
    return [fact("" if n else "topology", part) for n, part in enumerate(wrap(text, max(12, width - 11)))]


def _node_capacity(view: NodeDetail, width: int) -> Section:
    used = {name: total - view.free.get(name, 0) for name, total in view.capacity.items()}
    return Section(
        "Allocated",
        (*fact_bars(view.capacity, used, width), *(fact(title, text) for title, text in physical_facts(view))),
    )


def _devices(view: NodeDetail, width: int) -> list[Section]:
    """Free share or partition of each device, and links between devices."""
    if not view.devices:
        return []
    lines = []
    for index, free in enumerate(view.devices):
        instances = view.instances[index] if index < len(view.instances) else ()
        used = 1000 - free
        word = "free" if not used else "in use" if not free else f"{milli(free)} free"
        if instances:
            used = sum(instance.used for instance in instances) * 1000 // len(instances)
            word = _partition(instances)
        bar = min(24, max(6, width - 20)) if not instances else 7
        start = ((f"gpu {index:<3}", "dim"), (_link(index, len(view.devices), view.nvlink_group), "faint"))
        first, *rest = wrap(word, max(8, width - 10 - bar))
        lines.append(Line((*start, *metered(used, bar, "bar"), (f" {first}", "" if free or instances else "dim"))))
        lines += [Line(((" " * (sum(len(text) for text, _ in start) + bar + 1), ""), (part, ""))) for part in rest]
    if view.profiles:
        lines += [fact("" if n else "MIG", part, "dim") for n, part in
                  enumerate(wrap(" ".join(map(printable, view.profiles)), max(12, width - 11)))]  # fmt: skip
    links = _linked(len(view.devices), view.nvlink_group)
    return [Section("Devices", tuple(lines), printable(view.gpu_model) + (f" · NVLink {links}" if links else ""))]


def physical_facts(node: NodeDetail) -> list[tuple[str, str]]:
    """Real capacity of an overcommitted node, and its known use."""
    pairs = []
    if node.overcommit or node.physical != node.allocatable:
        for name, title in (("cpu_milli", "cpu"), ("memory_mib", "memory")):
            over = f", requests up to {permille(node.overcommit[name])} of that" if name in node.overcommit else ""
            there = f"{amount(name, node.physical[name])} physical, {amount(name, node.allocatable[name])} for work"
            pairs.append((title, there + over))
    for name, title in (("cpu_milli", "cpu used"), ("memory_mib", "mem used")):
        if name in node.in_use:
            share = node.in_use[name] * 1000 // max(node.physical[name], 1)
            pairs.append((title, f"{amount(name, node.in_use[name])}, {permille(share)}"))
    return pairs


def _partition(instances: Sequence[MigInstance]) -> str:
    """Partition of a device: "1g.10gb 2 of 4 in use, 3g.40gb free"."""
    parts = []
    for profile in dict.fromkeys(instance.profile for instance in instances):
        used = [instance.used for instance in instances if instance.profile == profile]
        if len(used) == 1:
            parts.append(f"{printable(profile)} {'in use' if used[0] else 'free'}")
        else:
            parts.append(f"{printable(profile)} {sum(used)} of {len(used)} in use")
    return ", ".join(parts)


def _linked(devices: int, nvlink_group: int) -> str:
    """Linked devices of a node: "0-3, 4-7"; empty where all are."""
    if not nvlink_group or nvlink_group >= devices:
        return ""
    firsts = range(0, devices, nvlink_group)
    return ", ".join(f"{at}-{at + nvlink_group - 1}" if nvlink_group > 1 else f"{at}" for at in firsts)


def _link(index: int, devices: int, group: int) -> str:
    """Left edge that holds devices together which are linked; none where all are."""
    if not _linked(devices, group):
        return ""
    at = index % group
    return "  " if group == 1 else "┌ " if not at else "└ " if at == group - 1 else "│ "


def _node_work(view: NodeDetail, width: int) -> Section:
    if not view.workloads:
        return Section("Workloads here", (text_line("nothing runs on this node", "dim"),))
    lines = tuple(
        Line(
            ((fit_name(printable(name), max(12, width - 14)), "link"), (f"{count:>6,} {plural('task', count)}", "")),
            f"workload {printable(name)}",
        )
        for name, count in view.workloads
    )
    return Section("Workloads here", lines, counted(len(view.workloads), "workload"))
