"""What the recommender says of the live cell. Lives beside the gate in the engine's process, and only reads.

It learns from workloads that have finished, never from what still runs. It asks on the engine's own thread, one bounded
window at a time, and what it has looked at it does not ask for again. Nothing is stored: after a restart it learns the
latest ends anew from the engine's state.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from console.client import RuntimeEstimate
from engine.query import Page, Query, Term
from recommender.failing import failing_nodes
from recommender.findings import QUOTA_WAIT_MS, Covered, Likely, advise
from recommender.runtime import Asked, Finished, RuntimeModel
from recommender.suggest import MAX_TARGETS, Advice

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.model import QueueSpec
    from engine.query import NodeDetail, WorkloadDetail

PAGE = 1_000
"""Finished workloads in one answer of the engine: a few milliseconds of its time."""
LOOKBACK = 20_000
"""Most ends learnt at once. With more since the last question, as after a restart, the older ones are left out."""
WINDOW = 2_000
"""Workloads, or queues, that advice looks at: those that wait or run longest."""

LEARNT = ("name", "tenant", "queue", "tasks", "gpu", "estimate", "run")
WAITING = Query(
    kind="workloads",
    columns=("id", "queue", "state", "reason", "wait", "gpu", "cpu"),
    where=(Term("state", "=", "queued"), Term("wait", ">", QUOTA_WAIT_MS)),
    sort=("-wait",),
    limit=WINDOW,
)
RUNNING = Query(
    kind="workloads",
    columns=("id", "name", "state", "tenant", "queue", "tasks", "gpu", "cpu", "run", "estimate"),
    where=(Term("state", "=", "running"),),
    sort=("-run",),
    limit=WINDOW,
)
QUEUES = Query(
    kind="queues", columns=("name", "parent", "queued", "running", "gpu_nominal", "cpu_nominal"), limit=WINDOW
)
CORDONED = Query(
    kind="nodes",
    columns=("id",),
    where=(Term("state", "=", "cordoned"),),
    sort=("workloads",),
    limit=MAX_TARGETS,
)
"""The empty ones first."""


class Advisor:
    """Answers for the cell of one loop. May be asked by several threads, but not by the engine's own."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._runtimes = RuntimeModel()
        self._looked_ms = 0
        """What ended before this cell time has been looked at."""
        self._lock = threading.Lock()
        """Held to learn and to ask what was learnt."""

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        """How long work like it ran; None while too little of its like has finished. Raises NotFoundError."""
        return self.run_time_of(asked_of(self._loop.call(lambda engine: engine.workload(workload_id))))

    def run_time_of(self, asked: Asked) -> RuntimeEstimate | None:
        """The same of work that is not there yet."""
        with self._lock:
            self._catch_up()
            likely, skill = self._runtimes.estimate(asked), self._runtimes.skill()
        if likely is None:
            return None
        return RuntimeEstimate(
            p10_ms=likely.p10_ms,
            p50_ms=likely.p50_ms,
            p90_ms=likely.p90_ms,
            samples=likely.samples,
            level=likely.level,
            scored=skill.scored if skill else 0,
            p90_coverage_permille=skill.p90_coverage_permille if skill else None,
            median_abs_log_error=skill.median_abs_log_error if skill else None,
        )

    def advice(self) -> Advice:
        """Everything that is found now, and what could not be judged."""
        overview = self._loop.call(lambda engine: engine.overview())
        waiting, queues, running = self._page(WAITING), self._page(QUEUES), self._page(RUNNING)
        cordoned, unseen = self._loop.call(cordoned_nodes)
        failing = failing_nodes(self._loop.call(lambda engine: engine.agents.report()))
        with self._lock:
            self._catch_up()
            likely, covered = self._likely(running)
        found = advise(
            overview,
            waiting=waiting,
            queues=queues,
            cordoned=cordoned,
            running=running,
            likely=likely,
            covered=covered,
            specs=self._loop.call(lambda engine: queue_specs(engine, waiting)),
        )
        partly = (f"{unseen:,} more cordoned nodes were not looked at",) if unseen else ()
        suggestions = (*failing, *found.suggestions)
        return Advice(version=found.version, suggestions=suggestions, unknown=(*found.unknown, *partly))

    def _likely(self, running: Page) -> tuple[dict[str, Likely], Covered | None]:
        """How long each of those that run should, where likes of its own tell, and how well such figures have held."""
        found = {}
        for values in running.rows:
            row = dict(zip(running.columns, values, strict=True))
            said = self._runtimes.estimate(
                Asked(
                    name=row["name"],
                    tenant=row["tenant"],
                    queue=row["queue"],
                    tasks=row["tasks"],
                    gpu_milli=row["gpu"],
                    estimate_ms=row["estimate"] or 0,
                )
            )
            # All finished work together is no like of anything: a service would look overdue beside it.
            if said is not None and said.level != "all":
                found[row["id"]] = Likely(p90_ms=said.p90_ms, samples=said.samples, level=said.level)
        skill = self._runtimes.skill()
        if skill is None:
            return found, None
        return found, Covered(scored=skill.scored, p90_coverage_permille=skill.p90_coverage_permille)

    def _catch_up(self) -> None:
        """Learn what has finished since the last time. All of it is read before any is learnt: a failure costs none."""
        from_ms, until_ms = self._loop.call(self._unlearnt)
        rows: list[list[Any]] = []
        while True:
            page = self._page(finished(from_ms, until_ms, "ended", len(rows), PAGE))
            rows += page.rows
            if not page.rows or len(rows) >= page.matched:
                break
        for row in rows:
            self._runtimes.learn(run_of(row))
        self._looked_ms = until_ms

    def _unlearnt(self, engine: Engine) -> tuple[int, int]:
        """Cell times from and up to before which at most LOOKBACK ends are to be learnt.

        What ends from now on ends at the present millisecond or later, so nothing is added to a time before it.
        """
        from_ms, until_ms = self._looked_ms, engine.now_ms
        older = engine.query(finished(from_ms, until_ms, "-ended", LOOKBACK, 1)).rows
        return (older[0][-1] + 1 if older else from_ms), until_ms

    def _page(self, query: Query) -> Page:
        return self._loop.call(lambda engine: engine.query(query))


