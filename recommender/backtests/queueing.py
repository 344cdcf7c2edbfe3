"""What estimates are worth to a queue: waits of a trace's jobs when Muster's decide, beside EASY with other estimates.

The protocol is that of `engine.traces.replay`: rigid jobs on identical processors, nobody is stopped at a limit, an
estimate is max(requested, run) and where a trace has no requests the 95th percentile stands in. Only `muster` and
`easy_learned` are told less: the request as it was made, or that there is none, and never what a job will run. Their
model sees what had been submitted, and what had ended in the simulated schedule, by the moment it is asked.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.model.errors import SpecError
from engine.traces import counted_jobs, estimated_jobs
from engine.traces.counted_jobs import JobColumns
from engine.traces.replay import TAU_MS, ReplayPlan, prepare
from recommender.backtests.run_times import run_of
from recommender.runtimes.run_time_model import RunModel
from recommender.runtimes.similar_runs import SubmittedRun

MIN_MORE_MS = 60_000
"""By which an estimate is at least raised that proves too short."""
ROWS = {
    "easy_requested": "EASY backfill, run times as requested",
    "muster": "most slowed down first, by learnt times; overdue at 72 h",
    "easy_plus_plus": "EASY, shortest first in gaps, mean of the user's last two",
    "easy_actual": "EASY backfill, true run times known",
    "easy_learned": "EASY, shortest first in gaps, run times as learnt",
    "slowdown_requested": "the order of muster, run times as requested",
    "slowdown_actual": "the order of muster, true run times known",
}
"""Name of each row -> what decides there, for people."""


class QueueScore(msgspec.Struct, frozen=True, kw_only=True):
    """What the jobs of a trace met under one policy."""

    avg_wait_s: float
    avg_bounded_slowdown: float
    """max(1, (wait + run) / max(run, 10 s))"""
    p95_wait_s: float
    max_wait_s: float
    n: int


def read(path: str | Path, format: str, *, nodes: int, arrivals: float = 1.0, strict: bool = False) -> ReplayPlan:
    """The trace made ready for `backtest`. SpecError where no job is left; raises as `replay.prepare` does too."""
    plan = prepare(path, format, nodes=nodes, arrivals=arrivals, strict=strict)
    if not plan.jobs:
        raise SpecError("FILE", f"no job that could run on {nodes}", "Check --format and --nodes")
    return plan


def backtest(plan: ReplayPlan, format: str, *, every: bool = False) -> dict[str, QueueScore]:
    """Scores by policy, in the order of ROWS; `every`: with those that take a second model run too."""
    jobs = jobs_of(plan)
    asked = [run_of(job.arrival_ms, job, "", format, ()).submission for job in plan.jobs]
    users = [job.user for job in plan.jobs]
    starts = {
        "easy_requested": counted_jobs.easy(jobs, plan.units),
        "muster": estimated_jobs.backfill(jobs, plan.units, ModelEstimates(asked, jobs.run), "slowdown"),
        "easy_plus_plus": estimated_jobs.backfill(jobs, plan.units, estimated_jobs.LastTwoEstimates(jobs, users)),
        "easy_actual": counted_jobs.easy(replace(jobs, estimate=jobs.run), plan.units),
        "easy_learned": estimated_jobs.backfill(jobs, plan.units, ModelEstimates(asked, jobs.run)) if every else [],
        "slowdown_requested": estimated_jobs.backfill(jobs, plan.units, KnownRunTimes(jobs.estimate), "slowdown"),
        "slowdown_actual": estimated_jobs.backfill(jobs, plan.units, KnownRunTimes(jobs.run), "slowdown"),
    }
    return {name: score(jobs, starts[name]) for name in ROWS if starts[name]}


def jobs_of(plan: ReplayPlan) -> JobColumns:
    return JobColumns(
        arrival=[job.arrival_ms for job in plan.jobs],
        run=[job.run_ms for job in plan.jobs],
        estimate=plan.estimates,
        processors=[job.tasks for job in plan.jobs],
    )


class KnownRunTimes:
    """Run times that are told beforehand and never exceeded."""

    def __init__(self, estimates_ms: Sequence[int]) -> None:
        self._estimates = estimates_ms

    def submitted(self, job: int, now: int) -> tuple[int, int]:
        return self._estimates[job], self._estimates[job]

    def started(self, job: int, now: int) -> None:
        pass

    def longer(self, job: int, elapsed: int) -> int:
        raise AssertionError(f"job {job} outran an estimate that nobody outruns")

    def ended(self, job: int, now: int) -> None:
        pass


class ModelEstimates:
    """The model's estimates: likely is its p50, safe its p90; while a job runs the p90 of those that ran so long.

    Both are held to what the owner asked for, until that has proved too short too.
    """

    def __init__(self, asked: Sequence[SubmittedRun], run_ms: Sequence[int]) -> None:
        """`run_ms` is told to the model as each run ends, and not looked at before."""
        self._asked = asked
        self._run_ms = run_ms
        self._model = RunModel()
        self._p90: dict[int, int] = {}
        """Of what has not ended, in ms."""
        self._outrun: list[tuple[int, int]] = []
        """Heap of (when its p90 goes by, job) of what was started."""

    def submitted(self, job: int, now: int) -> tuple[int, int]:
        self._pass_to(now)
        said = self._model.submitted(str(job), self._asked[job])
        self._p90[job] = said.p90_ms
        most = self._asked[job].requested_ms
        return (min(said.p50_ms, most), min(said.p90_ms, most)) if most else (said.p50_ms, said.p90_ms)

    def started(self, job: int, now: int) -> None:
        self._model.started(str(job), now)
        heapq.heappush(self._outrun, (now + self._p90[job], job))

    def longer(self, job: int, elapsed: int) -> int:
        longer = self._model.estimate(str(job), elapsed).p90_ms
        most = self._asked[job].requested_ms
        return max(min(longer, most) if elapsed < most else longer, elapsed + MIN_MORE_MS)

    def ended(self, job: int, now: int) -> None:
        self._pass_to(now)
        del self._p90[job]
        self._model.ended(str(job), self._run_ms[job], now)

    def _pass_to(self, now: int) -> None:
        """Tell the model of all that outran its p90 before now."""
        while self._outrun and self._outrun[0][0] < now:
            _, job = heapq.heappop(self._outrun)
            if job in self._p90:
                self._model.outrun(str(job))


def score(jobs: JobColumns, starts: Sequence[int]) -> QueueScore:
    waits = [start - arrival for start, arrival in zip(starts, jobs.arrival, strict=True)]
    slowdowns = [max(1.0, (wait + run) / max(run, TAU_MS)) for wait, run in zip(waits, jobs.run, strict=True)]
    return QueueScore(
        avg_wait_s=sum(waits) / len(waits) / 1000,
        avg_bounded_slowdown=sum(slowdowns) / len(slowdowns),
        p95_wait_s=sorted(waits)[min(len(waits) - 1, len(waits) * 95 // 100)] / 1000,
        max_wait_s=max(waits) / 1000,
        n=len(waits),
    )
