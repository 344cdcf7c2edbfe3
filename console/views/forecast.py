"""Forecasts as sections and as lines for the shell: demand of the past and of the hours ahead, and the capacity.

Charts count in integers: values are thousandths of the unit shown. Each hour ahead has p10, p50 and p90. Where they
exceed the capacity, the page offers lines that try or order more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.actions.key_map import key_of
from console.text.charts import BAND, LIMIT, Spans, column_at, framed, gutter, legend, ribbon, round_top, time_axis
from console.text.plain_tables import table
from console.text.terminal_text import cut, duration, fit, milli, permille, printable, timestamp, wrap
from console.views.sections import Line, Section, text_line
from engine.model.specs import HOUR_MS
from recommender.estimates.queries import Forecast

if TYPE_CHECKING:
    from recommender.estimates.queries import HourAhead


WIDTH = 80
BAR = 22
FULL, LIKELY, MAYBE = "━", "═", "┄"
"""Signs up to p10, up to p50, up to p90."""
NOT_YET = (
    "no forecast yet: no whole hour of this has been measured. It comes by itself after the first; "
    "muster history import brings in what was measured elsewhere"
)


def forecast_lines(view: Forecast, width: int = WIDTH) -> list[str]:
    """Hour by hour, with what it rests on and how such forecasts have held."""
    if not view.known_hours:
        return wrap(NOT_YET, width)
    return [*forecast_head(view, width), "", *bars(view, width), "", *forecast_skill(view)]


def forecast_head(view: Forecast, width: int = WIDTH) -> list[str]:
    """Subject of a forecast, its basis, and its weaknesses."""
    unit, scale = shown_unit(view)
    of = printable(f"{view.of} {view.subject}".strip())
    missing = f", {view.missing_hours:,} missing" if view.missing_hours else ""
    lines = wrap(f"{view.metric} of {of} in {unit}, hourly means, {len(view.hours)} hours ahead", max(width, 20))
    last = f"{view.now / scale:,.1f}" if view.now is not None else "unknown"
    lines += wrap(
        f"last hour {last}; {view.known_hours:,} hours of history{missing}; based on {view.basis}", max(width, 20)
    )
    return [*lines, *(line for note in view.notes for line in wrap(f"note: {printable(note)}", max(width, 20)))]


def forecast_skill(view: Forecast) -> list[str]:
    """The members of the blend, and how forecasts that were made before have held."""
    _, scale = shown_unit(view)
    lines = [f"{FULL} up to p10   {LIKELY} up to p50   {MAYBE} up to p90"]
    if view.members:
        rows = [
            [printable(m.name), permille(m.weight_permille), f"{m.error / scale:,.2f}"]
            for m in sorted(view.members, key=lambda m: (-m.weight_permille, m.name))
        ]
        lines += ["", *table(("MEMBER", "WEIGHT", "RECENT ERROR"), rows, (False, True, True))]
    if view.coverage:
        rows = [
            [
                f"{c.hours_ahead} h", f"{c.scored:,}", permille(c.inside_permille), permille(c.below_permille),
                permille(c.above_permille), f"{c.mean_error / scale:,.2f}",
            ]
            for c in view.coverage
        ]  # fmt: skip
        titles = ("AHEAD", "SCORED", "IN P10..P90", "BELOW", "ABOVE", "ERROR OF P50")
        lines += ["", *table(titles, rows, (False, *(True,) * 5))]
    else:
        lines += ["", "no forecast of this series is due yet: accuracy not known"]
    return lines


def bars(view: Forecast, width: int = WIDTH) -> list[str]:
    """A line an hour: when, the quantiles, and a bar of them."""
    _, scale = shown_unit(view)
    most = max((hour.p90 for hour in view.hours), default=0.0) or 1.0
    rows = [
        [timestamp(hour.at_ms), *(f"{value / scale:,.1f}" for value in (hour.p10, hour.p50, hour.p90))]
        for hour in view.hours
    ]
    lines = table(("HOUR (UTC)", "P10", "P50", "P90"), rows, (False, True, True, True))
    room = max(width - max(map(len, lines)) - 2, BAR // 2)
    return [lines[0], *(f"{line}  {bar(hour, most, room)}" for line, hour in zip(lines[1:], view.hours, strict=True))]


def bar(hour: HourAhead, most: float, width: int) -> str:
    """p10, p50 and p90 as lengths, `most` as the whole width."""
    low, middle, high = (round(width * min(max(v, 0.0), most) / most) for v in (hour.p10, hour.p50, hour.p90))
    return (FULL * low + LIKELY * (middle - low) + MAYBE * (high - middle))[:width]


def shown_unit(view: Forecast) -> tuple[str, float]:
    """The unit that people read, and how many of the series' own make one."""
    if view.unit != "milli":
        return view.unit, 1.0
    return ("GPU" if view.metric.endswith("gpu") else "CPU"), 1000.0


