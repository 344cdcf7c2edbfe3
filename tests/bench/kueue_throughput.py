"""Admissions a second of Kueue and of the policy `kueue`, with the same queues and work: `kueue_throughput.py [--work
1000] [--queues 8] [--json FILE]`.

The queues are of one cohort, with quota and room for all of the work: workloads of one pod of one CPU, one flavor.
Two ways:

- backlog: all is there in queues that are held; from the moment they open until the last workload is admitted.
- arrivals: the queues are open; from the first submission until the last workload is admitted. Kueue's come by eight
  writers, ours one command after the other.

Kueue's figure includes its scheduler and controllers, the API server and etcd, with no limit on its client's requests.
It leaves out jobs, pods, kubelets and the scheduler of pods: its workloads are created as such. Muster's includes its
checks, the choice of nodes, events and, where it is durable, the journal with a synced transaction for each command. It
leaves out HTTP, agents and executors. So the two do different things; the ratio is of what each needs for an admission.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from engine.control import Engine  # noqa: E402
from engine.model.commands import HoldQueues, OpenQueues, SetPolicy, Submit  # noqa: E402
from engine.model.specs import CellSpec, PoolSpec, Resources, WorkloadState  # noqa: E402
from tests.differential.kueue.lives import FlavorLimits, Life, LifeJob, LifeQueue  # noqa: E402
from tests.differential.kueue.muster_side import cell, workload  # noqa: E402
from tests.differential.kueue.objects import KUEUE, LifeObjects, nodes, shared_by_all  # noqa: E402
from tests.support.kubernetes_cluster import Admin, KubernetesCluster, own, why_not  # noqa: E402
from tests.support.patience import until  # noqa: E402

NO_LIMIT_ON_REQUESTS = {"clientConnection": {"qps": 100_000, "burst": 100_000}}
WRITERS = 8
LOOK_S = 0.1
PARTS = ("kueue", "kube-apiserver", "etcd")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


class Throughput(msgspec.Struct, frozen=True):
    who: str
    way: str
    workloads: int
    seconds: float
    cpu_seconds: float
    """Of all processes that take part, without whoever submits."""

    @property
    def per_second(self) -> float:
        return self.workloads / self.seconds

    @property
    def per_cpu_second(self) -> float:
        return self.workloads / self.cpu_seconds


def load_of(way: str, queues: int, work: int) -> tuple[Life, list[LifeJob]]:
    """Names differ by the way, because both are on one cluster."""
    limits = (FlavorLimits("a", work, None, None),)
    names = [f"q{n}" for n in range(queues)]
    life = Life(0, False, ("a",), {"c0": ""}, tuple(LifeQueue(name, "c0", limits) for name in names), ())
    return life, [LifeJob(f"{way}-{n}", names[n % queues], 0, 1, 1) for n in range(work)]


# -- Kueue ------------------------------------------------------------------------------------------------------------


@contextmanager
def kueue_cluster() -> Iterator[KubernetesCluster]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nodes.json"
        file.write_bytes(msgspec.json.encode(nodes(0)))
        config = msgspec.json.encode(NO_LIMIT_ON_REQUESTS).decode()
        with own("--node-file", str(file), "--kueue-config", config, "--no-scheduler") as cluster:
            with cluster.admin() as admin:
                for path, body in shared_by_all():
                    admin.do("POST", path, body)
            yield cluster


def kueue_runs(queues: int, work: int) -> Iterator[Throughput]:
    with kueue_cluster() as cluster, cluster.admin() as admin:
        for way in ("backlog", "arrivals"):
            life, jobs = load_of(way, queues, work)
            objects = LifeObjects(life, way, "ample", pods=False)
            for path, body in objects.definitions():
                admin.do("POST", path, _held(body) if way == "backlog" else body)
            paths = [f"{KUEUE}/clusterqueues/{objects.name(queue.name)}" for queue in life.queues]
            if way == "backlog":
                _create(cluster, way, jobs)
                until(lambda way=way: _counted(admin, way, "pendingWorkloads") == work)
            cpu_s, begun = _cpu_s(cluster), time.perf_counter()
            if way == "backlog":
                _open(cluster, paths)
            else:
                _create(cluster, way, jobs)
            while _counted(admin, way, "admittedWorkloads") < work:
                time.sleep(LOOK_S)
            yield Throughput("Kueue", way, work, time.perf_counter() - begun, _cpu_s(cluster) - cpu_s)


def _held(body: dict[str, object]) -> dict[str, object]:
    if body["kind"] != "ClusterQueue":
        return body
    spec = body["spec"]
    assert isinstance(spec, dict)
    return {**body, "spec": {**spec, "stopPolicy": "Hold"}}


def _open(cluster: KubernetesCluster, paths: list[str]) -> None:
    """All at once. Kueue's own webhook may answer too late once it is busy with those that are open."""

    def open_one(path: str) -> None:
        with cluster.admin() as admin:
            content, kind = b'{"spec": {"stopPolicy": "None"}}', {"Content-Type": "application/merge-patch+json"}
            until(lambda: admin.raw("PATCH", path, content=content, headers=kind).is_success)

    with ThreadPoolExecutor(len(paths)) as openers:
        for done in [openers.submit(open_one, path) for path in paths]:
            done.result()


