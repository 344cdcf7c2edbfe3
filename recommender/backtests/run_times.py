"""Backtests of run-time estimates on a trace, and of their worth to its queue.

Estimates: jobs that ran, in order of submission; the last 30 % are scored, each from what had ended by its own
submission (start as logged, else submission, plus run time). Errors are of natural logarithms of seconds. Simple rules
give a point; their p90 is that plus the 90th percentile of their errors on the second half of the other 70 %.

Queue: waits of a trace's jobs when Muster's estimates decide, beside EASY with others, by the protocol of
`engine.traces.replay`: rigid jobs on identical processors, nobody is stopped at a limit, an estimate is max(requested,
run), and where a trace has no requests the 95th percentile stands in. Only `muster` and `easy_learned` are told less:
the request as it was made, or that there is none, and never the run time. Their model sees what had been submitted, and
what had ended in the simulated schedule, by the moment it is asked.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.model.errors import SpecError
from engine.traces import replay
from engine.traces.progress import counted, stage
from engine.traces.replay import TAU_MS, JobColumns, ReplayPlan, prepare
from engine.traces.trace_reader import FORMATS as READERS
from engine.traces.trace_reader import Problems, TraceFile, TraceJob
from recommender.estimates.run_time_model import RunModel, RunTimeQuantiles, SortedWindow, SubmittedRun

Floats = NDArray[np.float64]

TRAIN = 0.7
MIN_JOBS = 20
MIN_LIKES = 3
"""Runs before a group's median is told by `user_size_median`."""
ALL = 1_000_000
"""Window of medians over everything that ended."""
ENDED, OUTRUN, STARTED = 0, 1, 2


class FinishedRun(msgspec.Struct, frozen=True):
    """One job that ran."""

    submission: SubmittedRun
    run_ms: int
    start_ms: int


class RunTimeScore(msgspec.Struct, frozen=True):
    """The score of one method on one trace; logarithms are natural."""

    pinball50: float
    pinball90: float
    coverage90: float
    within2x: float
    """Share of runs at most twice and at least half their p50."""
    n: int
    median_log_ratio: float


def read(files: Sequence[str | Path], format: str, problems: Problems) -> tuple[list[FinishedRun], tuple[str, ...]]:
    """Jobs that ran, in order of submission, and the names of their figures. Several files are one trace.

    Where a trace names no users, they are its queues (virtual clusters, quality classes); where not even those, each
    file is one. TraceError for what is no trace, SpecError where too few jobs ran.
    """
    told: list[tuple[int, TraceJob, str]] = []
    for path in files:
        stage("reading the trace")
        file = TraceFile(path, problems)
        jobs = list(READERS[format](file))
        told += [(file.origin_ms + job.arrival_ms, job, file.path.name.split(".")[0]) for job in jobs]
    if format == "openb":
        told = [each for each in told if each[1].wait_ms is not None]
    told = [each for each in told if each[1].run_ms > 0]
    if len(told) < MIN_JOBS:
        raise SpecError("FILE", f"only {len(told)} jobs that ran", f"Give a trace with at least {MIN_JOBS}")
    told.sort(key=lambda each: each[0])
    figures = tuple(sorted({name for _, job, _ in told for name in job.figures}))
    return [run_of(at, job, file, format, figures) for at, job, file in told], figures


def run_of(at_ms: int, job: TraceJob, file: str, format: str, figures: tuple[str, ...]) -> FinishedRun:
    request = job.request
    sizes = {
        "openb": request.gpu_milli,
        "dlrm": request.cpu_milli // 1000,
        "genai": job.figures.get("num_images_per_prompt", 0),
    }
    own = tuple(job.figures.get(name, -1) for name in figures)
    if format in ("openb", "dlrm"):
        own += (request.cpu_milli, request.memory_mib, request.gpu_milli)
    submission = SubmittedRun(
        at_ms=at_ms,
        user=job.user or job.queue or file,
        name=job.name,
        queue=(job.queue if job.user else "") or ",".join(job.gpu_models),
        size=sizes.get(format, job.tasks),
        requested_ms=job.requested_ms,
        figures=own,
    )
    return FinishedRun(submission, job.run_ms, at_ms + (job.wait_ms or 0))


