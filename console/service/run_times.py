"""How long the live cell's work runs: what its engine's pages tell is fed to the model, and the model is asked.

It asks on the engine's own thread, one bounded window at a time, and what it has looked at it does not ask for again.
Nothing is stored: after a restart it learns the latest ends anew from the engine's state, each at its own moment, and
says what it said before, with three exceptions. Ends older than the last LOOKBACK are not learnt again. What was
stopped and began anew leaves no trace. And trees, which are fitted on a thread of their own once there is enough to
fit while whoever asks gets what was known before, are then fitted once to all that ended, not step by step.
"""

from __future__ import annotations

import importlib.util
import threading
from typing import TYPE_CHECKING

from console.client.cell_questions import RuntimeEstimate
from engine.model.queries import Page, Query, Term
from recommender.runtimes.cell_runs import (
    COLUMNS,
    LEVELS,
    LIVE,
    MAX_OPEN,
    CellRuns,
    Skill,
    WorkloadFeatures,
    WorkloadRow,
)
from recommender.runtimes.run_time_model import Floats, Forest, RunTimeQuantiles

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.model.accounting_history import PastRun
    from engine.model.queries import WorkloadDetail

PAGE = 1_000
"""Workloads in one answer of the engine: a few milliseconds of its time."""
LOOKBACK = 5_000
"""Most ends learnt at once, in about a second. With more since the last question, as after a restart, all that was
learnt is dropped for the latest."""


