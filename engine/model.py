"""Specs: what a person or a trace asks for. Immutable, validated at the door, never changed in place.

Units everywhere: milli-CPU, MiB, milli-GPU (1000 = one whole device), milliseconds, micro-USD. Integers only.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Literal

import msgspec

from engine.errors import SpecError

RESOURCES = ("cpu_milli", "memory_mib", "gpu_milli", "disk_mib")
"""Names of the resource vector, in the order every array and tuple uses."""

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
MAX_QUANTITY = 2**48
"""Largest accepted quantity of one resource; the sum over 30,000 such nodes still fits 64 bits."""
MAX_TASKS = 1_000_000
MAX_NAME = 1024


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all specs: unknown fields are an error, equality is by value."""


class Resources(Spec, frozen=True, kw_only=True):
    """A resource vector. Zero means "none asked for" in a request and "has none" in a capacity."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0
    disk_mib: int = 0

    def vector(self) -> tuple[int, int, int, int]:
        """The quantities in the order of RESOURCES."""
        return (self.cpu_milli, self.memory_mib, self.gpu_milli, self.disk_mib)


class PoolSpec(Spec, frozen=True, kw_only=True):
    """Nodes of one machine type."""

    name: str
    capacity: Resources
    """Allocatable quantities of one node. `gpu_milli` must be 1000 x the number of devices."""
    gpu_model: str = ""
    machine_type: str = ""
    price_microusd_hour: int = 0
    spot: bool = False
    labels: dict[str, str] = {}


class NodeSpec(Spec, frozen=True, kw_only=True):
    """One node. Empty topology names mean "unknown": the node is alone in that level."""

    id: str
    pool: str
    zone: str = ""
    block: str = ""
    rack: str = ""


class QueueSpec(Spec, frozen=True, kw_only=True):
    """A vertex of the queue tree. Leaves take workloads; a nominal quota bounds a vertex and all below it."""

    name: str
    parent: str = ""
    nominal: dict[str, int] = {}
    """Resource name -> quantity. A resource that is not named is not limited at this vertex."""
    weight: int = 1


class PriorityClassSpec(Spec, frozen=True, kw_only=True):
    """A named integer priority. Higher runs first."""

    name: str
    value: int
    preemption: Literal["never", "lower"] = "never"


class CellSpec(Spec, frozen=True, kw_only=True):
    """Everything that defines a cell before any work is submitted."""

    name: str = "cell"
    pools: tuple[PoolSpec, ...] = ()
    nodes: tuple[NodeSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    priority_classes: tuple[PriorityClassSpec, ...] = ()


class TaskGroup(Spec, frozen=True, kw_only=True):
    """Identical members of a gang. `request` is for one task; all `count` start together or none does."""

    name: str = "main"
    count: int = 1
    request: Resources
    gpu_models: tuple[str, ...] = ()
    """Acceptable device models; empty means any."""
    pools: tuple[str, ...] = ()
    """Acceptable pools; empty means any."""


class WorkloadSpec(Spec, frozen=True, kw_only=True):
    """The unit of admission: one or more task groups, placed all-or-nothing (a gang)."""

    id: str
    queue: str
    groups: tuple[TaskGroup, ...]
    name: str = ""
    priority_class: str = "normal"
    tenant: str = ""
    team: str = ""
    tags: dict[str, str] = {}
    estimate_ms: int = 0
    """Requested or estimated run time; 0 means unknown, which backfill treats as unbounded."""
    checkpoint_interval_ms: int = 0
    """Work is kept up to the last multiple of this; 0 means nothing is kept when stopped."""
    simulated_runtime_ms: int = 0
    """Run time the simulated executor gives it; 0 lets the executor draw one from the estimate."""
    held: bool = False


class WorkloadState(IntEnum):
    """Life of a workload. Names in lower case are what filters, the shell and the console show."""

    QUEUED = 0
    HELD = 1
    PLACED = 2
    """Bound to nodes and charged; the executor has not yet said that it runs."""
    RUNNING = 3
    FINISHED = 4
    FAILED = 5
    CANCELLED = 6

    @property
    def terminal(self) -> bool:
        return self >= WorkloadState.FINISHED

    @property
    def label(self) -> str:
        return self.name.lower()


class NodeState(IntEnum):
    """Only READY nodes take new work."""

    READY = 0
    CORDONED = 1
    DRAINING = 2
    """Cordoned, and its work is being moved away."""
    DOWN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


Policy = Literal["fcfs", "easy"]


def check_id(value: str, where: str) -> None:
    """Ids are typed by people and shown on screens: refuse what cannot be typed or could act on a terminal."""
    if not ID_PATTERN.fullmatch(value):
        shown = value[:40].encode("unicode_escape").decode() + ("…" if len(value) > 40 else "")
        raise SpecError(
            where,
            f"'{shown}' is not a valid id",
            "Use 1 to 128 letters, digits, '.', '_', '-' or '/', starting with a letter or digit",
        )


def check_quantity(value: int, where: str, *, least: int = 0, most: int = MAX_QUANTITY) -> None:
    """Refuse negative and absurd sizes before they meet arithmetic."""
    if value < least:
        raise SpecError(where, f"{value} is below {least}", f"Give a whole number from {least} to {most}")
    if value > most:
        raise SpecError(where, f"{value} is above {most}", f"Give a whole number from {least} to {most}")


def check_resources(resources: Resources, where: str) -> None:
    for name, value in zip(RESOURCES, resources.vector(), strict=True):
        check_quantity(value, f"{where}.{name}")
    gpu = resources.gpu_milli
    if gpu > 1000 and gpu % 1000:
        raise SpecError(
            f"{where}.gpu_milli",
            f"{gpu} is neither a share of one device nor whole devices",
            "Give at most 1000 for a share, or a multiple of 1000 for whole devices",
        )


def check_pool(pool: PoolSpec, where: str = "pool") -> None:
    check_id(pool.name, f"{where}.name")
    check_resources(pool.capacity, f"{where}.capacity")
    if pool.capacity.gpu_milli % 1000:
        raise SpecError(f"{where}.capacity.gpu_milli", "a node has whole devices", "Give a multiple of 1000")
    if pool.capacity.gpu_milli > 62_000:
        raise SpecError(f"{where}.capacity.gpu_milli", "a node has at most 62 devices", "Split it into smaller nodes")
    check_quantity(pool.price_microusd_hour, f"{where}.price_microusd_hour")


def check_workload(spec: WorkloadSpec, where: str = "workload") -> None:
    """Everything that can be checked without knowing the cell. Raises SpecError naming the field."""
    check_id(spec.id, f"{where}.id")
    if len(spec.name) > MAX_NAME:
        raise SpecError(f"{where}.name", f"{len(spec.name)} characters", f"Give at most {MAX_NAME}")
    for field in ("queue", "priority_class"):
        check_id(getattr(spec, field), f"{where}.{field}")
    for field in ("tenant", "team"):
        if getattr(spec, field):
            check_id(getattr(spec, field), f"{where}.{field}")
    for field in ("estimate_ms", "checkpoint_interval_ms", "simulated_runtime_ms"):
        check_quantity(getattr(spec, field), f"{where}.{field}")
    if not spec.groups:
        raise SpecError(f"{where}.groups", "is empty", "Give at least one task group with a request")
    names: set[str] = set()
    total = 0
    for i, group in enumerate(spec.groups):
        at = f"{where}.groups[{i}]"
        check_id(group.name, f"{at}.name")
        if group.name in names:
            raise SpecError(f"{at}.name", f"'{group.name}' is given twice", "Give each group its own name")
        names.add(group.name)
        check_quantity(group.count, f"{at}.count", least=1, most=MAX_TASKS)
        total += group.count
        check_resources(group.request, f"{at}.request")
        if not any(group.request.vector()):
            raise SpecError(f"{at}.request", "asks for nothing", "Ask for at least one resource")
    if total > MAX_TASKS:
        raise SpecError(f"{where}.groups", f"{total} tasks in all", f"At most {MAX_TASKS} in one workload")
