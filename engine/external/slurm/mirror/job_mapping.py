"""Slurm's jobs as what a cell can be told (`engine.model.observations`): pure, and loud about what it leaves out.

account -> tenant, user -> team; tier of the partition and QOS -> priority class; job -> workload, a gang of one task a
node; array element -> workload `ARRAY/TASK`. Memory, CPU and GPUs are counted as Slurm hands them out. Whatever else
Slurm goes by is named in `UnsupportedCounts`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from engine.external.slurm.hostlist import array_tasks
from engine.external.slurm.limits import ClusterLimits, is_limit
from engine.external.slurm.mirror.machines import FEATURE, MAX_LABELS, Machines
from engine.external.slurm.names import ident
from engine.external.slurm.records import UNLIMITED, Job, SlurmPartition
from engine.external.slurm.unsupported import UnsupportedCounts
from engine.model import observations as seen
from engine.model.specs import ArraySpec, Dependency, PriorityClassSpec, Resources, TaskGroup, WorkloadSpec

DAY_S = 86_400
_CONSTRAINT = re.compile(r"[A-Za-z0-9._=:-]+(&[A-Za-z0-9._=:-]+)*")
_AFTER = {"afterok": "finished", "afternotok": "failed", "afterany": "ended", "after": "started"}
_HELD = frozenset(("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue"))
_NEVER = frozenset(("DependencyNeverSatisfied",))
_CAUSES = {
    "TIMEOUT": "max runtime",
    "DEADLINE": "deadline",
    "OUT_OF_MEMORY": "out of memory",
    "NODE_FAIL": "node lost",
    "BOOT_FAIL": "nodes did not boot",
    "PREEMPTED": "stopped for others",
}
_PREEMPTS = ("REQUEUE", "CANCEL", "SUSPEND")


class PartitionChoice(NamedTuple):
    """What it means to ask for a partition, or for several."""

    queue: str
    first: SlurmPartition
    pools: tuple[str, ...]
    """Of the nodes of all of them."""


class JobMapping:
    """Jobs of one look, matched against the machines."""

    def __init__(self, at: Machines, left: UnsupportedCounts, now_s: int, limits: ClusterLimits | None = None) -> None:
        self._at = at
        self._limits = limits
        self.caps: dict[str, int] = {}
        """Those that count any of the jobs, and how much each lets run."""
        self._left = left
        self._now_s = now_s
        self._groups: dict[tuple[object, ...], TaskGroup] = {}
        """Equal groups are one object: thousands of jobs ask for the same."""
        self._asked_for: dict[str, PartitionChoice | None] = {}
        self.new_classes: list[seen.PriorityClassSeen] = []

    def told(
        self, job: Job, name: str, known: Collection[str], rank: int = 0, wanted: WorkloadSpec | None = None
    ) -> seen.WorkloadSeen | None:
        """The job as a workload of that name; None where it is in no partition that is known. `rank`: as
        `engine.external.slurm.mirror.start_order` has it, while it waits. `wanted`: what was submitted through Muster
        and became this job."""
        asked = self._asked(job.partition)
        if asked is None:
            self._left.note("jobs in partitions that are not shown are left out", name)
            return None
        if job.het_id:
            self._left.note("parts of a heterogeneous job are workloads of their own: that they start together is not "
                            "modelled", name)  # fmt: skip
        phase, wake_ms = self._phase(job)
        spec = WorkloadSpec(
            id=name,
            name=job.name[:1024],
            queue=asked.queue,
            groups=(self._group(job, name, asked.pools),),
            priority_class=self._priority_class(job, asked.first, rank),
            tenant=ident(job.account or job.user, ""),
            team=ident(job.user, ""),
            tags=_tags(job),
            estimate_ms=_limit_s(job, asked.first) * 1000,
            after=self._dependencies(job, name, known),
            deadline_ms=job.deadline_s * 1000,
            reservation=self._reservation(job, name),
            held=phase == "held",
        )
        return seen.WorkloadSeen(
            spec=spec if wanted is None else _as_wanted(spec, wanted, job),
            phase=phase,
            submitted_ms=job.submit_s * 1000,
            started_ms=0 if job.state == "PENDING" else job.start_s * 1000,
            ended_ms=job.end_s * 1000 if job.over else 0,
            wake_ms=wake_ms,
            restarts=job.restarts,
            holds=self._holds(job) if phase in ("starting", "running") else (),
            cause=_CAUSES.get(job.state, ""),
            word=job.reason[:128],
            draws=() if job.over else self._draws(job),
        )

    def _draws(self, job: Job) -> tuple[tuple[str, int], ...]:
        if self._limits is None:
            return ()
        self.caps |= {cap.name: cap.most for cap, _ in self._limits.caps(job)}
        return self._limits.draws(job)

    def tier_of(self, job: Job) -> int:
        """Of the first partition that it asks for."""
        asked = self._asked(job.partition)
        return 0 if asked is None else asked.first.tier

    def array(self, whole: Sequence[Job], name: str, wanted: WorkloadSpec | None = None) -> seen.WorkloadSeen | None:
        """The array whose records these are, where its elements are evenly numbered; None: they stand alone. One that
        was submitted through Muster is what was `wanted`, however few of its records are seen yet."""
        waiting = next((job for job in whole if job.array_tasks), whole[0])
        array = _array_of(whole, waiting) if wanted is None else wanted.array
        one = self.told(waiting, name, (), wanted=wanted) if array is not None else None
        if one is None:
            return None
        spec = msgspec.structs.replace(one.spec, array=array, after=(), held=False)
        return seen.WorkloadSeen(spec=spec, submitted_ms=one.submitted_ms)

    def _group(self, job: Job, name: str, pools: tuple[str, ...]) -> TaskGroup:
        count = max(job.nodes_min, 1)
        models, gpus = _gpus_wanted(job, count, self._left, name)
        key = (
            count, job.cpus, job.memory_mib, job.memory_per_node_mib, models, gpus, pools, job.features,
            job.nodes_required, job.nodes_excluded, job.exclusive,
        )  # fmt: skip
        group = self._groups.get(key)
        if group is not None and not (job.features or job.contiguous or job.switches or job.licenses):
            return group
        cpus = -(-job.cpus // count)
        if job.exclusive:
            cpus = max(cpus, min((self._at.pools[pool].capacity.cpu_milli // 1000 for pool in pools), default=cpus))
        memory = -(-job.memory_mib // count) if job.memory_mib is not None else job.memory_per_node_mib or 0
        labels, avoid = self._terms(job, name)
        group = TaskGroup(
            count=count,
            request=Resources(cpu_milli=max(cpus, 1) * 1000, memory_mib=memory, gpu_milli=gpus * 1000),
            gpu_models=tuple(ident(model) for model in models),
            pools=pools,
            node_labels=labels,
            avoid_labels=avoid,
        )
        self._groups[key] = group
        return group

    def _asked(self, partition: str) -> PartitionChoice | None:
        """What asking for it means, which may be several with commas; None where none of them is shown."""
        if partition not in self._asked_for:
            names = [name for name in partition.split(",") if name in self._at.partitions]
            pools = sorted({pool for name in names for pool in self._at.pools_of.get(name, ())})
            self._asked_for[partition] = (
                PartitionChoice(ident(names[0]), self._at.partitions[names[0]], tuple(pools)) if names else None
            )
        return self._asked_for[partition]

    def _terms(self, job: Job, name: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        """(labels that nodes must have, labels they must not have)"""
        labels: dict[str, tuple[str, ...]] = {}
        if job.features and _CONSTRAINT.fullmatch(job.features) and job.features.count("&") < MAX_LABELS:
            labels = {FEATURE + ident(feature): ("yes",) for feature in job.features.split("&")}
        elif job.features:
            self._left.note("constraints with |, [], () or counts are not modelled: a forecast may place such jobs "
                            "elsewhere", name)  # fmt: skip
        if job.nodes_required:
            labels["node"] = tuple(ident(node) for node in job.nodes_required[:MAX_LABELS])
        for given, what in (
            (job.contiguous, "nodes next to each other (--contiguous)"),
            (job.switches, "most switches (--switches)"),
            (job.licenses, "licenses"),
        ):
            if given:
                self._left.note(f"{what}: not modelled", name)
        avoid = tuple(ident(node) for node in job.nodes_excluded[:MAX_LABELS])
        return labels, {"node": avoid} if avoid else {}

    def _priority_class(self, job: Job, partition: SlurmPartition, rank: int) -> str:
        """By tier and, where QOS preempt, by QOS: who may take from whom. What waits is below what runs of its like,
        in ranks: that order is Slurm's own among those that wait, and takes nothing from anybody."""
        qos = self._at.qos.get(job.qos)
        by_qos = self._at.qos_preempts and qos is not None
        base = f"{ident(job.qos)}.tier-{partition.tier}" if by_qos else f"tier-{partition.tier}"
        name = base if job.state != "PENDING" else f"{base}.{rank + 1:02d}"
        if name not in self._at.classes:
            self._at.classes.add(name)
            level = (
                sorted({each.priority for each in self._at.qos.values()}).index(qos.priority) if by_qos and qos else 0
            )
            value = min(max(partition.tier, 0), 9_999) * 100_000 + min(level, 99) * 1_000 + 999
            preempts = self._at.qos_preempts or any(
                each.preempt_mode in _PREEMPTS for each in self._at.partitions.values()
            )
            spec = PriorityClassSpec(
                name=name,
                value=value if job.state != "PENDING" else value - 1 - rank,
                preemption="lower" if preempts else "never",
                preemptible=partition.preempt_mode != "OFF",
            )
            self.new_classes.append(seen.PriorityClassSeen(priority_class=spec))
        return name

    def _reservation(self, job: Job, name: str) -> str:
        if job.reservation and ident(job.reservation) not in self._at.reservations:
            self._left.note("jobs in reservations that are not shown count as if they named none", name)
            return ""
        return ident(job.reservation, "")

    def _dependencies(self, job: Job, name: str, known: Collection[str]) -> tuple[Dependency, ...]:
        """What it waits for; nothing where some of that is not known."""
        if not job.dependency or job.state != "PENDING":
            return ()
        after: list[Dependency] = []
        unknown = "?" in job.dependency
        for term in re.split(r"[,?]", job.dependency):
            kind, *ids = term.split("(")[0].split(":")
            for each in ids:
                target = each.partition("+")[0].replace("_", "/").removesuffix("/*")
                if kind in _AFTER and target in known and target != name:
                    after.append(Dependency(id=target, on=_AFTER[kind]))  # type: ignore[arg-type]
                else:
                    unknown = True
            if not ids:
                unknown = True
        if unknown:
            self._left.note("dependencies on jobs that are not shown, `singleton`, aftercorr and `?`: such jobs wait "
                            "until Slurm says otherwise", name)  # fmt: skip
            return ()
        return tuple(after)

    def _phase(self, job: Job) -> tuple[seen.Phase, int]:
        """What it is at, and while it waits for a time: when that is."""
        if job.over:
            if job.state == "COMPLETED":
                return "finished", -1
            return ("cancelled" if job.state == "CANCELLED" else "failed"), -1
        if job.state == "SUSPENDED":
            return "suspended", -1
        if job.holding:
            return ("starting" if "CONFIGURING" in job.flags else "running"), -1
        if job.held or job.reason in _HELD or job.flags & {"REQUEUE_HOLD", "SPECIAL_EXIT"}:
            return "held", -1
        if job.eligible_s > self._now_s:
            return "waiting", job.eligible_s * 1000
        # Slurm forgets a dependency once it is met.
        if job.reason in _NEVER or (job.dependency and job.reason in ("Dependency", "")):
            return "waiting", -1
        if is_limit(job.reason) and not (self._limits is not None and self._limits.holds_by_cap(job)):
            return "waiting", -1
        return "queued", -1

    def _holds(self, job: Job) -> tuple[seen.Holding, ...]:
        count = max(len(job.nodes), 1)
        cpus = -(-(job.tres_held.get("cpu") or job.cpus) // count)
        memory = -(-(job.tres_held.get("mem") or job.memory_mib or 0) // count)
        gpus = -(-_total_gpus(job.tres_held, "gres/gpu") // count)
        found = []
        for node in job.nodes:
            mine = (job.gpus_on or {}).get(node, ())
            here = _total_gpus(job.gres_on[node], "gpu") if job.gres_on and node in job.gres_on else len(mine) or gpus
            resources = Resources(
                cpu_milli=(job.cpus_on or {}).get(node, cpus) * 1000,
                memory_mib=(job.memory_on or {}).get(node, memory),
                gpu_milli=here * 1000,
            )
            found.append(seen.Holding(node=ident(node), resources=resources, devices=mine))
        return tuple(found)


def _limit_s(job: Job, partition: SlurmPartition) -> int:
    """Its time limit; 0 where there is none."""
    for limit in (job.time_limit_s, partition.time_limit_s):
        if limit is not None:
            return 0 if limit == UNLIMITED else min(limit, 3650 * DAY_S)
    return 0


def tasks_of(job: Job) -> list[int]:
    """Tasks of its array that the record stands for. Raises ValueError where Slurm wrote them in no known way."""
    if job.array_task is not None:
        return [job.array_task]
    return [task for tasks in array_tasks(job.array_tasks)[0] for task in tasks] if job.array_tasks else []


def _array_of(whole: Sequence[Job], waiting: Job) -> ArraySpec | None:
    """As its records have it. Raises ValueError as `tasks_of`."""
    tasks = sorted({task for job in whole for task in tasks_of(job)})
    steps = {b - a for a, b in pairwise(tasks)}
    if len(tasks) < 2 or len(steps) != 1:
        return None
    _, limit = array_tasks(waiting.array_tasks)
    return ArraySpec(first=tasks[0], last=tasks[-1], step=steps.pop(), max_running=limit or 0)


def _gpus_wanted(job: Job, count: int, left: UnsupportedCounts, name: str) -> tuple[tuple[str, ...], int]:
    """(models, devices on each node)"""
    wanted = job.gres_wanted or {key.removeprefix("gres/"): -(-n // count) for key, n in job.tres_wanted.items()
                                 if key.startswith("gres/")}  # fmt: skip
    if not wanted:
        return (), 0
    models: list[str] = []
    for key in wanted:
        kind, _, model = key.partition(":")
        if kind != "gpu":
            left.note(f"generic resource '{kind}' is not modelled", name)
        elif model:
            models.append(model)
    if len(models) > 1:
        left.note("jobs that ask for GPUs of several models at once: any model counts", name)
        models = []
    return tuple(models), _total_gpus(wanted, "gpu")


def _total_gpus(counts: dict[str, int], kind: str) -> int:
    """Devices in all: the plain count where there is one, else the sum over models."""
    if kind in counts:
        return counts[kind]
    return sum(count for key, count in counts.items() if key.startswith(kind + ":"))


def _tags(job: Job) -> dict[str, str]:
    given = {"user": job.user, "qos": job.qos, "account": job.account}
    return {key: value for key, value in given.items() if value}


def _as_wanted(spec: WorkloadSpec, wanted: WorkloadSpec, job: Job) -> WorkloadSpec:
    """With what Slurm does not keep of a submission through Muster. What both know is as Slurm says: it may have been
    changed there since."""
    asked_for = {ident(name) for name in job.partition.split(",")}
    return msgspec.structs.replace(
        spec,
        name=wanted.name,
        queue=wanted.queue if wanted.queue in asked_for else spec.queue,
        tenant=wanted.tenant or spec.tenant,
        team=wanted.team or spec.team,
        tags=wanted.tags | spec.tags,
        estimate_ms=wanted.estimate_ms or spec.estimate_ms,
        checkpoint_interval_ms=wanted.checkpoint_interval_ms,
        checkpoint_cost_ms=wanted.checkpoint_cost_ms,
        restore_ms=wanted.restore_ms,
    )
