"""Nodes, their free capacity, and an index that finds a node for a request without scanning them.

The index is a two-level bucket table in the manner of TLSF allocators, one for each partition
(`engine.capacity.node_attributes`). A node's bucket is (whole free devices, size class of free CPU, size class of free
memory), two classes to the octave; bitmaps mark the filled buckets. A search walks buckets upwards from the request's
own classes. In a bucket whose classes are all above the request's, every node fits and the first is taken; in a
boundary bucket a few nodes are probed. Boundary buckets are searched whole only when all of that fails, so "nothing
fits" is never wrong.

Buckets are heaps of node rows, with stale entries dropped when met. The node found is always the lowest row that
qualifies: a function of the state alone, not of its history. So a restart, a fork and a replay decide alike.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from engine.capacity import scores
from engine.capacity.devices import NOWHERE as NOWHERE
from engine.capacity.devices import (
    SHARE_STEP,
    PoolIndex,
    choose_devices,
    counted_instances,
    find_instance,
    find_linked,
    find_share,
    has_instance,
    instances,
    shift_devices,
)
from engine.capacity.mig import KINDS, NOT_CUT
from engine.capacity.node_attributes import MAX_PARTITIONS, NodeTable
from engine.capacity.node_attributes import OPEN as OPEN
from engine.capacity.task_shapes import SIZE_CLASSES, Company, Shape
from engine.model.columns import Ints, Mask, Numbers, view
from engine.model.specs import LEVELS, NodeSpec, NodeState, PoolSpec

if TYPE_CHECKING:
    from engine.capacity.topology import DomainRoom

_PROBES = 4
"""Nodes examined in a boundary bucket before moving on: keeps a search short at a small cost in packing."""
FEW = 64
"""Nodes are looked at one by one where they are fewer than one in so many of the cell's."""
NODE_COLUMNS = (
    "pool", "state", "booking", "labels", "taints", "since", "born", "doomed", "order", "free_cpu", "free_memory",
    "free_disk", "whole", "partial",
)  # fmt: skip
"""Columns with one value a node, equal where nodes are alike and empty."""
GAINS_KEPT = 512
"""Gains remembered at least: beyond that a verdict is simply made anew."""