ONE = 1000
"""Thousandths in one."""
FAR = 3
"""Capacity is drawn up to this multiple of the demand."""
TOO_SHORT = "too short"
"""Basis of a forecast that is none."""
UNITS = {"micro-USD/h": ("USD/h", 1_000_000)}


class CapacityStep(NamedTuple):
    """Unit by which the subject grows: a node of a pool, or a unit of a queue's quota."""

    each: int
    """Size of one node, or of one unit of the quota, in thousandths of the chart's unit."""
    have: int
    """Nodes there are, or units of the quota."""
    most: int | None = None
    """More are not possible as things are set."""
    ahead: bool = False
    """They can be ordered for a time to come: the pool grows by itself."""


class ForecastPageData(NamedTuple):
    """Data that are there before the forecast, and the query."""

    version: int
    now_ms: int
    subject: str
    """As `pool:h100`; empty for the cell."""
    metric: str
    unit: str
    """As people read it."""
    past: tuple[tuple[int, int | None], ...]
    """(begin of an hour, mean), oldest first."""
    there_is: int | None
    """Capacity or quota of the subject."""
    what: str
    """A word for it."""
    boot_ms: tuple[int, int] | None
    """Median and 95th percentile of the time that new nodes take."""
    sizing: CapacityStep | None
    subjects: tuple[str, ...]
    metrics: tuple[str, ...]


class Wait(NamedTuple):
    """A forecast that is not there yet."""

    since_s: float = 0.0
    problem: str = ""
    stopped: bool = False


def unit_of(metric: str, unit: str) -> tuple[str, int]:
    """The unit people read, and how many of the series' own make one."""
    if unit == "milli":
        return ("GPU" if metric.endswith("gpu") else "CPU"), 1000
    return UNITS.get(unit, (unit, 1))


def thousandths(value: float, metric: str, unit: str) -> int:
    return round(value * ONE / unit_of(metric, unit)[1])


def amount(value: int) -> str:
    """Thousandths as people read them: whole from 100 on."""
    return milli(round(value, -3)) if value >= 100 * ONE else milli(round(value, -2))


# -- the chart --------------------------------------------------------------------------------------------------------


def chart(known: ForecastPageData, found: Forecast | None, wait: Wait, width: int, rows: int) -> list[Section]:
    """The past, the hours ahead with what lies between p10 and p90, what there is, and when nodes ordered now are
    ready."""
    points = _points(known, found)
    if not points:
        tone = "warn" if wait.problem else "dim"
        told = tuple(text_line(line, tone) for line in wrap(_nothing(wait), max(width, 20)))
        return [Section(_forecast_title(known), told, known.unit)]
    lows, mids, highs = (tuple(point[i] for point in points) for i in (1, 2, 3))
    most = max((value for value in (*mids, *highs) if value is not None), default=0)
    limit = known.there_is if known.there_is is not None and known.there_is <= FAR * max(1, most) else None
    top = round_top(max(most, limit or 0, 1))
    begin_ms, end_ms = points[0][0], points[-1][0] + HOUR_MS
    indent = gutter(top, amount)
    plot = max(1, width - indent)
    now = column_at(known.now_ms, begin_ms, end_ms, plot)
    ready = column_at(known.now_ms + (known.boot_ms or (0, 0))[1], begin_ms, end_ms, plot)
    ready = None if ready == now else ready
    drawn = ribbon(lows, mids, highs, plot, rows, top, mark=ready, now=now, limit=limit)
    axis = time_axis(begin_ms, end_ms, plot, indent)
    lines: list[Spans] = [*framed(drawn, top, amount), *axis, *_legend(known, found, limit, ready, width)]
    return [Section(_forecast_title(known), tuple(Line(spans) for spans in lines), _state(known, found, wait))]


