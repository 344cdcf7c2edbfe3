"""The expected ends of what is placed or runs, soonest first: promises and backfill count on them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

import numpy as np

from engine.model.columns import Mask, Rows, view

if TYPE_CHECKING:
    from engine.state.cell_state import State

End = tuple[int, int]
"""(expected end, cell ms; workload row)"""
Later = tuple[int, int, int, int, list[End]]
"""(end and row of the next of a run, number, how many of it were taken, the run)"""
MAX_SORTED = 8192
"""Entries kept in order while more are added."""


class ExpectedEnds:
    """Entries in order as far as somebody has looked; the rest is a heap of entries and of runs, which are entries that
    came together, in order. An entry is stale unless `State.ends_at` says otherwise: whoever meets a stale one drops
    it."""

    __slots__ = ("_at", "_later", "_number", "_rows", "_size")

    def __init__(self, entries: Iterable[End] = ()) -> None:
        self._at = array("q")
        self._rows = array("i")
        """The soonest, in order."""
        self._later: list[Later] = []
        """Heap of those that come after them."""
        self._size = 0
        """How many those are."""
        self._number = 0
        """Of the next entry of the heap: no two are equal."""
        self._push(sorted(entries))

    def copy(self) -> ExpectedEnds:
        other = ExpectedEnds()
        other._at, other._rows, other._later = self._at[:], self._rows[:], self._later[:]
        other._size, other._number = self._size, self._number
        return other

    def __len__(self) -> int:
        return len(self._at) + self._size

    def __iter__(self) -> Iterator[End]:
        """All entries, in no order."""
        yield from zip(self._at, self._rows, strict=True)
        for _, _, _, taken, run in self._later:
            yield from run[taken:]

    def add(self, end_ms: int, row: int) -> None:
        if not self._at or (end_ms, row) > (self._at[-1], self._rows[-1]):
            self._push([(end_ms, row)])
            return
        first, last = bisect_left(self._at, end_ms), bisect_right(self._at, end_ms)
        place = bisect_left(self._rows, row, first, last)
        self._at.insert(place, end_ms)
        self._rows.insert(place, row)
        if len(self._at) > MAX_SORTED:
            self.keep(lambda _: True)

    def add_many(self, entries: list[End]) -> None:
        entries.sort()
        if self._at:
            first = bisect_right(entries, (self._at[-1], self._rows[-1]))
            for entry in entries[:first]:
                self.add(*entry)
            entries = entries[first:]
        self._push(entries)

    def _push(self, run: list[End]) -> None:
        """Add entries that are in order, and come after those that somebody has looked at."""
        if run:
            heappush(self._later, (*run[0], self._number, 0, run))
            self._number += 1
            self._size += len(run)

    def _pass_first(self, count: int) -> None:
        """Take the first so many of the run that is the first of the heap off it."""
        _, _, number, taken, run = self._later[0]
        taken += count
        self._size -= count
        if taken < len(run):
            heapreplace(self._later, (*run[taken], number, taken, run))
        else:
            heappop(self._later)

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Drop the entries of rows that are not wanted."""
        self.__init__([entry for entry in self if wanted(entry[1])])  # type: ignore[misc]

    def drop_first(self, wanted: Callable[[int], bool]) -> None:
        """Drop the soonest entries, up to one of a row that is wanted."""
        place = next((place for place, row in enumerate(self._rows) if wanted(row)), len(self._rows))
        del self._at[:place], self._rows[:place]
        while not self._at and self._later:
            *_, taken, run = self._later[0]
            first = next((place for place in range(taken, len(run)) if wanted(run[place][1])), len(run))
            if first == taken:
                return
            self._pass_first(first - taken)

    def at(self, place: int) -> End | None:
        """The entry at that place in the order; None when there are not so many."""
        while place >= len(self._at):
            if not self._later:
                return None
            self._at.append(self._later[0][0])
            self._rows.append(self._later[0][1])
            self._pass_first(1)
        return self._at[place], self._rows[place]

    def drop(self, place: int) -> None:
        """Take out the entry at that place, which somebody has looked at."""
        del self._at[place], self._rows[place]

    def drop_of_first(self, which: Mask) -> None:
        """The same for those that are marked among as many of the first."""
        self._at = array("q", np.array(self._at[: len(which)])[~which].tobytes()) + self._at[len(which) :]
        self._rows = array("i", np.array(self._rows[: len(which)])[~which].tobytes()) + self._rows[len(which) :]

    def first(self, count: int) -> tuple[Rows, Rows]:
        """(ends, rows) of so many of the first, or of all."""
        self.at(count - 1)
        return np.array(self._at[:count]), np.array(self._rows[:count], np.int64)


def estimated_ends(state: State, rows: Rows) -> Rows:
    """Cell time at which each of these, which have tasks, ends by its estimate: it may have passed."""
    w, requests = state.workloads, state.requests
    requests.update(w.classes)
    cls = view(w.cls)[rows]
    left = view(requests.bound_ms)[cls] - view(w.kept)[rows] - view(w.done)[rows]
    slowed = -(-left * view(requests.tasks)[cls] // view(w.tasks)[rows])
    return np.asarray(view(w.rated)[rows] + np.maximum(slowed, 1))
