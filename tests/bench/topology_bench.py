"""Benchmarks of gangs that must be close together: 64 tasks, each with a node to itself, in one block of the network.

The reference scans all nodes with numpy for every gang: which are free, how many of these in each block, the fullest
block that is enough, its first free nodes. What is compared is the search alone, with all that ours does to keep its
counts current; the rates of whole gangs, with claims and releases, stand beside it. Times are CPU times.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Bonds, Shape
from engine.capacity.topology import BLOCK, domain_room, pick, spans
from engine.control import Engine
from engine.model.columns import view
from engine.model.commands import Submit
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    TopologyRequest,
    WorkloadSpec,
)
from engine.placement.gang_placement import Claim, place, unplace
from engine.state.allocations import take_all_devices

SIZES = (5_000, 50_000, 130_000)
POOL = PoolSpec(name="h100", capacity=Resources(cpu_milli=192_000, memory_mib=2_000_000, gpu_milli=8000))
GROUP = TaskGroup(count=64, request=Resources(cpu_milli=128_000, memory_mib=1_000_000, gpu_milli=8000))
GANGS = 1000
"""Gangs that are timed, each after the release of another."""
ALONE = 0.6
"""Part of the nodes that single tasks hold, anywhere."""


def nodes(count: int) -> tuple[NodeSpec, ...]:
    """Racks of 16, blocks of 512, zones of 16,384 nodes."""
    return tuple(
        NodeSpec(id=f"n{i}", pool="h100", rack=f"r{i // 16}", block=f"b{i // 512}", zone=f"z{i // 16384}")
        for i in range(count)
    )


class Cell:
    """Nodes, most of them busy, and gangs that come and go."""

    def __init__(self, size: int, request: TopologyRequest, alone: float) -> None:
        self.rng = random.Random(1)
        self.capacity = Capacity()
        self.capacity.add_pool(POOL)
        for node in nodes(size):
            self.capacity.add_node(node, 0)
        self.shapes = (Shape(GROUP, self.capacity.pools, Bonds(topology=request)),)
        single = Shape(TaskGroup(request=Resources(gpu_milli=8000)), self.capacity.pools)
        for row in self.rng.sample(range(size), int(alone * size)):
            self.capacity.claim(row, single, 1)
        self.live: list[list[Claim]] = []

    def fill(self, gangs: int) -> None:
        while len(self.live) < gangs and (claims := self.place()) is not None:
            self.live.append(claims)

    def place(self) -> list[Claim] | None:
        return place(self.capacity, self.shapes, (GROUP.count,))

    def leave(self) -> list[Claim]:
        """Take any of the gangs off the list."""
        at = self.rng.randrange(len(self.live))
        self.live[at], self.live[-1] = self.live[-1], self.live[at]
        return self.live.pop()


def gangs_in_a_block() -> Iterator[dict[str, Any]]:
    """Gangs that must be in one block, one after the other, each after another has gone."""
    for size in SIZES:
        cell = Cell(size, TopologyRequest(required="block"), ALONE)
        cell.fill(size // 512)
        begun = time.process_time()
        for _ in range(GANGS):
            unplace(cell.capacity, cell.shapes, cell.leave())
            cell.live.append(cell.place() or [])
        whole = GANGS / (time.process_time() - begun)
        search, scan = _searches(cell)
        assert all(len(claims) == GROUP.count for claims in cell.live), "a gang found no place"
        yield {
            "at": f"{size:,} nodes, 64 tasks in a block",
            "result": f"{search:,.0f} searches/s",
            "searches_per_s": search,
            "scan_per_s": scan,
            "ratio": search / scan,
            "placed_and_released_per_s": whole,
            "reference": f"numpy scan: {scan:,.0f}/s ({search / scan:.1f}x); placed and released: {whole:,.0f} gangs/s",
        }


def _searches(cell: Cell) -> tuple[float, float]:
    """Searches per second: ours, with its upkeep, and the scan's, turn about on the same state of the cell."""
    capacity, shape, known = cell.capacity, cell.shapes[0], domain_room(cell.capacity)
    tree = known.tree
    block_of = tree.domain[BLOCK][tree.position]
    ours = scans = 0.0
    scanned = 0
    for turn in range(GANGS):
        unplace(capacity, cell.shapes, cell.leave())
        begun = time.process_time()
        rooms = known.rooms(capacity, shape)
        choice = next(spans(tree, [rooms], (GROUP.count,), shape.topology))
        positions, tasks = pick(tree, rooms.by_position, choice, GROUP.count)
        ours += time.process_time() - begun
        if turn % 8 == 0:
            begun = time.process_time()
            found = _scan(capacity, block_of)
            scans += time.process_time() - begun
            scanned += 1
            free_in = {
                block: rooms.sums(BLOCK)[block]
                for block in {int(block_of[found[0]]), int(block_of[tree.rows[positions[0]]])}
            }
            assert len(set(free_in.values())) == 1, "not the smallest block"
        rows = tree.rows[positions]
        masks = take_all_devices(capacity, shape, rows, tasks)
        cell.live.append([(0, node, 1, mask) for node, mask in zip(rows.tolist(), masks.tolist(), strict=True)])
    return GANGS / ours, scanned / scans


