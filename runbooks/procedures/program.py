"""A runbook: Markdown whose front matter is a small typed program, and whose prose is documentation and nothing else.

The program names inputs, the conditions under which it applies, limits, and steps of the action catalogue with their
preconditions, verifications and ways back. It has references (`${inputs.node}`, whole values only) and no expressions,
no text made of parts, no loops and no calls of other runbooks. Tier, votes, status and expiry are not in it: they are
decided by the catalogue, the policy and people.

`parse` reads the form; what a form can get wrong in meaning is told by `runbooks.procedures.linter`.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from engine.model.errors import SpecError
from runbooks.plans.typed_plan import Confirm, OnFail
from runbooks.untrusted.strict_yaml import Path, YamlDocument, decoded, read

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

InputType = Literal[
    "node_id", "workload_id", "queue", "pool", "zone", "reservation", "tenant", "budget", "channel", "name",
    "int", "duration", "choice",
]  # fmt: skip
INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
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
    """Where an input's value comes from when nobody gives it: resolved once, to ids that people see and vote on. One
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


def _entries(path: Path, value: Any) -> list[tuple[Path, Any]]:
    if isinstance(value, dict):
        return [((*path, key), one) for key, one in value.items()]
    return [((*path, i), one) for i, one in enumerate(value)] if isinstance(value, list) else []


def _each(document: YamlDocument, path: Path, value: Any, of: type[msgspec.Struct]) -> None:
    for place, one in _entries(path, value):
        _each_one(document, place, one, of)


def _each_one(document: YamlDocument, path: Path, value: Any, of: type[msgspec.Struct]) -> None:
    if isinstance(value, dict):
        _known(document, path, value, of)


def _known(document: YamlDocument, path: Path, value: dict[str, Any], of: type[msgspec.Struct]) -> None:
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
        near = difflib.get_close_matches(key, fields, 1)
        raise SpecError(where, "is not a field", f"Did you mean {near[0]}?" if near else f"Known: {', '.join(fields)}")
