"""What 200 event streams cost the server's event loop: CPU time of each frame, and how long the loop is held at a
stretch, during which nobody else is answered. CPU time, so that it may be measured while others work.

`python tests/bench/streams_bench.py --items 300`; `--at-once 100000` for how it is without pauses between streams.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from pathlib import Path

import msgspec
import uvloop

from console.client.sockets import bind_unix
from console.server import watching
from console.server.engine_process import run_server
from console.server.watching import EventFrame, EventRoutes
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from engine.loop import EngineLoop
from engine.model.overviews import Change, Changes
from tests.support.gates import gate_of
from tests.support.served import running_loop

STREAMS = 200
READY_S, LASTS_S, LOOK_S = 6.0, 10.0, 0.002


def drain(path: str) -> None:
    """In a process of its own: everything that comes, as soon as it does."""

    async def pull() -> None:
        reader, writer = await asyncio.open_unix_connection(path, limit=2**22)
        writer.write(b"GET /v1/events?items=1 HTTP/1.1\r\nHost: muster\r\n\r\n")
        while await reader.read(2**20):
            pass

    async def all_of_them() -> None:
        await asyncio.gather(*(pull() for _ in range(STREAMS)))

    uvloop.run(all_of_them())


class Made:
    """Frames of so many changes, whatever happens in the cell."""

    def __init__(self, items: int) -> None:
        change = Change(version=1, at_ms=1, what="submitted", subject="research-train-0001", detail="research/vision")
        self._items = (change,) * items
        self.count = 0

    async def frame(self, after: int) -> EventFrame:
        self.count += 1
        version = 10**6 + self.count
        content = msgspec.json.encode(Changes(version=version, at_ms=1, items=self._items))
        return EventFrame(version, len(self._items), 0, watching._framed(version, content), b"")


async def measured(loop: EngineLoop, path: str, made: Made) -> str:
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="bench")
    stop = asyncio.Event()
    serving = asyncio.create_task(run_server(client, loop, [bind_unix(Path(path))], lambda: None, stop))
    readers = multiprocessing.get_context("spawn").Process(target=drain, args=(path,))
    readers.start()
    await asyncio.sleep(READY_S)
    stretches, frames, begun = [], made.count, time.thread_time()
    last, until = begun, time.monotonic() + LASTS_S
    while time.monotonic() < until:
        await asyncio.sleep(LOOK_S)
        now = time.thread_time()
        stretches.append(now - last)
        last = now
    each = (time.thread_time() - begun) / max(1, made.count - frames)
    readers.kill()
    stop.set()
    await serving
    longest = ", ".join(f"{one * 1000:.1f}" for one in sorted(stretches)[-3:])
    return f"{STREAMS} streams: {each * 1000:.1f} ms of CPU a frame; longest stretches {longest} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=watching.AT_ONCE)
    options = parser.parse_args()
    made = Made(options.items)
    watching.AT_ONCE, watching.TICK_S = options.at_once, 0.25
    EventRoutes._looked = lambda _, after: made.frame(after)  # type: ignore[method-assign, assignment]
    with running_loop() as loop, tempfile.TemporaryDirectory(prefix="mu-", dir="/tmp") as folder:
        loop.paused = True
        print(uvloop.run(measured(loop, str(Path(folder) / "e.sock"), made)))


if __name__ == "__main__":
    main()
