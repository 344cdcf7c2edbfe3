"""The HTTP control plane of one cell: the questions of `console.client.protocol.Client` as JSON under /v1, and
login.

Answers other than 200 are `{"code", "problem", "remedy"}` with the codes of `engine.model.errors`. Every answer
names in `Muster-Version` a state version that it includes (`Versioned`). `/v1/openapi.json` describes the routes,
and is made of the same rows and types. Answers that hold a new token are never stored.

`/healthz` answers while the event loop runs and the engine's thread has not ended. `/readyz` says whether work may
be sent here: the journal can be written, and the server is not about to stop. Neither needs a name. `/metrics` is
text in the format of Prometheus.

The caller is identified by socket, token, certificate or signature (`console.server.authentication`); the policy
decides what they may do (`runbooks.gate.approval_policy`). Requests that a browser page could have sent are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from console import VERSION as SOFTWARE
from console.client.credentials import CALLER, LoginView, NewToken, TokenAsk
from console.client.oidc import OpenIdProvider
from console.client.protocol import Client, Login
from console.client.questions import AS_OF, PLACE, question_of, questions_of
from console.server import idempotency
from console.server.agents import AgentRoutes
from console.server.authentication import MAX_LOGIN, Authentication, BrowserGuard, Doors
from console.server.chat import ChatRoutes
from console.server.idempotency import IdempotencyKeys
from console.server.load_limits import BackPressure
from console.server.operations import (
    MAX_BODY_BYTES,
    STATUS,
    VERSION,
    Crowded,
    Forbidden,
    Handler,
    Number,
    Operation,
    Parameter,
    Versioned,
    answer,
    asked_by,
    body,
    decoded,
    forbid_if_read_only,
)
from console.server.request_handler import AT_LEAST, ReplicaReads, RequestHandler, VersionWatch, kind_of
from console.server.served_process import error_handlers
from console.server.submissions import SubmissionBatcher
from console.server.watching import EventRoutes, Listings, PresenceRoutes
from console.service.chat import Chat
from console.service.local_client import LocalClient
from engine.loop import EngineLoop
from engine.model.errors import NotFoundError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


LOGIN_LIFE_MS = 12 * 3_600_000
"""Of a token that a login gives: a shift."""
LOG_IN = question_of(Login.log_in)
MAX_LOGINS = 8
"""Under way: each may wait for the provider, and keeps a thread that others need."""


class TokenRoutes:
    """Handlers for tokens and login. `provider`: the OpenID provider, where one is set."""

    def __init__(self, client: LocalClient, provider: OpenIdProvider | None = None) -> None:
        self._of_nobody = client
        self._provider = provider
        self._logins = 0

    def operations(self) -> tuple[Operation, ...]:
        return (
            asked_by(question_of(Login.login_view), self.login),
            asked_by(LOG_IN, self.log_in),
        )

    async def create(self, request: Request) -> Response:
        forbid_if_read_only(self._of_nobody.read_only)
        ask = decoded(await body(request, MAX_LOGIN), TokenAsk)
        client = self._of_nobody.acting_as(CALLER.get())
        return _unkept(await answer(lambda: client.create_token(ask)))

    async def login(self, request: Request) -> Response:
        provider = self._provider
        shown = LoginView() if provider is None else LoginView(issuer=provider.issuer, client_id=provider.client_id)
        return await answer(lambda: shown)

    async def log_in(self, request: Request) -> Response:
        forbid_if_read_only(self._of_nobody.read_only)
        given = decoded(await body(request, MAX_LOGIN), LOG_IN.takes)
        if self._logins >= MAX_LOGINS:
            raise Crowded(f"{MAX_LOGINS} logins are in progress", "Try again in a few seconds", 3)
        self._logins += 1
        try:
            return _unkept(await answer(lambda: self._logged_in(given.id_token)))
        finally:
            self._logins -= 1

    def _logged_in(self, id_token: str) -> NewToken:
        if self._provider is None:
            raise Forbidden("this engine has no OpenID provider", "Set oidc_issuer, or ask an admin for a token")
        proof = self._provider.proved(id_token)
        return self._of_nobody.tokens_kept.log_in(proof, LOGIN_LIFE_MS)


def _unkept(response: Response) -> Response:
    response.headers["cache-control"] = "no-store"
    return response


REFERENCES = "#/components/schemas/{name}"
_WORDS = {
    400: "What was asked for is malformed: the problem names the place",
    401: "No credentials, or credentials that are not valid",
    403: "The caller may not do this, whatever the state",
    404: "It names something that does not exist",
    409: "Well-formed, but not possible in the present state",
    413: f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB",
    429: "Too many requests from one caller: nothing was done",
    500: "Internal error",
    502: "The engine did not answer in time",
    503: "Overload, or the journal cannot be written: nothing was done",
}


class Problem(msgspec.Struct, frozen=True):
    """Every answer that is not 200."""

    code: str
    """Stable; see `engine.model.errors`."""
    problem: str
    remedy: str


class OpenApiDescription:
    """The OpenAPI description of these operations and of its own."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation(
                "GET", "/v1/openapi.json", "This description", handler=self.told, gives=dict[str, Any], open=False
            ),
        )  # fmt: skip

    async def told(self, request: Request) -> Response:
        return Response(self._encoded, media_type="application/json")

    @cached_property
    def _encoded(self) -> bytes:
        return msgspec.json.encode(document((*self._operations, *self.operations())))


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """OpenAPI 3.1 as JSON would have it."""
    told = [operation for operation in operations if operation.media == "application/json"]
    types: list[Any] = [Problem]
    for operation in operations:
        types += [operation.takes] if operation.takes is not None else []
        types += [operation.gives] if operation in told else []
    schemas, components = msgspec.json.schema_components(types, schema_hook=_other, ref_template=REFERENCES)
    coming = iter(schemas)
    problem = next(coming)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        takes = next(coming) if operation.takes is not None else None
        gives = next(coming) if operation in told else {"type": "string"}
        path = paths.setdefault(PLACE.sub(r"{\1}", operation.path), {})
        path[operation.method.lower()] = _described(operation, takes, gives, problem)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Muster",
            "version": SOFTWARE,
            "summary": "The control plane of one cell",
            "description": "Fields may be added to answers within /v1: ignore fields you do not know. "
            "Requests are checked, and unknown fields are refused.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
        "security": [{}, {"token": []}, {"certificate": []}],
    }


