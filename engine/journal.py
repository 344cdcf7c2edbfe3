"""The durable record: one transaction per engine turn, a checksum on everything, snapshot plus tail on start.

A batch row holds the events of one turn as one blob, its CRC-32, and a running CRC over all batches so far, so that a
changed, missing or swapped batch is found at start. The `head` row, written in the same transaction, tells the last
version, so that a lost tail is found too. Nothing is repaired by guessing: a journal that does not verify is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
from sqlalchemy import Connection, MetaData, Table, create_engine, event, insert, inspect, select
from sqlalchemy import Engine as Database
from sqlalchemy.dialects import registry
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlmodel import Field, SQLModel

from engine import events as ev
from engine.errors import JournalBusy, JournalCorrupt, JournalError

FORMAT = 2
SNAPSHOTS_KEPT = 2

T = TypeVar("T")
Beside = Callable[[Connection], None]
"""What is written in the same transaction as a turn. When it raises, the turn has not happened."""


class Batch(SQLModel, table=True):
    """The events of one turn."""

    __tablename__ = "batch"
    first_version: int = Field(primary_key=True)
    last_version: int
    at_ms: int
    """Cell time of the last event."""
    wall_ms: int
    crc: int
    chain: int
    """CRC-32 over the chain before and this batch's CRC."""
    events: bytes


class Snapshot(SQLModel, table=True):
    """The whole state at a version."""

    __tablename__ = "snapshot"
    version: int = Field(primary_key=True)
    wall_ms: int
    chain: int
    """Chain value of the batch that ends at this version."""
    crc: int
    body: bytes


class Head(SQLModel, table=True):
    """One row: what the journal is and where it ends."""

    __tablename__ = "head"
    id: int = Field(primary_key=True)
    format: int
    last_version: int
    chain: int
    seed: int


class Estimate(SQLModel, table=True):
    """A start that was foretold to somebody. No part of the state: it is only compared with what happened."""

    __tablename__ = "estimate"
    id: int | None = Field(default=None, primary_key=True)
    at_ms: int
    """Cell time at which it was made; the other times are cell times too."""
    version: int
    horizon_ms: int
    kind: str
    """`start` of a workload that waited, or `run`: of one that was tried before it was submitted."""
    workload: str
    attempts: int
    """Starts it had had by then."""
    p10_ms: int | None
    """None: after the horizon."""
    p50_ms: int | None
    p90_ms: int | None
    chance_permille: int


