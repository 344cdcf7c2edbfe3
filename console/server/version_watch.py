"""Waiting for the state to move, without a thread for each who waits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.loop import EngineLoop


class VersionWatch:
    """Wakes long polls when the state version moves. A waiter costs no thread.

    Made and used in the event loop whose requests wait; only `_heard` runs on the engine's thread.
    """

    def __init__(self, loop: EngineLoop) -> None:
        self._aio = asyncio.get_running_loop()
        self._version = loop.wait_version(-1, 0)
        self._moved = asyncio.Event()
        self._closed = False
        self._told = False
        self._leave = loop.on_version(self._heard)

    @property
    def version(self) -> int:
        """The one that readers are shown."""
        return self._version

    def close(self) -> None:
        """Stop listening and let every waiter go at once."""
        self._leave()
        self._closed = True
        self._wake()

    async def wait(self, after: int, wait_s: float) -> None:
        """Returns when the version is above `after`, after `wait_s` seconds, or when the server stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._version <= after and not self._closed:
                    await self._moved.wait()

    def _heard(self, version: int) -> None:
        """On the engine's thread, which must not be kept: one call is under way at most, however fast it goes."""
        self._version = version
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._aio.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._told = False
        self._moved.set()
        self._moved = asyncio.Event()
