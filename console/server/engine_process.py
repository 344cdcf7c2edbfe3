"""The engine as a process: it opens the journal, runs the loop, and serves clients until it is told to stop.

HTTP/1.1 by uvicorn, in the clear on this machine's own sockets and with TLS on a TCP port.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import uvicorn
import uvloop
from starlette.routing import compile_path
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from console import VERSION
from console.client.launch import note, read_record, write_record
from console.client.oidc import OpenIdProvider
from console.client.protocol import Client
from console.client.questions import know_structs, questions_of
from console.client.sockets import Tls, bind_tcp, bind_unix, private_folder, remove_unix, socket_folder
from console.forms.settings import ConsoleSettings, paths_in
from console.server.application import ControlPlane, build_service
from console.server.authentication import Doors, guarded_ports
from console.server.command_listener import command_listener
from console.server.load_limits import DoorwayServer, OpenConnections, WatchedConnection
from console.server.operations import SaysVersion, asked_by
from console.server.request_log import logging_to_stderr
from console.server.served_process import (
    after_loss,
    end_when_taken,
    renewed,
    stop_on_signals,
    uvicorn_config,
    wait_for_lease,
)
from console.service.advisor import Advisor
from console.service.chat import Chat, chat_of
from console.service.drafting import Drafting
from console.service.dry_runs import DryRuns
from console.service.forecasts import Forecasts, HistoryFindings, PromiseReader
from console.service.gate_watch import GateTicker, Notifier
from console.service.insights import Insights
from console.service.kubernetes_cell import KubernetesAt, KubernetesCell
from console.service.local_client import LocalClient
from console.service.mirrored_cluster import ClusterAt, MirroredCluster, NoMirror, check_cell, of_cell
from console.service.model_setup import key_source, setup_of
from console.service.prometheus_at import PrometheusAt, kept_at
from console.service.recommendations import Recommender
from console.service.slurm_cell import SlurmCell
from console.service.telemetry import Archive, Collector, kept_by
from console.service.this_machine import LocalExecution, check_here, usage_of
from console.service.trace_export import TraceExporter
from console.text.progress_line import told_in_log
from console.text.terminal_text import printable
from engine.control import Engine
from engine.executors.this_machine import more_files
from engine.journal.database import Schema
from engine.journal.side_tables import Records
from engine.loop import EngineLoop, Feed
from engine.model.commands import Define
from engine.model.errors import JournalBusy, JournalError, MusterError
from engine.model.specs import CellSpec
from engine.state.timers import resume
from recommender.estimates.capacity_ahead import CapacityForecaster
from recommender.findings.suggestion_store import SuggestionRows
from recommender.history.metrics import Retention
from recommender.history.telemetry import Telemetry, clock_of
from runbooks.audit.log import Audit, signer_at
from runbooks.audit.witnesses import Anchor, CheckpointSigner
from runbooks.gate.aftermath import frozen, recorded_again
from runbooks.gate.approval_gate import Gate, wall_ms
from runbooks.gate.approval_policy import BUILT_IN
from runbooks.gate.policy_versions import Policies
from runbooks.models.drafter import ModelDrafter
from runbooks.plans.identity import SYSTEM
from runbooks.plans.incidents import label_table
from runbooks.procedures.registry import RunbookRegistry

if TYPE_CHECKING:
    from console.service.prometheus import PrometheusFollower
    from engine.journal.postgres_store import Lease

new_event_loop = uvloop.new_event_loop
"""The loop that the server runs on, in an engine's process and in tests."""
PART_S = 0.5
"""Longest wait for the other end of a connection that is idle."""


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
    chat: Chat | None = None,
    record_percent: int = 0,
) -> None:
    """Serve on bound sockets, and with TLS on those that are `secured`, until a signal comes or, where signals are
    not ours to take, `stop` is set. Then new requests are refused and those under way are answered. `provider`
    identifies people who come over the network, and `chat` those who press its buttons, where there is one.
    `record_percent`: of the requests that come without a trace, how many begin one."""
    doors = Doors(guarded=guarded_ports(sockets, secured))
    service = build_service(client, loop, doors=doors, provider=provider, chat=chat, record_percent=record_percent)
    if doors.guarded:
        more_files()
    connections = OpenConnections()
    serving = [_serving(service, sockets, connections)] if sockets else []
    if tls is not None:
        context = tls.open()
        serving.append(_serving(service, secured, connections, ssl_context_factory=lambda config, default: context))
    stopping = stop or stop_on_signals()
    stopped = asyncio.create_task(stopping.wait())
    renewing = asyncio.create_task(renewed(tls)) if tls is not None else None
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
    server = DoorwayServer(uvicorn_config(service.app, _Protocol, **options), connections)
    return server, asyncio.create_task(server.serve(sockets=list(sockets)))


