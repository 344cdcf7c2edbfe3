"""Engine, API server, etcd and Kueue killed with -9 at random while acts and submissions flow.

    .venv/bin/python tests/bench/kubernetes_crash.py [--kills 60] [--seed 1] [--folder DIR]

A cluster of `../shared/kubernetes/kube-up` of its own, and Muster's engine with its journal and its carrier in a
process of its own. What counts is what the engine has acknowledged. A submission is lost when no job is it at the end,
doubled when two are. Of each queue, node and job the last act that was acknowledged must hold at the end; an intent
that is in doubt must be on the list that people see.
"""

from __future__ import annotations

import argparse
import contextlib
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import httpx
import msgspec
from kubernetes_cluster import KubernetesCluster, own
from kubernetes_room import KueueQueue

from engine.control import Engine
from engine.external.kubernetes.change_carrier import KubernetesDriver
from engine.external.kubernetes.names import workload_id
from engine.external.kubernetes_api.kubeconfig import reach_of
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.external.observed_changes import new_intent
from engine.loop import EngineLoop
from engine.model import commands as cmd
from engine.model.errors import MusterError
from engine.model.specs import CellSpec, NodeSpec, PoolSpec, QueueSpec, Resources, Settings

PARTS = ("engine", "kube-apiserver", "etcd", "kueue")
OTHERS = ("kube-controller-manager", "kube-scheduler", "kubelets")
QUOTAS = (8, 12, 16)
SETTLE_S = 240.0
NODE = "node-000"


# -- the process that is killed ---------------------------------------------------------------------------------------


def serve(kubeconfig: str, journal: str, queue: str) -> None:
    """Commands as lines of JSON in, an answer for each out once it is durable."""
    engine = Engine.open(journal)
    engine.acts = True
    engine.advance(time.time_ns() // 1_000_000)
    if engine.version == 0 or not engine.state.queues.specs:
        engine.command(cmd.Define(cell=_cell(queue)))
    loop = EngineLoop(engine)
    line = KubernetesTransport(reach_of({}, file=kubeconfig), rate=500, burst=500)
    driver = KubernetesDriver(line, loop)
    loop.start()
    driver.start()
    decode = msgspec.json.Decoder(cmd.AnyCommand).decode
    print("ready", flush=True)
    for said in sys.stdin:
        if said.strip() == "report":
            print(json.dumps(loop.call(_report)), flush=True)
            continue
        try:
            command = decode(said)
            loop.call(lambda engine, command=command: _take(engine, command))
            print("taken", flush=True)
        except MusterError as error:
            print(str(error).replace("\n", " "), flush=True)


def _cell(queue: str) -> CellSpec:
    return CellSpec(
        name="gpu",
        pools=(PoolSpec(name="gpu", capacity=Resources(cpu_milli=96_000, memory_mib=786_432, gpu_milli=8000)),),
        nodes=(NodeSpec(id=NODE, pool="gpu"),),
        queues=(QueueSpec(name=queue),),
        settings=Settings(decided_by="kubernetes"),
    )


def _take(engine: Engine, command: cmd.AnyCommand) -> None:
    """Acts go past the check at the door, which asks the mirrored state: there is no mirror here."""
    if isinstance(command, cmd.Submit):
        engine.command(command)
        return
    with engine._turn():
        engine._emit(new_intent(engine.state.intents.issued, command))


def _report(engine: Engine) -> dict[str, Any]:
    shown = engine.intents(200)
    doubts = [f"{view.what} {','.join(view.subjects)}: {view.text}" for view in shown.items if view.phase == "in doubt"]
    return {
        "open": shown.open + shown.sent + shown.accepted, "in doubt": shown.in_doubt, "told": doubts,
        "phases": Counter(view.phase for view in shown.items),
        "refused": [f"{view.what}: {view.text}" for view in shown.items if view.phase in ("refused", "expired")][:5],
    }  # fmt: skip


class Muster:
    """That process, and what it has acknowledged."""

    def __init__(self, kubeconfig: Path, journal: Path, queue: str) -> None:
        self._words = [sys.executable, __file__, "--serve", str(kubeconfig), str(journal), queue]
        self._lock = threading.Lock()
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, what: str) -> str:
        """The answer; empty: it was killed before there was one."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            assert self.process.stdin is not None
            self.process.stdin.write(what + "\n")
            self.process.stdin.flush()
            return self._line()
        return ""

    def kill(self) -> None:
        """Whoever waits for an answer gets none."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with self._lock:
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def restart(self) -> None:
        with self._lock:
            self.start()


# -- what flows -------------------------------------------------------------------------------------------------------


