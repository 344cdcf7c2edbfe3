"""The one thing a face holds: a Client. Local (an Engine in this process) and Remote (HTTP over a Unix socket or TCP)
answer the same calls with the same types and raise the same errors.

Calls block; the console makes them on worker threads. This module loads neither httpx nor the engine until one is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from console.presence import PresenceAsk, Present
    from console.token_terms import NewToken, TokenAsk, TokenLine
    from engine.commands import AnyCommand, Receipt
    from engine.costs import BudgetReport, GoodputReport, Showback, ShowbackRequest
    from engine.executors.shown import OutputPart, OutputRequest, ProcessReport
    from engine.intent_report import IntentsReport
    from engine.outlook import Ask, RunStatus, ScoreReport
    from engine.query import (
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
    from engine.scaling_report import ScalingReport
    from engine.slurm.report import Mirrored, MirrorReport
    from recommender.forecasts import Forecast, ForecastRequest
    from recommender.history import History, HistoryRequest, ImportReceipt, RunBatch, SampleBatch
    from recommender.placements import PlacementAdvice
    from recommender.quotes import Quote, QuoteRequest
    from recommender.recommendations import Recommendation, Recommendations
    from recommender.sizes import SizingReport, SizingRequest
    from runbooks.audit_pages import (
        AuditErased,
        AuditPage,
        AuditPart,
        AuditQuery,
        AuditRange,
        AuditState,
    )
    from runbooks.draft import DraftAsk, Drafter, DraftRun, ModelStanding
    from runbooks.freezes import Freeze, FreezeSpec
    from runbooks.identity import Signed
    from runbooks.intent_shown import IntentAnswer, IntentDetail
    from runbooks.plan import Outcome, Proposal, Request, Review
    from runbooks.policy import Verdict
    from runbooks.policy_shown import Caller, Candidate, PolicyChange, PolicyCheck, PolicyView, PolicyVote
    from runbooks.runbook_shown import RunbookAsk, RunbookLine, RunbookRun, RunbookView, RunbookVote


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
    """"team"; or "solo": one person approves everything, and no two-person rule holds. Empty: nobody can tell now."""
    awaiting: int = 0
    """Proposals that wait for votes."""
    stuck: int = 0
    """Plans that were begun and are paused, or could not be taken back."""
    audit_error: str = ""
    """What is wrong with the audit or what stands beside it, and what that keeps from being done; empty while all is
    well."""
    mirror_error: str = ""
    """Why what is shown of the mirrored cluster is old; empty while it is fresh, or nothing is mirrored."""


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


class Client(Protocol):
    """What every face may ask. Errors are `engine.errors.MusterError` and its kinds, nothing else."""

    read_only: bool

    def health(self) -> Health: ...
    def overview(self) -> Overview: ...
    def query(self, query: Query) -> Page: ...
    def workload(self, workload_id: str) -> WorkloadDetail: ...
    def node(self, node_id: str) -> NodeDetail: ...
    def queue(self, name: str) -> QueueDetail: ...

    def find(self, name: str, kinds: tuple[str, ...] = (), limit: int = 24) -> tuple[Named, ...]:
        """What is called so, then what begins so: of these kinds (of `engine.query.Named`), or of all."""
        ...

    def fairness(self) -> FairnessReport:
        """What each queue holds and deserves, and why the last starts went in their order."""
        ...

    def showback(self, request: ShowbackRequest) -> Showback:
        """Who was charged what in a window of days, and what was idle."""
        ...

    def budgets(self) -> BudgetReport:
        """What is spent of each budget, how fast, and when it will be gone."""
        ...

    def scaling(self) -> ScalingReport:
        """What the autoscaler goes by, and how large each pool is and should be."""
        ...

    def mirror(self) -> MirrorReport:
        """How the mirror of an outside scheduler does, and what it leaves out; its state is `none` without one."""
        ...

    def intents(self, limit: int = 200) -> IntentsReport:
        """What is under way to an outside scheduler, and what came of the last: nothing where Muster decides."""
        ...

    def intent(self, number: int) -> IntentDetail:
        """One of them: what was asked, by whom, what was said of it when, and what the other scheduler shows now, which
        is asked anew. Raises NotFoundError."""
        ...

    def answer_intent(self, said: IntentAnswer) -> Receipt:
        """Say what came of one in doubt, or have a submission carried again. Raises RefusedError."""
        ...

    def processes(self, workload_id: str) -> ProcessReport:
        """What runs for a workload on this machine, and how what ran there ended; attempt by attempt."""
        ...

    def output(self, request: OutputRequest, wait_s: float = 0.0) -> OutputPart:
        """A stretch of what one of its tasks wrote; waits up to `wait_s` seconds for there to be some."""
        ...

    def mirrored(self, workload_id: str) -> Mirrored:
        """What that scheduler says of the workload's job, and when it expects to start it. Raises NotFoundError."""
        ...

    def goodput(self) -> GoodputReport:
        """What finished work has cost, and how much of what was paid for was of use."""
        ...

    def topology(self, request: HeatRequest) -> HeatMap:
        """Zones, blocks, racks or nodes as tiles of a map. Raises NotFoundError for a place that there is not."""
        ...

    def fragmentation(self) -> FragmentationReport:
        """How much of the free GPU the work of the cell could not use, by pool and by kind of task."""
        ...

    def consolidation(self, request: ConsolidationRequest) -> Consolidation:
        """Moves of running work that bring about what is asked for, tried on forks of the cell, or why there are none.
        Nothing is done: propose `consolidate` with them."""
        ...

    def estimate(self, workload_id: str) -> RuntimeEstimate | None:
        """How long it may run in all; None when nothing is known that is like it, and it asked for no time."""
        ...

    def unblocking(self, workload_id: str) -> Unblocking:
        """What would let it start now, tried on forks of the cell. Takes as long as a dozen of them: ask once."""
        ...

    def recommendations(self) -> Recommendations:
        """What the recommender finds now, ranked. Its actions are hints of what to propose; nothing is done."""
        ...

    def recommendation(self, rec_id: str) -> Recommendation:
        """One of them, with all it rests on; it is tried on the twin next. Raises NotFoundError."""
        ...

    def reject_recommendation(self, rec_id: str, reason: str = "") -> Recommendation:
        """Say no more of it until things change."""
        ...

    def forecast(self, request: ForecastRequest) -> Forecast:
        """Demand of the hours ahead, from the history of one series."""
        ...

    def quote(self, request: QuoteRequest) -> Quote:
        """When work would start, how long it takes and what it costs, by option. Nothing is submitted."""
        ...

    def history(self, request: HistoryRequest) -> History:
        """What was measured and what has run, by window; without a metric, what there is."""
        ...

    def sizing(self, request: SizingRequest) -> SizingReport:
        """What kinds of work ask for against what they use, and what they should ask for."""
        ...

    def advice_on(self, workload_id: str) -> PlacementAdvice:
        """Where a workload would do best for its money, by what work like it did."""
        ...

    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        """Keep measurements from elsewhere. The same again changes nothing."""
        ...

    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        """Keep ended work from elsewhere. The same again changes nothing."""
        ...

    def ask(self, ask: Ask) -> RunStatus:
        """Have the twin run ahead on a fork of the cell, beside it. Changes nothing; follow it with `run`."""
        ...

    def run(self, run_id: str, after: int = -1, wait_s: float = 0.0) -> RunStatus:
        """A run of the twin as it stands; waits up to `wait_s` seconds for a serial above `after`."""
        ...

    def cancel_run(self, run_id: str) -> RunStatus:
        """Stop a run; what it has found so far stays."""
        ...

    def runs(self) -> tuple[RunStatus, ...]:
        """The runs that are kept, newest first, without their answers."""
        ...

    def scores(self) -> ScoreReport:
        """How the start estimates that were shown compare with what happened."""
        ...

    def changes(self, after: int, wait_s: float, limit: int = 500) -> Changes:
        """What happened after state version `after`; waits up to `wait_s` seconds for something to happen. At most
        `limit` are told, the newest; with 0 only that something did."""
        ...

    def follow(self, after: int = -1) -> Iterator[Changes]:
        """What happens, as it happens, after a version or from now on; at least every other second something comes, if
        only the clock. Ends by UnreachableError, when the engine does."""
        ...

    def records(self) -> int:
        """A number that is another one when somebody voted, proposed or decided since; -1 where that is not known
        without asking. Asks nobody."""
        ...

    def command(self, command: AnyCommand) -> Receipt:
        """Submissions and definitions. Actions on what exists go through propose and approve."""
        ...

    def preview(self, request: Request) -> Proposal:
        """What proposing it would show. Nothing is kept."""
        ...

    def propose(self, request: Request) -> Proposal:
        """Resolve, simulate on a fork, and put to the vote. Changes nothing."""
        ...

    def revise(self, proposal_id: str, request: Request) -> Proposal:
        """Another plan under the same id: a new revision, on which nobody has voted."""
        ...

    def proposals(self, states: tuple[str, ...] = (), limit: int = 200) -> tuple[Proposal, ...]:
        """Those in these states of `runbooks.life`, or all, newest first."""
        ...

    def proposal(self, proposal_id: str) -> Proposal:
        """As it stands now, with its votes and what was done."""
        ...

    def approve(self, proposal_id: str, digest: str, comment: str = "", signed: Signed | None = None) -> Outcome:
        """Vote yes to exactly the plan whose digest was shown; when that was the last vote needed, carry it out."""
        ...

    def vote(
        self, proposal_id: str, digest: str, verdict: Verdict, comment: str = "", signed: Signed | None = None
    ) -> Proposal:
        """Say yes, no or nothing to exactly the plan whose digest was shown. Carries nothing out."""
        ...

    def execute(self, proposal_id: str) -> Outcome:
        """Carry out what is approved, or go on with what was interrupted."""
        ...

    def pause(self, proposal_id: str, reason: str = "") -> Proposal:
        """Have no further step done until somebody resumes it."""
        ...

    def resume(self, proposal_id: str, accept: bool = False) -> Outcome:
        """Go on; `accept`: although the last step could not be verified."""
        ...

    def confirm(self, proposal_id: str, step: str) -> Outcome:
        """Say go to a step that waits for it."""
        ...

    def rollback(self, proposal_id: str, reason: str = "") -> Outcome:
        """Take back what it did, where the votes on it cover what that does now; else propose a Request that
        `rolls_back` it. Its preview tells which."""
        ...

    def cancel(self, proposal_id: str, reason: str = "") -> Proposal:
        """Withdraw it before it is executed."""
        ...

    def break_glass(self, proposal_id: str, digest: str, reason: str, signed: Signed | None = None) -> Outcome:
        """Carry out at once what others would have had to approve; a review of that stays open."""
        ...

    def reviews(self) -> tuple[Review, ...]:
        """What waits for a person to look at it, the oldest first; then what was looked at."""
        ...

    def close_review(self, review: int, comment: str) -> None:
        """Say that it was looked at, and what was found."""
        ...

    def whoami(self, proved: bool = False) -> Caller:
        """As whom the engine knows whoever asks: by their account; `proved`: in the name they act in, signed."""
        ...

    def present(self, ask: PresenceAsk) -> Present:
        """Says where a console is, and tells who else is here; waits up to `wait_s` seconds for news of them."""
        ...

    def tokens(self) -> tuple[TokenLine, ...]:
        """The asker's own tokens, and those they made; for an admin all of them."""
        ...

    def create_token(self, ask: TokenAsk) -> NewToken:
        """A token for whoever asks, or for a service. Its secret is told this once."""
        ...

    def revoke_token(self, token_id: str) -> TokenLine:
        """It counts for nothing from now on."""
        ...

    def policy(self) -> PolicyView:
        """The approval policy in force, and those that wait for votes."""
        ...

    def check_policy(self, text: str) -> PolicyCheck:
        """What putting a policy in force would change. Nothing is kept. Raises SpecError for one that may not be."""
        ...

    def propose_policy(self, change: PolicyChange) -> Candidate:
        """Put another policy to the vote."""
        ...

    def vote_policy(self, vote: PolicyVote) -> Candidate:
        """Vote on another policy; the last yes that is needed puts it in force."""
        ...

    def freezes(self) -> tuple[Freeze, ...]:
        """When plans do not run: by the policy, and as set by hand."""
        ...

    def freeze(self, spec: FreezeSpec) -> None:
        """Stop plans during a window."""
        ...

    def thaw(self, name: str) -> None:
        """End a freeze that was set by hand."""
        ...

    def runbooks(self) -> tuple[RunbookLine, ...]:
        """Every runbook on the shelf, with its standing; those that have problems too."""
        ...

    def runbook(self, runbook_id: str) -> RunbookView:
        """One of them whole."""
        ...

    def run_runbook(self, ask: RunbookAsk) -> RunbookRun:
        """Resolve it for the cell as it is and try it on a fork; unless it is a dry run, propose that."""
        ...

    def approve_runbook(self, vote: RunbookVote) -> RunbookLine:
        """Yes to exactly the bytes with that SHA-256."""
        ...

    def retire_runbook(self, vote: RunbookVote) -> RunbookLine:
        """End the use of a version, for good; the comment says why."""
        ...

    def draft(self, ask: DraftAsk) -> DraftRun:
        """Have it drafted what to do or say, by rule and, where that is asked for, by the configured model. Changes
        nothing; follow it with `draft_run`."""
        ...

    def draft_run(self, draft_id: str, after: int = -1, wait_s: float = 0.0) -> DraftRun:
        """As it stands; waits up to `wait_s` seconds for a serial above `after`."""
        ...

    def cancel_draft(self, draft_id: str) -> DraftRun:
        """Have the model think no further. What the rules drafted stays."""
        ...

    def draft_runs(self) -> tuple[DraftRun, ...]:
        """Those that are kept, newest first."""
        ...

    def propose_draft(self, draft_id: str, drafter: Drafter, reason: str = "") -> Proposal:
        """Put one of the two to the vote, as an ordinary proposal whose requester is who asks."""
        ...

    def model(self) -> ModelStanding:
        """Which model is configured, and whether it can be asked now."""
        ...

    def audit_state(self) -> AuditState:
        """How the audit log stands: its newest checkpoint, what signs it, where that is remembered."""
        ...

    def audit_page(self, query: AuditQuery) -> AuditPage:
        """Records of the audit."""
        ...

    def audit_part(self, wanted: AuditRange) -> AuditPart:
        """The next part of an export, which can be checked elsewhere. That one was made is a record too."""
        ...

    def anchor_audit(self) -> AuditState:
        """A checkpoint now, to wherever checkpoints are remembered."""
        ...

    def rotate_audit_key(self) -> AuditState:
        """Another key signs the audit from now on."""
        ...

    def redact_audit(self, ref: str, reason: str) -> AuditErased:
        """Erase a text that the audit keeps apart; the chain stays valid. There is no way back."""
        ...

    def close(self) -> None: ...


def refuse_read_only() -> RefusedError:
    """The error both clients raise for any change when read-only."""
    return RefusedError("this session is read-only", "Start without --readonly to act")
