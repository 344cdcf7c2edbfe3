"""Starting an engine as its own process, and finding one that runs.

A cell's folder holds the notes for that. `engine.json` names the process that has the cell: the engine writes it once
the journal is its own, and removes it when it stops, so a record of an ended process means that the engine died.
`database.txt` names the database that the cell was last kept in, so that a forgotten `--database` neither begins an
empty cell in a file nor continues with an old copy.

Nothing here is needed before the first paint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from console.client.sockets import Peer, private_folder, probe, socket_folder
from console.forms.settings import CellPaths
from console.text.progress_line import STARTING
from console.text.terminal_text import printable
from engine.journal.process_locks import Holder, holder_of, this_process
from engine.model.errors import JournalError, MusterError, SpecError, UnreachableError
from engine.traces.progress import stage

BY_CONSOLE = "--by-console"
"""Option of `muster serve` by which a console says that it, or another one, may start the engine again."""


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    process: Holder
    cell: str
    arguments: tuple[str, ...] = ()
    """Of `muster serve`, as a console gave them. Empty: a person or a service runs the engine, and starts it again."""

    @property
    def has_ended(self) -> bool:
        """True when the process no longer runs, as far as this one can see. It sees none on another machine, or from
        before a restart of this one. Where that is wrong, the lock of the journal keeps a second engine out."""
        here = this_process()
        if not here.boot:
            return not alive(self.process.pid)
        is_ours = (self.process.boot, self.process.pids) == (here.boot, here.pids)
        return not is_ours or self.process.is_gone()


def alive(pid: int) -> bool:
    """True while the process runs. A zombie, which has ended and waits for its parent, does not count."""
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
    """The record of the cell's engine; None where no engine has the cell, and none died."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write_record(path: Path, cell: str) -> None:
    """Write the record of this process, with the arguments it was started with. Only for the holder of the cell's
    journal."""
    words = tuple(sys.orig_argv)
    own = words[words.index(BY_CONSOLE) + 1 :] if BY_CONSOLE in words else ()
    record = EngineRecord(process=this_process(), cell=cell, arguments=own)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(record))
    fresh.replace(path)


READY_S = 60.0
"""Longest wait for a new engine, since it last said how far it is: it may have a long journal to read."""
POLL_S = 0.02
LAST_WORD_S = 1.0
"""How long a failed start may still turn out to be a lost race against another engine."""
LOG_TAIL_BYTES = 8192
ERROR_PREFIX = "muster: "


def ensure_engine(
    paths: CellPaths, serve_arguments: Sequence[str], group: str = "", *, read_only: bool = False
) -> Path:
    """Socket of the cell's engine, which is started with `muster serve` and these arguments unless one answers already.
    A read-only caller starts none. `group`: OS group that may connect too. Who listens to progress is told what a new
    engine says of its start.

    Raises UnreachableError or JournalError with the engine's last error when it does not start.
    """
    if running(paths.socket) is not None:
        return paths.socket
    if read_only:
        raise UnreachableError(
            f"no engine runs for cell '{paths.folder.name}'; a read-only console does not start one",
            f"Start it: muster --cell {paths.folder.name}",
        )
    socket_folder(paths.socket.parent, group)
    private_folder(paths.folder)
    start = paths.log.stat().st_size if paths.log.exists() else 0
    process = _spawn(paths, serve_arguments)
    stage("starting the engine")
    deadline = time.monotonic() + READY_S
    told = ""
    while time.monotonic() < deadline:
        if running(paths.socket) is not None:
            return paths.socket
        far = how_far(paths.log, start)
        if far not in ("", told):
            told, deadline = far, time.monotonic() + READY_S
            stage(far)
        if process.poll() is not None:
            if process.returncode not in _RACE_CODES:
                break
            if not _taken(paths):
                deadline = min(deadline, time.monotonic() + LAST_WORD_S)
        time.sleep(POLL_S)
    raise _failed(paths.log, start, process.returncode)


def engine_again(paths: CellPaths, *, read_only: bool = False) -> Path:
    """Socket of the cell's engine after it went away: one that died is started again with its own arguments. An engine
    that was stopped stays stopped. One that a person or a service runs is theirs to start again, with their addresses
    and settings.

    Raises UnreachableError that says which case it is.
    """
    if running(paths.socket) is not None:
        return paths.socket
    record = _died(paths)
    if read_only:
        raise UnreachableError(
            f"engine process {record.process.pid} has died; a read-only console does not start one",
            f"Start it again: muster --cell {paths.folder.name}",
        )
    return ensure_engine(paths, record.arguments)


