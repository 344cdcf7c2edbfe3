"""The expected ends of what is placed or runs, soonest first: promises and backfill count on them."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from engine.model.columns import Mask, Rows, view

if TYPE_CHECKING:
    from engine.state.cell_state import State

End = tuple[int, int]
"""(expected end, cell ms; workload row)"""
MAX_SORTED = 8192
"""Entries kept in order while more are added."""


class ExpectedEnds:
    """Entries in order as far as somebody has looked; the rest is a heap. An entry is stale unless `State.ends_at` says
    otherwise: whoever meets a stale one drops it."""

    __slots__ = ("_at", "_later", "_rows")

    def __init__(self, entries: Iterable[End] = ()) -> None:
        self._at = array("q")
        self._rows = array("i")
        """The soonest, in order."""
        self._later = list(entries)
        """Heap of those that come after them."""
        heapify(self._later)

    def copy(self) -> ExpectedEnds:
        other = ExpectedEnds()
        other._at, other._rows, other._later = self._at[:], self._rows[:], self._later[:]
        return other

    def __len__(self) -> int:
        return len(self._at) + len(self._later)

    def __iter__(self) -> Iterator[End]:
        """All entries, in no order."""
        yield from zip(self._at, self._rows, strict=True)
        yield from self._later

    def add(self, end_ms: int, row: int) -> None:
        if not self._at or (end_ms, row) > (self._at[-1], self._rows[-1]):
            heappush(self._later, (end_ms, row))
            return
        first, last = bisect_left(self._at, end_ms), bisect_right(self._at, end_ms)
        place = bisect_left(self._rows, row, first, last)
        self._at.insert(place, end_ms)
        self._rows.insert(place, row)
        if len(self._at) > MAX_SORTED:
            self.keep(lambda _: True)

    def add_many(self, entries: list[End]) -> None:
        if len(entries) * 8 > len(self):
            self.__init__([*self, *entries])  # type: ignore[misc]
        else:
            for entry in entries:
                self.add(*entry)

    def keep(self, wanted: Callable[[int], bool]) -> None:
        """Drop the entries of rows that are not wanted."""
        self.__init__([entry for entry in self if wanted(entry[1])])  # type: ignore[misc]

    def at(self, place: int) -> End | None:
        """The entry at that place in the order; None when there are not so many."""
        while place >= len(self._at):
            if not self._later:
                return None
            end_ms, row = heappop(self._later)
            self._at.append(end_ms)
            self._rows.append(row)
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
