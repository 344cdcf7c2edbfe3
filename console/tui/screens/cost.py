"""Where the money goes. What is now is there at once; the days that are over are asked for one by one, once each."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from textual import on

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.tui.widgets.chart_pane import ChartPane
from console.tui.widgets.pane import AsOf, Connect, Pane
from console.tui.widgets.sections_view import SectionsView
from console.views.advice.cost import CostPageQuery, Day, Spending, chart, day_of, pages
from console.views.sections import Section
from engine.model.errors import MusterError, SpecError
from engine.model.money import DAY_MS
from engine.model.specs import HOUR_MS
from engine.reads.cost_reports import GROUPINGS, TAG, Showback, ShowbackRequest
from recommender.history.queries import HistoryPoint, HistoryRequest

if TYPE_CHECKING:
    from textual.worker import Worker

    from console.client.protocol import Client

MAX_DAYS = 366
MAX_PRICES = 12
"""Pools whose prices of the last day are drawn."""
AGAIN_S = 2.0
TRENDS_EVERY_S = 60.0
"""Hourly means are asked for so often."""


def cost_page(connect: Connect, argument: str) -> Pane:
    """Where the money goes; behind words such as `nodes=4 hours=6` what that would cost. Raises SpecError."""
    words = argument.split()
    if all(word.partition("=")[0] in ("by", "days") for word in words):
        return CostPane(connect, read(words))
    from console.tui.screens.quote import QuotePane

    return QuotePane(connect, argument)


def read(words: list[str]) -> CostPageQuery:
    """`by=GROUP days=N`. Raises SpecError naming the word."""
    asked = CostPageQuery()
    for word in words:
        name, _, value = word.partition("=")
        if name == "by":
            if value not in GROUPINGS and not (value.startswith(TAG) and value != TAG):
                raise SpecError("", f"by={value} is no grouping", f"Use one of {', '.join(GROUPINGS)} or {TAG}KEY")
            asked = asked._replace(by=value)
        else:
            if not value.isdecimal() or not 1 <= int(value) <= MAX_DAYS:
                raise SpecError("", f"days={value} is not from 1 to {MAX_DAYS}", "Write for example days=30")
            asked = asked._replace(days=int(value))
    return asked


class CostPane(ChartPane[Spending]):
    NAME = "cost"

    def __init__(self, connect: Connect, asked: CostPageQuery) -> None:
        super().__init__(connect)
        self._asked = asked
        self._days: dict[tuple[str, int], Day] = {}
        """(grouping, day since 1970) -> what was charged; of days that are over, and of today as last asked."""
        self._filling: Worker[None] | None = None
        self._stopped = False
        self._asked_at = 0.0
        self._trends_at = 0.0
        self._rates: tuple[tuple[int, int | None], ...] = ()
        self._prices: dict[str, tuple[int | None, ...]] = {}
        self._read_only = False

    @property
    def note(self) -> str:
        if self._filling is not None and self.detail is not None:
            return f"{len(self._shown_days())} of {self._asked.days} days are in, esc stops"
        return f"by {printable(self._asked.by)}, {self._asked.days} days{', not all in: r' if self._stopped else ''}"

    @property
    def line(self) -> str:
        default = CostPageQuery()
        words = [f"by={self._asked.by}"] if self._asked.by != default.by else []
        words += [f"days={self._asked.days}"] if self._asked.days != default.days else []
        return " ".join(["cost", *words])

    @property
    def as_of(self) -> AsOf | None:
        return None if self.detail is None else AsOf(self.detail.overview.version, self.detail.overview.now_ms)

    # --- asking

    def ask(self, client: Client) -> Spending:
        self._read_only = client.read_only
        overview = client.overview()
        today = overview.now_ms // DAY_MS
        since_ms = max(today - self._asked.days + 1, 0) * DAY_MS
        if time.monotonic() - self._trends_at >= TRENDS_EVERY_S:
            self._rates = _hourly(client, "cost_rate", "cell", "", 48)
            pools = [pool.name for pool in overview.pools if pool.price_microusd_hour][:MAX_PRICES]
            self._prices = {
                name: tuple(value for _, value in _hourly(client, "price", "pool", name, 24)) for name in pools
            }
            self._trends_at = time.monotonic()
        by = self._asked.by
        self._days[by, today] = day_of(client.showback(ShowbackRequest(by=by, since_ms=today * DAY_MS)))
        return Spending(
            overview=overview,
            budgets=client.budgets(),
            goodput=client.goodput(),
            window=client.showback(ShowbackRequest(by=by, since_ms=since_ms)),
            rates=self._rates,
            prices=self._prices,
        )

    def reload(self) -> None:
        if self.detail is None or time.monotonic() - self._asked_at >= AGAIN_S:
            self._ask_now()

    def look_again(self) -> None:
        self._stopped = False
        self._trends_at = 0.0
        self._ask_now()

    def _ask_now(self) -> None:
        self._asked_at = time.monotonic()
        super().reload()

    def _missing(self) -> list[int]:
        """Days that are over and not known yet, the newest first."""
        assert self.detail is not None
        today = self.detail.overview.now_ms // DAY_MS
        wanted = range(today - 1, max(today - self._asked.days, -1), -1)
        return [day for day in wanted if (self._asked.by, day) not in self._days]

    def _shown_days(self) -> dict[int, Day]:
        assert self.detail is not None
        first = self.detail.overview.now_ms // DAY_MS - self._asked.days
        return {day: each for (by, day), each in self._days.items() if by == self._asked.by and day > first}

    async def _fill(self, by: str, days: list[int]) -> None:
        """Ask for days that are over: what they cost will not change any more."""
        try:
            for day in days:
                request = ShowbackRequest(by=by, since_ms=day * DAY_MS, until_ms=(day + 1) * DAY_MS - 1)
                self._days[by, day] = day_of(await in_thread(partial(self._charged, request)))
                self._draw()
        except MusterError as error:
            self._stopped = True
            self.post_message(self.Failed(error))
        finally:
            if by == self._asked.by:
                self._filling = None
        self.post_message(self.Changed())

    def _charged(self, request: ShowbackRequest) -> Showback:
        return self.connect().showback(request)

    def clear_one(self) -> bool:
        """The first Back stops asking for days."""
        if self._filling is None:
            return False
        self._filling.cancel()
        self._filling, self._stopped = None, True
        self.post_message(self.Changed())
        return True

    # --- what is shown

    def _draw(self) -> None:
        if self.detail is not None and self._filling is None and not self._stopped:
            missing = self._missing()
            if missing:
                self._filling = self.run_worker(self._fill(self._asked.by, missing), exclusive=True, group="days")
        super()._draw()

    def chart(self, detail: Spending, width: int, rows: int) -> list[Section]:
        return chart(detail, self._asked, self._shown_days(), width, rows)

    def columns(self, detail: Spending, width: int) -> tuple[list[Section], list[Section]]:
        return pages(detail, self._asked, width, read_only=self._read_only)

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Another grouping is shown on this page; what can be typed begins in the `:` bar."""
        what, _, rest = event.link.partition(":")
        if what not in ("by", "compose"):
            return
        event.prevent_default()
        event.stop()
        if what == "compose":
            self.post_message(self.Compose(rest))
            return
        if self._filling is not None:
            self._filling.cancel()
            self._filling = None
        self._asked, self._stopped = self._asked._replace(by=rest), False
        self._ask_now()


def _hourly(client: Client, metric: str, of: str, subject: str, hours: int) -> tuple[tuple[int, int | None], ...]:
    """Hourly means in whole micro-USD."""
    request = HistoryRequest(metric=metric, of=of, subject=subject, last_ms=hours * HOUR_MS, step_ms=HOUR_MS)
    return tuple((point.at_ms, _whole(point)) for point in client.history(request).points)


def _whole(point: HistoryPoint) -> int | None:
    return None if point.mean is None else round(point.mean)
