"""State of the connection to the engine and presence of other consoles.

`ConnectionState` holds the client, its health, the cell's version, and the moment since which the engine is away.
`PresenceReporter` is a daemon thread that reports this console's place and waits for news of other consoles. It never
touches a widget, and it stays silent on errors: the connection state reports those.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from textual.message import Message

from console.client.change_feed import Arrived, Connected, Lost, Starting
from console.tui.widgets.frame import MISSED, NEW_S, Age, DataAge
from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client.presence import Doing, Here
    from console.client.protocol import Client, Health
    from console.tui.widgets.pane import AsOf, Pane


STALE_MS = 2_000
"""Cell time after which waits and ages on the screen are asked for anew although nothing happened."""


class Outage:
    """Since when and why the engine does not answer."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.problem = ""
        self.retry_at = 0.0


class ConnectionState:
    """The client, its health and the cell's version. One per app; times are of the app's monotonic clock."""

    def __init__(self) -> None:
        self.client_now: Client | None = None
        self.past_ms = 0
        """Cell time as of which pages ask; 0: now."""
        self.health: Health | None = None
        self.seen = DataAge()
        self.outage: Outage | None = None
        self.starting = ""
        """How far an engine is that was started and is not ready yet."""
        self._spoke = 0.0
        """When the engine was last heard."""
        self._read: WeakKeyDictionary[Pane, tuple[AsOf, float]] = WeakKeyDictionary()
        """Of pages whose data are of no version: of when they are, and since when that is known."""

    def client(self) -> Client:
        """The client for what is shown, which may be of an earlier time. Raises UnreachableError while there is none.
        Safe on any thread."""
        client, past_ms = self.live(), self.past_ms
        return client.as_of(past_ms) if past_ms else client

    def live(self) -> Client:
        """The client of the cell as it is. Errors as `client`."""
        client = self.client_now
        if client is None:
            raise UnreachableError("not connected to an engine", "The console keeps retrying")
        return client

    def starts(self, event: Starting) -> None:
        """Note how far an engine is that starts."""
        self.starting = event.far

    def connected(self, event: Connected, now: float) -> bool:
        """Take over a client. True where its engine has less history than the one before: another journal, or an older
        one."""
        behind = event.health.version < self.seen.version
        if behind:
            self.seen = DataAge()
        self.client_now, self.health, self.outage, self.starting = event.client, event.health, None, ""
        self.seen.hear(event.health.version, event.health.now_ms, now)
        self._spoke = now
        return behind

    def arrived(self, event: Arrived, now: float) -> bool:
        """Take in changes. True where the page must be asked for again. The first answer holds changes of a version
        that is known already."""
        changes, seen = event.changes, self.seen
        moved = bool(changes.items) or changes.version != seen.version
        moved = moved or abs(changes.at_ms - seen.reloaded_ms) >= STALE_MS
        if changes.version < seen.version or changes.at_ms < seen.at_ms:
            self.seen = seen = DataAge()
        self.health = event.health or self.health
        seen.hear(changes.version, changes.at_ms, now)
        self._spoke = now
        return moved

    def lost(self, event: Lost, now: float) -> bool:
        """Note that the engine does not answer. True where it answered until now."""
        self.client_now, self.starting = None, ""
        first = self.outage is None
        if self.outage is None:
            self.outage = Outage(now)
        known = isinstance(event.error, MusterError | OSError)
        self.outage.problem = str(event.error) if known else f"{type(event.error).__name__} in a request to the engine"
        self.outage.retry_at = now + event.retry_in_s
        return first

    def silence(self, now: float) -> float:
        """Seconds since the engine was last heard."""
        return max(0.0, now - self._spoke)

    def _since_read(self, pane: Pane, as_of: AsOf, now: float) -> float:
        known = self._read.get(pane)
        if known is None or known[0] != as_of:
            known = self._read[pane] = (as_of, now)
        return known[1]

    def age(self, pane: Pane, now: float) -> Age | None:
        """Age of the page's data; None where there are none."""
        as_of = pane.as_of
        if as_of is None:
            return None
        speed = self.health.speed if self.health is not None else 1.0
        since = self.seen.outdated_since(as_of, speed) if as_of.version else self._since_read(pane, as_of, now)
        if since is None:
            since = self._spoke
        seconds = max(0.0, now - since)
        late = seconds > max(NEW_S, MISSED * pane.EVERY_S)
        return Age(seconds, late, self.outage is not None, as_of.version, pane.frozen is not None)


RETRY_S = 10.0
MIN_S = 0.2
"""Between two answers that bring news: many who move at once are drawn together."""
THINGS = frozenset(
    ("proposal", "incident", "workload", "node", "queue", "draft", "runbook", "recommendation", "policy")
)
"""Pages that are about one thing, by name."""


class PresencePlace(NamedTuple):
    page: str = ""
    thing: str = ""
    doing: Doing = "looks"


class Others(Message):
    """Somebody came, moved or went."""


class PresenceReporter:
    """A thread that reports this console's place. One per console. `client` gives the current client or raises; `post`
    tells the app."""

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
        """The others on the same page or object, or else the number of consoles."""
        if not self.here:
            return ""
        from console.client.presence import told

        return told(self.here, self._place.thing)

    def words_on_this(self) -> str:
        """The others on the same object; empty where there are none."""
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
    """The place of a console that shows a page, as others see it."""
    if pane is None:
        return PresencePlace()
    thing = pane.line if pane.NAME in THINGS else ""
    return PresencePlace(pane.NAME, thing, "decides" if deciding and thing else "looks")
