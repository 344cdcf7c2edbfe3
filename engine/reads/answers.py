"""Answers to queries: windows onto workloads, nodes and queues, one object in full, and the overview.

Filters and sorts run over whole columns with numpy; only the rows of the window become Python values, and sorting
reaches no further than the window. The matching rows are kept until the state changes, for the next page.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import msgspec
import numpy as np

from engine.admission.workload_changes import resize_text
from engine.capacity import mig
from engine.capacity.index import Capacity
from engine.capacity.topology import CELL, Spans, ranks_in_order
from engine.model.columns import Numbers, view
from engine.model.details import (
    DependencyDetail,
    GroupDetail,
    HistoryItem,
    MigInstance,
    NodeDetail,
    QueueDetail,
    ServiceDetail,
    TaskPlace,
    TopologyDetail,
    WorkloadDetail,
)
from engine.model.errors import SpecError
from engine.model.events import BACKFILLED, BORROWED, BURST, EVICTION_CAUSES, FAILURE_CAUSES
from engine.model.list_queries import DEFAULT_COLUMNS, Kind, Page, Query
from engine.model.overviews import Overview, PoolOverview
from engine.model.quantities import counted
from engine.model.reports import (
    BudgetReport,
    DecisionReport,
    FairnessReport,
    FragmentationReport,
    HeatMap,
    HeatRequest,
    Showback,
    ShowbackRequest,
)
from engine.model.spec_parts import exit_words, shown
from engine.model.specs import (
    LEVELS,
    RESOURCES,
    NodeState,
    PoolSpec,
    QueueMode,
    ReservationSpec,
    TopologyRequest,
    WorkloadState,
)
from engine.model.visibility import Visibility
from engine.placement.fragmentation import headline_ppm, measured
from engine.placement.node_choice import grows
from engine.reads import cost_reports
from engine.reads.id_search import Texts
from engine.reads.lists import SOURCES, RowSource, column_named, matching, ordered
from engine.reads.overview import Heat, held_by_tenant
from engine.reads.pending_reasons import Explainer
from engine.reads.recent_activity import Recent, totals
from engine.reads.visible_work import VisibleWork
from engine.scheduling.candidate_order import above_quota, report
from engine.scheduling.cycle_memory import CycleMemory, Decision
from engine.state.cell_state import State
from engine.state.machines import NOTES, load_of
from engine.state.pending_work import burns
from engine.state.workloads import (
    CHECKPOINTING,
    DEPENDS_ON,
    EVICTED,
    EXITED,
    FAILED,
    GROWN,
    MOVED,
    NONE,
    PLACED,
    PRIORITY,
    RESIZED,
    SHRUNK,
    SWAPPED,
    TRANSITIONS,
    TURNED,
    WANTED,
)

MAX_ROWS = 10_000
"""Largest window of one answer."""
MAX_PLACES = 1_000
MAX_TENANTS = 1_000
"""Told of in an overview."""
MAX_DEPENDENTS, TOLD_DEPENDENTS = 10_000, 100
"""Workloads that wait for one workload: counted, and listed one by one."""
_FLAGS: tuple[tuple[int, Literal["borrowed", "burst", "backfilled"]], ...] = (
    (BORROWED, "borrowed"),
    (BURST, "burst"),
    (BACKFILLED, "backfilled"),
)
_RULES = {
    "expired burst": "its queue's burst is over",
    "overran backfill": "backfilled, and ran past its estimate",
    "reclaimed": "borrowed quota was reclaimed",
    "lower priority": "lower priority, same queue",
}
"""The reason for choosing a victim, by its entry of EVICTION_CAUSES."""
_BLOCKED_CLASSES = 500
"""Classes of waiting workloads whose reasons an overview works out."""

FIRST_ROWS = 1_000
"""Number of rows of an order that are found at once: after the first screen the next is often wanted."""
MIN_KEPT = 10_000
"""Fewer are quickly sorted again."""
MAX_KEPT = 16
"""Filters whose rows are kept, a few megabytes each of a large cell; until something happens."""


class Reader:
    """Reads one State. Never changes it."""

    def __init__(self, state: State, memory: CycleMemory) -> None:
        self._state = state
        self._memory = memory
        self.explainer = Explainer(state, memory)
        self._kept_of: tuple[int, int] = (-1, -1)
        """Version and time of what is kept for who scrolls on, or asks for what others asked for."""
        self._matching: dict[tuple[Any, ...], Numbers] = {}
        self._first: dict[tuple[Any, ...], Numbers] = {}

    # -- windows --------------------------------------------------------------------------------------------------

    @cached_property
    def indexes(self) -> dict[Kind, dict[str, Texts]]:
        """Indexes of the columns of text that may be long."""
        w = self._state.workloads
        return {
            "workloads": {"id": Texts(w.ids), "name": Texts(w.names)},
            "nodes": {"id": Texts(self._state.capacity.node_ids)},
        }

    @cached_property
    def _heat(self) -> Heat:
        return Heat(self._state)

    def page(self, query: Query, now_ms: int, visible: VisibleWork | None = None) -> Page:
        """`visible`: of whoever does not see all. Raises SpecError for an unknown column, operator or value."""
        columns = query.columns or DEFAULT_COLUMNS[query.kind]
        for name in columns:
            column_named(query.kind, name)
        if query.offset < 0 or not 0 <= query.limit <= MAX_ROWS:
            raise SpecError(
                "limit", f"{query.limit} from {query.offset} is not a valid window", f"Ask for 0 to {MAX_ROWS} rows"
            )
        source = SOURCES[query.kind](self._state, self.explainer, now_ms)
        source.indexes = self.indexes.get(query.kind, {})
        seen_by = None
        if visible is not None:
            visible.limit(query.kind, source)
            seen_by = visible.visibility
        if query.from_row and query.sort:
            raise SpecError("from_row", "goes with creation order only", "Leave out sort, or use offset")
        rows = self._matched(query, source, now_ms, seen_by)
        rest = rows[np.searchsorted(rows, query.from_row) :] if query.from_row else rows
        window = self._ordered(query, source, rest, seen_by)
        more = not query.sort and query.offset + query.limit < len(rest)
        values = [source.values(name, window) for name in columns]
        return Page(
            version=self._state.version,
            at_ms=now_ms,
            columns=columns,
            rows=[list(row) for row in zip(*values, strict=True)],
            matched=len(rows),
            total=source.size - (0 if source.hidden is None else int(source.hidden.sum())),
            next_row=int(window[-1]) + 1 if more and len(window) else -1,
        )

    def _matched(self, query: Query, source: RowSource, now_ms: int, seen_by: Visibility | None) -> Numbers:
        """Rows that match, kept for who scrolls on."""
        if self._kept_of != (self._state.version, now_ms):
            self._kept_of = (self._state.version, now_ms)
            self._matching, self._first = {}, {}
        key = (query.kind, query.where, seen_by)
        rows = self._matching.get(key)
        if rows is None:
            rows = matching(query.kind, source, query.where)
            if len(self._matching) < MAX_KEPT:
                self._matching[key] = rows
        return rows

    def _ordered(self, query: Query, source: RowSource, rows: Numbers, seen_by: Visibility | None) -> Numbers:
        """The window of the rows that match. Its first screens are found together."""
        start, stop = query.offset, query.offset + query.limit
        if stop > FIRST_ROWS or not query.sort or len(rows) < MIN_KEPT:
            return ordered(query.kind, source, rows, query.sort, start, stop)
        key = (query.kind, query.where, query.sort, seen_by)
        first = self._first.get(key)
        if first is None:
            first = self._first[key] = ordered(query.kind, source, rows, query.sort, 0, FIRST_ROWS)
        return first[start:stop]

    # -- single objects -------------------------------------------------------------------------------------------

    def workload(self, workload_id: str, now_ms: int) -> WorkloadDetail:
        state = self._state
        w = state.workloads
        row = w.row(workload_id)
        workload_class = w.class_at(row)
        waits = w.state[row] == WorkloadState.QUEUED
        allocations, ranks = self._ranked(row)
        dependents = w.dependents(row, MAX_DEPENDENTS)
        return WorkloadDetail(
            version=state.version,
            now_ms=now_ms,
            id=w.ids[row],
            name=w.names[row],
            state=WorkloadState(w.state[row]).label,
            since_ms=w.since[row],
            queue=state.queues.specs[w.queue[row]].name,
            priority_class=w.priority_classes[w.priority[row]].name,
            priority=w.value_at(row),
            tenant=w.tenants.names[w.tenant[row]],
            team=w.teams.names[w.team[row]],
            tags=msgspec.json.decode(w.tag_sets.names[w.tags[row]], type=dict[str, str]),
            owner=self._owner(row),
            groups=tuple(_group_detail(group) for group in workload_class.groups),
            estimate_ms=workload_class.estimate_ms,
            submitted_ms=w.submitted[row],
            started_ms=w.started[row] if w.started[row] >= 0 else None,
            ended_ms=w.ended[row] if w.ended[row] >= 0 else None,
            attempts=w.attempts[row],
            checkpoint_interval_ms=w.checkpoint[row],
            kept_ms=w.kept[row],
            loss_ms=0 if w.checkpoint_cost[row] or not state.is_bound(row) else w.lost_if_stopped(row, now_ms),
            position=state.position(row) if waits else None,
            reasons=self.explainer.reasons(row) + self.explainer.outlook(row),
            start_not_before_ms=self._start_bound(row, now_ms) if waits else None,
            promised_start_ms=self.explainer.promised().get(row),
            placement=tuple(
                self._place(workload_class.groups, a, rank)
                for a, rank in zip(allocations[:MAX_PLACES], ranks, strict=False)
            ),
            placement_total=len(allocations),
            history=self._history(row),
            flags=tuple(name for flag, name in _FLAGS if w.flags[row] & flag) if state.is_bound(row) else (),
            burst_ends_ms=self._burst_ends(row, now_ms) if state.is_bound(row) else None,
            making_room_for=w.ids[w.preempting[row]] if w.preempting[row] != NONE else "",
            tasks_placed=w.tasks[row],
            tasks_total=workload_class.tasks,
            waits_for=tuple(self._dependency(target, kind) for target, kind in w.dependencies(row)),
            needed_by=tuple(self._dependent(row, waiter, kind) for waiter, kind in dependents[:TOLD_DEPENDENTS]),
            needed_by_total=len(dependents),
            deadline_ms=w.terms_at(row).deadline_ms or None,
            failures=w.failures[row],
            retries=w.terms_at(row).retries,
            array=w.array_names.names[w.array[row]] if w.array[row] != NONE else "",
            topology=self._topology(workload_class.bonds.topology, allocations),
            near=workload_class.bonds.near,
            apart=workload_class.bonds.apart,
            data=workload_class.bonds.data,
            qos=workload_class.bonds.qos,
            service=self._service(row, now_ms),
            cost_microusd=state.ledger.cost_of(row, now_ms),
            wasted_microusd=state.ledger.wasted_of(row),
            rate_microusd_hour=state.ledger.rate[row],
            spending_approved=row in state.budgets.approved,
            run=shown(w.terms_at(row).run),
            rerun=w.terms_at(row).rerun,
        )

    def _owner(self, row: int) -> str:
        """Of a Slurm cell, the user whom Slurm names, whoever asked Muster to submit it."""
        if self._state.settings.decided_by == "slurm":
            user = self._state.workloads.tags_of(self._state.workloads.tags[row]).get("user", "")
            return f"slurm:{user}" if user else ""
        return self._state.owners.of(row)

    def _service(self, row: int, now_ms: int) -> ServiceDetail | None:
        state = self._state
        spec = state.workloads.terms_at(row).service
        if spec is None or row not in state.replicas.wanted:
            return None
        reported, use = load_of(state, row, spec, now_ms) if state.is_bound(row) else (0, 0)
        return ServiceDetail(
            least=spec.least,
            most=spec.most,
            wanted=state.replicas.wanted[row],
            target_permille=spec.target_permille,
            use_permille=use // reported if reported else None,
        )

    def _ranked(self, row: int) -> tuple[list[int], list[int]]:
        """(allocations of the workload in the order of ranks, rank of the first task of each)."""
        a = self._state.allocations
        rows = list(a.of_workload(self._state.workloads.first_allocation[row]))
        order = ranks_in_order(self._state.capacity, [a.group[i] for i in rows], [a.node[i] for i in rows])
        rows = [rows[i] for i in order.tolist()]
        return rows, list(accumulate((a.count[i] for i in rows), initial=0))

    def _topology(self, asked: TopologyRequest | None, allocations: list[int]) -> TopologyDetail | None:
        nodes = [self._state.allocations.node[i] for i in allocations]
        if asked is None and len(set(nodes)) < 2:
            return None
        required, preferred = ("", "") if asked is None else (asked.required or "", asked.preferred or "")
        if not nodes:
            return TopologyDetail(required=required, preferred=preferred, within="")
        spans = Spans(self._state.capacity, nodes)
        return TopologyDetail(
            required=required,
            preferred=preferred,
            within="cell" if spans.within == CELL else LEVELS[spans.within],
            domains=spans.domains,
            ring_cost=spans.ring_cost,
        )

    def _burst_ends(self, row: int, now_ms: int) -> int | None:
        """The first end of a burst that it runs in."""
        queues = self._state.queues
        if not self._state.workloads.flags[row] & BURST:
            return None
        bursting = [
            vertex
            for vertex in queues.path[self._state.workloads.queue[row]]
            if queues.burst_state(vertex, now_ms) == "burst"
        ]
        ends = [queues.burst_since[vertex] + queues.specs[vertex].burst.window_ms for vertex in bursting]
        return min(ends, default=None)

    def _dependency(self, target: int, kind: int) -> DependencyDetail:
        w = self._state.workloads
        return DependencyDetail(
            id=w.ids[target],
            on=DEPENDS_ON[kind],
            state=WorkloadState(w.state[target]).label,
            never=w.hopeless(target, kind),
        )

    def _dependent(self, target: int, waiter: int, kind: int) -> DependencyDetail:
        w = self._state.workloads
        return DependencyDetail(
            id=w.ids[waiter],
            on=DEPENDS_ON[kind],
            state=WorkloadState(w.state[waiter]).label,
            never=w.hopeless(target, kind),
        )

    def _start_bound(self, row: int, now_ms: int) -> int | None:
        """Never in the past, though what it waits for may have run longer than expected."""
        start = self.explainer.start_bound(row)
        return None if start is None else max(start, now_ms)

    def _place(self, groups: Sequence[Any], allocation: int, rank: int) -> TaskPlace:
        a, capacity = self._state.allocations, self._state.capacity
        node, mask = a.node[allocation], mig.device_mask(a.devices[allocation])
        return TaskPlace(
            group=groups[a.group[allocation]].name,
            node=capacity.node_ids[node],
            rack=capacity.places.names[capacity.rack[node]],
            tasks=a.count[allocation],
            devices=tuple(i for i in range(mask.bit_length()) if mask >> i & 1),
            rank=rank,
        )

    def _history(self, row: int) -> tuple[HistoryItem, ...]:
        w = self._state.workloads
        items = []
        entry = w.history[row]
        while entry >= 0:
            what, detail = w.history_what[entry], w.history_detail[entry]
            items.append(
                HistoryItem(at_ms=w.history_at[entry], what=TRANSITIONS[what], detail=self._history_text(what, detail))
            )
            entry = w.history_previous[entry]
        return tuple(reversed(items))

    def _history_text(self, what: int, detail: int) -> str:
        """The detail of a history entry in words: how much, why, and for whom."""
        ids = self._state.workloads.ids
        if what == PLACED:
            return f"on {counted(detail, 'node')}"
        if what == EVICTED:
            cause, by = detail & 0xFF, (detail >> 8) - 1
            name = EVICTION_CAUSES[cause]
            return name if by == NONE else f"preempted for {ids[by]} ({_RULES.get(name, name)})"
        if what == FAILED:
            return FAILURE_CAUSES[detail]
        if what == CHECKPOINTING:
            return f"writing a checkpoint to make room for {ids[detail]}"
        if what == TURNED:
            return "its slack ran out"
        if what == EXITED:
            return exit_words(detail >> 16, detail & 0xFFFF)
        if what == PRIORITY:
            return f"is {self._state.workloads.priority_classes[detail].name} now"
        if what == MOVED:
            return f"to queue {self._state.queues.specs[detail].name}"
        if what == WANTED:
            return f"{detail & 0xFFFFFF} replicas in place of {detail >> 24}, by its load"
        if what == RESIZED:
            return self._resized(detail)
        if what == SWAPPED:
            lost, gained = detail & 0xFFFFFF, detail >> 24
            return f"{counted(lost, 'task')} lost, {gained} placed elsewhere; back at its last checkpoint"
        if what in (GROWN, SHRUNK):
            tasks, by = detail & 0xFFFFFF, (detail >> 24) - 1
            changed = counted(tasks, "task")
            if what == GROWN:
                return f"{changed} more"
            return f"{changed} less" if by == NONE else f"{changed} less, to make room for {ids[by]}"
        return ""

    def _resized(self, change: int) -> str:
        w = self._state.workloads
        before, after = (w.classes[cls[change]].groups for cls in (w.resized_from, w.resized_to))
        return resize_text(before, after, w.resized_why.names[w.resized_by[change]])

    def queue(self, name: str, now_ms: int) -> QueueDetail:
        state = self._state
        tree = state.queues
        row = tree.row(name)
        leaves = [queue for queue, path in enumerate(tree.path) if row in path and not tree.children[queue]]
        closed = [vertex for vertex in tree.path[row][1:] if tree.mode[vertex] != QueueMode.OPEN]
        over = next((excess for vertex in tree.path[row] if (excess := tree.over(vertex, now_ms))), ())
        return QueueDetail(
            version=state.version,
            now_ms=now_ms,
            name=name,
            mode=QueueMode(tree.mode[row]).label,
            closed_by=tree.specs[closed[0]].name if closed else "",
            spec=tree.specs[row],
            leaves=tuple(tree.specs[queue].name for queue in leaves),
            over={"/".join(filter(None, tree.named_slot(slot))): excess for slot, excess in over},
            burn=next((burn for burn in burns(state, now_ms) if burn.queue == name), None),
        )

    def reservation(self, name: str) -> ReservationSpec:
        return self._state.bookings.reservation(name).spec

    def node(self, node_id: str, now_ms: int) -> NodeDetail:
        state = self._state
        capacity = state.capacity
        row = capacity.row(node_id)
        pool = capacity.pools[capacity.pool[row]]
        tasks: dict[str, int] = {}
        for a in state.allocations.on_node(row):
            name = state.workloads.ids[state.allocations.workload[a]]
            tasks[name] = tasks.get(name, 0) + state.allocations.count[a]
        places = capacity.places.names
        return NodeDetail(
            version=state.version,
            now_ms=now_ms,
            id=capacity.node_ids[row],
            state=NodeState(capacity.state[row]).label,
            since_ms=capacity.since[row],
            pool=pool.name,
            zone=places[capacity.zone[row]],
            block=places[capacity.block[row]],
            rack=places[capacity.rack[row]],
            gpu_model=pool.gpu_model,
            capacity=dict(zip(RESOURCES, pool.offered.vector(), strict=True)),
            free=dict(zip(RESOURCES, capacity.free_vector(row), strict=True)),
            devices=tuple(capacity.devices(row)),
            workloads=tuple(sorted(tasks.items())),
            region=places[capacity.region[row]],
            nvlink=places[capacity.nvlink[row]],
            labels=capacity.labels_of(row),
            taints=tuple(taint.label for taint in capacity.taints_of(row)),
            nvlink_group=pool.nvlink_group,
            profiles=mig.profiles_of(pool),
            instances=_instances(capacity, row) if pool.mig else (),
            physical=_physical(pool),
            allocatable=dict(zip(RESOURCES, pool.capacity.vector(), strict=True)),
            overcommit={name: permille for name, permille in pool.overcommit.items() if permille > 1000},
            in_use=_in_use(self._state, row),
            note=NOTES[state.failures.notes.get(row, 0)],
            ends_ms=ends_ms if (ends_ms := state.capacity.doomed[row]) >= 0 else None,
        )

    # -- the overview ---------------------------------------------------------------------------------------------

    def fairness(self, now_ms: int) -> FairnessReport:
        """Each queue's present and deserved holding, and the reasons for the order of the last starts."""
        state = self._state
        queues = state.queues
        demand = [list(queues.used_vector(row)) for row in range(len(queues.specs))]
        for key, group in state.pending.groups.items():
            for row in group.rows[group.front :]:
                for i, quantity in enumerate(state.workloads.class_at(row).request):
                    demand[key[1]][i] += quantity
        vectors = [(cpu, memory, gpu, disk) for cpu, memory, gpu, disk in demand]
        return FairnessReport(
            version=state.version,
            now_ms=now_ms,
            half_life_ms=queues.half_life_ms,
            past_counts=state.settings.fair_half_life_ms > 0,
            queues=tuple(report(queues, state.capacity.totals, vectors, now_ms)),
            decisions=tuple(self._decision(made) for made in reversed(self._memory.decisions)),
        )

    def fragmentation(self, now_ms: int) -> FragmentationReport:
        """The free GPU that the work of the cell could not use, by pool and by kind of task."""
        return measured(self._state, now_ms)

    def heat(self, request: HeatRequest, now_ms: int) -> HeatMap:
        """The cell as a map. Raises SpecError and NotFoundError."""
        return self._heat.map(request, now_ms)

    def _decision(self, made: Decision) -> DecisionReport:
        w, queues = self._state.workloads, self._state.queues
        band, shares, priority, _ = made.order
        first = DecisionReport(
            at_ms=made.at_ms,
            workload=w.ids[made.row],
            queue=queues.specs[w.queue[made.row]].name,
            band=-band,
            shares_ppb=shares,
            priority=-priority,
            rule="alone",
        )
        if made.next_order is None:
            return first
        next_band, next_shares, next_priority, next_row = made.next_order
        rule: Literal["band", "waited", "share", "priority", "age"] = "age"
        if band != next_band:
            rule = "band"
        elif bool(shares) != bool(next_shares):
            rule = "waited"
        elif shares != next_shares:
            rule = "share"
        elif priority != next_priority:
            rule = "priority"
        return msgspec.structs.replace(
            first,
            next_workload=w.ids[next_row],
            next_queue=queues.specs[w.queue[next_row]].name,
            next_band=-next_band,
            next_shares_ppb=next_shares,
            next_priority=-next_priority,
            rule=rule,
        )

    def showback(self, request: ShowbackRequest, now_ms: int) -> Showback:
        return cost_reports.showback(self._state, request, now_ms)

    def budgets(self, now_ms: int) -> BudgetReport:
        return cost_reports.budgets(self._state, now_ms)

    def overview(self, recent: Recent, now_ms: int, *, brief: bool = False) -> Overview:
        state = self._state
        w = state.workloads
        capacity, used = totals(state)
        borrowed, bursting = above_quota(state.queues)
        oldest = min((group.rows[group.front] for group in state.pending.groups.values()), default=-1)
        waits = sorted(recent.waits)
        started, finished = recent.last_hour(now_ms)
        return Overview(
            version=state.version,
            now_ms=now_ms,
            cell=state.cell,
            policy=state.policy,
            states={s.label: w.state_counts[s] for s in WorkloadState},
            capacity=dict(zip(RESOURCES, capacity, strict=True)),
            used=dict(zip(RESOURCES, used, strict=True)),
            pools=self._pools(),
            blocked=() if brief else self._blocked(),
            oldest_wait_ms=now_ms - w.submitted[oldest] if oldest >= 0 else 0,
            oldest_waiting=w.ids[oldest] if oldest >= 0 else "",
            wait_p50_ms=waits[len(waits) // 2] if waits else 0,
            wait_p95_ms=waits[len(waits) * 95 // 100] if waits else 0,
            started_last_hour=started,
            finished_last_hour=finished,
            history=tuple(recent.samples),
            fragmentation_ppm=None if brief else headline_ppm(state),
            watched=state.failures.watched_count,
            suspect=state.failures.suspects,
            mass_suspicion=state.failures.is_mass(state.settings.health.mass_permille),
            cost_microusd_hour=sum(state.ledger.cost.rate),
            idle_microusd_hour=sum(state.ledger.cost.rate) - sum(state.ledger.used.rate),
            burns=() if brief else burns(state, now_ms),
            borrowed={name: quantity for name, quantity in zip(RESOURCES, borrowed, strict=True) if quantity},
            in_burst={name: quantity for name, quantity in zip(RESOURCES, bursting, strict=True) if quantity},
            tenants={} if brief else self._tenants(),
        )

    def _tenants(self) -> dict[str, dict[str, int]]:
        """The holding of each tenant; of very many, those with most devices, or else CPU."""
        held = [(self._state.workloads.tenants.names[row], use) for row, use in held_by_tenant(self._state).items()]
        held.sort(key=lambda each: (-each[1][2], -each[1][0], each[0]))
        return {
            name: {of: quantity for of, quantity in zip(RESOURCES, use, strict=True) if quantity}
            for name, use in held[:MAX_TENANTS]
            if any(use)
        }

    def _pools(self) -> tuple[PoolOverview, ...]:
        capacity = self._state.capacity
        if not capacity.node_ids and not any(map(grows, capacity.pools)):
            return ()
        pool_of = view(capacity.pool)
        kinds = len(NodeState)
        states = np.bincount(pool_of * kinds + view(capacity.state), minlength=kinds * len(capacity.pools))
        states = states.reshape(-1, kinds)
        free = [
            np.bincount(pool_of, weights=column, minlength=len(capacity.pools)).astype(np.int64)
            for column in (
                view(capacity.free_cpu),
                view(capacity.free_memory),
                self._state.capacity.free_gpu(),
                view(capacity.free_disk),
            )
        ]
        rows = []
        for i, pool in enumerate(capacity.pools):
            total = [quantity * capacity.pool_nodes[i] for quantity in pool.offered.vector()]
            rows.append(
                PoolOverview(
                    name=pool.name,
                    gpu_model=pool.gpu_model,
                    nodes=capacity.pool_nodes[i],
                    ready=int(states[i, NodeState.READY]),
                    cordoned=int(states[i, NodeState.CORDONED]),
                    draining=int(states[i, NodeState.DRAINING]),
                    down=int(states[i, NodeState.DOWN]),
                    capacity=dict(zip(RESOURCES, total, strict=True)),
                    used={name: total[r] - int(free[r][i]) for r, name in enumerate(RESOURCES)},
                    price_microusd_hour=pool.price_microusd_hour,
                    booting=int(states[i, NodeState.BOOTING]),
                    suspect=int(states[i, NodeState.SUSPECT]),
                    ordered=self._state.orders.due(i),
                    spot=pool.spot,
                )
            )
        return tuple(rows)

    def _blocked(self) -> tuple[tuple[str, int], ...]:
        """Queued workloads by primary reason: one of each lot of like workloads is asked."""
        counts: dict[str, int] = {}
        lots = self._lots()
        for row, count in lots[:_BLOCKED_CLASSES]:
            token = self.explainer.token(row)
            counts[token] = counts.get(token, 0) + count
        rest = sum(count for _, count in lots[_BLOCKED_CLASSES:])
        if rest:
            counts["NotExamined"] = rest
        return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

    def _lots(self) -> list[tuple[int, int]]:
        """(first row, how many) of the queued workloads that wait for the same."""
        pending, cls = self._state.pending, self._state.workloads.cls
        if pending.by_class:
            return [(group.rows[group.front], len(group)) for group in pending.groups.values()]
        lots: list[tuple[int, int]] = []
        for group in pending.groups.values():
            found: dict[int, list[int]] = {}
            for row in group.rows[group.front :]:
                found.setdefault(cls[row], []).append(row)
            lots += [(rows[0], len(rows)) for rows in found.values()]
        return lots


def _instances(capacity: Capacity, row: int) -> tuple[tuple[MigInstance, ...], ...]:
    """MIG instances of each device of the node."""
    profiles = mig.profiles_of(capacity.pools[capacity.pool[row]])
    base = capacity.device_base[row]
    return tuple(
        tuple(
            MigInstance(profile=profiles[kind], used=bool(capacity.device_used[at] >> i & 1))
            for i, (kind, _) in enumerate(mig.LAYOUTS[capacity.device_layout[at]])
        )
        for at in range(base, base + capacity.device_count(row))
    )


def _group_detail(group: Any) -> GroupDetail:
    cpu, memory, gpu, disk = group.request.vector()
    return GroupDetail(
        name=group.name, count=group.count, cpu_milli=cpu, memory_mib=memory, gpu_milli=gpu, disk_mib=disk,
        gpu_models=group.gpu_models, pools=group.pools, gpu_memory_mib=group.gpu_memory_mib, mig=group.mig,
        node_labels=group.node_labels, avoid_labels=group.avoid_labels, tolerations=group.tolerations,
        spread=group.spread, capacity_type=group.capacity_type,
    )  # fmt: skip


def _physical(pool: PoolSpec) -> dict[str, int]:
    """The node's full size, the share of its own system included."""
    both = zip(RESOURCES, pool.capacity.vector(), pool.reserved.vector(), strict=True)
    return {name: have + kept for name, have, kept in both}


def _in_use(state: State, node: int) -> dict[str, int]:
    """CPU and memory that work there is known to use."""
    if node not in state.usage.on:
        return {}
    return {"cpu_milli": state.usage.cpu_on(node), "memory_mib": state.usage.memory_on(node)}
