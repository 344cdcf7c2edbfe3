"""A workload as a job that Slurm can be given, and the token by which such a job is found again.

A job's id is no name for good: slurmctld gives ids anew after a crash in which it forgot jobs it had accepted. So each
job carries a token in its comment, whole, and the head of it in its name, which more of Slurm's lists show.

What Slurm cannot be asked for is refused by name, before anything is sent: half of a wish is another wish.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Callable

import msgspec

from engine.external.slurm.records import Job, JobRequest
from engine.model.errors import SpecError
from engine.model.specs import WorkloadSpec

COMMENT = re.compile(r"\bmuster:([0-9a-f]{1,16}-[0-9a-f]{20})\b")
_NAME = re.compile(r"\.m([0-9a-f]{8})$")
_JOB_ID = re.compile(r"\d+(?:[/.]\d+)*$")
MAX_NAME = 64
"""Characters of the name that are kept before the token."""
PATH = "/usr/local/bin:/usr/bin:/bin"
MODELS = re.compile(r"[A-Za-z0-9_.-]{1,64}")
TAGS = ("partition", "account", "qos", "features")
"""Tags of a workload that say where in Slurm it goes, besides its queue."""
_DEPENDENCIES = {"finished": "afterok", "failed": "afternotok", "ended": "afterany", "started": "after"}


class JobDestination(msgspec.Struct, frozen=True, kw_only=True):
    """Where in Slurm the work of a queue goes; empty: as Slurm has it by default."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    workdir: str = ""
    """Folder in which work begins, and leaves its output, that names none."""


def home_of(user: str) -> str:
    """The home of a user as this machine knows it, of this process's own for empty; empty where it knows none."""
    try:
        return pwd.getpwnam(user).pw_dir if user else pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def head_of(token: str) -> str:
    """The part of it that a name has room for."""
    return token.rpartition("-")[2][:8]


def token_in(job: Job) -> str:
    """The token a job says it carries; empty for none. Anybody may write a comment: it counts for a job of ours only
    when its user is."""
    found = COMMENT.search(job.comment)
    return found[1] if found else ""


def head_in(job: Job) -> str:
    """The head of a token in its name, where the comment is not told or was changed."""
    found = _NAME.search(job.name)
    return found[1] if found else ""


def carries(job: Job, token: str) -> bool:
    """Whether it is the job of that token."""
    told = token_in(job)
    return told == token if told else head_in(job) == head_of(token)


def check(spec: WorkloadSpec, where: str) -> None:
    """Raises SpecError for what a job of Slurm cannot be."""
    run = spec.run
    if run is None:
        raise SpecError(f"{where}.run", "is missing", "Say which command its tasks run")
    if _JOB_ID.match(spec.id):
        raise SpecError(f"{where}.id", "is like a job's id, which may become another job's", "Begin it with a letter")
    if len(spec.groups) > 1:
        raise SpecError(f"{where}.groups", "are several", "A job of Slurm has tasks of one kind: give one group")
    group = spec.groups[0]
    for field, given in (
        ("elastic", spec.elastic),
        ("service", spec.service is not None),
        ("topology", spec.topology is not None and spec.topology.required),
        ("near", bool(spec.near)),
        ("apart", bool(spec.apart)),
        ("retries", spec.retries > 0),
        ("groups[0].min_count", group.min_count not in (0, group.count)),
        ("groups[0].mig", bool(group.mig)),
        ("groups[0].node_labels", bool(group.node_labels)),
        ("groups[0].avoid_labels", bool(group.avoid_labels)),
        ("groups[0].gpu_models", len(group.gpu_models) > 1),
        ("groups[0].gpu_memory_mib", bool(group.gpu_memory_mib)),
        ("groups[0].request.gpu_milli", group.request.gpu_milli % 1000 > 0),
    ):
        if given:
            raise SpecError(
                f"{where}.{field}", "cannot be asked of Slurm", "Leave it out, or ask for whole GPUs and nodes"
            )
    for model in group.gpu_models:
        if not MODELS.fullmatch(model):
            raise SpecError(
                f"{where}.groups[0].gpu_models", f"{model[:40]!a} is no GRES type", "Name it as in gres.conf"
            )
    for name in TAGS:
        if not re.fullmatch(r"[A-Za-z0-9_.,&|()-]{0,200}", spec.tags.get(name, "")):
            raise SpecError(f"{where}.tags.{name}", "is nothing Slurm could be told", "Use letters, digits, - and _")


def wish_of(
    spec: WorkloadSpec, token: str, place: JobDestination, job_ids: Callable[[str], int] = lambda workload: 0
) -> JobRequest:
    """The job. `job_ids`: of a workload it waits for. Raises SpecError for what cannot be asked of Slurm."""
    check(spec, "workload")
    run, group, array = spec.run, spec.groups[0], spec.array
    assert run is not None
    gpus, cpus = group.request.gpu_milli // 1000, max(1, -(-group.request.cpu_milli // 1000))
    # One task is on one node. So is each of several with GPUs: Slurm counts those by node.
    by_node = gpus > 0 or group.count == 1
    command = shlex.join(run.argv)
    return JobRequest(
        name=f"{_plain(spec.name or spec.id)[:MAX_NAME]}.m{head_of(token)}",
        script=f"#!/bin/sh\nexec {'srun --kill-on-bad-exit=1 ' if group.count > 1 else ''}{command}\n",
        environment={"PATH": PATH, **run.env, "MUSTER_WORKLOAD": spec.id},
        workdir=run.cwd or place.workdir or "/tmp",
        comment=f"muster:{token}",
        partition=spec.tags.get("partition", "") or place.partition,
        account=spec.tags.get("account", "") or place.account,
        qos=spec.tags.get("qos", "") or place.qos,
        features=spec.tags.get("features", ""),
        nodes_min=group.count if by_node else 0,
        nodes_max=group.count if by_node else 0,
        tasks=group.count,
        tasks_per_node=1 if by_node else 0,
        cpus_per_task=cpus,
        memory_per_cpu_mib=-(-group.request.memory_mib // cpus),
        gres_per_node={f"gpu:{group.gpu_models[0]}" if group.gpu_models else "gpu": gpus} if gpus else {},
        time_limit_s=-(-spec.max_runtime_ms // 1000),
        array="" if array is None else _array(array.first, array.last, array.step, array.max_running),
        dependency=_dependency(spec, job_ids),
        reservation=spec.reservation,
        begin_s=-(-spec.not_before_ms // 1000),
        deadline_s=spec.deadline_ms // 1000,
        held=spec.held,
    )


def _plain(name: str) -> str:
    """A name that no shell, list or log takes for more than that."""
    return re.sub(r"[^A-Za-z0-9_.:+@-]", "_", name) or "job"


def _array(first: int, last: int, step: int, most: int) -> str:
    return f"{first}-{last}{f':{step}' if step > 1 else ''}{f'%{most}' if most else ''}"


def _dependency(spec: WorkloadSpec, job_ids: Callable[[str], int]) -> str:
    told = []
    for i, dependency in enumerate(spec.after):
        job = job_ids(dependency.id)
        if not job:
            raise SpecError(
                f"workload.after[{i}]", f"'{dependency.id[:64]}' is no job of Slurm any more", "Leave it out"
            )
        told.append(f"{_DEPENDENCIES[dependency.on]}:{job}")
    return ",".join(told)
