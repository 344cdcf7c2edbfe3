"""The form of a language model's answer: a JSON schema for the server, and a strict reader.

The schema is made from the action declarations, by which runbooks are linted too. A server that keeps to it is a
convenience: the reader checks everything again. `runbooks.models.answer_checks` decides what an answer means in the
cell.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec

from engine.model.spec_parts import ID_PATTERN
from runbooks.actions.catalogue import CATALOG, find
from runbooks.actions.declaration import INPUT_TYPES, MAX_LITERALS, InputType, Parameter, ParameterType
from runbooks.drafts.typed_draft import MAX_STEPS, DraftRejected, Task
from runbooks.plans.checks import MEANINGS, OPERATORS
from runbooks.plans.typed_plan import ActionName, OnFail
from runbooks.procedures.program import MAX_INPUTS, milliseconds, near, why_not_literal
from runbooks.untrusted import strict_formats

SCHEMA_VERSION = 2
"""Part of what a kept answer is found by."""
MAX_CONTENT_BYTES = 64 * 1024
MAX_DEPTH = 10
MAX_ITEMS = 4_000
MAX_TITLE = 120
MAX_SUMMARY = 1_200
MAX_SENTENCE = 200
MAX_RATIONALE = 8
MAX_RISKS = 5
MAX_QUESTIONS = 3
MAX_SENTENCES = 12
"""Of one part of a hand-over or a summary."""
MAX_CHECKS = 8
MAX_PROSE = 2_000
"""Of one section of a runbook."""
MAX_ENUM = 200
"""Ids of one type that the schema lists; more are checked when the answer is read."""

NOT_FOR_MODELS: Mapping[str, str] = {row.name: row.not_for_models for row in CATALOG.values() if row.not_for_models}
"""Actions that no model drafts, whoever would vote on them, and why."""
MODEL_ACTIONS: tuple[ActionName, ...] = tuple(row.name for row in CATALOG.values() if not row.not_for_models)

HEADINGS: Mapping[Task, tuple[str, ...]] = {
    "handover": ("What happened", "What is open", "What waits for somebody", "What to watch"),
    "incident": ("What happened", "What was affected", "What was done", "What is open"),
}
"""Parts of what is told; a model fills them and names none."""

IDS: frozenset[ParameterType] = frozenset(
    ("node_id", "workload_id", "queue", "pool", "zone", "reservation", "tenant", "budget", "channel", "object")
)
"""Types of which a draft may name only what it was told of."""
_TEMPLATES = ("${", "{{", "{%", "$(", "<%", "#{", "`", "!!python", "%(", ";")
"""What some program, though none of ours, would evaluate."""
_UNSEEN = frozenset("\u2800\u3164\u115f\u1160\uffa0")
"""Letters and signs that show nothing."""


class AnsweredPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    heading: str
    sentences: tuple[str, ...]


class ModelDraftStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One act by the names of `runbooks.actions`. Ids are those that the model was told."""

    action: str
    with_: dict[str, Any] = msgspec.field(name="with", default_factory=dict)


class ModelRunbookCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    check: str
    of: str = ""
    op: str
    value: int | str
    within: str | None = None
    tolerance_permille: int | None = None


class ModelRunbookInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    type: InputType
    help: str
    max_items: int | None = None
    min: int | str | None = None
    max: int | str | None = None
    choices: tuple[str, ...] | None = None
    optional: bool = False
    select: dict[str, str | None] | None = None


class ModelRunbookStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    action: str
    with_: dict[str, Any] = msgspec.field(name="with", default_factory=dict)
    pre: tuple[ModelRunbookCheck, ...] = ()
    verify: tuple[ModelRunbookCheck, ...] = ()
    on_fail: OnFail = "pause"


class ModelRunbook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The typed fields of a runbook that a model may write. Owner, version, limits and status are not among them."""

    id: str
    title: str
    inputs: tuple[ModelRunbookInput, ...] = ()
    when: tuple[ModelRunbookCheck, ...]
    steps: tuple[ModelRunbookStep, ...]
    why: str
    evidence: str
    what_can_go_wrong: str
    aftercare: str


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer that has the form. Everything in it is untrusted, names are those that the model was told. In prose a
    value is a reference to a fact, as `runbooks.models.answer_checks` reads it."""

    title: str
    summary: str = ""
    rationale: tuple[str, ...] = ()
    parts: tuple[AnsweredPart, ...] = ()
    steps: tuple[ModelDraftStep, ...] = ()
    risks: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    runbook: ModelRunbook | None = None


