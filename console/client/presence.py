"""Presence: every console says on which page its person is and what they look at or decide on, and sees the others.

Nothing is kept: it is in no journal and no audit, and a console that is silent for a while is dropped. The name is the
engine's knowledge of the caller; the page is the console's own word.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from engine.model.errors import RefusedError, SpecError

if TYPE_CHECKING:
    from runbooks.plans.identity import Actor

Doing = Literal["looks", "decides"]
GONE_S = 12.0
"""Whoever was not heard of for so long is not here any more."""
WAIT_S = 5.0
"""How long a console waits for news before it says again that it is here."""
MAX_HERE = 5_000
MAX_OF_ONE = 100
"""Consoles of one account."""
MAX_PAGE, MAX_THING, SESSION = 40, 300, 32


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """One console, as others see it."""

    who: str
    """"person:alice"; "tcp" for somebody of whom nothing is known."""
    account: str
    page: str
    thing: str
    """The id of what the page is about; empty: a list, or the cell."""
    doing: Doing
    since_s: int
    """Seconds since it is there."""
    says: str = ""
    """In whose name they act, by their own word."""
    mine: bool = False
    """The same person's as whoever asks: several people may share an account, and sign with keys of their own."""


class PresenceAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A console says where it is, and asks who else is here."""

    session: str
    """32 hex digits that it drew when it began."""
    page: str
    thing: str = ""
    doing: Doing = "looks"
    says: str = ""
    """In whose name one acts, where the account alone does not tell."""
    turn: int = 0
    """Counts up with every move: what was sent before another move and comes after it moves nothing."""
    after: int = -1
    """The serial of the last answer; -1: none yet."""
    wait_s: float = 0.0
    """How long to wait for something else than that; at most WAIT_S."""
    leaves: bool = False


class Present(msgspec.Struct, frozen=True, kw_only=True):
    serial: int
    here: tuple[Here, ...]
    """All others."""


class _Console(msgspec.Struct):
    who: str
    account: str
    page: str
    thing: str
    doing: Doing
    says: str
    turn: int
    since: float
    heard: float


class Presence:
    """Consoles of one engine's process. Safe to use from several threads. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Condition()
        self._consoles: dict[str, _Console] = {}
        self._serial = 0
        self._listeners: list[Callable[[], object]] = []

    def listen(self, told: Callable[[], object]) -> Callable[[], None]:
        """Call `told` whenever somebody comes, moves or goes, on the thread that brought it. Returns the function that
        ends this."""
        self._listeners.append(told)
        return lambda: self._listeners.remove(told)

    def say(self, actor: Actor, ask: PresenceAsk) -> Present:
        """Note where a console is, and return who else is here. Does not wait. Raises SpecError for an impossible
        request, and RefusedError for a session of another account or when there are too many."""
        _check(ask)
        with self._lock:
            moved = self._forget_silent()
            known = self._consoles.get(ask.session)
            if known is not None and (known.who, known.account) != (actor.subject, actor.account):
                raise RefusedError("that session belongs to somebody else", "Use a random id of your own")
            moved = self._note(actor, ask, known) or moved
            if moved:
                self._serial += 1
                self._lock.notify_all()
            answer = self._present(ask.session, actor)
        if moved:
            for told in tuple(self._listeners):
                told()
        return answer

    def wait(self, actor: Actor, ask: PresenceAsk) -> Present:
        """As `say`, and wait for news. Blocks the calling thread."""
        answer, until = self.say(actor, ask), self._clock() + min(ask.wait_s, WAIT_S)
        while answer.serial <= ask.after and not ask.leaves and (left := until - self._clock()) > 0:
            with self._lock:
                self._lock.wait_for(lambda: self._serial > ask.after, min(left, 1.0))
            answer = self.look(actor, ask.session)
        return answer

    def look(self, actor: Actor, session: str) -> Present:
        """Everybody here now but that session."""
        with self._lock:
            if self._forget_silent():
                self._serial += 1
            return self._present(session, actor)

    def keep(self, actor: Actor, session: str) -> bool:
        """Keep a console present while it follows the event stream. Returns False when it is not known. Raises
        RefusedError for a session of another account, SpecError for a malformed one."""
        _check_session(session)
        with self._lock:
            known = self._consoles.get(session)
            if known is None:
                return False
            if (known.who, known.account) != (actor.subject, actor.account):
                raise RefusedError("that session belongs to somebody else", "Use a random id of your own")
            known.heard = self._clock()
            return True

    def tidy(self) -> None:
        """Drop consoles that fell silent, and tell the listeners."""
        with self._lock:
            gone = self._forget_silent()
            if gone:
                self._serial += 1
                self._lock.notify_all()
        if gone:
            for told in tuple(self._listeners):
                told()

    def _present(self, session: str, actor: Actor) -> Present:
        now, own = self._clock(), self._consoles.get(session)
        says = own.says if own is not None else ""
        here = tuple(
            Here(who=each.who, account=each.account, page=each.page, thing=each.thing, doing=each.doing,
                 since_s=max(0, int(now - each.since)), says=each.says,
                 mine=(each.who, each.says) == (actor.subject, says))
            for key, each in self._consoles.items() if key != session
        )  # fmt: skip
        return Present(serial=self._serial, here=here)

    def _note(self, actor: Actor, ask: PresenceAsk, known: _Console | None) -> bool:
        now = self._clock()
        if ask.leaves:
            return self._consoles.pop(ask.session, None) is not None
        if known is None:
            theirs = sum(each.account == actor.account for each in self._consoles.values())
            if len(self._consoles) >= MAX_HERE or theirs >= MAX_OF_ONE:
                raise RefusedError("too many consoles to list one more", "Everything else works")
            says = "" if ask.says.removeprefix("person:") == actor.subject.removeprefix("person:") else ask.says
            self._consoles[ask.session] = _Console(
                actor.subject, actor.account, ask.page, ask.thing, ask.doing, says, ask.turn, now, now
            )
            return True
        known.heard = now
        there = (known.page, known.thing, known.doing) == (ask.page, ask.thing, ask.doing)
        if there or ask.turn < known.turn:
            return False
        known.page, known.thing, known.doing = ask.page, ask.thing, ask.doing
        known.turn, known.since = ask.turn, now
        return True

    def _forget_silent(self) -> bool:
        now = self._clock()
        silent = [key for key, each in self._consoles.items() if now - each.heard > GONE_S]
        for key in silent:
            del self._consoles[key]
        return bool(silent)


