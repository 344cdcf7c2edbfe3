"""A second opinion on queueing: FCFS, EASY and conservative backfill on M identical processors, with counts only and
no engine code.

Test oracle for the replay. Rigid jobs; nobody is killed. What the published tables leave open is settled as in the
engine: of several jobs expected to end at the moment the blocked one is due, only those it needs (older first) count as
gone.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

TAU_S = 10
"""Run times below this do not inflate the bounded slowdown."""
CORRECTIONS_S = [minutes * 60 for minutes in (1, 5, 15, 30, 60, 120, 300, 600, 1200, 3000)]
"""By how much an estimate is raised, each time it proves too short; the last again and again."""


@dataclass(frozen=True)
class Job:
    """Times in seconds, in order of arrival."""

    arrival: int
    run: int
    processors: int
    estimate: int
    user: int = 0


class Model(Protocol):
    """Estimates that are asked for as they are needed, in seconds, of jobs by number."""

    def likely(self, index: int) -> int: ...
    def safe(self, index: int) -> int: ...
    def longer(self, index: int, elapsed: float) -> int:
        """Above `elapsed`, which is more than was expected."""


@dataclass(frozen=True)
class Figures:
    """What the published tables give; times in seconds."""

    jobs: int
    average_wait: float
    average_bounded_slowdown: float
    p95_wait: float
    makespan: float
    utilisation: float


def jobs_from(
    arrivals: Sequence[int], runs: Sequence[int], processors: Sequence[int], requested: Sequence[int]
) -> list[Job]:
    """Jobs with the estimates of the published tables: max(requested, run), where a missing (0) request is the 95th
    percentile of the requests, or of the run times if the trace has no requests at all."""
    default = int(percentile([request for request in requested if request > 0] or runs, 95))
    estimates = [max(request or default, run) for request, run in zip(requested, runs, strict=True)]
    rows = sorted(zip(arrivals, runs, processors, estimates, strict=True), key=lambda row: row[0])
    return [Job(*row) for row in rows]


def percentile(values: Sequence[float], percent: int) -> float:
    """Linear between the two nearest ranks, rounded down."""
    ordered = sorted(values)
    position, remainder = divmod(percent * (len(ordered) - 1), 100)
    upper = ordered[min(position + 1, len(ordered) - 1)]
    return ordered[position] + remainder * (upper - ordered[position]) // 100


def simulate(
    jobs: Sequence[Job], processors: int, policy: str, *, last_two: bool = False, model: Model | None = None
) -> list[float]:
    """Start time of each job. At one instant: first all ends, then all arrivals, then decisions.

    With `last_two` a job's estimate only bounds what is expected of it. That is the mean run time of the two jobs of
    its user that ended last before it arrived, or of the one there is; a running job that outlasts it is expected to
    take longer, step by step, and each step is an occasion for decisions.

    With a model all estimates are its own: its likely ones decide who is short and who will be gone in time, its safe
    ones when something that runs is expected to end.
    """
    decide = {
        "fcfs": _fcfs, "easy": _easy, "easy-sjbf": _easy_sjbf, "slowdown": _slowdown, "conservative": _conservative,
    }[policy]  # fmt: skip
    starts = [-1.0] * len(jobs)
    estimates: list[float] = [job.estimate if model is None else model.likely(i) for i, job in enumerate(jobs)]
    safe = estimates if model is None else [model.safe(i) for i in range(len(jobs))]
    ended_runs: defaultdict[int, list[int]] = defaultdict(list)
    waiting: list[int] = []
    expected: dict[int, float] = {}
    corrections: Counter[int] = Counter()
    ends: list[tuple[float, int]] = []
    free = processors
    arrived = 0
    while arrived < len(jobs) or ends:
        looks = expected.values() if waiting else ()
        now = min([*[end for end, _ in ends[:1]], *[job.arrival for job in jobs[arrived : arrived + 1]], *looks])
        while ends and ends[0][0] == now:
            _, ended = heapq.heappop(ends)
            free += jobs[ended].processors
            ended_runs[jobs[ended].user].append(jobs[ended].run)
            del expected[ended]
        while arrived < len(jobs) and jobs[arrived].arrival == now:
            recent = ended_runs[jobs[arrived].user][-2:]
            if last_two and recent:
                estimates[arrived] = min(sum(recent) / len(recent), jobs[arrived].estimate)
            waiting.append(arrived)
            arrived += 1
        for index in expected:
            if model is not None and waiting and expected[index] <= now:
                expected[index] = starts[index] + model.longer(index, now - starts[index])
            while model is None and expected[index] <= now:
                step = CORRECTIONS_S[min(corrections[index], len(CORRECTIONS_S) - 1)]
                expected[index] = min(expected[index] + step, starts[index] + jobs[index].estimate)
                corrections[index] += 1
        chosen = decide(Moment(jobs, estimates, safe, waiting, expected, free, now))
        for index in chosen:
            starts[index] = now
            free -= jobs[index].processors
            expected[index] = now + safe[index]
            heapq.heappush(ends, (now + jobs[index].run, index))
        if chosen:
            gone = set(chosen)
            waiting = [index for index in waiting if index not in gone]
    return starts


def figures(jobs: Sequence[Job], starts: Sequence[float], processors: int) -> Figures:
    waits = [start - job.arrival for job, start in zip(jobs, starts, strict=True)]
    slowdowns = [max(1.0, (wait + job.run) / max(job.run, TAU_S)) for job, wait in zip(jobs, waits, strict=True)]
    makespan = max(start + job.run for job, start in zip(jobs, starts, strict=True)) - jobs[0].arrival
    return Figures(
        jobs=len(jobs),
        average_wait=sum(waits) / len(jobs),
        average_bounded_slowdown=sum(slowdowns) / len(jobs),
        p95_wait=percentile(waits, 95),
        makespan=makespan,
        utilisation=sum(job.run * job.processors for job in jobs) / (makespan * processors),
    )


@dataclass(frozen=True)
class Moment:
    """What a decision is made on."""

    jobs: Sequence[Job]
    estimates: Sequence[float]
    safe: Sequence[float]
    """Estimates that decide when what runs is expected to end."""
    waiting: Sequence[int]
    expected: dict[int, float]
    """Running job -> when it is expected to end."""
    free: int
    now: float


def _fcfs(at: Moment) -> list[int]:
    """From the front of the queue for as long as they fit."""
    chosen: list[int] = []
    free = at.free
    for index in at.waiting:
        free -= at.jobs[index].processors
        if free < 0:
            break
        chosen.append(index)
    return chosen


def _easy(at: Moment, *, shortest_first: bool = False, careful_for: Collection[int] = ()) -> list[int]:
    """FCFS; then later jobs, in order, that fit now and do not delay the first blocked one by their estimates; by their
    safe ones if it is one of `careful_for`."""
    chosen = _fcfs(at)
    free = at.free - sum(at.jobs[index].processors for index in chosen)
    behind = at.waiting[len(chosen) :]
    if not behind or not free:
        return chosen
    expected = at.expected | {index: at.now + at.safe[index] for index in chosen}
    takes = at.safe if behind[0] in careful_for else at.estimates
    shadow, spare = _reservation(at.jobs, expected, free, at.jobs[behind[0]].processors)
    candidates = sorted(behind[1:], key=lambda index: at.estimates[index]) if shortest_first else behind[1:]
    for index in candidates:
        wanted = at.jobs[index].processors
        in_time = at.now + takes[index] <= shadow
        if wanted > free or not (in_time or wanted <= spare):
            continue
        chosen.append(index)
        free -= wanted
        if not in_time:
            spare -= wanted
        if not free:
            break
    return chosen


def _easy_sjbf(at: Moment) -> list[int]:
    """EASY, with the candidates in order of their estimates; like ones stay in order of arrival."""
    return _easy(at, shortest_first=True)


def _slowdown(at: Moment) -> list[int]:
    """EASY on a queue in which those who have waited for more than three days come first, in order of arrival, and then
    the others: first whose wait and one hour are most beside the run time expected of it, which is 10 s or more."""
    waited = {index: at.now - at.jobs[index].arrival for index in at.waiting}
    overdue = [index for index in at.waiting if waited[index] > 3 * 24 * 3600]
    rest = sorted(
        (index for index in at.waiting if index not in overdue),
        key=lambda index: (-(waited[index] + 3600) / max(at.estimates[index], TAU_S), index),
    )
    return _easy(replace(at, waiting=overdue + rest), careful_for=overdue)


def _reservation(jobs: Sequence[Job], expected: dict[int, float], free: int, wanted: int) -> tuple[float, int]:
    """When the blocked job is expected to start, and how many processors it then leaves over."""
    available = free
    shadow = 0.0
    for index, end in sorted(expected.items(), key=lambda item: (item[1], item[0])):
        if available >= wanted:
            break
        available += jobs[index].processors
        shadow = end
    return shadow, available - wanted


def _conservative(at: Moment) -> list[int]:
    """Every job in turn gets the earliest time at which it fits for all of its estimate beside those before it."""
    profile = Profile(at.now, at.free)
    for index, end in at.expected.items():
        profile.add(end, FOREVER, at.jobs[index].processors)
    chosen = []
    for index in at.waiting:
        if not profile.free[0]:
            break
        wanted, estimate = at.jobs[index].processors, at.estimates[index]
        start = profile.earliest(wanted, estimate)
        profile.add(start, start + estimate, -wanted)
        if start == at.now:
            chosen.append(index)
    return chosen


FOREVER = 2**62


class Profile:
    """Free processors over time: `free[i]` from `times[i]` to `times[i + 1]`, the last for good."""

    def __init__(self, now: float, free: int) -> None:
        self.times = [now]
        self.free = [free]

    def add(self, start: float, end: float, processors: int) -> None:
        for i in range(self._break(start), self._break(end)):
            self.free[i] += processors

    def _break(self, at: float) -> int:
        """The step that begins at that time, made if need be."""
        i = bisect_left(self.times, at)
        if i == len(self.times) or self.times[i] != at:
            self.times.insert(i, at)
            self.free.insert(i, self.free[i - 1])
        return i

    def earliest(self, processors: int, length: float) -> float:
        """First time from which that many are free for that long."""
        start = self.times[0]
        for free, following in zip(self.free, [*self.times[1:], FOREVER], strict=True):
            if free < processors:
                start = following
            elif following >= start + length:
                break
        return start
