"""The choice of devices on a node, and the ready nodes in buckets by their free capacity.

Whole devices are taken close together: from one NVLink group, the one left with least, or from the fewest groups. A
share goes to the fullest device that has room for it. Otherwise it breaks into the group with least left, as a MIG
instance does. An instance comes from a partitioned device, the fullest that has one free. An idle device is partitioned
only when the node has none.

The buckets of one partition and the device columns belong to `engine.capacity.index`, which searches them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.capacity import mig
from engine.capacity.mig import KINDS
from engine.capacity.task_shapes import Shape
from engine.model.columns import Ints, copied, view
from engine.model.errors import SpecError
from engine.model.specs import PoolSpec, check_quantity

if TYPE_CHECKING:
    from engine.capacity.index import Capacity


NOWHERE = -1
"""No node."""
_FREE, _TAKEN = array("i", [1000] * 64), array("i", [0] * 64)
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
        """Call `insert` for each of the nodes, which are in ascending order."""
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
        """Count so many nodes fewer in the bucket; their heap entries go stale."""
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


Counts = Ints


def check_devices(pool: PoolSpec, where: str) -> None:
    """Refuse what a pool cannot have said of its devices. Raises SpecError."""
    devices = pool.capacity.gpu_milli // 1000
    check_quantity(pool.gpu_memory_mib, f"{where}.gpu_memory_mib")
    check_quantity(pool.nvlink_group, f"{where}.nvlink_group")
    if pool.nvlink_group and devices % pool.nvlink_group:
        raise SpecError(
            f"{where}.nvlink_group",
            f"{devices} devices are not linked in sets of {pool.nvlink_group}",
            "Give a number that divides them, or 0 when all are linked",
        )
    mig.check_pool(pool, where)


# -- which devices ----------------------------------------------------------------------------------------------------


def choose_devices(capacity: Capacity, node: int, shape: Shape, count: int) -> int:
    """The devices of `count` tasks that are known to fit: a bit mask of devices, or the claim of a MIG instance."""
    size = capacity.pools[capacity.pool[node]].nvlink_group
    if shape.gpus:
        free, taken = capacity.whole[node], 0
        if not size:
            return _first(free, shape.gpus * count)
        for _ in range(count):
            taken |= closest(free & ~taken, shape.gpus, size)
        return taken
    if shape.share:
        best, best_free = -1, 1000
        for device, free in enumerate(capacity.devices(node)):
            if shape.share <= free < best_free:
                best, best_free = device, free
        return 1 << best if best >= 0 else closest(capacity.whole[node], 1, size)
    return _choose_instance(capacity, node, shape, size) if shape.kinds else 0


def closest(free: int, want: int, size: int) -> int:
    """`want` of the free devices, as bit masks: of one NVLink group where one has so many, the one left with least;
    else of the fewest groups. Devices are linked in sets of `size`, in order; 0: all of them. Lowest ones first."""
    if not size:
        return _first(free, want)
    groups = _groups(free, size)
    taken = 0
    while taken.bit_count() < want:
        missing = want - taken.bit_count()
        enough = [group for group in groups if group.bit_count() >= missing]
        best = min(enough, key=int.bit_count) if enough else max(groups, key=int.bit_count)
        groups.remove(best)
        taken |= _first(best, missing)
    return taken


def _first(free: int, most: int) -> int:
    """The lowest of the free devices, up to so many."""
    if most == 1:
        return free & -free
    if most >= free.bit_count():
        return free
    taken = 0
    while free and most:
        low = free & -free
        free ^= low
        taken |= low
        most -= 1
    return taken


def _groups(free: int, size: int) -> list[int]:
    """The free devices of each NVLink group."""
    return [free & (1 << size) - 1 << first for first in range(0, free.bit_length(), size)]


def _choose_instance(capacity: Capacity, node: int, shape: Shape, size: int) -> int:
    pool, base = capacity.pool[node], capacity.device_base[node]
    kind = shape.kinds[pool]
    if not capacity.open_kinds[node] >> kind & 1:
        layout = mig.layout_for(kind, capacity.live_kinds[pool])
        device = closest(capacity.whole[node], 1, size).bit_length() - 1
        return mig.claim_of(device, layout, _lowest(mig.MEMBERS[layout][kind]))
    best, best_free, found = -1, mig.USED_BITS + 1, 0
    for device in range(capacity.device_count(node)):
        layout, used = capacity.device_layout[base + device], capacity.device_used[base + device]
        free = len(mig.LAYOUTS[layout]) - used.bit_count()
        mine = mig.MEMBERS[layout][kind] & ~used
        if mine and free < best_free:
            best, best_free, found = device, free, mine
    return mig.claim_of(best, capacity.device_layout[base + best], _lowest(found))


def _lowest(mask: int) -> int:
    """Index of the lowest bit."""
    return (mask & -mask).bit_length() - 1


# -- taking and giving back -------------------------------------------------------------------------------------------


def shift_devices(
    capacity: Capacity, node: int, shape: Shape, count: int, devices: int, index: PoolIndex | None
) -> None:
    """Give back `count` tasks on these devices, or take them where the count is negative. `index`: the one the node is
    in, if any."""
    base = capacity.device_base[node]
    before = capacity.whole[node]
    if shape.gpus:
        left, free, device_free = devices, 1000 if count > 0 else 0, capacity.device_free
        # Runs of devices, as most are.
        while left:
            low = left & -left
            run = left + low
            first, end = base + low.bit_length() - 1, base + (run & -run).bit_length() - 1
            device_free[first:end] = (_FREE if free else _TAKEN)[: end - first]
            left &= run
        capacity.whole[node] = before ^ devices
        if index is not None:
            index.free_devices += devices.bit_count() if free else -devices.bit_count()
        return
    if shape.share:
        device = base + devices.bit_length() - 1
        capacity.device_free[device] += shape.share * count
        whole = capacity.device_free[device] == 1000
        capacity.whole[node] = before | devices if whole else before & ~devices
        _refresh_partial(capacity, node, index)
    else:
        _shift_instance(capacity, node, count, devices, index)
    if index is not None:
        index.free_devices += capacity.whole[node].bit_count() - before.bit_count()


def _refresh_partial(capacity: Capacity, node: int, index: PoolIndex | None) -> None:
    old = capacity.partial[node]
    new = max([free for free in capacity.devices(node) if free < 1000], default=0)
    capacity.partial[node] = new
    if index is not None and new != old:
        enter_partial(capacity, node, index, old)


def enter_partial(capacity: Capacity, node: int, index: PoolIndex, old: int) -> None:
    """Put the node where it belongs by what is free of one partly used device; `old`: what was."""
    new = capacity.partial[node]
    if new // SHARE_STEP != old // SHARE_STEP or not (new and old):
        if old:
            index.remove_share(old // SHARE_STEP)
        if new:
            _insert_share(capacity, index, new // SHARE_STEP, node)


def _insert_share(capacity: Capacity, index: PoolIndex, step: int, node: int) -> None:
    index.insert_share(step, node)
    heap = index.share_heaps[step]
    if len(heap) > 2 * index.share_counts[step] + 64:
        heap[:] = sorted({n for n in heap if _in_share_step(capacity, n, step)})


def _in_share_step(capacity: Capacity, node: int, step: int) -> bool:
    free = capacity.partial[node]
    return free > 0 and free // SHARE_STEP == step and capacity.key[node] != NOWHERE


def _shift_instance(capacity: Capacity, node: int, count: int, claim: int, index: PoolIndex | None) -> None:
    """The first instance in use partitions an idle device; with the last one given back it is idle and whole again."""
    device, layout, instance = mig.read_claim(claim)
    at = capacity.device_base[node] + device
    used = capacity.device_used[at] ^ 1 << instance
    capacity.device_used[at] = used
    capacity.device_layout[at] = layout if used else mig.NOT_CUT
    capacity.device_free[at] = 0 if used else 1000
    capacity.whole[node] = capacity.whole[node] & ~(1 << device) | (not used) << device
    capacity.live_kinds[capacity.pool[node]][mig.LAYOUTS[layout][instance][0]] -= count
    old = capacity.open_kinds[node]
    new = capacity.open_kinds[node] = _open_kinds(capacity, node)
    if index is not None and new != old:
        index.remove_instances(old & ~new)
        index.insert_instances(new & ~old, node)
        for kind, heap in enumerate(index.instance_heaps):
            if len(heap) > 2 * index.instance_counts[kind] + 64:
                heap[:] = sorted({n for n in heap if _has_open(capacity, n, kind)})


def _open_kinds(capacity: Capacity, node: int) -> int:
    """Bit mask of the kinds of which an instance is free on a partitioned device of the node."""
    first = capacity.device_base[node]
    kinds = 0
    for at in range(first, first + capacity.device_count(node)):
        if capacity.device_layout[at]:
            kinds |= mig.OPEN_KINDS[capacity.device_layout[at] << mig.USED_BITS | capacity.device_used[at]]
    return kinds


def _has_open(capacity: Capacity, node: int, kind: int) -> bool:
    return bool(capacity.open_kinds[node] >> kind & 1) and capacity.key[node] != NOWHERE


def counted_instances(capacity: Capacity) -> tuple[array[int], list[list[int]]]:
    """Counts derived from the columns: by node the bit mask of the kinds of which a partitioned device has an instance
    free, by pool and kind the number of instances in use.
    """
    open_kinds = array("b", bytes(len(capacity.node_ids)))
    live_kinds = [[0] * len(mig.KINDS) for _ in capacity.pools]
    cut = np.flatnonzero(view(capacity.device_layout)) if capacity.device_layout else np.empty(0, np.int64)
    for at, node in zip(cut.tolist(), owners(capacity, cut).tolist(), strict=True):
        layout, used = capacity.device_layout[at], capacity.device_used[at]
        open_kinds[node] |= mig.OPEN_KINDS[layout << mig.USED_BITS | used]
        for instance, (kind, _) in enumerate(mig.LAYOUTS[layout]):
            live_kinds[capacity.pool[node]][kind] += used >> instance & 1
    return open_kinds, live_kinds


# -- finding a node ---------------------------------------------------------------------------------------------------


def find_share(capacity: Capacity, index: PoolIndex, shape: Shape, probes: int) -> int:
    """A node with a partly used device that still has the share: fullest device first. At most `probes` nodes of a
    step are examined, all of them when 0."""
    floor = shape.share // SHARE_STEP
    bits = index.share_bits >> floor << floor
    while bits:
        low = bits & -bits
        bits ^= low
        step = low.bit_length() - 1
        heap = index.share_heaps[step]
        while heap and not _in_share_step(capacity, heap[0], step):
            heappop(heap)
        if heap and capacity.partial[heap[0]] >= shape.share and capacity.fits_besides_gpu(heap[0], shape):
            return heap[0]
        taken: list[int] = []
        found = NOWHERE
        while heap and (not probes or len(taken) < probes):
            node = heappop(heap)
            if not _in_share_step(capacity, node, step) or (taken and taken[-1] == node):
                continue
            taken.append(node)
            if capacity.partial[node] >= shape.share and capacity.fits_besides_gpu(node, shape):
                found = node
                break
        for node in taken:
            heappush(heap, node)
        if found != NOWHERE:
            return found
    return NOWHERE


def find_instance(capacity: Capacity, index: PoolIndex, shape: Shape, probes: int) -> int:
    """The first node with a free instance on a partitioned device. At most `probes` nodes are examined, all when 0."""
    kind = shape.kinds[index.pool]
    heap = index.instance_heaps[kind]
    taken: list[int] = []
    found = NOWHERE
    while heap and (not probes or len(taken) < probes):
        node = heappop(heap)
        if not _has_open(capacity, node, kind) or (taken and taken[-1] == node):
            continue
        taken.append(node)
        if capacity.fits_besides_gpu(node, shape):
            found = node
            break
    for node in taken:
        heappush(heap, node)
    return found


def find_linked(capacity: Capacity, index: PoolIndex, shape: Shape, probes: int) -> int:
    """A node on which one NVLink group has all devices of a task; NOWHERE when there is none among the first few of
    each number of free devices. With enough of them free some group must have them, so what there is gets found."""
    size = capacity.pools[index.pool].nvlink_group
    if shape.gpus > size:
        return NOWHERE
    gpu_bits = index.gpu_bits >> shape.gpus << shape.gpus
    while gpu_bits:
        low = gpu_bits & -gpu_bits
        gpu_bits ^= low
        left = probes
        for key in _keys(index, shape, low.bit_length() - 1):
            heap = index.heaps[key]
            taken: list[int] = []
            found = NOWHERE
            while heap and left and found == NOWHERE:
                node = heappop(heap)
                if capacity.key[node] != key or (taken and taken[-1] == node):
                    continue
                taken.append(node)
                left -= 1
                groups = _groups(capacity.whole[node], size)
                if max(map(int.bit_count, groups)) >= shape.gpus and capacity.fits_besides_gpu(node, shape):
                    found = node
            for node in taken:
                heappush(heap, node)
            if found != NOWHERE:
                return found
            if not left:
                break
    return NOWHERE


def _keys(index: PoolIndex, shape: Shape, gpu: int) -> Iterator[int]:
    """Filled buckets of nodes with so many whole free devices, upwards from the shape's own."""
    cpu_bits = index.cpu_bits[gpu] >> shape.cpu_class << shape.cpu_class
    while cpu_bits:
        low = cpu_bits & -cpu_bits
        cpu_bits ^= low
        row = gpu << 6 | low.bit_length() - 1
        memory_bits = index.memory_bits[row] >> shape.memory_class << shape.memory_class
        while memory_bits:
            low = memory_bits & -memory_bits
            memory_bits ^= low
            yield row << 6 | low.bit_length() - 1