def _points(known: ForecastPageData, found: Forecast | None) -> list[tuple[int, int | None, int | None, int | None]]:
    """(begin of an hour, p10, p50, p90): of the past the middle alone, what was."""
    first = next((index for index, (_, value) in enumerate(known.past) if value is not None), len(known.past))
    past: list[tuple[int, int | None, int | None, int | None]]
    past = [(at_ms, None, value, None) for at_ms, value in known.past[first:]]
    if found is None:
        return past

    def whole(value: float) -> int:
        return thousandths(value, found.metric, found.unit)

    ahead = [(hour.at_ms, whole(hour.p10), whole(hour.p50), whole(hour.p90)) for hour in found.hours]
    begins = found.hours[0].at_ms if found.hours else known.now_ms
    return [*(point for point in past if point[0] < begins), *ahead]


def _forecast_title(known: ForecastPageData) -> str:
    return f"{printable(known.metric)} of {printable(known.subject.replace(':', ' ')) or 'the cell'}"


def _nothing(wait: Wait) -> str:
    if wait.problem:
        return wait.problem
    return f"stopped: {key_of('refresh')} starts again" if wait.stopped else "making the forecast …"


def _state(known: ForecastPageData, found: Forecast | None, wait: Wait) -> str:
    """The unit, and how the forecast stands."""
    if wait.since_s:
        return f"{known.unit} · making the forecast, {wait.since_s:.0f} s, esc stops"
    if found is None:
        stands = f"stopped, {key_of('refresh')} starts again" if wait.stopped else "no forecast"
        return f"{known.unit} · {stands}"
    return f"{known.unit} · hourly means · made {timestamp(found.made_ms)[5:16]} UTC"


def _legend(
    known: ForecastPageData, found: Forecast | None, limit: int | None, ready: int | None, width: int
) -> list[Spans]:
    parts = [("─ measured, then p50" if found else "─ measured", "bar"), ("│ now", "accent")]
    if found is not None:
        parts.insert(1, (f"{BAND} p10 to p90", "dim"))
    if limit is not None:
        parts.append((f"{LIMIT} {known.what} {amount(limit)}", "info"))
    elif known.there_is is not None:
        parts.append((f"{known.what} {amount(known.there_is)}, off the scale", "dim"))
    if known.boot_ms is not None:
        sign = "┊ nodes" if ready is not None else "nodes"
        parts.append((f"{sign} ordered now are ready in {duration(known.boot_ms[1])} (p95)", "accent"))
    return legend(parts, width)


# -- what it means ----------------------------------------------------------------------------------------------------


class CapacityShortfall(NamedTuple):
    """Hours in which the forecast exceeds the capacity."""

    first_ms: int
    peak_ms: int
    peak: int
    hours: int
    sure: bool
    """The median rises above it too, not the p90 alone."""


def shortfall(known: ForecastPageData, found: Forecast) -> CapacityShortfall | None:
    """None where p90 stays within what there is, or that is not known."""
    if known.there_is is None:
        return None
    over = [
        (hour.at_ms, thousandths(hour.p50, found.metric, found.unit), thousandths(hour.p90, found.metric, found.unit))
        for hour in found.hours
        if hour.at_ms + HOUR_MS > known.now_ms
    ]
    over = [each for each in over if each[2] > known.there_is]
    if not over:
        return None
    peak_ms, _, peak = max(over, key=lambda each: (each[2], -each[0]))
    return CapacityShortfall(
        over[0][0], peak_ms, peak, len(over), any(middle > known.there_is for _, middle, _ in over)
    )


def means(known: ForecastPageData, found: Forecast, width: int, *, read_only: bool) -> Section:
    """Is there enough for what comes, and what can be done about it: lines that lead into the `:` bar."""
    short = shortfall(known, found)
    if found.basis == TOO_SHORT:
        text = "not enough history for a forecast: showing the range measured so far"
        return Section("What it means", tuple(text_line(line, "dim") for line in wrap(text, width)))
    if known.there_is is None:
        return Section("What it means", (text_line("no limit to compare with", "dim"),))
    if short is None:
        peak = max((thousandths(hour.p90, found.metric, found.unit) for hour in found.hours), default=0)
        text = f"● p90 stays within the {known.what}: at most {amount(peak)} of {amount(known.there_is)}"
        return Section("What it means", tuple(text_line(line, "ok") for line in wrap(text, width)))
    said = f"{'!' if short.sure else '?'} {'p50 and p90 rise' if short.sure else 'p90 rises'} above the {known.what}"
    when = "now" if short.first_ms <= known.now_ms else f"in {duration(short.first_ms - known.now_ms)}"
    told = [
        f"{said} ({amount(known.there_is)}) from {timestamp(short.first_ms)[5:16]} UTC, {when}: in {short.hours:,} of "
        f"{len(found.hours):,} hours",
        f"peak at {timestamp(short.peak_ms)[5:16]} UTC: {amount(short.peak)} {known.unit}",
    ]
    lines = [text_line(line, "bad" if short.sure else "warn") for text in told for line in wrap(text, width)]
    return Section(
        "What it means", (*lines, *ways(known, short, width, read_only=read_only)), "enter fills in the command"
    )


