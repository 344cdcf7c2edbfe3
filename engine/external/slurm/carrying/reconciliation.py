"""What became of a submission, by what is known of it and a whole list of Slurm's jobs. Pure: it decides, others act.

Slurm alone is at most once: jobs that were accepted vanish when slurmctld is killed before it has saved them, and their
ids are given to others. Sending again what is not heard of is at least once: a job that was only slow in coming would
run twice. Exactly once needs to know, before anything is sent again, that nothing of it is there and that nothing of it
can still come. Which slurmctld it is that answers REST does not say reliably (the time since when it counts its
statistics is 0 for the first minutes of each), so nothing here goes by that; acts do, where `scontrol` tells:

- A job is safe when it is there at two times SAFE_S apart: if slurmctld lived on, it has saved it meanwhile; and if it
  was restarted, it had saved it before.
- A job that was accepted and is in no whole list asked for afterwards was lost, unless it may have ended and been
  dropped from the list meanwhile.
- A request of which nobody knows whether it arrived may still be under way, in slurmrestd or in slurmctld's own queue:
  it is dead after QUARANTINE_S.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from engine.external.slurm.job_submission import head_in, head_of, token_in
from engine.external.slurm.records import Job

SAFE_S = 20.0
"""slurmctld saves its state at the latest 5 s after a change (SAVE_MAX_WAIT); writing it takes its time under load."""
QUARANTINE_S = 75.0
"""Longer than slurmrestd and slurmctld hold on to a request: while slurmctld is down slurmrestd was seen to hold it for
29 s, and a busy slurmctld serves what it has read even when nobody waits for it any more."""
PURGED_S = 240.0
"""Slurm keeps an ended job in its list for MinJobAge, 300 s by default: beyond this one not listed may just have
ended, unless the cluster is known to keep them for longer."""
PURGED_SHARE = 0.8
"""So much of a MinJobAge that is known counts."""

Verdict = Literal["there", "lost", "wait", "unknown"]


class JobListing(msgspec.Struct, frozen=True):
    """A whole list of jobs."""

    at_s: float
    """Our own clock, before it was asked for; the clock of all times here."""
    jobs: tuple[Job, ...]


class SentSubmission(msgspec.Struct, frozen=True):
    """A submission that went out, as the driver remembers it."""

    attempted_s: float
    """End of the last attempt, successful or not."""
    accepted: bool
    """It was given an id."""
    arrived: bool = True
    """False: it is known not to have reached slurmctld."""
    down_s: float = 0.0
    """For how long since then slurmctld is known not to have run: nothing is dropped from its list meanwhile."""


class SubmissionMatch(msgspec.Struct, frozen=True):
    verdict: Verdict
    job: Job | None = None
    """The one that is kept."""
    surplus: tuple[Job, ...] = ()
    """Others with the same token, which have not ended: to be cancelled."""
    why: str = ""


class JobsByToken:
    """Jobs of a list by their tokens."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._by_token: dict[str, list[Job]] = {}
        self._by_head: dict[str, list[Job]] = {}
        for job in jobs:
            if token := token_in(job):
                self._by_token.setdefault(token, []).append(job)
            elif head := head_in(job):
                self._by_head.setdefault(head, []).append(job)

    def of(self, token: str, user: str = "") -> list[Job]:
        """Those of that token; of that user where it is known: anybody can write any comment."""
        found = [*self._by_token.get(token, ()), *self._by_head.get(head_of(token), ())]
        return [job for job in found if not user or not job.user or job.user == user]


def judge(sent: SentSubmission, look: JobListing, found: Sequence[Job], ended_kept_s: float = 0.0) -> SubmissionMatch:
    """What became of it. `found`: jobs of the list with its token. `ended_kept_s`: how long Slurm keeps an ended job in
    its list, 0 where that is not known."""
    if found:
        return _there(found)
    age_s = look.at_s - sent.attempted_s
    if age_s < 0:
        return SubmissionMatch("wait", why="the list is older than the attempt")
    if not sent.accepted and not sent.arrived:
        return SubmissionMatch("lost", why="it did not reach slurmctld")
    if age_s - sent.down_s > (PURGED_SHARE * ended_kept_s or PURGED_S):
        return SubmissionMatch(
            "unknown", why="it is not in Slurm's list, which would have dropped it by now if it had ended"
        )
    if sent.accepted:
        return SubmissionMatch("lost", why="slurmctld has forgotten it")
    if age_s > QUARANTINE_S:
        return SubmissionMatch("lost", why="it did not arrive")
    return SubmissionMatch("wait", why="it may still arrive")


def _there(found: Sequence[Job]) -> SubmissionMatch:
    """Which of several is kept: what has ended well or runs before what waits, then the earlier. Tasks of one array are
    no copies of each other."""
    by_array: dict[int, Job] = {}
    for job in found:
        by_array.setdefault(job.array_id or job.id, job)
    jobs = sorted(by_array.values(), key=_worth)
    surplus = tuple(job for job in jobs[1:] if not job.over)
    return SubmissionMatch("there", jobs[0], surplus)


def _worth(job: Job) -> tuple[int, int, int]:
    order = 0 if job.state == "COMPLETED" else 1 if job.holding else 2 if job.state == "PENDING" else 3
    return order, job.submit_s, job.id
