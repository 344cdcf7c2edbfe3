"""An engine on a real Slurm cluster while everything around it is killed and cut off, at random, under load.

    python -m tests.bench.chaos --database sqlite|postgres [--rounds 50] [--seed 1] [--release host|trixie]

A real `muster serve --slurm --slurm-act` on a file or a PostgreSQL server of its own; a loopback cluster of `slurm-up`;
clients in another process, which submit with a key, and repeat that until it is acknowledged, and which propose and
approve holds, releases, priorities, requeues and cancels of jobs, cordons and uncordons of a node, and that a partition
is held and opened. A monkey ends the engine, PostgreSQL, slurmctld or slurmrestd by SIGKILL,
or cuts one of the three lines between them, and starts anew what was killed, as systemd would; nobody does anything
else.

At the end each acknowledged submission must be exactly one job of Slurm's own list, each approved act must have been
carried once and be so at Slurm, mirror and Slurm must agree, audit and journal must verify.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from console.client.remote import RemoteClient
from engine.model.errors import MusterError
from engine.model.list_queries import Query
from tests.support import postgres
from tests.support.chaos_checks import Seen, judged
from tests.support.cutting_proxy import CuttingProxy, Mode
from tests.support.database_line import Line
from tests.support.slurm_cluster import SlurmCluster, own

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "tests/support/chaos_clients.py"
RECOVERED_S = 180.0
SETTLED_S = 480.0
"""Longest wait for the last intents: a request of which nobody knows whether it arrived is waited for, for 75 s."""
MODES: tuple[Mode, ...] = ("refuse", "swallow", "lose answers", "cut answers", "stall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--release", choices=("host", "trixie"), default="host")
    parser.add_argument("--folder", type=Path, help="where logs and the journal are left; else a temporary one")
    given = parser.parse_args()
    with ExitStack() as after:
        folder = given.folder or Path(after.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        folder.mkdir(exist_ok=True)
        more = folder.resolve() / "more.conf"
        more.write_text("SlurmctldDebug=debug\n")  # then its log tells of each requeue, and whose it was
        cluster = after.enter_context(
            own(given.release, "--cloud-nodes", "0", "--min-job-age", "86400", "--extra-conf", str(more))
        )
        scene = after.enter_context(scene_of(folder, cluster, given.database))
        found = played(scene, random.Random(given.seed), given.rounds, given.seed)
    for name, value in found.items():
        print(f"{name:>34}  {value}", file=sys.stderr)
    print(row_of(found, given.seed), file=sys.stderr)
    print(json.dumps(found))
    raise SystemExit(1 if found["faults"] else 0)


def row_of(found: dict[str, Any], seed: int) -> str:
    """For the table in docs/measured.md."""
    recovered = f"{found['recovered after s, median']} s, {found['recovered after s, longest']} s"
    cells = [
        f"{found['database']}, seed {seed}", found["harms"], found["kills"], f"{found['acknowledged']:,}",
        found["lost"], found["doubled"], found["acts carried"], found["done again"], len(found["in doubt"]), recovered,
        len(found["faults"]),
    ]  # fmt: skip
    return f"| {' | '.join(str(cell) for cell in cells)} |"


class Scene:
    """All that plays a part, and the lines between."""

    def __init__(self, folder: Path, cluster: SlurmCluster, database: str, after: ExitStack) -> None:
        self.folder = folder
        self.cluster = cluster
        self.told = folder / "told"
        self.told.touch()
        self.harms = folder / "harms"
        """From when to when what was harmed, a line each, Unix seconds: to look faults up in."""
        self.far_line = CuttingProxy(int(cluster.url.rpartition(":")[2]))
        after.callback(self.far_line.close)
        self.server: postgres.Server | None = None
        self.line: Line | None = None
        where: list[str] = []
        self.place = str(folder / "cell/journal.db")
        if database == "postgres":
            self.server = after.enter_context(postgres.own_server())
            self.line = Line(self.server.port)
            after.callback(self.line.close)
            self.place = self.server.cell()
            where = ["--database", self.place.replace(f"@/postgres?host={self.server.folder}&port={self.server.port}&",
                                                      f"@127.0.0.1:{self.line.port}/postgres?")]  # fmt: skip
        self.environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{cluster.commands}{os.pathsep}{os.environ['PATH']}",
            **{f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "CONFIG", "DATA", "CACHE")},
        }  # fmt: skip
        self._command = [
            sys.executable, "-m", "console.cli.main", "serve", "--cell", "chaos", "--data", str(folder / "cell"),
            "--approval", "solo", "--slurm", self.far_line.url, "--slurm-user", "root",
            "--slurm-token-file", str(cluster.token()), "--slurm-act", *where,
        ]  # fmt: skip
        self.exits: Counter[str] = Counter()
        """How engines ended that nobody had killed."""
        self.engine = self._start()
        after.callback(self._end, lambda: self.engine)
        self.near_line = CuttingProxy(str(folder / "cell/engine.sock"))
        after.callback(self.near_line.close)
        self.clients: subprocess.Popen[bytes] | None = None

    def _start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "engine.log").open("ab") as log:
            return subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )

    def begin(self, seed: int, after: ExitStack) -> None:
        """The clients, as soon as there is something to talk to."""
        self.await_recovery(time.time(), with_clients=False)
        command = [sys.executable, str(CLIENTS), self.near_line.url, str(self.told), str(seed)]
        roots = f"{ROOT}{os.pathsep}{CLIENTS.parent}"
        with (self.folder / "clients.log").open("ab") as log:
            self.clients = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, env=self.environment | {"PYTHONPATH": roots}
            )
        after.callback(self._end, lambda: self.clients)

    def end_clients(self) -> None:
        """They finish what they have begun."""
        assert self.clients is not None
        self.clients.terminate()
        self.clients.wait(120)

    def kill_engine(self) -> None:
        self.engine.kill()
        self.engine.wait()

    def start_engine(self) -> None:
        self.engine = self._start()

    def keep(self) -> None:
        """Start what has ended by itself, as systemd would."""
        if self.engine.poll() is not None:
            self.exits[f"status {self.engine.returncode}"] += 1
            time.sleep(0.5)
            self.engine = self._start()
        for daemon in ("slurmctld", "slurmrestd-tcp"):
            if not Path(f"/proc/{self.cluster.pid(daemon)}").exists():
                self.exits[daemon] += 1
                self.cluster.start(daemon)

    def stop_engine(self) -> None:
        self.engine.terminate()
        assert self.engine.wait(60) == 0, "the engine did not stop as it should"

    @contextmanager
    def client(self) -> Iterator[RemoteClient]:
        """On the engine's own socket: the lines of the others are not in its way."""
        with contextlib.closing(RemoteClient(str(self.folder / "cell/engine.sock"), patience_s=5)) as client:
            yield client

    def await_recovery(self, since_s: float, *, with_clients: bool = True) -> float:
        """Until the engine answers, the mirror has looked at Slurm since, and somebody's submission was acknowledged
        since. Returns how long that took; raises TimeoutError."""
        size, began = self.told.stat().st_size, time.monotonic()
        wrong = "nothing was seen"
        while time.monotonic() - began < RECOVERED_S:
            self.keep()
            wrong = self._wrong(since_s, size if with_clients else None)
            if not wrong:
                return time.monotonic() - began
            time.sleep(0.1)
        raise TimeoutError(f"not recovered within {RECOVERED_S:.0f} s: {wrong}")

    def _wrong(self, since_s: float, size: int | None) -> str:
        try:
            with self.client() as client:
                mirror = client.mirror()
        except MusterError as error:
            return str(error)
        if mirror.state != "following" or mirror.looked_s < since_s:
            return f"the mirror is {mirror.state}: {mirror.error}"
        if size is not None:
            with self.told.open("rb") as told:
                told.seek(size)
                if b"kept " not in told.read():
                    return "no submission was acknowledged"
        return ""

    def await_settled(self) -> float:
        """Until nothing is under way to Slurm, and no plan is. Returns how long that took; raises TimeoutError."""
        began = time.monotonic()
        left = ""
        while time.monotonic() - began < SETTLED_S:
            self.keep()
            try:
                with self.client() as client:
                    report = client.intents(1)
                    plans = client.proposals(("approved", "executing", "verifying", "rolling_back"))
            except MusterError as error:
                left = str(error)
            else:
                under_way = report.open + report.sent + report.accepted
                left = f"{under_way} intents, {len(plans)} plans" if under_way or plans else ""
                if not left:
                    return time.monotonic() - began
            time.sleep(0.5)
        raise TimeoutError(f"not settled within {SETTLED_S:.0f} s: {left}")

    def rows(self) -> dict[str, str]:
        """Workload -> state, as the mirror has it."""
        with self.client() as client:
            page = client.query(Query(kind="workloads", columns=("id", "state"), limit=10_000))
        return {row[0]: row[1] for row in page.rows}

    def _end(self, process: Callable[[], subprocess.Popen[bytes] | None]) -> None:
        ended = process()
        if ended is not None and ended.poll() is None:
            ended.kill()
            ended.wait()


