"""Acts on a real API server with Kueue: what is wanted is done once, read back, and what stands in the way is named."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cutting_proxy import CuttingProxy
from kubernetes_cluster import Admin, KubernetesCluster
from kubernetes_room import QUEUES, KubernetesRoom, KueueQueue

from engine.external.intent_carrier import GIVE_UP_MS
from engine.external.kubernetes.acting import PatchFiles, lacks_of, rehearse
from engine.external.kubernetes.change_carrier import look_at
from engine.external.kubernetes.change_requests import ChangeApi, ChangeRequest
from engine.external.kubernetes.job_manifests import MARK
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.model import commands as cmd
from engine.model.errors import RefusedError
from engine.model.specs import QueueSpec, Taint
from engine.state.external_cell import Phase
from tests.support.patience import until

pytestmark = pytest.mark.thorough


@pytest.fixture
def queue(admin: Admin) -> KueueQueue:
    return KueueQueue(admin)


@pytest.fixture
def room(cluster: KubernetesCluster) -> Iterator[KubernetesRoom]:
    with cluster.line() as line:
        yield KubernetesRoom(line)


@pytest.fixture
def node(admin: Admin) -> Iterator[str]:
    """A node of the test's own, which no kubelet looks after."""
    name = f"n-{uuid.uuid4().hex[:8]}"
    admin.do("POST", "/api/v1/nodes", {"metadata": {"name": name}, "spec": {}})
    yield name
    admin.do("DELETE", f"/api/v1/nodes/{name}")


def quota(queue: KueueQueue, gpus: int, **more: Any) -> QueueSpec:
    return QueueSpec(name=queue.name, nominal={"cpu_milli": 96_000, "gpu_milli": gpus * 1000}, **more)


# -- work -------------------------------------------------------------------------------------------------------------


def test_waiting_work_is_held_and_released_and_kueue_goes_by_it(room: KubernetesRoom, queue: KueueQueue) -> None:
    queue.job("first", gpus=8)
    until(lambda: queue.is_admitted("first"))
    queue.job("second", gpus=8)
    second = queue.id_of("second")
    phase, text = room.do(cmd.Hold(ids=(second,)))
    assert (phase, text) == (Phase.DONE, f"read back: {second} is not active")
    assert queue.work_of("second")["metadata"]["annotations"][MARK]
    assert room.do(cmd.Hold(ids=(second,)))[0] == Phase.NEEDLESS
    assert room.do(cmd.Cancel(ids=(queue.id_of("first"),)))[0] == Phase.DONE
    until(lambda: "first" not in queue.jobs())
    assert not queue.is_admitted("second")
    assert room.do(cmd.Release(ids=(second,)))[0] == Phase.DONE
    until(lambda: queue.is_admitted("second"))


def test_what_was_admitted_since_is_not_stopped_by_a_hold(room: KubernetesRoom, queue: KueueQueue) -> None:
    queue.job("runs")
    until(lambda: queue.is_admitted("runs"))
    phase, text = room.do(cmd.Hold(ids=(queue.id_of("runs"),)))
    assert phase == Phase.NEEDLESS
    assert "admitted since" in text
    assert queue.work_of("runs")["spec"].get("active", True)


def test_the_same_name_is_not_the_same_work(room: KubernetesRoom, queue: KueueQueue) -> None:
    queue.job("twice")
    meant = queue.id_of("twice")
    namesake = f"{meant.rpartition('_')[0]}_00000000"
    phase, text = room.do(cmd.Cancel(ids=(namesake,)))
    assert phase == Phase.NEEDLESS
    assert "another workload's" in text
    assert "twice" in queue.jobs()


def test_priority_is_set_on_the_owner_and_kueue_follows(room: KubernetesRoom, queue: KueueQueue, admin: Admin) -> None:
    for name, value in (("low", 1), ("high", 100)):
        kind = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "value": value}
        admin.raw("POST", f"{QUEUES}/workloadpriorityclasses", json=kind | {"metadata": {"name": name}})
    queue.job("ahead", gpus=8)
    until(lambda: queue.is_admitted("ahead"))
    queue.job("waits", gpus=8, **{"kueue.x-k8s.io/priority-class": "low"})
    name = queue.id_of("waits")
    assert room.do(cmd.SetPriority(ids=(name,), priority_class="high"))[0] == Phase.DONE
    assert queue.work_of("waits")["spec"]["priority"] == 100


