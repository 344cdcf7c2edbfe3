"""Cells that a fleet talks to without a process: each does with a request what a test wants to happen on the way."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any, Literal, NoReturn

from console.client.protocol import Health
from engine.admission.fleet_routing import FLEET_TAG
from engine.external.mirror_report import NOT_MIRRORED, MirrorReport
from engine.model.commands import Recall, Receipt, Submit
from engine.model.errors import NotFoundError, NotSentError, RefusedError, SpecError, UnreachableError
from engine.model.external_cells import IntentsReport, IntentView
from engine.model.list_queries import Page, Query
from engine.model.overviews import Overview
from engine.model.specs import WorkloadSpec
from engine.model.twin_queries import AskOptions, Attempt, Options, OptionTrial, Placing, RunStatus

Way = Literal["well", "nobody there", "lost on the way", "lost on the way back", "refused", "the fleet dies"]


class FleetDied(BaseException):
    """The fleet's process ended where it stood: nothing after this happens."""


class HereAndNow(Executor):
    """Runs what it is given at once, on the caller's thread."""

    def submit(self, do: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(do(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


class ScriptedCell:
    """Takes what it is given and runs it for ever, unless told otherwise. Stands for the engine and for the way there:
    `way` says what happens to the next requests."""

    def __init__(self, name: str, gpus: int = 1000) -> None:
        self.name = name
        self.way: Way = "well"
        self.there: dict[str, WorkloadSpec] = {}
        self.states: dict[str, str] = {}
        self.starts: Literal["running", "queued"] = "running"
        """What becomes of work that is taken."""
        self.moved_to: dict[str, str] = {}
        """What was taken back -> for which cell."""
        self.promised: dict[str, int] = {}
        self.others: dict[str, dict[str, int]] = {}
        """Tenant -> what it holds of work that is not the fleet's."""
        self.delay_ms: int | None = 0
        self.cost_microusd = 1_000_000
        self.pid = 1
        self.gpus = gpus
        self.mirrors = NOT_MIRRORED
        self.keeps_tags = True
        """Another scheduler keeps none."""
        self.shows = True
        """What was taken; another scheduler may not show it yet."""
        self.asked_of_slurm: tuple[IntentView, ...] = ()
        self.refused_queues: set[str] = set()
        self.times_asked = 0
        self.under_way: list[WorkloadSpec] = []
        """Sent and not arrived: `arrive` has them take effect."""

    def arrive(self) -> None:
        """What was on its way takes effect, late."""
        for spec in self.under_way:
            if spec.id not in self.there:
                self._take(spec)
        self.under_way.clear()

    def restart(self) -> None:
        """Another process of the same journal: what was under way is gone."""
        self.under_way.clear()
        self.pid += 1

    def health(self) -> Health:
        self._answer()
        return Health(
            name=self.name, cell=self.name, version=len(self.there), now_ms=1, speed=1.0, paused=False, pid=self.pid,
            journal="", journal_error="", software="0",
        )  # fmt: skip

    def overview(self) -> Overview:
        self._answer()
        tenants = {name: dict(held) for name, held in self.others.items()}
        for spec in self.there.values():
            if self.states[spec.id] == "running":
                sums = tenants.setdefault(spec.tenant, {})
                sums["gpu_milli"] = sums.get("gpu_milli", 0) + _gpus(spec)
        used = sum(held.get("gpu_milli", 0) for held in tenants.values())
        return Overview(
            version=len(self.there), now_ms=1, cell=self.name, policy="easy", states={},
            capacity={"gpu_milli": 1000 * self.gpus}, used={"gpu_milli": used}, pools=(), blocked=(), oldest_wait_ms=0,
            oldest_waiting="", wait_p50_ms=0, wait_p95_ms=0, started_last_hour=0, finished_last_hour=0, history=(),
            tenants=tenants,
        )  # fmt: skip

    def mirror(self) -> MirrorReport:
        return self.mirrors

    def intents(self, limit: int = 200) -> IntentsReport:
        return IntentsReport(at_ms=1, open=0, sent=0, accepted=0, in_doubt=0, items=self.asked_of_slurm)

    def ask(self, ask: AskOptions) -> RunStatus:
        self._answer()
        self.times_asked += 1
        started = None if self.delay_ms is None else 1 + self.delay_ms
        trials = []
        for spec, (run_ms,) in zip(ask.workloads, ask.run_ms, strict=True):
            if spec.queue in self.refused_queues:
                raise SpecError("workloads.queue", f"there is no queue '{spec.queue}'")
            rate = self.cost_microusd * 3_600_000 // run_ms
            attempt = Attempt(
                started_ms=started, ended_ms=None, run_ms=0, cost_microusd=0, stops=0, covered_ms=0,
                placed=(Placing("gpu", 1, rate),) if started is not None else (),
            )  # fmt: skip
            trials.append(OptionTrial(id=spec.id, reason="", arrivals=True, attempts=(attempt,)))
        answer = Options(
            version=1, at_ms=1, horizon_ms=1, seeds=1, until="started", arrivals=True, trials=tuple(trials)
        )
        return RunStatus(
            id="r",
            ask=ask,
            version=1,
            at_ms=1,
            state="done",
            progress_permille=1000,
            answer=answer,
            error=None,
            serial=1,
        )

    def command(self, command: Submit | Recall) -> Receipt:
        if isinstance(command, Recall):
            return self._recall(command)
        (spec,) = command.workloads
        if self.way == "lost on the way":
            self.under_way.append(spec)
        if self.way in ("nobody there", "lost on the way"):
            self._answer()
        if self.way == "refused":
            raise RefusedError("the queue drains")
        if spec.id in self.there:
            problem = f"workload '{spec.id}' already exists" if self.shows else f"'{spec.id}' was already requested"
            raise SpecError("workload.id", problem)
        self._take(spec)
        if self.way == "lost on the way back":
            self._gone()
        if self.way == "the fleet dies":
            self.way = "well"
            raise FleetDied
        return Receipt(version=len(self.there), at_ms=1, changed=(spec.id,))

    def _recall(self, command: Recall) -> Receipt:
        (name,) = command.ids
        if self.way in ("nobody there", "lost on the way"):
            self._answer()
        if (self.states[name], self.moved_to.get(name)) != ("cancelled", command.to):
            if self.states[name] != "queued":
                raise RefusedError(f"cannot recall: '{name}' is {self.states[name]}")
            self.states[name], self.moved_to[name] = "cancelled", command.to
        if self.way == "lost on the way back":
            self._gone()
        if self.way == "the fleet dies":
            self.way = "well"
            raise FleetDied
        return Receipt(version=len(self.there), at_ms=1, changed=(name,))

    def workload(self, workload_id: str) -> Any:
        self._answer()
        if workload_id not in self.there or not self.shows:
            raise NotFoundError(f"there is no '{workload_id}'")
        tags = self.there[workload_id].tags if self.keeps_tags else {}
        return SimpleNamespace(tags=tags, promised_start_ms=self.promised.get(workload_id))

    def query(self, query: Query) -> Page:
        self._answer()
        wanted = [term.value for term in query.where if term.column == "id"]
        rows = [[name, self.states[name]] for name in wanted if name in self.there and self.shows]
        return Page(version=1, at_ms=1, columns=("id", "state"), rows=rows, matched=len(rows), total=len(rows))

    def close(self) -> None: ...

    def _take(self, spec: WorkloadSpec) -> None:
        assert spec.tags[FLEET_TAG]
        self.there[spec.id] = spec
        self.states[spec.id] = self.starts

    def _answer(self) -> None:
        if self.way == "nobody there":
            raise NotSentError("nobody is there")
        if self.way in ("lost on the way", "lost on the way back"):
            self._gone()

    def _gone(self) -> NoReturn:
        raise UnreachableError("no answer")


def _gpus(spec: WorkloadSpec) -> int:
    return sum(group.count * group.request.gpu_milli for group in spec.groups)
