"""Is it fine, and if not, what now? Every line with a cursor leads to where it is worked on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.tui.widgets.drawing import NARROW
from console.tui.widgets.pane import VERY_WIDE, Connect, DetailPane
from console.views.cell_overview import (
    NO_TRENDS,
    OverviewData,
    SlowReadings,
    lately,
    overview_columns,
    questions,
    room_for,
    third_column,
)
from console.views.findings import TREND, TREND_MS, Trends, question, worst_first
from console.views.sections import Section
from engine.model.errors import MusterError, UnreachableError

if TYPE_CHECKING:
    from console.client.protocol import Client
    from console.views.lists import EventLog

T, U = TypeVar("T"), TypeVar("U")
BESIDE_S = 20.0
"""Wall seconds between questions that take longer to answer."""
HOURS_AHEAD = 24


class OverviewPane(DetailPane[OverviewData]):
    NAME = "overview"
    TWO_FROM = NARROW
    THIRD = True

    def __init__(self, connect: Connect, log: EventLog) -> None:
        super().__init__(connect)
        self._log = log
        self._left.leads_with_first = self._third.leads_with_first = True  # what is most urgent
        self._beside = SlowReadings()
        self._beside_at = float("-inf")
        self._asking_beside = False

    @property
    def copyable(self) -> str:
        """The id that the line under the cursor is about."""
        link = next((view.link for view in self._views if view.has_focus), "")
        page, _, name = link.partition(" ")
        return name if page in ("workload", "node", "queue", "proposal") else ""

    @property
    def measured(self) -> str:
        return "cell"

    @property
    def TAILS(self) -> bool:  # type: ignore[override]
        """True where there is a third column, which shows recent events."""
        return self.app.size.width >= VERY_WIDE

    def ask(self, client: Client) -> OverviewData:
        health = client.health()
        waiting = client.proposals(("awaiting",), 4) if health.awaiting else ()
        told = None
        if self._third.display:
            told = lately(*(client.query(question) for question in questions()))
        queues = worst_first(client.query(question()))
        named = client.incidents(("open", "claimed"), 4) if health.incidents else ()
        return OverviewData(
            client.overview(), queues, health.awaiting, health.stuck, waiting, told, health.incidents, named
        )

    def columns(self, detail: OverviewData, width: int) -> tuple[list[Section], list[Section]]:
        return overview_columns(detail, width, self.size.height, self._beside)

    def third(
        self, detail: OverviewData, left: list[Section], right: list[Section], width: int
    ) -> tuple[list[Section], list[Section], list[Section]]:
        events = self._log.newest(self.size.height) if self._log.whole else None
        return left, right, third_column(detail.lately, events, width, self.size.height)

    def on_resize(self) -> None:
        if self._third.display != (self.size.width >= VERY_WIDE):
            self.call_after_refresh(self.reload)

    def reload(self) -> None:
        super().reload()
        if self.frozen is None and not self._asking_beside and time.monotonic() - self._beside_at >= BESIDE_S:
            self._asking_beside = True
            self.run_worker(self._ask_beside())

    def look_again(self) -> None:
        self._beside_at = float("-inf")
        super().look_again()
        self.reload()

    async def _ask_beside(self) -> None:
        """Ask for slow readings on a worker; the page is drawn when they come."""
        try:
            shown = room_for(self.size.height).queues
            self._beside = await in_thread(lambda: beside(self.connect(), shown))
        except UnreachableError:
            return  # asked again with the next reload
        except MusterError as error:
            self._beside = self._beside._replace(why_not=printable(str(error)))
        finally:
            self._asking_beside = False
        self._beside_at = time.monotonic()
        self._draw()


def beside(client: Client, queues: int) -> SlowReadings:
    """Blocks. Trends are those of so many queues, the worst. What cannot be had is left out, but for an engine that is
    away."""
    from recommender.estimates.queries import ForecastRequest

    found = SlowReadings(
        budgets=client.budgets().budgets,
        boot_ms=_had(lambda: _boot_ms(client), 0),
        advice=_had(lambda: client.recommendations().open, None),
        trends=_had(lambda: _trends(client, queues), NO_TRENDS),
    )
    try:
        return found._replace(forecast=client.forecast(ForecastRequest(hours=HOURS_AHEAD)))
    except UnreachableError:
        raise
    except MusterError as error:
        return found._replace(why_not=printable(str(error)))


def _had(ask: Callable[[], T], otherwise: U) -> T | U:
    """The answer; or the other where it cannot be had."""
    try:
        return ask()
    except UnreachableError:
        raise
    except MusterError:
        return otherwise


def _boot_ms(client: Client) -> int:
    """Longest usual boot of a node of the pools that grow."""
    grows = [size.scaling for size in client.scaling().pools if size.scaling is not None]
    return max((each.boot_ms[0] for each in grows), default=0)


def _trends(client: Client, most: int) -> Trends:
    """How many waited in each of the worst queues. Blocks."""
    from recommender.history.metrics import HistoryRequest

    names = [row.name for row in worst_first(client.query(question()))[:most]]
    asked = {
        name: HistoryRequest(metric="waiting", of="queue", subject=name, last_ms=TREND_MS, step_ms=TREND_MS // TREND)
        for name in names
    }
    return {
        name: tuple(None if point.mean is None else round(point.mean * 1000) for point in client.history(each).points)
        for name, each in asked.items()
    }
