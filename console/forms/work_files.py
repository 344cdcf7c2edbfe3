"""Workload and cell files, written by people, as specs.

Fields take the human forms of `console.forms.fields` as well as the raw ones of `engine.model.specs`. Errors name the
place in the file, also those that only the engine can find.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from console.forms.documents import LocatedDocument, read_document
from console.forms.fields import (
    AUTOSCALING_FORMS,
    BUDGET_FORMS,
    BURST_FORMS,
    GROUP_FORMS,
    HEALTH_FORMS,
    HUMAN,
    NODE_FORMS,
    ONE_GROUP,
    POOL_FORMS,
    POOL_OF_NODES,
    PRESSURE_FORMS,
    QUEUE_FORMS,
    RATIO_FORMS,
    RESOURCE_FORMS,
    RUN_FORMS,
    SCALING_FORMS,
    SERVICE_FORMS,
    SETTINGS_FORMS,
    Forms,
    Now,
    as_written,
    meant,
    tasks_of,
    workload_forms,
)
from engine.model.errors import SpecError, misfit
from engine.model.quantities import shown
from engine.model.spec_parts import PRESETS
from engine.model.specs import MEMORY_MIB, CellSpec, WorkloadSpec, check_workload, memory_by_name

MAX_POOL_NODES = 1_000_000
WORKLOAD_EXAMPLE = """\
workloads:
  - id: train-7b
    queue: research
    estimate: 6h
    tasks: 8
    request: {cpu: 32, memory: 256GiB, gpu: 8}
"""
CELL_EXAMPLE = """\
pools:
  - {name: h100, nodes: 4, gpu_model: H100, capacity: {cpu: 96, memory: 1TiB, gpu: 8}}
queues:
  - {name: research, nominal: {gpu: 32}}
