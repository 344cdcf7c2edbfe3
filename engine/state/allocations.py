"""Allocations: one row for the tasks of one group of one workload on one node, chained per workload and per node.

The functions for many nodes at once place a gang with a task on each of a thousand nodes in a few vector operations.
They take each node at most once, and serve requests without devices, or for whole devices that are known or are all
that is free. They leave exactly what the one-node functions of this module and of `engine.capacity.index` would leave,
up to the numbering of rows.

The requests of all workload classes are columns too, so that victims are found without a look at each class.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

import numpy as np

from engine.capacity.devices import PoolIndex
from engine.capacity.index import NOWHERE, Capacity
from engine.capacity.task_shapes import Shape, size_class
from engine.model.columns import Numbers, Rows, Table, view
from engine.state.workloads import WorkloadClass

NONE = -1


class Allocations(Table):
    """Rows are reused. `devices` is a bit mask of device indexes on the node."""

    columns = (
        "workload", "group", "node", "count", "devices", "next_of_workload", "next_on_node", "previous_on_node",
        "first_on_node", "unused",
    )  # fmt: skip

    def __init__(self) -> None:
        self.workload = array("i")
        self.group = array("i")
        self.node = array("i")
        self.count = array("i")
        self.devices = array("q")
        self.next_of_workload = array("i")
        self.next_on_node = array("i")
        self.previous_on_node = array("i")
        self.first_on_node = array("i")
        self.unused = array("i")

    def add_node(self) -> None:
        self.first_on_node.append(NONE)

    def row_columns(self) -> tuple[array[int], ...]:
        """The columns that have an entry for each row."""
        return (
            self.workload, self.group, self.node, self.count, self.devices, self.next_of_workload, self.next_on_node,
            self.previous_on_node,
        )  # fmt: skip

    def add(self, workload: int, group: int, node: int, count: int, devices: int, following: int) -> int:
        """A new row in front of `following`, the workload's rows so far. Returns it."""
        head = self.first_on_node[node]
        if self.unused:
            row = self.unused.pop()
            # One by one: a loop over the columns takes twice as long.
            self.workload[row] = workload
            self.group[row] = group
            self.node[row] = node
            self.count[row] = count
            self.devices[row] = devices
            self.next_of_workload[row] = following
            self.next_on_node[row] = head
            self.previous_on_node[row] = NONE
        else:
            row = len(self.node)
            self.workload.append(workload)
            self.group.append(group)
            self.node.append(node)
            self.count.append(count)
            self.devices.append(devices)
            self.next_of_workload.append(following)
            self.next_on_node.append(head)
            self.previous_on_node.append(NONE)
        if head != NONE:
            self.previous_on_node[head] = row
        self.first_on_node[node] = row
        return row

    def drop(self, row: int) -> None:
        """Free the row."""
        after, before = self.next_on_node[row], self.previous_on_node[row]
        if before == NONE:
            self.first_on_node[self.node[row]] = after
        else:
            self.next_on_node[before] = after
        if after != NONE:
            self.previous_on_node[after] = before
        self.workload[row] = NONE
        self.unused.append(row)

    def of_workload(self, first: int) -> Iterator[int]:
        """Rows of the workload whose first row is `first`."""
        while first != NONE:
            yield first
            first = self.next_of_workload[first]

    def on_node(self, node: int) -> Iterator[int]:
        row = self.first_on_node[node]
        while row != NONE:
            yield row
            row = self.next_on_node[row]

    def workloads_on(self, node: int) -> int:
        """The number of different workloads with a task on the node."""
        return len({self.workload[row] for row in self.on_node(node)})

    def workloads_on_each(self) -> Numbers:
        """The same of every node."""
        there = view(self.workload) != NONE
        nodes, workloads = view(self.node)[there].astype(np.int64), view(self.workload)[there]
        counts = np.bincount(nodes, minlength=len(self.first_on_node))
        # One can have several rows on a node.
        shared = counts[nodes] > 1
        pairs = np.unique(nodes[shared] << 32 | workloads[shared])
        return np.where(counts > 1, np.bincount(pairs >> 32, minlength=len(counts)), counts)


LEAST = 32
"""Nodes below which one at a time is quicker."""
DEVICE = 1000
"""Milli-GPU of a whole device."""


def worth_it(shape: Shape, nodes: int) -> bool:
    """True if so many nodes are worth taking at once where no device is to be chosen."""
    return nodes >= LEAST and not shape.gpu_milli


