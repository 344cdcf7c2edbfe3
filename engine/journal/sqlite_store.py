"""A journal's database that is a SQLite file: one writer by a lock on a file beside it, which a killed process gives
back by dying.

The lock goes by the file itself, whatever links lead to it, as SQLite's own log of changes does. A file with a second
name (a hard link) is refused: each name would have a lock and a log of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, TypeVar

from sqlalchemy import Connection, create_engine, event, insert
from sqlalchemy import Engine as Database
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool, StaticPool

from engine.journal.database import SqliteFile, create_some
from engine.journal.process_locks import HeldElsewhere, take_lock
from engine.journal.tables import OF_A_CELL, DatabaseKind, Head, table_of
from engine.model.errors import JournalBusy, JournalCorrupt, JournalError

T = TypeVar("T")
BUSY_S = 2.0
LONGEST_LOG_PAGES = 16_000
"""Pages (of 4 KiB) of the database's log at which a commit of rows beside the journal moves them itself: what
`Records.checkpoint` should not let happen."""
_ADD_BATCH = (
    "INSERT INTO batch (first_version, last_version, at_ms, wall_ms, crc, chain, events) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
FAILURES = (DatabaseError, UnicodeDecodeError)
"""What a query raises. The driver cannot read what SQLite says of a name that damage has made no text."""
_MOVE_HEAD = "UPDATE head SET last_version = ?, chain = ?"


class FileStore:
    """The database, open for its one writer until `close`."""

    def __init__(self, place: SqliteFile, seed: int, kind: DatabaseKind = OF_A_CELL) -> None:
        """Open or create. Raises JournalBusy, JournalCorrupt or JournalError."""
        self.place = place
        path = _behind_links(place.path)
        self._lock = _take_lock(path, place.path)
        try:
            if path.exists():
                _refuse_second_name(path)
            else:
                _create(path, seed, kind)
            self.db = durable(path)
        except BaseException:
            self._lock.close()
            raise

    def add_turn(
        self, row: tuple[Any, ...], before: tuple[int, int], beside: Callable[[Connection], None] | None
    ) -> None:
        """Write a batch, move the head from `before`, and have `beside` write. All or nothing."""
        with self.errors("write"), self.db.begin() as connection:
            # Spelled out, because composing the two takes longer than they do.
            connection.exec_driver_sql(_ADD_BATCH, row)
            connection.exec_driver_sql(_MOVE_HEAD, (row[1], row[5]))
            if beside is not None:
                beside(connection)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """One durable transaction."""
        with self.errors("write"), self.db.begin() as connection:
            # The driver would begin only at the first change, and what was read before it might be of another moment.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    @contextlib.contextmanager
    def reading(self, doing: str = "read") -> Iterator[Connection]:
        """Give a connection on which all reads are of one moment; also where nothing can be written."""
        with self.errors(doing), self.db.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            yield connection

    def look(self, read: Callable[[Connection], T]) -> T:
        """Run `read` as of one moment."""
        with self.reading() as connection:
            return read(connection)

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Raise the database's errors as JournalError."""
        try:
            yield
        except (*FAILURES, sqlite3.DatabaseError) as error:
            raise unavailable(self.place.path, doing, error) from error

    def replace(self, other: Path) -> None:
        """Have a copy of another file in place of this one, under the same lock. Raises JournalError."""
        self.db.dispose()
        path = _behind_links(self.place.path)
        with self.errors("replace"), closing(sqlite3.connect(path)) as connection:
            # What is still in the log would be taken for changes of the new file.
            connection.execute("PRAGMA journal_mode=DELETE")
        copy_file(other, path)

    def close(self) -> None:
        self.db.dispose()
        self._lock.close()


