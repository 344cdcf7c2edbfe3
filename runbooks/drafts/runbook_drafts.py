"""Runbook files written from typed fields: from a model's answer, or from a plan that was carried out.

The file is put together here. Text of the drafter becomes a quoted value or prose, never YAML. Owner, version, limits,
confirmations and ways back are not the drafter's to set. A problem found by the linter ends the draft, except limits
that a person has to raise.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, get_args

import msgspec

from engine.model.errors import RefusedError, SpecError
from runbooks.actions.catalogue import CATALOG, find
from runbooks.actions.declaration import InputType
from runbooks.drafts.model_answer import ModelRunbook, ModelRunbookCheck, ModelRunbookInput, ModelRunbookStep, offered
from runbooks.drafts.typed_draft import DraftRejected, RunbookDraft
from runbooks.plans.checks import MEANINGS, CheckName
from runbooks.plans.queries import FileProblem
from runbooks.plans.typed_plan import Act, Confirm, Plan, Step
from runbooks.procedures.linter import (
    STATE_CHECK,
    Linter,
    changes_nodes,
    lint_file,
    stops_targets,
    stops_work,
    stops_work_or_takes_nodes,
)
from runbooks.procedures.program import HEADINGS, Runbook, milliseconds, only_targets, parse, reference
from runbooks.untrusted.stranger_texts import defanged, links

RealName = Callable[[str, InputType], str]
"""The real id of what was told under that name, of that type. Raises DraftRejected where nothing was."""
UNOWNED = "nobody-yet"
"""Owner of a new runbook that nobody asked for by name: who approves it writes who answers for it."""
GPUS_OF_A_NODE = 16
WORK_OF_A_NODE = 32
MIN_DURATION_MS = 10 * 60_000
_LIMITS = ("limits-exceeded", "limits-missing")
"""Rules that only a person can satisfy: the limits are not a drafter's."""
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./ -]*[A-Za-z0-9]|[A-Za-z]")
_AMBIGUOUS = frozenset(("y", "yes", "n", "no", "on", "off", "true", "false", "null"))


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a file, apart from what is derived here."""

    id: str
    version: int
    title: str
    owner: str
    inputs: tuple[ModelRunbookInput, ...]
    when: tuple[ModelRunbookCheck, ...]
    steps: tuple[ModelRunbookStep, ...]
    prose: tuple[str, ...]
    """Under each of HEADINGS."""


def drafted(
    answered: ModelRunbook, *, id_: str = "", now: str = "", owner: str = "", real: RealName | None = None
) -> RunbookDraft:
    """The file that a model's fields make. `id_` and `now`: of the runbook that is edited, and what it says; empty for
    a new one, whose owner is `owner`.

    Raises DraftRejected: `runbook_invalid` with the lint's rule, `unknown_target`, `schema`.
    """
    was = _before(id_, now)
    if was is None and not answered.id:
        _invalid("id", "there is none")
    read = real or (lambda name, _: name)
    steps = tuple(_real_step(step, read) for step in answered.steps)
    fields = Fields(
        id=was.front.id if was is not None else answered.id,
        version=was.front.version + 1 if was is not None else 1,
        title=answered.title,
        owner=was.front.owner if was is not None else owner or UNOWNED,
        inputs=answered.inputs,
        when=tuple(_real_check(check, read) for check in answered.when),
        steps=steps,
        prose=(answered.why, answered.evidence, answered.what_can_go_wrong, answered.aftercare),
    )
    return _made(fields, was, now)


def runbook_of(plan: Plan, *, id_: str, title: str, owner: str, prose: Sequence[str]) -> RunbookDraft:
    """A runbook from a plan that was carried out: targets become inputs, their shown state conditions, their new state
    verifications. `prose`: under each of HEADINGS.

    Raises RefusedError for an action that cannot be repeated in general.
    """
    inputs: list[ModelRunbookInput] = []
    when: list[ModelRunbookCheck] = []
    steps: list[ModelRunbookStep] = []
    names: dict[tuple[str, ...], str] = {}
    for i, step in enumerate(plan.steps, 1):
        made = _Again(step, f"{step.act.action.replace('_', '-')}-{i}", names)
        inputs += [one for one in made.inputs if one.name not in {other.name for other in inputs}]
        when += [check for check in made.when if i == 1 and check not in when]
        steps.append(made.step)
    fields = Fields(
        id=id_, version=1, title=title, owner=owner or UNOWNED, inputs=tuple(inputs), when=tuple(when),
        steps=tuple(steps), prose=tuple(prose),
    )  # fmt: skip
    try:
        return _made(fields, None, "")
    except DraftRejected as error:
        raise RefusedError(f"no runbook can be made of {plan.proposal}: {error.problem}", error.remedy) from None


def _before(id_: str, now: str) -> Runbook | None:
    if not now:
        return None
    try:
        return parse(now.encode(), f"{id_}.md")
    except SpecError as error:
        _invalid("form", f"the current runbook cannot be read: {error.problem}", "Fix it first")


def _made(fields: Fields, was: Runbook | None, now: str) -> RunbookDraft:
    """Written, read again and linted. Raises DraftRejected for what the lint finds."""
    name = f"{fields.id}.md"
    limits = _kept_limits(was) if was is not None else "max_nodes: 0, max_duration: 24h"
    text = _text(fields, was, limits)
    if was is None:
        limits = _least_limits(_read(text, name))
        text = _text(fields, was, limits)
    runbook = _read(text, name)
    problems = lint_file(text.encode(), name)
    for problem in problems:
        if problem.rule not in _LIMITS:
            _invalid(problem.rule, problem.problem, problem.remedy)
    return RunbookDraft(
        id=fields.id,
        text=text,
        sha256=runbook.sha256,
        diff=_diff(now, text, name) if was is not None else "",
        problems=tuple(_words(problem) for problem in problems),
    )


def _read(text: str, name: str) -> Runbook:
    try:
        return parse(text.encode("utf-8", "replace"), name)
    except SpecError as error:
        _invalid("form", error.problem, error.remedy)


def _invalid(rule: str, problem: str, remedy: str = "") -> NoReturn:
    raise DraftRejected("runbook_invalid", f"{rule}: {problem}"[:400], remedy[:200])


def _words(problem: FileProblem) -> str:
    return f"{problem.where}: {problem.rule}: {problem.problem}. {problem.remedy}"


def _diff(now: str, text: str, name: str) -> str:
    lines = difflib.unified_diff(
        now.splitlines(), text.splitlines(), f"{name} (now)", f"{name} (drafted)", lineterm="", n=2
    )
    return "\n".join(lines)


# -- names ------------------------------------------------------------------------------------------------------------


def _real_step(step: ModelRunbookStep, real: RealName) -> ModelRunbookStep:
    action = find(step.action).name
    known = offered(action)
    given: dict[str, Any] = {}
    for name, value in step.with_.items():
        if value is None:
            continue
        if name not in known:
            raise DraftRejected("schema", f"{step.action} has no {ascii(name)[:42]}")
        type_ = known[name].type
        several = value if isinstance(value, list) else [value]
        if type_ not in ("int", "choice", "duration", "text", "name", "object"):
            several = [_real_id(one, type_, real) for one in several]  # type: ignore[arg-type]
        # One reference to a list stands for all of it; a list around it would not.
        alone = len(several) == 1 and isinstance(several[0], str) and reference(several[0]) is not None
        given[name] = several if isinstance(value, list) and not alone else several[0] if several else value
    return msgspec.structs.replace(
        step, with_=given, pre=tuple(_real_check(one, real) for one in step.pre),
        verify=tuple(_real_check(one, real) for one in step.verify),
    )  # fmt: skip


def _real_check(check: ModelRunbookCheck, real: RealName) -> ModelRunbookCheck:
    name: CheckName | None = next((known for known in MEANINGS if known == check.check), None)
    if not check.of or name is None or "${" in check.of:
        return check
    kind = MEANINGS[name].of
    type_: InputType = {"node": "node_id", "workload": "workload_id"}.get(kind, kind)  # type: ignore[assignment]
    return msgspec.structs.replace(check, of=_real_id(check.of, type_, real))


def _real_id(value: Any, type_: InputType, real: RealName) -> Any:
    return real(value, type_) if isinstance(value, str) and "${" not in value else value


# -- limits, ways back: what is not a drafter's -----------------------------------------------------------------------


def _kept_limits(was: Runbook) -> str:
    limits = was.front.limits
    given = [f"{name}: {getattr(limits, name)}" for name in ("max_nodes", "max_gpus", "max_workloads")
             if getattr(limits, name)]  # fmt: skip
    return ", ".join((*given, f"max_duration: {limits.max_duration}"))


def _least_limits(runbook: Runbook) -> str:
    """The least under which its steps can run, as far as the file says; a person may raise them."""
    linter = Linter(runbook)
    nodes, work = linter.touched(changes_nodes), linter.touched(stops_targets)
    emptied = linter.touched(lambda row: {"takes_nodes", "stops_residents"} <= set(row.impact))
    work += emptied * WORK_OF_A_NODE
    if any(map(stops_work, linter.actions())):
        work = max(work, 1)
    touches = any(map(stops_work_or_takes_nodes, linter.actions()))
    gpus = max(nodes, work if not nodes else 0, 1) * GPUS_OF_A_NODE if touches else 0
    waits = sum(
        max((milliseconds(check.within) or 0 for check in step.verify), default=0) for step in runbook.front.steps
    )
    minutes = -(-max(waits, MIN_DURATION_MS) // 60_000)
    given = (("max_nodes", min(nodes, 1_000)), ("max_gpus", min(gpus, 10_000)), ("max_workloads", min(work, 1_000)))
    return ", ".join((*(f"{name}: {most}" for name, most in given if most), f"max_duration: {min(minutes, 1_440)}m"))


def _back(step: ModelRunbookStep, was: Runbook | None) -> str:
    if not find(step.action).command:
        return ""
    written = next(
        (old.rollback for old in was.front.steps if old.id == step.id and old.action == step.action), ""
    ) if was is not None else ""  # fmt: skip
    if written and not isinstance(written, str):
        acts = ", ".join(f"{{action: {back.action}, with: {_flow(back.with_)}}}" for back in written)
        return f"[{acts}]"
    return "cannot" if find(step.action).back is None else "inverse"


def _confirm(step: ModelRunbookStep, was: Runbook | None) -> Confirm:
    """The confirmation of a step: as before, the strictest where several steps match; an operator's for a new step that
    disrupts."""
    if was is not None:
        before = [old.confirm for old in was.front.steps if old.id == step.id or old.action == step.action]
        if before:
            return max(before, key=get_args(Confirm).index)
    row = CATALOG[step.action]
    return "operator" if row.tier in ("T2", "T3") else "none"


# -- the file ---------------------------------------------------------------------------------------------------------


def _text(fields: Fields, was: Runbook | None, limits: str) -> str:
    lines = ["---", "schema: runbook/v1", f"id: {_scalar(fields.id)}", f"version: {fields.version}",
             f"title: {_scalar(fields.title)}", f"owner: {_scalar(fields.owner)}"]  # fmt: skip
    if fields.inputs:
        lines.append("inputs:")
        lines += [f"  {_key(one.name)}: {_input(one, was)}" for one in fields.inputs]
    lines += ["when:", *(f"  - {_check(check)}" for check in fields.when)] if fields.when else ["when: []"]
    lines += [f"limits: {{{limits}}}", "steps:"]
    for step in fields.steps:
        lines += [f"  - id: {_scalar(step.id)}", f"    action: {_scalar(step.action)}",
                  f"    with: {_flow(step.with_)}"]  # fmt: skip
        for field in ("pre", "verify"):
            checks = getattr(step, field)
            if checks:
                lines += [f"    {field}:", *(f"      - {_check(check)}" for check in checks)]
        back = _back(step, was)
        lines += [f"    rollback: {back}"] if back else []
        confirm = _confirm(step, was)
        lines += [f"    confirm: {confirm}"] if confirm != "none" else []
        on_fail = "pause" if step.on_fail == "rollback" and back in ("", "cannot") else step.on_fail
        lines.append(f"    on_fail: {on_fail}")
    lines.append("---")
    for heading, text in zip(HEADINGS, fields.prose, strict=True):
        lines += [f"## {heading}", "", *_prose(text), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _input(one: ModelRunbookInput, was: Runbook | None) -> str:
    given: dict[str, Any] = {"type": one.type}
    if one.help:
        given["help"] = one.help
    if one.optional:
        given["required"] = False
    for field in ("max_items", "min", "max"):
        if getattr(one, field) is not None:
            given[field] = getattr(one, field)
    if one.choices:
        given["choices"] = list(one.choices)
    if one.select is not None:
        given["select"] = {name: value for name, value in one.select.items() if value is not None}
    old = was.front.inputs.get(one.name) if was is not None else None
    if old is not None and old.type == one.type and old.default is not None:
        given["default"] = old.default
    return _flow(given)


def _check(check: ModelRunbookCheck) -> str:
    given: dict[str, Any] = {"check": check.check}
    if check.of:
        given["of"] = check.of
    given |= {"op": check.op, "value": check.value}
    if check.tolerance_permille:
        given["tolerance_permille"] = check.tolerance_permille
    if check.within:
        given["within"] = check.within
    return _flow(given)


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)}: {_flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _scalar(value)
    raise DraftRejected("schema", f"a value is {ascii(value)[:40]}", "Give text or a whole number")


def _key(name: str) -> str:
    return name if re.fullmatch(r"[a-z][a-z0-9_]*", name) and name not in _AMBIGUOUS else _quoted(name)


def _scalar(text: str) -> str:
    """Plain where YAML can read it in one way alone; else quoted, as JSON has it."""
    if _PLAIN.fullmatch(text) and "  " not in text and text.lower() not in _AMBIGUOUS:
        return text
    return text if re.fullmatch(r"[1-9][0-9]{0,5}(?:ms|min|[smhd])", text) else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _prose(text: str) -> Iterable[str]:
    """Lines without headings, which would begin another section, and without links."""
    for line in text.strip().splitlines():
        line = line.rstrip()
        plain, at = "", 0
        for start, end in links(line):
            plain += line[at:start] + defanged(line[start:end])
            at = end
        plain += line[at:]
        yield re.sub(r"^\s{0,3}(?:#+\s*|---+$|===+$)", "", plain)


# -- from a plan ------------------------------------------------------------------------------------------------------


class _Again:
    """One step of a plan as a step of a runbook. Raises RefusedError."""

    def __init__(self, step: Step, id_: str, names: dict[tuple[str, ...], str]) -> None:
        self.inputs: list[ModelRunbookInput] = []
        self.when: list[ModelRunbookCheck] = []
        self._names = names
        act, row = step.act, CATALOG[step.act.action]
        known = {name: parameter for name, parameter in row.parameters.items() if parameter.target}
        verify: list[ModelRunbookCheck] = []
        if row.after and row.kind in STATE_CHECK and only_targets(act.action):
            name, parameter = next(iter(known.items()))
            of = self._input(row.kind, act.targets, parameter.type)  # type: ignore[arg-type]
            given: dict[str, Any] = {name: of}
            verify = self._of_state(STATE_CHECK[row.kind], of, act, step)
        elif act.queue is not None:
            given, verify = self._of_quota(act)
        elif act.nodes is not None:
            of = self._input("pool", act.targets, "pool")
            count = self._number("nodes", act.nodes)
            given = {"pool": of, "nodes": count}
            self.when.append(ModelRunbookCheck(check="pool_wanted", of=of, op="!=", value=count))
            verify = [ModelRunbookCheck(check="pool_wanted", of=of, op="==", value=count, within="5m")]
        else:
            raise RefusedError(
                f"{act.action} cannot be generalised: it was specific to that case",
                "Write the runbook by hand: docs/runbooks.md",
            )
        self.step = ModelRunbookStep(
            id=id_[:64], action=act.action, with_=given, verify=tuple(verify), on_fail=step.on_fail
        )

    def _input(self, kind: str, ids: tuple[str, ...], type_: InputType) -> str:
        """A reference to the input that stands for these."""
        known = self._names.get(ids)
        if known is None:
            known = kind if kind not in self._names.values() else f"{kind}_{len(self._names) + 1}"
            self._names[ids] = known
            several = len(ids) if len(ids) > 1 else None
            words = f"the {kind}s that are acted on" if several else f"the {kind} that is acted on"
            self.inputs.append(ModelRunbookInput(name=known, type=type_, help=words, max_items=several))
        return f"${{inputs.{known}}}"

    def _number(self, name: str, was: int, *, least: int = 0) -> str:
        words = f"{was:,} the last time"
        self.inputs.append(ModelRunbookInput(name=name, type="int", help=words, min=least, max=max(2 * was, 1)))
        return f"${{inputs.{name}}}"

    def _of_state(self, check: CheckName, of: str, act: Act, step: Step) -> list[ModelRunbookCheck]:
        states = sorted({target.state for target in step.shown})
        before = {"made": "active"}.get(states[0], states[0])
        if len(states) == 1 and before in MEANINGS[check].labels:
            self.when.append(ModelRunbookCheck(check=check, of=of, op="==", value=before))
        after = find(act.action).after
        if act.action == "drain":
            return [ModelRunbookCheck(check="node_workloads", of=of, op="==", value=0, within="20m")]
        if len(after) == 1:
            return [ModelRunbookCheck(check=check, of=of, op="==", value=after[0], within="5m")]
        return [ModelRunbookCheck(check=check, of=of, op="!=", value=before, within="5m")]

    def _of_quota(self, act: Act) -> tuple[dict[str, Any], list[ModelRunbookCheck]]:
        change = act.queue
        assert change is not None, "called for a change of a queue"
        was, to = (spec.nominal.get("gpu_milli") for spec in (change.was, change.to))
        rest = msgspec.structs.replace(change.to, nominal=change.was.nominal)
        if was is None or to is None or was == to or rest != change.was or to % 1000:
            raise RefusedError("only a change of GPU quota can be generalised", "Write it by hand")
        of = self._input("queue", act.targets, "queue")
        count = self._number("gpus", to // 1000, least=1 if to > was else 0)
        self.when.append(ModelRunbookCheck(check="queue_gpu_quota", of=of, op="<" if to > was else ">", value=count))
        verify = [ModelRunbookCheck(check="queue_gpu_quota", of=of, op="==", value=count, within="1m")]
        return {"queue": of, "nominal_gpus": count}, verify
