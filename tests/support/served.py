"""A real engine loop behind a real server, on a Unix socket or TCP, inside the test's own process."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from console.client.oidc import OpenIdProvider
from console.client.sockets import Tls, bind_unix
from console.server.engine_process import new_event_loop, run_server
from console.service.advisor import Advisor
from console.service.chat import Chat
from console.service.local_client import LocalClient
from console.service.mirrored_cluster import NoMirror
from console.service.telemetry import Archive
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.specs import WorkloadSpec
from runbooks.gate.approval_gate import Gate
from tests.support.cells import small_cell, workload
from tests.support.gates import gate_of
from tests.support.patience import PATIENCE_S

HOUR_MS = 3_600_000


def gpu_job(workload_id: str, *, tasks: int = 1, gpus: int = 8, queue: str = "a") -> WorkloadSpec:
    """A gang that runs for an hour of cell time."""
    return workload(workload_id, queue=queue, count=tasks, gpu=1000 * gpus, estimate=HOUR_MS, run=HOUR_MS)


@contextmanager
def running_loop(path: Path | None = None) -> Iterator[EngineLoop]:
    """A loop over the small cell, in memory unless a journal path is given."""
    engine = Engine.open(path, cell=small_cell())
    loop = EngineLoop(engine)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()
        engine.close()


@contextmanager
def serving(
    loop: EngineLoop,
    bound: socket.socket,
    *,
    read_only: bool = False,
    gate: Gate | None = None,
    provider: OpenIdProvider | None = None,
    tls: Tls | None = None,
    archive: Archive | None = None,
    chat: Chat | None = None,
    cluster: NoMirror | None = None,
) -> Iterator[None]:
    """The control plane of `loop` on a bound socket, on a thread of its own. Without a gate, one for one person."""
    client = LocalClient(
        loop, gate or gate_of(loop.engine), Advisor(loop), read_only, name="lab", archive=archive, cluster=cluster
    )
    ready = threading.Event()
    aio = new_event_loop()
    stop = asyncio.Event()
    plain, secured = ([bound], []) if tls is None else ([], [bound])
    serve = run_server(client, loop, plain, ready.set, stop, secured=secured, tls=tls, provider=provider, chat=chat)
    thread = threading.Thread(target=lambda: aio.run_until_complete(serve), name="test-server")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield
    finally:
        aio.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        bound.close()
        aio.run_until_complete(aio.shutdown_default_executor())
        aio.close()


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A short private folder: test folders may be too long for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="mu-") as folder:
        yield Path(folder)


@contextmanager
def served_on_unix(
    loop: EngineLoop,
    *,
    read_only: bool = False,
    gate: Gate | None = None,
    archive: Archive | None = None,
    cluster: NoMirror | None = None,
) -> Iterator[Path]:
    """The path of a Unix socket that serves `loop`."""
    with socket_folder() as folder:
        path = folder / "engine.sock"
        with serving(loop, bind_unix(path), read_only=read_only, gate=gate, archive=archive, cluster=cluster):
            yield path
