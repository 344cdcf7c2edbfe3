"""Who may write a cell that is kept in PostgreSQL: one process, by a lease that it renews; others stand by.

A lease is taken from a holder that has not renewed it for TTL_S, as the one who takes it has seen with its own clock
while it could see the database all the time: clocks of machines are never compared, and after an outage of the database
the holder has that long to come back. Who was too slow finds out by the fence (`engine.journal.postgres_store`): its
epoch is checked in every transaction, so that the old holder can write nothing once the lease was taken.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Integer, MetaData, String, Table

from engine.journal import postgres_sessions
from engine.journal.database import BIG, Schema, said
from engine.journal.postgres_driver import driver
from engine.journal.process_identity import Holder, this_process
from engine.model.errors import JournalBusy, JournalError

TTL_S = 5.0
"""A holder that has not renewed for so long has lost its lease to whoever stands by."""
RENEW_S = 1.0
LOOK_S = 0.5
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
_LOOK = f"SELECT owner, holder, renewals, renewed_ms, {_NOW} FROM lease WHERE id = 1"
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
    """What somebody who wants the lease has seen."""

    holder: str
    """Who has it, for people; empty: nobody."""
    age_ms: int
    """Since it was renewed, by the database's clock."""
    moves: bool
    """It was renewed since the look before."""
    taken: bool
    """It is ours now."""


class LeaseCandidate:
    """One who wants the lease of a cell. To be used by one thread."""

    def __init__(self, place: Schema) -> None:
        self.place = place
        self.owner = secrets.token_hex(8)
        self._holder = msgspec.json.encode(this_process()).decode()
        self._connection: Any = None
        self._seen: tuple[str, int] | None = None
        self._since = 0.0

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
        owner, holder, renewals, renewed_ms, now_ms = row
        now = time.monotonic()
        moves = self._seen is not None and self._seen != (owner, renewals)
        if self._seen != (owner, renewals):
            self._seen, self._since = (owner, renewals), now
        free = owner in ("", self.owner) or now - self._since >= TTL_S or holder_of(holder).is_gone()
        taken = free and self._take(owner, renewals)
        return LeaseSighting("" if owner == "" else str(holder_of(holder)), now_ms - renewed_ms, moves, taken)

    def _take(self, owner: str, renewals: int) -> bool:
        self._connection.commit()
        try:
            if self._connection.execute(_TAKE, (self.owner, self._holder, owner, renewals)).rowcount != 1:
                return False
            self._connection.execute(_FENCE, (self.owner,))
            self._connection.execute(_STAND_NO_MORE, (self.owner,))
            self._connection.commit()
        except driver().errors.LockNotAvailable:
            # A session of the holder before stands in a transaction: its machine may be cut off.
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
        return Lease(self.place, self.owner)


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

    def __init__(self, place: Schema, owner: str) -> None:
        self.place = place
        self.owner = owner
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
        """Whether nobody can have taken it yet, by our own clock: what must be known before anything is done outside
        the database, where the fence does not reach."""
        return not self.taken.is_set() and awake_or_asleep_s() - self._renewed_s < TTL_S - RENEW_S

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
                self.error = said(error)
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
