"""A line that can be cut: a proxy on loopback before a TCP port or a Unix socket, which passes bytes on until told to
do worse."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Literal

from tests.support.patience import PATIENCE_S

Mode = Literal["pass", "refuse", "swallow", "lose answers", "cut answers", "stall"]
"""refuse: hangs up at once. swallow: takes the request and hangs up. lose answers: passes the request on, waits for the
answer and hangs up without it. cut answers: hangs up after its first bytes. stall: is silent."""


class CuttingProxy:
    """`target`: a port of loopback, or the path of a socket. `url` is where it listens."""

    def __init__(self, target: int | str) -> None:
        self.target = target
        self.mode: Mode = "pass"
        self.first_bytes = 60
        self.passed = 0
        """Connections that were taken."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Every connection there is, now."""
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join(PATIENCE_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.passed += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.add(client)
        try:
            if self.mode == "refuse":
                return
            if self.mode in ("swallow", "stall"):
                while client.recv(65_536) and self.mode == "stall":
                    pass
                return
            with self._target() as server:
                self._open.add(server)
                back = threading.Thread(target=self._back, args=(server, client), daemon=True)
                back.start()
                while data := client.recv(65_536):
                    server.sendall(data)
                with contextlib.suppress(OSError):
                    server.shutdown(socket.SHUT_WR)
                back.join(PATIENCE_S)
                self._open.discard(server)
        except OSError:
            pass
        finally:
            self._open.discard(client)
            client.close()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(65_536):
                if self.mode == "lose answers":
                    break
                if self.mode == "cut answers":
                    client.sendall(data[: self.first_bytes])
                    break
                client.sendall(data)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _target(self) -> socket.socket:
        if isinstance(self.target, int):
            return socket.create_connection(("127.0.0.1", self.target), timeout=PATIENCE_S)
        line = socket.socket(socket.AF_UNIX)
        line.connect(self.target)
        return line
