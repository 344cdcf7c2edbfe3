"""Series of measurements in compressed chunks, and the tables that hold them.

Tables beside the journal: measurements, ended work, and forecasts as they were made.

`recommender.history.telemetry` uses the first two. Forecasts are kept only to be compared with what came.

Measurements as arrays and on disk: samples summed up over steps of time, and the chunks that hold them.

The functions on arrays are pure; times are Unix milliseconds. A chunk holds one series over a span of time, finer or
coarser by its age (`recommender.history.metrics.TIERS`). Every change is one transaction of a bounded size on the
engine's thread; packing is done on the caller's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    and_,
    bindparam,
    delete,
    insert,
    or_,
    select,
    update,
)

from engine.journal.database import put_new
from engine.journal.side_tables import Records
from recommender.history.metrics import CELL, MINUTE_MS, RUN_NUMBERS, RUN_TEXT, TIERS

META = MetaData()
SERIES = Table(
    "telemetry_series",
    META,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("metric", String, nullable=False),
    Column("of_kind", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("source", String, nullable=False),
    Column("step_ms", BigInteger, nullable=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("last_ms", BigInteger, nullable=False),
    Column("summed_ms", BigInteger, nullable=False),
    UniqueConstraint("metric", "of_kind", "subject"),
)
LOG = Table(
    "telemetry_log",
    META,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("samples", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
CHUNK = Table(
    "telemetry_chunk",
    META,
    Column("tier", Integer, primary_key=True, autoincrement=False),
    Column("series", Integer, primary_key=True, autoincrement=False),
    Column("start_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
    Index("telemetry_chunk_age", "tier", "start_ms"),
)
RUN = Table(
    "telemetry_run",
    META,
    *(Column(name, String, primary_key=name in ("source", "id"), nullable=False) for name in RUN_TEXT),
    *(Column(name, BigInteger, nullable=False) for name in RUN_NUMBERS),
    Column("spot", Boolean, nullable=False),
    Index("telemetry_run_end", "ended_ms"),
)
NOTE = Table(
    "telemetry_note",
    META,
    Column("name", String, primary_key=True),
    Column("value", Float, nullable=False),
)
TABLES = (SERIES, LOG, CHUNK, RUN, NOTE)


NEWEST_FIRST = (RUN.c.ended_ms.desc(), RUN.c.source.asc(), RUN.c.id.asc())
DROP_CHUNK = delete(CHUNK).where(
    CHUNK.c.tier == bindparam("t"), CHUNK.c.series == bindparam("n"), CHUNK.c.start_ms == bindparam("s")
)
READ_CHUNKS = select(CHUNK.c.tier, CHUNK.c.start_ms, CHUNK.c.body).where(
    CHUNK.c.series == bindparam("number"),
    or_(
        *(
            and_(
                CHUNK.c.tier == tier,
                CHUNK.c.start_ms > bindparam(f"since{tier}"),
                CHUNK.c.start_ms < bindparam("until"),
            )
            for tier in range(len(TIERS))
        )
    ),
)
OLDEST_RUNS = select(RUN.c.source, RUN.c.id).order_by(RUN.c.ended_ms.asc(), RUN.c.source.desc(), RUN.c.id.desc())
DROP_RUN = delete(RUN).where(RUN.c.source == bindparam("a"), RUN.c.id == bindparam("b"))
MARK_SUMMED = update(SERIES).where(SERIES.c.id == bindparam("number")).values(summed_ms=bindparam("a"))

TELL_SPAN = (
    update(SERIES)
    .where(SERIES.c.id == bindparam("number"))
    .values(first_ms=bindparam("a"), last_ms=bindparam("b"), source=bindparam("c"), step_ms=bindparam("d"))
)


def chunk_row(tier: int, number: int, start_ms: int, body: bytes) -> dict[str, Any]:
    return {"tier": tier, "series": number, "start_ms": start_ms, "body": body}


def replace_chunks(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(DROP_CHUNK, [{"t": row["tier"], "n": row["series"], "s": row["start_ms"]} for row in rows])
    connection.execute(insert(CHUNK), rows)


def move_chunks(
    connection: Connection, new: list[dict[str, Any]], gone: list[dict[str, Any]], marks: list[Any]
) -> None:
    replace_chunks(connection, new)
    connection.execute(DROP_CHUNK, gone)
    connection.execute(MARK_SUMMED, marks)


def replace_runs(connection: Connection, rows: Sequence[dict[str, Any]]) -> None:
    connection.execute(DROP_RUN, [{"a": row["source"], "b": row["id"]} for row in rows])
    connection.execute(insert(RUN), rows)


def replace_note(connection: Connection, name: str, value: float) -> None:
    connection.execute(delete(NOTE).where(NOTE.c.name == name))
    connection.execute(insert(NOTE).values(name=name, value=value))


KEEP_MS = 60 * 24 * 3_600_000
"""Made longer ago: dropped."""
FORECAST = Table(
    "demand_forecast",
    META,
    Column("metric", String, primary_key=True),
    Column("of_kind", String, primary_key=True),
    Column("subject", String, primary_key=True),
    Column("made_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("ahead", Integer, primary_key=True, autoincrement=False),
    Column("p10", Float, nullable=False),
    Column("p50", Float, nullable=False),
    Column("p90", Float, nullable=False),
)

Series = tuple[str, str, str]
"""(metric, of, subject)"""


class ForecastRows:
    """Raises RecordsError while the disk fails."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._made = False

    def keep(self, series: Series, made_ms: int, rows: Sequence[tuple[int, float, float, float]]) -> None:
        """(hours ahead, p10, p50, p90) of a forecast from what was known at `made_ms`; the first one made stands."""
        metric, of, subject = series
        values = [
            {
                "metric": metric, "of_kind": of, "subject": subject, "made_ms": made_ms, "ahead": ahead,
                "p10": float(p10), "p50": float(p50), "p90": float(p90),
            }
            for ahead, p10, p50, p90 in rows
        ]  # fmt: skip

        def kept(connection: Connection) -> None:
            connection.execute(delete(FORECAST).where(FORECAST.c.made_ms < made_ms - KEEP_MS, *_of(series)))
            put_new(connection, FORECAST, values)

        self._open()
        self._records.write(kept)

    def kept(self, series: Series, since_ms: int) -> list[tuple[int, int, float, float, float]]:
        """(made, hours ahead, p10, p50, p90) of those made since, oldest first."""
        self._open()
        columns = (FORECAST.c.made_ms, FORECAST.c.ahead, FORECAST.c.p10, FORECAST.c.p50, FORECAST.c.p90)
        chosen = select(*columns).where(FORECAST.c.made_ms >= since_ms, *_of(series)).order_by(*columns[:2])
        with self._records.reading() as connection:
            return [tuple(row) for row in connection.execute(chosen)]

    def _open(self) -> None:
        if not self._made:
            self._records.create([FORECAST])
            self._made = True


