"""The tables of the journal itself, and the migrations of their shape.

Tables: batches of events, snapshots, the head, and estimated starts. Migrations are listed in the order in which they
are made. Missing ones are made when the journal is opened for writing, each in one transaction with the note that it
was made. Tables that only some part of Muster writes are made by that part; a change to one that exists is a migration
here. A database with a migration unknown here is refused: a newer Muster wrote it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, inspect, select
from sqlmodel import Field, SQLModel

from engine.journal.database import BIG, Place, create_some
from engine.model.errors import JournalFormat

FORMAT = 2
OF_A_FLEET = -1
"""In place of the format, where a fleet keeps what it remembers: no cell is begun there."""


class Batch(SQLModel, table=True):
    """The events of one turn."""

    __tablename__ = "batch"
    first_version: int = Field(sa_column=Column(BIG, primary_key=True, autoincrement=False))
    last_version: int = Field(sa_type=BIG)
    at_ms: int = Field(sa_type=BIG)
    """Cell time of the last event."""
    wall_ms: int = Field(sa_type=BIG)
    crc: int = Field(sa_type=BIG)
    chain: int = Field(sa_type=BIG)
    """CRC-32 over the chain before and this batch's CRC."""
    events: bytes


class Snapshot(SQLModel, table=True):
    """The whole state at a version."""

    __tablename__ = "snapshot"
    version: int = Field(sa_column=Column(BIG, primary_key=True, autoincrement=False))
    wall_ms: int = Field(sa_type=BIG)
    chain: int = Field(sa_type=BIG)
    """Chain value of the batch that ends at this version."""
    crc: int = Field(sa_type=BIG)
    body: bytes


class Head(SQLModel, table=True):
    """One row: what the journal is and where it ends."""

    __tablename__ = "head"
    id: int = Field(primary_key=True)
    format: int
    last_version: int = Field(sa_type=BIG)
    chain: int = Field(sa_type=BIG)
    seed: int = Field(sa_type=BIG)


MAX_ESTIMATES = 20_000
"""Of more the oldest are dropped."""


class Estimate(SQLModel, table=True):
    """A start that was foretold. No part of the state: it is only compared with what happened."""

    __tablename__ = "estimate"
    id: int | None = Field(default=None, primary_key=True)
    at_ms: int = Field(sa_type=BIG)
    """Cell time at which it was made; the other times are cell times too."""
    version: int = Field(sa_type=BIG)
    horizon_ms: int = Field(sa_type=BIG)
    kind: str
    """`start` of a workload that waited, or `run`: of one that was tried before it was submitted; or a ForecastKind, of
    one told at once, without running ahead."""
    workload: str
    attempts: int
    """Starts it had had by then."""
    p10_ms: int | None = Field(sa_type=BIG)
    """None: after the horizon."""
    p50_ms: int | None = Field(sa_type=BIG)
    p90_ms: int | None = Field(sa_type=BIG)
    chance_permille: int
    line_ms: int | None = Field(default=None, sa_type=BIG)
    """Of a forecast without a run: the expected wait, of which its quantiles were made."""
    waits: str | None = None
    """The same: what that was made of (`engine.twin.start_regression.LineWaits`), as JSON."""


def table_of(model: type[SQLModel]) -> Any:
    """The Core table of a model: bulk rows never become objects."""
    return model.__table__  # type: ignore[attr-defined]


TABLES = tuple(table_of(model) for model in (Batch, Snapshot, Head))


class DatabaseKind(NamedTuple):
    """What a new database is made for."""

    format: int
    tables: tuple[Table, ...]
    """With the head among them."""


OF_A_CELL = DatabaseKind(FORMAT, TABLES)


_META = MetaData()
MIGRATION = Table(
    "migration",
    _META,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String, nullable=False),
    Column("at_ms", BIG, nullable=False),
)


PRUNED = Table(
    "pruned",
    _META,
    Column("version", BIG, primary_key=True, autoincrement=False),
    Column("through", BIG, nullable=False),
)
"""One row once events were let go: the journal begins at the snapshot of this version, and batches up to `through` are
gone, but for those that the audit is compared with. None where every event is there."""


class Migration(NamedTuple):
    name: str
    """What it is for, as people read it."""
    tables: tuple[Table, ...] = ()
    """To be there afterwards."""
    statements: tuple[tuple[str, str], ...] = ()
    """(dialect, SQL)"""


_LATER = ("line_ms", "waits")
"""Columns of estimates that came after the table."""
_FIRST_ESTIMATE = Table(
    "estimate",
    _META,
    *(
        Column(column.name, column.type, primary_key=column.primary_key, nullable=column.nullable)
        for column in table_of(Estimate).columns
        if column.name not in _LATER
    ),
)
MIGRATIONS = (
    Migration("starts that were foretold are kept", (_FIRST_ESTIMATE,)),
    Migration(
        "forecasts without a run keep what they were corrected from",
        statements=(
            ("sqlite", "ALTER TABLE estimate ADD COLUMN line_ms BIGINT"),
            ("postgresql", "ALTER TABLE estimate ADD COLUMN line_ms BIGINT"),
        ),
    ),
    Migration(
        "forecasts without a run keep what they were made of",
        statements=(
            ("sqlite", "ALTER TABLE estimate ADD COLUMN waits VARCHAR"),
            ("postgresql", "ALTER TABLE estimate ADD COLUMN waits VARCHAR"),
        ),
    ),
    Migration("old events may be let go behind a snapshot", (PRUNED,)),
)
"""Number 1 is the first. Only ever grows at its end."""
MAY_BE_PRUNED = 4
"""Number of the migration since which a journal may begin behind its first event."""


def made(connection: Connection) -> int:
    """Return how many migrations the database has had."""
    if not inspect(connection).has_table(MIGRATION.name):
        return 0
    newest = select(MIGRATION.c.number).order_by(MIGRATION.c.number.desc()).limit(1)
    return connection.execute(newest).scalar() or 0


def refuse_other(connection: Connection, place: Place, head: Any) -> int:
    """Return how many migrations it has had. Raises JournalFormat for a journal that was written by another Muster."""
    if head["format"] == OF_A_FLEET:
        raise JournalFormat(f"{place} is what a fleet remembers, and no cell", "Name another file or another schema")
    if head["format"] != FORMAT:
        raise JournalFormat(
            f"journal {place} has format {head['format']}, this Muster reads {FORMAT}", "Use the Muster that wrote it"
        )
    had = made(connection)
    if had > len(MIGRATIONS):
        raise JournalFormat(
            f"journal {place} was written by a newer Muster: it has had {had} migrations, this one knows "
            f"{len(MIGRATIONS)}",
            "Use that Muster, or a newer one",
        )
    return had


def migrate(connection: Connection, had: int, wall_ms: int) -> None:
    """Make the next one after `had`."""
    migration = MIGRATIONS[had]
    create_some(connection, [MIGRATION, *migration.tables])
    for dialect, statement in migration.statements:
        if dialect == connection.dialect.name:
            connection.exec_driver_sql(statement)
    connection.execute(insert(MIGRATION).values(number=had + 1, name=migration.name, at_ms=wall_ms))
