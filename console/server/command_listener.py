"""The socket of an engine at which the shell asks for a command server, and the server's process.

The process (`console.cli.command_server`) is started when a command first asks. It ends when nothing was asked for a
while, and with the engine, which holds the other end of its standard input. An engine that nobody asks has only the
socket and a thread that waits.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from console.client.launch import alive
from console.client.sockets import bind_unix
from console.forms.runtime_folder import COMMANDS, runtime_folder
from engine.model.errors import MusterError

STOP_S = 5.0
"""Longest wait for the server's process to end."""
PACKAGES = Path(__file__).resolve().parents[2]
"""Where Muster is loaded from, whatever is in the folder that the engine was started in."""


@contextlib.contextmanager
def command_listener() -> Iterator[None]:
    """Have commands of this user served while it lasts. Where the socket cannot be, they run as they do without."""
    folder = Path(runtime_folder())
    path = folder / f"{COMMANDS}{os.getpid()}.sock"
    try:
        listening = bind_unix(path)
    except MusterError:
        yield
        return
    _remove_left(folder)
    listening.listen()
    door = _CommandDoor(listening)
    try:
        yield
    finally:
        door.close()
        path.unlink(missing_ok=True)


def _remove_left(folder: Path) -> None:
    """Remove sockets of engines that were killed."""
    for left in folder.glob(f"{COMMANDS}*.sock"):
        pid = left.stem.removeprefix(COMMANDS)
        if pid.isdigit() and not alive(int(pid)):
            left.unlink(missing_ok=True)


class _CommandDoor:
    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._closing = threading.Event()
        self._server: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._serve, name="command-listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server's process. Commands that it runs go on to their end."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.close()
        self._thread.join(STOP_S)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            select.select([self._listening], [], [])
            if self._closing.is_set():
                return
            # In a session of its own: Ctrl-C at an engine's terminal is not for commands of other terminals.
            self._server = subprocess.Popen(
                [sys.executable, "-m", "console.cli.command_server", str(self._listening.fileno())],
                stdin=subprocess.PIPE, stdout=sys.stderr, cwd=PACKAGES, pass_fds=[self._listening.fileno()],
                start_new_session=True,
            )  # fmt: skip
            if self._server.wait() != 0:
                self._refuse_one()

    def _refuse_one(self) -> None:
        """Whoever asked a server that failed runs the command itself."""
        if select.select([self._listening], [], [], 0)[0] and not self._closing.is_set():
            self._listening.accept()[0].close()
