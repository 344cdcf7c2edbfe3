"""Workloads of Kueue, with their pods, as workloads of a cell.

A Workload is a gang, its pod sets are the task groups. It waits until Kueue reserves quota for it. From then on it
holds quota of its queue: of the pods that are on nodes by being there, of the others as `reserves`. It is placed when
its first pod is on a node, and runs when all that are there run. Its word is Kueue's condition as it stands.

Not read at all: affinity, topology spread, volumes, claims of devices (DRA).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from engine.external.kubernetes.names import cluster_queue_id, local_queue_id, workload_id
from engine.external.kubernetes.node_mapping import HOSTNAME, fits, ident
from engine.external.kubernetes.queue_mapping import QueueMapping
from engine.external.kubernetes_api.core_objects import Condition, KubernetesToleration
from engine.external.kubernetes_api.kueue_objects import (
    ClusterQueue,
    LocalQueue,
    PodSet,
    PodSetAssignment,
    ResourceFlavor,
    Workload,
)
from engine.external.kubernetes_api.resources import ResourceReader
from engine.external.mirror_report import LeftOut, UnsupportedCounts
from engine.model import external_cells as seen
from engine.model.specs import (
    LEVELS,
    MAX_LABELS,
    MAX_TASKS,
    RESOURCES,
    Level,
    PriorityClassSpec,
    Resources,
    TaskGroup,
    Toleration,
    TopologyRequest,
    WorkloadSpec,
)

MAX_WORD = 300
"""Letters of a condition that the cell keeps."""
NOT_READ = LeftOut(
    text="affinity, topology spread, volumes and claims of devices (DRA) are not read", count=0, examples=()
)
_ENDED: dict[str, seen.Phase] = {"Succeeded": "finished", "JobFinished": "finished", "Failed": "failed"}
"""Reason of Kueue for an end; any other is the end of its owner, such as its deletion."""
ENDS = ("finished", "failed", "cancelled")
_EVICTED = {
    "PodsReadyTimeout": "not confirmed", "ClusterQueueStopped": "queue drained", "LocalQueueStopped": "queue drained",
    "Deactivated": "asked", "InactiveWorkload": "asked", "NodeFailures": "node lost",
    "InClusterQueue": "lower priority", "InCohortReclamation": "reclaimed", "InCohortFairSharing": "reclaimed",
    "InCohortReclaimWhileBorrowing": "reclaimed",
}  # fmt: skip
"""Reason of Kueue for an eviction or preemption -> cause of the cell."""


class PodRecord(msgspec.Struct, frozen=True, gc=False):
    """What is kept of a pod. `key` is the Workload or the controller that it belongs to; `node` an id of the cell,
    empty until it is bound. `said` is what the scheduler says of one that is not, `at_s` since when."""

    namespace: str
    name: str
    key: str
    node: str
    request: Resources
    group: str
    running: bool
    gated: bool
    said: str = ""
    at_s: float = 0.0


class ClusterFacts(msgspec.Struct, kw_only=True):
    """What workloads are matched against."""

    reader: ResourceReader
    queues: QueueMapping
    level_of: Mapping[str, Level]
    cluster_queues: Mapping[str, ClusterQueue]
    local_queues: Mapping[tuple[str, str], LocalQueue]
    flavors: Mapping[str, ResourceFlavor]
    pools_of: Mapping[str, tuple[str, ...]]


class WorkloadMapping:
    """Workloads of one look."""

    def __init__(self, facts: ClusterFacts, now_s: float) -> None:
        self._facts = facts
        self.left = UnsupportedCounts()
        self._now_s = now_s
        self.classes: dict[str, PriorityClassSpec] = {}
        """Those that were met."""
        self._groups: dict[tuple[str, bytes], tuple[TaskGroup, ...]] = {}
        """By queue and what the workload says of its pods: thousands of workloads ask for the same. Those with
        something left out are not in it, because that is named for each."""

    def observed(self, workload: Workload, pods: Sequence[PodRecord]) -> seen.WorkloadSeen | None:
        """The Workload with its pods; None where its queue is not known."""
        name = workload_id(workload.metadata.namespace, workload.metadata.name, workload.metadata.uid)
        queue = self._queue(workload)
        if queue is None:
            self.left.note("workloads without a queue that is known are left out", name)
            return None
        self._note_rules(workload, name)
        spec = WorkloadSpec(
            id=name,
            name=owner_name(workload)[:1024],
            queue=cluster_queue_id(queue.metadata.name),
            groups=self._task_groups(workload, queue, name),
            priority_class=self._priority_class(workload),
            tenant=workload.metadata.namespace,
            team=local_queue_id(workload.metadata.namespace, workload.spec.queue_name),
            estimate_ms=(workload.spec.maximum_execution_time_seconds or 0) * 1000,
            topology=self._topology(workload, name),
        )
        phase = phase_of(workload, pods, self._now_s)
        holds = tuple(self._holds(workload, spec, pods)) if phase in ("starting", "running") else ()
        finished = condition(workload, "Finished")
        return seen.WorkloadSeen(
            spec=spec,
            phase=phase,
            submitted_ms=_ms(workload.metadata.creation_timestamp),
            started_ms=_ms(since(workload, "Admitted")) or _ms(since(workload, "QuotaReserved")),
            ended_ms=_ms(finished.last_transition_time) if phase in ENDS and finished else 0,
            wake_ms=_requeue_ms(workload) if phase == "waiting" else -1,
            restarts=sum(each.count for each in workload.status.scheduling_stats.evictions),
            holds=holds,
            cause=_cause(workload) if phase in ("queued", "waiting", "held") else "",
            word=word_of(workload, phase),
            reserves=self._reserves(workload, queue, holds) if finished is None else (),
        )

    def _queue(self, workload: Workload) -> ClusterQueue | None:
        """That which admitted it, else that of its LocalQueue."""
        if workload.status.admission is not None:
            return self._facts.cluster_queues.get(workload.status.admission.cluster_queue)
        local = self._facts.local_queues.get((workload.metadata.namespace, workload.spec.queue_name))
        return self._facts.cluster_queues.get(local.spec.cluster_queue) if local is not None else None

    # -- what it asks for ---------------------------------------------------------------------------------------------

    def _task_groups(self, workload: Workload, queue: ClusterQueue, name: str) -> tuple[TaskGroup, ...]:
        admission, reclaimable = workload.status.admission, workload.status.reclaimable_pods
        key = queue.metadata.name, msgspec.msgpack.encode((workload.spec.pod_sets, admission, reclaimable))
        found = self._groups.get(key)
        if found is None:
            before, self.left = self.left, UnsupportedCounts()
            found = self._new_groups(workload, queue, name)
            if not self.left.any:
                self._groups[key] = found
            before.add(self.left)
            self.left = before
        return found

    def _new_groups(self, workload: Workload, queue: ClusterQueue, name: str) -> tuple[TaskGroup, ...]:
        admission = workload.status.admission
        assigned = {each.name: each for each in admission.pod_set_assignments} if admission is not None else {}
        reclaimable = {each.name: each.count for each in workload.status.reclaimable_pods}
        return tuple(
            self._task_group(each, queue, assigned.get(each.name), reclaimable.get(each.name, 0), name)
            for each in workload.spec.pod_sets
        )

    def _task_group(
        self, pods: PodSet, queue: ClusterQueue, assigned: PodSetAssignment | None, reclaimable: int, name: str
    ) -> TaskGroup:
        request = self._facts.reader.request(pods.template.spec)
        if not any(request.vector()):
            self.left.note("pods that ask for nothing count as a thousandth of a CPU", name)
            request = Resources(cpu_milli=1)
        count = assigned.count if assigned is not None and assigned.count else pods.count
        count = min(max(count - reclaimable, 1), MAX_TASKS)
        return TaskGroup(
            name=ident(pods.name) or "main",
            count=count,
            min_count=min(pods.min_count or 0, count) if assigned is None else 0,
            request=request,
            pools=self._pools(queue, assigned),
            node_labels=self._node_labels(pods, name),
            tolerations=self._tolerations(pods, queue, name),
        )

    def _pools(self, queue: ClusterQueue, assigned: PodSetAssignment | None) -> tuple[str, ...]:
        """Of the flavors it was given, else of all of its queue; empty where those are all there are."""
        facts = self._facts
        names = dict.fromkeys(assigned.flavors.values()) if assigned is not None else ()
        given = [frozenset(facts.pools_of.get(flavor, ())) for flavor in names]
        found = tuple(sorted(frozenset.intersection(*given))) if given else facts.queues.pools(queue.metadata.name)
        return () if len(found) == len({pool for pools in facts.pools_of.values() for pool in pools}) else found

    def _node_labels(self, pods: PodSet, name: str) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for key, value in sorted(pods.template.spec.node_selector.items()):
            if key == HOSTNAME or not fits(key, value) or len(found) == MAX_LABELS:
                self.left.note("node selectors by host name, or that are not labels of the cell, are left out", name)
            else:
                found[key] = (value,)
        return found

    def _tolerations(self, pods: PodSet, queue: ClusterQueue, name: str) -> tuple[Toleration, ...]:
        """The pods' own, and those that flavors give them."""
        given = [*pods.template.spec.tolerations]
        for group in queue.spec.resource_groups:
            for each in group.flavors:
                flavor = self._facts.flavors.get(each.name)
                given += flavor.spec.tolerations if flavor is not None else ()
        found: dict[Toleration, None] = {}
        for toleration in given:
            if not toleration.key:
                self.left.note("tolerations of all taints are left out", name)
            elif fits(toleration.key, toleration.value):
                found[_toleration(toleration)] = None
        return tuple(list(found)[:MAX_LABELS])

    def _topology(self, workload: Workload, name: str) -> TopologyRequest | None:
        """One for all of its pods; that of the first pod set that has one."""
        asked = [each.topology_request for each in workload.spec.pod_sets if each.topology_request is not None]
        if not asked:
            return None
        if len(workload.spec.pod_sets) > 1:
            self.left.note("a topology request of one pod set counts for all of its workload", name)
        if any(each.slice_required for each in asked):
            self.left.note("slices of a topology request are not modelled", name)
        level_of = self._facts.level_of
        required, preferred = level_of.get(asked[0].required), level_of.get(asked[0].preferred)
        if required is None and preferred is None:
            return None
        assert required is None or required in LEVELS
        return TopologyRequest(required=required, preferred=preferred)

    def _priority_class(self, workload: Workload) -> str:
        ref, value = workload.spec.priority_class_ref.name, workload.spec.priority
        name = f"{ident(ref)[:80] or 'priority'}-{value}"
        if name not in self.classes:
            self.classes[name] = PriorityClassSpec(name=name, value=value)
        return name

    def _note_rules(self, workload: Workload, name: str) -> None:
        if workload.status.cluster_name:
            self.left.note("workloads that run on another cluster (MultiKueue)", name)
        if workload.status.admission_checks:
            self.left.note("workloads with admission checks: a forecast takes them for passed", name)
        if workload.status.unhealthy_nodes:
            self.left.note("workloads with unhealthy nodes that Kueue replaces", name)

    # -- what it has --------------------------------------------------------------------------------------------------

    def _holds(self, workload: Workload, spec: WorkloadSpec, pods: Iterable[PodRecord]) -> list[seen.Holding]:
        """Tasks on nodes, in the order of the groups."""
        numbers = {group.name: at for at, group in enumerate(spec.groups)}
        counts: dict[tuple[int, str], int] = {}
        for pod in pods:
            if pod.node:
                at = numbers.get(pod.group, -1)
                at = at if at >= 0 else self._like(spec.groups, pod.request)
                counts[at, pod.node] = counts.get((at, pod.node), 0) + 1
        return [
            seen.Holding(node=node, resources=spec.groups[at].request, group=spec.groups[at].name, count=count)
            for (at, node), count in sorted(counts.items())
        ]

    @staticmethod
    def _like(groups: Sequence[TaskGroup], request: Resources) -> int:
        """The group that asks for as much; the first where none does."""
        return next((at for at, group in enumerate(groups) if group.request == request), 0)

    def _reserves(
        self, workload: Workload, queue: ClusterQueue, holds: Sequence[seen.Holding]
    ) -> tuple[seen.QuotaShare, ...]:
        """Quota that Kueue charges for pods that are on no node."""
        admission = workload.status.admission
        if admission is None or condition_is(workload, "QuotaReserved") is not True:
            return ()
        by_pool: dict[str, list[int]] = {}
        for each in admission.pod_set_assignments:
            group = ident(each.name) or "main"
            there = sum(held.count for held in holds if held.group == group)
            missing, count = max(each.count - there, 0), max(each.count, 1)
            for name, text in each.resource_usage.items() if missing else ():
                read = self._facts.reader.quantity(name, text)
                if read is not None:
                    vector = by_pool.setdefault(self._pool_of(queue, each.flavors.get(name, "")), [0, 0, 0, 0])
                    vector[read[0]] += read[1] * missing // count
        return tuple(
            seen.QuotaShare(pool=pool, resources=Resources(**dict(zip(RESOURCES, vector, strict=True))))
            for pool, vector in sorted(by_pool.items())
            if any(vector)
        )

    def _pool_of(self, queue: ClusterQueue, flavor: str) -> str:
        pools = self._facts.pools_of.get(flavor, ())
        return pools[0] if pools and self._facts.queues.is_by_pool(queue.metadata.name) else ""


