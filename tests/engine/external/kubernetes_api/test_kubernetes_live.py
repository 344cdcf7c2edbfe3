"""A real API server with Kueue on loopback: what is in it is known, also after cuts, restarts and compaction."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cutting_proxy import CuttingProxy
from kubernetes_cluster import Admin, KubernetesCluster, own

from engine.external.kubernetes_api import kueue_objects as kueue
from engine.external.kubernetes_api.capabilities import capabilities
from engine.external.kubernetes_api.core_objects import KubernetesNode, KubernetesObject, KubernetesPod
from engine.external.kubernetes_api.errors import KubernetesDenied, KubernetesUnavailable, VersionExpired
from engine.external.kubernetes_api.kinds import KINDS
from engine.external.kubernetes_api.kubeconfig import ExecPlugin, KubernetesUser, Reach
from engine.external.kubernetes_api.listing import Came, KindReader
from engine.external.kubernetes_api.observation import ClusterObservation
from engine.external.kubernetes_api.reflector import ChangeBatch
from engine.external.kubernetes_api.transport import KubernetesTransport
from tests.support.patience import PATIENCE_S, until

pytestmark = pytest.mark.thorough
BY_NAME = {kind.resource: kind for kind in KINDS}
QUEUES = "/apis/kueue.x-k8s.io/v1beta2"
ROLE = Path(__file__).resolve().parents[4] / "docs" / "kubernetes-observe.yaml"


class Known:
    """What a consumer knows of some kinds."""

    def __init__(self, observation: ClusterObservation, space: str = "") -> None:
        self.objects: dict[str, dict[str, KubernetesObject]] = {}
        self.whole: set[str] = set()
        self._observation = observation
        self._space = space

    def take(self, timeout_s: float = 0.1) -> None:
        for batch in self._observation.take(timeout_s):
            self._apply(batch)

    def _apply(self, batch: ChangeBatch) -> None:
        kept = self.objects.setdefault(batch.kind.resource, {})
        for change in batch.changes:
            if change.object is None:
                del kept[change.uid]
            else:
                assert (change.happened == "added") == (change.uid not in kept)
                kept[change.uid] = change.object
        if batch.version:
            self.whole.add(batch.kind.resource)

    def named(self, kind: str) -> dict[str, KubernetesObject]:
        """Those of the namespace of the test, or of none."""
        found = self.objects.get(kind, {}).values()
        return {each.metadata.name: each for each in found if each.metadata.namespace in ("", self._space)}

    def versions(self, kind: str) -> dict[str, str]:
        found = self.objects.get(kind, {}).items()
        return {uid: each.metadata.resource_version for uid, each in found if each.metadata.namespace == self._space}

    def until(self, kind: str, *names: str) -> None:
        """Until these are there, and no other of the namespace."""

        def so() -> bool:
            self.take()
            return kind in self.whole and set(self.named(kind)) == set(names)

        until(so, lambda: f"{sorted(self.named(kind))}, {self._observation.reports()[kind]}")


@contextlib.contextmanager
def observed(line: KubernetesTransport, *kinds: str, space: str = "") -> Iterator[Known]:
    with ClusterObservation(line, [BY_NAME[kind] for kind in kinds]) as observation:
        yield Known(observation, space)


def a_pod(name: str, **labels: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m", "nvidia.com/gpu": "1"}}}
    container["resources"]["limits"] = {"nvidia.com/gpu": "1"}  # type: ignore[index]
    return {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}}


def create_pods(admin: Admin, space: str, *names: str) -> None:
    for name in names:
        admin.do("POST", f"/api/v1/namespaces/{space}/pods", a_pod(name))


def delete_pod(admin: Admin, space: str, name: str) -> None:
    """At once, as one that no kubelet has to stop."""
    admin.do("DELETE", f"/api/v1/namespaces/{space}/pods/{name}", {"gracePeriodSeconds": 0})


# -- what is there ----------------------------------------------------------------------------------------------------


def test_every_kind_is_served_and_may_be_read_by_an_admin(cluster: KubernetesCluster) -> None:
    with cluster.line() as line:
        able = capabilities(line)
    assert able.version == "v1.36.2"
    assert able.kueue == ("v1beta2", "v1beta1")
    assert able.readable() == KINDS
    assert not any(able.beside.values())


def test_objects_are_read_as_they_were_written(cluster: KubernetesCluster, admin: Admin, space: str) -> None:
    flavor, queue = f"f-{space}", f"q-{space}"
    admin.do("POST", f"{QUEUES}/resourceflavors", {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": flavor},
        "spec": {"nodeLabels": {"cloud.google.com/gke-nodepool": "gpu"}},
    })  # fmt: skip
    quota = {"name": "nvidia.com/gpu", "nominalQuota": 8, "borrowingLimit": 4}
    admin.do("POST", f"{QUEUES}/clusterqueues", {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": queue},
        "spec": {
            "cohortName": f"c-{space}",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space}},
            "resourceGroups": [
                {"coveredResources": ["cpu", "nvidia.com/gpu"],
                 "flavors": [{"name": flavor, "resources": [{"name": "cpu", "nominalQuota": "96"}, quota]}]}
            ],
            "preemption": {"reclaimWithinCohort": "Any"},
        },
    })  # fmt: skip
    admin.do("POST", f"{QUEUES}/namespaces/{space}/localqueues", {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "mine"},
        "spec": {"clusterQueue": queue},
    })  # fmt: skip
    admin.do("POST", f"/apis/batch/v1/namespaces/{space}/jobs", {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "mine"}},
        "spec": {
            "parallelism": 2, "completions": 2, "suspend": True,
            "template": {"spec": {**a_pod("")["spec"], "restartPolicy": "Never"}},
        },
    })  # fmt: skip
    kinds = ("clusterqueues", "localqueues", "workloads", "jobs", "pods", "nodes", "resourceflavors")
    with cluster.line() as line, observed(line, *kinds, space=space) as known:

        def admitted() -> bool:
            known.take()
            work = [each for each in known.named("workloads").values() if isinstance(each, kueue.Workload)]
            there = all(known.objects.get(kind) for kind in kinds)  # each kind is listed by itself, in no order
            return there and any(each.status.admission for each in work) and len(known.named("pods")) == 2

        until(admitted, lambda: str(known.objects))
        found = known.named("clusterqueues")[queue]
        assert isinstance(found, kueue.ClusterQueue)
        group = found.spec.resource_groups[0]
        assert found.spec.cohort_name == f"c-{space}"
        assert found.spec.preemption.reclaim_within_cohort == "Any"
        assert group.flavors[0].resources[1].nominal_quota in (8, "8")
        assert group.flavors[0].resources[1].borrowing_limit in (4, "4")
        (work,) = known.named("workloads").values()
        assert isinstance(work, kueue.Workload)
        assert (work.spec.pod_sets[0].count, work.spec.queue_name) == (2, "mine")
        assert work.spec.pod_sets[0].template.spec.containers[0].resources.requests["nvidia.com/gpu"] == "1"
        assert work.status.admission is not None
        assert work.status.admission.pod_set_assignments[0].flavors["nvidia.com/gpu"] == flavor
        assert work.metadata.owner_references[0].uid in known.objects["jobs"]
        node = known.objects["nodes"].popitem()[1]
        assert isinstance(node, KubernetesNode)
        assert node.status.allocatable["nvidia.com/gpu"] == "8"
        pod = next(iter(known.named("pods").values()))
        assert isinstance(pod, KubernetesPod)
        assert pod.metadata.owner_references[0].kind == "Job"


def test_a_user_without_a_role_is_told_what_is_missing_and_with_the_role_of_the_manual_reads_all(
    cluster: KubernetesCluster, admin: Admin
) -> None:
    with cluster.line(cluster.limited) as line:
        able = capabilities(line)
        assert able.readable() == ()
        assert "may not list nor watch" in able.kinds[0].why
        with pytest.raises(KubernetesDenied, match='User "muster" cannot'):
            list(KindReader(line, BY_NAME["pods"]).paged())
    role, binding = yaml.safe_load_all(ROLE.read_text())
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    binding["subjects"] = [{"kind": "User", "name": "muster", "apiGroup": "rbac.authorization.k8s.io"}]
    admin.do("POST", f"{rbac}/clusterroles", role)
    admin.do("POST", f"{rbac}/clusterrolebindings", binding)
    try:
        with cluster.line(cluster.limited) as line:
            until(lambda: capabilities(line).readable() == KINDS)
            for kind in KINDS:
                assert [came.whole for came in KindReader(line, kind).paged()][-1]
            # And nothing besides.
            with pytest.raises(KubernetesDenied):
                line.get("reading secrets", "/api/v1/secrets")
    finally:
        admin.do("DELETE", f"{rbac}/clusterrolebindings/{binding['metadata']['name']}")
        admin.do("DELETE", f"{rbac}/clusterroles/{role['metadata']['name']}")


def test_who_is_acted_for_is_who_the_server_checks(cluster: KubernetesCluster) -> None:
    reach = cluster.reach()
    user = msgspec.structs.replace(reach.user, as_user="muster")
    with (
        KubernetesTransport(msgspec.structs.replace(reach, user=user)) as line,
        pytest.raises(KubernetesDenied, match='User "muster" cannot'),
    ):
        line.get("listing nodes", "/api/v1/nodes")


def test_both_ways_to_list_give_the_same(cluster: KubernetesCluster, admin: Admin, space: str) -> None:
    create_pods(admin, space, *(f"p{n}" for n in range(7)))
    with cluster.line() as line:
        ways = [getattr(KindReader(line, BY_NAME["pods"]), way)() for way in ("streamed", "paged")]
        found = [_of(space, way) for way in ways]
    assert len(found[0]) == 7
    assert found[0].keys() == found[1].keys()


def _of(space: str, way: Iterator[Came]) -> dict[str, str]:
    objects = [each.object for came in way for each in came.events if each.object]
    return {each.metadata.uid: each.metadata.resource_version for each in objects if each.metadata.namespace == space}


# -- how it is reached ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """Of `ann`, by the authority of the cluster, with its key."""
    folder, pki = tmp_path_factory.mktemp("ann"), cluster.folder / "pki"
    request = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", "/O=people/CN=ann", "-keyout", "key"]
    signed = ["openssl", "x509", "-req", "-in", "csr", "-CA", f"{pki}/ca.crt", "-CAkey", f"{pki}/ca.key"]
    for words in ([*request, "-out", "csr"], [*signed, "-set_serial", "77", "-out", "crt"]):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    return (folder / "crt").read_bytes(), (folder / "key").read_bytes()


def who(reach: Reach) -> str:
    """Whom the server takes it for."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    with KubernetesTransport(reach) as line:
        answer = line.post("asking who I am", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body)
    name: str = json.loads(answer)["status"]["userInfo"]["username"]
    return name


