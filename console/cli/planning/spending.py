"""The commands about money: `showback`, who was charged what, and `budgets`, what is left."""

from __future__ import annotations

import argparse
import re
from contextlib import closing
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.text.plain_tables import table
from console.text.terminal_text import duration, money, printable, timestamp
from console.views.advice.cost import NOBODY, UNNAMED
from engine.model.errors import SpecError
from engine.model.money import DAY_MS
from engine.model.quantity_parsing import shown
from engine.reads.cost_reports import ShowbackRequest

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.reads.cost_reports import BudgetLine, BudgetReport, Showback

_BUDGETS = ("BUDGET", "OF", "SPENT", "LIMIT", "USED", "PER HOUR", "FORECAST", "WINDOW ENDS", "THEN", "STATE")
_RIGHT = (False, False, True, True, True, True, True, False, False, False)


def showback(arguments: argparse.Namespace) -> None:
    """Cost by group in a window of whole days (UTC), with what nobody used as a row of its own."""
    with closing(connect(arguments)) as client:
        report = client.showback(request_of(arguments, client))
    write_json(report) if arguments.json else write_lines(showback_lines(report))


def request_of(arguments: argparse.Namespace, client: Client) -> ShowbackRequest:
    """Raises SpecError naming the flag."""
    if arguments.since is None and arguments.until is not None:
        raise SpecError("--until", "has no beginning", "Give --since as well")
    if arguments.since is not None:
        since_ms = _day(arguments.since, "--since")
        until_ms = None if arguments.until is None else _day(arguments.until, "--until") + DAY_MS
        return ShowbackRequest(by=arguments.by, since_ms=since_ms, until_ms=until_ms)
    today = client.health().now_ms // DAY_MS
    return ShowbackRequest(by=arguments.by, since_ms=max(today - arguments.days + 1, 0) * DAY_MS)


def _day(text: str, flag: str) -> int:
    """Milliseconds of the day's beginning."""
    try:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            raise ValueError
        at = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    except ValueError:
        raise SpecError(flag, f"{shown(text)} is not a day", "Write for example 2026-03-01") from None
    if at.year < 1970:
        raise SpecError(flag, f"{shown(text)} is before 1970", "Cell time begins there")
    return int(at.timestamp()) * 1000


def showback_lines(report: Showback) -> list[str]:
    rows = []
    for line in report.lines:
        name = NOBODY.get(line.kind) or printable(line.name) or UNNAMED
        rows.append([name, money(line.microusd), _percent(line.permille)])
    rows.append(["all nodes", money(report.total_microusd), ""])
    return [
        f"from {timestamp(report.since_ms)} to {timestamp(report.until_ms)} UTC",
        "",
        *table((printable(report.by).upper(), "COST", "SHARE"), rows, (False, True, True)),
    ]


def budgets(arguments: argparse.Namespace) -> None:
    """What is spent, how fast, and when it will be gone."""
    with closing(connect(arguments)) as client:
        report = client.budgets()
    write_json(report) if arguments.json else write_lines(budget_lines(report))


def budget_lines(report: BudgetReport) -> list[str]:
    if not report.budgets:
        return ["no budget is set; set one with: muster set-budget NAME --queue QUEUE --limit 500 --window 30d"]
    return table(_BUDGETS, [_row(line, report.now_ms) for line in report.budgets], _RIGHT)


def _row(line: BudgetLine, now_ms: int) -> list[str]:
    spec = line.spec
    used = line.spent_microusd * 1000 // spec.limit_microusd if spec.limit_microusd else 1000
    state = line.stage
    if line.stage != "spent" and line.spent_at_ms is not None:
        state += f", spent in {duration(line.spent_at_ms - now_ms)}"
    if line.waiting:
        state += f", {line.waiting:,} waiting"
    return [
        printable(spec.name),
        f"{spec.scope} {printable(spec.of)}",
        money(line.spent_microusd),
        money(spec.limit_microusd),
        _percent(used),
        money(line.rate_microusd_hour),
        money(line.forecast_microusd),
        timestamp(line.window_end_ms),
        spec.action,
        state,
    ]


def _percent(permille: int) -> str:
    return f"{permille / 10:.1f}%"
