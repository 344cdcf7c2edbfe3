"""Flows of a person at the console, driven by keys."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.command import CommandList
from textual.pilot import Pilot

from console.actions.registry import ACTIONS, READ_ONLY
from console.client import change_feed
from console.tui import dialog_frames
from console.tui.app import MusterApp
from console.tui.decision_dialogs import ConfirmDialog
from console.tui.dialog_frames import HelpDialog
from console.tui.list_layout import SortDialog
from console.tui.widgets.drawing import OneLine
from console.tui.widgets.list_pane import ListPane
from engine.model.errors import RefusedError, SpecError
from runbooks.plans.typed_plan import DIGEST_TYPED
from tests.console.fake_client import FakeClient
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses: nobody waits between these keys."""
    monkeypatch.setattr(change_feed, "POLL_S", 0.05)
    monkeypatch.setattr(change_feed, "MIN_BETWEEN_S", 0.02)
    monkeypatch.setattr(change_feed, "RETRY_S", (0.05,))
    monkeypatch.setattr(dialog_frames, "GUARD_S", 0.0)
    monkeypatch.setattr("console.tui.input_bars.DEBOUNCE_S", 0.01)


@asynccontextmanager
async def console(
    client: FakeClient, start: str = "workloads", size: tuple[int, int] = (120, 30), *, read_only: bool = False
) -> AsyncIterator[Pilot[None]]:
    app = MusterApp(lambda: client, read_only=read_only, start=start, title="test")  # type: ignore[arg-type]
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: line(pilot, "title").startswith("  " + start) and app.connected)
        await until(pilot, lambda: not app.navigator.landing)
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        yield pilot


async def until(pilot: Pilot[None], happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "did not happen"
        await pilot.pause(0.01)


async def press(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()


async def write(pilot: Pilot[None], text: str) -> None:
    """Type into the bar that is open, quicker than by keys."""
    bar = pilot.app.bars.bar  # type: ignore[attr-defined]
    await until(pilot, lambda: bar.is_attached and pilot.app.focused is bar._input)
    bar._input.value = text
    bar._input.cursor_position = len(text)
    await pilot.pause()


def line(pilot: Pilot[None], name: str) -> str:
    found = pilot.app.screen_stack[0].query(f"#{name}")
    widget = found.first(OneLine)
    return "".join(text for text, _, _ in (*widget._left, *widget._right))


def hint(pilot: Pilot[None]) -> str:
    bar = pilot.app.bars.bar  # type: ignore[attr-defined]
    return "".join(text for text, _, _ in bar._hint._left)


def here(pilot: Pilot[None]) -> ListPane:
    return pilot.app.navigator.current  # type: ignore[attr-defined,no-any-return]


def notes(pilot: Pilot[None]) -> str:
    return "\n".join(note.message for note in pilot.app._notifications)


# --- looking


async def test_filter_follows_typing_and_points_at_errors() -> None:
    async with console(FakeClient(500)) as pilot:
        await press(pilot, "slash")
        await write(pilot, "state:queued")
        await until(pilot, lambda: "100 of 500" in line(pilot, "title"))
        await write(pilot, "state:queued stat:x")
        await until(pilot, lambda: "^^^^ workloads have no column 'stat'. Did you mean state?" in hint(pilot))
        await press(pilot, "enter")
        assert "100 of 500" in line(pilot, "title"), "the last good filter stays"
        await write(pilot, "state:held")
        await press(pilot, "enter")
        await until(pilot, lambda: "50 of 500" in line(pilot, "title"))
        await press(pilot, "escape")
        await until(pilot, lambda: "/state" not in line(pilot, "title"))


async def test_filter_completes_and_escape_restores() -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "slash")
        await write(pilot, "sta")
        assert "state:" in hint(pilot)
        await press(pilot, "tab")
        assert pilot.app.bars.bar._input.value == "state:"  # type: ignore[attr-defined]
        await press(pilot, "escape")
        assert here(pilot).view.filter_text == ""
        assert pilot.app.focused is here(pilot).table


async def test_sort_by_dialog_and_turn() -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "s")
        assert isinstance(pilot.app.screen, SortDialog)
        await press(pilot, "j", "j", "j", "enter")
        await until(pilot, lambda: "by gpu ↓" in line(pilot, "title"))
        await press(pilot, "s", "j", "j", "j", "enter")
        await until(pilot, lambda: "by gpu ↑" in line(pilot, "title"))


