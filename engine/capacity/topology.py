"""The tree of places: the domain of each level that a node is in, and the room for tasks in every domain.

Nodes are laid out in one order, by region, zone, block, rack and NVLink domain, then by age. Every domain of every
level is a run of that order, and neighbours in it are neighbours in the network. A position is a place in that order. A
domain is identified by its name and its parents, so two racks of one name in different blocks are two racks. A node
whose name at a level is not known is alone in that level.

Room is kept up as capacity changes: each change notes its node in `DomainRoom.touched`. A shape looks only at nodes
touched since its last use, so a gang costs the changes of those before it, not the size of the cell. The domains of a
level are kept sorted by room, so the smallest sufficient one is found by bisection, and the largest are at the end. All
of it follows from the capacity: it can be dropped at any time and is made anew when needed.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.model.columns import Ints, view
from engine.model.specs import LEVELS, NodeState, TopologyRequest

if TYPE_CHECKING:
    from engine.capacity.index import Capacity
    from engine.capacity.task_shapes import Shape


REGION, ZONE, BLOCK, RACK, NVLINK, NODE = range(len(LEVELS))
"""Levels as indexes into LEVELS, the widest first."""
CELL = -1
"""Wider than any level: the cell as one domain."""


class TopologyTree:
    """The location of every node. Never changes: added nodes make a new tree."""

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
        """True if one domain of the level holds all the positions. A domain of a narrower level need not be in one:
        where the wider name is not known, each of its nodes is alone in the wider level.
        """
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
        """The domain's name for people, or that of the node which is alone in it."""
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
    """The layout of a gang in the network, and the links that the ring of its ranks crosses."""

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


SHAPES_KEPT = 32
"""Shapes whose room is kept up; others are counted anew when they are asked about."""
MAX_TOUCHED = 65_536
"""Touched nodes remembered. Who was last asked before them is counted anew."""
_BITS = 32
_DOMAIN = (1 << _BITS) - 1
MAX_TRIED = 32
"""Domains of a level that are tried for a gang of several groups, from the smallest up and from the largest down."""
MAX_SHIFTED = 1024
"""The same of what was shifted at once."""
LITTLE = 16_384
"""Positions that are looked at all together."""
Request = tuple[int, int, int, int]
Span = tuple[int, int]
"""(first position, position after the last)"""


class DomainChoice(NamedTuple):
    """The domain chosen for a gang, and its layout there."""

    span: Span
    first: int
    """The widest level of which as few domains as possible are to be used."""


class NearestDomain(NamedTuple):
    """The domain in which a gang comes nearest to having room."""

    level: int
    name: str
    room: tuple[int, ...]
    """Tasks that fit there, for each group alone."""


def request_of(shape: Shape) -> Request:
    """The key under which tasks are exactly alike. Parts of devices are not: their room depends on their layout."""
    return (-1, 0, 0, 0) if shape.part else (shape.cpu, shape.memory, shape.gpus, shape.disk)


