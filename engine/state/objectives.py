"""The burn of queue objectives: late starts, and waiting work that is past its objective already.

A start is late when it comes more than `start_within_ms` after the workload could last have started. That moment is its
submission, release, resumption, wake-up, or return to the queue after a preemption. Burn is the share of late starts
divided by the share that may be late: at 1000 permille, as much is late as the objective allows.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.model.columns import view
from engine.model.queries import Burn, BurnWindow
from engine.model.spec_parts import MINUTE_MS
from engine.model.specs import WorkloadState
from engine.state.queue_tree import MINUTES, below
from engine.state.workloads import EVICTED, NONE, PLACED, RELEASED, RESUMED, SUBMITTED, WOKE

if TYPE_CHECKING:
    from engine.state.cell_state import State

    Numbers = np.ndarray[Any, np.dtype[Any]]

HOUR = 60
"""Minutes of the short window; the long one is as long as starts are kept."""
_CAN_START = (SUBMITTED, RELEASED, RESUMED, WOKE, EVICTED)
"""Entries of a history after which a workload may be waiting for its start: the last of them before it is when that
began."""


def burns(state: State, now_ms: int) -> tuple[Burn, ...]:
    """One for each queue with an objective, in the order of their definition."""
    begin(state, now_ms)
    tree = state.queues
    if not tree.starts.of:
        return ()
    waiting = _waiting_beyond(state, now_ms)
    return tuple(
        Burn(
            queue=tree.specs[vertex].name,
            within_ms=tree.specs[vertex].start_within_ms,
            objective_permille=tree.specs[vertex].objective_permille,
            hour=_window(state, vertex, HOUR, waiting[vertex], now_ms),
            six_hours=_window(state, vertex, MINUTES, waiting[vertex], now_ms),
        )
        for vertex in tree.starts.of
    )


def begin(state: State, now_ms: int) -> None:
    """Count from now on, and from the histories what was before, unless that is done."""
    if state.queues.starts.of is None:
        state.queues.starts.of = _remembered(state, now_ms)


def _window(state: State, vertex: int, minutes: int, waiting: int, now_ms: int) -> BurnWindow:
    started, late = state.queues.starts.within(vertex, minutes, now_ms)
    allowed = 1000 - state.queues.specs[vertex].objective_permille
    every = started + waiting
    return BurnWindow(
        started=started,
        late=late,
        waiting=waiting,
        burn_permille=(late + waiting) * 1_000_000 // (every * allowed) if every else None,
    )


def _with_objective(state: State) -> list[int]:
    return [row for row, spec in enumerate(state.queues.specs) if spec.start_within_ms]


def _waiting_beyond(state: State, now_ms: int) -> dict[int, int]:
    """For each queue with an objective: the queued at or below it that have waited longer."""
    w, tree = state.workloads, state.queues
    vertices = _with_objective(state)
    if not w.state_counts[WorkloadState.QUEUED]:
        return dict.fromkeys(vertices, 0)
    rows = np.flatnonzero(view(w.state) == WorkloadState.QUEUED)
    shortest = min(tree.specs[vertex].start_within_ms for vertex in vertices)
    waits = now_ms - view(w.since)[rows]
    rows, waits = rows[waits > shortest], waits[waits > shortest]
    queues = view(w.queue)[rows]
    return {
        vertex: int((below(tree, vertex)[queues] & (waits > tree.specs[vertex].start_within_ms)).sum())
        for vertex in vertices
    }


def _remembered(state: State, now_ms: int) -> dict[int, deque[list[int]]]:
    """The starts of the last minutes as the histories tell them."""
    tree = state.queues
    vertices = _with_objective(state)
    found: dict[int, deque[list[int]]] = {vertex: deque() for vertex in vertices}
    if not vertices or not state.workloads.ids:
        return found
    first = now_ms // MINUTE_MS - MINUTES + 1
    rows, at, waits = _starts_since(state, vertices, first * MINUTE_MS)
    queues = view(state.workloads.queue)[rows]
    for vertex in vertices:
        here = below(tree, vertex)[queues]
        minutes = at[here] // MINUTE_MS - first
        started = np.bincount(minutes, minlength=MINUTES)
        late = np.bincount(minutes[waits[here] > tree.specs[vertex].start_within_ms], minlength=MINUTES)
        for minute in np.flatnonzero(started).tolist():
            found[vertex].append([first + minute, int(started[minute]), int(late[minute])])
    return found


def _starts_since(state: State, vertices: list[int], since_ms: int) -> tuple[Numbers, Numbers, Numbers]:
    """(workload, cell ms, wait before it) of the starts since then in these queues and below. All histories are walked
    together, backwards."""
    w = state.workloads
    at, what, previous = view(w.history_at), view(w.history_what), view(w.history_previous)
    concerned = np.any([below(state.queues, vertex) for vertex in vertices], axis=0)
    rows = np.flatnonzero(concerned[view(w.queue)])
    entries = view(w.history)[rows].astype(np.int64)
    started = np.full(len(rows), NONE, np.int64)
    """Cell ms of the start whose wait is looked for; NONE while none is."""
    found: list[tuple[Numbers, Numbers, Numbers]] = []
    while len(rows):
        could = (started != NONE) & np.isin(what[entries], _CAN_START)
        if could.any():
            found.append((rows[could], started[could], started[could] - at[entries[could]]))
        starts = (what[entries] == PLACED) & (at[entries] >= since_ms)
        started = np.where(starts, at[entries], np.where(could, NONE, started))
        entries = previous[entries].astype(np.int64)
        on = (entries != NONE) & ((started != NONE) | (at[entries] >= since_ms))
        rows, entries, started = rows[on], entries[on], started[on]
    if not found:
        none = np.zeros(0, np.int64)
        return none, none, none
    each = [np.concatenate(part) for part in zip(*found, strict=True)]
    return each[0], each[1], each[2]
