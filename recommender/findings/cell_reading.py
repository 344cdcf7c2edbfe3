"""A reading of a cell for the detectors of findings: what waits and why, and the nodes, pools and budgets in its way.

`CellReader.read` runs on the engine's thread and returns plain values; the detectors work on those elsewhere. Waiting
work is read by lots of like workloads, the longest waits first, so a reading costs the number of kinds that wait and
one pass over the columns of nodes, not the number of workloads.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from engine.capacity.index import OPEN
from engine.capacity.topology import CELL, domain_room, levels_asked, when_empty
from engine.model.columns import Ints, view
from engine.model.specs import HOUR_MS, LEVELS, NodeState, WorkloadState
from engine.placement.gang_placement import variants
from engine.placement.node_choice import could_be, grows, suits
from engine.reads.floods import Flood, floods
from recommender.history.metrics import kind_of

if TYPE_CHECKING:
    from engine.capacity.task_shapes import Shape
    from engine.control import Engine
    from engine.model.reports import BudgetLine
    from engine.model.specs import PoolSpec, QueueSpec
    from engine.state.cell_state import State

MAX_LOTS = 200
MAX_NAMED = 100
LATE_MS = 5 * 60_000
"""What has waited for less is not late."""
RECENT_MS = 30 * 60_000
"""Failures and notices of spot nodes are counted over so long."""
LOSSES_MS = 6 * HOUR_MS
ROOM = frozenset(("InsufficientCapacity", "Fragmented", "NoDomainFits", "NoMatchingNodes", "WaitingForReservation"))
"""Primary reasons of work that waits for nodes (`engine.reads.pending_reasons`)."""
QUOTA = "WaitingForQuota"


class QuotaLack(NamedTuple):
    """The limit that keeps a lot from quota, and the neighbours of the queue that has it."""

    queue: str
    resource: str
    idle: tuple[tuple[str, int], ...]
    """(queue, unused quota of its own) under the same parent with nothing waiting; most first."""
    free: int
    """Unused capacity of the cell, in the resource."""


class WaitingKind(NamedTuple):
    """Like workloads of one queue, tenant and priority that wait."""

    ids: tuple[str, ...]
    """The oldest first; at most MAX_NAMED."""
    count: int
    queue: str
    tenant: str
    priority: int
    token: str
    wait_ms: int
    gpu_milli: int
    """Of one workload."""
    cpu_milli: int
    out_rooms: tuple[tuple[int, int], ...] = ()
    """(node row, tasks that would fit) of idle nodes out of service."""
    missing_tasks: int = 0
    """Tasks of one workload for which the nodes in service have no room."""
    lack: QuotaLack | None = None
    never: str = ""
    """Why it can never start; empty where it can."""
    unlabelled: tuple[str, int, tuple[str, ...]] | None = None
    """(label, nodes with room for a task that lack it, their pools), where no node has it."""
    pools: tuple[str, ...] = ()
    """Growing pools whose new nodes it may use."""
    kept_by: tuple[str, ...] = ()
    """Idle reservations on whose nodes it would have room."""


class IdleNode(NamedTuple):
    """A node out of service without work, of which nothing speaks against its use."""

    id: str
    state: str
    since_ms: int
    gpu_milli: int
    cpu_milli: int


class IdleReservation(NamedTuple):
    """A reservation that has begun and has no work on its nodes."""

    name: str
    nodes: tuple[int, ...]
    """Rows."""
    start_ms: int
    end_ms: int
    gpu_milli: int
    cpu_milli: int
    owners_wait: bool
    """Work of its own queues waits, or is about to come to it."""


class PoolState(NamedTuple):
    spec: PoolSpec
    nodes: int
    due: int
    """Ordered and not granted."""
    oldest_order_ms: int
    """Cell time of the oldest open order; 0: none."""
    booting_since_ms: int
    failures: int
    """How often in a row it failed to deliver."""
    leaving: tuple[str, ...]
    """Nodes with notice, and those taken back in the last RECENT_MS."""
    first_price: int
    """When first read."""


class FailingNode(NamedTuple):
    id: str
    losses: int
    gangs: tuple[str, ...]
    """Work on it now."""
    pool_ready: int


class RetryGroup(NamedTuple):
    """Work of one kind that failed of late."""

    kind: str
    failed: int
    finished: int
    waiting: tuple[str, ...]
    """Of it, what waits and can be held."""
    queues: tuple[str, ...]


class CellReading(NamedTuple):
    version: int
    now_ms: int
    lots: tuple[WaitingKind, ...]
    idle_nodes: dict[int, IdleNode]
    """By row."""
    reservations: dict[str, IdleReservation]
    floods: tuple[tuple[Flood, tuple[str, ...], str], ...]
    """With the ids of its waiting work, and the class of the least priority there is."""
    pools: tuple[PoolState, ...]
    autoscaling: bool
    failing: tuple[FailingNode, ...]
    retries: tuple[RetryGroup, ...]
    budgets: tuple[BudgetLine, ...]
    queues: dict[str, QueueSpec]
    waiting: int


class CellReader:
    """Readings of one cell. Use it on the engine's thread."""

    def __init__(self) -> None:
        self._prices: dict[str, int] = {}

    def read(self, engine: Engine) -> CellReading:
        state, now_ms = engine.state, engine.now_ms
        idle, kept = idle_nodes(state, now_ms), idle_reservations(state, now_ms)
        return CellReading(
            version=engine.version,
            now_ms=now_ms,
            lots=tuple(_lots(engine, sorted(idle), kept)),
            idle_nodes=idle,
            reservations=kept,
            floods=tuple((flood, _ids(state, flood.rows), _lowest(state)) for flood in floods(state, now_ms)),
            pools=tuple(self._pools(state, now_ms)),
            autoscaling=state.settings.autoscaling.enabled,
            failing=tuple(_failing(state, now_ms)),
            retries=tuple(_retries(state, now_ms)),
            budgets=engine.budgets().budgets,
            queues={spec.name: spec for spec in state.queues.specs},
            waiting=int(state.workloads.state_counts[WorkloadState.QUEUED]),
        )

    def _pools(self, state: State, now_ms: int) -> list[PoolState]:
        c, orders = state.capacity, state.orders
        states, doomed, since, pools = view(c.state), view(c.doomed), view(c.since), view(c.pool)
        leaving = (doomed >= 0) & ((states != NodeState.REMOVED) | (since > now_ms - RECENT_MS))
        found = []
        for row, spec in enumerate(c.pools):
            open_ = [orders.ordered_ms[order] for order in orders.open if orders.pool[order] == row]
            booting = view(c.born)[(pools == row) & (states == NodeState.BOOTING)]
            found.append(
                PoolState(
                    spec=spec,
                    nodes=c.pool_nodes[row],
                    due=orders.due(row),
                    oldest_order_ms=min(open_, default=0),
                    booting_since_ms=int(booting.min()) if len(booting) else 0,
                    failures=orders.failures.get(row, 0),
                    leaving=tuple(c.node_ids[node] for node in np.flatnonzero(leaving & (pools == row)).tolist()),
                    first_price=self._prices.setdefault(spec.name, spec.price_microusd_hour),
                )
            )
        return found