class _Protocol(SaysVersion, WatchedConnection, HttpToolsProtocol):  # type: ignore[misc]
    """HTTP protocol that watches its connections, and ends idle ones at shutdown."""

    def shutdown(self) -> None:
        """Answer what is under way. An idle peer need not agree to part, as TLS would have it."""
        super().shutdown()
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(PART_S, self._part)

    def _part(self) -> None:
        if not self.transport.get_write_buffer_size():
            self.transport.abort()


SWITCH_S = 0.0005
"""How long the engine's thread may keep the interpreter when a request waits for it; each needs it several times."""


@dataclass(frozen=True)
class ServeOptions:
    """Options of an engine's process."""

    name: str
    journal: Path | Schema | None
    """A file, or a schema of a PostgreSQL server. None keeps everything in memory."""
    standby: bool = False
    """Wait until the engine that serves the cell ends, and take over; only with a server."""
    unix_socket: Path | None = None
    listen: str = ""
    """HOST:PORT, of this machine alone unless there is `tls`; empty for none."""
    tls: Tls | None = None
    """Certificate of the TCP port."""
    socket_group: str = ""
    """OS group that may connect to the Unix socket too."""
    record: Path | None = None
    """File that tells others which engine has the cell."""
    read_only: bool = False
    speed: float = 1.0
    seed: int = 0
    use_snapshot: bool = True
    """False replays the whole journal instead."""
    start_ms: int = 0
    """Cell time at which a new cell begins, Unix milliseconds."""
    keep_up: bool = False
    """The cell is in real time: restarted it goes on at `start_ms` too (`engine.state.timers.resume`)."""
    catch_up: bool = False
    """With `keep_up`: also where the cell had a time of its own, or was away for long."""
    cell: CellSpec | None = None
    """Applied only when the journal is new."""
    past: Callable[[Engine, CheckpointSigner | None], None] | None = None
    """What a simulated cell has behind it: played in its own time once the cell is defined, and only when the journal
    is new. The signer is of its audit."""
    keep: Retention = field(default_factory=Retention)
    """How long measurements and ended work are kept."""
    keep_events_ms: int = 0
    """How long the journal keeps events, cell time; 0: for ever."""
    audit_key: Path | None = None
    """File of the key that signs the audit, made if there is none; None leaves it unsigned."""
    anchors: tuple[Anchor, ...] = ()
    """Where checkpoints of the audit are remembered."""
    runbooks: tuple[Path, ...] = ()
    """Folders with runbooks besides those that are built in."""
    approval: str = ""
    """The approval policy of a cell that was given none, of `BUILT_IN`; empty: that of a team, until somebody chooses.
    """
    settings: ConsoleSettings = field(default_factory=ConsoleSettings)
    """Of whoever started it: which model may be asked for drafts."""
    mirrors: ClusterAt | None = None
    """The cluster that the cell mirrors; None where Muster decides itself."""
    prometheus: PrometheusAt | None = None
    """The Prometheus that is followed."""
    here: LocalExecution | None = None
    """How work runs on this machine; None where nothing runs for real."""
    feed: Callable[[Engine], Feed] | None = None
    """What is submitted or commanded as cell time passes, given the engine as it was opened."""