class DomainRoom:
    """The known room in domains, for the shapes that were used lately."""

    def __init__(self, tree: TopologyTree) -> None:
        self.tree = tree
        self.touched: list[int] = []
        """Node rows whose capacity, state or booking changed, in order."""
        self.shifted: list[tuple[Request, Ints, Ints]] = []
        """(request, node rows, tasks given back; negative where they were taken) of many nodes shifted at once."""
        self._before = 0
        """Number of entries dropped from the front of `touched`."""
        self._shifted_before = 0
        self._rooms: dict[Shape, DomainRooms] = {}
        """The one asked about last is last."""
        self.sound: set[Hashable] = set()
        """Kinds of gangs that an empty domain was found to hold, by `engine.admission.submissions`."""

    def copy(self) -> DomainRoom:
        """The copy for a copy of the capacity: the tree is shared, room is counted anew on use."""
        return DomainRoom(self.tree)

    def rooms(self, capacity: Capacity, shape: Shape) -> DomainRooms:
        """The room there is now for tasks of the shape."""
        shape = shape.plain
        rooms = self._rooms.pop(shape, None)
        elsewhere = capacity.company.version if shape.terms is not None else 0
        lost = rooms is not None and (rooms.mark < self._before or rooms.shift_mark < self._shifted_before)
        if rooms is None or lost or rooms.elsewhere != elsewhere:
            rooms = DomainRooms(capacity, self.tree, shape)
            if len(self._rooms) >= SHAPES_KEPT:
                del self._rooms[next(iter(self._rooms))]
        else:
            rooms.update(
                capacity,
                self.touched[rooms.mark - self._before :],
                self.shifted[rooms.shift_mark - self._shifted_before :],
            )
        self._rooms[shape] = rooms
        rooms.elsewhere = elsewhere
        rooms.mark = self._before + len(self.touched)
        rooms.shift_mark = self._shifted_before + len(self.shifted)
        if len(self.touched) > MAX_TOUCHED:
            self._before += len(self.touched)
            self.touched.clear()
        if len(self.shifted) > MAX_SHIFTED:
            self._shifted_before += len(self.shifted)
            self.shifted.clear()
        return rooms

    def note(self, shape: Shape, rows: Ints, tasks: Ints) -> None:
        """Note that so many tasks of the shape were given back on these nodes, all at once, or taken where negative."""
        self.shifted.append((request_of(shape), rows, tasks))

    def remember(self, kind: Hashable) -> None:
        """Record that an empty domain holds gangs of the kind."""
        if len(self.sound) >= MAX_SHIFTED:
            self.sound.clear()
        self.sound.add(kind)


def when_empty(capacity: Capacity, most: tuple[int, ...], level: int) -> Ints:
    """Per domain of the level the tasks it would hold if nothing ran, `most[p]` of them on a node of pool p."""
    tree = domain_room(capacity).tree
    there = view(capacity.state)[tree.rows] != NodeState.REMOVED
    room = np.array(most, np.int64)[view(capacity.pool)[tree.rows]] * there
    return np.add.reduceat(room, tree.starts[level][:-1])


def domain_room(capacity: Capacity) -> DomainRoom:
    """The DomainRoom of the capacity, made on first use."""
    found = capacity.domain_room
    if found is None or len(found.tree.rows) != len(capacity.node_ids):
        found = capacity.domain_room = DomainRoom(TopologyTree(capacity))
    return found


class DomainRooms:
    """Room for one shape, by position and by domain."""

    def __init__(self, capacity: Capacity, tree: TopologyTree, shape: Shape) -> None:
        self.tree = tree
        self.shape = shape
        self.mark = 0
        """Touched nodes that are counted in."""
        self.shift_mark = 0
        """The same of those shifted at once."""
        self.elsewhere = 0
        """Version of what happens on one node and decides about others: the company of those who have bonds."""
        self.usable = np.zeros(len(tree.rows), bool)
        """By position: whether the node may be used at all."""
        self._all_usable = True
        """No node was ever seen that may not be."""
        self._request = request_of(shape)
        self.by_position: Ints = self._count(capacity, tree.rows)
        """Tasks of the shape that fit."""
        self._sums: dict[int, list[int]] = {}
        """Level -> room in each domain."""
        self._sorted: dict[int, list[int]] = {}
        """Level -> (room << 32 | domain) of each domain, ascending."""

    def _count(self, capacity: Capacity, rows: Ints) -> Ints:
        room = np.zeros(len(rows), np.int64)
        usable = capacity.usable_mask(self.shape, rows)
        self.usable[self.tree.position[rows]] = usable
        self._all_usable = self._all_usable and bool(usable.all())
        at = np.flatnonzero(usable)
        room[at] = capacity.rooms(self.shape, rows[at])
        return room

    def update(self, capacity: Capacity, touched: list[int], shifted: list[tuple[Request, Ints, Ints]]) -> None:
        """Count in what changed. Tasks just like these that come and go change the room by as many: on nodes where
        nothing else happened there is no need to look."""
        others = set(touched)
        for request, rows, tasks in shifted:
            if request == self._request:
                positions = self.tree.position[rows]
                self._change(positions, tasks if self._all_usable else tasks * self.usable[positions])
            else:
                others.update(rows.tolist())
        if others:
            rows = np.fromiter(others, np.int64, len(others))
            positions = self.tree.position[rows]
            change = self._count(capacity, rows) - self.by_position[positions]
            changed = np.flatnonzero(change)
            self._change(positions[changed], change[changed])

    def _change(self, positions: Ints, change: Ints) -> None:
        if not len(positions):
            return
        self.by_position[positions] += change
        for level, order in self._sorted.items():
            sums, domains = self._sums[level], self.tree.domain[level][positions]
            alone = (domains == domains[0]).all()
            for at, more in ((int(domains[0]), int(change.sum())),) if alone else _summed(domains, change):
                del order[bisect_left(order, sums[at] << _BITS | at)]
                sums[at] += more
                insort(order, sums[at] << _BITS | at)

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
        for at in range(bisect_left(order, want << _BITS), len(order)):
            yield order[at] & _DOMAIN

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


