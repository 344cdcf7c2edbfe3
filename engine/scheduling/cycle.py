"""The scheduling cycle: go through waiting work in order, start it, preempt where the policy allows it, promise a time
to blocked work, and let elastic workloads grow.

Order: band of the priority class, then the share of the queue and of those above it
(`engine.scheduling.candidate_order`), then priority, then age. Policies: `fcfs`: within a queue nothing starts before
work ahead of it. `easy`: the first workload that lacks capacity gets a reservation, and work behind it may start if
that is not delayed (`engine.scheduling.backfill`). `easy-sjbf` is the same with the shortest first among those behind.
`conservative`: every blocked workload gets a reservation (`engine.scheduling.conservative_backfill`). `kueue`: Kueue's
order, quota and preemption, all in `engine.scheduling.kueue_cycles`; the rest here is not heeded. A workload that waits
only for quota is passed over and holds up no other, unless its queue is strictly first in, first out.

A pass looks at everything only when there is a cause (`engine.state.pending_work`). Otherwise it looks at new arrivals
alone, because blocked work still is blocked. A verdict holds for a whole group of like workloads.

Read on in `engine.scheduling.ordered_pass`, which goes through the candidates, in
`engine.scheduling.workload_admission`, which decides about one of them, and in `engine.scheduling.cycle_memory`, which
records the decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from engine.model import events as ev
from engine.model.specs import WorkloadState
from engine.placement.fragmentation import live_mix
from engine.placement.node_choice import mix_of, uses_mix
from engine.scheduling.backfill import correct_overdue
from engine.scheduling.candidate_order import FOREVER, next_to_wait_too_long, order_of
from engine.scheduling.conservative_backfill import ConservativePass
from engine.scheduling.cycle_memory import MAX_DECISIONS, Binder, CycleMemory
from engine.scheduling.kueue_cycles import KueueCycles
from engine.scheduling.ordered_pass import Batches, OrderedPass
from engine.scheduling.workload_admission import Admission, Elastic, Preemptor
from engine.state.cell_state import State
from engine.state.pending_work import STOPPED, Cause, Key

MAX_PASSES = 16
"""Passes of one cycle: each preemption may let its victims be looked at again."""
Steps = Generator[None, None, None]
"""Work that may be interrupted after each candidate."""


def never() -> bool:
    return False


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
        self._preemptor = Preemptor(state, self.memory, self.binder)
        self._elastic = Elastic(state, self.memory, self.binder)
        self._admission = Admission(state, self.memory, self.binder, self._preemptor, self._elastic)
        self._kueue = KueueCycles(state, self.binder, self._admission.closed_gate)
        self._batches = Batches(state)
        self._mix_rules = -1
        """`State.rules` when it was last found out whether a profile looks at the mix of tasks."""
        self._by_mix = False
        self._under_way: Steps | None = None
        """The rest of a cycle that was interrupted."""
        self._rules = -1
        """`State.rules` when it began."""

    def cycle(self, enough: Callable[[], bool] = never) -> None:
        """Start everything that may start now, until nothing more changes. Once `enough`, asked after each candidate,
        the rest is left for the next call: whatever else happens in between is looked at after it."""
        if self._under_way is not None and self._rules != self.state.rules:
            self._under_way = None
            self.state.reconsider.ask(Cause.RULES)
        if self._under_way is None:
            self._rules = self.state.rules
            self._under_way = self._passes()
        for _ in self._under_way:
            if enough():
                return
        self._under_way = None

    @property
    def is_interrupted(self) -> bool:
        """True if a cycle has been left half-way."""
        return self._under_way is not None

    def _passes(self) -> Steps:
        """The passes of a cycle."""
        self._look_again_in_time()
        for _ in range(MAX_PASSES):
            if not self.memory.unsettled:
                break
            arrivals, causes = self.memory.take_changes()
            starts = self.memory.starts
            self._note_mix()
            if self.state.policy == "kueue":
                yield from self._kueue.run(arrivals, causes)
                continue
            if causes or self.state.policy == "conservative":
                yield from self._schedule_all()
            else:
                yield from self._schedule_arrivals(arrivals)
            if self.memory.starts != starts and self._preemptor.is_waited_for():
                self.state.reconsider.ask(Cause.STARTED)
        if self.state.short and self.state.policy != "kueue":
            self._elastic.grow()

    def has_work(self, now_ms: int) -> bool:
        """True if a cycle at that time may find anything to do."""
        if self.memory.unsettled or self.is_interrupted:
            return True
        look = self.next_look_ms()
        return look is not None and look <= now_ms

    def next_look_ms(self) -> int | None:
        """Cell time at which what waits is to be looked at again although nothing happens: the next running workload
        should have ended, or one that waits will have waited so long that it goes first. None when neither will be."""
        state = self.state
        if not state.pending.groups:
            return None
        look = self.memory.reordered_ms
        if state.pending.by_class:
            correct_overdue(state)
            first = state.ends.at(0)
            look = look if first is None else min(look, first[0])
        return None if look == FOREVER else look

    def carry_out(self, booking: int) -> None:
        """Finish a preemption whose victims have had their time (`engine.scheduling.workload_admission`)."""
        self._preemptor.carry_out(booking)

    def _look_again_in_time(self) -> None:
        """Make promises anew where work has outrun its estimate and ends later than was counted on, or where time has
        put another one first."""
        state = self.state
        if state.pending.by_class and correct_overdue(state):
            state.reconsider.ask(Cause.OVERDUE)
        if self.memory.reordered_ms <= state.now_ms:
            self.memory.reordered_ms = FOREVER
            if state.pending.groups:
                state.reconsider.ask(Cause.TIME)

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

    def _schedule_all(self) -> Steps:
        """Look at everything that waits, as if for the first time."""
        state, memory, looked_ms = self.state, self.memory, self.state.now_ms
        memory.reservation = None
        memory.short_of_room = False
        if state.policy == "conservative":
            ConservativePass(state, memory, self._admission, self.binder, self._preemptor).run()
            yield
        elif not self._start_rush():
            groups = state.pending.groups.items()
            heads = [(key, group.rows[group.front]) for key, group in groups if key[3] != STOPPED]
            if heads:
                yield from self._admit_in_order(heads)
        fronts = (group.rows[group.front] for group in state.pending.groups.values())
        memory.reordered_ms = next_to_wait_too_long(state, fronts, looked_ms)

    def _schedule_arrivals(self, arrivals: list[int]) -> Steps:
        """Look only at what is new and first of its group: behind a blocked one of its kind it is blocked too."""
        state = self.state
        self.memory.reordered_ms = min(self.memory.reordered_ms, next_to_wait_too_long(state, arrivals, state.now_ms))
        if not state.pending.by_class or state.stretched:
            # Strict order, or elastic work that may shrink for what was refused before.
            yield from self._schedule_all()
            return
        if self._start_rush():
            return
        heads = self._heads_among(arrivals)
        promised, starts = self.memory.reservation is not None, self.memory.starts
        if not self._overtakes(heads):
            yield from self._admit_in_order(heads)
            if not promised or len(state.queues.specs) == 1 or self.memory.starts == starts:
                return
            # What started has changed shares, and with them perhaps who is first among those that wait.
        yield from self._schedule_all()

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

    def _admit_in_order(self, heads: Iterable[tuple[Key, int]]) -> Steps:
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
            self.memory.note_decisions(orders[: min(begun, MAX_DECISIONS)], [*orders[1:], None])
        return begun == count
