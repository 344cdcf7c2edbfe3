"""Other schedulers on the same work, each installed by the benchmark itself into a virtual environment of its own.

Asked for by name only (`run.py peers`): it downloads AccaSim and Ray once, into `build/peers/`, and takes minutes. A
peer that cannot be installed or does not run is a row that says so. What a figure includes differs, and every row says
how: none of these peers does the same thing as Muster.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.control import Engine
from engine.model.commands import Cancel, Submit
from engine.model.specs import (
    CellSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)
from engine.traces.replay import ReplayResult, prepare, replay

ROOT = Path(__file__).parents[2]
LOG = ROOT.parent / "shared" / "data" / "swf" / "KTH-SP2-1996-2.swf.gz"
ACCASIM, RAY = "accasim==1.1.3", "ray==2.60.0"
PATIENCE_S = 900
"""For one installation, or one run of a peer."""
NODES = 120
BUNDLES = 4
AT_ONCE = 100
"""Gangs of one transaction of ours, placement groups asked for before the first is waited for."""
PROCESSORS = AT_ONCE * BUNDLES
"""Of the one node that takes them all."""


class PeerFailed(Exception):
    """A peer could not be installed, or did not run."""


def peers() -> Iterator[dict[str, Any]]:
    """AccaSim and Ray, each beside the engine in the same run."""
    for peer, rows in (("AccaSim 1.1.3", accasim), ("Ray 2.60.0", ray)):
        try:
            yield from rows()
        except PeerFailed as failed:
            yield {"at": peer, "result": "skipped", "reference": str(failed)}


def installed(requirement: str) -> Path:
    """Python of a virtual environment that has the requirement; made if there is none."""
    folder = ROOT / "build" / "peers" / requirement.replace("==", "-")
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.exists():
        _output([sys.executable, "-m", "venv", "--clear", str(folder)])
        _output([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement])
        done.touch()
    return python


def _output(command: list[str]) -> str:
    """What the command printed. PeerFailed with its last line where it fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerFailed(f"{Path(command[0]).name}: {error}") from error
    if ended.returncode:
        last = (ended.stderr or ended.stdout).strip().splitlines()[-1:]
        raise PeerFailed(f"{' '.join(command[1:4])} failed: {last[0] if last else ended.returncode}"[:300])
    return ended.stdout


def _report(output: str) -> dict[str, Any]:
    """The last line, as JSON: what the scripts below print after whatever the peer prints."""
    report: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return report


# --- AccaSim -------------------------------------------------------------------------------------------------------

ACCASIM_SCRIPT = """
import collections, collections.abc, json, sys, time
collections.Mapping = collections.abc.Mapping  # gone since Python 3.10, and AccaSim is older
from accasim.base.allocator_class import FirstFit
from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut
from accasim.base.simulator_class import Simulator
from accasim.utils.reader_class import DefaultWorkloadParser
log, folder, nodes, cores, policy = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
system = {"groups": {"g": {"core": cores}}, "resources": {"g": nodes}, "equivalence": {"processor": {"core": 1}}}
with open(folder + "/system.json", "w") as out:
    json.dump({**system, "start_time": 0}, out)
dispatcher = {"fcfs": FirstInFirstOut, "easy": EASYBackfilling}[policy](FirstFit())
simulator = Simulator(log, folder + "/system.json", dispatcher, scheduling_output=False, statistics_output=False,
                      show_statistics=False, RESULTS_FOLDER_PATH=folder)
began = time.process_time()
simulator.start_simulation()
seconds = time.process_time() - began
parser, began = DefaultWorkloadParser(), time.process_time()
with open(log) as lines:
    for line in lines:
        parser.parse_line(line[:-1])
reading = time.process_time() - began
waits = simulator.mapper.wtimes
print(json.dumps({"jobs": len(waits), "seconds": seconds, "reading": reading,
                  "avg_wait_s": sum(waits) / len(waits)}))
"""


def accasim() -> Iterator[dict[str, Any]]:
    """KTH-SP2 on 120 nodes. The log both read has only jobs that ran, with processors and estimates as our replay
    takes them, so that both run the very same jobs."""
    if not LOG.exists():
        raise PeerFailed("no shared traces beside the checkout")
    python = installed(ACCASIM)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.swf"
        log.write_text(_same_for_both(LOG))
        for cores, policy in ((1, "fcfs"), (1, "easy"), (4, "fcfs")):
            command = [str(python), "-c", ACCASIM_SCRIPT, str(log), folder, str(NODES), str(cores), policy]
            theirs = _report(_output(command))
            yield _beside_accasim(theirs, cores, policy, *_replayed(log, NODES * cores, policy, "auto"))
        yield _beside_accasim(theirs, 4, "fcfs", *_replayed(log, NODES * 4, "fcfs", "engine"))


def _same_for_both(path: Path) -> str:
    plan = prepare(path, "swf", nodes=NODES)
    return "".join(
        f"{number} {job.arrival_ms // 1000} -1 {job.run_ms // 1000} {job.tasks} -1 -1 {job.tasks} {estimate // 1000} "
        "-1 1 1 1 1 1 1 -1 -1\n"
        for number, (job, estimate) in enumerate(zip(plan.jobs, plan.estimates, strict=True), start=1)
    )