class Capacity(NodeTable):
    """Nodes and devices: what there is and what is free."""

    __slots__ = (
        "booked", "born", "company", "device_base", "device_free", "device_layout", "device_used", "domain_room",
        "doomed", "free_cpu", "free_disk", "free_memory", "gained", "gained_before", "gains", "indexes", "key",
        "live_kinds", "mix", "not_ready", "open_kinds", "order", "partial", "since", "totals", "whole",
    )  # fmt: skip
    columns: ClassVar[tuple[str, ...]] = (
        *NodeTable.columns, "since", "born", "doomed", "order", "free_cpu", "free_memory", "free_disk", "whole",
        "partial", "device_base", "device_free", "device_layout", "device_used",
    )  # fmt: skip

    def __init__(self) -> None:
        self.since = array("q")
        self.born = array("q")
        """Cell time since which the node is paid for."""
        self.doomed = array("q")
        """Cell time at which its provider takes it back; -1 while none has said so."""
        self.order = array("i")
        """Row of the order it came of (`engine.state.machines`); -1 for a node that people added."""
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
        """Free milli-GPU of every device; 0 while it is partitioned."""
        self.device_layout = array("b")
        """MIG layout of every device, as index into `mig.LAYOUTS`; NOT_CUT unless an instance of it is in use."""
        self.device_used = array("b")
        """Bit mask of the instances in use."""
        super().__init__()

    def derive(self) -> None:
        super().derive()
        self.company = Company()
        """Locations of work that other work wants to be near to or apart from. Filled by `State`."""
        self.mix: tuple[scores.MixShape, ...] = ()
        """Tasks present when the last scheduling cycle began, for the scores that depend on them."""
        self.totals: tuple[int, int, int, int] = (0, 0, 0, 0)
        """Upper bound of requests on all nodes, whatever their state, in the order of RESOURCES."""
        self.not_ready = 0
        """Nodes in any other state than READY; those removed do not count."""
        self.gains = 0
        """Number of times that nodes gained room."""
        self.gained: list[int] = []
        """Nodes that gained room, in order: what did not fit before can fit now only because of one of these."""
        self.gained_before = 0
        """Number of entries dropped from the front of `gained`."""
        self.domain_room: DomainRoom | None = None
        """Room by domain of the topology, once somebody has asked for a level; until then it costs nothing."""
        for node in self.row_of.values():
            self._count(self.pool[node])
            self.not_ready += self.state[node] != NodeState.READY
        self.open_kinds, self.live_kinds = counted_instances(self)
        """By node: bit mask of the kinds of which a partitioned device has an instance free. By pool and kind:
        instances in use."""
        self._build_index()

    def _build_index(self) -> None:
        self.indexes = [PoolIndex(partition.pool) for partition in self.partitions]
        """Nodes that are open to all, by partition."""
        self.booked: dict[tuple[int, int], PoolIndex] = {}
        """(booking, partition) -> the nodes of that partition which are kept for it."""
        self.key = array("q", [NOWHERE]) * len(self.node_ids)
        for node in self.row_of.values():
            if self.booking[node] != OPEN:
                self.booked.setdefault((self.booking[node], self.partition[node]), PoolIndex(self.pool[node]))
            if self.state[node] == NodeState.READY:
                self._enter(node)

    # -- growth -------------------------------------------------------------------------------------------------------

    def add_pool(self, pool: PoolSpec) -> None:
        super().add_pool(pool)
        self.live_kinds.append([0] * len(KINDS))

    def add_node(self, node: NodeSpec, now_ms: int, state: NodeState = NodeState.READY, order: int = -1) -> None:
        row = self.add_facts(node)
        pool = self.pool[row]
        cpu, memory, gpu, disk = self.pools[pool].offered.vector()
        devices = gpu // 1000
        self.since.append(now_ms)
        self.born.append(now_ms)
        self.doomed.append(-1)
        self.order.append(order)
        self.domain_room = None
        self.free_cpu.append(cpu)
        self.free_memory.append(memory)
        self.free_disk.append(disk)
        self.whole.append((1 << devices) - 1)
        self.partial.append(0)
        self.device_base.append(len(self.device_free))
        self.device_free.extend([1000] * devices)
        self.device_layout.extend([NOT_CUT] * devices)
        self.device_used.extend([0] * devices)
        self.open_kinds.append(0)
        self.key.append(NOWHERE)
        self._count(pool)
        if self.partition[row] == len(self.indexes):
            self.indexes.append(PoolIndex(pool))
        self.state[row] = state
        if state == NodeState.READY:
            self._enter(row)
        else:
            self.not_ready += 1
        if self.split and len(self.partitions) > MAX_PARTITIONS:
            self._divide_anew()
        if state == NodeState.READY:
            self.note_gains([row])

    def add_alike(self, first: NodeSpec, ids: list[str]) -> None:
        """Ready nodes that differ in nothing but their ids: what `add_node` of each would leave. For many at once."""
        self.add_node(msgspec.structs.replace(first, id=ids[0]), 0)
        like, more = len(self.node_ids) - 1, ids[1:]
        if LEVELS[-1] in self.split or not more:
            for each in more:
                self.add_node(msgspec.structs.replace(first, id=each), 0)
            return
        rows = list(range(like + 1, like + 1 + len(more)))
        self.node_ids += more
        self.row_of.update(zip(more, rows, strict=True))
        columns = [getattr(self, name) for name in (*NODE_COLUMNS, *LEVELS[:-1])]
        for column in (*columns, self.partition, self.open_kinds, self.key):
            column.extend(array(column.typecode, [column[like]]) * len(more))
        devices = self.device_count(like)
        base = len(self.device_free)
        self.device_base.extend([base + at * devices for at in range(len(more))])
        for column, value in ((self.device_free, 1000), (self.device_layout, NOT_CUT), (self.device_used, 0)):
            column.extend(array(column.typecode, [value]) * (devices * len(more)))
        pool, partition = self.pool[like], self.partition[like]
        self.pool_nodes[pool] += len(more)
        self.partition_nodes[partition] += len(more)
        if self._ways is not None:
            self._ways[self._way(like)] += len(more)
        self._count(pool, len(more))
        index, key = self.indexes[partition], self.key[like]
        index.insert_many(key, rows)
        index.free_cpu += self.free_cpu[like] * len(more)
        index.free_memory += self.free_memory[like] * len(more)
        index.free_devices += (key >> 12) * len(more)
        self.note_gains(rows)

    def name_labels(self, names: Iterable[str]) -> None:
        """Requests go by these labels: from now on they divide nodes."""
        new = [name for name in dict.fromkeys(names) if name not in self.named_labels]
        if new:
            self.named_labels += new
            self._divide_anew()

    def _divide_anew(self) -> None:
        if self.dividing_labels() != self.split:
            self.divide()
            self._build_index()

    def _count(self, pool: int, sign: int = 1) -> None:
        cpu, memory, gpu, disk = self.totals
        more = self.pools[pool].offered.vector()
        self.totals = (cpu + sign * more[0], memory + sign * more[1], gpu + sign * more[2], disk + sign * more[3])

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
        elif state == NodeState.REMOVED:
            self._retire(node)
            self.not_ready -= 1
        self.note_gains([node])
        if self.domain_room is not None:
            self.domain_room.touched.append(node)

    def hide(self, node: int) -> None:
        """Have a ready node take nothing, until `show`: to try what would be if it were gone. Nobody is told."""
        self._leave(node)
        self.state[node] = NodeState.CORDONED
        self.not_ready += 1
        if self.domain_room is not None:
            self.domain_room.touched.append(node)

    def show(self, node: int) -> None:
        """Take back `hide`."""
        index = self.index_at(node)
        if self.partial[node] or self.open_kinds[node]:
            index.forget({node})
        self.state[node] = NodeState.READY
        self._enter(node)
        self.tidy(index, self.key[node])
        self.not_ready -= 1
        if self.domain_room is not None:
            self.domain_room.touched.append(node)

    def _retire(self, node: int) -> None:
        """Take the node, on which nothing runs any more, out of every total: it has nothing, free or used."""
        self.forget_facts(node)
        self._count(self.pool[node], -1)
        for column in (self.free_cpu, self.free_memory, self.free_disk, self.whole, self.partial):
            column[node] = 0
        base = self.device_base[node]
        for device in range(base, base + self.device_count(node)):
            self.device_free[device] = 0

    def index_at(self, node: int) -> PoolIndex:
        """The index the node is in while it is ready."""
        booking = self.booking[node]
        partition = self.partition[node]
        if booking != OPEN:
            return self.booked[booking, partition]
        return self.indexes[partition]

    def book(self, nodes: Iterable[int], booking: int) -> None:
        """Keep the nodes for a booking, or open them to all. Asks for a new look at what waits."""
        moving = set(nodes)
        self._reindex(moving, lambda: self._rebook(moving, booking))
        if booking == OPEN:
            used = set(self.booking)
            self.booked = {key: index for key, index in self.booked.items() if key[0] in used}
        self.note_gains(sorted(moving))
        if self.domain_room is not None:
            self.domain_room.touched += sorted(moving)

    def _rebook(self, nodes: set[int], booking: int) -> None:
        for node in sorted(nodes):
            self.booking[node] = booking
            if booking != OPEN:
                self.booked.setdefault((booking, self.partition[node]), PoolIndex(self.pool[node]))

    def usable(self, node: int, shape: Shape) -> bool:
        """True if the node is ready, open to tasks of the shape or kept for them, and accepted by them beside the tasks
        there now.
        """
        if self.state[node] != NodeState.READY:
            return False
        reach = self.reaches.get(shape) or self.reach(shape)
        booking = self.booking[node]
        partition = self.partition[node]
        if not (partition in reach.open_set if booking == OPEN else (booking, partition) in reach.kept_set):
            return False
        if reach.loose and not self.matches(node, reach.loose):
            return False
        return shape.terms is None or self.company.admits(self, node, shape.terms)

    def indexes_for(self, shape: Shape) -> list[PoolIndex]:
        """The indexes that tasks of the shape may use, in order of preference: kept nodes first."""
        reach, indexes = self.reaches.get(shape) or self.reach(shape), self.indexes
        there = [indexes[partition] for partition in reach.open]
        if not self.booked:
            return there
        return [self.booked[key] for key in reach.kept if key in self.booked] + there

    def relabel(self, nodes: Iterable[NodeSpec]) -> None:
        """Give nodes that are there other labels and taints. What is on them stays. Asks for a new look at what
        waits."""
        rows = dict(self.change_facts(node) for node in nodes)
        self.indexes += [PoolIndex(partition.pool) for partition in self.partitions[len(self.indexes) :]]
        moving = {row for row, partition in rows.items() if partition != self.partition[row]}
        self._reindex(moving, lambda: self._repartition({row: rows[row] for row in moving}))
        if self.split and len(self.partitions) > MAX_PARTITIONS:
            self._divide_anew()
        self.note_gains(sorted(rows))
        if self.domain_room is not None:
            self.domain_room.touched += sorted(rows)

    def can_move(self, node: int, pool: int) -> bool:
        """True if the node, with all that is on it, may be one of the pool: it has as many devices, none of them cut
        into instances, and the pool's machines have room for what is used."""
        old, new = self.pools[self.pool[node]], self.pools[pool]
        base, devices = self.device_base[node], self.device_count(node)
        if new.capacity.gpu_milli != old.capacity.gpu_milli:
            return False
        if any(layout != NOT_CUT for layout in self.device_layout[base : base + devices]):
            return False
        free = self.free_cpu[node], self.free_memory[node], self.free_disk[node]
        return all(left + more >= 0 for left, more in zip(free, _growth(old, new), strict=True))

    def move(self, nodes: Sequence[NodeSpec]) -> None:
        """Give nodes that are there other pools and places, and what `relabel` gives them. What is on them stays:
        `can_move` is true of each. Asks for a new look at what waits."""
        rows = {self.row_of[node.id]: node for node in nodes}
        self._reindex(set(rows), lambda: self._resettle(rows))
        if self.split and len(self.partitions) > MAX_PARTITIONS:
            self._divide_anew()
        self.domain_room = None
        self.note_gains(sorted(rows))

    def _resettle(self, nodes: dict[int, NodeSpec]) -> None:
        for row, node in nodes.items():
            old = self.pool[row]
            self._count(old, -1)
            self.move_facts(row, node)
            self._count(self.pool[row])
            cpu, memory, disk = _growth(self.pools[old], self.pools[self.pool[row]])
            self.free_cpu[row] += cpu
            self.free_memory[row] += memory
            self.free_disk[row] += disk
        partitions = dict(self.change_facts(node) for node in nodes.values())
        self.indexes += [PoolIndex(partition.pool) for partition in self.partitions[len(self.indexes) :]]
        self._repartition(partitions)

    def _repartition(self, partitions: dict[int, int]) -> None:
        for row, partition in partitions.items():
            self.partition[row] = partition
            if self.booking[row] != OPEN:
                self.booked.setdefault((self.booking[row], partition), PoolIndex(self.pool[row]))

    def _reindex(self, moving: set[int], change: Callable[[], None]) -> None:
        """Have nodes that change their index by `change` be in the new one."""
        ready = [node for node in sorted(moving) if self.state[node] == NodeState.READY]
        indexes = {id(index): index for node in moving for index in (self.index_at(node),)}
        for node in ready:
            self._leave(node)
        # Stale entries are told by their key alone, so none may stay behind when a node changes index.
        for index in indexes.values():
            index.forget(moving)
        change()
        for node in ready:
            self._enter(node)

    def note_gains(self, nodes: list[int]) -> None:
        """The nodes have room that they did not have."""
        self.gains += 1
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

    def devices(self, node: int) -> array[int]:
        """Free milli-GPU of each device of the node."""
        bases = self.device_base
        end = bases[node + 1] if node + 1 < len(bases) else len(self.device_free)
        return self.device_free[bases[node] : end]

    def free_vector(self, node: int) -> tuple[int, int, int, int]:
        """Free quantities in the order of RESOURCES."""
        return (self.free_cpu[node], self.free_memory[node], sum(self.devices(node)), self.free_disk[node])

    # -- the index --------------------------------------------------------------------------------------------------

    def _key(self, node: int) -> int:
        """The bucket of the node's present free capacity."""
        free = SIZE_CLASSES[self.free_cpu[node]] << 6 | SIZE_CLASSES[self.free_memory[node]]
        return self.whole[node].bit_count() << 12 | free

    def _enter(self, node: int) -> None:
        index = self.index_at(node)
        key = self.key[node] = self._key(node)
        index.insert(key, node)
        index.free_cpu += self.free_cpu[node]
        index.free_memory += self.free_memory[node]
        index.free_devices += key >> 12
        if self.partial[node]:
            index.insert_share(self.partial[node] // SHARE_STEP, node)
        if self.open_kinds[node]:
            index.insert_instances(self.open_kinds[node], node)

    def _leave(self, node: int) -> None:
        index = self.index_at(node)
        key = self.key[node]
        index.remove(key)
        index.free_cpu -= self.free_cpu[node]
        index.free_memory -= self.free_memory[node]
        index.free_devices -= key >> 12
        if self.partial[node]:
            index.remove_share(self.partial[node] // SHARE_STEP)
        if self.open_kinds[node]:
            index.remove_instances(self.open_kinds[node])
        self.key[node] = NOWHERE

    def _move(self, node: int, index: PoolIndex, old: int, key: int) -> None:
        """Put the node in another bucket."""
        self.key[node] = key
        counts = index.counts
        if counts[old] > 1:
            counts[old] -= 1
        else:
            index.remove(old)
        count = counts.get(key)
        if not count:
            index.insert(key, node)
            return
        counts[key] = count + 1
        heap = index.heaps[key]
        heappush(heap, node)
        if len(heap) > 2 * count + 66:
            self.tidy(index, key)

    def tidy(self, index: PoolIndex, key: int) -> None:
        """Keep stale entries from outnumbering the others."""
        heap = index.heaps[key]
        if len(heap) > 2 * index.counts[key] + 64:
            heap[:] = sorted({n for n in heap if self.key[n] == key})

    def find(self, shape: Shape) -> int:
        """The node for one more task of the shape, or NOWHERE. Exact, bonds and labels matched node by node apart
        (`engine.placement.node_choice` sees to them): NOWHERE means that none fits."""
        return self.find_among(self.indexes_for(shape), shape)

    def find_after(self, node: int, bucket: int, shape: Shape) -> int:
        """`find`, right after the node it found in that bucket was filled up: the next of the bucket, at no search.
        NOWHERE where only `find` can tell."""
        index = self.index_at(node)
        if shape.part or not index.counts[bucket] or (shape.gpus > 1 and self.pools[index.pool].nvlink_group):
            return NOWHERE
        following = self._first(index.heaps[bucket], bucket)
        return following if self.fits(following, shape) else NOWHERE

    def find_among(self, indexes: Iterable[PoolIndex], shape: Shape) -> int:
        """The same in these indexes alone."""
        gpus = shape.gpus
        for index in indexes:
            if index.gpu_bits >> gpus and (node := self._find_in(index, shape)) != NOWHERE:
                return node
        return NOWHERE

    def _find_in(self, index: PoolIndex, shape: Shape) -> int:
        if shape.part:
            find = find_share if shape.share else find_instance
            node = find(self, index, shape, _PROBES)
            if node == NOWHERE:
                node = self._walk(index, shape, 1, _PROBES)
            if node == NOWHERE:
                node = find(self, index, shape, 0)
            return node if node != NOWHERE else self._walk(index, shape, 1, 0)
        if shape.gpus > 1 and self.pools[index.pool].nvlink_group:
            node = find_linked(self, index, shape, _PROBES)
            if node != NOWHERE:
                return node
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
        while heap and keys[heap[0]] != key:
            heappop(heap)
        if heap and self.fits(heap[0], shape):
            return heap[0]
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

    def fits_besides_gpu(self, node: int, shape: Shape) -> bool:
        """True if one task of the shape fits on the node, devices aside."""
        return (
            self.free_cpu[node] >= shape.cpu
            and self.free_memory[node] >= shape.memory
            and self.free_disk[node] >= shape.disk
        )

    def fits(self, node: int, shape: Shape) -> bool:
        """True if one task of the shape fits on the node now."""
        if (
            self.free_cpu[node] < shape.cpu
            or self.free_memory[node] < shape.memory
            or (shape.disk and self.free_disk[node] < shape.disk)
        ):
            return False
        if shape.share:
            return self.whole[node] != 0 or self.partial[node] >= shape.share
        if shape.kinds:
            return has_instance(self, node, shape)
        return self.whole[node].bit_count() >= shape.gpus

    def room(self, node: int, shape: Shape, want: int) -> int:
        """The number of tasks of the shape, at most `want`, that fit on the node now. Parts of a device go one at a
        time.
        """
        if shape.part:
            return 1
        room = want
        if shape.cpu and (most := self.free_cpu[node] // shape.cpu) < room:
            room = most
        if shape.memory and (most := self.free_memory[node] // shape.memory) < room:
            room = most
        if shape.disk and (most := self.free_disk[node] // shape.disk) < room:
            room = most
        if shape.gpus and (most := self.whole[node].bit_count() // shape.gpus) < room:
            room = most
        return room

    def could_hold(self, shape: Shape, count: int) -> bool:
        """A quick necessary condition from the pools' free totals; False means certainly not."""
        cpu, memory, devices = shape.cpu * count, shape.memory * count, shape.gpus * count
        for index in self.indexes_for(shape):
            cpu -= index.free_cpu
            memory -= index.free_memory
            devices -= index.free_devices
        return cpu <= 0 and memory <= 0 and devices <= 0

    def usable_mask(self, shape: Shape, rows: Numbers | None = None) -> Mask:
        """`usable` of every node, or of these alone."""
        at: Any = slice(None) if rows is None else rows
        reach = self.reach(shape)
        eligible = np.zeros(max(len(self.partitions), 1), bool)
        eligible[list(reach.open)] = True
        mask = eligible[view(self.partition)[at]]
        if self.booked:
            booking = view(self.booking)[at]
            mask &= booking == OPEN
            for kept, partition in reach.kept:
                mask |= (booking == kept) & (view(self.partition)[at] == partition)
        mask &= view(self.state)[at] == NodeState.READY
        if not reach.loose and shape.terms is None:
            return np.asarray(mask)
        if rows is not None and len(rows) * FEW < len(self.node_ids):
            for i in np.flatnonzero(mask).tolist():
                mask[i] = self.usable(int(rows[i]), shape)
            return np.asarray(mask)
        mask = mask & self.loose_mask(reach)[at]
        return np.asarray(mask if shape.terms is None else mask & self.company.mask(self, shape.terms)[at])

    def free_gpu(self) -> Ints:
        """Free milli-GPU of every node."""
        base = view(self.device_base)
        free = np.zeros(len(base), np.int64)
        # What `reduceat` adds up ends where the next part begins, so nodes without devices are left out.
        has = np.diff(base, append=len(self.device_free)) > 0
        if has.any():
            free[has] = np.add.reduceat(view(self.device_free), base[has], dtype=np.int64)
        return free

    def slots(self, shape: Shape) -> int:
        """The number of tasks of the shape that fit on all ready nodes now: one vectorised pass."""
        if not self.node_ids:
            return 0
        return int(self.rooms(shape, np.flatnonzero(self.usable_mask(shape))).sum())

    def rooms(self, shape: Shape, rows: Numbers) -> Ints:
        """The number of tasks of the shape that fit on each of these nodes now, if it is usable."""
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
        if shape.kinds:
            np.minimum(room, instances(self, shape.kinds)[rows], out=room)
        if shape.share:
            np.minimum(room, self._shares(rows, shape.share), out=room)
        return room

    def _shares(self, rows: Numbers, share: int) -> Ints:
        """The number of shares of that size free on the devices of each of these nodes."""
        first = view(self.device_base)[rows].astype(np.int64)
        devices = np.append(view(self.device_base)[1:], len(self.device_free))[rows] - first
        ends = np.cumsum(devices)
        at = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - ends + devices, devices)
        sums = np.concatenate(([0], np.cumsum(view(self.device_free)[at] // share, dtype=np.int64)))
        return np.asarray(sums[ends] - sums[ends - devices])

    # -- claims -----------------------------------------------------------------------------------------------------

    def claim(self, node: int, shape: Shape, count: int) -> int:
        """Take capacity for `count` tasks that are known to fit. Returns the bit mask of the devices taken."""
        taken = choose_devices(self, node, shape, count) if shape.gpu_milli else 0
        self._shift(node, shape, -count, taken)
        return taken

    def claim_each(self, shapes: Iterable[Shape]) -> list[tuple[int, int]]:
        """Claim the node that `find` gives for one task of each shape in turn, up to the first that fits nowhere:
        (node, device mask) of each."""
        claims: list[tuple[int, int]] = []
        places: dict[Shape, list[PoolIndex]] = {}
        for shape in shapes:
            there = places.get(shape)
            if there is None:
                there = places[shape] = self.indexes_for(shape)
            node = self.find_among(there, shape)
            if node == NOWHERE:
                break
            claims.append((node, self.claim(node, shape, 1)))
        return claims

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
        if self.domain_room is not None:
            self.domain_room.touched.append(node)
        old = self.key[node]
        if old == NOWHERE:
            if devices:
                shift_devices(self, node, shape, count, devices, None)
            return
        index = self.index_at(node) if self.booked else self.indexes[self.partition[node]]
        if devices:
            shift_devices(self, node, shape, count, devices, index)
        index.free_cpu += cpu
        index.free_memory += memory
        key = self._key(node)
        if key != old:
            self._move(node, index, old, key)


def _growth(old: PoolSpec, new: PoolSpec) -> tuple[int, int, int]:
    """CPU, memory and disk that a machine of the new pool offers beyond one of the old."""
    before, after = old.offered, new.offered
    return (
        after.cpu_milli - before.cpu_milli, after.memory_mib - before.memory_mib, after.disk_mib - before.disk_mib,
    )  # fmt: skip
