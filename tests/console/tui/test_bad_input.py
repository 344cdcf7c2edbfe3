"""What fingers, mice, terminals and strangers may send: nothing crashes, nothing acts, and looking goes on."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.cells import cell_len
from textual import events
from textual.pilot import Pilot

from console.text.terminal_text import LONGEST
from console.tui.app import MIN_HEIGHT, MIN_WIDTH, MusterApp
from console.tui.navigation import DEEDS
from tests.console import fake_drafts
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, hint, line, press, quick, until  # noqa: F401
from tests.console.tui.test_hostile_text import check_screen
from tests.support.hostile_text import PAYLOADS

ACTING = (
    "propose", "approve", "vote", "execute", "resume", "confirm", "rollback", "cancel", "break_glass", "command",
    "close_review", "propose_policy", "vote_policy", "freeze", "thaw", "approve_runbook", "retire_runbook",
    "propose_draft", "revise", "pause", "reject_recommendation", "import_samples", "import_runs", "redact_audit",
    "rotate_audit_key", "anchor_audit", "answer_intent", "open_incident",
    "claim_incident", "hand_over_incident", "note_incident", "close_incident",
)  # fmt: skip
"""Questions of a client that change something."""
BINARY = "".join(map(chr, range(256))) + "\x1b[2J\x1b]52;c;eA==\x07\x1b[201~\x9b31m" + "yY\r\nX\x1b\x03\x11" * 20
"""What a paste of no text looks like, with keys in it that would act, answer, and leave."""


class Watched:
    """A client that notes every question that would change something."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.acted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in ACTING:
            self.acted.append(name)
        return getattr(self._client, name)


@asynccontextmanager
async def watched(
    client: FakeClient, start: str = "workloads", size: tuple[int, int] = (120, 30)
) -> AsyncIterator[tuple[Pilot[None], Watched]]:
    """A console that is still there at the end, and shows a page."""
    seen = Watched(client)
    async with console(seen, start, size) as pilot:  # type: ignore[arg-type]
        yield pilot, seen
        await pilot.pause()
        assert not pilot.app._exit
        check_screen(pilot)


def paste(pilot: Pilot[None], text: str) -> None:
    pilot.app.post_message(events.Paste(text))


# --- sizes


async def test_a_terminal_made_tiny_and_large_again_shows_what_it_showed() -> None:
    async with watched(FakeClient(500)) as (pilot, _):
        await press(pilot, "pagedown", "j")
        table = here(pilot).table
        row = table.cursor_row
        assert row is not None
        for size in ((20, 5), (1, 1), (60, 15), (300, 4), (120, 30)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            small = size[0] < MIN_WIDTH or size[1] < MIN_HEIGHT
            assert pilot.app.screen.has_class("-small") is small, size
        assert table.cursor_row is not None
        assert table.cursor_row.id == row.id
        await until(pilot, lambda: pilot.app.focused is table)
        await press(pilot, "j")
        assert table.cursor_row.id != row.id, "keys work again"


async def test_keys_at_a_terminal_too_small_to_read_act_on_nothing() -> None:
    async with watched(FakeClient(100)) as (pilot, seen):
        await pilot.resize_terminal(20, 5)
        await press(pilot, "X", "y", "enter", "H", "y", "enter", "escape")
        await pilot.resize_terminal(120, 30)
        await press(pilot, "escape")
        assert not {"approve", "execute", "vote"} & set(seen.acted)


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["overview", "workload wl-000003", "whatif", "proposals"])
async def test_a_storm_of_sizes(page: str) -> None:
    chance = random.Random(page)
    async with watched(FakeClient(100), "overview") as (pilot, _):
        pilot.app.steering.run(page)  # type: ignore[attr-defined]
        for _ in range(40):
            await pilot.resize_terminal(
                chance.choice((1, 20, 59, 60, 80, 139, 220, 400)), chance.choice((1, 5, 15, 24, 60))
            )
        await pilot.resize_terminal(120, 30)
        await until(pilot, lambda: page.split()[-1] in line(pilot, "title"))


# --- pastes


