"""Changes to objects of Kubernetes and Kueue, in steps: whether a step is done already, and the requests that make it
so.

Each request is made to the very object that was read: with its UID, and with its version where a change in between
would matter. Each writes the token of its intent into the object, as the annotation `muster.dev/intent`: it says whose
change is there, also when no answer came, and a ValidatingAdmissionPolicy of the cluster can demand it. Asked for
again, the token has a number behind it: what was there before would prove nothing.

Quotas are applied (server-side apply, manager `muster`) and never forced. Pods are evicted, never deleted, so that
disruption budgets hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from engine.external.change_steps import ChangeStep, StepReading
from engine.external.kubernetes.job_manifests import APPLIED_MARK, MARK, PRIORITY, job_manifest, job_name
from engine.external.kubernetes.names import QueueName, node_name, queue_name, workload_name
from engine.external.kubernetes.queue_quotas import changed_groups
from engine.external.kubernetes_api.errors import KubernetesGone, KubernetesUnreadable
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.model import commands as cmd
from engine.model.errors import RefusedError
from engine.model.specs import QueueSpec, Taint, WorkloadSpec

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
JOBS = "/apis/batch/v1"
OWNERS = {
    ("batch/v1", "Job"): f"{JOBS}/namespaces/%s/jobs/%s",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "/apis/jobset.x-k8s.io/v1alpha2/namespaces/%s/jobsets/%s",
}
"""What a workload may be of, and be cancelled as -> its path."""
QUEUES = {
    "ClusterQueue": f"{KUEUE}/clusterqueues/%s", "Cohort": f"{KUEUE}/cohorts/%s",
    "LocalQueue": f"{KUEUE}/namespaces/%s/localqueues/%s",
}  # fmt: skip
MANAGER = "muster"
MERGE, APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
MIRROR_POD = "kubernetes.io/config.mirror"
GANG_KEYS = ("kueue.x-k8s.io/pod-group-name", "jobset.sigs.k8s.io/jobset-uid")
"""Labels of the pods of one gang, besides their owner."""
Do = Literal[
    "hold", "release", "cancel", "set priority", "hold queue", "drain queue", "open queue", "set quota", "cordon",
    "uncordon", "taint", "untaint", "empty", "submit",
]  # fmt: skip
STOP_POLICIES: dict[Do, str] = {"hold queue": "Hold", "drain queue": "HoldAndDrain", "open queue": "None"}
READ_BACK: dict[Do, str] = {
    "hold": "the Workload is not active", "release": "the Workload is active", "cancel": "its owner is gone",
    "set priority": "the Workload has that priority class", "hold queue": "its stopPolicy is Hold",
    "drain queue": "its stopPolicy is HoldAndDrain", "open queue": "its stopPolicy is None",
    "set quota": "its resourceGroups are those", "cordon": "the node is unschedulable",
    "uncordon": "the node is schedulable", "taint": "the node has the taint",
    "untaint": "the node does not have the taint", "empty": "no pod is left that can be evicted",
    "submit": "the Job is there",
}  # fmt: skip
"""What shows that a step is done, in words."""

Raw = Mapping[str, Any]


class KubernetesChange(ChangeStep[Do], frozen=True):
    """Of a workload, node or queue, by its id. `value`: a priority class; of a quota what becomes of work above it."""

    queue: QueueSpec | None = None
    work: WorkloadSpec | None = None
    taint: Taint | None = None


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request that changes something."""

    what: str
    """Begins errors: "holding team-a/train"."""
    method: Literal["PATCH", "POST", "DELETE"]
    path: str
    body: Raw
    content_type: str = "application/json"
    query: Mapping[str, str] = {}
    gang: str = ""
    """Of an eviction: the gang that the pod is of."""


class KubernetesReading(StepReading, frozen=True, kw_only=True):
    """`ours`: the intent wrote it. `requests` make it so, in their order; what was sent before the last of them is read
    again."""

    ours: bool = False
    requests: tuple[ChangeRequest, ...] = ()


def steps_of(command: cmd.AnyCommand) -> list[KubernetesChange]:
    return list(_steps(command))


def read_back(command: cmd.AnyCommand) -> str:
    """Describe the reading of the API server that shows the command is done."""
    return "; ".join(dict.fromkeys(READ_BACK[step.do] for step in _steps(command)))


