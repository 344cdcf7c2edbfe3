"""The client of an engine in this process. The server answers through one too, so both faces share one behaviour."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING

import msgspec

from console.archive import Archive
from console.client import Health, refuse_read_only
from console.forecasts import Forecasts
from console.insights import Insights
from console.quotes import Quotes
from console.recommendations import Recommender
from console.version import VERSION
from engine.commands import AddNodes, AddPools, AddPriorityClasses, AddQueues, Define, Submit
from engine.errors import RefusedError
from runbooks.identity import OWNER, THIS_ACCOUNT, Actor

if TYPE_CHECKING:
    from console.advisor import Advisor
    from console.client import RuntimeEstimate
    from engine.commands import AnyCommand, Receipt
    from engine.control import Engine
    from engine.costs import BudgetReport, GoodputReport, Showback, ShowbackRequest
    from engine.loop import EngineLoop
    from engine.outlook import Ask, RunStatus, ScoreReport
    from engine.query import (
        Changes,
        Consolidation,
        ConsolidationRequest,
        FairnessReport,
        FragmentationReport,
        NodeDetail,
        Overview,
        Page,
        Query,
        QueueDetail,
        Unblocking,
        WorkloadDetail,
    )
    from engine.scaling_report import ScalingReport
    from recommender.forecasts import Forecast, ForecastRequest
    from recommender.history import History, HistoryRequest, ImportReceipt, RunBatch, SampleBatch
    from recommender.placements import PlacementAdvice
    from recommender.quotes import Quote, QuoteRequest
    from recommender.recommendations import Recommendation, Recommendations
    from recommender.sizes import SizingReport, SizingRequest
    from runbooks.gate import Gate
    from runbooks.identity import Signed
    from runbooks.plan import Outcome, Proposal, Request

REQUESTS = (Submit, Define, AddPools, AddNodes, AddQueues, AddPriorityClasses)
"""Commands that need no approval: they add, they do not touch what exists."""


class LocalClient:
    """Implements `console.client.Client` over an engine loop, a gate and an advisor of this process.

    `actor` is in whose name is asked, by default the account of this process; `who` is how the recommender calls them;
    `name` is the engine's name for the header.
    """

    def __init__(
        self,
        loop: EngineLoop,
        gate: Gate,
        advisor: Advisor,
        read_only: bool = False,
        *,
        who: str = "",
        actor: Actor = THIS_ACCOUNT,
        name: str = "local",
        recommender: Recommender | None = None,
        forecasts: Forecasts | None = None,
        archive: Archive | None = None,
        insights: Insights | None = None,
    ) -> None:
        self.read_only = read_only
        self._loop = loop
        self._gate = gate
        self._advisor = advisor
        self._recommender = recommender or Recommender(loop, advisor)
        self._forecasts = forecasts or Forecasts(loop)
        self._archive = archive or Archive(loop)
        self._insights = insights or Insights(loop, self._archive)
        self._quotes = Quotes(loop, advisor)
        self._who = who or user_name()
        self._actor = actor
        self._name = name

    def acting_as(self, actor: Actor) -> LocalClient:
        """The same client in another's name."""
        other = copy.copy(self)
        other._actor = actor
        other._who = actor.subject if actor.subject != OWNER else self._who
        return other

    def health(self) -> Health:
        def read(engine: Engine) -> Health:
            return Health(
                name=self._name,
                cell=engine.overview().cell,
                version=engine.version,
                now_ms=engine.now_ms,
                speed=self._loop.speed,
                paused=self._loop.paused,
                pid=os.getpid(),
                journal=str(engine.path or ""),
                journal_error=engine.journal_error,
                software=VERSION,
                history_error=self._archive.error,
            )

        return self._loop.call(read)

    def overview(self) -> Overview:
        return self._loop.call(lambda engine: engine.overview())

    def query(self, query: Query) -> Page:
        return self._loop.call(lambda engine: engine.query(query))

    def workload(self, workload_id: str) -> WorkloadDetail:
        return self._loop.call(lambda engine: engine.workload(workload_id))

    def node(self, node_id: str) -> NodeDetail:
        return self._loop.call(lambda engine: engine.node(node_id))

    def queue(self, name: str) -> QueueDetail:
        return self._loop.call(lambda engine: engine.queue(name))

    def fairness(self) -> FairnessReport:
        return self._loop.call(lambda engine: engine.fairness())

    def showback(self, request: ShowbackRequest) -> Showback:
        return self._loop.call(lambda engine: engine.showback(request))

    def budgets(self) -> BudgetReport:
        return self._loop.call(lambda engine: engine.budgets())

    def scaling(self) -> ScalingReport:
        return self._loop.call(lambda engine: engine.scaling())

    def goodput(self) -> GoodputReport:
        return self._loop.call(lambda engine: engine.goodput())

    def fragmentation(self) -> FragmentationReport:
        return self._loop.call(lambda engine: engine.fragmentation())

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        from engine.consolidation import plan

        # As with `unblocking`: the engine is held up for one fork.
        twin = self._loop.call(lambda engine: engine.fork())
        return plan(twin, request)

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        return self._advisor.estimate(workload_id)

    def unblocking(self, workload_id: str) -> Unblocking:
        from engine.counterfactual import verified

        # The engine is held up for one fork; the search goes on beside it.
        twin = self._loop.call(lambda engine: engine.fork())
        return verified(twin, workload_id)

    def recommendations(self) -> Recommendations:
        return self._recommender.recommendations()

    def recommendation(self, rec_id: str) -> Recommendation:
        return self._recommender.recommendation(rec_id)

    def reject_recommendation(self, rec_id: str, reason: str = "") -> Recommendation:
        self._refuse_if_read_only()
        return self._recommender.reject(rec_id, reason, self._who)

    def forecast(self, request: ForecastRequest) -> Forecast:
        return self._forecasts.answer(request)

    def quote(self, request: QuoteRequest) -> Quote:
        self._recommender.give_way()
        return self._quotes.quote(request)

    def history(self, request: HistoryRequest) -> History:
        return self._archive.history(request)

    def sizing(self, request: SizingRequest) -> SizingReport:
        return self._insights.sizing(request)

    def advice_on(self, workload_id: str) -> PlacementAdvice:
        return self._insights.advice_on(workload_id)

    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        self._refuse_if_read_only()
        return self._archive.import_samples(batch)

    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        self._refuse_if_read_only()
        return self._archive.import_runs(batch)

    def ask(self, ask: Ask) -> RunStatus:
        self._recommender.give_way()
        return self._loop.call(lambda _: self._loop.twins.start(ask))

    def run(self, run_id: str, after: int = -1, wait_s: float = 0.0) -> RunStatus:
        return self._loop.twins.wait(run_id, after, wait_s)

    def cancel_run(self, run_id: str) -> RunStatus:
        return self._loop.twins.cancel(run_id)

    def runs(self) -> tuple[RunStatus, ...]:
        return tuple(msgspec.structs.replace(run, answer=None) for run in self._loop.twins.runs())

    def scores(self) -> ScoreReport:
        from engine.eta import score

        return self._loop.call(score)

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        if wait_s > 0:
            self._loop.wait_version(after, wait_s)
        return self._loop.call(lambda engine: engine.changes(after, limit))

    def command(self, command: AnyCommand) -> Receipt:
        self._refuse_if_read_only()
        refuse_action(command)
        return self._loop.call(lambda engine: engine.command(command))

    def propose(self, request: Request) -> Proposal:
        self._refuse_if_read_only()
        return self._loop.call(lambda _: self._gate.propose(self._actor, request))

    def proposals(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Proposal, ...]:
        return self._loop.call(lambda _: self._gate.proposals(states, limit))

    def proposal(self, proposal_id: str) -> Proposal:
        return self._loop.call(lambda _: self._gate.proposal(proposal_id))

    def approve(self, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None) -> Outcome:
        self._refuse_if_read_only()
        outcome, shown = self._loop.call(
            lambda _: (
                self._gate.approve(self._actor, proposal_id, digest, comment, signed),
                self._gate.proposal(proposal_id),
            )
        )
        if outcome.changed:
            self._recommender.acted(shown, self._who)
        return outcome

    def close(self) -> None:
        """Nothing to release: whoever made the loop stops it."""

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise refuse_read_only()


def refuse_action(command: AnyCommand) -> None:
    """Raises RefusedError for a command that changes what runs: those go through propose and approve."""
    if not isinstance(command, REQUESTS):
        name = type(command).__struct_config__.tag
        raise RefusedError(f"{name} needs approval: propose it", "Use propose, look at the plan, then approve it")


def user_name() -> str:
    """The name of the user this process runs as."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"
