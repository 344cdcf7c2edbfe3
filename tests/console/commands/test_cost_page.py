"""The cost page: what is spent, budgets, who was charged, and what work would cost."""

from __future__ import annotations

import re
import threading

import msgspec
import pytest
from rich.cells import cell_len

from console.cli.main import parser
from console.commands import money
from console.commands.money import request_of, showback_lines
from console.tui.screens.cost import QuotePane, cost_page, flags, read
from console.views.cost import (
    CostPageQuery,
    Day,
    Spending,
    charged,
    chart,
    compared,
    day_of,
    dollars,
    group_link,
    pages,
    quote_pages,
    use,
)
from console.views.sections import Section
from engine.model.errors import SpecError
from engine.model.overviews import Overview
from engine.model.reports import BudgetLine, BudgetReport, GoodputReport, Showback, ShowbackLine, ShowbackRequest
from engine.model.spec_parts import DAY_MS, BudgetSpec
from engine.model.specs import HOUR_MS
from recommender.estimates.queries import Quote, QuoteRequest
from recommender.estimates.quotes import quantiles
from tests.console.fake_client import NOW_MS, FakeClient
from tests.console.tui.test_app import console, here, line, press, quick, until, write
from tests.support.patience import PATIENCE_S

__all__ = ["quick"]
USD = 1_000_000
TODAY = NOW_MS // DAY_MS


class Billing(FakeClient):
    """A cell whose nodes cost something since four days."""

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.asked: list[ShowbackRequest] = []

    def overview(self) -> Overview:
        return msgspec.structs.replace(
            super().overview(), cost_microusd_hour=240 * USD, idle_microusd_hour=96 * USD
        )  # fmt: skip

    def budgets(self) -> BudgetReport:
        def line(name: str, stage: str, spent: int, gone: int | None) -> BudgetLine:
            spec = BudgetSpec(name=name, scope="queue", of="batch", limit_microusd=1000 * USD, action="hold")
            return BudgetLine(
                spec=spec, stage=stage, spent_microusd=spent * USD, rate_microusd_hour=50 * USD,
                window_start_ms=NOW_MS - DAY_MS, window_end_ms=NOW_MS + DAY_MS, forecast_microusd=1900 * USD,
                spent_at_ms=gone, waiting=3 if stage == "spent" else 0,
            )  # fmt: skip

        budgets = (
            line("calm", "open", 100, None),
            line("soon", "warned", 850, NOW_MS + 3 * HOUR_MS),
            line("gone", "spent", 1000, None),
        )
        return BudgetReport(version=1, now_ms=NOW_MS, budgets=budgets)

    def showback(self, request: ShowbackRequest) -> Showback:
        self.asked.append(request)
        first = request.since_ms // DAY_MS
        last = TODAY if request.until_ms is None else request.until_ms // DAY_MS
        days = sum(1 for day in range(first, last + 1) if day > TODAY - 4)
        lines = (
            ShowbackLine(kind="group", name=self._text(3, "acme"), microusd=days * 70 * USD, permille=700),
            ShowbackLine(kind="group", name="", microusd=days * 10 * USD, permille=100),
            ShowbackLine(kind="idle", name="", microusd=days * 20 * USD, permille=200),
        )
        return Showback(
            version=1, now_ms=NOW_MS, by=request.by, since_ms=first * DAY_MS, until_ms=NOW_MS,
            total_microusd=days * 100 * USD, lines=lines,
        )  # fmt: skip


def spending(client: FakeClient | None = None) -> Spending:
    client = client or Billing()
    return Spending(
        overview=client.overview(),
        budgets=client.budgets(),
        goodput=client.goodput(),
        window=client.showback(ShowbackRequest()),
        rates=tuple((NOW_MS - (5 - i) * HOUR_MS, 240 * USD) for i in range(5)),
        prices={},
    )


def text(sections: list[Section]) -> str:
    lines = [f"{section.title} {section.note}" for section in sections]
    lines += ["".join(part for part, _ in line.spans) for section in sections for line in section.lines]
    return "\n".join(lines)


@pytest.mark.parametrize("width", [20, 57, 137, 217])
def test_days_are_columns_of_their_groups_and_nothing_is_wider_than_the_page(width: int) -> None:
    days = {TODAY - i: Day({"acme": 70 * USD, "": 10 * USD}, 20 * USD) for i in range(4)}
    days[TODAY - 9] = Day({}, 0)
    [section] = chart(spending(), CostPageQuery(), days, width, 9)
    drawn = ["".join(part for part, _ in line.spans) for line in section.lines]
    assert max(map(cell_len, drawn)) <= width
    assert "$400.00 in 4 days" in section.note
    column = [line[drawn[0].index("┤") + 1] for line in drawn[:9]]
    # 100 of a scale of 100: 70 % of nine rows are the first group, 10 % the one without a name, 20 % idle.
    assert "".join(reversed(column)) == "██████▒··"
    whole = text([section])
    for name in ("█ acme", "▒ (none)", "· idle"):
        assert name in whole


