"""What a fleet remembers: every submission with where it was sent, and a log of what happened.

Written before anything is sent and after every answer, each time in one durable transaction: what a fleet has said it
has, it still has after a crash, and it knows what it may have sent. One process at a time may have it open.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    insert,
    select,
)
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from console.fleet_shown import OPEN, FleetEvent, State, Submission
from engine.database import put, said
from engine.errors import JournalBusy, JournalCorrupt, JournalError
from engine.file_lock import HeldElsewhere, take_lock

FORMAT = 1
EVENTS_KEPT = 100_000
BUSY_S = 5.0

_TABLES = MetaData()
_ABOUT = Table("fleet_about", _TABLES, Column("key", String, primary_key=True), Column("value", String, nullable=False))
_SUBMISSIONS = Table(
    "fleet_submission",
    _TABLES,
    Column("seq", Integer, primary_key=True),
    Column("id", String, nullable=False, unique=True),
    Column("state", String, nullable=False, index=True),
    Column("body", LargeBinary, nullable=False),
)
_EVENTS = Table(
    "fleet_event",
    _TABLES,
    Column("seq", Integer, primary_key=True),
    Column("at_ms", Integer, nullable=False),
    Column("what", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("detail", String, nullable=False),
)
_CLOSED = Table("fleet_closed", _TABLES, Column("cell", String, primary_key=True), Column("reason", String))


class FleetJournal:
    """Open until `close`. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        """Open or create. Raises JournalBusy, JournalCorrupt or JournalError."""
        self.path = path
        self._decoder = msgspec.msgpack.Decoder(Submission)
        self._lock = _take_lock(path)
        try:
            self._db = _connect(path)
            with self._begun("open") as connection:
                _TABLES.create_all(connection)
                self.uid = self._about(connection)
        except BaseException:
            self._lock.close()
            raise

    def _about(self, connection: Connection) -> str:
        """The name by which cells know work of this fleet from that of others."""
        rows: dict[str, str] = _pairs(connection, select(_ABOUT.c.key, _ABOUT.c.value))
        if not rows:
            rows = {"format": str(FORMAT), "uid": secrets.token_hex(6)}
            connection.execute(insert(_ABOUT), [{"key": key, "value": value} for key, value in rows.items()])
        if rows.get("format") != str(FORMAT):
            raise JournalError(
                f"the fleet's journal {self.path} has another format than {FORMAT}, which this Muster reads",
                "Use the version of Muster that wrote it",
            )
        return rows["uid"]

    def open_submissions(self) -> list[Submission]:
        """Those that are not over, oldest first."""
        with self._begun("read") as connection:
            bodies = select(_SUBMISSIONS.c.body).where(_SUBMISSIONS.c.state.in_(OPEN)).order_by(_SUBMISSIONS.c.seq)
            return [self._decoded(body) for body in connection.execute(bodies).scalars()]

    def last_seq(self) -> int:
        with self._begun("read") as connection:
            return connection.execute(select(func.max(_SUBMISSIONS.c.seq))).scalar() or 0

    def counts(self) -> dict[str, int]:
        """State -> submissions."""
        with self._begun("read") as connection:
            grouped = select(_SUBMISSIONS.c.state, func.count()).group_by(_SUBMISSIONS.c.state)
            return _pairs(connection, grouped)

    def found(self, ids: Sequence[str]) -> dict[str, Submission]:
        """Those of the ids that there are."""
        there: dict[str, Submission] = {}
        with self._begun("read") as connection:
            for at in range(0, len(ids), 500):
                bodies = select(_SUBMISSIONS.c.body).where(_SUBMISSIONS.c.id.in_(ids[at : at + 500]))
                for body in connection.execute(bodies).scalars():
                    submission = self._decoded(body)
                    there[submission.id] = submission
        return there

    def page(self, states: Sequence[State], before: int, limit: int) -> list[Submission]:
        """Newest first, those with a smaller seq than `before`; 0: from the newest on."""
        bodies = select(_SUBMISSIONS.c.body).order_by(_SUBMISSIONS.c.seq.desc()).limit(limit)
        if states:
            bodies = bodies.where(_SUBMISSIONS.c.state.in_(states))
        if before:
            bodies = bodies.where(_SUBMISSIONS.c.seq < before)
        with self._begun("read") as connection:
            return [self._decoded(body) for body in connection.execute(bodies).scalars()]

    def events(self, limit: int) -> list[FleetEvent]:
        """The last, newest first."""
        rows = select(_EVENTS).order_by(_EVENTS.c.seq.desc()).limit(limit)
        with self._begun("read") as connection:
            return [FleetEvent(**row) for row in connection.execute(rows).mappings()]

    def closed(self) -> dict[str, str]:
        """Cell -> why somebody has closed it."""
        with self._begun("read") as connection:
            return _pairs(connection, select(_CLOSED.c.cell, _CLOSED.c.reason))

    def write(self, submissions: Sequence[Submission] = (), events: Sequence[FleetEvent] = ()) -> None:
        """All of it or nothing, on the disk when this returns. Raises JournalError."""
        rows = [{"seq": s.seq, "id": s.id, "state": s.state, "body": msgspec.msgpack.encode(s)} for s in submissions]
        with self._begun("write to") as connection:
            if rows:
                put(connection, _SUBMISSIONS, rows)
            self._log(connection, events)

    def set_closed(self, cell: str, reason: str | None, told: FleetEvent) -> None:
        """`reason` None: it is open again."""
        with self._begun("write to") as connection:
            connection.execute(_CLOSED.delete().where(_CLOSED.c.cell == cell))
            if reason is not None:
                connection.execute(insert(_CLOSED).values(cell=cell, reason=reason))
            self._log(connection, (told,))

    def close(self) -> None:
        self._db.dispose()
        self._lock.close()

    def _log(self, connection: Connection, events: Sequence[FleetEvent]) -> None:
        if not events:
            return
        rows = [{"at_ms": e.at_ms, "what": e.what, "subject": e.subject, "detail": e.detail} for e in events]
        connection.execute(insert(_EVENTS), rows)
        newest = connection.execute(select(func.max(_EVENTS.c.seq))).scalar() or 0
        if newest % 1000 < len(rows):
            connection.execute(_EVENTS.delete().where(_EVENTS.c.seq <= newest - EVENTS_KEPT))

    def _decoded(self, body: bytes) -> Submission:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise JournalCorrupt(
                f"the fleet's journal {self.path} has a submission that cannot be read ({error})",
                "Nothing was changed. Restore the file from a backup",
            ) from None

    @contextmanager
    def _begun(self, doing: str) -> Iterator[Connection]:
        try:
            with self._db.begin() as connection:
                yield connection
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise JournalError(
                f"cannot {doing} the fleet's journal {self.path}: {said(error)}",
                "Check that the folder is writable and has space; nothing acknowledged is lost",
            ) from error


def _take_lock(path: Path) -> IO[str]:
    try:
        return take_lock(path)
    except OSError as error:
        raise JournalError(
            f"cannot open the fleet's journal {path}: {error.strerror}", "Check that the folder is writable"
        ) from error
    except HeldElsewhere as held:
        raise JournalBusy(
            f"the fleet's journal {path} is open in {held}", "Use that fleet, or stop it: muster fleet stop"
        ) from None


def _connect(path: Path) -> Database:
    database = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_S})

    @event.listens_for(database, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    @event.listens_for(database, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return database


def _pairs(connection: Connection, wanted: Any) -> dict[str, Any]:
    return {row[0]: row[1] for row in connection.execute(wanted)}
