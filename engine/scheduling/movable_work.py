"""Which running workloads may be moved by the cell's own decision, and what moving each would cost.

Who may be moved: what runs, is of a preemptible priority class, has run for its queue's minimum runtime, is not being
stopped for somebody else, does not end by itself in a moment, and belongs to a queue that may still be disrupted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.capacity.index import NOWHERE
from engine.model.specs import WorkloadState
from engine.scheduling.preemption import bound_rows, likely_ends
from engine.state.cell_state import State
from engine.state.workloads import NONE
from engine.tables.columns import view

KEPT = -1
"""Level of those that are not to be moved."""
RESTART_MS = 60_000
"""What stopping and starting anew takes besides lost work: to pull images, load weights and connect. An assumption."""
Rows = np.ndarray[Any, np.dtype[Any]]


class Movable:
    """Who may be moved, and what that costs, as columns over all workload rows."""

    def __init__(self, state: State, now_ms: int) -> None:
        self._state = state
        self.requests = state.requests
        self.requests.update(state.workloads.classes)
        size = len(state.workloads.ids)
        self.lost_ms: Rows = np.zeros(size, np.int64)
        """Work that stopping each now would lose."""
        self.pause_ms: Rows = np.zeros(size, np.int64)
        """Time without progress besides: to write a checkpoint where it is asked for one, and to start anew."""
        self.cost: Rows = np.zeros(size, np.int64)
        """Both together, times the share of the cell that it holds in parts per million."""
        self.kept_because: dict[str, Rows] = {}
        """Why some may not be moved -> their rows."""
        self.allowed: Rows = np.zeros(size, bool)
        rows = bound_rows(state)
        if len(rows):
            self._admit(rows, now_ms)
            self._price(rows, now_ms)

    def _admit(self, rows: Rows, now_ms: int) -> None:
        state = self._state
        w, queues = state.workloads, state.queues
        queue = view(w.queue)[rows]
        preemptible = np.array([spec.preemptible for spec in w.priority_classes], bool)[view(w.priority)[rows]]
        least_ms = np.array([spec.min_runtime_ms for spec in queues.specs], np.int64)[queue]
        budget = np.array([queues.disruptions_left(q, now_ms) for q in range(len(queues.specs))])[queue]
        reserved = np.array([bool(c.reservation) for c in w.classes], bool)[view(w.cls)[rows]]
        running = view(w.state)[rows] == WorkloadState.RUNNING
        soon = likely_ends(state, rows) <= now_ms + RESTART_MS
        held = (
            ("not preemptible", ~preemptible),
            ("younger than the minimum runtime of its queue", now_ms - view(w.started)[rows] < least_ms),
            ("of a queue that may not be disrupted any more", budget <= 0),
            ("not confirmed to run yet, or being stopped already", ~running | (view(w.preempting)[rows] != NONE)),
            ("on the nodes of its reservation", reserved),
            ("at its end in a moment", soon),
        )
        left = np.ones(len(rows), bool)
        for why, marks in held:
            self.kept_because[why] = rows[left & marks]
            left &= ~marks
        self.allowed[rows[left]] = True

    def _price(self, rows: Rows, now_ms: int) -> None:
        state, requests = self._state, self.requests
        w = state.workloads
        cls = view(w.cls)[rows]
        tasks, all_tasks = view(w.tasks)[rows].astype(np.int64), view(requests.tasks)[cls]
        running = view(w.state)[rows] == WorkloadState.RUNNING
        done = view(w.done)[rows] + running * (now_ms - view(w.rated)[rows]) * tasks // all_tasks
        np.maximum(done, 0, out=done)
        interval, write_ms = view(w.checkpoint)[rows], view(w.checkpoint_cost)[rows]
        lost = np.where(interval > 0, done % np.maximum(interval, 1), done)
        lost[write_ms > 0] = 0
        share = np.array([max(state.cell_share(c.request), 1) for c in w.classes], np.int64)[cls]
        self.lost_ms[rows] = lost
        self.pause_ms[rows] = write_ms + RESTART_MS
        self.cost[rows] = (lost + write_ms + RESTART_MS) * np.maximum(share * tasks // all_tasks, 1)

    def level(self) -> Rows:
        """Level of each workload for `engine.scheduling.victims`: 0 for those that may be moved and have somewhere to
        go, one task of theirs at least; KEPT for the others."""
        state = self._state
        w = state.workloads
        level = np.full(len(w.ids), KEPT, np.int16)
        rows = np.flatnonzero(self.allowed)
        movable = np.unique(view(w.cls)[rows]).tolist()
        shapes = dict.fromkeys(shape for cls in movable for shape in w.classes[cls].shapes)
        has_room = {shape for shape in shapes if state.capacity.find(shape) != NOWHERE}
        goes: Rows = np.zeros(len(w.classes), bool)
        goes[[cls for cls in movable if not has_room.isdisjoint(w.classes[cls].shapes)]] = True
        level[rows[goes[view(w.cls)[rows]]]] = 0
        return level

    def said(self, rows: Rows, level: Rows) -> str:
        """Why those of these workloads that stand in the way may not be moved."""
        concerned: Rows = np.zeros(len(level), bool)
        concerned[rows] = True
        counts = [(int(concerned[kept].sum()), why) for why, kept in self.kept_because.items()]
        counts.append((int((concerned & self.allowed & (level == KEPT)).sum()), "without another place that they fit"))
        told = "; ".join(f"{count} {why}" for count, why in counts if count)
        return f"moving what may be moved makes no room for it ({told})" if told else "no moves make room for it"
