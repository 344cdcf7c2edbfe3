"""The theme is chosen by a key, and one sees in which cell one acts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from console.actions.key_map import key_map
from console.client.protocol import Health
from console.forms.settings import ConsoleSettings, Environment, environment_of, environments, given_keys, load
from console.text.tones import CONTRAST, THEMES, name_of, tones
from console.tui.app import MusterApp
from console.tui.decision_dialogs import ConfirmDialog, DecideDialog
from console.tui.navigation import DEEDS
from console.tui.widgets.drawing import OneLine
from console.tui.widgets.frame import where_spans
from runbooks.plans.typed_plan import DIGEST_TYPED
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, line, notes, press, quick, until  # noqa: F401
from tests.console.tui.test_snapshots import staged


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
            await press(pilot, "ctrl+t")
            seen.append(pilot.app.theme)
        assert sorted(seen) == sorted(theme.name for theme in THEMES)
        assert seen[-1] == "muster-dark", "the first comes last"
        await press(pilot, "colon", *"theme contast", "enter")
        await until(pilot, lambda: "Did you mean :theme contrast?" in "\n".join(text_of(pilot)) + notes(pilot))
        assert pilot.app.theme == "muster-dark"
    assert DEEDS["theme"]


ENVIRONMENTS = """
production = ["live-*"]
[environments.lab]
cells = ["demo-*"]
colour = "green"
theme = "contrast"
[environments.live]
confirm = "digest"
"""


class Called(FakeClient):
    """An engine whose cell has a name."""

    cell = ""

    def health(self) -> Health:
        return msgspec.structs.replace(super().health(), cell=self.cell)


def app_of(folder: Path, text: str, cell: str, *, keys: str = "", environment: str = "", **named: Any) -> MusterApp:
    """A console under this settings file, on a cell of this name."""
    path = folder / "muster.toml"
    path.write_text(text + keys)
    variables = {"MUSTER_CONFIG": str(path), "MUSTER_ENVIRONMENT": environment}
    client = Called(40)
    client.cell = cell
    return MusterApp(
        lambda: client, title="x", **named, keys=key_map(given_keys(variables)),  # type: ignore[arg-type,return-value]
        environment_of=partial(environment_of, known=environments(variables), settings=load({}, variables)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cell", "chosen", "mark", "tone"),
    [
        ("demo-cell", "", " lab ", "mark green"),
        ("live-eu", "", " PRODUCTION live ", "mark red"),
        ("live-eu", "lab", " PRODUCTION live ", "mark red"),
        ("elsewhere", "lab", " lab ", "mark green"),
        ("elsewhere", "", "", ""),
    ],
)
async def test_the_first_line_names_the_environment_by_what_the_cell_is_called(
    tmp_path: Path, cell: str, chosen: str, mark: str, tone: str
) -> None:
    app = app_of(tmp_path, ENVIRONMENTS, cell, environment=chosen)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: app.connected and cell in text_of(pilot)[0])
        line = app.frame.query_one("#top", OneLine)
        assert [part[:2] for part in line._left if part[1].startswith("mark")] == ([(mark, tone)] if mark else [])
        assert ("PRODUCTION" in text_of(pilot)[0]) == ("PRODUCTION" in mark)
        assert (app.theme == CONTRAST.name) == (mark == " lab "), "each environment has its theme"


@pytest.mark.parametrize("theme", ["sixteen", "plain"])
def test_production_stands_out_by_a_word_in_a_block_with_few_colours_and_none(theme: str) -> None:
    [(text, tone)] = where_spans(Environment("live", production=True))
    style = tones(next(each for each in THEMES if name_of(each) == theme))[tone]
    assert "PRODUCTION" in text
    assert style.reverse
    assert style.bold


async def test_what_is_decided_in_production_says_so_and_needs_the_digest_where_the_environment_wants(
    tmp_path: Path,
    quick: None,  # noqa: F811
) -> None:
    app = app_of(tmp_path, ENVIRONMENTS, "live-eu", start="nodes")
    async with app.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: app.connected and app.context().targets)
        await press(pilot, "C")
        await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmDialog) and pilot.app.screen.seen)
        assert " PRODUCTION live  cell live-eu" in text_of(pilot)[0], "the header below is dimmed"
        dialog: Any = pilot.app.screen
        assert dialog._proposal.tier == "T1"
        await press(pilot, "y")
        assert pilot.app.screen is dialog, "not by a key alone"
        await press(pilot, *dialog._proposal.digest[:DIGEST_TYPED])
        await until(pilot, lambda: pilot.app.screen is not dialog)


@pytest.mark.parametrize(("cell", "red"), [("lab", 0), ("prod", 1), ("prod-eu", 1), ("eu-prod", 1), ("reprod", 0)])
def test_which_names_are_of_production(cell: str, red: bool) -> None:
    assert environment_of((cell, "x"), (), ConsoleSettings()).production == red


async def test_a_bound_key_acts_and_is_shown_wherever_keys_are(tmp_path: Path, quick: None) -> None:  # noqa: F811
    keys = '\n[keys]\ncordon = "ctrl+d"\nqueues = ["f2", "g z"]\nfilter = "F"\nsort = []\n'
    app = app_of(tmp_path, "", "demo-cell", keys=keys, start="nodes")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.connected and app.context().targets)
        assert "^d cordon" in line(pilot, "footer")
        assert "F filter" in line(pilot, "footer")
        assert "sort" not in line(pilot, "footer"), "it has no key"
        assert "F2 queues" in line(pilot, "tabs")
        await press(pilot, "C", "slash", "s")
        assert len(app.screen_stack) == 1, "the keys of before do nothing"
        assert app.bars.bar is None
        await press(pilot, "ctrl+d")
        await until(pilot, lambda: isinstance(app.screen, ConfirmDialog))
        await press(pilot, "escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        await press(pilot, "question_mark")
        await until(pilot, lambda: any("^d" in text and "Cordon (T1)" in text for text in text_of(pilot)))
        await press(pilot, "escape", "ctrl+p", *"cordon")
        await until(pilot, lambda: any("^d  :cordon" in text for text in text_of(pilot)))
        await press(pilot, "escape", "g", "z")
        await until(pilot, lambda: app.context().screen == "queues")


async def test_a_wrong_key_map_is_told_at_the_start_and_the_usual_keys_hold(tmp_path: Path) -> None:
    app = app_of(tmp_path, "", "demo-cell", keys='\n[keys]\ncordon = "ctrl+d"\ndrian = "Q"\n', start="nodes")
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: "muster.toml:4: there is no action 'drian'. Did you mean drain?" in notes(pilot))
        await until(pilot, lambda: "C cordon" in line(pilot, "footer"))


async def test_on_a_phone_a_plan_is_read_and_voted_on_by_its_whole_digest(quick: None) -> None:  # noqa: F811
    client = staged()
    app = MusterApp(lambda: client, title="x")
    async with app.run_test(size=(45, 30)) as pilot:
        await until(pilot, lambda: app.connected)
        app.steering.run("proposals")
        app.steering.run("proposal P-1")
        await until(pilot, lambda: "P-1" in line(pilot, "title") and app.context().targets)
        assert "demo-cell ●" in line(pilot, "top"), "the cell and whether it answers come before its clock"
        assert "A approve" in line(pilot, "footer")
        assert "9 proposals" in "".join(text_of(pilot)[1:2]), "the page that is shown is among the tabs"
        await press(pilot, "G", "A")
        await until(pilot, lambda: isinstance(pilot.app.screen, DecideDialog) and pilot.app.screen._reached)
        digest = client.proposal("P-1").digest
        words = "\n".join(text_of(pilot))
        assert f"P-1 T3, plan {digest[:12]}" in words
        assert f"type {digest[:DIGEST_TYPED]}: ______" in words
        await press(pilot, *digest[:3])
        assert f"{digest[:3]}___" in "\n".join(text_of(pilot)), "what was typed so far is seen"
