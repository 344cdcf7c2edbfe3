"""Run-time estimates against what happened, on a trace: Muster's beside every simple rule.

The protocol: jobs that ran, in order of submission; the last 30 % are scored, each from what had ended by its own
submission (start as logged, else submission, plus run time). Errors are of natural logarithms of seconds. Simple rules
give a point; their p90 is that plus the 90th percentile of their errors on the second half of the other 70 %.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.model.errors import SpecError
from engine.traces.progress import counted, stage
from engine.traces.trace_reader import FORMATS as READERS
from engine.traces.trace_reader import Problems, TraceFile, TraceJob
from recommender.history.sorted_window import SortedWindow
from recommender.runtimes.run_time_model import RunModel, RunTimeQuantiles
from recommender.runtimes.similar_runs import SubmittedRun

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
    """Of one method on one trace; logarithms are natural."""

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
    """What the model says of each at its submission, fed with what happened until then and nothing else."""
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