def test_a_submission_is_one_job_however_often_it_is_carried(room: KubernetesRoom, queue: KueueQueue) -> None:
    number = room.want(cmd.Submit(workloads=(queue.spec("train", count=2),)))
    room.settled(number)
    (name,) = queue.jobs()
    job = queue.jobs()[name]
    assert job["metadata"]["annotations"]["muster.dev/workload"] == "train"
    assert (job["spec"]["parallelism"], job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]) == (2, "mine")
    until(lambda: queue.is_admitted(name))
    # As if nothing but its beginning was on record.
    intent = room.found(number)
    assert room.carrier._api is room.api
    shown = look_at(room.api, intent, 0)
    assert (shown.shows, shown.lines) == ("done", (f"job {queue.space}/{name} is there",))
    assert len(queue.jobs()) == 1


def test_a_submission_that_the_server_does_not_take_is_refused_in_its_words(
    room: KubernetesRoom, queue: KueueQueue
) -> None:
    nowhere = msgspec.structs.replace(queue.spec("train"), queue="no-such-namespace/mine")
    submit = cmd.Submit(workloads=(nowhere,))
    with pytest.raises(RefusedError, match=r"dry run is refused.*no-such-namespace"):
        rehearse(room.api, submit, "1-0")
    phase, text = room.do(submit)
    assert phase == Phase.REFUSED
    assert "no-such-namespace" in text


def test_a_rehearsal_changes_nothing(room: KubernetesRoom, queue: KueueQueue, admin: Admin) -> None:
    queue.job("stays")
    until(lambda: len(queue.pods("stays")) == 1 and queue.pods("stays")[0]["spec"].get("nodeName"))
    before = queue.jobs()["stays"]["metadata"], {each["metadata"]["uid"] for each in queue.pods("stays")}
    (pod,) = queue.pods("stays")
    said = rehearse(room.api, cmd.Cancel(ids=(queue.id_of("stays"),)), "1-0")
    assert "would take the change" in said[0]
    assert "to evict" in rehearse(room.api, cmd.Drain(ids=(pod["spec"]["nodeName"],)), "1-0")[1]
    rehearse(room.api, cmd.Submit(workloads=(queue.spec("new"),)), "1-0")
    now = queue.jobs()
    assert set(now) == {"stays"}
    assert "deletionTimestamp" not in now["stays"]["metadata"]
    assert now["stays"]["metadata"].get("annotations") == before[0].get("annotations")
    assert {each["metadata"]["uid"] for each in queue.pods("stays")} == before[1]
    assert not admin.do("GET", f"/api/v1/nodes/{pod['spec']['nodeName']}")["spec"].get("unschedulable")


# -- queues -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_held_drained_and_opened(room: KubernetesRoom, queue: KueueQueue) -> None:
    queue.job("runs")
    until(lambda: queue.is_admitted("runs"))
    assert room.do(cmd.HoldQueues(names=(queue.name,)))[0] == Phase.DONE
    queue.job("waits")
    queue.work_of("waits")
    assert room.do(cmd.DrainQueues(names=(queue.name,)))[0] == Phase.DONE
    until(lambda: not queue.is_admitted("runs"))
    assert not queue.is_admitted("waits")
    assert room.do(cmd.OpenQueues(names=(queue.name,)))[0] == Phase.DONE
    until(lambda: queue.is_admitted("runs") and queue.is_admitted("waits"))
    assert room.do(cmd.HoldQueues(names=(queue.local,)))[0] == Phase.DONE
    cohort = room.do(cmd.HoldQueues(names=("cohort/none",)))
    assert cohort[0] == Phase.NEEDLESS


