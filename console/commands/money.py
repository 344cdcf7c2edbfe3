"""Commands about money: `muster cost`, `showback`, `budgets`, `spot`.

`cost` prices work by option and submits nothing. `showback` lists charges, `budgets` remaining money, `spot` the
goodput of finished work and the behaviour of machines.
"""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import msgspec

from console.client.attach import connect
from console.commands.show import write_json, write_lines
from console.forms.fields import moment_ms
from console.text.plain_tables import facts, table
from console.text.terminal_text import duration, printable, timestamp
from console.views.cost import (
    NOBODY,
    UNNAMED,
    compared,
    quote_pages,
    thin_starts,
)
from console.views.sections import section_lines
from engine.model.errors import SpecError
from engine.model.list_queries import Query
from engine.model.quantities import cpu_milli, duration_ms, memory_mib, shown, usd
from engine.model.reports import GoodputReport, ShowbackRequest
from engine.model.spec_parts import DAY_MS, HOUR_MS
from recommender.estimates.queries import MAX_OFFERS, MAX_RUN_MS, MAX_WITHIN_MS, WITHIN_MS, Offer, QuoteRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from console.client.protocol import Client
    from engine.model.reports import BudgetLine, BudgetReport, Showback
    from recommender.estimates.queries import Quote


SHELL_WIDTH = 78
"""Cells of a quote, without its indent."""
MINUTE_MS = 60_000
ON_MS = 20_000
"""Time of running ahead after the quick answer, while somebody looks on."""
TONIGHT_MS = 22 * HOUR_MS
"""After the cell's midnight (UTC)."""


def cost(arguments: argparse.Namespace) -> None:
    if arguments.nodes is None:
        raise SpecError("", "missing --nodes", "Write it like: muster cost --nodes 64 --gpus 8 --model H100 --hours 6")
    with closing(connect(arguments)) as client:
        request = request_of(arguments, client)
        found = client.quote(request)
        if arguments.json:
            write_json(found)
            return
        write_lines(quote_lines(found, request))
        if arguments.seeds is None and arguments.within is None and thin_starts(found) and sys.stdout.isatty():
            print(f"\nstarts not reached, or in few runs: running ahead for up to {ON_MS // 1000} s, Ctrl-C ends it",
                  file=sys.stderr)  # fmt: skip
            further = msgspec.structs.replace(request, within_ms=ON_MS)
            write_lines(["", *quote_lines(client.quote(further), further)])


# -- what is asked ----------------------------------------------------------------------------------------------------


def request_of(arguments: argparse.Namespace, client: Client) -> QuoteRequest:
    """Raises SpecError naming the flag."""
    now_ms = client.health().now_ms
    start_ms = _start_ms(arguments.start, now_ms)
    model = arguments.model or ""
    return QuoteRequest(
        nodes=arguments.nodes,
        gpus=arguments.gpus,
        model=model,
        cpu_milli=_read("--cpus", arguments.cpus, cpu_milli),
        memory_mib=_read("--memory", arguments.memory, memory_mib),
        run_ms=0 if arguments.hours is None else _run_ms(arguments.hours),
        name=arguments.name or "",
        queue=arguments.queue or "",
        tenant=arguments.tenant or "",
        priority_class=arguments.priority or "",
        checkpoint_interval_ms=_read("--checkpoint", arguments.checkpoint, duration_ms) or 0,
        start_ms=start_ms,
        other_start_ms=_tonight_ms(now_ms) if start_ms is None else None,
        spot=arguments.spot,
        offers=_offers(arguments, client, model),
        seeds=arguments.seeds or 0,
        seed=arguments.seed,
        within_ms=_within_ms(arguments.within),
        arrivals=arguments.arrivals,
    )


def _read(flag: str, text: str | None, read: Callable[[str], int]) -> int | None:
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise SpecError(flag, str(error)) from None


def _within_ms(text: str | None) -> int:
    if text is None:
        return WITHIN_MS
    found = _read("--within", text, duration_ms) or 0
    if not 1 <= found <= MAX_WITHIN_MS:
        raise SpecError(
            "--within",
            f"{shown(text)} is not a time up to {MAX_WITHIN_MS // 1000} s",
            "Write it like 5s; --seeds N has no time limit",
        )
    return found


