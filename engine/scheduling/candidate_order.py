"""The order of candidates: queues by hierarchical, weighted dominant-resource fairness, and candidates within one pass.

A queue's share is that of its dominant resource, the one of which it holds the largest part of the cell (DRF: Ghodsi et
al., NSDI 2011), divided by its weight. Use within a queue's quota costs nothing, as in Kueue; where a tree has quotas,
only the resources with quota count. Siblings in a tree are compared at every level, from the roots down (Bhattacharya
et al., SoCC 2013). The queue with the smallest key goes next, and a subtree gets no more for having many queues.

Within a pass, candidates are kept so that a start changes little: those of one queue and priority band form a lane, and
lanes of one tree and band form a unit. A lane stands in its unit by the shares below the root, a unit among others by
the share of its root. A start changes the shares on its own queue's path alone, so only that lane and unit move. A lane
elsewhere below a vertex that has grown is corrected when its turn seems to have come.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush, heapreplace

from engine.model.reports import BurstReport, VertexReport
from engine.state.cell_state import State
from engine.state.pending_work import Key
from engine.state.queue_tree import NO_LIMIT, UNLIMITED, WIDTH, QueueTree, Vector
from engine.state.workloads import NONE

BILLION = 10**9
FOREVER = 2**62
"""A cell time, ms, that never comes."""


def share(tree: QueueTree, vertex: int, totals: Vector, now_ms: int, *, past: bool = False) -> int:
    """Weighted dominant share in parts per billion of the cell, whose capacity is `totals`.

    With `past`, use is the mean of what the vertex draws now and its average draw before: a start still counts at once,
    and of two that draw the same now, the one that drew less before goes first.
    """
    at = vertex * tree.slots
    draw = tree.drawn[at : at + WIDTH]
    if not past:
        return _weighted_dominant(tree, vertex, draw, totals)
    both = [now + before for now, before in zip(draw, tree.average_use(vertex, now_ms), strict=True)]
    return _weighted_dominant(tree, vertex, both, totals, parts=2)


def _weighted_dominant(tree: QueueTree, vertex: int, use: Sequence[int], totals: Vector, parts: int = 1) -> int:
    """The share of a use given as the sum of `parts` uses, whose mean counts."""
    quota, at, limited = tree.quota, vertex * tree.slots, tree.limited[vertex]
    largest = 0
    for i, total in enumerate(totals):
        excess = use[i] - quota[at + i] * parts
        if excess > 0 and total and (not limited or limited >> i & 1):
            largest = max(largest, excess * BILLION // (total * parts))
    weight: int = tree.specs[vertex].weight
    return largest // weight


def order_key(tree: QueueTree, queue: int, totals: Vector, now_ms: int, *, past: bool = False) -> tuple[int, ...]:
    """Shares from the queue's root down to the queue. The queue with the smallest key goes first."""
    return tuple([share(tree, vertex, totals, now_ms, past=past) for vertex in reversed(tree.path[queue])])


class Shares:
    """The `share` of each vertex at one time, worked out on first use and again after `changed`."""

    def __init__(self, tree: QueueTree, totals: Vector, now_ms: int, *, past: bool = False) -> None:
        self._tree = tree
        self._totals = totals
        self._now_ms = now_ms
        self._past = past
        self._share: list[int] = [UNKNOWN] * len(tree.specs)
        self._scales: dict[int, tuple[tuple[int, int, int], ...]] = {}
        """Vertex -> (index of its draw, what of it costs nothing, capacity) of each resource that counts."""

    def of(self, vertex: int) -> int:
        """The share in parts per billion."""
        found: int = self._share[vertex]
        if found != UNKNOWN:
            return found
        scale = self._scales.get(vertex)
        if scale is None:
            scale = self._scales[vertex] = self._scale(vertex)
        drawn = self._tree.drawn
        largest = 0
        for at, free, total in scale:
            excess = drawn[at] - free
            if excess > 0:
                part = excess * BILLION // total
                if part > largest:
                    largest = part
        found = largest // self._tree.specs[vertex].weight
        self._share[vertex] = found
        return found

    def changed(self, path: Iterable[int]) -> None:
        """Note that the draw of these vertices has changed."""
        for vertex in path:
            self._share[vertex] = UNKNOWN

    def _scale(self, vertex: int) -> tuple[tuple[int, int, int], ...]:
        tree = self._tree
        limited, at = tree.limited[vertex], vertex * tree.slots
        # Past use does not change while time stands still: of the sum of both it is a part that is always there.
        past = tree.average_use(vertex, self._now_ms) if self._past else (0,) * WIDTH
        parts = 2 if self._past else 1
        return tuple(
            (at + i, tree.quota[at + i] * parts - past[i], total * parts)
            for i, total in enumerate(self._totals)
            if total and (not limited or limited >> i & 1)
        )


