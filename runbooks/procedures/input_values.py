"""Values that a runbook or a person gives for inputs and parameters: what they refer to, and why they will not do.

Everything here goes by the text alone; whether an object exists is for the cell to say
(`runbooks.procedures.compiler`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from engine.model.quantity_parsing import duration_ms
from runbooks.actions.catalogue import CATALOG, find
from runbooks.actions.parameters import Parameter, why_not_id
from runbooks.plans.typed_plan import ActionName
from runbooks.procedures.program import Input, StepLine, reference


def selected_by(one: Input) -> set[str]:
    """Names of the inputs that an input's selector refers to."""
    if one.select is None:
        return set()
    values = (getattr(one.select, field) for field in ("pool", "zone", "queue", "tenant"))
    return {found[0] for value in values if (found := reference(value))}


def target_values(step: StepLine) -> Iterator[Any]:
    """What a step gives for the parameters that name what it acts on."""
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
    """Whether a reference is to a property of an input that is among those touched."""
    found = reference(of)
    return found is not None and bool(found[1]) and f"${{inputs.{found[0]}}}" in touched


def milliseconds(value: str | int | None) -> int | None:
    """Of a duration as people write it; None for what is none."""
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
    """Why a value does not fit an input, as far as can be told without a cell; empty when it does."""
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
    """What may have been meant."""
    found = difflib.get_close_matches(name, known, 1)
    if found:
        return f"Did you mean {found[0]}?"
    return f"Known: {', '.join(known)}" if known else "There are none"
