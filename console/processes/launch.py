"""Starting an engine as its own process, or finding the one that runs. Nothing here is needed before first paint."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from console.auth.sockets import Peer, private_folder, probe, socket_folder
from console.forms.settings import CellPaths
from console.processes.engine_record import BY_CONSOLE, EngineRecord, alive, read_record
from engine.journal.file_lock import holder_of
from engine.model.errors import JournalError, MusterError, UnreachableError

READY_S = 60.0
"""Longest wait for a new engine: it may have a long journal to read."""
POLL_S = 0.02
LAST_WORD_S = 1.0
"""How long a failed start may still turn out to be a lost race against another engine."""
LOG_TAIL_BYTES = 8192
ERROR_PREFIX = "muster: "


def ensure_engine(
    paths: CellPaths, serve_arguments: Sequence[str], group: str = "", *, read_only: bool = False
) -> Path:
    """The socket of the cell's engine, started with `muster serve` and these arguments unless one answers already. Who
    only reads starts none. `group`: the OS group that may connect to it too.

    Raises UnreachableError or JournalError quoting the engine's own last words when it does not start.
    """
    if running(paths.socket) is not None:
        return paths.socket
    if read_only:
        raise UnreachableError(
            f"no engine runs for cell '{paths.folder.name}', and a read-only console starts none",
            f"Start it: muster --cell {paths.folder.name}",
        )
    socket_folder(paths.socket.parent, group)
    private_folder(paths.folder)
    start = paths.log.stat().st_size if paths.log.exists() else 0
    process = _spawn(paths, serve_arguments)
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if running(paths.socket) is not None:
            return paths.socket
        if process.poll() is not None:
            if process.returncode not in _RACE_CODES:
                break
            if not _taken(paths):
                deadline = min(deadline, time.monotonic() + LAST_WORD_S)
        time.sleep(POLL_S)
    raise _failed(paths.log, start, process.returncode)


def engine_again(paths: CellPaths, *, read_only: bool = False) -> Path:
    """The same after an engine that had the cell has gone: started with its own arguments. One that was stopped stays
    stopped, and one that a person or a service runs is theirs to start again, with the addresses and settings they gave
    it: only one that a console started, and that died, is started anew.

    Raises UnreachableError that says which it is.
    """
    if running(paths.socket) is not None:
        return paths.socket
    record = _died(paths)
    if read_only:
        raise UnreachableError(
            f"engine process {record.process.pid} has died, and a read-only console starts none",
            f"Start it again: muster --cell {paths.folder.name}",
        )
    return ensure_engine(paths, record.arguments)


def _died(paths: CellPaths) -> EngineRecord:
    """The engine that died and that a console may start again. Raises UnreachableError that says why there is none."""
    record, cell = read_record(paths.record), paths.folder.name
    if record is None:
        raise UnreachableError("the engine was stopped", f"Start it, and this goes on: muster serve --cell {cell}")
    if not record.has_ended:
        raise UnreachableError(
            f"engine process {record.process.pid} does not answer", f"It starts or ends just now; see {paths.log}"
        )
    if not record.arguments:
        raise UnreachableError(
            f"engine process {record.process.pid} has died",
            "No console started it: start its service, or `muster serve`, as it was, and this goes on",
        )
    return record


def running(path: Path) -> Peer | None:
    """Who listens on the socket, if it is this user or root. Raises UnreachableError for anybody else."""
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
    """Whether another engine has the journal, as far as a file shows it: it may be reading it still."""
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
    """Problem and remedy of the last error that the log tells after byte `start`, as `console.cli.main` prints them.

    Without such an error: the last line that has words in it, and no remedy.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(start, log.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "", ""
    told = [at for at, line in enumerate(lines) if line.startswith(ERROR_PREFIX)]
    if not told:
        return next((line.strip() for line in reversed(lines) if line.strip()), ""), ""
    remedy = "\n".join(line.strip() for line in lines[told[-1] + 1 :] if line.startswith("  "))
    return lines[told[-1]].removeprefix(ERROR_PREFIX), remedy