def ways(known: ForecastPageData, short: CapacityShortfall, width: int, *, read_only: bool) -> list[Line]:
    """Lines of the `:` bar that try or ask for as much as the peak takes."""
    kind, _, name = known.subject.partition(":")
    if known.sizing is None:
        return [] if kind else [text_line("choose a pool or a queue to act on it", "dim")]
    name = printable(name)
    wanted = -(-short.peak // max(1, known.sizing.each))
    least = f" (limit {known.sizing.most:,})" if known.sizing.most and wanted > known.sizing.most else ""
    unit = "nodes" if kind == "pool" else known.unit
    lines = [text_line(f"needs {wanted:,} {unit}{least}; {known.sizing.have:,} now", "")]
    begun = []
    if kind == "pool":
        hours = max(1, -(-(short.first_ms - known.now_ms) // HOUR_MS))
        begun.append(("try it", f"whatif resize {name} {wanted}"))
        if not read_only and known.sizing.ahead:
            begun.append(("order ahead", f"set-targets {name} +{hours}h={wanted}"))
        elif not read_only:
            begun.append(("order", f"scale-pool {name} {wanted}"))
    else:
        resource = known.unit.lower()
        begun.append(("try it", f"whatif quota {name} {resource}={wanted}"))
        if not read_only:
            begun.append(("more quota", f"set-quota {name} {resource}={wanted}"))
    for word, line in begun:
        lines.append(Line(((fit(f"  {word}", 14), "dim"), (cut(f":{line}", width - 14), "link")), f"compose:{line}"))
    return lines


# -- the rest ---------------------------------------------------------------------------------------------------------


def held(found: Forecast, width: int) -> list[Section]:
    """Basis of the forecast, accuracy of such forecasts, and every hour."""
    rests = Section("Based on", tuple(text_line(line) for line in forecast_head(found, width)), found.basis)
    skill = tuple(text_line(part) for line in forecast_skill(found) for part in _prose(line, width))
    hours = Section("Hours ahead", tuple(text_line(line) for line in bars(found, width)), found.metric)
    return [rests, Section("Accuracy", skill, "80% between p10 and p90 is ideal"), hours]


def _prose(line: str, width: int) -> list[str]:
    """A sentence in lines of the width; a line of a table as it is."""
    return [line] if "  " in line or not line else wrap(line, width)


def choices(known: ForecastPageData, width: int) -> list[Section]:
    """Other subjects and other measures of this one; the one that is shown is marked."""
    of = [("", "the cell")] + [(name, name.replace(":", " ")) for name in known.subjects]
    return [
        Section("Subject", tuple(_choice("of", *each, known.subject, width) for each in of), "enter shows it"),
        Section("Metric", tuple(_choice("metric", name, name, known.metric, width) for name in known.metrics)),
    ]


def _choice(what: str, value: str, text: str, chosen: str, width: int) -> Line:
    mark, tone = ("▸ ", "strong") if value == chosen else ("  ", "link")
    return Line(((mark, "accent"), (cut(printable(text), width - 2), tone)), f"{what}:{value}")


def pages(
    known: ForecastPageData, found: Forecast | None, wait: Wait, width: int, *, read_only: bool
) -> tuple[list[Section], list[Section]]:
    """Left: what it means and what it rests on. Right: what else can be looked at."""
    left: list[Section] = []
    if found is not None:
        left = [means(known, found, width, read_only=read_only), *held(found, width)]
    elif wait.problem:
        left = [Section("No forecast", tuple(text_line(line, "warn") for line in wrap(wait.problem, width)))]
    return left, choices(known, width)


def measured(values: Sequence[tuple[int, float | None]], metric: str, unit: str) -> tuple[tuple[int, int | None], ...]:
    """Points of a history in thousandths."""
    return tuple((at_ms, None if value is None else thousandths(value, metric, unit)) for at_ms, value in values)
