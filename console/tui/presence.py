"""Who else is here: a daemon thread tells the engine where this console is and waits for news of the others. It never
touches a widget. Where it cannot be had nothing is said; that the engine is away is told elsewhere."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from textual.message import Message

from engine.model.errors import MusterError

if TYPE_CHECKING:
    from console.client.presence import Doing, Here
    from console.client.protocol import Client
    from console.tui.widgets.pane import Pane

RETRY_S = 10.0
MIN_S = 0.2
"""Between two answers that bring news: many who move at once are drawn together."""
THINGS = frozenset(("proposal", "workload", "node", "queue", "draft", "runbook", "recommendation", "policy"))
"""Pages that are about one thing, by name."""


class PresencePlace(NamedTuple):
    page: str = ""
    thing: str = ""
    doing: Doing = "looks"


class Others(Message):
    """Somebody came, moved or went."""


class PresenceReporter:
    """One per console. `client` gives the client of the moment or raises; `post` tells the app."""

    def __init__(self, client: Callable[[], Client], post: Callable[[Message], object], says: str = "") -> None:
        """`says`: in whose name one acts here, if a name was given."""
        self._client = client
        self._post = post
        self._session = secrets.token_hex(16)
        self._says = says[:64]
        self._place, self._turn = PresencePlace(), 0
        self._moved = threading.Event()
        self._closed = threading.Event()
        self._started = False
        self._serial = -1
        self.here: tuple[Here, ...] = ()
        """All others, as last told."""

    def start(self) -> None:
        if not self._started:
            self._started = True
            for work in (self._listen, self._tell):
                threading.Thread(target=work, daemon=True, name="muster-beside").start()

    def close(self) -> None:
        """Returns at once; others see within a moment that this console is gone."""
        self._closed.set()
        self._moved.set()

    def move(self, place: PresencePlace) -> None:
        """This console is somewhere else now."""
        if place != self._place:
            self._place, self._turn = place, self._turn + 1
            self._moved.set()

    def words(self) -> str:
        """Who else is on what this console is on; else how many are here."""
        if not self.here:
            return ""
        from console.client.presence import told

        return told(self.here, self._place.thing)

    def words_on_this(self) -> str:
        """Who else is on the same thing; empty when nobody is."""
        return self.words() if self.together else ""

    @property
    def together(self) -> bool:
        """Somebody else is on the same thing."""
        return bool(self._place.thing) and any(each.thing == self._place.thing for each in self.here)

    def _listen(self) -> None:
        from console.client.presence import WAIT_S

        while not self._closed.is_set():
            self._closed.wait(MIN_S if self._ask(WAIT_S) else RETRY_S)

    def _tell(self) -> None:
        """Moves are told at once, beside the question that waits for news."""
        while not self._closed.is_set():
            self._moved.wait()
            self._moved.clear()
            self._ask(0.0, leaves=self._closed.is_set())

    def _ask(self, wait_s: float, leaves: bool = False) -> bool:
        from console.client.presence import PresenceAsk

        place, turn = self._place, self._turn
        ask = PresenceAsk(
            session=self._session, page=place.page[:40], thing=place.thing[:300], doing=place.doing, says=self._says,
            turn=turn, after=self._serial, wait_s=wait_s, leaves=leaves,
        )  # fmt: skip
        try:
            answer = self._client().present(ask)
        except MusterError:
            here: tuple[Here, ...] = ()
            self._serial, fine = -1, False
        else:
            here, self._serial, fine = answer.here, answer.serial, True
        if here != self.here and not self._closed.is_set():
            self.here = here
            self._post(Others())
        return fine


def place_of(pane: Pane | None, *, deciding: bool) -> PresencePlace:
    """Where a console is that shows a page."""
    if pane is None:
        return PresencePlace()
    thing = pane.line if pane.NAME in THINGS else ""
    return PresencePlace(pane.NAME, thing, "decides" if deciding and thing else "looks")
