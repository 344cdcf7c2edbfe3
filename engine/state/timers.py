"""What happens by the passing of time alone: a heap of moments, each checked against the state when it comes.

Nothing here is stored: `Timers.rebuild` finds every moment again from the state. An entry whose cause is gone is
dropped when met.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from engine.model.specs import WorkloadState
from engine.state.deadlines import IDLE, turns_at
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.state.cell_state import State


class Timer(IntEnum):
    WAKE = 0
    """A waiting workload's start time or retry."""
    DEADLINE = 1
    """A workload that has not started cannot end in time any more."""
    MAX_RUNTIME = 2
    CONFIRM = 3
    """Executors have not confirmed a placed gang."""
    CLEAR = 4
    """The victims of a preemption have had their time to write checkpoints."""
    RESERVATION_START = 5
    RESERVATION_END = 6
    MIN_RUNTIME = 7
    """A workload on its nodes may be preempted from now on."""
    TURN = 8
    """A workload that was preempted may preempt again."""
    DISRUPTIONS = 9
    """A queue's limit on disruptions counts one less."""
    SLACK = 10
    """A waiting workload has no time to lose on spot machines any more."""


Entry = tuple[int, Timer, int]
"""(cell ms, what, row of a workload or number of a booking)"""
_OF_WORKLOADS = (
    Timer.WAKE, Timer.DEADLINE, Timer.MAX_RUNTIME, Timer.CONFIRM, Timer.MIN_RUNTIME, Timer.TURN, Timer.SLACK,
)  # fmt: skip
_BOUND = (WorkloadState.PLACED, WorkloadState.RUNNING)
_LIVE = (*IDLE, *_BOUND)


class Timers:
    def __init__(self) -> None:
        self._heap: list[Entry] = []

    def copy(self) -> Timers:
        other = Timers()
        other._heap = list(self._heap)
        return other

    def rebuild(self, state: State) -> None:
        self._heap = []
        for row in _timed(state):
            self.watch(state, row)
        for reservation in state.bookings.reservations:
            self.push(reservation.spec.start_ms, Timer.RESERVATION_START, reservation.booking)
            self.push(reservation.spec.end_ms, Timer.RESERVATION_END, reservation.booking)
        for queue, times in enumerate(state.queues.disruptions):
            for at_ms in times:
                self.watch_disruption(state, queue, at_ms)
        for clearing in state.bookings.clearings:
            self.push(clearing.at_ms, Timer.CLEAR, clearing.booking)
        heapify(self._heap)

    def push(self, at_ms: int, timer: Timer, subject: int) -> None:
        heappush(self._heap, (at_ms, timer, subject))

    def watch(self, state: State, row: int) -> None:
        """Enter every moment that the workload's present state brings."""
        for timer in _OF_WORKLOADS:
            at_ms = moment(state, timer, row)
            if at_ms is not None:
                self.push(at_ms, timer, row)

    def watch_disruption(self, state: State, queue: int, at_ms: int) -> None:
        """Enter when a preemption of the queue's work leaves the window of its limit, if it has one."""
        spec = state.queues.specs[queue]
        if spec.disruptions >= 0:
            self.push(at_ms + spec.disruption_window_ms, Timer.DISRUPTIONS, queue)

    def next_at(self, state: State, now_ms: int) -> int | None:
        """The next moment at which something is due; what is due already counts."""
        while self._heap and not _current(state, self._heap[0]):
            heappop(self._heap)
        own = self._heap[0][0] if self._heap else None
        burst = state.queues.next_burst_change(now_ms)
        if own is None or burst is None:
            return burst if own is None else own
        return min(own, burst)

    def take(self, state: State, at_ms: int) -> Entry | None:
        """The first entry that is due by `at_ms`."""
        while self._heap and self._heap[0][0] <= at_ms:
            entry = heappop(self._heap)
            if _current(state, entry):
                return entry
        return None


def _timed(state: State) -> list[int]:
    """Workloads that may have a moment to come: most have none, and are not looked at one by one."""
    w = state.workloads
    if not w.ids:
        return []
    now = view(w.state)
    limited = np.array([bool(terms.deadline_ms or terms.max_runtime_ms) for terms in w.terms_specs])[view(w.terms)]
    protected = np.array([spec.min_runtime_ms > 0 for spec in state.queues.specs])[view(w.queue)]
    maybe = (now == WorkloadState.WAITING) | (now == WorkloadState.PLACED) | limited
    maybe |= ((now == WorkloadState.RUNNING) & protected) | (view(w.evicted_at) >= 0)
    rows: list[int] = np.flatnonzero(maybe & np.isin(now, _LIVE)).tolist()
    return rows


def moment(state: State, timer: Timer, row: int) -> int | None:
    """When the timer of the workload is due, in its present state; None when it is not set."""
    w = state.workloads
    now = w.state[row]
    if timer == Timer.WAKE:
        return w.wake[row] if now == WorkloadState.WAITING and w.wake[row] >= 0 and not w.unmet[row] else None
    if timer == Timer.DEADLINE:
        deadline = w.terms_at(row).deadline_ms
        left = w.class_at(row).estimate_ms - w.kept[row]
        return deadline - max(left, 0) + 1 if deadline and now in IDLE else None
    if timer == Timer.MAX_RUNTIME:
        limit = w.terms_at(row).max_runtime_ms
        return w.started[row] + limit if limit and now == WorkloadState.RUNNING else None
    if timer == Timer.MIN_RUNTIME:
        if now not in _BOUND:
            return None
        at_ms = w.spared_until(row, state.queues.specs[w.queue[row]].min_runtime_ms)
        return at_ms if at_ms > w.started[row] else None
    if timer == Timer.SLACK:
        return turns_at(state, row)
    if timer == Timer.TURN:
        return w.may_preempt_at(row, state.settings) if w.evicted_at[row] >= 0 and now == WorkloadState.QUEUED else None
    limit = state.settings.try_timeout_ms
    return w.since[row] + limit if limit and now == WorkloadState.PLACED else None


def _current(state: State, entry: Entry) -> bool:
    at_ms, timer, subject = entry
    if timer in _OF_WORKLOADS:
        return moment(state, timer, subject) == at_ms
    if timer == Timer.DISRUPTIONS:
        return True
    if timer == Timer.CLEAR:
        return any(c.booking == subject for c in state.bookings.clearings)
    return any(r.booking == subject for r in state.bookings.reservations)