def test_a_quota_is_applied_and_kueue_admits_by_it(room: KubernetesRoom, queue: KueueQueue) -> None:
    queue.job("large", gpus=9)
    assert not queue.is_admitted("large")
    assert room.do(cmd.ChangeQueue(queue=quota(queue, 16, borrowing_limit={"gpu_milli": 4000}))) == (
        Phase.DONE, f"read back: {queue.name} has these quotas"
    )  # fmt: skip
    until(lambda: queue.is_admitted("large"))
    resources = queue.queue()["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    assert resources[1] == {"name": "nvidia.com/gpu", "nominalQuota": "16", "borrowingLimit": "4"}
    assert room.do(cmd.ChangeQueue(queue=quota(queue, 16, borrowing_limit={"gpu_milli": 4000})))[0] == Phase.NEEDLESS


def test_a_quota_that_another_manager_set_is_left_to_it_by_name(room: KubernetesRoom, admin: Admin) -> None:
    theirs = KueueQueue(admin, manager="argocd-controller")
    change = cmd.ChangeQueue(queue=quota(theirs, 16))
    with pytest.raises(RefusedError, match="argocd-controller"):
        rehearse(room.api, change, "1-0")
    phase, text = room.do(change)
    assert phase == Phase.REFUSED
    assert 'conflict with "argocd-controller"' in text
    assert theirs.queue()["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"] == "8"


def test_what_a_webhook_refuses_is_known_before_anybody_votes(room: KubernetesRoom, queue: KueueQueue) -> None:
    lending = quota(queue, 8, lending_limit={"gpu_milli": 9000})
    with pytest.raises(RefusedError, match="dry run is refused"):
        rehearse(room.api, cmd.ChangeQueue(queue=lending), "1-0")
    said = rehearse(room.api, cmd.HoldQueues(names=(queue.name,)), "1-0")
    assert said == (f"{queue.name} has stopPolicy None; the API server would take the change",)
    assert queue.queue()["spec"]["stopPolicy"] == "None"


def test_by_patch_the_change_is_a_file_and_done_when_it_is_seen(
    cluster: KubernetesCluster, queue: KueueQueue, admin: Admin, tmp_path: Path
) -> None:
    with cluster.line() as line:
        room = KubernetesRoom(line, PatchFiles(tmp_path / "patches"))
        number = room.want(cmd.ChangeQueue(queue=quota(queue, 4)))
        room.turn()
        assert Phase(room.found(number).phase) == Phase.ACCEPTED
        (path,) = (tmp_path / "patches").iterdir()
        document = yaml.safe_load(path.read_text())
        assert document["metadata"] == {"name": queue.name}
        room.restart()
        room.turn(2 * GIVE_UP_MS / 1000)
        assert Phase(room.found(number).phase) == Phase.ACCEPTED
        admin.patch(queue.path, document)
        assert room.settled(number).phase == Phase.DONE
        assert set(lacks_of(line, "patch")) == {cmd.Cancel, cmd.Drain}


# -- nodes ------------------------------------------------------------------------------------------------------------


def test_nodes_are_cordoned_tainted_and_back(room: KubernetesRoom, node: str, admin: Admin) -> None:
    taint = Taint(key="repair", value="psu")

    def spec() -> dict[str, Any]:
        found: dict[str, Any] = admin.do("GET", f"/api/v1/nodes/{node}")["spec"]
        return found

    assert room.do(cmd.Cordon(ids=(node,)))[0] == Phase.DONE
    assert spec()["unschedulable"]
    assert room.do(cmd.TaintNodes(ids=(node,), taint=taint))[0] == Phase.DONE
    assert {"key": "repair", "value": "psu", "effect": "NoSchedule"} in spec()["taints"]
    assert room.do(cmd.TaintNodes(ids=(node,), taint=taint, remove=True))[0] == Phase.DONE
    assert room.do(cmd.Uncordon(ids=(node,)))[0] == Phase.DONE
    assert not spec().get("unschedulable")
    assert "repair" not in str(spec())
    assert room.do(cmd.Cordon(ids=("no-such-node",)))[0] == Phase.NEEDLESS


def bound_pod(admin: Admin, space: str, name: str, node: str, **labels: str) -> None:
    admin.do("POST", f"/api/v1/namespaces/{space}/pods", {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none"}],
        },
    })  # fmt: skip


