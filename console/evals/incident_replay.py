"""Playing a scripted incident on an engine in memory, and matching a draft against its accepted answers.

Everything happens as in production: work is submitted, people and controllers give commands, agents on nodes report
or fall silent, executors and providers act. Nothing is put into the state directly. A draft matches when its
actions, their targets and their changes are those of an accepted way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec
import numpy as np

from console.evals.incidents import Pattern, ScriptedIncident, Way, expanded
from console.forms.documents import LocatedDocument
from console.forms.fields import QUEUE_FORMS
from console.forms.work_files import cell_of, workloads_of
from engine.control import Engine
from engine.executors.agent_reports import Registered, SampleOf
from engine.model import commands as do
from engine.model.commands import AnyCommand, Define, Submit
from engine.model.errors import MusterError, SpecError
from engine.model.quantities import cpu_milli, duration_ms, memory_mib, money_microusd, shortlist
from engine.model.spec_parts import MICROUSD, PRESETS
from engine.model.specs import BudgetSpec, QueueSpec, ReservationSpec, UsageSample, WorkloadSpec
from runbooks.actions.catalogue import find
from runbooks.drafts.typed_draft import Draft
from runbooks.plans.typed_plan import Act

SEED = 7
BEAT_MS = 15_000
"""Cell milliseconds between calls of agents: less than half of what makes a node suspect."""


class PlayedIncident:
    """One incident, played up to the moment at which the operator asks."""

    def __init__(self, incident: ScriptedIncident) -> None:
        """Raises SpecError naming the incident and the step of its script that cannot be done."""
        self.incident = incident
        self.engine = Engine.open(None, seed=SEED, provider_faults=incident.provider)
        self._watched: dict[str, tuple[int, int]] = {}
        """Node -> row and epoch of its agent."""
        self._silent: set[str] = set()
        self._numbers = 0
        self.engine.advance(incident.begins_ms)
        for number, (verb, told) in enumerate((("define", None), *incident.script)):
            try:
                VERBS[verb](self, told) if verb in VERBS else self._unknown(verb)
            except (MusterError, ValueError, KeyError, TypeError) as error:
                raise SpecError(incident.place, f"script step {number}, {verb}: {error}", "Fix the script") from error

    def close(self) -> None:
        self.engine.forget()

    def _unknown(self, verb: str) -> None:
        raise SpecError("", f"there is no verb '{verb}'", f"Use one of: {', '.join(VERBS)}")

    # -- verbs --------------------------------------------------------------------------------------------------------

    def define(self, _: None) -> None:
        self.engine.command(Define(cell=self.incident.cell))

    def wait(self, told: str) -> None:
        """Let cell time pass; agents that are not silent report all the while."""
        until_ms = self.engine.now_ms + duration_ms(told)
        while self._watched and self.engine.now_ms + BEAT_MS < until_ms:
            self.engine.advance(self.engine.now_ms + BEAT_MS)
            self._beat()
        self.engine.advance(until_ms)
        self._beat()

    def _beat(self) -> None:
        calling = [token for node, token in self._watched.items() if node not in self._silent]
        if not calling:
            return
        self._numbers += 1
        rows, epochs = np.array(calling, np.int64).T
        self.engine.agents.beat(rows, epochs, np.full(len(calling), self._numbers, np.int64))

    def submit(self, told: Any) -> None:
        self.engine.command(Submit(workloads=tuple(self._workloads(told))))

    def _workloads(self, told: Any) -> Iterator[WorkloadSpec]:
        """Workloads as in a workload file; `id: etl-01..12` stands for twelve."""
        raws = [{**raw, "id": id_} for raw in told for id_ in expanded(raw["id"])]
        yield from workloads_of(
            LocatedDocument(f"{self.incident.place} workloads", raws, {}), lambda: self.engine.now_ms
        )

    def queue(self, told: dict[str, Any]) -> None:
        """Change fields of a queue, given as in a cell file."""
        now = self.engine.queue(told["name"]).spec
        changed = cell_of(LocatedDocument(f"{self.incident.place} queue", {"queues": [told]}, {})).queues[0]
        fields = {QUEUE_FORMS.get(name, (name,))[0] for name in told}
        to: QueueSpec = msgspec.structs.replace(now, **{name: getattr(changed, name) for name in fields})
        self.engine.command(do.ChangeQueue(queue=to, over="keep"))

    def reserve(self, told: dict[str, Any]) -> None:
        start_ms = self.engine.now_ms + duration_ms(told.get("starts_in", "0s"))
        spec = ReservationSpec(
            name=told["name"], nodes=expanded(told["nodes"]), queues=expanded(told.get("queues", [])),
            start_ms=start_ms, end_ms=start_ms + duration_ms(told["lasts"]),
        )  # fmt: skip
        self.engine.command(do.Reserve(reservation=spec))

    def interrupt(self, told: dict[str, Any]) -> None:
        self.engine.command(do.Interrupt(ids=expanded(told["nodes"]), notice_ms=duration_ms(told["notice"])))

    def migrate(self, told: dict[str, Any]) -> None:
        moves = tuple(do.Move(id=id_, nodes=expanded(nodes)) for id_, nodes in told.items())
        self.engine.command(do.Migrate(moves=moves))

    def priority(self, told: dict[str, Any]) -> None:
        self.engine.command(do.SetPriority(ids=expanded(told["workloads"]), priority_class=told["to"]))

    def budget(self, told: dict[str, Any]) -> None:
        spec = BudgetSpec(
            name=told["name"], scope=told["scope"], of=told["of"], limit_microusd=money_microusd(told["limit_usd"]),
            window_ms=duration_ms(told.get("window", "24h")), action=told.get("then", "warn"),
        )  # fmt: skip
        self.engine.command(do.SetBudgets(budgets=(spec,)))

    def autoscaling(self, told: dict[str, Any]) -> None:
        self.engine.command(do.SetAutoscaling(changes=told))

    def targets(self, told: dict[str, Any]) -> None:
        verb, now_ms = "targets", self.engine.now_ms
        points = tuple((now_ms + duration_ms(at), nodes) for at, nodes in told["at"])
        self.engine.command(COMMANDS[f"set_{verb}"](**{"pool": told["pool"], verb: points}))

    def watch(self, told: Any) -> None:
        """Start agents on these nodes."""
        found: Registered = self.engine.agents.register(expanded(told))
        self._watched.update(zip(found.nodes, zip(found.rows, found.epochs, strict=True), strict=True))

    def silence(self, told: Any) -> None:
        """Silence the agents of these nodes."""
        self._silent.update(expanded(told))

    def speak(self, told: Any) -> None:
        """Let them report again."""
        self._silent.difference_update(expanded(told))
        self._beat()

    def progress(self, told: dict[str, Any]) -> None:
        """Agents report, `samples` times, how far the tasks of a gang are; on the nodes under `slow`, that
        percentage of it."""
        job, slow = told["workload"], told.get("slow", {})
        places = self.engine.workload(job).placement
        nodes = list(dict.fromkeys(place.node for place in places))
        self.watch(nodes)
        for sample in range(1, told.get("samples", 4) + 1):
            self.wait("1m")
            for node in nodes:
                row, epoch = self._watched[node]
                done = 20 * sample * slow.get(node, 100) // 100
                ranks = [place.rank + i for place in places if place.node == node for i in range(place.tasks)]
                self._numbers += 1
                self.engine.agents.status(row, epoch, self._numbers, [SampleOf(job, rank, done) for rank in ranks])

    def usage(self, told: dict[str, Any]) -> None:
        """Agents report the use of work on each of its nodes: `{JOB: {cpu: 2, memory: 4GiB}}`."""
        self.engine.report_usage(
            UsageSample(
                workload=job, node=place.node, cpu_milli=cpu_milli(one["cpu"]), memory_mib=memory_mib(one["memory"])
            )
            for job, one in told.items()
            for place in self.engine.workload(job).placement
        )


COMMANDS: dict[str, type[AnyCommand]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyCommand)}
"""Commands of the engine by name."""


def _as_given(command: Callable[..., Any]) -> Callable[[PlayedIncident, Any], object]:
    return lambda scene, told: scene.engine.command(command(**told))


def _on_ids(command: Callable[..., Any], field: str = "ids") -> Callable[[PlayedIncident, Any], object]:
    return lambda scene, told: scene.engine.command(command(**{field: expanded(told)}))


VERBS: Mapping[str, Callable[[PlayedIncident, Any], object]] = {
    "define": PlayedIncident.define,
    "pass": PlayedIncident.wait,
    "submit": PlayedIncident.submit,
    "queue": PlayedIncident.queue,
    "reserve": PlayedIncident.reserve,
    "interrupt": PlayedIncident.interrupt,
    "migrate": PlayedIncident.migrate,
    "priority": PlayedIncident.priority,
    "budget": PlayedIncident.budget,
    "scaling": _as_given(do.SetScaling),
    "scale_pool": _as_given(do.ScalePool),
    "autoscaling": PlayedIncident.autoscaling,
    "targets": PlayedIncident.targets,
    "watch": PlayedIncident.watch,
    "silence": PlayedIncident.silence,
    "speak": PlayedIncident.speak,
    "progress": PlayedIncident.progress,
    "usage": PlayedIncident.usage,
    **{
        name: _on_ids(command)
        for name, command in COMMANDS.items()
        if command.__struct_fields__ == ("ids",) and "_" not in name
    },
    "fail": _on_ids(do.FailNodes),
    "restore": _on_ids(do.RestoreNodes),
    "remove": _on_ids(do.RemoveNodes),
    "hold_queue": _on_ids(do.HoldQueues, "names"),
    "drain_queue": _on_ids(do.DrainQueues, "names"),
    "open_queue": _on_ids(do.OpenQueues, "names"),
    "unreserve": _on_ids(do.Unreserve, "names"),
    "approve_spending": _on_ids(do.ApproveSpending),
}
"""Steps of a script, with those that are a command on ids under its own name. docs/incidents.md lists them."""


def acts_of(draft: Draft) -> tuple[Act, ...]:
    """Actions of a draft on the cell. Notifications of people are left out: they are never wrong, and never enough."""
    if draft.request is None:
        return ()
    return tuple(step.act for step in draft.request.steps if find(step.act.action).command)


def told(act: Act, budgets: Mapping[str, BudgetSpec]) -> dict[str, Any]:
    """Changes of an act, by the names that incidents use; quantities in whole devices, cores and nodes. `budgets`:
    those that are set."""
    found: dict[str, Any] = {}
    if act.queue is not None:
        found |= _of_queue(act.queue.was, act.queue.to)
    if act.reservation is not None:
        found |= {"nodes": act.reservation.nodes, "queues": act.reservation.queues}
    if act.resize is not None:
        found |= act.resize.request
    if act.money is not None and act.money.budget is not None:
        found |= _of_budget(budgets.get(act.targets[0]), act.money.budget)
    if act.money is not None and act.money.price_microusd_hour is not None:
        found["microusd_hour"] = act.money.price_microusd_hour
    if act.scaling is not None:
        change = act.scaling
        settings = (
            {**msgspec.to_builtins(PRESETS[change.preset]), **change.settings} if change.preset else change.settings
        )
        found |= {"enabled": settings["enabled"]} if "enabled" in settings else {}
        fields = ("least", "most", "headroom", "priority")
        found |= {name: getattr(change, name) for name in fields if getattr(change, name) is not None}
        if change.targets:
            found["nodes"] = max(nodes for _, nodes in change.targets)
    if act.to:
        found["to"] = act.to
    if act.nodes is not None:
        found["nodes"] = act.nodes
    if act.canary is not None:
        found |= {"order": act.canary.order, "policy": act.canary.policy}
    return {name: value for name, value in found.items() if value is not None}


def _of_budget(was: BudgetSpec | None, to: BudgetSpec) -> dict[str, Any]:
    fields = {"limit_usd": "limit_microusd", "on_spent": "action", "warn_permille": "warn_permille"}
    changed = {
        name: getattr(to, field) for name, field in fields.items() if getattr(was, field, None) != getattr(to, field)
    }
    return changed | ({"limit_usd": changed["limit_usd"] // MICROUSD} if "limit_usd" in changed else {})


_RESOURCES = (("gpu_milli", "gpus", 1000), ("cpu_milli", "cpus", 1000), ("memory_mib", "memory_mib", 1))


def _of_queue(was: QueueSpec, to: QueueSpec) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for limit in ("nominal", "borrowing_limit", "lending_limit"):
        before, after = getattr(was, limit), getattr(to, limit)
        for resource, word, unit in _RESOURCES:
            if before.get(resource) != after.get(resource):
                # A limit that is taken away lets through as much as there is.
                found[f"{limit}_{word}"] = after[resource] // unit if resource in after else 2**40
    for name in ("weight", "order", "burst", "reclaim", "flavors"):
        if getattr(was, name) != getattr(to, name):
            found[name] = getattr(to, name)
    return found


def matches(scene: PlayedIncident, acts: Sequence[Act]) -> tuple[bool, bool, str]:
    """Two flags, for the actions alone and for the acts as a whole being accepted, and the reason when they are not."""
    incident, budgets = scene.incident, budgets_of(scene.engine)
    if not acts:
        right = () in incident.accept
        return right, right, "" if right else "does nothing"
    why = "nothing should be done"
    action = False
    for way in incident.accept:
        wrong = _wrong_actions(way, acts)
        if wrong:
            why = why if action else wrong
            continue
        action = True
        problem = next((found for act in acts if (found := _wrong(way, act, budgets))), "")
        if not problem:
            return True, True, ""
        why = problem
    return action, False, why


def _wrong_actions(way: Way, acts: Sequence[Act]) -> str:
    there = {act.action for act in acts}
    for act in acts:
        if act.action not in {pattern.action for pattern in way}:
            return f"{act.action} is not the right action"
    for pattern in way:
        if not pattern.optional and pattern.action not in there:
            return f"{pattern.action} is missing"
    needed = [pattern.action for pattern in way if not pattern.optional]
    if len(acts) < len(needed):
        return "is only part of the fix"
    return ""


def _wrong(way: Way, act: Act, budgets: Mapping[str, BudgetSpec]) -> str:
    """Reason why no pattern of the way matches the act; empty when one does."""
    problems = [_why_not(pattern, act, budgets) for pattern in way if pattern.action == act.action]
    return "" if "" in problems else problems[0]


def _why_not(pattern: Pattern, act: Act, budgets: Mapping[str, BudgetSpec]) -> str:
    targets = set(act.targets)
    if pattern.targets:
        others = targets - pattern.targets
        if others:
            return f"{act.action}: {', '.join(sorted(others))} is not a target"
        if not pattern.least <= len(targets) <= pattern.most:
            return f"{act.action}: {len(targets)} targets, not {pattern.least} to {pattern.most}"
    said = told(act, budgets)
    for name, value in said.items():
        if name not in pattern.parameters:
            return f"{act.action}: {name} should stay"
        wanted = pattern.parameters[name]
        if not _within(value, wanted):
            return f"{act.action}: {name} {value} is not {_bounds_text(wanted)}"
    # One of several limits is as good as another: a pattern says what may change, the fork shows whether it is enough.
    missing = next(iter(pattern.parameters), "") if not said else ""
    return f"{act.action}: {missing} is not changed" if missing else ""


def _within(value: Any, wanted: Any) -> bool:
    if wanted == "any":
        return True
    if isinstance(wanted, tuple):
        return isinstance(value, int) and wanted[0] <= value <= wanted[1]
    if isinstance(value, tuple):
        return set(value) <= set(expanded(wanted))
    return bool(value == wanted)


def _bounds_text(wanted: Any) -> str:
    return f"{wanted[0]} to {wanted[1]}" if isinstance(wanted, tuple) else str(wanted)


def budgets_of(engine: Engine) -> dict[str, BudgetSpec]:
    """Budgets that are set, by name."""
    return {line.spec.name: line.spec for line in engine.budgets().budgets}


def line(act: Act, budgets: Mapping[str, BudgetSpec]) -> str:
    """An act in a few words."""
    names = shortlist(act.targets, 3)
    values = " ".join(f"{name}={value}" for name, value in told(act, budgets).items() if not isinstance(value, tuple))
    return f"{act.action} {names} {values}".strip()
