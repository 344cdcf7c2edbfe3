"""Victim selection: the cheapest whole workloads to remove so that a request fits.

Pure choice over arrays. Who may be a victim, in which rank and at what cost, is policy (`engine.preemption`) and given.
Wanted is, among the sets whose removal makes room for every task asked for and gives back the quota asked for, the one
with, in this order: the lowest highest level, the least cost, the fewest victims, the youngest victims.

1. Levels are opened from the lowest until the room and quota of all that is open suffice. No set does with less.
2. Every open workload gets a unit price: its cost over what it contributes to what is missing. A node's price is the
   sum over what it holds; the nodes with the cheapest slots, a few times as many as needed, are looked at closely.
3. Greedy: the cheapest slots first. A workload already chosen costs nothing on its other nodes, and prices are worked
   out anew as less is missing.
4. Reprieve: whoever is not needed is spared, the most important and costliest first, until nobody can be.
5. Greed sees each workload alone, and does badly where several only together make room. So in cells that are not too
   large the same is done in reverse: all go, and those are spared first that cost most for what is lost without them
   (as in Charikar's peeling for densest subgraphs, APPROX 2000). The better set of the two is taken.
6. The choice among the costliest victims and those that might take their place is made anew by branch and bound. With
   up to CORE candidates that is everybody, and the answer is exact; in larger cases it is the core of a knapsack, where
   greed errs (Balas and Zemel, "An algorithm for large zero-one knapsack problems", Operations Research 28(5), 1980).

A slot is room for one task. Counting slots is exact for one group of equal tasks. Several groups compete for the same
nodes, and then only the caller can tell whether a set is enough: the argument `fits`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import reduce
from heapq import heapify, heappop, heappush
from operator import floordiv, ge
from typing import NamedTuple, Protocol

import numpy as np

from engine import mig
from engine.allocations import Allocations
from engine.bulk import Rows
from engine.capacity import Capacity
from engine.columns import view
from engine.devices import device_numbers, instances
from engine.shape import Shape
from engine.workloads import WorkloadClass

DEVICE = 1000
"""Milli-GPU of a whole device."""
AMPLE = 2
"""Slots looked at closely, as a multiple of those missing."""
STEPS = (8, 1)
"""Widths in which the cell is narrowed down to these, as multiples of them."""
FEW_NODES = 64
"""Nodes looked at closely in any case."""
SAMPLED = 16
"""Of that many nodes one is looked at to find out which prices are low."""
UNLIKELY = 4
"""What is on no cheap node at all is taken to contribute that much less than it might."""
REPRICE = 16
"""Prices are worked out anew when what is missing has shrunk that much."""
EXCHANGE_WORK = 4000
"""Pieces priced in search of others for the costliest victims."""
PEELED = 4
"""That many times as many slots are peeled down as are looked at closely."""
CORE = 32
"""Workloads among which the choice is exact."""
CORE_PIECES = 1000
"""A choice that takes looking at more pieces is left as it is: a core would be little of it."""
CORE_WORK, WHOLE_WORK = 3000, 60_000
"""Node updates after which branch and bound settles for the best found: in a core, and where that is everybody."""
STEP_WORK, ASKING_WORK = 8, 100
"""What a step of branch and bound costs besides, and what asking the caller does, in node updates."""

Ask = tuple[Shape, int]
"""(shape, tasks wanted)"""
Fits = Callable[[list[int]], bool]
"""Whether the request really fits once these workload rows are gone."""


class Candidates(NamedTuple):
    """Who may be a victim, as columns over all workload rows."""

    level: Rows
    """int16: the rank in which workloads are sacrificed, lowest first; -1 for those that are not to be touched."""
    cost: Rows
    """int64, at least 0."""


class Quota(NamedTuple):
    """Quota that the victims have to give back besides making room."""

    amount: Rows
    """int64: what each workload row would give back."""
    short: int
    """How much is missing."""


class Limits(Protocol):
    """Bounds on the victims as a set. Every subset of an admissible set must be admissible."""

    def take(self, row: int) -> bool:
        """Count the workload in; False, and nothing changed, when that would pass a bound."""

    def untake(self, row: int) -> None:
        """Count it out again."""


class Requests:
    """What the classes of workloads ask for, as columns. The first three go by class, the others by (class, group)."""

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
        """Whether the devices asked for are one MIG instance."""

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


class Unit(NamedTuple):
    """What devices are counted in: whole ones, shares of one size, or MIG instances of one profile."""

    milli: int
    kinds: tuple[int, ...]
    """Of instances: index into `mig.KINDS` by pool, -1 where there are none; empty otherwise."""

    def on_device(self, number: int, pool: int) -> int:
        """How many there are on a device, given as a number of `engine.mig`."""
        if self.kinds:
            return mig.instances_of(number, self.kinds[pool])
        return max(number, 0) // self.milli

    def on_devices(self, numbers: Rows, pools: Rows) -> Rows:
        if self.kinds:
            return mig.instances_in(numbers, np.array(self.kinds)[pools])
        return np.asarray(np.maximum(numbers, 0) // self.milli)

    @classmethod
    def of(cls, shape: Shape) -> Unit:
        return cls(shape.gpu_milli if shape.kinds else shape.share or DEVICE, shape.kinds)


def cheapest(
    capacity: Capacity,
    allocations: Allocations,
    requests: Requests,
    classes: Rows,
    asks: Sequence[Ask],
    candidates: Candidates,
    *,
    quotas: Sequence[Quota] = (),
    limits: Limits | None = None,
    fits: Fits | None = None,
    within: Rows | None = None,
) -> list[int] | None:
    """Rows of the victims in ascending order, or None when no set is found. Empty when nothing need be removed.

    `classes` is the class row of every workload row. The victims are counted in `limits`. `within`: for every node
    whether room there counts; all by default.
    """
    field = Field(capacity, requests, asks, quotas, candidates, within)
    if field.enough() and (fits is None or fits([])):
        return []
    for _ in field.open_by_level(allocations, classes):
        if field.enough():
            victims = _Selection(field, limits, fits).run()
            if victims is not None:
                return victims
    return None


class Field:
    """The cell as the request sees it, in columns: what is free on each node with nobody and with all the opened gone.

    A piece is an allocation row of somebody opened. A dimension is a resource, or devices counted in units.
    """

    def __init__(
        self,
        capacity: Capacity,
        requests: Requests,
        asks: Sequence[Ask],
        quotas: Sequence[Quota],
        candidates: Candidates,
        within: Rows | None = None,
    ) -> None:
        self.capacity = capacity
        self.requests = requests
        self.quotas = quotas
        self.candidates = candidates
        self.counts = [count for _, count in asks]
        self.usable = [capacity.usable_mask(shape) for shape, _ in asks]
        if within is not None:
            self.usable = [usable & within for usable in self.usable]
        self.worth_a_look = reduce(np.logical_or, self.usable)
        self.wants: list[list[tuple[int, int]]] = [[] for _ in asks]
        """Per ask: (dimension, quantity of one task)."""
        self.units: dict[int, Unit] = {}
        """Dimension of devices -> what they are counted in."""
        self.per_device: dict[int, Rows] = {}
        """Dimension of MIG instances -> how many of them an idle device makes, by node."""
        self.any_shares = False
        """Somebody has a part of a device, and devices are asked for."""
        self.base: list[Rows] = []
        """Per dimension: free on each node with nobody gone."""
        self.tables: list[Rows] = []
        """Per dimension: what one task of each class and group holds; parts of devices apart."""
        self._add_dimensions([shape for shape, _ in asks])
        self.free = list(self.base)
        """Per dimension: free on each node with everybody opened gone."""
        self.base_slots = [self._slots(ask) for ask in range(len(asks))]
        self.base_total = [int(slots.sum()) for slots in self.base_slots]
        self.slots = self.base_slots
        """Per ask: slots on each node with everybody opened gone."""
        self.given = [0] * len(quotas)
        """What everybody opened would give back."""
        self.opened = np.zeros(len(candidates.level), bool)
        self.workload: Rows = np.empty(0, np.int32)
        self.node: Rows = np.empty(0, np.int32)
        self.entry: Rows = np.empty(0, np.int32)
        """Per piece: its class and group, by its entry in `requests`."""
        self.count: Rows = np.empty(0, np.int32)
        """Per piece: tasks."""
        self.share: Rows = np.empty(0, np.int32)
        """Per piece: milli-GPU of a part of one device; 0 for none. Empty when nobody has a part."""
        self.burden: Rows = np.empty(0, np.int64)
        """Per piece: what that takes off the number of the device."""
        self.device: Rows = np.empty(0, np.int32)
        """Per piece: that device, by its entry in `device_free`."""
        self.numbers: Rows = device_numbers(capacity) if self.any_shares else np.empty(0, np.int64)
        """Every device with nobody gone, as a number of `engine.mig`."""
        self._numbers = self.numbers.copy()
        """With everybody opened gone."""

    def _add_dimensions(self, shapes: list[Shape]) -> None:
        c = self.capacity
        for name, column in (("cpu", c.free_cpu), ("memory", c.free_memory), ("disk", c.free_disk)):
            wanted = [getattr(shape, name) for shape in shapes]
            if any(wanted):
                self._add_dimension(view(column), wanted, view(getattr(self.requests, name)))
        for unit in sorted({Unit.of(shape) for shape in shapes if shape.gpu_milli}):
            wanted = [(shape.gpus or 1) * (shape.gpu_milli > 0 and unit == Unit.of(shape)) for shape in shapes]
            dimension = len(self.base)
            self.units[dimension] = unit
            if unit.kinds:
                most = np.array([kind.most for kind in mig.KINDS] + [0])
                self.per_device[dimension] = most[np.array(unit.kinds)[view(c.pool)]]
            whole = self.requests.whole_devices()
            self._add_dimension(self._free_units(unit), wanted, whole if unit.kinds else whole * (DEVICE // unit.milli))
            self.any_shares = bool(self.requests.parts_of_devices().any())

    def _add_dimension(self, free: Rows, wanted: list[int], table: Rows) -> None:
        for wants, want in zip(self.wants, wanted, strict=True):
            if want:
                wants.append((len(self.base), want))
        self.base.append(free)
        self.tables.append(table.astype(np.float64))

    def _free_units(self, unit: Unit) -> Rows:
        if unit.kinds:
            return instances(self.capacity, unit.kinds)
        if unit.milli == DEVICE:
            return np.asarray(np.bitwise_count(view(self.capacity.whole)).astype(np.int64))
        sums = np.append(0, np.cumsum(view(self.capacity.device_free) // unit.milli))
        ends = np.append(view(self.capacity.device_base), len(sums) - 1)
        return np.asarray(np.diff(sums[ends]))

    def _slots(self, ask: int) -> Rows:
        room = reduce(np.minimum, (self.free[dimension] // want for dimension, want in self.wants[ask]))
        return np.asarray(room * self.usable[ask])

    def enough(self) -> bool:
        """Whether it would do, by the counts, if everybody opened were gone."""
        slots = zip(self.slots, self.counts, strict=True)
        return all(int(each.sum()) >= count for each, count in slots) and self.quotas_met()

    def quotas_met(self) -> bool:
        """Whether everybody opened would give back the quota asked for."""
        return all(given >= quota.short for given, quota in zip(self.given, self.quotas, strict=True))

    def open_by_level(self, allocations: Allocations, classes: Rows) -> Iterator[int]:
        """Open the levels one after the other, the lowest first; each is given when it is open."""
        if not len(self.candidates.level):
            return
        present = view(allocations.workload)
        # An unused entry has row -1 and reads the level of the last workload: it is told apart below.
        levels = self.candidates.level.take(present)
        reachable = self.worth_a_look.take(view(allocations.node)) & (present >= 0)
        for level in np.flatnonzero(np.bincount(self.candidates.level.astype(np.int64) + 1)[1:]).tolist():
            self.open(level, allocations, classes, np.flatnonzero((levels == level) & reachable))
            yield level

    def open(self, level: int, allocations: Allocations, classes: Rows, rows: Rows) -> None:
        """Make everybody of the level a possible victim. `rows`: what they hold on nodes worth a look."""
        before = len(self.workload)
        workload = view(allocations.workload).take(rows)
        entry = view(self.requests.first).take(classes.take(workload))
        entry += view(allocations.group).take(rows)
        self.workload = _joined(self.workload, workload)
        self.node = _joined(self.node, view(allocations.node).take(rows))
        self.entry = _joined(self.entry, entry)
        self.count = _joined(self.count, view(allocations.count).take(rows))
        for dimension, table in enumerate(self.tables):
            amounts = table.take(entry) * self.count[before:]
            if dimension in self.per_device:
                amounts = amounts * self.per_device[dimension].take(self.node[before:])
            # Exact: what there is on a node is far below 2^53.
            sums = np.bincount(self.node[before:], weights=amounts, minlength=len(self.worth_a_look))
            self.free[dimension] = self.free[dimension] + sums.astype(np.int64)
        if self.any_shares:
            self._open_shares(before, view(allocations.devices).take(rows))
        self.slots = [self._slots(ask) for ask in range(len(self.wants))]
        of_level = self.candidates.level == level
        self.opened |= of_level
        self.given = [
            given + int(quota.amount[of_level].sum()) for given, quota in zip(self.given, self.quotas, strict=True)
        ]

    def amounts(self, pieces: Rows) -> Rows:
        """What the pieces hold, by piece and dimension; parts of devices apart."""
        columns = [table[self.entry[pieces]] * self.count[pieces] for table in self.tables]
        for dimension, each in self.per_device.items():
            columns[dimension] = columns[dimension] * each[self.node[pieces]]
        return np.stack(columns, axis=1).astype(np.int64)

    def _open_shares(self, before: int, devices: Rows) -> None:
        """Of the pieces from `before` on, those that hold a part of one device."""
        share = self.requests.parts_of_devices().take(self.entry[before:]) * self.count[before:]
        first = view(self.capacity.device_base).take(self.node[before:])
        burdens = mig.burdens(devices)
        self.share = _joined(self.share, share)
        self.burden = _joined(self.burden, np.where(burdens > 0, burdens, share))
        masks = mig.device_masks(devices).astype(np.float64)
        self.device = _joined(self.device, first + np.frexp(masks)[1] - 1)
        self._free_shares(before + np.flatnonzero(share))

    def _free_shares(self, pieces: Rows) -> None:
        """Several parts of one device add up to a whole one only together."""
        devices, first, at = np.unique(self.device[pieces], return_index=True, return_inverse=True)
        old = self._numbers[devices]
        new = old.copy()
        np.add.at(new, at, self.burden[pieces])
        self._numbers[devices] = new
        nodes = self.node[pieces[first]]
        pools = view(self.capacity.pool)[nodes]
        for dimension, unit in self.units.items():
            np.add.at(self.free[dimension], nodes, unit.on_devices(new, pools) - unit.on_devices(old, pools))


def _joined(old: Rows, new: Rows) -> Rows:
    return np.concatenate((old, new)) if len(old) else new


Piece = tuple[int, tuple[int, ...], int, int, float]
"""(node, quantity in each dimension, entry of a device in the node's list, what a part of it takes off its number or 0,
contribution)"""


class _Detail:
    """Some nodes and some possible victims in plain lists, to decide one at a time. All counts are exact.

    Nodes and workloads go by their place in these lists.
    """

    def __init__(self, field: Field, rows: Rows, pieces: Rows, parts: Rows) -> None:
        """`rows`: workload rows in ascending order. `pieces`: what they hold on the nodes looked at, with `parts`: what
        each contributes to what is missing."""
        self.rows: list[int] = rows.tolist()
        self.cost: list[int] = field.candidates.cost[rows].tolist()
        self.level: list[int] = field.candidates.level[rows].tolist()
        self.gone = bytearray(len(self.rows))
        self.asks = len(field.wants)
        self.needs = field.counts + [quota.short for quota in field.quotas]
        self.have = field.base_total + [0] * len(field.quotas)
        """Slots of each ask on all nodes of the cell, then what is given back of each quota."""
        self.quota_amounts = [quota.amount[rows].tolist() for quota in field.quotas]
        self.nodes, self.node_of = np.unique(field.node[pieces], return_inverse=True)
        """Rows of the nodes; per piece, its node."""
        nodes = self.nodes
        self.gang_of = np.searchsorted(rows, field.workload[pieces])
        """Per piece: its workload."""
        self.parts = parts
        self.shares = field.burden[pieces] if field.any_shares else np.zeros(len(pieces), np.int64)
        self.amounts = field.amounts(pieces)
        self.usable = np.stack([usable[nodes] for usable in field.usable], axis=1)
        """By node and ask."""
        self.base = np.stack([free[nodes] for free in field.base], axis=1)
        """By node and dimension: what is free with nobody gone."""
        self.free: list[list[int]] = self.base.tolist()
        self.slots: list[tuple[int, ...]] = list(
            zip(*(slots[nodes].tolist() for slots in field.base_slots), strict=True)
        )
        self.wants = field.wants
        self._only_wants = [want for _, want in field.wants[0]] if self.asks == 1 else None
        """With one ask every dimension is wanted, and every node usable."""
        self._units = list(field.units.items())
        self._pools: list[int] = view(field.capacity.pool)[nodes].tolist()
        devices = np.zeros(len(pieces), np.int64)
        if self.shares.any():
            devices = field.device[pieces] - view(field.capacity.device_base)[field.node[pieces]] + len(field.base)
            # Behind its dimensions such a node lists its devices as numbers.
            for node in np.unique(self.node_of[self.shares > 0]).tolist():
                first, count = field.capacity.device_base[nodes[node]], field.capacity.device_count(int(nodes[node]))
                self.free[node] += field.numbers[first : first + count].tolist()
        amounts = zip(*self.amounts.T.tolist(), strict=True)
        columns = (self.node_of.tolist(), amounts, devices.tolist(), self.shares.tolist(), parts.tolist())
        self.pieces: list[list[Piece]] = [[] for _ in self.rows]
        for gang, piece in zip(self.gang_of.tolist(), zip(*columns, strict=True), strict=True):
            self.pieces[gang].append(piece)

    def slots_with(self, node: int, free: list[int]) -> tuple[int, ...]:
        """Slots of each ask with that much free."""
        if self._only_wants is not None:
            return (min(map(floordiv, free, self._only_wants)),)
        return tuple(
            min(free[dimension] // want for dimension, want in wants) if usable else 0
            for usable, wants in zip(self.usable[node], self.wants, strict=True)
        )

    def shift(self, free: list[int], piece: Piece, sign: int) -> None:
        """Add what the piece holds to the free quantities of its node, or take it off again."""
        node, amounts, device, share, _ = piece
        for dimension, amount in enumerate(amounts):
            free[dimension] += sign * amount
        if share:
            before = free[device]
            free[device] = after = before + sign * share
            pool = self._pools[node]
            for dimension, unit in self._units:
                free[dimension] += unit.on_device(after, pool) - unit.on_device(before, pool)

    def remove(self, gang: int) -> None:
        """Take the workload off its nodes."""
        self.gone[gang] = 1
        for piece in self.pieces[gang]:
            self._shift_on_node(piece, 1)
        self._shift_quota(gang, 1)

    def restore(self, gang: int) -> None:
        """Put it back."""
        self.gone[gang] = 0
        for piece in self.pieces[gang]:
            self._shift_on_node(piece, -1)
        self._shift_quota(gang, -1)

    def spare(self, gang: int) -> bool:
        """Put it back if there is enough without it."""
        pieces = self.pieces[gang]
        self._shift_quota(gang, -1)
        back = 0
        while self.enough():
            if back == len(pieces):
                self.gone[gang] = 0
                return True
            self._shift_on_node(pieces[back], -1)
            back += 1
        for piece in pieces[:back]:
            self._shift_on_node(piece, 1)
        self._shift_quota(gang, 1)
        return False

    def _shift_on_node(self, piece: Piece, sign: int) -> None:
        node = piece[0]
        free = self.free[node]
        self.shift(free, piece, sign)
        before, after = self.slots[node], self.slots_with(node, free)
        if before != after:
            self.slots[node] = after
            for ask in range(self.asks):
                self.have[ask] += after[ask] - before[ask]

    def _shift_quota(self, gang: int, sign: int) -> None:
        for at, amounts in enumerate(self.quota_amounts, self.asks):
            self.have[at] += sign * amounts[gang]

    def enough(self) -> bool:
        """Whether nothing is missing, by the counts."""
        return all(map(ge, self.have, self.needs))

    def victims(self) -> list[int]:
        """Rows of the workloads that are gone, in ascending order."""
        return [row for row, gone in zip(self.rows, self.gone, strict=True) if gone]

    def costliest(self) -> list[int]:
        """Those that are gone, the costliest first, the oldest of equals."""
        gone = [gang for gang, gone in enumerate(self.gone) if gone]
        return sorted(gone, key=lambda gang: (-self.cost[gang], gang))

    def copy(self) -> _Detail:
        """The same nodes and workloads, to be decided independently."""
        other = copy(self)
        other.have = self.have.copy()
        other.gone = self.gone.copy()
        other.free = [free.copy() for free in self.free]
        other.slots = self.slots.copy()
        return other


class _Selection:
    """One search among everybody opened."""

    def __init__(self, field: Field, limits: Limits | None, fits: Fits | None) -> None:
        self.field = field
        self.limits = limits
        self.fits = fits
        # Several groups may be in each other's way although there are slots enough for each alone.
        least = int(len(field.counts) > 1)
        self.missing = [max(count - total, least) for count, total in zip(field.counts, field.base_total, strict=True)]
        self.missing += [max(quota.short, 0) for quota in field.quotas]
        """What is missing with nobody gone: slots of each ask, then quotas."""
        self.gain = self._gains()
        """Per node: what everybody there contributes, in wholes of what is missing."""
        self.parts = self._contributions()
        """Per piece: what it contributes, in wholes of what is missing."""
        self.whole: Rows = np.bincount(field.workload, weights=self.parts, minlength=len(field.opened))
        """Per workload row: what all of it contributes."""
        for quota in field.quotas:
            if quota.short > 0:
                self.whole = self.whole + quota.amount * field.opened / quota.short
        rows = len(field.opened)
        self.prices = field.candidates.cost + (2 - np.arange(rows) / max(rows, 1))
        """Per workload row: its cost, and a little for being one more and for its age: fewer go, and younger."""
        self.unit = unit_prices(self.prices, self.whole, self.missing)
        """Per workload row."""
        self.walk: _Walk
        self.line: Iterator[int]
        """The choices of the walk."""

    def _contributions(self) -> Rows:
        field = self.field
        parts: Rows = np.zeros(len(field.node))
        for ask in range(len(field.wants)):
            if self.missing[ask]:
                parts = parts + self._contributions_to(ask)
        return parts

    def _contributions_to(self, ask: int) -> Rows:
        """What each piece holds of the dimension of which it holds most, of those that are scarce on its node."""
        field, missing = self.field, self.missing[ask]
        useful = field.usable[ask]
        pattern: Rows = np.zeros(len(useful), np.int32)
        for place, (dimension, want) in enumerate(field.wants[ask]):
            scarce: Rows = useful
            if len(field.wants) == 1:
                # Where there is plenty even for all the slots there might be, a dimension is in nobody's way.
                scarce = (field.slots[ask] > field.base_slots[ask]) & (field.base[dimension] < field.slots[ask] * want)
            pattern |= scarce.astype(np.int32) << place
        tables = [np.zeros(len(field.tables[0]))]
        for number in range(1, 1 << len(field.wants[ask])):
            held = [
                field.tables[d] / (want * missing) for p, (d, want) in enumerate(field.wants[ask]) if number >> p & 1
            ]
            tables.append(reduce(np.maximum, held))
        at = pattern.take(field.node) * np.int32(len(tables[0])) + field.entry
        parts = np.concatenate(tables).take(at) * field.count
        if field.any_shares:
            for place, (dimension, want) in enumerate(field.wants[ask]):
                if dimension in field.units:
                    scarce = (pattern >> place & 1).take(field.node)
                    parts += field.share * scarce / (field.units[dimension].milli * want * missing)
        return np.asarray(parts)

    def _gains(self) -> Rows:
        field = self.field
        gain: Rows = np.zeros(len(field.worth_a_look))
        for ask in range(len(field.wants)):
            if missing := self.missing[ask]:
                gain = gain + np.minimum(field.slots[ask] - field.base_slots[ask], missing) / missing
        return gain

    def run(self) -> list[int] | None:
        """The victims, or None when no admissible set is found."""
        everybody = np.flatnonzero(self.whole)
        if len(everybody) <= CORE:
            return self._exact(everybody)
        for ample in (AMPLE, 4 * AMPLE, None):
            detail = self._shortlist(ample)
            if self._choose(detail, self.prices):
                return self._refined(detail)
        # The cheapest ones may be so many that they pass a limit: try with as few as possible.
        if self.limits is not None and self._choose(detail, np.ones_like(self.prices)):
            return self._refined(detail)
        return None

    def _exact(self, everybody: Rows) -> list[int] | None:
        detail = self._detail_of(everybody)
        found = self._choose(detail, self.prices)
        if found:
            self._reprieve(detail)
        core = _Core(self, detail, list(range(len(detail.rows))), known=found)
        return detail.victims() if core.run(WHOLE_WORK) else None

    def _refined(self, shortlist: _Detail) -> list[int]:
        """The choice of the walk made better, with all that its victims hold in the cell in view."""
        self._reprieve(shortlist)
        chosen, others = shortlist.victims(), []
        if len(shortlist.node_of) <= CORE_PIECES:
            others = self._others(shortlist)
            peeled = self._peeled()
            if self._worth(peeled) < self._worth(chosen) and self._retake(chosen, peeled):
                chosen, others = peeled, [row for row in dict.fromkeys(chosen + others) if row not in set(peeled)]
        detail = self._detail_of(np.array(sorted([*chosen, *others]), np.int64))
        place = {row: gang for gang, row in enumerate(detail.rows)}
        for row in chosen:
            detail.remove(place[row])
        self._reprieve(detail)
        if others:
            room = max(CORE - len(chosen), CORE // 2)
            core = [place[row] for row in others[:room]] + detail.costliest()
            _Core(self, detail, core[:CORE], known=True).run(CORE_WORK)
            self._reprieve(detail)
        return detail.victims()

    def _worth(self, rows: list[int]) -> tuple[float, int]:
        """What is minimised, among sets that are enough; no set is the worst."""
        return (sum(self.field.candidates.cost[rows].tolist()), len(rows)) if rows else (np.inf, 0)

    def _retake(self, old: list[int], new: list[int]) -> bool:
        """Count one set in instead of another, if the limits admit it."""
        limits = self.limits
        if limits is None:
            return True
        for row in old:
            limits.untake(row)
        for count, row in enumerate(new):
            if not limits.take(row):
                for other in new[:count]:
                    limits.untake(other)
                for other in old:
                    limits.take(other)
                return False
        return True

    def _peeled(self) -> list[int]:
        """What is left of all near the cheapest slots when those are spared, one after another, that cost most for what
        is lost without them; empty when that is not enough. It sees what only several together make free."""
        detail = self._shortlist(AMPLE * PEELED)
        for gang in range(len(detail.rows)):
            detail.remove(gang)
        if not detail.enough():
            return []
        peel = _Peel(detail, self.missing)
        peel.run()
        return detail.victims() if self.enough(detail) else []

    def _detail_of(self, rows: Rows) -> _Detail:
        """These workloads, with all that they hold in the cell."""
        concerned = np.zeros(len(self.whole), bool)
        concerned[rows] = True
        pieces = np.flatnonzero(concerned.take(self.field.workload))
        return _Detail(self.field, rows, pieces, self.parts[pieces])

    def _shortlist(self, ample: int | None) -> _Detail:
        """The nodes with the cheapest slots and what is there, and who gives back quota most cheaply."""
        field = self.field
        pieces = self._cheap_pieces(ample)
        rows = np.union1d(field.workload[pieces], self._cheap_quota(ample))
        return _Detail(field, rows, pieces, self.parts[pieces])

    def _choose(self, detail: _Detail, prices: Rows) -> bool:
        """Remove the cheapest until there is enough; when there never is, nobody."""
        self.walk = _Walk(detail, self.missing, prices[detail.rows], self._prospects(detail, prices), self.limits)
        self.line = self.walk.choices()
        tried = 0
        for count, _ in enumerate(self.line, 1):
            if count >= tried * 3 // 2 and detail.enough():
                if self.enough(detail):
                    return True
                tried = count
        for gang in detail.costliest():
            detail.restore(gang)
            if self.limits is not None:
                self.limits.untake(detail.rows[gang])
        return False

    def _prospects(self, detail: _Detail, prices: Rows) -> Rows:
        """Per workload: what it contributes on the nodes with the cheapest slots, AMPLE times as many as are missing.
        A node is worth its price only if those who share it go too, and these are the likely ones."""
        gain = self.gain[detail.nodes]
        whole = np.bincount(detail.gang_of, weights=detail.parts, minlength=len(detail.rows))
        unit = unit_prices(prices[detail.rows], whole, self.missing)
        price = np.bincount(detail.node_of, weights=unit[detail.gang_of] * detail.parts, minlength=len(gain))
        order = np.argsort(price / np.maximum(gain, 1e-12), kind="stable")
        near = np.zeros(len(gain), bool)
        near[order[: np.searchsorted(np.cumsum(gain[order]), AMPLE * len(self.field.wants)) + 1]] = True
        there = np.bincount(detail.gang_of, weights=detail.parts * near[detail.node_of], minlength=len(whole))
        return np.where(there > 0, there, whole / UNLIKELY)

    def _cheap_pieces(self, ample: int | None) -> Rows:
        """What there is on the nodes with the cheapest slots, `ample` times as many as are missing; on all when that is
        None.

        A workload's unit price supposes that all it contributes is of use. So the choice is narrowed in steps, and each
        counts only what is on the nodes of the step before.
        """
        field = self.field
        gain = self.gain
        most = 0
        for ask in range(len(field.wants)):
            gained = field.slots[ask] - field.base_slots[ask]
            most = max(most, self.missing[ask] * int(np.count_nonzero(gained)) // max(int(gained.sum()), 1))
        sizes = [] if ample is None else [max(step * ample * most, FEW_NODES) for step in STEPS]
        closed: Rows = gain == 0 if len(field.wants) == 1 else ~field.worth_a_look
        unit, workload, node, parts = self.unit, field.workload, field.node, self.parts
        pieces: Rows | None = None
        for size in sizes:
            prices = np.bincount(node, weights=unit.take(workload) * parts, minlength=len(gain))
            ratios = prices / np.maximum(gain, 1e-12)
            ratios[closed] = np.inf
            closed = ~_lowest(ratios, size)
            close = (parts > 0) & ~closed.take(node)
            pieces = np.flatnonzero(close) if pieces is None else pieces[close]
            workload, node, parts = workload[close], node[close], parts[close]
            whole = np.bincount(workload, weights=parts, minlength=len(self.whole))
            unit = unit_prices(self.prices, whole, self.missing)
        return np.flatnonzero(self.parts) if pieces is None else pieces

    def _cheap_quota(self, ample: int | None) -> Rows:
        """Rows that give back quota most cheaply, `ample` times as much as is missing; all when that is None."""
        found = [np.empty(0, np.int64)]
        for quota in self.field.quotas:
            if quota.short > 0:
                rows = np.flatnonzero((quota.amount > 0) & self.field.opened)
                if ample is not None:
                    rows = rows[np.argsort(self.unit[rows], kind="stable")]
                    given = np.cumsum(quota.amount[rows])
                    rows = rows[: max(int(np.searchsorted(given, ample * quota.short)) + 1, CORE)]
                found.append(rows)
        return np.concatenate(found)

    def _others(self, detail: _Detail) -> list[int]:
        """Rows of those that might do better than some of the chosen: for the costliest, who would be chosen in their
        place; then the next in line."""
        self.walk.limits = None
        chosen = bytes(detail.gone)
        found: dict[int, None] = {}
        for gang in detail.costliest()[: EXCHANGE_WORK // max(len(detail.node_of), 1)]:
            found |= dict.fromkeys(self.walk.instead_of(gang))
        for gang in self.line:
            if len(found) >= CORE:
                break
            if not chosen[gang]:
                found[gang] = None
        return [detail.rows[gang] for gang in found]

    def _reprieve(self, detail: _Detail) -> None:
        """Spare who is not needed, the most important and costliest first, the oldest of equals, to a fixpoint."""
        order = sorted(range(len(detail.rows)), key=lambda g: (-detail.level[g], -detail.cost[g], g))
        spared = True
        while spared:
            spared = False
            for gang in order:
                if not detail.gone[gang] or not detail.spare(gang):
                    continue
                if self.fits is None or self.fits(detail.victims()):
                    spared = True
                    if self.limits is not None:
                        self.limits.untake(detail.rows[gang])
                else:
                    detail.remove(gang)

    def enough(self, detail: _Detail) -> bool:
        """Whether the request fits with those gone."""
        return detail.enough() and (self.fits is None or self.fits(detail.victims()))


def _lowest(ratios: Rows, size: int) -> Rows:
    """Marks the lowest ratios, as many as `size`, of those that are finite."""
    if len(ratios) > 4 * size:
        # Partitioning all is dear: a sample tells roughly where the limit is.
        at = 2 * size // SAMPLED
        candidates = np.flatnonzero(ratios <= np.partition(ratios[::SAMPLED], at)[at])
    else:
        candidates = np.flatnonzero(ratios < np.inf)
    if len(candidates) > size:
        candidates = candidates[np.argpartition(ratios[candidates], size)[:size]]
    marks = np.zeros(len(ratios), bool)
    marks[candidates] = True
    return marks & (ratios < np.inf)


def unit_prices(prices: Rows, whole: Rows, missing: list[int]) -> Rows:
    """Price of contributing all that is missing; to contribute more is worth no more."""
    wanted = max(sum(each > 0 for each in missing), 1)
    return np.asarray(prices / np.clip(whole, 1e-12, wanted))


class _Walk:
    """The greedy choice: where a slot costs least first, priced anew as less and less is missing."""

    def __init__(self, detail: _Detail, missing: list[int], prices: Rows, whole: Rows, limits: Limits | None) -> None:
        self.detail = detail
        self.limits = limits
        self._missing = missing
        self._prices = prices
        self._whole = whole
        self._unit: list[float] = []
        self._banned = bytearray(len(detail.rows))
        """Workloads that would pass a limit."""
        self._on_node: list[list[tuple[int, Piece]]] = [[] for _ in detail.free]
        for gang, pieces in enumerate(detail.pieces):
            for piece in pieces:
                self._on_node[piece[0]].append((gang, piece))
        self._keys: list[float] = []
        """Per node: what a slot costs there at least."""
        self._heap: list[tuple[float, int]] = []

    def choices(self) -> Iterator[int]:
        """Victims one after another, gone when they are named, for as long as there are any: those who would do after
        those who do."""
        detail = self.detail
        left = self._left()
        self._price(left)
        yield from self._for_quota()
        while True:
            for gang in self._for_slots():
                yield gang
                if self._left() * REPRICE < left:
                    left = self._left()
                    self._price(left)
                    break
            else:
                break
        # Counting slots sees no more to gain; several groups that are in each other's way may need more room yet.
        for gang in sorted(range(len(self._unit)), key=lambda g: (self._unit[g], -g)):
            if not detail.gone[gang] and not self._banned[gang] and self._take([gang]):
                detail.remove(gang)
                yield gang

    def instead_of(self, gang: int) -> list[int]:
        """Who would be chosen in the place of one that is gone."""
        detail = self.detail
        detail.restore(gang)
        self._banned[gang] = 1
        before = bytes(detail.gone)
        if not detail.enough():
            next((other for other in self.choices() if detail.enough()), None)
        found = [other for other, gone in enumerate(detail.gone) if gone > before[other]]
        for other in found:
            detail.restore(other)
        self._banned[gang] = 0
        detail.remove(gang)
        return found

    def _left(self) -> float:
        """Largest part of anything that is still missing, but at least one slot."""
        detail = self.detail
        short = (max(need - have, 1) for need, have in zip(detail.needs, detail.have, strict=True))
        return max((now / first for now, first in zip(short, self._missing, strict=True) if first), default=1.0)

    def _for_quota(self) -> Iterator[int]:
        detail = self.detail
        for at, amounts in enumerate(detail.quota_amounts, detail.asks):
            for gang in sorted(range(len(amounts)), key=lambda g: (self._unit[g], -g)):
                if detail.have[at] >= detail.needs[at]:
                    break
                if amounts[gang] and not detail.gone[gang] and not self._banned[gang] and self._take([gang]):
                    detail.remove(gang)
                    yield gang

    def _price(self, left: float) -> None:
        """Work out in vectors what a slot costs on every node: the best among the first one, two, … of its pieces."""
        detail = self.detail
        unit = unit_prices(self._prices, self._whole / left, self._missing)
        self._unit = unit.tolist()
        gone = np.frombuffer(detail.gone, bool)[detail.gang_of]
        live = np.flatnonzero(~gone & ~np.frombuffer(self._banned, bool)[detail.gang_of])
        live = live[np.lexsort((unit[detail.gang_of[live]], detail.node_of[live]))]
        node = detail.node_of[live]
        starts = np.flatnonzero(np.diff(node, prepend=-1))
        keys = np.full(len(detail.free), np.inf)
        if len(live):
            keys[node[starts]] = np.minimum.reduceat(self._ratios(live, node, starts, unit, gone), starts)
            # Shares of one device do not simply add up: such a node is worked out when its turn comes.
            keys[detail.node_of[detail.shares > 0]] = 0.0
        self._keys = keys.tolist()
        order = np.argsort(keys, kind="stable")[: np.count_nonzero(keys < np.inf)]
        self._heap = list(zip(keys[order].tolist(), order.tolist(), strict=True))

    def _ratios(self, live: Rows, node: Rows, starts: Rows, unit: Rows, gone: Rows) -> Rows:
        """Per live piece, sorted by node and unit price: price over gain when it and those before it are gone."""
        detail = self.detail
        size = len(detail.free)

        def running(values: Rows) -> Rows:
            sums = np.cumsum(values)
            return np.asarray(sums - np.repeat(sums[starts] - values[starts], np.diff(starts, append=len(values))))

        now = [
            free + np.bincount(detail.node_of, weights=amount * gone, minlength=size)
            for free, amount in zip(detail.base.T, detail.amounts.T, strict=True)
        ]
        then = [free[node] + running(amount[live]) for free, amount in zip(now, detail.amounts.T, strict=True)]
        gain: Rows = np.zeros(len(live))
        for ask, wants in enumerate(detail.wants):
            if self._missing[ask]:
                before = reduce(np.minimum, (now[dimension] // want for dimension, want in wants))
                after = reduce(np.minimum, (then[dimension] // want for dimension, want in wants))
                gained = (after - before[node]) * detail.usable[node, ask]
                gain += np.minimum(gained, max(detail.needs[ask] - detail.have[ask], 1)) / self._missing[ask]
        price = running(unit[detail.gang_of[live]] * detail.parts[live])
        return np.asarray(np.divide(price, gain, out=np.full(len(live), np.inf), where=gain > 0))

    def _for_slots(self) -> Iterator[int]:
        detail, heap, keys = self.detail, self._heap, self._keys
        one_slot = max(self._missing)
        while heap:
            key, node = heappop(heap)
            if key != keys[node]:
                continue
            ratio, gangs = self._best_on(node)
            keys[node] = ratio
            if not gangs:
                continue
            if (heap and ratio > heap[0][0]) or not self._take(gangs):
                heappush(heap, (ratio, node))
                continue
            for gang in gangs:
                detail.remove(gang)
                for at, _, _, _, part in detail.pieces[gang]:
                    if keys[at] < np.inf:
                        keys[at] = max(keys[at] - self._unit[gang] * part * one_slot, 0.0)
                        heappush(heap, (keys[at], at))
            yield from gangs

    def _best_on(self, node: int) -> tuple[float, list[int]]:
        """(lowest price of a slot there, who has to go for it); infinite and nobody when there is nothing to gain."""
        detail, unit = self.detail, self._unit
        free, now = detail.free[node].copy(), detail.slots[node]
        live = [(unit[g], g, piece) for g, piece in self._on_node[node] if not detail.gone[g] and not self._banned[g]]
        live.sort()
        price, best, enough = 0.0, np.inf, 0
        for count, (each, _, piece) in enumerate(live, 1):
            price += each * piece[4]
            detail.shift(free, piece, 1)
            gain = 0.0
            for ask, slots in enumerate(detail.slots_with(node, free)):
                if slots > now[ask] and self._missing[ask]:
                    lacking = max(detail.needs[ask] - detail.have[ask], 1)
                    gain += min(slots - now[ask], lacking) / self._missing[ask]
            if gain and price < best * gain:
                best, enough = price / gain, count
        return best, list(dict.fromkeys(gang for _, gang, _ in live[:enough]))

    def _take(self, gangs: list[int]) -> bool:
        """Count all of them in, or none."""
        if self.limits is None:
            return True
        rows = self.detail.rows
        for count, gang in enumerate(gangs):
            if not self.limits.take(rows[gang]):
                self._banned[gang] = 1
                for other in gangs[:count]:
                    self.limits.untake(rows[other])
                return False
        return True


class _Peel:
    """Greed in reverse: everybody is gone, and who costs most for what is lost without them is spared first."""

    def __init__(self, detail: _Detail, missing: list[int]) -> None:
        self._detail = detail
        self._missing = missing
        self._on_node: list[dict[int, list[Piece]]] = [{} for _ in detail.free]
        for gang, pieces in enumerate(detail.pieces):
            for piece in pieces:
                self._on_node[piece[0]].setdefault(gang, []).append(piece)
        self._lost: list[dict[int, float]] = [{} for _ in detail.rows]
        """Workload -> node -> what would be lost there if it stayed, in wholes of what is missing."""
        self._total = [self._quota_lost(gang) for gang in range(len(detail.rows))]
        for node in range(len(detail.free)):
            self._note_losses(node)
        self._keys = [self._key(gang) for gang in range(len(detail.rows))]

    def _quota_lost(self, gang: int) -> float:
        asks = self._detail.asks
        given = zip(self._detail.quota_amounts, self._missing[asks:], strict=True)
        return float(sum(amounts[gang] / missing for amounts, missing in given if missing))

    def _note_losses(self, node: int) -> None:
        """Work out anew what those that are gone from the node leave there."""
        detail = self._detail
        now = detail.slots[node]
        for gang, pieces in self._on_node[node].items():
            if detail.gone[gang]:
                free = detail.free[node].copy()
                for piece in pieces:
                    detail.shift(free, piece, -1)
                then = detail.slots_with(node, free)
                lost = sum(
                    (b - a) / missing for a, b, missing in zip(then, now, self._missing, strict=False) if missing
                )
                self._total[gang] += lost - self._lost[gang].get(node, 0.0)
                self._lost[gang][node] = lost

    def _key(self, gang: int) -> float:
        """Minus the cost for a whole; smaller goes first."""
        return -(self._detail.cost[gang] + 1) / max(self._total[gang], 1e-12)

    def run(self) -> None:
        """Spare until nobody can be whose turn has come."""
        detail, keys = self._detail, self._keys
        heap = [(key, gang) for gang, key in enumerate(keys)]
        heapify(heap)
        while heap:
            key, gang = heappop(heap)
            if key != keys[gang] or not detail.gone[gang] or not detail.spare(gang):
                continue
            neighbours: set[int] = set()
            for node in self._lost[gang]:
                self._note_losses(node)
                neighbours.update(self._on_node[node])
            for other in neighbours:
                if detail.gone[other] and keys[other] != (new := self._key(other)):
                    keys[other] = new
                    heappush(heap, (new, other))


class _Core:
    """The best choice among a few workloads, the rest being given: branch and bound, depth first."""

    def __init__(self, selection: _Selection, detail: _Detail, free: list[int], *, known: bool) -> None:
        """`known`: those gone already are a set that is enough."""
        self._selection = selection
        self._limits = selection.limits
        self._detail = detail
        self._order = sorted(free, key=lambda g: (-detail.level[g], -detail.cost[g], g))
        """The first to be spared first, so that the first set found is a reprieve of all."""
        self._best = [gang for gang in self._order if detail.gone[gang]]
        self._worth: tuple[float, int, list[int]] = self._worth_of(self._best) if known else (np.inf, 0, [])
        self._least = detail.copy()
        """With those gone that are decided to go."""
        self._most = detail.copy()
        """With the undecided gone too."""
        for gang in self._order:
            if detail.gone[gang]:
                self._least.restore(gang)
            else:
                self._most.remove(gang)
        self._options = [self._options_for(need) for need in range(len(detail.needs))]
        """Per need: (place in the order, most it can contribute, cost), the most for its cost first."""
        self._work = 0

    def _worth_of(self, gangs: list[int]) -> tuple[int, int, list[int]]:
        """What is minimised: cost, number, age."""
        detail = self._detail
        return sum(detail.cost[g] for g in gangs), len(gangs), sorted(-detail.rows[g] for g in gangs)

    def _options_for(self, need: int) -> list[tuple[int, int, int]]:
        least, most = self._least, self._most
        found = []
        for place, gang in enumerate(self._order):
            if need < least.asks:
                nodes = {piece[0] for piece in least.pieces[gang]}
                gives = sum(most.slots[node][need] - least.slots[node][need] for node in nodes)
            else:
                gives = least.quota_amounts[need - least.asks][gang]
            if gives:
                found.append((place, gives, least.cost[gang]))
        return sorted(found, key=lambda option: (option[2] / option[1], option[0]))

    def run(self, work: int) -> bool:
        """Leave the best set gone, as far as that much work leads; False when none was found."""
        self._work = work
        detail = self._detail
        before = self._best
        if self._limits is not None:
            for gang in before:
                self._limits.untake(detail.rows[gang])
        self._search(0, 0, [])
        for gang in before:
            detail.restore(gang)
        for gang in self._best:
            detail.remove(gang)
            if self._limits is not None:
                self._limits.take(detail.rows[gang])
        return self._worth[0] < np.inf

    def _search(self, place: int, cost: int, gone: list[int]) -> None:
        """Decide from `place` on, those in `gone` going already."""
        if self._selection.enough(self._least):
            worth = self._worth_of(gone)
            if worth < self._worth:
                self._best, self._worth = gone, worth
            return
        if place == len(self._order) or self._work <= 0 or self._hopeless(place, cost, len(gone)):
            return
        gang = self._order[place]
        self._work -= 2 * len(self._least.pieces[gang]) + STEP_WORK
        if self._selection.fits is not None and self._least.enough():
            self._work -= ASKING_WORK
        self._most.restore(gang)
        if self._most.enough():
            self._search(place + 1, cost, gone)
        self._most.remove(gang)
        row = self._detail.rows[gang]
        if self._limits is None or self._limits.take(row):
            self._least.remove(gang)
            self._search(place + 1, cost + self._least.cost[gang], [*gone, gang])
            self._least.restore(gang)
            if self._limits is not None:
                self._limits.untake(row)

    def _hopeless(self, place: int, cost: int, count: int) -> bool:
        """Whether even parts of workloads, the most for their cost first, would make it no better than the best."""
        more_cost = more = 0
        for options, have, need in zip(self._options, self._least.have, self._least.needs, strict=True):
            lacking = need - have
            if lacking <= 0:
                continue
            price = largest = 0
            rest = lacking
            for at, gives, each in options:
                if at >= place:
                    largest = max(largest, gives)
                    if rest > 0:
                        price += -(-each * min(rest, gives) // gives)
                        rest -= gives
            if rest > 0:
                return True
            more_cost = max(more_cost, price)
            more = max(more, -(-lacking // largest))
        return (cost + more_cost, count + more) > self._worth[:2]
