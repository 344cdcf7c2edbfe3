"""What the engine remembers of the last minutes for people to look at: the event tail, waits, rates, a use curve.

None of it is part of the state: it starts empty after a restart, and decisions never read it.
"""

from __future__ import annotations

from collections import deque
from itertools import accumulate
from typing import Any

import numpy as np

from engine import events as ev
from engine.budgets import Stage
from engine.columns import view
from engine.failures import NOTES
from engine.intents import Phase, wording_of
from engine.model import NodeState, QueueMode, WorkloadState
from engine.money import usd
from engine.orders import OrderState
from engine.quantities import moment
from engine.query import Change, Changes
from engine.run_spec import exit_words
from engine.state import State
from engine.workloads import APPROVED, EXITED, MOVED, REQUEUED, TRANSITIONS, TURNED

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
        state = self._state
        if isinstance(event, ev.Tick):
            return
        self._tail.append((state.version, state.now_ms, event))
        self._kept += event.versions
        while self._kept - self._tail[0][2].versions >= TAIL:
            self._kept -= self._tail.popleft()[2].versions
        if isinstance(event, ev.Placed):
            self._note_start(event.row)
            self._count(state.now_ms, 1, 1)
        elif isinstance(event, ev.PlacedMany):
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

    def changes(self, after: int, limit: int, now_ms: int) -> Changes:
        """The newest `limit` changes after version `after`, oldest first."""
        state = self._state
        found: list[Single] = []
        """The newest first."""
        fresh = 0
        for entry in reversed(self._tail):
            if entry[0] <= after:
                break
            singles = [single for single in _singles(*entry) if single[0] > after]
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
        what, subject, detail = _describe(self._state, event)
        return Change(version=version, at_ms=at_ms, what=what, subject=subject, detail=detail)


def _singles(version: int, at_ms: int, event: ev.AnyEvent) -> list[Single]:
    """(version, cell ms, event) of each of the single events that one stands for."""
    first = version - event.versions + 1
    if isinstance(event, ev.SubmittedMany):
        return [(first + i, at_ms, ev.Submitted(spec)) for i, spec in enumerate(event.workloads)]
    if isinstance(event, ev.StartedMany):
        return [(first + i, at_ms, ev.Started(row)) for i, row in enumerate(memoryview(event.rows).cast("i"))]
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


def _first_node(state: State, nodes: bytes) -> tuple[str, str]:
    """The first of them, and how many more there are."""
    rows = memoryview(nodes).cast("i")
    return state.capacity.node_ids[rows[0]], f"and {len(rows) - 1} more nodes" if len(rows) > 1 else ""