def worth_shifting(shape: Shape, nodes: Rows) -> bool:
    """True if the capacity of these nodes is worth shifting at once, the devices being known."""
    return len(nodes) >= LEAST and not shape.part and len(set(nodes.tolist())) == len(nodes)


def take_all_devices(capacity: Capacity, shape: Shape, nodes: Rows, counts: Rows) -> Rows | None:
    """Claim tasks that get every device that is free on their nodes, one node or more. Returns the device masks; None,
    and nothing claimed, when there is a choice of devices, or too few nodes for this to pay."""
    if not shape.gpus or len(nodes) < LEAST:
        return None
    masks = view(capacity.whole)[nodes]
    if (np.bitwise_count(masks) != shape.gpus * counts).any():
        return None
    shift_many(capacity, shape, nodes, -counts, masks)
    return masks


def take_first(capacity: Capacity, shape: Shape, node: int, want: int) -> tuple[Rows, Rows] | None:
    """(nodes, tasks on each) for up to `want` tasks from the bucket of `node`, lowest rows first, claimed already.

    None when the bucket is too small for this to pay. `node` is what `Capacity.find` gave, so it fits.
    """
    if want < LEAST:
        return None
    key = capacity.key[node]
    index = capacity.index_at(node)
    if not worth_it(shape, min(want, index.counts[key])):
        return None
    heap = index.heaps[key]
    nodes: list[int] = []
    counts: list[int] = []
    passed: list[int] = []
    before = NOWHERE
    while want and heap:
        at = heappop(heap)
        if at == before or capacity.key[at] != key:
            continue
        before = at
        count = capacity.room(at, shape, want)
        if count:
            nodes.append(at)
            counts.append(count)
            want -= count
        else:
            passed.append(at)
    # The last node may keep enough to stay in its bucket; an entry too many is dropped when met.
    for at in (*passed, before):
        heappush(heap, at)
    chosen, tasks = np.array(nodes, np.int32), np.array(counts, np.int64)
    shift_many(capacity, shape, chosen, -tasks)
    return chosen, tasks


def shift_many(capacity: Capacity, shape: Shape, nodes: Rows, counts: Rows, devices: Rows | int = 0) -> None:
    """Give back tasks on different nodes, or take them where the counts are negative: all of them are, or none.
    `devices`: the mask of each, where the shape asks for whole devices; else 0."""
    c = capacity
    for column, each in ((c.free_cpu, shape.cpu), (c.free_memory, shape.memory), (c.free_disk, shape.disk)):
        if each:
            view(column)[nodes] += each * counts
    if isinstance(devices, np.ndarray) and shape.gpus:
        _shift_devices(c, nodes, devices, free=bool(counts[0] > 0))
    if c.domain_room is not None:
        c.domain_room.note(shape, nodes, counts)
    keys = view(c.key)[nodes]
    if (keys == NOWHERE).any():
        indexed = keys != NOWHERE
        nodes, counts, keys = nodes[indexed], counts[indexed], keys[indexed]
    places = view(c.partition)[nodes] + view(c.booking)[nodes].astype(np.int64) * len(c.partitions)
    for _, here in _distinct(places):
        _move_many(c, c.index_at(int(nodes[here][0])), shape, nodes[here], counts[here], keys[here])


def shift_each(capacity: Capacity, shapes: Sequence[Shape], nodes: Rows, counts: Rows, devices: Rows) -> None:
    """Give back `counts[i]` tasks of `shapes[i]` on `nodes[i]` and those devices, or take them where the counts are
    negative: all of them are, or none. Nodes may come more than once."""
    c = capacity
    if len(nodes) < LEAST:
        for node, shape, count, mask in zip(nodes.tolist(), shapes, counts.tolist(), devices.tolist(), strict=True):
            c.give_back(node, shape, count, mask)
        return
    numbers = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
    which = np.array([numbers[shape] for shape in shapes])
    parts = np.array([bool(shape.part) for shape in numbers])[which]
    for i in np.flatnonzero(parts).tolist():
        c.give_back(int(nodes[i]), shapes[i], int(counts[i]), int(devices[i]))
    if parts.any():
        which, nodes, counts, devices = which[~parts], nodes[~parts], counts[~parts], devices[~parts]
        if not len(nodes):
            return
    wants = np.array([(shape.cpu, shape.memory, shape.disk, shape.gpus) for shape in numbers], np.int64)
    gains = wants[which] * counts[:, None]
    for column, gain in zip((c.free_cpu, c.free_memory, c.free_disk), gains.T, strict=False):
        np.add.at(view(column), nodes, gain)
    if devices.any():
        _shift_devices_of_each(c, nodes, devices, free=bool(counts[0] > 0))
    if c.domain_room is not None:
        c.domain_room.touched += nodes.tolist()
    _count_in(c, nodes, gains)


