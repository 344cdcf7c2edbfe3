"""Scenarios that can be watched: each runs in cell time behind the console, and a restart goes on where it was."""

from __future__ import annotations

import asyncio
import itertools
import re
import time

import pytest
from textual.pilot import Pilot

from console.cli import demo_cell, main
from console.forms import command_arguments
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui.app import MusterApp
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import AnyCommand, Define, Submit
from engine.model.errors import MusterError
from engine.model.specs import WorkloadSpec, WorkloadState
from engine.scenarios.live_scenarios import SCENARIOS, Happening, scenario
from tests.support.gates import gate_of
from tests.support.patience import PATIENCE_S

SMALL = {"gke-65k": 130, "gke-130k": 200, "clemson": 90, "spot-week": 200, "predictive-day": 20}
START_MS = demo_cell.START_MS


def opened(name: str) -> Engine:
    engine = Engine.open(None, seed=1)
    engine.advance(START_MS)
    engine.command(Define(cell=scenario(name).cell(SMALL[name], START_MS)))
    return engine


def happenings(name: str) -> list[Happening]:
    """The first day of it, at most."""
    feed = scenario(name).feed(SMALL[name], 1, START_MS)
    return list(itertools.takewhile(lambda each: each[0] < START_MS + 86_400_000, feed))


def command(what: WorkloadSpec | AnyCommand) -> AnyCommand:
    return Submit(workloads=(what,)) if isinstance(what, WorkloadSpec) else what


def test_the_shell_offers_all_of_them_and_nothing_else() -> None:
    assert set(command_arguments.SCENARIOS) == set(SCENARIOS) == set(SMALL)
    with pytest.raises(MusterError, match="gke-65k"):
        scenario("gke-1k")


@pytest.mark.parametrize("arguments", [["--scenario", "clemson"], ["serve", "--scenario", "clemson"]])
def test_scenarios_belong_to_the_demo(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    assert "Add --demo" in capsys.readouterr().err


@pytest.mark.parametrize("name", SMALL)
def test_what_happens_is_in_order_and_nothing_of_it_is_refused(name: str) -> None:
    engine = opened(name)
    load = happenings(name)
    assert [at_ms for at_ms, _ in load] == sorted(at_ms for at_ms, _ in load)
    for at_ms, what in load[:40]:
        engine.advance(at_ms)
        engine.command(command(what))
    assert engine.state.workloads.state_counts[WorkloadState.RUNNING] or name == "gke-65k"
    assert sum(engine.state.workloads.attempts) > 0


def test_a_restart_goes_on_where_it_was() -> None:
    engine = opened("gke-65k")
    load = happenings("gke-65k")
    assert list(demo_cell.ahead(engine, iter(load))) == load, "nothing has happened yet"
    at_ms = load[0][0]
    engine.command(command(load[0][1]))
    engine.advance(at_ms + 1)
    assert list(demo_cell.ahead(engine, iter(load))) == load[1:]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gke-130k", "spot-week"])
def test_the_console_shows_it(name: str) -> None:
    """The engine's loop plays it at twenty minutes a second; the overview shows work that runs."""
    engine = opened(name)
    loop = EngineLoop(engine, speed=1200, feed=iter(happenings(name)))
    client = LocalClient(loop, gate_of(engine), Advisor(loop), name="watched")
    loop.start()
    try:
        asyncio.run(watched(MusterApp(lambda: client, start="overview", title="watched"), loop))
        assert loop.feed_error == ""
        assert loop.fault == ""
    finally:
        loop.stop()


async def watched(app: MusterApp, loop: EngineLoop) -> None:
    async with app.run_test(size=(120, 30)) as pilot:
        deadline = time.monotonic() + PATIENCE_S
        while not (started(loop) and re.search(r"[1-9][\d,]* run\b", shown(pilot))):
            assert time.monotonic() < deadline, "nothing is seen to run"
            await pilot.pause(0.05)
        await pilot.press("4")
        await pilot.pause()
        for page in ("pools", "orders"):
            await pilot.press("colon", *page, "enter")
            while not shows_rows(pilot, page):
                assert time.monotonic() < deadline, f"no {page} are shown: {shown(pilot)}"
                await pilot.pause(0.05)


def shows_rows(pilot: Pilot[None], page: str) -> bool:
    """Whether that list is there, read; a cell that does not grow has no orders."""
    text = shown(pilot)
    return "POOL" in text and page in text and "loading" not in text


def started(loop: EngineLoop) -> bool:
    return loop.call(lambda engine: sum(engine.state.workloads.attempts)) > 0


def shown(pilot: Pilot[None]) -> str:
    """All text on the screen."""
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join(strip.text for strip in lines)
