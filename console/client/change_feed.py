"""The console's connection to its engine: it connects, watches for changes and reconnects after a loss.

One daemon thread waits for changes and posts them as messages; it never touches a widget. Other calls run on daemon
threads of their own (`in_thread`), so that quitting never waits for an answer that may not come.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from textual.message import Message

from engine.traces.progress import listening

if TYPE_CHECKING:
    from console.client.protocol import Client, Health
    from engine.model.overviews import Changes

T = TypeVar("T")

POLL_S = 1.0
"""Longest wait of one poll: also how often the cell's clock moves on the screen when nothing happens."""
MIN_BETWEEN_S = 1.0
"""Shortest time between two redraws; a change after a quiet time is shown at once."""
HEALTH_EVERY_S = 2.0
RETRY_S = (0.5, 1.0, 2.0, 4.0, 8.0)
BEHIND = 200
"""Versions back at which the event tail starts."""


class Connected(Message):
    """The engine answers. Comes again after every loss."""

    def __init__(self, client: Client, health: Health) -> None:
        super().__init__()
        self.client = client
        self.health = health


class Starting(Message):
    """The engine has been started and is not ready yet; `far` says how far it is."""

    def __init__(self, far: str) -> None:
        super().__init__()
        self.far = far


class Arrived(Message):
    """The changes of the last poll, and the engine's health when it was asked again."""

    def __init__(self, changes: Changes, health: Health | None, *, whole: bool = True) -> None:
        """`whole`: the changes are all that happened, not only how far the cell is."""
        super().__init__()
        self.whole = whole
        self.changes = changes
        self.health = health


class Lost(Message):
    """The engine does not answer; the next try comes after `retry_in_s`."""

    def __init__(self, error: Exception, retry_in_s: float) -> None:
        super().__init__()
        self.error = error
        self.retry_in_s = retry_in_s


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call beside the event loop."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as caught:
            error = caught
        # A loop that closed meanwhile wants no answer any more.
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True, name="muster-call").start()
    return await future


class Feed:
    """Keeps a client connected and posts messages about it."""

    def __init__(self, factory: Callable[[], Client], post: Callable[[Message], object]) -> None:
        self._factory = factory
        self._post = post
        self._stopped = threading.Event()
        self._retry = threading.Event()
        self._look = threading.Event()
        self._tails = False

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name="muster-feed").start()

    def stop(self) -> None:
        """Returns at once; the thread ends with its present poll."""
        self._stopped.set()
        self._retry.set()
        self._look.set()

    def tail(self, wanted: bool) -> None:
        """Follow every change, for a page that shows them, or only that something changed. On a large cell the full
        tail is a hundred kilobytes a second that nobody reads."""
        begins = wanted and not self._tails
        self._tails = wanted
        if begins:
            self._look.set()

    def retry_now(self) -> None:
        """Cut the wait between two tries short."""
        self._retry.set()

    def _run(self) -> None:
        tries = 0
        while not self._stopped.is_set():
            client = None
            try:
                with listening(lambda far, *_: self._post(Starting(far))):
                    client = self._factory()
                health = client.health()
                tries = 0
                self._post(Connected(client, health))
                self._watch(client, health)
            except Exception as error:  # whatever it is, a watcher that died unseen would be worse
                pause = RETRY_S[min(tries, len(RETRY_S) - 1)]
                tries += 1
                self._retry.clear()
                self._post(Lost(error, pause))
                self._retry.wait(pause)
            finally:
                if client is not None:
                    client.close()

    def _watch(self, client: Client, health: Health) -> None:
        seen = told = max(0, health.version - BEHIND)
        asked = time.monotonic()
        first = True
        while not self._stopped.is_set():
            began = time.monotonic()
            self._look.clear()
            whole = first or self._tails
            if whole:
                changes = client.changes(told, POLL_S)
                told = changes.version
            else:
                # What happened meanwhile is told, or counted as missed, when somebody wants to read it.
                changes = client.changes(seen, POLL_S, 0)
                told = min(told, changes.version)
            seen, first = changes.version, False
            fresh = None
            if time.monotonic() - asked >= HEALTH_EVERY_S:
                fresh, asked = client.health(), time.monotonic()
            self._post(Arrived(changes, fresh, whole=whole))
            self._look.wait(MIN_BETWEEN_S - (time.monotonic() - began))
