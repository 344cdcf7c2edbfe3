"""Preemption by Kueue's rules: whom a workload may have stopped where the policy is `kueue`.

Candidates come in this order: work of other queues that stands in the way of what the preemptor's queue, or a cohort of
it, has a right to; other work above quota that priority gives way to; lower work of the own queue. Within each the
lowest priority goes first, then what started last. They are taken one after the other until the preemptor fits, and
then given back, the last taken first, as far as it still does. Lost work does not count.

Source: kubernetes-sigs/kueue v0.19.2, `pkg/scheduler/preemption/preemption.go` (classical preemption) and
`classical/`. Where Kueue decides by the id of an object, which is chance, the younger workload goes first here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from heapq import merge
from itertools import chain, groupby
from operator import itemgetter
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.columns import Rows, view
from engine.model.specs import QueueSpec
from engine.placement.gang_placement import place, unplace
from engine.scheduling.kueue_usage import QuotaUsage
from engine.scheduling.preemption import shift_on_nodes
from engine.state.cell_state import State
from engine.state.queue_tree import Charge

Victim = tuple[int, int]
"""(workload row, index into EVICTION_CAUSES)"""
Slots = frozenset[int]
RECLAIMED, LOWER_PRIORITY = (ev.EVICTION_CAUSES.index(cause) for cause in ("reclaimed", "lower priority"))


class BoundWork:
    """Work that holds capacity, by queue and priority, in the order of its starts."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._at: dict[int, tuple[int, int]] = {}
        """Row -> (queue, priority value)."""
        self._rows: dict[int, dict[int, dict[int, int]]] = {}
        """Queue -> priority value -> row -> cell ms of its start, which ascend."""

    def __contains__(self, row: int) -> bool:
        return row in self._at

    def __iter__(self) -> Iterator[int]:
        return iter(self._at)

    def note(self, row: int, *, holds: bool) -> None:
        """Take in what has become of a workload."""
        w = self._state.workloads
        place, started = (w.queue[row], w.value_at(row)), w.started[row]
        before = self._at.get(row)
        if holds and before == place and self._rows[place[0]][place[1]][row] == started:
            return
        if before is not None:
            del self._at[row], self._rows[before[0]][before[1]][row]
        if holds:
            self._at[row] = place
            starts = self._rows.setdefault(place[0], {}).setdefault(place[1], {})
            late = not starts or starts[next(reversed(starts))] <= started
            starts[row] = started
            if not late:
                self._rows[place[0]][place[1]] = dict(sorted(starts.items(), key=itemgetter(1)))

    def note_all(self, rows: Rows) -> None:
        """`note` of all that hold capacity, which costs least in the order of their starts."""
        for row in rows[np.argsort(view(self._state.workloads.started)[rows], kind="stable")].tolist():
            self.note(row, holds=True)

    def values(self, queue: int) -> list[int]:
        """Priority values there may be work of, lowest first."""
        return sorted(self._rows.get(queue, ()))

    def latest_first(self, queue: int, value: int) -> Iterator[tuple[int, int]]:
        """(row, cell ms of its start) of work of that priority; of equals the younger first."""
        starts = self._rows[queue][value]
        for _, alike in groupby(reversed(starts.items()), key=itemgetter(1)):
            yield from sorted(alike, reverse=True)


class _Claim(IntEnum):
    """The right of the preemptor to what a candidate holds."""

    OWN_QUEUE = 0
    WITHOUT_BORROWING = 1
    """As long as the preemptor's queue stays within its quota."""
    ALWAYS = 2


class _Candidate(NamedTuple):
    row: int
    queue: int
    charge: Charge
    claim: _Claim
    below: tuple[int, ...]
    """Cohorts between its queue and the first that it shares with the preemptor; each must be above its quota."""


class _Candidates:
    """Those of one sort in the order in which they go, looked for as far as anybody asks."""

    def __init__(self, found: Iterator[_Candidate]) -> None:
        self._known: list[_Candidate] = []
        self._rest = found

    def __iter__(self) -> Iterator[_Candidate]:
        yield from self._known
        for candidate in self._rest:
            self._known.append(candidate)
            yield candidate

    def __bool__(self) -> bool:
        return any(True for _ in self)


