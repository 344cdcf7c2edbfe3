"""Which workload of the cell a job of Slurm is. A job id alone is not enough: after a crash of its controller Slurm
gives ids again, so a job that was submitted at another time without having been put back is another job.

`123`; `123/4` for task 4 of array 123; `123.2` for the second job that was ever given that id; the name a person chose
where the job was submitted through Muster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from engine.external.slurm.job_submission import token_in
from engine.external.slurm.records import Job

SKEW_S = 5
"""By so much the clocks of Slurm and of the cell may differ."""
_NAME = re.compile(r"(\d+(?:/\d+)?)(?:\.(\d+))?")


class RecordedSubmission(msgspec.Struct, frozen=True):
    """What is on record of a submission through Muster."""

    id: str
    """The workload id that was asked for."""
    job: int = 0
    """The job, or array, that Slurm answered with; 0: not known, or no longer."""
    tries: int = 0
    """How often it was lost there and submitted anew."""
    under_way: bool = False
    """Its submission is not settled: if Slurm forgets the job, there will be another."""


class MusterJobs:
    """Which jobs were submitted through Muster. A comment alone proves nothing: everybody sees those of others and may
    write the same. What Slurm answered with counts; where that is not on record, the first job that was seen with the
    token, of the user whom the others of ours are of."""

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
            match = _NAME.fullmatch(name)
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
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(name)
    return int(match[1].partition("/")[0])
