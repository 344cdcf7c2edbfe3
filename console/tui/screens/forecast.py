"""Pages of the future: the forecast of demand, and what-if runs of the twin.

The forecast page shows the past at once and the forecast when it is ready. The what-if page collects edits, has the
twin run with and without them, and compares both. The engine's process keeps the runs; edits belong to the page.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from textual import on
from textual.timer import Timer

from console.actions.key_map import key_of
from console.client.change_feed import in_thread
from console.text.progress_line import TimeLeft
from console.text.terminal_text import cut, duration, fit, printable, wrap
from console.tui.widgets.pane import AsOf, ChartPane, Connect, DetailPane, SectionsView
from console.views.forecast import NOT_YET, ONE, CapacityStep, ForecastPageData, Wait, chart, measured, pages, unit_of
from console.views.proposal import hanging
from console.views.sections import Line, Section, metered, text_line
from console.views.what_if import outlook_sections, rests_on, run_line
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.list_queries import Query
from engine.model.specs import HOUR_MS
from engine.model.twin_queries import Outlook, RunStatus, WhatIf
from engine.model.what_if_edits import FORMS, AnyEdit, parse, written
from recommender.estimates.queries import MAX_HOURS, Forecast, ForecastRequest
from recommender.history.metrics import METRICS, HistoryRequest

if TYPE_CHECKING:
    from textual.worker import Worker

    from console.client.protocol import Client
    from engine.model.overviews import Overview, PoolOverview


HOURS = 48
PAST_HOURS = 48
SHOWN = ("demand_gpu", "demand_cpu", "demand_nodes", "used_gpu", "used_cpu", "waiting", "running", "cost_rate", "price")
"""Subjects to choose from on the page; others are asked for by name."""
MAX_QUEUES = 100
AGAIN_S = 5.0
"""Hours pass slowly: what happens in the cell has this page ask no more often."""


class ForecastPageQuery(NamedTuple):
    """Argument of `:forecast`."""

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
        if found is not None and not found.known_hours:
            found, problem = None, NOT_YET
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
                raise SpecError("", f"{word} is not from 1h to {MAX_HOURS}h", "Write it like 48h")
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
    """Default metric of a subject."""
    capacity = overview.capacity if pool is None else pool.capacity
    return "demand_gpu" if capacity.get("gpu_milli") else "demand_cpu"


def _there_is(
    client: Client, overview: Overview, pool: PoolOverview | None, of: str, name: str, metric: str
) -> tuple[int | None, str, CapacityStep | None]:
    """Capacity of the subject in thousandths, a word for it, and its unit of growth."""
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
        return pool.nodes * ONE, "current nodes", CapacityStep(ONE, pool.nodes, most, ahead)
    each = pool.capacity.get(resource, 0) // max(1, pool.nodes)
    sizing = CapacityStep(each, pool.nodes, most, ahead) if each else None
    return pool.capacity.get(resource), "capacity", sizing


def _boot_ms(client: Client, pool: PoolOverview | None) -> tuple[int, int] | None:
    """Boot time of the pool, or of the slowest pool."""
    sizes = client.scaling().pools
    times = [each.scaling.boot_ms for each in sizes if each.scaling and (pool is None or each.pool == pool.name)]
    return max(times, key=lambda both: both[1], default=None)


LOOK_S = 0.5
"""Interval of looks at a run that goes on."""


class WhatIfRuns(NamedTuple):
    """The what-ifs that the engine keeps, and the two that are shown."""

    runs: tuple[RunStatus, ...]
    shown: RunStatus | None
    beside: RunStatus | None


class WhatIfPane(DetailPane[WhatIfRuns]):
    NAME = "whatif"
    KEEPS = True

    def __init__(self, connect: Connect) -> None:
        super().__init__(connect)
        self.edits: list[AnyEdit] = []
        self._shown = ""
        """Id of the run on the right; empty: the newest."""
        self._beside = ""
        self._stopped = ""
        """Id of the run that was last stopped from here."""
        self._paced = ""
        self._pace = TimeLeft()
        """Of the run with the id before."""
        self._timer: Timer | None = None

    @property
    def note(self) -> str:
        shown = self.detail.shown if self.detail else None
        if shown is not None and shown.state == "running":
            return self._far(shown)
        if shown is None or not isinstance(shown.answer, Outlook):
            return "nothing here changes the cell"
        return rests_on(shown.answer)

    @property
    def as_of(self) -> AsOf | None:
        """Moment at which the cell was forked."""
        shown = self.detail.shown if self.detail else None
        return None if shown is None else AsOf(shown.version, shown.at_ms)

    @property
    def frozen(self) -> AsOf | None:
        """An answer stays that of its moment."""
        return self.as_of

    def place(self) -> dict[str, Any]:
        edits = [written(edit) for edit in self.edits]
        return {"shown": self._shown, "beside": self._beside, "edits": edits}

    def put_back(self, place: dict[str, Any]) -> None:
        self._shown, self._beside = str(place.get("shown", "")), str(place.get("beside", ""))
        for text in place.get("edits", ()):
            # What names a file may not be there any more.
            with suppress(MusterError):
                self.edits.append(parse(str(text)))
        self.reload()

    def clear_one(self) -> bool:
        """The first Back stops the run that is shown, else takes away the one beside it."""
        shown = self.detail.shown if self.detail else None
        if shown is not None and shown.state == "running" and self._stopped != shown.id:
            self._stopped = shown.id
            self.run_worker(self._stop_told(), group="stop")
            return True
        if self._beside:
            self._beside = ""
            self.reload()
            return True
        return False

    async def _stop_told(self) -> None:
        try:
            await self.stop()
        except MusterError as error:
            self.post_message(self.AskFailed(error))

    def _far(self, run: RunStatus) -> str:
        """Progress of a run, its time left, and the key that stops it."""
        if run.id != self._paced:
            self._paced, self._pace = run.id, TimeLeft()
        left_s = self._pace.step("run", run.progress_permille, 1000).left_s
        left = f" for {self._pace.went_s:.0f} s" if left_s is None else f", {duration(round(left_s * 1000))} left"
        return f"running ahead: {run.progress_permille / 10:.0f}%{left}, esc stops it"

    def on_mount(self) -> None:
        super().on_mount()
        self._timer = self.set_interval(LOOK_S, self._look, pause=True)

    # --- putting together

    def add(self, edit: AnyEdit) -> None:
        """Add an edit."""
        self.edits.append(edit)
        self._draw()

    def take_out(self) -> None:
        """Take out the edit under the cursor."""
        what, _, name = self._link_under_cursor().partition(":")
        if what != "edit":
            raise RefusedError("no edit is under the cursor", "Select an edit first")
        del self.edits[int(name)]
        self._draw()

    async def start(self) -> None:
        """Run ahead with what has been put together. Raises MusterError; the edits stay."""
        if not self.edits:
            raise RefusedError("no edits yet", "Choose one below, or type :whatif drain NODE")
        ask = WhatIf(edits=tuple(self.edits))
        status = await in_thread(lambda: self.connect().ask(ask))
        self._shown, self._beside = status.id, ""
        self.reload()

    async def stop(self) -> None:
        """Stop the run that is shown. Raises MusterError."""
        shown = self.detail.shown if self.detail else None
        if shown is None or shown.state != "running":
            raise RefusedError("no run is active", "")
        await in_thread(lambda: self.connect().cancel_run(shown.id))
        self.reload()

    def point_at(self, run_id: str) -> None:
        """Show this run."""
        self._shown, self._beside = run_id, ""
        self.reload()

    def compare(self) -> None:
        """Set the run under the cursor beside the one that is shown; again takes it away."""
        what, _, name = self._link_under_cursor().partition(":")
        if what != "run":
            raise RefusedError("no run is under the cursor", "Select a run first")
        self._beside = "" if name == self._beside else name
        self.reload()

    def _link_under_cursor(self) -> str:
        return self._left.link

    # --- what is shown

    def ask(self, client: Client) -> WhatIfRuns:
        runs = tuple(run for run in client.runs() if isinstance(run.ask, WhatIf))
        ids = [run.id for run in runs]
        shown = self._shown if self._shown in ids else next(iter(ids), "")
        beside = self._beside if self._beside in ids and self._beside != shown else ""
        return WhatIfRuns(runs, client.run(shown) if shown else None, client.run(beside) if beside else None)

    def columns(self, detail: WhatIfRuns, width: int) -> tuple[list[Section], list[Section]]:
        left = [self._edits_section(width)]
        if detail.runs:
            left.append(self._runs_section(detail, width))
        result = self._result(detail, width)
        # In one column the answer comes before what is rarely wanted.
        return ([*left, _menu(width)], result) if self._right.display else (left, [*result, _menu(width)])

    def _draw(self) -> None:
        super()._draw()
        if self._timer is not None:
            goes_on = self.detail is not None and any(run.state == "running" for run in self.detail.runs)
            self._timer.resume() if goes_on else self._timer.pause()

    def _look(self) -> None:
        if self.display:
            self.reload()

    def _edits_section(self, width: int) -> Section:
        lines = [
            Line(((f"{number:>3}  ", "dim"), (cut(printable(written(edit)), width - 5), "")), f"edit:{number - 1}")
            for number, edit in enumerate(self.edits, 1)
        ]
        if not lines:
            lines = [text_line("none yet: choose one below, or type :whatif drain NODE", "dim")]
        return Section("Edits", tuple(lines), f"{key_of('rehearse')} runs them, {key_of('take_out')} removes one")

    def _runs_section(self, detail: WhatIfRuns, width: int) -> Section:
        lines = []
        for run in detail.runs:
            mark = "▸" if detail.shown and run.id == detail.shown.id else " "
            mark = "|" if detail.beside and run.id == detail.beside.id else mark
            line = run_line(run, width - 2, f"run:{run.id}")
            lines.append(Line(((f"{mark} ", "accent"), *line.spans), line.link))
        return Section("Runs", tuple(lines), f"enter shows, {key_of('compare')} compares")

    def _result(self, detail: WhatIfRuns, width: int) -> list[Section]:
        shown = detail.shown
        if shown is None:
            told = (
                (key_of("rehearse"), "runs the edits on a fork of the cell, ahead of real time"),
                ("shows", "waits, evictions and cost, with the edits and without"),
                ("how", "same engine; run times are sampled, once for each seed"),
            )
            lines = [line for label, text in told for line in hanging(f"{label:<7}", text, width)]
            return [Section("Before and after", tuple(lines), "nothing run yet")]
        if shown.error is not None:
            problem = f"{shown.error.problem}. {shown.error.remedy}"
            return [
                Section("Before and after", tuple(text_line(part, "bad") for part in wrap(printable(problem), width)))
            ]
        if not isinstance(shown.answer, Outlook) and shown.state == "cancelled":
            again = f"stopped before a result; {key_of('rehearse')} runs the edits again"
            return [Section("Stopped", (text_line(again, "dim"),))]
        if not isinstance(shown.answer, Outlook):
            return [Section("Before and after", self._running_lines(shown, width), "esc stops it")]
        beside = detail.beside.answer if detail.beside and isinstance(detail.beside.answer, Outlook) else None
        sections = outlook_sections(shown.answer, width, beside)
        if shown.state == "running":
            first = text_line(f"first estimate: {rests_on(shown.answer)}", "warn")
            return [Section("Running ahead", (*self._running_lines(shown, width), first), "esc stops it"), *sections]
        if shown.state == "cancelled":
            return [Section("Stopped", (text_line("results of the seeds finished so far", "warn"),)), *sections]
        return sections

    def _running_lines(self, run: RunStatus, width: int) -> tuple[Line, ...]:
        bar = metered(run.progress_permille, max(4, width), "bar")
        return Line(tuple(bar)), text_line(self._far(run), "dim")

    @on(SectionsView.LinkChosen)
    def _chosen(self, event: SectionsView.LinkChosen) -> None:
        """Lines of this page lead to a run, or into the `:` bar; the others where they say."""
        what, _, name = event.link.partition(":")
        if what not in ("run", "form", "edit"):
            return
        event.prevent_default()
        event.stop()
        if what == "run":
            self._shown = name
            self.reload()
        elif what == "form":
            self.post_message(self.Compose(f"whatif {name} "))
        else:
            self.post_message(self.Compose(f"whatif {written(self.edits[int(name)])}"))


def _menu(width: int) -> Section:
    """Every edit there is. Enter begins one in the `:` bar."""
    usage = max(16, width * 3 // 5)
    lines = tuple(
        Line(((fit(form.usage, usage), "link"), (" " + cut(form.help, width - usage - 1), "dim")), f"form:{form.word}")
        for form in FORMS
    )
    return Section("Add an edit", lines, "any edit may end in: at +2h")
