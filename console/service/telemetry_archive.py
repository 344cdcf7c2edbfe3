"""The history of the live cell, answered and added to. Lives beside the gate in the engine's process."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import TYPE_CHECKING

from engine.model.errors import SpecError
from recommender.history.metrics import CELL, METRICS, OFS
from recommender.history.queries import (
    MAX_RUNS,
    MAX_RUNS_TOLD,
    MAX_SAMPLES,
    MAX_SERIES,
    History,
    HistoryPoint,
    HistoryRequest,
    ImportReceipt,
    Refused,
    RunBatch,
    RunCount,
    SampleBatch,
)

if TYPE_CHECKING:
    from engine.loop import EngineLoop
    from recommender.history.sample_buckets import SeriesPoints
    from recommender.history.telemetry import Telemetry

MAX_SOURCE = 200


class Archive:
    """Answers for the cell of one loop. May be asked by several threads, but not by the engine's own.

    Without a `telemetry` it keeps one in memory, made when it is first needed.
    """

    def __init__(self, loop: EngineLoop, telemetry: Telemetry | None = None) -> None:
        self._loop = loop
        self._telemetry = telemetry

    @property
    def telemetry(self) -> Telemetry:
        if self._telemetry is None:
            from recommender.history.telemetry import Telemetry, clock_of

            self._telemetry = Telemetry(clock=clock_of(lambda: self._loop.engine.now_ms))
        return self._telemetry

    @property
    def error(self) -> str:
        """Why nothing is kept at present; empty while all is well."""
        return "" if self._telemetry is None else self._telemetry.records.error

    def history(self, request: HistoryRequest) -> History:
        """Raises SpecError for an unknown metric or a window that makes no sense, RecordsError while the disk fails."""
        check(request)
        now_ms, kept = self._loop.engine.now_ms, self.telemetry
        of = request.of or (CELL if request.metric else "")
        found = [key for key in kept.keys(request.metric, of) if request.subject in ("", key.subject)]
        own = not found or found[0].source == CELL
        until_ms = request.until_ms or (now_ms if own else wall_ms()) + 1
        since_ms = max(until_ms - request.last_ms, 0) if request.last_ms else min(request.since_ms, until_ms)
        points: tuple[HistoryPoint, ...] = ()
        if request.metric and (request.subject or of == CELL):
            points = told(kept.series(request.metric, of, request.subject, since_ms, until_ms, request.step_ms))
        runs = kept.runs(since_ms, until_ms, request.runs) if request.runs else []
        return History(
            now_ms=now_ms,
            since_ms=since_ms,
            until_ms=until_ms,
            series=tuple(found[:MAX_SERIES]),
            series_count=len(found),
            stale_count=sum(key.stale for key in found),
            points=points,
            runs=tuple(runs),
            run_counts=tuple(RunCount(source, count) for source, count in kept.run_counts().items()),
            keep_ms=kept.keep.tiers_ms,
            keep_runs=kept.keep.runs,
            error=kept.records.error,
            damaged=kept.damaged,
        )

    def import_samples(self, batch: SampleBatch) -> ImportReceipt:
        """Raises SpecError when the batch is malformed as a whole, RecordsError while the disk fails."""
        check_source(batch.source)
        if not 1000 <= batch.step_ms <= 86_400_000:
            raise SpecError("step_ms", f"{batch.step_ms} is out of range", "Give a second to a day")
        for i, row in enumerate(batch.series):
            if len(row.at_ms) != len(row.values):
                raise SpecError(f"series[{i}]", "has not as many times as values", "Give one time for each value")
        if (count := sum(len(row.at_ms) for row in batch.series)) > MAX_SAMPLES:
            raise SpecError("series", f"{count:,} samples, at most {MAX_SAMPLES:,} at once", "Split it")
        refused: Counter[str] = Counter()
        rows = ((row.metric, row.of, row.subject, row.at_ms, row.values) for row in batch.series)
        taken = self.telemetry.add_rows(rows, source=batch.source, step_ms=batch.step_ms, refused=refused)
        self.telemetry.tidy()
        return _receipt(taken, refused)

    def import_runs(self, batch: RunBatch) -> ImportReceipt:
        """Raises SpecError when the batch is malformed as a whole, RecordsError while the disk fails."""
        if len(batch.runs) > MAX_RUNS:
            raise SpecError("runs", f"{len(batch.runs):,}, at most {MAX_RUNS:,} at once", "Split it")
        for source in {run.source for run in batch.runs}:
            check_source(source)
        refused: Counter[str] = Counter()
        taken = self.telemetry.add_runs(batch.runs, refused)
        self.telemetry.tidy()
        return _receipt(taken, refused)


def wall_ms() -> int:
    """Present time of this machine, milliseconds: what comes from elsewhere goes by it."""
    return time.time_ns() // 1_000_000


def check(request: HistoryRequest) -> None:
    """Raises SpecError naming what is wrong with it."""
    if request.metric and request.metric not in METRICS:
        import difflib

        near = difflib.get_close_matches(request.metric, METRICS, 1)
        remedy = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(METRICS)}"
        raise SpecError("metric", f"there is no '{request.metric[:40]}'", remedy)
    if request.of and request.of not in OFS:
        raise SpecError("of", f"'{request.of[:40]}' is no kind of subject", f"Use one of {', '.join(OFS)}")
    if request.metric and (request.of or CELL) not in METRICS[request.metric].of:
        kinds = ", ".join(METRICS[request.metric].of)
        raise SpecError("of", f"{request.metric} is not measured of a {request.of or CELL}", f"It is of: {kinds}")
    if request.step_ms < 1 or min(request.since_ms, request.last_ms) < 0 or 0 < request.until_ms < request.since_ms:
        raise SpecError("step_ms" if request.step_ms < 1 else "since_ms", "makes no window", "Begin before the end")
    if max(request.since_ms, request.until_ms, request.last_ms, request.step_ms) >= 2**53:
        raise SpecError("until_ms", "is at no possible time", "Give Unix milliseconds")
    if not 0 <= request.runs <= MAX_RUNS_TOLD:
        raise SpecError("runs", f"{request.runs} is out of range", f"At most {MAX_RUNS_TOLD} are told")


def check_source(source: str) -> None:
    """Raises SpecError unless it may be the name of a source from elsewhere."""
    if not source or source == CELL or len(source) > MAX_SOURCE or not source.isprintable():
        raise SpecError("source", f"{source[:40]!a} cannot be one", f"Name where it comes from; '{CELL}' is the engine")


def told(points: SeriesPoints) -> tuple[HistoryPoint, ...]:
    """The points as they go over the wire."""
    columns = (points.mean, points.least, points.most, points.total, points.last)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        HistoryPoint(at_ms, count, *(None if math.isnan(value) else value for value in row))
        for at_ms, count, row in zip(points.at_ms.tolist(), points.count.tolist(), values, strict=True)
    )


def _receipt(taken: int, refused: Counter[str]) -> ImportReceipt:
    return ImportReceipt(taken=taken, refused=tuple(Refused(why, count) for why, count in sorted(refused.items())))
