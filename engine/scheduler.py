"""The cycle: look at what waits in order, start what may start, preempt where the policy allows it, promise the first
blocked workload its time, let elastic workloads grow.

Order: band of the priority class, then the share of the queue and of those above it (`engine.fairness`), then
priority, then age. Policies: `fcfs`: within a queue nothing starts before what is ahead of it. `easy`: the first
workload that lacks capacity gets a reservation, and whatever is behind it may start if that is not delayed
(`engine.backfill`); `easy-sjbf` considers those behind it shortest first. `conservative`: every blocked workload gets
one (`engine.conservative`). A workload that waits only for quota is passed over and holds up nobody, unless its queue
is strictly first in, first out.

A pass is full only when something was freed since the last; otherwise it looks at new arrivals alone, because what was
blocked still is. A verdict holds for a whole group of like workloads (`engine.pending`).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import IntEnum
from itertools import islice, product, zip_longest
from typing import NamedTuple

import numpy as np

from engine import events as ev
from engine import preemption
from engine.backfill import Reservation, correct_overdue
from engine.batch import Batches, place_singles, placed, put_back
from engine.capacity import OPEN, Capacity
from engine.choosing import mix_of, uses_mix
from engine.conservative import Conservative
from engine.exchange import Exchange
from engine.fairness import order_key
from engine.fragmentation import live_mix
from engine.lineup import Lineup, Order, ShortestFirst
from engine.model import NodeState, WorkloadState
from engine.pending import STOPPED, Key
from engine.placement import Claim, packed, place, unplace
from engine.shape import Shape
from engine.state import State
from engine.workloads import NONE

MOST_PASSES = 16
"""Passes of one cycle: each preemption may let its victims be looked at again."""
MOST_VARIANTS = 64
"""Assignments of task groups to pools that are tried, in order of preference."""
DECISIONS_KEPT = 256
LEAST_AT_ONCE = 32
"""Workloads drawn for a batch after one that failed early."""


class Verdict(IntEnum):
    STARTED = 0
    NO_QUOTA = 1
    NO_CAPACITY = 2
    WOULD_DELAY = 3
    PROMISED_QUOTA = 4
    QUEUE_CLOSED = 5
    ARRAY_LIMIT = 6
    CLEARING = 7
    """Victims are writing their checkpoints for it."""
    NOT_YET = 8
    """The reservation it names has not begun."""
    BUDGET = 9
    """A budget that it spends is spent."""
    CAP = 10
    """More than the outside scheduler lets run together."""


_OF_ROOM = (Verdict.NO_CAPACITY, Verdict.WOULD_DELAY)
"""What holds for all of a kind, unless their queue or priority gives them nodes that others do not get."""


class Decision(NamedTuple):
    """Why a workload went first."""

    at_ms: int
    row: int
    order: Order
    next_order: Order | None
    """Where the workload stood that was next; None when no other was a candidate."""


class Scheduler:
    """Decides on a State. Holds no fact of its own: dropping it loses only the memory of the last pass."""

    most_at_once = 512
    """Workloads that are started in one batch at most; below 2 they are started one by one, and each preemptor searches
    for its victims, which gives the same."""

    def __init__(
        self,
        state: State,
        emit: Callable[[ev.AnyEvent], None],
        emit_claimed: Callable[[ev.Placed | ev.PlacedMany | ev.Grown], None],
    ) -> None:
        """`emit_claimed` takes events whose capacity is claimed already."""
        self.state = state
        self.reservation: Reservation | None = None
        self.promises: dict[int, int] = {}
        """Conservative: row -> promised start, cell ms, as far as the last pass worked them out."""
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self._emit = emit
        self._emit_claimed = emit_claimed
        self._batches = Batches(state)
        self._exchanges = Exchange(state)
        self._mix_rules = -1
        """`State.rules` when it was last found out whether a profile looks at the mix of tasks."""
        self._by_mix = False
        self._at_once = LEAST_AT_ONCE
        self._seen_freed = -1
        self._no_room: dict[tuple[int, tuple[Shape, ...]], tuple[int, int]] = {}
        """(class row, shapes) -> `gained_mark` at which it was found not to fit, and for work with bonds the version of
        the company."""
        self._short_of_room = False
        """The last full pass left something waiting for capacity."""
        self._bound = 0
        """Starts so far."""
        self._lowered: set[int] = set()
        """Queues of which something was stopped, since the order of candidates last heard of it."""
        self._soon = (-1, False)
        """State version, and whether then all that ran was likely to end soon."""
        self._in_vain: set[Hashable] = set()
        """Searches for victims that found nobody, in the state of `_in_vain_at`: what waits is mostly alike."""
        self._in_vain_at = (-1, -1)
        """(version, cell ms) of the state."""

    def cycle(self) -> None:
        """Start everything that may start now, until nothing more changes."""
        state = self.state
        # What has outrun its estimate ends later than was counted on: promises are made anew.
        overdue = (
            state.pending.by_class and bool(state.ends) and state.ends[0][0] <= state.now_ms and correct_overdue(state)
        )
        for _ in range(MOST_PASSES):
            arrivals, state.arrivals = state.arrivals, []
            freed, bound = state.capacity.freed, self._bound
            if arrivals or overdue or self._seen_freed != freed:
                self._look_at_mix()
            if overdue or self._seen_freed != freed or (arrivals and state.policy == "conservative"):
                overdue = False
                self._full_pass()
            elif arrivals:
                self._look_at(arrivals)
            else:
                break
            self._seen_freed = freed
            if self._bound != bound and self._preemptor_waits():
                # What has started may be whom somebody refused before may preempt.
                state.capacity.freed += 1
        if state.short:
            self._grow()

    def _look_at_mix(self) -> None:
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

    @property
    def fresh(self) -> bool:
        """Whether it has never looked at anything."""
        return self._seen_freed < 0

    @property
    def unsettled(self) -> bool:
        """Whether something has changed since it last looked."""
        return bool(self.state.arrivals) or self._seen_freed != self.state.capacity.freed

    def has_work(self, now_ms: int) -> bool:
        """Whether a cycle at that time may find anything to do."""
        if self.unsettled:
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

    def _full_pass(self) -> None:
        """Look at everything that waits, as if for the first time."""
        self.reservation = None
        self._short_of_room = False
        if self.state.policy == "conservative":
            self._plan_all()
        elif not self._start_rush():
            groups = self.state.pending.groups
            self._run([(key, group.rows[group.front]) for key, group in groups.items() if key[3] != STOPPED])

    def _look_at(self, arrivals: list[int]) -> None:
        """Only what is new and first of its group: behind a blocked one of its kind it is blocked too."""
        state = self.state
        if not state.pending.by_class or state.stretched:
            # Strict order, or elastic work that may shrink for what was refused before.
            self._full_pass()
            return
        if self._start_rush():
            return
        candidates: list[tuple[Key, int]] = []
        for row in arrivals:
            if state.workloads.state[row] == WorkloadState.QUEUED:
                key = state.pending_key(row)
                group = state.pending.groups[key]
                if group.rows[group.front] == row and key[3] != STOPPED:
                    candidates.append((key, row))
        promised = self.reservation is not None
        if self._overtakes(candidates):
            self._full_pass()
        elif self._run(candidates) and promised and len(state.queues.specs) > 1:
            # What started has changed shares, and with them perhaps who is first among those that wait.
            self._full_pass()

    def _overtakes(self, candidates: list[tuple[Key, int]]) -> bool:
        """Whether one goes before the workload that was promised its time, or before others of a strict queue."""
        if not candidates:
            return False
        if any(self._is_strict(key[1]) for key, _ in candidates):
            return True
        if self.reservation is None:
            return False
        reserved = self.reservation.row
        first = min(self.order(key, row) for key, row in candidates)
        return first < self.order(self.state.pending_key(reserved), reserved)

    # -- order --------------------------------------------------------------------------------------------------------

    def order(self, key: Key, row: int) -> Order:
        """Where the workload stands among all that wait."""
        state = self.state
        w = state.workloads
        priority, queue, _, tenant = key
        patience = state.settings.starve_after_ms
        shares: tuple[int, ...]
        if patience and state.now_ms - w.submitted[row] > patience:
            shares = ()
        elif len(state.queues.specs) == 1 and tenant == NONE:
            shares = (0,)
        else:
            past = state.settings.fair_half_life_ms > 0
            shares = order_key(state.queues, queue, state.capacity.totals, state.now_ms, past=past)
            if tenant != NONE:
                shares += (state.tenant_share(queue, tenant),)
        return -w.priority_band[priority], shares, -w.priority_value[priority], row

    def _run(self, heads: Iterable[tuple[Key, int]]) -> int:
        """Consider candidates in order; after a start the next of its group follows. Returns how many started."""
        state = self.state
        groups = state.pending.groups
        lineup: Lineup | ShortestFirst = Lineup(state, heads)
        self._lowered.clear()
        closed: set[int] = set()
        refused: set[int] = set()
        alike = not self._anyone_preempts() and not state.bookings.reservations
        starts = 0
        started: Order | None = None
        one_by_one = self.most_at_once < 2
        while True:
            if state.policy == "easy-sjbf" and self.reservation is not None and isinstance(lineup, Lineup):
                lineup = ShortestFirst(state, lineup.rest(), self.order)
            first = lineup.first()
            if started is not None:
                self.decisions.append(Decision(state.now_ms, started[3], started, None if first is None else first[0]))
                started = None
            if first is None:
                return starts
            if not one_by_one and isinstance(lineup, Lineup) and self._batches_are_sure():
                begun, started, lineup, one_by_one = self._start_many(lineup, closed, refused)
                starts += begun
                first = lineup.first()
                if begun or first is None:
                    continue
            order, key = first
            row = order[3]
            if key[1] in closed or key[2] in refused:
                lineup.drop(closed, refused)
                continue
            verdict = self._consider(row)
            if verdict == Verdict.STARTED:
                starts += 1
                group = groups.get(key)
                lineup.started(None if group is None else group.rows[group.front])
                started = order
            else:
                lineup.drop()
            if self._lowered:
                lineup.lowered(self._lowered)
                self._lowered.clear()
            if verdict == Verdict.STARTED:
                continue
            if verdict == Verdict.QUEUE_CLOSED or self._is_strict(key[1]):
                closed.add(key[1])
            elif verdict in (Verdict.ARRAY_LIMIT, Verdict.CAP) or (verdict in _OF_ROOM and alike):
                # Others of the kind, in other queues and priorities, fare alike: room only shrinks during a pass.
                refused.add(key[2])

    def _start_rush(self) -> bool:
        """Where all that waits has just come and quota is plenty, start as many as there is room for. Returns whether
        those were all."""
        state = self.state
        sure = self.most_at_once > 1 and self._batches_are_sure() and not state.budgets.any_stops
        rush = self._batches.rush() if sure else None
        if rush is None:
            return False
        classes = state.workloads.classes
        claims = place_singles(state.capacity, [classes[cls].shapes[0] for cls in rush.classes])
        begun, count = len(claims), len(rush.rows)
        if begun:
            orders = rush.orders(state, max(begun - DECISIONS_KEPT, 0), begun + 1)
            self._bound += begun
            self._emit_claimed(placed(rush.rows.tolist(), (), claims))
            for order, following in islice(zip_longest(orders, orders[1:]), min(begun, DECISIONS_KEPT)):
                self.decisions.append(Decision(state.now_ms, order[3], order, following))
        return begun == count

    def _start_many(
        self, lineup: Lineup, closed: set[int], refused: set[int]
    ) -> tuple[int, Order | None, Lineup, bool]:
        """Start the first candidates all at once, as many as would start one by one (`engine.batch`).

        Returns how many started; where the last of them stood, if its decision is still to be noted; the lineup of what
        is left; and whether one found no room.
        """
        state = self.state
        if not self._batches.may_begin(lineup):
            return 0, None, lineup, True
        draws, nexts = self._batches.draw(lineup, self._at_once, closed, refused)
        if not draws:
            return 0, None, lineup, False
        claims = place_singles(state.capacity, [draw.shape for draw in draws])
        begun = len(claims)
        if begun:
            self._bound += begun
            self._emit_claimed(placed([draw.order[3] for draw in draws], [draw.flags for draw in draws], claims))
            known = list(zip(draws[:begun], nexts, strict=False))[-DECISIONS_KEPT:]
            self.decisions.extend(Decision(state.now_ms, d.order[3], d.order, following) for d, following in known)
        if begun < len(draws):
            self._at_once = max(begun, LEAST_AT_ONCE)
            return begun, None, Lineup(state, put_back(lineup, draws[begun:])), True
        self._at_once = min(2 * self._at_once, self.most_at_once)
        return begun, draws[-1].order if len(nexts) < begun else None, lineup, False

    def _batches_are_sure(self) -> bool:
        """Whether room, quota and order alone decide who starts next."""
        bookings = self.state.bookings
        bookable = not bookings.reservations and not bookings.clearings
        return self.reservation is None and bookable and not self.state.caps.any

    def _is_strict(self, queue: int) -> bool:
        """Whether nothing of the queue starts before what is ahead of it."""
        return not self.state.pending.by_class or self.state.queues.specs[queue].order == "strict_fifo"

    # -- one workload -------------------------------------------------------------------------------------------------

    def _consider(self, row: int) -> Verdict:
        """Start the workload if its queue, quota, capacity and the promises to others allow; or make room for it."""
        state = self.state
        closed = self._gate(row)
        if closed is not None:
            return closed
        verdict = self._start(row)
        if verdict in (Verdict.NO_QUOTA, Verdict.NO_CAPACITY):
            if verdict == Verdict.NO_CAPACITY and state.stretched and self._shrink_for(row):
                return Verdict.STARTED
            made_room = self._preempt(row)
            if made_room is not None:
                return made_room
        if verdict == Verdict.NO_CAPACITY:
            self._short_of_room = True
            self._promise(row)
        return verdict

    def _gate(self, row: int) -> Verdict | None:
        """Why the workload is not even tried: its queue is closed, its array has its fill, its reservation has not
        begun, a budget or a cap is used up. None when it is."""
        w = self.state.workloads
        if not self.state.queues.is_open(w.queue[row]):
            return Verdict.QUEUE_CLOSED
        if self.at_array_limit(row):
            return Verdict.ARRAY_LIMIT
        if w.class_at(row).reservation and not self._bookings(row):
            return Verdict.NOT_YET
        if self.state.budgets.specs and self.state.budgets.stopping(self.state, row) is not None:
            return Verdict.BUDGET
        if self.state.caps.any and self.state.caps.stopping(row) is not None:
            return Verdict.CAP
        return None

    def at_array_limit(self, row: int) -> bool:
        w = self.state.workloads
        member_of = w.array[row]
        return member_of != NONE and 0 < w.array_limits[member_of] <= w.array_running[member_of]

    def _start(self, row: int) -> Verdict:
        """Place the workload in the first of its variants that quota and capacity allow: all of them within the
        nominal quota first, then borrowing. Of several refusals the last word is the one that is nearest to a start."""
        by_pool = self.state.queues.flavored(self.state.workloads.queue[row])
        nearest = Verdict.NO_QUOTA
        for borrow in (False, True) if by_pool else (True,):
            for shapes in self.variants(row):
                counts = self._counts_in_quota(row, shapes, borrow=borrow)
                if counts is None:
                    continue
                verdict = self._start_as(row, shapes, counts)
                if verdict == Verdict.STARTED or not by_pool:
                    return verdict
                nearest = Verdict.NO_CAPACITY if Verdict.NO_CAPACITY in (verdict, nearest) else verdict
        return nearest

    def _counts_in_quota(self, row: int, shapes: tuple[Shape, ...], *, borrow: bool) -> tuple[int, ...] | None:
        """As many tasks of each group as quota allows, from the fewest it can start with up to all; None if even the
        fewest are too many."""
        state = self.state
        queue = state.workloads.queue[row]
        workload_class = state.workloads.class_at(row)
        wanted = state.counts_wanted(row)
        if not state.queues.limited[queue]:
            return wanted

        def allowed(counts: tuple[int, ...]) -> bool:
            charge = state.charge_if(row, shapes, counts)
            return state.queues.lack(queue, charge, state.now_ms, borrow=borrow) is None

        if allowed(wanted):
            return wanted
        if workload_class.rigid or not allowed(workload_class.least):
            return None
        low, high = 0, sum(wanted) - sum(workload_class.least)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if allowed(workload_class.least_and(middle)) else (low, middle)
        return workload_class.least_and(low)

    def _start_as(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> Verdict:
        """Place between the fewest tasks and `counts` of these shapes, if there is room and no promise is broken."""
        state = self.state
        w = state.workloads
        cls = w.cls[row]
        workload_class = w.classes[cls]
        if self._is_full_for(cls, shapes):
            return Verdict.NO_CAPACITY
        promise = self.reservation
        late = promise is not None and not promise.ends_in_time(row)
        if promise is not None and promise.needs_quota(row):
            return Verdict.PROMISED_QUOTA
        if late and promise is not None and promise.certainly_in_the_way(shapes, sum(workload_class.least)):
            return Verdict.WOULD_DELAY
        claims = place(state.capacity, shapes, workload_class.least, counts)
        if claims is None:
            self._no_room[cls, shapes] = state.capacity.gained_mark, _company(state.capacity, shapes)
            return Verdict.NO_CAPACITY
        if promise is not None and not self._keeps(promise, late, shapes, claims):
            return Verdict.WOULD_DELAY
        self._bind(row, shapes, claims, backfilled=promise is not None)
        return Verdict.STARTED

    def _bind(self, row: int, shapes: tuple[Shape, ...], claims: list[Claim], *, backfilled: bool = False) -> None:
        """Record a gang whose capacity is claimed."""
        state = self.state
        queue = state.workloads.queue[row]
        flags = ev.BACKFILLED if backfilled else 0
        if state.queues.limited[queue]:
            placed = [0] * len(shapes)
            for group, _, count, _ in claims:
                placed[group] += count
            flags |= state.queues.flags_of(queue, state.charge_if(row, shapes, placed))
        self._bound += 1
        self._emit_claimed(ev.Placed(row, packed(claims, len(shapes)), flags))

    def variants(self, row: int) -> Iterator[tuple[Shape, ...]]:
        """The ways its groups may be laid on pools and kept nodes, in order of preference, to be placed by the scores
        of its queue. Where a tree has quotas by pool, each group goes to one pool."""
        profile = self.state.queues.profile(self.state.workloads.queue[row])
        for shapes in self._laid_out(row):
            yield tuple(shape.scored(profile) for shape in shapes) if profile else shapes

    def _laid_out(self, row: int) -> Iterator[tuple[Shape, ...]]:
        state = self.state
        w = state.workloads
        queue = w.queue[row]
        workload_class = w.class_at(row)
        bookings = self._bookings(row)
        if workload_class.reservation and not bookings:
            return
        if not state.queues.flavored(queue):
            if not bookings and not workload_class.reservation:
                yield workload_class.shapes
                return
            open_to_it = not workload_class.reservation
            yield tuple(
                shape.limited(
                    tuple(shape.pools) if open_to_it else (),
                    tuple((booking, pool) for booking in bookings for pool in shape.pools),
                )
                for shape in workload_class.shapes
            )
            return
        named = state.queues.flavors_of(queue)
        choices = []
        for shape in workload_class.shapes:
            pools = [state.capacity.pool_of[name] for name in named] if named else shape.pools
            choices.append(
                [
                    shape.limited(
                        () if workload_class.reservation else (pool,), tuple((booking, pool) for booking in bookings)
                    )
                    for pool in pools
                    if pool in shape.pool_set
                ]
            )
        yield from islice(product(*choices), MOST_VARIANTS)

    def _bookings(self, row: int) -> tuple[int, ...]:
        """Bookings whose nodes the workload may use now."""
        state = self.state
        if not (state.bookings.reservations or state.bookings.clearings):
            return ()
        w = state.workloads
        workload_class = w.class_at(row)
        queues = frozenset(state.queues.specs[vertex].name for vertex in state.queues.path[w.queue[row]])
        end_ms = state.now_ms + w.remaining_ms(row)
        return state.bookings.usable(row, workload_class.reservation, queues, state.now_ms, end_ms)

    def lacks_room(self, row: int) -> bool:
        """Whether the workload was found not to fit, in any of its variants, and still does not."""
        cls = self.state.workloads.cls[row]
        return all(self._is_full_for(cls, shapes) for shapes in self.variants(row))

    def _is_full_for(self, cls: int, shapes: tuple[Shape, ...]) -> bool:
        """Whether the class was found not to fit and still does not: claims only take room away, and no node that has
        gained some since then takes even one of its tasks."""
        found = self._no_room.get((cls, shapes))
        if found is None:
            return False
        mark, company = found
        capacity = self.state.capacity
        gained = capacity.gains_since(mark) if company == _company(capacity, shapes) else None
        if gained is None or any(_gains_for(capacity, node, shapes) for node in set(gained)):
            del self._no_room[cls, shapes]
            return False
        self._no_room[cls, shapes] = capacity.gained_mark, company
        return True

    def _promise(self, row: int) -> None:
        """The first workload with too little free is promised its time."""
        named = self.state.workloads.class_at(row).reservation
        if self.reservation is None and self.state.pending.by_class and not named:
            promise = Reservation(self.state, row)
            # What no running work stands in the way of (nodes are down, or its groups never fit together) holds up
            # nobody: there is no time to promise.
            if promise.start_ms is not None and promise.start_ms > self.state.now_ms:
                self.reservation = promise

    def _keeps(self, promise: Reservation, late: bool, shapes: tuple[Shape, ...], claims: list[Claim]) -> bool:
        """Whether the claims keep the promise; if not they are given back."""
        if not late:
            promise.pass_over(shapes, claims)
            return True
        if promise.admits(shapes, claims):
            return True
        unplace(self.state.capacity, shapes, claims)
        return False

    # -- making room --------------------------------------------------------------------------------------------------

    def _anyone_preempts(self) -> bool:
        """Whether some workload may preempt others as things are."""
        state = self.state
        return any(spec.preemption != "never" for spec in state.workloads.priority_classes) or (
            state.queues.anyone_borrows()
        )

    def _preemptor_waits(self) -> bool:
        """Whether something waits that might preempt."""
        state = self.state
        return self._anyone_preempts() and any(
            preemption.may_preempt(state, group.rows[group.front]) for group in state.pending.groups.values()
        )

    def _preempt(self, row: int) -> Verdict | None:
        """Have others stopped so that the workload can start: at once, or when they have written their checkpoints.
        None when the policy (`engine.preemption`) finds nobody, or waiting is as quick."""
        state = self.state
        if not preemption.may_preempt(state, row):
            return None
        if state.bookings.clearing_for(row) is not None:
            return Verdict.CLEARING
        if self._exchange(row):
            return Verdict.STARTED
        if self._all_end_soon():
            return None
        counts = state.workloads.class_at(row).least
        for shapes in self.variants(row):
            found = self._victims(row, shapes, counts)
            if found is None:
                continue
            victims = np.array([victim for victim, _ in found.victims], np.int64)
            if preemption.waiting_is_better(state, victims, found.delay_ms):
                return None
            if found.delay_ms:
                self._clear(row, found)
                return Verdict.CLEARING
            for victim, cause in found.victims:
                self._emit(ev.Requeued(victim, cause, by=row))
            self._lowered.update(state.workloads.queue[victim] for victim, _ in found.victims)
            self._place_preemptor(row, shapes)
            self._exchanges.found(row, shapes, found.victims)
            return Verdict.STARTED
        return None

    def _victims(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> preemption.Preemption | None:
        """`preemption.find`, which is asked once for all of a queue and priority that want the same."""
        state, w = self.state, self.state.workloads
        if self._in_vain_at != (state.version, state.now_ms):
            self._in_vain_at = (state.version, state.now_ms)
            self._in_vain.clear()
        charge = state.charge_if(row, shapes, counts)
        search = w.queue[row], w.priority[row], shapes, counts, tuple(charge)
        if search in self._in_vain:
            return None
        found = preemption.find(state, row, shapes, counts, charge)
        if found is None:
            self._in_vain.add(search)
        return found

    def _exchange(self, row: int) -> bool:
        """Start it in the place of the victim that is next in a run of like preemptors, if there is one."""
        shapes = next(self.variants(row), None) if self.most_at_once > 1 else None
        victim = None if shapes is None else self._exchanges.next(row, shapes)
        if shapes is None or victim is None:
            return False
        self._emit(ev.Requeued(victim[0], victim[1], by=row))
        self._lowered.add(self.state.workloads.queue[row])
        self._place_preemptor(row, shapes)
        self._exchanges.took(victim)
        return True

    def _all_end_soon(self) -> bool:
        """Whether everything that runs is likely to end soon: then nobody is worth looking for."""
        state = self.state
        if self._soon[0] != state.version:
            self._soon = (state.version, preemption.waiting_is_better(state, preemption.bound_rows(state)))
        return self._soon[1]

    def _clear(self, row: int, found: preemption.Preemption) -> None:
        """Ask the victims for checkpoints, and keep the nodes the preemptor will need meanwhile."""
        state = self.state
        nodes = sorted({node for _, node, _, _ in found.claims if state.capacity.booking[node] == OPEN})
        self._emit(
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
        state = self.state
        clearing = next(c for c in state.bookings.clearings if c.booking == booking)
        w = state.workloads
        row = clearing.row
        if state.budgets.specs and state.budgets.stopping(state, row) is not None:
            self._emit(ev.PreemptionEnded(row))
            return
        victims = [victim for victim in clearing.victims if w.preempting[victim] == row]
        counts = w.class_at(row).least
        for shapes in self.variants(row):
            charge = state.charge_if(row, shapes, counts)
            causes = preemption.still_victims(state, row, shapes, counts, charge, victims)
            # What is taken back from other queues must still be for the queue's own quota.
            borrow = all(w.queue[victim] == w.queue[row] for victim in causes)
            if causes and preemption.lets_start(state, row, shapes, counts, list(causes), borrow=borrow):
                for victim, cause in causes.items():
                    self._emit(ev.Requeued(victim, cause, by=row, saved=w.checkpoint_cost[victim] > 0))
                self._place_preemptor(row, shapes)
                return
        self._emit(ev.PreemptionEnded(row))

    def _place_preemptor(self, row: int, shapes: tuple[Shape, ...]) -> None:
        claims = place(self.state.capacity, shapes, self.state.workloads.class_at(row).least)
        if claims is None:
            raise AssertionError(f"preemption for row {row} was verified, and yet it does not fit")
        self._bind(row, shapes, claims)
        # What was promised counted on the victims, or on the room they left.
        self.reservation = None

    # -- elastic workloads --------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Give running elastic workloads more tasks, oldest first: only while nothing waits for capacity. Services get
        theirs then too, as far as that breaks no promise."""
        state = self.state
        w, held_ms = state.workloads, state.replicas.held_ms
        growing = state.short
        if self._short_of_room:
            growing = state.short & state.replicas.running if state.policy != "conservative" else set()
        for row in sorted(growing):
            if held_ms and held_ms.get(row, 0) > state.now_ms:
                continue
            if state.budgets.specs and state.budgets.stopping(state, row) is not None:
                continue
            for shapes in self.variants(row):
                placed = state.placed_of(row)
                missing = tuple(count - have for count, have in zip(state.counts_wanted(row), placed, strict=True))
                none = (0,) * len(missing)
                if missing == none:
                    break
                beside = state.allocations.node[w.first_allocation[row]]
                with state.growing(row):
                    claims = place(state.capacity, shapes, none, missing, beside) or []
                while claims and not self._quota_for(row, shapes, claims):
                    group, node, count, devices = claims.pop()
                    state.capacity.give_back(node, shapes[group], count, devices)
                promise = self.reservation
                if claims and promise is not None and not self._keeps(promise, True, shapes, claims):
                    continue
                if claims:
                    self._emit_claimed(ev.Grown(row, packed(claims, len(shapes))))

    def _quota_for(self, row: int, shapes: tuple[Shape, ...], claims: list[Claim]) -> bool:
        state = self.state
        more = [0] * len(shapes)
        for group, _, count, _ in claims:
            more[group] += count
        charge = state.charge_if(row, shapes, more)
        return state.queues.lack(state.workloads.queue[row], charge, state.now_ms) is None

    def _shrink_for(self, row: int) -> bool:
        """Take tasks that elastic workloads can do without, of the youngest first, if that lets this one start."""
        state = self.state
        capacity = state.capacity
        if state.now_ms < state.workloads.may_preempt_at(row, state.settings):
            return False
        workload_class = state.workloads.class_at(row)
        for shapes in self.variants(row):
            if self._counts_in_quota(row, shapes, borrow=True) is None:
                continue
            taken: list[tuple[int, Claim]] = []
            for donor in sorted(state.stretched - {row}, reverse=True):
                donor_shapes = state.workloads.class_at(donor).shapes
                for claim in state.spare_tasks(donor):
                    group, node, count, devices = claim
                    if any(capacity.usable(node, shape) for shape in shapes):
                        capacity.give_back(node, donor_shapes[group], count, devices)
                        state.shift_company(donor, -1, [(node, count)])
                        taken.append((donor, claim))
            claims = place(capacity, shapes, workload_class.least) if taken else None
            if claims is not None:
                unplace(capacity, shapes, claims)
            needed = self._needed(taken, shapes, workload_class.least) if claims is not None else []
            for donor, (group, node, count, devices) in reversed(taken if claims is None else needed):
                capacity.take(node, state.workloads.class_at(donor).shapes[group], count, devices)
                state.shift_company(donor, 1, [(node, count)])
            if claims is None:
                continue
            for donor in dict.fromkeys(donor for donor, _ in needed):
                groups = len(state.workloads.class_at(donor).shapes)
                given = [claim for other, claim in needed if other == donor]
                self._emit(ev.Shrunk(donor, packed(given, groups), by=row))
                self._lowered.add(state.workloads.queue[donor])
            self._place_preemptor(row, shapes)
            return True
        return False

    def _needed(
        self, taken: list[tuple[int, Claim]], shapes: tuple[Shape, ...], counts: tuple[int, ...]
    ) -> list[tuple[int, Claim]]:
        """Those of the tasks, given back on the capacity, without which the gang does not fit; the others are taken
        again."""
        capacity = self.state.capacity
        needed = []
        for donor, claim in reversed(taken):
            group, node, count, devices = claim
            shape = self.state.workloads.class_at(donor).shapes[group]
            capacity.take(node, shape, count, devices)
            self.state.shift_company(donor, 1, [(node, count)])
            claims = place(capacity, shapes, counts)
            if claims is None:
                capacity.give_back(node, shape, count, devices)
                self.state.shift_company(donor, -1, [(node, count)])
                needed.append((donor, claim))
            else:
                unplace(capacity, shapes, claims)
        return needed

    # -- conservative -------------------------------------------------------------------------------------------------

    def _plan_all(self) -> None:
        """Start what may start, and promise the rest their times, in order. Stops as soon as nothing more can start:
        promises that no start depends on are not worked out."""
        state = self.state
        only_room_counts = self._only_room_counts()
        groups = state.pending.groups.values()
        if only_room_counts and not any(self._may_fit(group.rows[group.front]) for group in groups):
            self._short_of_room = bool(state.pending.groups)
            return
        waiting = {
            key: deque(group.rows[group.front :]) for key, group in state.pending.groups.items() if key[3] != STOPPED
        }
        lineup = Lineup(state, [(key, rows[0]) for key, rows in waiting.items()])
        plan = Conservative(state, state.settings.reservation_depth)
        hopeful = [(key, rows[0]) for key, rows in waiting.items()] if only_room_counts else None
        while True:
            while hopeful and (not waiting[hopeful[-1][0]] or not plan.may_start(hopeful[-1][1])):
                hopeful.pop()
            first = lineup.first()
            if first is None or (hopeful is not None and not hopeful):
                self._short_of_room = first is not None
                break
            order, key = first
            row = order[3]
            waiting[key].popleft()
            freed = state.capacity.freed
            verdict = self._plan_one(plan, row)
            if state.capacity.freed != freed:
                # Others were stopped for it: the plan is of a past.
                return
            follower = waiting[key][0] if waiting[key] else None
            if verdict == Verdict.STARTED:
                lineup.started(follower)
                ahead = lineup.first()
                self.decisions.append(Decision(state.now_ms, row, order, None if ahead is None else ahead[0]))
                continue
            lineup.drop()
            if verdict == Verdict.QUEUE_CLOSED or self._is_strict(key[1]):
                lineup.leave_out(key[1])
            elif verdict == Verdict.NO_CAPACITY and not plan.full and follower is not None:
                lineup.put(key, follower)
        self.promises = plan.starts

    def _may_fit(self, row: int) -> bool:
        """A quick necessary condition for a start on open nodes."""
        workload_class = self.state.workloads.class_at(row)
        pairs = zip(workload_class.shapes, workload_class.least, strict=True)
        return all(self.state.capacity.could_hold(shape, count) for shape, count in pairs)

    def _only_room_counts(self) -> bool:
        """Whether nothing but room on open nodes decides who starts."""
        bookings = self.state.bookings
        return not (self._anyone_preempts() or bookings.reservations or bookings.clearings or self.state.stretched)

    def _plan_one(self, plan: Conservative, row: int) -> Verdict:
        """Start the workload if the plan allows, or promise it its time."""
        state = self.state
        w = state.workloads
        closed = self._gate(row)
        if closed is not None:
            return closed
        verdict = Verdict.NO_QUOTA
        for borrow in (False, True) if state.queues.flavored(w.queue[row]) else (True,):
            for shapes in self.variants(row):
                allowed = self._counts_in_quota(row, shapes, borrow=borrow)
                if allowed is None:
                    continue
                if plan.needs_quota(row):
                    return Verdict.PROMISED_QUOTA
                verdict = Verdict.NO_CAPACITY
                for counts in dict.fromkeys((allowed, w.class_at(row).least)):
                    claims = plan.start(row, shapes, counts)
                    if claims is not None:
                        self._bind(row, shapes, claims, backfilled=bool(plan.starts))
                        return Verdict.STARTED
        made_room = self._preempt(row)
        if made_room is not None:
            return made_room
        if verdict == Verdict.NO_CAPACITY:
            self._short_of_room = True
            plan.promise(row)
        return verdict


def _company(capacity: Capacity, shapes: tuple[Shape, ...]) -> int:
    """Version of what else decides where these tasks may go."""
    return capacity.company.version if shapes[0].terms is not None else 0


def _gains_for(capacity: Capacity, node: int, shapes: tuple[Shape, ...]) -> bool:
    """Whether the node, which gained room, takes a task of one of the shapes."""
    if capacity.state[node] != NodeState.READY:
        return False
    return any(capacity.usable(node, shape) and capacity.fits(node, shape) for shape in shapes)
