"""slurmctld killed with -9, again and again, while jobs are submitted: through Muster, and by a bare REST client.

    .venv/bin/python tests/bench/slurm_crash.py --cluster /tmp/slurm [--rounds 20] [--jobs 1000] [--up 3] [--bare]

The cluster is one of `slurm-up`. Jobs wait for a time to come, so that each that Slurm knows is in its list at the end.
A submission counts when it was acknowledged: by Muster's journal, or by an id from Slurm. It is lost when no job is it
at the end, doubled when two are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.control import Engine
from engine.external.slurm.capabilities import SlurmUnavailable
from engine.external.slurm.change_carrier import SlurmDriver
from engine.external.slurm.connection import SlurmConnection
from engine.external.slurm.records import JobRequest
from engine.loop import EngineLoop
from engine.model.commands import Define, Submit
from engine.model.errors import MusterError
from engine.model.events import AnyEvent, IntentReopened, IntentSettled
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    QueueSpec,
    Resources,
    RunSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.external_cell import Phase

HOUR_MS = 3_600_000


class Cluster:
    """One that `slurm-up` started; only slurmctld is killed and started here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kills = 0

    @property
    def socket(self) -> str:
        return f"unix:{self.folder}/run/slurmrestd.socket"

    def kill(self) -> None:
        pid = int((self.folder / "run/slurmctld.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        self.kills += 1

    def start(self) -> None:
        folder = str(self.folder)
        words = ["bin/spawn", "", "slurmctld", "bin/in-root", "sbin/slurmctld", "-D", "-f", "etc/slurm.conf"]
        here = [f"{folder}/{word}" if "/" in word else word or folder for word in words]
        subprocess.run(here, check=True, env=os.environ | {"SLURM_CONF": f"{folder}/etc/slurm.conf"})

    def cancel_all(self) -> None:
        subprocess.run([f"{self.folder}/bin/scancel", "--user=root"], check=False, stderr=subprocess.DEVNULL)

    def names(self) -> Counter[str]:
        """Comment and name of every job that has not ended, by Slurm's own command."""
        out = subprocess.run(
            [f"{self.folder}/bin/squeue", "-h", "-a", "-o", "%j"], check=True, capture_output=True, text=True
        )
        return Counter(out.stdout.split())


def batter(cluster: Cluster, rounds: int, rng: random.Random, over: threading.Event, up_s: float) -> None:
    """Kill and start it, with jobs coming in between. `up_s`: for how long it lives each time, on average."""
    for _ in range(rounds):
        time.sleep(rng.uniform(0.2 * up_s, 1.8 * up_s))
        cluster.kill()
        time.sleep(rng.uniform(0.1, 2.0))
        cluster.start()
    over.set()


def cell() -> CellSpec:
    return CellSpec(
        name="slurm",
        pools=(PoolSpec(name="batch", capacity=Resources(cpu_milli=64_000, memory_mib=512_000)),),
        nodes=(NodeSpec(id="cpu001", pool="batch"),),
        queues=(QueueSpec(name="batch"),),
        settings=Settings(decided_by="slurm"),
    )


def through_muster(cluster: Cluster, jobs: int, rounds: int, seed: int, run: str, up_s: float) -> dict[str, object]:
    """Submissions at the rate that the crashes leave; Muster itself is stopped and started once in between."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        engine = Engine.open(path)
        engine.advance(time.time_ns() // 1_000_000)
        engine.command(Define(cell=cell()))
        over = threading.Event()
        killer = threading.Thread(target=batter, args=(cluster, rounds, rng, over, up_s))
        told: list[object] = []
        side = Side(engine, cluster, told)
        began = time.monotonic()
        killer.start()
        acknowledged: dict[str, float] = {}
        number = 0
        restarted = False
        while not over.is_set() or number < jobs:
            batch = [work(f"{run}-{number + i}") for i in range(rng.randint(1, 8))]
            number += len(batch)
            for spec in batch:
                asked = time.monotonic()
                side.loop.call(lambda engine, spec=spec: engine.command(Submit(workloads=(spec,))))
                acknowledged[spec.id] = time.monotonic() - asked
            if cluster.kills >= rounds // 2 and not restarted:
                restarted = True
                side.drop()  # Muster is killed: nothing is said or settled any more
                side = Side(Engine.open(path), cluster, told)
            time.sleep(rng.uniform(0.0, 0.12) if number < jobs * 2 else 0.3)
        killer.join()
        settled = wait_until_settled(side, 400)
        took = time.monotonic() - began
        intents = side.engine.state.intents
        phases = Counter(Phase(event.phase).label for event in told if isinstance(event, IntentSettled))
        texts = Counter(event.text for event in told if isinstance(event, IntentSettled) and event.phase != Phase.DONE)
        tries = sum(isinstance(event, IntentReopened) for event in told)
        names = cluster.names()
        found = Counter(name.rpartition(".m")[0] for name in names.elements())
        lost = [id_ for id_ in acknowledged if not found[id_]]
        doubled = [id_ for id_ in acknowledged if found[id_] > 1]
        side.drop()
    slow = sorted(acknowledged.values())
    return {
        "by": "Muster",
        "kills": cluster.kills,
        "acknowledged": len(acknowledged),
        "lost": len(lost),
        "doubled": len(doubled),
        "settled": settled,
        "still open": len(intents.open),
        "carried again": tries,
        "settled as": dict(phases),
        "not done because": dict(texts.most_common(5)),
        "seconds": round(took, 1),
        "acknowledged within p50 ms": round(slow[len(slow) // 2] * 1e3, 1),
        "acknowledged within p99 ms": round(slow[len(slow) * 99 // 100] * 1e3, 1),
        "examples": [*lost[:3], *doubled[:3]],
    }


class Side:
    """One process's worth of Muster: an engine, its loop, and the driver."""

    def __init__(self, engine: Engine, cluster: Cluster, told: list[object]) -> None:
        engine.acts = True
        self.engine = engine
        self.loop = EngineLoop(engine)
        self.connection = SlurmConnection(cluster.socket)
        self.driver = SlurmDriver(self.connection, self.loop, lambda workload: None)
        note = engine.recent.note

        def noted(event: AnyEvent) -> None:
            told.append(event)
            note(event)

        engine.recent.note = noted  # type: ignore[method-assign]
        self.loop.start()
        self.driver.start()

    def drop(self) -> None:
        """As if killed: the journal is let go of as it is."""
        self.driver.stop()
        self.loop.stop()
        if self.engine._journal is not None:
            self.engine._journal.close()


def wait_until_settled(side: Side, most_s: float) -> bool:
    give_up = time.monotonic() + most_s
    while time.monotonic() < give_up:
        report = side.loop.call(lambda engine: engine.intents(1))
        if not (report.open or report.sent or report.accepted):
            return True
        time.sleep(0.5)
    return False


def work(name: str) -> WorkloadSpec:
    return WorkloadSpec(
        id=name, queue="batch", groups=(TaskGroup(request=Resources(cpu_milli=1000, memory_mib=100)),),
        run=RunSpec(argv=("/bin/true",)), not_before_ms=time.time_ns() // 1_000_000 + 4 * HOUR_MS,
    )  # fmt: skip


def bare(cluster: Cluster, rounds: int, seed: int, run: str, up_s: float) -> dict[str, object]:
    """Eight submitters that count a job as accepted when Slurm gave it an id, and send the next."""
    rng = random.Random(seed)
    over = threading.Event()
    connection = SlurmConnection(cluster.socket)
    accepted: dict[str, int] = {}
    unsure: list[str] = []

    def submit(who: int) -> None:
        number = 0
        while not over.is_set():
            name = f"{run}-{who}-{number}"
            number += 1
            try:
                wish = JobRequest(
                    name=name, script="#!/bin/sh\n/bin/true\n", partition="batch", cpus_per_task=1,
                    memory_per_cpu_mib=100, begin_s=int(time.time()) + 14_400,
                )  # fmt: skip
                accepted[name] = connection.submit(wish).id
            except SlurmUnavailable:
                unsure.append(name)
                time.sleep(0.2)
            except MusterError:
                time.sleep(0.2)
            time.sleep(0.05)

    with ThreadPoolExecutor(8) as pool:
        workers = [pool.submit(submit, who) for who in range(8)]
        batter(cluster, rounds, rng, over, up_s)
        for worker in workers:
            worker.result()
    time.sleep(5)
    names = cluster.names()
    by_id = Counter(accepted.values())
    return {
        "by": "bare REST client", "kills": cluster.kills, "acknowledged": len(accepted),
        "lost": sum(not names[name] for name in accepted), "doubled": sum(names[name] > 1 for name in accepted),
        "no answer": len(unsure), "of these there all the same": sum(names[name] > 0 for name in unsure),
        "ids given to two jobs": sum(count > 1 for count in by_id.values()),
    }  # fmt: skip


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--cluster", type=Path, required=True)
    parse.add_argument("--rounds", type=int, default=20)
    parse.add_argument("--jobs", type=int, default=1000)
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--up", type=float, default=3.0, metavar="S", help="seconds it lives each time, on average (3)")
    parse.add_argument("--bare", action="store_true", help="the bare REST client instead")
    given = parse.parse_args()
    cluster = Cluster(given.cluster)
    run = f"{'bare' if given.bare else 'muster'}{int(time.time()) % 100_000}"
    if given.bare:
        print(json.dumps(bare(cluster, given.rounds, given.seed, run, given.up)))
    else:
        print(json.dumps(through_muster(cluster, given.jobs, given.rounds, given.seed, run, given.up)))
    cluster.cancel_all()


if __name__ == "__main__":
    main()
