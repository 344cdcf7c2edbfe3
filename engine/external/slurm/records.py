"""Records of what a Slurm cluster says of itself and keeps count of, the same for every release.

Times are Unix seconds, 0 = not set. Durations are seconds, memory is MiB. `None` = the release does not say, or its
word was not understood; UNLIMITED = there is no limit. What is in an answer and not understood is kept in `extra` under
its own name, so that nothing is silently lost. Text is as Slurm gave it: untrusted.

Sources: slurm.h and the data_parser plugins of 22.05 to 26.05; answers recorded of 22.05.8 and 24.11.5.
"""

from __future__ import annotations

from typing import Any

import msgspec

UNLIMITED = -1
"""A limit that Slurm calls INFINITE."""

JOB_STATES = frozenset(
    [
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
    ]
)
"""The states a job can be in; all other words are flags beside one of these."""
OVER_STATES = JOB_STATES - {"PENDING", "RUNNING", "SUSPENDED"}

NODE_STATES = frozenset(["UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE"])


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job as the controller holds it. An array's waiting tasks are one job; each task that has started is its own.

    `id` alone is no identity: a controller that crashed gives ids again. Identity is (cluster, id, submit_s, comment).
    """

    id: int
    array_id: int = 0
    """The job id of the array this belongs to; 0 = no array."""
    array_task: int | None = None
    """Which task of the array; None for the record of those still waiting."""
    array_tasks: str = ""
    """Tasks still waiting, as Slurm writes it (`2-5%2`); `engine.external.slurm.names.array_tasks` reads it."""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    """As asked: may be several, with commas, while it waits."""
    qos: str = ""
    comment: str = ""
    state: str = "PENDING"
    """One of JOB_STATES; from v0.0.38 also COMPLETING, which there hides how the job ended."""
    flags: frozenset[str] = frozenset()
    """Words beside the state, e.g. COMPLETING, CONFIGURING."""
    reason: str = ""
    """Why it is pending or how it failed, by Slurm's word, e.g. `Priority`; empty when Slurm says `None`."""
    reason_text: str = ""
    priority: int | None = None
    held: bool = False
    submit_s: int = 0
    eligible_s: int = 0
    start_s: int = 0
    """When it started; of a pending job, when the backfill scheduler expects it to (0 = it has not said)."""
    end_s: int = 0
    time_limit_s: int | None = None
    """UNLIMITED, or None from v0.0.38, which does not tell unlimited from not set."""
    nodes_min: int = 1
    cpus: int = 0
    """In all."""
    memory_mib: int | None = None
    """In all; None = all of each node, or not told."""
    memory_per_node_mib: int | None = None
    tres_wanted: dict[str, int] = {}
    """What it asks for in all: `cpu`, `mem` (MiB), `node`, `billing`, `gres/gpu`, `gres/gpu:h100`, ..."""
    tres_held: dict[str, int] = {}
    gres_wanted: dict[str, int] = {}
    """On each node: `gpu`, `gpu:h100`. From what was asked for by node; else empty (see `tres_wanted`)."""
    nodes: tuple[str, ...] = ()
    """Held now, or at the end."""
    cpus_on: dict[str, int] | None = None
    memory_on: dict[str, int] | None = None
    gpus_on: dict[str, tuple[int, ...]] | None = None
    """Indexes of the GPUs held on each node; None = not told."""
    gres_on: dict[str, dict[str, int]] | None = None
    """Counts on each node by `gpu:h100`."""
    features: str = ""
    """Slurm's constraint expression, e.g. `h100&(rack1|rack2)`."""
    nodes_required: tuple[str, ...] = ()
    nodes_excluded: tuple[str, ...] = ()
    exclusive: bool = False
    """Takes whole nodes."""
    contiguous: bool = False
    switches: int = 0
    """At most so many leaf switches; 0 = any."""
    dependency: str = ""
    deadline_s: int = 0
    restarts: int = 0
    requeue: bool | None = None
    """Slurm may put it back by itself (`--requeue`); None: not told."""
    exit_status: int | None = None
    """The return code; None before the end, or when a signal ended it."""
    signal: int | None = None
    """The signal that ended it."""
    reservation: str = ""
    licenses: str = ""
    het_id: int = 0
    """The first job of the heterogeneous job this is a part of; 0 = none."""
    workdir: str = ""
    stdout: str = ""
    """File that it writes, with Slurm's patterns filled in as far as they are known."""
    stderr: str = ""
    """The same for errors; empty or the same where they go to one file."""
    cluster: str = ""
    extra: dict[str, Any] = {}

    @property
    def over(self) -> bool:
        """True once the job has ended and holds nothing any more."""
        return self.state in OVER_STATES and "COMPLETING" not in self.flags

    @property
    def holding(self) -> bool:
        """True while the job has nodes: running, suspended, or on its way out."""
        return self.state in ("RUNNING", "SUSPENDED", "COMPLETING") or "COMPLETING" in self.flags