def _shift_devices_of_each(capacity: Capacity, nodes: Rows, devices: Rows, *, free: bool) -> None:
    """Whole devices become free, or are taken, on nodes that may come more than once."""
    np.bitwise_xor.at(view(capacity.whole), nodes, devices)
    bits = np.arange(int(devices.max()).bit_length())
    at = view(capacity.device_base)[nodes][:, None] + bits
    view(capacity.device_free)[at[(devices[:, None] >> bits & 1) > 0]] = DEVICE if free else 0


def _count_in(capacity: Capacity, nodes: Rows, gains: Rows) -> None:
    """Count (CPU, memory, disk, devices) that nodes have gained, or lost where they are negative, in for the indexes
    they are in, and move each once."""
    c = capacity
    keys = view(c.key)[nodes]
    indexed = keys != NOWHERE
    nodes, gains, keys = nodes[indexed], gains[indexed], keys[indexed]
    places = view(c.partition)[nodes] + view(c.booking)[nodes].astype(np.int64) * len(c.partitions)
    for _, here in _distinct(places):
        index = c.index_at(int(nodes[here][0]))
        cpu, memory, _, gpus = gains[here].sum(axis=0).tolist()
        index.free_cpu += cpu
        index.free_memory += memory
        index.free_devices += gpus
        once, first = np.unique(nodes[here], return_index=True)
        _rebucket(c, index, once, keys[here][first])


def _shift_devices(capacity: Capacity, nodes: Rows, devices: Rows, *, free: bool) -> None:
    """Whole devices become free, or are taken."""
    view(capacity.whole)[nodes] ^= devices
    bits = np.arange(int(devices.max()).bit_length())
    at = view(capacity.device_base)[nodes][:, None] + bits
    view(capacity.device_free)[at[(devices[:, None] >> bits & 1) > 0]] = DEVICE if free else 0


def _distinct(values: Rows) -> list[tuple[int, Any]]:
    """(value, where it is) of the values there are, ascending. Often it is one."""
    if not len(values):
        return []
    if (values == values[0]).all():
        return [(int(values[0]), slice(None))]
    return [(value, values == value) for value in np.unique(values).tolist()]


def _move_many(capacity: Capacity, index: PoolIndex, shape: Shape, nodes: Rows, counts: Rows, old: Rows) -> None:
    """Count these tasks in for the index of nodes of one partition, and move those; `old`: the buckets they are in."""
    tasks = int(counts.sum())
    index.free_cpu += shape.cpu * tasks
    index.free_memory += shape.memory * tasks
    index.free_devices += shape.gpus * tasks
    _rebucket(capacity, index, nodes, old)


def _rebucket(capacity: Capacity, index: PoolIndex, nodes: Rows, old: Rows) -> None:
    """Put nodes of one partition into the buckets of what they have free now; `old`: those they are in."""
    whole = np.bitwise_count(view(capacity.whole)[nodes]).astype(np.int64)
    new = whole << 12 | _classes(view(capacity.free_cpu)[nodes]) << 6 | _classes(view(capacity.free_memory)[nodes])
    moved = new != old
    if not moved.all():
        nodes, new, old = nodes[moved], new[moved], old[moved]
    view(capacity.key)[nodes] = new
    for key, here in _distinct(old):
        index.remove(key, len(nodes[here]))
    for key, here in _distinct(new):
        index.insert_many(key, np.sort(nodes[here]).tolist())
        capacity.tidy(index, key)


def _classes(values: Rows) -> Rows | int:
    """`shape.size_class` of every value; one for all where all are the same."""
    if (values == values[0]).all():
        return size_class(int(values[0]))
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    classes = bits << 1 | values >> np.maximum(bits - 2, 0) & 1
    return np.asarray(np.where(values < 2, values * 2, np.minimum(classes, 63)))


