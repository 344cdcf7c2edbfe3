"""Fragmentation: the share of free GPU that the cell's own work could not use, because it lies in the wrong pieces.

The measure is that of fragmentation gradient descent (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023). Draw a task from the live mix of waiting and running
work, by number of tasks. On a node where the task fits, the free part of every device that it could not be put on is
lost to it. On a node where it does not fit, everything free is. Fragmentation is the average loss as a share of the
free capacity.

Two losses that the paper counts are left out. Tasks without GPU have no use for any free device. A task does not lose
free capacity on nodes that it may never use, by pool, labels or taints. Both would show fragmentation in an empty cell,
and no move could remove it. The figure by the paper's own rule is given too (`published_ppm`). Neighbours and closeness
in the topology are not looked at.

Capacity is free on nodes that take any work: ready, and not kept for a reservation or a preemptor. On a partitioned
device the free MIG instances count.

Nodes are counted by class: two nodes are alike if the same tasks of the mix fit and they have as many free devices. So
the cost is one pass over the nodes, however many kinds of tasks there are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from engine.capacity import mig
from engine.capacity.index import OPEN, Capacity
from engine.capacity.task_shapes import Shape
from engine.model.columns import Numbers, view
from engine.model.reports import FragmentationReport, PoolFragmentation, ShapeFragmentation
from engine.model.specs import NodeState
from engine.state.cell_state import State

MILLION = 1_000_000
DEVICE = 1000
"""Milli-GPU of a whole device."""
MAX_SHAPES = 64
"""Kinds of tasks in the mix, the most frequent ones; what is rarer is left out, and how much that is, is told."""
SHOWN_SHAPES = 12
"""Kinds of tasks of which it is worked out how many fit."""


class TaskKind(NamedTuple):
    """Tasks of one shape in the mix."""

    shape: Shape
    waiting: int
    running: int

    @property
    def tasks(self) -> int:
        return self.waiting + self.running


class TaskMix(NamedTuple):
    """The tasks that are there now."""

    kinds: tuple[TaskKind, ...]
    """Those that ask for GPU, the most frequent first."""
    covered: int
    """Tasks of these kinds."""
    tasks: int
    """All tasks that wait for a start or run, with GPU or without."""


def live_mix(state: State) -> TaskMix:
    """Waiting and running work, by the request of one task."""
    w, a = state.workloads, state.allocations
    kinds: dict[tuple[Any, ...], TaskKind] = {}

    def count(shape: Shape, waiting: int, running: int) -> None:
        known = kinds.get(_asked(shape), TaskKind(shape, 0, 0))
        kinds[_asked(shape)] = TaskKind(known.shape, known.waiting + waiting, known.running + running)

    for cls, workloads in sorted(_queued(state).items()):
        for shape, tasks in zip(w.classes[cls].shapes, w.classes[cls].counts, strict=True):
            count(shape, workloads * tasks, 0)
    used = np.flatnonzero(view(a.workload) >= 0)
    cls_of = view(w.cls)[view(a.workload)[used]]
    groups = max((len(workload_class.shapes) for workload_class in w.classes), default=1)
    sums = np.bincount(cls_of * groups + view(a.group)[used], weights=view(a.count)[used])
    for entry in np.flatnonzero(sums).tolist():
        cls, group = divmod(entry, groups)
        count(w.classes[cls].shapes[group], 0, int(sums[entry]))
    wanted = [kind for kind in kinds.values() if kind.shape.gpu_milli]
    wanted.sort(key=lambda kind: (-kind.tasks, -kind.shape.gpu_milli, -kind.shape.cpu))
    covered = sum(kind.tasks for kind in wanted[:MAX_SHAPES])
    return TaskMix(tuple(wanted[:MAX_SHAPES]), covered, sum(kind.tasks for kind in kinds.values()))


def _asked(shape: Shape) -> tuple[Any, ...]:
    """The key that tells tasks apart here."""
    quantities = shape.cpu, shape.memory, shape.gpu_milli, shape.disk, shape.mig
    return *quantities, tuple(shape.pools), shape.labels, shape.tolerations


def _queued(state: State) -> dict[int, int]:
    """Class row -> workloads that wait for a start."""
    found: Counter[int] = Counter()
    for key, group in state.pending.groups.items():
        if state.pending.by_class and key[2] >= 0:
            found[key[2]] += len(group)
        else:
            found.update(state.workloads.cls[row] for row in group.rows[group.front :])
    return dict(found)


class Classes:
    """The nodes that take anybody's work and have something free on devices, in classes that no task of the mix can
    tell apart. Figures are by class, in milli-GPU where nothing else is said."""

    def __init__(self, capacity: Capacity, kinds: tuple[TaskKind, ...]) -> None:
        self._capacity = capacity
        self._limits = [sorted({want for kind in kinds if (want := getattr(kind.shape, name))}) for name in _RESOURCES]
        """By resource: the quantities that tasks ask for; between two of them a little more or less tells nothing."""
        self._shares = sorted({kind.shape.share for kind in kinds if kind.shape.share})
        open_ = (view(capacity.state) == NodeState.READY) & (view(capacity.booking) == OPEN)
        parts, part_of = _parts(capacity, open_)
        cuts, cut_of = _cuts(capacity, open_)
        holds: Numbers = open_ & (view(capacity.whole) != 0)
        holds[part_of] = True
        holds[cut_of] = True
        rows = np.flatnonzero(holds)
        whole = np.bitwise_count(view(capacity.whole)[rows]).astype(np.int64)
        levels = [
            np.searchsorted(limits, view(column)[rows], "right")
            for column, limits in zip(_free_columns(capacity), self._limits, strict=True)
        ]
        key = view(capacity.partition)[rows].astype(np.int64)
        for level, limits in zip(levels, self._limits, strict=True):
            key = key * (len(limits) + 1) + level
        key = key * (MAX_DEVICES + 1) + whole
        loose = self._loose(kinds, rows)
        for mask in loose.values():
            key = np.unique(key, return_inverse=True)[1] * 2 + mask
        _, first, class_of = np.unique(key, return_index=True, return_inverse=True)
        size = len(first)
        self._matches = {shape: mask[first] for shape, mask in loose.items()}
        """Matching nodes of shapes that demand labels which divide no nodes into partitions."""
        self._partition = view(capacity.partition)[rows[first]]
        self._whole = whole[first]
        """Wholly free devices of one node."""
        self._level = [level[first] for level in levels]
        """By resource: how many of the limits what is free comes up to."""
        self.pool = view(capacity.pool)[rows[first]]
        self._in_whole = self._whole * np.bincount(class_of, minlength=size) * DEVICE
        """Free on wholly free devices."""
        width = len(self._shares) + 1
        at = class_of[np.searchsorted(rows, part_of)] * width + np.searchsorted(self._shares, parts, "right")
        sums = np.bincount(at, weights=parts, minlength=size * width).astype(np.int64).reshape(size, width)
        self._in_parts = np.flip(np.cumsum(np.flip(sums, 1), 1), 1)
        """By number of shares n: free on partly used devices with room for the n-th smallest share or more."""
        cut_class = class_of[np.searchsorted(rows, cut_of)]
        self._in_instances = np.array(
            [np.bincount(cut_class, weights=free, minlength=size) for free in cuts], np.int64
        ).reshape(len(mig.KINDS), size)
        """By kind: free as MIG instances of it, on partitioned devices."""
        self.free = self._in_whole + self._in_parts[:, 0] + self._in_instances.sum(0)

    def _loose(self, kinds: tuple[TaskKind, ...], rows: Numbers) -> dict[Shape, Numbers]:
        found: dict[Shape, Numbers] = {}
        for kind in kinds:
            reach = self._capacity.reach(kind.shape)
            if reach.loose:
                found[kind.shape] = self._capacity.loose_mask(reach)[rows]
        return found

    def within_reach(self, shape: Shape) -> Numbers:
        """The classes of nodes that tasks of the shape may ever use, by pool, labels and taints."""
        mine: Numbers = np.zeros(max(len(self._capacity.partitions), 1), bool)
        mine[list(self._capacity.reach(shape).open)] = True
        found: Numbers = mine[self._partition]
        return found & self._matches[shape] if shape in self._matches else found

    def usable(self, shape: Shape) -> Numbers:
        """Free on devices that a task of the shape could be put on."""
        fits = self.within_reach(shape)
        for level, limits, want in zip(self._level, self._limits, (shape.cpu, shape.memory, shape.disk), strict=True):
            if want:
                fits &= level >= bisect_right(limits, want)
        if shape.gpus:
            return np.asarray(np.where(fits & (self._whole >= shape.gpus), self._in_whole, 0))
        if shape.share:
            in_parts = self._in_parts[:, bisect_right(self._shares, shape.share)]
            return np.asarray(np.where(fits, self._in_whole + in_parts, 0))
        kind = np.array(shape.kinds, np.int64)[self.pool]
        instances = self._in_instances[kind, np.arange(len(kind))]
        return np.asarray(np.where(fits & (kind >= 0), self._in_whole + instances, 0))


_RESOURCES = ("cpu", "memory", "disk")
MAX_DEVICES = 62
"""Devices of one node, as in `engine.model.specs`."""


def _free_columns(capacity: Capacity) -> tuple[array[int], ...]:
    return capacity.free_cpu, capacity.free_memory, capacity.free_disk


def _parts(capacity: Capacity, open_: Numbers) -> tuple[Numbers, Numbers]:
    """(free milli-GPU, node) of every partly used device of these nodes."""
    free = view(capacity.device_free)
    parts = np.flatnonzero((free > 0) & (free < DEVICE))
    owner = _owner(capacity, parts)
    return free[parts[open_[owner]]].astype(np.int64), owner[open_[owner]]


def _cuts(capacity: Capacity, open_: Numbers) -> tuple[Numbers, Numbers]:
    """([kind, device] free milli-GPU as MIG instances of the kind, node) of every partitioned device of these nodes."""
    cut = np.flatnonzero(view(capacity.device_layout))
    owner = _owner(capacity, cut)
    cut, owner = cut[open_[owner]], owner[open_[owner]]
    state = view(capacity.device_layout)[cut].astype(np.int64) << mig.USED_BITS | view(capacity.device_used)[cut]
    charge = np.array([kind.compute * DEVICE // mig.COMPUTE_SLICES for kind in mig.KINDS], np.int64)
    return mig.FREE[:, state].astype(np.int64) * charge[:, None], owner


def _owner(capacity: Capacity, devices: Numbers) -> Numbers:
    return np.asarray(np.searchsorted(view(capacity.device_base), devices, "right") - 1)


class Loss(NamedTuple):
    """The free GPU lost to the mix, in milli-GPU."""

    free: tuple[int, ...]
    """By pool: free on nodes that take anybody's work."""
    within_reach: tuple[tuple[int, ...], ...]
    """By kind and pool: of that, on nodes that its tasks may ever use."""
    usable: tuple[tuple[int, ...], ...]
    """By kind and pool: of that, on devices that one of its tasks could be put on."""
    pools: tuple[frozenset[int], ...]
    """By kind: the pools that it may ever use."""


