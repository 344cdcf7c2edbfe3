"""What Prometheus reads at `/metrics`, and the probes.

`METRICS` declares each metric once: the endpoint, the table of docs/metrics.md, the alerts and the dashboard of
`deploy/prometheus/` are held to it. Names and units are those of Prometheus' conventions. The values of every label
come from a closed list of ours, but for the cell's name; none is a text that a stranger chose.

Figures that only the engine's thread can read are asked for at each scrape, for READ_S at most: while it does not
answer, the last ones are given, and `muster_engine_calls_waiting` grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from anyio import to_thread
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from starlette.requests import Request
from starlette.responses import Response

from console import VERSION as SOFTWARE
from console.server.operations import Operation, same_for_all
from console.service.trace_export import SPANS
from engine.model.durations import BOUNDS_S, DurationHistogram
from engine.model.errors import MusterError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as MetricFamily

    from console.server.load_limits import BackPressure
    from console.service.local_client import LocalClient
    from engine.control import Engine
    from engine.external.mirror_report import MirrorReport
    from engine.loop import EngineLoop
    from runbooks.gate.store import OutboxStanding

READ_S = 1.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class GateReading(NamedTuple):
    """Of the gate's tables, at one time."""

    awaiting: int
    stuck: int
    incidents: int
    outbox: OutboxStanding


@dataclass(frozen=True)
class Readings:
    """What one scrape is made of."""

    loop: EngineLoop
    engine: Engine
    pressure: BackPressure
    client: LocalClient
    mirror: MirrorReport
    measured: Mapping[str, float]
    """The cell's figures of the collector's last look, by `recommender.history.metrics.METRICS`."""
    gate: GateReading | None
    """None: not read yet."""
    serving_s: float
    now_s: float


Value = float | None
"""None: there is no such figure here."""
Reading = Callable[[Readings], "Value | DurationHistogram | Mapping[tuple[str, ...], float]"]


class Metric(NamedTuple):
    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    read: Reading | None = None
    """None: it is counted as requests are answered, or read of the process by Prometheus' own library."""
    labels: tuple[str, ...] = ()


def _measured(name: str, scale: float = 1) -> Reading:
    return lambda r: None if (value := r.measured.get(name)) is None else value / scale


def _lease(r: Readings) -> Value:
    return None if r.engine.lease is None else r.engine.lease.is_held


def _mirrored(read: Callable[[Readings], Value]) -> Reading:
    return lambda r: None if r.mirror.state == "none" else read(r)


def _gated(read: Callable[[GateReading], float]) -> Reading:
    return lambda r: None if r.gate is None else read(r.gate)


def _disagreements(r: Readings) -> Mapping[tuple[str, ...], float]:
    agreement = r.mirror.agreement
    return {} if agreement is None else {("kept",): agreement.kept, ("started",): agreement.started}


def _outbox(r: Readings) -> Mapping[tuple[str, ...], float]:
    return {} if r.gate is None else {("waiting",): r.gate.outbox.waiting, ("failed",): r.gate.outbox.failed}


def _outbox_age(r: Readings) -> Value:
    if r.gate is None:
        return None
    oldest_ms = r.gate.outbox.oldest_ms
    return max(0.0, r.now_s - oldest_ms / 1000) if oldest_ms else 0.0


