"""A Slurm that exists only in memory, with its own time and every way of failing that the real one has: answers that do
not come, requests that come late, a crash that forgets what it had accepted, ids that are given again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import msgspec
from cells import small_cell

from engine.control import Engine
from engine.external.intent_carrier import carried_since, newer
from engine.external.observed_changes import new_intent
from engine.external.slurm.capabilities import SlurmGone, SlurmRefused, SlurmUnavailable
from engine.external.slurm.job_requests import token_in
from engine.external.slurm.records import AcceptedJob, Diag, Job, JobList, JobRequest, Node, PastJob, SlurmNodes
from engine.model.commands import AnyCommand, IntentChange, SettleIntents
from engine.state.external_cell import Intent, Phase

SAVED_WITHIN_S = 5.0
HELD_AT_MAX_S = 50.0
"""How late a request may still come."""
MIN_JOB_AGE_S = 300.0
FAULTS = ("lost request", "lost answer", "late", "crash before", "crash after", "error after")


class MadeUpSlurm:
    """`faults`: chance that a submission meets one."""

    def __init__(self, rng: random.Random, faults: float = 0.0, *, runs: bool = True) -> None:
        self.rng = rng
        self.faults = faults
        self.runs = runs
        self.now = 1000.0
        self.up = True
        self.since = 900
        self.says_ended_kept_s = 0.0
        self.says_boot = True
        """Whether it tells when it started: only by Slurm's own commands."""
        self.machines = {"node1": "127.0.0.1"}
        """Name -> address."""
        self.next_id = 1
        self.jobs: dict[int, Job] = {}
        self.finished: Counter[str] = Counter()
        """Token -> how often a job with it ran to its end."""
        self._saved: tuple[int, dict[int, Job]] = (1, {})
        self._dirty_since: float | None = None
        self._late: list[tuple[float, JobRequest]] = []
        self.given_again = 0
        """Ids that were given a second time."""
        self._highest = 0

    # -- time and crashes ---------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            due, self._late = (
                [entry for entry in self._late if entry[0] <= self.now],
                [entry for entry in self._late if entry[0] > self.now],
            )
            if not self.up:
                # What slurmrestd holds waits for slurmctld, as long as it may.
                self._late += [
                    (self.now + 0.5, wish) for at, wish in due if self.now - at < 1.0 and self.rng.random() < 0.9
                ]
                continue
            for _, wish in due:
                self._take(wish)
            if self.runs:
                self._run()
            if self._dirty_since is not None and self.now - self._dirty_since > self.rng.uniform(0, SAVED_WITHIN_S):
                self._saved, self._dirty_since = (self.next_id, dict(self.jobs)), None

    def _run(self) -> None:
        for job in list(self.jobs.values()):
            if job.state == "PENDING" and not job.held and self.rng.random() < 0.02:
                self._put(msgspec.structs.replace(job, state="RUNNING", start_s=int(self.now)))
            elif job.state == "RUNNING" and self.rng.random() < 0.01 and job.id in self._saved[1]:
                # Not before it was saved: what Slurm forgets after it has ended nobody can know of.
                self._put(msgspec.structs.replace(job, state="COMPLETED", end_s=int(self.now)))
                self.finished[token_in(job)] += 1
            elif job.state in ("COMPLETED", "CANCELLED") and self.now - job.end_s > MIN_JOB_AGE_S:
                del self.jobs[job.id]

    def crash(self) -> None:
        self.up = False
        # An ended job is remembered as long as its end was saved; what ran goes on.
        self.next_id, jobs = self._saved
        ended = {job.id for job in self.jobs.values() if job.state == "COMPLETED"}
        self.jobs = {id_: self.jobs[id_] if id_ in ended else job for id_, job in jobs.items()}

    def restart(self) -> None:
        if not self.up:
            self.up = True
            self.since = max(int(self.now), self.since + 1)
            self._dirty_since = None

    def _put(self, job: Job) -> None:
        self.jobs[job.id] = job
        self._dirty_since = self.now if self._dirty_since is None else self._dirty_since

    def _take(self, wish: JobRequest) -> int:
        id_ = self.next_id
        self.next_id += 1
        self.given_again += id_ <= self._highest
        self._highest = max(self._highest, id_)
        self._put(
            Job(id=id_, name=wish.name, comment=wish.comment, user="muster", submit_s=int(self.now), held=wish.held)
        )
        return id_

    # -- what a connection offers -------------------------------------------------------------------------------------

    def _refuse_when_down(self) -> None:
        if not self.up:
            raise SlurmUnavailable("slurmctld does not answer", answered=True, arrived=False)

    def submit(self, wish: JobRequest) -> AcceptedJob:
        self._refuse_when_down()
        if self.rng.random() < self.faults:
            fault = self.rng.choice(
                ("lost request", "lost answer", "late", "crash before", "crash after", "error after")
            )
            if fault == "lost answer":
                self._take(wish)
            elif fault == "late":
                self._late.append((self.now + self.rng.uniform(0, HELD_AT_MAX_S), wish))
            elif fault == "crash after":
                self._take(wish)
                self.crash()
                raise SlurmUnavailable("connection reset", answered=True)
            elif fault == "crash before":
                self.crash()
                raise SlurmUnavailable("connection reset", answered=True)
            elif fault == "error after":
                self._take(wish)
                raise SlurmUnavailable("socket timed out", answered=True)
            raise SlurmUnavailable("no answer")
        return AcceptedJob(id=self._take(wish))

    def other_submits(self) -> None:
        """Somebody else, in between."""
        if self.up:
            self._take(JobRequest(name="other", script="", comment="of somebody else"))

    def jobs_list(self) -> tuple[Job, ...]:
        return tuple(self.jobs.values())

    def job(self, id: int) -> Job:
        self._refuse_when_down()
        if id not in self.jobs:
            raise SlurmGone(2017, f"there is no job {id}")
        return self.jobs[id]

    def cancel(self, id: int) -> None:
        self._put(msgspec.structs.replace(self.job(id), state="CANCELLED", end_s=int(self.now)))

    def ended_kept_s(self) -> float:
        return self.says_ended_kept_s

    def boot(self) -> str:
        self._refuse_when_down()
        return str(self.since) if self.says_boot else ""

    def diag(self) -> Diag:
        self._refuse_when_down()
        return Diag(asked_s=int(self.now), since_s=self.since)

    def nodes(self, since: int | None = None) -> SlurmNodes:
        return SlurmNodes(list=tuple(Node(name=name, address=address) for name, address in self.machines.items()))

    def spool(self) -> str:
        return ""

    def history(self, since: int) -> Sequence[PastJob]:
        raise SlurmRefused(0, "there is no accounting")


