"""The engine's process is killed, really, in the middle of whatever a person does; it comes again over its journal. The
person is where they were, what was told is true, and nothing was done twice."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.client.remote import RemoteClient
from console.tui import page_data
from console.tui.app import MusterApp
from console.tui.decision_dialogs import ConfirmDialog
from console.tui.screens.forecast import WhatIfPane
from engine.model.errors import MusterError
from tests.console.tui.test_app import here, line, notes, press, read_to_the_end, until, write
from tests.console.tui.test_app import quick as quick
from tests.support.patience import PATIENCE_S
from tests.support.served import socket_folder

pytestmark = [
    pytest.mark.thorough,
    # A connection whose other end was killed is left to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Process:
    """`muster serve` over a journal, of a cell of its own."""

    def __init__(self, folder: Path, bound: Path) -> None:
        self.path = bound
        self._command = [
            sys.executable, "-m", "console.cli.main", "serve", "--demo", "--quiet-day", "--nodes", "40", "--speed", "1",
            "--data", str(folder / "data"), "--socket", str(bound),
        ]  # fmt: skip
        self._environment = os.environ | {
            name: str(folder) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")
        }
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[RemoteClient] = []

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.client().health()
                return
            except MusterError:
                assert time.monotonic() < end, self._log.read_text()
                time.sleep(0.05)

    def kill(self) -> None:
        """As the kernel does that has no memory left: nothing is written, nobody is told."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def client(self) -> RemoteClient:
        self._clients.append(RemoteClient(str(self.path)))
        return self._clients[-1]

    def close(self) -> None:
        self.kill()
        for client in self._clients:
            client.close()


@asynccontextmanager
async def console_of(process: Process, start: Any = "workloads") -> AsyncIterator[Pilot[None]]:
    app = MusterApp(process.client, start=start, title="test")
    async with app.run_test(size=(140, 40), notifications=True) as pilot:
        await until(pilot, lambda: app.connected)
        yield pilot


@pytest.fixture
def process(tmp_path: Path) -> Any:
    with socket_folder() as short:
        process = Process(tmp_path, short / "engine.sock")
        process.start()
        try:
            yield process
        finally:
            process.close()
            # What the collector says of the connections belongs to this test, which is not interested.
            gc.collect()


async def lost(pilot: Pilot[None], process: Process) -> None:
    await asyncio.to_thread(process.kill)
    await until(pilot, lambda: not pilot.app.connected)  # type: ignore[attr-defined]


async def regained(pilot: Pilot[None], process: Process) -> None:
    await asyncio.to_thread(process.start)
    await until(pilot, lambda: pilot.app.connected)  # type: ignore[attr-defined]


async def asked_to_cordon(pilot: Pilot[None]) -> tuple[str, ConfirmDialog]:
    """The question whether to cordon a node, read to its end."""
    here(pilot).filter("state:ready sort:id")
    await until(pilot, lambda: "state:ready" in line(pilot, "title") and here(pilot).targets)
    await pilot.app.workers.wait_for_complete()
    node = here(pilot).targets[0].id
    await press(pilot, "C")
    await read_to_the_end(pilot)
    dialog = pilot.app.screen
    assert isinstance(dialog, ConfirmDialog)
    return node, dialog


async def times_cordoned(process: Process, node: str) -> int:
    """How many plans to do so were carried out; the node is in the state that follows from it."""
    client = process.client()
    known = await asyncio.to_thread(client.proposals, ("executing", "verifying", "paused", "verified", "failed"))
    times = sum(any(node in step.act.targets for step in each.plan.steps) for each in known)
    assert ((await asyncio.to_thread(client.node, node)).state == "cordoned") == (times > 0)
    return times


