"""Run-time model of a live cell, fed from its engine in the order in which things happened.

Rows are fed in windows of cell time. Within a window every submission, start and end reaches the model at its own
moment, so an estimate at submission rests on what had ended by then, however late the window is looked at.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from recommender.estimates.run_time_model import (
    ENOUGH,
    FAR_LIKES,
    Floats,
    Forest,
    RunModel,
    RunTimeQuantiles,
    SubmittedRun,
    given_elapsed,
)

COLUMNS = (
    "id", "name", "tenant", "queue", "tasks", "gpu", "estimate", "state", "attempts", "run", "submitted", "started",
    "ended",
)  # fmt: skip
"""Of the engine's page of workloads, in the order of `WorkloadRow`."""
LIVE = ("queued", "held", "placed", "running", "suspended", "waiting")
"""States before the end."""
SKILL_WINDOW = 1_000
MAX_OPEN = 20_000
"""Workloads that have not ended and are followed. What comes on top is learnt when it ends, and not scored."""
DIGITS = re.compile(r"\d+")
LEVELS = {
    "same": "tenant, name and size",
    "user asked": "tenant and request",
    "user name": "tenant and name",
    "user size": "tenant and size",
    "user": "tenant",
    "name size": "name and size",
    "queue size asked": "queue and size",
    "size": "size",
    "all": "all",
}
"""What likes share, as people are told: what makes runs the likes of a workload."""

ENDED, SUBMITTED, STARTED, OUTRUN, ENDED_AT_ONCE = range(5)
"""What happens at one moment, in this order."""


class WorkloadFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The known features of a workload before it runs."""

    name: str
    tenant: str
    queue: str
    tasks: int
    gpu_milli: int
    """Of all tasks together."""
    estimate_ms: int = 0
    """What its owner asked for; 0 means not given."""


class WorkloadRow(NamedTuple):
    """A workload on the engine's page."""

    id: str
    name: str
    tenant: str
    queue: str
    tasks: int
    gpu_milli: int
    estimate_ms: int | None
    state: str
    attempts: int
    run_ms: int | None
    submitted_ms: int
    started_ms: int | None
    ended_ms: int | None


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """The measured quality of the estimates, each made when the work it is compared with was submitted.

    Over the last SKILL_WINDOW ends, of those that ended by themselves at their first attempt.
    """

    scored: int
    abstained: int
    """Ends for which there had not been enough evidence to estimate."""
    p90_coverage_permille: int
    """Share of runs that took at most their p90. 900 is perfect."""
    within2x_permille: int
    """Share of runs at most twice and at least half their p50."""
    median_abs_log_error: float
    """Of p50 against the run, natural logarithm: 0.69 is a factor of two."""


