"""The rules that keep a waiting workload from preempting others, each with whom it spares and until when.

The rules are those of `engine.scheduling.preemption_rules`, looked at for one preemptor when somebody asks. Nothing is
said where no other queue is above its quota and nothing of lower priority could give way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np

from engine.model.columns import Mask, Numbers, view
from engine.model.details import Reason
from engine.model.quantities import shortlist, spelt, utc
from engine.model.specs import RESOURCES, quantity
from engine.reads.quota_reasons import MAX_NAMED, amount
from engine.scheduling.preemption import bound_rows, waiting_is_better
from engine.scheduling.preemption_rules import (
    THRASH,
    PreemptionRules,
    SparingRule,
    beyond_own_quota,
    sources,
)
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
        self._rules = PreemptionRules(state, row)
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
        rows = bound_rows(state)
        self._bound: Numbers = np.asarray(rows[view(w.preempting)[rows] == NONE])
        """Rows of running work that is not being stopped for other work."""

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
        elif (more := self._excess) is not None:
            quota = amount(more.slot, self._state.queues.guaranteed(self._queue, more.slot))
            lower = " even without its lower work" if len(self._own_lower) else ""
            yield _barred(
                f"reclaims nothing, though {self._borrowers()}: with it queue {self._spec.name} would be "
                f"{amount(more.slot, more.short)} above its own {quota}{lower}"
            )

    def _borrowers(self) -> str:
        """The queues above their quota, most first."""
        found = sorted(self._above.items(), key=lambda item: (-item[1][1], item[0]))
        specs = self._state.queues.specs
        each = (f"{specs[queue].name} is {quantity(slot % len(RESOURCES), by)} above" for queue, (slot, by) in found)
        return f"queue {', queue '.join(list(each)[:MAX_NAMED])} its own quota"

    # -- the others ---------------------------------------------------------------------------------------------------

    def _reclaims(self) -> bool:
        return bool(self._above) and self._spec.reclaim != "never" and self._excess is None

    @cached_property
    def _own_lower(self) -> Numbers:
        """Rows of its own queue that could make way for it."""
        return self._rules.own_lower(self._bound)

    @cached_property
    def _excess(self) -> Lack | None:
        """What its queue would be above its own quota with it, were all of these gone: then it reclaims nothing."""
        return beyond_own_quota(self._state, self._queue, self._charge, self._own_lower.tolist())

    def _cohort_within(self, queue: int, slot: int) -> int:
        """The vertex above the queue, below the shared ancestor, that is within its quota."""
        queues = self._state.queues
        mine = queues.path[self._queue]
        return next(v for v in queues.path[queue] if v not in mine and not queues.borrowed(v, slot))

    def _sources(self) -> list[int]:
        """The queues that work may be reclaimed from."""
        if not self._reclaims():
            return []
        return [queue for queue in sources(self._state.queues, self._queue, self._slots) if queue in self._above]

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
        """Rows of running work that the rules of preemption concern, whether or not it is spared."""
        rows = self._bound
        reach = self._rules.taken_back(rows, self._sources()) | self._rules.lower_in_reach(rows)
        return np.asarray(rows[reach])

    def _spared(self, rows: Numbers) -> Iterator[Reason]:
        """The rules that spare some of these rows, each row counted under the first that does."""
        for rule in SparingRule:
            spared = self._rules.spares(rule, rows)
            if spared.any():
                yield from _TEXTS[rule](self, rows[spared])
            rows = rows[~spared]
        reasons, spared = self._disrupted(rows)
        yield from reasons
        rows = rows[~spared]
        if len(rows) and waiting_is_better(self._state, rows):
            patience = spelt(self._state.settings.preempt_after_ms)
            text = f"all that it may preempt is likely to end by itself within {patience} (preempt_after)"
            yield _barred(f"{text}: {self._names(rows)}")

    def _not_lower(self, rows: Numbers) -> Iterator[Reason]:
        yield _barred(f"queue {self._spec.name} reclaims from lower priorities only; not lower: {self._names(rows)}")

    def _not_preemptible(self, rows: Numbers) -> Iterator[Reason]:
        yield _barred(f"of a priority class that is not preempted: {self._names(rows)}")

    def _thrashed(self, rows: Numbers) -> Iterator[Reason]:
        yield _barred(
            f"preempted {THRASH} times within the last hour, so only a higher priority may do it again: "
            f"{self._names(rows)}"
        )

    def _too_young(self, rows: Numbers) -> Iterator[Reason]:
        state, w = self._state, self._state.workloads
        found: dict[int, list[tuple[int, int]]] = {}
        for row, until_ms in zip(rows.tolist(), self._rules.spared_until(rows).tolist(), strict=True):
            found.setdefault(w.queue[row], []).append((until_ms, row))
        for queue, each in sorted(found.items()):
            until_ms, first = min(each)
            last_ms = max(each)[0]
            last = f", the last until {utc(last_ms)}" if last_ms > until_ms else ""
            yield _barred(
                f"the minimum runtime of queue {state.queues.specs[queue].name} spares "
                f"{len(each)} of its workloads: {w.ids[first]} until {utc(until_ms)}{last}",
                utc(until_ms),
            )

    def _disrupted(self, rows: Numbers) -> tuple[list[Reason], Mask]:
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


_TEXTS: dict[SparingRule, Callable[[_Bars, Numbers], Iterator[Reason]]] = {
    SparingRule.NOT_LOWER: _Bars._not_lower,
    SparingRule.NOT_PREEMPTIBLE: _Bars._not_preemptible,
    SparingRule.MIN_RUNTIME: _Bars._too_young,
    SparingRule.THRASHED: _Bars._thrashed,
}
"""For the rows that the rule spares."""