def test_what_a_downtime_cost_is_no_idleness_on_any_face() -> None:
    lines = (
        ShowbackLine(kind="group", name="acme", microusd=60 * USD, permille=600),
        ShowbackLine(kind="downtime", name="", microusd=30 * USD, permille=300),
        ShowbackLine(kind="idle", name="", microusd=10 * USD, permille=100),
    )
    report = Showback(
        version=1, now_ms=1, by="tenant", since_ms=0, until_ms=1, total_microusd=100 * USD, lines=lines
    )  # fmt: skip
    day = day_of(report)
    assert (day.idle, day.downtime, day.total) == (10 * USD, 30 * USD, 100 * USD)
    [section] = chart(spending(), CostPageQuery(), {TODAY: day, TODAY - 1: day}, 80, 10)
    assert "= engine down" in text([section])
    for shown in (text([charged(report, 80)]), "\n".join(showback_lines(report))):
        assert re.search(r"\(engine down\) .*\$30\.00.*\n.*\(idle\) .*\$10\.00", shown)
    goodput = GoodputReport(
        version=1, now_ms=1, cost_microusd=100 * USD, charged_microusd=60 * USD, downtime_microusd=30 * USD,
        wasted_microusd=0, goodput_permille=600, finished=1, per_finished_microusd=None, turned=0, pools=(), tenants=(),
    )  # fmt: skip
    assert re.search(r"idle .*10% \$10\.00\ndown .*30% \$30\.00", text([use(goodput, 80)]))
    assert "$10.00" in next(line for line in money.lines(goodput) if line.startswith("idle"))


def test_a_young_cell_is_drawn_by_the_hour() -> None:
    [section] = chart(spending(), CostPageQuery(), {TODAY: Day({"a": 5}, 0)}, 80, 9)
    assert section.title == "Cost per hour, of all nodes"
    [section] = chart(spending()._replace(rates=((NOW_MS, None),)), CostPageQuery(), {}, 80, 9)
    assert "no measurements yet" in text([section])


def test_where_nothing_has_a_price_that_is_said_instead_of_a_chart_of_nothing() -> None:
    found = spending()
    free = found._replace(
        rates=tuple((at, 0) for at, _ in found.rates),
        overview=msgspec.structs.replace(found.overview, cost_microusd_hour=0),
    )
    [section] = chart(free, CostPageQuery(), {}, 100, 9)
    assert "no pool has a price" in text([section])
    assert ":set-price POOL" in text([section])
    assert "$0" not in text([section])


def test_the_page_says_what_is_spent_when_budgets_are_gone_and_what_then() -> None:
    left, right = pages(spending(), CostPageQuery(), 70, read_only=False)
    told = " ".join(text(left).split())
    assert "$240.00, $5,760.00 a day" in told
    assert "$96.00 an hour" in told
    assert " 40%" in told
    assert "at $50.00/h: $1,900.00 by then" in told
    assert "at $50.00/h: spent in 3h (03-01 15:00 UTC), then new work is held" in told
    assert "spent; new work is held, 3 workloads waiting" in told
    assert "20% $2.00" in told, "of use: charged, less what was wasted"
    assert [line.link for section in right for line in section.lines][:2] == ["workloads tenant:acme", ""]
    assert "(none)" in text(right)
    assert "(idle)" in text(right)
    bare = msgspec.structs.replace(FakeClient().budgets())
    left, _ = pages(spending()._replace(budgets=bare), CostPageQuery(), 70, read_only=True)
    assert "set-budget" not in text(left)


def test_groups_lead_to_their_work() -> None:
    assert group_link("queue", "a b") == 'workloads queue:"a b"'
    assert group_link("pool", "h100") == "nodes pool:h100"
    assert group_link("tag:team", "x") == group_link("tenant", "") == ""


@pytest.mark.parametrize(
    ("microusd", "shown"),
    [(0, "$0"), (500_000, "$0.50"), (12 * USD, "$12"), (9_400 * USD, "$9,400"), (94_000 * USD, "$94k"),
     (1_200_000 * USD, "$1.2M")],
)  # fmt: skip
def test_amounts_on_an_axis_are_short(microusd: int, shown: str) -> None:
    assert dollars(microusd) == shown


