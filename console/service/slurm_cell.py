"""The mirror of a Slurm cluster in an engine's process: connection, mirror, watcher, and their answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.executors.task_files import MAX_BYTES, OutputPart
from engine.external.mirror_report import Mirrored, MirrorReport
from engine.external.slurm.capabilities import SlurmRefused, SlurmUnavailable
from engine.model.errors import NotFoundError
from recommender.history.metrics import OutsideNames
from runbooks.gate.approval_gate import wall_ms

if TYPE_CHECKING:
    from engine.executors.task_files import OutputRequest
    from engine.external.intent_carrier import Recorded
    from engine.external.slurm.change_carrier import Forbidden, SlurmDriver
    from engine.external.slurm.records import Job, JobStep
    from engine.loop import EngineLoop
    from engine.model.external_cells import FarLook
    from engine.state.external_cell import Intent


EVIDENCE_S = 3.0
EVIDENCE_SHARE = 20
"""What Slurm shows of an intent is asked for again after so long, and after so many times as long as it took."""
EVIDENCE_KEPT = 50
"""Intents of which that is remembered."""
EVIDENCE_WAIT_S = 5.0
"""For the look of somebody else: Slurm is asked for one at a time, however many look."""
READ_KEPT = 1_000
"""Jobs of which it is remembered where their output is."""


@dataclass(frozen=True)
class SlurmAt:
    """The cluster, and the account on it."""

    where: str
    """URL, or path of a Unix socket, of slurmrestd."""
    user: str = ""
    token_file: Path | None = None
    acts: bool = False
    """Whether what is decided here is carried out there; else it is only looked at."""


class SlurmCell:
    """The mirror of one engine loop."""

    def __init__(
        self,
        loop: EngineLoop,
        at: SlurmAt,
        recorded: Recorded = lambda engine, changes: None,
        forbidden: Forbidden = lambda engine, number: "",
    ) -> None:
        from engine.external.slurm.connection import SlurmConnection
        from engine.external.slurm.mirror_passes import Mirror
        from engine.external.slurm.mirror_watch import Watcher

        self.at = at
        self._evidence: dict[int, tuple[float, FarLook]] = {}
        """Number of an intent that was looked at -> until when, by the monotonic clock, that will do."""
        self._looking = threading.Lock()
        self._read_of: dict[str, Job] = {}
        """Workload -> its job, of those whose output was read: Slurm forgets a job while somebody still reads."""
        self.connection = SlurmConnection(at.where, user=at.user or None, token_file=at.token_file)
        self.mirror = Mirror(self.connection, loop.call)
        self.watcher = Watcher(self.connection, self.mirror, where=at.where, user=at.user, acts=at.acts)
        self.driver: SlurmDriver | None = None
        """Where Muster may act on the cluster."""
        if at.acts:
            from engine.external.slurm.change_carrier import SlurmDriver

            loop.engine.acts = True
            self.driver = SlurmDriver(
                self.connection, loop, self.mirror.job_of, acted=self.watcher.poke, missing=self.mirror.missing,
                knows_jobs=self.mirror.has_looked, recorded=recorded, forbidden=forbidden,
            )  # fmt: skip

    def start(self) -> None:
        self.watcher.start()
        if self.driver is not None:
            self.driver.start()

    def stop(self) -> None:
        if self.driver is not None:
            self.driver.stop()
        self.watcher.stop()
        self.connection.close()

    def report(self) -> MirrorReport:
        report = self.watcher.report()
        return report if self.driver is None else msgspec.structs.replace(report, trouble=self.driver.trouble)

    def trouble(self) -> str:
        """Reason why the view of the cluster is old; empty while it is fresh."""
        from console.views.external_scheduler import mirror_trouble

        return mirror_trouble(self.report(), time.time())

    def mirrored(self, workload_id: str) -> Mirrored:
        """Slurm's data on the job that the workload mirrors, which is kept fresh for a while. Raises NotFoundError."""
        job = self.mirror.job_of(workload_id)
        if job is None:
            raise NotFoundError(
                f"Slurm shows no job for workload '{workload_id}'",
                "It may have ended: Slurm drops finished jobs after minutes, the cell keeps them",
            )
        self.watcher.track(workload_id)
        limits = self.watcher.rules.stopping(job) if job.state == "PENDING" else ()
        return Mirrored.of(workload_id, job, limits, self._steps(job))

    def outside_names(self, ids: Sequence[str]) -> OutsideNames:
        """The jobs that these workloads mirror, by their numbers: `SLURM_JOB_ID` of each."""
        jobs = ((name, self.mirror.job_of(name)) for name in ids)
        return OutsideNames(jobs={str(job.id): name for name, job in jobs if job is not None})

    def job_output(self, request: OutputRequest) -> OutputPart:
        """A stretch of a file that the job of a workload writes. Raises NotFoundError, and RefusedError with the
        reason why it cannot be read here."""
        from engine.external.slurm.job_output import output_files, read_output

        job = self.mirror.job_of(request.id) or self._read_of.get(request.id)
        if job is None:
            raise NotFoundError(
                f"which files '{request.id}' has written is not known", "Slurm forgets a job minutes after its end"
            )
        self._read_of.pop(request.id, None)
        self._read_of[request.id] = job
        if len(self._read_of) > READ_KEPT:
            del self._read_of[next(iter(self._read_of))]
        self.watcher.track(request.id)
        files = output_files(job)
        if not files:
            raise NotFoundError(f"job {job.id} names no file that it writes to", "It may write to somebody's terminal")
        names = tuple(files)
        name = request.task or "0"
        name = names[int(name)] if name.isdecimal() and int(name) < len(names) else name
        if name not in files:
            raise NotFoundError(f"job {job.id} has no file {request.task[:80]!a}", f"There is {', '.join(names)}")
        # Looked at before: what it wrote last is there once it is over.
        part = read_output(job, name, request.offset, max(0, min(request.most, MAX_BYTES)))
        return OutputPart(
            id=request.id, attempt=job.restarts + 1, task=name, data=part.data, offset=part.offset, end=part.end,
            over=job.over, path=files[name], node=next(iter(job.nodes), ""), tasks=names,
        )  # fmt: skip

    def evidence(self, intent: Intent) -> FarLook | None:
        """Slurm's present data on an intent, or those of seconds ago: a page asks again and again, and Slurm may
        have to list all of its jobs."""
        if not self._looking.acquire(timeout=EVIDENCE_WAIT_S):
            from engine.model.external_cells import FarLook

            return FarLook(at_ms=wall_ms(), error="another intent is being checked; try again")
        try:
            return self._looked(intent)
        finally:
            self._looking.release()

    def _looked(self, intent: Intent) -> FarLook:
        from engine.external.slurm.submission_carrier import look

        kept = self._evidence.get(intent.number)
        if kept is not None and time.monotonic() < kept[0]:
            return kept[1]
        began = time.monotonic()
        found = look(self.connection, intent, self.mirror.job_of, wall_ms())
        ended = time.monotonic()
        self._evidence.pop(intent.number, None)
        if len(self._evidence) >= EVIDENCE_KEPT:
            del self._evidence[next(iter(self._evidence))]
        self._evidence[intent.number] = ended + max(EVIDENCE_S, EVIDENCE_SHARE * (ended - began)), found
        return found

    def has_output(self) -> bool:
        """Return whether there may be any."""
        return True

    def shown(self, ids: Sequence[str]) -> None:
        """Keep workloads fresh for a while because somebody's screen lists them."""
        from engine.external.slurm.mirror_watch import VISIBLE_S

        self.watcher.track(*ids, for_s=VISIBLE_S)

    def _steps(self, job: Job) -> tuple[JobStep, ...]:
        """Running steps of a job; none where Slurm does not tell now."""
        if job.state != "RUNNING":
            return ()
        with suppress(SlurmRefused, SlurmUnavailable):
            return self.connection.steps(job.id)
        return ()
