"""A journal's database that is a schema of a PostgreSQL server: one writer, by lease and fence.

A `Lease` is renewed by its holder. It is taken from a holder that has not renewed it for TTL_S, as the taker has seen
with its own clock while it could see the database all the time. Clocks of machines are never compared, and after an
outage of the database the holder has that long to come back.

Every connection that writes begins by raising the epoch in the row `fence`, if the lease is still ours, and every
transaction checks that the epoch is the one it began with. So a session that was given up can do nothing more, be it of
another process or our own: an old holder can write nothing once the lease was taken. When a connection fails in a
transaction, the next one sees for certain whether the transaction was made: a turn by where the head is, other rows by
the mark in `fence`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, event, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from engine.journal import postgres_sessions
from engine.journal.database import BIG, Schema, create_some, driver, error_line
from engine.journal.process_locks import Holder, this_process
from engine.journal.tables import OF_A_CELL, DatabaseKind, Head, table_of
from engine.model.errors import JournalBusy, JournalCorrupt, JournalError, JournalTaken, SpecError

TTL_S = 4.0
"""A holder that has not renewed for so long has lost its lease to whoever stands by."""
RENEW_S = 0.5
LOOK_S = 0.25
"""Between two looks of who stands by."""

_META = MetaData()
LEASE = Table(
    "lease",
    _META,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("owner", String, nullable=False),
    Column("holder", String, nullable=False),
    Column("renewals", BIG, nullable=False),
    Column("since_ms", BIG, nullable=False),
    Column("renewed_ms", BIG, nullable=False),
)
FENCE = Table(
    "fence",
    _META,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("owner", String, nullable=False),
    Column("epoch", BIG, nullable=False),
    Column("mark", BIG, nullable=False),
)
"""`epoch` grows whenever somebody begins to write, also the same process by a new connection; `mark` is the last
transaction of rows beside the journal, so that it can be told whether one was made whose answer was lost."""
STANDBY = Table(
    "standby",
    _META,
    Column("owner", String, primary_key=True),
    Column("holder", String, nullable=False),
    Column("seen_ms", BIG, nullable=False),
)
TABLES = (LEASE, FENCE, STANDBY)

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_LOOK = f"SELECT owner, holder, renewals, {_NOW} - renewed_ms FROM lease WHERE id = 1"
_TAKE = (
    f"UPDATE lease SET owner = %s, holder = %s, renewals = 0, since_ms = {_NOW}, renewed_ms = {_NOW} "
    "WHERE id = 1 AND owner = %s AND renewals = %s"
)
_FENCE = "UPDATE fence SET owner = %s, epoch = epoch + 1 WHERE id = 1"
_RENEW = f"UPDATE lease SET renewals = renewals + 1, renewed_ms = {_NOW} WHERE id = 1 AND owner = %s"
_RELEASE = f"UPDATE lease SET owner = '', renewed_ms = {_NOW} WHERE id = 1 AND owner = %s"
_END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE %s AND pid <> pg_backend_pid()"
)
_STAND = (
    f"INSERT INTO standby (owner, holder, seen_ms) VALUES (%s, %s, {_NOW}) "
    "ON CONFLICT (owner) DO UPDATE SET seen_ms = excluded.seen_ms"
)
_STAND_NO_MORE = f"DELETE FROM standby WHERE owner = %s OR seen_ms < {_NOW} - 60000"


def awake_or_asleep_s() -> float:
    """Seconds, also those in which this machine was suspended: others went on meanwhile. Never goes back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class LeaseSighting(NamedTuple):
    """One look of a candidate at the lease."""

    holder: str
    """Who has it, for people; empty: nobody."""
    moves: bool
    """It was renewed since the look before."""
    taken: bool
    """It is ours now."""


class Takeover(NamedTuple):
    """How a lease was taken from another process."""

    holder: str
    """Who had it last, for people."""
    silent_ms: int
    """Since its last renewal or its release, by the database's clock."""
    taken_s: float
    """Monotonic seconds at which it was taken."""


