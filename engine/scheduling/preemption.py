"""Preemption: the workloads that a waiting workload may have stopped so that it can start.

A victim is always a whole workload that is placed or running, of a preemptible priority class, and not being stopped
for other work already. Two rules allow it:

- Its own queue: work of lower priority, if the class of the preemptor may preempt.
- Other queues: work of a queue that uses more than its nominal quota of the missing resources. The preemptor's own
  queue must stay within its nominal quota with it. That queue says whether it reclaims quota from anybody, from lower
  priorities only, or never. Every cohort between the victim's queue and the common ancestor must be above its quota
  too, and still be so before each victim is taken: nobody else touches use within a queue's nominal quota.
- Both together, where neither suffices: so much of its own queue's lower work goes that the queue is within its nominal
  quota with the preemptor, and then takes back from others (as Kueue does).

A workload that was preempted itself preempts nobody until it has waited for a while (`Workloads.may_preempt_at`).

Spared are: work that has not run for its queue's minimum runtime, expired burst excepted; work that was preempted less
than MIN_TURN_MS ago and has started again; more workloads of a queue than its limit on disruptions allows; and work
preempted THRASH times within the last hour, unless by a higher priority.

The order of sacrifice is: expired burst, overrun backfill, burst, other borrowed quota, lower priority in the own
queue; within each of these, lower priorities first. Then the least lost work counts. It is the time since the last
checkpoint, or none where a checkpoint can be written on request, times the share of the cell that the workload holds
(its largest of any resource, in millionths). `engine.scheduling.victims` finds the set. It is taken only if the
preemptor then really starts, and would not start with any one of them spared.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from engine.capacity.index import NOWHERE
from engine.capacity.task_shapes import Shape
from engine.capacity.topology import domain_room, levels_asked
from engine.model import events as ev
from engine.model.columns import Rows, view
from engine.model.specs import RESOURCES, WorkloadState
from engine.placement.gang_placement import Claim, place, unplace
from engine.scheduling.candidate_order import FOREVER
from engine.scheduling.preemption_rules import (
    Place,
    PreemptionRules,
    Sources,
    SparingRule,
    beyond_own_quota,
    may_combine,
    may_preempt_lower,
    may_take_back,
    sources,
    takes_from_others,
)
from engine.scheduling.vain_searches import VainReason, VainSearch
from engine.scheduling.victim_candidates import Quota, VictimCandidates, VictimField
from engine.scheduling.victims import cheapest_in_one, cheapest_of
from engine.state import allocations
from engine.state.cell_state import BOUND, State
from engine.state.expected_ends import estimated_ends
from engine.state.queue_tree import Charge, Lack, QueueTree
from engine.state.workloads import NONE

MILLION = 1_000_000
MAX_ROUNDS = 8
"""Searches made for one preemptor, each with what the last found to be lacking still."""
CLOSELY = 64
"""Most victims whose need is verified one by one."""
STANDING_RULES = (SparingRule.NOT_LOWER, SparingRule.NOT_PREEMPTIBLE, SparingRule.MIN_RUNTIME)
"""Rules that spare a victim also between its choice and its stop."""


class SacrificeTier(IntEnum):
    """Order of sacrifice."""

    EXPIRED_BURST = 0
    OVERRUN_BACKFILL = 1
    BURST = 2
    BORROWED = 3
    LOWER_PRIORITY = 4


CAUSES = {
    SacrificeTier.EXPIRED_BURST: ev.EVICTION_CAUSES.index("expired burst"),
    SacrificeTier.OVERRUN_BACKFILL: ev.EVICTION_CAUSES.index("overran backfill"),
    SacrificeTier.BURST: ev.EVICTION_CAUSES.index("reclaimed"),
    SacrificeTier.BORROWED: ev.EVICTION_CAUSES.index("reclaimed"),
    SacrificeTier.LOWER_PRIORITY: ev.EVICTION_CAUSES.index("lower priority"),
}


class Preemption(NamedTuple):
    """The workloads to stop, and the preemptor's gain."""

    victims: tuple[tuple[int, int], ...]
    """(workload row, index into EVICTION_CAUSES), oldest first."""
    claims: list[Claim]
    """The preemptor's place once they are gone. Nothing is claimed yet."""
    delay_ms: int
    """Time until the last of them has written its checkpoint; 0 when none is asked to."""


