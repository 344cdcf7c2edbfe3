"""The history of measurements and of ended work, beside the cell's journal: bounded, and coarser as it ages.

New samples go into a log, one row for each batch. From there they are sorted into chunks: one series over six hours, as
it was measured but at most one sample a minute. Chunks older than `Retention.minutes_ms` become buckets of five
minutes, later of an hour; what is older than `Retention.hours_ms` goes. Summing up conserves counts and sums, happens
once for each chunk in one transaction, and does a bounded amount of work each time.

One time of one series has one value: the one written last. Where the time has been summed up already, later samples of
it are refused, so bringing in the same history twice gives the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, delete, func, insert, select

from engine.journal.side_tables import Records
from engine.model.errors import SpecError
from recommender.history import chunks as bk
from recommender.history.chunks import (
    CHUNK,
    DROP_RUN,
    FOLDED_AT_ONCE,
    LOG,
    NEWEST_FIRST,
    NOTE,
    OLDEST_RUNS,
    READ_CHUNKS,
    RUN,
    SERIES,
    TABLES,
    TELL_SPAN,
    SampleBuckets,
    SeriesChunks,
    SeriesPoints,
    replace_note,
    replace_runs,
)
from recommender.history.metrics import (
    AHEAD_MS,
    CELL,
    MINUTE_MS,
    RUN_NUMBERS,
    RUN_TEXT,
    SPARSE,
    TIERS,
    Retention,
    RunRecord,
    Sample,
    SeriesKey,
    flaw,
    run_flaw,
)

MAX_POINTS = 100_000
"""Steps of one answer."""
STALE_STEPS = 3
NEVER_MS = 2**62
LOG_ROWS, LOG_SAMPLES = 60, 100_000
"""The log is sorted into chunks when it has so many."""
ROWS_AT_ONCE = 500
"""Small rows of one transaction: a few milliseconds of the engine's thread."""


_LOG_IDS = select(LOG.c.id).order_by(LOG.c.id)
_Key = tuple[str, str, str]
Row = tuple[str, str, str, Sequence[int], Sequence[float]]
"""(metric, of, subject, times, values)"""
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class _Series:
    """What is known of a series in memory."""

    id: int
    source: str
    step_ms: int
    first_ms: int
    last_ms: int
    summed_ms: int
    """Up to here chunks of it have been summed up; before it a sample may come too late."""