def serve(served: ServeOptions) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP, then write a snapshot and return. Raises MusterError when it cannot.

    The journal is opened first: its lock decides between two engines that start at once.
    """
    with logging_to_stderr(served.settings.log_format):
        _open_and_serve(served)


def _open_and_serve(served: ServeOptions) -> None:
    if served.unix_socket is not None:
        socket_folder(served.unix_socket.parent, served.socket_group)
    if isinstance(served.journal, Path):
        private_folder(served.journal.parent)
    elif served.record is not None:
        private_folder(served.record.parent)
    sys.setswitchinterval(SWITCH_S)
    know_structs()
    umask = os.umask(0o077)  # whoever may connect may not read the journal for that
    stood_by = None
    if served.standby and isinstance(served.journal, Schema):
        _prepare()
        stood_by = wait_for_lease(served.journal, served.name)
        if stood_by is None:
            return
        if served.keep_up:
            served = replace(served, start_ms=wall_ms())
    try:
        engine = Engine.open(
            served.journal, seed=served.seed, use_snapshot=served.use_snapshot, keep_ms=served.keep_events_ms,
            forecaster=CapacityForecaster(),
            stood_by=stood_by, processes=served.here.executor(umask) if served.here else None,
        )  # fmt: skip
    except JournalBusy as busy:
        raise _with_cell(busy, served.journal) from None
    try:
        _serve(served, engine)
    finally:
        if engine.lease is not None:
            after_loss(engine.lease, again=served.standby)


def _prepare() -> None:
    """Do beforehand, as a standby, what takes time and needs no engine: else it is done between the lease and the first
    answer, on a machine that may be busy."""

    async def load_backend() -> None:
        anyio.CapacityLimiter(1)

    for question in questions_of(Client):
        compile_path(asked_by(question).path)
    asyncio.run(load_backend())
    keep_state()


def _serve(served: ServeOptions, engine: Engine) -> None:
    with contextlib.ExitStack() as last, contextlib.ExitStack() as after:
        after.callback(engine.close)
        is_new = engine.version == 0
        if is_new:
            _begin(engine, served)
            if served.past is not None:
                with told_in_log():
                    served.past(engine, signer_at(engine, served.audit_key) if served.audit_key else None)
        check_cell(engine, served.mirrors)
        check_here(engine, served.here)
        if not is_new:
            _go_on(engine, served)
        folder = None if served.record is None else served.record.parent
        cluster = of_cell(engine, served.mirrors, folder)
        # Before there is a gate: it goes on at once with what was approved before a crash.
        engine.acts = cluster is not None and cluster.acts
        plain, secured = _sockets(served, after)
        if served.record is not None:
            write_record(served.record, served.name)
            after.callback(served.record.unlink, missing_ok=True)
            after.enter_context(command_listener())
        if isinstance(served.journal, Schema) and served.record is not None:
            note(served.record.parent, str(served.journal))
        feed = served.feed(engine) if served.feed else None
        loop = EngineLoop(engine, speed=served.speed, feed=feed, real_time=served.keep_up)
        keep_state()
        if engine.lease is not None:
            end_when_taken(engine.lease, lambda: bool(loop.fault))
        records = Records(engine.place, kept_by(loop), engine.lease.owner if engine.lease is not None else "")
        after.callback(records.close)
        telemetry = Telemetry(records, served.keep, clock_of(lambda: engine.now_ms))
        advisor, forecasts = Advisor(loop), Forecasts(loop, telemetry)
        # A thread that the interpreter ends in the midst of compiled code takes the process down with an error.
        last.callback(advisor.run_times.settle)
        archive = Archive(loop, telemetry)
        insights = Insights(loop, archive)
        engine.recommender = insights.sizer
        history, promises = HistoryFindings(loop, telemetry, forecasts, insights), PromiseReader(telemetry)
        recommender = Recommender(
            loop,
            advisor,
            keep=lambda: SuggestionRows(records),
            more=history,
            read=promises.read,
            others=promises.others,
            chore=lambda: insights.keep_up() or forecasts.keep_up(),
        )
        audit = _audit(engine, served)
        after.callback(audit.close)
        policies = Policies(
            engine, audit, wall_ms, default=BUILT_IN[served.approval or "team"], chosen=bool(served.approval)
        )
        labels = label_table(served.settings.alert_labels, "alert_labels")
        gate = Gate(engine, policies, audit, alert_labels=labels)
        _say_begun(engine, gate, served)
        chat = chat_of(served.settings)
        ticker, notifier = GateTicker(loop, gate), Notifier(loop, gate, chat, recommender.standing_out)
        setup = setup_of(served.settings)
        key = key_source(setup.endpoint, served.settings.model_key_file)
        model = ModelDrafter(setup, key, call=loop.call, audit=audit, wall_ms=wall_ms)
        registry = RunbookRegistry(engine, gate, served.runbooks, call=loop.call)
        drafting = Drafting(loop, gate, recommender, model, registry)
        mirrored, collector = _mirror(loop, cluster, gate, folder), Collector(loop, telemetry)
        follower = _follower(loop, telemetry, served.prometheus, folder, mirrored)
        archive.follower = history.follower = follower
        client = LocalClient(
            loop,
            gate,
            advisor,
            served.read_only,
            name=served.name,
            cluster=mirrored,
            dry_runs=_dry_runs(loop, mirrored, gate),
            archive=archive,
            insights=insights,
            forecasts=forecasts,
            recommender=recommender,
            registry=registry,
            ticker=ticker,
            drafting=drafting,
            collector=collector,
        )
        loop.start()
        after.callback(loop.stop)
        after.callback(drafting.close)
        drafting.open()
        collector.start()
        after.callback(collector.stop)
        recommender.start()
        after.callback(recommender.stop)
        usage = usage_of(loop, served.here)
        for helper in (ticker, notifier, mirrored, usage, *([] if follower is None else [follower])):
            helper.start()
            after.callback(helper.stop)
        ready, provider = functools.partial(_say_ready, served, engine.lease), _provider(served.settings)
        if served.settings.trace_url:
            exporter = TraceExporter(served.settings.trace_url, served.name)
            exporter.start()
            after.callback(exporter.stop)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(
                run_server(
                    client,
                    loop,
                    plain,
                    ready,
                    secured=secured,
                    tls=served.tls,
                    provider=provider,
                    chat=chat,
                    record_percent=served.settings.trace_percent,
                )
            )
        print("muster engine stops", file=sys.stderr, flush=True)


def _dry_runs(loop: EngineLoop, mirrored: MirroredCluster, gate: Gate) -> DryRuns | None:
    if isinstance(mirrored, KubernetesCell) and mirrored.driver is not None:
        return DryRuns(loop, gate, mirrored.driver.rehearse)
    return None


def _follower(
    loop: EngineLoop,
    telemetry: Telemetry,
    at: PrometheusAt | None,
    folder: Path | None,
    mirrored: MirroredCluster,
) -> PrometheusFollower | None:
    """Follows the given Prometheus, or the one that the cell followed last; None without one."""
    at = kept_at(at, folder)
    if at is None:
        return None
    from console.service.prometheus import PrometheusFollower

    return PrometheusFollower(loop, telemetry, at, mirrored.outside_names)


def _mirror(loop: EngineLoop, at: ClusterAt | None, gate: Gate, folder: Path | None) -> MirroredCluster:
    if isinstance(at, KubernetesAt):
        return KubernetesCell(loop, at, folder)
    if at is None:
        return NoMirror(loop)
    return SlurmCell(
        loop,
        at,
        lambda engine, changes: recorded_again(engine, gate, changes),
        lambda engine, number: frozen(engine, gate, number),
    )


def _audit(engine: Engine, served: ServeOptions) -> Audit:
    """The audit with its key and its anchors. Without its key the cell can still be looked after, unsigned and
    saying so."""
    if served.audit_key is None:
        return Audit(engine, wall_ms, anchors=served.anchors)
    try:
        return Audit(engine, wall_ms, signer=signer_at(engine, served.audit_key), anchors=served.anchors)
    except MusterError as error:
        print(f"muster: {printable(str(error))}", file=sys.stderr, flush=True)
        return Audit(engine, wall_ms, anchors=served.anchors, key_error=str(error))


def _with_cell(busy: JournalBusy, journal: Path | Schema | None) -> JournalBusy:
    """The same error with the name of the cell that the other engine serves, where its record tells."""
    record = read_record(paths_in(journal.resolve().parent).record) if isinstance(journal, Path) else None
    if record is None or record.has_ended:
        return busy
    return JournalBusy(
        f"{busy.problem}, which serves cell '{record.cell}'",
        f"Attach to it: muster --cell {record.cell}. Or stop it first: muster stop --cell {record.cell}",
    )


def _begin(engine: Engine, served: ServeOptions) -> None:
    """Start a new cell at its start time, not in 1970. A cell without a name is named as it is served."""
    engine.advance(served.start_ms)
    if served.cell is not None:
        named = served.cell.name != CellSpec().name
        engine.command(Define(cell=served.cell if named else msgspec.structs.replace(served.cell, name=served.name)))


def _go_on(engine: Engine, served: ServeOptions) -> None:
    if engine.former is not None:
        print(
            printable(f"the journal is migrated; as it was it is kept in {engine.former}"), file=sys.stderr, flush=True
        )
    if served.cell is not None and served.feed is None and served.here is None and served.mirrors is None:
        print("the journal already has a cell: the cell file is ignored", file=sys.stderr, flush=True)
    if served.keep_up:
        # Where work and nodes are real, no other time makes sense.
        follow = served.catch_up or served.here is not None or not engine.decides
        told = resume(engine, served.start_ms, follow=follow)
        if told:
            print(printable(f"muster engine '{served.name}': {told}"), file=sys.stderr, flush=True)


def _say_begun(engine: Engine, gate: Gate, served: ServeOptions) -> None:
    """Record in the audit who serves the cell from now on, and the default approval policy."""
    default = BUILT_IN[served.approval or "team"]
    data = {"software": VERSION, "default_policy": default.name, "read_only": served.read_only}
    # Where nothing can be recorded the cell can still be looked at, and says so.
    with contextlib.suppress(JournalError):
        engine.record(
            lambda connection: gate.audit.append(
                connection, "engine.opened", SYSTEM, policy_digest=default.digest(), data=data
            )
        )


def _provider(settings: ConsoleSettings) -> OpenIdProvider | None:
    """The OpenID provider of people who come over the network; None without one."""
    if not settings.oidc_issuer:
        return None
    return OpenIdProvider(
        settings.oidc_issuer, settings.oidc_client, settings.oidc_ca_file, groups=settings.oidc_groups
    )


def _sockets(served: ServeOptions, after: contextlib.ExitStack) -> tuple[list[socket.socket], list[socket.socket]]:
    """Bound sockets: those served in the clear, and those with TLS."""
    plain: list[socket.socket] = []
    secured: list[socket.socket] = []
    if served.tls is not None:
        served.tls.open()
    if served.unix_socket is not None:
        plain.append(bind_unix(served.unix_socket, served.socket_group))
        after.callback(remove_unix, served.unix_socket)
    if served.listen:
        bound = bind_tcp(served.listen, secured=served.tls is not None)
        (plain if served.tls is None else secured).append(bound)
    for bound in (*plain, *secured):
        after.callback(bound.close)
    return plain, secured


def _say_ready(served: ServeOptions, lease: Lease | None) -> None:
    where = " and ".join(str(at) for at in (served.unix_socket, served.listen) if at)
    mode = ", read-only" if served.read_only else ""
    text = f"muster engine '{served.name}' ready on {where}, process {os.getpid()}{mode}"
    print(printable(text), file=sys.stderr, flush=True)
    if served.standby and lease is not None and (told := lease.note_ready()):
        print(printable(f"muster engine '{served.name}' {told}"), file=sys.stderr, flush=True)


def keep_state() -> None:
    """Leave the state out of every later look for garbage. A look through a million workloads takes a quarter of a
    second, in which nobody is answered, and finds nothing."""
    gc.collect()
    gc.freeze()
