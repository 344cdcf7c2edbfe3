"""Victim candidates: the cell as a preemptor's request sees it, and the greedy choice among those who could give way.

`VictimField` has all candidates in columns, with the capacity that each could give, and where. `Detail` has a few nodes
and workloads in plain lists, to decide one at a time. The greedy choice runs from both ends: taking the cheapest, and
sparing the most expensive for the room they give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import reduce
from heapq import heapify, heappop, heappush
from operator import floordiv, ge
from typing import NamedTuple, Protocol

import numpy as np

from engine.capacity import mig
from engine.capacity.devices import device_numbers, instances
from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Shape
from engine.model.columns import Rows, view
from engine.state.allocations import DEVICE, Allocations, RequestColumns

Ask = tuple[Shape, int]
"""(shape, tasks wanted)"""
Fits = Callable[[list[int]], bool]
"""True if the request really fits once these workload rows are gone."""


class VictimCandidates(NamedTuple):
    """The possible victims, as columns over all workload rows."""

    level: Rows
    """int16: the rank in which workloads are sacrificed, lowest first; -1 for those that are not to be touched."""
    cost: Rows
    """int64, at least 0."""


class Quota(NamedTuple):
    """Quota that the victims have to give back besides making room."""

    amount: Rows
    """int64: what each workload row would give back."""
    short: int
    """The missing amount."""


class VictimLimits(Protocol):
    """Bounds on the victims as a set. Every subset of an admissible set must be admissible."""

    def take(self, row: int) -> bool:
        """Count the workload in; False, and nothing changed, when that would pass a bound."""

    def untake(self, row: int) -> None:
        """Count it out again."""


class DeviceUnit(NamedTuple):
    """The unit of devices: whole ones, shares of one size, or MIG instances of one profile."""

    milli: int
    kinds: tuple[int, ...]
    """Kind of instances: index into `mig.KINDS` by pool, -1 where there are none; empty otherwise."""

    def on_device(self, number: int, pool: int) -> int:
        """The number of units on a device, given as a number of `engine.capacity.mig`."""
        if self.kinds:
            return mig.instances_of(number, self.kinds[pool])
        return max(number, 0) // self.milli

    def on_devices(self, numbers: Rows, pools: Rows) -> Rows:
        if self.kinds:
            return mig.instances_in(numbers, np.array(self.kinds)[pools])
        return np.asarray(np.maximum(numbers, 0) // self.milli)

    @classmethod
    def of(cls, shape: Shape) -> DeviceUnit:
        return cls(shape.gpu_milli if shape.kinds else shape.share or DEVICE, shape.kinds)


class VictimField:
    """The cell as the request sees it, in columns: what is free on each node with nobody and with all the opened gone.

    A piece is an allocation row of somebody opened. A dimension is a resource, or devices counted in units.
    """

    def __init__(
        self,
        capacity: Capacity,
        requests: RequestColumns,
        asks: Sequence[Ask],
        quotas: Sequence[Quota],
        candidates: VictimCandidates,
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
        self.units: dict[int, DeviceUnit] = {}
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
        """The total that all opened candidates would give back."""
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
        """Every device with nobody gone, as a number of `engine.capacity.mig`."""
        self._numbers = self.numbers.copy()
        """Device numbers with all opened candidates gone."""

    def _add_dimensions(self, shapes: list[Shape]) -> None:
        c = self.capacity
        for name, column in (("cpu", c.free_cpu), ("memory", c.free_memory), ("disk", c.free_disk)):
            wanted = [getattr(shape, name) for shape in shapes]
            if any(wanted):
                self._add_dimension(view(column), wanted, view(getattr(self.requests, name)))
        for unit in sorted({DeviceUnit.of(shape) for shape in shapes if shape.gpu_milli}):
            wanted = [(shape.gpus or 1) * (shape.gpu_milli > 0 and unit == DeviceUnit.of(shape)) for shape in shapes]
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

    def _free_units(self, unit: DeviceUnit) -> Rows:
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
        """True if it would do, by the counts, if all opened were gone."""
        slots = zip(self.slots, self.counts, strict=True)
        return all(int(each.sum()) >= count for each, count in slots) and self.quotas_met()

    def quotas_met(self) -> bool:
        """True if all opened would give back the requested quota."""
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
        """The content of the pieces, by piece and dimension; parts of devices apart."""
        columns = [table[self.entry[pieces]] * self.count[pieces] for table in self.tables]
        for dimension, each in self.per_device.items():
            columns[dimension] = columns[dimension] * each[self.node[pieces]]
        return np.stack(columns, axis=1).astype(np.int64)

    def _open_shares(self, before: int, devices: Rows) -> None:
        """The pieces from `before` on that hold a part of one device."""
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


class Detail:
    """Some nodes and some possible victims in plain lists, to decide one at a time. All counts are exact.

    Nodes and workloads go by their place in these lists.
    """

    def __init__(self, field: VictimField, rows: Rows, pieces: Rows, parts: Rows) -> None:
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
        """True by node and request if it may be used."""
        self.base = np.stack([free[nodes] for free in field.base], axis=1)
        """Free capacity with nobody gone, by node and dimension."""
        self.free: list[list[int]] = self.base.tolist()
        self.slots: list[tuple[int, ...]] = list(
            zip(*(slots[nodes].tolist() for slots in field.base_slots), strict=True)
        )
        self.wants = field.wants
        self._only_wants = [want for _, want in field.wants[0]] if self.asks == 1 else None
        """True with one request: every dimension is wanted, and every node usable."""
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
        """True if nothing is missing, by the counts."""
        return all(map(ge, self.have, self.needs))

    def victims(self) -> list[int]:
        """Rows of the workloads that are gone, in ascending order."""
        return [row for row, gone in zip(self.rows, self.gone, strict=True) if gone]

    def costliest(self) -> list[int]:
        """The chosen victims, the costliest first, the oldest of equals."""
        gone = [gang for gang, gone in enumerate(self.gone) if gone]
        return sorted(gone, key=lambda gang: (-self.cost[gang], gang))

    def copy(self) -> Detail:
        """The same nodes and workloads, to be decided independently."""
        other = copy(self)
        other.have = self.have.copy()
        other.gone = self.gone.copy()
        other.free = [free.copy() for free in self.free]
        other.slots = self.slots.copy()
        return other


REPRICE = 16
"""Prices are worked out anew when what is missing has shrunk that much."""


def unit_prices(prices: Rows, whole: Rows, missing: list[int]) -> Rows:
    """Price of contributing all that is missing; to contribute more is worth no more."""
    wanted = max(sum(each > 0 for each in missing), 1)
    return np.asarray(prices / np.clip(whole, 1e-12, wanted))


class GreedyWalk:
    """The greedy choice: where a slot costs least first, priced anew as less and less is missing."""

    def __init__(
        self, detail: Detail, missing: list[int], prices: Rows, whole: Rows, limits: VictimLimits | None
    ) -> None:
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
        """The candidates that would be chosen in the place of one that is gone."""
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


class ReverseGreedy:
    """Greed in reverse: everybody is gone, and who costs most for what is lost without them is spared first."""

    def __init__(self, detail: Detail, missing: list[int]) -> None:
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
