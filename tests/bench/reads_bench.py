"""What the console reads, over the Unix socket, while the engine schedules: how long each kind of question takes.

The server is a process of its own over a cell whose nodes are full (`tests.support.large_cells`); 200 workloads a
second come and as many end. Beside it, in the same run, the same questions to an engine that has nothing to do.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engine_bench
import numpy as np
import victims_bench

from console.cli import demo_cell
from console.client.remote import RemoteClient
from engine import loop as engine_loop
from engine.control import Engine
from engine.loop import EngineLoop, Feed
from engine.model.commands import Submit
from engine.model.list_queries import Query, Term
from tests.support import large_cells

SIZES = ((5_000, 40_000), (50_000, 400_000), (130_000, 1_000_000))
ASKED = 100
"""Times of each kind."""
BETWEEN_S = 0.03
"""Between two questions, as of somebody who types fast."""
WARM_S = 3.0
LOOKED_S = 10.0
"""Wall seconds of reads of an engine that is behind."""
ROWS = 60
Ask = Callable[[RemoteClient, random.Random], object]


def _window(**fields: Any) -> Ask:
    query = Query(kind=fields.pop("kind", "workloads"), limit=ROWS, **fields)
    return lambda client, rng: client.query(query)


def _sorted(kind: Any, *columns: str) -> Ask:
    """By one of the columns, either way, at the top."""
    return lambda client, rng: client.query(
        Query(kind=kind, limit=ROWS, sort=(rng.choice(("", "-")) + rng.choice(columns),))
    )


def _scroll(client: RemoteClient, rng: random.Random) -> object:
    total = client.query(Query(kind="workloads", limit=0)).total
    return client.query(Query(kind="workloads", limit=ROWS, offset=rng.randrange(total), sort=("-gpu",)))


def _of(state: str, ask: Callable[[RemoteClient, str], object]) -> Ask:
    """About one of the workloads in that state."""

    def one(client: RemoteClient, rng: random.Random) -> object:
        return ask(client, rng.choice(_ids(client, state)))

    return one


_KNOWN: dict[tuple[int, str], list[str]] = {}


def _ids(client: RemoteClient, state: str) -> list[str]:
    key = (id(client), state)
    if key not in _KNOWN:
        rows = Query(kind="workloads", columns=("id",), where=(Term("state", "=", state),), limit=500)
        _KNOWN[key] = [row[0] for row in client.query(rows).rows]
    return _KNOWN[key]


NUMBERS = ("gpu", "cpu", "wait", "age", "run", "submitted", "started", "cost", "priority", "tasks", "attempts")
KINDS: dict[str, Ask] = {
    "window, scrolled, sorted": _scroll,
    "window, top": _window(),
    "sorted by a number": _sorted("workloads", *NUMBERS),
    "sorted by a name of few": _sorted("workloads", "state", "queue", "tenant", "team"),
    "sorted by id or name": _sorted("workloads", "id", "name"),
    "sorted by reason": _sorted("workloads", "reason"),
    "filter state and queue": _window(where=(Term("state", "=", "queued"), Term("queue", "~", "research"))),
    "filter numbers, sorted": _window(where=(Term("gpu", ">=", 8000), Term("age", ">", 1000)), sort=("-wait",)),
    "filter reason": _window(where=(Term("reason", "=", "InsufficientCapacity"),)),
    "name contains, few": lambda client, rng: client.query(
        Query(kind="workloads", limit=ROWS, where=(Term("text", "~", f"-{rng.randrange(16**4):04x}"),))
    ),
    "name contains, many": lambda client, rng: client.query(
        Query(kind="workloads", limit=ROWS, where=(Term("text", "~", rng.choice(("e", "tr", "vis", "eval"))),))
    ),
    "nodes, sorted": _sorted("nodes", "use", "gpu_free", "workloads", "id", "rack", "cpu_free"),
    "nodes, filter": _window(kind="nodes", where=(Term("gpu_free", ">", 0), Term("state", "=", "ready"))),
    "queues": _window(kind="queues"),
    "a waiting workload": _of("queued", lambda client, name: client.workload(name)),
    "a running workload": _of("running", lambda client, name: client.workload(name)),
    "a node": lambda client, rng: client.node(f"h100-{rng.randrange(30):06d}"),
    "a queue": lambda client, rng: client.queue("research/vision"),
    "overview": lambda client, rng: client.overview(),
    "changes": lambda client, rng: client.changes(max(0, client.health().version - 200), 0),
    "health": lambda client, rng: client.health(),
}


def reads() -> Iterator[dict[str, Any]]:
    """Each kind of question at each size, with the engine busy and without work."""
    for nodes, workloads in SIZES:
        idle, _ = _measured(nodes, workloads, 0)
        busy, told = _measured(nodes, workloads, 200)
        for kind in KINDS:
            at, alone = busy[kind], idle[kind]
            yield {
                "at": f"{nodes:,} nodes, {workloads:,} workloads, {kind}",
                "result": f"p50 {at[0]:.1f} p99 {at[1]:.1f} ms",
                "p50_ms": at[0],
                "p99_ms": at[1],
                "idle_p50_ms": alone[0],
                "idle_p99_ms": alone[1],
                "reference": f"idle engine: p50 {alone[0]:.1f} p99 {alone[1]:.1f} ms",
            }
        yield told


def _measured(nodes: int, workloads: int, per_s: int) -> tuple[dict[str, tuple[float, float]], dict[str, Any]]:
    """(kind -> p50 and p99 in ms, how the engine did meanwhile)"""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="mu-") as folder:
        path = Path(folder) / "e.sock"
        server = spawn.Process(target=large_cells.main, args=([str(path), *_options(nodes, workloads, per_s)],))
        server.start()
        try:
            client = _connected(path)
            found = _asked(client)
            before, begun, cpu = client.overview(), time.perf_counter(), _cpu_s(server.pid or 0)
            for _ in range(10):
                time.sleep(0.5)
                client.query(Query(kind="workloads", limit=ROWS))
            after, passed = client.overview(), time.perf_counter() - begun
            told = {
                "at": f"{nodes:,} nodes, {workloads:,} workloads, looked at twice a second",
                "result": f"{(after.version - before.version) / passed:,.0f} events/s",
                "events_per_s": (after.version - before.version) / passed,
                "cell_s_per_s": (after.now_ms - before.now_ms) / 1000 / passed,
                "rss_mb": _rss_mb(server.pid or 0),
                "cores": (_cpu_s(server.pid or 0) - cpu) / passed,
                "reference": f"{(after.now_ms - before.now_ms) / 1000 / passed:.2f} cell seconds a second, "
                f"{(_cpu_s(server.pid or 0) - cpu) / passed:.2f} of a core, {_rss_mb(server.pid or 0):,.0f} MB",
            }
            client.close()
            return found, told
        finally:
            server.terminate()
            server.join()


def _options(nodes: int, workloads: int, per_s: int) -> list[str]:
    return ["--nodes", str(nodes), "--workloads", str(workloads), "--per-second", str(per_s)]


def _connected(path: Path) -> RemoteClient:
    end = time.monotonic() + 300
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)
    client = RemoteClient(str(path))
    client.overview()
    time.sleep(WARM_S)
    return client


def _asked(client: RemoteClient) -> dict[str, tuple[float, float]]:
    rng = random.Random(4)
    found = {}
    for kind, ask in KINDS.items():
        ask(client, rng)
        took = []
        for _ in range(ASKED):
            begun = time.perf_counter()
            ask(client, rng)
            took.append((time.perf_counter() - begun) * 1000)
            time.sleep(BETWEEN_S)
        found[kind] = (float(np.percentile(took, 50)), float(np.percentile(took, 99)))
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def behind() -> Iterator[dict[str, Any]]:
    """How long a read waits for the engine's thread, in CPU time of that thread, where time runs faster than the engine
    can decide. Beside it, in the same run, with turns as long as what is due takes."""
    for name, build, speed in (
        ("20 nodes under the load of 80, speed 40", _crowded, 40.0),
        ("20 nodes under the load of 80, speed 4,000", _crowded, 4000.0),
        ("5,000 nodes, 11,000 waiting, speed 40", _backlog, 40.0),
    ):
        sliced = _waits_ms(*build(), speed)
        kept, engine_loop.MAX_TURN_S = engine_loop.MAX_TURN_S, float("inf")
        whole = _waits_ms(*build(), speed)
        engine_loop.MAX_TURN_S = kept
        yield {
            "at": name,
            "result": f"p50 {np.median(sliced):.0f} longest {max(sliced):.0f} ms CPU",
            "p50_ms": float(np.median(sliced)),
            "longest_ms": max(sliced),
            "whole_longest_ms": max(whole),
            "reference": f"{len(sliced)} reads; without slices p50 {np.median(whole):.0f} longest {max(whole):.0f} ms, "
            f"{len(whole)} reads",
        }


def _crowded() -> tuple[Engine, Feed]:
    engine = Engine.open(None, cell=demo_cell.cell(victims_bench.CROWDED), seed=7)
    feed = victims_bench.crowded_day()
    engine.advance(demo_cell.START_MS)
    for at_ms, spec in feed:
        if at_ms > demo_cell.START_MS + victims_bench.CROWDED_MS:
            break
        engine.advance(at_ms)
        engine.commands([Submit(workloads=(spec,))])
    return engine, feed


def _backlog() -> tuple[Engine, Feed]:
    """Work that came ten times as fast as it could start, and goes on coming."""
    engine, rng = Engine.open(None, cell=engine_bench.cell(5000)), random.Random(1)
    groups = [(engine_bench.TaskGroup(request=request),) for request in engine_bench.requests(rng, 64)]
    for n in range(25):
        engine.command(Submit(workloads=engine_bench.singles(rng, f"w{n}", 1000, groups)))
        engine.advance(engine.now_ms + 100)
    more = engine_bench.singles(rng, "more", 100_000, groups)
    return engine, ((engine.now_ms + i, spec) for i, spec in enumerate(more))


def _waits_ms(engine: Engine, feed: Feed, speed: float) -> list[float]:
    """CPU time of the engine's thread between a question and its answer, for LOOKED_S of asking."""
    loop = EngineLoop(engine, speed=speed, feed=feed)
    loop.start()
    clock = time.pthread_getcpuclockid(loop.call(lambda _: threading.get_ident()))
    waits: list[float] = []
    until = time.monotonic() + LOOKED_S
    while time.monotonic() < until:
        asked = time.clock_gettime(clock)
        answered = loop.post(lambda asked_engine: (asked_engine.overview(), time.thread_time())[1]).result()
        waits.append((answered - asked) * 1000)
        time.sleep(BETWEEN_S)
    loop.stop()
    return waits