def _of(series: Series) -> tuple[ColumnElement[bool], ...]:
    metric, of, subject = series
    return FORECAST.c.metric == metric, FORECAST.c.of_kind == of, FORECAST.c.subject == subject


Times = np.ndarray[Any, np.dtype[np.int64]]
Values = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class SampleBuckets:
    """[bucket] What was measured in each, ascending in time. A bucket of one sample is the sample itself."""

    at_ms: Times
    """Begin of the bucket, or time of the sample."""
    count: Times
    """Samples in it."""
    total: Values
    """Their sum."""
    least: Values
    most: Values
    last: Values
    """The value of the latest."""

    def __len__(self) -> int:
        return len(self.at_ms)

    def where(self, chosen: Any) -> SampleBuckets:
        """Return the buckets that a mask, slice or array of indexes chooses."""
        return SampleBuckets(*(getattr(self, name)[chosen] for name in _COLUMNS))


_COLUMNS = ("at_ms", "count", "total", "least", "most", "last")


@dataclass(frozen=True)
class SeriesPoints:
    """[step] A window of a series in steps of equal length, without holes: a step in which nothing was measured has
    count 0 and NaN."""

    at_ms: Times
    """Begin of the step."""
    mean: Values
    least: Values
    most: Values
    total: Values
    last: Values
    count: Times
    step_ms: int


def of_samples(at_ms: Times, value: Values) -> SampleBuckets:
    """Each sample a bucket, in their order of time; of those at one time the order stays."""
    order = np.argsort(at_ms, kind="stable")
    at, values = np.asarray(at_ms, np.int64)[order], np.asarray(value, np.float64)[order]
    return SampleBuckets(at, np.ones(len(at), np.int64), values, values, values, values)


