"""Brings a scripted incident about: a cell on an engine in memory, and what happened in it until somebody asks.

Everything happens as it would in production: work is submitted, people and controllers give commands, agents on nodes
call or fall silent, executors and providers do what they do. Nothing is put into the state behind the engine's back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from console.evals.incidents import Incident, expanded
from console.forms.documents import LocatedDocument
from console.forms.fields import QUEUE_FORMS
from console.forms.work_files import cell_of, workloads_of
from engine.control import Engine
from engine.health.agent_reports import Registered
from engine.health.stragglers import SampleOf
from engine.model import commands as do
from engine.model.commands import Define, Submit
from engine.model.errors import MusterError, SpecError
from engine.model.quantity_parsing import cpu_milli, duration_ms, memory_mib, money_microusd
from engine.model.specs import BudgetSpec, QueueSpec, ReservationSpec, WorkloadSpec
from engine.state.usage import UsageSample

SEED = 7
BEAT_MS = 15_000
"""Cell milliseconds between calls of agents: less than half of what makes a node suspect."""


class PlayedIncident:
    """One incident, played up to the moment at which it is asked about."""

    def __init__(self, incident: Incident) -> None:
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
                raise SpecError(incident.place, f"script step {number}, {verb}: {error}", "Mend the script") from error

    def close(self) -> None:
        self.engine.forget()

    def _unknown(self, verb: str) -> None:
        raise SpecError("", f"there is no verb '{verb}'", f"Use one of: {', '.join(VERBS)}")

    # -- verbs --------------------------------------------------------------------------------------------------------

    def define(self, _: None) -> None:
        self.engine.command(Define(cell=self.incident.cell))

    def wait(self, told: str) -> None:
        """Cell time passes; agents that are not silent call all the while."""
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
        """As in a workload file; `id: etl-01..12` stands for twelve."""
        raws = [{**raw, "id": id_} for raw in told for id_ in expanded(raw["id"])]
        yield from workloads_of(
            LocatedDocument(f"{self.incident.place} workloads", raws, {}), lambda: self.engine.now_ms
        )

    def queue(self, told: dict[str, Any]) -> None:
        """Other fields of a queue, as in a cell file: somebody changed it."""
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

    def scaling(self, told: dict[str, Any]) -> None:
        self.engine.command(do.SetScaling(**told))

    def scale_pool(self, told: dict[str, Any]) -> None:
        self.engine.command(do.ScalePool(**told))

    def autoscaling(self, told: dict[str, Any]) -> None:
        self.engine.command(do.SetAutoscaling(changes=told))

    def targets(self, told: dict[str, Any]) -> None:
        now_ms = self.engine.now_ms
        points = tuple((now_ms + duration_ms(at), nodes) for at, nodes in told["at"])
        self.engine.command(do.SetTargets(pool=told["pool"], targets=points))

    def watch(self, told: Any) -> None:
        """Agents start on these nodes."""
        found: Registered = self.engine.agents.register(expanded(told))
        self._watched.update(zip(found.nodes, zip(found.rows, found.epochs, strict=True), strict=True))

    def silence(self, told: Any) -> None:
        """Agents of these nodes call no more."""
        self._silent.update(expanded(told))

    def speak(self, told: Any) -> None:
        """They call again."""
        self._silent.difference_update(expanded(told))
        self._beat()

    def progress(self, told: dict[str, Any]) -> None:
        """Agents tell, `samples` times, how far the tasks of a gang are; on the nodes under `slow`, that percentage of
        it."""
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
        """Agents tell what work uses on each of its nodes: `{JOB: {cpu: 2, memory: 4GiB}}`."""
        self.engine.report_usage(
            UsageSample(
                workload=job, node=place.node, cpu_milli=cpu_milli(one["cpu"]), memory_mib=memory_mib(one["memory"])
            )
            for job, one in told.items()
            for place in self.engine.workload(job).placement
        )


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
    "scaling": PlayedIncident.scaling,
    "scale_pool": PlayedIncident.scale_pool,
    "autoscaling": PlayedIncident.autoscaling,
    "targets": PlayedIncident.targets,
    "watch": PlayedIncident.watch,
    "silence": PlayedIncident.silence,
    "speak": PlayedIncident.speak,
    "progress": PlayedIncident.progress,
    "usage": PlayedIncident.usage,
    "cordon": _on_ids(do.Cordon),
    "uncordon": _on_ids(do.Uncordon),
    "drain": _on_ids(do.Drain),
    "fail": _on_ids(do.FailNodes),
    "restore": _on_ids(do.RestoreNodes),
    "remove": _on_ids(do.RemoveNodes),
    "hold": _on_ids(do.Hold),
    "release": _on_ids(do.Release),
    "requeue": _on_ids(do.Requeue),
    "suspend": _on_ids(do.Suspend),
    "cancel": _on_ids(do.Cancel),
    "hold_queue": _on_ids(do.HoldQueues, "names"),
    "drain_queue": _on_ids(do.DrainQueues, "names"),
    "open_queue": _on_ids(do.OpenQueues, "names"),
    "unreserve": _on_ids(do.Unreserve, "names"),
    "approve_spending": _on_ids(do.ApproveSpending),
}
"""What a step of a script may say. docs/incidents.md lists them."""
