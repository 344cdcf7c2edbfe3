"""Insights from the history about the work of a live cell: its use of resources, its best placement, its slowdowns.

Lives in the engine's process. It asks the engine for a moment at a time, reads the history beside it, and learns on
the calling thread. `keep_up` learns and looks at neighbours from time to time, so that new work can be sized without
anybody asking. After a restart everything is learnt anew from the history, except neighbours.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.admission.workload_changes import spec_of
from engine.capacity.task_shapes import accepts
from engine.model.columns import view
from engine.model.errors import MusterError
from engine.model.spec_parts import DAY_MS, HOUR_MS
from engine.model.specs import TaskGroup, WorkloadState
from engine.state.ledger import share
from recommender.estimates.queries import PlacementAdvice, SizingReport, SizingRequest
from recommender.estimates.request_sizing import Sizer, TaskGroupUse, UsageModel, sized, sizing_findings
from recommender.history.metrics import CELL, RunRecord, kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from console.service.telemetry import Archive
    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.state.cell_state import State
    from recommender.estimates.machine_choice import CandidatePool, ColocatedRun, Fingerprint, Slowdown, SpeedModel
    from recommender.findings.suggestions import Suggestion

EVERY_S = 25.0
"""Wall seconds between two rounds of `keep_up`, at the least."""
FRESH_S = 30.0
"""Wall seconds for which what was learnt is not learnt again."""
LOOKBACK_MS = 28 * DAY_MS
STEP_MS = 5 * 60_000
MAX_RUNS = 20_000
MAX_KINDS = 500
"""Kinds whose samples are read; those that were measured last."""
AT_ONCE = 1_000
"""Workloads looked at in one go on the engine's thread: a few milliseconds."""
MAX_LOOKED = 10_000
LATE_MS = HOUR_MS
"""How late an ended run may come into the history and still be learnt."""
MAX_BESIDE = 20_000
TESTED_EVERY = 20
"""Runs more that are joined before slowdowns are looked for again."""
MIN_SEEN = 2
"""Looks at a run's neighbours before it tells of them."""


class AdviceRequest(NamedTuple):
    """State of one workload and of the pools it could use."""

    version: int
    now_ms: int
    like: Fingerprint | None
    places: list[CandidatePool]
    checkpoint_ms: int


