"""Objects of Kueue (kueue.x-k8s.io/v1beta2), as far as a cell is made of them.

A quantity is a text such as "40" or "1500m", or a whole number where it was written as one.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from engine.external.kubernetes_api.core_objects import (
    Condition,
    KubernetesObject,
    KubernetesTaint,
    KubernetesToleration,
    LabelSelector,
    Metadata,
    NamedObject,
    ObjectPart,
    PodSpec,
)

Quantity = str | int


class FairSharing(ObjectPart, frozen=True):
    weight: Quantity = 1


# -- queues -----------------------------------------------------------------------------------------------------------


class ResourceQuotas(ObjectPart, frozen=True):
    """None as a limit: none."""

    name: str
    nominal_quota: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(ObjectPart, frozen=True):
    name: str
    resources: tuple[ResourceQuotas, ...] = ()


class ResourceGroup(ObjectPart, frozen=True):
    """Flavors in the order in which they are tried."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class BorrowWithinCohort(ObjectPart, frozen=True):
    policy: str = "Never"
    max_priority_threshold: int | None = None


class ClusterQueuePreemption(ObjectPart, frozen=True):
    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()


class FlavorFungibility(ObjectPart, frozen=True):
    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"
    preference: str = ""


class CheckOfFlavors(ObjectPart, frozen=True):
    """`on_flavors` empty: on all of them."""

    name: str
    on_flavors: tuple[str, ...] = ()


class AdmissionChecksStrategy(ObjectPart, frozen=True):
    admission_checks: tuple[CheckOfFlavors, ...] = ()


class AdmissionScope(ObjectPart, frozen=True):
    admission_mode: str = ""


class ClusterQueueSpec(ObjectPart, frozen=True):
    cohort_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] = ()
    queueing_strategy: str = "BestEffortFIFO"
    namespace_selector: LabelSelector | None = None
    preemption: ClusterQueuePreemption = ClusterQueuePreemption()
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    fair_sharing: FairSharing = FairSharing()
    admission_checks_strategy: AdmissionChecksStrategy = AdmissionChecksStrategy()
    admission_scope: AdmissionScope | None = None
    stop_policy: str = "None"


class UsedResource(ObjectPart, frozen=True):
    name: str
    total: Quantity = 0
    borrowed: Quantity = 0


class UsedFlavor(ObjectPart, frozen=True):
    name: str
    resources: tuple[UsedResource, ...] = ()


class FairSharingStatus(ObjectPart, frozen=True):
    """Share of a queue, which Kueue writes only where its configuration has fair sharing on."""


class QueueStatus(ObjectPart, frozen=True):
    conditions: tuple[Condition, ...] = ()
    flavors_reservation: tuple[UsedFlavor, ...] = ()
    flavors_usage: tuple[UsedFlavor, ...] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0
    fair_sharing: FairSharingStatus | None = None


class ClusterQueue(KubernetesObject, frozen=True):
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: QueueStatus = QueueStatus()


class LocalQueueSpec(ObjectPart, frozen=True):
    cluster_queue: str = ""
    stop_policy: str = "None"
    fair_sharing: FairSharing = FairSharing()


class LocalQueue(KubernetesObject, frozen=True):
    spec: LocalQueueSpec = LocalQueueSpec()
    status: QueueStatus = QueueStatus()


class CohortSpec(ObjectPart, frozen=True):
    parent_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] = ()
    fair_sharing: FairSharing = FairSharing()


class Cohort(KubernetesObject, frozen=True):
    """A cohort may have no object of its own: it is then only a name that queues share."""

    spec: CohortSpec = CohortSpec()


# -- workloads --------------------------------------------------------------------------------------------------------


class PodSetTopologyRequest(ObjectPart, frozen=True):
    required: str = ""
    preferred: str = ""
    unconstrained: bool = False
    pod_set_group_name: str = ""
    slice_required: str = msgspec.field(name="podSetSliceRequiredTopology", default="")
    slice_size: int = msgspec.field(name="podSetSliceSize", default=0)


