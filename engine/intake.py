"""The check at the door: a command becomes events, or an error says why not. Nothing is changed here."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from engine import commands as cmd
from engine import events as ev
from engine.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model import (
    RESOURCES,
    NodeSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
    check_id,
    check_pool,
    check_quantity,
    check_workload,
)
from engine.quota import check_queues
from engine.recent import totals
from engine.shape import Shape, accepts
from engine.state import State

Checked = tuple[list[ev.AnyEvent], tuple[str, ...]]
"""The events, and the ids they change."""


def check(state: State, command: cmd.AnyCommand) -> Checked:
    """Raises SpecError, NotFoundError or RefusedError; then nothing of the command is applied."""
    return _CHECKS[type(command)](state, command)


# -- definitions ----------------------------------------------------------------------------------------------------


def _define(state: State, command: cmd.Define) -> Checked:
    if state.capacity.node_ids or state.queues.specs:
        raise RefusedError(f"cell '{state.cell}' is defined already", "Add to it with add_nodes, add_queues, add_pools")
    cell = command.cell
    check_id(cell.name, "cell.name")
    classes = cell.priority_classes or (PriorityClassSpec(name="normal", value=0),)
    events: list[ev.AnyEvent] = [ev.CellNamed(cell.name)]
    events += _pools_added(state, cell.pools)
    events += _nodes_added(state, cell.nodes, {pool.name for pool in cell.pools})
    events += [ev.QueueAdded(spec) for spec in check_queues(cell.queues, {}, set())]
    events += _priority_classes_added(state, classes)
    return events, (cell.name,)


def _add_pools(state: State, command: cmd.AddPools) -> Checked:
    return _pools_added(state, command.pools), tuple(pool.name for pool in command.pools)


def _pools_added(state: State, pools: tuple[PoolSpec, ...]) -> list[ev.AnyEvent]:
    seen = set(state.capacity.pool_of)
    for i, pool in enumerate(pools):
        check_pool(pool, f"pools[{i}]")
        if pool.name in seen:
            raise SpecError(f"pools[{i}].name", f"pool '{pool.name}' is there already", "Give each pool its own name")
        seen.add(pool.name)
    return [ev.PoolAdded(pool) for pool in pools]


def _add_nodes(state: State, command: cmd.AddNodes) -> Checked:
    return _nodes_added(state, command.nodes, set()), tuple(node.id for node in command.nodes)


def _nodes_added(state: State, nodes: tuple[NodeSpec, ...], new_pools: set[str]) -> list[ev.AnyEvent]:
    known = state.capacity.row_of
    pools = new_pools | set(state.capacity.pool_of)
    seen: set[str] = set()
    for i, node in enumerate(nodes):
        check_id(node.id, f"nodes[{i}].id")
        if node.id in known or node.id in seen:
            raise SpecError(f"nodes[{i}].id", f"node '{node.id}' is there already", "Give each node its own id")
        if node.pool not in pools:
            raise SpecError(
                f"nodes[{i}].pool", f"there is no pool '{node.pool}'", f"Use one of: {', '.join(sorted(pools))}"
            )
        for level in ("zone", "block", "rack"):
            if getattr(node, level):
                check_id(getattr(node, level), f"nodes[{i}].{level}")
        seen.add(node.id)
    return [ev.NodesAdded(nodes)] if nodes else []


def _add_queues(state: State, command: cmd.AddQueues) -> Checked:
    busy = {state.queues.specs[row].name for row in set(state.workloads.queue)}
    ordered = check_queues(command.queues, state.queues.row_of, busy)
    return [ev.QueueAdded(spec) for spec in ordered], tuple(spec.name for spec in command.queues)


def _add_priority_classes(state: State, command: cmd.AddPriorityClasses) -> Checked:
    return (
        _priority_classes_added(state, command.priority_classes),
        tuple(spec.name for spec in command.priority_classes),
    )


def _priority_classes_added(state: State, classes: tuple[PriorityClassSpec, ...]) -> list[ev.AnyEvent]:
    seen = set(state.workloads.priority_of)
    for i, spec in enumerate(classes):
        check_id(spec.name, f"priority_classes[{i}].name")
        check_quantity(spec.value, f"priority_classes[{i}].value", least=-1_000_000_000, most=1_000_000_000)
        if spec.name in seen:
            raise SpecError(f"priority_classes[{i}].name", f"'{spec.name}' is there already", "Give each its own name")
        seen.add(spec.name)
    return [ev.PriorityClassAdded(spec) for spec in classes]


def _set_policy(state: State, command: cmd.SetPolicy) -> Checked:
    return ([ev.PolicySet(command.policy)] if command.policy != state.policy else []), (command.policy,)


# -- submission -----------------------------------------------------------------------------------------------------


def _submit(state: State, command: cmd.Submit) -> Checked:
    seen: set[str] = set()
    sound: set[tuple[tuple[TaskGroup, ...], str]] = set()
    for i, spec in enumerate(command.workloads):
        where = f"workloads[{i}]" if len(command.workloads) > 1 else "workload"
        check_workload(spec, where)
        if spec.id in state.workloads.row_of or spec.id in seen:
            raise SpecError(f"{where}.id", f"workload '{spec.id}' is there already", "Give each workload its own id")
        seen.add(spec.id)
        if spec.priority_class not in state.workloads.priority_of:
            known = ", ".join(sorted(state.workloads.priority_of)) or "none is defined"
            raise SpecError(f"{where}.priority_class", f"there is no '{spec.priority_class}'", f"Use one of: {known}")
        # Equal requests need looking at once only.
        if (spec.groups, spec.queue) not in sound:
            _check_place(state, spec, where)
            sound.add((spec.groups, spec.queue))
    return [ev.Submitted(spec) for spec in command.workloads], tuple(spec.id for spec in command.workloads)


def _check_place(state: State, spec: WorkloadSpec, where: str) -> None:
    """Refuse what could never start: unknown or inner queue, no fitting node, larger than the cell or the quota."""
    try:
        queue = state.queues.leaf(spec.queue)
    except MusterError as error:
        raise SpecError(f"{where}.queue", error.problem, error.remedy) from error
    for i, group in enumerate(spec.groups):
        _check_group(state, group, f"{where}.groups[{i}]")
    total = [0, 0, 0, 0]
    for group in spec.groups:
        for i, quantity in enumerate(group.request.vector()):
            total[i] += quantity * group.count
    there_is, _ = totals(state)
    for i, quantity in enumerate(total):
        if quantity > there_is[i]:
            raise SpecError(
                f"{where}.groups",
                f"ask for {quantity} {RESOURCES[i]} in all, but the whole cell has {there_is[i]}",
                "Ask for fewer or smaller tasks",
            )
    beyond = state.queues.beyond(queue, (total[0], total[1], total[2], total[3]))
    if beyond is not None:
        vertex, i = beyond
        raise SpecError(
            f"{where}.groups",
            f"ask for {total[i]} {RESOURCES[i]} in all, but queue '{state.queues.specs[vertex].name}' has a nominal "
            f"quota of {state.queues.nominal[vertex][i]}",
            "Ask for less, use another queue, or raise the quota",
        )


def _check_group(state: State, group: TaskGroup, where: str) -> None:
    pools = state.capacity.pools
    for name in group.pools:
        if name not in state.capacity.pool_of:
            raise SpecError(f"{where}.pools", f"there is no pool '{name}'", f"Use: {', '.join(p.name for p in pools)}")
    eligible = [i for i, pool in enumerate(pools) if state.capacity.pool_nodes[i] and accepts(group, pool)]
    if not eligible:
        raise SpecError(f"{where}.request", "no node of this cell could ever run one such task", _largest(state, group))
    shape = Shape(group, pools)
    most = sum(shape.most_on(pools[i].capacity) * state.capacity.pool_nodes[i] for i in eligible)
    if group.count > most:
        raise SpecError(
            f"{where}.count",
            f"a gang of {group.count} tasks is larger than the cell, which has room for {most} when empty",
            "Ask for fewer or smaller tasks",
        )


def _largest(state: State, group: TaskGroup) -> str:
    """What the cell's largest nodes offer, for the resources the group asks for."""
    if not state.capacity.node_ids:
        return "The cell has no nodes yet"
    parts = []
    for i, wanted in enumerate(group.request.vector()):
        if wanted:
            best = max(
                p.capacity.vector()[i] for n, p in enumerate(state.capacity.pools) if state.capacity.pool_nodes[n]
            )
            parts.append(f"{RESOURCES[i]} {wanted} asked, {best} on the largest node")
    models = sorted({p.gpu_model for p in state.capacity.pools if p.gpu_model})
    if group.gpu_models:
        parts.append(f"device model {' or '.join(group.gpu_models)} asked, there are {', '.join(models) or 'none'}")
    return "; ".join(parts)


