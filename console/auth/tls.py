"""TLS of the TCP port: version 1.2 or newer, a certificate and its key from files, and on request certificates of the
callers. Files that are replaced are read again, so that a certificate is renewed without a restart."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from engine.model.errors import SpecError

LOOK_EVERY_S = 60.0
"""How often it is looked whether the files were replaced."""


@dataclass
class Tls:
    """Where the certificate is. `open` before anything else."""

    certificate: Path
    """PEM: ours first, then those that vouch for it."""
    key: Path
    """PEM, readable to us alone, without a passphrase."""
    callers: Path | None = None
    """PEM of those who vouch for callers' certificates; None: callers bring none."""
    _context: ssl.SSLContext | None = field(default=None, repr=False)
    _read: tuple[float, ...] = field(default=(), repr=False)

    def open(self) -> ssl.SSLContext:
        """Raises SpecError naming the file and what is wrong with it."""
        if self._context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            context.set_alpn_protocols(["http/1.1"])
            context.options |= ssl.OP_NO_COMPRESSION
            self._check_key()
            self._load(context)
            if self.callers is not None:
                context.verify_mode = ssl.CERT_OPTIONAL
                try:
                    context.load_verify_locations(self.callers)
                except (OSError, ssl.SSLError) as error:
                    raise SpecError("tls_client_ca", f"{self.callers}: {_said(error)}", "Give a PEM file") from None
            self._context = context
        return self._context

    def renew(self) -> bool:
        """Read the files again if they were replaced: for connections from now on. True when they were. Raises
        SpecError for files that cannot be used; what was read before is used on."""
        if self._context is None or self._times() == self._read:
            return False
        # Into another context first: half a pair in this one would end every connection.
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        self._load(self._context)
        return True

    def _load(self, context: ssl.SSLContext) -> None:
        read = self._times()
        try:
            context.load_cert_chain(self.certificate, self.key, password=_no_passphrase)
        except (OSError, ssl.SSLError) as error:
            raise SpecError(
                "tls_cert", f"{self.certificate} with {self.key}: {_said(error)}",
                "Give PEM files that belong together, the key without a passphrase",
            ) from None  # fmt: skip
        self._read = read

    def _times(self) -> tuple[float, ...]:
        try:
            return tuple(path.stat().st_mtime_ns for path in (self.certificate, self.key))
        except OSError as error:
            raise SpecError("tls_cert", f"{error.filename}: {error.strerror}", "Give a PEM file") from None

    def _check_key(self) -> None:
        try:
            mode = self.key.stat().st_mode
        except OSError as error:
            raise SpecError("tls_key", f"{self.key}: {error.strerror}", "Give a PEM file") from None
        if mode & 0o077:
            raise SpecError("tls_key", f"{self.key} can be read by others", f"chmod 600 {self.key}")


def _no_passphrase() -> str:
    """Instead of asking on a terminal that nobody may be at."""
    return ""


def _said(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
