"""What a new node of a growing pool would be, before there is one: labels, taints and the place that is known of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engine.capacity.affinity import Bonds
from engine.capacity.task_shapes import Demand, Shape, tolerates
from engine.model.specs import NodeSpec, PoolSpec, WorkloadSpec
from engine.state.cell_state import State


def grows(pool: PoolSpec) -> bool:
    """Whether nodes of the pool may be ordered at all."""
    return pool.scaling is not None and pool.scaling.most > 0


def zones_of(pool: PoolSpec) -> tuple[str, ...]:
    """Where its new nodes may stand; one empty name where no zone is named."""
    return (pool.scaling.zones if pool.scaling is not None else ()) or ("",)


def template(pool: PoolSpec, zone: str, name: str = "new") -> NodeSpec:
    """A new node. Of its place only region and zone are known."""
    return NodeSpec(id=name, pool=pool.name, region=pool.scaling.region if pool.scaling else "", zone=zone)


def suits_in(pool: PoolSpec, zone: str, shape: Shape) -> bool:
    """Whether a new node there has the labels that tasks of the shape ask for, and no taint that keeps them away. That
    it is large enough is for `shape.pool_set` to say."""
    if any(t.effect == "NoSchedule" and not tolerates(shape.tolerations, t) for t in pool.taints):
        return False
    return _has_labels(pool, zone, shape.labels)


def has_labels(pool: PoolSpec, demands: Iterable[Demand]) -> bool:
    """Whether a new node of the pool, in one of its zones, has labels as demanded."""
    asked = tuple(demands)
    return any(_has_labels(pool, zone, asked) for zone in zones_of(pool))


def _has_labels(pool: PoolSpec, zone: str, demands: Iterable[Demand]) -> bool:
    node = template(pool, zone)
    place = {"region": node.region, "zone": node.zone}
    return all(demand.holds(pool.labels.get(demand.key) or place.get(demand.key) or None) for demand in demands)


def suits(pool: PoolSpec, shape: Shape) -> bool:
    """Whether it would do in one of its zones."""
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
    """Whether a gang that requires one domain of the topology could be held by new nodes of one growing pool: of them
    only the region and the zone are known. `named`: the pools that its queue has quota of; empty for all."""
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
