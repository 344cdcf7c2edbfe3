"""The checks of commands. A command becomes events, or an error says why not.

Nothing changes here: `engine.control` emits the events that a check returns. `engine.admission` holds the checks of
submissions, definitions and changes to submitted work; the others are here.

A pool that is resized on request orders missing nodes and gives back surplus ones. The size also becomes the pool's
target from now on, so that the autoscaler does not undo it. The autoscaler keeps at least that many nodes, and gives
back empty ones above it. It may still order for waiting work, for the pool's headroom, and for a forecast. Preemption
on request follows the scheduler's own rules.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from engine.admission import definitions as sc
from engine.admission.definitions import (
    MAX_TARGETS,
    Checked,
    approve_spending,
    ids_of,
    nodes_of,
    pool_row,
    remove_budgets,
    rows_of,
    set_budgets,
    set_price,
)
from engine.admission.fleet_routing import FLEET_TAG
from engine.admission.submissions import check_submission
from engine.admission.workload_changes import move_to_queue, resize
from engine.capacity.index import OPEN
from engine.controllers import interrupt
from engine.elasticity.order_limits import OrderLimits
from engine.elasticity.scale_up import staying, zone_in_turn
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.columns import view
from engine.model.errors import RefusedError, SpecError, listed
from engine.model.quantities import shortlist
from engine.model.spec_parts import MAX_POOL_NODES
from engine.model.specs import NodeState, ScalingSpec, WorkloadState, check_id, check_quantity, check_taints
from engine.placement.gang_placement import after_loss
from engine.scheduling.migration import migrate
from engine.state.cell_state import BOUND, State
from engine.state.external_cell import answer, settle
from engine.state.machines import OrderState
from engine.state.workloads import MOVED_TAG, NONE


def check(state: State, command: cmd.AnyCommand, now_ms: int) -> Checked:
    """Raises SpecError, NotFoundError or RefusedError; then nothing of the command is applied. `now_ms`: cell time,
    which goes on without events."""
    timed = _TIMED.get(type(command))
    return _CHECKS[type(command)](state, command) if timed is None else timed(state, command, now_ms)


# -- actions on workloads ---------------------------------------------------------------------------------------------

_LIVE = tuple(state for state in WorkloadState if not state.terminal)
_WAITING = (WorkloadState.QUEUED, WorkloadState.WAITING)
_STOPPED = (WorkloadState.SUSPENDED,)
_ON_HOLD = (WorkloadState.HELD,)
_ON_NODES = (WorkloadState.PLACED, WorkloadState.RUNNING)


def _cancel(state: State, command: cmd.Cancel) -> Checked:
    rows = _allow(state, command.ids, _LIVE, "cancel")
    return [ev.Cancelled(row) for row in rows], ids_of(state, rows)


def _recall(state: State, command: cmd.Recall) -> Checked:
    w, rows = state.workloads, []
    check_id(command.to, "to")
    for row in rows_of(state, command.ids):
        tags = w.tags_of(w.tags[row])
        if tags.get(FLEET_TAG) != command.fleet:
            raise RefusedError(f"cannot recall: '{w.ids[row]}' is not of fleet {command.fleet}", "Cancel it")
        if w.state[row] == WorkloadState.CANCELLED and tags.get(MOVED_TAG) == command.to:
            continue  # asked again
        if w.state[row] not in _WAITING or w.attempts[row] or w.started[row] != NONE:
            told = WorkloadState(w.state[row]).label
            raise RefusedError(f"cannot recall: '{w.ids[row]}' is {told}, or has begun before", "It stays here")
        rows.append(row)
    events: list[ev.AnyEvent] = []
    for row in rows:
        events += (ev.Cancelled(row), ev.Recalled(row, command.to))
    return events, ids_of(state, rows)


def _hold(state: State, command: cmd.Hold) -> Checked:
    rows = _allow(state, command.ids, _WAITING, "hold")
    return [ev.Held(row) for row in rows], ids_of(state, rows)


def _release(state: State, command: cmd.Release) -> Checked:
    rows = _allow(state, command.ids, _ON_HOLD, "release")
    return [ev.Released(row) for row in rows], ids_of(state, rows)


def _requeue(state: State, command: cmd.Requeue) -> Checked:
    rows = _allow(state, command.ids, _ON_NODES, "requeue")
    cause = ev.EVICTION_CAUSES.index("asked")
    return [ev.Evicted(row, cause, saved=state.workloads.saves_when_asked(row)) for row in rows], ids_of(state, rows)


def _suspend(state: State, command: cmd.Suspend) -> Checked:
    rows = _allow(state, command.ids, (*_ON_NODES, *_WAITING), "suspend")
    return [ev.Suspended(row, saved=state.workloads.saves_when_asked(row)) for row in rows], ids_of(state, rows)


def _resume(state: State, command: cmd.Resume) -> Checked:
    rows = _allow(state, command.ids, _STOPPED, "resume")
    return [ev.Resumed(row) for row in rows], ids_of(state, rows)


def _set_priority(state: State, command: cmd.SetPriority) -> Checked:
    w = state.workloads
    to = w.priority_of.get(command.priority_class)
    if to is None:
        known = ", ".join(sorted(w.priority_of)) or "none is defined"
        raise SpecError("priority_class", f"there is no '{command.priority_class[:64]}'", f"Use one of: {known}")
    rows = _allow(state, command.ids, _LIVE, "change the priority")
    return [ev.PrioritySet(row, to) for row in rows if w.priority[row] != to], ids_of(state, rows)


def _allow(state: State, ids: tuple[str, ...], allowed: tuple[WorkloadState, ...], what: str) -> list[int]:
    """The rows, when all of them are in an allowed state."""
    rows = rows_of(state, ids)
    w = state.workloads
    wrong = [f"'{w.ids[r]}' is {WorkloadState(w.state[r]).label}" for r in rows if w.state[r] not in allowed]
    if wrong:
        states = " or ".join(s.label for s in allowed)
        raise RefusedError(
            f"cannot {what}: {shortlist(wrong)}", f"Only {states} workloads can be; leave out the others"
        )
    return rows


GAVE_WAY = ev.EVICTION_CAUSES.index("gave way")


def _preempt(state: State, command: cmd.Preempt, now_ms: int) -> Checked:
    """Preempt by the scheduler's own rules. Raises RefusedError naming the first that may not be, and why."""
    rows = rows_of(state, command.ids)
    w = state.workloads
    for row in rows:
        why = _not_preemptible(state, row, now_ms)
        if why:
            raise RefusedError(f"cannot preempt: '{w.ids[row]}' {why}", "Leave it out; requeue stops it anyway")
    for queue, count in Counter(w.queue[row] for row in rows).items():
        left = state.queues.disruptions_left(queue, now_ms)
        if count > left:
            raise RefusedError(
                f"cannot preempt: queue '{state.queues.specs[queue].name}' may be disrupted {left} more times for now",
                f"Preempt at most {left} of it, or requeue them anyway",
            )
    wake_at_ms = now_ms + cmd.YIELD_MS
    return [ev.Evicted(row, GAVE_WAY, saved=w.saves_when_asked(row), wake_at_ms=wake_at_ms) for row in rows], ids_of(
        state, rows
    )


