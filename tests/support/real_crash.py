"""An engine of real processes that is killed at random moments, over and over, while work is submitted to it: what was
acknowledged runs, once. Run by a test, and longer as `python tests/bench/real_crash.py`.

Each job writes a line when it begins and one when it ends, so that what the machine really did can be counted.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.support.real_work import Desk, desk, job

SHORT_S = 0.4
"""Longest that a job runs."""


class Found(NamedTuple):
    killed: int
    acknowledged: list[str]
    began: Counter[str]
    """How often each was begun, whole."""
    ended: set[str]
    """Those that ran to their end."""
    states: Counter[str]
    attempts: int
    """Most of one."""

    @property
    def lost(self) -> int:
        """Acknowledged, and never run to the end."""
        return len(set(self.acknowledged) - self.ended)

    @property
    def doubled(self) -> int:
        """Begun more than once."""
        return sum(count > 1 for count in self.began.values())


def tasks_of(name: str) -> int:
    """Every seventh is a gang."""
    return 2 if int(name.rpartition("-")[2]) % 7 == 0 else 1


def work(folder: str, jobs: int, seed: int) -> None:
    """Submit what is missing, bit by bit, and let time pass until somebody kills us, or all is over."""
    rng = random.Random(seed)
    here = Desk(Path(folder), desk(cpus=64, memory_mib=65_536))
    acknowledged = open(f"{folder}/acknowledged", "a", buffering=1)  # noqa: SIM115
    number = len(here.engine.state.workloads.ids)
    while True:
        for _ in range(rng.randrange(4)):
            if number < jobs:
                name = f"job-{number:04}"
                log = f"{folder}/log"
                script = f"echo 'b {name}' >> {log}; sleep {rng.uniform(0, SHORT_S):.2f}; echo 'e {name}' >> {log}"
                here.submit(job(name, script, cpu=500, memory=16, tasks=tasks_of(name)))
                acknowledged.write(f"{name}\n")
                number += 1
        here.pass_time()
        states = set(here.states().values()) if number >= jobs else {"queued"}
        if states <= {"finished", "failed", "cancelled"}:
            return
        time.sleep(0.005)


def crash_rounds(folder: Path, rounds: int, jobs: int, seed: int = 7) -> Found:
    """Kill `rounds` engines one after the other, then let the last one finish."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.real_crash"])
    rng = random.Random(seed)
    killed = 0
    for number in range(rounds + 1):
        worker = context.Process(target=work, args=(str(folder), jobs, seed * 1000 + number))
        worker.start()
        worker.join(rng.uniform(0.05, 0.8) if number < rounds else 120)  # the random moment itself
        if worker.is_alive():
            killed += 1
            worker.kill()
            worker.join()
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    acknowledged = (folder / "acknowledged").read_text().split()
    here = Desk(folder)
    states = Counter(here.states().values())
    attempts = max(here.engine.state.workloads.attempts, default=0)
    here.close()
    # A gang of two writes two lines; what is beyond that was begun again.
    began = Counter(name for kind, name in lines if kind == "b")
    ended = Counter(name for kind, name in lines if kind == "e")
    return Found(
        killed, acknowledged,
        Counter({name: -(-count // tasks_of(name)) for name, count in began.items()}),
        {name for name, count in ended.items() if count >= tasks_of(name)},
        states, attempts,
    )  # fmt: skip
