"""Benchmark of start forecasts: how far they can be believed on a cell and on replays, and how long one takes.

Each bed is run in memory. The start of one that waits is kept as the engine's own loop does it; beside that some of
what waits, at most SAMPLE of it, is foretold every ten minutes or every hour, and the later part of that is scored. The
run goes on until all that was foretold has started, at most for a day after the last arrival; what has not counts as
starting then. The reference foretells that work waits as long as the last like it did: of the same queue and request,
else of the same queue.

`demo` beds: four days of the demo cell, each at its own load, with seeds other than those on which the estimator was
chosen; the second day is scored. Replays: some jobs of a public trace through the engine with EASY, in one queue or, as
`fair share`, in six of equal weight; the middle third is scored, as without arrivals the last waits would end too soon.
"""

from __future__ import annotations

import random
import statistics
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import engine_bench
import msgspec

from console.cli import demo_cell
from engine.control import Engine
from engine.model.commands import SetPolicy, Submit
from engine.model.specs import HOUR_MS, CellSpec, QueueSpec, Resources, TaskGroup, WorkloadSpec, WorkloadState
from engine.model.twin_queries import StartForecast
from engine.traces import replay
from engine.traces.generated_day import DAY_MS, MINUTE_MS, ai_day
from engine.twin.start_forecasts import KEEP_EVERY_MS, StartForecasts
from engine.twin.start_record import start_of_attempt

NODES = 60
SAMPLE = 12
DEMO_SEEDS = (23, 24)
"""Others than those on which the estimator was chosen."""
DEMO_LOADS = {
    "load 0.9": (0.9, 0.9, 0.9, 0.9),
    "backlog of a day": (1.2, 0.9, 0.9, 0.9),
    "backlog that grows": (1.2, 1.2, 0.6, 0.6),
}
TRACES = Path(__file__).parents[2].parent / "shared" / "data"

Arrivals = list[tuple[int, WorkloadSpec]]


class Told(NamedTuple):
    """A forecast beside the reference and what came of it."""

    workload: str
    attempts: int
    forecast: StartForecast
    reference_ms: int


class Bed(NamedTuple):
    cell: CellSpec
    arrivals: Arrivals
    every_ms: int
    """Between two rounds of forecasts."""
    scored_from_ms: int
    asked_until_ms: int
    policy: replay.Policy | None = None


class TraceBed(NamedTuple):
    path: str
    format: str
    nodes: int
    jobs: slice


REPLAYS = {
    "KTH": TraceBed("swf/KTH-SP2-1996-2.swf.gz", "swf", 100, slice(1300)),
    "ITP 08": TraceBed("itp2021/cluster08.csv.gz", "itp", 110, slice(3500)),
    "Philly": TraceBed("philly2017/philly_jobs_dev_vcs.csv.gz", "philly", 300, slice(44, 4300)),
}
"""Philly from the day on which it has more work than the cell."""
FAIR_QUEUES = 6


def start_forecast() -> Iterator[dict[str, Any]]:
    """Coverage and error at load 0.9, with a backlog and on replays; latency with 100,000 waiting."""
    of_demo: list[Outcome] = []
    for name, loads in DEMO_LOADS.items():
        outcomes = _run(_demo(DEMO_SEEDS, loads))
        of_demo += outcomes
        yield _scored(outcomes, f"demo, {name}")
    for kind, name in (("room", "room"), ("quota", "quota alone"), ("both", "room and quota")):
        yield _scored([one for one in of_demo if one.told.forecast.kind == kind], f"demo, waits for {name}")
    for name, trace in REPLAYS.items():
        if not (TRACES / trace.path).exists():
            yield {"at": name, "result": "skipped", "reference": "no shared traces beside the checkout"}
            continue
        for fair in (False, True):
            yield _scored(_run(_replay(trace, fair)), f"{name}, {'fair share' if fair else 'EASY'}")
    for size in (5_000, 50_000, 130_000):
        yield _latency(size)


# -- beds -------------------------------------------------------------------------------------------------------------


def _demo(seeds: tuple[int, int], loads: tuple[float, ...]) -> Bed:
    cell = demo_cell.cell(NODES)
    return Bed(cell, _demo_arrivals(seeds, loads, Engine.open(None, cell=cell)), 10 * MINUTE_MS, DAY_MS, 2 * DAY_MS)