def _not_preemptible(state: State, row: int, now_ms: int) -> str:
    """The reason why the scheduler would never preempt it now; empty when it might."""
    w = state.workloads
    if w.state[row] not in BOUND:
        return f"is {WorkloadState(w.state[row]).label}"
    if w.preempting[row] != NONE:
        return f"makes room for '{w.ids[w.preempting[row]]}' already"
    if not w.priority_classes[w.priority[row]].preemptible:
        return f"has priority class '{w.priority_classes[w.priority[row]].name}', which is not preemptible"
    least_ms = state.queues.specs[w.queue[row]].min_runtime_ms
    ran_ms = now_ms - w.started[row]
    if ran_ms < least_ms:
        return f"has run for {ran_ms} of the {least_ms} ms of its queue's minimum run time"
    return ""


# -- actions on nodes -------------------------------------------------------------------------------------------------


def _not_booting(state: State, rows: list[int], what: str) -> None:
    """Refuse where a node has not come yet: its provider's word of it would be lost."""
    booting = [state.capacity.node_ids[row] for row in rows if state.capacity.state[row] == NodeState.BOOTING]
    if booting:
        raise RefusedError(f"cannot {what}: {listed(booting)} is booting", "Wait until it is ready, or remove it")


def _not_leaving(state: State, rows: list[int], what: str) -> None:
    """Refuse where a provider has given notice: it drains until it is gone, whatever is said of it."""
    leaving = [state.capacity.node_ids[row] for row in rows if state.capacity.doomed[row] >= 0]
    if leaving:
        raise RefusedError(f"cannot {what}: the provider reclaims {listed(leaving)}", "Leave those out")


