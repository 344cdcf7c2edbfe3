"""What slurmdbd and slurmctld keep count of: QOS, associations, fair share, jobs that are past, load.

As in `engine.external.slurm.records`: times are Unix seconds, 0 = not set; None = not told; UNLIMITED = without a
limit.
"""

from __future__ import annotations

import msgspec


class Qos(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    id: int = 0
    description: str = ""
    priority: int = 0
    flags: frozenset[str] = frozenset()
    preempts: tuple[str, ...] = ()
    """Names of the QOS it may take from."""
    preempt_mode: str = ""
    grace_s: int = 0
    usage_factor: float = 1.0
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
    shares: int | None = None
    default_qos: str = ""
    qos: tuple[str, ...] = ()
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
    is_default: bool = False


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
    average_us: int = 0


class Diag(msgspec.Struct, frozen=True, kw_only=True):
    """`sdiag`: what load slurmctld is under. Times of cycles in microseconds."""

    asked_s: int = 0
    since_s: int = 0
    """Statistics count from here: a restart of slurmctld, or their reset (each day, or by hand)."""
    server_threads: int = 0
    agent_queue: int = 0
    dbd_queue: int = 0
    jobs_submitted: int = 0
    jobs_started: int = 0
    jobs_completed: int = 0
    jobs_canceled: int = 0
    jobs_failed: int = 0
    jobs_pending: int = 0
    jobs_running: int = 0
    cycle_last_us: int = 0
    cycle_mean_us: int = 0
    cycle_max_us: int = 0
    queue_length: int = 0
    backfilled: int = 0
    backfill_last_us: int = 0
    backfill_mean_us: int = 0
    backfill_max_us: int = 0
    backfill_last_s: int = 0
    backfill_depth: int = 0
    rpcs: tuple[RpcCount, ...] = ()
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
    """One attempt of a job as accounting has it: a requeued job has several with one id."""

    id: int
    array_id: int = 0
    array_task: int | None = None
    name: str = ""
    user: str = ""
    account: str = ""
    cluster: str = ""
    partition: str = ""
    qos: str = ""
    comment: str = ""
    state: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    submit_s: int = 0
    eligible_s: int = 0
    start_s: int = 0
    end_s: int = 0
    elapsed_s: int = 0
    time_limit_s: int | None = None
    exit_status: int | None = None
    signal: int | None = None
    restarts: int | None = None
    tres_wanted: dict[str, int] = {}
    tres_held: dict[str, int] = {}
    reservation: str = ""
    workdir: str = ""
    steps: tuple[JobStep, ...] = ()
