"""Curves: what was measured of a cell, queue, pool, tenant, node or kind of work over time, read and drawn.

A curve is a line with its unit; some have a band above it (p50 up to p95, use up to demand) and a limit (quota,
capacity). `read_curve` asks for it, `curve_chart` draws it for pages and for the shell. Any metric is a curve of one
line; its band is then the least and the most of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from console.actions.key_map import key_of
from console.text.charts import BAND, LIMIT, Spans, column_at, framed, gutter, legend, ribbon, scale_of, time_axis
from console.text.plain_tables import table
from console.text.terminal_text import NONE, cut, duration, milli, printable, timestamp, wrap
from console.views.sections import Line, Section, text_line
from engine.model.errors import SpecError, did_you_mean
from engine.model.quantities import usd
from recommender.history.metrics import DAY_MS, HOUR_MS, METRICS, MINUTE_MS, OFS, HistoryPoint, HistoryRequest

if TYPE_CHECKING:
    from recommender.history.metrics import History


class MetricHistory(Protocol):
    """What answers questions about the history: a client, or the archive of a cell."""

    def history(self, request: HistoryRequest) -> History: ...


class CurveForm(NamedTuple):
    """The metrics of one curve. Those of `limits` are alternatives: each is measured of other kinds of subjects."""

    title: str
    line: str
    word: str
    """Name of the line in the legend."""
    band: str = ""
    band_word: str = ""
    limits: tuple[tuple[str, str], ...] = ()
    """(metric, its word)"""


CURVES: dict[str, CurveForm] = {
    "wait": CurveForm("Wait of what started", "wait_p50_s", "p50", "wait_p95_s", "p95"),
    "age": CurveForm("Wait so far of what waits", "waiting_p50_s", "p50", "waiting_p95_s", "p95"),
    "length": CurveForm("Queue length", "waiting", "waiting"),
    "gpu": CurveForm(
        "GPU in use", "used_gpu", "used", "demand_gpu", "demand", (("quota_gpu", "quota"), ("capacity_gpu", "capacity"))
    ),
    "cpu": CurveForm(
        "CPU in use", "used_cpu", "used", "demand_cpu", "demand", (("quota_cpu", "quota"), ("capacity_cpu", "capacity"))
    ),
    "cost": CurveForm("Cost", "cost_rate", "cost"),
}
"""The curves of several metrics, by name, and the one of cost under the name that people use."""
FIRST = {
    "cell": "gpu", "queue": "wait", "pool": "gpu", "tenant": "cost", "gpu_model": "demand_gpu", "node": "gpu_util",
    "kind": "use_cpu", "workload": "use_cpu",
}  # fmt: skip
"""The curve of a subject of which none is named."""
WINDOWS = (("1h", HOUR_MS, MINUTE_MS), ("6h", 6 * HOUR_MS, 5 * MINUTE_MS), ("24h", DAY_MS, 15 * MINUTE_MS),
           ("7d", 7 * DAY_MS, 2 * HOUR_MS), ("30d", 30 * DAY_MS, 6 * HOUR_MS))  # fmt: skip
"""(name, length, length of a step) of the windows there are, the shortest first."""
STEPS_MS = (*(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30)), HOUR_MS, 2 * HOUR_MS, 6 * HOUR_MS, DAY_MS)
DEFAULT_WINDOW = "6h"
MAX_CHANGES = 8
"""Changes that are listed below a curve, the newest."""


class CurveRequest(NamedTuple):
    """The curve that is asked for. An empty name is the first of its subject."""

    subject: str = "cell"
    name: str = ""
    window: str = DEFAULT_WINDOW

    @property
    def of(self) -> str:
        return self.subject.partition(":")[0]

    @property
    def words(self) -> str:
        """The argument of `:curve` that asks for it."""
        return " ".join(word for word in (self.subject, self.name, self.window) if word)


class CurveSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of a curve."""

    role: str
    """"line", "band" or "limit"."""
    word: str
    metric: str
    unit: str
    points: tuple[HistoryPoint, ...]


