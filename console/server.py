"""The HTTP control plane: the same questions and requests as `console.client.Client`, as JSON under /v1.

    GET  /v1/health /v1/overview /v1/workloads/{id} /v1/workloads/{id}/estimate /v1/workloads/{id}/unblocking
         /v1/workloads/{id}/advice
         /v1/find?name=&kinds=&limit=
         /v1/nodes/{id} /v1/queues/{name} /v1/fairness /v1/budgets /v1/goodput /v1/scaling /v1/fragmentation
         /v1/recommendations /v1/recommendations/{id}
         /v1/changes?after=&wait_s=&limit=
    GET  /v1/runs /v1/runs/{id}?after=&wait_s= /v1/scores          DELETE /v1/runs/{id}
    GET  /v1/proposals?states=&limit= /v1/proposals/{id} /v1/reviews /v1/freezes
    POST /v1/preview /v1/propose /v1/proposals/{id}/revise /v1/vote /v1/approve /v1/execute /v1/pause /v1/resume
         /v1/confirm /v1/rollback /v1/cancel /v1/break-glass /v1/close-review /v1/freeze /v1/thaw
    POST /v1/query /v1/topology /v1/showback /v1/consolidation /v1/command /v1/runs
    POST /v1/quote /v1/forecast /v1/recommendations/{id}/reject /v1/history /v1/import/samples /v1/import/runs
         /v1/sizing
    POST /v1/agents/...   (`console.agents`)
    GET  /v1/audit   POST /v1/audit/...   (`console.audit_faces`)
         /v1/drafts  /v1/model            (`console.draft_faces`)

An answer that is not 200 is `{"code", "problem", "remedy"}`; the codes are those of `engine.errors`. Who asks is told
by the socket, or by a signature (`console.identity`); what they may do is the policy's to say (`runbooks.policy`).
Requests that a browser page could have sent are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from console.audit_faces import AuditFaces
from console.client import refuse_read_only
from console.faces import CallerFaces
from console.http_answers import DEFECT, LONGEST_WAIT_S, Forbidden, answer, body, decoded, number, refusal
from console.identity import CALLER, SIGNED, account_of, claim_of
from console.local_client import LocalClient
from engine.commands import AnyCommand
from engine.costs import ShowbackRequest
from engine.errors import MusterError, NotFoundError, RefusedError, SpecError
from engine.outlook import Ask
from engine.query import ConsolidationRequest, HeatRequest, Query
from recommender.forecasts import ForecastRequest
from recommender.history import HistoryRequest, RunBatch, SampleBatch
from recommender.quotes import QuoteRequest
from recommender.sizes import SizingRequest
from runbooks import plan
from runbooks.admission import check_admitted
from runbooks.freezes import FreezeSpec
from runbooks.identity import Actor, AuthRefused, Signed
from runbooks.policy import Verdict
from runbooks.runbook_shown import RunbookAsk, RunbookVote

if TYPE_CHECKING:
    from engine.loop import EngineLoop

MOST_CHANGES = 10_000
MOST_PROPOSALS = 1_000
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


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


class RejectBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""


class Watch:
    """Wakes long polls when the state version moves. A waiter costs no thread.

    Made and used in the event loop whose requests wait; only `_heard` runs on the engine's thread.
    """

    def __init__(self, loop: EngineLoop) -> None:
        self._aio = asyncio.get_running_loop()
        self._version = loop.wait_version(-1, 0)
        self._moved = asyncio.Event()
        self._closed = False
        self._told = False
        self._leave = loop.on_version(self._heard)

    def close(self) -> None:
        """Stop listening and let every waiter go at once."""
        self._leave()
        self._closed = True
        self._wake()

    async def wait(self, after: int, wait_s: float) -> None:
        """Returns when the version is above `after`, after `wait_s` seconds, or when the server stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._version <= after and not self._closed:
                    await self._moved.wait()

    def _heard(self, version: int) -> None:
        """On the engine's thread, which must not be kept: one call is under way at most, however fast it goes."""
        self._version = version
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._aio.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._told = False
        self._moved.set()
        self._moved = asyncio.Event()


