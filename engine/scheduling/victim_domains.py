"""Victims for a gang that must be in one domain of the topology: room is worth something only where all of it is.

The domains in which the request would fit if everybody who may go were gone are ranked by what that would cost at
least, each workload's cost spread evenly over what it has in the domain. `engine.scheduling.victims` looks closely at
the first few, one at a time; the cheapest set of these is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engine.capacity.index import Capacity
from engine.scheduling.victim_candidates import Ask, Fits, Quota, VictimCandidates, VictimField, VictimLimits
from engine.scheduling.victims import cheapest
from engine.state.allocations import Allocations
from engine.state.bulk_allocations import Rows
from engine.state.class_requests import RequestColumns

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
    """As `engine.scheduling.victims.cheapest`, for a request that fits only into one domain. `domains`: that of every
    node; `limits` makes a fresh count for each search."""
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
    """What is least for the set that is wanted: highest level, cost, number, age."""
    levels = candidates.level[victims]
    return int(levels.max(initial=-1)), int(candidates.cost[victims].sum()), len(victims), [-row for row in victims]
