"""A cell that mirrors a real Kubernetes cluster in this process, and the objects that people make there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.control import Engine
from engine.external.kubernetes.cluster_mirror import ClusterWatch
from engine.external.kubernetes.names import workload_id
from engine.external.kubernetes_api.capabilities import capabilities
from engine.external.kubernetes_api.kinds import KUEUE
from engine.model.specs import CellSpec, Settings, WorkloadState
from engine.state.invariants import faults_of
from tests.support.kubernetes_cluster import Admin, KubernetesCluster
from tests.support.patience import until

QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
JOBS = "/apis/batch/v1/namespaces"
CELL = CellSpec(settings=Settings(decided_by="kubernetes", preempt_across=True, preempt_after_ms=0))


class MirroredCell:
    """An engine and the mirror that tells it."""

    def __init__(self, cluster: KubernetesCluster, journal: Path | None = None, *, kueue: bool = True) -> None:
        self.engine = Engine.open(journal, cell=CELL)
        self._lock = threading.Lock()
        self.line = cluster.line()
        kinds = [kind for kind in capabilities(self.line).readable() if kueue or kind.group != KUEUE]
        self.watch = ClusterWatch(self.line, kinds, self.call)

    def call(self, function: Callable[[Engine], Any]) -> Any:
        with self._lock:
            self.engine.advance(max(int(time.time() * 1000), self.engine.now_ms))
            return function(self.engine)

    def state_of(self, name: str) -> str:
        """Of a workload; empty until it is known."""
        return str(self.call(lambda engine: _state(engine, name)))

    def word_of(self, name: str) -> str:
        found: str = self.call(lambda e: e.state.outside.word_of(e.state.workloads.row_of[name]))
        return found

    def nodes_of(self, name: str) -> dict[str, int]:
        """Node -> tasks of the workload there."""
        found: dict[str, int] = self.call(lambda engine: _nodes(engine, name))
        return found

    def used(self, queue: str) -> tuple[int, int, int, int]:
        found: tuple[int, int, int, int] = self.call(lambda e: e.state.queues.used_vector(e.state.queues.row_of[queue]))
        return found

    def faults(self) -> list[str]:
        found: list[str] = self.call(lambda e: faults_of(e.state))
        return found


def _state(engine: Engine, name: str) -> str:
    w = engine.state.workloads
    return WorkloadState(w.state[w.row_of[name]]).label if name in w.row_of else ""


def _nodes(engine: Engine, name: str) -> dict[str, int]:
    state, found = engine.state, {}
    a, w = state.allocations, state.workloads
    for i in a.of_workload(w.first_allocation[w.row_of[name]]):
        node = state.capacity.node_ids[a.node[i]]
        found[node] = found.get(node, 0) + a.count[i]
    return found


@contextmanager
def mirrored(cluster: KubernetesCluster, journal: Path | None = None, *, kueue: bool = True) -> Iterator[MirroredCell]:
    """A cell that was told all there is."""
    cell = MirroredCell(cluster, journal, kueue=kueue)
    cell.watch.start()
    try:
        until(lambda: cell.watch.passes > 0)
        yield cell
    finally:
        cell.watch.stop()
        cell.engine.close()


# -- what people make -------------------------------------------------------------------------------------------------


def make_flavor(admin: Admin, name: str, labels: dict[str, str] | None = None) -> str:
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": name}}
    admin.do("POST", f"{QUEUES}/resourceflavors", body | {"spec": {"nodeLabels": labels or {}}})
    return name


def make_queue(
    admin: Admin, name: str, space: str, flavor: str, quota: dict[str, str], manager: str = "admin", **spec: Any
) -> str:
    """A ClusterQueue whose fields belong to that manager, and a LocalQueue of that name in the namespace."""
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    groups = [{"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": resources}]}]
    body = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": groups, **spec},
    }
    admin.do("PATCH", f"{QUEUES}/clusterqueues/{name}?fieldManager={manager}", body, "application/apply-patch+yaml")
    local = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": name, "namespace": space},
        "spec": {"clusterQueue": name},
    }
    admin.do("POST", f"{QUEUES}/namespaces/{space}/localqueues", local)
    return name


def make_job(
    admin: Admin,
    space: str,
    name: str,
    queue: str,
    request: dict[str, str],
    *,
    pods: int = 1,
    completions: int = 0,
    seconds: float = 0.0,
    selector: dict[str, str] | None = None,
    priority: str = "",
) -> str:
    """A Job for the queue. `seconds`: how long each pod runs; 0: for ever. `priority`: a
    WorkloadPriorityClass. Returns the id of its workload, once Kueue has made it."""
    labels = {"kueue.x-k8s.io/queue-name": queue} | ({"kueue.x-k8s.io/priority-class": priority} if priority else {})
    annotations = {"run-seconds": str(seconds)} if seconds else {}
    devices = {key: value for key, value in request.items() if "/" in key}
    container = {"name": "main", "image": "none", "resources": {"requests": request, "limits": devices}}
    pod = {"restartPolicy": "Never", "containers": [container], "nodeSelector": selector or {}}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": space, "labels": labels},
        "spec": {
            "parallelism": pods,
            "completions": completions or pods,
            "suspend": True,
            "template": {"metadata": {"annotations": annotations}, "spec": pod},
        },
    }
    uid = admin.do("POST", f"{JOBS}/{space}/jobs", body)["metadata"]["uid"]
    until(lambda: workload_of(admin, space, uid))
    found = workload_of(admin, space, uid)
    assert found is not None
    return workload_id(space, found["metadata"]["name"], found["metadata"]["uid"])


def workload_of(admin: Admin, space: str, owner: str) -> dict[str, Any] | None:
    """The Workload that Kueue made for what has that UID."""
    every = admin.do("GET", f"{QUEUES}/namespaces/{space}/workloads")["items"]
    return next((each for each in every if each["metadata"]["ownerReferences"][0]["uid"] == owner), None)


def pods_on_nodes(admin: Admin, space: str, job: str) -> dict[str, int]:
    """Node -> pods of the Job there that have not ended."""
    found: dict[str, int] = {}
    for pod in admin.do("GET", f"/api/v1/namespaces/{space}/pods?labelSelector=job-name={job}")["items"]:
        node = pod["spec"].get("nodeName")
        if node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            found[node] = found.get(node, 0) + 1
    return found
