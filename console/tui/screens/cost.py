"""Pages of money: spending by day and budgets, and the price of work that is not submitted.

`:cost` shows current spending at once and asks for each past day once. `:cost nodes=4 gpus=8 hours=6` prices work. Its
first answer comes within a second; starts it did not reach are searched further, with progress, until Esc.
"""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from textual import on

from console.actions.key_map import key_of
from console.actions.request_builder import LineParser
from console.client.change_feed import in_thread
from console.commands.money import ON_MS, request_of
from console.forms.command_arguments import quote_arguments
from console.text.terminal_text import printable
from console.tui.widgets.pane import AsOf, ChartPane, Connect, Pane, SectionsView
from console.views.cost import (
    CostPageQuery,
    Day,
    Spending,
    asking,
    chart,
    compared,
    day_of,
    pages,
    quote_pages,
    thin_starts,
)
from console.views.sections import Section
from engine.model.errors import MusterError, SpecError
from engine.model.reports import GROUPINGS, TAG, Showback, ShowbackRequest
from engine.model.spec_parts import DAY_MS
from engine.model.specs import HOUR_MS
from engine.model.twin_queries import AskOptions
from recommender.estimates.queries import Quote, QuoteRequest
from recommender.history.metrics import HistoryPoint, HistoryRequest

if TYPE_CHECKING:
    import argparse

    from textual.timer import Timer
    from textual.worker import Worker

    from console.client.protocol import Client


MAX_DAYS = 366
MAX_PRICES = 12
"""Pools whose prices of the last day are drawn."""
AGAIN_S = 2.0
TRENDS_EVERY_S = 60.0
"""Hourly means are asked for so often."""


def cost_page(connect: Connect, argument: str) -> Pane:
    """The page of spending, or of a quote where words such as `nodes=4 hours=6` describe work. Raises SpecError."""
    words = argument.split()
    if all(word.partition("=")[0] in ("by", "days") for word in words):
        return CostPane(connect, read(words))

    return QuotePane(connect, argument)


def read(words: list[str]) -> CostPageQuery:
    """`by=GROUP days=N`. Raises SpecError naming the word."""
    asked = CostPageQuery()
    for word in words:
        name, _, value = word.partition("=")
        if name == "by":
            if value not in GROUPINGS and not (value.startswith(TAG) and value != TAG):
                raise SpecError("", f"by={value} is not a grouping", f"Use one of {', '.join(GROUPINGS)} or {TAG}KEY")
            asked = asked._replace(by=value)
        else:
            if not value.isdecimal() or not 1 <= int(value) <= MAX_DAYS:
                raise SpecError("", f"days={value} must be 1 to {MAX_DAYS}", "Write it like days=30")
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
            return f"{len(self._shown_days())} of {self._asked.days} days loaded, esc stops"
        return f"by {printable(self._asked.by)}, {self._asked.days} days{', partly loaded: r' if self._stopped else ''}"

    @property
    def measured(self) -> str:
        return "cell cost"

    @property
    def curve(self) -> str:
        return f"{super().curve.removesuffix(' cost')} cost"

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
            self.post_message(self.AskFailed(error))
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


LOOK_S = 0.5
SWITCHES = ("spot", "arrivals", "no-arrivals")
"""Words that stand alone."""


class QuoteResult(NamedTuple):
    quote: Quote
    request: QuoteRequest