def add_many(
    allocations: Allocations,
    workload: int,
    group: int,
    nodes: Rows,
    counts: Rows,
    following: int,
    devices: Rows | int = 0,
) -> int:
    """Allocation rows for tasks on different nodes, chained in order in front of `following`. Returns the first."""
    a = allocations
    reused = min(len(nodes), len(a.unused))
    old = a.unused[len(a.unused) - reused :]
    del a.unused[len(a.unused) - reused :]
    fresh = len(nodes) - reused
    rows = np.concatenate((np.array(old, np.int32), np.arange(len(a.node), len(a.node) + fresh, dtype=np.int32)))
    for column in a.row_columns():
        column.frombytes(bytes(fresh * column.itemsize))
    heads = view(a.first_on_node)[nodes]
    view(a.workload)[rows] = workload
    view(a.group)[rows] = group
    view(a.node)[rows] = nodes
    view(a.count)[rows] = counts
    view(a.devices)[rows] = devices
    view(a.next_of_workload)[rows] = np.append(rows[1:], np.int32(following))
    view(a.next_on_node)[rows] = heads
    view(a.previous_on_node)[rows] = NONE
    view(a.previous_on_node)[heads[heads != NONE]] = rows[heads != NONE]
    view(a.first_on_node)[nodes] = rows
    return int(rows[0])


def drop_many(allocations: Allocations, rows: Rows) -> None:
    """Free rows that are on different nodes."""
    a = allocations
    after, before = view(a.next_on_node)[rows], view(a.previous_on_node)[rows]
    first = before == NONE
    view(a.first_on_node)[view(a.node)[rows][first]] = after[first]
    view(a.next_on_node)[before[~first]] = after[~first]
    followed = after != NONE
    view(a.previous_on_node)[after[followed]] = before[followed]
    view(a.workload)[rows] = NONE
    freed: array[int] = array("i")
    freed.frombytes(rows.astype(np.int32).tobytes())
    a.unused.extend(freed)


def of_workloads(allocations: Allocations, firsts: Rows) -> tuple[Rows, Rows]:
    """The rows of workloads whose first rows are these, and the index of each one's workload among them: by workload,
    then by group, as they are chained."""
    a = allocations
    held, owner = firsts, np.arange(len(firsts))
    if (view(a.next_of_workload)[held] == NONE).all():
        return held, owner
    links = []
    while len(held):
        links.append((held, owner))
        following = view(a.next_of_workload)[held]
        held, owner = following[following != NONE], owner[following != NONE]
    held, owner = (np.concatenate(column) for column in zip(*links, strict=True))
    order = np.lexsort((view(a.group)[held], owner))
    return held[order], owner[order]


class RequestColumns:
    """The requests of workload classes, as columns. The first three go by class, the others by (class, group)."""

    def __init__(self) -> None:
        self.first = array("i")
        """First entry of the class in the columns by group."""
        self.tasks = array("q")
        self.bound_ms = array("q")
        self.count = array("q")
        """Tasks of the group; the quantities are for one of them."""
        self.cpu = array("q")
        self.memory = array("q")
        self.gpu_milli = array("q")
        self.disk = array("q")
        self.mig = array("b")
        """True if the requested devices are one MIG instance."""

    def copy(self) -> RequestColumns:
        other = object.__new__(RequestColumns)
        other.__dict__ = {name: column[:] for name, column in self.__dict__.items()}
        return other

    def update(self, classes: Sequence[WorkloadClass]) -> None:
        """Append the classes that are new since the last call. Classes never change."""
        for workload_class in classes[len(self.first) :]:
            self.first.append(len(self.count))
            self.tasks.append(workload_class.tasks)
            self.bound_ms.append(workload_class.bound_ms)
            for group in workload_class.groups:
                self.count.append(group.count)
                for column, quantity in zip(self.by_resource, group.request.vector(), strict=True):
                    column.append(quantity)
                self.mig.append(bool(group.mig))

    @property
    def by_resource(self) -> tuple[array[int], ...]:
        """The quantities in the order of RESOURCES."""
        return self.cpu, self.memory, self.gpu_milli, self.disk

    def whole_devices(self) -> Rows:
        return np.where(view(self.mig), 0, view(self.gpu_milli) // DEVICE)

    def parts_of_devices(self) -> Rows:
        """Milli-GPU of a share or MIG instance; 0 for none."""
        return np.where(view(self.mig), view(self.gpu_milli), view(self.gpu_milli) % DEVICE)
