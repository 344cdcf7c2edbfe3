"""Carriage of changes to Slurm, step by step, and the threads that carry intents from the journal.

`SlurmCarrier` takes one intent after the other and one step after the other. Each step is looked at, done unless it is
done already, and read back. An intent that could not be carried in time is given up: a cancel that comes hours after it
was approved is another act than the one approved.

A change that was read back is looked at once more a little later, and as soon as slurmctld is seen to have started
anew, because a slurmctld that was killed may have forgotten it. It is done again only where forgetting and undoing can
be told apart. A cancel, or a job that was put back in its queue, counts as forgotten unless slurmctld ran on, since
hardly anybody undoes those. A setting counts as forgotten where the slurmctld that showed it has ended and the setting
is the one from before. Everything else is left to a person, and so is what was approved too long ago.

`SlurmDriver` runs two threads, one for submissions and one for all other changes, so that a drain does not wait behind
a thousand jobs. What is the same for every outside scheduler is in `intent_carrier`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from engine.control import Engine
from engine.external.intent_carrier import (
    AGAIN_S,
    GIVE_UP_MS,
    UNDECIDED,
    Abilities,
    CarriedIntent,
    CarriedStep,
    CarrierThreads,
    EngineLedger,
    IntentCarrier,
    IntentJournal,
    Recorded,
    few,
)
from engine.external.slurm import job_requests
from engine.external.slurm.capabilities import SlurmGone, SlurmRefused, SlurmUnavailable
from engine.external.slurm.job_requests import JobDestination, home_of
from engine.external.slurm.records import Job
from engine.external.slurm.submission_carrier import SAFE_S, Submitter
from engine.loop import EngineLoop
from engine.model import commands as cmd
from engine.model.commands import IntentChange
from engine.model.errors import MusterError, SpecError
from engine.model.specs import WorkloadSpec
from engine.state.external_cell import MAYBE_CARRIED, Intent, Phase, wanted

MAX_AGAIN = 5
"""So often at most is done again what slurmctld forgot."""
AGAIN_WITHIN_MS = 900_000
"""Cell time since it was wanted; later that it was forgotten is found out only where Slurm was away for so long."""
LONGEST_SETTING = 200
FOR_GOOD: frozenset[job_requests.Do] = frozenset(("cancel", "put back"))
"""What hardly anybody undoes: a job that is as it was before was forgotten to be so, unless slurmctld ran on."""
TWO_WAYS: frozenset[job_requests.Do] = frozenset(("hold", "release", "drain", "reserve"))
"""What is as it was before whenever it is not so."""


class SlurmStep(CarriedStep, kw_only=True):
    step: job_requests.SlurmChange
    meant: Job | None
    tried_s: float = 0.0
    """Our clock: it was last asked for."""
    setting: str = ""
    before: str = ""
    """The setting before it was first asked for; empty: by another process."""

    def see(self, seen: job_requests.SlurmReading) -> None:
        self.standing, self.text, self.setting = seen.standing, seen.text, seen.setting
        if self.step.do == "put back" and self.standing == "to do" and self.before not in ("", self.setting):
            self.standing = "done"  # it was put back since; that it began before then is another clock's word


class SlurmIntent(CarriedIntent, kw_only=True):
    wanted_ms: int
    """Cell time: it was asked for by a person."""
    parts: list[SlurmStep] | None = None
    so_s: float = 0.0
    """Our clock: all of it was so. It lasts when it still is SAFE_S later."""
    boot: str = ""
    """Run of slurmctld in which all of it was so."""
    before: str = ""
    """As `engine.state.external_cell.Intent`, of an earlier process."""
    again: int = 0
    """How often it was done again."""
    perhaps: bool = False
    """It was asked for by an earlier process, or without an answer: that it is so now may be of that, and be forgotten
    yet."""

    @property
    def tried(self) -> bool:
        return self.perhaps or any(part.tried for part in self.parts or ())


LastSet = dict[tuple[str, str], tuple[int, job_requests.SlurmChange]]
"""What is set, of what -> number of the last intent that sets it, and by which step."""


def last_set(commands: Iterable[tuple[int, cmd.AnyCommand]]) -> LastSet:
    """Return the last setting of each thing by the intents with these numbers."""
    found: LastSet = {}
    for number, command in sorted(commands, key=lambda each: each[0]):
        found |= {what: (number, step) for what, step in job_requests.settings_of(command).items()}
    return found


def is_overtaken(held: SlurmIntent, part: SlurmStep, last: LastSet) -> bool:
    """Return whether a later intent sets the same. The same wanted once more overtakes nothing: it may have been
    needless only for this."""
    number, step = last.get((job_requests.TOPIC.get(part.step.do, ""), part.step.target), (held.number, part.step))
    if number <= held.number:
        return False
    return step.do != part.step.do or (step.do in job_requests.OF_JOBS and step.value != part.step.value)


def why_not_again(held: SlurmIntent, undone: Sequence[SlurmStep], boot: str, now_ms: int) -> str:
    """Why what is so no longer is left to a person; empty: it was forgotten, and is done again. `boot`:
    the run of slurmctld that answers now."""
    if held.again >= MAX_AGAIN:
        return f"slurmctld has lost it {held.again} times, or somebody keeps undoing it"
    # A job that was forgotten itself is submitted anew, whenever that can be: never without what was done to it.
    known = [part for part in undone if part.standing != "missing"]
    why = _why_not_forgotten(held, known, boot)
    if known and not why and now_ms - held.wanted_ms > AGAIN_WITHIN_MS:
        return "slurmctld has lost it, and the request is too old to be repeated automatically"
    return why


def _why_not_forgotten(held: SlurmIntent, known: Sequence[SlurmStep], boot: str) -> str:
    """Why nobody can tell that slurmctld forgot it; empty: it did."""
    if known and held.boot and held.boot == boot:
        return "somebody undid it: slurmctld has not restarted since"
    if all(part.step.do in FOR_GOOD for part in known):
        return ""
    if not held.boot or not boot:
        return "slurmctld lost it in a crash, or somebody undid it"
    others = [part.setting for part in known if not _is_as_before(part)]
    if others:
        return f"slurmctld has restarted since, and nothing shows that it was done before: {few(others)}"
    return ""


def _is_as_before(part: SlurmStep) -> bool:
    if part.step.do in FOR_GOOD:
        return True
    known = part.before or part.step.do in TWO_WAYS
    return part.step.do in job_requests.TOPIC and bool(known) and part.before in ("", part.setting)


def common(settings: Sequence[str]) -> str:
    """Return the setting that all share, to be journalled; else empty."""
    return settings[0] if len(set(settings)) == 1 and len(settings[0]) <= LONGEST_SETTING else ""


class Acted(Protocol):
    """Told when something changed at Slurm, so that it is observed soon."""

    def __call__(self, *, machines: bool) -> None: ...


SEEN_AT_ONCE: frozenset[job_requests.Do] = job_requests.OF_JOBS | {"drain", "resume", "power up", "power down"}
"""What every look of a mirror shows; `machines` for the rest."""
ASK_AGAIN_S = 5.0
"""After that what Slurm took, and is not so, is asked for again: a slurmctld that was killed forgets."""
BOOT_EVERY_S = 2.0
"""Between looks at which run of slurmctld answers, while there is something that it may forget."""
MAX_MUTE = 3
"""So often is waited for what tells it; acts do not depend on that."""


class SlurmCarrier(IntentCarrier[SlurmIntent]):
    """Acts of one cell."""

    away = (SlurmUnavailable, SlurmRefused)

    def __init__(
        self,
        far: job_requests.JobChangeApi,
        ledger: IntentJournal,
        job_of: job_requests.JobOf,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        acted: Acted = lambda *, machines: None,
        may_act: Callable[[], bool] = lambda: True,
        is_coming: Callable[[str], bool] = lambda workload: False,
        knows_jobs: Callable[[], bool] = lambda: True,
        forbidden: Callable[[int], str] = lambda number: "",
    ) -> None:
        super().__init__(ledger, clock=clock, wall_ms=wall_ms, may_act=may_act)
        self._far = far
        self._job_of = job_of
        self._is_coming = is_coming
        """Whether a workload's submission is under way: if slurmctld forgets its job, there will be another."""
        self._knows_jobs = knows_jobs
        """Whether `job_of` has seen Slurm's list: before that no job of it is known, which says nothing of any."""
        self._forbidden = forbidden
        """Why an intent may not be done again by itself now, such as a freeze that was set since; empty: it may."""
        self._acted = acted
        self._ended: dict[int, cmd.AnyCommand] = {}
        """What was carried, or may have been, after what is held: the journal's state remembers only the last few."""
        self._last_of: LastSet | None = None
        self._boot = ""
        self._mute = 0
        """How often in a row it was not told."""
        self._boot_s = -1e9
        """Our clock: it was asked for."""

    def _hold(self, intent: Intent, command: cmd.AnyCommand) -> SlurmIntent | None:
        if isinstance(command, cmd.Submit):
            return None
        return SlurmIntent(
            number=intent.number, command=command, phase=Phase(intent.phase), boot=intent.boot, before=intent.before,
            # What is done again has its time anew.
            at_ms=intent.changed_ms if intent.tries else intent.at_ms, again=intent.tries, wanted_ms=intent.at_ms,
            perhaps=intent.phase == Phase.SENT,
        )  # fmt: skip

    def _change(self, held: SlurmIntent, phase: Phase, text: str) -> IntentChange:
        return IntentChange(number=held.number, phase=phase, text=text[:500], boot=held.boot, before=held.before)

    def _settled(self, held: SlurmIntent) -> None:
        if held.phase in MAYBE_CARRIED:
            self._ended[held.number] = held.command
        else:
            self._last_of = None
        oldest = next(iter(self._held), None)
        while self._ended and (oldest is None or next(iter(self._ended)) < oldest):
            del self._ended[next(iter(self._ended))]

    def _carry_all(self) -> str:
        self._last_of = None
        if not self._knows_jobs():
            return "Slurm's job list has not been read yet" if self._held else ""
        self._wake_forgotten()
        return super()._carry_all()

    # -- one intent ---------------------------------------------------------------------------------------------------

    def _carry(self, held: SlurmIntent) -> None:
        if held.phase == Phase.ACCEPTED:
            self._confirm(held)
            return
        if held.parts is None:
            try:
                held.parts = self._parts(held)
            except SlurmUnavailable:
                raise
            except MusterError as error:
                self._note(held, Phase.REFUSED, error.problem)
                return
        if held.phase == Phase.OPEN:
            self._note(held, Phase.SENT)
            self._say()
        self._do(held)

    def _parts(self, held: SlurmIntent) -> list[SlurmStep]:
        steps = job_requests.steps_of(held.command, held.number, self._far, self._job_of)
        return [SlurmStep(step=step, meant=meant, before=held.before) for step, meant in steps]

    def _do(self, held: SlurmIntent) -> None:
        """Do the steps that are not done yet. Raises SlurmUnavailable with the rest left for later."""
        assert held.parts is not None
        boot = self._boot or self._ask_boot()
        changed: set[job_requests.Do] = set()
        try:
            for part in held.parts:
                if part.standing == "missing":
                    part.meant = self._job_of(part.step.target)
                if part.standing in UNDECIDED and not part.refused and self._step(held, part):
                    changed.add(part.step.do)
        finally:
            if changed:
                self._acted(machines=not changed <= SEEN_AT_ONCE)
        if any(self._is_left(part) for part in held.parts):
            held.wake_s = self._clock() + AGAIN_S
            return
        if held.tried and self._ask_boot() != boot:
            # Nobody knows which run of slurmctld showed what: all of it is looked at once more.
            for part in held.parts:
                part.standing = "to do" if part.standing == "done" else part.standing
            return
        self._conclude(held)

    def _is_left(self, part: SlurmStep) -> bool:
        """Return whether there is still something to do of it, or will be."""
        if part.refused or part.standing not in UNDECIDED:
            return False
        return part.standing != "missing" or self._is_coming(part.step.target)

    def _is_due(self, part: SlurmStep) -> bool:
        """Jobs alone change at once: nodes take their time."""
        return not part.tried or (part.step.do in job_requests.OF_JOBS and self._clock() - part.tried_s >= ASK_AGAIN_S)

    def _step(self, held: SlurmIntent, part: SlurmStep) -> bool:
        """Returns whether anything was asked for."""
        since_s = held.at_ms / 1000
        asked = False
        try:
            part.see(job_requests.look(self._far, part.step, part.meant, since_s))
            if part.standing == "to do" and self._is_due(part):
                if not self._may_act():
                    raise SlurmUnavailable("another engine has taken over", answered=True, arrived=False)
                part.before = part.before or part.setting
                part.tried = asked = True
                part.tried_s = self._clock()
                job_requests.do(self._far, part.step, part.meant)
                part.see(job_requests.look(self._far, part.step, part.meant, since_s))
        except SlurmGone as error:
            part.standing, part.text = "missing" if part.step.do in job_requests.OF_JOBS else "gone", error.problem
        except (SlurmRefused, SpecError) as error:
            # Or it is nothing that Slurm could be asked for: one intent must not keep up those after it.
            part.refused = f"{part.step.target}: {error.problem}"
        except SlurmUnavailable:
            # It may have been done or not: it is looked at before it is done again.
            held.perhaps = held.perhaps or asked
            part.tried = False
            raise
        return asked

    def _conclude(self, held: SlurmIntent) -> None:
        """Every step is done, refused, or about what has gone."""
        assert held.parts is not None
        refused = [part.refused for part in held.parts if part.refused and part.step.needed]
        if refused:
            done = sum(part.standing == "done" for part in held.parts)
            others = f"; {done} others are done" if done else ""
            self._note(held, Phase.REFUSED, few(refused) + others)
        elif not held.tried:
            self._note(held, Phase.NEEDLESS, few([part.text for part in held.parts]))
        else:
            held.boot, held.before = self._boot, common([part.before for part in held.parts if part.step.needed])
            held.so_s = held.wake_s = self._clock()
            held.wake_s += SAFE_S
            texts = [part.refused or part.text for part in held.parts]
            self._note(held, Phase.ACCEPTED, "read back: " + few(texts))

    def _confirm(self, held: SlurmIntent) -> None:
        """Look again at what was done. A change that is still there lasts: slurmctld has saved it, restarted or not. A
        change that is gone was forgotten in a crash, or somebody has undone it; only what nobody can undo is done
        again."""
        if held.parts is None:
            # Of an earlier process, which saw it done.
            held.parts = self._parts(held)
        boot = self._boot
        needed = [part for part in held.parts if part.step.needed]
        for part in needed:
            if part.standing in ("done", "changing") or not held.so_s:
                self._look_again(held, part)
        if any(part.standing == "changing" for part in needed):
            held.wake_s = self._clock() + AGAIN_S
            return
        undone = [part for part in needed if self._is_left(part)]
        if undone:
            if self._ask_boot() != boot:
                held.so_s = 0.0  # another run of slurmctld may have shown it: all of it is looked at once more
                return
            last = self._last_set()
            undone = [part for part in undone if not is_overtaken(held, part, last)]
        if not undone:
            self._note(held, Phase.DONE, few([part.refused or part.text for part in held.parts]))
            return
        doubt = why_not_again(held, undone, self._boot, self._wall_ms()) or self._forbidden(held.number)
        if doubt:
            told = few([part.text for part in undone])
            self._note(held, Phase.IN_DOUBT, f"it was done and verified, and no longer holds: {told}; {doubt}")
            return
        for part in undone:
            part.tried = False
        held.at_ms = self._wall_ms()
        held.again += 1
        self._note(held, Phase.OPEN, "slurmctld has lost it: done again")

    def _last_set(self) -> LastSet:
        """Return the last setting of each thing, made or perhaps made: that it is no longer as it was set before is
        then as it should be. The journal is asked too, for it knows what was settled before this process began. Found
        once a turn: a slurmctld that was killed has forgotten many things at once."""
        if self._last_of is None:
            self._say()
            known = [(held.number, held.command) for held in self._held.values()]
            known += self._ended.items()
            since = min(self._held)
            known += [(intent.number, wanted(intent)) for intent in self._ledger.carried_since(since)]
            self._last_of = last_set(known)
        return self._last_of

    # -- which slurmctld ----------------------------------------------------------------------------------------------

    def _ask_boot(self) -> str:
        """Return which run of slurmctld answers; empty where that cannot be known. The same before and after a look: it
        was that one which showed what was seen."""
        self._boot_s = self._clock()
        try:
            self._boot, self._mute = self._far.boot(), 0
        except SlurmUnavailable:
            self._mute += 1
            if self._mute <= MAX_MUTE:
                raise
            self._boot = ""
        except SlurmRefused:
            self._boot = ""
        return self._boot

    def _wake_forgotten(self) -> None:
        """Look now at what was done in a run of slurmctld that has ended. Slurm goes on without what it forgot, such as
        a hold."""
        waiting = [held for held in self._held.values() if held.phase == Phase.ACCEPTED and held.boot]
        if not waiting or self._clock() - self._boot_s < BOOT_EVERY_S:
            return
        boot = self._ask_boot()
        for held in waiting:
            if boot and held.boot != boot:
                held.wake_s = 0.0

    def _look_again(self, held: SlurmIntent, part: SlurmStep) -> None:
        part.meant = part.meant or self._job_of(part.step.target)
        try:
            part.see(job_requests.look(self._far, part.step, part.meant, held.at_ms / 1000))
        except (SlurmRefused, SpecError) as error:
            part.refused = f"{part.step.target}: {error.problem}"

    def _give_up(self, held: SlurmIntent) -> None:
        if held.phase == Phase.ACCEPTED or self._wall_ms() - held.at_ms < GIVE_UP_MS:
            return
        waiting = [part for part in held.parts or () if part.standing == "missing" and self._is_left(part)]
        if waiting:
            return  # for a job of ours that is being submitted anew, whatever time that takes
        why = self.trouble or "its effect was not visible"
        if held.phase == Phase.OPEN and held.parts is None:
            self._note(held, Phase.EXPIRED, f"Slurm could not be asked within {GIVE_UP_MS // 1000} s: {why}")
        else:
            open_ = [part.text or part.step.target for part in held.parts or () if self._is_left(part)]
            self._note(held, Phase.IN_DOUBT, f"not confirmed within {GIVE_UP_MS // 1000} s: {few(open_)}; {why}")


