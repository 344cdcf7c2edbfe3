"""The audit log: append-only records of every step from a request to its effect.

A record is written in the caller's transaction, so it exists exactly if the change that it describes exists. Each
record holds the hash of the one before; checkpoints sign the whole. A record also holds digests of the rows of the
gate's tables that were written with it, so that a row changed outside Muster is found.

Texts that may have to be erased are kept apart, and a record holds only a commitment to them. Triggers keep the tables
append-only against defects of our own code; only the hash chain shows changes by somebody who can alter the schema.

`runbooks/audit/verify.py` defines the formats and checks them. docs/audit.md says what the audit cannot show.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    delete,
    insert,
    inspect,
    select,
    table,
    text,
    update,
)

from engine.journal.database import BIG, Schema, create_tables
from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from runbooks.audit.verify import (
    FIRST_LINK,
    GATE_TABLES,
    UNSIGNED,
    Checkpoint,
    Frontier,
    canonical,
    leaf_of,
    link,
    parse,
    read_note,
    row_digest,
    row_name,
)
from runbooks.audit.witnesses import (
    Anchor,
    AnchorPublisher,
    CheckpointSigner,
    checkpoint_text,
    next_key,
    origin_of,
    remember,
    remembered,
)
from runbooks.plans.identity import SYSTEM, Actor
from runbooks.plans.typed_plan import Sealed

if TYPE_CHECKING:
    from engine.control import Engine


Rows = Mapping[str, str]
"""Name of a row -> its digest."""
_OF_PROPOSAL = frozenset(
    ("proposal", "proposal_revision", "proposal_step", "vote", "confirmation", "effect", "review", "outbox")
)
"""Tables whose rows name a proposal by its number; 0: none."""


def kept(table: Table, row: Mapping[str, Any]) -> dict[str, str]:
    """Name and digest of a row, given with all its columns."""
    return {row_name(table.name, row): row_digest(row)}


def reread(connection: Connection, table: Table, where: ColumnElement[bool]) -> dict[str, str]:
    """Names and digests of rows as they are now."""
    found: dict[str, str] = {}
    for row in connection.execute(select(table).where(where)).mappings():
        found |= kept(table, dict(row))
    return found


def all_rows(connection: Connection) -> Iterator[tuple[str, dict[str, str]]]:
    """(id of the proposal, its rows) of all that is in the gate's tables; "" for what is of none."""
    there = set(inspect(connection).get_table_names())
    found: dict[str, dict[str, str]] = {}
    for name in sorted(GATE_TABLES.keys() & there):
        for values in connection.execute(select(text("*")).select_from(table(name))).mappings():
            row = dict(values)
            number = row["number"] if name in _OF_PROPOSAL else 0
            found.setdefault(f"P-{number}" if number else "", {})[row_name(name, row)] = row_digest(row)
    yield from found.items()


METADATA = MetaData()
log_table = Table(
    "audit_log", METADATA,
    Column("id", Integer, primary_key=True), Column("log", String, nullable=False),
    Column("v", Integer, nullable=False),
)  # fmt: skip
record_table = Table(
    "audit_record", METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("type", String, nullable=False), Column("subject", String, nullable=False),
    Column("proposal", String, nullable=False, index=True), Column("at_ms", BIG, nullable=False),
    Column("body", LargeBinary, nullable=False), Column("hash", LargeBinary, nullable=False),
)  # fmt: skip
"""The columns besides body and hash are copies to search by."""
private_table = Table(
    "audit_private", METADATA,
    Column("ref", String, primary_key=True), Column("key", LargeBinary, nullable=False),
    Column("text", String, nullable=False),
)  # fmt: skip
checkpoint_table = Table(
    "audit_checkpoint", METADATA,
    Column("size", Integer, primary_key=True, autoincrement=False), Column("note", String, nullable=False),
    Column("frontier", LargeBinary, nullable=False),
)  # fmt: skip
"""`frontier`: the roots of the complete subtrees, one after the other, so that the next checkpoint goes on from it."""
key_table = Table(
    "audit_key", METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=False), Column("key", String, nullable=False),
)  # fmt: skip
"""From which record on which public key signs; `none` where nothing is signed."""

