"""Schedules of rigid jobs on identical processors, by counting free ones: run times known, or estimated.

Where every task asks for exactly one processor and all are alike, the start of a job depends on how many are free and
never on which. So FCFS and EASY need a number and the expected ends of running jobs. The starts are the engine's own,
without the engine. At one instant ends come first, then arrivals, then decisions. Of several jobs expected to end at
the moment the blocked one is due, only those it needs, older ones first, count as gone (`engine.scheduling.backfill`).

With estimates that may prove wrong, backfill is as in EASY: the first waiting job is promised the time at which enough
processors are expected to be free, and others may start before it if they fit and do not delay that. A job that outruns
its estimate is expected to take longer, which is an occasion to decide, after ends and arrivals of the same instant.

`Order` says which job is first. "fcfs": the earliest arrival; of the others the shortest is looked at first (Tsafrir,
Etsion and Feitelson, IEEE TPDS 18(6), 2007). "slowdown": the largest wait beside the expected run time, in everything:
the largest expansion factor (LXF in Chiang, Arpaci-Dusseau and Vernon, JSSPP 2002), with HEAD_START_MS added to all
waits so that among new jobs the short come first. A job that has waited OVERDUE_MS goes before all others, in order of
arrival, and these then start before it only if they are safely gone in time: nothing starves.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.state.workloads import CORRECTIONS_MS, LAST_STEP_MS
from engine.traces.progress import counter

NEVER = 2**62
"""After every arrival."""


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Jobs in order of arrival; times in ms."""

    arrival: Sequence[int]
    run: Sequence[int]
    estimate: Sequence[int]
    """Never below `run`."""
    processors: Sequence[int]
    """At most as many as there are."""


def fcfs(jobs: JobColumns, processors: int) -> list[int]:
    """Start of each job: in order of arrival, none overtakes. Costs O(log running) for each job."""
    free, now = processors, 0
    running: list[tuple[int, int]] = []
    starts: list[int] = []
    for arrival, run, wanted in zip(jobs.arrival, jobs.run, jobs.processors, strict=True):
        now = max(now, arrival)
        while running and (free < wanted or running[0][0] <= now):
            end, given_back = heappop(running)
            now = max(now, end)
            free += given_back
        free -= wanted
        heappush(running, (now + run, wanted))
        starts.append(now)
    return starts


def easy(jobs: JobColumns, processors: int) -> list[int]:
    """Start of each job by EASY backfill.

    Costs O(waiting + running) where something ends, else what arrives: whoever was refused stays refused until then.
    """
    run = EasyRun(jobs, processors)
    arrivals = [*jobs.arrival, NEVER]
    ends, arrived = run.ends, 0
    tell = counter("jobs", len(jobs.arrival))
    while ends or arrivals[arrived] < NEVER:
        if tell is not None:
            tell(arrived)
        now = arrivals[arrived]
        something_ended = bool(ends) and ends[0][0] <= now
        if something_ended:
            now = ends[0][0]
            run.end_due(now)
        first = arrived
        while arrivals[arrived] == now:
            arrived += 1
        if run.waiting or first < arrived:
            run.decide(now, range(first, arrived), afresh=something_ended)
    return run.starts


