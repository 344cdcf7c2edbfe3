"""Operations served over HTTP, one row each, and what all routes share: reading bodies, encoding answers and errors.

The routes and their OpenAPI description (`console.server.application`) are made of the same rows. Most rows are
questions of `console.client.protocol` (`asked_by`), answered on a worker thread in the caller's name. An operation
that needs no thread, or answers in its own way, brings a `handler`.

Every answer names a state version, also a refusal, a probe, and input that is no HTTP. An answer about the cell
names its own (`console.server.request_handler`); `Versioned` adds to all others the version that readers are shown
now, a number in memory.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from console.client.questions import Method, SentParameter, ServiceQuestion, decoder, refuse_read_only
from console.server.request_log import REQUEST
from engine.model.errors import BusyError, MusterError, RefusedError, SpecError, UnreachableError, misfit
from runbooks.plans.identity import AuthRefused, Unauthenticated

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from console.service.scoped_client import ScopedClient
    from engine.control import Engine
    from engine.loop import EngineLoop


Handler = Callable[[Request], Awaitable[Response]]
ScopedHandler = Callable[[Request, "ScopedClient"], Awaitable[Response]]


@dataclass(frozen=True)
class Number:
    """A number of the query string, within bounds. `whole`: an integer."""

    name: str
    default: float
    least: float
    most: float
    says: str
    whole: bool = True

    def read(self, text: str | None) -> float:
        """Raises SpecError naming it."""
        if text is None:
            return self.default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most or (self.whole and not value.is_integer()):
            kind = "a whole number" if self.whole else "a number"
            raise SpecError(self.name, f"{text[:40]!a} is not {kind} from {self.least:g} to {self.most:g}", "")
        return int(text) if self.whole and text.strip().isdigit() else int(value) if self.whole else value


@dataclass(frozen=True)
class TextParameter:
    """A text of the query string; `many`: several, with commas between."""

    name: str
    says: str
    default: str = ""
    many: bool = False

    def read(self, text: str | None) -> Any:
        found = self.default if text is None else text
        return tuple(part for part in found.split(",") if part) if self.many else found


Parameter = Number | TextParameter


@dataclass(frozen=True)
class Operation:
    """One operation of the service."""

    method: Method
    path: str
    says: str
    """A line for the description: what it is, or what it does."""
    handler: Handler | None = None
    """Answers in a way of its own."""
    scoped: ScopedHandler | None = None
    """Answers whoever sees part of the cell, in a way of its own. Without it a question is asked of their
    `ScopedClient`, and what is no question is refused."""
    gives: Any = None
    """The type of a 200."""
    takes: Any = None
    """The type of the body; None: there is none."""
    query: tuple[Parameter, ...] = ()
    changes: bool | Callable[..., bool] = False
    """Whether it changes something: refused by an engine that is read-only, and may carry an Idempotency-Key."""
    slow: bool = False
    """It waits or computes for longer than a screen would: its own share of threads."""
    follows: bool = False
    """It goes on until the caller has enough, or waits for news without a thread."""
    open: bool = False
    """Nobody needs to say who they are: it tells nothing but whether the service is there."""
    media: str = "application/json"
    """Of a 200."""
    question: ServiceQuestion | None = None
    """What it asks of the client, where it is a question."""

    @property
    def name(self) -> str:
        """Name for the description and the metrics: `get_workloads_id_estimate`."""
        plain = self.path.removeprefix("/v1").replace("{", "").replace(":path", "").replace("}", "")
        words = [word for word in plain.replace("-", "_").split("/") if word]
        return "_".join((self.method.lower(), *words))


def same_for_all(handler: Handler) -> ScopedHandler:
    """For answers in which there is nothing but load."""
    return lambda request, _: handler(request)


def asked_by(
    question: ServiceQuestion, handler: Handler | None = None, scoped: ScopedHandler | None = None
) -> Operation:
    """The row of a question."""
    return Operation(
        question.method,
        question.path,
        question.says,
        handler=handler,
        scoped=scoped,
        gives=question.gives,
        takes=question.takes,
        query=tuple(_parameter(part) for part in question.others) if question.method != "POST" else (),
        changes=question.keyed and question.changes,
        slow=question.slow,
        follows=question.follows,
        question=question,
    )


def _parameter(part: SentParameter) -> Parameter:
    kind, meta = get_args(part.kind)
    assert isinstance(meta, msgspec.Meta)
    says = meta.description or ""
    if kind is str or get_origin(kind) is tuple:
        return TextParameter(part.name, says, many=kind is not str)
    default = 0 if part.default is inspect.Parameter.empty else part.default
    assert meta.ge is not None
    assert meta.le is not None
    return Number(part.name, default, meta.ge, meta.le, says, whole=kind is int)


T = TypeVar("T")
MAX_BODY_BYTES = 64 * 2**20
LONGEST_WAIT_S = 60.0
"""For what a long poll waits for."""
PATIENCE_S = 30.0
"""For what the engine is asked for."""

STATUS = {
    "invalid": 400,
    "not_found": 404,
    "refused": 409,
    "journal": 503,
    "journal_corrupt": 503,
    "journal_busy": 503,
    "busy": 503,
    "unreachable": 502,
}
"""HTTP status of an error code; anything else is 500."""

VERSION = "muster-version"
"""Header: up to which state version, at least, an answer shows what happened."""
_VERSION_NAME = VERSION.encode()
_NO_HTTP = msgspec.json.encode(
    {
        "code": "invalid",
        "problem": "the request is not HTTP/1.1",
        "remedy": "Send complete requests, one after the other",
    }
)
LOG = logging.getLogger("muster.server")


class Forbidden(RefusedError):
    """Refused whatever the state of the cell: answered with 403 instead of 409."""


def forbid_if_read_only(read_only: bool) -> None:
    """Raises Forbidden for a change of an engine that is read-only."""
    if read_only:
        raise Forbidden(refuse_read_only().problem, "This engine was started with --readonly")


class TooLarge(SpecError):
    """A body above MAX_BODY_BYTES: answered with 413."""


class Crowded(BusyError):
    """Too much at once: answered with 503, or 429 where it is the caller's own, and when to come again."""

    def __init__(self, problem: str, remedy: str, retry_s: int, *, by_caller: bool = False) -> None:
        super().__init__(problem, remedy)
        self.retry_s = retry_s
        self.by_caller = by_caller


