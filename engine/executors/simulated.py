"""The simulated executor: every task starts at once and runs for a time known from the trace or drawn from the seed.

It owns no fact that the state does not hold: run times are a function of (seed, workload id), so after a crash `adopt`
finds every running task again and it ends when it would have.
"""

from __future__ import annotations

import math
import random
from heapq import heapify, heappop, heappush

from engine.model import WorkloadState
from engine.state import State

MEDIAN_UNKNOWN_MS = 30 * 60_000
"""Median run time drawn for a workload that gives neither estimate nor simulated run time."""


class SimulatedExecutor:
    """Reports when running workloads end, in cell time."""

    def __init__(self, state: State, seed: int) -> None:
        self.seed = seed
        self._state = state
        self._ends: list[tuple[int, int, int]] = []
        """Heap of (cell ms, row, attempt); stale once the attempt is over."""
        self.adopt(state)

    def adopt(self, state: State) -> None:
        """Take over everything that runs in `state`."""
        self._state = state
        running = [row for row, s in enumerate(state.workloads.state) if s == WorkloadState.RUNNING]
        self._ends = [self._end_of(row) for row in running]
        heapify(self._ends)

    def launch(self, row: int) -> None:
        """Start a workload that was just reported as started."""
        heappush(self._ends, self._end_of(row))

    def next_end(self) -> int | None:
        """Cell time of the next end, or None when nothing runs."""
        while self._ends and not self._current(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def take_ended(self, at_ms: int) -> list[int]:
        """Rows that end at or before `at_ms`, in order of time and row."""
        ended = []
        while self._ends and self._ends[0][0] <= at_ms:
            entry = heappop(self._ends)
            if self._current(entry):
                ended.append(entry[1])
        return ended

    def _current(self, entry: tuple[int, int, int]) -> bool:
        _, row, attempt = entry
        w = self._state.workloads
        return w.state[row] == WorkloadState.RUNNING and w.attempts[row] == attempt

    def _end_of(self, row: int) -> tuple[int, int, int]:
        w = self._state.workloads
        return w.started[row] + max(self.run_time(row) - w.kept[row], 1), row, w.attempts[row]

    def run_time(self, row: int) -> int:
        """Milliseconds the whole work takes, over all attempts."""
        w = self._state.workloads
        given: int = w.simulated[row]
        if given:
            return given
        draw = random.Random(f"{self.seed}/{w.ids[row]}")
        estimate = w.class_at(row).estimate_ms
        if estimate:
            # Users ask for more than they need; about one in twenty runs to its limit.
            return max(1, int(estimate * min(1.0, draw.lognormvariate(math.log(0.45), 0.5))))
        return max(1, int(MEDIAN_UNKNOWN_MS * draw.lognormvariate(0.0, 1.0)))