class CurveChange(msgspec.Struct, frozen=True):
    """Something that was changed, as the history tells it."""

    at_ms: int
    what: str


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A curve as it was measured."""

    subject: str
    """As "queue:research", or "cell"."""
    name: str
    title: str
    window: str
    now_ms: int
    since_ms: int
    until_ms: int
    step_ms: int
    series: tuple[CurveSeries, ...]
    """The line first."""
    first_ms: int = 0
    """When the line was first measured; 0: never."""
    last_ms: int = 0
    stale: bool = False
    changes: tuple[CurveChange, ...] = ()
    """In the window, oldest first."""
    error: str = ""
    """Why nothing is kept at present."""


def curve_form(name: str) -> CurveForm:
    """The metrics of the curve of that name. Raises SpecError with what is called much like it."""
    if name in CURVES:
        return CURVES[name]
    if name in METRICS:
        meaning = METRICS[name].meaning
        return CurveForm(meaning[0].upper() + meaning[1:], name, name.removesuffix("_gpu").removesuffix("_cpu"))
    there = f"There are {', '.join(CURVES)}, and the metrics of the history"
    hint = did_you_mean(name, (*CURVES, *METRICS), there, "'{}'")
    raise SpecError("curve", f"there is no curve '{printable(name)[:40]}'", hint)


def curves_of(of: str) -> tuple[str, ...]:
    """Names of the curves of a kind of subject: those of several metrics, then each metric that is in none of them."""
    named = [name for name, form in CURVES.items() if of in METRICS[form.line].of]
    taken = {
        metric for name in named
        for metric in (CURVES[name].line, CURVES[name].band, *(limit for limit, _ in CURVES[name].limits))
    }  # fmt: skip
    return (*named, *(name for name, metric in METRICS.items() if of in metric.of and name not in taken))


def read_request(text: str) -> CurveRequest:
    """`[KIND:NAME] [CURVE] [WINDOW]`. Raises SpecError naming what is wrong."""
    words = text.split()
    window = words.pop() if words and words[-1] in (name for name, _, _ in WINDOWS) else DEFAULT_WINDOW
    name = words.pop() if words and (words[-1] in CURVES or words[-1] in METRICS) else ""
    subject = " ".join(words) or "cell"
    of, colon, rest = subject.partition(":")
    if of not in OFS or (of == "cell") != (not colon) or bool(colon) != bool(rest):
        curve_form(of if not colon and " " not in of else name or "wait")
        raise SpecError("subject", f"{printable(subject)[:40]!a} is no KIND:NAME", "Such as queue:research, or cell")
    if name and of not in METRICS[curve_form(name).line].of:
        raise SpecError("curve", f"{name} is not measured of a {of}", f"Of it there are {', '.join(curves_of(of))}")
    return CurveRequest(subject, name, window)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_curve(client: MetricHistory, asked: CurveRequest) -> Curve:
    """Ask the engine for a curve and the changes beside it. Blocks. Raises MusterError."""
    of, _, subject = asked.subject.partition(":")
    form = curve_form(asked.name or FIRST[of])
    if not asked.name and form.line.endswith("_gpu") and not _there(client, form.line, of, subject):
        return read_curve(client, asked._replace(name=FIRST[of].replace("gpu", "cpu")))
    _, last_ms, step_ms = next(window for window in WINDOWS if window[0] == asked.window)
    ask = HistoryRequest(metric=form.line, of=of, subject=subject, last_ms=last_ms, step_ms=step_ms)
    main = client.history(ask)
    known = main.series[0] if main.series else None
    if known is not None and known.step_ms > step_ms:
        # A cell whose time runs fast is measured less often than once in a step.
        step_ms = next((step for step in STEPS_MS if step >= 2 * known.step_ms), STEPS_MS[-1])
        main = client.history(msgspec.structs.replace(ask, step_ms=step_ms))
    rest = msgspec.structs.replace(ask, last_ms=0, since_ms=main.since_ms, until_ms=main.until_ms, step_ms=step_ms)
    series = [_series("line", form.word, form.line, main)]
    limit = next(((metric, word) for metric, word in form.limits if of in METRICS[metric].of), ("", ""))
    for role, metric, word in (("band", form.band, form.band_word), ("limit", *limit)):
        if metric:
            series.append(_series(role, word, metric, client.history(msgspec.structs.replace(rest, metric=metric))))
    return Curve(
        subject=asked.subject,
        name=asked.name or FIRST[of],
        title=form.title,
        window=asked.window,
        now_ms=main.now_ms,
        since_ms=main.since_ms,
        until_ms=main.until_ms,
        step_ms=step_ms,
        series=tuple(each for each in series if each.role == "line" or any(point.count for point in each.points)),
        first_ms=known.first_ms if known else 0,
        last_ms=known.last_ms if known else 0,
        stale=known is not None and known.stale,
        changes=_changes(client, of, subject, rest),
        error=main.error,
    )


def _there(client: MetricHistory, metric: str, of: str, subject: str) -> bool:
    found = client.history(HistoryRequest(metric=metric, of=of, subject=subject, last_ms=1))
    return found.series_count > 0


def _series(role: str, word: str, metric: str, found: History) -> CurveSeries:
    return CurveSeries(role=role, word=word, metric=metric, unit=METRICS[metric].unit, points=found.points)


def _changes(client: MetricHistory, of: str, subject: str, window: HistoryRequest) -> tuple[CurveChange, ...]:
    """Changes of the queue's quota, and nodes that were lost or came back, as the history of both shows them."""
    replace = msgspec.structs.replace
    found: list[CurveChange] = []
    if of == "queue":
        for metric, unit in (("quota_gpu", "GPU"), ("quota_cpu", "CPU")):
            points = client.history(replace(window, metric=metric)).points
            for at_ms, before, after in _steps(points):
                found.append(CurveChange(at_ms, f"quota {milli(before)} to {milli(after)} {unit}"))
    where = (of, subject) if of in ("cell", "pool") else ("cell", "")
    points = client.history(replace(window, metric="nodes_down", of=where[0], subject=where[1])).points
    for at_ms, before, after in _steps(points):
        what = "down" if after > before else "no longer down"
        count = abs(after - before)
        found.append(CurveChange(at_ms, f"{count:,} {'node' if count == 1 else 'nodes'} {what}"))
    return tuple(sorted(found, key=lambda change: change.at_ms))


