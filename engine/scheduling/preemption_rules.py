"""The rules of preemption, each said once: whom a workload may have stopped, and which running work is spared.

`engine.scheduling.preemption` finds victims by them, and `engine.reads.preemption_bars` says which of them bar it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

import numpy as np

from engine.model import events as ev
from engine.model.columns import Mask, Numbers, Rows, view
from engine.model.specs import HOUR_MS, QueueSpec
from engine.state import workloads as wl
from engine.state.cell_state import State
from engine.state.queue_tree import Charge, Lack, QueueTree
from engine.state.workloads import NONE

THRASH = 3
"""Preemptions within an hour after which equals leave a workload alone."""
Place = tuple[int, int]
"""(vertex of the queue tree, slot)"""
Sources = dict[int, list[tuple[Place, ...]]]
"""Queue row -> for each slot that work may be taken back in: the places above quota that this brings down."""


class SparingRule(IntEnum):
    """Why work within reach of a preemptor is not stopped for it."""

    NOT_LOWER = 0
    """It is of another queue and no lower, and the preemptor's queue reclaims from lower priorities alone."""
    NOT_PREEMPTIBLE = 1
    """Of its priority class nothing is preempted."""
    MIN_RUNTIME = 2
    """It has not run for its queue's minimum runtime, expired burst excepted, or has only just started again."""
    THRASHED = 3
    """It was preempted THRASH times within the last hour, and is no lower."""


def beyond_own_quota(state: State, queue: int, charge: Charge, without: Sequence[int] = ()) -> Lack | None:
    """What the queue's own quota lacks for the charge once these workloads are gone: then it takes nothing back from
    others. The state is left unchanged."""
    if not len(without):
        lack = state.queues.lack(queue, charge, state.now_ms, borrow=False)
        return lack if lack is not None and lack.vertex == queue else None
    with state.queues.trial():
        for row in without:
            state.queues.give_back(state.workloads.queue[row], state.charge_of(row), state.now_ms)
        return beyond_own_quota(state, queue, charge)


def takes_from_others(state: State, queue: int, charge: Charge) -> bool:
    """True if the queue takes back quota at all, and another one is above its own."""
    if state.queues.specs[queue].reclaim == "never":
        return False
    return state.queues.others_borrow_of(queue, [slot for slot, _ in charge])


def may_take_back(state: State, queue: int, charge: Charge) -> bool:
    """True if the queue keeps within its nominal quota with the charge, and another one does not."""
    return beyond_own_quota(state, queue, charge) is None and takes_from_others(state, queue, charge)


def may_combine(state: State, row: int, charge: Charge) -> bool:
    """True if the queue would keep within its nominal quota with the charge only without lower work of its own, and
    another one is above its own."""
    queue = state.workloads.queue[row]
    return (
        may_preempt_lower(state, row)
        and beyond_own_quota(state, queue, charge) is not None
        and takes_from_others(state, queue, charge)
    )


def may_preempt_lower(state: State, row: int) -> bool:
    """True if work of lower priority runs where its class lets it preempt."""
    w = state.workloads
    value = w.value_at(row)
    reach = state.workloads_of_queue if state.settings.preempt_across else [state.workloads_of_queue[w.queue[row]]]
    return w.priority_classes[w.priority[row]].preemption == "lower" and any(
        count and other < value for running in reach for other, count in running.items()
    )


def sources(tree: QueueTree, queue: int, slots: Iterable[int]) -> Sources:
    """The queues that work may be taken back from: they draw above their quota, as does every vertex between them and
    the common ancestor."""
    found: Sources = {}
    slots = sorted(slots)
    ancestors, marks = tree.path[queue], tree.above_quota()
    marks[list(ancestors)] = False
    above = {slot: set(np.flatnonzero(marks[:, slot]).tolist()) for slot in slots}
    for other in sorted(set().union(*above.values())):
        below = [vertex for vertex in tree.path[other] if vertex not in ancestors]
        for slot in slots:
            if above[slot].issuperset(below):
                found.setdefault(other, []).append(tuple([(vertex, slot) for vertex in below]))
    return found