METRICS: tuple[Metric, ...] = (
    Metric("muster_http_requests_total", "counter", "Requests that were answered.", labels=("operation", "status")),
    Metric("muster_http_request_duration_seconds", "histogram", "Until the last byte of the answer.",
           labels=("operation",)),
    Metric("muster_http_requests_in_progress", "gauge", "Requests under way.",
           lambda r: {(kind,): r.pressure.inside[kind] for kind in r.pressure.most}, ("kind",)),
    Metric("muster_http_turned_away_total", "counter", "Requests refused because there were too many.",
           lambda r: dict(r.pressure.turned_away), ("kind", "whose")),
    Metric("muster_http_followers", "gauge", "Open event streams."),
    Metric("muster_http_stream_bytes_total", "counter", "Bytes sent to event streams."),
    Metric("muster_info", "gauge", "What serves; always 1.",
           lambda r: {(SOFTWARE, r.engine.state.cell): 1}, ("version", "cell")),
    Metric("muster_serving_start_timestamp_seconds", "gauge",
           "When this engine began to serve: it moves at a restart and when a standby takes over.",
           lambda r: r.serving_s),
    Metric("muster_lease_held", "gauge", "Whether this engine holds the lease of a cell in PostgreSQL.", _lease),
    Metric("muster_last_takeover_seconds", "gauge",
           "Without a writer until this engine took over a cell in PostgreSQL; 0: it was no standby.",
           lambda r: None if r.engine.lease is None else r.engine.lease.takeover_ms / 1000),
    Metric("muster_engine_ok", "gauge", "Whether the engine's thread runs.", lambda r: not r.loop.fault),
    Metric("muster_engine_turn_duration_seconds", "histogram",
           "Turns of the engine's thread, without the wait for something to do.", lambda r: r.loop.turns),
    Metric("muster_engine_calls_waiting", "gauge", "Calls that the engine's thread has not come to.",
           lambda r: r.loop.waiting),
    Metric("muster_cell_timestamp_seconds", "gauge", "The cell's clock.", lambda r: r.engine.now_ms / 1000),
    Metric("muster_state_version", "gauge", "Events since the cell began.", lambda r: r.engine.version),
    Metric("muster_shown_version", "gauge", "The version that readers see.", lambda r: r.loop.copies.shown_version()),
    Metric("muster_journal_ok", "gauge", "Whether the last change could be written.",
           lambda r: not r.engine.journal_error),
    Metric("muster_journal_write_duration_seconds", "histogram", "Transactions of the journal.",
           lambda r: r.engine.journal_writes),
    Metric("muster_journal_write_failures_total", "counter", "Transactions that the journal refused.",
           lambda r: r.engine.journal_failures),
    Metric("muster_workloads", "gauge", "Workloads that the cell knows, ended ones too.",
           lambda r: len(r.engine.state.workloads.ids)),
    Metric("muster_workloads_waiting", "gauge", "Workloads that wait and may start; by the minute.",
           _measured("waiting")),
    Metric("muster_workloads_running", "gauge", "Workloads that are placed or run; by the minute.",
           _measured("running")),
    Metric("muster_waiting_p50_seconds", "gauge", "Median wait so far of those that wait and may start.",
           _measured("waiting_p50_s")),
    Metric("muster_waiting_p95_seconds", "gauge", "95th percentile of the same.",
           _measured("waiting_p95_s")),
    Metric("muster_nodes", "gauge", "Nodes that the cell knows.", lambda r: len(r.engine.state.capacity.node_ids)),
    Metric("muster_nodes_down", "gauge", "Nodes that are down; by the minute.", _measured("nodes_down")),
    Metric("muster_gpus", "gauge", "GPUs of all nodes that are ready; by the minute.", _measured("capacity_gpu", 1000)),
    Metric("muster_gpus_used", "gauge", "GPUs held by what is placed or runs; by the minute.",
           _measured("used_gpu", 1000)),
    Metric("muster_mirror_ok", "gauge", "Whether the cluster that another scheduler decides answers.",
           _mirrored(lambda r: not r.client.mirror_trouble())),
    Metric("muster_mirror_age_seconds", "gauge", "Since that cluster was last heard.",
           _mirrored(lambda r: r.now_s - r.mirror.looked_s if r.mirror.looked_s else None)),
    Metric("muster_model_decisions_total", "counter", "Decisions of Kueue that were compared with our model of it.",
           lambda r: None if r.mirror.agreement is None else r.mirror.agreement.compared),
    Metric("muster_model_disagreements_total", "counter",
           "Those that the model would not make: Kueue kept waiting, or started, what it would not.",
           _disagreements, ("kind",)),
    Metric("muster_gate_ok", "gauge", "Whether proposals can be made, voted on and executed.",
           lambda r: not r.client.gate_trouble()),
    Metric("muster_proposals_awaiting", "gauge", "Proposals that wait for votes.", _gated(lambda g: g.awaiting)),
    Metric("muster_plans_stuck", "gauge", "Plans that paused, or whose rollback failed.", _gated(lambda g: g.stuck)),
    Metric("muster_incidents_open", "gauge", "Incidents that are open or claimed.", _gated(lambda g: g.incidents)),
    Metric("muster_outbox_messages", "gauge", "Messages to channels that wait, or were given up.", _outbox, ("state",)),
    Metric("muster_outbox_oldest_seconds", "gauge", "Age of the oldest message that waits; 0: none does.", _outbox_age),
    Metric("muster_audit_ok", "gauge", "Whether checkpoints can be signed and reach their anchors.",
           lambda r: not r.client.gate.audit.error),
    Metric("muster_audit_checkpoint_timestamp_seconds", "gauge", "When the newest checkpoint was made.",
           lambda r: r.client.gate.audit.checkpoint_ms / 1000 or None),
    Metric("muster_audit_anchored_timestamp_seconds", "gauge",
           "When the newest checkpoint was made that reached every anchor, since this engine began to serve.",
           lambda r: r.client.gate.audit.anchored_ms / 1000 or None),
    Metric("muster_trace_spans_total", "counter", "Spans that were sent to the collector, or dropped.",
           lambda r: {(outcome,): count for outcome, count in SPANS.items()}, ("outcome",)),
    Metric("process_cpu_seconds_total", "counter", "CPU time of the engine's process."),
    Metric("process_resident_memory_bytes", "gauge", "Memory of the engine's process, without its copies."),
    Metric("process_virtual_memory_bytes", "gauge", "Address space of the engine's process."),
    Metric("process_start_time_seconds", "gauge", "When the process began; a standby's is before it served."),
    Metric("process_open_fds", "gauge", "Open files of the process."),
    Metric("process_max_fds", "gauge", "Most files that it may open."),
)  # fmt: skip
_HELP = {metric.name: metric.help for metric in METRICS}


