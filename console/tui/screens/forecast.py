"""Demand of the past and of the hours ahead. The past is there at once; the forecast is made beside the page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import on

from console.client.change_feed import in_thread
from console.text.terminal_text import printable
from console.tui.widgets.chart_pane import ChartPane
from console.tui.widgets.pane import AsOf, Connect
from console.tui.widgets.sections_view import SectionsView
from console.views.advice.forecast import ONE, CapacityStep, ForecastPageData, Wait, chart, measured, pages, unit_of
from console.views.sections import Section
from engine.model.errors import MusterError, SpecError
from engine.model.queries import Query
from engine.model.specs import HOUR_MS
from recommender.forecasts.queries import MAX_HOURS, Forecast, ForecastRequest
from recommender.history.metrics import METRICS
from recommender.history.queries import HistoryRequest

if TYPE_CHECKING:
    from textual.timer import Timer
    from textual.worker import Worker

    from console.client.protocol import Client
    from engine.model.queries import Overview, PoolOverview

HOURS = 48
PAST_HOURS = 48
SHOWN = ("demand_gpu", "demand_cpu", "demand_nodes", "used_gpu", "used_cpu", "waiting", "running", "cost_rate", "price")
"""What can be chosen on the page; others are asked for by name."""
MAX_QUEUES = 100
AGAIN_S = 5.0
"""Hours pass slowly: what happens in the cell has this page ask no more often."""


class ForecastPageQuery(NamedTuple):
    """What stands behind `:forecast`."""

    subject: str = ""
    metric: str = ""
    hours: int = HOURS


class ForecastPane(ChartPane[ForecastPageData]):
    NAME = "forecast"

    def __init__(self, connect: Connect, argument: str) -> None:
        super().__init__(connect)
        self._asked = read(argument)
        self._found: Forecast | None = None
        self._of: ForecastPageQuery | None = None
        """What the forecast that is there is of."""
        self._wait = Wait()
        self._began = 0.0
        self._making: Worker[None] | None = None
        self._ticks: Timer | None = None
        self._asked_at = 0.0
        self._read_only = False

    @property
    def crumb(self) -> str:
        return f"forecast {printable(self._asked.subject)}".strip()

    @property
    def line(self) -> str:
        words = ("forecast", self._asked.subject or (self._asked.metric and "cell"), self._asked.metric)
        hours = f"{self._asked.hours}h" if self._asked.hours != HOURS else ""
        return " ".join(word for word in (*words, hours) if word)

    @property
    def note(self) -> str:
        if self._making is not None:
            return f"making the forecast, {time.monotonic() - self._began:.0f} s, esc stops"
        return ":forecast queue:NAME for another"

    @property
    def as_of(self) -> AsOf | None:
        return None if self.detail is None else AsOf(self.detail.version, self.detail.now_ms)

    def place(self) -> dict[str, Any]:
        return {"subject": self._asked.subject, "metric": self._asked.metric, "hours": self._asked.hours}

    def put_back(self, place: dict[str, Any]) -> None:
        try:
            self._asked = ForecastPageQuery(str(place["subject"]), str(place["metric"]), int(place["hours"]))
        except (KeyError, TypeError, ValueError):
            return
        self._ask_now()

    def on_mount(self) -> None:
        self._ticks = self.set_interval(1.0, self._tick, pause=True)
        super().on_mount()

    # --- asking

    def ask(self, client: Client) -> ForecastPageData:
        self._read_only = client.read_only
        return known(client, self._asked)

    def reload(self) -> None:
        if self.detail is None or time.monotonic() - self._asked_at >= AGAIN_S:
            self._ask_now()

    def look_again(self) -> None:
        self._wait = Wait()
        self._of = None
        self._ask_now()

    def _ask_now(self) -> None:
        self._asked_at = time.monotonic()
        super().reload()

    def clear_one(self) -> bool:
        """The first Back stops waiting for the forecast: the engine makes it to its end, and keeps it."""
        if self._making is None:
            return False
        self._making.cancel()
        self._making = None
        self._wait = Wait(stopped=True)
        self._stand_still()
        return True

    def _forecast_is_old(self, now_ms: int) -> bool:
        if self._of != self._asked or self._found is None:
            return True
        return not self._found.stale and now_ms // HOUR_MS > self._found.made_ms // HOUR_MS

    def _make(self) -> None:
        """Have the forecast made, unless it is being made, was stopped, or could not be."""
        if self._making is not None or self._wait.stopped or (self._wait.problem and self._of == self._asked):
            return
        self._began = time.monotonic()
        self._making = self.run_worker(self._made(self._asked), exclusive=True, group="forecast")
        if self._ticks is not None:
            self._ticks.resume()

    async def _made(self, asked: ForecastPageQuery) -> None:
        request = ForecastRequest(subject=asked.subject, metric=asked.metric, hours=asked.hours)
        try:
            found: Forecast | None = await in_thread(lambda: self.connect().forecast(request))
            problem = ""
        except MusterError as error:
            found, problem = None, str(error)
        if asked == self._asked:
            self._making = None
            self._of, self._found, self._wait = asked, found, Wait(problem=problem)
            self._stand_still()

    def _stand_still(self) -> None:
        if self._ticks is not None:
            self._ticks.pause()
        self._draw()
        self.post_message(self.Changed())

    def _tick(self) -> None:
        if self.display:
            self._draw()

    # --- what is shown

    def _draw(self) -> None:
        if self.detail is not None and self._forecast_is_old(self.detail.now_ms):
            self._make()
        super()._draw()

    def _there(self) -> tuple[Forecast | None, Wait]:
        found = self._found if self._of == self._asked else None
        if self._making is not None:
            return found, Wait(since_s=max(0.1, time.monotonic() - self._began))
        return found, self._wait

    def chart(self, detail: ForecastPageData, width: int, rows: int) -> list[Section]:
        return chart(detail, *self._there(), width, rows)

    def columns(self, detail: ForecastPageData, width: int) -> tuple[list[Section], list[Section]]:
        return pages(detail, *self._there(), width, read_only=self._read_only)

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Another subject or measure is shown on this page; what can be done begins in the `:` bar."""
        what, _, name = event.link.partition(":")
        if what not in ("of", "metric", "compose"):
            return
        event.prevent_default()
        event.stop()
        if what == "compose":
            self.post_message(self.Compose(name))
            return
        metric = self._asked.metric if what == "of" and _measured_of(self._asked.metric, name) else ""
        self._asked = (
            ForecastPageQuery(name, metric, self._asked.hours) if what == "of" else self._asked._replace(metric=name)
        )
        if self._making is not None:
            self._making.cancel()
            self._making = None
        self._wait = Wait()
        self._ask_now()