class PreemptionRules:
    """The rules as they are for one preemptor. Rows are those of placed and running workloads."""

    def __init__(self, state: State, row: int) -> None:
        w = state.workloads
        self._state = state
        self._queue: int = w.queue[row]
        self._value = w.value_at(row)
        self._takes_lower = w.priority_classes[w.priority[row]].preemption == "lower"
        self._spec: QueueSpec = state.queues.specs[self._queue]

    def lower_in_reach(self, rows: Rows) -> Mask:
        """Work of lower priority that its class lets it preempt: of its own queue, or of all where settings say so."""
        queues = view(self._state.workloads.queue)[rows]
        reach = (queues == self._queue) | self._state.settings.preempt_across
        return np.asarray(reach & self._takes_lower & self._is_lower(rows))

    def own_lower(self, rows: Rows) -> Rows:
        """Those of these that are lower work of its own queue, and that no rule spares."""
        rows = rows[self.lower_in_reach(rows) & (view(self._state.workloads.queue)[rows] == self._queue)]
        for rule in SparingRule:
            rows = rows[~self.spares(rule, rows)]
        return np.asarray(rows)

    def taken_back(self, rows: Rows, queues: Iterable[int]) -> Mask:
        """Work of these queues, which are above their quota."""
        above = np.zeros(len(self._state.queues.specs), bool)
        above[list(queues)] = True
        return np.asarray(above[view(self._state.workloads.queue)[rows]])

    def spares(self, rule: SparingRule, rows: Rows) -> Mask:
        """The rows that the rule spares."""
        if rule == SparingRule.NOT_LOWER:
            others = view(self._state.workloads.queue)[rows] != self._queue
            return np.asarray(others & ~self._is_lower(rows) & (self._spec.reclaim == "lower_priority"))
        if rule == SparingRule.NOT_PREEMPTIBLE:
            w = self._state.workloads
            preemptible = np.array([spec.preemptible for spec in w.priority_classes], bool)
            return np.asarray(~preemptible[view(w.priority)[rows]])
        if rule == SparingRule.MIN_RUNTIME:
            return np.asarray(self.spared_until(rows) > self._state.now_ms)
        return self._thrashed(rows)

    def spared_until(self, rows: Rows) -> Numbers:
        """Cell time from which each may be stopped, by SparingRule.MIN_RUNTIME."""
        w = self._state.workloads
        least = self._state.queues.in_columns.min_runtime_ms[view(w.queue)[rows]]
        evicted_at = view(w.evicted_at)[rows]
        ran = np.where(self.expired_burst(rows), 0, view(w.started)[rows] + least)
        return np.maximum(ran, np.where(evicted_at >= 0, evicted_at + wl.MIN_TURN_MS, 0))

    def expired_burst(self, rows: Rows) -> Mask:
        """Work that runs in a burst whose window has passed."""
        w = self._state.workloads
        if not self._state.queues.bursts:
            return np.zeros(len(rows), bool)
        over = np.array([self._burst_is_over(queue) for queue in range(len(self._state.queues.specs))], bool)
        return np.asarray((view(w.flags)[rows] & ev.BURST > 0) & over[view(w.queue)[rows]])

    def _is_lower(self, rows: Rows) -> Mask:
        w = self._state.workloads
        return np.asarray(np.array(w.priority_value)[view(w.priority)[rows]] < self._value)

    def _burst_is_over(self, queue: int) -> bool:
        """True if the window of a burst that the queue has a part in has passed, and use is above the ceiling still."""
        queues = self._state.queues
        return any(
            queues.burst_state(vertex, self._state.now_ms) != "burst" and bool(queues.burst_excess(vertex))
            for vertex in queues.path[queue]
            if vertex in queues.bursts
        )

    def _thrashed(self, rows: Rows) -> Mask:
        w = self._state.workloads
        marks = np.zeros(len(rows), bool)
        for i in np.flatnonzero(view(w.evictions)[rows] >= THRASH).tolist():
            row = int(rows[i])
            marks[i] = w.value_at(row) >= self._value and self._recent_preemptions(row) >= THRASH
        return marks

    def _recent_preemptions(self, row: int) -> int:
        w = self._state.workloads
        count = 0
        entry = w.history[row]
        while entry != NONE and w.history_at[entry] > self._state.now_ms - HOUR_MS:
            if w.history_what[entry] == wl.EVICTED:
                count += w.history_detail[entry] & 255 in ev.PREEMPTIONS
            entry = w.history_previous[entry]
        return count