def _run_ms(text: str) -> int:
    try:
        hours = Decimal(text)
    except InvalidOperation:
        hours = Decimal("NaN")
    if not hours.is_finite() or not 0 < hours * HOUR_MS <= MAX_RUN_MS:
        raise SpecError(
            "--hours",
            f"{shown(text)} is not a number of hours up to {MAX_RUN_MS // HOUR_MS:,}",
            "Write it like 6 or 0.5",
        )
    return max(1, round(hours * HOUR_MS))


def _start_ms(text: str, now_ms: int) -> int | None:
    """None is now. A time has to lie ahead, in the cell's time."""
    if text.strip().lower() == "now":
        return None
    if text.strip().lower() == "tonight":
        return _tonight_ms(now_ms)
    try:
        found = moment_ms(text.strip(), lambda: now_ms)
    except ValueError:
        raise SpecError(
            "--start", f"{shown(text)} is not a time", 'Write now, tonight, +6h or "2026-11-22 02:00" (UTC)'
        ) from None
    if found < now_ms - MINUTE_MS:
        raise SpecError(
            "--start",
            f"{shown(text)} is in the past: cell time is {timestamp(now_ms)} UTC",
            "Write now, tonight, +6h or a later time",
        )
    return found


def _tonight_ms(now_ms: int) -> int:
    """The next 22:00 UTC."""
    today_ms = now_ms // DAY_MS * DAY_MS + TONIGHT_MS
    return today_ms if today_ms > now_ms else today_ms + DAY_MS


def _offers(arguments: argparse.Namespace, client: Client, model: str) -> tuple[Offer, ...]:
    """List prices of the machine types that are named, else of those that the cell has such GPUs on. Raises SpecError
    naming what the list does not have."""
    if arguments.prices is None:
        for flag in ("machine_type", "region"):
            if getattr(arguments, flag):
                raise SpecError(f"--{flag.replace('_', '-')}", "needs a price list", "Give the list with --prices FILE")
        return ()
    from engine.model.price_catalogue import read_catalogue

    catalogue = read_catalogue(arguments.prices)
    types = list(dict.fromkeys(arguments.machine_type or _types_of(client, model, arguments.gpus)))
    if not types:
        raise SpecError(
            "--machine-type", f"is not given, and the cell has no pool of {model or 'such nodes'} with one",
            "Name machine types of the list, such as --machine-type p5.48xlarge",
        )  # fmt: skip
    offers = []
    for machine_type in types:
        for region, offer in catalogue.offers_of(machine_type, arguments.region or "", "--prices"):
            prices = ((False, offer.on_demand), (True, offer.spot))
            offers += [
                Offer(
                    machine_type=machine_type,
                    region=region,
                    spot=spot,
                    price_microusd_hour=price,
                    source=f"{catalogue.name}, line {offer.line}",
                )
                for spot, price in prices
                if price and (spot or not arguments.spot)
            ]
    if not offers:
        kind = "spot " if arguments.spot else ""
        raise SpecError("--prices", f"{catalogue.name} has no {kind}price of {', '.join(types)}", "Name another type")
    if len(offers) > MAX_OFFERS:
        raise SpecError("--prices", f"{len(offers):,} prices", "Name a --region or a --machine-type")
    return tuple(sorted(offers, key=lambda offer: (offer.price_microusd_hour, offer.machine_type, offer.region)))


def _types_of(client: Client, model: str, gpus: int | None) -> list[str]:
    models = {pool.name: pool.gpu_model for pool in client.overview().pools}
    page = client.query(Query(kind="pools", columns=("name", "machine_type"), limit=1000))
    return [
        machine_type
        for name, machine_type in page.rows
        if machine_type
        and (models.get(name, "").lower() == model.lower() if model else bool(models.get(name)) == bool(gpus))
    ]


# -- what is shown ----------------------------------------------------------------------------------------------------


def quote_lines(found: Quote, request: QuoteRequest) -> list[str]:
    """The options as on their page: start and cost side by side, then each in words and what it rests on."""
    left, right = quote_pages(found, "", SHELL_WIDTH)
    return section_lines([*compared(found, request, SHELL_WIDTH), *left, *right])


_BUDGETS = ("BUDGET", "OF", "SPENT", "LIMIT", "USED", "PER HOUR", "FORECAST", "WINDOW ENDS", "THEN", "STATE")
_RIGHT = (False, False, True, True, True, True, True, False, False, False)


