"""A cell that has gone on for a month: how long it takes to be ready again after it was killed, and what it takes on
disk and in memory.

    PYTHONPATH=$PWD python tests/bench/month_bench.py --events 10000000

Small jobs are submitted, run and end in cell time that goes by at once; a line is printed every tenth of the way.
Restarts are measured in processes of their own: CPU seconds, and seconds by the clock. The reference is what a process
takes that only opens an empty cell.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import engine_bench

from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import TaskGroup

NODES = 5_000
DAY_MS = 86_400_000
MONTH_MS = 30 * DAY_MS
BATCH = 2_000
KIND_COUNT = 64
EVENTS_EACH = 5
"""Of a job, from its submission to its end."""
OPEN = """
import json, os, sys, time
from pathlib import Path
from engine.control import Engine
begun, used = time.perf_counter(), time.process_time()
engine = Engine.open(Path(sys.argv[1]))
told = {"s": time.perf_counter() - begun, "cpu_s": time.process_time() - used, "version": engine.version}
told["mib"] = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
told["digest"] = engine.state.digest()
engine._journal.close()
print(json.dumps(told))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument(
        "--keep", type=float, default=0, metavar="DAYS", help="events are kept for so long; 0: for ever"
    )
    parser.add_argument("--folder", help="keep the journal there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-month-") as made:
        path = Path(given.folder or made, "journal.db")
        digest = _live(path, given.events, int(given.keep * DAY_MS))
        print(
            f"{sum(each.stat().st_size for each in path.parent.glob('journal.db*')) / 2**20:,.0f} MiB on disk",
            flush=True,
        )
        found = _reopened(path)
        assert found["digest"] == digest, "another state"
        empty = _reopened(Path(made, "empty.db"))
        print(
            f"ready after a kill: {found['cpu_s']:.2f} CPU s, {found['s']:.2f} s, {found['mib']:.0f} MiB; an empty cell"
            f" {empty['cpu_s']:.2f} CPU s, {empty['s']:.2f} s, {empty['mib']:.0f} MiB"
        )


def _live(path: Path, events: int, keep_ms: int) -> str:
    """Live for so many events, end without a snapshot, and return the digest of the state."""
    engine = Engine.open(path, cell=engine_bench.cell(NODES), keep_ms=keep_ms)
    rng = random.Random(2)
    groups = [(TaskGroup(request=request),) for request in engine_bench.requests(rng, KIND_COUNT)]
    step_ms = MONTH_MS * BATCH * EVENTS_EACH // events
    told, begun, number = 0, time.process_time(), 0
    while engine.version < events:
        engine.command(Submit(workloads=engine_bench.singles(rng, f"w{number}", BATCH, groups)))
        engine.advance(engine.now_ms + step_ms)
        number += 1
        if engine.version >= told:
            _tell(engine, path, number * BATCH, time.process_time() - begun)
            told += events // 10
    digest = engine.state.digest()
    engine._journal.close()
    return digest


def _tell(engine: Engine, path: Path, jobs: int, cpu_s: float) -> None:
    disk = sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    print(
        f"{engine.version:>12,} events {jobs:>10,} jobs  day {engine.now_ms / DAY_MS:5.1f}  "
        f"disk {disk / 2**20:7.0f} MiB  memory {memory:6.0f} MiB  {cpu_s:7.1f} CPU s",
        flush=True,
    )


def _reopened(path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", OPEN, str(path)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
