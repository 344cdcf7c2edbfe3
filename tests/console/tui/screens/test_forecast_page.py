"""The forecast page: the past at once, the forecast when it is made, what that means and what can be done."""

from __future__ import annotations

import threading

import msgspec
import pytest
from rich.cells import cell_len

from console.tui.screens.forecast import ForecastPageQuery, ForecastPane, read
from console.views.forecast import CapacityStep, ForecastPageData, Wait, amount, chart, forecast_lines, pages, shortfall
from console.views.sections import Section
from engine.model.errors import NotFoundError, SpecError
from recommender.estimates.queries import Forecast, ForecastRequest
from tests.console.fake_client import NOW_MS, FakeClient
from tests.console.tui.test_app import console, here, line, press, quick, until, write
from tests.support.patience import PATIENCE_S

__all__ = ["quick"]
HOUR = 3_600_000


def found(**changes: object) -> Forecast:
    return msgspec.structs.replace(FakeClient().forecast(ForecastRequest(subject="pool:h100")), **changes)


def known(**changes: object) -> ForecastPageData:
    past = tuple((NOW_MS - (12 - i) * HOUR, 30_000 + 1000 * i) for i in range(12))
    made = ForecastPageData(
        version=7,
        now_ms=NOW_MS,
        subject="pool:h100",
        metric="demand_gpu",
        unit="GPU",
        past=past,
        there_is=64_000,
        what="capacity",
        boot_ms=(60_000, 4 * HOUR),
        sizing=CapacityStep(8_000, 8, 9, ahead=True),
        subjects=("pool:h100",),
        metrics=("demand_gpu", "price"),
    )
    return made._replace(**changes)


def text(sections: list[Section]) -> str:
    lines = [f"{section.title} {section.note}" for section in sections]
    lines += ["".join(part for part, _ in line.spans) for section in sections for line in section.lines]
    return "\n".join(lines)


@pytest.mark.parametrize("width", [20, 57, 137, 217])
def test_the_chart_fits_and_has_past_band_limit_now_and_boot(width: int) -> None:
    [section] = chart(known(), found(), Wait(), width, 9)
    drawn = ["".join(part for part, _ in line.spans) for line in section.lines]
    assert max(map(cell_len, drawn)) <= width
    whole = "\n".join(drawn)
    for sign in ("⡂", "⡪", "╌", "│", "─"):
        assert sign in whole
    assert "┊" in "\n".join(drawn[:9])
    assert "capacity 64" in whole
    assert "4h (p95)" in whole.replace("…", "4h (p95)")


def test_before_the_forecast_the_past_is_drawn() -> None:
    [section] = chart(known(), None, Wait(since_s=3), 80, 9)
    assert "making the forecast, 3 s, esc stops" in section.note
    assert "─" in text([section])
    assert "⡂" not in text([section])
    [section] = chart(known(past=()), None, Wait(problem="no measurements yet of pool h100"), 80, 9)
    assert "no measurements yet of pool h100" in text([section])


