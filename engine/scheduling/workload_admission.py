"""The admission of one workload in a pass: it starts, is promised a time, starts by preemption, or waits.

Admission checks its queue, quota, capacity and the promises to others. Elastic workloads that run give up tasks for
waiting work, and get more when nothing waits. A preemption stops its victims so that the workload starts, at once or
after they have saved their work; `engine.scheduling.preemption` chooses them.

Thousands of equal single tasks that preempt would each look at the whole cell and find the same. If every possible
victim of the lowest level that helps asks for exactly the preemptor's request, each of them alone is enough. The best
set is then the cheapest of them, the youngest of equals; and after the exchange room, quota and all others are as
before. So the second of such a run looks once, and the rest take the next in that order, as long as nothing else has
happened meanwhile. `engine.scheduling.preemption` would find the same victims one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial

import numpy as np

from engine.capacity.index import OPEN
from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.placement.gang_placement import Claim, counts_in_quota, packed, place, unplace, usable_bookings, variants
from engine.placement.node_choice import is_simple
from engine.scheduling import preemption
from engine.scheduling.backfill import PromisedStart
from engine.scheduling.cycle_memory import Binder, CandidateVerdict, CycleMemory
from engine.state.cell_state import State

Donated = tuple[int, Claim]
"""(workload row, tasks it gives away)"""


class Elastic:
    """Grows and shrinks what runs."""

    def __init__(self, state: State, memory: CycleMemory, binder: Binder) -> None:
        self._state = state
        self._memory = memory
        self._binder = binder

    def grow(self) -> None:
        """Give running elastic workloads more tasks, oldest first: only while nothing waits for capacity. Services get
        theirs then too, as far as that breaks no promise."""
        for row in self._growing():
            for shapes in variants(self._state, row):
                if not self._missing(row):
                    break
                claims = self._place_more(row, shapes)
                promise = self._memory.reservation
                if claims and promise is not None and not promise.allows(shapes, claims, late=True):
                    unplace(self._state.capacity, shapes, claims)
                elif claims:
                    self._binder.emit_claimed(ev.Grown(row, packed(claims, len(shapes))))

    def _growing(self) -> Iterator[int]:
        """Rows that may grow now, oldest first."""
        state = self._state
        held_ms = state.replicas.held_ms
        growing = state.short
        if self._memory.short_of_room:
            growing = state.short & state.replicas.running if state.policy != "conservative" else set()
        for row in sorted(growing):
            if held_ms and held_ms.get(row, 0) > state.now_ms:
                continue
            if not state.budgets.specs or state.budgets.stopping(state, row) is None:
                yield row

    def _missing(self, row: int) -> tuple[int, ...]:
        """Tasks that it lacks of each group; empty when it lacks none."""
        state = self._state
        pairs = zip(state.counts_wanted(row), state.placed_of(row), strict=True)
        missing = tuple(count - have for count, have in pairs)
        return missing if any(missing) else ()

    def _place_more(self, row: int, shapes: tuple[Shape, ...]) -> list[Claim]:
        """Claims for as many of the tasks it lacks as room and quota allow."""
        state = self._state
        missing = self._missing(row)
        beside = state.allocations.node[state.workloads.first_allocation[row]]
        with state.growing(row):
            claims = place(state.capacity, shapes, (0,) * len(missing), missing, beside) or []
        while claims and not self._within_quota(row, shapes, claims):
            group, node, count, devices = claims.pop()
            state.capacity.give_back(node, shapes[group], count, devices)
        return claims

    def _within_quota(self, row: int, shapes: tuple[Shape, ...], claims: list[Claim]) -> bool:
        state = self._state
        more = [0] * len(shapes)
        for group, _, count, _ in claims:
            more[group] += count
        charge = state.charge_if(row, shapes, more)
        return state.queues.lack(state.workloads.queue[row], charge, state.now_ms) is None

    # -- giving away --------------------------------------------------------------------------------------------------

    def shrink_for(self, row: int) -> bool:
        """Take tasks that elastic workloads can do without, of the youngest first, if that lets this one start."""
        state = self._state
        if state.now_ms < state.workloads.may_preempt_at(row, state.settings):
            return False
        least = state.workloads.class_at(row).least
        for shapes in variants(state, row):
            if counts_in_quota(state, row, shapes, borrow=True) is None:
                continue
            donated = self._donate(row, shapes)
            fits = bool(donated) and self._fits(shapes, least)
            needed = self._needed(donated, shapes, least) if fits else donated
            for donor, claim in reversed(needed):
                self._take_again(donor, claim)
            if fits:
                self._shrink(needed, row)
                self._binder.bind_in_place(row, shapes)
                return True
        return False

    def _donate(self, row: int, shapes: tuple[Shape, ...]) -> list[Donated]:
        """All tasks that others can do without on nodes the shapes may use, given back on the capacity."""
        state = self._state
        donated: list[Donated] = []
        for donor in sorted(state.stretched - {row}, reverse=True):
            for claim in state.spare_tasks(donor):
                if any(state.capacity.usable(claim[1], shape) for shape in shapes):
                    self._give_back(donor, claim)
                    donated.append((donor, claim))
        return donated

    def _needed(self, donated: list[Donated], shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> list[Donated]:
        """The tasks, given back on the capacity, without which the gang does not fit; the others are taken again."""
        needed = []
        for donor, claim in reversed(donated):
            self._take_again(donor, claim)
            if not self._fits(shapes, counts):
                self._give_back(donor, claim)
                needed.append((donor, claim))
        return needed

    def _fits(self, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> bool:
        claims = place(self._state.capacity, shapes, counts)
        if claims is not None:
            unplace(self._state.capacity, shapes, claims)
        return claims is not None

    def _give_back(self, donor: int, claim: Claim) -> None:
        group, node, count, devices = claim
        self._state.capacity.give_back(node, self._state.workloads.class_at(donor).shapes[group], count, devices)
        self._state.shift_company(donor, -1, [(node, count)])

    def _take_again(self, donor: int, claim: Claim) -> None:
        group, node, count, devices = claim
        self._state.capacity.take(node, self._state.workloads.class_at(donor).shapes[group], count, devices)
        self._state.shift_company(donor, 1, [(node, count)])

    def _shrink(self, needed: list[Donated], row: int) -> None:
        """Have each donor give away its part for the row."""
        w = self._state.workloads
        for donor in dict.fromkeys(donor for donor, _ in needed):
            given = [claim for other, claim in needed if other == donor]
            self._binder.emit(ev.Shrunk(donor, packed(given, len(w.class_at(donor).shapes)), by=row))
            self._memory.lowered.add(w.queue[donor])


Victim = tuple[int, int]
"""(workload row, index into EVICTION_CAUSES)"""
Kind = tuple[int, int, int, tuple[Shape, ...]]
"""(queue row, priority class row, class row, shapes)"""
LOWER_PRIORITY = ev.EVICTION_CAUSES.index("lower priority")


class Exchange:
    """The run of like preemptors under way. Holds nothing that could not be found again from the state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kind: Kind | None = None
        self._version = -1
        """Version of the state when the last of the run had started."""
        self._last = -1
        """Its victim."""
        self._next: list[Victim] | None = None
        """The victims of those to come, the first last; None before they were looked for."""
        self._barren: tuple[Kind, int] | None = None
        """A kind for which nobody was found that way, and when, cell ms: not to be looked for again at that time."""

    def next(self, row: int, shapes: tuple[Shape, ...]) -> Victim | None:
        """The victim whose place the workload takes, given that it may preempt and does not fit; None when it is no
        part of a run, or others must be looked for.
        """
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
        """True if one task has taken the place of an equal one of lower priority, and room and quota alone count for
        either.
        """
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


