"""Buckets of the ready nodes of one partition, by what they have free. `engine.capacity.index` searches them."""

from __future__ import annotations

from heapq import heapify, heappush

from engine.capacity.mig import KINDS
from engine.tables.columns import copied

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
