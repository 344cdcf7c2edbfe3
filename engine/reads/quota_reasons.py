"""The rule of the queue tree that refuses a charge, in words, with the numbers that the scheduler went by.

Four rules may refuse: a queue's borrowing limit, its burst limit, the cool-down after its burst, and the quota that a
whole tree shares. Of the last, lending limits may keep a part.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine.model.details import Reason
from engine.model.quantities import utc
from engine.model.specs import quantity
from engine.state.cell_state import State
from engine.state.queue_tree import WIDTH, Lack

QUOTA = "WaitingForQuota"
MAX_NAMED = 3
"""Queues that a sentence names of each kind."""


def quota_reason(state: State, lack: Lack, asked: int) -> Reason:
    """The reason of a charge that the tree refuses at `lack`. `asked`: its quantity in that slot."""
    return _Refusal(state, lack).reason(asked)


class _Refusal:
    """One vertex that refuses, in one slot."""

    def __init__(self, state: State, lack: Lack) -> None:
        queues = state.queues
        self._state = state
        self._queues = queues
        self._vertex, self._slot, self._short = lack
        at = self._vertex * queues.slots + self._slot
        self._name: str = queues.specs[self._vertex].name
        self._quota: int = queues.quota[at]
        self._drawn: int = queues.drawn[at]
        self._ceiling: int = queues.ceiling[at]
        """Quota and borrowing limit together, without a burst."""
        pool, _ = queues.named_slot(self._slot)
        self._where = f" in pool {pool}" if pool else ""

    def reason(self, asked: int) -> Reason:
        rule, more = self._rule()
        text = f"asks for {self._amount(asked)}{self._where}, {self._amount(self._short)} above {rule}; {self._held()}"
        notes = [*self._kept_back(), *self._borrowing()]
        return Reason(
            token=QUOTA,
            text="; ".join([text, *notes]),
            unblock=f"{self._amount(self._short)}{self._where} returned in {self._name}, or {more}",
        )

    def _rule(self) -> tuple[str, str]:
        """(the rule that refuses, the change of it that would do)"""
        queues, now_ms = self._queues, self._state.now_ms
        most = queues.ceiling_at(self._vertex, self._slot, now_ms)
        burst = queues.specs[self._vertex].burst
        if most > self._ceiling and burst is not None:
            limit = burst.limit[queues.named_slot(self._slot)[1]]
            rule = f"the burst limit of queue {self._name}, {self._amount(limit)} in all"
            return rule, f"a burst limit of {self._amount(limit + self._short)}"
        rule, more = self._lasting_rule()
        if burst is not None and queues.burst_state(self._vertex, now_ms) == "cooldown":
            again_ms = queues.burst_since[self._vertex] + burst.window_ms + burst.cooldown_ms
            return f"{rule}, and its burst is over: the next may begin at {utc(again_ms)}", f"that time, or {more}"
        return rule, more

    def _lasting_rule(self) -> tuple[str, str]:
        """The same without bursts."""
        queues, quota = self._queues, self._amount(self._quota)
        if len(queues.path[self._vertex]) > 1:
            limit = self._ceiling - self._quota
            more = f"a borrowing limit of {self._amount(limit + self._short)} in queue {self._name}"
            return f"the borrowing limit of queue {self._name}, {self._amount(limit)} on top of its {quota}", more
        if queues.children[self._vertex]:
            return f"the {quota} that queue {self._name} and the queues below it share", "a larger quota"
        return f"the nominal {quota} of queue {self._name}, which has no cohort to borrow from", "a larger quota"

    def _held(self) -> str:
        """What the vertex has, by the rule it has it under."""
        burst = self._queues.burst_excess(self._vertex).get(self._slot, 0)
        borrowed = self._queues.borrowed(self._vertex, self._slot) - burst
        parts = [f"{self._amount(borrowed)} of it borrowed"] if borrowed > 0 else []
        parts += [f"{self._amount(burst)} of it in a burst"] if burst else []
        return ", ".join([f"it uses {self._amount(self._drawn)}", *parts])

    def _kept_back(self) -> Iterator[str]:
        """Unused quota below the vertex that lending limits keep from it, most first."""
        queues, slot = self._queues, self._slot
        kept = []
        for queue, path in enumerate(queues.path):
            at = queue * queues.slots + slot
            idle = queues.local[at] - queues.drawn[at]
            if queue != self._vertex and self._vertex in path and idle > 0:
                kept.append((idle, queue))
        for idle, queue in sorted(kept, key=lambda item: (-item[0], item[1]))[:MAX_NAMED]:
            limit = self._amount(queues.lending_limit[queue * queues.slots + slot])
            name = queues.specs[queue].name
            yield f"the lending limit of queue {name}, {limit}, keeps {self._amount(idle)} that it does not use"

    def _borrowing(self) -> Iterator[str]:
        """The queues below the vertex that draw more than their own quota, most first."""
        queues, slot = self._queues, self._slot
        for queue, above, bursts in borrowers(self._state, self._vertex, slot)[:MAX_NAMED]:
            if queue != self._vertex:
                own = queues.burst_excess(queue).get(slot, 0)
                parts = [f"borrows {self._amount(above - own)}"] if above > own else []
                parts += [f"has {self._amount(own)} in a burst"] if own else []
                cohort = ", in a burst of its cohort" if bursts and not own else ""
                yield f"queue {queues.specs[queue].name} {' and '.join(parts)}{cohort}"

    def _amount(self, value: int) -> str:
        return amount(self._slot, value)


def borrowers(state: State, vertex: int, slot: int) -> list[tuple[int, int, bool]]:
    """(queue, quantity it draws above its own quota, whether in a burst) of the queues in the subtree that do: those
    that draw most first."""
    queues = state.queues
    found = []
    for queue, path in enumerate(queues.path):
        if vertex in path and not queues.children[queue] and queues.borrowed(queue, slot):
            bursts = any(slot in queues.burst_excess(above) for above in path if above in queues.bursts)
            found.append((queue, queues.borrowed(queue, slot), bursts))
    return sorted(found, key=lambda item: (-item[1], item[0]))


def amount(slot: int, value: int) -> str:
    """A quantity of a quota slot, whatever the pool."""
    return quantity(slot % WIDTH, value)
