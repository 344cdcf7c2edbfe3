"""Requests to Slurm: a workload as a job, the identity of jobs, and changes to jobs, nodes and reservations in steps.

A job's id is no lasting name: after a crash in which it forgot accepted jobs slurmctld gives their ids anew. So each
job of Muster carries a token, whole in its comment, and with its head in its name, which more of Slurm's lists show. A
workload that Slurm cannot be asked for is refused before anything is sent.

`Identities` tells which workload of the cell a job is: `123`; `123/4` for task 4 of array 123; `123.2` for the second
job that had that id; the chosen name where the job was submitted through Muster. A job with another time of submission
that was not put back is another job.

A `SlurmChange` is made only to the very job that was meant.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from engine.external.change_steps import ChangeStep, StepReading
from engine.external.slurm.capabilities import Capabilities, Capability, SlurmGone
from engine.external.slurm.records import (
    Job,
    JobList,
    JobRequest,
    Node,
    ReservationWish,
    SlurmPartition,
    SlurmReservation,
)
from engine.model import commands as cmd
from engine.model.errors import SpecError
from engine.model.external_cells import StepStanding
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
    """The place in Slurm of a queue's work. Empty = Slurm's default."""

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
    """Return whether it is the job of that token."""
    told = token_in(job)
    return told == token if told else head_in(job) == head_of(token)


def check(spec: WorkloadSpec, where: str) -> None:
    """Raises SpecError for what a job of Slurm cannot be."""
    run = spec.run
    if run is None:
        raise SpecError(f"{where}.run", "is missing", "Give the command that its tasks run")
    if _JOB_ID.match(spec.id):
        raise SpecError(f"{where}.id", "looks like a Slurm job id, which another job may get", "Begin it with a letter")
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
                f"{where}.groups[0].gpu_models", f"{model[:40]!a} is not a GRES type", "Name it as in gres.conf"
            )
    for name in TAGS:
        if not re.fullmatch(r"[A-Za-z0-9_.,&|()-]{0,200}", spec.tags.get(name, "")):
            raise SpecError(f"{where}.tags.{name}", "cannot be passed to Slurm", "Use letters, digits, - and _")


def workdir_of(spec: WorkloadSpec, place: JobDestination) -> str:
    """The folder in which its jobs begin."""
    return (spec.run.cwd if spec.run is not None else "") or place.workdir or "/tmp"


def mark_of(token: str, tries: int) -> str:
    """Name of the empty folder by which a job says, in the folder it begins in, that it has begun. `tries`: how often
    the submission had been lost before."""
    return f".muster-{token}.{tries}"


REQUEUE: dict[str, bool | None] = {"never": False, "always": True}
"""What the word of a workload says of Slurm's own requeue; of all others slurm.conf does."""
MARKED_S = 900
"""A job that may be sent again if it has not begun leaves a mark if it begins so soon after it was sent. By then
slurmctld has saved it, as a rule, and nobody asks whether it had begun. A job that may never run twice always does."""
_CANNOT = 75
"""Exit status of a job that must not begin (EX_TEMPFAIL of sysexits.h)."""


def _script(spec: WorkloadSpec, command: str, mark: str, until_s: int) -> str:
    """The job's script, which leaves the mark before anything else where its workload may not run twice. One that may
    never do so ends where the mark is there already: Slurm itself begins a job again that it forgot to have begun."""
    begin = f"exec {'srun --kill-on-bad-exit=1 ' if spec.groups[0].count > 1 else ''}{command}\n"
    if spec.rerun not in ("never", "if-unstarted"):
        return f"#!/bin/sh\n{begin}"
    leave = f"mkdir {mark} 2>/dev/null || [ -d {mark} ]"
    if spec.rerun == "never":
        leave = f"{{ {leave}; }} && mkdir {mark}/${{SLURM_ARRAY_TASK_ID:-0}}"
        why = "it may never run twice, and has begun before or could not leave"
    else:
        leave = f'[ "$(date +%s)" -gt {until_s} ] || {leave}'
        why = "it may run again only if it has not begun, and could not leave"
    told = shlex.quote(f"muster: not run: {why} its mark {mark} (rerun: {spec.rerun})")
    return f"#!/bin/sh\n{leave} || {{ echo {told} >&2; exit {_CANNOT}; }}\n{begin}"


