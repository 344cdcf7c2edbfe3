# mypy: disable-error-code="empty-body"
"""Questions about a cell, and the command that submits and defines."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from console.client.health import Health
from console.client.questions import Asking, asks
from engine.elasticity.scaling_report import ScalingReport
from engine.executors.process_queries import OutputPart, OutputRequest, ProcessReport
from engine.external.slurm.mirror.report import Mirrored, MirrorReport
from engine.model.commands import AnyCommand, Receipt
from engine.model.intent_reports import IntentsReport
from engine.model.queries import (
    Changes,
    Consolidation,
    ConsolidationRequest,
    FairnessReport,
    FragmentationReport,
    HeatMap,
    HeatRequest,
    Named,
    NodeDetail,
    Overview,
    Page,
    Query,
    QueueDetail,
    Unblocking,
    WorkloadDetail,
)
from engine.reads.cost_reports import BudgetReport, GoodputReport, Showback, ShowbackRequest
from recommender.runtimes.placement_queries import PlacementAdvice
from runbooks.plans.intent_queries import IntentAnswer, IntentDetail

MAX_CHANGES = 10_000
MAX_NUMBER = 2**62
Wait = Annotated[float, Meta(ge=0, le=60, description="How long to wait for something new, seconds")]


class RuntimeEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """How long a workload may run in all, in milliseconds, what that rests on, and how such estimates have held."""

    p10_ms: int
    p50_ms: int
    p90_ms: int
    samples: int
    """Finished runs of its like."""
    level: str
    """What makes them its like, such as "tenant and name"; "all" when nothing does, empty when there are none."""
    scored: int
    """Ends, of every kind of work, compared with what was estimated at submission."""
    p90_coverage_permille: int | None
    """Share of the scored that ended within their p90: 900 is perfect. None while none is scored."""
    median_abs_log_error: float | None
    """Of p50 against the scored runs, natural logarithm: 0.69 is a factor of two. None while none is scored."""
    basis: str = "likes"
    """"trees" fitted to all that finished, "likes" alone, or the owner's "request"."""
    learnt: int = 0
    """Finished runs, of every kind, that were known."""
    within2x_permille: int | None = None
    """Share of the scored that took at most twice and at least half their p50."""
    elapsed_ms: int = 0
    """How long it had run when this was said; the quantiles are of runs that last at least as long."""


