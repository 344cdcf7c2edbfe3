"""What one task asks for, compiled against the pools."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import NamedTuple

from engine.capacity import mig
from engine.capacity.affinity import FREE, Bonds
from engine.model.gpu_models import device_memory_mib
from engine.model.quantity_text import quantity
from engine.model.specs import (
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
)

ANY = "*"
"""As the value of a label: whatever it is."""


def size_class(value: int) -> int:
    """Two classes to the octave, monotone, at most 63."""
    if value < 2:
        return value * 2
    bits = value.bit_length()
    return min(bits << 1 | (value >> bits - 2 & 1), 63)


class Demand(NamedTuple):
    """What is asked of one label of a node."""

    key: str
    values: frozenset[str]
    any: bool
    """Whatever its value."""
    avoided: bool
    """The node must not have it."""

    def accepts(self, value: str) -> bool:
        return self.any or value in self.values

    def holds(self, value: str | None) -> bool:
        """Whether a node with that value, or without the label, is as asked."""
        return (value is not None and self.accepts(value)) != self.avoided


class BondTerms(NamedTuple):
    """Bonds to other work, by the terms of `engine.capacity.affinity.Company`."""

    near: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    shunned: tuple[int, ...] = ()
    """Terms by which others keep apart from it."""


class Shape:
    """What one task asks for, compiled against the pools. Equal requests share one Shape."""

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
        """Whether a task gets a part of one device, a share or a MIG instance, and so is placed by itself."""
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
        """Of its gang."""
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
        """How many such tasks an empty node of the pool holds."""
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


def demands_of(group: TaskGroup) -> tuple[Demand, ...]:
    """What the group asks of the labels of its nodes."""
    asked = ((group.node_labels, False), (group.avoid_labels, True))
    return tuple(
        Demand(key, frozenset(values) - {ANY}, ANY in values, avoided)
        for labels, avoided in asked
        for key, values in sorted(labels.items())
    )


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    return any(t.key == taint.key and t.value in ("", taint.value) for t in tolerations)


def accepts(group: TaskGroup, pool: PoolSpec, qos: Qos = "guaranteed") -> bool:
    """Whether an empty node of the pool could hold one task of the group, its labels and taints apart."""
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
    """What one task asks for, as people write it."""
    request = (shape.cpu, shape.memory, shape.gpu_milli, shape.disk)
    parts = [
        shape.mig if shape.mig and RESOURCES[i] == "gpu_milli" else quantity(i, value)
        for i, value in enumerate(request)
        if value
    ]
    return " + ".join(parts)
