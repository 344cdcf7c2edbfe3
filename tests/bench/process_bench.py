"""Benchmarks that need a fresh process: what nodes, allocations and workloads take up in memory."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import engine_bench

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import Resources, TaskGroup, WorkloadSpec

SIZE = 130_000


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


def _in_fresh_process(measure: Callable[[], Any]) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure).result()
