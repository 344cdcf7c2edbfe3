"""Preemption by Kueue's rules: whom a workload may have stopped where the policy is `kueue`.

Candidates come in this order: work of other queues that stands in the way of what the preemptor's queue, or a cohort of
it, has a right to; other work above quota that priority gives way to; lower work of the own queue. Within each the
lowest priority goes first, then what started last. They are taken one after the other until the preemptor fits, and
then given back, the last taken first, as far as it still does. Lost work does not count.

Source: kubernetes-sigs/kueue v0.19.2, `pkg/scheduler/preemption/preemption.go` (classical preemption) and
`classical/`. Where Kueue decides by the id of an object, which is chance, the younger workload goes first here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.columns import view
from engine.model.specs import QueueSpec
from engine.placement.gang_placement import place, unplace
from engine.scheduling.kueue_usage import QuotaUsage
from engine.scheduling.preemption import bound_rows, off_nodes
from engine.state.cell_state import State
from engine.state.queue_tree import Charge

Victim = tuple[int, int]
"""(workload row, index into EVICTION_CAUSES)"""
Slots = frozenset[int]
RECLAIMED, LOWER_PRIORITY = (ev.EVICTION_CAUSES.index(cause) for cause in ("reclaimed", "lower priority"))


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


class Demand(NamedTuple):
    """A start that lacks quota or room."""

    row: int
    charge: Charge
    short: Slots
    """Where it lacks quota, or all that it asks for where it lacks room."""
    shapes: tuple[Shape, ...] = ()
    """None: only quota counts."""
    counts: tuple[int, ...] = ()


class KueuePreemption:
    """The search for victims in the state at the start of a cycle."""

    def __init__(self, state: State, usage: QuotaUsage) -> None:
        self._state = state
        self._usage = usage
        self._bound: dict[int, list[int]] | None = None

    def victims(self, demand: Demand) -> list[Victim]:
        """Those to stop; empty when the rules allow no set that is enough. The usage is as before afterwards."""
        entitled, others, own = self._candidates(demand)
        for borrow in self._ways(demand, entitled, others):
            taken = self._taken([*entitled, *others, *own], demand, borrow=borrow)
            for candidate in taken:
                self._usage.add(candidate.queue, candidate.charge)
            if taken:
                queue = self._state.workloads.queue[demand.row]
                return [(each.row, LOWER_PRIORITY if each.queue == queue else RECLAIMED) for each in taken]
        return []

    def _ways(self, demand: Demand, entitled: list[_Candidate], others: list[_Candidate]) -> tuple[bool, ...]:
        """Whether the preemptor's queue may borrow, in the order in which the two are tried."""
        queue = self._state.workloads.queue[demand.row]
        never = self._spec(queue).kueue.borrow_within_cohort == "never"
        if not (entitled or others) or (never and not self._usage.below_quota(queue, demand.short)):
            return (True,)
        return (False, True) if never and not entitled else (True, False)

    def _taken(self, candidates: Sequence[_Candidate], demand: Demand, *, borrow: bool) -> list[_Candidate]:
        """The candidates to stop, removed from the usage; none removed and none named where all are not enough."""
        taken: list[_Candidate] = []
        for candidate in candidates:
            if not self._may_go(candidate, demand, borrow=borrow):
                continue
            self._usage.remove(candidate.queue, candidate.charge)
            taken.append(candidate)
            if self._fits(demand, taken, borrow=borrow):
                return self._needed(taken, demand, borrow=borrow)
        for candidate in taken:
            self._usage.add(candidate.queue, candidate.charge)
        return []

    def _needed(self, taken: list[_Candidate], demand: Demand, *, borrow: bool) -> list[_Candidate]:
        for candidate in taken[-2::-1]:
            left = [each for each in taken if each is not candidate]
            self._usage.add(candidate.queue, candidate.charge)
            if self._fits(demand, left, borrow=borrow):
                taken = left
            else:
                self._usage.remove(candidate.queue, candidate.charge)
        return taken

    def _may_go(self, candidate: _Candidate, demand: Demand, *, borrow: bool) -> bool:
        """False where those taken before have brought its queue within its quota."""
        if candidate.claim == _Claim.OWN_QUEUE:
            return True
        if borrow and candidate.claim == _Claim.WITHOUT_BORROWING:
            return False
        return not any(self._usage.within_quota(at, demand.short) for at in (candidate.queue, *candidate.below))

    def _fits(self, demand: Demand, gone: list[_Candidate], *, borrow: bool) -> bool:
        if not self._usage.fits(self._state.workloads.queue[demand.row], demand.charge, borrow=borrow):
            return False
        return not demand.shapes or self._has_room(demand, [each.row for each in gone])

    def _has_room(self, demand: Demand, gone: list[int]) -> bool:
        capacity = self._state.capacity
        with off_nodes(self._state, gone):
            claims = place(capacity, demand.shapes, demand.counts)
            if claims is not None:
                unplace(capacity, demand.shapes, claims)
        return claims is not None

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _candidates(self, demand: Demand) -> tuple[list[_Candidate], list[_Candidate], list[_Candidate]]:
        """(of other queues by right, of other queues by priority, of the own queue), each in the order in which they
        go."""
        queues, queue = self._state.queues, self._state.workloads.queue[demand.row]
        rules = self._spec(queue)
        own = [
            _Candidate(row, queue, charge, _Claim.OWN_QUEUE, ())
            for row, charge in self._users(queue, demand.short)
            if self._gives_way(demand.row, row, rules.kueue.within_queue)
        ]
        entitled: list[_Candidate] = []
        others: list[_Candidate] = []
        seen = queue
        for cohort, by_right in self._usage.ancestors_in_reach(queue, demand.charge):
            if rules.reclaim == "never":
                break
            for other in self._above_quota(cohort, demand.short, seen):
                below = queues.path[other][1 : queues.path[other].index(cohort)]
                for row, charge in self._users(other, demand.short):
                    if self._gives_way(demand.row, row, rules.reclaim):
                        claim = _Claim.ALWAYS if by_right else self._claim(demand.row, row)
                        (entitled if by_right else others).append(_Candidate(row, other, charge, claim, below))
            seen = cohort
        for found in (entitled, others, own):
            found.sort(key=self._order)
        return entitled, others, own

    def _above_quota(self, vertex: int, short: Slots, seen: int) -> Iterator[int]:
        """The queues below the vertex that draw above their quota, with all between them; not those at `seen`."""
        for child in self._state.queues.children[vertex]:
            if child == seen or self._usage.within_quota(child, short):
                continue
            if self._state.queues.children[child]:
                yield from self._above_quota(child, short, seen)
            else:
                yield child

    def _users(self, queue: int, short: Slots) -> Iterator[tuple[int, Charge]]:
        """(row, charge) of the queue's work that holds some of what is short. Of a queue that is held, none: Kueue does
        not see it then."""
        if self._bound is None:
            self._bound = {}
            rows = bound_rows(self._state)
            for row, at in zip(rows.tolist(), view(self._state.workloads.queue)[rows].tolist(), strict=True):
                self._bound.setdefault(at, []).append(row)
        if not self._state.queues.is_open(queue):
            return
        for row in self._bound.get(queue, ()):
            charge = limited(self._state, queue, self._state.charge_of(row))
            if any(slot in short for slot, _ in charge):
                yield row, charge

    def _gives_way(self, row: int, other: int, rule: str) -> bool:
        w = self._state.workloads
        if rule == "any" or (rule != "never" and w.value_at(other) < w.value_at(row)):
            return True
        newer = rule == "lower_or_newer_equal" and w.value_at(other) == w.value_at(row)
        return newer and w.submitted[row] < w.submitted[other]

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