def _cordon(state: State, command: cmd.Cordon) -> Checked:
    rows = nodes_of(state, command.ids)
    _not_booting(state, rows, "cordon")
    _not_leaving(state, [row for row in rows if state.capacity.state[row] == NodeState.DRAINING], "cordon")
    return _turn(state, rows, NodeState.CORDONED, (NodeState.CORDONED, NodeState.DOWN)), _node_ids(state, rows)


def _uncordon(state: State, command: cmd.Uncordon) -> Checked:
    rows = nodes_of(state, command.ids)
    _not_booting(state, rows, "uncordon")
    down = [state.capacity.node_ids[row] for row in rows if state.capacity.state[row] == NodeState.DOWN]
    if down:
        raise RefusedError(f"cannot uncordon: {listed(down)} is down", "It returns when its executor reports it")
    silent = [state.capacity.node_ids[row] for row in rows if state.capacity.state[row] == NodeState.SUSPECT]
    if silent:
        raise RefusedError(f"cannot uncordon: {listed(silent)} is suspect", "It returns when its agent reports")
    _not_leaving(state, rows, "uncordon")
    return _turn(state, rows, NodeState.READY, (NodeState.READY,)), _node_ids(state, rows)


def _drain(state: State, command: cmd.Drain) -> Checked:
    rows = nodes_of(state, command.ids)
    _not_booting(state, rows, "drain")
    events = _turn(state, rows, NodeState.DRAINING, (NodeState.DRAINING, NodeState.DOWN))
    events += _stop_work_on(state, rows, "drain", saves=True)
    return events, _node_ids(state, rows) + _stopped_ids(state, events)


def _remove_nodes(state: State, command: cmd.RemoveNodes) -> Checked:
    rows = nodes_of(state, command.ids)
    for reservation in state.bookings.reservations:
        kept = set(reservation.spec.nodes).intersection(command.ids)
        if kept:
            raise RefusedError(
                f"node '{min(kept)}' is reserved for reservation '{reservation.spec.name}'",
                "Remove that reservation first, or keep the node",
            )
    events = _stop_work_on(state, rows, "node removed", saves=True)
    events.append(ev.NodesChanged(array("i", rows).tobytes(), NodeState.REMOVED))
    return events, _node_ids(state, rows) + _stopped_ids(state, events)


def _fail_nodes(state: State, command: cmd.FailNodes) -> Checked:
    rows = nodes_of(state, command.ids)
    events = after_loss(state, rows)
    return events, _node_ids(state, rows) + _stopped_ids(state, events)


def _restore_nodes(state: State, command: cmd.RestoreNodes) -> Checked:
    rows = nodes_of(state, command.ids)
    _not_booting(state, rows, "restore")
    unless = (NodeState.READY, NodeState.CORDONED, NodeState.DRAINING, NodeState.SUSPECT)
    return _turn(state, rows, NodeState.READY, unless), _node_ids(state, rows)


def _watch_nodes(state: State, command: cmd.WatchNodes) -> Checked:
    rows = nodes_of(state, command.ids)
    new = [row for row in rows if not state.failures.is_watched(row)]
    events: list[ev.AnyEvent] = [ev.Watched(array("i", new).tobytes())] if new else []
    booting = [row for row in rows if state.capacity.state[row] == NodeState.BOOTING]
    return events + _turn(state, booting, NodeState.READY, ()), _node_ids(state, rows)


def _unwatch_nodes(state: State, command: cmd.UnwatchNodes) -> Checked:
    rows = [row for row in nodes_of(state, command.ids) if state.failures.is_watched(row)]
    events: list[ev.AnyEvent] = [ev.Watched(array("i", rows).tobytes(), watching=False)] if rows else []
    before = {row: state.failures.before[row] for row in rows if state.capacity.state[row] == NodeState.SUSPECT}
    for was in sorted(set(before.values())):
        events += _turn(state, [row for row in before if before[row] == was], NodeState(was), ())
    return events, _node_ids(state, rows)


def _stop_work_on(state: State, nodes: list[int], cause: str, *, saves: bool) -> list[ev.AnyEvent]:
    """Evict all work with a task there. `saves`: there is time for a checkpoint where one can be written."""
    rows = sorted({state.allocations.workload[a] for node in nodes for a in state.allocations.on_node(node)})
    w, code = state.workloads, ev.EVICTION_CAUSES.index(cause)
    return [ev.Evicted(row, code, saved=saves and w.saves_when_asked(row)) for row in rows]


