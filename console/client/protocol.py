"""Every question a client can ask of a cell, each declared once (`console.client.questions`).

`Client` joins three groups: the cell and its work, advice and the twin, and the approval gate.
`console.service.local_client` answers them over an engine in this process; `console.client.remote` asks over HTTP, by
Unix socket or TCP. The routes and their OpenAPI description are made of the same declarations. All have the same types
and raise the same errors. Calls block; the console makes them on worker threads.

To add a question, declare it here and give `LocalClient` a method of that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Meta

from console.client.credentials import LoginView, NewToken, TokenAsk, TokenLine
from console.client.presence import PresenceAsk, Present
from console.client.questions import UNSENT, Asking, asks
from engine.executors.task_files import OutputPart, OutputRequest, ProcessReport
from engine.external.mirror_report import Mirrored, MirrorReport
from engine.model.commands import AnyCommand, Receipt
from engine.model.consolidation_queries import Consolidation, ConsolidationRequest
from engine.model.details import NodeDetail, QueueDetail, Unblocking, WorkloadDetail
from engine.model.external_cells import IntentsReport
from engine.model.list_queries import Named, Page, Query
from engine.model.overviews import Changes, Overview
from engine.model.past_queries import CellDifference, DifferenceRequest, PastStatus
from engine.model.reports import (
    BudgetReport,
    FairnessReport,
    FragmentationReport,
    GoodputReport,
    HeatMap,
    HeatRequest,
    ScalingReport,
    Showback,
    ShowbackRequest,
)
from engine.model.twin_queries import MAX_STRETCH, Ask, RunStatus, ScoreReport, StartForecast
from recommender.estimates.queries import (
    Forecast,
    ForecastRequest,
    PlacementAdvice,
    Quote,
    QuoteRequest,
    SizingReport,
    SizingRequest,
)
from recommender.findings.suggestions import Recommendation, Recommendations
from recommender.history.metrics import History, HistoryRequest, ImportReceipt, RunBatch, SampleBatch
from runbooks.drafts.typed_draft import DraftAsk, Drafter, DraftRun, ModelStanding
from runbooks.gate.approval_policy import Caller, Candidate, PolicyChange, PolicyCheck, PolicyView, PolicyVote, Verdict
from runbooks.gate.run_limits import Freeze, FreezeSpec
from runbooks.plans.identity import Signed
from runbooks.plans.incidents import (
    MAX_REPORT_BYTES,
    AlertReceipt,
    AlertReport,
    Incident,
    IncidentChange,
    NewIncident,
)
from runbooks.plans.queries import (
    AuditErased,
    AuditPage,
    AuditPart,
    AuditQuery,
    AuditRange,
    AuditState,
    IntentAnswer,
    IntentDetail,
    RunbookAsk,
    RunbookLine,
    RunbookRun,
    RunbookView,
    RunbookVote,
)
from runbooks.plans.typed_plan import Outcome, Proposal, Request, Review


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """What `muster doctor` and the console's header say of the engine."""

    name: str
    cell: str
    version: int
    now_ms: int
    """Cell time, Unix milliseconds UTC."""
    speed: float
    """Cell milliseconds per wall millisecond; 1 is real time."""
    paused: bool
    pid: int
    journal: str
    journal_error: str
    """Empty while the journal can be written, and work on this machine is looked after; else what is wrong and what to
    do."""
    software: str
    """Version of Muster that serves."""
    history_error: str = ""
    """Why no history is kept at present; empty while all is well."""
    approval: str = ""
    """"team", "pair", or "solo": one person approves everything, and no two-person rule holds. Empty: nobody can tell
    now."""
    awaiting: int = 0
    """Proposals that wait for votes."""
    stuck: int = 0
    """Plans that were begun and are paused, or could not be taken back."""
    incidents: int = 0
    """Incidents that are open or claimed."""
    audit_error: str = ""
    """What is wrong with the audit or what stands beside it, and what that keeps from being done; empty while all is
    well."""
    mirror_error: str = ""
    """Why what is shown of the mirrored cluster is old; empty while it is fresh, or nothing is mirrored."""
    takeover_ms: int = 0
    """How long nobody could write the cell before this engine took it over as a standby; 0: it was none."""


MAX_CHANGES = 10_000
MAX_NUMBER = 2**62
Wait = Annotated[float, Meta(ge=0, le=60, description="How long to wait for something new, seconds")]