UNKNOWN = -1


# -- what each deserves -----------------------------------------------------------------------------------------------


def deserved(tree: QueueTree, totals: Vector, demand: Sequence[Vector]) -> list[Vector]:
    """The holding of each vertex if the cell were divided afresh, resource by resource.

    At every level each vertex first gets its demand within its quota, then the rest is divided by weight among those
    with more demand. `demand` is the use and the waiting requests of each leaf; a vertex wants no more than it may
    borrow.
    """
    columns = [_divided(tree, i, totals[i], [vector[i] for vector in demand]) for i in range(WIDTH)]
    return list(zip(*columns, strict=True)) if tree.specs else []


def _divided(tree: QueueTree, resource: int, total: int, demand: list[int]) -> list[int]:
    """One resource of every vertex."""
    rows = range(len(tree.specs))
    wanted = [0 if tree.children[row] else demand[row] for row in rows]
    for row in reversed(rows):
        at = row * tree.slots + resource
        wanted[row] += sum(wanted[child] for child in tree.children[row])
        if tree.ceiling[at] != NO_LIMIT:
            wanted[row] = min(wanted[row], tree.ceiling[at] - tree.quota[at] + tree.subtree_nominal[at])
    got = [0] * len(rows)
    _divide(tree, resource, total, [row for row in rows if not tree.specs[row].parent], wanted, got)
    for row in rows:
        _divide(tree, resource, got[row], tree.children[row], wanted, got)
    return got


def _divide(
    tree: QueueTree, resource: int, amount: int, siblings: list[int], wanted: list[int], got: list[int]
) -> None:
    weights = [tree.specs[row].weight for row in siblings]
    within = [min(wanted[row], tree.subtree_nominal[row * tree.slots + resource]) for row in siblings]
    first = water_filling(amount, within, weights)
    rest = [wanted[row] - quantity for row, quantity in zip(siblings, first, strict=True)]
    second = water_filling(amount - sum(first), rest, weights)
    for row, a, b in zip(siblings, first, second, strict=True):
        got[row] = a + b