def test_what_stands_behind_cost_is_read() -> None:
    assert read(["by=queue", "days=30"]) == CostPageQuery("queue", 30)
    assert isinstance(cost_page(FakeClient, "nodes=4 hours=6"), QuotePane)
    assert flags("nodes=4 machine_type=p5 spot --name 'my work'") == [
        "--nodes", "4", "--machine-type", "p5", "--spot", "--name", "my work",
    ]  # fmt: skip
    for wrong, said in (
        ("by=colour", "is not a grouping"), ("days=0", "must be 1 to"), ("hours=6", "Give a number"),
        ("nodes=x", "whole number"), ("nodes=4 fast", "is not NAME=VALUE"), ("nodes=4 'x", "quotation"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=said):
            cost_page(FakeClient, wrong)


def quote(**changes: object) -> tuple[Quote, QuoteRequest]:
    client = FakeClient()
    arguments = parser().parse_args(["cost", "--nodes", "4", "--hours", "6"])
    request = request_of(arguments, client)
    return msgspec.structs.replace(client.quote(request), **changes), request


@pytest.mark.parametrize("width", [20, 57, 137, 217])
def test_options_are_compared_on_one_scale(width: int) -> None:
    found, request = quote()
    cheap = msgspec.structs.replace(found.options[0], pool="a100", cost_microusd=quantiles([1, 2, 2, 2, 3]))
    found = msgspec.structs.replace(found, options=(found.options[0], cheap), warnings=("one pool was not tried",))
    starts, costs = compared(found, request, width)
    assert [line.link for line in starts.lines] == ["nodes pool:h100", "nodes pool:a100"]
    told = text([starts, costs])
    assert "▸" in told or width < 57, "its p90 lies beyond what was looked at"
    left, right = quote_pages(found, "", width)
    assert "one pool was not tried" in " ".join(text(right).split()) or width < 57
    assert "chance of interruption in 6h: not known" in " ".join(text(left).split()) or width < 57


def shown(pilot: object) -> str:
    pane = here(pilot)  # type: ignore[arg-type]
    return "\n".join(
        "".join(part for part, _ in line.spans)
        for view in (pane._chart, pane._left, pane._right)  # type: ignore[attr-defined]
        for line in view._lines
    )


async def test_days_are_asked_for_once_and_another_grouping_is_chosen_on_the_page() -> None:
    client = Billing()
    async with console(client, size=(140, 40)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "cost")
        await press(pilot, "enter")
        await until(pilot, lambda: "Spent by day, by tenant" in shown(pilot))
        await until(pilot, lambda: "14 days" in line(pilot, "title"))
        over = [each.since_ms // DAY_MS for each in client.asked if each.until_ms is not None]
        assert sorted(over) == list(range(TODAY - 13, TODAY))
        await press(pilot, "r")
        await pilot.app.workers.wait_for_complete()
        assert len([each for each in client.asked if each.until_ms is not None]) == 13, "the past stays"
        await press(pilot, "colon")
        await write(pilot, "cost by=queue days=3")
        await press(pilot, "enter")
        await until(pilot, lambda: "Spent by day, by queue" in shown(pilot))
        assert here(pilot).line == "cost by=queue days=3"
        assert here(pilot).as_of is not None


async def test_escape_stops_asking_for_days() -> None:
    class Slow(Billing):
        gate = threading.Event()

        def showback(self, request: ShowbackRequest) -> Showback:
            if request.until_ms is not None:
                self.gate.wait(PATIENCE_S)
            return super().showback(request)

    client = Slow()
    try:
        async with console(client, size=(140, 40)) as pilot:
            await press(pilot, "colon")
            await write(pilot, "cost")
            await press(pilot, "enter")
            await until(pilot, lambda: "days loaded, esc stops" in line(pilot, "title"))
            assert "Budgets" in shown(pilot), "what is now does not wait"
            await press(pilot, "escape")
            await until(pilot, lambda: "partly loaded" in line(pilot, "title"))
    finally:
        client.gate.set()


async def test_a_quote_comes_at_once_is_looked_for_further_and_stops_on_escape() -> None:
    class Slow(FakeClient):
        gate = threading.Event()
        within: list[int] = []  # noqa: RUF012

        def quote(self, request: QuoteRequest) -> Quote:
            self.within.append(request.within_ms)
            found = super().quote(request)
            if len(self.within) > 1:
                self.gate.wait(PATIENCE_S)
                return found
            # One run reached a start: that is too few to say when it starts.
            start = quantiles([found.at_ms + 720_000])
            thin = msgspec.structs.replace(found.options[0], start_ms=start, seeds=1, started=1)
            return msgspec.structs.replace(found, options=(thin,))

    client = Slow()
    try:
        async with console(client, size=(140, 40)) as pilot:
            await press(pilot, "colon")
            await write(pilot, "cost nodes=4 gpus=8 hours=6")
            await press(pilot, "enter")
            await until(pilot, lambda: "one run: in 12m" in shown(pilot))
            await until(pilot, lambda: "of about 20 s, esc stops" in line(pilot, "title"))
            assert here(pilot).copyable == "muster cost --nodes 4 --gpus 8 --hours 6"
            await press(pilot, "escape")
            await until(pilot, lambda: "stopped: r starts again" in shown(pilot))
            client.gate.set()
            await press(pilot, "r")
            await until(pilot, lambda: "in 40m" in shown(pilot))
            assert client.within == [550, 20_000, 550]
    finally:
        client.gate.set()
