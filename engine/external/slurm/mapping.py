"""Slurm's nodes, partitions and jobs as observations that a cell can be given (`engine.model.external_cells`).

Machines: partition -> queue; machines alike that are in the same partitions -> pool; feature -> node label
`feature/NAME`; leaf switch -> rack; advance reservation -> reservation. A powered-down node takes as long to boot as
boots were seen to take, else as long as Slurm waits for one (`BootTimes`).

Jobs: account -> tenant; user -> team; tier of the partition and QOS -> priority class; job -> workload, a gang of one
task a node; array element -> workload `ARRAY/TASK`. Memory, CPU and GPUs are counted as Slurm hands them out. Whatever
else Slurm goes by is named in `UnsupportedCounts`.

`Order` gives waiting jobs ranks, so that the engine starts them in Slurm's order. Within a priority class the engine
takes first what it was told of first. Jobs are therefore gone through in Slurm's order (priority, then submission), and
each one that is older than the one before it begins a new rank. Ranks beyond the last are in the order of age. A job
keeps its rank as long as possible: a job that comes in between takes a free rank, and the first ranks are left free for
what comes ahead. Otherwise one urgent job would give thousands of others new ranks, each of which is to be told.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median
from typing import NamedTuple
from zlib import crc32

import msgspec

from engine.external.mirror_report import UnsupportedCounts
from engine.external.slurm.limits import ClusterLimits, is_held, is_limit
from engine.external.slurm.names import array_tasks, ident
from engine.external.slurm.records import UNLIMITED, Job, Node, Qos, SlurmPartition, SlurmReservation, TopologySwitch
from engine.model import external_cells as seen
from engine.model.specs import (
    ArraySpec,
    Dependency,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    TaskGroup,
    WorkloadSpec,
)

RESUME_TIMEOUT_S = 60
"""Slurm's own default."""
LAST = 50
"""So many boots are gone by."""


class BootTimes:
    def __init__(self) -> None:
        self._off: set[str] = set()
        self._since: dict[str, float] = {}
        self._took_s: deque[float] = deque(maxlen=LAST)
        self.timeout_s = RESUME_TIMEOUT_S
        """ResumeTimeout, where the cluster says it."""

    def note(self, nodes: Collection[Node], now_s: float) -> None:
        """Look whose boot began or ended. What was powering up when it was first seen is not measured."""
        for node in nodes:
            if "POWERING_UP" in node.flags:
                self._since.setdefault(node.name, now_s if node.name in self._off else 0.0)
            elif (since := self._since.pop(node.name, 0.0)) and node.state in ("IDLE", "MIXED", "ALLOCATED"):
                self._took_s.append(now_s - since)
        self._off = {node.name for node in nodes if "POWERED_DOWN" in node.flags}

    @property
    def seen(self) -> int:
        return len(self._took_s)

    def ms(self, node: Node) -> int:
        """Return how long what starts there waits for its boot; 0 where it is on. Whole seconds, at least one."""
        if node.flags.isdisjoint(("POWERED_DOWN", "POWERING_UP")):
            return 0
        return max(round(median(self._took_s)) if self._took_s else self.timeout_s, 1) * 1000


FEATURE = "feature/"
MAX_LABELS = 60
"""Features of one node, and conditions of one job, that are taken over; an engine takes 64 labels."""


@dataclass(frozen=True)
class Machines:
    """The machines of a cluster that jobs are matched against."""

    told: tuple[seen.AnySeen, ...]
    partitions: dict[str, SlurmPartition]
    pools_of: dict[str, tuple[str, ...]]
    """Partition -> pools of its nodes."""
    pools: dict[str, PoolSpec]
    qos: dict[str, Qos]
    reservations: frozenset[str]
    classes: set[str]
    """Names of the priority classes that were met."""

    @property
    def qos_preempts(self) -> bool:
        """Return whether some QOS may take from another."""
        return any(each.preempts for each in self.qos.values())


