"""A life as objects of Kubernetes and Kueue."""

from __future__ import annotations

from typing import Any

from tests.differential.kueue.lives import FLAVORS, GPU, NODE_CPU, NODES, FlavorLimits, Life, LifeJob, LifeQueue, Quota

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
BLOCK, RACK, HOST = "life.test/block", "life.test/rack", "kubernetes.io/hostname"
LEVEL_LABELS = {"block": BLOCK, "rack": RACK, "node": HOST}
PRIORITIES = (0, 10, 20)

Object = dict[str, Any]
Placed = tuple[str, Object]
"""(path to create it at, the object)"""


def nodes(places: int) -> list[Object]:
    """For kube-up: an ample node of each flavor for lives without a topology, and for each of the `places` of a life
    with one the nodes of its flavors."""
    ample = [_node(f"ample-{flavor}", _flavor_labels("ample", flavor), 100_000) for flavor in FLAVORS]
    return ample + [
        _node(
            f"t{place}-{flavor}-{block}{rack}{node}",
            {**_flavor_labels(str(place), flavor), BLOCK: f"{flavor}{block}", RACK: f"{flavor}{block}{rack}"},
            NODE_CPU,
        )
        for place in range(places)
        for flavor in FLAVORS
        for block, rack, node in NODES
    ]


def _node(name: str, labels: dict[str, str], cpu: int) -> Object:
    capacity = {"cpu": str(cpu), "memory": "1Ti", "pods": "100000", GPU: str(cpu)}
    return {"name": name, "labels": labels, "capacity": capacity}


def _flavor_labels(place: str, flavor: str) -> dict[str, str]:
    return {"life.test/place": place, "life.test/flavor": flavor}


def shared_by_all() -> list[Placed]:
    """What lives have in common."""
    levels = [{"nodeLabel": label} for label in LEVEL_LABELS.values()]
    return [
        _kueue("Topology", "topologies", "life", spec={"levels": levels}),
        *(_kueue("WorkloadPriorityClass", "workloadpriorityclasses", f"p{value}", value=value) for value in PRIORITIES),
    ]


def _kueue(kind: str, plural: str, name: str, space: str = "", **rest: Any) -> Placed:
    where = f"{KUEUE}/namespaces/{space}/{plural}" if space else f"{KUEUE}/{plural}"
    return where, {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **rest}


class LifeObjects:
    """The objects of a life in a namespace of its own. Names of what has no namespace begin with it. `place`: the nodes
    that its flavors are; "ample" without a topology. Without `pods` its jobs are managed by nobody: Kueue decides about
    them all the same."""

    def __init__(self, life: Life, space: str, place: str, *, pods: bool) -> None:
        self.life = life
        self.space = space
        self.place = place
        self.pods = pods

    def definitions(self) -> list[Placed]:
        """In the order in which they are created."""
        return [
            ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.space}}),
            *map(self._flavor, self.life.flavors),
            *(self._cohort(name, parent) for name, parent in self.life.cohorts.items()),
            *map(self.cluster_queue, self.life.queues),
            *map(self._local_queue, self.life.queues),
        ]

    def name(self, what: str) -> str:
        return f"{self.space}-{what}"

    def _flavor(self, flavor: str) -> Placed:
        spec: Object = {"nodeLabels": _flavor_labels(self.place, flavor)}
        if self.life.topology:
            spec["topologyName"] = "life"
        return _kueue("ResourceFlavor", "resourceflavors", self.name(flavor), spec=spec)

    def _cohort(self, cohort: str, parent: str) -> Placed:
        spec = {"parentName": self.name(parent)} if parent else {}
        return _kueue("Cohort", "cohorts", self.name(cohort), spec=spec)

    def cluster_queue(self, queue: LifeQueue) -> Placed:
        borrow: Object = {"policy": queue.borrow_within}
        if queue.max_priority is not None:
            borrow["maxPriorityThreshold"] = queue.max_priority
        spec = {
            "cohortName": self.name(queue.cohort),
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": ["cpu", *([GPU] if any(each.gpu for each in queue.flavors) else [])],
                    "flavors": [self._limits(each) for each in queue.flavors],
                }
            ],
            "preemption": {
                "withinClusterQueue": queue.within,
                "reclaimWithinCohort": queue.reclaim,
                "borrowWithinCohort": borrow,
            },
            "flavorFungibility": {
                "whenCanBorrow": queue.when_can_borrow,
                "whenCanPreempt": queue.when_can_preempt,
            },
        }
        return _kueue("ClusterQueue", "clusterqueues", self.name(queue.name), spec=spec)

    def _limits(self, limits: FlavorLimits) -> Object:
        resources = [_quota("cpu", (limits.nominal, limits.borrowing, limits.lending))]
        if limits.gpu is not None:
            resources.append(_quota(GPU, limits.gpu))
        return {"name": self.name(limits.flavor), "resources": resources}

    def _local_queue(self, queue: LifeQueue) -> Placed:
        spec = {"clusterQueue": self.name(queue.name)}
        return _kueue("LocalQueue", "localqueues", queue.name, self.space, spec=spec)

    def job(self, job: LifeJob) -> Placed:
        labels = {"kueue.x-k8s.io/queue-name": job.queue, "kueue.x-k8s.io/priority-class": f"p{job.priority}"}
        notes = {"kueue.x-k8s.io/job-min-parallelism": str(job.least)} if job.least else {}
        asked = (
            {f"kueue.x-k8s.io/podset-{job.topology[0]}-topology": LEVEL_LABELS[job.topology[1]]} if job.topology else {}
        )
        gpus = {GPU: str(job.gpu)} if job.gpu else {}
        resources = {"requests": {"cpu": str(job.cpu), **gpus}, "limits": gpus}
        container = {"name": "main", "image": "none", "resources": resources}
        return f"/apis/batch/v1/namespaces/{self.space}/jobs", {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": job.name, "labels": labels, "annotations": notes},
            "spec": {
                "parallelism": job.count,
                "completions": job.count,
                "suspend": True,
                **({} if self.pods else {"managedBy": "life.test/nobody"}),
                "template": {
                    "metadata": {"annotations": asked},
                    "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0},
                },
            },
        }

    def removals(self) -> list[str]:
        """Paths of all that was defined but the namespace: to end one costs more than a life."""
        return [
            f"/apis/batch/v1/namespaces/{self.space}/jobs",
            *(f"{KUEUE}/namespaces/{self.space}/localqueues/{queue.name}" for queue in self.life.queues),
            *(f"{KUEUE}/clusterqueues/{self.name(queue.name)}" for queue in self.life.queues),
            *(f"{KUEUE}/cohorts/{self.name(cohort)}" for cohort in self.life.cohorts),
            *(f"{KUEUE}/resourceflavors/{self.name(flavor)}" for flavor in self.life.flavors),
        ]


def _quota(resource: str, quota: Quota) -> Object:
    nominal, borrowing, lending = quota
    found: Object = {"name": resource, "nominalQuota": str(nominal)}
    if borrowing is not None:
        found["borrowingLimit"] = str(borrowing)
    if lending is not None:
        found["lendingLimit"] = str(lending)
    return found
