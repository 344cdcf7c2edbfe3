"""Compilation of a runbook with inputs to a request of typed acts.

Every reference is resolved to explicit ids of this cell, and inputs are checked against the live cell, so that a
misspelt id is reported with what may have been meant. Selectors are resolved here, once, to ids that people see and
vote on. Only references, sums of a present quantity and a given one, and times from now on the cell's clock are
evaluated. Quantities given as more or less count from the state after the earlier steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from engine.model.columns import view
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.model.list_queries import Kind, Query, Term
from engine.twin import consolidation
from runbooks.actions.catalogue import find
from runbooks.actions.declaration import Given, InputType, nodes_of
from runbooks.plans import checks
from runbooks.plans.check_readings import evaluate
from runbooks.plans.checks import MEANINGS, Check, Finding
from runbooks.plans.queries import Chosen
from runbooks.plans.typed_plan import Act, ActionName, Limits, Request, StepRequest
from runbooks.procedures.linter import lint
from runbooks.procedures.program import (
    CheckLine,
    Input,
    Runbook,
    StepLine,
    milliseconds,
    near,
    reference,
    selected_by,
    why_not_value,
)

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.model.consolidation_queries import Consolidation, ConsolidationRequest
    from engine.model.reports import PoolSize
    from engine.model.spec_parts import BudgetSpec
    from engine.model.specs import QueueSpec


class Maker:
    """Makes the acts of one run, in order: it remembers what the earlier ones change, as far as later ones build on
    it. It is the `PlannedCell` that declarations ask."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queues: dict[str, QueueSpec] = {}
        self._budgets: dict[str, BudgetSpec] = {}
        self._nodes: dict[str, int] = {}
        """Pool -> nodes it shall have."""

    def act(self, action: ActionName, given: Given) -> Act:
        """Raises NotFoundError for what does not exist, and RefusedError for what cannot be made here, such as moves
        that nobody finds."""
        row = find(action)
        if row.make is not None:
            return self._remembered(row.make(given, self))
        targets = next(given[name] for name, parameter in row.parameters.items() if parameter.target)
        return row.act(targets if isinstance(targets, tuple) else (targets,), given)

    def _remembered(self, act: Act) -> Act:
        if act.queue is not None:
            self._queues[act.queue.to.name] = act.queue.to
        if act.money is not None and act.money.budget is not None:
            self._budgets[act.money.budget.name] = act.money.budget
        if act.nodes is not None:
            self._nodes[act.targets[0]] = act.nodes
        return act

    # -- the planned cell -------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._engine.state.cell

    @property
    def now_ms(self) -> int:
        return self._engine.now_ms

    def queue(self, name: str) -> QueueSpec:
        """Raises NotFoundError."""
        return self._queues.get(name) or self._engine.queue(name).spec

    def budget(self, name: str) -> BudgetSpec:
        """Raises NotFoundError."""
        if name in self._budgets:
            return self._budgets[name]
        for line in self._engine.budgets().budgets:
            if line.spec.name == name:
                return line.spec
        raise NotFoundError(f"there is no budget '{name}'", "See `muster budget list`")

    def size(self, pool: str) -> PoolSize | None:
        """The size of a pool; None when it does not exist."""
        return next((size for size in self._engine.scaling().pools if size.pool == pool), None)

    def nodes(self, pool: str) -> int:
        """Raises NotFoundError."""
        if pool in self._nodes:
            return self._nodes[pool]
        size = self.size(pool)
        if size is None:
            raise NotFoundError(f"there is no pool '{pool}'", "See `muster pool list`")
        return nodes_of(size)

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        return consolidation.plan(self._engine, request)


MAX_NEAR = 3
WHOLE = re.compile(r"-?[0-9]{1,18}")
MAX_CHECKS = 16
"""Before, or after, one step, once each object of a list has its own."""
Value = str | int | tuple[str, ...]
"""Of an input: one id or word, a whole number (a duration in ms), or ids."""