def lost(state: State, kinds: tuple[TaskKind, ...]) -> Loss:
    """One pass over the nodes."""
    capacity = state.capacity
    count = len(capacity.pools)
    if not capacity.node_ids:
        nothing = ((0,) * count,) * len(kinds)
        return Loss((0,) * count, nothing, nothing, (frozenset(),) * len(kinds))
    classes = Classes(capacity, kinds)

    def by_pool(figures: Numbers) -> tuple[int, ...]:
        # Exact: what there is in a cell is far below 2^53.
        return tuple(np.bincount(classes.pool, weights=figures, minlength=count).astype(np.int64).tolist())

    return Loss(
        by_pool(classes.free),
        tuple(by_pool(np.where(classes.within_reach(kind.shape), classes.free, 0)) for kind in kinds),
        tuple(by_pool(classes.usable(kind.shape)) for kind in kinds),
        tuple(frozenset(capacity.partitions[p].pool for p in capacity.reach(k.shape).open) for k in kinds),
    )


def headline_ppm(state: State) -> int | None:
    """Fragmentation of the cell in parts per million: 0 when whatever is free is of use to any task of the mix. None
    when no task that asks for GPU waits or runs: then there is nothing to be of use to."""
    kinds = live_mix(state).kinds
    return _ppm(lost(state, kinds), kinds, None)


