"""A cell's database from outside its engine: read as of one moment, and copied to another database.

Reading a database beside whatever engine runs, each transaction as of one moment.

Copying a cell from one database to another, such as from its file to a PostgreSQL server, whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import Connection, Table, delete, func, insert, inspect, select
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from engine.journal import postgres_sessions
from engine.journal.database import Place, SqliteFile, create_some
from engine.journal.event_journal import Journal
from engine.journal.postgres_store import TABLES as OF_ONE_PLACE
from engine.journal.sqlite_store import looked_at, unavailable
from engine.journal.tables import MIGRATION, Head, table_of
from engine.model.errors import JournalCorrupt, JournalError, RefusedError

T = TypeVar("T")


def reader(place: Place) -> Database:
    """Connections that read beside the engine, each transaction as of one moment. Nothing is made, not even a file."""
    if isinstance(place, SqliteFile):
        return looked_at(place.path)
    return postgres_sessions.pool(place, "reader", size=2)


def read(place: Place, ask: Callable[[Connection], T]) -> T:
    """What `ask` finds there, as of one moment, beside whatever engine runs. Raises JournalError."""
    database = reader(place)
    try:
        with database.begin() as connection:
            return ask(connection)
    except (SQLAlchemyError, UnicodeDecodeError) as error:
        if isinstance(place, SqliteFile):
            raise unavailable(place.path, "read", error) from error
        raise postgres_sessions.refused(place, "read", error) from error
    finally:
        database.dispose()


AT_ONCE = 500
"""Rows that are read and written together."""


def copy(
    source: Journal, target: Journal, tables: Sequence[Table], told: Callable[[str, int], None] = lambda *_: None
) -> dict[str, int]:
    """Copy every table that the source has, and verify the journal that came of it. Returns how many rows each has;
    `told` hears each as it is done. Raises RefusedError for a target that is not new, JournalError for a source with
    tables that nobody here knows; nothing is written then."""
    if target.version:
        raise RefusedError(f"there is a cell at {target.place} already", "Name another file or another schema")
    counts: dict[str, int] = {}

    def into(writing: Connection) -> None:
        def out_of(reading: Connection) -> None:
            for table in _of_source(reading, source, tables):
                counts[table.name] = _copied(reading, writing, table)
                told(table.name, counts[table.name])

        source.look(out_of)

    target.transact(into)
    target.reopen()
    if (target.version, target.verify()) != (source.version, source.verify()):
        raise JournalCorrupt(f"what was copied to {target.place} does not verify", "Remove it; the source is unchanged")
    return counts


def _of_source(reading: Connection, source: Journal, tables: Sequence[Table]) -> list[Table]:
    there = set(inspect(reading).get_table_names()) - {table.name for table in OF_ONE_PLACE}
    known = {table.name for table in tables}
    if strange := sorted(there - known):
        raise JournalError(
            f"journal {source.place} has tables that this Muster does not know: {', '.join(strange[:5])}",
            "Copy it with the Muster that wrote it",
        )
    return [table for table in tables if table.name in there]


def _copied(reading: Connection, writing: Connection, table: Table) -> int:
    create_some(writing, [table])
    if table in (table_of(Head), MIGRATION):
        writing.execute(delete(table))  # the new one has its own
    count = 0
    with reading.execution_options(yield_per=AT_ONCE).execute(select(table)) as found:
        for rows in found.mappings().partitions():
            writing.execute(insert(table), [dict(row) for row in rows])
            count += len(rows)
    if writing.execute(select(func.count()).select_from(table)).scalar() != count:
        raise JournalCorrupt(f"table {table.name} was not copied whole", "Nothing was kept; try again")
    _go_on_counting(writing, table)
    return count


def _go_on_counting(writing: Connection, table: Table) -> None:
    """Numbers that the database gives go on behind those that were copied."""
    column = table.autoincrement_column
    if column is None or writing.dialect.name != "postgresql":
        return
    of = (table.name, column.name)
    sequence = writing.exec_driver_sql("SELECT pg_get_serial_sequence(%s, %s)", of).scalar()
    if sequence is not None:
        last = writing.execute(select(func.coalesce(func.max(column), 0))).scalar_one()
        writing.exec_driver_sql("SELECT setval(%s, %s, false)", (sequence, last + 1))