def _describe(state: State, event: ev.AnyEvent) -> tuple[str, str, str]:
    """(what, subject, detail) of one event, for people."""
    ids = state.workloads.ids
    match event:
        case ev.Submitted(workload=spec):
            return "submitted", spec.id, f"to {spec.queue}"
        case ev.Placed(row=row, groups=groups):
            nodes = sum(len(group.nodes) // 4 for group in groups)
            return "placed", ids[row], f"on {nodes} node{'s' if nodes != 1 else ''}"
        case ev.Requeued(row=row, cause=cause, by=by):
            return TRANSITIONS[REQUEUED], ids[row], ev.REQUEUE_CAUSES[cause] + (f", for {ids[by]}" if by >= 0 else "")
        case ev.Failed(row=row, cause=cause, retry_at_ms=retry_at_ms):
            return "failed", ids[row], ev.FAILURE_CAUSES[cause] + (", to be tried again" if retry_at_ms >= 0 else "")
        case ev.Grown(row=row, groups=groups):
            return "grown", ids[row], f"on {sum(len(group.nodes) // 4 for group in groups)} more places"
        case ev.Swapped(row=row, nodes=nodes, groups=groups):
            gained = sum(sum(memoryview(group.counts).cast("i")) for group in groups)
            went_on = f"{gained} task{'s' if gained != 1 else ''} placed anew" if gained else "goes on with fewer tasks"
            return "swapped", ids[row], f"{len(nodes) // 4} node{'s' if len(nodes) != 4 else ''} lost, {went_on}"
        case ev.RepairStarted(nodes=nodes):
            return "repair begun", *_first_node(state, nodes)
        case ev.Watched(nodes=nodes, watching=watching):
            return "watched" if watching else "not watched", *_first_node(state, nodes)
        case ev.NodesNoted(nodes=nodes, note=note):
            return NOTES[note].partition(":")[0] or "note", *_first_node(state, nodes)
        case ev.Shrunk(row=row, by=by, until_ms=until_ms):
            why = "a node of it ran short of memory" if until_ms >= 0 else ""
            return "shrunk", ids[row], f"for {ids[by]}" if by >= 0 else why
        case ev.Preempting(row=row, victims=victims):
            return "preempting", ids[row], f"{len(victims) // 4} others write their checkpoints for it"
        case ev.PreemptionEnded(row=row):
            return "preemption dropped", ids[row], ""
        case ev.Intended(number=number, command=command):
            return "wanted of Slurm", f"i{number}", wording_of(command)
        case ev.IntentSent(number=number):
            return "carried to Slurm", f"i{number}", ""
        case ev.IntentAccepted(number=number, job=job, text=text):
            return "Slurm accepted", f"i{number}", f"job {job}" if job else text
        case ev.IntentReopened(number=number, text=text):
            return "to be carried again", f"i{number}", text
        case (
            ev.IntentSettled(number=number, phase=phase, text=text)
            | ev.IntentAnswered(number=number, phase=phase, text=text)
        ):
            return f"intent {Phase(phase).label}", f"i{number}", text
        case ev.Suspended(row=row) | ev.Resumed(row=row) | ev.Woke(row=row):
            return type(event).__name__.lower(), ids[row], ""
        case ev.Wanted(row=row, tasks=tasks, load=load):
            return "wanted", ids[row], f"{tasks} replicas; its load takes {load}"
        case ev.Reclassed(row=row, evidence=evidence):
            return "resized", ids[row], evidence
        case ev.Reestimated(row=row, estimate_ms=estimate_ms):
            return "re-estimated", ids[row], f"{estimate_ms // 60_000} min" if estimate_ms else "no time limit"
        case ev.Exited(row=row, task=task, status=status):
            return TRANSITIONS[EXITED], ids[row], exit_words(task, status)
        case ev.Moved(row=row, queue=queue):
            return TRANSITIONS[MOVED], ids[row], f"to queue {state.queues.specs[queue].name}"
        case ev.TurnedOnDemand(row=row):
            return TRANSITIONS[TURNED], ids[row], "its slack ran out"
        case ev.PriceSet(pool=pool, price_microusd_hour=price):
            return "price set", state.capacity.pools[pool].name, f"{usd(price)} an hour for a node"
        case ev.BudgetSet(budget=spec):
            return "budget set", spec.name, f"{usd(spec.limit_microusd)} of {spec.scope} {spec.of}, {spec.action}"
        case ev.BudgetRemoved(name=name):
            return "budget removed", name, ""
        case ev.BudgetStaged(name=name, stage=stage):
            return f"budget {Stage(stage).label}", name, ""
        case ev.SpendingApproved(row=row):
            return TRANSITIONS[APPROVED], ids[row], ""
        case ev.Interrupted(nodes=nodes):
            rows = memoryview(nodes).cast("i")
            first = state.capacity.node_ids[rows[0]]
            return "interrupted", first, f"and {len(rows) - 1} more nodes" if len(rows) > 1 else ""
        case ev.Ordered(pool=pool, zone=zone, count=count, row=row):
            more = f" for {ids[row]}" if row >= 0 else ""
            return "ordered", state.capacity.pools[pool].name, f"{_nodes(count)}{f' in {zone}' if zone else ''}{more}"
        case ev.NodesGranted(order=order, nodes=nodes):
            return "granted", f"order {order}", f"{_nodes(len(nodes))}, {nodes[0].id} first"
        case ev.OrderEnded(order=order, how=how):
            granted, wanted = state.orders.granted[order], state.orders.wanted[order]
            return f"order {OrderState(how).label}", f"order {order}", f"{granted} of {_nodes(wanted)} granted"
        case ev.BackedOff(pool=pool, until_ms=until_ms):
            rest = f"left alone until {moment(until_ms)}" if until_ms else "delivers again"
            return "backed off" if until_ms else "back", state.capacity.pools[pool].name, rest
        case ev.MachinesRefused(order=order, names=names, reason=reason):
            of = f"order {order}" if order >= 0 else names[0]
            what = f"{len(names)} machine{'s' if len(names) != 1 else ''} given back"
            return "refused", of, f"{what}, {names[0]} first: {reason}"
        case ev.Unneeded(nodes=nodes, since_ms=since_ms):
            return "hardly used" if since_ms >= 0 else "used again", *_first_node(state, nodes)
        case ev.DemandNoted(pool=pool, nodes=asked):
            return "asked for", state.capacity.pools[pool].name, f"{_nodes(asked)}, the most of this hour"
        case ev.TargetsSet(pool=pool, targets=targets):
            return "targets set", state.capacity.pools[pool].name, f"{len(targets)} in all"
        case ev.PoolScalingSet(pool=pool, scaling=scaling):
            return "scaling set", state.capacity.pools[pool].name, f"{scaling.least} to {scaling.most} nodes"
        case ev.QueueChanged(queue=queue):
            return "queue changed", queue.name, ""
        case ev.QueueModeSet(queue=row, mode=mode):
            return f"queue {QueueMode(mode).label}", state.queues.specs[row].name, ""
        case ev.Reserved(reservation=spec):
            return "reserved", spec.name, f"{len(spec.nodes)} node{'s' if len(spec.nodes) != 1 else ''}"
        case ev.Unreserved(name=name):
            return "reservation over", name, ""
        case ev.PriorityClassRemoved(name=name):
            return "priority class removed", name, ""
        case ev.PrioritySet(row=row, priority_class=priority):
            return "priority", ids[row], state.workloads.priority_classes[priority].name
        case ev.DowntimeBegan():
            return "downtime began", "engine", "no engine decides from here on"
        case ev.DowntimeEnded(since_ms=since_ms):
            return "downtime over", "engine", f"no engine decided since {moment(since_ms)}"
        case ev.ClockHeld(host_ms=host_ms):
            return "clock held", "engine", f"the host's clock shows {moment(host_ms)}; the cell keeps its own time"
        case ev.SettingsSet():
            return "settings", state.cell, ""
        case ev.Started() | ev.Finished() | ev.Cancelled() | ev.Held() | ev.Released():
            what = "running" if isinstance(event, ev.Started) else type(event).__name__.lower()
            return what, ids[event.row], ""
        case ev.NodesChanged(nodes=nodes, state=to):
            return NodeState(to).label, *_first_node(state, nodes)
        case ev.NodesAdded(nodes=nodes):
            return "nodes added", nodes[0].id, f"{len(nodes)} in all"
        case ev.Audited(entry=entry):
            return "approved", entry.action, f"by {entry.actor}, plan {entry.digest[:12]}"
        case ev.PoolAdded(pool=pool):
            return "pool added", pool.name, ""
        case ev.QueueAdded(queue=queue):
            return "queue added", queue.name, ""
        case ev.PriorityClassAdded(priority_class=spec):
            return "priority class added", spec.name, str(spec.value)
        case ev.PolicySet(policy=policy):
            return "policy", policy, ""
        case ev.CellNamed(name=name):
            return "cell", name, ""
        case _:
            return type(event).__name__.lower(), "", ""


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count != 1 else ''}"
