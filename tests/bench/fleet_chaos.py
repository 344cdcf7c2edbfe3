"""A fleet over real engine processes while they are killed, stopped and started again: is any submission lost, or in
two cells?

    python -m tests.bench.fleet_chaos --jobs 400 --kills 30
    python -m tests.bench.fleet_chaos --jobs 400 --kills 30 --database postgres

Clients submit one by one and repeat a submission until it is acknowledged, as `muster fleet submit` tells people to.
Meanwhile a cell or the fleet is ended by SIGKILL, or a cell is stopped for longer than it is waited for; where the
fleet's journal is in PostgreSQL, that server too. At the end every acknowledged id must be in exactly one cell.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from console.client.remote import RemoteClient
from console.fleet.queries import FleetClient, FleetPaths, FleetView
from engine.model.errors import MusterError
from engine.model.list_queries import Query
from engine.model.specs import Resources, TaskGroup, WorkloadSpec
from tests.support import postgres

ROOT = Path(__file__).resolve().parents[2]
CELL = """\
pools:
  - {{name: gpu, nodes: {nodes}, capacity: {{cpu: 64, memory: 512GiB, gpu: 8}}, gpu_model: H100, price_usd_hour: 20}}
queues:
  - {{name: research}}
priority_classes:
  - {{name: normal, value: 500}}
"""
FLEET = """\
name: chaos
cells:
{cells}
routing: {{bind_within: 1h, bind_after: 0s, answer_within: 1500ms}}
"""
CLIENTS = 4
SETTLED_S = 90.0


class Kept:
    """A process that is started again whenever it was ended."""

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name, self._arguments, self._log = name, arguments, log
        self.process = self._start()
        self.ended = 0

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "console.cli.main", *self._arguments], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.ended += 1

    def start_again(self) -> None:
        self.process = self._start()

    def pause(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class KeptServer:
    """A PostgreSQL server of the run's own, for the fleet's journal."""

    name = "database"

    def __init__(self) -> None:
        self._server = postgres.Server()
        self.url = self._server.cell()
        self.ended = 0

    def kill(self) -> None:
        self._server.kill()
        self.ended += 1

    def start_again(self) -> None:
        self._server.start()

    def pause(self, seconds: float) -> None:
        self._server.hold()
        time.sleep(seconds)
        self._server.go_on()

    def stop(self) -> None:
        self._server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=("file", "postgres"), default="file", help="of the fleet's journal")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fc-") as folder:
        server = KeptServer() if arguments.database == "postgres" else None
        try:
            found = measured(Path(folder), arguments.jobs, arguments.kills, arguments.seed, server)
        finally:
            if server is not None:
                server.stop()
    print(json.dumps(found, indent=2))
    raise SystemExit(1 if found["lost"] or found["doubled"] else 0)


def measured(folder: Path, jobs: int, kills: int, seed: int, server: KeptServer | None = None) -> dict[str, object]:
    """What became of so many submissions while so many processes were ended."""
    draw = random.Random(seed)
    cells = {}
    for name, nodes in (("a", 40), ("b", 40)):
        (folder / f"{name}.yaml").write_text(CELL.format(nodes=nodes))
        arguments = ["serve", "--cell", name, "--cell-file", str(folder / f"{name}.yaml"), "--approval", "solo"]
        cells[name] = Kept(name, [*arguments, "--data", str(folder / name)], folder / f"{name}.log")
    lines = "\n".join(f"  - {{name: {name}, connect: {folder / name / 'engine.sock'}}}" for name in cells)
    (folder / "fleet.yaml").write_text(FLEET.format(cells=lines))
    paths = FleetPaths(folder / "f", folder / "f/fleet.db", folder / "f/fleet.sock", folder / "f/fleet.pid")
    arguments = ["fleet", "serve", "--file", str(folder / "fleet.yaml"), "--fleet", str(paths.folder)]
    arguments += ["--database", server.url] if server is not None else []
    fleet = Kept("fleet", arguments, folder / "fleet.log")
    began = time.monotonic()
    try:
        _await(paths, _all_up, SETTLED_S)
        submitting = [
            threading.Thread(target=_submit, args=(paths, [f"j{i}" for i in range(at, jobs, CLIENTS)]))
            for at in range(CLIENTS)
        ]
        for thread in submitting:
            thread.start()
        for _ in range(kills):
            _harm(draw, cells, fleet, server)
        for thread in submitting:
            thread.join()
        took_s = time.monotonic() - began
        _await(paths, lambda view: _all_up(view) and not {"waiting", "sending"} & view.counts.keys(), SETTLED_S)
        where = {name: _ids(folder / name / "engine.sock") for name in cells}
    finally:
        for process in (fleet, *cells.values()):
            process.stop()
    ids = [f"j{i}" for i in range(jobs)]
    counts = {name: sum(name in there for there in where.values()) for name in ids}
    return {
        "submitted": jobs,
        "lost": sum(count == 0 for count in counts.values()),
        "doubled": sum(count > 1 for count in counts.values()),
        "in_cells": {name: len(there) for name, there in where.items()},
        "killed": {process.name: process.ended for process in (fleet, *cells.values(), *([server] if server else []))},
        "seconds": round(took_s, 1),
        "settled_after_seconds": round(time.monotonic() - began - took_s, 1),
    }


def _harm(draw: random.Random, cells: dict[str, Kept], fleet: Kept, server: KeptServer | None) -> None:
    """Ends one process at a random moment, or stops a cell or the server for a while."""
    time.sleep(draw.uniform(0.3, 1.5))
    victim = draw.choice([fleet, *cells.values(), *cells.values(), *([server] * 2 if server else [])])
    if victim is not fleet and draw.random() < 0.25:
        victim.pause(draw.uniform(2.0, 4.0))
        return
    victim.kill()
    time.sleep(draw.uniform(0.0, 2.0))
    victim.start_again()


def _submit(paths: FleetPaths, ids: list[str]) -> None:
    """Each until it is acknowledged."""
    request = Resources(cpu_milli=1000, gpu_milli=1000)
    for name in ids:
        spec = WorkloadSpec(id=name, queue="research", groups=(TaskGroup(request=request),), estimate_ms=86_400_000)
        while True:
            try:
                with closing(_client(paths)) as client:
                    client.submit([spec])
                break
            except MusterError:
                time.sleep(0.2)


def _client(paths: FleetPaths) -> FleetClient:
    return FleetClient(paths.socket, patience_s=20)


def _all_up(view: FleetView) -> bool:
    return all(cell.state == "up" for cell in view.cells)


def _ids(where: Path) -> set[str]:
    with closing(RemoteClient(str(where))) as client:
        rows = client.query(Query(kind="workloads", columns=("id",), limit=10_000)).rows
    return {row[0] for row in rows}


def _await(paths: FleetPaths, done: Callable[[FleetView], bool], within_s: float) -> None:
    """Raises TimeoutError telling what is left."""
    until = time.monotonic() + within_s
    told = "the fleet did not answer"
    while time.monotonic() < until:
        with suppress(MusterError), closing(_client(paths)) as client:
            view = client.view()
            if done(view):
                return
            left = [f"{each.id}: {each.why}" for each in client.page(("waiting", "sending"), 0, 3).items]
            told = "; ".join(
                [str(view.counts), *(f"{cell.name} {cell.state} {cell.why}" for cell in view.cells), *left]
            )
        time.sleep(0.2)
    raise TimeoutError(f"the fleet did not settle: {told}")


if __name__ == "__main__":
    main()
