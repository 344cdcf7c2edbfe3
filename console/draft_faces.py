"""Drafts over HTTP. Who may propose is the policy's to say."""

from __future__ import annotations

import msgspec

from console.advice_faces import SINCE
from console.operations import WAIT, Asked, Operation
from runbooks.draft import DraftAsk, Drafter, DraftRun, ModelStanding
from runbooks.plan import Proposal


class ProposeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drafter: Drafter
    reason: str = ""


def _run(asked: Asked) -> DraftRun:
    return asked.client.draft_run(asked.path["id"], asked.query["after"], asked.query["wait_s"])


def _propose(asked: Asked) -> Proposal:
    return asked.client.propose_draft(asked.path["id"], asked.body.drafter, asked.body.reason)


DRAFTS = (
    Operation("GET", "/v1/drafts", "Drafts that are kept, newest first", lambda asked: asked.client.draft_runs(),
              gives=tuple[DraftRun, ...]),
    # Megabytes of a log may come with it.
    Operation("POST", "/v1/drafts", "Have it drafted what to do or say. Changes nothing",
              lambda asked: asked.client.draft(asked.body), takes=DraftAsk, gives=DraftRun, large=True),
    Operation("GET", "/v1/drafts/{id}", "A draft as it stands, or as soon as there is more of it", _run,
              query=(SINCE, WAIT), gives=DraftRun, slow=True),
    Operation("DELETE", "/v1/drafts/{id}", "Have the model think no further",
              lambda asked: asked.client.cancel_draft(asked.path["id"]), gives=DraftRun),
    Operation("POST", "/v1/drafts/{id}/propose", "Put a draft to the vote", _propose, takes=ProposeBody,
              gives=Proposal, changes=True),
    Operation("GET", "/v1/model", "Which model is configured, and whether it can be asked now",
              lambda asked: asked.client.model(), gives=ModelStanding),
)  # fmt: skip