def idle_nodes(state: State, now_ms: int) -> dict[int, IdleNode]:
    """Nodes that are cordoned or drained and empty, with no note, no loss in a day, no notice and no reservation."""
    c, failures = state.capacity, state.failures
    out = np.isin(view(c.state), (NodeState.CORDONED, NodeState.DRAINING)) & (view(c.doomed) < 0)
    out &= view(c.booking) == OPEN
    found = {}
    for row in np.flatnonzero(out).tolist():
        lost = any(at_ms > now_ms - 24 * HOUR_MS for at_ms in failures.losses.get(row, ()))
        if lost or row in failures.notes or state.allocations.workloads_on(row):
            continue
        offered = c.pools[c.pool[row]].offered
        label = NodeState(c.state[row]).label
        found[row] = IdleNode(c.node_ids[row], label, int(c.since[row]), offered.gpu_milli, offered.cpu_milli)
    return found


def idle_reservations(state: State, now_ms: int) -> dict[str, IdleReservation]:
    """Active reservations without work on any of their nodes."""
    c = state.capacity
    found = {}
    for spec in (each.spec for each in state.bookings.reservations):
        rows = tuple(c.row_of[name] for name in spec.nodes if name in c.row_of)
        if not spec.start_ms <= now_ms < spec.end_ms or any(state.allocations.workloads_on(row) for row in rows):
            continue
        sizes = [c.pools[c.pool[row]].offered for row in rows]
        own = {state.queues.row(queue) for queue in spec.queues if queue in state.queues.row_of}
        waiting = {key[1] for key, group in state.pending.groups.items() if len(group)}
        found[spec.name] = IdleReservation(
            spec.name, rows, spec.start_ms, spec.end_ms, sum(size.gpu_milli for size in sizes),
            sum(size.cpu_milli for size in sizes), any(own.intersection(state.queues.path[queue]) for queue in waiting),
        )  # fmt: skip
    return found


