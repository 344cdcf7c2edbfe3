"""The cycle: look at what waits in order, start what may start, promise the first blocked workload its time.

Policies. `fcfs`: within a queue nothing starts before what is ahead of it; queues do not wait for each other. `easy`:
the first workload that lacks capacity gets a reservation, and whatever is behind it may start if that is not delayed
(`engine.backfill`). A workload that waits only for its own queue's quota is passed over and holds up nobody.

A pass is full only when something was freed since the last; otherwise it looks at new arrivals alone, because what was
blocked still is. A verdict holds for a whole group of like workloads (`engine.pending`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heapify, heappop, heappush

from engine import events as ev
from engine.backfill import Reservation
from engine.capacity import Capacity
from engine.model import NodeState, WorkloadState
from engine.pending import Key
from engine.placement import Claim, packed, place, unplace
from engine.shape import Shape
from engine.state import State

Emit = Callable[[ev.Placed], None]
"""Takes a `Placed` whose claims stand already."""
Candidate = tuple[int, int, Key]
"""(minus priority, row, pending key): the order of consideration."""


class Verdict(IntEnum):
    STARTED = 0
    NO_QUOTA = 1
    NO_CAPACITY = 2
    WOULD_DELAY = 3
    PROMISED_QUOTA = 4


class Scheduler:
    """Decides on a State. Holds no fact of its own: dropping it loses only the memory of the last pass."""

    def __init__(self, state: State, emit: Emit) -> None:
        self.state = state
        self.reservation: Reservation | None = None
        self._emit = emit
        self._seen_freed = -1
        self._no_room: dict[int, int] = {}
        """Class row -> `gained_mark` at which it was found not to fit."""

    def cycle(self) -> None:
        """Start everything that may start now."""
        state = self.state
        arrivals, state.arrivals = state.arrivals, []
        if self._seen_freed != state.capacity.freed:
            self.reservation = None
            self._full_pass()
        elif arrivals:
            self._look_at(arrivals)
        self._seen_freed = state.capacity.freed

    def _full_pass(self) -> None:
        groups = self.state.pending.groups
        self._run([(-key[0], group.rows[group.front], key) for key, group in groups.items()])

    def _look_at(self, arrivals: list[int]) -> None:
        """Only what is new and first of its group: behind a blocked one of its kind it is blocked too."""
        state = self.state
        if not state.pending.by_class:
            self._full_pass()
            return
        candidates: list[Candidate] = []
        for row in arrivals:
            if state.workloads.state[row] == WorkloadState.QUEUED:
                key = state.pending_key(row)
                group = state.pending.groups[key]
                if group.rows[group.front] == row:
                    candidates.append((-key[0], row, key))
        if self._overtakes(candidates):
            self.reservation = None
            self._full_pass()
        else:
            self._run(candidates)

    def _overtakes(self, candidates: list[Candidate]) -> bool:
        """Whether one goes before the workload that was promised its time."""
        if self.reservation is None or not candidates:
            return False
        reserved = self.reservation.row
        return min(candidates)[:2] < (-self.state.workloads.value_at(reserved), reserved)

    def _run(self, heads: list[Candidate]) -> None:
        """Consider candidates in order; after a start the next of its group follows."""
        pending = self.state.pending
        strict = not pending.by_class
        blocked_queues: set[int] = set()
        refused: set[int] = set()
        heapify(heads)
        while heads:
            minus_priority, row, key = heappop(heads)
            if (strict and key[1] in blocked_queues) or key[2] in refused:
                continue
            verdict = self._consider(row)
            if verdict == Verdict.STARTED:
                group = pending.groups.get(key)
                if group is not None:
                    following = group.rows[group.front]
                    heappush(heads, (minus_priority, following, key))
            elif strict:
                blocked_queues.add(key[1])
            elif verdict not in (Verdict.NO_QUOTA, Verdict.PROMISED_QUOTA):
                # Others of the kind, in other queues and priorities, fare alike: room only shrinks during a pass.
                refused.add(key[2])

    def _consider(self, row: int) -> Verdict:
        """Start the workload if quota, capacity and promise allow."""
        state = self.state
        w = state.workloads
        workload_class = w.class_at(row)
        if state.queues.lacking(w.queue[row], workload_class.request) is not None:
            return Verdict.NO_QUOTA
        cls = w.cls[row]
        if self.has_no_room(cls):
            return self._blocked(row)
        shapes = workload_class.shapes
        promise = self.reservation
        late = promise is not None and not promise.ends_in_time(row)
        if late and promise is not None and promise.needs_quota(row):
            return Verdict.PROMISED_QUOTA
        if late and promise is not None and promise.certainly_in_the_way(shapes, workload_class.tasks):
            return Verdict.WOULD_DELAY
        claims = place(state.capacity, shapes, workload_class.counts)
        if claims is None:
            self._no_room[cls] = state.capacity.gained_mark
            return self._blocked(row)
        if promise is not None and not self._keeps(promise, late, row, claims):
            return Verdict.WOULD_DELAY
        self._emit(ev.Placed(row, packed(claims, len(shapes))))
        return Verdict.STARTED

    def has_no_room(self, cls: int) -> bool:
        """Whether the class was found not to fit and still does not: claims only take room away, and no node that has
        gained some since then takes even one of its tasks."""
        mark = self._no_room.get(cls)
        if mark is None:
            return False
        capacity = self.state.capacity
        gained = capacity.gains_since(mark)
        shapes = self.state.workloads.classes[cls].shapes
        if gained is None or any(_gains_for(capacity, node, shapes) for node in set(gained)):
            del self._no_room[cls]
            return False
        self._no_room[cls] = capacity.gained_mark
        return True

    def _blocked(self, row: int) -> Verdict:
        """Too little free. The first such workload is promised its time."""
        if self.reservation is None and self.state.pending.by_class:
            promise = Reservation(self.state, row)
            # What no running work stands in the way of (nodes are down, or its groups never fit together) holds up
            # nobody: there is no time to promise.
            if promise.start_ms is not None and promise.start_ms > self.state.now_ms:
                self.reservation = promise
        return Verdict.NO_CAPACITY

    def _keeps(self, promise: Reservation, late: bool, row: int, claims: list[Claim]) -> bool:
        """Whether the claims keep the promise; if not they are given back."""
        shapes = self.state.workloads.class_at(row).shapes
        if not late:
            promise.pass_over(shapes, claims)
            return True
        if promise.admits(shapes, claims):
            return True
        unplace(self.state.capacity, shapes, claims)
        return False


def _gains_for(capacity: Capacity, node: int, shapes: tuple[Shape, ...]) -> bool:
    """Whether the node, which gained room, takes a task of one of the shapes."""
    if capacity.state[node] != NodeState.READY:
        return False
    pool = capacity.pool[node]
    return any(pool in shape.pool_set and capacity.fits(node, shape) for shape in shapes)