def machines(
    nodes: Iterable[Node],
    partitions: Iterable[SlurmPartition],
    qos: Iterable[Qos],
    reservations: Iterable[SlurmReservation],
    switches: Iterable[TopologySwitch],
    left: UnsupportedCounts,
    boots: BootTimes | None = None,
) -> Machines:
    """Everything but work. `boots`: what is known of how long they take."""
    boots = boots or BootTimes()
    by_name = {partition.name: partition for partition in partitions}
    sizes = {name: len(partition.nodes) for name, partition in by_name.items()}
    pools: dict[str, PoolSpec] = {}
    known: dict[str, tuple[str, ...]] = {}
    placed: list[seen.NodeSeen] = []
    places = _places(switches)
    for node in nodes:
        pool, among = _pool_of(node, sizes, pools, known, left)
        pools[pool.name], known[pool.name] = pool, among
        placed.append(_node(node, pool.name, places, boots, left))
    pools_of: dict[str, list[str]] = {name: [] for name in by_name}
    for pool_name, among in known.items():
        for name in among:
            pools_of.setdefault(name, []).append(pool_name)
    kept = list(_reservations(reservations, {each.node.id for each in placed}, left))
    told: list[seen.AnySeen] = [seen.PoolSeen(pool=pool) for pool in pools.values()]
    told += placed
    told += [_queue(partition, left) for partition in by_name.values()]
    told += kept
    return Machines(
        told=tuple(told),
        partitions=by_name,
        pools_of={name: tuple(sorted(found)) for name, found in pools_of.items()},
        pools=pools,
        qos={each.name: each for each in qos},
        reservations=frozenset(each.reservation.name for each in kept),
        classes=set(),
    )


def _pool_of(
    node: Node,
    sizes: dict[str, int],
    pools: dict[str, PoolSpec],
    known: dict[str, tuple[str, ...]],
    left: UnsupportedCounts,
) -> tuple[PoolSpec, tuple[str, ...]]:
    """The pool it belongs to, and the partitions of that pool's nodes."""
    among = tuple(sorted(node.partitions))
    model, gpus = _gpus_of(node, left)
    first = min(among, key=lambda name: (sizes.get(name, 0), name), default="no-partition")
    name = f"{ident(first)}-{node.cpus}c{_size(node.memory_mib)}" + (f"-{ident(model or 'gpu')}x{gpus}" if gpus else "")
    if known.get(name, among) != among:
        name = f"{name}-{crc32(','.join(among).encode()) & 0xFFFF:04x}"
    capacity = Resources(cpu_milli=node.cpus * 1000, memory_mib=node.memory_mib, gpu_milli=gpus * 1000)
    pool = pools.get(name) or PoolSpec(
        name=name,
        capacity=capacity,
        gpu_model=ident(model) if model else "",
        machine_type=ident(node.instance_type, ""),
    )
    return pool, among


def _gpus_of(node: Node, left: UnsupportedCounts) -> tuple[str, int]:
    """(model, devices) of the node."""
    found: dict[str, int] = {}
    for name, count in node.gres.items():
        kind, _, model = name.partition(":")
        if kind == "gpu":
            found[model] = found.get(model, 0) + count
        else:
            left.note(f"generic resource '{kind}' is not modelled", node.name)
    if len(found) > 1:
        left.note("GPUs of several models in one node count as one kind", node.name)
        return "", min(sum(found.values()), 62)
    return next(iter(found.items()), ("", 0))


def _size(mib: int) -> str:
    return f"{mib // 1024}g" if mib >= 1024 else f"{mib}m"


def _node(
    node: Node, pool: str, places: dict[str, tuple[str, str]], boots: BootTimes, left: UnsupportedCounts
) -> seen.NodeSeen:
    if ident(node.name) != node.name:
        left.note("node names with odd characters are shown with _ instead", ident(node.name))
    if len(node.features) > MAX_LABELS:
        left.note(f"more than {MAX_LABELS} features of a node: the others are left out", node.name)
    labels = {FEATURE + ident(feature): "yes" for feature in node.features[:MAX_LABELS]}
    rack, block = places.get(node.name, (node.switch, ""))
    spec = NodeSpec(id=ident(node.name), pool=pool, rack=ident(rack, ""), block=ident(block, ""), labels=labels)
    return seen.NodeSeen(node=spec, standing=standing(node), boot_ms=boots.ms(node))


def _places(switches: Iterable[TopologySwitch]) -> dict[str, tuple[str, str]]:
    """Node -> (its leaf switch, the one above that where there is just one)."""
    every = list(switches)
    above = {leaf: [each.name for each in every if leaf in each.switches]
             for leaf in (each.name for each in every if each.level == 0)}  # fmt: skip
    return {
        node: (leaf.name, above[leaf.name][0] if len(above[leaf.name]) == 1 else "")
        for leaf in every if leaf.level == 0 for node in leaf.nodes
    }  # fmt: skip


