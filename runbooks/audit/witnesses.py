"""Evidence that the audit is checked against: signed checkpoints, anchors outside the log, and the engine's journal.

A checkpoint is a C2SP signed note (https://c2sp.org/tlog-checkpoint, https://c2sp.org/signed-note) with this text:

    muster-audit/<log>          the origin, and the name of the key
    <records>
    <root, base64>
    prev <SHA-256 of the text of the checkpoint before, base64; `-` for the first>
    at <Unix ms>

Anchors are written on a thread of their own, because a network disk may hang; failures are reported by `error`.

An effect is written to journal and audit in one transaction. A difference between the two means that one of them was
changed afterwards (`differences`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import queue
import socket
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from engine.model import events as ev
from engine.model.errors import MusterError, SpecError
from runbooks.actions import catalogue
from runbooks.audit.verify import DAMAGE, Checkpoint, Database, Flaw, PostgresDatabase, hash_of, parse, read_note

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


KEY_PREFIX = "muster-audit-key "


class CheckpointSigner:
    """An Ed25519 key that signs the checkpoints of one log."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key = key
        self.path: Path | None = None
        """The file it is in."""
        self.public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @classmethod
    def new(cls) -> CheckpointSigner:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of(cls, path: Path) -> CheckpointSigner:
        """The key in that file, which is made if there is none, for this user alone. Keep it where the log is not: who
        has both can write another log. Raises MusterError for a file that is no such key or that others may read."""
        try:
            if not path.exists():
                cls.new().keep(path)
            return cls.read(path)
        except OSError as error:
            raise MusterError(
                f"the audit's key {path} cannot be read or made: {error.strerror}", "Check the folder and its owner"
            ) from error

    @classmethod
    def read(cls, path: Path) -> CheckpointSigner:
        """Raises MusterError, or OSError for a file that cannot be read."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if (mode := path.stat().st_mode & 0o077) != 0:
            raise MusterError(f"the audit's key {path} is open to others (mode {mode:03o})", f"chmod 600 {path}")
        with open(path, "rb") as file:
            text = file.read(200).decode("ascii", "replace").strip()
        try:
            if not text.startswith(KEY_PREFIX):
                raise ValueError
            secret = base64.b64decode(text.removeprefix(KEY_PREFIX), validate=True)
            found = cls(Ed25519PrivateKey.from_private_bytes(secret))
        except ValueError:
            raise MusterError(f"{path} is not a key of the audit", "Move it away to have a new one made") from None
        found.path = path
        return found

    def keep(self, path: Path) -> None:
        """Write it to a file that is not there yet, for this user alone. Raises MusterError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fresh = path.with_name(f"{path.name}.{os.getpid()}")
            with open(os.open(fresh, _NEW, 0o600), "w", encoding="ascii") as file:
                file.write(self.secret() + "\n")
                file.flush()
                os.fsync(file.fileno())
            try:
                # Unlike a rename this never replaces a key that somebody else has made meanwhile.
                with contextlib.suppress(FileExistsError):
                    os.link(fresh, path)
            finally:
                fresh.unlink()
        except OSError as error:
            raise MusterError(f"the audit's key {path} cannot be made: {error.strerror}", "Check the folder") from error
        self.path = path

    def move(self, path: Path) -> None:
        """Put its file in the place of another. Raises MusterError."""
        try:
            if self.path is not None:
                self.path.replace(path)
        except OSError as error:
            raise MusterError(
                f"the audit's key {path} cannot be replaced: {error.strerror}", "Do it by hand"
            ) from error
        self.path = path

    def secret(self) -> str:
        """The text of the key file."""
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        raw = self._key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return KEY_PREFIX + base64.b64encode(raw).decode()

    def sign(self, origin: str, text: str) -> str:
        """The signed note."""
        signature = base64.b64encode(key_hash(origin, self.public) + self._key.sign(text.encode())).decode()
        return f"{text}\n— {origin} {signature}\n"

    def verifier_key(self, origin: str) -> str:
        """The public half as signed notes have it: name, hash and key."""
        return verifier_key(origin, self.public)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


def remembered_at(key_file: Path, log_id: str) -> Path:
    """The file in which an engine remembers its last signed checkpoint: beside the key, so apart from the log."""
    return key_file.with_name(f"{key_file.name}.{log_id}.note")