class LeaseCandidate:
    """One who wants the lease of a cell. To be used by one thread."""

    def __init__(self, place: Schema) -> None:
        self.place = place
        self.owner = secrets.token_hex(8)
        self._holder = msgspec.json.encode(this_process()).decode()
        self._connection: Any = None
        self._seen: tuple[str, int] | None = None
        self._since = 0.0
        self._takeover: Takeover | None = None

    def look(self) -> LeaseSighting:
        """Look who has it, and take it if it is free or its holder is known to be gone. Raises JournalError while the
        database cannot be asked: what was seen until then counts no more."""
        try:
            if self._connection is None:
                self._connection = postgres_sessions.session(self.place, "lease", self.owner)
            found = self._looked()
            self._connection.commit()
        except driver().Error as error:
            self._forget()
            raise postgres_sessions.refused(self.place, "take the lease of", error) from error
        return found

    def _looked(self) -> LeaseSighting:
        row = self._connection.execute(_LOOK).fetchone()
        if row is None:
            raise JournalError(f"journal {self.place} has no lease", "Restore the database from a backup")
        owner, holder, renewals, silent_ms = row
        now = time.monotonic()
        moves = self._seen is not None and self._seen != (owner, renewals)
        if self._seen != (owner, renewals):
            self._seen, self._since = (owner, renewals), now
        free = owner in ("", self.owner) or now - self._since >= TTL_S or holder_of(holder).is_gone()
        taken = free and self._take(owner, renewals)
        if taken and holder:
            self._takeover = Takeover(str(holder_of(holder)), max(0, silent_ms), time.monotonic())
        return LeaseSighting("" if owner == "" else str(holder_of(holder)), moves, taken)

    def _take(self, owner: str, renewals: int) -> bool:
        self._connection.commit()
        try:
            if self._connection.execute(_TAKE, (self.owner, self._holder, owner, renewals)).rowcount != 1:
                return False
            if owner not in ("", self.owner):
                # A frozen holder may stand in a transaction that holds the fence.
                self._connection.execute(_END_SESSIONS, (f"muster % {owner}",))
            self._connection.execute(_FENCE, (self.owner,))
            self._connection.execute(_STAND_NO_MORE, (self.owner,))
            self._connection.commit()
        except driver().errors.LockNotAvailable:
            # A renewal of the holder before stands in a transaction: its machine may be cut off.
            self._connection.rollback()
            self._connection.execute(_END_SESSIONS, (f"muster % {owner}",))
            return False
        return True

    def stand(self) -> None:
        """Have it known that this process stands by. Raises JournalError."""
        try:
            self._connection.execute(_STAND, (self.owner, self._holder))
            self._connection.commit()
        except driver().Error as error:
            self._forget()
            raise postgres_sessions.refused(self.place, "stand by for", error) from error

    def stand_no_more(self) -> None:
        try:
            if self._connection is not None:
                self._connection.execute(_STAND_NO_MORE, (self.owner,))
                self._connection.commit()
        except driver().Error:
            pass  # it goes by its age
        self._forget()

    def _forget(self) -> None:
        self._seen = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def lease(self) -> Lease:
        """The lease that `look` has taken, kept from now on."""
        self._forget()
        return Lease(self.place, self.owner, self._takeover)


def holder_of(text: str) -> Holder:
    try:
        return msgspec.json.decode(text, type=Holder)
    except msgspec.DecodeError:
        return Holder(host="another machine", pid=0)


def take(place: Schema) -> Lease:
    """The lease of a cell, at once or after a holder that does not renew has lost it. Raises JournalBusy when somebody
    else has it and lives, and JournalError."""
    candidate = LeaseCandidate(place)
    while not (look := candidate.look()).taken:
        if look.moves:
            candidate.stand_no_more()
            raise JournalBusy(
                f"journal {place} is open in another engine ({look.holder})",
                "Attach to that engine, stop it first, or start with --standby to take over when it ends",
            )
        time.sleep(LOOK_S)
    return candidate.lease()


