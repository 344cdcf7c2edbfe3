"""What the engine remembers of the last minutes for people to look at: the event tail, waits, rates, a use curve.

None of it is part of the state: it starts empty after a restart, and decisions never read it.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from typing import Any

import numpy as np

from engine.model import events as ev
from engine.model.queries import Change, Changes
from engine.model.specs import WorkloadState
from engine.reads.event_words import words_of
from engine.state.cell_state import State
from engine.tables.columns import view

TAIL = 20_000
"""Events kept for readers that follow along."""
SAMPLES = 240
SAMPLE_EVERY_MS = 60_000
"""Cell milliseconds between samples of the use curve."""
WAITS = 1_000
Single = tuple[int, int, ev.AnyEvent]
ONE = (1).to_bytes(4, "little")


class Recent:
    """Fed with every event after it was applied."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tail: deque[tuple[int, int, ev.AnyEvent]] = deque()
        """(state version and cell ms after it, event)"""
        self._kept = 0
        """Versions in the tail."""
        self.samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES)
        """(cell ms, GPU or else CPU use in permille, queued workloads)"""
        self.waits: deque[int] = deque(maxlen=WAITS)
        """Milliseconds waited by the workloads started last."""
        self._minutes: deque[list[int]] = deque(maxlen=60)
        """[minute, started, finished]"""

    def note(self, event: ev.AnyEvent) -> None:
        state = self._state
        if isinstance(event, ev.Tick):
            return
        self._tail.append((state.version, state.now_ms, event))
        self._kept += event.versions
        while self._kept - self._tail[0][2].versions >= TAIL:
            self._kept -= self._tail.popleft()[2].versions
        if isinstance(event, ev.Placed):
            self._note_start(event.row)
            self._count(state.now_ms, 1, 1)
        elif isinstance(event, ev.PlacedMany):
            self._note_starts(np.frombuffer(event.rows, np.int32))
            self._count(state.now_ms, 1, event.versions)
        elif isinstance(event, ev.Finished):
            self._count(state.now_ms, 2, 1)
        elif isinstance(event, ev.FinishedMany):
            minutes, ends = np.unique(np.frombuffer(event.at_ms, np.int64) // 60_000, return_counts=True)
            for minute, count in zip(minutes.tolist(), ends.tolist(), strict=True):
                self._count(minute * 60_000, 2, count)

    def _note_start(self, row: int) -> None:
        w = self._state.workloads
        if w.attempts[row] == 1:
            self.waits.append(self._state.now_ms - w.submitted[row])

    def _note_starts(self, rows: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        w = self._state.workloads
        first = rows[view(w.attempts)[rows] == 1][-WAITS:]
        self.waits.extend((self._state.now_ms - view(w.submitted)[first]).tolist())

    def _count(self, at_ms: int, what: int, more: int) -> None:
        minute = at_ms // 60_000
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append([minute, 0, 0])
        self._minutes[-1][what] += more

    def last_hour(self, now_ms: int) -> tuple[int, int]:
        """(started, finished) in the last 60 minutes of cell time."""
        since = now_ms // 60_000 - 60
        rows = [row for row in self._minutes if row[0] > since]
        return sum(row[1] for row in rows), sum(row[2] for row in rows)

    def sample(self, now_ms: int) -> None:
        """Add to the use curve when it is time. A cell whose clock was never set has no curve."""
        if not now_ms:
            return
        if self.samples and now_ms < self.samples[-1][0] + SAMPLE_EVERY_MS:
            return
        capacity, used = totals(self._state)
        main = 2 if capacity[2] else 0
        use = used[main] * 1000 // capacity[main] if capacity[main] else 0
        self.samples.append((now_ms, use, self._state.workloads.state_counts[WorkloadState.QUEUED]))

    def changes(self, after: int, limit: int, now_ms: int) -> Changes:
        """The newest `limit` changes after version `after`, oldest first."""
        state = self._state
        found: list[Single] = []
        """The newest first."""
        fresh = 0
        for entry in reversed(self._tail):
            if entry[0] <= after:
                break
            singles = [single for single in _singles(*entry) if single[0] > after]
            fresh += len(singles)
            if len(found) < limit:
                found += reversed(singles)
        shown = found[: max(limit, 0)]
        items = tuple(self._change(*single) for single in reversed(shown))
        first = self._tail[0] if self._tail else None
        remembered = state.version + 1 if first is None else first[0] - first[2].versions + 1
        lost = max(0, remembered - 1 - after)
        return Changes(version=state.version, at_ms=now_ms, items=items, missed=fresh - len(shown) + lost)

    def _change(self, version: int, at_ms: int, event: ev.AnyEvent) -> Change:
        what, subject, detail = words_of(self._state, event)
        return Change(version=version, at_ms=at_ms, what=what, subject=subject, detail=detail)


def _singles(version: int, at_ms: int, event: ev.AnyEvent) -> list[Single]:
    """(version, cell ms, event) of each of the single events that one stands for."""
    first = version - event.versions + 1
    if isinstance(event, ev.SubmittedMany):
        return [(first + i, at_ms, ev.Submitted(spec)) for i, spec in enumerate(event.workloads)]
    if isinstance(event, ev.StartedMany):
        return [(first + i, at_ms, ev.Started(row)) for i, row in enumerate(memoryview(event.rows).cast("i"))]
    if isinstance(event, ev.PlacedMany):
        rows, nodes = memoryview(event.rows).cast("i"), memoryview(event.nodes).cast("i")
        placements = ((row, (ev.GroupPlacement(nodes[i : i + 1].tobytes(), ONE),)) for i, row in enumerate(rows))
        return [(first + i, at_ms, ev.Placed(row, groups)) for i, (row, groups) in enumerate(placements)]
    if isinstance(event, ev.FinishedMany):
        rows, times = memoryview(event.rows).cast("i"), memoryview(event.at_ms).cast("q")
        ticks = [1 if i and at != times[i - 1] else 0 for i, at in enumerate(times)]
        ticks[0] = event.ticks - sum(ticks)
        return [
            (first + i + moved, at, ev.Finished(row))
            for i, (row, at, moved) in enumerate(zip(rows, times, accumulate(ticks), strict=True))
        ]
    return [(version, at_ms, event)]


def totals(state: State) -> tuple[list[int], list[int]]:
    """(capacity, used) of the whole cell, in the order of RESOURCES."""
    used = [0, 0, 0, 0]
    for row, spec in enumerate(state.queues.specs):
        if not spec.parent:
            for i, quantity in enumerate(state.queues.used_vector(row)):
                used[i] += quantity
    return list(state.capacity.totals), used
