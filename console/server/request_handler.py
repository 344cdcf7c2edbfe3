"""From a request to its answer, the same way for every operation: let in, read, checked, done once, answered."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from console.auth.identity import CALLER
from console.client.protocol import Client
from console.client.questions import Arguments, Question, question_of, refuse_read_only
from console.server import idempotency
from console.server.back_pressure import BackPressure, Kind
from console.server.cached_reads import Reads
from console.server.operations import Operation
from console.server.responses import DEFECT, VERSION, Forbidden, body, decoded, refusal
from engine.model.errors import MusterError, SpecError

if TYPE_CHECKING:
    from console.service.local_client import LocalClient
    from engine.loop import EngineLoop
    from runbooks.people.identity import Actor

QUICK_THREADS, SLOW_THREADS = 32, 24
LARGE_BODY = 64 * 1024
"""Bytes from which on a body is read beside the event loop."""
AT_LEAST = "muster-at-least"
"""Header: the state version that a request wants to be shown."""
QUERY = question_of(Client.query)
LOG = logging.getLogger("muster.server")


@dataclass(frozen=True)
class Asked:
    """One request, read and checked."""

    client: LocalClient
    """Of whoever asks."""
    question: Question
    arguments: Arguments


class RequestHandler:
    """Answers operations. Made and used in one event loop."""

    def __init__(
        self,
        client: LocalClient,
        loop: EngineLoop,
        reads: Reads,
        pressure: BackPressure,
        keys: idempotency.IdempotencyKeys,
    ) -> None:
        self._of_nobody = client
        self._loop = loop
        self._reads = reads
        self._pressure = pressure
        self._quick, self._slow = CapacityLimiter(QUICK_THREADS), CapacityLimiter(SLOW_THREADS)
        self._keys = keys
        self._rows: dict[tuple[str, str], Operation] = {}

    def route(self, operation: Operation) -> Route:
        self._rows[operation.method, operation.path] = operation
        return Route(operation.path, functools.partial(self._let_in, operation), methods=[operation.method])

    def _meant(self, operation: Operation, request: Request) -> Operation:
        """An id may have slashes, and end like a route: where that slash was quoted it is a part of the id."""
        base, _, word = operation.path.rpartition(":path}/")
        if not base or request.scope["raw_path"].endswith(f"/{word}".encode()):
            return operation
        request.path_params[base.rpartition("{")[2]] += f"/{word}"
        return self._rows[operation.method, f"{base}:path}}"]

    async def _let_in(self, operation: Operation, request: Request) -> Response:
        operation = self._meant(operation, request)
        if operation.open:
            return await self._answered(operation, request)
        with self._pressure.let_in(kind_of(operation), caller_of(CALLER.get())):
            return await self._answered(operation, request)

    async def _answered(self, operation: Operation, request: Request) -> Response:
        request.state.operation = operation.name
        try:
            if operation.handler is not None:
                return await operation.handler(request)
            return await self._done(operation, request)
        except (MusterError, ClientDisconnect):
            raise
        except Exception:
            LOG.exception("a request met a defect")
            return refusal(DEFECT)

    async def _done(self, operation: Operation, request: Request) -> Response:
        if operation.changes is True:
            self._forbid_if_read_only()
        question = operation.question
        assert question is not None
        arguments, content = await read_arguments(question, operation, request, self._quick)
        asked = Asked(self._of_nobody.acting_as(CALLER.get()), question, arguments)
        if question.copied:
            return await self._copied(asked, request)
        if not question.changes_with(arguments):
            version = self._reads.shown(asked.client.own_version)
            return answer_of(await self._thread(asked), version)
        self._forbid_if_read_only()
        do = functools.partial(self._changed, asked)
        key = key_of(request, content)
        return answer_to(await (do() if key is None else self._keys.once(key, do)))

    async def _copied(self, asked: Asked, request: Request) -> Response:
        given = tuple(asked.arguments.values())
        shown = await self._reads.told(asked.question.name, given, asked.client.own_version, least_of(request))
        if asked.question is QUERY:
            asked.client.note_shown(given[0], shown.content)
        return answer_of(shown.content, shown.version)

    async def _changed(self, asked: Asked) -> idempotency.StoredResponse:
        content = await self._thread(asked)
        return idempotency.StoredResponse(content, self._loop.engine.version)

    async def _thread(self, asked: Asked) -> bytes:
        """Asking blocks, and encoding may take a while."""

        def answered() -> bytes:
            return msgspec.json.encode(asked.question.answered_by(asked.client, asked.arguments))

        return await to_thread.run_sync(answered, limiter=self._slow if asked.question.slow else self._quick)

    def _forbid_if_read_only(self) -> None:
        if self._of_nobody.read_only:
            raise Forbidden(refuse_read_only().problem, "This engine was started with --readonly")


async def read_arguments(
    question: Question, operation: Operation, request: Request, limiter: CapacityLimiter | None = None
) -> tuple[Arguments, bytes]:
    """The arguments of a question, and the body that they were read from. Raises SpecError, and TooLarge."""
    query = {each.name: each.read(request.query_params.get(each.name)) for each in operation.query}
    content, given = b"", None
    if operation.takes is not None:
        content = await body(request)
        if len(content) > LARGE_BODY:
            given = await to_thread.run_sync(decoded, content, operation.takes, limiter=limiter)
        else:
            given = decoded(content, operation.takes)
    return question.received(request.path_params, query, given), content


def answer_of(content: bytes, version: int) -> Response:
    """A 200."""
    return Response(content, headers={VERSION: str(version)}, media_type="application/json")


def answer_to(change: idempotency.StoredResponse) -> Response:
    """A 200 to a change."""
    answer = answer_of(change.content, change.version)
    if change.again:
        answer.headers[idempotency.REPLAYED] = "true"
    return answer


def key_of(request: Request, content: bytes) -> idempotency.IdempotencyKey | None:
    """The key that a request brings. Raises SpecError."""
    text = request.headers.get(idempotency.HEADER)
    if text is None:
        return None
    path = f"{request.scope['path']}?{request.scope['query_string'].decode('latin-1')}"
    return idempotency.key_of(text, caller_of(CALLER.get()), request.method, path, content)


def least_of(request: Request) -> int | None:
    """The version that a request wants to be shown; None where it says nothing. Raises SpecError."""
    text = request.headers.get(AT_LEAST)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise SpecError(AT_LEAST, f"{text[:40]!a} is no state version", f"Send the {VERSION} of an answer")
    return int(text)


def caller_of(actor: Actor) -> str:
    """One for each account and person: who has a share, and whose keys are whose."""
    return f"{actor.account} {actor.subject}"


def kind_of(operation: Operation) -> Kind:
    if operation.path.startswith("/v1/agents/"):
        return "agent"
    if operation.follows:
        return "follow"
    if operation.slow:
        return "slow"
    return "change" if operation.changes else "read"
