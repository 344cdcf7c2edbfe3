"""Scheduling by Kueue's rules, where the policy is `kueue`: a model of what its scheduler will do with a mirrored cell.

Each cycle looks at the first workload of every queue, by priority and age. Each is nominated against the state at the
start of the cycle: a pool, with what it must borrow and whom it must have stopped. They then start or preempt one after
the other, those that borrow least first, then by priority and age; what no longer fits is tried in the next cycle. A
workload that cannot start is parked: nobody looks at it again, whatever else starts, until work of its cohort ends, is
preempted or removed, or a rule changes. Whoever has preempted goes before all of its queue.

Source: kubernetes-sigs/kueue v0.19.2, `pkg/scheduler/scheduler.go`, `pkg/scheduler/flavorassigner`,
`pkg/cache/queue/cluster_queue.go`. Not modelled: fair sharing between cohorts, admission checks, several resource
groups in a queue. Unlike in Kueue, quota that victims give back can be taken at once, and nothing starts without room
on nodes. `docs/policy.md` lists the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from engine.capacity.task_shapes import Shape
from engine.model.specs import KueueRules, WorkloadState
from engine.placement.gang_placement import place, unplace, variants
from engine.scheduling.cycle_memory import Binder, CandidateVerdict
from engine.scheduling.kueue_usage import QuotaUsage
from engine.scheduling.kueue_victims import Demand, KueuePreemption, Victim, limited
from engine.state.cell_state import BOUND, State
from engine.state.pending_work import STOPPED, Cause
from engine.state.queue_tree import Charge

MAX_STOPS = 8
"""Preemptions of one workload in a run of cycles after which it is parked: rules that contradict each other would have
two take each other's place for ever."""

Likeness = tuple[int, int, int]
"""(queue row, priority value, class row): what is alike is parked together."""


