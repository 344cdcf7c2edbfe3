"""Distributions of run times, from which the twin draws instead of knowing the future.

Times are milliseconds of work at the speed of all tasks, over all attempts, as in `Workloads.work_done`.
"""

from __future__ import annotations

import math
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Protocol

import numpy as np

from engine.model.columns import Numbers, view
from engine.model.external_cells import PastRun, stem
from engine.model.specs import WorkloadState
from engine.state.cell_state import State

MIN_SAMPLES = 20
"""Finished runs of likes that are enough to go by."""
MIN_OF_CLASS = 8
"""Samples of the very same request in the same queue: they are closer likes, so fewer will do."""
MAX_SAMPLES = 20_000
"""The last so many finished runs are looked at."""
MAX_TIMES_LONGER = 10
"""A workload that has outlived all of its likes runs at most this many times its present run time in all."""
_PERMILLES = range(5, 1000, 10)
_MILLION = 1_000_000
_NO_LIMIT = 2**62
Whole = Numbers
"""Integers, one for each of several workloads."""
Parts = np.ndarray[Any, np.dtype[np.float64]]
"""Shares from 0 to 1."""


class RunTimes(Protocol):
    """Likely run times of workloads. A recommender may fill it from its own models."""

    hangs: bool = False
    """True if some work has kin."""

    def draw(self, row: int, share: float, beyond_ms: int) -> int:
        """The whole work of the workload such that `share` (0 to 1) of the likely runs take no longer, among those
        that take longer than `beyond_ms`, which it has done already. Always above `beyond_ms`; never less than 1."""
        ...

    def draw_many(self, rows: Whole, shares: Parts, beyond_ms: Whole) -> Whole:
        """The same for several."""
        each = zip(rows.tolist(), shares.tolist(), beyond_ms.tolist(), strict=True)
        return np.array([self.draw(row, share, beyond) for row, share, beyond in each], np.int64)

    def kin(self, row: int) -> str:
        """Name of the work that its run time hangs together with, since what is not known of one is not known of any;
        empty: it is drawn by itself."""
        return ""

    def basis(self) -> str:
        """The source of the times, in words; empty where it needs no mention."""
        return ""


def quantile(likely: array[int], share: float, beyond: int) -> int:
    """The value at `share` among those above `beyond`, linear between neighbours; `likely` is in ascending order.

    Beyond the last value: a Pareto tail with index 2 from `beyond` on, as for a thing that lasts the longer the longer
    it has lasted, cut at MAX_TIMES_LONGER.
    """
    first = bisect_right(likely, beyond)
    left = len(likely) - first
    if not left:
        return max(beyond + 1, int(beyond * min(1 / math.sqrt(1 - share), MAX_TIMES_LONGER)))
    at = share * (left + 1)
    below = int(at)
    low = beyond if below == 0 else likely[first + below - 1]
    if below >= left:
        return max(likely[-1], beyond + 1)
    if below == 0 and beyond <= 0:
        low = likely[first]
    high = likely[first + below]
    return max(int(low + (high - low) * (at - below)), beyond + 1)


def quantiles(likely: Sequence[array[int]], which: Whole, shares: Parts, beyond: Whole) -> Whole:
    """`quantile` of `likely[which]` at every share, to the same bit."""
    counts = np.array([len(values) for values in likely])
    flat, ends = np.concatenate([view(values) for values in likely]), np.cumsum(counts)
    begin, last = (ends - counts)[which], ends[which] - 1
    seen = [bisect_right(likely[i], value) for i, value in zip(which.tolist(), beyond.tolist(), strict=True)]
    first = begin + np.array(seen, np.int64)
    left = last + 1 - first
    at = shares * (left + 1)
    below = at.astype(np.int64)
    low = np.where((below == 0) & (beyond > 0), beyond, flat[np.minimum(first + np.maximum(below - 1, 0), last)])
    high = flat[np.minimum(first + below, last)]
    found = (low + (high - low) * (at - below)).astype(np.int64)
    found = np.where(below >= left, flat[last], found)
    longer = beyond * np.minimum(1 / np.sqrt(1 - shares), MAX_TIMES_LONGER)
    drawn: Whole = np.maximum(np.where(left == 0, longer.astype(np.int64), found), beyond + 1)
    return drawn