class JobList(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to `jobs(since)`. With `unchanged` the list is empty and means nothing."""

    list: tuple[Job, ...] = ()
    last_update: int = 0
    """Give this as the next `since`."""
    unchanged: bool = False
    malformed: tuple[str, ...] = ()
    """One line for each entry that could not be read at all and is left out, by its id and why."""


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """The short answer of v0.0.40 and on (`jobs/state`), or of `squeue`: what is needed to see that a job moved."""

    id: int
    """0 in v0.0.40 and .41 for a task of an array, where only the array's id is told."""
    state: str
    flags: frozenset[str] = frozenset()
    array_id: int = 0
    array_task: int | None = None
    array_tasks: str = ""
    held: bool | None = None
    """None: not told, as by `jobs/state`."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str = "UNKNOWN"
    """One of NODE_STATES."""
    flags: frozenset[str] = frozenset()
    """Such as DRAIN, CLOUD, POWERED_DOWN, POWERING_UP, NOT_RESPONDING, RESERVED, PLANNED."""
    cpus: int = 0
    """What jobs can have: without specialised ones."""
    memory_mib: int = 0
    gres: dict[str, int] = {}
    """By name and model: `gpu:h100` 8; `gpu` where no model is configured."""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    reason: str = ""
    switch: str = ""
    """The leaf switch, where the release's REST or `scontrol show topology` says it."""
    instance_type: str = ""
    address: str = ""
    """Name or address by which slurmctld reaches it (NodeAddr)."""
    extra: dict[str, Any] = {}


class SlurmNodes(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to `nodes(since)`, as `JobList`."""

    list: tuple[Node, ...] = ()
    last_update: int = 0
    unchanged: bool = False


class SlurmPartition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str = "UP"
    """UP, DOWN (takes jobs, starts none), DRAIN (takes none, runs on), INACTIVE."""
    nodes: tuple[str, ...] = ()
    time_limit_s: int | None = None
    nodes_max: int | None = None
    """For one job."""
    nodes_min: int = 0
    tier: int = 1
    """Jobs of a higher tier are looked at first and, with preemption by partition, take from lower ones."""
    preempt_mode: str = ""
    """By Slurm's word, such as SUSPEND or OFF; empty = as the cluster."""
    qos: str = ""
    exclusive: bool = False
    """Each job has its nodes to itself."""
    oversubscribe: int = 1
    extra: dict[str, Any] = {}


class SlurmReservation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    start_s: int = 0
    end_s: int = 0
    nodes: tuple[str, ...] = ()
    cores: int = 0
    flags: frozenset[str] = frozenset()
    """Such as MAINT, IGNORE_JOBS, DAILY, SPEC_NODES."""
    tres: dict[str, int] = {}
    extra: dict[str, Any] = {}


class TopologySwitch(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `scontrol show topology` (topology/tree)."""

    name: str
    level: int = 0
    """0 = a leaf: its nodes hang on it."""
    nodes: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job to submit. Zero or empty = Slurm's default."""

    name: str
    script: str
    """Whole, with its `#!` line."""
    environment: dict[str, str] = msgspec.field(default_factory=lambda: {"PATH": "/bin:/usr/bin:/usr/local/bin"})
    """Slurm refuses a job without one; a shell needs PATH at least."""
    workdir: str = "/tmp"
    comment: str = ""
    """Where the token goes by which the job is found again."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    nodes: int = 0
    """Exactly so many."""
    tasks: int = 0
    tasks_per_node: int = 0
    cpus_per_task: int = 0
    memory_per_cpu_mib: int = 0
    gres_per_node: dict[str, int] = {}
    """`gpu` or `gpu:h100` to a count."""
    time_limit_s: int = 0
    """Rounded up to whole minutes: Slurm's unit."""
    features: str = ""
    array: str = ""
    """`0-9%3`."""
    dependency: str = ""
    reservation: str = ""
    begin_s: int = 0
    deadline_s: int = 0
    held: bool = False
    requeue: bool | None = None
    """Whether Slurm may put it back by itself; None: as slurm.conf says (JobRequeue)."""


class AcceptedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Slurm gave the job an id. That it will keep it is not said: see `Job.id`."""

    id: int
    soft: tuple[str, ...] = ()
    """What it said beside it without refusing, e.g. that the job is held or cannot run at present."""


class ReservationWish(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation to create, of these nodes for these users."""

    name: str
    start_s: int
    duration_s: int
    nodes: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Such as MAINT, IGNORE_JOBS."""


class Qos(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    priority: int = 0
    preempts: tuple[str, ...] = ()
    """Names of the QOS it may take from."""
    wall_limit_s: int | None = None
    """For each job."""
    jobs_per_user: int | None = None
    """Running at once; UNLIMITED, or None where v0.0.38 cannot tell."""
    jobs_per_account: int | None = None
    jobs_total: int | None = None
    """Running at once, of everybody together (GrpJobs)."""
    submitted_per_user: int | None = None
    submitted_per_account: int | None = None
    tres_per_user: dict[str, int] = {}
    tres_per_job: dict[str, int] = {}
    tres_per_account: dict[str, int] = {}
    tres_total: dict[str, int] = {}
    """All running jobs of this QOS together."""


class Association(msgspec.Struct, frozen=True, kw_only=True):
    """An account, or a user's place in one, as slurmdbd keeps it."""

    account: str
    user: str = ""
    """Empty = the account itself."""
    cluster: str = ""
    partition: str = ""
    parent: str = ""
    jobs_max: int | None = None
    """Of one user, running at once; of an account: of each of its users who has no limit of his own."""
    jobs_total: int | None = None
    """Of all under it together (GrpJobs)."""
    submitted_max: int | None = None
    submitted_total: int | None = None
    wall_limit_s: int | None = None
    tres_total: dict[str, int] = {}
    """All running jobs under it together (GrpTRES)."""
    tres_per_job: dict[str, int] = {}


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Fair share of an account or a user in it, as `sshare`."""

    account: str
    user: str = ""
    parent: str = ""
    shares: int | None = None
    shares_normalized: float | None = None
    usage_s: int = 0
    """Decayed TRES-seconds (billing)."""
    usage_effective: float | None = None
    factor: float | None = None
    """0 to 1, what the priority plugin multiplies; None for accounts under fair tree."""
    level: float | None = None


class RpcCount(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    count: int = 0
    total_us: int = 0


class Diag(msgspec.Struct, frozen=True, kw_only=True):
    """`sdiag`: what load slurmctld is under. Times of cycles in microseconds."""

    since_s: int = 0
    """Statistics count from here: a restart of slurmctld, or their reset (each day, or by hand)."""
    cycle_mean_us: int = 0
    backfill_last_us: int = 0
    rpcs_by_user: tuple[RpcCount, ...] = ()


class JobStep(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """`batch`, `extern`, or a number."""
    name: str = ""
    state: str = ""
    nodes: tuple[str, ...] = ()
    tasks: int = 0
    start_s: int = 0
    end_s: int = 0
    exit_status: int | None = None
    signal: int | None = None
    tres: dict[str, int] = {}


class PastJob(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job as accounting has it: a job that went back to its queue has several with one id."""

    id: int
    array_id: int = 0
    array_task: int | None = None
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    comment: str = ""
    state: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    submit_s: int = 0
    start_s: int = 0
    end_s: int = 0
    time_limit_s: int | None = None
    exit_status: int | None = None
    signal: int | None = None
    restarts: int | None = None
    tres_wanted: dict[str, int] = {}
    tres_held: dict[str, int] = {}
    steps: tuple[JobStep, ...] = ()
