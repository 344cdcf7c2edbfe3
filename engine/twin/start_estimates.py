"""Start estimates: a workload's start in runs of the twin, its causes, the accuracy of past estimates, and a comparison
of several ways to run it.

Every seed is one rehearsal up to the start. What people are told is the forecast that these runs refine
(`engine.twin.start_forecasts`). The runs' own quantiles are kept beside the journal and scored once the workload has
started: the share of starts between p10 and p90, and the error of the median, by how far ahead they were made.

Options are compared on rehearsals with the same draws for all other work, so they differ by themselves alone. With a
time limit the comparison goes as far as it gets. Simulated arrivals cost most of the time, so every option is run first
without arrivals, then with them; one that does not get far enough is reported without. Options that were not cut off
are then run again with other seeds, as many of them as there is time to run MIN_RUNS times, since fewer runs make no
quantiles.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Sequence

from engine.control import Engine
from engine.external.slurm.limits import not_foretold
from engine.journal.tables import Estimate
from engine.model import what_if_edits as ed
from engine.model.quantities import MIN_RUNS
from engine.model.specs import WorkloadState
from engine.model.twin_queries import (
    FORECAST_KINDS,
    MAX_STRETCH,
    AskOptions,
    AskRun,
    AskStart,
    Attempt,
    Driver,
    DryRun,
    Options,
    OptionTrial,
    Placing,
    Score,
    ScoreReport,
    Start,
    StartEstimate,
    StartFigure,
    StartForecast,
    Trial,
)
from engine.state.cell_state import State
from engine.state.run_times import RunTimes, Whole, quantile
from engine.twin import rehearsals
from engine.twin.rehearsals import Conditions, HorizonProgress, RehearsalSample, arrivals_within
from engine.twin.start_record import start_of_attempt
from engine.twin.what_if import AT_ONCE, NEVER, Job, Pairs, ids_of, interval, movers, run_all, start_of

MAX_DRIVERS = 5
LEADS: tuple[tuple[str, int], ...] = (
    ("< 10 min", 600_000),
    ("10 min - 1 h", 3_600_000),
    ("1 h - 6 h", 21_600_000),
    ("> 6 h", 2**62),
)
"""(title, milliseconds below which)"""
TITLES = ("all", *dict(LEADS), *(f"at once, {kind}" for kind in FORECAST_KINDS))
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
    jobs: list[Job] = [((), _conditions(ask, n)) for n in range(ask.seeds)]
    done: dict[int, RehearsalSample] = {}

    def made() -> StartEstimate:
        main = [done[job] for job in sorted(done)]
        gates = [Driver(kind="gate", subject=r.token, text=r.text, chance_permille=1000) for r in reasons[:1]]
        return StartEstimate(
            version=engine.version,
            at_ms=engine.now_ms,
            horizon_ms=ask.horizon_ms,
            seeds=len(main),
            id=ask.id,
            state=label,
            start=start_of([s.focus[0].started_ms for s in main]),
            arrivals=ask.arrivals,
            drivers=(*gates, *_ends(main), *_ahead(engine, row, main)),
            basis=run_times.basis() if run_times is not None else "",
            leaves_out=not_foretold(state, row),
        )

    def heard(job: int, what: RehearsalSample | HorizonProgress) -> None:
        if isinstance(what, RehearsalSample):
            done[job] = what
            if len(done) < len(jobs):
                tell(len(done) * 1000 // len(jobs), made())

    run_all(engine, jobs, run_times, heard)
    return made()


def without_seeds(engine: Engine, ask: AskStart, forecast: StartForecast) -> StartEstimate:
    """What is told at once, before any seed."""
    row = engine.state.workloads.row(ask.id)
    return StartEstimate(
        version=engine.version,
        at_ms=engine.now_ms,
        horizon_ms=ask.horizon_ms,
        seeds=0,
        id=ask.id,
        state=WorkloadState(engine.state.workloads.state[row]).label,
        start=None,
        arrivals=ask.arrivals,
        drivers=(),
        forecast=forecast,
        leaves_out=not_foretold(engine.state, row),
    )


def _conditions(ask: AskStart, n: int) -> Conditions:
    return Conditions(
        seed=ask.seed + n, horizon_ms=ask.horizon_ms, arrivals=ask.arrivals, focus=(ask.id,), until="started"
    )


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
    """The fate of the workloads, and of others because of them. Raises MusterError."""
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
    """The part of an answer to keep: the starts that came with quantiles, as the runs alone have them."""
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
        for title in (f"at once, {one.kind}",) if one.kind in FORECAST_KINDS else ("all", lead):
            errors.setdefault(title, []).append((side, abs(start_ms - middle)))
    return ScoreReport(
        version=engine.version,
        now_ms=engine.now_ms,
        stored=len(stored),
        open=len(stored) - known,
        scores=tuple(_score(title, errors[title]) for title in TITLES if title in errors),
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
    """The start of the attempt that was estimated; None while it is not known."""
    w = engine.state.workloads
    row = w.row_of.get(one.workload)
    if one.kind == "run" and (row is None or not 0 <= w.submitted[row] - one.at_ms <= LATEST_SUBMISSION_MS):
        return None
    return start_of_attempt(w, one.workload, one.attempts)


MAX_OPTIONS = 16
FREE_PART, FULL_PART = 0.5, 0.4
"""Parts of the remaining time for the first seed: without arrivals, then with them. The rest is for other seeds."""
MIN_S = 0.02
"""CPU time that a rehearsal has at least."""
ARRIVAL_S = 0.0003
"""CPU time of one arrival, at the least."""
NEAR_MS, MAX_LATER = 10 * 60_000, 4
"""With arrivals a start is looked for so many times as far ahead as without, and so much further."""
GRAIN_PERMILLE, MAX_LOOKS = 20, 10_000
"""To so large a part of how far ahead it is a start is told where time is short, and coarser with many kinds of
waiting work: cycles are a third of the work, and starts move by a few percent."""
GOLDEN = 0.618033988749895


def share_of(n: int) -> float:
    """The share of the n-th seed among the likely run times, from 0 to 1: the median first, then spread evenly however
    many there are (multiples of the golden ratio).
    """
    return (0.5 + n * GOLDEN) % 1


def run_time_in(likely: Sequence[int], n: int) -> int:
    """The run time of an option in the n-th seed."""
    return quantile(array("q", likely), share_of(n), 0)


class FixedRunTimes(RunTimes):
    """Run times of some workloads are told, all others drawn."""

    def __init__(self, state: State, others: RunTimes, told: dict[str, int]) -> None:
        self._ids = state.workloads.ids
        self._others = others
        self._told = told
        self.hangs = others.hangs

    def kin(self, row: int) -> str:
        return self._others.kin(row)

    def draw(self, row: int, share: float, beyond_ms: int) -> int:
        told = self._told.get(self._ids[row])
        return self._others.draw(row, share, beyond_ms) if told is None else max(told, beyond_ms + 1)

    def draw_many(self, rows: Whole, shares: object, beyond_ms: Whole) -> Whole:
        # What is told of is submitted in the rehearsal, and drawn one by one.
        return self._others.draw_many(rows, shares, beyond_ms)  # type: ignore[arg-type]


class _Time:
    """The rest of the time of a question, by the CPU time that was used, so that answers depend little on the machine's
    other load; and a last moment all the same.
    """

    def __init__(self, within_ms: int) -> None:
        self.limited = within_ms > 0
        self._within_s = within_ms / 1000
        self._own_s = time.process_time()
        self._beside_s = 0.0
        self.last_s = time.monotonic() + MAX_STRETCH * self._within_s if self.limited else 0.0
        """Reading of the monotonic clock."""

    def left_s(self) -> float:
        used_s = time.process_time() - self._own_s + self._beside_s
        late = self.limited and time.monotonic() >= self.last_s
        return 0.0 if late else max(self._within_s - used_s, 0.0)

    def note(self, beside_s: float) -> None:
        """Count CPU time used by processes beside this one, as if each had had a core."""
        self._beside_s += beside_s


class _Round:
    """One seed of some options."""

    def __init__(self, ask: AskOptions, places: Sequence[int], n: int, *, arrivals: bool) -> None:
        self.ask, self.places, self.n, self.arrivals = ask, places, n, arrivals
        self.samples: dict[int, RehearsalSample] = {}
        """Samples by place in the request."""

    def run(self, engine: Engine, run_times: RunTimes, horizons: Sequence[int], left: _Time, part: float) -> None:
        """Run within that part of the remaining time. Time that one option does not need goes to those before it, which
        matter more. Raises MusterError.
        """
        keep_s = left.left_s() * (1 - part)
        pairs = [self.places[at : at + AT_ONCE] for at in range(0, len(self.places), AT_ONCE)]
        while pairs:
            each_s = max((left.left_s() - keep_s) / len(pairs), MIN_S) if left.limited else 0.0
            self._run(engine, run_times, horizons, left, pairs.pop(), each_s)

    def _run(
        self,
        engine: Engine,
        run_times: RunTimes,
        horizons: Sequence[int],
        left: _Time,
        places: Sequence[int],
        each_s: float,
    ) -> None:
        """These side by side, each with so much CPU time; 0: as it takes."""
        jobs: list[Job] = []
        told = {}
        for place in places:
            spec = self.ask.workloads[place]
            told[spec.id] = run_time_in(self.ask.run_ms[place], self.n)
            under = Conditions(
                seed=self.ask.seed + self.n,
                horizon_ms=horizons[place],
                arrivals=self.arrivals,
                focus=(spec.id,),
                until="started" if self.ask.until == "started" else "over",
                give_up_cpu_s=each_s,
                give_up_s=left.last_s,
                grain_permille=GRAIN_PERMILLE if left.limited else 1,
                most_looks=MAX_LOOKS if left.limited else rehearsals.MAX_LOOKS,
                figures=False,
            )
            jobs.append(((ed.SubmitEdit(workloads=(spec,)),), under))

        def heard(job: int, what: RehearsalSample | HorizonProgress) -> None:
            if isinstance(what, RehearsalSample):
                self.samples[places[job]] = what

        run_all(engine, jobs, FixedRunTimes(engine.state, run_times, told), heard)
        left.note(max(self.samples[place].cpu_s for place in places))

    def settled(self, place: int) -> bool:
        found = self.samples[place].focus[0]
        return (found.started_ms if self.ask.until == "started" else found.ended_ms) >= 0


def answer(
    engine: Engine, ask: AskOptions, run_times: RunTimes, tell: Callable[[int, Options | None], None]
) -> Options:
    """The comparison, as far as there is time. `tell(permille, results so far)`. Raises MusterError."""
    left = _Time(ask.within_ms)
    places = list(range(len(ask.workloads)))
    horizons = [ask.horizon_ms] * len(places)
    rounds = {place: [one] for place, one in _first(engine, ask, run_times, horizons, left).items()}
    if left.limited:
        # What was cut off by the time would be cut off again.
        places = [place for place in places if _reached(rounds[place][0], place, ask.horizon_ms)]
    for n in range(1, ask.seeds):
        tell(n * 1000 // ask.seeds, _options(engine, ask, rounds))
        if left.limited:
            places = _in_time(rounds, places, max(MIN_RUNS - n, 1), left) or _in_time(rounds, places, 1, left)
        again: list[int] = []
        for arrivals in (True, False):
            alike = [place for place in places if rounds[place][0].arrivals == arrivals]
            if not alike:
                continue
            one = _Round(ask, alike, n, arrivals=arrivals)
            one.run(engine, run_times, horizons, left, 1.0)
            for place in alike:
                # What was not run as far ahead as the others says nothing beside them.
                if not left.limited or _reached(one, place, horizons[place]):
                    rounds[place].append(one)
                    again.append(place)
        places = sorted(again)
        if not places:
            break
    return _options(engine, ask, rounds)


def _reached(one: _Round, place: int, horizon_ms: int) -> bool:
    """True if the option was run as far ahead as it should."""
    return one.settled(place) or one.samples[place].covered_ms >= horizon_ms


Rounds = dict[int, list[_Round]]
"""Rounds of each option by place in the request, by seed."""


def _in_time(rounds: Rounds, places: Sequence[int], times: int, left: _Time) -> list[int]:
    """The first options that can be run so many times more in the remaining time."""
    found: list[int] = []
    beside_s: list[float] = []
    for place in places:
        cost_s = rounds[place][-1].samples[place].cpu_s
        # Those that run side by side take as long as the longest of them.
        if times * sum(sorted([*beside_s, cost_s], reverse=True)[::AT_ONCE]) <= left.left_s():
            found.append(place)
            beside_s.append(cost_s)
    return found


def _first(engine: Engine, ask: AskOptions, run_times: RunTimes, horizons: list[int], left: _Time) -> dict[int, _Round]:
    """The first seed of every option, with arrivals where those let it be run ahead in time."""
    places = list(range(len(ask.workloads)))
    first = _Round(ask, places, 0, arrivals=ask.arrivals and not left.limited)
    first.run(engine, run_times, horizons, left, FREE_PART)
    found = dict.fromkeys(places, first)
    if not left.limited or not ask.arrivals:
        return found
    near = [place for place in places if first.settled(place) and _within_reach(engine, first.samples[place], left)]
    for place in near:
        horizons[place] = min(ask.horizon_ms, NEAR_MS + MAX_LATER * first.samples[place].covered_ms)
    full = _Round(ask, near, 0, arrivals=True)
    full.run(engine, run_times, horizons, left, FULL_PART)
    for place in near:
        if full.settled(place):
            found[place] = full
        else:
            horizons[place] = ask.horizon_ms
    return found


def _within_reach(engine: Engine, sample: RehearsalSample, left: _Time) -> bool:
    """True if the arrivals up to then can be run ahead in time."""
    count = arrivals_within(engine.state, engine.now_ms, sample.covered_ms)
    return count * ARRIVAL_S <= left.left_s() * FULL_PART


def _options(engine: Engine, ask: AskOptions, rounds: Rounds) -> Options:
    return Options(
        version=engine.version,
        at_ms=engine.now_ms,
        horizon_ms=ask.horizon_ms,
        seeds=max(map(len, rounds.values())),
        until=ask.until,
        arrivals=ask.arrivals,
        trials=tuple(
            OptionTrial(
                id=spec.id,
                reason=rounds[place][0].samples[place].focus[0].reason,
                arrivals=rounds[place][0].arrivals,
                attempts=tuple(_attempt(ask, one, place) for one in rounds[place]),
            )
            for place, spec in enumerate(ask.workloads)
        ),
    )


def _attempt(ask: AskOptions, one: _Round, place: int) -> Attempt:
    sample = one.samples[place]
    found = sample.focus[0]
    return Attempt(
        started_ms=None if found.started_ms == NEVER else found.started_ms,
        ended_ms=None if found.ended_ms < 0 else found.ended_ms,
        run_ms=run_time_in(ask.run_ms[place], one.n),
        cost_microusd=found.cost_microusd,
        placed=tuple(Placing(*held) for held in found.placed),
        stops=found.stops,
        covered_ms=sample.covered_ms,
    )
