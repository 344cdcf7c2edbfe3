"""Reading a journal: its head, its newest snapshot, its batches, each verified. The same for the engine that writes it
and for one that stands by."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from sqlalchemy import Connection, select

from engine.journal.database import Place
from engine.journal.tables import Batch, Head, Snapshot, table_of
from engine.model import events as ev
from engine.model.errors import JournalCorrupt

AT_ONCE = 64
"""Batches that are fetched together."""
Version = Annotated[int, msgspec.Meta(ge=0)]
Crc = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]


class HeadRow(msgspec.Struct):
    """What a head has when it is whole. SQLite keeps any value in any column, so damage may be of any type."""

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


def newest_snapshot(connection: Connection, place: Place) -> tuple[dict[str, Any] | None, int, int]:
    """(state, version, chain); (None, 0, 0) where there is none yet. Raises JournalCorrupt."""
    table = table_of(Snapshot)
    newest = connection.execute(select(table).order_by(table.c.version.desc()).limit(1)).mappings().first()
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
    connection: Connection, place: Place, after: tuple[int, int], end: tuple[int, int]
) -> Iterator[list[ev.AnyEvent]]:
    """Those behind `after`, which must lead to `end`: each (version, chain). Raises JournalCorrupt."""
    version, chain = after
    table = table_of(Batch)
    query = select(table).where(table.c.first_version > version).order_by(table.c.first_version)
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