MOVED_METADATA = MetaData()
moved_table = Table(
    "audit_segment", MOVED_METADATA,
    Column("last", Integer, primary_key=True, autoincrement=False), Column("first", Integer, nullable=False),
    Column("hash", LargeBinary, nullable=False), Column("file", String, nullable=False),
    Column("sha256", String, nullable=False),
)  # fmt: skip
"""Records that versions before this one moved to files: the first, the last and its hash. Not there otherwise."""

_TABLES = (
    ("audit_record", "seq", "UPDATE OR DELETE"),
    ("audit_checkpoint", "size", "UPDATE OR DELETE"),
    ("audit_private", "ref", "UPDATE"),
    ("audit_key", "seq", "UPDATE OR DELETE"),
    ("audit_log", "id", "UPDATE OR DELETE"),
)
"""(table, its key, what is refused of a row): texts kept apart can be erased."""
_SAYS = "the audit is append-only"

_SQLITE = tuple(
    f"CREATE TRIGGER IF NOT EXISTS {table}_keeps_{when.split()[0].lower()} BEFORE {when} "
    f"BEGIN SELECT RAISE(ABORT, '{_SAYS}'); END"
    for table, key, refused in _TABLES
    for when in (
        *(f"{change} ON {table}" for change in refused.split(" OR ")),
        # `INSERT OR REPLACE` deletes without asking the trigger for that.
        f"INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key})",
    )
)
_POSTGRES = tuple(
    statement
    for table, _, refused in _TABLES
    for statement in (
        f"CREATE OR REPLACE FUNCTION {table}_keeps() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION '{_SAYS}'; END $$",
        f"CREATE TRIGGER {table}_keeps_row BEFORE {refused} ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_keeps()",
        f"CREATE TRIGGER {table}_keeps_all BEFORE TRUNCATE ON {table} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {table}_keeps()",
    )
)
_THERE = "SELECT 1 FROM pg_trigger WHERE tgname = 'audit_log_keeps_all' AND tgrelid = to_regclass('audit_log')"


def keep_append_only(connection: Connection) -> None:
    """Creates the triggers, unless they exist."""
    if connection.dialect.name == "sqlite":
        for trigger in _SQLITE:
            connection.execute(text(trigger))
    elif connection.exec_driver_sql(_THERE).first() is None:
        for statement in _POSTGRES:
            connection.exec_driver_sql(statement)


VERSION = 1
CHECKPOINT_EVERY = 256
"""Records after which there is a checkpoint."""
CHECKPOINT_EVERY_MS = 60_000
"""Or so long after the one before, if there is anything new."""
MAX_BYTES = 64 * 1024
"""Of a record. What makes it longer is told by its hash alone: a plan may be long, and must not fail for that."""
MAX_REASON = 500
MAX_TEXT = 64 * 1024
"""Characters of a text kept apart."""
_LOOK = "Nothing is signed until that is explained: run `muster audit verify`"
_LOG_ID = re.compile(r"[a-z0-9.-]{1,64}")
_TYPE = re.compile(r"[a-z]{1,30}\.[a-z_-]{1,60}")
MAX_ROWS = 100
"""Rows of the gate's tables that one record tells of."""
MAX_TOLD = 10_000
"""Rows that are remembered as they were last told of; of others the records are asked."""
NOTHING: Mapping[str, object] = {}
NO_ROWS: Rows = {}

_NEWEST = select(record_table.c.seq, record_table.c.hash).order_by(record_table.c.seq.desc()).limit(1)
_NEWEST_CHECKPOINT = select(checkpoint_table).order_by(checkpoint_table.c.size.desc()).limit(1)
_NEWEST_KEY = select(key_table.c.key).order_by(key_table.c.seq.desc()).limit(1)
_HASHES_AFTER = (
    select(record_table.c.seq, record_table.c.hash)
    .where(record_table.c.seq > bindparam("seq"))
    .order_by(record_table.c.seq)
)
_INSERT = insert(record_table)
_TEXT = select(private_table.c.text).where(private_table.c.ref == bindparam("ref"))


