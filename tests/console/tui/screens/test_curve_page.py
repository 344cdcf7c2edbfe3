"""The page of a curve: one key from a number, another window, a mark that reads off, another curve."""

from __future__ import annotations

import pytest

from console.tui.screens.curve import CurvePane
from engine.model.errors import SpecError
from recommender.history.metrics import History, HistoryRequest
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, line, notes, press, quick, until

__all__ = ["quick"]


class AskedClient(FakeClient):
    """Remembers what was asked of the history."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[HistoryRequest] = []

    def history(self, request: HistoryRequest) -> History:
        self.asked.append(request)
        return super().history(request)


def pane_of(pilot: object) -> CurvePane:
    pane = pilot.app.navigator.current  # type: ignore[attr-defined]
    assert isinstance(pane, CurvePane)
    return pane


def drawn(pane: CurvePane) -> str:
    return "\n".join("".join(part for part, _ in each.spans) for each in pane._chart.lines)


@pytest.mark.parametrize(
    ("page", "curve"),
    [
        ("queues", "queue:research/train"), ("queues sort:-queued", "queue:research/train length"),
        ("queue batch", "queue:batch"), ("node node-00001", "node:node-00001"), ("overview", "cell nodes_down"),
        ("cost", "queue:research cost"), ("workload wl-000000", "kind:acme/llama pretrain"),
    ],
)  # fmt: skip
async def test_one_key_from_a_number_to_its_curve(page: str, curve: str) -> None:
    async with console(FakeClient()) as pilot:
        pilot.app.steering.run(page)  # type: ignore[attr-defined]
        await until(pilot, lambda: pilot.app.navigator.current.curve.startswith(curve))  # type: ignore[attr-defined]
        await press(pilot, "p")
        await until(pilot, lambda: pane_of(pilot).detail is not None)
        assert pane_of(pilot).line.startswith(f"curve {curve}")
        await press(pilot, "escape")
        assert page.split()[0] == pilot.app.navigator.current.NAME  # type: ignore[attr-defined]


async def test_enter_on_a_number_of_the_overview_opens_its_curve() -> None:
    async with console(FakeClient(), start="overview") as pilot:
        await until(pilot, lambda: pilot.app.navigator.current.detail is not None)  # type: ignore[attr-defined]
        pane = pilot.app.navigator.current  # type: ignore[attr-defined]
        links = [each.link for view in pane._views for each in view.lines]
        assert "curve cell gpu" in links
        pane.post_message(pane.Follow("curve cell gpu"))
        await until(pilot, lambda: isinstance(pilot.app.navigator.current, CurvePane))  # type: ignore[attr-defined]
        assert "curve of the cell" in line(pilot, "title")


async def test_the_window_is_chosen_by_plus_and_minus_and_ends_at_the_last() -> None:
    client = AskedClient()
    async with console(client) as pilot:
        pilot.app.steering.run("curve queue:batch wait")  # type: ignore[attr-defined]
        await until(pilot, lambda: pane_of(pilot).detail is not None)
        await press(pilot, "plus")
        await until(pilot, lambda: pane_of(pilot).detail.window == "24h")  # type: ignore[union-attr]
        assert 24 * 3_600_000 in [each.last_ms for each in client.asked]
        assert pane_of(pilot).line == "curve queue:batch wait 24h"
        for _ in range(5):
            await press(pilot, "minus")
        await until(pilot, lambda: pane_of(pilot).detail.window == "1h")  # type: ignore[union-attr]
        assert "shortest" in notes(pilot)


async def test_the_mark_reads_off_a_value_and_back_takes_it_away_first() -> None:
    async with console(FakeClient()) as pilot:
        pilot.app.steering.run("curve queue:batch wait")  # type: ignore[attr-defined]
        await until(pilot, lambda: pane_of(pilot).detail is not None)
        await until(pilot, lambda: "latest" in drawn(pane_of(pilot)))
        await press(pilot, "left", "left")
        assert "┊" in drawn(pane_of(pilot))
        assert "latest" not in drawn(pane_of(pilot))
        before = drawn(pane_of(pilot))
        await press(pilot, "right")
        assert drawn(pane_of(pilot)) != before
        await press(pilot, "escape")
        assert "┊" not in drawn(pane_of(pilot))
        await press(pilot, "escape")
        assert not isinstance(pilot.app.navigator.current, CurvePane)  # type: ignore[attr-defined]


async def test_another_curve_of_the_subject_is_chosen_on_the_page() -> None:
    async with console(FakeClient()) as pilot:
        pilot.app.steering.run("curve queue:batch wait")  # type: ignore[attr-defined]
        await until(pilot, lambda: pane_of(pilot).detail is not None)
        await press(pilot, "down", "enter")
        await until(pilot, lambda: pane_of(pilot).detail.name == "age")  # type: ignore[union-attr]
        assert "Wait so far" in drawn(pane_of(pilot))


async def test_a_page_of_nothing_measured_says_so() -> None:
    async with console(FakeClient()) as pilot:
        pilot.app.steering.run("audit")  # type: ignore[attr-defined]
        await until(pilot, lambda: "audit" in line(pilot, "title"))
        await press(pilot, "p")
        await until(pilot, lambda: "nothing here is measured" in notes(pilot))


def test_a_line_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(SpecError):
        CurvePane(FakeClient, "planet:x")
