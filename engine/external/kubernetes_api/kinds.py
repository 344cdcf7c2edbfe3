"""Kinds of objects that are observed, and where the API server has them."""

from __future__ import annotations

import msgspec

from engine.external.kubernetes_api.core_objects import (
    KubernetesJob,
    KubernetesNode,
    KubernetesObject,
    KubernetesPod,
    Namespace,
    PodDisruptionBudget,
    PriorityClass,
    ResourceQuota,
)
from engine.external.kubernetes_api.kueue_objects import (
    AdmissionCheck,
    ClusterQueue,
    Cohort,
    LocalQueue,
    ResourceFlavor,
    Topology,
    Workload,
    WorkloadPriorityClass,
)

KUEUE = "kueue.x-k8s.io"
UNENDED = "status.phase!=Succeeded,status.phase!=Failed"


class ObjectKind(msgspec.Struct, frozen=True):
    """`resource` is its name in the API, in the plural; `shape` what is read of each. `fields` chooses among them."""

    resource: str
    shape: type[KubernetesObject]
    group: str = ""
    version: str = "v1"
    fields: str = ""

    @property
    def path(self) -> str:
        return f"/apis/{self.group}/{self.version}/{self.resource}" if self.group else f"/api/v1/{self.resource}"

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = (
    ObjectKind("nodes", KubernetesNode),
    ObjectKind("pods", KubernetesPod, fields=UNENDED),
    ObjectKind("namespaces", Namespace),
    ObjectKind("resourcequotas", ResourceQuota),
    ObjectKind("jobs", KubernetesJob, "batch"),
    ObjectKind("priorityclasses", PriorityClass, "scheduling.k8s.io"),
    ObjectKind("poddisruptionbudgets", PodDisruptionBudget, "policy"),
    ObjectKind("clusterqueues", ClusterQueue, KUEUE, "v1beta2"),
    ObjectKind("localqueues", LocalQueue, KUEUE, "v1beta2"),
    ObjectKind("cohorts", Cohort, KUEUE, "v1beta2"),
    ObjectKind("workloads", Workload, KUEUE, "v1beta2"),
    ObjectKind("resourceflavors", ResourceFlavor, KUEUE, "v1beta2"),
    ObjectKind("topologies", Topology, KUEUE, "v1beta2"),
    ObjectKind("workloadpriorityclasses", WorkloadPriorityClass, KUEUE, "v1beta2"),
    ObjectKind("admissionchecks", AdmissionCheck, KUEUE, "v1beta2"),
)