def finished(from_ms: int, until_ms: int, sort: str, offset: int, limit: int) -> Query:
    """Workloads that finished in [from, until) at their first attempt, the end in the last column.

    A later attempt may have begun at a checkpoint: its run is not the whole work, and the engine's pages do not tell.
    """
    return Query(
        kind="workloads",
        columns=(*LEARNT, "ended"),
        where=(
            Term("state", "=", "finished"),
            Term("attempts", "=", 1),
            Term("ended", ">=", from_ms),
            Term("ended", "<", until_ms),
        ),
        sort=(sort,),
        offset=offset,
        limit=limit,
    )


def run_of(row: list[Any]) -> Finished:
    """A row of `finished` as the model learns it."""
    name, tenant, queue, tasks, gpu, estimate, run, _ = row
    return Finished(name=name, tenant=tenant, queue=queue, tasks=tasks, gpu_milli=gpu, estimate_ms=estimate, run_ms=run)


def asked_of(workload: WorkloadDetail) -> Asked:
    """What was known of a workload before it ran."""
    return Asked(
        name=workload.name,
        tenant=workload.tenant,
        queue=workload.queue,
        tasks=sum(group.count for group in workload.groups),
        gpu_milli=sum(group.count * group.gpu_milli for group in workload.groups),
        estimate_ms=workload.estimate_ms,
    )


def queue_specs(engine: Engine, waiting: Page) -> dict[str, QueueSpec]:
    """Of the queues whose work waits for quota, and of their siblings."""
    at, why = waiting.columns.index("queue"), waiting.columns.index("reason")
    late = {row[at] for row in waiting.rows if row[why] == "WaitingForQuota"}
    specs = {spec.name: spec for spec in engine.state.queues.specs}
    parents = {specs[name].parent for name in late if name in specs}
    return {name: spec for name, spec in specs.items() if spec.parent in parents}


def cordoned_nodes(engine: Engine) -> tuple[list[NodeDetail], int]:
    """Up to MAX_TARGETS cordoned nodes, and how many more there are."""
    page = engine.query(CORDONED)
    return [engine.node(node_id) for (node_id,) in page.rows], page.matched - len(page.rows)
