"""The state of a cell: a fold of events. `apply` is the only thing that changes it.

Deterministic: the same events give the same columns, bit for bit, which `digest` shows.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from heapq import heapify, heappush
from typing import Any

import numpy as np

from engine import bulk
from engine import events as ev
from engine import workloads as wl
from engine.allocations import NONE, Allocations
from engine.capacity import Capacity
from engine.columns import Table, canonical, view
from engine.model import NodeState, Policy, WorkloadState
from engine.pending import Pending
from engine.quota import QueueTree
from engine.shape import Shape
from engine.workloads import Workloads

BOUND = (WorkloadState.PLACED, WorkloadState.RUNNING)
"""States in which a workload holds capacity and quota."""


class State(Table):
    """Everything the engine knows, in five tables and a few scalars."""

    columns = ("cell", "policy", "version", "now_ms")

    def __init__(self) -> None:
        self.cell = "cell"
        self.policy: Policy = "easy"
        self.version = 0
        """Events applied so far."""
        self.now_ms = 0
        self.capacity = Capacity()
        self.queues = QueueTree()
        self.workloads = Workloads()
        self.allocations = Allocations()
        self.derive_all()

    def derive_all(self) -> None:
        """Rebuild what spans several tables: compiled shapes, the pending order, the ends of running work."""
        self.workloads.compile(self.capacity.pools)
        self.rebuild_pending()
        self.ends: list[tuple[int, int]] = [
            (self.workloads.expected_end(row), row) for row, state in enumerate(self.workloads.state) if state in BOUND
        ]
        """Heap of (expected end ms, row); an entry is stale unless `ends_at` says otherwise."""
        heapify(self.ends)
        self.arrivals: list[int] = []
        """Rows that became pending since the scheduler last looked."""

    def rebuild_pending(self) -> None:
        self.pending = Pending(by_class=self.policy != "fcfs")
        for row, state in enumerate(self.workloads.state):
            if state == WorkloadState.QUEUED:
                self.pending.add(self.pending_key(row), row)

    # -- whole-state operations -------------------------------------------------------------------------------------

    def _tables(self) -> tuple[tuple[str, Table], ...]:
        return (
            ("capacity", self.capacity),
            ("queues", self.queues),
            ("workloads", self.workloads),
            ("allocations", self.allocations),
        )

    def dump(self) -> dict[str, Any]:
        return {"scalars": super().dump()} | {name: table.dump() for name, table in self._tables()}

    def load(self, data: dict[str, Any]) -> None:
        super().load(data["scalars"])
        for name, table in self._tables():
            table.load(data[name])
        self.derive_all()

    def digest(self) -> str:
        """SHA-256 over every column."""
        return hashlib.sha256(canonical(self.dump())).hexdigest()

    # -- reading ----------------------------------------------------------------------------------------------------

    def pending_key(self, row: int) -> tuple[int, int, int]:
        """Where the row waits. One that kept work from an earlier attempt needs less time than its class."""
        w = self.workloads
        return self.pending.key(w.value_at(row), w.queue[row], -1 - row if w.kept[row] else w.cls[row])

    def position(self, row: int) -> int:
        """1 for the first of its queue."""
        return self.pending.position(self.pending_key(row), row)

    def is_bound(self, row: int) -> bool:
        return self.workloads.state[row] in BOUND

    def ends_at(self, row: int, end_ms: int) -> bool:
        """Whether an entry of `ends` is current."""
        return self.is_bound(row) and self.workloads.expected_end(row) == end_ms

    # -- change -----------------------------------------------------------------------------------------------------

    def apply(self, event: ev.AnyEvent) -> None:
        """Fold one event in."""
        self.version += 1
        _APPLY[type(event)](self, event)

    def apply_placed(self, event: ev.Placed, *, claimed: bool) -> None:
        """Bind a gang. `claimed`: the placement that led here has taken the capacity already."""
        self.version += 1
        self._placed(event, claimed=claimed)

    def _tick(self, event: ev.Tick) -> None:
        self.now_ms = event.at_ms

    def _cell_named(self, event: ev.CellNamed) -> None:
        self.cell = event.name

    def _policy_set(self, event: ev.PolicySet) -> None:
        self.policy = event.policy
        self.rebuild_pending()
        self.capacity.freed += 1

    def _pool_added(self, event: ev.PoolAdded) -> None:
        self.capacity.add_pool(event.pool)
        self.workloads.compile(self.capacity.pools)

    def _nodes_added(self, event: ev.NodesAdded) -> None:
        for node in event.nodes:
            self.capacity.add_node(node, self.now_ms)
            self.allocations.add_node()

    def _queue_added(self, event: ev.QueueAdded) -> None:
        self.queues.add(event.queue)

    def _priority_class_added(self, event: ev.PriorityClassAdded) -> None:
        self.workloads.add_priority_class(event.priority_class)

    def _submitted(self, event: ev.Submitted) -> None:
        spec = event.workload
        row = self.workloads.add(spec, self.queues.row_of[spec.queue], self.now_ms, self.capacity.pools)
        if not spec.held:
            self._enqueue(row)

    def _enqueue(self, row: int) -> None:
        self.pending.add(self.pending_key(row), row)
        self.arrivals.append(row)

    def _placed_in_replay(self, event: ev.Placed) -> None:
        self._placed(event, claimed=False)

    def _placed(self, event: ev.Placed, *, claimed: bool) -> None:
        row = event.row
        w = self.workloads
        workload_class = w.class_at(row)
        self.pending.discard(self.pending_key(row), row)
        first = NONE
        on_nodes = 0
        for group in range(len(event.groups) - 1, -1, -1):
            placement = event.groups[group]
            shape = workload_class.shapes[group]
            nodes, counts = array("i", placement.nodes), array("i", placement.counts)
            devices = array("q", placement.devices)
            on_nodes += len(nodes)
            if bulk.worth_it(shape, len(nodes)):
                on, tasks = view(nodes), view(counts).astype(np.int64)
                if not claimed:
                    bulk.shift_many(self.capacity, shape, on, -tasks)
                first = bulk.add_many(self.allocations, row, group, on, tasks, first)
                continue
            for i in range(len(nodes) - 1, -1, -1):
                mask = devices[i] if devices else 0
                if not claimed:
                    self.capacity.take(nodes[i], shape, counts[i], mask)
                first = self.allocations.add(row, group, nodes[i], counts[i], mask, first)
        w.first_allocation[row] = first
        w.started[row] = self.now_ms
        w.attempts[row] += 1
        self.queues.charge(w.queue[row], workload_class.request)
        w.set_state(row, WorkloadState.PLACED, wl.PLACED, self.now_ms, on_nodes)
        heappush(self.ends, (w.expected_end(row), row))

    def _started(self, event: ev.Started) -> None:
        row = event.row
        before = self.workloads.expected_end(row)
        self.workloads.started[row] = self.now_ms
        self.workloads.set_state(row, WorkloadState.RUNNING, wl.RUNNING, self.now_ms)
        after = self.workloads.expected_end(row)
        if after != before:
            heappush(self.ends, (after, row))

    def _finished(self, event: ev.Finished) -> None:
        self._end(event.row, WorkloadState.FINISHED, wl.FINISHED)

    def _failed(self, event: ev.Failed) -> None:
        self._end(event.row, WorkloadState.FAILED, wl.FAILED)

    def _cancelled(self, event: ev.Cancelled) -> None:
        self._end(event.row, WorkloadState.CANCELLED, wl.CANCELLED)

    def _end(self, row: int, state: WorkloadState, what: int) -> None:
        w = self.workloads
        if self.is_bound(row):
            self._give_back(row)
        elif w.state[row] == WorkloadState.QUEUED:
            self.pending.discard(self.pending_key(row), row)
            # It may have been first, or promised its time: what was behind it gets a new look.
            self.capacity.freed += 1
        w.ended[row] = self.now_ms
        w.set_state(row, state, what, self.now_ms)

    def _give_back(self, row: int) -> None:
        """Return capacity and quota, once."""
        w = self.workloads
        workload_class = w.class_at(row)
        rows = list(self.allocations.of_workload(w.first_allocation[row]))
        for group, shape in enumerate(workload_class.shapes):
            mine = [a for a in rows if self.allocations.group[a] == group]
            if bulk.worth_it(shape, len(mine)):
                self._free_many(shape, np.array(mine, np.int32))
            else:
                for a in mine:
                    self._free_one(shape, a)
        w.first_allocation[row] = NONE
        self.queues.give_back(w.queue[row], workload_class.request)

    def _free_one(self, shape: Shape, row: int) -> None:
        a = self.allocations
        node = a.node[row]
        self.capacity.give_back(node, shape, a.count[row], a.devices[row])
        self.capacity.note_gains([node])
        a.drop(row)

    def _free_many(self, shape: Shape, rows: bulk.Rows) -> None:
        nodes = view(self.allocations.node)[rows]
        bulk.shift_many(self.capacity, shape, nodes, view(self.allocations.count)[rows].astype(np.int64))
        self.capacity.note_gains(nodes.tolist())
        bulk.drop_many(self.allocations, rows)

    def _held(self, event: ev.Held) -> None:
        self.pending.discard(self.pending_key(event.row), event.row)
        self.workloads.set_state(event.row, WorkloadState.HELD, wl.HELD, self.now_ms)
        # Strict orders: what was behind it may now be first.
        self.capacity.freed += 1

    def _released(self, event: ev.Released) -> None:
        self.workloads.set_state(event.row, WorkloadState.QUEUED, wl.RELEASED, self.now_ms)
        self._enqueue(event.row)

    def _requeued(self, event: ev.Requeued) -> None:
        row = event.row
        w = self.workloads
        if w.state[row] == WorkloadState.RUNNING and w.checkpoint[row]:
            done = w.kept[row] + self.now_ms - w.started[row]
            w.kept[row] = done - done % w.checkpoint[row]
        self._give_back(row)
        w.started[row] = -1
        w.set_state(row, WorkloadState.QUEUED, wl.REQUEUED, self.now_ms, event.cause)
        self._enqueue(row)

    def _nodes_changed(self, event: ev.NodesChanged) -> None:
        for node in array("i", event.nodes):
            self.capacity.set_state(node, NodeState(event.state), self.now_ms)

    def _audited(self, event: ev.Audited) -> None:
        """The audit is read from the journal; it is no part of the cell's state."""


_APPLY: dict[type[Any], Callable[[State, Any], None]] = {
    ev.Tick: State._tick,
    ev.CellNamed: State._cell_named,
    ev.PolicySet: State._policy_set,
    ev.PoolAdded: State._pool_added,
    ev.NodesAdded: State._nodes_added,
    ev.QueueAdded: State._queue_added,
    ev.PriorityClassAdded: State._priority_class_added,
    ev.Submitted: State._submitted,
    ev.Placed: State._placed_in_replay,
    ev.Started: State._started,
    ev.Finished: State._finished,
    ev.Failed: State._failed,
    ev.Cancelled: State._cancelled,
    ev.Held: State._held,
    ev.Released: State._released,
    ev.Requeued: State._requeued,
    ev.NodesChanged: State._nodes_changed,
    ev.Audited: State._audited,
}