# -- what waits -------------------------------------------------------------------------------------------------------


def _lots(engine: Engine, out: list[int], kept: dict[str, IdleReservation]) -> list[WaitingKind]:
    state, now_ms = engine.state, engine.now_ms
    w = state.workloads
    queued = np.flatnonzero(view(w.state) == WorkloadState.QUEUED)
    late = queued[view(w.since)[queued] < now_ms - LATE_MS]
    if not len(late):
        return []
    key = np.zeros(len(late), np.int64)
    for column in (w.queue, w.cls, w.tenant, w.priority):
        values = view(column)[late].astype(np.int64)
        key = key * (int(values.max()) + 1) + values
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    oldest = np.minimum.reduceat(view(w.since)[late[order]], starts)
    ends = np.append(starts[1:], len(order))
    chosen = np.argsort(oldest, kind="stable")[:MAX_LOTS].tolist()
    lots = [late[order[starts[lot] : ends[lot]]] for lot in chosen]
    facts = _ShapeFacts(state, np.array(out, np.int64), kept)
    waiting_in = {w.queue[int(row)] for row in queued[np.unique(view(w.queue)[queued], return_index=True)[1]]}
    return [_lot(engine, rows, facts, waiting_in) for rows in lots]


def _lot(engine: Engine, rows: Ints, facts: _ShapeFacts, waiting_in: set[int]) -> WaitingKind:
    state, row = engine.state, int(rows[0])
    w = state.workloads
    cls, token = w.class_at(row), engine.reader.explainer.token(row)
    lot = WaitingKind(
        ids=_ids(state, rows[:MAX_NAMED].tolist()),
        count=len(rows),
        queue=state.queues.specs[w.queue[row]].name,
        tenant=w.tenants.names[w.tenant[row]],
        priority=w.value_at(row),
        token=token,
        wait_ms=engine.now_ms - int(view(w.since)[rows].min()),
        gpu_milli=cls.request[2],
        cpu_milli=cls.request[0],
    )
    if token == QUOTA:
        beyond = state.queues.beyond(w.queue[row], cls.least_charge)
        if beyond is not None:
            at = state.queues.specs[beyond.vertex].name
            return lot._replace(never=f"asks for more {_word(state, beyond.slot)} than queue {at} can ever have")
        return lot._replace(lack=_lack(state, row, waiting_in, engine.now_ms))
    if token not in ROOM or not cls.shapes or cls.reservation:
        return lot
    shape, least = cls.shapes[0], cls.least[0]
    unlabelled = facts.unlabelled(shape)
    if unlabelled is not None:
        return lot._replace(unlabelled=unlabelled)
    never = "" if len(cls.shapes) > 1 and facts.tasks_ever(shape) else facts.never(shape, least)
    pools = tuple(
        spec.name
        for number, spec in enumerate(state.capacity.pools)
        if number in shape.pool_set and grows(spec) and suits(spec, shape)
    )
    return lot._replace(
        never=never,
        pools=pools,
        out_rooms=() if never else facts.out_rooms(shape),
        kept_by=() if never else facts.kept_by(shape),
        missing_tasks=max(least - facts.slots(shape), 1),
    )