def _steps(command: cmd.AnyCommand) -> Iterator[KubernetesChange]:
    match command:
        case cmd.Submit(workloads=workloads):
            yield from (KubernetesChange("submit", spec.id, work=spec) for spec in workloads)
        case cmd.Hold(ids=ids):
            yield from (KubernetesChange("hold", id_) for id_ in ids)
        case cmd.Release(ids=ids):
            yield from (KubernetesChange("release", id_) for id_ in ids)
        case cmd.Cancel(ids=ids):
            yield from (KubernetesChange("cancel", id_) for id_ in ids)
        case cmd.SetPriority(ids=ids, priority_class=to):
            yield from (KubernetesChange("set priority", id_, to) for id_ in ids)
        case cmd.HoldQueues(names=names):
            yield from (KubernetesChange("hold queue", name) for name in names)
        case cmd.DrainQueues(names=names):
            yield from (KubernetesChange("drain queue", name) for name in names)
        case cmd.OpenQueues(names=names):
            yield from (KubernetesChange("open queue", name) for name in names)
        case cmd.ChangeQueue(queue=queue, over=over):
            yield KubernetesChange("set quota", queue.name, over, queue=queue)
        case cmd.Cordon(ids=ids):
            yield from (KubernetesChange("cordon", id_) for id_ in ids)
        case cmd.Uncordon(ids=ids):
            yield from (KubernetesChange("uncordon", id_) for id_ in ids)
        case cmd.TaintNodes(ids=ids, taint=taint, remove=remove):
            yield from (KubernetesChange("untaint" if remove else "taint", id_, taint=taint) for id_ in ids)
        case cmd.Drain(ids=ids):
            yield from (KubernetesChange("cordon", id_) for id_ in ids)
            yield from (KubernetesChange("empty", id_) for id_ in ids)


class ChangeApi:
    """Objects of one API server, read and changed."""

    def __init__(self, line: KubernetesTransport) -> None:
        self._line = line

    def read(self, what: str, path: str, query: Mapping[str, str] | None = None) -> Raw:
        """Raises KubernetesRefused and KubernetesUnavailable."""
        answer = self._line.get(what, path, query)
        try:
            found = msgspec.json.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            found = None
        if not isinstance(found, dict):
            raise KubernetesUnreadable(f"{what}: the answer is not an object")
        return found

    def send(self, request: ChangeRequest, *, dry_run: bool = False) -> None:
        """Raises KubernetesRefused where it was not done, KubernetesUnavailable where nobody knows."""
        query = dict(request.query) | ({"dryRun": "All"} if dry_run else {})
        body = dict(request.body)
        if request.method != "DELETE":
            query["fieldManager"] = MANAGER
        elif dry_run:
            body["dryRun"] = ["All"]  # with a body, a DELETE passes its query over
        self._line.change(request.what, request.method, request.path, body, query, request.content_type)


def look(api: ChangeApi, step: KubernetesChange, token: str) -> KubernetesReading:
    """Read whether a step is done, what shows it, and what would make it so. Raises KubernetesRefused,
    KubernetesUnavailable, and SpecError or RefusedError for what cannot be asked of the cluster."""
    if step.do == "submit":
        return _look_at_submission(api, step, token)
    if step.do in ("hold", "release", "cancel", "set priority"):
        return _look_at_workload(api, step, token)
    if step.do in STOP_POLICIES or step.do == "set quota":
        return _look_at_queue(api, step, token)
    return _look_at_node(api, step, token)


# -- work -------------------------------------------------------------------------------------------------------------


def _look_at_submission(api: ChangeApi, step: KubernetesChange, token: str) -> KubernetesReading:
    assert step.work is not None
    manifest = job_manifest(step.work, token)
    namespace, name = manifest["metadata"]["namespace"], job_name(step.work.id, token)
    path = f"{JOBS}/namespaces/{namespace}/jobs"
    try:
        found = api.read(f"reading job {name}", f"{path}/{name}")
    except KubernetesGone:
        request = ChangeRequest(what=f"creating job {name}", method="POST", path=path, body=manifest)
        return KubernetesReading(standing="to do", text=f"there is no job {namespace}/{name}", requests=(request,))
    if not _is_ours(found, token):
        raise RefusedError(f"job {namespace}/{name} is somebody else's", "Submit it under another id")
    return KubernetesReading(standing="done", text=f"job {namespace}/{name} is there", ours=True)


