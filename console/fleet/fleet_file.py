"""The file of a fleet, written by people, turned into its spec. What is wrong is told with its place in the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from console.forms.documents import LocatedDocument, read_document
from engine.fleet.fleet_spec import FleetSpec, check_fleet
from engine.model.errors import SpecError
from engine.model.quantity_parsing import cpu_milli, duration_ms, gpu_milli, memory_mib, money_microusd, shown

EXAMPLE = """\
cells:
  - name: here
    connect: /run/muster/here/engine.sock
"""
Forms = dict[str, tuple[str, Callable[[Any], Any]]]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _percent(value: Any) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d)?)%", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{shown(value)} is not a share such as 90%")
    return int(Decimal(match[1]) * 10)


def _rate(value: Any) -> int:
    if not (isinstance(value, str) and value.endswith("/s")):
        raise ValueError(f"{shown(value)} is not a rate such as 100MiB/s")
    return memory_mib(value.removesuffix("/s"))


_CELL: Forms = {"residency": ("residency", _listed)}
_DATASET: Forms = {"cells": ("cells", _listed), "size": ("size_mib", memory_mib)}
_TENANT: Forms = {"residency": ("residency", _listed), "cells": ("cells", _listed)}
_QUOTA: Forms = {
    "cpu": ("cpu_milli", cpu_milli),
    "gpu": ("gpu_milli", gpu_milli),
    "memory": ("memory_mib", memory_mib),
    "disk": ("disk_mib", memory_mib),
}
_TRANSFER: Forms = {"price_usd_gib": ("microusd_gib", money_microusd), "rate": ("mib_s", _rate)}
_ROUTING: Forms = {
    "hour_usd": ("hour_microusd", money_microusd),
    "crowded": ("crowded_permille", _percent),
    "bind_within": ("bind_within_ms", duration_ms),
    "bind_after": ("bind_after_ms", duration_ms),
    "horizon": ("horizon_ms", duration_ms),
    "answer_within": ("answer_within_ms", duration_ms),
}


def read_fleet(path: str) -> FleetSpec:
    """Raises SpecError naming file, line and column. Relative paths in it are relative to its folder."""
    return fleet_of(read_document(path))


def fleet_of(document: LocatedDocument) -> FleetSpec:
    """Raises SpecError naming the place in the document."""
    top = document.value
    if not isinstance(top, dict):
        document.fail("", "is not a fleet", f"Write for example:\n{EXAMPLE}")
    values = dict(top)
    for key, forms in (("cells", _CELL), ("datasets", _DATASET), ("tenants", _TENANT)):
        if isinstance(values.get(key), list):
            values[key] = [_renamed(document, each, forms, f"{key}[{i}]") for i, each in enumerate(values[key])]
    for i, tenant in enumerate(values.get("tenants") or ()):
        if isinstance(tenant, dict) and "quota" in tenant:
            tenant["quota"] = _renamed(document, tenant["quota"], _QUOTA, f"tenants[{i}].quota")
    for key, forms in (("transfer", _TRANSFER), ("routing", _ROUTING)):
        if key in values:
            values[key] = _renamed(document, values[key], forms, key)
    try:
        spec = msgspec.convert(values, FleetSpec)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        document.fail(at.removesuffix("`").lstrip("."), problem, "See docs/fleet.md")
    try:
        check_fleet(spec)
    except SpecError as error:
        document.fail(error.where, error.problem.removeprefix(f"{error.where}: "), error.remedy)
    return _absolute(spec, Path(document.name).parent)


def _renamed(document: LocatedDocument, raw: Any, forms: Forms, path: str) -> Any:
    """A copy with what people write turned into raw fields."""
    if not isinstance(raw, dict):
        document.fail(path, "is not a mapping", f"Write for example:\n{EXAMPLE}")
    values: dict[str, Any] = {}
    for key, value in raw.items():
        name, convert = forms.get(key, (key, None))
        try:
            values[name] = convert(value) if convert else value
        except ValueError as error:
            document.fail(f"{path}.{key}", str(error))
    return values


def _absolute(spec: FleetSpec, folder: Path) -> FleetSpec:
    def of(path: str) -> str:
        return str((folder / Path(path).expanduser()).absolute()) if path and "://" not in path else path

    links = (
        msgspec.structs.replace(link, connect=of(link.connect.removeprefix("unix:")), token_file=of(link.token_file))
        for link in spec.cells
    )
    return msgspec.structs.replace(spec, cells=tuple(links))
