"""The report of a mirror, for people, with counts of what Slurm goes by and the mirror does not.

`MirrorReport` is about the cluster, `Mirrored` about one job. `UnsupportedCounts` notes each unsupported thing once,
with how often it was met. Texts in all of them come from Slurm and are untrusted.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.external.slurm.limits import Limit, reason_words
from engine.external.slurm.records import Job, JobStep, Share

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


class MirrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that came from Slurm are in here: untrusted."""

    where: str
    """URL or socket of slurmrestd; empty where the cell is not mirrored."""
    state: Literal["none", "starting", "following", "lost"]
    release: str = ""
    """Of Slurm, such as 24.11.5."""
    dialect: str = ""
    """Version of its REST API that is spoken."""
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


NOT_MIRRORED = MirrorReport(where="", state="none")


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
    exit_status: int | None = None
    signal: int | None = None
    stdout: str = ""
    workdir: str = ""
    limits: tuple[Limit, ...] = ()
    """That the reason is about; those first that it would exceed now."""
    steps: tuple[JobStep, ...] = ()
    """While it runs, as far as Slurm can be asked."""

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
            exit_status=job.exit_status,
            signal=job.signal,
            stdout=job.stdout,
            workdir=job.workdir,
            limits=limits,
            steps=steps,
        )
