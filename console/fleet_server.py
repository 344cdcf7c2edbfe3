"""A fleet as a process: opens its journal, watches its cells, routes, and serves whoever may connect to its socket.

    GET  /v1/fleet  /v1/fleet/submissions?states=&before=&limit=  /v1/fleet/submissions/{id}
    POST /v1/fleet/submit  /v1/fleet/preview  /v1/fleet/withdraw  /v1/fleet/cell

The socket is its owner's alone, or a group's too: who can connect may submit, and take back what they submitted, as the
account that the kernel tells; what concerns everybody is for the owner. To its cells the fleet is one operator among
others; what it may do there is each cell's policy to say. It tells them whose word it passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from console.connections import OpenConnections, Server, Watched
from console.decoders import know_structs
from console.fleet import Fleet
from console.fleet_journal import FleetJournal
from console.fleet_routing import Router
from console.fleet_shown import MOST_AT_ONCE, STATES, CellAsk, State, SubmitAsk, WithdrawAsk
from console.http_answers import DEFECT, Forbidden, answer, body, decoded, number, refusal
from console.identity import Identity
from console.kept_where import note
from console.remote_client import RemoteClient
from console.settings import TOKEN, Settings
from console.sockets import bind_unix, private_folder, remove_unix, socket_folder
from console.text import printable
from engine.cells import BY_TAG
from engine.database import File, Place, Schema
from engine.errors import MusterError, NotFoundError, SpecError
from runbooks.commands_here import ROOT
from runbooks.identity import OWNER

if TYPE_CHECKING:
    from console.client import Client
    from console.fleet_paths import FleetPaths
    from engine.fleets import CellLink, FleetSpec

AWAITED = 50
"""Of so many workloads at most a submission waits to tell where they went."""
AWAITED_S = 2.0
"""Beyond the time that cells have for an answer."""
MOST_PAGE = 1_000
TRUSTED = (OWNER, ROOT)
STOP_S = 5


class FleetFaces:
    """The handlers."""

    def __init__(self, fleet: Fleet, router: Router) -> None:
        self._fleet = fleet
        self._router = router

    def routes(self) -> list[Route]:
        return [
            Route("/v1/fleet", self.view, methods=["GET"]),
            Route("/v1/fleet/submissions", self.page, methods=["GET"]),
            Route("/v1/fleet/submissions/{id:path}", self.submission, methods=["GET"]),
            Route("/v1/fleet/submit", self.submit, methods=["POST"]),
            Route("/v1/fleet/preview", self.preview, methods=["POST"]),
            Route("/v1/fleet/withdraw", self.withdraw, methods=["POST"]),
            Route("/v1/fleet/cell", self.cell, methods=["POST"]),
        ]

    async def view(self, request: Request) -> Response:
        return await answer(self._fleet.view)

    async def page(self, request: Request) -> Response:
        states = tuple(state for state in request.query_params.get("states", "").split(",") if state)
        for state in states:
            if state not in STATES:
                raise SpecError("states", f"there is no {state[:40]!a}", f"Use: {', '.join(STATES)}")
        before, limit = int(number(request, "before", 0, 0, 2**62)), int(number(request, "limit", 100, 1, MOST_PAGE))
        return await answer(lambda: self._fleet.page(cast("tuple[State, ...]", states), before, limit))

    async def submission(self, request: Request) -> Response:
        submission_id = request.path_params["id"]
        return await answer(lambda: self._fleet.submission(submission_id))

    async def submit(self, request: Request) -> Response:
        raw, by = await body(request), _account(request)
        ask: SubmitAsk = _in_the_name_of(by, await run_in_threadpool(decoded, raw, SubmitAsk))
        if not 0 < len(ask.workloads) <= MOST_AT_ONCE:
            raise SpecError("workloads", f"are {len(ask.workloads)}", f"Give 1 to {MOST_AT_ONCE:,}")
        return await answer(lambda: self._submitted(ask, by))

    def _submitted(self, ask: SubmitAsk, by: str) -> object:
        """Kept, and decided on where that takes a moment: as they stand then."""
        fleet = self._fleet
        if len(ask.workloads) <= AWAITED:
            self._router.refuse_hopeless(ask.workloads, ask.cells, by)
        ids = fleet.submit(ask.workloads, ask.cells, by)
        self._router.wake()
        if len(ids) <= AWAITED:
            self._router.await_decided(ids, fleet.spec.routing.answer_within_ms / 1000 + AWAITED_S)
        return [fleet.submission(name) for name in ids]

    async def preview(self, request: Request) -> Response:
        ask, by = decoded(await body(request), SubmitAsk), _account(request)
        if not 0 < len(ask.workloads) <= AWAITED:
            raise SpecError("workloads", f"are {len(ask.workloads)}", f"Give 1 to {AWAITED}")
        return await answer(lambda: self._router.previews(ask.workloads, ask.cells, by))

    async def withdraw(self, request: Request) -> Response:
        ask, by = decoded(await body(request), WithdrawAsk), _account(request)
        return await answer(lambda: self._withdrawn(ask.ids, by))

    def _withdrawn(self, ids: Sequence[str], by: str) -> object:
        if by not in TRUSTED:
            others = [name for name in ids if self._fleet.submission(name).by != by]
            if others:
                raise Forbidden(f"{others[0][:80]!a} is not yours", "Ask whoever submitted it, or the fleet's owner")
        return self._fleet.withdraw(ids, by)

    async def cell(self, request: Request) -> Response:
        ask, by = decoded(await body(request), CellAsk), _account(request)
        if by not in TRUSTED:
            raise Forbidden("cells are opened and closed by whoever owns the fleet", "Ask them")

        def done() -> object:
            self._fleet.set_closed(ask.cell, ask.closed, ask.reason, by)
            self._router.wake()
            return self._fleet.view()

        return await answer(done)


def serve_fleet(
    spec: FleetSpec, paths: FleetPaths, group: str = "", place: Place | None = None, *, standby: bool = False
) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP. `place`: where its journal is, by default the file in its folder;
    `standby`: wait until the fleet that has it ends. Raises MusterError when it cannot."""
    know_structs()
    socket_folder(paths.socket.parent, group)
    private_folder(paths.folder)
    os.umask(0o077)
    # One token for all cells would be shown to each of them: the file says which goes where.
    os.environ.pop(TOKEN, None)
    from console.standing_by import after_loss, wait_for_lease_alone

    place = place or File(paths.journal)
    lease = None
    if standby and isinstance(place, Schema):
        lease = wait_for_lease_alone(place, f"fleet {spec.name}")
        if lease is None:
            return
    journal = FleetJournal(place, lease)
    try:
        _serve(spec, paths, group, journal)
    finally:
        journal.close()
        if journal.lease is not None:
            after_loss(journal.lease, again=standby)


