"""What is noted of every connection that the server takes, and which of them it drops: those whose other end is slow on
purpose, sends heads without an end, or opens connections without end.

uvicorn waits for ever for the rest of a request, and its faster parser sets no bound to what it keeps of a head.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import resource
import socket
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import uvicorn

from console.auth.identity import peer_text
from console.auth.sockets import account_at
from console.server.rate_limits import network_of
from runbooks.people.identity import TCP

HEAD_S = 15.0
"""From the first byte of a request (or from connecting) until its head must be there."""
BODY_S = 20.0
"""How often it is looked whether a body still comes."""
MIN_BODY_BYTES = 20 * 1024
"""That must have come of a body in that time, unless we are the ones who do not read."""
WRITE_S = 60.0
"""How long the other end may take nothing of an answer."""
MAX_HEAD_BYTES = 64 * 1024
MAX_FROM_ONE = 512
"""Connections from one address, or on the Unix socket from one account."""
MAX_IN_ALL = 4_096
"""By TCP."""
MAX_AT_ONCE = 100
"""Connections that are accepted before others have their turn."""
RETRY_S = 1.0
"""When there was no file left for another connection."""


class OpenConnections:
    """Those that are open, by whom they are. Many from other machines keep nobody out who is on this one: what comes by
    a Unix socket counts for its account alone."""

    def __init__(self) -> None:
        self._of_addresses: dict[str, list[socket.socket]] = {}
        self._of_accounts: dict[str, list[socket.socket]] = {}

    def take(self, connected: socket.socket, address: Any) -> bool:
        """Whether a new one is within bounds. Those that have ended are let go when there seem to be too many."""
        if connected.family == socket.AF_UNIX:
            held = self._of_accounts.setdefault(account_at(connected), [])
        else:
            if self._is_full():
                self._of_addresses = {each: kept for each, held in self._of_addresses.items() if (kept := _open(held))}
                if self._is_full():
                    return False
            held = self._of_addresses.setdefault(network_of(str(address[0])), [])
        if len(held) >= MAX_FROM_ONE:
            held[:] = _open(held)
        if len(held) >= MAX_FROM_ONE:
            return False
        held.append(connected)
        return True

    def _is_full(self) -> bool:
        """Half of the files that may be open are for something else."""
        most = min(MAX_IN_ALL, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        return sum(map(len, self._of_addresses.values())) >= most


def _open(held: list[socket.socket]) -> list[socket.socket]:
    return [each for each in held if each.fileno() >= 0]


class Doorway:
    """Accepts the connections of a listening socket, and closes what is beyond bounds as soon as it comes: before TLS,
    which one may begin on many connections and go on with on none, and while there are files left for what is ours.

    It accepts itself, because an event loop does so in ways of its own, some (uvloop's) past all Python code.
    """

    def __init__(
        self,
        bound: socket.socket,
        connections: OpenConnections,
        protocol: Callable[[], asyncio.Protocol],
        config: uvicorn.Config,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._bound = bound
        self._connections = connections
        self._protocol = protocol
        self._tls = config.ssl
        self._opening: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        bound.setblocking(False)
        bound.listen(config.backlog)
        self._watch()

    def _watch(self) -> None:
        self._loop.add_reader(self._bound, self._accept)

    def _accept(self) -> None:
        for _ in range(MAX_AT_ONCE):
            try:
                connected, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of files or memory: what waits stays in the backlog
                self._loop.remove_reader(self._bound)
                self._again = self._loop.call_later(RETRY_S, self._watch)
                return
            if not self._connections.take(connected, address):
                connected.close()
                continue
            task = self._loop.create_task(self._serve(connected))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _serve(self, connected: socket.socket) -> None:
        patience_s = HEAD_S if self._tls is not None else None
        with contextlib.suppress(OSError):  # it is gone again, or speaks no TLS
            await self._loop.connect_accepted_socket(
                self._protocol, connected, ssl=self._tls, ssl_handshake_timeout=patience_s
            )

    def close(self) -> None:
        """Takes none any more; those that are open go on."""
        self._loop.remove_reader(self._bound)
        if self._again is not None:
            self._again.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._opening, return_exceptions=True)


class DoorwayServer(uvicorn.Server):
    """One whose connections come through doorways. Leaves signals to whoever runs it: uvicorn would raise them again
    when done, before an engine has written its snapshot."""

    def __init__(self, config: uvicorn.Config, connections: OpenConnections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        made: Any = self.config.http_protocol_class
        protocol = functools.partial(made, self.config, self.server_state, self.lifespan.state)
        doorways: Any = [Doorway(each, self._connections, protocol, self.config) for each in sockets or ()]
        self.servers = doorways

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@-]{0,62}[A-Za-z0-9])?")


class _Cycle(Protocol):
    more_body: bool
    response_complete: bool


class WatchedConnection:
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
            if self._came > MAX_HEAD_BYTES:
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
        if self._came < MIN_BODY_BYTES and not self.flow.read_paused:
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
