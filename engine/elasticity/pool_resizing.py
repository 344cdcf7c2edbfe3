"""Resizing of a pool on request: missing nodes are ordered, surplus ones are given back.

The size also becomes the pool's target from now on, so that the autoscaler does not undo it. The autoscaler keeps at
least that many nodes, and gives back empty ones above it. It may still order for waiting work, for the pool's headroom,
and for a forecast.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from engine.admission.definitions import MAX_TARGETS, Checked, listed, pool_row
from engine.capacity.index import OPEN
from engine.elasticity.order_limits import OrderLimits
from engine.elasticity.scale_up import staying, zone_in_turn
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.columns import view
from engine.model.errors import RefusedError
from engine.model.spec_parts import MAX_POOL_NODES
from engine.model.specs import NodeState, ScalingSpec, check_quantity
from engine.state.cell_state import State
from engine.state.machines import OrderState
from engine.state.workloads import NONE

IDLE = (NodeState.DRAINING, NodeState.CORDONED, NodeState.READY)
"""States of empty nodes that may go, in the order in which they do."""


def scale_pool(state: State, command: cmd.ScalePool, now_ms: int) -> Checked:
    """Raises NotFoundError for the pool; RefusedError for one that does not grow by itself, for a number beyond its
    least and most, for nodes that cannot be ordered, and where fewer nodes are empty than would have to go."""
    pool = pool_row(state, command.pool)
    scaling = state.capacity.pools[pool].scaling
    check_quantity(command.nodes, "nodes", most=MAX_POOL_NODES)
    _check_bounds(command, scaling)
    later = [entry for entry in state.sizing.targets.get(pool, ()) if entry[0] > now_ms]
    if len(later) >= MAX_TARGETS:
        raise RefusedError(f"pool '{command.pool}' has {len(later):,} targets set", "Take some out: set-targets")
    events: list[ev.AnyEvent] = []
    targets = ((now_ms, command.nodes), *later)
    if list(targets) != state.sizing.targets.get(pool, []):
        events.append(ev.TargetsSet(pool, targets))
    have = staying(state, pool) + state.orders.due(pool)
    if have > command.nodes:
        events += _given_back(state, command, pool, have - command.nodes, now_ms)
    elif have < command.nodes:
        events += _ordered(state, command, pool, command.nodes - have, now_ms)
    return events, (command.pool,)


def _check_bounds(command: cmd.ScalePool, scaling: ScalingSpec | None) -> None:
    if scaling is None:
        raise RefusedError(
            f"pool '{command.pool}' does not grow by itself", "Say how far it shall first: set-scaling --most"
        )
    if not scaling.least <= command.nodes <= scaling.most:
        raise RefusedError(
            f"{command.nodes:,} nodes are not between the least and the most of pool '{command.pool}', "
            f"{scaling.least:,} and {scaling.most:,}",
            "Give a number between them, or change them first: set-scaling",
        )


def _ordered(state: State, command: cmd.ScalePool, pool: int, lack: int, now_ms: int) -> Iterator[ev.AnyEvent]:
    """As many as may be asked for now; the autoscaler asks for the others as soon as it may."""
    room = OrderLimits(state, now_ms).room(pool)
    nodes = min(lack, room.in_batch)
    settings = state.settings.autoscaling
    if nodes < lack and not settings.enabled:
        raise RefusedError(
            f"of {lack:,} nodes that pool '{command.pool}' lacks {nodes:,} may be ordered now: it {room.why}",
            "Ask for fewer, or let the autoscaler order the others: set-autoscaling --enabled true",
        )
    if nodes:
        yield ev.Ordered(pool, zone_in_turn(state, pool), nodes, now_ms + settings.order_timeout_ms, NONE)


def _given_back(state: State, command: cmd.ScalePool, pool: int, surplus: int, now_ms: int) -> list[ev.AnyEvent]:
    """Ends of orders, newest first; then nodes that boot; then empty ones. An order that is too large is made anew with
    what is still wanted of it. What is ordered or boots for a gang stays."""
    events: list[ev.AnyEvent] = []
    orders = state.orders
    for order in reversed(orders.open):
        due = orders.wanted[order] - orders.granted[order]
        if not surplus or orders.pool[order] != pool or orders.workload[order] != NONE:
            continue
        events.append(ev.OrderEnded(order, OrderState.CANCELLED))
        if due > surplus:
            expires_ms = now_ms + state.settings.autoscaling.order_timeout_ms
            events.append(ev.Ordered(pool, orders.zone[order], due - surplus, expires_ms, NONE))
        surplus -= min(due, surplus)
    leaving = _leaving(state, pool)[:surplus]
    if len(leaving) < surplus:
        raise RefusedError(
            f"{surplus:,} nodes of pool '{command.pool}' would have to go, and {len(leaving):,} are empty and kept for "
            f"nobody; {_in_the_way(state, pool)}",
            f"Drain others first, or ask for {command.nodes + surplus - len(leaving):,}",
        )
    if leaving:
        events.append(ev.NodesChanged(array("i", sorted(leaving)).tobytes(), NodeState.REMOVED))
    return events


def _leaving(state: State, pool: int) -> list[int]:
    """Nodes that may go, in the order in which they do: those that boot for nobody in particular, then empty ones; of
    these those out of use first, and the newest first."""
    c = state.capacity
    mine = (view(c.pool) == pool) & (view(c.doomed) < 0) & (view(c.booking) == OPEN)
    booting = np.flatnonzero(mine & (view(c.state) == NodeState.BOOTING))[::-1].tolist()
    found = [node for node in booting if c.order[node] == NONE or state.orders.workload[c.order[node]] == NONE]
    for of in IDLE:
        rows = np.flatnonzero(mine & (view(c.state) == of))[::-1].tolist()
        found += [node for node in rows if not any(True for _ in state.allocations.on_node(node))]
    return found


def _in_the_way(state: State, pool: int) -> str:
    """As in "'n1', 'n2' have work"."""
    c = state.capacity
    rows = np.flatnonzero((view(c.pool) == pool) & (view(c.state) != NodeState.REMOVED)).tolist()
    busy = [c.node_ids[node] for node in rows if any(True for _ in state.allocations.on_node(node))]
    return f"{listed(busy)} {'has' if len(busy) == 1 else 'have'} work" if busy else "the others are out of reach"