class ProbeAnswer(msgspec.Struct, frozen=True):
    """Of a probe. `why` is empty where all is well."""

    ok: bool
    why: str = ""


class Metrics:
    """Counters of answered requests, and the other figures as they are read. Made and used in one event loop."""

    def __init__(self, client: LocalClient, loop: EngineLoop, pressure: BackPressure) -> None:
        self._client = client
        self._loop = loop
        self._pressure = pressure
        self._gate: GateReading | None = None
        self._serving_s = time.time()
        self.stopping = False
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self.registry = CollectorRegistry()
        self._answers = Counter(*_named("muster_http_requests_total"), ("operation", "status"), registry=registry)
        self._seconds = Histogram(
            *_named("muster_http_request_duration_seconds"), ("operation",), buckets=BOUNDS_S, registry=registry
        )
        self.followers = Gauge(*_named("muster_http_followers"), registry=registry)
        self.stream_bytes = Counter(*_named("muster_http_stream_bytes_total"), registry=registry)
        registry.register(self)
        ProcessCollector(registry=registry)

    def answered(self, operation: str, status: int, seconds: float) -> None:
        self._answers.labels(operation, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("GET", "/healthz", "Whether the service is alive", handler=self.alive, gives=ProbeAnswer,
                      open=True),
            Operation("GET", "/readyz", "Whether work may be sent here", handler=self.ready, gives=ProbeAnswer,
                      open=True),
            Operation("GET", "/metrics", "Figures for Prometheus", handler=self.figures,
                      scoped=same_for_all(self.figures), gives=str, media=TEXT),
        )  # fmt: skip

    async def alive(self, request: Request) -> Response:
        return _probed("the engine has ended" if self._loop.fault else "")

    async def ready(self, request: Request) -> Response:
        if self._loop.fault:
            return _probed("the engine has ended")
        if self.stopping:
            return _probed("the service is stopping")
        return _probed("the journal cannot be written" if self._loop.engine.journal_error else "")

    async def figures(self, request: Request) -> Response:
        return Response(await to_thread.run_sync(generate_latest, self.registry), headers={"content-type": TEXT})

    def collect(self) -> Iterator[MetricFamily]:
        """For the registry. Other threads write what is read here; each figure is right by itself."""
        readings = self._readings()
        for metric in METRICS:
            if metric.read is not None and (value := metric.read(readings)) is not None:
                yield _family(metric, value)

    def describe(self) -> Iterable[MetricFamily]:
        """For the registry, when this is registered: no name is taken by another."""
        return ()

    def _readings(self) -> Readings:
        # An engine that stops, is busy, or cannot read its tables leaves the last figures.
        with suppress(MusterError):
            self._gate = self._loop.call(lambda _: self._read_gate(), READ_S)
        client = self._client
        return Readings(
            self._loop, self._loop.engine, self._pressure, client, client.mirror(), client.measured(), self._gate,
            self._serving_s, time.time(),
        )  # fmt: skip

    def _read_gate(self) -> GateReading:
        gate = self._client.gate
        return GateReading(*gate.pending(), gate.outbox.standing())


def _named(name: str) -> tuple[str, str]:
    """As the library wants it, which adds the ending of counters itself."""
    return name.removesuffix("_total"), _HELP[name]


def _family(metric: Metric, value: float | DurationHistogram | Mapping[tuple[str, ...], float]) -> MetricFamily:
    name, help_ = _named(metric.name)
    if isinstance(value, DurationHistogram):
        histogram = HistogramMetricFamily(name, help_)
        histogram.add_metric((), value.cumulative(), value.total_s)
        return histogram
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(name, help_, labels=metric.labels)
    for labels, number in (value if isinstance(value, Mapping) else {(): value}).items():
        family.add_metric(labels, number)
    return family


def _probed(why: str) -> Response:
    content = msgspec.json.encode(ProbeAnswer(ok=not why, why=why))
    return Response(content, status_code=503 if why else 200, media_type="application/json")


def table() -> str:
    """The table of docs/metrics.md."""
    rows = ["| metric | kind | labels | what it is |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help.removesuffix('.')} |")
    return "\n".join(rows) + "\n"
