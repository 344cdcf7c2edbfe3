"""The pass of conservative backfill: every blocked workload is promised its time
(`engine.scheduling.conservative_backfill`)."""

from __future__ import annotations

from collections import deque

from engine.placement.start_variants import counts_in_quota, variants
from engine.scheduling.binder import Binder
from engine.scheduling.candidate_order import CandidateOrder, Order
from engine.scheduling.conservative_backfill import Conservative
from engine.scheduling.cycle_memory import CandidateVerdict, CycleMemory
from engine.scheduling.preemptor import Preemptor
from engine.scheduling.workload_admission import Admission
from engine.state.cell_state import State
from engine.state.pending_groups import STOPPED, Key


class ConservativePass:
    """One look at all that waits, in order. Stops as soon as nothing more can start: promises that no start depends on
    are not worked out."""

    def __init__(
        self, state: State, memory: CycleMemory, admission: Admission, binder: Binder, preemptor: Preemptor
    ) -> None:
        self._state = state
        self._memory = memory
        self._admission = admission
        self._binder = binder
        self._preemptor = preemptor

    def run(self) -> None:
        """Start what may start, and promise the rest their times."""
        state = self._state
        only_room_counts = self._only_room_counts()
        groups = state.pending.groups
        if only_room_counts and not any(self._may_fit(group.rows[group.front]) for group in groups.values()):
            self._memory.short_of_room = bool(groups)
            return
        self._waiting = {key: deque(group.rows[group.front :]) for key, group in groups.items() if key[3] != STOPPED}
        heads = [(key, rows[0]) for key, rows in self._waiting.items()]
        self._lineup = CandidateOrder(state, heads)
        self._plan = Conservative(state, state.settings.reservation_depth)
        self._hopeful = heads[:] if only_room_counts else None
        while (first := self._next()) is not None:
            if not self._look_at(*first):
                return
        self._memory.promises = self._plan.starts

    def _next(self) -> tuple[Order, Key] | None:
        """The candidate whose turn it is; None when none is left that can start."""
        hopeful = self._hopeful
        while hopeful and (not self._waiting[hopeful[-1][0]] or not self._plan.may_start(hopeful[-1][1])):
            hopeful.pop()
        first = self._lineup.first()
        if first is None or (hopeful is not None and not hopeful):
            self._memory.short_of_room = first is not None
            return None
        return first

    def _look_at(self, order: Order, key: Key) -> bool:
        """Start or promise it, and say who follows. False when others were stopped for it: the plan is of a past."""
        lineup, waiting = self._lineup, self._waiting[key]
        waiting.popleft()
        before = self._state.changes_mark
        verdict = self._start_or_promise(order[3])
        if self._state.changes_mark != before:
            return False
        follower = waiting[0] if waiting else None
        if verdict == CandidateVerdict.STARTED:
            lineup.started(follower)
            ahead = lineup.first()
            self._memory.note_decision(order, None if ahead is None else ahead[0])
            return True
        lineup.drop()
        if verdict == CandidateVerdict.QUEUE_CLOSED or self._state.is_strict(key[1]):
            lineup.leave_out(key[1])
        elif verdict == CandidateVerdict.NO_CAPACITY and not self._plan.full and follower is not None:
            lineup.put(key, follower)
        return True

    def _may_fit(self, row: int) -> bool:
        """A quick necessary condition for a start on open nodes."""
        workload_class = self._state.workloads.class_at(row)
        pairs = zip(workload_class.shapes, workload_class.least, strict=True)
        return all(self._state.capacity.could_hold(shape, count) for shape, count in pairs)

    def _only_room_counts(self) -> bool:
        """Whether nothing but room on open nodes decides who starts."""
        bookings = self._state.bookings
        preempted = self._preemptor.anyone_preempts()
        return not (preempted or bookings.reservations or bookings.clearings or self._state.stretched)

    def _start_or_promise(self, row: int) -> CandidateVerdict:
        """Start the workload if the plan allows, or promise it its time."""
        closed = self._admission.closed_gate(row)
        if closed is not None:
            return closed
        verdict = self._start(row)
        if verdict in (CandidateVerdict.STARTED, CandidateVerdict.PROMISED_QUOTA):
            return verdict
        made_room = self._preemptor.make_room(row)
        if made_room is not None:
            return made_room
        if verdict == CandidateVerdict.NO_CAPACITY:
            self._memory.short_of_room = True
            self._plan.promise(row)
        return verdict

    def _start(self, row: int) -> CandidateVerdict:
        """Start it in the first of its variants that quota and the plan allow."""
        state, plan = self._state, self._plan
        verdict = CandidateVerdict.NO_QUOTA
        for borrow in (False, True) if state.queues.flavored(state.workloads.queue[row]) else (True,):
            for shapes in variants(state, row):
                allowed = counts_in_quota(state, row, shapes, borrow=borrow)
                if allowed is None:
                    continue
                if plan.needs_quota(row):
                    return CandidateVerdict.PROMISED_QUOTA
                verdict = CandidateVerdict.NO_CAPACITY
                for counts in dict.fromkeys((allowed, state.workloads.class_at(row).least)):
                    claims = plan.start(row, shapes, counts)
                    if claims is not None:
                        self._binder.bind(row, shapes, claims, backfilled=bool(plan.starts))
                        return CandidateVerdict.STARTED
        return verdict
