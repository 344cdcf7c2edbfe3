"""The recommender's answers about the live cell: how long work runs, what stands out, and quotes of cost and start
time.

Lives in the engine's process and only reads. It asks on the engine's own thread, one bounded window at a time; the
options of a quote are tried by the twin beside it and merged on the calling thread.

Run times (`LearnedRunTimes`) are learnt incrementally and not stored. After a restart the latest ends are learnt
anew from the engine's state, each at its own moment, with the same result but for three cases: ends before the last
LOOKBACK are not learnt again; work that was stopped and begun anew leaves no trace; and trees are fitted once to all
ends instead of step by step. Trees are fitted on a thread of their own, and until then the previous estimates are
given.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from console.client.protocol import RuntimeEstimate
from console.text.terminal_text import duration, timestamp
from engine.model.details import NodeDetail, WorkloadDetail
from engine.model.errors import RefusedError, SpecError, of_code
from engine.model.list_queries import Page, Query, Term
from engine.model.quantities import MIN_RUNS, counted
from engine.model.twin_queries import MAX_HORIZON_MS, MAX_STRETCH, AskOptions, Options
from recommender.estimates.cell_runs import (
    COLUMNS,
    LEVELS,
    LIVE,
    MAX_OPEN,
    CellRuns,
    Skill,
    WorkloadFeatures,
    WorkloadRow,
)
from recommender.estimates.queries import AHEAD_MS, Quote, QuoteOption, QuoteRequest, RunTime
from recommender.estimates.run_time_model import Floats, Forest, RunTimeQuantiles
from recommender.findings.cell_reading import CellReader
from recommender.findings.failing_nodes import failing_nodes
from recommender.findings.kinds import detected
from recommender.findings.live_findings import FRAGMENTED_WAIT_MS, QuantileCoverage, RunTimeOpinion, advise
from recommender.findings.suggestions import MAX_TARGETS, Advice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.model.external_cells import PastRun
    from recommender.estimates.quotes import QuoteCandidate, QuotePlan


PAGE = 1_000
"""Workloads in one answer of the engine: a few milliseconds of its time."""
LOOKBACK = 5_000
"""Most ends learnt at once, in about a second. With more since the last question, as after a restart, all that was
learnt is dropped for the latest."""


class LearnedRunTimes:
    """Run-time estimates for the cell of one loop. May be called by several threads, but not by the engine's own."""

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
        """Estimate for a workload from what is known now; for a running one, given its time so far. Raises
        NotFoundError."""
        workload = self._loop.call(lambda engine: engine.workload(workload_id))
        return self._ask(asked_of(workload), elapsed_ms(workload))

    def about(self, asked: WorkloadFeatures) -> RuntimeEstimate | None:
        """Estimate for work that does not exist yet; None while nothing like it is known."""
        return self._ask(asked, 0)

    def usual(self, running: Page) -> tuple[dict[str, RunTimeQuantiles], Skill | None]:
        """Expected run times of a page of workloads, where similar work tells; and the skill of such estimates."""
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
        """Wait until trees that are being fitted are done."""
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
        """Learn what has happened since. All of it is read before any is learnt, so a failure loses nothing."""
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
        """True when everything is to be learnt anew, and the cell times from and up to which ends are to be learnt.

        Work that ends from now on ends at the present millisecond or later, so nothing is added before it.
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
        """Start to fit new trees when they are due, none are being fitted, and the learner is installed."""
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
    """Runs from before the cell as workload rows, of those that finished. No workload has such an id."""
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
    """Query for workloads whose time in this column lies in [from, until)."""
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
    """Features of a workload that were known before it ran."""
    return WorkloadFeatures(
        name=workload.name,
        tenant=workload.tenant,
        queue=workload.queue,
        tasks=sum(group.count for group in workload.groups),
        gpu_milli=sum(group.count * group.gpu_milli for group in workload.groups),
        estimate_ms=workload.estimate_ms,
    )


def elapsed_ms(workload: WorkloadDetail) -> int:
    """Work that a running workload has done so far, milliseconds."""
    if workload.state != "running" or workload.started_ms is None:
        return 0
    return workload.kept_ms + workload.now_ms - workload.started_ms


WINDOW = 2_000
"""Workloads that advice looks at: those that wait or run longest."""
WAITED_MS = FRAGMENTED_WAIT_MS // 2

WAITING = Query(
    kind="workloads",
    columns=("id", "queue", "state", "reason", "wait", "gpu", "cpu"),
    where=(Term("state", "=", "queued"), Term("wait", ">", WAITED_MS)),
    sort=("-wait",),
    limit=WINDOW,
)
RUNNING = Query(
    kind="workloads",
    columns=("id", "name", "state", "tenant", "queue", "tasks", "gpu", "cpu", "run", "estimate"),
    where=(Term("state", "=", "running"),),
    sort=("-run",),
    limit=WINDOW,
)
CORDONED = Query(
    kind="nodes",
    columns=("id",),
    where=(Term("state", "=", "cordoned"),),
    sort=("workloads",),
    limit=MAX_TARGETS,
)
"""The empty ones first."""


class Advisor:
    """Advice for the cell of one loop. May be called by several threads, but not by the engine's own."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self.run_times = LearnedRunTimes(loop)
        self._reader = CellReader()

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        """Total run time of a workload; None while nothing like it is known. Raises NotFoundError."""
        return self.run_times.estimate(workload_id)

    def run_time_of(self, asked: WorkloadFeatures) -> RuntimeEstimate | None:
        """The same of work that is not there yet."""
        return self.run_times.about(asked)

    def advice(self) -> Advice:
        """Everything found now, and what could not be judged."""
        overview = self._loop.call(lambda engine: engine.overview())
        waiting, running = self._page(WAITING), self._page(RUNNING)
        cordoned, unseen = self._loop.call(cordoned_nodes)
        failing = failing_nodes(self._loop.call(lambda engine: engine.agents.report()))
        causes = detected(self._loop.call(self._reader.read))
        likely, covered = self._likely(running)
        found = advise(
            overview,
            waiting=waiting,
            cordoned=cordoned,
            running=running,
            likely=likely,
            covered=covered,
        )
        partly = (f"{unseen:,} more cordoned nodes were not checked",) if unseen else ()
        # Of two about the same targets the first is kept: a cause says which waiting work it would start.
        suggestions = (*causes, *failing, *found.suggestions)
        return Advice(version=found.version, suggestions=suggestions, unknown=(*found.unknown, *partly))

    def _likely(self, running: Page) -> tuple[dict[str, RunTimeOpinion], QuantileCoverage | None]:
        """Expected run times of running work, where similar work tells, and how well such figures have held."""
        usual, skill = self.run_times.usual(running)
        likely = {
            id: RunTimeOpinion(p90_ms=said.p90_ms, samples=said.nearest_runs, level=LEVELS[said.nearest])
            for id, said in usual.items()
        }
        if skill is None:
            return likely, None
        return likely, QuantileCoverage(scored=skill.scored, p90_coverage_permille=skill.p90_coverage_permille)

    def _page(self, query: Query) -> Page:
        return self._loop.call(lambda engine: engine.query(query))


