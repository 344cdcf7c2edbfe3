"""Members of a gang that fall behind the others, by what agents report of their progress. Outside the journal: nothing
follows from it but advice.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from engine.state import State

SLOW_PERMILLE = 700
"""Progress below this part of the gang's median is slow."""
SAMPLES = 3
"""So many slow samples in a row make a straggler."""
LEAST_MEMBERS = 3
"""Members that must have reported before anyone is judged by their median."""
LEAST_MEDIAN = 10
"""Permille of work done by the median below which nobody is judged: a whole permille decides too much there."""
MOST_MEMBERS = 200_000
"""Members of all gangs that are remembered. Beyond that the gangs that reported longest ago are forgotten."""


class SampleOf(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one task of a workload is."""

    workload: str
    task: int
    done_permille: int


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    workload: str
    task: int
    done_permille: int
    median_permille: int
    """What the median member of the gang has done."""
    samples: int
    """Slow samples in a row."""
    members: int
    """Members that report."""


class _Gang:
    """One attempt of a workload, as far as its members report.

    Members are compared once all have reported anew, or one for the second time: what was reported at different times
    is not comparable.
    """

    __slots__ = ("attempt", "done", "median", "node", "round", "slow")

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.node: dict[int, int] = {}
        """Task -> node, of all that ever reported."""
        self.round: dict[int, int] = {}
        """Task -> permille done, of those that reported since members were last compared."""
        self.done: dict[int, int] = {}
        """The same of when they were last compared."""
        self.median = 0
        self.slow: dict[int, int] = {}
        """Task -> slow samples in a row, where there is any."""

    def take(self, task: int, node: int, permille: int, tasks: int) -> None:
        """`tasks`: how many members it has."""
        if task in self.round and 2 * len(self.round) >= len(self.node):
            self._compare()
        self.node[task] = node
        self.round[task] = permille
        if len(self.round) == tasks:
            self._compare()

    def _compare(self) -> None:
        self.done, self.round = self.round, {}
        self.median = int(np.median(np.fromiter(self.done.values(), np.int64)))
        judged = len(self.done) >= LEAST_MEMBERS and self.median >= LEAST_MEDIAN
        for task, permille in self.done.items():
            if judged and permille * 1000 < SLOW_PERMILLE * self.median:
                self.slow[task] = self.slow.get(task, 0) + 1
            else:
                self.slow.pop(task, None)


class Progress:
    """What the members of running gangs reported last."""

    def __init__(self) -> None:
        self._gangs: dict[int, _Gang] = {}
        """Workload row -> its gang; the one that reported longest ago first."""
        self._members = 0
        self._numbers: dict[int, int] = {}
        """Node -> number of its last report."""

    def take(self, state: State, node: int, number: int, samples: Iterable[SampleOf]) -> int:
        """Samples of tasks on the node. Returns how many were taken: those of work that does not run there are not,
        nor any of a report that is not later than the last of the node."""
        if number <= self._numbers.get(node, 0):
            return 0
        self._numbers[node] = number
        w, a = state.workloads, state.allocations
        here = {a.workload[i] for i in a.on_node(node)}
        taken = 0
        for sample in samples:
            row = w.row_of.get(sample.workload, -1)
            if row not in here or not (0 <= sample.task < w.tasks[row]) or not 0 <= sample.done_permille <= 1000:
                continue
            gang = self._gangs.pop(row, None)
            if gang is None or gang.attempt != w.attempts[row]:
                self._members -= len(gang.node) if gang else 0
                gang = _Gang(w.attempts[row])
            self._gangs[row] = gang
            self._members -= len(gang.node)
            gang.take(sample.task, node, sample.done_permille, w.tasks[row])
            self._members += len(gang.node)
            taken += 1
        while self._members > MOST_MEMBERS:
            self._members -= len(self._gangs.pop(next(iter(self._gangs))).node)
        return taken

    def forget(self, node: int) -> None:
        """Another agent reports for the node from now on."""
        self._numbers.pop(node, None)

    def stragglers(self, state: State) -> list[Straggler]:
        """Those of gangs that still run as they did, slowest first."""
        w, a = state.workloads, state.allocations
        found = []
        for row, gang in list(self._gangs.items()):
            if not state.is_bound(row) or w.attempts[row] != gang.attempt:
                self._members -= len(self._gangs.pop(row).node)
                continue
            for task, samples in gang.slow.items():
                node = gang.node[task]
                if samples >= SAMPLES and task in gang.done and any(a.workload[i] == row for i in a.on_node(node)):
                    found.append(
                        Straggler(
                            node=state.capacity.node_ids[node],
                            workload=w.ids[row],
                            task=task,
                            done_permille=gang.done[task],
                            median_permille=gang.median,
                            samples=samples,
                            members=len(gang.done),
                        )
                    )
        return sorted(found, key=lambda s: (s.done_permille * 1000 // s.median_permille, s.node, s.workload, s.task))
