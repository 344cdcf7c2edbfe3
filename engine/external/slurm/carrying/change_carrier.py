"""Carries to Slurm what is wanted of things that exist: one intent after the other, one step after the other.

Each step is looked at, done if it is not so already, and read back. What could not be carried in time is given up: a
cancel that comes hours after it was approved is another act than the one approved. What was done is looked at once more
a little later, and as soon as slurmctld is seen to have started anew: one that was killed may have forgotten it.
What is then so no longer is done again, or left to a person: `engine.external.slurm.carrying.carried_change`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from engine.external.slurm import job_changes
from engine.external.slurm.carrying.carried_change import (
    UNDECIDED,
    CarriedIntent,
    CarriedStep,
    LastSet,
    common,
    few,
    is_overtaken,
    last_set,
    why_not_again,
)
from engine.external.slurm.carrying.reconciliation import SAFE_S
from engine.external.slurm.carrying.submission_carrier import SubmissionJournal
from engine.external.slurm.errors import SlurmGone, SlurmRefused, SlurmUnavailable
from engine.model import commands as cmd
from engine.model.commands import IntentChange
from engine.model.errors import MusterError, SpecError
from engine.state.intents import MAYBE_CARRIED, Phase, wanted


class Acted(Protocol):
    """Told when something changed at Slurm, so that it is observed soon."""

    def __call__(self, *, machines: bool) -> None: ...


SEEN_AT_ONCE: frozenset[job_changes.Do] = job_changes.OF_JOBS | {"drain", "resume", "power up", "power down"}
"""What every look of a mirror shows; `machines` for the rest."""
GIVE_UP_MS = 120_000
"""Cell time after which what is not done is not done any more."""
AGAIN_S = 1.0
"""Between looks at a step whose effect takes its time."""
ASK_AGAIN_S = 5.0
"""After that what Slurm took, and is not so, is asked for again: a slurmctld that was killed forgets."""
BOOT_EVERY_S = 2.0
"""Between looks at which run of slurmctld answers, while there is something that it may forget."""
MAX_MUTE = 3
"""So often is waited for what tells it; acts do not depend on that."""


class ChangeCarrier:
    """Acts of one cell. `turn` is called again and again, by one thread."""

    def __init__(
        self,
        far: job_changes.JobChangeApi,
        ledger: SubmissionJournal,
        job_of: job_changes.JobOf,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        acted: Acted = lambda *, machines: None,
        may_act: Callable[[], bool] = lambda: True,
        is_coming: Callable[[str], bool] = lambda workload: False,
        knows_jobs: Callable[[], bool] = lambda: True,
        forbidden: Callable[[int], str] = lambda number: "",
    ) -> None:
        self._far = far
        self._ledger = ledger
        self._job_of = job_of
        self._is_coming = is_coming
        """Whether a workload's submission is under way: if slurmctld forgets its job, there will be another."""
        self._knows_jobs = knows_jobs
        """Whether `job_of` has seen Slurm's list: before that no job of it is known, which says nothing of any."""
        self._forbidden = forbidden
        """Why an intent may not be done again by itself now, such as a freeze that was set since; empty: it may."""
        self._clock = clock
        self._wall_ms = wall_ms
        """Cell time: that of a cell that Slurm decides on is Unix time."""
        self._acted = acted
        self._may_act = may_act
        """Whether this process is still the one that may: asked before each request that changes anything."""
        self._held: dict[int, CarriedIntent] = {}
        """In the order of their numbers."""
        self._settled: dict[int, cmd.AnyCommand] = {}
        """What was carried, or may have been, after what is held: the journal's state remembers only the last few."""
        self._last = -1
        self._last_of: LastSet | None = None
        self._boot = ""
        self._mute = 0
        """How often in a row it was not told."""
        self._boot_s = -1e9
        """Our clock: it was asked for."""
        self._unsaid: list[IntentChange] = []
        self.trouble = ""
        """Why nothing can be carried at present; empty when all is well."""

    def turn(self) -> None:
        """Do what can be done now. Raises MusterError when it cannot be journalled: then nothing more is done."""
        self._take()
        self._say()
        self._last_of = None
        try:
            if self._knows_jobs():
                self._wake_forgotten()
                self._carry_all()
                self.trouble = ""
            elif self._held:
                self.trouble = "Slurm's list of jobs was not seen yet"
        except (SlurmUnavailable, SlurmRefused) as error:
            self.trouble = str(error)
        for held in list(self._held.values()):
            self._give_up(held)
        self._say()

    def _take(self) -> None:
        for intent in self._ledger.new(self._last):
            self._last = max(self._last, intent.number)
            command = wanted(intent)
            if not isinstance(command, cmd.Submit):
                self._held[intent.number] = CarriedIntent(
                    number=intent.number, command=command, phase=Phase(intent.phase), boot=intent.boot,
                    before=intent.before,
                    # What is done again has its time anew.
                    at_ms=intent.changed_ms if intent.tries else intent.at_ms, again=intent.tries,
                    wanted_ms=intent.at_ms,
                    perhaps=intent.phase == Phase.SENT,
                )  # fmt: skip

    def _note(self, held: CarriedIntent, phase: Phase, text: str = "") -> None:
        held.phase = phase
        self._unsaid.append(
            IntentChange(number=held.number, phase=phase, text=text[:500], boot=held.boot, before=held.before)
        )
        if phase.settled:
            del self._held[held.number]
            self._remember(held)

    def _remember(self, held: CarriedIntent) -> None:
        if held.phase in MAYBE_CARRIED:
            self._settled[held.number] = held.command
        else:
            self._last_of = None
        oldest = next(iter(self._held), None)
        while self._settled and (oldest is None or next(iter(self._settled)) < oldest):
            del self._settled[next(iter(self._settled))]

    def _say(self) -> None:
        if self._unsaid:
            self._ledger.settle(self._unsaid)
            self._unsaid.clear()

    def _carry_all(self) -> None:
        """In their order where they are about the same: a release must not overtake the hold before it."""
        blocked: set[str] = set()
        for held in list(self._held.values()):
            if held.wake_s <= self._clock() and (held.phase == Phase.ACCEPTED or blocked.isdisjoint(held.subjects)):
                self._carry(held)
            if held.phase in (Phase.OPEN, Phase.SENT):
                blocked.update(held.subjects)

    # -- one intent ---------------------------------------------------------------------------------------------------

    def _carry(self, held: CarriedIntent) -> None:
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

    def _parts(self, held: CarriedIntent) -> list[CarriedStep]:
        steps = job_changes.steps_of(held.command, held.number, self._far, self._job_of)
        return [CarriedStep(step, meant, before=held.before) for step, meant in steps]

    def _do(self, held: CarriedIntent) -> None:
        """What is not so yet. Raises SlurmUnavailable with the rest left for later."""
        assert held.parts is not None
        boot = self._boot or self._ask_boot()
        changed: set[job_changes.Do] = set()
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

    def _is_left(self, part: CarriedStep) -> bool:
        """Whether there is still something to do of it, or will be."""
        if part.refused or part.standing not in UNDECIDED:
            return False
        return part.standing != "missing" or self._is_coming(part.step.target)

    def _is_due(self, part: CarriedStep) -> bool:
        """Jobs alone change at once: nodes take their time."""
        return not part.tried or (part.step.do in job_changes.OF_JOBS and self._clock() - part.tried_s >= ASK_AGAIN_S)

    def _step(self, held: CarriedIntent, part: CarriedStep) -> bool:
        """Returns whether anything was asked for."""
        since_s = held.at_ms / 1000
        asked = False
        try:
            part.see(job_changes.look(self._far, part.step, part.meant, since_s))
            if part.standing == "to do" and self._is_due(part):
                if not self._may_act():
                    raise SlurmUnavailable("another engine has taken over", answered=True, arrived=False)
                part.before = part.before or part.setting
                part.tried = asked = True
                part.tried_s = self._clock()
                job_changes.do(self._far, part.step, part.meant)
                part.see(job_changes.look(self._far, part.step, part.meant, since_s))
        except SlurmGone as error:
            part.standing, part.text = "missing" if part.step.do in job_changes.OF_JOBS else "gone", error.problem
        except (SlurmRefused, SpecError) as error:
            # Or it is nothing that Slurm could be asked for: one intent must not keep up those after it.
            part.refused = f"{part.step.target}: {error.problem}"
        except SlurmUnavailable:
            # It may have been done or not: it is looked at before it is done again.
            held.perhaps = held.perhaps or asked
            part.tried = False
            raise
        return asked

    def _conclude(self, held: CarriedIntent) -> None:
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

    def _confirm(self, held: CarriedIntent) -> None:
        """What is still so lasts: slurmctld has saved it, whether it was restarted since or not. What is so no longer
        slurmctld has forgotten in a crash, or somebody has undone: only what nobody can undo is done again."""
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
            self._note(held, Phase.IN_DOUBT, f"it was done and read back, and is so no longer: {told}; {doubt}")
            return
        for part in undone:
            part.tried = False
        held.at_ms = self._wall_ms()
        held.again += 1
        self._note(held, Phase.OPEN, "slurmctld has forgotten it: done again")

    def _last_set(self) -> LastSet:
        """What was set, or may have been, of what, the last time: that it is no longer as it was set before is then as
        it should be. The journal is asked too, for it knows what was settled before this process began. Found once a
        turn: a slurmctld that was killed has forgotten many things at once."""
        if self._last_of is None:
            self._say()
            known = [(held.number, held.command) for held in self._held.values()]
            known += self._settled.items()
            since = min(self._held)
            known += [(intent.number, wanted(intent)) for intent in self._ledger.carried_since(since)]
            self._last_of = last_set(known)
        return self._last_of

    # -- which slurmctld ----------------------------------------------------------------------------------------------

    def _ask_boot(self) -> str:
        """Which run of slurmctld answers; empty where that cannot be known. The same before and after a look: it was
        that one which showed what was seen."""
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
        """What was done in a run of slurmctld that has ended is looked at now: what it forgot, such as a hold, Slurm
        goes on without."""
        waiting = [held for held in self._held.values() if held.phase == Phase.ACCEPTED and held.boot]
        if not waiting or self._clock() - self._boot_s < BOOT_EVERY_S:
            return
        boot = self._ask_boot()
        for held in waiting:
            if boot and held.boot != boot:
                held.wake_s = 0.0

    def _look_again(self, held: CarriedIntent, part: CarriedStep) -> None:
        part.meant = part.meant or self._job_of(part.step.target)
        try:
            part.see(job_changes.look(self._far, part.step, part.meant, held.at_ms / 1000))
        except (SlurmRefused, SpecError) as error:
            part.refused = f"{part.step.target}: {error.problem}"

    def _give_up(self, held: CarriedIntent) -> None:
        if held.phase == Phase.ACCEPTED or self._wall_ms() - held.at_ms < GIVE_UP_MS:
            return
        waiting = [part for part in held.parts or () if part.standing == "missing" and self._is_left(part)]
        if waiting:
            return  # for a job of ours that is being submitted anew, whatever time that takes
        why = self.trouble or "its effect was not to be seen"
        if held.phase == Phase.OPEN and held.parts is None:
            self._note(held, Phase.EXPIRED, f"Slurm could not be asked within {GIVE_UP_MS // 1000} s: {why}")
        else:
            open_ = [part.text or part.step.target for part in held.parts or () if self._is_left(part)]
            self._note(held, Phase.IN_DOUBT, f"not seen to be done within {GIVE_UP_MS // 1000} s: {few(open_)}; {why}")
