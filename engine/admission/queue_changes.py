"""The check of changes to queues: their quota, and whether they start and take work."""

from __future__ import annotations

import msgspec

from engine.admission.definitions import Checked, canonical, check_flavor_pools
from engine.admission.id_lookup import ids_of, listed
from engine.capacity.scores import check_weights
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import RefusedError, SpecError
from engine.model.quantity_text import quantity
from engine.model.specs import RESOURCES, QueueMode, QueueSpec
from engine.queues.tree import Charge
from engine.queues.tree_checks import check_change
from engine.state.cell_state import State


def change_queue(state: State, command: cmd.ChangeQueue, now_ms: int) -> Checked:
    """A quota below what is in use is refused with the names of what would have to go, unless that was asked for."""
    spec = command.queue
    check_change(state.queues, spec)
    check_flavor_pools((spec,), set(state.capacity.pool_of), "queue")
    check_weights(spec.placement, "queue.placement")
    events: list[ev.AnyEvent] = [ev.QueueChanged(canonical(spec))]
    over = state.queues.over_if(spec, now_ms)
    if not over or command.over == "keep":
        return events, (spec.name,)
    leaving = least_costly_above(state, spec, over, now_ms)
    if command.over == "refuse":
        vertex, charge = next(iter(over.items()))
        slot, excess = charge[0]
        raise RefusedError(
            f"queue '{state.queues.specs[vertex].name}' would use {quantity(slot % len(RESOURCES), excess)} more than "
            f"it may; would have to go: {listed([state.workloads.ids[r] for r in leaving])}",
            "Wait for them, say --over keep to let them run out, or --over evict to requeue them",
        )
    events += [
        ev.Requeued(row, ev.REQUEUE_CAUSES.index("quota reduced"), saved=state.workloads.saves_when_asked(row))
        for row in leaving
    ]
    return events, (spec.name, *ids_of(state, leaving))


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
    if state.workloads.saves_when_asked(row):
        return 0
    return w.lost_if_stopped(row, now_ms) * state.cell_share(w.class_at(row).request)


def order_queues(state: State, command: cmd.OrderQueues) -> Checked:
    """Raises NotFoundError for a queue that there is not."""
    specs = [state.queues.specs[row] for row in _queue_rows(state, command.names)]
    events: list[ev.AnyEvent] = [
        ev.QueueChanged(canonical(msgspec.structs.replace(spec, order=command.order)))
        for spec in specs
        if spec.order != command.order
    ]
    return events, command.names


def hold_queues(state: State, command: cmd.HoldQueues) -> Checked:
    return _set_modes(state, command.names, QueueMode.HELD), command.names


def open_queues(state: State, command: cmd.OpenQueues) -> Checked:
    return _set_modes(state, command.names, QueueMode.OPEN), command.names


def drain_queues(state: State, command: cmd.DrainQueues) -> Checked:
    events = _set_modes(state, command.names, QueueMode.DRAINING)
    drained = set(_queue_rows(state, command.names))
    w = state.workloads
    leaving = [
        row
        for row in range(len(w.ids))
        if state.is_bound(row) and not drained.isdisjoint(state.queues.path[w.queue[row]])
    ]
    cause = ev.REQUEUE_CAUSES.index("queue drained")
    events += [ev.Requeued(row, cause, saved=state.workloads.saves_when_asked(row)) for row in leaving]
    return events, (*command.names, *ids_of(state, leaving))


def _set_modes(state: State, names: tuple[str, ...], mode: QueueMode) -> list[ev.AnyEvent]:
    rows = _queue_rows(state, names)
    return [ev.QueueModeSet(row, mode) for row in rows if state.queues.mode[row] != mode]


def _queue_rows(state: State, names: tuple[str, ...]) -> list[int]:
    if not names:
        raise SpecError("names", "is empty", "Name at least one queue")
    return [state.queues.row(name) for name in dict.fromkeys(names)]
