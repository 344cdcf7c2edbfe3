"""Who goes next, within one pass over what waits.

Candidates are kept where a start changes little: those of one queue and priority band in a lane, lanes of one tree and
band in a unit. A lane stands in its unit by the shares below the root, a unit among others by the share of its root. A
start changes the shares on its own queue's path alone, so only that lane and unit move; a lane elsewhere below a
vertex that has grown is found out of date, and put right, when its turn seems to have come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush

from engine.fairness import share
from engine.pending import Key
from engine.state import State
from engine.workloads import NONE

Order = tuple[int, tuple[int, ...], int, int]
"""(minus band, shares from the root down, minus priority, row): lower goes first. Without shares: it has waited so long
that they do not count."""
Lane = tuple[int, int, int, bool]
"""(minus band, queue row, tenant, whether it has waited too long)"""
Unit = tuple[int, int, bool]
"""(minus band, row of the root, whether it has waited too long)"""
Place = tuple[tuple[int, ...], int, int]
"""(shares, minus priority, row) of the first of a lane."""
LaneEntry = tuple[Place, Lane, int]
"""(place of its first, lane, stamp it was reckoned at)"""
UnitEntry = tuple[int, tuple[int, ...], Place, Unit, int]
"""(minus band, share of the root, place of its first lane, unit, stamp)"""


class Lineup:
    """The first of every group, and what follows it once it has started."""

    def __init__(self, state: State, heads: Iterable[tuple[Key, int]]) -> None:
        """`heads`: the pending key and the row of the first of each group."""
        self._state = state
        self._past = state.settings.fair_half_life_ms > 0
        self._grown = [0] * len(state.queues.specs)
        """How often the shares of each vertex have changed."""
        self._lanes: dict[Lane, list[tuple[int, int, Key]]] = {}
        """Heaps of (minus priority, row, key)."""
        self._units: dict[Unit, list[LaneEntry]] = {}
        self._top: list[UnitEntry] = []
        self._entry_of: dict[Lane | Unit, LaneEntry | UnitEntry] = {}
        """The entry that counts; others of the same lane or unit are dropped when met."""
        for key, row in heads:
            lane = self._lane_of(key, row)
            self._lanes.setdefault(lane, []).append((-state.workloads.priority_value[key[0]], row, key))
        for lane, candidates in self._lanes.items():
            heapify(candidates)
            self._enter_lane(lane)
        for unit in self._units:
            self._enter_unit(unit)

    def next(self) -> tuple[Order, Key] | None:
        """Take the first candidate out; None when there is none."""
        unit = self._first_unit()
        if unit is None:
            return None
        (shares, minus_priority, row), lane, _ = heappop(self._units[unit])
        _, _, key = heappop(self._lanes[lane])
        order = (unit[0], self._root_share(unit) + shares, minus_priority, row)
        self._enter_lane(lane)
        self._enter_unit(unit)
        return order, key

    def peek(self) -> Order | None:
        """Where the next candidate stands."""
        unit = self._first_unit()
        if unit is None:
            return None
        shares, minus_priority, row = self._units[unit][0][0]
        return unit[0], self._root_share(unit) + shares, minus_priority, row

    def put(self, key: Key, row: int) -> None:
        """Another candidate."""
        lane = self._lane_of(key, row)
        heappush(self._lanes.setdefault(lane, []), (-self._state.workloads.priority_value[key[0]], row, key))
        self._enter_lane(lane)
        self._enter_unit(self._unit_of(lane))

    def note_start(self, queue: int) -> None:
        """The shares on the queue's path have grown."""
        for vertex in self._state.queues.path[queue]:
            self._grown[vertex] += 1

    def leave_out(self, queue: int) -> None:
        """Nothing more of this queue."""
        for lane, entries in self._lanes.items():
            if lane[1] == queue:
                entries.clear()

    def rest(self) -> Iterator[tuple[Key, int]]:
        """All that are left, in no order."""
        for entries in self._lanes.values():
            for _, row, key in entries:
                yield key, row

    # -- where things stand -------------------------------------------------------------------------------------------

    def _lane_of(self, key: Key, row: int) -> Lane:
        state = self._state
        patience = state.settings.starve_after_ms
        starved = bool(patience) and state.now_ms - state.workloads.submitted[row] > patience
        return -state.workloads.priority_band[key[0]], key[1], key[3], starved

    def _unit_of(self, lane: Lane) -> Unit:
        return lane[0], self._state.queues.path[lane[1]][-1], lane[3]

    def _enter_lane(self, lane: Lane) -> None:
        """Put the lane where it belongs in its unit, if it has candidates."""
        if self._lanes[lane]:
            minus_priority, row, _ = self._lanes[lane][0]
            entry = ((self._shares(lane), minus_priority, row), lane, self._stamp(lane))
            self._entry_of[lane] = entry
            heappush(self._units.setdefault(self._unit_of(lane), []), entry)

    def _enter_unit(self, unit: Unit) -> None:
        """Put the unit where it belongs, if it has lanes."""
        if self._units[unit]:
            entry = (unit[0], self._root_share(unit), self._units[unit][0][0], unit, self._grown[unit[1]])
            self._entry_of[unit] = entry
            heappush(self._top, entry)

    def _first_unit(self) -> Unit | None:
        """The unit whose first lane has the next candidate, both up to date; None when nothing is left."""
        while self._top:
            entry = self._top[0]
            _, _, place, unit, stamp = entry
            if entry is not self._entry_of[unit]:
                heappop(self._top)
                continue
            self._refresh_lanes(unit)
            lanes = self._units[unit]
            if lanes and lanes[0][0] == place and stamp == self._grown[unit[1]]:
                return unit
            heappop(self._top)
            self._enter_unit(unit)
        return None

    def _refresh_lanes(self, unit: Unit) -> None:
        """Bring the first lane of the unit up to date."""
        lanes = self._units[unit]
        while lanes:
            entry = lanes[0]
            (_, _, row), lane, stamp = entry
            candidates = self._lanes[lane]
            if candidates and entry is self._entry_of[lane] and stamp == self._stamp(lane) and candidates[0][1] == row:
                return
            heappop(lanes)
            if entry is self._entry_of[lane]:
                self._enter_lane(lane)

    def _shares(self, lane: Lane) -> tuple[int, ...]:
        """Shares below the root, and that of the tenant."""
        _, queue, tenant, starved = lane
        if starved:
            return ()
        queues = self._state.queues
        totals, now_ms = self._state.capacity.totals, self._state.now_ms
        below = [share(queues, vertex, totals, now_ms, past=self._past) for vertex in queues.path[queue][-2::-1]]
        if tenant != NONE:
            below.append(self._state.tenant_share(queue, tenant))
        return tuple(below)

    def _root_share(self, unit: Unit) -> tuple[int, ...]:
        if unit[2]:
            return ()
        return (share(self._state.queues, unit[1], self._state.capacity.totals, self._state.now_ms, past=self._past),)

    def _stamp(self, lane: Lane) -> int:
        """Changes when a share that counts for the lane within its unit does."""
        return sum([self._grown[vertex] for vertex in self._state.queues.path[lane[1]][:-1]])


class ShortestFirst:
    """The candidates behind a reservation, by band and expected time: nothing changes that during a pass."""

    def __init__(self, state: State, candidates: Iterable[tuple[Key, int]]) -> None:
        self._state = state
        self._heap = [self._entry(key, row) for key, row in candidates]
        self._left_out: set[int] = set()
        heapify(self._heap)

    def next(self) -> tuple[Order, Key] | None:
        while self._heap:
            order, key = heappop(self._heap)
            if key[1] not in self._left_out:
                return order, key
        return None

    def peek(self) -> Order | None:
        return self._heap[0][0] if self._heap else None

    def put(self, key: Key, row: int) -> None:
        heappush(self._heap, self._entry(key, row))

    def note_start(self, queue: int) -> None:
        """Shares do not count here."""

    def leave_out(self, queue: int) -> None:
        self._left_out.add(queue)

    def _entry(self, key: Key, row: int) -> tuple[Order, Key]:
        w = self._state.workloads
        return (-w.priority_band[key[0]], (w.remaining_ms(row),), 0, row), key