class Faces(CallerFaces):
    """The handlers. `client` answers, and refuses changes when read-only."""

    def __init__(self, client: LocalClient, watch: Watch) -> None:
        super().__init__(client)
        self._watch = watch

    def routes(self) -> list[Route]:
        return [
            Route("/v1/health", self.health, methods=["GET"]),
            Route("/v1/overview", self.overview, methods=["GET"]),
            Route("/v1/query", self.query, methods=["POST"]),
            Route("/v1/workloads/{id:path}/estimate", self.estimate, methods=["GET"]),
            Route("/v1/workloads/{id:path}/unblocking", self.unblocking, methods=["GET"]),
            Route("/v1/workloads/{id:path}/advice", self.advice_on, methods=["GET"]),
            Route("/v1/workloads/{id:path}", self.workload, methods=["GET"]),
            Route("/v1/nodes/{id:path}", self.node, methods=["GET"]),
            Route("/v1/queues/{name:path}", self.queue, methods=["GET"]),
            Route("/v1/find", self.find, methods=["GET"]),
            Route("/v1/fairness", self.fairness, methods=["GET"]),
            Route("/v1/showback", self.showback, methods=["POST"]),
            Route("/v1/topology", self.topology, methods=["POST"]),
            Route("/v1/budgets", self.budgets, methods=["GET"]),
            Route("/v1/goodput", self.goodput, methods=["GET"]),
            Route("/v1/scaling", self.scaling, methods=["GET"]),
            Route("/v1/fragmentation", self.fragmentation, methods=["GET"]),
            Route("/v1/consolidation", self.consolidation, methods=["POST"]),
            Route("/v1/recommendations", self.recommendations, methods=["GET"]),
            Route("/v1/recommendations/{id}", self.recommendation, methods=["GET"]),
            Route("/v1/recommendations/{id}/reject", self.reject, methods=["POST"]),
            Route("/v1/forecast", self.forecast, methods=["POST"]),
            Route("/v1/quote", self.quote, methods=["POST"]),
            Route("/v1/history", self.history, methods=["POST"]),
            Route("/v1/sizing", self.sizing, methods=["POST"]),
            Route("/v1/import/samples", self.import_samples, methods=["POST"]),
            Route("/v1/import/runs", self.import_runs, methods=["POST"]),
            Route("/v1/runs", self.runs, methods=["GET"]),
            Route("/v1/runs", self.ask, methods=["POST"]),
            Route("/v1/runs/{id}", self.run, methods=["GET"]),
            Route("/v1/runs/{id}", self.cancel_run, methods=["DELETE"]),
            Route("/v1/scores", self.scores, methods=["GET"]),
            Route("/v1/changes", self.changes, methods=["GET"]),
            Route("/v1/command", self.command, methods=["POST"]),
            Route("/v1/preview", self.preview, methods=["POST"]),
            Route("/v1/propose", self.propose, methods=["POST"]),
            Route("/v1/approve", self.approve, methods=["POST"]),
            Route("/v1/vote", self.vote, methods=["POST"]),
            Route("/v1/execute", self.execute, methods=["POST"]),
            Route("/v1/pause", self.pause, methods=["POST"]),
            Route("/v1/resume", self.resume, methods=["POST"]),
            Route("/v1/confirm", self.confirm, methods=["POST"]),
            Route("/v1/rollback", self.rollback, methods=["POST"]),
            Route("/v1/cancel", self.cancel, methods=["POST"]),
            Route("/v1/break-glass", self.break_glass, methods=["POST"]),
            Route("/v1/reviews", self.reviews, methods=["GET"]),
            Route("/v1/close-review", self.close_review, methods=["POST"]),
            Route("/v1/freezes", self.freezes, methods=["GET"]),
            Route("/v1/freeze", self.freeze, methods=["POST"]),
            Route("/v1/thaw", self.thaw, methods=["POST"]),
            Route("/v1/proposals/{id}/revise", self.revise, methods=["POST"]),
            Route("/v1/proposals", self.proposals, methods=["GET"]),
            Route("/v1/proposals/{id}", self.proposal, methods=["GET"]),
            Route("/v1/runbooks", self.runbooks, methods=["GET"]),
            Route("/v1/runbooks/{id}", self.runbook, methods=["GET"]),
            Route("/v1/runbook/run", self.run_runbook, methods=["POST"]),
            Route("/v1/runbook/approve", self.approve_runbook, methods=["POST"]),
            Route("/v1/runbook/retire", self.retire_runbook, methods=["POST"]),
            *AuditFaces(lambda: self._client, answer, self._asked, self._change).routes(),
        ]

    async def health(self, request: Request) -> Response:
        return await answer(self._client.health)

    async def overview(self, request: Request) -> Response:
        return await answer(self._client.overview)

    async def query(self, request: Request) -> Response:
        query = decoded(await body(request), Query)
        return await answer(lambda: self._client.query(query))

    async def workload(self, request: Request) -> Response:
        workload_id = request.path_params["id"]
        return await answer(lambda: self._client.workload(workload_id))

    async def estimate(self, request: Request) -> Response:
        return await self._of_workload(request, "estimate", self._client.estimate)

    async def unblocking(self, request: Request) -> Response:
        return await self._of_workload(request, "unblocking", self._client.unblocking)

    async def advice_on(self, request: Request) -> Response:
        return await self._of_workload(request, "advice", self._client.advice_on)

    async def _of_workload(self, request: Request, what: str, ask: Callable[[str], object]) -> Response:
        workload_id = request.path_params["id"]
        if not request.scope["raw_path"].endswith(f"/{what}".encode()):
            # Its slash was quoted: the last part of an id, not ours.
            return await answer(lambda: self._client.workload(f"{workload_id}/{what}"))
        return await answer(lambda: ask(workload_id))

    async def node(self, request: Request) -> Response:
        node_id = request.path_params["id"]
        return await answer(lambda: self._client.node(node_id))

    async def queue(self, request: Request) -> Response:
        name = request.path_params["name"]
        return await answer(lambda: self._client.queue(name))

    async def find(self, request: Request) -> Response:
        asked = request.query_params
        name, kinds = asked.get("name", ""), tuple(kind for kind in asked.get("kinds", "").split(",") if kind)
        limit = int(number(request, "limit", 24, 0, 200))
        return await answer(lambda: self._client.find(name, kinds, limit))

    async def fairness(self, request: Request) -> Response:
        return await answer(self._client.fairness)

    async def topology(self, request: Request) -> Response:
        wanted = decoded(await body(request), HeatRequest)
        return await answer(lambda: self._client.topology(wanted))

    async def showback(self, request: Request) -> Response:
        wanted = decoded(await body(request), ShowbackRequest)
        return await answer(lambda: self._client.showback(wanted))

    async def budgets(self, request: Request) -> Response:
        return await answer(self._client.budgets)

    async def scaling(self, request: Request) -> Response:
        return await answer(self._client.scaling)

    async def goodput(self, request: Request) -> Response:
        return await answer(self._client.goodput)

    async def fragmentation(self, request: Request) -> Response:
        return await answer(self._client.fragmentation)

    async def consolidation(self, request: Request) -> Response:
        wanted = decoded(await body(request), ConsolidationRequest)
        return await answer(lambda: self._client.consolidation(wanted))

    async def recommendations(self, request: Request) -> Response:
        return await answer(self._client.recommendations)

    async def recommendation(self, request: Request) -> Response:
        rec_id = request.path_params["id"]
        return await answer(lambda: self._client.recommendation(rec_id))

    async def reject(self, request: Request) -> Response:
        rec_id, given = request.path_params["id"], decoded(await body(request), RejectBody)
        return await answer(lambda: self._client.reject_recommendation(rec_id, given.reason))

    async def forecast(self, request: Request) -> Response:
        wanted = decoded(await body(request), ForecastRequest)
        return await answer(lambda: self._client.forecast(wanted))

    async def quote(self, request: Request) -> Response:
        wanted = decoded(await body(request), QuoteRequest)
        return await answer(lambda: self._client.quote(wanted))

    async def history(self, request: Request) -> Response:
        wanted = decoded(await body(request), HistoryRequest)
        return await answer(lambda: self._client.history(wanted))

    async def sizing(self, request: Request) -> Response:
        wanted = decoded(await body(request), SizingRequest)
        return await answer(lambda: self._client.sizing(wanted))

    async def import_samples(self, request: Request) -> Response:
        self._forbid_if_read_only()
        raw = await body(request)
        batch: SampleBatch = await run_in_threadpool(decoded, raw, SampleBatch)
        return await answer(lambda: self._client.import_samples(batch))

    async def import_runs(self, request: Request) -> Response:
        self._forbid_if_read_only()
        raw = await body(request)
        batch: RunBatch = await run_in_threadpool(decoded, raw, RunBatch)
        return await answer(lambda: self._client.import_runs(batch))

    async def ask(self, request: Request) -> Response:
        ask = decoded(await body(request), Ask)
        return await answer(lambda: self._client.ask(ask))

    async def run(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        after = int(number(request, "after", -1, -1, 2**62))
        wait_s = number(request, "wait_s", 0, 0, LONGEST_WAIT_S)
        return await answer(lambda: self._client.run(run_id, after, wait_s))

    async def cancel_run(self, request: Request) -> Response:
        run_id = request.path_params["id"]
        return await answer(lambda: self._client.cancel_run(run_id))

    async def runs(self, request: Request) -> Response:
        return await answer(self._client.runs)

    async def scores(self, request: Request) -> Response:
        return await answer(self._client.scores)

    async def changes(self, request: Request) -> Response:
        after = int(number(request, "after", 0, 0, 2**62))
        wait_s = number(request, "wait_s", 0, 0, LONGEST_WAIT_S)
        limit = int(number(request, "limit", 500, 1, MOST_CHANGES))
        if wait_s:
            await self._watch.wait(after, wait_s)
        return await answer(lambda: self._client.changes(after, 0, limit))

    async def command(self, request: Request) -> Response:
        self._forbid_if_read_only()
        raw = await body(request)
        command: AnyCommand = await run_in_threadpool(decoded, raw, AnyCommand)
        try:
            check_admitted(command)
        except RefusedError as error:
            raise Forbidden(error.problem, error.remedy) from None
        return await answer(lambda: self._client.command(command))

    async def propose(self, request: Request) -> Response:
        self._forbid_if_read_only()
        wanted = decoded(await body(request), plan.Request)
        return await answer(lambda: self._client.propose(wanted))

    async def preview(self, request: Request) -> Response:
        wanted = decoded(await body(request), plan.Request)
        return await answer(lambda: self._client.preview(wanted))

    async def revise(self, request: Request) -> Response:
        proposal_id, wanted = request.path_params["id"], await self._change(request, plan.Request)
        return await answer(lambda: self._client.revise(proposal_id, wanted))

    async def proposals(self, request: Request) -> Response:
        states = tuple(state for state in request.query_params.get("states", "").split(",") if state)
        limit = int(number(request, "limit", 200, 1, MOST_PROPOSALS))
        return await answer(lambda: self._client.proposals(states, limit))

    async def proposal(self, request: Request) -> Response:
        proposal_id = request.path_params["id"]
        return await answer(lambda: self._client.proposal(proposal_id))

    async def approve(self, request: Request) -> Response:
        self._forbid_if_read_only()
        given = decoded(await body(request), ApproveBody)
        return await answer(lambda: self._client.approve(given.proposal, given.digest, given.comment, given.signed))

    async def vote(self, request: Request) -> Response:
        given = await self._change(request, VoteBody)
        return await answer(
            lambda: self._client.vote(given.proposal, given.digest, given.verdict, given.comment, given.signed)
        )

    async def execute(self, request: Request) -> Response:
        given = await self._change(request, DeedBody)
        return await answer(lambda: self._client.execute(given.proposal))

    async def pause(self, request: Request) -> Response:
        given = await self._change(request, ReasonBody)
        return await answer(lambda: self._client.pause(given.proposal, given.reason))

    async def resume(self, request: Request) -> Response:
        given = await self._change(request, ResumeBody)
        return await answer(lambda: self._client.resume(given.proposal, given.accept))

    async def confirm(self, request: Request) -> Response:
        given = await self._change(request, ConfirmBody)
        return await answer(lambda: self._client.confirm(given.proposal, given.step))

    async def rollback(self, request: Request) -> Response:
        given = await self._change(request, ReasonBody)
        return await answer(lambda: self._client.rollback(given.proposal, given.reason))

    async def cancel(self, request: Request) -> Response:
        given = await self._change(request, ReasonBody)
        return await answer(lambda: self._client.cancel(given.proposal, given.reason))

    async def break_glass(self, request: Request) -> Response:
        given = await self._change(request, BreakGlassBody)
        return await answer(lambda: self._client.break_glass(given.proposal, given.digest, given.reason, given.signed))

    async def reviews(self, request: Request) -> Response:
        return await answer(self._client.reviews)

    async def close_review(self, request: Request) -> Response:
        given = await self._change(request, ReviewBody)
        return await answer(lambda: self._client.close_review(given.review, given.comment))

    async def freezes(self, request: Request) -> Response:
        return await answer(self._client.freezes)

    async def freeze(self, request: Request) -> Response:
        spec = await self._change(request, FreezeSpec)
        return await answer(lambda: self._client.freeze(spec))

    async def thaw(self, request: Request) -> Response:
        given = await self._change(request, ThawBody)
        return await answer(lambda: self._client.thaw(given.name))

    async def runbooks(self, request: Request) -> Response:
        return await answer(self._client.runbooks)

    async def runbook(self, request: Request) -> Response:
        runbook_id = request.path_params["id"]
        return await answer(lambda: self._client.runbook(runbook_id))

    async def run_runbook(self, request: Request) -> Response:
        ask = decoded(await body(request), RunbookAsk)
        if not ask.dry_run:
            self._forbid_if_read_only()
        return await answer(lambda: self._client.run_runbook(ask))

    async def approve_runbook(self, request: Request) -> Response:
        self._forbid_if_read_only()
        vote = decoded(await body(request), RunbookVote)
        return await answer(lambda: self._client.approve_runbook(vote))

    async def retire_runbook(self, request: Request) -> Response:
        self._forbid_if_read_only()
        vote = decoded(await body(request), RunbookVote)
        return await answer(lambda: self._client.retire_runbook(vote))

    async def _asked(self, request: Request, kind: Any) -> Any:
        return decoded(await body(request), kind)

    async def _change(self, request: Request, kind: Any) -> Any:
        """What a request that changes something asks for, where anything may be changed."""
        self._forbid_if_read_only()
        return decoded(await body(request), kind)

    def _forbid_if_read_only(self) -> None:
        if self._client.read_only:
            refused = refuse_read_only()
            raise Forbidden(refused.problem, "This engine was started with --readonly")


class BrowserGuard:
    """Refuses what a web page could send to this machine: a foreign Host (DNS rebinding) or any Origin."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._why_not(dict(scope["headers"]))
            if refused:
                await refusal(Forbidden(refused, "Use the muster command or an HTTP client"))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _why_not(self, headers: Mapping[bytes, bytes]) -> str:
        if b"origin" in headers:
            return "requests of web pages are not served"
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return "" if name in self._hosts else f"host {host[:80]!a} is not served here"


class Naming:
    """Says of every request who makes it, before a handler sees it: by the account at the other end, or a signature."""

    def __init__(self, app: ASGIApp, client: LocalClient) -> None:
        self._app = app
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            actor, receive = await self._named(Request(scope, receive), receive)
        except MusterError as error:
            await refusal(error)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        CALLER.set(actor)
        await self._app(scope, receive, send)

    async def _named(self, request: Request, receive: Receive) -> tuple[Actor, Receive]:
        """Who it is, and from where its body can be read. Raises AuthRefused, on record, and TooLarge."""
        content = b""
        if SIGNED in request.headers:
            content = await body(request)
            receive = _again(content)
        account = account_of(request.scope["client"])
        try:
            path = request.scope["raw_path"].decode("latin-1")
            claim = claim_of(account, request.headers, request.method, path, content)
        except AuthRefused as error:
            await run_in_threadpool(self._client.refused, account, error)
            raise
        plain = None if claim.person or claim.signed else self._client.glanced(account)
        if plain is not None:
            return plain, receive
        return await run_in_threadpool(self._client.identified, claim), receive


def _again(content: bytes) -> Receive:
    """Hands out a body that was read already."""
    parts = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Message:
        return next(parts, {"type": "http.disconnect"})

    return receive


def build_app(
    client: LocalClient,
    watch: Watch,
    more: tuple[Route, ...] = (),
    *,
    hosts: tuple[str, ...] = (*_LOOPBACK, "muster"),
) -> Starlette:
    """The control plane over `client`, and `more` routes. `hosts` are the names a request may address it by."""
    app = Starlette(
        routes=[*more, *Faces(client, watch).routes()],
        exception_handlers={
            MusterError: _handled,
            HTTPException: _http_error,
            ClientDisconnect: _handled,
            Exception: _unexpected,
        },
    )
    app.add_middleware(Naming, client=client)
    app.add_middleware(BrowserGuard, hosts=hosts)
    return app


async def _handled(request: Request, error: Exception) -> Response:
    if isinstance(error, MusterError):
        return refusal(error)
    return refusal(SpecError("body", "ended early", "Send it again"))


async def _http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    path = request.url.path[:120]
    if status == 404:
        return refusal(NotFoundError(f"there is no {path}", "See console/server.py or docs/shell.md for the routes"))
    refused = refusal(SpecError("method", f"{request.method} is not possible on {path}", ""))
    refused.status_code = status
    refused.headers.update(getattr(error, "headers", None) or {})
    return refused


async def _unexpected(request: Request, error: Exception) -> Response:
    """A defect of the server itself: Starlette lets it go on to the log, where its traceback belongs."""
    return refusal(DEFECT)