def _steps(points: Sequence[HistoryPoint]) -> list[tuple[int, int, int]]:
    """(time, before, after) of each change of what was last measured in a step."""
    known = [(point.at_ms, round(point.last)) for point in points if point.last is not None]
    return [(at_ms, before, after) for (_, before), (at_ms, after) in pairwise(known) if before != after]


# -- drawing ----------------------------------------------------------------------------------------------------------

_DURATIONS_MS = tuple(
    1000 * s for s in (10, 20, 40, 60, 120, 240, 360, 600, 1200, 2400, 3600, 7200, 14_400, 28_800, 43_200)
)
FAR = 3
"""A limit is drawn up to this multiple of the rest."""


class Scale(NamedTuple):
    """Whole numbers in which the values of a unit are drawn, and their text."""

    per: float
    """So many make one of the unit."""
    text: Callable[[int], str]
    unit: str
    """As people read it; empty where the text has it."""


def metric_scale(metric: str) -> Scale:
    """The scale of a metric."""
    unit = METRICS[metric].unit
    match unit:
        case "milli":
            return Scale(1, _amount, "GPU" if metric.endswith("gpu") else "CPU")
        case "s":
            return Scale(1000, duration, "")
        case "micro-USD/h":
            return Scale(1, lambda value: f"{_dollars(value)}/h", "")
        case "%" | "°C" | "W":
            return Scale(1000, lambda value: f"{_amount(value)} {unit}", "")
        case "count":
            return Scale(1000, _amount, "in a step")
        case _:
            return Scale(1000, _amount, unit)