class Compiled(NamedTuple):
    request: Request
    when: tuple[Finding, ...]
    """Whether it applies now: all of them succeed."""
    inputs: tuple[Chosen, ...]
    skipped: tuple[str, ...]
    """Ids of the steps that have nothing to act on: their optional input was not given, and nothing was selected."""

    @property
    def applies(self) -> bool:
        return all(finding.verdict == "success" for finding in self.when)

    def without_when(self) -> Request:
        """The request without the runbook's conditions, for a dry run where it does not apply."""
        first = self.request.steps[0]
        whens = {finding.check for finding in self.when}
        rest = tuple(check for check in first.pre if check not in whens)
        steps = (msgspec.structs.replace(first, pre=rest), *self.request.steps[1:])
        return msgspec.structs.replace(self.request, steps=steps)


def compile_runbook(
    engine: Engine, runbook: Runbook, given: Mapping[str, str], *, reason: str = "", requester: str = ""
) -> Compiled:
    """Resolve every reference. `given`: input -> text, several ids with commas between. Changes nothing.

    Its conditions are those of its first step too, so that they are looked at again before anything is done.

    Raises SpecError for a runbook with problems and for an input that is missing, unknown or out of its bounds,
    NotFoundError naming what does not exist here, and RefusedError for more than a list may hold, or an act that cannot
    be made.
    """
    problems = lint(runbook)
    if problems:
        first = problems[0]
        raise SpecError(
            f"{first.where}: {first.rule}", first.problem,
            f"{first.remedy}. {len(problems)} problem{'s' if len(problems) > 1 else ''}: muster runbook lint",
        )  # fmt: skip
    inputs = Inputs(engine, runbook, given)
    when = tuple(check for line in runbook.front.when for check in inputs.checks(line))
    findings = tuple(evaluate(engine, check) for check in when)
    maker = Maker(engine)
    steps: list[StepRequest] = []
    for step in runbook.front.steps:
        if inputs.has_no_targets(step):
            inputs.skipped.append(step.id)
            continue
        made = step_of(inputs, maker, step)
        pre = made.pre if steps else (*when, *made.pre)
        if max(len(pre), len(made.verify)) > MAX_CHECKS:
            raise RefusedError(
                f"step {step.id} has {max(len(pre), len(made.verify))} checks, one for each object of its lists",
                f"Act on fewer objects at a time: at most {MAX_CHECKS} checks are looked at before or after a step",
            )
        steps.append(msgspec.structs.replace(made, pre=pre))
    if not steps:
        raise RefusedError("none of its steps has anything to act on", "See the runbook's evidence")
    limits = runbook.front.limits
    request = Request(
        steps=tuple(steps),
        reason=reason,
        requester=requester,
        limits=Limits(
            nodes=limits.max_nodes,
            gpus=limits.max_gpus,
            workloads=limits.max_workloads,
            duration_ms=milliseconds(limits.max_duration),
        ),
    )
    return Compiled(request, findings, inputs.chosen(), tuple(inputs.skipped))


def step_of(inputs: Inputs, maker: Maker, step: StepLine) -> StepRequest:
    rollback: tuple[Act, ...] | None = None
    if not isinstance(step.rollback, str):
        rollback = tuple(maker.act(*inputs.parameters(back.action, back.with_)) for back in step.rollback)
    return StepRequest(
        id=step.id,
        act=maker.act(*inputs.parameters(step.action, step.with_)),
        pre=tuple(check for line in step.pre for check in inputs.checks(line)),
        verify=tuple(check for line in step.verify for check in inputs.checks(line)),
        rollback=rollback,
        on_fail=step.on_fail,
        confirm=step.confirm,
    )


