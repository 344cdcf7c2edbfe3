"""Words of strangers reach every screen, and do nothing there."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot

import console.tui.app
from console.tui.app import MusterApp
from console.tui.widgets.prompt_bar import PromptInput
from engine.model.errors import RefusedError
from engine.model.list_queries import COLUMNS
from tests.console import fake_gate
from tests.console.fake_client import HOSTILE, FakeClient
from tests.console.text.test_every_page import SIZES as WIDTHS
from tests.console.text.test_every_page import keep_to_the_page, settle
from tests.console.tui.test_app import console as opened
from tests.console.tui.test_app import line, until
from tests.support.hostile_text import ACTS, PAYLOADS, drawn_text
from tests.support.poisoned import Poisoned

PAGES = (
    "overview", "queues", "workloads", "nodes", "events", "pools", "orders", "whatif", "workload wl-000003",
    "workload wl-000001", "node node-00001", "recommendations", "forecast queue:batch", "curve queue:batch",
    "diff -2h -1h",
    "proposals", "proposal P-1", "proposal P-2", "proposal P-3", "runbooks", "runbook half-done", "audit", "record 7",
    "draft why", "drafts",
    "handover", "summary",
    "incidents", "incident I-1", "queue batch", "topology", "topology rack", "cost", "cost nodes=4 hours=6", "settings",
    "bookmarks", "policy", "reviews", "reservations",
)  # fmt: skip
SIZES = ((80, 24), (120, 40))
BAIT = ("@click", "[:]//", "evidence", "docs", "evil", "approve", "ticket", "boom", "┃")


class Watched(MusterApp):
    """Notes what text might have set off."""

    CSS_PATH = Path(console.tui.app.__file__).with_name("console.tcss")

    def __init__(self, factory: Callable[[], Any], **named: Any) -> None:
        super().__init__(factory, title=PAYLOADS["H03-title"], clock=lambda: 0.0, **named)
        self.fired: list[str] = []

    def action_boom(self, *words: object) -> None:
        self.fired.append(f"boom {words}")

    def open_url(self, url: str, *, new_tab: bool = True) -> None:
        self.fired.append(url)

    def bell(self) -> None:
        self.fired.append("bell")


def check_screen(pilot: Pilot[None]) -> str:
    """Every segment that would be drawn: nothing in it acts, hides or leads anywhere. Returns the text."""
    return drawn_text(pilot.app.screen._compositor.render_strips())


async def click_everywhere(pilot: Pilot[None]) -> None:
    """A click on every fourth line: markup that had become an action would run."""
    for y in range(4, 26, 4):
        await pilot.click(offset=(40, y))


def full() -> FakeClient:
    """Something of every kind."""
    client = FakeClient(40)
    text = client._text
    client.stage(1, tier="T3", votes=fake_gate.voted(text), notes=True)
    client.stage(2, state="stale", votes=fake_gate.voted(text)[:1], stale=fake_gate.changed_since(text), note="gone")
    client.stage(3, state="paused", standing=fake_gate.halfway(text), note="step drain could not be verified")
    for kind in ("pools", "orders"):
        client._tables[kind] = [
            {column.name: f"{column.name}-{n}" if column.unit == "text" else 1000 * n for column in COLUMNS[kind]}  # type: ignore[index]
            for n in range(3)
        ]
    return client


def done(client: FakeClient) -> tuple[object, ...]:
    return (client.approved, client.deeds, client.proposed, client.rejected, client.version, len(client.kept))


@asynccontextmanager
async def poisoned(offset: int, size: tuple[int, int]) -> AsyncIterator[tuple[Pilot[None], FakeClient]]:
    """A console of which every word is a stranger's. Ids are what they are every other time: pages that ask for more
    by id are reached then."""
    client = full()
    kept = frozenset({"id"}) if offset % 2 == 0 else frozenset[str]()
    answers = Poisoned(client, offset, kept)
    app = Watched(lambda: answers)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.connected)
        yield pilot, client


async def visit(pilot: Pilot[None], page: str) -> str:
    pilot.app.steering.run(page)  # type: ignore[attr-defined]
    await pilot.pause(0.02)
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    return check_screen(pilot)


async def take_the_bait(pilot: Pilot[None], most: int) -> None:
    """Click whatever looks as if it could be clicked, and press Enter on it."""
    lines = drawn_text(pilot.app.screen._compositor.render_strips()).split("\n")
    spots = [
        (row.find(bait) + 1, y)
        for y, row in enumerate(lines)
        for bait in BAIT
        if bait in row and 3 < y < len(lines) - 1
    ]
    for spot in spots[:: max(1, len(spots) // most)]:
        await pilot.click(offset=spot)
        check_screen(pilot)
    if not isinstance(pilot.app.focused, PromptInput):
        await pilot.press("enter")
    check_screen(pilot)
    while len(pilot.app.screen_stack) > 1:
        pilot.app.pop_screen()


async def every_page(offset: int, size: tuple[int, int], clicks: int, pages: Sequence[str] = PAGES) -> None:
    async with poisoned(offset, size) as (pilot, client):
        app = pilot.app
        assert isinstance(app, Watched)
        before = done(client)
        for page in pages:
            await visit(pilot, page)
            if clicks:
                await pilot.press("end", "right")
                await take_the_bait(pilot, clicks)
        assert done(client) == before
        assert app.fired == []
        assert not app._exit


async def test_pages_where_every_word_is_a_strangers() -> None:
    await every_page(0, SIZES[0], 0, PAGES[::5])
    await every_page(1, SIZES[1], 1, PAGES[2::10])


@pytest.mark.parametrize("pages", [PAGES[::6], pytest.param(PAGES, marks=pytest.mark.thorough)], ids=["some", "all"])
async def test_no_word_of_a_stranger_breaks_out_of_its_line(pages: Sequence[str]) -> None:
    """However wide a letter is, or how long a word, at whatever width."""
    async with poisoned(2, SIZES[0]) as (pilot, _):
        for page in pages:
            await visit(pilot, page)
            for size in WIDTHS[1::2]:
                await pilot.resize_terminal(*size)
                await settle(pilot)
                check_screen(pilot)
                keep_to_the_page(pilot)


@pytest.mark.thorough
@pytest.mark.parametrize("offset", range(2))
async def test_every_page_clicked(offset: int) -> None:
    """H01 to H07, in every field the console shows."""
    await every_page(offset * 7, SIZES[offset], 4)


@pytest.mark.slow
async def test_every_payload_in_every_field() -> None:
    for offset in range(len(PAYLOADS)):
        await every_page(offset, SIZES[offset // 2 % 2], 0)


async def test_dialogs_toasts_bars_and_the_palette() -> None:
    async with poisoned(2, SIZES[0]) as (pilot, client):
        app = pilot.app
        assert isinstance(app, Watched)
        for command in ("cancel wl-000001", "run half-done"):
            app.steering.run(command)
            await pilot.pause(0.1)
            check_screen(pilot)
            while len(app.screen_stack) > 1:
                app.pop_screen()
        await visit(pilot, "workloads")
        await pilot.press("s")
        check_screen(pilot)
        await pilot.press("escape")
        await visit(pilot, "proposal P-1")
        for keys in (("G", "N"), ("A",), ("X",), ("question_mark",), ("ctrl+p",)):
            await pilot.press(*keys)
            await pilot.pause(0.05)
            check_screen(pilot)
            while len(app.screen_stack) > 1:
                app.pop_screen()
        for payload in list(PAYLOADS.values())[::4]:
            app.say(f"copied {payload}")
            app.report(RefusedError(f"no {payload}", payload))
        await pilot.pause(0.05)
        check_screen(pilot)
        assert all(toast.markup is False for toast in app._notifications)
        app.clear_notifications()
        assert not client.approved
        assert all(deed == ("cancel", "P-1") for deed in client.deeds), "a plan whose question was left is withdrawn"
        assert app.fired == []
        assert not app._exit


async def test_the_palette_reads_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    async with poisoned(0, SIZES[1]) as (pilot, _):
        app = pilot.app
        assert isinstance(app, Watched)
        hostile = dataclasses.replace(
            app.actions["cancel"], title=PAYLOADS["H01-click"], commands=(PAYLOADS["H01-link-markup"],)
        )
        monkeypatch.setattr(app, "registry", (hostile,))
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await pilot.press("V", "i", "e", "w")
        await until(pilot, lambda: "[@click=app.boom('P-1')]View evidence[/]" in check_screen(pilot))
        assert app.fired == []


@pytest.mark.parametrize(
    "name",
    [
        "H07-bare",
        *(pytest.param(one, marks=pytest.mark.thorough) for one in ("H03-clipboard", "H03-lines", "H04-override")),
    ],
)
async def test_lines_that_people_edit_hide_nothing(name: str) -> None:
    """Typed, completed, recalled or pasted; a link in it stays what it is."""
    async with poisoned(0, SIZES[0]) as (pilot, _):
        app: Any = pilot.app
        await visit(pilot, "workloads")
        await pilot.press("colon")
        await until(pilot, lambda: app.focused is not None and isinstance(app.focused, PromptInput))
        app.focused.value = f"note {PAYLOADS[name]}"
        await pilot.pause()
        assert not ACTS.search(app.focused.value)
        assert ("://" in app.focused.value) == ("://" in PAYLOADS[name])
        await pilot.press("tab", "enter")
        await pilot.pause(0.05)
        assert app.fired == []


@pytest.mark.thorough
async def test_a_lost_engine_says_so_harmlessly() -> None:
    async with poisoned(0, SIZES[0]) as (pilot, client):
        client.refuse = RefusedError(PAYLOADS["H03-clear"] + PAYLOADS["H01-click"], PAYLOADS["H07-bare"])
        await pilot.press("r")
        await visit(pilot, "nodes")
        await visit(pilot, "workload wl-000003")
        assert not pilot.app._exit


async def test_what_is_copied_is_one_line_that_hides_nothing() -> None:
    """A line end in it would run in the shell it is pasted to."""
    async with poisoned(1, SIZES[0]) as (pilot, _):
        for page in ("workloads", "audit"):
            await visit(pilot, page)
            await pilot.press("y")
            assert not ACTS.search(pilot.app.clipboard), ascii(pilot.app.clipboard)


@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.thorough)])
async def test_a_model_stays_in_its_frame(step: int) -> None:
    """H06: whatever it writes, each line of it stands behind the gutter, also where it is wrapped."""
    for size in SIZES:
        async with poisoned(0, size) as (pilot, _):
            await visit(pilot, "draft why")
            pane: Any = pilot.app.navigator.current  # type: ignore[attr-defined]
            for offset in range(0, len(PAYLOADS), step):
                pane.connect()._offset = offset
                pane.reload()
                await pilot.app.workers.wait_for_complete()
                await pilot.pause()
                check_screen(pilot)
                framed = 0
                for view in (pane._left, pane._right):
                    inside = False
                    for shown in view._lines:
                        text = "".join(span for span, _ in shown.spans)
                        head = bool(shown.spans) and shown.spans[0][1] == "head"
                        inside = text.startswith("Model text, unverified") if head else inside
                        if inside and not head and text:
                            framed += 1
                            assert text.startswith("┃"), text
                            assert not shown.link
                assert framed


async def test_names_of_the_cell_are_told_apart() -> None:
    """Two names that differ in what is not seen look different."""
    async with opened(FakeClient(60, hostile=True), "workloads") as pilot:
        text = check_screen(pilot)
        assert r"\x1b" in text
        await pilot.press("right", "right", "right")
        check_screen(pilot)


async def test_filters_echo_hostile_text_harmlessly() -> None:
    async with opened(FakeClient(60, hostile=True)) as pilot:
        pilot.app.navigator.current.filter("[@click=app.quit]x[/] [/b] \x1b]0;x\x07")  # type: ignore[attr-defined]
        await pilot.app.workers.wait_for_complete()
        await pilot.pause(0.05)
        check_screen(pilot)
        assert not pilot.app._exit


@pytest.mark.parametrize("name", [HOSTILE[4], HOSTILE[0]], ids=["markup", "clipboard"])
async def test_pages_asked_for_by_a_hostile_name(name: str) -> None:
    client = FakeClient(60, hostile=True)
    client._tables["workloads"][6] |= {"id": name, "state": "running", "reason": None}
    async with opened(client) as pilot:
        app = pilot.app
        assert isinstance(app, MusterApp)
        app.steering.follow(f"w {name}")
        await until(pilot, lambda: line(pilot, "title"))
        await app.workers.wait_for_complete()
        check_screen(pilot)
        assert not app._exit