def latest_of_minutes(samples: SampleBuckets) -> SampleBuckets:
    """The latest sample of each minute; of two at the same time the one further back in the array."""
    minute = samples.at_ms // MINUTE_MS
    return samples.where(np.flatnonzero(np.diff(minute, append=minute[-1:] + 1))) if len(samples) else samples


def joined(parts: list[SampleBuckets]) -> SampleBuckets:
    """All of them, in order of time; of those that begin at one time the order of `parts` stays."""
    if not parts:
        return _NOTHING
    columns: list[Any] = [np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS]
    order = np.argsort(columns[0], kind="stable")
    return SampleBuckets(*(column[order] for column in columns))


_NOTHING = SampleBuckets(
    np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)
)


def together(parts: list[tuple[Times, Times, Values]]) -> tuple[Times, Times, Values]:
    """(series, time, value) of all parts, of which there is at least one."""
    ids, times, values = zip(*parts, strict=True)
    return np.concatenate(ids), np.concatenate(times), np.concatenate(values)


def folded(buckets: SampleBuckets, step_ms: int) -> SampleBuckets:
    """Summed up over whole steps. Counts and sums are conserved, sums to rounding: exactly while they are whole
    numbers below 2^53."""
    if not len(buckets):
        return buckets
    start = buckets.at_ms // step_ms * step_ms
    first = np.flatnonzero(np.diff(start, prepend=start[0] - 1))
    last = np.append(first[1:], len(start)) - 1
    return SampleBuckets(
        start[first],
        np.add.reduceat(buckets.count, first),
        np.add.reduceat(buckets.total, first),
        np.minimum.reduceat(buckets.least, first),
        np.maximum.reduceat(buckets.most, first),
        buckets.last[last],
    )


def points(buckets: SampleBuckets, start_ms: int, steps: int, step_ms: int) -> SeriesPoints:
    """The steps from `start_ms` on. Buckets outside of them are left out."""
    if start_ms % step_ms:
        raise ValueError(f"{start_ms} is no multiple of {step_ms}")
    inside = (buckets.at_ms >= start_ms) & (buckets.at_ms < start_ms + steps * step_ms)
    chosen = folded(buckets.where(inside), step_ms)
    at = (chosen.at_ms - start_ms) // step_ms

    def spread(values: Values) -> Values:
        column = np.full(steps, np.nan)
        column[at] = values
        return column

    count = np.zeros(steps, np.int64)
    count[at] = chosen.count
    return SeriesPoints(
        at_ms=np.arange(steps, dtype=np.int64) * step_ms + start_ms,
        mean=spread(chosen.total / np.maximum(chosen.count, 1)),
        least=spread(chosen.least),
        most=spread(chosen.most),
        total=spread(chosen.total),
        last=spread(chosen.last),
        count=count,
        step_ms=step_ms,
    )


# -- on disk -----------------------------------------------------------------------------------------------------------
# Columns one after the other, each with the first bytes of all its values first, then the second bytes...: neighbours
# are alike then, and zlib makes them small.

