"""The overview as sections: is it fine, and if not, what now. No Textual in here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from console.text.charts import graph, shrink
from console.text.terminal_text import cut, duration, fit, fit_name, permille, printable
from console.views.overview.cost_and_forecast import ahead, cost
from console.views.overview.findings import (
    OverviewFinding,
    lines_of,
    of_advice,
    of_budgets,
    of_objectives,
    of_proposals,
    of_the_cell,
    pool_filter,
)
from console.views.overview.queues import QueueRow, blocked, objectives, queues
from console.views.overview.recent_events import RecentColumn
from console.views.quota_bars import BOOTING, BORROWED, BURST, DOWN, IDLE, OUT, USED, BarPart, bar
from console.views.sections import Line, Section, fact_bars, plural, quantity, text_line
from engine.model.queries import Overview, PoolOverview

if TYPE_CHECKING:
    from console.views.lists import Span
    from engine.reads.cost_reports import BudgetLine
    from recommender.findings.queries import Recommendation
    from recommender.forecasts.queries import Forecast
    from runbooks.plans.typed_plan import Proposal


class SlowReadings(NamedTuple):
    """What is asked for on a slower beat, because it takes longer to find. None: it is not known yet."""

    budgets: tuple[BudgetLine, ...] | None = None
    forecast: Forecast | None = None
    boot_ms: int = 0
    """Until a node that is ordered now takes work, where nodes can be ordered."""
    advice: tuple[Recommendation, ...] | None = None
    why_not: str = ""
    """Why what is not known could not be had."""


class OverviewData(NamedTuple):
    """What the overview shows."""

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
            f"{len(found)} to look at" if found else "",
        ),
        fleet(view, width, room.resources),
        pools(view.pools, width),
    ]
    spare = _left_over(left, height) - 1
    if room.trend or spare >= MIN_TREND:
        left.append(trend(view, width, min(MAX_ROWS, max(room.trend, spare)) // 2))
    right = [queues(glance.queues, width, room.queues), blocked(view, width, room.reasons)]
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
        *of_the_cell(glance.view),
        *of_objectives(glance.view.burns),
        *of_budgets(beside.budgets or ()),
        *of_proposals(glance.awaiting, glance.stuck, glance.proposals),
        *of_advice(beside.advice or ()),
    ]


def unknown(beside: SlowReadings) -> str:
    """What may be found that was not looked for yet."""
    parts = (("budgets", beside.budgets), ("suggestions", beside.advice))
    return " and ".join(name for name, known in parts if known is None)


def now_lines(
    view: Overview, found: Sequence[OverviewFinding], width: int, most: int, not_known: str = ""
) -> list[Line]:
    """Is it fine? If not, what, and what to press. `not_known`: what was not looked at yet."""
    if not view.pools:
        return [
            Line((("! ", "warn"), ("this cell has no nodes yet", ""))),
            Line((("  muster define cell.yaml", "dim"),)),
            Line((("  or look at a busy one: muster --demo", "dim"),)),
        ]
    if not found and not_known:
        told = f"all nodes up, little waits long; loading {not_known} …"
        return [Line((("● ", "dim"), (cut(told, width - 2), "")))]
    if not found:
        return [Line((("● ", "ok"), (cut("fine: all nodes up, nothing waits long or costs too much", width - 2), "")))]
    return lines_of(found, width, most)


# -- fleet and pools --------------------------------------------------------------------------------------------------


def fleet(view: Overview, width: int, resources: int = 4) -> Section:
    main = "gpu_milli" if view.capacity.get("gpu_milli") else "cpu_milli"
    amounts = _fleet_parts(view, main)
    lines = [Line(tuple(bar(amounts, width)))]
    told = [(part, quantity(main, amount)) for part, amount in amounts if amount]
    lines += _legend_lines(told, width)
    lines += _beside(view, width)
    others = {name: amount for name, amount in view.capacity.items() if name != main}
    lines += fact_bars(others, view.used, width)[:resources]
    nodes, ready = sum(pool.nodes for pool in view.pools), sum(pool.ready for pool in view.pools)
    what = "GPU" if main == "gpu_milli" else "CPU"
    return Section(f"Fleet, {what}", tuple(lines), f"{ready:,}/{nodes:,} nodes ready · {printable(view.policy)}")


def _beside(view: Overview, width: int) -> list[Line]:
    """What cuts across the parts: machines that may be taken back, and room that lies in the wrong pieces."""
    spot = sum(pool.nodes for pool in view.pools if pool.spot)
    told = [f"{spot:,} spot {plural('node', spot)}"] if spot else []
    if view.fragmentation_ppm:
        told.append(f"{permille(view.fragmentation_ppm // 1000)} of the free GPU is fragmented")
    return [Line(((cut(" · ".join(told), width), "dim"),), "topology")] if told else []


def _fleet_parts(view: Overview, main: str) -> list[tuple[BarPart, int]]:
    """What the fleet's capacity is doing. Parts add up to all of it."""
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
    """What is not used, by why not: idle is what could be."""
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
    use = shrink([share for _, share, _ in samples], width - 8)
    queued = shrink([count for _, _, count in samples], width - 8)
    label = "GPU use" if view.capacity.get("gpu_milli") else "CPU use"
    lines = _curve(label, permille(samples[-1][1]), graph(use, height, 1000), "bar")
    lines += _curve("queued", f"{samples[-1][2]:,}", graph(queued, height, max(1, *queued)), "warn")
    return Section("Trend", tuple(lines), f"last {duration(samples[-1][0] - samples[0][0])}")


def _curve(label: str, last: str, rows: Sequence[str], tone: str) -> list[Line]:
    """A curve beside its name and its last value."""
    names = [(label, "dim"), (last, "")]
    return [
        Line(((fit(names[row][0], 8), names[row][1]) if row < 2 else (" " * 8, ""), (text, tone)))
        for row, text in enumerate(rows)
    ]
