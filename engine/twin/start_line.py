"""The line for room or for quota: the time at which what is freed covers all that goes first, and one more.

In units of what is asked for. What goes first starts in its order, as soon as it is covered, and gives back what it
took when it ends. A line that is longer than MAX_ONE_BY_ONE is taken as a whole: by a time it has started as many as
then run and as many as have ended, which is what was free, integrated over time, by the mean run time (Little's law).
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from engine.model.columns import Numbers
from engine.model.spec_parts import DAY_MS
from engine.state.run_times import Parts

MAX_ONE_BY_ONE = 128
NEVER_MS = 14 * DAY_MS
"""What lies further ahead is not told apart."""
_ROUNDING = 1e-9


class Supply(NamedTuple):
    """What is free now, and what each end gives back, in one draw of the run times."""

    free: float
    ends_ms: Numbers
    """Ascending."""
    gains: Parts

    def times(self, factor: float) -> Supply:
        """The same in other units."""
        return Supply(self.free * factor, self.ends_ms, self.gains * factor)


def supply(free: float, gains: Parts, ends_ms: Numbers) -> Supply:
    """In any order; ends without a gain are left out."""
    there = np.flatnonzero(gains)
    order = there[np.argsort(ends_ms[there], kind="stable")]
    return Supply(free, ends_ms[order], gains[order])


def wait_ms(have: Supply, sizes: Parts, run_ms: Numbers, own: float) -> int:
    """Milliseconds until there are `own` units beyond what goes first, which takes `sizes` for `run_ms` each, in its
    order; NEVER_MS where that is not foreseen."""
    found = _one_by_one if len(sizes) <= MAX_ONE_BY_ONE else _as_a_whole
    return round(min(found(have, sizes, run_ms, own), NEVER_MS))


def _one_by_one(have: Supply, sizes: Parts, run_ms: Numbers, own: float) -> float:
    ends = _ends(have)
    following = next(ends, None)
    started: list[tuple[float, float]] = []
    """Heap of (end, size) of what went first."""
    free, now = have.free, 0.0
    for size, runs in zip([*sizes.tolist(), own], [*run_ms.tolist(), 0], strict=True):
        while free < size - _ROUNDING:
            if started and (following is None or started[0][0] <= following[0]):
                end, gain = heappop(started)
            elif following is not None:
                end, gain = following
                following = next(ends, None)
            else:
                return NEVER_MS
            now, free = max(now, end), free + gain
        free -= size
        heappush(started, (now + runs, size))
    return now


def _ends(have: Supply) -> Iterator[tuple[float, float]]:
    """A few at a time: most are never looked at."""
    for low in range(0, len(have.ends_ms), 64):
        part = slice(low, low + 64)
        yield from zip(have.ends_ms[part].tolist(), have.gains[part].tolist(), strict=True)


def _as_a_whole(have: Supply, sizes: Parts, run_ms: Numbers, own: float) -> float:
    size = float(sizes.sum())
    mean_ms = max(float(np.dot(sizes, run_ms)) / max(size, _ROUNDING), 1.0)
    free = np.maximum(have.free + np.concatenate(([0.0], np.cumsum(have.gains))), 0.0)
    times = np.concatenate(([0.0], have.ends_ms, [max(float(NEVER_MS), float(have.ends_ms.max(initial=0)))]))
    free = np.append(free, free[-1])
    before = np.concatenate(([0.0], np.cumsum(free[:-1] * np.diff(times)))) / mean_ms
    enough = np.flatnonzero(before + free >= size)
    if not len(enough):
        return NEVER_MS
    at = int(enough[0])
    # Between two ends as many are free as after the first of them.
    rate = free[at - 1] / mean_ms if at else 0.0
    early = times[at - 1] + max(size - before[at - 1] - free[at - 1], 0.0) / rate if rate else times[at]
    start = min(float(early), float(times[at]))
    taken = min(size, float(free[at]))
    room = np.flatnonzero(free >= own - _ROUNDING)
    if not len(room):
        return NEVER_MS
    return max(start + mean_ms * min(own / max(taken, own), 1.0), float(times[room[0]]))