def _look_at_workload(api: ChangeApi, step: KubernetesChange, token: str) -> KubernetesReading:
    meant = workload_name(step.target)
    path = f"{KUEUE}/namespaces/{meant.namespace}/workloads/{meant.name}"
    try:
        work = api.read(f"reading {step.target}", path)
    except KubernetesGone:
        return KubernetesReading(standing="gone", text=f"{step.target} is no longer there")
    if not str(work["metadata"]["uid"]).startswith(meant.uid):
        return KubernetesReading(standing="gone", text=f"{step.target}: its name is another workload's now")
    if step.do == "cancel":
        return _look_at_cancel(api, step, work, token)
    if step.do == "set priority":
        return _look_at_priority(api, step, work, token)
    active, wanted = work["spec"].get("active", True), step.do == "release"
    text = f"{step.target} is {'active' if active else 'not active'}"
    if active == wanted:
        return KubernetesReading(standing="done", text=text, ours=_is_ours(work, token))
    if step.do == "hold" and _is(work, "QuotaReserved"):
        return KubernetesReading(standing="gone", text=f"{step.target} has been admitted since, and is left to run")
    what = f"{'releasing' if wanted else 'holding'} {step.target}"
    return KubernetesReading(
        standing="to do", text=text, requests=(_patch(what, path, work, token, spec={"active": wanted}),)
    )


def _owner(work: Raw) -> tuple[str, str]:
    """Path and UID of what the workload is of. Raises RefusedError where it cannot be changed."""
    about = work["metadata"]
    for owner in about.get("ownerReferences", ()):
        path = OWNERS.get((owner["apiVersion"], owner["kind"]))
        if owner.get("controller") and path is not None:
            return path % (about["namespace"], owner["name"]), owner["uid"]
    kinds = ", ".join(str(owner["kind"]) for owner in about.get("ownerReferences", ())) or "nothing"
    raise RefusedError(
        f"{about['name'][:80]} is of {kinds[:80]}: only Jobs and JobSets are changed here", "Use kubectl for it"
    )


def _look_at_cancel(api: ChangeApi, step: KubernetesChange, work: Raw, token: str) -> KubernetesReading:
    path, uid = _owner(work)
    try:
        owner = api.read(f"reading the owner of {step.target}", path)
    except KubernetesGone:
        return KubernetesReading(standing="done", text=f"{step.target}: its owner is gone")
    about = owner["metadata"]
    if about["uid"] != uid:
        return KubernetesReading(standing="done", text=f"{step.target}: its owner is gone")
    if "deletionTimestamp" in about:
        waits = ", ".join(about.get("finalizers", ())) or "nothing"
        return KubernetesReading(
            standing="changing", text=f"{step.target} is being deleted, and waits for {waits}", ours=True
        )
    what = f"cancelling {step.target}"
    mark = _patch(what, path, owner, token)
    # Of that object alone, whatever was changed in it since: it goes as a whole.
    options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
    delete = ChangeRequest(what=what, method="DELETE", path=path, body=options)
    requests = (delete,) if _is_ours(owner, token) else (mark, delete)
    return KubernetesReading(standing="to do", text=f"{step.target} is there", requests=requests)


def _look_at_priority(api: ChangeApi, step: KubernetesChange, work: Raw, token: str) -> KubernetesReading:
    now = work["spec"].get("priorityClassRef", {}).get("name", "")
    text = f"{step.target} has priority class {now or 'none'}"
    if now == step.value:
        return KubernetesReading(standing="done", text=text, ours=_is_ours(work, token))
    path, uid = _owner(work)
    owner = api.read(f"reading the owner of {step.target}", path)
    if owner["metadata"]["uid"] != uid:
        return KubernetesReading(standing="gone", text=f"{step.target}: its owner is gone")
    if owner["metadata"].get("labels", {}).get(PRIORITY) == step.value:
        return KubernetesReading(standing="changing", text=f"{text}; Kueue has yet to follow its owner", ours=True)
    what = f"setting the priority of {step.target}"
    request = _patch(what, path, owner, token, labels={PRIORITY: step.value})
    return KubernetesReading(standing="to do", text=text, requests=(request,))


# -- queues -----------------------------------------------------------------------------------------------------------