class CellQuestions(Asking):
    """The cell, its work, nodes and queues, and what it costs."""

    @asks("GET", "/v1/health")
    def health(self) -> Health:
        """How the engine is, and what it serves."""

    @asks("GET", "/v1/overview", copied=True)
    def overview(self) -> Overview:
        """The cell in figures."""

    @asks("POST", "/v1/command", changes=True)
    def command(self, command: AnyCommand) -> Receipt:
        """Submit work, or define what the cell is made of. Actions on what exists go through propose and approve."""

    @asks("GET", "/v1/changes", follows=True)
    def changes(
        self,
        after: Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="A state version, or the serial of a run")],
        wait_s: Wait,
        limit: Annotated[int, Meta(ge=1, le=MAX_CHANGES, description="At most so many; the newest are told")] = 500,
    ) -> Changes:
        """What happened after a version; waits for something to happen.

        With a `limit` of 0 only that something did.
        """

    @asks("POST", "/v1/query", copied=True)
    def query(self, query: Query) -> Page:
        """A window onto workloads, nodes, queues, reservations, pools or orders."""

    @asks("GET", "/v1/workloads/{id:path}/estimate")
    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        """How long a workload may run in all.

        None when nothing is known that is like it, and it asked for no time.
        """

    @asks("GET", "/v1/workloads/{id:path}/unblocking", slow=True)
    def unblocking(self, workload_id: str) -> Unblocking:
        """What would let a workload start now.

        Tried on forks of the cell. Takes as long as a dozen of them: ask once.
        """

    @asks("GET", "/v1/workloads/{id:path}/advice", slow=True)
    def advice_on(self, workload_id: str) -> PlacementAdvice:
        """Where a workload would do best.

        For its money, by what work like it did.
        """

    @asks("GET", "/v1/workloads/{id:path}/mirrored")
    def mirrored(self, workload_id: str) -> Mirrored:
        """What an outside scheduler says of a workload's job.

        Also when it expects to start it. Raises NotFoundError.
        """

    @asks("GET", "/v1/workloads/{id:path}/processes")
    def processes(self, workload_id: str) -> ProcessReport:
        """The processes of a workload on this machine, by attempt."""

    @asks("GET", "/v1/workloads/{id:path}/output", slow=True)
    def output(self, request: OutputRequest, wait_s: Wait = 0.0) -> OutputPart:
        """A stretch of what a task of a workload wrote.

        Waits up to `wait_s` seconds for there to be some.
        """

    @asks("GET", "/v1/workloads/{id:path}", copied=True)
    def workload(self, workload_id: str) -> WorkloadDetail:
        """A workload, and why it waits."""

    @asks("GET", "/v1/nodes/{id:path}", copied=True)
    def node(self, node_id: str) -> NodeDetail:
        """A node, and what is on it."""

    @asks("GET", "/v1/queues/{name:path}", copied=True)
    def queue(self, name: str) -> QueueDetail:
        """A queue, its quota and who waits."""

    @asks("GET", "/v1/find")
    def find(
        self,
        name: Annotated[str, Meta(description="What it is called")],
        kinds: Annotated[tuple[str, ...], Meta(description="Kinds of things; none: all")] = (),
        limit: Annotated[int, Meta(ge=0, le=200, description="At most so many")] = 24,
    ) -> tuple[Named, ...]:
        """What is called so, and what begins so."""

    @asks("GET", "/v1/fairness", copied=True, slow=True)
    def fairness(self) -> FairnessReport:
        """Shares and quotas of the queue tree.

        Also why the last starts went in their order.
        """

    @asks("GET", "/v1/budgets", copied=True, slow=True)
    def budgets(self) -> BudgetReport:
        """What tenants may spend and have spent.

        Also how fast, and when each budget will be gone.
        """

    @asks("GET", "/v1/goodput", copied=True, slow=True)
    def goodput(self) -> GoodputReport:
        """How much of the work done will last.

        What finished work has cost, and how much of what was paid for was of use.
        """

    @asks("GET", "/v1/mirror")
    def mirror(self) -> MirrorReport:
        """How the mirror of an outside scheduler does, and what it leaves out.

        Its state is `none` where nothing is mirrored.
        """

    @asks("GET", "/v1/intents")
    def intents(
        self, limit: Annotated[int, Meta(ge=1, le=1_000, description="At most so many")] = 200
    ) -> IntentsReport:
        """What is under way to an outside scheduler, and what came of it.

        Nothing where Muster decides.
        """

    @asks("GET", "/v1/intents/{number}", slow=True)
    def intent(self, number: int) -> IntentDetail:
        """What was wanted, what was said of it, and what is shown of it now.

        The other scheduler is asked anew. Raises NotFoundError.
        """

    @asks("POST", "/v1/answer-intent", changes=True)
    def answer_intent(self, said: IntentAnswer) -> Receipt:
        """Say what came of an intent in doubt, or have a submission carried again.

        Raises RefusedError.
        """

    @asks("GET", "/v1/scaling", copied=True, slow=True)
    def scaling(self) -> ScalingReport:
        """How large pools are and should be.

        Also what the autoscaler goes by.
        """

    @asks("GET", "/v1/fragmentation", copied=True, slow=True)
    def fragmentation(self) -> FragmentationReport:
        """Free capacity in pieces too small to use.

        By pool and by kind of task.
        """

    @asks("POST", "/v1/topology", copied=True)
    def topology(self, request: HeatRequest) -> HeatMap:
        """Zones, blocks, racks or nodes as a map.

        Raises NotFoundError for a place that there is not.
        """

    @asks("POST", "/v1/showback", copied=True, slow=True)
    def showback(self, request: ShowbackRequest) -> Showback:
        """What was spent, by tenant, team, queue or tag.

        In a window of days; also what was idle.
        """

    @asks("POST", "/v1/consolidation", slow=True)
    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        """What would be moved to have larger pieces free.

        Tried on forks of the cell; or why nothing would. Nothing is done: propose `consolidate` with it.
        """