class EasyRun:
    """EASY under way."""

    def __init__(self, jobs: JobColumns, processors: int) -> None:
        self.jobs = jobs
        self.free = processors
        self.starts = [-1] * len(jobs.arrival)
        self.waiting: list[int] = []
        """Jobs in order of arrival; the first one is promised a start."""
        self.ends: list[tuple[int, int]] = []
        """Heap of (end, job) of what runs."""
        self.expected: list[tuple[int, int]] = []
        """(expected end, job) of what runs, sorted."""
        self.promised = 0
        """Start promised to the first that waits."""
        self.spare = 0
        """Processors that it will then leave over."""

    def end_due(self, now: int) -> None:
        """Take back what ends now."""
        ends, expected = self.ends, self.expected
        while ends and ends[0][0] == now:
            _, job = heappop(ends)
            self.free += self.jobs.processors[job]
            del expected[bisect_left(expected, (self.starts[job] + self.jobs.estimate[job], job))]

    def decide(self, now: int, arriving: range, *, afresh: bool) -> None:
        """Start what can start. `afresh`: something ended, so everyone who waits is looked at again."""
        waiting = self.waiting
        if waiting and not afresh:
            # The promise stands, and so does every refusal.
            started = self._backfill(now, arriving)
            waiting += [job for job in arriving if job not in started] if started else arriving
            return
        waiting += arriving
        front = 0
        while front < len(waiting) and self.jobs.processors[waiting[front]] <= self.free:
            self._start(waiting[front], now)
            front += 1
        del waiting[:front]
        if not waiting:
            return
        self._promise(waiting[0])
        started = self._backfill(now, waiting[1:])
        if started:
            self.waiting = [job for job in waiting if job not in started]

    def _promise(self, job: int) -> None:
        """Count how the processors come back until the job has enough."""
        available, wanted, sizes = self.free, self.jobs.processors[job], self.jobs.processors
        for end, ending in self.expected:
            available += sizes[ending]
            if available >= wanted:
                self.promised, self.spare = end, available - wanted
                return

    def _backfill(self, now: int, candidates: Sequence[int]) -> set[int]:
        """Start whoever fits and does not delay the first that waits."""
        started: set[int] = set()
        sizes, estimates = self.jobs.processors, self.jobs.estimate
        for job in candidates:
            if not self.free:
                break
            wanted = sizes[job]
            if wanted > self.free:
                continue
            if now + estimates[job] > self.promised:
                if wanted > self.spare:
                    continue
                self.spare -= wanted
            self._start(job, now)
            started.add(job)
        return started

    def _start(self, job: int, now: int) -> None:
        self.starts[job] = now
        self.free -= self.jobs.processors[job]
        heappush(self.ends, (now + self.jobs.run[job], job))
        insort(self.expected, (now + self.jobs.estimate[job], job))


Order = Literal["fcfs", "slowdown"]
HEAD_START_MS = 3_600_000
OVERDUE_MS = 72 * 3_600_000
SHORTEST_MS = 10_000
"""Expected run times below this are taken as this much where slowdowns are compared, as in the bounded slowdown."""


class Estimates(Protocol):
    """What is expected of run times, told in the order things happen. Jobs by their number, times in ms."""

    def submitted(self, job: int, now: int) -> tuple[int, int]:
        """(likely, safe) run time, at least 1. The likely one says who is short and who will be gone in time; the safe
        one when the processors of what runs come back."""

    def started(self, job: int, now: int) -> None:
        """Note that the run begins now."""

    def longer(self, job: int, elapsed: int) -> int:
        """Whole run time to expect, above `elapsed`, of one that has run so long, which is more than was expected."""

    def ended(self, job: int, now: int) -> None:
        """It ran until now."""


