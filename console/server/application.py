"""The HTTP control plane: the questions of `console.client.protocol.Client`, as JSON under /v1, and what is asked
otherwise.

`/v1/openapi.json` describes them (`console.server.openapi`). An answer that is not 200 is `{"code", "problem",
"remedy"}`; the codes are those of `engine.model.errors`. Every answer says in `Muster-Version` up to which state
version, at least, it shows what happened, also those (`Versioned`).

Who asks is told by the socket, a token, a certificate or a signature (`console.server.authentication`); what they may
do is the policy's to say (`runbooks.policy.approval_policy`). Requests that a browser page could have sent are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from console.auth.oidc import OpenIdProvider
from console.client.protocol import Client
from console.client.questions import questions_of
from console.server.authentication import Authentication, BrowserGuard, Doors
from console.server.back_pressure import BackPressure
from console.server.cached_reads import Reads
from console.server.health_and_metrics import Counting, Metrics
from console.server.idempotency import IdempotencyKeys
from console.server.openapi import Described
from console.server.operations import Handler, Operation, asked_by
from console.server.request_handler import RequestHandler
from console.server.responses import DEFECT, Versioned, refusal
from console.server.routes.agents import AgentRoutes
from console.server.routes.event_stream import EventRoutes
from console.server.routes.lists import Listings
from console.server.routes.presence import PresenceRoutes
from console.server.routes.submissions import Submitting
from console.server.routes.tokens import TokenRoutes
from console.server.version_watch import VersionWatch
from console.service.local_client import LocalClient
from engine.loop import EngineLoop
from engine.model.errors import MusterError, NotFoundError, SpecError

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class ControlPlane:
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
    provider: OpenIdProvider | None = None,
) -> ControlPlane:
    """In the event loop that serves it. `hosts` are the names a request may address it by, `doors` the ports it comes
    through; `provider` says who people are, where there is one."""
    watch, pressure, keys = VersionWatch(loop), BackPressure(), IdempotencyKeys(loop)
    reads, metrics = Reads(loop, watch), Metrics(loop, pressure)
    events = EventRoutes(client, loop, watch, reads, metrics)
    presence = PresenceRoutes(client.presence)
    tokens = TokenRoutes(client, provider)
    handlers: dict[str, Handler] = {
        "command": Submitting(client, loop, client.gate, keys).command,
        "changes": events.changes,
        "present": presence.present,
        "create_token": tokens.create,
    }
    rows = (
        *Listings(client, reads).operations(),
        *events.operations(),
        *(asked_by(question, handlers.get(question.name)) for question in questions_of(Client)),
        *tokens.operations(),
        *AgentRoutes(loop, read_only=client.read_only).operations(),
        *metrics.operations(),
    )
    described = Described(rows)
    operations = (*rows, *described.operations())
    handler = RequestHandler(client, loop, reads, pressure, keys)
    app = Starlette(
        routes=[handler.route(operation) for operation in operations],
        exception_handlers={
            MusterError: _handled,
            HTTPException: _http_error,
            ClientDisconnect: _handled,
            Exception: _unexpected,
        },
    )
    app.add_middleware(Authentication, client=client, doors=doors)
    app.add_middleware(BrowserGuard, hosts=hosts)
    app.add_middleware(Counting, metrics=metrics)
    shown = Versioned(app, loop.copies.shown_version)
    return ControlPlane(shown, operations, metrics, (events.close, presence.close, watch.close, reads.close))


async def _handled(request: Request, error: Exception) -> Response:
    if isinstance(error, MusterError):
        return refusal(error)
    return refusal(SpecError("body", "ended early", "Send it again"))


async def _http_error(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    path = request.scope["path"][:120]
    if status == 404:
        return refusal(
            NotFoundError(f"there is no {path}", "See console/server/application.py or docs/shell.md for the routes")
        )
    refused = refusal(SpecError("method", f"{request.method} is not possible on {path}", ""))
    refused.status_code = status
    refused.headers.update(getattr(error, "headers", None) or {})
    return refused


async def _unexpected(request: Request, error: Exception) -> Response:
    """A defect of the server itself: Starlette lets it go on to the log, where its traceback belongs."""
    return refusal(DEFECT)
