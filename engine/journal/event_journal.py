"""The durable record of a cell: one transaction for each engine turn, a checksum on everything, snapshot plus tail on
start.

A batch row holds the events of one turn as one blob, its CRC-32, and a running CRC over all batches so far, so that a
changed, missing or swapped batch is found at start. The `head` row, written in the same transaction, tells the last
version, so that a lost tail is found too. Nothing is repaired by guessing: a journal that does not verify is refused.
The functions that read and verify serve the engine that writes and one that stands by.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from sqlalchemy import Connection, func, insert, select
from sqlalchemy.exc import DatabaseError

from engine.journal import sqlite_store, tables
from engine.journal.database import Place, SqliteFile, place_of
from engine.journal.sqlite_store import FileStore
from engine.journal.tables import MAX_ESTIMATES, Batch, Estimate, Head, Snapshot, table_of
from engine.model import events as ev
from engine.model.errors import JournalCorrupt

if TYPE_CHECKING:
    from engine.journal.postgres_store import Lease, PostgresStore


AT_ONCE = 64
"""Batches that are fetched together."""
Version = Annotated[int, msgspec.Meta(ge=0)]
Crc = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class HeadRow(msgspec.Struct):
    """The values of a whole head. SQLite keeps any value in any column, so damage may be of any type."""

    format: int
    last_version: Version
    chain: Crc
    seed: int


class SnapshotRow(msgspec.Struct):
    version: Version
    chain: Crc
    crc: Crc
    body: bytes


class BatchRow(msgspec.Struct):
    first_version: Version
    last_version: Version
    crc: Crc
    chain: Crc
    events: bytes


def link(chain: int, crc: int) -> int:
    """The chain with another batch."""
    return zlib.crc32(crc.to_bytes(4, "little"), chain)


def head_of(connection: Connection, place: Place) -> Any:
    """Raises JournalCorrupt where there is none."""
    head = connection.execute(select(table_of(Head))).mappings().first()
    if head is None:
        raise corrupt(place, "has no head")
    refuse_damaged(place, "its head", head, HeadRow)
    return head


def last_written_ms(connection: Connection) -> int:
    """Wall clock of the newest batch; 0 where there is none."""
    columns = table_of(Batch).c
    newest = select(columns.wall_ms).order_by(columns.first_version.desc()).limit(1)
    return connection.execute(newest).scalar() or 0


def beginning(connection: Connection, place: Place) -> tuple[int, int]:
    """(version, chain) that the first batch follows: (0, 0), or a snapshot behind which events were let go. Raises
    JournalCorrupt where that snapshot is gone."""
    if tables.made(connection) < tables.MAY_BE_PRUNED:
        return 0, 0
    version = connection.execute(select(tables.PRUNED.c.version)).scalar()
    if version is None:
        return 0, 0
    snapshots = table_of(Snapshot).c
    chain = connection.execute(select(snapshots.chain).where(snapshots.version == version)).scalar()
    if chain is None:
        raise corrupt(place, f"begins behind event {version}, and the snapshot of that is gone")
    return version, chain


def newest_snapshot(
    connection: Connection, place: Place, at_most: int | None = None, above: int = 0
) -> tuple[dict[str, Any] | None, int, int]:
    """(state, version, chain) of the newest, or of the newest of versions `above` one and up to another; (None, 0, 0)
    where there is none. Raises JournalCorrupt."""
    table = table_of(Snapshot)
    query = select(table).where(table.c.version > above)
    if at_most is not None:
        query = query.where(table.c.version <= at_most)
    newest = connection.execute(query.order_by(table.c.version.desc()).limit(1)).mappings().first()
    if newest is None:
        return None, 0, 0
    refuse_damaged_snapshot(place, newest)
    return msgspec.msgpack.decode(zlib.decompress(newest["body"])), newest["version"], newest["chain"]


def refuse_damaged_snapshot(place: Place, row: Any) -> None:
    """Raises JournalCorrupt."""
    remedy = "Start with --ignore-snapshot to replay every batch instead, or restore the journal from a backup"
    refuse_damaged(place, f"the snapshot of version {row['version']!a}", row, SnapshotRow, remedy)
    if zlib.crc32(row["body"]) != row["crc"]:
        raise corrupt(place, f"snapshot of version {row['version']} fails its checksum", remedy)


def batches(
    connection: Connection, place: Place, after: tuple[int, int], end: tuple[int, int], *, more: bool = False
) -> Iterator[list[ev.AnyEvent]]:
    """Yield the batches behind `after`, which must lead to `end`: each (version, chain). `more`: there may be batches
    behind that end. Raises JournalCorrupt."""
    version, chain = after
    table = table_of(Batch)
    query = select(table).where(table.c.first_version > version).order_by(table.c.first_version)
    if more:
        query = query.where(table.c.first_version <= end[0])
    with contextlib.closing(connection.execution_options(yield_per=AT_ONCE).execute(query)) as rows:
        for row in rows.mappings():
            refuse_damaged(place, f"the batch of event {version + 1}", row, BatchRow)
            if row["first_version"] != version + 1:
                raise corrupt(place, f"events {version + 1} to {row['first_version'] - 1} are missing")
            chain = link(chain, row["crc"])
            batch = _verified(place, row, chain)
            version = row["last_version"]
            yield batch
    if (version, chain) != end:
        raise corrupt(place, f"ends at event {version}, but {end[0]} were acknowledged")


def _verified(place: Place, row: Any, chain: int) -> list[ev.AnyEvent]:
    """The events of a batch at which the chain should be `chain`."""
    first, last = row["first_version"], row["last_version"]
    if zlib.crc32(row["events"]) != row["crc"]:
        raise corrupt(place, f"the batch of events {first} to {last} fails its checksum")
    if chain != row["chain"]:
        raise corrupt(place, f"the batch of event {first} does not follow from those before it")
    try:
        batch = ev.decode(row["events"])
    except msgspec.DecodeError as error:
        raise corrupt(place, f"the batch of event {first} does not decode: {error}") from error
    if (found := sum(event.versions for event in batch)) != last - first + 1:
        raise corrupt(place, f"the batch of event {first} has {found} events")
    return batch


def refuse_damaged(place: Place, what: str, row: Any, whole: type[msgspec.Struct], remedy: str = "") -> None:
    """Raises JournalCorrupt for a row with a value that was never written."""
    try:
        msgspec.convert(dict(row), whole, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise corrupt(place, f"has damage in {what}: {error}", remedy) from None


def corrupt(place: Place, what: str, remedy: str = "") -> JournalCorrupt:
    return JournalCorrupt(
        f"journal {place} {what}",
        remedy or "Nothing was changed. Restore it from a backup, or move it away to start an empty cell",
    )


SNAPSHOTS_KEPT = 2
SPANS = 4
"""Parts of the time that events are kept for, with a snapshot in each: so much longer may they stay."""
LET_GO_AT_ONCE = 500
"""Batches that are removed in one transaction."""
_AUDITED = msgspec.msgpack.encode((ev.Audited.__struct_config__.tag,))[1:]


def kept_snapshots(times: Sequence[tuple[int, int]], keep_ms: int) -> tuple[list[int], int]:
    """The versions to keep of snapshots as (version, cell ms), the oldest first; and the one that the journal may begin
    with when events older than `keep_ms` are let go, 0 for none. Without `keep_ms` none are."""
    newest = [version for version, _ in times[-SNAPSHOTS_KEPT:]]
    if not keep_ms:
        return newest, 0
    horizon = times[-1][1] - keep_ms
    old = [each for each in times[:-1] if each[1] <= horizon][-1:]
    kept = old or times[:1]
    for version, at_ms in times:
        if version > kept[-1][0] and at_ms - kept[-1][1] >= keep_ms // SPANS:
            kept = [*kept, (version, at_ms)]
    return sorted({*(version for version, _ in kept), *newest}), old[0][0] if old else 0


def _snapshot_times(connection: Connection) -> list[tuple[int, int]]:
    """(version, cell ms) of each snapshot, the oldest first. One whose batch was let go is older than all others."""
    snapshots, ends = table_of(Snapshot).c, table_of(Batch).c
    joined = table_of(Snapshot).outerjoin(table_of(Batch), ends.last_version == snapshots.version)
    query = select(snapshots.version, func.coalesce(ends.at_ms, -1)).select_from(joined)
    return [(version, at_ms) for version, at_ms in connection.execute(query.order_by(snapshots.version))]


def _has_audit(events: bytes) -> bool:
    """True for the events of a batch with what an audited plan did."""
    return _AUDITED in events and any(isinstance(event, ev.Audited) for event in ev.decode(events))


T = TypeVar("T")
Beside = Callable[[Connection], None]
"""What is written in the same transaction as a turn. When it raises, the turn has not happened."""


class Journal:
    """An open journal: this process is its only writer until `close`."""

    def __init__(self, where: str | Path | Place, seed: int, lease: Lease | None = None) -> None:
        """Open or create. `lease`: one of a PostgreSQL database that was waited for. Raises JournalBusy, JournalCorrupt
        or JournalError."""
        self.place = place_of(where)
        self._store = _opened(self.place, seed, lease)
        self.seed, self.version, self._chain = seed, 0, 0
        self.written_ms = 0
        """Wall clock of the newest batch that was found at opening; 0: there was none."""
        self._let_go_at = 0
        """Version at which old batches were removed last."""
        self.former: Path | None = None
        """Copy of the file as it was before an older Muster's tables were migrated at opening."""
        try:
            with self._store.reading("open") as connection:
                head = head_of(connection, self.place)
                had = tables.refuse_other(connection, self.place, head)
                self.written_ms = last_written_ms(connection)
            self._migrate(head, had)
            self._begin_at(head)
            self._let_go_at = self.version
        except BaseException:
            self._store.close()
            raise

    @property
    def path(self) -> Path | None:
        """The file it is in; None where it is in no file."""
        return self.place.path if isinstance(self.place, SqliteFile) else None

    @property
    def lease(self) -> Lease | None:
        """The lease that lets this process write; None where that is a lock on a file."""
        return None if isinstance(self._store, FileStore) else self._store.lease

    def _migrate(self, head: Any, had: int) -> None:
        if self.path is not None and head["last_version"] and had < len(tables.MIGRATIONS):
            path = self.path.resolve()
            self.former = sqlite_store.former_name(path)
            sqlite_store.copy_file(path, self.former)
        for number in range(had, len(tables.MIGRATIONS)):
            with self._store.writing() as connection:
                tables.migrate(connection, number, _wall_ms())

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, batch: list[ev.AnyEvent], first_version: int, at_ms: int, beside: Beside | None = None) -> None:
        """Make the events durable, and in the same transaction what `beside` writes. When this raises, none of them is
        in the journal; or, where the connection to a server failed for long, that will be seen by `load`."""
        payload = ev.encode(batch)
        crc = zlib.crc32(payload)
        chain = link(self._chain, crc)
        last = first_version + sum(event.versions for event in batch) - 1
        row = (first_version, last, at_ms, _wall_ms(), crc, chain, payload)
        self._store.add_turn(row, (self.version, self._chain), beside)
        self.version, self._chain = last, chain

    def transact(self, change: Callable[[Connection], T]) -> T:
        """Run `change` in one transaction of the journal's database: rows that stand beside the events and are as
        durable as they are. Nothing is replayed from them. Raises JournalError with nothing written."""
        with self._store.writing() as connection:
            return change(connection)

    def look(self, read: Callable[[Connection], T]) -> T:
        """Run `read`, which changes nothing, in one transaction: also where nothing can be written. Raises
        JournalError."""
        return self._store.look(read)

    def write_snapshot(self, state: dict[str, Any], version: int, keep_ms: int = 0) -> None:
        """Store the state at the journal's present version. Older snapshots beyond SNAPSHOTS_KEPT go; with `keep_ms`,
        some of them stay until events as old are let go behind one, to that version and cell time."""
        body = zlib.compress(msgspec.msgpack.encode(state), 1)
        row = {
            "version": version, "wall_ms": _wall_ms(), "chain": self._chain, "crc": zlib.crc32(body), "body": body,
        }  # fmt: skip
        table = table_of(Snapshot)
        with self._store.writing() as connection:
            if connection.execute(select(table.c.version).where(table.c.version == version)).first():
                return
            connection.execute(insert(table), row)
            kept, base = kept_snapshots(_snapshot_times(connection), keep_ms)
            connection.execute(table.delete().where(table.c.version.not_in(kept)))
            pruned = connection.execute(select(tables.PRUNED)).first()
            if base > (pruned.version if pruned is not None else 0):
                connection.execute(tables.PRUNED.delete())
                through = pruned.through if pruned is not None else 0
                connection.execute(insert(tables.PRUNED).values(version=base, through=through))
        self._let_go()

    def _let_go(self) -> None:
        """Remove batches before the beginning: so many at a time that no turn waits for long, and twice as many as
        came since the last time. Those that the audit is compared with stay as they are."""
        least = self.version - self._let_go_at
        self._let_go_at = self.version
        columns = table_of(Batch).c
        while least > 0:
            with self._store.writing() as connection:
                pruned = connection.execute(select(tables.PRUNED)).first()
                if pruned is None or pruned.through >= pruned.version:
                    return
                query = select(columns.first_version, columns.last_version, columns.events)
                query = query.where(columns.first_version > pruned.through, columns.last_version <= pruned.version)
                rows = connection.execute(query.order_by(columns.first_version).limit(LET_GO_AT_ONCE)).all()
                through = rows[-1].last_version if len(rows) == LET_GO_AT_ONCE else pruned.version
                gone = [row.first_version for row in rows if not _has_audit(row.events)]
                connection.execute(table_of(Batch).delete().where(columns.first_version.in_(gone)))
                connection.execute(tables.PRUNED.update().values(through=through))
                least -= (through - pruned.through) // 2 + 1

    def keep_estimates(self, estimates: list[Estimate]) -> None:
        """Store what was foretold, and drop the oldest beyond MAX_ESTIMATES. Nothing is replayed from it."""
        rows = [estimate.model_dump(exclude={"id"}) for estimate in estimates]
        table = table_of(Estimate)
        with self._store.writing() as connection:
            connection.execute(insert(table), rows)
            newest = connection.execute(select(func.max(table.c.id))).scalar_one()
            connection.execute(table.delete().where(table.c.id <= newest - MAX_ESTIMATES))

    # -- reading ----------------------------------------------------------------------------------------------------

    def estimates(self, newest: int = MAX_ESTIMATES) -> list[Estimate]:
        """The last so many that were kept, oldest first."""
        table = table_of(Estimate)
        with self._store.reading() as connection:
            rows = connection.execute(select(table).order_by(table.c.id.desc()).limit(newest)).mappings().all()
        return [Estimate(**row) for row in reversed(rows)]

    def load(self, *, use_snapshot: bool = True) -> tuple[dict[str, Any] | None, Iterator[list[ev.AnyEvent]]]:
        """The newest snapshot, or the one that the journal begins with, and the batches after it. Verifies both; raises
        JournalCorrupt."""
        self._settle()
        with self._store.reading("load") as connection:
            upto = None if use_snapshot else beginning(connection, self.place)[0]
            body, version, chain = newest_snapshot(connection, self.place, upto)
        return body, self.after(version, chain)

    def reopen(self) -> None:
        """Look anew where the journal ends: it was written otherwise than by `append`."""
        with self._store.reading("open") as connection:
            head = head_of(connection, self.place)
            tables.refuse_other(connection, self.place, head)
        self._begin_at(head)

    def _begin_at(self, head: Any) -> None:
        self.seed, self.version, self._chain = head["seed"], head["last_version"], head["chain"]

    def _settle(self) -> None:
        """Know where the journal ends, also after a commit whose answer was lost."""
        if not isinstance(self._store, FileStore) and self._store.in_doubt:
            self._store.settle()
            self.reopen()

    def after(self, version: int, chain: int) -> Iterator[list[ev.AnyEvent]]:
        """The batches after a version, of which the chain is known. Verifies them; raises JournalCorrupt."""
        with self._store.reading() as connection:
            try:
                yield from batches(connection, self.place, (version, chain), (self.version, self._chain))
            except JournalCorrupt:
                # Where another engine has gone on with it, it ends elsewhere, and nothing is wrong with it.
                if not isinstance(self._store, FileStore):
                    self._store.refuse_if_taken()
                raise

    def audit(self) -> Iterator[tuple[int, ev.AuditEntry]]:
        """(version, entry) of every executed plan, oldest first, also of those before the beginning."""
        columns = table_of(Batch).c
        with self._store.reading() as connection:
            begun, _ = beginning(connection, self.place)
            query = select(columns.first_version, columns.events).where(columns.first_version <= begun)
            before = connection.execute(query.order_by(columns.first_version)).all()
        for first, events in before:
            yield from _entries(first - 1, ev.decode(events))
        version = begun
        for batch in self._whole():
            yield from _entries(version, batch)
            version += sum(event.versions for event in batch)

    def _whole(self) -> Iterator[list[ev.AnyEvent]]:
        """Every batch from the beginning on, verified."""
        with self._store.reading() as connection:
            begun = beginning(connection, self.place)
        return self.after(*begun)

    def verify(self) -> int:
        """Read everything, snapshots included. Returns the number of events; raises JournalCorrupt."""
        count = sum(event.versions for batch in self._whole() for event in batch)
        table = table_of(Snapshot)
        with self._store.reading("verify") as connection:
            for row in connection.execute(select(table)).mappings():
                refuse_damaged_snapshot(self.place, row)
        return count

    def close(self) -> None:
        self._store.close()


def _entries(version: int, batch: list[ev.AnyEvent]) -> Iterator[tuple[int, ev.AuditEntry]]:
    """(version, entry) of what audited plans did in a batch behind that version."""
    for event in batch:
        version += event.versions
        if isinstance(event, ev.Audited):
            yield version, event.entry


def _opened(place: Place, seed: int, lease: Lease | None) -> FileStore | PostgresStore:
    if isinstance(place, SqliteFile):
        return FileStore(place, seed)
    from engine.journal.postgres_store import PostgresStore

    return PostgresStore(place, seed, lease)


class Memory:
    """Stands in for the journal of a cell that is kept in memory: it has the rows beside the events, and no events."""

    def __init__(self) -> None:
        self._db = sqlite_store.in_memory()

    def transact(self, change: Callable[[Connection], T]) -> T:
        """Do as `Journal.transact` does."""
        try:
            with self._db.begin() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                return change(connection)
        except DatabaseError as error:
            raise sqlite_store.unavailable(Path(":memory:"), "write", error) from error

    def look(self, read: Callable[[Connection], T]) -> T:
        """Do as `Journal.look` does."""
        return self.transact(read)

    def close(self) -> None:
        self._db.dispose()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
