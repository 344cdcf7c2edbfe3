"""The nodes open to a task, and the choice among them where the first bucket does not settle it.

A ready node with room may still be closed to a task by labels, taints or neighbours. The same tests apply to a pool's
new node before it exists, with the labels, the taints and the known part of its place.

The choice matters for bonds to other work, labels matched node by node, even spreading of a group, and the scores of a
profile. Nodes are preferred as the buckets have them: kept ones first, then by partition, then the fullest, then the
oldest. If only some of them are eligible, a few of the first are looked at one by one. If none of those is, all nodes
are compared at once, which finds the same node. So a request with bonds costs one vectorised pass at most, or one for a
whole gang.

Scores (`engine.capacity.scores`) choose among up to MAX_CANDIDATES nodes that fit. If more fit, the candidates come
from both ends of the buckets of each partition, the fullest and the emptiest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from engine.capacity import scores
from engine.capacity.devices import SHARE_STEP, PoolIndex
from engine.capacity.index import NOWHERE, OPEN, Capacity
from engine.capacity.task_shapes import Bonds, LabelDemand, Shape, tolerates
from engine.model.columns import Ints, Mask, view
from engine.model.quantities import shortlist
from engine.model.specs import LEVELS, NodeSpec, NodeState, PoolSpec, WorkloadSpec
from engine.state import allocations
from engine.state.cell_state import BOUND, State

LABELS = "NodeLabels"
TAINTS = "NodeTaints"
APART = "KeptApart"
NEAR = "NotNear"
MAX_NAMED = 3


class Bar(NamedTuple):
    """Nodes that are not for it though they have room."""

    token: str
    nodes: int
    text: str
    """The attribute that they lack or have."""
    unblock: str


def bars(state: State, shape: Shape) -> list[Bar]:
    """The obstacles between tasks of the shape and ready, open nodes of its pools with room for one; each node counts
    for the first of labels, taints and bonds.
    """
    capacity = state.capacity
    mine = np.isin(view(capacity.pool), shape.pools)
    mine &= (view(capacity.state) == NodeState.READY) & (view(capacity.booking) == OPEN)
    rows = np.flatnonzero(mine & ~capacity.usable_mask(shape))
    left: Mask = np.zeros(len(mine), bool)
    left[rows[capacity.rooms(shape, rows) > 0]] = True
    found = []
    for demand in shape.labels:
        lacking = left & ~capacity.labelled((demand,))
        if lacking.any():
            wanted = condition(demand)
            text = f"have the label {wanted}" if demand.avoided else f"do not have the label {wanted}"
            found.append(Bar(LABELS, int(lacking.sum()), text, f"nodes whose label {demand.key} suits it"))
            left &= ~lacking
    tainted = left & ~_tolerated(capacity, shape)
    if tainted.any():
        names = named_taints(capacity, shape, tainted)
        found.append(
            Bar(TAINTS, int(tainted.sum()), f"have a taint it does not tolerate: {names}", f"tolerate {names}")
        )
    return found + list(_company(state, shape, left & ~tainted))


def condition(demand: LabelDemand) -> str:
    """A condition on a label as people write it."""
    values = sorted(demand.values)
    if demand.any or not values:
        return demand.key
    more = f" and {len(values) - MAX_NAMED} more" if len(values) > MAX_NAMED else ""
    return f"{demand.key}={'|'.join(values[:MAX_NAMED])}{more}"


def _tolerated(capacity: Capacity, shape: Shape) -> Mask:
    """Nodes without a taint that keeps tasks of the shape away."""
    fine = [
        not any(taint.effect == "NoSchedule" and not tolerates(shape.tolerations, taint) for taint in taints)
        for taints in capacity.taint_sets
    ]
    found: Mask = np.array(fine, bool)[view(capacity.taints)]
    return found


def named_taints(capacity: Capacity, shape: Shape, nodes: Mask) -> str:
    """The first few of the taints that keep tasks of the shape from the nodes."""
    names = sorted(
        {
            taint.label.partition(":")[0]
            for row in np.unique(view(capacity.taints)[nodes]).tolist()
            for taint in capacity.taint_sets[row]
            if taint.effect == "NoSchedule" and not tolerates(shape.tolerations, taint)
        }
    )
    return shortlist(names, 3)


def _company(state: State, shape: Shape, left: Mask) -> Iterator[Bar]:
    """The bonds to other work that keep the task away."""
    capacity, terms = state.capacity, shape.terms
    if terms is None:
        return
    company = capacity.company
    kinds = [(APART, term, terms._replace(near=(), apart=(term,), shunned=())) for term in terms.apart]
    kinds += [(APART, term, terms._replace(near=(), apart=(), shunned=(term,))) for term in terms.shunned]
    kinds += [(NEAR, term, terms._replace(near=(term,), apart=(), shunned=())) for term in terms.near]
    for token, term, only in kinds:
        barred = left & ~company.mask(capacity, only)
        if not barred.any():
            continue
        left = left & ~barred
        count = int(barred.sum())
        where = f"the {LEVELS[company.level[term]]}" if company.level[term] < len(LEVELS) - 1 else "the node"
        others = shortlist(_who(state, term, keepers=bool(only.shunned)), 3)
        if only.near:
            yield Bar(token, count, f"are not in {where} of {others}, which it must be near to", "")
        elif only.apart:
            text = f"are in {where} of {others}, from which it keeps apart"
            yield Bar(token, count, text, f"the end of {others}")
        else:
            text = f"are in {where} of {others}, which keeps apart from it"
            yield Bar(token, count, text, f"the end of {others}")


def _who(state: State, term: int, *, keepers: bool) -> list[str]:
    """Ids of the work on nodes that carries the term's tags, or of that which keeps apart from such."""
    w, company = state.workloads, state.capacity.company
    rows = np.flatnonzero(np.isin(view(w.state), BOUND)).tolist()
    return [w.ids[row] for row in rows if term in w.marks(row, company)[keepers]]


