"""A large cluster listed and followed: `kubernetes_large.py [--pods 100000] [--nodes 10000] [--rate 1000]`.

The API server is made up, a process of its own on loopback, and sends pods and nodes of the size of real ones (3.8 KB
and 4.1 KB with their managedFields). `--kubeconfig FILE` asks a real one instead, for what is in it. `--real` starts
one of `../shared/kubernetes` and puts the same objects into its etcd, with its controllers stopped, so that nobody
changes them; only the row of the cell is measured then.

Prints one JSON row for each: wall time, CPU time of this process, and how much its memory grew; for events, how long
after it was sent each was taken. The first row is of a cell that mirrors all of it: the time until its last pod is in
the journal.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import httpx

from engine.external.kubernetes_api import kubeconfig
from engine.external.kubernetes_api.core_objects import KubernetesObject
from engine.external.kubernetes_api.kinds import KINDS
from engine.external.kubernetes_api.kubeconfig import KubernetesUser, Reach, reach_of
from engine.external.kubernetes_api.listing import KindReader
from engine.external.kubernetes_api.observation import ClusterObservation
from engine.external.kubernetes_api.reflector import ChangeBatch, Reflector
from engine.external.kubernetes_api.transport import KubernetesTransport
from tests.support.kubernetes_cluster import KubernetesCluster, own
from tests.support.scripted_kubernetes import Answer, Query, ScriptedKubernetes, event, initial_end

BY_NAME = {kind.resource: kind for kind in KINDS}
MIRRORED = ("nodes", "pods", "workloads", "clusterqueues", "localqueues", "resourceflavors")
RUNS = 5
"""Of a real API server, whose own work beside the lists differs from run to run."""
GANG = 8
"""Pods of a workload."""
FIELDS = [{"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:field-{n}": {".": {}} for n in range(60)}}]


def pod(number: int, version: int) -> dict[str, Any]:
    """3.8 KB, as one of a training job with one container."""
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-23T11:00:00Z"}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    return {
        "metadata": {
            "name": f"train-{number:06d}-abcde",
            "namespace": f"team-{number // GANG % 40}",
            "uid": f"00000000-0000-4000-8000-{number:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-23T11:00:00Z",
            "labels": {"batch.kubernetes.io/job-name": f"train-{number // GANG}", "app": "train", "sent": ""},
            "annotations": {"kueue.x-k8s.io/workload": f"job-train-{number // GANG}", "note": "x" * 650},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
            ],
            "managedFields": FIELDS,
        },
        "spec": {
            "nodeName": f"node-{number % 10_000:05d}",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1",
                    "resources": {"requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"}},
                    "env": [{"name": f"VARIABLE_{n}", "value": "value"} for n in range(12)],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
        "status": {"phase": "Running", "startTime": "2026-11-23T11:00:00Z", "conditions": conditions},
    }


def node(number: int, version: int) -> dict[str, Any]:
    """4.1 KB, most of it the images that it has."""
    quantities = {"cpu": "96", "memory": "768Gi", "nvidia.com/gpu": "16", "pods": "110"}
    conditions = [
        {"type": kind, "status": "True" if kind == "Ready" else "False", "reason": "Good"}
        for kind in ("MemoryPressure", "DiskPressure", "Ready")
    ]
    return {
        "metadata": {
            "name": f"node-{number:05d}",
            "uid": f"00000000-0000-4000-9000-{number:012d}",
            "resourceVersion": str(version),
            "labels": {f"label.example/{n}": f"value-{number % 7}" for n in range(20)},
            "managedFields": FIELDS,
        },
        "spec": {"providerID": f"cloud:///{number}"},
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": conditions,
            "images": [{"names": [f"registry.example/image-{n}"], "sizeBytes": n} for n in range(30)],
        },
    }


def workload(number: int, version: int) -> dict[str, Any]:
    """One that Kueue has admitted, with GANG pods."""
    space, quota = f"team-{number % 40}", {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
    at = "2026-11-23T11:00:00Z"
    conditions = [{"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at}
                  for kind in ("QuotaReserved", "Admitted", "PodsReady")]  # fmt: skip
    flavors = dict.fromkeys(quota, "default")
    assignment = {"name": "main", "count": GANG, "flavors": flavors, "resourceUsage": quota}
    return {
        "metadata": {
            "name": f"job-train-{number}",
            "namespace": space,
            "uid": f"00000000-{number % 10_000:04d}-4000-a000-{number:012d}",
            "resourceVersion": str(version),
            "creationTimestamp": at,
            "managedFields": FIELDS,
        },
        "spec": {
            "queueName": "all",
            "podSets": [{"name": "main", "count": GANG, "template": {"spec": pod(0, 0)["spec"]}}],
        },
        "status": {
            "conditions": conditions,
            "admission": {"clusterQueue": "all", "podSetAssignments": [assignment]},
        },
    }


def queues() -> dict[str, list[dict[str, Any]]]:
    """One ClusterQueue, and a LocalQueue in each namespace."""
    about = {"resourceVersion": "1"}
    quota = [{"name": name, "nominalQuota": "10M"} for name in ("cpu", "nvidia.com/gpu")]
    groups = [{"coveredResources": ["cpu", "nvidia.com/gpu"], "flavors": [{"name": "default", "resources": quota}]}]
    return {
        "resourceflavors": [{"metadata": about | {"name": "default", "uid": "f"}, "spec": {}}],
        "clusterqueues": [{"metadata": about | {"name": "all", "uid": "q"}, "spec": {"resourceGroups": groups}}],
        "localqueues": [
            {"metadata": about | {"name": "all", "namespace": f"team-{n}", "uid": f"l{n}"},
             "spec": {"clusterQueue": "all"}}
            for n in range(40)
        ],
    }  # fmt: skip


def serve(pods: int, nodes: int, rate: int) -> None:
    """The made-up API server, until its input ends."""
    bare = {"pods": [_text(pod(n, n + 1)) for n in range(pods)], "nodes": [_text(node(n, n + 1)) for n in range(nodes)]}
    bare["workloads"] = [_text(workload(n, n + 1)) for n in range(-(-pods // GANG))]
    bare |= {kind: [_text(each) for each in found] for kind, found in queues().items()}
    marks = [pod(n, 0) for n in range(min(pods, 1000))]

    def answer(path: str, query: Query) -> Answer:
        kind = path.rpartition("/")[2]
        if "sendInitialEvents" in query:
            return 200, {}, [*_initial(bare[kind]), initial_end(pods + nodes)]
        if "watch" in query:
            return 200, {}, _events(marks, pods + nodes, rate) if kind == "pods" else []
        size, begin = int(query.get("limit", "0")) or len(bare[kind]), int(query.get("continue", "0"))
        some = b",".join(bare[kind][begin : begin + size])
        more = str(begin + size) if begin + size < len(bare[kind]) else ""
        head = json.dumps({"resourceVersion": str(pods + nodes), "continue": more}).encode()
        return 200, {}, [b'{"metadata":' + head + b',"items":[' + some + b"]}"]

    with ScriptedKubernetes(answer) as server:
        print(server.url, flush=True)
        sys.stdin.read()


REGISTRY = {
    "nodes": ("minions", "v1", "Node"), "pods": ("pods", "v1", "Pod"),
    "workloads": ("kueue.x-k8s.io/workloads", "kueue.x-k8s.io/v1beta2", "Workload"),
    "clusterqueues": ("kueue.x-k8s.io/clusterqueues", "kueue.x-k8s.io/v1beta2", "ClusterQueue"),
    "localqueues": ("kueue.x-k8s.io/localqueues", "kueue.x-k8s.io/v1beta2", "LocalQueue"),
    "resourceflavors": ("kueue.x-k8s.io/resourceflavors", "kueue.x-k8s.io/v1beta2", "ResourceFlavor"),
}  # fmt: skip
"""Where the API server keeps a kind in etcd, and as what."""
STOPPED = ("kueue", "kube-controller-manager", "kube-scheduler", "kubelets")
AT_ONCE = 100
"""Objects of one transaction."""


def real(pods: int, nodes: int) -> Iterator[dict[str, Any]]:
    """The cell's row, RUNS times, of a real API server, whose own CPU time differs from run to run."""
    with own("--nodes", "1") as cluster:
        without_webhooks(cluster)
        for part in STOPPED:
            cluster.kill(part)
        began = time.monotonic()
        objects: dict[str, Iterator[dict[str, Any]]] = {kind: iter(found) for kind, found in queues().items()}
        objects["nodes"] = (node(n, 0) for n in range(nodes))
        objects["workloads"] = (workload(n, 0) for n in range(-(-pods // GANG)))
        objects["pods"] = (pod(n, 0) for n in range(pods))
        with httpx.Client(base_url=cluster.etcd_url(), trust_env=False, timeout=120) as etcd:
            for kind, found in objects.items():
                fill(etcd, kind, found)
            caught_up(cluster, etcd)
        for kind in MIRRORED:
            # As any server that has run for a while: what it was given behind its back it reads with much work.
            listed(cluster.reach(), kind, "paged")
        filled_s = round(time.monotonic() - began, 1)
        for _ in range(RUNS):
            before = cpu_s(cluster.pid("kube-apiserver"))
            row = {"filled_s": filled_s} | mirrored(cluster.reach())
            row["server_cpu_s"] = round(cpu_s(cluster.pid("kube-apiserver")) - before, 1)
            yield row | reference(pods) | {"load": os.getloadavg()[0]}


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def without_webhooks(cluster: KubernetesCluster) -> None:
    """Have versions of Kueue's kinds differ in name only. An API server that does not reach the webhook that converts
    them, because Kueue is stopped, reads all Workloads again and again."""
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    with cluster.admin() as admin:
        for each in admin.do("GET", kinds)["items"]:
            plain = {"spec": {"conversion": {"strategy": "None", "webhook": None}}}
            admin.patch(f"{kinds}/{each['metadata']['name']}", plain)


def fill(etcd: httpx.Client, kind: str, objects: Iterator[dict[str, Any]]) -> None:
    """Put objects where the API server keeps them; it reads JSON there as well as its own format."""
    folder, api, name = REGISTRY[kind]
    while some := list(islice(objects, AT_ONCE)):
        puts = []
        for each in some:
            about = each["metadata"]
            about.pop("resourceVersion")
            about.setdefault("creationTimestamp", "2026-11-23T11:00:00Z")
            key = "/".join(filter(None, ("/registry", folder, about.get("namespace"), about["name"])))
            value = json.dumps({"apiVersion": api, "kind": name} | each).encode()
            puts.append({"requestPut": {"key": b64encode(key.encode()).decode(), "value": b64encode(value).decode()}})
        etcd.post("/v3/kv/txn", json={"success": puts}).raise_for_status()


def caught_up(cluster: KubernetesCluster, etcd: httpx.Client) -> None:
    """Wait until the API server has in memory what was put into its etcd."""
    version = etcd.post("/v3/kv/range", json={"key": "YQ=="}).json()["header"]["revision"]
    with cluster.admin() as admin:
        for kind in REGISTRY:
            query = f"?limit=1&resourceVersionMatch=NotOlderThan&resourceVersion={version}"
            while not admin.raw("GET", BY_NAME[kind].path + query).is_success:
                time.sleep(1)


def reference(pods: int) -> dict[str, float]:
    """The CPU time in which the standard library reads so many pods, to compare machines by."""
    text, cpu = _text(pod(0, 0)), time.process_time()
    for _ in range(pods):
        json.loads(text)
    return {"json_loads_of_pods_s": round(time.process_time() - cpu, 2)}


def _text(found: dict[str, Any]) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode()


def _initial(bare: list[bytes]) -> Iterator[bytes]:
    """All as events, some to a piece, as a server writes that is not waited for."""
    for begin in range(0, len(bare), 16):
        yield b"".join(b'{"type":"ADDED","object":%b}\n' % each for each in bare[begin : begin + 16])


def _events(marks: list[dict[str, Any]], version: int, rate: int) -> Iterator[bytes]:
    """`rate` events a second, each with the time at which it was sent."""
    begin, sent = time.monotonic(), 0
    while True:
        found = marks[sent % len(marks)]
        sent += 1
        found["metadata"]["resourceVersion"] = str(version + sent)
        found["metadata"]["labels"]["sent"] = repr(time.monotonic())
        yield event("MODIFIED", found)
        ahead = begin + sent / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)


def listed(reach: Reach, kind: str, way: str) -> dict[str, Any]:
    """One list, its objects kept as a cell's mirror would."""
    line = KubernetesTransport(reach)
    kept: dict[str, KubernetesObject] = {}

    def keep(batch: ChangeBatch) -> None:
        kept.update((change.uid, change.object) for change in batch.changes if change.object is not None)

    gc.collect()
    before, begin, cpu = _rss_mib(), time.monotonic(), time.process_time()
    if way == "reflector":
        reflector = Reflector(line, BY_NAME[kind], keep)
        reflector.list_now()
    else:
        for came in getattr(KindReader(line, BY_NAME[kind]), way)():
            kept.update((each.object.metadata.uid, each.object) for each in came.events)
    wall, cpu = time.monotonic() - begin, time.process_time() - cpu
    row = {"kind": kind, "way": way, "objects": len(kept), "wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}
    row |= {"us_each": round(cpu / max(1, len(kept)) * 1e6, 1), "grew_mib": round(_rss_mib() - before)}
    line.close()
    return row


def mirrored(reach: Reach) -> dict[str, Any]:
    """A cell on disk that is told all there is."""
    from engine.control import Engine
    from engine.external.kubernetes.cluster_mirror import ClusterWatch
    from engine.model.specs import CellSpec, Settings

    with tempfile.TemporaryDirectory() as folder:
        engine = Engine.open(Path(folder) / "cell.db", cell=CellSpec(settings=Settings(decided_by="kubernetes")))
        engine.advance(int(time.time() * 1000))
        gc.collect()
        before, begin, cpu = _rss_mib(), time.monotonic(), time.process_time()
        watch = ClusterWatch(KubernetesTransport(reach), [BY_NAME[kind] for kind in MIRRORED], lambda ask: ask(engine))
        watch.start()
        while not watch.passes:
            time.sleep(0.05)
        wall, cpu = time.monotonic() - begin, time.process_time() - cpu
        tasks = sum(engine.state.workloads.tasks)
        watch.stop()
        row = {"kind": "cell", "nodes": len(engine.state.capacity.row_of), "workloads": len(engine.state.workloads.ids)}
        row |= {"pods_on_nodes": tasks, "wall_s": round(wall, 2), "cpu_s": round(cpu, 2)}
        row |= {"grew_mib": round(_rss_mib() - before), "fault": watch.fault, "left_out": len(watch.mirror.left_out())}
        engine.close()
        return row


def followed(reach: Reach, rate: int, for_s: float) -> dict[str, Any]:
    """How long after it was sent an event is taken."""
    lags: list[float] = []
    cpu = time.process_time()
    with ClusterObservation(KubernetesTransport(reach), [BY_NAME["pods"]]) as observation:
        end = 0.0
        while not end or time.monotonic() < end:
            now_batches = observation.take(1.0)
            now = time.monotonic()
            for batch in now_batches:
                sent = [change.object.metadata.labels["sent"] for change in batch.changes if change.object]
                lags += [now - float(each) for each in sent if each]
            if lags and not end:
                lags.clear()
                end, cpu = now + for_s, time.process_time()
        cpu = time.process_time() - cpu
    lags.sort()
    row = {"events": len(lags), "a_second": round(len(lags) / for_s), "cpu_share": round(cpu / for_s, 3)}
    return row | {f"lag_p{p}_ms": round(lags[len(lags) * p // 100] * 1000, 2) for p in (50, 99)}


def _rss_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--kubeconfig", default="")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "WAY"))
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.pods, arguments.nodes, arguments.rate)
        return
    if arguments.real:
        for row in real(arguments.pods, arguments.nodes):
            print(json.dumps(row), flush=True)
        return
    if arguments.kubeconfig:
        for way in ("streamed", "paged"):
            print(json.dumps(listed(reach_of({}, file=arguments.kubeconfig), "pods", way)))
        return
    sizes = [f"--pods={arguments.pods}", f"--nodes={arguments.nodes}", f"--rate={arguments.rate}"]
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        reach = Reach(
            name="bench",
            cluster=kubeconfig.KubernetesCluster(server=server.stdout.readline().strip()),
            user=KubernetesUser(),
        )
        print(json.dumps(mirrored(reach) | reference(arguments.pods)), flush=True)
        for kind, way in (("pods", "streamed"), ("pods", "paged"), ("nodes", "reflector")):
            print(json.dumps(listed(reach, kind, way)), flush=True)
        print(json.dumps(listed(reach, "pods", "reflector")), flush=True)
        gc.collect()
        print(json.dumps(followed(reach, arguments.rate, arguments.seconds)), flush=True)
        print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))
    finally:
        server.communicate()


if __name__ == "__main__":
    main()
