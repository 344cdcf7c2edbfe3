"""What the recommender says of the live cell. Lives beside the gate in the engine's process, and only reads.

It asks on the engine's own thread, one bounded window at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.client.cell_questions import RuntimeEstimate
from console.service.run_times import LearnedRunTimes
from engine.model.queries import Page, Query, Term
from recommender.findings.failing_nodes import failing_nodes
from recommender.findings.live_findings import QUOTA_WAIT_MS, QuantileCoverage, RunTimeOpinion, advise
from recommender.findings.suggestions import MAX_TARGETS, Advice
from recommender.runtimes.cell_runs import LEVELS, WorkloadFeatures

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.loop import EngineLoop
    from engine.model.queries import NodeDetail
    from engine.model.specs import QueueSpec

WINDOW = 2_000
"""Workloads, or queues, that advice looks at: those that wait or run longest."""

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
        self.run_times = LearnedRunTimes(loop)

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        """How long it may run, in all; None while nothing is known that is like it. Raises NotFoundError."""
        return self.run_times.estimate(workload_id)

    def run_time_of(self, asked: WorkloadFeatures) -> RuntimeEstimate | None:
        """The same of work that is not there yet."""
        return self.run_times.about(asked)

    def advice(self) -> Advice:
        """Everything that is found now, and what could not be judged."""
        overview = self._loop.call(lambda engine: engine.overview())
        waiting, queues, running = self._page(WAITING), self._page(QUEUES), self._page(RUNNING)
        cordoned, unseen = self._loop.call(cordoned_nodes)
        failing = failing_nodes(self._loop.call(lambda engine: engine.agents.report()))
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

    def _likely(self, running: Page) -> tuple[dict[str, RunTimeOpinion], QuantileCoverage | None]:
        """How long each of those that run should, where likes of its own tell, and how well such figures have held."""
        usual, skill = self.run_times.usual(running)
        likely = {
            id: RunTimeOpinion(p90_ms=said.p90_ms, samples=said.nearest_runs, level=LEVELS[said.nearest])
            for id, said in usual.items()
        }
        if skill is None:
            return likely, None
        return likely, QuantileCoverage(scored=skill.scored, p90_coverage_permille=skill.p90_coverage_permille)

    def _page(self, query: Query) -> Page:
        return self._loop.call(lambda engine: engine.query(query))


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
