"""The journal of a fleet: every submission with the cell it was sent to, and a log of events.

In a SQLite file or in a schema of a PostgreSQL server, by the same stores as the journals of cells. It is written
before anything is sent and after every answer, each time in one durable transaction: after a crash a fleet still has
everything it acknowledged, and knows what it may have sent. One process at a time has it open, by a lock on the
file, or by the lease and the fence of `engine.journal.postgres_store`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from sqlalchemy import Column, Connection, LargeBinary, MetaData, String, Table, func, insert, select

from console.fleet.queries import OPEN, FleetEvent, FleetSubmission, State
from engine.journal.database import BIG, Place, Schema, SqliteFile, create_some, place_of, put
from engine.journal.sqlite_store import FileStore
from engine.journal.tables import OF_A_FLEET, DatabaseKind, Head, table_of
from engine.model.errors import JournalBusy, JournalCorrupt, JournalError

if TYPE_CHECKING:
    from engine.journal.postgres_store import Lease, PostgresStore

T = TypeVar("T")
FORMAT = 1
EVENTS_KEPT = 100_000
PATIENCE_S, AGAIN_S = 5.0, 0.1
"""How long a server that restarts is waited for, and how often it is tried."""

_TABLES = MetaData()
_ABOUT = Table("fleet_about", _TABLES, Column("key", String, primary_key=True), Column("value", String, nullable=False))
_SUBMISSIONS = Table(
    "fleet_submission",
    _TABLES,
    Column("seq", BIG, primary_key=True, autoincrement=False),
    Column("id", String, nullable=False, unique=True),
    Column("state", String, nullable=False, index=True),
    Column("body", LargeBinary, nullable=False),
)
_EVENTS = Table(
    "fleet_event",
    _TABLES,
    Column("seq", BIG, primary_key=True),
    Column("at_ms", BIG, nullable=False),
    Column("what", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("detail", String, nullable=False),
)
_CLOSED = Table("fleet_closed", _TABLES, Column("cell", String, primary_key=True), Column("reason", String))
_HEAD = table_of(Head)
_OWN = tuple(_TABLES.sorted_tables)
KIND = DatabaseKind(OF_A_FLEET, (_HEAD, *_OWN))


class FleetJournal:
    """Open until `close`. Safe to use from several threads."""

    def __init__(self, where: Path | Place, lease: Lease | None = None) -> None:
        """Open or create. `lease`: one of a PostgreSQL database that was waited for. Raises JournalBusy, JournalCorrupt
        or JournalError."""
        self.place = place_of(where)
        self._decoder = msgspec.msgpack.Decoder(FleetSubmission)
        self._one_writer = threading.Lock()
        self._store = _opened(self.place, lease)
        try:
            self.uid = self._written(self._begun)
        except BaseException:
            self._store.close()
            raise

    @property
    def lease(self) -> Lease | None:
        """Lease that lets this process write; None for a file, which is locked instead."""
        return None if isinstance(self._store, FileStore) else self._store.lease

    @property
    def is_ours(self) -> bool:
        """True while it is certain that no other process has it. Check it before acting on its content."""
        return self.lease is None or self.lease.is_held

    def settle(self) -> bool:
        """Returns True when a refused write may have been kept after all, so that everything must be read again; it
        can be, when this returns. Raises JournalError while the database does not answer."""
        if isinstance(self._store, FileStore) or not self._store.in_doubt:
            return False
        with self._one_writer:
            self._store.settle()
        return True

    def _begun(self, connection: Connection) -> str:
        """Name by which cells tell this fleet's work from that of others."""
        if isinstance(self.place, Schema) and connection.execute(select(_HEAD.c.format)).scalar() != OF_A_FLEET:
            raise JournalError(f"{self.place} is the journal of a cell, not of a fleet", "Use another schema")
        create_some(connection, _OWN)
        rows: dict[str, str] = _pairs(connection, select(_ABOUT.c.key, _ABOUT.c.value))
        if not rows:
            rows = {"format": str(FORMAT), "uid": secrets.token_hex(6)}
            connection.execute(insert(_ABOUT), [{"key": key, "value": value} for key, value in rows.items()])
        if rows.get("format") != str(FORMAT):
            raise JournalError(
                f"the fleet's journal {self.place} has a format other than {FORMAT}, the one this Muster reads",
                "Use the version of Muster that wrote it",
            )
        return rows["uid"]

    def open_submissions(self) -> list[FleetSubmission]:
        """Submissions that are not over, oldest first."""
        with self._reading() as connection:
            bodies = select(_SUBMISSIONS.c.body).where(_SUBMISSIONS.c.state.in_(OPEN)).order_by(_SUBMISSIONS.c.seq)
            return [self._decoded(body) for body in connection.execute(bodies).scalars()]

    def last_seq(self) -> int:
        with self._reading() as connection:
            return connection.execute(select(func.max(_SUBMISSIONS.c.seq))).scalar() or 0

    def counts(self) -> dict[State, int]:
        """State -> submissions."""
        with self._reading() as connection:
            grouped = select(_SUBMISSIONS.c.state, func.count()).group_by(_SUBMISSIONS.c.state)
            return _pairs(connection, grouped)

    def found_in_time(self, ids: Sequence[str]) -> dict[str, FleetSubmission]:
        """As `found`; waits for a server that restarts, as before a change."""
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.found(ids)
            except JournalCorrupt:
                raise
            except JournalError:
                if isinstance(self.place, SqliteFile) or time.monotonic() > until:
                    raise
            time.sleep(AGAIN_S)

    def found(self, ids: Sequence[str]) -> dict[str, FleetSubmission]:
        """Submissions of these ids, where they exist."""
        there: dict[str, FleetSubmission] = {}
        with self._reading() as connection:
            for at in range(0, len(ids), 500):
                bodies = select(_SUBMISSIONS.c.body).where(_SUBMISSIONS.c.id.in_(ids[at : at + 500]))
                for body in connection.execute(bodies).scalars():
                    submission = self._decoded(body)
                    there[submission.id] = submission
        return there

    def page(self, states: Sequence[State], before: int, limit: int) -> list[FleetSubmission]:
        """Submissions with a smaller seq than `before`, newest first; 0: from the newest on."""
        bodies = select(_SUBMISSIONS.c.body).order_by(_SUBMISSIONS.c.seq.desc()).limit(limit)
        if states:
            bodies = bodies.where(_SUBMISSIONS.c.state.in_(states))
        if before:
            bodies = bodies.where(_SUBMISSIONS.c.seq < before)
        with self._reading() as connection:
            return [self._decoded(body) for body in connection.execute(bodies).scalars()]

    def events(self, limit: int) -> list[FleetEvent]:
        """Last events, newest first."""
        rows = select(_EVENTS).order_by(_EVENTS.c.seq.desc()).limit(limit)
        with self._reading() as connection:
            return [FleetEvent(**row) for row in connection.execute(rows).mappings()]

    def closed(self) -> dict[str, str]:
        """Cell -> reason why somebody has closed it."""
        with self._reading() as connection:
            return _pairs(connection, select(_CLOSED.c.cell, _CLOSED.c.reason))

    def write(self, submissions: Sequence[FleetSubmission] = (), events: Sequence[FleetEvent] = ()) -> None:
        """Write all of it or nothing; it is on the disk when this returns. Raises JournalError."""
        rows = [{"seq": s.seq, "id": s.id, "state": s.state, "body": msgspec.msgpack.encode(s)} for s in submissions]

        def change(connection: Connection) -> None:
            if rows:
                put(connection, _SUBMISSIONS, rows)
            _log(connection, events)

        self._written(change)

    def set_closed(self, cell: str, reason: str | None, told: FleetEvent) -> None:
        """Close a cell, or open it with `reason` None."""

        def change(connection: Connection) -> None:
            connection.execute(_CLOSED.delete().where(_CLOSED.c.cell == cell))
            if reason is not None:
                connection.execute(insert(_CLOSED).values(cell=cell, reason=reason))
            _log(connection, (told,))

        self._written(change)

    def close(self) -> None:
        self._store.close()

    def _written(self, change: Callable[[Connection], T]) -> T:
        with self._one_writer, self._store.writing() as connection:
            return change(connection)

    def _decoded(self, body: bytes) -> FleetSubmission:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise JournalCorrupt(
                f"the fleet's journal {self.place} has an unreadable submission ({error})",
                "Nothing was changed. Restore it from a backup",
            ) from None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._store.reading() as connection:
            yield connection


