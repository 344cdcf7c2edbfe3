"""The scheduling cycle: go through waiting work in order, start it, preempt where the policy allows it, promise a time
to blocked work, and let elastic workloads grow.

Order: band of the priority class, then the share of the queue and of those above it
(`engine.scheduling.candidate_order`), then priority, then age. Policies: `fcfs`: within a queue nothing starts before
work ahead of it. `easy`: the first workload that lacks capacity gets a reservation, and work behind it may start if
that is not delayed (`engine.scheduling.backfill`). `easy-sjbf` is the same with the shortest first among those behind.
`conservative`: every blocked workload gets a reservation (`engine.scheduling.conservative_backfill`). A workload that
waits only for quota is passed over and holds up no other, unless its queue is strictly first in, first out.

A pass looks at everything only when there is a cause (`engine.state.pending_groups`). Otherwise it looks at new
arrivals alone, because blocked work still is blocked. A verdict holds for a whole group of like workloads. While room,
quota and order alone decide, the first candidates start together (`engine.scheduling.batches`).

Read on in `engine.scheduling.workload_admission`, which decides about one candidate, and in
`engine.scheduling.cycle_memory`, which records the decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, zip_longest

from engine.model import events as ev
from engine.model.specs import WorkloadState
from engine.placement.fragmentation import live_mix
from engine.placement.gang_placement import counts_in_quota, variants
from engine.placement.node_choice import mix_of, uses_mix
from engine.scheduling.backfill import correct_overdue
from engine.scheduling.batches import Batches, put_back
from engine.scheduling.candidate_order import CandidateOrder, Order, ShortestFirst, order_of
from engine.scheduling.conservative_backfill import Conservative
from engine.scheduling.cycle_memory import MAX_DECISIONS, Binder, CandidateVerdict, CycleMemory
from engine.scheduling.workload_admission import Admission, Elastic, Preemptor
from engine.state.cell_state import State
from engine.state.pending_work import STOPPED, Cause, Key


class OrderedPass:
    """Walks over the candidates once."""

    def __init__(
        self,
        state: State,
        memory: CycleMemory,
        admission: Admission,
        binder: Binder,
        preemptor: Preemptor,
        batches: Batches,
        heads: Iterable[tuple[Key, int]],
    ) -> None:
        """`heads`: the pending key and the first row of each group."""
        self._state = state
        self._memory = memory
        self._admission = admission
        self._binder = binder
        self._batches = batches
        self._lineup: CandidateOrder | ShortestFirst = CandidateOrder(state, heads)
        self._closed: set[int] = set()
        """Queues of which nothing more starts."""
        self._refused: set[int] = set()
        """Kinds of which nothing more starts."""
        self._kinds_fare_alike = not preemptor.anyone_preempts() and not state.bookings.reservations
        """No queue or priority gets nodes that others of the kind do not."""
        self._one_by_one = binder.max_at_once < 2
        self._started: Order | None = None
        """The last that started, until it is known who was next."""
        memory.lowered.clear()

    def run(self) -> int:
        """Returns how many started."""
        before = self._memory.starts
        while (first := self._next()) is not None:
            if self._may_start_together():
                begun = self._start_together()
                first = self._lineup.first()
                if begun or first is None:
                    continue
            self._admit(*first)
        return self._memory.starts - before

    def _next(self) -> tuple[Order, Key] | None:
        """The candidate whose turn it is; None when there is none."""
        if self._state.policy == "easy-sjbf" and self._memory.reservation is not None:
            self._put_shortest_first()
        first = self._lineup.first()
        if self._started is not None:
            self._memory.note_decision(self._started, None if first is None else first[0])
            self._started = None
        return first

    def _put_shortest_first(self) -> None:
        if isinstance(self._lineup, CandidateOrder):
            self._lineup = ShortestFirst(self._state, self._lineup.rest())

    def _admit(self, order: Order, key: Key) -> None:
        """Start the first candidate, or drop it and what fares alike."""
        lineup, memory = self._lineup, self._memory
        if key[1] in self._closed or key[2] in self._refused:
            lineup.drop(self._closed, self._refused)
            return
        verdict = self._admission.admit(order[3])
        if verdict == CandidateVerdict.STARTED:
            group = self._state.pending.groups.get(key)
            lineup.started(None if group is None else group.rows[group.front])
            self._started = order
        else:
            lineup.drop()
            self._pass_over(key, verdict)
        if memory.lowered:
            lineup.lowered(memory.lowered)
            memory.lowered.clear()

    def _pass_over(self, key: Key, verdict: CandidateVerdict) -> None:
        """Pass over all that do not start when the first of a group does not."""
        if verdict == CandidateVerdict.QUEUE_CLOSED or self._state.is_strict(key[1]):
            self._closed.add(key[1])
        elif verdict in (CandidateVerdict.ARRAY_LIMIT, CandidateVerdict.CAP):
            self._refused.add(key[2])
        elif verdict in (CandidateVerdict.NO_CAPACITY, CandidateVerdict.WOULD_DELAY) and self._kinds_fare_alike:
            # In other queues and priorities too: room only shrinks during a pass.
            self._refused.add(key[2])

    # -- together -----------------------------------------------------------------------------------------------------

    def _may_start_together(self) -> bool:
        together = not self._one_by_one and isinstance(self._lineup, CandidateOrder)
        return together and self._memory.reservation is None and self._batches.are_sure()

    def _start_together(self) -> int:
        """Start the first candidates all at once, as many as would start one by one. Returns how many those were. Where
        one found no room, the pass goes on one by one."""
        lineup, batches = self._lineup, self._batches
        assert isinstance(lineup, CandidateOrder)
        if not batches.may_begin(lineup):
            self._one_by_one = True
            return 0
        draws, nexts = batches.draw(lineup, self._closed, self._refused)
        if not draws:
            return 0
        begun = batches.start(self._binder, draws)
        known = list(zip(draws[:begun], nexts, strict=False))[-MAX_DECISIONS:]
        for draw, following in known:
            self._memory.note_decision(draw.order, following)
        if begun < len(draws):
            self._lineup = CandidateOrder(self._state, put_back(lineup, draws[begun:]))
            self._one_by_one = True
        elif len(nexts) < begun:
            self._started = draws[-1].order
        return begun


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
        """True if room on open nodes alone decides starts."""
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


MAX_PASSES = 16
"""Passes of one cycle: each preemption may let its victims be looked at again."""


class Scheduler:
    """Decides on a State. Holds no fact of its own: dropping it loses only the memory of the last pass."""

    def __init__(
        self,
        state: State,
        emit: Callable[[ev.AnyEvent], None],
        emit_claimed: Callable[[ev.Placed | ev.PlacedMany | ev.Grown], None],
    ) -> None:
        """`emit_claimed` takes events whose capacity is claimed already."""
        self.state = state
        self.memory = CycleMemory(state)
        self.binder = Binder(state, self.memory, emit, emit_claimed)
        self._preemptor = Preemptor(state, self.binder)
        self._elastic = Elastic(state, self.memory, self.binder)
        self._admission = Admission(state, self.memory, self.binder, self._preemptor, self._elastic)
        self._batches = Batches(state)
        self._mix_rules = -1
        """`State.rules` when it was last found out whether a profile looks at the mix of tasks."""
        self._by_mix = False

    def cycle(self) -> None:
        """Start everything that may start now, until nothing more changes."""
        self._renew_overdue()
        for _ in range(MAX_PASSES):
            if not self.memory.unsettled:
                break
            arrivals, causes = self.memory.take_changes()
            starts = self.memory.starts
            self._note_mix()
            if causes or self.state.policy == "conservative":
                self._schedule_all()
            else:
                self._schedule_arrivals(arrivals)
            if self.memory.starts != starts and self._preemptor.is_waited_for():
                self.state.reconsider.ask(Cause.STARTED)
        if self.state.short:
            self._elastic.grow()

    def has_work(self, now_ms: int) -> bool:
        """True if a cycle at that time may find anything to do."""
        if self.memory.unsettled:
            return True
        overdue = self.next_overdue_ms()
        return overdue is not None and overdue <= now_ms

    def next_overdue_ms(self) -> int | None:
        """Cell time at which the next running workload should have ended, if anything waits for that."""
        state = self.state
        if not state.pending.by_class or not state.pending.groups:
            return None
        correct_overdue(state)
        return state.ends[0][0] if state.ends else None

    def carry_out(self, booking: int) -> None:
        """Finish a preemption whose victims have had their time (`engine.scheduling.workload_admission`)."""
        self._preemptor.carry_out(booking)

    def _renew_overdue(self) -> None:
        """Make promises anew where work has outrun its estimate and ends later than was counted on."""
        state = self.state
        if state.pending.by_class and state.ends and state.ends[0][0] <= state.now_ms and correct_overdue(state):
            state.reconsider.ask(Cause.OVERDUE)

    def _note_mix(self) -> None:
        """Have scores by the mix of tasks see what waits and runs now. Starts leave the mix as it is, so it holds for
        the whole pass. One pass over the allocations, where some profile asks for it."""
        state = self.state
        if self._mix_rules != state.rules:
            self._mix_rules = state.rules
            profiles = [*(pool.placement for pool in state.capacity.pools), *(q.placement for q in state.queues.specs)]
            self._by_mix = uses_mix(profiles)
        if self._by_mix:
            kinds = [(kind.shape, kind.tasks) for kind in live_mix(state).kinds if not kind.shape.mig]
            state.capacity.mix = mix_of(state.capacity, kinds)

    # -- passes -------------------------------------------------------------------------------------------------------

    def _schedule_all(self) -> None:
        """Look at everything that waits, as if for the first time."""
        state, memory = self.state, self.memory
        memory.reservation = None
        memory.short_of_room = False
        if state.policy == "conservative":
            ConservativePass(state, memory, self._admission, self.binder, self._preemptor).run()
        elif not self._start_rush():
            groups = state.pending.groups
            self._admit_in_order([(key, group.rows[group.front]) for key, group in groups.items() if key[3] != STOPPED])

    def _schedule_arrivals(self, arrivals: list[int]) -> None:
        """Look only at what is new and first of its group: behind a blocked one of its kind it is blocked too."""
        state = self.state
        if not state.pending.by_class or state.stretched:
            # Strict order, or elastic work that may shrink for what was refused before.
            self._schedule_all()
            return
        if self._start_rush():
            return
        heads = self._heads_among(arrivals)
        promised = self.memory.reservation is not None
        if self._overtakes(heads):
            self._schedule_all()
        elif self._admit_in_order(heads) and promised and len(state.queues.specs) > 1:
            # What started has changed shares, and with them perhaps who is first among those that wait.
            self._schedule_all()

    def _heads_among(self, arrivals: list[int]) -> list[tuple[Key, int]]:
        """(pending key, row) of those that wait as the first of their groups."""
        state = self.state
        heads: list[tuple[Key, int]] = []
        for row in arrivals:
            if state.workloads.state[row] == WorkloadState.QUEUED:
                key = state.pending_key(row)
                group = state.pending.groups[key]
                if group.rows[group.front] == row and key[3] != STOPPED:
                    heads.append((key, row))
        return heads

    def _overtakes(self, heads: list[tuple[Key, int]]) -> bool:
        """True if one goes before the workload that was promised its time, or before others of a strict queue."""
        if not heads:
            return False
        if any(self.state.is_strict(key[1]) for key, _ in heads):
            return True
        if self.memory.reservation is None:
            return False
        reserved = self.memory.reservation.row
        first = min(order_of(self.state, key, row) for key, row in heads)
        return first < order_of(self.state, self.state.pending_key(reserved), reserved)

    def _admit_in_order(self, heads: Iterable[tuple[Key, int]]) -> int:
        """Returns how many started."""
        return OrderedPass(
            self.state, self.memory, self._admission, self.binder, self._preemptor, self._batches, heads
        ).run()

    def _start_rush(self) -> bool:
        """Start as many as there is room for, where all waiting work has just come and quota is plenty. Returns True if
        those were all.
        """
        sure = self.binder.max_at_once > 1 and self.memory.reservation is None and self._batches.are_sure()
        rush = self._batches.rush() if sure and not self.state.budgets.any_stops else None
        if rush is None:
            return False
        begun, count = self._batches.start_rush(self.binder, rush), len(rush.rows)
        if begun:
            orders = rush.orders(self.state, max(begun - MAX_DECISIONS, 0), begun + 1)
            for order, following in islice(zip_longest(orders, orders[1:]), min(begun, MAX_DECISIONS)):
                self.memory.note_decision(order, following)
        return begun == count
