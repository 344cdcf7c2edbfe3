"""Benchmark of start forecasts: how far they can be believed over a day of the demo cell, and how long one takes.

A day of the demo cell is run in memory. Every ten minutes the start of some waiting work is foretold, at most SAMPLE of
it, and kept; the second half of the day is scored, with what had been learnt by then. Work that has not started when
the run ends counts as starting then, and not at all where its p90 had not come. The reference foretells that work
waits as long as the last like it did: of the same queue and request, else of the same queue.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import engine_bench
import msgspec

from console.cli import demo_cell
from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import HOUR_MS, Resources, TaskGroup, WorkloadSpec, WorkloadState
from engine.model.twin_queries import StartForecast
from engine.traces.generated_day import DAY_MS, MINUTE_MS, ai_day
from engine.twin.start_forecasts import StartForecasts
from engine.twin.start_record import start_of_attempt

NODES = 60
EVERY_MS = 10 * MINUTE_MS
SAMPLE = 12
SCORED_FROM_MS = DAY_MS // 2
SEEDS = (21, 22)
"""Others than those on which the prior was chosen."""
RUN_MS = DAY_MS + 12 * HOUR_MS

Arrivals = list[tuple[int, WorkloadSpec]]


class Told(NamedTuple):
    """A forecast beside the reference and what came of it."""

    workload: str
    attempts: int
    forecast: StartForecast
    reference_ms: int


def start_forecast() -> Iterator[dict[str, Any]]:
    """Coverage and error at load 0.9 and with a backlog; latency with 100,000 waiting."""
    for name, load in (("load 0.9", 0.9), ("backlog, load 1.2", 1.2)):
        engine, told = _day_of_forecasts(SEEDS, load)
        yield _scored(engine, told, name)
    for size in (5_000, 130_000):
        yield _latency(size)


def _day_of_forecasts(seeds: tuple[int, int], load: float) -> tuple[Engine, list[Told]]:
    """The engine after the run, and the forecasts of the part that is scored."""
    engine = Engine.open(None, cell=demo_cell.cell(NODES))
    starts, rng = StartForecasts(engine), random.Random(seeds[0])
    arrivals = _arrivals(seeds, load, engine)[::-1]
    told: list[Told] = []
    for at_ms in range(EVERY_MS, RUN_MS, EVERY_MS):
        _run_until(engine, arrivals, at_ms)
        if at_ms < DAY_MS:
            found = list(_foretold(engine, starts, rng))
            told += found if at_ms >= SCORED_FROM_MS else []
    return engine, told


def _arrivals(seeds: tuple[int, int], load: float, engine: Engine) -> Arrivals:
    """Two days at that load: those of the first seed, and as much of those of the second as it takes."""
    days = [[(day * DAY_MS + at, spec) for at, spec in ai_day(seeds[0], nodes=NODES, day=day)[1]] for day in (0, 1)]
    more = [[(day * DAY_MS + at, spec) for at, spec in ai_day(seeds[1], nodes=NODES, day=day)[1]] for day in (0, 1)]
    part, rng = load / _load(days[0], engine) - 1, random.Random(seeds[1])
    others = [(at, msgspec.structs.replace(spec, id=f"more-{spec.id}")) for day in more for at, spec in day]
    if part < 0:
        return sorted(((at, spec) for day in days for at, spec in day if rng.random() < 1 + part), key=lambda e: e[0])
    return sorted([*days[0], *days[1], *(e for e in others if rng.random() < part)], key=lambda entry: entry[0])


def _load(day: Arrivals, engine: Engine) -> float:
    """GPU time that a day asks for, as a part of what there is."""
    asked = sum(
        min(spec.simulated_runtime_ms, DAY_MS - at) * sum(g.count * g.request.gpu_milli for g in spec.groups)
        for at, spec in day
    )
    return asked / (engine.state.capacity.totals[2] * DAY_MS)


def _run_until(engine: Engine, arrivals: Arrivals, at_ms: int) -> None:
    """Let time pass, with what arrives; `arrivals` has the next one last."""
    while arrivals and arrivals[-1][0] <= at_ms:
        due_ms, due = arrivals[-1][0], []
        while arrivals and arrivals[-1][0] == due_ms:
            due.append(arrivals.pop()[1])
        engine.advance(due_ms)
        engine.command(Submit(workloads=tuple(due)))
    engine.advance(at_ms)


def _foretold(engine: Engine, starts: StartForecasts, rng: random.Random) -> Iterator[Told]:
    w = engine.state.workloads
    waiting = [row for row, state in enumerate(w.state) if state == WorkloadState.QUEUED]
    last = _last_waits(engine)
    for row in sorted(rng.sample(waiting, min(SAMPLE, len(waiting)))):
        found = starts.show(w.ids[row])
        if found is not None and found.p50_ms is not None:
            like_ms = last.get((w.queue[row], w.cls[row]), last.get((w.queue[row], -1), 0))
            left_ms = max(like_ms - (engine.now_ms - w.submitted[row]), 0)
            yield Told(w.ids[row], w.attempts[row], found, left_ms)


def _last_waits(engine: Engine) -> dict[tuple[int, int], int]:
    """(queue, class), and (queue, -1) for any class -> wait of the last that started."""
    w, found = engine.state.workloads, {}
    rows = sorted((started, row) for row, started in enumerate(w.started) if started >= 0 and w.attempts[row] == 1)
    for started, row in rows:
        found[w.queue[row], w.cls[row]] = found[w.queue[row], -1] = started - w.submitted[row]
    return found


def _scored(engine: Engine, told: list[Told], name: str) -> dict[str, Any]:
    each = [(one, start_of_attempt(engine.state.workloads, one.workload, one.attempts)) for one in told]
    open_ = [one for one, start in each if start is None and (one.forecast.p90_ms or 0) >= engine.now_ms]
    known = [(one, engine.now_ms if start is None else start) for one, start in each if one not in open_]
    below = sum(start <= (one.forecast.p90_ms or 0) for one, start in known) / len(known)
    early = sum(start < (one.forecast.p10_ms or 0) for one, start in known) / len(known)
    error_min = _middle(abs(start - (one.forecast.p50_ms or 0)) for one, start in known)
    reference_min = _middle(abs(start - one.forecast.at_ms - one.reference_ms) for one, start in known)
    waits_min = _middle(start - one.forecast.at_ms for one, start in known)
    return {
        "at": f"{name}, {len(known):,} forecasts",
        "result": f"p10-p90 {below - early:.0%}, p90 {below:.0%}",
        "covered": below - early,
        "p90_held": below,
        "error_min": error_min,
        "reference_error_min": reference_min,
        "reference": f"median error {error_min:.1f} min; as the last like it: {reference_min:.1f} min; median wait "
        f"{waits_min:.1f} min; {len(open_):,} not known yet",
    }


def _middle(values: Iterable[int]) -> float:
    return statistics.median(values) / MINUTE_MS


WAITING = 100_000
HISTORY = 20_000
ASKED = 30


def _latency(size: int) -> dict[str, Any]:
    """Forecasts for some of what waits, each at a new time, so that nothing is shared."""
    engine, rng = Engine.open(None, cell=engine_bench.cell(size)), random.Random(7)
    for first, count, gpus, run_ms in (
        (0, HISTORY, (1,), MINUTE_MS),
        (HISTORY, size + WAITING, (8, 8, 4, 2, 1), 4 * HOUR_MS),
    ):
        specs = [_job(f"w{first + i}", rng.choice(gpus) if i >= size else 8 // (1 + 7 * (not first)), rng, run_ms)
                 for i in range(count)]  # fmt: skip
        for at in range(0, count, 10_000):
            engine.command(Submit(workloads=tuple(specs[at : at + 10_000])))
        if not first:
            engine.advance(engine.now_ms + HOUR_MS)
    w = engine.state.workloads
    waiting = [row for row, state in enumerate(w.state) if state == WorkloadState.QUEUED]
    starts, took = StartForecasts(engine), []
    for row in rng.sample(waiting, ASKED):
        engine.advance(engine.now_ms + 1000)
        begun = time.perf_counter()
        starts.of(row)
        took.append((time.perf_counter() - begun) * 1000)
    first_ms, *later = took
    return {
        "at": f"{size:,} nodes, {len(waiting):,} waiting",
        "result": f"{statistics.median(later):.0f} ms, first {first_ms:.0f} ms",
        "milliseconds": statistics.median(later),
        "longest_ms": max(later),
        "first_ms": first_ms,
        "reference": f"longest of {ASKED - 1}: {max(later):.0f} ms, each at a new time; the first learns run times",
    }


def _job(name: str, gpus: int, rng: random.Random, run_ms: int) -> WorkloadSpec:
    request = Resources(cpu_milli=gpus * 4000, memory_mib=gpus * 16_000, gpu_milli=gpus * 1000)
    return WorkloadSpec(
        id=name,
        queue=f"q{rng.randrange(10)}",
        tenant=f"t{rng.randrange(40)}",
        groups=(TaskGroup(request=request),),
        estimate_ms=run_ms * rng.choice((1, 2, 3)),
        simulated_runtime_ms=run_ms,
    )
