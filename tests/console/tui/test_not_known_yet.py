"""What is not known yet says so: no page calls anything empty before its answer has come, and none that has lost its
engine mixes what it knows with what it does not."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from console.tui.app import MusterApp
from engine.model.errors import UnreachableError
from engine.traces.progress import stage
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import line, quick, until
from tests.console.tui.test_hostile_text import PAGES, full
from tests.support.effort import most
from tests.support.patience import PATIENCE_S

__all__ = ["quick"]

ALWAYS = ("health", "changes", "present", "close", "whoami", "read_only")
"""Answers that the frame around every page lives on."""
EMPTY = re.compile(
    r"(?:\b(?:none|nothing|nobody|no(?! connection))\b|(?<![\w.,:/+-])0(?![\w.,:/%-]))(?: [\w-]+){0,3}", re.IGNORECASE
)
"""What says that there is nothing."""
OWN = frozenset(("bookmarks", "settings", "events"))
"""Pages of what this console itself keeps."""


class Silent:
    """A client that never answers some of its questions; the others it passes on."""

    def __init__(self, client: FakeClient, answers: Iterable[str]) -> None:
        self._client = client
        self._answers = frozenset((*ALWAYS, *answers))
        self.asked: list[str] = []
        self.asked_on: set[int] = set()
        """Threads."""
        self.over = threading.Event()

    def __getattr__(self, name: str) -> Any:
        if name in self._answers:
            return getattr(self._client, name)

        def never(*_: Any, **__: Any) -> Any:
            self.asked.append(name)
            self.asked_on.add(threading.get_ident())
            self.over.wait()
            raise UnreachableError("the test is over", "")

        return never


@asynccontextmanager
async def silent(size: tuple[int, int], *answers: str) -> AsyncIterator[tuple[Pilot[None], Silent]]:
    client = Silent(full(), answers)
    app = MusterApp(lambda: client, start="overview", title="test")  # type: ignore[arg-type,return-value]
    try:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.connected)
            yield pilot, client
    finally:
        client.over.set()


def body(pilot: Pilot[None]) -> list[str]:
    """The title and the page, as they are on the screen."""
    rows = [strip.text for strip in pilot.app.screen._compositor.render_strips()]
    return rows[2:-1]


TRUE = ("nothing here changes", "0 s of about")
"""Said of the page itself, whatever has come."""


def said_empty(pilot: Pilot[None]) -> list[str]:
    """Whatever says that there is nothing, with the words behind it."""
    found = [each[0] for row in body(pilot) for each in EMPTY.finditer(row)]
    return [words for words in found if not words.startswith(TRUE)]


SIDES = frozenset(
    (
        "budgets", "scaling", "forecast", "recommendations", "recommendation", "unblocking", "estimate", "advice_on",
        "start_forecast", "fairness", "goodput", "fragmentation", "processes", "mirrored", "mirror", "audit_state",
        "model", "freezes", "reviews", "policy", "showback", "scores", "history", "proposals", "runs", "records",
    )
)  # fmt: skip
"""What a page asks besides what it is about."""


async def seen(pilot: Pilot[None], *, settled: bool) -> dict[str, list[str]]:
    """Page -> lines of it that say that there is nothing."""
    found = {}
    for page in PAGES:
        if page.partition(" ")[0] in OWN:
            continue
        pilot.app.steering.run(page)  # type: ignore[attr-defined]
        await pilot.pause(0.1)
        if settled:
            await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        found[page] = said_empty(pilot)
    return found


@pytest.mark.parametrize("size", [(80, 24), pytest.param((220, 60), marks=pytest.mark.slow)])
async def test_no_page_takes_what_was_not_answered_for_nothing(size: tuple[int, int]) -> None:
    """Only what the page is about has come: what it says of the rest is what it says once that has come too."""
    every = frozenset(name for name in dir(FakeClient) if not name.startswith("_"))
    async with silent(size, *every) as (pilot, _):
        known = await seen(pilot, settled=True)
    async with silent(size, *(every - SIDES)) as (pilot, client):
        early = await seen(pilot, settled=False)
    assert SIDES.intersection(client.asked)
    wrong = {page: [words for words in rows if words not in known[page]] for page, rows in early.items()}
    assert {page: words for page, words in wrong.items() if words} == {}


@pytest.mark.parametrize("size", [(80, 24), pytest.param((220, 60), marks=pytest.mark.slow)])
async def test_no_page_says_that_there_is_nothing_before_it_knows(size: tuple[int, int]) -> None:
    wrong = {}
    async with silent(size) as (pilot, _):
        for page in PAGES:
            pilot.app.steering.run(page)  # type: ignore[attr-defined]
            await pilot.pause(0.05)
            await pilot.pause()
            if page.partition(" ")[0] not in OWN and (found := said_empty(pilot)):
                wrong[page] = found
    assert wrong == {}


async def test_no_key_waits_for_the_engine() -> None:
    """The title says at once where one is, and the thread that draws asks nothing itself."""
    async with silent((140, 40)) as (pilot, client):
        for page in PAGES:
            pilot.app.steering.run(page)  # type: ignore[attr-defined]
            assert pilot.app.navigator.current.crumb in line(pilot, "title")  # type: ignore[attr-defined]
            await pilot.pause()
        assert client.asked
        assert threading.get_ident() not in client.asked_on


WIDE = (220, 60)


@asynccontextmanager
async def opened(page: str, size: tuple[int, int]) -> AsyncIterator[tuple[Pilot[None], FakeClient]]:
    """A page with all that it asks for at that size."""
    client = full()
    app = MusterApp(lambda: client, start="overview", title="test")  # type: ignore[arg-type,return-value]
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: app.connected)
        app.steering.run(page)
        await pilot.pause(0.1)
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        yield pilot, client


@pytest.mark.parametrize(
    "page",
    ["overview", *(pytest.param(page, marks=pytest.mark.thorough) for page in most(PAGES, 3) if page != "overview")],
)
async def test_a_page_that_lost_its_engine_says_no_more_when_there_is_room_for_more(page: str) -> None:
    """What was not asked for while it was narrow is not known, whatever the width."""
    async with opened(page, WIDE) as (pilot, _):
        known = said_empty(pilot)
    async with opened(page, (120, 40)) as (pilot, client):
        client.down = True
        await until(pilot, lambda: not pilot.app.connected)  # type: ignore[attr-defined]
        await pilot.resize_terminal(*WIDE)
        await pilot.pause(0.1)
        assert [words for words in said_empty(pilot) if words not in known] == []
        if page == "overview":
            shown = "\n".join(body(pilot))
            assert "Longest waits" in shown
            assert shown.count("loading …") >= 2, "neither work nor events were asked for at that width"


async def test_while_the_engine_starts_the_first_line_says_how_far_it_is() -> None:
    ready = threading.Event()

    def connect() -> FakeClient:
        stage("playing 30 days of history: day 12 of 30, 40%")
        ready.wait(PATIENCE_S)
        return FakeClient(5)

    async with MusterApp(connect, title="demo", page="overview").run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "demo  playing 30 days of history: day 12 of 30" in line(pilot, "top"))
        ready.set()
        await until(pilot, lambda: "connected" in line(pilot, "top"))
        assert "playing" not in line(pilot, "top")
