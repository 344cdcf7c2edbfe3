"""Whose each requeue of a job was, by slurmctld's own log (`SlurmctldDebug=debug`): asked for, or Slurm's own.

Slurm requeues by itself a job that it started and forgot in a crash, as it finds it on a node or misses it there. It
counts those as it counts the ones that were asked for, so the count alone says nothing.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

FORGETS_S = 10.0
"""What slurmctld did so long before it was killed may be forgotten: it saves at the latest 5 s after a change, and that
takes its time on a busy machine."""
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?\] (.*)")
_JOB = re.compile(r"\bJobId=(\d+)\b")
_TAKEN = "_slurm_rpc_submit_batch_job: JobId="
_DONE = "_job_requeue_op: JobId="
_ASKED = re.compile(r"_job_requeue_op: JobId=\d+ state \w+ reason 0 ")
"""Slurm's own give a reason, such as that the job could not be launched beside its forgotten self."""
_CARRIED_OUT = "Requeuing JobId="
"""Of either kind, beside a line that tells which."""


class Requeues(msgspec.Struct):
    """Of the last job that had an id."""

    asked_s: list[float] = []
    """When a requeue of it arrived, Unix seconds."""
    own: list[str] = []
    """Lines about each that was Slurm's own."""


def requeues_in(log: str) -> dict[str, Requeues]:
    """Job id -> what the log tells of the last job that had it."""
    found: dict[str, Requeues] = defaultdict(Requeues)
    for line in log.splitlines():
        match, job = _LINE.match(line), _JOB.search(line)
        if match is None or job is None:
            continue
        at_s = time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S")) + float(match[2] or 0)
        if _TAKEN in line:
            found[job[1]] = Requeues()
        elif _ASKED.search(line):
            found[job[1]].asked_s.append(at_s)
        elif _DONE in line or _is_own(match[3]):
            found[job[1]].own.append(match[3])
    return found


def _is_own(said: str) -> bool:
    """A line about a requeue of which no other tells."""
    return "requeu" in said.lower() and not said.startswith(_CARRIED_OUT) and "_job_requeue_op" not in said


def faults_of(
    name: str, job: str, restarts: int, wished: int, told: Requeues, killed_s: Sequence[float]
) -> Iterator[str]:
    """`wished`: how many requeues of it were approved. `killed_s`: when slurmctld was killed. One that was asked for
    again is no fault where slurmctld may have forgotten the one before."""
    asked = told.asked_s
    forgotten = sum(
        any(before <= killed <= min(then, before + FORGETS_S) for killed in killed_s)
        for before, then in pairwise(asked)
    )
    if len(asked) - forgotten > wished:
        yield (
            f"acted twice: job {job} ({name}) was asked {len(asked)} times to be requeued, {forgotten} of them "
            f"forgotten, wanted {wished} times"
        )
    if restarts > len(asked) + len(told.own):
        yield (
            f"acted twice: job {job} ({name}) was put back {restarts} times: asked {len(asked)} times, "
            f"{len(told.own)} times Slurm's own doing"
        )
