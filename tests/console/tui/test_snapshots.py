"""Every screen as it looks, at two sizes in one theme. What holds at every width, in every theme and with every word a
stranger's, test_every_page.py and test_hostile_text.py say.

After a wanted change: `pytest tests/console/tui/test_snapshots.py -m "not slow" --snapshot-update`, and look at the SVG
files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any

import pytest
from textual.pilot import Pilot

from console.tui.app import MusterApp
from console.tui.screens.output import LogView
from console.tui.screens.outside import FleetPane, MirrorPane
from console.tui.widgets.drawing import OneLine
from console.tui.widgets.pane import DetailPane
from tests.console import fake_drafts, fake_far, fake_gate
from tests.console.tui.test_app import hint, line, until

SMALL, USUAL = (80, 24), (120, 36)
Shot = Callable[..., bool]
Steps = Callable[[Pilot[None]], Awaitable[None]]


def staged(*, draft: str = "both") -> Any:
    """A cell with proposals that wait, are stale, stand still and are over; and a draft."""
    client = fake_drafts.DraftingClient(hostile=False, workloads=500)
    text = client._text
    client.script = [DRAFTS[draft](text)]
    client.stage(1, tier="T3", votes=fake_gate.voted(text), notes=True)
    client.stage(2, state="stale", votes=fake_gate.voted(text)[:1], stale=fake_gate.changed_since(text),
                 note=text(4, "node-00001 was shown as ready and is down now"))  # fmt: skip
    client.stage(3, state="paused", standing=fake_gate.halfway(text), note="step drain could not be verified")
    client.stage(4, state="verified", standing=fake_gate.halfway(text))
    return client


DRAFTS: dict[str, Callable[[Any], Any]] = {
    "thinking": lambda _text: fake_drafts.thinking(),
    "both": lambda text: fake_drafts.run(text=text),
    "rejected": lambda _text: fake_drafts.rejected(),
}


def app(client: Any = None, *, draft: str = "both", **named: Any) -> MusterApp:
    """Its clock stands still."""
    shown = client or staged(draft=draft)
    return MusterApp(lambda: shown, title="demo", clock=lambda: 0.0, theme="dark", **named)


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
            await pilot.app.workers.wait_for_complete()
        await pilot.pause(0.1)

    return run


def shows_data(pane: Any) -> bool:
    if isinstance(pane, DetailPane):
        return pane.detail is not None
    return not hasattr(pane, "table") or pane.table.cursor_row is not None or pane.table.matched == 0


def asked(key: str, *lines: str, title: str = "", keys: tuple[str, ...] = ()) -> Steps:
    """The same, then a key that opens a question, and wait for that."""

    async def run(pilot: Pilot[None]) -> None:
        await after(*lines, title=title, keys=keys)(pilot)
        await pilot.press(key)
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        await pilot.pause(0.2)

    return run


SCREENS: dict[str, Steps] = {
    "overview": after(title="overview"),
    **{name: after(name, title=name) for name in ("queues", "workloads", "nodes", "events", "topology", "cost")},
    "workload that runs": after("workload wl-000003", title="wl-000003"),
    "workload that waits": after("workload wl-000000", title="wl-000000"),
    "node": after("node node-00001", title="node-00001"),
    "queue": after("queue batch", title="batch"),
    "what if": after("whatif drain node-00001", "whatif quota batch gpu=8 at +2h", keys=("w",), title="whatif"),
    "suggestions": after("suggestions", title="suggestions"),
    "forecast": after("forecast queue:batch", title="forecast"),
    "difference": after("diff -2h -1h", title="diff -2h -1h"),
    "curve": after("curve queue:batch gpu", title="curve of"),
    "draft": after("draft D-1", title="D-1"),
    **{name: after(name, title=name) for name in ("proposals", "runbooks", "audit", "drafts", "settings")},
    **{name: after(name) for name in ("policy", "reviews", "bookmarks", "incidents")},
    "incident": after("incident I-1", title="I-1"),
    "proposal that waits": after("proposal P-1", title="P-1"),
    "proposal that is stale": after("proposal P-2", title="P-2"),
    "runbook": after("runbook half-done", title="half-done"),
    "record": after("record 7", title="7"),
    "question before an act": asked("X", "workloads state:running", title="state:running"),
}
QUICK = ("overview", "workloads", "workload that waits", "proposal that waits", "what if")
"""Looked at by every run of the tests, at the smallest size; the rest is looked at by `make check`."""


def cases(pages: Iterable[str], quick: Collection[str]) -> list[Any]:
    """A picture of each at both sizes; every run of the tests looks at the small ones of the quick."""
    return [
        pytest.param(
            name, size, id=f"{name}-{size[0]}x{size[1]}",
            marks=() if name in quick and size == SMALL else pytest.mark.thorough,
        )
        for name in pages for size in (SMALL, USUAL)
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "size"), cases(SCREENS, QUICK))
def test_screens(snap_compare: Shot, name: str, size: tuple[int, int]) -> None:
    assert snap_compare(app(), terminal_size=size, run_before=SCREENS[name])


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["A", "N", "B"])
def test_decisions(snap_compare: Shot, key: str) -> None:
    steps = asked(key, "proposal P-1", title="P-1", keys=("G",))
    assert snap_compare(app(), terminal_size=SMALL, run_before=steps)


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["thinking", "rejected"])
def test_drafts_in_other_states(snap_compare: Shot, which: str) -> None:
    assert snap_compare(app(draft=which), terminal_size=SMALL, run_before=after("draft D-1", title="D-1"))


FAR = {
    "mirror": after("mirror", title="mirror"),
    "intents": after("intents", title="intents"),
    "intent": after("intent i17", title="i17"),
    "fleet": after("fleet", title="fleet"),
    "submission to the fleet": after("fleet train-7b", title="train-7b"),
}
"""Pages that lead past the cell."""


def app_past_the_cell(monkeypatch: pytest.MonkeyPatch) -> MusterApp:
    monkeypatch.setattr(FleetPane, "_fleet", lambda _pane, _flags: fake_far.FakeFleet())
    monkeypatch.setattr(FleetPane, "WALL_NS", staticmethod(lambda: fake_far.NOW_MS * 1_000_000))
    monkeypatch.setattr(MirrorPane, "WALL_S", staticmethod(lambda: float(fake_far.NOW_S)))
    return app(fake_far.staged_far(staged()))


@pytest.mark.parametrize(("name", "size"), cases(FAR, ("mirror",)))
def test_pages_past_the_cell(
    snap_compare: Shot, monkeypatch: pytest.MonkeyPatch, name: str, size: tuple[int, int]
) -> None:
    assert snap_compare(app_past_the_cell(monkeypatch), terminal_size=size, run_before=FAR[name])


@pytest.mark.parametrize("size", [SMALL, pytest.param(USUAL, marks=pytest.mark.thorough)], ids=["80x24", "120x36"])
def test_output_of_a_process(snap_compare: Shot, size: tuple[int, int]) -> None:
    """Of one that has ended: nothing is asked again, and nothing comes while it is looked at."""
    client = staged()
    client.written = b"".join(b"step %05i  loss %.4f\n" % (step, 4 / (1 + step / 90)) for step in range(400))
    client.written += "\x1b[31mdone\x1b[0m, written to /data/日本/ckpt-400 \x1b]0;owned\x07\n".encode()
    client.ended = True

    async def run(pilot: Pilot[None]) -> None:
        console: Any = pilot.app
        await until(pilot, lambda: console.connected and line(pilot, "title"))
        console.steering.run("output wl-000003")
        await until(pilot, lambda: "ended" in line(pilot, "title"))
        page = console.navigator.current
        head, view = page.query_one(OneLine), page.query_one(LogView)
        # The lines, then what is known of the process; and the end is in view once the page has its size.
        await until(pilot, lambda: "process 4242" in "".join(text for text, _, _ in head._left))
        await until(pilot, lambda: view.scroll_offset.y + view.size.height == len(view.lines))
        await pilot.pause(0.1)

    assert snap_compare(app(client), terminal_size=size, run_before=run)


def test_filter_bar_with_an_error(snap_compare: Shot) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await after("workloads", title="workloads")(pilot)
        await pilot.press("slash", *"gpu>8")
        await until(pilot, lambda: "/gpu>8" in line(pilot, "title"))
        # One letter makes it unreadable: however slowly it is typed, no other filter lies between.
        await pilot.press("x")
        await until(pilot, lambda: "^" in hint(pilot))
        await pilot.pause()

    assert snap_compare(app(), terminal_size=SMALL, run_before=run)


def test_help(snap_compare: Shot) -> None:
    steps = after("nodes", title="nodes", keys=("question_mark",))
    assert snap_compare(app(read_only=True), terminal_size=USUAL, run_before=steps)


def test_too_small(snap_compare: Shot) -> None:
    assert snap_compare(app(), terminal_size=(40, 10))
