"""Room for tasks of a shape in every domain of the topology, kept up with what changes; and the choice of domains.

Whoever shifts capacity notes the node in `DomainRoom.touched`. A shape that is asked about looks only at nodes touched
since it was last asked: a gang costs what it and those before it used, not what the cell is large. Domains of a level
are kept sorted by room, so the smallest that is enough is found by bisection, and the largest are at the end.

All of it follows from the capacity: it can be dropped at any time and is made anew when needed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.model import LEVELS, TopologyRequest
from engine.topology import CELL, NODE, Ints, Tree

if TYPE_CHECKING:
    from engine.capacity import Capacity
    from engine.shape import Shape

SHAPES_KEPT = 32
"""Shapes whose room is kept up; others are counted anew when they are asked about."""
MOST_TOUCHED = 65_536
"""Touched nodes remembered. Who was last asked before them is counted anew."""
_BITS = 32
_DOMAIN = (1 << _BITS) - 1
MOST_TRIED = 32
"""Domains of a level that are tried for a gang of several groups, from the smallest up and from the largest down."""
Span = tuple[int, int]
"""(first position, position after the last)"""


class Choice(NamedTuple):
    """Where a gang goes, and how it is laid out there."""

    span: Span
    first: int
    """The widest level of which as few domains as possible are to be used."""


class Nearest(NamedTuple):
    """The domain in which a gang comes nearest to having room."""

    level: int
    domain: int
    name: str
    room: tuple[int, ...]
    """Tasks that fit there, for each group alone."""


class DomainRoom:
    """What is known of the room in domains, for the shapes that were asked about lately."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.touched: list[int] = []
        """Node rows whose capacity, state or booking changed, in order."""
        self._before = 0
        """How many entries were dropped from the front of `touched`."""
        self._rooms: dict[Shape, Rooms] = {}
        """The one asked about last is last."""
        self.largest: dict[Any, int] = {}
        """What `engine.submission` found an empty domain to hold."""

    def copy(self) -> DomainRoom:
        """For a copy of the capacity: the tree is shared, room is counted anew when it is asked for."""
        return DomainRoom(self.tree)

    def rooms(self, capacity: Capacity, shape: Shape) -> Rooms:
        """The room there is now for tasks of the shape."""
        shape = shape.plain
        rooms = self._rooms.pop(shape, None)
        elsewhere = capacity.company.version if shape.terms is not None else 0
        if rooms is None or rooms.mark < self._before or rooms.elsewhere != elsewhere:
            rooms = Rooms(capacity, self.tree, shape)
            if len(self._rooms) >= SHAPES_KEPT:
                del self._rooms[next(iter(self._rooms))]
        elif rooms.mark < self._before + len(self.touched):
            rooms.update(capacity, self.touched[rooms.mark - self._before :])
        self._rooms[shape] = rooms
        rooms.elsewhere = elsewhere
        rooms.mark = self._before + len(self.touched)
        if len(self.touched) > MOST_TOUCHED:
            self._before += len(self.touched)
            self.touched.clear()
        return rooms


def domain_room(capacity: Capacity) -> DomainRoom:
    """That of the capacity, made if nobody has asked before."""
    found = capacity.domain_room
    if found is None or len(found.tree.rows) != len(capacity.node_ids):
        found = capacity.domain_room = DomainRoom(Tree(capacity))
    return found