def test_a_client_certificate_proves_who_asks(cluster: KubernetesCluster, certificate: tuple[bytes, bytes]) -> None:
    crt, key = (base64.b64encode(each).decode() for each in certificate)
    user = KubernetesUser(client_certificate_data=crt, client_key_data=key)
    assert who(msgspec.structs.replace(cluster.reach(), user=user)) == "ann"


def test_so_does_one_that_a_plugin_gives(
    cluster: KubernetesCluster, certificate: tuple[bytes, bytes], tmp_path: Path
) -> None:
    crt, key = (each.decode() for each in certificate)
    api = "client.authentication.k8s.io/v1"
    status = {"clientCertificateData": crt, "clientKeyData": key}
    (tmp_path / "said").write_text(json.dumps({"apiVersion": api, "kind": "ExecCredential", "status": status}))
    user = KubernetesUser(plugin=ExecPlugin(api_version=api, command="cat", args=(str(tmp_path / "said"),)))
    assert who(msgspec.structs.replace(cluster.reach(), user=user)) == "ann"


def test_a_server_is_held_to_its_name_and_its_authority(cluster: KubernetesCluster) -> None:
    reach = cluster.reach()

    def changed(**how: Any) -> Reach:
        return msgspec.structs.replace(reach, cluster=msgspec.structs.replace(reach.cluster, **how))

    assert who(changed(tls_server_name="kubernetes.default.svc")) == "admin"
    with pytest.raises(KubernetesUnavailable, match="CERTIFICATE_VERIFY_FAILED") as caught:
        who(changed(tls_server_name="other.example"))
    assert "tls-server-name" in caught.value.remedy
    with pytest.raises(KubernetesUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        who(changed(certificate_authority_data=""))
    assert who(changed(certificate_authority_data="", insecure_skip_tls_verify=True)) == "admin"


def test_a_proxy_is_asked_for_the_way_and_the_name_is_held_behind_it(cluster: KubernetesCluster) -> None:
    with tunnel() as (url, asked):
        reach = cluster.reach()
        behind = msgspec.structs.replace(reach.cluster, proxy_url=url, tls_server_name="kubernetes.default.svc")
        assert who(msgspec.structs.replace(reach, cluster=behind)) == "admin"
        assert asked == [f"CONNECT 127.0.0.1:{cluster.port} HTTP/1.1"]


@contextlib.contextmanager
def tunnel() -> Iterator[tuple[str, list[str]]]:
    """An HTTP proxy, and the first lines of what it was asked."""
    asked: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(4096)
            asked.append(head.split(b"\r\n")[0].decode())
            host, port = asked[0].split()[1].split(":")
            with client, socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        thread.join(PATIENCE_S)
        listener.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


# -- what changes while nobody looks ----------------------------------------------------------------------------------


def test_what_is_deleted_while_the_line_is_cut_is_told(cluster: KubernetesCluster, admin: Admin, space: str) -> None:
    create_pods(admin, space, "stays", "goes")
    proxy = CuttingProxy(cluster.port)
    with contextlib.closing(proxy), cluster.line(proxy=proxy) as line, observed(line, "pods", space=space) as known:
        known.until("pods", "stays", "goes")
        proxy.mode = "refuse"
        proxy.cut()
        delete_pod(admin, space, "goes")
        create_pods(admin, space, "comes")
        proxy.mode = "pass"
        known.until("pods", "stays", "comes")


def test_what_ends_leaves_the_pods_that_are_followed(cluster: KubernetesCluster, admin: Admin, space: str) -> None:
    create_pods(admin, space, "ends")
    with cluster.line() as line, observed(line, "pods", space=space) as known:
        known.until("pods", "ends")
        status = {"status": {"phase": "Succeeded"}}
        admin.patch(f"/api/v1/namespaces/{space}/pods/ends/status", status)
        known.until("pods")


def test_random_changes_and_cuts_leave_what_a_new_list_has(
    cluster: KubernetesCluster, admin: Admin, space: str
) -> None:
    """Creations, changes, deletions, and names used again, with the line cut, refused, or ended in the middle of an
    answer between them. Fixed seeds."""
    proxy = CuttingProxy(cluster.port)
    with contextlib.closing(proxy), cluster.line(proxy=proxy) as line, observed(line, "pods", space=space) as known:
        for seed in range(6):
            dice = random.Random(seed)
            for _ in range(40):
                _something(dice, admin, space, proxy)
                known.take(0.0)
            proxy.mode = "pass"

            def equal() -> bool:
                known.take()
                # Listed anew each time: the scheduler and the kubelets go on.
                fresh = {each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in _pods(admin, space)}
                return known.versions("pods") == fresh

            until(equal, lambda: f"{known.versions('pods')} {_pods(admin, space)}")


def _pods(admin: Admin, space: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.do("GET", f"/api/v1/namespaces/{space}/pods")["items"]
    return found


def _something(dice: random.Random, admin: Admin, space: str, proxy: CuttingProxy) -> None:
    names = {each["metadata"]["name"] for each in _pods(admin, space)}
    name = f"p{dice.randrange(8)}"
    what = dice.random()
    if what < 0.2:
        proxy.mode = dice.choice(["pass", "pass", "refuse", "swallow", "cut answers"])
        proxy.first_bytes = dice.randrange(4000)
        proxy.cut()
    elif name not in names:
        create_pods(admin, space, name)
    elif what < 0.6:
        delete_pod(admin, space, name)
    else:
        admin.patch(f"/api/v1/namespaces/{space}/pods/{name}", {"metadata": {"labels": {"n": str(what)}}})


# `ssl` leaves a socket to the garbage collector whose peer is killed between its connect and its handshake.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
def test_restarts_and_a_compacted_store_lose_no_deletion() -> None:
    """The API server is killed; while it is down etcd forgets; what was deleted before is told when it is back. The
    version that was followed and the rest of a list are then gone: 410 by the real server."""
    with own("--no-kueue", "--no-scheduler", "--nodes", "1") as cluster, cluster.line() as line:
        with cluster.admin() as admin:
            space = admin.namespace("restarted")
            create_pods(admin, space, "stays", "goes", "third")
        proxy = CuttingProxy(cluster.port)
        through = cluster.line(proxy=proxy)
        with contextlib.closing(proxy), observed(through, "pods", space=space) as known:
            known.until("pods", "stays", "goes", "third")
            version = known.named("pods")["third"].metadata.resource_version
            proxy.mode = "refuse"
            proxy.cut()
            with cluster.admin() as admin:
                first = admin.do("GET", "/api/v1/pods?limit=1")["metadata"]
                delete_pod(admin, space, "goes")
                create_pods(admin, space, "comes")
            cluster.kill("kube-apiserver")
            cluster.compact()
            cluster.start("kube-apiserver")
            with pytest.raises(VersionExpired):
                list(KindReader(line, BY_NAME["pods"]).followed(version))
            with pytest.raises(VersionExpired):
                line.get("listing pods", "/api/v1/pods", {"limit": "1", "continue": first["continue"]})
            proxy.mode = "pass"
            known.until("pods", "stays", "third", "comes")
            for _ in range(2):
                cluster.kill("kube-apiserver")
                cluster.start("kube-apiserver")
            with cluster.admin() as admin:
                delete_pod(admin, space, "third")
            known.until("pods", "stays", "comes")
