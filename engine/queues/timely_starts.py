"""Which starts came in time, minute by minute, for the queues that have an objective. Derived: stored nowhere."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.model.base import MINUTE_MS

if TYPE_CHECKING:
    from engine.queues.tree import QueueTree

    Numbers = np.ndarray[Any, np.dtype[Any]]

MINUTES = 360
"""That are kept: six hours."""


class Starts:
    """Counts of the last minutes. `of` is None until `engine.state.objectives` has read from the histories what was
    before: a replay counts nothing."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[int, deque[list[int]]] | None = None
        """Row of a queue with an objective -> [minute, started, of these late], oldest first."""

    def note(self, tree: QueueTree, queue: int, wait_ms: int, now_ms: int) -> None:
        """A workload of the queue starts now, `wait_ms` after it could have."""
        if self.of:
            for vertex in tree.path[queue]:
                if vertex in self.of:
                    late = wait_ms > tree.specs[vertex].start_within_ms
                    self.count(vertex, now_ms // MINUTE_MS, 1, int(late))

    def note_many(self, tree: QueueTree, queues: Numbers, waits_ms: Numbers, now_ms: int) -> None:
        """The same of many: the queue and the wait of each."""
        for vertex in self.of or ():
            here = waits_ms[below(tree, vertex)[queues]]
            if len(here):
                late = int((here > tree.specs[vertex].start_within_ms).sum())
                self.count(vertex, now_ms // MINUTE_MS, len(here), late)

    def count(self, vertex: int, minute: int, started: int, late: int) -> None:
        """Add to a minute, which is not before the last one."""
        assert self.of is not None
        minutes = self.of[vertex]
        if not minutes or minutes[-1][0] != minute:
            minutes.append([minute, 0, 0])
            while minutes[0][0] <= minute - MINUTES:
                minutes.popleft()
        minutes[-1][1] += started
        minutes[-1][2] += late

    def within(self, vertex: int, minutes: int, now_ms: int) -> tuple[int, int]:
        """(started, of these late) in the last `minutes` minutes, the present one included."""
        assert self.of is not None
        first = now_ms // MINUTE_MS - minutes
        rows = [row for row in self.of[vertex] if row[0] > first]
        return sum(row[1] for row in rows), sum(row[2] for row in rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Starts) and self.of == other.of

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Starts:
        other = Starts()
        if self.of is not None:
            other.of = {vertex: deque(row[:] for row in minutes) for vertex, minutes in self.of.items()}
        return other


def below(tree: QueueTree, vertex: int) -> Numbers:
    """For every queue whether it is the vertex or below it."""
    return np.fromiter((vertex in path for path in tree.path), bool, len(tree.path))