class Audit:
    """The audit log of one engine. `clock` gives wall time in Unix milliseconds."""

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], int],
        *,
        log_id: str = "",
        signer: CheckpointSigner | None = None,
        anchors: tuple[Anchor, ...] = (),
        key_error: str = "",
    ) -> None:
        """Make or open it. `log_id` names a new log, by default at random. Without a signer, checkpoints are not
        signed; and there are none where they were signed before. Where the journal cannot be written `error` says so,
        and nothing can be appended until it can."""
        self._engine = engine
        self._clock = clock
        self.log_id = log_id or secrets.token_hex(8)
        if _LOG_ID.fullmatch(self.log_id) is None:
            raise SpecError("log_id", f"{log_id[:80]!a} is not a name", "Use lower-case letters, digits, '.' and '-'")
        self._signer = signer
        self._anchors = AnchorPublisher(anchors)
        self._key_error = key_error
        """Why the key that should sign is not here."""
        self._error = ""
        self._last: Checkpoint | None = None
        """The last checkpoint that was signed, as remembered outside the database."""
        self.erased = 0
        """Texts that were erased since it was opened: who remembers any must look again."""
        self.added = 0
        """Records since this process began, those of transactions that failed too. May be read on any thread."""
        self._new = 1
        """Records since the last checkpoint, at most: those of a transaction that failed count too."""
        self._told: dict[str, str] = {}
        """Rows of the gate's tables as the last records told of them."""
        self._ready = False
        """The tables are there for good."""
        self._checked_ms = 0
        self._open()

    @property
    def error(self) -> str:
        """The failure of the last checkpoint or of its anchors; empty when there was none."""
        return self._error or self._key_error or self._anchors.error

    @property
    def checkpoint_ms(self) -> int:
        """When the newest checkpoint was made, Unix milliseconds; 0: none is known."""
        return self._last.at_ms if self._last is not None else 0

    @property
    def anchored_ms(self) -> int:
        """The same of the newest that this process has seen at every anchor."""
        return read_note(self._anchors.newest).at_ms if self._anchors.newest else 0

    def _open(self) -> None:
        try:
            self._engine.record(self._prepare)
        except MusterError as error:
            self._error = str(error)
            return
        self._ready = True
        self._error = ""
        self._last = remembered(self._signer.path, self.log_id) if self._signer is not None else None
        self._checked_ms = self._clock()

    def prepare(self, connection: Connection) -> None:
        """Creates the tables in the caller's transaction, if they could not be created before."""
        if not self._ready:
            self._prepare(connection)

    def _prepare(self, connection: Connection) -> None:
        """The tables, what keeps them append-only, and the first record; nothing if all are there."""
        create_tables(connection, METADATA)
        keep_append_only(connection)
        found = connection.execute(select(log_table.c.log)).scalar()
        if found is not None:
            self.log_id = found
        key = self._signer.verifier_key(origin_of(self.log_id)) if self._signer is not None else UNSIGNED
        if found is None:
            connection.execute(insert(log_table).values(id=1, log=self.log_id, v=VERSION))
            self._announce(connection, "audit.opened", {"key": key})
        elif self._signer is not None and (old := connection.execute(_NEWEST_KEY).scalar()) != key:
            # The key before is lost, or there was none: nobody signs that this is the next. See `rotate`.
            self._announce(connection, "audit.key", {"key": key, "before": old})

    def _announce(self, connection: Connection, type_: str, data: Mapping[str, object], actor: Actor = SYSTEM) -> None:
        seq = self._add(connection, type_, actor, {"data": dict(data)})
        connection.execute(insert(key_table).values(seq=seq, key=data["key"]))

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(
        self,
        connection: Connection,
        type_: str,
        actor: Actor,
        *,
        proposal: str = "",
        revision: int = 0,
        step: str = "",
        plan_digest: str = "",
        policy_digest: str = "",
        data: Mapping[str, object] = NOTHING,
        private: tuple[Sealed, ...] = (),
        rows: Rows = NO_ROWS,
    ) -> int:
        """Write a record in the caller's transaction; returns its number. `data` is JSON without floats, at most 16
        levels deep; values that make the record longer than MAX_BYTES are replaced by their hash. `rows` of the gate's
        tables were written with it; those that are too many for it are told by records of their own before it. Raises
        SpecError for data that has no canonical form."""
        self.prepare(connection)
        while len(rows) > MAX_ROWS:
            some = dict(islice(rows.items(), MAX_ROWS))
            rows = {name: rows[name] for name in rows.keys() - some.keys()}
            self._add(connection, "gate.rows", SYSTEM, {"proposal": proposal, "data": {"rows": some}})
        if rows:
            if len(self._told) > MAX_TOLD:
                self._told.clear()
            self._told |= rows
            data = {**data, "rows": dict(rows)}
        return self._add(connection, type_, actor, {
            "proposal": proposal, "revision": revision, "step": step, "plan": plan_digest, "policy": policy_digest,
            "data": dict(data), "private": [{"ref": sealed.ref, "mac": sealed.mac} for sealed in private],
        })  # fmt: skip

    def _add(self, connection: Connection, type_: str, actor: Actor, fields: Mapping[str, object]) -> int:
        if _TYPE.fullmatch(type_) is None:
            raise SpecError("type", f"{type_[:80]!a} is not a record type", "Give one such as exec.step")
        last, before = self.head(connection)
        record: dict[str, object] = {
            "v": VERSION, "seq": last + 1, "at_ms": self._clock(), "log": self.log_id, "type": type_,
            "actor": {
                "subject": actor.subject, "kind": actor.kind, "account": actor.account, "signed": actor.signed,
                "session": actor.session, "key": actor.key,
            },
            "proposal": "", "revision": 0, "step": "", "plan": "", "policy": "", "data": {}, "private": [],
        }  # fmt: skip
        body = record_body({**record, **fields})
        connection.execute(_INSERT, {
            "seq": last + 1, "type": type_, "subject": actor.subject, "proposal": fields.get("proposal", ""),
            "at_ms": record["at_ms"], "body": body, "hash": link(before, body),
        })  # fmt: skip
        self._new += 1
        self.added += 1
        return last + 1

    def rewrite(
        self, connection: Connection, table: Table, where: ColumnElement[bool], values: Mapping[str, object], about: str
    ) -> dict[str, str]:
        """Update rows that `where` finds before and after; they are for the next record `about` a proposal. A row
        that was changed outside Muster is left out, so that it does not become right by being written again."""
        before = reread(connection, table, where)
        connection.execute(update(table).where(where).values(**values))
        after = reread(connection, table, where)
        return {name: after[name] for name in after if self.is_told(connection, name, before.get(name, ""), about)}

    def is_told(self, connection: Connection, name: str, digest: str, about: str) -> bool:
        """True when a row is as the last record about it left it, or when no record is about it."""
        if self._told.get(name) == digest:
            return True
        newest = select(record_table.c.body).where(record_table.c.proposal == about).order_by(record_table.c.seq.desc())
        for body in connection.execute(newest).scalars():
            told = parse(body)["data"].get("rows", NO_ROWS).get(name)
            if told is not None:
                return bool(told == digest)
        return True

    def head(self, connection: Connection) -> tuple[int, bytes]:
        """(number, hash) of the newest record."""
        newest = connection.execute(_NEWEST).first()
        return (0, FIRST_LINK) if newest is None else (newest[0], newest[1])

    def seal(self, connection: Connection, text: str) -> Sealed:
        """Keep a text apart, where it can be erased; records and plans name it by what is returned."""
        if len(text) > MAX_TEXT:
            raise SpecError("text", f"{len(text):,} characters", f"Give at most {MAX_TEXT:,}")
        self.prepare(connection)
        ref, key = secrets.token_hex(8), secrets.token_bytes(32)
        try:
            mac = hmac.new(key, text.encode(), "sha256").hexdigest()
        except UnicodeEncodeError:
            raise SpecError("text", "has half a character (a lone surrogate)", "Give valid Unicode") from None
        connection.execute(insert(private_table).values(ref=ref, key=key, text=text))
        return Sealed(ref=ref, mac=mac)

    def reveal(self, connection: Connection, ref: str) -> str | None:
        """The text that was kept apart; None: it was erased, or never there."""
        found: str | None = connection.execute(_TEXT, {"ref": ref}).scalar()
        return found

    def redact(self, connection: Connection, actor: Actor, ref: str, reason: str) -> int:
        """Erase a text that was kept apart, and say so in a record, whose number is returned. The chain stays as it is:
        it never held the text. Raises NotFoundError; and SpecError without a reason. Call `scrub` once it is done."""
        if not reason.strip() or len(reason) > MAX_REASON or not reason.isprintable():
            raise SpecError("reason", "is not a reason", f"Say why in one line of at most {MAX_REASON} characters")
        if connection.dialect.name == "sqlite":
            connection.execute(text("PRAGMA secure_delete = ON"))
        if connection.execute(delete(private_table).where(private_table.c.ref == ref)).rowcount != 1:
            raise NotFoundError(f"the audit has no text {ref[:40]!a}", "It was erased or never existed")
        self.erased += 1
        return self.append(connection, "audit.redacted", actor, data={"ref": ref, "reason": reason})

    def scrub(self) -> bool:
        """Take what was erased out of the database's log too. False: it goes with time, because somebody is reading, or
        because the log is a server's."""
        path = self._engine.path
        if path is None:
            return not isinstance(self._engine.place, Schema)
        with contextlib.closing(sqlite3.connect(path, timeout=2.0)) as database:
            busy: int = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return busy == 0

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def after(self, *, at_once: bool = False) -> None:
        """A checkpoint, if one is due. Its failure breaks nothing; `error` then tells it."""
        now_ms = self._clock()
        if not self._ready:
            self._open()
        due = self._new >= CHECKPOINT_EVERY or not 0 <= now_ms - self._checked_ms < CHECKPOINT_EVERY_MS
        if not self._ready or self._new == 0 or not (due or at_once):
            return
        try:
            note = self._engine.record(lambda connection: self._checkpoint(connection, self._signer))
            self._new, self._checked_ms, self._error = 0, now_ms, ""
            self._publish(note)
        except (MusterError, ValueError, TypeError) as error:
            # The others are of tables that somebody has put something else in.
            self._error = str(error)

    def _publish(self, note: str) -> None:
        if not note:
            return
        self._last = read_note(note)
        self._anchors.publish(note)
        try:
            remember(self._signer.path if self._signer is not None else None, self.log_id, note)
        except OSError as error:
            raise MusterError(f"the audit's newest checkpoint is not anchored: {error}", "Check the folder") from error

    def _checkpoint(self, connection: Connection, signer: CheckpointSigner | None) -> str:
        """Sign what there is now; returns the note, empty if nothing is new."""
        if signer is None and connection.execute(_NEWEST_KEY).scalar() != UNSIGNED:
            raise MusterError("the audit is signed, and its key is not here", "Give the key file it was signed with")
        newest = connection.execute(_NEWEST_CHECKPOINT).first()
        last = read_note(newest.note) if newest is not None else None
        self._refuse_forged(last)
        before, frontier = "", Frontier()
        if newest is not None and last is not None:
            before = last.text
            frontier = Frontier.of(newest.size, newest.frontier)
            if frontier.root() != last.root:
                raise MusterError("what the audit's newest checkpoint goes on from was changed", _LOOK)
        for seq, hash_ in connection.execute(_HASHES_AFTER, {"seq": frontier.size}):
            if seq != frontier.size + 1:
                raise MusterError(f"record {frontier.size + 1} is missing from the audit", _LOOK)
            frontier.push(leaf_of(hash_))
        if newest is not None and frontier.size == newest.size:
            return ""
        note = checkpoint_text(self.log_id, frontier.size, frontier.root(), before, self._clock())
        if signer is not None:
            note = signer.sign(origin_of(self.log_id), note)
        values = {"size": frontier.size, "note": note, "frontier": b"".join(frontier.nodes)}
        connection.execute(insert(checkpoint_table), values)
        return note

    def _refuse_forged(self, newest: Checkpoint | None) -> None:
        """Raises MusterError unless the log continues the last signed checkpoint. Otherwise somebody who can write only
        the database could have a forged past signed."""
        last = self._last
        if last is None:
            return
        if newest is None or newest.size < last.size or (newest.size == last.size and newest.text != last.text):
            raise MusterError(f"the audit does not go on from the checkpoint of {last.size} records", _LOOK)

    def rotate(self, signer: CheckpointSigner, actor: Actor) -> None:
        """Sign with another key from now on. That is a record, and the last checkpoint of the key before is over it.
        Raises MusterError with nothing changed."""

        def change(connection: Connection) -> str:
            key = signer.verifier_key(origin_of(self.log_id))
            if (old := connection.execute(_NEWEST_KEY).scalar()) == key:
                raise RefusedError("the audit is already signed by that key", "Make another with `muster audit key`")
            self._announce(connection, "audit.key", {"key": key, "before": old}, actor)
            return self._checkpoint(connection, self._signer)

        note = self._engine.record(change)
        self._publish(note)
        self._signer = signer

    def rotate_file(self, actor: Actor) -> None:
        """Signs with a new key from now on, which replaces the key file. Raises MusterError."""
        if self._signer is None or self._signer.path is None:
            raise RefusedError("this audit has no key file", "An engine started with `muster serve` has one")
        path = self._signer.path
        fresh = CheckpointSigner.new()
        fresh.keep(next_key(path))
        self.rotate(fresh, actor)
        fresh.move(path)

    def publish(self) -> None:
        """A checkpoint now if anything is new, and the newest to all anchors. Raises MusterError."""
        self.after(at_once=True)
        if self._error:
            raise MusterError(self._error, "Nothing was lost; try again")
        newest = self._engine.recorded(lambda connection: connection.execute(_NEWEST_CHECKPOINT).first())
        if newest is not None:
            self._anchors.publish(newest.note)

    @property
    def key_file(self) -> str:
        """The path of the key file; empty when the key is in no file."""
        return str(self._signer.path or "") if self._signer is not None else ""

    @property
    def anchors(self) -> tuple[str, ...]:
        return self._anchors.names

    @property
    def public_key(self) -> str:
        """The public key that signs now; `none` when nothing is signed."""
        return UNSIGNED if self._signer is None else self._signer.verifier_key(origin_of(self.log_id))

    def close(self) -> None:
        """The last checkpoint, and wait a little for its anchors."""
        self.after(at_once=True)
        self._anchors.close()


