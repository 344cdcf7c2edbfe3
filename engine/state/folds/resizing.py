"""What events change that give work other tasks, or other terms: growth, shrinking, swaps, requests, its queue."""

from __future__ import annotations

from array import array
from heapq import heappush
from typing import TYPE_CHECKING

from engine.model import events as ev
from engine.model.specs import WorkloadState
from engine.queues.tree import Charge
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.reconsider import Cause

if TYPE_CHECKING:
    from engine.state.cell_state import State


def grown(state: State, event: ev.Grown) -> None:
    resize(state, event.row, event.groups, claimed=False)


def resize(state: State, row: int, more: tuple[ev.GroupPlacement, ...], *, claimed: bool) -> None:
    w = state.workloads
    before = state.charge_of(row)
    rate(state, row)
    tasks, _ = state.bind(row, more, claimed=claimed)
    w.tasks[row] += tasks
    state.replicas.held_ms.pop(row, None)
    recharge(state, row, before)
    w.record(row, wl.GROWN, state.now_ms, tasks)


def shrunk(state: State, event: ev.Shrunk) -> None:
    row = event.row
    w = state.workloads
    before = state.charge_of(row)
    rate(state, row)
    gone = 0
    for group, placement in enumerate(event.groups):
        nodes, counts = array("i", placement.nodes), array("i", placement.counts)
        devices = array("q", placement.devices) or array("q", bytes(8 * len(nodes)))
        for node, count, mask in zip(nodes, counts, devices, strict=True):
            take_off(state, row, group, node, count, mask)
            gone += count
    w.tasks[row] -= gone
    if event.until_ms > state.now_ms:
        state.replicas.held_ms[row] = event.until_ms
    recharge(state, row, before)
    w.record(row, wl.SHRUNK, state.now_ms, gone + ((event.by + 1) << 24))


def take_off(state: State, row: int, group: int, node: int, count: int, mask: int) -> None:
    """Give back `count` tasks of one allocation, which goes when it has none left."""
    a = state.allocations
    w = state.workloads
    previous = NONE
    at = w.first_allocation[row]
    shape = w.class_at(row).shapes[group]
    while (
        (a.group[at], a.node[at]) != (group, node)
        or (a.devices[at] if shape.part else a.devices[at] & mask) != mask
        or a.count[at] < count
    ):
        previous, at = at, a.next_of_workload[at]
    state.shift_company(row, -1, [(node, count)])
    state.capacity.give_back(node, shape, count, mask)
    state.capacity.note_gains([node])
    a.count[at] -= count
    a.devices[at] &= ~mask
    if not a.count[at]:
        following = a.next_of_workload[at]
        if previous == NONE:
            w.first_allocation[row] = following
        else:
            a.next_of_workload[previous] = following
        a.drop(at)


def swapped(state: State, event: ev.Swapped) -> None:
    row = event.row
    w, a = state.workloads, state.allocations
    before = state.charge_of(row)
    state.ledger.stop(state, row)
    state.keep_work(row, saved=False)
    w.done[row] = -w.terms_at(row).restore_ms if w.kept[row] else 0
    w.rated[row] = state.now_ms
    left = frozenset(array("i", event.nodes))
    shapes = w.class_at(row).shapes
    lost, previous, at = 0, NONE, w.first_allocation[row]
    while at != NONE:
        following = a.next_of_workload[at]
        if a.node[at] not in left:
            previous = at
        else:
            lost += a.count[at]
            if previous == NONE:
                w.first_allocation[row] = following
            else:
                a.next_of_workload[previous] = following
            state.free_one(shapes[a.group[at]], at)
        at = following
    gained, _ = state.bind(row, event.groups, claimed=False)
    w.tasks[row] += gained - lost
    recharge(state, row, before)
    w.record(row, wl.SWAPPED, state.now_ms, lost + (gained << 24))


def rate(state: State, row: int) -> None:
    """Count what was done at the present speed: it is about to change."""
    w = state.workloads
    if w.state[row] == WorkloadState.RUNNING:
        w.done[row] = w.work_done(row, state.now_ms) - w.kept[row]
    w.rated[row] = state.now_ms
    state.ledger.stop(state, row)


def recharge(state: State, row: int, before: Charge) -> None:
    state.ledger.charge(state, row)
    state.shift_charge(row, before)
    heappush(state.ends, (state.workloads.expected_end(row, state.now_ms), row))
    if row in state.usage.of:
        state.usage.renew(state, row)
    stretch(state, row)


def stretch(state: State, row: int) -> None:
    """Note whether an elastic workload has more tasks than it must, or fewer than it would like."""
    w = state.workloads
    if w.elastic[row] and w.state[row] == WorkloadState.RUNNING:
        for rows, belongs in (
            (state.stretched, w.tasks[row] > sum(state.counts_needed(row))),
            (state.short, w.tasks[row] < sum(state.counts_wanted(row))),
        ):
            if belongs and row not in rows:
                rows.add(row)
                # It may shrink for what waits, or grow.
                state.reconsider.ask(Cause.ELASTIC)
            elif not belongs:
                rows.discard(row)


def wanted(state: State, event: ev.Wanted) -> None:
    row = event.row
    service = state.workloads.terms_at(row).service
    before = state.replicas.wanted[row]
    stabilise_ms = service.stabilise_ms if service is not None else 0
    state.replicas.note(row, event.tasks, event.load, state.now_ms, stabilise_ms)
    if event.tasks != before:
        state.workloads.record(row, wl.WANTED, state.now_ms, before << 24 | event.tasks)
        stretch(state, row)


def reclassed(state: State, event: ev.Reclassed) -> None:
    row = event.row
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    if queued:
        state.dequeue(row)
    change = state.workloads.reclass(row, event.groups, event.evidence, state.capacity)
    state.workloads.record(row, wl.RESIZED, state.now_ms, change)
    if queued:
        state.enqueue(row)
    if state.workloads.terms[row]:
        state.timers.watch(state, row)


def moved(state: State, event: ev.Moved) -> None:
    """What it has cost stays with the queue that it ran in; what it will cost is charged to the new one."""
    row = event.row
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    if queued:
        state.dequeue(row)
    state.workloads.queue[row] = event.queue
    state.ledger.leave_account(row)
    state.workloads.record(row, wl.MOVED, state.now_ms, event.queue)
    if queued:
        state.enqueue(row)


def turned_on_demand(state: State, event: ev.TurnedOnDemand) -> None:
    row = event.row
    queued = state.workloads.state[row] == WorkloadState.QUEUED
    if queued:
        state.dequeue(row)
    turn_on_demand(state, row)
    if queued:
        state.enqueue(row)


def turn_on_demand(state: State, row: int) -> None:
    state.workloads.turn_on_demand(row, state.capacity)
    state.workloads.record(row, wl.TURNED, state.now_ms, 0)