def _ppm(loss: Loss, kinds: tuple[TaskKind, ...], pool: int | None) -> int | None:
    """Fragmentation of the cell, or of one pool. None when no kind of the mix may go there."""
    there = slice(None) if pool is None else slice(pool, pool + 1)
    free = unusable = 0
    for kind, reach, usable in zip(kinds, loss.within_reach, loss.usable, strict=True):
        free += kind.tasks * sum(reach[there])
        unusable += kind.tasks * (sum(reach[there]) - sum(usable[there]))
    if not any(pools if pool is None else pool in pools for pools in loss.pools):
        return None
    return unusable * MILLION // free if free else 0


def measured(state: State, now_ms: int) -> FragmentationReport:
    """The whole report: the cell, its pools, and the main kinds of tasks with how many of each would fit."""
    mix = live_mix(state)
    kinds = mix.kinds
    loss = lost(state, kinds)
    all_free = sum(loss.free)
    whole = mix.tasks * all_free
    seen = sum(kind.tasks * sum(usable) for kind, usable in zip(kinds, loss.usable, strict=True))
    return FragmentationReport(
        version=state.version,
        now_ms=now_ms,
        ppm=_ppm(loss, kinds, None),
        published_ppm=(whole - seen) * MILLION // whole if whole else None,
        free_milli=all_free,
        mix_tasks=mix.tasks,
        covered_tasks=mix.covered,
        pools=tuple(
            PoolFragmentation(name=pool.name, free_milli=loss.free[i], ppm=_ppm(loss, kinds, i))
            for i, pool in enumerate(state.capacity.pools)
            if pool.capacity.gpu_milli
        ),
        shapes=tuple(_shape_report(state, kind, loss, i) for i, kind in enumerate(kinds[:SHOWN_SHAPES])),
    )


