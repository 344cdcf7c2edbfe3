"""How long nobody takes work when the engine that serves a cell fails, on a machine that has too much to do.

    python -m tests.bench.takeover --runs 5 --load 10
    python -m tests.bench.takeover --faults frozen cut --runs 10

Two real `muster serve` processes on one PostgreSQL server, as if on two machines: each thinks that it has a machine of
its own, and each has a line of its own to the database. One serves and one stands by, while so many processes compete
for the machine's cores. Then the one that serves is harmed, and the time is taken until the other has acknowledged a
submission:

killed: SIGKILL. frozen: SIGSTOP; afterwards it wakes, and must keep nothing. cut: nothing comes through its line any
more, in neither direction, and nobody is told. lost: its connections to the database are ended, and it gets no other.
restarted: the database itself is killed and started again; then the engine that served goes on.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

from console.client.remote import RemoteClient
from engine.model.commands import Submit
from engine.model.errors import MusterError
from engine.model.specs import Resources, TaskGroup, WorkloadSpec
from tests.support import postgres
from tests.support.database_line import Line

ROOT = Path(__file__).resolve().parents[2]
Fault = Literal["killed", "frozen", "cut", "lost", "restarted"]
CELL = """\
pools:
  - {name: gpu, nodes: 200, capacity: {cpu: 64, memory: 512GiB, gpu: 8}, gpu_model: H100, price_usd_hour: 20}
queues:
  - {name: research}
priority_classes:
  - {name: normal, value: 500}
"""
ELSEWHERE = """\
import os, sys
from engine.journal import postgres_store, process_locks
host = sys.argv.pop(1)
postgres_store.this_process = lambda: process_locks.Holder(host=host, pid=os.getpid(), boot=host)
from console.cli.main import main
main()
"""
"""`muster`, as on another machine."""
BACKLOG = 2_000
"""Submissions that the cell has to begin with."""
PATIENCE_S = 120.0


class Member:
    """One of the two engines, its line to the database, and the machine it thinks it is on."""

    def __init__(self, folder: Path, number: int, server: postgres.Server, schema: str) -> None:
        self.line = Line(server.port)
        self.socket = folder / f"e{number}" / "engine.sock"
        self.log = folder / f"{number}.log"
        url = f"postgresql://{postgres.USER}@127.0.0.1:{self.line.port}/postgres?schema={schema}"
        (folder / "cell.yaml").write_text(CELL)
        arguments = ["serve", "--cell", "prod", "--cell-file", str(folder / "cell.yaml"), "--approval", "solo"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", ELSEWHERE, f"host{number}", *arguments,
                 "--data", str(self.socket.parent), "--standby"],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MUSTER_DATABASE": url, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def says(self, word: str) -> bool:
        return word in self.log.read_text(errors="replace")

    def wait_for(self, word: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.says(word):
            if time.monotonic() > until or self.process.poll() is not None:
                raise SystemExit(f"an engine never said {word!r}:\n{self.log.read_text(errors='replace')}")
            time.sleep(0.02)

    def submit(self, name: str, count: int = 1) -> bool:
        """Whether it has acknowledged that."""
        if not self.socket.exists():
            return False
        request = Resources(cpu_milli=1000, gpu_milli=1000)
        group = TaskGroup(request=request)
        ids = [name] if count == 1 else [f"{name}-{i}" for i in range(count)]
        work = tuple(WorkloadSpec(id=each, queue="research", groups=(group,), estimate_ms=86_400_000) for each in ids)
        client = RemoteClient(str(self.socket), patience_s=PATIENCE_S if count > 1 else 2.0)
        try:
            client.command(Submit(workloads=work))
        except MusterError as error:
            return "already exists" in error.problem
        finally:
            client.close()
        return True

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.line.close()


@contextlib.contextmanager
def competitors(count: int) -> Iterator[None]:
    """So many processes that would use a core each."""
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def measured(faults: list[Fault], runs: int, load: int, draw: random.Random) -> Iterator[tuple[Fault, list[float]]]:
    with contextlib.ExitStack() as after:
        folder = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="tk-")))
        server = after.enter_context(contextlib.closing(postgres.Server()))
        schema, numbers = server.cell().rpartition("=")[2], itertools.count(1)

        def another() -> Member:
            return after.enter_context(contextlib.closing(Member(folder, next(numbers), server, schema)))

        begin(server, schema)
        leader = another()
        leader.wait_for(" ready on ")
        leader.submit("first", BACKLOG)
        for fault in faults:
            took = []
            for run in range(runs):
                standby = another()
                standby.wait_for("stands by")
                with competitors(load):
                    time.sleep(draw.uniform(3.0, 5.0))
                    took.append(_seconds(fault, leader, standby, server, f"{fault}{run}"))
                leader, standby = (leader, standby) if fault == "restarted" else (standby, leader)
                if fault == "frozen":
                    _must_end(standby)
                standby.close()
            yield fault, took


def begin(server: postgres.Server, schema: str) -> None:
    """A cell for the first to take over: a standby creates none."""
    from engine.control import Engine

    Engine.open(f"{server.url()}&schema={schema}").close()


def _seconds(fault: Fault, leader: Member, standby: Member, server: postgres.Server, name: str) -> float:
    """From the fault to the first submission that is acknowledged."""
    harm: dict[Fault, Callable[[], object]] = {
        "killed": leader.process.kill,
        "frozen": lambda: leader.process.send_signal(signal.SIGSTOP),
        "cut": leader.line.silence,
        "lost": leader.line.close,
        "restarted": lambda: (server.kill(), server.start()),
    }
    who = leader if fault == "restarted" else standby
    began = time.monotonic()
    harm[fault]()
    while not who.submit(f"after-{name}"):
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(f"nobody took work after {fault}:\n{who.log.read_text(errors='replace')}")
        time.sleep(0.02)
    took = time.monotonic() - began
    told = [line for line in who.log.read_text(errors="replace").splitlines() if "took over" in line]
    print(f"{fault}: {took:.1f} s", *told, sep="; ", file=sys.stderr, flush=True)
    return took


def _must_end(frozen: Member) -> None:
    """It wakes, is asked at once, and may acknowledge nothing."""
    frozen.process.send_signal(signal.SIGCONT)
    if frozen.submit("by-the-frozen-one"):
        raise SystemExit("an engine that was frozen has acknowledged a submission after another took over")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=get_args(Fault), default=list(get_args(Fault)))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--load", type=int, default=10, help="processes that compete for the cores")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for fault, took in measured(arguments.faults, arguments.runs, arguments.load, random.Random(arguments.seed)):
        row = {
            "fault": fault, "runs": len(took), "median_s": round(statistics.median(took), 1),
            "longest_s": round(max(took), 1), "all_s": [round(each, 1) for each in took],
            "load": round(os.getloadavg()[0], 1),
        }  # fmt: skip
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
