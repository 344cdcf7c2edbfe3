"""A runbook: a Markdown file whose front matter is a small typed program. Its prose is documentation only.

The program names inputs, conditions, limits, and steps of the action catalogue with preconditions, verifications and
ways back. References (`${inputs.node}`) are whole values; there are no expressions, no templates, no loops and no calls
of other runbooks. Tier, votes, status and expiry are decided by the catalogue, the policy and people.

`parse` reads the form, and `files_of` reads files of the library and of folders. `runbooks.procedures.linter` judges
the meaning. `why_not_literal` and `why_not_value` go by the text alone; `runbooks.procedures.compiler` asks the cell
whether an object exists.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from engine.model.errors import SpecError, did_you_mean
from engine.model.quantities import duration_ms
from runbooks.actions.catalogue import CATALOG, find
from runbooks.actions.declaration import InputType, Parameter, why_not_id
from runbooks.plans.typed_plan import ActionName, Confirm, OnFail
from runbooks.untrusted.strict_formats import MAX_BYTES, YamlDocument, YamlPath, decoded, read

FENCE = "---"
HEADINGS = ("Why", "Evidence", "What can go wrong", "Aftercare")
ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{1,62})[a-z0-9]")
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
"""Of an input."""
STEP_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
REFERENCE = re.compile(r"\$\{inputs\.([a-z][a-z0-9_]{0,31})(?:\.([a-z]+))?\}")
MAX_STEPS = 20
MAX_INPUTS = 20
MAX_MEMBERS = 200
"""Of an input that is a list."""
MAX_VERSION = 1_000_000
MAX_TITLE = 100

PROPERTIES: dict[InputType, dict[str, tuple[InputType, bool]]] = {
    "node_id": {"pool": ("pool", False), "zone": ("zone", False), "workloads": ("workload_id", True)},
    "workload_id": {"queue": ("queue", False), "tenant": ("tenant", False), "nodes": ("node_id", True)},
    "reservation": {"nodes": ("node_id", True)},
}
"""What a reference may ask of an input: of which type that is, and whether it is a list."""
FORBIDDEN = (
    "status", "tier", "votes", "approved", "approved_by", "approvals", "approvers", "expires", "expiry", "origin",
    "signature", "sha256", "policy", "need_approvals", "include", "extends", "import", "runbook", "runbooks",
)  # fmt: skip
"""Fields that a file might want to decide and does not."""


class Selector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rule by which an input without a value is resolved, once, to ids that people see and vote on. It names one
    kind of object, narrowed by at least one other, bounded by the input's `max_items`."""

    nodes: Literal["ready", "cordoned", "draining", "down", "suspect", "ending"] | None = None
    """Nodes in that state; `ending`: of which their provider has given notice."""
    workloads: Literal["running", "queued", "held", "suspended", "waiting"] | None = None
    pool: str = ""
    zone: str = ""
    queue: str = ""
    tenant: str = ""
    reason: str = ""
    """Of workloads that wait: the token of why."""
    sort: Literal["newest", "oldest", "largest", "smallest"] = "newest"
    """Which come first, where more match than are taken."""


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: InputType
    help: str = ""
    required: bool = True
    default: str | int | None = None
    max_items: int | None = None
    """Given: it is a list of at most so many."""
    min: str | int | None = None
    max: str | int | None = None
    """Of an int or a duration; both are given."""
    choices: tuple[str, ...] = ()
    select: Selector | None = None


class CheckLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A check as it is written: `of` and `value` may be references, and a list makes one check of each."""

    check: str
    of: str = ""
    op: str
    value: str | int
    tolerance_permille: int = 0
    within: str = ""


class RollbackAct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An act of a rollback that is written out."""

    action: str
    with_: dict[str, Any] = msgspec.field(name="with", default_factory=dict)


class StepLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    action: str
    with_: dict[str, Any] = msgspec.field(name="with", default_factory=dict)
    pre: tuple[CheckLine, ...] = ()
    verify: tuple[CheckLine, ...] = ()
    rollback: str | tuple[RollbackAct, ...] = ""
    """`inverse`: what the catalogue knows, made from what was shown. `cannot`: there is no way back. Or written out."""
    confirm: Confirm = "none"
    on_fail: OnFail = "pause"


class LimitLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most that one run may touch."""

    max_nodes: int = 0
    max_gpus: int = 0
    max_workloads: int = 0
    max_duration: str


class FrontMatter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["runbook/v1"]
    id: str
    version: int
    title: str
    owner: str
    """Who answers for it: a team, or a person as the policy names them ("person:alice")."""
    inputs: dict[str, Input] = {}
    when: tuple[CheckLine, ...] = ()
    limits: LimitLine
    steps: tuple[StepLine, ...]


class Runbook(NamedTuple):
    """A file that has the form of a runbook."""

    name: str
    """Of the file, for messages."""
    sha256: str
    """Of its exact bytes: what is approved."""
    front: FrontMatter
    prose: str
    """Untrusted text."""
    prose_line: int
    document: YamlDocument

    def place(self, *path: str | int) -> str:
        """As in "drain.md:12"."""
        return self.document.place(path)


def parse(data: bytes, name: str) -> Runbook:
    """Read a file. Raises SpecError naming file, line and field for what has not the form of a runbook."""
    text = decoded(data, name)
    lines = text.split("\n")
    if lines[0] != FENCE:
        raise SpecError(f"{name}:1", "does not begin with a line of ---", "Begin with the front matter, between ---")
    end = next((number for number, line in enumerate(lines[1:], 1) if line == FENCE), None)
    if end is None:
        raise SpecError(f"{name}:1", "the front matter does not end", "End it with a line of ---")
    document = read("\n".join(lines[1:end]).encode(), name, first_line=2)
    check_fields(document)
    front = document.convert(FrontMatter)
    return Runbook(
        name=name,
        sha256=hashlib.sha256(data).hexdigest(),
        front=front,
        prose="\n".join(lines[end + 1 :]),
        prose_line=end + 2,
        document=document,
    )


def reference(value: Any) -> tuple[str, str] | None:
    """(input, property or "") of a value that is a reference; None for any other value."""
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return (match[1], match[2] or "") if match else None


def check_fields(document: YamlDocument) -> None:
    """Raises SpecError with the nearest name for the first field that there is not."""
    front = document.value
    if not isinstance(front, dict):
        raise SpecError(document.place(()), "the front matter is not a mapping", "Write 'key: value' lines")
    _known(document, (), front, FrontMatter)
    _each(document, ("inputs",), front.get("inputs"), Input)
    for path, one in _entries(("inputs",), front.get("inputs")):
        _each_one(document, (*path, "select"), one.get("select") if isinstance(one, dict) else None, Selector)
    _each_one(document, ("limits",), front.get("limits"), LimitLine)
    _each(document, ("when",), front.get("when"), CheckLine)
    _each(document, ("steps",), front.get("steps"), StepLine)
    for path, step in _entries(("steps",), front.get("steps")):
        if isinstance(step, dict):
            for field in ("pre", "verify"):
                _each(document, (*path, field), step.get(field), CheckLine)
            _each(document, (*path, "rollback"), step.get("rollback"), RollbackAct)


def _entries(path: YamlPath, value: Any) -> list[tuple[YamlPath, Any]]:
    if isinstance(value, dict):
        return [((*path, key), one) for key, one in value.items()]
    return [((*path, i), one) for i, one in enumerate(value)] if isinstance(value, list) else []


def _each(document: YamlDocument, path: YamlPath, value: Any, of: type[msgspec.Struct]) -> None:
    for place, one in _entries(path, value):
        _each_one(document, place, one, of)


def _each_one(document: YamlDocument, path: YamlPath, value: Any, of: type[msgspec.Struct]) -> None:
    if isinstance(value, dict):
        _known(document, path, value, of)


def _known(document: YamlDocument, path: YamlPath, value: dict[str, Any], of: type[msgspec.Struct]) -> None:
    fields = of.__struct_encode_fields__
    for key in value:
        if key in fields:
            continue
        where = f"{document.place((*path, key))}: {'.'.join(str(part) for part in (*path, key))}"
        if key in FORBIDDEN:
            raise SpecError(
                where,
                "cannot be set in a runbook",
                "Remove it: tier, votes and expiry come from the catalogue and the policy, and no file calls another",
            )
        raise SpecError(where, "is not a field", near(key, tuple(fields)))


LIBRARY = Path(__file__).parent / "library"
BUILT_IN = "built in"
MAX_FILES = 500
"""Of one folder."""


class RunbookFile(NamedTuple):
    """A file as it was read."""

    name: str
    source: str
    account: str
    """OS account that the file belongs to, as "unix:1000"; empty for one that is built in."""
    data: bytes
    unreadable: str


def files_of(folder: Path, *, built_in: bool = False) -> list[RunbookFile]:
    """The .md files of a folder, by name; README.md is not one. What cannot be read is there with the reason."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".md" and path.name != "README.md")
    except OSError as error:
        return [RunbookFile(folder.name, str(folder), "", b"", f"the folder cannot be read ({error.strerror})")]
    if len(paths) > MAX_FILES:
        unreadable = f"it holds {len(paths):,} files; the first {MAX_FILES} are read"
        return [file_of(path, built_in) for path in paths[:MAX_FILES]] + [
            RunbookFile(folder.name, str(folder), "", b"", unreadable)
        ]
    return [file_of(path, built_in) for path in paths]


