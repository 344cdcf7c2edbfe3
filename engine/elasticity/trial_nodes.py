"""Trial placement for scale-up: the tasks that wait for nodes, and new nodes of growing pools on which they are placed
on trial.

Quota is charged tentatively in the scheduler's order, so work that waits for quota is not among the tasks. Work on
nodes that their provider takes back, and missing replicas of a running service, count as waiting. Trial nodes are
filled by the code that places work in the cell. Where several pools would do, the choice goes by priority, then by idle
capacity, then by price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Shape
from engine.elasticity.order_limits import OrderLimits
from engine.model.columns import view
from engine.model.spec_parts import Expander
from engine.model.specs import NodeState, PoolSpec
from engine.placement.gang_placement import Claim, place, unplace, variants
from engine.placement.node_choice import template
from engine.scheduling.candidate_order import CandidateOrder
from engine.state.cell_state import State
from engine.state.pending_work import STOPPED, Key, PendingGroup
from engine.state.queue_tree import Charge
from engine.state.workloads import NONE

MILLION = 1_000_000


class GrowthOption(NamedTuple):
    """New nodes of one pool, and the tasks that would go there."""

    pool: int
    priority: int
    nodes: int
    tasks: int
    waste_ppm: int
    """Part of the nodes that the tasks leave unused, the mean over the resources that they have."""
    microusd_hour: int
    """Cost of all the nodes together."""


_KEYS: dict[Expander, Callable[[GrowthOption], int]] = {
    "priority": lambda option: -option.priority,
    "least-waste": lambda option: option.waste_ppm,
    "price": lambda option: option.microusd_hour * MILLION // max(option.tasks, 1),
}


def choose(options: Sequence[GrowthOption], chain: Sequence[Expander]) -> int:
    """Index of the best: what needs no new node first, then as the chain says; of equal ones that of the oldest pool,
    and of one pool the first given. There must be one."""
    left = [at for at, option in enumerate(options) if not option.nodes] or list(range(len(options)))
    for name in chain:
        key = _KEYS[name]
        best = min(key(options[at]) for at in left)
        left = [at for at in left if key(options[at]) == best]
    return min(left, key=lambda at: (options[at].pool, at))


def waste_ppm(used: Sequence[int], size: Sequence[int], nodes: int) -> int:
    """Unused part of so many nodes of that size, in parts per million: the mean over the resources that they have.
    `used` may exceed them where tasks went to older nodes as well."""
    parts = [
        max(0, MILLION - quantity * MILLION // (have * nodes))
        for quantity, have in zip(used, size, strict=True)
        if have and nodes
    ]
    return sum(parts) // len(parts) if parts else 0


MAX_LOOKED_AT = 20_000
"""Workloads looked at in one scan: what is behind them is not served before them anyway."""
Way = tuple[tuple[Shape, ...], tuple[int, ...], Charge]
"""(shapes, tasks of each group, what they cost the queue)"""


class PlacementNeed:
    """Tasks to be placed: those of one gang, or all single ones of a kind."""

    __slots__ = ("counts", "gang", "rows", "shapes", "young")

    def __init__(self, shapes: tuple[Shape, ...], counts: list[int], rows: list[int], gang: int, young: bool) -> None:
        self.shapes = shapes
        self.counts = counts
        """Tasks of each group that have no place yet."""
        self.rows = rows
        self.gang = gang
        """Row of the workload; NONE for single tasks."""
        self.young = young
        """It has not waited long enough for nodes to be ordered."""


class Needs:
    """Finds them, in one state at one time."""

    def __init__(self, state: State, now_ms: int, limits: OrderLimits) -> None:
        self._state = state
        self._now_ms = now_ms
        self._limits = limits

    def blocks(self) -> list[list[PlacementNeed]]:
        """First what runs on nodes that are taken back and what services lack, then what waits by band of priority, the
        highest first: gangs in the scheduler's order, then single tasks by kind, what is hardest to place first."""
        state = self._state
        with state.queues.trial():
            return [self._of_doomed() + self._of_services(), *self._of_waiting()]

    def _of_waiting(self) -> list[list[PlacementNeed]]:
        gangs: dict[int, list[PlacementNeed]] = {}
        singles: dict[int, dict[tuple[tuple[Shape, ...], bool], PlacementNeed]] = {}
        w = self._state.workloads
        young_since = self._now_ms - self._state.settings.autoscaling.scale_up_after_ms
        freely: dict[Key, PendingGroup] = {}
        others: dict[Key, PendingGroup] = {}
        for key, group in self._state.pending.groups.items():
            if key[3] == STOPPED:
                continue
            (freely if self._only_room_counts(key) else others)[key] = group

        def add(band: int, shapes: tuple[Shape, ...], rows: list[int], young: bool) -> None:
            if rows:
                need = singles[band].setdefault((shapes, young), PlacementNeed(shapes, [0], [], NONE, young))
                need.counts[0] += len(rows)
                need.rows += rows

        for key in others | freely:
            gangs.setdefault(w.priority_band[key[0]], [])
            singles.setdefault(w.priority_band[key[0]], {})
        for key, group in freely.items():
            rows = group.rows[group.front : group.front + MAX_LOOKED_AT]
            since = view(w.since)[rows]
            (shapes,) = variants(self._state, rows[0])
            for young in (False, True):
                mine = np.flatnonzero((since > young_since) == young)
                add(w.priority_band[key[0]], shapes, rows if len(mine) == len(rows) else [rows[i] for i in mine], young)
        for row, (shapes, counts, _) in self._waiting(others):
            band = w.priority_band[w.priority[row]]
            young = w.since[row] > young_since
            if w.class_at(row).single:
                add(band, shapes, [row], young)
            else:
                gangs[band].append(PlacementNeed(shapes, list(counts), [row], row, young))
        found = []
        for band in sorted(gangs, reverse=True):
            ordered = sorted(
                singles[band].values(),
                key=lambda n: (n.young, -n.shapes[0].gpu_milli, -n.shapes[0].cpu, -n.shapes[0].memory, n.rows[0]),
            )
            found.append(gangs[band] + ordered)
        return found

    def _only_room_counts(self, key: Key) -> bool:
        """True if these are single tasks, all alike, that may start wherever there is room: their order makes no
        difference to the nodes they need.
        """
        state = self._state
        _, queue, kind, _ = key
        if kind < 0 or not state.pending.by_class or state.queues.limited[queue] or state.bookings.reservations:
            return False
        wanted = state.workloads.classes[kind]
        if not wanted.single or wanted.array or wanted.reservation:
            return False
        return state.queues.is_open(queue) and not state.bookings.clearings and not state.queues.flavored(queue)

    def _waiting(self, groups: dict[Key, PendingGroup]) -> Iterator[tuple[int, Way]]:
        """Waiting work that may start as far as queues and quota go, in the scheduler's order, its quota charged."""
        state = self._state
        w, queues, now_ms = state.workloads, state.queues, self._now_ms
        waiting = {key: group.rows[group.front :] for key, group in groups.items()}
        at: dict[Key, int] = dict.fromkeys(waiting, 0)
        lineup = CandidateOrder(state, [(key, rows[0]) for key, rows in waiting.items()])
        ways: dict[tuple[int, int], list[Way]] = {}
        looked_at = 0
        begun: dict[int, int] = {}
        """By array, members that would start."""
        while (first := lineup.first()) is not None and looked_at < MAX_LOOKED_AT:
            looked_at += 1
            (_, _, _, row), key = first
            queue, kind = w.queue[row], w.cls[row]
            way = None
            if self._may_start(row, begun):
                left = ways.get((queue, kind))
                if left is None:
                    left = ways[queue, kind] = list(self._ways(row))
                while left and queues.lack(queue, left[0][2], now_ms) is not None:
                    left.pop(0)
                way = left[0] if left else None
            if way is None:
                lineup.drop()
                continue
            queues.charge(queue, way[2], now_ms)
            if w.array[row] != NONE:
                begun[w.array[row]] = begun.get(w.array[row], 0) + 1
            at[key] += 1
            rows = waiting[key]
            lineup.started(rows[at[key]] if at[key] < len(rows) else None)
            yield row, way

    def _may_start(self, row: int, begun: dict[int, int]) -> bool:
        """True if its queue is open, its array is below its limit, and no work is being stopped for it."""
        state = self._state
        w = state.workloads
        if not state.queues.is_open(w.queue[row]) or w.class_at(row).reservation:
            return False
        member_of = w.array[row]
        limit = w.array_limits[member_of] if member_of != NONE else 0
        if limit and w.array_running[member_of] + begun.get(member_of, 0) >= limit:
            return False
        return not state.bookings.clearings or state.bookings.clearing_for(row) is None

    def _ways(self, row: int) -> Iterator[Way]:
        """The ways it may be laid on pools. Where a tree has quotas by pool, those first whose pools can grow."""
        state = self._state
        counts = state.workloads.class_at(row).least
        ways = [(shapes, counts, state.charge_if(row, shapes, counts)) for shapes in variants(state, row)]
        if len(ways) > 1:
            ways.sort(key=lambda way: not all(self._limits.room(shape.home).now for shape in way[0]))
        return iter(ways)

    def _of_doomed(self) -> list[PlacementNeed]:
        """Tasks on nodes that are about to be taken back."""
        state = self._state
        if not state.doomed:
            return []
        c, a, w = state.capacity, state.allocations, state.workloads
        nodes = np.flatnonzero((view(c.doomed) >= 0) & (view(c.state) != NodeState.REMOVED)).tolist()
        lost: dict[int, list[int]] = {}
        for node in nodes:
            for i in a.on_node(node):
                row = a.workload[i]
                lost.setdefault(row, [0] * len(w.class_at(row).counts))[a.group[i]] += a.count[i]
        return self._as_needs(sorted(lost.items()))

    def _of_services(self) -> list[PlacementNeed]:
        """Replicas that running services lack."""
        found: dict[int, list[int]] = {}
        for row, group, missing in missing_replicas(self._state):
            found.setdefault(row, [0] * len(self._state.workloads.class_at(row).counts))[group] += missing
        return self._as_needs(sorted(found.items()), alone=True)

    def _as_needs(self, lost: list[tuple[int, list[int]]], *, alone: bool = False) -> list[PlacementNeed]:
        """`alone`: each of the tasks is of use by itself."""
        w = self._state.workloads
        gangs, singles = [], []
        for row, counts in lost:
            shapes = w.class_at(row).shapes
            if alone or w.class_at(row).single:
                singles += [
                    PlacementNeed((shape,), [count], [row], NONE, False)
                    for shape, count in zip(shapes, counts, strict=True)
                    if count
                ]
            else:
                gangs.append(PlacementNeed(shapes, counts, [row], row, False))
        return gangs + singles


