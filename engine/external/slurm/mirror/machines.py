"""Slurm's nodes, partitions, reservations and switches as what a cell can be told (`engine.model.observations`).

partition -> queue; machines alike that are in the same partitions -> pool; feature -> node label `feature/NAME`; leaf
switch -> rack; advance reservation -> reservation. Whatever else Slurm goes by is named in `UnsupportedCounts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

from engine.external.slurm.accounting import Qos
from engine.external.slurm.mirror.boot_times import BootTimes
from engine.external.slurm.names import ident
from engine.external.slurm.records import UNLIMITED, Node, SlurmPartition, SlurmReservation, TopologySwitch
from engine.external.slurm.unsupported import UnsupportedCounts
from engine.model import observations as seen
from engine.model.specs import NodeSpec, PoolSpec, QueueSpec, ReservationSpec, Resources

FEATURE = "feature/"
MAX_LABELS = 60
"""Features of one node, and conditions of one job, that are taken over; an engine takes 64 labels."""


@dataclass(frozen=True)
class Machines:
    """What of the cluster jobs are matched against."""

    told: tuple[seen.AnySeen, ...]
    partitions: dict[str, SlurmPartition]
    pools_of: dict[str, tuple[str, ...]]
    """Partition -> pools of its nodes."""
    pools: dict[str, PoolSpec]
    qos: dict[str, Qos]
    reservations: frozenset[str]
    classes: set[str]
    """Names of the priority classes that were met."""

    @property
    def qos_preempts(self) -> bool:
        """Whether some QOS may take from another."""
        return any(each.preempts for each in self.qos.values())


def machines(
    nodes: Iterable[Node],
    partitions: Iterable[SlurmPartition],
    qos: Iterable[Qos],
    reservations: Iterable[SlurmReservation],
    switches: Iterable[TopologySwitch],
    left: UnsupportedCounts,
    boots: BootTimes | None = None,
) -> Machines:
    """Everything but work. `boots`: what is known of how long they take."""
    boots = boots or BootTimes()
    by_name = {partition.name: partition for partition in partitions}
    sizes = {name: len(partition.nodes) for name, partition in by_name.items()}
    pools: dict[str, PoolSpec] = {}
    known: dict[str, tuple[str, ...]] = {}
    placed: list[seen.NodeSeen] = []
    places = _places(switches)
    for node in nodes:
        pool, among = _pool_of(node, sizes, pools, known, left)
        pools[pool.name], known[pool.name] = pool, among
        placed.append(_node(node, pool.name, places, boots, left))
    pools_of: dict[str, list[str]] = {name: [] for name in by_name}
    for pool_name, among in known.items():
        for name in among:
            pools_of.setdefault(name, []).append(pool_name)
    kept = list(_reservations(reservations, {each.node.id for each in placed}, left))
    told: list[seen.AnySeen] = [seen.PoolSeen(pool=pool) for pool in pools.values()]
    told += placed
    told += [_queue(partition, left) for partition in by_name.values()]
    told += kept
    return Machines(
        told=tuple(told),
        partitions=by_name,
        pools_of={name: tuple(sorted(found)) for name, found in pools_of.items()},
        pools=pools,
        qos={each.name: each for each in qos},
        reservations=frozenset(each.reservation.name for each in kept),
        classes=set(),
    )


def _pool_of(
    node: Node,
    sizes: dict[str, int],
    pools: dict[str, PoolSpec],
    known: dict[str, tuple[str, ...]],
    left: UnsupportedCounts,
) -> tuple[PoolSpec, tuple[str, ...]]:
    """The pool it belongs to, and the partitions of that pool's nodes."""
    among = tuple(sorted(node.partitions))
    model, gpus = _gpus_of(node, left)
    first = min(among, key=lambda name: (sizes.get(name, 0), name), default="no-partition")
    name = f"{ident(first)}-{node.cpus}c{_size(node.memory_mib)}" + (f"-{ident(model or 'gpu')}x{gpus}" if gpus else "")
    if known.get(name, among) != among:
        name = f"{name}-{crc32(','.join(among).encode()) & 0xFFFF:04x}"
    capacity = Resources(cpu_milli=node.cpus * 1000, memory_mib=node.memory_mib, gpu_milli=gpus * 1000)
    pool = pools.get(name) or PoolSpec(
        name=name,
        capacity=capacity,
        gpu_model=ident(model) if model else "",
        machine_type=ident(node.instance_type, ""),
    )
    return pool, among


