"""Presence over HTTP: a console says where it is and waits for news of the others, without a thread."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from console.auth.identity import CALLER
from console.client.presence import WAIT_S, Presence, PresenceAsk
from console.server.responses import body, decoded

LOOK_S = 1.0
"""How often a waiter looks whether somebody fell silent: nobody tells of that."""


class PresenceRoutes:
    """Made and used in one event loop."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._aio = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._closed = False
        self._leave = presence.listen(self._heard)

    def close(self) -> None:
        """Let every waiter go."""
        self._leave()
        self._closed = True
        self._wake()

    async def present(self, request: Request) -> Response:
        ask = decoded(await body(request), PresenceAsk)
        answer = self._presence.say(CALLER.get(), ask)
        until = self._aio.time() + min(ask.wait_s, WAIT_S)
        while answer.serial <= ask.after and not ask.leaves and not self._closed:
            left = until - self._aio.time()
            if left <= 0:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, LOOK_S)):
                    await self._moved.wait()
            answer = self._presence.look(CALLER.get(), ask.session)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def _heard(self) -> None:
        """On any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._aio.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
