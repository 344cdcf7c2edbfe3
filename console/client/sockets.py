"""Sockets that an engine is reached by, the accounts that may use them, and TLS of the TCP port.

A Unix socket belongs to its owner, or to a group too. A TCP port is reachable beyond this machine only with TLS:
version 1.2 or newer, certificate and key from files, and on request certificates of callers. Replaced files are read
again, so that a certificate is renewed without a restart.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import shlex
import socket
import ssl
import stat
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from engine.model.errors import MusterError, RefusedError, SpecError
from runbooks.plans.identity import TCP


class Peer(NamedTuple):
    """Process that listens on a Unix socket. Both are -1 where the system does not say."""

    pid: int
    uid: int


def probe(path: Path, timeout_s: float = 1.0) -> Peer | None:
    """Peer that listens on the Unix socket at `path`; None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probing:
        probing.settimeout(timeout_s)
        try:
            probing.connect(os.fspath(path))
        except (OSError, ValueError):
            return None
        return peer_of(probing)


def bind_unix(path: Path, group: str = "") -> socket.socket:
    """Bind a Unix socket at `path`, mode 0600, not yet listening. A socket that a dead engine left is replaced. With a
    group its members may connect too: 0660. `socket_folder` prepares the folder.

    Raises RefusedError with the process id when an engine listens there already, SpecError when it cannot be bound or
    the group cannot have it. Then nothing has changed.
    """
    socket_folder(path.parent, group)
    peer = probe(path)
    if peer is not None:
        by = f" by process {peer.pid}" if peer.pid > 0 else ""
        raise RefusedError(f"{path} is in use{by}", "Attach to that engine, or stop it with `muster stop`")
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117 if group else 0o177)
    try:
        bound.bind(os.fspath(path))
    except OSError as error:
        bound.close()
        raise SpecError(
            "socket", f"{path} cannot be bound ({error.strerror or error})", "Choose another path"
        ) from None
    finally:
        os.umask(before)
    if group:
        try:
            _give(path, group, _group_id(group))
        except SpecError:
            bound.close()
            path.unlink()
            raise
    return bound


def remove_unix(path: Path) -> None:
    """Remove our socket once nobody listens on it. A file that somebody else has put there stays."""
    with contextlib.suppress(MusterError):
        if probe(path) is None:
            _remove_stale(path)


def socket_folder(folder: Path, group: str = "") -> None:
    """Create the folder of a socket and its missing parents: mode 0700, or with a group 0710, so that its members pass
    through but cannot list it. An existing folder is never changed.

    Raises SpecError for an existing one that the group cannot pass through, and MusterError where others could replace
    the socket.
    """
    group_id = _group_id(group) if group else -1
    made = _make_missing(folder, 0o710 if group else 0o700)
    if group:
        try:
            for each in made:
                _give(each, group, group_id)
        except SpecError:
            for each in reversed(made):
                each.rmdir()
            raise
    found = _look_at(folder, sticky_is_private=True)
    passes = found.st_mode & (stat.S_IXGRP if found.st_gid == group_id else stat.S_IXOTH)
    if group and not passes:
        raise SpecError(
            "socket_group",
            f"group {group} has no access to {folder}, and Muster does not change existing folders",
            f"Use --socket in a new folder, or grant access yourself: "
            f"chgrp {shlex.quote(group)} {shlex.quote(str(folder))} && chmod 710 {shlex.quote(str(folder))}",
        )


def _group_id(group: str) -> int:
    import grp

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SpecError("socket_group", f"there is no group {group[:60]!a}", "Use one of /etc/group") from None


def _give(made: Path, group: str, group_id: int) -> None:
    """Gives to a group what we have just made; never what a link there leads to."""
    try:
        os.chown(made, -1, group_id, follow_symlinks=False)
    except OSError as error:
        raise SpecError(
            "socket_group", f"{made} cannot be assigned to {group} ({error.strerror})", "Join the group"
        ) from None


def bind_tcp(listen: str, *, secured: bool = False) -> socket.socket:
    """A TCP socket on HOST:PORT: of this machine alone, unless it is to be `secured` by TLS. Raises SpecError or
    RefusedError."""
    host, port = parse_listen(listen, secured=secured)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise SpecError("listen", f"{listen} cannot be bound ({error.strerror})", "Choose another port") from None
    return bound


