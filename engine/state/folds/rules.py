"""What events of policy, queues, settings and bookings change in the state."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from engine.capacity.index import OPEN
from engine.model import events as ev
from engine.model.specs import QueueMode, QueueSpec
from engine.queues.tree import DAY_MS
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.node_bookings import Clearing
from engine.state.reconsider import Cause
from engine.state.timers import Timer

if TYPE_CHECKING:
    from engine.state.cell_state import State


def cell_named(state: State, event: ev.CellNamed) -> None:
    state.cell = event.name


def policy_set(state: State, event: ev.PolicySet) -> None:
    state.policy = event.policy
    state.rebuild_pending()
    state.reconsider.ask(Cause.RULES)


def queue_added(state: State, event: ev.QueueAdded) -> None:
    state.rules += 1
    with charges_following(state, (event.queue,)):
        state.queues.add(event.queue)
    state.workloads_of_queue.append({})


def queue_changed(state: State, event: ev.QueueChanged) -> None:
    state.rules += 1
    old: QueueSpec = state.queues.specs[state.queues.row_of[event.queue.name]]
    with charges_following(state, (old, event.queue)):
        state.queues.change(event.queue)
    if (old.order == "fair") != (event.queue.order == "fair"):
        state.rebuild_pending()
    state.timers.rebuild(state)
    state.reconsider.ask(Cause.RULES)


@contextmanager
def charges_following(state: State, specs: tuple[QueueSpec, ...]) -> Iterator[None]:
    """Charges depend on which pools a tree has quotas for: charge anew what runs when that may change."""
    if not any(spec.flavors for spec in specs):
        yield
        return
    bound = [row for row in range(len(state.workloads.ids)) if state.is_bound(row)]
    before = [state.charge_of(row) for row in bound]
    yield
    for row, charge in zip(bound, before, strict=True):
        state.shift_charge(row, charge)


def queue_mode_set(state: State, event: ev.QueueModeSet) -> None:
    state.rules += 1
    state.queues.set_mode(event.queue, QueueMode(event.mode))
    state.reconsider.ask(Cause.RULES)


def settings_set(state: State, event: ev.SettingsSet) -> None:
    timing = state.settings.try_timeout_ms, state.settings.autoscaling
    state.settings = event.settings
    if timing != (event.settings.try_timeout_ms, event.settings.autoscaling):
        state.timers.rebuild(state)
    state.queues.half_life_ms = event.settings.fair_half_life_ms or DAY_MS
    state.usage.weigh(state)
    state.reconsider.ask(Cause.RULES)


def priority_class_added(state: State, event: ev.PriorityClassAdded) -> None:
    state.workloads.add_priority_class(event.priority_class)


def priority_class_removed(state: State, event: ev.PriorityClassRemoved) -> None:
    state.workloads.remove_priority_class(event.name)


def preempting(state: State, event: ev.Preempting) -> None:
    victims, nodes = array("i", event.victims).tolist(), array("i", event.nodes).tolist()
    clearing = state.bookings.clear(event.row, victims, array("b", event.causes).tolist(), nodes, event.at_ms)
    for victim in victims:
        state.workloads.preempting[victim] = event.row
        state.workloads.record(victim, wl.CHECKPOINTING, state.now_ms, event.row)
    state.book(nodes, clearing.booking)
    state.timers.push(event.at_ms, Timer.CLEAR, clearing.booking)


def preemption_ended(state: State, event: ev.PreemptionEnded) -> None:
    clearing = state.bookings.clearing_for(event.row)
    if clearing is not None:
        drop_clearing(state, clearing)


def drop_clearing(state: State, clearing: Clearing) -> None:
    for victim in clearing.victims:
        if state.workloads.preempting[victim] == clearing.row:
            state.workloads.preempting[victim] = NONE
    state.bookings.drop(clearing)
    # A machine that was taken back meanwhile is kept no longer.
    state.book((node for node in clearing.nodes if state.capacity.booking[node] == clearing.booking), OPEN)


def reserved(state: State, event: ev.Reserved) -> None:
    reservation = state.bookings.reserve(event.reservation)
    state.book((state.capacity.row_of[name] for name in reservation.spec.nodes), reservation.booking)
    state.timers.push(reservation.spec.start_ms, Timer.RESERVATION_START, reservation.booking)
    state.timers.push(reservation.spec.end_ms, Timer.RESERVATION_END, reservation.booking)


def unreserved(state: State, event: ev.Unreserved) -> None:
    reservation = state.bookings.unreserve(event.name)
    rows = [state.capacity.row_of.get(name, NONE) for name in reservation.spec.nodes]
    # A machine may be gone by then, and another have its name.
    still = (row for row in rows if row != NONE and state.capacity.booking[row] == reservation.booking)
    state.book(still, OPEN)