class Rooms:
    """Room for one shape, by position and by domain."""

    def __init__(self, capacity: Capacity, tree: Tree, shape: Shape) -> None:
        self.tree = tree
        self.shape = shape
        self.mark = 0
        """Touched nodes that are counted in."""
        self.elsewhere = 0
        """Version of what happens on one node and decides about others: the company of those who have bonds."""
        self.by_position: Ints = self._count(capacity, tree.rows)
        """Tasks of the shape that fit."""
        self._sums: dict[int, list[int]] = {}
        """Level -> room in each domain."""
        self._sorted: dict[int, list[int]] = {}
        """Level -> (room << 32 | domain) of each domain, ascending."""

    def _count(self, capacity: Capacity, rows: Ints) -> Ints:
        room = np.zeros(len(rows), np.int64)
        usable = np.flatnonzero(capacity.usable_mask(self.shape, rows))
        room[usable] = capacity.rooms(self.shape, rows[usable])
        return room

    def update(self, capacity: Capacity, touched: list[int]) -> None:
        """Count the nodes anew."""
        rows = np.fromiter(set(touched), np.int64)
        positions = self.tree.position[rows]
        change = self._count(capacity, rows) - self.by_position[positions]
        changed = change != 0
        positions, change = positions[changed], change[changed]
        self.by_position[positions] += change
        for level, order in self._sorted.items():
            sums = self._sums[level]
            for domain, more in _summed(self.tree.domain[level][positions], change):
                del order[bisect_left(order, sums[domain] << _BITS | domain)]
                sums[domain] += more
                insort(order, sums[domain] << _BITS | domain)

    def total(self, span: Span) -> int:
        return int(self.by_position[span[0] : span[1]].sum())

    def sums(self, level: int) -> list[int]:
        """Room in each domain of the level."""
        if level not in self._sums:
            starts = self.tree.starts[level][:-1]
            self._sums[level] = np.add.reduceat(self.by_position, starts).tolist() if len(starts) else []
            self._sorted[level] = sorted(room << _BITS | at for at, room in enumerate(self._sums[level]))
        return self._sums[level]

    def smallest(self, level: int, want: int) -> int:
        """The domain with least room of those with enough; NODE's -1 when none has."""
        self.sums(level)
        order = self._sorted[level]
        at = bisect_left(order, want << _BITS)
        return order[at] & _DOMAIN if at < len(order) else -1

    def enough(self, level: int, want: int) -> Iterator[int]:
        """The domains with enough room, those with least first."""
        self.sums(level)
        order = self._sorted[level]
        for entry in order[bisect_left(order, want << _BITS) :]:
            yield entry & _DOMAIN

    def largest(self, level: int) -> tuple[int, int]:
        """(room, domain) of the domain with most, the first of those."""
        self.sums(level)
        order = self._sorted[level]
        if not order:
            return 0, -1
        room = order[-1] >> _BITS
        return room, order[bisect_left(order, room << _BITS)] & _DOMAIN


def _summed(domains: Ints, change: Ints) -> Iterator[tuple[int, int]]:
    """(domain, sum of its changes) for each that changed."""
    found: dict[int, int] = {}
    for domain, more in zip(domains.tolist(), change.tolist(), strict=True):
        found[domain] = found.get(domain, 0) + more
    return ((domain, more) for domain, more in found.items() if more)


# -- the choice -------------------------------------------------------------------------------------------------------


def levels_asked(tree: Tree, request: TopologyRequest) -> tuple[int, int]:
    """(level of which one domain must hold the gang, level of which it should be as few as possible). At a level at
    which no node has a name every node is alone, as at that of the nodes."""
    required, preferred = (
        CELL if level is None else LEVELS.index(level) for level in (request.required, request.preferred)
    )
    if preferred == CELL:
        preferred = required
    return tuple(level if level in tree.starts else NODE for level in (required, preferred))  # type: ignore[return-value]


def spans(tree: Tree, rooms: list[Rooms], counts: tuple[int, ...], request: TopologyRequest) -> Iterator[Choice]:
    """Where a gang with `counts[g]` tasks of the shape of `rooms[g]` might go, the best first: in one domain of the
    preferred level, the smallest that is enough; then in one of a wider level, that first of which fewest domains of
    the preferred level are enough; up to the required level. Exact for one group; for several each has room alone."""
    required, preferred = levels_asked(tree, request)
    for level in tree.wider(preferred, required):
        for domain in _fitting(tree, rooms, counts, level, preferred):
            first = tree.next_narrower(level) if level == preferred else preferred
            yield Choice(tree.bounds(level, domain), first)


