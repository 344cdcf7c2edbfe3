"""The order in which Slurm would start what waits, as ranks that an engine keeps to.

An engine takes what is older first within a priority class, and older is what it was told of first. So jobs that wait
are gone through in Slurm's order (priority, then submission), and each time one is older than the one before it a new
rank begins. With the order of submission, which most queues are close to, there are few ranks. Those beyond the last
are in the order of their age.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from engine.slurm.records import Job

RANKS = 32


class Order:
    """Ages are kept over looks: names in the order in which they were first told."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._age = {name: age for age, name in enumerate(known)}
        self._next = len(self._age)

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
        """Workload id -> rank within its tier, 0 first, of all (tier, workload id, job) that wait. What is new is
        noted."""
        ordered = sorted(waiting, key=lambda each: (-each[0], -(each[2].priority or 0), each[2].submit_s, each[2].id))
        self.note(name for _, name, _ in ordered)
        found: dict[str, int] = {}
        of_tier, rank, before = -1, 0, -1
        for tier, name, _ in ordered:
            age = self._age[name]
            if tier != of_tier:
                of_tier, rank = tier, 0
            elif age < before and rank < RANKS - 1:
                rank += 1
            found[name], before = rank, age
        return found