def backtest(runs: Sequence[FinishedRun], figures: tuple[str, ...]) -> dict[str, RunTimeScore]:
    """Scores by method, `muster` first."""
    said = predictions(runs, figures)
    tested = slice(int(TRAIN * len(runs)), None)
    p50, p90 = logs([each.p50_ms for each in said]), logs([each.p90_ms for each in said])
    truth = logs([run.run_ms for run in runs])
    return {"muster": score(truth[tested], p50[tested], p90[tested]), **backtest_rules(runs)}


def backtest_rules(runs: Sequence[FinishedRun]) -> dict[str, RunTimeScore]:
    """Scores of the simple rules alone."""
    truth = logs([run.run_ms for run in runs])
    train = int(TRAIN * len(runs))
    scores: dict[str, RunTimeScore] = {}
    for name, points in simple_rules(runs, float(np.median(truth[:train]))).items():
        spread = np.quantile((truth - points)[train // 2 : train], 0.9)
        scores[name] = score(truth[train:], points[train:], points[train:] + spread)
    return scores


def predictions(runs: Sequence[FinishedRun], figures: tuple[str, ...]) -> list[RunTimeQuantiles]:
    """Return what the model says of each at its submission, fed with what happened until then and nothing else."""
    width = len(runs[0].submission.figures) if runs else 0
    model = RunModel(figures + tuple(f"figure {at}" for at in range(len(figures), width)))
    due: list[tuple[int, int, int]] = []
    said: list[RunTimeQuantiles] = []
    for at, run in enumerate(counted(runs, "jobs", len(runs))):
        while due and due[0][0] <= run.submission.at_ms:
            now, what, which = heapq.heappop(due)
            if what == ENDED:
                model.ended(str(which), runs[which].run_ms, now)
            elif what == OUTRUN:
                model.outrun(str(which))
            else:
                model.started(str(which), now)
        estimate = model.submitted(str(at), run.submission)
        said.append(estimate)
        heapq.heappush(due, (run.start_ms, STARTED, at))
        heapq.heappush(due, (run.start_ms + run.run_ms, ENDED, at))
        if estimate.p90_ms < run.run_ms:
            heapq.heappush(due, (run.start_ms + estimate.p90_ms, OUTRUN, at))
    return said


def simple_rules(runs: Sequence[FinishedRun], train_median: float) -> dict[str, Floats]:
    """Points of every simple rule, as natural logarithms of seconds; `requested` only where most jobs ask for a time.

    tsafrir: mean of the user's last two, at most the request. user_size_median: of the user's runs of this magnitude
    (powers of two), else the user's, else those of this magnitude. global_median: of the runs trained on.
    """
    medians: dict[tuple[object, ...], SortedWindow] = {}
    last: dict[str, list[int]] = {}
    due: list[tuple[int, int]] = []
    tsafrir, grouped = np.full(len(runs), train_median), np.full(len(runs), train_median)
    requested = logs([run.submission.requested_ms or math.nan for run in runs])
    for at, run in enumerate(runs):
        asked = run.submission
        while due and due[0][0] <= asked.at_ms:
            ended = runs[heapq.heappop(due)[1]]
            user = ended.submission.user
            last[user] = [*last.get(user, [])[-1:], ended.run_ms]
            for group in groups(ended.submission):
                medians.setdefault(group, SortedWindow(ALL)).add(math.log(ended.run_ms / 1000))
        if recent := last.get(asked.user):
            tsafrir[at] = math.log(sum(recent) / len(recent) / 1000)
        elif not math.isnan(requested[at]):
            tsafrir[at] = requested[at]
        if not math.isnan(requested[at]):
            tsafrir[at] = min(tsafrir[at], requested[at])
        for group in groups(asked):
            window = medians.get(group)
            if window is not None and len(window) >= MIN_LIKES:
                grouped[at] = (window.at_rank((len(window) + 1) // 2) + window.at_rank(len(window) // 2 + 1)) / 2
                break
        heapq.heappush(due, (run.start_ms + run.run_ms, at))
    rules = {"tsafrir": tsafrir, "user_size_median": grouped, "global_median": np.full(len(runs), train_median)}
    if np.isnan(requested).mean() < 0.5:
        rules["requested"] = np.where(np.isnan(requested), train_median, requested)
    return rules


def logs(times_ms: Sequence[float]) -> Floats:
    """Natural logarithms of seconds."""
    return np.log(np.array(times_ms) / 1000)


def groups(submission: SubmittedRun) -> tuple[tuple[object, ...], ...]:
    magnitude = round(math.log2(max(submission.size, 0.5)))
    return (("both", submission.user, magnitude), ("user", submission.user), ("size", magnitude))


def score(truth: Floats, p50: Floats, p90: Floats) -> RunTimeScore:
    off, above = truth - p50, truth - p90
    return RunTimeScore(
        pinball50=float(np.mean(np.abs(off)) / 2),
        pinball90=float(np.mean(np.maximum(0.9 * above, -0.1 * above))),
        coverage90=float(np.mean(above <= 0)),
        within2x=float(np.mean(np.abs(off) <= math.log(2))),
        n=len(truth),
        median_log_ratio=float(np.median(np.abs(off))),
    )


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
    """Waits of a trace's jobs under one policy."""

    avg_wait_s: float
    avg_bounded_slowdown: float
    """max(1, (wait + run) / max(run, 10 s))"""
    p95_wait_s: float
    max_wait_s: float
    n: int


def read_queueing(
    path: str | Path, format: str, *, nodes: int, arrivals: float = 1.0, strict: bool = False
) -> ReplayPlan:
    """The trace made ready for `backtest`. SpecError where no job is left; raises as `replay.prepare` does too."""
    plan = prepare(path, format, nodes=nodes, arrivals=arrivals, strict=strict)
    if not plan.jobs:
        raise SpecError("FILE", f"no job that could run on {nodes}", "Check --format and --nodes")
    return plan


def backtest_queueing(plan: ReplayPlan, format: str, *, every: bool = False) -> dict[str, QueueScore]:
    """Scores by policy, in the order of ROWS; `every`: with those that take a second model run too."""
    jobs = jobs_of(plan)
    asked = [run_of(job.arrival_ms, job, "", format, ()).submission for job in plan.jobs]
    users = [job.user for job in plan.jobs]
    starts = {
        "easy_requested": replay.easy(jobs, plan.units),
        "muster": replay.backfill(jobs, plan.units, ModelEstimates(asked, jobs.run), "slowdown"),
        "easy_plus_plus": replay.backfill(jobs, plan.units, replay.LastTwoEstimates(jobs, users)),
        "easy_actual": replay.easy(replace(jobs, estimate=jobs.run), plan.units),
        "easy_learned": replay.backfill(jobs, plan.units, ModelEstimates(asked, jobs.run)) if every else [],
        "slowdown_requested": replay.backfill(jobs, plan.units, KnownRunTimes(jobs.estimate), "slowdown"),
        "slowdown_actual": replay.backfill(jobs, plan.units, KnownRunTimes(jobs.run), "slowdown"),
    }
    return {name: score_queueing(jobs, starts[name]) for name in ROWS if starts[name]}


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


def score_queueing(jobs: JobColumns, starts: Sequence[int]) -> QueueScore:
    waits = [start - arrival for start, arrival in zip(starts, jobs.arrival, strict=True)]
    slowdowns = [max(1.0, (wait + run) / max(run, TAU_MS)) for wait, run in zip(waits, jobs.run, strict=True)]
    return QueueScore(
        avg_wait_s=sum(waits) / len(waits) / 1000,
        avg_bounded_slowdown=sum(slowdowns) / len(slowdowns),
        p95_wait_s=sorted(waits)[min(len(waits) - 1, len(waits) * 95 // 100)] / 1000,
        max_wait_s=max(waits) / 1000,
        n=len(waits),
    )
