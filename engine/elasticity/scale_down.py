"""Scale-down: the choice of nodes of growing pools that are given back.

A node may go when its most used resource has been used below `scale_down_below_permille` for `scale_down_after_ms`, and
its pool has got no node for `settle_after_add_ms` and expects none. The state keeps since when a node is used so little
(`Unneeded`), so a restart goes on counting. These nodes always stay: the pool's wanted size
(`engine.elasticity.capacity_ahead`), its headroom in empty nodes, as many more as waiting work with quota would take,
nodes kept for a reservation or a preemptor, and nodes that a person has cordoned.

Empty nodes go first, any number at once, the newest first. Then at most `most_at_once` nodes with work go, the least
used first. Every workload on such a node must be movable (`engine.scheduling.migration`), lose at most `most_lost_ms`,
and find a new place whole. The code that places all work finds that place, beside everything that the same plan has
moved before, so no room is counted twice. It never uses an empty node that might go itself. Moved work keeps its queue
and, where a tree has quotas by pool, its pools, so its quota is the same.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import numpy as np

from engine.capacity.index import OPEN
from engine.capacity.task_shapes import Shape
from engine.elasticity.capacity_ahead import waiting, whole_nodes
from engine.model import events as ev
from engine.model.columns import Rows, view
from engine.model.specs import NodeState
from engine.placement.gang_placement import Claim, packed, place, unplace
from engine.scheduling.migration import Movable
from engine.scheduling.preemption import off_nodes
from engine.state.cell_state import State
from engine.state.demand import NEEDED

SCALED_DOWN = ev.EVICTION_CAUSES.index("scaled down")
TRIED_FOR_ONE = 4
"""Nodes with work that are tried at most, for each that may go."""


class TrialMove(NamedTuple):
    """A workload's new place."""

    row: int
    shapes: tuple[Shape, ...]
    claims: list[Claim]


class PoolNodes(NamedTuple):
    """Nodes of growing pools, as columns over all node rows."""

    ready: Rows
    """Ready, kept for nobody."""
    used_permille: Rows
    """Use of the resource that is used most."""
    since: Rows
    """Since when it is used little enough to go; NEEDED."""


def plan(state: State, now_ms: int, wanted: Mapping[int, int]) -> list[ev.AnyEvent]:
    """The events to emit now, in this order. `wanted`: pool row -> nodes that stay, whatever is on them. The state is
    left unchanged.
    """
    settings = state.settings.autoscaling
    if not settings.scale_down_below_permille or not state.capacity.node_ids:
        return []
    field = _field(state)
    low = field.ready & (field.used_permille < settings.scale_down_below_permille)
    events = _marks(state, field, low, now_ms)
    since = np.where(low, np.where(field.since == NEEDED, now_ms, field.since), now_ms + 1)
    ripe = low & (now_ms - since >= settings.scale_down_after_ms)
    if ripe.any():
        pools = view(state.capacity.pool)
        ripe &= ~np.isin(pools, _unsettled(state, now_ms))
    if ripe.any():
        events += _Plan(state, now_ms, wanted, field).run(np.flatnonzero(ripe))
    return events


