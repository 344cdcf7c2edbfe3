"""Where measurements and ended work are kept: the tables of `recommender.history.telemetry`, and their changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
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

from recommender.history.metrics import RUN_NUMBERS, RUN_TEXT
from recommender.history.retention import TIERS

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