async def test_under_an_open_question(process: Process) -> None:
    async with console_of(process, "nodes") as pilot:
        node, dialog = await asked_to_cordon(pilot)
        await lost(pilot, process)
        await press(pilot, "y", "y")
        assert pilot.app.screen is dialog, "nobody was there to say yes to"
        await regained(pilot, process)
        assert pilot.app.screen is dialog
        await until(pilot, lambda: not dialog._outage or not dialog._outage.display)
        assert await times_cordoned(process, node) == 0
        await press(pilot, "y", "y", "y")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
        await pilot.app.workers.wait_for_complete()
        assert await times_cordoned(process, node) == 1
        assert "state:ready" in line(pilot, "title"), "the page is what it was"


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.08])
async def test_while_a_change_is_made(process: Process, after_s: float) -> None:
    """Killed at different moments after the yes: what is told is true, and doing it again does it once."""
    async with console_of(process, "nodes") as pilot:
        node, _ = await asked_to_cordon(pilot)
        told: list[str] = []
        app: Any = pilot.app
        app.say = told.append
        await pilot.press("y")
        await asyncio.to_thread(time.sleep, after_s)
        await asyncio.to_thread(process.kill)
        await until(pilot, lambda: not app.connected)
        await regained(pilot, process)
        await pilot.app.workers.wait_for_complete()
        times = await times_cordoned(process, node)
        assert times <= 1
        if any("done" in words for words in told):
            assert times == 1, told
        assert "state:ready" in line(pilot, "title")
        if not times:
            assert len(app.screen_stack) == 1
            again, _ = await asked_to_cordon(pilot)
            assert again == node
            await press(pilot, "y")
            await until(pilot, lambda: len(app.screen_stack) == 1)
            await pilot.app.workers.wait_for_complete()
        assert await times_cordoned(process, node) == 1


async def test_while_a_filter_is_typed(process: Process) -> None:
    async with console_of(process) as pilot:
        await until(pilot, lambda: here(pilot).table.cursor_row is not None)
        await press(pilot, "slash")
        bar: Any = pilot.app.bars.bar  # type: ignore[attr-defined]
        await until(pilot, lambda: bar.is_attached and pilot.app.focused is bar._input)
        await press(pilot, *"state:run")
        await lost(pilot, process)
        await press(pilot, *"ning")
        assert bar._input.value == "state:running"
        await press(pilot, "enter")
        await regained(pilot, process)
        await until(pilot, lambda: "state:running" in line(pilot, "title") and here(pilot).targets)
        await until(pilot, lambda: all(target.state == "running" for target in here(pilot).targets))


async def test_during_an_export_leaves_no_half_file(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "STEP", 20)
    there = tmp_path / "out"
    there.mkdir()
    async with console_of(process, "nodes") as pilot:
        await until(pilot, lambda: here(pilot).table.cursor_row is not None)
        fill = page_data.Export._put

        def put_and_kill(self: Any, file: Any, part: Any, begin: int) -> None:
            fill(self, file, part, begin)
            process.kill()

        monkeypatch.setattr(page_data.Export, "_put", put_and_kill)
        await press(pilot, "colon")
        await write(pilot, f"export json {there}/nodes.json")
        await press(pilot, "enter")
        await until(pilot, lambda: not pilot.app.connected)  # type: ignore[attr-defined]
        await pilot.app.workers.wait_for_complete()
        assert list(there.iterdir()) == []
        monkeypatch.setattr(page_data.Export, "_put", fill)
        await regained(pilot, process)
        await press(pilot, "colon")
        await write(pilot, f"export json {there}/nodes.json")
        await press(pilot, "enter")
        await until(pilot, lambda: "exported" in notes(pilot))
        assert json.loads((there / "nodes.json").read_text())["complete"]


async def test_during_a_what_if(process: Process) -> None:
    async with console_of(process, "nodes") as pilot:
        await until(pilot, lambda: here(pilot).targets)
        node = here(pilot).targets[0].id
        await press(pilot, "colon")
        await write(pilot, f"whatif drain {node}")
        await press(pilot, "enter")
        page = lambda: pilot.app.navigator.current  # type: ignore[attr-defined]  # noqa: E731
        await until(pilot, lambda: isinstance(page(), WhatIfPane) and page().edits)
        await press(pilot, "w")
        await until(pilot, lambda: page().detail is not None and page().detail.runs)
        await lost(pilot, process)
        await regained(pilot, process)
        assert len(page().edits) == 1, "what was put together is still there"
        await until(pilot, lambda: page().detail.runs == ())
        await press(pilot, "w")
        await until(pilot, lambda: page().detail.runs)