def device_numbers(capacity: Capacity) -> Counts:
    """Every device as a number (`mig.WHOLE`)."""
    numbers = view(capacity.device_free).astype(np.int64) if capacity.device_free else np.empty(0, np.int64)
    for at in np.flatnonzero(view(capacity.device_layout)).tolist() if len(numbers) else ():
        numbers[at] = mig.number_of(capacity.device_layout[at], capacity.device_used[at])
    return numbers


def cut_devices(capacity: Capacity, node: int) -> dict[int, list[int]]:
    """Partitioned devices of the node -> [layout, bit mask of the instances in use]."""
    first = capacity.device_base[node]
    layouts = capacity.device_layout[first : first + capacity.device_count(node)]
    if not any(layouts):
        return {}
    return {device: [layout, capacity.device_used[first + device]] for device, layout in enumerate(layouts) if layout}


def has_instance(capacity: Capacity, node: int, shape: Shape) -> bool:
    """True if a task of the shape finds its MIG instance on the node, or an idle device to make it of."""
    kind = shape.kinds[capacity.pool[node]]
    return kind >= 0 and bool(capacity.whole[node] or capacity.open_kinds[node] >> kind & 1)


class Census(NamedTuple):
    """Devices of the nodes that tasks of a shape may use."""

    idle: int
    partitioned: int
    otherwise: int
    """Shared, or whole in use."""
    free: int
    """MIG instances of the profile asked for, free on those that are partitioned."""