def _amount(value: int) -> str:
    """Thousandths as people read them: whole from 100 on."""
    return milli(round(value, -3)) if abs(value) >= 100_000 else milli(round(value, -2))


def _dollars(microusd: int) -> str:
    """Whole from $100 on."""
    return usd(microusd).removesuffix(".00") if abs(microusd) < 100_000_000 else f"${round(microusd / 1e6):,}"


def _values(series: CurveSeries, scale: Scale, part: str = "") -> list[int | None]:
    """The points in whole numbers: their sum where they count, else their mean; or the part that is named."""
    name = part or ("total" if METRICS[series.metric].counts else "mean")
    found = (getattr(point, name) for point in series.points)
    return [None if value is None else round(value * scale.per) for value in found]


class DrawnCurve(NamedTuple):
    """A curve in the whole numbers in which it is drawn."""

    scale: Scale
    line: list[int | None]
    low: list[int | None]
    high: list[int | None]
    limit: list[int | None] | None
    base: int
    """What the lowest row stands for."""
    top: int
    """What the highest row stands for, above `base`."""


def drawn_curve(curve: Curve) -> DrawnCurve:
    """The band ends at the largest value of each step, so that a short peak shows in a long window."""
    main = curve.series[0]
    scale = metric_scale(main.metric)
    line = _values(main, scale)
    band, limit = (next((each for each in curve.series if each.role == role), None) for role in ("band", "limit"))
    if band is not None:
        low, high = line, _values(band, scale, "most")
    elif METRICS[main.metric].counts:
        low = high = line
    else:
        low, high = _values(main, scale, "least"), _values(main, scale, "most")
    known = [value for value in (*line, *low, *high) if value is not None]
    limits = _values(limit, scale, "last") if limit is not None else None
    most, least = max(known, default=0), min(known, default=0)
    near = [value for value in limits or () if value is not None and value <= FAR * max(1, most)]
    base, top = _bounds(0 if METRICS[main.metric].counts else least, max([most, *near]), METRICS[main.metric].unit)
    return DrawnCurve(scale, line, low, high, limits, base, top)