_ADD_BATCH = (
    "INSERT INTO batch (first_version, last_version, at_ms, wall_ms, crc, chain, events) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_MOVE_HEAD = "UPDATE head SET last_version = ?, chain = ?"


class Journal:
    """An open journal: this process is its only writer until `close`."""

    def __init__(self, path: Path, seed: int) -> None:
        """Open or create. Raises JournalBusy, JournalCorrupt or JournalError."""
        self.path = path
        self._lock = _take_lock(path)
        try:
            if not path.exists():
                _create(path, seed)
            self._db = _connect(path)
            self.seed, self.version, self._chain = self._open_head()
        except BaseException:
            self._lock.close()
            raise

    def _open_head(self) -> tuple[int, int, int]:
        """(seed, last version, chain)"""
        with self._reading("open"), self._db.begin() as connection:
            head = connection.execute(select(_table(Head))).mappings().first()
        if head is None:
            raise self._corrupt("has no head")
        if head["format"] != FORMAT:
            raise JournalError(
                f"journal {self.path} has format {head['format']}, this Muster reads {FORMAT}",
                "Use the Muster that wrote it",
            )
        return head["seed"], head["last_version"], head["chain"]

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, batch: list[ev.AnyEvent], first_version: int, at_ms: int, beside: Beside | None = None) -> None:
        """Make the events durable, and in the same transaction what `beside` writes. When this raises, none of them is
        in the journal."""
        payload = ev.encode(batch)
        crc = zlib.crc32(payload)
        chain = _link(self._chain, crc)
        last = first_version + sum(event.versions for event in batch) - 1
        row = (first_version, last, at_ms, _wall_ms(), crc, chain, payload)
        with self._writing(), self._db.begin() as connection:
            # Spelled out, because composing the two takes longer than they do.
            connection.exec_driver_sql(_ADD_BATCH, row)
            connection.exec_driver_sql(_MOVE_HEAD, (last, chain))
            if beside is not None:
                beside(connection)
        self.version, self._chain = last, chain

    def transact(self, change: Callable[[Connection], T]) -> T:
        """Run `change` in one transaction of the journal's database: rows that stand beside the events and are as
        durable as they are. Nothing is replayed from them. Raises JournalError with nothing written."""
        with self._writing(), self._db.begin() as connection:
            # The driver would begin only at the first change, and what was read before it might be of another moment.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return change(connection)

    def look(self, read: Callable[[Connection], T]) -> T:
        """Run `read`, which changes nothing, in one transaction: also where nothing can be written. Raises
        JournalError."""
        with self._reading("read"), self._db.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            return read(connection)

    def write_snapshot(self, state: dict[str, Any], version: int) -> None:
        """Store the state at the journal's present version; older snapshots beyond SNAPSHOTS_KEPT go."""
        body = zlib.compress(msgspec.msgpack.encode(state), 1)
        row = {
            "version": version, "wall_ms": _wall_ms(), "chain": self._chain, "crc": zlib.crc32(body), "body": body,
        }  # fmt: skip
        table = _table(Snapshot)
        with self._writing(), self._db.begin() as connection:
            if connection.execute(select(table.c.version).where(table.c.version == version)).first():
                return
            connection.execute(insert(table), row)
            kept = connection.execute(select(table.c.version).order_by(table.c.version.desc()).limit(SNAPSHOTS_KEPT))
            oldest = min(v for (v,) in kept)
            connection.execute(table.delete().where(table.c.version < oldest))

    def keep_estimates(self, estimates: list[Estimate]) -> None:
        """Store what was foretold. Not part of the record: nothing is replayed from it."""
        rows = [estimate.model_dump(exclude={"id"}) for estimate in estimates]
        with self._writing(), self._db.begin() as connection:
            SQLModel.metadata.create_all(connection, tables=[_table(Estimate)])
            connection.execute(insert(_table(Estimate)), rows)

    # -- reading ----------------------------------------------------------------------------------------------------

    def estimates(self) -> list[Estimate]:
        """All that were kept, oldest first."""
        table = _table(Estimate)
        with self._reading("read"), self._db.connect() as connection:
            if not inspect(connection).has_table(table.name):
                return []
            rows = connection.execute(select(table).order_by(table.c.id)).mappings().all()
        return [Estimate(**row) for row in rows]

    def load(self, *, use_snapshot: bool = True) -> tuple[dict[str, Any] | None, Iterator[list[ev.AnyEvent]]]:
        """The newest snapshot, and the batches after it. Verifies both; raises JournalCorrupt."""
        body, version, chain = None, 0, 0
        with self._reading("load"):
            table = _table(Snapshot)
            with self._db.connect() as connection:
                newest = connection.execute(select(table).order_by(table.c.version.desc()).limit(1)).mappings().first()
        if newest is not None and use_snapshot:
            if zlib.crc32(newest["body"]) != newest["crc"]:
                raise self._corrupt(
                    f"snapshot of version {newest['version']} fails its checksum",
                    "Start with --ignore-snapshot to replay every batch instead, or restore the file from a backup",
                )
            body = msgspec.msgpack.decode(zlib.decompress(newest["body"]))
            version, chain = newest["version"], newest["chain"]
        return body, self._batches(version, chain)

    def _batches(self, version: int, chain: int) -> Iterator[list[ev.AnyEvent]]:
        for row in self._rows_after(version):
            if row["first_version"] != version + 1:
                raise self._corrupt(f"events {version + 1} to {row['first_version'] - 1} are missing")
            if zlib.crc32(row["events"]) != row["crc"]:
                raise self._corrupt(
                    f"the batch of events {row['first_version']} to {row['last_version']} fails its checksum"
                )
            chain = _link(chain, row["crc"])
            if chain != row["chain"]:
                raise self._corrupt(f"the batch of event {row['first_version']} does not follow from those before it")
            try:
                batch = ev.decode(row["events"])
            except msgspec.DecodeError as error:
                raise self._corrupt(f"the batch of event {row['first_version']} does not decode: {error}") from error
            if (found := sum(event.versions for event in batch)) != row["last_version"] - row["first_version"] + 1:
                raise self._corrupt(f"the batch of event {row['first_version']} has {found} events")
            version = row["last_version"]
            yield batch
        if version != self.version or chain != self._chain:
            raise self._corrupt(f"ends at event {version}, but {self.version} were acknowledged")

    def _rows_after(self, version: int) -> Iterator[Any]:
        table = _table(Batch)
        query = select(table).where(table.c.first_version > version).order_by(table.c.first_version)
        with self._reading("read"), self._db.connect() as connection:
            yield from connection.execution_options(yield_per=64).execute(query).mappings()

    def audit(self) -> Iterator[tuple[int, ev.AuditEntry]]:
        """(version, entry) of every executed plan, oldest first."""
        version = 0
        for batch in self._batches(0, 0):
            for record in batch:
                version += record.versions
                if isinstance(record, ev.Audited):
                    yield version, record.entry

    def verify(self) -> int:
        """Read everything, snapshots included. Returns the number of events; raises JournalCorrupt."""
        count = sum(event.versions for batch in self._batches(0, 0) for event in batch)
        table = _table(Snapshot)
        with self._reading("verify"), self._db.connect() as connection:
            for row in connection.execute(select(table.c.version, table.c.crc, table.c.body)):
                if zlib.crc32(row.body) != row.crc:
                    raise self._corrupt(f"snapshot of version {row.version} fails its checksum")
        return count

    def close(self) -> None:
        self._db.dispose()
        self._lock.close()

    # -- errors -----------------------------------------------------------------------------------------------------

    def _corrupt(self, what: str, remedy: str = "") -> JournalCorrupt:
        return JournalCorrupt(
            f"journal {self.path} {what}",
            remedy or "Nothing was changed. Restore the file from a backup, or move it away to start an empty cell",
        )

    @contextlib.contextmanager
    def _reading(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise _unavailable(self.path, doing, error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        with self._reading("write"):
            yield


def create_tables(connection: Connection, metadata: MetaData) -> None:
    """`metadata.create_all`, with one look at which tables there are, and statements that are written out once: a cell
    that is opened has tens of them."""
    there = inspect(connection).get_table_names()
    for table in metadata.sorted_tables:
        if table.name not in there:
            for statement in _statements(table, connection.dialect.name):
                connection.exec_driver_sql(statement)


@functools.cache
def _statements(table: Table, dialect_name: str) -> tuple[str, ...]:
    """What makes a table and its indexes."""
    dialect = registry.load(dialect_name)()
    indexes = sorted(table.indexes, key=lambda index: str(index.name))
    made: list[CreateTable | CreateIndex] = [CreateTable(table), *map(CreateIndex, indexes)]
    return tuple(str(each.compile(dialect=dialect)) for each in made)


class Memory:
    """Stands in for the journal of a cell that is kept in memory: it has the rows beside the events, and no events."""

    def __init__(self) -> None:
        self._db = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})

    def transact(self, change: Callable[[Connection], T]) -> T:
        """As `Journal.transact`."""
        try:
            with self._db.begin() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                return change(connection)
        except (DatabaseError, sqlite3.DatabaseError) as error:
            raise _unavailable(Path(":memory:"), "write", error) from error

    def look(self, read: Callable[[Connection], T]) -> T:
        """As `Journal.look`."""
        return self.transact(read)

    def close(self) -> None:
        self._db.dispose()


