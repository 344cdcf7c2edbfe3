"""Makes the pictures of the documents: the real console on a real demo engine, walked through docs/incident.md by keys.

make picture
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from console.client.launch import ensure_engine
from console.client.remote import RemoteClient
from console.client.sockets import probe
from console.forms.settings import DEMO_CELL, paths_in
from console.tui.app import MusterApp

SIZE = (132, 36)
PATIENCE = 1200
"""Looks at the screen, twenty a second, before a picture is given up."""
Keys = tuple[str, ...]
STILLS: tuple[tuple[str, Keys, str, Keys], ...] = (
    ("console", ("1",), "nodes ready", ()),
    ("pictures/incident", ("g", "I", "enter"), "What changed before", ()),
    ("pictures/why", (":", *"why nlp-0733", "enter"), "tried on a fork", ()),
)
"""Picture, keys that lead there, what must be on the screen, keys behind that. In the order of the walk."""


def screen(app: MusterApp) -> str:
    return app.export_screenshot().replace("&#160;", " ")


async def until(pilot: Pilot[None], shown: Callable[[], bool], what: str) -> None:
    for _ in range(PATIENCE):
        if shown():
            return
        await pilot.pause(0.05)
    raise RuntimeError(f"the console did not show {what!r}")


async def take(app: MusterApp, pilot: Pilot[None], folder: Path) -> None:
    for name, keys, awaited, then in STILLS:
        await pilot.press(*keys)
        await until(pilot, lambda text=awaited: text in screen(app) and "loading" not in screen(app), awaited)
        await pilot.press(*then)
        await pilot.pause(1.0)
        target = folder / f"{name}.svg"
        target.parent.mkdir(exist_ok=True)
        target.write_text(app.export_screenshot(title="muster --demo"), encoding="utf-8")
        print(target, flush=True)


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="mu-") as state:
        paths = paths_in(Path(state) / DEMO_CELL)
        ensure_engine(paths, ["--demo", "--data", str(paths.folder)])
        app = MusterApp(lambda: RemoteClient(str(paths.socket)), title="demo", page="overview")
        try:
            async with app.run_test(size=SIZE) as pilot:
                await take(app, pilot, folder)
        finally:
            peer = probe(paths.socket)
            if peer is not None:
                os.kill(peer.pid, signal.SIGTERM)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