PastTime = Annotated[int, Meta(ge=0, le=2**53, description="Cell time, Unix milliseconds; 0: none")]


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

    @asks("GET", "/v1/workloads/{id:path}/start", copied=True)
    def start_forecast(self, workload_id: str) -> StartForecast | None:
        """When a workload that waits may start, told at once.

        None where it does not wait. The twin refines it: an AskStart.
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


class GateQuestions(Asking):
    """The approval gate: proposals, votes, freezes, runbooks, policies and the audit. The policy decides who may do
    what (`runbooks.gate.approval_policy`)."""

    @asks("GET", "/v1/proposals")
    def proposals(
        self,
        states: Annotated[tuple[str, ...], Meta(description="In these states; none: all")] = (),
        limit: Annotated[int, Meta(ge=1, le=1_000, description="At most so many")] = 200,
    ) -> tuple[Proposal, ...]:
        """Proposals, newest first.

        The states are those of `runbooks.plans.typed_plan`.
        """

    @asks("GET", "/v1/proposals/{id}")
    def proposal(self, proposal_id: str) -> Proposal:
        """A proposal as it stands, with its votes and what was done."""

    @asks("POST", "/v1/preview")
    def preview(self, request: Request) -> Proposal:
        """What proposing it would show. Nothing is kept."""

    @asks("POST", "/v1/propose", changes=True)
    def propose(self, request: Request) -> Proposal:
        """Resolve, simulate on a fork, and put to the vote.

        The cell stays as it is.
        """

    @asks("POST", "/v1/proposals/{id}/revise", changes=True)
    def revise(self, proposal_id: str, request: Request) -> Proposal:
        """Another plan under the same id: a new revision, without votes."""

    @asks("POST", "/v1/approve", changes=True, body="ApproveBody")
    def approve(self, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None) -> Outcome:
        """Vote yes; when that was the last vote needed, carry it out.

        The vote is for exactly the plan whose digest was shown.
        """

    @asks("POST", "/v1/vote", changes=True, body="VoteBody")
    def vote(
        self, proposal_id: str, digest: str, verdict: Verdict, comment: str = "", signed: Signed | None = None
    ) -> Proposal:
        """Say yes, no or nothing to exactly the plan of that digest.

        Carries nothing out.
        """

    @asks("POST", "/v1/execute", changes=True, body="DeedBody")
    def execute(self, proposal_id: str) -> Outcome:
        """Carry out what is approved, or go on with what was interrupted."""

    @asks("POST", "/v1/pause", changes=True, body="ReasonBody")
    def pause(self, proposal_id: str, reason: str = "") -> Proposal:
        """Have no further step done until somebody resumes it."""

    @asks("POST", "/v1/resume", changes=True, body="ResumeBody")
    def resume(self, proposal_id: str, accept: bool = False) -> Outcome:
        """Go on; `accept`: although the last step could not be verified."""

    @asks("POST", "/v1/confirm", changes=True, body="ConfirmBody")
    def confirm(self, proposal_id: str, step: str) -> Outcome:
        """Say go to a step that waits for it."""

    @asks("POST", "/v1/rollback", changes=True, body="ReasonBody")
    def rollback(self, proposal_id: str, reason: str = "") -> Outcome:
        """Take back what it did, where its votes cover that; else propose `rolls_back`.

        The preview of a Request that `rolls_back` it tells which.
        """

    @asks("POST", "/v1/cancel", changes=True, body="ReasonBody")
    def cancel(self, proposal_id: str, reason: str = "") -> Proposal:
        """Withdraw it before it is executed."""

    @asks("POST", "/v1/break-glass", changes=True, body="BreakGlassBody")
    def break_glass(self, proposal_id: str, digest: str, reason: str, signed: Signed | None = None) -> Outcome:
        """Carry out at once what others would have had to approve.

        A review of that stays open.
        """

    @asks("GET", "/v1/reviews")
    def reviews(self) -> tuple[Review, ...]:
        """What waits for a person to look at it; then what was looked at.

        The oldest first.
        """

    @asks("POST", "/v1/close-review", changes=True, body="ReviewBody")
    def close_review(self, review: int, comment: str) -> None:
        """Say that it was looked at, and what was found."""

    @asks("GET", "/v1/freezes")
    def freezes(self) -> tuple[Freeze, ...]:
        """When plans do not run.

        By the policy, and as set by hand.
        """

    @asks("POST", "/v1/freeze", changes=True)
    def freeze(self, spec: FreezeSpec) -> None:
        """Stop plans during a window."""

    @asks("POST", "/v1/thaw", changes=True, body="ThawBody")
    def thaw(self, name: str) -> None:
        """End a freeze that was set by hand."""

    @asks("GET", "/v1/runbooks")
    def runbooks(self) -> tuple[RunbookLine, ...]:
        """Every runbook on the shelf.

        With its standing; those that have problems too.
        """

    @asks("GET", "/v1/runbooks/{id}")
    def runbook(self, runbook_id: str) -> RunbookView:
        """A runbook whole."""

    @asks("POST", "/v1/runbook/run", changes=lambda ask: not ask.dry_run)
    def run_runbook(self, ask: RunbookAsk) -> RunbookRun:
        """Resolve it for the cell as it is; unless it is a dry run, propose that.

        Either way it is tried on a fork.
        """

    @asks("POST", "/v1/runbook/approve", changes=True)
    def approve_runbook(self, vote: RunbookVote) -> RunbookLine:
        """Yes to exactly the bytes with that SHA-256."""

    @asks("POST", "/v1/runbook/retire", changes=True)
    def retire_runbook(self, vote: RunbookVote) -> RunbookLine:
        """End the use of a version, for good.

        The comment says why.
        """

    @asks("GET", "/v1/policy")
    def policy(self) -> PolicyView:
        """The approval policy in force, and those that wait for votes."""

    @asks("POST", "/v1/policy/check", body="CheckBody")
    def check_policy(self, text: str) -> PolicyCheck:
        """What putting a policy in force would change. Nothing is kept.

        Raises SpecError for one that may not be.
        """

    @asks("POST", "/v1/policy/propose", changes=True)
    def propose_policy(self, change: PolicyChange) -> Candidate:
        """Put another policy to the vote."""

    @asks("POST", "/v1/policy/vote", changes=True)
    def vote_policy(self, vote: PolicyVote) -> Candidate:
        """Vote on another policy; the last yes that is needed puts it in force."""

    @asks("GET", "/v1/audit")
    def audit_state(self) -> AuditState:
        """How the audit log stands.

        Its newest checkpoint, what signs it, and where that is remembered.
        """

    @asks("POST", "/v1/audit/page")
    def audit_page(self, query: AuditQuery) -> AuditPage:
        """Records of the audit."""

    # That a part was exported is a record too, also of an engine that is read-only.
    @asks("POST", "/v1/audit/part", signed=True, slow=True)
    def audit_part(self, wanted: AuditRange) -> AuditPart:
        """The next part of an export.

        It can be checked elsewhere. That one was made is a record too.
        """

    @asks("POST", "/v1/audit/anchor", changes=True, slow=True, body="NoBody")
    def anchor_audit(self) -> AuditState:
        """A checkpoint now, to wherever checkpoints are remembered."""

    @asks("POST", "/v1/audit/rotate", changes=True, body="NoBody")
    def rotate_audit_key(self) -> AuditState:
        """Another key signs the audit from now on."""

    @asks("POST", "/v1/audit/redact", changes=True, body="RedactBody")
    def redact_audit(self, ref: str, reason: str) -> AuditErased:
        """Erase a text that the audit keeps apart.

        The chain stays valid. There is no way back.
        """


class IncidentQuestions(Asking):
    """Alerts, and the incidents that they open."""

    @asks("POST", "/v1/alerts", changes=True, limit=MAX_REPORT_BYTES)
    def report_alerts(self, report: AlertReport) -> AlertReceipt:
        """Report alerts: Alertmanager's webhook (payload version 4), or a title.

        Opens an incident, or updates the one of the same group or key. Needs a token of scope `alert`.
        """

    @asks("GET", "/v1/incidents")
    def incidents(
        self,
        states: Annotated[tuple[str, ...], Meta(description="In these states; none: all")] = (),
        limit: Annotated[int, Meta(ge=1, le=1_000, description="At most so many")] = 200,
    ) -> tuple[Incident, ...]:
        """Incidents, newest first.

        Without their alerts and entries.
        """

    @asks("GET", "/v1/incidents/{id}")
    def incident(self, incident_id: str) -> Incident:
        """An incident whole. Raises NotFoundError."""

    @asks("GET", "/v1/incidents/{id}/changes", slow=True)
    def incident_changes(self, incident_id: str) -> tuple[IncidentChange, ...]:
        """What changed shortly before it, and who did it.

        The latest first. Raises NotFoundError.
        """

    @asks("POST", "/v1/incidents", changes=True)
    def open_incident(self, new: NewIncident) -> Incident:
        """Open an incident by hand."""

    @asks("POST", "/v1/incidents/{id}/claim", changes=True, body="ClaimBody")
    def claim_incident(self, incident_id: str, over: bool = False) -> Incident:
        """Make it yours; `over`: although somebody else has it."""

    @asks("POST", "/v1/incidents/{id}/hand-over", changes=True, body="HandOverBody")
    def hand_over_incident(self, incident_id: str, to: str, note: str = "") -> Incident:
        """Make it another person's."""

    @asks("POST", "/v1/incidents/{id}/note", changes=True, body="NoteBody")
    def note_incident(self, incident_id: str, text: str) -> Incident:
        """Write a line beside it."""

    @asks("POST", "/v1/incidents/{id}/close", changes=True, body="CloseBody")
    def close_incident(self, incident_id: str, found: str) -> Incident:
        """End it, saying what was found."""