class Insights:
    """Insights for the cell of one loop. May be called by several threads, but not by the engine's own."""

    def __init__(self, loop: EngineLoop, archive: Archive) -> None:
        self._loop = loop
        self._archive = archive
        self.sizer = Sizer()
        """For the engine: asked on its thread, filled by `keep_up`."""
        self._usage: UsageModel | None = None
        self._speed: SpeedModel | None = None
        self._learnt_s = self._fitted_s = self._kept_s = 0.0
        self._read_ms = 0
        """Samples before this cell time have been read."""
        self._ended_ms = 0
        """Runs that ended before it have been learnt; of later ones, those in `_seen`."""
        self._seen: set[tuple[str, str]] = set()
        """(source, id)"""
        self._shares: dict[str, list[float]] = {}
        """Workload that runs -> what others held of its node at each look."""
        self.beside: deque[ColocatedRun] = deque(maxlen=MAX_BESIDE)
        """Ended runs whose neighbours were seen."""
        self._joined = 0
        """Of those, so many since they were last tested."""
        self._slow: list[Slowdown] = []
        self._lock = threading.Lock()
        """Held to learn."""

    # -- answers ------------------------------------------------------------------------------------------------------

    def sizing(self, request: SizingRequest) -> SizingReport:
        """Requests against use, by kind of work. Raises NotFoundError for an unknown workload, RecordsError while
        the disk fails."""
        wanted, detail, estimate = "", None, None
        if request.workload_id:
            detail = self._loop.call(lambda engine: engine.workload(request.workload_id))
            wanted = kind_of(detail.tenant, detail.name)
        with self._lock:
            usage = self._learn()
            running, unseen = self._running()
            kinds = sized(usage, running)
            if detail is not None and len(detail.groups) == 1:
                task = detail.groups[0]
                estimate = usage.estimate(detail.tenant, detail.name, task.cpu_milli, task.memory_mib)
        rightsizing, version = self._loop.call(lambda engine: (engine.state.settings.rightsizing, engine.version))
        unknown = [f"{unseen:,} running workloads were not checked"] if unseen else []
        if request.workload_id:
            kinds = [kind for kind in kinds if kind.kind == wanted]
            if estimate is None:
                unknown.append("it has several kinds of tasks, and usage is measured for all together")
            if not kinds:
                why = f"no usage data of {wanted}" if wanted else "its name matches no kind of work"
                unknown.append(why)
        return SizingReport(
            version=version, kinds=tuple(kinds), rightsizing=rightsizing, estimate=estimate, unknown=tuple(unknown)
        )

    def advice_on(self, workload_id: str) -> PlacementAdvice:
        """The best placement of a workload. Raises NotFoundError, and RecordsError while the disk fails."""
        from recommender.estimates.machine_choice import advised

        asked = self._loop.call(lambda engine: asked_of(engine, workload_id))
        places = [self._watched(place, asked.now_ms) for place in asked.places]
        with self._lock:
            model = self._speeds()
        return advised(
            model,
            version=asked.version,
            workload_id=workload_id,
            like=asked.like,
            places=places,
            checkpoint_ms=asked.checkpoint_ms,
        )

    def findings(self) -> list[Suggestion]:
        """Kinds of work with the wrong size, and those that neighbours slow down."""
        from recommender.estimates.machine_choice import interference_findings, slowdowns

        with self._lock:
            usage = self._learn()
            running, _ = self._running()
            if self._joined >= TESTED_EVERY:
                self._joined, self._slow = 0, slowdowns(self.beside)
            return [*sizing_findings(sized(usage, running), running), *interference_findings(self._slow)]

    # -- from time to time --------------------------------------------------------------------------------------------

    def keep_up(self) -> bool:
        """Learn, and look at neighbours, unless it did so a moment ago. Returns False: it never has more to do."""
        now_s = time.monotonic()
        if self._kept_s and now_s - self._kept_s < EVERY_S:
            return False
        self._kept_s = now_s
        with self._lock:
            try:
                self.sizer.tell(self._learn())
            except MusterError:
                return False
            self._look_beside()
        return False

    def _learn(self) -> UsageModel:
        """Use of each kind of work, from all of the history."""

        now_s = time.monotonic()
        if self._usage is not None and now_s - self._learnt_s < FRESH_S:
            return self._usage
        telemetry, now_ms = self._archive.telemetry, self._loop.engine.now_ms
        begun = self._usage is None
        usage = self._usage or UsageModel()
        since_ms = now_ms - LOOKBACK_MS if begun else self._ended_ms
        runs = telemetry.runs(max(since_ms, 0), now_ms + 1, MAX_RUNS)
        fresh = runs if begun else [run for run in runs if (run.source, run.id) not in self._seen]
        usage.ended(fresh)
        if not begun:
            self._join(fresh)
        self._ended_ms = max((run.ended_ms for run in runs), default=now_ms) - LATE_MS
        self._seen = {(run.source, run.id) for run in runs if run.ended_ms >= self._ended_ms}
        until_ms = now_ms // STEP_MS * STEP_MS
        from_ms = max(now_ms - LOOKBACK_MS, 0) if begun else self._read_ms
        if until_ms > from_ms:
            keys = sorted(telemetry.keys("use_cpu", "kind"), key=lambda key: (-key.last_ms, key.subject))
            for key in keys[:MAX_KINDS]:
                if key.last_ms < from_ms:
                    continue
                cpu = telemetry.series("use_cpu", "kind", key.subject, from_ms, until_ms, STEP_MS)
                memory = telemetry.series("use_memory_mib", "kind", key.subject, from_ms, until_ms, STEP_MS)
                known = (cpu.count > 0) & (memory.count > 0)
                usage.sample(key.subject, cpu.at_ms[known], cpu.mean[known], memory.most[known])
            self._read_ms = until_ms
        self._usage, self._learnt_s = usage, now_s
        return usage

    def _speeds(self) -> SpeedModel:
        from recommender.estimates.machine_choice import SpeedModel

        now_s = time.monotonic()
        if self._speed is None or now_s - self._fitted_s >= FRESH_S:
            now_ms = self._loop.engine.now_ms
            runs = self._archive.telemetry.runs(max(now_ms - 6 * LOOKBACK_MS, 0), now_ms + 1, MAX_RUNS)
            self._speed, self._fitted_s = SpeedModel(runs), now_s
        return self._speed

    def _watched(self, place: CandidatePool, now_ms: int) -> CandidatePool:
        """The pool with the interruptions measured in it."""
        if not place.spot:
            return place
        until_ms = now_ms // HOUR_MS * HOUR_MS + HOUR_MS
        window = (max(until_ms - LOOKBACK_MS, 0), until_ms, HOUR_MS)
        telemetry = self._archive.telemetry
        taken = telemetry.series("interrupted", "pool", place.pool, *window)
        nodes = telemetry.series("nodes", "pool", place.pool, *window)
        count = round(float(taken.total[taken.count > 0].sum()))
        return place._replace(interruptions=count, node_hours=float(nodes.mean[nodes.count > 0].sum()))

    # -- what runs ----------------------------------------------------------------------------------------------------

    def _running(self) -> tuple[list[TaskGroupUse], int]:
        """Running task groups of known kinds with tasks of one sort, and the number of workloads not examined."""
        rows = self._loop.call(lambda engine: bound_rows(engine.state))
        grouped: dict[tuple[str, int, int, int, str], tuple[TaskGroupUse, list[str], list[int]]] = {}
        for start in range(0, min(len(rows), MAX_LOOKED), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            for each in self._loop.call(lambda engine, part=part: running_of(engine.state, part)):  # type: ignore[misc]
                key = (each.kind, each.cpu_milli, each.memory_mib, each.gpu_milli, each.pool.name)
                _, ids, tasks = grouped.setdefault(key, (each, [], []))
                ids += each.ids
                tasks.append(each.tasks)
        found = [
            msgspec.structs.replace(first, ids=tuple(ids), tasks=sum(tasks)) for first, ids, tasks in grouped.values()
        ]
        return found, max(len(rows) - MAX_LOOKED, 0)

    def _look_beside(self) -> None:
        """Note what others hold of the nodes of single-node work."""
        rows = self._loop.call(lambda engine: bound_rows(engine.state))[:MAX_LOOKED]
        for start in range(0, len(rows), AT_ONCE):
            part = rows[start : start + AT_ONCE]
            for name, other in self._loop.call(lambda engine, part=part: held_by_others(engine.state, part)):  # type: ignore[misc]
                self._shares.setdefault(name, []).append(other)
        while len(self._shares) > MAX_BESIDE:
            del self._shares[next(iter(self._shares))]

    def _join(self, ended: Sequence[RunRecord]) -> None:
        """Pair ended runs with the load seen beside them."""
        from recommender.estimates.machine_choice import beside

        for run in ended:
            seen = self._shares.pop(run.id, []) if run.source == CELL else []
            if len(seen) >= MIN_SEEN and (found := beside(run, sum(seen) / len(seen))) is not None:
                self.beside.append(found)
                self._joined += 1


# -- on the engine's thread -------------------------------------------------------------------------------------------


def bound_rows(state: State) -> list[int]:
    """Rows of work that runs, the newest first."""
    import numpy as np

    found: list[int] = np.flatnonzero(view(state.workloads.state) == WorkloadState.RUNNING)[::-1].tolist()
    return found


def running_of(state: State, rows: Sequence[int]) -> list[TaskGroupUse]:
    """Task groups of those rows that still run, have a kind and tasks of one sort; as if all their tasks were in the
    pool of the first."""
    w, a, c = state.workloads, state.allocations, state.capacity
    found = []
    for row in rows:
        if w.state[row] != WorkloadState.RUNNING:
            continue
        groups = w.class_at(row).groups
        kind = kind_of(w.tenants.names[w.tenant[row]], w.names[row])
        first = w.first_allocation[row]
        if len(groups) != 1 or not kind or first < 0:
            continue
        request = groups[0].request
        restarts = w.checkpoint[row] or w.checkpoint_cost[row] or w.terms_at(row).service is not None
        found.append(
            TaskGroupUse(
                kind=kind,
                ids=(w.ids[row],) if restarts else (),
                tasks=w.tasks[row],
                cpu_milli=request.cpu_milli,
                memory_mib=request.memory_mib,
                gpu_milli=request.gpu_milli,
                pool=c.pools[c.pool[a.node[first]]],
                guaranteed=w.class_at(row).bonds.qos == "guaranteed",
            )
        )
    return found


def held_by_others(state: State, rows: Sequence[int]) -> list[tuple[str, float]]:
    """(id, part of its node's CPU that others hold) of each row that runs on a single node with tasks of one sort."""
    w, a, c = state.workloads, state.allocations, state.capacity
    found = []
    for row in rows:
        if w.state[row] != WorkloadState.RUNNING or len(w.class_at(row).groups) != 1:
            continue
        there = list(a.of_workload(w.first_allocation[row]))
        if len({a.node[i] for i in there}) != 1:
            continue
        node = a.node[there[0]]
        offered = c.pools[c.pool[node]].offered.cpu_milli
        own = sum(a.count[i] for i in there) * w.class_at(row).groups[0].request.cpu_milli
        if offered > 0:
            found.append((w.ids[row], min(max((offered - c.free_cpu[node] - own) / offered, 0.0), 1.0)))
    return found


def asked_of(engine: Engine, workload_id: str) -> AdviceRequest:
    """The workload, and the pools whose nodes could hold its tasks, including those it does not ask for. Raises
    NotFoundError."""
    import math

    import numpy as np

    from recommender.estimates.machine_choice import CandidatePool, fingerprint

    state = engine.state
    detail = engine.workload(workload_id)
    row = state.workloads.row_of[detail.id]
    spec, shapes, c = spec_of(state, row, detail.id), state.workloads.class_at(row).shapes, state.capacity
    tasks = sum(group.count for group in spec.groups)
    gpu = sum(group.count * group.request.gpu_milli for group in spec.groups)
    pool_of = view(c.pool)
    usable = [set(np.unique(pool_of[c.usable_mask(shape)]).tolist()) for shape in shapes]
    places = []
    for at, pool in enumerate(c.pools):
        if not all(accepts(anywhere(group), pool, spec.qos) for group in spec.groups):
            continue
        there = pool_of == at
        # A pool without nodes may grow some; whether their labels will suit is not known.
        empty = not there.any()
        suits = all(at in shape.pool_set and (at in mine or empty) for shape, mine in zip(shapes, usable, strict=True))
        nodes = sum(
            group.count * share(pool, group.request.cpu_milli, group.request.memory_mib, group.request.gpu_milli)
            for group in spec.groups
        )
        zones = sorted({c.places.names[zone] for zone in np.unique(view(c.zone)[there]).tolist()} - {""})
        places.append(
            CandidatePool(
                pool=pool.name,
                gpu_model=pool.gpu_model if gpu else "",
                spot=pool.spot,
                zones=tuple(zones),
                allowed=suits,
                rate_microusd_hour=round(nodes * pool.price_microusd_hour),
                nodes=max(math.ceil(nodes), 1),
                interruptions=0,
                node_hours=0.0,
            )
        )
    like = fingerprint(spec.tenant, spec.name, gpu, tasks)
    return AdviceRequest(engine.version, engine.now_ms, like, places, detail.checkpoint_interval_ms)


def anywhere(group: TaskGroup) -> TaskGroup:
    """The group without its constraints on models, pools and spot."""
    return msgspec.structs.replace(group, gpu_models=(), pools=(), capacity_type="")
