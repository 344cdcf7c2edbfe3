"""slurmctld killed with -9, again and again, while jobs are submitted: through Muster, and by a bare REST client.

    .venv/bin/python tests/bench/slurm_crash.py --cluster /tmp/slurm [--rounds 20] [--jobs 1000] [--up 3] [--bare]
    .venv/bin/python tests/bench/slurm_crash.py --cluster /opt/slurm --executions [--rounds 20] [--jobs 150] [--up 4]

The cluster is one of `slurm-up`. Jobs wait for a time to come, so that each that Slurm knows is in its list at the end.
A submission counts when it was acknowledged: by Muster's journal, or by an id from Slurm. It is lost when no job is it
at the end, doubled when two are.

With `--executions`, jobs run at once, for 1 to 2 s or for 20 s, and each appends a line to a file when it begins; a
third each says `rerun: never`, `if-unstarted` and `always`. Killed at random are slurmctld, slurmdbd, the slurmd of a
node, slurmrestd and Muster. What counts is how often each ran: not at all and not in doubt is lost; twice is Muster's
doing where Muster sent it twice, and Slurm's where one submission ran twice. The cluster wants `--accounting`, and a
folder outside of /tmp: what is there proves nothing to Muster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
    Rerun,
    Resources,
    RunSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)
from engine.state.external_cell import Phase, subjects_of, wanted

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


class Daemons(Cluster):
    """A cluster of which every daemon is killed and started."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.killed: Counter[str] = Counter()
        words = Path(f"/proc/{self._pid('slurmrestd-unix')}/cmdline").read_bytes().split(b"\0")
        self._rest = [os.fsdecode(word) for word in words if word]
        self.nodes = sorted(path.stem for path in (folder / "run").glob("slurmd-*.pid"))

    def _pid(self, name: str) -> int:
        return int((self.folder / "run" / f"{name}.pid").read_text().split()[0])

    def down(self, name: str) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid(name), signal.SIGKILL)
        self.killed[name.partition("-")[0]] += 1

    def up(self, name: str) -> None:
        if name == "slurmctld":
            self.start()
        elif name == "slurmdbd":
            self._spawn(name, "/usr/sbin/slurmdbd", "-D")
        elif name == "slurmrestd-unix":
            (self.folder / "run/slurmrestd.socket").unlink(missing_ok=True)
            self._spawn(name, *self._rest)
        else:
            subprocess.run([f"{self.folder}/bin/node-start", name.removeprefix("slurmd-")], check=True)

    def _spawn(self, name: str, *words: str) -> None:
        env = os.environ | {"SLURM_CONF": f"{self.folder}/etc/slurm.conf", "SLURMRESTD_SECURITY": "disable_user_check"}
        folder = str(self.folder)
        subprocess.run([f"{folder}/bin/spawn", folder, name, f"{folder}/bin/in-root", *words], check=True, env=env)

    def is_idle(self) -> bool:
        """True if nothing runs and nothing will: a job that Slurm put back and holds waits for a person."""
        words = [f"{self.folder}/bin/squeue", "-h", "-a", "-o", "%r"]
        done = subprocess.run(words, capture_output=True, check=False, text=True)
        return done.returncode == 0 and all("held" in line.lower() for line in done.stdout.splitlines())

    def resume(self) -> None:
        """What an operator does: Slurm drains a node where a job of a killed daemon could not be ended."""
        nodes = ",".join(name.removeprefix("slurmd-") for name in self.nodes)
        words = [f"{self.folder}/bin/scontrol", "update", f"nodename={nodes}", "state=resume"]
        subprocess.run(words, capture_output=True, check=False)

    def held(self) -> set[str]:
        """Workloads of which Slurm holds a job."""
        out = subprocess.run([f"{self.folder}/bin/squeue", "-h", "-a", "-o", "%j"], capture_output=True, text=True)
        return {name.rpartition(".m")[0] for name in out.stdout.split()}

    def states(self) -> dict[str, list[str]]:
        """Workload id -> how each of its jobs ended, as accounting has it."""
        out = subprocess.run(
            [f"{self.folder}/bin/sacct", "-n", "-P", "-X", "-D", "-a", "-o", "jobname%200,state"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        found: dict[str, list[str]] = {}
        for line in out.stdout.splitlines():
            name, _, state = line.rpartition("|")
            found.setdefault(name.rpartition(".m")[0], []).append(state)
        return found


def batter_all(cluster: Daemons, rounds: int, rng: random.Random, up_s: float, drop: Callable[[], None]) -> None:
    """Kill one after the other at random, slurmctld as often as all others together."""
    others = ["slurmdbd", "slurmrestd-unix", *rng.sample(cluster.nodes, min(2, len(cluster.nodes))), "muster"]
    for _ in range(rounds):
        time.sleep(rng.uniform(0.2 * up_s, 1.8 * up_s))
        name = "slurmctld" if rng.random() < 0.5 else rng.choice(others)
        if name == "muster":
            cluster.killed[name] += 1
            drop()
            continue
        cluster.down(name)
        time.sleep(rng.uniform(0.1, 2.0))
        cluster.up(name)


MODES: tuple[Rerun, ...] = ("never", "if-unstarted", "always")


def run_once(name: str, cluster: Cluster, run: str, seconds: float, rerun: Rerun) -> WorkloadSpec:
    line = '"$MUSTER_WORKLOAD $MUSTER_SUBMISSION $SLURM_JOB_ID ${SLURM_RESTART_COUNT:-0} $(date +%s)"'
    folder = cluster.folder / "jobs"
    argv = ("/bin/sh", "-c", f"echo {line} >> {folder}/{run}.txt; sleep {seconds:.1f}")
    return WorkloadSpec(
        id=name, queue="batch", groups=(TaskGroup(request=Resources(cpu_milli=1000, memory_mib=100)),),
        run=RunSpec(argv=argv, cwd=str(folder)), rerun=rerun,
    )  # fmt: skip


def executions(cluster: Daemons, jobs: int, rounds: int, seed: int, run: str, up_s: float) -> dict[str, object]:
    rng, began_s = random.Random(seed), time.time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        engine = Engine.open(path)
        engine.advance(time.time_ns() // 1_000_000)
        engine.command(Define(cell=cell()))
        told: list[object] = []
        sides = [Side(engine, cluster, told, cluster.folder / "bin")]
        changing = threading.Lock()

        def drop() -> None:
            with changing:
                sides[-1].drop()
                sides.append(Side(Engine.open(path), cluster, told, cluster.folder / "bin"))

        over = threading.Event()

        def kill() -> None:
            try:
                batter_all(cluster, rounds, random.Random(seed + 1), up_s, drop)
            finally:
                over.set()

        killer = threading.Thread(target=kill)
        killer.start()
        asked: dict[str, tuple[Rerun, float]] = {}
        while len(asked) < jobs or not over.is_set():
            if len(asked) < jobs:
                rerun, short = rng.choice(MODES), rng.random() < 0.75
                seconds = rng.uniform(1, 2) if short else 20.0
                spec = run_once(f"{run}-{len(asked)}", cluster, run, seconds, rerun)
                with changing:
                    sides[-1].loop.call(lambda engine, spec=spec: engine.command(Submit(workloads=(spec,))))
                asked[spec.id] = rerun, seconds
            # So that they come all the while.
            time.sleep(rng.uniform(0.4, 1.6) * rounds * (up_s + 1.2) / jobs)
        killer.join()
        settled, give_up = False, time.monotonic() + 900
        while not (settled and cluster.is_idle()) and time.monotonic() < give_up:
            cluster.resume()
            settled = wait_until_settled(sides[-1], 5)
            time.sleep(2)
        intents = sides[-1].engine.state.intents
        doubts = {subjects_of(wanted(each))[0]: each.text for each in intents.ended if each.phase == Phase.IN_DOUBT}
        tries = sum(isinstance(event, IntentReopened) for event in told)
        sides[-1].drop()
    time.sleep(5)
    return {
        "seed": seed, "killed": dict(cluster.killed), "settled": settled, "carried again": tries,
        "by mode": executed(cluster, run, asked, doubts),
        "doubts": dict(Counter(kind_of(text) for text in doubts.values())),
        "left held by Slurm": len(cluster.held()),
        "stopped by their mark": sum(
            b"muster: not run" in path.read_bytes()
            for path in (cluster.folder / "jobs").glob("slurm-*.out")
            if path.stat().st_mtime > began_s
        ),
    }  # fmt: skip


def kind_of(doubt: str) -> str:
    """Without what differs from one to the next."""
    return re.sub(r"/\S+|\d{4}-\S+( \S+ UTC)?|\d+", "…", doubt)[:200]


def executed(
    cluster: Daemons, run: str, asked: dict[str, tuple[Rerun, float]], doubts: dict[str, str]
) -> dict[str, dict[str, object]]:
    """By mode: how often each ran, and whose doing a second time was."""
    ran: dict[str, list[list[str]]] = {}
    for line in (cluster.folder / "jobs" / f"{run}.txt").read_text().splitlines():
        name, *rest = line.split()
        ran.setdefault(name, []).append(rest)
    states, held = cluster.states(), cluster.held()
    found: dict[str, dict[str, object]] = {}
    for mode in MODES:
        mine = [name for name, (rerun, _) in asked.items() if rerun == mode]
        none = [name for name in mine if name not in ran]
        sent = {name: Counter(tries for tries, *_ in ran[name]) for name in mine if name in ran}
        silent = [name for name in none if name not in doubts]
        kept = [name for name in silent if name in held]
        failed = [name for name in silent if name not in held and "COMPLETED" not in states.get(name, ("COMPLETED",))]
        found[mode] = {
            "acknowledged": len(mine),
            "short": sum(asked[name][1] < 3 for name in mine),
            "ran once": sum(counts.total() == 1 for counts in sent.values()),
            "twice, sent twice by Muster": sum(len(counts) > 1 for counts in sent.values()),
            "twice, by Slurm's own requeue": sum(
                any(more for tries, _, more, _ in ran[name] if more != "0") for name in sent if sent[name].total() > 1
            ),
            "twice in one submission": sum(max(counts.values()) > 1 for counts in sent.values()),
            "in doubt, had run": sum(name in doubts for name in sent),
            "in doubt, had not": sum(name in doubts for name in none),
            "not begun, held by Slurm": len(kept),
            "not begun, failed in Slurm": dict(Counter(states[name][-1] for name in failed)),
            "lost": len(silent) - len(kept) - len(failed),
            "examples": [name for name in silent if name not in (*kept, *failed)][:5]
            + [name for name, counts in sent.items() if counts.total() > 1][:5],
        }
    return found


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

    def __init__(self, engine: Engine, cluster: Cluster, told: list[object], commands: Path | None = None) -> None:
        engine.acts = True
        self.engine = engine
        self.loop = EngineLoop(engine)
        self.connection = SlurmConnection(cluster.socket, commands=commands)
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
    parse.add_argument("--executions", action="store_true", help="count how often jobs ran; every daemon is killed")
    given = parse.parse_args()
    if given.executions:
        run = f"muster{int(time.time()) % 100_000}"
        daemons = Daemons(given.cluster)
        print(json.dumps(executions(daemons, given.jobs, given.rounds, given.seed, run, given.up)))
        daemons.cancel_all()
        return
    cluster = Cluster(given.cluster)
    run = f"{'bare' if given.bare else 'muster'}{int(time.time()) % 100_000}"
    if given.bare:
        print(json.dumps(bare(cluster, given.rounds, given.seed, run, given.up)))
    else:
        print(json.dumps(through_muster(cluster, given.jobs, given.rounds, given.seed, run, given.up)))
    cluster.cancel_all()


if __name__ == "__main__":
    main()