def file_of(path: Path, built_in: bool = False) -> RunbookFile:
    """Reads a regular file, no more than a runbook may be long; a pipe or a device does not hold anybody up."""
    source = BUILT_IN if built_in else str(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(handle)
            regular = stat.S_ISREG(about.st_mode)
            data = _bytes(handle) if regular else b""
        finally:
            os.close(handle)
    except OSError as error:
        return RunbookFile(path.name, source, "", b"", f"cannot be read ({error.strerror})")
    account = "" if built_in else f"unix:{about.st_uid}"
    return RunbookFile(path.name, source, account, data, "" if regular else "is not a regular file")


def _bytes(handle: int) -> bytes:
    """The content, at most one byte more than a runbook may have."""
    found = b""
    while len(found) <= MAX_BYTES and (part := os.read(handle, MAX_BYTES + 1 - len(found))):
        found += part
    return found


def selected_by(one: Input) -> set[str]:
    """Names of the inputs that an input's selector refers to."""
    if one.select is None:
        return set()
    values = (getattr(one.select, field) for field in ("pool", "zone", "queue", "tenant"))
    return {found[0] for value in values if (found := reference(value))}


def target_values(step: StepLine) -> Iterator[Any]:
    """The values of a step's parameters that name its targets."""
    known = CATALOG[step.action].parameters if step.action in CATALOG else {}
    yield from (value for name, value in step.with_.items() if name in known and known[name].target)


def only_targets(action: ActionName) -> bool:
    return all(parameter.target for parameter in find(action).parameters.values())


def flat(values: Iterable[Any]) -> Iterator[str]:
    """The texts among values and their lists."""
    for value in values:
        if isinstance(value, list):
            yield from flat(value)
        elif isinstance(value, str):
            yield value


def part_of(of: str, touched: set[str]) -> bool:
    """True when a reference is to a property of an input that is among those touched."""
    found = reference(of)
    return found is not None and bool(found[1]) and f"${{inputs.{found[0]}}}" in touched


def milliseconds(value: str | int | None) -> int | None:
    """A duration as people write it, in ms; None for any other text."""
    try:
        return duration_ms(value) if isinstance(value, str) else None
    except ValueError:
        return None


def why_not_literal(value: Any, parameter: Parameter) -> tuple[str, str, str]:
    """(why a value written in a runbook is not one of the parameter, rule, remedy); empty words when it is."""
    if parameter.type == "int":
        if not isinstance(value, int) or isinstance(value, bool):
            return f"{ascii(value)[:40]} is no whole number", "wrong-type", "Give one"
        if not parameter.least <= value <= parameter.most:
            return f"{value:,} is out of range", "out-of-range", f"Give {parameter.least:,} to {parameter.most:,}"
        return "", "", ""
    if not isinstance(value, str):
        return f"{ascii(value)[:40]} is no {parameter.type}", "wrong-type", "Give text"
    if parameter.type == "text":
        if not value.strip() or len(value) > parameter.most or "\n" in value:
            return (
                "is empty, long or on two lines",
                "wrong-type",
                f"Give one line of at most {parameter.most} characters",
            )
        if any(sign in value for sign in ("${", "{{", "$(", "`", "%(")):
            return (
                f"{ascii(value)[:60]} is sent as it stands",
                "expression",
                "Nothing is filled in; remove the template",
            )
        return "", "", ""
    if parameter.type == "duration":
        ms = milliseconds(value)
        if ms is None:
            return f"{ascii(value)[:40]} is no time", "duration-range", "Give one such as 10m"
        if not parameter.least <= ms <= parameter.most:
            bounds = f"{parameter.least // 1000}s to {parameter.most // 3_600_000}h"
            return f"{value} is out of range", "duration-range", f"Give {bounds}"
        return "", "", ""
    if parameter.type == "choice":
        known = parameter.choices
        return (
            ("", "", "") if value in known else (f"there is no {ascii(value)[:40]}", "wrong-type", near(value, known))
        )
    why = why_not_id(value)
    rule = "confusable" if not value.isascii() else "pattern"
    return (f"{ascii(value)[:60]} {why}" if why else ""), rule, "Name each object by its own id"


def why_not_value(one: Input, value: str | int | None) -> str:
    """The reason that a value does not fit an input, without asking a cell; empty when it fits."""
    if one.type == "int":
        if not isinstance(value, int):
            return f"{ascii(value)[:40]} is no whole number"
        low, high = one.min, one.max
        inside = isinstance(low, int) and isinstance(high, int) and low <= value <= high
        return "" if inside else f"{value} is not from {low} to {high}"
    if one.type == "duration":
        ms, low_ms, high_ms = milliseconds(value), milliseconds(one.min), milliseconds(one.max)
        if ms is None:
            return f"{ascii(value)[:40]} is no time such as 10m"
        inside = low_ms is not None and high_ms is not None and low_ms <= ms <= high_ms
        return "" if inside else f"{value} is not from {one.min} to {one.max}"
    if not isinstance(value, str):
        return f"{ascii(value)[:40]} is no text"
    if one.type == "choice":
        return "" if value in one.choices else f"{ascii(value)[:40]} is not one of {', '.join(one.choices)}"
    why = why_not_id(value)
    return f"{ascii(value)[:60]} {why}" if why else ""


def near(name: str, known: tuple[str, ...]) -> str:
    """A hint at the name that may have been meant."""
    return did_you_mean(name, known, f"Known: {', '.join(known)}" if known else "There are none")