def _replayed(log: Path, processors: int, policy: str, through: str) -> tuple[ReplayResult, float, float]:
    """Our figures; CPU seconds with reading the log, and wall seconds without. Of a count, which is over at once, the
    medians of five."""
    whole, alone = [], []
    for _ in range(5 if through == "auto" else 1):
        began = time.process_time()
        result = replay(log, "swf", nodes=processors, policy=policy, through=through)  # type: ignore[arg-type]
        whole.append(time.process_time() - began)
        alone.append(result.wall_s)
    return result, statistics.median(whole), statistics.median(alone)


def _beside_accasim(
    theirs: dict[str, Any], cores: int, policy: str, ours: ReplayResult, whole_s: float, alone_s: float
) -> dict[str, Any]:
    """AccaSim reads the log while it simulates: beside all of both, and beside both less what reading alone takes."""
    mine, rival = ours.jobs / whole_s, theirs["jobs"] / theirs["seconds"]
    alone = (theirs["seconds"] - theirs["reading"]) / alone_s
    return {
        "at": f"{NODES} nodes x {cores}, {policy}, {ours.through}",
        "result": f"{mine:,.0f} jobs/CPU s",
        "jobs_per_cpu_s": mine,
        "accasim_jobs_per_cpu_s": rival,
        "ratio": mine / rival,
        "ratio_without_reading": alone,
        "avg_wait_s": ours.avg_wait_s,
        "accasim_avg_wait_s": theirs["avg_wait_s"],
        "reference": f"AccaSim 1.1.3: {rival:,.0f} ({mine / rival:.1f} x; {alone:.1f} x without reading the log); mean "
        f"wait {ours.avg_wait_s:,.0f} s, there {theirs['avg_wait_s']:,.0f} s; AccaSim also names the nodes of each job",
    }


# --- Ray -----------------------------------------------------------------------------------------------------------

RAY_SCRIPT = """
import json, sys, time
import ray
from ray.util.placement_group import placement_group, remove_placement_group
folder, processors, bundles, at_once = sys.argv[1], *map(int, sys.argv[2:5])
ray.init(num_cpus=processors, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=folder)
def created_and_removed(count):
    groups = [placement_group([{"CPU": 1}] * bundles, strategy="PACK") for _ in range(count)]
    for group in groups:
        if not group.wait(60):
            raise SystemExit("a placement group was not ready after 60 s")
    for group in groups:
        remove_placement_group(group)
try:
    created_and_removed(1)
    rates = []
    for count, rounds in ((1, 50), (at_once, 3)):
        began = time.perf_counter()
        for _ in range(rounds):
            created_and_removed(count)
        rates.append(rounds * count / (time.perf_counter() - began))
finally:
    ray.shutdown()
print(json.dumps({"one_by_one": rates[0], "at_once": rates[1]}))
"""


def ray() -> Iterator[dict[str, Any]]:
    """Placement groups of 4 bundles, created, ready and removed, beside gangs of 4 tasks, submitted, placed and
    cancelled with each step on disk: one after the other, then as many at once as the node has room for."""
    python = installed(RAY)
    # The path of Ray's sockets must be short: the default folder for temporary files may not be.
    with tempfile.TemporaryDirectory(dir="/tmp" if os.path.isdir("/tmp") else None) as folder:
        numbers = map(str, (PROCESSORS, BUNDLES, AT_ONCE))
        theirs = _report(_output([str(python), "-c", RAY_SCRIPT, folder, *numbers]))
    for at_once, rival in ((1, theirs["one_by_one"]), (AT_ONCE, theirs["at_once"])):
        mine = _gangs_per_s(at_once, rounds=200 if at_once == 1 else 20)
        yield {
            "at": f"gangs of {BUNDLES}, {at_once} at once",
            "result": f"{mine:,.0f} gangs/s",
            "gangs_per_s": mine,
            "ray_per_s": rival,
            "ratio": mine / rival,
            "reference": f"Ray 2.60.0 placement groups, PACK on one node: {rival:,.0f}/s ({mine / rival:.1f} x); "
            "with RPC between its processes and resources leased on the node, in memory; ours is one process and a "
            "journal on disk",
        }


def _gangs_per_s(at_once: int, rounds: int) -> float:
    cell = CellSpec(
        name="bench",
        pools=(PoolSpec(name="cpu", capacity=Resources(cpu_milli=1000 * PROCESSORS)),),
        nodes=(NodeSpec(id="n0", pool="cpu"),),
        queues=(QueueSpec(name="q"),),
        priority_classes=(PriorityClassSpec(name="normal", value=0),),
    )
    task = TaskGroup(count=BUNDLES, request=Resources(cpu_milli=1000))
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.open(Path(folder) / "journal.db", cell=cell)
        began = time.perf_counter()
        for number in range(rounds):
            ids = [f"g{number}-{i}" for i in range(at_once)]
            gangs = [WorkloadSpec(id=name, queue="q", groups=(task,), estimate_ms=60_000) for name in ids]
            engine.commands([Submit(workloads=(gang,)) for gang in gangs])
            if any(engine.workload(name).state != "running" for name in ids):
                raise PeerFailed("a gang of ours did not start")
            engine.commands([Cancel(ids=(name,)) for name in ids])
        seconds = time.perf_counter() - began
        engine.close()
    return rounds * at_once / seconds
