"""The tree of places: which domain of each level a node is in, and how far apart nodes are.

Nodes are laid out in one order, by region, zone, block, rack and NVLink domain, then by age: every domain of every
level is a run of that order, and neighbours in it are neighbours in the network. A position is a place in that order.

A domain is known by its name and by what it is in: two racks of one name in different blocks are two racks. A node
whose name at a level is not known is alone in that level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.model.specs import LEVELS
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.capacity.index import Capacity

Ints = np.ndarray[Any, np.dtype[np.int64]]
REGION, ZONE, BLOCK, RACK, NVLINK, NODE = range(len(LEVELS))
"""Levels as indexes into LEVELS, the widest first."""
CELL = -1
"""Wider than any level: the cell as one domain."""


class TopologyTree:
    """Where every node stands. Never changes: nodes that are added make a new one."""

    def __init__(self, capacity: Capacity) -> None:
        size = len(capacity.node_ids)
        names = named_places(capacity, np.arange(size))
        self.rows: Ints = in_order(names, np.arange(size))
        """Node row by position."""
        self.position: Ints = np.empty(size, np.int64)
        """Position by node row."""
        self.position[self.rows] = np.arange(size)
        shared = narrowest_shared(names[:, self.rows[:-1]], names[:, self.rows[1:]], same_node=False)
        self.known = [level for level in range(NODE) if bool(names[level].any())]
        """Levels at which some node has a name, widest first."""
        self.starts: dict[int, Ints] = {}
        """Level -> position at which each of its domains begins, and the end."""
        self.domain: dict[int, Ints] = {}
        """Level -> domain of each position."""
        for level in (CELL, *self.known, NODE):
            begins = np.ones(size, bool)
            if level == CELL:
                begins[1:] = False
            elif level != NODE:
                # Who shares a narrower domain has the same name here, or none: then each is alone here.
                begins[1:] = (shared < level) | (names[level][self.rows[1:]] == 0)
            self.starts[level] = np.append(np.flatnonzero(begins), size)
            self.domain[level] = np.cumsum(begins) - 1
        self._both: dict[tuple[int, int], Ints] = {}
        self._below = {level: next((at for at in self.known if at > level), NODE) for level in range(CELL, NODE + 1)}

    def copy(self) -> TopologyTree:
        return self

    def bounds(self, level: int, domain: int) -> tuple[int, int]:
        """First position of the domain, and the one after its last."""
        starts = self.starts[level]
        return int(starts[domain]), int(starts[domain + 1])

    def holds(self, level: int, span: tuple[int, int]) -> bool:
        """Whether one domain of the level holds all the positions. A domain of a narrower level need not be in one:
        where the wider name is not known each of its nodes is alone in the wider level."""
        domain = self.domain[level]
        return bool(domain[span[0]] == domain[span[1] - 1])

    def edges(self, level: int, low: int, high: int) -> Ints:
        """Positions at which domains of the level begin between two positions, and the first of these."""
        domain = self.domain[level]
        edges: Ints = self.starts[level][domain[low] : domain[high - 1] + 1]
        if edges[0] != low:
            edges = edges.copy()
            edges[0] = low
        return edges

    def both_edges(self, level: int, narrower: int) -> Ints:
        """Positions at which a domain of either level begins."""
        found = self._both.get((level, narrower))
        if found is None:
            found = self._both[level, narrower] = np.union1d(self.starts[level], self.starts[narrower])[:-1]
        return found

    def around(self, level: int, node: int) -> tuple[int, int]:
        """Bounds of the domain that a node row is in."""
        if level not in self.starts:
            level = NODE
        return self.bounds(level, int(self.domain[level][self.position[node]]))

    def wider(self, level: int, widest: int) -> list[int]:
        """Levels from `level` to `widest`, narrowest first, but for those at which no node has a name."""
        return [at for at in range(level, widest - 1, -1) if at in self.starts]

    def next_narrower(self, level: int) -> int:
        """The next level below at which some node has a name."""
        return self._below[level]

    def name(self, capacity: Capacity, level: int, domain: int) -> str:
        """What people call the domain: its name, or that of the node which is alone in it."""
        node = int(self.rows[self.starts[level][domain]])
        place = getattr(capacity, LEVELS[level])[node] if 0 <= level < NODE else 0
        return str(capacity.places.names[place]) or str(capacity.node_ids[node])


def named_places(capacity: Capacity, rows: Ints) -> Ints:
    """[level, node] a number for the name at each level above the node; 0 where it is not known."""
    unknown = capacity.places.index.get("", -1)
    names = np.stack([view(getattr(capacity, level))[rows].astype(np.int64) for level in LEVELS[:NODE]])
    return np.where(names == unknown, 0, names + 1)


def in_order(names: Ints, rows: Ints) -> Ints:
    """Indexes that sort nodes as the tree does; `names` as `named_places` of their rows gives them."""
    return np.lexsort((rows, *names[::-1]))


def narrowest_shared(here: Ints, there: Ints, *, same_node: bool | Any) -> Ints:
    """Pairwise, the narrowest level of which two nodes share a domain, as an index into LEVELS; CELL where they share
    none. `same_node`: whether the two are one node."""
    alike = np.logical_and.accumulate(here == there, axis=0) & (here > 0)
    narrowest = np.where(alike.any(axis=0), NODE - 1 - np.argmax(alike[::-1], axis=0), CELL)
    return np.asarray(np.where(same_node, NODE, narrowest))


class Spans:
    """How a gang lies in the network, and what the ring of its ranks crosses."""

    def __init__(self, capacity: Capacity, nodes: Sequence[int]) -> None:
        """`nodes`, not empty, in the order of ranks: a node may be there more than once."""
        rows = np.asarray(nodes, np.int64)
        names = named_places(capacity, rows)
        after = np.roll(np.arange(len(rows)), -1)
        shared = narrowest_shared(names, names[:, after], same_node=rows == rows[after])
        self.ring_cost = int((NODE - shared).sum())
        """Levels that messages climb when each rank sends to the next and the last to the first: 0 on one node, 1 in
        one NVLink domain, 2 in one rack, 3 in one block, 4 in one zone, 5 in one region, 6 beyond. Ranks on one node
        add nothing."""
        each = np.unique(rows)
        names = named_places(capacity, each)
        order = in_order(names, each)
        names = names[:, order]
        steps = narrowest_shared(names[:, :-1], names[:, 1:], same_node=False)
        self.within = int(steps.min()) if len(each) > 1 else NODE
        """The narrowest level of which one domain holds all of it; CELL when none does."""
        unknown = names == 0
        self.domains = {
            LEVELS[level]: 1 + int(((steps < level) | unknown[level][1:]).sum())
            for level in range(NODE)
            if not bool(unknown[level].all())
        } | {LEVELS[NODE]: len(each)}
        """Level -> domains it is spread over, for the levels at which its nodes have names."""


def ranks_in_order(capacity: Capacity, groups: Sequence[int], nodes: Sequence[int]) -> Ints:
    """The order of ranks of what a gang has on nodes: group after group, in each as the tree has the nodes."""
    rows = np.asarray(nodes, np.int64)
    names = named_places(capacity, rows)
    return np.lexsort((np.arange(len(rows)), rows, *names[::-1], np.asarray(groups, np.int64)))
