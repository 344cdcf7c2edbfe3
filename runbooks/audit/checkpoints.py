"""Checkpoints: size and root of the log as a C2SP signed note, and the key that signs it.

https://c2sp.org/tlog-checkpoint and https://c2sp.org/signed-note. The text of a note is

    muster-audit/<log>          the origin, and the name of the key
    <records>
    <root, base64>
    prev <SHA-256 of the text of the checkpoint before, base64; `-` for the first>
    at <Unix ms>
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from engine.model.errors import MusterError
from runbooks.audit.verify import Checkpoint, hash_of, read_note

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
        """What a key file says."""
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
    """Where an engine remembers the last checkpoint it signed: beside the key, so not where the log is."""
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
    """Where a key waits while it takes over from the one at `path`."""
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
    """What is signed. `before`: text of the checkpoint before, empty for the first."""
    prev = hash_of(before) if before else "-"
    return f"{origin_of(log_id)}\n{size}\n{base64.b64encode(root).decode()}\nprev {prev}\nat {at_ms}\n"
