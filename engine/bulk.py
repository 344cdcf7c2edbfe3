"""The same steps for many nodes at once: a gang with a task on each of a thousand nodes costs a few vector operations.

For requests without devices only, because devices are chosen node by node. Every function takes each node at most
once, and leaves exactly what the one-node functions of `engine.capacity` and `engine.allocations` would leave, up to
the numbering of allocation rows.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Any

import numpy as np

from engine.allocations import NONE, Allocations
from engine.buckets import PoolIndex
from engine.capacity import NOWHERE, Capacity
from engine.columns import view
from engine.shape import Shape

LEAST = 32
"""Nodes below which one at a time is quicker."""
Rows = np.ndarray[Any, np.dtype[Any]]


def worth_it(shape: Shape, nodes: int) -> bool:
    return nodes >= LEAST and not shape.gpu_milli


def take_first(capacity: Capacity, shape: Shape, node: int, want: int) -> tuple[Rows, Rows] | None:
    """(nodes, tasks on each) for up to `want` tasks from the bucket of `node`, lowest rows first, claimed already.

    None when the bucket is too small for this to pay. `node` is what `Capacity.find` gave, so it fits.
    """
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


def shift_many(capacity: Capacity, shape: Shape, nodes: Rows, counts: Rows) -> None:
    """Give back tasks on different nodes, or take them where the count is negative."""
    c = capacity
    for column, each in ((c.free_cpu, shape.cpu), (c.free_memory, shape.memory), (c.free_disk, shape.disk)):
        if each:
            view(column)[nodes] += each * counts
    if c.domain_room is not None:
        c.domain_room.touched += nodes.tolist()
    indexed = view(c.key)[nodes] != NOWHERE
    nodes, counts = nodes[indexed], counts[indexed]
    places = view(c.partition)[nodes].astype(np.int64) + view(c.booking)[nodes].astype(np.int64) * len(c.partitions)
    for place in np.unique(places).tolist():
        here = places == place
        _move_many(c, c.index_at(int(nodes[here][0])), shape, nodes[here], counts[here])


def _move_many(capacity: Capacity, index: PoolIndex, shape: Shape, nodes: Rows, counts: Rows) -> None:
    """Put nodes of one partition into the buckets of what they have free now."""
    tasks = int(counts.sum())
    index.free_cpu += shape.cpu * tasks
    index.free_memory += shape.memory * tasks
    keys = view(capacity.key)
    whole = np.bitwise_count(view(capacity.whole)[nodes]).astype(np.int64)
    new = whole << 12 | _classes(view(capacity.free_cpu)[nodes]) << 6 | _classes(view(capacity.free_memory)[nodes])
    old = keys[nodes]
    moved = new != old
    nodes, new, old = nodes[moved], new[moved], old[moved]
    keys[nodes] = new
    for key, count in zip(*(part.tolist() for part in np.unique(old, return_counts=True)), strict=True):
        index.remove(key, count)
    for key in np.unique(new).tolist():
        index.insert_many(key, np.sort(nodes[new == key]).tolist())
        capacity.tidy(index, key)


def _classes(values: Rows) -> Rows:
    """`shape.size_class` of every value."""
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    classes = bits << 1 | values >> np.maximum(bits - 2, 0) & 1
    return np.asarray(np.where(values < 2, values * 2, np.minimum(classes, 63)))


def add_many(allocations: Allocations, workload: int, group: int, nodes: Rows, counts: Rows, following: int) -> int:
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
    view(a.devices)[rows] = 0
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
