"""Quantities of Kubernetes as resources of a cell: milli-CPU, MiB, milli-GPU.

Devices by the name of their resource:

    nvidia.com/gpu, amd.com/gpu, gpu.intel.com/xe ...   a device
    nvidia.com/gpu.shared                               a part of one: a device divided by the replicas of its nodes
    nvidia.com/mig-3g.40gb                              a part of one: three sevenths

What is asked for is rounded up, what there is and what is allowed is rounded down. Quantities:
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/. The request of a pod:
https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache

from engine.external.kubernetes_api.core_objects import Container, PodSpec
from engine.external.kubernetes_api.kueue_objects import Quantity
from engine.model.specs import MAX_QUANTITY, RESOURCES, Resources

CPU, MEMORY, GPU, DISK = range(4)
_PLAIN = {"cpu": CPU, "memory": MEMORY, "ephemeral-storage": DISK}
_DEVICES = frozenset(["nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe", "habana.ai/gaudi"])
SHARED = "nvidia.com/gpu.shared"
_MIG = re.compile(r"nvidia\.com/mig-([1-7])g\.\d+gb(\.me)?")
MIG_SLICES = 7
PODS = "pods"
_UNITS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal(10**3),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([numkMGTPE]?|[KMGTPE]i)")


@lru_cache(maxsize=65_536)
def number(text: Quantity) -> Decimal:
    """A quantity as a number. Raises ValueError for what is none."""
    found = _QUANTITY.fullmatch(str(text))
    try:
        return Decimal(found[1]) * _UNITS[found[2]] if found else Decimal(str(text))
    except InvalidOperation:
        raise ValueError(f"{str(text)[:40]!a} is not a quantity") from None


class ResourceReader:
    """Quantities of one cluster. Names of resources that a cell does not have are gathered in `unknown`."""

    def __init__(self) -> None:
        self.replicas = 1
        """Parts of a device that is shared in time, by the labels of the nodes."""
        self.unknown: dict[str, int] = {}
        """Resource -> how often it was met."""
        self._read: dict[tuple[tuple[tuple[str, Quantity], ...], bool], Resources] = {}

    def index_and_milli(self, name: str) -> tuple[int, int] | None:
        """(index into RESOURCES, milli-GPU of one, for devices); None for what a cell does not have."""
        if name in _PLAIN:
            return _PLAIN[name], 0
        if name in _DEVICES:
            return GPU, 1000
        if name == SHARED:
            return GPU, 1000 // self.replicas
        slices = _MIG.fullmatch(name)
        return (GPU, int(slices[1]) * 1000 // MIG_SLICES) if slices else None

    def quantity(self, name: str, text: Quantity, *, up: bool = False) -> tuple[int, int] | None:
        """(index into RESOURCES, quantity in its unit); None for what a cell does not have or nobody can read."""
        known = self.index_and_milli(name)
        if known is None:
            if name != PODS:
                self.unknown[name] = self.unknown.get(name, 0) + 1
            return None
        try:
            value = number(text)
        except ValueError:
            return None
        index, milli = known
        unit = Decimal(1000) if index == CPU else Decimal(milli) if index == GPU else Decimal(1) / 2**20
        whole = value * unit
        rounded = int(whole.to_integral_value("ROUND_CEILING" if up else "ROUND_FLOOR"))
        return index, min(max(rounded, 0), MAX_QUANTITY)

    def resources(self, quantities: Mapping[str, Quantity], *, up: bool = False) -> Resources:
        key = tuple(quantities.items()), up
        found = self._read.get(key)
        if found is None:
            vector = [0, 0, 0, 0]
            for name, text in quantities.items():
                read = self.quantity(name, text, up=up)
                if read is not None:
                    vector[read[0]] += read[1]
            found = self._read[key] = Resources(**dict(zip(RESOURCES, vector, strict=True)))
        return found

    def request(self, spec: PodSpec) -> Resources:
        """What a pod is counted for: its containers together or its largest init container, and its overhead."""
        if len(spec.containers) == 1 and not (spec.init_containers or spec.resources.requests or spec.overhead):
            return self.resources(spec.containers[0].resources.requests, up=True)
        main = self._sum(spec.containers)
        beside, largest = [0, 0, 0, 0], [0, 0, 0, 0]
        for container in spec.init_containers:
            own = self.resources(container.resources.requests, up=True).vector()
            largest = [max(most, one + there) for most, one, there in zip(largest, own, beside, strict=True)]
            if container.restart_policy == "Always":
                beside = [have + one for have, one in zip(beside, own, strict=True)]
        vector = [max(a + b, most) for a, b, most in zip(main, beside, largest, strict=True)]
        for index, value in enumerate(self.resources(spec.resources.requests, up=True).vector()):
            vector[index] = value or vector[index]
        if spec.overhead:
            extra = self.resources(spec.overhead, up=True).vector()
            vector = [have + more for have, more in zip(vector, extra, strict=True)]
        return Resources(**dict(zip(RESOURCES, vector, strict=True)))

    def _sum(self, containers: Iterable[Container]) -> list[int]:
        vectors = [self.resources(each.resources.requests, up=True).vector() for each in containers]
        return [sum(column) for column in zip(*vectors, strict=True)] if vectors else [0, 0, 0, 0]
