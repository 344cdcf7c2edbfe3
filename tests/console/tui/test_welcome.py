"""The welcome card of the demo is shown once and leads on; the tour goes on by what a person does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from console.cli.linear_pages import page_reader
from console.forms.session_state import SessionState
from console.tui.app import MusterApp
from console.tui.welcome import WelcomeDialog
from console.views.welcome import END, TOUR, Tour
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import press, until
from tests.console.tui.test_looks import text_of


def demo(folder: Path | None = None, **flags: bool) -> MusterApp:
    client = FakeClient(20)
    session = SessionState(folder)
    return MusterApp(lambda: client, session=session, flags={"demo": True, **flags}, log=Path("/dev/null"))


def shows_card(pilot: Pilot[Any]) -> bool:
    return isinstance(pilot.app.screen, WelcomeDialog)


def text(pilot: Pilot[Any]) -> str:
    return "\n".join(text_of(pilot))


async def test_the_card_is_shown_once_whole_and_brought_back_by_its_name(tmp_path: Path) -> None:
    async with demo(tmp_path).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: shows_card(pilot) and "a tour of the incident" in text(pilot))
        card = [line.split("│")[1].rstrip() for line in text_of(pilot) if line.count("│") > 1]
        assert not [line for line in card if line.endswith("…")], "nothing is cut off"
        await press(pilot, "escape")
        assert not shows_card(pilot)
    async with demo(tmp_path).run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: pilot.app.connected)  # type: ignore[attr-defined]
        await pilot.pause()
        assert not shows_card(pilot)
        await press(pilot, "colon", *"welcome", "enter")
        await until(pilot, lambda: shows_card(pilot))


@pytest.mark.parametrize(
    "flags", [{"demo": False}, {"quiet_day": True}, {"scenario": True}], ids=lambda each: next(iter(each))
)
async def test_no_other_cell_begins_with_it(flags: dict[str, bool]) -> None:
    async with demo(None, **flags).run_test() as pilot:
        await until(pilot, lambda: pilot.app.connected)  # type: ignore[attr-defined]
        await pilot.pause()
        assert not shows_card(pilot)
        if not pilot.app.flags["demo"]:  # type: ignore[attr-defined]
            await press(pilot, "colon", *"tour", "enter")
            assert pilot.app.tour is None, "a real cell has no incident to walk"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("key", "page"), [("1", "workload"), ("2", "whatif"), ("3", "recommendations")])
async def test_each_thing_to_try_has_a_key_that_goes_there(key: str, page: str) -> None:
    async with demo().run_test() as pilot:
        await until(pilot, lambda: shows_card(pilot))
        await press(pilot, key)
        app: Any = pilot.app
        await until(pilot, lambda: app.navigator.current is not None and app.context().screen == page)


async def test_the_tour_goes_on_by_what_a_person_does_and_esc_leaves_it() -> None:
    async with demo(tour=True).run_test(size=(80, 24)) as pilot:
        app: Any = pilot.app
        await until(pilot, lambda: TOUR[0].text in text(pilot))
        assert not shows_card(pilot)
        await press(pilot, "7")
        assert TOUR[0].text in text(pilot), "another page is not the step"
        app.steering.run("incident I-1")
        await until(pilot, lambda: TOUR[1].text in text(pilot))
        app.steering.run("workload w-1")
        await until(pilot, lambda: TOUR[2].text in text(pilot))
        await press(pilot, "7")
        await until(pilot, lambda: TOUR[3].text in text(pilot))
        await press(pilot, "escape")
        assert TOUR[3].text not in text(pilot)
        assert app.tour is None


def test_a_plan_has_to_be_verified_before_the_tour_goes_on() -> None:
    tour = Tour()
    for step in TOUR:
        assert tour.arrived(step.pages[0], "awaiting") == (not step.states)
        assert tour.arrived(step.pages[0], "verified") == bool(step.states)
    assert tour.text == END


def test_the_card_is_said_in_line_mode() -> None:
    client = FakeClient(20)
    lines, _ = page_reader("welcome", lambda: client)(0, 20)
    assert any("A change is tried on a copy" in line.text for line in lines)
    assert [line.link for line in lines if line.link][1:] == ["whatif", "recommendations"]