def parse_listen(listen: str, *, secured: bool = False) -> tuple[str, int]:
    """Host and port of `HOST:PORT`. Raises RefusedError for what other machines can reach, unless it is `secured`."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    host = "127.0.0.1" if host == "localhost" else host
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise SpecError("listen", f"{listen[:60]!a} is not HOST:PORT", "Write it like 127.0.0.1:7373")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise SpecError("listen", f"{host[:60]!a} is not an address", "Write it like 127.0.0.1:7373") from None
    if not address.is_loopback and not secured:
        raise RefusedError(
            f"{host} is reachable from other machines, and without TLS nobody can be authenticated",
            "Give --tls-cert and --tls-key, or listen on 127.0.0.1 and forward the port with ssh -L",
        )
    return str(address), int(port)


def private_folder(folder: Path) -> None:
    """Creates `folder` with mode 0700. One that exists must be a folder nobody else can write to, and stays as it is.
    Raises SpecError or MusterError."""
    _make_missing(folder, 0o700)
    _look_at(folder, sticky_is_private=False)


def _make_missing(folder: Path, mode: int) -> list[Path]:
    """Creates `folder` and those above it that are missing. Returns the new ones, the outermost first."""
    made: list[Path] = []
    before = os.umask(0o777 & ~mode)
    try:
        for missing in reversed([each for each in (folder, *folder.parents) if not os.path.lexists(each)]):
            with contextlib.suppress(FileExistsError):  # somebody else made it meanwhile
                missing.mkdir(mode=mode)
                made.append(missing)
    except OSError as error:
        raise SpecError("folder", f"{folder} cannot be created ({error.strerror})", "Choose another folder") from None
    finally:
        os.umask(before)
    return made


def _look_at(folder: Path, *, sticky_is_private: bool) -> os.stat_result:
    """State of a folder in which nobody else can replace our files. `sticky_is_private`: others may add files of their
    own, as in /tmp. Raises SpecError or MusterError."""
    try:
        found = folder.lstat()
    except OSError as error:
        raise SpecError("folder", f"{folder} cannot be read ({error.strerror})", "Choose another folder") from None
    if stat.S_ISLNK(found.st_mode):
        raise SpecError("folder", f"{folder} is a symbolic link", f"Use the folder itself: {os.path.realpath(folder)}")
    if not stat.S_ISDIR(found.st_mode):
        raise SpecError("folder", f"{folder} is not a folder", "Choose another folder")
    others_write = found.st_mode & 0o022 and not (sticky_is_private and found.st_mode & stat.S_ISVTX)
    if found.st_uid not in (os.getuid(), 0) or others_write:
        raise MusterError(f"{folder} can be changed by other users", "Use a folder that only you can write")
    return found


def _remove_stale(path: Path) -> None:
    """Removes a socket of ours that nobody listens on. Anything else is somebody's and stays."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SpecError("socket", f"{path} exists and is not a socket", "Choose another path or move the file away")
    if found.st_uid != os.getuid():
        raise SpecError(
            "socket", f"{path} is a socket of another user", "Choose another path, or ask the owner to remove it"
        )
    path.unlink(missing_ok=True)


def account_at(connected: socket.socket) -> str:
    """Account of the peer: "unix:1000", or "tcp" where it cannot be known. Where the system does not tell the peer of a
    Unix socket that is private to its owner, it was the owner."""
    if connected.family != socket.AF_UNIX:
        return TCP
    uid = peer_of(connected).uid
    if uid >= 0:
        return f"unix:{uid}"
    private = not os.stat(connected.getsockname()).st_mode & 0o077
    return f"unix:{os.getuid()}" if private else TCP


def peer_of(connected: socket.socket) -> Peer:
    """Peer of a Unix socket, as the kernel noted it at connect."""
    if not sys.platform.startswith("linux"):
        return Peer(-1, -1)
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Peer(pid, uid)


LOOK_EVERY_S = 60.0
"""Seconds between two looks for replaced files."""


@dataclass
class Tls:
    """Certificate of the TCP port. Call `open` first."""

    certificate: Path
    """PEM: ours first, then those that vouch for it."""
    key: Path
    """PEM, readable to us alone, without a passphrase."""
    callers: Path | None = None
    """PEM of those who vouch for callers' certificates; None: callers bring none."""
    _context: ssl.SSLContext | None = field(default=None, repr=False)
    _read: tuple[float, ...] = field(default=(), repr=False)

    def open(self) -> ssl.SSLContext:
        """TLS context of the files. Raises SpecError naming the file and its problem."""
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
        """Read replaced files again, for connections from now on. Returns True when they were replaced. Raises
        SpecError for files that cannot be used; the previous ones stay in use."""
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


def tls_given(arguments: argparse.Namespace) -> Tls | None:
    """The certificate of the TCP port that a command was given; None: there is none. Raises SpecError."""
    given = {name: getattr(arguments, name) for name in ("tls_cert", "tls_key", "tls_client_ca")}
    if not any(given.values()):
        return None
    if not (given["tls_cert"] and given["tls_key"] and arguments.listen):
        raise SpecError("--tls-cert", "needs --tls-key and --listen", "Give all three")
    callers = given["tls_client_ca"]
    return Tls(Path(given["tls_cert"]), Path(given["tls_key"]), Path(callers) if callers else None)


def _no_passphrase() -> str:
    """Empty passphrase, so that nothing is asked on a terminal that nobody may be at."""
    return ""


def _said(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)
