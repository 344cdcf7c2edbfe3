"""The audit against the engine's journal: each effect that one tells of is in the other.

Both are written in one transaction, so that a difference means that somebody changed one of them afterwards.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from engine.model import events as ev
from engine.model.errors import MusterError
from runbooks.actions import catalogue
from runbooks.audit.verify import DAMAGE, Database, Flaw, PostgresDatabase, parse

MOST = 20
"""Differences that are told."""


class RecordedEffect(NamedTuple):
    """What was done, as the journal or the audit has it."""

    digest: str
    action: str
    first_version: int
    """Of the engine's turn."""
    last_version: int
    record: int
    """Number of the audit's record; 0 in the journal."""


class JournalDifference(msgspec.Struct, frozen=True, kw_only=True):
    record: int
    """Of the audit; 0: there is none."""
    what: str


def differences(path: Path | str) -> tuple[int, tuple[JournalDifference, ...]]:
    """(effects compared, what one has and the other has not, or has otherwise). Reads the journal beside the engine, in
    its file or at its URL. Effects of records that were moved to files are not looked for. Never raises for what it
    says."""
    try:
        with contextlib.closing(_opened(path)) as database:
            if isinstance(database, sqlite3.Connection):
                database.execute("BEGIN")
            return _compare(database)
    except (*DAMAGE, Flaw, ValueError, KeyError, TypeError, MusterError, msgspec.MsgspecError) as error:
        return 0, (JournalDifference(record=0, what=f"the journal cannot be compared: {str(error)[:200]}"),)


def _opened(path: Path | str) -> Database:
    if isinstance(path, str):
        return PostgresDatabase(path)
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=5)


def _compare(database: Database) -> tuple[int, tuple[JournalDifference, ...]]:
    told = dict(_told(database))
    since_ms, moved = _since(database)
    found: list[JournalDifference] = []
    compared = 0
    for key, entry, effect in _done(database):
        compared += 1
        record = told.pop(key, None) if key else None
        if record is None:
            if (key and not moved) or entry.at_wall_ms > since_ms:
                what = f"the engine did {effect.action} at version {effect.first_version}, which no record tells of"
                found.append(JournalDifference(record=0, what=what))
        elif (record.digest, record.action) != (effect.digest, effect.action):
            what = f"record {record.record} tells of {record.action}, the engine did {effect.action} of another plan"
            found.append(JournalDifference(record=record.record, what=what))
        elif not effect.first_version <= record.last_version <= effect.last_version:
            what = f"record {record.record} says version {record.last_version}, the journal {effect.last_version}"
            found.append(JournalDifference(record=record.record, what=what))
    found += (
        JournalDifference(
            record=record.record, what=f"record {record.record} tells of {record.action}, which was never done"
        )
        for record in told.values()
        if _by_engine(record.action)
    )
    found.sort(key=lambda difference: difference.record)
    return compared, tuple(found[:MOST])


def _told(database: Database) -> Iterator[tuple[str, RecordedEffect]]:
    """(key, effect) of each record that tells of one."""
    rows = database.execute("SELECT seq, body FROM audit_record WHERE type = 'exec.effect' ORDER BY seq")
    for seq, body in rows:
        record = parse(body)
        data = record["data"]
        version = int(data["version"])
        yield str(data["key"]), RecordedEffect(str(record["plan"]), str(data["action"]), version, version, seq)


def _since(database: Database) -> tuple[int, bool]:
    """When the oldest record was written, wall ms, and whether there were others before it, which a version before this
    one moved to files. What was done before, without a key, was done before there was an audit."""
    oldest, first = database.execute("SELECT min(at_ms), min(seq) FROM audit_record").fetchone()
    return oldest or 0, (first or 1) > 1


def _done(database: Database) -> Iterator[tuple[str, ev.AuditEntry, RecordedEffect]]:
    """(key, entry, effect) of each plan that the journal has as carried out."""
    query = "SELECT first_version, last_version, crc, events FROM batch ORDER BY first_version"
    rows: Any = database.stream(query, ()) if isinstance(database, PostgresDatabase) else database.execute(query)
    for first, last, crc, events in rows:
        if zlib.crc32(events) != crc:
            raise ValueError(f"the batch of events {first} to {last} fails its checksum")
        for event in ev.decode(events):
            if isinstance(event, ev.Audited):
                entry = event.entry
                yield entry.key, entry, RecordedEffect(entry.digest, entry.action, first, last, 0)


def _by_engine(action: str) -> bool:
    """Messages and reviews are no commands of the engine: its journal knows nothing of them."""
    return bool(catalogue.find(action).command)
