"""Ids of a cell for objects of Kubernetes, and the objects that ids stand for.

    node            NAME                       gpu-07
    ClusterQueue    NAME                       research
    LocalQueue      NAMESPACE/NAME             team-a/train; in a namespace `cohort` or `queue`: queue/cohort/train
    Cohort          cohort/NAME                cohort/all
    Workload        NAMESPACE/NAME_UID         team-a/job-train-5f0c1_9c1d4e7b: the first 8 digits of its UID

Names of Kubernetes have no `_`, so that the UID can be told from the name: two workloads may have the same name one
after the other. A name that is too long for an id is cut, and ends in `__` and a checksum of the whole: such an id
stands for no name, and the functions that read ids raise RefusedError for it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple
from zlib import crc32

from engine.model.errors import RefusedError, SpecError

MAX_ID = 128
UID_DIGITS = 8
_COHORT, _QUEUE = "cohort", "queue"
_CUT = "__"


class QueueName(NamedTuple):
    """The object that a queue of the cell stands for. `namespace` is empty but for a LocalQueue."""

    kind: Literal["Cohort", "ClusterQueue", "LocalQueue"]
    namespace: str
    name: str


class WorkloadName(NamedTuple):
    """`uid` is only the beginning of the object's UID."""

    namespace: str
    name: str
    uid: str


def node_id(name: str) -> str:
    return _fitting(name, MAX_ID)


def node_name(node: str) -> str:
    """The name of the node in Kubernetes."""
    return _whole(node, node)


def cohort_id(name: str) -> str:
    return f"{_COHORT}/{_fitting(name, MAX_ID - len(_COHORT) - 1)}"


def cluster_queue_id(name: str) -> str:
    return _fitting(name, MAX_ID)


def local_queue_id(namespace: str, name: str) -> str:
    within = f"{_QUEUE}/{namespace}" if namespace in (_COHORT, _QUEUE) else namespace
    return f"{within}/{_fitting(name, MAX_ID - len(within) - 1)}"


def queue_name(queue: str) -> QueueName:
    """The Cohort, ClusterQueue or LocalQueue that a queue of the cell stands for."""
    parts = _whole(queue, queue).split("/")
    match parts:
        case [name]:
            return QueueName("ClusterQueue", "", name)
        case ["cohort", name]:
            return QueueName("Cohort", "", name)
        case ["queue", namespace, name] | [namespace, name]:
            return QueueName("LocalQueue", namespace, name)
    raise SpecError("queue", f"'{queue}' is not a queue of Kueue", "Give NAME, NAMESPACE/NAME or cohort/NAME")


def workload_id(namespace: str, name: str, uid: str) -> str:
    return f"{namespace}/{_fitting(name, MAX_ID - len(namespace) - UID_DIGITS - 2)}_{uid[:UID_DIGITS]}"


def workload_name(workload: str) -> WorkloadName:
    """The namespace, name and beginning of the UID of the Workload that a workload of the cell stands for."""
    object_id, _, uid = workload.rpartition("_")
    namespace, slash, name = object_id.partition("/")
    if not (namespace and slash and name and uid):
        raise SpecError("workload", f"'{workload}' is not a workload of Kueue", "Give NAMESPACE/NAME_UID")
    return WorkloadName(namespace, _whole(name, workload), uid)


def _fitting(name: str, most: int) -> str:
    if len(name) <= most:
        return name
    check = f"{_CUT}{crc32(name.encode()):08x}"
    return name[: most - len(check)] + check


def _whole(name: str, given: str) -> str:
    if _CUT in name:
        raise RefusedError(
            f"'{given}' stands for a name in Kubernetes that is longer than an id", "Use kubectl for this object"
        )
    return name