class Preemptor:
    """Makes room for one workload after the other."""

    def __init__(self, state: State, memory: CycleMemory, binder: Binder) -> None:
        self._state = state
        self._memory = memory
        self._binder = binder
        self._exchanges = Exchange(state)
        self._all_end_soon_at = (-1, False)
        """State version, and whether then all that ran was likely to end soon."""

    def anyone_preempts(self) -> bool:
        """True if some workload may preempt others as things are."""
        state = self._state
        return any(spec.preemption != "never" for spec in state.workloads.priority_classes) or (
            state.queues.anyone_borrows()
        )

    def is_waited_for(self) -> bool:
        """True if something waits that might preempt."""
        state = self._state
        return self.anyone_preempts() and any(
            preemption.may_preempt(state, group.rows[group.front]) for group in state.pending.groups.values()
        )

    def make_room(self, row: int) -> CandidateVerdict | None:
        """Start it in the place of others, or ask these for checkpoints first. None when the policy finds nobody, or
        waiting is as quick."""
        state = self._state
        if not preemption.may_preempt(state, row):
            return None
        if state.bookings.clearing_for(row) is not None:
            return CandidateVerdict.CLEARING
        if self._exchange(row):
            return CandidateVerdict.STARTED
        if self._all_end_soon():
            return None
        counts = state.workloads.class_at(row).least
        for shapes in variants(state, row):
            found = self._victims(row, shapes, counts)
            if found is None:
                continue
            victims = np.array([victim for victim, _ in found.victims], np.int64)
            if preemption.waiting_is_better(state, victims, found.delay_ms):
                return None
            if found.delay_ms:
                self._clear(row, found)
                return CandidateVerdict.CLEARING
            for victim, cause in found.victims:
                self._binder.stop(victim, cause, by=row)
            self._binder.bind_in_place(row, shapes)
            self._exchanges.found(row, shapes, found.victims)
            return CandidateVerdict.STARTED
        return None

    def _victims(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> preemption.Preemption | None:
        """`preemption.find`, but where that would be in vain again."""
        state, vain = self._state, self._memory.vain
        charge = state.charge_if(row, shapes, counts)
        search = vain.search_of(row, shapes, counts, charge)
        if vain.holds(search, row):
            return None
        return preemption.find(state, row, shapes, counts, charge, partial(vain.note, search, row))

    def _exchange(self, row: int) -> bool:
        """Start it in the place of the victim that is next in a run of like preemptors, if there is one."""
        shapes = next(variants(self._state, row), None) if self._binder.max_at_once > 1 else None
        victim = None if shapes is None else self._exchanges.next(row, shapes)
        if shapes is None or victim is None:
            return False
        self._binder.stop(*victim, by=row)
        self._binder.bind_in_place(row, shapes)
        self._exchanges.took(victim)
        return True

    def _all_end_soon(self) -> bool:
        """True if all running work is likely to end soon: then no victim is looked for."""
        state = self._state
        if not state.settings.preempt_after_ms:
            return False
        if self._all_end_soon_at[0] != state.version:
            soon = preemption.waiting_is_better(state, preemption.bound_rows(state))
            self._all_end_soon_at = (state.version, soon)
        return self._all_end_soon_at[1]

    def _clear(self, row: int, found: preemption.Preemption) -> None:
        """Ask the victims for checkpoints, and keep the nodes the preemptor will need meanwhile."""
        state = self._state
        nodes = sorted({node for _, node, _, _ in found.claims if state.capacity.booking[node] == OPEN})
        self._binder.emit(
            ev.Preempting(
                row,
                victims=array("i", [victim for victim, _ in found.victims]).tobytes(),
                causes=array("b", [cause for _, cause in found.victims]).tobytes(),
                nodes=array("i", nodes).tobytes(),
                at_ms=state.now_ms + found.delay_ms,
            )
        )

    def carry_out(self, booking: int) -> None:
        """The victims of a preemption have had their time: stop those that still may be, for the reason that holds
        now, and place the preemptor, if it fits then."""
        state = self._state
        clearing = next(c for c in state.bookings.clearings if c.booking == booking)
        w = state.workloads
        row = clearing.row
        if state.budgets.specs and state.budgets.stopping(state, row) is not None:
            self._binder.emit(ev.PreemptionEnded(row))
            return
        victims = [victim for victim in clearing.victims if w.preempting[victim] == row]
        counts = w.class_at(row).least
        for shapes in variants(state, row):
            charge = state.charge_if(row, shapes, counts)
            causes = preemption.still_victims(state, row, shapes, counts, charge, victims)
            # What is taken back from other queues must still be for the queue's own quota.
            borrow = all(w.queue[victim] == w.queue[row] for victim in causes)
            if causes and preemption.lets_start(state, row, shapes, counts, list(causes), borrow=borrow):
                for victim, cause in causes.items():
                    self._binder.stop(victim, cause, by=row, saved=w.checkpoint_cost[victim] > 0)
                self._binder.bind_in_place(row, shapes)
                return
        self._binder.emit(ev.PreemptionEnded(row))


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
        """The gate that keeps the workload from being tried: its queue is closed, its array has its fill, its
        reservation has not begun, a budget or a cap is used up. None when all are open.
        """
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
            promise = PromisedStart(state, row, self._memory.ended_by_promise)
            self._memory.ended_by_promise = promise.ended
            # What no running work stands in the way of (nodes are down, or its groups never fit together) holds up
            # nobody: there is no time to promise.
            if promise.start_ms is not None and promise.start_ms > state.now_ms:
                self._memory.reservation = promise