async def test_drill_and_back_keeps_the_row() -> None:
    async with console(FakeClient(500)) as pilot:
        await press(pilot, "pagedown", "j", "j")
        table = here(pilot).table
        name, top = table.cursor_row.id, table.scroll_offset.y  # type: ignore[union-attr]
        for back in ("escape", "backspace", "h", "q"):
            await press(pilot, "enter")
            await until(pilot, lambda: line(pilot, "title").startswith(f"  workloads › {name}"))
            await press(pilot, back)
            await until(pilot, lambda: "›" not in line(pilot, "title"))
            assert here(pilot).table is table
            assert table.cursor_row is not None
            assert (table.cursor_row.id, table.scroll_offset.y) == (name, top)
            assert pilot.app.focused is table


async def test_from_overview_to_node_and_all_the_way_back() -> None:
    async with console(FakeClient(500), "overview") as pilot:
        await press(pilot, "enter")
        await until(pilot, lambda: line(pilot, "title").startswith("  overview › nodes"))
        await until(pilot, lambda: here(pilot).table.cursor_row is not None)
        await press(pilot, "enter")
        await until(pilot, lambda: "› node-" in line(pilot, "title"))
        await press(pilot, "escape", "escape")
        assert "›" in line(pilot, "title"), "the first Esc after back clears the filter"
        await press(pilot, "escape")
        await until(pilot, lambda: line(pilot, "title").startswith("  overview   "))


async def test_digits_go_to_the_main_pages_and_remember_their_row() -> None:
    async with console(FakeClient(500)) as pilot:
        await press(pilot, "j", "j")
        for digit, name in (("1", "overview"), ("2", "queues"), ("4", "nodes"), ("5", "events"), ("3", "workloads")):
            await press(pilot, digit)
            await until(pilot, lambda name=name: line(pilot, "title").startswith("  " + name))  # type: ignore[misc]
        assert here(pilot).table.cursor == 2


async def test_a_new_event_appears_by_itself() -> None:
    client = FakeClient(100)
    async with console(client, "events") as pilot:
        client.happen("failed", "wl-000042", "out of memory")
        await until(pilot, lambda: "wl-000042" in here(pilot).table.render_line(1).text)


async def test_new_work_appears_by_itself() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        client.submit(3)
        await until(pilot, lambda: "103" in line(pilot, "title"))


# --- the command bar


@pytest.mark.parametrize(
    ("command", "title"),
    [
        ("nodes state:down", "  nodes   6 of 48"),
        ("queues", "  queues"),
        ("w wl-000003", "  workloads › wl-000003"),
        ("why wl-000003", "  workloads › wl-000003"),
        ("node node-00001", "  workloads › node-00001"),
        ("open node-00002", "  workloads › node-00002"),
        ("sort -wait", "  workloads   100  ·  by wait ↓"),
    ],
)
async def test_commands_go_there(command: str, title: str) -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "colon")
        await write(pilot, command)
        await press(pilot, "enter")
        await until(pilot, lambda: line(pilot, "title").startswith(title))
        assert pilot.app.bars.bar is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("wrokloads", "Did you mean :workloads?"),
        ("workloads stat:x", "          ^^^^ workloads have no column 'stat'"),
        ("node", "needs an id"),
        ("sort wiat", "Did you mean wait?"),
    ],
)
async def test_bad_commands_stay_open_and_say_what_is_wrong(command: str, says: str) -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "colon")
        await write(pilot, command)
        await press(pilot, "enter")
        assert says in hint(pilot)
        await press(pilot, "escape")
        assert line(pilot, "title").startswith("  workloads   100")


