"""Objects of a cluster as they were last seen, and whom each pod belongs to.

Kinds come in no order between them: a pod may be known before its Workload, and a Job after both. So every change marks
what depends on it, and `take_changes` gives what was marked since the last time. A pod that belongs to no Workload that
holds quota is load of its node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from engine.external.kubernetes.names import node_id
from engine.external.kubernetes.workload_mapping import PodRecord, condition_is
from engine.external.kubernetes_api.core_objects import KubernetesJob, KubernetesNode, KubernetesPod
from engine.external.kubernetes_api.kueue_objects import Workload
from engine.external.kubernetes_api.reflector import ChangeBatch, ObjectChange
from engine.external.kubernetes_api.resources import ResourceReader
from engine.external.mirror_report import UnsupportedCounts
from engine.model.external_cells import NodeLoadSeen
from engine.model.specs import RESOURCES, Resources

POD_SET = "kueue.x-k8s.io/podset"
POD_GROUP = "kueue.x-k8s.io/pod-group-name"
MANAGED = "kueue.x-k8s.io/managed"


class TableChanges(NamedTuple):
    """What was marked: UIDs of nodes and Workloads, ids of nodes whose load is another, kinds of which anything is."""

    nodes: set[str]
    nodes_gone: set[str]
    """Ids."""
    workloads: set[str]
    loads: set[str]
    kinds: set[str]


class ClusterTables:
    """`apply` takes batches in the order in which they come."""

    def __init__(self, reader: ResourceReader) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        """Kind -> UID -> object, of all but pods."""
        self.pods: dict[str, PodRecord] = {}
        self.listed: set[str] = set()
        """Kinds that were listed whole."""
        self._reader = reader
        self._pods_of: dict[str, dict[str, PodRecord]] = {}
        """Key -> UID -> pod."""
        self._load: dict[str, list[int]] = {}
        """Node -> milli-CPU, MiB, milli-GPU, MiB of disk, pods."""
        self._is_load: dict[str, bool] = {}
        self._workload_at: dict[str, str] = {}
        """Key -> UID of the Workload."""
        self._keys_of: dict[str, tuple[str, ...]] = {}
        """UID of a Workload -> its keys."""
        self._holding: set[str] = set()
        """UIDs of Workloads that hold quota."""
        self._owner_of_job: dict[str, str] = {}
        self._jobs_of: dict[str, set[str]] = {}
        self._changes = TableChanges(set(), set(), set(), set(), set())

    def apply(self, batch: ChangeBatch) -> None:
        kind = batch.kind.resource
        if batch.changes:
            self._changes.kinds.add(kind)
        take = {"pods": self._pod, "nodes": self._node, "workloads": self._workload, "jobs": self._job}.get(kind)
        table = self.objects.setdefault(kind, {})
        for change in batch.changes:
            if take is not None:
                take(change, table)
            elif change.object is None:
                table.pop(change.uid, None)
            else:
                table[change.uid] = change.object
        if batch.version:
            self.listed.add(kind)

    def take_changes(self) -> TableChanges:
        found, self._changes = self._changes, TableChanges(set(), set(), set(), set(), set())
        return found

    def of_kind(self, kind: str) -> dict[str, Any]:
        return self.objects.get(kind, {})

    def pods_of(self, workload: str) -> list[PodRecord]:
        """The pods of the Workload of that UID that have not ended. Any thread may ask: it passes over copies."""
        keys = self._keys_of.get(workload, ())
        jobs = [job for key in keys for job in tuple(self._jobs_of.get(key, ()))]
        return [pod for key in dict.fromkeys((*keys, *jobs)) for pod in list(self._pods_of.get(key, {}).values())]

    def load_of(self, node: str) -> NodeLoadSeen:
        found = self._load.get(node, [0, 0, 0, 0, 0])
        return NodeLoadSeen(
            node=node, resources=Resources(**dict(zip(RESOURCES, found[:4], strict=True))), pods=found[4]
        )

    def loose_pods(self) -> int:
        """Number of pods on nodes that count as load."""
        return sum(load[4] for load in self._load.values())

    def note_left_out(self, left: UnsupportedCounts) -> None:
        """Name what there is and the cell has nothing of."""
        quotas, budgets = self.of_kind("resourcequotas"), self.of_kind("poddisruptionbudgets")
        for each in quotas.values():
            left.note(
                "resource quotas of namespaces are not modelled", f"{each.metadata.namespace}/{each.metadata.name}"
            )
        for each in budgets.values():
            left.note("disruption budgets are not modelled", f"{each.metadata.namespace}/{each.metadata.name}")
        for pod in self.pods.values():
            if not pod.node and self._workload_of(pod.key) is None:
                left.note("pods of no queue that wait for a node", f"{pod.namespace}/{pod.name}")

    # -- kinds --------------------------------------------------------------------------------------------------------

    def _node(self, change: ObjectChange, table: dict[str, Any]) -> None:
        if change.object is None:
            table.pop(change.uid, None)
            self._changes.nodes_gone.add(node_id(change.name))
            return
        assert isinstance(change.object, KubernetesNode)
        table[change.uid] = change.object
        self._changes.nodes.add(change.uid)
        self._changes.loads.add(node_id(change.name))

    def _job(self, change: ObjectChange, table: dict[str, Any]) -> None:
        """Only who it belongs to is kept."""
        before = self._owner_of_job.get(change.uid, "")
        owner = ""
        if isinstance(change.object, KubernetesJob):
            owner = next((each.uid for each in change.object.metadata.owner_references if each.controller), "")
        if owner == before:
            return
        if before:
            self._jobs_of[before].discard(change.uid)
            del self._owner_of_job[change.uid]
        if owner:
            self._owner_of_job[change.uid] = owner
            self._jobs_of.setdefault(owner, set()).add(change.uid)
        self._attribute(change.uid)

    def _workload(self, change: ObjectChange, table: dict[str, Any]) -> None:
        uid = change.uid
        self._changes.workloads.add(uid)
        before = self._keys_of.pop(uid, ())
        for key in before:
            if self._workload_at.get(key) == uid:
                del self._workload_at[key]
        self._holding.discard(uid)
        after: tuple[str, ...] = ()
        if change.object is None:
            table.pop(uid, None)
        else:
            assert isinstance(change.object, Workload)
            workload = table[uid] = change.object
            owners = (each.uid for each in workload.metadata.owner_references)
            after = self._keys_of[uid] = (f"{change.namespace}/{change.name}", *owners)
            self._workload_at.update(dict.fromkeys(after, uid))
            if condition_is(workload, "QuotaReserved") and not condition_is(workload, "Finished"):
                self._holding.add(uid)
        for key in dict.fromkeys((*before, *after)):
            self._attribute(key)
            for job in self._jobs_of.get(key, ()):
                self._attribute(job)

    def _pod(self, change: ObjectChange, table: dict[str, Any]) -> None:
        before = self.pods.pop(change.uid, None)
        if before is not None:
            del self._pods_of[before.key][change.uid]
            self._moved(before, -1)
            if not self._pods_of[before.key]:
                del self._pods_of[before.key]
                self._is_load.pop(before.key, None)
        if isinstance(change.object, KubernetesPod):
            pod = self._record(change.object)
            self.pods[change.uid] = pod
            self._pods_of.setdefault(pod.key, {})[change.uid] = pod
            if pod.key not in self._is_load:
                self._is_load[pod.key] = self._counts_as_load(pod.key)
            self._moved(pod, 1)

    def _record(self, pod: KubernetesPod) -> PodRecord:
        about = pod.metadata
        scheduled = next((each for each in pod.status.conditions if each.type == "PodScheduled"), None)
        waits = scheduled is not None and scheduled.status == "False"
        at = scheduled.last_transition_time if scheduled is not None else None
        return PodRecord(
            namespace=about.namespace,
            name=about.name,
            key=_key(pod),
            node=node_id(pod.spec.node_name) if pod.spec.node_name else "",
            request=self._reader.request(pod.spec),
            group=about.labels.get(POD_SET, ""),
            running=pod.status.phase == "Running",
            gated=bool(pod.spec.scheduling_gates),
            said=f"{scheduled.reason} {scheduled.message}" if waits and scheduled is not None else "",
            at_s=at.timestamp() if waits and at is not None else 0.0,
        )

    # -- whom a pod belongs to ----------------------------------------------------------------------------------------

    def _workload_of(self, key: str) -> str | None:
        return self._workload_at.get(key) or self._workload_at.get(self._owner_of_job.get(key, ""))

    def _counts_as_load(self, key: str) -> bool:
        workload = self._workload_of(key)
        return workload is None or workload not in self._holding

    def _attribute(self, key: str) -> None:
        """The pods of the key may be load now that were not, or the reverse."""
        if key not in self._pods_of:
            return
        workload = self._workload_of(key)
        if workload is not None:
            self._changes.workloads.add(workload)
        is_load = self._counts_as_load(key)
        if is_load != self._is_load[key]:
            pods = self._pods_of[key].values()
            for pod in pods:
                self._moved(pod, -1)
            self._is_load[key] = is_load
            for pod in pods:
                self._moved(pod, 1)

    def _moved(self, pod: PodRecord, sign: int) -> None:
        """The pod comes to its node, or leaves it."""
        workload = self._workload_of(pod.key)
        if workload is not None:
            self._changes.workloads.add(workload)
        if pod.node and self._is_load[pod.key]:
            load = self._load.get(pod.node) or self._load.setdefault(pod.node, [0, 0, 0, 0, 0])
            request = pod.request
            load[0] += sign * request.cpu_milli
            load[1] += sign * request.memory_mib
            load[2] += sign * request.gpu_milli
            load[3] += sign * request.disk_mib
            load[4] += sign
            self._changes.loads.add(pod.node)


def _key(pod: KubernetesPod) -> str:
    """The Workload of a pod by name, where it says it; else the UID of what it belongs to, which may be itself."""
    about = pod.metadata
    named = about.annotations.workload or about.labels.get(POD_GROUP, "")
    if named:
        return f"{about.namespace}/{named}"
    if MANAGED in about.labels:
        return about.uid
    return next((each.uid for each in about.owner_references if each.controller), about.uid)