class LearnedRunTimes:
    """Answers for the cell of one loop. May be asked by several threads, but not by the engine's own."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._runs = CellRuns()
        self._looked_ms = 0
        """What happened before this cell time has been looked at."""
        self._past_ms = 0
        """Up to when what an outside scheduler remembers has been learnt."""
        self._lock = threading.Lock()
        """Held to learn and to ask what was learnt."""
        self._fitting: threading.Thread | None = None

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        """Of a workload, from what is known now; of one that runs, given how long it has. Raises NotFoundError."""
        workload = self._loop.call(lambda engine: engine.workload(workload_id))
        return self._ask(asked_of(workload), elapsed_ms(workload))

    def about(self, asked: WorkloadFeatures) -> RuntimeEstimate | None:
        """Of work that is not there yet; None while nothing is known that is like it."""
        return self._ask(asked, 0)

    def usual(self, running: Page) -> tuple[dict[str, RunTimeQuantiles], Skill | None]:
        """How long each on a page of workloads should run, where likes of its own tell; and how good that has been."""
        found = {}
        with self._lock:
            self._catch_up()
            for values in running.rows:
                row = dict(zip(running.columns, values, strict=True))
                asked = WorkloadFeatures(
                    name=row["name"],
                    tenant=row["tenant"],
                    queue=row["queue"],
                    tasks=row["tasks"],
                    gpu_milli=row["gpu"],
                    estimate_ms=row["estimate"] or 0,
                )
                if said := self._runs.usual(row["id"], asked, self._looked_ms):
                    found[row["id"]] = said
            return found, self._runs.skill()

    def settle(self) -> None:
        """Returns when trees that are being fitted have been."""
        if self._fitting is not None:
            self._fitting.join()

    def _ask(self, asked: WorkloadFeatures, elapsed_ms: int) -> RuntimeEstimate | None:
        with self._lock:
            self._catch_up()
            said, skill = self._runs.about(asked, self._looked_ms, elapsed_ms), self._runs.skill()
        if said is None:
            return None
        return RuntimeEstimate(
            p10_ms=said.p10_ms,
            p50_ms=said.p50_ms,
            p90_ms=said.p90_ms,
            samples=said.nearest_runs,
            level=LEVELS.get(said.nearest, ""),
            scored=skill.scored if skill else 0,
            p90_coverage_permille=skill.p90_coverage_permille if skill else None,
            median_abs_log_error=skill.median_abs_log_error if skill else None,
            basis=said.basis,
            learnt=said.samples,
            within2x_permille=skill.within2x_permille if skill else None,
            elapsed_ms=elapsed_ms,
        )

    def _catch_up(self) -> None:
        """Learn what has happened since. All of it is read before any is learnt: a failure costs none."""
        anew, from_ms, until_ms = self._loop.call(self._unlearnt)
        since_ms = 0 if anew else from_ms
        rows = self._all(window("ended", from_ms, until_ms), LOOKBACK)
        submitted = window("submitted", since_ms, until_ms, LIVE)
        rows += self._all(submitted, MAX_OPEN)
        if since_ms:
            rows += self._all(window("started", since_ms, until_ms, ("placed", "running")), MAX_OPEN)
        if anew:
            self._runs = CellRuns()
            rows += self._loop.call(lambda engine: past_rows(engine.state.past.runs))
        self._runs.feed(rows, since_ms, until_ms)
        self._looked_ms = until_ms
        self._fit_beside()

    def _unlearnt(self, engine: Engine) -> tuple[bool, int, int]:
        """Whether to learn anew, and the cell times from and up to before which ends are to be learnt.

        What ends from now on ends at the present millisecond or later, so nothing is added to a time before it.
        """
        told_ms = engine.state.past.until_ms
        from_ms, until_ms = self._looked_ms if told_ms == self._past_ms else 0, engine.now_ms
        self._past_ms = told_ms
        older = engine.query(page_of(window("-ended", from_ms, until_ms), LOOKBACK, 1)).rows
        if older:
            return True, older[0][COLUMNS.index("ended")] + 1, until_ms
        return from_ms == 0, from_ms, until_ms

    def _all(self, query: Query, most: int) -> list[WorkloadRow]:
        rows: list[WorkloadRow] = []
        while len(rows) < most:
            page = self._page(page_of(query, len(rows), PAGE))
            rows += (WorkloadRow(*values) for values in page.rows)
            if not page.rows or len(rows) >= page.matched:
                break
        return rows

    def _page(self, query: Query) -> Page:
        return self._loop.call(lambda engine: engine.query(query))

    def _fit_beside(self) -> None:
        """Starts to fit new trees when they are due, and none are being fitted, and the learner is installed."""
        if self._fitting is not None and self._fitting.is_alive():
            return
        rows = self._runs.training()
        if rows is not None and importlib.util.find_spec("sklearn") is not None:
            self._fitting = threading.Thread(target=self._fit, args=(self._runs, rows), name="run-times", daemon=True)
            self._fitting.start()

    def _fit(self, runs: CellRuns, rows: tuple[Floats, Floats]) -> None:
        trees = Forest(*rows)
        with self._lock:
            runs.adopt(trees)


def past_rows(runs: list[PastRun]) -> list[WorkloadRow]:
    """Runs from before the cell, as if it had seen those that finished. No workload has such an id."""
    return [
        WorkloadRow(
            id=f"//{number}", name=run.name, tenant=run.tenant, queue=run.queue, tasks=run.tasks,
            gpu_milli=run.gpu_milli, estimate_ms=run.limit_ms or None, state="finished", attempts=1, run_ms=run.run_ms,
            submitted_ms=run.submitted_ms, started_ms=run.started_ms, ended_ms=run.ended_ms,
        )
        for number, run in enumerate(runs)
        if run.finished
    ]  # fmt: skip


def window(sort: str, from_ms: int, until_ms: int, states: tuple[str, ...] = ()) -> Query:
    """Workloads for which the time of this column lies in [from, until)."""
    column = sort.removeprefix("-")
    times = (Term(column, ">=", from_ms), Term(column, "<", until_ms))
    return Query(
        kind="workloads",
        columns=COLUMNS,
        where=(*times, *(Term("state", "=", state) for state in states)),
        sort=(sort,),
    )


def page_of(query: Query, offset: int, limit: int) -> Query:
    return Query(kind=query.kind, columns=query.columns, where=query.where, sort=query.sort, offset=offset, limit=limit)


def asked_of(workload: WorkloadDetail) -> WorkloadFeatures:
    """What was known of a workload before it ran."""
    return WorkloadFeatures(
        name=workload.name,
        tenant=workload.tenant,
        queue=workload.queue,
        tasks=sum(group.count for group in workload.groups),
        gpu_milli=sum(group.count * group.gpu_milli for group in workload.groups),
        estimate_ms=workload.estimate_ms,
    )


def elapsed_ms(workload: WorkloadDetail) -> int:
    """How much of its work is behind a workload that runs."""
    if workload.state != "running" or workload.started_ms is None:
        return 0
    return workload.kept_ms + workload.now_ms - workload.started_ms
