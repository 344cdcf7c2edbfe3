"""Which engine has a cell, and how a console may start it again: one file in the cell's folder, `engine.json`.

The engine writes it itself, in one step, once the journal is its own, and removes it when it stops. So a file that
names a process that has ended is of an engine that died.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from engine.journal.process_identity import Holder, this_process

BY_CONSOLE = "--by-console"
"""Option of `muster serve` by which a console says that it, or another one, may start the engine again."""


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    process: Holder
    cell: str
    arguments: tuple[str, ...] = ()
    """Of `muster serve`, as a console gave them. Empty: a person or a service runs the engine, and starts it again."""

    @property
    def has_ended(self) -> bool:
        """Whether the process runs no more, as far as this one can see: it sees none of another machine, or of before
        this one was started. Where that is wrong, the lock of the journal lets no second engine in."""
        here = this_process()
        if not here.boot:
            return not alive(self.process.pid)
        is_ours = (self.process.boot, self.process.pids) == (here.boot, here.pids)
        return not is_ours or self.process.is_gone()


def alive(pid: int) -> bool:
    """Whether the process runs. One that has ended and waits for its parent to notice does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True


def read_record(path: Path) -> EngineRecord | None:
    """None where no engine has the cell, and none died."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write_record(path: Path, cell: str) -> None:
    """Of this process, by the words that it was started with. Only for who holds the cell's journal."""
    words = tuple(sys.orig_argv)
    own = words[words.index(BY_CONSOLE) + 1 :] if BY_CONSOLE in words else ()
    record = EngineRecord(process=this_process(), cell=cell, arguments=own)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.replace(path)