def test_a_drain_goes_gang_by_gang_and_names_the_budget_it_waits_for(
    room: KubernetesRoom, node: str, admin: Admin
) -> None:
    space = admin.namespace(f"t-{uuid.uuid4().hex[:8]}")
    gang = {"jobset.sigs.k8s.io/jobset-uid": "a"}
    for name in ("a1", "a2"):
        bound_pod(admin, space, name, node, **gang)
    bound_pod(admin, space, "b1", node, app="b")
    budgets = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"
    budget = {"metadata": {"name": "keep-b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "b"}}}}
    admin.do("POST", budgets, budget)
    until(lambda: admin.do("GET", f"{budgets}/keep-b").get("status", {}).get("expectedPods") == 1)
    number = room.want(cmd.Drain(ids=(node,)))

    def waits() -> bool:
        room.turn(1.0)
        return {each["metadata"]["name"] for each in _pods(admin, space)} == {"b1"}

    until(waits, lambda: f"{room.found(number)}")
    assert not Phase(room.found(number).phase).settled
    room.turn(GIVE_UP_MS / 1000)
    found = room.found(number)
    assert found.phase == Phase.IN_DOUBT
    assert "keep-b" in found.text
    admin.do("DELETE", f"{budgets}/keep-b")
    assert room.do(cmd.Drain(ids=(node,)))[0] == Phase.DONE
    assert not _pods(admin, space)


def _pods(admin: Admin, space: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = admin.do("GET", f"/api/v1/namespaces/{space}/pods")["items"]
    return found


# -- when no answer comes ---------------------------------------------------------------------------------------------


class LosingApi(ChangeApi):
    """The answer to each first request that changes something is lost on its way; the request is not."""

    def __init__(self, line: KubernetesTransport, proxy: CuttingProxy) -> None:
        super().__init__(line)
        self._proxy = proxy
        self.lost: set[str] = set()

    def send(self, request: ChangeRequest, *, dry_run: bool = False) -> None:
        self._proxy.mode = "pass" if request.what in self.lost else "lose answers"
        self.lost.add(request.what)
        try:
            super().send(request, dry_run=dry_run)
        finally:
            self._proxy.mode = "pass"
            self._proxy.cut()


def test_lost_answers_neither_lose_nor_double(cluster: KubernetesCluster, queue: KueueQueue) -> None:
    """Muster begins anew after each: all it has is its journal."""
    proxy = CuttingProxy(cluster.port)
    with contextlib.closing(proxy), cluster.line(proxy=proxy) as line:
        room = KubernetesRoom(line)
        room.api = api = LosingApi(line, proxy)
        room.restart()
        numbers = []
        for n in range(6):
            numbers.append(room.want(cmd.Submit(workloads=(queue.spec(f"once-{n}"),))))
            numbers.append(room.want((cmd.HoldQueues if n % 2 else cmd.OpenQueues)(names=(queue.name,))))
            for _ in range(4):
                room.turn(2.0)
                room.restart()
        found = [room.settled(number) for number in numbers]
        assert {Phase(each.phase) for each in found} <= {Phase.DONE, Phase.NEEDLESS}
        assert len(api.lost) == 6 + 2
        assert len(queue.jobs()) == 6
        assert queue.queue()["spec"]["stopPolicy"] == "Hold"


def test_what_cannot_be_carried_is_given_up_and_a_person_is_told(cluster: KubernetesCluster, queue: KueueQueue) -> None:
    proxy = CuttingProxy(cluster.port)
    with contextlib.closing(proxy), cluster.line(proxy=proxy) as line:
        room = KubernetesRoom(line)
        proxy.mode = "refuse"
        number = room.want(cmd.HoldQueues(names=(queue.name,)))
        room.turn()
        assert room.carrier.trouble
        room.turn(GIVE_UP_MS / 1000)
        assert room.found(number).phase == Phase.EXPIRED
        again = room.want(cmd.HoldQueues(names=(queue.name,)))
        room.turn()
        room.restart()
        room.turn(GIVE_UP_MS / 1000)
        found = room.found(again)
        assert found.phase == Phase.IN_DOUBT
        assert "not confirmed" in found.text
        assert look_at(room.api, found, 0).error
        proxy.mode = "pass"
        assert look_at(room.api, found, 0).shows == "undone"


def test_of_two_quotas_the_later_holds(room: KubernetesRoom, queue: KueueQueue) -> None:
    """Both wait when the line is back: the later must not overtake the one before it."""
    numbers = [room.want(cmd.ChangeQueue(queue=quota(queue, gpus))) for gpus in (12, 16, 8, 4)]
    assert [room.settled(number).phase for number in numbers] == [Phase.DONE] * 4
    assert queue.queue()["spec"]["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"] == "4"
