"""The path of a request to its answer, the same for every operation: admitted, read, checked, done once, answered.

Frequent questions are answered with JSON as it is (`ReplicaReads`): for a large cell the bytes that a copy of the
engine sent (`engine.read_replica`), for a small one the engine's own answer between two turns. `VersionWatch` wakes
long polls without a thread for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast
from urllib.parse import unquote_plus

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from console.client.credentials import CALLER
from console.client.protocol import Client
from console.client.questions import AS_OF, Arguments, ServiceQuestion, question_of, refuse_past
from console.server import idempotency
from console.server.load_limits import OVERLOAD_RETRY_S, BackPressure, Kind
from console.server.operations import (
    PATIENCE_S,
    VERSION,
    Crowded,
    Forbidden,
    Operation,
    TooLarge,
    body,
    decoded,
    defect,
    forbid_if_read_only,
    on_engine,
    refusal,
)
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.read_replica import HEADER, Copy, CopyFailed, CopyGone, Urgency, answer_json, framed
from engine.reads.scoped_answers import refuse_scoped
from runbooks.plans.identity import WHOLE, AuthRefused

if TYPE_CHECKING:
    from console.service.local_client import LocalClient
    from console.service.scoped_client import ScopedClient
    from engine.loop import EngineLoop
    from engine.model.visibility import Visibility
    from runbooks.plans.identity import Actor


T = TypeVar("T")
SHOWN_WITHIN_S = 2.0
"""How long a version that was written is waited for; after that the engine itself is asked to show it."""
TRIES = 3
AT_ONCE = 32
"""Questions that a copy has before it; who comes then waits here, behind those who follow the cell's events."""
MAX_WAIT_S = 1.0
"""Once somebody has waited for so long, who comes is turned away: they would wait for longer, and nobody less."""
THREADS = 4
"""For what takes long: a copy answers one such question at a time, and more threads would only wait."""


class CachedBody(NamedTuple):
    content: bytes
    version: int