def may_preempt(state: State, row: int, *, anyone_borrows: bool = True) -> bool:
    """A quick necessary condition: whether there is anybody the workload might preempt, and it may by now.
    `anyone_borrows` is False where no queue is known to use more than its quota."""
    if state.now_ms < state.workloads.may_preempt_at(row, state.settings):
        return False
    return may_preempt_lower(state, row) or (anyone_borrows and _may_take_back(state, row))


def _may_take_back(state: State, row: int) -> bool:
    """True if some other queue of the tree is above its quota, and the workload's own would not be with it."""
    w, queues = state.workloads, state.queues
    queue = w.queue[row]
    if queues.specs[queue].reclaim == "never":
        return False
    if not queues.flavored(queue) and beyond_own_quota(state, queue, w.class_at(row).least_charge) is not None:
        return False
    return queues.others_borrow(queue)


def find(
    state: State,
    row: int,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    charge: Charge,
    note: Callable[[tuple[VainSearch, ...]], None] | None = None,
) -> Preemption | None:
    """The victims for which the workload would start with `counts[g]` tasks of `shapes[g]` at that charge; None when
    the policy allows no set that is enough, and then `note` is told why each search was in vain. The state is left
    exactly as it was."""
    searches = [_Search(state, row, shapes, counts, charge)]
    found = searches[0].run()
    if found is None and may_combine(state, row, charge):
        searches.append(_Search(state, row, shapes, counts, charge, together=True))
        found = searches[1].run()
    if found is None and note is not None:
        note(tuple(search.vain() for search in searches))
    return found


def alike(state: State, row: int, shapes: tuple[Shape, ...], victim: int) -> list[tuple[int, int]]:
    """The victims that `find` would name for the workload and those like it that follow, one for each, in that order:
    (workload row, index into EVICTION_CAUSES). `victim` is the one that the previous preemptor replaced; both are of
    one task and request the same (`engine.scheduling.workload_admission`). Empty where that cannot be told in advance.
    """
    counts = state.workloads.class_at(row).least
    return _Search(state, row, shapes, counts, state.charge_if(row, shapes, counts)).alike(victim)


def asks_for_the_same(state: State, one: int, other: int) -> bool:
    """True if both classes are of one task and request the same quantities, no part of a device among them."""
    a, b = state.workloads.classes[one], state.workloads.classes[other]
    return a.single and b.single and not a.shapes[0].part and a.groups[0].request == b.groups[0].request


def still_victims(
    state: State,
    row: int,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    charge: Charge,
    victims: Sequence[int],
) -> dict[int, int]:
    """The victims chosen for the workload earlier that may still be stopped for it -> the cause, as an index into
    EVICTION_CAUSES.
    """
    # The caller sees to it that the queue is within its quota if anything is taken back.
    return _Search(state, row, shapes, counts, charge, together=True).still(victims)