def _stopped_ids(state: State, events: list[ev.AnyEvent]) -> tuple[str, ...]:
    return ids_of(state, [event.row for event in events if isinstance(event, ev.Evicted)])


def _turn(state: State, rows: list[int], to: NodeState, unless: tuple[NodeState, ...]) -> list[ev.AnyEvent]:
    """Nodes already in one of the states `unless` are left as they are."""
    turning = [row for row in rows if state.capacity.state[row] not in unless]
    return [ev.NodesChanged(array("i", turning).tobytes(), to)] if turning else []


def _node_ids(state: State, rows: list[int]) -> tuple[str, ...]:
    return tuple(state.capacity.node_ids[row] for row in rows)


def _power_up(state: State, command: cmd.PowerUp) -> Checked:
    """Power up at once, in a model of a cell that Slurm powers."""
    rows = nodes_of(state, command.ids)
    return _turn(state, rows, NodeState.READY, (NodeState.READY, NodeState.CORDONED)), _node_ids(state, rows)


def _power_down(state: State, command: cmd.PowerDown) -> Checked:
    """Power down at once when nothing runs there any more, in a model of a cell that Slurm powers."""
    rows = nodes_of(state, command.ids)
    busy = [
        state.capacity.node_ids[row] for row in rows if next(iter(state.allocations.on_node(row)), None) is not None
    ]
    if busy:
        raise RefusedError(f"cannot power down: work runs on {listed(busy)}", "Drain those first")
    return _turn(state, rows, NodeState.CORDONED, (NodeState.CORDONED,)), _node_ids(state, rows)


def _taint(state: State, command: cmd.TaintNodes) -> Checked:
    """A model of the cell keeps the taints that were seen: nothing comes of it there."""
    check_taints((command.taint,), "taint")
    return [], _node_ids(state, nodes_of(state, command.ids))


def _set_job_priority(state: State, command: cmd.SetJobPriority) -> Checked:
    """A model of Slurm has no such number for a single job: nothing comes of it there."""
    rows = _allow(state, command.ids, (*_WAITING, *_ON_HOLD), "set the priority")
    return [], ids_of(state, rows)


def _set_qos(state: State, command: cmd.SetQos) -> Checked:
    """Set the QOS. In a model of a cell that Slurm decides on, a QOS is the first part of a priority class: the class
    of that QOS and the same tier, where one is known.
    """
    rows = _allow(state, command.ids, _LIVE, "change the QOS")
    w = state.workloads
    events: list[ev.AnyEvent] = []
    for row in rows:
        tier = w.priority_classes[w.priority[row]].name.rpartition(".tier-")[2]
        to = w.priority_of.get(f"{command.qos}.tier-{tier.removeprefix('tier-')}", w.priority[row])
        if to != w.priority[row]:
            events.append(ev.PrioritySet(row, to))
    return events, ids_of(state, rows)


# -- sizes of pools ---------------------------------------------------------------------------------------------------

IDLE = (NodeState.DRAINING, NodeState.CORDONED, NodeState.READY)
"""States of empty nodes that may go, in the order in which they do."""


def _scale_pool(state: State, command: cmd.ScalePool, now_ms: int) -> Checked:
    """Raises NotFoundError for the pool; RefusedError for one that is not autoscaled, for a number beyond its
    least and most, for nodes that cannot be ordered, and where fewer nodes are empty than would have to go."""
    pool = pool_row(state, command.pool)
    scaling = state.capacity.pools[pool].scaling
    check_quantity(command.nodes, "nodes", most=MAX_POOL_NODES)
    _check_bounds(command, scaling)
    later = [entry for entry in state.sizing.targets.get(pool, ()) if entry[0] > now_ms]
    if len(later) >= MAX_TARGETS:
        raise RefusedError(f"pool '{command.pool}' has {len(later):,} targets set", "Remove some: set-targets")
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
        raise RefusedError(f"pool '{command.pool}' is not autoscaled", "First set a maximum: set-scaling --most")
    if not scaling.least <= command.nodes <= scaling.most:
        raise RefusedError(
            f"{command.nodes:,} nodes are outside the limits of pool '{command.pool}', "
            f"{scaling.least:,} and {scaling.most:,}",
            "Give a number between them, or change them first: set-scaling",
        )


