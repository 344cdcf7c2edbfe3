"""Reading the audit: pages, and exports that can be checked elsewhere. Nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, func, inspect, select
from sqlalchemy.exc import SQLAlchemyError

from engine.journal.database import Place, place_of
from engine.journal.outside_readers import reader
from engine.model.errors import JournalError, NotFoundError, RefusedError, SpecError
from runbooks.audit.log import Audit, checkpoint_table, key_table, moved_table, private_table, record_table
from runbooks.audit.verify import FIRST_LINK, Frontier, leaf_of, parse
from runbooks.plans.queries import (
    MAX_ROWS,
    AuditPage,
    AuditPart,
    AuditQuery,
    AuditRange,
    AuditRow,
    AuditState,
    AuditText,
)

T = TypeVar("T")

PART_ROWS = 1_000
"""Records of one part of an export."""
PART_BYTES = 4 * 2**20
SCHEMA = {
    "record": "canonical JSON (RFC 8785, no floats); hash = SHA-256(0x02 || hash of the record before || record)",
    "first": "the record before the first has the hash 32 zero bytes",
    "leaf": "SHA-256(0x00 || hash), in a tree as RFC 6962 has it",
    "checkpoint": "c2sp.org/tlog-checkpoint, signed as c2sp.org/signed-note has it, after the last record it is over",
    "private": "texts kept apart; mac = HMAC-SHA-256(key, text)",
    "leaves": "of records behind the last, up to the next checkpoint",
    "times": "at_ms: Unix milliseconds UTC",
}


_NEWEST_CHECKPOINT = select(checkpoint_table).order_by(checkpoint_table.c.size.desc()).limit(1)


class AuditReader:
    """Reads the audit beside the engine, on any thread: by connections of its own to the journal's database. Where
    there is no journal, through `in_engine`, which runs a transaction of the engine."""

    def __init__(
        self, where: str | Path | Place | None, in_engine: Callable[[Callable[[Connection], Any]], Any]
    ) -> None:
        self._in_engine = in_engine
        self._database = None if where is None else reader(place_of(where))

    def read(self, ask: Callable[[Connection], T]) -> T:
        """Run `ask` as of one moment. Raises JournalError."""
        if self._database is None:
            found: T = self._in_engine(ask)
            return found
        try:
            with self._database.begin() as connection:
                return ask(connection)
        except SQLAlchemyError as error:
            told = str(getattr(error, "orig", error))
            raise JournalError(f"the audit cannot be read: {told}", "Run `muster audit verify`") from error

    def close(self) -> None:
        """Let its connections go."""
        if self._database is not None:
            self._database.dispose()


# -- pages ------------------------------------------------------------------------------------------------------------


def page(connection: Connection, query: AuditQuery) -> AuditPage:
    """Raises SpecError, and JournalError for a record that is not in the form of one."""
    if not 1 <= query.limit <= MAX_ROWS:
        raise SpecError("limit", f"is {query.limit}", f"Give 1 to {MAX_ROWS}")
    columns = record_table.c
    wanted = list(_conditions(query))
    matched = connection.execute(select(func.count()).select_from(record_table).where(*wanted)).scalar_one()
    if query.before:
        wanted.append(columns.seq < query.before)
    newest = select(columns.seq, columns.body, columns.hash).where(*wanted).order_by(columns.seq.desc())
    found = connection.execute(newest.limit(query.limit)).all()[::-1]
    return AuditPage(rows=tuple(_row(connection, row) for row in found), matched=matched, last=_last(connection))


def _last(connection: Connection) -> int:
    """Number of the newest record."""
    return connection.execute(select(func.max(record_table.c.seq))).scalar() or 0


def _conditions(query: AuditQuery) -> Iterator[ColumnElement[bool]]:
    columns = record_table.c
    if query.proposal:
        yield columns.proposal == query.proposal
    if query.actor:
        yield columns.subject == query.actor
    if query.type:
        kind = query.type
        yield columns.type == kind if "." in kind else columns.type.startswith(f"{kind}.", autoescape=True)
    if query.since_ms:
        yield columns.at_ms >= query.since_ms
    if query.seq:
        yield columns.seq == query.seq


def _row(connection: Connection, found: Any) -> AuditRow:
    """A record as clients see it, read from its body. The other columns only serve to find it."""
    try:
        record = parse(found.body)
        texts = tuple(
            AuditText(ref=private["ref"], text=_text(connection, private["ref"])) for private in record["private"]
        )
        actor = record["actor"]
        return msgspec.convert(
            {
                **{name: record[name] for name in ("seq", "at_ms", "type", "proposal", "revision", "step")},
                **{name: record[name] for name in ("plan", "policy", "data")},
                **{name: actor[name] for name in ("subject", "kind", "account", "signed", "key", "session")},
                "private": texts, "hash": found.hash.hex(),
            }, AuditRow,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JournalError(
            f"record {found.seq} of the audit is not in the form of one", "Run `muster audit verify`"
        ) from error


def _text(connection: Connection, ref: str) -> str | None:
    found: str | None = connection.execute(select(private_table.c.text).where(private_table.c.ref == ref)).scalar()
    return found


def state(connection: Connection, audit: Audit) -> AuditState:
    """The present state of the log."""
    newest = connection.execute(_NEWEST_CHECKPOINT).first()
    return AuditState(
        log=audit.log_id,
        last=_last(connection),
        checkpoint="" if newest is None else newest.note,
        covered=0 if newest is None else newest.size,
        key=audit.public_key,
        key_file=audit.key_file,
        anchors=audit.anchors,
        error=audit.error,
    )


# -- exports ----------------------------------------------------------------------------------------------------------


def part(connection: Connection, wanted: AuditRange, tool: str) -> AuditPart:
    """The next part of an export. Raises RefusedError for records that are not, or no longer, there."""
    first, last = bounds(connection, wanted)
    lines: list[bytes] = []
    after = wanted.after
    if not after:
        after = first - 1
        lines.append(_head(connection, first, last, wanted.private, tool))
    elif not first - 1 <= after < last:
        raise SpecError("after", f"is {after}", f"Give what the part before told, from {first - 1} to {last}")
    size = 0
    for row in connection.execute(
        select(record_table.c.seq, record_table.c.body, record_table.c.hash)
        .where(record_table.c.seq > after, record_table.c.seq <= min(last, after + PART_ROWS))
        .order_by(record_table.c.seq)
    ):
        if row.seq != after + 1:
            raise JournalError(f"record {after + 1} of the audit is missing", "Run `muster audit verify`")
        if wanted.private and b'"private":[]' not in row.body:
            lines += _private_lines(connection, row.body)
        lines.append(b'{"hash":"%s","record":%s}\n' % (row.hash.hex().encode(), row.body))
        if (note := _note(connection, row.seq)) is not None:
            lines.append(_line({"checkpoint": note}))
        after = row.seq
        size += len(row.body)
        if size > PART_BYTES:
            break
    if after < last:
        return AuditPart(lines=b"".join(lines).decode(), first=first, last=last, after=after)
    lines += _tail(connection, last)
    lines.append(_line({"end": {"records": last - first + 1}}))
    return AuditPart(lines=b"".join(lines).decode(), first=first, last=last, after=0)


def bounds(connection: Connection, wanted: AuditRange) -> tuple[int, int]:
    """(first, last) of what is to be exported. Raises RefusedError."""
    oldest = connection.execute(select(func.min(record_table.c.seq))).scalar() or 1
    newest = _last(connection)
    last = wanted.last or connection.execute(select(func.max(checkpoint_table.c.size))).scalar() or newest
    first = wanted.first or oldest
    if not oldest <= first <= last <= newest:
        raise RefusedError(f"there are no records {first} to {last}", f"The audit has {oldest} to {newest}")
    return first, last


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _head(connection: Connection, first: int, last: int, private: bool, tool: str) -> bytes:
    log: str = parse(_body(connection, first))["log"]
    keys = connection.execute(select(key_table.c.seq, key_table.c.key).order_by(key_table.c.seq)).all()
    frontier = _frontier(connection, first - 1)
    return _line({
        "muster_audit": "log", "v": 1, "log": log, "first": first, "last": last,
        "before": {
            "hash": _hash_at(connection, first - 1).hex(), "frontier": [node.hex() for node in frontier.nodes],
        },
        "keys": [[seq, key] for seq, key in keys if seq < first],
        "private": "with" if private else "withheld", "tool": tool, "schema": SCHEMA,
    })  # fmt: skip


def _private_lines(connection: Connection, body: bytes) -> Iterator[bytes]:
    for private in parse(body)["private"]:
        kept = connection.execute(select(private_table).where(private_table.c.ref == private["ref"])).first()
        if kept is not None:
            yield _line({"private": {"ref": kept.ref, "key": kept.key.hex(), "text": kept.text}})


def _note(connection: Connection, size: int) -> str | None:
    found: str | None = connection.execute(
        select(checkpoint_table.c.note).where(checkpoint_table.c.size == size)
    ).scalar()
    return found


def _tail(connection: Connection, last: int) -> Iterator[bytes]:
    """The next checkpoint and the leaves up to it, when no checkpoint covers exactly these records."""
    following = connection.execute(
        select(checkpoint_table).where(checkpoint_table.c.size >= last).order_by(checkpoint_table.c.size).limit(1)
    ).first()
    if following is None or following.size == last:
        return
    leaves = [leaf.hex() for leaf in _leaves_between(connection, last, following.size)]
    yield _line({"leaves": leaves})
    yield _line({"checkpoint": following.note})


def _leaves_between(connection: Connection, after: int, last: int) -> Iterator[bytes]:
    """Leaves of the records behind `after`, up to `last`."""
    rows = connection.execute(
        select(record_table.c.hash)
        .where(record_table.c.seq > after, record_table.c.seq <= last)
        .order_by(record_table.c.seq)
    )
    return (leaf_of(hash_) for (hash_,) in rows)


def _hash_at(connection: Connection, seq: int) -> bytes:
    """The hash of a record, or of the last record that an earlier version moved to a file."""
    if seq == 0:
        return FIRST_LINK
    found = connection.execute(select(record_table.c.hash).where(record_table.c.seq == seq)).scalar()
    if found is None and inspect(connection).has_table(moved_table.name):
        found = connection.execute(select(moved_table.c.hash).where(moved_table.c.last == seq)).scalar()
    if found is None:
        raise JournalError(f"record {seq} of the audit is missing", "Run `muster audit verify`")
    return bytes(found)


def _body(connection: Connection, seq: int) -> bytes:
    found = connection.execute(select(record_table.c.body).where(record_table.c.seq == seq)).scalar()
    if found is None:
        raise NotFoundError(f"the audit has no record {seq}", "See `muster audit show`")
    return bytes(found)


def _frontier(connection: Connection, size: int) -> Frontier:
    """The tree frontier of the first `size` records."""
    before = connection.execute(
        select(checkpoint_table.c.size, checkpoint_table.c.frontier)
        .where(checkpoint_table.c.size <= size)
        .order_by(checkpoint_table.c.size.desc())
        .limit(1)
    ).first()
    frontier = Frontier() if before is None else Frontier.of(before.size, before.frontier)
    for leaf in _leaves_between(connection, frontier.size, size):
        frontier.push(leaf)
    return frontier