class Lease:
    """A lease that was taken. A thread of its own renews it until `release`, also while the engine is busy."""

    def __init__(self, place: Schema, owner: str, takeover: Takeover | None = None) -> None:
        self.place = place
        self.owner = owner
        self.takeover = takeover
        """None: nobody had it before."""
        self.takeover_ms = 0
        """How long there was nobody who could write, until this process took over; 0: it was no standby."""
        self.taken = threading.Event()
        """Somebody else has it now: this process can write nothing any more."""
        self.error = ""
        """Why it could not be renewed last; empty while all is well."""
        self.alive: Callable[[], bool] = lambda: True
        """When that says no, who holds it does not do its work any more: it is given back."""
        self.released = False
        self._renewed_s = awake_or_asleep_s()
        self._stop = threading.Event()
        self._connection: Any = None
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    @property
    def is_held(self) -> bool:
        """Return whether nobody can have taken it yet, by our own clock: what must be known before anything is done
        outside the database, where the fence does not reach."""
        return not self.taken.is_set() and awake_or_asleep_s() - self._renewed_s < TTL_S - RENEW_S

    def note_ready(self) -> str:
        """Note that this process works from now on. Returns, for people, what it took over; empty: nothing."""
        if self.takeover is None:
            return ""
        opened_ms = round((time.monotonic() - self.takeover.taken_s) * 1000)
        self.takeover_ms = self.takeover.silent_ms + opened_ms
        return (
            f"took over from {self.takeover.holder} after {self.takeover_ms / 1000:.1f} s: "
            f"{self.takeover.silent_ms / 1000:.1f} s until the lease was had, {opened_ms / 1000:.1f} s to begin"
        )

    def _run(self) -> None:
        while not self._stop.wait(RENEW_S):
            if not self.alive():
                self._give_back()
                self.taken.set()
                return
            try:
                asked_s = awake_or_asleep_s()
                if not self._renew():
                    self.taken.set()
                    return
                self.error, self._renewed_s = "", asked_s
            except driver().Error as error:
                self.error = error_line(error)
                self._close()

    def _renew(self) -> bool:
        if self._connection is None:
            self._connection = postgres_sessions.session(self.place, "lease", self.owner)
        renewed: bool = self._connection.execute(_RENEW, (self.owner,)).rowcount == 1
        self._connection.commit()
        return renewed

    def release(self) -> None:
        """Give it back, so that whoever stands by need not wait; where the database cannot be reached, by time."""
        self.released = True
        self._stop.set()
        self._thread.join()
        if not self.taken.is_set():
            self._give_back()
        self._close()

    def _give_back(self) -> None:
        try:
            self._connection = self._connection or postgres_sessions.session(self.place, "lease", self.owner)
            self._connection.execute(_RELEASE, (self.owner,))
            self._connection.commit()
        except driver().Error:
            pass  # it is lost by time

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
    """The end of a journal in the database."""

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
            lease = take(place)
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
        """Return where the database ends, seen on a new connection. Raises JournalError, and leaves a doubt, when it
        cannot be asked in time."""
        self._writers.dispose()
        try:
            return self._end(deadline)
        except JournalTaken:
            raise
        except JournalError as error:
            self.in_doubt = True
            raise JournalError(
                f"the connection to {self.place} failed ({error_line(cause)}), and whether the change was kept "
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
        """Give a connection on which all reads are of one moment; also while nothing can be written."""
        try:
            with self._readers.connect() as connection:
                yield connection
        except (DBAPIError, PoolTimeout) as error:
            raise postgres_sessions.refused(self.place, doing, error) from error

    def look(self, read: Callable[[Connection], T]) -> T:
        """Run `read` as of one moment. Where it makes tables that were missing it may write, and they stay."""
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
        if postgres_sessions.code_of(error) == "22021" or (
            isinstance(error, DBAPIError) and "NUL" in error_line(error)
        ):
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
            create_some(connection, [*kind.tables, *TABLES])
            head = {"id": 1, "format": kind.format, "last_version": 0, "chain": 0, "seed": seed}
            connection.execute(insert(table_of(Head)).values(head))
            connection.execute(insert(LEASE).values(id=1, owner="", holder="", renewals=0, since_ms=0, renewed_ms=0))
            connection.execute(insert(FENCE).values(id=1, owner="", epoch=0, mark=0))
    except (DBAPIError, psycopg.Error) as error:
        raise postgres_sessions.refused(place, "open", error) from error
    finally:
        database.dispose()


def exists(place: Schema) -> bool:
    """Return whether somebody has begun a journal there, of a cell or of a fleet. Raises JournalError."""
    database = postgres_sessions.pool(place, "reader")
    try:
        with database.connect() as connection:
            return connection.exec_driver_sql("SELECT to_regclass('head')").scalar() is not None
    except DBAPIError as error:
        raise postgres_sessions.refused(place, "open", error) from error
    finally:
        database.dispose()
