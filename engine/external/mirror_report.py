"""The report of a mirror, for people, with counts of what Slurm goes by and the mirror does not.

`MirrorReport` is about the cluster, `Mirrored` about one job. `UnsupportedCounts` notes each unsupported thing once,
with how often it was met. Texts in all of them come from Slurm and are untrusted.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.external.slurm.limits import Limit, reason_words
from engine.external.slurm.records import Job, JobStep, Share
from engine.model.external_cells import SchedulerName

MAX_EXAMPLES = 3


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that Slurm goes by and the mirror does not."""

    text: str
    count: int
    """How many nodes, jobs ... it is about."""
    examples: tuple[str, ...]


class UnsupportedCounts:
    """The things that were left out, each thing once with how often it was met."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def note(self, text: str, example: str, count: int = 1) -> None:
        """`example` may be empty."""
        self._counts[text] = self._counts.get(text, 0) + count
        examples = self._examples.setdefault(text, [])
        if example and len(examples) < MAX_EXAMPLES and example not in examples:
            examples.append(example)

    def add(self, other: UnsupportedCounts) -> None:
        """Count what another has counted as well."""
        for text, count in other._counts.items():
            for example in other._examples[text] or ("",):
                self.note(text, example, 0)
            self._counts[text] += count

    @property
    def any(self) -> bool:
        return bool(self._counts)

    def all(self) -> tuple[LeftOut, ...]:
        found = (
            LeftOut(text=text, count=count, examples=tuple(self._examples[text]))
            for text, count in self._counts.items()
        )
        return tuple(sorted(found, key=lambda each: (-each.count, each.text)))


class FollowedKind(msgspec.Struct, frozen=True, kw_only=True):
    """How one kind of objects of Kubernetes is followed."""

    resource: str
    state: str
    objects: int
    age_s: float
    """Seconds since anything was heard of it; -1: never."""
    trouble: str = ""


class ModelDisagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the scheduler that the model of it would not make."""

    workload: str
    text: str
    at_s: float
    """Unix seconds since when."""


class ModelAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions of the scheduler beside those of the model, since the mirror began."""

    compared: int = 0
    kept: int = 0
    """It keeps waiting what the model would start."""
    started: int = 0
    """It started what the model would not."""
    last: tuple[ModelDisagreement, ...] = ()
    """Those that still are, and the last ones that started; newest first."""


class MirrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that came from the other scheduler are in here: untrusted."""

    where: str
    """URL or socket of slurmrestd, or URL of the API server; empty where the cell is not mirrored."""
    state: Literal["none", "starting", "following", "lost"]
    scheduler: SchedulerName = "Slurm"
    release: str = ""
    """Of Slurm or Kubernetes, such as 24.11.5."""
    dialect: str = ""
    """Version of its REST API that is spoken; of Kueue's API."""
    user: str = ""
    error: str = ""
    """Why it is lost."""
    since_s: float = 0
    """Unix seconds since which it is in that state."""
    looked_s: float = 0
    """Unix seconds of the last look that succeeded."""
    every_s: float = 0
    """Wall seconds from one look to the next, by how long Slurm takes to answer."""
    jobs: int = 0
    nodes: int = 0
    looks: int = 0
    asked_s: float = 0
    """Wall seconds that Slurm took for the last whole list of jobs and nodes."""
    told_s: float = 0
    """Wall seconds until the cell had it."""
    lacks: dict[str, str] = {}
    """What cannot be asked or done there -> why."""
    left_out: tuple[LeftOut, ...] = ()
    cycle_mean_us: int = 0
    """Of slurmctld's main scheduler."""
    backfill_last_us: int = 0
    rpcs: int = 0
    """Requests slurmctld has answered since its statistics began."""
    own_rpcs: int = 0
    """Those that the user of the mirror made."""
    acts: bool = False
    """Whether what is decided here is carried out there."""
    trouble: str = ""
    """Why nothing of it can be carried there at present; empty when all is well."""
    limits: tuple[Limit, ...] = ()
    """Of QOS and accounts, with what is in use of each; a forecast does not know them."""
    shares: tuple[Share, ...] = ()
    """Fair share of accounts and of the users in them."""

    kinds: tuple[FollowedKind, ...] = ()
    """Of Kubernetes."""
    agreement: ModelAgreement | None = None


NOT_MIRRORED = MirrorReport(where="", state="none")


class SchedulerVoice(msgspec.Struct, frozen=True, kw_only=True):
    """One statement of a scheduler on a workload, as it stands: untrusted."""

    speaker: str
    about: str
    """The condition, or the pods."""
    reason: str
    text: str
    since_s: float = 0.0
    """Unix seconds; 0: not known."""


class Mirrored(msgspec.Struct, frozen=True, kw_only=True):
    """A workload's job as Slurm last showed it, and its reason in words. Times are Unix seconds, 0 = not known."""

    workload: str
    job_id: int
    state: str
    flags: tuple[str, ...] = ()
    reason: str = ""
    reason_text: str = ""
    """What Slurm adds to the code itself."""
    meaning: str = ""
    """The code in words; empty where it is not known."""
    helps: str = ""
    priority: int | None = None
    expected_s: int = 0
    """When Slurm's backfill plans to start it (`squeue --start`); 0: it has not said."""
    submit_s: int = 0
    start_s: int = 0
    end_s: int = 0
    partition: str = ""
    qos: str = ""
    account: str = ""
    user: str = ""
    restarts: int = 0
    requeue: bool | None = None
    """Slurm may put it back by itself (`--requeue`); None: not told."""
    exit_status: int | None = None
    signal: int | None = None
    stdout: str = ""
    workdir: str = ""
    limits: tuple[Limit, ...] = ()
    """That the reason is about; those first that it would exceed now."""
    steps: tuple[JobStep, ...] = ()
    """While it runs, as far as Slurm can be asked."""
    voices: tuple[SchedulerVoice, ...] = ()
    """Of a workload of Kubernetes, which has no job of Slurm: what Kueue and the scheduler of pods say."""
    disagrees: str = ""
    """Why the model of the scheduler would decide otherwise now; empty where it would not."""

    @staticmethod
    def of(workload: str, job: Job, limits: tuple[Limit, ...] = (), steps: tuple[JobStep, ...] = ()) -> Mirrored:
        found = reason_words(job.reason)
        waits = job.state == "PENDING"
        return Mirrored(
            workload=workload,
            job_id=job.id,
            state=job.state,
            flags=tuple(sorted(job.flags)),
            reason=job.reason,
            reason_text=job.reason_text,
            meaning=found.text if found else "",
            helps=found.helps if found else "",
            priority=job.priority,
            expected_s=job.start_s if waits else 0,
            submit_s=job.submit_s,
            start_s=0 if waits else job.start_s,
            end_s=job.end_s if job.over else 0,
            partition=job.partition,
            qos=job.qos,
            account=job.account,
            user=job.user,
            restarts=job.restarts,
            requeue=job.requeue,
            exit_status=job.exit_status,
            signal=job.signal,
            stdout=job.stdout,
            workdir=job.workdir,
            limits=limits,
            steps=steps,
        )