class LastTwoEstimates:
    """The mean of the last two runs of the user that had ended, or of the one there is, rounded up; raised step by step
    where it proves too short. Never above `jobs.estimate`, which is also what is told of who has no history. This with
    the order "fcfs" is EASY++ (Tsafrir et al.)."""

    def __init__(self, jobs: JobColumns, users: Sequence[str]) -> None:
        self._jobs = jobs
        self._users = users
        self._ended: dict[str, list[int]] = {}
        """User -> the last two run times."""
        self._said: dict[int, int] = {}

    def submitted(self, job: int, now: int) -> tuple[int, int]:
        recent, most = self._ended.get(self._users[job]), self._jobs.estimate[job]
        said = self._said[job] = most if recent is None else min(-(-sum(recent) // len(recent)), most)
        return said, said

    def started(self, job: int, now: int) -> None:
        pass

    def longer(self, job: int, elapsed: int) -> int:
        said = self._said[job]
        more = next((step for step in CORRECTIONS_MS if said + step > elapsed), None)
        if more is None:
            more = CORRECTIONS_MS[-1] + ((elapsed - said - CORRECTIONS_MS[-1]) // LAST_STEP_MS + 1) * LAST_STEP_MS
        return min(said + more, self._jobs.estimate[job])

    def ended(self, job: int, now: int) -> None:
        del self._said[job]
        user = self._users[job]
        self._ended[user] = [*self._ended.get(user, ())[-1:], self._jobs.run[job]]


def backfill(jobs: JobColumns, processors: int, estimates: Estimates, order: Order = "fcfs") -> list[int]:
    """Start of each job; `jobs.estimate` is not looked at."""
    run = EstimatedRun(jobs, processors, estimates, order)
    arrivals = [*jobs.arrival, NEVER]
    arrived = 0
    tell = counter("jobs", len(jobs.arrival))
    while run.ends or arrivals[arrived] < NEVER:
        if tell is not None:
            tell(arrived)
        now = min(arrivals[arrived], run.next_event())
        run.end_due(now)
        while arrivals[arrived] == now:
            run.arrive(arrived, now)
            arrived += 1
        if run.waiting.size:
            run.correct(now)
            run.decide(now)
    return run.starts


class EstimatedRun:
    """A replay under way."""

    def __init__(self, jobs: JobColumns, processors: int, estimates: Estimates, order: Order) -> None:
        self.jobs = jobs
        self.estimates = estimates
        self.order = order
        self.free = processors
        self.starts = [-1] * len(jobs.arrival)
        self.begun = np.zeros(len(jobs.arrival), dtype=bool)
        self.arrival = np.array(jobs.arrival, dtype=np.int64)
        self.sizes = np.array(jobs.processors, dtype=np.int64)
        self.likely = np.zeros(len(jobs.arrival), dtype=np.int64)
        self.safe = np.zeros(len(jobs.arrival), dtype=np.int64)
        self.waiting: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        """Jobs in order of arrival."""
        self.ends: list[tuple[int, int]] = []
        """Heap of (end, job) of what runs."""
        self.expected: list[tuple[int, int]] = []
        """(expected end, job) of what runs, sorted."""
        self.expected_end: dict[int, int] = {}

    def next_event(self) -> int:
        """The next end, or while someone waits the next expected one."""
        ends = self.ends[0][0] if self.ends else NEVER
        return min(ends, self.expected[0][0]) if self.waiting.size and self.expected else ends

    def end_due(self, now: int) -> None:
        ends, expected = self.ends, self.expected
        while ends and ends[0][0] == now:
            _, job = heappop(ends)
            self.free += self.jobs.processors[job]
            del expected[bisect_left(expected, (self.expected_end.pop(job), job))]
            self.estimates.ended(job, now)

    def arrive(self, job: int, now: int) -> None:
        self.likely[job], self.safe[job] = self.estimates.submitted(job, now)
        self.waiting = np.append(self.waiting, job)

    def correct(self, now: int) -> None:
        """Expect more of what has outrun what was expected."""
        expected = self.expected
        while expected and expected[0][0] <= now:
            _, job = expected.pop(0)
            begun = self.starts[job]
            self.expected_end[job] = begun + self.estimates.longer(job, now - begun)
            insort(expected, (self.expected_end[job], job))

    def decide(self, now: int) -> None:
        """Start what can start."""
        waiting = self.waiting
        if self.sizes[waiting].min() > self.free:
            return
        overdue = now - self.arrival[waiting] > OVERDUE_MS
        if self.order == "slowdown":
            waited = now - self.arrival[waiting] + HEAD_START_MS
            beside = np.where(overdue, np.inf, waited / np.maximum(self.likely[waiting], SHORTEST_MS))
            rank = np.argsort(-beside, kind="stable")
            waiting, overdue = waiting[rank], overdue[rank]
        front = 0
        while front < len(waiting) and self.sizes[waiting[front]] <= self.free:
            self._start(int(waiting[front]), now)
            front += 1
        if front < len(waiting) and self.free:
            careful = self.order == "slowdown" and bool(overdue[front])
            self._fill(int(waiting[front]), waiting[front + 1 :], now, self.safe if careful else self.likely)
        self.waiting = self.waiting[~self.begun[self.waiting]]

    def _fill(self, first: int, others: NDArray[np.int64], now: int, takes: NDArray[np.int64]) -> None:
        """Start those of the others that fit and, taking as long as `takes` says, do not delay the first."""
        promised, spare = self._promise(first)
        fitting = others[self.sizes[others] <= self.free]
        if self.order == "fcfs":
            fitting = fitting[np.argsort(self.likely[fitting], kind="stable")]
        for job in fitting.tolist():
            wanted = self.jobs.processors[job]
            if wanted > self.free:
                continue
            if now + takes[job] > promised:
                if wanted > spare:
                    continue
                spare -= wanted
            self._start(job, now)
            if not self.free:
                break

    def _promise(self, job: int) -> tuple[int, int]:
        """Return when the job is expected to have its processors, and how many it then leaves over."""
        available, wanted, sizes = self.free, self.jobs.processors[job], self.jobs.processors
        for end, ending in self.expected:
            available += sizes[ending]
            if available >= wanted:
                return end, available - wanted
        raise AssertionError("a job is never larger than the cell")

    def _start(self, job: int, now: int) -> None:
        self.starts[job] = now
        self.begun[job] = True
        self.free -= self.jobs.processors[job]
        heappush(self.ends, (now + self.jobs.run[job], job))
        self.expected_end[job] = now + int(self.safe[job])
        insort(self.expected, (self.expected_end[job], job))
        self.estimates.started(job, now)