def _check_session(session: str) -> None:
    if len(session) != SESSION or any(char not in "0123456789abcdef" for char in session):
        raise SpecError("session", "is not 32 hex digits", "Use random digits for each console")


def _check(ask: PresenceAsk) -> None:
    _check_session(ask.session)
    for name, text, most in (("page", ask.page, MAX_PAGE), ("thing", ask.thing, MAX_THING), ("says", ask.says, 64)):
        if len(text) > most:
            raise SpecError(name, f"is longer than {most} characters", "Give its name")
    if not 0 <= ask.wait_s <= 60:
        raise SpecError("wait_s", "is out of range", f"Give 0 to {WAIT_S:g}")


# -- in words ---------------------------------------------------------------------------------------------------------


def told(here: Iterable[Here], thing: str) -> str:
    """Others on the same thing, as in "bob decides on this · alice and 2 more look at this"; else the number of others
    here; empty when there are none."""
    everybody = tuple(here)
    beside = [each for each in everybody if thing and each.thing == thing]
    said = [
        f"{_names([each for each in beside if each.doing == doing])} {verb}"
        for doing, verb in (("decides", "deciding on this"), ("looks", "looking at this"))
        if any(each.doing == doing for each in beside)
    ]
    if said:
        return " · ".join(said)
    others = {name_of(each) for each in everybody if not each.mine}
    if not others:
        return ""
    return f"{len(others)} other{'s' if len(others) > 1 else ''} here"


def _names(here: list[Here]) -> str:
    names = sorted({name_of(each) for each in here})
    if len(names) <= 2:
        return " and ".join(names)
    return f"{names[0]} and {len(names) - 1} more"


def name_of(each: Here) -> str:
    """Name of a console's person as others see it. A name that nothing proves is marked."""
    if each.mine:
        return "you in another session"
    if each.says and each.says.removeprefix("person:") != each.who.removeprefix("person:"):
        return f"{each.says.removeprefix('person:')}?"
    if each.who.startswith("person:"):
        return each.who.removeprefix("person:")
    return "somebody by TCP" if each.who == "tcp" else each.who
