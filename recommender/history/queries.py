"""What is asked of the telemetry history and brought into it, and the answers. Loads nothing heavy."""

from __future__ import annotations

import msgspec

from recommender.history.metrics import RunRecord, SeriesKey

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


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What there is, and the window that was asked for."""

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
    """So many were left out, and why."""

    reason: str
    count: int


class ImportReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken in."""

    taken: int
    refused: tuple[Refused, ...] = ()
