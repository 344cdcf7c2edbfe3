"""The engine's answers to a caller who may not see all of its work (`engine.model.visibility`).

`ANSWERS` is the closed list of questions that such a caller may ask, each with how its answer is limited. A question
that is not in it is refused by name, so a new one shows nothing before somebody has said how it is to be limited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from engine.model import events as ev
from engine.model.columns import view
from engine.model.details import NodeDetail, QueueDetail, Reason, WorkloadDetail
from engine.model.errors import RefusedError
from engine.model.list_queries import Named, Page, Query
from engine.model.overviews import Change, Changes, Overview
from engine.model.reports import (
    BudgetReport,
    DecisionReport,
    FairnessReport,
    FragmentationReport,
    GoodputReport,
    HeatMap,
    HeatRequest,
    ScalingReport,
    Showback,
    ShowbackRequest,
)
from engine.model.specs import RESOURCES, WorkloadState
from engine.model.visibility import OTHERS, Visibility
from engine.reads import cost_reports
from engine.reads.id_search import find
from engine.reads.visible_work import VisibleWork

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.model.twin_queries import StartForecast

More = Mapping[str, Callable[..., Any]]
"""Answers to questions by name, in place of the engine's own (`engine.read_replica.Answers`)."""


class ScopedRead:
    """One question of such a caller to one engine as it is."""

    def __init__(self, engine: Engine, visibility: Visibility, more: More) -> None:
        self._engine = engine
        self._more = more
        self._state = engine.state
        self._seen = VisibleWork(engine.state, visibility)

    def answer(self, what: str, arguments: tuple[Any, ...]) -> Any:
        """Raises RefusedError for a question whose answer is not limited, and what the engine would."""
        answered = ANSWERS.get(what)
        if answered is None:
            raise refuse_scoped(what)
        return answered(self, *arguments)

    # -- work and queues ----------------------------------------------------------------------------------------------

    def query(self, query: Query) -> Page:
        return self._engine.reader.page(query, self._engine.now_ms, self._seen)

    def workload(self, workload_id: str) -> WorkloadDetail:
        self._seen.check(workload_id)
        found = self._engine.workload(workload_id)
        redacted, shown_id = self._seen.redacted, self._seen.shown_id
        replaced = msgspec.structs.replace
        dependents = tuple(each for each in found.needed_by if shown_id(each.id) == each.id)
        return replaced(
            found,
            reasons=tuple(map(self._reason, found.reasons)),
            history=tuple(replaced(item, detail=redacted(item.detail)) for item in found.history),
            making_room_for=found.making_room_for and shown_id(found.making_room_for),
            waits_for=tuple(replaced(each, id=shown_id(each.id)) for each in found.waits_for),
            needed_by=dependents,
            needed_by_total=len(dependents),
        )

    def _reason(self, reason: Reason) -> Reason:
        redacted = self._seen.redacted
        return msgspec.structs.replace(reason, text=redacted(reason.text), unblock=redacted(reason.unblock))

    def start_forecast(self, workload_id: str) -> StartForecast | None:
        """None too as of an earlier time, of which no forecasts are kept."""
        self._seen.check(workload_id)
        foretell = self._more.get("start_forecast")
        found: StartForecast | None = foretell(workload_id) if foretell is not None else None
        return found and msgspec.structs.replace(found, decides=self._seen.redacted(found.decides))

    def queue(self, name: str) -> QueueDetail:
        self._seen.check_queue(name)
        found = self._engine.queue(name)
        rows = self._state.queues.row_of
        leaves = tuple(leaf for leaf in found.leaves if self._seen.queues[rows[leaf]])
        return msgspec.structs.replace(found, leaves=leaves)

    def node(self, node_id: str) -> NodeDetail:
        """What runs there of others is one line with its tasks."""
        found = self._engine.node(node_id)
        tasks: dict[str, int] = {}
        for workload_id, count in found.workloads:
            shown = self._seen.shown_id(workload_id)
            tasks[shown] = tasks.get(shown, 0) + count
        return msgspec.structs.replace(found, workloads=tuple(tasks.items()))

    def find(self, name: str, kinds: tuple[str, ...] = (), limit: int = 24) -> tuple[Named, ...]:
        return find(self._state, name, kinds, limit, self._is_shown)

    def _is_shown(self, hit: Named) -> bool:
        match hit.kind:
            case "workload":
                return self._seen.shown_id(hit.id) == hit.id
            case "queue":
                return bool(self._seen.queues[self._state.queues.row_of[hit.id]])
            case "reservation":
                return hit.id in self._seen.reservations
            case _:
                return hit.kind in ("node", "pool", "order", "zone", "block", "rack")

    def own_work(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        """The same ids. Raises NotFoundError for the first that is hidden or does not exist."""
        for workload_id in ids:
            self._seen.check(workload_id)
        return ids

    def hidden_words(self, texts: tuple[str, ...]) -> tuple[str, ...]:
        """The names in these texts that may not be seen."""
        return tuple({found.group() for text in texts for found in self._seen.hidden(text)})

    # -- what happens -------------------------------------------------------------------------------------------------

    def changes(self, after: int, limit: int = 500) -> Changes:
        found = self._engine.recent.changes(after, limit, self._engine.now_ms, self._is_told)
        return msgspec.structs.replace(found, items=tuple(map(self._change, found.items)))

    def _is_told(self, event: ev.AnyEvent) -> bool:
        kind, state = type(event), self._state
        if kind in _OF_MACHINES:
            return True
        if isinstance(event, ev.Submitted):
            return self._seen.row(state.workloads.row_of[event.workload.id])
        if isinstance(event, ev.QueueAdded | ev.QueueChanged):
            return bool(self._seen.queues[state.queues.row(event.queue.name)])
        if isinstance(event, ev.QueueModeSet):
            return bool(self._seen.queues[event.queue])
        row = getattr(event, "row", -1) if kind in _OF_WORK else -1
        return isinstance(row, int) and row >= 0 and self._seen.row(row)

    def _change(self, change: Change) -> Change:
        return msgspec.structs.replace(change, detail=self._seen.redacted(change.detail))

    # -- the cell in figures ------------------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Capacity, its use and its cost are those of the cell; counts of work, its waits and who holds what are of
        visible work."""
        found, w = self._engine.overview(), self._state.workloads
        states = view(w.state)[self._seen.rows]
        queued = np.flatnonzero(self._seen.rows & (view(w.state) == WorkloadState.QUEUED))
        oldest = int(queued[np.argmin(view(w.submitted)[queued])]) if len(queued) else -1
        return msgspec.structs.replace(
            found,
            states={state.label: int((states == state).sum()) for state in WorkloadState},
            blocked=self._blocked(queued),
            oldest_wait_ms=self._engine.now_ms - w.submitted[oldest] if oldest >= 0 else 0,
            oldest_waiting=w.ids[oldest] if oldest >= 0 else "",
            burns=tuple(each for each in found.burns if self._seen.queues[self._state.queues.row_of[each.queue]]),
            tenants=self._held(),
        )

    def _blocked(self, queued: np.ndarray[Any, Any]) -> tuple[tuple[str, int], ...]:
        codes, tokens = self._engine.reader.explainer.tokens(queued)
        counts = np.bincount(codes, minlength=len(tokens)).tolist()
        found = [(token, count) for token, count in zip(tokens, counts, strict=True) if count]
        return tuple(sorted(found, key=lambda item: (-item[1], item[0])))

    def _held(self) -> dict[str, dict[str, int]]:
        """What visible work holds, by tenant."""
        w = self._state.workloads
        found: dict[str, dict[str, int]] = {}
        bound = np.isin(view(w.state), (WorkloadState.PLACED, WorkloadState.RUNNING))
        for row in np.flatnonzero(self._seen.rows & bound).tolist():
            held = found.setdefault(w.tenants.names[w.tenant[row]], {})
            for of, quantity in zip(RESOURCES, w.class_at(row).request, strict=True):
                if quantity:
                    held[of] = held.get(of, 0) + quantity
        return found

    def showback(self, request: ShowbackRequest) -> Showback:
        return cost_reports.showback(self._state, request, self._engine.now_ms, self._seen.account)

    def budgets(self) -> BudgetReport:
        found = self._engine.budgets()
        lines = tuple(line for line in found.budgets if line.spec.name in self._seen.budgets)
        return msgspec.structs.replace(found, budgets=lines)

    def goodput(self) -> GoodputReport:
        found = self._engine.goodput()
        tenants = {row for part in self._seen.visibility.parts for row in part.tenants}
        whole = len(self._seen.visibility.parts) == 1
        lines = tuple(line for line in found.tenants if whole and line.tenant in tenants)
        return msgspec.structs.replace(found, tenants=lines)

    def fairness(self) -> FairnessReport:
        found, rows = self._engine.fairness(), self._state.queues.row_of
        return msgspec.structs.replace(
            found,
            queues=tuple(vertex for vertex in found.queues if self._seen.queues[rows[vertex.name]]),
            decisions=tuple(
                self._decision(made) for made in found.decisions if self._seen.shown_id(made.workload) == made.workload
            ),
        )

    def _decision(self, made: DecisionReport) -> DecisionReport:
        if made.next_workload and self._seen.shown_id(made.next_workload) != made.next_workload:
            return msgspec.structs.replace(made, next_workload=OTHERS, next_queue=self._seen.redacted(made.next_queue))
        return made

    def scaling(self) -> ScalingReport:
        return self._engine.scaling()

    def fragmentation(self) -> FragmentationReport:
        return self._engine.fragmentation()

    def topology(self, request: HeatRequest) -> HeatMap:
        return self._engine.topology(request)


ANSWERS: dict[str, Callable[..., Any]] = {
    "query": ScopedRead.query,
    "overview": ScopedRead.overview,
    "workload": ScopedRead.workload,
    "start_forecast": ScopedRead.start_forecast,
    "node": ScopedRead.node,
    "queue": ScopedRead.queue,
    "find": ScopedRead.find,
    "changes": ScopedRead.changes,
    "showback": ScopedRead.showback,
    "budgets": ScopedRead.budgets,
    "goodput": ScopedRead.goodput,
    "fairness": ScopedRead.fairness,
    "scaling": ScopedRead.scaling,
    "fragmentation": ScopedRead.fragmentation,
    "topology": ScopedRead.topology,
    "own_work": ScopedRead.own_work,
    "hidden_words": ScopedRead.hidden_words,
}
"""Question -> how it is answered. The last two are asked by the service, for what is kept beside the engine."""

_OF_MACHINES: frozenset[type[Any]] = frozenset((
    ev.NodesChanged, ev.NodesAdded, ev.NodesRelabelled, ev.NodesMoved, ev.NodesNoted, ev.RepairStarted, ev.Watched,
    ev.Interrupted, ev.Unneeded, ev.Ordered, ev.NodesGranted, ev.OrderEnded, ev.BackedOff, ev.MachinesRefused,
    ev.DemandNoted, ev.TargetsSet, ev.PoolScalingSet, ev.PoolAdded, ev.PriceSet, ev.PolicySet, ev.SettingsSet,
    ev.CellNamed, ev.DowntimeBegan, ev.DowntimeEnded, ev.ClockHeld,
))  # fmt: skip
"""Told to everybody: about nodes, pools, orders and the rules of the cell."""
_OF_WORK: frozenset[type[Any]] = frozenset((
    ev.Placed, ev.Started, ev.Finished, ev.Failed, ev.Cancelled, ev.Held, ev.Released, ev.Suspended, ev.Resumed,
    ev.Woke, ev.Evicted, ev.Exited, ev.Grown, ev.Shrunk, ev.Swapped, ev.Wanted, ev.Reclassed, ev.Reestimated,
    ev.PrioritySet, ev.MovedToQueue, ev.TurnedOnDemand, ev.Preempting, ev.PreemptionEnded, ev.SpendingApproved,
))  # fmt: skip
"""Told to who may see the workload of their `row`."""


def refuse_scoped(what: str) -> RefusedError:
    """The error of a question that shows others' work, and cannot be limited."""
    return RefusedError(
        f"'{what.replace('_', ' ')}' shows work of others, and you see part of this cell",
        "Ask somebody who sees the whole cell",
    )
