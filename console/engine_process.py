"""The engine as a process of its own: opens the journal, runs the loop, serves clients until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from console.advisor import Advisor
from console.agents import AgentFaces
from console.archive import Archive
from console.collector import Collector, kept_by
from console.courier import Courier
from console.doorkeeper import Doorkeeper
from console.draft_faces import DraftFaces
from console.drafting import Drafting
from console.forecasts import Forecasts
from console.history_findings import HistoryFindings
from console.insights import Insights
from console.local_client import LocalClient
from console.model_setup import key_source, setup_of
from console.policy_faces import PolicyFaces
from console.recommendations import Recommender
from console.server import Watch, build_app
from console.settings import Settings
from console.sockets import account_at, bind_tcp, bind_unix, private_folder
from console.text import printable
from console.version import VERSION
from engine.commands import Define
from engine.control import Engine
from engine.errors import JournalError, MusterError
from engine.loop import EngineLoop, Feed
from engine.model import CellSpec
from engine.records import Records
from recommender.ahead import CapacityForecaster
from recommender.retention import Retention
from recommender.shelf_tables import Kept
from recommender.telemetry import Telemetry, clock_of
from runbooks.anchors import Anchor
from runbooks.audit import Audit, signer_at
from runbooks.gate import Gate, wall_ms
from runbooks.identity import SYSTEM
from runbooks.model_drafter import ModelDrafter
from runbooks.policies import Policies
from runbooks.policy import SOLO, TEAM
from runbooks.shelf import Shelf

KEEP_ALIVE_S = 75
"""Longer than a screen is left alone between two questions, so that connections are rarely made anew."""
SWITCH_S = 0.0005
"""How long the engine's thread may keep the interpreter when a request waits for it; each needs it several times."""
STOP_S = 5
"""Longest wait for requests under way when stopping."""


@dataclass(frozen=True)
class Served:
    """What to serve, and where."""

    name: str
    journal: Path | None
    """None keeps everything in memory."""
    unix_socket: Path | None = None
    listen: str = ""
    """HOST:PORT of this machine; empty for none."""
    socket_group: str = ""
    """OS group that may connect to the Unix socket too."""
    pid_file: Path | None = None
    read_only: bool = False
    speed: float = 1.0
    seed: int = 0
    use_snapshot: bool = True
    """False replays the whole journal instead."""
    start_ms: int = 0
    """Cell time at which a new cell begins, Unix milliseconds."""
    keep_up: bool = False
    """A restarted cell goes on at `start_ms` too: time has passed while no engine ran."""
    cell: CellSpec | None = None
    """Applied only when the journal is new."""
    keep: Retention = field(default_factory=Retention)
    """How long measurements and ended work are kept."""
    audit_key: Path | None = None
    """File of the key that signs the audit, made if there is none; None leaves it unsigned."""
    anchors: tuple[Anchor, ...] = ()
    """Where checkpoints of the audit are remembered."""
    runbooks: tuple[Path, ...] = ()
    """Folders with runbooks besides those that are built in."""
    solo: bool = False
    """The approval policy of a cell that was given none is that of one person, who may approve everything; else that of
    a team."""
    settings: Settings = field(default_factory=Settings)
    """Of whoever started it: which model may be asked for drafts."""
    feed: Callable[[Engine], Feed] | None = None
    """What is submitted or commanded as cell time passes, given the engine as it was opened."""


def serve(served: Served) -> None:
    """Runs until SIGTERM, SIGINT or SIGHUP, then writes a snapshot and returns. Raises MusterError when it cannot.

    The journal is opened first: its lock decides between two engines that start at once.
    """
    if served.journal is not None:
        private_folder(served.journal.parent)
    sys.setswitchinterval(SWITCH_S)
    os.umask(0o077)  # whoever may connect may not read the journal for that
    engine = Engine.open(
        served.journal, seed=served.seed, use_snapshot=served.use_snapshot, forecaster=CapacityForecaster()
    )
    with contextlib.ExitStack() as last, contextlib.ExitStack() as after:
        after.callback(engine.close)
        if engine.version == 0:
            _begin(engine, served)
        else:
            _go_on(engine, served)
        sockets = list(_sockets(served, after))
        _write_pid(served.pid_file, after)
        loop = EngineLoop(engine, speed=served.speed, feed=served.feed(engine) if served.feed else None)
        records = Records(engine.path, kept_by(loop))
        after.callback(records.close)
        telemetry = Telemetry(records, served.keep, clock_of(lambda: engine.now_ms))
        advisor, forecasts = Advisor(loop), Forecasts(loop, telemetry)
        # A thread that the interpreter ends in the midst of compiled code takes the process down with an error.
        last.callback(advisor.run_times.settle)
        archive = Archive(loop, telemetry)
        insights = Insights(loop, archive)
        engine.recommender = insights.sizer
        history = HistoryFindings(loop, telemetry, forecasts, insights)
        recommender = Recommender(
            loop,
            advisor,
            keep=lambda: Kept(records),
            more=history,
            read=history.read,
            others=history.others,
            chore=lambda: insights.keep_up() or forecasts.keep_up(),
        )
        audit = _audit(engine, served)
        after.callback(audit.close)
        policies = Policies(engine, audit, wall_ms, default=SOLO if served.solo else TEAM)
        gate = Gate(engine, policies, audit)
        _say_begun(engine, gate, served)
        doorkeeper, courier = Doorkeeper(loop, gate), Courier(loop, gate)
        setup = setup_of(served.settings)
        key = key_source(setup.endpoint, served.settings.model_key_file)
        model = ModelDrafter(setup, key, call=loop.call, audit=audit, wall_ms=wall_ms)
        shelf = Shelf(engine, gate, served.runbooks, call=loop.call)
        drafting = Drafting(loop, gate, recommender, model, shelf)
        client = LocalClient(
            loop,
            gate,
            advisor,
            served.read_only,
            name=served.name,
            archive=archive,
            insights=insights,
            forecasts=forecasts,
            recommender=recommender,
            shelf=shelf,
            doorkeeper=doorkeeper,
            drafting=drafting,
        )
        loop.start()
        after.callback(loop.stop)
        after.callback(drafting.close)
        drafting.open()
        collector = Collector(loop, telemetry)
        collector.start()
        after.callback(collector.stop)
        recommender.start()
        after.callback(recommender.stop)
        for helper in (doorkeeper, courier):
            helper.start()
            after.callback(helper.stop)
        asyncio.run(run_server(client, loop, sockets, on_ready=lambda: _say_ready(served)))
        print("muster engine stops", file=sys.stderr, flush=True)