def _field(state: State) -> PoolNodes:
    c = state.capacity
    scaled = np.array([pool.scaling is not None for pool in c.pools], bool)
    pool = view(c.pool)
    ready = scaled[pool] & (view(c.state) == NodeState.READY) & (view(c.booking) == OPEN)
    facts = c.pool_facts()
    used = np.zeros(len(pool), np.int64)
    for free, each in (
        (view(c.free_cpu), facts.capacity[0]),
        (view(c.free_memory), facts.capacity[1]),
        (view(c.free_disk), facts.capacity[3]),
        (np.bitwise_count(view(c.whole)).astype(np.int64), facts.devices),
    ):
        # Rounded up: what is used at all is not 0.
        np.maximum(used, -((free - each[pool]) * 1000 // np.maximum(each[pool], 1)), out=used)
    return PoolNodes(ready, used, state.sizing.unneeded_since(len(pool)))


def _marks(state: State, field: PoolNodes, low: Rows, now_ms: int) -> list[ev.AnyEvent]:
    """The changes to the record of underused nodes."""
    there = view(state.capacity.state) != NodeState.REMOVED
    fewer = np.flatnonzero(low & (field.since == NEEDED))
    more = np.flatnonzero(~low & there & (field.since != NEEDED))
    events: list[ev.AnyEvent] = []
    for rows, since_ms in ((more, NEEDED), (fewer, now_ms)):
        if len(rows):
            events.append(ev.Unneeded(rows.astype(np.int32).tobytes(), since_ms))
    return events


def _unsettled(state: State, now_ms: int) -> list[int]:
    """Pools that have just grown or are about to."""
    c = state.capacity
    added = np.full(len(c.pools), -1, np.int64)
    np.maximum.at(added, view(c.pool), view(c.born))
    booting = view(c.pool)[view(c.state) == NodeState.BOOTING]
    found = set(np.flatnonzero(added > now_ms - state.settings.autoscaling.settle_after_add_ms).tolist())
    found.update(np.unique(booting).tolist())
    found.update(state.orders.pool[order] for order in state.orders.open)
    return sorted(found)


def _changed(nodes: list[int], to: NodeState) -> ev.NodesChanged:
    return ev.NodesChanged(array("i", nodes).tobytes(), to)


class _Plan:
    """The nodes that go, among those that may, and the destinations of their work."""

    def __init__(self, state: State, now_ms: int, wanted: Mapping[int, int], field: PoolNodes) -> None:
        self._state = state
        self._now_ms = now_ms
        self._field = field
        c = state.capacity
        pools = view(c.pool)
        ready = np.bincount(pools[view(c.state) == NodeState.READY], minlength=len(c.pools))
        self._empty: Rows = field.ready & (field.used_permille == 0)
        empty = np.bincount(pools[self._empty], minlength=len(c.pools))
        self._spare = {pool: int(ready[pool]) - nodes for pool, nodes in wanted.items()}
        """By pool: nodes above what it is to have."""
        self._spare_empty = {
            pool: int(empty[pool]) - spec.scaling.headroom
            for pool, spec in enumerate(c.pools) if spec.scaling is not None
        }  # fmt: skip
        """By pool: empty nodes above its headroom."""
        waits: Counter[int] = Counter()
        for lot in waiting(state, now_ms):
            waits.update(lot.pools)
        for pool, share in waits.items():
            self._spare[pool] -= whole_nodes(share)
            self._spare_empty[pool] -= whole_nodes(share)
        self._moves: list[TrialMove] = []
        self._taken: set[int] = set()
        """Nodes that get work by this plan."""
        self._disrupted: Counter[int] = Counter()
        """Workloads of each queue that are moved."""

    def run(self, ripe: Rows) -> list[ev.AnyEvent]:
        empty = self._empties(np.flatnonzero(self._empty[ripe]), ripe)
        busy = self._busy(ripe[~self._empty[ripe]])
        w = self._state.workloads
        events: list[ev.AnyEvent] = []
        if busy:
            events.append(_changed(busy, NodeState.DRAINING))
            events += [ev.Evicted(m.row, SCALED_DOWN, saved=w.saves_when_asked(m.row)) for m in self._moves]
            events += [ev.Placed(m.row, packed(m.claims, len(m.shapes)), w.flags[m.row]) for m in self._moves]
        if empty or busy:
            events.append(_changed(sorted(empty + busy), NodeState.REMOVED))
        return events

    def _empties(self, at: Rows, ripe: Rows) -> list[int]:
        found = []
        for node in reversed(ripe[at].tolist()):
            pool = self._state.capacity.pool[node]
            if self._spare[pool] > 0 and self._spare_empty[pool] > 0:
                self._spare[pool] -= 1
                self._spare_empty[pool] -= 1
                found.append(node)
        return found

    # -- nodes with work ----------------------------------------------------------------------------------------------

    def _busy(self, ripe: Rows) -> list[int]:
        """The nodes that go; where their work goes is in `_moves` then."""
        most = self._state.settings.autoscaling.most_at_once
        shrinking = [pool for pool in self._spare if self._may_shrink(pool)]
        rows = self._in_turn(ripe[np.isin(view(self._state.capacity.pool)[ripe], shrinking)], most * TRIED_FOR_ONE)
        if not rows:
            return []
        movable = Movable(self._state, self._now_ms)
        found: list[int] = []
        with ExitStack() as tried:
            for node in rows:
                pool = self._state.capacity.pool[node]
                if len(found) == most:
                    break
                if not self._may_shrink(pool) or node in self._taken:
                    continue
                work = self._work(node, movable)
                if not work:
                    continue
                with ExitStack() as trial:
                    if trial.enter_context(self._emptied(node, work)):
                        # Stays so until all others have been tried beside it.
                        tried.push(trial.pop_all())
                        self._spare[pool] -= 1
                        found.append(node)
        return sorted(found)

    def _may_shrink(self, pool: int) -> bool:
        """True if a node may be emptied. Where the headroom is short of empty nodes, it would only have to be ordered
        anew.
        """
        return self._spare[pool] > 0 and self._spare_empty[pool] >= 0

    def _in_turn(self, ripe: Rows, tries: int) -> list[int]:
        """So many of the nodes, the least used first. Where there are more, others begin in the next scan."""
        order = ripe[np.lexsort((-ripe, self._field.used_permille[ripe]))]
        if len(order) > tries > 0:
            scan = self._now_ms // self._state.settings.autoscaling.scan_every_ms
            order = np.roll(order, -(scan * tries) % len(order))
        return [int(node) for node in order[:tries]]

    def _work(self, node: int, movable: Movable) -> list[int]:
        """The workloads on the node, if all of them may be moved; else none."""
        state = self._state
        w, settings = state.workloads, state.settings.autoscaling
        rows = sorted({state.allocations.workload[a] for a in state.allocations.on_node(node)})
        if not all(movable.allowed[row] and movable.lost_ms[row] <= settings.most_lost_ms for row in rows):
            return []
        if {move.row for move in self._moves}.intersection(rows):
            return []
        disrupted = self._disrupted + Counter(w.queue[row] for row in rows)
        left = state.queues.disruptions_left
        return rows if all(count <= left(queue, self._now_ms) for queue, count in disrupted.items()) else []

    @contextmanager
    def _emptied(self, node: int, rows: list[int]) -> Iterator[bool]:
        """Find places for all of this work while the node takes nothing. Yields True if it found them; the work then
        holds them.
        """
        state = self._state
        moves: list[TrialMove] = []
        with off_nodes(state, rows):
            state.capacity.hide(node)
            for row in sorted(rows, key=self._hardness):
                move = self._placed_anew(row)
                if move is None:
                    break
                moves.append(move)
                self._count_in(move, 1)
            fits = len(moves) == len(rows)
            if fits:
                self._moves += moves
                self._disrupted.update(state.workloads.queue[row] for row in rows)
                self._taken.update(to for move in moves for _, to, _, _ in move.claims)
            yield fits
            for move in reversed(moves):
                self._count_in(move, -1)
                unplace(state.capacity, move.shapes, move.claims)
            state.capacity.show(node)

    def _hardness(self, row: int) -> tuple[int, ...]:
        """The hardest to place first: large tasks, then large gangs."""
        workload_class = self._state.workloads.class_at(row)
        cpu, _, gpu_milli, _ = workload_class.request
        return -max(s.gpu_milli for s in workload_class.shapes), -gpu_milli, -cpu, row

    def _placed_anew(self, row: int) -> TrialMove | None:
        """Claims for the tasks it has now."""
        state = self._state
        counts = tuple(state.placed_of(row))
        shapes = self._shapes(row)
        claims = place(state.capacity, shapes, counts)
        if claims is None:
            return None
        if any(self._empty[node] and node not in self._taken for _, node, _, _ in claims):
            unplace(state.capacity, shapes, claims)
            return None
        return TrialMove(row, shapes, claims)

    def _shapes(self, row: int) -> tuple[Shape, ...]:
        """Shapes as it was placed; where its tree has quotas by pool, each group in the pool that it is in."""
        state = self._state
        w, a = state.workloads, state.allocations
        queue, shapes = w.queue[row], w.class_at(row).shapes
        if state.queues.flavored(queue):
            pool = {a.group[i]: state.capacity.pool[a.node[i]] for i in a.of_workload(w.first_allocation[row])}
            shapes = tuple(s.limited((pool[g],), ()) if g in pool else s for g, s in enumerate(shapes))
        profile = state.queues.profile(queue)
        return tuple(shape.scored(profile) for shape in shapes) if profile else shapes

    def _count_in(self, move: TrialMove, sign: int) -> None:
        """Count the tasks in for other work's bonds."""
        self._state.shift_company(move.row, sign, [(node, count) for _, node, count, _ in move.claims])
