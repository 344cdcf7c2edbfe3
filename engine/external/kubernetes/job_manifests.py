"""A workload of Muster as a `batch/v1` Job in a LocalQueue of Kueue.

The name is made of the workload's id and the token of its intent: it is the same each time the intent is carried, so
that the API server itself refuses a second copy. Kueue starts the job: it is created suspended.
"""

from __future__ import annotations

import re
from typing import Any

from engine.external.kubernetes.names import queue_name
from engine.model.errors import SpecError
from engine.model.specs import TaskGroup, WorkloadSpec

MARK = "muster.dev/intent"
"""Annotation: the token of the intent that wrote an object last."""
APPLIED_MARK = "muster.dev/applied-intent"
"""The same of what was applied: an annotation that patches have written could not be applied without a conflict."""
WORKLOAD = "muster.dev/workload"
"""Annotation of a job: the id under which it was asked for."""
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
GPU = "nvidia.com/gpu"
IMAGE = "image"
"""Tag of a workload that names its container image."""
NO_CLASS = "normal"
"""The priority class of who gave none."""
MAX_NAME = 50
"""Letters of the id that the job's name has: pods are named after it, in 63."""
HEAD = 10
"""Digits of the token that the name ends in."""


def job_name(workload: str, token: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", workload.lower())[:MAX_NAME].strip("-") or "job"
    return f"{plain}-{token.rpartition('-')[2][:HEAD]}"


def check_job(spec: WorkloadSpec, where: str) -> None:
    """Raises SpecError for what a Job in a queue of Kueue cannot be."""
    if queue_name(spec.queue).kind != "LocalQueue":
        raise SpecError(f"{where}.queue", f"'{spec.queue[:80]}' is no LocalQueue", "Give NAMESPACE/NAME of one")
    if spec.run is None:
        raise SpecError(f"{where}.run", "is missing", "Give the command that its tasks run")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,500}", spec.tags.get(IMAGE, "")):
        raise SpecError(f"{where}.tags.{IMAGE}", "names no container image", "Give one, such as python:3.13")
    if len(spec.groups) > 1:
        raise SpecError(f"{where}.groups", "are several", "A Job has pods of one kind: give one group")
    group = spec.groups[0]
    for field, given in (
        ("elastic", spec.elastic), ("service", spec.service is not None), ("topology", spec.topology is not None),
        ("near", bool(spec.near)), ("apart", bool(spec.apart)), ("after", bool(spec.after)),
        ("array", spec.array is not None), ("held", spec.held), ("reservation", bool(spec.reservation)),
        ("not_before_ms", spec.not_before_ms > 0), ("deadline_ms", spec.deadline_ms > 0),
        ("groups[0].mig", bool(group.mig)), ("groups[0].gpu_models", bool(group.gpu_models)),
        ("groups[0].pools", bool(group.pools)), ("groups[0].gpu_memory_mib", bool(group.gpu_memory_mib)),
        ("groups[0].avoid_labels", bool(group.avoid_labels)), ("groups[0].spread", group.spread is not None),
        ("groups[0].node_labels", any(len(values) != 1 or values == ("*",) for values in group.node_labels.values())),
        ("groups[0].request.gpu_milli", group.request.gpu_milli % 1000 > 0),
    ):  # fmt: skip
        if given:
            raise SpecError(f"{where}.{field}", "cannot be asked of a Job in Kueue", "Leave it out, or use kubectl")


def job_manifest(spec: WorkloadSpec, token: str) -> dict[str, Any]:
    """The Job. Raises SpecError for what it cannot be."""
    check_job(spec, "workload")
    queue, group = queue_name(spec.queue), spec.groups[0]
    labels = {QUEUE: queue.name} | ({PRIORITY: spec.priority_class} if spec.priority_class != NO_CLASS else {})
    marks = {MARK: token, WORKLOAD: spec.id}
    if 0 < group.min_count < group.count:
        marks[MIN_PARALLELISM] = str(group.min_count)
    job: dict[str, Any] = {
        "parallelism": group.count,
        "completions": group.count,
        "completionMode": "Indexed",
        "backoffLimit": spec.retries,
        "suspend": True,
        "template": {"spec": _pod(spec, group)},
    }
    if spec.max_runtime_ms:
        job["activeDeadlineSeconds"] = -(-spec.max_runtime_ms // 1000)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(spec.id, token), "namespace": queue.namespace, "labels": labels, "annotations": marks,
        },
        "spec": job,
    }  # fmt: skip


def _pod(spec: WorkloadSpec, group: TaskGroup) -> dict[str, Any]:
    run = spec.run
    assert run is not None
    asked = _resources(group)
    container = {
        "name": "main",
        "image": spec.tags[IMAGE],
        "command": list(run.argv),
        "env": [{"name": name, "value": value} for name, value in run.env.items()],
        "resources": {"requests": asked, "limits": {name: value for name, value in asked.items() if name == GPU}},
    }
    if run.cwd:
        container["workingDir"] = run.cwd
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [container],
        "terminationGracePeriodSeconds": -(-run.grace_ms // 1000),
    }
    if group.node_labels:
        pod["nodeSelector"] = {label: values[0] for label, values in group.node_labels.items()}
    if group.tolerations:
        pod["tolerations"] = [
            {"key": each.key, **({"value": each.value} if each.value else {"operator": "Exists"})}
            for each in group.tolerations
        ]
    return pod


def _resources(group: TaskGroup) -> dict[str, str]:
    asked = group.request
    found = {
        "cpu": f"{asked.cpu_milli}m" if asked.cpu_milli else "",
        "memory": f"{asked.memory_mib}Mi" if asked.memory_mib else "",
        GPU: str(asked.gpu_milli // 1000) if asked.gpu_milli else "",
        "ephemeral-storage": f"{asked.disk_mib}Mi" if asked.disk_mib else "",
    }
    return {name: value for name, value in found.items() if value}