class _ShapeFacts:
    """What the nodes are for tasks of a shape, worked out once for each shape of a reading."""

    def __init__(self, state: State, out: Ints, kept: dict[str, IdleReservation]) -> None:
        self._state = state
        self._out = out
        self._kept = kept
        self._slots: dict[Shape, int] = {}
        self._out_rooms: dict[Shape, tuple[tuple[int, int], ...]] = {}
        self._ever: dict[Shape, int] = {}

    def slots(self, shape: Shape) -> int:
        if shape not in self._slots:
            self._slots[shape] = self._state.capacity.slots(shape)
        return self._slots[shape]

    def tasks_ever(self, shape: Shape) -> int:
        """Tasks that all nodes that there are, or may be ordered, would hold if nothing ran."""
        if shape not in self._ever:
            c = self._state.capacity
            nodes = could_be(self._state, shape, c.suited(shape))
            self._ever[shape] = sum(
                count * shape.most_on(pool) for count, pool in zip(nodes, c.pools, strict=True) if count
            )
        return self._ever[shape]

    def never(self, shape: Shape, least: int) -> str:
        most = self.tasks_ever(shape)
        if not most:
            return "no node that there is, or may be ordered, can hold one of its tasks"
        if most < least:
            return f"needs room for {least:,} tasks, and the whole cell holds {most:,} when empty"
        c, topology = self._state.capacity, shape.topology
        if topology is None or topology.required is None or any(map(grows, c.pools)):
            return ""
        level, _ = levels_asked(domain_room(c).tree, topology)
        per_node = tuple(shape.most_on(pool) if row in shape.pool_set else 0 for row, pool in enumerate(c.pools))
        rooms = when_empty(c, per_node, level)
        largest = int(rooms.max()) if len(rooms) else 0
        if level == CELL or largest >= least:
            return ""
        return f"needs {least:,} tasks in one {LEVELS[level]}, and the largest holds {largest:,} when empty"

    def unlabelled(self, shape: Shape) -> tuple[str, int, tuple[str, ...]] | None:
        """The label that keeps tasks from all nodes, where nodes with room for them lack it."""
        c = self._state.capacity
        wanted = [demand for demand in shape.labels if not demand.avoided]
        if not wanted or any(could_be(self._state, shape, c.suited(shape))):
            return None
        without = c.suited(shape, labels=False)
        pools = [row for row, count in enumerate(without) if count and shape.most_on(c.pools[row])]
        rows = np.flatnonzero(np.isin(view(c.pool), pools) & (view(c.state) == NodeState.READY))
        fitting = rows[c.rooms(shape, rows) > 0]
        if not len(fitting):
            return None
        demand = next((each for each in wanted if not c.labelled((each,))[fitting].any()), wanted[0])
        names = tuple(sorted({c.pools[c.pool[row]].name for row in fitting.tolist()}))
        values = "|".join(sorted(demand.values)[:3])
        return (f"{demand.key}={values}" if values else demand.key), len(fitting), names

    def out_rooms(self, shape: Shape) -> tuple[tuple[int, int], ...]:
        if shape not in self._out_rooms:
            self._out_rooms[shape] = self._rooms(shape, self._out)
        return self._out_rooms[shape]

    def kept_by(self, shape: Shape) -> tuple[str, ...]:
        return tuple(name for name, each in self._kept.items() if self._rooms(shape, np.array(each.nodes, np.int64)))

    def _rooms(self, shape: Shape, rows: Ints) -> tuple[tuple[int, int], ...]:
        """(row, tasks that fit) of those of the rows that tasks may use, whatever their state and reservation."""
        if not len(rows):
            return ()
        c = self._state.capacity
        reach = c.reach(shape)
        eligible = np.zeros(max(len(c.partitions), 1), bool)
        eligible[list(reach.open)] = True
        mask = eligible[view(c.partition)[rows]]
        if reach.loose:
            mask &= c.labelled(reach.loose)[rows]
        rows = rows[mask]
        return tuple(
            (row, room) for row, room in zip(rows.tolist(), c.rooms(shape, rows).tolist(), strict=True) if room
        )