"""


def read_workloads(path: str, now: Now) -> tuple[WorkloadSpec, ...]:
    """Workloads of a YAML or JSON file, or of standard input for `-`. Raises SpecError."""
    return workloads_of(read_document(path), now)


def workloads_of(document: LocatedDocument, now: Now) -> tuple[WorkloadSpec, ...]:
    """The document is one workload, a list, or a mapping with the one key `workloads`. `now` gives the cell's clock.
    Raises SpecError."""
    top, prefix = document.value, ""
    if isinstance(top, dict) and "workloads" in top:
        for key in top.keys() - {"workloads"}:
            document.fail(key, f"unknown key '{key}' next to 'workloads'", "Move it into a workload")
        top, prefix = top["workloads"], "workloads"
    if isinstance(top, dict):
        return (_workload(document, top, prefix, now),)
    if not isinstance(top, list) or not top:
        document.fail(prefix, "holds no workload", f"Write it like:\n{WORKLOAD_EXAMPLE}")
    return tuple(_workload(document, item, f"{prefix}[{i}]", now) for i, item in enumerate(top))


def cell_of(document: LocatedDocument, prices: str | None = None) -> CellSpec:
    """The document is a mapping with pools, nodes, queues, priority classes, settings and budgets. Pools are priced by
    the catalogue `prices`, a path, or by the one that the document names under `prices`. Raises SpecError.

    A pool may say `nodes: 64` instead of listing them: they are named `<pool>-0001` and so on. With `rack: 8` there
    are eight to a rack, with `rack: r7` all are in that one; likewise region, zone, block and nvlink.
    """
    raw = document.value
    if not isinstance(raw, dict):
        document.fail("", "is not a cell", f"Write it like:\n{CELL_EXAMPLE}")
    nodes = [
        _renamed(document, node, NODE_FORMS, f"nodes[{i}]") if isinstance(node, dict) else node
        for i, node in enumerate(_list(document, raw, "nodes", ""))
    ]
    pools = []
    for i, pool in enumerate(_list(document, raw, "pools", "")):
        if not isinstance(pool, dict):
            document.fail(
                f"pools[{i}]",
                "is not a pool",
                "Write it like: {name: h100, nodes: 4, capacity: {cpu: 96, memory: 1TiB, gpu: 8}}",
            )
        nodes += _pool_nodes(document, pool, f"pools[{i}]")
        pools.append(_pool(document, pool, f"pools[{i}]"))
    queues = [_queue(document, queue, f"queues[{i}]") for i, queue in enumerate(_list(document, raw, "queues", ""))]
    budgets = [
        _renamed(document, budget, BUDGET_FORMS, f"budgets[{i}]") if isinstance(budget, dict) else budget
        for i, budget in enumerate(_list(document, raw, "budgets", ""))
    ]
    lists = (("nodes", nodes), ("pools", pools), ("queues", queues), ("budgets", budgets))
    values = raw | {name: found for name, found in lists if found}
    values.pop("prices", None)
    if isinstance(raw.get("settings"), dict):
        values["settings"] = _settings(document, raw["settings"])
    return _priced(document, _convert(document, values, CellSpec, ""), prices)


def _settings(document: LocatedDocument, raw: dict[str, Any]) -> dict[str, Any]:
    values = _renamed(document, raw, SETTINGS_FORMS, "settings")
    if isinstance(values.get("pressure"), dict):
        values["pressure"] = _renamed(document, values["pressure"], PRESSURE_FORMS, "settings.pressure")
    if isinstance(values.get("health"), dict):
        values["health"] = _renamed(document, values["health"], HEALTH_FORMS, "settings.health")
    if "autoscaling" in values:
        values["autoscaling"] = _autoscaling(document, values["autoscaling"])
    return values


def _autoscaling(document: LocatedDocument, raw: Any) -> Any:
    """A preset by name, or settings, which may begin with `preset`."""
    path = "settings.autoscaling"
    given = dict(raw) if isinstance(raw, dict) else {"preset": raw}
    if "preset" not in given:
        return _renamed(document, given, AUTOSCALING_FORMS, path)
    name = given.pop("preset")
    if not isinstance(name, str) or name not in PRESETS:
        where = _join(path, "preset") if isinstance(raw, dict) else path
        document.fail(where, f"{shown(name)} is not a preset", f"Use one of: {', '.join(PRESETS)}")
    return msgspec.to_builtins(PRESETS[name]) | _renamed(document, given, AUTOSCALING_FORMS, path)


def _priced(document: LocatedDocument, cell: CellSpec, prices: str | None) -> CellSpec:
    """The cell with its pools priced by a catalogue: that of `prices`, a path, or the one that the document names under
    `prices`, relative to it. A pool that names a machine type must have a price, from there or of its own, so that none
    is free by omission. Raises SpecError."""
    beside = document.value.get("prices")
    if beside is not None and not isinstance(beside, str):
        document.fail(
            "prices", f"{shown(beside)} is not a path", "Give the path of a CSV file, as in prices: prices.csv"
        )
    if prices is None and beside is None:
        for i, pool in enumerate(document.value.get("pools") or ()):
            if cell.pools[i].machine_type and not pool.keys() & {"price_usd_hour", "price_microusd_hour"}:
                document.fail(
                    f"pools[{i}].machine_type",
                    "has no price",
                    "Give a price list, `prices: FILE` or --prices FILE, or give the pool a price_usd_hour",
                )
        return cell
    from engine.model.price_catalogue import priced_cell, read_catalogue

    catalogue = read_catalogue(prices if prices is not None else Path(document.name).parent / str(beside))
    with placed(document):
        return priced_cell(cell, catalogue)


@contextmanager
def placed(document: LocatedDocument) -> Iterator[None]:
    """Context in which errors of the engine about the document's specs name their place in the document."""
    try:
        yield
    except SpecError as error:
        found = _OF_ENGINE.match(error.problem)
        if found is None:
            raise
        document.fail(_as_written(document, _in_document(document, found[1])), found[2], error.remedy)


_OF_ENGINE = re.compile(
    r"(?:cell\.)?((?:workload|(?:workloads|pools|nodes|queues|priority_classes|budgets)\[\d+\]|settings)"
    r"(?:[.\[][^ :]*)?): (.*)",
    re.DOTALL,
)
"""A path that begins a message of the engine, and what it says."""