async def test_binary_pasted_onto_a_page_is_nothing() -> None:
    async with watched(FakeClient(100)) as (pilot, seen):
        before = line(pilot, "title")
        paste(pilot, BINARY * 150)
        await pilot.pause()
        assert line(pilot, "title") == before
        assert len(pilot.app.screen_stack) == 1
        assert not seen.acted


@pytest.mark.parametrize("key", ["slash", "colon"])
async def test_binary_pasted_into_a_bar_is_one_short_line_that_is_not_sent(key: str) -> None:
    async with watched(FakeClient(100)) as (pilot, seen):
        await press(pilot, key)
        bar: Any = pilot.app.bars.bar  # type: ignore[attr-defined]
        await until(pilot, lambda: pilot.app.focused is bar._input)
        paste(pilot, BINARY * 150)
        await pilot.pause()
        assert len(bar._input.value) <= LONGEST
        assert pilot.app.bars.bar is bar, "no newline in it was Enter"  # type: ignore[attr-defined]
        check_screen(pilot)
        await press(pilot, "enter")
        await press(pilot, "escape")
        await until(pilot, lambda: pilot.app.bars.bar is None)  # type: ignore[attr-defined]
        assert not seen.acted
        assert here(pilot).table.cursor_row is not None, (
            "a filter of nonsense took no row away, or Esc brought them back"
        )


async def test_binary_pasted_into_a_question_answers_nothing() -> None:
    async with watched(FakeClient(100)) as (pilot, seen):
        here(pilot).filter("state:running")
        await until(pilot, lambda: "state:running" in line(pilot, "title"))
        await press(pilot, "X")
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        asked = list(seen.acted)
        paste(pilot, BINARY * 150)
        await pilot.pause()
        assert len(pilot.app.screen_stack) > 1, "the question still stands"
        assert seen.acted == asked
        await press(pilot, "escape")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
        assert "approve" not in seen.acted


# --- names


MONSTERS = {
    "a million letters": "x" * 1_000_000,
    "a million marks": "x" + "\u0301" * 1_000_000,
    "a million lines": "\n" * 1_000_000,
    "wide letters": "漢" * 100_000,
    "escapes": "\x1b[31m\x1b]0;owned\x07\x9b2J" * 1_000,
    "turned around": "\u202egnp.exe\u202c" * 500,
    "nothing to see": "\u200b\u2060\u200d" * 10_000,
}


class Monstrous(FakeClient):
    """Every name of a workload, node and queue of the answers is this one."""

    def __init__(self, name: str) -> None:
        super().__init__(40)
        for rows in self._tables.values():
            for row in rows:
                for field in ("name", "tenant", "reason", "gpu_model"):
                    if isinstance(row.get(field), str):
                        row[field] = name

    def _text(self, index: int, plain: str) -> str:
        monster = getattr(self, "monster", "")
        return monster or plain


@pytest.mark.thorough
@pytest.mark.parametrize("name", MONSTERS.values(), ids=MONSTERS.keys())
async def test_a_monstrous_name_is_cut_everywhere(name: str) -> None:
    client = Monstrous(name)
    async with watched(client, "workloads", (80, 24)) as (pilot, _):
        app: Any = pilot.app
        for page in ("workloads", "nodes", "queues", "overview", "workload wl-000003", "node node-00001", "proposals"):
            client.monster = name  # type: ignore[attr-defined]
            app.steering.run(page)
            await app.workers.wait_for_complete()
            await pilot.pause()
            text = check_screen(pilot)
            assert max(map(cell_len, text.splitlines())) <= 80
            await press(pilot, "right", "right", "right")
            check_screen(pilot)


# --- filters


@pytest.mark.parametrize(
    "text",
    ["stat:x", "gpu>", "state:", "!", "wait>5", "gpu>=eight", '"', "state:queued stat:x", "((", "age>>1h", "sort:nope"],
)
async def test_a_filter_that_cannot_be_read_is_pointed_at_and_the_last_good_one_stays(text: str) -> None:
    async with watched(FakeClient(100)) as (pilot, _):
        here(pilot).filter("state:queued")
        await until(pilot, lambda: "20 of 100" in line(pilot, "title"))
        await press(pilot, "slash")
        bar: Any = pilot.app.bars.bar  # type: ignore[attr-defined]
        await until(pilot, lambda: pilot.app.focused is bar._input)
        bar._input.value = text
        await until(pilot, lambda: "^" in hint(pilot) or "no column" in hint(pilot) or "0 of" in line(pilot, "title"))
        if "^" in hint(pilot):
            await press(pilot, "enter")
            assert "20 of 100" in line(pilot, "title")
            assert bar.is_attached, "the line is there to be mended"


