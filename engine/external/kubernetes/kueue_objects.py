"""Objects of Kueue (kueue.x-k8s.io/v1beta2), as far as a cell is made of them.

A quantity is a text such as "40" or "1500m", or a whole number where it was written as one.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from engine.external.kubernetes.core_objects import (
    Condition,
    KubernetesObject,
    LabelSelector,
    Metadata,
    Named,
    Part,
    PodSpec,
    Taint,
    Toleration,
)

Quantity = str | int


class FairSharing(Part, frozen=True):
    weight: Quantity = 1


# -- queues -----------------------------------------------------------------------------------------------------------


class ResourceQuotas(Part, frozen=True):
    """None as a limit: none."""

    name: str
    nominal_quota: Quantity = 0
    borrowing_limit: Quantity | None = None
    lending_limit: Quantity | None = None


class FlavorQuotas(Part, frozen=True):
    name: str
    resources: tuple[ResourceQuotas, ...] = ()


class ResourceGroup(Part, frozen=True):
    """Flavors in the order in which they are tried."""

    covered_resources: tuple[str, ...] = ()
    flavors: tuple[FlavorQuotas, ...] = ()


class BorrowWithinCohort(Part, frozen=True):
    policy: str = "Never"
    max_priority_threshold: int | None = None


class Preemption(Part, frozen=True):
    within_cluster_queue: str = "Never"
    reclaim_within_cohort: str = "Never"
    borrow_within_cohort: BorrowWithinCohort = BorrowWithinCohort()


class FlavorFungibility(Part, frozen=True):
    when_can_borrow: str = "MayStopSearch"
    when_can_preempt: str = "TryNextFlavor"
    preference: str = ""


class CheckOfFlavors(Part, frozen=True):
    """`on_flavors` empty: on all of them."""

    name: str
    on_flavors: tuple[str, ...] = ()


class AdmissionChecksStrategy(Part, frozen=True):
    admission_checks: tuple[CheckOfFlavors, ...] = ()


class AdmissionScope(Part, frozen=True):
    admission_mode: str = ""


class ClusterQueueSpec(Part, frozen=True):
    cohort_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] = ()
    queueing_strategy: str = "BestEffortFIFO"
    namespace_selector: LabelSelector | None = None
    preemption: Preemption = Preemption()
    flavor_fungibility: FlavorFungibility = FlavorFungibility()
    fair_sharing: FairSharing = FairSharing()
    admission_checks_strategy: AdmissionChecksStrategy = AdmissionChecksStrategy()
    admission_scope: AdmissionScope | None = None
    stop_policy: str = "None"


class UsedResource(Part, frozen=True):
    name: str
    total: Quantity = 0
    borrowed: Quantity = 0


class UsedFlavor(Part, frozen=True):
    name: str
    resources: tuple[UsedResource, ...] = ()


class QueueStatus(Part, frozen=True):
    conditions: tuple[Condition, ...] = ()
    flavors_reservation: tuple[UsedFlavor, ...] = ()
    flavors_usage: tuple[UsedFlavor, ...] = ()
    pending_workloads: int = 0
    reserving_workloads: int = 0
    admitted_workloads: int = 0


class ClusterQueue(KubernetesObject, frozen=True):
    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: QueueStatus = QueueStatus()


class LocalQueueSpec(Part, frozen=True):
    cluster_queue: str = ""
    stop_policy: str = "None"
    fair_sharing: FairSharing = FairSharing()


class LocalQueue(KubernetesObject, frozen=True):
    spec: LocalQueueSpec = LocalQueueSpec()
    status: QueueStatus = QueueStatus()


class CohortSpec(Part, frozen=True):
    parent_name: str = ""
    resource_groups: tuple[ResourceGroup, ...] = ()
    fair_sharing: FairSharing = FairSharing()


class Cohort(KubernetesObject, frozen=True):
    """A cohort may have no object of its own: it is then only a name that queues share."""

    spec: CohortSpec = CohortSpec()


# -- workloads --------------------------------------------------------------------------------------------------------


class TopologyRequest(Part, frozen=True):
    required: str = ""
    preferred: str = ""
    unconstrained: bool = False
    pod_set_group_name: str = ""
    slice_required: str = msgspec.field(name="podSetSliceRequiredTopology", default="")
    slice_size: int = msgspec.field(name="podSetSliceSize", default=0)


class PodTemplate(Part, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class PodSet(Part, frozen=True):
    name: str = ""
    count: int = 1
    min_count: int | None = None
    template: PodTemplate = PodTemplate()
    topology_request: TopologyRequest | None = None


class PriorityClassRef(Part, frozen=True):
    group: str = ""
    name: str = ""


class WorkloadSpec(Part, frozen=True):
    pod_sets: tuple[PodSet, ...] = ()
    queue_name: str = ""
    priority: int = 0
    priority_class_ref: PriorityClassRef = PriorityClassRef()
    active: bool = True
    maximum_execution_time_seconds: int | None = None


class PodCounts(Part, frozen=True):
    """One count for each domain, or one for all."""

    universal: int | None = None
    individual: tuple[int, ...] = ()


class IndividualValues(Part, frozen=True):
    """The value of each domain is prefix, root and suffix in a row."""

    prefix: str = ""
    roots: tuple[str, ...] = ()
    suffix: str = ""


class LevelValues(Part, frozen=True):
    """One value of a level for all domains, or one for each."""

    universal: str | None = None
    individual: IndividualValues | None = None


class TopologySlice(Part, frozen=True):
    """`domain_count` domains: how many pods each has, and its value of each level."""

    domain_count: int = 0
    pod_counts: PodCounts = PodCounts()
    values_per_level: tuple[LevelValues, ...] = ()


class TopologyAssignment(Part, frozen=True):
    levels: tuple[str, ...] = ()
    slices: tuple[TopologySlice, ...] = ()


class PodSetAssignment(Part, frozen=True):
    name: str = ""
    count: int = 0
    flavors: dict[str, str] = msgspec.field(default_factory=dict)
    resource_usage: dict[str, Quantity] = msgspec.field(default_factory=dict)
    topology_assignment: TopologyAssignment | None = None


class Admission(Part, frozen=True):
    cluster_queue: str = ""
    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class AdmissionCheckState(Part, frozen=True):
    """`state` is Pending, Ready, Retry or Rejected."""

    name: str
    state: str = ""
    message: str = ""
    requeue_after_seconds: int | None = None
    retry_count: int = 0


class ReclaimablePods(Part, frozen=True):
    name: str
    count: int = 0


class RequeueState(Part, frozen=True):
    count: int = 0
    requeue_at: datetime | None = None


class WorkloadStatus(Part, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[AdmissionCheckState, ...] = ()
    reclaimable_pods: tuple[ReclaimablePods, ...] = ()
    requeue_state: RequeueState | None = None
    unhealthy_nodes: tuple[Named, ...] = ()
    cluster_name: str = ""


class Workload(KubernetesObject, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()


# -- flavors and what is beside them ----------------------------------------------------------------------------------


class ResourceFlavorSpec(Part, frozen=True):
    node_labels: dict[str, str] = msgspec.field(default_factory=dict)
    node_taints: tuple[Taint, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    topology_name: str = ""


class ResourceFlavor(KubernetesObject, frozen=True):
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class TopologyLevel(Part, frozen=True):
    node_label: str


class TopologySpec(Part, frozen=True):
    """Levels from the widest to the narrowest."""

    levels: tuple[TopologyLevel, ...] = ()


class Topology(KubernetesObject, frozen=True):
    spec: TopologySpec = TopologySpec()


class WorkloadPriorityClass(KubernetesObject, frozen=True):
    value: int = 0
    description: str = ""


class AdmissionCheckSpec(Part, frozen=True):
    controller_name: str = ""


class AdmissionCheckStatus(Part, frozen=True):
    conditions: tuple[Condition, ...] = ()


class AdmissionCheck(KubernetesObject, frozen=True):
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: AdmissionCheckStatus = AdmissionCheckStatus()