class PodTemplate(ObjectPart, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class PodSet(ObjectPart, frozen=True):
    name: str = ""
    count: int = 1
    min_count: int | None = None
    template: PodTemplate = PodTemplate()
    topology_request: PodSetTopologyRequest | None = None


class PriorityClassRef(ObjectPart, frozen=True):
    group: str = ""
    name: str = ""


class KueueWorkloadSpec(ObjectPart, frozen=True):
    pod_sets: tuple[PodSet, ...] = ()
    queue_name: str = ""
    priority: int = 0
    priority_class_ref: PriorityClassRef = PriorityClassRef()
    active: bool = True
    maximum_execution_time_seconds: int | None = None


class PodCounts(ObjectPart, frozen=True):
    """One count for each domain, or one for all."""

    universal: int | None = None
    individual: tuple[int, ...] = ()


class IndividualValues(ObjectPart, frozen=True):
    """The value of each domain is prefix, root and suffix in a row."""

    prefix: str = ""
    roots: tuple[str, ...] = ()
    suffix: str = ""


class LevelValues(ObjectPart, frozen=True):
    """One value of a level for all domains, or one for each."""

    universal: str | None = None
    individual: IndividualValues | None = None


class TopologySlice(ObjectPart, frozen=True):
    """`domain_count` domains: how many pods each has, and its value of each level."""

    domain_count: int = 0
    pod_counts: PodCounts = PodCounts()
    values_per_level: tuple[LevelValues, ...] = ()


class TopologyAssignment(ObjectPart, frozen=True):
    levels: tuple[str, ...] = ()
    slices: tuple[TopologySlice, ...] = ()


class PodSetAssignment(ObjectPart, frozen=True):
    name: str = ""
    count: int = 0
    flavors: dict[str, str] = msgspec.field(default_factory=dict)
    resource_usage: dict[str, Quantity] = msgspec.field(default_factory=dict)
    topology_assignment: TopologyAssignment | None = None


class KueueAdmission(ObjectPart, frozen=True):
    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class AdmissionCheckState(ObjectPart, frozen=True):
    """`state` is Pending, Ready, Retry or Rejected."""

    name: str
    state: str = ""
    message: str = ""
    requeue_after_seconds: int | None = None
    retry_count: int = 0


class ReclaimablePods(ObjectPart, frozen=True):
    name: str
    count: int = 0


class RequeueState(ObjectPart, frozen=True):
    count: int = 0
    requeue_at: datetime | None = None


class EvictionCount(ObjectPart, frozen=True):
    reason: str = ""
    count: int = 0


class SchedulingStats(ObjectPart, frozen=True):
    evictions: tuple[EvictionCount, ...] = ()


class WorkloadStatus(ObjectPart, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: KueueAdmission | None = None
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    reclaimable_pods: tuple[ReclaimablePods, ...] = ()
    requeue_state: RequeueState | None = None
    unhealthy_nodes: tuple[NamedObject, ...] = ()
    cluster_name: str = ""
    scheduling_stats: SchedulingStats = SchedulingStats()


class Workload(KubernetesObject, frozen=True):
    spec: KueueWorkloadSpec = KueueWorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


# -- flavors and what is beside them ----------------------------------------------------------------------------------


class ResourceFlavorSpec(ObjectPart, frozen=True):
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    node_taints: tuple[KubernetesTaint, ...] = ()
    tolerations: tuple[KubernetesToleration, ...] = ()
    topology_name: str = ""


class ResourceFlavor(KubernetesObject, frozen=True):
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class TopologyLevel(ObjectPart, frozen=True):
    node_label: str


class TopologySpec(ObjectPart, frozen=True):
    """Levels from the widest to the narrowest."""

    levels: tuple[TopologyLevel, ...] = ()


class Topology(KubernetesObject, frozen=True):
    spec: TopologySpec = TopologySpec()


class WorkloadPriorityClass(KubernetesObject, frozen=True):
    value: int = 0
    description: str = ""


class AdmissionCheckSpec(ObjectPart, frozen=True):
    controller_name: str = ""


class AdmissionCheckStatus(ObjectPart, frozen=True):
    conditions: tuple[Condition, ...] = ()


class AdmissionCheck(KubernetesObject, frozen=True):
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()
