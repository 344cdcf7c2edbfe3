"""The command `muster cost`: when work would start, how long it takes and what it costs, by option. Nothing is
submitted."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import msgspec

from console.cli.show import write_json, write_lines
from console.forms.datetimes import moment_ms
from console.processes.attach import connect
from console.text.plain_tables import table
from console.text.terminal_text import duration, money, printable, timestamp, wrap
from console.views.advice.quote import asked_words, estimate_words, option_names, option_notes, start_words, thin_starts
from engine.model.base import HOUR_MS
from engine.model.errors import SpecError
from engine.model.quantity_parsing import cpu_milli, duration_ms, memory_mib, shown
from engine.model.queries import Query
from recommender.quotes.queries import MAX_OFFERS, MAX_RUN_MS, MAX_WITHIN_MS, WITHIN_MS, Offer, QuoteRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from console.client.protocol import Client
    from recommender.quotes.queries import Quote

WIDTH = 80
MINUTE_MS = 60_000
ON_MS = 20_000
"""Of running ahead, once the quick answer is there and somebody looks on."""
DAY_MS = 24 * HOUR_MS
TONIGHT_MS = 22 * HOUR_MS
"""After the cell's midnight (UTC)."""
_COLUMNS = ("OPTION", "", "ESTIMATE, P50 (P10..P90)")


def cost(arguments: argparse.Namespace) -> None:
    if arguments.nodes is None:
        raise SpecError("--nodes", "is not given", "Say how many, such as --nodes 64 --gpus 8 --model H100 --hours 6")
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
            "--within", f"{shown(text)} is not a time up to {MAX_WITHIN_MS // 1000} s", "As 5s; --seeds N has no limit"
        )
    return found


def _run_ms(text: str) -> int:
    try:
        hours = Decimal(text)
    except InvalidOperation:
        hours = Decimal("NaN")
    if not hours.is_finite() or not 0 < hours * HOUR_MS <= MAX_RUN_MS:
        raise SpecError(
            "--hours", f"{shown(text)} is not a number of hours up to {MAX_RUN_MS // HOUR_MS:,}", "As 6 or 0.5"
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
            f"{shown(text)} is in the past: the cell's time is {timestamp(now_ms)} UTC",
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
                raise SpecError(f"--{flag.replace('_', '-')}", "is of a price list", "Give the list with --prices FILE")
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
    """One block for each option: start, run and cost, then what it rests on."""
    lines = [asked_words(found, request), ""]
    rows: list[list[str]] = []
    beneath: list[list[str]] = []
    for option in found.options:
        name, where = option_names(option)
        rows.append([name, "start", start_words(option, found.at_ms)])
        rows.append([where, "runs", estimate_words(option.duration_ms, duration)])
        rows.append(["", "cost", estimate_words(option.cost_microusd, money)])
        beneath.append(_wrapped(option_notes(option)))
    shown_lines = table(_COLUMNS, rows, (False, False, False))
    lines.append(shown_lines[0])
    for n, more in enumerate(beneath):
        lines += [*shown_lines[1 + 3 * n : 4 + 3 * n], *more, ""]
    for title, texts in (("not tried", found.warnings), ("rests on", found.assumptions)):
        if texts:
            lines += [title, *_wrapped(texts)]
    return lines


def _wrapped(texts: Sequence[str]) -> list[str]:
    lines = []
    for text in texts:
        first, *rest = wrap(printable(text), WIDTH - 4)
        lines += [f"  {first}", *(f"    {line}" for line in rest)]
    return lines