def defect() -> MusterError:
    """The error of a request that met a fault of ours."""
    of = f" of request {REQUEST.get()}" if REQUEST.get() else ""
    return MusterError("the engine failed on this request", f"This is a bug in Muster; its log has the details{of}")


async def answer(ask: Callable[[], object]) -> Response:
    """Ask on a worker thread, because asking blocks, and encode the answer there too."""
    try:
        content = await run_in_threadpool(lambda: msgspec.json.encode(ask()))
    except MusterError as error:
        return refusal(error)
    except Exception:
        LOG.exception("a request met a defect")
        return refusal(defect())
    return Response(content, media_type="application/json")


async def on_engine(loop: EngineLoop, ask: Callable[[Engine], T]) -> T:
    """Wait for the engine's thread without occupying one of ours. Raises the errors of `ask`, and UnreachableError."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.wrap_future(loop.post(ask))
    except TimeoutError:
        raise UnreachableError(
            f"the engine did not answer within {PATIENCE_S:g} s", "It may be overloaded; try again"
        ) from None


async def body(request: Request, most: int = 0) -> bytes:
    """The whole body. Raises TooLarge as soon as more than `most` bytes, or else MAX_BODY_BYTES, are announced or
    have arrived."""
    most = most or MAX_BODY_BYTES
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise _too_large(most)
        chunks.append(chunk)
    return b"".join(chunks)


def decoded(content: bytes, kind: Any) -> Any:
    """The body as `kind`. Raises SpecError naming the field or the byte."""
    try:
        return decoder(kind).decode(content)
    except msgspec.ValidationError as error:
        wrong = misfit(str(error))
        raise SpecError(wrong.path.lstrip(".") or "body", wrong.problem, wrong.remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError("body", f"is not JSON ({error})", "Send one JSON value") from None
    except RecursionError:
        raise SpecError("body", "is nested too deeply", "Flatten it") from None


def refusal(error: MusterError) -> Response:
    """An error as an answer."""
    told = {"code": error.code, "problem": error.problem, "remedy": error.remedy}
    content = msgspec.json.encode({**told, "request": REQUEST.get()} if REQUEST.get() else told)
    answer = Response(content, status_code=_status(error), media_type="application/json")
    if isinstance(error, Crowded):
        answer.headers["retry-after"] = str(error.retry_s)
    if isinstance(error, Unauthenticated):
        answer.headers["www-authenticate"] = 'Bearer realm="muster"'
    return answer


def _status(error: MusterError) -> int:
    match error:
        case Crowded():
            return 429 if error.by_caller else 503
        case Unauthenticated():
            return 401
        case Forbidden() | AuthRefused():
            return 403
        case TooLarge():
            return 413
        case _:
            return STATUS.get(error.code, 500)


def _too_large(most: int) -> TooLarge:
    told = f"{most // 2**20} MiB" if most >= 2**20 else f"{most // 2**10} KiB"
    return TooLarge("body", f"is larger than {told}", "Split it")


class Versioned:
    """The whole service. `shown` gives the version that readers are shown, on any thread."""

    def __init__(self, app: ASGIApp, shown: Callable[[], int]) -> None:
        self._app = app
        self._shown = shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def saying(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message.setdefault("headers", [])
                if not any(name == _VERSION_NAME for name, _ in headers):
                    headers.append((_VERSION_NAME, b"%d" % self._shown()))
            await send(message)

        await self._app(scope, receive, saying)

    def no_http(self) -> bytes:
        """Complete answer to input that cannot be read as a request."""
        head = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        head += f"content-length: {len(_NO_HTTP)}\r\n{VERSION}: {self._shown()}\r\n\r\n"
        return head.encode() + _NO_HTTP


class SaysVersion:
    """Answers of the HTTP parser itself. Mixed into one of uvicorn's HTTP protocols, before it in the order of
    bases."""

    app: Any
    transport: Any

    def send_400_response(self, msg: str) -> None:
        self.transport.write(self.app.no_http())
        self.transport.close()
