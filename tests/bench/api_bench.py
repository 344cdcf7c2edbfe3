"""The HTTP control plane under load, over its Unix socket, while the engine schedules: 200 workloads a second come and
as many end, on full nodes, with a durable journal.

The server is a process of its own (`tests.support.large_cells`), and so is what loads it: raw sockets with requests
made beforehand, so that the figures are the server's and not those of an HTTP client. Both share the machine's cores.
`python tests/bench/api_bench.py --nodes 5000 --workloads 40000` for a look.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from console.client.remote import RemoteClient
from engine.model.commands import Submit
from engine.model.errors import UnreachableError
from engine.model.list_queries import Query, Term
from tests.support import large_cells

NODES, WORKLOADS, PER_S = 130_000, 1_000_000, 200
LASTS_S = 10.0
LEAD_S = 2.0
"""Of each phase, before its figures: the first who looks after a while waits for a copy of the cell, and for each kind
of window that nobody asked for lately. What they waited is told beside."""
READERS, WRITERS, FOLLOWERS = 16, 144, 200
STEADY_READS = 300
"""A second, in the phase that looks at how long each takes."""
BESIDE_READS, BESIDE_WRITES = 500, 100
"""A second, while 200 follow."""
ROWS = 60
HEAD = "HTTP/1.1\r\nHost: muster\r\nContent-Type: application/json\r\n"
Done = list[float]


class Connection:
    """One, kept open; one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, path: str) -> Connection:
        return cls(*await asyncio.open_unix_connection(path, limit=2**22))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        at = head.lower().index(b"content-length:") + 15
        size = int(head[at : head.index(b"\r", at)])
        return status, await self._reader.readexactly(size) if size else b""

    async def follow(self, request: bytes) -> asyncio.StreamReader:
        self._writer.write(request)
        await self._reader.readuntil(b"\r\n\r\n")
        return self._reader

    def close(self) -> None:
        self._writer.close()


def window(rng: random.Random) -> bytes:
    """A window as a console asks for it: some filter, some order, somewhere."""
    where = rng.choice(_FILTERS)
    sort = rng.choice(((), ("-gpu",), ("priority",), ("-submitted",), ("tenant",)))
    query = Query(kind="workloads", limit=ROWS, where=where, sort=sort, offset=rng.randrange(10) * ROWS)
    return _post("/v1/query", msgspec.json.encode(query), "Muster-At-Least: 0\r\n")


_FILTERS: tuple[tuple[Term, ...], ...] = (
    (),
    (Term("state", "=", "queued"),),
    (Term("queue", "~", "research"),),
    (Term("gpu", ">=", 8000),),
)


def detail(rng: random.Random) -> bytes:
    return f"GET /v1/workloads/{_id(rng)} {HEAD}Muster-At-Least: 0\r\n\r\n".encode()


def _id(rng: random.Random) -> str:
    return rng.choice(_IDS)


_IDS: list[str] = []


def submission(rng: random.Random, number: int) -> bytes:
    spec = large_cells.work(rng, number, runs_ms=600_000)
    spec = msgspec.structs.replace(spec, id=f"api-{number:08d}")
    return _post("/v1/command", msgspec.json.encode(Submit(workloads=(spec,))), f"Idempotency-Key: k{number}\r\n")


def _post(path: str, body: bytes, more: str = "") -> bytes:
    return f"POST {path} {HEAD}{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def closed(path: str, workers: int, make: Callable[[random.Random], bytes], lasts_s: float) -> tuple[Done, Done]:
    """Each asks the next as soon as it has an answer. Seconds of each answer, those of the lead first."""
    counted = time.perf_counter() + LEAD_S
    until = counted + lasts_s
    took, lead = Done(), Done()

    async def work(seed: int) -> None:
        rng, connection = random.Random(seed), await Connection.open(path)
        while time.perf_counter() < until:
            request = make(rng)
            begun = time.perf_counter()
            status, body = await connection.ask(request)
            assert status in (200, 503), body[:300]
            if status == 503:
                await asyncio.sleep(0.1)
            else:
                (took if begun >= counted else lead).append(time.perf_counter() - begun)
        connection.close()

    await asyncio.gather(*(work(seed) for seed in range(workers)))
    return lead, took


