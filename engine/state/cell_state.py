"""The state of a cell: a fold of events. `apply` is the only function that changes it.

The fold is deterministic: the same events give the same columns, bit for bit, as `digest` shows.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import heapify
from typing import Any

import msgspec
import numpy as np

from engine.capacity.devices import closest
from engine.capacity.index import Capacity
from engine.capacity.task_shapes import Company, Shape
from engine.model import events as ev
from engine.model.columns import Rows, Table, canonical, view
from engine.model.specs import ArraySpec, NodeState, Policy, Settings, WorkloadSpec, WorkloadState
from engine.state import allocations, budgets, external_cell, mirrored_cell, timers, work_changes
from engine.state import cell_changes as fold_nodes
from engine.state import workloads as wl
from engine.state.allocations import NONE, Allocations, RequestColumns
from engine.state.budgets import Budgets
from engine.state.cell_changes import Bookings
from engine.state.demand import PoolSizing, Replicas
from engine.state.expected_ends import ExpectedEnds
from engine.state.external_cell import Caps, Outside, PastRuns
from engine.state.ledger import Ledger
from engine.state.machines import Failures, Orders, Usage, usage_of
from engine.state.mirrored_cell import HeldQuota, NodeLoads
from engine.state.owners import Owners
from engine.state.pending_work import STOPPED, Cause, Key, Pending, Reconsider
from engine.state.queue_tree import DAY_MS, Charge, QueueTree, Vector
from engine.state.timers import Downtimes, Timers, turns_at
from engine.state.workloads import SoundRequests, Workloads

BOUND = (WorkloadState.PLACED, WorkloadState.RUNNING)
"""States in which a workload holds capacity and quota."""


def members(spec: ArraySpec) -> range:
    """Indexes of the array's members."""
    return range(spec.first, spec.last + 1, spec.step)