def _died(paths: CellPaths) -> EngineRecord:
    """Record of the engine that died and that a console may start again. Raises UnreachableError with the reason when
    there is none."""
    record, cell = read_record(paths.record), paths.folder.name
    if record is None:
        raise UnreachableError("the engine was stopped", f"Start it to continue: muster serve --cell {cell}")
    if not record.has_ended:
        raise UnreachableError(
            f"engine process {record.process.pid} does not answer", f"It is starting or stopping; see {paths.log}"
        )
    if not record.arguments:
        raise UnreachableError(
            f"engine process {record.process.pid} has died",
            "Start its service or `muster serve` again to continue",
        )
    return record


def running(path: Path) -> Peer | None:
    """Peer that listens on the socket, if it is this user or root; None when nobody does. Raises UnreachableError for
    any other user."""
    peer = probe(path)
    if peer is not None and peer.uid not in (-1, 0, os.getuid()):
        raise UnreachableError(f"{path} belongs to another user", "Set state_dir to a folder of your own")
    return peer


def _spawn(paths: CellPaths, serve_arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """`muster serve` in a session of its own: closing the terminal does not reach it.

    It runs in the folder that holds the packages, so that a checkout starts itself also when nothing is installed.
    """
    packages = Path(__file__).resolve().parents[2]
    with open(paths.log, "ab", opener=_private) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "console.cli.main", "serve", BY_CONSOLE, *serve_arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=packages,
            start_new_session=True,
        )
    # Most engines outlive their starter; one that does not must not stay behind as a zombie.
    threading.Thread(target=process.wait, name="engine-reaper", daemon=True).start()
    return process


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


_RACE_CODES = (4, 6)
"""Exit codes of `muster serve` when the socket or the journal is taken: somebody else was faster."""


def _taken(paths: CellPaths) -> bool:
    """True when another engine has the journal, as far as a file shows it: it may still be reading it."""
    pid = holder_of(paths.journal)
    return pid > 0 and alive(pid)


def _failed(log: Path, start: int, exit_code: int | None) -> MusterError:
    see = f"See {log}"
    if exit_code is None:
        return UnreachableError(f"the engine did not answer within {READY_S:g} s", see)
    problem, remedy = last_words(log, start)
    kind = JournalError if exit_code == 6 else UnreachableError
    told = problem or f"it ended with exit code {exit_code}"
    return kind(f"the engine did not start: {told}", f"{remedy}\n{see}" if remedy else see)


def last_words(log: Path, start: int = 0) -> tuple[str, str]:
    """Problem and remedy of the last error in the log after byte `start`, as `console.cli.main` prints them.

    Without such an error: the last line that is not blank, and no remedy.
    """
    lines = _tail(log, start)
    told = [at for at, line in enumerate(lines) if line.startswith(ERROR_PREFIX)]
    if not told:
        return next((line.strip() for line in reversed(lines) if line.strip()), ""), ""
    remedy = "\n".join(line.strip() for line in lines[told[-1] + 1 :] if line.startswith("  "))
    return lines[told[-1]].removeprefix(ERROR_PREFIX), remedy


def how_far(log: Path, start: int = 0) -> str:
    """What an engine that starts said last, after byte `start` of its log, of how far it is; empty when nothing. The
    log may be JSON, in which the words are a text of their own."""
    begins = (STARTING, '{"time":')
    told = (line for line in reversed(_tail(log, start)) if line.startswith(begins) and STARTING in line)
    return next(told, "").partition(STARTING)[2].partition('"')[0]


def _tail(log: Path, start: int) -> list[str]:
    """The last lines after byte `start`; none where the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []


NOTE = "database.txt"
"""The place as people read it, without any password."""


def note(folder: Path, place: str) -> None:
    (folder / NOTE).write_text(f"{place}\n", encoding="utf-8")


def noted(folder: Path, journal: Path) -> str:
    """The noted database; empty where nothing was noted, or where the cell's file is newer because it was copied
    back."""
    try:
        written = (folder / NOTE).stat().st_mtime_ns
        place = (folder / NOTE).read_text(encoding="utf-8", errors="replace").strip()
        return "" if journal.exists() and journal.stat().st_mtime_ns > written else printable(place)
    except OSError:
        return ""


def refuse_file(what: str, folder: Path, journal: Path) -> None:
    """Raises SpecError where a cell or fleet, as in "cell 'demo'", is kept in a database and none was named."""
    place = noted(folder, journal)
    if place:
        raise SpecError(
            "--database",
            f"is missing: {what} is stored in {place}",
            f"Give it, or set MUSTER_DATABASE. To start over in a file, remove {folder / NOTE}",
        )