@contextmanager
def scene_of(folder: Path, cluster: SlurmCluster, database: str) -> Iterator[Scene]:
    with ExitStack() as after:
        yield Scene(folder, cluster, database, after)


# -- harm -------------------------------------------------------------------------------------------------------------


class Monkey:
    """Harms one thing after the other, and puts back what it harmed."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.scene = scene
        self.rng = rng
        self.done: Counter[str] = Counter()
        self.killed_slurmctld_s: list[float] = []
        own_harms = {
            "kill engine": self.kill_engine,
            "kill slurmctld": self.kill_slurmctld,
            "kill slurmrestd": self.kill_slurmrestd,
            "kill engine and slurmctld": self.kill_both,
            "cut line to slurmrestd": lambda: self.cut(scene.far_line),
            "cut line of clients": lambda: self.cut(scene.near_line),
        }
        of_database = {"kill PostgreSQL": self.kill_database, "cut line to PostgreSQL": self.cut_database}
        self.harms = own_harms | (of_database if scene.server is not None else {})

    def strike(self) -> None:
        # Each kind in turn before any comes again, in an order drawn anew.
        least = min(self.done[name] for name in self.harms)
        name = self.rng.choice([name for name in self.harms if self.done[name] == least])
        self.done[name] += 1
        began_s = time.time()
        self.harms[name]()
        with self.scene.harms.open("a") as harms:
            harms.write(f"{began_s:.3f} {time.time():.3f} {name}\n")

    def kill_engine(self) -> None:
        self.scene.kill_engine()
        self._wait(0, 2)
        self.scene.start_engine()

    def kill_slurmctld(self) -> None:
        self._kill_controller()
        self._wait(0.1, 4)
        self.scene.cluster.start("slurmctld")

    def _kill_controller(self) -> None:
        self.killed_slurmctld_s.append(time.time())
        self.scene.cluster.kill("slurmctld")

    def kill_slurmrestd(self) -> None:
        self.scene.cluster.kill("slurmrestd-tcp")
        self._wait(0.1, 4)
        self.scene.cluster.start("slurmrestd-tcp")

    def kill_both(self) -> None:
        self._kill_controller()
        self.scene.kill_engine()
        self._wait(0, 1)
        self.scene.start_engine()
        self._wait(0, 4)
        self.scene.cluster.start("slurmctld")

    def kill_database(self) -> None:
        assert self.scene.server is not None
        self.scene.server.kill()
        self._wait(0, 7)
        self.scene.server.start()

    def cut_database(self) -> None:
        line = self.scene.line
        assert line is not None
        if self.rng.random() < 0.5:
            line.cut()
            return
        line.silence()
        self._wait(0.5, 7)
        line.cut()
        line.speak()

    def cut(self, line: CuttingProxy) -> None:
        line.mode = self.rng.choice(MODES)
        if line.mode in ("refuse", "swallow"):
            line.cut()
        self._wait(0.5, 6)
        line.mode = "pass"
        line.cut()

    def _wait(self, least_s: float, most_s: float) -> None:
        time.sleep(self.rng.uniform(least_s, most_s))


def played(scene: Scene, rng: random.Random, rounds: int, seed: int) -> dict[str, Any]:
    """The whole play, and what is found afterwards."""
    monkey = Monkey(scene, rng)
    recoveries: list[float] = []
    with ExitStack() as after:
        scene.begin(seed, after)
        began = time.monotonic()
        for turn in range(rounds):
            time.sleep(rng.uniform(0.3, 4.0))
            monkey.strike()
            scene.keep()
            # Half of the time the next one comes before all is well again.
            if rng.random() < 0.5 or turn == rounds - 1:
                recoveries.append(scene.await_recovery(time.time()))
        took_s = time.monotonic() - began
        scene.end_clients()
    settled_s = scene.await_settled()
    jobs, rows = jobs_and_rows(scene)
    machines = machines_of(scene.cluster)
    scene.stop_engine()
    shutil.copy(scene.cluster.folder / "log/slurmctld.log", scene.folder)
    audit = subprocess.run(
        [sys.executable, "-m", "console.cli.main", "audit", "verify", scene.place], cwd=ROOT, capture_output=True,
        text=True, env=scene.environment, timeout=120, check=False,
    )  # fmt: skip
    log = (scene.folder / "slurmctld.log").read_text("utf-8", "replace")
    seen = Seen(jobs, machines, rows, log, monkey.killed_slurmctld_s)
    verdict = judged(scene.place, scene.told.read_text(), seen)
    if audit.returncode:
        verdict.faults.append(f"muster audit verify: {audit.stdout[-500:]} {audit.stderr[-500:]}")
    recoveries.sort()
    return {
        "database": "PostgreSQL" if scene.server is not None else "SQLite",
        "harms": sum(monkey.done.values()),
        "kills": sum(count * (2 if " and " in name else 1) for name, count in monkey.done.items() if "kill" in name),
        "by kind": dict(monkey.done),
        "ended by themselves": dict(scene.exits),
        "seconds": round(took_s),
        "recovered after s, median": round(recoveries[len(recoveries) // 2], 1),
        "recovered after s, longest": round(recoveries[-1], 1),
        "settled after s": round(settled_s),
        **verdict.counts,
        "audit": audit.stdout.strip().splitlines()[0] if audit.stdout.strip() else "",
        "faults": verdict.faults,
    }


def jobs_and_rows(scene: Scene) -> tuple[list[list[str]], dict[str, str]]:
    """Slurm's own list and the mirror's, taken while neither changed; else as they are after a while."""
    until = time.monotonic() + 60
    while True:
        jobs, rows = listed(scene.cluster), scene.rows()
        time.sleep(3)
        if (listed(scene.cluster), scene.rows()) == (jobs, rows) or time.monotonic() > until:
            return jobs, rows


def listed(cluster: SlurmCluster) -> list[list[str]]:
    """Of each job: id, state, reason, restarts, priority, comment."""
    words = "JobID:20,State:20,Reason:40,RestartCnt:8,PriorityLong:12,Comment:80"
    lines = cluster.run("squeue", "-h", "-a", "-t", "all", "-O", words).splitlines()
    return sorted([line[:20], line[20:40], line[40:80], line[80:88], line[88:100], line[100:]] for line in lines)


def machines_of(cluster: SlurmCluster) -> dict[str, str]:
    """Node or partition -> its state, as Slurm writes it."""
    nodes = cluster.run("sinfo", "-h", "-N", "-a", "-o", "%N %T").split()
    partitions = cluster.run("sinfo", "-h", "-a", "-o", "%R %a").split()
    return {name: state.lower() for words in (nodes, partitions)
            for name, state in zip(words[::2], words[1::2], strict=True)}  # fmt: skip


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
