"""The metrics of telemetry, their retention, and the questions to the history with their answers.

The metrics are a closed list, so that what is kept is bounded and everybody means the same by a name. Loads nothing
heavy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

import msgspec

from engine.model.errors import SpecError

Of = Literal["cell", "pool", "queue", "tenant", "gpu_model", "node", "workload", "kind"]
"""What a sample is of. A kind is work alike: "tenant/stem of its name"."""
OFS: tuple[str, ...] = get_args(Of)
CELL = "cell"
"""Source of what the cell's own engine measured. Others are such as "prometheus:HOST:PORT" or "swf:FILE"."""

AHEAD_MS = 60_000
"""What happened may be so much ahead of its source's clock."""
MAX_SUBJECT = 300
"""Characters of a subject or an id."""
IDLE_GPU_PERCENT = 5.0
"""Use of a GPU below which it is idle."""
GPU_SLOT_MS = 300_000
"""Use of GPUs is kept, and judged, in slots of so long."""


class TelemetryMetric(NamedTuple):
    """The description of one metric."""

    unit: str
    of: tuple[str, ...]
    meaning: str
    counts: bool = False
    """Whether a value counts what happened since the one before it: such values are added up, others averaged."""
    sparse: bool = False
    """Whether it is measured only when something happens: then it is not for its silence that a series is stale."""


_BROAD = ("cell", "pool", "queue", "tenant", "gpu_model")
_FLOW = ("cell", "queue")
METRICS: dict[str, TelemetryMetric] = {
    "demand_gpu": TelemetryMetric("milli", _BROAD, "GPU asked for by what runs and what waits and may start"),
    "demand_cpu": TelemetryMetric("milli", _BROAD, "CPU asked for by what runs and what waits and may start"),
    "used_gpu": TelemetryMetric("milli", ("cell", "pool", "queue", "tenant"), "GPU held by what is placed or runs"),
    "used_cpu": TelemetryMetric("milli", ("cell", "pool", "queue", "tenant"), "CPU held by what is placed or runs"),
    "capacity_gpu": TelemetryMetric("milli", ("cell", "pool"), "GPU of all nodes"),
    "capacity_cpu": TelemetryMetric("milli", ("cell", "pool"), "CPU of all nodes"),
    "nodes": TelemetryMetric("nodes", ("cell", "pool"), "nodes there are"),
    "nodes_down": TelemetryMetric("nodes", ("cell", "pool"), "nodes that are down"),
    "demand_nodes": TelemetryMetric("nodes", ("pool",), "nodes that what runs and waits would fill"),
    "quota_gpu": TelemetryMetric("milli", ("queue",), "GPU quota of the queue and of all below it"),
    "quota_cpu": TelemetryMetric("milli", ("queue",), "CPU quota of the queue and of all below it"),
    "waiting": TelemetryMetric("workloads", _FLOW, "workloads that wait and may start"),
    "running": TelemetryMetric("workloads", _FLOW, "workloads that are placed or run"),
    "wait_p50_s": TelemetryMetric(
        "s", (*_FLOW, "pool"), "median wait of those that first started in the interval", sparse=True
    ),
    "wait_p95_s": TelemetryMetric(
        "s", (*_FLOW, "pool"), "95th percentile of the wait of those that first started in the interval", sparse=True
    ),
    "waiting_p50_s": TelemetryMetric("s", _FLOW, "median wait so far of those that wait and may start", sparse=True),
    "waiting_p95_s": TelemetryMetric(
        "s", _FLOW, "95th percentile of the wait so far of those that wait and may start", sparse=True
    ),
    "started": TelemetryMetric("count", _FLOW, "workloads that started", True),
    "finished": TelemetryMetric("count", _FLOW, "workloads that finished", True),
    "failed": TelemetryMetric("count", _FLOW, "workloads that failed for good", True),
    "evicted": TelemetryMetric("count", (*_FLOW, "pool"), "workloads that were preempted", True),
    "interrupted": TelemetryMetric("count", ("cell", "pool"), "nodes that their provider took back", True),
    "price": TelemetryMetric("micro-USD/h", ("pool",), "price of a node for an hour"),
    "cost_rate": TelemetryMetric(
        "micro-USD/h", ("cell", "tenant", "queue", "pool"), "what is spent: nodes of cell and pool, work else"
    ),
    "use_cpu": TelemetryMetric("milli", ("kind", "workload"), "most CPU that one task used", sparse=True),
    "use_memory_mib": TelemetryMetric("MiB", ("kind", "workload"), "most memory that one task used", sparse=True),
    "gpu_util": TelemetryMetric("%", ("node", "workload"), "use of the GPUs, their mean"),
    "gpu_sm_active": TelemetryMetric("%", ("node", "workload"), "share of the GPUs' multiprocessors with work, mean"),
    "gpu_memory_used_mib": TelemetryMetric("MiB", ("node", "workload"), "GPU memory in use, of all devices"),
    "gpu_memory_util": TelemetryMetric("%", ("node",), "share of GPU memory in use"),
    "gpu_temp_c": TelemetryMetric("°C", ("node",), "temperature of the hottest GPU"),
    "gpu_power_w": TelemetryMetric("W", ("node", "workload"), "power drawn by the GPUs together"),
    "idle_gpu": TelemetryMetric("milli", ("cell", "tenant"), "GPU that is held and has done nothing for 30 minutes"),
    "ecc_errors": TelemetryMetric("count", ("node",), "double-bit ECC errors", True),
    "xid_errors": TelemetryMetric("count", ("node",), "driver errors (XID)", True),
    "throttle": TelemetryMetric("share", ("node",), "share of GPUs whose clocks are held down by heat or power"),
    "node_load": TelemetryMetric("load", ("node",), "load average over one minute"),
    "node_cpu_util": TelemetryMetric("%", ("node",), "share of CPU time not idle"),
    "node_iowait": TelemetryMetric("%", ("node",), "share of CPU time spent waiting for disks"),
    "node_memory_util": TelemetryMetric("%", ("node",), "share of memory not available"),
}
SPARSE = frozenset(name for name, metric in METRICS.items() if metric.sparse)


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value at one time."""

    metric: str
    of: str
    subject: str
    """Name of what it is of; empty for the cell."""
    at_ms: int
    """Unix milliseconds, UTC; cell time for what the cell measured."""
    value: float


class SeriesKey(msgspec.Struct, frozen=True, kw_only=True):
    """A series there is."""

    metric: str
    of: str
    subject: str
    source: str
    """Who measured it last: "cell", "prometheus:HOST:PORT"..."""
    step_ms: int
    """How often its source measures it."""
    first_ms: int
    last_ms: int
    stale: bool
    """Whether its last value is older than three steps, or, if it is sparse, the last of all that its source measured.
    """


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that has ended, here or elsewhere. Requests are of all tasks together; 0 is "not known"."""

    id: str
    source: str = CELL
    tenant: str = ""
    user: str = ""
    team: str = ""
    name: str = ""
    queue: str = ""
    tasks: int = 1
    gpu_milli: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    requested_ms: int = 0
    """Run time that was asked for or estimated by its owner; 0 if none was."""
    submitted_ms: int
    started_ms: int
    """Of its last attempt; -1 if it never started."""
    ended_ms: int
    outcome: str
    """finished, failed, cancelled..."""
    attempts: int = 1
    pool: str = ""
    gpu_model: str = ""
    spot: bool = False
    cost_microusd: int = 0
    peak_cpu_milli: int = 0
    """Most that one task used."""
    peak_memory_mib: int = 0


