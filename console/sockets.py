"""The sockets an engine is reached by: a Unix socket for its owner, or a group too; or TCP, beyond this machine with
TLS only."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import NamedTuple

from engine.errors import MusterError, RefusedError, SpecError
from runbooks.identity import TCP


class Peer(NamedTuple):
    """Who listens on a Unix socket. Both are -1 where the system does not say."""

    pid: int
    uid: int


def probe(path: Path, timeout_s: float = 1.0) -> Peer | None:
    """Who listens on the Unix socket at `path`; None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probing:
        probing.settimeout(timeout_s)
        try:
            probing.connect(os.fspath(path))
        except (OSError, ValueError):
            return None
        return peer_of(probing)


def bind_unix(path: Path, group: str = "") -> socket.socket:
    """A Unix socket at `path`, mode 0600, not yet listening. Replaces what a dead engine left behind. With a group its
    members may connect too, and pass through the folder, but not look into it.

    Raises RefusedError naming the process id when an engine listens there already, SpecError when it cannot be bound or
    there is no such group.
    """
    private_folder(path.parent)
    group_id = _group_id(group) if group else -1
    peer = probe(path)
    if peer is not None:
        by = f" by process {peer.pid}" if peer.pid > 0 else ""
        raise RefusedError(f"{path} is in use{by}", "Attach to that engine, or stop it with `muster stop`")
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
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
        _open_to(path, group, group_id)
    return bound


def _group_id(group: str) -> int:
    import grp

    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SpecError("socket_group", f"there is no group {group[:60]!a}", "Name one of /etc/group") from None


def _open_to(path: Path, group: str, group_id: int) -> None:
    """Lets a group connect: 0660 for the socket, 0710 for its folder. What else is in there stays its owner's alone."""
    try:
        for file in path.parent.iterdir():
            if file.is_file() and not file.is_symlink():
                file.chmod(file.stat().st_mode & 0o700)
        os.chown(path.parent, -1, group_id)
        path.parent.chmod(0o710)
        os.chown(path, -1, group_id)
        path.chmod(0o660)
    except OSError as error:
        raise SpecError(
            "socket_group", f"{path} cannot be given to {group} ({error.strerror})", "Be a member of the group"
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
        raise SpecError("listen", f"{listen[:60]!a} is not HOST:PORT", "Write for example 127.0.0.1:7373")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise SpecError("listen", f"{host[:60]!a} is not an address", "Write for example 127.0.0.1:7373") from None
    if not address.is_loopback and not secured:
        raise RefusedError(
            f"{host} can be reached from other machines, and without TLS nobody there could be authenticated",
            "Give --tls-cert and --tls-key, or listen on 127.0.0.1 and forward the port with ssh -L",
        )
    return str(address), int(port)


def private_folder(folder: Path) -> None:
    """Creates `folder` with mode 0700. One that exists must be a folder nobody else can write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise SpecError("folder", f"{folder} cannot be made ({error.strerror})", "Choose another folder") from None
    others_write = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
    ours = found.st_uid in (os.getuid(), 0)
    if not ours or others_write:
        raise MusterError(f"{folder} can be changed by other users", "Make it yours alone: chmod 700, chown")


def _remove_stale(path: Path) -> None:
    """Removes a socket nobody listens on. Anything that is not a socket is somebody's file and stays."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SpecError("socket", f"{path} exists and is not a socket", "Choose another path or move the file away")
    path.unlink(missing_ok=True)


def account_at(connected: socket.socket) -> str:
    """The account at the other end: "unix:1000", or "tcp" where nobody can say. Where the system does not tell who
    connected to a Unix socket that is its owner's alone, it was its owner."""
    if connected.family != socket.AF_UNIX:
        return TCP
    uid = peer_of(connected).uid
    if uid >= 0:
        return f"unix:{uid}"
    private = not os.stat(connected.getsockname()).st_mode & 0o077
    return f"unix:{os.getuid()}" if private else TCP


def peer_of(connected: socket.socket) -> Peer:
    """Who is at the other end of a Unix socket, as the kernel noted when it was connected."""
    if not sys.platform.startswith("linux"):
        return Peer(-1, -1)
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", raw)
    return Peer(pid, uid)