def wish_of(
    spec: WorkloadSpec,
    token: str,
    place: JobDestination,
    job_ids: Callable[[str], int] = lambda workload: 0,
    *,
    tries: int = 0,
    now_s: int = 0,
) -> JobRequest:
    """The job. `job_ids`: of a workload it waits for. `tries`: how often it was lost before. Raises SpecError for what
    cannot be asked of Slurm."""
    check(spec, "workload")
    run, group, array = spec.run, spec.groups[0], spec.array
    assert run is not None
    gpus, cpus = group.request.gpu_milli // 1000, max(1, -(-group.request.cpu_milli // 1000))
    # One task is on one node. So is each of several with GPUs: Slurm counts those by node.
    by_node = gpus > 0 or group.count == 1
    workdir = workdir_of(spec, place)
    mark = shlex.quote(os.path.join(workdir, mark_of(token, tries)))
    return JobRequest(
        name=f"{_plain(spec.name or spec.id)[:MAX_NAME]}.m{head_of(token)}",
        script=_script(spec, shlex.join(run.argv), mark, now_s + MARKED_S),
        environment={"PATH": PATH, **run.env, "MUSTER_WORKLOAD": spec.id, "MUSTER_SUBMISSION": str(tries + 1)},
        workdir=workdir,
        comment=f"muster:{token}",
        partition=spec.tags.get("partition", "") or place.partition,
        account=spec.tags.get("account", "") or place.account,
        qos=spec.tags.get("qos", "") or place.qos,
        features=spec.tags.get("features", ""),
        nodes=group.count if by_node else 0,
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
        requeue=REQUEUE.get(spec.rerun),
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
                f"workload.after[{i}]", f"'{dependency.id[:64]}' is no longer a job in Slurm", "Leave it out"
            )
        told.append(f"{_DEPENDENCIES[dependency.on]}:{job}")
    return ",".join(told)


SKEW_S = 5
"""By so much the clocks of Slurm and of the cell may differ."""
_JOB_NAME = re.compile(r"(\d+(?:/\d+)?)(?:\.(\d+))?")


class RecordedSubmission(msgspec.Struct, frozen=True):
    """The record of a submission through Muster."""

    id: str
    """The workload id that was asked for."""
    job: int = 0
    """The job, or array, that Slurm answered with; 0: not known, or no longer."""
    tries: int = 0
    """How often it was lost there and submitted anew."""
    under_way: bool = False
    """Its submission is not settled: if Slurm forgets the job, there will be another."""