# -- what is told -----------------------------------------------------------------------------------------------------


def schema_of(task: Task, *, ids: Mapping[ParameterType, Sequence[str]]) -> dict[str, Any]:
    """The JSON schema of an answer, in the part of the language that servers constrain by: closed objects, every
    property required, what may be left out is null.

    `ids`: type of a parameter -> the names that may be given for it, as the model is told them; an action that needs
    one of which there is none is left out.
    """
    definitions: dict[str, Any] = {}
    sentence = _prose(MAX_SENTENCE)
    fields: dict[str, Any] = {"title": _prose(MAX_TITLE)}
    if task in HEADINGS:
        part = _object({"heading": _enum(HEADINGS[task]), "sentences": _list(sentence, 1, MAX_SENTENCES)})
        fields["parts"] = _list(part, 1, len(HEADINGS[task]))
    else:
        fields["summary"] = _prose(MAX_SUMMARY)
        fields["rationale"] = _list(sentence, 0, MAX_RATIONALE)
        fields["risks"] = _list(sentence, 0, MAX_RISKS)
    if task == "act":
        steps = [step for name in MODEL_ACTIONS if (step := _step(name, ids, definitions)) is not None]
        fields["steps"] = _list({"anyOf": steps} if steps else _object({}), 0, MAX_STEPS if steps else 0)
    if task == "runbook":
        fields["runbook"] = _runbook()
    fields["questions"] = _list(sentence, 0, MAX_QUESTIONS)
    schema = _object(fields)
    if definitions:
        schema["$defs"] = definitions
    return schema


def offered(action: ActionName) -> dict[str, Parameter]:
    """The parameters of an action that a model may give."""
    return {name: parameter for name, parameter in find(action).parameters.items() if parameter.for_models}


def _step(
    action: ActionName, ids: Mapping[ParameterType, Sequence[str]], definitions: dict[str, Any]
) -> dict[str, Any] | None:
    """The schema of a step; None when a required id is of a type without names."""
    fields: dict[str, Any] = {}
    for name, parameter in offered(action).items():
        value = _value(parameter, ids, definitions)
        if value is None:
            if parameter.required:
                return None
            continue
        fields[name] = value if parameter.required else _nullable(value)
    return _object({"action": _enum((action,)), "with": _object(fields)})


def _value(
    parameter: Parameter, ids: Mapping[ParameterType, Sequence[str]], definitions: dict[str, Any]
) -> dict[str, Any] | None:
    one: dict[str, Any]
    if parameter.type == "int":
        one = {"type": "integer", "minimum": parameter.least, "maximum": parameter.most}
    elif parameter.type == "choice":
        one = _enum(parameter.choices)
    elif parameter.type == "duration":
        one = _text("a duration such as 90s, 30m or 2h")
    elif parameter.type == "text":
        one = _text(f"one line of at most {parameter.most} characters, no links")
    else:
        names = _names(parameter.type, ids)
        if not names and parameter.type in IDS:
            return None
        if 0 < len(names) <= MAX_ENUM:
            definitions[parameter.type] = _enum(names)
            one = {"$ref": f"#/$defs/{parameter.type}"}
        else:
            one = _text("an id, exactly as it was told")
    return _list(one, 1, MAX_LITERALS) if parameter.many else one


def _names(type_: ParameterType, ids: Mapping[ParameterType, Sequence[str]]) -> tuple[str, ...]:
    if type_ == "object":
        return tuple(dict.fromkeys(name for names in ids.values() for name in names))
    return tuple(dict.fromkeys(ids.get(type_, ())))


