"""One workload: whether its queue, quota, capacity and the promises to others let it start now, and if not, what could
be done about it."""

from __future__ import annotations

from engine.capacity.task_shapes import Shape
from engine.placement.gang_placement import place, unplace
from engine.placement.start_variants import counts_in_quota, usable_bookings, variants
from engine.scheduling.backfill import PromisedStart
from engine.scheduling.binder import Binder
from engine.scheduling.cycle_memory import CandidateVerdict, CycleMemory
from engine.scheduling.elastic_workloads import Elastic
from engine.scheduling.preemptor import Preemptor
from engine.state.cell_state import State


class Admission:
    """Admits workloads one by one, in the order in which they are brought."""

    def __init__(
        self, state: State, memory: CycleMemory, binder: Binder, preemptor: Preemptor, elastic: Elastic
    ) -> None:
        self._state = state
        self._memory = memory
        self._binder = binder
        self._preemptor = preemptor
        self._elastic = elastic

    def admit(self, row: int) -> CandidateVerdict:
        """Start the workload, have others make room for it, or promise it its time."""
        closed = self.closed_gate(row)
        if closed is not None:
            return closed
        verdict = self._start(row)
        if verdict in (CandidateVerdict.NO_QUOTA, CandidateVerdict.NO_CAPACITY):
            if verdict == CandidateVerdict.NO_CAPACITY and self._state.stretched and self._elastic.shrink_for(row):
                return CandidateVerdict.STARTED
            made_room = self._preemptor.make_room(row)
            if made_room is not None:
                return made_room
        if verdict == CandidateVerdict.NO_CAPACITY:
            self._memory.short_of_room = True
            self._promise(row)
        return verdict

    def closed_gate(self, row: int) -> CandidateVerdict | None:
        """Why the workload is not even tried: its queue is closed, its array has its fill, its reservation has not
        begun, a budget or a cap is used up. None when it is."""
        state, w = self._state, self._state.workloads
        if not state.queues.is_open(w.queue[row]):
            return CandidateVerdict.QUEUE_CLOSED
        if w.at_array_limit(row):
            return CandidateVerdict.ARRAY_LIMIT
        if w.class_at(row).reservation and not usable_bookings(state, row):
            return CandidateVerdict.NOT_YET
        if state.budgets.specs and state.budgets.stopping(state, row) is not None:
            return CandidateVerdict.BUDGET
        if state.caps.any and state.caps.stopping(row) is not None:
            return CandidateVerdict.CAP
        return None

    def _start(self, row: int) -> CandidateVerdict:
        """Place the workload in the first of its variants that quota and capacity allow: all of them within the
        nominal quota first, then borrowing. Of several refusals the last word is the one that is nearest to a start."""
        state = self._state
        by_pool = state.queues.flavored(state.workloads.queue[row])
        nearest = CandidateVerdict.NO_QUOTA
        for borrow in (False, True) if by_pool else (True,):
            for shapes in variants(state, row):
                counts = counts_in_quota(state, row, shapes, borrow=borrow)
                if counts is None:
                    continue
                verdict = self._start_as(row, shapes, counts)
                if verdict == CandidateVerdict.STARTED or not by_pool:
                    return verdict
                nearest = (
                    CandidateVerdict.NO_CAPACITY if CandidateVerdict.NO_CAPACITY in (verdict, nearest) else verdict
                )
        return nearest

    def _start_as(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> CandidateVerdict:
        """Place between the fewest tasks and `counts` of these shapes, if there is room and no promise is broken."""
        cls = self._state.workloads.cls[row]
        least = self._state.workloads.classes[cls].least
        if self._memory.refusals.holds(cls, shapes):
            return CandidateVerdict.NO_CAPACITY
        promise = self._memory.reservation
        late = promise is not None and not promise.ends_in_time(row)
        if promise is not None and promise.needs_quota(row):
            return CandidateVerdict.PROMISED_QUOTA
        if late and promise is not None and promise.certainly_in_the_way(shapes, sum(least)):
            return CandidateVerdict.WOULD_DELAY
        claims = place(self._state.capacity, shapes, least, counts)
        if claims is None:
            self._memory.refusals.note(cls, shapes)
            return CandidateVerdict.NO_CAPACITY
        if promise is not None and not promise.allows(shapes, claims, late=late):
            unplace(self._state.capacity, shapes, claims)
            return CandidateVerdict.WOULD_DELAY
        self._binder.bind(row, shapes, claims, backfilled=promise is not None)
        return CandidateVerdict.STARTED

    def _promise(self, row: int) -> None:
        """Promise its time to the first workload with too little free."""
        state = self._state
        named = state.workloads.class_at(row).reservation
        if self._memory.reservation is None and state.pending.by_class and not named:
            promise = PromisedStart(state, row)
            # What no running work stands in the way of (nodes are down, or its groups never fit together) holds up
            # nobody: there is no time to promise.
            if promise.start_ms is not None and promise.start_ms > state.now_ms:
                self._memory.reservation = promise
