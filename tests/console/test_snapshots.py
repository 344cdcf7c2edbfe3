"""Every screen as it looks, at the smallest usual size and at a roomy one.

After a wanted change: `pytest tests/console/test_snapshots.py --snapshot-update`, and look at the SVG files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot

from console.app import MusterApp
from console.screens.pane import DetailPane
from tests.console import fake_drafts, fake_gate
from tests.console.fake_client import FakeClient
from tests.console.test_app import line, until

SIZES = [(80, 24), (140, 40)]
Shot = Callable[..., bool]
Steps = Callable[[Pilot[None]], Awaitable[None]]


def app(start: str, *, hostile: bool = False, read_only: bool = False) -> MusterApp:
    client = FakeClient(500, hostile=hostile, read_only=read_only)
    return MusterApp(lambda: client, start=start, read_only=read_only, title="demo")  # type: ignore[arg-type]


def after(*lines: str, keys: tuple[str, ...] = (), title: str = "") -> Steps:
    """Wait for data, do command lines, press keys, wait for the title."""

    async def run(pilot: Pilot[None]) -> None:
        console: Any = pilot.app
        await until(pilot, lambda: console.connected and line(pilot, "title"))
        for command in lines:
            console.steering.run(command)
        await until(pilot, lambda: title in line(pilot, "title"))
        await until(pilot, lambda: shows_data(console.navigator.current) and pilot.app.focused is not None)
        await pilot.app.workers.wait_for_complete()
        if keys:
            await pilot.press(*keys)
        await pilot.pause(0.1)

    return run


def shows_data(pane: Any) -> bool:
    if isinstance(pane, DetailPane):
        return pane.detail is not None and len(pane._left._lines) > 2
    return pane.table.cursor_row is not None


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("start", ["overview", "queues", "workloads", "nodes", "events"])
def test_main_pages(snap_compare: Shot, start: str, size: tuple[int, int]) -> None:
    assert snap_compare(app(start), terminal_size=size, run_before=after(title=start))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("command", ["workload wl-000003", "workload wl-000000", "node node-00001"])
def test_detail_pages(snap_compare: Shot, command: str, size: tuple[int, int]) -> None:
    assert snap_compare(app("workloads"), terminal_size=size, run_before=after(command, title=command.split()[1]))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_confirmation(snap_compare: Shot, size: tuple[int, int]) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await after("workloads state:running")(pilot)
        await pilot.press("X")
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        await pilot.pause(0.1)

    assert snap_compare(app("workloads"), terminal_size=size, run_before=run)


def test_filter_bar_with_an_error(snap_compare: Shot) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await after()(pilot)
        await pilot.press("slash", *"gpu>8", "space", *"stat:x")
        await pilot.pause(0.3)

    assert snap_compare(app("workloads"), terminal_size=(80, 24), run_before=run)


def test_help(snap_compare: Shot) -> None:
    assert snap_compare(app("nodes"), terminal_size=(100, 50), run_before=after(keys=("question_mark",)))


def test_hostile_names(snap_compare: Shot) -> None:
    assert snap_compare(app("workloads", hostile=True), terminal_size=(140, 24), run_before=after(title="500"))


@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_what_if(snap_compare: Shot, size: tuple[int, int], hostile: bool) -> None:
    steps = after("whatif drain node-00001", "whatif quota batch gpu=8 at +2h", keys=("w",), title="whatif")
    assert snap_compare(app("overview", hostile=hostile), terminal_size=size, run_before=steps)


@pytest.mark.parametrize("hostile", [False, True], ids=["plain", "hostile"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_recommendations(snap_compare: Shot, size: tuple[int, int], hostile: bool) -> None:
    steps = after("recommendations", title="recommendations")
    assert snap_compare(app("overview", hostile=hostile), terminal_size=size, run_before=steps)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_forecast(snap_compare: Shot, size: tuple[int, int]) -> None:
    assert snap_compare(app("overview"), terminal_size=size, run_before=after("forecast queue:batch", title="forecast"))


GATE_PAGES = ("proposals", "proposal P-1", "proposal P-2", "runbooks", "runbook half-done", "audit", "record 7")


def gate_app(*, hostile: bool, light: bool = False) -> MusterApp:
    """Proposals that wait, are stale, stand still and are over; its clock stands still too."""
    client = FakeClient(100, hostile=hostile)
    text = client._text
    client.stage(1, tier="T3", votes=fake_gate.voted(text), notes=True)
    client.stage(2, state="stale", votes=fake_gate.voted(text)[:1], stale=fake_gate.changed_since(text),
                 note=text(4, "node-00001 was shown as ready and is down now"))  # fmt: skip
    client.stage(3, state="paused", standing=fake_gate.halfway(text), note="step drain could not be verified")
    client.stage(4, state="verified", standing=fake_gate.halfway(text))
    console = MusterApp(lambda: client, start="overview", title="demo", clock=lambda: 0.0)
    console.theme = "muster-light" if light else "muster-dark"
    return console


@pytest.mark.parametrize("command", GATE_PAGES)
@pytest.mark.parametrize(
    "size", [SIZES[0], pytest.param(SIZES[1], marks=pytest.mark.thorough)], ids=["(80, 24)", "(140, 40)"]
)
def test_pages_of_the_gate(snap_compare: Shot, size: tuple[int, int], command: str) -> None:
    """Hostile where there is least room, plain where all of a page is seen."""
    steps = after(command, title=command.split()[-1])
    assert snap_compare(gate_app(hostile=size == SIZES[0]), terminal_size=size, run_before=steps)


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["A", "N", "B"])
def test_decisions(snap_compare: Shot, key: str) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await after("proposal P-1", title="P-1", keys=("G",))(pilot)
        await pilot.press(key)
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        await pilot.pause(0.1)

    assert snap_compare(gate_app(hostile=False, light=key == "N"), terminal_size=(80, 24), run_before=run)


DRAFTS = {
    "thinking": lambda _text: fake_drafts.thinking(),
    "both": lambda text: fake_drafts.run(text=text),
    "rejected": lambda _text: fake_drafts.rejected(),
}


@pytest.mark.parametrize(
    ("which", "size"),
    [
        ("thinking", SIZES[0]),
        ("both", SIZES[0]),
        ("both", SIZES[1]),
        pytest.param("rejected", SIZES[1], marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_drafts(snap_compare: Shot, which: str, size: tuple[int, int]) -> None:
    """Hostile where there is least room, plain where all of a page is seen."""
    hostile = size == SIZES[0]
    client = fake_drafts.DraftingClient(hostile=hostile)
    client.script = [DRAFTS[which](client._text)]
    console = MusterApp(lambda: client, title="demo", clock=lambda: 0.0)
    keys = ("pagedown",) * 2 if which == "both" and hostile else ()
    steps = after("draft D-1", title="D-1", keys=keys)
    assert snap_compare(console, terminal_size=size, run_before=steps)


def test_light_and_read_only(snap_compare: Shot) -> None:
    assert snap_compare(app("overview", read_only=True), terminal_size=(100, 30), run_before=after(keys=("t",)))


def test_too_small(snap_compare: Shot) -> None:
    assert snap_compare(app("overview"), terminal_size=(40, 10))
