"""The overview as sections: state of the cell, cost, forecast, and recent events.

The third column is for wide screens: longest waits, lost nodes, recent events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from console.forms.filters import parse_filter
from console.text.charts import (
    BAND,
    LIMIT,
    MARK,
    column_at,
    framed,
    gutter,
    ribbon,
    round_top,
    scale_of,
    time_axis,
)
from console.text.terminal_text import NONE, cut, duration, fit, fit_name, milli, permille, printable, timestamp, wrap
from console.text.tones import state_look
from console.views.findings import (
    NO_TRENDS,
    OverviewFinding,
    QueueRow,
    Trends,
    blocked,
    lines_of,
    objectives,
    of_advice,
    of_budgets,
    of_incidents,
    of_objectives,
    of_proposals,
    of_the_cell,
    pool_filter,
    queues,
)
from console.views.lists import EVENT_TONES
from console.views.sections import (
    BOOTING,
    BORROWED,
    BURST,
    DOWN,
    IDLE,
    OUT,
    USED,
    BarPart,
    Line,
    Section,
    bar,
    fact_bars,
    loading,
    metered,
    quantity,
    text_line,
)
from engine.model.list_queries import Page, Query
from engine.model.overviews import Change, Overview, PoolOverview
from engine.model.quantities import counted, usd
from engine.model.specs import HOUR_MS

if TYPE_CHECKING:
    from console.views.lists import Span
    from engine.model.reports import BudgetLine
    from recommender.estimates.queries import Forecast
    from recommender.findings.suggestions import Recommendation
    from runbooks.plans.incidents import Incident
    from runbooks.plans.typed_plan import Proposal


TOO_SHORT = "too short"
"""Basis of a forecast that knows next to nothing."""


def cost(view: Overview, beside: SlowReadings, width: int, most: int) -> Section:
    """Cost an hour, and of each budget what is spent and how fast."""
    budgets = beside.budgets
    idle = f", {short_money(view.idle_microusd_hour)} idle" if view.idle_microusd_hour else ""
    now = f"{short_money(view.cost_microusd_hour)}/h{idle}" if view.cost_microusd_hour else "nodes have no price"
    if budgets is None:
        told = beside.why_not or "loading budgets …"
        return Section("Cost", (text_line(cut(told, width), "dim", "cost"),), now)
    ordered = sorted(budgets, key=lambda line: -(line.forecast_microusd * 1000 // max(1, line.spec.limit_microusd)))
    lines = [_budget(line, width) for line in ordered[:most]]
    if not budgets:
        lines = [
            Line((("no budgets: ", "dim"), (cut(":set-budget NAME --queue QUEUE --limit 500", width - 12), "faint")))
        ]
    if len(budgets) > most > 1:
        lines.append(Line(((f"{len(budgets) - most} more", "dim"),), "cost"))
    return Section("Cost", tuple(lines), now)


def _budget(line: BudgetLine, width: int) -> Line:
    """Spent of the limit as a bar; the rate now beside the rate that lasts until the window ends."""
    limit = max(1, line.spec.limit_microusd)
    share = line.spent_microusd * 1000 // limit
    lasting = limit * HOUR_MS // max(1, line.window_end_ms - line.window_start_ms)
    over = line.forecast_microusd > line.spec.limit_microusd
    tone = "bad" if line.stage == "spent" else "warn" if over or line.stage == "warned" else "dim"
    rate = f"{'▲' if over else ' '}{short_money(line.rate_microusd_hour)} of {short_money(lasting)}/h"
    room = width - len(rate) - 7
    size = max(0, room - 16) if width >= 46 else 0
    name = fit_name(printable(line.spec.name), max(4, room - size - 1))
    spans = (
        (name + " ", ""),
        *metered(min(share, 1000), size, "bar" if tone == "dim" else tone),
        (f" {permille(share):>5} ", ""),
        (rate, tone),
    )
    return Line(spans, "cost")


def short_money(microusd: int) -> str:
    """Dollars as briefly as one reads them: "$9,397", "$5.20", "$1.2M"."""
    if microusd >= 1_000_000 * 1_000_000:
        return f"${microusd / 1e12:,.1f}M"
    return usd(microusd) if microusd < 100_000_000 else f"${round(microusd / 1e6):,}"


def ahead(view: Overview, beside: SlowReadings, width: int, height: int) -> Section:
    """Demand that is foretold against what there is. A mark shows when a node ordered now would take work."""
    forecast = beside.forecast
    if forecast is None:
        told = wrap(beside.why_not or "loading the forecast …", width)[:2]
        return Section("Ahead", tuple(text_line(line, "dim", "forecast") for line in told))
    if not forecast.hours or (forecast.basis == TOO_SHORT and not forecast.known_hours):
        return Section("Ahead", (text_line("not enough history yet for a forecast", "dim", "forecast"),))
    gpu = forecast.metric == "demand_gpu"
    ready = _capacity(view, "gpu_milli" if gpu else "cpu_milli")
    low, mid, high = ([round(getattr(hour, q)) for hour in forecast.hours] for q in ("p10", "p50", "p90"))
    top = round_top(max([ready, *high]))
    indent = gutter(top, milli)
    columns = max(8, width - indent)
    begin, end = forecast.hours[0].at_ms, forecast.hours[-1].at_ms + HOUR_MS
    mark = column_at(view.now_ms + beside.boot_ms, begin, end, columns) if beside.boot_ms else None
    rows = ribbon(low, mid, high, columns, height, top, mark=mark, limit=ready)
    lines = [Line(spans, "forecast") for spans in framed(rows, top, milli)]
    if height >= 5:
        lines += [Line(spans) for spans in time_axis(begin, end, columns, indent)]
    return Section(
        f"Ahead, {'GPU' if gpu else 'CPU'} demand",
        (_verdict(forecast, ready, beside.boot_ms, width), *lines),
        _key(beside.boot_ms),
    )


def _verdict(forecast: Forecast, ready: int, boot_ms: int, width: int) -> Line:
    """Verdict on the ready capacity, in a line."""
    if forecast.basis == TOO_SHORT:
        known = counted(forecast.known_hours, "hour")
        return Line(((cut(f"not enough history: showing the range of {known}", width), "dim"),), "forecast")
    over = next((hour for hour in forecast.hours if hour.p50 > ready), None)
    perhaps = next((hour for hour in forecast.hours if hour.p90 > ready), None)
    first = over or perhaps
    if first is None:
        return Line((("● ", "ok"), (cut(f"ready capacity lasts {len(forecast.hours)} h", width - 2), "")), "forecast")
    in_ms = max(0, first.at_ms - forecast.now_ms)
    when = "now" if not in_ms else f"in {duration(in_ms)}"
    sure = "" if over else "may be "
    short = milli(round((over.p50 if over else first.p90) - ready) // 1000 * 1000)
    unit = "GPU" if forecast.metric == "demand_gpu" else "CPU"
    order = "" if not boot_ms else f", order {'now' if in_ms <= boot_ms else f'within {duration(in_ms - boot_ms)}'}"
    return Line((("▲ ", "warn"), (cut(f"{sure}{short} {unit} short {when}{order}", width - 2), "")), "forecast")


def _key(boot_ms: int) -> str:
    return f"{LIMIT} ready  {MARK} ordered now, +{duration(boot_ms)}" if boot_ms else f"{LIMIT} ready  {BAND} p10-p90"


def _capacity(view: Overview, name: str) -> int:
    """Capacity of schedulable and booting nodes."""
    return sum(pool.capacity.get(name, 0) * (pool.ready + pool.booting) // max(1, pool.nodes) for pool in view.pools)


MAX_WAITING, MAX_OUT = 12, 8
"""Rows that are asked for."""
MIN_EVENTS = 3
_WAITING = ("id", "queue", "gpu", "cpu", "wait", "reason")
_QUEUED = parse_filter("workloads", "state:queued")
_OUT = parse_filter("nodes", "state:down state:suspect")
_NODES = ("id", "state", "pool", "rack", "workloads")


class LongestWait(NamedTuple):
    """Work that has waited longest."""

    id: str
    queue: str
    asks: str
    wait_ms: int
    reason: str


class LostNode(NamedTuple):
    """A node that is lost, or silent."""

    id: str
    state: str
    pool: str
    rack: str
    workloads: int


class RecentColumn(NamedTuple):
    """Data of the third column besides recent events."""

    waiting: tuple[LongestWait, ...] = ()
    queued: int = 0
    out: tuple[LostNode, ...] = ()
    nodes_out: int = 0


def questions() -> tuple[Query, Query]:
    """For work that waits, and for nodes that are lost or silent."""
    return (
        Query(kind="workloads", where=_QUEUED, columns=_WAITING, sort=("-wait",), limit=MAX_WAITING),
        Query(kind="nodes", where=_OUT, columns=_NODES, sort=("-state", "id"), limit=MAX_OUT),
    )


def lately(waiting: Page, out: Page) -> RecentColumn:
    return RecentColumn(
        tuple(_waiting(dict(zip(waiting.columns, row, strict=True))) for row in waiting.rows),
        waiting.matched,
        tuple(LostNode(*(row[out.columns.index(name)] or "" for name in _NODES)) for row in out.rows),
        out.matched,
    )


def _waiting(row: dict[str, Any]) -> LongestWait:
    asks = f"{milli(row['gpu'])} GPU" if row["gpu"] else f"{milli(row['cpu'] or 0)} CPU"
    return LongestWait(row["id"], row["queue"] or "", asks, row["wait"] or 0, row["reason"] or "")


def third_column(told: RecentColumn | None, events: Sequence[Change] | None, width: int, height: int) -> list[Section]:
    """Work and nodes first; what happened takes the lines that are left. None: it is not known yet."""
    sections = [loading("Longest waits")] if told is None else _of_work(told, width, height)
    if events is None:
        return [*sections, loading("Recent events")]
    left = height - sum(len(section.lines) + 2 for section in sections) - 1
    happened = [_event(each, width) for each in events[: max(MIN_EVENTS, left)]] or [text_line("no events yet", "dim")]
    return [*sections, Section("Recent events", tuple(happened), "newest first")]


def _of_work(told: RecentColumn, width: int, height: int) -> list[Section]:
    waits = [_waits(each, width) for each in told.waiting[: max(3, height // 4)]] or [
        text_line("nothing is waiting", "dim")
    ]
    outs = [_out(each, width) for each in told.out[: max(2, height // 6)]]
    sections = [Section("Longest waits", tuple(waits), f"{told.queued:,} queued")]
    if outs:
        note = counted(told.nodes_out, "node")
        sections.append(Section("Down or silent", tuple(outs), note))
    return sections


def _waits(each: LongestWait, width: int) -> Line:
    room = max(12, width - 9 - 10)
    named, queue, why = room * 4 // 12, room * 3 // 12, room - room * 4 // 12 - room * 3 // 12
    spans = (
        (fit_name(printable(each.id), named - 1) + " ", "link"),
        (fit_name(printable(each.queue), queue - 1) + " ", ""),
        (f"{each.asks:>9} ", ""),
        (f"{duration(each.wait_ms):>8} ", "dim"),
        (fit(printable(each.reason) or NONE, why), "dim"),
    )
    return Line(spans, f"workload {printable(each.id)}")


def _out(each: LostNode, width: int) -> Line:
    glyph, tone = state_look(each.state)
    where = "  ".join(printable(part) for part in (each.pool, each.rack) if part)
    runs = counted(each.workloads, "workload") if each.workloads else "empty"
    name = max(8, width // 3)
    spans = (
        (f"{glyph} ", tone),
        (fit_name(printable(each.id), name) + " ", "link"),
        (fit(printable(each.state), 10) + " ", tone),
        (fit(runs, 14) + " ", ""),
        (fit(where, max(4, width - name - 30)), "dim"),
    )
    return Line(spans, f"node {printable(each.id)}")


def _event(each: Change, width: int) -> Line:
    what = printable(each.what)
    subject = max(8, width // 3)
    spans = (
        (timestamp(each.at_ms, date=False) + " ", "dim"),
        (fit(what, 11) + " ", EVENT_TONES.get(what, "")),
        (fit_name(printable(each.subject), subject) + " ", ""),
        (fit(printable(each.detail), max(4, width - subject - 26)), "dim"),
    )
    return Line(spans, f"open {printable(each.subject)}" if each.subject else "")


class SlowReadings(NamedTuple):
    """Readings on a slower interval, because they take longer. None: not known yet."""

    budgets: tuple[BudgetLine, ...] | None = None
    forecast: Forecast | None = None
    boot_ms: int = 0
    """Until a node that is ordered now takes work, where nodes can be ordered."""
    advice: tuple[Recommendation, ...] | None = None
    trends: Trends = NO_TRENDS
    why_not: str = ""
    """Reason why a reading could not be had."""


class OverviewData(NamedTuple):
    """Data of the overview."""

    view: Overview
    queues: tuple[QueueRow, ...] = ()
    awaiting: int = 0
    """Proposals that wait for votes."""
    stuck: int = 0
    """Plans that were begun and do not go on."""
    proposals: tuple[Proposal, ...] = ()
    """The first of those that wait."""
    lately: RecentColumn | None = None
    """None: it was not asked for."""
    incidents: int = 0
    """Incidents that are open or claimed."""
    named_incidents: tuple[Incident, ...] = ()
    """The first of those."""

    @property
    def version(self) -> int:
        return self.view.version

    @property
    def now_ms(self) -> int:
        return self.view.now_ms


MAX_ROWS = 28
"""Lines of a chart, however high the page is."""
MIN_TREND = 4
"""Lines of the two curves of the trend, where there is room for it besides what a page of this height shows anyway."""
ABOUT_AHEAD = 4
"""Lines of the forecast besides its rows: head, verdict, axis of time."""


class SectionHeights(NamedTuple):
    """Lines that the parts of a page of some height may take."""

    findings: int
    queues: int
    reasons: int
    objectives: int
    budgets: int
    ahead: int
    trend: int
    resources: int


_ROOMS = (
    (22, SectionHeights(6, 3, 2, 1, 1, 3, 0, 1)),
    (25, SectionHeights(6, 4, 3, 2, 2, 3, 0, 1)),
    (34, SectionHeights(9, 6, 4, 2, 2, 5, 0, 3)),
    (48, SectionHeights(10, 9, 6, 4, 3, 7, 4, 4)),
)
_MOST = SectionHeights(14, 14, 9, 6, 5, 11, 6, 4)
"""By the height of the page."""


def room_for(height: int) -> SectionHeights:
    return next((room for below, room in _ROOMS if height < below), _MOST)


def overview_columns(
    glance: OverviewData, width: int, height: int = 60, beside: SlowReadings | None = None
) -> tuple[list[Section], list[Section]]:
    """Left: is it fine, the fleet. Right: who waits, why, at what price, and what comes. `width` is that of one column,
    `height` that of the page."""
    view, room, beside = glance.view, room_for(height), beside or SlowReadings()
    found = all_findings(glance, beside)
    left = [
        Section(
            "Now",
            tuple(now_lines(view, found, width, room.findings, unknown(beside))),
            f"{len(found)} {'needs' if len(found) == 1 else 'need'} attention" if found else "",
        ),
        fleet(view, width, room.resources),
        pools(view.pools, width),
    ]
    spare = _left_over(left, height) - 1
    if room.trend or spare >= MIN_TREND:
        left.append(trend(view, width, min(MAX_ROWS, max(room.trend, spare)) // 2))
    right = [queues(glance.queues, width, room.queues, beside.trends), blocked(view, width, room.reasons)]
    if view.burns:
        right.append(objectives(view.burns, width, room.objectives))
    right.append(cost(view, beside, width, room.budgets))
    rows = min(MAX_ROWS, max(room.ahead, _left_over(right, height) - ABOUT_AHEAD))
    right.append(ahead(view, beside, width, rows))
    return left, right


def _left_over(sections: Sequence[Section], height: int) -> int:
    """Lines of the page below these and an empty one."""
    return height - sum(2 + len(section.lines) for section in sections)


def all_findings(glance: OverviewData, beside: SlowReadings) -> list[OverviewFinding]:
    if not glance.view.pools:
        return []
    return [
        *of_incidents(glance.incidents, glance.named_incidents),
        *of_the_cell(glance.view),
        *of_objectives(glance.view.burns),
        *of_budgets(beside.budgets or ()),
        *of_proposals(glance.awaiting, glance.stuck, glance.proposals),
        *of_advice(beside.advice or ()),
    ]


def unknown(beside: SlowReadings) -> str:
    """Readings that have not come yet, or cannot be had."""
    if beside.budgets is not None:
        return "suggestions are not known" if beside.advice is None else ""
    return "loading budgets" if beside.advice is not None else "loading budgets and suggestions"


def now_lines(
    view: Overview, found: Sequence[OverviewFinding], width: int, most: int, not_known: str = ""
) -> list[Line]:
    """Is it fine? If not, what, and what to press. `not_known`: what has not come, or cannot be had."""
    if not view.pools:
        return [
            Line((("! ", "warn"), ("this cell has no nodes yet", ""))),
            Line((("  muster cell define cell.yaml", "dim"),)),
            Line((("  or try a busy one: muster --demo", "dim"),)),
        ]
    if not found and not_known:
        told = f"all nodes up, no long waits; {not_known}{' …' if not_known.startswith('loading') else ''}"
        return [Line((("● ", "dim"), (cut(told, width - 2), "")))]
    if not found:
        return [Line((("● ", "ok"), (cut("all nodes up, no long waits, no budget overrun", width - 2), "")))]
    return lines_of(found, width, most)


# -- fleet and pools --------------------------------------------------------------------------------------------------


def fleet(view: Overview, width: int, resources: int = 4) -> Section:
    main = "gpu_milli" if view.capacity.get("gpu_milli") else "cpu_milli"
    amounts = _fleet_parts(view, main)
    lines = [Line(tuple(bar(amounts, width)), f"curve cell {main.removesuffix('_milli')}")]
    told = [(part, quantity(main, amount)) for part, amount in amounts if amount]
    lines += _legend_lines(told, width)
    lines += _beside(view, width)
    others = {name: amount for name, amount in view.capacity.items() if name != main}
    lines += fact_bars(others, view.used, width)[:resources]
    nodes, ready = sum(pool.nodes for pool in view.pools), sum(pool.ready for pool in view.pools)
    what = "GPU" if main == "gpu_milli" else "CPU"
    return Section(f"Fleet, {what}", tuple(lines), f"{ready:,}/{nodes:,} nodes ready · {printable(view.policy)}")


def _beside(view: Overview, width: int) -> list[Line]:
    """Facts across the parts: spot nodes, and fragmented free room."""
    spot = sum(pool.nodes for pool in view.pools if pool.spot)
    told = [counted(spot, "spot node")] if spot else []
    if view.fragmentation_ppm:
        told.append(f"{permille(view.fragmentation_ppm // 1000)} of the free GPU is fragmented")
    return [Line(((cut(" · ".join(told), width), "dim"),), "topology")] if told else []


def _fleet_parts(view: Overview, main: str) -> list[tuple[BarPart, int]]:
    """Parts of the fleet's capacity by use. They add up to all of it."""
    used = view.used.get(main, 0)
    borrowed = min(view.borrowed.get(main, 0), used)
    burst = min(view.in_burst.get(main, 0), borrowed)
    unready = [sum(amounts) for amounts in zip(*(_not_ready(pool, main) for pool in view.pools), strict=True)]
    return [
        (USED, used - borrowed),
        (BORROWED, borrowed - burst),
        (BURST, burst),
        *_rest(max(0, view.capacity.get(main, 0) - used), unready),
    ]