def water_filling(amount: int, wanted: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Weighted max-min division: nobody gets more than wanted, and who gets less has as much for its weight as any.

    Whole units: what is left after rounding goes to the first in order, one each.
    """
    got = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: (Fraction(wanted[i], weights[i]), i))
    weight = sum(weights)
    full = 0
    for i in order:
        if wanted[i] * weight > amount * weights[i]:
            break
        got[i] = wanted[i]
        amount -= wanted[i]
        weight -= weights[i]
        full += 1
    short = sorted(order[full:])
    for i in short:
        got[i] = amount * weights[i] // weight
    for i in short[: amount - sum(got[i] for i in short)]:
        got[i] += 1
    return got


# -- the report -------------------------------------------------------------------------------------------------------


def report(tree: QueueTree, totals: Vector, demand: Sequence[Vector], now_ms: int) -> list[VertexReport]:
    """All vertices in creation order. `totals` and `demand` as in `deserved`."""
    deserves = deserved(tree, totals, demand)
    lent = _lent(tree)
    return [
        VertexReport(
            name=spec.name,
            parent=spec.parent,
            weight=spec.weight,
            used=_named(tree, enumerate(tree.used[row * tree.slots : (row + 1) * tree.slots])),
            guaranteed={
                _key(tree, slot): tree.guaranteed(row, slot)
                for slot in range(tree.slots)
                if tree.nominal_at(row, slot) != UNLIMITED
            },
            borrowed=_named(tree, ((slot, tree.borrowed(row, slot)) for slot in range(tree.slots))),
            lent=_named(tree, lent[row].items()),
            burst=_burst(tree, row, now_ms),
            share_ppb=share(tree, row, totals, now_ms),
            past_share_ppb=_weighted_dominant(tree, row, tree.average_use(row, now_ms), totals),
            deserved=_named(tree, enumerate(deserves[row])),
        )
        for row, spec in enumerate(tree.specs)
    ]


def above_quota(tree: QueueTree) -> tuple[list[int], list[int]]:
    """(what the queues that take work draw above their quotas, what of it is in a burst), in the order of RESOURCES.
    Where only single pools have quotas, what is above those."""
    borrowed, bursting = [0] * WIDTH, [0] * WIDTH
    for row, children in enumerate(tree.children):
        if children:
            continue
        excess = tree.burst_excess(row)
        for resource in range(WIDTH):
            whole = (resource,) if tree.limited[row] >> resource & 1 else range(resource, tree.slots, WIDTH)
            borrowed[resource] += sum(tree.borrowed(row, slot) for slot in whole)
            bursting[resource] += sum(excess.get(slot, 0) for slot in whole)
    return borrowed, bursting


def _key(tree: QueueTree, slot: int) -> str:
    pool, resource = tree.named_slot(slot)
    return f"{pool}/{resource}" if pool else resource


def _named(tree: QueueTree, quantities: Iterable[tuple[int, int]]) -> dict[str, int]:
    return {_key(tree, slot): quantity for slot, quantity in quantities if quantity}


def _burst(tree: QueueTree, row: int, now_ms: int) -> BurstReport | None:
    burst = tree.specs[row].burst
    if burst is None:
        return None
    state = tree.burst_state(row, now_ms)
    ends = tree.burst_since[row] + burst.window_ms + (burst.cooldown_ms if state == "cooldown" else 0)
    return BurstReport(
        state=state,
        ends_in_ms=0 if state == "idle" else ends - now_ms,
        excess=_named(tree, tree.burst_excess(row).items()),
    )


def _lent(tree: QueueTree) -> list[dict[int, int]]:
    """For each vertex: slot -> what its siblings use of its idle quota."""
    lent: list[dict[int, int]] = [{} for _ in tree.specs]
    for parent, children in enumerate(tree.children):
        for slot in range(tree.slots):
            if tree.nominal_at(parent, slot) == UNLIMITED:
                continue
            at = [child * tree.slots + slot for child in children]
            idle = [max(0, tree.quota[i] - max(tree.drawn[i], tree.local[i])) for i in at]
            borrowed = sum(tree.borrowed(child, slot) for child in children)
            from_siblings = min(sum(idle), max(0, borrowed - tree.nominal_at(parent, slot)))
            if from_siblings:
                passed = 0
                for child, quantity in zip(children, idle, strict=True):
                    before = from_siblings * passed // sum(idle)
                    passed += quantity
                    lent[child][slot] = from_siblings * passed // sum(idle) - before
    return lent


Order = tuple[int, tuple[int, ...], int, int]
"""(minus band, shares from the root down, minus priority, row): lower goes first. Without shares: it has waited so long
that they do not count."""
LaneEntry = tuple[tuple[int, ...], int, int, int, "CandidateLane"]
"""(shares below the root and of the tenant, minus priority and row of its first, stamp it was reckoned at, lane)"""
UnitEntry = tuple[int, tuple[int, ...], tuple[int, ...], int, int, "LaneGroup"]
"""(minus band, share of the root, then as in the entry of its first lane, unit)"""


def has_waited_too_long(state: State, row: int) -> bool:
    """True if shares do not count for the workload any more."""
    patience = state.settings.starve_after_ms
    return bool(patience) and state.now_ms - state.workloads.submitted[row] > patience


def next_to_wait_too_long(state: State, rows: Iterable[int], looked_ms: int) -> int:
    """Cell time after `looked_ms` from which the next of these waiting workloads has waited too long; FOREVER if none
    will."""
    patience, submitted = state.settings.starve_after_ms, state.workloads.submitted
    if not patience:
        return FOREVER
    latest = looked_ms - patience
    return min([at + patience + 1 for row in rows if (at := submitted[row]) >= latest], default=FOREVER)


def order_of(state: State, key: Key, row: int) -> Order:
    """The workload's place in the order of all waiting work."""
    w = state.workloads
    priority, queue, _, tenant = key
    shares: tuple[int, ...]
    if has_waited_too_long(state, row):
        shares = ()
    elif len(state.queues.specs) == 1 and tenant == NONE:
        shares = (0,)
    else:
        past = state.settings.fair_half_life_ms > 0
        shares = order_key(state.queues, queue, state.capacity.totals, state.now_ms, past=past)
        if tenant != NONE:
            shares += (state.tenant_share(queue, tenant),)
    return -w.priority_band[priority], shares, -w.priority_value[priority], row


class CandidateLane:
    """Candidates of one queue, tenant and band."""

    __slots__ = ("below", "candidates", "entry", "queue", "starved", "tenant", "unit")

    def __init__(self, unit: LaneGroup, queue: int, tenant: int, starved: bool, below: tuple[int, ...]) -> None:
        self.unit = unit
        self.queue = queue
        self.tenant = tenant
        self.starved = starved
        """True if they have waited too long: then shares do not count."""
        self.below = below
        """Vertices from just below the root down to the queue."""
        self.candidates: list[tuple[int, int, Key]] = []
        """Heap of (minus priority, row, key)."""
        self.entry: LaneEntry | None = None
        """The entry that counts; others are dropped when met."""


class LaneGroup:
    """Lanes of one tree and band."""

    __slots__ = ("entry", "lanes", "minus_band", "root", "starved")

    def __init__(self, minus_band: int, root: int, starved: bool) -> None:
        self.minus_band = minus_band
        self.root = root
        self.starved = starved
        self.lanes: list[LaneEntry] = []
        """Heap. An entry that is out of date stands no later than it should: where shares become smaller, lanes are
        entered anew."""
        self.entry: UnitEntry | None = None


class CandidateOrder:
    """The first of every group, and what follows it once it has started."""

    def __init__(self, state: State, heads: Iterable[tuple[Key, int]]) -> None:
        """`heads`: the pending key and the row of the first of each group."""
        self._state = state
        self._shares = Shares(
            state.queues, state.capacity.totals, state.now_ms, past=state.settings.fair_half_life_ms > 0
        )
        self._grown = [0] * len(state.queues.specs)
        """Number of changes of each vertex's share; of a root nobody asks."""
        self._is_patient = state.settings.starve_after_ms > 0
        self._lanes: dict[tuple[int, int, int, bool], CandidateLane] = {}
        """By (minus band, queue row, tenant, whether it has waited too long)."""
        self._lanes_below: dict[int, list[CandidateLane]] = {}
        """Vertex -> lanes of queues there and below; not for roots, whose shares count for units."""
        self._units: dict[tuple[int, int, bool], LaneGroup] = {}
        """By (minus band, row of the root, whether it has waited too long)."""
        self._top: list[UnitEntry] = []
        self._unit: LaneGroup | None = None
        """The unit of the candidate that `first` gave, until something moves."""
        for key, row in heads:
            self._lane_of(key, row).candidates.append((-state.workloads.priority_value[key[0]], row, key))
        for lane in self._lanes.values():
            heapify(lane.candidates)
            self._enter_lane(lane)
        for unit in self._units.values():
            self._enter_unit(unit)

    def first(self) -> tuple[Order, Key] | None:
        """The candidate whose turn it is; None when there is none."""
        unit = self._unit = self._first_unit()
        if unit is None:
            return None
        shares, minus_priority, row, _, lane = unit.lanes[0]
        return (unit.minus_band, self._root_share(unit) + shares, minus_priority, row), lane.candidates[0][2]

    def started(self, successor: int | None) -> None:
        """The candidate that `first` gave has started, so shares on its queue's path have grown. `successor`: the row
        that follows it in its group."""
        unit = self._taken_first()
        lane = unit.lanes[0][4]
        self._shares.changed(self._state.queues.path[lane.queue])
        for vertex in lane.below:
            self._grown[vertex] += 1
        if successor is None:
            heappop(lane.candidates)
        else:
            minus_priority, _, key = lane.candidates[0]
            heapreplace(lane.candidates, (minus_priority, successor, key))
        self._enter_first_again(unit, lane)

    def _taken_first(self) -> LaneGroup:
        """The unit of the candidate that `first` gave; it is about to move."""
        unit, self._unit = self._unit or self._first_unit(), None
        assert unit is not None, "there is no first"
        return unit

    def drop(self, closed: Container[int] = (), refused: Container[int] = ()) -> None:
        """The candidate that `first` gave does not start, nor do others of its group; nor do those of closed queues and
        refused kinds that come next in its lane."""
        unit = self._taken_first()
        lane = unit.lanes[0][4]
        candidates = lane.candidates
        heappop(candidates)
        while candidates and (candidates[0][2][2] in refused or lane.queue in closed):
            heappop(candidates)
        self._enter_first_again(unit, lane)

    def lowered(self, queues: Iterable[int]) -> None:
        """Work of these queues was stopped, so shares on their paths are smaller."""
        self._unit = None
        smaller = {vertex for queue in queues for vertex in self._state.queues.path[queue]}
        self._shares.changed(smaller)
        for vertex in smaller:
            self._grown[vertex] += 1
        lanes = [lane for vertex in smaller for lane in self._lanes_below.get(vertex, ())]
        for lane in dict.fromkeys(lanes):
            self._enter_lane(lane)
        for unit in self._units.values():
            if unit.root in smaller:
                self._enter_unit(unit)

    def put(self, key: Key, row: int) -> None:
        """Another candidate."""
        self._unit = None
        lane = self._lane_of(key, row)
        heappush(lane.candidates, (-self._state.workloads.priority_value[key[0]], row, key))
        self._enter_lane(lane)
        self._enter_unit(lane.unit)

    def leave_out(self, queue: int) -> None:
        """Drop the rest of this queue."""
        self._unit = None
        for lane in self._lanes.values():
            if lane.queue == queue:
                lane.candidates.clear()
                lane.entry = None

    def rest(self) -> Iterator[tuple[Key, int]]:
        """All that are left, in no order."""
        for lane in self._lanes.values():
            for _, row, key in lane.candidates:
                yield key, row

    # -- where things stand -------------------------------------------------------------------------------------------

    def _lane_of(self, key: Key, row: int) -> CandidateLane:
        state = self._state
        starved = self._is_patient and has_waited_too_long(state, row)
        minus_band, queue = -state.workloads.priority_band[key[0]], key[1]
        lane = self._lanes.get((minus_band, queue, key[3], starved))
        if lane is None:
            path = state.queues.path[queue]
            unit = self._units.get((minus_band, path[-1], starved))
            if unit is None:
                unit = self._units[minus_band, path[-1], starved] = LaneGroup(minus_band, path[-1], starved)
            lane = CandidateLane(unit, queue, key[3], starved, path[-2::-1])
            self._lanes[minus_band, queue, key[3], starved] = lane
            for vertex in lane.below or path:
                self._lanes_below.setdefault(vertex, []).append(lane)
        return lane

    def _entry_of(self, lane: CandidateLane) -> LaneEntry:
        """The lane's present place in its unit."""
        minus_priority, row, _ = lane.candidates[0]
        lane.entry = (self._shares_below(lane), minus_priority, row, self._stamp(lane), lane)
        return lane.entry

    def _enter_lane(self, lane: CandidateLane) -> None:
        """Put the lane where it belongs in its unit, if it has candidates."""
        if lane.candidates:
            heappush(lane.unit.lanes, self._entry_of(lane))

    def _enter_first_again(self, unit: LaneGroup, lane: CandidateLane) -> None:
        """The first lane of the unit is out of date."""
        if lane.candidates:
            heapreplace(unit.lanes, self._entry_of(lane))
        else:
            heappop(unit.lanes)
            lane.entry = None

    def _enter_unit(self, unit: LaneGroup) -> None:
        """Put the unit where it belongs, if it has lanes."""
        if unit.lanes:
            unit.entry = (unit.minus_band, self._root_share(unit), *unit.lanes[0][:3], unit)
            heappush(self._top, unit.entry)

    def _first_unit(self) -> LaneGroup | None:
        """The unit whose first lane has the next candidate, both up to date; None when nothing is left."""
        if len(self._units) == 1:
            (unit,) = self._units.values()
            self._refresh_lanes(unit)
            return unit if unit.lanes else None
        while self._top:
            entry = self._top[0]
            unit = entry[5]
            if entry is unit.entry:
                self._refresh_lanes(unit)
                if unit.lanes and entry[2:5] == unit.lanes[0][:3] and entry[1] == self._root_share(unit):
                    return unit
                heappop(self._top)
                self._enter_unit(unit)
            else:
                heappop(self._top)
        return None

    def _refresh_lanes(self, unit: LaneGroup) -> None:
        """Bring the first lane of the unit up to date."""
        lanes = unit.lanes
        while lanes:
            entry = lanes[0]
            lane = entry[4]
            if entry is lane.entry:
                if entry[3] == self._stamp(lane):
                    return
                heapreplace(lanes, self._entry_of(lane))
            else:
                heappop(lanes)

    def _shares_below(self, lane: CandidateLane) -> tuple[int, ...]:
        """Shares below the root, and that of the tenant."""
        below = lane.below
        if lane.starved:
            return ()
        of = self._shares.of
        shares = (of(below[0]),) if len(below) == 1 else tuple([of(vertex) for vertex in below])
        return shares if lane.tenant == NONE else (*shares, self._state.tenant_share(lane.queue, lane.tenant))

    def _root_share(self, unit: LaneGroup) -> tuple[int, ...]:
        return () if unit.starved else (self._shares.of(unit.root),)

    def _stamp(self, lane: CandidateLane) -> int:
        """Changes when a share that counts for the lane within its unit does."""
        below, grown = lane.below, self._grown
        return grown[below[0]] if len(below) == 1 else sum([grown[vertex] for vertex in below])


class ShortestFirst:
    """The candidates behind a reservation, by band and expected time: nothing changes that during a pass. Of a queue
    that is strictly first in, first out, only the first: another one's turn comes when that has started."""

    def __init__(self, state: State, candidates: Iterable[tuple[Key, int]]) -> None:
        self._state = state
        self._strict: dict[int, list[tuple[Order, Key]]] = {}
        """Queue row -> heap of its candidates, where they go in order."""
        self._heap: list[tuple[Order, Key]] = []
        for key, row in candidates:
            if state.queues.specs[key[1]].order == "strict_fifo":
                self._strict.setdefault(key[1], []).append((order_of(state, key, row), key))
            else:
                self._heap.append(self._entry(key, row))
        for line in self._strict.values():
            heapify(line)
            self._heap.append(self._first_of(line))
        heapify(self._heap)

    def first(self) -> tuple[Order, Key] | None:
        return self._heap[0] if self._heap else None

    def started(self, successor: int | None) -> None:
        _, key = heappop(self._heap)
        line = self._strict.get(key[1])
        if line is None:
            if successor is not None:
                heappush(self._heap, self._entry(key, successor))
            return
        heappop(line)
        if successor is not None:
            heappush(line, (order_of(self._state, key, successor), key))
        if line:
            heappush(self._heap, self._first_of(line))

    def rest(self) -> Iterator[tuple[Key, int]]:
        """All that are left, in no order."""
        for order, key in self._heap:
            if key[1] not in self._strict:
                yield key, order[3]
        for line in self._strict.values():
            for order, key in line:
                yield key, order[3]

    def _first_of(self, line: list[tuple[Order, Key]]) -> tuple[Order, Key]:
        order, key = line[0]
        return self._entry(key, order[3])

    def drop(self, closed: Container[int] = (), refused: Container[int] = ()) -> None:
        heappop(self._heap)

    def lowered(self, queues: Iterable[int]) -> None:
        """Shares do not count here."""

    def _entry(self, key: Key, row: int) -> tuple[Order, Key]:
        w = self._state.workloads
        return (-w.priority_band[key[0]], (w.remaining_ms(row),), 0, row), key
