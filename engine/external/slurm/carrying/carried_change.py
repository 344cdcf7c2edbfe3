"""An act that is carried to Slurm, how far it is, and what to make of it when it is so no longer.

What is no longer so slurmctld forgot in a crash, or somebody undid. It is done again only where that is told apart:
hardly anybody undoes a cancel or a requeue, and not if slurmctld ran on; and what sets something is done again, a few
times, where the slurmctld that showed it set has ended since and the setting is the one from before. Of everything else
a person has to judge, and of what was wanted too long ago: it was approved for the cell as it was then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from engine.external.slurm import job_changes
from engine.external.slurm.records import Job
from engine.model import commands as cmd
from engine.state.intents import Phase, subjects_of

MAX_AGAIN = 5
"""So often at most is done again what slurmctld forgot."""
AGAIN_WITHIN_MS = 900_000
"""Cell time since it was wanted; later that it was forgotten is found out only where Slurm was away for so long."""
MAX_TOLD = 5
LONGEST_SETTING = 200
UNDECIDED: tuple[job_changes.Standing, ...] = ("to do", "changing", "missing")
FOR_GOOD: frozenset[job_changes.Do] = frozenset(("cancel", "requeue"))
"""What hardly anybody undoes: a job that is as it was before was forgotten to be so, unless slurmctld ran on."""
TWO_WAYS: frozenset[job_changes.Do] = frozenset(("hold", "release", "drain", "reserve"))
"""What is as it was before whenever it is not so."""


class CarriedStep(msgspec.Struct):
    """One step of an intent, and how far it is."""

    step: job_changes.ChangeStep
    meant: Job | None
    standing: job_changes.Standing = "to do"
    tried: bool = False
    tried_s: float = 0.0
    """Our clock: it was last asked for."""
    text: str = ""
    setting: str = ""
    before: str = ""
    """The setting before it was first asked for; empty: by another process."""
    refused: str = ""

    def see(self, seen: job_changes.StepReading) -> None:
        self.standing, self.text, self.setting = seen.standing, seen.text, seen.setting
        if self.step.do == "requeue" and self.standing == "to do" and self.before not in ("", self.setting):
            self.standing = "done"  # it was put back since; that it began before then is another clock's word


class CarriedIntent(msgspec.Struct):
    """An intent under way."""

    number: int
    command: cmd.AnyCommand
    at_ms: int
    """Cell time: from when on its time to be carried counts."""
    wanted_ms: int
    """Cell time: it was asked for by a person."""
    phase: Phase
    parts: list[CarriedStep] | None = None
    so_s: float = 0.0
    """Our clock: all of it was so. It lasts when it still is SAFE_S later."""
    wake_s: float = 0.0
    boot: str = ""
    """Run of slurmctld in which all of it was so."""
    before: str = ""
    """As `engine.state.intents.Intent`, of an earlier process."""
    again: int = 0
    """How often it was done again."""
    perhaps: bool = False
    """It was asked for by an earlier process, or without an answer: that it is so now may be of that, and be forgotten
    yet."""

    @property
    def subjects(self) -> frozenset[str]:
        return frozenset(subjects_of(self.command))

    @property
    def tried(self) -> bool:
        return self.perhaps or any(part.tried for part in self.parts or ())


LastSet = dict[tuple[str, str], tuple[int, job_changes.ChangeStep]]
"""What is set, of what -> number of the last intent that sets it, and by which step."""


def last_set(commands: Iterable[tuple[int, cmd.AnyCommand]]) -> LastSet:
    """By intents with these numbers."""
    found: LastSet = {}
    for number, command in sorted(commands, key=lambda each: each[0]):
        found |= {what: (number, step) for what, step in job_changes.settings_of(command).items()}
    return found


def is_overtaken(held: CarriedIntent, part: CarriedStep, last: LastSet) -> bool:
    """Whether a later intent sets the same. The same wanted once more overtakes nothing: it may have been needless
    only for this."""
    number, step = last.get((job_changes.TOPIC.get(part.step.do, ""), part.step.target), (held.number, part.step))
    if number <= held.number:
        return False
    return step.do != part.step.do or (step.do in job_changes.OF_JOBS and step.value != part.step.value)


def why_not_again(held: CarriedIntent, undone: Sequence[CarriedStep], boot: str, now_ms: int) -> str:
    """Why what is so no longer is left to a person; empty: it was forgotten, and is done again. `boot`:
    the run of slurmctld that answers now."""
    if held.again >= MAX_AGAIN:
        return f"slurmctld has forgotten it {held.again} times, or somebody undoes it"
    # A job that was forgotten itself is submitted anew, whenever that can be: never without what was done to it.
    known = [part for part in undone if part.standing != "missing"]
    why = _why_not_forgotten(held, known, boot)
    if known and not why and now_ms - held.wanted_ms > AGAIN_WITHIN_MS:
        return "slurmctld has forgotten it, and it was wanted too long ago to be done again by itself"
    return why


def _why_not_forgotten(held: CarriedIntent, known: Sequence[CarriedStep], boot: str) -> str:
    """Why nobody can tell that slurmctld forgot it; empty: it did."""
    if known and held.boot and held.boot == boot:
        return "somebody has undone it: slurmctld has run on since"
    if all(part.step.do in FOR_GOOD for part in known):
        return ""
    if not held.boot or not boot:
        return "slurmctld has forgotten it in a crash, or somebody has undone it"
    others = [part.setting for part in known if not _is_as_before(part)]
    if others:
        return f"slurmctld was started anew since, but nothing tells that it was so before: {few(others)}"
    return ""


def _is_as_before(part: CarriedStep) -> bool:
    if part.step.do in FOR_GOOD:
        return True
    known = part.before or part.step.do in TWO_WAYS
    return part.step.do in job_changes.TOPIC and bool(known) and part.before in ("", part.setting)


def common(settings: Sequence[str]) -> str:
    """What was the same of all, to be journalled; else empty."""
    return settings[0] if len(set(settings)) == 1 and len(settings[0]) <= LONGEST_SETTING else ""


def few(texts: Sequence[str]) -> str:
    told = list(dict.fromkeys(text for text in texts if text))
    more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
    return "; ".join(told[:MAX_TOLD]) + more