class _Asker(asyncio.Protocol):
    """Connection to one copy that carries many questions at once. Answers come in the order of the questions."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._came = bytearray()
        self._finishing = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        """Send a question. Raises CopyGone where nobody answers any more; so does the returned future."""
        if self.lost or self._transport is None:
            raise CopyGone
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(frame)
        return answer

    def data_received(self, data: bytes) -> None:
        self._came += data
        at = 0
        while len(self._came) - at >= HEADER.size:
            (size,) = HEADER.unpack_from(self._came, at)
            if len(self._came) - at - HEADER.size < size:
                break
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(bytes(self._came[at + HEADER.size : at + HEADER.size + size]))
            at += HEADER.size + size
        del self._came[:at]
        self._end_if_done()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(CopyGone())
        self._waiting.clear()

    def finish(self) -> None:
        """Close once everything is answered: another copy is asked from now on."""
        self._finishing = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._finishing and not self._waiting and self._transport is not None:
            self._transport.close()


class ReplicaReads:
    """Answers by copies of the engine. Made and used in one event loop."""

    def __init__(self, loop: EngineLoop, watch: VersionWatch) -> None:
        self._loop = loop
        self._watch = watch
        self._slow = CapacityLimiter(THREADS)
        self._asked: Copy | None = None
        """The copy that `_asker` asks."""
        self._asker: _Asker | None = None
        self._changing = asyncio.Lock()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._since: deque[float] = deque()
        """Since when those wait who wait for room, the longest first."""

    def close(self) -> None:
        """Ask no more; questions under way are still answered."""
        if self._asker is not None:
            self._asker.finish()

    def shown(self, own_version: int) -> int:
        """State version that an answer asked for now will include, at least."""
        return max(self._loop.copies.shown_version(), own_version)

    async def told(
        self, what: str, arguments: tuple[object, ...], own_version: int, least: int | None = None
    ) -> CachedBody:
        """Answer of the engine's method of that name, and its version. `own_version`: of the last change by the
        caller's account, which is included unless the request names a version itself. Raises the engine's errors,
        and RefusedError for a version that does not exist yet."""
        wanted = own_version if least is None else least
        copies, engine = self._loop.copies, self._loop.engine
        if wanted > engine.version:
            raise RefusedError(
                f"this engine is at version {engine.version}, but {wanted} was requested",
                "It may have been restored to an earlier state, or a standby took over; read without this header",
            )
        if copies.beside:
            if copies.shown_version() < wanted:
                self._loop.post(lambda _: copies.show_written())
                await self._watch.wait(wanted - 1, SHOWN_WITHIN_S)
            found = await self._beside(what, arguments, wanted)
            if found is None:
                await on_engine(self._loop, lambda _: copies.refresh())
                found = await self._beside(what, arguments, wanted)
            if found is not None:
                return found
        answer, version = await on_engine(
            self._loop, lambda engine: (self._loop.copies.answers.direct(what, arguments), engine.version)
        )
        return CachedBody(msgspec.json.encode(answer), version)

    async def _beside(self, what: str, arguments: tuple[object, ...], wanted: int) -> CachedBody | None:
        """Answer of a copy of that version or later; None where none answers."""
        copies = self._loop.copies
        copy = copies.at_least(wanted)
        if copy is None:
            return None
        if copies.urgency_of(what, arguments) != Urgency.SCREEN:
            answer = await to_thread.run_sync(copies.ask, what, arguments, wanted, limiter=self._slow)
            return None if answer is None else CachedBody(answer, copy.version)
        async with self._turn(first=what == "changes"):
            # Meanwhile another may have taken its place, also while this one was about to be asked.
            for _ in range(TRIES):
                copy = copies.at_least(wanted)
                found = None if copy is None else await self._asked_of(copy, what, arguments)
                if found is not None:
                    return found
        return None

    @contextlib.asynccontextmanager
    async def _turn(self, *, first: bool) -> AsyncIterator[None]:
        """Wait for room; a `first` question does not wait. Raises Crowded."""
        if first:
            yield
            return
        now = time.monotonic()
        if self._since and now - self._since[0] > MAX_WAIT_S:
            raise Crowded("too many reads at once", "Try again in a second", OVERLOAD_RETRY_S["read"])
        self._since.append(now)
        try:
            await self._room.acquire()
        finally:
            self._since.popleft()
        try:
            yield
        finally:
            self._room.release()

    async def _asked_of(self, copy: Copy, what: str, arguments: tuple[object, ...]) -> CachedBody | None:
        begun, copies = time.monotonic(), self._loop.copies
        copy.asked += 1
        try:
            asker = await self._of(copy)
            async with asyncio.timeout(PATIENCE_S):
                content = answer_json(await asker.ask(framed(what, arguments)))
        except (CopyGone, CopyFailed):
            return None
        except TimeoutError:
            copy.lost = True
            return None
        copies.noted(what, arguments, time.monotonic() - begun)
        return CachedBody(content, copy.version)

    async def _of(self, copy: Copy) -> _Asker:
        """Connection to this copy. Raises CopyGone for one that has ended."""
        if self._asked is copy and self._asker is not None:
            return self._asker
        async with self._changing:
            if self._asked is not copy:
                if self._asked is not None and self._asked.version > copy.version:
                    raise CopyGone
                lane = copy.many.take()
                if lane is None:
                    raise CopyGone
                _, asker = await asyncio.get_running_loop().create_unix_connection(_Asker, sock=lane)
                if self._asker is not None:
                    self._asker.finish()
                self._asked, self._asker = copy, asker
            assert self._asker is not None
            return self._asker


QUICK_THREADS, SLOW_THREADS = 32, 24
LARGE_BODY = 64 * 1024
"""Bytes from which on a body is read beside the event loop."""
AT_LEAST = "muster-at-least"
"""Header: the state version that a request wants to be shown."""
QUERY = question_of(Client.query)
LOG = logging.getLogger("muster.server")


@dataclass(frozen=True)
class ParsedRequest:
    """One request, read and checked."""

    client: LocalClient | ScopedClient
    """Of whoever asks."""
    question: ServiceQuestion
    arguments: Arguments


class RequestHandler:
    """Answers operations. Made and used in one event loop."""

    def __init__(
        self,
        client: LocalClient,
        loop: EngineLoop,
        reads: ReplicaReads,
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
        """The operation meant by a path whose id has slashes and ends like a route: a quoted slash is part of the
        id."""
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
        request.state.operation = operation
        try:
            seen = None if operation.open else await self._visibility(operation)
            if seen is not None:
                return await self._scoped(operation, request, seen)
            as_of_ms = as_of_in(request)
            if as_of_ms and not operation.open:
                return await self._as_of(operation, request, as_of_ms)
            if operation.handler is not None:
                return await operation.handler(request)
            return await self._done(operation, request)
        except (MusterError, ClientDisconnect):
            raise
        except Exception:
            LOG.exception("a request met a defect")
            return refusal(defect())

    async def _visibility(self, operation: Operation) -> Visibility | None:
        """The work that the caller may see; None: all of it, or it is a node that reports what runs on it."""
        actor, client = CALLER.get(), self._of_nobody
        if client.sees_all_at_once(actor) or (kind_of(operation) == "agent" and "agent" in (actor.deeds or ())):
            return None
        return await to_thread.run_sync(client.visibility_of, actor, limiter=self._quick)

    async def _scoped(self, operation: Operation, request: Request, seen: Visibility) -> Response:
        """Any operation for a caller who sees part of the cell: the one way to it."""
        client = self._of_nobody.acting_as(CALLER.get()).scoped(seen)
        at_ms = as_of_in(request)
        said = [request.scope["path"], unquote_plus(request.url.query)]
        try:
            if operation.scoped is not None and not at_ms:
                return await operation.scoped(request, client)
            question = operation.question
            if question is None or not hasattr(Client, question.name):
                raise refuse_scoped(operation.name)
            arguments, content = await read_arguments(question, operation, request, self._quick)
            said.append(content.decode("utf-8", "replace"))
            asked = ParsedRequest(client.as_of(at_ms) if at_ms else client, question, arguments)
            if not question.changes_with(arguments):
                return answer_of(await self._thread(asked), self._reads.shown(0))
            forbid_if_read_only(asked.client.read_only)
            key = key_of(request, content)
            do = functools.partial(self._changed, asked)
            return answer_to(await (do() if key is None else self._keys.once(key, do)))
        except MusterError as error:
            if isinstance(error, (Forbidden, TooLarge, Crowded, AuthRefused)):
                raise
            raise await to_thread.run_sync(client.redacted, error, " ".join(said), limiter=self._quick) from None

    async def _done(self, operation: Operation, request: Request) -> Response:
        if operation.changes is True:
            forbid_if_read_only(self._of_nobody.read_only)
        question = operation.question
        assert question is not None
        arguments, content = await read_arguments(question, operation, request, self._quick)
        client = self._of_nobody.acting_as(CALLER.get())
        if question.copied:
            return await self._copied(client, question, arguments, request)
        asked = ParsedRequest(client, question, arguments)
        if not question.changes_with(arguments):
            version = self._reads.shown(client.own_version)
            return answer_of(await self._thread(asked), version)
        forbid_if_read_only(self._of_nobody.read_only)
        do = functools.partial(self._changed, asked)
        key = key_of(request, content)
        return answer_to(await (do() if key is None else self._keys.once(key, do)))

    async def _as_of(self, operation: Operation, request: Request, at_ms: int) -> Response:
        """Any question to a cell as of an earlier time. Raises RefusedError for all else."""
        question = operation.question
        if question is None or not hasattr(Client, question.name):
            raise RefusedError(f"{operation.path} has no answer as of an earlier time", f"Leave out {AS_OF}")
        if operation.changes is True:
            raise refuse_past(at_ms)
        arguments, _ = await read_arguments(question, operation, request, self._quick)
        client = self._of_nobody.acting_as(CALLER.get()).as_of(at_ms)

        def answered() -> bytes:
            return msgspec.json.encode(question.answered_by(client, arguments))

        content = await to_thread.run_sync(answered, limiter=self._slow)
        return answer_of(content, client.version)

    async def _copied(
        self, client: LocalClient, question: ServiceQuestion, arguments: Arguments, request: Request
    ) -> Response:
        given = tuple(arguments.values())
        shown = await self._reads.told(question.name, given, client.own_version, least_of(request))
        if question is QUERY:
            client.note_shown(given[0], shown.content)
        return answer_of(shown.content, shown.version)

    async def _changed(self, asked: ParsedRequest) -> idempotency.StoredResponse:
        content = await self._thread(asked)
        return idempotency.StoredResponse(content, self._loop.engine.version)

    async def _thread(self, asked: ParsedRequest) -> bytes:
        """Asking blocks, and encoding may take a while."""

        def answered() -> bytes:
            return msgspec.json.encode(asked.question.answered_by(asked.client, asked.arguments))

        return await to_thread.run_sync(answered, limiter=self._slow if asked.question.slow else self._quick)


async def read_arguments(
    question: ServiceQuestion, operation: Operation, request: Request, limiter: CapacityLimiter | None = None
) -> tuple[Arguments, bytes]:
    """Arguments of a question, and the body they were read from. Raises SpecError, and TooLarge."""
    query = {each.name: each.read(request.query_params.get(each.name)) for each in operation.query}
    content, given = b"", None
    if operation.takes is not None:
        content = await body(request, question.limit)
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
    """Idempotency key of a request; None without one. Raises SpecError."""
    text = request.headers.get(idempotency.HEADER)
    if text is None:
        return None
    path = f"{request.scope['path']}?{request.scope['query_string'].decode('latin-1')}"
    return idempotency.key_of(text, caller_of(CALLER.get()), request.method, path, content)


def least_of(request: Request) -> int | None:
    """State version that a request asks to see; None where it names none. Raises SpecError."""
    text = request.headers.get(AT_LEAST)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise SpecError(AT_LEAST, f"{text[:40]!a} is not a state version", f"Send the {VERSION} of an answer")
    return int(text)


def as_of_in(request: Request) -> int:
    """Cell time as of which a request asks; 0 where it names none. Raises SpecError."""
    text = request.headers.get(AS_OF)
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text)):
        raise SpecError(AS_OF, f"{text[:40]!a} is not a cell time", "Give Unix milliseconds")
    return int(text)


def caller_of(actor: Actor) -> str:
    """Identity for shares and keys: one for each account and person, and for each part of the cell that a token of
    theirs is for."""
    part = "" if actor.within == WHOLE else f" {actor.within.words()}"
    return f"{actor.account} {actor.subject}{part}"


def kind_of(operation: Operation) -> Kind:
    if operation.path.startswith("/v1/agents/"):
        return "agent"
    if operation.follows:
        return "follow"
    if operation.slow:
        return "slow"
    return "change" if operation.changes else "read"


class VersionWatch:
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

    @property
    def version(self) -> int:
        """The one that readers are shown."""
        return self._version

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
        """Called on the engine's thread, which must not wait: at most one wake-up is under way."""
        self._version = version
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._aio.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._told = False
        self._moved.set()
        self._moved = asyncio.Event()