class State(Table):
    """The whole state of a cell, in tables and a few scalars."""

    columns = ("cell", "policy", "version", "now_ms", "settings")

    def __init__(self) -> None:
        self.cell = "cell"
        self.policy: Policy = "easy"
        self.version = 0
        """Events applied so far."""
        self.now_ms = 0
        self.settings = Settings()
        self.capacity = Capacity()
        self.queues = QueueTree()
        self.workloads = Workloads()
        self.allocations = Allocations()
        self.bookings = Bookings()
        self.orders = Orders()
        self.sizing = PoolSizing()
        self.replicas = Replicas()
        self.ledger = Ledger()
        self.budgets = Budgets()
        self.failures = Failures()
        self.intents = external_cell.Intents()
        self.outside = Outside()
        self.past = PastRuns()
        self.caps = Caps()
        self.loads = NodeLoads()
        self.held_quota = HeldQuota()
        self.downtimes = Downtimes()
        self.owners = Owners()
        self.derive_all()

    def derive_all(self) -> None:
        """Rebuild what spans several tables: compiled shapes, the pending order, the ends of running work."""
        self.capacity.company = Company()
        self.workloads.compile(self.capacity)
        self.requests = RequestColumns()
        """Requests of the classes as columns, as far as they were needed."""
        self.failures.suspects = self.capacity.state.count(NodeState.SUSPECT)
        booting = np.flatnonzero(np.asarray(self.capacity.state) == NodeState.BOOTING)
        for order in np.asarray(self.capacity.order)[booting].tolist():
            self.orders.booting[order] += 1
        self.rebuild_pending()
        bound = np.flatnonzero(np.isin(np.asarray(self.workloads.state), [int(state) for state in BOUND])).tolist()
        for row in bound:
            self.shift_company(row, 1)
        self.ends = ExpectedEnds([(self.workloads.expected_end(row, self.now_ms), row) for row in bound])
        self.ended_together = 0
        """Workloads that ended in batches since `ends` was last rid of what has ended."""
        self.arrivals: list[int] = []
        """Rows that became pending since the scheduler last looked."""
        self.changed_rows: list[int] = []
        """Under the policy `kueue`: rows that have ceased to wait, have begun or ceased to hold capacity, or have
        another priority or start, since the scheduler last took them. Some are in it twice."""
        self.reconsider = Reconsider()
        """Causes to look at everything again, besides room that nodes gained."""
        w = self.workloads
        elastic = [row for row in bound if w.state[row] == WorkloadState.RUNNING and w.elastic[row]]
        self.stretched = {row for row in elastic if w.tasks[row] > sum(self.counts_needed(row))}
        """Elastic workloads that run with more tasks than they must."""
        self.short = {row for row in elastic if w.tasks[row] < sum(self.counts_wanted(row))}
        """Elastic workloads that run with fewer tasks than they would like."""
        self.replicas.running = {row for row in self.replicas.wanted if w.state[row] == WorkloadState.RUNNING}
        self.usage: Usage = usage_of(self)
        self.workloads_of_queue: list[dict[int, int]] = [{} for _ in self.queues.specs]
        """For each queue: priority value -> workloads placed or running."""
        self.joined: list[int] = [0] * len(self.queues.specs)
        """For each vertex: how often work there or below was placed, was given more, or got another priority. While it
        stays the same, nobody runs there who did not before."""
        self.tenant_use: dict[tuple[int, int], list[int]] = {}
        """(queue, tenant) -> quantities its workloads there ask for that are placed or running."""
        for row in bound:
            self._count_bound(row, 1)
        capacity = self.capacity
        self.doomed = [(capacity.doomed[node], node) for node in capacity.row_of.values() if capacity.doomed[node] >= 0]
        """Heap of (cell ms at which its provider takes it back, node row); stale where the node has another end, or is
        gone."""
        heapify(self.doomed)
        self.timers = Timers()
        self.timers.load(self)
        self.rules = 0
        """Counts changes of what there is: pools, nodes, queues."""
        self.found_sound = SoundRequests(self.rules, {}, set(), set())

    @property
    def changes_mark(self) -> tuple[int, int]:
        """Differs whenever something may let refused work start, or breaks a promise."""
        return self.capacity.gains, self.reconsider.times

    def is_strict(self, queue: int) -> bool:
        """True if nothing of the queue starts before work ahead of it."""
        return not self.pending.by_class or self.queues.specs[queue].order == "strict_fifo"

    def note_change(self, rows: Iterable[int]) -> None:
        """Add them to `changed_rows`."""
        if self.policy == "kueue":
            self.changed_rows += rows

    def take_changed_rows(self) -> list[int]:
        changed, self.changed_rows = self.changed_rows, []
        return changed

    def rebuild_pending(self) -> None:
        self.pending = Pending(by_class=self.policy != "fcfs")
        w = self.workloads
        rows = np.flatnonzero(view(w.state) == WorkloadState.QUEUED) if w.ids else np.zeros(0, np.int64)
        if self.budgets.specs or self.caps.any:
            for row in rows.tolist():
                self.pending.add(self.pending_key(row), row)
        elif len(rows):
            # As `pending_key` has them, all at once.
            queues, kinds, kept = view(w.queue)[rows], view(w.cls)[rows].astype(np.int64), view(w.kept)[rows]
            fair = np.array([spec.order == "fair" for spec in self.queues.specs])[queues]
            kinds = np.where(kept != 0, -1 - (kept << 32 | kinds), kinds)
            tenants = np.where(fair, view(w.tenant)[rows], NONE)
            self.pending.fill(rows, view(w.priority)[rows], queues, kinds, tenants)

    # -- whole-state operations -------------------------------------------------------------------------------------

    def _tables(self) -> tuple[tuple[str, Table], ...]:
        return (
            ("capacity", self.capacity),
            ("queues", self.queues),
            ("workloads", self.workloads),
            ("allocations", self.allocations),
            ("bookings", self.bookings),
            ("orders", self.orders),
            ("sizing", self.sizing),
            ("replicas", self.replicas),
            ("ledger", self.ledger),
            ("budgets", self.budgets),
            ("failures", self.failures),
            ("intents", self.intents),
            ("outside", self.outside),
            ("past", self.past),
            ("caps", self.caps),
            ("loads", self.loads),
            ("held_quota", self.held_quota),
            ("downtimes", self.downtimes),
            ("owners", self.owners),
        )

    def dump(self) -> dict[str, Any]:
        scalars = super().dump() | {"settings": msgspec.to_builtins(self.settings)}
        return {"scalars": scalars} | {name: table.dump() for name, table in self._tables()}

    def load(self, data: dict[str, Any]) -> None:
        super().load(data["scalars"])
        self.settings = msgspec.convert(self.settings, Settings)
        for name, table in self._tables():
            if name in data:  # a snapshot of an earlier Muster has fewer
                table.load(data[name])
        self.queues.half_life_ms = self.settings.fair_half_life_ms or DAY_MS
        self.derive_all()

    def digest(self) -> str:
        """SHA-256 over every column."""
        return hashlib.sha256(canonical(self.dump())).hexdigest()

    # -- reading ----------------------------------------------------------------------------------------------------

    def pending_key(self, row: int) -> Key:
        """The group in which the row waits. A workload that kept work from an earlier attempt needs less time than its
        class: it shares a group with those that kept as much.
        """
        w = self.workloads
        queue, kind, kept = w.queue[row], w.cls[row], w.kept[row]
        if self.budgets.specs and self.budgets.stopping(self, row) is not None:
            tenant = STOPPED
        else:
            tenant = w.tenant[row] if self.queues.specs[queue].order == "fair" else NONE
        if self.caps.any and (draws := self.caps.set_number(row)):
            kind = -1 - (draws << 96 | kept << 32 | kind)
        elif kept:
            kind = -1 - (kept << 32 | kind)
        return self.pending.key(w.priority[row], queue, kind, tenant)

    def charge_of(self, row: int) -> Charge:
        """The charge of the workload's placed tasks to its queue."""
        w, a = self.workloads, self.allocations
        workload_class = w.class_at(row)
        queue = w.queue[row]
        if not self.queues.flavored(queue):
            if w.tasks[row] == workload_class.tasks:
                return workload_class.charge
            return self.queues.total_charge(workload_class.request_of(self.placed_of(row)))
        by_pool: dict[int, list[int]] = {}
        for i in a.of_workload(w.first_allocation[row]):
            counts = by_pool.setdefault(self.capacity.pool[a.node[i]], [0] * len(workload_class.counts))
            counts[a.group[i]] += a.count[i]
        pools = self.capacity.pools
        return self.queues.charge_of(
            (pools[pool].name, workload_class.request_of(counts)) for pool, counts in sorted(by_pool.items())
        )

    def placed_of(self, row: int) -> list[int]:
        """Placed tasks of each group."""
        w, a = self.workloads, self.allocations
        placed = [0] * len(w.class_at(row).counts)
        for i in a.of_workload(w.first_allocation[row]):
            placed[a.group[i]] += a.count[i]
        return placed

    def counts_wanted(self, row: int) -> tuple[int, ...]:
        """Tasks of each group that it would like to have: all, or what a service's load takes."""
        workload_class = self.workloads.class_at(row)
        wanted = self.replicas.wanted.get(row)
        if wanted is None:
            return workload_class.counts
        return workload_class.least_and(wanted - sum(workload_class.least))

    def counts_needed(self, row: int) -> tuple[int, ...]:
        """Tasks of each group that others do not get it to give away."""
        return self.counts_wanted(row) if row in self.replicas.wanted else self.workloads.class_at(row).least

    def spare_tasks(self, row: int) -> list[tuple[int, int, int, int]]:
        """(group, node, tasks, device mask) of what an elastic workload has above the fewest tasks it needs."""
        w, a = self.workloads, self.allocations
        workload_class = w.class_at(row)
        spare = [have - least for have, least in zip(self.placed_of(row), self.counts_needed(row), strict=True)]
        found = []
        for i in a.of_workload(w.first_allocation[row]):
            group = a.group[i]
            count = min(spare[group], a.count[i])
            if count:
                spare[group] -= count
                found.append((group, a.node[i], count, self._devices_of_tasks(i, workload_class.shapes[group], count)))
        return found

    def _devices_of_tasks(self, allocation: int, shape: Shape, count: int) -> int:
        """The devices of so many tasks of the allocation: its share or instance, or devices of its own close
        together.
        """
        held = self.allocations.devices[allocation]
        if shape.part or not shape.gpus:
            return held
        size = self.capacity.pools[self.capacity.pool[self.allocations.node[allocation]]].nvlink_group
        mask = 0
        for _ in range(count):
            mask |= closest(held & ~mask, shape.gpus, size)
        return mask

    def charge_if(self, row: int, shapes: tuple[Shape, ...], counts: Sequence[int]) -> Charge:
        """The charge of `counts[g]` tasks of each group. In a tree with quotas by pool each shape has one pool."""
        w = self.workloads
        workload_class = w.class_at(row)
        if not self.queues.flavored(w.queue[row]):
            if counts is workload_class.counts:
                return workload_class.charge
            if counts is workload_class.least:
                return workload_class.least_charge
            return self.queues.total_charge(workload_class.request_of(counts))
        none = [0] * len(counts)
        return self.queues.charge_of(
            (self.capacity.pools[shape.home].name, workload_class.request_of([*none[:g], counts[g], *none[g + 1 :]]))
            for g, shape in enumerate(shapes)
        )

    def _count_bound(self, row: int, sign: int) -> None:
        w = self.workloads
        self.count_bound(w.priority[row], w.queue[row], w.cls[row], w.tenant[row], sign)
        if self.caps.any:
            self.caps.count(row, sign)

    def count_bound(self, priority: int, queue: int, cls: int, tenant: int, more: int) -> None:
        """Count so many more workloads of the sort as placed or running; fewer, when negative."""
        w = self.workloads
        counts = self.workloads_of_queue[queue]
        value = w.priority_value[priority]
        counts[value] = counts.get(value, 0) + more
        if more > 0:
            self.note_joined(queue)
        use = self.tenant_use.setdefault((queue, tenant), [0, 0, 0, 0])
        for i, quantity in enumerate(w.classes[cls].request):
            use[i] += more * quantity

    def note_joined(self, queue: int) -> None:
        """Work of the queue was placed, was given more, or got another priority."""
        for vertex in self.queues.path[queue]:
            self.joined[vertex] += 1

    def cell_share(self, request: Vector) -> int:
        """Largest part of the cell's total of any resource that the request takes, in parts per million."""
        return max((q * 1_000_000 // t for q, t in zip(request, self.capacity.totals, strict=True) if t), default=0)

    def tenant_share(self, queue: int, tenant: int) -> int:
        """Dominant share of the cell that the tenant's work of this queue holds, in parts per billion."""
        use = self.tenant_use.get((queue, tenant))
        if use is None:
            return 0
        return max((q * 10**9 // t for q, t in zip(use, self.capacity.totals, strict=True) if t), default=0)

    def position(self, row: int) -> int:
        """1 for the first of its queue."""
        return self.pending.position(self.pending_key(row), row, self.workloads.priority_value)

    def is_bound(self, row: int) -> bool:
        return self.workloads.state[row] in BOUND

    def ends_at(self, row: int, end_ms: int) -> bool:
        """True if an entry of `ends` is current."""
        return self.is_bound(row) and self.workloads.expected_end(row, self.now_ms) == end_ms

    # -- change -----------------------------------------------------------------------------------------------------

    def apply(self, event: ev.AnyEvent) -> None:
        """Fold one event in."""
        self.version += event.versions
        _APPLY[type(event)](self, event)

    def apply_claimed(self, event: ev.Placed | ev.PlacedMany | ev.Grown) -> None:
        """Bind tasks whose capacity the placement that led here has taken already."""
        self.version += event.versions
        if isinstance(event, ev.Placed):
            self.place(event, claimed=True)
        elif isinstance(event, ev.PlacedMany):
            work_changes.placed(self, event, claimed=True)
        else:
            work_changes.resize(self, event.row, event.groups, claimed=True)

    def _tick(self, event: ev.Tick) -> None:
        self.now_ms = event.at_ms

    def _submitted(self, event: ev.Submitted) -> None:
        spec = event.workload
        w = self.workloads
        queue = self.queues.row_of[spec.queue]
        self._name_constraints(spec)
        if spec.array is None:
            self._enter(w.add(spec, queue, self.now_ms, self.capacity))
            return
        w.add_array(spec.id, spec.array.max_running)
        array_row = len(w.array_limits) - 1
        for index in members(spec.array):
            member = msgspec.structs.replace(spec, id=f"{spec.id}/{index}", array=None)
            self._enter(w.add(member, queue, self.now_ms, self.capacity, array_row))

    def _name_constraints(self, spec: WorkloadSpec) -> None:
        """Have labels that the workload is the first to name divide nodes, and its bonds counted from now on."""
        self.name_labels(spec)
        if not (spec.near or spec.apart):
            return
        company, w = self.capacity.company, self.workloads
        known = len(company.terms)
        shunned = company.name(spec.near, spec.apart)
        if known < len(company.terms):
            for row in range(len(w.ids)):
                if self.is_bound(row):
                    new = tuple(term for term in w.marks(row, company)[0] if term >= known)
                    company.shift(self.capacity, (new, ()), self._where(row))
        split_up = [w.shun(term, self.capacity) for term in shunned]
        if any(split_up):
            self.rebuild_pending()
            self.reconsider.ask(Cause.ORDER)

    def name_labels(self, spec: WorkloadSpec) -> None:
        """Have the labels that the workload asks for divide nodes."""
        labels = [key for group in spec.groups for key in (*group.node_labels, *group.avoid_labels)]
        if labels or spec.data:
            self.capacity.name_labels([*labels, *(("zone",) if spec.data else ())])

    def _where(self, row: int) -> list[tuple[int, int]]:
        """(node, tasks) of what the workload has."""
        a = self.allocations
        return [(a.node[i], a.count[i]) for i in a.of_workload(self.workloads.first_allocation[row])]

    def shift_company(self, row: int, sign: int, at: list[tuple[int, int]] | None = None) -> bool:
        """Count the workload's tasks, or those `at` (node, tasks), in for others' bonds, or out when `sign` is -1.
        Returns whether others who wait have got a place to be near to."""
        company = self.capacity.company
        if not company.terms:
            return False
        marks = self.workloads.marks(row, company)
        if marks == ((), ()):
            return False
        placed = self._where(row) if at is None else at
        return company.shift(self.capacity, marks, [(node, sign * tasks) for node, tasks in placed])

    @contextmanager
    def growing(self, row: int) -> Iterator[None]:
        """Meanwhile its own tasks do not count for the workload's bonds, and do for its spread."""
        a, company = self.allocations, self.capacity.company
        self.shift_company(row, -1)
        placed: tuple[dict[int, int], ...] = tuple({} for _ in self.workloads.class_at(row).counts)
        for i in a.of_workload(self.workloads.first_allocation[row]):
            on = placed[a.group[i]]
            on[a.node[i]] = on.get(a.node[i], 0) + a.count[i]
        company.placed = placed
        yield
        company.placed = ()
        self.shift_company(row, 1)

    def _enter(self, row: int) -> None:
        """A new workload, in whatever state it begins."""
        w = self.workloads
        if w.terms[row] and (service := w.terms_at(row).service) is not None:
            self.replicas.enter(row, service)
        self.ledger.enter(1)
        if w.state[row] == WorkloadState.QUEUED:
            self.enqueue(row)
        if w.terms[row] or w.wake[row] >= 0:
            self.timers.watch(self, row)

    def enqueue(self, row: int) -> None:
        if self.workloads.terms[row]:
            turn_ms = turns_at(self, row)
            if turn_ms is not None and turn_ms <= self.now_ms:
                work_changes.turn_on_demand(self, row)
        self.pending.add(self.pending_key(row), row)
        self.arrivals.append(row)

    def dequeue(self, row: int) -> None:
        """Take it out of its pending group. It may have been first, or promised its time: look again behind it."""
        self.pending.discard(self.pending_key(row), row)
        self.note_change((row,))
        self.reconsider.ask(Cause.LEFT)
        clearing = self.bookings.clearing_for(row) if self.bookings.clearings else None
        if clearing is not None:
            fold_nodes.drop_clearing(self, clearing)

    def _placed_in_replay(self, event: ev.Placed) -> None:
        self.place(event, claimed=False)

    def place(self, event: ev.Placed, *, claimed: bool) -> None:
        """`claimed`: its nodes' capacity is taken already."""
        row = event.row
        w = self.workloads
        self.pending.discard(self.pending_key(row), row)
        self.note_change((row,))
        clearing = self.bookings.clearing_for(row) if self.bookings.clearings else None
        tasks, on_nodes = self.bind(row, event.groups, claimed=claimed)
        self.ledger.charge(self, row)
        w.tasks[row] = tasks
        w.started[row] = w.rated[row] = self.now_ms
        w.done[row] = -w.terms_at(row).restore_ms if w.kept[row] else 0
        w.flags[row] = event.flags
        w.attempts[row] += 1
        if w.array[row] != NONE:
            w.array_running[w.array[row]] += 1
        self.queues.charge(w.queue[row], self.charge_of(row), self.now_ms)
        self._count_bound(row, 1)
        self.queues.starts.note(self.queues, w.queue[row], self.now_ms - w.since[row], self.now_ms)
        w.set_state(row, WorkloadState.PLACED, wl.PLACED, self.now_ms, on_nodes)
        self.ends.add(w.expected_end(row, self.now_ms), row)
        if w.terms[row]:
            self.usage.renew(self, row)
        if clearing is not None:
            fold_nodes.drop_clearing(self, clearing)

    def bind(self, row: int, groups: tuple[ev.GroupPlacement, ...], *, claimed: bool) -> tuple[int, int]:
        """Allocation rows for tasks in front of those the workload has. Returns (tasks, entries)."""
        w = self.workloads
        shapes = w.class_at(row).shapes
        first = w.first_allocation[row]
        tasks = entries = 0
        for group in range(len(groups) - 1, -1, -1):
            placement = groups[group]
            shape = shapes[group]
            nodes, counts = array("i", placement.nodes), array("i", placement.counts)
            devices = array("q", placement.devices)
            entries += len(nodes)
            tasks += sum(counts)
            if self.capacity.company.terms and self.shift_company(row, 1, list(zip(nodes, counts, strict=True))):
                self.reconsider.ask(Cause.NEIGHBOURS)
            on = view(nodes)
            if allocations.worth_shifting(shape, on):
                each, masks = view(counts).astype(np.int64), view(devices) if devices else 0
                if not claimed:
                    allocations.shift_many(self.capacity, shape, on, -each, masks)
                first = allocations.add_many(self.allocations, row, group, on, each, first, masks)
                continue
            for i in range(len(nodes) - 1, -1, -1):
                mask = devices[i] if devices else 0
                if not claimed:
                    self.capacity.take(nodes[i], shape, counts[i], mask)
                first = self.allocations.add(row, group, nodes[i], counts[i], mask, first)
        w.first_allocation[row] = first
        return tasks, entries

    def _started(self, event: ev.Started) -> None:
        row = event.row
        w = self.workloads
        before = w.expected_end(row, self.now_ms)
        if w.started[row] != self.now_ms:
            self.note_change((row,))
        w.started[row] = w.rated[row] = self.now_ms
        w.confirmed[row] = 1
        w.set_state(row, WorkloadState.RUNNING, wl.RUNNING, self.now_ms)
        after = w.expected_end(row, self.now_ms)
        if after != before:
            self.ends.add(after, row)
        if row in self.replicas.wanted:
            self.replicas.running.add(row)
        if w.elastic[row]:
            work_changes.stretch(self, row)
        if w.terms[row] or self.queues.specs[w.queue[row]].min_runtime_ms or w.evicted_at[row] >= 0:
            self.timers.watch(self, row)
        self._tell_dependents(row)

    def _tell_dependents(self, row: int) -> None:
        w = self.workloads
        if w.first_dependent[row] != NONE:
            for waiter in w.note_progress(row):
                if w.state[waiter] == WorkloadState.WAITING:
                    if w.wake[waiter] <= self.now_ms:
                        self._wake(waiter)
                    else:
                        self.timers.watch(self, waiter)

    def _wake(self, row: int) -> None:
        self.workloads.wake[row] = -1
        self.workloads.set_state(row, WorkloadState.QUEUED, wl.WOKE, self.now_ms)
        self.enqueue(row)

    def _woke(self, event: ev.Woke) -> None:
        self._wake(event.row)

    def _finished(self, event: ev.Finished) -> None:
        self.end(event.row, WorkloadState.FINISHED, wl.FINISHED)

    def _failed(self, event: ev.Failed) -> None:
        row = event.row
        w = self.workloads
        if event.cause == 0:
            w.failures[row] += 1
        if event.retry_at_ms < 0:
            self.end(row, WorkloadState.FAILED, wl.FAILED, event.cause)
            return
        self.keep_work(row, saved=False)
        self._leave_nodes(row)
        w.started[row] = -1
        w.record(row, wl.FAILED, self.now_ms, event.cause)
        self._wait_until(row, event.retry_at_ms)

    def _exited(self, event: ev.Exited) -> None:
        self.workloads.record(event.row, wl.EXITED, self.now_ms, event.task << 16 | event.status)

    def _wait_until(self, row: int, wake_at_ms: int) -> None:
        self.workloads.wake[row] = wake_at_ms
        self.workloads.set_state(row, WorkloadState.WAITING, wl.WAITING, self.now_ms)
        self.timers.watch(self, row)

    def _cancelled(self, event: ev.Cancelled) -> None:
        self.end(event.row, WorkloadState.CANCELLED, wl.CANCELLED)

    def _recalled(self, event: ev.Recalled) -> None:
        w = self.workloads
        w.tags[event.row] = w.tag_sets.add(wl.tags_text(w.tags_of(w.tags[event.row]) | {wl.MOVED_TAG: event.to}))

    def end(self, row: int, state: WorkloadState, what: int, detail: int = 0) -> None:
        w = self.workloads
        if self.is_bound(row):
            w.done[row] = w.work_done(row, self.now_ms) - w.kept[row]
            if state == WorkloadState.FINISHED:
                w.note_finished(row)
            self._leave_nodes(row)
        elif w.state[row] == WorkloadState.QUEUED:
            self.dequeue(row)
        if row in self.replicas.wanted:
            self.replicas.leave(row)
        w.ended[row] = self.now_ms
        w.set_state(row, state, what, self.now_ms, detail)
        self._tell_dependents(row)

    def _leave_nodes(self, row: int) -> None:
        """Return capacity and quota, once."""
        w = self.workloads
        charge = self.charge_of(row)
        self.ledger.stop(self, row)
        self.ledger.end_attempt(row)
        rows = list(self.allocations.of_workload(w.first_allocation[row]))
        self.unbind(row, rows)
        w.first_allocation[row] = NONE
        w.tasks[row] = 0
        w.preempting[row] = NONE
        self.stretched.discard(row)
        self.short.discard(row)
        if self.replicas.running or self.replicas.held_ms:
            self.replicas.running.discard(row)
            self.replicas.held_ms.pop(row, None)
        if row in self.usage.of:
            self.usage.forget(self, row)
        if w.array[row] != NONE:
            w.array_running[w.array[row]] -= 1
        self.queues.give_back(w.queue[row], charge, self.now_ms)
        self._count_bound(row, -1)
        self.note_change((row,))

    def unbind(self, row: int, rows: list[int]) -> None:
        """Give back the capacity of these allocations of the workload."""
        shapes = self.workloads.class_at(row).shapes
        for group, shape in enumerate(shapes):
            mine = rows if len(shapes) == 1 else [a for a in rows if self.allocations.group[a] == group]
            if len(mine) >= allocations.LEAST and allocations.worth_shifting(shape, view(self.allocations.node)[mine]):
                self._free_many(shape, np.array(mine, np.int32))
            else:
                self._free_few(shape, mine)

    def _free_few(self, shape: Shape, rows: list[int]) -> None:
        a, give_back = self.allocations, self.capacity.give_back
        if self.capacity.company.terms and rows:
            self.shift_company(a.workload[rows[0]], -1, [(a.node[row], a.count[row]) for row in rows])
        nodes = [a.node[row] for row in rows]
        for row, node in zip(rows, nodes, strict=True):
            give_back(node, shape, a.count[row], a.devices[row])
            a.drop(row)
        if nodes:
            self.capacity.note_gains(nodes)

    def free_one(self, shape: Shape, row: int) -> None:
        a = self.allocations
        node = a.node[row]
        self.shift_company(a.workload[row], -1, [(node, a.count[row])])
        self.capacity.give_back(node, shape, a.count[row], a.devices[row])
        self.capacity.note_gains([node])
        a.drop(row)

    def _free_many(self, shape: Shape, rows: Rows) -> None:
        nodes = view(self.allocations.node)[rows]
        if self.capacity.company.terms:
            tasks = view(self.allocations.count)[rows].tolist()
            self.shift_company(self.allocations.workload[rows[0]], -1, list(zip(nodes.tolist(), tasks, strict=True)))
        counts, devices = view(self.allocations.count)[rows].astype(np.int64), view(self.allocations.devices)[rows]
        allocations.shift_many(self.capacity, shape, nodes, counts, devices)
        self.capacity.note_gains(nodes.tolist())
        allocations.drop_many(self.allocations, rows)

    # -- elastic ------------------------------------------------------------------------------------------------------

    def shift_charge(self, row: int, before: Charge) -> None:
        """Charge what the workload costs now instead of what it cost before."""
        self.queues.shift(self.workloads.queue[row], before, self.charge_of(row), self.now_ms)

    # -- stopped and started again ------------------------------------------------------------------------------------

    def _held(self, event: ev.Held) -> None:
        row = event.row
        if self.workloads.state[row] == WorkloadState.QUEUED:
            self.dequeue(row)
        self.workloads.set_state(row, WorkloadState.HELD, wl.HELD, self.now_ms)
        self.timers.watch(self, row)

    def _released(self, event: ev.Released) -> None:
        self._wait_or_queue(event.row, wl.RELEASED)

    def _resumed(self, event: ev.Resumed) -> None:
        self._wait_or_queue(event.row, wl.RESUMED)

    def _wait_or_queue(self, row: int, what: int) -> None:
        """Let it go on: into its queue, or back to waiting when its time or others have not come."""
        w = self.workloads
        if w.unmet[row] or w.wake[row] > self.now_ms:
            w.set_state(row, WorkloadState.WAITING, what, self.now_ms)
        else:
            w.wake[row] = -1
            w.set_state(row, WorkloadState.QUEUED, what, self.now_ms)
            self.enqueue(row)
        self.timers.watch(self, row)

    def _evicted(self, event: ev.Evicted) -> None:
        row = event.row
        w = self.workloads
        self.keep_work(row, saved=event.saved)
        self._leave_nodes(row)
        w.started[row] = -1
        if event.cause in ev.PREEMPTIONS:
            w.evictions[row] += 1
            w.evicted_at[row] = self.now_ms
        if event.cause in ev.DISRUPTIONS:
            self.queues.note_disruption(w.queue[row], self.now_ms)
            self.timers.watch_disruption(self, w.queue[row], self.now_ms)
        detail = event.cause + ((event.by + 1) << 8)
        if event.wake_at_ms > self.now_ms:
            w.record(row, wl.EVICTED, self.now_ms, detail)
            self._wait_until(row, event.wake_at_ms)
        else:
            w.set_state(row, WorkloadState.QUEUED, wl.EVICTED, self.now_ms, detail)
            self.enqueue(row)
            if w.terms[row] or w.evicted_at[row] == self.now_ms:
                self.timers.watch(self, row)

    def keep_work(self, row: int, *, saved: bool) -> None:
        """The work that stays done if it is stopped now: up to the last checkpoint, or all when it wrote one."""
        w = self.workloads
        done = w.work_done(row, self.now_ms)
        lost = 0 if saved else w.lost_if_stopped(row, self.now_ms)
        self.ledger.lose(row, lost, done - w.kept[row], self.now_ms)
        w.kept[row] = done - lost
        w.done[row] = 0

    def _suspended(self, event: ev.Suspended) -> None:
        row = event.row
        w = self.workloads
        if self.is_bound(row):
            self.keep_work(row, saved=event.saved)
            self._leave_nodes(row)
            w.started[row] = -1
        elif w.state[row] == WorkloadState.QUEUED:
            self.dequeue(row)
        w.set_state(row, WorkloadState.SUSPENDED, wl.SUSPENDED, self.now_ms)
        self.timers.watch(self, row)

    # -- bookings -----------------------------------------------------------------------------------------------------

    def book(self, nodes: Iterable[int], booking: int) -> None:
        """Keep the nodes for a booking, or open them to all. What becomes of one that is down depends on it."""
        rows = list(nodes)
        self.capacity.book(rows, booking)
        self.failures.touched += [node for node in rows if self.capacity.state[node] == NodeState.DOWN]

    def _priority_set(self, event: ev.PrioritySet) -> None:
        row = event.row
        queued, bound = self.workloads.state[row] == WorkloadState.QUEUED, self.is_bound(row)
        if queued:
            self.pending.discard(self.pending_key(row), row)
        if bound:
            self._count_bound(row, -1)
        self.workloads.priority[row] = event.priority_class
        self.note_change((row,))
        self.workloads.record(row, wl.PRIORITY, self.now_ms, event.priority_class)
        if bound:
            self._count_bound(row, 1)
        if queued:
            self.pending.add(self.pending_key(row), row)
        self.reconsider.ask(Cause.ORDER)

    def _audited(self, event: ev.Audited) -> None:
        """The audit is read from the journal; it is no part of the cell's state."""


_APPLY: dict[type[Any], Callable[[State, Any], None]] = {
    ev.Tick: State._tick,
    ev.CellNamed: fold_nodes.cell_named,
    ev.PolicySet: fold_nodes.policy_set,
    ev.PoolAdded: fold_nodes.pool_added,
    ev.NodesAdded: fold_nodes.nodes_added,
    ev.QueueAdded: fold_nodes.queue_added,
    ev.PriorityClassAdded: fold_nodes.priority_class_added,
    ev.Submitted: State._submitted,
    ev.Placed: State._placed_in_replay,
    ev.Started: State._started,
    ev.Finished: State._finished,
    ev.Failed: State._failed,
    ev.Cancelled: State._cancelled,
    ev.Recalled: State._recalled,
    ev.Held: State._held,
    ev.Released: State._released,
    ev.Evicted: State._evicted,
    ev.NodesChanged: fold_nodes.nodes_changed,
    ev.Watched: fold_nodes.watched,
    ev.RepairStarted: fold_nodes.repair_started,
    ev.NodesNoted: fold_nodes.nodes_noted,
    ev.Audited: State._audited,
    ev.QueueChanged: fold_nodes.queue_changed,
    ev.QueueModeSet: fold_nodes.queue_mode_set,
    ev.PriorityClassRemoved: fold_nodes.priority_class_removed,
    ev.Grown: work_changes.grown,
    ev.Shrunk: work_changes.shrunk,
    ev.Swapped: work_changes.swapped,
    ev.Preempting: fold_nodes.preempting,
    ev.PreemptionEnded: fold_nodes.preemption_ended,
    ev.Suspended: State._suspended,
    ev.Resumed: State._resumed,
    ev.Woke: State._woke,
    ev.Reserved: fold_nodes.reserved,
    ev.Unreserved: fold_nodes.unreserved,
    ev.SettingsSet: fold_nodes.settings_set,
    ev.PrioritySet: State._priority_set,
    ev.Ordered: fold_nodes.ordered,
    ev.NodesGranted: fold_nodes.nodes_granted,
    ev.OrderEnded: fold_nodes.order_ended,
    ev.BackedOff: fold_nodes.backed_off,
    ev.Interrupted: fold_nodes.interrupted,
    ev.TurnedOnDemand: work_changes.turned_on_demand,
    ev.MachinesRefused: fold_nodes.machines_refused,
    ev.TargetsSet: fold_nodes.targets_set,
    ev.Unneeded: fold_nodes.unneeded,
    ev.PoolScalingSet: fold_nodes.pool_scaling_set,
    ev.DemandNoted: fold_nodes.demand_noted,
    ev.PriceSet: budgets.price_set,
    ev.BudgetSet: budgets.budget_set,
    ev.BudgetRemoved: budgets.budget_removed,
    ev.BudgetStaged: budgets.budget_staged,
    ev.SpendingApproved: budgets.spending_approved,
    ev.Wanted: work_changes.wanted,
    ev.Reclassed: work_changes.reclassed,
    ev.MovedToQueue: work_changes.moved,
    ev.Exited: State._exited,
    ev.Dated: external_cell.dated,
    ev.DatedMany: external_cell.dated_many,
    ev.Parked: external_cell.parked,
    ev.Vanished: external_cell.vanished,
    ev.OutsideSaid: external_cell.outside_said,
    ev.Reestimated: external_cell.reestimated,
    ev.BootsTold: external_cell.boots_told,
    ev.RunsTold: external_cell.runs_told,
    ev.CapsTold: external_cell.caps_told,
    ev.NodesRelabelled: mirrored_cell.nodes_relabelled,
    ev.NodesMoved: mirrored_cell.nodes_moved,
    ev.NodeLoadsTold: mirrored_cell.node_loads_told,
    ev.Rebound: mirrored_cell.rebound,
    ev.QuotaHeld: mirrored_cell.quota_held,
    ev.Intended: external_cell.intended,
    ev.IntentAccepted: external_cell.accepted,
    ev.IntentSent: external_cell.sent,
    ev.IntentReopened: external_cell.reopened,
    ev.IntentSettled: external_cell.settled,
    ev.IntentAnswered: external_cell.answered,
    ev.DowntimeBegan: timers.began,
    ev.DowntimeEnded: timers.ended,
    ev.ClockHeld: timers.clock_held,
    ev.SubmittedMany: work_changes.submitted,
    ev.Owned: lambda state, event: state.owners.add(event.owner, len(state.workloads.ids), event.count),
    ev.PlacedMany: lambda state, event: work_changes.placed(state, event, claimed=False),
    ev.PlacedGangs: work_changes.gangs_placed,
    ev.StartedMany: work_changes.started,
    ev.FinishedMany: work_changes.finished,
}