def _in_document(document: LocatedDocument, path: str) -> str:
    """Path in the document of a path of the engine."""
    top = document.value
    if path.startswith("workload"):
        within = "workloads" if isinstance(top, dict) and "workloads" in top else ""
        first, rest = re.fullmatch(r"workload(?:s\[(\d+)\])?(.*)", path, re.DOTALL).groups()  # type: ignore[union-attr]
        several = isinstance(top[within] if within else top, list)
        return f"{within}[{first or 0}]{rest}" if several else f"{within}{rest}".lstrip(".")
    node = re.match(r"nodes\[(\d+)\]", path)
    if node is None:
        return path
    number = int(node[1]) - len(top.get("nodes") or ())
    if number < 0:
        return path
    for i, pool in enumerate(top["pools"]):
        if number < pool.get("nodes", 0):
            return f"pools[{i}]{path[node.end() :]}"
        number -= pool.get("nodes", 0)
    return path


def _as_written(document: LocatedDocument, path: str) -> str:
    """A path of raw fields as the document has it: `request.cpu` for `groups[0].request.cpu_milli`."""
    there: Any = document.value
    written, only_group = "", False
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if only_group:
            only_group = False
        elif index:
            there = there[int(index)] if isinstance(there, list) and int(index) < len(there) else None
            written += f"[{index}]"
        elif name == "groups" and isinstance(there, dict) and name not in there:
            only_group = True
        else:
            if isinstance(there, dict) and name not in there:
                name = HUMAN.get(name, name)
            there = there.get(name) if isinstance(there, dict) else None
            written = _join(written, name)
    return written


def _workload(document: LocatedDocument, raw: Any, path: str, now: Now) -> WorkloadSpec:
    if not isinstance(raw, dict):
        document.fail(path, "is not a workload", f"Write it like:\n{WORKLOAD_EXAMPLE}")
    values = _renamed(document, raw, workload_forms(now), path)
    if isinstance(values.get("service"), dict):
        values["service"] = _renamed(document, values["service"], SERVICE_FORMS, _join(path, "service"))
    if isinstance(values.get("run"), dict):
        values["run"] = _renamed(document, values["run"], RUN_FORMS, _join(path, "run"))
    short = {name: values.pop(name) for name in ONE_GROUP if name in values}
    if short and "groups" in values:
        both = ", ".join(f"'{name}'" for name in short)
        document.fail(path, f"has both 'groups' and {both}", f"Move {both} into each of the groups")
    if short:
        values["groups"] = [_group(document, short, path)]
    elif "groups" in values:
        groups = enumerate(_list(document, values, "groups", path))
        values["groups"] = [
            _group(document, group, f"{path}.groups[{i}]") if isinstance(group, dict) else group for i, group in groups
        ]
    spec: WorkloadSpec = _convert(document, values, WorkloadSpec, path)
    try:
        check_workload(spec, "workload")
    except SpecError as error:
        problem = error.problem.removeprefix(f"{error.where}: ")
        wrong = path + error.where.removeprefix("workload")
        document.fail(_as_written(document, wrong.lstrip(".")), problem, error.remedy)
    return spec


def _group(document: LocatedDocument, raw: dict[str, Any], path: str) -> dict[str, Any]:
    values = _renamed(document, raw, GROUP_FORMS, path)
    if "mig" in values:
        values.setdefault("request", {})
    if "on_demand" in values:
        try:
            values["on_demand"] = tasks_of(values["on_demand"], values.get("count", 1))
        except ValueError as error:
            document.fail(_join(path, "on_demand"), str(error), "")
    for field in ("request", "limit"):
        if isinstance(values.get(field), dict):
            values[field] = _renamed(document, values[field], RESOURCE_FORMS, _join(path, field))
    return values


def _pool(document: LocatedDocument, raw: dict[str, Any], path: str) -> dict[str, Any]:
    values = _renamed(document, raw, POOL_FORMS, path)
    for name in POOL_OF_NODES:
        values.pop(name, None)
    own_forms: dict[str, Forms] = {
        "capacity": RESOURCE_FORMS, "reserved": RESOURCE_FORMS, "overcommit": RATIO_FORMS, "scaling": SCALING_FORMS,
    }  # fmt: skip
    for field, forms in own_forms.items():
        if isinstance(values.get(field), dict):
            values[field] = _renamed(document, values[field], forms, f"{path}.{field}")
    model = values.get("gpu_model")
    if isinstance(model, str) and model and not values.get("gpu_memory_mib") and not memory_by_name(model):
        document.fail(
            f"{path}.gpu_model",
            f"GPU model {shown(model)} is not known{meant(model, MEMORY_MIB)}",
            "Use a known model, or give the device memory, as in gpu_memory: 80GiB",
        )
    return values


