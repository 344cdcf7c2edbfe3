"""Recent activity for people: the event tail in words, waits, rates and a curve of use over the last minutes.

One table by type of event gives the words: the action, the object, and a detail. None of it is part of the state. It
starts empty after a restart, and decisions never read it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from engine.model import events as ev
from engine.model.columns import view
from engine.model.external_cells import SCHEDULERS
from engine.model.overviews import Change, Changes
from engine.model.quantities import counted, usd, utc
from engine.model.spec_parts import exit_words
from engine.model.specs import NodeState, QueueMode, WorkloadState
from engine.state.budgets import BudgetStage
from engine.state.cell_state import State
from engine.state.external_cell import Phase, wording_of
from engine.state.machines import NOTES, OrderState
from engine.state.workloads import APPROVED, EVICTED, EXITED, MOVED, TRANSITIONS, TURNED

Words = tuple[str, str, str]
"""(what, subject, detail)"""


def words_of(state: State, event: ev.AnyEvent) -> Words:
    """The words of one event. What has none in the table is told by its name alone."""
    words = _TABLE.get(type(event))
    return words(state, event) if words is not None else (type(event).__name__.lower(), "", "")


def _places(groups: tuple[ev.GroupPlacement, ...]) -> int:
    return sum(len(group.nodes) // 4 for group in groups)


def _first_node(state: State, nodes: bytes) -> tuple[str, str]:
    """The first of them, and how many more there are."""
    rows = memoryview(nodes).cast("i")
    return state.capacity.node_ids[rows[0]], f"and {len(rows) - 1} more nodes" if len(rows) > 1 else ""


def _pool(state: State, event: Any) -> str:
    name: str = state.capacity.pools[event.pool].name
    return name


def _of_workload(what: str) -> Callable[[State, Any], Words]:
    return lambda state, event: (what, state.workloads.ids[event.row], "")


# -- workloads --------------------------------------------------------------------------------------------------------


def _placed(state: State, event: ev.Placed) -> Words:
    return "placed", state.workloads.ids[event.row], f"on {counted(_places(event.groups), 'node')}"


def _evicted(state: State, event: ev.Evicted) -> Words:
    ids = state.workloads.ids
    preemptor = f", for {ids[event.by]}" if event.by >= 0 else ""
    return TRANSITIONS[EVICTED], ids[event.row], ev.EVICTION_CAUSES[event.cause] + preemptor


def _failed(state: State, event: ev.Failed) -> Words:
    again = ", to be tried again" if event.retry_at_ms >= 0 else ""
    return "failed", state.workloads.ids[event.row], ev.FAILURE_CAUSES[event.cause] + again


def _shrunk(state: State, event: ev.Shrunk) -> Words:
    ids = state.workloads.ids
    why = "a node of it ran short of memory" if event.until_ms >= 0 else ""
    return "shrunk", ids[event.row], f"for {ids[event.by]}" if event.by >= 0 else why


def _swapped(state: State, event: ev.Swapped) -> Words:
    gained = sum(sum(memoryview(group.counts).cast("i")) for group in event.groups)
    went_on = f"{counted(gained, 'task')} placed anew" if gained else "goes on with fewer tasks"
    return "swapped", state.workloads.ids[event.row], f"{counted(len(event.nodes) // 4, 'node')} lost, {went_on}"


def _reestimated(state: State, event: ev.Reestimated) -> Words:
    estimate = f"{event.estimate_ms // 60_000} min" if event.estimate_ms else "no time limit"
    return "re-estimated", state.workloads.ids[event.row], estimate


def _priority_set(state: State, event: ev.PrioritySet) -> Words:
    w = state.workloads
    return "priority", w.ids[event.row], w.priority_classes[event.priority_class].name


def _asked(state: State) -> str:
    return SCHEDULERS[state.settings.decided_by]


# -- nodes and orders -------------------------------------------------------------------------------------------------


def _noted(state: State, event: ev.NodesNoted) -> Words:
    return NOTES[event.note].partition(":")[0] or "note", *_first_node(state, event.nodes)


def _ordered(state: State, event: ev.Ordered) -> Words:
    zone = f" in {event.zone}" if event.zone else ""
    workload = f" for {state.workloads.ids[event.row]}" if event.row >= 0 else ""
    return "ordered", _pool(state, event), f"{counted(event.count, 'node')}{zone}{workload}"


def _order_ended(state: State, event: ev.OrderEnded) -> Words:
    granted, wanted = state.orders.granted[event.order], state.orders.wanted[event.order]
    detail = f"{granted} of {counted(wanted, 'node')} granted"
    return f"order {OrderState(event.how).label}", f"order {event.order}", detail


def _backed_off(state: State, event: ev.BackedOff) -> Words:
    if event.until_ms:
        return "backed off", _pool(state, event), f"not asked for nodes until {utc(event.until_ms)}"
    return "back", _pool(state, event), "delivers again"


def _machines_refused(state: State, event: ev.MachinesRefused) -> Words:
    of = f"order {event.order}" if event.order >= 0 else event.names[0]
    given_back = f"{counted(len(event.names), 'machine')} given back"
    return "refused", of, f"{given_back}, {event.names[0]} first: {event.reason}"


# -- other schedulers -------------------------------------------------------------------------------------------------


def _intent_moved(state: State, event: ev.IntentSettled | ev.IntentAnswered) -> Words:
    return f"intent {Phase(event.phase).label}", f"i{event.number}", event.text


# -- budgets ----------------------------------------------------------------------------------------------------------


def _budget_set(state: State, event: ev.BudgetSet) -> Words:
    spec = event.budget
    return "budget set", spec.name, f"{usd(spec.limit_microusd)} of {spec.scope} {spec.of}, {spec.action}"


_TABLE: dict[type[Any], Callable[[State, Any], Words]] = {
    # Workloads.
    ev.Owned: lambda state, e: ("submitted", counted(e.count, "workload"), ""),
    ev.Submitted: lambda state, e: ("submitted", e.workload.id, f"to {e.workload.queue}"),
    ev.Placed: _placed,
    ev.Started: _of_workload("running"),
    ev.Finished: _of_workload("finished"),
    ev.Cancelled: _of_workload("cancelled"),
    ev.Recalled: lambda state, e: ("recalled", state.workloads.ids[e.row], f"its fleet moved it to {e.to}"),
    ev.Held: _of_workload("held"),
    ev.Released: _of_workload("released"),
    ev.Suspended: _of_workload("suspended"),
    ev.Resumed: _of_workload("resumed"),
    ev.Woke: _of_workload("woke"),
    ev.Evicted: _evicted,
    ev.Failed: _failed,
    ev.Exited: lambda state, e: (TRANSITIONS[EXITED], state.workloads.ids[e.row], exit_words(e.task, e.status)),
    ev.Grown: lambda state, e: ("grown", state.workloads.ids[e.row], f"on {_places(e.groups)} more places"),
    ev.Shrunk: _shrunk,
    ev.Swapped: _swapped,
    ev.Wanted: lambda state, e: (
        "wanted", state.workloads.ids[e.row], f"{e.tasks} replicas; its load takes {e.load}",
    ),
    ev.Reclassed: lambda state, e: ("resized", state.workloads.ids[e.row], e.evidence),
    ev.Reestimated: _reestimated,
    ev.PrioritySet: _priority_set,
    ev.MovedToQueue: lambda state, e: (
        TRANSITIONS[MOVED], state.workloads.ids[e.row], f"to queue {state.queues.specs[e.queue].name}",
    ),
    ev.TurnedOnDemand: lambda state, e: (TRANSITIONS[TURNED], state.workloads.ids[e.row], "its slack ran out"),
    ev.Preempting: lambda state, e: (
        "preempting", state.workloads.ids[e.row], f"{len(e.victims) // 4} others write their checkpoints for it",
    ),
    ev.PreemptionEnded: _of_workload("preemption dropped"),
    # Nodes and orders.
    ev.NodesChanged: lambda state, e: (NodeState(e.state).label, *_first_node(state, e.nodes)),
    ev.NodesAdded: lambda state, e: ("nodes added", e.nodes[0].id, f"{len(e.nodes)} in all"),
    ev.NodesRelabelled: lambda state, e: ("relabelled", e.nodes[0].id, f"{len(e.nodes)} in all"),
    ev.NodesMoved: lambda state, e: ("moved", e.nodes[0].id, f"{len(e.nodes)} in all, to pool {e.nodes[0].pool} first"),
    ev.NodesNoted: _noted,
    ev.RepairStarted: lambda state, e: ("repair begun", *_first_node(state, e.nodes)),
    ev.Watched: lambda state, e: ("watched" if e.watching else "not watched", *_first_node(state, e.nodes)),
    ev.Interrupted: lambda state, e: ("interrupted", *_first_node(state, e.nodes)),
    ev.Unneeded: lambda state, e: (
        "hardly used" if e.since_ms >= 0 else "used again", *_first_node(state, e.nodes),
    ),
    ev.Ordered: _ordered,
    ev.NodesGranted: lambda state, e: (
        "granted", f"order {e.order}", f"{counted(len(e.nodes), 'node')}, {e.nodes[0].id} first",
    ),
    ev.OrderEnded: _order_ended,
    ev.BackedOff: _backed_off,
    ev.MachinesRefused: _machines_refused,
    ev.DemandNoted: lambda state, e: (
        "asked for", _pool(state, e), f"{counted(e.nodes, 'node')}, the most of this hour",
    ),
    ev.TargetsSet: lambda state, e: ("targets set", _pool(state, e), f"{len(e.targets)} in all"),
    ev.PoolScalingSet: lambda state, e: (
        "scaling set", _pool(state, e), f"{e.scaling.least} to {e.scaling.most} nodes",
    ),
    ev.Reserved: lambda state, e: ("reserved", e.reservation.name, counted(len(e.reservation.nodes), "node")),
    ev.Unreserved: lambda state, e: ("reservation over", e.name, ""),
    # Other schedulers.
    ev.Intended: lambda state, e: (f"wanted of {_asked(state)}", f"i{e.number}", wording_of(e.command)),
    ev.IntentSent: lambda state, e: (f"carried to {_asked(state)}", f"i{e.number}", ""),
    ev.IntentAccepted: lambda state, e: (
        f"{_asked(state)} accepted", f"i{e.number}", f"job {e.job}" if e.job else e.text,
    ),
    ev.IntentReopened: lambda state, e: ("to be carried again", f"i{e.number}", e.text),
    ev.IntentSettled: _intent_moved,
    ev.IntentAnswered: _intent_moved,
    # Money.
    ev.PriceSet: lambda state, e: (
        "price set", _pool(state, e), f"{usd(e.price_microusd_hour)} an hour for a node",
    ),
    ev.BudgetSet: _budget_set,
    ev.BudgetRemoved: lambda state, e: ("budget removed", e.name, ""),
    ev.BudgetStaged: lambda state, e: (f"budget {BudgetStage(e.stage).label}", e.name, ""),
    ev.SpendingApproved: _of_workload(TRANSITIONS[APPROVED]),
    # Rules.
    ev.PoolAdded: lambda state, e: ("pool added", e.pool.name, ""),
    ev.QueueAdded: lambda state, e: ("queue added", e.queue.name, ""),
    ev.QueueChanged: lambda state, e: ("queue changed", e.queue.name, ""),
    ev.QueueModeSet: lambda state, e: (f"queue {QueueMode(e.mode).label}", state.queues.specs[e.queue].name, ""),
    ev.PriorityClassAdded: lambda state, e: (
        "priority class added", e.priority_class.name, str(e.priority_class.value),
    ),
    ev.PriorityClassRemoved: lambda state, e: ("priority class removed", e.name, ""),
    ev.PolicySet: lambda state, e: ("policy", e.policy, ""),
    ev.SettingsSet: lambda state, e: ("settings", state.cell, ""),
    ev.CellNamed: lambda state, e: ("cell", e.name, ""),
    ev.Audited: lambda state, e: (
        "approved", e.entry.action, f"by {e.entry.actor}, plan {e.entry.digest[:12]}",
    ),
    # The engine itself.
    ev.DowntimeBegan: lambda state, e: ("downtime began", "engine", "no engine decides from here on"),
    ev.DowntimeEnded: lambda state, e: (
        "downtime over", "engine", f"no engine was running since {utc(e.since_ms)}",
    ),
    ev.ClockHeld: lambda state, e: (
        "clock held", "engine", f"the host's clock shows {utc(e.host_ms)}; the cell keeps its own time",
    ),
}  # fmt: skip


TAIL = 20_000
"""Events kept for readers that follow along."""
SAMPLES = 240
SAMPLE_EVERY_MS = 60_000
"""Cell milliseconds between samples of the use curve."""
WAITS = 1_000
Single = tuple[int, int, ev.AnyEvent]
ONE = (1).to_bytes(4, "little")


class Recent:
    """Fed with every event after it was applied."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._tail: deque[tuple[int, int, ev.AnyEvent]] = deque()
        """(state version and cell ms after it, event)"""
        self._kept = 0
        """Versions in the tail."""
        self.samples: deque[tuple[int, int, int]] = deque(maxlen=SAMPLES)
        """(cell ms, GPU or else CPU use in permille, queued workloads)"""
        self.waits: deque[int] = deque(maxlen=WAITS)
        """Milliseconds waited by the workloads started last."""
        self._minutes: deque[list[int]] = deque(maxlen=60)
        """[minute, started, finished]"""

    def note(self, event: ev.AnyEvent) -> None:
        kind, state = type(event), self._state
        if kind is ev.Tick or kind is ev.Owned:
            return
        self._tail.append((state.version, state.now_ms, event))
        self._kept += event.versions
        if self._kept > TAIL:
            while self._kept - self._tail[0][2].versions >= TAIL:
                self._kept -= self._tail.popleft()[2].versions
        if kind is ev.Submitted or kind is ev.Started:
            return
        if isinstance(event, ev.Placed):
            self._note_start(event.row)
            self._count(state.now_ms, 1, 1)
        elif isinstance(event, ev.PlacedMany | ev.PlacedGangs):
            self._note_starts(np.frombuffer(event.rows, np.int32))
            self._count(state.now_ms, 1, event.versions)
        elif isinstance(event, ev.Finished):
            self._count(state.now_ms, 2, 1)
        elif isinstance(event, ev.FinishedMany):
            minutes, ends = np.unique(np.frombuffer(event.at_ms, np.int64) // 60_000, return_counts=True)
            for minute, count in zip(minutes.tolist(), ends.tolist(), strict=True):
                self._count(minute * 60_000, 2, count)

    def _note_start(self, row: int) -> None:
        w = self._state.workloads
        if w.attempts[row] == 1:
            self.waits.append(self._state.now_ms - w.submitted[row])

    def _note_starts(self, rows: np.ndarray[Any, np.dtype[np.int32]]) -> None:
        w = self._state.workloads
        first = rows[view(w.attempts)[rows] == 1][-WAITS:]
        self.waits.extend((self._state.now_ms - view(w.submitted)[first]).tolist())

    def _count(self, at_ms: int, what: int, more: int) -> None:
        minute = at_ms // 60_000
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append([minute, 0, 0])
        self._minutes[-1][what] += more

    def last_hour(self, now_ms: int) -> tuple[int, int]:
        """(started, finished) in the last 60 minutes of cell time."""
        since = now_ms // 60_000 - 60
        rows = [row for row in self._minutes if row[0] > since]
        return sum(row[1] for row in rows), sum(row[2] for row in rows)

    def sample(self, now_ms: int) -> None:
        """Add to the use curve when it is time. A cell whose clock was never set has no curve."""
        if not now_ms:
            return
        if self.samples and now_ms < self.samples[-1][0] + SAMPLE_EVERY_MS:
            return
        capacity, used = totals(self._state)
        main = 2 if capacity[2] else 0
        use = used[main] * 1000 // capacity[main] if capacity[main] else 0
        self.samples.append((now_ms, use, self._state.workloads.state_counts[WorkloadState.QUEUED]))

    def changes(
        self, after: int, limit: int, now_ms: int, told: Callable[[ev.AnyEvent], bool] | None = None
    ) -> Changes:
        """The newest `limit` changes after version `after`, oldest first. `told`: which of them count; None: all."""
        state = self._state
        found: list[Single] = []
        """The newest first."""
        fresh = 0
        for entry in reversed(self._tail):
            if entry[0] <= after:
                break
            singles = [single for single in _singles(*entry) if single[0] > after]
            if told is not None:
                singles = [single for single in singles if told(single[2])]
            fresh += len(singles)
            if len(found) < limit:
                found += reversed(singles)
        shown = found[: max(limit, 0)]
        items = tuple(self._change(*single) for single in reversed(shown))
        first = self._tail[0] if self._tail else None
        remembered = state.version + 1 if first is None else first[0] - first[2].versions + 1
        lost = max(0, remembered - 1 - after)
        return Changes(version=state.version, at_ms=now_ms, items=items, missed=fresh - len(shown) + lost)

    def _change(self, version: int, at_ms: int, event: ev.AnyEvent) -> Change:
        what, subject, detail = words_of(self._state, event)
        return Change(version=version, at_ms=at_ms, what=what, subject=subject, detail=detail)


def _singles(version: int, at_ms: int, event: ev.AnyEvent) -> list[Single]:
    """(version, cell ms, event) of each of the single events that one stands for."""
    first = version - event.versions + 1
    if isinstance(event, ev.SubmittedMany):
        return [(first + i, at_ms, ev.Submitted(spec)) for i, spec in enumerate(event.workloads)]
    if isinstance(event, ev.StartedMany):
        return [(first + i, at_ms, ev.Started(row)) for i, row in enumerate(memoryview(event.rows).cast("i"))]
    if isinstance(event, ev.PlacedGangs):
        return [(first + i, at_ms, gang) for i, gang in enumerate(event.singles())]
    if isinstance(event, ev.DatedMany):
        rows, times = memoryview(event.rows).cast("i"), memoryview(event.at_ms).cast("q")
        dates = zip(rows, times, strict=True)
        return [(first + i, at_ms, ev.Dated(row, event.what, to)) for i, (row, to) in enumerate(dates)]
    if isinstance(event, ev.PlacedMany):
        rows, nodes = memoryview(event.rows).cast("i"), memoryview(event.nodes).cast("i")
        placements = ((row, (ev.GroupPlacement(nodes[i : i + 1].tobytes(), ONE),)) for i, row in enumerate(rows))
        return [(first + i, at_ms, ev.Placed(row, groups)) for i, (row, groups) in enumerate(placements)]
    if isinstance(event, ev.FinishedMany):
        rows, times = memoryview(event.rows).cast("i"), memoryview(event.at_ms).cast("q")
        ticks = [1 if i and at != times[i - 1] else 0 for i, at in enumerate(times)]
        ticks[0] = event.ticks - sum(ticks)
        return [
            (first + i + moved, at, ev.Finished(row))
            for i, (row, at, moved) in enumerate(zip(rows, times, accumulate(ticks), strict=True))
        ]
    return [(version, at_ms, event)]


def totals(state: State) -> tuple[list[int], list[int]]:
    """(capacity, used) of the whole cell, in the order of RESOURCES."""
    used = [0, 0, 0, 0]
    for row, spec in enumerate(state.queues.specs):
        if not spec.parent:
            for i, quantity in enumerate(state.queues.used_vector(row)):
                used[i] += quantity
    return list(state.capacity.totals), used