class Inputs:
    """The inputs of one run, each resolved and checked against the cell."""

    def __init__(self, engine: Engine, runbook: Runbook, given: Mapping[str, str]) -> None:
        self._engine = engine
        self._specs = runbook.front.inputs
        self._values: dict[str, Value] = {}
        self._sources: dict[str, str] = {}
        self.skipped: list[str] = []
        for name in given:
            if name not in self._specs:
                raise SpecError(f"input {ascii(name)[:40]}", "there is no such input", near(name, tuple(self._specs)))
        # What is selected by others comes after them; the linter has refused cycles.
        left = list(self._specs)
        while left:
            name = next(name for name in left if not selected_by(self._specs[name]).intersection(left))
            left.remove(name)
            self._resolve(name, self._specs[name], given.get(name))

    def _resolve(self, name: str, spec: Input, text: str | None) -> None:
        if text is not None:
            self._values[name], self._sources[name] = self._read(name, spec, text), "given"
        elif spec.default is not None:
            self._values[name], self._sources[name] = self._read(name, spec, str(spec.default)), "default"
        elif spec.select is not None:
            self._select(name, spec)
        elif spec.required:
            raise SpecError(
                f"input {name}", f"is not given{': ' + spec.help if spec.help else ''}", f"--input {name}=…"
            )

    def _read(self, name: str, spec: Input, text: str) -> Value:
        if spec.max_items is None:
            return self._one(name, spec, text.strip())
        ids = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        if len(ids) > spec.max_items:
            raise RefusedError(
                f"input {name}: {len(ids):,} are given, of at most {spec.max_items}",
                "Give fewer: the rest in a run of its own",
            )
        for id_ in ids:
            self._one(name, spec, id_)
        return ids

    def _one(self, name: str, spec: Input, text: str) -> str | int:
        value: str | int = text
        if spec.type == "int" and WHOLE.fullmatch(text):
            value = int(text)
        why = why_not_value(spec, value)
        if why:
            raise SpecError(f"input {name}", why, spec.help)
        if spec.type == "duration":
            return milliseconds(text) or 0
        if isinstance(value, str) and spec.type in EXISTS:
            self._refuse_unknown(name, spec.type, value)
        return value

    def _refuse_unknown(self, name: str, type_: InputType, id_: str) -> None:
        kind, column, plural = EXISTS[type_]
        if exists(self._engine, type_, id_):
            return
        found = near_ids(self._engine, kind, column, id_)
        remedy = f"Did you mean {', '.join(found)}?" if found else f"See `muster get {plural}`"
        raise NotFoundError(f"input {name}: there is no {type_.removesuffix('_id')} {ascii(id_)[:64]}", remedy)

    def _select(self, name: str, spec: Input) -> None:
        """Resolve a selector. Raises RefusedError when nothing matches."""
        select, most = spec.select, spec.max_items
        assert select is not None, "called for inputs that have one"
        assert most is not None, "the linter refuses a selector without a bound"
        by = {field: self.text(getattr(select, field)) for field in ("pool", "zone", "queue", "tenant")}
        terms = [Term(field, "=", value) for field, value in by.items() if value]
        if select.nodes is not None:
            kind: Kind = "nodes"
            sort: tuple[str, ...] = ()
            if select.nodes == "ending":
                ids, matched = self._ending(terms, most)
            else:
                terms.append(Term("state", "=", select.nodes))
                ids, matched = self._ids(kind, terms, sort, most)
        else:
            kind = "workloads"
            terms.append(Term("state", "=", select.workloads or ""))
            if select.reason:
                terms.append(Term("reason", "=", select.reason))
            ids, matched = self._ids(kind, terms, SORTS[select.sort], most)
        narrowed = " and ".join(f"{field} {value}" for field, value in by.items() if value)
        said = f"{select.nodes or select.workloads} {kind} of {narrowed}"
        if not ids:
            if spec.required:
                raise RefusedError(f"input {name}: there are no {said}", f"Nothing to act on; or give --input {name}=…")
            return
        first = f", {select.sort} first" if kind == "workloads" else ""
        more = f"; {matched - len(ids):,} more match{first}" if matched > len(ids) else ""
        self._values[name], self._sources[name] = ids, f"selected: {said}{more}"

    def _ids(self, kind: Kind, terms: list[Term], sort: tuple[str, ...], most: int) -> tuple[tuple[str, ...], int]:
        page = self._engine.query(Query(kind=kind, columns=("id",), where=tuple(terms), sort=sort, limit=most))
        return tuple(row[0] for row in page.rows), page.matched

    def _ending(self, terms: list[Term], most: int) -> tuple[tuple[str, ...], int]:
        """Nodes of which the provider has given notice, soonest first."""
        c = self._engine.state.capacity
        ends = {c.node_ids[row]: c.doomed[row] for row in c.row_of.values() if c.doomed[row] >= 0}
        there: list[str] = []
        offset = 0
        while ends and offset >= 0:
            query = Query(kind="nodes", columns=("id",), where=tuple(terms), offset=offset, limit=10_000)
            rows = self._engine.query(query).rows
            there += [row[0] for row in rows if row[0] in ends]
            offset = offset + len(rows) if len(rows) == query.limit else -1
        there.sort(key=lambda id_: (ends[id_], id_))
        return tuple(there[:most]), len(there)

    def text(self, value: str) -> str:
        """A selector's or a check's word: a reference to one id, or itself."""
        found = self.value(value)
        return found if isinstance(found, str) else str(found)

    def value(self, value: Any) -> Value | None:
        """The value that a value of the file stands for. None: an optional input without a value."""
        if isinstance(value, list):
            parts = [self.value(part) for part in value]
            flat = (one for part in parts if part is not None for one in (part if isinstance(part, tuple) else (part,)))
            return tuple(dict.fromkeys(str(one) for one in flat))
        found = reference(value)
        if found is None:
            plain: Value = value
            return plain
        name, prop = found
        resolved = self._values.get(name)
        if resolved is None or not prop:
            return resolved
        return self._property(self._specs[name].type, str(resolved), prop)

    def _property(self, type_: InputType, id_: str, prop: str) -> Value:
        if type_ == "node_id":
            node = self._engine.node(id_)
            if prop == "workloads":
                return self._some(f"workloads on node {id_}", tuple(work for work, _ in node.workloads))
            return self._some(f"{prop} of node {id_}", node.pool if prop == "pool" else node.zone)
        if type_ == "workload_id":
            work = self._engine.workload(id_)
            if prop == "nodes":
                return self._some(f"nodes of workload {id_}", tuple(sorted({place.node for place in work.placement})))
            return self._some(f"{prop} of workload {id_}", work.queue if prop == "queue" else work.tenant)
        return self._some(f"nodes of reservation {id_}", self._engine.reservation(id_).nodes)

    @staticmethod
    def _some(what: str, value: Value) -> Value:
        """Raises RefusedError for what is empty: it must not come to mean anything else."""
        if not value:
            known = f"there are no {what}" if isinstance(value, tuple) else f"the {what} is not known"
            raise RefusedError(known, "Nothing to act on")
        return value

    def has_no_targets(self, step: StepLine) -> bool:
        """True when a step acts on an optional input that has no value."""
        known = find(step.action).parameters
        targets = [step.with_[name] for name, parameter in known.items() if parameter.target and name in step.with_]
        return bool(targets) and all(self.value(value) in (None, ()) for value in targets)

    def parameters(self, action: str, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """(action, parameter -> value) as `Maker.act` takes them."""
        known = find(action).parameters
        found: dict[str, Any] = {}
        for name, parameter in known.items():
            value = self.value(given[name]) if name in given else None
            if value is None:
                if parameter.required:
                    raise SpecError(f"step {action}", f"needs {name}, and its input is not given", "Give it")
                continue
            if parameter.many and not isinstance(value, tuple):
                value = (str(value),)
            elif parameter.type == "duration" and isinstance(value, str):
                value = milliseconds(value) or 0
            found[name] = value
        return action, found

    def checks(self, line: CheckLine) -> list[Check]:
        """A check for each object that the line's reference stands for."""
        name = next(name for name in MEANINGS if name == line.check)
        value = self.value(line.value)
        if value is None:
            return []
        found = reference(line.value)
        if name.endswith("_s") and found and self._specs[found[0]].type == "duration" and isinstance(value, int):
            value = value // 1000
        elif name.endswith("_s") and isinstance(value, str):
            value = (milliseconds(value) or 0) // 1000
        of = self.value(line.of) if line.of else ""
        subjects = () if of is None else of if isinstance(of, tuple) else (str(of),)
        within_ms = (milliseconds(line.within) or 0) if line.within else 0
        return [
            Check(
                check=name, of=subject, op=next(op for op in checks.OPERATORS if op == line.op),
                value=value if isinstance(value, int) else str(value), tolerance_permille=line.tolerance_permille,
                within_ms=within_ms,
            )
            for subject in subjects
        ]  # fmt: skip

    def chosen(self) -> tuple[Chosen, ...]:
        return tuple(
            Chosen(
                name=name,
                values=tuple(map(str, value)) if isinstance(value, tuple) else (self._shown(name, value),),
                source=self._sources[name],
            )
            for name, value in self._values.items()
        )

    def _shown(self, name: str, value: str | int) -> str:
        return f"{int(value) // 1000} s" if self._specs[name].type == "duration" else str(value)


EXISTS: Mapping[InputType, tuple[Kind | None, str, str]] = {
    "node_id": ("nodes", "id", "nodes"),
    "workload_id": ("workloads", "id", "workloads"),
    "queue": ("queues", "name", "queues"),
    "pool": ("pools", "name", "pools"),
    "reservation": ("reservations", "name", "reservations"),
    "zone": (None, "", "nodes"),
    "tenant": (None, "", "workloads"),
    "budget": (None, "", "budgets"),
}
"""Types of inputs whose values must exist: the list they are in, by which column, and how the shell lists them."""
SORTS: Mapping[str, tuple[str, ...]] = {
    "newest": ("-submitted",),
    "oldest": ("submitted",),
    "largest": ("-gpu", "-cpu"),
    "smallest": ("gpu", "cpu"),
}


def exists(engine: Engine, type_: InputType, id_: str) -> bool:
    state = engine.state
    match type_:
        case "node_id":
            return id_ in state.capacity.row_of
        case "workload_id":
            return id_ in state.workloads.row_of
        case "zone":
            return id_ in zones(engine)
        case "tenant":
            return id_ in state.workloads.tenants.index
        case "budget":
            return any(line.spec.name == id_ for line in engine.budgets().budgets)
        case "pool":
            return any(pool.name == id_ for pool in state.capacity.pools)
        case "queue":
            return _found(lambda: engine.queue(id_))
        case _:
            return _found(lambda: engine.reservation(id_))


def _found(ask: Any) -> bool:
    try:
        ask()
    except MusterError:
        return False
    return True


def zones(engine: Engine) -> set[str]:
    """Names of the zones that nodes stand in."""
    c = engine.state.capacity
    return {c.places.names[place] for place in np.unique(view(c.zone)).tolist() if place >= 0} - {""}


def near_ids(engine: Engine, kind: Kind | None, column: str, id_: str) -> list[str]:
    """A few that exist and begin like it."""
    if kind is None:
        return []
    for length in range(len(id_), max(0, len(id_) // 2 - 1), -1):
        where = (Term(column, "~", id_[:length]),)
        rows = engine.query(Query(kind=kind, columns=(column,), where=where, limit=MAX_NEAR)).rows
        if rows:
            return [row[0] for row in rows]
    return []
