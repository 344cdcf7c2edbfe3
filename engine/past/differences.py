"""The difference of two times: what happened between them, and what is another rule at the end.

Fed with every event from the first time on. Happenings are kept as columns, so that a million of them take some tens of
megabytes; a question filters them by queue or node and gets counts and the latest. Rules are compared at the two ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from engine.model import events as ev
from engine.model.columns import Names, view
from engine.model.errors import NotFoundError
from engine.model.past_queries import (
    CellDifference,
    CountedHappenings,
    DifferenceRequest,
    Happening,
    QueueDifference,
    ValueChange,
)
from engine.model.specs import NodeState, QueueMode, WorkloadState
from engine.state.cell_state import BOUND, State

MAX_RULES = 1_000
WORK = ("preempted", "evicted", "failed", "cancelled", "finished", "started", "submitted", "held", "released",
        "suspended", "resumed", "reprioritised", "moved")  # fmt: skip
"""Happenings of workloads, those that somebody may have to explain first."""
NODES = ("lost", "interrupted", "suspect", "removed", "drained", "cordoned", "uncordoned", "returned", "added",
         "ordered")  # fmt: skip
"""Happenings of nodes."""
SCHEDULER, ENGINE, OWNER, WORKLOAD, PROVIDER, AUTOSCALER, HEALTH = (
    "scheduler", "engine", "submitter", "the work itself", "provider", "autoscaler", "health watch",
)  # fmt: skip
_BY_CAUSE = {
    "node lost": HEALTH, "node removed": HEALTH, "node pressure": HEALTH, "processes lost": HEALTH,
    "member lost": HEALTH, "spot taken": PROVIDER, "scaled down": AUTOSCALER,
}  # fmt: skip
_SINGLES: dict[type[Any], tuple[str, str]] = {
    ev.Started: ("started", SCHEDULER), ev.Finished: ("finished", WORKLOAD), ev.Cancelled: ("cancelled", ENGINE),
    ev.Held: ("held", ENGINE), ev.Released: ("released", ENGINE), ev.Suspended: ("suspended", ENGINE),
    ev.Resumed: ("resumed", ENGINE), ev.PrioritySet: ("reprioritised", ENGINE), ev.MovedToQueue: ("moved", ENGINE),
}  # fmt: skip
_DECIDED = frozenset((WORK.index("started"), WORK.index("finished")))
"""What no command brings about at once, though it may be in the same turn."""
_STATES = {
    NodeState.DOWN: ("lost", HEALTH), NodeState.SUSPECT: ("suspect", HEALTH), NodeState.DRAINING: ("drained", ENGINE),
    NodeState.CORDONED: ("cordoned", ENGINE), NodeState.REMOVED: ("removed", AUTOSCALER),
    NodeState.BOOTING: ("ordered", AUTOSCALER),
}  # fmt: skip


class HappeningColumns:
    """One entry for each happening, in the order of time."""

    def __init__(self) -> None:
        self.at_ms = array("q")
        self.what = array("b")
        self.row = array("i")
        self.place = array("i")
        """Queue or pool."""
        self.cause = array("i")
        self.by = array("i")

    def __len__(self) -> int:
        return len(self.at_ms)

    def add(self, at_ms: int, what: int, row: int, place: int, cause: int, by: int) -> None:
        self.at_ms.append(at_ms)
        self.what.append(what)
        self.row.append(row)
        self.place.append(place)
        self.cause.append(cause)
        self.by.append(by)


class _Standing(NamedTuple):
    """What is counted at either end."""

    version: int
    running: list[int]
    queued: list[int]
    rules: dict[tuple[str, str, str], str]


class DifferenceFold:
    """Gathers the difference. `begin` and `finish` at the two ends; between them `note` hears every event after it was
    applied, and None as a turn begins."""

    def __init__(self) -> None:
        self._work, self._nodes = HappeningColumns(), HappeningColumns()
        self._touched: dict[tuple[str, str], tuple[int, int]] = {}
        """(kind, subject) of a rule -> (cell ms, by) of its last change."""
        self._placed_rows, self._placed_nodes = array("i"), array("i")
        self._causes, self._by = Names([""]), Names()
        self._turn = (0, 0)
        """Entries when the present turn began."""
        self._turn_rules: list[tuple[str, str]] = []

    def begin(self, state: State, since_ms: int) -> None:
        self._state, self._since_ms = state, since_ms
        self._known = len(state.workloads.ids)
        self._node_states = array("b", state.capacity.state)
        self._before = _standing(state)
        allocations = state.allocations
        held = view(allocations.workload) >= 0
        self._placed_rows.frombytes(view(allocations.workload)[held].astype(np.int32).tobytes())
        self._placed_nodes.frombytes(view(allocations.node)[held].astype(np.int32).tobytes())

    def finish(self, until_ms: int) -> None:
        self._until_ms, self._after = until_ms, _standing(self._state)

    # -- what happens -------------------------------------------------------------------------------------------------

    def note(self, event: ev.AnyEvent | None) -> None:
        if event is None:
            self._turn, self._turn_rules = (len(self._work), len(self._nodes)), []
            return
        single = _SINGLES.get(type(event))
        if single is not None:
            self._of_work(*single, event.row)  # type: ignore[union-attr]
            return
        noted = _NOTED.get(type(event))
        if noted is not None:
            noted(self, event)

    def _of_work(self, what: str, by: str, row: int, cause: str = "", at_ms: int = -1) -> None:
        at_ms = self._state.now_ms if at_ms < 0 else at_ms
        queue = self._state.workloads.queue[row]
        self._work.add(at_ms, WORK.index(what), row, queue, self._causes.add(cause), self._by.add(by))

    def _of_node(self, what: str, by: str, node: int, cause: str = "") -> None:
        state = self._state
        pool = state.capacity.pool[node]
        self._nodes.add(state.now_ms, NODES.index(what), node, pool, self._causes.add(cause), self._by.add(by))

    def _rule(self, kind: str, subject: str, by: str = ENGINE) -> None:
        self._touched[kind, subject] = (self._state.now_ms, self._by.add(by))
        self._turn_rules.append((kind, subject))

    def _submitted(self, _event: ev.AnyEvent) -> None:
        count = len(self._state.workloads.ids)
        for row in range(self._known, count):
            self._of_work("submitted", OWNER, row)
        self._known = count

    def _evicted(self, event: ev.Evicted) -> None:
        cause = ev.EVICTION_CAUSES[event.cause]
        by_work = f", for {self._state.workloads.ids[event.by]}" if event.by >= 0 else ""
        preempted = event.cause in ev.PREEMPTIONS
        by = SCHEDULER if preempted else _BY_CAUSE.get(cause, ENGINE)
        self._of_work("preempted" if preempted else "evicted", by, event.row, cause + by_work)

    def _failed(self, event: ev.Failed) -> None:
        again = ", to be tried again" if event.retry_at_ms >= 0 else ""
        self._of_work("failed", WORKLOAD, event.row, ev.FAILURE_CAUSES[event.cause] + again)

    def _started_many(self, event: ev.StartedMany) -> None:
        for row in memoryview(event.rows).cast("i"):
            self._of_work("started", SCHEDULER, row)

    def _finished_many(self, event: ev.FinishedMany) -> None:
        for row, at_ms in zip(memoryview(event.rows).cast("i"), memoryview(event.at_ms).cast("q"), strict=True):
            self._of_work("finished", WORKLOAD, row, at_ms=at_ms)

    def _bound(self, event: ev.Placed | ev.Grown | ev.Swapped) -> None:
        for group in event.groups:
            nodes = memoryview(group.nodes).cast("i")
            self._placed_nodes.extend(nodes)
            self._placed_rows.extend([event.row] * len(nodes))

    def _bound_many(self, event: ev.PlacedMany) -> None:
        self._placed_rows.frombytes(event.rows)
        self._placed_nodes.frombytes(event.nodes)

    def _gangs_bound(self, event: ev.PlacedGangs) -> None:
        for gang in event.singles():
            self._bound(gang)

    def _nodes_changed(self, event: ev.NodesChanged) -> None:
        for node in memoryview(event.nodes).cast("i"):
            before, self._node_states[node] = NodeState(self._node_states[node]), event.state
            if event.state == NodeState.READY:
                by_hand = before in (NodeState.CORDONED, NodeState.DRAINING)
                self._of_node("uncordoned" if by_hand else "returned", ENGINE if by_hand else HEALTH, node)
            elif event.state != before:
                self._of_node(*_STATES[NodeState(event.state)], node)
        if event.state == NodeState.REMOVED:
            self._sized(memoryview(event.nodes).cast("i"), AUTOSCALER)

    def _sized(self, nodes: Iterable[int], by: str) -> None:
        """The pools of these nodes have more of them, or fewer."""
        capacity = self._state.capacity
        for pool in {capacity.pool[node] for node in nodes}:
            self._rule("pool", capacity.pools[pool].name, by)

    def _nodes_added(self, event: ev.NodesAdded | ev.NodesGranted) -> None:
        granted = isinstance(event, ev.NodesGranted)
        new = range(len(self._node_states), len(self._state.capacity.node_ids))
        self._sized(new, AUTOSCALER if granted else ENGINE)
        for node in new:
            self._of_node("ordered" if granted else "added", PROVIDER if granted else ENGINE, node)
        self._node_states.extend(self._state.capacity.state[len(self._node_states) :])

    def _interrupted(self, event: ev.Interrupted) -> None:
        for node in memoryview(event.nodes).cast("i"):
            self._of_node("interrupted", PROVIDER, node)

    def _audited(self, event: ev.Audited) -> None:
        """What the turn did up to here was this person's plan; what follows is the engine's."""
        entry = event.entry
        by = self._by.add(f"{entry.actor}, plan {entry.digest[:12]}")
        for columns, first in zip((self._work, self._nodes), self._turn, strict=True):
            for index in range(first, len(columns)):
                if columns is self._nodes or columns.what[index] not in _DECIDED:
                    columns.by[index] = by
        for rule in self._turn_rules:
            self._touched[rule] = (self._touched[rule][0], by)

    # -- what is told -------------------------------------------------------------------------------------------------

    def answer(self, request: DifferenceRequest) -> CellDifference:
        """Raises NotFoundError for a queue or node that there is not."""
        queues, rows = self._queues_of(request.queue), self._rows_on(request.node)
        work = self._chosen(self._work, queues, rows)
        node = None if not request.node else self._node_row(request.node)
        nodes = self._chosen(self._nodes, None, None if node is None else np.array([node]))
        if request.queue and node is None:
            nodes = nodes[:0]
        rules = self._rules(request)
        state = self._state
        return CellDifference(
            since_ms=self._since_ms,
            until_ms=self._until_ms,
            since_version=self._before.version,
            until_version=self._after.version,
            queues=tuple(self._by_queue(work, queues)),
            workloads=tuple(self._told(self._work, WORK, work, request.limit, lambda row: state.workloads.ids[row])),
            nodes=tuple(self._told(self._nodes, NODES, nodes, request.limit, lambda row: state.capacity.node_ids[row])),
            rules=tuple(rules[:MAX_RULES]),
            rule_count=len(rules),
        )

    def _queues_of(self, name: str) -> set[int] | None:
        """Rows of the queue and all below it; None: no filter."""
        if not name:
            return None
        specs, row_of = self._state.queues.specs, self._state.queues.row_of
        if name not in row_of:
            raise NotFoundError(f"there is no queue '{name[:80]}'", "See `muster get queues`")
        found = {row_of[name]}
        for _ in specs:
            found |= {row for row, spec in enumerate(specs) if spec.parent and row_of[spec.parent] in found}
        return found

    def _node_row(self, name: str) -> int:
        row = self._state.capacity.row_of.get(name)
        if row is None:
            raise NotFoundError(f"there is no node '{name[:80]}'", "See `muster get nodes`")
        return row

    def _rows_on(self, name: str) -> Any:
        """Rows of the workloads that were on the node; None: no filter."""
        if not name:
            return None
        return np.unique(view(self._placed_rows)[view(self._placed_nodes) == self._node_row(name)])

    @staticmethod
    def _chosen(columns: HappeningColumns, places: set[int] | None, rows: Any) -> Any:
        """Indexes of the entries that satisfy the filters."""
        chosen = np.ones(len(columns), bool)
        if places is not None:
            chosen &= np.isin(view(columns.place), list(places))
        if rows is not None:
            chosen &= np.isin(view(columns.row), rows)
        return np.flatnonzero(chosen)

    def _told(
        self, columns: HappeningColumns, names: tuple[str, ...], chosen: Any, limit: int, name: Callable[[int], str]
    ) -> Iterator[CountedHappenings]:
        whats = view(columns.what)[chosen] if len(chosen) else np.zeros(0, np.int8)
        for what, text in enumerate(names):
            found = chosen[whats == what]
            if len(found):
                latest = tuple(self._happening(columns, text, index, name) for index in found[-limit:].tolist())
                yield CountedHappenings(what=text, count=len(found), latest=latest)

    def _happening(self, columns: HappeningColumns, what: str, index: int, name: Callable[[int], str]) -> Happening:
        state, row, by = self._state, columns.row[index], self._by.names[columns.by[index]]
        work = columns is self._work
        if by in (SCHEDULER, ENGINE) and state.settings.decided_by != "muster":
            by = state.settings.decided_by
        if by == OWNER:
            by = state.workloads.tenants.names[state.workloads.tenant[row]]
        place = state.queues.specs[columns.place[index]] if work else state.capacity.pools[columns.place[index]]
        return Happening(
            at_ms=columns.at_ms[index], what=what, subject=name(row), place=place.name,
            detail=self._causes.names[columns.cause[index]], by=by,
        )  # fmt: skip

    def _by_queue(self, chosen: Any, queues: set[int] | None) -> Iterator[QueueDifference]:
        """Queues in which anything happened or is otherwise, in the order of the tree."""
        places, whats = view(self._work.place)[chosen], view(self._work.what)[chosen]
        specs = self._state.queues.specs
        counts = {what: np.bincount(places[whats == index], minlength=len(specs)) for index, what in enumerate(WORK)}
        for row, spec in enumerate(specs):
            if queues is not None and row not in queues:
                continue
            ends = [
                column[row] if row < len(column) else 0
                for column in (self._before.running, self._after.running, self._before.queued, self._after.queued)
            ]
            told = {
                what: int(counts[what][row]) for what in ("submitted", "started", "finished", "failed", "cancelled")
            }
            told["evicted"] = int(counts["evicted"][row] + counts["preempted"][row])
            if any(told.values()) or ends[0] != ends[1] or ends[2] != ends[3]:
                yield QueueDifference(
                    queue=spec.name, **told,
                    running_before=ends[0], running_after=ends[1], queued_before=ends[2], queued_after=ends[3],
                )  # fmt: skip

    def _rules(self, request: DifferenceRequest) -> list[ValueChange]:
        before, after = self._before.rules, self._after.rules
        found = []
        for key in dict.fromkeys((*before, *after)):
            kind, subject, field = key
            if before.get(key, "") == after.get(key, "") or not self._is_about(request, kind, subject):
                continue
            at_ms, by = self._touched.get((kind, subject), (self._until_ms, -1))
            found.append(
                ValueChange(
                    at_ms=at_ms, kind=kind, subject=subject, field=field, before=before.get(key, ""),
                    after=after.get(key, ""), by=self._by.names[by] if by >= 0 else ENGINE,
                )
            )  # fmt: skip
        return sorted(found, key=lambda change: change.at_ms)

    def _is_about(self, request: DifferenceRequest, kind: str, subject: str) -> bool:
        if request.node:
            state = self._state
            pool = state.capacity.pools[state.capacity.pool[self._node_row(request.node)]].name
            return (kind, subject) == ("pool", pool)
        below = subject == request.queue or subject.startswith(f"{request.queue}/")
        return not request.queue or (kind == "queue" and below)


def _standing(state: State) -> _Standing:
    w, count = state.workloads, len(state.queues.specs)
    states, queues = view(w.state), view(w.queue)
    if not w.ids:
        return _Standing(state.version, [0] * count, [0] * count, _rules_of(state))
    bound = np.isin(states, BOUND)
    return _Standing(
        state.version,
        np.bincount(queues[bound], minlength=count).tolist(),
        np.bincount(queues[states == WorkloadState.QUEUED], minlength=count).tolist(),
        _rules_of(state),
    )


def _rules_of(state: State) -> dict[tuple[str, str, str], str]:
    """Every rule, price and size of the cell, as text."""
    found = {("policy", "", "policy"): state.policy, ("cell", "", "name"): state.cell}

    def put(kind: str, subject: str, spec: Any) -> None:
        for field, value in _flat(spec):
            if field != "name":
                found[kind, subject, field] = value

    put("settings", "", state.settings)
    for row, queue in enumerate(state.queues.specs):
        put("queue", queue.name, queue)
        found["queue", queue.name, "mode"] = QueueMode(state.queues.mode[row]).label
    for row, pool in enumerate(state.capacity.pools):
        put("pool", pool.name, pool)
        found["pool", pool.name, "nodes"] = str(state.capacity.pool_nodes[row])
        found["pool", pool.name, "targets"] = str(len(state.sizing.targets.get(row, ())))
    for budget in state.budgets.specs:
        put("budget", budget.name, budget)
    for priority in state.workloads.priority_classes:
        put("priority class", priority.name, priority)
    for reservation in state.bookings.reservations:
        put("reservation", reservation.spec.name, reservation.spec)
    return found


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a spec, and of what is in it, each with its path."""
    if isinstance(value, msgspec.Struct):
        for name, inner in msgspec.structs.asdict(value).items():
            yield from _flat(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _flat(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, tuple | list):
        if value:
            yield path, msgspec.json.encode(value).decode()
    elif value is not None:
        yield path, str(value).lower() if isinstance(value, bool) else str(value)


_NOTED: dict[type[Any], Callable[[DifferenceFold, Any], None]] = {
    ev.Submitted: DifferenceFold._submitted,
    ev.SubmittedMany: DifferenceFold._submitted,
    ev.Evicted: DifferenceFold._evicted,
    ev.Failed: DifferenceFold._failed,
    ev.StartedMany: DifferenceFold._started_many,
    ev.FinishedMany: DifferenceFold._finished_many,
    ev.Placed: DifferenceFold._bound,
    ev.Grown: DifferenceFold._bound,
    ev.Swapped: DifferenceFold._bound,
    ev.PlacedMany: DifferenceFold._bound_many,
    ev.PlacedGangs: DifferenceFold._gangs_bound,
    ev.NodesChanged: DifferenceFold._nodes_changed,
    ev.NodesAdded: DifferenceFold._nodes_added,
    ev.NodesGranted: DifferenceFold._nodes_added,
    ev.NodesMoved: lambda fold, event: fold._sized(
        [fold._state.capacity.row_of[node.id] for node in event.nodes], OWNER
    ),
    ev.Interrupted: DifferenceFold._interrupted,
    ev.Audited: DifferenceFold._audited,
    ev.QueueAdded: lambda fold, event: fold._rule("queue", event.queue.name),
    ev.QueueChanged: lambda fold, event: fold._rule("queue", event.queue.name),
    ev.QueueModeSet: lambda fold, event: fold._rule("queue", fold._state.queues.specs[event.queue].name),
    ev.PoolAdded: lambda fold, event: fold._rule("pool", event.pool.name),
    ev.PoolScalingSet: lambda fold, event: fold._rule("pool", fold._state.capacity.pools[event.pool].name),
    ev.TargetsSet: lambda fold, event: fold._rule("pool", fold._state.capacity.pools[event.pool].name),
    ev.PriceSet: lambda fold, event: fold._rule("pool", fold._state.capacity.pools[event.pool].name),
    ev.BudgetSet: lambda fold, event: fold._rule("budget", event.budget.name),
    ev.BudgetRemoved: lambda fold, event: fold._rule("budget", event.name),
    ev.PriorityClassAdded: lambda fold, event: fold._rule("priority class", event.priority_class.name),
    ev.PriorityClassRemoved: lambda fold, event: fold._rule("priority class", event.name),
    ev.Reserved: lambda fold, event: fold._rule("reservation", event.reservation.name),
    ev.Unreserved: lambda fold, event: fold._rule("reservation", event.name),
    ev.PolicySet: lambda fold, _event: fold._rule("policy", ""),
    ev.SettingsSet: lambda fold, _event: fold._rule("settings", ""),
    ev.CellNamed: lambda fold, _event: fold._rule("cell", ""),
}