class Client(CellQuestions, AdviceQuestions, GateQuestions, IncidentQuestions):
    """Everything that the console, the shell and HTTP may ask. Errors are `engine.model.errors.MusterError` and its
    kinds, nothing else."""

    @asks("GET", "/v1/whoami", signed=lambda proved: proved)
    def whoami(self, proved: Annotated[bool, UNSENT] = False) -> Caller:
        """As whom the engine knows whoever asks.

        By their account; `proved`: in the name they act in, signed.
        """

    @asks("GET", "/v1/tokens", signed=True)
    def tokens(self) -> tuple[TokenLine, ...]:
        """The asker's own tokens; for an admin all of them.

        Those they made are theirs too.
        """

    # Its answer holds a secret, and is kept nowhere: so it goes without a key.
    @asks("POST", "/v1/tokens", changes=True, keyed=False)
    def create_token(self, ask: TokenAsk) -> NewToken:
        """Make a token. Its secret is told this once.

        For whoever asks, or for a service.
        """

    @asks("POST", "/v1/tokens/revoke", changes=True, body="RevokeAsk")
    def revoke_token(self, id: str) -> TokenLine:
        """A token counts for nothing from now on."""

    @asks("POST", "/v1/presence", follows=True)
    def present(self, ask: PresenceAsk) -> Present:
        """Where a console is, and who else is here; waits for news.

        Up to `wait_s` seconds.
        """

    @asks("GET", "/v1/past", slow=True)
    def past(self, at_ms: PastTime, since_ms: PastTime = 0, wait_s: Wait = 0.0) -> PastStatus:
        """How far the copy of the cell as of an earlier time is; it is made if there is none.

        With `since_ms` it also has what happened from then on, for `difference`. Waits up to `wait_s` seconds for it.
        Without a time: which times can be shown.
        """

    @asks("DELETE", "/v1/past", once=True)
    def leave_past(self, at_ms: PastTime, since_ms: PastTime = 0) -> None:
        """Let the copy of an earlier time go, or have it made no further."""

    @asks("POST", "/v1/difference", slow=True)
    def difference(self, request: DifferenceRequest) -> CellDifference:
        """What changed between two times.

        What happened to work and nodes, and rules before and after. `past` with both times tells how far it is.
        """

    def as_of(self, at_ms: int) -> Client:
        """A client that asks the same of the cell as it was at that cell time, and changes nothing. What is not kept of
        earlier times is refused. Close it as any other; this one stays open."""
        raise NotImplementedError

    def follow(self, after: int = -1) -> Iterator[Changes]:
        """Changes as they happen, after a version or from now on. At least every other second there is one, if only for
        the clock. Ends with UnreachableError when the engine does."""
        raise NotImplementedError

    def records(self) -> int:
        """Serial that differs after any vote, proposal or decision; -1 where it is not known without asking. Sends no
        request."""
        return -1

    def close(self) -> None:
        """Release connections; by default there are none."""


class Login(Asking):
    """Questions of a caller who is not known yet: over the network, with the word of an OpenID provider."""

    @asks("GET", "/v1/login")
    def login_view(self) -> LoginView:
        """With which provider one logs in."""

    @asks("POST", "/v1/login/token", once=True, body="LoginAsk")
    def log_in(self, id_token: str) -> NewToken:
        """A token for whom an ID token names."""
