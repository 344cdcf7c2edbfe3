"""The sockets served: HTTP/1.1 by uvicorn, in the clear on this machine's own sockets and with TLS on a TCP port."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from console.auth.oidc import OpenIdProvider
from console.auth.tls import LOOK_EVERY_S, Tls
from console.server.application import ControlPlane, build_service
from console.server.authentication import Doors, guarded_ports
from console.server.connections import DoorwayServer, OpenConnections, WatchedConnection
from console.server.responses import SaysVersion
from console.service.local_client import LocalClient
from console.text.terminal_text import printable
from engine.executors.machine_shares import more_files
from engine.loop import EngineLoop
from engine.model.errors import MusterError

new_event_loop = uvloop.new_event_loop
"""The loop that the server runs on, in an engine's process and in tests."""
KEEP_ALIVE_S = 75
"""Longer than a screen is left alone between two questions, so that connections are rarely made anew."""
STOP_S = 5
"""Longest wait for requests under way when stopping."""
PART_S = 0.5
"""Longest wait for the other end of a connection that is idle."""
BACKLOG = 2_048


async def run_server(
    client: LocalClient,
    loop: EngineLoop,
    sockets: Sequence[socket.socket],
    on_ready: Callable[[], None],
    stop: asyncio.Event | None = None,
    *,
    secured: Sequence[socket.socket] = (),
    tls: Tls | None = None,
    provider: OpenIdProvider | None = None,
) -> None:
    """Serves on bound sockets, and with TLS on those that are `secured`, until a signal comes or, where signals are not
    ours to take, `stop` is set. Then nothing new is taken, and what is under way is answered. `provider` says who
    people are that come over the network, where there is one."""
    doors = Doors(guarded=guarded_ports(sockets, secured))
    service = build_service(client, loop, doors=doors, provider=provider)
    if doors.guarded:
        more_files()
    connections = OpenConnections()
    serving = [_serving(service, sockets, connections)] if sockets else []
    if tls is not None:
        context = tls.open()
        serving.append(_serving(service, secured, connections, ssl_context_factory=lambda config, default: context))
    stopping = stop or _stop_on_signals()
    stopped = asyncio.create_task(stopping.wait())
    renewing = asyncio.create_task(_renew(tls)) if tls is not None else None
    tasks = [task for _, task in serving]
    while not all(server.started or task.done() for server, task in serving):
        await asyncio.sleep(0.005)
    on_ready()
    await asyncio.wait((*tasks, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if renewing is not None:
        renewing.cancel()
    service.stop()
    await asyncio.to_thread(client.break_off)
    for server, _ in serving:
        server.should_exit = True
    await asyncio.gather(*tasks)


def _serving(
    service: ControlPlane, sockets: Sequence[socket.socket], connections: OpenConnections, **options: Any
) -> tuple[uvicorn.Server, asyncio.Task[None]]:
    server = DoorwayServer(uvicorn.Config(service.app, **_UVICORN, **options), connections)
    return server, asyncio.create_task(server.serve(sockets=list(sockets)))


async def _renew(tls: Tls) -> None:
    """Certificates are replaced while we serve. One that cannot be used is told, and the last one is used on."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            if tls.renew():
                print("the certificate was renewed", file=sys.stderr, flush=True)
        except MusterError as error:
            print(f"muster: {printable(str(error))}", file=sys.stderr, flush=True)


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(sent, stop.set)
    return stop


class _Protocol(SaysVersion, WatchedConnection, HttpToolsProtocol):
    """With an eye on who connects and how."""

    def shutdown(self) -> None:
        """What is under way is answered. Who waits for nothing need not agree to part, as TLS would have it."""
        super().shutdown()
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(PART_S, self._part)

    def _part(self) -> None:
        if not self.transport.get_write_buffer_size():
            self.transport.abort()


_UVICORN: dict[str, Any] = {
    "http": _Protocol,
    "lifespan": "off",
    "log_level": "error",
    "access_log": False,
    "server_header": False,
    "timeout_keep_alive": KEEP_ALIVE_S,
    "timeout_graceful_shutdown": STOP_S,
    "backlog": BACKLOG,
    "ws": "none",
    "proxy_headers": False,
}
