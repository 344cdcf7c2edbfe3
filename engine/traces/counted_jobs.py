"""Rigid jobs on identical processors, by counting free ones: the same starts as the engine's, without the engine.

Where every task asks for exactly one processor and all are alike, any free one will do: when a job starts depends on
how many are free and never on which. So FCFS and EASY need a number and the expected ends of what runs. Nobody outruns
an estimate here. At one instant ends come first, then arrivals, then decisions; that the engine also decides between
the two comes to the same, as long as candidates are looked at in order of arrival. Of several jobs expected to end at
the moment the blocked one is due, only those it needs, older ones first, count as gone (`engine.scheduling.backfill`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

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
