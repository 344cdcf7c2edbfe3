"""Whole nodes that a pool of the cell could gain for waiting tasks.

A new node is like those of its pool that the tasks may use already: of the same size, with the same labels and taints.
It has a place only where the place matters to the tasks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import count as numbers
from itertools import islice

import numpy as np

from engine.capacity.task_shapes import Shape
from engine.capacity.topology import Span, domain_room
from engine.model import commands as cmd
from engine.model.columns import view
from engine.model.specs import LEVELS, NodeSpec, NodeState, PoolSpec
from engine.placement.node_choice import grows, suits
from engine.state.cell_state import State


class PoolGrowth:
    """New nodes of one pool that hold tasks of one shape."""

    def __init__(self, state: State, pool: int, shape: Shape, home: Span | None) -> None:
        """`home`: the domain that they have to be in; None where any place will do."""
        self._capacity = capacity = state.capacity
        self.pool: PoolSpec = capacity.pools[pool]
        self.has_nodes = capacity.pool_nodes[pool] > 0 or grows(self.pool)
        self.nodes_now: int = capacity.pool_nodes[pool]
        self.per_node = shape.most_on(self.pool)
        """Tasks that one such node holds when it is empty."""
        self._shape = shape
        self._like = self._suited_node(pool)
        self.possible = self.per_node > 0 and (self._like is not None or suits(self.pool, shape))
        """True if a new node of the pool can hold a task."""
        self._place = self._place_in(home) if home is not None else self._place_near() if self._place_matters() else {}
        """Level -> name."""

    def nodes_for(self, tasks: int) -> int:
        return -(-tasks // self.per_node)

    def price(self, tasks: int) -> int:
        """Micro-USD an hour of the nodes for so many tasks."""
        return self.nodes_for(tasks) * self.pool.price_microusd_hour

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        """The same for growths whose nodes are the same."""
        return self.pool.name, tuple(self._place.items()), tuple(self._own_labels().items())

    def text(self, count: int) -> str:
        """So many nodes, in words."""
        level = next((at for at in ("nvlink", "rack", "block", "zone", "region") if self._place.get(at)), "")
        where = f" in {'NVLink domain' if level == 'nvlink' else level} {self._place[level]}" if level else ""
        asked = {demand.key for demand in self._shape.labels}
        labels = [f"{key}={value}" for key, value in self._own_labels().items() if key in asked]
        with_labels = f" with {' and '.join(labels)}" if labels else ""
        scaling = self.pool.scaling
        beyond = scaling is not None and self.nodes_now + count > scaling.most
        limit = f", above its most of {scaling.most:,}" if scaling is not None and beyond else ""
        return f"{count:,} more {'node' if count == 1 else 'nodes'} in pool {self.pool.name}{where}{with_labels}{limit}"

    def nodes(self, count: int, taken: Container[str]) -> list[NodeSpec]:
        """The nodes, under ids that nobody has."""
        names = free_names(f"{self.pool.name[:100]}-new", taken, count)
        labels, like = self._own_labels(), self._like
        known = () if like is None else self._capacity.taints_of(like)
        taints = tuple(taint for taint in known if taint not in self.pool.taints)
        return [NodeSpec(id=name, pool=self.pool.name, labels=labels, taints=taints, **self._place) for name in names]

    def _own_labels(self) -> dict[str, str]:
        """Labels of the node that the new ones are like, besides those of the pool."""
        if self._like is None:
            return {}
        return dict(self._capacity.labels_of(self._like).items() - self.pool.labels.items())

    def _suited_node(self, pool: int) -> int | None:
        """The node of the pool that tasks may use whose rack has most free devices; None if there is none."""
        capacity = self._capacity
        there = (view(capacity.pool) == pool) & (view(capacity.state) != NodeState.REMOVED)
        there &= capacity.suited_mask(self._shape)
        nodes = np.flatnonzero(there)
        if not len(nodes):
            return None
        racks = view(capacity.rack)[nodes]
        free = np.bincount(racks, weights=np.bitwise_count(view(capacity.whole)[nodes]))
        return int(nodes[np.flatnonzero(racks == (free.argmax() if free.any() else racks[0]))[0]])

    def _place_matters(self) -> bool:
        shape = self._shape
        demanded = any(demand.key in LEVELS for demand in shape.labels)
        return demanded or shape.topology is not None or bool(shape.data or (shape.terms and shape.terms.near))

    def _place_near(self) -> dict[str, str]:
        """Where the node is that they are like, so that a gang stays close together."""
        alone = self._shape.terms is not None and (self._shape.terms.apart or self._shape.terms.shunned)
        if self._like is None or alone:
            return {}
        return self._names_at(self._like, ("region", "zone", "block", "rack"))

    def _place_in(self, home: Span) -> dict[str, str]:
        """The place in the domain, down to the level that is required."""
        required = self._shape.topology.required if self._shape.topology is not None else None
        levels = LEVELS[: LEVELS.index(required or "node") + 1]
        return self._names_at(int(domain_room(self._capacity).tree.rows[home[0]]), levels)

    def _names_at(self, node: int, levels: tuple[str, ...]) -> dict[str, str]:
        capacity = self._capacity
        named = {at: capacity.places.names[getattr(capacity, at)[node]] for at in levels if at != "node"}
        return {at: name for at, name in named.items() if name}


def pools_that_could_grow(state: State, shape: Shape, tasks: int, home: Span | None) -> list[PoolGrowth]:
    """The pools whose new nodes could hold tasks of the shape, best first: those with nodes and without devices that
    nobody asks for; then by the price of room for so many, the number of nodes, and the order of preference."""
    found = [PoolGrowth(state, pool, shape, home) for pool in shape.pools]
    spare = not shape.gpu_milli
    return sorted(
        (growth for growth in found if growth.possible),
        key=lambda growth: (
            not growth.has_nodes,
            spare and growth.pool.capacity.gpu_milli > 0,
            growth.price(tasks),
            growth.nodes_for(tasks),
        ),
    )


def grown(state: State, wanted: Iterable[tuple[PoolGrowth, int]]) -> tuple[str, tuple[cmd.AnyCommand, ...]]:
    """(in words, the commands) of so many new nodes of each."""
    taken = set(state.capacity.row_of)
    texts: list[str] = []
    nodes: list[NodeSpec] = []
    for growth, count in wanted:
        more = growth.nodes(count, taken)
        taken |= {node.id for node in more}
        nodes += more
        texts.append(growth.text(count))
    return " and ".join(texts), (cmd.AddNodes(nodes=tuple(nodes)),)


def free_names(base: str, taken: Container[str], count: int) -> list[str]:
    """`<base>-<number>`, as many as asked for, of those that nobody has."""
    free = (name for i in numbers(1) if (name := f"{base}-{i}") not in taken)
    return list(islice(free, count))
