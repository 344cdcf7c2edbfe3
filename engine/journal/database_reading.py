"""Reading a database beside whatever engine runs, each transaction as of one moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from engine.journal import postgres_sessions
from engine.journal.database import Place, SqliteFile
from engine.journal.sqlite_store import looked_at, unavailable

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
