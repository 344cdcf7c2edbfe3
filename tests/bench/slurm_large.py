"""A mirror of very many jobs in one answer: `slurm_large.py [--jobs 100000] [--version v0.0.42]`.

Slurm is made up (`tests/support/large_slurm.py`, a process of its own) and answers with entries of the recorded size;
the mirror, the engine with a durable journal and whoever asks it are one process, as with `muster serve`. Prints one
JSON row for each look: how long it took, how long the engine let others wait meanwhile, and memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.control import Engine
from engine.external.slurm.connection import SlurmConnection
from engine.external.slurm.mirror_passes import Mirror
from engine.loop import EngineLoop
from engine.model.commands import Define
from engine.model.list_queries import Query
from engine.model.specs import CellSpec, Settings

Row = dict[str, object]
PLAYER = Path(__file__).resolve().parents[1] / "support" / "large_slurm.py"
WINDOWS = (("-submitted",), ("wait",), ("-cpu",), ("queue", "-priority"))


class Waits:
    """How long the engine lets a question wait that costs nothing, asked every 20 ms."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self.found_ms: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.02):
            asked = time.monotonic()
            self._loop.call(lambda _: None)
            self.found_ms.append((time.monotonic() - asked) * 1000)

    def stop(self) -> Row:
        self._ends.set()
        self._thread.join()
        found = sorted(self.found_ms)
        return {
            "waited_p50_ms": round(found[len(found) // 2], 1),
            "waited_p99_ms": round(found[len(found) * 99 // 100]),
            "waited_most_ms": round(found[-1]),
        }


@contextmanager
def played(version: str, jobs: int) -> Iterator[str]:
    player = subprocess.Popen(
        [sys.executable, str(PLAYER), version, str(jobs)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert player.stdout is not None
    try:
        yield player.stdout.readline().strip()
    finally:
        player.communicate(timeout=60)


def looks(version: str, jobs: int, url: str) -> Iterator[Row]:
    before = memory_mb()
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.open(Path(folder) / "journal.db")
        engine.advance(int(time.time() * 1000))
        engine.command(Define(cell=CellSpec(name="bench", settings=Settings(decided_by="slurm", preempt_across=True))))
        loop = EngineLoop(engine)
        loop.start()
        connection = SlurmConnection(url, commands="/nowhere")
        mirror = Mirror(connection, loop.call)
        try:
            for what in ("first look", "the same again", "the same again"):
                waits, began, cpu = Waits(loop), time.monotonic(), time.process_time()
                looked = mirror.look(whole=False)
                seconds = time.monotonic() - began
                now, most = memory_mb()
                yield {
                    "figure": what, "version": version, "jobs": looked.jobs, "look_s": round(seconds, 2),
                    "of_which_slurm_s": round(looked.asked_s, 2), "told": looked.changed,
                    "cpu_s": round(time.process_time() - cpu, 2), **waits.stop(),
                    "memory_mb": now, "memory_most_mb": most, "memory_before_mb": before[0],
                }  # fmt: skip
            if version != "v0.0.38":
                waits, began = Waits(loop), time.monotonic()
                looked_again = mirror.glance()
                yield {"figure": "a glance at states", "version": version, "jobs": jobs,
                       "look_s": round(time.monotonic() - began, 2), "all_moved": looked_again is None,
                       **waits.stop()}  # fmt: skip
            for sort in WINDOWS:
                query = Query(kind="workloads", columns=("id", "name", "state", "queue", "reason"), sort=sort, limit=60)
                took = []
                for _ in range(3):
                    began = time.monotonic()
                    page = loop.call(lambda engine, query=query: engine.query(query))
                    took.append(round((time.monotonic() - began) * 1000, 1))
                yield {"figure": f"window sorted by {', '.join(sort)}", "version": version, "rows": len(page.rows),
                       "of": page.matched, "ms": took}  # fmt: skip
        finally:
            connection.close()
            loop.stop()
            engine.close()


def memory_mb() -> tuple[int, int]:
    """(now, the most so far) of this process."""
    status = Path("/proc/self/status").read_text()
    now = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    return now >> 10, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--jobs", type=int, default=100_000)
    reader.add_argument("--version", choices=("v0.0.38", "v0.0.42"), default="v0.0.42")
    asked = reader.parse_args()
    with played(asked.version, asked.jobs) as url:
        for row in looks(asked.version, asked.jobs, url):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
