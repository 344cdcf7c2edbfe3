"""The cell as a map: zones, blocks, racks or nodes, each with what is in use, free, out of order and paid on it.

Sums run over whole columns with numpy; only the tiles that are asked for become Python values. Which node is in which
tile is kept until nodes come or go.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.model.errors import NotFoundError, SpecError
from engine.model.queries import HeatLevel, HeatMap, HeatRequest, HeatTile
from engine.model.specs import NodeState
from engine.reads.lists import free_gpu
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.capacity.index import Capacity
    from engine.state.cell_state import State

Numbers = np.ndarray[Any, np.dtype[Any]]
DOMAINS = ("zone", "block", "rack")
"""Levels whose tiles hold nodes, widest first."""
MAX_TILES = 10_000
"""Of one answer."""
_CPU, _MEMORY, _GPU = range(3)


class Division(NamedTuple):
    """Which tile of a level each node is in."""

    tile_of: Numbers
    """By node; tiles are numbered in the order in which they are shown."""
    ways: list[tuple[int, ...]]
    """By tile: rows of its zone, block and rack in `places`, down to its own level."""


class Measures(NamedTuple):
    """Of some tiles, each the sum over its nodes."""

    full: Numbers
    """By resource."""
    free: Numbers
    split: Numbers
    price: Numbers
    spot: Numbers
    states: Numbers
    """By node state."""


class Heat:
    """Maps of one State. Never changes it."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._divided_for: tuple[int, int] = (-1, -1)
        self._divisions: dict[HeatLevel, Division] = {}
        self._in_order: Numbers | None = None
        """Rows of nodes as they are shown; None until all of them are."""

    def map(self, request: HeatRequest, now_ms: int) -> HeatMap:
        """Raises SpecError for a window or a level that there is not, NotFoundError for a place."""
        if request.offset < 0 or not 0 <= request.limit <= MAX_TILES:
            raise SpecError(
                "limit", f"{request.limit} from {request.offset} is no window", f"Ask for 0 to {MAX_TILES} tiles"
            )
        c = self._state.capacity
        if self._divided_for != (self._state.rules, len(c.node_ids)):
            self._divided_for = (self._state.rules, len(c.node_ids))
            self._divisions.clear()
            self._in_order = None
        here = _within(c, request.within)
        if request.level == "node":
            total, tiles = self._nodes(here, request)
        else:
            total, tiles = self._domains(here, request)
        return HeatMap(
            version=self._state.version,
            now_ms=now_ms,
            level=request.level,
            within=request.within,
            offset=request.offset,
            total=total,
            tiles=tiles,
            dearest_microusd_hour=max((pool.price_microusd_hour for pool in c.pools), default=0),
        )

    def _nodes(self, here: Numbers, request: HeatRequest) -> tuple[int, tuple[HeatTile, ...]]:
        c = self._state.capacity
        if not request.within:
            if self._in_order is None:
                self._in_order = self._ordered(np.arange(len(c.node_ids)))
            rows = self._in_order[here[self._in_order]]
        else:
            rows = self._ordered(np.flatnonzero(here))
        shown = rows[request.offset : request.offset + request.limit]
        measures = _measured(self._state, shown, np.arange(len(shown)), len(shown))
        names, pools = c.places.names, view(c.pool)[shown].tolist()
        places = [[names[place] for place in view(getattr(c, level))[shown].tolist()] for level in DOMAINS]
        tiles = [
            _tile(measures, i, c.node_ids[row], (places[0][i], places[1][i], places[2][i]), c.pools[pools[i]].name)
            for i, row in enumerate(shown.tolist())
        ]
        return len(rows), tuple(tiles)

    def _ordered(self, rows: Numbers) -> Numbers:
        """By rack, as racks are shown; in a rack the oldest first."""
        return rows[np.argsort(self._division("rack").tile_of[rows], kind="stable")]

    def _domains(self, here: Numbers, request: HeatRequest) -> tuple[int, tuple[HeatTile, ...]]:
        division = self._division(request.level)
        rows = np.flatnonzero(here)
        tile_of = division.tile_of[rows]
        there = np.flatnonzero(np.bincount(tile_of, minlength=len(division.ways)))
        shown = there[request.offset : request.offset + request.limit]
        if len(shown) < len(division.ways):
            # Those that are not shown are added up in a tile of their own, which is thrown away.
            number = np.full(len(division.ways), len(shown))
            number[shown] = np.arange(len(shown))
            tile_of = number[tile_of]
        measures = _measured(self._state, rows, tile_of, len(shown) + 1)
        names = self._state.capacity.places.names
        tiles = []
        for i, tile in enumerate(shown.tolist()):
            way = [names[place] for place in division.ways[tile]]
            zone, block, rack = (*way, "", "")[:3]
            tiles.append(_tile(measures, i, way[-1], (zone, block, rack)))
        return len(there), tuple(tiles)

    def _division(self, level: HeatLevel) -> Division:
        found = self._divisions.get(level)
        if found is None:
            found = self._divisions[level] = _divided(self._state.capacity, level)
        return found


