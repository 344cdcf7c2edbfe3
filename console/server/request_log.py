"""The engine's log, and the outermost part of the service: every request has an id, is counted, traced and logged.

The log is standard error, one line for each thing, as text or as JSON (`log_format`). Lines that are written while a
request is answered name it, on any thread that works for it (`engine.loop` keeps the caller's context). Everything
written to standard error passes `LogStream`, so that no text of a stranger begins a line of its own.

A request's id is what the caller sends as `X-Request-Id`, if that is short and plain, or a new one. The answer has it
in the same header, and a refusal in `request`. Logged are requests that failed (5xx) or took long; as JSON all but
probes, streams and reports of agents.
"""

from __future__ import annotations

import logging
import re
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

from console.text.guarded_streams import inert, inert_json
from engine.model import spans

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from console.server.metrics import Metrics
    from console.server.operations import Operation

HEADER = "x-request-id"
LONGEST_ID = 64
SLOW_S = 1.0
"""From which on a request is logged as text too, unless it waits for news."""
NO_OPERATION = "none"
REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the request that is being answered; empty where there is none."""
LOG = logging.getLogger("muster.request")
LogFormat = Literal["text", "json"]
_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=+/-]*")


def request_id(given: str) -> str:
    """The caller's own id where it is one that every log can hold; else a new one."""
    return given if len(given) <= LONGEST_ID and _SANE_ID.fullmatch(given) else secrets.token_hex(8)


class RequestLog:
    """Outermost middleware: it sees every answer, also refusals of unauthenticated requests."""

    def __init__(self, app: ASGIApp, metrics: Metrics, record_percent: int = 0) -> None:
        """`record_percent`: of the requests that come without a trace, how many begin one."""
        self._app = app
        self._metrics = metrics
        self._percent = record_percent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        id_ = request_id(_header(scope, HEADER))
        begun_s, status = time.perf_counter(), 499

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", []).append((HEADER.encode(), id_.encode()))
            await send(message)

        REQUEST.set(id_)
        with self._span(scope) as span:
            try:
                await self._app(scope, receive, noted)
            finally:
                operation = scope.get("state", {}).get("operation")
                took_s = time.perf_counter() - begun_s
                self._metrics.answered(operation.name if operation else NO_OPERATION, status, took_s)
                if isinstance(span, spans.TraceSpan):
                    _describe(span, scope, operation, status, id_)
                _log(scope, operation, status, took_s)

    def _span(self, scope: Scope) -> Any:
        if not spans.listened():
            return spans.beginning("", None, record=False)
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == spans.TRACEPARENT.encode()]
        record = secrets.randbelow(100) < self._percent
        return spans.beginning("request", spans.read_traceparent(given), record=record)


def _header(scope: Scope, name: str) -> str:
    wanted = name.encode()
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == wanted), "")


def _describe(span: spans.TraceSpan, scope: Scope, operation: Operation | None, status: int, id_: str) -> None:
    """By OpenTelemetry's conventions for HTTP. Neither the path nor the query: those are the caller's text."""
    route = operation.path if operation else NO_OPERATION
    span.name = f"{scope['method']} {route}"
    span.set(
        http_request_method=scope["method"], http_route=route, http_response_status__code=status, muster_request=id_
    )  # fmt: skip
    if status >= 500:
        span.error = str(status)


def _log(scope: Scope, operation: Operation | None, status: int, took_s: float) -> None:
    if operation is not None and (operation.follows or operation.open or operation.path.startswith("/v1/agents/")):
        worth = logging.WARNING if status >= 500 and not operation.open else 0
    else:
        worth = logging.WARNING if status >= 500 or took_s >= SLOW_S else logging.INFO
    if not worth or not LOG.isEnabledFor(worth):
        return
    route = operation.path if operation else NO_OPERATION
    LOG.log(
        worth, "%s %s answered %d in %.3f s", scope["method"], route, status, took_s,
        extra={"fields": {"method": scope["method"], "route": route, "status": status, "seconds": round(took_s, 6)}},
    )  # fmt: skip


class LogStream:
    """Standard error of an engine. What is printed becomes lines of the log; `record` takes what is logged."""

    def __init__(self, within: IO[str], format_: LogFormat) -> None:
        self.within = within
        self._json = format_ == "json"
        self._begun = threading.local()
        """`text`: what a thread has written of a line that is not complete yet."""

    def write(self, text: str) -> int:
        *lines, rest = (getattr(self._begun, "text", "") + text).split("\n")
        self._begun.text = rest
        for line in lines:
            self._line(line, "info", "muster", {})
        return len(text)

    def record(self, record: logging.LogRecord, message: str, error: str) -> None:
        fields = dict(getattr(record, "fields", {}))
        if self._json and error:
            fields["error"] = error
            error = ""
        # What follows in the same entry is set in, so that no text in it is taken for an entry of its own.
        whole = message if self._json else "\n    ".join(f"{message}\n{error}".rstrip("\n").splitlines())
        self._line(whole, record.levelname.lower(), record.name, fields)

    def _line(self, text: str, level: str, logger: str, fields: dict[str, Any]) -> None:
        request, context = REQUEST.get(), spans.CURRENT.get()
        if not self._json:
            mark = f" [request {request}]" if request else ""
            self.within.write(f"{inert(text)}{mark}\n")
        else:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            entry = {"time": now, "level": level, "logger": logger, "message": text}
            entry |= ({"request": request} if request else {}) | fields
            if context is not None:
                entry["trace"] = context.trace_id
            self.within.write(inert_json(msgspec.json.encode(entry).decode()) + "\n")
        self.within.flush()

    def flush(self) -> None:
        self.within.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.within, name)


class _Handler(logging.Handler):
    def __init__(self, stream: LogStream) -> None:
        super().__init__()
        self._stream = stream
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            error = self._formatter.formatException(record.exc_info) if record.exc_info else ""
            self._stream.record(record, record.getMessage(), error)
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to_stderr(format_: LogFormat) -> Iterator[None]:
    """While inside, standard error is the log in this form, and what is logged by `logging` goes there."""
    before, root, ours = sys.stderr, logging.getLogger(), logging.getLogger("muster")
    stream = LogStream(before, format_)
    handler, level = _Handler(stream), LOG.level
    sys.stderr = stream  # type: ignore[assignment]
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    LOG.setLevel(logging.INFO if format_ == "json" else logging.WARNING)
    try:
        yield
    finally:
        LOG.setLevel(level)
        ours.setLevel(logging.NOTSET)
        root.removeHandler(handler)
        sys.stderr = before