RUN_TEXT = tuple(name for name, kind in RunRecord.__annotations__.items() if kind == "str")
RUN_NUMBERS = tuple(name for name, kind in RunRecord.__annotations__.items() if kind == "int")

_DIGITS = re.compile(r"[0-9]+")


def kind_of(tenant: str, name: str) -> str:
    """The kind that work of this name is of: "tenant/stem", the stem being the name without its numbers; empty when
    nothing is left of the name, which then says nothing of what runs."""
    stem = _DIGITS.sub("", name).strip("-_./: ")
    return f"{tenant}/{stem}"[:MAX_SUBJECT] if stem else ""


def flaw(metric: str, of: str, subject: str) -> str:
    """Why there can be no such series; empty if there can."""
    known = METRICS.get(metric)
    if known is None:
        return "of an unknown metric"
    if of not in known.of:
        return f"{metric} is not measured of a {of[:20]}"
    if (of == CELL) != (not subject) or len(subject) > MAX_SUBJECT:
        return "without the name of what it is of, or with too long a one"
    return ""


def run_flaw(run: RunRecord, now_ms: int | None) -> str:
    """Return the flaw of a run, where its source's clock shows `now_ms`; empty if nothing is."""
    if not run.id or len(run.id) > MAX_SUBJECT or not run.source:
        return "without an id or a source"
    if not 0 <= run.submitted_ms <= run.ended_ms < 2**53 or (run.started_ms >= 0 and run.started_ms > run.ended_ms):
        return "ends before it begins"
    if now_ms is not None and run.ended_ms > now_ms + AHEAD_MS:
        return "of the future"
    numbers = [getattr(run, name) for name in RUN_NUMBERS]
    if min(numbers) < -1 or max(numbers) >= 2**62:
        return "with a number that is too small or too large"
    if max(len(getattr(run, name)) for name in RUN_TEXT) > MAX_SUBJECT:
        return "with a text that is too long"
    return ""


MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class RetentionTier(NamedTuple):
    """The resolution of chunks of one age."""

    step_ms: int
    span_ms: int
    """Of one chunk; a multiple of the next tier's step."""


TIERS = (
    RetentionTier(MINUTE_MS, 6 * HOUR_MS),
    RetentionTier(5 * MINUTE_MS, 2 * DAY_MS),
    RetentionTier(HOUR_MS, 32 * DAY_MS),
)