# --- fingers and mice


@pytest.mark.thorough
async def test_keys_typed_blindly_before_anything_is_there_act_on_nothing() -> None:
    seen = Watched(FakeClient(100))
    app = MusterApp(lambda: seen, start="workloads", title="t")  # type: ignore[arg-type,return-value]
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press(*"Xyy", "enter", *"3Xyyy", "enter", *":cancel wl-000001", "enter", "y", "y", "enter", *"Hy")
        await until(pilot, lambda: app.connected and app.navigator.current is not None)
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert "approve" not in seen.acted
        assert "execute" not in seen.acted


async def test_keys_that_mean_nothing_do_nothing() -> None:
    async with watched(FakeClient(100)) as (pilot, seen):
        before = line(pilot, "title")
        strange = (
            "f13",
            "ctrl+f9",
            "alt+x",
            "ctrl+shift+up",
            "é",
            "漢",
            "ctrl+@",
            "insert",
            "ctrl+alt+delete",
            "~",
            "^",
        )
        await press(pilot, *strange)
        assert line(pilot, "title") == before
        assert not seen.acted


@pytest.mark.thorough
@pytest.mark.parametrize("page", ["workloads", "overview"])
async def test_a_storm_of_the_mouse(page: str) -> None:
    chance = random.Random(page)
    async with watched(FakeClient(200), page) as (pilot, seen):
        for _ in range(40):
            x, y = chance.randrange(120), chance.randrange(1, 29)
            await pilot._post_mouse_events(
                [chance.choice((events.MouseMove, events.MouseDown, events.MouseScrollDown, events.MouseScrollUp))],
                offset=(x, y),
                button=chance.choice((1, 2, 3)),
            )
        await pilot.pause()
        assert "approve" not in seen.acted


KEYS = (
    *"jkhlgGq?/:srytewdbmvVXHLRCUDPOABN0123456789[]*'cofa", "up", "down", "left", "right", "pageup", "pagedown", "home",
    "end", "enter", "enter", "escape", "escape", "escape", "tab", "space", "backspace", "ctrl+u", "ctrl+d", "ctrl+p",
    "delete", "f5",
)  # fmt: skip
"""All but `y`, which answers questions, and what leaves."""
LEAVES = ("q", "Q", "ctrl+c", "ctrl+q")


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
async def test_random_keys_and_sizes_crash_nothing_and_never_agree(seed: int) -> None:
    chance = random.Random(seed)
    client = fake_drafts.DraftingClient(hostile=bool(seed % 2))
    client.script = [fake_drafts.run(text=client._text)] * 1_000
    client.stage(1, tier="T2")
    async with watched(client, "overview", (100, 30)) as (pilot, seen):
        app: Any = pilot.app
        for step in range(120):
            if chance.random() < 0.05:
                await pilot.resize_terminal(chance.choice((20, 60, 80, 140, 220)), chance.choice((5, 15, 24, 50)))
            elif chance.random() < 0.03:
                paste(pilot, chance.choice(list(PAYLOADS.values())))
            else:
                key = chance.choice(KEYS)
                if key not in LEAVES:
                    await pilot.press(key)
            if step % 30 == 0:
                check_screen(pilot)
        await pilot.resize_terminal(100, 30)
        for _ in range(12):
            await pilot.press("escape")
        assert app.navigator.current is not None
        agreed = {"approve", "execute", "vote", "rollback", "break_glass", "approve_runbook", "vote_policy"} & set(
            seen.acted
        )
        assert not agreed


def test_every_deed_that_is_no_page_can_be_loaded() -> None:
    import importlib

    for where in DEEDS.values():
        module, _, name = where.partition(":")
        assert callable(getattr(importlib.import_module(module), name))
