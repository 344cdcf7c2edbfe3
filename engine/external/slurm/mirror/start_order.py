"""The order in which Slurm would start what waits, as ranks that an engine keeps to.

An engine takes what is older first within a priority class, and older is what it was told of first. So jobs that wait
are gone through in Slurm's order (priority, then submission), and each time one is older than the one before it a new
rank begins. With the order of submission, which most queues are close to, there are few ranks. Those beyond the last
are in the order of their age.

A job keeps its rank as long as that can be: what comes in between takes one that is free there, and the first ranks are
left free for what comes ahead. Otherwise one urgent job would give thousands another rank, and each is to be told.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

from engine.external.slurm.records import Job

RANKS = 64
AHEAD = 16
"""Ranks that are left free for what comes ahead of all."""
Place = tuple[int, int]
"""(rank, age): who is less is started first."""
_LAST: Place = RANKS, 0


class Order:
    """Ages and ranks are kept over looks: names in the order in which they were first told."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._age = {name: age for age, name in enumerate(known)}
        self._next = len(self._age)
        self._rank: dict[str, tuple[int, int]] = {}
        """Name -> (tier, rank), as last given."""

    def note(self, names: Iterable[str]) -> None:
        """They are told next, in this order."""
        for name in names:
            if name not in self._age:
                self._age[name] = self._next
                self._next += 1

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        self._age = {name: age for name, age in self._age.items() if name in names}

    def ranks(self, waiting: Iterable[tuple[int, str, Job]]) -> dict[str, int]:
        """Workload id -> rank within its tier, the least first, of all (tier, workload id, job) that wait. What is new
        is noted."""
        ordered = sorted(waiting, key=lambda each: (-each[0], -(each[2].priority or 0), each[2].submit_s, each[2].id))
        self.note(name for _, name, _ in ordered)
        found: dict[str, int] = {}
        for tier, jobs in groupby(ordered, key=itemgetter(0)):
            names = [name for _, name, _ in jobs]
            ages = [self._age[name] for name in names]
            before = [self._rank.get(name) for name in names]
            kept = _kept([(was[1], age) if was and was[0] == tier else None
                          for was, age in zip(before, ages, strict=True)])  # fmt: skip
            ranks = _between(ages, kept) or _anew(ages)
            found |= zip(names, ranks, strict=True)
            self._rank |= {name: (tier, rank) for name, rank in zip(names, ranks, strict=True)}
        self._rank = {name: self._rank[name] for name in found}
        return found


def _kept(places: Sequence[Place | None]) -> list[Place | None]:
    """The most of them that are in order; None for the others."""
    ends: list[Place] = []
    """The least place at which a run of so many in order ends, and where that is."""
    at: list[int] = []
    previous = [-1] * len(places)
    for i, place in enumerate(places):
        if place is None:
            continue
        length = bisect_left(ends, place)
        previous[i] = at[length - 1] if length else -1
        if length == len(ends):
            ends.append(place)
            at.append(i)
        else:
            ends[length], at[length] = place, i
    found: list[Place | None] = [None] * len(places)
    i = at[-1] if at else -1
    while i >= 0:
        found[i] = places[i]
        i = previous[i]
    return found


def _between(ages: Sequence[int], kept: Sequence[Place | None]) -> list[int]:
    """Ranks in which those that are not kept find room between those that are; empty where there is none, or nobody is
    kept."""
    if not any(kept):
        return []
    ranks: list[int] = []
    low: Place | None = None
    at = 0
    while at < len(ages):
        place = kept[at]
        if place is not None:
            ranks.append(place[0])
            low, at = place, at + 1
            continue
        end = next((i for i in range(at, len(ages)) if kept[i] is not None), len(ages))
        high = (kept[end] if end < len(ages) else None) or _LAST
        run = _upwards(ages[at:end], low or (high[0] - 1 - _steps(ages[at:end]), -1))
        last = run[-1], ages[end - 1]
        if run[0] < 0 or (last >= high and high != _LAST):
            return []
        if high == _LAST:
            run = [min(rank, RANKS - 1) for rank in run]
            last = run[-1], ages[end - 1]
        ranks += run
        low, at = last, end
    return ranks


def _anew(ages: Sequence[int]) -> list[int]:
    first = max(min(AHEAD, RANKS - 1 - _steps(ages)), 0)
    return [min(rank, RANKS - 1) for rank in _upwards(ages, (first, -1))]


def _upwards(ages: Sequence[int], low: Place) -> list[int]:
    """Ranks from that place on, each the least that goes."""
    ranks = []
    rank, before = low
    for age in ages:
        rank += age < before
        ranks.append(rank)
        before = age
    return ranks


def _steps(ages: Sequence[int]) -> int:
    """How often one is older than the one before it."""
    return sum(b < a for a, b in pairwise(ages))