# -- actions on workloads ---------------------------------------------------------------------------------------------


def _rows(state: State, ids: tuple[str, ...]) -> list[int]:
    """Rows of all the ids, each once. Names every unknown id."""
    known = state.workloads.row_of
    unknown = [i for i in ids if i not in known]
    if unknown:
        raise NotFoundError(f"there is no workload {_listed(unknown)}", "List them with: muster get workloads")
    if not ids:
        raise SpecError("ids", "is empty", "Name at least one")
    return [known[i] for i in dict.fromkeys(ids)]


def _listed(ids: list[str]) -> str:
    shown = ", ".join(f"'{i[:64].encode('unicode_escape').decode()}'" for i in ids[:5])
    return shown + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")


def _allow(state: State, ids: tuple[str, ...], allowed: tuple[WorkloadState, ...], what: str) -> list[int]:
    """The rows, when all of them are in an allowed state."""
    rows = _rows(state, ids)
    w = state.workloads
    wrong = [f"'{w.ids[r]}' is {WorkloadState(w.state[r]).label}" for r in rows if w.state[r] not in allowed]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        states = " or ".join(s.label for s in allowed)
        raise RefusedError(
            f"cannot {what}: {', '.join(wrong[:5])}{more}", f"Only {states} workloads can be; leave out the others"
        )
    return rows


