"""What is asked of Slurm about things that exist, step by step: what it is about, whether it is so already, how it is
done, and whether it then is.

A step is done only to the very job that was meant: its id may be another's by now. Each can be tried again: before it
is done, and after slurmctld came back from a crash that may have forgotten it, it is looked at first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from engine.external.slurm.errors import SlurmGone
from engine.external.slurm.job_identity import SKEW_S
from engine.external.slurm.records import Job, JobList, Node, ReservationWish, SlurmPartition, SlurmReservation
from engine.model import commands as cmd

REASON = "muster"
"""Begins the reason of a drained node."""
TIER = re.compile(r"(?P<qos>.*)\.tier-\d+(?:\.\d+)?")
"""A priority class of the mirror: QOS, tier of the partition, and of what waits its rank."""
Do = Literal[
    "cancel", "hold", "release", "requeue", "set qos", "set priority", "move", "drain", "resume", "power up",
    "power down", "down", "up", "inactive", "reserve", "unreserve",
]  # fmt: skip
Standing = Literal["done", "to do", "changing", "gone", "missing"]
"""changing: a job that is on its way out, or a node that is not heard of yet. gone: there is nothing to be done to it
any more. missing: Slurm does not know the job; one that was submitted through Muster a moment ago may come back."""
TOPIC: dict[Do, str] = {
    "hold": "priority", "release": "priority", "set priority": "priority", "set qos": "QOS", "move": "partition",
    "requeue": "run", "drain": "use", "resume": "use", "power up": "power", "power down": "power",
    "down": "state", "up": "state", "inactive": "state", "reserve": "reservation", "unreserve": "reservation",
}  # fmt: skip
"""What sets something -> what it sets: of two that set the same, the later holds."""
OF_JOBS: frozenset[Do] = frozenset(("cancel", "hold", "release", "requeue", "set qos", "set priority", "move"))
READ_BACK: dict[Do, str] = {
    "cancel": "the job has ended", "hold": "the job is held", "release": "the job is not held",
    "requeue": "the job waits again, or has begun anew", "set qos": "the job has that QOS",
    "set priority": "the job has that priority", "move": "the job is in that partition",
    "drain": "the node is DRAIN", "resume": "the node is neither DRAIN nor DOWN",
    "power up": "the node is not powered down", "power down": "the node is powering down, or is down",
    "down": "the partition is DOWN", "up": "the partition is UP", "inactive": "the partition is INACTIVE",
    "reserve": "the reservation is there", "unreserve": "the reservation is not there",
}  # fmt: skip
"""What shows that a step is done, in words."""
_PARTITION_STATES: dict[Do, str] = {"down": "DOWN", "up": "UP", "inactive": "INACTIVE"}


class ChangeStep(msgspec.Struct, frozen=True):
    do: Do
    target: str
    """Workload, node, partition or reservation."""
    value: str = ""
    """A QOS, a priority, a partition or the reason of a drain."""
    reservation: ReservationWish | None = None
    needed: bool = True
    """False: the intent is carried out although this is refused."""


class StepReading(msgspec.Struct, frozen=True):
    """What was read of what a step is about."""

    standing: Standing
    text: str
    setting: str = ""
    """As it is set now, of what the step sets; of a job that is to end or begin anew, how often it was put back."""


class JobChangeApi(Protocol):
    """What of a Slurm connection is used here."""

    def boot(self) -> str: ...

    def job(self, id_: int, /) -> Job: ...
    def jobs(self, since: int | None = None) -> JobList: ...
    def node(self, name: str, /) -> Node: ...
    def partitions(self) -> Sequence[SlurmPartition]: ...
    def reservations(self) -> Sequence[SlurmReservation]: ...
    def cancel(self, id_: int, /) -> None: ...
    def hold(self, id_: int, /) -> None: ...
    def release(self, id_: int, /) -> None: ...
    def requeue(self, id_: int, /) -> None: ...
    def update_job(self, id_: int, /, **change: Any) -> None: ...
    def update_node(self, name: str, /, state: str, reason: str = "") -> None: ...
    def update_partition(self, name: str, /, state: str) -> None: ...
    def power(self, name: str, /, up: bool) -> None: ...
    def create_reservation(self, wish: ReservationWish) -> None: ...
    def delete_reservation(self, name: str) -> None: ...


JobOf = Callable[[str], Job | None]
"""The job that a workload of the cell is, as it was last seen; None where it is none."""


def steps_of(
    command: cmd.AnyCommand, number: int, far: JobChangeApi, job_of: JobOf
) -> list[tuple[ChangeStep, Job | None]]:
    """What is to be done, in this order, and to which jobs."""
    steps = [(step, job_of(step.target) if step.do in OF_JOBS else None) for step in _steps(command, number)]
    if isinstance(command, cmd.Drain):
        return steps + _requeues(far, lambda job: not set(command.ids).isdisjoint(job.nodes))
    if isinstance(command, cmd.DrainQueues):
        return steps + _requeues(far, lambda job: job.partition in command.names)
    return steps


def read_back(command: cmd.AnyCommand) -> str:
    """What is read in Slurm to see that it is done, in words."""
    return "; ".join(dict.fromkeys(READ_BACK[step.do] for step in _steps(command, 0)))


def _steps(command: cmd.AnyCommand, number: int) -> Iterator[ChangeStep]:
    match command:
        case cmd.Cancel(ids=ids):
            yield from (ChangeStep("cancel", id_) for id_ in ids)
        case cmd.Hold(ids=ids):
            yield from (ChangeStep("hold", id_) for id_ in ids)
        case cmd.Release(ids=ids):
            yield from (ChangeStep("release", id_) for id_ in ids)
        case cmd.Requeue(ids=ids) | cmd.Preempt(ids=ids):
            yield from (ChangeStep("requeue", id_) for id_ in ids)
        case cmd.SetQos(ids=ids, qos=qos):
            yield from (ChangeStep("set qos", id_, qos) for id_ in ids)
        case cmd.SetPriority(ids=ids, priority_class=to):
            found = TIER.fullmatch(to)
            yield from (ChangeStep("set qos", id_, found["qos"] if found else to) for id_ in ids)
        case cmd.SetJobPriority(ids=ids, priority=priority):
            yield from (ChangeStep("set priority", id_, str(priority)) for id_ in ids)
        case cmd.MoveToQueue(ids=ids, queue=queue):
            yield from (ChangeStep("move", id_, queue) for id_ in ids)
        case cmd.Cordon(ids=ids):
            yield from (ChangeStep("drain", id_, f"{REASON} i{number}: cordon") for id_ in ids)
        case cmd.Uncordon(ids=ids) | cmd.RestoreNodes(ids=ids):
            yield from (ChangeStep("resume", id_) for id_ in ids)
        case cmd.Drain(ids=ids):
            yield from (ChangeStep("drain", id_, f"{REASON} i{number}: drain") for id_ in ids)
        case cmd.PowerUp(ids=ids):
            yield from (ChangeStep("power up", id_) for id_ in ids)
        case cmd.PowerDown(ids=ids):
            yield from (ChangeStep("power down", id_) for id_ in ids)
        case cmd.HoldQueues(names=names):
            yield from (ChangeStep("down", name) for name in names)
        case cmd.OpenQueues(names=names):
            yield from (ChangeStep("up", name) for name in names)
        case cmd.DrainQueues(names=names):
            yield from (ChangeStep("inactive", name) for name in names)
        case cmd.Reserve(reservation=spec):
            wish = ReservationWish(
                name=spec.name,
                start_s=spec.start_ms // 1000,
                duration_s=max(60, (spec.end_ms - spec.start_ms) // 1000),
                nodes=spec.nodes,
                users=("root",),
                flags=("MAINT", "IGNORE_JOBS"),
            )
            yield ChangeStep("reserve", spec.name, reservation=wish)
        case cmd.Unreserve(names=names):
            yield from (ChangeStep("unreserve", name) for name in names)


def settings_of(command: cmd.AnyCommand) -> dict[tuple[str, str], ChangeStep]:
    """What it sets, of what, by which step: of a job that is cancelled nothing else matters."""
    return {(topic, step.target): step for step in _steps(command, 0) for topic in _topics(step.do)}


def _topics(do: Do) -> Collection[str]:
    if do == "cancel":
        return {TOPIC[job] for job in OF_JOBS if job in TOPIC}
    return (TOPIC[do],) if do in TOPIC else ()


def _requeues(far: JobChangeApi, meant: Callable[[Job], bool]) -> list[tuple[ChangeStep, Job | None]]:
    """Jobs that cannot be requeued run to their end: the drain itself does not fail for it."""
    running = (job for job in far.jobs().list if job.state == "RUNNING" and meant(job))
    return [(ChangeStep("requeue", str(job.id), needed=False), job) for job in running]


# -- jobs -------------------------------------------------------------------------------------------------------------


def same(meant: Job, now: Job) -> bool:
    """Whether a job that is read is the one that was meant: one that was put back has another time of submission."""
    put_back = now.restarts > meant.restarts and (now.user, now.name) == (meant.user, meant.name)
    return now.id == meant.id and (now.submit_s == meant.submit_s or put_back)


def look(far: JobChangeApi, step: ChangeStep, meant: Job | None, since_s: float) -> StepReading:
    """Whether it is so, and what was read. `since_s`: Unix time at which it was wanted: what was requeued before that
    is to be requeued again. Raises SlurmGone for a node that there is not, SlurmUnavailable, SlurmRefused."""
    if step.do in OF_JOBS:
        if meant is None:
            return StepReading("missing", f"{step.target}: Slurm has no such job any more")
        try:
            job = far.job(meant.id)
        except SlurmGone:
            return StepReading("missing", f"job {meant.id}: Slurm has no such job any more")
        if not same(meant, job):
            return StepReading("missing", f"job {meant.id} is another job by now")
        text = f"job {job.id} is {' '.join([job.state, *sorted(job.flags)])}"
        return StepReading(_look_at_job(step, job, since_s), text, _setting_of_job(step, job))
    if step.do in ("drain", "resume", "power up", "power down"):
        node = far.node(step.target)
        text = f"{node.name} is {' '.join([node.state, *sorted(node.flags)])}"
        return StepReading(_look_at_node(step, node), text, _setting_of_node(step, node))
    if step.do in _PARTITION_STATES:
        partition = next((each for each in far.partitions() if each.name == step.target), None)
        if partition is None:
            return StepReading("gone", f"Slurm has no partition {step.target}")
        done = partition.state == _PARTITION_STATES[step.do]
        return StepReading(
            "done" if done else "to do", f"partition {partition.name} is {partition.state}", partition.state
        )
    made = next((each for each in far.reservations() if each.name == step.target), None)
    done = (made is not None) == (step.do == "reserve")
    setting = "not made" if made is None else f"made of {','.join(made.nodes)} from {made.start_s} to {made.end_s}"
    text = f"reservation {step.target} is {'not made' if made is None else 'made'}"
    return StepReading("done" if done else "to do", text, setting)


def _setting_of_node(step: ChangeStep, node: Node) -> str:
    """Nothing of power: slurmctld itself changes that."""
    if step.do not in ("drain", "resume"):
        return ""
    return f"drained: {node.reason}" if "DRAIN" in node.flags else "in use"


def _setting_of_job(step: ChangeStep, job: Job) -> str:
    match step.do:
        case "hold" | "release":
            return "held" if job.held else "not held"
        case "set qos":
            return job.qos
        case "set priority":
            return str(job.priority)
        case "move":
            return job.partition
        case _:
            return f"put back {job.restarts} times"


def _look_at_job(step: ChangeStep, job: Job, since_s: float) -> Standing:
    if step.do == "cancel":
        return "done" if job.over or job.state == "CANCELLED" else "to do"
    if job.over or (step.do == "hold" and job.state != "PENDING"):
        return "gone"
    if step.do == "requeue" and "COMPLETING" in (job.state, *job.flags):
        return "changing"
    done = {
        "hold": job.held,
        "release": not job.held,
        "requeue": job.state == "PENDING" or (job.state == "RUNNING" and job.start_s > since_s + SKEW_S),
        "set qos": job.qos == step.value,
        "set priority": str(job.priority) == step.value,
        "move": job.partition == step.value,
    }[step.do]
    return "done" if done else "to do"


def _look_at_node(step: ChangeStep, node: Node) -> Standing:
    if step.do == "resume" and node.state == "UNKNOWN":
        return "changing"  # slurmctld was just started, has not heard of it yet, and refuses to resume it
    done = {
        "drain": "DRAIN" in node.flags,
        "resume": node.state != "DOWN" and not node.flags & {"DRAIN", "FAIL"},
        "power up": not node.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"},
        "power down": bool(node.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}),
    }[step.do]
    return "done" if done else "to do"


def do(far: JobChangeApi, step: ChangeStep, meant: Job | None) -> None:
    """Ask Slurm for it. Raises SlurmUnavailable, SlurmRefused."""
    job = meant.id if meant is not None else 0
    match step.do:
        case "cancel":
            far.cancel(job)
        case "hold":
            far.hold(job)
        case "release":
            far.release(job)
        case "requeue":
            far.requeue(job)
        case "set qos":
            far.update_job(job, qos=step.value)
        case "set priority":
            far.update_job(job, priority=int(step.value))
        case "move":
            far.update_job(job, partition=step.value)
        case "drain":
            far.update_node(step.target, state="DRAIN", reason=step.value)
        case "resume":
            far.update_node(step.target, state="RESUME")
        case "power up" | "power down":
            far.power(step.target, step.do == "power up")
        case "reserve":
            assert step.reservation is not None
            far.create_reservation(step.reservation)
        case "unreserve":
            far.delete_reservation(step.target)
        case _:
            far.update_partition(step.target, state=_PARTITION_STATES[step.do])
