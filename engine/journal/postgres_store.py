"""A journal's database that is a schema of a PostgreSQL server: one writer by lease and fence, and commits whose answer
was lost are found out.

Every connection that writes begins by raising the epoch in the row `fence`, if the lease is still ours, and every
transaction checks that the epoch is the one it began with. So what a session that was given up may still send can do
nothing: neither that of another process, nor our own. When a connection fails in a transaction, the next one therefore
sees for certain whether it was made: a turn by where the head is, other rows by the mark in `fence`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, event, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from engine.journal import cell_lease as leases
from engine.journal import postgres_sessions
from engine.journal.cell_lease import FENCE, LEASE, Lease
from engine.journal.database import Schema, create_some, said
from engine.journal.postgres_driver import driver
from engine.journal.tables import OF_A_CELL, DatabaseKind, Head, table_of
from engine.model.errors import JournalCorrupt, JournalError, JournalTaken, SpecError

T = TypeVar("T")
READ_ONLY = "25006"
"""SQLSTATE of a change in a session that reads."""
PATIENCE_S = 5.0
"""How long a write waits for a database that restarts or fails over, before it is refused."""
AGAIN_S = 0.1
STUCK_S = 10.0
"""After which a write that is not answered is given up."""
READERS = 6

_HELD = "SELECT 1 FROM fence WHERE id = 1 AND epoch = %s FOR SHARE"
_ADD_TURN = (
    f"WITH held AS ({_HELD}), moved AS (UPDATE head SET last_version = %s, chain = %s FROM held "
    "WHERE head.id = 1 AND head.last_version = %s AND head.chain = %s RETURNING 1) "
    "INSERT INTO batch (first_version, last_version, at_ms, wall_ms, crc, chain, events) "
    "SELECT %s, %s, %s, %s, %s, %s, %s FROM moved"
)
"""One statement, so that a turn without rows beside it is one question and one answer."""
_MARK = "UPDATE fence SET mark = %s WHERE id = 1 AND epoch = %s"
_BEGIN_WRITING = "SELECT owner, epoch FROM fence WHERE id = 1 FOR UPDATE"
_WHERE_IT_ENDS = "SELECT fence.mark, head.last_version, head.chain FROM fence, head WHERE fence.id = 1 AND head.id = 1"
_END_OWN = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND pid <> pg_backend_pid()"
)


class End(NamedTuple):
    """Where the database stands."""

    mark: int
    version: int
    chain: int


class PostgresStore:
    """The database, open for its one writer until `close`."""

    def __init__(self, place: Schema, seed: int, lease: Lease | None = None, kind: DatabaseKind = OF_A_CELL) -> None:
        """Open or create. `lease`: one that was waited for. Raises JournalBusy, JournalCorrupt or JournalError."""
        self.place = place
        self.in_doubt = False
        """Something may have been written that was refused: the head is to be read before anything else."""
        if lease is None:
            prepare(place, seed, kind)
            lease = leases.take(place)
        self.lease = lease
        self._epoch = 0
        self._busy: tuple[float, Any] | None = None
        """Since when a write is under way, and on which connection of the driver."""
        self._closed = threading.Event()
        self._writers = postgres_sessions.pool(place, "writer", self._session)
        self._readers = postgres_sessions.pool(place, "reader", size=READERS)
        self._note_waits()
        threading.Thread(target=self._watch, name="database-watch", daemon=True).start()
        try:
            self._marks = itertools.count(self._end(time.monotonic() + PATIENCE_S).mark + 1)
        except BaseException:
            self.close()
            raise

    @property
    def owner(self) -> str:
        return self.lease.owner

    def _session(self) -> Any:
        """A new connection that writes. What older ones of ours have under way is made or ended by then, and nothing
        more comes from them."""
        made = postgres_sessions.session(self.place, "writer", self.owner)
        try:
            if self._epoch:
                made.execute(_END_OWN, (f"muster writer {self.owner}",))
            owner, epoch = made.execute(_BEGIN_WRITING).fetchone()
            if owner != self.owner:
                raise self._taken()
            made.execute("UPDATE fence SET epoch = %s WHERE id = 1", (epoch + 1,))
            made.commit()
            self._epoch = epoch + 1
        except BaseException:
            made.close()
            raise
        return made

    # -- writing ------------------------------------------------------------------------------------------------------

    def add_turn(
        self, row: tuple[Any, ...], before: tuple[int, int], beside: Callable[[Connection], None] | None
    ) -> None:
        """Write a batch, move the head from `before`, and have `beside` write. All or nothing, and which of the two is
        known when this returns or raises; else `in_doubt` is set."""
        deadline = time.monotonic() + PATIENCE_S
        after = (row[1], row[5])
        values = (*after, *before, *row)
        while True:
            sent = begun = False
            try:
                with self._writers.connect() as connection:
                    sent = True
                    if beside is None:
                        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
                    with connection.begin() as transaction:
                        moved = connection.exec_driver_sql(_ADD_TURN, (self._epoch, *values)).rowcount == 1
                        if not moved:
                            transaction.rollback()
                        elif beside is not None:
                            begun = True
                            beside(connection)
            except (DBAPIError, PoolTimeout) as error:
                if not postgres_sessions.lost(error):
                    raise self._refused(error) from error
                if not sent or postgres_sessions.is_undone(error):
                    self._writers.dispose()
                else:
                    end = self._resolved(deadline, error)
                    if (end.version, end.chain) == after:
                        return
                    if (end.version, end.chain) != before:
                        raise self._elsewhere(before) from error
                if begun or time.monotonic() > deadline:
                    raise self._refused(error) from error
                time.sleep(AGAIN_S)
            else:
                if moved:
                    return
                raise self._elsewhere(before)
            finally:
                self._busy = None

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """One durable transaction of rows that are no turn."""
        deadline = time.monotonic() + PATIENCE_S
        mark = next(self._marks)
        with contextlib.ExitStack() as after:
            connection, transaction = self._begun(deadline, mark, after)
            try:
                yield connection
            except DBAPIError as error:
                with contextlib.suppress(DBAPIError):
                    transaction.rollback()
                raise self._refused(error) from error
            except BaseException:
                with contextlib.suppress(DBAPIError):
                    transaction.rollback()
                raise
            try:
                transaction.commit()
                self._busy = None
            except DBAPIError as error:
                if not postgres_sessions.lost(error):
                    raise self._refused(error) from error
                connection.invalidate()
                after.close()
                if self._resolved(max(deadline, time.monotonic() + 1), error).mark != mark:
                    raise self._refused(error) from error

    def _begun(self, deadline: float, mark: int, after: contextlib.ExitStack) -> tuple[Connection, Any]:
        """A connection and a transaction on it that holds the fence. A database that restarts is waited for: nothing
        has been written yet."""
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    connection = stack.enter_context(self._writers.connect())
                    transaction = connection.begin()
                    if connection.exec_driver_sql(_MARK, (mark, self._epoch)).rowcount != 1:
                        transaction.rollback()
                        raise self._taken()
                    after.push(stack.pop_all())
                    return connection, transaction
                except (DBAPIError, PoolTimeout) as error:
                    if not postgres_sessions.lost(error) or time.monotonic() > deadline:
                        raise self._refused(error) from error
            time.sleep(AGAIN_S)

    def _resolved(self, deadline: float, cause: BaseException) -> End:
        """Where the database ends, seen on a new connection. Raises JournalError, and leaves a doubt, when it cannot be
        asked in time."""
        self._writers.dispose()
        try:
            return self._end(deadline)
        except JournalTaken:
            raise
        except JournalError as error:
            self.in_doubt = True
            raise JournalError(
                f"the connection to {self.place} failed ({said(cause)}), and whether the change was kept "
                f"cannot be seen yet: {error.problem}",
                "Look at it again before you repeat it: what is shown once the database answers is what was kept",
            ) from error

    def settle(self) -> None:
        """Have a connection whose transactions come after all that was begun. Raises JournalError while there is
        none."""
        if self.in_doubt:
            self._writers.dispose()
            self._end(time.monotonic())
            self.in_doubt = False

    def refuse_if_taken(self) -> None:
        """Raises JournalTaken where another engine writes by now."""
        if self.lease.taken.is_set():
            raise self._taken()
        self._writers.dispose()
        self._end(time.monotonic())  # a new connection, which is told

    def _end(self, deadline: float) -> End:
        while True:
            try:
                with self._writers.connect() as connection:
                    row = connection.exec_driver_sql(_WHERE_IT_ENDS).first()
                if row is None:
                    raise JournalCorrupt(f"journal {self.place} has no head", "Restore the database from a backup")
                return End(*row)
            except (DBAPIError, PoolTimeout) as error:
                if not postgres_sessions.lost(error) or time.monotonic() > deadline:
                    raise self._refused(error) from error
            time.sleep(AGAIN_S)

    def _note_waits(self) -> None:
        """Know since when an answer is waited for: only then is a connection hung, not while we think."""

        def begin(connection: Connection, *_: Any) -> None:
            self._busy = (time.monotonic(), connection.connection.driver_connection)

        def end(*_: Any) -> None:
            self._busy = None

        event.listen(self._writers, "before_cursor_execute", begin)
        event.listen(self._writers, "after_cursor_execute", end)
        event.listen(self._writers, "handle_error", end)
        event.listen(self._writers, "commit", begin)

    def _watch(self) -> None:
        """Cut the line of a write that has waited for too long: a server that hangs keeps the connection, and says
        nothing. What became of the write is then found out like after any other loss."""
        while not self._closed.wait(1.0):
            busy = self._busy
            if busy is not None and time.monotonic() - busy[0] > STUCK_S:
                with contextlib.suppress(OSError, driver().Error), _socket_of(busy[1]) as line:
                    line.shutdown(socket.SHUT_RDWR)

    # -- reading ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self, doing: str = "read") -> Iterator[Connection]:
        """What is read on the connection is of one moment; also while nothing can be written."""
        try:
            with self._readers.connect() as connection:
                yield connection
        except (DBAPIError, PoolTimeout) as error:
            raise postgres_sessions.refused(self.place, doing, error) from error

    def look(self, read: Callable[[Connection], T]) -> T:
        """What `read` finds, as of one moment. Where it makes tables that were missing it may write, and they stay."""
        try:
            with self.reading() as connection:
                return read(connection)
        except JournalError as error:
            if error.__cause__ is None or postgres_sessions.code_of(error.__cause__) != READ_ONLY:
                raise
        with self.writing() as connection:
            return read(connection)

    def close(self) -> None:
        self._closed.set()
        self._writers.dispose()
        self._readers.dispose()
        self.lease.release()

    # -- errors -------------------------------------------------------------------------------------------------------

    def _refused(self, error: BaseException) -> Exception:
        if postgres_sessions.code_of(error) == "22021" or (isinstance(error, DBAPIError) and "NUL" in said(error)):
            return SpecError("text", "holds a character that PostgreSQL cannot keep (NUL)", "Leave it out")
        return postgres_sessions.refused(self.place, "write", error)

    def _elsewhere(self, before: tuple[int, int]) -> JournalError:
        """Why the head did not move: somebody else writes, or has written past the fence."""
        self._writers.dispose()
        end = self._end(time.monotonic())  # a new connection, so that it raises when the fence is no longer ours
        return JournalCorrupt(
            f"journal {self.place} ends at event {end.version}, and was left at {before[0]}",
            "Somebody changed the database by hand: restore it from a backup",
        )

    def _taken(self) -> JournalTaken:
        self.lease.taken.set()
        return JournalTaken(
            f"another engine has taken over journal {self.place}", "This one can write no more: attach to the other"
        )


def _socket_of(connection: Any) -> socket.socket:
    """The line of a connection, as another handle on it."""
    return socket.socket(fileno=os.dup(connection.fileno()))


def prepare(place: Schema, seed: int, kind: DatabaseKind = OF_A_CELL) -> None:
    """Have the schema and the tables of a journal; nothing if they are there. Raises JournalError."""
    psycopg = driver()
    database = postgres_sessions.pool(place, "writer")
    try:
        with database.connect() as connection:
            postgres_sessions.check_server(connection.connection.driver_connection, place)
            if connection.exec_driver_sql("SELECT to_regclass('head'), to_regclass('lease')").one() != (None, None):
                return
            # Two that start at once: the second finds what the first has made.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"muster {place.name}",))
            schema = place.name.replace('"', '""')
            if not connection.exec_driver_sql("SELECT 1 FROM pg_namespace WHERE nspname = %s", (place.name,)).first():
                connection.exec_driver_sql(f'CREATE SCHEMA "{schema}"')
            connection.commit()
        database.dispose()  # SQLAlchemy has asked in which schema it is, and there was none
        with database.begin() as connection:
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"muster {place.name}",))
            if connection.exec_driver_sql("SELECT to_regclass('head')").scalar() is not None:
                return
            create_some(connection, [*kind.tables, *leases.TABLES])
            head = {"id": 1, "format": kind.format, "last_version": 0, "chain": 0, "seed": seed}
            connection.execute(insert(table_of(Head)).values(head))
            connection.execute(insert(LEASE).values(id=1, owner="", holder="", renewals=0, since_ms=0, renewed_ms=0))
            connection.execute(insert(FENCE).values(id=1, owner="", epoch=0, mark=0))
    except (DBAPIError, psycopg.Error) as error:
        raise postgres_sessions.refused(place, "open", error) from error
    finally:
        database.dispose()


def exists(place: Schema) -> bool:
    """Whether somebody has begun a journal there, of a cell or of a fleet. Raises JournalError."""
    database = postgres_sessions.pool(place, "reader")
    try:
        with database.connect() as connection:
            return connection.exec_driver_sql("SELECT to_regclass('head')").scalar() is not None
    except DBAPIError as error:
        raise postgres_sessions.refused(place, "open", error) from error
    finally:
        database.dispose()
