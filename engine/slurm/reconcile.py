"""What became of a submission, by what is known of it and a whole list of Slurm's jobs. Pure: it decides, others act.

Slurm alone is at most once: jobs that were accepted vanish when slurmctld is killed before it has saved them, and their
ids are given to others. Sending again what is not heard of is at least once: a job that was only slow in coming would
run twice. Exactly once needs to know, before anything is sent again, that nothing of it is there and that nothing of it
can still come:

- A list of jobs counts only when slurmctld was one and the same process from before it was asked for until after
  (`Look`), as told by the time since when it counts its statistics.
- A job that was accepted is safe once the same slurmctld has lived for SAFE_S longer: it has been saved.
- A job that was accepted by an earlier slurmctld and is not in the list was lost with it, unless it may have ended and
  been dropped from the list meanwhile.
- A request of which nobody knows whether it arrived may still be under way, in slurmrestd or in slurmctld's own queue:
  it is dead when the slurmctld that it was meant for has ended after slurmrestd had let go of it, or QUARANTINE_S
  after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from engine.slurm.records import Job
from engine.slurm.submission import head_in, head_of, token_in

SAFE_S = 20.0
"""slurmctld saves its state at the latest 5 s after a change (SAVE_MAX_WAIT); writing it takes its time under load."""
QUARANTINE_S = 75.0
"""Longer than slurmrestd and slurmctld hold on to a request: each waits MessageTimeout (10 s by default) to connect and
again for an answer, and a busy slurmctld serves what it has read even when nobody waits for it any more."""
PURGED_S = 240.0
"""Slurm keeps an ended job in its list for MinJobAge, 300 s by default: beyond this one not listed may just have
ended."""

Verdict = Literal["there", "lost", "wait", "unknown"]


class Look(msgspec.Struct, frozen=True):
    """A whole list of jobs, and the slurmctld that gave it."""

    at_s: float
    """Our own clock, before it was asked for; the clock of all times here."""
    epoch: int
    """Since when that slurmctld counts: another value is another process."""
    up_s: float
    """For how long that is."""
    jobs: tuple[Job, ...]


class Sent(msgspec.Struct, frozen=True):
    """A submission that went out, as the driver remembers it."""

    token: str
    attempted_s: float
    """End of the last attempt, successful or not."""
    epoch: int
    """Of the slurmctld it was sent to, read before. -1: not known, as after a restart of ours."""
    accepted: bool
    """It was given an id."""
    answered: bool
    """slurmrestd gave an answer: nothing of it is under way there any more."""
    arrived: bool = True
    """False: it is known not to have reached slurmctld."""
    seen_s: float = 0.0
    """When the slurmctld it was sent to was last seen alive."""


class Found(msgspec.Struct, frozen=True):
    verdict: Verdict
    job: Job | None = None
    """The one that is kept."""
    surplus: tuple[Job, ...] = ()
    """Others with the same token, which have not ended: to be cancelled."""
    why: str = ""


class Index:
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


def judge(sent: Sent, look: Look, found: Sequence[Job]) -> Found:
    """What became of it. `found`: jobs of the list with its token."""
    if found:
        return _there(found)
    age_s = look.at_s - sent.attempted_s
    if age_s < 0:
        return Found("wait", why="the list is older than the attempt")
    another = look.epoch != sent.epoch and sent.epoch >= 0
    # A job ends, and is dropped from the list, only while a slurmctld lives.
    lived_s = min(age_s, max(0.0, sent.seen_s - sent.attempted_s) + look.up_s) if another else age_s
    if sent.accepted:
        if lived_s > PURGED_S:
            return Found("unknown", why="it was accepted long ago and is not in Slurm's list any more")
        if another or sent.epoch < 0:
            return Found("lost", why="slurmctld was restarted and has forgotten it")
        return Found("wait", why="it was accepted and is not listed yet")
    if not sent.arrived:
        return Found("lost", why="it did not reach slurmctld")
    if lived_s > PURGED_S:
        return Found("unknown", why="nobody knows whether it arrived, and it would not be in Slurm's list any more")
    if another and sent.answered:
        return Found("lost", why="the slurmctld it was sent to has ended without it")
    if age_s > QUARANTINE_S:
        return Found("lost", why="it did not arrive")
    return Found("wait", why="it may still arrive")


def _there(found: Sequence[Job]) -> Found:
    """Which of several is kept: what has ended well or runs before what waits, then the earlier. Tasks of one array are
    no copies of each other."""
    by_array: dict[int, Job] = {}
    for job in found:
        by_array.setdefault(job.array_id or job.id, job)
    jobs = sorted(by_array.values(), key=_worth)
    surplus = tuple(job for job in jobs[1:] if not job.over)
    return Found("there", jobs[0], surplus)


def _worth(job: Job) -> tuple[int, int, int]:
    order = 0 if job.state == "COMPLETED" else 1 if job.holding else 2 if job.state == "PENDING" else 3
    return order, job.submit_s, job.id