def _other(kind: Any) -> dict[str, Any]:
    """Schema of a type that does not describe its content."""
    if kind is object:
        return {"description": "Any JSON"}
    raise NotImplementedError


_SHOWN = {VERSION: {"description": "Lowest state version it shows", "schema": {"type": "integer"}}}
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token made with `muster token create`"},
    "certificate": {"type": "mutualTLS", "description": "Where the service was started with --tls-client-ca"},
}


def _described(operation: Operation, takes: Any, gives: Any, problem: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.says,
        "parameters": [
            *(_path_parameter(name) for name in PLACE.findall(operation.path)),
            *(_query_parameter(each) for each in operation.query),
            *_headers(operation),
        ],
        "responses": {
            "200": {"description": "Done", "headers": _SHOWN, "content": {operation.media: {"schema": gives}}},
            **{str(status): _refused(status, problem) for status in _statuses(operation)},
        },
    }
    if takes is not None:
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": takes}}}
    if operation.open:
        told["security"] = [{}]
    return told


def _statuses(operation: Operation) -> list[int]:
    """Other statuses of an operation. 500 is a defect and not among them."""
    if operation.open:
        return [403, 503]
    found = {400, 401, 403, 429, 502, 503, *(STATUS[code] for code in ("not_found", "refused"))}
    return sorted(found | ({413} if operation.takes is not None else set()))


def _refused(status: int, problem: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"description": _WORDS[status], "headers": dict(_SHOWN)}
    told["content"] = {"application/json": {"schema": problem}}
    if status in (429, 503):
        told["headers"]["retry-after"] = {"description": "Seconds", "schema": {"type": "integer"}}
    return told


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameter(each: Parameter) -> dict[str, Any]:
    told: dict[str, Any] = {"name": each.name, "in": "query", "description": each.says}
    if isinstance(each, Number):
        kind = "integer" if each.whole else "number"
        return {
            **told,
            "schema": {"type": kind, "minimum": each.least, "maximum": each.most, "default": each.default},
        }
    return {**told, "schema": {"type": "string", "default": each.default}}


def _headers(operation: Operation) -> list[dict[str, Any]]:
    if operation.open or kind_of(operation) == "agent":
        return []
    if operation.changes:
        schema = {"type": "string", "minLength": 1, "maxLength": idempotency.LONGEST_KEY, "pattern": "^[ -~]+$"}
        says = "A new random text for each change: if it is sent again, the request takes effect once"
        return [{"name": idempotency.HEADER, "in": "header", "description": says, "schema": schema}]
    found = []
    if (operation.question is not None and operation.question.copied) or operation.follows:
        says = f"Show at least this state version, as {VERSION} of another answer told it"
        schema = {"type": "integer", "minimum": 0}
        found.append({"name": AT_LEAST, "in": "header", "description": says, "schema": schema})
    if operation.question is not None:
        says = "Answer as of this cell time, Unix milliseconds, as far as that is kept; see /v1/past"
        schema = {"type": "integer", "minimum": 1}
        found.append({"name": AS_OF, "in": "header", "description": says, "schema": schema})
    return found


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Standing(msgspec.Struct, frozen=True):
    """Of a probe. `why` is empty where all is well."""

    ok: bool
    why: str = ""


