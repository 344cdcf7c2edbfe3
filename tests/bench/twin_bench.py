"""Benchmarks of the twin: what a fork costs, how fast a cell runs ahead, and what the live engine feels of it."""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

import engine_bench
import msgspec
import numpy as np

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import HOUR_MS, Resources, TaskGroup, WorkloadSpec, WorkloadState
from engine.model.twin_queries import AskStart, WhatIf
from engine.model.what_if_edits import parse_all
from engine.twin import forks
from engine.twin.forks import Pages
from engine.twin.live_twin import Twins
from engine.twin.rehearsals import Rehearsal

DAY_MS = 24 * HOUR_MS


def fork() -> Iterator[dict[str, Any]]:
    """A copy of everything for a what-if: in another process, and in this one."""
    for size, workloads in ((5_000, 100_000), (130_000, 1_000_000)):
        engine = engine_bench._busy(size, workloads)
        at = f"{size:,} nodes, {workloads:,} workloads"
        block = np.zeros(85_600_000, np.uint8)
        begun = time.perf_counter()
        block.copy()
        memory_ms = (time.perf_counter() - begun) * 1000
        reference = f"numpy copy of 85.6 MB: {memory_ms:.0f} ms"
        begun = time.perf_counter()
        engine.fork()
        yield _milliseconds(f"{at}, in process", (time.perf_counter() - begun) * 1000, reference)
        small = _forked(engine)
        begun = time.perf_counter()
        pages = Pages()
        while not pages.tidy(0.01):
            pass
        tidied_s = time.perf_counter() - begun
        large = _forked(engine)
        yield _milliseconds(
            f"{at}, os.fork",
            large["call_ms"],
            f"small pages: {small['call_ms']:.1f} ms; {reference}; child {large['private_mib']:.0f} MiB of its own "
            f"when it begins, {large['adopted_mib']:.0f} MiB as an engine, {large['ahead_mib']:.0f} MiB a second "
            f"ahead; large pages took {tidied_s:.1f} s once",
            small_pages_ms=small["call_ms"],
            private_mib=large["private_mib"],
            adopted_mib=large["adopted_mib"],
            ahead_mib=large["ahead_mib"],
        )


def _milliseconds(at: str, value: float, reference: str, **more: float) -> dict[str, Any]:
    return {"at": at, "result": f"{value:.1f} ms", "milliseconds": value, "reference": reference, **more}


def _forked(engine: Engine) -> dict[str, float]:
    """What a fork costs: the call, the median of five, and the child's own memory: when it begins, with an engine that
    has taken the state over, and a second ahead. The parent goes on meanwhile."""
    calls = []
    for number in range(5):
        begun = time.perf_counter()
        worker = forks.start(lambda report, whole=not number: _measure(engine, report, whole), 60)
        calls.append((time.perf_counter() - begun) * 1000)
        said = []
        while not worker.over:
            forks.wait_for([worker])
            said += worker.frames()
        if not number:
            private, adopted, ahead = msgspec.msgpack.decode(said[0])
    return {"call_ms": sorted(calls)[2], "private_mib": private, "adopted_mib": adopted, "ahead_mib": ahead}


def _measure(engine: Engine, report: forks.Report, whole: bool) -> None:
    found = [_private_mib()]
    if whole:
        ahead = Rehearsal(engine, 0, None)
        found.append(_private_mib())
        ahead.cycle_every_ms = 10_000
        ahead.advance(ahead.now_ms + 1000)
        found.append(_private_mib())
    report(msgspec.msgpack.encode(found))