def levels_asked(tree: TopologyTree, request: TopologyRequest) -> tuple[int, int]:
    """(level of which one domain must hold the gang, level of which it should be as few as possible). At a level at
    which no node has a name every node is alone, as at that of the nodes."""
    required = CELL if request.required is None else LEVELS.index(request.required)
    preferred = required if request.preferred is None else LEVELS.index(request.preferred)
    return required if required in tree.starts else NODE, preferred if preferred in tree.starts else NODE


def spans(
    tree: TopologyTree, rooms: list[DomainRooms], counts: tuple[int, ...], request: TopologyRequest
) -> Iterator[DomainChoice]:
    """The possible spans of a gang with `counts[g]` tasks of the shape of `rooms[g]`, the best first. They are one
    domain of the preferred level, the smallest that is enough; then one of a wider level, that first of which the
    fewest domains of the preferred level are enough; up to the required level. Exact for one group; for several, each
    is taken to have the room alone.
    """
    required, preferred = levels_asked(tree, request)
    if required == preferred and len(rooms) == 1:
        for domain in rooms[0].enough(required, counts[0]):
            yield DomainChoice(tree.bounds(required, domain), tree.next_narrower(required))
        return
    for level in tree.wider(preferred, required):
        for domain in _fitting(tree, rooms, counts, level, preferred):
            span = tree.bounds(level, domain)
            if tree.holds(required, span):
                yield DomainChoice(span, tree.next_narrower(level) if level == preferred else preferred)


def _fitting(
    tree: TopologyTree, rooms: list[DomainRooms], counts: tuple[int, ...], level: int, preferred: int
) -> Iterator[int]:
    """Domains of the level in which each group has room, the best first."""
    if len(rooms) == 1 and level in (preferred, CELL):
        yield from rooms[0].enough(level, counts[0])
        return
    sums = np.array([each.sums(level) for each in rooms], np.int64)
    fit = np.flatnonzero((sums >= np.array(counts)[:, None]).all(axis=0))
    if len(rooms) == 1:
        needed = _needed(tree, rooms[0].by_position, level, preferred, counts[0])[fit]
        yield from fit[np.lexsort((fit, sums[0, fit], needed))].tolist()
        return
    order = fit[np.lexsort((fit, sums[:, fit].sum(axis=0)))].tolist()
    yield from order if len(order) <= 2 * MAX_TRIED else order[:MAX_TRIED] + order[: -MAX_TRIED - 1 : -1]


def _needed(tree: TopologyTree, room: Ints, level: int, narrower: int, want: int) -> Ints:
    """The fewest narrower domains whose room together is enough, for each domain of the level."""
    edges = tree.both_edges(level, narrower)
    sums = np.add.reduceat(room, edges)
    inside = tree.domain[level][edges]
    order = np.lexsort((-sums, inside))
    inside, sums = inside[order], sums[order]
    first = np.flatnonzero(np.diff(inside, prepend=-1))
    sizes = np.diff(first, append=len(sums))
    reached = np.cumsum(sums)
    reached -= np.repeat(reached[first] - sums[first], sizes)
    place = np.arange(len(sums)) - np.repeat(first, sizes) + 1
    return np.asarray(np.minimum.reduceat(np.where(reached >= want, place, len(sums) + 1), first))


