"""What work would cost and when it would start. Lives beside the gate in the engine's process, and only reads.

The options are made up on the engine's thread, tried by the twin beside it, and merged on the thread that asks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from console.text.terminal_text import duration, timestamp
from engine.model.distributions import MIN_RUNS
from engine.model.errors import RefusedError, SpecError, of_code
from engine.model.twin_queries import MAX_HORIZON_MS, MAX_STRETCH, AskOptions, Options
from recommender.quotes.queries import AHEAD_MS, Quote, QuoteOption, QuoteRequest, RunTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from console.service.advisor import Advisor
    from engine.loop import EngineLoop
    from recommender.quotes.options import QuoteCandidate, QuotePlan
    from recommender.runtimes.cell_runs import WorkloadFeatures

MAX_SEEDS = 8
"""When there is time for so many."""
WAIT_S = 600.0
"""Longest wait for all seeds that were asked for."""
LATEST_ANSWER_S = 30.0


class Quotes:
    """Answers for the cell of one loop. May be asked by several threads, but not by the engine's own."""

    def __init__(self, loop: EngineLoop, advisor: Advisor) -> None:
        self._loop = loop
        self._advisor = advisor

    def quote(self, request: QuoteRequest) -> Quote:
        """Raises SpecError naming what is wrong, RefusedError when the twin is busy or cannot run."""
        from recommender.quotes.cost_estimates import as_if_free, likely_of, listed, priced
        from recommender.quotes.options import plan

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
                "is not given, and too little of such work has finished to know how long it runs",
                "Say how long it runs, such as --hours 6, or name work like it with --tenant and --name",
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
        """What the twin says of the options."""
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
            raise RefusedError(f"running ahead took more than {wait_s:g} s", "Ask for fewer seeds")
        if status.error is not None:
            raise of_code(status.error.code, status.error.problem, status.error.remedy)
        if not isinstance(status.answer, Options):
            raise RefusedError("the run was stopped before it was done", "Ask again")
        return status.answer


def _asked(request: QuoteRequest, made: QuotePlan) -> WorkloadFeatures:
    """What is known of the work before it is there."""
    from recommender.runtimes.cell_runs import WorkloadFeatures

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
        arrivals = f"with arrivals like of late{part}" if full else "without new arrivals"
        texts.append(
            f"starts: the cell as of {timestamp(at_ms)} UTC (v{found.version:,}), run ahead {arrivals} until {until}, "
            f"each option alone, {_runs(found)}"
        )
        if not request.seeds:
            texts.append(
                f"runs: as many as there was time for, and {MIN_RUNS} make quantiles; --within 20s looks further ahead "
                "in more of them, --seeds N takes the time it needs and runs on to the end"
            )
    if made.queue:
        chosen = ", the largest leaf it fits into; --queue names another" if made.queue_chosen else ""
        texts.append(f"queue: {made.queue}{chosen}")
    if made.candidates:
        texts.append(f"each task: {_task(made.candidates[0])}")
    if run.told:
        texts.append(f"run time: {duration(run.p50_ms)}, as told")
    else:
        held = "" if run.p90_coverage_permille is None else f", p90 held for {run.p90_coverage_permille / 10:g}%"
        texts.append(
            f"run time: {duration(run.p10_ms)} / {duration(run.p50_ms)} / {duration(run.p90_ms)} from "
            f"{run.samples:,} finished runs of {run.level}{held}"
        )
    if made.candidates:
        texts.append(f"prices: the pools', as of {timestamp(at_ms)} UTC, unchanged until it ends")
    texts.append(
        "cost: rate x time it holds its nodes, as the ledger charges it; nodes that boot or idle are not in it"
    )
    return texts


def _runs(found: Options) -> str:
    """How many of each option."""
    counts = [len(trial.attempts) for trial in found.trials]
    few, many = min(counts), max(counts)
    return f"{many} run{'s' if many != 1 else ''}" if few == many else f"{few} to {many} runs"


def _task(candidate: QuoteCandidate) -> str:
    asked = candidate.spec.groups[0].request
    parts = [f"{asked.cpu_milli / 1000:g} CPU", f"{asked.memory_mib / 1024:,.0f} GiB"]
    if asked.gpu_milli:
        parts.insert(0, f"{asked.gpu_milli / 1000:g} GPU")
    return f"{', '.join(parts)} of a node of pool {candidate.pool}"
