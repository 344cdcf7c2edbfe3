"""The nodes open to a task: filters by labels, taints and neighbours, and the labels, taints and place of a pool's new
node before it exists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from engine.capacity.index import OPEN, Capacity
from engine.capacity.node_attributes import Mask
from engine.capacity.task_shapes import Bonds, Demand, Shape, tolerates
from engine.model.columns import view
from engine.model.specs import LEVELS, NodeSpec, NodeState, PoolSpec, WorkloadSpec
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


def condition(demand: Demand) -> str:
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
    return _listed(names)


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
        others = _listed(_who(state, term, keepers=bool(only.shunned)))
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


def _listed(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


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


def has_labels(pool: PoolSpec, demands: Iterable[Demand]) -> bool:
    """True if a new node of the pool, in one of its zones, has the demanded labels."""
    asked = tuple(demands)
    return any(_has_labels(pool, zone, asked) for zone in zones_of(pool))


def _has_labels(pool: PoolSpec, zone: str, demands: Iterable[Demand]) -> bool:
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
