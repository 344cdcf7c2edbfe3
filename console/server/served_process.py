"""A process that serves until it is told to stop: its uvicorn settings, its answers to errors, and its lease.

Shared by the process of an engine and that of a fleet. A process whose journal is in PostgreSQL waits as a standby
until it may write, and ends when another has taken over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from console.client.sockets import LOOK_EVERY_S, Tls
from console.server.operations import defect, refusal
from console.text.terminal_text import printable
from engine.journal.database import Schema
from engine.journal.outside_readers import StandbyResult, stand_by, wait_for
from engine.journal.postgres_store import Lease
from engine.model.errors import JournalTaken, MusterError, NotFoundError, SpecError

KEEP_ALIVE_S = 75
"""Longer than a screen is left alone between two questions, so that connections are rarely made anew."""
STOP_S = 5
"""Longest wait for requests under way when stopping."""
BACKLOG = 2_048
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def uvicorn_config(app: Any, protocol: type[asyncio.Protocol], **options: Any) -> uvicorn.Config:
    """Configuration of a server of ours: HTTP/1.1 by `protocol`, no websockets, no proxies, errors alone in the log."""
    return uvicorn.Config(
        app, http=protocol, ws="none", lifespan="off", log_level="error", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S, backlog=BACKLOG, **options,
    )  # fmt: skip


def stop_on_signals() -> asyncio.Event:
    """An event of the running loop that is set when this process is to end."""
    stop = asyncio.Event()
    for sent in _ENDS:
        asyncio.get_running_loop().add_signal_handler(sent, stop.set)
    return stop


async def renewed(tls: Tls) -> None:
    """Reload replaced certificates. One that cannot be used is reported, and the last one stays in use."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            if tls.renew():
                _say("the certificate was renewed")
        except MusterError as error:
            _say(f"muster: {error}")


def error_handlers(no_route: Callable[[str], NotFoundError]) -> dict[Any, Any]:
    """Starlette's handlers of errors: each is answered like a refusal. `no_route` is the error for an unknown path."""

    async def handled(request: Request, error: Exception) -> Response:
        return refusal(error if isinstance(error, MusterError) else SpecError("body", "ended early", "Send it again"))

    async def http_error(request: Request, error: Exception) -> Response:
        status, path = getattr(error, "status_code", 500), request.scope["path"][:120]
        if status == 404:
            return refusal(no_route(path))
        refused = refusal(SpecError("method", f"{request.method} is not possible on {path}", ""))
        refused.status_code = status
        refused.headers.update(getattr(error, "headers", None) or {})
        return refused

    async def unexpected(request: Request, error: Exception) -> Response:
        """A defect of the server itself: Starlette lets it go on to the log, where its traceback belongs."""
        return refusal(defect())

    return {MusterError: handled, HTTPException: http_error, ClientDisconnect: handled, Exception: unexpected}


def wait_for_lease(place: Schema, cell: str) -> StandbyResult | None:
    """Wait as a standby. None when a signal said to end. Called on the main thread, whose signals it takes
    meanwhile."""
    with _until_signalled() as stop:
        return stand_by(place, stop, lambda news: _say(f"muster standby '{cell}' {news}"))


def wait_for_lease_alone(place: Schema, what: str) -> Lease | None:
    """The same for a process that reads everything when it begins, and so follows no journal meanwhile."""
    with _until_signalled() as stop:
        return wait_for(place, stop, lambda news: _say(f"muster standby '{what}' {news}"))


@contextlib.contextmanager
def _until_signalled() -> Iterator[threading.Event]:
    """Event that is set when this process is to end."""
    stop = threading.Event()
    before = {sent: signal.signal(sent, lambda *_: stop.set()) for sent in _ENDS}
    try:
        yield stop
    finally:
        for sent, handler in before.items():
            signal.signal(sent, handler)


def end_when_taken(lease: Lease, failed: Callable[[], bool], what: str = "engine") -> None:
    """End this process as a signal would once another has taken over; and give the lease back when `failed` says
    that the engine does no more work."""
    lease.alive = lambda: not failed()

    def watch() -> None:
        lease.taken.wait()
        if not lease.released:
            _say(f"muster {what} stops: another {what} has taken over, or this one can no longer work")
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="lease-watch", daemon=True).start()


def after_loss(lease: Lease, *, again: bool) -> None:
    """Handle a lost lease: this process becomes a standby, as a new program without any of the old state; without
    `again` it raises JournalTaken."""
    if not lease.taken.is_set():
        return
    if again:
        _start_again()
    raise JournalTaken(f"another engine has taken over journal {lease.place}", "Attach to that one")


def _start_again() -> NoReturn:
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
