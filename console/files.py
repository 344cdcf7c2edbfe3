"""Workload and cell files: YAML or JSON, written by people, turned into specs.

Quantities take human forms (`cpu: 4`, `memory: 64GiB`, `gpu: 8`, `estimate: 6h`) as well as the raw fields of
`engine.model`. YAML is read event by event, without aliases, tags or a second meaning for `no` and `1:30`; every error
names file, line and column.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import yaml

from engine.errors import SpecError
from engine.model import CellSpec, WorkloadSpec, check_workload

MAX_FILE_BYTES = 64 * 2**20
MAX_DEPTH = 50
MAX_POOL_NODES = 1_000_000

WORKLOAD_EXAMPLE = """\
workloads:
  - id: train-7b
    queue: research
    estimate: 6h
    tasks: 8
    request: {cpu: 32, memory: 256GiB, gpu: 8}
"""

_MEMORY_UNITS = {
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_PLAIN_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+|[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?[eE][-+]?[0-9]+")
_PLAIN_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|min|[smhdw])")

Marks = dict[int, dict[Any, tuple[int, int]]]
"""Line and column of each entry, by the identity of the mapping or list that holds it."""


class Document:
    """What a file says, as plain values, and where it says it."""

    def __init__(self, name: str, value: Any, marks: Marks) -> None:
        self.name = name
        self.value = value
        self.marks = marks

    def place(self, path: str) -> str:
        """`file:line:column` of a path such as `workloads[3].request`, or of the nearest thing around it."""
        value, found = self.value, None
        for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
            key: Any = int(index) if index else name
            entries = self.marks.get(id(value), {})
            if key not in entries:
                break
            found = entries[key]
            # What has been turned into something else is no longer there; its place is.
            value = value.get(key) if isinstance(value, dict) else value[key]
        return f"{self.name}:{found[0]}:{found[1]}" if found else self.name


def read_workloads(path: str) -> tuple[WorkloadSpec, ...]:
    """Workloads of a YAML or JSON file, or of standard input for `-`.

    The file holds one workload, a list, or a mapping with the one key `workloads`. Raises SpecError.
    """
    document = read_document(path)
    top, prefix = document.value, ""
    if isinstance(top, dict) and "workloads" in top:
        for key in top.keys() - {"workloads"}:
            _fail(document, key, f"unknown key '{key}' beside 'workloads'", "Put it inside a workload")
        top, prefix = top["workloads"], "workloads"
    if isinstance(top, dict):
        return (_workload(document, top, prefix),)
    if not isinstance(top, list) or not top:
        _fail(document, prefix, "holds no workload", f"Write for example:\n{WORKLOAD_EXAMPLE}")
    return tuple(_workload(document, item, f"{prefix}[{i}]") for i, item in enumerate(top))


def read_cell(path: str) -> CellSpec:
    """The cell that a YAML or JSON file describes: pools, nodes, queues, priority classes. Raises SpecError.

    A pool may say `nodes: 64` and `rack: 8` instead of listing nodes: they are named `<pool>-0001` and so on.
    """
    document = read_document(path)
    raw = document.value
    if not isinstance(raw, dict):
        _fail(document, "", "is not a cell", "Write a mapping with pools, queues and priority_classes")
    nodes = list(raw.get("nodes") or [])
    for i, pool in enumerate(_list(document, raw, "pools")):
        nodes.extend(_pool_nodes(document, pool, f"pools[{i}]"))
        _pool_quantities(document, pool, f"pools[{i}]")
    for i, queue in enumerate(_list(document, raw, "queues")):
        if isinstance(queue, dict) and isinstance(queue.get("nominal"), dict):
            queue["nominal"] = _resources(document, queue["nominal"], f"queues[{i}].nominal")
    if nodes:
        raw["nodes"] = nodes
    cell: CellSpec = _convert(document, raw, CellSpec, "")
    return cell


def workload_from(values: dict[str, Any], name: str) -> WorkloadSpec:
    """One workload from flags, in the same forms as in a file. `name` says where they came from, for messages."""
    return _workload(Document(name, values, {}), values, "")


def read_document(path: str) -> Document:
    """A YAML or JSON file as plain values. Raises SpecError naming file, line and column."""
    name = "standard input" if path == "-" else path
    text = _text(path, name)
    try:
        value, marks = _json(text, name) if name.endswith(".json") else _yaml(text, name)
    except RecursionError:
        raise SpecError(name, f"is nested more than {MAX_DEPTH} levels deep", "Flatten it") from None
    return Document(name, value, marks)


# --- quantities ----------------------------------------------------------------------------------------------------


def cpu_milli(value: Any) -> int:
    """Milli-CPU of `4`, `0.5`, `"4"` or `"500m"`. Raises ValueError saying what was expected."""
    if isinstance(value, str) and value.endswith("m"):
        return _whole(_number(value[:-1], "cores such as 4, 0.5 or 500m"), "milli-CPU")
    return _whole(_number(value, "cores such as 4, 0.5 or 500m") * 1000, "milli-CPU")


def gpu_milli(value: Any) -> int:
    """Milli-GPU of `8` or `0.5`. Raises ValueError saying what was expected."""
    return _whole(_number(value, "devices such as 8, or a share such as 0.5") * 1000, "thousandths of a device")


def memory_mib(value: Any) -> int:
    """MiB of `64GiB`, `512MiB`, `1.5TiB`. Raises ValueError saying what was expected."""
    expected = "a size with its unit such as 64GiB or 512MiB"
    match = _NUMBER_AND_UNIT.fullmatch(value) if isinstance(value, str) else None
    factor = _MEMORY_UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{_shown(value)} is not {expected}")
    return _whole(Decimal(match[1]) * factor / 2**20, "MiB")


def duration_ms(value: Any) -> int:
    """Milliseconds of `6h`, `90m`, `1h30m`, `45s`. Raises ValueError saying what was expected."""
    expected = "a duration with its unit such as 6h, 90m or 1h30m"
    text = value.replace(" ", "") if isinstance(value, str) else ""
    parts = _DURATION_PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{_shown(value)} is not {expected}")
    return _whole(sum(Decimal(number) * _DURATION_UNITS[unit] for number, unit in parts), "milliseconds")


def money_microusd(value: Any) -> int:
    """Micro-USD of an amount in USD such as `12.5`. Raises ValueError saying what was expected."""
    return _whole(_number(value, "an amount in USD such as 12.5") * 1_000_000, "micro-USD")


_RESOURCE_FORMS: dict[str, tuple[str, Callable[[Any], int]]] = {
    "cpu": ("cpu_milli", cpu_milli),
    "memory": ("memory_mib", memory_mib),
    "gpu": ("gpu_milli", gpu_milli),
    "disk": ("disk_mib", memory_mib),
}
_WORKLOAD_FORMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "estimate": ("estimate_ms", duration_ms),
    "checkpoint_interval": ("checkpoint_interval_ms", duration_ms),
    "simulated_runtime": ("simulated_runtime_ms", duration_ms),
    "priority": ("priority_class", lambda value: value),
}
_GROUP_SHORTHAND = {"tasks": "count", "request": "request", "gpu_models": "gpu_models", "pools": "pools"}


def _number(value: Any, expected: str) -> Decimal:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = Decimal(str(value).strip())
        except InvalidOperation:
            number = Decimal("NaN")
        if number.is_finite():
            return number
    raise ValueError(f"{_shown(value)} is not {expected}")


def _whole(number: Decimal | int, unit: str) -> int:
    if not -(2**63) < number < 2**63:
        raise ValueError("is too large")
    if number != int(number):
        raise ValueError(f"is not a whole number of {unit}")
    return int(number)


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else text[:39] + "…"


# --- from plain values to specs ------------------------------------------------------------------------------------


def _workload(document: Document, raw: Any, path: str) -> WorkloadSpec:
    if not isinstance(raw, dict):
        _fail(document, path, "is not a workload", f"Write for example:\n{WORKLOAD_EXAMPLE}")
    values = _renamed(document, raw, _WORKLOAD_FORMS, path)
    short = {new: values.pop(old) for old, new in _GROUP_SHORTHAND.items() if old in values}
    if short:
        if "groups" in values:
            _fail(document, path, "has both 'groups' and one of tasks, request, gpu_models, pools", "Use one form")
        values["groups"] = [short]
    for i, group in enumerate(_list(document, values, "groups")):
        if isinstance(group, dict) and isinstance(group.get("request"), dict):
            where = f"{path}.request" if short else f"{path}.groups[{i}].request"
            group["request"] = _resources(document, group["request"], where)
    spec: WorkloadSpec = _convert(document, values, WorkloadSpec, path)
    try:
        check_workload(spec, "workload")
    except SpecError as error:
        problem = error.problem.removeprefix(f"{error.where}: ")
        _fail(document, path + error.where.removeprefix("workload"), problem, error.remedy)
    return spec


def _pool_nodes(document: Document, pool: Any, path: str) -> Iterator[dict[str, Any]]:
    """Takes `nodes` and `rack` out of a pool and names that many nodes."""
    if not isinstance(pool, dict):
        _fail(document, path, "is not a pool", "Write a mapping with name and capacity")
    count, per_rack = pool.pop("nodes", 0), pool.pop("rack", 0)
    for key, value in (("nodes", count), ("rack", per_rack)):
        if type(value) is not int or not 0 <= value <= MAX_POOL_NODES:
            _fail(document, f"{path}.{key}", f"{_shown(value)} is not a number of nodes", "Give a whole number")
    name = str(pool.get("name", ""))
    for n in range(1, count + 1):
        node = {"id": f"{name}-{n:04d}", "pool": name}
        yield node | {"rack": f"{name}-r{(n - 1) // per_rack + 1:03d}"} if per_rack else node


def _pool_quantities(document: Document, pool: dict[str, Any], path: str) -> None:
    if isinstance(pool.get("capacity"), dict):
        pool["capacity"] = _resources(document, pool["capacity"], f"{path}.capacity")
    pool.update(_renamed(document, pool, {"price_usd_hour": ("price_microusd_hour", money_microusd)}, path))
    pool.pop("price_usd_hour", None)


def _resources(document: Document, raw: dict[str, Any], path: str) -> dict[str, Any]:
    return _renamed(document, raw, _RESOURCE_FORMS, path)


def _renamed(
    document: Document, raw: dict[str, Any], forms: dict[str, tuple[str, Callable[[Any], Any]]], path: str
) -> dict[str, Any]:
    """A copy of `raw` with human forms turned into raw fields."""
    values: dict[str, Any] = {}
    for key, value in raw.items():
        name, convert = forms.get(key, (key, None))
        if name in values or (name != key and name in raw):
            _fail(document, _join(path, key), f"'{key}' and '{name}' say the same thing", "Keep one of them")
        try:
            values[name] = convert(value) if convert else value
        except ValueError as error:
            _fail(document, _join(path, key), str(error), "")
    return values


def _convert(document: Document, values: Any, kind: type, path: str) -> Any:
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        where = path + at.rstrip("`")
        _fail(document, where, problem, "")


def _list(document: Document, raw: dict[str, Any], key: str) -> list[Any]:
    value = raw.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        _fail(document, key, f"'{key}' is not a list", "Start each entry with '- '")
    return value


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _fail(document: Document, path: str, problem: str, remedy: str) -> NoReturn:
    place = document.place(path)
    path = path.lstrip(".")
    raise SpecError(f"{place}: {path}" if path else place, problem, remedy) from None


# --- text to plain values ------------------------------------------------------------------------------------------


def _text(path: str, name: str) -> str:
    try:
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if path == "-" else _file_bytes(Path(path))
        if len(raw) > MAX_FILE_BYTES:
            raise SpecError(name, f"is larger than {MAX_FILE_BYTES // 2**20} MiB", "Split it")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(name, f"cannot be read ({error.strerror})", "Check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise SpecError(name, f"byte {error.start} is not UTF-8 text", "Save the file as UTF-8") from None


def _file_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _json(text: str, name: str) -> tuple[Any, Marks]:
    import json

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            twice = next(key for key, _ in items if [k for k, _ in items].count(key) > 1)
            raise SpecError(name, f"key {_shown(twice)} is given twice in one object", "Keep one of them")
        return found

    try:
        return json.loads(text, object_pairs_hook=pairs), {}
    except json.JSONDecodeError as error:
        where = f"{name}:{error.lineno}:{error.colno}"
        raise SpecError(where, f"is not JSON ({error.msg})", "Mend it there") from None


def _yaml(text: str, name: str) -> tuple[Any, Marks]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    marks: Marks = {}
    documents: list[Any] = []
    try:
        events = (_plain_event(event, name) for event in yaml.parse(text, Loader=loader))
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if documents:
                    _refuse(event, name, "a second document starts", "Keep one document in a file")
                documents.append(_value(next(events), events, marks, name, 0))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise SpecError(where, f"is not YAML ({error.problem})", "Mend it there") from None
    except yaml.YAMLError as error:
        raise SpecError(name, f"is not YAML ({str(error).splitlines()[0]})", "Mend it") from None
    return (documents[0] if documents else None), marks


def _plain_event(event: Any, name: str) -> Any:
    """The event, unless it is an alias, an anchor or a tag: they let a small file mean a huge or foreign one."""
    if isinstance(event, yaml.AliasEvent):
        _refuse(event, name, f"alias '*{event.anchor}' is not allowed", "Write the value out")
    if getattr(event, "anchor", None) is not None:
        _refuse(event, name, f"anchor '&{event.anchor}' is not allowed", "Remove it")
    if getattr(event, "tag", None) is not None:
        _refuse(event, name, f"tag '{event.tag}' is not allowed", "Remove it")
    return event


def _value(event: Any, events: Iterator[Any], marks: Marks, name: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        _refuse(event, name, f"is nested more than {MAX_DEPTH} levels deep", "Flatten it")
    if isinstance(event, yaml.MappingStartEvent):
        return _mapping(events, marks, name, depth)
    if isinstance(event, yaml.SequenceStartEvent):
        return _sequence(events, marks, name, depth)
    return _scalar(event) if event.implicit[0] else event.value


def _mapping(events: Iterator[Any], marks: Marks, name: str, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    places = marks[id(found)] = {}
    for event in events:
        if isinstance(event, yaml.MappingEndEvent):
            break
        if not isinstance(event, yaml.ScalarEvent):
            _refuse(event, name, "a key must be plain text", "Write 'key: value'")
        key = event.value
        if key in found:
            _refuse(event, name, f"key {_shown(key)} is given twice", "Keep one of them")
        places[key] = (event.start_mark.line + 1, event.start_mark.column + 1)
        found[key] = _value(next(events), events, marks, name, depth + 1)
    return found


def _sequence(events: Iterator[Any], marks: Marks, name: str, depth: int) -> list[Any]:
    found: list[Any] = []
    places = marks[id(found)] = {}
    for event in events:
        if isinstance(event, yaml.SequenceEndEvent):
            break
        places[len(found)] = (event.start_mark.line + 1, event.start_mark.column + 1)
        found.append(_value(event, events, marks, name, depth + 1))
    return found


def _scalar(event: Any) -> Any:
    """A plain scalar as null, true, false, a decimal number or text; nothing else has a second meaning."""
    text = event.value
    if text in _PLAIN_WORDS:
        return _PLAIN_WORDS[text]
    if _PLAIN_INT.fullmatch(text) and len(text) < 30:
        return int(text)
    if _PLAIN_FLOAT.fullmatch(text):
        return float(text)
    return text


def _refuse(event: Any, name: str, problem: str, remedy: str) -> NoReturn:
    mark = event.start_mark
    raise SpecError(f"{name}:{mark.line + 1}:{mark.column + 1}", problem, remedy)
