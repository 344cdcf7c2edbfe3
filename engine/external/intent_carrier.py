"""The life of intents outside of Muster, whatever decides there: from the journal, in their order, to a settled phase.

`IntentCarrier` takes what is wanted from the journal. Before the first request of an intent is made the journal says
that it is under way, so that whichever process goes on looks before it asks again. Intents about the same thing are
carried one after the other. One that could not be carried in time is given up: a cancel that comes hours after it was
approved is another act than the one approved. How a change is asked for and read back is the subclass's.

`CarrierThreads` runs such carriers, each on a thread of its own.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from engine.control import Engine
from engine.external.observed_changes import intent_key
from engine.journal.event_journal import Beside
from engine.loop import EngineLoop
from engine.model import commands as cmd
from engine.model import spans
from engine.model.commands import IntentChange, SettleIntents
from engine.model.errors import JournalError, MusterError, UnreachableError
from engine.model.external_cells import StepStanding
from engine.state.external_cell import MAYBE_CARRIED, Intent, Phase, subjects_of, wanted

MAX_TOLD = 5
GIVE_UP_MS = 120_000
"""Cell time after which what is not done is not done any more."""
AGAIN_S = 1.0
"""Between looks at a step whose effect takes its time."""
IDLE_S = 1.0
"""Between turns while something is under way and nothing new comes."""
PAUSE_S = 0.02
"""Least time between turns: what comes together is journalled together."""
TROUBLE_S = 2.0

UNDECIDED: tuple[StepStanding, ...] = ("to do", "changing", "missing")


def few(texts: Sequence[str]) -> str:
    told = list(dict.fromkeys(text for text in texts if text))
    more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
    return "; ".join(told[:MAX_TOLD]) + more


class IntentJournal(Protocol):
    """The journalled side."""

    def new(self, after: int) -> list[Intent]:
        """Return intents under way with a larger number, in their order."""
        ...

    def settle(self, changes: Sequence[IntentChange]) -> None:
        """Durable when it returns. Raises MusterError with nothing of it recorded."""
        ...

    def carried_since(self, number: int) -> list[Intent]:
        """Return intents with a larger number that are done, were done already, or may be, as far as they are still
        kept."""
        ...


class CarriedStep(msgspec.Struct, kw_only=True):
    """One step of an intent, and how far it is."""

    standing: StepStanding = "to do"
    tried: bool = False
    text: str = ""
    refused: str = ""


class CarriedIntent(msgspec.Struct, kw_only=True):
    """An intent under way."""

    number: int
    command: cmd.AnyCommand
    at_ms: int
    """Cell time: from when on its time to be carried counts."""
    phase: Phase
    wake_s: float = 0.0
    """Our clock: not to be looked at before that."""

    @property
    def subjects(self) -> frozenset[str]:
        return frozenset(subjects_of(self.command))


H = TypeVar("H", bound=CarriedIntent)


class IntentCarrier(Generic[H]):
    """`turn` is called again and again, by one thread."""

    away: tuple[type[MusterError], ...] = (UnreachableError,)
    """Errors that say nothing of an intent: all of them wait."""

    def __init__(
        self,
        journal: IntentJournal,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        self._ledger = journal
        self._clock = clock
        self._wall_ms = wall_ms
        """Cell time: that of a cell that another scheduler decides on is Unix time."""
        self._may_act = may_act
        """Whether this process is still the one that may: asked before each request that changes anything."""
        self._held: dict[int, H] = {}
        """In the order of their numbers."""
        self._last = -1
        self._unsaid: list[IntentChange] = []
        self.trouble = ""
        """Why nothing can be carried at present; empty when all is well."""

    def turn(self) -> None:
        """Do what can be done now. Raises MusterError when it cannot be journalled: then nothing more is done."""
        self._take()
        self._say()
        try:
            self.trouble = self._carry_all()
        except self.away as error:
            self.trouble = str(error)
        for held in list(self._held.values()):
            self._give_up(held)
        self._say()

    # -- of the subclass ----------------------------------------------------------------------------------------------

    def _hold(self, intent: Intent, command: cmd.AnyCommand) -> H | None:
        """Return what is to be carried of it; None: it is another's."""
        raise NotImplementedError

    def _carry(self, held: H) -> None:
        """Bring it forward. Raises what is in `away`."""
        raise NotImplementedError

    def _give_up(self, held: H) -> None:
        """Settle it if its time is over."""
        raise NotImplementedError

    def _change(self, held: H, phase: Phase, text: str) -> IntentChange:
        return IntentChange(number=held.number, phase=phase, text=text[:500])

    def _settled(self, held: H) -> None:
        """Take note that it is no longer under way."""

    # -- from and to the journal --------------------------------------------------------------------------------------

    def _take(self) -> None:
        for intent in self._ledger.new(self._last):
            self._last = max(self._last, intent.number)
            held = self._hold(intent, wanted(intent))
            if held is not None:
                self._held[intent.number] = held

    def _note(self, held: H, phase: Phase, text: str = "") -> None:
        held.phase = phase
        self._unsaid.append(self._change(held, phase, text))
        if phase.settled:
            del self._held[held.number]
            self._settled(held)

    def _say(self) -> None:
        if self._unsaid:
            self._ledger.settle(self._unsaid)
            self._unsaid.clear()

    def _carry_all(self) -> str:
        """In their order where they are about the same: a release must not overtake the hold before it. Returns why
        nothing was carried; empty: it was."""
        blocked: set[str] = set()
        for held in list(self._held.values()):
            if held.wake_s <= self._clock() and (held.phase == Phase.ACCEPTED or blocked.isdisjoint(held.subjects)):
                self._carry_traced(held)
            if held.phase in (Phase.OPEN, Phase.SENT):
                blocked.update(held.subjects)
        return ""

    def _carry_traced(self, held: H) -> None:
        with (
            spans.going_on(spans.remembered(intent_key(held.number))),
            spans.span("outside.act", muster_intent=held.number, muster_command=type(held.command).__name__) as doing,
        ):
            self._carry(held)
            doing.set(muster_phase=held.phase.name.lower())


