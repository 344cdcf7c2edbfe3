"""The folds of events about the cell itself: pools, nodes, orders, policy, queues, settings, and bookings of nodes.

A booked node is kept for an advance reservation, or for a preemptor whose victims are stopping. It leaves the index of
its pool (`Capacity.book`), so no other work finds it. Before an advance reservation starts, its nodes stay usable for
work that is expected to end by then.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappush
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.capacity.index import OPEN
from engine.model import events as ev
from engine.model.columns import Table, view
from engine.model.errors import not_found
from engine.model.specs import NodeSpec, NodeState, QueueMode, QueueSpec, ReservationSpec
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.machines import OrderState
from engine.state.mirrored_cell import charge_held, forget_load
from engine.state.pending_work import Cause
from engine.state.queue_tree import DAY_MS
from engine.state.timers import Timer

if TYPE_CHECKING:
    from engine.state.cell_state import State


class Reservation(msgspec.Struct, frozen=True, array_like=True):
    """An advance reservation and the number its nodes are kept under."""

    booking: int
    spec: ReservationSpec


class Clearing(msgspec.Struct, frozen=True, array_like=True):
    """A preemption whose victims still write their checkpoints."""

    booking: int
    row: int
    """The preemptor."""
    victims: tuple[int, ...]
    causes: tuple[int, ...]
    """Index into events.EVICTION_CAUSES for each victim."""
    nodes: tuple[int, ...]
    at_ms: int


class Bookings(Table):
    """All of them, oldest first."""

    columns = ("issued", "reservations", "clearings")

    def __init__(self) -> None:
        self.issued = 0
        """Numbers given out so far; a number is never given twice."""
        self.reservations: list[Any] = []
        self.clearings: list[Any] = []

    def derive(self) -> None:
        self.reservations = [msgspec.convert(r, Reservation) for r in self.reservations]
        self.clearings = [msgspec.convert(c, Clearing) for c in self.clearings]

    def dump(self) -> dict[str, Any]:
        return super().dump() | {
            "reservations": msgspec.to_builtins(self.reservations),
            "clearings": msgspec.to_builtins(self.clearings),
        }

    def reserve(self, spec: ReservationSpec) -> Reservation:
        reservation = Reservation(self.issued, spec)
        self.issued += 1
        self.reservations.append(reservation)
        return reservation

    def reservation(self, name: str) -> Reservation:
        for reservation in self.reservations:
            if reservation.spec.name == name:
                return Reservation(reservation.booking, reservation.spec)
        raise not_found("reservation", [name], (each.spec.name for each in self.reservations))

    def unreserve(self, name: str) -> Reservation:
        reservation = self.reservation(name)
        self.reservations.remove(reservation)
        return reservation

    def clear(self, row: int, victims: list[int], causes: list[int], nodes: list[int], at_ms: int) -> Clearing:
        clearing = Clearing(self.issued, row, tuple(victims), tuple(causes), tuple(nodes), at_ms)
        self.issued += 1
        self.clearings.append(clearing)
        return clearing

    def clearing_for(self, row: int) -> Clearing | None:
        return next((c for c in self.clearings if c.row == row), None)

    def drop(self, clearing: Clearing) -> None:
        self.clearings.remove(clearing)

    def usable(self, row: int, own: str, queues: frozenset[str], now_ms: int, end_ms: int) -> tuple[int, ...]:
        """Bookings whose nodes the workload may use now.

        `own`: the reservation it names, `queues`: the names of its queue and those above, `end_ms`: when it is
        expected to end if it starts now.
        """
        found = [c.booking for c in self.clearings if c.row == row]
        for booking, spec in ((r.booking, r.spec) for r in self.reservations):
            if own:
                may = own == spec.name and now_ms >= spec.start_ms
            else:
                may = end_ms <= spec.start_ms or (now_ms >= spec.start_ms and not queues.isdisjoint(spec.queues))
            if may:
                found.append(booking)
        return tuple(found)


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
    state.joined.append(0)


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
    held = {row: charge_held(state, row) for row in state.held_quota.of}
    yield
    for row, charge in zip(bound, before, strict=True):
        state.shift_charge(row, charge)
    for row, charge in held.items():
        state.queues.shift(state.workloads.queue[row], charge, charge_held(state, row), state.now_ms)


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
            forget_load(state, node)
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
    state.sizing.replace_targets(event.pool, event.targets)


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
