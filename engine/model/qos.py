"""Classes of service: how sure work may be of what it asks for, what nodes are overcommitted by, and whom a node that
runs short puts out first.

A pool's `overcommit` says by how much the requests on one of its nodes may exceed what the node has. Guaranteed work
is never put there, so the sum of request / ratio over the work of any node is at most what it has: with ratio 1 on
every node that guaranteed work may have, and the pool's ratio for all work of an overcommitted one.
"""

from __future__ import annotations

from typing import Literal

from engine.model.base import HOUR_MS, MINUTE_MS, Spec, check_quantity
from engine.model.errors import SpecError

Qos = Literal["guaranteed", "burstable", "best_effort"]
OVERCOMMITTED = ("cpu_milli", "memory_mib")
"""Resources that may be promised more than once. A device or a disk that is full cannot be shared out again."""
MAX_OVERCOMMIT = 10_000
EvictionOrder = Literal["kubelet", "qos"]


class Pressure(Spec, frozen=True, kw_only=True):
    """When a node whose memory runs short puts work out. It looks every `check_every_ms`."""

    evict_at_permille: int = 950
    """Of its physical memory in use. 0: never."""
    evict_to_permille: int = 900
    """Work is put out until no more than this is in use."""
    order: EvictionOrder = "kubelet"
    """Who goes first (`engine.health.memory_pressure`)."""
    check_every_ms: int = 10_000
    pause_ms: int = 5 * MINUTE_MS
    """What was put out waits so long before it may start again."""


def check_overcommit(overcommit: dict[str, int], where: str) -> None:
    """Permille by resource. Raises SpecError naming the field."""
    for name, permille in overcommit.items():
        if name not in OVERCOMMITTED:
            raise SpecError(
                f"{where}.{name[:64]}", "cannot be overcommitted", f"Resources that can: {', '.join(OVERCOMMITTED)}"
            )
        check_quantity(permille, f"{where}.{name}", least=1000, most=MAX_OVERCOMMIT)


def check_pressure(pressure: Pressure, where: str) -> None:
    """Raises SpecError naming the field."""
    check_quantity(pressure.evict_at_permille, f"{where}.evict_at_permille", most=1000)
    check_quantity(pressure.evict_to_permille, f"{where}.evict_to_permille", most=1000)
    if pressure.evict_at_permille and pressure.evict_to_permille > pressure.evict_at_permille:
        raise SpecError(
            f"{where}.evict_to_permille",
            f"{pressure.evict_to_permille} is above evict_at_permille, {pressure.evict_at_permille}",
            "Give at most evict_at_permille",
        )
    check_quantity(pressure.check_every_ms, f"{where}.check_every_ms", least=100, most=HOUR_MS)
    check_quantity(pressure.pause_ms, f"{where}.pause_ms", most=24 * HOUR_MS)
