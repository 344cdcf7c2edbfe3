"""Linter rules for single values: inputs, references, parameters and checks."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from engine.model.errors import SpecError
from runbooks.actions.declaration import MAX_DURATION_MS, MAX_LITERALS, Parameter, ParameterType
from runbooks.plans import checks
from runbooks.plans.checks import MEANINGS, OPERATORS, Check, CheckName, Subject
from runbooks.plans.queries import FileProblem
from runbooks.procedures.program import (
    MAX_MEMBERS,
    NAME,
    PROPERTIES,
    CheckLine,
    Input,
    Runbook,
    milliseconds,
    near,
    reference,
    selected_by,
    why_not_literal,
    why_not_value,
)
from runbooks.untrusted.strict_formats import YamlPath

IDS: tuple[ParameterType, ...] = (
    "node_id", "workload_id", "queue", "pool", "zone", "reservation", "tenant", "budget", "channel", "name",
)  # fmt: skip
TYPE_OF: dict[Subject, ParameterType] = {
    "node": "node_id", "workload": "workload_id", "pool": "pool", "queue": "queue", "tenant": "tenant", "zone": "zone",
    "reservation": "reservation", "budget": "budget",
}  # fmt: skip
MAX_CHECKS = 16
"""In one list."""


class ReferenceType(NamedTuple):
    """The type of a reference."""

    type: ParameterType
    many: bool
    input: str
    of: Input


class ValueLinter:
    """Gathers problems of one runbook, and knows what its references stand for."""

    def __init__(self, runbook: Runbook) -> None:
        self.runbook = runbook
        self.front = runbook.front
        self.found: list[tuple[int, FileProblem]] = []
        self._states: dict[tuple[str, str], frozenset[str]] = {}
        """(check of a state, what it is of) -> the states that the steps so far leave it in."""
        self.used: set[str] = set()
        """Inputs that something refers to."""

    def _say(self, path: YamlPath, rule: str, problem: str, remedy: str) -> None:
        line = self.runbook.document.line(path)
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
        problem = f"{where}: {problem}" if where else problem
        self._add(line, rule, problem, remedy)

    def _add(self, line: int, rule: str, problem: str, remedy: str) -> None:
        name = self.runbook.name
        self.found.append((line, FileProblem(where=f"{name}:{line}", rule=rule, problem=problem, remedy=remedy)))

    # -- inputs -----------------------------------------------------------------------------------------------------

    def _input(self, name: str, one: Input) -> None:
        path: YamlPath = ("inputs", name)
        if not NAME.fullmatch(name):
            self._say(path, "id", "is no name of an input", "Use at most 32 of a-z, 0-9 and _, a letter first")
        if one.type in ("int", "duration"):
            self._range(path, one)
        elif one.min is not None or one.max is not None:
            self._say(path, "input-range", f"a {one.type} has no min and max", "Remove them; max_items bounds a list")
        if one.type == "choice":
            if len(set(one.choices)) < 2 or len(set(one.choices)) < len(one.choices):
                self._say(path, "input-range", "a choice has two choices at least, each once", "List them as `choices`")
        elif one.choices:
            self._say(path, "input-range", f"a {one.type} has no choices", "Remove them, or make its type choice")
        if one.max_items is not None:
            if one.type not in IDS:
                self._say(path, "input-range", f"a {one.type} cannot be a list", "Remove max_items")
            elif not 1 <= one.max_items <= MAX_MEMBERS:
                self._say((*path, "max_items"), "input-range", f"{one.max_items} is out of range",
                          f"Give 1 to {MAX_MEMBERS}")  # fmt: skip
        if one.default is not None:
            self._default(path, one)
        if one.select is not None:
            self._select(path, one)

    def _range(self, path: YamlPath, one: Input) -> None:
        least, most = self.bounds(one)
        if least is None or most is None:
            kind = "whole numbers" if one.type == "int" else "durations such as 5m"
            self._say(path, "input-range", f"has not both min and max, as {kind}", "Give both: every number is bounded")
        elif least > most:
            self._say(path, "input-range", "min is above max", "Exchange them")
        elif one.type == "duration" and not 0 <= least <= most <= MAX_DURATION_MS:
            self._say(path, "duration-range", "is longer than 30 days, or negative", "Give less")
        elif abs(least) > 10**12 or abs(most) > 10**12:
            self._say(path, "input-range", "is beyond what anything here has", "Give a bound that means something")

    def bounds(self, one: Input) -> tuple[int | None, int | None]:
        """The least and most of an int, or of a duration in ms; None where a bound is missing or malformed."""

        def read(value: str | int | None) -> int | None:
            if one.type == "int":
                return value if isinstance(value, int) else None
            return milliseconds(value)

        return read(one.min), read(one.max)

    def _default(self, path: YamlPath, one: Input) -> None:
        path = (*path, "default")
        why = why_not_value(one, one.default)
        if why:
            self._say(path, "input-range", why, "Give a default that would be taken as a value")
        if one.type in ("node_id", "workload_id"):
            self._say(path, "default-target", f"a {one.type} has a default", "Let a person name what is acted on")

    def _select(self, path: YamlPath, one: Input) -> None:
        select = one.select
        path = (*path, "select")
        assert select is not None, "called for inputs that have one"
        wanted = {"node_id": "nodes", "workload_id": "workloads"}.get(one.type)
        given = [field for field in ("nodes", "workloads") if getattr(select, field) is not None]
        if wanted is None or given != [wanted]:
            self._say(
                path, "select", f"does not select what a {one.type} is", "Select nodes or workloads, as the type says"
            )
        if one.max_items is None:
            self._say(path, "select", "is not bounded", "Give the input max_items: so many are taken at most")
        by = ("pool", "zone") if wanted == "nodes" else ("queue", "tenant")
        foreign = [
            f for f in ("pool", "zone", "queue", "tenant", "reason") if getattr(select, f) and f not in (*by, "reason")
        ]
        if foreign or (select.reason and wanted != "workloads"):
            self._say(path, "select", f"{wanted} are not told apart by {', '.join(foreign) or 'reason'}", "Remove it")
        if not any(getattr(select, field) for field in by):
            self._say(path, "select", "is not narrowed, so that it could mean all", f"Give {' or '.join(by)}")
        for field in by:
            if getattr(select, field):
                self._value((*path, field), getattr(select, field), Parameter(type=field))  # type: ignore[arg-type]
        reasons = MEANINGS["workload_reason"].labels
        if select.reason and select.reason not in reasons:
            self._say(
                (*path, "reason"),
                "select",
                f"there is no reason {ascii(select.reason)[:40]}",
                near(select.reason, reasons),
            )

    def _cycles(self) -> None:
        """Inputs that are selected by one another."""
        after = {name: sorted(selected_by(one)) for name, one in self.front.inputs.items()}
        for name in after:
            seen, todo = set(), list(after[name])
            while todo:
                other = todo.pop()
                if other == name:
                    self._say(("inputs", name), "cycle", "is selected by itself", "Let a person give one of them")
                    break
                if other not in seen:
                    seen.add(other)
                    todo += after.get(other, [])

    # -- values -----------------------------------------------------------------------------------------------------

    def typed(self, path: YamlPath, value: str) -> ReferenceType | None:
        """The type of a reference; None, with a problem, when it refers to nothing."""
        found = reference(value)
        if found is None:
            return None
        name, prop = found
        one = self.front.inputs.get(name)
        if one is None:
            self._say(path, "unknown-reference", f"there is no input {name}", near(name, tuple(self.front.inputs)))
            return None
        self.used.add(name)
        if not prop:
            return ReferenceType(one.type, one.max_items is not None, name, one)
        known = PROPERTIES.get(one.type, {})
        if prop not in known:
            remedy = near(prop, tuple(known)) if known else "Remove it"
            self._say(path, "unknown-reference", f"a {one.type} has no {prop} to refer to", remedy)
            return None
        if one.max_items is not None:
            self._say(
                path, "unknown-reference", f"{name} is a list: it has no one {prop}", "Make the pool or queue an input"
            )
            return None
        type_, many = known[prop]
        return ReferenceType(type_, many, name, one)

    def _value(self, path: YamlPath, value: Any, parameter: Parameter) -> None:
        """One value of a parameter: a reference to an input of its type, or itself."""
        if isinstance(value, list):
            if not parameter.many:
                self._say(path, "wrong-type", "takes one value", "Give one")
            elif not 1 <= len(value) <= MAX_LITERALS:
                self._say(path, "pattern", f"lists {len(value)}", f"List 1 to {MAX_LITERALS} ids, or use an input")
            else:
                if len({str(item) for item in value}) < len(value):
                    self._say(path, "wrong-type", "names one twice", "Name each once")
                for i, item in enumerate(value):
                    self._value((*path, i), item, dataclasses.replace(parameter, many=False))
            return
        if isinstance(value, str) and "${" in value and parameter.type != "text":
            if reference(value) is None:
                self._say(
                    path, "expression", f"{ascii(value)[:60]} is no reference",
                    "Write ${inputs.NAME} or ${inputs.NAME.PROPERTY}, and nothing beside it",
                )  # fmt: skip
                return
            typed = self.typed(path, value)
            if typed is not None:
                self._typed_value(path, typed, parameter)
            return
        why, rule, remedy = why_not_literal(value, parameter)
        if why:
            self._say(path, rule, why, remedy)

    def _typed_value(self, path: YamlPath, typed: ReferenceType, parameter: Parameter) -> None:
        if typed.type != parameter.type and not (parameter.type == "object" and typed.type in IDS):
            self._say(path, "wrong-type", f"is a {typed.type}, not a {parameter.type}", f"Refer to a {parameter.type}")
        elif typed.many and not parameter.many:
            self._say(path, "wrong-type", f"{typed.input} may be several", "Refer to one")
        elif parameter.type in ("int", "duration"):
            least, most = self.bounds(typed.of)
            if least is not None and most is not None and not parameter.least <= least <= most <= parameter.most:
                bounds = f"{parameter.least:,} to {parameter.most:,}" + (" ms" if parameter.type == "duration" else "")
                self._say(path, "input-range", f"{typed.input} may be outside of {bounds}", "Narrow its min and max")
        elif parameter.type == "choice" and not set(typed.of.choices) <= set(parameter.choices):
            odd = sorted(set(typed.of.choices) - set(parameter.choices))
            self._say(
                path, "wrong-type", f"{', '.join(odd)} is no choice here", f"Choices: {', '.join(parameter.choices)}"
            )

    # -- checks -----------------------------------------------------------------------------------------------------

    def _checks(self, path: YamlPath, lines: tuple[CheckLine, ...], role: str) -> list[tuple[str, str, list[Check]]]:
        """(check, what it is about as written, the check with each end of its value's range), of those that are well
        formed."""
        good = []
        if len(lines) > MAX_CHECKS:
            self._say(path, "checks", f"there are {len(lines):,}", f"Give at most {MAX_CHECKS}")
        for i, line in enumerate(lines[:MAX_CHECKS]):
            made = self._check((*path, i), line, role)
            if made:
                good.append((line.check, line.of, made))
        for i, (name, of, made) in enumerate(good):
            for other_name, other_of, other in good[:i]:
                apart = not checks.both(checks.allowed(made[0]), checks.allowed(other[0]))
                if (name, of) == (other_name, other_of) and len(made) == len(other) == 1 and apart:
                    self._say((*path, i), "contradiction", f"cannot hold beside {checks.words(other[0])}", "Remove one")
        return good

    def _check(self, path: YamlPath, line: CheckLine, role: str) -> list[Check]:
        if line.check not in MEANINGS:
            self._say((*path, "check"), "unknown-check", f"there is no check {ascii(line.check)[:40]}",
                      near(line.check, tuple(MEANINGS)))  # fmt: skip
            return []
        name: CheckName = line.check
        meaning = MEANINGS[name]
        if line.op not in OPERATORS:
            self._say(
                (*path, "op"), "wrong-type", f"{ascii(line.op)[:20]} compares nothing", f"Use {', '.join(OPERATORS)}"
            )
            return []
        if meaning.of != "cell" and line.of:
            self._value((*path, "of"), line.of, Parameter(type=TYPE_OF[meaning.of], many=True))
        if role != "verify" and line.within:
            self._say((*path, "within"), "wrong-type", "has a meaning for verify alone", "Remove it")
        if role == "verify" and line.tolerance_permille:
            self._say((*path, "tolerance_permille"), "wrong-type", "has a meaning before a step alone", "Remove it")
        if role == "later" and meaning.live:
            self._say(path, "live-check", f"{line.check} is not known between the steps of a dry run",
                      "Check it in `when`, or before the first step")  # fmt: skip
        within_ms = milliseconds(line.within) if line.within else 0
        if within_ms is None or not 0 <= within_ms <= checks.MAX_WITHIN_MS:
            self._say(
                (*path, "within"),
                "duration-range",
                f"{ascii(line.within)[:40]} is no time up to 24h",
                "Give one such as 10m",
            )
            within_ms = 0
        made = []
        for value in self._values((*path, "value"), line, name):
            check = Check(check=name, of=line.of, op=line.op, value=value,
                          tolerance_permille=line.tolerance_permille, within_ms=within_ms)  # fmt: skip
            try:
                checks.check_well_formed(check, "")
            except SpecError as error:
                self._say(path, "wrong-type", error.problem.lstrip(".").removeprefix(": "), error.remedy)
                return []
            why = checks.vacuous(check)
            if why:
                self._say(
                    path,
                    "vacuous-check",
                    f"{line.check} {line.op} {value} is {why}",
                    "Compare with what tells something",
                )
                return []
            made.append(check)
        return made

    def _values(self, path: YamlPath, line: CheckLine, name: CheckName) -> list[int | str]:
        """The values that a check compares with: its own, or both ends of the range of the input that it refers to."""
        value = line.value
        in_seconds = name.endswith("_s")
        if isinstance(value, str) and "${" in value:
            typed = self.typed(path, value)
            wanted = ("int", "duration") if in_seconds else ("int",)
            if typed is None:
                if reference(value) is None:
                    self._say(path, "expression", f"{ascii(value)[:60]} is no reference", "Write ${inputs.NAME} alone")
                return []
            if typed.type not in wanted or MEANINGS[name].labels:
                self._say(path, "wrong-type", f"{line.check} is not compared with a {typed.type}", "Give a constant")
                return []
            ends = [end for end in self.bounds(typed.of) if end is not None]
            return [end // 1000 if typed.type == "duration" else end for end in ends]
        if isinstance(value, str) and in_seconds:
            ms = milliseconds(value)
            if ms is None:
                self._say(path, "duration-range", f"{ascii(value)[:40]} is no time", "Give one such as 10m, or seconds")
                return []
            return [ms // 1000]
        return [value]
