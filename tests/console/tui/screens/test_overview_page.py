"""The overview: is it fine, and if not, what now, at a glance of any size."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from rich.cells import cell_len

from console.actions.registry import ACTIONS, parse_command
from console.tui.screens.overview import OverviewPane, beside
from console.views.cell_overview import OverviewData, SlowReadings, overview_columns, short_money, trend
from console.views.findings import question, queues, times, worst_first
from console.views.sections import BORROWED, IDLE, USED, Line, Section, bar, quota_parts
from engine.model.details import Burn, BurnWindow
from engine.model.errors import RefusedError
from engine.model.overviews import Overview, PoolOverview
from recommender.estimates.queries import ForecastRequest
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, line, press, quick, until  # noqa: F401

SIZES = ((37, 20), (67, 36), (107, 56))
"""Widths of a column, and heights of the page, at 80x24, 140x40 and 220x60."""
FINE = Overview(
    version=1, now_ms=10**12, cell="c", policy="easy", states={"running": 3}, capacity={"gpu_milli": 8000},
    used={"gpu_milli": 4000}, pools=(PoolOverview(name="h100", gpu_model="", nodes=1, ready=1, cordoned=0, draining=0,
    down=0, capacity={"gpu_milli": 8000}, used={"gpu_milli": 4000}),), blocked=(), oldest_wait_ms=0, oldest_waiting="",
    wait_p50_ms=0, wait_p95_ms=0, started_last_hour=0, finished_last_hour=0, history=(),
)  # fmt: skip


def glance(client: FakeClient) -> OverviewData:
    return OverviewData(client.overview(), worst_first(client.query(question())))


def texts(sections: Sequence[Section]) -> list[str]:
    lines: list[Line] = [line for section in sections for line in section.lines]
    return ["".join(text for text, _ in line.spans) for line in lines]


def named(sections: Sequence[Section], title: str) -> Section:
    return next(section for section in sections if section.title.startswith(title))


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("hostile", [False, True])
def test_every_line_fits_and_every_link_leads_somewhere(width: int, height: int, hostile: bool) -> None:
    client = FakeClient(500, hostile=hostile)
    left, right = overview_columns(glance(client), width, height, beside(client, 6))
    for text in texts([*left, *right]):
        assert cell_len(text) <= width, text
        assert text.isprintable()
    links = {line.link for section in (*left, *right) for line in section.lines if line.link}
    assert links
    for link in links:
        parse_command(link, ACTIONS)


def test_all_of_it_is_in_view_at_80_by_24() -> None:
    client = FakeClient(500)
    left, right = overview_columns(glance(client), 37, 20, beside(client, 6))
    for sections in (left, right):
        assert sum(2 + len(section.lines) for section in sections) - 1 <= 20
    assert {section.title.split(",")[0] for section in (*left, *right)} == {
        "Now", "Fleet", "Pools", "Queues", "Why work waits", "Objectives", "Cost", "Ahead"
    }  # fmt: skip


def test_nothing_wrong_is_one_line() -> None:
    left, _ = overview_columns(OverviewData(FINE), 60)
    assert texts([named(left, "Now")]) == ["● all nodes up, no long waits; loading budgets and suggesti…"]
    left, _ = overview_columns(OverviewData(FINE), 60, beside=SlowReadings(budgets=(), advice=()))
    assert texts([named(left, "Now")]) == ["● all nodes up, no long waits, no budget overrun"]


def test_the_most_urgent_is_first_and_says_what_enter_does() -> None:
    down = msgspec.structs.replace(FINE.pools[0], ready=0, down=1)
    late = BurnWindow(started=9, late=9, waiting=0, burn_permille=5_000)
    burn = Burn(queue="prod", within_ms=1, objective_permille=800, hour=late, six_hours=late)
    view = msgspec.structs.replace(FINE, pools=(down,), burns=(burn,), states={"failed": 2})
    left, _ = overview_columns(OverviewData(view, awaiting=3, stuck=1), 70)
    now = named(left, "Now")
    assert now.note == "5 need attention"
    assert [line.link for line in now.lines] == [
        "nodes state:down", "queue prod", "proposals", "workloads state:failed", "proposals"
    ]  # fmt: skip
    assert texts([now])[0].startswith("✗ 1 node down")
    assert texts([now])[0].endswith("↵ nodes down")
    assert "×5.0" in texts([now])[1]


def test_what_has_no_line_of_its_own_is_counted() -> None:
    client = FakeClient(500)
    left, _ = overview_columns(glance(client), 37, 20, beside(client, 6))
    last = texts([named(left, "Now")])[-1]
    assert len(named(left, "Now").lines) == 6
    assert "more:" in last


def test_a_bar_tells_its_parts_apart_without_colour() -> None:
    assert "".join(text for text, _ in bar([(USED, 50), (BORROWED, 25), (IDLE, 25)], 8)) == "━━━━══┄┄"
    assert "".join(text for text, _ in bar([(USED, 1), (IDLE, 10**9)], 5)) == "╸┄┄┄┄", "what is there shows"
    assert "".join(text for text, _ in bar([(USED, 10**9), (IDLE, 1)], 5)) == "━━━━╸", "and so does what is not"
    assert "".join(text for text, _ in bar([(USED, 45), (IDLE, 55)], 5)) == "━━┄┄┄"
    assert "".join(text for text, _ in bar([(USED, 9)], 5)) == "━━━━━"
    assert "".join(text for text, _ in bar([], 4)) == "    "
    assert "".join(text for text, _ in bar([(USED, 3), (BORROWED, 2), (IDLE, 1)], 2)) == "━═"
    parts = {part.word: amount for part, amount in quota_parts(80, 60, 30, 0, 10)}
    assert parts == {"used": 50, "borrowed": 20, "burst": 10, "lent": 0, "idle": 10}


def test_the_fleet_is_divided_by_what_its_capacity_does() -> None:
    pool = msgspec.structs.replace(
        FINE.pools[0], nodes=10, ready=6, cordoned=1, down=2, booting=1, capacity={"gpu_milli": 80_000},
        used={"gpu_milli": 40_000}, spot=True,
    )  # fmt: skip
    view = msgspec.structs.replace(
        FINE, pools=(pool,), capacity={"gpu_milli": 80_000}, used={"gpu_milli": 40_000},
        borrowed={"gpu_milli": 10_000}, in_burst={"gpu_milli": 4_000},
    )  # fmt: skip
    left, _ = overview_columns(OverviewData(view), 80)
    told = texts([named(left, "Fleet")])
    assert set(told[0]) == set("━═≡┄◇xo")
    words = " ".join(told[1:])
    for amount in ("30 used", "6 borrowed", "4 burst", "8 idle", "8 excluded", "16 down", "8 booting", "10 spot nodes"):
        assert amount in words, words


def test_queues_are_the_worst_first_and_cohorts_are_left_out() -> None:
    rows = worst_first(FakeClient().query(question()))
    assert [row.name for row in rows] == ["research/train", "batch", "research/eval", "prod/serve"]


def test_money_and_burn_are_brief() -> None:
    assert [short_money(usd * 1_000_000) for usd in (5, 99, 9_397, 1_250_000)] == ["$5.00", "$99.00", "$9,397", "$1.2M"]
    assert [times(burn) for burn in (0, 400, 3_210, 18_400)] == ["0.0", "0.4", "3.2", "18"]


def test_what_is_slow_or_refused_is_left_out() -> None:
    client = FakeClient()
    client.forecast = lambda request: (_ for _ in ()).throw(RefusedError("no measurements yet"))  # type: ignore[method-assign]
    found = beside(client, 6)
    assert (found.forecast, found.why_not, len(found.advice)) == (None, "no measurements yet", 3)
    _, right = overview_columns(glance(client), 60, 40, found)
    assert texts([named(right, "Ahead")]) == ["no measurements yet"]


def test_the_forecast_says_when_nodes_would_have_to_be_ordered() -> None:
    client = FakeClient()
    view = msgspec.structs.replace(client.overview(), capacity={"gpu_milli": 48_000})
    found = SlowReadings(forecast=client.forecast(ForecastRequest(hours=24)), boot_ms=30 * 60_000)
    pool = msgspec.structs.replace(FINE.pools[0], nodes=6, ready=6, capacity={"gpu_milli": 48_000})
    _, right = overview_columns(OverviewData(msgspec.structs.replace(view, pools=(pool,))), 90, 60, found)
    ahead = named(right, "Ahead")
    assert "short in" in texts([ahead])[0]
    assert "order within" in texts([ahead])[0]
    assert "┊" in "".join(texts([ahead]))
    assert "ordered now, +30m" in ahead.note


async def test_enter_on_a_finding_goes_where_it_is_worked_on_and_back_comes_back() -> None:
    async with console(FakeClient(500), start="overview", size=(120, 34)) as pilot:
        pane = pilot.app.navigator.current  # type: ignore[attr-defined]
        assert isinstance(pane, OverviewPane)
        await until(pilot, lambda: pane._beside.forecast is not None)
        assert pane.as_of is not None
        assert pane.line == "overview"
        assert pane._left.link == "nodes state:down"
        await press(pilot, "enter")
        assert pilot.app.navigator.current.line == "nodes state:down"  # type: ignore[attr-defined]
        await press(pilot, "escape", "escape")
        assert pilot.app.navigator.current is pane  # type: ignore[attr-defined]
        assert pane._left.link == "nodes state:down"
        while not pane._left.link.startswith("queue"):
            await press(pilot, "down")
        assert pane.copyable
        await press(pilot, "enter")
        assert pilot.app.navigator.current.NAME == "queue"  # type: ignore[attr-defined]


async def test_an_engine_that_goes_away_leaves_what_was_there() -> None:
    client = FakeClient(500)
    async with console(client, start="overview") as pilot:
        pane = pilot.app.navigator.current  # type: ignore[attr-defined]
        before = pane.detail
        client.down = True
        pane.look_again()
        await until(pilot, lambda: "no connection" in line(pilot, "banner"))
        assert pane.detail is before


def test_queues_have_the_trend_of_what_waits_where_there_is_room() -> None:
    rows = worst_first(FakeClient().query(question()))
    trends = {rows[0].name: tuple(range(12)), rows[1].name: (None, 5, 5)}
    section = queues(rows, 57, 6, trends)
    assert "LAST 2H" in section.note
    drawn = texts([section])
    assert " ▁▂▂▃▄▄▅▅▆▇▇█ " in drawn[0]
    assert {len(line) for line in drawn} == {57}
    assert "LAST 2H" not in queues(rows, 40, 6, trends).note
    assert texts([queues(rows, 57, 6)])[0] != drawn[0]


@pytest.mark.parametrize(("high", "begins"), [(5, "from 80%"), (40, "from 0%")])
def test_a_trend_is_no_slab_where_use_stays_high_and_says_where_it_begins(high: int, begins: str) -> None:
    use = [900 - high * (i % 20) for i in range(40)]
    history = tuple((60_000 * (i + 1), share, 100) for i, share in enumerate(use))
    section = trend(msgspec.structs.replace(FINE, history=history), 60, 4)
    drawn = texts([section])
    assert begins in drawn[3]
    assert len({line[10:] for line in drawn[:4]}) > 1
    assert len(set("".join(line[10:] for line in drawn[:4]))) > 3, "its shape shows"
    assert [line.link for line in section.lines if line.link] == ["curve cell gpu", "curve cell length"]