def _ids(state: State, rows: list[int]) -> tuple[str, ...]:
    return tuple(state.workloads.ids[row] for row in rows)


_LIVE = (WorkloadState.QUEUED, WorkloadState.HELD, WorkloadState.PLACED, WorkloadState.RUNNING)
_WAITING = (WorkloadState.QUEUED,)
_ON_HOLD = (WorkloadState.HELD,)
_ON_NODES = (WorkloadState.PLACED, WorkloadState.RUNNING)


def _cancel(state: State, command: cmd.Cancel) -> Checked:
    rows = _allow(state, command.ids, _LIVE, "cancel")
    return [ev.Cancelled(row) for row in rows], _ids(state, rows)


def _hold(state: State, command: cmd.Hold) -> Checked:
    rows = _allow(state, command.ids, _WAITING, "hold")
    return [ev.Held(row) for row in rows], _ids(state, rows)


def _release(state: State, command: cmd.Release) -> Checked:
    rows = _allow(state, command.ids, _ON_HOLD, "release")
    return [ev.Released(row) for row in rows], _ids(state, rows)


def _requeue(state: State, command: cmd.Requeue) -> Checked:
    rows = _allow(state, command.ids, _ON_NODES, "requeue")
    return [ev.Requeued(row, ev.REQUEUE_CAUSES.index("asked")) for row in rows], _ids(state, rows)


# -- actions on nodes -------------------------------------------------------------------------------------------------


def _nodes(state: State, ids: tuple[str, ...]) -> list[int]:
    known = state.capacity.row_of
    unknown = [i for i in ids if i not in known]
    if unknown:
        raise NotFoundError(f"there is no node {_listed(unknown)}", "List them with: muster get nodes")
    if not ids:
        raise SpecError("ids", "is empty", "Name at least one")
    return [known[i] for i in dict.fromkeys(ids)]


def _turn(state: State, rows: list[int], to: NodeState, unless: tuple[NodeState, ...]) -> list[ev.AnyEvent]:
    """Nodes already in one of the states `unless` are left as they are."""
    turning = [row for row in rows if state.capacity.state[row] not in unless]
    return [ev.NodesChanged(array("i", turning).tobytes(), to)] if turning else []


def _node_ids(state: State, rows: list[int]) -> tuple[str, ...]:
    return tuple(state.capacity.node_ids[row] for row in rows)


def _cordon(state: State, command: cmd.Cordon) -> Checked:
    rows = _nodes(state, command.ids)
    unless = (NodeState.CORDONED, NodeState.DRAINING, NodeState.DOWN)
    return _turn(state, rows, NodeState.CORDONED, unless), _node_ids(state, rows)


def _uncordon(state: State, command: cmd.Uncordon) -> Checked:
    rows = _nodes(state, command.ids)
    down = [state.capacity.node_ids[row] for row in rows if state.capacity.state[row] == NodeState.DOWN]
    if down:
        raise RefusedError(f"cannot uncordon: {_listed(down)} is down", "It returns when its executor reports it")
    return _turn(state, rows, NodeState.READY, (NodeState.READY,)), _node_ids(state, rows)


def _drain(state: State, command: cmd.Drain) -> Checked:
    rows = _nodes(state, command.ids)
    events = _turn(state, rows, NodeState.DRAINING, (NodeState.DRAINING, NodeState.DOWN))
    workloads = sorted({state.allocations.workload[a] for row in rows for a in state.allocations.on_node(row)})
    events += [ev.Requeued(row, ev.REQUEUE_CAUSES.index("drain")) for row in workloads]
    return events, _node_ids(state, rows) + _ids(state, workloads)


_CHECKS: dict[type[Any], Callable[[State, Any], Checked]] = {
    cmd.Define: _define,
    cmd.AddPools: _add_pools,
    cmd.AddNodes: _add_nodes,
    cmd.AddQueues: _add_queues,
    cmd.AddPriorityClasses: _add_priority_classes,
    cmd.Submit: _submit,
    cmd.Cancel: _cancel,
    cmd.Hold: _hold,
    cmd.Release: _release,
    cmd.Requeue: _requeue,
    cmd.Cordon: _cordon,
    cmd.Uncordon: _uncordon,
    cmd.Drain: _drain,
    cmd.SetPolicy: _set_policy,
}