async def open_loop(
    path: str, workers: int, make: Callable[[random.Random], bytes], per_s: float, lasts_s: float
) -> tuple[Done, Done]:
    """So many a second, whether answers come or not: a wait for a free connection counts too."""
    connections = asyncio.Queue[Connection]()
    for _ in range(workers):
        connections.put_nowait(await Connection.open(path))
    took, lead = Done(), Done()
    rng = random.Random(3)
    begun = time.perf_counter()

    async def one(due: float) -> None:
        connection = await connections.get()
        status, body = await connection.ask(make(rng))
        connections.put_nowait(connection)
        assert status in (200, 503), body[:300]
        if status == 200:
            (took if due >= begun + LEAD_S else lead).append(time.perf_counter() - due)

    tasks = []
    for number in range(int(per_s * (LEAD_S + lasts_s))):
        due = begun + number / per_s
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    return lead, took


async def followed(path: str, lasts_s: float) -> dict[str, Any]:
    """Many streams at once, while others read and write: how often a frame comes, and how late on the last of them."""
    # A connection nobody holds is closed.
    connections = [await Connection.open(path) for _ in range(FOLLOWERS)]
    request = f"GET /v1/events?items=1 {HEAD}\r\n".encode()
    streams = await asyncio.gather(*(connection.follow(request) for connection in connections))
    arrived: dict[int, list[float]] = {}
    sizes = 0

    async def listen(stream: asyncio.StreamReader) -> None:
        nonlocal sizes
        while True:
            line = await stream.readuntil(b"\n")
            sizes += len(line)
            if line.startswith(b"id: "):
                arrived.setdefault(int(line[4:]), []).append(time.perf_counter())

    listening = [asyncio.create_task(listen(stream)) for stream in streams]
    number = itertools.count(50_000_000)
    (_, reads), (_, writes) = await asyncio.gather(
        open_loop(path, READERS, window, BESIDE_READS, lasts_s),
        open_loop(path, WRITERS, lambda rng: submission(rng, next(number)), BESIDE_WRITES, lasts_s),
    )
    await asyncio.sleep(1)
    for task in listening:
        task.cancel()
    for connection in connections:
        connection.close()
    whole = [max(times) - min(times) for times in arrived.values() if len(times) == FOLLOWERS]
    return {
        "frames": len(whole),
        "frames_per_s": len(whole) / (LEAD_S + lasts_s + 1),
        "spread_p99_ms": _ms(whole, 99),
        "mb_per_s": sizes / (LEAD_S + lasts_s + 1) / 2**20,
        "reads_p99_ms": _ms(reads, 99),
        "writes_p99_ms": _ms(writes, 99),
    }


def load(path: str, what: str, out: Any) -> None:
    """In a process of its own: one phase, and its figures to `out`."""
    rng = random.Random(int(time.time()))
    client = RemoteClient(path)
    rows = Query(kind="workloads", columns=("id",), where=(Term("state", "=", "queued"),), limit=500)
    _IDS.extend(row[0] for row in client.query(rows).rows)
    client.close()
    number = itertools.count(rng.randrange(10**6) * 50)
    phases: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "reads": lambda: closed(path, READERS, window, LASTS_S),
        "details": lambda: closed(path, READERS, detail, LASTS_S),
        "steady": lambda: open_loop(path, READERS, window, STEADY_READS, LASTS_S),
        "submissions": lambda: closed(path, WRITERS, lambda rng: submission(rng, next(number)), LASTS_S),
        "followers": lambda: followed(path, LASTS_S),
    }
    begun, cpu = time.perf_counter(), time.process_time()
    found = uvloop.run(phases[what]())
    passed = time.perf_counter() - begun
    if isinstance(found, tuple):
        lead, took = found
        found = {"asked": len(lead) + len(took), "per_s": len(took) / LASTS_S}
        found |= {"p50_ms": _ms(took, 50), "p99_ms": _ms(took, 99), "lead_p99_ms": _ms(lead, 99)}
    found["load_cores"] = (time.process_time() - cpu) / passed
    out.put(found)


def _ms(took: Sequence[float], part: int) -> float:
    return float(np.percentile(took, part)) * 1000 if took else float("nan")


PHASES = ("reads", "details", "steady", "submissions", "followers")