def _serve(spec: FleetSpec, paths: FleetPaths, group: str, journal: FleetJournal) -> None:
    with contextlib.ExitStack() as after:
        if journal.lease is not None:
            note(paths.folder, str(journal.place))
        bound = bind_unix(paths.socket, group)
        after.callback(remove_unix, paths.socket)
        after.callback(bound.close)
        paths.pid.write_text(f"{os.getpid()}\n")
        after.callback(paths.pid.unlink, missing_ok=True)
        fleet = Fleet(spec, journal, connected)
        router = Router(fleet)
        fleet.start()
        after.callback(fleet.stop)
        router.start()
        after.callback(router.stop)
        if journal.lease is not None:
            from console.standing_by import end_when_taken

            end_when_taken(journal.lease, lambda: not router.is_alive, "fleet")
        asyncio.run(run_server(fleet, router, bound, lambda: _say_ready(fleet, paths)))
        print("muster fleet stops", file=sys.stderr, flush=True)


def connected(link: CellLink, patience_s: float) -> Client:
    """A client of a cell, as the account this process runs as, or with the token of the fleet's file."""
    identity = Identity(Settings(token_file=link.token_file)) if link.token_file else None
    return RemoteClient(link.connect, identity=identity, patience_s=patience_s)


async def run_server(
    fleet: Fleet,
    router: Router,
    bound: socket.socket,
    on_ready: Callable[[], object],
    stop: asyncio.Event | None = None,
) -> None:
    """Serves on a bound socket until a signal comes or, where signals are not ours to take, `stop` is set."""
    server = Server(uvicorn.Config(build_fleet_app(fleet, router), **_UVICORN), OpenConnections())
    stopping = stop or _stop_on_signals()
    serving = asyncio.create_task(server.serve(sockets=[bound]))
    stopped = asyncio.create_task(stopping.wait())
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    on_ready()
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    server.should_exit = True
    await serving


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(sent, stop.set)
    return stop


def _say_ready(fleet: Fleet, paths: FleetPaths) -> None:
    of = f"muster fleet '{fleet.spec.name}' of {len(fleet.lines)} cells"
    print(printable(f"{of} ready on {paths.socket}, process {os.getpid()}"), file=sys.stderr, flush=True)


def build_fleet_app(fleet: Fleet, router: Router) -> Starlette:
    from console.browser_guard import BrowserGuard

    app = Starlette(
        routes=FleetFaces(fleet, router).routes(),
        exception_handlers={
            MusterError: _handled, HTTPException: _http_error, ClientDisconnect: _handled, Exception: _unexpected,
        },
    )  # fmt: skip
    app.add_middleware(BrowserGuard, hosts=("muster", "localhost"))
    return app


async def _handled(request: Request, error: Exception) -> Response:
    return refusal(error if isinstance(error, MusterError) else SpecError("body", "ended early", "Send it again"))


async def _http_error(request: Request, error: Exception) -> Response:
    if getattr(error, "status_code", 500) == 404:
        return refusal(NotFoundError(f"there is no {request.url.path[:120]} here", "This is a fleet, not a cell"))
    refused = refusal(SpecError("method", f"{request.method} is not possible on {request.url.path[:120]}", ""))
    refused.status_code = getattr(error, "status_code", 500)
    return refused


async def _unexpected(request: Request, error: Exception) -> Response:
    return refusal(DEFECT)


def _in_the_name_of(account: str, ask: SubmitAsk) -> SubmitAsk:
    """With the word of whose it is, whatever they say themselves."""
    specs = (msgspec.structs.replace(spec, tags={**spec.tags, BY_TAG: account}) for spec in ask.workloads)
    return msgspec.structs.replace(ask, workloads=tuple(specs))


def _account(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"


class _Protocol(Watched, H11Protocol):
    """With an eye on who connects and how."""


_UVICORN: dict[str, Any] = {
    "http": _Protocol,
    "lifespan": "off",
    "log_level": "error",
    "access_log": False,
    "server_header": False,
    "timeout_keep_alive": 75,
    "timeout_graceful_shutdown": STOP_S,
    "ws": "none",
    "proxy_headers": False,
}
