"""The attributes of nodes, apart from their free capacity: pools, places, labels and taints; and the partitions of the
search.

Nodes of one pool that no request can tell apart form one partition: they have the same taints, and the same values of
the labels that requests name. Labels that no request names divide nothing, so a cell with one label per node costs no
more than a cell without labels. The levels of the topology count as labels too, unless a node has a label of that name.

A label with so many values that it would make too many partitions, such as a host name, divides nothing either.
Requests that name it are matched node by node.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from engine.capacity.task_shapes import LabelDemand, Shape, tolerates
from engine.model.columns import Ints, Mask, Names, Table, view
from engine.model.errors import not_found
from engine.model.specs import LEVELS, NodeSpec, NodeState, PoolSpec, ScalingSpec, Taint

OPEN = -1
"""Kept for nobody."""
MAX_PARTITIONS = 512
PLACES = LEVELS[:-1]
"""Levels at which nodes have a name besides their own."""
LabelSet = tuple[tuple[str, str], ...]
TaintSet = tuple[Taint, ...]


class Partition(NamedTuple):
    """Nodes that are found together."""

    pool: int
    labels: LabelSet
    """Its labels among those that divide nodes, in the order they were first named."""
    taints: TaintSet


@dataclass(frozen=True, slots=True)
class ShapeReach:
    """The partitions open to tasks of a shape."""

    open: tuple[int, ...]
    """Partitions whose open nodes they may use, in order of preference."""
    kept: tuple[tuple[int, int], ...]
    """(booking, partition) of kept nodes that they may use besides, in order of preference."""
    loose: tuple[LabelDemand, ...]
    """Labels to be matched node by node."""
    open_set: frozenset[int]
    kept_set: frozenset[tuple[int, int]]
    ranks: tuple[tuple[int, int], ...]
    """For each of `open`: (taints that are better avoided, pool)."""

    def tiers(self, across_pools: bool) -> list[list[int]]:
        """`open` in lists of partitions that are as good as each other, those of different pools apart unless pools
        make no difference."""
        found = groupby(zip(self.ranks, self.open, strict=True), key=lambda at: at[0][: 1 if across_pools else 2])
        return [[partition for _, partition in tier] for _, tier in found]


class PoolFacts(NamedTuple):
    """The attributes of pools, by row."""

    capacity: Ints
    """[4, pools] in the order of RESOURCES."""
    devices: Ints
    model: np.ndarray[Any, np.dtype[np.int32]]
    """A number for the device model; -1 for none."""
    price: Ints
    spot: Mask


class NodeTable(Table):
    """Pools and nodes: what they are and where they stand."""

    __slots__ = (
        "_label_row", "_parents", "_partition_of", "_pool_facts", "_taint_row", "_ways", "block", "booking",
        "has_profiles", "label_sets", "labels", "named_labels", "node_ids", "nvlink", "partition",
        "partition_nodes", "partitions", "places", "pool", "pool_nodes", "pool_of", "pools", "rack", "reaches",
        "region", "row_of", "split", "state", "taint_sets", "taints", "zone",
    )  # fmt: skip
    columns: ClassVar[tuple[str, ...]] = (
        "pools", "node_ids", "places", "pool", "state", "booking", *PLACES, "labels", "taints", "label_sets",
        "taint_sets", "named_labels",
    )  # fmt: skip

    def __init__(self) -> None:
        self.pools: list[Any] = []
        self.node_ids: list[str] = []
        self.places = Names([""])
        """Row 0: it is not known where."""
        self.pool = array("i")
        self.state = array("b")
        self.booking = array("i")
        """The booking that keeps the node (`engine.state.cell_changes`); OPEN when there is none."""
        self.region = array("i")
        self.zone = array("i")
        self.block = array("i")
        self.rack = array("i")
        self.nvlink = array("i")
        self.labels = array("i")
        """Row in `label_sets`: of its pool and its own."""
        self.taints = array("i")
        """Row in `taint_sets`."""
        self.label_sets: list[Any] = []
        self.taint_sets: list[Any] = []
        self.named_labels: list[str] = []
        """Labels that some request has named, in order."""
        self.derive()

    def derive(self) -> None:
        self.pools = [p if isinstance(p, PoolSpec) else msgspec.convert(p, PoolSpec) for p in self.pools]
        self.label_sets = [tuple((key, value) for key, value in pairs) for pairs in self.label_sets]
        self.taint_sets = [tuple(msgspec.convert(taint, Taint) for taint in taints) for taints in self.taint_sets]
        self.row_of: dict[str, int] = {
            name: i for i, name in enumerate(self.node_ids) if self.state[i] != NodeState.REMOVED
        }
        self.pool_of: dict[str, int] = {pool.name: i for i, pool in enumerate(self.pools)}
        self.pool_nodes = [0] * len(self.pools)
        for row in self.row_of.values():
            self.pool_nodes[self.pool[row]] += 1
        self._label_row: dict[LabelSet, int] = {pairs: i for i, pairs in enumerate(self.label_sets)}
        self._taint_row: dict[TaintSet, int] = {taints: i for i, taints in enumerate(self.taint_sets)}
        self.has_profiles = any(pool.placement for pool in self.pools)
        """True if some pool has a score profile."""
        self._pool_facts: PoolFacts | None = None
        self._ways: dict[tuple[int, ...], int] | None = None
        """Locations of nodes, widest place first -> number of nodes there. Counted on first use."""
        self._parents: dict[tuple[int, int, int], int] | None = None
        self.divide()

    def dump(self) -> dict[str, Any]:
        plain = {
            "pools": [msgspec.to_builtins(pool) for pool in self.pools],
            "taint_sets": [[msgspec.to_builtins(taint) for taint in taints] for taints in self.taint_sets],
        }
        return super().dump() | plain

    # -- growth -------------------------------------------------------------------------------------------------------

    def add_pool(self, pool: PoolSpec) -> None:
        self.pool_of[pool.name] = len(self.pools)
        self.pools.append(pool)
        self.pool_nodes.append(0)
        self.has_profiles |= bool(pool.placement)
        self._pool_facts = None

    def set_price(self, pool: int, price_microusd_hour: int) -> None:
        self.pools[pool] = msgspec.structs.replace(self.pools[pool], price_microusd_hour=price_microusd_hour)
        self._pool_facts = None

    def set_scaling(self, pool: int, scaling: ScalingSpec) -> None:
        self.pools[pool] = msgspec.structs.replace(self.pools[pool], scaling=scaling)

    def add_facts(self, node: NodeSpec) -> int:
        """A new row with what the node is. Its partition is there afterwards."""
        row = len(self.node_ids)
        pool = self.pool_of[node.pool]
        self.row_of[node.id] = row
        self.node_ids.append(node.id)
        self.pool.append(pool)
        self.state.append(NodeState.READY)
        self.booking.append(OPEN)
        for level in PLACES:
            getattr(self, level).append(self.places.add(getattr(node, level)))
        self._enter_place(row)
        spec = self.pools[pool]
        self.labels.append(self._label_set(spec.labels | node.labels))
        self.taints.append(self._taint_set(spec.taints + node.taints))
        self.partition.append(self._partition(row))
        return row

    def change_facts(self, node: NodeSpec) -> tuple[int, int]:
        """Give a node that is there the labels and taints of the spec. Returns its row and the partition it is to be
        in, which it is counted in already."""
        row = self.row_of[node.id]
        spec = self.pools[self.pool[row]]
        self.labels[row] = self._label_set(spec.labels | node.labels)
        self.taints[row] = self._taint_set(spec.taints + node.taints)
        self.partition_nodes[self.partition[row]] -= 1
        return row, self._partition(row)

    def move_facts(self, row: int, node: NodeSpec) -> None:
        """Give a node that is there the pool and the places of the spec; `change_facts` of it is to follow."""
        self._leave_place(row)
        self.pool[row] = self.pool_of[node.pool]
        for level in PLACES:
            getattr(self, level)[row] = self.places.add(getattr(node, level))
        self._enter_place(row)

    def forget_facts(self, node: int) -> None:
        """The node is removed: it counts nowhere any more."""
        del self.row_of[self.node_ids[node]]
        self.partition_nodes[self.partition[node]] -= 1
        self._leave_place(node)

    def _enter_place(self, row: int) -> None:
        """Count it in its pool and its places."""
        self.pool_nodes[self.pool[row]] += 1
        if self._ways is not None:
            way = self._way(row)
            if way not in self._ways and self._parents is not None:
                self._note_parents(self._parents, way)
            self._ways[way] = self._ways.get(way, 0) + 1

    def _leave_place(self, row: int) -> None:
        self.pool_nodes[self.pool[row]] -= 1
        if self._ways is not None:
            way = self._way(row)
            self._ways[way] -= 1
            if not self._ways[way]:
                del self._ways[way]
                self._parents = None

    def parents(self) -> Mapping[tuple[int, int, int], int]:
        """(level, place, wider level), the levels as indexes into PLACES -> the place of the wider level that it is in;
        0 where nobody knows. Made anew when the last node of some place is removed."""
        if self._ways is None:
            rows = np.fromiter(self.row_of.values(), np.int64, len(self.row_of))
            columns = np.stack([view(getattr(self, level))[rows] for level in PLACES], axis=1)
            ways, counts = np.unique(columns, axis=0, return_counts=True)
            self._ways = dict(zip(map(tuple, ways.tolist()), counts.tolist(), strict=True))
        if self._parents is None:
            self._parents = {}
            for way in self._ways:
                self._note_parents(self._parents, way)
        return self._parents

    def _way(self, node: int) -> tuple[int, ...]:
        return tuple([getattr(self, level)[node] for level in PLACES])

    def _note_parents(self, parents: dict[tuple[int, int, int], int], way: tuple[int, ...]) -> None:
        for level, place in enumerate(way):
            for wider in range(level) if place else ():
                key = level, place, wider
                parents[key] = way[wider] or parents.get(key, 0)

    def _label_set(self, labels: dict[str, str]) -> int:
        pairs = tuple(sorted(labels.items()))
        found = self._label_row.get(pairs)
        if found is None:
            found = self._label_row[pairs] = len(self.label_sets)
            self.label_sets.append(pairs)
        return found

    def _taint_set(self, taints: TaintSet) -> int:
        ordered = tuple(sorted(set(taints), key=lambda taint: (taint.key, taint.value, taint.effect)))
        found = self._taint_row.get(ordered)
        if found is None:
            found = self._taint_row[ordered] = len(self.taint_sets)
            self.taint_sets.append(ordered)
        return found

    # -- reading ------------------------------------------------------------------------------------------------------

    def row(self, node_id: str) -> int:
        found = self.row_of.get(node_id)
        if found is None:
            raise not_found("node", [node_id], self.row_of)
        return found

    def device_count(self, node: int) -> int:
        return int(self.pools[self.pool[node]].capacity.gpu_milli // 1000)

    def pool_facts(self) -> PoolFacts:
        if self._pool_facts is None:
            model = Names([""])
            rows = [(*pool.offered.vector(), model.add(pool.gpu_model) - 1, pool.price_microusd_hour, pool.spot)
                    for pool in self.pools]  # fmt: skip
            table = np.array(rows, np.int64).reshape(-1, 7).T
            self._pool_facts = PoolFacts(
                table[:4], table[2] // 1000, table[4].astype(np.int32), table[5], table[6].astype(bool)
            )
        return self._pool_facts

    def labels_of(self, node: int) -> dict[str, str]:
        """Its labels: those of its pool and its own."""
        return dict(self.label_sets[self.labels[node]])

    def taints_of(self, node: int) -> TaintSet:
        found: TaintSet = self.taint_sets[self.taints[node]]
        return found

    def label(self, node: int, key: str) -> str | None:
        """Value of one label, or, at a level of the topology, where the node is. None when it has none."""
        for name, value in self.label_sets[self.labels[node]]:
            if name == key:
                return str(value)
        if key == LEVELS[-1]:
            return self.node_ids[node]
        return self.places.names[getattr(self, key)[node]] or None if key in PLACES else None

    def domain_of(self, level: int, node: int) -> int:
        """The domain of the level (index into LEVELS) that the node is in: a row of `places`, or a negative number of
        its own where the node is alone."""
        place = getattr(self, LEVELS[level])[node] if level < len(PLACES) else 0
        return place or -1 - node

    def domain_column(self, level: int) -> Ints:
        """`domain_of` every node."""
        alone = -1 - np.arange(len(self.node_ids))
        if level == len(PLACES):
            return alone
        places = view(getattr(self, LEVELS[level])).astype(np.int64)
        return np.where(places > 0, places, alone)

    def label_mask(self, demand: LabelDemand) -> Mask:
        """Mask of the nodes with one of the values of the label (or, at a level of the topology, in one of those
        domains).
        """
        matches, has = np.zeros((2, len(self.label_sets)), bool)
        for row, pairs in enumerate(self.label_sets):
            for key, value in pairs:
                if key == demand.key:
                    has[row], matches[row] = True, demand.accepts(value)
        labels = view(self.labels)
        mask: Mask = matches[labels]
        if demand.key in PLACES:
            there = np.array([bool(name) and demand.accepts(name) for name in self.places.names])
            mask |= ~has[labels] & there[view(getattr(self, demand.key))]
        elif demand.key == LEVELS[-1]:
            named = np.full(len(self.node_ids), demand.any)
            named[[self.row_of[name] for name in demand.values if name in self.row_of]] = True
            mask |= ~has[labels] & named
        return mask

    # -- partitions ---------------------------------------------------------------------------------------------------

    def divide(self) -> None:
        """Number the partitions anew."""
        self.split = self.dividing_labels()
        self.partitions: list[Partition] = []
        self.partition_nodes: list[int] = []
        """Nodes of each partition, in any state."""
        self._partition_of: dict[Any, int] = {}
        self.reaches: dict[Shape, ShapeReach] = {}
        self.partition = array("i", [self._partition(node) for node in range(len(self.node_ids))])
        for node, state in enumerate(self.state):
            if state == NodeState.REMOVED:
                self.partition_nodes[self.partition[node]] -= 1

    def dividing_labels(self) -> tuple[str, ...]:
        """The named labels that do not make too many partitions, in the order they were named."""
        kept: list[str] = []
        if not self.named_labels or not len(self.node_ids):
            return tuple(self.named_labels)
        groups = view(self.pool).astype(np.int64) * len(self.taint_sets) + view(self.taints)
        for key in self.named_labels:
            values = Names()
            of_set = [values.add(next((v for k, v in pairs if k == key), "")) for pairs in self.label_sets]
            codes = np.array(of_set, np.int64)[view(self.labels)] * (len(self.places.names) + len(self.node_ids))
            if key in PLACES:
                codes += view(getattr(self, key))
            elif key == LEVELS[-1]:
                codes += np.arange(len(self.node_ids))
            _, codes = np.unique(codes, return_inverse=True)
            _, finer = np.unique(groups * (int(codes.max()) + 1) + codes, return_inverse=True)
            if int(finer.max()) < MAX_PARTITIONS:
                kept.append(key)
                groups = finer
        return tuple(kept)

    def _partition(self, node: int) -> int:
        """The node's partition, made if need be."""
        values = tuple([self.label(node, key) for key in self.split]) if self.split else ()
        key = self.pool[node], self.taints[node], values
        found = self._partition_of.get(key)
        if found is None:
            found = self._partition_of[key] = len(self.partitions)
            labels = tuple((k, v) for k, v in zip(self.split, values, strict=True) if v is not None)
            self.partitions.append(Partition(self.pool[node], labels, self.taints_of(node)))
            self.partition_nodes.append(0)
            self.reaches.clear()
        self.partition_nodes[found] += 1
        return found

    def reach(self, shape: Shape) -> ShapeReach:
        """The partitions open to tasks of the shape, by the attributes of nodes alone."""
        found = self.reaches.get(shape)
        if found is None:
            found = self.reaches[shape] = self._reach(shape)
        return found

    def suited(self, shape: Shape, *, labels: bool = True, taints: bool = True) -> list[int]:
        """By pool, nodes in any state that tasks of the shape may use, whatever is on them. Without regard to labels
        or taints where these do not count."""
        keys = {demand.key for demand in shape.labels} if labels else set()
        counts = [0] * len(self.pools)
        if keys <= set(self.split):
            for row in self._reach(shape, labels=labels, taints=taints).open:
                counts[self.partitions[row].pool] += self.partition_nodes[row]
            return counts
        mine = np.zeros(max(len(self.partitions), 1), bool)
        mine[list(self._reach(shape, labels=False, taints=taints).open)] = True
        mask = mine[view(self.partition)] & (view(self.state) != NodeState.REMOVED) & self.labelled(shape.labels)
        return [int(count) for count in np.bincount(view(self.pool)[mask], minlength=len(counts))]

    def _reach(self, shape: Shape, *, labels: bool = True, taints: bool = True) -> ShapeReach:
        order = {pool: i for i, pool in enumerate(shape.pools)}
        ranked: list[tuple[int, int, LabelSet, list[tuple[str, ...]], int]] = []
        for row, partition in enumerate(self.partitions):
            if partition.pool in shape.pool_set or any(pool == partition.pool for _, pool in shape.booked):
                unwanted = [t for t in partition.taints if not tolerates(shape.tolerations, t)]
                barred = taints and any(taint.effect == "NoSchedule" for taint in unwanted)
                if not barred and (not labels or self._labels_match(shape, dict(partition.labels))):
                    content: list[tuple[str, ...]] = [(t.key, t.value, t.effect) for t in partition.taints]
                    at = order.get(partition.pool, len(order))
                    ranked.append((len(unwanted), at, partition.labels, content, row))
        ranked.sort()
        rows = [row for *_, row in ranked]
        found = tuple(row for row in rows if self.partitions[row].pool in shape.pool_set)
        ranks = tuple((rank, self.partitions[row].pool) for rank, *_, row in ranked if row in set(found))
        kept = tuple(
            (booking, row) for booking, pool in shape.booked for row in rows if self.partitions[row].pool == pool
        )
        loose = tuple(demand for demand in shape.labels if demand.key not in self.split)
        return ShapeReach(found, kept, loose, frozenset(found), frozenset(kept), ranks)

    def _labels_match(self, shape: Shape, labels: dict[str, str]) -> bool:
        return all(demand.holds(labels.get(demand.key)) for demand in shape.labels if demand.key in self.split)

    def matches(self, node: int, demands: tuple[LabelDemand, ...]) -> bool:
        return all(demand.holds(self.label(node, demand.key)) for demand in demands)

    def suited_mask(self, shape: Shape) -> Mask:
        """Nodes, in any state, that tasks of the shape may use, whatever is on them: by pool, labels and taints."""
        mine = np.zeros(max(len(self.partitions), 1), bool)
        reach = self.reach(shape)
        mine[list(reach.open)] = True
        return np.asarray(mine[view(self.partition)] & self.labelled(reach.loose))

    def loose_mask(self, reach: ShapeReach) -> Mask:
        """Mask of the nodes with the labels that are to be matched node by node."""
        return self.labelled(reach.loose)

    def labelled(self, demands: tuple[LabelDemand, ...]) -> Mask:
        """Mask of the nodes with the demanded labels."""
        mask: Mask = np.ones(len(self.node_ids), bool)
        for demand in demands:
            found = self.label_mask(demand)
            mask &= ~found if demand.avoided else found
        return mask


def known_values(nodes: NodeTable, key: str) -> list[str]:
    """Values that nodes have of the label."""
    found = {value for pairs in nodes.label_sets for name, value in pairs if name == key}
    if key in PLACES:
        found |= {nodes.places.names[place] for place in set(getattr(nodes, key))} - {""}
    return sorted(found)


def known_labels(nodes: NodeTable) -> list[str]:
    """Names of the labels that nodes have, and of the levels at which their place is known."""
    found = {name for pairs in nodes.label_sets for name, _ in pairs}
    found |= {level for level in PLACES if any(getattr(nodes, level))}
    return sorted(found)