Recorded = Callable[[Engine, Sequence[IntentChange]], Beside | None]
"""What is to be written in the transaction of such changes; None: nothing."""


class EngineLedger:
    """The journalled side, on the engine's thread."""

    def __init__(self, loop: EngineLoop, recorded: Recorded = lambda engine, changes: None) -> None:
        self._loop = loop
        self._recorded = recorded

    def new(self, after: int) -> list[Intent]:
        return self._loop.call(lambda engine: newer(engine, after))

    def settle(self, changes: Sequence[IntentChange]) -> None:
        command = SettleIntents(changes=tuple(changes))
        self._loop.call(lambda engine: engine.command(command, beside=self._recorded(engine, command.changes)))

    def carried_since(self, number: int) -> list[Intent]:
        return self._loop.call(lambda engine: carried_since(engine, number))


def carried_since(engine: Engine, number: int) -> list[Intent]:
    """Settled intents with a larger number that are done, or were so already, or may be, as far as they are still
    kept."""
    ended = engine.state.intents.ended
    return [intent for intent in ended if intent.number > number and intent.phase in MAYBE_CARRIED]


def newer(engine: Engine, after: int) -> list[Intent]:
    """Intents under way with a larger number than `after`, in their order."""
    found: list[Intent] = []
    for number, intent in reversed(engine.state.intents.open.items()):
        if number <= after:
            break
        found.append(intent)
    return found[::-1]


class Abilities(msgspec.Struct, frozen=True):
    """What a cluster can be asked for."""

    lacks: Mapping[type[cmd.Command], str]
    """Commands for which there is no way to it -> why."""
    ways: Mapping[type[cmd.Command], str]
    """Commands that can be carried -> by what."""
    far: str
    """The cluster, in words."""


class CarrierThreads:
    """Threads that take turns, each whenever the engine's state has changed, and once a second."""

    def __init__(self, loop: EngineLoop, name: str, turns: Mapping[str, Callable[[], bool | None]]) -> None:
        """`turns`: what is carried -> one turn of it, which returns whether there is more to do at once."""
        self._loop = loop
        self._abilities: Callable[[], Abilities] | None = None
        self._stopping = threading.Event()
        self._news = {what: threading.Event() for what in turns}
        self._threads = [
            threading.Thread(target=self._run, args=(what, turn), name=f"{name}-{what}", daemon=True)
            for what, turn in turns.items()
        ]
        self._end_listening: Callable[[], None] = lambda: None
        self._faults: dict[str, str] = {}
        """What -> why its last turn came to nothing; not those whose turn came to its end."""

    def learn(self, abilities: Callable[[], Abilities]) -> None:
        """Tell the engine what this cluster cannot be asked for, once it says so: that is then refused at the door,
        before anybody approves it."""
        self._abilities = abilities

    def start(self) -> None:
        self._end_listening = self._loop.on_version(self._on_version)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads. Intents under way are in the journal: the next process goes on with it."""
        self._stopping.set()
        self._end_listening()
        for event in self._news.values():
            event.set()
        for thread in self._threads:
            thread.join(timeout=5)

    @property
    def trouble(self) -> str:
        """Why a turn came to nothing; empty when all is well."""
        return next(iter(tuple(self._faults.values())), "")

    def _on_version(self, version: int) -> None:
        for event in self._news.values():
            event.set()

    def _run(self, what: str, turn: Callable[[], bool | None]) -> None:
        more = False
        while not self._stopping.is_set():
            self._wait(self._news[what], 0.0 if more else IDLE_S)
            if self._abilities is not None and what == next(iter(self._news)):
                self._turn("abilities", self._tell)
            more = self._turn(what, turn)

    def _tell(self) -> None:
        assert self._abilities is not None
        found = self._abilities()

        def tell(engine: Engine) -> None:
            engine.lacks, engine.ways, engine.far = found.lacks, found.ways, found.far

        self._loop.call(tell)
        self._abilities = None

    def _wait(self, news: threading.Event, most_s: float) -> None:
        self._stopping.wait(PAUSE_S)
        news.wait(most_s)
        news.clear()

    def _turn(self, what: str, turn: Callable[[], Any]) -> bool:
        """A journal that cannot be written, or an engine that ends, holds everything up: nothing is carried that is not
        on record. Any other fault is ours: it is said, and must not end what carries everything else."""
        try:
            more = bool(turn())
        except (JournalError, UnreachableError) as error:
            self._faults[what] = str(error)
        except Exception as error:
            self._faults[what] = f"internal error of Muster: {type(error).__name__}: {error}"
            traceback.print_exc()
        else:
            self._faults.pop(what, None)
            return more
        self._stopping.wait(TROUBLE_S)
        return False