def standing(node: Node) -> seen.Standing:
    """Return the node's standing for new work. A powered-down cloud node is ready: Slurm boots it for who needs it."""
    if node.state in ("DOWN", "ERROR", "UNKNOWN", "FUTURE") or node.flags & {"NOT_RESPONDING", "FAIL", "INVALID_REG"}:
        return "down"
    if node.flags & {"DRAIN", "POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN", "REBOOT_ISSUED", "REBOOT_REQUESTED"}:
        return "draining" if node.state in ("ALLOCATED", "MIXED") else "cordoned"
    return "ready"


def _queue(partition: SlurmPartition, left: UnsupportedCounts) -> seen.QueueSeen:
    if partition.oversubscribe > 1:
        left.note("partitions where jobs share CPUs (OverSubscribe): each CPU counts once", partition.name)
    if partition.nodes_max not in (None, UNLIMITED) or partition.nodes_min > 1:
        left.note("minimum and maximum nodes of a job in a partition are not modelled", partition.name)
    return seen.QueueSeen(queue=QueueSpec(name=ident(partition.name)), open=partition.state not in ("DOWN", "INACTIVE"))


def _reservations(
    reservations: Iterable[SlurmReservation], nodes: Collection[str], left: UnsupportedCounts
) -> Iterator[seen.ReservationSeen]:
    for each in reservations:
        mine = tuple(ident(name) for name in each.nodes if ident(name) in nodes)
        if not mine:
            left.note("reservations without whole nodes (cores, licenses) are not modelled", ident(each.name))
            continue
        if each.cores and each.flags.isdisjoint({"MAINT"}) and each.tres.get("node", len(mine)) < len(mine):
            left.note("reservations of parts of nodes count as whole nodes", ident(each.name))
        spec = ReservationSpec(
            name=ident(each.name), nodes=mine, start_ms=each.start_s * 1000, end_ms=max(each.end_s, 1) * 1000
        )
        yield seen.ReservationSeen(reservation=spec)


DAY_S = 86_400
_CONSTRAINT = re.compile(r"[A-Za-z0-9._=:-]+(&[A-Za-z0-9._=:-]+)*")
_AFTER = {"afterok": "finished", "afternotok": "failed", "afterany": "ended", "after": "started"}
_NEVER = frozenset(("DependencyNeverSatisfied",))
_CAUSES = {
    "TIMEOUT": "max runtime",
    "DEADLINE": "deadline",
    "OUT_OF_MEMORY": "out of memory",
    "NODE_FAIL": "node lost",
    "BOOT_FAIL": "nodes did not boot",
    "PREEMPTED": "stopped for others",
}
_NO_PREEMPTION = ("", "OFF", "GANG", "WITHIN", "PRIORITY")
"""Preempt modes of a partition that stop no job for another; all other modes stop jobs."""


class PartitionChoice(NamedTuple):
    """The meaning of asking for a partition, or for several."""

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
        `engine.external.slurm.mapping` has it, while it waits. `wanted`: what was submitted through Muster
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
        """Return the tier of the first partition that the job asks for."""
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
        """Return the meaning of asking for a partition, or for several with commas; None where none of them is
        shown."""
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
            (job.contiguous, "adjacent nodes (--contiguous)"),
            (job.switches, "at most so many switches (--switches)"),
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
                each.preempt_mode not in _NO_PREEMPTION for each in self._at.partitions.values()
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
            self._left.note("jobs in reservations that are not shown count as if they named no reservation", name)
            return ""
        return ident(job.reservation, "")

    def _dependencies(self, job: Job, name: str, known: Collection[str]) -> tuple[Dependency, ...]:
        """Return the workloads that the job waits for; nothing where some of that is not known."""
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
        """Return the phase of the job, and the cell time it waits for, if any."""
        if job.over:
            if job.state == "COMPLETED":
                return "finished", -1
            return ("cancelled" if job.state == "CANCELLED" else "failed"), -1
        if job.state == "SUSPENDED":
            return "suspended", -1
        if job.holding:
            return ("starting" if "CONFIGURING" in job.flags else "running"), -1
        if is_held(job):
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


OF_SLURM = ("user", "qos", "account")
"""Tags that Slurm alone gives: whose a job is goes by them."""


def _tags(job: Job) -> dict[str, str]:
    given = dict(zip(OF_SLURM, (job.user, job.qos, job.account), strict=True))
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
        tags={key: value for key, value in wanted.tags.items() if key not in OF_SLURM} | spec.tags,
        estimate_ms=wanted.estimate_ms or spec.estimate_ms,
        checkpoint_interval_ms=wanted.checkpoint_interval_ms,
        checkpoint_cost_ms=wanted.checkpoint_cost_ms,
        restore_ms=wanted.restore_ms,
        rerun=wanted.rerun,
    )