def api(
    nodes: int = NODES, workloads: int = WORKLOADS, per_s: int = PER_S, phases: Sequence[str] = PHASES
) -> Iterator[dict[str, Any]]:
    """Reads, submissions and streams, each alone and then together."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="mu-", dir="/tmp") as folder:
        path = Path(folder) / "e.sock"
        options = ["--nodes", str(nodes), "--workloads", str(workloads), "--per-second", str(per_s)]
        options += ["--journal", str(Path(folder) / "journal.db")]
        server = spawn.Process(target=large_cells.main, args=([str(path), *options],))
        server.start()
        try:
            _wait_for(path)
            for what in phases:
                yield _phase(spawn, str(path), what, server.pid or 0)
        finally:
            server.terminate()
            server.join()


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 400
    while True:
        client = RemoteClient(str(path))
        try:
            client.overview()
            break
        except UnreachableError:
            assert time.monotonic() < end, "no engine in time"
            time.sleep(0.1)
        finally:
            client.close()
    time.sleep(3)


def _phase(spawn: Any, path: str, what: str, pid: int) -> dict[str, Any]:
    out = spawn.SimpleQueue()
    client = RemoteClient(path)
    alone = _cores(pid, 3.0)
    before, cpu, begun = client.health(), _cpu_s(pid), time.perf_counter()
    loading = spawn.Process(target=load, args=(path, what, out))
    loading.start()
    found = out.get()
    loading.join()
    passed, after = time.perf_counter() - begun, client.health()
    client.close()
    found["engine_events_per_s"] = (after.version - before.version) / passed
    found["cell_s_per_s"] = (after.now_ms - before.now_ms) / 1000 / passed
    found["server_cores"] = (_cpu_s(pid) - cpu) / passed
    found["alone_cores"] = alone
    if "asked" in found:
        found["cpu_ms_each"] = 1000 * max(0.0, found["server_cores"] - alone) * passed / found["asked"]
    return {"at": what, "result": _worded(what, found), **found, "reference": _beside(found)}


def _worded(what: str, found: dict[str, Any]) -> str:
    if what == "followers":
        last_ms = found["spread_p99_ms"]
        return f"{FOLLOWERS} streams, {found['frames_per_s']:.1f} frames/s, the last of them after {last_ms:.0f} ms"
    return f"{found['per_s']:,.0f}/s, p50 {found['p50_ms']:.1f} p99 {found['p99_ms']:.1f} ms"


def _beside(found: dict[str, Any]) -> str:
    told = f"engine meanwhile: {found['engine_events_per_s']:,.0f} events/s, {found['cell_s_per_s']:.2f} cell s/s; "
    told += f"server {found['server_cores']:.2f} of a core ({found['alone_cores']:.2f} with nobody asking), "
    told += f"load {found['load_cores']:.2f}"
    if "lead_p99_ms" in found:
        told += f"; the first {LEAD_S:g} s, from cold, p99 {found['lead_p99_ms']:.0f} ms"
    if "cpu_ms_each" in found:
        told += f"; {found['cpu_ms_each']:.2f} ms of a core each"
    if "reads_p99_ms" in found:
        told += f"; {BESIDE_READS} reads/s p99 {found['reads_p99_ms']:.0f} ms, "
        told += f"{BESIDE_WRITES} submissions/s p99 {found['writes_p99_ms']:.0f} ms"
    return told


def _cores(pid: int, lasts_s: float) -> float:
    """Of the engine and its copies with nobody asking, as it would be beside us too."""
    before = _cpu_s(pid)
    time.sleep(lasts_s)
    return (_cpu_s(pid) - before) / lasts_s


def _cpu_s(pid: int) -> float:
    """Of a process with its children, those that have ended too."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        listed = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return 0.0  # it ended meanwhile, and its parent counts it
    own = sum(int(field) for field in fields[11:15]) / 100
    return own + sum(_cpu_s(int(child)) for children in listed for child in children.split())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--workloads", type=int, default=WORKLOADS)
    parser.add_argument("--per-second", type=int, default=PER_S)
    parser.add_argument("--only", choices=PHASES, nargs="+", default=PHASES, help="these phases")
    options = parser.parse_args()
    for row in api(options.nodes, options.workloads, options.per_second, options.only):
        print(f"{row['at']:14}{row['result']}\n  {row['reference']}", flush=True)