async def test_what_does_not_exist_is_said() -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "open nothing-such")
        await press(pilot, "enter")
        await until(pilot, lambda: "nothing-such" in notes(pilot))


async def test_a_paste_of_anything_is_one_harmless_line() -> None:
    async with console(FakeClient(100)) as pilot:
        from textual.events import Paste

        await press(pilot, "slash")
        await write(pilot, "")
        pilot.app.focused.post_message(Paste("a\x1b]52;c;x\x07\nb\x00" + "y" * 10_000))  # type: ignore[union-attr]
        await pilot.pause()
        value = pilot.app.bars.bar._input.value  # type: ignore[attr-defined]
        assert value.startswith(r"a\x1b]52;c;x\x07 b\x00")
        assert len(value) <= 500


# --- acting


async def read_to_the_end(pilot: Pilot[None]) -> None:
    """Of the plan that is asked about: before that there is no yes."""
    await until(pilot, lambda: isinstance(pilot.app.screen, ConfirmDialog))
    await pilot.pause()
    await press(pilot, "G")
    await until(pilot, lambda: pilot.app.screen.seen and pilot.app.screen._painted_at < float("inf"))  # type: ignore[attr-defined]


async def cancel_first(pilot: Pilot[None]) -> ConfirmDialog:
    await press(pilot, "X")
    await read_to_the_end(pilot)
    return pilot.app.screen  # type: ignore[return-value]


@pytest.mark.parametrize("answer", ["enter", "escape", "n", "y"])
async def test_cancel_asks_and_only_the_digest_is_a_yes(answer: str) -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        await cancel_first(pilot)
        await press(pilot, answer)
        assert client.approved == []
        if answer == "y":
            assert isinstance(pilot.app.screen, ConfirmDialog), "y is no answer to a disruptive plan"
        else:
            await until(pilot, lambda: "nothing changed" in notes(pilot))


async def test_typing_the_digest_approves_exactly_that_plan() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        row = here(pilot).table.cursor_row
        dialog = await cancel_first(pilot)
        wrong = "f" if dialog._proposal.digest[0] != "f" else "e"
        await press(pilot, wrong, *dialog._proposal.digest[:5])
        assert client.approved == []
        await press(pilot, dialog._proposal.digest[5])
        await until(pilot, lambda: client.approved == ["P-1"])
        await until(pilot, lambda: "done" in notes(pilot))
        assert row is not None
        assert client.state_of(row.id) == "cancelled"


