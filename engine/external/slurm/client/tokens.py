"""The tokens that slurmrestd asks for over TCP: JWTs that slurmctld signs, by default for half an hour.

A token is read from a file which somebody keeps fresh (`scontrol token`, a cron job, a secret store), and read again
when the file changes or Slurm no longer takes it. It is never logged, and no text this makes holds it.
"""

from __future__ import annotations

import base64
import binascii
import stat
import threading
from pathlib import Path
from typing import Any

import msgspec

from engine.model.errors import SpecError

LONGEST = 16_384


class TokenFile:
    """The token in a file: bare, or as `scontrol token` prints it (`SLURM_JWT=...`). Safe in several threads."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._stamp: tuple[int, int, int] | None = None
        self._token = ""

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r})"

    def token(self, *, again: bool = False) -> str:
        """The token now in the file; `again` reads it even if the file looks the same. SpecError says what is wrong."""
        with self._lock:
            try:
                about = self.path.stat()
                if about.st_mode & stat.S_IRWXO:
                    raise ValueError("can be read by everybody on this machine")
                stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
                if again or stamp != self._stamp:
                    self._token = _only_token(self.path.read_bytes()[: LONGEST + 1])
                    self._stamp = stamp
            except OSError as error:
                raise SpecError(
                    "slurm token file", f"{self.path}: {error.strerror}", "Give a file with a token"
                ) from None
            except ValueError as error:
                remedy = f"chmod 600 {self.path}" if "everybody" in str(error) else _HOW
                raise SpecError("slurm token file", f"{self.path}: {error}", remedy) from None
            return self._token

    def user(self) -> str:
        """Whom the token is for, by its own word; empty when it does not say. Slurm checks it, not we."""
        said = _claims(self.token()).get("sun")
        return said if isinstance(said, str) and said.isascii() and said.isprintable() else ""

    def expires_s(self) -> int:
        """Unix second from which Slurm no longer takes it; 0 = it does not say."""
        said = _claims(self.token()).get("exp")
        return int(said) if isinstance(said, int | float) else 0


_HOW = "Make one with `scontrol token username=NAME lifespan=SECONDS`"


def _only_token(content: bytes) -> str:
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise ValueError("holds no token, but bytes that are no text") from None
    text = text.removeprefix("SLURM_JWT=").strip()
    if not text:
        raise ValueError("is empty")
    if len(text) > LONGEST or any(letter.isspace() or not letter.isprintable() for letter in text):
        raise ValueError("holds more than one token, or none")
    return text


def _claims(token: str) -> dict[str, Any]:
    """What a JWT says of itself, unchecked; nothing when it is no JWT."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return {}
    return claims if isinstance(claims, dict) else {}
