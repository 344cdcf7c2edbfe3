"""What is copied: exactly what is shown, and nothing that acts on the terminal it is pasted into."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from console.cli.main import parser
from console.forms.filters import parse_filter, parse_sort
from console.text.plain_tables import pasteable, unformed
from console.tui import page_data
from console.tui.page_data import MAX_BYTES, CopyDialog, shell_command
from tests.console.fake_client import HOSTILE, FakeClient
from tests.console.tui.test_app import console, here, notes, press, quick, until

__all__ = ["quick"]


@pytest.fixture
def clipboard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was copied."""
    copied: list[str] = []
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setattr("textual.app.App.copy_to_clipboard", lambda _app, text: copied.append(text))
    return copied


async def choose(pilot: Pilot[None], *keys: str) -> None:
    await press(pilot, "y")
    await until(pilot, lambda: isinstance(pilot.app.screen, CopyDialog))
    await press(pilot, *keys)


@given(st.text(max_size=200))
def test_what_is_copied_stands_there_and_does_nothing(text: str) -> None:
    copied = pasteable(text)
    assert all(char in "\n\t" or char.isprintable() for char in copied)
    assert not copied.endswith("\n")
    assert copied.count("\n") <= text.count("\n")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_harmless_in_a_spreadsheet_and_a_terminal(text: str) -> None:
    assert "\x1b" not in pasteable(text)
    assert not unformed(f"={text}").startswith("=")


async def test_twice_the_key_copies_the_id(clipboard: list[str]) -> None:
    async with console(FakeClient(50)) as pilot:
        await choose(pilot, "y")
        await until(pilot, lambda: clipboard == [here(pilot).table.cursor_row.id])  # type: ignore[union-attr]
        assert "copied wl-" in notes(pilot)


async def test_marked_ids_are_copied_in_one_line(clipboard: list[str]) -> None:
    async with console(FakeClient(50)) as pilot:
        await press(pilot, "space", "space")
        ids = " ".join(here(pilot).table.marked)
        await choose(pilot, "y")
        await until(pilot, lambda: clipboard == [ids])


async def test_a_row_a_cell_and_all_rows(clipboard: list[str]) -> None:
    async with console(FakeClient(50)) as pilot:
        here(pilot).filter("state:running columns:id,gpu,wait,name")
        await pilot.app.workers.wait_for_complete()
        row = here(pilot).table.cursor_row
        assert row is not None
        await choose(pilot, "r")
        await until(pilot, lambda: len(clipboard) == 1)
        cells = clipboard[0].split("\t")
        assert len(cells) == 4
        assert cells[0] == row.id
        await choose(pilot, "c")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 2 and pilot.app.screen._title == "Copy a cell")  # type: ignore[attr-defined]
        await press(pilot, "b")
        await until(pilot, lambda: len(clipboard) == 2)
        assert clipboard[1] == cells[1]
        await choose(pilot, "v")
        await until(pilot, lambda: len(clipboard) == 3)
        lines = clipboard[2].split("\n")
        assert lines[0] == "id,gpu,wait_s,name"
        assert len(lines) == 1 + here(pilot).table.matched
        await choose(pilot, "j")
        await until(pilot, lambda: len(clipboard) == 4)
        items = json.loads(clipboard[3])
        assert len(items) == here(pilot).table.matched
        assert items[0]["gpu"] / 1000 == float(cells[1])


async def test_the_shell_command_asks_the_same(clipboard: list[str]) -> None:
    async with console(FakeClient(50)) as pilot:
        here(pilot).filter('state:pending name:"eval sweep" sort:queue,-wait columns:id,wait,queue')
        command = shell_command(pilot.app, here(pilot))  # type: ignore[arg-type]
        words = shlex.split(command)
        arguments = parser().parse_args(words[1:])
        assert parse_filter("workloads", arguments.filter) == here(pilot).view.where
        assert parse_sort("workloads", arguments.sort) == here(pilot).view.sort
        assert (arguments.columns, arguments.limit, arguments.cell) == ("id,wait,queue", 0, "test")
        await choose(pilot, "s")
        await until(pilot, lambda: clipboard == [command])


async def test_a_page_of_one_thing_is_copied_as_text_and_as_command(clipboard: list[str]) -> None:
    async with console(FakeClient(50)) as pilot:
        await press(pilot, "enter")
        await until(pilot, lambda: getattr(here(pilot), "detail", None) is not None)
        name = here(pilot).copyable
        await choose(pilot, "s")
        await until(pilot, lambda: clipboard == [f"muster why {name} --cell test"])
        await choose(pilot, "p")
        await until(pilot, lambda: len(clipboard) == 2)
        assert "Timeline" in clipboard[1]


async def test_what_is_too_much_goes_into_a_file_of_this_person(
    clipboard: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    async with console(FakeClient(50)) as pilot:
        text = "\n".join(f"row {number} \x1b[31m" for number in range(MAX_BYTES // 10))
        await page_data.put(pilot.app, text)  # type: ignore[arg-type]
        assert clipboard == []
        (path,) = (tmp_path / "muster" / "copied").iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
        assert "\x1b" not in path.read_text()
        assert path.read_text().count("\n") == text.count("\n") + 1
        await until(pilot, lambda: "too large for the clipboard" in notes(pilot))
