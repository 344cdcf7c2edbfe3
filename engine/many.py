"""Many workloads of one task at once: what `engine.state` does for one event after the other, column by column.

Every function leaves exactly what the single events would, down to the numbering of rows and entries: whether things
happened one by one or together cannot be seen in the state. What the events leave out (see each) is what makes the
order of the single steps matter.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

from engine import events as ev
from engine import workloads as wl
from engine.allocations import NONE
from engine.columns import view
from engine.fast import give_back_many
from engine.model import WorkloadSpec, WorkloadState
from engine.pending import Key
from engine.shape import Shape

if TYPE_CHECKING:
    from engine.state import State

Rows = np.ndarray[Any, np.dtype[Any]]
Alike = tuple[int, int, int, int]
"""(priority class row, queue row, class row, tenant): workloads of which no two differ in what they ask and count."""


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
    tags = w.tag_sets.index
    spoken_for: dict[str, list[int]] = {
        "cls": classes,
        "queue": queues,
        "priority": priorities,
        "tenant": tenants,
        "team": _named(w.teams, [spec.team for spec in specs]),
        "tags": [tags[text] if (text := wl.tags_text(spec)) in tags else w.tag_sets.add(text) for spec in specs],
        "checkpoint": [spec.checkpoint_interval_ms for spec in specs],
        "checkpoint_cost": [spec.checkpoint_cost_ms for spec in specs],
        "simulated": [spec.simulated_runtime_ms for spec in specs],
        "elastic": [spec.elastic for spec in specs],
        "history": list(range(len(w.history_at), len(w.history_at) + len(specs))),
    }
    for name, values in spoken_for.items():
        getattr(w, name).extend(values)
    for name, value in {**wl.BLANK, "since": now_ms, "submitted": now_ms}.items():
        if name not in spoken_for:
            column = getattr(w, name)
            column.extend(array(column.typecode, (value,)) * len(specs))
    w.state_counts[WorkloadState.QUEUED] += len(specs)
    _append_history(state, np.full(len(specs), NONE, np.int32), wl.SUBMITTED, now_ms, 0)
    by_class, groups = state.pending.by_class, state.pending.groups
    fair = [spec.order == "fair" for spec in state.queues.specs]
    for row, priority, queue, cls, tenant in zip(rows, priorities, queues, classes, tenants, strict=True):
        key = (priority, queue, cls if by_class else 0, tenant if fair[queue] else NONE)
        group = groups.get(key)
        if group is None:
            state.pending.add(key, row)
        else:
            group.rows.append(row)
    state.arrivals += rows


def _what_counts(state: State, specs: Sequence[WorkloadSpec]) -> tuple[list[int], list[int], list[int], list[int]]:
    """(queue rows, priority class rows, class rows, tenants). Specs often share their groups, which are looked at only
    once then."""
    w, capacity = state.workloads, state.capacity
    seen: dict[tuple[int, int], int] = {}
    classes = []
    for spec in specs:
        key = (id(spec.groups), spec.estimate_ms)
        cls = seen.get(key)
        if cls is None or capacity.company.terms:
            # Where others keep apart from some work, tags tell classes apart too.
            state.name_labels(spec)
            cls = seen[key] = w.intern(wl.class_key(spec, capacity.company), capacity)
        classes.append(cls)
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
                state.capacity.freed += 1
    alike = _leave_pending(state, rows)
    _charge(state, alike)
    _count_bound(state, alike, 1)
    _count_members(state, rows, 1)
    view(w.first_allocation)[rows] = _allocate(state, rows, nodes, devices)
    view(w.tasks)[rows] = 1
    view(w.started)[rows] = now_ms
    view(w.rated)[rows] = now_ms
    view(w.done)[rows] = 0
    view(w.flags)[rows] = np.frombuffer(event.flags, np.int8) if event.flags else 0
    view(w.attempts)[rows] += 1
    _set_state(state, rows, WorkloadState.QUEUED, WorkloadState.PLACED, wl.PLACED, now_ms, 1)
    bounds = {cls: max(w.classes[cls].bound_ms, 1) for cls in set(classes)}
    _enter_ends(state, [(now_ms + bounds[cls], row) for cls, row in zip(classes, rows.tolist(), strict=True)])


def _leave_pending(state: State, rows: Rows) -> dict[Alike, int]:
    """Take them out of their groups. Returns how many there are of each sort."""
    w, pending = state.workloads, state.pending
    fair = [spec.order == "fair" for spec in state.queues.specs]
    columns = (view(column)[rows].tolist() for column in (w.priority, w.queue, w.cls, w.tenant))
    found: dict[Alike, int] = {}
    leaving: dict[Key, list[int]] = {}
    by_class = pending.by_class
    for row, priority, queue, cls, tenant in zip(rows.tolist(), *columns, strict=True):
        sort = (priority, queue, cls, tenant)
        found[sort] = found.get(sort, 0) + 1
        key = (priority, queue, cls if by_class else 0, tenant if fair[queue] else NONE)
        members = leaving.get(key)
        if members is None:
            leaving[key] = [row]
        else:
            members.append(row)
    for key, members in leaving.items():
        pending.discard_many(key, members)
    return found


def _charge(state: State, alike: dict[Alike, int]) -> None:
    """All of one queue at once: no burst begins, so the order does not matter."""
    sums: dict[int, dict[int, int]] = {}
    counts: dict[int, int] = {}
    for (_, queue, cls, _), count in alike.items():
        of_queue = sums.setdefault(queue, {})
        counts[queue] = counts.get(queue, 0) + count
        for slot, quantity in state.workloads.classes[cls].charge:
            of_queue[slot] = of_queue.get(slot, 0) + quantity * count
    for queue, quantities in sums.items():
        state.queues.charge(queue, tuple(sorted(quantities.items())), state.now_ms, counts[queue])


def _count_bound(state: State, alike: dict[Alike, int], sign: int) -> None:
    for (priority, queue, cls, tenant), count in alike.items():
        state.count_bound(priority, queue, cls, tenant, sign * count)


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


def _enter_ends(state: State, entries: list[tuple[int, int]]) -> None:
    if len(entries) * 8 > len(state.ends):
        state.ends += entries
        heapify(state.ends)
    else:
        for entry in entries:
            heappush(state.ends, entry)


def started(state: State, event: ev.StartedMany) -> None:
    w, now_ms = state.workloads, state.now_ms
    rows = np.frombuffer(event.rows, np.int32)
    late = rows[view(w.rated)[rows] != now_ms].tolist()
    view(w.started)[rows] = now_ms
    view(w.rated)[rows] = now_ms
    view(w.confirmed)[rows] = 1
    _set_state(state, rows, WorkloadState.PLACED, WorkloadState.RUNNING, wl.RUNNING, now_ms, 0)
    _enter_ends(state, [(w.expected_end(row, now_ms), row) for row in late])
    watched = np.array([spec.min_runtime_ms > 0 for spec in state.queues.specs], bool)[view(w.queue)[rows]]
    for row in rows[watched | (view(w.terms)[rows] != 0)].tolist():
        state.timers.watch(state, row)


# -- finished ---------------------------------------------------------------------------------------------------------


def finished(state: State, event: ev.FinishedMany) -> None:
    w, a, capacity, queues = state.workloads, state.allocations, state.capacity, state.queues
    rows, times = np.frombuffer(event.rows, np.int32), np.frombuffer(event.at_ms, np.int64)
    view(w.done)[rows] += times - view(w.rated)[rows]
    took = (view(w.kept)[rows] + view(w.done)[rows]).tolist()
    columns = (view(column)[rows].tolist() for column in (w.priority, w.queue, w.cls, w.tenant, w.first_allocation))
    classes, by_pool, any_company = w.classes, bool(queues.flavored_trees), bool(capacity.company.terms)
    shapes: list[Shape] = []
    claims: list[tuple[int, int]] = []
    alike: dict[Alike, int] = {}
    ended = zip(rows.tolist(), times.tolist(), took, *columns, strict=True)
    for row, at_ms, work, priority, queue, cls, tenant, held in ended:
        workload_class = classes[cls]
        node = a.node[held]
        w.took_before[cls] = w.took[cls]
        w.took[cls] = work
        if any_company:
            state.shift_company(row, -1, [(node, 1)])
        queues.give_back(queue, state.charge_of(row) if by_pool else workload_class.charge, at_ms)
        shapes.append(workload_class.shapes[0])
        claims.append((node, a.devices[held]))
        a.drop(held)
        sort = (priority, queue, cls, tenant)
        alike[sort] = alike.get(sort, 0) + 1
    give_back_many(capacity, shapes, claims)
    nodes = [node for node, _ in claims]
    capacity.note_gains(nodes)
    _count_bound(state, alike, -1)
    _count_members(state, rows, -1)
    view(w.first_allocation)[rows] = NONE
    view(w.tasks)[rows] = 0
    view(w.preempting)[rows] = NONE
    view(w.ended)[rows] = times
    _set_state(state, rows, WorkloadState.RUNNING, WorkloadState.FINISHED, wl.FINISHED, times, 0)
    state.now_ms = int(times[-1])


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