class QuotePane(ChartPane[QuoteResult]):
    NAME = "cost"

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._words = " ".join(argument.split())
        self._arguments = read_quote(self._words)
        self._work: Worker[None] | None = None
        self._began = 0.0
        self._permille: int | None = None
        """How far the engine is, where it says so."""
        self._further = ""
        self._timer: Timer | None = None

    @property
    def crumb(self) -> str:
        return f"cost {printable(self._words)}"

    @property
    def note(self) -> str:
        return self._doing() or f"nothing is submitted; {key_of('refresh')} refreshes"

    @property
    def line(self) -> str:
        return f"cost {self._words}"

    @property
    def copyable(self) -> str:
        """The shell command that asks the same."""
        return shlex.join(["muster", "cost", *flags(self._words)])

    @property
    def as_of(self) -> AsOf | None:
        return None if self.detail is None else AsOf(self.detail.quote.version, self.detail.quote.at_ms)

    @property
    def frozen(self) -> AsOf | None:
        """An answer is of its moment: only a person asks again."""
        return self.as_of

    def on_mount(self) -> None:
        self._timer = self.set_interval(LOOK_S, self._look, pause=True)
        self._chart.show(asking(self._words, "asking …", 60))
        self._chart.styles.height = 2
        self._start()

    def reload(self) -> None:
        """Only while nothing was asked, as before there was an engine."""
        if self.detail is None and self._work is None and not self._further:
            self._start()

    def look_again(self) -> None:
        if self._work is None:
            self._further = ""
            self._start()

    # --- asking

    def _start(self) -> None:
        self._began, self._permille = time.monotonic(), None
        self._work = self.run_worker(self._quote(), exclusive=True, group="quote")
        if self._timer is not None:
            self._timer.resume()

    async def _quote(self) -> None:
        try:
            request = await in_thread(lambda: self._request(self.connect()))
            quote = await in_thread(lambda: self.connect().quote(request))
            self._show(QuoteResult(quote, request))
            if thin_starts(quote) and self._arguments.seeds is None and self._arguments.within is None:
                self._began, self._permille = time.monotonic(), None
                self._further = "running further ahead for starts not reached yet, or in too few runs"
                self._draw()
                longer = msgspec.structs.replace(request, within_ms=ON_MS)
                self._show(QuoteResult(await in_thread(lambda: self.connect().quote(longer)), longer))
            self._further = self._not_reached()
        except MusterError as error:
            self._further = str(error)
            if self.detail is None:
                self._chart.show(asking(self._words, self._further, max(20, self.size.width - 4)))
            self.post_message(self.AskFailed(error))
        self._stand_still()

    def _request(self, client: Client) -> QuoteRequest:
        return request_of(self._arguments, client)

    def _show(self, found: QuoteResult) -> None:
        self.detail = found
        self._draw()

    def _not_reached(self) -> str:
        if self.detail is None or not thin_starts(self.detail.quote):
            return ""
        return "some starts were not reached in enough runs: within=60s runs further ahead, seeds=8 to the end"

    def _stand_still(self) -> None:
        self._work = None
        if self._timer is not None:
            self._timer.pause()
        self._draw()
        self.post_message(self.Changed())

    def clear_one(self) -> bool:
        """The first Back stops the engine looking; the answer that is there stays."""
        if self._work is None:
            return False
        self._work.cancel()
        self._further = f"stopped: {key_of('refresh')} starts again"
        self.run_worker(self._stop(), group="stop")
        self._stand_still()
        if self.detail is None:
            self._chart.show(asking(self._words, self._further, 60))
        return True

    async def _stop(self) -> None:
        """End what runs ahead for this in the engine."""
        with suppress(MusterError):
            await in_thread(lambda: self._end_runs(self.connect()))

    def _end_runs(self, client: Client) -> None:
        for run_id, _ in self._runs(client):
            client.cancel_run(run_id)

    def _runs(self, client: Client) -> list[tuple[str, int]]:
        """(id, progress) of what runs ahead for the same work."""
        nodes = self._arguments.nodes
        return [
            (run.id, run.progress_permille)
            for run in client.runs()
            if run.state == "running"
            and isinstance(run.ask, AskOptions)
            and any(spec.groups[0].count == nodes for spec in run.ask.workloads)
        ]

    async def _look(self) -> None:
        if not self.display:
            return
        with suppress(MusterError):
            runs = await in_thread(lambda: self._runs(self.connect()))
            self._permille = runs[0][1] if runs else self._permille
        self.post_message(self.Changed())

    def _doing(self) -> str:
        if self._work is None:
            return ""
        went_s = time.monotonic() - self._began
        if self._arguments.seeds and self._permille:
            left_s = went_s * (1000 - self._permille) / self._permille
            return f"running ahead: {self._permille // 10}%, about {left_s:.0f} s left, esc stops"
        most_s = ON_MS // 1000 if self._further else 1
        return f"running ahead: {went_s:.0f} s of about {most_s} s, esc stops"

    # --- what is shown

    def chart(self, detail: QuoteResult, width: int, rows: int) -> list[Section]:
        return compared(detail.quote, detail.request, width)

    def columns(self, detail: QuoteResult, width: int) -> tuple[list[Section], list[Section]]:
        return quote_pages(detail.quote, self._further, width)


def flags(words: str) -> list[str]:
    """`nodes=4 hours=6 spot` as the shell takes it; flags may be typed as they are. Raises SpecError."""
    try:
        parts = shlex.split(words)
    except ValueError as error:
        raise SpecError("", str(error), "Write it like nodes=4 gpus=8 hours=6") from None
    found = []
    for part in parts:
        name, equals, value = part.partition("=")
        if part.startswith("-"):
            found.append(part)
        elif equals:
            found += [f"--{name.replace('_', '-')}", value]
        elif part in SWITCHES:
            found.append(f"--{part}")
        elif found and found[-1].startswith("--") and "=" not in found[-1]:
            found.append(part)
        else:
            raise SpecError("", f"'{printable(part)[:40]}' is not NAME=VALUE", "Write nodes=4 gpus=8 hours=6")
    return found


def read_quote(words: str) -> argparse.Namespace:
    """Raises SpecError naming what is wrong."""
    parser = LineParser(prog=":cost", add_help=False)
    quote_arguments(parser)
    arguments = parser.parse_args(flags(words))
    if arguments.nodes is None:
        raise SpecError("nodes", "is not given", "Give a number, as in nodes=4 gpus=8 hours=6")
    return arguments
