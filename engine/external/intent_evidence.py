"""What Slurm shows of an intent, and what became of a submission by that.

What became of a submission, by what is known of it and a whole list of Slurm's jobs. Pure: it decides, others act.

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

What Slurm shows now of an intent, for a person who has to say what came of it: read anew, whatever the mirror holds.

Nothing is changed. What cannot be read is said instead: a cluster that is away leaves a doubt as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from engine.external.slurm import job_requests
from engine.external.slurm.capabilities import SlurmGone, SlurmRefused
from engine.external.slurm.job_requests import carries, head_in, head_of, token_in
from engine.external.slurm.records import Job, PastJob
from engine.model import commands as cmd
from engine.model.errors import MusterError
from engine.model.external_cells import FarLook
from engine.state.external_cell import Intent, wanted

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


MOST = 20
"""Things of one intent that are looked at."""
BEFORE_S = 60
"""By so much the clocks of Slurm and of the cell may differ."""


def look(far: Any, intent: Intent, job_of: job_requests.JobOf, now_ms: int) -> FarLook:
    """`far` is a `SlurmConnection`."""
    command = wanted(intent)
    try:
        since_s, since_by = _started(far)
        lines, shows = (
            _submission(far, intent) if isinstance(command, cmd.Submit) else _act(far, intent, command, job_of)
        )
    except MusterError as error:
        return FarLook(at_ms=now_ms, error=str(error))
    return FarLook(at_ms=now_ms, lines=tuple(lines), shows=shows, since_ms=since_s * 1000, since_by=since_by)


def _started(far: Any) -> tuple[int, str]:
    """From when on slurmctld runs. Its statistics begin anew at each start, and each day, and by hand."""
    told = far.commands.boot() if far.commands is not None and far.can.topology else ""
    if told.isdecimal():
        return int(told), "scontrol show config"
    return far.diag().since_s, "statistics, which may have been reset"


def _submission(far: Any, intent: Intent) -> tuple[list[str], str]:
    """By its token, whatever id it has; under the id that it was given; in accounting."""
    found = JobsByToken(far.jobs().list).of(intent.token, far.acts_as)
    lines = [f"{_of(job)} carries its token: {_state(job)}, submitted {_utc(job.submit_s)}" for job in found]
    if found:
        return lines, "done"
    lines.append("no job in Slurm's list carries its token")
    if intent.job:
        lines.append(_under_its_id(far, intent))
    try:
        past = [
            job
            for job in far.history(intent.at_ms // 1000 - BEFORE_S)
            if _is_of(job, intent.token) and _may_be_ours(far, job)
        ]
    except SlurmRefused as error:
        return [*lines, f"accounting: {error.problem}"], ""
    if past:
        return [*lines, *(f"accounting: {_of(job)} carried it, and ended as {job.state}" for job in past)], "done"
    return [*lines, "accounting never had it"], "undone"


def _under_its_id(far: Any, intent: Intent) -> str:
    try:
        job = far.job(intent.job)
    except SlurmGone:
        return f"job {intent.job}, the id it was given: Slurm has no such job any more"
    if carries(job, intent.token) and not _may_be_ours(far, job):
        return f"job {job.id}, the id it was given, carries its token, but is {job.user}'s: {_state(job)}"
    if carries(job, intent.token):
        return f"job {job.id}, the id it was given: {_state(job)}"
    return (
        f"job {job.id}, the id it was given, does not carry its token: {job.name} of {job.user or 'nobody'}, "
        f"{_state(job)}, submitted {_utc(job.submit_s)}"
    )


def _may_be_ours(far: Any, job: Job | PastJob) -> bool:
    """Anybody can write any name and comment."""
    return far.acts_as in ("", job.user) or not job.user


def _of(job: Job | PastJob) -> str:
    """With whose it is: as whom Muster submits is not always known."""
    return f"job {job.id} of {job.user}" if job.user else f"job {job.id}"


def _is_of(job: PastJob, token: str) -> bool:
    return job.comment == f"muster:{token}" or job.name.rpartition(".m")[2] == head_of(token)


def _act(far: Any, intent: Intent, command: cmd.AnyCommand, job_of: job_requests.JobOf) -> tuple[list[str], str]:
    steps = [each for each in job_requests.steps_of(command, intent.number, far, job_of) if each[0].needed]
    looks = [_look(far, step, meant, intent.at_ms / 1000) for step, meant in steps[:MOST]]
    more = [f"and {len(steps) - MOST} more, which were not looked at"] if len(steps) > MOST else []
    return [*(text for _, text in looks), *more], _shown([standing for standing, _ in looks], whole=not more)


def _look(
    far: Any, step: job_requests.ChangeStep, meant: Job | None, since_s: float
) -> tuple[job_requests.Standing, str]:
    try:
        seen = job_requests.look(far, step, meant, since_s)
    except SlurmGone as error:
        return "gone", error.problem
    return seen.standing, seen.text


def _shown(standings: Sequence[job_requests.Standing], *, whole: bool) -> str:
    """Some done and some not is neither; so is what Slurm does not know any more."""
    for standing, word in (("done", "done"), ("to do", "undone")):
        if whole and standings and all(each == standing for each in standings):
            return word
    return ""


def _state(job: Job) -> str:
    return " ".join([job.state, *sorted(job.flags), *(["held"] if job.held else [])])


def _utc(at_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
