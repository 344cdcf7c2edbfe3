"""YAML and JSON files as plain values, with the place of each value, so that errors name file, line and column.

YAML is read event by event: no aliases, anchors or tags, no duplicate keys, no second meaning for `no` and `1:30`, and
a depth that cannot exhaust the stack. JSON is read by the standard library; its values have no places.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml

from engine.model.errors import SpecError
from engine.model.quantities import shown
from runbooks.untrusted.strict_formats import yaml_fault

MAX_FILE_BYTES = 64 * 2**20
MAX_DEPTH = 50

_PLAIN_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_PLAIN_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)\.[0-9]+|[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?[eE][-+]?[0-9]+")
_PLAIN_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}

_JSON_FAULTS = (
    ("Expecting value", "a value is missing", 'Give one, such as 8, "text", [] or {}, and put text in double quotes'),
    ("Expecting property name", "a name in double quotes is expected", 'Write "name": value, and no comma before }'),
    ("Expecting ',' delimiter", "a comma or a closing bracket is missing", "Add it before this character"),
    ("Expecting ':' delimiter", "a name has no value", 'Write "name": value'),
    ("Unterminated string", "a quote is not closed", "Close the quote"),
    ("Invalid control character", "a text goes over the end of its line", "Close the quote, or write the end as \\n"),
    ("Invalid \\", "a \\ begins no escape", "Write it as \\\\"),
    ("Illegal trailing comma", "there is a comma before a closing bracket", "Remove the comma"),
    ("Extra data", "there is more after the value", "Keep one value per file"),
)  # fmt: skip
"""How the parser begins to say what it could not read, and (problem, remedy) in words for who wrote the file."""

Marks = dict[int, dict[Any, tuple[int, int]]]
"""Line and column of each entry, by the identity of the mapping or list that holds it."""


class LocatedDocument:
    """Content of a file as plain values, with the line and column of each."""

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

    def fail(self, path: str, problem: str, remedy: str = "") -> NoReturn:
        """Raises SpecError about the value at `path`."""
        place = self.place(path)
        path = path.lstrip(".")
        raise SpecError(f"{place}: {path}" if path else place, problem, remedy) from None


class TypedDocument(LocatedDocument):
    """Values that were typed as flags: the place of each is its flag."""

    def __init__(self, value: Any, flag_of: Callable[[str], str]) -> None:
        super().__init__("flags", value, {})
        self._flag_of = flag_of

    def fail(self, path: str, problem: str, remedy: str = "") -> NoReturn:
        raise SpecError(self._flag_of(path), problem, remedy) from None


def read_document(path: str) -> LocatedDocument:
    """A YAML or JSON file as plain values. Raises SpecError naming file, line and column."""
    name = "standard input" if path == "-" else path
    text = _text(path, name)
    try:
        value, marks = _json(text, name) if name.endswith(".json") else _yaml(text, name)
    except RecursionError:
        raise SpecError(name, f"is nested more than {MAX_DEPTH} levels deep", "Flatten it") from None
    return LocatedDocument(name, value, marks)


def _text(path: str, name: str) -> str:
    try:
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if path == "-" else _file_bytes(Path(path))
        if len(raw) > MAX_FILE_BYTES:
            raise SpecError(name, f"is larger than {MAX_FILE_BYTES // 2**20} MiB", "Split it into smaller files")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise SpecError(name, f"cannot be read ({error.strerror})", "Check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise SpecError(name, f"byte {error.start} is not UTF-8 text", "Save the file as UTF-8") from None


def _file_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def _json(text: str, name: str) -> tuple[Any, Marks]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(items)
        if len(found) < len(items):
            twice = next(key for key, _ in items if [k for k, _ in items].count(key) > 1)
            raise SpecError(name, f"key {shown(twice)} is given twice in one object", "Keep one of them")
        return found

    try:
        return json.loads(text, object_pairs_hook=pairs), {}
    except json.JSONDecodeError as error:
        where = f"{name}:{error.lineno}:{error.colno}"
        fault = next((fault for fault in _JSON_FAULTS if error.msg.startswith(fault[0])), _JSON_FAULTS[0])
        raise SpecError(where, f"is not valid JSON: {fault[1]}", fault[2]) from None


def _yaml(text: str, name: str) -> tuple[Any, Marks]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    marks: Marks = {}
    documents: list[Any] = []
    try:
        events = (_plain_event(event, name) for event in yaml.parse(text, Loader=loader))
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if documents:
                    _refuse(event, name, "a second document starts", "Keep one document per file")
                documents.append(_value(next(events), events, marks, name, 0))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise SpecError(where, *yaml_fault(error)) from None
    except yaml.YAMLError:
        raise SpecError(
            name, "is not valid YAML: it holds a character that text files have not", "Save it as UTF-8 text"
        ) from None
    return (documents[0] if documents else None), marks


def _plain_event(event: Any, name: str) -> Any:
    """The event, unless it is an alias, an anchor or a tag: they let a small file mean a huge or foreign one."""
    if isinstance(event, yaml.AliasEvent):
        _refuse(event, name, f"alias '*{event.anchor}' is not allowed", "Write the value in full")
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
            _refuse(event, name, f"key {shown(key)} is given twice", "Keep one of them")
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