def _unavailable(path: Path, doing: str, error: Exception) -> JournalError:
    """What the database said, as one of our errors."""
    text = str(getattr(error, "orig", error))
    if "locked" in text or "busy" in text:
        return JournalBusy(f"cannot {doing} journal {path}: another program has locked it", "Close that program")
    if "full" in text:
        return JournalError(
            f"cannot {doing} journal {path}: the disk is full", "Free some space; nothing acknowledged is lost"
        )
    if any(sign in text for sign in ("malformed", "not a database", "no such table", "no such column")):
        return JournalCorrupt(
            f"journal {path} is damaged: {text}",
            "Nothing was changed. Restore the file from a backup, or move it away to start an empty cell",
        )
    return JournalError(
        f"cannot {doing} journal {path}: {text}", "Check that the folder exists, is writable and has space"
    )


def _create(path: Path, seed: int) -> None:
    """A new journal, complete before it gets its name: an empty or headless file is never one of ours."""
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.unlink(missing_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        database = create_engine(f"sqlite:///{fresh}")
        SQLModel.metadata.create_all(database, tables=[_table(Batch), _table(Snapshot), _table(Head)])
        with database.begin() as connection:
            connection.execute(insert(_table(Head)).values(id=1, format=FORMAT, last_version=0, chain=0, seed=seed))
        database.dispose()
        fresh.rename(path)
    except OSError as error:
        raise JournalError(f"cannot create journal {path}: {error.strerror}", "Check the folder") from error
    except DatabaseError as error:
        raise _unavailable(path, "create", error) from error


def _take_lock(path: Path) -> IO[str]:
    """One writer: an advisory lock on a file beside the journal, which a killed process gives back by dying."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(f"{path}.lock", "a+", encoding="ascii")  # noqa: SIM115 - held for the journal's life
    except OSError as error:
        raise JournalError(
            f"cannot open journal {path}: {error.strerror}", "Check that the folder is writable"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise JournalBusy(
            f"journal {path} is open in another engine (process {holder})", "Attach to that engine, or stop it first"
        ) from error
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _connect(path: Path) -> Database:
    database = create_engine(f"sqlite:///{path}", connect_args={"timeout": 2.0})

    @event.listens_for(database, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    return database


def _table(model: type[SQLModel]) -> Any:
    """The Core table of a model: bulk rows never become objects."""
    return model.__table__  # type: ignore[attr-defined]


def _link(chain: int, crc: int) -> int:
    return zlib.crc32(crc.to_bytes(4, "little"), chain)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
