"""Proposals, votes, freezes and runbooks over HTTP. Who may do what is the policy's to say (`runbooks.policy`)."""

from __future__ import annotations

import msgspec

from console.operations import Asked, Number, Operation, Word
from engine.commands import Receipt
from runbooks import plan
from runbooks.freezes import Freeze, FreezeSpec
from runbooks.identity import Signed
from runbooks.intent_shown import IntentAnswer
from runbooks.plan import Outcome, Proposal, Review
from runbooks.policy import Verdict
from runbooks.runbook_shown import RunbookAsk, RunbookLine, RunbookRun, RunbookView, RunbookVote

MOST_PROPOSALS = 1_000


class ApproveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    proposal: str
    digest: str
    comment: str = ""
    signed: Signed | None = None


class VoteBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    proposal: str
    digest: str
    verdict: Verdict
    comment: str = ""
    signed: Signed | None = None


class DeedBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done to a proposal that is approved or under way."""

    proposal: str


class ReasonBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    proposal: str
    reason: str = ""


class ResumeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    proposal: str
    accept: bool = False


class ConfirmBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    proposal: str
    step: str


class BreakGlassBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    proposal: str
    digest: str
    reason: str
    signed: Signed | None = None


class ReviewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    review: int
    comment: str


class ThawBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


def _proposals(asked: Asked) -> tuple[Proposal, ...]:
    return asked.client.proposals(asked.query["states"], asked.query["limit"])


def _approve(asked: Asked) -> Outcome:
    given: ApproveBody = asked.body
    return asked.client.approve(given.proposal, given.digest, given.comment, given.signed)


def _vote(asked: Asked) -> Proposal:
    given: VoteBody = asked.body
    return asked.client.vote(given.proposal, given.digest, given.verdict, given.comment, given.signed)


def _break_glass(asked: Asked) -> Outcome:
    given: BreakGlassBody = asked.body
    return asked.client.break_glass(given.proposal, given.digest, given.reason, given.signed)


GATE = (
    Operation("GET", "/v1/proposals", "Proposals, newest first", _proposals,
              query=(Word("states", "In these states; none: all", many=True),
                     Number("limit", 200, 1, MOST_PROPOSALS, "At most so many")),
              gives=tuple[Proposal, ...]),
    Operation("GET", "/v1/proposals/{id}", "A proposal as it stands, with its votes and what was done",
              lambda asked: asked.client.proposal(asked.path["id"]), gives=Proposal),
    Operation("POST", "/v1/preview", "What proposing it would show. Nothing is kept",
              lambda asked: asked.client.preview(asked.body), takes=plan.Request, gives=Proposal),
    Operation("POST", "/v1/propose", "Resolve, simulate on a fork, and put to the vote",
              lambda asked: asked.client.propose(asked.body), takes=plan.Request, gives=Proposal, changes=True),
    Operation("POST", "/v1/proposals/{id}/revise", "Another plan under the same id: a new revision, without votes",
              lambda asked: asked.client.revise(asked.path["id"], asked.body), takes=plan.Request, gives=Proposal,
              changes=True),
    Operation("POST", "/v1/approve", "Vote yes; when that was the last vote needed, carry it out", _approve,
              takes=ApproveBody, gives=Outcome, changes=True),
    Operation("POST", "/v1/vote", "Say yes, no or nothing to exactly the plan of that digest", _vote,
              takes=VoteBody, gives=Proposal, changes=True),
    Operation("POST", "/v1/execute", "Carry out what is approved, or go on with what was interrupted",
              lambda asked: asked.client.execute(asked.body.proposal), takes=DeedBody, gives=Outcome, changes=True),
    Operation("POST", "/v1/pause", "Have no further step done until somebody resumes it",
              lambda asked: asked.client.pause(asked.body.proposal, asked.body.reason), takes=ReasonBody,
              gives=Proposal, changes=True),
    Operation("POST", "/v1/resume", "Go on; `accept`: although the last step could not be verified",
              lambda asked: asked.client.resume(asked.body.proposal, asked.body.accept), takes=ResumeBody,
              gives=Outcome, changes=True),
    Operation("POST", "/v1/confirm", "Say go to a step that waits for it",
              lambda asked: asked.client.confirm(asked.body.proposal, asked.body.step), takes=ConfirmBody,
              gives=Outcome, changes=True),
    Operation("POST", "/v1/rollback", "Take back what it did, where its votes cover that; else propose `rolls_back`",
              lambda asked: asked.client.rollback(asked.body.proposal, asked.body.reason), takes=ReasonBody,
              gives=Outcome, changes=True),
    Operation("POST", "/v1/cancel", "Withdraw it before it is executed",
              lambda asked: asked.client.cancel(asked.body.proposal, asked.body.reason), takes=ReasonBody,
              gives=Proposal, changes=True),
    Operation("POST", "/v1/break-glass", "Carry out at once what others would have had to approve", _break_glass,
              takes=BreakGlassBody, gives=Outcome, changes=True),
    Operation("GET", "/v1/reviews", "What waits for a person to look at it; then what was looked at",
              lambda asked: asked.client.reviews(), gives=tuple[Review, ...]),
    Operation("POST", "/v1/close-review", "Say that it was looked at, and what was found",
              lambda asked: asked.client.close_review(asked.body.review, asked.body.comment), takes=ReviewBody,
              gives=None, changes=True),
    Operation("POST", "/v1/answer-intent", "Say what came of an intent in doubt, or have a submission carried again",
              lambda asked: asked.client.answer_intent(asked.body), takes=IntentAnswer, gives=Receipt, changes=True),
    Operation("GET", "/v1/freezes", "When plans do not run", lambda asked: asked.client.freezes(),
              gives=tuple[Freeze, ...]),
    Operation("POST", "/v1/freeze", "Stop plans during a window", lambda asked: asked.client.freeze(asked.body),
              takes=FreezeSpec, gives=None, changes=True),
    Operation("POST", "/v1/thaw", "End a freeze that was set by hand",
              lambda asked: asked.client.thaw(asked.body.name), takes=ThawBody, gives=None, changes=True),
    Operation("GET", "/v1/runbooks", "Every runbook on the shelf", lambda asked: asked.client.runbooks(),
              gives=tuple[RunbookLine, ...]),
    Operation("GET", "/v1/runbooks/{id}", "A runbook whole",
              lambda asked: asked.client.runbook(asked.path["id"]), gives=RunbookView),
    Operation("POST", "/v1/runbook/run", "Resolve it for the cell as it is; unless it is a dry run, propose that",
              lambda asked: asked.client.run_runbook(asked.body), takes=RunbookAsk, gives=RunbookRun,
              changes=lambda ask: not ask.dry_run),
    Operation("POST", "/v1/runbook/approve", "Yes to exactly the bytes with that SHA-256",
              lambda asked: asked.client.approve_runbook(asked.body), takes=RunbookVote, gives=RunbookLine,
              changes=True),
    Operation("POST", "/v1/runbook/retire", "End the use of a version, for good",
              lambda asked: asked.client.retire_runbook(asked.body), takes=RunbookVote, gives=RunbookLine,
              changes=True),
)  # fmt: skip