AT_ONCE = 5
"""Submissions asked for at the same moment: more only lengthen Slurm's answers."""
Forbidden = Callable[[Engine, int], str]
"""On the engine's thread: why the intent of that number may not be done again by itself now; empty: it may."""


def is_under_way(engine: Engine, workload: str) -> bool:
    """Return whether the submission of that workload, or of the array it is of, is not settled."""
    intents = engine.state.intents
    names = {workload, workload.rpartition("/")[0]}
    if names.isdisjoint(intents.ids):
        return False
    return any(intents.named.get(intent.token) in names for intent in intents.open.values())


class SlurmDriver:
    """`far` is a `SlurmConnection`. `job_of`: the job a workload of the cell is. `missing`: workloads under way that
    the mirror has seen and does not find any more. `knows_jobs`: whether the mirror has seen any list of jobs yet."""

    def __init__(
        self,
        far: Any,
        loop: EngineLoop,
        job_of: job_requests.JobOf,
        *,
        acted: Acted = lambda *, machines: None,
        missing: Callable[[], Collection[str]] = lambda: (),
        knows_jobs: Callable[[], bool] = lambda: True,
        recorded: Recorded = lambda engine, changes: None,
        forbidden: Forbidden = lambda engine, number: "",
        place_of: Callable[[WorkloadSpec], JobDestination] | None = None,
    ) -> None:
        self._far = far
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="slurm-submit")
        ledger = EngineLedger(loop, recorded)

        def job_id(workload: str) -> int:
            job = job_of(workload)
            return 0 if job is None else job.id

        def cell_ms() -> int:
            return loop.engine.now_ms

        def may_act() -> bool:
            lease = loop.engine.lease
            return lease is None or lease.is_held

        self.submitter = Submitter(
            far, ledger, self._pool, place_of=place_of or _by_name(far.acts_as), job_ids=job_id, wall_ms=cell_ms,
            may_act=may_act, missing=missing, user=far.acts_as,
        )  # fmt: skip

        def is_coming(workload: str) -> bool:
            return loop.call(lambda engine: is_under_way(engine, workload))

        self.actor = SlurmCarrier(
            far, ledger, job_of, wall_ms=cell_ms, acted=acted, may_act=may_act, is_coming=is_coming,
            knows_jobs=knows_jobs, forbidden=lambda number: loop.call(lambda engine: forbidden(engine, number)),
        )  # fmt: skip
        self._threads = CarrierThreads(loop, "slurm", {"acts": self.actor.turn, "submissions": self.submitter.turn})
        self._threads.learn(self._abilities)

    def start(self) -> None:
        self._threads.start()

    def stop(self) -> None:
        """Stop both threads. Intents under way are in the journal: the next process goes on with it."""
        self._threads.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    @property
    def trouble(self) -> str:
        """Why nothing can be carried at present; empty when all is well."""
        return self._threads.trouble or self.submitter.trouble or self.actor.trouble

    def _abilities(self) -> Abilities:
        return Abilities(
            job_requests.lacks_of(self._far.can),
            job_requests.ways_of(self._far.can, self._far.api),
            f"Slurm {self._far.version} at {self._far.place}",
        )


def _by_name(user: str) -> Callable[[WorkloadSpec], JobDestination]:
    """Of the work of that user, empty: of the account this process runs as."""
    home = home_of(user)
    return lambda spec: place_of_queue(spec, home)


def place_of_queue(spec: WorkloadSpec, workdir: str = "") -> JobDestination:
    """Map a workload to its place in Slurm as the mirror names things: a queue is a partition, a tenant an account, and
    the priority class begins with the QOS."""
    found = job_requests.TIER.fullmatch(spec.priority_class)
    return JobDestination(partition=spec.queue, account=spec.tenant, qos=found["qos"] if found else "", workdir=workdir)