@dataclass(frozen=True)
class Retention:
    """The retention of measurements and ended work. Raises SpecError when that makes no sense."""

    minutes_ms: int = 2 * DAY_MS
    """As measured, at most one sample a minute."""
    fives_ms: int = 14 * DAY_MS
    """In buckets of five minutes."""
    hours_ms: int = 400 * DAY_MS
    """In buckets of an hour."""
    runs: int = 200_000
    """Ended workloads; those that ended first go first."""
    series: int = 50_000
    """Different series; more are refused."""

    def __post_init__(self) -> None:
        if not HOUR_MS <= self.minutes_ms <= self.fives_ms <= self.hours_ms <= 100 * 365 * DAY_MS:
            raise SpecError(
                "keep_minutes, keep_fives, keep_hours",
                "must be at least an hour, each at least as long as the one before, at most a century",
                "The defaults are 2d, 14d and 400d",
            )
        if not (0 <= self.runs <= 10_000_000 and 0 <= self.series <= 1_000_000):
            raise SpecError("keep_runs, keep_series", "are out of range", "At most 10,000,000 runs, 1,000,000 series")

    @property
    def tiers_ms(self) -> tuple[int, int, int]:
        return self.minutes_ms, self.fives_ms, self.hours_ms


MAX_SAMPLES = 200_000
"""Samples of one batch."""
MAX_RUNS = 5_000
"""Runs of one batch."""
MAX_SERIES = 2_000
"""Series that one answer lists."""
MAX_RUNS_TOLD = 1_000


class HistoryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A window of one series; without a metric, what there is."""

    metric: str = ""
    of: str = ""
    """Kind of subject; with a metric, empty means "cell"."""
    subject: str = ""
    since_ms: int = 0
    until_ms: int = 0
    """0: now, by the clock of who measured the series."""
    last_ms: int = 0
    """Instead of `since_ms`: so long before the end."""
    step_ms: int = 60_000
    runs: int = 0
    """So many of the ended workloads of the window are told, the newest."""


class HistoryPoint(msgspec.Struct, frozen=True, array_like=True):
    """One step of a series. None where nothing was measured."""

    at_ms: int
    count: int
    mean: float | None
    least: float | None
    most: float | None
    total: float | None
    last: float | None


class RunCount(msgspec.Struct, frozen=True):
    source: str
    count: int


class OutsideNames(NamedTuple):
    """How another scheduler names the work of the cell."""

    pods: Mapping[tuple[str, str], str] = MappingProxyType({})
    """(namespace, pod) -> workload."""
    jobs: Mapping[str, str] = MappingProxyType({})
    """Id of a job -> workload."""


class FollowReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the following of a Prometheus does."""

    source: str
    step_ms: int
    since_ms: int
    """Begin of what was followed; before it an import may bring more."""
    until_ms: int
    """Everything before has been taken."""
    devices: int
    """GPUs, and instances of them, that it tells of."""
    joined: int
    """Of those, so many are held by known work."""
    not_joined: int
    """And so many are held by work of which nobody tells which has them."""
    strangers: tuple[str, ...] = ()
    """Some targets that are no nodes of the cell."""
    strangers_count: int = 0
    refused: int = 0
    """Samples of nodes that were left out since the start."""
    trouble: str = ""
    """Why nothing new is taken at present; empty while all is well."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The series that there are, and the window that was asked for."""

    now_ms: int
    """Cell time."""
    since_ms: int
    until_ms: int
    series: tuple[SeriesKey, ...]
    """Those that were asked for; at most MAX_SERIES."""
    series_count: int
    """All of those."""
    stale_count: int
    points: tuple[HistoryPoint, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    """Oldest first."""
    run_counts: tuple[RunCount, ...] = ()
    """All runs that are kept, by source."""
    keep_ms: tuple[int, int, int]
    """How long samples are kept by the minute, by five minutes and by the hour."""
    keep_runs: int
    error: str = ""
    """Why nothing is kept at present; empty while all is well."""
    followed: FollowReport | None = None
    """None where no Prometheus is followed."""
    damaged: int = 0
    """Pieces found damaged since the engine started: they read as gaps."""


class SampleRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Samples of one series: values at times, which need not be in order."""

    metric: str
    of: str
    subject: str
    at_ms: tuple[int, ...]
    values: tuple[float, ...]


class SampleBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Samples from elsewhere; at most MAX_SAMPLES."""

    source: str
    """Such as "prometheus:HOST:PORT"."""
    step_ms: int = 60_000
    """How often the source measures."""
    series: tuple[SampleRow, ...]


class RunBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ended workloads from elsewhere; at most MAX_RUNS."""

    runs: tuple[RunRecord, ...]


class Refused(msgspec.Struct, frozen=True):
    """A count of samples that were left out, with the reason."""

    reason: str
    count: int


class ImportReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of an import."""

    taken: int
    refused: tuple[Refused, ...] = ()
