"""The theme is chosen by a key, and one sees in which cell one acts."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from textual.pilot import Pilot

from console.forms.settings import ConsoleSettings
from console.text.tones import CONTRAST, THEMES
from console.tui.app import MusterApp
from console.tui.navigation import DEEDS
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, line, notes, press, quick, until  # noqa: F401


def text_of(pilot: Pilot[None]) -> list[str]:
    return [strip.text for strip in pilot.app.screen._compositor.render_strips()]


async def test_the_overview_paints_in_the_theme_that_is_asked_for() -> None:
    async with console(FakeClient(100), "overview") as pilot:
        app: Any = pilot.app
        app.steering.run("theme contrast")
        await pilot.pause()
        assert app.theme == CONTRAST.name
        assert any("overview" in text for text in text_of(pilot))


@pytest.mark.thorough
async def test_t_goes_through_the_themes_and_a_wrong_name_is_told() -> None:
    async with console(FakeClient(20)) as pilot:
        seen = []
        for _ in THEMES:
            await press(pilot, "t")
            seen.append(pilot.app.theme)
        assert sorted(seen) == sorted(theme.name for theme in THEMES)
        assert seen[-1] == "muster-dark", "the first comes last"
        await press(pilot, "colon", *"theme contast", "enter")
        await until(pilot, lambda: "Did you mean :theme contrast?" in "\n".join(text_of(pilot)) + notes(pilot))
        assert pilot.app.theme == "muster-dark"
    assert DEEDS["theme"]


@pytest.mark.parametrize(("pattern", "red"), [("demo-*", True), ("prod-*", False)])
async def test_a_cell_named_as_production_says_so_in_the_first_line(pattern: str, red: bool) -> None:
    app = MusterApp(lambda: FakeClient(10), title="x", production=(pattern,))  # type: ignore[arg-type,return-value]
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.connected and "demo-cell" in text_of(pilot)[0])
        assert ("PRODUCTION" in text_of(pilot)[0]) is red


@pytest.mark.parametrize(("cell", "red"), [("lab", 0), ("prod", 1), ("prod-eu", 1), ("eu-prod", 1), ("reprod", 0)])
def test_which_names_are_of_production(cell: str, red: bool) -> None:
    assert any(fnmatchcase(cell, pattern) for pattern in ConsoleSettings().production) == red
