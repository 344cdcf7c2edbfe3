"""Tables beside the journal: measurements, ended work, and forecasts as they were made.

`recommender.history.telemetry` uses the first two. Forecasts are kept only to be compared with what came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from recommender.history.metrics import RUN_NUMBERS, RUN_TEXT, TIERS

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
