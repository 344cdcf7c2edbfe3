"""Moving about: keys behind `g`, views back and forth, anything by its id, bookmarks, and being restored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from textual import events
from textual.pilot import Pilot

from console.actions.registry import ACTIONS, Jumps
from console.forms.session_state import SessionState
from console.tui.app import MusterApp
from console.tui.dialog_frames import ChoiceDialog, HelpDialog
from console.tui.navigator import MAX_DEPTH, MAX_VIEWS, trail_of
from engine.model.list_queries import Named
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, hint, line, notes, press, quick, until, write

__all__ = ["quick"]  # the fixture of short pauses

NAMES = {"/": "slash", ":": "colon", "-": "minus"}
"""Characters whose keys Textual calls otherwise."""


def at(pilot: Pilot[None], title: str) -> Any:
    return lambda: line(pilot, "title").startswith("  " + title)


def has_rows(pilot: Pilot[None]) -> bool:
    table = getattr(here(pilot), "table", None)
    return table is not None and table.cursor_row is not None


# --- jumps


def test_no_two_pages_are_behind_one_key_and_none_is_behind_those_of_the_prefix() -> None:
    keys = [action.jump for action in ACTIONS if action.jump]
    assert len(keys) == len(set(keys))
    assert not {"g", "u", "escape"} & set(keys)
    jumps = Jumps(ACTIONS)
    jumps.begin()
    assert jumps.end("comma", ",").action == "settings"
    assert jumps.end("Z", "Z").kind == "nothing"
    assert not jumps.waiting


async def test_jumps_lead_to_pages_and_the_footer_names_them_meanwhile() -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "j", "j", "g")
        told = "".join(text for each in pilot.app.screen.query(".jumps") for text, _, _ in each._left)  # type: ignore[attr-defined]
        assert "n nodes" in told
        assert "u previous page" in told
        await press(pilot, "escape")
        assert line(pilot, "footer") != ""
        assert here(pilot).table.cursor == 2, "esc ends the prefix and nothing else"
        await press(pilot, "g", "Z")
        assert here(pilot).NAME == "workloads"
        await press(pilot, "g", "g")
        assert here(pilot).table.cursor == 0
        await press(pilot, "g", "n")
        await until(pilot, at(pilot, "nodes"))
        await press(pilot, "g", "u")
        await until(pilot, at(pilot, "workloads"))
        await press(pilot, "g", "u")
        await until(pilot, at(pilot, "nodes"))


async def test_keys_typed_at_once_go_to_the_page_they_were_meant_for() -> None:
    client = FakeClient(100)
    app = MusterApp(lambda: client, title="test")
    async with app.run_test(size=(120, 30)) as pilot:
        # Before the first page is open, and before anything has answered.
        for key in "gnjjjGgwjj":
            app.post_message(events.Key(key, key))
        await until(pilot, lambda: app.navigator.current is not None and app.navigator.current.NAME == "workloads")
        await until(pilot, lambda: has_rows(pilot) and not app.navigator.landing)
        assert [pane.NAME for pane in app.navigator.stack] == ["workloads"]
        await press(pilot, "left_square_bracket")
        await until(pilot, at(pilot, "nodes"))


@pytest.mark.parametrize(("start", "turns"), [("overview", 0), ("workloads", 3), ("workloads", 5)])
async def test_a_bar_opened_at_once_behind_a_page_is_over_that_page(start: str, turns: int) -> None:
    """Also where it is the page one is on, and whatever the app does between two keys."""
    async with console(FakeClient(100), start) as pilot:
        app: Any = pilot.app
        for key in "3/state:running":
            app.post_message(events.Key(NAMES.get(key, key), key))
            for _ in range(turns):
                await asyncio.sleep(0)
        await until(pilot, lambda: app.bars.bar is not None and app.bars.bar.typed == "state:running")
        await press(pilot, "enter")
        await until(pilot, lambda: "/state:running" in line(pilot, "title"))
        assert len(app.screen_stack) == 1


async def test_keys_held_for_a_page_come_before_those_typed_as_it_lands() -> None:
    async with console(FakeClient(100)) as pilot:
        app: Any = pilot.app
        held = [events.Key(NAMES.get(key, key), key) for key in "4/state:"]
        app.keys.hold(held)  # dealt with once the app comes to it
        for key in "down":
            app.post_message(events.Key(key, key))
        await until(pilot, lambda: app.bars.bar is not None and app.bars.bar.typed == "state:down")
        assert here(pilot).NAME == "nodes"


# --- back and forth


@pytest.mark.thorough
async def test_views_are_gone_through_with_their_place() -> None:
    async with console(FakeClient(500)) as pilot:
        here(pilot).filter("state:queued sort:-gpu")
        await until(pilot, lambda: "100 of 500" in line(pilot, "title"))
        await press(pilot, "pagedown", "j", "j")
        row, top = here(pilot).table.cursor_row.id, here(pilot).table.scroll_offset.y  # type: ignore[union-attr]
        assert top > 0
        await press(pilot, "enter")
        await until(pilot, at(pilot, f"workloads › {row}"))
        await press(pilot, "g", "n")
        await until(pilot, at(pilot, "nodes"))
        await press(pilot, "g", "w")
        await until(pilot, at(pilot, "workloads"))
        here(pilot).filter("")
        await press(pilot, *["left_square_bracket"] * 2)
        await until(pilot, at(pilot, f"workloads › {row}"))
        await press(pilot, "left_square_bracket")
        await until(pilot, lambda: "100 of 500" in line(pilot, "title") and "by gpu ↓" in line(pilot, "title"))
        await until(pilot, lambda: has_rows(pilot) and here(pilot).table.cursor_row.id == row)  # type: ignore[union-attr]
        assert here(pilot).table.scroll_offset.y == top
        assert pilot.app.focused is here(pilot).table
        await press(pilot, "left_square_bracket")
        assert "the first page" in notes(pilot)
        await press(pilot, "right_square_bracket")
        await until(pilot, at(pilot, f"workloads › {row}"))


@pytest.mark.thorough
async def test_a_click_on_a_breadcrumb_goes_there() -> None:
    async with console(FakeClient(100)) as pilot:
        for command in ("workload wl-000003", "node node-00001", "workload wl-000004"):
            pilot.app.steering.follow(command)  # type: ignore[attr-defined]
        await until(pilot, at(pilot, "workloads › wl-000003 › node-00001 › wl-000004"))
        await pilot.click("#title", offset=(16, 0))
        await until(pilot, lambda: len(pilot.app.navigator.stack) == 2)  # type: ignore[attr-defined]
        assert at(pilot, "workloads › wl-000003")()


@pytest.mark.thorough
async def test_memory_of_the_way_is_bounded() -> None:
    async with console(FakeClient(20)) as pilot:
        navigator = pilot.app.navigator  # type: ignore[attr-defined]
        for number in range(MAX_VIEWS + 5):
            navigator.drill("node", f"node-{number % 20:05}")
        await until(pilot, lambda: not navigator.landing)
        assert len(navigator.stack) == MAX_DEPTH
        assert len(navigator._views) == MAX_VIEWS
        assert len(navigator._body.children) <= MAX_DEPTH + 1
        assert "› … ›" in line(pilot, "title")


def test_a_trail_of_a_file_is_read_as_far_as_it_makes_sense() -> None:
    assert trail_of([["nodes state:down", {"top": 3}], ["wizardry", {}], ["pools", {}]])[0].line == "nodes state:down"
    assert len(trail_of([["nodes", {}], ["wizardry", {}], ["pools", {}]])) == 1
    for wrong in (None, 3, {"a": 1}, [[1, 2]], [["nodes"]], "nodes"):
        assert trail_of(wrong) == ()


# --- anything by its id


@pytest.mark.parametrize(
    ("typed", "title"),
    [
        pytest.param("open wl-000003", "workloads › wl-000003", marks=pytest.mark.thorough),
        ("wl-000003", "workloads › wl-000003"),
        pytest.param("node-00002", "workloads › node-00002", marks=pytest.mark.thorough),
        ("research/train", "workloads › research/train"),
    ],
)
async def test_anything_opens_by_its_id_with_one_question(typed: str, title: str) -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        await press(pilot, "colon")
        await write(pilot, typed)
        await press(pilot, "enter")
        await until(pilot, at(pilot, title))
        assert pilot.app.bars.bar is None  # type: ignore[attr-defined]
        assert client.found.count(typed.removeprefix("open ")) <= 2, "once to go there, once to complete it"


@pytest.mark.thorough
async def test_keys_behind_an_id_wait_for_its_page_or_stay_in_the_line() -> None:
    async with console(FakeClient(100)) as pilot:
        for key in (":", *"node-00002", "enter", "g", "n", "j"):
            pilot.app.post_message(events.Key(NAMES.get(key, key), key if len(key) == 1 else None))
        await until(pilot, at(pilot, "nodes"))
        assert pilot.app.bars.bar is None  # type: ignore[attr-defined]
        await press(pilot, "left_square_bracket")
        await until(pilot, at(pilot, "workloads › node-00002"))


@pytest.mark.thorough
async def test_what_is_no_id_either_is_told_and_the_line_stays() -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "wl-99999999")
        await press(pilot, "enter")
        await until(pilot, lambda: "nothing is named 'wl-99999999'" in hint(pilot))
        assert pilot.app.bars.bar._input.value == "wl-99999999"  # type: ignore[attr-defined]


@pytest.mark.thorough
async def test_of_several_things_of_one_name_the_person_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(100)
    twice = (Named("node", "node-00001", "ready"), Named("workload", "wl-000001", "running"))
    monkeypatch.setattr(client, "find", lambda *_: tuple(Named(hit.kind, "x1", hit.detail) for hit in twice))
    async with console(client) as pilot:
        pilot.app.steering.run("open x1")  # type: ignore[attr-defined]
        await until(pilot, lambda: isinstance(pilot.app.screen, ChoiceDialog))
        await until(pilot, lambda: len(pilot.app.screen._body._lines) > 2)  # type: ignore[attr-defined]
        await press(pilot, "j", "enter")
        await until(pilot, at(pilot, "workloads › x1"))
        assert here(pilot).NAME == "workload"


# --- bookmarks


async def test_bookmarks_are_kept_listed_gone_to_and_taken_away(tmp_path: Path) -> None:
    client = FakeClient(500)
    app = MusterApp(lambda: client, start="workloads", title="test", session=SessionState(tmp_path))
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.connected and has_rows(pilot))
        here(pilot).filter("state:queued sort:-gpu")
        await press(pilot, "asterisk")
        await until(pilot, lambda: app.bars.bar is not None and app.bars.early is None)
        await write(pilot, "bookmark stuck")
        await press(pilot, "enter")
        await until(pilot, lambda: "bookmark stuck: :workloads state:queued" in notes(pilot))
        app.steering.run("bookmark mine = nodes state:down")
        await until(pilot, lambda: "bookmark mine" in notes(pilot))
        await press(pilot, "apostrophe")
        await until(pilot, lambda: "bookmarks   2" in line(pilot, "title"))
        await press(pilot, "enter")
        await until(pilot, lambda: "6 of 48" in line(pilot, "title"))
        await press(pilot, "colon")
        await write(pilot, "stuck")
        await press(pilot, "enter")
        await until(pilot, lambda: "100 of 500" in line(pilot, "title"))
        app.steering.run("forget mine")
        await until(pilot, lambda: "bookmark mine removed" in notes(pilot))
    assert SessionState(tmp_path).recall("bookmarks") == {"stuck": "workloads state:queued sort:-gpu"}


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("bookmark nodes", "is a command"),
        ("bookmark stuck = workloads state:queued tenat:ml", " " * 43 + "^^^^^ workloads have no column 'tenat'"),
        ("bookmark b = audit type:vote who~al", "the audit takes one value of a column, whole"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ("bookmark a = wizardry", "there is no command"), ("bookmark a = cancel wl-1", "is not a page"),
                ("bookmark a =", "no line after"),
                ("bookmark a b", "is not a bookmark name"), ("forget nothing", "no bookmark"),
            )
        ),
    ],
)  # fmt: skip
async def test_what_cannot_be_a_bookmark_says_why(typed: str, says: str) -> None:
    async with console(FakeClient(20)) as pilot:
        await press(pilot, "colon")
        await write(pilot, typed)
        await press(pilot, "enter")
        assert says in hint(pilot)


# --- a session


async def test_a_lost_console_is_gone_on_from_and_a_left_one_is_not(tmp_path: Path) -> None:
    client = FakeClient(500)

    def begun() -> MusterApp:
        return MusterApp(lambda: client, title="test", session=SessionState(tmp_path))

    app = begun()
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: app.connected)
        app.steering.run("workloads state:queued sort:-gpu")
        await until(pilot, lambda: "100 of 500" in line(pilot, "title") and has_rows(pilot))
        await press(pilot, "pagedown", "j")
        row = here(pilot).table.cursor_row.id  # type: ignore[union-attr]
        await press(pilot, "enter")
        await until(pilot, at(pilot, f"workloads › {row}"))
        app.exit()  # as when the terminal is gone: nobody has pressed q
    app = begun()
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: "restored where you were" in notes(pilot))
        await until(pilot, at(pilot, f"workloads › {row}"))
        await press(pilot, "escape")
        await until(pilot, lambda: "100 of 500" in line(pilot, "title") and has_rows(pilot))
        await until(pilot, lambda: here(pilot).table.cursor_row.id == row)  # type: ignore[union-attr]
        app.leave()
    app = begun()
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, at(pilot, "overview"))
        assert "restored" not in notes(pilot)
        app.leave()


@pytest.mark.thorough
async def test_with_restore_always_a_left_console_is_gone_on_from(tmp_path: Path) -> None:
    client = FakeClient(20)
    for first in (True, False):
        app = MusterApp(lambda: client, title="test", session=SessionState(tmp_path, restore="always"))
        async with app.run_test(size=(120, 30)) as pilot:
            await until(pilot, at(pilot, "overview" if first else "nodes"))
            app.steering.run("nodes state:down")
            await until(pilot, lambda: "6 of 48" in line(pilot, "title"))
            app.leave()


# --- help


async def test_help_shows_this_screens_keys_first_and_is_searched() -> None:
    async with console(FakeClient(100), size=(80, 24)) as pilot:
        await press(pilot, "question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpDialog) and pilot.app.screen._body._lines)
        body = pilot.app.screen._body  # type: ignore[attr-defined]
        assert "Here" in body.render_line(0).text
        assert max(len(body.render_line(y).text.rstrip()) for y in range(body.size.height)) <= 70
        assert body.max_scroll_y > 0, "what does not fit is scrolled to"
        await press(pilot, "slash", *"drain")
        await until(pilot, lambda: len(body._lines) < 20)
        shown = "\n".join("".join(text for text, _ in each.spans) for each in body._lines)
        assert "Drain (T2)" in shown
        assert "only on nodes" in shown
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, HelpDialog), "first out of the search"
        await press(pilot, "escape")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


# --- sizes


@pytest.mark.thorough
async def test_a_storm_of_sizes_keeps_page_focus_and_dialog() -> None:
    async with console(FakeClient(500)) as pilot:
        await press(pilot, "pagedown", "j")
        row = here(pilot).table.cursor_row.id  # type: ignore[union-attr]
        for size in ((20, 5), (400, 60), (80, 24), (61, 16), (1, 1), (400, 12), (120, 30)):
            await pilot.resize_terminal(*size)
        await until(pilot, lambda: pilot.app.focused is here(pilot).table)
        await until(pilot, lambda: has_rows(pilot) and here(pilot).table.cursor_row.id == row)  # type: ignore[union-attr]
        await press(pilot, "question_mark")
        for size in ((20, 5), (400, 60), (80, 24)):
            await pilot.resize_terminal(*size)
        await pilot.pause()
        assert isinstance(pilot.app.screen, HelpDialog)
        assert pilot.app.focused is pilot.app.screen._body