_SAMPLE = (np.dtype("<i4"), np.dtype("<f8"))
"""Milliseconds since the chunk's begin, value."""
_BUCKET = (np.dtype("<i4"), np.dtype("<i4"), *(np.dtype("<f8"),) * 4)
"""Number of the bucket in the chunk, count, total, least, most, last."""
MAX_BYTES = 64 * 2**20
"""Of one piece, unpacked: more is not one of ours."""
_LOGGED = (np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f8"))
"""Series, time, value."""


def pack_samples(samples: SampleBuckets, base_ms: int) -> bytes:
    return _packed((samples.at_ms - base_ms, samples.last), _SAMPLE)


def unpack_samples(body: bytes, base_ms: int) -> SampleBuckets:
    """Raises ValueError when the bytes are not what `pack_samples` makes."""
    offset, value = _unpacked(body, _SAMPLE)
    return of_samples(offset.astype(np.int64) + base_ms, value)


def pack_buckets(buckets: SampleBuckets, base_ms: int, step_ms: int) -> bytes:
    columns = ((buckets.at_ms - base_ms) // step_ms, *(getattr(buckets, name) for name in _COLUMNS[1:]))
    return _packed(columns, _BUCKET)


def unpack_buckets(body: bytes, base_ms: int, step_ms: int) -> SampleBuckets:
    """Raises ValueError when the bytes are not what `pack_buckets` makes."""
    number, count, *sums = _unpacked(body, _BUCKET)
    return SampleBuckets(number.astype(np.int64) * step_ms + base_ms, count.astype(np.int64), *sums)


def pack_log(series: Times, at_ms: Times, value: Values) -> bytes:
    return _packed((series, at_ms, value), _LOGGED, level=1)


def unpack_log(body: bytes) -> tuple[Times, Times, Values]:
    """(series, time, value) as logged. Raises ValueError when the bytes are not what `pack_log` makes."""
    series, at_ms, value = _unpacked(body, _LOGGED)
    return series.astype(np.int64), at_ms, value


def _packed(columns: Any, dtypes: tuple[np.dtype[Any], ...], level: int = 6) -> bytes:
    parts = [
        np.ascontiguousarray(column.astype(dtype)).view(np.uint8).reshape(-1, dtype.itemsize).T.tobytes()
        for column, dtype in zip(columns, dtypes, strict=True)
    ]
    return zlib.compress(b"".join(parts), level)


def _unpacked(body: bytes, dtypes: tuple[np.dtype[Any], ...]) -> list[Any]:
    width = sum(dtype.itemsize for dtype in dtypes)
    unpacker = zlib.decompressobj()
    try:
        raw = unpacker.decompress(body, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"damaged measurements: {error}") from None
    if not unpacker.eof:
        raise ValueError(f"damaged measurements: cut off, or more than {MAX_BYTES:,} bytes")
    rows, rest = divmod(len(raw), width)
    if rest:
        raise ValueError(f"damaged measurements: {len(raw)} bytes are no whole rows of {width}")
    columns, at = [], 0
    for dtype in dtypes:
        size = rows * dtype.itemsize
        shuffled = np.frombuffer(raw, np.uint8, size, at).reshape(dtype.itemsize, rows)
        columns.append(np.ascontiguousarray(shuffled.T).view(dtype).reshape(-1))
        at += size
    return columns


WRITTEN_AT_ONCE = 100
"""Chunks of one transaction: a few milliseconds of the engine's thread."""
FOLDED_AT_ONCE = 400
"""Chunks that are summed up, or dropped, at a time."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]
Key = tuple[int, int]
"""(series, begin of the chunk in ms)"""


class SeriesChunks:
    """The chunks beside one journal. Raises RecordsError while the disk fails. Who changes something locks."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.damaged = 0
        """Found damaged since the start."""

    def unpacked(self, tier: int, start_ms: int, body: bytes) -> SampleBuckets:
        """Return the samples of a chunk; none where it is damaged, which is counted."""
        try:
            return unpack_samples(body, start_ms) if tier == 0 else unpack_buckets(body, start_ms, TIERS[tier].step_ms)
        except ValueError:
            self.damaged += 1
            return joined([])

    def merge(self, fresh: Sequence[tuple[Key, SampleBuckets]]) -> None:
        """Add samples to chunks of the finest tier. The same samples once more change nothing."""
        for at in range(0, len(fresh), WRITTEN_AT_ONCE):
            part = fresh[at : at + WRITTEN_AT_ONCE]
            with self._records.reading() as connection:
                there = self._there(connection, 0, [key for key, _ in part])
                present = {(number, start): self.unpacked(0, start, body) for number, start, body in there}
            changed = []
            for key, samples in part:
                merged = latest_of_minutes(joined([present[key], samples] if key in present else [samples]))
                changed.append(chunk_row(0, *key, pack_samples(merged, key[1])))
            self._records.write(lambda connection, changed=changed: replace_chunks(connection, changed))  # type: ignore[misc]

    def ended(self, tier: int, before_ms: int, own: bool) -> list[tuple[int, int, bytes]]:
        """(series, begin, body) of the FOLDED_AT_ONCE oldest that ended by then. `own`: those of series that the cell
        measures itself, else of the others."""
        mine = SERIES.c.source == CELL if own else SERIES.c.source != CELL
        old = (
            select(CHUNK.c.series, CHUNK.c.start_ms, CHUNK.c.body)
            .join(SERIES, SERIES.c.id == CHUNK.c.series)
            .where(CHUNK.c.tier == tier, CHUNK.c.start_ms <= before_ms - TIERS[tier].span_ms, mine)
            .order_by(CHUNK.c.start_ms, CHUNK.c.series)
            .limit(FOLDED_AT_ONCE)
        )
        with self._records.reading() as connection:
            return [(number, start, body) for number, start, body in connection.execute(old)]

    def drop(self, tier: int, keys: Sequence[Key]) -> None:
        gone = [{"t": tier, "n": number, "s": start} for number, start in keys]
        if gone:
            self._records.write(lambda connection: connection.execute(DROP_CHUNK, gone))

    def fold(
        self, tier: int, old: Sequence[tuple[int, int, bytes]], summed_ms: Mapping[int, int]
    ) -> Iterator[dict[int, int]]:
        """Move chunks into the next tier. A chunk and what becomes of it are changed in one transaction; after each,
        up to when its series are summed up by now, which was `summed_ms` before."""
        known = dict(summed_ms)
        step, span = TIERS[tier + 1].step_ms, TIERS[tier + 1].span_ms
        targets: dict[tuple[int, int], list[tuple[int, SampleBuckets]]] = {}
        for number, start, body in old:
            target = targets.setdefault((number, start // span * span), [])
            target.append((start, folded(self.unpacked(tier, start, body), step)))
        keys = sorted(targets)
        for at in range(0, len(keys), WRITTEN_AT_ONCE // 2):
            part = keys[at : at + WRITTEN_AT_ONCE // 2]
            with self._records.reading() as connection:
                present = {(n, s): body for n, s, body in self._there(connection, tier + 1, part)}
            new: list[dict[str, Any]] = []
            gone: list[dict[str, Any]] = []
            marks: dict[int, int] = {}
            for key in part:
                pieces = [piece for _, piece in targets[key]]
                if key in present:
                    pieces.append(self.unpacked(tier + 1, key[1], present[key]))
                # The same bucket may be there from before: late samples of a time nobody had summed up.
                merged = folded(joined(pieces), step)
                new.append(chunk_row(tier + 1, *key, pack_buckets(merged, key[1], step)))
                gone += [{"t": tier, "n": key[0], "s": start} for start, _ in targets[key]]
                end_ms = max(start for start, _ in targets[key]) + TIERS[tier].span_ms
                marks[key[0]] = max(end_ms, marks.get(key[0], 0), known[key[0]])
            mark_rows = [{"number": number, "a": end_ms} for number, end_ms in marks.items()]
            self._records.write(
                lambda connection, new=new, gone=gone, mark_rows=mark_rows: move_chunks(
                    connection, new, gone, mark_rows
                )  # type: ignore[misc]
            )
            known |= marks
            yield marks

    def summed_up(self, number: int, times: Times) -> Flags:
        """[time] Whether it is in a bucket of the series already."""
        gone = np.zeros(len(times), np.bool_)
        with self._records.reading() as connection:
            for tier in (1, 2):
                span, step = TIERS[tier].span_ms, TIERS[tier].step_ms
                wanted = [(number, start) for start in np.unique(times // span * span).tolist()]
                for _, start, body in self._there(connection, tier, wanted):
                    gone |= np.isin(times // step * step, self.unpacked(tier, start, body).at_ms)
        return gone

    def _there(
        self, connection: Connection, tier: int, wanted: Sequence[tuple[int, int]]
    ) -> Iterable[tuple[int, int, bytes]]:
        """(series, start, body) of those that exist."""
        for at in range(0, len(wanted), WRITTEN_AT_ONCE):
            part = wanted[at : at + WRITTEN_AT_ONCE]
            numbers, starts, asked = {n for n, _ in part}, {s for _, s in part}, set(part)
            found = select(CHUNK.c.series, CHUNK.c.start_ms, CHUNK.c.body).where(
                CHUNK.c.tier == tier, CHUNK.c.series.in_(sorted(numbers)), CHUNK.c.start_ms.in_(sorted(starts))
            )
            yield from (row for row in connection.execute(found) if (row[0], row[1]) in asked)