def showback(arguments: argparse.Namespace) -> None:
    """Cost by group in a window of whole days (UTC), with what nobody used as a row of its own."""
    with closing(connect(arguments)) as client:
        report = client.showback(spending_query(arguments, client))
    write_json(report) if arguments.json else write_lines(showback_lines(report))


def spending_query(arguments: argparse.Namespace, client: Client) -> ShowbackRequest:
    """Raises SpecError naming the flag."""
    if arguments.since is None and arguments.until is not None:
        raise SpecError("--until", "has no start", "Give --since as well")
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
        raise SpecError(flag, f"{shown(text)} is not a day", "Write it like 2026-03-01") from None
    if at.year < 1970:
        raise SpecError(flag, f"{shown(text)} is before 1970", "Cell time begins there")
    return int(at.timestamp()) * 1000


def showback_lines(report: Showback) -> list[str]:
    rows = []
    for line in report.lines:
        name = NOBODY.get(line.kind) or printable(line.name) or UNNAMED
        rows.append([name, usd(line.microusd), _percent(line.permille)])
    rows.append(["all nodes", usd(report.total_microusd), ""])
    return [
        f"from {timestamp(report.since_ms)} to {timestamp(report.until_ms)} UTC",
        "",
        *table((printable(report.by).upper(), "COST", "SHARE"), rows, (False, True, True)),
    ]


def budgets(arguments: argparse.Namespace) -> None:
    """Print spending, its rate, and the end of each budget."""
    with closing(connect(arguments)) as client:
        report = client.budgets()
    write_json(report) if arguments.json else write_lines(budget_lines(report))


def budget_lines(report: BudgetReport) -> list[str]:
    if not report.budgets:
        return ["no budget is set; set one with: muster budget set NAME --queue QUEUE --limit 500 --window 30d"]
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
        usd(line.spent_microusd),
        usd(spec.limit_microusd),
        _percent(used),
        usd(line.rate_microusd_hour),
        usd(line.forecast_microusd),
        timestamp(line.window_end_ms),
        spec.action,
        state,
    ]


def _percent(permille: int) -> str:
    return f"{permille / 10:.1f}%"


UNNAMED_WORK = "(none)"


def spot(arguments: argparse.Namespace) -> None:
    """Cost per finished workload and goodput, for the cell, by pool and by tenant."""
    with closing(connect(arguments)) as client:
        report = client.goodput()
    write_json(report) if arguments.json else write_lines(lines(report))


def lines(report: GoodputReport) -> list[str]:
    pairs = [
        ("goodput", f"{report.goodput_permille / 10:.1f}% of {usd(report.cost_microusd)} spent on all nodes"),
        ("wasted", f"{usd(report.wasted_microusd)} charged for work that was lost, failed or cancelled"),
        ("idle", usd(report.cost_microusd - report.charged_microusd - report.downtime_microusd)),
        *(
            [("downtime", f"{usd(report.downtime_microusd)} while no engine was running")]
            if report.downtime_microusd
            else []
        ),
        ("finished", f"{report.finished:,} workloads, {_each(report.per_finished_microusd)} each, idle nodes included"),
        ("turned", f"{report.turned:,} live workloads wait for on-demand nodes: no slack left"),
    ]
    pools = [
        [printable(pool.pool), "spot" if pool.spot else "on-demand", f"{pool.nodes:,}", f"{pool.ending:,}",
         f"{pool.taken:,}", f"{pool.interruptions_ppm_hour / 10_000:.2f}%" if pool.spot else "",
         usd(pool.cost_microusd), usd(pool.used_microusd)]
        for pool in report.pools
    ]  # fmt: skip
    tenants = [
        [printable(line.tenant) or UNNAMED_WORK, f"{line.finished:,}", usd(line.charged_microusd),
         usd(line.wasted_microusd), _each(line.per_finished_microusd)]
        for line in report.tenants
    ]  # fmt: skip
    right = (False, False, *(True,) * 6)
    return [
        *facts(pairs),
        "",
        *table(("POOL", "CAPACITY", "NODES", "ENDING", "TAKEN", "PER HOUR", "COST", "USED"), pools, right),
        "",
        *table(("TENANT", "FINISHED", "CHARGED", "WASTED", "EACH"), tenants, (False, *(True,) * 4)),
    ]


def _each(microusd: int | None) -> str:
    return "-" if microusd is None else usd(microusd)
