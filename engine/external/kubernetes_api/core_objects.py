"""Objects of Kubernetes itself, as far as a cell is made of them. What is not named here is passed over when an answer
is read (`managedFields`, most annotations, volumes): that is most of the text of a pod.

Names and texts are what people wrote into the cluster: untrusted. Quantities are texts such as "96", "1500m", "768Gi".
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class ObjectPart(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Part of an object. Holds no cycles, so that the garbage collector need not look at millions of them."""


class Owner(ObjectPart, frozen=True):
    kind: str
    name: str
    uid: str
    controller: bool = False


class Annotations(ObjectPart, frozen=True):
    """The annotations that mean something here."""

    workload: str = msgspec.field(name="kueue.x-k8s.io/workload", default="")
    pod_group_count: str = msgspec.field(name="kueue.x-k8s.io/pod-group-total-count", default="")
    mirror: str = msgspec.field(name="kubernetes.io/config.mirror", default="")
    """Of a static pod: it is the kubelet's own, and cannot be evicted."""
    safe_to_evict: str = msgspec.field(name="cluster-autoscaler.kubernetes.io/safe-to-evict", default="")
    required_topology: str = msgspec.field(name="kueue.x-k8s.io/podset-required-topology", default="")
    preferred_topology: str = msgspec.field(name="kueue.x-k8s.io/podset-preferred-topology", default="")


class Metadata(ObjectPart, frozen=True):
    """`uid` and `resource_version` are never empty in an object of a list; the end of a list or stream has no `uid`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: Annotations = Annotations()
    owner_references: tuple[Owner, ...] = ()


class KubernetesObject(ObjectPart, frozen=True):
    """Base of all kinds."""

    metadata: Metadata


class Condition(ObjectPart, frozen=True):
    """`status` is True, False or Unknown."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class KubernetesTaint(ObjectPart, frozen=True):
    key: str
    effect: str = ""
    value: str = ""


class KubernetesToleration(ObjectPart, frozen=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Expression(ObjectPart, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(ObjectPart, frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()


# -- nodes and pods ---------------------------------------------------------------------------------------------------


class KubernetesNodeSpec(ObjectPart, frozen=True):
    unschedulable: bool = False
    taints: tuple[KubernetesTaint, ...] = ()
    provider_id: str = msgspec.field(name="providerID", default="")


class NodeStatus(ObjectPart, frozen=True):
    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()


class KubernetesNode(KubernetesObject, frozen=True):
    spec: KubernetesNodeSpec = KubernetesNodeSpec()
    status: NodeStatus = NodeStatus()


class ContainerResources(ObjectPart, frozen=True):
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Container(ObjectPart, frozen=True):
    name: str
    resources: ContainerResources = ContainerResources()
    restart_policy: str = ""
    """Of an init container: Always makes it a sidecar, which is held beside the others."""


class NamedObject(ObjectPart, frozen=True):
    name: str


class PodSpec(ObjectPart, frozen=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    resources: ContainerResources = ContainerResources()
    overhead: dict[str, str] = {}
    node_name: str = ""
    node_selector: dict[str, str] = {}
    tolerations: tuple[KubernetesToleration, ...] = ()
    scheduling_gates: tuple[NamedObject, ...] = ()
    scheduler_name: str = ""
    priority: int = 0
    priority_class_name: str = ""
    termination_grace_period_seconds: int = 30


class Waiting(ObjectPart, frozen=True):
    reason: str = ""
    message: str = ""


class ContainerState(ObjectPart, frozen=True):
    waiting: Waiting | None = None


class ContainerStatus(ObjectPart, frozen=True):
    name: str
    state: ContainerState = ContainerState()


class PodStatus(ObjectPart, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class KubernetesPod(KubernetesObject, frozen=True):
    """A pod that has not ended: those that have are not asked for, so that one that ends is told as deleted."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


# -- the rest ---------------------------------------------------------------------------------------------------------


class JobSpec(ObjectPart, frozen=True):
    parallelism: int = 1
    completions: int | None = None
    backoff_limit: int = 6
    suspend: bool = False
    completion_mode: str = ""
    managed_by: str = ""


class JobStatus(ObjectPart, frozen=True):
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class KubernetesJob(KubernetesObject, frozen=True):
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class PriorityClass(KubernetesObject, frozen=True):
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class NamespaceStatus(ObjectPart, frozen=True):
    phase: str = ""


class Namespace(KubernetesObject, frozen=True):
    status: NamespaceStatus = NamespaceStatus()


class ResourceQuotaSpec(ObjectPart, frozen=True):
    hard: dict[str, str] = {}
    scopes: tuple[str, ...] = ()


class ResourceQuotaStatus(ObjectPart, frozen=True):
    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class ResourceQuota(KubernetesObject, frozen=True):
    spec: ResourceQuotaSpec = ResourceQuotaSpec()
    status: ResourceQuotaStatus = ResourceQuotaStatus()


class DisruptionBudgetSpec(ObjectPart, frozen=True):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: LabelSelector | None = None
    """None chooses no pod; one that is empty chooses all of the namespace."""


class DisruptionBudgetStatus(ObjectPart, frozen=True):
    current_healthy: int = 0
    desired_healthy: int = 0
    disruptions_allowed: int = 0
    expected_pods: int = 0


class PodDisruptionBudget(KubernetesObject, frozen=True):
    spec: DisruptionBudgetSpec = DisruptionBudgetSpec()
    status: DisruptionBudgetStatus = DisruptionBudgetStatus()
