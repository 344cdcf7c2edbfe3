"""The acting user may do what Muster does, and nothing else: the roles and the admission policy of
docs/kubernetes-act.yaml on a real API server, as that user."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from kubernetes_cluster import Admin, KubernetesCluster, own
from kubernetes_room import KubernetesRoom, KueueQueue

from engine.external.kubernetes.acting import lacks_of, rehearse
from engine.model import commands as cmd
from engine.model.specs import QueueSpec, Taint
from engine.state.external_cell import Phase
from tests.support.patience import until

pytestmark = pytest.mark.thorough
DOCS = Path(__file__).resolve().parents[4] / "docs"
PATHS = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
MUSTER = {"kind": "User", "name": "muster", "apiGroup": "rbac.authorization.k8s.io"}
MERGE = "application/merge-patch+json"
TOKEN = "1f-0123456789abcdef0123"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KubernetesCluster]:
    """With the manifests of the manual, for user `muster`."""
    with own("--nodes", "2") as cluster, cluster.admin() as admin:
        for name in ("kubernetes-observe.yaml", "kubernetes-act.yaml"):
            for document in yaml.safe_load_all((DOCS / name).read_text()):
                if "subjects" in document:
                    document["subjects"] = [MUSTER]
                if document["kind"] == "ValidatingAdmissionPolicy":
                    document["spec"]["matchConditions"][0]["expression"] = "request.userInfo.username == 'muster'"
                admin.do("POST", PATHS[document["kind"]], document)
        yield cluster


@pytest.fixture
def muster(cluster: KubernetesCluster, admin: Admin) -> Iterator[Admin]:
    """The acting user, by plain HTTP. Returns once the policy is in force."""
    with Admin(cluster.reach(cluster.limited)) as muster:
        until(
            lambda: (
                "Muster" in _try(muster, "PATCH", "/api/v1/nodes/node-000", {"spec": {"podCIDR": "10.0.0.0/8"}}).text
            )
        )
        yield muster


@pytest.fixture
def queue(admin: Admin) -> KueueQueue:
    queue = KueueQueue(admin)
    binding = {
        "metadata": {"name": "muster-submit"}, "subjects": [MUSTER],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "muster-submit"},
    }  # fmt: skip
    admin.do("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{queue.space}/rolebindings", binding)
    return queue


def _try(who: Admin, method: str, path: str, body: Any = None, kind: str = MERGE) -> httpx.Response:
    kind = kind if method == "PATCH" else "application/json"
    return who.raw(method, path, content=json.dumps(body or {}), headers={"Content-Type": kind})


def marked(body: dict[str, Any], mark: str = TOKEN) -> dict[str, Any]:
    """The change, as Muster would sign it."""
    found = copy.deepcopy(body)
    found.setdefault("metadata", {}).setdefault("annotations", {})["muster.dev/intent"] = mark
    return found


def test_all_that_muster_does_is_allowed(cluster: KubernetesCluster, muster: Admin, queue: KueueQueue) -> None:
    with cluster.line(cluster.limited) as line:
        assert lacks_of(line, "api") == {}
        room = KubernetesRoom(line)
        queue.job("first", gpus=8)
        until(lambda: queue.is_admitted("first"))
        queue.job("second", gpus=8)
        first, second = queue.id_of("first"), queue.id_of("second")
        quota = QueueSpec(name=queue.name, nominal={"cpu_milli": 96_000, "gpu_milli": 16_000})
        taint = Taint(key="repair")
        acts: tuple[cmd.AnyCommand, ...] = (
            cmd.Hold(ids=(second,)), cmd.Release(ids=(second,)), cmd.HoldQueues(names=(queue.name,)),
            cmd.OpenQueues(names=(queue.name,)), cmd.HoldQueues(names=(queue.local,)),
            cmd.OpenQueues(names=(queue.local,)), cmd.ChangeQueue(queue=quota),
            cmd.TaintNodes(ids=("node-001",), taint=taint),
            cmd.TaintNodes(ids=("node-001",), taint=taint, remove=True), cmd.Drain(ids=("node-000",)),
            cmd.Uncordon(ids=("node-000",)), cmd.Cancel(ids=(first,)),
            cmd.Submit(workloads=(queue.spec("third"),)),
        )  # fmt: skip
        for act in acts:
            rehearse(room.api, act, TOKEN)
            phase, text = room.do(act)
            assert phase in (Phase.DONE, Phase.NEEDLESS), f"{act}: {text}"
        assert "first" not in queue.jobs()
        assert any(name.startswith("third-") for name in queue.jobs())


REFUSED: dict[str, tuple[str, Callable[[KueueQueue], tuple[str, str, Any]]]] = {
    "no mark": ("names its intent", lambda q: ("PATCH", q.path, {"spec": {"stopPolicy": "Hold"}})),
    "a made-up mark": ("names its intent", lambda q: ("PATCH", q.path, marked({"spec": {"stopPolicy": "Hold"}}, "me"))),
    "cohort": ("of the spec of clusterqueues", lambda q: ("PATCH", q.path, marked({"spec": {"cohortName": "x"}}))),
    "preemption": (
        "of the spec of clusterqueues",
        lambda q: ("PATCH", q.path, marked({"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})),
    ),
    "namespaces": ("of the spec", lambda q: ("PATCH", q.path, marked({"spec": {"namespaceSelector": None}}))),
    "labels": ("of the labels", lambda q: ("PATCH", q.path, marked({"metadata": {"labels": {"a": "b"}}}))),
    "annotations": (
        "of annotations", lambda q: ("PATCH", q.path, marked({"metadata": {"annotations": {"other": "1"}}}))
    ),
    "finalizers": ("finalizers", lambda q: ("PATCH", q.path, marked({"metadata": {"finalizers": []}}))),
    "a job's pods": (
        "of the spec of jobs",
        lambda q: ("PATCH", f"/apis/batch/v1/namespaces/{q.space}/jobs/job", marked({"spec": {"parallelism": 5}})),
    ),
    "a job's rest": (
        "of the spec of jobs",
        lambda q: ("PATCH", f"/apis/batch/v1/namespaces/{q.space}/jobs/job", marked({"spec": {"suspend": True}})),
    ),
    "deleting without a mark": (
        "names its intent", lambda q: ("DELETE", f"/apis/batch/v1/namespaces/{q.space}/jobs/job", {})
    ),
    "a node's label": (
        "of the labels",
        lambda q: ("PATCH", "/api/v1/nodes/node-001", marked({"metadata": {"labels": {"x": "y"}}})),
    ),
    "a node's address": (
        "of the spec of nodes", lambda q: ("PATCH", "/api/v1/nodes/node-001", marked({"spec": {"providerID": "x"}}))
    ),
    "evicting without a mark": (
        "names its intent",
        lambda q: ("POST", f"/api/v1/namespaces/{q.space}/pods/any/eviction", {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "any"}
        }),
    ),
    "a job in no queue": (
        "waits in a queue",
        lambda q: ("POST", f"/apis/batch/v1/namespaces/{q.space}/jobs", marked({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "free"},
            "spec": {"suspend": True, "template": {"spec": {
                "restartPolicy": "Never", "containers": [{"name": "a", "image": "none"}]
            }}},
        })),
    ),
    "deleting a queue": ("cannot delete", lambda q: ("DELETE", q.path, {})),
    "a pod": ("cannot create", lambda q: ("POST", f"/api/v1/namespaces/{q.space}/pods", {"metadata": {"name": "p"}})),
    "deleting a pod": ("cannot delete", lambda q: ("DELETE", f"/api/v1/namespaces/{q.space}/pods/any", {})),
    "secrets": ("cannot list", lambda q: ("GET", f"/api/v1/namespaces/{q.space}/secrets", None)),
    "a workload's status": (
        "cannot patch",
        lambda q: ("PATCH", f"{q.path}/status", marked({"status": {"pendingWorkloads": 0}})),
    ),
    "a job elsewhere": ("cannot create", lambda q: ("POST", "/apis/batch/v1/namespaces/default/jobs", {})),
    "its own policy": (
        "cannot delete", lambda q: ("DELETE", f"{PATHS['ValidatingAdmissionPolicy']}/muster-act", {})
    ),
}  # fmt: skip


def test_whatever_else_is_tried_is_refused(muster: Admin, queue: KueueQueue) -> None:
    queue.job("job")
    until(lambda: queue.is_admitted("job"))
    for what, (said, attempt) in REFUSED.items():
        answer = _try(muster, *attempt(queue))
        assert answer.status_code in (403, 404, 422), f"{what}: {answer.status_code} {answer.text}"
        assert said in answer.text, f"{what}: {answer.text}"


def test_others_are_not_held_to_it(admin: Admin, queue: KueueQueue) -> None:
    admin.patch(queue.path, {"metadata": {"labels": {"team": uuid.uuid4().hex[:8]}}, "spec": {"stopPolicy": "Hold"}})
