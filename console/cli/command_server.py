"""A command server: a process with the shell's modules loaded, which runs commands for `console.cli.command_client`.

The engine's process starts one when a command first asks (`console.server.command_listener`). Each command has a
process of its own, forked from this one, that first becomes like its caller: files, folder, environment, umask, limits.
It runs nothing for a caller that this cannot be done for: another user, one with other rights or in another container,
another version of Muster or of its environment. The caller then runs the command itself, as it does for commands that
the server leaves alone.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from console.cli.command_client import GO, READY, build
from console.cli.main import parser, run
from console.client.sockets import peer_of

IDLE_S = 300.0
"""Without a command for so long, it ends; the next command starts another."""
RUN_HERE = "console.commands."
"""Where the functions of commands are that it runs. The others start engines, or take long."""
NOT_RUN = ("console.commands.mcp:serve",)
LOADED = (
    "certifi", "console.actions.request_builder", "console.client.launch", "console.client.remote",
    "console.commands.acting", "console.commands.history", "console.commands.processes", "console.commands.show",
    "console.forms.work_files", "console.text.progress_line", "console.views.proposal", "httpcore", "httpx",
    "platformdirs.unix",
)  # fmt: skip
"""What most commands need. Others load the rest in their own process."""
RIGHTS = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
"""Lines of /proc/PID/status that caller and server must have in common."""
SPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
"""Namespaces that they must have in common."""
LIMITS = tuple(number for name, number in sorted(vars(resource).items()) if name.startswith("RLIMIT_"))


@dataclass(frozen=True)
class CommandRequest:
    """A command as its caller would run it."""

    build: str
    streams: list[list[str]]
    """Of standard input, output and error: encoding, what is done about errors, "1" where it is written at once."""
    words: list[str]
    environment: dict[bytes, bytes]
    files: list[int]
    """Standard input, output and error, and the folder."""


def main(listening: socket.socket) -> None:
    """Serve until nothing is asked for a while, or the engine has ended, which standard input tells."""
    _load()
    loaded, own = _loaded_files(), build()
    signal.signal(signal.SIGCHLD, _reap)
    while True:
        found, _, _ = select.select([listening, sys.stdin], [], [], IDLE_S)
        if listening not in found:
            return
        asked, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            _run_for(asked, own, loaded)
        asked.close()


def _reap(_number: int, _frame: object) -> None:
    """Let ended processes of commands go. What they used is counted as this process's children's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _load() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in `console.cli.main`
    for _ in parser().commands():
        pass
    for module in LOADED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # what is loaded stays shared with the processes of commands


def _loaded_files() -> dict[str, int]:
    """File -> when it was changed, of our modules that are loaded, and of the folder that packages are installed in."""
    names = ("console", "engine", "recommender", "runbooks")
    files = [each.__file__ for name, each in list(sys.modules.items()) if name.partition(".")[0] in names]
    return {path: os.stat(path).st_mtime_ns for path in (*filter(None, files), sysconfig.get_path("purelib"))}


def _run_for(asked: socket.socket, own: str, loaded: dict[str, int]) -> NoReturn:
    """Run the command of one caller in this process, and end it."""
    try:
        if not _are_unchanged(loaded):
            os.kill(os.getppid(), signal.SIGTERM)  # the next command starts a server with what is there now
            return
        request = _received(asked)
        if request is not None and request.build == own and _become(asked, request):
            _answer(asked, request.words[1:])
    except (OSError, ValueError):  # the caller has gone, or is another than it says
        pass
    finally:
        os._exit(0)


def _are_unchanged(loaded: dict[str, int]) -> bool:
    """True while what is loaded is what a new process would load."""
    try:
        return all(os.stat(path).st_mtime_ns == changed for path, changed in loaded.items())
    except OSError:
        return False