def read(argument: str) -> ForecastPageQuery:
    """`[WHAT:NAME] [METRIC] [N h]`. Raises SpecError naming the word."""
    asked = ForecastPageQuery()
    for word in argument.split():
        if word.endswith("h") and word[:-1].isdecimal():
            hours = int(word[:-1])
            if not 1 <= hours <= MAX_HOURS:
                raise SpecError("", f"{word} is not from 1h to {MAX_HOURS}h", "Write for example 48h")
            asked = asked._replace(hours=hours)
        elif word in METRICS:
            asked = asked._replace(metric=word)
        else:
            asked = asked._replace(subject="" if word == "cell" else word)
    return asked


def _measured_of(metric: str, subject: str) -> bool:
    return metric in METRICS and (subject.partition(":")[0] or "cell") in METRICS[metric].of


# -- what is asked of the engine --------------------------------------------------------------------------------------


def known(client: Client, asked: ForecastPageQuery) -> ForecastPageData:
    """Everything besides the forecast itself. Blocks; each question is a short one."""
    overview = client.overview()
    of, _, name = asked.subject.partition(":")
    of = of or "cell"
    pool = next((pool for pool in overview.pools if of == "pool" and pool.name == name), None)
    metric = asked.metric or _usual(overview, pool)
    unit = METRICS[metric].unit
    history = client.history(
        HistoryRequest(metric=metric, of=of, subject=name, last_ms=PAST_HOURS * HOUR_MS, step_ms=HOUR_MS)
    )
    there_is, what, sizing = _there_is(client, overview, pool, of, name, metric)
    queues = client.query(Query(kind="queues", columns=("name",), limit=MAX_QUEUES)).rows
    return ForecastPageData(
        version=overview.version,
        now_ms=overview.now_ms,
        subject=asked.subject,
        metric=metric,
        unit=unit_of(metric, unit)[0],
        past=measured([(point.at_ms, point.mean) for point in history.points], metric, unit),
        there_is=there_is,
        what=what,
        boot_ms=_boot_ms(client, pool),
        sizing=sizing,
        subjects=(*(f"pool:{pool.name}" for pool in overview.pools), *(f"queue:{row[0]}" for row in queues)),
        metrics=tuple(name for name in SHOWN if of in METRICS[name].of),
    )


def _usual(overview: Overview, pool: PoolOverview | None) -> str:
    """What the engine foretells when no metric is named."""
    capacity = overview.capacity if pool is None else pool.capacity
    return "demand_gpu" if capacity.get("gpu_milli") else "demand_cpu"


def _there_is(
    client: Client, overview: Overview, pool: PoolOverview | None, of: str, name: str, metric: str
) -> tuple[int | None, str, CapacityStep | None]:
    """What the subject has of what is measured, in thousandths; what that is; how it gets more."""
    resource = {"gpu": "gpu_milli", "cpu": "cpu_milli"}.get(metric.rpartition("_")[2], "")
    if metric not in ("demand_nodes", "demand_gpu", "demand_cpu", "used_gpu", "used_cpu"):
        return None, "", None
    if of == "queue":
        quota = client.queue(name).spec.nominal.get(resource, 0)
        return (quota, "quota", CapacityStep(ONE, quota // ONE)) if quota else (None, "", None)
    if of == "cell":
        return overview.capacity.get(resource), "capacity", None
    if pool is None:
        return None, "", None
    scaling = next((each.scaling for each in client.scaling().pools if each.pool == pool.name), None)
    ahead, most = scaling is not None, None if scaling is None else scaling.most
    if metric == "demand_nodes":
        return pool.nodes * ONE, "nodes there are", CapacityStep(ONE, pool.nodes, most, ahead)
    each = pool.capacity.get(resource, 0) // max(1, pool.nodes)
    sizing = CapacityStep(each, pool.nodes, most, ahead) if each else None
    return pool.capacity.get(resource), "capacity", sizing


def _boot_ms(client: Client, pool: PoolOverview | None) -> tuple[int, int] | None:
    """Of the pool, or of the slowest there is."""
    sizes = client.scaling().pools
    times = [each.scaling.boot_ms for each in sizes if each.scaling and (pool is None or each.pool == pool.name)]
    return max(times, key=lambda both: both[1], default=None)
