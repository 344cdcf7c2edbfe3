"""Pages in every theme: without colour nothing is lost, and one sees in which cell one acts."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import pytest
from rich.style import Style
from textual.pilot import Pilot

from console.app import MusterApp
from console.deeds import DEEDS
from console.palettes import THEMES, name_of
from console.screens.sections import SectionsView
from console.settings import Settings
from console.theme import STATES
from tests.console import fake_drafts, fake_gate
from tests.console.fake_client import FakeClient
from tests.console.test_app import console, line, notes, press, quick, until  # noqa: F401

PAGES = (
    "overview", "queues", "workloads", "nodes", "events", "workload wl-000003", "node node-00001", "recommendations",
    "forecast queue:batch", "proposals", "proposal P-1", "runbooks", "runbook half-done", "audit", "record 7",
    "draft D-1", "cost", "settings", "topology", "queue batch", "policy",
)  # fmt: skip


def staged() -> FakeClient:
    client = fake_drafts.DraftingClient(hostile=False)
    client.script = [fake_drafts.run()]
    client.stage(1, tier="T3", votes=fake_gate.voted(client._text), notes=True)
    return client


async def go(pilot: Pilot[None], page: str) -> None:
    app: Any = pilot.app
    app.steering.run(page)
    await until(pilot, lambda: app.navigator.current is not None and page.split()[0] == app.navigator.current.NAME)
    await pilot.app.workers.wait_for_complete()
    await pilot.pause(0.05)


def screen(pilot: Pilot[None]) -> list[list[tuple[str, Style]]]:
    """Lines of (text, style) as they go to the terminal."""
    strips = pilot.app.screen._compositor.render_strips()
    return [[(segment.text, segment.style or Style()) for segment in strip] for strip in strips]


def text_of(pilot: Pilot[None]) -> list[str]:
    return ["".join(text for text, _ in segments) for segments in screen(pilot)]


@pytest.mark.parametrize("page", PAGES)
async def test_without_colour_states_bars_and_the_cursor_can_be_told(page: str) -> None:
    app = MusterApp(staged, title="test", theme="plain", clock=lambda: 0.0)  # type: ignore[arg-type]
    async with app.run_test(size=(140, 44), notifications=True) as pilot:
        await until(pilot, lambda: line(pilot, "title") and app.connected)
        await go(pilot, page)
        for segments in screen(pilot):
            for text, style in segments:
                for colour in (style.color, style.bgcolor):
                    assert colour is None or colour.is_default, (text, style)
        lines = text_of(pilot)
        whole = "\n".join(lines)
        for glyph, word in re.findall("([○◇◔●✓✗⊘‖◌◑◂]) ([a-z_]+)", whole):
            if word in STATES:
                assert STATES[word][0] == glyph, f"{glyph} {word}"
        view: Any = app.focused
        if isinstance(view, SectionsView):
            view.show_cursor()
            await pilot.pause()
            lines = text_of(pilot)
        rows = [each for each in lines if "▌" in each]
        if getattr(view, "link", "") or getattr(view, "cursor_row", None) is not None:
            assert len(rows) == 1, "one line has the cursor, and says so by a sign"


@pytest.mark.parametrize(
    "theme", [THEMES[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in THEMES[1:])], ids=name_of
)
async def test_the_overview_paints_in_every_theme(theme: Any) -> None:
    async with console(FakeClient(100), "overview") as pilot:
        app: Any = pilot.app
        app.steering.run(f"theme {name_of(theme)}")
        await pilot.pause()
        assert app.theme == theme.name
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
    assert any(fnmatchcase(cell, pattern) for pattern in Settings().production) == red
