"""Workload and cell files, written by people, turned into specs.

Quantities and times take human forms (`cpu: 4`, `memory: 64GiB`, `gpu: 8`, `estimate: 6h`, `deadline: +2d`) as well as
the raw fields of `engine.model`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from console.document import Document, read_document
from console.moments import Now, moment_ms
from engine.errors import SpecError
from engine.measures import cpu_milli, duration_ms, gpu_milli, memory_mib, money_microusd, shown
from engine.model import PROFILES, CellSpec, WorkloadSpec, check_workload

MAX_POOL_NODES = 1_000_000
WORKLOAD_EXAMPLE = """\
workloads:
  - id: train-7b
    queue: research
    estimate: 6h
    tasks: 8
    request: {cpu: 32, memory: 256GiB, gpu: 8}
"""


def read_workloads(path: str, now: Now) -> tuple[WorkloadSpec, ...]:
    """Workloads of a YAML or JSON file, or of standard input for `-`. `now` gives the cell's clock.

    The file holds one workload, a list, or a mapping with the one key `workloads`. Raises SpecError.
    """
    document = read_document(path)
    top, prefix = document.value, ""
    if isinstance(top, dict) and "workloads" in top:
        for key in top.keys() - {"workloads"}:
            document.fail(key, f"unknown key '{key}' beside 'workloads'", "Put it inside a workload")
        top, prefix = top["workloads"], "workloads"
    if isinstance(top, dict):
        return (_workload(document, top, prefix, now),)
    if not isinstance(top, list) or not top:
        document.fail(prefix, "holds no workload", f"Write for example:\n{WORKLOAD_EXAMPLE}")
    return tuple(_workload(document, item, f"{prefix}[{i}]", now) for i, item in enumerate(top))


def read_cell(path: str) -> CellSpec:
    """The cell that a YAML or JSON file describes: pools, nodes, queues, priority classes. Raises SpecError.

    A pool may say `nodes: 64` and `rack: 8` instead of listing nodes: they are named `<pool>-0001` and so on.
    """
    document = read_document(path)
    raw = document.value
    if not isinstance(raw, dict):
        document.fail("", "is not a cell", "Write a mapping with pools, queues and priority_classes")
    nodes = [
        _renamed(document, node, {"taints": ("taints", _taints)}, f"nodes[{i}]") if isinstance(node, dict) else node
        for i, node in enumerate(_list(document, raw, "nodes"))
    ]
    for i, pool in enumerate(_list(document, raw, "pools")):
        nodes.extend(_pool_nodes(document, pool, f"pools[{i}]"))
        _pool_quantities(document, pool, f"pools[{i}]")
    if "queues" in raw:
        queues = enumerate(_list(document, raw, "queues"))
        raw["queues"] = [_queue(document, queue, f"queues[{i}]") for i, queue in queues]
    if isinstance(raw.get("settings"), dict):
        raw["settings"] = _renamed(document, raw["settings"], _SETTINGS_FORMS, "settings")
    if nodes:
        raw["nodes"] = nodes
    cell: CellSpec = _convert(document, raw, CellSpec, "")
    return cell


def workload_from(values: dict[str, Any], name: str, now: Now) -> WorkloadSpec:
    """One workload from flags, in the same forms as in a file. `name` says where they came from, for messages."""
    return _workload(Document(name, values, {}), values, "", now)


def _profile(value: Any) -> Any:
    """Weights of scores by the name of a profile; anything else is left to the conversion."""
    if not isinstance(value, str):
        return value
    if value not in PROFILES:
        raise ValueError(f"there is no profile {shown(value)}; use {', '.join(PROFILES)}, or weights by score")
    return PROFILES[value]


Forms = dict[str, tuple[str, Callable[[Any], Any]]]
"""Key as people write it -> raw field, and how its value becomes the raw one."""
RESOURCE_FORMS: Forms = {
    "cpu": ("cpu_milli", cpu_milli),
    "memory": ("memory_mib", memory_mib),
    "gpu": ("gpu_milli", gpu_milli),
    "disk": ("disk_mib", memory_mib),
}
_QUEUE_FORMS: Forms = {
    "min_runtime": ("min_runtime_ms", duration_ms),
    "disruption_window": ("disruption_window_ms", duration_ms),
    "placement": ("placement", _profile),
}
_BURST_FORMS: Forms = {"window": ("window_ms", duration_ms), "cooldown": ("cooldown_ms", duration_ms)}
_SETTINGS_FORMS: Forms = {
    "fair_half_life": ("fair_half_life_ms", duration_ms),
    "starve_after": ("starve_after_ms", duration_ms),
    "preempt_after": ("preempt_after_ms", duration_ms),
    "try_timeout": ("try_timeout_ms", duration_ms),
}
_GROUP_SHORTHAND = {
    "tasks": "count", "min_tasks": "min_count", "request": "request", "gpu_models": "gpu_models", "pools": "pools",
    "gpu_memory": "gpu_memory", "gpu_memory_mib": "gpu_memory_mib", "node_labels": "node_labels",
    "avoid_labels": "avoid_labels", "tolerations": "tolerations", "spread": "spread",
}  # fmt: skip
_RANGE = re.compile(r"(\d+)(?:-(\d+))?(?::(\d+))?(?:%(\d+))?")


def _workload_forms(now: Now) -> Forms:
    def moment(value: Any) -> int:
        return moment_ms(value, now)

    return {
        "estimate": ("estimate_ms", duration_ms),
        "max_runtime": ("max_runtime_ms", duration_ms),
        "checkpoint_interval": ("checkpoint_interval_ms", duration_ms),
        "checkpoint_cost": ("checkpoint_cost_ms", duration_ms),
        "backoff": ("backoff_ms", duration_ms),
        "simulated_runtime": ("simulated_runtime_ms", duration_ms),
        "not_before": ("not_before_ms", moment),
        "deadline": ("deadline_ms", moment),
        "after": ("after", _dependencies),
        "array": ("array", _array),
        "priority": ("priority_class", lambda value: value),
    }


def _label_values(value: Any) -> Any:
    """`{zone: a}` means `{zone: [a]}`."""
    return {k: v if isinstance(v, list) else [v] for k, v in value.items()} if isinstance(value, dict) else value


def _tolerations(value: Any) -> Any:
    """`dedicated` and `dedicated=db`, one or a list, besides raw tolerations."""
    items = value if isinstance(value, list) else [value]
    return [
        dict(zip(("key", "value"), item.split("=", 1), strict=False)) if isinstance(item, str) else item
        for item in items
    ]


def _taints(value: Any) -> Any:
    """`dedicated=db` and `old:PreferNoSchedule`, one or a list, besides raw taints."""
    found: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            name, colon, effect = item.partition(":")
            taint = dict(zip(("key", "value"), name.split("=", 1), strict=False))
            found.append(taint | {"effect": effect} if colon else taint)
        else:
            found.append(item)
    return found


_NODE_FORMS: Forms = {
    "gpu_memory": ("gpu_memory_mib", memory_mib),
    "node_labels": ("node_labels", _label_values),
    "avoid_labels": ("avoid_labels", _label_values),
    "tolerations": ("tolerations", _tolerations),
}
_POOL_FORMS: Forms = {
    "price_usd_hour": ("price_microusd_hour", money_microusd),
    "gpu_memory": ("gpu_memory_mib", memory_mib),
    "taints": ("taints", _taints),
    "placement": ("placement", _profile),
}


def _dependencies(value: Any) -> list[Any]:
    """`prep`, or a list of `prep`, `prep:failed` and raw dependencies."""
    found: list[Any] = []
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            name, colon, on = item.partition(":")
            found.append({"id": name, "on": on} if colon else {"id": name})
        else:
            found.append(item)
    return found


def _array(value: Any) -> Any:
    """`0-99`, `1-9:2` in steps, `0-99%10` ten at once, or a raw array."""
    if not isinstance(value, str | int):
        return value
    match = _RANGE.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{shown(value)} is not a range such as 0-99, 1-9:2 or 0-99%10")
    first, last, step, at_once = match.groups()
    return {"first": int(first), "last": int(last or first), "step": int(step or 1), "max_running": int(at_once or 0)}


def _workload(document: Document, raw: Any, path: str, now: Now) -> WorkloadSpec:
    if not isinstance(raw, dict):
        document.fail(path, "is not a workload", f"Write for example:\n{WORKLOAD_EXAMPLE}")
    values = _renamed(document, raw, _workload_forms(now), path)
    short = {new: values.pop(old) for old, new in _GROUP_SHORTHAND.items() if old in values}
    if short:
        if "groups" in values:
            document.fail(path, f"has both 'groups' and one of {', '.join(_GROUP_SHORTHAND)}", "Use one form")
        values["groups"] = [short]
    for i, group in enumerate(_list(document, values, "groups")):
        if isinstance(group, dict):
            where = path if short else f"{path}.groups[{i}]"
            if isinstance(group.get("request"), dict):
                group["request"] = _resources(document, group["request"], _join(where, "request"))
            values["groups"][i] = _renamed(document, group, _NODE_FORMS, where)
    spec: WorkloadSpec = _convert(document, values, WorkloadSpec, path)
    try:
        check_workload(spec, "workload")
    except SpecError as error:
        problem = error.problem.removeprefix(f"{error.where}: ")
        document.fail(path + error.where.removeprefix("workload"), problem, error.remedy)
    return spec


def _queue(document: Document, raw: Any, path: str) -> Any:
    """A queue with raw fields; what is not a mapping is left to the conversion to refuse."""
    if not isinstance(raw, dict):
        return raw
    values = _quota(document, _renamed(document, raw, _QUEUE_FORMS, path), path)
    if isinstance(values.get("flavors"), list):
        flavors = enumerate(values["flavors"])
        values["flavors"] = [
            _quota(document, flavor, f"{path}.flavors[{j}]") if isinstance(flavor, dict) else flavor
            for j, flavor in flavors
        ]
    if isinstance(values.get("burst"), dict):
        burst = _renamed(document, values["burst"], _BURST_FORMS, f"{path}.burst")
        if isinstance(burst.get("limit"), dict):
            burst["limit"] = _resources(document, burst["limit"], f"{path}.burst.limit")
        values["burst"] = burst
    return values


def _quota(document: Document, raw: dict[str, Any], path: str) -> dict[str, Any]:
    """A copy with the quantities of a queue, or of a queue in one pool, as raw fields."""
    values = dict(raw)
    for field in ("nominal", "borrowing_limit", "lending_limit"):
        if isinstance(values.get(field), dict):
            values[field] = _resources(document, values[field], f"{path}.{field}")
    return values


def _pool_nodes(document: Document, pool: Any, path: str) -> Iterator[dict[str, Any]]:
    """Takes `nodes` and `rack` out of a pool and names that many nodes."""
    if not isinstance(pool, dict):
        document.fail(path, "is not a pool", "Write a mapping with name and capacity")
    count, per_rack = pool.pop("nodes", 0), pool.pop("rack", 0)
    for key, value in (("nodes", count), ("rack", per_rack)):
        if type(value) is not int or not 0 <= value <= MAX_POOL_NODES:
            document.fail(f"{path}.{key}", f"{shown(value)} is not a number of nodes", "Give a whole number")
    name = str(pool.get("name", ""))
    for n in range(1, count + 1):
        node = {"id": f"{name}-{n:04d}", "pool": name}
        yield node | {"rack": f"{name}-r{(n - 1) // per_rack + 1:03d}"} if per_rack else node


def _pool_quantities(document: Document, pool: dict[str, Any], path: str) -> None:
    if isinstance(pool.get("capacity"), dict):
        pool["capacity"] = _resources(document, pool["capacity"], f"{path}.capacity")
    values = _renamed(document, pool, _POOL_FORMS, path)
    pool.clear()
    pool.update(values)


def _resources(document: Document, raw: dict[str, Any], path: str) -> dict[str, Any]:
    return _renamed(document, raw, RESOURCE_FORMS, path)


def _renamed(document: Document, raw: dict[str, Any], forms: Forms, path: str) -> dict[str, Any]:
    """A copy of `raw` with human forms turned into raw fields."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        name, convert = forms.get(key, (key, None))
        if name in values or (name != key and name in raw):
            document.fail(_join(path, key), f"'{key}' and '{name}' say the same thing", "Keep one of them")
        try:
            values[name] = convert(value) if convert else value
        except ValueError as error:
            document.fail(_join(path, key), str(error), "")
    return values


def _convert(document: Document, values: Any, kind: type, path: str) -> Any:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        where = path + at.rstrip("`")
        document.fail(where, problem, "")


def _list(document: Document, raw: dict[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        document.fail(key, f"'{key}' is not a list", "Start each entry with '- '")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
