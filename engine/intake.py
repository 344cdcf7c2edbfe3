"""The check at the door: a command becomes events, or an error says why not. Nothing is changed here."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from engine import commands as cmd
from engine import events as ev
from engine.capacity import OPEN
from engine.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model import (
    RESOURCES,
    Dependency,
    NodeSpec,
    NodeState,
    PoolSpec,
    PriorityClassSpec,
    QueueMode,
    QueueSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
    check_id,
    check_pool,
    check_quantity,
    check_workload,
)
from engine.quantities import quantity
from engine.quota import Charge, check_change, check_queues
from engine.shape import Shape, accepts
from engine.state import State, members

Checked = tuple[list[ev.AnyEvent], tuple[str, ...]]
"""The events, and the ids they change."""


def check(state: State, command: cmd.AnyCommand, now_ms: int) -> Checked:
    """Raises SpecError, NotFoundError or RefusedError; then nothing of the command is applied. `now_ms`: cell time,
    which goes on without events."""
    timed = _TIMED.get(type(command))
    return _CHECKS[type(command)](state, command) if timed is None else timed(state, command, now_ms)


# -- definitions ----------------------------------------------------------------------------------------------------


def _define(state: State, command: cmd.Define) -> Checked:
    if state.capacity.node_ids or state.queues.specs:
        raise RefusedError(f"cell '{state.cell}' is defined already", "Add to it with add_nodes, add_queues, add_pools")
    cell = command.cell
    check_id(cell.name, "cell.name")
    classes = cell.priority_classes or (PriorityClassSpec(name="normal", value=0),)
    _check_settings(cell.settings, "cell.settings")
    _check_flavor_pools(cell.queues, {pool.name for pool in cell.pools}, "cell.queues")
    events: list[ev.AnyEvent] = [ev.CellNamed(cell.name)]
    if cell.settings != state.settings:
        events.append(ev.SettingsSet(cell.settings))
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
    _check_flavor_pools(command.queues, set(state.capacity.pool_of), "queues")
    ordered = check_queues(command.queues, state.queues.row_of, busy)
    return [ev.QueueAdded(spec) for spec in ordered], tuple(spec.name for spec in command.queues)


def _check_flavor_pools(queues: tuple[QueueSpec, ...], pools: set[str], where: str) -> None:
    for i, spec in enumerate(queues):
        for j, flavor in enumerate(spec.flavors):
            if flavor.pool not in pools:
                raise SpecError(
                    f"{where}[{i}].flavors[{j}].pool",
                    f"there is no pool '{flavor.pool}'",
                    f"Use one of: {', '.join(sorted(pools))}",
                )


def _change_queue(state: State, command: cmd.ChangeQueue, now_ms: int) -> Checked:
    """A quota below what is in use is refused with the names of what would have to go, unless that was asked for."""
    spec = command.queue
    check_change(state.queues, spec)
    _check_flavor_pools((spec,), set(state.capacity.pool_of), "queue")
    events: list[ev.AnyEvent] = [ev.QueueChanged(spec)]
    over = state.queues.over_if(spec, now_ms)
    if not over or command.over == "keep":
        return events, (spec.name,)
    leaving = least_costly_above(state, spec, over, now_ms)
    if command.over == "refuse":
        vertex, charge = next(iter(over.items()))
        slot, excess = charge[0]
        raise RefusedError(
            f"queue '{state.queues.specs[vertex].name}' would use {quantity(slot % len(RESOURCES), excess)} more than "
            f"it may; {len(leaving)} workloads would have to go: {_listed([state.workloads.ids[r] for r in leaving])}",
            "Wait for them, give over: keep to let them run out, or over: evict to requeue them",
        )
    events += [
        ev.Requeued(row, ev.REQUEUE_CAUSES.index("quota reduced"), saved=_saves(state, row)) for row in leaving
    ]
    return events, (spec.name, *_ids(state, leaving))


def least_costly_above(state: State, spec: QueueSpec, over: dict[int, Charge], now_ms: int) -> list[int]:
    """Placed and running workloads whose requeueing brings every vertex back within what it may use after the queue
    has the new spec: those that lose least work first, none that is not needed."""
    trial = state.queues.copy()
    trial.change(spec)
    w = state.workloads
    bound = [row for row in range(len(w.ids)) if state.is_bound(row)]
    below = [row for row in bound if not over.keys().isdisjoint(state.queues.path[w.queue[row]])]
    below.sort(key=lambda row: (w.value_at(row), _loss(state, row, now_ms), -row))
    leaving: list[int] = []
    for row in below:
        if not any(trial.over(vertex, now_ms) for vertex in over):
            break
        if any(trial.over(vertex, now_ms) for vertex in state.queues.path[w.queue[row]]):
            trial.give_back(w.queue[row], state.charge_of(row), now_ms)
            leaving.append(row)
    for row in reversed(leaving[:]):
        trial.charge(w.queue[row], state.charge_of(row), now_ms)
        if any(trial.over(vertex, now_ms) for vertex in over):
            trial.give_back(w.queue[row], state.charge_of(row), now_ms)
        else:
            leaving.remove(row)
    return leaving


def _loss(state: State, row: int, now_ms: int) -> int:
    """Work that stopping it would lose, weighed by its share of the cell."""
    w = state.workloads
    if _saves(state, row):
        return 0
    return w.lost_if_stopped(row, now_ms) * state.cell_share(w.class_at(row).request)


def _saves(state: State, row: int) -> bool:
    """Whether the workload writes a checkpoint when it is asked to stop."""
    return state.workloads.checkpoint_cost[row] > 0


def _queue_rows(state: State, names: tuple[str, ...]) -> list[int]:
    if not names:
        raise SpecError("names", "is empty", "Name at least one queue")
    return [state.queues.row(name) for name in dict.fromkeys(names)]


def _set_modes(state: State, names: tuple[str, ...], mode: QueueMode) -> list[ev.AnyEvent]:
    rows = _queue_rows(state, names)
    return [ev.QueueModeSet(row, mode) for row in rows if state.queues.mode[row] != mode]


def _hold_queues(state: State, command: cmd.HoldQueues) -> Checked:
    return _set_modes(state, command.names, QueueMode.HELD), command.names


def _open_queues(state: State, command: cmd.OpenQueues) -> Checked:
    return _set_modes(state, command.names, QueueMode.OPEN), command.names


def _drain_queues(state: State, command: cmd.DrainQueues) -> Checked:
    events = _set_modes(state, command.names, QueueMode.DRAINING)
    drained = set(_queue_rows(state, command.names))
    w = state.workloads
    leaving = [
        row
        for row in range(len(w.ids))
        if state.is_bound(row) and not drained.isdisjoint(state.queues.path[w.queue[row]])
    ]
    cause = ev.REQUEUE_CAUSES.index("queue drained")
    events += [ev.Requeued(row, cause, saved=_saves(state, row)) for row in leaving]
    return events, (*command.names, *_ids(state, leaving))


def _remove_priority_classes(state: State, command: cmd.RemovePriorityClasses) -> Checked:
    w = state.workloads
    for i, name in enumerate(command.names):
        row = w.priority_of.get(name)
        if row is None:
            raise NotFoundError(f"there is no priority class '{name}'", "Nothing to remove")
        users = [w.ids[r] for r, p in enumerate(w.priority) if p == row and not WorkloadState(w.state[r]).terminal]
        if users:
            raise RefusedError(
                f"names[{i}]: priority class '{name}' is used by {_listed(users)}", "Let them end or cancel them first"
            )
    return [ev.PriorityClassRemoved(name) for name in dict.fromkeys(command.names)], command.names


def _check_settings(settings: Settings, where: str) -> None:
    for field in ("fair_half_life_ms", "starve_after_ms", "preempt_after_ms", "try_timeout_ms"):
        check_quantity(getattr(settings, field), f"{where}.{field}")
    check_quantity(settings.reservation_depth, f"{where}.reservation_depth", least=1, most=1_000_000)


def _set_settings(state: State, command: cmd.SetSettings) -> Checked:
    _check_settings(command.settings, "settings")
    changes = command.settings != state.settings
    return ([ev.SettingsSet(command.settings)] if changes else []), ("settings",)


def _reserve(state: State, command: cmd.Reserve, now_ms: int) -> Checked:
    spec = command.reservation
    check_id(spec.name, "reservation.name")
    if any(r.spec.name == spec.name for r in state.bookings.reservations):
        raise SpecError("reservation.name", f"'{spec.name}' is there already", "Give it another name")
    if spec.end_ms <= spec.start_ms:
        raise SpecError("reservation.end_ms", "is not after its start", "Give an end after the start")
    if spec.end_ms <= now_ms:
        raise SpecError("reservation.end_ms", "lies in the past", f"Give a time after {now_ms} ms")
    for name in spec.queues:
        state.queues.row(name)
    for row in _nodes(state, spec.nodes):
        if state.capacity.booking[row] != OPEN:
            raise RefusedError(
                f"node '{state.capacity.node_ids[row]}' is kept for others until they are through",
                "Choose other nodes, or take that reservation back first",
            )
    return [ev.Reserved(spec)], (spec.name,)


def _unreserve(state: State, command: cmd.Unreserve) -> Checked:
    names = tuple(dict.fromkeys(command.names))
    for name in names:
        state.bookings.reservation(name)
    return [ev.Unreserved(name) for name in names], names


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


def _submit(state: State, command: cmd.Submit, now_ms: int) -> Checked:
    new: dict[str, int] = {}
    sound: set[tuple[tuple[TaskGroup, ...], str, bool]] = set()
    changed: list[str] = []
    for i, spec in enumerate(command.workloads):
        where = f"workloads[{i}]" if len(command.workloads) > 1 else "workload"
        check_workload(spec, where)
        own = _ids_of(spec)
        for name in own if spec.array is None else (spec.id, *own):
            if name in state.workloads.row_of or name in state.workloads.array_names.index or name in new:
                raise SpecError(f"{where}.id", f"workload '{name}' is there already", "Give each workload its own id")
            new[name] = i
        changed += own
        if spec.priority_class not in state.workloads.priority_of:
            known = ", ".join(sorted(state.workloads.priority_of)) or "none is defined"
            raise SpecError(f"{where}.priority_class", f"there is no '{spec.priority_class}'", f"Use one of: {known}")
        # Equal requests need looking at once only.
        if (spec.groups, spec.queue, spec.elastic) not in sound:
            _check_place(state, spec, where)
            sound.add((spec.groups, spec.queue, spec.elastic))
        if spec.deadline_ms or spec.reservation:
            _check_times(state, spec, where, now_ms)
    depending = [i for i, spec in enumerate(command.workloads) if spec.after]
    workloads = _in_order(state, command.workloads, new) if depending else command.workloads
    return [ev.Submitted(spec) for spec in workloads], tuple(changed)


def _ids_of(spec: WorkloadSpec) -> list[str]:
    """Ids of the workloads that the spec makes."""
    return [spec.id] if spec.array is None else [f"{spec.id}/{index}" for index in members(spec.array)]


def _check_times(state: State, spec: WorkloadSpec, where: str, now_ms: int) -> None:
    if spec.deadline_ms:
        if spec.deadline_ms <= now_ms:
            raise SpecError(f"{where}.deadline_ms", "lies in the past", f"Give a time after {now_ms} ms")
        start = max(now_ms, spec.not_before_ms)
        if start + spec.estimate_ms > spec.deadline_ms:
            raise SpecError(
                f"{where}.deadline_ms",
                f"comes before its estimate of {spec.estimate_ms} ms has passed, even if it starts at {start} ms",
                "Give a later deadline or a shorter estimate",
            )
    if spec.reservation and not any(r.spec.name == spec.reservation for r in state.bookings.reservations):
        known = ", ".join(r.spec.name for r in state.bookings.reservations) or "none is made"
        raise SpecError(f"{where}.reservation", f"there is no '{spec.reservation}'", f"Use one of: {known}")


def _in_order(state: State, workloads: tuple[WorkloadSpec, ...], new: dict[str, int]) -> list[WorkloadSpec]:
    """What others wait for first, otherwise as given; dependencies on an array become dependencies on its members.

    Raises SpecError for a dependency on what never existed, on itself, and for cycles.
    """
    arrays = {spec.id: _ids_of(spec) for spec in workloads if spec.array is not None}
    ordered: list[WorkloadSpec] = []
    done: set[int] = set()
    for first in range(len(workloads)):
        path: list[int] = []
        stack = [first]
        while stack:
            at = stack[-1]
            if at in done:
                stack.pop()
                continue
            if not path or path[-1] != at:
                path.append(at)
            waits_for = [_target(state, workloads[at], new, j) for j in range(len(workloads[at].after))]
            ahead = [other for other in waits_for if other is not None and other not in done]
            if not ahead:
                done.add(at)
                path.remove(at)
                stack.pop()
                ordered.append(_spread(state, workloads[at], arrays))
                continue
            if ahead[0] in path:
                ring = [workloads[i].id for i in path[path.index(ahead[0]) :]]
                raise SpecError(
                    f"workloads[{at}].after",
                    f"they wait for each other: {' -> '.join([*ring, ring[0]])}",
                    "Take one dependency of the ring out",
                )
            stack.append(ahead[0])
    return ordered


def _target(state: State, spec: WorkloadSpec, new: dict[str, int], j: int) -> int | None:
    """Which of the new workloads a dependency is on; None for one that is there already."""
    name = spec.after[j].id
    if name in new:
        return new[name]
    if name in state.workloads.row_of or name in state.workloads.array_names.index:
        return None
    raise SpecError(
        f"workload '{spec.id}'.after[{j}].id",
        f"there never was a workload '{name[:64]}'",
        "Submit it before or together with this one",
    )


def _spread(state: State, spec: WorkloadSpec, arrays: dict[str, list[str]]) -> WorkloadSpec:
    """The spec with each dependency on an array replaced by one on every member."""
    w = state.workloads
    after: list[Dependency] = []
    for dependency in spec.after:
        if dependency.id in arrays:
            names = arrays[dependency.id]
        elif dependency.id in w.array_names.index:
            names = list(_ids(state, members_of(state, dependency.id)))
        else:
            names = [dependency.id]
        after += [Dependency(id=name, on=dependency.on) for name in names]
    return msgspec.structs.replace(spec, after=tuple(after))


def members_of(state: State, array_name: str) -> list[int]:
    """Rows of the members of an array."""
    array_row = state.workloads.array_names.index[array_name]
    return [row for row, member in enumerate(state.workloads.array) if member == array_row]


def _check_place(state: State, spec: WorkloadSpec, where: str) -> None:
    """Refuse what could never start: unknown, inner or draining queue, no fitting node, larger than cell or quota."""
    try:
        queue = state.queues.leaf(spec.queue)
    except MusterError as error:
        raise SpecError(f"{where}.queue", error.problem, error.remedy) from error
    if not state.queues.takes_work(queue):
        raise SpecError(f"{where}.queue", f"queue '{spec.queue}' is draining", "Use another queue, or open it again")
    for i, group in enumerate(spec.groups):
        _check_group(state, group, f"{where}.groups[{i}]")
    total = [0, 0, 0, 0]
    for group in spec.groups:
        for i, wanted in enumerate(group.request.vector()):
            total[i] += wanted * (group.min_count or group.count)
    for i, wanted in enumerate(total):
        if wanted > state.capacity.totals[i]:
            raise SpecError(
                f"{where}.groups",
                f"ask for {wanted} {RESOURCES[i]} in all, but the whole cell has {state.capacity.totals[i]}",
                "Ask for fewer or smaller tasks",
            )
    lack = state.queues.beyond(queue, state.queues.total_charge((total[0], total[1], total[2], total[3])))
    if lack is not None:
        i = lack.slot
        raise SpecError(
            f"{where}.groups",
            f"ask for {total[i]} {RESOURCES[i]} in all, but queue '{state.queues.specs[lack.vertex].name}' can be "
            f"given {total[i] - lack.short} at most",
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
    if (group.min_count or group.count) > most:
        raise SpecError(
            f"{where}.count",
            f"a gang of {group.min_count or group.count} tasks is larger than the cell, which has room for {most} when "
            "empty",
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
    """Rows of all the ids, each once; the id of an array stands for its members. Names every unknown id."""
    known, arrays = state.workloads.row_of, state.workloads.array_names.index
    unknown = [i for i in ids if i not in known and i not in arrays]
    if unknown:
        raise NotFoundError(f"there is no workload {_listed(unknown)}", "List them with: muster get workloads")
    if not ids:
        raise SpecError("ids", "is empty", "Name at least one")
    rows: list[int] = []
    for name in dict.fromkeys(ids):
        if name in known:
            rows.append(known[name])
        else:
            rows += [row for row in members_of(state, name) if not WorkloadState(state.workloads.state[row]).terminal]
    return list(dict.fromkeys(rows))


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


_LIVE = tuple(state for state in WorkloadState if not state.terminal)
_WAITING = (WorkloadState.QUEUED, WorkloadState.WAITING)
_STOPPED = (WorkloadState.SUSPENDED,)
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
    cause = ev.REQUEUE_CAUSES.index("asked")
    return [ev.Requeued(row, cause, saved=_saves(state, row)) for row in rows], _ids(state, rows)


def _suspend(state: State, command: cmd.Suspend) -> Checked:
    rows = _allow(state, command.ids, (*_ON_NODES, *_WAITING), "suspend")
    return [ev.Suspended(row, saved=_saves(state, row)) for row in rows], _ids(state, rows)


def _resume(state: State, command: cmd.Resume) -> Checked:
    rows = _allow(state, command.ids, _STOPPED, "resume")
    return [ev.Resumed(row) for row in rows], _ids(state, rows)


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
    cause = ev.REQUEUE_CAUSES.index("drain")
    events += [ev.Requeued(row, cause, saved=_saves(state, row)) for row in workloads]
    return events, _node_ids(state, rows) + _ids(state, workloads)


_CHECKS: dict[type[Any], Callable[[State, Any], Checked]] = {
    cmd.Define: _define,
    cmd.AddPools: _add_pools,
    cmd.AddNodes: _add_nodes,
    cmd.AddQueues: _add_queues,
    cmd.AddPriorityClasses: _add_priority_classes,
    cmd.Cancel: _cancel,
    cmd.Hold: _hold,
    cmd.Release: _release,
    cmd.Requeue: _requeue,
    cmd.Cordon: _cordon,
    cmd.Uncordon: _uncordon,
    cmd.Drain: _drain,
    cmd.SetPolicy: _set_policy,
    cmd.RemovePriorityClasses: _remove_priority_classes,
    cmd.HoldQueues: _hold_queues,
    cmd.DrainQueues: _drain_queues,
    cmd.OpenQueues: _open_queues,
    cmd.Suspend: _suspend,
    cmd.Resume: _resume,
    cmd.Unreserve: _unreserve,
    cmd.SetSettings: _set_settings,
}
_TIMED: dict[type[Any], Callable[[State, Any, int], Checked]] = {
    cmd.ChangeQueue: _change_queue,
    cmd.Submit: _submit,
    cmd.Reserve: _reserve,
}
"""Those for which it matters what time it is."""
