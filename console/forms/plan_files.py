"""A plan of several steps as a file: strict YAML into a request. What cannot be asked for cannot be written: tiers,
votes and expiry are not in it.

    reason: rack 4 gets new power
    limits: {nodes: 2}
    when_asked: true                      # somebody executes it; else the last vote does
    steps:
      - id: first
        action: drain
        targets: [g0]
        pre: [{check: node_state, of: g0, op: "==", value: ready}]
        verify: [{check: node_workloads, of: g0, op: "==", value: 0, within_ms: 600000}]
        on_fail: rollback                 # or pause, abort
      - action: uncordon
        targets: [g1]
        confirm: approver                 # or operator, none
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from engine.model.errors import SpecError
from runbooks.plans.checks import Check
from runbooks.plans.typed_plan import Act, EvidenceRef, Limits, Request, StepRequest
from runbooks.untrusted.strict_yaml import MAX_BYTES, YamlDocument, read

ACT = frozenset(Act.__struct_fields__)
STEP = frozenset(StepRequest.__struct_fields__) - {"act"} | ACT
TOP = frozenset(("steps", "reason", "requester", "limits", "evidence", "when_asked"))
_WRONG_WORD = re.compile("Invalid enum value '(.*)'")
_PART = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


def read_plan(name: str, reason: str = "", *, when_asked: bool = False) -> Request:
    """The request of a file; `-` is standard input. What is given besides wins over what the file says. Raises
    SpecError naming file, line and field."""
    document = read(_bytes(name), "standard input" if name == "-" else name)
    request = plan_of(document)
    start = "asked" if when_asked else request.start
    return msgspec.structs.replace(request, reason=reason or request.reason, start=start)


def plan_of(document: YamlDocument) -> Request:
    """Raises SpecError."""
    top = document.value
    if not isinstance(top, dict):
        raise SpecError(document.name, "is not a mapping", "Begin with `steps:`")
    _known(document, (), top, TOP)
    steps = top.get("steps")
    if not isinstance(steps, list) or not steps:
        raise SpecError(document.place(("steps",)), "has no list of steps", "Write `steps:` and one step or several")
    made: dict[str, Any] = {
        key: value for key, value in top.items() if key in ("reason", "requester", "limits", "evidence")
    }
    if "when_asked" in top:
        if not isinstance(top["when_asked"], bool):
            raise SpecError(document.place(("when_asked",)), "when_asked is neither true nor false", "Write true")
        made["start"] = "asked" if top["when_asked"] else "approved"
    made["steps"] = [_step(document, ("steps", number), step) for number, step in enumerate(steps)]
    if isinstance(made.get("limits"), dict):
        _known(document, ("limits",), made["limits"], Limits.__struct_fields__)
    for number, piece in enumerate(made.get("evidence") or ()):
        _known(document, ("evidence", number), piece, EvidenceRef.__struct_fields__)
    try:
        return msgspec.convert(made, Request)
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at `$")
        path = [part or int(number) for part, number in _PART.findall(at.rstrip("`"))]
        shown = tuple(part for part in path if part != "act")
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in shown).lstrip(".")
        raise SpecError(
            f"{document.place(shown)}: {where}", problem[0].lower() + problem[1:], _remedy(problem, shown)
        ) from None


def _remedy(problem: str, at: tuple[str | int, ...]) -> str:
    """For a word that is not one of a field's: the nearest that is."""
    wrong = _WRONG_WORD.match(problem)
    field = at[-1] if at else ""
    types = {**get_type_hints(Act), **get_type_hints(StepRequest), **get_type_hints(Check)}
    words = [word for word in get_args(types.get(str(field))) if isinstance(word, str)]
    if wrong is None or not words:
        return "Correct this value"
    near = difflib.get_close_matches(wrong[1], words, n=1)
    return f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(words)}"


def _step(document: YamlDocument, at: tuple[str | int, ...], step: Any) -> Any:
    """With what belongs to the act apart from what belongs to the step."""
    if not isinstance(step, dict):
        return step
    _known(document, at, step, STEP)
    if "action" not in step:
        raise SpecError(document.place(at), "has no action", "Write for example `action: drain`")
    for part in ("pre", "verify"):
        for number, check in enumerate(step.get(part) or ()):
            _known(document, (*at, part, number), check, Check.__struct_fields__)
    for number, act in enumerate(step.get("rollback") or ()):
        _known(document, (*at, "rollback", number), act, ACT)
    act = {key: value for key, value in step.items() if key in ACT}
    return {"act": act, **{key: value for key, value in step.items() if key not in ACT}}


def _known(document: YamlDocument, at: tuple[str | int, ...], value: Any, known: Iterable[str]) -> None:
    """Raises SpecError for a key that means nothing, with the nearest that does."""
    if not isinstance(value, dict):
        return
    for key in value:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            remedy = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(sorted(known))}"
            raise SpecError(document.place((*at, key)), f"unknown key {key[:40]!a}", remedy)


def _bytes(name: str) -> bytes:
    if name == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(name, f"cannot be read ({error.strerror})", "Give the path of a plan file") from None
