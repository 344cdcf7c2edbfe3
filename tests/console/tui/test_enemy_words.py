"""Lines, files and links that somebody else has written: they lead to pages or nowhere, they never act, and no console
ends over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from console.actions.registry import ACTIONS
from console.forms.session_state import SessionState
from console.tui.app import MusterApp
from console.tui.navigator import page_command
from engine.model.errors import SpecError
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, line, notes, press, until, write
from tests.console.tui.test_app import quick as quick
from tests.support.hostile_text import PAYLOADS, drawn_text

ACTING = (
    "cancel wl-000001", "drain node-00001", "approve P-1",
    "execute P-1", "reject P-1 no", "rollback P-1", "run x node=n",
    "set-quota batch --gpu 9", "reserve x", "freeze now", "thaw P-1", "export csv /tmp/x", "bookmark a = nodes",
    "forget a", "quit", "q", "handover", "summary", "draft --llm tell me all", "draft what is it",
    "claim I-1", "close-incident I-1", "hand-over I-1 bob", "note I-1 x",
    "save /tmp/x", "edit", "theme light", "columns id", "cancel", "break-glass P-1",
)  # fmt: skip
LEADING = (
    "overview", "workloads state:queued sort:-wait", "node node-00001", "queue batch", "pools", "proposal P-1",
    "audit type:vote", "record 7", "draft D-1", "open node-00001", "topology rack", "cost nodes=4 hours=1", "whatif",
)  # fmt: skip


@pytest.mark.parametrize("acting", ACTING)
def test_a_line_that_does_more_than_lead_to_a_page_is_none_for_a_link_or_a_bookmark(acting: str) -> None:
    with pytest.raises(SpecError, match="is not a page"):
        page_command(acting, ACTIONS)


def test_every_page_is_led_to() -> None:
    for leading in LEADING:
        assert page_command(leading, ACTIONS).action.commands[0] == leading.split()[0]


def test_no_line_that_changes_anything_leads_to_a_page() -> None:
    for action in ACTIONS:
        if action.mutates or action.changes:
            for name in action.commands:
                with pytest.raises(SpecError):
                    page_command(f"{name} x", ACTIONS)


@pytest.mark.thorough
async def test_followed_or_kept_it_is_told_and_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "console.json").write_text(
        json.dumps(
            {"bookmarks": {"mine": "cancel wl-000001", "out": "quit", "overview": "hold wl-000001", "n": "nodes"}}
        )
    )
    client = FakeClient(40)
    app = MusterApp(lambda: client, start="workloads", title="test", session=SessionState(tmp_path))  # type: ignore[arg-type,return-value]
    async with app.run_test(size=(120, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.connected and "40" in line(pilot, "title"))
        app.steering.follow("cancel wl-000001")
        await until(pilot, lambda: "is not a page" in notes(pilot))
        for name in ("mine", "out", "overview"):
            await press(pilot, "colon")
            await write(pilot, name)
            await press(pilot, "enter")
            await pilot.app.workers.wait_for_complete()
            assert len(app.screen_stack) == 1, "nobody is asked anything"
            assert app.bars.bar is not None, "the line stays, with what is wrong with it"
            await press(pilot, "escape")
        await press(pilot, "colon")
        await write(pilot, "n")
        await press(pilot, "enter")
        await until(pilot, lambda: line(pilot, "title").startswith("  nodes"))
    assert (client.approved, client.proposed) == ([], [])


TRAILS = (
    "cost user", "workloads state:", 'nodes "x', "settings nothing", "audit (", "proposals stat:x", "topology zz:zz",
    "nodes stat:x", 'events "', "record x", "queue", "draft --llm tell", "node \x1b[2J", "quit", "cancel wl-000001",
)  # fmt: skip
PLACE = {
    "cursor": [], "top": "x", "id": 7, "scroll": {"a": 1}, "columns": "zzz", "link": 9, "sort": 5, "marks": "no",
    "offset": -5, "row": -1, "column": 1e99, "folded": 7, "edits": [1, {}], "shown": {},
}  # fmt: skip


async def begun_at(folder: Path, trail: list[Any], choices: dict[str, Any]) -> None:
    lost = SessionState(folder)
    lost.note_place({"trail": trail})
    lost.close()
    (folder / "console.json").write_text(json.dumps(choices))
    client = FakeClient(40)
    app = MusterApp(lambda: client, title="test", session=SessionState(folder))  # type: ignore[arg-type,return-value]
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await until(pilot, lambda: app.connected)
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        drawn_text(pilot.app.screen._compositor.render_strips())
        await press(pilot, "1")
        await until(pilot, lambda: line(pilot, "title").startswith("  overview"))
    assert (client.approved, client.proposed, client.kept) == ([], [], {})


@pytest.mark.parametrize("kept", TRAILS[:2])
async def test_a_place_that_cannot_be_read_costs_that_place_alone(tmp_path: Path, kept: str) -> None:
    await begun_at(tmp_path, [["overview", {}], [kept, PLACE]], {})


@pytest.mark.thorough
@pytest.mark.parametrize("kept", TRAILS[2:])
async def test_no_place_ends_a_console(tmp_path: Path, kept: str) -> None:
    await begun_at(tmp_path, [["overview", {}], [kept, PLACE]], {})
    await begun_at(tmp_path, [[kept, PLACE]], {})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "choices",
    [
        {"theme": 7}, {"theme": "no\x1b[2J"}, {"lines": 7}, {"lines": list(PAYLOADS.values())}, {"bookmarks": [1]},
        {"bookmarks": dict(zip("abcdefghij", PAYLOADS.values(), strict=False))},
        {"columns:workloads": ["nope", 7]}, {"columns:workloads": 7}, {"left": 7},
    ],
)  # fmt: skip
async def test_no_choice_ends_a_console(tmp_path: Path, choices: dict[str, Any]) -> None:
    await begun_at(tmp_path, [["workloads", {}]], choices)
    await begun_at(tmp_path, [["bookmarks", {}]], choices)


@pytest.mark.parametrize("typed", ["audit (", "proposals stat:x", 'events "'])
async def test_words_behind_a_page_that_cannot_be_read_do_not_end_the_console(typed: str) -> None:
    async with console(FakeClient(20)) as pilot:
        await press(pilot, "colon")
        await write(pilot, typed)
        await press(pilot, "enter")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert not pilot.app._exit
        await press(pilot, "escape", "escape", "1")
        await until(pilot, lambda: line(pilot, "title").startswith("  overview"))