def cordoned_nodes(engine: Engine) -> tuple[list[NodeDetail], int]:
    """Up to MAX_TARGETS cordoned nodes, and how many more there are."""
    page = engine.query(CORDONED)
    return [engine.node(node_id) for (node_id,) in page.rows], page.matched - len(page.rows)


MAX_SEEDS = 8
"""Seeds when there is time for them."""
WAIT_S = 600.0
"""Longest wait for all seeds that were asked for."""
LATEST_ANSWER_S = 30.0


class Quotes:
    """Quotes for the cell of one loop. May be called by several threads, but not by the engine's own."""

    def __init__(self, loop: EngineLoop, advisor: Advisor) -> None:
        self._loop = loop
        self._advisor = advisor

    def quote(self, request: QuoteRequest) -> Quote:
        """A quote for the request. Raises SpecError naming what is wrong, RefusedError when the twin is busy or
        cannot run."""
        from recommender.estimates.quotes import as_if_free, likely_of, listed, plan, priced

        begun = time.monotonic()
        made = self._loop.call(lambda engine: plan(engine.state, request, engine.now_ms))
        run = self._run_time(request, made)
        likely = likely_of(run)
        near = [each for each in made.candidates if each.asked_start_ms - made.at_ms + AHEAD_MS <= MAX_HORIZON_MS]
        found = self._tried(request, near, likely, run, begun) if near else None
        options: list[QuoteOption] = []
        by_id = {trial.id: trial for trial in found.trials} if found is not None else {}
        for candidate in made.candidates:
            trial = by_id.get(candidate.spec.id)
            if trial is None or found is None:
                options.append(as_if_free(candidate, run))
            else:
                options.append(priced(candidate, trial, found, run))
        at_ms = made.at_ms if found is None else found.at_ms
        asked_ms = max(request.start_ms or at_ms, at_ms)
        options += [listed(offer, request.nodes, request.model, asked_ms, run) for offer in request.offers]
        return Quote(
            version=made.version if found is None else found.version,
            at_ms=at_ms,
            nodes=request.nodes,
            queue=made.queue,
            run_time=run,
            options=tuple(options),
            assumptions=tuple(_assumptions(request, made, run, found, at_ms)),
            warnings=made.warnings,
            took_ms=round((time.monotonic() - begun) * 1000),
        )

    def _run_time(self, request: QuoteRequest, made: QuotePlan) -> RunTime:
        if request.run_ms:
            ms = request.run_ms
            return RunTime(p10_ms=ms, p50_ms=ms, p90_ms=ms, told=True, samples=0, level="", p90_coverage_permille=None)
        found = self._advisor.run_time_of(_asked(request, made)) if made.candidates else None
        if found is None:
            raise SpecError(
                "hours",
                "is not given, and too few similar jobs have finished to estimate the run time",
                "Give the run time, such as --hours 6, or name similar jobs with --tenant and --name",
            )
        return RunTime(
            p10_ms=found.p10_ms,
            p50_ms=found.p50_ms,
            p90_ms=found.p90_ms,
            told=False,
            samples=found.samples,
            level=found.level,
            p90_coverage_permille=found.p90_coverage_permille,
        )

    def _tried(
        self, request: QuoteRequest, near: Sequence[QuoteCandidate], likely: tuple[int, ...], run: RunTime, begun: float
    ) -> Options:
        """The twin's result for the options."""
        # Whoever does not know gives the time that is hardly ever passed.
        estimate_ms = run.p90_ms
        ahead_ms = max(candidate.asked_start_ms for candidate in near) - self._loop.engine.now_ms
        horizon_ms = max(ahead_ms, 0) + AHEAD_MS + (2 * run.p90_ms if request.seeds else 0)
        spent_ms = round((time.monotonic() - begun) * 1000)
        ask = AskOptions(
            workloads=tuple(msgspec.structs.replace(each.spec, estimate_ms=estimate_ms) for each in near),
            run_ms=(likely,) * len(near),
            horizon_ms=min(horizon_ms, MAX_HORIZON_MS),
            seeds=request.seeds or MAX_SEEDS,
            seed=request.seed,
            arrivals=request.arrivals,
            until="ended" if request.seeds else "started",
            within_ms=0 if request.seeds else max(request.within_ms - spent_ms, request.within_ms // 2),
        )
        run_id = self._loop.call(lambda _: self._loop.twins.start(ask)).id
        wait_s = WAIT_S if request.seeds else LATEST_ANSWER_S + MAX_STRETCH * request.within_ms / 1000
        status = self._loop.twins.finish(run_id, wait_s)
        if status.state == "running":
            self._loop.twins.cancel(run_id)
            raise RefusedError(f"running ahead took more than {wait_s:g} s", "Use fewer seeds")
        if status.error is not None:
            raise of_code(status.error.code, status.error.problem, status.error.remedy)
        if not isinstance(status.answer, Options):
            raise RefusedError("the run was stopped before it finished", "Try again")
        return status.answer


def _asked(request: QuoteRequest, made: QuotePlan) -> WorkloadFeatures:
    """Features of the requested work."""

    group = made.candidates[0].spec.groups[0]
    return WorkloadFeatures(
        name=request.name,
        tenant=request.tenant,
        queue=made.queue,
        tasks=group.count,
        gpu_milli=group.count * group.request.gpu_milli,
    )


def _assumptions(request: QuoteRequest, made: QuotePlan, run: RunTime, found: Options | None, at_ms: int) -> list[str]:
    texts = []
    if found is not None:
        until = "its end" if found.until == "ended" else "its start"
        full = sum(trial.arrivals for trial in found.trials)
        part = f" ({full} of {len(found.trials)} options)" if 0 < full < len(found.trials) else ""
        arrivals = f"with recent arrival rates{part}" if full else "without new arrivals"
        texts.append(
            f"starts: the cell as of {timestamp(at_ms)} UTC (v{found.version:,}), run ahead {arrivals} until {until}, "
            f"each option by itself, {_runs(found)}"
        )
        if not request.seeds:
            texts.append(
                f"runs: as many as time allowed; quantiles need {MIN_RUNS}. --within 20s does more, further ahead; "
                "--seeds N runs to the end, however long"
            )
    if made.queue:
        chosen = ", the largest leaf queue it fits into; --queue chooses another" if made.queue_chosen else ""
        texts.append(f"queue: {made.queue}{chosen}")
    if made.candidates:
        texts.append(f"each task: {_task(made.candidates[0])}")
    if run.told:
        texts.append(f"run time: {duration(run.p50_ms)}, as given")
    else:
        held = "" if run.p90_coverage_permille is None else f", p90 correct for {run.p90_coverage_permille / 10:g}%"
        texts.append(
            f"run time: {duration(run.p10_ms)} / {duration(run.p50_ms)} / {duration(run.p90_ms)} from "
            f"{run.samples:,} finished runs of {run.level}{held}"
        )
    if made.candidates:
        texts.append(f"prices: of the pools, as of {timestamp(at_ms)} UTC, unchanged until it ends")
    texts.append("cost: rate x time on its nodes, as charged; booting or idle nodes are not included")
    return texts


def _runs(found: Options) -> str:
    """Number of runs of each option, in words."""
    counts = [len(trial.attempts) for trial in found.trials]
    few, many = min(counts), max(counts)
    return counted(many, "run") if few == many else f"{few} to {many} runs"


def _task(candidate: QuoteCandidate) -> str:
    asked = candidate.spec.groups[0].request
    parts = [f"{asked.cpu_milli / 1000:g} CPU", f"{asked.memory_mib / 1024:,.0f} GiB"]
    if asked.gpu_milli:
        parts.insert(0, f"{asked.gpu_milli / 1000:g} GPU")
    return f"{', '.join(parts)} of a node of pool {candidate.pool}"
