"""A fleet as a process: it opens its journal, watches its cells, routes, and serves its socket.

The socket belongs to its owner, or to a group too. Whoever can connect may submit, and take back their own
submissions, as the account that the kernel tells; actions that concern everybody are for the owner. To its cells the
fleet is an ordinary operator under each cell's policy, and it tells them the submitting account. The questions are
declared in `console.fleet.queries`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from console.client.credentials import Identity
from console.client.launch import note
from console.client.questions import ServiceQuestion, know_structs, questions_of, wrap_answers
from console.client.remote import RemoteClient
from console.client.sockets import Tls, bind_tcp, bind_unix, private_folder, remove_unix, socket_folder
from console.fleet.callers import Ask, FleetAuthentication, FleetCaller, asked_of
from console.fleet.coordinator import Fleet
from console.fleet.journal import FleetJournal
from console.fleet.queries import (
    MAX_AT_ONCE,
    STATES,
    FleetPaths,
    FleetQuestions,
    FleetSubmission,
    FleetView,
    State,
    SubmissionsPage,
)
from console.fleet.routing import Router
from console.forms.settings import TOKEN, ConsoleSettings
from console.server.authentication import BrowserGuard
from console.server.load_limits import DoorwayServer, OpenConnections, WatchedConnection
from console.server.operations import Forbidden, Operation, answer, asked_by
from console.server.request_handler import read_arguments
from console.server.served_process import (
    after_loss,
    end_when_taken,
    error_handlers,
    renewed,
    stop_on_signals,
    uvicorn_config,
    wait_for_lease_alone,
)
from console.text.terminal_text import printable
from engine.admission.fleet_routing import BY_TAG, CellLink, FleetSpec, RoutingDecision
from engine.journal.database import Place, Schema, SqliteFile
from engine.model.errors import NotFoundError, SpecError
from engine.model.specs import WorkloadSpec

if TYPE_CHECKING:
    from console.client.protocol import Client

AWAITED = 50
"""Largest submission that waits to report where its workloads went."""
AWAITED_S = 2.0
"""Wait beyond the time that cells have for an answer."""
NOBODY = FleetCaller("")


class FleetAnswers(FleetQuestions):
    """Answers in the name of an account."""

    def __init__(self, fleet: Fleet, router: Router, caller: FleetCaller = NOBODY) -> None:
        self._fleet = fleet
        self._router = router
        self._caller = caller
        self._by = caller.account

    def acting_as(self, caller: FleetCaller) -> FleetAnswers:
        return FleetAnswers(self._fleet, self._router, caller)

    def view(self) -> FleetView:
        return self._fleet.view()

    def page(self, states: tuple[State, ...] = (), before: int = 0, limit: int = 100) -> SubmissionsPage:
        for state in states:
            if state not in STATES:
                raise SpecError("states", f"{state[:40]!a} is not a state", f"Use: {', '.join(STATES)}")
        return self._fleet.page(states, before, limit)

    def submission(self, submission_id: str) -> FleetSubmission:
        return self._fleet.submission(submission_id)

    def submit(self, workloads: Sequence[WorkloadSpec], cells: tuple[str, ...] = ()) -> tuple[FleetSubmission, ...]:
        """Accept work and return its state once decided, where that takes a moment."""
        if not 0 < len(workloads) <= MAX_AT_ONCE:
            raise SpecError("workloads", f"are {len(workloads)}", f"Give 1 to {MAX_AT_ONCE:,}")
        fleet, specs = self._fleet, _in_the_name_of(self._by, workloads)
        if len(specs) <= AWAITED:
            self._router.refuse_hopeless(specs, cells, self._by)
        ids = fleet.submit(specs, cells, self._by)
        self._router.wake()
        if len(ids) <= AWAITED:
            self._router.await_decided(ids, fleet.spec.routing.answer_within_ms / 1000 + AWAITED_S)
        return tuple(fleet.submission(name) for name in ids)

    def preview(self, workloads: Sequence[WorkloadSpec], cells: tuple[str, ...] = ()) -> tuple[RoutingDecision, ...]:
        if not 0 < len(workloads) <= AWAITED:
            raise SpecError("workloads", f"are {len(workloads)}", f"Give 1 to {AWAITED}")
        return tuple(self._router.previews(workloads, cells, self._by))

    def withdraw(self, ids: Sequence[str]) -> tuple[str, ...]:
        if not self._caller.manages:
            others = [name for name in ids if self._fleet.submission(name).by != self._by]
            if others:
                raise Forbidden(f"{others[0][:80]!a} is not yours", "Ask whoever submitted it, or the fleet's owner")
        return self._fleet.withdraw(ids, self._by)

    def set_closed(self, cell: str, *, closed: bool, reason: str = "") -> FleetView:
        if not self._caller.manages:
            raise Forbidden("only the owner of the fleet opens and closes cells", "Ask the owner")
        self._fleet.set_closed(cell, closed, reason, self._by)
        self._router.wake()
        return self._fleet.view()


wrap_answers(FleetAnswers, FleetQuestions, lambda _, method: method)


def fleet_routes(answers: FleetAnswers) -> list[Route]:
    """One for each question."""

    async def answered(question: ServiceQuestion, operation: Operation, request: Request) -> Response:
        arguments, _ = await read_arguments(question, operation, request)
        named = answers.acting_as(request.state.caller)
        return await answer(lambda: question.answered_by(named, arguments))

    return [
        Route(question.path, functools.partial(answered, question, asked_by(question)), methods=[question.method])
        for question in questions_of(FleetQuestions)
    ]


def serve_fleet(
    spec: FleetSpec,
    paths: FleetPaths,
    group: str = "",
    place: Place | None = None,
    *,
    standby: bool = False,
    listen: str = "",
    tls: Tls | None = None,
) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP. `place`: its journal, by default the file in its folder; `standby`: wait
    until the fleet that has it ends; `listen`: HOST:PORT, with the certificate `tls`. Raises MusterError when it
    cannot."""
    ask = _who_comes(spec, listen, tls)
    know_structs()
    socket_folder(paths.socket.parent, group)
    private_folder(paths.folder)
    os.umask(0o077)
    # One token for all cells would be shown to each of them: the file says which goes where.
    os.environ.pop(TOKEN, None)
    place = place or SqliteFile(paths.journal)
    lease = None
    if standby and isinstance(place, Schema):
        lease = wait_for_lease_alone(place, f"fleet {spec.name}")
        if lease is None:
            return
    journal = FleetJournal(place, lease)
    try:
        _serve(spec, paths, group, journal, listen, tls, ask)
    finally:
        journal.close()
        if journal.lease is not None:
            after_loss(journal.lease, again=standby)