def _ordered(state: State, command: cmd.ScalePool, pool: int, lack: int, now_ms: int) -> Iterator[ev.AnyEvent]:
    """Orders for as many nodes as may be requested now; the autoscaler requests the others as soon as it may."""
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
    """The obstacle in words: "'n1', 'n2' have work"."""
    c = state.capacity
    rows = np.flatnonzero((view(c.pool) == pool) & (view(c.state) != NodeState.REMOVED)).tolist()
    busy = [c.node_ids[node] for node in rows if any(True for _ in state.allocations.on_node(node))]
    return f"{listed(busy)} {'has' if len(busy) == 1 else 'have'} work" if busy else "the others cannot be reached"


# -- advance reservations ---------------------------------------------------------------------------------------------


def _reserve(state: State, command: cmd.Reserve, now_ms: int) -> Checked:
    spec = command.reservation
    check_id(spec.name, "reservation.name")
    if any(r.spec.name == spec.name for r in state.bookings.reservations):
        raise SpecError("reservation.name", f"'{spec.name}' already exists", "Give it another name")
    if spec.end_ms <= spec.start_ms:
        raise SpecError("reservation.end_ms", "is not after its start", "Give an end after the start")
    if spec.end_ms <= now_ms:
        raise SpecError("reservation.end_ms", "lies in the past", f"Give a time after {now_ms} ms")
    for name in spec.queues:
        state.queues.row(name)
    for row in nodes_of(state, spec.nodes):
        if state.capacity.booking[row] != OPEN:
            raise RefusedError(
                f"node '{state.capacity.node_ids[row]}' is reserved for other work until it ends",
                "Choose other nodes, or remove that reservation first",
            )
    return [ev.Reserved(spec)], (spec.name,)


def _unreserve(state: State, command: cmd.Unreserve) -> Checked:
    names = tuple(dict.fromkeys(command.names))
    for name in names:
        state.bookings.reservation(name)
    return [ev.Unreserved(name) for name in names], names


_CHECKS: dict[type[Any], Callable[[State, Any], Checked]] = {
    cmd.Define: sc.define,
    cmd.AddPools: sc.add_pools,
    cmd.AddNodes: sc.add_nodes,
    cmd.AddQueues: sc.add_queues,
    cmd.AddPriorityClasses: sc.add_priority_classes,
    cmd.Cancel: _cancel,
    cmd.Recall: _recall,
    cmd.Hold: _hold,
    cmd.Release: _release,
    cmd.Requeue: _requeue,
    cmd.Cordon: _cordon,
    cmd.Uncordon: _uncordon,
    cmd.Drain: _drain,
    cmd.SetPolicy: sc.set_policy,
    cmd.RemovePriorityClasses: sc.remove_priority_classes,
    cmd.HoldQueues: sc.hold_queues,
    cmd.DrainQueues: sc.drain_queues,
    cmd.OpenQueues: sc.open_queues,
    cmd.Suspend: _suspend,
    cmd.Resume: _resume,
    cmd.Unreserve: _unreserve,
    cmd.SetPrice: set_price,
    cmd.SetBudgets: set_budgets,
    cmd.RemoveBudgets: remove_budgets,
    cmd.ApproveSpending: approve_spending,
    cmd.SetSettings: sc.set_settings,
    cmd.SetScaling: sc.set_scaling,
    cmd.SetTargets: sc.set_targets,
    cmd.SetAutoscaling: sc.set_autoscaling,
    cmd.RemoveNodes: _remove_nodes,
    cmd.FailNodes: _fail_nodes,
    cmd.RestoreNodes: _restore_nodes,
    cmd.WatchNodes: _watch_nodes,
    cmd.UnwatchNodes: _unwatch_nodes,
    cmd.SetPriority: _set_priority,
    cmd.MoveToQueue: move_to_queue,
    cmd.OrderQueues: sc.order_queues,
    cmd.Migrate: migrate,
    cmd.Resize: resize,
    cmd.SettleIntents: settle,
    cmd.AnswerIntent: answer,
    cmd.SetQos: _set_qos,
    cmd.SetJobPriority: _set_job_priority,
    cmd.TaintNodes: _taint,
    cmd.PowerUp: _power_up,
    cmd.PowerDown: _power_down,
}
_TIMED: dict[type[Any], Callable[[State, Any, int], Checked]] = {
    cmd.ChangeQueue: sc.change_queue,
    cmd.Submit: check_submission,
    cmd.Reserve: _reserve,
    cmd.Interrupt: interrupt,
    cmd.Preempt: _preempt,
    cmd.ScalePool: _scale_pool,
}
"""Those for which it matters what time it is."""
