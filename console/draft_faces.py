"""Drafts over HTTP: what `console.server` serves under /v1/drafts.

GET  /v1/drafts /v1/drafts/{id}?after=&wait_s= /v1/model          DELETE /v1/drafts/{id}
POST /v1/drafts /v1/drafts/{id}/propose {"drafter", "reason"}
"""

from __future__ import annotations

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from console.client import refuse_read_only
from console.faces import CallerFaces
from console.http_answers import LONGEST_WAIT_S, Forbidden, answer, body, decoded, number
from runbooks.draft import DraftAsk, Drafter


class ProposeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drafter: Drafter
    reason: str = ""


class DraftFaces(CallerFaces):
    """The handlers. Who may propose is the policy's to say."""

    def routes(self) -> list[Route]:
        return [
            Route("/v1/drafts", self.runs, methods=["GET"]),
            Route("/v1/drafts", self.draft, methods=["POST"]),
            Route("/v1/drafts/{id}", self.run, methods=["GET"]),
            Route("/v1/drafts/{id}", self.cancel, methods=["DELETE"]),
            Route("/v1/drafts/{id}/propose", self.propose, methods=["POST"]),
            Route("/v1/model", self.model, methods=["GET"]),
        ]

    async def draft(self, request: Request) -> Response:
        raw = await body(request)
        # Megabytes of a log may come with it.
        ask: DraftAsk = await run_in_threadpool(decoded, raw, DraftAsk)
        client = self._client
        return await answer(lambda: client.draft(ask))

    async def run(self, request: Request) -> Response:
        draft_id = request.path_params["id"]
        after = int(number(request, "after", -1, -1, 2**62))
        wait_s = number(request, "wait_s", 0, 0, LONGEST_WAIT_S)
        client = self._client
        return await answer(lambda: client.draft_run(draft_id, after, wait_s))

    async def cancel(self, request: Request) -> Response:
        draft_id = request.path_params["id"]
        client = self._client
        return await answer(lambda: client.cancel_draft(draft_id))

    async def runs(self, request: Request) -> Response:
        return await answer(self._client.draft_runs)

    async def propose(self, request: Request) -> Response:
        client, draft_id = self._client, request.path_params["id"]
        if client.read_only:
            raise Forbidden(refuse_read_only().problem, "This engine was started with --readonly")
        given: ProposeBody = decoded(await body(request), ProposeBody)
        return await answer(lambda: client.propose_draft(draft_id, given.drafter, given.reason))

    async def model(self, request: Request) -> Response:
        return await answer(self._client.model)
