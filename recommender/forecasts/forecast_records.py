"""Forecasts as they were made, beside the cell's journal: only to be compared with what came."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    select,
)

from engine.journal.database import put_new
from engine.journal.side_tables import Records

KEEP_MS = 60 * 24 * 3_600_000
"""Made longer ago: dropped."""
META = MetaData()
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