_SHORT = {"region": "region", "zone": "z", "block": "b", "rack": "r", "nvlink": "n"}
"""In names of places that are counted."""


def _pool_nodes(document: LocatedDocument, pool: dict[str, Any], path: str) -> Iterator[dict[str, Any]]:
    """Nodes of a pool that gives their number instead of listing them."""
    count = pool.get("nodes", 0)
    if type(count) is not int or not 0 <= count <= MAX_POOL_NODES:
        document.fail(f"{path}.nodes", f"{shown(count)} is not a number of nodes", "Give a whole number")
    name = str(pool.get("name", ""))
    places = {level: pool[level] for level in POOL_OF_NODES[1:] if level in pool}
    for level, each in places.items():
        if not isinstance(each, str) and (type(each) is not int or not 0 <= each <= MAX_POOL_NODES):
            document.fail(
                f"{path}.{level}",
                f"{shown(each)} is not a number of nodes",
                f"Give the number for each {level}, or its name",
            )
    counted = [(level, each) for level, each in places.items() if type(each) is int and each]
    for (wider, many), (level, each) in pairwise(counted):
        if many % each:
            document.fail(
                f"{path}.{level}",
                f"a {wider} of {many} nodes cannot be divided into {level}s of {each}",
                f"A {level} is in one {wider}: give a number that divides {many}",
            )
    for n in range(count):
        node = {"id": f"{name}-{n + 1:04d}", "pool": name}
        for level, each in places.items():
            if each:
                node[level] = each if isinstance(each, str) else f"{name}-{_SHORT[level]}{n // each + 1:03d}"
        yield node


def _queue(document: LocatedDocument, raw: Any, path: str) -> Any:
    """A queue with raw fields; anything but a mapping is left to the conversion to refuse."""
    if not isinstance(raw, dict):
        return raw
    values = _quota(document, _renamed(document, raw, QUEUE_FORMS, path), path)
    if isinstance(values.get("flavors"), list):
        flavors = enumerate(values["flavors"])
        values["flavors"] = [
            _quota(document, flavor, f"{path}.flavors[{j}]") if isinstance(flavor, dict) else flavor
            for j, flavor in flavors
        ]
    if isinstance(values.get("burst"), dict):
        burst = _renamed(document, values["burst"], BURST_FORMS, f"{path}.burst")
        if isinstance(burst.get("limit"), dict):
            burst["limit"] = _renamed(document, burst["limit"], RESOURCE_FORMS, f"{path}.burst.limit")
        values["burst"] = burst
    return values


def _quota(document: LocatedDocument, raw: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy with the quantities of a queue, or of a queue in one pool, as raw fields."""
    values = dict(raw)
    for field in ("nominal", "borrowing_limit", "lending_limit"):
        if isinstance(values.get(field), dict):
            values[field] = _renamed(document, values[field], RESOURCE_FORMS, f"{path}.{field}")
    return values


def _renamed(document: LocatedDocument, raw: dict[str, Any], forms: Forms, path: str) -> dict[str, Any]:
    """A copy of `raw` with human forms turned into raw fields."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        name, convert = forms.get(key, (key, None))
        if name in values or (name != key and name in raw):
            document.fail(_join(path, key), f"'{key}' and '{name}' mean the same", "Keep one of them")
        try:
            values[name] = convert(value) if convert else value
        except ValueError as error:
            document.fail(_join(path, key), str(error), "")
    return values


def _convert(document: LocatedDocument, values: Any, kind: type, path: str) -> Any:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        wrong = as_written(misfit(str(error)), kind)
        at = _join(wrong.path, wrong.field) if wrong.field else wrong.path
        document.fail(_as_written(document, (path + at).lstrip(".")), wrong.problem, wrong.remedy)


def _list(document: LocatedDocument, raw: dict[str, Any], key: str, path: str) -> list[Any]:
    value = raw.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        document.fail(_join(path, key), "is not a list", "Start each entry with '- '")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