def _bounds(least: int, most: int, unit: str) -> tuple[int, int]:
    """(lowest, height) of the scale: from 0 on, or close to what varies little."""
    if unit == "s":
        days = 86_400_000
        return 0, next((step for step in _DURATIONS_MS if step >= most), -(-most // days) * days)
    return scale_of(least, max(most, 1000 if unit != "micro-USD/h" else 10_000))


def curve_chart(curve: Curve, width: int, rows: int, at: int | None = None) -> Section:
    """The chart with its axes, legend, and what it reads at the step `at`, or at the newest."""
    main = curve.series[0]
    title = f"{curve.title}, {subject_words(curve.subject)}"
    if not any(point.count for point in main.points):
        return Section(title, tuple(text_line(line, "dim") for line in empty_curve(curve, width)), curve.window)
    found = drawn_curve(curve)
    base, top, scale = found.base, found.top, found.scale

    def text(value: int) -> str:
        return scale.text(value + base)

    def above(values: Sequence[int | None]) -> list[int | None]:
        return [None if value is None else value - base for value in values]

    indent = gutter(top, text)
    plot, count = max(1, width - indent), len(main.points)
    begin_ms, end_ms = main.points[0].at_ms, main.points[0].at_ms + count * curve.step_ms
    changed = (column_at(change.at_ms, begin_ms, end_ms, plot) for change in curve.changes)
    drawn = ribbon(
        above(found.low), above(found.line), above(found.high), plot, rows, top,
        mark=None if at is None else at * plot // count,
        limit=None if found.limit is None else above(found.limit),
    )  # fmt: skip
    axis = time_axis(begin_ms, end_ms, plot, indent, [column for column in changed if column is not None])
    lines: list[Spans] = [*framed(drawn, top, text), *axis, *_legend(curve, found, width)]
    told = Line((("▸ ", "accent"), (cut(reading(curve, found, at), width - 2), "strong" if at is not None else "")))
    unit = f"{scale.unit} · " if scale.unit else ""
    note = f"{unit}last {curve.window}, by {duration(curve.step_ms)}{_from(found)}"
    return Section(title, (*(Line(spans) for spans in lines), told), note)


def _from(found: DrawnCurve) -> str:
    return f" · from {found.scale.text(found.base)} up" if found.base else ""


def _legend(curve: Curve, found: DrawnCurve, width: int) -> list[Spans]:
    by_role = {each.role: each for each in curve.series}
    parts = [(f"─ {by_role['line'].word}", "bar")]
    if "band" in by_role:
        parts.append((f"{BAND} up to {by_role['band'].word}", "dim"))
    elif found.low is not found.line:
        parts.append((f"{BAND} least to most of a step", "dim"))
    if found.limit is not None:
        last = next((value for value in reversed(found.limit) if value is not None), 0)
        beyond = last - found.base > found.top
        text = f"{by_role['limit'].word} {found.scale.text(last)}"
        parts.append((f"{text}, beyond the scale", "dim") if beyond else (f"{LIMIT} {text}", "info"))
    if curve.changes:
        parts.append(("▲ change", "accent"))
    return legend(parts, width)


def reading(curve: Curve, found: DrawnCurve, at: int | None) -> str:
    """The values of one step in words: "03:10  p50 4m, p95 40m  quota 64 to 96 GPU"."""
    main = curve.series[0].points
    shown = at if at is not None else max(i for i, point in enumerate(main) if point.count)
    point = main[shown]
    told = [f"{series.word} {_told(value, found.scale)}" for series, value in _at(curve, found, shown)]
    happened = [each.what for each in curve.changes if point.at_ms <= each.at_ms < point.at_ms + curve.step_ms]
    when = timestamp(point.at_ms)[5:16] if curve.until_ms - curve.since_ms > DAY_MS else timestamp(point.at_ms)[11:16]
    head = f"{when} UTC" if at is not None else f"latest, {when} UTC"
    return "  ".join([f"{head}:", ", ".join(told), *happened])


def _at(curve: Curve, found: DrawnCurve, index: int) -> list[tuple[CurveSeries, int | None]]:
    columns = {"line": found.line, "band": found.high, "limit": found.limit or []}
    return [(series, columns[series.role][index]) for series in curve.series]


def _told(value: int | None, scale: Scale) -> str:
    return "not measured" if value is None else f"{scale.text(value)}{f' {scale.unit}' if scale.unit else ''}"


def empty_curve(curve: Curve, width: int) -> list[str]:
    """Words for a curve without a value in its window: what it would show, and since when it is measured."""
    of = curve.subject.partition(":")[0]
    meaning = METRICS[curve.series[0].metric].meaning
    if curve.first_ms:
        last = timestamp(curve.last_ms)[:16]
        told = f"no measurements in the last {curve.window}: {meaning}. The last value is of {last} UTC"
    elif of == "node":
        told = f"{meaning}: never measured. Bring it from a Prometheus: muster history import prometheus URL"
    else:
        told = f"{meaning}: never measured yet. The engine measures once a minute of the cell's time"
    return wrap(f"{told}{f'. Nothing is kept now: {printable(curve.error)}' if curve.error else ''}", max(20, width))


def subject_words(subject: str) -> str:
    """ "queue research", or "the cell"."""
    return printable(subject.replace(":", " ", 1)) if ":" in subject else "the cell"


# -- numbers ----------------------------------------------------------------------------------------------------------


def curve_numbers(curve: Curve, width: int) -> Section:
    """Latest, least, mean and most value of each line, and when the most was."""
    if not any(point.count for point in curve.series[0].points):
        return Section(
            "Numbers", (text_line(cut(f"none in this window; {key_of('longer')} looks further back", width), "dim"),)
        )
    scale = metric_scale(curve.series[0].metric)
    rows = [_numbers(series, scale) for series in curve.series]
    lines = table(("", "LATEST", "LEAST", "MEAN", "MOST", "AT (UTC)"), rows, (False, *(True,) * 5))
    told = [text_line(cut(line, width), "dim" if not n else "") for n, line in enumerate(lines)]
    if curve.stale:
        told.append(text_line(f"silent since {timestamp(curve.last_ms)[5:16]} UTC", "warn"))
    return Section("Numbers", tuple(told), f"measured since {timestamp(curve.first_ms)[:16]} UTC")


def _numbers(series: CurveSeries, scale: Scale) -> list[str]:
    """A row: word, newest, least, mean and most value, and when that was."""
    main = _values(series, scale)
    known = [(point, value) for point, value in zip(series.points, main, strict=True) if value is not None]
    if METRICS[series.metric].counts:
        least, most = (pick(value for _, value in known) for pick in (min, max))
        mean = sum(value for _, value in known) // len(known)
        peak = next(point for point, value in known if value == most)
    else:
        peak = max((point for point, _ in known), key=lambda point: point.most or 0)
        least = round(min(point.least or 0 for point, _ in known) * scale.per)
        most = round((peak.most or 0) * scale.per)
        mean = round(sum(point.total or 0 for point, _ in known) / sum(p.count for p, _ in known) * scale.per)
    newest = series.points[-1].last if series.points[-1].count else known[-1][0].last
    now = known[-1][1] if METRICS[series.metric].counts else round((newest or 0) * scale.per)
    return [series.word, *(scale.text(value) for value in (now, least, mean, most)), timestamp(peak.at_ms)[5:16]]


def curve_changes(curve: Curve, width: int) -> Section | None:
    """The newest changes in the window; None where there are none."""
    newest = curve.changes[::-1][:MAX_CHANGES]
    lines = tuple(
        Line(((timestamp(each.at_ms)[5:16] + "  ", "dim"), (cut(each.what, width - 13), ""))) for each in newest
    )
    more = len(curve.changes) - len(newest)
    return Section("Changes", lines, f"{more:,} more" if more else "") if lines else None


def curve_steps(curve: Curve, most: int) -> Section:
    """The values of the last steps, newest first."""
    found = drawn_curve(curve)
    indexes = [i for i, point in enumerate(curve.series[0].points) if point.count][::-1][:most]
    rows = [
        [timestamp(curve.series[0].points[i].at_ms)[5:16],
         *(NONE if value is None else found.scale.text(value) for _, value in _at(curve, found, i))]
        for i in indexes
    ]  # fmt: skip
    titles = ("FROM (UTC)", *(series.word.upper() for series in curve.series))
    lines = table(titles, rows, (False, *(True,) * len(curve.series))) if rows else []
    return Section("By step", tuple(text_line(line, "" if n else "dim") for n, line in enumerate(lines)))


def curve_choices(asked: CurveRequest, shown: str, width: int) -> Section:
    """The other curves of the subject; the one that is shown is marked."""
    lines = []
    for name in curves_of(asked.of):
        mark, tone = ("▸ ", "strong") if name == shown else ("  ", "link")
        link = f"curve {asked._replace(name=name).words}"
        lines.append(Line(((mark, "accent"), (cut(curve_form(name).title, width - 2), tone)), link))
    return Section("Curves", tuple(lines), "enter shows one")


def curve_words(curve: Curve) -> str:
    """A curve in a sentence: what it is of, and its latest values."""
    title = f"{curve.title}, {subject_words(curve.subject)}, last {curve.window} by {duration(curve.step_ms)}"
    if not any(point.count for point in curve.series[0].points):
        return f"{title}. {' '.join(empty_curve(curve, 10_000))}"
    return f"{title}. {' '.join(reading(curve, drawn_curve(curve), None).split())}"
