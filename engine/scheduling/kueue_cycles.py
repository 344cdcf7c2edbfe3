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

from collections.abc import Callable, Generator
from enum import IntEnum
from typing import NamedTuple

from engine.capacity.task_shapes import Shape
from engine.model.specs import KueueRules, WorkloadState
from engine.placement.gang_placement import place, unplace, variants
from engine.scheduling.cycle_memory import Binder, CandidateVerdict
from engine.scheduling.kueue_lines import KueueLines
from engine.scheduling.kueue_usage import QuotaUsage
from engine.scheduling.kueue_victims import BoundWork, Demand, KueuePreemption, Victim, limited
from engine.scheduling.preemption import bound_rows
from engine.state.cell_state import BOUND, State
from engine.state.pending_work import STOPPED, Cause, Pending
from engine.state.queue_tree import Charge

MAX_STOPS = 8
"""Preemptions of one workload in a run of cycles after which it is parked: rules that contradict each other would have
two take each other's place for ever."""

LOOK_AGAIN = {Cause.RULES, Cause.FIRST_LOOK, Cause.TIME, Cause.BUDGET, Cause.ORDER}
"""Causes to look again at all that is parked."""


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
    """Decides on a State. Holds no fact of its own: dropping it has all that waits looked at again.

    A run costs what has changed since the last one (`State.changed_rows`) and what is looked at for that.
    """

    def __init__(self, state: State, binder: Binder, gate: Callable[[int], CandidateVerdict | None]) -> None:
        """`gate`: what closes the way of a workload besides quota and room, if anything does."""
        self._state = state
        self._binder = binder
        self._gate = gate
        self._lines = KueueLines(state)
        self._bound = BoundWork(state)
        self._usage = QuotaUsage(state.queues)
        self._search = KueuePreemption(state, self._usage, self._bound)
        self._pending: Pending | None = None
        """The waiting work whose changes are followed; all is gone through when another takes its place."""
        self._queues = 0
        """Number of queues whose order is known."""
        self._next_pool: dict[int, tuple[int, int]] = {}
        """Row -> (cycle, pool) at which its search goes on, if that is the next cycle."""
        self._freed: set[int] = set()
        """Roots of trees whose parked work is to be looked at again."""
        self._all_freed = False
        self._stops: dict[int, int] = {}
        self._cycle = 0

    def run(self, arrivals: list[int], causes: set[Cause]) -> Generator[None, None, None]:
        """Cycles until none has anything to look at. `arrivals`: rows that became pending since the last run. It may be
        interrupted after each, and the state may change meanwhile, but for rules (`State.rules`)."""
        self._begin(arrivals, causes)
        while True:
            while heads := self._lines.heads():
                self._run_cycle(heads)
                self._follow_bound()
                yield
                self._follow_changes()
            if not (self._freed or self._all_freed):
                break
            self._unpark()

    # -- who is looked at ---------------------------------------------------------------------------------------------

    def _begin(self, arrivals: list[int], causes: set[Cause]) -> None:
        state, states = self._state, self._state.workloads.state
        self._stops.clear()
        if causes & {Cause.RULES, Cause.FIRST_LOOK} or self._queues != len(state.queues.specs):
            self._queues = len(state.queues.specs)
            self._lines.follow_rules()
        changed = [*arrivals, *state.take_changed_rows()]
        if self._pending is not state.pending:
            self._pending = state.pending
            changed = self._everything()
        for row in dict.fromkeys(changed):
            self._follow(row)
        self._lines.restore_strict()
        self._all_freed = not causes.isdisjoint(LOOK_AGAIN)
        preempted = self._lines.preemptors.items()
        self._lines.preemptors = {queue: row for queue, row in preempted if states[row] == WorkloadState.QUEUED}

    def _everything(self) -> list[int]:
        """All that waits or holds capacity, or did at the last run."""
        bound = bound_rows(self._state)
        if not any(True for _ in self._bound):
            self._bound.note_all(bound)
        waiting = (row for group in self._state.pending.groups.values() for row in group.rows[group.front :])
        return [*self._lines, *self._bound, *bound.tolist(), *waiting]

    def _follow_changes(self) -> None:
        """Take in what has happened besides while this run was interrupted; a run of its own follows."""
        for row in dict.fromkeys(self._state.take_changed_rows()):
            self._follow(row)

    def _follow(self, row: int) -> None:
        """Take in what has become of a workload. Where it has left, there is quota for others of its tree."""
        state = self._state
        now = state.workloads.state[row]
        bound, queued = now in BOUND, now == WorkloadState.QUEUED
        if not bound and (row in self._bound or (row in self._lines and not queued)):
            self._freed.add(state.queues.path[state.workloads.queue[row]][-1])
        self._bound.note(row, holds=bound)
        self._lines.note(row, waits=queued and state.pending_key(row)[3] != STOPPED)

    def _follow_bound(self) -> None:
        """Take in what the cycles themselves have started and stopped."""
        states = self._state.workloads.state
        for row in self._state.take_changed_rows():
            self._bound.note(row, holds=states[row] in BOUND)

    def _enter(self, row: int) -> None:
        """Have the workload looked at, unless those like it are parked or it was stopped too often."""
        if self._stops.get(row, 0) > MAX_STOPS:
            self._lines.park(row)
        else:
            self._lines.enter(row)

    def _unpark(self) -> None:
        self._lines.unpark(None if self._all_freed else self._freed)
        self._freed, self._all_freed = set(), False
        for row, stops in self._stops.items():
            if stops > MAX_STOPS and row in self._lines:
                self._lines.park(row)

    # -- a cycle ------------------------------------------------------------------------------------------------------

    def _run_cycle(self, heads: list[int]) -> None:
        self._cycle += 1
        w = self._state.workloads
        self._usage.begin()
        nominations = [self._nominate(row) for row in heads if not self._is_closed(row)]
        nominations.sort(key=lambda n: (n.borrow, -w.value_at(n.row), w.submitted[n.row], n.row))
        stopped: set[int] = set()
        for nomination in nominations:
            self._process(nomination, stopped)

    def _is_closed(self, row: int) -> bool:
        if self._gate(row) is None:
            return False
        self._lines.refuse(row, alike=False)
        return True

    def _process(self, nomination: _Nomination, stopped: set[int]) -> None:
        """Start it, have it preempt, or put it back. `stopped`: the victims of this cycle."""
        queue, usage = self._state.workloads.queue[nomination.row], self._usage
        if nomination.mode == _Mode.NO_FIT or not (nomination.victims or nomination.mode == _Mode.FIT):
            if nomination.mode != _Mode.NO_FIT and self._state.queues.specs[queue].reclaim != "any":
                usage.add(queue, self._reserved(nomination))
            self._refused(nomination)
            return
        victims = [victim for victim, _ in nomination.victims]
        if stopped.intersection(victims) or not self._still_fits(nomination, victims):
            self._again(nomination)
            return
        if nomination.victims:
            self._preempt(nomination)
            stopped.update(victims)
        elif not self._start(nomination):
            self._again(nomination)
            return
        usage.add(queue, nomination.charge)

    def _start(self, nomination: _Nomination) -> bool:
        claims = place(self._state.capacity, nomination.shapes, nomination.counts)
        if claims is None:
            return False
        self._usage.hold(self._state.workloads.queue[nomination.row])
        self._binder.bind(nomination.row, nomination.shapes, claims)
        return True

    def _preempt(self, nomination: _Nomination) -> None:
        state, w = self._state, self._state.workloads
        for victim, cause in nomination.victims:
            self._usage.hold(w.queue[victim])
            self._usage.remove(w.queue[victim], limited(state, w.queue[victim], state.charge_of(victim)))
            self._binder.stop(victim, cause, by=nomination.row)
            self._freed.add(state.queues.path[w.queue[victim]][-1])
            self._stops[victim] = self._stops.get(victim, 0) + 1
            self._enter(victim)
        self._lines.preemptors[w.queue[nomination.row]] = nomination.row
        self._enter(nomination.row)

    def _again(self, nomination: _Nomination) -> None:
        """Try it in the next cycle, with the pools after the one it was nominated for."""
        self._next_pool[nomination.row] = self._cycle, nomination.next_pool
        self._enter(nomination.row)

    def _refused(self, nomination: _Nomination) -> None:
        if nomination.next_pool:
            self._again(nomination)
        else:
            self._lines.refuse(nomination.row, alike=True)

    def _still_fits(self, nomination: _Nomination, victims: list[int]) -> bool:
        state, w, usage = self._state, self._state.workloads, self._usage
        held = [(w.queue[row], limited(state, w.queue[row], state.charge_of(row))) for row in victims]
        for queue, charge in held:
            usage.remove(queue, charge)
        fits = usage.fits(w.queue[nomination.row], nomination.charge)
        for queue, charge in held:
            usage.add(queue, charge)
        return fits

    def _reserved(self, nomination: _Nomination) -> Charge:
        """What the others may not take in this cycle from a workload that waits for its quota."""
        queue = self._state.workloads.queue[nomination.row]
        room = self._usage.room_to_limit if nomination.borrow else self._usage.room_to_nominal
        reserved = ((slot, min(quantity, room(queue, slot))) for slot, quantity in nomination.charge)
        return tuple((slot, quantity) for slot, quantity in reserved if quantity > 0)

    # -- nomination ---------------------------------------------------------------------------------------------------

    def _nominate(self, row: int) -> _Nomination:
        """With all of its tasks if that can be, else with as many as can be."""
        cycle, pool = self._next_pool.pop(row, (0, 0))
        first_pool = pool if cycle == self._cycle - 1 else 0
        workload_class = self._state.workloads.class_at(row)

        def possible(counts: tuple[int, ...]) -> tuple[_Nomination, bool]:
            found = self._assigned(row, counts, first_pool)
            if _Mode.NO_FIT < found.mode < _Mode.FIT:
                demand = Demand(row, found.charge, found.short, found.shapes, counts)
                found = found._replace(victims=tuple(self._search.victims(demand)))
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

    def _assigned(self, row: int, counts: tuple[int, ...], first_pool: int) -> _Nomination:
        """The pool in which it starts best, as far as Kueue looks for it."""
        best = _Nomination(row, _Mode.NO_FIT, 0)
        ways = list(variants(self._state, row))
        rules = self._state.queues.specs[self._state.workloads.queue[row]].kueue
        tried = first_pool
        for shapes in ways[first_pool:]:
            tried += 1
            offer = self._offer(row, shapes, counts)
            if _is_better(offer.mode, offer.borrow, best.mode, best.borrow):
                best = offer
            if not _goes_on(offer, rules):
                best = offer
                break
        best = best._replace(next_pool=0 if tried >= len(ways) or best.mode == _Mode.NO_FIT else tried)
        if best.mode == _Mode.FIT and not self._has_room(best.shapes, counts):
            return best._replace(mode=_Mode.PREEMPT, short=frozenset(slot for slot, _ in best.charge))
        return best

    def _offer(self, row: int, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> _Nomination:
        """The worst of what its resources are offered."""
        state = self._state
        charge = limited(state, state.workloads.queue[row], state.charge_if(row, shapes, counts))
        mode, borrow, most, short = _Mode.FIT, 0, 0, set()
        for slot, quantity in charge:
            offered, distance = self._offered(row, slot, quantity)
            most = max(most, distance)
            if offered != _Mode.FIT:
                short.add(slot)
            if _is_better(mode, borrow, offered, distance):
                mode, borrow = offered, distance
        return _Nomination(row, mode, most, shapes, counts, charge, frozenset(short))

    def _offered(self, row: int, slot: int, quantity: int) -> tuple[_Mode, int]:
        """(mode, height of the subtree whose quota is used) of one resource in one pool."""
        usage, queue = self._usage, self._state.workloads.queue[row]
        rules = self._state.queues.specs[queue].kueue
        if quantity > usage.potential(queue, slot):
            return _Mode.NO_FIT, 0
        distance, has_right = usage.distance(queue, slot, quantity)
        if quantity <= usage.available(queue, slot):
            return _Mode.FIT, distance
        nominal = self._state.queues.nominal_at(queue, slot)
        if nominal < quantity and not has_right and rules.borrow_within_cohort == "never":
            return _Mode.NO_FIT, distance
        return self._by_preemption(Demand(row, ((slot, quantity),), frozenset((slot,))), slot)

    def _by_preemption(self, demand: Demand, slot: int) -> tuple[_Mode, int]:
        state, w, usage = self._state, self._state.workloads, self._usage
        victims = [victim for victim, _ in self._search.victims(demand)]
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
