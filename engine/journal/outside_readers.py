"""A journal read from outside the engine that writes it: once, as a copy, or by a standby that follows.

`read` gives what a query finds as of one moment, beside whatever engine runs. `copy` takes a cell from one database to
another, `backup` into a file beside its engine, and `restore` back from one: each whole or not at all.
`JournalFollower` keeps a state close to the journal of a PostgreSQL cell, so that little is left to read when
`stand_by` gets the lease.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, Table, delete, func, insert, inspect, select
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from engine.journal import postgres_sessions, tables
from engine.journal.database import Place, Schema, SqliteFile, create_some
from engine.journal.event_journal import Journal, batches, beginning, head_of, newest_snapshot
from engine.journal.postgres_store import LOOK_S, Lease, LeaseCandidate, exists
from engine.journal.postgres_store import TABLES as OF_ONE_PLACE
from engine.journal.sqlite_store import FileStore, copy_file, former_name, looked_at, unavailable
from engine.journal.tables import MIGRATION, Head, refuse_other, table_of
from engine.model.errors import JournalCorrupt, JournalError, JournalFormat, RefusedError
from engine.state.cell_state import State

T = TypeVar("T")


def reader(place: Place) -> Database:
    """Connections that read beside the engine, each transaction as of one moment. Nothing is made, not even a file."""
    if isinstance(place, SqliteFile):
        return looked_at(place.path)
    return postgres_sessions.pool(place, "reader", size=2)


def read(place: Place, ask: Callable[[Connection], T]) -> T:
    """Return what `ask` finds there, as of one moment, beside whatever engine runs. Raises JournalError."""
    database = reader(place)
    try:
        with reading(place, database) as connection:
            return ask(connection)
    finally:
        database.dispose()


@contextlib.contextmanager
def reading(place: Place, database: Database) -> Iterator[Connection]:
    """Give a connection of `reader` on which all reads are of one moment. Raises JournalError."""
    try:
        with database.begin() as connection:
            yield connection
    except (SQLAlchemyError, UnicodeDecodeError) as error:
        if isinstance(place, SqliteFile):
            raise unavailable(place.path, "read", error) from error
        raise postgres_sessions.refused(place, "read", error) from error


AT_ONCE = 500
"""Rows that are read and written together."""


def copy(
    source: Journal, target: Journal, tables: Sequence[Table], told: Callable[[str, int], None] = lambda *_: None
) -> dict[str, int]:
    """Copy every table that the source has, and verify the journal that came of it. Returns how many rows each has;
    `told` hears each as it is done. Raises RefusedError for a target that is not new, JournalError for a source with
    tables that nobody here knows; nothing is written then."""
    counts = source.look(lambda reading: _fill(target, reading, source.place, tables, told))
    if (target.version, target.verify()) != (source.version, source.verify()):
        raise JournalCorrupt(f"what was copied to {target.place} does not verify", "Remove it; the source is unchanged")
    return counts


def backup(
    source: Place, path: Path, tables: Sequence[Table], told: Callable[[str, int], None] = lambda *_: None
) -> int:
    """Write a file with the cell as of one moment, beside the engine that writes it, and verify it. Returns its
    version. Raises RefusedError for a file that exists, JournalError with nothing left."""
    if path.exists():
        raise RefusedError(f"{path} exists already", "Name a new file")
    try:
        if isinstance(source, SqliteFile):
            copy_file(source.path, path)
        else:
            with closing(Journal(path, 0)) as target:
                read(source, lambda reading: _fill(target, reading, source, tables, told))
        return check(SqliteFile(path)).version
    except BaseException:
        for name in ("", "-wal", "-shm", ".new"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        raise


def restore(source: Path, place: SqliteFile) -> tuple[int, Path | None]:
    """Have the cell of a file in place of the one that is there, and keep that as another file. Returns the version and
    that file, if there was a cell. Raises JournalBusy while an engine has it, JournalError with nothing changed."""
    version = check(SqliteFile(source)).version
    former = former_name(place.path.resolve()) if place.path.exists() else None
    with closing(FileStore(place, 0)) as store:
        if former is not None:
            copy_file(place.path.resolve(), former)
        store.replace(source)
    return version, former


class JournalCheck(NamedTuple):
    """What was found whole."""

    version: int
    events: int
    """Those that are there: fewer than the version once old ones were let go."""


def check(place: Place) -> JournalCheck:
    """Read every event and the newest snapshot, and verify them. Raises JournalError."""

    def whole(connection: Connection) -> JournalCheck:
        head = head_of(connection, place)
        refuse_other(connection, place, head)
        newest_snapshot(connection, place)
        begun, end = beginning(connection, place), (head["last_version"], head["chain"])
        events = sum(event.versions for batch in batches(connection, place, begun, end) for event in batch)
        return JournalCheck(end[0], events)

    return read(place, whole)


def _fill(
    target: Journal, reading: Connection, place: Place, tables: Sequence[Table], told: Callable[[str, int], None]
) -> dict[str, int]:
    """Copy the tables of `place` into a new journal, all or nothing."""
    if target.version:
        raise RefusedError(f"there is a cell at {target.place} already", "Name another file or another schema")
    counts: dict[str, int] = {}

    def into(writing: Connection) -> None:
        for table in _of_source(reading, place, tables):
            counts[table.name] = _copied(reading, writing, table)
            told(table.name, counts[table.name])

    target.transact(into)
    target.reopen()
    return counts


def _of_source(reading: Connection, place: Place, tables: Sequence[Table]) -> list[Table]:
    there = set(inspect(reading).get_table_names()) - {table.name for table in OF_ONE_PLACE}
    known = {table.name for table in tables}
    if strange := sorted(there - known):
        raise JournalError(
            f"journal {place} has tables that this Muster does not know: {', '.join(strange[:5])}",
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


class JournalFollower:
    """A state that follows the journal another process writes. To be used by one thread."""

    def __init__(self, place: Schema) -> None:
        self.place = place
        self._reader = postgres_sessions.pool(place, "reader")
        self._state: State | None = None
        self._end = (0, 0)

    @property
    def version(self) -> int:
        return self._end[0]

    def catch_up(self) -> None:
        """Take in what was written meanwhile. Raises JournalError while the database cannot be read."""
        try:
            with self._reader.connect() as connection:
                head = head_of(connection, self.place)
                tables.refuse_other(connection, self.place, head)
                end = (head["last_version"], head["chain"])
                if end == self._end:
                    return
                first = self._state is None
                if self._state is None:
                    self._state = State()
                    body, *at = newest_snapshot(connection, self.place)
                    if body is not None:
                        self._state.load(body)
                    self._end = (at[0], at[1])
                for batch in batches(connection, self.place, self._end, end):
                    for event in batch:
                        self._state.apply(event)
                self._end = end
                if first:
                    gc.freeze()  # whoever takes over does not look through it for garbage
        except SQLAlchemyError as error:
            # Half a batch may have been taken in.
            self._state, self._end = None, (0, 0)
            raise postgres_sessions.refused(self.place, "follow", error) from error

    def close(self) -> None:
        """Let its connection go. What it knows stays."""
        self._reader.dispose()

    def finish(self, journal: Journal) -> State:
        """The state at the journal's end, now that nobody else writes it. Raises JournalError."""
        self.close()
        body, rest = (None, journal.after(*self._end)) if self._state is not None else journal.load()
        state = self._state or State()
        if body is not None:
            state.load(body)
        for batch in rest:
            for event in batch:
                state.apply(event)
        return state