def _scan(capacity: Capacity, block_of: np.ndarray) -> np.ndarray:
    """The obvious way: every node looked at, the free ones counted by block."""
    request = GROUP.request
    free = view(capacity.whole) == 255
    free &= view(capacity.free_cpu) >= request.cpu_milli
    free &= view(capacity.free_memory) >= request.memory_mib
    counts = np.bincount(block_of[free])
    enough = np.flatnonzero(counts >= GROUP.count)
    block = enough[np.argmin(counts[enough])]
    return np.flatnonzero(free & (block_of == block))[: GROUP.count]


def fewest_blocks() -> Iterator[dict[str, Any]]:
    """Gangs that prefer one block where none is free enough: how many they use, beside the fewest possible."""
    for size in SIZES:
        cell = Cell(size, TopologyRequest(preferred="block"), 0.93)
        tree = domain_room(cell.capacity).tree
        block_of, zone_of = (tree.domain[level][tree.position] for level in (BLOCK, BLOCK - 1))
        used = least = gangs = 0
        spent = 0.0
        while gangs < GANGS and len(free := _free(cell.capacity)) >= GROUP.count * 2:
            least += _optimum(block_of[free], zone_of[free])
            begun = time.process_time()
            claims = cell.place()
            spent += time.process_time() - begun
            used += len({int(block_of[node]) for _, node, _, _ in claims or ()})
            gangs += 1
        yield {
            "at": f"{size:,} nodes, 93 % busy, block preferred",
            "result": f"{used / gangs:.2f} blocks a gang",
            "blocks": used,
            "optimum": least,
            "gangs": gangs,
            "placed_per_s": gangs / spent,
            "reference": f"fewest there could be: {least / gangs:.2f}; {gangs} gangs, {gangs / spent:,.0f}/s placed",
        }


def _free(capacity: Capacity) -> np.ndarray:
    return np.flatnonzero(view(capacity.whole) == 255)


def _optimum(blocks: np.ndarray, zones: np.ndarray) -> int:
    """Fewest blocks that hold a gang, in one zone where some zone has room for it."""
    within = [blocks[zones == zone] for zone in np.unique(zones)]
    fewest = [
        int(np.searchsorted(np.cumsum(np.sort(np.bincount(some))[::-1]), GROUP.count)) + 1
        for some in within
        if len(some) >= GROUP.count
    ]
    whole = np.sort(np.bincount(blocks))[::-1]
    return min(fewest) if fewest else int(np.searchsorted(np.cumsum(whole), GROUP.count)) + 1


def undo() -> Iterator[dict[str, Any]]:
    """Give the claims of a 64-node gang back, beside one copy of the columns that claims change."""
    cell = Cell(130_000, TopologyRequest(required="block"), ALONE)
    cell.place()
    c = cell.capacity
    columns = (c.free_cpu, c.free_memory, c.free_disk, c.whole, c.partial, c.key, c.device_free)
    size = sum(len(column) * column.itemsize for column in columns)
    undoing = copying = 0.0
    for _ in range(300):
        claims = cell.place()
        begun = time.process_time()
        unplace(c, cell.shapes, claims or [])
        middle = time.process_time()
        kept = [column[:] for column in columns]
        copying += time.process_time() - middle
        undoing += middle - begun
        del kept
    yield {
        "at": "130,000 nodes, claims of 64 nodes given back",
        "result": f"{undoing / 300 * 1e6:,.0f} µs",
        "microseconds": undoing / 300 * 1e6,
        "copy_microseconds": copying / 300 * 1e6,
        "ratio": undoing / copying,
        "reference": f"copy of the node columns ({size / 1e6:.1f} MB): {copying / 300 * 1e6:,.0f} µs "
        f"({undoing / copying:.2f} of it)",
    }


def gangs_end_to_end() -> Iterator[dict[str, Any]]:
    """From the door to the durable journal: check, quota, placement in one block, start and end of every gang."""
    for size in SIZES:
        at_once = min(200, size // 128)
        rounds = 2000 // at_once
        cell = CellSpec(
            name="bench",
            pools=(POOL,),
            nodes=nodes(size),
            queues=(QueueSpec(name="root"), QueueSpec(name="q", parent="root", nominal={"gpu_milli": 8000 * size})),
            priority_classes=(PriorityClassSpec(name="normal", value=0),),
        )
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine.open(Path(folder) / "journal.db", cell=cell)
            cpu, wall = time.process_time(), time.perf_counter()
            for number in range(rounds):
                engine.commands([Submit(workloads=(_gang(f"g{number}-{i}"),)) for i in range(at_once)])
                engine.advance(engine.now_ms + 2000)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            assert engine.workload(f"g{rounds - 1}-{at_once - 1}").state == "finished"
            engine.close()
        total = rounds * at_once
        yield {
            "at": f"{size:,} nodes, {at_once} gangs a transaction",
            "result": f"{total / wall:,.0f} gangs/s",
            "gangs_per_s": total / wall,
            "gangs_per_cpu_s": total / cpu,
            "reference": f"{total / cpu:,.0f} a CPU second; {64 * total / wall:,.0f} tasks/s started and ended",
        }


def _gang(name: str) -> WorkloadSpec:
    return WorkloadSpec(
        id=name,
        queue="q",
        groups=(GROUP,),
        estimate_ms=1000,
        simulated_runtime_ms=1000,
        topology=TopologyRequest(required="block"),
    )