def durable(path: Path) -> Database:
    """Every commit waits for the disk."""
    database = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_S})

    @event.listens_for(database, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    return database


def beside(path: Path, *, writing: bool) -> Database:
    """For rows beside the journal. Commits do not wait for the disk as the journal's do: losing power costs the last
    moments, not the rest."""
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


def looked_at(path: Path) -> Database:
    """For reading a journal beside its engine: nothing is made, not even the file."""
    uri = f"sqlite:///{path.absolute().as_uri()}?mode=ro&uri=true"
    database = create_engine(uri, poolclass=NullPool, connect_args={"timeout": BUSY_S})

    @event.listens_for(database, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return database


def in_memory() -> Database:
    return create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})


def unavailable(path: Path, doing: str, error: Exception) -> JournalError:
    """Translate the database's error into one of ours."""
    text = str(getattr(error, "orig", error))
    if "locked" in text or "busy" in text:
        return JournalBusy(f"cannot {doing} journal {path}: another program has locked it", "Close that program")
    if "full" in text:
        return JournalError(
            f"cannot {doing} journal {path}: the disk is full", "Free some space; nothing acknowledged is lost"
        )
    if any(sign in text for sign in ("malformed", "not a database", "no such table", "no such column", "decode")):
        return JournalCorrupt(
            f"journal {path} is damaged: {text}",
            "Nothing was changed. Restore the file from a backup, or move it away to start an empty cell",
        )
    return JournalError(
        f"cannot {doing} journal {path}: {text}", "Check that the folder exists, is writable and has space"
    )


def copy_file(source: Path, target: Path) -> None:
    """A copy of a database as of one moment, beside whoever writes it: whole, on disk, and for this account alone. A
    file at `target` is replaced. Raises JournalError."""
    fresh = target.with_name(target.name + ".new")
    try:
        fresh.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        uri = f"{source.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as reading, closing(sqlite3.connect(fresh)) as writing:
            reading.backup(writing)  # all pages in one transaction
        sync(fresh)
        fresh.replace(target)
        sync(target.parent)
    except sqlite3.Error as error:
        raise unavailable(source, "copy", error) from error
    except OSError as error:
        raise JournalError(f"cannot write {target}: {error.strerror}", "Check that its folder has room") from error


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def former_name(path: Path) -> Path:
    """A new name for the copy of a journal that is about to be changed as a whole: beside it, with this time."""
    name = f"{path.name}.before-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    names = (path.with_name(f"{name}-{number}" if number else name) for number in itertools.count())
    return next(each for each in names if not each.exists())


def _create(path: Path, seed: int, kind: DatabaseKind) -> None:
    """A new journal, complete before it gets its name: an empty or headless file is never one of ours."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        database = create_engine(f"sqlite:///{fresh}")
        head = {"id": 1, "format": kind.format, "last_version": 0, "chain": 0, "seed": seed}
        with database.begin() as connection:
            create_some(connection, kind.tables)
            connection.execute(insert(table_of(Head)).values(head))
        database.dispose()
        fresh.rename(path)
    except OSError as error:
        raise JournalError(f"cannot create journal {path}: {error.strerror}", "Check the folder") from error
    except DatabaseError as error:
        raise unavailable(path, "create", error) from error


def _behind_links(path: Path) -> Path:
    """The file that is meant. Raises JournalError for links that lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise JournalError(f"cannot open journal {path}: {error}", "Name the file itself") from None


def _take_lock(path: Path, named: Path) -> IO[str]:
    """One writer. `named`: as people call it."""
    shown = str(path) if path == named.absolute() else f"{named}, which is {path},"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return take_lock(path)
    except OSError as error:
        raise JournalError(
            f"cannot open journal {shown}: {error.strerror}", "Check that the folder is writable"
        ) from error
    except HeldElsewhere as held:
        raise JournalBusy(
            f"journal {shown} is open in another engine ({held})", "Attach to that engine, or stop it first"
        ) from None


def _refuse_second_name(path: Path) -> None:
    if path.stat().st_nlink > 1:
        raise JournalError(
            f"journal {path} has a second name (a hard link): under each name other changes would be seen",
            f"Find the names with `find DIR -samefile {path}` and remove all but one; a symbolic link is fine",
        )