def _shape_report(state: State, kind: TaskKind, loss: Loss, at: int) -> ShapeFragmentation:
    shape = kind.shape
    free = sum(loss.within_reach[at])
    usable = sum(loss.usable[at])
    return ShapeFragmentation(
        cpu_milli=shape.cpu,
        memory_mib=shape.memory,
        gpu_milli=shape.gpu_milli,
        disk_mib=shape.disk,
        pools=tuple(state.capacity.pools[pool].name for pool in shape.pools),
        waiting=kind.waiting,
        running=kind.running,
        free_milli=free,
        usable_milli=usable,
        unusable_ppm=(free - usable) * MILLION // free if free else 0,
        fits=state.capacity.slots(shape),
        fits_in_one_piece=in_one_piece(state.capacity, shape),
    )


def in_one_piece(capacity: Capacity, shape: Shape) -> int:
    """Tasks of the shape that would fit if all that is free on the nodes it may use were in one piece."""
    rows = np.flatnonzero(capacity.usable_mask(shape))
    asked = zip(_free_columns(capacity), (shape.cpu, shape.memory, shape.disk), strict=True)
    counts = [int(view(column)[rows].sum()) // want for column, want in asked if want]
    if shape.kinds:
        most = max(mig.KINDS[kind].most for kind in shape.kinds if kind >= 0)
        counts.append(free_gpu(capacity, shape) * most // DEVICE)
    elif shape.gpu_milli:
        counts.append(free_gpu(capacity, shape) // shape.gpu_milli)
    return min(counts)


def free_gpu(capacity: Capacity, shape: Shape) -> int:
    """Free milli-GPU on the nodes that tasks of the shape may use: whole devices for those that take whole ones."""
    usable = capacity.usable_mask(shape)
    whole = int(np.bitwise_count(view(capacity.whole)[usable]).sum()) * DEVICE
    if shape.gpus:
        return whole
    if shape.share:
        return whole + int(_parts(capacity, usable)[0].sum())
    return whole + int(_cuts(capacity, usable)[0].sum())
