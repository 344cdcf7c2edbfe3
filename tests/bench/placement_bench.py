"""Benchmarks of the search for a node: mixed requests that come and go in a cell whose devices are 85 % taken.

The reference is exact best fit the obvious way: numpy compares every node and takes, of those that fit, one of the
cheapest machine type, with least free GPU and then least free CPU. It claims and releases like ours, on columns of its
own. Times are CPU times of the process, medians of parts that take turns, so that what else the machine does falls on
both.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np

from engine.capacity.index import NOWHERE, Capacity
from engine.capacity.task_shapes import Shape
from engine.model.columns import view
from engine.model.specs import NodeSpec, PoolSpec, Resources, TaskGroup

SIZES = (5_000, 50_000, 130_000, 500_000)
POOLS = (
    PoolSpec(
        name="h100",
        capacity=Resources(cpu_milli=192_000, memory_mib=2_000_000, gpu_milli=8000, disk_mib=4_000_000),
        gpu_model="H100",
        price_microusd_hour=24_000_000,
    ),
    PoolSpec(
        name="a100",
        capacity=Resources(cpu_milli=96_000, memory_mib=1_000_000, gpu_milli=4000, disk_mib=2_000_000),
        gpu_model="A100",
        price_microusd_hour=8_000_000,
    ),
    PoolSpec(name="cpu", capacity=Resources(cpu_milli=64_000, memory_mib=256_000, disk_mib=1_000_000)),
)
MAX_DEVICES = 8
CLASSES = 256
FULL = 0.85
PARTS = 5
"""Parts of each run, of which the median counts."""
CHECKED = 500
"""Searches that find nothing, each compared with a scan of all nodes."""
Live = list[tuple[int, Shape, int]]
"""(node, request, device mask) of every task that runs."""


class Cell:
    """Nodes of mixed classes and the tasks on them, a function of the size alone."""

    def __init__(self, size: int) -> None:
        self.rng = random.Random(1)
        self.capacity = Capacity()
        for pool in POOLS:
            self.capacity.add_pool(pool)
        for i in range(size):
            self.capacity.add_node(NodeSpec(id=f"n{i}", pool=POOLS[(0, 1, 0, 2)[i % 4]].name), 0)
        self.shapes = [Shape(TaskGroup(request=request(self.rng)), self.capacity.pools) for _ in range(CLASSES)]
        self.live: Live = []
        self.devices = self.free_devices()

    def free_devices(self) -> int:
        return sum(index.free_devices for index in self.capacity.indexes)

    def fill(self) -> None:
        while self.free_devices() > (1 - FULL) * self.devices:
            for _ in range(200):
                self.place(self.rng.choice(self.shapes))

    def place(self, shape: Shape) -> bool:
        node = self.capacity.find(shape)
        if node == NOWHERE:
            return False
        self.live.append((node, shape, self.capacity.claim(node, shape, 1)))
        return True

    def give_back(self, node: int, shape: Shape, mask: int) -> None:
        self.capacity.give_back(node, shape, 1, mask)

    def churn(self, steps: int, chosen: random.Random) -> float:
        """CPU seconds for so many times: place one task, release another."""
        stream = [chosen.choice(self.shapes) for _ in range(steps)]
        picks = [chosen.random() for _ in range(steps)]
        begun = time.process_time()
        for shape, pick in zip(stream, picks, strict=True):
            self.place(shape)
            node, released, mask = drawn(self.live, pick)
            self.give_back(node, released, mask)
        return time.process_time() - begun


class Scan:
    """Exact best fit by looking at every node, with numpy."""

    def __init__(self, capacity: Capacity, live: Live) -> None:
        base, count = view(capacity.device_base), len(capacity.node_ids)
        self.devices = np.zeros((count, MAX_DEVICES), np.int64)
        for pool in range(len(capacity.pools)):
            mine = np.flatnonzero(view(capacity.pool) == pool)
            width = capacity.pools[pool].capacity.gpu_milli // 1000
            self.devices[mine, :width] = view(capacity.device_free)[base[mine, None] + np.arange(width)]
        self.cpu, self.memory, self.disk = (
            view(column).copy() for column in (capacity.free_cpu, capacity.free_memory, capacity.free_disk)
        )
        self.whole = (self.devices == 1000).sum(axis=1)
        self.largest = self.devices.max(axis=1)
        # Like ours, it leaves devices to those who need them and takes the cheaper nodes first.
        price = np.array([pool.price_microusd_hour for pool in capacity.pools])[view(capacity.pool)]
        self.score = np.unique(price, return_inverse=True)[1] << 56 | self.devices.sum(axis=1) << 32 | self.cpu
        self.live = list(live)

    def fits(self, shape: Shape) -> np.ndarray[Any, Any]:
        fits = self.cpu >= shape.cpu
        fits &= self.memory >= shape.memory
        if shape.disk:
            fits &= self.disk >= shape.disk
        if shape.gpus:
            fits &= self.whole >= shape.gpus
        elif shape.share:
            fits &= self.largest >= shape.share
        return np.flatnonzero(fits)

    def place(self, shape: Shape) -> bool:
        rows = self.fits(shape)
        if not len(rows):
            return False
        node = int(rows[self.score[rows].argmin()])
        mask, devices = 0, self.devices[node].tolist()
        if shape.share:
            mask = 1 << min((free, at) for at, free in enumerate(devices) if free >= shape.share)[1]
        for _ in range(shape.gpus):
            mask |= 1 << next(at for at, free in enumerate(devices) if free == 1000 and not mask >> at & 1)
        self.shift(node, shape, mask, -1)
        self.live.append((node, shape, mask))
        return True

    def shift(self, node: int, shape: Shape, mask: int, sign: int) -> None:
        self.cpu[node] += sign * shape.cpu
        self.memory[node] += sign * shape.memory
        self.disk[node] += sign * shape.disk
        if mask:
            devices = self.devices[node].tolist()
            for at in range(MAX_DEVICES):
                if mask >> at & 1:
                    devices[at] += sign * (shape.share or 1000)
            self.devices[node] = devices
            self.whole[node] = devices.count(1000)
            self.largest[node] = max(devices)
        self.score[node] += (sign * shape.gpu_milli << 32) + sign * shape.cpu

    def give_back(self, node: int, shape: Shape, mask: int) -> None:
        self.shift(node, shape, mask, 1)

    def churn(self, shapes: list[Shape], steps: int, chosen: random.Random) -> float:
        begun = time.process_time()
        for _ in range(steps):
            self.place(chosen.choice(shapes))
            node, released, mask = drawn(self.live, chosen.random())
            self.give_back(node, released, mask)
        return time.process_time() - begun


def request(rng: random.Random) -> Resources:
    """CPU only, shares of a device, one to eight devices."""
    return Resources(
        cpu_milli=rng.choice([1, 2, 4, 8, 16, 24]) * 1000,
        memory_mib=rng.choice([4, 8, 16, 64, 128]) * 1024,
        gpu_milli=rng.choice([0, 0, 250, 500, 1000, 1000, 2000, 4000, 8000]),
        disk_mib=rng.choice([0, 0, 10_000, 50_000]),
    )


def drawn(live: Live, pick: float) -> tuple[int, Shape, int]:
    """A task out of those that run, which goes."""
    at = int(pick * len(live))
    live[at], live[-1] = live[-1], live[at]
    return live.pop()


def placement() -> Iterator[dict[str, Any]]:
    """One at a time, beside the scan."""
    rates: dict[int, float] = {}
    for size in SIZES:
        cell = Cell(size)
        cell.fill()
        # What is there stays: looking it through for garbage again and again is no part of a placement.
        gc.collect()
        gc.freeze()
        scan = Scan(cell.capacity, cell.live)
        scanned = max(100, 100_000_000 // size // 25)
        chosen = random.Random(2)
        ours, theirs = [], []
        for _ in range(PARTS):
            ours.append(4000 / cell.churn(4000, chosen))
            theirs.append(scanned // PARTS / scan.churn(cell.shapes, scanned // PARTS, chosen))
        rate, reference = rates.setdefault(size, median(ours)), median(theirs)
        searches, missed = false_answers(cell)
        gc.unfreeze()
        first = rates[SIZES[0]]
        yield {
            "at": f"{size:,} nodes, place + release",
            "result": f"{rate:,.0f}/s",
            "placements_per_s": rate,
            "scan_per_s": reference,
            "ratio": rate / reference,
            "of_smallest": rate / first,
            "nothing_fits": searches,
            "nothing_fits_wrong": missed,
            "reference": f"numpy full scan: {reference:,.0f}/s ({rate / reference:.1f}x); {rate / first:.2f} of the "
            f"rate at {SIZES[0]:,}; {missed} of {searches} 'nothing fits' wrong",
        }


def false_answers(cell: Cell) -> tuple[int, int]:
    """Fill the cell up, until CHECKED searches found nothing: how many they were, and how many of them were wrong by a
    scan of all nodes."""
    nothing = wrong = 0
    while nothing < CHECKED:
        shape = cell.rng.choice(cell.shapes)
        if not cell.place(shape):
            nothing += 1
            wrong += fits_somewhere(cell.capacity, shape)
    return nothing, wrong


def fits_somewhere(capacity: Capacity, shape: Shape) -> bool:
    """By a look at every node."""
    fits = view(capacity.free_cpu) >= shape.cpu
    fits &= view(capacity.free_memory) >= shape.memory
    fits &= view(capacity.free_disk) >= shape.disk
    whole = view(capacity.whole)
    fits &= np.bitwise_count(whole) >= shape.gpus
    if shape.share:
        fits &= (whole > 0) | (view(capacity.partial) >= shape.share)
    return bool(fits.any())


def packing() -> Iterator[dict[str, Any]]:
    """GPU nodes with all devices free when the tasks have all been replaced, beside exact best fit of the same."""
    for size in (5_000, 20_000):
        cell = Cell(size)
        exact = Scan(cell.capacity, [])
        steps = size * 10
        replace(cell.place, cell.give_back, cell.live, cell, steps)
        replace(exact.place, exact.give_back, exact.live, cell, steps)
        ours = Scan(cell.capacity, cell.live)
        of_node = np.array([pool.capacity.gpu_milli for pool in POOLS])[view(cell.capacity.pool)]
        mine, best = (int(((of_node > 0) & (s.devices.sum(axis=1) == of_node)).sum()) for s in (ours, exact))
        yield {
            "at": f"{size:,} nodes, {steps:,} placements, {1 - FULL:.0%} of GPU free",
            "result": f"{mine:,} whole nodes free",
            "whole_nodes_free": mine,
            "whole_nodes_free_exact": best,
            "ratio": mine / best,
            "gpu_free": float(ours.devices.sum() / 1000),
            "gpu_free_exact": float(exact.devices.sum() / 1000),
            "reference": f"exact best fit: {best:,} ({mine / best:.3f}); GPU free {ours.devices.sum() / 1000:,.0f} and "
            f"{exact.devices.sum() / 1000:,.0f}",
        }


def replace(
    place: Callable[[Shape], bool], give_back: Callable[[int, Shape, int], None], live: Live, cell: Cell, steps: int
) -> None:
    """Place so many tasks, and release others whenever more than FULL of the GPU is taken."""
    chosen, least = random.Random(3), (1 - FULL) * 1000 * cell.devices
    free_milli = 1000 * cell.devices
    for _ in range(steps):
        shape = chosen.choice(cell.shapes)
        if place(shape):
            free_milli -= shape.gpu_milli
        while free_milli < least:
            node, gone, mask = drawn(live, chosen.random())
            give_back(node, gone, mask)
            free_milli += gone.gpu_milli