class CellRuns:
    """Feed it windows of cell time one after the other."""

    def __init__(self) -> None:
        self._model = RunModel(("tasks",), fits_itself=False)
        self._open: dict[str, bool] = {}
        """Followed workload -> whether it is scored."""
        self._due: list[tuple[int, int, int, str]] = []
        """When which p90 goes by."""
        self._scores: deque[tuple[bool, float] | None] = deque(maxlen=SKILL_WINDOW)
        """Whether p90 covered the run, and the logarithm of the run over p50; None where nothing was said."""

    def feed(self, rows: Iterable[WorkloadRow], from_ms: int, until_ms: int) -> None:
        """Feed what happened in [from, until).

        `rows` are the workloads that ended then, those submitted then that have not ended, and those that started then.
        """
        by_id = {row.id: row for row in rows}
        for number, row in enumerate(by_id.values()):
            for at_ms, what in self._moments(row, from_ms, until_ms):
                heapq.heappush(self._due, (at_ms, what, number, row.id))
        while self._due and self._due[0][0] < until_ms:
            at_ms, what, _, id = heapq.heappop(self._due)
            if what == OUTRUN:
                if id in self._open:
                    self._model.outrun(id)
            else:
                self._tell(by_id[id], what, at_ms, from_ms)

    def about(self, asked: WorkloadFeatures, now_ms: int, elapsed_ms: int = 0) -> RunTimeQuantiles | None:
        """The run time of such work, given that it has run so long; None when nothing is known that is like it."""
        said = self._model.about(submission(asked, now_ms))
        return given_elapsed(said, elapsed_ms) if supported(said) else None

    def usual(self, id: str, asked: WorkloadFeatures, now_ms: int) -> RunTimeQuantiles | None:
        """The same of a workload of its own likes: what was said when it was submitted, if there was enough by then."""
        if id in self._open:
            said = self._model.estimate(id)
            if supported(said) and said.basis != "request" and said.nearest not in FAR_LIKES:
                return said
        fresh = self.about(asked, now_ms)
        return fresh if fresh and fresh.basis != "request" and fresh.nearest not in FAR_LIKES else None

    def skill(self) -> Skill | None:
        """Measured so far; None before the first scored run."""
        scored = [score for score in self._scores if score is not None]
        if not scored:
            return None
        off = sorted(abs(log_ratio) for _, log_ratio in scored)
        return Skill(
            scored=len(scored),
            abstained=len(self._scores) - len(scored),
            p90_coverage_permille=sum(covered for covered, _ in scored) * 1000 // len(scored),
            within2x_permille=sum(each <= math.log(2) for each in off) * 1000 // len(scored),
            median_abs_log_error=off[(len(off) - 1) // 2],
        )

    def training(self) -> tuple[Floats, Floats] | None:
        """Return the data to fit a `Forest` to, which takes seconds, for `adopt`; None while the trees at hand are
        fresh."""
        return self._model.training() if self._model.stale() else None

    def adopt(self, trees: Forest) -> None:
        self._model.adopt(trees)

    def _moments(self, row: WorkloadRow, from_ms: int, until_ms: int) -> list[tuple[int, int]]:
        """Return what is to be told of it, and when."""
        found = []
        submitted_ms = max(row.submitted_ms, from_ms)
        if row.id not in self._open:
            if row.attempts > 1 or (row.ended_ms is None and len(self._open) >= MAX_OPEN):
                return []
            found.append((submitted_ms, SUBMITTED))
        if row.started_ms is not None and from_ms <= row.started_ms < until_ms:
            found.append((max(row.started_ms, submitted_ms), STARTED))
        if row.ended_ms is not None and row.ended_ms < until_ms:
            found.append((row.ended_ms, ENDED if row.ended_ms > submitted_ms else ENDED_AT_ONCE))
        return found

    def _tell(self, row: WorkloadRow, what: int, at_ms: int, from_ms: int) -> None:
        if what == SUBMITTED:
            asked = WorkloadFeatures(
                name=row.name,
                tenant=row.tenant,
                queue=row.queue,
                tasks=row.tasks,
                gpu_milli=row.gpu_milli,
                estimate_ms=row.estimate_ms or 0,
            )
            self._model.submitted(row.id, submission(asked, at_ms))
            self._open[row.id] = row.submitted_ms >= from_ms
        elif row.id not in self._open:
            return
        elif what == STARTED:
            # A later attempt may begin at a checkpoint: its run is not the whole work.
            if row.attempts > 1:
                self._forget(row.id)
            else:
                self._model.started(row.id, at_ms)
                heapq.heappush(self._due, (at_ms + self._model.estimate(row.id).p90_ms, OUTRUN, 0, row.id))
        elif row.state == "finished" and row.attempts == 1:
            run_ms = max(row.run_ms or 0, 1)
            said = self._model.estimate(row.id)
            if self._open.pop(row.id):
                score = (run_ms <= said.p90_ms, math.log(run_ms / said.p50_ms)) if supported(said) else None
                self._scores.append(score)
            self._model.ended(row.id, run_ms, at_ms)
        else:
            self._forget(row.id)

    def _forget(self, id: str) -> None:
        del self._open[id]
        self._model.forget(id)


def supported(said: RunTimeQuantiles) -> bool:
    """Return whether it rests on more than a handful of runs, or on the request."""
    return said.basis in ("trees", "request") or said.nearest_runs >= ENOUGH


def submission(asked: WorkloadFeatures, at_ms: int) -> SubmittedRun:
    """Return a submission as the model is told of it. Names that are empty or a number say nothing of what runs."""
    stem = DIGITS.sub("", asked.name)
    return SubmittedRun(
        at_ms=at_ms,
        user=asked.tenant,
        name=stem if stem.strip("-_./ ") else "",
        queue=asked.queue,
        size=asked.gpu_milli or asked.tasks,
        requested_ms=asked.estimate_ms,
        figures=(asked.tasks,),
    )
