"""Nodes of Kubernetes as nodes and pools of a cell.

Nodes are in one pool if they are of the same node pool of a cloud or autoscaler, have the same CPU and devices, the
same labels as far as flavors go by them, and memory and disk that differ by 2 % at most: kubelets of like machines
report slightly different memory. The pool is then as large as the first of them. So a flavor stands for whole pools.

Levels of a Topology become levels of the cell from the narrowest: rack, block, zone, region; the host is the node. The
name of a domain has those of the domains it is in before it, because Kueue tells domains apart by the whole path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from engine.external.kubernetes.names import node_id
from engine.external.kubernetes_api.core_objects import KubernetesNode, KubernetesTaint
from engine.external.kubernetes_api.kueue_objects import ResourceFlavor, Topology
from engine.external.kubernetes_api.resources import MIG_SLICES, SHARED, ResourceReader
from engine.external.mirror_report import UnsupportedCounts
from engine.model import external_cells as seen
from engine.model.specs import ID_PATTERN, MAX_DEVICES, MAX_LABELS, Level, NodeSpec, PoolSpec, Resources, Taint

POOL_LABELS = (
    "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "karpenter.sh/nodepool",
    "kubernetes.azure.com/agentpool",
)  # fmt: skip
MACHINE_TYPE = "node.kubernetes.io/instance-type"
MODEL_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product")
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot", "eks.amazonaws.com/capacityType": "SPOT", "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}  # fmt: skip
HOSTNAME = "kubernetes.io/hostname"
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
REPLICAS = "nvidia.com/gpu.replicas"
OWN_TAINTS = "node.kubernetes.io/"
"""Taints that Kubernetes gives by itself, for what the node's conditions say as well."""
LEAVING = ("ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "DeletionCandidateOfClusterAutoscaler")
_LEVELS: tuple[Level, ...] = ("rack", "block", "zone", "region")
"""The narrowest first."""
_NO_LETTER_OF_IDS = re.compile(r"[^A-Za-z0-9._-]")
TOLERANCE = 50
"""Memory and disk of one pool differ by less than one part in so many."""


class NodeMapping:
    """Nodes as they were last made observations of. `pools` is what the cell has from before."""

    def __init__(self, reader: ResourceReader, pools: Iterable[PoolSpec] = ()) -> None:
        self.reader = reader
        self.pools: dict[str, PoolSpec] = {pool.name: pool for pool in pools}
        self.level_of: dict[str, Level] = {}
        """Node label that is a level of a Topology -> level."""
        self.left = UnsupportedCounts()
        self._topologies: tuple[tuple[str, ...], ...] = ()
        self._flavor_labels: tuple[str, ...] = ()

    def learn(self, flavors: Iterable[ResourceFlavor], topologies: Iterable[Topology]) -> bool:
        """Return whether these divide nodes otherwise than those before."""
        labels = tuple(sorted({key for flavor in flavors for key in flavor.spec.node_labels}))
        ordered = sorted(topologies, key=lambda each: each.metadata.name)
        levels = tuple(tuple(level.node_label for level in each.spec.levels) for each in ordered)
        if (labels, levels) == (self._flavor_labels, self._topologies):
            return False
        self._flavor_labels, self._topologies = labels, levels
        self.level_of = {HOSTNAME: "node"}
        for path in levels:
            within = [label for label in reversed(path) if label != HOSTNAME]
            for label, level in zip(within, _LEVELS, strict=False):
                self.level_of.setdefault(label, level)
        return True

    def observed(self, nodes: Iterable[KubernetesNode]) -> list[seen.NodeSeen]:
        """These nodes, which may begin pools."""
        return [self._observed(node) for node in nodes]

    def _observed(self, node: KubernetesNode) -> seen.NodeSeen:
        pool = self._pool(node)
        spec = NodeSpec(
            id=node_id(node.metadata.name),
            pool=pool.name,
            labels=self._labels(node, pool),
            taints=self._taints(node),
            **self._place(node.metadata.labels),
        )
        return seen.NodeSeen(node=spec, standing=standing(node))

    def pools_of(self, flavor: ResourceFlavor) -> tuple[str, ...]:
        """The pools whose nodes have the flavor's labels."""
        wanted = flavor.spec.node_labels.items()
        return tuple(name for name, pool in self.pools.items() if wanted <= pool.labels.items())

    def _pool(self, node: KubernetesNode) -> PoolSpec:
        labels = node.metadata.labels
        kept = next((key for key in POOL_LABELS if key in labels), "")
        divides = {key: labels[key] for key in (kept, *self._flavor_labels) if key and labels.get(key)}
        model = next((ident(labels[key]) for key in MODEL_LABELS if labels.get(key)), "")
        capacity = self._capacity(node)
        spec = PoolSpec(
            name="x",
            capacity=capacity,
            gpu_model=model if capacity.gpu_milli else "",
            machine_type=ident(labels.get(MACHINE_TYPE, "")),
            spot=any(labels.get(key, "") == value for key, value in SPOT_LABELS.items()),
            labels={key: value for key, value in divides.items() if fits(key, value)},
        )
        for pool in self.pools.values():
            if _alike(pool, spec):
                return pool
        named = msgspec.structs.replace(spec, name=self._name(spec, labels.get(kept, "")))
        self.pools[named.name] = named
        return named

    def _name(self, spec: PoolSpec, prefix: str) -> str:
        capacity = spec.capacity
        size = f"{capacity.cpu_milli // 1000}c{capacity.memory_mib // 1024}g"
        devices = f"{(spec.gpu_model or 'gpu')[:40].lower()}x{capacity.gpu_milli // 1000}" if capacity.gpu_milli else ""
        base = "-".join(part for part in (ident(prefix)[:50], size, devices) if part)
        taken = sum(name == base or name.rpartition("_")[0] == base for name in self.pools)
        return f"{base}_{taken + 1}" if taken else base

    def _capacity(self, node: KubernetesNode) -> Resources:
        """What pods may have of the node; its devices whole, however they are handed out."""
        offered, labels = node.status.allocatable or node.status.capacity, node.metadata.labels
        replicas = labels.get(REPLICAS, "")
        if SHARED in offered and replicas.isdecimal():
            self.reader.replicas = max(int(replicas), 1)
        found = self.reader.resources(offered)
        devices = -(-found.gpu_milli // 1000)
        if devices * 1000 != found.gpu_milli:
            # MIG instances: sevenths, rounded down, of so many devices.
            self.left.note(f"MIG instances count as {MIG_SLICES}ths of a device", node.metadata.name)
        if devices > MAX_DEVICES:
            self.left.note(f"more than {MAX_DEVICES} devices of a node are left out", node.metadata.name)
        return msgspec.structs.replace(found, gpu_milli=min(devices, MAX_DEVICES) * 1000)

    def _labels(self, node: KubernetesNode, pool: PoolSpec) -> dict[str, str]:
        own = {key: value for key, value in sorted(node.metadata.labels.items())
               if key not in pool.labels and key != HOSTNAME and fits(key, value)}  # fmt: skip
        most = MAX_LABELS - len(pool.labels)
        if len(own) > most:
            self.left.note(f"more than {MAX_LABELS} labels of a node: the others are left out", node.metadata.name)
        return dict(list(own.items())[:most])

    def _taints(self, node: KubernetesNode) -> tuple[Taint, ...]:
        found: dict[Taint, None] = {}
        for taint in node.spec.taints:
            if taint.key.startswith(OWN_TAINTS) or taint.key in LEAVING:
                continue
            if fits(taint.key, taint.value):
                found[_taint(taint)] = None
            else:
                self.left.note("taints whose key or value is not an id are left out", node.metadata.name)
        return tuple(list(found)[:MAX_LABELS])

    def _place(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Level -> domain of the node."""
        for path in self._topologies:
            if all(labels.get(label) for label in path if label != HOSTNAME):
                return self._path(path, labels)
        place = {"zone": labels.get(ZONE, ""), "region": labels.get(REGION, "")}
        return {level: value for level, value in place.items() if value and ID_PATTERN.fullmatch(value)}

    def _path(self, path: tuple[str, ...], labels: Mapping[str, str]) -> dict[str, str]:
        place: dict[str, str] = {}
        above = ""
        for label in path:
            if label == HOSTNAME:
                continue
            above = f"{above}/{labels[label]}" if above else labels[label]
            level = self.level_of.get(label)
            if level is not None and ID_PATTERN.fullmatch(above):
                place[level] = above
        return place


def standing(node: KubernetesNode) -> seen.Standing:
    """Return the node's standing for new work."""
    ready = next((each.status for each in node.status.conditions if each.type == "Ready"), "Unknown")
    if ready != "True":
        return "down"
    keys = {taint.key for taint in node.spec.taints}
    if node.metadata.deletion_timestamp is not None or not keys.isdisjoint(LEAVING[:2]):
        return "draining"
    return "cordoned" if node.spec.unschedulable else "ready"


def ident(text: str) -> str:
    """The text as far as it can be part of an id."""
    return _NO_LETTER_OF_IDS.sub("_", text)[:120].lstrip("._-")


@lru_cache(maxsize=65_536)
def fits(key: str, value: str) -> bool:
    """True if a label or taint can be one of a cell."""
    return bool(ID_PATTERN.fullmatch(key)) and (not value or bool(ID_PATTERN.fullmatch(value)))


def _taint(taint: KubernetesTaint) -> Taint:
    soft = taint.effect == "PreferNoSchedule"
    return Taint(key=taint.key, value=taint.value, effect="PreferNoSchedule" if soft else "NoSchedule")


def _alike(pool: PoolSpec, spec: PoolSpec) -> bool:
    """True if such a node may be in the pool."""
    a, b = pool.capacity, spec.capacity
    near = all(
        abs(have - other) * TOLERANCE <= have
        for have, other in ((a.memory_mib, b.memory_mib), (a.disk_mib, b.disk_mib))
    )
    return near and (pool.labels, pool.gpu_model, pool.machine_type, pool.spot, a.cpu_milli, a.gpu_milli) == (
        spec.labels, spec.gpu_model, spec.machine_type, spec.spot, b.cpu_milli, b.gpu_milli,
    )  # fmt: skip
