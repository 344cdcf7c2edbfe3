"""A fleet over scripted cells behind a real server on a Unix socket, inside the test's own process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from console.client.sockets import Tls, bind_unix
from console.fleet.callers import Ask
from console.fleet.coordinator import Fleet
from console.fleet.journal import FleetJournal
from console.fleet.queries import FleetPaths, fleet_paths
from console.fleet.routing import Router
from console.fleet.server import run_server
from console.forms.settings import ConsoleSettings
from engine.admission.fleet_routing import CellLink, FleetSpec
from engine.model.errors import MusterError
from tests.support.patience import PATIENCE_S
from tests.support.scripted_cells import HereAndNow, ScriptedCell


class Served:
    """The fleet and its cells. Watchers do not run: `hear` is what they would do."""

    def __init__(self, paths: FleetPaths, fleet: Fleet, router: Router, cells: dict[str, ScriptedCell]) -> None:
        self.paths, self.fleet, self.router, self.cells = paths, fleet, router, cells

    def hear(self) -> None:
        for name, line in self.fleet.lines.items():
            try:
                line.glance()
            except MusterError as error:
                line.error = error.problem
            self.fleet.look_quietly(name)


@contextmanager
def served_fleet(
    folder: Path, *, secured: socket.socket | None = None, tls: Tls | None = None, ask: Ask | None = None,
    **changes: object,
) -> Iterator[Served]:  # fmt: skip
    """With the cells `a` and `b`; its files are where `fleet` of the settings names `folder`. `secured`: it serves
    there too, with `tls`, whom `ask` knows."""
    paths = fleet_paths(ConsoleSettings(fleet=str(folder)))
    cells = {name: ScriptedCell(name) for name in ("a", "b")}
    links = tuple(CellLink(name=name, connect=name, residency=(f"in-{name}",)) for name in cells)
    spec = msgspec.structs.replace(FleetSpec(name="lab", cells=links), **changes)
    journal = FleetJournal(paths.journal)
    fleet = Fleet(spec, journal, lambda link, _: cells[link.name])  # type: ignore[arg-type,return-value]
    router = Router(fleet, HereAndNow())
    served = Served(paths, fleet, router, cells)
    served.hear()
    bound = bind_unix(paths.socket)
    ready, aio, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    thread = threading.Thread(
        target=lambda: aio.run_until_complete(
            run_server(fleet, router, bound, ready.set, stop, secured=secured, tls=tls, ask=ask)
        ),
        name="test-fleet",
    )
    router.start()
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield served
    finally:
        aio.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        router.stop()
        bound.close()
        journal.close()
        aio.run_until_complete(aio.shutdown_default_executor())
        aio.close()
