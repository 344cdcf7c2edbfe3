"""How long something took, counted in bounds: what a histogram of Prometheus is made of, without its library."""

from __future__ import annotations

from bisect import bisect_left

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds, seconds; what took longer than the last is counted too."""


class DurationHistogram:
    """Written by one thread and read by any: each number is right by itself."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._counts = [0] * (len(BOUNDS_S) + 1)

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound as text, how many took no longer); the last bound is `+Inf`."""
        found, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found