def remembered(key_file: Path | None, log_id: str) -> Checkpoint | None:
    """The last checkpoint that was signed with that key, as far as it is remembered."""
    if key_file is None:
        return None
    try:
        return read_note(remembered_at(key_file, log_id).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def remember(key_file: Path | None, log_id: str, note: str) -> None:
    """Raises OSError."""
    if key_file is None:
        return
    path = remembered_at(key_file, log_id)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(note, encoding="utf-8")
    fresh.replace(path)


def next_key(path: Path) -> Path:
    """The file of the next key while it replaces the one at `path`."""
    return path.with_name(path.name + ".next")


def origin_of(log_id: str) -> str:
    return f"muster-audit/{log_id}"


def key_hash(name: str, public: bytes) -> bytes:
    """The four bytes that tell which key has signed."""
    return hashlib.sha256(name.encode() + b"\n\x01" + public).digest()[:4]


def verifier_key(name: str, public: bytes) -> str:
    """As c2sp.org/signed-note has it, as in `muster-audit/7f3a+c74f20a3+ARpc2QcU…`."""
    return f"{name}+{key_hash(name, public).hex()}+{base64.b64encode(bytes([1]) + public).decode()}"


def checkpoint_text(log_id: str, size: int, root: bytes, before: str, at_ms: int) -> str:
    """The text that is signed. `before`: text of the checkpoint before, empty for the first."""
    prev = hash_of(before) if before else "-"
    return f"{origin_of(log_id)}\n{size}\n{base64.b64encode(root).decode()}\nprev {prev}\nat {at_ms}\n"


MAX_WAITING = 64
"""Checkpoints that wait for a slow place; then the oldest is left out: each stands for all before it."""
CLOSE_S = 2.0
SYSLOG = "/dev/log"
NOTICE = 13 * 8 + 5
"""Facility "log audit", severity "notice" (RFC 5424)."""


class Anchor(Protocol):
    """A place outside the log where checkpoints are remembered."""

    name: str

    def publish(self, note: str) -> None:
        """Raises OSError."""


class FileAnchor:
    """A file to which checkpoints are appended: on another disk, on another machine, in a work tree of git."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def publish(self, note: str) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        try:
            os.write(file, f"{note}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)


class SyslogAnchor:
    """The system's log: one line, `muster-audit/<log> <records> <root>`. `verify --against` reads it too."""

    name = "syslog"

    def __init__(self, address: str = SYSLOG) -> None:
        self._address = address

    def publish(self, note: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
            log.settimeout(CLOSE_S)
            log.connect(self._address)
            log.send(f"<{NOTICE}>muster: {one_line(note)}".encode())


def one_line(note: str) -> str:
    """A checkpoint where there is room for one line."""
    return " ".join(read_note(note).text.splitlines()[:3])


def anchors_of(text: str) -> tuple[Anchor, ...]:
    """The places that a setting lists, as in `file:/mnt/other/muster.notes, syslog`. Raises SpecError."""
    found: list[Anchor] = []
    for place in filter(None, map(str.strip, text.split(","))):
        kind, _, rest = place.partition(":")
        if place == "syslog":
            found.append(SyslogAnchor())
        elif kind == "file" and Path(rest).is_absolute():
            found.append(FileAnchor(Path(rest)))
        else:
            raise SpecError("audit_anchors", f"{place[:80]!a} is no anchor", "Give `syslog` or `file:/path/of/a/file`")
    return tuple(found)


class AnchorPublisher:
    """Publishes notes at all places, one after the other, on a thread of its own."""

    def __init__(self, places: Sequence[Anchor]) -> None:
        self.error = ""
        """What failed last; empty when the last note is everywhere."""
        self.newest = ""
        """The last note that is everywhere."""
        self.names = tuple(place.name for place in places)
        self._places = tuple(places)
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None

    def publish(self, note: str) -> None:
        """Queues the note for all places, without waiting."""
        if not self._places:
            return
        while True:
            try:
                self._waiting.put_nowait(note)
                break
            except queue.Full:
                self._leave_out()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="audit-anchors", daemon=True)
            self._thread.start()

    def _leave_out(self) -> None:
        try:
            self._waiting.get_nowait()
        except queue.Empty:
            return
        self.error = "the anchors of the audit do not keep up"

    def _run(self) -> None:
        while note := self._waiting.get():
            failed = [told for place in self._places if (told := _publish(place, note))]
            self.error = "; ".join(failed)
            if not failed:
                self.newest = note

    def close(self) -> None:
        """Wait for what is under way, for CLOSE_S at most."""
        if self._thread is not None:
            self._waiting.put("")
            self._thread.join(CLOSE_S)


def _publish(place: Anchor, note: str) -> str:
    """The reason that publishing failed; empty when it succeeded."""
    try:
        place.publish(note)
    except OSError as error:
        return f"the audit's anchor {place.name} cannot be written: {error.strerror or error}"
    return ""


MOST = 20
"""Differences that are told."""


class RecordedEffect(NamedTuple):
    """An effect as the journal or the audit holds it."""

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
    """The time of the oldest record, wall ms, and True when an earlier version moved older records to files. Effects
    before that time without a key precede the audit."""
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