def _private_mib() -> float:
    with open("/proc/self/smaps_rollup", encoding="ascii") as rollup:
        return sum(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty")) / 1024


def _full_cell(size: int, workloads: int, *, gangs: bool = True) -> Engine:
    """A cell in which a third of the work runs for hours and the rest waits: for room, where gangs fill all nodes; for
    quota, where every workload is one task."""
    rng = random.Random(5)
    definition = engine_bench.cell(size)
    if not gangs:
        quota = {"gpu_milli": 80 * workloads}
        queues = [
            msgspec.structs.replace(q, nominal=quota, borrowing_limit={"gpu_milli": 0}) if q.parent else q
            for q in definition.queues
        ]
        definition = msgspec.structs.replace(definition, queues=tuple(queues))
    engine = Engine.open(None, cell=definition)
    engine.advance(HOUR_MS)
    specs = []
    for i in range(workloads):
        gpu = rng.choice([1000, 1000, 2000, 4000, 8000, 8000])
        request = Resources(cpu_milli=gpu * 4, memory_mib=gpu * 16, gpu_milli=gpu)
        # As many tasks as the cell needs to be full with six tenths of the workloads.
        tasks = rng.choice([0.25, 0.5, 1, 1, 2, 4]) * size * 5 / (0.6 * workloads) / 2.5
        specs.append(
            WorkloadSpec(
                id=f"w{i}",
                queue=f"q{i % 10}",
                tenant=f"t{i % 40}",
                groups=(TaskGroup(request=request, count=max(1, round(tasks)) if gangs else 1),),
                estimate_ms=rng.choice([1, 2, 4, 8, 12]) * HOUR_MS,
                checkpoint_interval_ms=rng.choice([0, HOUR_MS // 2]),
            )
        )
    for first in range(0, workloads, 10_000):
        engine.command(Submit(workloads=tuple(specs[first : first + 10_000])))
    return engine


def what_if() -> Iterator[dict[str, Any]]:
    """A day ahead, before and after, one seed; and what the live engine feels of it."""
    for size, workloads, gangs in (
        (100, 500, True),
        (5_000, 10_000, True),
        (130_000, 100_000, False),
        (130_000, 100_000, True),
    ):
        engine = _full_cell(size, workloads, gangs=gangs)
        bound = sum(engine.state.is_bound(row) for row in range(workloads))
        tasks = sum(engine.state.workloads.class_at(row).tasks for row in range(workloads))
        twins = Twins(engine)
        digest = engine.state.digest()
        pages = Pages()
        while not pages.tidy(0.01):
            pass
        edits = parse_all(["fail rack=r1 for 2h", "weight q1 3", "add 10 nodes to h100 at +2h"])
        cpu_s = _children_s()
        begun = time.perf_counter()
        run = twins.start(WhatIf(edits=edits, horizon_ms=DAY_MS, seeds=1)).id
        first_s, answered = 0.0, twins.status(run)
        while twins.busy:
            time.sleep(0.002)
            twins.poll()
            answered = twins.status(run)
            if answered.answer is not None and not first_s:
                first_s, first = time.perf_counter() - begun, answered.answer
        whole_s = time.perf_counter() - begun
        cpu_s = _children_s() - cpu_s
        assert answered.state == "done", answered.error
        assert engine.state.digest() == digest
        ended = next(f.before.p50 for f in answered.answer.figures if f.name == "finished")
        yield {
            "at": f"24 h, {size:,} nodes, {workloads:,} workloads",
            "result": f"{whole_s:.2f} s, first {first_s:.2f} s",
            "seconds": whole_s,
            "first_estimate_s": first_s,
            "first_covers_ms": first.covered_ms,
            "cpu_s": cpu_s,
            "tasks": tasks,
            "reference": f"{tasks:,} tasks, {bound:,} workloads run at first, {ended:,} end within the day; before and "
            f"after side by side on {os.cpu_count()} cores, {cpu_s:.1f} s of CPU in all; first estimate of "
            f"{first.covered_ms / 60_000:.0f} min",
        }


def _children_s() -> float:
    """CPU seconds of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_estimate() -> Iterator[dict[str, Any]]:
    """When a waiting workload starts, 20 seeds."""
    for size, workloads in ((100, 500), (5_000, 10_000)):
        engine = _full_cell(size, workloads)
        waiting = [row for row, s in enumerate(engine.state.workloads.state) if s == WorkloadState.QUEUED]
        twins = Twins(engine)
        begun = time.perf_counter()
        run = twins.start(AskStart(id=engine.state.workloads.ids[waiting[len(waiting) // 2]])).id
        first_s = 0.0
        while twins.status(run).state == "running":
            time.sleep(0.002)
            twins.poll()
            if twins.status(run).answer is not None and not first_s:
                first_s = time.perf_counter() - begun
        whole_s = time.perf_counter() - begun
        yield {
            "at": f"{size:,} nodes, {workloads:,} workloads",
            "result": f"{whole_s:.2f} s, first {first_s:.2f} s",
            "seconds": whole_s,
            "first_estimate_s": first_s,
            "reference": f"20 seeds, the {len(waiting) // 2:,}th that waits",
        }