def _look_at_queue(api: ChangeApi, step: KubernetesChange, token: str) -> KubernetesReading:
    name = queue_name(step.target)
    path = _queue_path(name)
    try:
        queue = api.read(f"reading {step.target}", path)
    except KubernetesGone:
        return KubernetesReading(standing="gone", text=f"there is no {name.kind} {step.target}")
    if step.do == "set quota":
        return _look_at_quota(step, name, path, queue, token)
    if name.kind == "Cohort":
        raise RefusedError(f"{step.target}: a cohort cannot be stopped", "Name the queues in it")
    now, wanted = queue["spec"].get("stopPolicy", "None"), STOP_POLICIES[step.do]
    text = f"{step.target} has stopPolicy {now}"
    if now == wanted:
        return KubernetesReading(standing="done", text=text, ours=_is_ours(queue, token))
    request = _patch(f"setting {step.target} to {wanted}", path, queue, token, spec={"stopPolicy": wanted})
    return KubernetesReading(standing="to do", text=text, requests=(request,))


def _queue_path(name: QueueName) -> str:
    return QUEUES[name.kind] % ((name.namespace, name.name) if name.namespace else (name.name,))


def _look_at_quota(step: KubernetesChange, name: QueueName, path: str, queue: Raw, token: str) -> KubernetesReading:
    assert step.queue is not None
    if name.kind == "LocalQueue":
        raise RefusedError(f"{step.target}: a LocalQueue has no quota", "Change that of its ClusterQueue")
    if step.value == "evict":
        raise RefusedError("Kueue evicts nothing for a lower quota", "Let it run out (keep), or drain the queue")
    groups = queue["spec"].get("resourceGroups", [])
    wanted = changed_groups(groups, step.queue)
    if wanted == groups:
        return KubernetesReading(standing="done", text=f"{step.target} has these quotas", ours=_is_ours(queue, token))
    body = {
        "apiVersion": queue["apiVersion"],
        "kind": name.kind,
        "metadata": _same(queue) | {"annotations": {APPLIED_MARK: _mark(queue, token, APPLIED_MARK)}},
        "spec": _applied(queue) | {"resourceGroups": wanted},
    }
    request = ChangeRequest(
        what=f"setting the quota of {step.target}", method="PATCH", path=path, body=body, content_type=APPLY
    )
    return KubernetesReading(standing="to do", text=f"{step.target} has other quotas", requests=(request,))


def _applied(queue: Raw) -> dict[str, Any]:
    """What Muster has applied before: what is not applied again would be removed."""
    mine = [
        each.get("fieldsV1", {}).get("f:spec", {})
        for each in queue["metadata"].get("managedFields", ())
        if (each.get("manager"), each.get("operation")) == (MANAGER, "Apply")
    ]
    names = {field.removeprefix("f:") for fields in mine for field in fields}
    return {name: value for name, value in queue["spec"].items() if name in names}


# -- nodes ------------------------------------------------------------------------------------------------------------


def _look_at_node(api: ChangeApi, step: KubernetesChange, token: str) -> KubernetesReading:
    name = node_name(step.target)
    path = f"/api/v1/nodes/{name}"
    try:
        node = api.read(f"reading node {name}", path)
    except KubernetesGone:
        return KubernetesReading(standing="gone", text=f"there is no node {name}")
    if step.do == "empty":
        return _look_at_pods(api, name, token)
    if step.taint is not None:
        return _look_at_taint(step, step.taint, path, node, token)
    closed, wanted = bool(node["spec"].get("unschedulable")), step.do == "cordon"
    text = f"node {name} is {'unschedulable' if closed else 'schedulable'}"
    if closed == wanted:
        return KubernetesReading(standing="done", text=text, ours=_is_ours(node, token))
    request = _patch(f"{step.do}ing node {name}", path, node, token, spec={"unschedulable": wanted})
    return KubernetesReading(standing="to do", text=text, requests=(request,))


def _look_at_taint(step: KubernetesChange, taint: Taint, path: str, node: Raw, token: str) -> KubernetesReading:
    """A node has one taint of a key and effect."""
    taints: list[Raw] = node["spec"].get("taints", [])
    others = [each for each in taints if (each["key"], each["effect"]) != (taint.key, taint.effect)]
    mine = [each for each in taints if each not in others]
    has = any(each.get("value", "") == taint.value for each in mine)
    text = f"node {node['metadata']['name']} {'has' if has else 'does not have'} taint {taint.label}"
    if has if step.do == "taint" else not mine:
        return KubernetesReading(standing="done", text=text, ours=_is_ours(node, token))
    new = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    wanted = [*others, *([new] if step.do == "taint" else [])]
    request = _patch(f"{step.do}ing {step.target}", path, node, token, spec={"taints": wanted})
    return KubernetesReading(standing="to do", text=text, requests=(request,))


