"""What is known of the engine: the client of the moment, its health, how far the cell is, and since when it is away."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from console.client.change_feed import Arrived, Connected, Lost
from console.views.frame import MISSED, NEW_S, Age, DataAge
from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client.health import Health
    from console.client.protocol import Client
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
    """One per app. Moments are those of the app's clock, which never goes back."""

    def __init__(self) -> None:
        self.client_now: Client | None = None
        self.health: Health | None = None
        self.seen = DataAge()
        self.outage: Outage | None = None
        self._spoke = 0.0
        """When the engine was last heard."""
        self._read: WeakKeyDictionary[Pane, tuple[AsOf, float]] = WeakKeyDictionary()
        """Of pages whose data are of no version: of when they are, and since when that is known."""

    def client(self) -> Client:
        """Raises UnreachableError while there is none. Safe on any thread."""
        client = self.client_now
        if client is None:
            raise UnreachableError("not connected to an engine", "The console keeps trying")
        return client

    def connected(self, event: Connected, now: float) -> bool:
        """Whether this is an engine that has less behind it than the one before: another journal, or an older one."""
        behind = event.health.version < self.seen.version
        if behind:
            self.seen = DataAge()
        self.client_now, self.health, self.outage = event.client, event.health, None
        self.seen.hear(event.health.version, event.health.now_ms, now)
        self._spoke = now
        return behind

    def arrived(self, event: Arrived, now: float) -> bool:
        """Whether the page is to be asked for anew. The first answer brings what happened before, at a version that is
        known already."""
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
        """Whether it was there until now."""
        self.client_now = None
        first = self.outage is None
        if self.outage is None:
            self.outage = Outage(now)
        known = isinstance(event.error, MusterError | OSError)
        self.outage.problem = str(event.error) if known else f"{type(event.error).__name__} while asking the engine"
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
        """How old what a page shows is; None where there is nothing to be old."""
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