def lacking(capacity: Capacity, shapes: tuple[Shape, ...], counts: tuple[int, ...], level: int) -> list[int]:
    """The domains of the level, those first that lack room for fewest of the tasks."""
    known = domain_room(capacity)
    room = np.array([known.rooms(capacity, shape).sums(level) for shape in shapes], np.int64)
    missing = np.maximum(np.array(counts)[:, None] - room, 0).sum(axis=0)
    return [int(domain) for domain in np.argsort(missing, kind="stable")]


def nearest(capacity: Capacity, shapes: tuple[Shape, ...], counts: tuple[int, ...], level: int) -> NearestDomain:
    """The domain of the level that lacks room for fewest of the tasks, the first of those."""
    known = domain_room(capacity)
    domain = lacking(capacity, shapes, counts, level)[0]
    room = tuple(known.rooms(capacity, shape).sums(level)[domain] for shape in shapes)
    return NearestDomain(level, known.tree.name(capacity, level, domain), room)


def pick(tree: TopologyTree, room: Ints, choice: DomainChoice, want: int) -> tuple[Ints, Ints]:
    """(positions, tasks on each), ascending, for `want` tasks where there is that much room: in as few domains as
    possible of the level first looked at, then of each narrower one. The smallest domain that is enough; where none
    is, the largest ones and the smallest that is enough for the rest, which is the fewest there can be."""
    (low, high), level = choice
    start = low
    whole: list[Span] = []
    while level != NODE:
        edges = tree.edges(level, low, high)
        if len(edges) > 1:
            full, last, want = _fewest(np.add.reduceat(room[:high], edges).tolist(), want)
            at = [*edges.tolist(), high]
            whole += [(at[i], at[i + 1]) for i in full]
            low, high = at[last], at[last + 1]
        level = tree.next_narrower(level)
    positions, tasks = _on_nodes(room[low:high], want)
    positions += low
    if not whole:
        return positions, tasks
    if choice.span[1] - start <= LITTLE:
        taken = np.zeros(choice.span[1] - start, np.int64)
        taken[positions - start] = tasks
        for first, after in whole:
            taken[first - start : after - start] = room[first:after]
        positions = taken.nonzero()[0]
        return positions + start, taken[positions]
    parts = [(positions, tasks)]
    for first, after in whole:
        here = room[first:after]
        used = here.nonzero()[0]
        parts.append((used + first, here[used]))
    parts.sort(key=lambda part: int(part[0][0]))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _on_nodes(room: Ints, want: int) -> tuple[Ints, Ints]:
    """(nodes, tasks on each), ascending, for `want` tasks on as few of the nodes as possible."""
    used = room.nonzero()[0]
    here = room[used]
    if int(here.max()) == 1:
        return used[:want], here[:want]
    tasks = np.zeros(len(used), np.int64)
    full, last, rest = _fewest(here.tolist(), want)
    tasks[full] = here[full]
    tasks[last] = rest
    some = tasks.nonzero()[0]
    return used[some], tasks[some]


def _fewest(sums: list[int], want: int) -> tuple[list[int], int, int]:
    """(parts used up, the last part, what is taken of it): as few parts as hold `want` together."""
    if max(sums) >= want:
        smallest = min([each for each in sums if each >= want])
        return [], sums.index(smallest), want
    order = sorted(range(len(sums)), key=sums.__getitem__, reverse=True)
    full = 0
    while sums[order[full]] < want:
        want -= sums[order[full]]
        full += 1
    last = full
    for place in range(full, len(order)):
        if sums[order[place]] < want:
            break
        # Of equal ones the first is kept.
        if sums[order[place]] < sums[order[last]]:
            last = place
    return order[:full], order[last], want
