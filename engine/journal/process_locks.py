"""One process at a time: the identity of a process as others know it, and an advisory lock on a file.

`Holder` names a process, which may be on another machine, and knows whether it has ended. A killed process gives its
file lock back by dying.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

import msgspec


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A process, as others know it."""

    host: str
    pid: int
    boot: str = ""
    """Of its machine, since when its process ids count."""
    pids: str = ""
    """Its space of process ids: that of a container is another."""
    started: str = ""
    """Another process by that id has another."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def is_gone(self) -> bool:
        """Return whether it is known to have ended: it ran on this machine, and runs no more."""
        here = this_process()
        if not self.boot or (self.boot, self.pids) != (here.boot, here.pids):
            return False
        return start_tick(self.pid) != self.started


def this_process() -> Holder:
    boot = _read("/proc/sys/kernel/random/boot_id")
    try:
        pids = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = pids = ""
    return Holder(host=socket.gethostname(), pid=os.getpid(), boot=boot, pids=pids, started=start_tick(os.getpid()))


def start_tick(pid: int) -> str:
    """Return when a process began, in clock ticks since boot; empty: there is none, or it has ended and waits for its
    parent."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] == "Z" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


ORPHANED_S = 2.0
"""How long a lock is waited for whose holder has ended: a child that it had just begun keeps it until it is another
program."""


class HeldElsewhere(Exception):
    """Another process has it: `holder`, its id as text."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"process {holder}")
        self.holder = holder


def holder_of(path: Path) -> int:
    """The process that took the lock last, by its id: whether it runs still is not known. 0: nobody did."""
    try:
        return int(Path(f"{path.resolve()}.lock").read_text(encoding="ascii"))
    except (OSError, RuntimeError, ValueError):
        return 0


def take_lock(path: Path) -> IO[str]:
    """The lock of what is at `path`, held until what is returned is closed. Raises HeldElsewhere, and OSError where the
    file cannot be made."""
    lock = open(f"{path}.lock", "a+", encoding="ascii")  # noqa: SIM115 - whoever asked holds it
    until = time.monotonic() + ORPHANED_S
    while not _locked(lock):
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        if (holder.isdigit() and start_tick(int(holder))) or time.monotonic() > until:
            lock.close()
            raise HeldElsewhere(holder)
        time.sleep(0.01)
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