def _create(cluster: KubernetesCluster, space: str, jobs: list[LifeJob]) -> None:
    def write(mine: list[LifeJob]) -> None:
        with cluster.admin() as admin:
            for job in mine:
                admin.do("POST", f"{KUEUE}/namespaces/{space}/workloads", _workload(job))

    with ThreadPoolExecutor(WRITERS) as writers:
        for done in [writers.submit(write, jobs[n::WRITERS]) for n in range(WRITERS)]:
            done.result()


def _workload(job: LifeJob) -> dict[str, object]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": str(job.cpu)}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": job.name},
        "spec": {
            "queueName": job.queue,
            "podSets": [{"name": "main", "count": job.count, "template": template}],
        },
    }


def _counted(admin: Admin, way: str, what: str) -> int:
    """In all queues of the way, by Kueue."""
    queues = admin.do("GET", f"{KUEUE}/clusterqueues")["items"]
    return sum(each.get("status", {}).get(what, 0) for each in queues if each["metadata"]["name"].startswith(way))


def _cpu_s(cluster: KubernetesCluster) -> float:
    total = 0
    for part in PARTS:
        words = Path(f"/proc/{cluster.pid(part)}/stat").read_text().rpartition(")")[2].split()
        total += int(words[11]) + int(words[12])
    return total / TICKS_A_SECOND


# -- Muster -----------------------------------------------------------------------------------------------------------


def muster_runs(queues: int, work: int) -> Iterator[Throughput]:
    for who, durable in (("Muster in memory", False), ("Muster, durable", True)):
        for way in ("backlog", "arrivals"):
            with tempfile.TemporaryDirectory() as folder:
                life, jobs = load_of(way, queues, work)
                engine = Engine.open(Path(folder) / "journal.db" if durable else None, cell=_roomy(cell(life), work))
                engine.command(SetPolicy(policy="kueue"))
                run = _backlog if way == "backlog" else _arrivals
                begin = run(engine, life, jobs)
                cpu_s, begun = time.process_time(), time.perf_counter()
                begin()
                seconds, cpu_s = time.perf_counter() - begun, time.process_time() - cpu_s
                started = engine.state.workloads.state_counts[WorkloadState.RUNNING]
                assert started == work, f"{started} of {work} started"
                engine.close()
                yield Throughput(who, way, work, seconds, cpu_s)


def _roomy(spec: CellSpec, work: int) -> CellSpec:
    """One node of each flavor that has room for all of the work."""
    pools = tuple(PoolSpec(name=pool.name, capacity=Resources(cpu_milli=1000 * work)) for pool in spec.pools)
    return msgspec.structs.replace(spec, pools=pools)


def _backlog(engine: Engine, life: Life, jobs: list[LifeJob]) -> Callable[[], object]:
    names = tuple(queue.name for queue in life.queues)
    engine.command(HoldQueues(names=names))
    engine.command(Submit(workloads=tuple(map(workload, jobs))))
    return lambda: engine.command(OpenQueues(names=names))


def _arrivals(engine: Engine, life: Life, jobs: list[LifeJob]) -> Callable[[], object]:
    submits = [Submit(workloads=(workload(job),)) for job in jobs]
    return lambda: [engine.command(submit) for submit in submits]


# -- what is told -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=int, default=1000, help="workloads")
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    print(f"{asked.work} workloads, {asked.queues} queues; load of the machine before {os.getloadavg()[0]:.1f}")
    found = [*kueue_runs(asked.queues, asked.work), *muster_runs(asked.queues, asked.work)]
    _table(found)
    print(f"load of the machine after {os.getloadavg()[0]:.1f}")
    if asked.json:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))


def _table(found: list[Throughput]) -> None:
    kueue = {each.way: each for each in found if each.who == "Kueue"}
    print(f"{'':18}{'way':>10}{'seconds':>10}{'a second':>12}{'x Kueue':>9}{'a CPU second':>14}{'x Kueue':>9}")
    for each in found:
        beside = kueue[each.way]
        print(
            f"{each.who:18}{each.way:>10}{each.seconds:10.2f}"
            f"{each.per_second:12,.0f}{each.per_second / beside.per_second:9.1f}"
            f"{each.per_cpu_second:14,.0f}{each.per_cpu_second / beside.per_cpu_second:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
