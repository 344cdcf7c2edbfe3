"""Retention: old records are moved to files that are checked like the log itself, and the log goes on from them.

A segment ends at a checkpoint, which stays in the database with what the tree needs to grow. The file is written and
checked before anything is deleted. It never has the texts that are kept apart: those stay where they can be erased.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, delete, func, insert, select

from engine.errors import JournalError
from runbooks.audit import Audit, checkpoint_table, record_table, segment_table
from runbooks.audit_pages import AuditPart, AuditRange, AuditSealed
from runbooks.audit_reading import hash_at, last_sealed
from runbooks.authority import Authority, start
from runbooks.identity import Actor
from runbooks.verify import check, open_bundle

FOLDER = "audit"
"""Beside the journal."""
DELETED_AT_ONCE = 2_000
"""Records of one transaction: more would hold up the engine."""


def due(connection: Connection, before_ms: int) -> AuditRange | None:
    """What can be sealed: up to the last checkpoint whose last record is older than that. None: nothing."""
    last = connection.execute(
        select(func.max(checkpoint_table.c.size))
        .join(record_table, record_table.c.seq == checkpoint_table.c.size)
        .where(record_table.c.at_ms < before_ms)
    ).scalar()
    sealed = last_sealed(connection)
    return None if last is None or last <= sealed else AuditRange(first=sealed + 1, last=last, private=False)


def write(part: Callable[[AuditRange], AuditPart], wanted: AuditRange, journal: Path, log: str) -> AuditSealed:
    """Write the records to a file beside the journal, and check it. Raises JournalError with nothing left behind."""
    name = f"{FOLDER}/{log}-{wanted.first:09d}-{wanted.last:09d}.jsonl"
    path = journal.parent / name
    fresh = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        sha256 = _write(part, wanted, fresh)
        report = check(open_bundle(fresh))
        if report.problems or (report.first, report.last) != (wanted.first, wanted.last) or report.newest is None:
            why = report.problems[0].what if report.problems else "it ends elsewhere"
            fresh.unlink()
            raise JournalError(f"nothing was sealed, for the audit does not verify: {why}", "Run `muster audit verify`")
        fresh.rename(path)
        _sync(path.parent)
    except OSError as error:
        raise JournalError(f"the segment {path} cannot be written: {error.strerror}", "Nothing was sealed") from error
    return AuditSealed(first=wanted.first, last=wanted.last, file=name, sha256=sha256)


def _write(part: Callable[[AuditRange], AuditPart], wanted: AuditRange, path: Path) -> str:
    """Returns the SHA-256 of the file."""
    digest = hashlib.sha256()
    after = 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        while True:
            found = part(AuditRange(first=wanted.first, last=wanted.last, private=False, after=after))
            lines = found.lines.encode()
            digest.update(lines)
            file.write(lines)
            if not found.after:
                break
            after = found.after
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def enter(connection: Connection, audit: Audit, actor: Actor, sealed: AuditSealed) -> None:
    """Say in the log that they are in that file; from then on they may be deleted. Raises JournalError if others were
    sealed meanwhile."""
    if last_sealed(connection) != sealed.first - 1:
        raise JournalError("records were sealed meanwhile", "See `muster audit show`")
    connection.execute(
        insert(segment_table).values(
            first=sealed.first, last=sealed.last, hash=hash_at(connection, sealed.last), file=sealed.file,
            sha256=sealed.sha256,
        )
    )  # fmt: skip
    data = {"first": sealed.first, "last": sealed.last, "file": sealed.file, "sha256": sealed.sha256}
    audit.append(connection, "audit.sealed", actor, data=data)
    chain = Authority().chain(connection)
    if chain.policies:
        # The policies that were sealed are not in the database any more: what follows goes on from this one.
        start(connection, audit, chain.cell, chain.policies[-1])


def drop(connection: Connection) -> int:
    """Delete some of what is in files, with its checkpoints but the last. Returns how many records; 0: all are gone."""
    sealed = last_sealed(connection)
    oldest = connection.execute(select(func.min(record_table.c.seq))).scalar() or 0
    upto = min(sealed, oldest + DELETED_AT_ONCE - 1)
    gone = connection.execute(delete(record_table).where(record_table.c.seq <= upto)).rowcount if oldest else 0
    connection.execute(
        delete(checkpoint_table).where(checkpoint_table.c.size <= upto, checkpoint_table.c.size < sealed)
    )
    return gone
