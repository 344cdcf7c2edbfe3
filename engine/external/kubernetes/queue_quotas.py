"""Quotas of a ClusterQueue or a Cohort as they are to be: the resource groups that are there, with other numbers.

A cell counts in milli-CPU, MiB and milli-GPU, by pool or for all pools together (`queue_mapping`); Kueue in quantities
of each flavor. What a change does not touch stays as it was written.
"""

from __future__ import annotations

import copy
from decimal import Decimal
from typing import Any

from engine.external.kubernetes_api.resources import CPU, GPU, ResourceReader, number
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import RESOURCES, FlavorQuota, QueueSpec

LIMITS = {"nominal": "nominalQuota", "borrowing_limit": "borrowingLimit", "lending_limit": "lendingLimit"}
"""Field of a queue's spec -> field of Kueue's quota."""
KUBECTL = {
    "weight": "fairSharing.weight",
    "order": "queueingStrategy",
    "reclaim": "preemption.reclaimWithinCohort",
    "kueue": "preemption",
}
"""Field of a queue's spec -> field of Kueue's spec, of those that Muster only reads."""
MIB = 1 << 20

Entry = dict[str, Any]


def refuse_other_fields(was: QueueSpec, to: QueueSpec) -> None:
    """Raises RefusedError naming every change that is not one of quotas: it would never reach Kueue."""
    fields = [field for field in QueueSpec.__struct_fields__ if field not in (*LIMITS, "flavors")]
    changed = [field for field in fields if getattr(was, field) != getattr(to, field)]
    if not changed:
        return
    names = ", ".join(field.removesuffix("_ms").replace("_", " ") for field in changed)
    theirs = ", ".join(f"spec.{KUBECTL[field]}" for field in changed if field in KUBECTL)
    raise RefusedError(
        f"Muster changes quotas and their limits in Kueue, not {names} of {was.name}",
        f"Leave it out, or change {theirs} with kubectl" if theirs else "Leave it out: Kueue has no such setting",
    )


def changed_groups(groups: list[Entry], wanted: QueueSpec) -> list[Entry]:
    """The resource groups with the quotas of the spec; equal to those given where they have them. Raises SpecError for
    what they cannot express."""
    found = copy.deepcopy(groups)
    flavors = [flavor for group in found for flavor in group["flavors"]]
    if wanted.flavors:
        if len(flavors) != len(wanted.flavors):
            raise SpecError("queue.flavors", "are not as many as Kueue's, of which some match no node", "Use kubectl")
        for flavor, quota in zip(flavors, wanted.flavors, strict=True):
            _set_all(flavor["resources"], quota)
    else:
        _set_all([entry for flavor in flavors for entry in flavor["resources"]], wanted)
    return found


def _set_all(entries: list[Entry], wanted: QueueSpec | FlavorQuota) -> None:
    reader = ResourceReader()
    for field, name in LIMITS.items():
        quotas: dict[str, int] = getattr(wanted, field)
        for index, resource in enumerate(RESOURCES):
            mine = [entry for entry in entries if (reader.index_and_milli(entry["name"]) or (-1, 0))[0] == index]
            value = quotas.get(resource, 0 if field == "nominal" and mine else None)
            _set(mine, name, value, f"queue.{field}.{resource}")


def _set(mine: list[Entry], name: str, value: int | None, where: str) -> None:
    """Set the quotas of one resource, together. Several have what they have, or are refused: nobody said which."""
    amounts = [_amount(entry.get(name), _unit(entry["name"])) for entry in mine]
    known = [each for each in amounts if each is not None]
    if (sum(known) if len(known) == len(amounts) else None) == value or (not mine and not value):
        return
    if len(mine) != 1:
        several = ", ".join(entry["name"] for entry in mine) or "no flavor"
        raise SpecError(where, f"is of {several} in Kueue", "Give each flavor its own quota, with kubectl")
    (entry,) = mine
    if value is None:
        entry.pop(name, None)
    else:
        entry[name] = _quantity(value, entry["name"], where)


def _unit(resource: str) -> Decimal:
    """Units of the cell in one of Kubernetes."""
    index, milli = ResourceReader().index_and_milli(resource) or (-1, 0)
    return Decimal(1000) if index == CPU else Decimal(milli) if index == GPU else Decimal(1) / MIB


def _amount(quantity: object, unit: Decimal) -> Decimal | None:
    if quantity is None:
        return None
    try:
        return number(str(quantity)) * unit
    except ValueError as error:
        raise SpecError("queue", str(error), "Look at the queue with kubectl") from None


def _quantity(value: int, resource: str, where: str) -> str:
    """A quantity of Kubernetes. Raises SpecError for a part of a device."""
    unit = _unit(resource)
    if unit < 1:
        return f"{value}Mi"
    whole, rest = divmod(Decimal(value), unit)
    if not rest:
        return str(whole)
    if resource == "cpu":
        return f"{value}m"
    raise SpecError(where, f"is not a whole number of {resource}", "Kueue counts whole devices")
