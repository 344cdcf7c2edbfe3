"""Leases of 130,000 nodes over a real socket while work is being decided: what they cost the engine's process.

The server runs in a process of its own, with a journal, fed with workloads at a steady rate. Once nobody calls, once
agents of all nodes do, in batches as a relay of so many nodes would send them; the difference in CPU seconds of that
process is what heartbeats cost.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import multiprocessing
import os
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import engine_bench
import msgspec
import numpy as np

from console.client.remote import RemoteClient
from console.client.sockets import bind_unix
from console.server.engine_process import new_event_loop, run_server
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.list_queries import Query, Term
from engine.model.specs import TaskGroup, WorkloadSpec
from tests.support.gates import gate_of

SIZE = 130_000
EVERY_S = 10
STARTS = 500
"""Workloads a second that come, run 20 s, and end."""
COME_EVERY_MS = 100
"""Between submissions, as of clients that send what they have ten times a second."""
SECONDS = int(os.environ.get("MUSTER_BENCH_SECONDS", "60"))
WARM_S = 5
BUDGET = 0.5
"""Of a core."""
_SUSPECTS = Query(kind="nodes", columns=("id",), where=(Term("state", "=", "suspect"),), limit=1)


def heartbeats() -> Iterator[dict[str, Any]]:
    """CPU of the server for 13,000 leases a second, in batches of 1,000 and of 100."""
    alone = _run(0)
    for batch in (1000, 100):
        told = _run(batch)
        cores = (told["cpu_s"] - alone["cpu_s"]) / SECONDS
        yield {
            "at": f"{SIZE:,} nodes, {told['leases_s']:,.0f} leases/s in batches of {batch:,}, {SECONDS} s",
            "result": f"{cores:.3f} of a core",
            "cores": cores,
            "of_budget": cores / BUDGET,
            **{f"with_{name}": value for name, value in told.items()},
            **{f"without_{name}": value for name, value in alone.items()},
            "reference": f"{cores / BUDGET:.2f} of the budget, {BUDGET} of a core; the server took "
            f"{told['cpu_s'] / SECONDS:.2f} of a core with them at {told['starts_s']:,.0f} starts/s, "
            f"{alone['cpu_s'] / SECONDS:.2f} without at {alone['starts_s']:,.0f}; "
            f"answers p50 {told['p50_ms']:.1f} ms, p99 {told['p99_ms']:.1f} ms; {told['suspect']:.0f} suspect",
        }


def _run(batch: int) -> dict[str, float]:
    """One server, its CPU seconds in the measured time, and what was done in it. `batch` 0: nobody calls."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="mu-") as folder:
        path = Path(folder) / "engine.sock"
        ready = spawn.Event()
        server = spawn.Process(target=_serve, args=(path, ready), daemon=True)
        server.start()
        try:
            assert ready.wait(120)
            assert server.pid is not None
            return _measure(path, server.pid, batch)
        finally:
            server.terminate()
            server.join()


def _serve(path: Path, ready: Any) -> None:
    engine = Engine.open(path.with_name("journal.db"), cell=engine_bench.cell(SIZE))
    loop = EngineLoop(engine, feed=_feed())
    client = LocalClient(loop, gate_of(engine), Advisor(loop), name="bench")
    loop.start()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run_server(client, loop, [bind_unix(path)], ready.set))


def _feed() -> Iterator[tuple[int, WorkloadSpec]]:
    rng = random.Random(1)
    groups = [(TaskGroup(request=request),) for request in engine_bench.requests(rng, 64)]
    for i in itertools.count():
        spec = WorkloadSpec(
            id=f"w{i}",
            queue=f"q{i % 10}",
            groups=groups[rng.randrange(len(groups))],
            estimate_ms=60_000,
            simulated_runtime_ms=20_000,
        )
        yield i * 1000 // STARTS // COME_EVERY_MS * COME_EVERY_MS, spec


def _measure(path: Path, pid: int, batch: int) -> dict[str, float]:
    client = RemoteClient(str(path))
    relay = _Relay(path, batch) if batch else None
    _until(time.perf_counter() + WARM_S, relay)
    before, cpu, begun = client.overview(), _cpu_s(pid), time.perf_counter()
    leases, took = _until(begun + SECONDS, relay)
    passed, cpu = time.perf_counter() - begun, _cpu_s(pid) - cpu
    after = client.overview()
    suspects = client.query(_SUSPECTS).matched
    client.close()
    started = sum(after.states[s] - before.states[s] for s in ("running", "finished"))
    return {
        "cpu_s": cpu * SECONDS / passed,
        "leases_s": leases / passed,
        "starts_s": started / passed,
        "p50_ms": float(np.percentile(took, 50)) if took else 0.0,
        "p99_ms": float(np.percentile(took, 99)) if took else 0.0,
        "suspect": suspects,
    }


def _until(end: float, relay: _Relay | None) -> tuple[int, list[float]]:
    """Send batches at their times until then. Returns leases renewed, and milliseconds until each answer."""
    if relay is None:
        time.sleep(max(end - time.perf_counter(), 0))
        return 0, []
    renewed, took = 0, []
    pause = EVERY_S * relay.batch / SIZE
    due = time.perf_counter()
    while due < end:
        time.sleep(max(due - time.perf_counter(), 0))
        sent = time.perf_counter()
        renewed += relay.send()
        took.append((time.perf_counter() - sent) * 1000)
        due += pause
    return renewed, took


class _Relay:
    """Calls for all nodes, a batch of them after the other."""

    def __init__(self, path: Path, batch: int) -> None:
        self.batch = batch
        self._http = _Connection(path)
        names = list(engine_bench.cell(SIZE).nodes)
        answer = self._post("register", {"nodes": [node.id for node in names]})
        self._rows = np.array(answer["rows"], np.int32)
        self._epochs = np.array(answer["epochs"], np.int32)
        self._number = 0
        self._at = 0
        assert len(self._rows) == SIZE

    def send(self) -> int:
        if self._at == 0:
            self._number += 1
        part = slice(self._at, self._at + self.batch)
        self._at = 0 if part.stop >= SIZE else part.stop
        rows = self._rows[part]
        now_ms = time.time_ns() // 1_000_000
        answer = self._post(
            "heartbeats",
            {
                "rows": rows.tobytes(),
                "epochs": self._epochs[part].tobytes(),
                "numbers": np.full(len(rows), self._number, np.int32).tobytes(),
                "clocks_ms": np.full(len(rows), now_ms, np.int64).tobytes(),
            },
        )
        assert not answer["refused"]
        return int(answer["renewed"])

    def _post(self, what: str, value: object) -> Any:
        headers = {"Content-Type": "application/msgpack"}
        self._http.request("POST", f"/v1/agents/{what}", msgspec.msgpack.encode(value), headers)
        answer = self._http.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return msgspec.msgpack.decode(content)


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


def _cpu_s(pid: int) -> float:
    """User and system seconds of all threads of the process so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