def _look_at_pods(api: ChangeApi, node: str, token: str) -> KubernetesReading:
    """The pods of one gang are to be evicted at a time, and the next when those have left."""
    fields = f"spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
    pods = api.read(f"listing the pods of node {node}", "/api/v1/pods", {"fieldSelector": fields})["items"]
    movable = [pod for pod in pods if _is_movable(pod)]
    leaving = [pod for pod in movable if "deletionTimestamp" in pod["metadata"]]
    stay = f"; {len(pods) - len(movable)} of DaemonSets and the node itself stay" if len(pods) > len(movable) else ""
    if not movable:
        return KubernetesReading(standing="done", text=f"node {node} is empty{stay}", ours=True)
    if leaving:
        text = f"node {node}: {len(leaving)} of {len(movable)} pods are leaving"
        return KubernetesReading(standing="changing", text=text, ours=True)
    gangs = sorted(movable, key=_gang_of)
    return KubernetesReading(
        standing="to do",
        text=f"node {node} has {len(movable)} pods to evict",
        requests=tuple(_eviction(pod, token) for pod in gangs),
    )


def _is_movable(pod: Raw) -> bool:
    about = pod["metadata"]
    owners = about.get("ownerReferences", ())
    return MIRROR_POD not in about.get("annotations", {}) and all(owner["kind"] != "DaemonSet" for owner in owners)


def _gang_of(pod: Raw) -> str:
    about = pod["metadata"]
    labels = about.get("labels", {})
    named = [f"{about['namespace']}/{labels[key]}" for key in GANG_KEYS if key in labels]
    owners = [str(owner["uid"]) for owner in about.get("ownerReferences", ()) if owner.get("controller")]
    return next(iter([*named, *owners, str(about["uid"])]))


def _eviction(pod: Raw, token: str) -> ChangeRequest:
    about = pod["metadata"]
    name = {"namespace": about["namespace"], "name": about["name"]}
    return ChangeRequest(
        what=f"evicting {about['namespace']}/{about['name']}",
        method="POST",
        path=f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}/eviction",
        body={
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {**name, "annotations": {MARK: token}},
            "deleteOptions": {"preconditions": {"uid": about["uid"]}},
        },
        gang=_gang_of(pod),
    )  # fmt: skip


# -- of all objects ---------------------------------------------------------------------------------------------------


def _patch(
    what: str, path: str, read: Raw, token: str, *, spec: Raw | None = None, labels: Raw | None = None
) -> ChangeRequest:
    """A merge patch of the object as it was read, and of no other."""
    metadata = _same(read) | {"annotations": {MARK: _mark(read, token)}} | ({"labels": labels} if labels else {})
    body = {"apiVersion": read["apiVersion"], "kind": read["kind"], "metadata": metadata}
    body |= {"spec": spec} if spec else {}
    return ChangeRequest(what=what, method="PATCH", path=path, body=body, content_type=MERGE)


def _same(read: Raw) -> dict[str, Any]:
    about = read["metadata"]
    return {name: about[name] for name in ("name", "namespace", "uid", "resourceVersion") if name in about}


def _mark(read: Raw, token: str, key: str = MARK) -> str:
    """The token, with a number if the object has it already."""
    now = _mark_of(read, key)
    if not _carries(now, token):
        return token
    number = now.removeprefix(token).removeprefix(".")
    return f"{token}.{int(number or 1) + 1}"


def _mark_of(read: Raw, key: str) -> str:
    return str(read["metadata"].get("annotations", {}).get(key, ""))


def _is_ours(read: Raw, token: str) -> bool:
    """Anybody who may write annotations can write these: they decide nothing but words."""
    return any(_carries(_mark_of(read, key), token) for key in (MARK, APPLIED_MARK))


def _carries(mark: str, token: str) -> bool:
    return re.fullmatch(rf"{re.escape(token)}(\.\d{{1,6}})?", mark) is not None


def _is(read: Raw, condition: str) -> bool:
    conditions: Sequence[Raw] = read.get("status", {}).get("conditions", ())
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)
