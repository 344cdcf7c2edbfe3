"""The folds of events that start many workloads at once, or that change a workload's tasks, request or queue.

The vector functions do for many workloads what `engine.state.cell_state` does event by event. Each leaves
exactly what the single events would, down to the numbering of rows and entries, so the state never shows which way was
taken. Their docstrings name the cases in which the order of single steps would matter; events leave those out.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.model import events as ev
from engine.model.columns import Rows, summed, view
from engine.model.specs import WorkloadSpec, WorkloadState
from engine.state import allocations
from engine.state import workloads as wl
from engine.state.allocations import NONE
from engine.state.pending_work import STOPPED, Cause, Key, NewArrivals
from engine.state.queue_tree import WIDTH, Charge, QueueTree, Vector

if TYPE_CHECKING:
    from engine.state.cell_state import State


MIN_STALE = 1024
"""Ends of what runs no longer that are not worth a look at all of them."""
PLACED, RUNNING = int(WorkloadState.PLACED), int(WorkloadState.RUNNING)


# -- submitted --------------------------------------------------------------------------------------------------------


def submitted(state: State, event: ev.SubmittedMany) -> None:
    specs = event.workloads
    w, now_ms = state.workloads, state.now_ms
    first = len(w.ids)
    rows = range(first, first + len(specs))
    ids = [spec.id for spec in specs]
    w.row_of.update(zip(ids, rows, strict=True))
    w.ids += ids
    w.names += [spec.name for spec in specs]
    queues, priorities, classes, tenants = _what_counts(state, specs)
    spoken_for: dict[str, list[int]] = {
        "cls": classes,
        "queue": queues,
        "priority": priorities,
        "tenant": tenants,
        "team": _named(w.teams, [spec.team for spec in specs]),
        "tags": _named(w.tag_sets, [wl.tags_text(spec.tags) if spec.tags else wl.NO_TAGS for spec in specs]),
        "checkpoint": [spec.checkpoint_interval_ms for spec in specs],
        "checkpoint_cost": [spec.checkpoint_cost_ms for spec in specs],
        "simulated": [spec.simulated_runtime_ms for spec in specs],
        "elastic": [spec.elastic for spec in specs],
        "history": list(range(len(w.history_at), len(w.history_at) + len(specs))),
    }
    for name, values in spoken_for.items():
        getattr(w, name).fromlist(values)
    for name, value in {**wl.BLANK, "since": now_ms, "submitted": now_ms}.items():
        if name not in spoken_for:
            column = getattr(w, name)
            column.extend(array(column.typecode, (value,)) * len(specs))
    state.ledger.enter(len(specs))
    w.state_counts[WorkloadState.QUEUED] += len(specs)
    _append_history(state, np.full(len(specs), NONE, np.int32), wl.SUBMITTED, now_ms, 0)
    if any(spec.order == "fair" for spec in state.queues.specs):
        fair = [spec.order == "fair" for spec in state.queues.specs]
        tenants = [tenant if fair[queue] else NONE for queue, tenant in zip(queues, tenants, strict=True)]
    else:
        tenants = [NONE] * len(specs)
    if state.budgets.any_stops:
        stops = state.budgets.stopping
        tenants = [t if stops(state, row) is None else STOPPED for row, t in zip(rows, tenants, strict=True)]
    state.pending.arrive(NewArrivals(rows, priorities, queues, classes, tenants))
    state.arrivals += rows


def _what_counts(state: State, specs: Sequence[WorkloadSpec]) -> tuple[list[int], list[int], list[int], list[int]]:
    """(queue rows, priority class rows, class rows, tenants). Specs often share their groups, which are looked at only
    once then."""
    w, capacity = state.workloads, state.capacity
    if capacity.company.terms:
        # Where others keep apart from some work, tags tell classes apart too.
        keys: list[tuple[int, int]] = [(place, 0) for place in range(len(specs))]
    else:
        keys = [(id(spec.groups), spec.estimate_ms) for spec in specs]
    seen: dict[tuple[int, int], int] = {}
    for key, spec in dict(zip(keys, specs, strict=True)).items():
        state.name_labels(spec)
        seen[key] = w.intern(wl.class_key(spec, capacity.company), capacity)
    classes = [seen[key] for key in keys]
    row_of, priority_of = state.queues.row_of, w.priority_of
    queues = [row_of[spec.queue] for spec in specs]
    priorities = [priority_of[spec.priority_class] for spec in specs]
    return queues, priorities, classes, _named(w.tenants, [spec.tenant for spec in specs])


def _named(names: Any, texts: list[str]) -> list[int]:
    """Indexes of the interned texts."""
    index = names.index
    return [index[text] if text in index else names.add(text) for text in texts]


# -- placed and started -----------------------------------------------------------------------------------------------


def placed(state: State, event: ev.PlacedMany, *, claimed: bool) -> None:
    """`claimed`: their nodes' capacity is taken already."""
    w, now_ms = state.workloads, state.now_ms
    rows = np.frombuffer(event.rows, np.int32)
    nodes = array("i", event.nodes)
    devices = array("q", event.devices) if event.devices else array("q", bytes(8 * len(nodes)))
    classes = view(w.cls)[rows].tolist()
    if not claimed:
        take = state.capacity.take
        for node, cls, mask in zip(nodes, classes, devices, strict=True):
            take(node, w.classes[cls].shapes[0], 1, mask)
    if state.capacity.company.terms:
        for row, node in zip(rows.tolist(), nodes, strict=True):
            if state.shift_company(row, 1, [(node, 1)]):
                state.reconsider.ask(Cause.NEIGHBOURS)
    if not state.pending.leave_together(rows):
        _leave_pending(state, rows)
    state.note_change(array("i", event.rows))
    for queue, quantities, count in _count_bound(state, rows, 1):
        # All of one queue at once: no burst begins, so the order does not matter.
        state.queues.charge(queue, QueueTree.total_charge(quantities), now_ms, count)
    _count_members(state, rows, 1)
    view(w.first_allocation)[rows] = _allocate(state, rows, nodes, devices)
    state.ledger.charge_many(state, rows, view(nodes), classes)
    view(w.tasks)[rows] = 1
    for row in rows[view(w.terms)[rows] != 0].tolist():
        state.usage.renew(state, row)
    view(w.started)[rows] = now_ms
    view(w.rated)[rows] = now_ms
    view(w.done)[rows] = 0
    view(w.flags)[rows] = np.frombuffer(event.flags, np.int8) if event.flags else 0
    view(w.attempts)[rows] += 1
    if state.queues.starts.of:
        state.queues.starts.note_many(state.queues, view(w.queue)[rows], now_ms - view(w.since)[rows], now_ms)
    _set_state(state, rows, WorkloadState.QUEUED, WorkloadState.PLACED, wl.PLACED, now_ms, 1)
    bounds = {cls: max(w.classes[cls].bound_ms, 1) for cls in set(classes)}
    state.ends.add_many([(now_ms + bounds[cls], row) for cls, row in zip(classes, rows.tolist(), strict=True)])


