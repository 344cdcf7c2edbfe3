# mypy: disable-error-code="empty-body"
"""Questions to the approval gate: proposals and votes, freezes, runbooks, policies, and the audit of it all."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from console.client.questions import Asking, asks
from runbooks.audit.queries import AuditErased, AuditPage, AuditPart, AuditQuery, AuditRange, AuditState
from runbooks.people.identity import Signed
from runbooks.plans.typed_plan import Outcome, Proposal, Request, Review
from runbooks.policy.approval_policy import Verdict
from runbooks.policy.freezes import Freeze, FreezeSpec
from runbooks.policy.queries import Candidate, PolicyChange, PolicyCheck, PolicyView, PolicyVote
from runbooks.procedures.queries import RunbookAsk, RunbookLine, RunbookRun, RunbookView, RunbookVote


class GateQuestions(Asking):
    """Who may do what is the policy's to say (`runbooks.policy.approval_policy`)."""

    @asks("GET", "/v1/proposals")
    def proposals(
        self,
        states: Annotated[tuple[str, ...], Meta(description="In these states; none: all")] = (),
        limit: Annotated[int, Meta(ge=1, le=1_000, description="At most so many")] = 200,
    ) -> tuple[Proposal, ...]:
        """Proposals, newest first.

        The states are those of `runbooks.plans.proposal_states`.
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
