"""A cell that mirrors a real API server with a real Kueue: what is in the cell is what is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.control import Engine
from engine.external.kubernetes.names import node_id
from engine.model.commands import SetPolicy, Submit
from engine.model.specs import Policy, Resources, TaskGroup, WorkloadSpec
from tests.support.kubernetes_cluster import Admin, KubernetesCluster, own
from tests.support.mirrored_kubernetes import (
    JOBS,
    QUEUES,
    MirroredCell,
    make_flavor,
    make_job,
    make_queue,
    mirrored,
    pods_on_nodes,
)
from tests.support.patience import until

pytestmark = pytest.mark.thorough


@pytest.fixture
def queue(admin: Admin, space: str) -> str:
    """8 CPU of a flavor of its own, in a cohort of its own."""
    return make_queue(admin, space, space, make_flavor(admin, space), {"cpu": "8"}, cohortName=f"{space}-all")


@pytest.fixture
def cell(cluster: KubernetesCluster, queue: str) -> Iterator[MirroredCell]:
    with mirrored(cluster) as cell:
        yield cell
        assert cell.watch.fault == ""
        assert cell.faults() == []


def test_nodes_are_there_with_what_they_have(cell: MirroredCell, admin: Admin) -> None:
    nodes = admin.do("GET", "/api/v1/nodes")["items"]
    names = {node_id(each["metadata"]["name"]) for each in nodes}
    assert cell.call(lambda engine: set(engine.state.capacity.row_of)) == names
    cpus = sum(int(each["status"]["allocatable"]["cpu"]) for each in nodes)
    assert cell.call(lambda engine: engine.state.capacity.totals[0]) == cpus * 1000


def test_a_cluster_queue_is_in_its_cohort_with_its_quota(cell: MirroredCell, queue: str) -> None:
    spec = cell.call(lambda engine: engine.state.queues.specs[engine.state.queues.row_of[queue]])
    assert (spec.parent, spec.nominal) == (f"cohort/{queue}-all", {"cpu_milli": 8000})


def test_a_gang_is_where_its_pods_are_and_ends_as_they_do(
    cell: MirroredCell, admin: Admin, space: str, queue: str
) -> None:
    name = make_job(admin, space, "train", queue, {"cpu": "1"}, pods=3, seconds=3)
    until(lambda: cell.state_of(name) == "running" and cell.nodes_of(name) == pods_on_nodes(admin, space, "train"))
    assert cell.used(queue)[0] == 3000
    until(lambda: cell.state_of(name) == "finished")
    assert cell.used(queue)[0] == 0


def test_what_kueue_keeps_waiting_waits_with_kueues_own_words(
    cell: MirroredCell, admin: Admin, space: str, queue: str
) -> None:
    make_job(admin, space, "first", queue, {"cpu": "8"})
    second = make_job(admin, space, "second", queue, {"cpu": "1"})
    until(lambda: cell.state_of(second) == "queued" and "insufficient" in cell.word_of(second))
    assert cell.word_of(second).startswith("Pending couldn't assign flavors")


def test_quota_of_pods_that_no_node_takes_is_charged(cell: MirroredCell, admin: Admin, space: str, queue: str) -> None:
    name = make_job(admin, space, "lost", queue, {"cpu": "2"}, pods=2, selector={"disk": "none-such"})
    until(lambda: cell.state_of(name) == "queued" and cell.used(queue)[0] == 4000)
    admin.do("DELETE", f"{JOBS}/{space}/jobs/lost?propagationPolicy=Background")
    until(lambda: cell.state_of(name) == "cancelled" and cell.used(queue)[0] == 0)


def test_pods_that_follow_each_other_are_one_start(cell: MirroredCell, admin: Admin, space: str, queue: str) -> None:
    name = make_job(admin, space, "waves", queue, {"cpu": "1"}, pods=2, completions=6, seconds=1)
    until(lambda: cell.state_of(name) == "finished")
    assert cell.call(lambda engine: engine.state.workloads.attempts[engine.state.workloads.row_of[name]]) == 1


def test_a_queue_that_is_stopped_holds_its_work(cell: MirroredCell, admin: Admin, space: str, queue: str) -> None:
    name = make_job(admin, space, "long", queue, {"cpu": "1"})
    until(lambda: cell.state_of(name) == "running")
    admin.patch(f"{QUEUES}/clusterqueues/{queue}", {"spec": {"stopPolicy": "HoldAndDrain"}})
    until(lambda: cell.state_of(name) == "queued" and cell.used(queue)[0] == 0)
    assert cell.call(lambda engine: engine.state.queues.mode[engine.state.queues.row_of[queue]]) == 1


def test_pods_of_no_queue_are_load_of_their_node(cell: MirroredCell, admin: Admin, space: str) -> None:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loose"}, "spec": {"containers": [container]}}
    before = _load(cell)
    admin.do("POST", f"/api/v1/namespaces/{space}/pods", body)
    until(lambda: _load(cell) == [before[0] + 3000, before[1] + 1024])
    admin.do("DELETE", f"/api/v1/namespaces/{space}/pods/loose?gracePeriodSeconds=0")
    until(lambda: _load(cell) == before)


def _pods_by_node(engine: Engine) -> dict[str, int]:
    names = engine.state.capacity.node_ids
    return {names[row]: load[4] for row, load in engine.state.loads.of.items()}


def _load(cell: MirroredCell) -> list[int]:
    """Milli-CPU and MiB that pods without a queue have on all nodes; other tests of the cluster leave some."""
    loads = cell.call(lambda engine: list(engine.state.loads.of.values()))
    return [sum(load[0] for load in loads), sum(load[1] for load in loads)]


def test_without_kueue_a_job_is_load_of_its_nodes_for_as_long_as_its_pods_are_there() -> None:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    spec = {"parallelism": 2, "completions": 2, "template": {"spec": pod}}
    with own("--no-kueue", "--nodes", "2") as cluster, cluster.admin() as admin:
        space = admin.namespace("team")
        with mirrored(cluster, kueue=False) as cell:
            assert cell.call(lambda engine: engine.state.policy) == "easy"
            admin.do("POST", f"{JOBS}/{space}/jobs", {"metadata": {"name": "plain"}, "spec": spec})
            until(lambda: _load(cell) == [4000, 2048])
            on = pods_on_nodes(admin, space, "plain")
            assert cell.call(_pods_by_node) == on
            assert cell.call(lambda engine: len(engine.state.workloads.ids)) == 0
            admin.do("DELETE", f"{JOBS}/{space}/jobs/plain?propagationPolicy=Background")
            until(lambda: _load(cell) == [0, 0])
            assert cell.watch.fault == ""
            assert cell.faults() == []


def test_work_goes_on_where_its_node_is_tainted_and_labelled(
    cell: MirroredCell, admin: Admin, space: str, queue: str
) -> None:
    """Nobody evicts it, so the cell does not say so either."""
    name = make_job(admin, space, "stays", queue, {"cpu": "2"}, pods=2)
    until(lambda: cell.state_of(name) == "running" and sum(cell.nodes_of(name).values()) == 2)
    node = next(iter(cell.nodes_of(name)))
    before = cell.call(lambda engine: engine.workload(name))
    path, mine = f"/api/v1/nodes/{node}", f"taint.of/{space}"
    taints = admin.do("GET", path)["spec"].get("taints", [])

    def taint(*more: dict[str, str]) -> None:
        """Others may use the node as well: theirs stays as it is."""
        admin.patch(path, {"metadata": {"labels": {mine: "x" if more else None}}, "spec": {"taints": [*taints, *more]}})

    taint({"key": mine, "effect": "PreferNoSchedule"})
    try:
        until(lambda: any(mine in label for label in cell.call(lambda engine: engine.node(node).taints)))
        assert cell.call(lambda engine: engine.node(node).labels)[mine] == "x"
    finally:
        taint()
    until(lambda: mine not in str(cell.call(lambda engine: engine.node(node))))
    after = cell.call(lambda engine: engine.workload(name))
    assert (after.state, after.attempts, after.started_ms) == ("running", before.attempts, before.started_ms)
    assert (after.history, after.placement) == (before.history, before.placement)


def test_a_mirror_that_comes_back_finds_what_changed_meanwhile(tmp_path: Path) -> None:
    with own("--nodes", "3") as cluster, cluster.admin() as admin:
        space = admin.namespace("team")
        queue = make_queue(admin, "all", space, make_flavor(admin, "default"), {"cpu": "8"})
        with mirrored(cluster, tmp_path / "cell.db") as cell:
            stays = make_job(admin, space, "stays", queue, {"cpu": "2"}, pods=2)
            goes = make_job(admin, space, "goes", queue, {"cpu": "1"})
            until(lambda: cell.state_of(stays) == cell.state_of(goes) == "running")
        admin.do("DELETE", f"{JOBS}/{space}/jobs/goes?propagationPolicy=Background")
        node = admin.do("GET", "/api/v1/nodes")["items"][0]["metadata"]["name"]
        admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        until(lambda: not pods_on_nodes(admin, space, "goes"))
        with mirrored(cluster, tmp_path / "cell.db") as cell:
            until(lambda: cell.state_of(goes) == "cancelled")
            assert cell.state_of(stays) == "running"
            assert cell.nodes_of(stays) == pods_on_nodes(admin, space, "stays")
            assert cell.used(queue)[0] == 4000
            assert cell.call(lambda e: e.state.workloads.attempts[e.state.workloads.row_of[stays]]) == 1
            assert cell.call(lambda e: e.state.capacity.state[e.state.capacity.row_of[node]]) == 1
            assert cell.faults() == []
            digest = cell.call(lambda engine: engine.state.digest())
        again = Engine.open(tmp_path / "cell.db", use_snapshot=False)
        assert again.state.digest() == digest
        again.close()


def test_a_fork_reclaims_and_preempts_as_kueue_then_does(cell: MirroredCell, admin: Admin, space: str) -> None:
    """Work comes that needs what another queue borrows and what lower work of its own queue has. `easy` would have it
    wait: its priority class preempts nobody."""
    flavor, cohort, low = make_flavor(admin, f"{space}-f"), f"{space}-both", f"{space}-low"
    rules = {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"}
    owner = make_queue(admin, f"{space}-o", space, flavor, {"cpu": "8"}, cohortName=cohort, preemption=rules)
    guest = make_queue(admin, f"{space}-g", space, flavor, {"cpu": "0"}, cohortName=cohort)
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": low}}
    admin.do("POST", f"{QUEUES}/workloadpriorityclasses", body | {"value": -10})
    borrows = make_job(admin, space, "borrows", guest, {"cpu": "4"})
    lower = make_job(admin, space, "lower", owner, {"cpu": "4"}, priority=low)
    until(lambda: {cell.state_of(borrows), cell.state_of(lower)} == {"running"})
    urgent = WorkloadSpec(
        id="urgent", queue=owner, priority_class="priority-0", tenant=space,
        groups=(TaskGroup(count=2, request=Resources(cpu_milli=4000)),),
    )  # fmt: skip

    def foretold(policy: Policy | None) -> list[str]:
        fork: Engine = cell.call(lambda engine: engine.fork())
        if policy is not None:
            fork.command(SetPolicy(policy=policy))
        fork.command(Submit(workloads=(urgent,)))
        fork.advance(fork.now_ms + 1)
        return [_settled(fork.workload(name).state) for name in ("urgent", borrows, lower)]

    assert foretold("easy") == ["waits", "has nodes", "has nodes"]
    assert foretold(None) == ["has nodes", "waits", "waits"]
    came = make_job(admin, space, "urgent", owner, {"cpu": "4"}, pods=2)
    until(lambda: [_settled(cell.state_of(name)) for name in (came, borrows, lower)] == ["has nodes", "waits", "waits"])


def _settled(state: str) -> str:
    return "has nodes" if state in ("placed", "running") else "waits"


def test_without_kueue_forks_go_by_easy(cluster: KubernetesCluster, tmp_path: Path) -> None:
    """A cell that followed Kueue, and no longer does. Its policy is in its journal."""
    journal = tmp_path / "cell.db"
    for kueue, policy in ((True, "kueue"), (False, "easy")):
        with mirrored(cluster, journal, kueue=kueue) as cell:
            assert cell.call(lambda engine: engine.state.policy) == policy
        again = Engine.open(journal)
        assert again.state.policy == policy
        again.close()