def gangs_placed(state: State, event: ev.PlacedGangs) -> None:
    gangs = event.singles()
    # Bonds are counted before the room of those that come next is taken.
    together = not state.capacity.company.terms
    if together:
        _claim_gangs(state, gangs)
    for gang in gangs:
        state.place(gang, claimed=together)


def _claim_gangs(state: State, gangs: Sequence[ev.Placed]) -> None:
    """Take the capacity of their nodes all at once."""
    shapes, nodes, counts, devices = [], array("i"), array("i"), array("q")
    for gang in gangs:
        for shape, placement in zip(state.workloads.class_at(gang.row).shapes, gang.groups, strict=True):
            nodes.frombytes(placement.nodes)
            counts.frombytes(placement.counts)
            devices.frombytes(placement.devices or bytes(2 * len(placement.nodes)))
            shapes += [shape] * (len(placement.nodes) // 4)
    allocations.shift_each(state.capacity, shapes, view(nodes), -view(counts).astype(np.int64), view(devices))


def _leave_pending(state: State, rows: Rows) -> None:
    """Take them out of their groups."""
    w, pending = state.workloads, state.pending
    fair = [spec.order == "fair" for spec in state.queues.specs]
    columns = (view(column)[rows].tolist() for column in (w.priority, w.queue, w.cls, w.tenant))
    leaving: dict[Key, list[int]] = {}
    for row, priority, queue, cls, tenant in zip(rows.tolist(), *columns, strict=True):
        leaving.setdefault(pending.key(priority, queue, cls, tenant if fair[queue] else NONE), []).append(row)
    for key, members in leaving.items():
        pending.discard_many(key, members)


def requests(state: State, classes: Rows) -> Rows:
    """The requests of workloads of these class rows, in the order of RESOURCES: int64, one row each."""
    return view(state.workloads.class_requests).reshape(-1, WIDTH)[classes]


def _count_bound(state: State, rows: Rows, sign: int) -> list[tuple[int, Vector, int]]:
    """These are placed now, or, with a negative sign, they have ended: as `State.count_bound` of each. Returns (queue
    row, what all of the queue ask for, how many they are) of each queue."""
    w = state.workloads
    queues = view(w.queue)[rows].astype(np.int64)
    tenants, sums, counts = summed(queues << 32 | view(w.tenant)[rows], requests(state, view(w.cls)[rows]))
    by_queue: dict[int, tuple[list[int], list[int]]] = {}
    for both, quantities, count in zip(tenants, sums, counts, strict=True):
        queue, tenant = both >> 32, both & 0xFFFFFFFF
        use = state.tenant_use.setdefault((queue, tenant), [0] * WIDTH)
        use[:] = [have + sign * more for have, more in zip(use, quantities, strict=True)]
        have, known = by_queue.get(queue, ([0] * WIDTH, [0]))
        by_queue[queue] = [a + b for a, b in zip(have, quantities, strict=True)], [known[0] + count]
    for row in rows.tolist() if state.caps.any else ():
        state.caps.count(row, sign)
    width = len(w.priority_value)
    numbers = np.bincount(queues * width + view(w.priority)[rows])
    for both in np.flatnonzero(numbers).tolist():
        of_queue, value = state.workloads_of_queue[both // width], w.priority_value[both % width]
        of_queue[value] = of_queue.get(value, 0) + sign * int(numbers[both])
        if sign > 0:
            state.note_joined(both // width)
    return [(queue, (v[0], v[1], v[2], v[3]), count) for queue, (v, (count,)) in by_queue.items()]


def _count_members(state: State, rows: Rows, sign: int) -> None:
    w = state.workloads
    arrays = view(w.array)[rows]
    for member_of in arrays[arrays != NONE].tolist():
        w.array_running[member_of] += sign


def _allocate(state: State, rows: Rows, nodes: array[int], devices: array[int]) -> Rows:
    """An allocation row for each: reused ones first, as `Allocations.add` takes them."""
    a = state.allocations
    reused = min(len(nodes), len(a.unused))
    fresh = len(nodes) - reused
    numbers = a.unused[len(a.unused) - reused :][::-1]
    del a.unused[len(a.unused) - reused :]
    numbers.extend(range(len(a.node), len(a.node) + fresh))
    for column in a.row_columns():
        column.frombytes(bytes(fresh * column.itemsize))
    own = view(numbers)
    view(a.workload)[own] = rows
    view(a.group)[own] = 0
    view(a.node)[own] = view(nodes)
    view(a.count)[own] = 1
    view(a.devices)[own] = view(devices)
    view(a.next_of_workload)[own] = NONE
    view(a.previous_on_node)[own] = NONE
    heads, following, previous = a.first_on_node, a.next_on_node, a.previous_on_node
    for number, node in zip(numbers, nodes, strict=True):
        head = heads[node]
        following[number] = head
        if head != NONE:
            previous[head] = number
        heads[node] = number
    return own


def started(state: State, event: ev.StartedMany) -> None:
    w, now_ms = state.workloads, state.now_ms
    rows = np.frombuffer(event.rows, np.int32)
    late = rows[view(w.rated)[rows] != now_ms].tolist()
    view(w.started)[rows] = now_ms
    view(w.rated)[rows] = now_ms
    state.note_change(late)
    view(w.confirmed)[rows] = 1
    _set_state(state, rows, WorkloadState.PLACED, WorkloadState.RUNNING, wl.RUNNING, now_ms, 0)
    state.ends.add_many([(w.expected_end(row, now_ms), row) for row in late])
    watched = np.array([spec.min_runtime_ms > 0 for spec in state.queues.specs], bool)[view(w.queue)[rows]]
    for row in rows[watched | (view(w.terms)[rows] != 0) | (view(w.evicted_at)[rows] >= 0)].tolist():
        state.timers.watch(state, row)
    if state.replicas.wanted:
        state.replicas.running.update(row for row in rows.tolist() if row in state.replicas.wanted)


# -- finished ---------------------------------------------------------------------------------------------------------


def finished(state: State, event: ev.FinishedMany) -> None:
    w, a, capacity, queues = state.workloads, state.allocations, state.capacity, state.queues
    rows, times = np.frombuffer(event.rows, np.int32), np.frombuffer(event.at_ms, np.int64)
    view(w.done)[rows] += times - view(w.rated)[rows]
    work = (view(w.kept)[rows] + view(w.done)[rows]).tolist()
    classes = view(w.cls)[rows].tolist()
    for cls, took in zip(classes, work, strict=True):
        w.took_before[cls] = w.took[cls]
        w.took[cls] = took
    held, owner = allocations.of_workloads(a, view(w.first_allocation)[rows])
    nodes, counts = view(a.node)[held], view(a.count)[held].astype(np.int64)
    state.ledger.end_many(state, rows, times, held, owner)
    if capacity.company.terms:
        for row, node, count in zip(rows[owner].tolist(), nodes.tolist(), counts.tolist(), strict=True):
            state.shift_company(row, -1, [(node, count)])
    of_queue = view(w.queue)[rows]
    if queues.flavored_trees:
        for row, queue, at_ms in zip(rows.tolist(), of_queue.tolist(), times.tolist(), strict=True):
            queues.give_back(queue, state.charge_of(row), at_ms)
    else:
        queues.give_back_many(of_queue, requests(state, view(w.cls)[rows]), times)
    of_group = zip(owner.tolist(), view(a.group)[held].tolist(), strict=True)
    shapes = [w.classes[classes[i]].shapes[group] for i, group in of_group]
    allocations.shift_each(capacity, shapes, nodes, counts, view(a.devices)[held])
    capacity.note_gains(nodes.tolist())
    for allocation in held.tolist():
        a.drop(allocation)
    _count_bound(state, rows, -1)
    _count_members(state, rows, -1)
    for row in rows.tolist() if state.usage.of else ():
        state.usage.forget(state, row)
    view(w.first_allocation)[rows] = NONE
    view(w.tasks)[rows] = 0
    view(w.preempting)[rows] = NONE
    view(w.ended)[rows] = times
    _set_state(state, rows, WorkloadState.RUNNING, WorkloadState.FINISHED, wl.FINISHED, times, 0)
    state.note_change(array("i", event.rows))
    state.now_ms = int(times[-1])
    state.ended_together += len(rows)
    if 2 * state.ended_together > len(state.ends) + MIN_STALE:
        # One by one they would be taken off a heap that they make twice as large.
        states = w.state
        state.ends.keep(lambda row: states[row] == RUNNING or states[row] == PLACED)
        state.ended_together = 0


# -- histories --------------------------------------------------------------------------------------------------------


def _set_state(
    state: State, rows: Rows, was: WorkloadState, now: WorkloadState, what: int, at_ms: int | Rows, detail: int
) -> None:
    """Change the state of all of them and say so in their histories."""
    w = state.workloads
    w.state_counts[was] -= len(rows)
    w.state_counts[now] += len(rows)
    view(w.state)[rows] = now
    view(w.since)[rows] = at_ms
    before = view(w.history)[rows]
    view(w.history)[rows] = np.arange(len(w.history_at), len(w.history_at) + len(rows), dtype=np.int32)
    _append_history(state, before, what, at_ms, detail)


def _append_history(state: State, previous: Rows, what: int, at_ms: int | Rows, detail: int) -> None:
    w, count = state.workloads, len(previous)
    w.history_previous.frombytes(previous.tobytes())
    w.history_at.frombytes(np.full(count, at_ms, np.int64).tobytes())
    w.history_what.extend(array("b", (what,)) * count)
    w.history_detail.extend(array("q", (detail,)) * count)


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
    state.note_joined(state.workloads.queue[row])
    state.ends.add(state.workloads.expected_end(row, state.now_ms), row)
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


def moved(state: State, event: ev.MovedToQueue) -> None:
    """Move a workload to another queue. Its past cost stays with the queue that it ran in; the new one is charged from
    now on.
    """
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