def _runbook() -> dict[str, Any]:
    """A runbook names inputs, never objects: its parameters are references to them, or numbers and words."""
    check = {
        "check": _enum(tuple(MEANINGS)),
        "of": _text("${inputs.NAME}, ${inputs.NAME.PROPERTY}, or empty for the cell"),
        "op": _enum(OPERATORS),
        "value": {"type": ["integer", "string"]},
        "tolerance_permille": {"type": ["integer", "null"]},
    }
    verify = _object({**check, "within": {"type": ["string", "null"], "description": "such as 10m"}})
    several = {"anyOf": [{"type": ["integer", "string", "null"]}, _list(_text("a reference"), 1, MAX_LITERALS)]}
    steps = [
        _object({
            "id": _text("of a-z, 0-9 and -"),
            "action": _enum((name,)),
            "with": _object({
                known: several if parameter.many else {"type": ["integer", "string", "null"]}
                for known, parameter in offered(name).items()
            }),
            "pre": _list(_object(check), 0, 8),
            "verify": _list(verify, 0, 8),
            "on_fail": _enum(get_args(OnFail)),
        })
        for name in MODEL_ACTIONS
    ]  # fmt: skip
    bound = {"type": ["integer", "string", "null"]}
    select = _object({
        name: {"type": ["string", "null"]}
        for name in ("nodes", "workloads", "pool", "zone", "queue", "tenant", "reason", "sort")
    })  # fmt: skip
    input_ = _object({
        "name": _text("of a-z, 0-9 and _"), "type": _enum(INPUT_TYPES), "help": _text("one line"),
        "max_items": {"type": ["integer", "null"]}, "min": bound, "max": bound,
        "choices": _nullable(_list(_text("a word"), 2, 20)), "optional": {"type": "boolean"},
        "select": _nullable(select),
    })  # fmt: skip
    prose = _text(f"Markdown without headings, at most {MAX_PROSE} characters")
    return _object({
        "id": _text("3 to 64 of a-z, 0-9 and -"), "title": _text("one line"),
        "inputs": _list(input_, 0, 20), "when": _list(_object(check), 1, 8),
        "steps": _list({"anyOf": steps}, 1, MAX_STEPS),
        "why": prose, "evidence": prose, "what_can_go_wrong": prose, "aftercare": prose,
    })  # fmt: skip


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