class Flow:
    """Acts and submissions, one after the other, each repeated until it is acknowledged."""

    def __init__(self, muster: Muster, queue: KueueQueue, rng: random.Random) -> None:
        self._muster = muster
        self._queue = queue
        self._rng = rng
        self.submitted: list[str] = []
        self.cancelled: dict[str, str] = {}
        """UID of a job -> what was submitted as it."""
        self.failed: BaseException | None = None
        self.last: dict[str, Any] = {"stop": "None", "quota": 8, "cordon": False}
        self.acts = 0
        self.over = threading.Event()

    def run(self) -> None:
        try:
            while not self.over.is_set():
                self._one()
                time.sleep(self._rng.uniform(0.0, 0.3))
        except BaseException as error:
            self.failed = error

    def _one(self) -> None:
        dice = self._rng.random()
        if dice < 0.55:
            name = f"w{len(self.submitted)}"
            self._do(cmd.Submit(workloads=(self._queue.spec(name),)))
            self.submitted.append(name)
        elif dice < 0.7:
            stop = self._rng.choice(["Hold", "None"])
            act = cmd.HoldQueues if stop == "Hold" else cmd.OpenQueues
            self._act("stop", stop, act(names=(self._queue.name,)))
        elif dice < 0.8:
            gpus = self._rng.choice(QUOTAS)
            nominal = {"cpu_milli": 96_000, "gpu_milli": gpus * 1000}
            self._act("quota", gpus, cmd.ChangeQueue(queue=QueueSpec(name=self._queue.name, nominal=nominal)))
        elif dice < 0.9:
            cordon = self._rng.random() < 0.5
            self._act("cordon", cordon, (cmd.Cordon if cordon else cmd.Uncordon)(ids=(NODE,)))
        else:
            self._cancel()

    def _act(self, what: str, value: Any, command: cmd.AnyCommand) -> None:
        self._do(command)
        self.last[what] = value
        self.acts += 1

    def _cancel(self) -> None:
        """Of work that Kueue knows by now; while the API server is down there is nothing to choose from."""
        with contextlib.suppress(httpx.HTTPError):
            path = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{self._queue.space}/workloads?limit=20"
            answer = self._queue.admin.raw("GET", path)
            works = [each["metadata"] for each in answer.json()["items"]] if answer.is_success else []
            if not works:
                return
            about = self._rng.choice(works)
            owner = about["ownerReferences"][0]
            if owner["uid"] not in self.cancelled:
                self._do(cmd.Cancel(ids=(workload_id(self._queue.space, about["name"], about["uid"]),)))
                self.cancelled[owner["uid"]] = owner["name"].rpartition("-")[0]
                self.acts += 1

    def _do(self, command: cmd.AnyCommand) -> None:
        """An act that was not acknowledged is asked for once more: twice the same is once."""
        while True:
            said = self._muster.ask(msgspec.json.encode(command).decode())
            if said == "taken" or "already requested" in said:
                return
            assert not said, said
            time.sleep(0.1)


def batter(cluster: KubernetesCluster, muster: Muster, kills: int, rng: random.Random) -> Counter[str]:
    done: Counter[str] = Counter()
    for n in range(kills):
        time.sleep(rng.uniform(0.3, 3.0))
        part = PARTS[n % len(PARTS)] if n < len(PARTS) else rng.choice(PARTS)
        if part == "engine":
            muster.kill()
            time.sleep(rng.uniform(0.0, 1.0))
            muster.restart()
        else:
            cluster.kill(part)
            time.sleep(rng.uniform(0.0, 2.0))
            cluster.start(part)
        done[part] += 1
        revive(cluster)
        print(f"{n + 1:4} kills, the last of {part}", file=sys.stderr, flush=True)
    return done


def revive(cluster: KubernetesCluster) -> None:
    """Parts that ended themselves because the others were away, as a kubelet would start them again."""
    for part in (*PARTS[1:], *OTHERS):
        with contextlib.suppress(OSError):
            pid = cluster.pid(part)
            stat = Path(f"/proc/{pid}/stat")
            if stat.exists() and b") Z " not in stat.read_bytes():
                cluster.note(part)
                continue
        if part in cluster.commands:
            cluster.start(part)


def through_muster(cluster: KubernetesCluster, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    rng = random.Random(seed)
    revive(cluster)
    with cluster.admin() as admin:
        queue = KueueQueue(admin, gpus=8)
        muster = Muster(cluster.kubeconfig, folder / "journal.db", queue.local)
        flow = Flow(muster, queue, random.Random(seed + 1))
        thread = threading.Thread(target=flow.run)
        began = time.monotonic()
        thread.start()
        try:
            done = batter(cluster, muster, kills, rng)
        finally:
            flow.over.set()
            thread.join()
        if flow.failed is not None:
            raise flow.failed
        report = _settled(muster)
        found = _found(queue, flow)
        muster.kill()
    return {
        "kills": sum(done.values()), "of": dict(done), "submitted": len(flow.submitted), "acts": flow.acts,
        **found, "still open": report["open"], "in doubt": report["in doubt"], "told": report["told"],
        "refused or expired": report["refused"], "seconds": round(time.monotonic() - began, 1),
    }  # fmt: skip


def _settled(muster: Muster) -> dict[str, Any]:
    end = time.monotonic() + SETTLE_S
    while True:
        report: dict[str, Any] = json.loads(muster.ask("report"))
        if not report["open"] or time.monotonic() > end:
            return report
        time.sleep(0.5)


def _found(queue: KueueQueue, flow: Flow) -> dict[str, Any]:
    jobs = queue.jobs().values()
    there = Counter(each["metadata"]["annotations"]["muster.dev/workload"] for each in jobs)
    uids = {each["metadata"]["uid"] for each in jobs}
    lost = [name for name in flow.submitted if not there[name] and name not in flow.cancelled.values()]
    spec = queue.queue()["spec"]
    node = queue.admin.do("GET", f"/api/v1/nodes/{NODE}")["spec"]
    now = {
        "stop": spec.get("stopPolicy", "None"),
        "quota": int(spec["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"]),
        "cordon": bool(node.get("unschedulable")),
    }
    return {
        "lost": len(lost),
        "doubled": sum(count > 1 for count in there.values()),
        "cancelled": len(flow.cancelled), "cancelled and still there": len(flow.cancelled.keys() & uids),
        "not as last acknowledged": {what: now[what] for what in now if now[what] != flow.last[what]},
    }  # fmt: skip


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--kills", type=int, default=60)
    parse.add_argument("--seed", type=int, default=1)
    parse.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parse.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    with own("--nodes", "2") as cluster, tempfile.TemporaryDirectory() as folder:
        print(json.dumps(through_muster(cluster, given.kills, given.seed, Path(folder)), indent=1))


if __name__ == "__main__":
    main()
