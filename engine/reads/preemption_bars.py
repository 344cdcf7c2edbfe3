"""The rules that keep a waiting workload from preempting others, each with whom it spares and until when.

The rules are those of `engine.scheduling.preemption`, looked at for one preemptor when somebody asks. Nothing is said
where no other queue is above its quota and nothing of lower priority could give way.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.model.columns import Numbers, view
from engine.model.details import Reason
from engine.model.events import BURST
from engine.model.quantities import shortlist, spelt, utc
from engine.model.specs import RESOURCES, quantity
from engine.reads.quota_reasons import MAX_NAMED, amount
from engine.scheduling.preemption import bound_rows, waiting_is_better
from engine.state.cell_state import State
from engine.state.queue_tree import Charge, Lack
from engine.state.workloads import NONE

BARRED = "PreemptionBarred"


def preemption_bars(state: State, row: int, charge: Charge, lack: Lack) -> Iterator[Reason]:
    """What bars preemption for a queued workload of that charge. `lack`: the quota that it lacks."""
    yield from _Bars(state, row, charge, lack).reasons()


def _barred(text: str, unblock: str = "") -> Reason:
    return Reason(token=BARRED, text=text, unblock=unblock)


class _Bars:
    """One preemptor, and the slots that it needs something of."""

    def __init__(self, state: State, row: int, charge: Charge, lack: Lack) -> None:
        w, queues = state.workloads, state.queues
        self._state, self._row, self._charge, self._slots = state, row, charge, [lack.slot]
        self._queue: int = w.queue[row]
        self._spec = queues.specs[self._queue]
        self._class = w.priority_classes[w.priority[row]]
        self._value: int = w.value_at(row)
        self._above = {
            queue: (slot, queues.borrowed(queue, slot))
            for slot in self._slots
            for queue, path in enumerate(queues.path)
            if lack.vertex in path
            and queue != self._queue
            and not queues.children[queue]
            and queues.borrowed(queue, slot)
        }
        """Queue -> (slot, what it draws above its own quota), of the others that do below the vertex that refuses."""

    def reasons(self) -> Iterator[Reason]:
        rows = self._in_reach()
        may_at = self._state.workloads.may_preempt_at(self._row, self._state.settings)
        if (len(rows) or self._above) and may_at > self._state.now_ms:
            yield _barred(f"it was preempted itself and preempts others from {utc(may_at)} on")
            return
        yield from self._own_queue()
        yield from self._cohorts()
        yield from self._spared(rows)

    # -- the preemptor's side -----------------------------------------------------------------------------------------

    def _own_queue(self) -> Iterator[Reason]:
        """The rule of its own queue, or its quota, that lets it reclaim nothing."""
        if not self._above:
            return
        if self._spec.reclaim == "never":
            text = f"queue {self._spec.name} reclaims nothing from others (reclaim never), though {self._borrowers()}"
            yield _barred(text, f"queue {self._spec.name} may reclaim")
        elif (more := self._beyond_own()) is not None:
            slot, short = more
            quota = amount(slot, self._state.queues.guaranteed(self._queue, slot))
            yield _barred(
                f"reclaims nothing, though {self._borrowers()}: with it queue {self._spec.name} would be "
                f"{amount(slot, short)} above its own {quota}"
            )

    def _borrowers(self) -> str:
        """The queues above their quota, most first."""
        found = sorted(self._above.items(), key=lambda item: (-item[1][1], item[0]))
        specs = self._state.queues.specs
        each = (f"{specs[queue].name} is {quantity(slot % len(RESOURCES), by)} above" for queue, (slot, by) in found)
        return f"queue {', queue '.join(list(each)[:MAX_NAMED])} its own quota"

    def _beyond_own(self) -> tuple[int, int] | None:
        """(slot, quantity) by which its queue would pass its own quota with it; None if it would not."""
        lack = self._state.queues.lack(self._queue, self._charge, self._state.now_ms, borrow=False)
        return (lack.slot, lack.short) if lack is not None and lack.vertex == self._queue else None

    # -- the others ---------------------------------------------------------------------------------------------------

    def _reclaims(self) -> bool:
        return bool(self._above) and self._spec.reclaim != "never" and self._beyond_own() is None

    def _cohort_within(self, queue: int, slot: int) -> int:
        """The vertex above the queue, below the shared ancestor, that is within its quota; NONE if there is none."""
        queues = self._state.queues
        mine = queues.path[self._queue]
        between = (v for v in queues.path[queue] if v not in mine and not queues.borrowed(v, slot))
        return next(between, NONE)

    def _sources(self) -> list[int]:
        """The queues that work may be reclaimed from."""
        if not self._reclaims():
            return []
        open_ = ((queue, slot) for queue in self._above for slot in self._slots)
        queues = self._state.queues
        return sorted({q for q, slot in open_ if queues.borrowed(q, slot) and self._cohort_within(q, slot) == NONE})

    def _cohorts(self) -> Iterator[Reason]:
        """The cohorts that are within their quota, and so keep what a queue below them borrows from its siblings."""
        if not self._reclaims():
            return
        specs, sources = self._state.queues.specs, self._sources()
        for queue, (slot, _) in self._above.items():
            if queue not in sources:
                cohort = specs[self._cohort_within(queue, slot)].name
                yield _barred(
                    f"nothing is reclaimed from queue {specs[queue].name}: its cohort {cohort} is within its own quota"
                )

    def _in_reach(self) -> Numbers:
        """Rows of running work that the two rules of preemption concern, whether or not it is spared."""
        state, w = self._state, self._state.workloads
        rows = bound_rows(state)
        rows = rows[view(w.preempting)[rows] == NONE]
        queue = view(w.queue)[rows]
        reach = np.isin(queue, self._sources())
        if self._class.preemption == "lower":
            own = (queue == self._queue) | state.settings.preempt_across
            reach |= own & (self._values(rows) < self._value)
        return np.asarray(rows[reach])

    def _values(self, rows: Numbers) -> Numbers:
        w = self._state.workloads
        return np.asarray(np.array(w.priority_value)[view(w.priority)[rows]])

    def _spared(self, rows: Numbers) -> Iterator[Reason]:
        """The rules that spare some of these rows, each row counted under the first that does."""
        for rule in (self._not_lower, self._not_preemptible, self._too_young, self._disrupted):
            reasons, spared = rule(rows)
            yield from reasons
            rows = rows[~spared]
        if len(rows) and waiting_is_better(self._state, rows):
            patience = spelt(self._state.settings.preempt_after_ms)
            text = f"all that it may preempt is likely to end by itself within {patience} (preempt_after)"
            yield _barred(f"{text}: {self._names(rows)}")

    def _not_lower(self, rows: Numbers) -> tuple[list[Reason], Numbers]:
        """Work of other queues that is no lower, where the queue reclaims from lower priorities alone."""
        others = view(self._state.workloads.queue)[rows] != self._queue
        spared = others & (self._values(rows) >= self._value) & (self._spec.reclaim == "lower_priority")
        text = f"queue {self._spec.name} reclaims from lower priorities only; not lower: {self._names(rows[spared])}"
        return [_barred(text)] if spared.any() else [], np.asarray(spared)

    def _not_preemptible(self, rows: Numbers) -> tuple[list[Reason], Numbers]:
        w = self._state.workloads
        open_ = np.array([spec.preemptible for spec in w.priority_classes], bool)
        spared = ~open_[view(w.priority)[rows]]
        text = f"of a priority class that is not preempted: {self._names(rows[spared])}"
        return [_barred(text)] if spared.any() else [], np.asarray(spared)

    def _too_young(self, rows: Numbers) -> tuple[list[Reason], Numbers]:
        """Work within the minimum runtime of its queue; expired burst has none."""
        state, w = self._state, self._state.workloads
        found: dict[int, list[tuple[int, int]]] = {}
        spared = np.zeros(len(rows), bool)
        for at, row in enumerate(rows.tolist()):
            queue = w.queue[row]
            until_ms = w.spared_until(row, state.queues.specs[queue].min_runtime_ms)
            if until_ms > state.now_ms and not self._is_expired_burst(row):
                spared[at] = True
                found.setdefault(queue, []).append((until_ms, row))
        reasons = []
        for queue, each in sorted(found.items()):
            until_ms, first = min(each)
            last_ms = max(each)[0]
            last = f", the last until {utc(last_ms)}" if last_ms > until_ms else ""
            reasons.append(
                _barred(
                    f"the minimum runtime of queue {state.queues.specs[queue].name} spares "
                    f"{len(each)} of its workloads: {w.ids[first]} until {utc(until_ms)}{last}",
                    utc(until_ms),
                )
            )
        return reasons, spared

    def _is_expired_burst(self, row: int) -> bool:
        queues, w = self._state.queues, self._state.workloads
        return bool(w.flags[row] & BURST) and any(
            queues.burst_state(vertex, self._state.now_ms) != "burst" and queues.burst_excess(vertex)
            for vertex in queues.path[w.queue[row]]
        )

    def _disrupted(self, rows: Numbers) -> tuple[list[Reason], Numbers]:
        """Work of queues that have been disrupted as often as they may be."""
        queues, now_ms = self._state.queues, self._state.now_ms
        of = view(self._state.workloads.queue)[rows]
        full = [queue for queue in np.unique(of).tolist() if not queues.disruptions_left(queue, now_ms)]
        reasons = []
        for queue in full:
            spec = queues.specs[queue]
            limit = f"{spec.disruptions} in {spelt(spec.disruption_window_ms)}"
            text = f"the disruption limit of queue {spec.name}, {limit}, is reached"
            if not spec.disruptions:
                reasons.append(_barred(text))
                continue
            until = utc(queues.disruptions[queue][-spec.disruptions] + spec.disruption_window_ms)
            reasons.append(_barred(f"{text} until {until}", until))
        return reasons, np.isin(of, full)

    def _names(self, rows: Numbers) -> str:
        return shortlist([self._state.workloads.ids[row] for row in rows.tolist()], MAX_NAMED)
