"""Waiting work: workloads in groups of like ones, the causes to look again at refused work, and the burn of objectives.

Workloads of one priority class, queue and workload class share a group. The scheduler's verdict on the first holds for
all, so a pass costs the number of different requests, not the number of workloads.

Any change that may let refused work start, or that breaks a promise, records a cause here. The cycle takes the causes
and starts over. Capacity that a node gains is counted at its source instead (`Capacity.gains`).

A start is late when it comes more than the queue's `start_within_ms` after the workload could last have started. That
moment is its submission, release, resumption, wake-up, or return to the queue after a preemption. Burn is the share of
late starts divided by the share that may be late: at 1000 permille, as much is late as the objective allows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.model.columns import Numbers, view
from engine.model.details import Burn, BurnWindow
from engine.model.spec_parts import MINUTE_MS
from engine.model.specs import WorkloadState
from engine.state.queue_tree import MINUTES, below
from engine.state.workloads import EVICTED, NONE, PLACED, RELEASED, RESUMED, SUBMITTED, WOKE

Key = tuple[int, int, int, int]
"""(priority class row, queue row, kind, tenant). Like workloads are of one kind: their class row, or, where they kept
work or draw on caps, a negative number for those of a class that kept as much and draw the same; 0 for all where the
policy is strictly first come, first served. The tenant counts only in queues that are fair to tenants; -1 elsewhere.
It is STOPPED for work that no budget lets start."""
STOPPED = -2
Column = Numbers


class PendingGroup:
    """Rows in ascending order. The front is an offset, so that taking the first costs nothing."""

    __slots__ = ("front", "rows")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.front = 0

    def copy(self) -> PendingGroup:
        other = PendingGroup()
        other.rows = self.rows[self.front :]
        return other

    def __len__(self) -> int:
        return len(self.rows) - self.front

    def add(self, row: int) -> None:
        if not self.rows or row > self.rows[-1]:
            self.rows.append(row)
        else:
            insort(self.rows, row, lo=self.front)

    def discard(self, row: int) -> None:
        at = bisect_left(self.rows, row, lo=self.front)
        if at == self.front:
            self.front += 1
            self._trim()
        else:
            del self.rows[at]

    def discard_many(self, rows: list[int]) -> None:
        """Call `discard` for each. Cheap for those at the front."""
        if self.rows[self.front : self.front + len(rows)] == rows:
            self.front += len(rows)
            self._trim()
        else:
            for row in rows:
                self.discard(row)

    def _trim(self) -> None:
        if self.front > 64 and self.front * 2 > len(self.rows):
            del self.rows[: self.front]
            self.front = 0

    def rank(self, row: int) -> int:
        """The number of rows of the group before `row`."""
        return bisect_left(self.rows, row, lo=self.front) - self.front


class NewArrivals(NamedTuple):
    """Workloads that came together, in columns."""

    rows: range
    priorities: list[int]
    queues: list[int]
    kinds: list[int]
    tenants: list[int]


class Pending:
    """Groups by key. What comes in numbers is put into groups only when somebody looks at these: if all of it starts at
    once, nobody does."""

    def __init__(self, by_class: bool) -> None:
        self.by_class = by_class
        self._groups: dict[Key, PendingGroup] = {}
        self._arrived: list[NewArrivals] = []

    @property
    def groups(self) -> dict[Key, PendingGroup]:
        if self._arrived:
            self._enter()
        return self._groups

    def copy(self) -> Pending:
        other = Pending(self.by_class)
        other._groups = {key: group.copy() for key, group in self.groups.items()}
        return other

    def arrive(self, arrived: NewArrivals) -> None:
        """Add workloads that came together, after all that wait."""
        self._arrived.append(arrived)

    def all_new(self) -> np.ndarray[Any, np.dtype[np.int32]] | None:
        """The rows of all that wait, ascending, if nobody has looked at any yet; None otherwise."""
        if self._groups or not self._arrived:
            return None
        rows = array("i")
        for arrived in self._arrived:
            rows.extend(arrived.rows)
        return np.frombuffer(rows, np.int32)

    def leave_together(self, rows: np.ndarray[Any, np.dtype[np.int32]]) -> bool:
        """Take these out, if they are all that `all_new` gives. Returns whether they were."""
        waiting = self.all_new()
        if waiting is None or not np.array_equal(waiting, np.sort(rows)):
            return False
        self._arrived.clear()
        return True

    def _enter(self) -> None:
        arrived, self._arrived = self._arrived, []
        for rows, priorities, queues, kinds, tenants in arrived:
            for row, priority, queue, kind, tenant in zip(rows, priorities, queues, kinds, tenants, strict=True):
                self.add(self.key(priority, queue, kind, tenant), row)

    def key(self, priority: int, queue: int, kind: int, tenant: int) -> Key:
        return (priority, queue, kind if self.by_class else 0, tenant)

    def add(self, key: Key, row: int) -> None:
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = PendingGroup()
        group.add(row)

    def fill(self, rows: Column, priorities: Column, queues: Column, kinds: Column, tenants: Column) -> None:
        """`add` of every row, in ascending order, where nothing waits yet."""
        keys = np.stack([priorities, queues, kinds if self.by_class else np.zeros_like(kinds), tenants])
        order = np.lexsort(keys)
        rows, keys = rows[order], keys[:, order]
        starts = np.flatnonzero(np.any(np.diff(keys, prepend=keys[:, :1] - 1), axis=0))
        ends = np.append(starts[1:], len(rows))
        # In the order of their first rows, as if they had been added one by one.
        for i in np.argsort(rows[starts], kind="stable").tolist():
            priority, queue, kind, tenant = keys[:, starts[i]].tolist()
            group = self._groups[priority, queue, kind, tenant] = PendingGroup()
            group.rows = rows[starts[i] : ends[i]].tolist()

    def discard(self, key: Key, row: int) -> None:
        group = self.groups[key]
        group.discard(row)
        if not len(group):
            del self.groups[key]

    def discard_many(self, key: Key, rows: list[int]) -> None:
        group = self.groups[key]
        group.discard_many(rows)
        if not len(group):
            del self.groups[key]

    def position(self, key: Key, row: int, values: list[int]) -> int:
        """1 for the first of its queue by priority and age; `values` are the integer priorities of the classes."""
        priority, queue = values[key[0]], key[1]
        ahead = 0
        for other, group in self.groups.items():
            if other[1] == queue:
                if values[other[0]] > priority:
                    ahead += len(group)
                elif values[other[0]] == priority:
                    ahead += group.rank(row)
        return ahead + 1


class Cause(IntEnum):
    FIRST_LOOK = 0
    """This scheduler has looked at nothing yet."""
    ROOM = 1
    """A node has room that it did not have."""
    OVERDUE = 2
    """Work that a promise counted on has outrun its expected end."""
    STARTED = 3
    """New starts may be preempted by work that was refused before."""
    LEFT = 4
    """Something waits no longer: it may have been first, or promised its time."""
    ORDER = 5
    """Priorities, or kinds of workloads, have changed."""
    RULES = 6
    """The policy, settings, prices, a queue or a cap have changed."""
    BUDGET = 7
    """A budget stops other work than before."""
    ELASTIC = 8
    """Elastic work has tasks it can do without, or could have more."""
    NEIGHBOURS = 9
    """Work runs that others want to be near to."""
    TIME = 10
    """A time has come: of a reservation, a burst, a minimum run time, a turn or a pause."""


class Reconsider:
    """Causes that nobody has taken yet."""

    __slots__ = ("causes", "times")

    def __init__(self) -> None:
        self.causes: set[Cause] = set()
        self.times = 0
        """Number of requests for a look."""

    def ask(self, cause: Cause) -> None:
        self.causes.add(cause)
        self.times += 1

    def take(self) -> set[Cause]:
        causes, self.causes = self.causes, set()
        return causes

    def copy(self) -> Reconsider:
        other = Reconsider()
        other.causes, other.times = set(self.causes), self.times
        return other


if TYPE_CHECKING:
    from engine.state.cell_state import State

    Numbers = Numbers

HOUR = 60
"""Minutes of the short window; the long one is as long as starts are kept."""
_CAN_START = (SUBMITTED, RELEASED, RESUMED, WOKE, EVICTED)
"""Entries of a history after which a workload may be waiting for its start: the last of them before it is when that
began."""


def burns(state: State, now_ms: int) -> tuple[Burn, ...]:
    """The burn of each queue with an objective, in the order of their definition."""
    begin(state, now_ms)
    tree = state.queues
    if not tree.starts.of:
        return ()
    waiting = _waiting_beyond(state, now_ms)
    return tuple(
        Burn(
            queue=tree.specs[vertex].name,
            within_ms=tree.specs[vertex].start_within_ms,
            objective_permille=tree.specs[vertex].objective_permille,
            hour=_window(state, vertex, HOUR, waiting[vertex], now_ms),
            six_hours=_window(state, vertex, MINUTES, waiting[vertex], now_ms),
        )
        for vertex in tree.starts.of
    )


def begin(state: State, now_ms: int) -> None:
    """Count from now on, and from the histories what was before, unless that is done."""
    if state.queues.starts.of is None:
        state.queues.starts.of = _remembered(state, now_ms)


def _window(state: State, vertex: int, minutes: int, waiting: int, now_ms: int) -> BurnWindow:
    started, late = state.queues.starts.within(vertex, minutes, now_ms)
    allowed = 1000 - state.queues.specs[vertex].objective_permille
    every = started + waiting
    return BurnWindow(
        started=started,
        late=late,
        waiting=waiting,
        burn_permille=(late + waiting) * 1_000_000 // (every * allowed) if every else None,
    )


def _with_objective(state: State) -> list[int]:
    return [row for row, spec in enumerate(state.queues.specs) if spec.start_within_ms]


def _waiting_beyond(state: State, now_ms: int) -> dict[int, int]:
    """For each queue with an objective: the queued at or below it that have waited longer."""
    w, tree = state.workloads, state.queues
    vertices = _with_objective(state)
    if not w.state_counts[WorkloadState.QUEUED]:
        return dict.fromkeys(vertices, 0)
    rows = np.flatnonzero(view(w.state) == WorkloadState.QUEUED)
    shortest = min(tree.specs[vertex].start_within_ms for vertex in vertices)
    waits = now_ms - view(w.since)[rows]
    rows, waits = rows[waits > shortest], waits[waits > shortest]
    queues = view(w.queue)[rows]
    return {
        vertex: int((below(tree, vertex)[queues] & (waits > tree.specs[vertex].start_within_ms)).sum())
        for vertex in vertices
    }


def _remembered(state: State, now_ms: int) -> dict[int, deque[list[int]]]:
    """The starts of the last minutes as the histories tell them."""
    tree = state.queues
    vertices = _with_objective(state)
    found: dict[int, deque[list[int]]] = {vertex: deque() for vertex in vertices}
    if not vertices or not state.workloads.ids:
        return found
    first = now_ms // MINUTE_MS - MINUTES + 1
    rows, at, waits = _starts_since(state, vertices, first * MINUTE_MS)
    queues = view(state.workloads.queue)[rows]
    for vertex in vertices:
        here = below(tree, vertex)[queues]
        minutes = at[here] // MINUTE_MS - first
        started = np.bincount(minutes, minlength=MINUTES)
        late = np.bincount(minutes[waits[here] > tree.specs[vertex].start_within_ms], minlength=MINUTES)
        for minute in np.flatnonzero(started).tolist():
            found[vertex].append([first + minute, int(started[minute]), int(late[minute])])
    return found


def _starts_since(state: State, vertices: list[int], since_ms: int) -> tuple[Numbers, Numbers, Numbers]:
    """(workload, cell ms, wait before it) of the starts since then in these queues and below. All histories are walked
    together, backwards."""
    w = state.workloads
    at, what, previous = view(w.history_at), view(w.history_what), view(w.history_previous)
    concerned = np.any([below(state.queues, vertex) for vertex in vertices], axis=0)
    rows = np.flatnonzero(concerned[view(w.queue)])
    entries = view(w.history)[rows].astype(np.int64)
    started = np.full(len(rows), NONE, np.int64)
    """Cell ms of the start whose wait is looked for; NONE while none is."""
    found: list[tuple[Numbers, Numbers, Numbers]] = []
    while len(rows):
        could = (started != NONE) & np.isin(what[entries], _CAN_START)
        if could.any():
            found.append((rows[could], started[could], started[could] - at[entries[could]]))
        starts = (what[entries] == PLACED) & (at[entries] >= since_ms)
        started = np.where(starts, at[entries], np.where(could, NONE, started))
        entries = previous[entries].astype(np.int64)
        on = (entries != NONE) & ((started != NONE) | (at[entries] >= since_ms))
        rows, entries, started = rows[on], entries[on], started[on]
    if not found:
        none = np.zeros(0, np.int64)
        return none, none, none
    each = [np.concatenate(part) for part in zip(*found, strict=True)]
    return each[0], each[1], each[2]