def census(capacity: Capacity, shape: Shape) -> Census:
    """One vectorised pass over all devices."""
    numbers = device_numbers(capacity)
    base = view(capacity.device_base)
    nodes = np.repeat(np.arange(len(base)), np.diff(base, append=len(numbers)))
    mine = capacity.usable_mask(shape)[nodes]
    numbers, pools = numbers[mine], view(capacity.pool)[nodes[mine]]
    cut = numbers < 0
    idle = int((numbers == mig.WHOLE).sum())
    free = mig.instances_in(numbers[cut], np.array(shape.kinds)[pools[cut]]) if shape.kinds else np.zeros(0)
    return Census(idle, int(cut.sum()), len(numbers) - idle - int(cut.sum()), int(free.sum()))


def owners(capacity: Capacity, devices: Counts) -> Counts:
    """The nodes of these entries of the device columns."""
    # Nodes without devices have the first entry of those after them: the last of equals is the one.
    if not len(devices):
        return devices
    return np.asarray(np.searchsorted(view(capacity.device_base), devices, side="right") - 1)


def instances(capacity: Capacity, kinds_by_pool: tuple[int, ...]) -> Counts:
    """The number of MIG instances of the kind that are free or could be made of idle devices, by node."""
    kinds = np.array(kinds_by_pool, np.int64)[view(capacity.pool)]
    most = np.array([kind.most for kind in mig.KINDS])
    found = np.bitwise_count(view(capacity.whole)).astype(np.int64) * most[kinds]
    cut = np.flatnonzero(view(capacity.device_layout)) if capacity.device_layout else np.empty(0, np.int64)
    if len(cut):
        nodes = owners(capacity, cut)
        states = view(capacity.device_layout)[cut].astype(np.int64) << mig.USED_BITS | view(capacity.device_used)[cut]
        np.add.at(found, nodes, mig.FREE[kinds[nodes], states])
    return np.where(kinds >= 0, found, 0)