class NewNodes:
    """Nodes of one pool in one zone that are ordered, or might be."""

    def __init__(self, cell: Capacity, pool: int, zone: str) -> None:
        self.pool = pool
        self.zone = zone
        self.spec: PoolSpec = cell.pools[pool]
        self.capacity = empty_like(cell)
        self.used: dict[int, None] = {}
        """Rows of nodes that tasks were placed on for good, in that order."""

    def provide(self, nodes: int) -> None:
        """Have so many that are not used for good."""
        self._add(nodes + len(self.used) - len(self.capacity.node_ids))

    def _add(self, nodes: int) -> None:
        if nodes > 0:
            there = len(self.capacity.node_ids)
            ids = [f"new-{number}" for number in range(there, there + nodes)]
            self.capacity.add_alike(template(self.spec, self.zone), ids)

    def fill(self, shape: Shape, count: int, most: int) -> list[Claim]:
        """Place as many single tasks as go on nodes, at most so many of which are not used for good."""
        claims = place(self.capacity, (shape,), (0,), (count,)) or []
        left = count - sum(claim[2] for claim in claims)
        allowed = most + len(self.used) - len(self.capacity.node_ids)
        if left and allowed > 0:
            # Where nodes are filled up first, no more are made than are needed.
            self._add(min(allowed, -(-left // max(shape.most_on(self.spec), 1))))
            claims += place(self.capacity, (shape,), (0,), (left,)) or []
        return claims

    def fresh(self, claims: Sequence[Claim]) -> list[int]:
        """Nodes among them that were unused so far, in the order in which they are filled."""
        return [node for node in dict.fromkeys(claim[1] for claim in claims) if node not in self.used]

    def keep(self, nodes: Sequence[int]) -> None:
        self.used.update(dict.fromkeys(nodes))

    def release(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self.used.pop(node, None)


class PlacementTrial:
    """Tasks placed on new nodes, on trial."""

    def __init__(self, on: NewNodes, spare: int = 0) -> None:
        """`spare`: how many of the nodes need not be ordered."""
        self.on = on
        self.spare = spare
        self.placed: list[tuple[PlacementNeed, tuple[Shape, ...], list[Claim]]] = []
        self.nodes: list[int] = []
        """Rows of the nodes that it takes."""

    def note(self, need: PlacementNeed, shapes: tuple[Shape, ...], claims: list[Claim]) -> None:
        self.placed.append((need, shapes, claims))

    def option(self) -> GrowthOption:
        spec = self.on.spec
        used = [0, 0, 0, 0]
        tasks = 0
        for _, shapes, claims in self.placed:
            for group, _, count, _ in claims:
                shape = shapes[group]
                tasks += count
                for i, quantity in enumerate((shape.cpu, shape.memory, shape.gpu_milli, shape.disk)):
                    used[i] += quantity * count
        waste = waste_ppm(used, spec.offered.vector(), len(self.nodes))
        nodes = max(len(self.nodes) - self.spare, 0)
        priority = spec.scaling.priority if spec.scaling is not None else 0
        return GrowthOption(self.on.pool, priority, nodes, tasks, waste, nodes * spec.price_microusd_hour)

    def undo(self) -> None:
        for _, shapes, claims in reversed(self.placed):
            unplace(self.on.capacity, shapes, claims)
        self.on.release(self.nodes)

    def confirm(self, most: int) -> None:
        """Keep it as far as so many new nodes go. What is placed there is needed no more."""
        kept = set(self.nodes[:most]) | self.on.used.keys()
        for need, shapes, claims in self.placed:
            mine = [claim for claim in claims if claim[1] in kept]
            if len(mine) < len(claims):
                unplace(self.on.capacity, shapes, [claim for claim in claims if claim[1] not in kept])
            for group, _, count, _ in mine:
                need.counts[group] -= count
        self.on.keep(self.nodes[:most])


def empty_like(cell: Capacity) -> Capacity:
    """The cell's pools without nodes."""
    capacity = Capacity()
    for pool in cell.pools:
        capacity.add_pool(pool)
    capacity.name_labels(cell.named_labels)
    return capacity


def missing_replicas(state: State) -> list[tuple[int, int, int]]:
    """(workload row, group, tasks) of replicas that running services want, their quota allows, and find no
    room."""
    found = []
    w = state.workloads
    for row in sorted(state.short & state.replicas.running):
        missing = state.replicas.wanted[row] - w.tasks[row]
        charge = state.charge_if(row, w.class_at(row).shapes, (1,))
        if missing > 0 and state.queues.lack(w.queue[row], charge, state.now_ms) is None:
            found.append((row, 0, missing))
    return found
