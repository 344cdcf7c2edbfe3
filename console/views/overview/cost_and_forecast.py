"""What it costs, and what is coming: sections of the overview. No Textual in here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.text.charts import MARK, column_at, framed, gutter, ribbon, round_top, time_axis
from console.text.terminal_text import cut, duration, fit_name, milli, money, permille, printable, wrap
from console.views.lists import meter
from console.views.sections import Line, Section, plural, text_line
from engine.model.queries import Overview
from engine.model.specs import HOUR_MS

if TYPE_CHECKING:
    from console.views.overview.page import SlowReadings
    from engine.reads.cost_reports import BudgetLine
    from recommender.forecasts.queries import Forecast

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
    spans = ((name + " ", ""), (meter(min(share, 1000), size), tone), (f" {permille(share):>5} ", ""), (rate, tone))
    return Line(spans, "cost")


def short_money(microusd: int) -> str:
    """Dollars as briefly as one reads them: "$9,397", "$5.20", "$1.2M"."""
    if microusd >= 1_000_000 * 1_000_000:
        return f"${microusd / 1e12:,.1f}M"
    return money(microusd) if microusd < 100_000_000 else f"${round(microusd / 1e6):,}"


def ahead(view: Overview, beside: SlowReadings, width: int, height: int) -> Section:
    """Demand that is foretold against what there is. A mark shows when a node ordered now would take work."""
    forecast = beside.forecast
    if forecast is None:
        told = wrap(beside.why_not or "the forecast is on its way …", width)[:2]
        return Section("Ahead", tuple(text_line(line, "dim", "forecast") for line in told))
    if not forecast.hours or (forecast.basis == TOO_SHORT and not forecast.known_hours):
        return Section("Ahead", (text_line("too little was measured yet to tell what comes", "dim", "forecast"),))
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
    """Whether what is ready will do, in a line."""
    if forecast.basis == TOO_SHORT:
        known = f"{forecast.known_hours} {plural('hour', forecast.known_hours)}"
        return Line(((cut(f"cannot tell yet: drawn is the range of {known}", width), "dim"),), "forecast")
    over = next((hour for hour in forecast.hours if hour.p50 > ready), None)
    perhaps = next((hour for hour in forecast.hours if hour.p90 > ready), None)
    first = over or perhaps
    if first is None:
        return Line(
            (("● ", "ok"), (cut(f"what is ready will do for {len(forecast.hours)} h", width - 2), "")), "forecast"
        )
    in_ms = max(0, first.at_ms - forecast.now_ms)
    when = "now" if not in_ms else f"in {duration(in_ms)}"
    sure = "" if over else "may be "
    short = milli(round((over.p50 if over else first.p90) - ready) // 1000 * 1000)
    unit = "GPU" if forecast.metric == "demand_gpu" else "CPU"
    order = "" if not boot_ms else f", order {'now' if in_ms <= boot_ms else f'within {duration(in_ms - boot_ms)}'}"
    return Line((("▲ ", "warn"), (cut(f"{sure}{short} {unit} short {when}{order}", width - 2), "")), "forecast")


def _key(boot_ms: int) -> str:
    return f"═ ready  {MARK} ordered now, +{duration(boot_ms)}" if boot_ms else "═ ready  ░ p10-p90"


def _capacity(view: Overview, name: str) -> int:
    """Of the nodes that take work, those that boot among them."""
    return sum(pool.capacity.get(name, 0) * (pool.ready + pool.booting) // max(1, pool.nodes) for pool in view.pools)