def _fitting(tree: Tree, rooms: list[Rooms], counts: tuple[int, ...], level: int, preferred: int) -> Iterator[int]:
    """Domains of the level in which each group has room, the best first."""
    if len(rooms) == 1 and level in (preferred, CELL):
        yield from rooms[0].enough(level, counts[0])
        return
    sums = np.array([each.sums(level) for each in rooms], np.int64)
    fit = np.flatnonzero((sums >= np.array(counts)[:, None]).all(axis=0))
    if len(rooms) == 1:
        needed = _needed(tree, np.array(rooms[0].sums(preferred), np.int64), level, preferred, counts[0])[fit]
        yield from fit[np.lexsort((fit, sums[0, fit], needed))].tolist()
        return
    order = fit[np.lexsort((fit, sums[:, fit].sum(axis=0)))].tolist()
    yield from order if len(order) <= 2 * MOST_TRIED else order[:MOST_TRIED] + order[: -MOST_TRIED - 1 : -1]


def _needed(tree: Tree, sums: Ints, level: int, narrower: int, want: int) -> Ints:
    """For each domain of the level: the fewest domains of the narrower level in it whose room together is enough."""
    inside = tree.domain[level][tree.starts[narrower][:-1]]
    order = np.lexsort((-sums, inside))
    inside, sums = inside[order], sums[order]
    first = np.flatnonzero(np.diff(inside, prepend=-1))
    sizes = np.diff(first, append=len(sums))
    reached = np.cumsum(sums)
    reached -= np.repeat(reached[first] - sums[first], sizes)
    place = np.arange(len(sums)) - np.repeat(first, sizes) + 1
    return np.asarray(np.minimum.reduceat(np.where(reached >= want, place, len(sums) + 1), first))


def nearest(capacity: Capacity, shapes: tuple[Shape, ...], counts: tuple[int, ...], level: int) -> Nearest:
    """The domain of the level that lacks room for fewest of the tasks, the first of those."""
    known = domain_room(capacity)
    room = np.array([known.rooms(capacity, shape).sums(level) for shape in shapes], np.int64)
    lacking = np.maximum(np.array(counts)[:, None] - room, 0)
    domain = int(np.argmin(lacking.sum(axis=0)))
    return Nearest(level, domain, known.tree.name(capacity, level, domain), tuple(room[:, domain].tolist()))


def pick(tree: Tree, room: Ints, choice: Choice, want: int) -> tuple[Ints, Ints]:
    """(positions, tasks on each), ascending, for `want` tasks where there is that much room: in as few domains as
    possible of the level first looked at, then of each narrower one. The smallest domain that is enough; where none
    is, the largest ones and the smallest that is enough for the rest, which is the fewest there can be."""
    (low, high), level = choice
    whole: list[Span] = []
    while level != NODE:
        edges = tree.edges(level, low, high)
        full, last, rest = _fewest(np.add.reduceat(room[low:high], edges[:-1] - low), want)
        whole += [(int(edges[i]), int(edges[i + 1])) for i in full]
        low, high, want = int(edges[last]), int(edges[last + 1]), rest
        level = tree.next_narrower(level)
    here = room[low:high]
    tasks = np.zeros(high - low, np.int64)
    full, last, rest = _fewest(here, want)
    tasks[full] = here[full]
    tasks[last] = rest
    taken = [(low + np.arange(high - low), tasks), *((np.arange(a, b), room[a:b]) for a, b in whole)]
    positions, tasks = (np.concatenate(part) for part in zip(*taken, strict=True))
    used = np.flatnonzero(tasks)
    used = used[np.argsort(positions[used])]
    return positions[used], tasks[used]


def _fewest(sums: Ints, want: int) -> tuple[list[int], int, int]:
    """(parts used up, the last part, what is taken of it): as few parts as hold `want` together."""
    enough = np.flatnonzero(sums >= want)
    if len(enough):
        return [], int(enough[np.argmin(sums[enough])]), want
    order = np.argsort(-sums, kind="stable")
    reached = np.cumsum(sums[order])
    full = int(np.searchsorted(reached, want))
    rest = want - int(reached[full - 1])
    left = np.sort(order[full:])
    left = left[sums[left] >= rest]
    return order[:full].tolist(), int(left[np.argmin(sums[left])]), rest
