"""Spans on their way to a collector of OpenTelemetry: OTLP over HTTP, as JSON.

https://opentelemetry.io/docs/specs/otlp/#otlphttp. Written here with httpx, which is here anyway: OpenTelemetry's own
SDK and exporter would bring nine more packages, one of them compiled, for what are some hundred lines.

Whoever ends a span never waits: spans go into a bounded queue, and what does not fit, or what the collector does not
take, is dropped and counted. A span holds names of ours, ids and kinds of errors; no text of a request or an answer.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import msgspec

from console import VERSION
from engine.model import spans
from engine.model.spans import TraceSpan

MAX_WAITING = 4_096
"""Spans."""
MAX_AT_ONCE = 512
EVERY_S = 1.0
TIMEOUT_S = 5.0
LONGEST_VALUE = 256
SPANS: Counter[str] = Counter(sent=0, dropped=0)
"""What became of spans since the process began."""
LOG = logging.getLogger("muster.traces")
_KINDS: dict[spans.Kind, int] = {"internal": 1, "server": 2, "client": 3}


class TraceExporter:
    """Sends the spans of this process. `url` is that of the collector's `/v1/traces`."""

    def __init__(self, url: str, cell: str) -> None:
        self._url = url
        self._resource = {
            "attributes": _attributes(
                {"service.name": "muster", "service.version": VERSION, "muster.cell": cell, "process.pid": os.getpid()}
            )
        }
        self._waiting: deque[TraceSpan] = deque()
        self._trouble = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        spans.listen(self.take)
        self._thread.start()

    def stop(self) -> None:
        """Send what waits, for TIMEOUT_S at most."""
        spans.listen(None)
        self._stopping.set()
        self._thread.join(TIMEOUT_S)

    def take(self, span: TraceSpan) -> None:
        """On any thread."""
        if len(self._waiting) >= MAX_WAITING:
            SPANS["dropped"] += 1
        else:
            self._waiting.append(span)

    def _run(self) -> None:
        import httpx

        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client:
            while not self._stopping.wait(EVERY_S):
                self._send_all(client)
            self._send_all(client)

    def _send_all(self, client: Any) -> None:
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_AT_ONCE))]
            trouble = self._sent(client, batch)
            SPANS["dropped" if trouble else "sent"] += len(batch)
            if trouble and trouble != self._trouble:
                LOG.warning("traces are dropped: %s", trouble)
            self._trouble = trouble

    def _sent(self, client: Any, batch: Sequence[TraceSpan]) -> str:
        """Why the collector did not take them; empty: it did."""
        import httpx

        content = msgspec.json.encode(document(self._resource, batch))
        try:
            # Read no further than its head: nothing of what a collector says is needed.
            with client.stream("POST", self._url, content=content, headers={"Content-Type": "application/json"}) as got:
                status = got.status_code
        except (httpx.HTTPError, OSError) as error:
            return type(error).__name__
        return "" if 200 <= status < 300 else f"the collector answered {status}"


def document(resource: dict[str, Any], batch: Sequence[TraceSpan]) -> dict[str, Any]:
    """An ExportTraceServiceRequest."""
    scope = {"scope": {"name": "muster", "version": VERSION}, "spans": [_encoded(span) for span in batch]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


def _encoded(span: TraceSpan) -> dict[str, Any]:
    # In OTLP's JSON ids are hex, and numbers of 64 bits are texts.
    told: dict[str, Any] = {
        "traceId": span.context.trace_id, "spanId": span.context.span_id, "name": span.name[:LONGEST_VALUE],
        "kind": _KINDS[span.kind], "startTimeUnixNano": str(span.begun_ns), "endTimeUnixNano": str(span.ended_ns),
        "flags": 1, "attributes": _attributes(span.attributes),
        "status": {"code": 2, "message": span.error} if span.error else {},
    }  # fmt: skip
    if span.parent_id:
        told["parentSpanId"] = span.parent_id
    if span.links:
        told["links"] = [{"traceId": link.trace_id, "spanId": link.span_id} for link in span.links]
    return told


def _attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: str | int | float | bool) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"stringValue": value[:LONGEST_VALUE]}