def _lack(state: State, row: int, waiting_in: set[int], now_ms: int) -> QuotaLack | None:
    """The neighbours with quota to spare of the queue whose limit the workload meets."""
    w, tree, c = state.workloads, state.queues, state.capacity
    shapes = next(variants(state, row), None)
    if shapes is None:
        return None
    lack = tree.lack(w.queue[row], state.charge_if(row, shapes, w.class_at(row).least), now_ms)
    if lack is None:
        return None
    pool, resource = tree.named_slot(lack.slot)
    index = {"cpu_milli": 0, "gpu_milli": 2}.get(resource)
    if pool or index is None or any(c.slots(shape) < 1 for shape in shapes):
        return None
    busy = {vertex for queue in waiting_in for vertex in tree.path[queue]}
    at = tree.specs[lack.vertex]
    idle = [
        (spec.name, spec.nominal[resource] - tree.used_vector(vertex)[index])
        for vertex, spec in enumerate(tree.specs)
        if spec.parent == at.parent and vertex != lack.vertex and resource in spec.nominal and vertex not in busy
    ]
    free = sum(view(c.free_cpu).tolist()) if index == 0 else int(c.free_gpu().sum())
    spare = tuple(
        sorted(((name, least) for name, least in idle if least >= lack.short), key=lambda one: (-one[1], one[0]))
    )
    return QuotaLack(at.name, resource, spare, free) if spare else None


def _word(state: State, slot: int) -> str:
    return state.queues.named_slot(slot)[1].partition("_")[0].upper()


def _ids(state: State, rows: tuple[int, ...] | list[int]) -> tuple[str, ...]:
    return tuple(state.workloads.ids[row] for row in rows[:MAX_NAMED])


def _lowest(state: State) -> str:
    """Name of the usable priority class of the least value; empty where there is but one."""
    w = state.workloads
    usable = [spec for row, spec in enumerate(w.priority_classes) if row not in w.removed_classes]
    return min(usable, key=lambda spec: spec.value).name if len(usable) > 1 else ""


# -- nodes and failures -----------------------------------------------------------------------------------------------


def _failing(state: State, now_ms: int) -> list[FailingNode]:
    c, a, w = state.capacity, state.allocations, state.workloads
    found = []
    for row, losses in state.failures.losses.items():
        recent = sum(at_ms > now_ms - LOSSES_MS for at_ms in losses)
        if recent >= 2 and c.state[row] == NodeState.READY:
            work = tuple(sorted({w.ids[a.workload[each]] for each in a.on_node(row)}))
            alike = (view(c.pool) == c.pool[row]) & (view(c.state) == NodeState.READY)
            found.append(FailingNode(c.node_ids[row], recent, work[:MAX_NAMED], int(alike.sum())))
    return found


def _retries(state: State, now_ms: int) -> list[RetryGroup]:
    """Kinds of work with failures in the last RECENT_MS: attempts that failed, and workloads that did for good."""
    w = state.workloads
    if not w.ids:
        return []
    states, since = view(w.state), view(w.since)
    recent = np.flatnonzero(since > now_ms - RECENT_MS)
    over = np.isin(states[recent], (WorkloadState.FAILED, WorkloadState.FINISHED))
    tried = (view(w.failures)[recent] > 0) & np.isin(
        states[recent], (WorkloadState.QUEUED, WorkloadState.WAITING, WorkloadState.RUNNING, WorkloadState.PLACED)
    )
    failed: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    waiting: dict[str, list[str]] = {}
    queues: dict[str, set[str]] = {}
    for row in recent[over | tried].tolist():
        kind = kind_of(w.tenants.names[w.tenant[row]], w.names[row]) or w.ids[row]
        if states[row] == WorkloadState.FINISHED:
            finished[kind] += 1
            continue
        failed[kind] += max(int(w.failures[row]), 1)
        queues.setdefault(kind, set()).add(state.queues.specs[w.queue[row]].name)
        if states[row] in (WorkloadState.QUEUED, WorkloadState.WAITING):
            waiting.setdefault(kind, []).append(w.ids[row])
    return [
        RetryGroup(kind, count, finished[kind], tuple(waiting.get(kind, ())[:MAX_NAMED]), tuple(sorted(queues[kind])))
        for kind, count in failed.items()
    ]
