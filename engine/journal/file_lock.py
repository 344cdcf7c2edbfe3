"""One process at a time: an advisory lock on a file beside the thing. A killed process gives it back by dying."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import IO

from engine.journal.process_identity import start_tick

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
