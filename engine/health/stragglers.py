"""Members of a gang that fall behind the others, by what agents report of their progress. Outside the journal: nothing
follows from it but advice.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from engine.state.cell_state import State

SLOW_PERMILLE = 700
"""Progress below this part of the gang's median is slow."""
SAMPLES = 3
"""So many slow samples in a row make a straggler."""
MIN_MEMBERS = 3
"""Members that must have reported before anyone is judged by their median."""
MIN_MEDIAN = 10
"""Permille of work done by the median below which nobody is judged: a whole permille decides too much there."""
STILL_MS, STILL_STEPS = 15 * 60_000, 3
"""A gang that has not come on for so long, and for as long as so many permille of its estimate take, stands still."""
MAX_MEMBERS = 200_000
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


class StalledGang(msgspec.Struct, frozen=True, kw_only=True):
    """A gang whose members report, and none of them more than before."""

    workload: str
    since_ms: int
    """Cell time at which one of them last had done more."""
    members: int
    """That report."""


class _Gang:
    """One attempt of a workload, as far as its members report.

    Members are compared once all have reported anew, or one for the second time: what was reported at different times
    is not comparable.
    """

    __slots__ = ("attempt", "done", "heard_ms", "median", "most", "moved_ms", "node", "round", "slow")

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
        self.most: dict[int, int] = {}
        """Task -> the most that it ever reported."""
        self.heard_ms = self.moved_ms = 0
        """When one of them last reported anything, and last more than before."""

    def take(self, task: int, node: int, permille: int, tasks: int, now_ms: int) -> None:
        """`tasks`: how many members it has."""
        self.heard_ms = now_ms
        if permille > self.most.get(task, -1):
            self.most[task], self.moved_ms = permille, now_ms
        if task in self.round and 2 * len(self.round) >= len(self.node):
            self._compare()
        self.node[task] = node
        self.round[task] = permille
        if len(self.round) == tasks:
            self._compare()

    def _compare(self) -> None:
        self.done, self.round = self.round, {}
        self.median = int(np.median(np.fromiter(self.done.values(), np.int64)))
        judged = len(self.done) >= MIN_MEMBERS and self.median >= MIN_MEDIAN
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

    def take(self, state: State, node: int, number: int, samples: Iterable[SampleOf], now_ms: int | None = None) -> int:
        """Samples of tasks on the node. Returns how many were taken: those of work that does not run there are not,
        nor any of a report that is not later than the last of the node. `now_ms`: None for the state's own time."""
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
            at_ms = state.now_ms if now_ms is None else now_ms
            gang.take(sample.task, node, sample.done_permille, w.tasks[row], at_ms)
            self._members += len(gang.node)
            taken += 1
        while self._members > MAX_MEMBERS:
            self._members -= len(self._gangs.pop(next(iter(self._gangs))).node)
        return taken

    def forget(self, node: int) -> None:
        """Another agent reports for the node from now on."""
        self._numbers.pop(node, None)

    def still(self, state: State, now_ms: int) -> list[StalledGang]:
        """Gangs that still run as they did, were heard of within STILL_MS, and have not come on for as long, nor for as
        long as STILL_STEPS permille of their estimate take; longest first."""
        w = state.workloads
        found = []
        for row, gang in self._gangs.items():
            least_ms = max(STILL_MS, STILL_STEPS * w.class_at(row).estimate_ms // 1000)
            heard = now_ms - gang.heard_ms <= STILL_MS
            if state.is_bound(row) and w.attempts[row] == gang.attempt and heard and now_ms - gang.moved_ms >= least_ms:
                found.append(StalledGang(workload=w.ids[row], since_ms=gang.moved_ms, members=len(gang.most)))
        return sorted(found, key=lambda one: (one.since_ms, one.workload))

    def moves(self, state: State, now_ms: int) -> list[str]:
        """Gangs that still run as they did and have come on within STILL_MS."""
        w = state.workloads
        return [
            w.ids[row]
            for row, gang in self._gangs.items()
            if state.is_bound(row) and w.attempts[row] == gang.attempt and now_ms - gang.moved_ms < STILL_MS
        ]

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