def grows(pool: PoolSpec) -> bool:
    """True if nodes of the pool may be ordered at all."""
    return pool.scaling is not None and pool.scaling.most > 0


def zones_of(pool: PoolSpec) -> tuple[str, ...]:
    """The zones of its new nodes; one empty name where no zone is named."""
    return (pool.scaling.zones if pool.scaling is not None else ()) or ("",)


def template(pool: PoolSpec, zone: str, name: str = "new") -> NodeSpec:
    """A new node. Of its place only region and zone are known."""
    return NodeSpec(id=name, pool=pool.name, region=pool.scaling.region if pool.scaling else "", zone=zone)


def suits_in(pool: PoolSpec, zone: str, shape: Shape) -> bool:
    """True if a new node there has the labels that tasks of the shape demand, and no taint that keeps them away. Its
    size is for `shape.pool_set` to check.
    """
    if any(t.effect == "NoSchedule" and not tolerates(shape.tolerations, t) for t in pool.taints):
        return False
    return _has_labels(pool, zone, shape.labels)


def has_labels(pool: PoolSpec, demands: Iterable[LabelDemand]) -> bool:
    """True if a new node of the pool, in one of its zones, has the demanded labels."""
    asked = tuple(demands)
    return any(_has_labels(pool, zone, asked) for zone in zones_of(pool))


def _has_labels(pool: PoolSpec, zone: str, demands: Iterable[LabelDemand]) -> bool:
    node = template(pool, zone)
    place = {"region": node.region, "zone": node.zone}
    return all(demand.holds(pool.labels.get(demand.key) or place.get(demand.key) or None) for demand in demands)


def suits(pool: PoolSpec, shape: Shape) -> bool:
    """True if it would do in one of its zones."""
    return any(suits_in(pool, zone, shape) for zone in zones_of(pool))


def could_be(state: State, shape: Shape, nodes: Sequence[int]) -> list[int]:
    """By pool: nodes that tasks of the shape may use, once the pools have grown as far as they may. `nodes`: those
    that there are."""
    return [
        max(there, pool.scaling.most)
        if pool.scaling is not None and row in shape.pool_set and suits(pool, shape)
        else there
        for row, (pool, there) in enumerate(zip(state.capacity.pools, nodes, strict=True))
    ]