def _received(asked: socket.socket) -> CommandRequest | None:
    """The request of a caller of this user; None from anybody else. Raises OSError or ValueError for half of one."""
    if peer_of(asked).uid != os.getuid():
        return None
    size, files, _, _ = socket.recv_fds(asked, 4, 4)
    length, read = int.from_bytes(size, "big"), b""
    while len(read) < length:
        part = asked.recv(length - len(read))
        if not part:
            return None
        read += part
    parts = read.split(b"\0")
    known, *streams, count = map(os.fsdecode, parts[:5])
    words = [os.fsdecode(word) for word in parts[5 : 5 + int(count)]]
    variables = [part.partition(b"=")[::2] for part in parts[5 + int(count) :]]
    return CommandRequest(known, [each.split(":") for each in streams], words, dict(variables), files)


# -- the caller -------------------------------------------------------------------------------------------------------


def _become(asked: socket.socket, request: CommandRequest) -> bool:
    """Become like the caller; False where its rights are others than those of this process. Raises OSError or
    ValueError where this process cannot, by its limits."""
    caller = peer_of(asked).pid
    status = _status(caller)
    if _rights(caller, status) != _rights(os.getpid(), _status(os.getpid())):
        return False
    for limit in LIMITS:
        resource.setrlimit(limit, resource.prlimit(caller, limit))
    os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, caller))
    os.sched_setaffinity(0, os.sched_getaffinity(caller))
    os.umask(int(status["Umask"], 8))
    os.fchdir(request.files[3])
    os.environb.clear()
    os.environb.update(request.environment)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    time.tzset()
    sys.argv = request.words
    _open_standard(request)
    return True


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _rights(pid: int, status: dict[str, str]) -> list[object]:
    """All by which the kernel could let one process do what it refuses to the other."""
    root = os.stat(f"/proc/{pid}/root/.")
    try:
        with open(f"/proc/{pid}/attr/current", encoding="utf-8") as label:
            confined = label.read()
    except OSError:  # no such thing on this machine
        confined = ""
    spaces = [os.readlink(f"/proc/{pid}/ns/{each}") for each in SPACES]
    return [*(status.get(name) for name in RIGHTS), *spaces, root.st_dev, root.st_ino, confined]


def _open_standard(request: CommandRequest) -> None:
    """Standard input, output and error of the caller, as its own Python opened them."""
    for number, received in enumerate(request.files):
        if number < 3:
            os.dup2(received, number)
        os.close(received)
    texts = []
    for number, (encoding, errors, at_once) in enumerate(request.streams):
        raw = os.fdopen(number, "wb" if number else "rb", closefd=False)
        by_line = number == 2 or os.isatty(number)
        texts.append(io.TextIOWrapper(raw, encoding, errors, line_buffering=by_line, write_through=at_once == "1"))
    sys.stdin, sys.stdout, sys.stderr = texts


# -- the command ------------------------------------------------------------------------------------------------------


def _answer(asked: socket.socket, arguments: list[str]) -> None:
    """Run the command once the caller says go, and tell it the exit code. Nothing is done for a caller that has gone,
    and the process ends with its caller."""
    if not _is_run(arguments):
        return
    asked.sendall(READY + str(os.getpid()).encode())
    if asked.recv(len(GO)) != GO:
        return
    with _ends_with(asked):
        code = _exit_code(arguments)
    asked.sendall(bytes((code & 0xFF,)))


def _is_run(arguments: list[str]) -> bool:
    """True for a command of those that are run here. Help and wrong usage are the caller's to print."""
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
        try:
            found = parser().parse_args(arguments).run
        except SystemExit:
            return False
    return bool(found.startswith(RUN_HERE)) and found not in NOT_RUN


@contextlib.contextmanager
def _ends_with(asked: socket.socket) -> Iterator[None]:
    """The kernel sends SIGIO, which ends this process, when the caller closes its end: it sends nothing any more."""
    flags = fcntl.fcntl(asked, fcntl.F_GETFL)
    fcntl.fcntl(asked, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(asked, fcntl.F_SETFL, flags | os.O_ASYNC)
    if select.select([asked], [], [], 0)[0]:  # it had gone before
        os._exit(0)
    yield
    fcntl.fcntl(asked, fcntl.F_SETFL, flags)


def _exit_code(arguments: list[str]) -> int:
    """Exit code of the command, once all that a process does at its end is done."""
    try:
        code = run(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    return code


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
