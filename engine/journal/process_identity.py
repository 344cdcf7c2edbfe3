"""A process as others know it, who may be on another machine: who holds a cell, and whether it has ended."""

from __future__ import annotations

import os
import socket
from pathlib import Path

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
        """Whether it is known to have ended: it ran on this machine, and runs no more."""
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
    """When a process began, in clock ticks since boot; empty: there is none, or it has ended and waits for its
    parent."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return "" if len(fields) < 20 or fields[0] == "Z" else fields[19]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