def most_totals(state: State) -> tuple[int, ...]:
    """Capacity of the cell, in the order of RESOURCES, once its pools have grown as far as they may."""
    totals = list(state.capacity.totals)
    for pool, there in zip(state.capacity.pools, state.capacity.pool_nodes, strict=True):
        if pool.scaling is not None and pool.scaling.most > there:
            for i, quantity in enumerate(pool.offered.vector()):
                totals[i] += (pool.scaling.most - there) * quantity
    return tuple(totals)


def could_close(state: State, spec: WorkloadSpec, named: Collection[str]) -> bool:
    """True if new nodes of one growing pool could hold a gang that requires one domain of the topology. Only the region
    and the zone of new nodes are known. `named`: the pools that its queue has quota of; empty for all.
    """
    level = spec.topology.required if spec.topology is not None else None
    pools = state.capacity.pools
    shapes = [Shape(group, pools, Bonds(qos=spec.qos)) for group in spec.groups]
    for row, pool in enumerate(pools):
        if not grows(pool) or (named and pool.name not in named) or not all(row in s.pool_set for s in shapes):
            continue
        most = {"node": 1, "zone": could_stand(pool), "region": could_stand(pool)}.get(level or "region", 0)
        needed = sum(
            -(-(group.min_count or group.count) // max(shape.most_on(pool), 1))
            for group, shape in zip(spec.groups, shapes, strict=True)
        )
        if all(suits(pool, shape) for shape in shapes) and needed <= most:
            return True
    return False


def could_stand(pool: PoolSpec) -> int:
    """Nodes of the pool at most."""
    return pool.scaling.most if pool.scaling is not None else 0


Claim = tuple[int, int, int, int]
"""(group, node row, tasks, device mask)"""
LOOKED_AT = 64
"""Nodes looked at one by one before all are compared at once."""
MAX_CANDIDATES = 256
LOOKS_FOR_ONE = 4
"""Times as many nodes are looked at for candidates as are wanted."""
_ROW_BITS = 24
_FULLNESS_BITS = 20


def is_simple(capacity: Capacity, shape: Shape) -> bool:
    """True if the first bucket that holds a task settles its node."""
    if shape.terms is not None or shape.spread is not None or shape.profile or capacity.has_profiles:
        return False
    return not (capacity.reaches.get(shape) or capacity.reach(shape)).loose


def extend(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> int:
    """Add claims for as many of `left` tasks of the group as there is room for. Returns how many were left over."""
    if shape.spread is not None:
        rows = _usable_rows(capacity, shape)
        return _spread(capacity, group, shape, left, claims, rows, capacity.rooms(shape, rows))
    if shape.profile or capacity.has_profiles:
        return _scored(capacity, group, shape, left, claims)
    if left == 1 and not shape.part:
        node = _first_usable(capacity, shape)
        if node is not None:
            if node != NOWHERE:
                claims.append((group, node, 1, capacity.claim(node, shape, 1)))
            return int(node == NOWHERE)
    return _by_mask(capacity, group, shape, left, claims)


# -- bonds and loose labels -------------------------------------------------------------------------------------------


def _usable_rows(capacity: Capacity, shape: Shape) -> Ints:
    return np.flatnonzero(capacity.usable_mask(shape))


def _first_usable(capacity: Capacity, shape: Shape) -> int | None:
    """The first node that will do, NOWHERE when none does; None when that is not known after a few looks."""
    looks = 0
    for index in capacity.indexes_for(shape):
        with closing(_in_order(capacity, index, shape)) as nodes:
            for node in nodes:
                if capacity.fits(node, shape) and capacity.usable(node, shape):
                    return node
                looks += 1
                if looks == LOOKED_AT:
                    return None
    return NOWHERE


def _by_mask(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> int:
    """The first nodes that will do, each with as many tasks as it takes."""
    rows = _usable_rows(capacity, shape)
    room = capacity.rooms(shape, rows)
    rows, room = rows[room > 0], room[room > 0]
    order = _preferred(capacity, shape, rows, left)
    rows, room = rows[order], room[order]
    tasks = np.minimum(room, np.maximum(left - (np.cumsum(room) - room), 0))
    rows, tasks = rows[tasks > 0], tasks[tasks > 0]
    if allocations.worth_it(shape, len(rows)):
        allocations.shift_many(capacity, shape, rows, -tasks)
        claims += [(group, node, count, 0) for node, count in zip(rows.tolist(), tasks.tolist(), strict=True)]
    else:
        for node, count in zip(rows.tolist(), tasks.tolist(), strict=True):
            _claim(capacity, group, shape, node, count, claims)
    return left - int(tasks.sum())


def _claim(capacity: Capacity, group: int, shape: Shape, node: int, count: int, claims: list[Claim]) -> None:
    """Claim `count` tasks on the node; a part of a device is a claim of its own."""
    if shape.part:
        claims += [(group, node, 1, capacity.claim(node, shape, 1)) for _ in range(count)]
    else:
        claims.append((group, node, count, capacity.claim(node, shape, count)))


def _rank(capacity: Capacity, shape: Shape, rows: Ints) -> Ints:
    """Place of each node's partition in the order of preference; kept nodes first."""
    reach = capacity.reach(shape)
    rank = np.zeros(max(len(capacity.partitions), 1), np.int64)
    rank[list(reach.open)] = np.arange(1, len(reach.open) + 1)
    found: Ints = rank[view(capacity.partition)[rows]]
    found[view(capacity.booking)[rows] != OPEN] = 0
    return found


def _fullness(capacity: Capacity, shape: Shape, rows: Ints) -> Ints:
    """The order in which the buckets of a partition are searched: for a share of a device, those with a used device
    that still has it first."""
    key = view(capacity.key)[rows]
    if not shape.share:
        return np.asarray(key)
    partial = view(capacity.partial)[rows]
    return np.where(partial >= shape.share, partial // SHARE_STEP, key + 1000 // SHARE_STEP)


def _preferred(capacity: Capacity, shape: Shape, rows: Ints, most: int) -> Ints:
    """Indexes of the `most` first of the rows, in order of preference."""
    order = (_rank(capacity, shape, rows) << _FULLNESS_BITS | _fullness(capacity, shape, rows)) << _ROW_BITS
    order |= np.arange(len(rows))
    if most < len(rows):
        order = np.partition(order, most - 1)[:most] if most > 1 else order.min(keepdims=True)
    return np.sort(order) & (1 << _ROW_BITS) - 1


def _in_order(
    capacity: Capacity, index: PoolIndex, shape: Shape, *, from_top: bool = False
) -> Generator[int, None, None]:
    """Nodes of the buckets that may hold a task of the shape, the fullest first, or the emptiest. Close it: then what
    was taken from the buckets is put back."""
    least = shape.gpus
    cpu, memory = shape.cpu_class, shape.memory_class
    keys = [
        key
        for key, count in index.counts.items()
        if count and key >> 12 >= least and key >> 6 & 63 >= cpu and key & 63 >= memory
    ]
    for key in sorted(keys, reverse=from_top):
        heap = index.heaps[key]
        taken: list[int] = []
        try:
            while heap:
                node = heappop(heap)
                if capacity.key[node] == key and not (taken and taken[-1] == node):
                    taken.append(node)
                    yield node
        finally:
            for node in taken:
                heappush(heap, node)


# -- spread -----------------------------------------------------------------------------------------------------------


def evenly(order: Ints, room: Ints, domain: Ints, want: int, skew: int, have: Counter[int]) -> Ints:
    """The number of the `want` tasks for each entry (a node, by its place in `room`), in `order` of preference, so that
    no domain ever has more than `skew` tasks above another that could take one.

    `have`: tasks that each domain has already. O((n + want) log n).
    """
    tasks = np.zeros(len(room), np.int64)
    queues: dict[int, list[int]] = {}
    for place, entry in enumerate(order.tolist()):
        if room[entry]:
            queues.setdefault(int(domain[entry]), []).append(place)
    counts = {d: have[d] for d in queues}
    by_count = Counter(counts.values())
    """Domains that could take one, by the tasks they have."""
    lowest = min(by_count, default=0)
    parked: dict[int, list[tuple[int, int]]] = {}
    """Domains that have too many for now, by the tasks they have."""
    ready: list[tuple[int, int]] = []
    """(place of its next node, domain)"""
    for d, places in queues.items():
        places.reverse()
        (ready if counts[d] - lowest < skew else parked.setdefault(counts[d], [])).append((places[-1], d))
    heapify(ready)
    left = room.copy()
    while want and ready:
        place, d = ready[0]
        entry = int(order[place])
        tasks[entry] += 1
        left[entry] -= 1
        want -= 1
        by_count[counts[d]] -= 1
        counts[d] += 1
        if not left[entry]:
            queues[d].pop()
        if queues[d]:
            by_count[counts[d]] += 1
            if counts[d] - lowest < skew:
                heapreplace(ready, (queues[d][-1], d))
            else:
                heappop(ready)
                parked.setdefault(counts[d], []).append((queues[d][-1], d))
        else:
            heappop(ready)
        before = lowest
        while by_count and not by_count[lowest]:
            del by_count[lowest]
            lowest = min(by_count, default=lowest)
        if lowest != before:
            for count in [count for count in parked if count - lowest < skew]:
                for entry_of in parked.pop(count):
                    heappush(ready, entry_of)
    return tasks


def spread_counts(capacity: Capacity, group: int, shape: Shape, claims: list[Claim]) -> Counter[int]:
    """Tasks of the group that each domain has: of a workload that grows, and by the claims so far."""
    found: Counter[int] = Counter()
    if shape.spread is not None:
        level = LEVELS.index(shape.spread.level)
        placed = capacity.company.placed[group] if capacity.company.placed else {}
        for node, count in placed.items():
            found[capacity.domain_of(level, node)] += count
        for of_group, node, count, _ in claims:
            if of_group == group:
                found[capacity.domain_of(level, node)] += count
    return found


def _spread(
    capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim], rows: Ints, room: Ints
) -> int:
    """Claims on these nodes, which have that much room, even over the domains of the level."""
    if shape.spread is None:
        raise ValueError("the shape is not spread")
    rows, room = rows[room > 0], room[room > 0]
    order = _preferred(capacity, shape, rows, len(rows))
    order = order[by_score(capacity, shape, rows[order])]
    domain = capacity.domain_column(LEVELS.index(shape.spread.level))[rows]
    tasks = evenly(order, room, domain, left, shape.spread.max_skew, spread_counts(capacity, group, shape, claims))
    for i in order[tasks[order] > 0].tolist():
        _claim(capacity, group, shape, int(rows[i]), int(tasks[i]), claims)
    return left - int(tasks.sum())


def spread_over(
    capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim], rows: Ints, room: Ints
) -> int:
    """Place as `extend` does for a group that is spread, on these nodes alone."""
    return _spread(capacity, group, shape, left, claims, rows, room)


# -- scores -----------------------------------------------------------------------------------------------------------


def _weights(capacity: Capacity, shape: Shape, rows: Ints) -> dict[str, int]:
    """Score weights of the request, or else of the pool that its first node is in."""
    if shape.profile or not len(rows):
        return dict(shape.profile)
    return dict(capacity.pools[capacity.pool[int(rows[0])]].placement)


def by_score(capacity: Capacity, shape: Shape, rows: Ints) -> Ints:
    """The rows, which are in order of preference, by score: indexes into them. Kept nodes stay in front, and pools in
    their order where it is pools that say how nodes are chosen."""
    order = np.arange(len(rows))
    if not len(rows) or not (shape.profile or capacity.has_profiles):
        return order
    tier = np.where(view(capacity.booking)[rows] == OPEN, 0, -1)
    if not shape.profile:
        tier = tier * len(capacity.pools) + view(capacity.pool)[rows]
    for begin, end in pairwise((0, *(np.flatnonzero(np.diff(tier)) + 1).tolist(), len(rows))):
        weights = _weights(capacity, shape, rows[begin:end])
        if weights:
            nodes = _candidates(capacity, rows[begin:end], [])
            worth = scores.weighted(weights, nodes, _wish(capacity, shape), _around(capacity))
            order[begin:end] = begin + np.argsort(-worth, kind="stable")
    return order


def _scored(capacity: Capacity, group: int, shape: Shape, left: int, claims: list[Claim]) -> int:
    """Place one task after the other on the node with the best score."""
    mine: list[Claim] = []
    while left:
        rows = _sample(capacity, shape)
        if not len(rows):
            break
        weights = _weights(capacity, shape, rows)
        if weights:
            left = _best_of(capacity, group, shape, left, rows, weights, claims, mine)
        else:
            node, count = int(rows[0]), capacity.room(int(rows[0]), shape, left)
            mine.append((group, node, count, capacity.claim(node, shape, count)))
            left -= count
    claims += mine if shape.part else _joined(mine)
    return left


def _best_of(
    capacity: Capacity, group: int, shape: Shape, left: int, rows: Ints, weights: dict[str, int],
    before: list[Claim], mine: list[Claim],
) -> int:  # fmt: skip
    """Claims on these nodes, the best first, each scored anew once it has a task more; as many as there are nodes, and
    then it is time for another look around."""
    wish, around = _wish(capacity, shape), _around(capacity)
    worth = scores.weighted(weights, _candidates(capacity, rows, before + mine), wish, around)
    heap = [(-value, row) for value, row in zip(worth.tolist(), rows.tolist(), strict=True)]
    heapify(heap)
    for _ in range(min(left, len(rows))):
        if not heap:
            break
        node = heap[0][1]
        mine.append((group, node, 1, capacity.claim(node, shape, 1)))
        left -= 1
        if left and weights.get("topology"):
            # Where its first tasks are decides which nodes are near.
            break
        if capacity.fits(node, shape):
            again = _candidates(capacity, np.array([node]), before + mine)
            heapreplace(heap, (-int(scores.weighted(weights, again, wish, around)[0]), node))
        else:
            heappop(heap)
    return left


def _joined(claims: list[Claim]) -> list[Claim]:
    """One claim for each node, in order of the first."""
    found: dict[int, Claim] = {}
    for group, node, count, mask in claims:
        _, _, had, held = found.get(node, (group, node, 0, 0))
        found[node] = (group, node, had + count, held | mask)
    return list(found.values())


def _sample(capacity: Capacity, shape: Shape) -> Ints:
    """Nodes to choose among, ascending: on all that a profile of the request ranges over; without one, in the first
    pool that has room, or, if that has no profile either, the first node that will do."""
    reach = capacity.reach(shape)
    if reach.loose or shape.terms is not None:
        rows = _usable_rows(capacity, shape)
        rows = rows[capacity.rooms(shape, rows) > 0]
        order = _preferred(capacity, shape, rows, len(rows))
        if not shape.profile and len(order):
            pool = view(capacity.pool)[rows[order]]
            order = order[pool == pool[0]]
        half = MAX_CANDIDATES // 2
        ends = order if len(order) <= MAX_CANDIDATES else np.concatenate((order[:half], order[-half:]))
        first = rows[order[:1]]
        return np.sort(rows[ends]) if len(first) and _weights(capacity, shape, first) else first
    kept = [capacity.booked[key] for key in reach.kept if key in capacity.booked]
    tiers = [[index] for index in kept] + [
        [capacity.indexes[partition] for partition in tier] for tier in reach.tiers(bool(shape.profile))
    ]
    for tier in tiers:
        if shape.profile or capacity.pools[tier[0].pool].placement:
            each = max(MAX_CANDIDATES // len(tier), 8)
            found = {node for index in tier for node in _ends(capacity, index, shape, each)}
            if found:
                return np.array(sorted(found), np.int64)
        node = capacity.find_among(tier, shape)
        if node != NOWHERE:
            return np.array([node], np.int64)
    return np.empty(0, np.int64)


def _ends(capacity: Capacity, index: PoolIndex, shape: Shape, most: int) -> list[int]:
    """Nodes of the index that a task fits on: all of them if they are few, else the fullest and the emptiest."""
    found: list[int] = []
    for from_top in (False, True):
        with closing(_in_order(capacity, index, shape, from_top=from_top)) as nodes:
            fitting = (node for node in islice(nodes, LOOKS_FOR_ONE * most) if capacity.fits(node, shape))
            found += islice(fitting, most // 2)
    return found


def _candidates(capacity: Capacity, rows: Ints, claims: list[Claim]) -> scores.CandidateNodes:
    """The nodes as scores see them, with the claims of the gang made already."""
    facts = capacity.pool_facts()
    pool = view(capacity.pool)[rows]
    base, has = view(capacity.device_base)[rows], facts.devices[pool]
    slot = np.arange(int(has.max(initial=0)))
    at = np.minimum(base[:, None] + slot, max(len(capacity.device_free) - 1, 0))
    devices = np.where(slot < has[:, None], view(capacity.device_free)[at], -1).astype(np.int32)
    zone = view(capacity.zone)[rows]
    return scores.CandidateNodes(
        rows=rows,
        capacity=facts.capacity[:, pool],
        free=np.stack(
            (
                view(capacity.free_cpu)[rows],
                view(capacity.free_memory)[rows],
                np.maximum(devices, 0).sum(axis=1, dtype=np.int64),
                view(capacity.free_disk)[rows],
            )
        ),
        devices=devices,
        model=facts.model[pool],
        price=facts.price[pool],
        spot=facts.spot[pool],
        zone=np.where(zone > 0, zone, -1).astype(np.int32),
        distance=_distance(capacity, rows, claims),
    )


def _distance(capacity: Capacity, rows: Ints, claims: list[Claim]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Levels up to the domain that each node shares with a task of the gang."""
    placed = {node for on in capacity.company.placed for node in on} | {claim[1] for claim in claims}
    distance = np.zeros(len(rows), np.int32)
    if placed:
        there = np.array(sorted(placed), np.int64)
        distance[:] = len(LEVELS)
        for level, name in enumerate(LEVELS[:-1]):
            column = view(getattr(capacity, name))
            shared = np.setdiff1d(column[there], (0,))
            distance[np.isin(column[rows], shared)] = len(LEVELS) - 1 - level
        distance[np.isin(rows, there)] = 0
    return distance


def _wish(capacity: Capacity, shape: Shape) -> scores.TaskRequest:
    zones = tuple(capacity.places.index[name] for name in shape.data if name in capacity.places.index)
    return scores.TaskRequest(
        cpu=shape.cpu, memory=shape.memory, gpus=shape.gpus, share=shape.share, disk=shape.disk, zones=zones
    )


def _around(capacity: Capacity) -> scores.Surroundings:
    facts = capacity.pool_facts()
    there = np.array(capacity.pool_nodes) > 0
    largest = facts.capacity[:, there].max(axis=1, initial=0)
    return scores.Surroundings(
        mix=capacity.mix,
        largest=(int(largest[0]), int(largest[1]), int(largest[2]), int(largest[3])),
        highest_price=int(facts.price[there].max(initial=0)),
    )


def uses_mix(weights: Iterable[Mapping[str, int]]) -> bool:
    """True if one of the profiles depends on the tasks present."""
    return any(profile.get(name) for profile in weights for name in scores.BY_MIX)


def mix_of(capacity: Capacity, tasks: Iterable[tuple[Shape, int]]) -> tuple[scores.MixShape, ...]:
    """Tasks of these shapes, and how many of each, as scores see them."""
    model = capacity.pool_facts().model
    every = set(model.tolist())
    found = []
    for shape, count in tasks:
        models = {int(model[pool]) for pool in shape.pools}
        found.append(
            scores.MixShape(
                cpu=shape.cpu,
                per_device=shape.share or scores.WHOLE * (shape.gpus > 0),
                devices=shape.gpus or int(shape.share > 0),
                models=() if models == every else tuple(sorted(models)),
                count=count,
                memory=shape.memory,
            )
        )
    return tuple(found)
