"""Measurements of a twin that runs ahead: waits, starts, evictions and lost work, use, fragmentation and cost.

It is fed with every event, as `engine.reads.recent_activity` is in the live engine. All figures are integers and
functions of the events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from engine.model import events as ev
from engine.model.columns import Ints, view
from engine.model.specs import HOUR_MS, RESOURCES, WorkloadState
from engine.placement.fragmentation import headline_ppm
from engine.reads.recent_activity import Recent
from engine.state.cell_state import BOUND, State

Key = tuple[str, str, str]
"""(name, of, subject) as in `engine.model.twin_queries.Figure`."""
NOT_EVICTED = (ev.EVICTION_CAUSES.index("not confirmed"), ev.EVICTION_CAUSES.index("migrated"))
"""Causes by which it was not running, or goes on elsewhere."""
GPU, CPU = RESOURCES.index("gpu_milli"), RESOURCES.index("cpu_milli")


class Focus(msgspec.Struct, frozen=True, array_like=True):
    """The fate of one workload that was asked about. Times are -1 for never."""

    id: str
    queue: str
    exists: bool
    started_ms: int
    """First start in the run; of what ran already, the first after it was stopped."""
    ended_ms: int
    cost_microusd: int
    ran: bool
    """True if it held nodes when the run began, and was not stopped since."""
    reason: str = ""
    """The reason why it did not start at once."""
    freed_by: tuple[tuple[str, int], ...] = ()
    """(workload, cell ms) that left the nodes it was given, the last on each."""
    placed: tuple[tuple[str, int, int], ...] = ()
    """(pool, tasks, micro-USD an hour) that it held when it first started."""
    stops: int = 0
    """Number of times it was stopped and had to wait again."""


class Rate:
    """A quantity that changes at events: its integral over time."""

    __slots__ = ("area", "now", "since")

    def __init__(self, now: int, at_ms: int) -> None:
        self.now = now
        self.area = 0
        self.since = at_ms

    def add(self, more: int, at_ms: int) -> None:
        self.area += self.now * (at_ms - self.since)
        self.since = at_ms
        self.now += more

    def until(self, at_ms: int) -> int:
        return self.area + self.now * (at_ms - self.since)


class Probe(Recent):
    """`focus`: ids of workloads that are followed one by one."""

    def __init__(self, state: State, from_ms: int, focus: tuple[str, ...]) -> None:
        super().__init__(state)
        w, capacity = state.workloads, state.capacity
        self.from_ms = from_ms
        self.started: dict[int, int] = {}
        """Row -> first start since the run began, of what did not hold nodes then."""
        self.evictions: dict[int, int] = {}
        """Index into EVICTION_CAUSES -> how many."""
        self.finished = 0
        self.lost = 0
        """Work that was lost: device milliseconds (cores where the cell has no GPU)."""
        self._stopped: dict[int, int] = {}
        """Row in focus that held nodes as the run began and was stopped -> its next start, -1 for none."""
        self.stopped_for: dict[int, list[int]] = {}
        """Row -> rows that were stopped for it."""
        self.reasons: dict[str, str] = {}
        self.freed_by: dict[str, tuple[tuple[str, int], ...]] = {}
        self._placed_first: dict[int, tuple[tuple[str, int, int], ...]] = {}
        """Row in focus -> what it held when it first started."""
        self._stops: dict[int, int] = {}
        """Row in focus -> how often it was stopped."""
        self.focus = focus
        self._resource = GPU if capacity.totals[GPU] else CPU
        self._first = w.state[:]
        """States as the run began."""
        self._woke: dict[int, int] = {}
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.Placed: self._placed,
            ev.PlacedMany: self._many_placed,
            ev.Finished: self._has_finished,
            ev.FinishedMany: self._many_finished,
            ev.Failed: self._left,
            ev.Cancelled: self._left,
            ev.Suspended: self._left,
            ev.Evicted: self._evicted,
            ev.Grown: self._resized,
            ev.Shrunk: self._resized,
            ev.Swapped: self._resized,
            ev.Woke: self._has_woken,
            ev.NodesAdded: self._nodes_changed,
            ev.NodesChanged: self._nodes_changed,
            ev.NodesGranted: self._nodes_changed,
            ev.Preempting: self._preempting,
        }
        self._per_task: dict[tuple[int, int, int], tuple[int, int]] = {}
        """(class row, group, pool) -> (micro-USD an hour, units) of one task there."""
        self._held: dict[int, tuple[int, int]] = {}
        """Row -> (micro-USD an hour, units) that it holds; of rows bound as the run began only after they changed."""
        self._costs: dict[int, Rate] = {}
        """Tenant row -> micro-USD an hour."""
        self._focus_costs: dict[int, Rate] = {}
        self._units = Rate(0, from_ms)
        self._capacity = Rate(capacity.totals[self._resource], from_ms)
        self._price = Rate(self._price_now(), from_ms)
        self._fragmentation: list[int] = []
        self._take_stock()

    # -- events -------------------------------------------------------------------------------------------------------

    def note(self, event: ev.AnyEvent) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def sample(self, now_ms: int) -> None:
        """Keep no curve."""

    def mark(self) -> None:
        """Measure what is too dear to follow: called every now and then."""
        found = headline_ppm(self._state)
        if found is not None:
            self._fragmentation.append(found)

    def note_lost(self, row: int, work_ms: int) -> None:
        """The workload, which is about to be stopped, loses that much work."""
        w = self._state.workloads
        self.lost += work_ms * w.class_at(row).request[self._resource] // 1000

    def _placed(self, event: ev.Placed) -> None:
        self._has_started(event.row)

    def _many_placed(self, event: ev.PlacedMany) -> None:
        for row in memoryview(event.rows).cast("i"):
            self._has_started(row)

    def _has_started(self, row: int) -> None:
        now_ms = self._state.now_ms
        if not self._ran_first(row):
            self.started.setdefault(row, now_ms)
        elif self._stopped.get(row) == -1:
            self._stopped[row] = now_ms
        self._hold(row, now_ms)

    def _has_finished(self, event: ev.Finished) -> None:
        self.finished += 1
        self._leave(event.row, self._state.now_ms)

    def _many_finished(self, event: ev.FinishedMany) -> None:
        self.finished += event.versions - event.ticks
        for row, at_ms in zip(memoryview(event.rows).cast("i"), memoryview(event.at_ms).cast("q"), strict=True):
            self._leave(row, at_ms)

    def _left(self, event: Any) -> None:
        self._leave(event.row, self._state.now_ms)

    def _evicted(self, event: ev.Evicted) -> None:
        self._leave(event.row, self._state.now_ms)
        if event.cause not in NOT_EVICTED:
            self.evictions[event.cause] = self.evictions.get(event.cause, 0) + 1
            if self.focus and self._state.workloads.ids[event.row] in self.focus:
                self._stops[event.row] = self._stops.get(event.row, 0) + 1
            if self._ran_first(event.row) and self._state.workloads.ids[event.row] in self.focus:
                self._stopped.setdefault(event.row, -1)
        if event.by >= 0:
            self.stopped_for.setdefault(event.by, []).append(event.row)

    def _preempting(self, event: ev.Preempting) -> None:
        victims = memoryview(event.victims).cast("i").tolist()
        self.stopped_for.setdefault(event.row, []).extend(victims)

    def _resized(self, event: Any) -> None:
        self._leave(event.row, self._state.now_ms)
        self._hold(event.row, self._state.now_ms)

    def _has_woken(self, event: ev.Woke) -> None:
        self._woke[event.row] = self._state.now_ms

    def _nodes_changed(self, event: ev.NodesAdded | ev.NodesChanged | ev.NodesGranted) -> None:
        now_ms = self._state.now_ms
        self._capacity.add(self._state.capacity.totals[self._resource] - self._capacity.now, now_ms)
        self._price.add(self._price_now() - self._price.now, now_ms)

    # -- what is held -------------------------------------------------------------------------------------------------

    def _ran_first(self, row: int) -> bool:
        return row < len(self._first) and self._first[row] in BOUND

    def _price_now(self) -> int:
        """Micro-USD an hour of all nodes, whatever their state."""
        capacity = self._state.capacity
        return sum(
            pool.price_microusd_hour * count for pool, count in zip(capacity.pools, capacity.pool_nodes, strict=True)
        )

    def _of_task(self, cls: int, group: int, pool: int) -> tuple[int, int]:
        """(micro-USD an hour, units) of one task, as the ledger charges it."""
        known = self._per_task.get((cls, group, pool))
        if known is None:
            request = self._state.workloads.classes[cls].groups[group].request.vector()
            known = self._state.ledger.unit(self._state, cls, group, pool), request[self._resource]
            self._per_task[cls, group, pool] = known
        return known

    def _take_stock(self) -> None:
        """Read the holdings at the beginning of the run, in whole columns."""
        state = self._state
        w, a = state.workloads, state.allocations
        self._bound_cost = np.zeros(len(w.ids), np.int64)
        self._bound_units = np.zeros(len(w.ids), np.int64)
        used = np.flatnonzero(view(a.workload) >= 0) if len(a.workload) else np.zeros(0, np.int64)
        if not len(used):
            return
        rows = view(a.workload)[used]
        kinds = np.stack(
            [view(w.cls)[rows], view(a.group)[used], view(state.capacity.pool)[view(a.node)[used]]], axis=1
        )
        distinct, which = np.unique(kinds, axis=0, return_inverse=True)
        per_task = np.array([self._of_task(*kind) for kind in distinct.tolist()], np.int64).reshape(-1, 2)
        figures = per_task[which.ravel()] * view(a.count)[used].astype(np.int64)[:, None]
        np.add.at(self._bound_cost, rows, figures[:, 0])
        np.add.at(self._bound_units, rows, figures[:, 1])
        self._units.now = int(self._bound_units.sum())
        by_tenant = np.zeros(len(w.tenants.names), np.int64)
        np.add.at(by_tenant, view(w.tenant), self._bound_cost)
        for tenant, cost in enumerate(by_tenant.tolist()):
            if cost:
                self._costs[tenant] = Rate(cost, self.from_ms)
        for name in self.focus:
            row = w.row_of.get(name)
            if row is not None and self._bound_cost[row]:
                self._focus_costs[row] = Rate(int(self._bound_cost[row]), self.from_ms)

    def _hold(self, row: int, now_ms: int) -> None:
        state = self._state
        w, a, pool_of = state.workloads, state.allocations, state.capacity.pool
        cls = w.cls[row]
        cost = units = 0
        by_pool: dict[int, tuple[int, int]] = {}
        for i in a.of_workload(w.first_allocation[row]):
            pool = pool_of[a.node[i]]
            each, of_each = self._of_task(cls, a.group[i], pool)
            cost += each * a.count[i]
            units += of_each * a.count[i]
            if self.focus:
                tasks, rate = by_pool.get(pool, (0, 0))
                by_pool[pool] = tasks + a.count[i], rate + each * a.count[i]
        if self.focus and row not in self._placed_first and w.ids[row] in self.focus:
            pools = state.capacity.pools
            self._placed_first[row] = tuple((pools[pool].name, *held) for pool, held in sorted(by_pool.items()))
        self._held[row] = cost, units
        self._shift(row, cost, units, now_ms)

    def _leave(self, row: int, now_ms: int) -> None:
        held = self._held.get(row)
        if held is None:
            # Nothing new since the run began; afterwards nothing is held until the next start.
            known = row < len(self._bound_cost)
            held = (int(self._bound_cost[row]), int(self._bound_units[row])) if known else (0, 0)
        self._held[row] = 0, 0
        if held != (0, 0):
            self._shift(row, -held[0], -held[1], now_ms)

    def _shift(self, row: int, cost: int, units: int, now_ms: int) -> None:
        w = self._state.workloads
        self._units.add(units, now_ms)
        tenant = w.tenant[row]
        rate = self._costs.get(tenant)
        if rate is None:
            rate = self._costs[tenant] = Rate(0, now_ms)
        rate.add(cost, now_ms)
        if self.focus and w.ids[row] in self.focus:
            own = self._focus_costs.get(row)
            if own is None:
                own = self._focus_costs[row] = Rate(0, now_ms)
            own.add(cost, now_ms)

    # -- results ------------------------------------------------------------------------------------------------------

    def figures(self, now_ms: int) -> list[tuple[Key, int]]:
        """Every figure from the beginning of the run until now."""
        w = self._state.workloads
        found: dict[Key, int] = {}
        for queue, waits in self._waits(now_ms).items():
            subject = ("cell", "") if queue is None else ("queue", self._state.queues.specs[queue].name)
            # Sums in Python: a week of waits of a million workloads is beyond 64 bits only in theory, but exact here.
            found["wait_mean", *subject] = int(waits.sum()) // len(waits)
            found["wait_p50", *subject] = int(waits[(len(waits) - 1) // 2])
            found["wait_p95", *subject] = int(waits[-(-len(waits) * 95 // 100) - 1])
        found["started", "cell", ""] = len(self.started)
        found["finished", "cell", ""] = self.finished
        found["waiting", "cell", ""] = w.state_counts[WorkloadState.QUEUED]
        found["evictions", "cell", ""] = sum(self.evictions.values())
        for cause, count in sorted(self.evictions.items()):
            found[f"evictions/{ev.EVICTION_CAUSES[cause]}", "cell", ""] = count
        found["lost_work", "cell", ""] = self.lost
        capacity = self._capacity.until(now_ms)
        found["utilisation", "cell", ""] = self._units.until(now_ms) * 1000 // capacity if capacity else 0
        if self._fragmentation:
            found["fragmentation", "cell", ""] = sum(self._fragmentation) // len(self._fragmentation) // 1000
        paid = 0
        for tenant, rate in sorted(self._costs.items()):
            cost = rate.until(now_ms) // HOUR_MS
            paid += cost
            if cost:
                found["cost", "tenant", w.tenants.names[tenant]] = cost
        found["cost", "cell", ""] = paid
        found["idle_cost", "cell", ""] = max(0, self._price.until(now_ms) // HOUR_MS - paid)
        return list(found.items())

    def _waits(self, now_ms: int) -> dict[int | None, Ints]:
        """Sorted waits by queue row, and of the cell under None: from the beginning of the run, or from when it could
        have started, to its start; of what still waits, up to now."""
        w = self._state.workloads
        rows = np.fromiter(self.started, np.int64, len(self.started))
        until = np.fromiter(self.started.values(), np.int64, len(self.started))
        still = np.flatnonzero(view(w.state) == WorkloadState.QUEUED) if w.ids else rows[:0]
        # What ran before, or has started since, waits a second time: that is told as an eviction.
        known = np.zeros(len(w.ids), bool)
        known[: len(self._first)] = np.isin(np.frombuffer(self._first, np.int8), BOUND) if self._first else False
        known[rows] = True
        still = still[~known[still]]
        rows = np.concatenate((rows, still))
        if not len(rows):
            return {}
        until = np.concatenate((until, np.full(len(still), now_ms, np.int64)))
        since = np.maximum(view(w.submitted)[rows], self.from_ms)
        if self._woke:
            since = np.maximum(since, [self._woke.get(row, 0) for row in rows.tolist()])
        waits = np.maximum(until - since, 0)
        queues = view(w.queue)[rows]
        found: dict[int | None, Ints] = {None: np.sort(waits)}
        for queue in np.unique(queues).tolist():
            found[queue] = np.sort(waits[queues == queue])
        return found

    def starts(self) -> tuple[bytes, bytes]:
        """(int32 rows, int64 cell ms) of first starts."""
        rows = np.fromiter(self.started, np.int32, len(self.started))
        return rows.tobytes(), np.fromiter(self.started.values(), np.int64, len(self.started)).tobytes()

    def followed(self, now_ms: int) -> tuple[Focus, ...]:
        return tuple(self._followed(name, now_ms) for name in self.focus)

    def _followed(self, name: str, now_ms: int) -> Focus:
        w = self._state.workloads
        row = w.row_of.get(name)
        if row is None:
            return Focus(name, "", False, -1, -1, 0, False)
        cost = self._focus_costs.get(row)
        return Focus(
            id=name,
            queue=self._state.queues.specs[w.queue[row]].name,
            exists=True,
            started_ms=self.started.get(row, self._stopped.get(row, -1)),
            ended_ms=w.ended[row],
            cost_microusd=0 if cost is None else cost.until(now_ms) // HOUR_MS,
            ran=self._ran_first(row) and row not in self._stopped,
            reason=self.reasons.get(name, ""),
            freed_by=self.freed_by.get(name, ()),
            placed=self._placed_first.get(row, ()),
            stops=self._stops.get(row, 0),
        )