class Metrics:
    """Counters of answered requests. Made and used in one event loop."""

    def __init__(self, loop: EngineLoop, pressure: BackPressure) -> None:
        self._loop = loop
        self.stopping = False
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()
        self._answers = Counter(
            "muster_http_requests", "Requests that were answered", ("operation", "status"), registry=registry
        )
        self._seconds = Histogram(
            "muster_http_request_seconds", "Until the last byte of the answer", ("operation",), buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.followers = Gauge("muster_http_followers", "Open event streams", registry=registry)
        self.stream_bytes = Counter("muster_http_stream_bytes", "Bytes sent to event streams", registry=registry)
        registry.register(_EngineFigures(loop, pressure))

    def answered(self, operation: str, status: int, seconds: float) -> None:
        self._answers.labels(operation, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("GET", "/healthz", "Whether the service is alive", handler=self.alive, gives=Standing, open=True),
            Operation("GET", "/readyz", "Whether work may be sent here", handler=self.ready, gives=Standing, open=True),
            Operation(
                "GET", "/metrics", "Figures for Prometheus", handler=self.figures, gives=str, media=TEXT,
            ),
        )  # fmt: skip

    async def alive(self, request: Request) -> Response:
        return _standing("the engine has ended" if self._loop.fault else "")

    async def ready(self, request: Request) -> Response:
        if self._loop.fault:
            return _standing("the engine has ended")
        if self.stopping:
            return _standing("the service is stopping")
        return _standing("the journal cannot be written" if self._loop.engine.journal_error else "")

    async def figures(self, request: Request) -> Response:
        return Response(generate_latest(self.registry), headers={"content-type": TEXT})


class AnswerCounter:
    """Outermost middleware: it sees every answer, also refusals of unauthenticated requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 499

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            operation = scope.get("state", {}).get("operation", "none")
            self._metrics.answered(operation, status, time.perf_counter() - begun)


class _EngineFigures:
    """Figures that are read on request. Other threads write them; each figure is consistent by itself."""

    def __init__(self, loop: EngineLoop, pressure: BackPressure) -> None:
        self._loop = loop
        self._pressure = pressure

    def collect(self) -> Iterator[Metric]:
        loop, engine, pressure = self._loop, self._loop.engine, self._pressure
        told = GaugeMetricFamily("muster_info", "What serves", labels=("version", "cell"))
        told.add_metric((SOFTWARE, engine.state.cell), 1)
        yield told
        yield GaugeMetricFamily("muster_state_version", "Events since the cell began", value=engine.version)
        yield GaugeMetricFamily("muster_shown_version", "The version that readers see", loop.copies.shown_version())
        yield GaugeMetricFamily("muster_cell_time_seconds", "The cell's clock", value=engine.now_ms / 1000)
        yield GaugeMetricFamily("muster_workloads", "Workloads the cell knows", value=len(engine.state.workloads.ids))
        yield GaugeMetricFamily("muster_nodes", "Nodes the cell knows", value=len(engine.state.capacity.node_ids))
        yield GaugeMetricFamily("muster_engine_calls_waiting", "Calls for the engine's thread", value=loop.waiting)
        yield GaugeMetricFamily("muster_journal_ok", "1 while it can be written", value=not engine.journal_error)
        if engine.lease is not None:
            yield GaugeMetricFamily(
                "muster_last_takeover_seconds", "Without a writer until this engine took over; 0: it was no standby",
                value=engine.lease.takeover_ms / 1000,
            )  # fmt: skip
        inside = GaugeMetricFamily("muster_http_inside", "Requests under way", labels=("kind",))
        for kind in pressure.most:
            inside.add_metric((kind,), pressure.inside[kind])
        yield inside
        away = CounterMetricFamily("muster_http_turned_away", "Requests of too many", labels=("kind", "whose"))
        for (kind, whose), count in pressure.turned_away.items():
            away.add_metric((kind, whose), count)
        yield away


def _standing(why: str) -> Response:
    content = msgspec.json.encode(Standing(ok=not why, why=why))
    return Response(content, status_code=503 if why else 200, media_type="application/json")


def _no_route(path: str) -> NotFoundError:
    return NotFoundError(f"there is no {path}", "See console/server/application.py or docs/shell.md for the routes")


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
        """Release every long poll and stream; requests under way are still answered."""
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
    chat: Chat | None = None,
) -> ControlPlane:
    """Build the service, in the event loop that serves it. `hosts` are the names a request may address it by,
    `doors` the ports it comes through; `provider` is the OpenID provider, and `chat` the chat, where there is one."""
    watch, pressure, keys = VersionWatch(loop), BackPressure(), IdempotencyKeys(loop)
    reads, metrics = ReplicaReads(loop, watch), Metrics(loop, pressure)
    events = EventRoutes(client, loop, watch, reads, metrics)
    presence = PresenceRoutes(client.presence)
    tokens = TokenRoutes(client, provider)
    handlers: dict[str, Handler] = {
        "command": SubmissionBatcher(client, loop, client.gate, keys).command,
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
        *ChatRoutes(client, chat).operations(),
    )
    described = OpenApiDescription(rows)
    operations = (*rows, *described.operations())
    handler = RequestHandler(client, loop, reads, pressure, keys)
    app = Starlette(
        routes=[handler.route(operation) for operation in operations],
        exception_handlers=error_handlers(_no_route),
    )
    app.add_middleware(Authentication, client=client, doors=doors)
    app.add_middleware(BrowserGuard, hosts=hosts)
    app.add_middleware(AnswerCounter, metrics=metrics)
    shown = Versioned(app, loop.copies.shown_version)
    return ControlPlane(shown, operations, metrics, (events.close, presence.close, watch.close, reads.close))
