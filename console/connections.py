"""What is noted of every connection that the server takes, and which of them it drops: those whose other end is slow on
purpose, sends heads without an end, or opens connections without end.

uvicorn waits for ever for the rest of a request, and its faster parser sets no bound to what it keeps of a head.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import socket
from typing import Any, ClassVar, Protocol

from console.identity import peer_text
from console.sockets import account_at
from runbooks.identity import TCP

HEAD_S = 15.0
"""From the first byte of a request (or from connecting) until its head must be there."""
BODY_S = 20.0
"""How often it is looked whether a body still comes."""
LEAST_BODY_BYTES = 20 * 1024
"""That must have come of a body in that time, unless we are the ones who do not read."""
WRITE_S = 60.0
"""How long the other end may take nothing of an answer."""
MOST_HEAD_BYTES = 64 * 1024
MOST_FROM_ONE = 512
"""Connections from one address, by TCP."""
MOST_IN_ALL = 4_096


class Doorway(socket.socket):
    """A listening TCP socket that closes what is beyond bounds as soon as it comes: before TLS, which one may begin on
    many connections and go on with on none, and while there are files left for what is ours."""

    _held: ClassVar[dict[str, list[socket.socket]]] = {}
    """Connections by address, of all doorways; those that have ended are let go when there seem to be too many."""

    @classmethod
    def before(cls, bound: socket.socket) -> socket.socket:
        """One for a bound socket; a Unix socket stays as it is."""
        return bound if bound.family == socket.AF_UNIX else cls(fileno=os.dup(bound.fileno()))

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            connected, address = super().accept()
            if self._is_taken(connected, str(address[0])):
                return connected, address
            connected.close()

    def _is_taken(self, connected: socket.socket, address: str) -> bool:
        if self._is_full():
            for held in self._held.values():
                held[:] = _open_of(held)
            for each in [each for each, held in self._held.items() if not held]:
                del self._held[each]
            if self._is_full():
                return False
        held = self._held.setdefault(address, [])
        if len(held) >= MOST_FROM_ONE:
            held[:] = _open_of(held)
        if len(held) < MOST_FROM_ONE:
            held.append(connected)
        return held[-1] is connected

    def _is_full(self) -> bool:
        """Half of the files that may be open are for something else."""
        most = min(MOST_IN_ALL, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        return sum(map(len, self._held.values())) >= most


def _open_of(held: list[socket.socket]) -> list[socket.socket]:
    return [each for each in held if each.fileno() >= 0]


_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?")


class _Cycle(Protocol):
    more_body: bool
    response_complete: bool


class Watched:
    """Mixed into one of uvicorn's HTTP protocols, before it in the order of bases."""

    loop: asyncio.AbstractEventLoop
    cycle: _Cycle | None
    flow: Any

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._transport = transport
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._came = 0
        """Bytes of the head, or of the body since it was last looked."""
        self._in_body = False
        connected = transport.get_extra_info("socket")
        if connected is None:
            return
        account, address = account_at(connected), ""
        if account == TCP:
            address = str((transport.get_extra_info("peername") or ("",))[0])
            account = _certified(transport.get_extra_info("peercert")) or TCP
        self.client = (peer_text(account, address), 0)
        self._timer = self.loop.call_later(HEAD_S, self._drop)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop("_timer")
        self._stop("_writing")
        super().connection_lost(error)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)  # type: ignore[misc]
        cycle = self.cycle
        if cycle is not None and cycle is not before:
            self._begin_body(cycle)
        elif cycle is not None and self._in_body:
            self._came += len(data)
            if not cycle.more_body:
                self._begin_body(cycle)
        else:
            self._came += len(data)
            if self._came > MOST_HEAD_BYTES:
                self._drop()
            elif self._timer is None:
                self._timer = self.loop.call_later(HEAD_S, self._drop)

    def _begin_body(self, cycle: _Cycle) -> None:
        """A head is whole: what comes next is its body, if it has one that is not whole yet."""
        self._stop("_timer")
        self._came = 0
        self._in_body = cycle.more_body
        if self._in_body:
            self._timer = self.loop.call_later(BODY_S, self._look_at_body)

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._stop("_writing")
        self._writing = self.loop.call_later(WRITE_S, self._drop)

    def resume_writing(self) -> None:
        self._stop("_writing")
        super().resume_writing()  # type: ignore[misc]

    def _look_at_body(self) -> None:
        self._timer = None
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_complete:
            return
        if self._came < LEAST_BODY_BYTES and not self.flow.read_paused:
            self._drop()
            return
        self._came = 0
        self._timer = self.loop.call_later(BODY_S, self._look_at_body)

    def _drop(self) -> None:
        self._transport.abort()

    def _stop(self, which: str) -> None:
        timer = getattr(self, which)
        if timer is not None:
            timer.cancel()
            setattr(self, which, None)


def _certified(certificate: Any) -> str:
    """The account of a client certificate that was verified: by its common name; empty without one, and for one that
    has several or one that is no plain name."""
    subject = (certificate or {}).get("subject", ())
    names = [value for part in subject for name, value in part if name == "commonName"]
    return f"cert:{names[0]}" if len(names) == 1 and _NAME.fullmatch(names[0]) else ""
