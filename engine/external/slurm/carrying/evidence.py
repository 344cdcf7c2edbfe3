"""What Slurm shows now of an intent, for a person who has to say what came of it: read anew, whatever the mirror holds.

Nothing is changed. What cannot be read is said instead: a cluster that is away leaves a doubt as it was.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from engine.external.slurm import job_changes
from engine.external.slurm.accounting import PastJob
from engine.external.slurm.carrying.reconciliation import JobsByToken
from engine.external.slurm.errors import SlurmGone, SlurmRefused
from engine.external.slurm.job_submission import carries, head_of
from engine.external.slurm.records import Job
from engine.model import commands as cmd
from engine.model.errors import MusterError
from engine.model.intent_reports import FarLook
from engine.state.intents import Intent, wanted

MOST = 20
"""Things of one intent that are looked at."""
BEFORE_S = 60
"""By so much the clocks of Slurm and of the cell may differ."""


def look(far: Any, intent: Intent, job_of: job_changes.JobOf, now_ms: int) -> FarLook:
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


def _act(far: Any, intent: Intent, command: cmd.AnyCommand, job_of: job_changes.JobOf) -> tuple[list[str], str]:
    steps = [each for each in job_changes.steps_of(command, intent.number, far, job_of) if each[0].needed]
    looks = [_look(far, step, meant, intent.at_ms / 1000) for step, meant in steps[:MOST]]
    more = [f"and {len(steps) - MOST} more, which were not looked at"] if len(steps) > MOST else []
    return [*(text for _, text in looks), *more], _shown([standing for standing, _ in looks], whole=not more)


def _look(
    far: Any, step: job_changes.ChangeStep, meant: Job | None, since_s: float
) -> tuple[job_changes.Standing, str]:
    try:
        seen = job_changes.look(far, step, meant, since_s)
    except SlurmGone as error:
        return "gone", error.problem
    return seen.standing, seen.text


def _shown(standings: Sequence[job_changes.Standing], *, whole: bool) -> str:
    """Some done and some not is neither; so is what Slurm does not know any more."""
    for standing, word in (("done", "done"), ("to do", "undone")):
        if whole and standings and all(each == standing for each in standings):
            return word
    return ""


def _state(job: Job) -> str:
    return " ".join([job.state, *sorted(job.flags), *(["held"] if job.held else [])])


def _utc(at_s: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