class MusterJobs:
    """The jobs that were submitted through Muster. A comment alone proves nothing: everybody sees those of others and
    may write the same. What Slurm answered with counts; where that is not on record, the first job that was seen with
    the token, of the user whom the others of ours are of."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, int]] = {}
        """Token -> job or array that was seen with it, and how often it had been submitted anew by then."""
        self._user = ""

    def name_of(self, job: Job, named: Mapping[str, RecordedSubmission] | None) -> str:
        """The id that was asked for; empty for the jobs of others."""
        token = token_in(job) if named and job.comment else ""
        asked = named.get(token) if named and token else None
        if asked is None:
            return ""
        head = job.array_id or job.id
        if asked.job:
            if head != asked.job:
                return ""
            self._first[token] = head, asked.tries
            self._user = self._user or job.user
            return asked.id
        if self._user and job.user and job.user != self._user:
            return ""
        if token not in self._first or self._first[token][1] < asked.tries:
            self._first[token] = head, asked.tries
        return asked.id if self._first[token][0] == head else ""


class Identities:
    """Names that were given, and to which job: kept over looks, and found again from the cell after a restart."""

    def __init__(self, known: Iterable[tuple[str, int, int]] = (), ours: MusterJobs | None = None) -> None:
        """`known`: (workload id, Unix seconds of submission, times put back) of what the cell has."""
        self.ours = ours or MusterJobs()
        self._given: dict[str, tuple[str, int, int]] = {}
        """Job or task -> (workload id, submitted, times put back) of the last job that had the id."""
        self._restored: set[str] = set()
        """Those of the cell's own record, whose time of submission is not Slurm's to the second."""
        self._turns: dict[str, int] = {}
        """Job or task -> how many jobs had the id."""
        for name, submit_s, restarts in known:
            match = _JOB_NAME.fullmatch(name)
            if match:
                base, turn = match[1], int(match[2] or 1)
                if turn >= self._turns.get(base, 0):
                    self._turns[base] = turn
                    self._given[base] = name, submit_s, restarts
                    self._restored.add(base)

    def name_of(self, job: Job, task: int | None = None, named: Mapping[str, RecordedSubmission] | None = None) -> str:
        """The workload id of the job, or of one waiting task of its array. `named`: token -> what was asked for."""
        chosen = self.ours.name_of(job, named)
        if chosen:
            return f"{chosen}/{task}" if task is not None else chosen
        base = f"{job.array_id}/{task}" if task is not None else str(job.id)
        before = self._given.get(base)
        if before is None:
            name = base
            self._turns[base] = 1
        elif abs(before[1] - job.submit_s) <= (SKEW_S if base in self._restored else 0) or job.restarts > before[2]:
            name = before[0]
        else:
            self._turns[base] += 1
            name = f"{base}.{self._turns[base]}"
        self._given[base] = name, job.submit_s, job.restarts
        self._restored.discard(base)
        return name


def number_of(name: str) -> int:
    """The job, or the array, that the workload id is of. Raises ValueError for a name that a person chose."""
    match = _JOB_NAME.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return int(match[1].partition("/")[0])


REASON = "muster"
"""Begins the reason of a drained node."""
TIER = re.compile(r"(?P<qos>.*)\.tier-\d+(?:\.\d+)?")
"""A priority class of the mirror: QOS, tier of the partition, and of what waits its rank."""
Do = Literal[
    "cancel", "hold", "release", "put back", "set qos", "set priority", "move", "drain", "resume", "power up",
    "power down", "down", "up", "inactive", "reserve", "unreserve",
]  # fmt: skip
TOPIC: dict[Do, str] = {
    "hold": "priority", "release": "priority", "set priority": "priority", "set qos": "QOS", "move": "partition",
    "put back": "run", "drain": "use", "resume": "use", "power up": "power", "power down": "power",
    "down": "state", "up": "state", "inactive": "state", "reserve": "reservation", "unreserve": "reservation",
}  # fmt: skip
"""What sets something -> what it sets: of two that set the same, the later holds."""
OF_JOBS: frozenset[Do] = frozenset(("cancel", "hold", "release", "put back", "set qos", "set priority", "move"))
READ_BACK: dict[Do, str] = {
    "cancel": "the job has ended", "hold": "the job is held", "release": "the job is not held",
    "put back": "the job waits again, or has restarted", "set qos": "the job has that QOS",
    "set priority": "the job has that priority", "move": "the job is in that partition",
    "drain": "the node is DRAIN", "resume": "the node is neither DRAIN nor DOWN",
    "power up": "the node is not powered down", "power down": "the node is powering down, or is down",
    "down": "the partition is DOWN", "up": "the partition is UP", "inactive": "the partition is INACTIVE",
    "reserve": "the reservation is there", "unreserve": "the reservation is not there",
}  # fmt: skip
"""What shows that a step is done, in words."""
_PARTITION_STATES: dict[Do, str] = {"down": "DOWN", "up": "UP", "inactive": "INACTIVE"}


class SlurmChange(ChangeStep[Do], frozen=True):
    """Of a workload, node, partition or reservation. `value`: a QOS, a priority, a partition or the reason of a
    drain."""

    reservation: ReservationWish | None = None
    needed: bool = True
    """False: the intent is carried out although this is refused."""


class SlurmReading(StepReading, frozen=True):
    setting: str = ""
    """As it is set now, of what the step sets; of a job that is to end or begin anew, how often it was put back."""


class JobChangeApi(Protocol):
    """The part of a Slurm connection that changes jobs, nodes and reservations."""

    def boot(self) -> str: ...

    def job(self, id_: int, /) -> Job: ...
    def jobs(self, since: int | None = None) -> JobList: ...
    def node(self, name: str, /) -> Node: ...
    def partitions(self) -> Sequence[SlurmPartition]: ...
    def reservations(self) -> Sequence[SlurmReservation]: ...
    def cancel(self, id_: int, /) -> None: ...
    def hold(self, id_: int, /) -> None: ...
    def release(self, id_: int, /) -> None: ...
    def put_back(self, id_: int, /) -> None: ...
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
) -> list[tuple[SlurmChange, Job | None]]:
    """Return the steps of a command, in order, each with the job that is meant."""
    steps = [(step, job_of(step.target) if step.do in OF_JOBS else None) for step in _steps(command, number)]
    if isinstance(command, cmd.Drain):
        return steps + _put_back_steps(far, lambda job: not set(command.ids).isdisjoint(job.nodes))
    if isinstance(command, cmd.DrainQueues):
        return steps + _put_back_steps(far, lambda job: job.partition in command.names)
    return steps


def read_back(command: cmd.AnyCommand) -> str:
    """Describe the reading of Slurm that shows the command is done."""
    return "; ".join(dict.fromkeys(READ_BACK[step.do] for step in _steps(command, 0)))


def _steps(command: cmd.AnyCommand, number: int) -> Iterator[SlurmChange]:
    match command:
        case cmd.Cancel(ids=ids):
            yield from (SlurmChange("cancel", id_) for id_ in ids)
        case cmd.Hold(ids=ids):
            yield from (SlurmChange("hold", id_) for id_ in ids)
        case cmd.Release(ids=ids):
            yield from (SlurmChange("release", id_) for id_ in ids)
        case cmd.Requeue(ids=ids) | cmd.Preempt(ids=ids):
            yield from (SlurmChange("put back", id_) for id_ in ids)
        case cmd.SetQos(ids=ids, qos=qos):
            yield from (SlurmChange("set qos", id_, qos) for id_ in ids)
        case cmd.SetPriority(ids=ids, priority_class=to):
            found = TIER.fullmatch(to)
            yield from (SlurmChange("set qos", id_, found["qos"] if found else to) for id_ in ids)
        case cmd.SetJobPriority(ids=ids, priority=priority):
            yield from (SlurmChange("set priority", id_, str(priority)) for id_ in ids)
        case cmd.MoveToQueue(ids=ids, queue=queue):
            yield from (SlurmChange("move", id_, queue) for id_ in ids)
        case cmd.Cordon(ids=ids):
            yield from (SlurmChange("drain", id_, f"{REASON} i{number}: cordon") for id_ in ids)
        case cmd.Uncordon(ids=ids) | cmd.RestoreNodes(ids=ids):
            yield from (SlurmChange("resume", id_) for id_ in ids)
        case cmd.Drain(ids=ids):
            yield from (SlurmChange("drain", id_, f"{REASON} i{number}: drain") for id_ in ids)
        case cmd.PowerUp(ids=ids):
            yield from (SlurmChange("power up", id_) for id_ in ids)
        case cmd.PowerDown(ids=ids):
            yield from (SlurmChange("power down", id_) for id_ in ids)
        case cmd.HoldQueues(names=names):
            yield from (SlurmChange("down", name) for name in names)
        case cmd.OpenQueues(names=names):
            yield from (SlurmChange("up", name) for name in names)
        case cmd.DrainQueues(names=names):
            yield from (SlurmChange("inactive", name) for name in names)
        case cmd.Reserve(reservation=spec):
            wish = ReservationWish(
                name=spec.name,
                start_s=spec.start_ms // 1000,
                duration_s=max(60, (spec.end_ms - spec.start_ms) // 1000),
                nodes=spec.nodes,
                users=("root",),
                flags=("MAINT", "IGNORE_JOBS"),
            )
            yield SlurmChange("reserve", spec.name, reservation=wish)
        case cmd.Unreserve(names=names):
            yield from (SlurmChange("unreserve", name) for name in names)


def _needs(can: Capabilities) -> tuple[tuple[Capability, tuple[type[cmd.Command], ...]], ...]:
    return (
        (can.submit, (cmd.Submit,)),
        (can.cancel, (cmd.Cancel,)),
        (
            can.update_job,
            (cmd.Hold, cmd.Release, cmd.SetPriority, cmd.SetQos, cmd.SetJobPriority, cmd.MoveToQueue),
        ),
        (can.put_back, (cmd.Requeue, cmd.Preempt, cmd.Drain, cmd.DrainQueues)),
        (can.update_node, (cmd.Cordon, cmd.Drain, cmd.Uncordon, cmd.RestoreNodes, cmd.PowerUp, cmd.PowerDown)),
        (can.update_partition, (cmd.HoldQueues, cmd.OpenQueues, cmd.DrainQueues)),
        (can.reservation_write, (cmd.Reserve, cmd.Unreserve)),
    )


def lacks_of(can: Capabilities) -> dict[type[cmd.Command], str]:
    """Commands for which there is no way to this cluster, and why."""
    return {command: ability.why for ability, commands in _needs(can) if not ability for command in commands}


def ways_of(can: Capabilities, api: str) -> dict[type[cmd.Command], str]:
    """Commands that can be carried there -> by what."""
    names = {"rest": f"REST {api}", "command": "scontrol"}
    ways: dict[type[cmd.Command], dict[str, None]] = {}
    for ability, commands in _needs(can):
        for command in commands:
            if ability.by:
                ways.setdefault(command, {})[names[ability.by]] = None
    lacks = lacks_of(can)
    return {command: " and ".join(by) for command, by in ways.items() if command not in lacks}


def settings_of(command: cmd.AnyCommand) -> dict[tuple[str, str], SlurmChange]:
    """Return the settings that a command makes, by topic and target. Of a job that is cancelled nothing else
    matters."""
    return {(topic, step.target): step for step in _steps(command, 0) for topic in _topics(step.do)}


def _topics(do: Do) -> Collection[str]:
    if do == "cancel":
        return {TOPIC[job] for job in OF_JOBS if job in TOPIC}
    return (TOPIC[do],) if do in TOPIC else ()


def _put_back_steps(far: JobChangeApi, meant: Callable[[Job], bool]) -> list[tuple[SlurmChange, Job | None]]:
    """Steps that put running jobs back. The drain does not fail for a job that can only run to its end."""
    running = (job for job in far.jobs().list if job.state == "RUNNING" and meant(job))
    return [(SlurmChange("put back", str(job.id), needed=False), job) for job in running]


# -- jobs -------------------------------------------------------------------------------------------------------------


def same(meant: Job, now: Job) -> bool:
    """Return whether a job that is read is the one that was meant: one that was put back has another time of
    submission."""
    put_back = now.restarts > meant.restarts and (now.user, now.name) == (meant.user, meant.name)
    return now.id == meant.id and (now.submit_s == meant.submit_s or put_back)


def look(far: JobChangeApi, step: SlurmChange, meant: Job | None, since_s: float) -> SlurmReading:
    """Read whether a step is done, and what shows it. `since_s`: Unix time at which it was wanted: what was put back
    before that is to be put back again. Raises SlurmGone for a node that there is not, SlurmUnavailable, SlurmRefused.
    """
    if step.do in OF_JOBS:
        if meant is None:
            return SlurmReading("missing", f"{step.target}: Slurm no longer has this job")
        try:
            job = far.job(meant.id)
        except SlurmGone:
            return SlurmReading("missing", f"job {meant.id}: Slurm no longer has this job")
        if not same(meant, job):
            return SlurmReading("missing", f"job {meant.id} is now a different job")
        text = f"job {job.id} is {' '.join([job.state, *sorted(job.flags)])}"
        return SlurmReading(_look_at_job(step, job, since_s), text, _setting_of_job(step, job))
    if step.do in ("drain", "resume", "power up", "power down"):
        node = far.node(step.target)
        text = f"{node.name} is {' '.join([node.state, *sorted(node.flags)])}"
        return SlurmReading(_look_at_node(step, node), text, _setting_of_node(step, node))
    if step.do in _PARTITION_STATES:
        partition = next((each for each in far.partitions() if each.name == step.target), None)
        if partition is None:
            return SlurmReading("gone", f"Slurm has no partition {step.target}")
        done = partition.state == _PARTITION_STATES[step.do]
        return SlurmReading(
            "done" if done else "to do", f"partition {partition.name} is {partition.state}", partition.state
        )
    made = next((each for each in far.reservations() if each.name == step.target), None)
    done = (made is not None) == (step.do == "reserve")
    setting = "not made" if made is None else f"made of {','.join(made.nodes)} from {made.start_s} to {made.end_s}"
    text = f"reservation {step.target} is {'not made' if made is None else 'made'}"
    return SlurmReading("done" if done else "to do", text, setting)


def _setting_of_node(step: SlurmChange, node: Node) -> str:
    """Nothing of power: slurmctld itself changes that."""
    if step.do not in ("drain", "resume"):
        return ""
    return f"drained: {node.reason}" if "DRAIN" in node.flags else "in use"


def _setting_of_job(step: SlurmChange, job: Job) -> str:
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


def _look_at_job(step: SlurmChange, job: Job, since_s: float) -> StepStanding:
    if step.do == "cancel":
        return "done" if job.over or job.state == "CANCELLED" else "to do"
    if job.over or (step.do == "hold" and job.state != "PENDING"):
        return "gone"
    if step.do == "put back" and "COMPLETING" in (job.state, *job.flags):
        return "changing"
    done = {
        "hold": job.held,
        "release": not job.held,
        "put back": job.state == "PENDING" or (job.state == "RUNNING" and job.start_s > since_s + SKEW_S),
        "set qos": job.qos == step.value,
        "set priority": str(job.priority) == step.value,
        "move": job.partition == step.value,
    }[step.do]
    return "done" if done else "to do"


def _look_at_node(step: SlurmChange, node: Node) -> StepStanding:
    if step.do == "resume" and node.state == "UNKNOWN":
        return "changing"  # slurmctld was just started, has not heard of it yet, and refuses to resume it
    done = {
        "drain": "DRAIN" in node.flags,
        "resume": node.state != "DOWN" and not node.flags & {"DRAIN", "FAIL"},
        "power up": not node.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"},
        "power down": bool(node.flags & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}),
    }[step.do]
    return "done" if done else "to do"


def do(far: JobChangeApi, step: SlurmChange, meant: Job | None) -> None:
    """Ask Slurm for it. Raises SlurmUnavailable, SlurmRefused."""
    job = meant.id if meant is not None else 0
    match step.do:
        case "cancel":
            far.cancel(job)
        case "hold":
            far.hold(job)
        case "release":
            far.release(job)
        case "put back":
            far.put_back(job)
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