class StandbyResult(NamedTuple):
    """The result of standing by."""

    lease: Lease
    follower: JournalFollower


def stand_by(place: Schema, stop: threading.Event, say: Callable[[str], None]) -> StandbyResult | None:
    """Wait until the lease can be had, following meanwhile. None when `stop` was set first. A database that cannot be
    reached is waited for, and so is a cell that nobody has begun: its name may be mistyped. `say` is told of every
    change. Raises JournalFormat and JournalCorrupt."""
    follower = JournalFollower(place)

    def follow() -> str:
        follower.catch_up()
        return f" at version {follower.version:,}"

    try:
        lease = wait_for(place, stop, say, follow)
    finally:
        follower.close()
    return None if lease is None else StandbyResult(lease, follower)


def wait_for(
    place: Schema, stop: threading.Event, say: Callable[[str], None], follow: Callable[[], str] = lambda: ""
) -> Lease | None:
    """The same, of whatever is kept there. `follow` is called now and then, and says how far it is."""
    candidate = LeaseCandidate(place)
    told, there = "", False
    with contextlib.ExitStack() as after:
        after.callback(candidate.stand_no_more)
        while not stop.is_set():
            try:
                there = there or exists(place)
                if there:
                    look = candidate.look()
                    if look.taken:
                        return candidate.lease()
                    candidate.stand()
                    at, key = follow(), look.holder
                    news = f"stands by{at}: {look.holder or 'nobody'} has the lease"
                else:
                    news = key = f"waits: nothing was begun yet at {place}"
            except (JournalFormat, JournalCorrupt):
                raise
            except JournalError as error:
                news = key = str(error)
            if key != told:
                told = key
                say(news)
            stop.wait(LOOK_S)
    return None