class Telemetry:
    """The history of measurements and ended work. It may be used by several threads.

    `clock` tells a source's present time; without it nothing is refused as being of the future, and nothing is stale.
    Writing raises RecordsError while the disk fails.
    """

    def __init__(
        self,
        records: Records | None = None,
        keep: Retention | None = None,
        clock: Callable[[str], int] | None = None,
    ) -> None:
        self.records = records or Records(None)
        self.keep = keep or Retention()
        self._chunks = SeriesChunks(self.records)
        self._damaged_log = 0
        self._clock = clock
        self._series: dict[_Key, _Series] = {}
        self._by_id: dict[int, _Series] = {}
        self._tail: dict[int, tuple[bk.Times, bk.Times, bk.Values]] = {}
        """Rows of the log that were read."""
        self._log_rows = self._log_samples = self._next_log = 0
        self._log_first_ms = {True: NEVER_MS, False: NEVER_MS}
        """Time of the oldest sample in the log, of those the cell measured itself and of the others."""
        self._is_open = False
        self._lock = threading.RLock()
        """Held by who changes something. Readers do not take it."""

    @property
    def damaged(self) -> int:
        """Pieces found damaged since the start; they read as gaps."""
        return self._damaged_log + self._chunks.damaged

    # -- measurements -------------------------------------------------------------------------------------------------

    def add(
        self,
        samples: Iterable[Sample],
        *,
        source: str = CELL,
        step_ms: int = MINUTE_MS,
        refused: Counter[str] | None = None,
        note: tuple[str, float] | None = None,
    ) -> int:
        """Keep them; returns how many were taken. `step_ms` is how often the source measures. What is malformed, of
        the future, too old, or of a time that has been summed up is left out and counted in `refused` by its reason.
        `note` is noted with them, or not at all."""
        rows: dict[_Key, tuple[list[int], list[float]]] = {}
        for sample in samples:
            times, values = rows.setdefault((sample.metric, sample.of, sample.subject), ([], []))
            times.append(sample.at_ms)
            values.append(sample.value)
        each = ((*key, *columns) for key, columns in rows.items())
        return self.add_rows(each, source=source, step_ms=step_ms, refused=refused, note=note)

    def add_rows(
        self,
        rows: Iterable[Row],
        *,
        source: str = CELL,
        step_ms: int = MINUTE_MS,
        refused: Counter[str] | None = None,
        note: tuple[str, float] | None = None,
    ) -> int:
        """Add many samples of few series, as `add` does."""
        reasons: Counter[str] = Counter() if refused is None else refused
        with self._lock:
            self._open()
            fresh: dict[_Key, _Series] = {}
            times: list[int] = []
            values: list[float] = []
            named: list[tuple[_Series, int]] = []
            """Series, and how many samples of it."""
            for metric, of, subject, at_ms, value in rows:
                series = self._series.get((metric, of, subject)) or fresh.get((metric, of, subject))
                why = self._row_flaw(series, (metric, of, subject), source, len(fresh))
                if why:
                    reasons[why] += len(at_ms)
                    continue
                if series is None:
                    number = self._next_series + len(fresh)
                    series = fresh[metric, of, subject] = _Series(number, source, step_ms, NEVER_MS, 0, 0)
                times += at_ms
                values += value
                named.append((series, len(at_ms)))
            ids, moments, numbers = self._sound(named, times, values, source, reasons)
            if not len(ids):
                if note is not None:
                    self.set_note(*note)
                return 0
            self._log(ids, moments, numbers, fresh, source, step_ms, note)
            if self._log_rows >= LOG_ROWS or self._log_samples >= LOG_SAMPLES:
                self._sort_log()
            return len(ids)

    def add_hours(self, rows: Iterable[Row]) -> None:
        """Write whole hours of series that there are already, as old measurements are kept: summed up. For a past that
        was made rather than measured, all of it at once; hours that are there are replaced."""
        tier = len(TIERS) - 1
        step_ms, span_ms = TIERS[tier].step_ms, TIERS[tier].span_ms
        chunks: list[dict[str, Any]] = []
        with self._lock:
            self._open()
            for metric, of, subject, times, values in rows:
                series = self._series[metric, of, subject]
                samples = bk.of_samples(np.array(times, np.int64), np.array(values))
                starts = samples.at_ms // span_ms * span_ms
                for start_ms in np.unique(starts).tolist():
                    packed = bk.pack_buckets(samples.where(starts == start_ms), start_ms, step_ms)
                    chunks.append(bk.chunk_row(tier, series.id, start_ms, packed))
                series.first_ms = min(series.first_ms, *times)
                series.summed_ms = max(series.summed_ms, max(times) + step_ms)
            marks = [{"number": n, "a": series.summed_ms} for n, series in self._by_id.items()]
            for at in range(0, len(chunks), ROWS_AT_ONCE):
                part = chunks[at : at + ROWS_AT_ONCE]
                self.records.write(lambda connection, part=part: bk.replace_chunks(connection, part))  # type: ignore[misc]
            self.records.write(lambda connection: connection.execute(bk.MARK_SUMMED, marks))
            self._tell_spans(sorted(self._by_id))

    def _row_flaw(self, series: _Series | None, key: _Key, source: str, fresh: int) -> str:
        """Why nothing of a series can be taken; empty if something may."""
        if series is None:
            full = len(self._series) + fresh >= self.keep.series
            return flaw(*key) or (f"more than {self.keep.series:,} series (keep_series)" if full else "")
        return "measured by the cell itself" if series.source == CELL != source else ""

    def _sound(
        self,
        named: list[tuple[_Series, int]],
        at_ms: list[int],
        value: list[float],
        source: str,
        reasons: Counter[str],
    ) -> tuple[bk.Times, bk.Times, bk.Values]:
        """(series, time, value) of the samples that can be taken; the others are counted by their reason."""
        counts = [count for _, count in named]
        ids = np.repeat(np.array([series.id for series, _ in named], np.int64), counts)
        summed = np.repeat(np.array([series.summed_ms for series, _ in named], np.int64), counts)
        times, values, now_ms = _floats(at_ms), _floats(value), self._now(source)
        faults = [
            ("at no possible time", ~((times >= 0) & (times < 2**53))),
            ("not a finite number", ~np.isfinite(values)),
        ]
        if now_ms is not None:
            faults.append(("of the future", times > now_ms + AHEAD_MS))
            faults.append(("older than is kept (keep_hours)", times < now_ms - self.keep.hours_ms))
        good = np.ones(len(times), np.bool_)
        for reason, bad in faults:
            _leave_out(reason, bad, good, reasons)
        late = np.flatnonzero(good & (times < summed))
        gone = np.zeros(len(times), np.bool_)
        for number in np.unique(ids[late]).tolist():
            mine = late[ids[late] == number]
            gone[mine] = self._chunks.summed_up(number, times[mine].astype(np.int64))
        _leave_out("of a time that has been summed up", gone, good, reasons)
        return ids[good], times[good].astype(np.int64), values[good]

    def series(self, metric: str, of: str, subject: str, since_ms: int, until_ms: int, step_ms: int) -> SeriesPoints:
        """Return a series before `until_ms`, in steps from the one that contains `since_ms`. Of samples that are summed
        up, only buckets that ended by `until_ms` are there. Raises SpecError when that is more than MAX_POINTS."""
        if step_ms < 1 or until_ms < since_ms:
            raise SpecError("step" if step_ms < 1 else "until", "is before the begin or less than 1 ms", "")
        start_ms = since_ms // step_ms * step_ms
        steps = -(-(until_ms - start_ms) // step_ms)
        if steps > MAX_POINTS:
            raise SpecError("step", f"{steps:,} steps, at most {MAX_POINTS:,} are told", "Ask for longer steps")
        self._open()
        known = self._series.get((metric, of, subject))
        found = bk.joined([]) if known is None else self._read(known.id, start_ms, until_ms)
        return bk.points(found, start_ms, steps, step_ms)

    def keys(self, metric: str = "", of: str = "") -> list[SeriesKey]:
        """The series there are, of this metric and of this kind of thing, or of all; in order of their names."""
        self._open()
        every = list(self._series.items())
        heard: dict[str, int] = {}
        for _, series in every:
            heard[series.source] = max(series.last_ms, heard.get(series.source, 0))
        found = [
            SeriesKey(
                metric=key[0],
                of=key[1],
                subject=key[2],
                source=series.source,
                step_ms=series.step_ms,
                first_ms=series.first_ms,
                last_ms=series.last_ms,
                stale=self._is_stale(series, heard[series.source] if key[0] in SPARSE else series.last_ms),
            )
            for key, series in every
            if metric in ("", key[0]) and of in ("", key[1])
        ]
        return sorted(found, key=lambda key: (key.metric, key.of, key.subject))

    # -- ended work ---------------------------------------------------------------------------------------------------

    def add_runs(self, runs: Iterable[RunRecord], refused: Counter[str] | None = None) -> int:
        """Keep them; returns how many were taken. One that is known by source and id is replaced. What ends before it
        begins, or in the future, is left out and counted in `refused`."""
        reasons: Counter[str] = Counter() if refused is None else refused
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for run in runs:
            why = run_flaw(run, self._now(run.source))
            if why:
                reasons[why] += 1
            else:
                rows[run.source, run.id] = {name: getattr(run, name) for name in (*RUN_TEXT, *RUN_NUMBERS, "spot")}
        with self._lock:
            self._open()
            chosen = list(rows.values())
            for at in range(0, len(chosen), ROWS_AT_ONCE):
                part = chosen[at : at + ROWS_AT_ONCE]
                self.records.write(lambda connection, part=part: replace_runs(connection, part))  # type: ignore[misc]
        return len(chosen)

    def runs(self, since_ms: int, until_ms: int, limit: int, source: str = "") -> list[RunRecord]:
        """The newest `limit` that ended in [since, until), of one source or of all; the oldest first."""
        self._open()
        wanted = [RUN.c.ended_ms >= since_ms, RUN.c.ended_ms < until_ms]
        if source:
            wanted.append(RUN.c.source == source)
        newest = select(RUN).where(*wanted).order_by(*NEWEST_FIRST).limit(max(limit, 0))
        with self.records.reading() as connection:
            rows = connection.execute(newest).mappings().all()
        return [RunRecord(**row) for row in reversed(rows)]

    def run_counts(self) -> dict[str, int]:
        """Runs that are kept, by source."""
        self._open()
        with self.records.reading() as connection:
            counted = select(RUN.c.source, func.count()).group_by(RUN.c.source).order_by(RUN.c.source)
            return dict(connection.execute(counted).all())

    # -- notes: where a reader of something has got to ----------------------------------------------------------------

    def note(self, name: str) -> float | None:
        """The number that was noted under this name."""
        self._open()
        with self.records.reading() as connection:
            value: float | None = connection.execute(select(NOTE.c.value).where(NOTE.c.name == name)).scalar()
        return value

    def set_note(self, name: str, value: float) -> None:
        """Note a number under a name, durably."""

        with self._lock:
            self._open()
            self.records.write(lambda connection: replace_note(connection, name, value))

    # -- ageing -------------------------------------------------------------------------------------------------------

    def tidy(self, now_ms: int | None = None) -> bool:
        """Sum up what is old enough and drop what is too old: a bounded part of it. Returns whether more is left to do.
        `now_ms` is for all sources; without it each goes by its clock."""
        with self._lock:
            self._open()
            more = False
            for own in (True, False):
                at_ms = self._now(CELL if own else "") if now_ms is None else now_ms
                if at_ms is not None:
                    if self._log_first_ms[own] <= at_ms - self.keep.minutes_ms:
                        self._sort_log()
                    for tier, keep_ms in enumerate(self.keep.tiers_ms):
                        more |= self._age(tier, at_ms - keep_ms, own)
                    self._forget_series(at_ms - self.keep.hours_ms, own)
            more |= self._drop_runs()
            self.records.checkpoint()
            return more

    def flush(self) -> None:
        """Sort the whole log into chunks now."""
        with self._lock:
            self._open()
            while self._log_rows:
                self._sort_log()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _now(self, source: str) -> int | None:
        return None if self._clock is None else self._clock(source)

    def _is_stale(self, series: _Series, heard_ms: int) -> bool:
        now_ms = self._now(series.source)
        return now_ms is not None and heard_ms < now_ms - STALE_STEPS * series.step_ms

    def _open(self) -> None:
        """Read what there is, at the first use: a disk that fails then must not keep the engine from starting."""
        if self._is_open:
            return
        with self._lock:
            if not self._is_open:
                self._read_all()

    def _read_all(self) -> None:
        self.records.create(TABLES)
        with self.records.reading() as connection:
            series = connection.execute(select(SERIES)).all()
            logged = connection.execute(select(LOG).order_by(LOG.c.id)).all()
        self._series = {
            (row.metric, row.of_kind, row.subject): _Series(
                row.id, row.source, row.step_ms, row.first_ms, row.last_ms, row.summed_ms
            )
            for row in series
        }
        by_id = self._by_id = {known.id: known for known in self._series.values()}
        self._next_series = max(by_id, default=0) + 1
        for row in logged:
            for number, at_ms in zip(*(column.tolist() for column in self._logged(row.body)[:2]), strict=True):
                if (known := by_id.get(number)) is not None:
                    known.first_ms, known.last_ms = min(known.first_ms, at_ms), max(known.last_ms, at_ms)
        self._log_rows, self._log_samples = len(logged), sum(row.samples for row in logged)
        self._log_first_ms = dict.fromkeys((True, False), 0 if logged else NEVER_MS)
        self._next_log = logged[-1].id + 1 if logged else 1
        self._is_open = True

    def _log(
        self,
        ids: bk.Times,
        times: bk.Times,
        values: bk.Values,
        fresh: dict[_Key, _Series],
        source: str,
        step_ms: int,
        note: tuple[str, float] | None,
    ) -> None:
        """Write samples into the log, with the series that are new, and only then know of them."""
        numbers, place = np.unique(ids, return_inverse=True)
        first, last = np.full(len(numbers), NEVER_MS), np.zeros(len(numbers), np.int64)
        np.minimum.at(first, place, times)
        np.maximum.at(last, place, times)
        spans = {n: (a, b) for n, a, b in zip(numbers.tolist(), first.tolist(), last.tolist(), strict=True)}
        fresh = {key: series for key, series in fresh.items() if series.id in spans}
        for series in fresh.values():
            series.first_ms, series.last_ms = spans[series.id]
        row = {"id": self._next_log, "samples": len(ids), "body": bk.pack_log(ids, times, values)}
        new = [
            {"id": s.id, "metric": key[0], "of_kind": key[1], "subject": key[2], "source": s.source,
             "step_ms": s.step_ms, "first_ms": s.first_ms, "last_ms": s.last_ms, "summed_ms": s.summed_ms}
            for key, s in fresh.items()
        ]  # fmt: skip

        def logged(connection: Connection) -> None:
            if new:
                connection.execute(insert(SERIES), new)
            connection.execute(insert(LOG), row)
            if note is not None:
                replace_note(connection, *note)

        self.records.write(logged)
        self._series |= fresh
        self._by_id.update((series.id, series) for series in fresh.values())
        self._next_series = max(self._next_series, *(series.id + 1 for series in fresh.values()), 0)
        for number, (first_ms, last_ms) in spans.items():
            series = self._by_id[number]
            series.first_ms, series.last_ms = min(series.first_ms, first_ms), max(series.last_ms, last_ms)
            series.source, series.step_ms = source, step_ms
        self._next_log += 1
        self._log_rows += 1
        self._log_samples += len(ids)
        own = source == CELL
        self._log_first_ms[own] = min(self._log_first_ms[own], int(first.min()))

    def _logged(self, body: bytes) -> tuple[bk.Times, bk.Times, bk.Values]:
        try:
            return bk.unpack_log(body)
        except ValueError:
            self._damaged_log += 1
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)

    def _log_row(self, connection: Connection, row: int) -> tuple[bk.Times, bk.Times, bk.Values]:
        """(series, time, value) of a row of the log, in order of series. Rows do not change: each is decoded once."""
        found = self._tail.get(row)
        if found is None:
            ids, times, values = self._logged(
                connection.execute(select(LOG.c.body).where(LOG.c.id == row)).scalar_one()
            )
            order = np.argsort(ids, kind="stable")
            found = self._tail[row] = ids[order], times[order], values[order]
        return found

    def _read(self, number: int, since_ms: int, until_ms: int) -> SampleBuckets:
        """Return what there is of a series, of all ages, before `until_ms`."""
        since = {f"since{tier}": since_ms - kind.span_ms for tier, kind in enumerate(TIERS)}
        with self.records.reading() as connection:
            stored = connection.execute(READ_CHUNKS, {"number": number, "until": until_ms, **since}).all()
            logged = [self._log_row(connection, row) for row in connection.execute(_LOG_IDS).scalars().all()]
        raw, coarse, tail = [], [], []
        for tier, start_ms, body in stored:
            found = self._chunks.unpacked(tier, start_ms, body)
            if tier == 0:
                raw.append(found)
            else:
                coarse.append(found.where(found.at_ms + TIERS[tier].step_ms <= until_ms))
        for row in logged:
            begin, end = row[0].searchsorted((number, number + 1))
            if begin < end:
                tail.append((row[0][begin:end], row[1][begin:end], row[2][begin:end]))
        if tail:
            raw.append(bk.of_samples(*bk.together(tail)[1:]))
        samples = bk.joined(raw)
        # Before the latest of each minute is chosen: what is still to come must not hide what was known.
        samples = bk.latest_of_minutes(samples.where(samples.at_ms < until_ms))
        return bk.joined([samples, *coarse])

    def _sort_log(self) -> None:
        """Sort the oldest rows of the log into chunks. May be done again after a crash half-way: the same samples at
        the same times give the same chunks."""
        with self.records.reading() as connection:
            rows = connection.execute(select(LOG).order_by(LOG.c.id).limit(LOG_ROWS)).all()
        ids, times, values = bk.together([self._logged(row.body) for row in rows])
        starts = times // TIERS[0].span_ms * TIERS[0].span_ms
        order = np.lexsort((starts, ids))
        ids, times, values, starts = ids[order], times[order], values[order], starts[order]
        bounds = np.flatnonzero(np.diff(ids, append=-1) | np.diff(starts, append=-1)) + 1
        groups = list(zip([0, *bounds[:-1].tolist()], bounds.tolist(), strict=True))
        self._chunks.merge(
            [
                ((int(ids[begin]), int(starts[begin])), bk.of_samples(times[begin:end], values[begin:end]))
                for begin, end in groups
            ]
        )
        self._forget_log(rows[-1].id, sorted(set(ids.tolist())))
        self.records.checkpoint()
        self._log_rows -= len(rows)
        self._log_samples -= sum(row.samples for row in rows)
        self._log_first_ms = dict.fromkeys((True, False), 0 if self._log_rows else NEVER_MS)

    def _forget_log(self, last_id: int, numbers: list[int]) -> None:
        """The log up to this row is in chunks; what is known of its series is written down."""
        self._tell_spans(numbers)
        self.records.write(lambda connection: connection.execute(delete(LOG).where(LOG.c.id <= last_id)))
        for row in [row for row in list(self._tail) if row <= last_id]:
            self._tail.pop(row, None)

    def _tell_spans(self, numbers: list[int]) -> None:
        rows = [
            {"number": n, "a": s.first_ms, "b": s.last_ms, "c": s.source, "d": s.step_ms}
            for n in numbers
            if (s := self._by_id.get(n)) is not None
        ]
        for at in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[at : at + ROWS_AT_ONCE]
            self.records.write(lambda connection, part=part: connection.execute(TELL_SPAN, part))  # type: ignore[misc]

    def _age(self, tier: int, before_ms: int, own: bool) -> bool:
        """Sum up, or drop, chunks of the tier that ended before. Returns whether there were as many as one time does.
        `own`: those the cell measured itself, else the others: each goes by its own clock."""
        old = self._chunks.ended(tier, before_ms, own)
        if tier + 1 == len(TIERS):
            self._chunks.drop(tier, [(number, start) for number, start, _ in old])
        else:
            for marks in self._chunks.fold(tier, old, {n: self._by_id[n].summed_ms for n, _, _ in old}):
                for number, end_ms in marks.items():
                    self._by_id[number].summed_ms = end_ms
        return len(old) == FOLDED_AT_ONCE

    def _forget_series(self, before_ms: int, own: bool) -> None:
        """Series that nothing is left of."""
        old = {
            key: known
            for key, known in self._series.items()
            if known.last_ms < before_ms - TIERS[-1].span_ms and (known.source == CELL) == own
        }
        if not old:
            return
        numbers = [known.id for known in old.values()][:ROWS_AT_ONCE]
        with self.records.reading() as connection:
            used = set(
                connection.execute(select(CHUNK.c.series).where(CHUNK.c.series.in_(numbers)).distinct()).scalars()
            )
        gone = [number for number in numbers if number not in used]
        if gone and not self._log_rows:
            self.records.write(lambda connection: connection.execute(delete(SERIES).where(SERIES.c.id.in_(gone))))
            dropped = set(gone)
            self._series = {key: known for key, known in self._series.items() if known.id not in dropped}
            self._by_id = {known.id: known for known in self._series.values()}

    def _drop_runs(self) -> bool:
        """Drop runs beyond the limit, those that ended first. Returns whether some are left to drop."""
        with self.records.reading() as connection:
            extra = (connection.execute(select(func.count()).select_from(RUN)).scalar() or 0) - self.keep.runs
            if extra <= 0:
                return False
            at_once = ROWS_AT_ONCE
            rows = connection.execute(OLDEST_RUNS.limit(min(extra, at_once)))
            gone = [{"a": source, "b": name} for source, name in rows]
        self.records.write(lambda connection: connection.execute(DROP_RUN, gone))
        return extra > at_once


def _floats(numbers: Sequence[float]) -> bk.Values:
    """Numbers as float64; whole ones that are too large for that are infinite."""
    try:
        return np.array(numbers, np.float64)
    except OverflowError:
        return np.array([number if abs(number) < 2**64 else math.inf for number in numbers])


def _leave_out(reason: str, bad: Flags, good: Flags, reasons: Counter[str]) -> None:
    """Count what is bad and was good so far."""
    if (count := int((bad & good).sum())) > 0:
        reasons[reason] += count
        good &= ~bad


def clock_of(cell_now_ms: Callable[[], int]) -> Callable[[str], int]:
    """The clock of a cell's telemetry: the cell's own time for what it measures, this machine's for what comes from
    elsewhere."""
    return lambda source: cell_now_ms() if source == CELL else time.time_ns() // 1_000_000
