"""Preemptors of one kind, one after the other: each takes the place of one victim that is just as large.

Thousands of equal single tasks that preempt would each look at the whole cell and find the same: where every possible
victim of the lowest level that helps asks for exactly what the preemptor asks for, each of them alone is enough, so the
best set is the cheapest of them, the youngest of equals; and after the exchange room, quota and everybody else are as
before. So the second of such a run looks once, and the rest take the next in that order, as long as nothing else has
happened meanwhile. What `engine.scheduling.preemption` would find for each of them is the same.
"""

from __future__ import annotations

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.placement.node_choice import is_simple
from engine.scheduling import preemption
from engine.state.cell_state import State

Victim = tuple[int, int]
"""(workload row, index into REQUEUE_CAUSES)"""
Kind = tuple[int, int, int, tuple[Shape, ...]]
"""(queue row, priority class row, class row, shapes)"""
LOWER_PRIORITY = ev.REQUEUE_CAUSES.index("lower priority")


class Exchange:
    """The run of like preemptors under way. Holds nothing that could not be found again from the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kind: Kind | None = None
        self._version = -1
        """Of the state when the last of the run had started."""
        self._last = -1
        """Its victim."""
        self._next: list[Victim] | None = None
        """The victims of those to come, the first last; None before they were looked for."""
        self._barren: tuple[Kind, int] | None = None
        """A kind for which nobody was found that way, and when, cell ms: not to be looked for again at that time."""

    def next(self, row: int, shapes: tuple[Shape, ...]) -> Victim | None:
        """Whom the workload, which may preempt and does not fit, takes the place of; None when it is no part of a
        run, or others must be looked for."""
        state = self._state
        kind = self._kind_of(row, shapes)
        if self._version != state.version or self._kind != kind:
            return None
        if self._next is None:
            if self._barren == (kind, state.now_ms):
                return None
            self._next = preemption.alike(state, row, shapes, self._last)[::-1]
            if not self._next:
                self._barren = (kind, state.now_ms)
        return self._next.pop() if self._next else None

    def took(self, victim: Victim) -> None:
        """The one that was asked for has started in the place of this victim."""
        self._last = victim[0]
        self._version = self._state.version

    def found(self, row: int, shapes: tuple[Shape, ...], victims: tuple[Victim, ...]) -> None:
        """The workload has started in the place of these, for whom the cell was searched: a run may begin."""
        self._kind = self._kind_of(row, shapes) if self._is_even(row, shapes, victims) else None
        self._next = None
        self.took(victims[0])

    def _kind_of(self, row: int, shapes: tuple[Shape, ...]) -> Kind:
        w = self._state.workloads
        return w.queue[row], w.priority[row], w.cls[row], shapes

    def _is_even(self, row: int, shapes: tuple[Shape, ...], victims: tuple[Victim, ...]) -> bool:
        """Whether one task has taken the place of an equal one of lower priority, and nothing but room and quota
        counts for either."""
        state = self._state
        w, queue = state.workloads, state.workloads.queue[row]
        ((victim, cause), *others) = victims
        bookings = state.bookings
        return (
            not others
            and cause == LOWER_PRIORITY
            and w.queue[victim] == queue
            and is_single(state, row)
            and shapes[0].topology is None
            and is_simple(state.capacity, shapes[0])
            and not (bookings.reservations or bookings.clearings)
            and not state.queues.flavored(queue)
            and not any(vertex in state.queues.bursts for vertex in state.queues.path[queue])
            and preemption.asks_for_the_same(state, w.cls[victim], w.cls[row])
        )


def is_single(state: State, row: int) -> bool:
    workload_class = state.workloads.class_at(row)
    return workload_class.single and not workload_class.reservation and not workload_class.array
