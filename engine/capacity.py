"""Nodes, their free capacity, and an index that finds a node for a request without scanning them.

The index is a two-level bucket table in the manner of TLSF allocators, one for each pool. A node's bucket is
(whole free devices, size class of free CPU, size class of free memory), two classes to the octave; bitmaps tell which
buckets are filled. A search walks buckets upwards from the request's own classes: in a bucket whose classes are all
above the request's every node fits, so the first will do; in a boundary bucket a few nodes are probed. Only when all of
that fails are boundary buckets searched whole, so that "nothing fits" is never said wrongly.

Buckets are heaps of node rows with stale entries dropped when met: the node found is always the lowest row that
qualifies, a function of the state alone and not of how it came about. So a restart, a fork and a replay decide alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any

import msgspec
import numpy as np

from engine.buckets import SHARE_STEP, PoolIndex
from engine.columns import Names, Table, view
from engine.errors import NotFoundError
from engine.model import NodeSpec, NodeState, PoolSpec
from engine.shape import Shape, size_class

NOWHERE = -1
OPEN = -1
_PROBES = 4
"""Nodes examined in a boundary bucket before moving on: keeps a search short at a small cost in packing."""
GAINS_KEPT = 512
"""Gains remembered at least: beyond that a verdict is simply made anew."""


class Capacity(Table):
    """Pools, nodes and devices: what there is and what is free."""

    columns = (
        "pools", "node_ids", "places", "pool", "state", "since", "zone", "block", "rack", "booking", "free_cpu",
        "free_memory", "free_disk", "whole", "partial", "device_base", "device_free",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pools: list[Any] = []
        self.node_ids: list[str] = []
        self.places = Names()
        self.pool = array("i")
        self.state = array("b")
        self.since = array("q")
        self.zone = array("i")
        self.block = array("i")
        self.rack = array("i")
        self.booking = array("i")
        """For whom the node is kept (`engine.bookings`); OPEN when for nobody."""
        self.free_cpu = array("q")
        self.free_memory = array("q")
        self.free_disk = array("q")
        self.whole = array("q")
        """Bit mask of wholly free devices."""
        self.partial = array("i")
        """Largest free milli-GPU on one partly used device; 0 if there is none."""
        self.device_base = array("i")
        """First entry of the node in `device_free`."""
        self.device_free = array("i")
        """Free milli-GPU of every device."""
        self.derive()

    def derive(self) -> None:
        self.pools = [p if isinstance(p, PoolSpec) else _pool_from(p) for p in self.pools]
        self.row_of: dict[str, int] = {name: i for i, name in enumerate(self.node_ids)}
        self.pool_of: dict[str, int] = {pool.name: i for i, pool in enumerate(self.pools)}
        self.indexes = [PoolIndex() for _ in self.pools]
        """Nodes that are open to all, by pool."""
        self.booked: dict[tuple[int, int], PoolIndex] = {}
        """(booking, pool) -> the nodes of that pool which are kept for it."""
        self.key = array("q", bytes(0))
        self.key.extend([NOWHERE] * len(self.node_ids))
        self.pool_nodes = [0] * len(self.pools)
        self.totals: tuple[int, int, int, int] = (0, 0, 0, 0)
        """Capacity of all nodes, whatever their state, in the order of RESOURCES."""
        self.not_ready = 0
        """Nodes in any other state than READY."""
        self.freed = 0
        """Counts what may let something start that could not, or breaks a promise."""
        self.gained: list[int] = []
        """Nodes that gained room, in order: what did not fit before can fit now only because of one of these."""
        self.gained_before = 0
        """How many entries were dropped from the front of `gained`."""
        for node in range(len(self.node_ids)):
            self.pool_nodes[self.pool[node]] += 1
            self._count(self.pool[node])
            if self.booking[node] != OPEN:
                self.booked.setdefault((self.booking[node], self.pool[node]), PoolIndex())
            if self.state[node] == NodeState.READY:
                self._enter(node)
            else:
                self.not_ready += 1

    def dump(self) -> dict[str, Any]:
        return super().dump() | {"pools": [_pool_to(pool) for pool in self.pools]}

    # -- growth -------------------------------------------------------------------------------------------------

    def add_pool(self, pool: PoolSpec) -> None:
        self.pool_of[pool.name] = len(self.pools)
        self.pools.append(pool)
        self.pool_nodes.append(0)
        self.indexes.append(PoolIndex())

    def add_node(self, node: NodeSpec, now_ms: int) -> None:
        row = len(self.node_ids)
        pool = self.pool_of[node.pool]
        cpu, memory, gpu, disk = self.pools[pool].capacity.vector()
        devices = gpu // 1000
        self.row_of[node.id] = row
        self.node_ids.append(node.id)
        self.pool.append(pool)
        self.state.append(NodeState.READY)
        self.since.append(now_ms)
        for column, name in ((self.zone, node.zone), (self.block, node.block), (self.rack, node.rack)):
            column.append(self.places.add(name))
        self.booking.append(OPEN)
        self.free_cpu.append(cpu)
        self.free_memory.append(memory)
        self.free_disk.append(disk)
        self.whole.append((1 << devices) - 1)
        self.partial.append(0)
        self.device_base.append(len(self.device_free))
        self.device_free.extend([1000] * devices)
        self.key.append(NOWHERE)
        self.pool_nodes[pool] += 1
        self._count(pool)
        self._enter(row)
        self.note_gains([row])

    def _count(self, pool: int) -> None:
        cpu, memory, gpu, disk = self.totals
        more = self.pools[pool].capacity.vector()
        self.totals = (cpu + more[0], memory + more[1], gpu + more[2], disk + more[3])

    # -- state of nodes ---------------------------------------------------------------------------------------------

    def set_state(self, node: int, state: NodeState, now_ms: int) -> None:
        """Only READY nodes are in the index. Any change asks for a new look at what waits and what was promised."""
        if self.state[node] == NodeState.READY:
            self._leave(node)
            self.not_ready += 1
        self.state[node] = state
        self.since[node] = now_ms
        if state == NodeState.READY:
            self._enter(node)
            self.not_ready -= 1
        self.note_gains([node])

    def index_at(self, node: int) -> PoolIndex:
        """The index the node is in while it is ready."""
        booking = self.booking[node]
        pool = self.pool[node]
        return self.indexes[pool] if booking == OPEN else self.booked[booking, pool]

    def book(self, nodes: Iterable[int], booking: int) -> None:
        """Keep the nodes for a booking, or open them to all. Asks for a new look at what waits."""
        moving = set(nodes)
        ready = [node for node in sorted(moving) if self.state[node] == NodeState.READY]
        indexes = {id(index): index for node in moving for index in (self.index_at(node),)}
        for node in ready:
            self._leave(node)
        # Stale entries are told by their key alone, so none may stay behind when a node changes index.
        for index in indexes.values():
            index.forget(moving)
        for node in sorted(moving):
            self.booking[node] = booking
            if booking != OPEN:
                self.booked.setdefault((booking, self.pool[node]), PoolIndex())
        for node in ready:
            self._enter(node)
        if booking == OPEN:
            used = set(self.booking)
            self.booked = {key: index for key, index in self.booked.items() if key[0] in used}
        self.note_gains(sorted(moving))

    def usable(self, node: int, shape: Shape) -> bool:
        """Whether the node is ready, and open to tasks of the shape or kept for them."""
        if self.state[node] != NodeState.READY:
            return False
        booking = self.booking[node]
        pool = self.pool[node]
        return pool in shape.pool_set if booking == OPEN else (booking, pool) in shape.booked

    def indexes_for(self, shape: Shape) -> list[PoolIndex]:
        """What tasks of the shape may use, in order of preference: what is kept for them first."""
        booked = [self.booked[key] for key in shape.booked if key in self.booked]
        return booked + [self.indexes[pool] for pool in shape.pools]

    def note_gains(self, nodes: list[int]) -> None:
        """The nodes have room that they did not have."""
        self.freed += 1
        self.gained += nodes
        surplus = len(self.gained) - GAINS_KEPT
        if surplus > GAINS_KEPT:
            del self.gained[:surplus]
            self.gained_before += surplus

    def gains_since(self, mark: int) -> list[int] | None:
        """Nodes that gained room after `gained_mark` was `mark`; None when that is too long ago to tell."""
        return self.gained[mark - self.gained_before :] if mark >= self.gained_before else None

    @property
    def gained_mark(self) -> int:
        return self.gained_before + len(self.gained)

    @property
    def all_ready(self) -> bool:
        return not self.not_ready

    def row(self, node_id: str) -> int:
        found = self.row_of.get(node_id)
        if found is None:
            raise NotFoundError(f"there is no node '{node_id}'", "List them with: muster get nodes")
        return found

    def devices(self, node: int) -> array[int]:
        """Free milli-GPU of each device of the node."""
        base = self.device_base[node]
        return self.device_free[base : base + self.device_count(node)]

    def device_count(self, node: int) -> int:
        return int(self.pools[self.pool[node]].capacity.gpu_milli // 1000)

    def free_besides_gpu(self, node: int) -> tuple[int, int, int]:
        """Free (milli-CPU, memory MiB, disk MiB)."""
        return self.free_cpu[node], self.free_memory[node], self.free_disk[node]

    def free_vector(self, node: int) -> tuple[int, int, int, int]:
        """Free quantities in the order of RESOURCES."""
        return (self.free_cpu[node], self.free_memory[node], sum(self.devices(node)), self.free_disk[node])

    # -- the index --------------------------------------------------------------------------------------------------

    def _key(self, node: int) -> int:
        return (
            self.whole[node].bit_count() << 12
            | size_class(self.free_cpu[node]) << 6
            | size_class(self.free_memory[node])
        )

    def _enter(self, node: int) -> None:
        index = self.index_at(node)
        key = self.key[node] = self._key(node)
        index.insert(key, node)
        index.free_cpu += self.free_cpu[node]
        index.free_memory += self.free_memory[node]
        index.free_devices += key >> 12
        if self.partial[node]:
            index.insert_share(self.partial[node] // SHARE_STEP, node)

    def _leave(self, node: int) -> None:
        index = self.index_at(node)
        key = self.key[node]
        index.remove(key)
        index.free_cpu -= self.free_cpu[node]
        index.free_memory -= self.free_memory[node]
        index.free_devices -= key >> 12
        if self.partial[node]:
            index.remove_share(self.partial[node] // SHARE_STEP)
        self.key[node] = NOWHERE

    def _move(self, node: int, index: PoolIndex) -> None:
        """Put the node in the bucket of its present free capacity."""
        key = self._key(node)
        old = self.key[node]
        if key == old:
            return
        index.remove(old)
        self.key[node] = key
        index.insert(key, node)
        self.tidy(index, key)

    def tidy(self, index: PoolIndex, key: int) -> None:
        """Keep stale entries from outnumbering the others."""
        heap = index.heaps[key]
        if len(heap) > 2 * index.counts[key] + 64:
            heap[:] = sorted({n for n in heap if self.key[n] == key})

    def find(self, shape: Shape) -> int:
        """The node for one more task of the shape, or NOWHERE. Exact: NOWHERE means that none fits."""
        for key in shape.booked:
            if key in self.booked and (node := self._find_in(self.booked[key], shape)) != NOWHERE:
                return node
        for pool in shape.pools:
            node = self._find_in(self.indexes[pool], shape)
            if node != NOWHERE:
                return node
        return NOWHERE

    def _find_in(self, index: PoolIndex, shape: Shape) -> int:
        if shape.share:
            node = self._find_share(index, shape, _PROBES)
            if node == NOWHERE:
                node = self._walk(index, shape, 1, _PROBES)
            if node == NOWHERE:
                node = self._find_share(index, shape, 0)
            return node if node != NOWHERE else self._walk(index, shape, 1, 0)
        node = self._walk(index, shape, shape.gpus, _PROBES)
        return node if node != NOWHERE else self._walk(index, shape, shape.gpus, 0)

    def _walk(self, index: PoolIndex, shape: Shape, gpus: int, probes: int) -> int:
        """Buckets upwards from the request's own; `probes` nodes in boundary buckets, all of them when 0."""
        cpu_floor, memory_floor = shape.cpu_class, shape.memory_class
        gpu_bits = index.gpu_bits >> gpus << gpus
        while gpu_bits:
            low = gpu_bits & -gpu_bits
            gpu_bits ^= low
            gpu = low.bit_length() - 1
            cpu_bits = index.cpu_bits[gpu] >> cpu_floor << cpu_floor
            while cpu_bits:
                low = cpu_bits & -cpu_bits
                cpu_bits ^= low
                cpu = low.bit_length() - 1
                row = gpu << 6 | cpu
                memory_bits = index.memory_bits[row] >> memory_floor << memory_floor
                while memory_bits:
                    low = memory_bits & -memory_bits
                    memory_bits ^= low
                    memory = low.bit_length() - 1
                    key = row << 6 | memory
                    if cpu > cpu_floor and memory > memory_floor and not shape.disk:
                        return self._first(index.heaps[key], key)
                    node = self._probe(index.heaps[key], key, shape, probes)
                    if node != NOWHERE:
                        return node
        return NOWHERE

    def _first(self, heap: list[int], key: int) -> int:
        keys = self.key
        while keys[heap[0]] != key:
            heappop(heap)
        return heap[0]

    def _probe(self, heap: list[int], key: int, shape: Shape, probes: int) -> int:
        keys = self.key
        if not probes:
            fitting = (n for n in sorted(set(heap)) if keys[n] == key and self.fits(n, shape))
            return next(fitting, NOWHERE)
        taken: list[int] = []
        found = NOWHERE
        while heap and len(taken) < probes:
            node = heappop(heap)
            if keys[node] != key or (taken and taken[-1] == node):
                continue
            taken.append(node)
            if self.fits(node, shape):
                found = node
                break
        for node in taken:
            heappush(heap, node)
        return found

    def _find_share(self, index: PoolIndex, shape: Shape, probes: int) -> int:
        """A node with a partly used device that still has the share: fullest device first."""
        floor = shape.share // SHARE_STEP
        bits = index.share_bits >> floor << floor
        while bits:
            low = bits & -bits
            bits ^= low
            step = low.bit_length() - 1
            heap = index.share_heaps[step]
            taken: list[int] = []
            found = NOWHERE
            while heap and (not probes or len(taken) < probes):
                node = heappop(heap)
                if not self._in_share_step(node, step) or (taken and taken[-1] == node):
                    continue
                taken.append(node)
                if self.partial[node] >= shape.share and self._fits_besides_gpu(node, shape):
                    found = node
                    break
            for node in taken:
                heappush(heap, node)
            if found != NOWHERE:
                return found
        return NOWHERE

    def _fits_besides_gpu(self, node: int, shape: Shape) -> bool:
        return (
            self.free_cpu[node] >= shape.cpu
            and self.free_memory[node] >= shape.memory
            and self.free_disk[node] >= shape.disk
        )

    def fits(self, node: int, shape: Shape) -> bool:
        """Whether one task of the shape fits on the node now."""
        if not self._fits_besides_gpu(node, shape):
            return False
        if shape.share:
            return self.whole[node] != 0 or self.partial[node] >= shape.share
        return self.whole[node].bit_count() >= shape.gpus

    def room(self, node: int, shape: Shape, want: int) -> int:
        """How many tasks of the shape, at most `want`, the node takes now. Shares go one at a time."""
        if shape.share:
            return 1
        room = want
        if shape.cpu:
            room = min(room, self.free_cpu[node] // shape.cpu)
        if shape.memory:
            room = min(room, self.free_memory[node] // shape.memory)
        if shape.disk:
            room = min(room, self.free_disk[node] // shape.disk)
        if shape.gpus:
            room = min(room, self.whole[node].bit_count() // shape.gpus)
        return room

    def could_hold(self, shape: Shape, count: int) -> bool:
        """A quick necessary condition from the pools' free totals; False means certainly not."""
        cpu = memory = devices = 0
        for index in self.indexes_for(shape):
            cpu += index.free_cpu
            memory += index.free_memory
            devices += index.free_devices
        return cpu >= shape.cpu * count and memory >= shape.memory * count and devices >= shape.gpus * count

    def usable_mask(self, shape: Shape) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """`usable` of every node."""
        eligible = np.zeros(len(self.pools), bool)
        eligible[shape.pools] = True
        mask = eligible[view(self.pool)]
        if self.booked:
            booking = view(self.booking)
            mask &= booking == OPEN
            for kept, pool in shape.booked:
                mask |= (booking == kept) & (view(self.pool) == pool)
        return np.asarray(mask & (view(self.state) == NodeState.READY))

    def slots(self, shape: Shape) -> int:
        """How many tasks of the shape fit on all ready nodes now: one vectorised pass."""
        if not self.node_ids:
            return 0
        rows = np.flatnonzero(self.usable_mask(shape))
        if not len(rows):
            return 0
        if shape.share:
            return sum(self._share_slots(int(node), shape) for node in rows)
        room = np.full(len(rows), np.iinfo(np.int64).max)
        for column, want in (
            (self.free_cpu, shape.cpu),
            (self.free_memory, shape.memory),
            (self.free_disk, shape.disk),
        ):
            if want:
                np.minimum(room, view(column)[rows] // want, out=room)
        if shape.gpus:
            whole = np.bitwise_count(view(self.whole)[rows]).astype(np.int64)
            np.minimum(room, whole // shape.gpus, out=room)
        return int(room.sum())

    def _share_slots(self, node: int, shape: Shape) -> int:
        devices = sum(free // shape.share for free in self.devices(node))
        rest = [
            have // want
            for have, want in zip(self.free_besides_gpu(node), (shape.cpu, shape.memory, shape.disk), strict=True)
            if want
        ]
        return min([devices, *rest])

    # -- claims -----------------------------------------------------------------------------------------------------

    def claim(self, node: int, shape: Shape, count: int) -> int:
        """Take capacity for `count` tasks that are known to fit. Returns the bit mask of the devices taken."""
        taken = self._choose_devices(node, shape, count)
        self.take(node, shape, count, taken)
        return taken

    def _choose_devices(self, node: int, shape: Shape, count: int) -> int:
        """Whole devices: the lowest free ones. A share: the fullest device that still has it."""
        if shape.gpus:
            free, taken = self.whole[node], 0
            for _ in range(shape.gpus * count):
                low = free & -free
                free ^= low
                taken |= low
            return taken
        if shape.share:
            best, best_free = -1, 1001
            for device, free in enumerate(self.devices(node)):
                if shape.share <= free < best_free:
                    best, best_free = device, free
            return 1 << best
        return 0

    def take(self, node: int, shape: Shape, count: int, devices: int) -> None:
        """Take capacity for `count` tasks on exactly these devices."""
        self._shift(node, shape, -count, devices)

    def give_back(self, node: int, shape: Shape, count: int, devices: int) -> None:
        """The inverse of `take`."""
        self._shift(node, shape, count, devices)

    def _shift(self, node: int, shape: Shape, count: int, devices: int) -> None:
        cpu, memory = shape.cpu * count, shape.memory * count
        self.free_cpu[node] += cpu
        self.free_memory[node] += memory
        if shape.disk:
            self.free_disk[node] += shape.disk * count
        indexed = self.key[node] != NOWHERE
        index = self.index_at(node)
        if devices:
            self._shift_devices(node, shape, count, devices, index if indexed else None)
        if indexed:
            index.free_cpu += cpu
            index.free_memory += memory
            self._move(node, index)

    def _shift_devices(self, node: int, shape: Shape, count: int, devices: int, index: PoolIndex | None) -> None:
        base = self.device_base[node]
        before = self.whole[node]
        if shape.gpus:
            left, free = devices, 1000 if count > 0 else 0
            while left:
                low = left & -left
                left ^= low
                self.device_free[base + low.bit_length() - 1] = free
            self.whole[node] = before ^ devices
        else:
            device = base + devices.bit_length() - 1
            self.device_free[device] += shape.share * count
            whole = self.device_free[device] == 1000
            self.whole[node] = before | devices if whole else before & ~devices
            self._refresh_partial(node, index)
        if index is not None:
            index.free_devices += self.whole[node].bit_count() - before.bit_count()

    def _refresh_partial(self, node: int, index: PoolIndex | None) -> None:
        old = self.partial[node]
        new = max((free for free in self.devices(node) if free < 1000), default=0)
        self.partial[node] = new
        if index is None or new == old:
            return
        if new // SHARE_STEP != old // SHARE_STEP or not (new and old):
            if old:
                index.remove_share(old // SHARE_STEP)
            if new:
                self._insert_share(index, new // SHARE_STEP, node)

    def _insert_share(self, index: PoolIndex, step: int, node: int) -> None:
        index.insert_share(step, node)
        heap = index.share_heaps[step]
        if len(heap) > 2 * index.share_counts[step] + 64:
            heap[:] = sorted({n for n in heap if self._in_share_step(n, step)})

    def _in_share_step(self, node: int, step: int) -> bool:
        free = self.partial[node]
        return free > 0 and free // SHARE_STEP == step and self.key[node] != NOWHERE


def _pool_to(pool: PoolSpec) -> dict[str, Any]:
    return dict(msgspec.to_builtins(pool))


def _pool_from(data: dict[str, Any]) -> PoolSpec:
    return msgspec.convert(data, PoolSpec)
