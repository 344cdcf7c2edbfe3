"""The line between a program and its database, which can be cut where it hurts: before what is sent arrives, or after
it was done and before the answer is there. Or it goes quiet, as when a cable is pulled."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

SIZE = 65536


class Line:
    """Passes on what is sent to a TCP port of this machine. `close` ends it."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._cuts: list[tuple[bytes, bytes, Literal["before", "after"]]] = []
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.cuts = 0
        """How often the line was cut where `lose` said."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, what: bytes, *, of: bytes = b"muster writer", when: Literal["before", "after"]) -> None:
        """Cut the next connection of that name that sends this: before the server has it, or after it has answered."""
        with self._lock:
            self._cuts.append((of, what, when))

    def silence(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        self._open.clear()

    def speak(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """End every connection there is."""
        for pair in self._pairs:
            _end(*pair)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._open.set()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            wait = threading.Event()
            threading.Thread(target=self._there, args=(near, far, wait), daemon=True).start()
            threading.Thread(target=self._back, args=(near, far, wait), daemon=True).start()

    def _there(self, near: socket.socket, far: socket.socket, lost: threading.Event) -> None:
        name = b""
        with contextlib.suppress(OSError):
            while data := near.recv(SIZE):
                name = data if b"application_name" in data else name
                self._open.wait()
                when = self._cut(name, data)
                if when == "before":
                    break
                if when == "after":
                    lost.set()
                far.sendall(data)
        if not lost.is_set():
            _end(near, far)

    def _back(self, near: socket.socket, far: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(SIZE):
                self._open.wait()
                if lost.is_set():
                    break
                near.sendall(data)
        _end(near, far)

    def _cut(self, name: bytes, data: bytes) -> str:
        with self._lock:
            for cut in self._cuts:
                if cut[0] in name and cut[1] in data:
                    self._cuts.remove(cut)
                    self.cuts += 1
                    return cut[2]
        return ""


def _end(*ends: socket.socket) -> None:
    for one in ends:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
