"""A second opinion on queueing: FCFS and EASY on M identical processors, with counts only and no engine code.

Test oracle for the replay. Rigid jobs; nobody is killed, so a job's estimate is at least its run time. What the
published tables leave open is settled as in the engine: of several jobs expected to end at the moment the blocked one
is due, only those it needs (older first) count as gone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

TAU_S = 10
"""Run times below this do not inflate the bounded slowdown."""


@dataclass(frozen=True)
class Job:
    """Times in seconds, in order of arrival."""

    arrival: int
    run: int
    processors: int
    estimate: int


@dataclass(frozen=True)
class Figures:
    """What the published tables give; times in seconds."""

    jobs: int
    average_wait: float
    average_bounded_slowdown: float
    p95_wait: float
    makespan: int
    utilisation: float


def jobs_from(
    arrivals: Sequence[int], runs: Sequence[int], processors: Sequence[int], requested: Sequence[int]
) -> list[Job]:
    """Jobs with the estimates of the published tables: max(requested, run), where a missing (0) request is the 95th
    percentile of the requests, or of the run times if the trace has no requests at all."""
    default = percentile([request for request in requested if request > 0] or runs, 95)
    estimates = [max(request or default, run) for request, run in zip(requested, runs, strict=True)]
    rows = sorted(zip(arrivals, runs, processors, estimates, strict=True), key=lambda row: row[0])
    return [Job(*row) for row in rows]


def percentile(values: Sequence[int], percent: int) -> int:
    """Linear between the two nearest ranks, rounded down."""
    ordered = sorted(values)
    position, remainder = divmod(percent * (len(ordered) - 1), 100)
    upper = ordered[min(position + 1, len(ordered) - 1)]
    return ordered[position] + remainder * (upper - ordered[position]) // 100


def simulate(jobs: Sequence[Job], processors: int, policy: str) -> list[int]:
    """Start time of each job. At one instant: first all ends, then all arrivals, then decisions."""
    decide = {"fcfs": _fcfs, "easy": _easy}[policy]
    starts = [-1] * len(jobs)
    waiting: list[int] = []
    running: dict[int, int] = {}
    ends: list[tuple[int, int]] = []
    free = processors
    arrived = 0
    while arrived < len(jobs) or ends:
        now = min([end for end, _ in ends[:1]] + [job.arrival for job in jobs[arrived : arrived + 1]])
        while ends and ends[0][0] == now:
            _, ended = heapq.heappop(ends)
            free += jobs[ended].processors
            del running[ended]
        while arrived < len(jobs) and jobs[arrived].arrival == now:
            waiting.append(arrived)
            arrived += 1
        chosen = decide(jobs, waiting, running, free, now)
        for index in chosen:
            starts[index] = now
            free -= jobs[index].processors
            running[index] = now + jobs[index].estimate
            heapq.heappush(ends, (now + jobs[index].run, index))
        if chosen:
            gone = set(chosen)
            waiting = [index for index in waiting if index not in gone]
    return starts


def figures(jobs: Sequence[Job], starts: Sequence[int], processors: int) -> Figures:
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


def _fcfs(jobs: Sequence[Job], waiting: list[int], running: dict[int, int], free: int, now: int) -> list[int]:
    """From the front of the queue for as long as they fit."""
    chosen = []
    for index in waiting:
        free -= jobs[index].processors
        if free < 0:
            break
        chosen.append(index)
    return chosen


def _easy(jobs: Sequence[Job], waiting: list[int], running: dict[int, int], free: int, now: int) -> list[int]:
    """FCFS; then later jobs, in order, that fit now and do not delay the first blocked one by their estimates."""
    chosen = _fcfs(jobs, waiting, running, free, now)
    free -= sum(jobs[index].processors for index in chosen)
    behind = waiting[len(chosen) :]
    if not behind or not free:
        return chosen
    expected = running | {index: now + jobs[index].estimate for index in chosen}
    shadow, spare = _reservation(jobs, expected, free, jobs[behind[0]].processors)
    for index in behind[1:]:
        wanted = jobs[index].processors
        in_time = now + jobs[index].estimate <= shadow
        if wanted > free or not (in_time or wanted <= spare):
            continue
        chosen.append(index)
        free -= wanted
        if not in_time:
            spare -= wanted
        if not free:
            break
    return chosen


def _reservation(jobs: Sequence[Job], expected: dict[int, int], free: int, wanted: int) -> tuple[int, int]:
    """When the blocked job is expected to start, and how many processors it then leaves over."""
    available = free
    shadow = 0
    for index, end in sorted(expected.items(), key=lambda item: (item[1], item[0])):
        if available >= wanted:
            break
        available += jobs[index].processors
        shadow = end
    return shadow, available - wanted
