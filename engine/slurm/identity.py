"""Which workload of the cell a job of Slurm is. A job id alone is not enough: after a crash of its controller Slurm
gives ids again, so a job that was submitted at another time without having been put back is another job.

`123`; `123/4` for task 4 of array 123; `123.2` for the second job that was ever given that id; the name a person chose
where the job was submitted through Muster.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from engine.slurm.records import Job

_TOKEN = re.compile(r"\bmuster:(\S+)")
"""The part of a job's comment by which Muster finds what it submitted."""
SKEW_S = 5
"""By so much the clocks of Slurm and of the cell may differ."""
_NAME = re.compile(r"(\d+(?:/\d+)?)(?:\.(\d+))?")


class Identities:
    """Names that were given, and to which job: kept over looks, and found again from the cell after a restart."""

    def __init__(self, known: Iterable[tuple[str, int, int]] = ()) -> None:
        """`known`: (workload id, Unix seconds of submission, times put back) of what the cell has."""
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

    def name_of(self, job: Job, task: int | None = None, named: Mapping[str, str] | None = None) -> str:
        """The workload id of the job, or of one waiting task of its array. `named`: token -> id that was asked for."""
        chosen = _chosen(job, named)
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


def _chosen(job: Job, named: Mapping[str, str] | None) -> str:
    """The id that was asked for where it was submitted through Muster; empty for others."""
    found = _TOKEN.search(job.comment) if named and job.comment else None
    return named.get(found[1], "") if found and named else ""
