"""When a workload will start, as a distribution, what that hangs on, and how good such estimates have been.

Every seed is one rehearsal up to the start. Estimates that were shown are kept beside the journal, and scored once
the workload has started: how often the truth lay between p10 and p90, and how far the median was off, by how far ahead
it was told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.control import Engine
from engine.external.slurm.pending_words import not_foretold
from engine.journal.tables import Estimate
from engine.model import what_if_edits as ed
from engine.model.specs import WorkloadState
from engine.model.twin_queries import (
    AskRun,
    AskStart,
    Driver,
    DryRun,
    Score,
    ScoreReport,
    Start,
    StartEstimate,
    StartFigure,
    Trial,
)
from engine.state import workloads as wl
from engine.state.run_times import RunTimes
from engine.twin.rehearsals import Conditions, HorizonProgress, RehearsalSample
from engine.twin.what_if import NEVER, Job, Pairs, ids_of, interval, movers, run_all, start_of

MAX_DRIVERS = 5
BOUND_SEEDS = 5
"""Seeds without new arrivals, for the least time, where the others have arrivals."""
LEADS: tuple[tuple[str, int], ...] = (
    ("< 10 min", 600_000),
    ("10 min - 1 h", 3_600_000),
    ("1 h - 6 h", 21_600_000),
    ("> 6 h", 2**62),
)
"""(title, milliseconds below which)"""
LATEST_SUBMISSION_MS = 300_000
"""A trial counts as an estimate of what is submitted under the same id so soon after it."""


def estimate(
    engine: Engine, ask: AskStart, run_times: RunTimes | None, tell: Callable[[int, StartEstimate | None], None]
) -> StartEstimate:
    """The whole estimate. `tell(permille, estimate so far)` as seeds come in. Raises MusterError."""
    state = engine.state
    row = state.workloads.row(ask.id)
    label = WorkloadState(state.workloads.state[row]).label
    reasons = engine.reader.explainer.reasons(row)
    jobs: list[Job] = [((), _conditions(ask, n, ask.arrivals)) for n in range(ask.seeds)]
    bounds = min(BOUND_SEEDS, ask.seeds) if ask.arrivals else 0
    jobs += [((), _conditions(ask, n, False)) for n in range(bounds)]
    done: dict[int, RehearsalSample] = {}

    def made() -> StartEstimate:
        main = [done[job] for job in sorted(done) if job < ask.seeds]
        free = main if not ask.arrivals else [done[job] for job in sorted(done) if job >= ask.seeds]
        soonest = min((s.focus[0].started_ms for s in free if s.focus[0].started_ms != NEVER), default=None)
        gates = [Driver(kind="gate", subject=r.token, text=r.text, chance_permille=1000) for r in reasons[:1]]
        return StartEstimate(
            version=engine.version,
            at_ms=engine.now_ms,
            horizon_ms=ask.horizon_ms,
            seeds=len(main),
            id=ask.id,
            state=label,
            start=start_of([s.focus[0].started_ms for s in main]),
            soonest_ms=soonest,
            arrivals=ask.arrivals,
            drivers=(*gates, *_ends(main), *_ahead(engine, row, main)),
            basis=run_times.basis() if run_times is not None else "",
            leaves_out=not_foretold(state, row),
        )

    def heard(job: int, what: RehearsalSample | HorizonProgress) -> None:
        if isinstance(what, RehearsalSample):
            done[job] = what
            if len(done) < len(jobs) and any(key < ask.seeds for key in done):
                tell(len(done) * 1000 // len(jobs), made())

    run_all(engine, jobs, run_times, heard)
    return made()


def _conditions(ask: AskStart, n: int, arrivals: bool) -> Conditions:
    return Conditions(seed=ask.seed + n, horizon_ms=ask.horizon_ms, arrivals=arrivals, focus=(ask.id,), until="started")


def _ends(samples: list[RehearsalSample]) -> list[Driver]:
    """Work whose end, the last on the nodes it got, made room for it."""
    times: dict[str, list[int]] = {}
    for sample in samples:
        freed = sample.focus[0].freed_by
        last_ms = max((at_ms for _, at_ms in freed), default=0)
        for name, at_ms in freed:
            # Room that had long been there was not what it waited for.
            if at_ms == last_ms:
                times.setdefault(name, []).append(at_ms)
    found = sorted(times.items(), key=lambda item: (-len(item[1]), item[0]))[:MAX_DRIVERS]
    return [
        Driver(
            kind="ends",
            subject=name,
            text=f"{name} leaves its nodes",
            chance_permille=len(at) * 1000 // len(samples),
            at_ms=sorted(at)[(len(at) - 1) // 2],
        )
        for name, at in found
    ]


def _ahead(engine: Engine, row: int, samples: list[RehearsalSample]) -> list[Driver]:
    """Waiting work of its own queue, and of others of its priority and above, that starts before it does: the largest,
    by what they ask for, of those that do so in most seeds."""
    w = engine.state.workloads
    counts: Counter[int] = Counter()
    times: dict[int, list[int]] = {}
    for sample in samples:
        own = sample.focus[0].started_ms
        rows = memoryview(sample.rows).cast("i").tolist()
        starts = memoryview(sample.starts).cast("q").tolist()
        for other, at_ms in zip(rows, starts, strict=True):
            if other != row and (own == NEVER or at_ms <= own):
                counts[other] += 1
                times.setdefault(other, []).append(at_ms)
    often = [other for other, count in counts.items() if 2 * count >= len(samples)]
    size = engine.state.cell_share
    often.sort(key=lambda other: (-counts[other], -size(w.class_at(other).request), other))
    return [
        Driver(
            kind="ahead",
            subject=w.ids[other],
            text=f"{w.ids[other]} starts first",
            chance_permille=counts[other] * 1000 // len(samples),
            at_ms=sorted(times[other])[(len(times[other]) - 1) // 2],
        )
        for other in often[:MAX_DRIVERS]
    ]


# -- before submitting ------------------------------------------------------------------------------------------------


def dry_run(
    engine: Engine, ask: AskRun, run_times: RunTimes | None, tell: Callable[[int, DryRun | None], None]
) -> DryRun:
    """What would become of the workloads, and of others because of them. Raises MusterError."""
    edits: tuple[ed.AnyEdit, ...] = (ed.SubmitEdit(workloads=ask.workloads),)
    focus = tuple(name for spec in ask.workloads for name in ids_of(spec))
    pairs = Pairs()
    for n in range(ask.seeds):
        under = Conditions(
            seed=ask.seed + n, horizon_ms=ask.horizon_ms, arrivals=ask.arrivals, focus=focus, until="ended"
        )
        after = _one(engine, (edits, under), run_times)
        # The other side need not go on for longer.
        shorter = Conditions(seed=ask.seed + n, horizon_ms=max(after.covered_ms, 1), arrivals=ask.arrivals, focus=focus)
        pairs.add(_one(engine, ((), shorter), run_times), after)
        if n + 1 < ask.seeds:
            tell((n + 1) * 1000 // ask.seeds, _dry_run(engine, ask, focus, pairs))
    return _dry_run(engine, ask, focus, pairs)


def _one(engine: Engine, job: Job, run_times: RunTimes | None) -> RehearsalSample:
    found: list[RehearsalSample] = []

    def heard(_job: int, what: RehearsalSample | HorizonProgress) -> None:
        if isinstance(what, RehearsalSample):
            found.append(what)

    run_all(engine, [job], run_times, heard)
    return found[-1]


def _dry_run(engine: Engine, ask: AskRun, focus: tuple[str, ...], pairs: Pairs) -> DryRun:
    first = pairs.after[0]
    trials = []
    for n, name in enumerate(focus):
        found = [sample.focus[n] for sample in pairs.after]
        trials.append(
            Trial(
                id=name,
                starts_now=found[0].started_ms == engine.now_ms,
                start=start_of([one.started_ms for one in found]),
                end_p50_ms=start_of([one.ended_ms for one in found]).p50_ms,
                cost=interval(one.cost_microusd for one in found),
                reason=found[0].reason,
            )
        )
    evictions = [
        dict(after.figures)["evictions", "cell", ""] - dict(before.figures)["evictions", "cell", ""]
        for before, after in zip(pairs.before, pairs.after, strict=True)
    ]
    covered_ms = min(sample.covered_ms for sample in pairs.after)
    moved: list[StartFigure] = movers(pairs, engine, covered_ms, focus)
    return DryRun(
        version=engine.version,
        at_ms=engine.now_ms,
        horizon_ms=ask.horizon_ms,
        covered_ms=covered_ms,
        seeds=len(pairs.after),
        trials=tuple(trials),
        preempts_now=tuple(dict.fromkeys(victim for _, victims in first.stopped_for for victim in victims)),
        evictions=interval(evictions),
        delayed=tuple(figure for figure in moved if figure.why == "later"),
    )


# -- kept and scored --------------------------------------------------------------------------------------------------


def shown(engine: Engine, answer: StartEstimate | DryRun) -> list[Estimate]:
    """What is to be kept of an answer that somebody sees: the starts that came with quantiles."""
    w = engine.state.workloads

    def kept(name: str, kind: str, start: Start) -> list[Estimate]:
        if start.chance_permille is None:
            return []
        row = w.row_of.get(name)
        found = Estimate(
            at_ms=answer.at_ms,
            version=answer.version,
            horizon_ms=answer.horizon_ms,
            kind=kind,
            workload=name,
            attempts=0 if row is None else w.attempts[row],
            p10_ms=start.p10_ms,
            p50_ms=start.p50_ms,
            p90_ms=start.p90_ms,
            chance_permille=start.chance_permille,
        )
        return [found]

    if isinstance(answer, StartEstimate):
        return [] if answer.start is None else kept(answer.id, "start", answer.start)
    return [one for trial in answer.trials for one in kept(trial.id, "run", trial.start)]


def score(engine: Engine) -> ScoreReport:
    """All estimates ever shown, against the starts that the cell has seen since. Raises JournalError."""
    errors: dict[str, list[tuple[int, int]]] = {}
    """Lead -> (-1 early, 0 covered, 1 late; absolute error of the median in milliseconds)."""
    stored = engine.estimates()
    known = 0
    for one in stored:
        start_ms = _truth(engine, one)
        if start_ms is None:
            continue
        known += 1
        open_ms = one.at_ms + one.horizon_ms
        low, middle, high = (at_ms if at_ms is not None else open_ms for at_ms in (one.p10_ms, one.p50_ms, one.p90_ms))
        side = -1 if start_ms < low else 1 if one.p90_ms is not None and start_ms > high else 0
        lead = next(title for title, below in LEADS if middle - one.at_ms < below)
        for title in ("all", lead):
            errors.setdefault(title, []).append((side, abs(start_ms - middle)))
    return ScoreReport(
        version=engine.version,
        now_ms=engine.now_ms,
        stored=len(stored),
        open=len(stored) - known,
        scores=tuple(_score(title, errors[title]) for title in ("all", *dict(LEADS)) if title in errors),
    )


def _score(title: str, found: list[tuple[int, int]]) -> Score:
    sides = Counter(side for side, _ in found)
    off = sorted(error for _, error in found)
    return Score(
        lead=title,
        estimates=len(found),
        covered_permille=sides[0] * 1000 // len(found),
        early_permille=sides[-1] * 1000 // len(found),
        late_permille=sides[1] * 1000 // len(found),
        median_error_ms=off[(len(off) - 1) // 2],
    )


def _truth(engine: Engine, one: Estimate) -> int | None:
    """When the attempt that was estimated began; None while that is not known."""
    w = engine.state.workloads
    row = w.row_of.get(one.workload)
    if row is None or w.attempts[row] <= one.attempts:
        return None
    if one.kind == "run" and not 0 <= w.submitted[row] - one.at_ms <= LATEST_SUBMISSION_MS:
        return None
    starts = []
    entry = w.history[row]
    while entry >= 0:
        if w.history_what[entry] == wl.PLACED:
            starts.append(w.history_at[entry])
        entry = w.history_previous[entry]
    start_ms: int = starts[::-1][one.attempts]
    return start_ms
