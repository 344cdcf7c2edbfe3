"""What the engine is asked for most, as JSON that goes out as it is: of a large cell the very bytes that its copy told
(`engine.read_replica`), of a small one what the engine says between two turns."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import msgspec
from anyio import CapacityLimiter, to_thread

from console.server.back_pressure import RETRY_S
from console.server.responses import PATIENCE_S, Crowded, on_engine
from engine.model.errors import RefusedError
from engine.read_replica import HEADER, Copy, CopyFailed, CopyGone, Urgency, framed, told

if TYPE_CHECKING:
    from console.server.version_watch import VersionWatch
    from engine.loop import EngineLoop

T = TypeVar("T")
SHOWN_WITHIN_S = 2.0
"""How long a version that was written is waited for; after that the engine itself is asked to show it."""
TRIES = 3
AT_ONCE = 32
"""Questions that a copy has before it; who comes then waits here, behind those who follow the cell's events."""
MAX_WAIT_S = 1.0
"""Once somebody has waited for so long, who comes is turned away: they would wait for longer, and nobody less."""
THREADS = 4
"""For what takes long: a copy answers one such question at a time, and more threads would only wait."""


class CachedBody(NamedTuple):
    content: bytes
    version: int


class _Asker(asyncio.Protocol):
    """Asks one copy, many questions at once. Its answers come in the order of the questions."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._came = bytearray()
        self._finishing = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        """Raises CopyGone where nobody answers any more; so does what is returned."""
        if self.lost or self._transport is None:
            raise CopyGone
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(frame)
        return answer

    def data_received(self, data: bytes) -> None:
        self._came += data
        at = 0
        while len(self._came) - at >= HEADER.size:
            (size,) = HEADER.unpack_from(self._came, at)
            if len(self._came) - at - HEADER.size < size:
                break
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(bytes(self._came[at + HEADER.size : at + HEADER.size + size]))
            at += HEADER.size + size
        del self._came[:at]
        self._end_if_done()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        for answer in self._waiting:
            if not answer.done():
                answer.set_exception(CopyGone())
        self._waiting.clear()

    def finish(self) -> None:
        """Another copy is asked from now on."""
        self._finishing = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._finishing and not self._waiting and self._transport is not None:
            self._transport.close()


class Reads:
    """Made and used in one event loop."""

    def __init__(self, loop: EngineLoop, watch: VersionWatch) -> None:
        self._loop = loop
        self._watch = watch
        self._slow = CapacityLimiter(THREADS)
        self._asked: Copy | None = None
        """The copy that `_asker` asks."""
        self._asker: _Asker | None = None
        self._changing = asyncio.Lock()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._since: deque[float] = deque()
        """Since when those wait who wait for room, the longest first."""

    def close(self) -> None:
        """Ask no more; what was asked is still answered."""
        if self._asker is not None:
            self._asker.finish()

    def shown(self, own_version: int) -> int:
        """Up to which version, at least, an answer that is asked for now will show what happened."""
        return max(self._loop.copies.shown_version(), own_version)

    async def told(
        self, what: str, arguments: tuple[object, ...], own_version: int, least: int | None = None
    ) -> CachedBody:
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
            found = await self._beside(what, arguments, wanted)
            if found is None:
                await on_engine(self._loop, lambda _: copies.refresh())
                found = await self._beside(what, arguments, wanted)
            if found is not None:
                return found
        answer, version = await on_engine(
            self._loop, lambda engine: (getattr(engine, what)(*arguments), engine.version)
        )
        return CachedBody(msgspec.json.encode(answer), version)

    async def _beside(self, what: str, arguments: tuple[object, ...], wanted: int) -> CachedBody | None:
        """From a copy of that version or later; None where there is none that answers."""
        copies = self._loop.copies
        copy = copies.at_least(wanted)
        if copy is None:
            return None
        if copies.urgency_of(what, arguments) != Urgency.SCREEN:
            answer = await to_thread.run_sync(copies.ask, what, arguments, wanted, limiter=self._slow)
            return None if answer is None else CachedBody(answer, copy.version)
        async with self._turn(first=what == "changes"):
            # Meanwhile another may have taken its place, also while this one was about to be asked.
            for _ in range(TRIES):
                copy = copies.at_least(wanted)
                found = None if copy is None else await self._asked_of(copy, what, arguments)
                if found is not None:
                    return found
        return None

    @contextlib.asynccontextmanager
    async def _turn(self, *, first: bool) -> AsyncIterator[None]:
        """Wait for room; who is `first` need not. Raises Crowded."""
        if first:
            yield
            return
        now = time.monotonic()
        if self._since and now - self._since[0] > MAX_WAIT_S:
            raise Crowded("more is read than can be told in time", "Come again in a second", RETRY_S["read"])
        self._since.append(now)
        try:
            await self._room.acquire()
        finally:
            self._since.popleft()
        try:
            yield
        finally:
            self._room.release()

    async def _asked_of(self, copy: Copy, what: str, arguments: tuple[object, ...]) -> CachedBody | None:
        begun, copies = time.monotonic(), self._loop.copies
        copy.asked += 1
        try:
            asker = await self._of(copy)
            async with asyncio.timeout(PATIENCE_S):
                content = told(await asker.ask(framed(what, arguments)))
        except (CopyGone, CopyFailed):
            return None
        except TimeoutError:
            copy.lost = True
            return None
        copies.noted(what, arguments, time.monotonic() - begun)
        return CachedBody(content, copy.version)

    async def _of(self, copy: Copy) -> _Asker:
        """Who asks this copy. Raises CopyGone for one that took its leave."""
        if self._asked is copy and self._asker is not None:
            return self._asker
        async with self._changing:
            if self._asked is not copy:
                if self._asked is not None and self._asked.version > copy.version:
                    raise CopyGone
                lane = copy.many.take()
                if lane is None:
                    raise CopyGone
                _, asker = await asyncio.get_running_loop().create_unix_connection(_Asker, sock=lane)
                if self._asker is not None:
                    self._asker.finish()
                self._asked, self._asker = copy, asker
            assert self._asker is not None
            return self._asker
