"""What events of pools, nodes and orders change in the state."""

from __future__ import annotations

from array import array
from collections import Counter
from heapq import heappush
from typing import TYPE_CHECKING

import numpy as np

from engine.capacity.index import OPEN
from engine.model import events as ev
from engine.model.specs import NodeSpec, NodeState
from engine.state.machine_orders import OrderState
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.state.cell_state import State


def nodes_added(state: State, event: ev.NodesAdded) -> None:
    state.rules += 1
    for node in event.nodes:
        state.capacity.add_node(node, state.now_ms)
        state.allocations.add_node()
    pay_for(state, event.nodes)


def pay_for(state: State, nodes: tuple[NodeSpec, ...]) -> None:
    for pool, count in Counter(node.pool for node in nodes).items():
        state.ledger.count_nodes(state, state.capacity.pool_of[pool], count)


def nodes_changed(state: State, event: ev.NodesChanged) -> None:
    state.rules += 1
    for node in array("i", event.nodes):
        to = NodeState(event.state)
        # What its provider takes back takes no new work, whoever says that it is ready.
        leaving = to == NodeState.READY and state.capacity.doomed[node] >= 0
        to = NodeState.DRAINING if leaving else to
        state.failures.changed(node, state.capacity.state[node], to, state.now_ms)
        if state.capacity.state[node] == NodeState.BOOTING:
            state.orders.booting[state.capacity.order[node]] -= 1
        if to == NodeState.REMOVED:
            state.ledger.count_nodes(state, state.capacity.pool[node], -1)
        state.capacity.set_state(node, to, state.now_ms)
        if to == NodeState.REMOVED and state.capacity.booking[node] != OPEN:
            # What is gone is kept for nobody, neither for a reservation nor for a preemptor.
            state.book([node], OPEN)


def watched(state: State, event: ev.Watched) -> None:
    state.failures.watch(array("i", event.nodes), event.watching)


def repair_started(state: State, event: ev.RepairStarted) -> None:
    state.failures.repairing(array("i", event.nodes), event.until_ms)


def nodes_noted(state: State, event: ev.NodesNoted) -> None:
    state.failures.note(array("i", event.nodes), event.note)


def ordered(state: State, event: ev.Ordered) -> None:
    state.orders.add(event, state.now_ms)


def nodes_granted(state: State, event: ev.NodesGranted) -> None:
    first = len(state.capacity.node_ids)
    state.rules += 1
    for node in event.nodes:
        state.capacity.add_node(node, state.now_ms, NodeState.BOOTING, event.order)
        state.allocations.add_node()
    pay_for(state, event.nodes)
    more = len(state.capacity.node_ids) - first
    state.orders.granted[event.order] += more
    state.orders.booting[event.order] += more


def order_ended(state: State, event: ev.OrderEnded) -> None:
    state.orders.end(event.order, OrderState(event.how), state.now_ms)


def machines_refused(state: State, event: ev.MachinesRefused) -> None:
    if event.order >= 0:
        state.orders.refused[event.order] += len(event.names)


def targets_set(state: State, event: ev.TargetsSet) -> None:
    state.sizing.set_targets(event.pool, event.targets)


def unneeded(state: State, event: ev.Unneeded) -> None:
    state.sizing.mark(array("i", event.nodes), event.since_ms)


def pool_scaling_set(state: State, event: ev.PoolScalingSet) -> None:
    state.rules += 1
    state.capacity.set_scaling(event.pool, event.scaling)
    state.timers.rebuild(state)


def demand_noted(state: State, event: ev.DemandNoted) -> None:
    state.sizing.note_demand(event.pool, event.hour, event.nodes)


def backed_off(state: State, event: ev.BackedOff) -> None:
    state.orders.back_off(event.pool, event.until_ms)


def interrupted(state: State, event: ev.Interrupted) -> None:
    state.rules += 1
    nodes = array("i", event.nodes)
    for pool in sorted({state.capacity.pool[node] for node in nodes}):
        count_taken(state, pool, sum(state.capacity.pool[n] == pool and state.capacity.doomed[n] < 0 for n in nodes))
    for node in nodes:
        state.capacity.doomed[node] = event.deadline_ms
        heappush(state.doomed, (event.deadline_ms, node))
        if state.capacity.state[node] in (NodeState.READY, NodeState.CORDONED, NodeState.SUSPECT):
            state.failures.changed(node, state.capacity.state[node], NodeState.DRAINING, state.now_ms)
            state.capacity.set_state(node, NodeState.DRAINING, state.now_ms)


def count_taken(state: State, pool: int, more: int) -> None:
    """Measure how often machines of the pool are taken, where it does not say."""
    capacity, spec = state.capacity, state.capacity.pools[pool]
    if not more or not spec.spot or (spec.scaling is not None and spec.scaling.taken_permille_hour):
        return
    there = view(capacity.pool) == pool
    gone = view(capacity.state)[there] == NodeState.REMOVED
    until = np.where(gone, view(capacity.since)[there], state.now_ms)
    state.orders.lived_ms[pool] = int((until - view(capacity.born)[there]).sum())
    state.orders.taken[pool] = state.orders.taken.get(pool, 0) + more
    state.orders.storms[pool] = state.orders.storms.get(pool, 0) + 1
    state.orders.watched_ms[pool] = state.now_ms - int(view(capacity.born)[there].min())
    if any(terms.deadline_ms for terms in state.workloads.terms_specs):
        # How much time a deadline leaves depends on how often machines are taken.
        state.timers.rebuild(state)


def pool_added(state: State, event: ev.PoolAdded) -> None:
    state.rules += 1
    state.capacity.add_pool(event.pool)
    state.ledger.add_pool(state, event.pool)
    state.workloads.compile(state.capacity)
    state.timers.rebuild(state)
