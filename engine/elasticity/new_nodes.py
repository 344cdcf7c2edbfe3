"""New nodes of growing pools, and work placed on them on trial, by the same code that places it in the cell."""

from __future__ import annotations

from collections.abc import Sequence

from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Shape
from engine.elasticity.expander import GrowthOption, waste_ppm
from engine.elasticity.unmet_demand import PlacementNeed
from engine.model.specs import PoolSpec
from engine.placement.gang_placement import Claim, place, unplace
from engine.placement.node_templates import template


class NewNodes:
    """Nodes of one pool in one zone that are ordered, or might be."""

    def __init__(self, cell: Capacity, pool: int, zone: str) -> None:
        self.pool = pool
        self.zone = zone
        self.spec: PoolSpec = cell.pools[pool]
        self.capacity = empty_like(cell)
        self.used: dict[int, None] = {}
        """Rows of nodes that tasks were placed on for good, in that order."""

    def provide(self, nodes: int) -> None:
        """Have so many that are not used for good."""
        self._add(nodes + len(self.used) - len(self.capacity.node_ids))

    def _add(self, nodes: int) -> None:
        if nodes > 0:
            there = len(self.capacity.node_ids)
            ids = [f"new-{number}" for number in range(there, there + nodes)]
            self.capacity.add_alike(template(self.spec, self.zone), ids)

    def fill(self, shape: Shape, count: int, most: int) -> list[Claim]:
        """Place as many single tasks as go on nodes, at most so many of which are not used for good."""
        claims = place(self.capacity, (shape,), (0,), (count,)) or []
        left = count - sum(claim[2] for claim in claims)
        allowed = most + len(self.used) - len(self.capacity.node_ids)
        if left and allowed > 0:
            # Where nodes are filled up first, no more are made than are needed.
            self._add(min(allowed, -(-left // max(shape.most_on(self.spec), 1))))
            claims += place(self.capacity, (shape,), (0,), (left,)) or []
        return claims

    def fresh(self, claims: Sequence[Claim]) -> list[int]:
        """Nodes among them that were unused so far, in the order in which they are filled."""
        return [node for node in dict.fromkeys(claim[1] for claim in claims) if node not in self.used]

    def keep(self, nodes: Sequence[int]) -> None:
        self.used.update(dict.fromkeys(nodes))

    def release(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self.used.pop(node, None)


class PlacementTrial:
    """Tasks placed on new nodes, on trial."""

    def __init__(self, on: NewNodes, spare: int = 0) -> None:
        """`spare`: how many of the nodes need not be ordered."""
        self.on = on
        self.spare = spare
        self.placed: list[tuple[PlacementNeed, tuple[Shape, ...], list[Claim]]] = []
        self.nodes: list[int] = []
        """Rows of the nodes that it takes."""

    def note(self, need: PlacementNeed, shapes: tuple[Shape, ...], claims: list[Claim]) -> None:
        self.placed.append((need, shapes, claims))

    def option(self) -> GrowthOption:
        spec = self.on.spec
        used = [0, 0, 0, 0]
        tasks = 0
        for _, shapes, claims in self.placed:
            for group, _, count, _ in claims:
                shape = shapes[group]
                tasks += count
                for i, quantity in enumerate((shape.cpu, shape.memory, shape.gpu_milli, shape.disk)):
                    used[i] += quantity * count
        waste = waste_ppm(used, spec.offered.vector(), len(self.nodes))
        nodes = max(len(self.nodes) - self.spare, 0)
        priority = spec.scaling.priority if spec.scaling is not None else 0
        return GrowthOption(self.on.pool, priority, nodes, tasks, waste, nodes * spec.price_microusd_hour)

    def undo(self) -> None:
        for _, shapes, claims in reversed(self.placed):
            unplace(self.on.capacity, shapes, claims)
        self.on.release(self.nodes)

    def confirm(self, most: int) -> None:
        """Keep it as far as so many new nodes go. What is placed there is needed no more."""
        kept = set(self.nodes[:most]) | self.on.used.keys()
        for need, shapes, claims in self.placed:
            mine = [claim for claim in claims if claim[1] in kept]
            if len(mine) < len(claims):
                unplace(self.on.capacity, shapes, [claim for claim in claims if claim[1] not in kept])
            for group, _, count, _ in mine:
                need.counts[group] -= count
        self.on.keep(self.nodes[:most])


def empty_like(cell: Capacity) -> Capacity:
    """The cell's pools without nodes."""
    capacity = Capacity()
    for pool in cell.pools:
        capacity.add_pool(pool)
    capacity.name_labels(cell.named_labels)
    return capacity
