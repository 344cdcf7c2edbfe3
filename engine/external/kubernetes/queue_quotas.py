"""Quotas of a ClusterQueue or a Cohort as they are to be: the resource groups that are there, with other numbers.

A cell counts in milli-CPU, MiB and milli-GPU; a queue of Kueue in quantities of each flavor. What a change does not
touch stays as it was written.
"""

from __future__ import annotations

import copy
from decimal import Decimal, InvalidOperation
from typing import Any

from engine.model.errors import SpecError
from engine.model.specs import FlavorQuota, QueueSpec

LIMITS = {"nominal": "nominalQuota", "borrowing_limit": "borrowingLimit", "lending_limit": "lendingLimit"}
"""Field of a queue's spec -> field of Kueue's quota."""
MIB = 1 << 20
SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal(10**3),
    "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "Ki": Decimal(1 << 10),
    "Mi": Decimal(1 << 20), "Gi": Decimal(1 << 30), "Ti": Decimal(1 << 40), "Pi": Decimal(1 << 50),
}  # fmt: skip


def cell_resource(name: str) -> str:
    """The resource of a cell that one of Kubernetes is; empty where it is none."""
    if name.endswith("/gpu"):
        return "gpu_milli"
    return {"cpu": "cpu_milli", "memory": "memory_mib", "ephemeral-storage": "disk_mib"}.get(name, "")


def amount(quantity: object, resource: str) -> Decimal | None:
    """A quantity of Kubernetes in units of the cell; None where there is none."""
    if quantity is None:
        return None
    text = str(quantity)
    suffix = text.lstrip("+-.0123456789")
    try:
        number = Decimal(text.removesuffix(suffix)) * SUFFIXES[suffix]
    except (InvalidOperation, KeyError):
        raise SpecError("quota", f"'{text[:40]}' is no quantity", "Look at the queue with kubectl") from None
    return number / MIB if resource in ("memory_mib", "disk_mib") else number * 1000


def quantity(value: int, resource: str, where: str) -> str:
    """A quantity of Kubernetes. Raises SpecError for a part of a GPU."""
    if resource in ("memory_mib", "disk_mib"):
        return f"{value}Mi"
    if value % 1000 == 0:
        return str(value // 1000)
    if resource == "gpu_milli":
        raise SpecError(where, f"{value / 1000:g} is no whole number of GPUs", "Kueue counts whole devices")
    return f"{value}m"


def changed_groups(groups: list[dict[str, Any]], wanted: QueueSpec) -> list[dict[str, Any]]:
    """The resource groups with the quotas of the spec; equal to those given where they have them. Raises SpecError for
    what they cannot express."""
    found = copy.deepcopy(groups)
    flavors = [(flavor, resource) for group in found for flavor in group["flavors"] for resource in flavor["resources"]]
    by_pool = {each.pool: each for each in wanted.flavors}
    for field, name in LIMITS.items():
        for resource in ("cpu_milli", "memory_mib", "gpu_milli", "disk_mib"):
            mine = [(flavor["name"], entry) for flavor, entry in flavors if cell_resource(entry["name"]) == resource]
            total = getattr(wanted, field).get(resource, 0 if field == "nominal" else None)
            _set(mine, by_pool, field, name, resource, total)
    return found


def _set(
    mine: list[tuple[str, dict[str, Any]]],
    by_pool: dict[str, FlavorQuota],
    field: str,
    name: str,
    resource: str,
    total: int | None,
) -> None:
    where = f"queue.{field}.{resource}"
    if not mine:
        if total:
            raise SpecError(where, "is not covered by the queue's resource groups", "Add the resource with kubectl")
        return
    if mine and all(flavor in by_pool for flavor, _ in mine):
        for flavor, entry in mine:
            value = getattr(by_pool[flavor], field).get(resource, 0 if field == "nominal" else None)
            _write(entry, name, value, resource, where)
        return
    if len(mine) == 1:
        _write(mine[0][1], name, total, resource, where)
        return
    known = [amount(entry.get(name), resource) for _, entry in mine]
    now = None if any(each is None for each in known) else sum(each for each in known if each is not None)
    if now != total:
        names = ", ".join(flavor for flavor, _ in mine)
        raise SpecError(where, f"is of several flavors: {names}", "Give each flavor its own quota")


def _write(entry: dict[str, Any], name: str, value: int | None, resource: str, where: str) -> None:
    if amount(entry.get(name), resource) == (None if value is None else Decimal(value)):
        return
    if value is None:
        entry.pop(name, None)
    else:
        entry[name] = quantity(value, resource, where)
