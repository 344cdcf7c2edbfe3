"""Victim selection: the cheapest whole workloads to remove so that a request fits, anywhere or within one domain.

A pure choice over arrays. Policy decides who may be a victim, in which rank and at what cost
(`engine.scheduling.preemption`). Among the sets whose removal makes room for every task and gives back the missing
quota, the wanted one has, in this order: the lowest highest level, the least cost, the fewest victims, the youngest
victims.

1. Levels are opened from the lowest until the room and quota of all that is open suffice. No set does with less.
2. Every open workload gets a unit price: its cost over its contribution to the shortage. A node's price is the sum over
   its workloads. The nodes with the cheapest slots, a few times as many as needed, are looked at closely.
3. Greedy: the cheapest slots first. A workload already chosen costs nothing on its other nodes, and prices are worked
   out anew as the shortage shrinks.
4. Reprieve: workloads that are not needed are spared, the most important and costliest first, until none can be.
5. Greed sees each workload alone, and does badly where several only together make room. So in cells that are not too
   large the same is done in reverse: all go, and those are spared first that cost most for the room they give
   (as in Charikar's peeling for densest subgraphs, APPROX 2000). The better set of the two is taken.
6. The choice among the costliest victims and those that might take their place is made anew by branch and bound. With
   up to CORE candidates that is all of them, and the answer is exact; in larger cases it is the core of a knapsack,
   where greed errs (Balas and Zemel, "An algorithm for large zero-one knapsack problems", Operations Research 28(5),
   1980).

A slot is room for one task. Counting slots is exact for one group of equal tasks. Several groups compete for the same
nodes, and then only the caller can tell whether a set is enough: the argument `fits`.

A gang that must be in one domain of the topology gains only from room inside it. Domains in which the request would fit
without any candidate are ranked by a lower bound of the cost, with each workload's cost spread evenly over its part in
the domain. The first few are looked at closely, one at a time, and the cheapest set is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import numpy as np

from engine.capacity.index import Capacity
from engine.model.columns import Rows
from engine.scheduling.victim_candidates import (
    Ask,
    Detail,
    Fits,
    GreedyWalk,
    Quota,
    ReverseGreedy,
    VictimCandidates,
    VictimField,
    VictimLimits,
    unit_prices,
)
from engine.state.allocations import Allocations, RequestColumns

AMPLE = 2
"""Slots looked at closely, as a multiple of those missing."""
STEPS = (8, 1)
"""Widths in which the cell is narrowed down to these, as multiples of them."""
FEW_NODES = 64
"""Nodes looked at closely in any case."""
SAMPLED = 16
"""One node out of this many is sampled to find out which prices are low."""
UNLIKELY = 4
"""Factor by which a workload on no cheap node is taken to contribute less than it might."""
EXCHANGE_WORK = 4000
"""Pieces priced in search of others for the costliest victims."""
PEELED = 4
"""Multiple of the closely examined slots from which peeling starts."""
CORE = 32
"""Workloads among which the choice is exact."""
CORE_PIECES = 1000
"""A choice that takes looking at more pieces is left as it is: a core would be little of it."""
CORE_WORK, WHOLE_WORK = 3000, 60_000
"""Node updates after which branch and bound settles for the best found: in a core, and where that is everybody."""
STEP_WORK, ASKING_WORK = 8, 100
"""Further cost of a step of branch and bound, and cost of asking the caller, in node updates."""


def cheapest(
    capacity: Capacity,
    allocations: Allocations,
    requests: RequestColumns,
    classes: Rows,
    asks: Sequence[Ask],
    candidates: VictimCandidates,
    *,
    quotas: Sequence[Quota] = (),
    limits: VictimLimits | None = None,
    fits: Fits | None = None,
    within: Rows | None = None,
) -> list[int] | None:
    """Rows of the victims in ascending order, or None when no set is found. Empty when nothing need be removed.

    `classes` is the class row of every workload row. The victims are counted in `limits`. `within`: for every node
    whether room there counts; all by default.
    """
    field = VictimField(capacity, requests, asks, quotas, candidates, within)
    return cheapest_of(field, allocations, classes, limits=limits, fits=fits)


def cheapest_of(
    field: VictimField, allocations: Allocations, classes: Rows, *, limits: VictimLimits | None, fits: Fits | None
) -> list[int] | None:
    """`cheapest` in a field. When that finds no set, all candidates of the field are open."""
    if field.enough() and (fits is None or fits([])):
        return []
    for _ in field.open_by_level(allocations, classes):
        if field.enough():
            victims = _Selection(field, limits, fits).run()
            if victims is not None:
                return victims
    return None


class _Selection:
    """One search among all opened candidates."""

    def __init__(self, field: VictimField, limits: VictimLimits | None, fits: Fits | None) -> None:
        self.field = field
        self.limits = limits
        self.fits = fits
        # Several groups may be in each other's way although there are slots enough for each alone.
        least = int(len(field.counts) > 1)
        self.missing = [max(count - total, least) for count, total in zip(field.counts, field.base_total, strict=True)]
        self.missing += [max(quota.short, 0) for quota in field.quotas]
        """The shortage with nobody gone: slots of each request, then quotas."""
        self.gain = self._gains()
        """Per node: what everybody there contributes, in wholes of what is missing."""
        self.parts = self._contributions()
        """Per piece: what it contributes, in wholes of what is missing."""
        self.whole: Rows = np.bincount(field.workload, weights=self.parts, minlength=len(field.opened))
        """Per workload row: what all of it contributes."""
        for quota in field.quotas:
            if quota.short > 0:
                self.whole = self.whole + quota.amount * field.opened / quota.short
        rows = len(field.opened)
        self.prices = field.candidates.cost + (2 - np.arange(rows) / max(rows, 1))
        """Per workload row: its cost, and a little for being one more and for its age: fewer go, and younger."""
        self.unit = unit_prices(self.prices, self.whole, self.missing)
        """Per workload row."""
        self.walk: GreedyWalk
        self.line: Iterator[int]
        """The choices of the walk."""

    def _contributions(self) -> Rows:
        field = self.field
        parts: Rows = np.zeros(len(field.node))
        for ask in range(len(field.wants)):
            if self.missing[ask]:
                parts = parts + self._contributions_to(ask)
        return parts

    def _contributions_to(self, ask: int) -> Rows:
        """The part of each piece in the dimension of which it holds most, of those that are scarce on its node."""
        field, missing = self.field, self.missing[ask]
        useful = field.usable[ask]
        pattern: Rows = np.zeros(len(useful), np.int32)
        for place, (dimension, want) in enumerate(field.wants[ask]):
            scarce: Rows = useful
            if len(field.wants) == 1:
                # Where there is plenty even for all the slots there might be, a dimension is in nobody's way.
                scarce = (field.slots[ask] > field.base_slots[ask]) & (field.base[dimension] < field.slots[ask] * want)
            pattern |= scarce.astype(np.int32) << place
        tables = [np.zeros(len(field.tables[0]))]
        for number in range(1, 1 << len(field.wants[ask])):
            held = [
                field.tables[d] / (want * missing) for p, (d, want) in enumerate(field.wants[ask]) if number >> p & 1
            ]
            tables.append(reduce(np.maximum, held))
        at = pattern.take(field.node) * np.int32(len(tables[0])) + field.entry
        parts = np.concatenate(tables).take(at) * field.count
        if field.any_shares:
            for place, (dimension, want) in enumerate(field.wants[ask]):
                if dimension in field.units:
                    scarce = (pattern >> place & 1).take(field.node)
                    parts += field.share * scarce / (field.units[dimension].milli * want * missing)
        return np.asarray(parts)

    def _gains(self) -> Rows:
        field = self.field
        gain: Rows = np.zeros(len(field.worth_a_look))
        for ask in range(len(field.wants)):
            if missing := self.missing[ask]:
                gain = gain + np.minimum(field.slots[ask] - field.base_slots[ask], missing) / missing
        return gain

    def run(self) -> list[int] | None:
        """The victims, or None when no admissible set is found."""
        everybody = np.flatnonzero(self.whole)
        if len(everybody) <= CORE:
            return self._exact(everybody)
        for ample in (AMPLE, 4 * AMPLE, None):
            detail = self._shortlist(ample)
            if self._choose(detail, self.prices):
                return self._refined(detail)
        # The cheapest ones may be so many that they pass a limit: try with as few as possible.
        if self.limits is not None and self._choose(detail, np.ones_like(self.prices)):
            return self._refined(detail)
        return None

    def _exact(self, everybody: Rows) -> list[int] | None:
        detail = self._detail_of(everybody)
        found = self._choose(detail, self.prices)
        if found:
            self._reprieve(detail)
        core = _Core(self, detail, list(range(len(detail.rows))), known=found)
        return detail.victims() if core.run(WHOLE_WORK) else None

    def _refined(self, shortlist: Detail) -> list[int]:
        """The choice of the walk made better, with all that its victims hold in the cell in view."""
        self._reprieve(shortlist)
        chosen, others = shortlist.victims(), []
        if len(shortlist.node_of) <= CORE_PIECES:
            others = self._others(shortlist)
            peeled = self._peeled()
            if self._worth(peeled) < self._worth(chosen) and self._retake(chosen, peeled):
                chosen, others = peeled, [row for row in dict.fromkeys(chosen + others) if row not in set(peeled)]
        detail = self._detail_of(np.array(sorted([*chosen, *others]), np.int64))
        place = {row: gang for gang, row in enumerate(detail.rows)}
        for row in chosen:
            detail.remove(place[row])
        self._reprieve(detail)
        if others:
            room = max(CORE - len(chosen), CORE // 2)
            core = [place[row] for row in others[:room]] + detail.costliest()
            _Core(self, detail, core[:CORE], known=True).run(CORE_WORK)
            self._reprieve(detail)
        return detail.victims()

    def _worth(self, rows: list[int]) -> tuple[float, int]:
        """The value to minimise among sets that are enough; no set is the worst."""
        return (sum(self.field.candidates.cost[rows].tolist()), len(rows)) if rows else (np.inf, 0)

    def _retake(self, old: list[int], new: list[int]) -> bool:
        """Count one set in instead of another, if the limits admit it."""
        limits = self.limits
        if limits is None:
            return True
        for row in old:
            limits.untake(row)
        for count, row in enumerate(new):
            if not limits.take(row):
                for other in new[:count]:
                    limits.untake(other)
                for other in old:
                    limits.take(other)
                return False
        return True

    def _peeled(self) -> list[int]:
        """The rest of all near the cheapest slots when those are spared, one after another, that cost most for the room
        they give; empty when that is not enough. It sees room that only several together make.
        """
        detail = self._shortlist(AMPLE * PEELED)
        for gang in range(len(detail.rows)):
            detail.remove(gang)
        if not detail.enough():
            return []
        peel = ReverseGreedy(detail, self.missing)
        peel.run()
        return detail.victims() if self.enough(detail) else []

    def _detail_of(self, rows: Rows) -> Detail:
        """These workloads, with all that they hold in the cell."""
        concerned = np.zeros(len(self.whole), bool)
        concerned[rows] = True
        pieces = np.flatnonzero(concerned.take(self.field.workload))
        return Detail(self.field, rows, pieces, self.parts[pieces])

    def _shortlist(self, ample: int | None) -> Detail:
        """The nodes with the cheapest slots and what is there, and who gives back quota most cheaply."""
        field = self.field
        pieces = self._cheap_pieces(ample)
        rows = np.union1d(field.workload[pieces], self._cheap_quota(ample))
        return Detail(field, rows, pieces, self.parts[pieces])

    def _choose(self, detail: Detail, prices: Rows) -> bool:
        """Remove the cheapest until there is enough; when there never is, nobody."""
        self.walk = GreedyWalk(detail, self.missing, prices[detail.rows], self._prospects(detail, prices), self.limits)
        self.line = self.walk.choices()
        tried = 0
        for count, _ in enumerate(self.line, 1):
            if count >= tried * 3 // 2 and detail.enough():
                if self.enough(detail):
                    return True
                tried = count
        for gang in detail.costliest():
            detail.restore(gang)
            if self.limits is not None:
                self.limits.untake(detail.rows[gang])
        return False

    def _prospects(self, detail: Detail, prices: Rows) -> Rows:
        """Per workload: what it contributes on the nodes with the cheapest slots, AMPLE times as many as are missing.
        A node is worth its price only if those who share it go too, and these are the likely ones."""
        gain = self.gain[detail.nodes]
        whole = np.bincount(detail.gang_of, weights=detail.parts, minlength=len(detail.rows))
        unit = unit_prices(prices[detail.rows], whole, self.missing)
        price = np.bincount(detail.node_of, weights=unit[detail.gang_of] * detail.parts, minlength=len(gain))
        order = np.argsort(price / np.maximum(gain, 1e-12), kind="stable")
        near = np.zeros(len(gain), bool)
        near[order[: np.searchsorted(np.cumsum(gain[order]), AMPLE * len(self.field.wants)) + 1]] = True
        there = np.bincount(detail.gang_of, weights=detail.parts * near[detail.node_of], minlength=len(whole))
        return np.where(there > 0, there, whole / UNLIKELY)

    def _cheap_pieces(self, ample: int | None) -> Rows:
        """The pieces on the nodes with the cheapest slots, `ample` times as many as are missing; on all when that is
        None.

        A workload's unit price supposes that all of its contribution is of use. So the choice is narrowed in steps, and
        each counts only pieces on the nodes of the step before.
        """
        field = self.field
        gain = self.gain
        most = 0
        for ask in range(len(field.wants)):
            gained = field.slots[ask] - field.base_slots[ask]
            most = max(most, self.missing[ask] * int(np.count_nonzero(gained)) // max(int(gained.sum()), 1))
        sizes = [] if ample is None else [max(step * ample * most, FEW_NODES) for step in STEPS]
        closed: Rows = gain == 0 if len(field.wants) == 1 else ~field.worth_a_look
        unit, workload, node, parts = self.unit, field.workload, field.node, self.parts
        pieces: Rows | None = None
        for size in sizes:
            prices = np.bincount(node, weights=unit.take(workload) * parts, minlength=len(gain))
            ratios = prices / np.maximum(gain, 1e-12)
            ratios[closed] = np.inf
            closed = ~_lowest(ratios, size)
            close = (parts > 0) & ~closed.take(node)
            pieces = np.flatnonzero(close) if pieces is None else pieces[close]
            workload, node, parts = workload[close], node[close], parts[close]
            whole = np.bincount(workload, weights=parts, minlength=len(self.whole))
            unit = unit_prices(self.prices, whole, self.missing)
        return np.flatnonzero(self.parts) if pieces is None else pieces

    def _cheap_quota(self, ample: int | None) -> Rows:
        """Rows that give back quota most cheaply, `ample` times as much as is missing; all when that is None."""
        found = [np.empty(0, np.int64)]
        for quota in self.field.quotas:
            if quota.short > 0:
                rows = np.flatnonzero((quota.amount > 0) & self.field.opened)
                if ample is not None:
                    rows = rows[np.argsort(self.unit[rows], kind="stable")]
                    given = np.cumsum(quota.amount[rows])
                    rows = rows[: max(int(np.searchsorted(given, ample * quota.short)) + 1, CORE)]
                found.append(rows)
        return np.concatenate(found)

    def _others(self, detail: Detail) -> list[int]:
        """Rows of those that might do better than some of the chosen: for the costliest, who would be chosen in their
        place; then the next in line."""
        self.walk.limits = None
        chosen = bytes(detail.gone)
        found: dict[int, None] = {}
        for gang in detail.costliest()[: EXCHANGE_WORK // max(len(detail.node_of), 1)]:
            found |= dict.fromkeys(self.walk.instead_of(gang))
        for gang in self.line:
            if len(found) >= CORE:
                break
            if not chosen[gang]:
                found[gang] = None
        return [detail.rows[gang] for gang in found]

    def _reprieve(self, detail: Detail) -> None:
        """Spare who is not needed, the most important and costliest first, the oldest of equals, to a fixpoint."""
        order = sorted(range(len(detail.rows)), key=lambda g: (-detail.level[g], -detail.cost[g], g))
        spared = True
        while spared:
            spared = False
            for gang in order:
                if not detail.gone[gang] or not detail.spare(gang):
                    continue
                if self.fits is None or self.fits(detail.victims()):
                    spared = True
                    if self.limits is not None:
                        self.limits.untake(detail.rows[gang])
                else:
                    detail.remove(gang)

    def enough(self, detail: Detail) -> bool:
        """True if the request fits with those gone."""
        return detail.enough() and (self.fits is None or self.fits(detail.victims()))


def _lowest(ratios: Rows, size: int) -> Rows:
    """Marks the lowest ratios, as many as `size`, of those that are finite."""
    if len(ratios) > 4 * size:
        # Partitioning all is dear: a sample tells roughly where the limit is.
        at = 2 * size // SAMPLED
        candidates = np.flatnonzero(ratios <= np.partition(ratios[::SAMPLED], at)[at])
    else:
        candidates = np.flatnonzero(ratios < np.inf)
    if len(candidates) > size:
        candidates = candidates[np.argpartition(ratios[candidates], size)[:size]]
    marks = np.zeros(len(ratios), bool)
    marks[candidates] = True
    return marks & (ratios < np.inf)


class _Core:
    """The best choice among a few workloads, the rest being given: branch and bound, depth first."""

    def __init__(self, selection: _Selection, detail: Detail, free: list[int], *, known: bool) -> None:
        """`known`: those gone already are a set that is enough."""
        self._selection = selection
        self._limits = selection.limits
        self._detail = detail
        self._order = sorted(free, key=lambda g: (-detail.level[g], -detail.cost[g], g))
        """The first to be spared first, so that the first set found is a reprieve of all."""
        self._best = [gang for gang in self._order if detail.gone[gang]]
        self._worth: tuple[float, int, list[int]] = self._worth_of(self._best) if known else (np.inf, 0, [])
        self._least = detail.copy()
        """The detail with the decided victims gone."""
        self._most = detail.copy()
        """The detail with the undecided gone too."""
        for gang in self._order:
            if detail.gone[gang]:
                self._least.restore(gang)
            else:
                self._most.remove(gang)
        self._options = [self._options_for(need) for need in range(len(detail.needs))]
        """Per need: (place in the order, most it can contribute, cost), the most for its cost first."""
        self._work = 0

    def _worth_of(self, gangs: list[int]) -> tuple[int, int, list[int]]:
        """The value to minimise: cost, number, age."""
        detail = self._detail
        return sum(detail.cost[g] for g in gangs), len(gangs), sorted(-detail.rows[g] for g in gangs)

    def _options_for(self, need: int) -> list[tuple[int, int, int]]:
        least, most = self._least, self._most
        found = []
        for place, gang in enumerate(self._order):
            if need < least.asks:
                nodes = {piece[0] for piece in least.pieces[gang]}
                gives = sum(most.slots[node][need] - least.slots[node][need] for node in nodes)
            else:
                gives = least.quota_amounts[need - least.asks][gang]
            if gives:
                found.append((place, gives, least.cost[gang]))
        return sorted(found, key=lambda option: (option[2] / option[1], option[0]))

    def run(self, work: int) -> bool:
        """Leave the best set gone, as far as that much work leads; False when none was found."""
        self._work = work
        detail = self._detail
        before = self._best
        if self._limits is not None:
            for gang in before:
                self._limits.untake(detail.rows[gang])
        self._search(0, 0, [])
        for gang in before:
            detail.restore(gang)
        for gang in self._best:
            detail.remove(gang)
            if self._limits is not None:
                self._limits.take(detail.rows[gang])
        return self._worth[0] < np.inf

    def _search(self, place: int, cost: int, gone: list[int]) -> None:
        """Decide from `place` on, those in `gone` going already."""
        if self._selection.enough(self._least):
            worth = self._worth_of(gone)
            if worth < self._worth:
                self._best, self._worth = gone, worth
            return
        if place == len(self._order) or self._work <= 0 or self._hopeless(place, cost, len(gone)):
            return
        gang = self._order[place]
        self._work -= 2 * len(self._least.pieces[gang]) + STEP_WORK
        if self._selection.fits is not None and self._least.enough():
            self._work -= ASKING_WORK
        self._most.restore(gang)
        if self._most.enough():
            self._search(place + 1, cost, gone)
        self._most.remove(gang)
        row = self._detail.rows[gang]
        if self._limits is None or self._limits.take(row):
            self._least.remove(gang)
            self._search(place + 1, cost + self._least.cost[gang], [*gone, gang])
            self._least.restore(gang)
            if self._limits is not None:
                self._limits.untake(row)

    def _hopeless(self, place: int, cost: int, count: int) -> bool:
        """True if even parts of workloads, the most for their cost first, would make it no better than the best."""
        more_cost = more = 0
        for options, have, need in zip(self._options, self._least.have, self._least.needs, strict=True):
            lacking = need - have
            if lacking <= 0:
                continue
            price = largest = 0
            rest = lacking
            for at, gives, each in options:
                if at >= place:
                    largest = max(largest, gives)
                    if rest > 0:
                        price += -(-each * min(rest, gives) // gives)
                        rest -= gives
            if rest > 0:
                return True
            more_cost = max(more_cost, price)
            more = max(more, -(-lacking // largest))
        return (cost + more_cost, count + more) > self._worth[:2]


FEW = 4
"""Domains for which victims are found before the cheapest is taken."""
MOST = 16
"""Domains that are looked at closely in any case."""


def cheapest_in_one(
    capacity: Capacity,
    allocations: Allocations,
    requests: RequestColumns,
    classes: Rows,
    asks: Sequence[Ask],
    candidates: VictimCandidates,
    domains: Rows,
    *,
    quotas: Sequence[Quota] = (),
    limits: Callable[[], VictimLimits | None] = lambda: None,
    fits: Fits | None = None,
) -> list[int] | None:
    """The cheapest set for a request that fits only into one domain. `domains`: that of every node; `limits` makes a
    fresh count for each search.
    """
    field = VictimField(capacity, requests, asks, quotas, candidates)
    if len(_feasible(field, domains)) and field.quotas_met() and (fits is None or fits([])):
        return []
    for _ in field.open_by_level(allocations, classes):
        feasible = _feasible(field, domains)
        if not len(feasible) or not field.quotas_met():
            continue
        found: list[tuple[tuple[int, int, int, list[int]], list[int]]] = []
        for domain in feasible[np.argsort(_estimates(field, domains)[feasible], kind="stable")][:MOST].tolist():
            victims = cheapest(
                capacity,
                allocations,
                requests,
                classes,
                asks,
                candidates,
                quotas=quotas,
                limits=limits(),
                fits=fits,
                within=domains == domain,
            )
            if victims is not None:
                found.append((_worth(candidates, victims), victims))
            if len(found) == FEW:
                break
        if found:
            return min(found)[1]
    return None


def _feasible(field: VictimField, domains: Rows) -> Rows:
    """The domains in which each group would have its slots if everybody opened were gone."""
    enough = [
        np.bincount(domains, weights=slots) >= count for slots, count in zip(field.slots, field.counts, strict=True)
    ]
    return np.flatnonzero(np.logical_and.reduce(enough))


def _estimates(field: VictimField, domains: Rows) -> Rows:
    """Per domain what the slots that are missing there cost, the cheapest nodes first; infinite where they are not to
    be had."""
    size = int(domains.max()) + 1
    inside = domains[field.node].astype(np.int64)
    held = np.unique(inside * len(field.opened) + field.workload, return_inverse=True)[1]
    share = field.count / np.bincount(held, weights=field.count)[held]
    price = np.bincount(
        field.node, weights=(field.candidates.cost[field.workload] + 1.0) * share, minlength=len(domains)
    )
    worst: Rows = np.zeros(size)
    for base, slots, count in zip(field.base_slots, field.slots, field.counts, strict=True):
        missing = count - np.bincount(domains, weights=base, minlength=size)
        gain = (slots - base).astype(np.float64)
        nodes = np.flatnonzero(gain > 0)
        nodes = nodes[np.lexsort((nodes, price[nodes] / gain[nodes], domains[nodes]))]
        at = domains[nodes]
        first = np.flatnonzero(np.diff(at, prepend=-1))
        before = np.cumsum(gain[nodes]) - gain[nodes]
        before -= np.repeat(before[first], np.diff(first, append=len(nodes)))
        # Of the last node only the part that is still missing is paid for.
        used = np.clip((missing[at] - before) / gain[nodes], 0.0, 1.0)
        worst = np.maximum(worst, np.bincount(at, weights=price[nodes] * used, minlength=size))
    return worst


def _worth(candidates: VictimCandidates, victims: list[int]) -> tuple[int, int, int, list[int]]:
    """The value to minimise for the wanted set: highest level, cost, number, age."""
    levels = candidates.level[victims]
    return int(levels.max(initial=-1)), int(candidates.cost[victims].sum()), len(victims), [-row for row in victims]
