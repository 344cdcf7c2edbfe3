"""Carries to Slurm what is wanted of things that exist: one intent after the other, one step after the other.

Each step is looked at, done if it is not so already, and read back. What could not be carried in time is given up: a
cancel that comes hours after it was approved is another act than the one approved. What was done is looked at once more
if slurmctld was restarted soon after, because it may have forgotten it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from engine import commands as cmd
from engine.commands import IntentChange
from engine.errors import MusterError
from engine.intents import Phase, wanted
from engine.slurm import acts
from engine.slurm.epochs import UNKNOWN, Epochs
from engine.slurm.errors import SlurmGone, SlurmRefused, SlurmUnavailable
from engine.slurm.reconcile import SAFE_S
from engine.slurm.records import Diag, Job
from engine.slurm.submitter import Ledger

GIVE_UP_MS = 120_000
"""Cell time after which what is not done is not done any more."""
AGAIN_S = 1.0
"""Between looks at a step whose effect takes its time."""
MOST_TOLD = 5


class FarSide(acts.FarSide, Protocol):
    def diag(self) -> Diag: ...


class Part(msgspec.Struct):
    """One step of an intent, and how far it is."""

    step: acts.Step
    meant: Job | None
    standing: acts.Standing = "to do"
    tried: bool = False
    text: str = ""
    refused: str = ""


class Held(msgspec.Struct):
    """An intent under way."""

    number: int
    command: cmd.AnyCommand
    at_ms: int
    phase: Phase
    parts: list[Part] | None = None
    epoch: int = UNKNOWN
    safe_from_s: float = 0.0
    wake_s: float = 0.0

    @property
    def tried(self) -> bool:
        return any(part.tried for part in self.parts or ())


class Actor:
    """Acts of one cell. `turn` is called again and again, by one thread."""

    def __init__(
        self,
        far: FarSide,
        ledger: Ledger,
        job_of: acts.JobOf,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        acted: Callable[[], None] = lambda: None,
    ) -> None:
        self._far = far
        self._ledger = ledger
        self._job_of = job_of
        self._clock = clock
        self._wall_ms = wall_ms
        """Cell time: that of a cell that Slurm decides on is Unix time."""
        self._acted = acted
        """Called when something changed at Slurm: it is to be observed soon."""
        self._held: dict[int, Held] = {}
        self._last = -1
        self._unsaid: list[IntentChange] = []
        self._epochs = Epochs(far, clock)
        self.trouble = ""
        """Why nothing can be carried at present; empty when all is well."""

    @property
    def under_way(self) -> int:
        return len(self._held)

    def turn(self) -> None:
        """Do what can be done now. Raises MusterError when it cannot be journalled: then nothing more is done."""
        self._take()
        self._say()
        try:
            if self._held:
                self._epochs.see()
            for held in list(self._held.values()):
                if held.wake_s <= self._clock():
                    self._carry(held)
            self.trouble = ""
        except SlurmUnavailable as error:
            self.trouble = str(error)
            self._epochs.forget()
        except SlurmRefused as error:
            self.trouble = str(error)
        for held in list(self._held.values()):
            self._give_up(held)
        self._say()

    def _take(self) -> None:
        for intent in self._ledger.new(self._last):
            self._last = max(self._last, intent.number)
            command = wanted(intent)
            if not isinstance(command, cmd.Submit):
                self._held[intent.number] = Held(
                    number=intent.number, command=command, at_ms=intent.at_ms, phase=Phase(intent.phase)
                )

    def _note(self, held: Held, phase: Phase, text: str = "") -> None:
        held.phase = phase
        self._unsaid.append(IntentChange(number=held.number, phase=phase, text=text[:500]))
        if phase.settled:
            del self._held[held.number]

    def _say(self) -> None:
        if self._unsaid:
            self._ledger.settle(self._unsaid)
            self._unsaid.clear()

    # -- one intent ---------------------------------------------------------------------------------------------------

    def _carry(self, held: Held) -> None:
        if held.phase == Phase.ACCEPTED:
            self._confirm(held)
            return
        if held.parts is None:
            try:
                steps = acts.steps_of(held.command, held.number, self._far, self._job_of)
            except SlurmUnavailable:
                raise
            except MusterError as error:
                self._note(held, Phase.REFUSED, error.problem)
                return
            held.parts = [Part(step, meant) for step, meant in steps]
        if held.phase == Phase.OPEN:
            self._note(held, Phase.SENT)
            self._say()
        self._do(held)

    def _do(self, held: Held) -> None:
        """What is not so yet. Raises SlurmUnavailable with the rest left for later."""
        assert held.parts is not None
        epoch = self._epochs.now
        changed = False
        try:
            for part in held.parts:
                if part.standing == "to do" and not part.refused:
                    changed |= self._step(held, part)
        finally:
            if changed:
                self._acted()
        if any(part.standing == "to do" and not part.refused for part in held.parts):
            held.wake_s = self._clock() + AGAIN_S
            return
        self._conclude(held, epoch)

    def _step(self, held: Held, part: Part) -> bool:
        """Returns whether anything was asked for."""
        since_s = held.at_ms / 1000
        asked = False
        try:
            part.standing, part.text = acts.look(self._far, part.step, part.meant, since_s)
            if part.standing == "to do" and not part.tried:
                part.tried = asked = True
                acts.do(self._far, part.step, part.meant)
                part.standing, part.text = acts.look(self._far, part.step, part.meant, since_s)
        except SlurmGone as error:
            part.standing, part.text = "gone", error.problem
        except SlurmRefused as error:
            part.refused = f"{part.step.target}: {error.problem}"
        except SlurmUnavailable:
            # It may have been done or not: it is looked at before it is done again.
            part.tried = False
            raise
        return asked

    def _conclude(self, held: Held, epoch: int) -> None:
        """Every step is done, refused, or about what has gone."""
        assert held.parts is not None
        refused = [part.refused for part in held.parts if part.refused and part.step.needed]
        if refused:
            done = sum(part.standing == "done" for part in held.parts)
            others = f"; {done} others are done" if done else ""
            self._note(held, Phase.REFUSED, _few(refused) + others)
        elif not held.tried:
            self._note(held, Phase.NEEDLESS, _few([part.text for part in held.parts]))
        else:
            held.epoch, held.safe_from_s = epoch, self._clock()
            texts = [part.refused or part.text for part in held.parts]
            self._note(held, Phase.ACCEPTED, "read back: " + _few(texts))

    def _confirm(self, held: Held) -> None:
        """What was done is safe when the same slurmctld lives on; after a restart it is looked at once more."""
        if held.epoch == self._epochs.now and self._epochs.at_s >= held.safe_from_s + SAFE_S:
            texts = [part.refused or part.text for part in held.parts or ()]
            self._note(held, Phase.DONE, _few(texts))
        elif held.epoch != self._epochs.now:
            self._note(held, Phase.OPEN, "slurmctld was restarted: looking again")
            for part in held.parts or ():
                part.standing, part.tried = "to do", False

    def _give_up(self, held: Held) -> None:
        if held.phase == Phase.ACCEPTED or self._wall_ms() - held.at_ms < GIVE_UP_MS:
            return
        why = self.trouble or "its effect was not to be seen"
        if held.phase == Phase.OPEN and held.parts is None:
            self._note(held, Phase.EXPIRED, f"Slurm could not be asked within {GIVE_UP_MS // 1000} s: {why}")
        else:
            open_ = [part.text or part.step.target for part in held.parts or () if part.standing == "to do"]
            self._note(held, Phase.IN_DOUBT, f"not seen to be done within {GIVE_UP_MS // 1000} s: {_few(open_)}; {why}")


def _few(texts: list[str]) -> str:
    told = list(dict.fromkeys(text for text in texts if text))
    more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    return "; ".join(told[:MOST_TOLD]) + more