def _list(items: dict[str, Any], least: int, most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _enum(words: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(words)}


def _text(description: str) -> dict[str, Any]:
    """Without maxLength, which strict servers refuse."""
    return {"type": "string", "description": description}


def _prose(most: int) -> dict[str, Any]:
    return _text(f"at most {most:,} characters; a value is {{F12}}, the id of its fact in braces")


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


# -- what is read -----------------------------------------------------------------------------------------------------


def read_answer(content: str, task: Task) -> ModelAnswer:
    """The answer in what a model wrote. Raises DraftRejected: `content_too_large`, `content_not_json`, `schema` for
    what has not the form, `policy_denied` with the rule for a value out of its bounds, `runbook_invalid` for text that
    is to be evaluated."""
    data = content.encode("utf-8", "surrogatepass")
    if len(data) > MAX_CONTENT_BYTES:
        raise DraftRejected(
            "content_too_large", f"the answer has {len(data):,} bytes", f"At most {MAX_CONTENT_BYTES:,} are read"
        )
    try:
        value = strict_formats.loads(data, most_bytes=MAX_CONTENT_BYTES, most_depth=MAX_DEPTH, most_items=MAX_ITEMS)
    except strict_formats.NotJson as error:
        reason = "content_too_large" if error.reason in ("too_large", "items") else "content_not_json"
        raise DraftRejected(reason, f"the answer is not plain JSON: {error.problem}") from None
    if not isinstance(value, dict):
        raise _unformed(f"the answer is no object but {ascii(value)[:40]}")
    answered = _converted(_without_confidence(value))
    _refuse_foreign(answered, task)
    _refuse_sizes(answered, task)
    steps = tuple(_checked(step, f"steps[{i}]") for i, step in enumerate(answered.steps))
    return msgspec.structs.replace(
        answered,
        title=_one_line(answered.title),
        steps=steps,
    )


def _without_confidence(value: dict[str, Any]) -> dict[str, Any]:
    """The answer without its plain `confidence` values, which many models give unasked and nothing reads."""
    scalar = (int, float, str, type(None))

    def without(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        return {key: each for key, each in one.items() if key != "confidence" or not isinstance(each, scalar)}

    nested = {
        key: [without(each) for each in one] if key == "steps" and isinstance(one, list) else one
        for key, one in value.items()
    }
    found: dict[str, Any] = without(nested)
    return found


def _converted(value: dict[str, Any]) -> ModelAnswer:
    try:
        return msgspec.convert(value, ModelAnswer, strict=True)
    except msgspec.ValidationError as error:
        raise _unformed(ascii(str(error))[1:-1][:200]) from None


def _refuse_foreign(answered: ModelAnswer, task: Task) -> None:
    """Fields that another task has, and those of this one that are missing."""
    wanted = {
        "act": ("summary",), "explain": ("summary",), "runbook": ("summary", "runbook"), "handover": ("parts",),
        "incident": ("parts",),
    }[task]  # fmt: skip
    allowed = {
        "act": ("rationale", "steps", "risks"), "explain": ("rationale", "risks"), "runbook": ("rationale", "risks"),
    }.get(task, ())  # fmt: skip
    for field in ("summary", "rationale", "parts", "steps", "risks", "runbook"):
        given = getattr(answered, field) not in ("", (), None)
        if given and field not in wanted and field not in allowed:
            raise _unformed(f"{field} has no meaning in an answer to '{task}'")
        if not given and field in wanted:
            raise _unformed(f"{field} is missing")


def _refuse_sizes_of_runbook(runbook: ModelRunbook) -> None:
    """Raises DraftRejected for a runbook that is too large. The linter judges its meaning."""
    for field in ("why", "evidence", "what_can_go_wrong", "aftercare"):
        _text_of(getattr(runbook, field), f"runbook.{field}", MAX_PROSE)
    _text_of(runbook.title, "runbook.title", MAX_TITLE)
    _text_of(runbook.id, "runbook.id", 64)
    if not 1 <= len(runbook.steps) <= MAX_STEPS:
        raise _unformed(f"runbook.steps are {len(runbook.steps):,}, of 1 to {MAX_STEPS}")
    if len(runbook.inputs) > MAX_INPUTS or len(runbook.when) > MAX_CHECKS:
        raise _unformed("runbook: too many inputs or checks")
    for i, step in enumerate(runbook.steps):
        action_of(step.action, f"runbook.steps[{i}]")
        if max(len(step.pre), len(step.verify)) > MAX_CHECKS:
            raise _unformed(f"runbook.steps[{i}]: too many checks")


def _refuse_sizes(answered: ModelAnswer, task: Task) -> None:
    if answered.runbook is not None:
        _refuse_sizes_of_runbook(answered.runbook)
    _text_of(answered.title, "title", MAX_TITLE)
    if answered.summary:
        _text_of(answered.summary, "summary", MAX_SUMMARY)
    for field, most in (
        ("rationale", MAX_RATIONALE), ("steps", MAX_STEPS), ("risks", MAX_RISKS), ("questions", MAX_QUESTIONS),
        ("parts", 4),
    ):  # fmt: skip
        if len(getattr(answered, field)) > most:
            raise _unformed(f"{field} are {len(getattr(answered, field)):,}, of at most {most}")
    for field in ("rationale", "risks", "questions"):
        for i, text in enumerate(getattr(answered, field)):
            _text_of(text, f"{field}[{i}]", MAX_SENTENCE)
    headings = [part.heading for part in answered.parts]
    if len(set(headings)) < len(headings) or not set(headings) <= set(HEADINGS.get(task, ())):
        raise _unformed(f"parts: the headings are {ascii(headings)[:120]}")
    for i, part in enumerate(answered.parts):
        if not 1 <= len(part.sentences) <= MAX_SENTENCES:
            raise _unformed(f"parts[{i}].sentences are {len(part.sentences):,}, of 1 to {MAX_SENTENCES}")
        for k, text in enumerate(part.sentences):
            _text_of(text, f"parts[{i}].sentences[{k}]", MAX_SENTENCE)


def _text_of(text: str, where: str, most: int) -> None:
    if is_blank(text):
        raise _unformed(f"{where} is empty")
    if len(text) > most:
        raise _unformed(f"{where} has {len(text):,} characters, of at most {most:,}")


def is_blank(text: str) -> bool:
    """True when no character of the text is visible."""
    return all(unicodedata.category(char)[0] in "ZC" or char in _UNSEEN for char in text)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _checked(step: ModelDraftStep, where: str) -> ModelDraftStep:
    """The step with what was left out left out. Raises DraftRejected."""
    action = action_of(step.action, where)
    known = offered(action)
    given: dict[str, Any] = {}
    for name, value in step.with_.items():
        if name not in known:
            raise _unformed(f"{where}.with: {action} has no {ascii(name)[1:-1][:40]}", near(name, tuple(known)))
        if value is not None:
            given[name] = _parameter(value, known[name], f"{where}.with.{name}")
    refuse_incomplete(action, given, where)
    return ModelDraftStep(action=action, with_=given)


def action_of(name: str, where: str) -> ActionName:
    """Raises DraftRejected for what is not in the catalogue, and for what no model drafts."""
    if name in NOT_FOR_MODELS:
        why = NOT_FOR_MODELS[name]
        raise _unformed(f"{where}: {name} is never a model's to draft: {why}", "A person may propose it")
    found = next((action for action in MODEL_ACTIONS if action == name), None)
    if found is None:
        raise _unformed(f"{where}: {ascii(name)[:42]} is not in the catalogue", near(name, MODEL_ACTIONS))
    return found


def refuse_incomplete(action: ActionName, given: Mapping[str, Any], where: str) -> None:
    """Raises DraftRejected for parameters that are missing, or that exclude each other."""
    row = find(action)
    for name, parameter in offered(action).items():
        if parameter.required and name not in given:
            raise _unformed(f"{where}: {action} needs {name}")
    for names in row.one_of:
        if sum(name in given for name in names) != 1:
            raise _unformed(f"{where}: {action} takes one of {', '.join(names)}")
    for names in row.at_most_one:
        if sum(name in given for name in names) > 1:
            raise _unformed(f"{where}: {action} takes one of {', '.join(names)}")
    if row.some and not any(name in given for name in row.some):
        raise _unformed(f"{where}: {action} changes nothing without some of {', '.join(row.some)}")


def _parameter(value: Any, parameter: Parameter, where: str) -> Any:
    """A value as `DraftStep.with_` holds it. Raises DraftRejected."""
    if not parameter.many:
        _literal(value, parameter, where)
        return _one_line(value) if parameter.type == "text" else value
    if not isinstance(value, list):
        raise _unformed(f"{where} is no list", "Name each object by its own id")
    if not 1 <= len(value) <= MAX_LITERALS:
        raise _unformed(f"{where} lists {len(value):,}", f"Name 1 to {MAX_LITERALS}")
    for i, one in enumerate(value):
        _literal(one, parameter, f"{where}[{i}]")
    if len(set(value)) < len(value):
        raise _unformed(f"{where} names one twice", "Name each once")
    return tuple(value)


def _literal(value: Any, parameter: Parameter, where: str) -> None:
    if isinstance(value, str) and parameter.type == "text":
        value = _one_line(value)
    why, rule, remedy = why_not_literal(value, parameter)
    if not why and parameter.type == "name" and not ID_PATTERN.fullmatch(value):
        why, rule, remedy = f"{ascii(value)[:60]} is no name", "pattern", "Use letters, digits, '.', '_' and '-'"
    if not why and parameter.type == "channel" and not ID_PATTERN.fullmatch(value):
        why, rule, remedy = f"{ascii(value)[:60]} is an address, not a channel", "pattern", "Name a channel by its id"
    if not why:
        return
    templates = isinstance(value, str) and any(sign in value for sign in _TEMPLATES)
    if rule == "expression" or templates:
        raise DraftRejected("runbook_invalid", f"{where}: expression: {why}", "Nothing is filled in or evaluated")
    if rule == "out-of-range" or (rule == "duration-range" and milliseconds(value) is not None):
        raise DraftRejected("policy_denied", f"{where}: {rule}: {why}", remedy)
    if rule == "confusable":
        raise DraftRejected("unknown_target", f"{where}: {rule}: {why}", remedy)
    raise _unformed(f"{where}: {rule}: {why}", remedy)


def _unformed(problem: str, remedy: str = "") -> DraftRejected:
    return DraftRejected("schema", problem, remedy)
