"""Runbooks in words: their inputs, steps and limits as a person reads them, from the typed program alone."""

from __future__ import annotations

from typing import Any

from runbooks.actions import wording
from runbooks.actions.catalogue import find
from runbooks.plans import checks
from runbooks.plans.checks import MEANINGS
from runbooks.plans.typed_plan import Act, Plan
from runbooks.procedures.program import CheckLine, Input, LimitLine, Runbook, StepLine
from runbooks.procedures.queries import FileProblem, InputLine, RunbookLine, RunbookView


def view_of(
    line: RunbookLine, runbook: Runbook | None, problems: tuple[FileProblem, ...], votes: tuple[str, ...], data: bytes
) -> RunbookView:
    """All of one file. Where it has not the form of a runbook, its text is shown as it is."""
    if runbook is None:
        return RunbookView(
            line=line, inputs=(), when=(), limits="", steps=(), prose=data.decode("utf-8", "replace"), votes=votes,
            problems=problems,
        )  # fmt: skip
    front = runbook.front
    return RunbookView(
        line=line,
        inputs=tuple(input_line(name, one) for name, one in front.inputs.items()),
        when=tuple(asked(check) for check in front.when),
        limits=limited(front.limits),
        steps=tuple(line for step in front.steps for line in step_lines(step)),
        prose=runbook.prose.strip("\n"),
        votes=votes,
        problems=problems,
    )


def input_line(name: str, one: Input) -> InputLine:
    bounds = [f"at most {one.max_items}"] if one.max_items is not None else []
    if one.min is not None:
        bounds.append(f"{one.min} to {one.max}")
    if one.choices:
        bounds.append(" | ".join(one.choices))
    if one.select is not None:
        by = (
            f"{field} {value}" for field in ("pool", "zone", "queue", "tenant") if (value := getattr(one.select, field))
        )
        what = f"{one.select.nodes} nodes" if one.select.nodes else f"{one.select.workloads} workloads"
        first = f", {one.select.sort} first" if one.select.workloads else ""
        bounds.append(f"else {what} of {', '.join(by)}{first}")
    elif one.default is not None:
        bounds.append(f"default {one.default}")
    elif not one.required:
        bounds.append("optional")
    return InputLine(name=name, type=one.type, help=one.help, bounds=", ".join(bounds) or "required")


def asked(line: CheckLine) -> str:
    """A check as it is written, in words; what its reference stands for is known when it runs."""
    prefix = "" if line.op == "==" else "not " if line.op == "!=" else f"{line.op} "
    meaning = next((meaning for name, meaning in MEANINGS.items() if name == line.check), None)
    text = f"{line.check} {line.of}" if meaning is None else meaning.says
    said = text.replace("{of}", plain(line.of)).replace("{value}", f"{prefix}{plain(line.value)}")
    tolerance = f", {line.tolerance_permille}/1000 granted" if line.tolerance_permille else ""
    return f"{said}{tolerance}{', within ' + line.within if line.within else ''}"


def step_lines(step: StepLine) -> list[str]:
    given = ", ".join(f"{name} {plain(value)}" for name, value in step.with_.items())
    lines = [f"{step.id}: {step.action} {given}".rstrip()]
    lines += [f"  needs: {asked(check)}" for check in step.pre]
    lines += [f"  then: {asked(check)}" for check in step.verify]
    if step.rollback == "inverse":
        lines.append("  back: what the catalogue knows, to what it was")
    elif step.rollback == "cannot":
        lines.append("  back: it cannot be taken back")
    elif not isinstance(step.rollback, str):
        lines += [
            f"  back: {act.action} {', '.join(f'{name} {plain(value)}' for name, value in act.with_.items())}"
            for act in step.rollback
        ]
    if step.confirm != "none":
        lines.append(f"  waits for the go of an {step.confirm}")
    lines.append(f"  if it fails: {step.on_fail}")
    return lines


def limited(limits: LimitLine) -> str:
    counts = ((limits.max_nodes, "nodes"), (limits.max_gpus, "GPUs"), (limits.max_workloads, "workloads"))
    told = ", ".join(f"{count:,} {what}" for count, what in counts if count)
    return f"at most {told or 'nothing'}; {limits.max_duration}"


def plain(value: Any) -> str:
    """A value of the file: references as <name>."""
    if isinstance(value, list):
        return ", ".join(plain(one) for one in value)
    text = str(value)
    return f"<{text[9:-1]}>" if text.startswith("${inputs.") and text.endswith("}") else text


def rollback_of(plan: Plan) -> tuple[str, ...]:
    """How each step is taken back, the last one first."""
    return tuple(
        f"{step.id}: {'; '.join(map(wording.title, step.rollback)) or without_acts(step.act)}"
        for step in reversed(plan.steps)
    )


def without_acts(act: Act) -> str:
    """What to say of a step whose way back has no acts."""
    return "cannot be taken back" if find(act.action).back is None else "leaves nothing to take back"


def verifications_of(plan: Plan) -> tuple[str, ...]:
    """What is looked at after each step."""
    return tuple(
        f"{step.id}: {checks.words(check)}{f' within {check.within_ms // 1000} s' if check.within_ms else ''}"
        for step in plan.steps
        for check in step.verify
    )