class _Source(NamedTuple):
    """A queue whose work may be stopped."""

    queue: int
    rule: str
    """Which of it gives way."""
    claim: _Claim | None = None
    """None: by the priority of each."""
    below: tuple[int, ...] = ()
    """As in _Candidate."""


class Demand(NamedTuple):
    """A start that lacks quota or room."""

    row: int
    charge: Charge
    short: Slots
    """Where it lacks quota, or all that it asks for where it lacks room."""
    shapes: tuple[Shape, ...] = ()
    """None: only quota counts."""
    counts: tuple[int, ...] = ()


class _Departure:
    """Candidates off their nodes while a start is tried."""

    def __init__(self, state: State, demand: Demand) -> None:
        self._state = state
        self._demand = demand
        self._off: set[int] = set()
        self._going: set[int] = set()
        """Taken, but not off their nodes until room counts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for row in self._off:
            shift_on_nodes(self._state, row, -1)

    def take(self, row: int) -> None:
        self._going.add(row)

    def spare(self, row: int) -> None:
        if row in self._going:
            self._going.remove(row)
        else:
            self._off.remove(row)
            shift_on_nodes(self._state, row, -1)

    def leaves_room(self) -> bool:
        demand, capacity = self._demand, self._state.capacity
        if not demand.shapes:
            return True
        for row in self._going:
            shift_on_nodes(self._state, row, 1)
        self._off |= self._going
        self._going.clear()
        claims = place(capacity, demand.shapes, demand.counts)
        if claims is not None:
            unplace(capacity, demand.shapes, claims)
        return claims is not None


class KueuePreemption:
    """The search for victims in the state at the start of a cycle."""

    def __init__(self, state: State, usage: QuotaUsage, bound: BoundWork) -> None:
        self._state = state
        self._usage = usage
        self._bound = bound

    def victims(self, demand: Demand) -> list[Victim]:
        """Those to stop; empty when the rules allow no set that is enough. The usage is as before afterwards."""
        entitled, others, own = self._candidates(demand)
        for borrow in self._ways(demand, entitled, others):
            taken = self._taken(chain(entitled, others, own), demand, borrow=borrow)
            for candidate in taken:
                self._usage.add(candidate.queue, candidate.charge)
            if taken:
                queue = self._state.workloads.queue[demand.row]
                return [(each.row, LOWER_PRIORITY if each.queue == queue else RECLAIMED) for each in taken]
        return []

    def _ways(self, demand: Demand, entitled: _Candidates, others: _Candidates) -> tuple[bool, ...]:
        """Whether the preemptor's queue may borrow, in the order in which the two are tried."""
        queue = self._state.workloads.queue[demand.row]
        never = self._spec(queue).kueue.borrow_within_cohort == "never"
        if not (entitled or others) or (never and not self._usage.below_quota(queue, demand.short)):
            return (True,)
        return (False, True) if never and not entitled else (True, False)

    def _taken(self, candidates: Iterable[_Candidate], demand: Demand, *, borrow: bool) -> list[_Candidate]:
        """The candidates to stop, removed from the usage; none removed and none named where all are not enough."""
        taken: list[_Candidate] = []
        with _Departure(self._state, demand) as departure:
            for candidate in candidates:
                if not self._may_go(candidate, demand, borrow=borrow):
                    continue
                self._usage.remove(candidate.queue, candidate.charge)
                departure.take(candidate.row)
                taken.append(candidate)
                if self._fits(demand, departure, borrow=borrow):
                    return self._needed(taken, demand, departure, borrow=borrow)
        for candidate in taken:
            self._usage.add(candidate.queue, candidate.charge)
        return []

    def _needed(
        self, taken: list[_Candidate], demand: Demand, departure: _Departure, *, borrow: bool
    ) -> list[_Candidate]:
        needed = [taken[-1]]
        for candidate in taken[-2::-1]:
            self._usage.add(candidate.queue, candidate.charge)
            departure.spare(candidate.row)
            if not self._fits(demand, departure, borrow=borrow):
                self._usage.remove(candidate.queue, candidate.charge)
                departure.take(candidate.row)
                needed.append(candidate)
        return needed[::-1]

    def _may_go(self, candidate: _Candidate, demand: Demand, *, borrow: bool) -> bool:
        """False where those taken before have brought its queue within its quota."""
        if candidate.claim == _Claim.OWN_QUEUE:
            return True
        if borrow and candidate.claim == _Claim.WITHOUT_BORROWING:
            return False
        return not any(self._usage.within_quota(at, demand.short) for at in (candidate.queue, *candidate.below))

    def _fits(self, demand: Demand, departure: _Departure, *, borrow: bool) -> bool:
        queue = self._state.workloads.queue[demand.row]
        return self._usage.fits(queue, demand.charge, borrow=borrow) and departure.leaves_room()

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _candidates(self, demand: Demand) -> tuple[_Candidates, _Candidates, _Candidates]:
        """(of other queues by right, of other queues by priority, of the own queue), each in the order in which they
        go."""
        queues, queue = self._state.queues, self._state.workloads.queue[demand.row]
        rules = self._spec(queue)
        entitled: list[_Source] = []
        others: list[_Source] = []
        seen = queue
        for cohort, by_right in self._usage.ancestors_in_reach(queue, demand.charge):
            if rules.reclaim == "never":
                break
            for other in self._above_quota(cohort, demand.short, seen):
                below = queues.path[other][1 : queues.path[other].index(cohort)]
                claim = _Claim.ALWAYS if by_right else None
                (entitled if by_right else others).append(_Source(other, rules.reclaim, claim, below))
            seen = cohort
        own = [_Source(queue, rules.kueue.within_queue, _Claim.OWN_QUEUE)]
        return self._in_order(entitled, demand), self._in_order(others, demand), self._in_order(own, demand)

    def _in_order(self, sources: list[_Source], demand: Demand) -> _Candidates:
        return _Candidates(merge(*(self._users(source, demand) for source in sources), key=self._order))

    def _above_quota(self, vertex: int, short: Slots, seen: int) -> Iterator[int]:
        """The queues below the vertex that draw above their quota, with all between them; not those at `seen`."""
        for child in self._state.queues.children[vertex]:
            if child == seen or self._usage.within_quota(child, short):
                continue
            if self._state.queues.children[child]:
                yield from self._above_quota(child, short, seen)
            else:
                yield child

    def _users(self, source: _Source, demand: Demand) -> Iterator[_Candidate]:
        """The queue's work that gives way and holds some of what is short. Of a queue that is held, none: Kueue does
        not see it then."""
        if not self._state.queues.is_open(source.queue):
            return
        for row in self._giving_way(source, demand.row):
            charge = limited(self._state, source.queue, self._state.charge_of(row))
            if any(slot in demand.short for slot, _ in charge):
                claim = self._claim(demand.row, row) if source.claim is None else source.claim
                yield _Candidate(row, source.queue, charge, claim, source.below)

    def _giving_way(self, source: _Source, row: int) -> Iterator[int]:
        """Work of the queue that the rule lets the preemptor stop, in the order in which it goes."""
        w = self._state.workloads
        value, submitted = w.value_at(row), w.submitted[row]
        for at in self._bound.values(source.queue):
            every = source.rule == "any" or (source.rule != "never" and at < value)
            newer = source.rule == "lower_or_newer_equal" and at == value
            if not (every or newer):
                continue
            for other, started in self._bound.latest_first(source.queue, at):
                if not every and started <= submitted:
                    break  # Nothing that started before the preemptor came is newer.
                if every or submitted < w.submitted[other]:
                    yield other

    def _claim(self, row: int, other: int) -> _Claim:
        w = self._state.workloads
        rules, value = self._spec(w.queue[row]).kueue, w.value_at(other)
        if rules.borrow_within_cohort == "never" or value >= w.value_at(row):
            return _Claim.WITHOUT_BORROWING
        above = rules.borrow_max_priority is not None and value > rules.borrow_max_priority
        return _Claim.WITHOUT_BORROWING if above else _Claim.ALWAYS

    def _order(self, candidate: _Candidate) -> tuple[int, int, int]:
        w = self._state.workloads
        return w.value_at(candidate.row), -w.started[candidate.row], -candidate.row

    def _spec(self, queue: int) -> QueueSpec:
        spec: QueueSpec = self._state.queues.specs[queue]
        return spec


def limited(state: State, queue: int, charge: Charge) -> Charge:
    """What of a charge the tree of the queue limits."""
    mask = state.queues.limited[queue]
    return tuple((slot, quantity) for slot, quantity in charge if mask >> slot & 1)