def _within(c: Capacity, within: dict[str, str]) -> Numbers:
    """Mask of the nodes there are in all of these places."""
    here: Numbers = view(c.state) != NodeState.REMOVED
    for level, name in within.items():
        if level not in DOMAINS:
            raise SpecError("within", f"'{level[:40]}' is no level of places", f"Use: {', '.join(DOMAINS)}")
        place = c.places.index.get(name)
        inside = view(getattr(c, level)) == (-1 if place is None else place)
        if not inside.any():
            raise NotFoundError(f"there is no {level} '{name}'", "See `muster get nodes`")
        here &= inside
    return here


def _divided(c: Capacity, level: HeatLevel) -> Division:
    depth = DOMAINS.index(level) + 1
    size = len(c.places.names)
    key = np.zeros(len(c.node_ids), np.int64)
    for each in DOMAINS[:depth]:
        key = key * size + view(getattr(c, each))
    distinct, tile_of = np.unique(key, return_inverse=True)
    ways = [_way(int(each), size, depth) for each in distinct.tolist()]
    natural = {place: _natural(c.places.names[place]) for way in ways for place in way}
    order = sorted(range(len(ways)), key=lambda tile: [natural[place] for place in ways[tile]])
    number = np.empty(len(ways), np.int64)
    number[order] = np.arange(len(ways))
    return Division(number[tile_of], [ways[tile] for tile in order])


def _way(key: int, size: int, depth: int) -> tuple[int, ...]:
    way = []
    for _ in range(depth):
        key, place = divmod(key, size)
        way.append(place)
    return tuple(reversed(way))


def _natural(name: str) -> tuple[bool, list[tuple[int, str]]]:
    """As people count: r2 before r10. What has no name comes last."""
    return not name, [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]


def _measured(state: State, rows: Numbers, tile_of: Numbers, tiles: int) -> Measures:
    """Sums over these nodes by tile. Whole numbers below 2^53, so that sums of floats are exact."""
    c = state.capacity
    pool = view(c.pool)[rows]
    offered = np.array([spec.offered.vector()[:3] for spec in c.pools], np.int64).reshape(-1, 3)

    def summed(values: Numbers) -> Numbers:
        return np.bincount(tile_of, weights=values, minlength=tiles).astype(np.int64)

    # What a pool says of each of its nodes is counted by pool first.
    pools = max(len(c.pools), 1)
    by_pool = np.bincount(tile_of * pools + pool, minlength=tiles * pools).reshape(tiles, pools)[:, : len(c.pools)]
    free_devices = free_gpu(state)[rows]
    partly = (free_devices > 0) & (free_devices < offered[pool, _GPU]) if len(c.pools) else free_devices > 0
    kinds = len(NodeState)
    return Measures(
        full=by_pool @ offered,
        free=np.stack([summed(view(c.free_cpu)[rows]), summed(view(c.free_memory)[rows]), summed(free_devices)], 1),
        split=summed(np.where(partly, free_devices, 0)),
        price=by_pool @ np.array([spec.price_microusd_hour for spec in c.pools], np.int64),
        spot=by_pool @ np.array([int(spec.spot) for spec in c.pools], np.int64),
        states=np.bincount(tile_of * kinds + view(c.state)[rows], minlength=tiles * kinds).reshape(tiles, kinds),
    )


def _tile(m: Measures, i: int, name: str, place: tuple[str, str, str], pool: str = "") -> HeatTile:
    full, free = m.full[i].tolist(), m.free[i].tolist()
    states = m.states[i].tolist()
    return HeatTile(
        name=name,
        zone=place[0],
        block=place[1],
        rack=place[2],
        nodes=sum(states),
        states={NodeState(state).label: count for state, count in enumerate(states) if count},
        use_permille=max(
            ((have - left) * 1000 // have for have, left in zip(full, free, strict=True) if have), default=0
        ),
        gpu_milli=full[_GPU],
        gpu_free_milli=free[_GPU],
        split_milli=int(m.split[i]),
        price_microusd_hour=int(m.price[i]),
        spot=int(m.spot[i]),
        pool=pool,
    )