def record_body(record: dict[str, object]) -> bytes:
    """Canonical JSON. Where it would be too long, the longest values of `data` give way to their hash."""
    try:
        body = canonical(record)
        data = record["data"]
        if len(body) <= MAX_BYTES or not isinstance(data, dict):
            return body
        sizes = {key: len(value) for key in data if (value := canonical(data[key]))}
        short = dict(data)
        for key in sorted(sizes, key=lambda key: (-sizes[key], key)):
            value = canonical(data[key])
            short[key] = {"omitted_bytes": len(value), "sha256": hashlib.sha256(value).hexdigest()}
            body = canonical(record | {"data": short})
            if len(body) <= MAX_BYTES:
                return body
        raise ValueError(f"{len(body):,} bytes without the values of data")
    except (ValueError, UnicodeEncodeError) as error:
        raise SpecError("record", f"cannot be written: it has {error}", "Give texts, whole numbers and lists") from None


def signer_at(engine: Engine, path: Path) -> CheckpointSigner:
    """The key in that file; or the one beside it that had taken over when a rotation was cut short. Raises
    MusterError."""
    fresh = next_key(path)
    if not fresh.exists():
        return CheckpointSigner.of(path)
    signer = CheckpointSigner.of(fresh)

    def in_force(connection: Connection) -> str:
        if not inspect(connection).has_table(key_table.name):
            return ""
        found: str = connection.execute(_NEWEST_KEY).scalar() or ""
        return found

    if engine.recorded(in_force).endswith(signer.verifier_key("").removeprefix("+").partition("+")[2]):
        signer.move(path)
        return signer
    fresh.unlink()
    return CheckpointSigner.of(path)
