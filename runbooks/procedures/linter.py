"""The linter: every problem of a well-formed runbook, with its line, its rule and a remedy.

A runbook without problems can still be refused by the cell. But its checks are not vacuous, its steps verify their
effect and have a way back where one exists, and it keeps to its own limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine.model.errors import SpecError
from runbooks.actions.catalogue import CATALOG
from runbooks.actions.declaration import Action, why_not_id
from runbooks.actions.wording import inverse_of, why_not_inverse
from runbooks.plans import checks
from runbooks.plans.checks import MEANINGS, Check, CheckName
from runbooks.plans.queries import FileProblem
from runbooks.plans.typed_plan import Act, Target
from runbooks.procedures.program import (
    HEADINGS,
    ID,
    MAX_INPUTS,
    MAX_STEPS,
    MAX_TITLE,
    MAX_VERSION,
    STEP_ID,
    CheckLine,
    Runbook,
    StepLine,
    flat,
    milliseconds,
    near,
    only_targets,
    parse,
    part_of,
    reference,
    selected_by,
    target_values,
)
from runbooks.procedures.value_rules import ValueLinter
from runbooks.untrusted.stranger_texts import skeleton
from runbooks.untrusted.strict_formats import YamlPath, unseen

MAX_LIMITS = {"max_nodes": 1_000, "max_gpus": 10_000, "max_workloads": 1_000}
MIN_DURATION_MS = 60_000
STATE_CHECK: dict[str, CheckName] = {
    "node": "node_state", "workload": "workload_state", "queue": "queue_mode", "reservation": "reservation_state",
}  # fmt: skip


def stops_work(row: Action) -> bool:
    return row.stops_named


def stops_targets(row: Action) -> bool:
    return row.stops_named and row.kind == "workload"


def changes_nodes(row: Action) -> bool:
    """True when it takes nodes out of use, or changes their number by a difference."""
    return "takes_nodes" in row.impact or (row.kind == "scaling" and any(p.counts for p in row.parameters.values()))


def stops_work_or_takes_nodes(row: Action) -> bool:
    return row.stops_named or "takes_nodes" in row.impact


def lint_file(data: bytes, name: str) -> tuple[FileProblem, ...]:
    """Every problem of a file; one, where it has not the form of a runbook."""
    try:
        return lint(parse(data, name))
    except SpecError as error:
        # The place is in front of the problem, and behind it the field where there is one.
        where = error.where.partition(": ")[0]
        text = error.problem.removeprefix(f"{where}: ")
        return (FileProblem(where=where, rule="form", problem=text, remedy=error.remedy),)


def lint(runbook: Runbook) -> tuple[FileProblem, ...]:
    """Every problem, in the order of the file. None: it may be approved."""
    linter = Linter(runbook)
    linter.run()
    found = dict.fromkeys(linter.found)
    return tuple(problem for _, problem in sorted(found, key=lambda one: one[0]))


class Linter(ValueLinter):
    """Gathers the problems of one runbook."""

    def run(self) -> None:
        self._header()
        for name, one in self.front.inputs.items():
            self._input(name, one)
        self._cycles()
        self._checks(("when",), self.front.when, "when")
        for i, step in enumerate(self.front.steps[:MAX_STEPS]):
            self._step(i, step)
        self._limits()
        for name in self.front.inputs:
            if name not in self.used:
                self._say(("inputs", name), "unused-input", f"input {name} is used nowhere", "Use it or remove it")
        self._look_alikes(("inputs",), list(self.front.inputs))
        self._prose()

    # -- what it is -------------------------------------------------------------------------------------------------

    def _header(self) -> None:
        front = self.front
        why = why_not_id(front.id)
        if why or not ID.fullmatch(front.id):
            self._say(
                ("id",), "confusable" if not front.id.isascii() else "id",
                f"{ascii(front.id)[:60]} {why or 'is not a runbook id'}",
                "Type it anew: 3 to 64 of a-z, 0-9 and -, with a letter or digit at both ends",
            )  # fmt: skip
        if not 1 <= front.version <= MAX_VERSION:
            self._say(("version",), "version", f"{front.version} is out of range", f"Give 1 to {MAX_VERSION}")
        for field, most in (("title", MAX_TITLE), ("owner", 64)):
            text = getattr(front, field)
            if not text.strip() or "\n" in text or len(text) > most:
                self._say(
                    (field,), field, "is empty, long or on two lines", f"Give one line of at most {most} characters"
                )
        if not front.when:
            self._say(
                ("when",), "no-when", "nothing says when it applies", "Give at least one check that tells it apart"
            )
        if not 1 <= len(front.steps) <= MAX_STEPS:
            self._say(("steps",), "steps", f"there are {len(front.steps):,} steps", f"Give 1 to {MAX_STEPS}")
        if len(front.inputs) > MAX_INPUTS:
            self._say(("inputs",), "inputs", f"there are {len(front.inputs)}", f"Give at most {MAX_INPUTS}")

    def _look_alikes(self, path: YamlPath, names: list[str]) -> None:
        """Names that a tired reader takes for each other."""
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(skeleton(name), name)
            if other != name:
                at = (*path, name) if path == ("inputs",) else path
                self._say(at, "confusable", f"{name} and {other} look alike", "Give one of them another name")

    # -- steps ------------------------------------------------------------------------------------------------------

    def _step(self, i: int, step: StepLine) -> None:
        path: YamlPath = ("steps", i)
        if not STEP_ID.fullmatch(step.id):
            why = why_not_id(step.id) or "is not a step id"
            self._say((*path, "id"), "confusable" if not step.id.isascii() else "id", f"{ascii(step.id)[:60]} {why}",
                      "Use at most 64 of a-z, 0-9 and -")  # fmt: skip
        others = [other.id for other in self.front.steps[:i]]
        if step.id in others:
            self._say(
                (*path, "id"), "duplicate-step", f"there are two steps {ascii(step.id)[:60]}", "Give each its own id"
            )
        elif skeleton(step.id) in map(skeleton, others):
            self._say(
                (*path, "id"), "confusable", f"{ascii(step.id)[:60]} looks like the id of another step", "Rename it"
            )
        if step.action not in CATALOG:
            self._say((*path, "action"), "unknown-action", f"{ascii(step.action)[:40]} is not in the catalogue",
                      near(step.action, tuple(CATALOG)))  # fmt: skip
            return
        row = CATALOG[step.action]
        self._parameters((*path, "with"), row, step.with_)
        before = self._checks((*path, "pre"), step.pre, "pre" if i == 0 else "later")
        after = self._checks((*path, "verify"), step.verify, "verify")
        if i == 0:
            before += self._checks_again(self.front.when)
        self._verifications(path, row, step, before, after)
        if row.kind in STATE_CHECK and row.after:
            for of in flat(target_values(step)):
                self._states[STATE_CHECK[row.kind], of] = frozenset(row.after)
        self._rollback((*path, "rollback"), row, step)
        if step.on_fail == "rollback" and step.rollback == "cannot":
            self._say((*path, "on_fail"), "on-fail", "there is no rollback to run", "Write pause or abort")

    def _checks_again(self, lines: tuple[CheckLine, ...]) -> list[tuple[str, str, list[Check]]]:
        """The checks of `when`, without reporting their problems again."""
        quiet = Linter(self.runbook)
        return quiet._checks(("when",), lines, "when")

    def _parameters(self, path: YamlPath, row: Action, given: Mapping[str, Any]) -> None:
        action, known = row.name, row.parameters
        for name, value in given.items():
            if name not in known:
                self._say(
                    (*path, name), "unknown-parameter", f"{action} has no {ascii(name)[:40]}", near(name, tuple(known))
                )
            else:
                self._value((*path, name), value, known[name])
        for name, parameter in known.items():
            if parameter.required and name not in given:
                self._say(path, "missing-parameter", f"{action} needs {name}", "Give it")
        for names in row.one_of:
            if sum(name in given for name in names) != 1:
                self._say(path, "missing-parameter", f"{action} takes one of {', '.join(names)}", "Give exactly one")
        for names in row.at_most_one:
            if sum(name in given for name in names) > 1:
                self._say(path, "wrong-type", f"{action} takes one of {', '.join(names)}", "Give at most one")
        if row.some and not any(name in given for name in row.some):
            self._say(path, "missing-parameter", f"{action} changes nothing", f"Give some of {', '.join(row.some)}")

    def _verifications(
        self, path: YamlPath, row: Action, step: StepLine,
        before: list[tuple[str, str, list[Check]]], after: list[tuple[str, str, list[Check]]],
    ) -> None:  # fmt: skip
        if not step.verify:
            if row.command:
                self._say(path, "missing-verify", f"nothing shows whether {step.action} worked", "Give it a verify")
            return
        touched = set(flat(step.with_.values()))
        related = touched | {f"${{inputs.{name}}}" for name in self._narrowing(touched)}
        own = False
        for i, line in enumerate(step.verify):
            at: YamlPath = (*path, "verify", i)
            if line.check not in MEANINGS:
                continue
            if MEANINGS[line.check].of == "cell":
                own |= row.of_cell
            elif line.of in touched or part_of(line.of, touched) or line.of in related:
                own = True
            else:
                self._say(at, "verify-elsewhere", f"is about {ascii(line.of)[:60]}, which {step.action} does not touch",
                          "Verify what the step acts on")  # fmt: skip
        if not own:
            self._say((*path, "verify"), "verify-elsewhere", f"nothing is verified of what {step.action} acts on",
                      "Add a check on its own targets")  # fmt: skip
        for name, of, made in after:
            self._told_already(path, step, name, of, made, before)
            self._state_after(path, row, step, name, of, made)

    def _told_already(
        self, path: YamlPath, step: StepLine, name: str, of: str, made: list[Check],
        before: list[tuple[str, str, list[Check]]],
    ) -> None:  # fmt: skip
        """Problems of a verification that what holds before the step implies."""
        for other, other_of, earlier in before:
            if (other, other_of) == (name, of) and all(
                checks.within(checks.allowed(one), checks.allowed(two)) for one in earlier for two in made
            ):
                self._say(
                    self._place_of(path, step, name, of), "vacuous-check",
                    f"{checks.words(made[0])}: that holds before the step, which needs {checks.words(earlier[0])}",
                    "Verify what the step changes",
                )  # fmt: skip

    def _state_after(self, path: YamlPath, row: Action, step: StepLine, name: str, of: str, made: list[Check]) -> None:
        """Problems of a verification of a target's state that the action decides."""
        if STATE_CHECK.get(row.kind) != name or of not in set(flat(target_values(step))):
            return
        at = self._place_of(path, step, name, of)
        allowed = checks.allowed(made[0])
        before = frozenset(x for state in row.states for x in (("ahead", "active") if state == "made" else (state,)))
        before = before & self._states.get((name, of), before)
        if before and checks.within(before, allowed):
            self._say(
                at,
                "vacuous-check",
                f"{checks.words(made[0])}: that holds before {row.name} as well",
                "Verify what it changes",
            )
        if row.after and not checks.both(frozenset(row.after), allowed):
            self._say(at, "verify-never", f"{row.name} makes it {' or '.join(row.after)}, so that this never holds",
                      f"Verify == {row.after[0]}")  # fmt: skip

    def _place_of(self, path: YamlPath, step: StepLine, name: str, of: str) -> YamlPath:
        at = next((i for i, line in enumerate(step.verify) if (line.check, line.of) == (name, of)), 0)
        return (*path, "verify", at)

    def _narrowing(self, touched: set[str]) -> set[str]:
        """Inputs by which those that the step touches are selected."""
        names = {found[0] for value in touched if (found := reference(value))}
        return {by for name in names if name in self.front.inputs for by in selected_by(self.front.inputs[name])}

    def _rollback(self, path: YamlPath, row: Action, step: StepLine) -> None:
        back, action, never = step.rollback, row.name, row.back is None
        if back == "":
            if row.command:
                word = "cannot" if never else "inverse"
                self._say(
                    path, "missing-rollback", f"nothing says how {action} is rolled back", f"Write `rollback: {word}`"
                )
        elif back == "inverse":
            if never:
                self._say(path, "wrong-rollback", f"{action} cannot be rolled back", "Write `rollback: cannot`")
        elif back == "cannot":
            if not never:
                self._say(path, "wrong-rollback", f"{action} can be rolled back", "Write `rollback: inverse`")
        elif isinstance(back, str):
            self._say(
                path, "wrong-rollback", f"{ascii(back)[:40]} is not a rollback", "Write inverse, cannot, or its acts"
            )
        else:
            self._written_rollback(path, row, step)

    def _written_rollback(self, path: YamlPath, row: Action, step: StepLine) -> None:
        action = row.name
        acts = []
        assert not isinstance(step.rollback, str), "called for one that is written out"
        for i, back in enumerate(step.rollback):
            at: YamlPath = (*path, i)
            if back.action not in CATALOG:
                self._say((*at, "action"), "unknown-action", f"{ascii(back.action)[:40]} is not in the catalogue",
                          near(back.action, tuple(CATALOG)))  # fmt: skip
                return
            one = CATALOG[back.action]
            self._parameters((*at, "with"), one, back.with_)
            acts.append(Act(action=one.name, targets=tuple(flat(back.with_.values()))))
        if not only_targets(action) or not all(only_targets(act.action) for act in acts):
            self._say(path, "wrong-rollback", f"the rollback of {action} needs what it was before",
                      "Write `rollback: inverse`: it is made from what is shown")  # fmt: skip
            return
        ids = tuple(flat(target_values(step)))
        act = Act(action=action, targets=ids)
        before = [tuple(Target(id=id_, state=state) for id_ in ids) for state in sorted(row.states)]
        why = [why_not_inverse(act, shown, tuple(acts)) for shown in before if inverse_of(act, shown)] or [
            f"{action} cannot be rolled back"
        ]
        if all(why):
            self._say(path, "wrong-rollback", why[-1], "Write `rollback: inverse`, or the acts that take the step back")

    # -- limits -----------------------------------------------------------------------------------------------------

    def _limits(self) -> None:
        limits, path = self.front.limits, ("limits",)
        for field, most in MAX_LIMITS.items():
            if not 0 <= getattr(limits, field) <= most:
                self._say((*path, field), "limits", f"{getattr(limits, field)} is out of range", f"Give 0 to {most}")
        duration = milliseconds(limits.max_duration)
        if duration is None or not MIN_DURATION_MS <= duration <= checks.MAX_WITHIN_MS:
            text = f"{ascii(limits.max_duration)[:40]} is no time from 1m to 24h"
            self._say((*path, "max_duration"), "duration-range", text, "Give one such as 30m")
        else:
            waits = sum(max((milliseconds(c.within) or 0 for c in s.verify), default=0) for s in self.front.steps)
            if waits > duration:
                self._say((*path, "max_duration"), "limits-exceeded",
                          f"its verifications may take {waits // 60_000} min, more than {limits.max_duration}",
                          "Raise max_duration, or shorten their `within`")  # fmt: skip
        nodes, work = self.touched(changes_nodes), self.touched(stops_targets)
        for field, count, what in (("max_nodes", nodes, "take, or take out of use,"), ("max_workloads", work, "stop")):
            most = getattr(limits, field)
            if count > most:
                things = field.removeprefix("max_")
                rule = "limits-exceeded" if most else "limits-missing"
                text = f"its steps together may {what} {count:,} {things}, and {field} is {most:,}"
                self._say((*path, field), rule, text, "Raise it if that is meant, or act on fewer")
        for field, needs in (("max_workloads", stops_work), ("max_gpus", stops_work_or_takes_nodes)):
            named = sorted({row.name for row in self.actions() if needs(row)})
            if named and not getattr(limits, field):
                self._say((*path, field), "limits-missing", f"{', '.join(named)} needs it",
                          "Give the most that may be touched")  # fmt: skip

    def actions(self) -> list[Action]:
        """The actions of its steps that are in the catalogue."""
        return [CATALOG[step.action] for step in self.front.steps if step.action in CATALOG]

    def touched(self, of: Callable[[Action], bool]) -> int:
        """Most different objects that the steps with such actions can act on together, as far as the file says."""
        values: dict[str, int] = {}
        amounts = 0
        for step in self.front.steps:
            row = CATALOG.get(step.action)
            if row is None or not of(row):
                continue
            counting = [name for name, parameter in row.parameters.items() if parameter.counts]
            if counting:
                amounts += sum(self._most(step.with_.get(name, 0)) for name in counting)
                continue
            for value in flat(target_values(step)):
                found = reference(value)
                one = self.front.inputs.get(found[0]) if found and not found[1] else None
                values[value] = one.max_items or 1 if one is not None else 1
        return sum(values.values()) + amounts

    def _most(self, value: Any) -> int:
        """The value of a number, or the maximum of the input that it refers to."""
        if not isinstance(value, str):
            return value if isinstance(value, int) else 0
        found = reference(value)
        one = self.front.inputs.get(found[0]) if found else None
        return (self.bounds(one)[1] or 0) if one is not None else 0

    # -- prose ------------------------------------------------------------------------------------------------------

    def _prose(self) -> None:
        lines = self.runbook.prose.split("\n")
        sections: dict[str, int] = {}
        heading = ""
        for number, line in enumerate(lines, self.runbook.prose_line):
            hidden = unseen(line)
            if hidden:
                self._add(number, "hidden-text", f"holds {hidden}", "Delete it: nobody who reads the file can see it")
            if line.startswith("## "):
                heading = line[3:].strip()
                sections.setdefault(heading, 0)
            elif heading:
                sections[heading] += len(line.strip())
        for heading in HEADINGS:
            if not sections.get(heading):
                self._add(self.runbook.prose_line, "prose", f"nothing stands under '## {heading}'",
                          "Write what whoever is on call at night needs to know")  # fmt: skip
