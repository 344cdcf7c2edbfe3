"""Carriage of submissions to Slurm, none lost, and the evidence of what became of an intent.

`Submitter` journals a submission as wanted, then as about to be sent, and only then sends it. It journals the job id
when that comes, and the submission as done when slurmctld has it for good. Whichever process ends in between, the next
one finds in the journal how far the submission was, and in Slurm's list by its token whether it arrived.

Slurm alone is at most once: jobs that were accepted vanish when slurmctld is killed before it has saved them, and their
ids are given to others. Sending again is at least once: a job that was only slow in coming would run twice. `judge`
therefore decides from a whole list of Slurm's jobs, and acts on nothing itself:

- A job is safe when it is there at two times SAFE_S apart. If slurmctld lived on, it has saved the job meanwhile; if it
  was restarted, it had saved the job before.
- A job that was accepted and is in no whole list asked for afterwards was lost, unless it may have ended and been
  dropped from the list meanwhile.
- A request that may or may not have arrived can still be under way in slurmrestd or in slurmctld's queue. It is dead
  after QUARANTINE_S.

A job that was lost may have run before slurmctld was killed, and so may one whose answer never came. Whether it is sent
again is therefore its workload's word (`rerun`), and what shows that it began or did not: `start_evidence` decides.

Nothing here goes by which slurmctld answers: REST does not tell it reliably, as its time of start is 0 for the first
minutes.

`look` reads anew what Slurm shows of an intent, for a person who has to settle it, and changes nothing. It says what
could not be read: a cluster that is away leaves a doubt as it was.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Literal, Protocol

import msgspec

from engine.external.intent_carrier import IntentJournal
from engine.external.slurm import job_requests
from engine.external.slurm.capabilities import SlurmDenied, SlurmGone, SlurmRefused, SlurmUnavailable
from engine.external.slurm.job_requests import (
    JobDestination,
    carries,
    head_in,
    head_of,
    home_of,
    mark_of,
    token_in,
    wish_of,
    workdir_of,
)
from engine.external.slurm.records import AcceptedJob, Job, JobList, JobRequest, PastJob, SlurmNodes
from engine.external.slurm.start_evidence import (
    SKEW_S,
    START_S,
    LostSubmission,
    StartEvidence,
    Traces,
    decide,
)
from engine.model import commands as cmd
from engine.model.commands import IntentChange
from engine.model.errors import MusterError
from engine.model.external_cells import FarLook, StepStanding
from engine.model.quantities import utc
from engine.model.specs import WorkloadSpec
from engine.state.external_cell import Intent, Phase, wanted

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
        """Return the jobs of that token, and of that user where the user is known: anybody can write any comment."""
        found = [*self._by_token.get(token, ()), *self._by_head.get(head_of(token), ())]
        return [job for job in found if not user or not job.user or job.user == user]


def judge(sent: SentSubmission, look: JobListing, found: Sequence[Job], ended_kept_s: float = 0.0) -> SubmissionMatch:
    """Decide what became of a submission. `found`: jobs of the list with its token. `ended_kept_s`: how long Slurm
    keeps an ended job in its list, 0 where that is not known."""
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
        return SubmissionMatch("lost", why="slurmctld has lost it")
    if age_s > QUARANTINE_S:
        return SubmissionMatch("lost", why="it did not arrive")
    return SubmissionMatch("wait", why="it may still arrive")


def _there(found: Sequence[Job]) -> SubmissionMatch:
    """Choose the job that is kept of several: what has ended well or runs before what waits, then the earlier. Tasks of
    one array are no copies of each other."""
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


def look(far: Any, intent: Intent, job_of: job_requests.JobOf, now_ms: int) -> FarLook:
    """`far` is a `SlurmConnection`."""
    command = wanted(intent)
    try:
        since_s, since_by = _started(far)
        lines, shows = (
            _submission(far, intent, command.workloads[0], now_ms)
            if isinstance(command, cmd.Submit)
            else _act(far, intent, command, job_of)
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


def _submission(far: Any, intent: Intent, spec: WorkloadSpec, now_ms: int) -> tuple[list[str], str]:
    """By its token, whatever id it has; under the id that it was given; by what it left behind."""
    found = JobsByToken(far.jobs().list).of(intent.token, far.acts_as)
    lines = [f"{_of(job)} carries its token: {_state(job)}, submitted {utc(job.submit_s * 1000)}" for job in found]
    if found:
        return lines, "done"
    lines.append("no job in Slurm's list carries its token")
    if intent.job:
        lines.append(_under_its_id(far, intent))
    sent_ms = _sent_ms(intent)
    lost = LostSubmission(
        token=intent.token, rerun=spec.rerun, tries=intent.tries, job=intent.job, not_before_ms=spec.not_before_ms,
        workdir=workdir_of(spec, JobDestination(workdir=home_of(far.acts_as))), sent_ms=sent_ms,
        alive_s=(intent.changed_ms - sent_ms) / 1000, purged=False, array=spec.array is not None,
    )  # fmt: skip
    traces = Traces(far, [lost], now_ms, lambda job: _may_be_ours(far, job))
    evidence = traces.of(lost)
    past = traces.carried(intent.token)
    lines += [f"accounting: {_of(job)} carried it, and ended as {job.state}" for job in past if not job.start_s]
    lines += [each for each in (*evidence.begun, evidence.unbegun, *evidence.untold) if each]
    if evidence.ended:
        return lines, "done"
    unheard = spec.rerun in ("always", "") and not past and not traces.no_past
    return lines, "undone" if evidence.unbegun or unheard else ""


def _under_its_id(far: Any, intent: Intent) -> str:
    try:
        job = far.job(intent.job)
    except SlurmGone:
        return f"job {intent.job}, the id it was given: Slurm no longer has this job"
    if carries(job, intent.token) and not _may_be_ours(far, job):
        return f"job {job.id}, the id it was given, carries its token, but is {job.user}'s: {_state(job)}"
    if carries(job, intent.token):
        return f"job {job.id}, the id it was given: {_state(job)}"
    return (
        f"job {job.id}, the id it was given, does not carry its token: {job.name} of {job.user or 'nobody'}, "
        f"{_state(job)}, submitted {utc(job.submit_s * 1000)}"
    )


def _may_be_ours(far: Any, job: Job | PastJob) -> bool:
    """Anybody can write any name and comment."""
    return far.acts_as in ("", job.user) or not job.user


def _of(job: Job | PastJob) -> str:
    """With whose it is: as whom Muster submits is not always known."""
    return f"job {job.id} of {job.user}" if job.user else f"job {job.id}"


def _act(far: Any, intent: Intent, command: cmd.AnyCommand, job_of: job_requests.JobOf) -> tuple[list[str], str]:
    steps = [each for each in job_requests.steps_of(command, intent.number, far, job_of) if each[0].needed]
    looks = [_look(far, step, meant, intent.at_ms / 1000) for step, meant in steps[:MOST]]
    more = [f"and {len(steps) - MOST} more, which were not looked at"] if len(steps) > MOST else []
    return [*(text for _, text in looks), *more], _shown([standing for standing, _ in looks], whole=not more)


def _look(far: Any, step: job_requests.SlurmChange, meant: Job | None, since_s: float) -> tuple[StepStanding, str]:
    try:
        seen = job_requests.look(far, step, meant, since_s)
    except SlurmGone as error:
        return "gone", error.problem
    return seen.standing, seen.text


def _shown(standings: Sequence[StepStanding], *, whole: bool) -> str:
    """Some done and some not is neither; so is what Slurm does not know any more."""
    for standing, word in (("done", "done"), ("to do", "undone")):
        if whole and standings and all(each == standing for each in standings):
            return word
    return ""


def _state(job: Job) -> str:
    return " ".join([job.state, *sorted(job.flags), *(["held"] if job.held else [])])


AT_ONCE = 24
"""Submissions that are journalled as sent together, and so the most of which nobody may know after a crash."""
MAX_SINGLE = 50
"""Jobs that are read back one by one; more are read from the whole list."""
LIST_SHARE = 4
"""The list of jobs is asked for again after so many times as long as it took, at the earliest."""
RETRY_S = 2.0
ACCOUNTING_S = 300.0
"""For so long a slurmdbd that is away is waited for, before a person is asked what it might tell."""
ACCOUNTING_AGAIN_S = 15.0
DENIED_RETRY_S = 15.0


class SubmissionApi(Protocol):
    """The part of a Slurm connection that submits jobs and finds them again."""

    def submit(self, wish: JobRequest) -> AcceptedJob: ...
    def jobs(self, since: int | None = None) -> JobList: ...
    def job(self, id_: int, /) -> Job: ...
    def cancel(self, id_: int, /) -> None: ...
    def history(self, since_s: int, /) -> Sequence[PastJob]: ...
    def ended_kept_s(self) -> float: ...
    def boot(self) -> str: ...
    def nodes(self, since: int | None = None) -> SlurmNodes: ...
    def spool(self) -> str: ...


class CarriedSubmission(msgspec.Struct):
    """A submission under way."""

    number: int
    token: str
    spec: WorkloadSpec
    phase: Phase
    tries: int = 0
    job: int = 0
    submit_s: int = 0
    attempted_s: float = 0.0
    arrived: bool = True
    down_s: float = 0.0
    """As `SentSubmission` has them."""
    there_s: float = 0.0
    """Our clock: it was there. It is safe when it still is SAFE_S later."""
    inherited: bool = False
    """An earlier process saw it last, and none has looked since."""
    missed: bool = False
    """It was not under its id: it is to be looked for in the whole list."""
    wake_s: float = 0.0
    """Not to be tried, or looked for, before that."""
    lost_s: float = 0.0
    """Our clock: when a whole list first showed that Slurm does not have it; 0: none did."""
    sent_ms: int = 0
    """Cell time before it was last sent."""
    told: str = ""

    @property
    def due_s(self) -> float:
        return self.there_s + SAFE_S

    @property
    def is_sent_anyway(self) -> bool:
        """It is sent again whether or not it ran; empty: it is from before there was such a word."""
        return self.spec.rerun in ("always", "")

    @property
    def is_unsent(self) -> bool:
        """It is known not to have reached slurmctld."""
        return self.phase == Phase.SENT and not self.arrived

    def sent(self) -> SentSubmission:
        return SentSubmission(self.attempted_s, self.phase == Phase.ACCEPTED, self.arrived, self.down_s)


def _sent_ms(intent: Intent) -> int:
    """When the journal says that it was about to be sent; where it does not any more, when it was wanted."""
    return next((word.at_ms for word in reversed(intent.words) if word.phase == Phase.SENT), intent.at_ms)


def _doubt(held: CarriedSubmission, found: SubmissionMatch) -> str:
    """What a person is asked about."""
    if held.phase == Phase.SENT and found.verdict == "lost":
        return f"no answer came when it was sent, and Slurm does not have it; rerun is {held.spec.rerun or 'always'}"
    return f"{found.why}; rerun is {held.spec.rerun or 'always'}"


class Submitter:
    """Submissions of one cell. `turn` is called again and again, by one thread."""

    def __init__(
        self,
        far: SubmissionApi,
        ledger: IntentJournal,
        pool: Executor,
        *,
        place_of: Callable[[WorkloadSpec], JobDestination] = lambda spec: JobDestination(),
        job_ids: Callable[[str], int] = lambda workload: 0,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        may_act: Callable[[], bool] = lambda: True,
        missing: Callable[[], Collection[str]] = lambda: (),
        user: str = "",
    ) -> None:
        self._far = far
        self._ledger = ledger
        self._pool = pool
        self._place_of = place_of
        self._job_ids = job_ids
        self._clock = clock
        self._wall_ms = wall_ms
        self._may_act = may_act
        """Whether this process is still the one that may: asked before each request that changes anything."""
        self._missing = missing
        """Workloads that a mirror does not find any more: they are looked for at once, not when they should be safe."""
        self._held: dict[int, CarriedSubmission] = {}
        self._last = -1
        """Number of the newest intent that was taken."""
        self._unsaid: dict[int, IntentChange] = {}
        """What is not journalled yet."""
        self._list_after = 0.0
        self._kept_s = 0.0
        self._down_since_s: float | None = None
        """Since when slurmctld is known not to run, as of the last look."""
        self.user = user
        """Whose jobs ours are; where it is not said, known with the first that was read back."""
        self.trouble = ""
        """Why nothing can be carried at present; empty when all is well."""

    def turn(self) -> bool:
        """Do what can be done now. Returns whether there is more to do at once. Raises MusterError when it cannot be
        journalled: then nothing more is sent."""
        self._take()
        self._say()
        if not self._held:
            return False
        try:
            self._reconcile()
            self._read_back()
            self._say()
            more = self._send()
            self.trouble, self._down_since_s = "", None
        except SlurmUnavailable as error:
            self.trouble = str(error)
            self._count_down(error)
            more = False
        except SlurmRefused as error:
            self.trouble = str(error)
            more = False
        self._say()
        return more

    # -- from the journal ---------------------------------------------------------------------------------------------

    def _take(self) -> None:
        for intent in self._ledger.new(self._last):
            self._last = max(self._last, intent.number)
            command = wanted(intent)
            if isinstance(command, cmd.Submit):
                self._held[intent.number] = self._hold(intent, command.workloads[0])

    def _hold(self, intent: Intent, spec: WorkloadSpec) -> CarriedSubmission:
        """One of an earlier process may be at Slurm already: how long ago that was only the journal's time tells."""
        now_s = self._clock()
        ago_s = max(0.0, (self._wall_ms() - intent.changed_ms) / 1000)
        return CarriedSubmission(
            number=intent.number, token=intent.token, spec=spec, phase=Phase(intent.phase), tries=intent.tries,
            job=intent.job, submit_s=intent.submit_s, attempted_s=now_s - ago_s, there_s=now_s, inherited=True,
            sent_ms=_sent_ms(intent),
        )  # fmt: skip

    def _note(self, held: CarriedSubmission, phase: Phase, text: str = "") -> None:
        """To be journalled with the next `_say`; only the last word on an intent is."""
        before = self._unsaid.get(held.number)
        if before is not None and before.phase == Phase.OPEN != phase:
            self._say()  # that it was lost must be on record before it is sent again
        held.phase, held.told = phase, text
        self._unsaid[held.number] = IntentChange(
            number=held.number, phase=phase, job=held.job, submit_s=held.submit_s, text=text[:500]
        )
        if phase.settled:
            self._held.pop(held.number, None)

    def _say(self) -> None:
        if self._unsaid:
            self._ledger.settle(list(self._unsaid.values()))
            self._unsaid.clear()

    def _count_down(self, error: SlurmUnavailable) -> None:
        """Between two looks that both found slurmrestd without a slurmctld, none ran."""
        now_s = self._clock()
        if not error.answered or error.arrived:
            self._down_since_s = None
            return
        if self._down_since_s is not None:
            for held in self._held.values():
                held.down_s += now_s - max(self._down_since_s, held.attempted_s)
        self._down_since_s = now_s

    # -- what became of those sent ------------------------------------------------------------------------------------

    def _unread(self, now_s: float) -> list[CarriedSubmission]:
        """Accepted ones that are to be read under their ids: for the first time, or to see that they last. Those of an
        earlier process at once: where Muster is killed again and again, none of them would ever be due."""
        return [
            held
            for held in self._held.values()
            if held.phase == Phase.ACCEPTED
            and held.wake_s <= now_s
            and not held.missed
            and (not held.submit_s or ((held.inherited or now_s >= held.due_s) and not held.tries))
        ]

    def _doubtful(self, now_s: float) -> list[CarriedSubmission]:
        """Return submissions that have to be looked for in the whole list. Of one that was sent twice all copies are
        wanted."""
        found = [
            held
            for held in self._held.values()
            if held.wake_s <= now_s
            and (
                held.phase == Phase.SENT
                or (
                    held.phase == Phase.ACCEPTED
                    and (held.missed or (held.tries > 0 and (held.inherited or now_s >= held.due_s)))
                )
            )
        ]
        unread = self._unread(now_s)
        return found + unread if len(unread) > MAX_SINGLE else found

    def _reconcile(self) -> None:
        now_s = self._clock()
        if gone := self._missing():
            for held in self._held.values():
                held.missed = held.missed or (held.phase == Phase.ACCEPTED and held.spec.id in gone)
        doubtful = self._doubtful(now_s)
        if not doubtful or now_s < self._list_after:
            return
        look = JobListing(now_s, self._far.jobs().list)
        after_s = self._clock()
        self._list_after = after_s + LIST_SHARE * (after_s - now_s)
        index, kept_s = JobsByToken(look.jobs), self._ended_kept_s()
        lost: list[tuple[CarriedSubmission, SubmissionMatch]] = []
        for held in doubtful:
            found = judge(held.sent(), look, index.of(held.token, self.user), kept_s)
            if found.verdict == "there" and found.job is not None:
                self._cancel_surplus(held, found.surplus)
                self._found(held, found.job, look.at_s)
            elif found.verdict == "wait":
                held.wake_s = self._clock() + RETRY_S
            elif not self._may_still_begin(held, look.at_s):
                lost.append((held, found))
        if lost:
            self._settle_lost(lost)

    def _ended_kept_s(self) -> float:
        """Asked until it is known: it is of slurm.conf."""
        if not self._kept_s:
            with suppress(SlurmUnavailable, SlurmRefused):
                self._kept_s = self._far.ended_kept_s()
        return self._kept_s

    def _reopen(self, held: CarriedSubmission, why: str) -> None:
        held.job = held.submit_s = 0
        held.tries += 1
        held.wake_s = held.down_s = held.lost_s = 0.0
        held.missed = False
        self._note(held, Phase.OPEN, why)

    def _found(self, held: CarriedSubmission, job: Job, at_s: float) -> None:
        """It was there at that time."""
        self.user = self.user or job.user
        before = held.job, held.submit_s, held.phase
        held.job, held.submit_s, held.missed, held.inherited = job.array_id or job.id, job.submit_s, False, False
        held.lost_s = 0.0
        if held.phase == Phase.ACCEPTED and at_s >= held.due_s:
            self._note(held, Phase.DONE, held.told)
            self._take_mark(held)
        elif before != (held.job, held.submit_s, Phase.ACCEPTED):
            if held.phase != Phase.ACCEPTED:
                held.there_s = at_s
            self._note(held, Phase.ACCEPTED, held.told)

    def _take_mark(self, held: CarriedSubmission) -> None:
        """Of a job that slurmctld will not forget any more nobody asks whether it had begun. One that may never run
        twice goes by its mark itself."""
        if held.spec.rerun == "if-unstarted":
            folder = workdir_of(held.spec, self._place_of(held.spec))
            for tries in range(held.tries + 1):
                with suppress(OSError):
                    os.rmdir(os.path.join(folder, mark_of(held.token, tries)))

    def _cancel_surplus(self, held: CarriedSubmission, surplus: Iterable[Job]) -> None:
        """A copy that came late. Cancelled only while it is what it was: its id may be another job's by now."""
        for job in surplus:
            try:
                if carries(self._far.job(job.id), held.token) and self._may_act():
                    self._far.cancel(job.id)
                    held.told = f"a second copy, job {job.id}, was cancelled"
            except SlurmGone:
                continue

    def _may_still_begin(self, held: CarriedSubmission, at_s: float) -> bool:
        """Return whether to wait before anything can be told of one that the list of that time does not have: what a
        killed slurmctld had on its way to a node begins yet."""
        held.lost_s = held.lost_s or at_s
        if held.is_sent_anyway or held.is_unsent:
            return False
        held.missed, held.wake_s = True, held.lost_s + START_S
        return at_s < held.wake_s

    def _settle_lost(self, lost: list[tuple[CarriedSubmission, SubmissionMatch]]) -> None:
        """Send again what may be; leave the rest to a person, with all that is known of it."""
        known, is_away = self._evidence(lost)
        for held, found, evidence in known:
            step = decide(held.spec.rerun, evidence)
            if step == "again":
                self._reopen(held, "; ".join(dict.fromkeys(each for each in (found.why, evidence.text) if each)))
            elif step == "done":
                self._note(held, Phase.DONE, evidence.ended)
            elif is_away and self._clock() - held.lost_s < ACCOUNTING_S:
                held.missed, held.wake_s = True, self._clock() + ACCOUNTING_AGAIN_S
            else:
                self._note(held, Phase.IN_DOUBT, f"{_doubt(held, found)}; {evidence.text}")

    def _evidence(
        self, lost: list[tuple[CarriedSubmission, SubmissionMatch]]
    ) -> tuple[list[tuple[CarriedSubmission, SubmissionMatch, StartEvidence]], bool]:
        """Each with what is known of it, and whether accounting may tell more in a while. Nobody is asked about what is
        sent again in any case."""
        asked: list[tuple[CarriedSubmission, SubmissionMatch]] = []
        known: list[tuple[CarriedSubmission, SubmissionMatch, StartEvidence]] = []
        boot = self._boot_ms() if any(not held.is_sent_anyway for held, _ in lost) else 0
        for held, found in lost:
            unreached = self._unreached(held, found, boot)
            if unreached or (held.is_sent_anyway and found.verdict == "lost"):
                known.append((held, found, StartEvidence(unreached=unreached)))
            else:
                asked.append((held, found))
        if not asked:
            return known, False
        about = [self._lost(*each) for each in asked]
        traces = Traces(self._far, about, self._wall_ms(), self._may_be_ours)
        known += [(*each, traces.of(one)) for each, one in zip(asked, about, strict=True)]
        return known, traces.is_away

    def _boot_ms(self) -> int:
        """When the slurmctld that answers was started; 0 where that is not told."""
        with suppress(SlurmRefused):
            told = self._far.boot()
            return int(told) * 1000 if told.isdecimal() else 0
        return 0

    @staticmethod
    def _unreached(held: CarriedSubmission, found: SubmissionMatch, boot_ms: int) -> str:
        """Why it is known not to have come to slurmctld; empty: it is not."""
        if held.is_unsent:
            return "it did not reach slurmctld"
        ran_on = 0 < boot_ms < held.sent_ms - SKEW_S * 1000
        if held.phase == Phase.SENT and found.verdict == "lost" and ran_on:
            return "slurmctld has run since before it was sent, and does not have it"
        return ""

    def _lost(self, held: CarriedSubmission, found: SubmissionMatch) -> LostSubmission:
        return LostSubmission(
            token=held.token, rerun=held.spec.rerun, tries=held.tries,
            workdir=workdir_of(held.spec, self._place_of(held.spec)), job=held.job,
            not_before_ms=held.spec.not_before_ms, sent_ms=held.sent_ms,
            alive_s=self._clock() - held.attempted_s - held.down_s, purged=found.verdict == "unknown",
            array=held.spec.array is not None,
        )  # fmt: skip

    def _read_back(self) -> None:
        """The id that was given must be a job with our token, at once and when it should be safe."""
        now_s = self._clock()
        unread = self._unread(now_s)[:MAX_SINGLE]
        for held, job in zip(unread, self._pool.map(self._read, unread), strict=True):
            if job is not None and carries(job, held.token) and self._may_be_ours(job):
                self._found(held, job, now_s)
            elif job is not None and self._is_rewritten(job, held):
                # Sending it again could go on for ever.
                why = f"job {job.id} of Slurm does not carry its token: does a plugin change names and comments?"
                self._note(held, Phase.IN_DOUBT, why)
            else:
                held.missed = True

    def _may_be_ours(self, job: Job | PastJob) -> bool:
        """Anybody can write any name and comment."""
        return not self.user or job.user in ("", self.user)

    def _is_rewritten(self, job: Job, held: CarriedSubmission) -> bool:
        """Return whether a job under the id that was given may be ours without its token, not another that got the
        id."""
        came_with_it = not held.submit_s or job.submit_s == held.submit_s
        return came_with_it and not token_in(job) and not head_in(job) and self.user in ("", job.user)

    def _read(self, held: CarriedSubmission) -> Job | None:
        try:
            return self._far.job(held.job)
        except SlurmGone:
            return None

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self) -> bool:
        now_s = self._clock()
        ready: list[tuple[CarriedSubmission, JobRequest]] = []
        for held in list(self._held.values()):
            if held.phase != Phase.OPEN or held.wake_s > now_s:
                continue
            try:
                ready.append((held, self._wish(held)))
            except MusterError as error:
                self._note(held, Phase.REFUSED, str(error))
            if len(ready) == AT_ONCE:
                break
        if not ready:
            return False
        for held, _ in ready:
            held.sent_ms = self._wall_ms()
            self._note(held, Phase.SENT)
        self._say()
        for held, _ in ready:
            held.arrived, held.down_s, held.lost_s = True, 0.0, 0.0
        trouble: SlurmUnavailable | None = None
        for (held, _), answer in zip(ready, self._pool.map(self._post, (wish for _, wish in ready)), strict=True):
            held.attempted_s = self._clock()
            if isinstance(answer, SlurmUnavailable):
                trouble = answer
            self._take_answer(held, answer)
        if trouble is not None:
            raise trouble
        return len(ready) == AT_ONCE

    def _wish(self, held: CarriedSubmission) -> JobRequest:
        return wish_of(
            held.spec, held.token, self._place_of(held.spec), self._job_ids, tries=held.tries,
            now_s=self._wall_ms() // 1000,
        )  # fmt: skip

    def _post(self, wish: JobRequest) -> AcceptedJob | MusterError:
        if not self._may_act():
            return SlurmUnavailable("another engine has taken over", answered=True, arrived=False)
        try:
            return self._far.submit(wish)
        except MusterError as error:
            return error

    def _take_answer(self, held: CarriedSubmission, answer: AcceptedJob | MusterError) -> None:
        now_s = held.attempted_s
        if isinstance(answer, AcceptedJob):
            held.job = answer.id
            held.there_s = now_s
            held.wake_s = 0.0
            self._note(held, Phase.ACCEPTED, "; ".join(answer.soft))
        elif isinstance(answer, SlurmUnavailable):
            held.arrived = answer.arrived
            held.wake_s = 0.0
            held.told = answer.problem
        elif isinstance(answer, SlurmDenied) and answer.bad_token:
            # The token is to blame, not the wish: somebody renews it.
            held.wake_s = now_s + DENIED_RETRY_S
            self.trouble = str(answer)
            self._note(held, Phase.OPEN, answer.problem)
        else:
            self._note(held, Phase.REFUSED, answer.problem)