class Connection:
    """The made-up Slurm as the driver sees it."""

    def __init__(self, slurm: MadeUpSlurm) -> None:
        self.submit, self.job, self.cancel = slurm.submit, slurm.job, slurm.cancel
        self.diag, self.history, self.ended_kept_s = slurm.diag, slurm.history, slurm.ended_kept_s
        self.boot, self.nodes, self.spool = slurm.boot, slurm.nodes, slurm.spool
        self._slurm = slurm

    def jobs(self, since: int | None = None) -> JobList:
        self._slurm._refuse_when_down()
        return JobList(list=self._slurm.jobs_list())


class OneByOne(Executor):
    """Does what it is given at once, in order."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def map(self, fn: Any, *iterables: Iterable[Any], timeout: Any = None, chunksize: int = 1) -> Iterator[Any]:
        return iter([fn(*args) for args in zip(*iterables, strict=False)])


def live(slurm: MadeUpSlurm, token: str) -> list[Job]:
    """Jobs of that token that have run, run or will run."""
    return [job for job in slurm.jobs.values() if token_in(job) == token and job.state != "CANCELLED"]


class EngineLedger:
    """The journalled side, in the same thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def new(self, after: int) -> list[Intent]:
        return newer(self.engine, after)

    def settle(self, changes: Sequence[IntentChange]) -> None:
        self.engine.command(SettleIntents(changes=tuple(changes)))

    def carried_since(self, number: int) -> list[Intent]:
        return carried_since(self.engine, number)


def outside_cell() -> Engine:
    cell = small_cell()
    settings = msgspec.structs.replace(cell.settings, decided_by="slurm")
    engine = Engine.open(None, cell=msgspec.structs.replace(cell, settings=settings))
    engine.acts = True
    return engine


def decided_by_slurm(engine: Engine) -> None:
    """Has a cell that is there already be one that Slurm decides on, past the door: its settings never change."""
    engine.state.settings = msgspec.structs.replace(engine.state.settings, decided_by="slurm")


def put_in_doubt(engine: Engine, command: AnyCommand, job: int = 0) -> int:
    """An intent of which nobody can tell whether it happened; its number. Past the check at the door, which asks the
    mirrored state."""
    with engine._turn():
        number = engine.state.intents.issued
        engine._emit(new_intent(number, command))
    for phase in (Phase.SENT, Phase.ACCEPTED, Phase.IN_DOUBT):
        text = "it is so no longer" if phase == Phase.IN_DOUBT else ""
        change = IntentChange(number=number, phase=phase, job=job, submit_s=1 if job else 0, text=text)
        engine.command(SettleIntents(changes=(change,)))
    return number
