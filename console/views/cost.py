"""Money as sections: spending, budgets and goodput; and the price of work by option.

Amounts are micro-USD. An option of a quote has a start and a cost, each as p10, p50 and p90 or as single runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from console.forms.filters import quoted
from console.text.charts import (
    FILLS,
    framed,
    gutter,
    interval,
    legend,
    ribbon,
    round_top,
    spark,
    stack,
    stack_top,
    time_axis,
)
from console.text.terminal_text import cut, cut_name, duration, fit, fit_name, permille, printable, timestamp, wrap
from console.views.sections import Line, Section, fact, metered, text_line
from console.views.what_if import forecast_facts
from engine.model.overviews import Overview
from engine.model.quantities import MIN_RUNS, counted, usd
from engine.model.reports import GROUPINGS, BudgetLine, BudgetReport, GoodputReport, PoolGoodput, Showback
from engine.model.spec_parts import DAY_MS, MICROUSD
from engine.model.specs import HOUR_MS

if TYPE_CHECKING:
    from recommender.estimates.queries import Quantiles, Quote, QuoteOption, QuoteRequest


UNNAMED = "(none)"
NOBODY = {"idle": "(idle)", "downtime": "(engine down)"}
"""Names of charges that belong to no group."""
GROUPS = 5
"""Groups with a part of their own in the chart; the others share one."""
_TONES = ("bar", "accent", "info", "ok", "warn", "", "dim", "dim")
"""Tones of the parts of a column: groups, others, idle, downtime."""
BUDGET_LINE = "set-budget NAME --queue QUEUE --limit 500 --window 30d"
QUOTE_LINE = "cost nodes=4 gpus=8 hours=6"


class CostPageQuery(NamedTuple):
    """Argument of `:cost` without work to price."""

    by: str = "tenant"
    days: int = 14


class Spending(NamedTuple):
    """Data of the page, except charges of past days."""

    overview: Overview
    budgets: BudgetReport
    goodput: GoodputReport
    window: Showback
    """Charges of all days shown."""
    rates: tuple[tuple[int, int | None], ...]
    """(begin of an hour, mean cost of all nodes by the hour)."""
    prices: Mapping[str, tuple[int | None, ...]]
    """Pool -> price by the hour, of the last day."""


class Day(NamedTuple):
    """Charges of one day, by group and for nobody."""

    groups: Mapping[str, int]
    idle: int
    downtime: int = 0

    @property
    def total(self) -> int:
        return sum(self.groups.values()) + self.idle + self.downtime


def day_of(report: Showback) -> Day:
    nobody = {line.kind: line.microusd for line in report.lines if line.kind != "group"}
    groups = {line.name: line.microusd for line in report.lines if line.kind == "group"}
    return Day(groups, nobody["idle"], nobody.get("downtime", 0))


def dollars(microusd: int) -> str:
    """As an axis has room for it: "$0.50", "$12", "$9.4k", "$1.2M"."""
    whole = microusd / MICROUSD
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if whole >= 10 * size or (whole >= size and sign != "k"):
            return f"${whole / size:,.1f}".removesuffix(".0") + sign
    return f"${whole:,.0f}" if whole >= 10 or whole == int(whole) else f"${whole:,.2f}"


# -- charts -----------------------------------------------------------------------------------------------------------


def chart(detail: Spending, asked: CostPageQuery, days: Mapping[int, Day], width: int, rows: int) -> list[Section]:
    """Spending by day, in parts; by the hour where the cell is too young for that."""
    spent = [day for day, each in days.items() if each.total]
    if len(spent) < 2:
        return [hours_chart(detail, width, rows)]
    nothing = Day({}, 0)
    shown = {day: days.get(day, nothing) for day in range(min(spent), max(spent) + 1)}
    return [days_chart(shown, asked, width, rows)]


def days_chart(days: Mapping[int, Day], asked: CostPageQuery, width: int, rows: int) -> Section:
    """A column a day (UTC): the dearest groups from below, then the others, what was idle, and what was downtime."""
    names = _dearest(days.values())
    columns = [_parts(day, names) for day in days.values()]
    top = round_top(stack_top(columns, width))
    indent = gutter(top, dollars)
    top = round_top(stack_top(columns, max(1, width - indent)))
    drawn = stack(columns, max(1, width - indent), rows, top, _TONES)
    wide = sum(len(text) for text, _ in drawn[0])
    first, last = min(days), max(days)
    axis = time_axis(first * DAY_MS, (last + 1) * DAY_MS, wide, indent)
    parts = [
        *((FILLS[index], printable(name) or UNNAMED, _TONES[index]) for index, name in enumerate(names)),
        *(
            (FILLS[index], name, _TONES[index])
            for index, name in ((GROUPS, "others"), (GROUPS + 1, "idle"), (GROUPS + 2, "engine down"))
            if name == "idle" or any(column[index] for column in columns)
        ),
    ]
    parts_shown = [(f"{fill} {cut_name(name, 24)}", tone) for fill, name, tone in parts]
    lines = [*framed(drawn, top, dollars), *axis, *legend(parts_shown, width)]
    total = sum(day.total for day in days.values())
    note = f"{usd(total)} in {len(days):,} days, today so far"
    return Section(f"Spent by day, by {printable(asked.by)}", tuple(Line(spans) for spans in lines), note)


def _dearest(days: Iterable[Day]) -> list[str]:
    sums: dict[str, int] = {}
    for day in days:
        for name, amount in day.groups.items():
            sums[name] = sums.get(name, 0) + amount
    return sorted(sums, key=lambda name: (-sums[name], name))[:GROUPS]


def _parts(day: Day, names: Sequence[str]) -> list[int]:
    own = [day.groups.get(name, 0) for name in names]
    return [*own, *([0] * (GROUPS - len(own))), sum(day.groups.values()) - sum(own), day.idle, day.downtime]


def hours_chart(detail: Spending, width: int, rows: int) -> Section:
    """Measured cost of all nodes by the hour."""
    first = next((index for index, (_, rate) in enumerate(detail.rates) if rate is not None), None)
    if first is None:
        return Section("Cost per hour", (text_line("no measurements yet", "dim"),))
    if not any(rate for _, rate in detail.rates) and not detail.overview.cost_microusd_hour:
        return Section("Cost per hour", unpriced(width))
    points = detail.rates[first:]
    values = [rate for _, rate in points]
    top = round_top(max(rate or 0 for rate in values))
    indent = gutter(top, dollars)
    drawn = ribbon(values, values, values, max(1, width - indent), rows, top)
    axis = time_axis(points[0][0], points[-1][0] + HOUR_MS, max(1, width - indent), indent)
    lines = [*framed(drawn, top, dollars), *axis]
    return Section("Cost per hour, of all nodes", tuple(Line(spans) for spans in lines), "hourly mean")


def unpriced(width: int) -> tuple[Line, ...]:
    """Lines in place of an empty chart: no node has a price, and where to set one."""
    told = (
        ("no pool has a price: nothing is charged, and budgets stay at zero", ""),
        (":set-price POOL 12.5 sets the price of a node in dollars an hour, from now on", "dim"),
        ("in a cell file: price_usd_hour of the pool: muster cell define", "dim"),
    )
    return tuple(text_line(cut(text, width), tone) for text, tone in told)


# -- sections ---------------------------------------------------------------------------------------------------------


def pages(
    detail: Spending, asked: CostPageQuery, width: int, *, read_only: bool
) -> tuple[list[Section], list[Section]]:
    """Left: now, budgets, what was of use. Right: who was charged, machines, and where to go on."""
    left = [now(detail, width), budgets(detail.budgets, width, read_only=read_only), use(detail.goodput, width)]
    right = [charged(detail.window, width), machines(detail, width), further(asked, width)]
    return left, right


def now(detail: Spending, width: int) -> Section:
    """By the hour, and what of it nobody uses."""
    cost, idle = detail.overview.cost_microusd_hour, detail.overview.idle_microusd_hour
    if not cost:
        return Section("Now", (text_line("no node has a price: :set-price POOL 12.5", "dim"),))
    share = idle * 1000 // cost
    bar = max(4, width - 40)
    lines = [
        fact("per hour", f"{usd(cost)}, {usd(cost * 24)} a day at this rate"),
        Line(
            (
                (fit("idle", 11), "dim"),
                (f"{usd(idle)} an hour ", ""),
                *metered(share, bar, "bar"),
                (f" {permille(share):>4}", ""),
            )
        ),
    ]
    return Section("Now", tuple(lines), "pool prices")


def budgets(report: BudgetReport, width: int, *, read_only: bool) -> Section:
    """Each against its limit: spent, how fast, and when it is gone."""
    if not report.budgets:
        lines = [text_line("none set", "dim")]
        if not read_only:
            lines.append(Line(((cut(f":{BUDGET_LINE}", width), "link"),), f"compose:{BUDGET_LINE}"))
        return Section("Budgets", tuple(lines))
    found = [line for budget in report.budgets for line in _budget(budget, report.now_ms, width)]
    return Section("Budgets", tuple(found), f"{len(report.budgets):,}, enter lists their workloads")


def _budget(budget: BudgetLine, now_ms: int, width: int) -> list[Line]:
    spec = budget.spec
    used = budget.spent_microusd * 1000 // spec.limit_microusd if spec.limit_microusd else 1000
    sign, tone = {"spent": ("✗", "bad"), "warned": ("!", "warn")}.get(budget.stage, ("●", "ok"))
    link = f"workloads {spec.scope}:{quoted(printable(spec.of))}"
    amounts = f"{usd(budget.spent_microusd)} of {usd(spec.limit_microusd)}"
    bar = max(4, width - len(amounts) - 9)
    name = cut(f"{printable(spec.name)} · {spec.scope} {printable(spec.of)}", width - 2)
    words = wrap(_gone(budget, now_ms), width - 2)
    drawn = metered(min(used, 1000), bar, "bar" if tone == "ok" else tone)
    return [
        Line(((f"{sign} ", tone), (name, "link")), link),
        Line((("  ", ""), *drawn, (f" {permille(used):>4} ", ""), (amounts, "dim"))),
        *(Line((("  " + line, tone if budget.stage == "spent" or budget.spent_at_ms is not None else "dim"),))
          for line in words),
    ]  # fmt: skip


def _gone(budget: BudgetLine, now_ms: int) -> str:
    """Spending rate of a budget, the time it lasts, and the effect of its end."""
    ends = f"window ends {timestamp(budget.window_end_ms)[5:16]} UTC"
    rate = f"{usd(budget.rate_microusd_hour)}/h"
    waiting = f", {counted(budget.waiting, 'workload')} waiting" if budget.waiting else ""
    then = {"warn": "warning only", "hold": "new work is held", "approve": "new work needs approval"}
    if budget.stage == "spent":
        return f"spent; {then[budget.spec.action]}{waiting}; {ends}"
    if budget.spent_at_ms is None:
        return f"at {rate}: {usd(budget.forecast_microusd)} by then; {ends}"
    gone = f"spent in {duration(budget.spent_at_ms - now_ms)} ({timestamp(budget.spent_at_ms)[5:16]} UTC)"
    return f"at {rate}: {gone}, then {then[budget.spec.action]}{waiting}; {ends}"


def use(report: GoodputReport, width: int) -> Section:
    """Use of all money paid since the cell began: useful, wasted, idle, down."""
    cost = report.cost_microusd
    if not cost:
        return Section("Goodput", (text_line("no cost yet", "dim"),))
    idle = cost - report.charged_microusd - report.downtime_microusd
    each = "" if report.per_finished_microusd is None else f", {usd(report.per_finished_microusd)} each"
    bar = max(4, width - 36)
    parts = (
        ("useful", report.charged_microusd - report.wasted_microusd, "bar"),
        ("wasted", report.wasted_microusd, "warn"),
        ("idle", idle, "dim"),
        *([("down", report.downtime_microusd, "dim")] if report.downtime_microusd else []),
    )
    lines = [
        Line(
            (
                (fit(name, 8), "dim"),
                *metered(amount * 1000 // cost, bar, tone),
                (f" {permille(amount * 1000 // cost):>4} ", ""),
                (usd(amount), "dim"),
            )
        )
        for name, amount, tone in parts
    ]
    told = f"{counted(report.finished, 'workload')} finished{each}, idle nodes included"
    lines += [text_line(line, "dim") for line in wrap(told, width)]
    return Section("Goodput since the cell began", tuple(lines), f"{usd(cost)} total")


def charged(report: Showback, width: int) -> Section:
    """Charges by group in the window, each with a link to its work."""
    lines = []
    name_width = min(24, max(10, width - 30))
    for line in report.lines:
        name = NOBODY.get(line.kind) or printable(line.name) or UNNAMED
        amount = usd(line.microusd)
        bar = max(0, width - name_width - 7 - 14)
        link = "" if line.kind in NOBODY else group_link(report.by, line.name)
        spans = (
            (fit_name(name, name_width), "link" if link else "dim"),
            (f" {amount:>13}", ""),
            (f" {permille(line.permille):>4} ", "dim"),
            *metered(line.permille, bar, "dim" if line.kind in NOBODY else "bar"),
        )
        lines.append(Line(spans, link))
    since = f"{timestamp(report.since_ms)[:10]} to now" if lines else ""
    if len(lines) == 1:
        lines.insert(0, text_line("no work was charged in this window", "dim"))
    return Section(f"Charged, by {printable(report.by)}", tuple(lines), since)


def group_link(by: str, name: str) -> str:
    """The `:` line that shows the work, or the nodes, of a group; empty where no filter tells it."""
    if not name or by not in GROUPINGS:
        return ""
    return f"nodes pool:{quoted(printable(name))}" if by == "pool" else f"workloads {by}:{quoted(printable(name))}"


def machines(detail: Spending, width: int) -> Section:
    """Price of a node of each pool, its trend, and the rate of spot interruptions."""
    by_pool = {pool.pool: pool for pool in detail.goodput.pools}
    lines = []
    name_width = min(16, max(8, width - 40))
    for pool in detail.overview.pools:
        if not pool.price_microusd_hour:
            continue
        used = by_pool.get(pool.name)
        trend = spark(detail.prices.get(pool.name, ()), max(0, min(12, width - name_width - 32)))
        spans = (
            (fit_name(printable(pool.name), name_width), "link"),
            (f" {usd(pool.price_microusd_hour):>9}/h", ""),
            (f" {pool.nodes:>6,} nodes ", "dim"),
            (fit(trend, min(12, len(trend))) + " " if trend else "", "info"),
            (_spot_words(used), "warn" if used is not None and used.spot else "dim"),
        )
        lines.append(Line(spans, f"nodes pool:{quoted(printable(pool.name))}"))
    if not lines:
        lines = [text_line("no pool has a price", "dim")]
    return Section("Machines", tuple(lines), "price, last 24 h · spot: interruptions")


def _spot_words(pool: PoolGoodput | None) -> str:
    if pool is None or not pool.spot:
        return "on demand"
    return f"spot {pool.interruptions_ppm_hour / 10_000:.2f}%/h"


def further(asked: CostPageQuery, width: int) -> Section:
    """Other groupings, and what is priced from here."""
    lines = [
        Line(((cut(f"price work: :{QUOTE_LINE}", width), "link"),), f"compose:{QUOTE_LINE}"),
        *(
            Line(((f"by {by}", "link"), (", as :cost by=" + by, "dim")), f"by:{by}")
            for by in GROUPINGS
            if by != asked.by
        ),
    ]
    return Section("Next", tuple(lines), ":cost days=30, :cost by=tag:KEY")


KEY = "├ p10  ● p50  ┤ p90  ▸ beyond the run  ○ single estimate  [ ] min, max of few runs"


class DrawnEstimate(NamedTuple):
    """An estimate as it is drawn, and in words. None where it is not known."""

    low: int | None
    mid: int | None
    high: int | None
    measured: bool
    """Low, mid and high are quantiles; else the least and the most of few runs."""
    words: str


_QUOTE_TONES = {"now": "ok", "later": "info", "pool": "", "list": "dim"}


def compared(found: Quote, request: QuoteRequest, width: int) -> list[Section]:
    """Start and cost of every option, on one scale each."""
    options = found.options
    if not options:
        return [Section("Options", tuple(text_line(line, "warn") for text in found.warnings
                                         for line in wrap(printable(text), width)))]  # fmt: skip
    starts = [_start(each, found.at_ms) for each in options]
    costs = [_drawn(each.cost_microusd, estimate_words(each.cost_microusd, usd)) for each in options]
    names = [" · ".join(part for part in option_names(each) if part) for each in options]
    rows = list(zip(options, names, strict=True))
    return [
        Section("When it starts", tuple(_rows(rows, starts, width)), asked_words(found, request)),
        Section("What it costs", tuple(_rows(rows, costs, width)), KEY),
    ]


def _start(option: QuoteOption, now_ms: int) -> DrawnEstimate:
    """From now."""
    forecast = option.forecast
    if forecast is not None:
        low, mid, high = (
            at_ms and max(0, at_ms - now_ms) for at_ms in (forecast.p10_ms, forecast.p50_ms, forecast.p90_ms)
        )
        return DrawnEstimate(low, mid, high, True, start_words(option, now_ms))
    found = _drawn(option.start_ms, start_words(option, now_ms), now_ms)
    if found.low is None and option.seeds:
        # Not before that: as far as was looked.
        return found._replace(low=max(option.looked_ms, option.asked_start_ms - now_ms))
    return found


def _drawn(values: Quantiles, words: str, zero: int = 0) -> DrawnEstimate:
    measured = values.runs >= MIN_RUNS
    marks = (values.p10, values.p50, values.p90) if measured else (values.least, None, values.most)
    low, mid, high = (None if each is None else max(0, each - zero) for each in marks)
    return DrawnEstimate(low, mid, high, measured, words)


def _rows(
    rows: Sequence[tuple[QuoteOption, str]],
    values: Sequence[DrawnEstimate],
    width: int,
) -> list[Line]:
    """Options on one scale, from 0 to the largest known value."""
    top = max((value for each in values for value in each[:3] if value is not None), default=1)
    words = max(cell_len(each.words) for each in values)
    name = min(max(cell_len(title) for _, title in rows), max(10, width // 3))
    bar = width - name - words - 4
    lines = []
    for (option, title), value in zip(rows, values, strict=True):
        link = f"nodes pool:{quoted(printable(option.pool))}" if option.pool else ""
        ends = "├┤" if value.measured else "○○" if value.low == value.high else "[]"
        drawn = interval(value.low, value.mid, value.high, bar, top, ends) if bar >= 8 else ""
        spans = (
            (fit(title, name) + "  ", "link" if link else ""),
            (drawn + "  " if drawn else "", _QUOTE_TONES[option.kind]),
            (value.words, ""),
        )
        lines.append(Line(spans, link))
    return lines


def quote_pages(found: Quote, further: str, width: int) -> tuple[list[Section], list[Section]]:
    """Left: each option in words. Right: what was not reached, and what it rests on. `further`: how the search for
    starts that were not reached stands; empty: it needs none."""
    left = [_option(option, width) for option in found.options]
    right = []
    if further or found.warnings:
        lines = [
            text_line(line, "warn") for text in (further, *found.warnings) for line in wrap(printable(text), width)
        ]
        right.append(Section("Limits of this estimate", tuple(lines)))
    right.append(Section("Assumptions", tuple(_listed(found.assumptions, width)), f"{found.took_ms / 1000:.1f} s"))
    return left, right


def _option(option: QuoteOption, width: int) -> Section:
    name, where = option_names(option)
    runs = f"runs {estimate_words(option.duration_ms, duration)}"
    return Section(f"{name} · {where}", tuple(_listed([runs, *option_notes(option)], width)))


def _listed(texts: Sequence[str], width: int) -> list[Line]:
    lines = []
    for text in texts:
        first, *rest = wrap(printable(text), width - 2)
        lines += [Line((("· ", "faint"), (first, ""))), *(Line((("  " + line, ""),)) for line in rest)]
    return lines


def asking(words: str, said: str, width: int) -> list[Section]:
    """While there is no answer, or when it is refused."""
    lines = tuple(text_line(line, "dim") for line in wrap(printable(said), width))
    return [Section("What it would cost", lines, printable(words))]


# -- in words ----------------------------------------------------------------------------------------------------------


def thin_starts(found: Quote) -> bool:
    """True where the start of an option is not known, or from too few runs for quantiles."""
    return any(option.seeds and option.start_ms.p50 is None and option.forecast is None for option in found.options)


def asked_words(found: Quote, request: QuoteRequest) -> str:
    """Work that is priced, and the time of the question."""
    devices = "" if request.gpus == 0 else f"{'all' if request.gpus is None else request.gpus} "
    of = f" with {devices}{printable(request.model) or 'GPU'}" if request.model or request.gpus else ""
    run = found.run_time
    lasts = duration(run.p50_ms) if run.told else f"about {duration(run.p50_ms)}"
    nodes = counted(request.nodes, "node")
    return f"{nodes}{of} for {lasts}, asked at {timestamp(found.at_ms)} UTC (v{found.version:,})"


def option_names(option: QuoteOption) -> tuple[str, str]:
    """Name of an option, and its place."""
    when = {"now": "now", "later": f"at {timestamp(option.asked_start_ms)[5:16]}"}.get(option.label, option.label)
    kind = f"{when}, spot" if option.spot else when
    place = printable(option.pool or option.machine_type)
    if option.kind == "pool":
        place += f" ({printable(option.gpu_model)})"
    return kind, f"{place} {printable(option.region)}".rstrip()


def start_words(option: QuoteOption, now_ms: int) -> str:
    """Start of an option from now; without a start, the time that was looked ahead."""

    def text(at_ms: int) -> str:
        return "now" if at_ms <= now_ms else f"in {duration(at_ms - now_ms)}"

    if option.forecast is not None:
        return dict(forecast_facts(option.forecast, now_ms))["starts"]
    if not option.seeds:
        assumed = "if the provider has capacity" if option.basis == "list price" else option.basis
        return f"{estimate_words(option.start_ms, text)}, {assumed}"
    asked_in_ms = option.asked_start_ms - now_ms
    if option.looked_ms <= asked_in_ms:
        return f"not known: the run covers {duration(option.looked_ms)}, the start is {text(option.asked_start_ms)}"
    looked = duration(option.looked_ms)
    return estimate_words(option.start_ms, text, f"over {looked}", f"not within {looked}")


def estimate_words(
    values: Quantiles, text: Callable[[int], str], beyond: str = "not known", never: str = "not known"
) -> str:
    """p50 with p10 and p90; what single runs say where they are too few for that. `beyond`: in place of a value that is
    not known; `never`: where none is."""

    def words(*marks: int | None) -> str:
        """From one to the other."""
        return "..".join(dict.fromkeys(beyond if each is None else text(each) for each in marks))

    if not values.runs:
        return words(values.least)
    of = "one run" if values.runs == 1 else f"{values.runs:,} runs"
    if values.least is None and values.p10 is None:
        return f"{never} ({of})"
    if values.runs < MIN_RUNS:
        return f"{of}: {words(values.least, values.most)}"
    spread = words(values.p10, values.p90)
    middle = words(values.p50)
    return f"{middle} ({of})" if spread == middle else f"{middle} ({spread}; {of})"


def option_notes(option: QuoteOption) -> list[str]:
    """Hourly cost, odds of interruption, reason for waiting, and other notes of an option."""
    chance = ""
    if 0 < option.started < option.seeds:
        chance = f"starts within {duration(option.looked_ms)} in {option.started:,} of {option.seeds:,} runs"
    odds = "not known" if option.interruption_permille is None else f"{option.interruption_permille / 10:g}%"
    texts = [
        f"{usd(option.rate_microusd_hour)} an hour while it runs; {_runs(option)}",
        chance,
        f"not now: {option.reason}" if option.reason else "",
        f"chance of interruption in {duration(option.interruption_over_ms)}: {odds} ({option.interruption_basis})",
        *option.notes,
    ]
    return [text for text in texts if text]


def _runs(option: QuoteOption) -> str:
    if not option.seeds:
        return option.basis
    basis = option.basis if option.started else f"run {duration(option.looked_ms)} ahead"
    return f"{basis} in {counted(option.seeds, 'run')}"
