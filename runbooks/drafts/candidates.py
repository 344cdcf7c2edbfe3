"""Objects that are neither named nor odd, and that an act might still be about: what a draft can name only if it was
told of it.

A node that was lost and is back, what is left of a zone that fails, work on hold, the rest of those that wait alike, a
queue whose quota lies idle, and running work that could give way. A few of each, read from counts, from the fronts of
groups and by passes over columns: the same on a cell of a million workloads.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from engine.model.specs import NodeState, WorkloadState
from engine.tables.columns import view

if TYPE_CHECKING:
    from engine.control import Engine

DAY_MS = 24 * 3_600_000
MOST = 6
"""Of one sort."""
MAX_WAITING = 10
MIN_LOST = 3
"""Nodes of a zone that are down from which on it may be the zone."""
BLOCK = 50_000
"""Workloads that are looked through at a time, from the last one on."""
MAX_QUEUES = 10_000
"""Queues beyond which idle ones are not looked for."""


def nodes(engine: Engine) -> tuple[str, ...]:
    """Those that were lost within a day, the last first, and what is ready of a zone that loses nodes."""
    state, c = engine.state, engine.state.capacity
    since_ms = engine.now_ms - DAY_MS
    lost = sorted(
        ((losses[-1], row) for row, losses in state.failures.losses.items() if losses and losses[-1] > since_ms),
        reverse=True,
    )
    found = [c.node_ids[row] for _, row in lost if c.state[row] == NodeState.READY][:MOST]
    down = view(c.zone)[view(c.state) == NodeState.DOWN]
    zones, counts = np.unique(down[down >= 0], return_counts=True)
    for zone in zones[counts >= MIN_LOST][:MOST].tolist():
        left = np.flatnonzero((view(c.zone) == zone) & (view(c.state) == NodeState.READY))
        found += [c.node_ids[row] for row in left[:MOST].tolist()]
    return tuple(dict.fromkeys(found))


def waiting(engine: Engine) -> tuple[str, ...]:
    """The first of each group that waits alike, and those behind them, the oldest first; then what is on hold or
    suspended."""
    state, w = engine.state, engine.state.workloads
    found: dict[int, None] = {}
    for group in sorted(state.pending.groups.values(), key=lambda group: w.submitted[group.rows[group.front]]):
        found |= dict.fromkeys(islice(group.rows, group.front, group.front + MOST))
        if len(found) >= MAX_WAITING:
            break
    rows = [row for row in found if w.state[row] == WorkloadState.QUEUED][:MAX_WAITING]
    if w.ids:
        states = view(w.state)
        for kept_back in (WorkloadState.HELD, WorkloadState.SUSPENDED):
            rows += np.flatnonzero(states == kept_back)[:MOST].tolist()
    return tuple(w.ids[row] for row in rows)


def giving_way(engine: Engine) -> tuple[str, ...]:
    """While something waits, running work of the lowest priority that there is, what was submitted last first."""
    state, w = engine.state, engine.state.workloads
    values = {value for counts in state.workloads_of_queue for value, count in counts.items() if count > 0}
    if not state.pending.groups or not values:
        return ()
    low = np.flatnonzero(np.array(w.priority_value) == min(values))
    found: list[int] = []
    for end in range(len(w.ids), 0, -BLOCK):
        part = slice(max(0, end - BLOCK), end)
        there = (view(w.state)[part] == WorkloadState.RUNNING) & np.isin(view(w.priority)[part], low)
        found += (np.flatnonzero(there)[::-1] + part.start).tolist()
        if len(found) >= MOST:
            break
    return tuple(w.ids[row] for row in found[:MOST])


def idle_queues(engine: Engine) -> tuple[str, ...]:
    """While something waits, queues with a quota of which nothing is used and nothing waits."""
    state = engine.state
    if not state.pending.groups or len(state.queues.specs) > MAX_QUEUES:
        return ()
    busy = {group_key[1] for group_key in state.pending.groups}
    idle = (
        spec.name for row, spec in enumerate(state.queues.specs)
        if any(spec.nominal.values()) and row not in busy and not state.queues.running[row]
    )  # fmt: skip
    return tuple(islice(idle, MOST))