def test_it_says_when_the_forecast_rises_above_what_there_is_and_what_to_do() -> None:
    short = shortfall(known(), found())
    assert short is not None
    hours = found().hours
    over = [hour for hour in hours if hour.p90 > 64_000]
    assert (short.first_ms, short.hours, short.peak) == (over[0].at_ms, len(over), round(max(h.p90 for h in over)))
    left, _ = pages(known(), found(), Wait(), 70, read_only=False)
    told = text(left)
    nodes = -(-short.peak // 8_000)
    assert f"needs {nodes} nodes (limit 9); 8 now" in told
    links = [line.link for section in left for line in section.lines if line.link]
    assert f"compose:whatif resize h100 {nodes}" in links
    assert any(link.startswith("compose:set-targets h100 +") for link in links)
    left, _ = pages(known(), found(), Wait(), 70, read_only=True)
    assert not any("set-targets" in line.link for section in left for line in section.lines)


def test_enough_is_said_to_be_enough_and_too_little_history_to_be_too_little() -> None:
    left, _ = pages(known(there_is=10_000_000), found(), Wait(), 70, read_only=False)
    assert "p90 stays within the capacity" in text(left)
    left, _ = pages(known(there_is=10), found(basis="too short"), Wait(), 70, read_only=False)
    assert "not enough history" in text(left)
    assert "set-targets" not in text(left)


async def test_where_no_hour_was_measured_no_figure_is_foretold() -> None:
    class Young(FakeClient):
        def forecast(self, request: ForecastRequest) -> Forecast:
            return found(known_hours=0, basis="too short")

    assert "no forecast yet" in forecast_lines(Young().forecast(ForecastRequest()))[0]
    async with console(Young(), size=(100, 40)) as pilot:
        await press(pilot, "8")
        await until(pilot, lambda: "no forecast yet:" in shown(pilot))
        assert "P50" not in shown(pilot)


def test_amounts_are_read_in_whole_units() -> None:
    assert [amount(value) for value in (0, 1_250, 64_000, 128_400)] == ["0", "1.2", "64", "128"]


def test_what_stands_behind_forecast_is_read() -> None:
    assert read("") == ForecastPageQuery()
    assert read("pool:h100 demand_nodes 24h") == ForecastPageQuery("pool:h100", "demand_nodes", 24)
    assert read("cell 168h") == ForecastPageQuery("", "", 168)
    with pytest.raises(SpecError, match="not from 1h to 168h"):
        read("0h")


def page(pilot: object) -> ForecastPane:
    return here(pilot)  # type: ignore[arg-type,return-value]


def shown(pilot: object) -> str:
    pane = page(pilot)
    return "\n".join(
        "".join(part for part, _ in line.spans)
        for view in (pane._chart, pane._left, pane._right)
        for line in view._lines
    )


async def test_another_subject_is_chosen_on_the_page_and_kept_as_its_place() -> None:
    client = FakeClient()
    async with console(client, start="overview", size=(140, 40)) as pilot:
        await press(pilot, "8")
        await until(pilot, lambda: "p10 to p90" in shown(pilot) and "Subject" in shown(pilot))
        assert page(pilot).as_of is not None
        await press(pilot, "right")
        view = page(pilot)._right
        await until(pilot, lambda: pilot.app.focused is view)
        while view.link != "of:queue:batch":
            await press(pilot, "down")
        await press(pilot, "enter")
        await until(pilot, lambda: "demand_gpu of queue batch" in shown(pilot))
        assert page(pilot).line == "forecast queue:batch"
        place = page(pilot).place()
        page(pilot).put_back({"subject": "pool:h100", "metric": "", "hours": 24})
        await until(pilot, lambda: "of pool h100" in shown(pilot))
        assert page(pilot).line == "forecast pool:h100 24h"
        page(pilot).put_back(place)
        page(pilot).put_back({"subject": 3})
        await until(pilot, lambda: page(pilot).line == "forecast queue:batch")


async def test_escape_stops_waiting_and_r_asks_again() -> None:
    class Slow(FakeClient):
        def __init__(self) -> None:
            super().__init__()
            self.gate = threading.Event()
            self.asked = 0

        def forecast(self, request: ForecastRequest) -> Forecast:
            self.asked += 1
            assert self.gate.wait(PATIENCE_S)
            return super().forecast(request)

    client = Slow()
    try:
        async with console(client, size=(100, 40)) as pilot:
            await press(pilot, "8")
            await until(pilot, lambda: "esc stops" in line(pilot, "title"))
            assert "─" in shown(pilot), "what was measured does not wait"
            await press(pilot, "escape")
            await until(pilot, lambda: "stopped, r starts again" in shown(pilot))
            assert page(pilot).NAME == "forecast", "the first Back stops, the next leaves"
            client.gate.set()
            await press(pilot, "r")
            await until(pilot, lambda: "p10 to p90" in shown(pilot))
            assert client.asked == 2
    finally:
        client.gate.set()


async def test_what_was_never_measured_is_said_on_the_page() -> None:
    class Nothing(FakeClient):
        def forecast(self, request: ForecastRequest) -> Forecast:
            raise NotFoundError("no measurements yet of the cell", "`muster history show` lists what there is")

    async with console(Nothing(), size=(100, 40)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "forecast")
        await press(pilot, "enter")
        await until(pilot, lambda: "no measurements yet of the cell" in shown(pilot))
        assert "queue batch" in shown(pilot), "another can be chosen"
