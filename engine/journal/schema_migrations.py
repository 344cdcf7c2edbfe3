"""Changes to the shape of a cell's database, in the order in which they are made. Those that are missing are made when
the journal is opened for writing, each in one transaction with the note that it was made.

Tables that only some part of Muster writes are made by that part; a change to one that exists is a migration, here.
A database that has had a migration nobody here knows is refused: it was written by a newer Muster.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, insert, inspect, select

from engine.journal.database import BIG, Place, create_some
from engine.journal.tables import FORMAT, OF_A_FLEET, Estimate, table_of
from engine.model.errors import JournalFormat

_META = MetaData()
MIGRATION = Table(
    "migration",
    _META,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String, nullable=False),
    Column("at_ms", BIG, nullable=False),
)


class Migration(NamedTuple):
    name: str
    """What it is for, as people read it."""
    tables: tuple[Table, ...] = ()
    """To be there afterwards."""
    statements: tuple[tuple[str, str], ...] = ()
    """(dialect, SQL)"""


MIGRATIONS = (Migration("starts that were foretold are kept", (table_of(Estimate),)),)
"""Number 1 is the first. Only ever grows at its end."""


def made(connection: Connection) -> int:
    """How many migrations the database has had."""
    if not inspect(connection).has_table(MIGRATION.name):
        return 0
    newest = select(MIGRATION.c.number).order_by(MIGRATION.c.number.desc()).limit(1)
    return connection.execute(newest).scalar() or 0


def refuse_other(connection: Connection, place: Place, head: Any) -> int:
    """How many migrations it has had. Raises JournalFormat for a journal that was written by another Muster."""
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
