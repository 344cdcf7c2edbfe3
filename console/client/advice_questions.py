# mypy: disable-error-code="empty-body"
"""Questions to the recommender, the twin and the drafters. None of them changes the cell."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from console.client.cell_questions import MAX_NUMBER, Wait
from console.client.questions import Asking, asks
from engine.model.twin_queries import MAX_STRETCH, Ask, RunStatus, ScoreReport
from recommender.findings.queries import Recommendation, Recommendations
from recommender.forecasts.queries import Forecast, ForecastRequest
from recommender.history.queries import History, HistoryRequest, ImportReceipt, RunBatch, SampleBatch
from recommender.quotes.queries import Quote, QuoteRequest
from recommender.runtimes.sizing_queries import SizingReport, SizingRequest
from runbooks.drafts.typed_draft import DraftAsk, Drafter, DraftRun, ModelStanding
from runbooks.plans.typed_plan import Proposal

LONGEST_QUOTE_S = 600.0
"""Longest wait for a quote whose rehearsals are asked for by number."""
Seen = Annotated[int, Meta(ge=-1, le=MAX_NUMBER, description="Serial of what is known already; -1: nothing")]


class AdviceQuestions(Asking):
    """Advice, forecasts, quotes and history; runs of the twin; drafts."""

    @asks("GET", "/v1/recommendations")
    def recommendations(self) -> Recommendations:
        """What is advised now, with evidence.

        Ranked. Its actions are hints of what to propose; nothing is done.
        """

    @asks("GET", "/v1/recommendations/{id}")
    def recommendation(self, rec_id: str) -> Recommendation:
        """One recommendation whole.

        It is tried on the twin next. Raises NotFoundError.
        """

    @asks("POST", "/v1/recommendations/{id}/reject", changes=True, needs="submit", body="RejectBody")
    def reject_recommendation(self, rec_id: str, reason: str = "") -> Recommendation:
        """Say that it is not wanted, and why.

        No more is said of it until things change.
        """

    @asks("POST", "/v1/forecast", slow=True)
    def forecast(self, request: ForecastRequest) -> Forecast:
        """Demand ahead, with quantiles.

        Of the hours ahead, from the history of one series.
        """

    @asks("POST", "/v1/quote", slow=True, waits_s=lambda request: _quote_s(request))
    def quote(self, request: QuoteRequest) -> Quote:
        """When it would start and what it would cost.

        Also how long it takes, by option. Nothing is submitted.
        """

    @asks("POST", "/v1/history", slow=True)
    def history(self, request: HistoryRequest) -> History:
        """Measurements and ended work.

        By window; without a metric, what there is.
        """

    @asks("POST", "/v1/sizing", slow=True)
    def sizing(self, request: SizingRequest) -> SizingReport:
        """Requests against what was used.

        By kind of work, with what it should ask for.
        """

    @asks("POST", "/v1/import/samples", changes=True, needs="configure", slow=True)
    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        """Bring measurements from elsewhere.

        The same again changes nothing.
        """

    @asks("POST", "/v1/import/runs", changes=True, needs="configure", slow=True)
    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        """Bring ended work from elsewhere.

        The same again changes nothing.
        """

    @asks("GET", "/v1/runs")
    def runs(self) -> tuple[RunStatus, ...]:
        """Runs of the twin, newest first.

        Those that are kept, without their answers.
        """

    @asks("POST", "/v1/runs", once=True)
    def ask(self, ask: Ask) -> RunStatus:
        """Have the twin run ahead on a fork of the cell. Changes nothing.

        Follow it with `run`.
        """

    @asks("GET", "/v1/runs/{id}", slow=True)
    def run(self, run_id: str, after: Seen = -1, wait_s: Wait = 0.0) -> RunStatus:
        """A run of the twin as it stands, or as soon as there is more of it.

        Waits up to `wait_s` seconds for a serial above `after`.
        """

    @asks("DELETE", "/v1/runs/{id}", once=True)
    def cancel_run(self, run_id: str) -> RunStatus:
        """Stop a run; what it has found stays."""

    @asks("GET", "/v1/scores", slow=True)
    def scores(self) -> ScoreReport:
        """How start estimates compare with what happened."""

    @asks("GET", "/v1/drafts")
    def draft_runs(self) -> tuple[DraftRun, ...]:
        """Drafts that are kept, newest first."""

    # Who has a model asked spends money and lets facts out; who has the rules draft only looks.
    @asks("POST", "/v1/drafts", signed=lambda ask: bool(ask.model), once=True)
    def draft(self, ask: DraftAsk) -> DraftRun:
        """Have it drafted what to do or say. Changes nothing.

        By rule and, where that is asked for, by the configured model. Follow it with `draft_run`.
        """

    @asks("GET", "/v1/drafts/{id}", slow=True)
    def draft_run(self, draft_id: str, after: Seen = -1, wait_s: Wait = 0.0) -> DraftRun:
        """A draft as it stands, or as soon as there is more of it.

        Waits up to `wait_s` seconds for a serial above `after`.
        """

    @asks("DELETE", "/v1/drafts/{id}", signed=True)
    def cancel_draft(self, draft_id: str) -> DraftRun:
        """Have the model think no further.

        What the rules drafted stays.
        """

    @asks("POST", "/v1/drafts/{id}/propose", changes=True, body="ProposeBody")
    def propose_draft(self, draft_id: str, drafter: Drafter, reason: str = "") -> Proposal:
        """Put a draft to the vote.

        As an ordinary proposal whose requester is who asks.
        """

    @asks("GET", "/v1/model")
    def model(self) -> ModelStanding:
        """Which model is configured, and whether it can be asked now."""


def _quote_s(request: QuoteRequest) -> float:
    return LONGEST_QUOTE_S if request.seeds else MAX_STRETCH * request.within_ms / 1000