async def test_a_reversible_plan_takes_a_y_but_not_an_early_one(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        pilot.app.navigator.current.filter("state:queued")  # type: ignore[attr-defined]
        await until(pilot, lambda: here(pilot).targets and here(pilot).targets[0].state == "queued")
        monkeypatch.setattr(dialog_frames, "GUARD_S", 1_000)
        await press(pilot, "H")
        await read_to_the_end(pilot)
        await press(pilot, "y")
        assert client.approved == [], "typed before it could be read"
        monkeypatch.setattr(dialog_frames, "GUARD_S", 0.0)
        await press(pilot, "y")
        await until(pilot, lambda: client.approved == ["P-1"])


async def test_marks_make_one_plan_for_exactly_those() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        here(pilot).filter("state:running")
        await until(pilot, lambda: "20 of 100" in line(pilot, "title"))
        await press(pilot, "space", "j", "space")
        marked = tuple(here(pilot).table.marked)
        assert "2 marked" in line(pilot, "title")
        await press(pilot, "R")
        await until(pilot, lambda: client.proposed)
        assert client.proposed[0].targets == marked
        await press(pilot, "escape", "escape")
        assert here(pilot).table.marked == {}


async def test_a_refusal_is_told_and_nothing_happens() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        client.refuse = RefusedError("wl-1 has just finished", "Nothing to do")
        await press(pilot, "X")
        await until(pilot, lambda: "wl-1 has just finished. Nothing to do" in notes(pilot))
        client.refuse = None


async def test_a_console_that_ends_while_it_asks_leaves_no_proposal() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        dialog = await cancel_first(pilot)
        proposal = dialog._proposal.id
        pilot.app.exit()
    assert ("cancel", proposal) in client.deeds


async def test_an_engine_lost_behind_an_open_dialog_changes_nothing() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        dialog = await cancel_first(pilot)
        client.down = True
        await press(pilot, *dialog._proposal.digest[:DIGEST_TYPED])
        await until(pilot, lambda: "not connected" in notes(pilot) or "does not answer" in notes(pilot))
        assert client.approved == []


async def test_an_impossible_action_says_why() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        here(pilot).filter("state:finished")
        await until(pilot, lambda: here(pilot).targets and here(pilot).targets[0].state == "finished")
        await press(pilot, "X")
        assert "ones can be cancelled" in notes(pilot)
        assert client.proposed == []


async def test_a_quota_typed_in_the_console_is_confirmed_and_done() -> None:
    client = FakeClient(100)
    async with console(client, start="queues") as pilot:
        await press(pilot, "colon")
        await write(pilot, "set-quota research/train --weight x")
        await press(pilot, "enter")
        assert "'x' is not a whole number" in hint(pilot)
        await write(pilot, "set-quota research/train gpu=64 --over evict")
        await press(pilot, "enter")
        await read_to_the_end(pilot)
        await press(pilot, "y", "enter")
        await until(pilot, lambda: "nothing changed" in notes(pilot))
        assert client.approved == [], "what evicts is not done by one key"
        pilot.app.steering.run("set-quota research/train --weight 5")  # type: ignore[attr-defined]
        await read_to_the_end(pilot)
        await press(pilot, "y")
        await until(pilot, lambda: len(client.approved) == 1)
    evicting, weighing = (plan.queue for plan in client.proposed)
    assert evicting is not None
    assert evicting.to.nominal == {"gpu_milli": 64_000}
    assert weighing is not None
    assert weighing.to.weight == 5


async def test_queues_are_held_by_a_key_and_only_while_they_are_open() -> None:
    client = FakeClient(100)
    async with console(client, start="queues") as pilot:
        await until(pilot, lambda: here(pilot).targets)
        await press(pilot, "P")
        await read_to_the_end(pilot)
        await press(pilot, "y")
        await until(pilot, lambda: client.state_of("research/train") == "held")
        await until(pilot, lambda: here(pilot).targets[0].state == "held")
        await press(pilot, "P")
        assert "only open or draining ones can be held" in notes(pilot)


async def test_read_only_does_nothing_and_says_why() -> None:
    client = FakeClient(100, read_only=True)
    async with console(client, read_only=True) as pilot:
        assert "read-only" in line(pilot, "top")
        assert "cancel" not in line(pilot, "footer")
        for action in (each for each in ACTIONS if each.mutates or each.changes):
            pilot.app.action_act(action.id)  # type: ignore[attr-defined]
            await until(pilot, lambda told=f"{action.title}: {READ_ONLY}": told in notes(pilot))
            for name in action.commands:
                with pytest.raises(SpecError, match=f":{name} is not possible here: read-only"):
                    pilot.app.steering.run(f"{name} wl-000003")  # type: ignore[attr-defined]
        pilot.app.clear_notifications()
        await press(pilot, "X")
        assert f"Cancel: {READ_ONLY}" in notes(pilot)
        assert client.proposed == client.deeds == []
        await press(pilot, "colon")
        await write(pilot, "cancel wl-000003")
        await press(pilot, "enter")
        assert READ_ONLY in hint(pilot)


# --- help, palette, theme


async def test_help_lists_every_action_of_the_page() -> None:
    async with console(FakeClient(100), size=(120, 170)) as pilot:
        await press(pilot, "question_mark")
        assert isinstance(pilot.app.screen, HelpDialog)
        await pilot.pause()
        text = "\n".join("".join(word for word, _ in line.spans) for line in pilot.app.screen._body._lines)
        for action in pilot.app.actions.values():  # type: ignore[attr-defined]
            assert action.title in text, action.id
        await press(pilot, "escape")
        assert pilot.app.focused is here(pilot).table


async def test_the_palette_offers_the_registry() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        await press(pilot, "ctrl+p")
        await press(pilot, *"queue")
        await until(pilot, lambda: pilot.app.screen.query_one(CommandList).highlighted is not None)
        await press(pilot, "enter")
        await until(pilot, lambda: line(pilot, "title").startswith("  queues"))


# --- life and death


async def test_connection_lost_and_regained() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        await press(pilot, "j", "j")
        name = here(pilot).table.cursor_row.id  # type: ignore[union-attr]
        client.down = True
        await until(pilot, lambda: "no connection" in line(pilot, "banner"))
        assert "does not answer" in line(pilot, "banner")
        assert pilot.app.screen.query_one("#banner").display
        assert here(pilot).table.cursor_row.id == name, "what was read stays"  # type: ignore[union-attr]
        await press(pilot, "X")
        assert "no connection to the engine" in notes(pilot)
        client.down = False
        client.submit(1)
        await until(pilot, lambda: "101" in line(pilot, "title"))
        assert not pilot.app.screen.query_one("#banner").display
        assert here(pilot).table.cursor_row.id == name  # type: ignore[union-attr]


async def test_an_engine_that_comes_late() -> None:
    client = FakeClient(100)
    client.down = True
    app = MusterApp(lambda: client, start="workloads", title="test")
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: "no connection" in line(pilot, "banner"))
        client.down = False
        await until(pilot, lambda: "100" in line(pilot, "title"))