def condition(workload: Workload, kind: str) -> Condition | None:
    return next((each for each in workload.status.conditions if each.type == kind), None)


def condition_is(workload: Workload, kind: str) -> bool | None:
    """None where it is not known, or there is no such condition."""
    found = condition(workload, kind)
    return None if found is None or found.status not in ("True", "False") else found.status == "True"


def since(workload: Workload, kind: str) -> datetime | None:
    """The time since which the condition is true; None where it is not."""
    found = condition(workload, kind)
    return found.last_transition_time if found is not None and found.status == "True" else None


def phase_of(workload: Workload, pods: Iterable[PodRecord], now_s: float) -> seen.Phase:
    finished = condition(workload, "Finished")
    if finished is not None and finished.status == "True":
        return _ENDED.get(finished.reason, "cancelled")
    if condition_is(workload, "QuotaReserved"):
        bound = [pod for pod in pods if pod.node]
        if not bound:
            return "queued"
        return "running" if all(pod.running for pod in bound) else "starting"
    if not workload.spec.active:
        return "held"
    return "waiting" if _requeue_ms(workload) > now_s * 1000 else "queued"


def word_of(workload: Workload, phase: seen.Phase) -> str:
    """Kueue's own reason and message for the state that it is in."""
    found = waiting_condition(workload) if phase in ("queued", "waiting", "held") else None
    if phase in ENDS:
        found = condition(workload, "Finished")
    return f"{found.reason} {found.message}".strip()[:MAX_WORD] if found is not None else ""


def waiting_condition(workload: Workload) -> Condition | None:
    """The condition that says best why it waits: its quota, else its admission."""
    reserved = condition(workload, "QuotaReserved")
    if reserved is not None and reserved.status == "True":
        return condition(workload, "Admitted") or reserved
    return reserved or condition(workload, "Evicted")


def owner_name(workload: Workload) -> str:
    owners = workload.metadata.owner_references
    return owners[0].name if len(owners) == 1 else workload.metadata.name


def _cause(workload: Workload) -> str:
    evicted = condition(workload, "Evicted")
    if evicted is None or evicted.status != "True":
        return ""
    preempted = condition(workload, "Preempted")
    if evicted.reason == "Preempted" and preempted is not None:
        return _EVICTED.get(preempted.reason, "reclaimed")
    return _EVICTED.get(evicted.reason, "")


def _requeue_ms(workload: Workload) -> int:
    state = workload.status.requeue_state
    return _ms(state.requeue_at) if state is not None else 0


def _ms(at: datetime | None) -> int:
    return 0 if at is None else int(at.timestamp() * 1000)


def _toleration(toleration: KubernetesToleration) -> Toleration:
    return Toleration(key=toleration.key, value="" if toleration.operator == "Exists" else toleration.value)