def _gpus_of(node: Node, left: UnsupportedCounts) -> tuple[str, int]:
    """(model, devices) of the node."""
    found: dict[str, int] = {}
    for name, count in node.gres.items():
        kind, _, model = name.partition(":")
        if kind == "gpu":
            found[model] = found.get(model, 0) + count
        else:
            left.note(f"generic resource '{kind}' is not modelled", node.name)
    if len(found) > 1:
        left.note("GPUs of several models in one node count as one kind", node.name)
        return "", min(sum(found.values()), 62)
    return next(iter(found.items()), ("", 0))


def _size(mib: int) -> str:
    return f"{mib // 1024}g" if mib >= 1024 else f"{mib}m"


def _node(
    node: Node, pool: str, places: dict[str, tuple[str, str]], boots: BootTimes, left: UnsupportedCounts
) -> seen.NodeSeen:
    if ident(node.name) != node.name:
        left.note("node names with odd characters are shown with _ in their place", ident(node.name))
    if len(node.features) > MAX_LABELS:
        left.note(f"more than {MAX_LABELS} features of a node: the rest is left out", node.name)
    labels = {FEATURE + ident(feature): "yes" for feature in node.features[:MAX_LABELS]}
    rack, block = places.get(node.name, (node.switch, ""))
    spec = NodeSpec(id=ident(node.name), pool=pool, rack=ident(rack, ""), block=ident(block, ""), labels=labels)
    return seen.NodeSeen(node=spec, standing=standing(node), boot_ms=boots.ms(node))


def _places(switches: Iterable[TopologySwitch]) -> dict[str, tuple[str, str]]:
    """Node -> (its leaf switch, the one above that where there is just one)."""
    every = list(switches)
    above = {leaf: [each.name for each in every if leaf in each.switches]
             for leaf in (each.name for each in every if each.level == 0)}  # fmt: skip
    return {
        node: (leaf.name, above[leaf.name][0] if len(above[leaf.name]) == 1 else "")
        for leaf in every if leaf.level == 0 for node in leaf.nodes
    }  # fmt: skip


def standing(node: Node) -> seen.Standing:
    """What may start there. A powered-down cloud node is ready: Slurm boots it for who needs it."""
    if node.state in ("DOWN", "ERROR", "UNKNOWN", "FUTURE") or node.flags & {"NOT_RESPONDING", "FAIL", "INVALID_REG"}:
        return "down"
    if node.flags & {"DRAIN", "POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN", "REBOOT_ISSUED", "REBOOT_REQUESTED"}:
        return "draining" if node.state in ("ALLOCATED", "MIXED") else "cordoned"
    return "ready"


def _queue(partition: SlurmPartition, left: UnsupportedCounts) -> seen.QueueSeen:
    if partition.oversubscribe > 1:
        left.note("partitions where jobs share CPUs (OverSubscribe): each CPU counts once", partition.name)
    if partition.nodes_max not in (None, UNLIMITED) or partition.nodes_min > 1:
        left.note("least and most nodes of a job in a partition are not modelled", partition.name)
    return seen.QueueSeen(queue=QueueSpec(name=ident(partition.name)), open=partition.state not in ("DOWN", "INACTIVE"))


def _reservations(
    reservations: Iterable[SlurmReservation], nodes: Collection[str], left: UnsupportedCounts
) -> Iterator[seen.ReservationSeen]:
    for each in reservations:
        mine = tuple(ident(name) for name in each.nodes if ident(name) in nodes)
        if not mine:
            left.note("reservations without whole nodes (cores, licenses) are not modelled", ident(each.name))
            continue
        if each.cores and each.flags.isdisjoint({"MAINT"}) and each.tres.get("node", len(mine)) < len(mine):
            left.note("reservations of parts of nodes count as whole nodes", ident(each.name))
        spec = ReservationSpec(
            name=ident(each.name), nodes=mine, start_ms=each.start_s * 1000, end_ms=max(each.end_s, 1) * 1000
        )
        yield seen.ReservationSeen(reservation=spec)