def uniform(seed: int, name: str) -> float:
    """A number from 0 to 1 that is the same for the same seed and name, wherever it is drawn (splitmix64 of CRC-32)."""
    z = (zlib.crc32(name.encode()) + (seed + 1) * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    z = (z ^ z >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return ((z ^ z >> 31) >> 11) / 2**53


def uniforms(seed: int, names: Iterable[str]) -> Parts:
    """`uniform` of every name."""
    z = np.array([zlib.crc32(name.encode()) for name in names], np.uint64)
    z += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return ((z ^ z >> np.uint64(31)) >> np.uint64(11)) / 2**53


def together(seed: int, names: Iterable[str], kin: Iterable[str], own: Parts) -> Parts:
    """`own` shares, and for HANGS of the work that has kin the one share of its kin: with one draw for each by itself a
    long queue would come out the same in every rehearsal, as if the mean of what nobody knows were known."""
    found = own.copy()
    for at, (name, of) in enumerate(zip(names, kin, strict=True)):
        if of and uniform(~seed, name) < HANGS:
            found[at] = uniform(seed, of)
    return found


def _lognormal(median: float, sigma: float, most: float) -> array[int]:
    """Quantiles of a lognormal distribution, in millionths, cut at `most`."""
    normal = NormalDist()
    values = (median * math.exp(sigma * normal.inv_cdf(permille / 1000)) for permille in _PERMILLES)
    return array("q", [int(min(value, most) * _MILLION) for value in values])


OF_ESTIMATE = _lognormal(0.45, 0.5, 1.0)
"""Run time as a part of what the owner asked for, when nothing has finished yet: people ask for more than they need,
and few runs reach their limit."""
HANGS = 0.7
"""Share of one user's jobs that use about the same part of their limits: the next is mostly like the last two (Tsafrir,
Etsion, Feitelson 2007).
"""
OF_LIMIT = array("q", [_MILLION * part // 1000 for part in (*range(2, 22, 2), *range(25, 1000, 12), *[1000] * 9)])
"""Run time as a part of the time limit by which a cluster ends jobs, when nothing has finished yet: some fail at once,
some run into the limit, and the rest is anything between (Mu'alem, Feitelson 2001; Tsafrir and others 2005)."""
AS_OF_LIMIT = 20
"""Weight of one run that has finished, in values of OF_LIMIT."""
UNKNOWN_MEDIAN_MS = 30 * 60_000
UNKNOWN = _lognormal(1.0, 1.0, 1000.0)
"""Distribution in parts of UNKNOWN_MEDIAN_MS, when there is no estimate either."""


def _grouped(queue: Whole, other: Whole, values: Whole) -> dict[tuple[int, int], array[int]]:
    """The values of each queue and other number, in ascending order."""
    order = np.lexsort((values, other, queue))
    queue, other, values = queue[order], other[order], values[order].astype(np.int64)
    begins = np.flatnonzero((np.diff(queue, prepend=-9) != 0) | (np.diff(other, prepend=-9) != 0)).tolist()
    return {
        (int(queue[begin]), int(other[begin])): array("q", values[begin:end].tobytes())
        for begin, end in pairwise([*begins, len(values)])
    }


def _enough(found: dict[tuple[int, int], array[int]], least: int) -> dict[tuple[int, int], array[int]]:
    """The groups with so many values."""
    return {key: values for key, values in found.items() if len(values) >= least}


def _mixed(found: dict[tuple[int, int], array[int]]) -> dict[tuple[int, int], array[int]]:
    """The values mixed with OF_LIMIT, the less of it the more values there are."""
    return {
        key: values if len(values) >= MIN_SAMPLES else array("q", sorted(values * AS_OF_LIMIT + OF_LIMIT))
        for key, values in found.items()
    }


def _finished(state: State) -> tuple[Whole, Whole]:
    """(rows of the last that finished, in the order of their ends; the work of each, milliseconds)"""
    w = state.workloads
    if not w.ids:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = np.flatnonzero(view(w.state) == WorkloadState.FINISHED)
    rows = rows[np.argsort(view(w.ended)[rows], kind="stable")[-MAX_SAMPLES:]]
    return rows, np.maximum(view(w.kept)[rows] + view(w.done)[rows], 1)


class HistoricRunTimes(RunTimes):
    """Run times from the finished runs of this cell: of the same request in the same queue; else, as a part of the
    owner's estimate, of the same queue and tenant, of the queue, of the cell. Where another scheduler decides, first of
    all of the same name, team and tenant; and earlier runs from its accounting count too. Running work is not seen, so
    long runs are under-represented while they go on.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        w = state.workloads
        rows, work = _finished(state)
        queue, tenant, cls = (view(column)[rows] if w.ids else rows for column in (w.queue, w.tenant, w.cls))
        estimates = np.array([each.estimate_ms for each in w.classes], np.int64)[cls]
        told = np.flatnonzero(estimates)
        of_estimate = [queue[told], tenant[told], work[told] * _MILLION // estimates[told]]
        self._by_limit = state.settings.decided_by != "muster"
        """The estimates are time limits, which say little of how long work runs."""
        self._past = len(state.past.runs)
        past = [run for run in state.past.runs if run.limit_ms]
        if past:
            also = (
                [state.queues.row_of.get(run.queue, -2) for run in past],
                [w.tenants.index.get(run.tenant, -2) for run in past],
                [max(run.run_ms, 1) * _MILLION // run.limit_ms for run in past],
            )
            of_estimate = [np.concatenate(pair) for pair in zip(of_estimate, also, strict=True)]
        in_queue, of_tenant, shares = of_estimate
        any_ = np.full(len(shares), -1)
        known = (_grouped(in_queue, of_tenant, shares), _grouped(in_queue, any_, shares), _grouped(any_, any_, shares))
        self._of_class = _enough(_grouped(cls, queue, work), MIN_OF_CLASS)
        self._stems: dict[tuple[int, int, str], int] = {}
        """(tenant, team, stem of the name) -> where in `_of_stem` what it ran is."""
        self._of_stem: list[array[int]] = []
        if self._by_limit:
            self._learn_stems(rows.tolist(), work.tolist(), state.past.runs)
        self.hangs = self._by_limit
        every = {key: values for each in known for key, values in each.items()}
        self._known = {key: len(values) for key, values in every.items()}
        self._shares = _mixed(every) if self._by_limit else _enough(every, MIN_SAMPLES)
        """(queue, tenant), (queue, -1) or (-1, -1) -> work in millionths of the estimate."""

    def _learn_stems(self, rows: list[int], work: list[int], past: list[PastRun]) -> None:
        w = self._state.workloads
        found: dict[tuple[int, int, str], list[int]] = {}
        for run in past:
            key = w.tenants.index.get(run.tenant, -2), w.teams.index.get(run.team, -2), stem(run.name)
            found.setdefault(key, []).append(max(run.run_ms, 1))
        for row, ms in zip(rows, work, strict=True):
            found.setdefault((w.tenant[row], w.team[row], stem(w.names[row])), []).append(ms)
        for key, ran in found.items():
            if key[2] and len(ran) >= MIN_OF_CLASS:
                self._stems[key] = len(self._of_stem)
                self._of_stem.append(array("q", sorted(ran)))

    def _stem_of(self, row: int) -> int:
        """The position of its likes in `_of_stem`; -1: none."""
        if not self._stems:
            return -1
        w = self._state.workloads
        return self._stems.get((w.tenant[row], w.team[row], stem(w.names[row])), -1)

    def kin(self, row: int) -> str:
        w = self._state.workloads
        kind = w.queue[row], w.tenant[row]
        if not self.hangs or self._known.get(kind, 0) >= MIN_SAMPLES or (w.cls[row], kind[0]) in self._of_class:
            return ""
        if self._stem_of(row) >= 0:
            return ""
        return f"{kind[0]}/{kind[1]}"

    def basis(self) -> str:
        if not self._by_limit:
            return ""
        runs = self._known.get((-1, -1), 0)
        if runs >= MIN_SAMPLES:
            past = f", {self._past:,} of them before the mirror, by accounting" if self._past else ""
            how = "of the same name, else as parts of the time limits"
            return f"run times as {runs:,} finished runs had them{past}: {how}"
        few = f"of {runs:,} finished runs, which are few, and " if runs else "of no finished run: "
        return f"run times {few}anything up to each time limit"

    def draw(self, row: int, share: float, beyond_ms: int) -> int:
        w = self._state.workloads
        likely, unit = self._likely((w.cls[row], w.queue[row], w.tenant[row], self._stem_of(row)))
        drawn = quantile(likely, share, beyond_ms * _MILLION // unit) * unit // _MILLION
        return max(min(drawn, self._most(w.cls[row])), beyond_ms + 1)

    def draw_many(self, rows: Whole, shares: Parts, beyond_ms: Whole) -> Whole:
        if not len(rows):
            return np.zeros(0, np.int64)
        w = self._state.workloads
        stems = np.array([self._stem_of(row) for row in rows.tolist()] if self._stems else [-1] * len(rows), np.int64)
        columns = (view(w.cls)[rows], view(w.queue)[rows], view(w.tenant)[rows], stems)
        kinds = np.zeros(len(rows), np.int64)
        for column in columns:
            kinds = kinds * (int(column.max(initial=0)) + 2) + column + 1
        _, firsts, which = np.unique(kinds, return_index=True, return_inverse=True)
        distinct = np.stack(columns, axis=1)[firsts]
        likely: dict[int, tuple[array[int], int]] = {}
        """By identity: the values, and their number. Many kinds have the same."""
        numbers, units = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
        for i, kind in enumerate(distinct.tolist()):
            values, units[i] = self._likely(tuple(kind))
            numbers[i] = likely.setdefault(id(values), (values, len(likely)))[1]
        number, unit = numbers[which], units[which]
        drawn = quantiles([values for values, _ in likely.values()], number, shares, beyond_ms * _MILLION // unit)
        most = np.array([self._most(cls) for cls in distinct[:, 0].tolist()], np.int64)[which]
        found: Whole = np.maximum(np.minimum(drawn * unit // _MILLION, most), beyond_ms + 1)
        return found

    def _most(self, cls: int) -> int:
        """The longest run of the class: its estimate, where estimates are time limits."""
        estimate = self._state.workloads.classes[cls].estimate_ms if self._by_limit else 0
        return estimate or _NO_LIMIT

    def _likely(self, kind: tuple[int, int, int, int]) -> tuple[array[int], int]:
        """For a class row, queue, tenant and place in `_of_stem`: likely run times, ascending, and the milliseconds of
        which they are millionths.
        """
        cls, queue, tenant, named = kind
        if named >= 0:
            return self._of_stem[named], _MILLION
        seen = self._of_class.get((cls, queue))
        if seen is not None:
            return seen, _MILLION
        estimate = self._state.workloads.classes[cls].estimate_ms
        if not estimate:
            return UNKNOWN, UNKNOWN_MEDIAN_MS
        shares = self._shares
        known = shares.get((queue, tenant)) or shares.get((queue, -1)) or shares.get((-1, -1))
        return known or (OF_LIMIT if self._by_limit else OF_ESTIMATE), estimate
