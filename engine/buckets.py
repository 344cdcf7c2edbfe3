"""Buckets of the ready nodes of one partition, by what they have free. `engine.capacity` searches them."""

from __future__ import annotations

from array import array
from heapq import heapify, heappush
from typing import Any, NamedTuple

import numpy as np

from engine.columns import copied, view
from engine.mig import KINDS

NOWHERE = -1
"""No node."""
SHARE_STEP = 50
"""Milli-GPU per bucket of partly used devices."""


class PoolIndex:
    """Buckets of the ready nodes of one partition, which is of one pool, and their free totals."""

    __slots__ = ("counts", "cpu_bits", "free_cpu", "free_devices", "free_memory", "gpu_bits", "heaps",
                 "instance_counts", "instance_heaps", "memory_bits", "pool", "share_bits", "share_counts",
                 "share_heaps")  # fmt: skip

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.gpu_bits = 0
        self.cpu_bits: list[int] = [0] * 64
        self.memory_bits: dict[int, int] = {}
        self.heaps: dict[int, list[int]] = {}
        self.counts: dict[int, int] = {}
        self.share_bits = 0
        self.share_heaps: list[list[int]] = [[] for _ in range(1000 // SHARE_STEP)]
        self.share_counts = [0] * (1000 // SHARE_STEP)
        self.instance_heaps: list[list[int]] = [[] for _ in KINDS]
        """Nodes with a free MIG instance, by kind."""
        self.instance_counts = [0] * len(KINDS)
        self.free_cpu = 0
        self.free_memory = 0
        self.free_devices = 0
        """Whole free devices."""

    def copy(self) -> PoolIndex:
        other = PoolIndex.__new__(PoolIndex)
        for name in self.__slots__:
            setattr(other, name, copied(getattr(self, name)))
        return other

    def insert(self, key: int, node: int) -> None:
        heap = self.heaps.get(key)
        if heap is None:
            heap = self.heaps[key] = []
        heappush(heap, node)
        count = self.counts.get(key, 0)
        self.counts[key] = count + 1
        if not count:
            gpu, cpu, memory = key >> 12, key >> 6 & 63, key & 63
            self.gpu_bits |= 1 << gpu
            self.cpu_bits[gpu] |= 1 << cpu
            self.memory_bits[key >> 6] = self.memory_bits.get(key >> 6, 0) | 1 << memory

    def insert_many(self, key: int, nodes: list[int]) -> None:
        """As `insert` for each of the nodes, which are in ascending order."""
        self.insert(key, nodes[0])
        heap = self.heaps[key]
        if len(nodes) * 8 > len(heap):
            heap.extend(nodes[1:])
            heapify(heap)
        else:
            for node in nodes[1:]:
                heappush(heap, node)
        self.counts[key] += len(nodes) - 1

    def remove(self, key: int, nodes: int = 1) -> None:
        """So many nodes fewer in the bucket; their heap entries go stale."""
        count = self.counts[key] - nodes
        self.counts[key] = count
        if count:
            return
        self.heaps[key].clear()
        row = key >> 6
        gpu, cpu = row >> 6, row & 63
        self.memory_bits[row] ^= 1 << (key & 63)
        if not self.memory_bits[row]:
            self.cpu_bits[gpu] ^= 1 << cpu
            if not self.cpu_bits[gpu]:
                self.gpu_bits ^= 1 << gpu

    def forget(self, nodes: set[int]) -> None:
        """Drop every entry, stale ones too, of nodes that are not in here any more."""
        for heap in (*self.heaps.values(), *self.share_heaps, *self.instance_heaps):
            if not nodes.isdisjoint(heap):
                heap[:] = [node for node in heap if node not in nodes]
                heapify(heap)

    def insert_instances(self, kinds: int, node: int) -> None:
        """The node has a free MIG instance of each of the kinds in the bit mask."""
        while kinds:
            low = kinds & -kinds
            kinds ^= low
            kind = low.bit_length() - 1
            heappush(self.instance_heaps[kind], node)
            self.instance_counts[kind] += 1

    def remove_instances(self, kinds: int) -> None:
        """A node has no free MIG instance of these kinds any more; its heap entries go stale."""
        while kinds:
            low = kinds & -kinds
            kinds ^= low
            kind = low.bit_length() - 1
            self.instance_counts[kind] -= 1
            if not self.instance_counts[kind]:
                self.instance_heaps[kind].clear()

    def insert_share(self, step: int, node: int) -> None:
        heappush(self.share_heaps[step], node)
        self.share_counts[step] += 1
        self.share_bits |= 1 << step

    def remove_share(self, step: int) -> None:
        self.share_counts[step] -= 1
        if not self.share_counts[step]:
            self.share_heaps[step].clear()
            self.share_bits ^= 1 << step


class Moves(NamedTuple):
    """Nodes whose columns have changed without their index, each once, and as what they are in it: the key of the
    bucket and the largest free part of a device, milli-GPU."""

    nodes: np.ndarray[Any, np.dtype[Any]]
    keys: np.ndarray[Any, np.dtype[Any]]
    parts: np.ndarray[Any, np.dtype[Any]]


def bring_up(
    indexes: list[PoolIndex], partition: array[int], key: array[int], partial: array[int], moves: list[Moves]
) -> None:
    """Put nodes that were moved, the oldest move first, where their columns say. Totals are not touched."""
    nodes, old, old_part = (np.concatenate(column) for column in zip(*moves, strict=True))
    nodes, first = np.unique(nodes, return_index=True)
    old, old_part = old[first], old_part[first].astype(np.int64)
    new, new_part = view(key)[nodes], view(partial)[nodes].astype(np.int64)
    place = view(partition)[nodes].astype(np.int64) << 32
    moved = np.flatnonzero(new != old)
    for bucket, count in zip(*_counted(place[moved] | old[moved]), strict=True):
        indexes[bucket >> 32].remove(bucket & 0xFFFFFFFF, count)
    buckets = place[moved] | new[moved]
    rows = nodes[moved[np.argsort(buckets, kind="stable")]].tolist()
    begin = 0
    for bucket, count in zip(*_counted(buckets), strict=True):
        index, at = indexes[bucket >> 32], bucket & 0xFFFFFFFF
        index.insert_many(at, rows[begin : begin + count])
        heap = index.heaps[at]
        if len(heap) > 2 * index.counts[at] + 64:
            heap[:] = sorted({node for node in heap if key[node] == at})
        begin += count
    old_step, new_step = (np.where(part > 0, part // SHARE_STEP, NOWHERE) for part in (old_part, new_part))
    changed = np.flatnonzero(old_step != new_step)
    steps = zip(*(column[changed].tolist() for column in (nodes, old_step, new_step)), strict=True)
    for node, step, to in steps:
        index = indexes[partition[node]]
        if step != NOWHERE:
            index.remove_share(step)
        if to == NOWHERE:
            continue
        index.insert_share(to, node)
        heap = index.share_heaps[to]
        if len(heap) > 2 * index.share_counts[to] + 64:
            there = range(max(to * SHARE_STEP, 1), (to + 1) * SHARE_STEP)
            heap[:] = sorted({other for other in heap if partial[other] in there and key[other] != NOWHERE})


def _counted(values: np.ndarray[Any, np.dtype[Any]]) -> tuple[list[int], list[int]]:
    names, counts = np.unique(values, return_counts=True)
    return names.tolist(), counts.tolist()
