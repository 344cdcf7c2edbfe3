"""The HTTP control plane: the same questions and requests as `console.client.Client`, as JSON under /v1.

What there is to ask is the rows of `console.operations`, by subject in the `*_faces` files; `/v1/openapi.json`
describes them (`console.openapi`). An answer that is not 200 is `{"code", "problem", "remedy"}`; the codes are those of
`engine.errors`. Every answer says in `Muster-Version` up to which state version, at least, it shows what happened, also
those (`console.state_version`).

Who asks is told by the socket, a token, a certificate or a signature (`console.naming`); what they may do is the
policy's to say (`runbooks.policy`). Requests that a browser page could have sent are refused (`console.browser_guard`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from console.advice_faces import ADVICE
from console.agents import AgentFaces
from console.answering import Answering
from console.audit_faces import AUDIT
from console.back_pressure import Pressure
from console.browser_guard import BrowserGuard
from console.draft_faces import DRAFTS
from console.event_stream import EventFaces
from console.gate_faces import GATE
from console.http_answers import DEFECT, refusal
from console.http_metrics import Counting, Metrics
from console.idempotency import Keys
from console.listings import Listings
from console.local_client import LocalClient
from console.naming import Doors, Naming
from console.oidc import Provider
from console.openapi import Described
from console.operations import Operation
from console.policy_faces import POLICY
from console.presence_faces import PresenceFaces
from console.reading_faces import READING
from console.reads import Reads
from console.state_version import Versioned
from console.submitting import Submitting
from console.token_faces import TokenFaces
from console.watch import Watch
from engine.errors import MusterError, NotFoundError, SpecError
from engine.loop import EngineLoop

OPERATIONS: tuple[Operation, ...] = (*READING, *ADVICE, *GATE, *AUDIT, *POLICY, *DRAFTS)
"""What the client answers, in the name of whoever asks. More, that is answered in ways of its own, is in `Service`."""
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Service:
    """The control plane over one engine."""

    app: Versioned
    operations: tuple[Operation, ...]
    metrics: Metrics
    closing: tuple[Callable[[], None], ...]
    """What lets go of those who wait for news, in order."""

    def stop(self) -> None:
        """Let go everybody who waits for news; what is under way is still answered."""
        self.metrics.stopping = True
        for close in self.closing:
            close()


def build_service(
    client: LocalClient,
    loop: EngineLoop,
    *,
    hosts: tuple[str, ...] = (*_LOOPBACK, "muster"),
    doors: Doors | None = None,
    provider: Provider | None = None,
) -> Service:
    """In the event loop that serves it. `hosts` are the names a request may address it by, `doors` the ports it comes
    through; `provider` says who people are, where there is one."""
    watch, pressure, keys = Watch(loop), Pressure(), Keys(loop)
    reads, metrics = Reads(loop, watch), Metrics(loop, pressure)
    events = EventFaces(client, loop, watch, reads, metrics)
    presence = PresenceFaces(client.presence)
    rows = (
        *READING[:2],
        *Submitting(client, loop, client.gate, keys).operations(),
        *events.operations(),
        *Listings(client, reads).operations(),
        *OPERATIONS[2:],
        *TokenFaces(client, provider).operations(),
        *presence.operations(),
        *AgentFaces(loop, read_only=client.read_only).operations(),
        *metrics.operations(),
    )
    described = Described(rows)
    operations = (*rows, *described.operations())
    answering = Answering(client, loop, reads, pressure, keys)
    app = Starlette(
        routes=[answering.route(operation) for operation in operations],
        exception_handlers={
            MusterError: _handled,
            HTTPException: _http_error,
            ClientDisconnect: _handled,
            Exception: _unexpected,
        },
    )
    app.add_middleware(Naming, client=client, doors=doors)
    app.add_middleware(BrowserGuard, hosts=hosts)
    app.add_middleware(Counting, metrics=metrics)
    shown = Versioned(app, loop.copies.shown_version)
    return Service(shown, operations, metrics, (events.close, presence.close, watch.close, reads.close))


async def _handled(request: Request, error: Exception) -> Response:
    if isinstance(error, MusterError):
        return refusal(error)
    return refusal(SpecError("body", "ended early", "Send it again"))


async def _http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    path = request.scope["path"][:120]
    if status == 404:
        return refusal(NotFoundError(f"there is no {path}", "See console/server.py or docs/shell.md for the routes"))
    refused = refusal(SpecError("method", f"{request.method} is not possible on {path}", ""))
    refused.status_code = status
    refused.headers.update(getattr(error, "headers", None) or {})
    return refused


async def _unexpected(request: Request, error: Exception) -> Response:
    """A defect of the server itself: Starlette lets it go on to the log, where its traceback belongs."""
    return refusal(DEFECT)