RANKS = 64
AHEAD = 16
"""Ranks that are left free for what comes ahead of all."""
Place = tuple[int, int]
"""(rank, age): who is less is started first."""
_LAST: Place = RANKS, 0


class Order:
    """Ages and ranks are kept over looks: names in the order in which they were first told."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._age = {name: age for age, name in enumerate(known)}
        self._next = len(self._age)
        self._rank: dict[str, tuple[int, int]] = {}
        """Name -> (tier, rank), as last given."""

    def note(self, names: Iterable[str]) -> None:
        """Give these names the next ages, in this order."""
        for name in names:
            if name not in self._age:
                self._age[name] = self._next
                self._next += 1

    def keep(self, names: Collection[str]) -> None:
        """Forget all others."""
        self._age = {name: age for name, age in self._age.items() if name in names}

    def ranks(self, waiting: Iterable[tuple[int, str, Job]]) -> dict[str, int]:
        """Workload id -> rank within its tier, the least first, of all (tier, workload id, job) that wait. What is new
        is noted."""
        ordered = sorted(waiting, key=lambda each: (-each[0], -(each[2].priority or 0), each[2].submit_s, each[2].id))
        self.note(name for _, name, _ in ordered)
        found: dict[str, int] = {}
        for tier, jobs in groupby(ordered, key=itemgetter(0)):
            names = [name for _, name, _ in jobs]
            ages = [self._age[name] for name in names]
            before = [self._rank.get(name) for name in names]
            kept = _kept([(was[1], age) if was and was[0] == tier else None
                          for was, age in zip(before, ages, strict=True)])  # fmt: skip
            ranks = _between(ages, kept) or _anew(ages)
            found |= zip(names, ranks, strict=True)
            self._rank |= {name: (tier, rank) for name, rank in zip(names, ranks, strict=True)}
        self._rank = {name: self._rank[name] for name in found}
        return found


def _kept(places: Sequence[Place | None]) -> list[Place | None]:
    """The most of them that are in order; None for the others."""
    ends: list[Place] = []
    """The least place at which a run of so many in order ends, and where that is."""
    at: list[int] = []
    previous = [-1] * len(places)
    for i, place in enumerate(places):
        if place is None:
            continue
        length = bisect_left(ends, place)
        previous[i] = at[length - 1] if length else -1
        if length == len(ends):
            ends.append(place)
            at.append(i)
        else:
            ends[length], at[length] = place, i
    found: list[Place | None] = [None] * len(places)
    i = at[-1] if at else -1
    while i >= 0:
        found[i] = places[i]
        i = previous[i]
    return found


def _between(ages: Sequence[int], kept: Sequence[Place | None]) -> list[int]:
    """Ranks in which those that are not kept find room between those that are; empty where there is none, or nobody is
    kept."""
    if not any(kept):
        return []
    ranks: list[int] = []
    low: Place | None = None
    at = 0
    while at < len(ages):
        place = kept[at]
        if place is not None:
            ranks.append(place[0])
            low, at = place, at + 1
            continue
        end = next((i for i in range(at, len(ages)) if kept[i] is not None), len(ages))
        high = (kept[end] if end < len(ages) else None) or _LAST
        run = _upwards(ages[at:end], low or (high[0] - 1 - _steps(ages[at:end]), -1))
        last = run[-1], ages[end - 1]
        if run[0] < 0 or (last >= high and high != _LAST):
            return []
        if high == _LAST:
            run = [min(rank, RANKS - 1) for rank in run]
            last = run[-1], ages[end - 1]
        ranks += run
        low, at = last, end
    return ranks


def _anew(ages: Sequence[int]) -> list[int]:
    first = max(min(AHEAD, RANKS - 1 - _steps(ages)), 0)
    return [min(rank, RANKS - 1) for rank in _upwards(ages, (first, -1))]


def _upwards(ages: Sequence[int], low: Place) -> list[int]:
    """Ranks from that place on, each the least that goes."""
    ranks = []
    rank, before = low
    for age in ages:
        rank += age < before
        ranks.append(rank)
        before = age
    return ranks


def _steps(ages: Sequence[int]) -> int:
    """Return the number of ages below the one before."""
    return sum(b < a for a, b in pairwise(ages))
