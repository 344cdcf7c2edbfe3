"""What the service says of itself: whether it is alive, whether it is of use, and figures for Prometheus.

`/healthz` answers as long as the event loop does and the engine's thread has not ended. `/readyz` says whether work may
be sent here: the journal can be written, and the server is not about to stop. Neither needs a name, and neither tells
more than that. `/metrics` is text in the format of Prometheus.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from starlette.requests import Request
from starlette.responses import Response

from console.server.operations import Operation
from console.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from console.server.back_pressure import BackPressure
    from engine.loop import EngineLoop

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Standing(msgspec.Struct, frozen=True):
    """Of a probe. `why` is empty where all is well."""

    ok: bool
    why: str = ""


class Metrics:
    """Counts what is answered. Made and used in one event loop."""

    def __init__(self, loop: EngineLoop, pressure: BackPressure) -> None:
        self._loop = loop
        self.stopping = False
        disable_created_metrics()
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
        registry.register(_Looked(loop, pressure))

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


class Counting:
    """Outermost of what a request passes: sees every answer, also those of nobody who was let in."""

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


class _Looked:
    """What is looked up when somebody asks. Reads what other threads write, each figure by itself."""

    def __init__(self, loop: EngineLoop, pressure: BackPressure) -> None:
        self._loop = loop
        self._pressure = pressure

    def collect(self) -> Iterator[Metric]:
        loop, engine, pressure = self._loop, self._loop.engine, self._pressure
        told = GaugeMetricFamily("muster_info", "What serves", labels=("version", "cell"))
        told.add_metric((VERSION, engine.state.cell), 1)
        yield told
        yield GaugeMetricFamily("muster_state_version", "Events since the cell began", value=engine.version)
        yield GaugeMetricFamily("muster_shown_version", "The version that readers see", loop.copies.shown_version())
        yield GaugeMetricFamily("muster_cell_time_seconds", "The cell's clock", value=engine.now_ms / 1000)
        yield GaugeMetricFamily("muster_workloads", "Workloads the cell knows", value=len(engine.state.workloads.ids))
        yield GaugeMetricFamily("muster_nodes", "Nodes the cell knows", value=len(engine.state.capacity.node_ids))
        yield GaugeMetricFamily("muster_engine_calls_waiting", "Calls for the engine's thread", value=loop.waiting)
        yield GaugeMetricFamily("muster_journal_ok", "1 while it can be written", value=not engine.journal_error)
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