def copy(source: FleetJournal, target: FleetJournal) -> dict[str, int]:
    """Copy a fleet's journal into a new one, as a whole or not at all. Table -> rows."""
    if target.last_seq() or target.events(1):
        raise JournalError(f"{target.place} already holds a fleet", "Use another file or another schema")
    found = {}
    with source._reading() as reading:
        for table in _OWN:
            found[table] = [dict(row) for row in reading.execute(select(table).order_by(*table.primary_key)).mappings()]

    def into(writing: Connection) -> None:
        writing.execute(_ABOUT.delete())
        for table, rows in found.items():
            if table is _EVENTS:
                rows = [{name: value for name, value in row.items() if name != "seq"} for row in rows]
            if rows:
                writing.execute(insert(table), rows)

    target._written(into)
    target.uid = source.uid
    return {table.name: len(rows) for table, rows in found.items()}


def _log(connection: Connection, events: Sequence[FleetEvent]) -> None:
    if not events:
        return
    # What a cell has said may hold a character that PostgreSQL cannot keep.
    rows = [
        {"at_ms": e.at_ms, "what": e.what, "subject": e.subject, "detail": e.detail.replace("\0", "\ufffd")}
        for e in events
    ]
    connection.execute(insert(_EVENTS), rows)
    newest = connection.execute(select(func.max(_EVENTS.c.seq))).scalar() or 0
    if newest % 1000 < len(rows):
        connection.execute(_EVENTS.delete().where(_EVENTS.c.seq <= newest - EVENTS_KEPT))


def _opened(place: Place, lease: Lease | None) -> FileStore | PostgresStore:
    try:
        if isinstance(place, SqliteFile):
            return FileStore(place, 0, KIND)
        from engine.journal.postgres_store import PostgresStore

        return PostgresStore(place, 0, lease, KIND)
    except JournalBusy as busy:
        raise JournalBusy(f"the fleet's {busy.problem}", "Use that fleet, or stop it: muster fleet stop") from None


def _pairs(connection: Connection, wanted: Any) -> dict[Any, Any]:
    return {row[0]: row[1] for row in connection.execute(wanted)}