async def run_server(
    client: LocalClient,
    loop: EngineLoop,
    sockets: list[socket.socket],
    on_ready: Callable[[], None],
    stop: asyncio.Event | None = None,
) -> None:
    """Serves on bound sockets until a signal comes or, where signals are not ours to take, `stop` is set."""
    watch = Watch(loop)
    agents = AgentFaces(loop, read_only=client.read_only)
    more = (*agents.routes(), *PolicyFaces(client).routes(), *DraftFaces(client).routes())
    server = _Server(uvicorn.Config(build_app(client, watch, more), **_UVICORN))
    stopping = stop or _stop_on_signals()
    serving = asyncio.create_task(server.serve(sockets=sockets))
    stopped = asyncio.create_task(stopping.wait())
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    on_ready()
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    watch.close()
    await asyncio.to_thread(client.break_off)
    server.should_exit = True
    await serving


class _Server(uvicorn.Server):
    """Leaves signals to `run_server`: uvicorn would raise them again when done, before the snapshot is written."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(H11Protocol):
    """Notes who connected, for as long as the connection lasts."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        connected = transport.get_extra_info("socket")
        if connected is not None:
            self.client = (account_at(connected), 0)


_UVICORN: dict[str, Any] = {
    "http": _Protocol,
    "lifespan": "off",
    "log_level": "error",
    "access_log": False,
    "server_header": False,
    "timeout_keep_alive": KEEP_ALIVE_S,
    "timeout_graceful_shutdown": STOP_S,
    "ws": "none",
    "proxy_headers": False,
}


def _audit(engine: Engine, served: Served) -> Audit:
    """The audit with its key and its anchors. Where the key cannot be had the cell can still be looked after, unsigned
    and saying so."""
    if served.audit_key is None:
        return Audit(engine, wall_ms, anchors=served.anchors)
    try:
        return Audit(engine, wall_ms, signer=signer_at(engine, served.audit_key), anchors=served.anchors)
    except MusterError as error:
        print(f"muster: {printable(str(error))}", file=sys.stderr, flush=True)
        return Audit(engine, wall_ms, anchors=served.anchors, key_error=str(error))


def _begin(engine: Engine, served: Served) -> None:
    """A new cell begins at its start time, not in 1970."""
    engine.advance(served.start_ms)
    if served.cell is not None:
        engine.command(Define(cell=served.cell))


def _go_on(engine: Engine, served: Served) -> None:
    if served.cell is not None and served.feed is None:
        print("the journal has a cell already: the cell file is not read again", file=sys.stderr, flush=True)
    if served.keep_up:
        engine.advance(served.start_ms)


def _say_begun(engine: Engine, gate: Gate, served: Served) -> None:
    """On record: who served the cell from when on, and by which approval policy where it was given none."""
    default = SOLO if served.solo else TEAM
    data = {"software": VERSION, "default_policy": default.name, "read_only": served.read_only}
    # Where nothing can be recorded the cell can still be looked at, and says so.
    with contextlib.suppress(JournalError):
        engine.record(
            lambda connection: gate.audit.append(
                connection, "engine.opened", SYSTEM, policy_digest=default.digest(), data=data
            )
        )


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(sent, stop.set)
    return stop


def _sockets(served: Served, after: contextlib.ExitStack) -> Iterator[socket.socket]:
    if served.unix_socket is not None:
        bound = bind_unix(served.unix_socket, served.socket_group)
        after.callback(served.unix_socket.unlink, missing_ok=True)
        after.callback(bound.close)
        yield bound
    if served.listen:
        bound = bind_tcp(served.listen)
        after.callback(bound.close)
        yield bound


def _write_pid(path: Path | None, after: contextlib.ExitStack) -> None:
    if path is not None:
        path.write_text(f"{os.getpid()}\n")
        after.callback(path.unlink, missing_ok=True)


def _say_ready(served: Served) -> None:
    where = " and ".join(str(at) for at in (served.unix_socket, served.listen) if at)
    mode = ", read-only" if served.read_only else ""
    text = f"muster engine '{served.name}' ready on {where}, process {os.getpid()}{mode}"
    print(printable(text), file=sys.stderr, flush=True)