def _who_comes(spec: FleetSpec, listen: str, tls: Tls | None) -> Ask | None:
    """Who says who comes over the network. Raises SpecError."""
    if not listen:
        return None
    if tls is None:
        raise SpecError("--listen", "needs a certificate", "Add --tls-cert and --tls-key")
    if not spec.people:
        raise SpecError("--listen", "needs a cell that knows the people", "Add people: CELL to the fleet's file")
    return asked_of(next(link for link in spec.cells if link.name == spec.people))


def _serve(
    spec: FleetSpec, paths: FleetPaths, group: str, journal: FleetJournal, listen: str, tls: Tls | None,
    ask: Ask | None,
) -> None:  # fmt: skip
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
            end_when_taken(journal.lease, lambda: not router.is_alive, "fleet")
        secured = bind_tcp(listen, secured=True) if listen else None
        if secured is not None:
            after.callback(secured.close)
        ready = functools.partial(_say_ready, fleet, paths, listen)
        asyncio.run(run_server(fleet, router, bound, ready, secured=secured, tls=tls, ask=ask))
        print("muster fleet stops", file=sys.stderr, flush=True)


def connected(link: CellLink, patience_s: float) -> Client:
    """A client of a cell, as the account of this process, or with the token of the fleet's file."""
    identity = Identity(ConsoleSettings(token_file=link.token_file)) if link.token_file else None
    return RemoteClient(link.connect, identity=identity, patience_s=patience_s)


async def run_server(
    fleet: Fleet,
    router: Router,
    bound: socket.socket,
    on_ready: Callable[[], object],
    stop: asyncio.Event | None = None,
    *,
    secured: socket.socket | None = None,
    tls: Tls | None = None,
    ask: Ask | None = None,
) -> None:
    """Serves on a bound socket, and with TLS on the one that is `secured`, until a signal comes or, where signals are
    not ours to take, `stop` is set. `ask`: who says who comes over the network."""
    app, connections = build_fleet_app(fleet, router, ask), OpenConnections()
    servers = [(DoorwayServer(uvicorn_config(app, _Protocol), connections), bound)]
    if secured is not None and tls is not None:
        context = tls.open()
        config = uvicorn_config(app, _Protocol, ssl_context_factory=lambda config, default: context)
        servers.append((DoorwayServer(config, connections), secured))
    stopping = stop or stop_on_signals()
    serving = [asyncio.create_task(server.serve(sockets=[at])) for server, at in servers]
    others = [asyncio.create_task(stopping.wait()), *([asyncio.create_task(renewed(tls))] if tls is not None else [])]
    while not all(server.started or task.done() for (server, _), task in zip(servers, serving, strict=True)):
        await asyncio.sleep(0.005)
    on_ready()
    await asyncio.wait((*serving, others[0]), return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*serving)


def _say_ready(fleet: Fleet, paths: FleetPaths, listen: str) -> None:
    where = " and ".join(str(at) for at in (paths.socket, listen) if at)
    text = f"muster fleet '{fleet.spec.name}' of {len(fleet.lines)} cells ready on {where}, process {os.getpid()}"
    print(printable(text), file=sys.stderr, flush=True)


def build_fleet_app(fleet: Fleet, router: Router, ask: Ask | None = None) -> Starlette:
    """`ask`: who says who comes over the network; None: nobody does."""
    app = Starlette(
        routes=fleet_routes(FleetAnswers(fleet, router)),
        exception_handlers=error_handlers(
            lambda path: NotFoundError(f"there is no {path} here", "This is a fleet, not a cell")
        ),
    )
    app.add_middleware(FleetAuthentication, ask=ask)
    app.add_middleware(BrowserGuard, hosts=("muster", "localhost"))
    return app


def _in_the_name_of(account: str, workloads: Sequence[WorkloadSpec]) -> tuple[WorkloadSpec, ...]:
    """The workloads tagged with the submitting account, whatever tags they came with."""
    return tuple(msgspec.structs.replace(spec, tags={**spec.tags, BY_TAG: account}) for spec in workloads)


class _Protocol(WatchedConnection, H11Protocol):  # type: ignore[misc]
    """HTTP protocol that watches its connections."""
