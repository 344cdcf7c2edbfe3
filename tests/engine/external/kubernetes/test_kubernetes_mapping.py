"""Nodes, flavors and queues of Kubernetes as those of a cell."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.external.kubernetes.node_mapping import NodeMapping
from engine.external.kubernetes.queue_mapping import QueueMapping
from engine.external.kubernetes_api.core_objects import KubernetesNode
from engine.external.kubernetes_api.kueue_objects import ClusterQueue, Cohort, QueueStatus, ResourceFlavor, Topology
from engine.external.kubernetes_api.resources import ResourceReader
from engine.external.mirror_report import UnsupportedCounts
from engine.model.specs import FlavorQuota, KueueRules, QueueSpec


def node(name: str, cpu: str = "96", memory: str = "768Gi", gpus: int = 8, **more: Any) -> KubernetesNode:
    labels = more.pop("labels", {})
    status = {
        "allocatable": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": str(gpus)},
        "conditions": [{"type": "Ready", "status": more.pop("ready", "True")}],
    }
    metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": labels}
    return msgspec.convert({"metadata": metadata, "spec": more, "status": status}, KubernetesNode)


def of(kind: type[Any], name: str, **spec: Any) -> Any:
    return msgspec.convert({"metadata": {"name": name, "uid": name}, "spec": spec}, kind)


def quota(flavor: str, resource: str, nominal: str, **limits: str) -> dict[str, Any]:
    resources = [{"name": resource, "nominalQuota": nominal, **limits}]
    return {"coveredResources": [resource], "flavors": [{"name": flavor, "resources": resources}]}


def mapping(*flavors: ResourceFlavor, topologies: tuple[Topology, ...] = ()) -> NodeMapping:
    found = NodeMapping(ResourceReader())
    found.learn(flavors, topologies)
    return found


def test_machines_that_differ_by_a_little_memory_are_one_pool() -> None:
    seen = mapping().observed([node("a"), node("b", memory="767Gi"), node("c", memory="512Gi")])
    assert seen[0].node.pool == seen[1].node.pool != seen[2].node.pool


def test_a_flavor_divides_pools_by_its_labels() -> None:
    spot = of(ResourceFlavor, "spot", nodeLabels={"tier": "spot"})
    found = mapping(spot)
    seen = found.observed([node("a", labels={"tier": "spot"}), node("b")])
    assert found.pools_of(spot) == (seen[0].node.pool,)
    assert seen[0].node.pool != seen[1].node.pool


def test_a_node_stands_as_its_conditions_and_taints_say() -> None:
    nodes = [
        node("a"),
        node("b", unschedulable=True, taints=[{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]),
        node("c", ready="Unknown"),
        node("d", taints=[{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]),
        node("e", taints=[{"key": "gpu", "value": "only", "effect": "NoExecute"}]),
    ]
    seen = mapping().observed(nodes)
    assert [each.standing for each in seen] == ["ready", "cordoned", "down", "draining", "ready"]
    assert [taint.label for each in seen for taint in each.node.taints] == ["gpu=only:NoSchedule"]


def test_levels_of_a_topology_are_places_that_are_told_apart_by_their_path() -> None:
    levels = [{"nodeLabel": label} for label in ("block", "rack", "kubernetes.io/hostname")]
    found = mapping(topologies=(of(Topology, "default", levels=levels),))
    seen = found.observed([node("a", labels={"block": "b1", "rack": "r1"}),
                           node("b", labels={"block": "b2", "rack": "r1"})])  # fmt: skip
    assert [(each.node.block, each.node.rack) for each in seen] == [("b1", "b1/r1"), ("b2", "b2/r1")]
    assert found.level_of == {"kubernetes.io/hostname": "node", "rack": "rack", "block": "block"}


def queues_of(
    queues: list[ClusterQueue], pools_of: dict[str, tuple[str, ...]], cohorts: tuple[Cohort, ...] = ()
) -> tuple[dict[str, QueueSpec], UnsupportedCounts]:
    left = UnsupportedCounts()
    found = QueueMapping(ResourceReader(), cohorts, queues, pools_of, left)
    return {each.queue.name: each.queue for each in found.observed()}, left


def test_limits_of_a_queue_in_a_cohort_are_kept_and_those_of_one_alone_are_none() -> None:
    groups = [quota("f", "nvidia.com/gpu", "16", borrowingLimit="8", lendingLimit="4")]
    found, _ = queues_of(
        [of(ClusterQueue, "a", cohortName="all", resourceGroups=groups), of(ClusterQueue, "b", resourceGroups=groups)],
        {"f": ("p",)},
    )
    a = found["a"]
    assert (a.parent, a.nominal, a.borrowing_limit, a.lending_limit) == (
        "cohort/all", {"gpu_milli": 16_000}, {"gpu_milli": 8000}, {"gpu_milli": 4000},
    )  # fmt: skip
    assert (found["b"].nominal, found["b"].borrowing_limit) == ({"gpu_milli": 16_000}, {})


def test_flavors_that_stand_for_a_pool_each_have_their_own_quota() -> None:
    groups = [quota("x", "cpu", "4"), quota("y", "nvidia.com/gpu", "8")]
    found, _ = queues_of([of(ClusterQueue, "a", resourceGroups=groups)], {"x": ("p",), "y": ("q",)})
    assert found["a"].flavors == (
        FlavorQuota(pool="p", nominal={"cpu_milli": 4000}), FlavorQuota(pool="q", nominal={"gpu_milli": 8000}),
    )  # fmt: skip


def test_flavors_that_share_a_pool_count_together_and_that_is_said() -> None:
    groups = [quota("x", "cpu", "4"), quota("y", "cpu", "8")]
    found, left = queues_of([of(ClusterQueue, "a", resourceGroups=groups)], {"x": ("p",), "y": ("p", "q")})
    assert (found["a"].flavors, found["a"].nominal) == ((), {"cpu_milli": 12_000})
    assert any("count for all pools together" in each.text for each in left.all())


def test_cohorts_are_a_tree_and_a_circle_is_taken_apart() -> None:
    cohorts = (of(Cohort, "a", parentName="b"), of(Cohort, "b", parentName="a"), of(Cohort, "c", parentName="top"))
    found, left = queues_of([], {}, cohorts)
    assert found["cohort/c"].parent == "cohort/top"
    assert {found["cohort/a"].parent, found["cohort/b"].parent} != {"cohort/a", "cohort/b"}
    assert list(found).index("cohort/top") < list(found).index("cohort/c")
    assert any("circle" in each.text for each in left.all())


def test_rules_of_a_queue_are_those_of_its_cluster_queue() -> None:
    rules = {
        "withinClusterQueue": "LowerOrNewerEqualPriority", "reclaimWithinCohort": "LowerPriority",
        "borrowWithinCohort": {"policy": "LowerPriority", "maxPriorityThreshold": 5},
    }  # fmt: skip
    fungibility = {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "MayStopSearch"}
    given = of(
        ClusterQueue, "a", queueingStrategy="StrictFIFO", preemption=rules, flavorFungibility=fungibility
    )  # fmt: skip
    found, left = queues_of([given, of(ClusterQueue, "b")], {})
    assert (found["a"].order, found["a"].reclaim) == ("strict_fifo", "lower_priority")
    assert found["a"].kueue == KueueRules(
        within_queue="lower_or_newer_equal", borrow_within_cohort="lower_priority", borrow_max_priority=5,
        when_can_borrow="try_next", when_can_preempt="stop",
    )  # fmt: skip
    assert (found["b"].reclaim, found["b"].kueue) == ("never", KueueRules())
    assert not left.any


def test_fair_sharing_is_named_for_each_queue_that_kueue_shows_a_share_of() -> None:
    plain = of(ClusterQueue, "a", fairSharing={"weight": "2"})
    status = msgspec.convert({"fairSharing": {"weightedShare": 3}}, QueueStatus)
    shared = [msgspec.structs.replace(of(ClusterQueue, name), status=status) for name in ("b", "c")]
    _, left = queues_of([plain, *shared], {})
    assert [(each.text.partition(" is on")[0], each.count) for each in left.all()] == [("fair sharing of cohorts", 2)]
