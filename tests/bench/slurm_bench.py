"""What a mirror costs, measured on a real cluster on loopback: `slurm_bench.py --shared ../shared [--jobs 10000]
[--release host|trixie]`.

Prints one JSON row for each figure: the bare list of jobs (one GET by httpx, and json.loads) beside a whole look of the
mirror at the same jobs, in turns; how long after Slurm a change is in the cell; what slurmctld had to do (`sdiag`
before and after) and how much memory slurmrestd has; with `--starts N`, when N waiting jobs started beside what
`squeue --start` and the twin had said; with `--console ROUNDS`, how soon a change is on the screen of a console.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.control import Engine
from engine.external.slurm.connection import SlurmConnection
from engine.external.slurm.mirror_passes import Mirror
from engine.external.slurm.mirror_watch import Watcher
from engine.external.slurm.records import JobRequest
from engine.loop import EngineLoop
from engine.model.commands import Define
from engine.model.errors import RefusedError
from engine.model.specs import CellSpec, Settings
from engine.model.twin_queries import AskStart, StartEstimate
from tests.bench.slurm_console import screen

Row = dict[str, object]
ROUNDS = 3
FRESH = 12


class Loopback:
    """A cluster that `slurm-up` started."""

    def __init__(self, shared: Path, folder: Path, release: str, port: int, more: list[str]) -> None:
        self.folder = folder
        up = [
            "bash",
            str(shared / "slurm" / "slurm-up"),
            "--release",
            release,
            "--port",
            str(port),
            *more,
            str(folder),
        ]
        line = subprocess.run(up, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
        told = dict(word.split("=", 1) for word in line.split() if "=" in word)
        self.socket, self.version = told["unix"], told["version"]
        self.api = told["api"].split(",")[-1]
        self._down = ["bash", str(shared / "slurm" / "slurm-down"), "--wipe", str(folder)]

    def stop(self) -> None:
        subprocess.run(self._down, check=False, capture_output=True)

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [str(self.folder / "bin" / words[0]), *words[1:]], check=True, capture_output=True, text=True
        )
        return done.stdout

    def submit(self, *flags: str, sleep: str = "600") -> int:
        return int(
            self.run("sbatch", "--parsable", "-o", "/dev/null", *flags, "--wrap", f"sleep {sleep}").split(";")[0]
        )

    def memory_mb(self) -> float:
        """Of all slurmrestd of this folder."""
        found = 0
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                command = (status.parent / "cmdline").read_bytes().decode(errors="replace")
                if (
                    "slurmrestd" in command
                    and str(self.folder) in (status.parent / "environ").read_bytes().decode(errors="replace") + command
                ):
                    found += int(next(x for x in status.read_text().splitlines() if x.startswith("VmRSS")).split()[1])
            except (OSError, StopIteration):
                continue
        return round(found / 1024, 1)


@contextmanager
def mirrored(cluster: Loopback) -> Iterator[tuple[EngineLoop, SlurmConnection, Mirror]]:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as after:
        engine = Engine.open(Path(folder) / "journal.db")
        after.callback(engine.close)
        engine.advance(int(time.time() * 1000))
        engine.command(Define(cell=CellSpec(name="bench", settings=Settings(decided_by="slurm", preempt_across=True))))
        loop = EngineLoop(engine)
        loop.start()
        after.callback(loop.stop)
        connection = SlurmConnection(cluster.socket, commands=cluster.folder / "bin")
        after.callback(connection.close)
        yield loop, connection, Mirror(connection, loop.call)


def fill(cluster: Loopback, jobs: int) -> None:
    """That many jobs that wait, as single ones of several shapes: not as an array, which would be one record."""
    connection = SlurmConnection(cluster.socket)

    def submit(n: int) -> int:
        wish = JobRequest(
            name=f"job-{n}", script="#!/bin/sh\nsleep 1\n", cpus_per_task=n % 4 + 1, time_limit_s=60 * (n % 9 + 1),
            held=True,
        )  # fmt: skip
        return connection.submit(wish).id

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(submit, range(jobs)))) == jobs
    connection.close()


def bare(cluster: Loopback) -> tuple[float, float]:
    """(seconds of the GET, seconds with json.loads)"""
    with httpx.Client(transport=httpx.HTTPTransport(uds=cluster.socket), timeout=120) as client:
        began = time.monotonic()
        body = client.get(f"http://slurm/slurm/{cluster.api}/jobs").content
        got = time.monotonic() - began
        json.loads(body)
        return got, time.monotonic() - began


def whole_list(cluster: Loopback, jobs: int) -> Iterator[Row]:
    gets, reads, looks, parts = [], [], [], []
    for _ in range(ROUNDS):
        got, read = bare(cluster)
        gets.append(got)
        reads.append(read)
        with mirrored(cluster) as (_, _, mirror):
            began = time.monotonic()
            looked = mirror.look()
            looks.append(time.monotonic() - began)
            parts.append((looked.asked_s, looked.told_s))
            assert looked.jobs >= jobs
    yield {
        "figure": "first look beside the bare list call",
        "jobs": jobs,
        "release": cluster.version,
        "get_s": round(statistics.median(gets), 3),
        "get_and_json_s": round(statistics.median(reads), 3),
        "look_s": round(statistics.median(looks), 3),
        "of_which_slurm_s": round(statistics.median(asked for asked, _ in parts), 3),
        "times_the_get": round(statistics.median(looks) / statistics.median(gets), 2),
        "times_get_and_json": round(statistics.median(looks) / statistics.median(reads), 2),
        "slurmrestd_mb": cluster.memory_mb(),
    }


def freshness(cluster: Loopback, jobs: int) -> Iterator[Row]:
    """How long after Slurm shows it a change is in the cell, while the watcher follows."""
    with mirrored(cluster) as (loop, connection, mirror):
        before = _rpcs(connection)
        began = time.monotonic()
        watcher = Watcher(connection, mirror, where=cluster.socket)
        watcher.start()
        _until(lambda: watcher.report().state == "following", 60)
        delays: list[float] = []
        for n in range(FRESH):
            name = str(cluster.submit("-t", "5", "-c", "1", sleep="1"))
            shown = time.monotonic()
            _until(lambda name=name: loop.call(lambda engine: name in engine.state.workloads.row_of), 60)
            delays.append(time.monotonic() - shown)
            time.sleep(0.37 * (n % 5))
        seconds = time.monotonic() - began
        watcher.stop()
        after = _rpcs(connection)
        yield {
            "figure": "a new job in the cell after sbatch returned",
            "jobs": jobs,
            "release": cluster.version,
            "p50_s": round(statistics.median(delays), 2),
            "most_s": round(max(delays), 2),
            "asked_every_s": round(watcher.report().every_s, 1),
            "requests_to_slurmctld_a_second": round((after[0] - before[0]) / seconds, 1),
            "slurmctld_busy_with_them": f"{(after[1] - before[1]) / 1e6 / seconds:.1%}",
            "slurmrestd_mb": cluster.memory_mb(),
        }


def _rpcs(connection: SlurmConnection) -> tuple[int, int]:
    """(requests that slurmctld answered to this user, microseconds they took)"""
    found = connection.diag().rpcs_by_user
    return sum(each.count for each in found), sum(each.total_us for each in found)


def starts(cluster: Loopback, count: int) -> Iterator[Row]:
    """Jobs whose run times are a tenth to all of their limits wait for a few nodes: what was said of their starts, when
    all were there, beside when they started."""
    with mirrored(cluster) as (loop, connection, mirror):
        watcher = Watcher(connection, mirror, where=cluster.socket)
        watcher.start()
        for n in range(count * 4):
            cluster.submit("-N", str(n % 3 + 1), "-c", "64", "--exclusive", "-t", "2", sleep=str(8 + 7 * (n * 5 % 4)))
        time.sleep(20)
        waiting = [job for job in connection.jobs().list if job.state == "PENDING"]
        asked_s = time.time()
        planned = {job.id: job.start_s for job in connection.jobs().list if job.state == "PENDING"}
        told: dict[int, tuple[int | None, int | None, int | None]] = {}
        for job in waiting[-count:]:
            ask = AskStart(id=str(job.id), seeds=10, arrivals=False, horizon_ms=3_600_000)
            try:
                run = loop.call(lambda _, ask=ask: loop.twins.start(ask))
            except RefusedError:
                continue  # it has started meanwhile
            while run.state == "running":
                run = loop.twins.wait(run.id, run.serial, 5)
            if isinstance(run.answer, StartEstimate) and run.answer.start is not None:
                found = run.answer.start
                told[job.id] = found.p10_ms, found.p50_ms, found.p90_ms
        rows = []
        end = time.monotonic() + 600
        started: dict[int, int] = {}
        while len(started) < len(told) and time.monotonic() < end:
            time.sleep(2)
            started = {
                job.id: job.start_s for job in connection.jobs().list if job.state != "PENDING" and job.id in told
            }
        watcher.stop()
        for job_id, start_s in sorted(started.items()):
            p10, p50, p90 = (None if at is None else at / 1000 - asked_s for at in told[job_id])
            rows.append(
                (start_s - asked_s, planned.get(job_id, 0) - asked_s if planned.get(job_id) else None, p10, p50, p90)
            )
        yield {
            "figure": "starts foretold",
            "release": cluster.version,
            "started": len(rows),
            "squeue_said_nothing": sum(row[1] is None for row in rows),
            "squeue_off_by_median_s": _median([abs(row[1] - row[0]) for row in rows if row[1] is not None]),
            "twin_off_by_median_s": _median([abs(row[3] - row[0]) for row in rows if row[3] is not None]),
            "twin_within_p10_p90": sum(
                row[2] is not None and row[4] is not None and row[2] - 2 <= row[0] <= row[4] + 2 for row in rows
            ),
            "each": [tuple(None if value is None else round(value) for value in row) for row in rows],
        }


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 1) if values else None


def _until(holds: Callable[[], bool], most_s: float) -> None:
    end = time.monotonic() + most_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {most_s} s")
        threading.Event().wait(0.05)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[3] / "shared")
    reader.add_argument("--jobs", type=int, default=10_000)
    reader.add_argument("--release", default="host")
    reader.add_argument("--port", type=int, default=27_250)
    reader.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "slurm-bench")
    reader.add_argument("--starts", type=int, default=0)
    reader.add_argument("--console", type=int, default=0, metavar="ROUNDS")
    reader.add_argument("--no-commands", action="store_true", help="with --console: only REST is at hand")
    asked = reader.parse_args()
    cluster = Loopback(asked.shared, asked.folder, asked.release, asked.port, [])
    try:
        rows: list[Iterator[Row]] = []
        if asked.starts:
            rows = [starts(cluster, asked.starts)]
        elif asked.console:
            fill(cluster, asked.jobs)
            rows = [screen(cluster, asked.jobs, asked.console, commands=not asked.no_commands)]
        else:
            fill(cluster, asked.jobs)
            rows = [whole_list(cluster, asked.jobs), freshness(cluster, asked.jobs)]
        for part in rows:
            for row in part:
                print(json.dumps(row), flush=True)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
