"""Rows kept beside the journal that are no part of the state: what was measured, what has run. Nothing is replayed
from them and no decision of the engine waits for them.

They are in the journal's database, by connections of their own. SQLite has one writer at a time, so every write is a
short transaction on the engine's thread, between its turns; reads go on beside it on other threads and see the
database as it was when they began. A cell without a journal keeps them in memory.

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

from sqlalchemy import Connection, Table, create_engine, event
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import StaticPool

from engine.errors import MusterError

T = TypeVar("T")
Here = Callable[[Callable[[], Any]], Any]
"""Runs a function on the thread that may write, and returns or raises what it does."""

RETRY_S = 30.0
"""Wall seconds after a failed write before the next is tried."""
BUSY_S = 2.0
LONGEST_LOG_PAGES = 16_000
"""Pages (of 4 KiB) of the database's log at which a commit moves them itself: what `checkpoint` should not let happen.
"""


class RecordsError(MusterError):
    """What is kept beside the journal cannot be read or written. The cell goes on without it."""

    code = "journal"


def _at_once(change: Callable[[], Any]) -> Any:
    return change()


class Records:
    """The rows beside one cell's journal. To be opened only by the process that has the journal.

    `path` is the journal's, None for memory. `on_writer` runs a write on the engine's thread; without it writes run on
    the caller's, as is right where no engine runs.
    """

    def __init__(self, path: Path | None, on_writer: Here = _at_once) -> None:
        self.path = path
        self.error = ""
        """Why nothing is kept at present; empty while all is well."""
        self._on_writer = on_writer
        self._retry_at = 0.0
        self._one_at_a_time: Any = contextlib.nullcontext()
        if path is None:
            self._writer = self._reader = _in_memory()
            self._one_at_a_time = threading.RLock()
        else:
            self._writer, self._reader = _connect(path, writing=True), _connect(path, writing=False)

    def create(self, tables: Sequence[Table]) -> None:
        """Have these tables, unless they are there. Raises RecordsError."""
        self.write(lambda connection: tables[0].metadata.create_all(connection, tables=list(tables)))

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
                kept = change(connection)
        except (SQLAlchemyError, sqlite3.Error) as error:
            self.error = f"history cannot be written to {self.path}: {_said(error)}"
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
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise RecordsError(
                f"history cannot be read from {self.path}: {_said(error)}", "Check the disk; the cell itself goes on"
            ) from error

    def checkpoint(self) -> None:
        """Move what was written from the log of the database into the database, on the caller's thread: writers go on
        meanwhile. Without it a commit would do so every now and then, and the engine wait for the disk."""
        if self.path is not None:
            with self.reading() as connection:
                connection.exec_driver_sql("COMMIT")
                connection.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)").all()
                connection.exec_driver_sql("BEGIN")

    def close(self) -> None:
        self._writer.dispose()
        self._reader.dispose()

    def _failed(self) -> RecordsError:
        return RecordsError(self.error, f"The cell goes on; keeping is tried again every {RETRY_S:g} s")


def _said(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error)


def _in_memory() -> Database:
    return create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})


def _connect(path: Path, *, writing: bool) -> Database:
    """Commits do not wait for the disk as the journal's do: losing power costs the last moments, not the rest."""
    database = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_S})

    @event.listens_for(database, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        # The driver would begin a transaction only at the first change: two reads would be of two moments.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint={LONGEST_LOG_PAGES}")
        if not writing:
            connection.execute("PRAGMA query_only=ON")

    @event.listens_for(database, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return database
