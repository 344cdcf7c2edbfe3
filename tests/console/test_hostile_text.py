"""Names written by strangers reach every screen, and do nothing there."""

from __future__ import annotations

import re

import pytest
from textual.pilot import Pilot
from textual.strip import Strip

from console.app import MusterApp
from tests.console.fake_client import HOSTILE, FakeClient
from tests.console.test_app import console, until

ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b-\u200f\ud800-\udfff]")


def check_screen(pilot: Pilot[None]) -> str:
    """Every segment that would be drawn: no control character in it, no action behind it. Returns the text."""
    app = pilot.app
    strips: list[Strip] = app.screen._compositor.render_strips()
    text = []
    for strip in strips:
        for segment in strip:
            assert not ACTS.search(segment.text), repr(segment.text)
            meta = segment.style.meta if segment.style else {}
            assert "@click" not in meta, meta
            text.append(segment.text)
        text.append("\n")
    return "".join(text)


async def click_everywhere(pilot: Pilot[None]) -> None:
    """A click on every fourth line: markup that had become an action would run."""
    for y in range(4, 26, 4):
        await pilot.click(offset=(40, y))


@pytest.mark.parametrize("start", ["overview", "queues", "workloads", "nodes", "events"])
async def test_main_pages(start: str) -> None:
    async with console(FakeClient(60, hostile=True), start) as pilot:
        await pilot.pause(0.05)
        text = check_screen(pilot)
        assert r"\x1b" in text
        await pilot.press("right", "right", "right")
        check_screen(pilot)


@pytest.mark.parametrize("name", ["wl-000001", "wl-000002", "wl-000004", HOSTILE[4], HOSTILE[0]])
async def test_pages_of_one_workload(name: str) -> None:
    client = FakeClient(60, hostile=True)
    client._tables["workloads"][5]["id"] = name if not name.startswith("wl-") else "wl-x"
    client._tables["workloads"][6] |= {"id": name, "state": "running", "reason": None}
    async with console(client) as pilot:
        app = pilot.app
        assert isinstance(app, MusterApp)
        app.steering.run(f"w {name}", drill=True)
        await pilot.pause(0.1)
        await app.workers.wait_for_complete()
        await pilot.pause()
        check_screen(pilot)
        await click_everywhere(pilot)
        assert not app._exit


async def test_page_of_a_node() -> None:
    async with console(FakeClient(60, hostile=True), "nodes") as pilot:
        await pilot.press("enter")
        await pilot.pause(0.1)
        check_screen(pilot)
        await click_everywhere(pilot)
        assert not pilot.app._exit


async def test_dialogs_and_notes() -> None:
    client = FakeClient(60, hostile=True)
    async with console(client) as pilot:
        app = pilot.app
        assert isinstance(app, MusterApp)
        app.steering.run("cancel wl-000001")
        await until(pilot, lambda: client.proposed)
        await pilot.pause(0.1)
        check_screen(pilot)
        await pilot.press("escape", "question_mark")
        await pilot.pause(0.1)
        check_screen(pilot)
        await pilot.press("escape")
        for name in HOSTILE:
            app.say(f"copied {name}")
        await pilot.pause(0.1)
        check_screen(pilot)
        assert not app._exit


async def test_filters_echo_hostile_text_harmlessly() -> None:
    async with console(FakeClient(60, hostile=True)) as pilot:
        pilot.app.navigator.current.filter("[@click=app.quit]x[/] [/b] \x1b]0;x\x07")  # type: ignore[attr-defined]
        await pilot.app.workers.wait_for_complete()
        await pilot.pause(0.05)
        check_screen(pilot)
        await click_everywhere(pilot)
        assert not pilot.app._exit
