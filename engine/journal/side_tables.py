"""Rows kept beside the journal that are no part of the state: what was measured, what has run. Nothing is replayed
from them and no decision of the engine waits for them.

They are in the journal's database, by connections of their own. SQLite has one writer at a time, so every write is a
short transaction on the engine's thread, between its turns; reads go on beside it on other threads and see the
database as it was when they began. In PostgreSQL a write is refused once another process has taken the cell over. A
cell without a journal keeps them in memory.

When the disk fails, keeping stops and `error` says why; it is tried again every RETRY_S. The engine goes on.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.exc import SQLAlchemyError

from engine.journal import sqlite_store
from engine.journal.database import Place, Schema, SqliteFile, create_some, error_line, place_of
from engine.model.errors import MusterError

T = TypeVar("T")
Here = Callable[[Callable[[], Any]], Any]
"""Runs a function on the thread that may write, and returns or raises what it does."""

READERS = 4
"""Threads that read at a time, of a server."""
_DISK = "Check the disk; the cell itself goes on"
_FAILURES = (SQLAlchemyError, sqlite3.Error)
RETRY_S = 30.0
"""Wall seconds after a failed write before the next is tried."""
_OURS = "SELECT 1 FROM fence WHERE id = 1 AND owner = %s FOR SHARE"


class RecordsError(MusterError):
    """What is kept beside the journal cannot be read or written. The cell goes on without it."""

    code = "journal"


def _at_once(change: Callable[[], Any]) -> Any:
    return change()


class Records:
    """The rows beside one cell's journal. To be opened only by the process that has the journal.

    `where` is the journal's place, None for memory. `on_writer` runs a write on the engine's thread; without it writes
    run on the caller's, as is right where no engine runs. `owner`: of the lease by which this process may write; empty:
    nobody else can.
    """

    def __init__(self, where: str | Path | Place | None, on_writer: Here = _at_once, owner: str = "") -> None:
        self.place = None if where is None else place_of(where)
        self.error = ""
        """Why nothing is kept at present; empty while all is well."""
        self._on_writer = on_writer
        self._owner = owner
        self._retry_at = 0.0
        self._one_at_a_time: Any = contextlib.nullcontext()
        if self.place is None:
            self._writer = self._reader = sqlite_store.in_memory()
            self._one_at_a_time = threading.RLock()
        elif isinstance(self.place, SqliteFile):
            path = self.place.path
            self._writer = sqlite_store.beside(path, writing=True)
            self._reader = sqlite_store.beside(path, writing=False)
        else:
            from engine.journal import postgres_sessions

            self._writer = postgres_sessions.pool(self.place, "history")
            self._reader = postgres_sessions.pool(self.place, "reader", size=READERS)

    def create(self, tables: Sequence[Table]) -> None:
        """Have these tables, unless they are there. Raises RecordsError."""
        self.write(lambda connection: create_some(connection, tables))

    def write(self, change: Callable[[Connection], T]) -> T:
        """Run `change` in one transaction on the engine's thread. All is kept, or none and RecordsError is raised.
        It holds up the engine, so it must be a few milliseconds' work: no computing, only statements."""
        if self.error and time.monotonic() < self._retry_at:
            raise self._failed()
        kept: T = self._on_writer(lambda: self._written(change))
        return kept

    def _written(self, change: Callable[[Connection], T]) -> T:
        try:
            with self._one_at_a_time, self._writer.begin() as connection:
                if self._owner and connection.exec_driver_sql(_OURS, (self._owner,)).first() is None:
                    raise RecordsError("another engine has taken the cell over", "This one keeps nothing any more")
                kept = change(connection)
        except _FAILURES as error:
            self.error = f"history cannot be written to {self.place}: {error_line(error)}"
            self._retry_at = time.monotonic() + RETRY_S
            raise self._failed() from error
        self.error = ""
        return kept

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection on which everything that is read is of one moment. Keep it short: while it lasts, the database
        cannot tidy up behind what is written. Raises RecordsError."""
        try:
            with self._one_at_a_time, self._reader.connect() as connection, connection.begin():
                yield connection
        except _FAILURES as error:
            raise RecordsError(
                f"history cannot be read from {self.place}: {error_line(error)}",
                "Check the database; the cell itself goes on" if isinstance(self.place, Schema) else _DISK,
            ) from error

    def checkpoint(self) -> None:
        """Move what was written from the log of the database into the database, on the caller's thread: writers go on
        meanwhile. Without it a commit would do so every now and then, and the engine wait for the disk."""
        if isinstance(self.place, SqliteFile):
            with self.reading() as connection:
                connection.exec_driver_sql("COMMIT")
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").all()
                connection.exec_driver_sql("BEGIN")

    def close(self) -> None:
        self._writer.dispose()
        self._reader.dispose()

    def _failed(self) -> RecordsError:
        return RecordsError(self.error, f"The cell goes on; keeping is tried again every {RETRY_S:g} s")