def likely_ends(state: State, rows: Rows) -> Rows:
    """The likely ends of placed and running workloads: by their estimates, or, for those without one, by the run time
    of the last two of their class. FOREVER for unknown and for overdue ones.
    """
    w = state.workloads
    estimate = np.array([c.estimate_ms for c in w.classes], np.int64)
    took, before = view(w.took), view(w.took_before)
    learned = np.where(before >= 0, (took + before + 1) // 2, took)
    cls = view(w.cls)[rows]
    work = np.where(estimate > 0, estimate, learned)[cls]
    tasks = np.array([c.tasks for c in w.classes], np.int64)[cls]
    left = work - view(w.kept)[rows] - view(w.done)[rows]
    ends = view(w.rated)[rows] + np.maximum(-(-left * tasks // view(w.tasks)[rows]), 1)
    return np.where((work > 0) & (ends > state.now_ms), ends, FOREVER)


def waiting_is_better(state: State, rows: Rows, delay_ms: int = 0) -> bool:
    """True if all these workloads are likely to end by themselves so soon that none is to be stopped for that."""
    patience = state.settings.preempt_after_ms
    if not patience or not len(rows):
        return False
    return bool(likely_ends(state, rows).max() <= state.now_ms + max(patience, delay_ms))


def bound_rows(state: State) -> Rows:
    """Rows of all placed and running workloads."""
    return np.flatnonzero(np.isin(view(state.workloads.state), BOUND))


def lets_start(
    state: State,
    row: int,
    shapes: tuple[Shape, ...],
    counts: tuple[int, ...],
    victims: Sequence[int],
    *,
    borrow: bool = True,
) -> bool:
    """True if the workload fits, in quota (its own, unless it may `borrow`) and on nodes, once these rows are gone. The
    state is left unchanged.
    """
    charge = state.charge_if(row, shapes, counts)
    w, queues = state.workloads, state.queues
    with queues.trial():
        for victim in victims:
            queues.give_back(w.queue[victim], state.charge_of(victim), state.now_ms)
        lack = queues.lack(w.queue[row], charge, state.now_ms, borrow=borrow)
    return lack is None and _placed_without(state, shapes, counts, victims) is not None


def _queues_without(state: State, rows: Sequence[int]) -> QueueTree:
    """A copy of the queue tree with these workloads' charges given back."""
    queues = state.queues.copy()
    for row in rows:
        queues.give_back(state.workloads.queue[row], state.charge_of(row), state.now_ms)
    return queues


def _placed_without(
    state: State, shapes: tuple[Shape, ...], counts: tuple[int, ...], rows: Sequence[int]
) -> list[Claim] | None:
    """The place of a gang if these workloads were gone; None when it would not fit."""
    with off_nodes(state, rows):
        claims = place(state.capacity, shapes, counts)
        if claims is not None:
            unplace(state.capacity, shapes, claims)
    return claims


@contextmanager
def off_nodes(state: State, rows: Sequence[int]) -> Iterator[None]:
    """Meanwhile what these workloads hold is free."""
    for row in rows:
        shift_on_nodes(state, row, 1)
    yield
    for row in reversed(rows):
        shift_on_nodes(state, row, -1)


def shift_on_nodes(state: State, row: int, sign: int) -> None:
    """Give back what the workload holds on its nodes, or take it again when `sign` is -1."""
    w, a, capacity = state.workloads, state.allocations, state.capacity
    held = list(a.of_workload(w.first_allocation[row]))
    state.shift_company(row, -sign)
    for group, shape in enumerate(w.class_at(row).shapes):
        mine = [i for i in held if a.group[i] == group]
        if allocations.worth_shifting(shape, view(a.node)[mine]):
            counts = sign * view(a.count)[mine].astype(np.int64)
            allocations.shift_many(capacity, shape, view(a.node)[mine], counts, view(a.devices)[mine])
            continue
        for i in mine:
            if sign > 0:
                capacity.give_back(a.node[i], shape, a.count[i], a.devices[i])
            else:
                capacity.take(a.node[i], shape, a.count[i], a.devices[i])


class _Search:
    """A preemptor's search for its victims."""

    def __init__(
        self,
        state: State,
        row: int,
        shapes: tuple[Shape, ...],
        counts: tuple[int, ...],
        charge: Charge,
        *,
        together: bool = False,
    ) -> None:
        w = state.workloads
        self.state = state
        self.row = row
        self.shapes = shapes
        self.counts = counts
        self.charge = charge
        self.queue = w.queue[row]
        self.rules = PreemptionRules(state, row)
        self.requests = state.requests
        self.tier: Rows = np.empty(0, np.int8)
        """Tier of every workload row; -1 for those that may not be victims."""
        others = [c for c in state.bookings.clearings if c.row != row]
        self.leaving = [victim for c in others for victim in c.victims if w.preempting[victim] == c.row]
        """Workloads that are being stopped for somebody else already."""
        self.settled = _queues_without(state, self.leaving) if self.leaving else state.queues
        """The queue tree once they are gone."""
        self.together = together
        """Lower work of its own queue makes way too, so that the queue is within its quota and may take back."""
        self._takes_back = (takes_from_others if together else may_take_back)(state, self.queue, charge)
        self._reason = VainReason.NOBODY
        """Why there is nobody, if there is nobody."""
        self._short: tuple[Place, int] | None = None
        self._in_reach: Rows = np.empty(0, np.int64)
        """Rows of what runs in reach of the preemptor, spared or not."""

    def run(self) -> Preemption | None:
        state = self.state
        takes_lower = may_preempt_lower(state, self.row)
        if not self._takes_back and not takes_lower:
            return None
        lacks = self._lacks(state.queues)
        contested = frozenset(slot for _, slot in lacks) | self._slots_short_of_room()
        sources = self._sources(contested)
        every = frozenset([slot for slot, _ in self.charge])
        if contested != every and sources.keys() != self._sources(every).keys():
            # Who may be stopped depends on what else is short.
            self._reason = VainReason.UNPROVEN
        if not sources and not takes_lower:
            return None
        self.requests.update(state.workloads.classes)
        candidates = self._candidates(sources)
        if candidates is None:
            return None
        for _ in range(MAX_ROUNDS):
            found = self._cheapest(candidates, lacks, sources)
            if not found:
                return None
            self._reason = VainReason.UNPROVEN
            still = self._lacks_without(found)
            if not still:
                alone = len(self.shapes) == 1 and self.shapes[0].terms is None
                return self._verified(found, exact=alone and not lacks)
            # Giving back within what a cohort does not lend frees nothing above it: ask for more.
            for at, short in still.items():
                lacks[at] = lacks.get(at, 0) + short
        return None

    def _found_vain(self, reason: VainReason) -> None:
        """There is nobody, as far as this look goes."""
        if self._reason != VainReason.UNPROVEN:
            self._reason = reason

    def vain(self) -> VainSearch:
        """Why it has found nobody."""
        state, queues = self.state, self.state.queues
        reach: tuple[int, ...] = (queues.path[self.queue][-1] if self._takes_back else self.queue,)
        if self._short is not None and self._short[0][0] == self.queue:
            # Of no other queue's work does that depend.
            reach = (self.queue,)
            self._in_reach = self._in_reach[view(state.workloads.queue)[self._in_reach] == self.queue]
        elif state.settings.preempt_across:
            reach = tuple(vertex for vertex, path in enumerate(queues.path) if len(path) == 1)
        uncertain = queues.bursts or state.bookings.clearings or self.shapes[0].terms is not None
        return VainSearch(
            VainReason.UNPROVEN if uncertain else self._reason,
            (state.version, state.now_ms),
            reach,
            sum([state.joined[vertex] for vertex in reach]),
            self._spared_until(),
            self._takes_back,
            self.together,
            self._short,
            state.capacity.gained_mark,
        )

    def _spared_until(self) -> int:
        """The first cell time at which more of what is in reach may be stopped."""
        until_ms = self.rules.spared_until(self._in_reach)
        return int(until_ms[until_ms > self.state.now_ms].min(initial=FOREVER))

    def still(self, victims: Sequence[int]) -> dict[int, int]:
        """`still_victims`."""
        lacks = self._lacks(self.state.queues)
        sources = self._sources(frozenset(slot for _, slot in lacks) | self._slots_short_of_room())
        self.requests.update(self.state.workloads.classes)
        tiers = self._tiers(np.array(victims, np.int64), sources).tolist()
        limits = _Limits(self, sources)
        return {
            row: CAUSES[SacrificeTier(tier)]
            for row, tier in zip(victims, tiers, strict=True)
            if tier >= 0 and limits.take(row)
        }

    def alike(self, victim: int) -> list[tuple[int, int]]:
        """`alike`."""
        state, w, capacity = self.state, self.state.workloads, self.state.capacity
        if self._takes_back or capacity.find(self.shapes[0]) != NOWHERE:
            return []
        self.requests.update(w.classes)
        candidates = self._candidates({})
        if candidates is None:
            return []
        values = np.unique(w.priority_value)
        level = int(SacrificeTier.LOWER_PRIORITY) * len(values) + int(np.searchsorted(values, w.value_at(victim)))
        rows = np.flatnonzero(candidates.level == level)
        own = w.cls[self.row]
        if not all(asks_for_the_same(state, cls, own) for cls in set(view(w.cls)[rows].tolist())):
            return []
        # Each is on one node, and of no use where the preemptor may not go.
        nodes = view(state.allocations.node)[view(w.first_allocation)[rows]]
        rows = rows[capacity.usable_mask(self.shapes[0], nodes)]
        rows = rows[np.lexsort((-rows, candidates.cost[rows]))]
        rows = rows[: state.queues.disruptions_left(self.queue, state.now_ms)]
        patience = state.settings.preempt_after_ms
        stays = view(w.checkpoint_cost)[rows] > 0
        if patience:
            stays |= likely_ends(state, rows) <= state.now_ms + patience
        last = int(np.argmax(stays)) if stays.any() else len(rows)
        cause = CAUSES[SacrificeTier.LOWER_PRIORITY]
        return [(row, cause) for row in rows[:last].tolist()]

    def _lacks(self, queues: QueueTree) -> dict[tuple[int, int], int]:
        """(vertex, slot) -> quantity that the charge lacks, the nearest vertex for each slot; and what the queue's own
        quota lacks, if it is to be within that."""
        found: dict[tuple[int, int], int] = {}
        for borrow in (False, True) if self.together else (True,):
            for part in self.charge:
                lack: Lack | None = queues.lack(self.queue, (part,), self.state.now_ms, borrow=borrow)
                if lack is not None:
                    found.setdefault((lack.vertex, lack.slot), lack.short)
        return found

    def _lacks_without(self, rows: Sequence[int]) -> dict[tuple[int, int], int]:
        """The same once these workloads' charges are given back."""
        state, queues = self.state, self.state.queues
        with queues.trial():
            for row in rows:
                queues.give_back(state.workloads.queue[row], state.charge_of(row), state.now_ms)
            return self._lacks(queues)

    def _slots_short_of_room(self) -> frozenset[int]:
        """Slots of the charge that nodes are too full for: devices if it asks for any, else everything."""
        if _placed_without(self.state, self.shapes, self.counts, ()) is not None:
            return frozenset()
        gpu = RESOURCES.index("gpu_milli")
        devices = frozenset(slot for slot, _ in self.charge if slot % len(RESOURCES) == gpu)
        return devices or frozenset(slot for slot, _ in self.charge)

    def _sources(self, contested: frozenset[int]) -> Sources:
        """The queues above their nominal quota from which the preemptor may take work back."""
        return sources(self.settled, self.queue, contested) if self._takes_back else {}

    # -- who, and at what cost ----------------------------------------------------------------------------------------

    def _candidates(self, sources: Sources) -> VictimCandidates | None:
        """The possible victims; None when there are none."""
        w = self.state.workloads
        rows = np.flatnonzero(np.logical_or.reduce([view(w.state) == state for state in BOUND]))
        rows = rows[view(w.preempting)[rows] == NONE]
        rows = rows[self.rules.lower_in_reach(rows) | self.rules.taken_back(rows, sources)]
        self._in_reach = rows
        tier = self._tiers(rows, sources)
        rows, tier = rows[tier >= 0], tier[tier >= 0]
        keep = ~self.rules.spares(SparingRule.THRASHED, rows)
        if not keep.all():
            self._reason = VainReason.UNPROVEN
        rows, tier = rows[keep], tier[keep]
        if not len(rows):
            return None
        values, rank = np.unique(w.priority_value, return_inverse=True)
        level = np.full(len(w.ids), -1, np.int16)
        level[rows] = tier * len(values) + rank[view(w.priority)[rows]]
        cost = np.zeros(len(w.ids), np.int64)
        cost[rows] = self._costs(rows)
        self.tier = np.full(len(w.ids), -1, np.int8)
        self.tier[rows] = tier
        return VictimCandidates(level, cost)

    def _tiers(self, rows: Rows, sources: Sources) -> Rows:
        """Tier of each row; -1 for those that are not to be touched."""
        state, rules = self.state, self.rules
        own, other = rules.lower_in_reach(rows), rules.taken_back(rows, sources)
        flags = view(state.workloads.flags)[rows]
        overran = (flags & ev.BACKFILLED > 0) & (estimated_ends(state, rows) <= state.now_ms)
        tier = np.where(own, SacrificeTier.LOWER_PRIORITY, SacrificeTier.BORROWED)
        tier[other & (flags & ev.BURST > 0)] = SacrificeTier.BURST
        tier[overran] = SacrificeTier.OVERRUN_BACKFILL
        tier[rules.expired_burst(rows)] = SacrificeTier.EXPIRED_BURST
        tier[~(own | other)] = -1
        for rule in STANDING_RULES:
            tier[rules.spares(rule, rows)] = -1
        return tier

    def _costs(self, rows: Rows) -> Rows:
        """Lost work in milliseconds times millionths of the cell."""
        state, requests = self.state, self.requests
        w = state.workloads
        cls = view(w.cls)[rows]
        tasks, all_tasks = view(w.tasks)[rows], view(requests.tasks)[cls]
        running = view(w.state)[rows] == WorkloadState.RUNNING
        done = view(w.done)[rows] + running * (state.now_ms - view(w.rated)[rows]) * tasks // all_tasks
        np.maximum(done, 0, out=done)
        interval = view(w.checkpoint)[rows]
        lost = np.where(interval > 0, done % np.maximum(interval, 1), done)
        lost[view(w.checkpoint_cost)[rows] > 0] = 0
        share = np.zeros(len(requests.first))
        for column, total in zip(requests.by_resource, state.capacity.totals, strict=True):
            asked = np.add.reduceat(view(column) * view(requests.count), view(requests.first))
            share = np.maximum(share, asked / max(total, 1))
        return np.asarray(lost * np.maximum((share[cls] * tasks / all_tasks * MILLION).astype(np.int64), 1))

    # -- the set ------------------------------------------------------------------------------------------------------

    def _cheapest(
        self,
        candidates: VictimCandidates,
        lacks: dict[tuple[int, int], int],
        sources: Sources,
    ) -> list[int] | None:
        state = self.state
        w = state.workloads
        quotas = [Quota(self._given_back(vertex, slot), short) for (vertex, slot), short in lacks.items()]
        for at, quota in zip(lacks, quotas, strict=True):
            given = int(quota.amount.sum())
            if given < quota.short:
                self._found_vain(VainReason.QUOTA)
                self._short = at, given
                return None
        bound = self._bound_by(candidates)
        # Slots of one group of tasks that go anywhere can be counted: all else is tried out.
        counted = len(self.shapes) == 1 and not bound

        def fits(rows: list[int]) -> bool:
            for row in bound:
                state.shift_company(row, 1)
            claims = _placed_without(state, self.shapes, self.counts, rows)
            for row in bound:
                state.shift_company(row, -1)
            return claims is not None

        asks = list(zip(self.shapes, self.counts, strict=True))
        classes, joint = view(w.cls), None if counted else fits
        what = state.capacity, state.allocations, self.requests, classes, asks, candidates
        request = self.shapes[0].topology
        try:
            for row in bound:
                state.shift_company(row, -1)
            if request is None or request.required is None:
                field = VictimField(state.capacity, self.requests, asks, quotas, candidates)
                found = cheapest_of(field, state.allocations, classes, limits=_Limits(self, sources), fits=joint)
                if found is None:
                    self._found_vain(VainReason.UNPROVEN if field.enough() or bound else VainReason.ROOM)
                return found
            self._found_vain(VainReason.UNPROVEN)
            tree = domain_room(state.capacity).tree
            level, _ = levels_asked(tree, request)
            domains = tree.domain[level][tree.position]
            return cheapest_in_one(*what, domains, quotas=quotas, limits=lambda: _Limits(self, sources), fits=joint)
        finally:
            for row in bound:
                state.shift_company(row, 1)

    def _bound_by(self, candidates: VictimCandidates) -> list[int]:
        """Possible victims that count for the bonds of the preemptor. The nodes that they bar are looked at as if they
        were gone, because they may be.
        """
        terms = self.shapes[0].terms
        if terms is None:
            return []
        mine = {*terms.near, *terms.apart, *terms.shunned}
        marks, company = self.state.workloads.marks, self.state.capacity.company
        rows = np.flatnonzero(candidates.level >= 0).tolist()
        return [row for row in rows if not mine.isdisjoint(term for of in marks(row, company) for term in of)]

    def _given_back(self, vertex: int, slot: int) -> Rows:
        """Per workload row: what it is charged in the slot, if that reaches the vertex."""
        state = self.state
        w, a = state.workloads, state.allocations
        flavor, resource = divmod(slot, len(RESOURCES))
        # An unused entry has row -1.
        used = np.flatnonzero((view(a.workload) != NONE) & (self.tier.take(view(a.workload)) >= 0))
        workload = view(a.workload)[used]
        entry = view(self.requests.first)[view(w.cls)[workload]] + view(a.group)[used]
        quantity = view(self.requests.by_resource[resource])[entry] * view(a.count)[used]
        if flavor:
            pool = state.capacity.pool_of[state.queues.flavors.names[flavor]]
            quantity *= view(state.capacity.pool)[view(a.node)[used]] == pool
        sums = np.bincount(workload, weights=quantity, minlength=len(w.ids)).astype(np.int64)
        rows = np.flatnonzero(sums)
        queues = view(w.queue)[rows]
        off = [queue for queue in set(queues.tolist()) if vertex not in state.queues.path[queue]]
        sums[rows[np.isin(queues, off)]] = 0
        return sums

    def _verified(self, found: list[int], *, exact: bool) -> Preemption | None:
        """The set, without those that are not needed after all unless it is `exact`; None when it is not enough."""
        state = self.state
        w = state.workloads
        claims = _placed_without(state, self.shapes, self.counts, found)
        if claims is not None and not exact and len(found) <= CLOSELY:
            needed = self._needed(found)
            if needed != found:
                found, claims = needed, _placed_without(state, self.shapes, self.counts, needed)
        if claims is None:
            return None
        return Preemption(
            tuple((row, CAUSES[SacrificeTier(self.tier[row])]) for row in found),
            claims,
            max(w.checkpoint_cost[row] for row in found),
        )

    def _needed(self, found: list[int]) -> list[int]:
        """Spare whoever is not needed, the most important and youngest first, until everybody is."""
        state = self.state
        spared = True
        while spared:
            spared = False
            for row in sorted(found, key=lambda r: (-int(self.tier[r]), -state.workloads.value_at(r), r)):
                rest = [other for other in found if other != row]
                if lets_start(state, self.row, self.shapes, self.counts, rest, borrow=not self.together):
                    found, spared = rest, True
        return found


class _Limits:
    """The limits on a set of victims: disruptions, and the quota of the queues they come from.

    A queue may be taken from while it is above its quota. So of the victims below a vertex all but the largest must
    together be less than its excess.
    """

    def __init__(self, search: _Search, sources: Sources) -> None:
        state = search.state
        self._state = state
        self._sources = sources
        places = {at for ways in sources.values() for way in ways for at in way}
        self._above = {at: search.settled.borrowed(*at) for at in places}
        self._taken: dict[Place, list[int]] = {at: [] for at in places}
        """Quantities of the victims below the place, ascending."""
        self._sums = dict.fromkeys(places, 0)
        self._leaving = Counter(state.workloads.queue[row] for row in search.leaving)
        self._left: dict[int, int] = {}
        """Queue -> the disruptions that its limit still allows, once it was asked for."""
        self._charges: dict[int, dict[int, int]] = {}
        self._ways: dict[int, tuple[Place, ...]] = {}
        """Victim -> the places it was counted at."""

    def take(self, row: int) -> bool:
        """Count the workload in; False when that would pass a limit."""
        queue = self._state.workloads.queue[row]
        way = self._way(row, queue)
        if queue not in self._left:
            self._left[queue] = self._state.queues.disruptions_left(queue, self._state.now_ms) - self._leaving[queue]
        if way is None or self._left[queue] <= 0:
            return False
        self._left[queue] -= 1
        self._ways[row] = way
        for at in way:
            quantity = self._charge(row)[at[1]]
            insort(self._taken[at], quantity)
            self._sums[at] += quantity
        return True

    def untake(self, row: int) -> None:
        """Count it out again."""
        self._left[self._state.workloads.queue[row]] += 1
        for at in self._ways.pop(row):
            quantity = self._charge(row)[at[1]]
            self._taken[at].remove(quantity)
            self._sums[at] -= quantity

    def _way(self, row: int, queue: int) -> tuple[Place, ...] | None:
        """The vertices at which it counts; none when it is of the preemptor's own queue; None when it may not
        be taken.
        """
        ways = self._sources.get(queue)
        if ways is None:
            return ()
        charge = self._charge(row)
        return next((way for way in ways if all(self._admits(at, charge.get(at[1], 0)) for at in way)), None)

    def _admits(self, at: Place, quantity: int) -> bool:
        largest = max(self._taken[at][-1:], default=0)
        return quantity > 0 and self._sums[at] + quantity - max(largest, quantity) < self._above[at]

    def _charge(self, row: int) -> dict[int, int]:
        found = self._charges.get(row)
        if found is None:
            found = self._charges[row] = dict(self._state.charge_of(row))
        return found
