"""Benchmarks that need a fresh process: what nodes and allocations take up, and the first turns of an engine on a
machine where no kernel was ever compiled."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import engine_bench
import placement_bench

from engine import fast
from engine.commands import Submit
from engine.control import Engine
from engine.loop import CYCLE_EVERY_MS
from engine.model import Resources, TaskGroup, WorkloadSpec

SIZE = 130_000
EACH = 100
"""Workloads of a turn: enough for kernels to pay."""


def memory() -> Iterator[dict[str, Any]]:
    """Growth of a fresh process by a cell, by allocations, by running workloads; beside one object for each node."""
    per_node, per_allocation, per_workload, per_object = _in_fresh_process(_measure_memory)
    yield {
        "at": f"{SIZE:,} nodes of up to 8 devices",
        "result": f"{per_node:,.0f} bytes a node",
        "bytes": per_node,
        "reference": f"a Python object with slots and a list of devices: {per_object:,.0f} bytes",
    }
    yield {
        "at": "tasks on whole nodes, gangs of 1,000",
        "result": f"{per_allocation:,.0f} bytes each",
        "bytes": per_allocation,
        "reference": "an allocation, with its part of the gang's events",
    }
    yield {
        "at": "running workloads of one task",
        "result": f"{per_workload:,.0f} bytes each",
        "bytes": per_workload,
        "reference": "the workload, its id, its allocation, three steps of its history, the tail of events",
    }


def _measure_memory() -> tuple[float, ...]:
    """Bytes by node, by allocation of a gang, by running workload of one task, and by node kept as an object."""
    # What is imported or made when it is first needed is no part of a node.
    Engine.open(None, cell=engine_bench.cell(100)).advance(1)
    before = _resident()
    engine = Engine.open(None, cell=engine_bench.cell(SIZE))
    cell = _resident()
    gangs, tasks = SIZE // 2000, 1000
    group = TaskGroup(count=tasks, request=Resources(gpu_milli=8000, cpu_milli=100_000))
    for i in range(gangs):
        engine.command(Submit(workloads=(WorkloadSpec(id=f"g{i}", queue="q0", groups=(group,), estimate_ms=10**9),)))
    allocated = _resident()
    rows = len(engine.state.allocations.node)
    groups = [(TaskGroup(request=Resources(cpu_milli=1000, memory_mib=1024)),)]
    singles, batch = 200_000, 10_000
    for i in range(singles // batch):
        engine.command(Submit(workloads=engine_bench.singles(random.Random(i), f"w{i}", batch, groups)))
    running = _resident()
    assert rows >= gangs * tasks
    assert len(engine.state.allocations.node) - rows == singles
    objects = [_Node(f"n{i}", "h100", "r1", 0, 192_000 - i, 2_000_000 - i, 0, [1000] * 8, []) for i in range(SIZE)]
    return (
        (cell - before) / SIZE,
        (allocated - cell) / rows,
        (running - allocated) / singles,
        (_resident() - running) / len(objects),
    )


@dataclass(slots=True)
class _Node:
    """As it is often kept."""

    name: str
    pool: str
    rack: str
    state: int
    free_cpu: int
    free_memory: int
    free_disk: int
    devices: list[int]
    allocations: list[int]


def _resident() -> int:
    """Bytes of memory that the process holds, when what is free was given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def first_cycle() -> Iterator[dict[str, Any]]:
    """Turns from the start of a process until kernels are there, none being in the cache."""
    if fast.extra.state == "absent":
        yield placement_bench.left_out("an empty cache of kernels", fast.extra)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = os.environ.get(fast.CACHE_VARIABLE)
        os.environ[fast.CACHE_VARIABLE] = folder
        try:
            turns, ready_s, after = _in_fresh_process(_turns_until_ready)
        finally:
            os.environ.pop(fast.CACHE_VARIABLE)
            if found is not None:
                os.environ[fast.CACHE_VARIABLE] = found
    yield {
        "at": f"{SIZE:,} nodes, {EACH} a turn, empty cache of kernels",
        "result": f"first turn {turns[0]:.0f} ms",
        "first_turn_ms": turns[0],
        "longest_turn_ms": max(turns),
        "ready_s": ready_s,
        "reference": f"longest of {len(turns)} turns while they were compiled, {ready_s:.0f} s: {max(turns):.0f} ms; "
        f"then p50 {sorted(after)[len(after) // 2]:.0f} ms",
    }


def _turns_until_ready() -> tuple[list[float], float, list[float]]:
    """Milliseconds of the turns until kernels are ready, seconds until then, and milliseconds of the turns after."""
    rng = random.Random(1)
    groups = [(TaskGroup(request=request),) for request in engine_bench.requests(rng, 64)]
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.open(Path(folder) / "journal.db", cell=engine_bench.cell(SIZE))
        engine.cycle_every_ms = CYCLE_EVERY_MS
        turns: list[float] = []
        after: list[float] = []
        begun = time.perf_counter()
        ready_s = 0.0
        while len(after) < 10 and time.perf_counter() - begun < placement_bench.COMPILED_WITHIN_S:
            # Not faster than people can look: ten turns a second.
            batch = engine_bench.singles(rng, f"w{len(turns)}-{len(after)}", EACH, groups)
            started = time.perf_counter()
            engine.command(Submit(workloads=batch))
            engine.advance(engine.now_ms + EACH)
            took = time.perf_counter() - started
            (turns if not ready_s else after).append(took * 1000)
            time.sleep(max(0.1 - took, 0))
            if not ready_s and fast.extra.state != "preparing":
                ready_s = time.perf_counter() - begun
        assert fast.extra.state == "ready", fast.extra.reason or "not ready in time"
        engine.close()
    return turns, ready_s, after


def _in_fresh_process(measure: Callable[[], Any]) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure).result()