def _rest(free: int, unready: Sequence[int]) -> list[tuple[BarPart, int]]:
    """Unused capacity by reason: idle is the part that could be used."""
    parts = []
    for part, amount in zip((DOWN, BOOTING, OUT), unready, strict=False):
        amount = min(amount, free)
        free -= amount
        parts.append((part, amount))
    return [(IDLE, free), *parts]


def _not_ready(pool: PoolOverview, main: str) -> tuple[int, int, int]:
    """Capacity of the pool's nodes that are down, that boot, and that take no work for another reason."""
    each = pool.capacity.get(main, 0) // max(1, pool.nodes)
    return pool.down * each, pool.booting * each, (pool.cordoned + pool.draining + pool.suspect) * each


def _legend_lines(told: Sequence[tuple[BarPart, str]], width: int) -> list[Line]:
    lines: list[list[Span]] = [[]]
    used = 0
    for part, amount in told:
        spans: list[Span] = [(part.sign, part.tone), (f" {amount} ", ""), (f"{part.word}  ", "dim")]
        size = len(amount) + len(part.word) + 5
        if used + size - 2 > width and lines[-1]:
            lines.append([])
            used = 0
        lines[-1] += spans
        used += size
    return [Line(tuple(spans)) for spans in lines if spans]


def pools(items: Sequence[PoolOverview], width: int) -> Section:
    longest = max((len(pool.name) for pool in items), default=0)
    name_width = min(longest, max(8, width - 26))
    return Section("Pools", tuple(_pool(pool, name_width, width) for pool in items), "use · nodes ready")


