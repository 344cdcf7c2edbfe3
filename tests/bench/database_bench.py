"""The journal on SQLite and on a PostgreSQL server of this machine, in turns: submissions that are durable when they
are answered, one at a time and in batches, beside a bare commit of as many bytes to the same database; and how long it
takes until a standby takes work when the engine is killed.

    python tests/bench/run.py databases
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.control import Engine
from tests.support import postgres
from tests.support.cells import small_cell, submit, workload

SUPPORT = Path(__file__).parents[1] / "support"
ROUNDS = 5
EACH_S = 1.0
BATCH = 100
BYTES = 200
"""Of a bare commit: about what one submission is in the journal."""
TAKEOVERS = 5


def databases() -> Iterator[dict[str, object]]:
    if why := postgres.why_not():
        yield {"at": "PostgreSQL", "result": "left out", "reference": why}
        return
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder, contextlib.closing(postgres.Server()) as server:
        for at, batch in (("one at a time", 1), (f"{BATCH} at a time", BATCH)):
            yield from _rates(at, batch, Path(folder), server)
        yield from _takeovers(Path(folder), server)


def _rates(at: str, batch: int, folder: Path, server: postgres.Server) -> Iterator[dict[str, object]]:
    engines = {
        "SQLite": Engine.open(folder / f"{batch}.db", cell=small_cell()),
        "PostgreSQL": Engine.open(server.cell(), cell=small_cell()),
    }
    bare = {"SQLite": _bare_sqlite(folder / f"bare-{batch}.db"), "PostgreSQL": _bare_postgres(server)}
    rates: dict[str, list[float]] = {f"{kind} {name}": [] for name in engines for kind in ("engine", "bare")}
    waits: dict[str, list[float]] = {name: [] for name in engines}
    number = 0
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            end = time.perf_counter() + EACH_S
            turns = 0
            while (began := time.perf_counter()) < end:
                number += 1
                engine.command(submit(*(workload(f"w{number}-{i}", gpu=1000) for i in range(batch))))
                waits[name].append(time.perf_counter() - began)
                turns += 1
            rates[f"engine {name}"].append(turns * batch / EACH_S)
            rates[f"bare {name}"].append(_rate(bare[name]))
    for name, engine in engines.items():
        engine.close()
        p99_ms = statistics.quantiles(waits[name], n=100)[98] * 1000
        of_bare = statistics.median(rates[f"bare {name}"])
        yield {
            "at": f"{name}, {at}",
            "result": f"{statistics.median(rates[f'engine {name}']):,.0f}/s, p99 {p99_ms:.1f} ms",
            "reference": f"{of_bare:,.0f} bare commits/s",
        }


def _rate(commit: Callable[[], None]) -> float:
    end, count = time.perf_counter() + EACH_S / 2, 0
    while time.perf_counter() < end:
        commit()
        count += 1
    return count / (EACH_S / 2)


def _bare_sqlite(path: Path) -> Callable[[], None]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE bare (body BLOB)")
    return lambda: connection.execute("INSERT INTO bare VALUES (zeroblob(?))", (BYTES,)) and None


def _bare_postgres(server: postgres.Server) -> Callable[[], None]:
    import psycopg

    connection = psycopg.connect(server.url(), autocommit=True)
    connection.execute("CREATE TABLE IF NOT EXISTS bare (body bytea)")
    body = bytes(BYTES)
    return lambda: connection.execute("INSERT INTO bare VALUES (%s)", (body,)) and None


def _takeovers(folder: Path, server: postgres.Server) -> Iterator[dict[str, object]]:
    """From the kill to the first submission that the next engine has acknowledged."""
    sys.path.insert(0, str(SUPPORT))
    from database_chaos_worker import make_cell

    url = server.cell()
    make_cell(url)
    for at, hosts in (("on one machine", ("", "")), ("as on two machines", ("one", "two"))):
        took: list[float] = []
        told = folder / f"told-{at}"
        told.touch()
        workers: list[Any] = []
        for number in range(TAKEOVERS + 1):
            while len(workers) < 2:
                workers.append(_worker(url, told, hosts[(number + len(workers)) % 2]))
                time.sleep(4)  # begins to stand by
            _wait_for_more(told)
            began = time.perf_counter()
            workers[0].send_signal(signal.SIGKILL)
            workers.pop(0).wait()
            _wait_for_more(told)
            took.append(time.perf_counter() - began)
        for worker in workers:
            worker.kill()
            worker.wait()
        yield {
            "at": f"standby takes over, {at}",
            "result": f"{statistics.median(took):.1f} s, longest {max(took):.1f} s",
            "reference": "10 s wanted",
        }


def _worker(url: str, told: Path, host: str) -> subprocess.Popen[bytes]:
    program = SUPPORT / "database_chaos_worker.py"
    roots = f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"
    return subprocess.Popen(
        [sys.executable, str(program), url, str(told), *([host] if host else [])],
        env={**os.environ, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1"},
    )


def _wait_for_more(told: Path) -> None:
    size = told.stat().st_size
    while True:
        with open(told, "rb") as file:
            file.seek(size)
            if any(line[:1] in b"SRB" for line in file.read().splitlines() if line):
                return
        time.sleep(0.01)