async def test_a_factory_that_breaks_in_an_unforeseen_way_is_shown_not_fatal() -> None:
    def factory() -> FakeClient:
        raise ValueError("secret-token-123")

    app = MusterApp(factory, title="test")
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: "ValueError in a request" in line(pilot, "banner"))
        assert "secret" not in line(pilot, "banner")


async def test_too_small_and_back() -> None:
    async with console(FakeClient(100)) as pilot:
        await pilot.resize_terminal(20, 5)
        await pilot.pause()
        assert pilot.app.screen.query_one("#small").display
        assert not pilot.app.screen.query_one("#frame").display
        await press(pilot, "j", "right")
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: pilot.app.focused is here(pilot).table)
        assert pilot.app.screen.query_one("#frame").display


@pytest.mark.parametrize(
    "key", ["X", "colon", *(pytest.param(key, marks=pytest.mark.thorough) for key in ("slash", "question_mark", "s"))]
)
async def test_dialogs_and_bars_survive_a_tiny_terminal(key: str) -> None:
    async with console(FakeClient(100)) as pilot:
        await press(pilot, key)
        for size in ((20, 5), (1, 1), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        await press(pilot, "escape")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)


async def test_quit_by_q_and_by_ctrl_c() -> None:
    for key in ("q", "ctrl+c"):
        async with console(FakeClient(20)) as pilot:
            await pilot.press(key)
            assert pilot.app._exit


async def test_a_fault_of_the_console_leaves_one_line_and_a_log(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    app = MusterApp(lambda: FakeClient(20), title="test", log=log)

    async def fail() -> None:
        async with app.run_test() as pilot:
            pilot.app.call_later(lambda: 1 // 0)
            await pilot.pause()

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert "ZeroDivisionError" in log.read_text()


def test_nothing_heavy_is_loaded_up_to_the_first_rows() -> None:
    code = """
import asyncio, sys
from console.tui.app import MusterApp
from tests.console.fake_client import FakeClient
async def main():
    app = MusterApp(lambda: FakeClient(50), start="workloads")
    async with app.run_test() as pilot:
        for _ in range(30_000):
            await pilot.pause(0.02)
            if app.navigator.current and app.navigator.current.table.cursor_row:
                break
        assert app.navigator.current.table.cursor_row
asyncio.run(main())
heavy = {"numpy", "sqlmodel", "sqlalchemy", "httpx", "starlette", "uvicorn", "pydantic", "yaml", "sqlite3",
         "engine.state.cell_state", "engine.control", "engine.journal.event_journal", "engine.scheduling.cycle"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