def _pool(pool: PoolOverview, name_width: int, width: int) -> Line:
    scarce = "gpu_milli" if pool.capacity.get("gpu_milli") else "cpu_milli"
    total, used = pool.capacity.get(scarce, 0), pool.used.get(scarce, 0)
    amounts = [(USED, used), *_rest(max(0, total - used), _not_ready(pool, scarce))]
    count = f"{pool.ready:,}/{pool.nodes:,}" if pool.ready != pool.nodes else f"{pool.nodes:,}"
    if pool.spot:
        count = f"spot {count}"
    size = max(4, width - name_width - 2 - 5 - 1 - 11)
    tone = "bad" if pool.down else "warn" if pool.ready != pool.nodes else "dim"
    spans = (
        (fit_name(printable(pool.name), name_width) + "  ", ""),
        *bar(amounts, size),
        (f" {permille(used * 1000 // max(1, total)):>4}", ""),
        (f"{cut(count, 12):>12}", tone),
    )
    return Line(spans, pool_filter(pool.name))


def trend(view: Overview, width: int, height: int = 2) -> Section:
    """Use and queue over time, newest at the right."""
    # A cell takes its first sample before its clock is set.
    samples = [sample for sample in view.history if sample[0] > 0]
    if len(samples) < 2:
        return Section("Trend", (text_line("not enough history yet", "dim"),))
    label = "GPU use" if view.capacity.get("gpu_milli") else "CPU use"
    use, queued = (tuple(sample[at] for sample in samples) for at in (1, 2))
    room = width - _NAMES
    lines = [*_curve((label, permille(use[-1])), use, room, height, permille, f"curve cell {label[:3].lower()}")]
    lines += _curve(("queued", f"{queued[-1]:,}"), queued, room, height, "{:,}".format, "curve cell length")
    return Section("Trend", tuple(lines), f"last {duration(samples[-1][0] - samples[0][0])}")


_NAMES = 10
"""Cells of the names beside a curve."""


@lru_cache(maxsize=8)
def _curve(
    names: tuple[str, str], values: tuple[int, ...], width: int, height: int, text: Callable[[int], str], link: str
) -> tuple[Line, ...]:
    """A curve beside its name, its last value, and where its scale begins: close to what varies little. Kept, because
    the page is drawn every other second and there is a new sample once a minute."""
    base, top = scale_of(min(values), max(values), max(values) // 5)
    begins = f"from {text(base)}"
    notes = [*names, *[""] * (height - 3), begins] if height > 2 else [f"{names[0]} {names[1]}"[: _NAMES - 1], begins]
    above = [value - base for value in values]
    rows = ribbon([0] * len(above), above, above, width, height, top)
    return tuple(
        Line(((fit(note, _NAMES), "dim" if row != 1 else ""), *drawn), link if row == 0 else "")
        for row, (note, drawn) in enumerate(zip(notes, rows, strict=True))
    )
