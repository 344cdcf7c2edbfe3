"""What the engine is asked for most, as JSON that goes out as it is: of a large cell the very bytes that its copy told
(`engine.copies`), of a small one what the engine says between two turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from anyio import CapacityLimiter, to_thread

from engine.copies import takes_long
from engine.errors import RefusedError, UnreachableError

if TYPE_CHECKING:
    from console.watch import Watch
    from engine.control import Engine
    from engine.loop import EngineLoop

T = TypeVar("T")
PATIENCE_S = 30.0
"""How long an answer of the engine is waited for."""
SHOWN_WITHIN_S = 2.0
"""How long a version that was written is waited for; after that the engine itself is asked to show it."""
THREADS = 4
"""Of a copy, one question is asked at a time: more threads would only wait. As many again for what takes long."""


class Shown(NamedTuple):
    content: bytes
    version: int


class Reads:
    """Made and used in one event loop."""

    def __init__(self, loop: EngineLoop, watch: Watch) -> None:
        self._loop = loop
        self._watch = watch
        self._quick, self._slow = CapacityLimiter(THREADS), CapacityLimiter(THREADS)

    def shown(self, own_version: int) -> int:
        """Up to which version, at least, an answer that is asked for now will show what happened."""
        return max(self._loop.copies.shown_version(), own_version)

    async def told(
        self, what: str, arguments: tuple[object, ...], own_version: int, least: int | None = None
    ) -> Shown:
        """What the engine's method of that name answers, and of which version. `own_version`: of the caller's account's
        last change, which is shown unless the request says itself what it wants to be shown. Raises what the engine
        does, and RefusedError for a version that is not there yet."""
        wanted = own_version if least is None else least
        copies, engine = self._loop.copies, self._loop.engine
        if wanted > engine.version:
            raise RefusedError(
                f"this engine is at version {engine.version}, and {wanted} was asked for",
                "It may have been put back to an earlier state, or a standby took over; look without that wish",
            )
        if copies.beside:
            if copies.shown_version() < wanted:
                self._loop.post(lambda _: copies.show_written())
                await self._watch.wait(wanted - 1, SHOWN_WITHIN_S)
            threads = self._slow if takes_long(what, arguments) else self._quick
            found = await to_thread.run_sync(copies.told, what, arguments, wanted, limiter=threads)
            if found is None:
                await self._on_engine(lambda _: copies.refresh())
                found = await to_thread.run_sync(copies.told, what, arguments, wanted, limiter=threads)
            if found is not None:
                return Shown(*found)
        answer, version = await self._on_engine(lambda engine: (getattr(engine, what)(*arguments), engine.version))
        return Shown(msgspec.json.encode(answer), version)

    async def _on_engine(self, ask: Callable[[Engine], T]) -> T:
        """Wait for the engine's thread without keeping one of ours."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await asyncio.wrap_future(self._loop.post(ask))
        except TimeoutError:
            raise UnreachableError(
                f"the engine did not answer within {PATIENCE_S:g} s", "It may be overloaded"
            ) from None
