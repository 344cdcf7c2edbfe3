"""Benchmark of victim selection: room for a large gang of whole nodes in a full cell, and the plain way to find it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from console.cli import demo_cell
from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Shape
from engine.control import Engine
from engine.loop import CYCLE_EVERY_MS
from engine.model.commands import Submit
from engine.model.errors import MusterError
from engine.model.specs import NodeSpec, PoolSpec, Resources, TaskGroup, WorkloadSpec
from engine.scheduling.victim_candidates import VictimCandidates
from engine.scheduling.victims import cheapest
from engine.state.allocations import Allocations, RequestColumns
from engine.state.workloads import ClassKey, WorkloadClass
from engine.traces.generated_day import DAY_MS, HOUR_MS, ai_day

NODES = 130_000
NEED = 512
CROWDED, CROWDED_MS = 20, 2 * HOUR_MS
"""Nodes under four times the load that they can take, and for how long."""
NODE = Resources(cpu_milli=192_000, memory_mib=2_000_000, gpu_milli=8000)
LAYOUTS = ((8,), (4, 4), (2, 2, 4), (1, 1, 2, 4))
"""Devices of the tasks on a node."""
GANGS = (1, 2, 4, 8, 16, 32, 64)
"""Tasks of a gang."""


class Cell:
    """Every device taken, 300,000 allocations, gangs scattered over the cell."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.capacity = Capacity()
        self.capacity.add_pool(PoolSpec(name="h100", capacity=NODE, gpu_model="H100"))
        self.classes = []
        for devices in (1, 2, 4, 8):
            request = Resources(cpu_milli=devices * 16_000, memory_mib=devices * 200_000, gpu_milli=devices * 1000)
            self.classes.append(WorkloadClass(ClassKey((TaskGroup(request=request),), 3_600_000)))
        layout = rng.choice(len(LAYOUTS), NODES, p=(0.29, 0.31, 0.21, 0.19))
        node, kind, mask = self._tasks(layout)
        gang = np.empty(len(node), np.int32)
        gangs = 0
        for each in range(len(self.classes)):
            tasks = rng.permutation(np.flatnonzero(kind == each))
            sizes = rng.choice(GANGS, len(tasks))
            last = int(np.searchsorted(np.cumsum(sizes), len(tasks))) + 1
            gang[tasks] = gangs + np.repeat(np.arange(last), sizes[:last])[: len(tasks)]
            gangs += last
        self.class_of = np.zeros(gangs, np.int32)
        self.class_of[gang] = kind
        self.cost = rng.integers(0, 3_600_000, gangs) * np.bincount(gang) * (1 << self.class_of.astype(np.int64))
        self.level = rng.integers(0, 4, gangs).astype(np.int16)
        self._fill(node, kind, mask, gang)
        self.requests = RequestColumns()
        self.requests.update(self.classes)

    def devices_on_nodes(self) -> Held:
        a = self.allocations
        found: Held = [[] for _ in range(NODES)]
        for gang, node, mask in zip(a.workload, a.node, a.devices, strict=True):
            found[node].append((gang, mask.bit_count()))
        return found

    def _tasks(self, layout: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(node, class, device mask) of every task."""
        parts = []
        for each, sizes in enumerate(LAYOUTS):
            nodes, first = np.flatnonzero(layout == each), 0
            for size in sizes:
                mask = (1 << size) - 1 << first
                parts.append((nodes, np.full(len(nodes), size.bit_length() - 1), np.full(len(nodes), mask)))
                first += size
        node, kind, mask = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.random.default_rng(7).permutation(len(node))
        return node[order], kind[order], mask[order]

    def _fill(self, node: np.ndarray, kind: np.ndarray, mask: np.ndarray, gang: np.ndarray) -> None:
        c = self.capacity
        for i in range(NODES):
            c.add_node(NodeSpec(id=f"n{i}", pool=c.pools[0].name), 0)
        used = np.bincount(node, weights=1 << kind, minlength=NODES).astype(np.int64)
        for name, values in (
            ("free_cpu", NODE.cpu_milli - used * 16_000),
            ("free_memory", NODE.memory_mib - used * 200_000),
            ("whole", 255 - np.bincount(node, weights=mask, minlength=NODES).astype(np.int64)),
        ):
            _set(getattr(c, name), values)
        _set(c.device_free, np.zeros(NODES * 8))
        c.derive()
        self.allocations = Allocations()
        for name, values in (
            ("workload", gang),
            ("group", np.zeros_like(gang)),
            ("node", node),
            ("count", np.ones_like(gang)),
            ("devices", mask),
        ):
            _set(getattr(self.allocations, name), values)


def crowded_day() -> Iterator[tuple[int, WorkloadSpec]]:
    """(cell ms, workload) of the demo's load for four times as many nodes as there are."""
    for day_ms, spec in ai_day(7, nodes=4 * CROWDED, day=0)[1]:
        yield max(demo_cell.START_MS, demo_cell.START_MS - demo_cell.START_MS % DAY_MS + day_ms), spec


def preemption_under_load() -> Iterator[dict[str, Any]]:
    """The demo's load for 80 nodes on 20: some 800 workloads wait, and whatever ends has all of them looked at again.
    CPU of two hours of cell time, at 40 times the speed of the wall's clock three minutes."""
    engine = Engine.open(None, cell=demo_cell.cell(CROWDED), seed=7)
    engine.cycle_every_ms = CYCLE_EVERY_MS
    engine.advance(demo_cell.START_MS)
    cycles: list[float] = []
    cycle = engine.scheduler.cycle

    def timed(enough: Callable[[], bool]) -> None:
        begun = time.process_time()
        cycle(enough)
        cycles.append(time.process_time() - begun)

    engine.scheduler.cycle = timed  # type: ignore[method-assign]
    for at_ms, spec in crowded_day():
        if at_ms > demo_cell.START_MS + CROWDED_MS:
            break
        engine.advance(at_ms)
        with suppress(MusterError):
            engine.command(Submit(workloads=(spec,)))
    waiting = engine.overview().states["queued"]
    yield {
        "at": f"{CROWDED} nodes, {waiting:,} waiting, two hours",
        "result": f"{sum(cycles):.1f} s CPU, longest cycle {max(cycles) * 1000:.0f} ms",
        "cpu_s": sum(cycles),
        "longest_ms": max(cycles) * 1000,
    }


def _set(column: array[int], values: np.ndarray) -> None:
    del column[:]
    column.frombytes(values.astype(np.dtype(column.typecode)).tobytes())


def victims() -> Iterator[dict[str, Any]]:
    """512 whole nodes out of 130,000 that are full: which gangs to remove. Both ways go by unit prices."""
    cell = Cell(1)
    asked = Resources(cpu_milli=96_000, memory_mib=1_000_000, gpu_milli=8000)
    shape = Shape(TaskGroup(count=NEED, request=asked), cell.capacity.pools)
    for name, level in (("all of one level", np.zeros_like(cell.level)), ("four levels", cell.level)):
        candidates = VictimCandidates(level, cell.cost)
        times = []
        for _ in range(9):
            begun = time.perf_counter()
            rows = cheapest(cell.capacity, cell.allocations, cell.requests, cell.class_of, [(shape, NEED)], candidates)
            times.append(time.perf_counter() - begun)
        assert rows is not None
        seconds = sorted(times)[len(times) // 2]
        on_node, levels, costs = cell.devices_on_nodes(), level.tolist(), cell.cost.tolist()
        begun = time.perf_counter()
        plain = node_by_node(on_node, levels, costs, NEED)
        plain_seconds = time.perf_counter() - begun
        cost, plain_cost = (sum(int(cell.cost[row]) for row in some) for some in (rows, plain))
        yield {
            "at": f"{NEED} of {NODES:,} nodes, {len(cell.allocations.node):,} tasks, {name}",
            "result": f"{seconds * 1000:.1f} ms",
            "milliseconds": seconds * 1000,
            "victims": len(rows),
            "ratio": plain_seconds / seconds,
            "cost_ratio": cost / plain_cost,
            "reference": f"Python, node by node: {plain_seconds * 1000:,.0f} ms ({plain_seconds / seconds:.0f}x); "
            f"{len(rows)} victims at {cost / plain_cost:.2f} of its cost",
        }


Held = list[list[tuple[int, int]]]
"""(gang, devices) of every task, by node."""


def node_by_node(on_node: Held, level: list[int], cost: list[int], need: int) -> set[int]:
    """The plain way, within the lowest level: a unit price for every gang, the cheapest node that can be cleared, what
    its gangs free elsewhere for nothing, and so on; in the end whoever is not needed is spared."""
    whole: dict[int, int] = {}
    nodes_of: dict[int, list[int]] = {}
    for node, held in enumerate(on_node):
        for gang, devices in held:
            if level[gang]:
                continue
            whole[gang] = whole.get(gang, 0) + devices
            nodes_of.setdefault(gang, []).append(node)
    unit = {gang: cost[gang] / min(devices / 8, need) for gang, devices in whole.items()}
    heap = [
        (sum(unit[gang] * devices / 8 for gang, devices in held), node)
        for node, held in enumerate(on_node)
        if not any(level[gang] for gang, _ in held)
    ]
    price_of = {node: price for price, node in heap}
    heapify(heap)
    left = {node: len(on_node[node]) for node in price_of}
    gone: set[int] = set()
    cleared = 0
    while cleared < need:
        price, node = heappop(heap)
        if price != price_of[node]:
            continue
        for gang, _ in on_node[node]:
            if gang in gone:
                continue
            gone.add(gang)
            for other in nodes_of[gang]:
                if other in left:
                    left[other] -= 1
                    cleared += not left[other]
                    freed = sum(devices for there, devices in on_node[other] if there == gang)
                    price_of[other] -= unit[gang] * freed / 8
                    heappush(heap, (price_of[other], other))
    for gang in sorted(gone, key=lambda g: -cost[g]):
        lost = sum(other in left and not left[other] for other in nodes_of[gang])
        if cleared - lost >= need:
            cleared -= lost
            gone.discard(gang)
            for other in nodes_of[gang]:
                if other in left:
                    left[other] += 1
    return gone
