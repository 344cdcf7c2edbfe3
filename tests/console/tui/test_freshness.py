"""Honest about time: how old what is shown is, and what becomes of the console while its engine is away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from console.client.change_feed import Arrived, Connected, Lost
from console.client.remote import RemoteClient
from console.client.sockets import bind_unix
from console.tui.app import MusterApp
from console.tui.connection import ConnectionState
from console.tui.decision_dialogs import ConfirmDialog
from console.tui.input_bars import AWAY
from console.tui.widgets.frame import Age, DataAge, age_spans, silent_banner, since_boot, top_bar
from console.tui.widgets.pane import AsOf
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.errors import UnreachableError
from engine.model.overviews import Changes
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, line, notes, press, quick, read_to_the_end, until
from tests.support.cells import small_cell, submit
from tests.support.gates import gate_of
from tests.support.served import gpu_job, serving, socket_folder

__all__ = ["quick"]  # the fixture of short pauses


class Shown:
    """As much of a page as its age needs."""

    EVERY_S = 1.0
    frozen = None

    def __init__(self, as_of: AsOf | None) -> None:
        self.as_of = as_of


def heard(lifeline: ConnectionState, version: int, at_ms: int, now: float) -> bool:
    return lifeline.arrived(Arrived(Changes(version=version, at_ms=at_ms, items=(), missed=0), None), now)


def begun(version: int = 10, at_ms: int = 1_000, now: float = 100.0) -> ConnectionState:
    lifeline, client = ConnectionState(), FakeClient(1)
    client.version, client.now_ms = version, at_ms
    lifeline.connected(Connected(client, client.health()), now)  # type: ignore[arg-type]
    return lifeline


def text(age: Age | None) -> str:
    return "".join(words for words, _ in age_spans(age, wide=True)).strip()


def test_data_are_new_as_long_as_nothing_newer_is_known() -> None:
    lifeline, page = begun(), Shown(AsOf(10, 1_000))
    for second in range(60):
        assert not heard(lifeline, 10, 1_000, 101.0 + second), "a paused cell is not asked about again"
    assert text(lifeline.age(page, 161.0)) == "v10 · now"  # type: ignore[arg-type]


def test_data_age_from_when_something_newer_was_known_and_are_late_after_three_misses() -> None:
    lifeline, page = begun(), Shown(AsOf(10, 1_000))
    assert heard(lifeline, 11, 2_000, 101.0)
    heard(lifeline, 12, 3_000, 103.0)
    assert text(lifeline.age(page, 103.5)) == "v10 · now"  # type: ignore[arg-type]
    assert text(lifeline.age(page, 105.0)) == "! late · v10 · 4s old"  # type: ignore[arg-type]
    page.EVERY_S = 10.0
    assert text(lifeline.age(page, 105.0)) == "v10 · 4s old", "a page that is asked seldom is not late so soon"  # type: ignore[arg-type]
    page.as_of = AsOf(12, 3_000)
    assert text(lifeline.age(page, 105.0)) == "v12 · now"  # type: ignore[arg-type]


def test_data_that_were_old_when_the_console_came_are_as_old_as_the_cell_says() -> None:
    """2,000 versions behind what was heard first, they are not new because nothing was heard before."""
    lifeline = begun(version=2_010, at_ms=601_000)  # a cell at 60 times the speed of the wall
    assert text(lifeline.age(Shown(AsOf(10, 1_000)), 100.0)) == "! late · v10 · 10s old"  # type: ignore[arg-type]
    assert text(lifeline.age(Shown(AsOf(10, 1_000)), 105.0)) == "! late · v10 · 15s old"  # type: ignore[arg-type]


def test_the_age_goes_on_however_long_ago_the_data_are() -> None:
    lifeline, page = begun(), Shown(AsOf(10, 1_000))
    for second in range(1, 2_000):
        heard(lifeline, 10 + second, 1_000 + 60_000 * second, 100.0 + second)
    assert lifeline.age(page, 2_099.0).seconds == pytest.approx(1_999, abs=2)  # type: ignore[arg-type,union-attr]


def test_going_to_another_page_and_back_makes_nothing_new() -> None:
    lifeline, page, other = begun(), Shown(AsOf(0, 1_000)), Shown(AsOf(0, 2_000))
    assert lifeline.age(page, 100.0).seconds == 0  # type: ignore[arg-type,union-attr]
    lifeline.age(other, 110.0)  # type: ignore[arg-type]
    assert lifeline.age(page, 120.0).seconds == 20  # type: ignore[arg-type,union-attr]


def test_without_an_engine_everything_is_old_and_says_so_whatever_the_colour() -> None:
    lifeline, page = begun(), Shown(AsOf(10, 1_000))
    lifeline.lost(Lost(UnreachableError("gone", ""), 1.0), 101.0)
    told = lifeline.age(page, 109.0)  # type: ignore[arg-type]
    assert text(told) == "✗ no connection · v10 · 9s old"
    assert lifeline.age(Shown(None), 109.0) is None  # type: ignore[arg-type]


def test_no_clock_makes_an_age_negative_or_everything_old() -> None:
    lifeline, page = begun(), Shown(AsOf(10, 1_000_000))
    # The cell's clock was set back, and forward: what counts is when it was heard.
    heard(lifeline, 11, 1_000, 101.0)
    assert lifeline.age(page, 101.0).seconds == 0  # type: ignore[arg-type,union-attr]
    heard(lifeline, 12, 9_000_000_000_000, 102.0)
    page.as_of = AsOf(12, 9_000_000_000_000)
    assert text(lifeline.age(page, 102.5)) == "v12 · now"  # type: ignore[arg-type]
    # A clock that stood still, as in a process that was stopped.
    assert lifeline.age(page, 90.0).seconds == 0  # type: ignore[arg-type,union-attr]
    assert lifeline.silence(90.0) == 0


def test_time_in_suspension_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = since_boot(), since_boot()
    assert 0 <= second - first < 60
    lifeline, page = begun(now=100.0), Shown(AsOf(10, 1_000))
    # The machine slept for an hour: no message came, and that is not hidden.
    assert "1h" in text(lifeline.age(page, 3_700.0))  # type: ignore[arg-type]
    assert "1h" in silent_banner(lifeline.silence(3_700.0))


def test_versions_that_go_back_begin_anew() -> None:
    lifeline = begun(version=500)
    assert heard(lifeline, 3, 100, 101.0), "another journal: everything is asked for anew"
    assert lifeline.seen.version == 3
    assert lifeline.seen.outdated_since(AsOf(3, 100)) is None
    behind = FakeClient(1)
    behind.version = 1
    assert lifeline.connected(Connected(behind, behind.health()), 102.0)  # type: ignore[arg-type]


def test_what_is_remembered_of_versions_is_bounded() -> None:
    seen = DataAge()
    for version in range(10_000):
        seen.hear(version, version, float(version))
    assert seen.outdated_since(AsOf(1, 1)) is not None
    assert len(seen._heard) < 1_000


def test_the_first_line_says_connected_or_retrying_and_read_only_before_there_is_an_engine() -> None:
    health = FakeClient(1).health()
    told = ["".join(words for words, _ in top_bar(health, "x", 0, 1, read_only=False, width=140, retrying=away))
            for away in (False, True)]  # fmt: skip
    assert "● connected" in told[0]
    assert "✗ retrying" in told[1]
    assert "read-only" in "".join(words for words, _ in top_bar(None, "x", 0, 0, read_only=True, width=80))


# --- over a real engine that goes and comes back


# A Unix socket that could not be connected is closed by the garbage collector alone, in httpcore.
gone = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Served:
    """An engine behind a socket that can be taken away and started anew over the same journal."""

    def __init__(self, folder: Path, bound: Path) -> None:
        self.journal = folder / "journal.db"
        self.path = bound
        self.engine: Engine | None = None
        self._up = ExitStack()

    def start(self) -> None:
        first = not self.journal.exists()
        self.engine = Engine.open(self.journal, cell=small_cell(gpu_nodes=40) if first else None)
        if first:
            self.engine.command(submit(*(gpu_job(f"job-{number:03}") for number in range(120))))
        self._up.callback(self.engine.close)
        loop = EngineLoop(self.engine)
        loop.start()
        self._up.callback(loop.stop)
        bound: socket.socket = bind_unix(self.path)
        self._up.enter_context(serving(loop, bound, gate=gate_of(self.engine)))

    def stop(self) -> None:
        self._up.close()

    def count(self, state: str) -> int:
        assert self.engine is not None
        return sum(self.engine.workload(f"job-{number:03}").state == state for number in range(120))


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    with socket_folder() as short:
        engine = Served(folder, short / "engine.sock")
        await asyncio.to_thread(engine.start)
        try:
            yield engine
        finally:
            await asyncio.to_thread(engine.stop)


@gone
async def test_a_lost_engine_costs_nothing_but_time(tmp_path: Path) -> None:
    async with served(tmp_path) as engine:
        app = MusterApp(lambda: RemoteClient(str(engine.path)), start="workloads", title="test")
        async with app.run_test(size=(120, 20), notifications=True) as pilot:
            await until(pilot, lambda: app.connected and "120" in line(pilot, "title"))
            here(pilot).filter("state:queued sort:id")
            await until(pilot, lambda: "80 of 120" in line(pilot, "title"))
            await press(pilot, "pagedown", "j", "j")
            row, top = here(pilot).table.cursor_row.id, here(pilot).table.scroll_offset.y  # type: ignore[union-attr]
            assert top > 0
            await asyncio.to_thread(engine.stop)
            await until(pilot, lambda: "✗ no connection" in line(pilot, "title"))
            assert "✗ retrying" in line(pilot, "top")
            assert "no connection for" in line(pilot, "banner")
            await press(pilot, "j", "k", "X")
            assert "no connection to the engine" in notes(pilot)
            await asyncio.to_thread(engine.start)
            await until(pilot, lambda: "● connected" in line(pilot, "top"))
            await until(pilot, lambda: "· now" in line(pilot, "title"))
            assert "state:queued" in line(pilot, "title")
            assert not app.screen.query_one("#banner").display
            assert (here(pilot).table.cursor_row.id, here(pilot).table.scroll_offset.y) == (row, top)  # type: ignore[union-attr]
            assert app.focused is here(pilot).table


@gone
@pytest.mark.thorough
async def test_an_engine_killed_under_a_dialog_refuses_the_yes_and_nothing_is_done_twice(tmp_path: Path) -> None:
    async with served(tmp_path) as engine:
        app = MusterApp(lambda: RemoteClient(str(engine.path)), start="workloads", title="test")
        async with app.run_test(size=(120, 40), notifications=True) as pilot:
            await until(pilot, lambda: app.connected and "120" in line(pilot, "title"))
            here(pilot).filter("state:queued sort:id")
            await until(pilot, lambda: here(pilot).targets and here(pilot).targets[0].state == "queued")
            await press(pilot, "H")
            await read_to_the_end(pilot)
            dialog, told = app.screen, list[str]()
            assert isinstance(dialog, ConfirmDialog)
            await asyncio.to_thread(engine.stop)
            await until(pilot, lambda: dialog._outage is not None and dialog._outage.display)
            app.say = told.append  # type: ignore[method-assign,assignment]
            await press(pilot, "y", "Y", "y")
            assert app.screen is dialog, "nobody was there to say yes to"
            assert told == [AWAY] * 3
            await asyncio.to_thread(engine.start)
            await until(pilot, lambda: not dialog._outage.display)  # type: ignore[union-attr]
            await press(pilot, "y", "y", "y")
            await until(pilot, lambda: len(app.screen_stack) == 1)
            await until(pilot, lambda: engine.count("held") == 1)
        assert engine.count("held") == 1


async def test_an_age_is_drawn_only_when_it_reads_differently() -> None:
    client = FakeClient(20)
    async with console(client, "nodes") as pilot:
        title = pilot.app.screen.query_one("#title")
        await until(pilot, lambda: "now" in line(pilot, "title"))
        drawn = []
        title.refresh = lambda *args, **kwargs: drawn.append(args) or title  # type: ignore[method-assign,func-returns-value]
        for _ in range(20):
            pilot.app.drawing.time_passes()  # type: ignore[attr-defined]
        assert drawn == []
        client.down = True
        await until(pilot, lambda: "✗ no connection" in line(pilot, "title"))
        assert drawn
