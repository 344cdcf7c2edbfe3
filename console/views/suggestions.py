"""Recommendations and forecasts in words, for shell and screen.

Charts count in integers: values are thousandths of the unit shown.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.text.charts import Spans, column_at, framed, gutter, legend, ribbon, round_top, time_axis
from console.text.plain_tables import change, table
from console.text.terminal_text import cut, duration, fit, milli, permille, printable, timestamp, wrap
from console.views.sections import Line, Section, plural, text_line
from engine.model.specs import HOUR_MS
from recommender.estimates.queries import Forecast
from recommender.findings.suggestions import figure

if TYPE_CHECKING:
    from recommender.estimates.queries import Forecast, HourAhead
    from recommender.findings.suggestions import (
        Evidence,
        Expected,
        Followed,
        Recommendation,
        Recommendations,
        SuggestionTrial,
        Track,
    )


WIDTH = 80
SHOWN_IDS = 5
SHOWN_FIGURES = 3
"""Figures of a try that a list shows; the explanation has all."""
TOLD = ("wait_mean", "waiting", "evictions", "cost")
"""Figures that are told also where nothing changes."""
SHOWN_LINES = 20
"""Lines of the list where not all is asked for: with the rest, about a screen."""
MIN_OPEN = 2
BAR = 22
FULL, LIKELY, MAYBE = "█", "▓", "░"
"""Signs up to p10, up to p50, up to p90."""


# --- the list


def recommendation_lines(view: Recommendations, which_engine: Sequence[str], *, every: bool = False) -> list[str]:
    """Open recommendations with their grounds in a line or two: all, or those that fit on a screen. `which_engine` are
    flags that make a command reach the same engine."""
    lines: list[str] = []
    shown = 0
    for each in view.open:
        brief = _brief(each, view, which_engine)
        if not every and shown >= MIN_OPEN and len(lines) + len(brief) > SHOWN_LINES:
            break
        lines += [*brief, ""]
        shown += 1
    if shown < len(view.open):
        lines += [f"{len(view.open) - shown:,} more that are worth less: --all shows them", ""]
    if not view.open:
        lines += [f"nothing found at version {view.version:,}", ""]
    if view.aside:
        lines.append("set aside:")
        for each in view.aside:
            lines += _wrapped(f"{each.suggestion.id}  {printable(each.suggestion.finding)}", 2)
            lines += _wrapped(printable(each.note), 11)
        lines.append("")
    if view.followed:
        lines.append("followed up:")
        for followed in view.followed:
            lines += _wrapped(followed_text(followed), 2)
        lines.append("")
    for text in view.unknown:
        lines += _wrapped(f"cannot tell: {printable(text)}", 0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _brief(each: Recommendation, view: Recommendations, which_engine: Sequence[str]) -> list[str]:
    suggestion = each.suggestion
    first = suggestion.evidence[0] if suggestion.evidence else None
    pairs = [("do", action_text(each))]
    if first is not None:
        pairs.append(("evidence", evidence_text(first)))
    pairs += [("thin", printable(text)) for text in suggestion.thin[:1]]
    pairs += [("again", printable(each.note))] if each.note else []
    if suggestion.action != "notify":
        pairs.append(("tried", tried_text(each.simulated)))
    pairs += [("so far", track_text(each.track))] if each.track is not None else []
    lines = [f"{each.rank}. {suggestion.id}  worth {worth_text(each)}", *_wrapped(printable(suggestion.finding), 3)]
    lines += _pairs(pairs, 3)
    if each.command:
        lines.append(f"   {shell_line(each, which_engine)}")
    return lines


# --- parts


def skill_text(each: Recommendation) -> str:
    """The model of the finding and how good it has proved."""
    skill = each.suggestion.skill
    assert skill is not None
    scored = f"{skill.scored:,} scored" if skill.scored else "not scored here yet"
    return printable(f"{skill.model}: {skill.measure}: {skill.value} ({scored})")


def worth_text(each: Recommendation) -> str:
    """Rank value: GPU-hours a day."""
    return f"{each.worth_gpu_milli_h / 1000:,.1f} GPU-hours a day{', thin evidence' if each.suggestion.thin else ''}"


def action_text(each: Recommendation) -> str:
    """The action in words."""
    suggestion = each.suggestion
    targets = [printable(target) for target in suggestion.targets]
    more = f" and {len(targets) - SHOWN_IDS:,} more" if len(targets) > SHOWN_IDS else ""
    ids = ", ".join(targets[:SHOWN_IDS]) + more
    if suggestion.action == "notify":
        return f"notify those who look after {ids}" if targets else "look into it"
    behind = f" {printable(' '.join(suggestion.parameters))}" if suggestion.parameters else ""
    if suggestion.action == "consolidate":
        return f"consolidate{behind}"
    return f"{suggestion.action.replace('_', ' ')} {ids}{behind}"


def evidence_text(item: Evidence) -> str:
    baseline = f", beside {item.baseline}" if item.baseline else ""
    return printable(f"{item.metric}: {item.value}{baseline} ({item.window}; measured on {item.rows:,})")


def expected_text(expected: Expected) -> str:
    of = printable(f"{expected.of} {expected.subject}".strip())
    was, to = figure(expected.metric, expected.was), figure(expected.metric, expected.to)
    return f"{expected.metric} of {of} from {was} to {to} within {duration(expected.within_ms)}"


def track_text(track: Track) -> str:
    """Record of suggestions of this kind."""
    judged = track.acted - track.unknown
    told = []
    if judged:
        low, high = permille(track.held_low_permille or 0), permille(track.held_high_permille or 0)
        told.append(f"held {track.held:,} of {judged:,} acted on ({low}..{high})")
        told += [f"{track.partly:,} in part"] if track.partly else []
    if track.unknown:
        told.append(f"{track.unknown:,} acted on cannot be judged")
    if track.left:
        told.append(f"{track.resolved:,} of {track.left:,} left alone came right by itself")
    return "; ".join(told) or "none has come due yet"


def followed_text(followed: Followed) -> str:
    """A promise and what came of it."""
    way = f"acted on by {printable(followed.who)}" if followed.way == "acted" else "left alone"
    if followed.verdict is None:
        return f"{followed.id}  {way}, due {timestamp(followed.due_ms)} UTC: {expected_text(followed.expected)}"
    outcome = {"held": "held", "partly": "held in part", "no": "did not hold", "unknown": "cannot tell"}
    told = outcome[followed.verdict.outcome]
    if followed.way == "left":
        told = {"held": "came right by itself", "no": "did not come right"}.get(followed.verdict.outcome, told)
    return f"{followed.id}  {way}: {told}; {printable(followed.verdict.why)}"


def tried_text(simulated: SuggestionTrial, *, brief: bool = True) -> str:
    """State and result of the trial on the twin."""
    if simulated.state == "none":
        return f"not tried: {printable(simulated.why)}"
    if simulated.state == "failed":
        return f"failed: {printable(simulated.why)}"
    if simulated.state == "waiting" or not simulated.figures:
        return "not yet" if simulated.state == "waiting" else "running ahead …"
    # Of when it is, not how long ago: the page may be read long after it was drawn.
    when = f"v{simulated.version:,} at {timestamp(simulated.at_ms, date=False)}"
    basis = f"{when}, {duration(simulated.horizon_ms)} ahead, {simulated.seeds} {plural('seed', simulated.seeds)}"
    basis += ", goes on" if simulated.state == "running" else ""
    if not brief:
        return basis + (f"; {printable(simulated.why)}" if simulated.why else "")
    told = [
        f"{each.title.lower()} {change(each)[0]}"
        for each in simulated.figures
        if each.of == "cell" and (each.change.least, each.change.most) != (0, 0)
    ]
    return f"{'; '.join(told[:SHOWN_FIGURES]) or 'nothing changes'} ({basis})"


def shell_line(each: Recommendation, which_engine: Sequence[str]) -> str:
    """The command that proposes the action: whole, whatever its length, so that it can be used."""
    name, *behind = each.command
    return shlex.join(["muster", name, *which_engine, *map(printable, behind)])


def _pairs(pairs: Sequence[tuple[str, str]], indent: int, width: int = WIDTH) -> list[str]:
    """`name  value` lines, values aligned and wrapped."""
    first = max(len(name) for name, _ in pairs) + 2
    lines = []
    for name, value in pairs:
        parts = wrap(value, max(width - indent - first, 20)) or [""]
        lines.append(f"{' ' * indent}{name:<{first}}{parts[0]}".rstrip())
        lines += [f"{' ' * (indent + first)}{part}" for part in parts[1:]]
    return lines


def _wrapped(text: str, indent: int, width: int = WIDTH) -> list[str]:
    parts = wrap(text, max(width - indent - (2 if indent else 0), 20))
    return [f"{' ' * (indent if not n else indent + 2 * bool(indent))}{part}" for n, part in enumerate(parts)]


# --- forecasts


def forecast_lines(view: Forecast, width: int = WIDTH) -> list[str]:
    """Hour by hour, with what it rests on and how such forecasts have held."""
    return [*forecast_head(view, width), "", *bars(view, width), "", *forecast_skill(view)]


def forecast_head(view: Forecast, width: int = WIDTH) -> list[str]:
    """Subject of a forecast, its basis, and its weaknesses."""
    unit, scale = shown_unit(view)
    of = printable(f"{view.of} {view.subject}".strip())
    missing = f", {view.missing_hours:,} missing" if view.missing_hours else ""
    lines = _wrapped(f"{view.metric} of {of} in {unit}, hourly means, {len(view.hours)} hours ahead", 0, width)
    last = f"{view.now / scale:,.1f}" if view.now is not None else "unknown"
    lines += _wrapped(f"last hour {last}; {view.known_hours:,} hours known{missing}; rests on {view.basis}", 0, width)
    return [*lines, *(line for note in view.notes for line in _wrapped(f"but: {printable(note)}", 0, width))]


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
        titles = ("AHEAD", "SCORED", "P10..P90 HELD", "BELOW", "ABOVE", "ERROR OF P50")
        lines += ["", *table(titles, rows, (False, *(True,) * 5))]
    else:
        lines += ["", "no forecast of this series has come due yet: how well they hold is not known"]
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


def list_line(each: Recommendation, width: int) -> str:
    """A recommendation in one line of a screen."""
    rank = f"{each.rank:>2}" if each.rank else " -"
    worth = f"{each.worth_gpu_milli_h / 1000:>8,.1f}"
    return cut(f"{rank}  {each.suggestion.id}  {worth}  {printable(each.suggestion.finding)}", width)


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
        return [
            Section(_forecast_title(known), (text_line(_nothing(wait), "warn" if wait.problem else "dim"),), known.unit)
        ]
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
    return "stopped: r asks again" if wait.stopped else "nothing was measured yet; the forecast is being made …"


def _state(known: ForecastPageData, found: Forecast | None, wait: Wait) -> str:
    """The unit, and how the forecast stands."""
    if wait.since_s:
        return f"{known.unit} · making the forecast, {wait.since_s:.0f} s, esc stops"
    if found is None:
        return f"{known.unit} · {'stopped, r asks again' if wait.stopped else 'no forecast'}"
    return f"{known.unit} · hourly means · made {timestamp(found.made_ms)[5:16]} UTC"


def _legend(
    known: ForecastPageData, found: Forecast | None, limit: int | None, ready: int | None, width: int
) -> list[Spans]:
    parts = [("─ measured, then p50" if found else "─ measured", "bar"), ("│ now", "accent")]
    if found is not None:
        parts.insert(1, ("░ p10 to p90", "dim"))
    if limit is not None:
        parts.append((f"═ {known.what} {amount(limit)}", "warn"))
    elif known.there_is is not None:
        parts.append((f"{known.what} {amount(known.there_is)}, beyond the scale", "dim"))
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
        text = "too little was measured to tell what comes: the range seen so far is all that is drawn"
        return Section("What it means", tuple(text_line(line, "dim") for line in wrap(text, width)))
    if known.there_is is None:
        return Section("What it means", (text_line("nothing to compare it with: it has no limit of its own", "dim"),))
    if short is None:
        peak = max((thousandths(hour.p90, found.metric, found.unit) for hour in found.hours), default=0)
        text = f"● p90 stays within the {known.what}: at most {amount(peak)} of {amount(known.there_is)}"
        return Section("What it means", tuple(text_line(line, "ok") for line in wrap(text, width)))
    said = f"{'!' if short.sure else '?'} {'p50 and p90 rise' if short.sure else 'p90 rises'} above the {known.what}"
    when = "now" if short.first_ms <= known.now_ms else f"in {duration(short.first_ms - known.now_ms)}"
    told = [
        f"{said} ({amount(known.there_is)}) from {timestamp(short.first_ms)[5:16]} UTC on, {when}: {short.hours:,} of "
        f"{len(found.hours):,} hours",
        f"most at {timestamp(short.peak_ms)[5:16]} UTC: {amount(short.peak)} {known.unit}",
    ]
    lines = [text_line(line, "bad" if short.sure else "warn") for text in told for line in wrap(text, width)]
    return Section("What it means", (*lines, *ways(known, short, width, read_only=read_only)), "enter begins the line")


def ways(known: ForecastPageData, short: CapacityShortfall, width: int, *, read_only: bool) -> list[Line]:
    """Lines of the `:` bar that try or ask for as much as the peak takes."""
    kind, _, name = known.subject.partition(":")
    if known.sizing is None:
        return [] if kind else [text_line("choose a pool or a queue to act on it", "dim")]
    name = printable(name)
    wanted = -(-short.peak // max(1, known.sizing.each))
    least = f", of which {known.sizing.most:,} may be" if known.sizing.most and wanted > known.sizing.most else ""
    unit = "nodes" if kind == "pool" else known.unit
    lines = [text_line(f"that takes {wanted:,} {unit}; there are {known.sizing.have:,}{least}", "")]
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
            begun.append(("more quota", f"set-quota {name} --nominal {resource}={wanted}"))
    for word, line in begun:
        lines.append(Line(((fit(f"  {word}", 14), "dim"), (cut(f":{line}", width - 14), "link")), f"compose:{line}"))
    return lines


# -- the rest ---------------------------------------------------------------------------------------------------------


def held(found: Forecast, width: int) -> list[Section]:
    """Basis of the forecast, accuracy of such forecasts, and every hour."""
    rests = Section("Rests on", tuple(text_line(line) for line in forecast_head(found, width)), found.basis)
    skill = tuple(text_line(part) for line in forecast_skill(found) for part in _prose(line, width))
    hours = Section("Hours ahead", tuple(text_line(line) for line in bars(found, width)), found.metric)
    return [rests, Section("How they have held", skill, "80% between p10 and p90 is right"), hours]


def _prose(line: str, width: int) -> list[str]:
    """A sentence in lines of the width; a line of a table as it is."""
    return [line] if "  " in line or not line else wrap(line, width)


def choices(known: ForecastPageData, width: int) -> list[Section]:
    """Other subjects and other measures of this one; the one that is shown is marked."""
    of = [("", "the cell")] + [(name, name.replace(":", " ")) for name in known.subjects]
    return [
        Section("Of what", tuple(_choice("of", *each, known.subject, width) for each in of), "enter shows it"),
        Section("Which measure", tuple(_choice("metric", name, name, known.metric, width) for name in known.metrics)),
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
