"""The invariants of any state, checked with vectors, so that a running cell of 100,000 nodes can be checked.

Totals are summed up from the allocations and the specs and compared with the kept figures: free capacity of each node,
whole gangs, charged and kept quota. Each workload must be in exactly one place.
"""

from __future__ import annotations

import numpy as np

from engine.capacity.index import NOWHERE
from engine.model.columns import Rows, view
from engine.model.quantities import shortlist
from engine.model.specs import RESOURCES, NodeState, WorkloadState
from engine.state.allocations import RequestColumns
from engine.state.cell_state import BOUND, State
from engine.state.mirrored_cell import charge_held
from engine.state.workloads import NONE

NAMED = 3
"""Things named in a complaint."""


def faults_of(state: State) -> list[str]:
    """The broken invariants, in words; empty when all is well. Costs a few passes over the columns."""
    requests = RequestColumns()
    requests.update(state.workloads.classes)
    return [*_of_nodes(state, requests), *_of_gangs(state, requests), *_of_quota(state, requests), *_of_places(state)]


def _held(state: State) -> Rows:
    """Rows of the allocations that are in use."""
    return np.flatnonzero(view(state.allocations.workload) != NONE)


def _entries(state: State, requests: RequestColumns, held: Rows) -> Rows:
    """For each allocation: the entry of its class and group in the columns of `requests`."""
    a = state.allocations
    cls = view(state.workloads.cls)[view(a.workload)[held]]
    return np.asarray(view(requests.first)[cls] + view(a.group)[held])


def _of_nodes(state: State, requests: RequestColumns) -> list[str]:
    capacity, a = state.capacity, state.allocations
    if not capacity.node_ids:
        return []
    held = _held(state)
    node, count, entry = view(a.node)[held], view(a.count)[held], _entries(state, requests, held)
    pool, there = view(capacity.pool), view(capacity.state) != NodeState.REMOVED
    have = np.array([each.offered.vector() for each in capacity.pools], np.int64)
    columns = {0: capacity.free_cpu, 1: capacity.free_memory, 3: capacity.free_disk}
    found = []
    for resource, column in columns.items():
        quantity = view(requests.by_resource[resource])[entry] * count
        used = np.bincount(node, weights=quantity, minlength=len(pool)).astype(np.int64)
        for loaded, load in state.loads.of.items():
            used[loaded] += load[resource]
        free = have[pool, resource] * there - used
        found += _named(f"free {RESOURCES[resource]} is not what is left of", free != view(column), capacity.node_ids)
        found += _named(f"more {RESOURCES[resource]} is used than there is on", free < 0, capacity.node_ids)
    ready = view(capacity.state) == NodeState.READY
    found += _named("the index of nodes is wrong about", (view(capacity.key) != NOWHERE) != ready, capacity.node_ids)
    free = sum(index.free_cpu for index in (*capacity.indexes, *capacity.booked.values()))
    if free != int(view(capacity.free_cpu)[ready].sum()):
        found.append("the index counts other free CPU than the ready nodes have")
    return found


def _of_gangs(state: State, requests: RequestColumns) -> list[str]:
    """Whole or not at all: a bound workload has between the fewest and all of the tasks of each group, others none."""
    w, a = state.workloads, state.allocations
    if not w.ids:
        return []
    held = _held(state)
    group, row = view(a.group)[held].astype(np.int64), view(a.workload)[held]
    bound = np.isin(view(w.state), BOUND)
    wrong = np.zeros(len(w.ids), bool)
    groups = np.array([len(each.groups) for each in w.classes])[view(w.cls)]
    for number in range(int(groups.max())):
        mine = group == number
        placed = np.bincount(row[mine], weights=view(a.count)[held[mine]], minlength=len(w.ids)).astype(np.int64)
        least, most = (
            np.array([counts[number] if number < len(counts) else 0 for counts in each], np.int64)[view(w.cls)]
            for each in ([c.least for c in w.classes], [c.counts for c in w.classes])
        )
        wrong |= np.where(bound, (placed < least) | (placed > most), placed != 0)
    tasks = np.bincount(row, weights=view(a.count)[held], minlength=len(w.ids)).astype(np.int64)
    found = _named("gangs are neither whole nor off their nodes:", wrong, w.ids)
    return found + _named("tasks are counted wrongly of", tasks != view(w.tasks), w.ids)


def _of_quota(state: State, requests: RequestColumns) -> list[str]:
    """Check all pools together: the charge equals the placed tasks, and no vertex draws more than allowed."""
    q, w, a = state.queues, state.workloads, state.allocations
    held = _held(state)
    entry, count = _entries(state, requests, held), view(a.count)[held]
    queue = view(w.queue)[view(a.workload)[held]]
    used = np.zeros((len(q.specs), len(RESOURCES)), np.int64)
    for resource, column in enumerate(requests.by_resource):
        quantity = view(column)[entry] * count if len(held) else np.zeros(0)
        leaves = np.bincount(queue, weights=quantity, minlength=len(q.specs)).astype(np.int64)
        for leaf in np.flatnonzero(leaves).tolist():
            for vertex in q.path[leaf]:
                used[vertex, resource] += leaves[leaf]
    for row in state.held_quota.of:
        for slot, quantity in charge_held(state, row):
            for vertex in q.path[w.queue[row]] if slot < len(RESOURCES) else ():
                used[vertex, slot] += quantity
    found = []
    for vertex, spec in enumerate(q.specs):
        if used[vertex].tolist() != list(q.used[vertex * q.slots : vertex * q.slots + len(RESOURCES)]):
            found.append(f"queue '{spec.name}' is charged for other than what is placed")
        if q.over(vertex, state.now_ms):
            found.append(f"queue '{spec.name}' draws more than its quota allows")
    return found


def _of_places(state: State) -> list[str]:
    """Check that each workload is in exactly one place: queued work waits in its group, bound work has allocations."""
    w = state.workloads
    found = []
    if len(w.row_of) != len(w.ids):
        found.append("an id occurs twice")
    now = view(w.state)
    if np.bincount(now, minlength=len(WorkloadState)).tolist() != w.state_counts:
        found.append("the counts of states are wrong")
    waiting = [row for group in state.pending.groups.values() for row in group.rows[group.front :]]
    queued = np.flatnonzero(now == WorkloadState.QUEUED)
    if not np.array_equal(np.sort(np.array(waiting, np.int64)), queued):
        found.append("what is queued is not what waits")
    adrift = (now == WorkloadState.WAITING) & (view(w.unmet) == 0) & (view(w.wake) < 0)
    if state.settings.decided_by != "muster":
        return found  # only the scheduler that decides knows when
    return found + _named("nothing ever wakes", adrift, w.ids)


def _named(what: str, wrong: Rows, names: list[str]) -> list[str]:
    """The complaint and the first it is about, if there is any."""
    rows = np.flatnonzero(wrong).tolist()
    return [f"{what} {shortlist([names[row] for row in rows], NAMED)}"] if rows else []
