"""The request of one task, compiled against the pools, and the bonds that keep workloads near each other or apart.

A term of a bond is a set of tags and a level of the topology. For every term that some workload names, two counts are
kept per domain: tasks of work that carries the tags, and tasks of work that keeps apart from it. The second is needed
because keeping apart holds both ways. The test of a node is then one look-up for each term of the request, however
large the cell.

A node whose place at a level is not known is alone there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from engine.capacity import mig
from engine.model.columns import Mask, view
from engine.model.specs import (
    LEVELS,
    RESOURCES,
    SPOT_TYPES,
    Affinity,
    PoolSpec,
    Qos,
    Spread,
    Taint,
    TaskGroup,
    Toleration,
    TopologyRequest,
    WorkloadSpec,
    device_memory_mib,
    quantity,
)

if TYPE_CHECKING:
    from engine.capacity.node_attributes import NodeTable


Marks = tuple[tuple[int, ...], tuple[int, ...]]
"""(terms whose tags a workload carries, terms by which it keeps apart)"""


class Bonds(msgspec.Struct, frozen=True, array_like=True):
    """The joint terms of a workload's tasks, besides each task's own request. As in WorkloadSpec."""

    topology: TopologyRequest | None = None
    near: tuple[Affinity, ...] = ()
    apart: tuple[Affinity, ...] = ()
    data: tuple[str, ...] = ()
    shunned: tuple[int, ...] = ()
    """Terms by which others keep apart from work that carries its tags."""
    qos: Qos = "guaranteed"


FREE = Bonds()
"""Bonds of a workload that sets none."""


def bonds_of(spec: WorkloadSpec, shunned: tuple[int, ...] = ()) -> Bonds:
    if spec.topology is None and not (spec.near or spec.apart or spec.data or shunned) and spec.qos == "guaranteed":
        return FREE
    return Bonds(spec.topology, spec.near, spec.apart, spec.data, shunned, spec.qos)


class Company:
    """Locations of the work that other work wants to be near to or apart from."""

    __slots__ = (
        "carried_by", "carriers", "keepers", "kept_apart", "level", "number", "placed", "terms", "version", "wanted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.terms: list[Affinity] = []
        self.number: dict[Affinity, int] = {}
        self.level: list[int] = []
        """Index into LEVELS of each term."""
        self.kept_apart: list[bool] = []
        """True if some work keeps apart by the term."""
        self.wanted: list[bool] = []
        """True if some work wants to be near by the term."""
        self.carriers: list[dict[int, int]] = []
        """Term -> domain -> tasks of work that carries the tags."""
        self.keepers: list[dict[int, int]] = []
        """Term -> domain -> tasks of work that keeps apart from such."""
        self.version = 0
        """Changes whenever a domain becomes free of such work, or stops being it."""
        self.carried_by: dict[int, tuple[int, ...]] = {}
        """Row of a set of tags -> the terms whose tags it has, as far as somebody has asked."""
        self.placed: tuple[dict[int, int], ...] = ()
        """While a workload grows: by group, the nodes its tasks are on already, and how many on each."""

    def copy(self) -> Company:
        other = Company()
        other.terms, other.number, other.level = list(self.terms), dict(self.number), list(self.level)
        other.kept_apart, other.wanted = list(self.kept_apart), list(self.wanted)
        other.carriers = [dict(counts) for counts in self.carriers]
        other.keepers = [dict(counts) for counts in self.keepers]
        other.version = self.version
        other.carried_by = dict(self.carried_by)
        return other

    # -- terms --------------------------------------------------------------------------------------------------------

    def name(self, near: Sequence[Affinity], apart: Sequence[Affinity]) -> list[int]:
        """Numbers for the terms that have none yet. Returns those by which nobody kept apart before."""
        newly: list[int] = []
        for term, uses in [(term, self.wanted) for term in near] + [(term, self.kept_apart) for term in apart]:
            number = self.number.get(term)
            if number is None:
                number = self.number[term] = len(self.terms)
                self.carried_by.clear()
                self.terms.append(term)
                self.level.append(LEVELS.index(term.level))
                self.kept_apart.append(False)
                self.wanted.append(False)
                self.carriers.append({})
                self.keepers.append({})
            if uses is self.kept_apart and not uses[number]:
                newly.append(number)
            uses[number] = True
        return newly

    def carried(self, tags: Mapping[str, str]) -> tuple[int, ...]:
        """Terms whose tags are all among these."""
        return tuple(number for number, term in enumerate(self.terms) if term.tags.items() <= tags.items())

    def shunners(self, tags: Mapping[str, str]) -> tuple[int, ...]:
        """The terms among them by which some work keeps apart."""
        return tuple(number for number in self.carried(tags) if self.kept_apart[number]) if self.terms else ()

    # -- counts -------------------------------------------------------------------------------------------------------

    def shift(self, nodes: NodeTable, marks: Marks, at: Iterable[tuple[int, int]]) -> bool:
        """Count (node, tasks) of work with these marks in, or out where tasks are negative. Returns whether a domain
        that others want to be near to has got its first."""
        first = False
        for counts_of, terms in ((self.carriers, marks[0]), (self.keepers, marks[1])):
            for term in terms:
                counts, level = counts_of[term], self.level[term]
                for node, tasks in at:
                    domain = nodes.domain_of(level, node)
                    before = counts.get(domain, 0)
                    if before + tasks:
                        counts[domain] = before + tasks
                    else:
                        del counts[domain]
                    if not before or not before + tasks:
                        self.version += 1
                        first |= not before and counts_of is self.carriers and self.wanted[term]
        return first

    # -- questions ----------------------------------------------------------------------------------------------------

    def admits(self, nodes: NodeTable, node: int, terms: BondTerms) -> bool:
        """True if work with these terms may be on the node beside the work there now."""
        for term in terms.near:
            if self.carriers[term] and nodes.domain_of(self.level[term], node) not in self.carriers[term]:
                return False
        for term in terms.apart:
            if nodes.domain_of(self.level[term], node) in self.carriers[term]:
                return False
        return all(nodes.domain_of(self.level[term], node) not in self.keepers[term] for term in terms.shunned)

    def mask(self, nodes: NodeTable, terms: BondTerms) -> Mask:
        """`admits` of every node."""
        mask: Mask = np.ones(len(nodes.node_ids), bool)
        for term in terms.near:
            if self.carriers[term]:
                mask &= self._there(nodes, term, self.carriers[term])
        for wanted, counts in ((terms.apart, self.carriers), (terms.shunned, self.keepers)):
            for term in wanted:
                if counts[term]:
                    mask &= ~self._there(nodes, term, counts[term])
        return mask

    def _there(self, nodes: NodeTable, term: int, domains: dict[int, int]) -> Mask:
        """Nodes in one of the domains."""
        rows = [-1 - domain for domain in domains if domain < 0]
        mask: Mask = np.zeros(len(nodes.node_ids), bool)
        if len(rows) < len(domains):
            named: Mask = np.zeros(len(nodes.places.names), bool)
            named[[domain for domain in domains if domain > 0]] = True
            mask = named[view(getattr(nodes, LEVELS[self.level[term]]))]
        mask[rows] = True
        return mask


ANY = "*"
"""As the value of a label: whatever it is."""


def size_class(value: int) -> int:
    """Two classes to the octave, monotone, at most 63."""
    if value < 2:
        return value * 2
    bits = value.bit_length()
    return min(bits << 1 | (value >> bits - 2 & 1), 63)


class SizeClasses(dict[int, int]):
    """`size_class` by value, as far as it was asked for: what nodes have free is of few sizes."""

    def __missing__(self, value: int) -> int:
        if len(self) >= MAX_SIZES:
            self.clear()
        found = self[value] = size_class(value)
        return found


MAX_SIZES = 1 << 16
SIZE_CLASSES = SizeClasses()


class LabelDemand(NamedTuple):
    """The demand on one label of a node."""

    key: str
    values: frozenset[str]
    any: bool
    """True if any value will do."""
    avoided: bool
    """The node must not have it."""

    def accepts(self, value: str) -> bool:
        return self.any or value in self.values

    def holds(self, value: str | None) -> bool:
        """True if a node with that value, or without the label, meets the demand."""
        return (value is not None and self.accepts(value)) != self.avoided


class BondTerms(NamedTuple):
    """Bonds to other work, by the terms of `engine.capacity.task_shapes.Company`."""

    near: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    shunned: tuple[int, ...] = ()
    """Terms by which others keep apart from it."""


class Shape:
    """The request of one task, compiled against the pools. Equal requests share one Shape."""

    __slots__ = (
        "_limited",
        "_scored",
        "booked",
        "cpu",
        "cpu_class",
        "data",
        "disk",
        "gpu_milli",
        "gpus",
        "kinds",
        "labels",
        "memory",
        "memory_class",
        "mig",
        "part",
        "plain",
        "pool_set",
        "pools",
        "profile",
        "share",
        "spread",
        "terms",
        "tolerations",
        "topology",
    )

    def __init__(
        self,
        group: TaskGroup,
        pools: list[PoolSpec],
        bonds: Bonds = FREE,
        term_of: Mapping[Affinity, int] | None = None,
    ) -> None:
        """`term_of`: numbers of the affinities that the bonds name."""
        request = group.request
        self.cpu, self.memory, self.gpu_milli, self.disk = request.vector()
        self.gpus, self.share = divmod(self.gpu_milli, 1000)
        self.mig = group.mig
        self.kinds: tuple[int, ...] = ()
        """By pool: the MIG instance that a task gets there, as index into `mig.KINDS`; -1 where there is none. Empty
        unless it asks for one."""
        if group.mig:
            self.gpu_milli, self.gpus, self.share = mig.gpu_milli_of(group.mig), 0, 0
            self.kinds = tuple(mig.kind_in(pool, group.mig) for pool in pools)
        self.part = bool(self.share or self.kinds)
        """True if a task gets a part of one device, a share or a MIG instance, and so is placed by itself."""
        self.cpu_class = size_class(self.cpu)
        self.memory_class = size_class(self.memory)
        eligible = [i for i, pool in enumerate(pools) if accepts(group, pool, bonds.qos)]
        # Leave devices to those who need them, and what is not overcommitted to guaranteed work; then take the cheaper
        # pool, then the older one.
        eligible.sort(
            key=lambda i: (
                pools[i].capacity.gpu_milli > 0 and not self.gpu_milli,
                bonds.qos != "guaranteed" and not pools[i].overcommitted,
                pools[i].price_microusd_hour,
                i,
            )
        )
        self.pools = eligible
        """Rows of the pools whose open nodes it may use, in order of preference."""
        self.pool_set = frozenset(eligible)
        self.booked: tuple[tuple[int, int], ...] = ()
        """(booking, pool row) of kept nodes that it may use besides, in order of preference."""
        self.labels = demands_of(group)
        self.tolerations: tuple[Toleration, ...] = group.tolerations
        self.spread: Spread | None = group.spread
        self.topology: TopologyRequest | None = bonds.topology
        """The topology request of its gang."""
        self.data: tuple[str, ...] = bonds.data
        """Zones that hold what it reads."""
        known = term_of or {}
        near, apart = tuple(known[a] for a in bonds.near), tuple(known[a] for a in bonds.apart)
        self.terms = BondTerms(near, apart, bonds.shunned) if near or apart or bonds.shunned else None
        self.profile: tuple[tuple[str, int], ...] = ()
        """(score, weight) by which its nodes are chosen; empty: as their pools say, or the fullest that fits."""
        self.plain: Shape = self
        """The same without a profile."""
        self._limited: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], Shape] = {}
        self._scored: dict[tuple[tuple[str, int], ...], Shape] = {}

    def limited(self, pools: tuple[int, ...], booked: tuple[tuple[int, int], ...]) -> Shape:
        """The same request confined to open nodes of some of its pools, and to kept nodes: (booking, pool row)."""
        if not booked and pools == tuple(self.pools):
            return self
        found = self._limited.get((pools, booked))
        if found is None:
            found = self._limited[pools, booked] = copy(self)
            found.pools = list(pools)
            found.pool_set = frozenset(pools)
            found.booked = booked
            found._limited, found._scored = {}, {}
            found.plain = found if self.plain is self else self.plain.limited(pools, booked)
        return found

    def scored(self, profile: tuple[tuple[str, int], ...]) -> Shape:
        """The same request, its nodes chosen by other scores."""
        if profile == self.profile:
            return self
        found = self._scored.get(profile)
        if found is None:
            found = self._scored[profile] = copy(self)
            found.profile = profile
            found._limited, found._scored = {}, {}
        return found

    @property
    def home(self) -> int:
        """The pool of a request that is confined to one."""
        return self.pools[0] if self.pools else self.booked[0][1]

    def most_on(self, pool: PoolSpec) -> int:
        """The number of such tasks that an empty node of the pool holds."""
        cpu, memory, gpu, disk = pool.offered.vector()
        counts = [have // want for have, want in ((cpu, self.cpu), (memory, self.memory), (disk, self.disk)) if want]
        if self.gpus:
            counts.append(gpu // 1000 // self.gpus)
        if self.share:
            counts.append(gpu // 1000 * (1000 // self.share))
        if self.mig:
            kind = mig.kind_in(pool, self.mig)
            counts.append(gpu // 1000 * mig.KINDS[kind].most if kind >= 0 else 0)
        return min(counts)


def demands_of(group: TaskGroup) -> tuple[LabelDemand, ...]:
    """The group's demands on the labels of its nodes."""
    asked = ((group.node_labels, False), (group.avoid_labels, True))
    return tuple(
        LabelDemand(key, frozenset(values) - {ANY}, ANY in values, avoided)
        for labels, avoided in asked
        for key, values in sorted(labels.items())
    )


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    return any(t.key == taint.key and t.value in ("", taint.value) for t in tolerations)


def accepts(group: TaskGroup, pool: PoolSpec, qos: Qos = "guaranteed") -> bool:
    """True if an empty node of the pool could hold one task of the group, labels and taints aside."""
    if qos == "guaranteed" and pool.overcommitted:
        return False
    if group.pools and pool.name not in group.pools:
        return False
    if group.capacity_type and pool.spot != (group.capacity_type in SPOT_TYPES):
        return False
    if group.gpu_models and group.request.gpu_milli and pool.gpu_model not in group.gpu_models:
        return False
    if group.gpu_memory_mib and device_memory_mib(pool) < group.gpu_memory_mib:
        return False
    if group.mig and mig.kind_in(pool, group.mig) < 0:
        return False
    return all(have >= want for have, want in zip(pool.offered.vector(), group.request.vector(), strict=True))


def task_size(shape: Shape) -> str:
    """The request of one task, as people write it."""
    request = (shape.cpu, shape.memory, shape.gpu_milli, shape.disk)
    parts = [
        shape.mig if shape.mig and RESOURCES[i] == "gpu_milli" else quantity(i, value)
        for i, value in enumerate(request)
        if value
    ]
    return " + ".join(parts)
