"""Capacity ahead of demand: the demand on each growing pool, and the pool's size by the time a node ordered now is
ready.

Demand is in nodes: those that running work fills and waiting work would fill, with each kind of task packed beside its
like. A scan records it when it exceeds any earlier value of the same hour. The forecast of an hour uses the hours that
are over.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.columns import view
from engine.model.specs import HOUR_MS, PoolSpec
from engine.placement.node_choice import suits
from engine.state.cell_state import State
from engine.state.demand import Forecaster, SeasonalBaseline
from engine.state.pending_work import STOPPED
from engine.state.queue_tree import Charge
from engine.state.workloads import NONE

MILLION = 1_000_000


class DemandLot(NamedTuple):
    """Like workloads that wait, as many as their queue's quota allows."""

    shapes: tuple[Shape, ...]
    tasks: tuple[int, ...]
    """Tasks of each shape, over all of them together."""
    pools: dict[int, int]
    """Growing pools that could hold each of them whole -> millionths of a node that all of them would take there."""


class Foresight:
    """The wanted sizes of growing pools. It caches the figures of an hour, all of which can be worked out again."""

    def __init__(self, state: State, forecaster: Forecaster | None = None) -> None:
        self._state = state
        self._forecaster: Forecaster = SeasonalBaseline() if forecaster is None else forecaster
        self._said: dict[tuple[int, int, int, int], int] = {}
        """(pool, first hour that is not known, lead, permille) -> nodes."""

    def wanted(self, now_ms: int) -> dict[int, int]:
        """Pool row -> nodes that the pool should have, ready, booting or on order, whatever waits now: the fewest it
        may have, what people have set, and what is foretold; for now and up to when a node ordered next is ready."""
        settings = self._state.settings.autoscaling
        permille = settings.predict_permille
        found = {}
        for pool, spec in enumerate(self._state.capacity.pools):
            if spec.scaling is not None:
                # What is not ordered now is ordered at the next scan at the earliest.
                ready_ms = now_ms + settings.scan_every_ms + spec.scaling.boot_ms[1]
                nodes = max(spec.scaling.least, self._state.sizing.target(pool, now_ms, ready_ms))
                if permille:
                    hours = {now_ms // HOUR_MS, ready_ms // HOUR_MS}
                    nodes = max(nodes, *(self._foretold(pool, now_ms, hour, permille) for hour in sorted(hours)))
                found[pool] = min(nodes, spec.scaling.most)
        return found

    def _foretold(self, pool: int, now_ms: int, hour: int, permille: int) -> int:
        past, following = self._state.sizing.past(pool, now_ms)
        key = (pool, following, hour - following + 1, permille)
        if key not in self._said:
            self._said = {
                known: nodes for known, nodes in self._said.items() if known[0] != pool or known[1] == following
            }
            self._said[key] = int(np.ceil(self._forecaster.quantiles(past, key[2], (permille,))[0]))
        return self._said[key]


def noted(state: State, now_ms: int) -> list[ev.AnyEvent]:
    """Pools of which more is asked than before in this hour."""
    asked = asked_nodes(state, now_ms)
    sizing, hour = state.sizing, now_ms // HOUR_MS
    events: list[ev.AnyEvent] = []
    for pool, spec in enumerate(state.capacity.pools):
        if spec.scaling is None:
            continue
        known = sizing.demand[pool][-1] if sizing.last_hour.get(pool, -1) == hour else -1
        if asked[pool] > known:
            events.append(ev.DemandNoted(pool, hour, asked[pool]))
    return events


def asked_nodes(state: State, now_ms: int) -> list[int]:
    """By pool: nodes that what runs fills and what waits would."""
    asked = in_use(state)
    for lot in waiting(state, now_ms):
        pool = first_choice(state, lot)
        asked[pool] += lot.pools[pool]
    return [whole_nodes(share) for share in asked]


def in_use(state: State) -> list[int]:
    """By pool, in millionths of a node: what runs, each kind of task beside its like, and no more than the nodes that
    have work on them."""
    c, a, w = state.capacity, state.allocations, state.workloads
    pools = len(c.pools)
    rows = np.flatnonzero(view(a.workload) != NONE)
    if not len(rows):
        return [0] * pools
    node = view(a.node)[rows]
    pool, group = view(c.pool)[node].astype(np.int64), view(a.group)[rows].astype(np.int64)
    groups = int(group.max()) + 1
    kind = (view(w.cls)[view(a.workload)[rows]] * groups + group) * pools + pool
    tasks = np.bincount(kind, weights=view(a.count)[rows]).astype(np.int64)
    kinds = np.flatnonzero(tasks)
    found = [0] * pools
    for key, count in zip(kinds.tolist(), tasks[kinds].tolist(), strict=True):
        of, on = divmod(key, pools)
        shape = w.classes[of // groups].shapes[of % groups]
        found[on] += _share(shape, count, c.pools[on])
    busy = np.zeros(len(c.node_ids), bool)
    busy[node] = True
    occupied = np.bincount(view(c.pool)[busy], minlength=pools).tolist()
    return [min(share, nodes * MILLION) for share, nodes in zip(found, occupied, strict=True)]


def waiting(state: State, now_ms: int) -> list[DemandLot]:
    """The waiting work that could use growing pools, lot by lot in the order of priority; of each as much as quota
    allows beside the lots before it. A lot larger than a pool may become is not counted there.
    """
    w, queues = state.workloads, state.queues
    growing = [pool for pool, spec in enumerate(state.capacity.pools) if spec.scaling is not None]
    groups = state.pending.groups
    found: list[DemandLot] = []
    if not growing or not groups:
        return found
    with queues.trial():
        for key in sorted(groups, key=lambda key: (-w.priority_value[key[0]], key)):
            queue, group = key[1], groups[key]
            if key[3] == STOPPED or not queues.is_open(queue):
                continue
            rows = (
                group.rows[group.front :] if key[2] == 0 and not state.pending.by_class else [group.rows[group.front]]
            )
            classes: dict[int, int] = {}
            for row in rows:
                classes[w.cls[row]] = classes.get(w.cls[row], 0) + 1
            for cls, count in classes.items():
                lot = _lot(state, growing, queue, cls, len(group) if len(rows) == 1 else count, now_ms)
                if lot is not None:
                    found.append(lot)
    return found


def _lot(state: State, growing: list[int], queue: int, cls: int, count: int, now_ms: int) -> DemandLot | None:
    """The first of `count` workloads of the class that quota allows, which is charged with them."""
    workload_class = state.workloads.classes[cls]
    shapes, least = workload_class.shapes, workload_class.least
    named = state.queues.flavors_of(queue) if state.queues.flavored(queue) else ()
    pools = state.capacity.pools
    fit = []
    for pool in growing:
        spec = pools[pool]
        if all(pool in shape.pool_set and suits(spec, shape) for shape in shapes):
            one = _shares(shapes, least, spec)
            if one <= spec.scaling.most * MILLION and (not named or spec.name in named):
                fit.append(pool)
    if not fit:
        return None
    queues = state.queues
    request = workload_class.request_of(least)
    charge: Charge = (
        queues.charge_of([(pools[fit[0]].name, request)]) if queues.flavored(queue) else queues.total_charge(request)
    )
    for slot, quantity in charge:
        count = min(count, queues.available(queue, slot, now_ms) // quantity)
    if count <= 0:
        return None
    queues.charge(queue, tuple((slot, quantity * count) for slot, quantity in charge), now_ms, workloads=count)
    tasks = tuple(each * count for each in least)
    return DemandLot(shapes, tasks, {pool: _shares(shapes, tasks, pools[pool]) for pool in fit})


def _share(shape: Shape, tasks: int, pool: PoolSpec) -> int:
    """Millionths of a node of the pool that so many tasks of the shape fill."""
    return tasks * MILLION // max(shape.most_on(pool), 1)


def _shares(shapes: tuple[Shape, ...], tasks: tuple[int, ...], pool: PoolSpec) -> int:
    return sum(_share(shape, count, pool) for shape, count in zip(shapes, tasks, strict=True))


def whole_nodes(share: int) -> int:
    """That many millionths of a node, rounded up to nodes."""
    return -(-share // MILLION)


def first_choice(state: State, lot: DemandLot) -> int:
    """The pool that the lot's demand is counted to: of the highest priority, then the cheapest, then the oldest."""
    pools = state.capacity.pools
    return min(lot.pools, key=lambda pool: (-pools[pool].scaling.priority, pools[pool].price_microusd_hour, pool))