class _Mode(IntEnum):
    """What a pool offers, worst first."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    """Too little quota is free, and nobody may be preempted."""
    PREEMPT = 2
    """Of the own queue."""
    RECLAIM = 3
    FIT = 4


class _Nomination(NamedTuple):
    """What a workload would do in this cycle."""

    row: int
    mode: _Mode
    borrow: int
    """Height of the subtree that the quota comes from; 0: its own queue."""
    shapes: tuple[Shape, ...] = ()
    counts: tuple[int, ...] = ()
    charge: Charge = ()
    short: frozenset[int] = frozenset()
    """Slots in which quota is short."""
    next_pool: int = 0
    """The pool at which the search goes on in the next cycle."""
    victims: tuple[Victim, ...] = ()


class KueueCycles:
    """Decides on a State. Holds no fact of its own: dropping it has all that waits looked at again."""

    def __init__(self, state: State, binder: Binder, gate: Callable[[int], CandidateVerdict | None]) -> None:
        """`gate`: what closes the way of a workload besides quota and room, if anything does."""
        self._state = state
        self._binder = binder
        self._gate = gate
        self._parked: set[int] = set()
        self._parked_kinds: set[Likeness] = set()
        self._known: dict[int, bool] = {}
        """Rows of the last run that waited or were bound -> whether they were bound."""
        self._first: dict[int, int] = {}
        """Queue -> the workload that has preempted for its start there."""
        self._next_pool: dict[int, tuple[int, int]] = {}
        """Row -> (cycle, pool) at which its search goes on, if that is the next cycle."""
        self._lines: dict[int, list[tuple[int, int, int]]] = {}
        """Queue -> heap of (minus priority, time of submission, row) of what is looked at."""
        self._freed: set[int] = set()
        """Roots of trees whose parked work is to be looked at again."""
        self._stops: dict[int, int] = {}
        self._cycle = 0

    def run(self, causes: set[Cause]) -> None:
        """Cycles until none has anything to look at."""
        self._begin(causes)
        while True:
            while heads := self._heads():
                self._run_cycle(heads)
            if not self._freed:
                break
            self._unpark()
        self._known = dict.fromkeys(self._waiting(), False) | dict.fromkeys(self._bound(), True)

    # -- who is looked at ---------------------------------------------------------------------------------------------

    def _begin(self, causes: set[Cause]) -> None:
        states, root_of = self._state.workloads.state, self._root_of
        self._stops.clear()
        self._lines.clear()
        self._freed = {
            root_of(row)
            for row, bound in self._known.items()
            if (states[row] not in BOUND if bound else states[row] not in (*BOUND, WorkloadState.QUEUED))
        }
        if causes & {Cause.RULES, Cause.FIRST_LOOK, Cause.TIME, Cause.BUDGET, Cause.ORDER}:
            self._freed |= {path[-1] for path in self._state.queues.path}
        self._first = {queue: row for queue, row in self._first.items() if states[row] == WorkloadState.QUEUED}
        for row in self._waiting():
            if self._is_strict(row):
                self._parked.discard(row)
            if row not in self._parked:
                self._enter(row)

    def _waiting(self) -> Iterator[int]:
        for key, group in self._state.pending.groups.items():
            if key[3] != STOPPED:
                yield from group.rows[group.front :]

    def _bound(self) -> Iterator[int]:
        states = self._state.workloads.state
        return (row for row in range(len(states)) if states[row] in BOUND)

    def _root_of(self, row: int) -> int:
        return self._state.queues.path[self._state.workloads.queue[row]][-1]

    def _is_strict(self, row: int) -> bool:
        return self._state.is_strict(self._state.workloads.queue[row])

    def _like(self, row: int) -> Likeness:
        w = self._state.workloads
        return w.queue[row], w.value_at(row), w.cls[row]

    def _enter(self, row: int) -> None:
        """Have the workload looked at, unless those like it are parked or it was stopped too often."""
        alike = self._like(row) in self._parked_kinds and not self._is_strict(row)
        if alike or self._stops.get(row, 0) > MAX_STOPS:
            self._parked.add(row)
            return
        w = self._state.workloads
        heappush(self._lines.setdefault(w.queue[row], []), (-w.value_at(row), w.submitted[row], row))

    def _park(self, row: int, *, kind: bool = False) -> None:
        """Look at it no more; with `kind` not at those like it either."""
        self._parked.add(row)
        if self._is_strict(row):
            self._lines.pop(self._state.workloads.queue[row], None)
        elif kind:
            self._parked_kinds.add(self._like(row))

    def _unpark(self) -> None:
        roots, self._freed = self._freed, set()
        path = self._state.queues.path
        self._parked_kinds = {kind for kind in self._parked_kinds if path[kind[0]][-1] not in roots}
        self._parked &= set(self._waiting())
        moved = sorted(row for row in self._parked if self._root_of(row) in roots)
        self._parked.difference_update(moved)
        for row in moved:
            self._enter(row)

    def _heads(self) -> list[int]:
        """The first of every queue, taken out of the line."""
        found = []
        for queue, line in self._lines.items():
            first = self._first.get(queue, -1)
            entry = next((entry for entry in line if entry[2] == first), None)
            if entry is not None:
                line.remove(entry)
                line.sort()
                found.append(first)
                continue
            while line:
                row = heappop(line)[2]
                if self._like(row) not in self._parked_kinds or self._is_strict(row):
                    found.append(row)
                    break
                self._parked.add(row)
        return found

    # -- a cycle ------------------------------------------------------------------------------------------------------

    def _run_cycle(self, heads: list[int]) -> None:
        self._cycle += 1
        w, usage = self._state.workloads, QuotaUsage(self._state.queues)
        search = KueuePreemption(self._state, usage)
        nominations = [self._nominate(row, usage, search) for row in heads if not self._is_closed(row)]
        nominations.sort(key=lambda n: (n.borrow, -w.value_at(n.row), w.submitted[n.row], n.row))
        stopped: set[int] = set()
        for nomination in nominations:
            self._process(nomination, usage, stopped)

    def _is_closed(self, row: int) -> bool:
        if self._gate(row) is None:
            return False
        self._park(row)
        return True

    def _process(self, nomination: _Nomination, usage: QuotaUsage, stopped: set[int]) -> None:
        """Start it, have it preempt, or put it back. `stopped`: the victims of this cycle."""
        queue = self._state.workloads.queue[nomination.row]
        if nomination.mode == _Mode.NO_FIT or not (nomination.victims or nomination.mode == _Mode.FIT):
            if nomination.mode != _Mode.NO_FIT and self._state.queues.specs[queue].reclaim != "any":
                usage.add(queue, self._reserved(nomination, usage))
            self._refused(nomination)
            return
        victims = [victim for victim, _ in nomination.victims]
        if stopped.intersection(victims) or not self._still_fits(nomination, usage, victims):
            self._again(nomination)
            return
        if nomination.victims:
            self._preempt(nomination, usage)
            stopped.update(victims)
        elif not self._start(nomination):
            self._again(nomination)
            return
        usage.add(queue, nomination.charge)

    def _start(self, nomination: _Nomination) -> bool:
        claims = place(self._state.capacity, nomination.shapes, nomination.counts)
        if claims is None:
            return False
        self._binder.bind(nomination.row, nomination.shapes, claims)
        return True

    def _preempt(self, nomination: _Nomination, usage: QuotaUsage) -> None:
        state, w = self._state, self._state.workloads
        for victim, cause in nomination.victims:
            usage.remove(w.queue[victim], limited(state, w.queue[victim], state.charge_of(victim)))
            self._binder.stop(victim, cause, by=nomination.row)
            self._freed.add(self._root_of(victim))
            self._stops[victim] = self._stops.get(victim, 0) + 1
            self._enter(victim)
        self._first[w.queue[nomination.row]] = nomination.row
        self._enter(nomination.row)

    def _again(self, nomination: _Nomination) -> None:
        """Try it in the next cycle, with the pools after the one it was nominated for."""
        self._next_pool[nomination.row] = self._cycle, nomination.next_pool
        self._enter(nomination.row)

    def _refused(self, nomination: _Nomination) -> None:
        if nomination.next_pool:
            self._again(nomination)
        else:
            self._park(nomination.row, kind=True)

    def _still_fits(self, nomination: _Nomination, usage: QuotaUsage, victims: list[int]) -> bool:
        state, w = self._state, self._state.workloads
        held = [(w.queue[row], limited(state, w.queue[row], state.charge_of(row))) for row in victims]
        for queue, charge in held:
            usage.remove(queue, charge)
        fits = usage.fits(w.queue[nomination.row], nomination.charge)
        for queue, charge in held:
            usage.add(queue, charge)
        return fits

    def _reserved(self, nomination: _Nomination, usage: QuotaUsage) -> Charge:
        """What the others may not take in this cycle from a workload that waits for its quota."""
        queue = self._state.workloads.queue[nomination.row]
        room = usage.room_to_limit if nomination.borrow else usage.room_to_nominal
        reserved = ((slot, min(quantity, room(queue, slot))) for slot, quantity in nomination.charge)
        return tuple((slot, quantity) for slot, quantity in reserved if quantity > 0)

    # -- nomination ---------------------------------------------------------------------------------------------------

    def _nominate(self, row: int, usage: QuotaUsage, search: KueuePreemption) -> _Nomination:
        """With all of its tasks if that can be, else with as many as can be."""
        cycle, pool = self._next_pool.pop(row, (0, 0))
        first_pool = pool if cycle == self._cycle - 1 else 0
        workload_class = self._state.workloads.class_at(row)

        def possible(counts: tuple[int, ...]) -> tuple[_Nomination, bool]:
            found = self._assigned(row, counts, first_pool, usage, search)
            if _Mode.NO_FIT < found.mode < _Mode.FIT:
                demand = Demand(row, found.charge, found.short, found.shapes, counts)
                found = found._replace(victims=tuple(search.victims(demand)))
            return found, found.mode == _Mode.FIT or bool(found.victims)

        whole, done = possible(workload_class.counts)
        if done or workload_class.rigid:
            return whole
        spare = [full - least for full, least in zip(workload_class.counts, workload_class.least, strict=True)]
        low, high, best = 1, sum(spare), None
        while low <= high:
            middle = (low + high) // 2
            fewer = (
                full - each * middle // sum(spare) for full, each in zip(workload_class.counts, spare, strict=True)
            )
            found, done = possible(tuple(fewer))
            if done:
                best, high = found, middle - 1
            else:
                low = middle + 1
        return best or whole

    def _assigned(
        self, row: int, counts: tuple[int, ...], first_pool: int, usage: QuotaUsage, search: KueuePreemption
    ) -> _Nomination:
        """The pool in which it starts best, as far as Kueue looks for it."""
        best = _Nomination(row, _Mode.NO_FIT, 0)
        ways = list(variants(self._state, row))
        rules = self._state.queues.specs[self._state.workloads.queue[row]].kueue
        tried = first_pool
        for shapes in ways[first_pool:]:
            tried += 1
            offer = self._offer(row, shapes, counts, usage, search)
            if _is_better(offer.mode, offer.borrow, best.mode, best.borrow):
                best = offer
            if not _goes_on(offer, rules):
                best = offer
                break
        best = best._replace(next_pool=0 if tried >= len(ways) or best.mode == _Mode.NO_FIT else tried)
        if best.mode == _Mode.FIT and not self._has_room(best.shapes, counts):
            return best._replace(mode=_Mode.PREEMPT, short=frozenset(slot for slot, _ in best.charge))
        return best

    def _offer(
        self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...], usage: QuotaUsage, search: KueuePreemption
    ) -> _Nomination:
        """The worst of what its resources are offered."""
        state = self._state
        charge = limited(state, state.workloads.queue[row], state.charge_if(row, shapes, counts))
        mode, borrow, most, short = _Mode.FIT, 0, 0, set()
        for slot, quantity in charge:
            offered, distance = self._offered(row, slot, quantity, usage, search)
            most = max(most, distance)
            if offered != _Mode.FIT:
                short.add(slot)
            if _is_better(mode, borrow, offered, distance):
                mode, borrow = offered, distance
        return _Nomination(row, mode, most, shapes, counts, charge, frozenset(short))

    def _offered(
        self, row: int, slot: int, quantity: int, usage: QuotaUsage, search: KueuePreemption
    ) -> tuple[_Mode, int]:
        """(mode, height of the subtree whose quota is used) of one resource in one pool."""
        queue = self._state.workloads.queue[row]
        rules = self._state.queues.specs[queue].kueue
        if quantity > usage.potential(queue, slot):
            return _Mode.NO_FIT, 0
        distance, has_right = usage.distance(queue, slot, quantity)
        if quantity <= usage.available(queue, slot):
            return _Mode.FIT, distance
        nominal = self._state.queues.nominal_at(queue, slot)
        if nominal < quantity and not has_right and rules.borrow_within_cohort == "never":
            return _Mode.NO_FIT, distance
        return self._by_preemption(Demand(row, ((slot, quantity),), frozenset((slot,))), slot, usage, search)

    def _by_preemption(
        self, demand: Demand, slot: int, usage: QuotaUsage, search: KueuePreemption
    ) -> tuple[_Mode, int]:
        state, w = self._state, self._state.workloads
        victims = [victim for victim, _ in search.victims(demand)]
        queue = w.queue[demand.row]
        held = [(w.queue[row], limited(state, w.queue[row], state.charge_of(row))) for row in victims]
        for at, charge in held:
            usage.remove(at, charge)
        distance, _ = usage.distance(queue, slot, demand.charge[0][1])
        for at, charge in held:
            usage.add(at, charge)
        if not victims:
            return _Mode.NO_CANDIDATES, distance
        return (_Mode.PREEMPT if any(w.queue[row] == queue for row in victims) else _Mode.RECLAIM), distance

    def _has_room(self, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> bool:
        claims = place(self._state.capacity, shapes, counts)
        if claims is None:
            return False
        unplace(self._state.capacity, shapes, claims)
        return True


def _is_better(mode: _Mode, borrow: int, than: _Mode, other: int) -> bool:
    """Kueue's order of what pools offer: whatever may be had at all, then without preemption, then from nearby."""
    if mode == _Mode.NO_FIT or than == _Mode.NO_FIT:
        return mode != _Mode.NO_FIT
    return (mode, -borrow) > (than, -other)


def _goes_on(offer: _Nomination, rules: KueueRules) -> bool:
    """True if the search looks at the next pool too."""
    if offer.mode <= _Mode.NO_CANDIDATES:
        return True
    if offer.mode < _Mode.FIT and rules.when_can_preempt == "try_next":
        return True
    return offer.borrow > 0 and rules.when_can_borrow == "try_next"
