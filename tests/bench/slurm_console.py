"""How long after `squeue` shows a change the screen of a console shows it (`slurm_bench.py --console`).

A real console in a pseudo-terminal, on a `muster serve --slurm` of a loopback cluster with thousands of jobs. What is
on its screen is submitted, held, released, requeued, cancelled and ends, by Slurm's own commands outside of Muster: on
the list, and on the page of one workload.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.pseudo_terminal import PseudoTerminal
from tests.support.screen_model import ScreenModel

Row = dict[str, object]
Shows = Callable[[ScreenModel, str], bool]
ROOT = Path(__file__).resolve().parents[2]
MUSTER = str(Path(sys.executable).with_name("muster"))
START_S, SEEN_S = 180.0, 60.0
SLURM_SAYS = {
    "held": r"PENDING 0 .*", "waiting": r"PENDING [1-9]\d* BeginTime", "running": r"RUNNING .*",
    "cancelled": r"CANCELLED .*|", "finished": r"COMPLETED .*|",
}  # fmt: skip
"""What the console calls a state, and state, priority and reason of `squeue`; nothing where it is listed no more."""


class Cluster(Protocol):
    folder: Path
    socket: str
    version: str

    def run(self, *words: str) -> str: ...
    def submit(self, *flags: str, sleep: str = "600") -> int: ...


class Seen:
    """When Slurm first showed a state, found by asking `squeue` again and again."""

    def __init__(self, cluster: Cluster, job: int, state: str) -> None:
        self._cluster, self._job, self._wanted = cluster, job, re.compile(SLURM_SAYS[state])
        self.at = 0.0
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        end = time.perf_counter() + SEEN_S
        while not self.at and time.perf_counter() < end:
            words = [f"{self._cluster.folder}/bin/squeue", "-h", "-t", "all", "-j", str(self._job), "-o", "%T %Q %r"]
            asked = subprocess.run(words, check=False, capture_output=True, text=True)
            if self._wanted.fullmatch(asked.stdout.strip()):
                self.at = time.perf_counter()
            else:
                time.sleep(0.05)

    def wait(self) -> float:
        self._thread.join()
        if not self.at:
            raise TimeoutError(f"squeue did not show {self._wanted.pattern} of job {self._job} within {SEEN_S:.0f} s")
        return self.at


@contextmanager
def opened(cluster: Cluster, jobs: int, *, commands: bool) -> Iterator[PseudoTerminal]:
    """A console on an engine of its own that has mirrored so many jobs. `commands`: whether Slurm's are at hand."""
    with tempfile.TemporaryDirectory(prefix="m") as folder:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            **{f"XDG_{kind}_HOME": f"{folder}/{kind}" for kind in ("STATE", "CONFIG")},
            "XDG_RUNTIME_DIR": folder, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1",
            "PATH": f"{cluster.folder}/bin:{os.environ['PATH']}" if commands else "/nowhere",
        }  # fmt: skip
        engine = subprocess.Popen(
            [MUSTER, "serve", "--cell", "hpc", "--slurm", cluster.socket], env=environment, stdout=subprocess.DEVNULL
        )
        try:
            _until(lambda: _mirrored(environment) >= jobs, START_S)
            terminal = PseudoTerminal([MUSTER, "--cell", "hpc"], environment, width=140, height=45)
            try:
                yield terminal
            finally:
                os.kill(terminal.pid, signal.SIGKILL)
                os.waitpid(terminal.pid, 0)
        finally:
            engine.send_signal(signal.SIGTERM)
            engine.wait(30)
            shutil.rmtree(folder, ignore_errors=True)


def screen(cluster: Cluster, jobs: int, rounds: int, *, commands: bool) -> Iterator[Row]:
    """`rounds` of eight changes of jobs that the list shows, and six of the one whose page is open."""
    delays: dict[str, list[float]] = {}
    with opened(cluster, jobs, commands=commands) as terminal:
        terminal.shows("connected", seconds=60)
        terminal.press("3")
        terminal.settle(0.3, 3)
        terminal.press("/name:probe*\r")
        terminal.shows("/name:probe*")
        for n in range(rounds):
            for what, delay in changes(cluster, terminal, f"probe-{n}"):
                delays.setdefault(f"list: {what}", []).append(delay)
        page = rounds
        for what, delay in changes(cluster, terminal, f"probe-{page}", open_page=True):
            delays.setdefault(f"page: {what}", []).append(delay)
    every = [delay for each in delays.values() for delay in each]
    yield {
        "figure": "on the screen after squeue shows it",
        "jobs": jobs,
        "release": cluster.version,
        "slurms_commands": commands,
        "changes": len(every),
        "p50_s": round(statistics.median(every), 2),
        "most_s": round(max(every), 2),
        "over_2_s": sum(delay > 2 for delay in every),
        "each": {what: [round(delay, 2) for delay in found] for what, found in delays.items()},
    }


def changes(
    cluster: Cluster, terminal: PseudoTerminal, name: str, *, open_page: bool = False
) -> Iterator[tuple[str, float]]:
    """(what was changed, seconds from when `squeue` showed it to when the screen did) of the life of one job."""
    rest = random.Random(name)
    job = 0
    wanted = row_of(name)

    def change(what: str, state: str, *words: str) -> tuple[str, float]:
        nonlocal job
        # Not in step with the beat of the watcher.
        terminal.settle(0.05, rest.uniform(0.1, 1.2))
        out = cluster.run(*words)
        if words[0] == "sbatch":
            job = int(out.split(";")[0])
        seen = Seen(cluster, job, state)
        shown = terminal.until(lambda screen: wanted(screen, state), f"{name} {state}", SEEN_S)
        return what, max(shown - seen.wait(), 0.0)

    end = cluster.folder / "jobs" / f"end-{name}"
    script = f"while [ ! -e {end} ]; do sleep 0.1; done"
    submit = ("sbatch", "--parsable", "-J", name, "-o", "/dev/null", "-t", "60", "-p", "batch")
    yield change("submitted, held", "held", *submit, "-H", "--wrap", script)
    if open_page:
        wanted = page_of(name)
        terminal.press("gg\r")
        terminal.settle(0.5, 3)
    yield change("released, started", "running", "scontrol", "release", str(job))
    yield change("put back, held", "held", "scontrol", "requeuehold", str(job))
    yield change("released", "waiting", "scontrol", "release", str(job))
    yield change("held while it waits", "held", "scontrol", "hold", str(job))
    yield change("cancelled", "cancelled", "scancel", str(job))
    if open_page:
        return
    yield change("submitted, started", "running", *submit, "--wrap", script)
    end.touch()
    yield change("ended", "finished", "squeue", "-h", "-j", str(job))


def row_of(name: str) -> Shows:
    def shows(screen: ScreenModel, state: str) -> bool:
        return any(name in line.split() and state in line.split() for line in screen.text)

    return shows


def page_of(name: str) -> Shows:
    def shows(screen: ScreenModel, state: str) -> bool:
        return any(f" {state}  for " in line for line in screen.text)

    return shows


def _mirrored(environment: dict[str, str]) -> int:
    said = subprocess.run(
        [MUSTER, "--cell", "hpc", "cell", "mirror"], env=environment, capture_output=True, text=True
    ).stdout
    found = re.search(r"^jobs\s+([\d,]+)", said, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0


def _until(holds: Callable[[], bool], most_s: float) -> None:
    end = time.monotonic() + most_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {most_s} s")
        time.sleep(0.5)