def _demo_arrivals(seeds: tuple[int, int], loads: tuple[float, ...], engine: Engine) -> Arrivals:
    """Days of these loads: what the first seed gives or a part of it, and as much of the second as it takes."""
    first, second = (
        [(day * DAY_MS + at, spec) for day in range(len(loads)) for at, spec in ai_day(seed, nodes=NODES, day=day)[1]]
        for seed in seeds
    )
    unit, rng = _load([entry for entry in first if entry[0] < DAY_MS], engine), random.Random(seeds[1])
    more = [(at, msgspec.structs.replace(spec, id=f"more-{spec.id}")) for at, spec in second]
    parts = [load / unit for load in loads]
    kept = [entry for entry in first if rng.random() < parts[entry[0] // DAY_MS]]
    kept += [entry for entry in more if rng.random() < parts[entry[0] // DAY_MS] - 1]
    return sorted(kept, key=lambda entry: entry[0])


def _load(day: Arrivals, engine: Engine) -> float:
    """GPU time that a day asks for, as a part of what there is."""
    asked = sum(
        min(spec.simulated_runtime_ms, DAY_MS - at) * sum(g.count * g.request.gpu_milli for g in spec.groups)
        for at, spec in day
    )
    return asked / (engine.state.capacity.totals[2] * DAY_MS)


def _replay(trace: TraceBed, fair: bool) -> Bed:
    plan = replay.prepare(TRACES / trace.path, trace.format, nodes=trace.nodes)
    known = any(job.requested_ms for job in plan.jobs)
    jobs = list(zip(plan.jobs, plan.estimates, strict=True))[trace.jobs]
    arrivals = [
        (job.arrival_ms, msgspec.structs.replace(
            replay.workload(job, estimate if known else 0), queue=_queue(job.user or job.queue or job.id, fair)))
        for job, estimate in jobs
    ]  # fmt: skip
    fair_queues = (QueueSpec(name="root"), *(QueueSpec(name=f"q{i}", parent="root") for i in range(FAIR_QUEUES)))
    cell = msgspec.structs.replace(plan.cell, queues=fair_queues) if fair else plan.cell
    first, third = arrivals[0][0], (arrivals[-1][0] - arrivals[0][0]) // 3
    return Bed(cell, arrivals, HOUR_MS, first + third, first + 2 * third, "easy")


def _queue(owner: str, fair: bool) -> str:
    return f"q{zlib.crc32(owner.encode()) % FAIR_QUEUES}" if fair else replay.QUEUE


# -- runs -------------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    told: Told
    start_ms: int
    """Of what had not started: the end of the run."""
    started: bool


def _run(bed: Bed) -> list[Outcome]:
    """The forecasts of the part that is scored."""
    engine = Engine.open(None, cell=bed.cell)
    if bed.policy is not None:
        engine.command(SetPolicy(policy=bed.policy))
    starts, rng, told = StartForecasts(engine), random.Random(5), []
    arrivals = bed.arrivals[::-1]
    asked_ms = next_ms = bed.arrivals[0][0] + bed.every_ms
    while next_ms < bed.asked_until_ms:
        _run_until(engine, arrivals, next_ms)
        starts.keep()
        if next_ms >= asked_ms:
            asked_ms += bed.every_ms
            told += _foretold(engine, starts, rng) if next_ms >= bed.scored_from_ms else []
        next_ms += KEEP_EVERY_MS
    _finish(engine, arrivals, told)
    found = [start_of_attempt(engine.state.workloads, one.workload, one.attempts) for one in told]
    return [
        Outcome(one, engine.now_ms if start is None else start, start is not None)
        for one, start in zip(told, found, strict=True)
    ]


def _finish(engine: Engine, arrivals: Arrivals, told: list[Told]) -> None:
    """Go on until all that was foretold has started, or for a day after the last arrival."""
    w = engine.state.workloads

    def some_wait() -> bool:
        return any(start_of_attempt(w, one.workload, one.attempts) is None for one in told)

    while arrivals and some_wait():
        _run_until(engine, arrivals, engine.now_ms + HOUR_MS)
    until_ms = engine.now_ms + DAY_MS
    while some_wait() and (due := engine.next_due()) is not None and due < until_ms:
        engine.advance(due)


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
        found = starts.of(row)
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


def _scored(each: list[Outcome], name: str) -> dict[str, Any]:
    if not each:
        return {"at": name, "result": "no forecast"}
    open_ = sum(not started for _, _, started in each)
    below = sum(start <= (one.forecast.p90_ms or 0) for one, start, _ in each) / len(each)
    early = sum(start < (one.forecast.p10_ms or 0) for one, start, _ in each) / len(each)
    error_min = _middle(abs(start - (one.forecast.p50_ms or 0)) for one, start, _ in each)
    reference_min = _middle(abs(start - one.forecast.at_ms - one.reference_ms) for one, start, _ in each)
    waits_min = _middle(start - one.forecast.at_ms for one, start, _ in each)
    return {
        "at": f"{name}, {len(each):,} forecasts",
        "result": f"p10-p90 {below - early:.0%}, p90 {below:.0%}",
        "covered": below - early,
        "p90_held": below,
        "error_min": error_min,
        "reference_error_min": reference_min,
        "reference": f"median error {error_min:.1f} min; as the last like it: {reference_min:.1f} min; median wait "
        f"{waits_min:.1f} min; {open_:,} never started",
    }


def _middle(values: Iterable[int]) -> float:
    return statistics.median(values) / MINUTE_MS


# -- latency ----------------------------------------------------------------------------------------------------------

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
        begun = time.process_time()
        starts.of(row)
        took.append((time.process_time() - begun) * 1000)
    first_ms, *later = took
    return {
        "at": f"{size:,} nodes, {len(waiting):,} waiting",
        "result": f"{statistics.median(later):.0f} ms CPU, first {first_ms:.0f} ms",
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
