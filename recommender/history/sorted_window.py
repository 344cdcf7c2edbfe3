"""The last values of something, at hand in order of magnitude."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


class SortedWindow:
    """The last `size` values, also in order of magnitude."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: float) -> None:
        if len(self._recent) == self._size:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(value)
        insort(self._sorted, value)

    def at_rank(self, rank: int) -> float:
        """The rank-th smallest from 1; ranks outside are the least or greatest value."""
        return self._sorted[min(max(rank, 1), len(self._sorted)) - 1]

    def median(self) -> float:
        """The lower of the two middle values when their number is even."""
        return self.at_rank((len(self) + 1) // 2)
