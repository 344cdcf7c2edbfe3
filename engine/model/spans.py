"""Spans: what was done for a request and how long each part took, as OpenTelemetry has them.

A span is made only while somebody listens (`listen`), and only for a request whose trace is recorded: elsewhere `span`
costs a look at two variables. The current span is a context variable, so threads that run in a copy of the caller's
context (`engine.loop`) go on with it. What is done later on another thread, such as a change that is carried to Slurm,
goes on with the span that was remembered for it; after a restart it begins no trace.

The text form is that of W3C Trace Context (https://www.w3.org/TR/trace-context/), without `tracestate`.
"""

from __future__ import annotations

import functools
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Literal, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Kind = Literal["internal", "server", "client"]
TRACEPARENT = "traceparent"
"""Header of HTTP that carries a span from one process to the next."""
MAX_REMEMBERED = 1_000
"""Things that are done later; the oldest is forgotten."""
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class SpanContext(NamedTuple):
    """What a span passes on. Ids are lower-case hex."""

    trace_id: str
    span_id: str
    recorded: bool
    """False: the caller, or chance, left this trace out. It is passed on all the same."""


class TraceSpan:
    """One part of the work for a request. A context manager; `set` adds what is known only inside."""

    __slots__ = (
        "_token",
        "attributes",
        "begun_ns",
        "context",
        "ended_ns",
        "error",
        "kind",
        "links",
        "name",
        "parent_id",
    )

    def __init__(
        self,
        name: str,
        context: SpanContext,
        parent_id: str,
        kind: Kind = "internal",
        links: Sequence[SpanContext] = (),
    ) -> None:
        self.name = name
        self.context = context
        self.parent_id = parent_id
        """Empty: it begins the trace."""
        self.kind = kind
        self.links = tuple(links)
        """Other requests that it was done for."""
        self.attributes: dict[str, str | int | float | bool] = {}
        self.error = ""
        self.begun_ns = time.time_ns()
        self.ended_ns = 0

    def set(self, **attributes: str | int | float | bool) -> None:
        """An underscore stands for a dot, and two for one underscore: `http_status__code` is `http.status_code`."""
        for name, value in attributes.items():
            self.attributes[".".join(part.replace(".", "_") for part in name.replace("__", ".").split("_"))] = value

    def __enter__(self) -> TraceSpan:
        self._token = CURRENT.set(self.context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        CURRENT.reset(self._token)
        if error is not None:
            # The kind alone: texts of errors name what people keep to themselves.
            self.error = type(error).__name__
        self.ended_ns = time.time_ns()
        if _sink is not None:
            _sink(self)


class _NoSpan:
    """Where nothing is recorded."""

    def set(self, **attributes: str | int | float | bool) -> None:
        pass

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *_: object) -> None:
        pass


CURRENT: ContextVar[SpanContext | None] = ContextVar("span", default=None)
NO_SPAN = _NoSpan()
_sink: Callable[[TraceSpan], None] | None = None
_remembered: OrderedDict[str, SpanContext] = OrderedDict()


def listen(sink: Callable[[TraceSpan], None] | None) -> None:
    """Have every span that ends given to `sink`, on the thread it ended on; None: make none. For the whole process."""
    global _sink
    _sink = sink


def listened() -> bool:
    return _sink is not None


def span(
    name: str, kind: Kind = "internal", links: Sequence[SpanContext] = (), **attributes: str | int | float | bool
) -> TraceSpan | _NoSpan:
    """A span below the current one; one that records nothing where there is none."""
    if _sink is None or (parent := CURRENT.get()) is None or not parent.recorded:
        return NO_SPAN
    made = TraceSpan(name, SpanContext(parent.trace_id, secrets.token_hex(8), True), parent.span_id, kind, links)
    made.set(**attributes)
    return made


def traced(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: each call is a span."""

    def of(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name):
                return function(*args, **kwargs)

        return within

    return of


def beginning(name: str, parent: SpanContext | None, *, record: bool) -> TraceSpan | _NoSpan:
    """The first span of this process for a request. `record`: whether a trace that begins here is recorded; one that
    began elsewhere is where it was there."""
    if _sink is None:
        return NO_SPAN
    if parent is None:
        parent = SpanContext(secrets.token_hex(16), "", record)
    if not parent.recorded:
        CURRENT.set(parent if parent.span_id else None)
        return NO_SPAN
    return TraceSpan(name, SpanContext(parent.trace_id, secrets.token_hex(8), True), parent.span_id, "server")


@contextmanager
def going_on(context: SpanContext | None) -> Iterator[None]:
    """Make that the current span; None: there is none."""
    token = CURRENT.set(context)
    try:
        yield
    finally:
        CURRENT.reset(token)


def remember(key: str) -> None:
    """Keep the current span for what is done later, if it is recorded."""
    context = CURRENT.get()
    if _sink is None or context is None or not context.recorded:
        return
    _remembered[key] = context
    if len(_remembered) > MAX_REMEMBERED:
        _remembered.popitem(last=False)


def remembered(key: str) -> SpanContext | None:
    return _remembered.get(key)


def read_traceparent(given: Sequence[str]) -> SpanContext | None:
    """The span of a request's headers of that name; None where there is none, several, or what is no such text."""
    if len(given) != 1 or (found := _TRACEPARENT.fullmatch(given[0])) is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if more and version == "00":
        return None
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & 1))


def traceparent() -> dict[str, str]:
    """The header for a request that we make; nothing where no trace is under way."""
    context = CURRENT.get()
    if context is None or not context.span_id:
        return {}
    return {TRACEPARENT: f"00-{context.trace_id}-{context.span_id}-{int(context.recorded):02x}"}
