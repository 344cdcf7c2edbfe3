"""What-ifs: the edits tried on rehearsals, seed by seed, and the change before and after as intervals.

Runs in a child of the engine's process, with children of its own: one for each rehearsal, two at a time, all from the
state at the moment of the question. It reports after a part of the first seed, and after every seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from engine.control import Engine
from engine.model import what_if_edits as ed
from engine.model.errors import RefusedError
from engine.model.quantities import MIN_RUNS, quantiles
from engine.model.specs import WorkloadSpec
from engine.model.twin_queries import MAX_WATCHED, Figure, Interval, Outlook, Start, StartFigure, Unit, WhatIf
from engine.state.cell_state import members
from engine.state.run_times import RunTimes
from engine.twin import forks
from engine.twin.measurements import Focus, Key
from engine.twin.rehearsals import Conditions, EditsRefused, HorizonProgress, RehearsalSample, decode, rehearse

AT_ONCE = min(2, os.cpu_count() or 1)
"""Rehearsals that run side by side."""
MAX_SECONDS = 3600.0
"""Wall time of one rehearsal."""
MAX_MOVERS = 5
"""Workloads told of that start much sooner because of the edits, and as many that start much later."""
MIN_MOVE_MS = 60_000
NEVER = -1

Job = tuple[tuple[ed.AnyEdit, ...], Conditions]


def run_all(
    engine: Engine,
    jobs: Sequence[Job],
    run_times: RunTimes | None,
    heard: Callable[[int, RehearsalSample | HorizonProgress], None],
) -> None:
    """Rehearse every job, in order, AT_ONCE at a time. `heard(job, what)` is told of progress and samples.

    Raises EditsError when edits cannot be made now, RefusedError when a rehearsal failed.
    """
    waiting = list(range(len(jobs)))[::-1]
    running: dict[forks.Child, int] = {}
    whole: set[int] = set()
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                job = waiting.pop()
                running[_start(engine, *jobs[job], run_times)] = job
            forks.wait_for(running)
            for one, job in list(running.items()):
                for frame in one.frames():
                    what = decode(frame)
                    if isinstance(what, EditsRefused):
                        raise ed.EditsError(what.problems)
                    if isinstance(what, RehearsalSample) and what.whole:
                        whole.add(job)
                    heard(job, what)
                if one.over:
                    del running[one]
                    if job not in whole:
                        raise RefusedError(f"a rehearsal {one.failure_text}", "The engine's log has more; try again")
    finally:
        for one in running:
            one.cancel()


def _start(engine: Engine, edits: tuple[ed.AnyEdit, ...], under: Conditions, run_times: RunTimes | None) -> forks.Child:
    return forks.start(lambda report: rehearse(engine, edits, under, run_times, report), MAX_SECONDS)


class Pairs:
    """Samples of both sides, seed by seed."""

    def __init__(self) -> None:
        self.before: list[RehearsalSample] = []
        self.after: list[RehearsalSample] = []

    def add(self, before: RehearsalSample, after: RehearsalSample) -> None:
        self.before.append(before)
        self.after.append(after)


def answer(
    engine: Engine, ask: WhatIf, run_times: RunTimes | None, tell: Callable[[int, Outlook | None], None]
) -> Outlook:
    """The whole outlook. `tell(permille, outlook so far)` as it comes. Raises MusterError."""
    submitted = tuple(
        name
        for edit in ask.edits
        if isinstance(edit, ed.SubmitEdit)
        for spec in edit.workloads
        for name in ids_of(spec)
    )
    focus = tuple(dict.fromkeys((*ask.watch, *submitted)))[:MAX_WATCHED]
    jobs: list[Job] = []
    for n in range(ask.seeds):
        under = Conditions(
            seed=ask.seed + n, horizon_ms=ask.horizon_ms, arrivals=ask.arrivals, focus=focus, looks=n == 0
        )
        # The edited side first: what cannot be done is found at once.
        jobs += [(ask.edits, under), ((), under)]
    pairs = Pairs()
    covered = [0] * len(jobs)
    whole: dict[int, RehearsalSample] = {}
    first: dict[tuple[int, int], RehearsalSample] = {}

    def outlook(shown: Pairs) -> Outlook:
        moved = movers(shown, engine, ask.horizon_ms, focus) if shown is pairs else []
        return _outlook(engine, ask, shown, focus, set(submitted), moved)

    def heard(job: int, what: RehearsalSample | HorizonProgress) -> None:
        side = job % 2
        if isinstance(what, HorizonProgress):
            covered[job] = what.ms
            tell(sum(covered) * 1000 // (ask.horizon_ms * len(jobs)), None)
            return
        if not what.whole:
            first[side, what.covered_ms] = what
            other = first.get((1 - side, what.covered_ms))
            if other is not None and not pairs.before:
                early = Pairs()
                early.add(*((what, other) if side else (other, what)))
                tell(sum(covered) * 1000 // (ask.horizon_ms * len(jobs)), outlook(early))
            return
        whole[job] = what
        done = 2 * len(pairs.before)
        while done in whole and done + 1 in whole:
            pairs.add(whole.pop(done + 1), whole.pop(done))
            done += 2
            if done < len(jobs):
                tell(sum(covered) * 1000 // (ask.horizon_ms * len(jobs)), outlook(pairs))

    run_all(engine, jobs, run_times, heard)
    return outlook(pairs)


def ids_of(spec: WorkloadSpec) -> tuple[str, ...]:
    """The workloads that the spec makes."""
    return (spec.id,) if spec.array is None else tuple(f"{spec.id}/{index}" for index in members(spec.array))


# -- from samples to intervals ----------------------------------------------------------------------------------------


def interval(values: Iterable[int]) -> Interval:
    """The interval of at least one value."""
    ordered = sorted(values)
    low, middle, high = quantiles(ordered)
    return Interval(runs=len(ordered), least=ordered[0], p10=low, p50=middle, p90=high, most=ordered[-1])


def start_of(times: Sequence[int]) -> Start:
    """Cell times of the start in each run, NEVER where it did not start; of at least one run."""
    ordered = sorted(at_ms for at_ms in times if at_ms != NEVER)
    runs, started = len(times), len(ordered)
    low, middle, high = quantiles(ordered, runs - started)
    return Start(
        runs=runs,
        started=started,
        least_ms=ordered[0] if ordered else None,
        p10_ms=low,
        p50_ms=middle,
        p90_ms=high,
        most_ms=ordered[-1] if started == runs else None,
        chance_permille=started * 1000 // runs if runs >= MIN_RUNS else None,
    )


Row = tuple[str, Unit, Literal["lower", "higher", ""]]
_ROWS: dict[str, Row] = {
    "wait_mean": ("Wait, mean", "duration", "lower"),
    "wait_p50": ("Wait, p50", "duration", "lower"),
    "wait_p95": ("Wait, p95", "duration", "lower"),
    "started": ("Started", "count", "higher"),
    "finished": ("Finished", "count", "higher"),
    "waiting": ("Waiting at the end", "count", "lower"),
    "evictions": ("Evictions", "count", "lower"),
    "lost_work": ("Work lost", "device_time", "lower"),
    "utilisation": ("Utilisation", "permille", "higher"),
    "fragmentation": ("Fragmentation", "permille", "lower"),
    "cost": ("Cost", "money", ""),
    "idle_cost": ("Cost of idle nodes", "money", ""),
}
"""Figures in the order they are shown."""
_OF: tuple[Literal["cell", "queue", "tenant"], ...] = ("cell", "queue", "tenant")


def figures(pairs: Pairs) -> tuple[Figure, ...]:
    """Every figure that some seed has on either side; where one lacks it, it is 0 there."""
    sides = [[dict(sample.figures) for sample in side] for side in (pairs.before, pairs.after)]
    keys = sorted({key for side in sides for sample in side for key in sample}, key=_rank)
    found = []
    for key in keys:
        name, of, subject = key
        base, _, cause = name.partition("/")
        title, unit, better = _ROWS[base]
        before, after = ([sample.get(key, 0) for sample in side] for side in sides)
        found.append(
            Figure(
                name=name,
                title=f"{title}: {cause}" if cause else title,
                unit=unit,
                better=better,
                of=next(word for word in _OF if word == of),
                subject=subject,
                before=interval(before),
                after=interval(after),
                change=interval(b - a for a, b in zip(before, after, strict=True)),
            )
        )
    return tuple(found)


def _rank(key: Key) -> tuple[int, str, int, str]:
    name, of, subject = key
    return _OF.index(of) if of in _OF else len(_OF), subject, list(_ROWS).index(name.partition("/")[0]), name


def _outlook(
    engine: Engine, ask: WhatIf, pairs: Pairs, focus: tuple[str, ...], submitted: set[str], moved: list[StartFigure]
) -> Outlook:
    named = []
    for n, name in enumerate(focus):
        before, after = ([sample.focus[n] for sample in side] for side in (pairs.before, pairs.after))
        named.append(
            StartFigure(
                id=name,
                queue=next((f.queue for f in (*after, *before) if f.queue), ""),
                why="submitted" if name in submitted else "watched",
                before=_start_if_any(before),
                after=_start_if_any(after),
            )
        )
    return Outlook(
        version=engine.version,
        at_ms=engine.now_ms,
        horizon_ms=ask.horizon_ms,
        covered_ms=min(sample.covered_ms for sample in pairs.after),
        seeds=len(pairs.after),
        edits=tuple(ed.written(edit) for edit in ask.edits),
        figures=figures(pairs),
        starts=(*named, *moved),
        notes=_notes(pairs),
    )


def _start_if_any(found: list[Focus]) -> Start | None:
    """None for what is not there, and for what ran already and was not stopped. Of what was stopped in some seeds, the
    next start in those."""
    times = [one.started_ms for one in found if not one.ran]
    return start_of(times) if times and any(one.exists for one in found) else None


def _notes(pairs: Pairs) -> tuple[str, ...]:
    """Edits that could not be done when their time came, with how often; both sides may give the same."""
    counts: dict[str, int] = {}
    for before, after in zip(pairs.before, pairs.after, strict=True):
        for note in dict.fromkeys((*after.notes, *before.notes)):
            counts[note] = counts.get(note, 0) + 1
    seeds = len(pairs.after)
    notes = [f"{note} (in {count} of {seeds} seeds)" if count < seeds else note for note, count in counts.items()]
    return tuple(notes)


def movers(pairs: Pairs, engine: Engine, horizon_ms: int, focus: tuple[str, ...]) -> list[StartFigure]:
    """Workloads whose start moves most, by the median over the seeds; a start after the horizon counts as its end."""
    w, end_ms = engine.state.workloads, engine.now_ms + horizon_ms + 1
    rows = np.unique(np.concatenate([np.frombuffer(one.rows, np.int32) for one in (*pairs.before, *pairs.after)]))
    if not len(rows):
        return []
    before, after = (_starts(side, rows, end_ms) for side in (pairs.before, pairs.after))
    moves = np.median(after - before, axis=0)
    order = np.argsort(moves, kind="stable")
    followed = set(focus)
    found: list[StartFigure] = []
    sides: tuple[tuple[Literal["sooner", "later"], Any, int], ...] = (("sooner", order, -1), ("later", order[::-1], 1))
    for why, places, sign in sides:
        chosen = [at for at in places[: MAX_MOVERS + len(followed)].tolist() if sign * moves[at] >= MIN_MOVE_MS]
        for at in [at for at in chosen if w.ids[rows[at]] not in followed][:MAX_MOVERS]:
            row = int(rows[at])
            times = (
                [NEVER if at_ms >= end_ms else at_ms for at_ms in side[:, at].tolist()] for side in (before, after)
            )
            then, now = map(start_of, times)
            queue = engine.state.queues.specs[w.queue[row]].name
            found.append(StartFigure(id=w.ids[row], queue=queue, why=why, before=then, after=now))
    return found


Table = np.ndarray[tuple[int, int], np.dtype[np.int64]]


def _starts(samples: list[RehearsalSample], rows: np.ndarray[Any, Any], end_ms: int) -> Table:
    """[seed, place in `rows`] first start, `end_ms` for none."""
    table = np.full((len(samples), len(rows)), end_ms, np.int64)
    for n, sample in enumerate(samples):
        table[n, np.searchsorted(rows, np.frombuffer(sample.rows, np.int32))] = np.frombuffer(sample.starts, np.int64)
    return table
