"""What `muster bench predictive-day` prints."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import msgspec

from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from console.text.terminal_text import printable
from engine.model.errors import SpecError
from engine.scenarios.predictive_day import BOOTS_MS, ON_TIME_MS, PEAK_NODES, SizingResult, play, sizings
from engine.traces.demand_series import (
    BEST_KNOWN,
    COMPARED,
    LEADS,
    QUANTILES,
    REACTIVE,
    Load,
    SeriesScore,
    chosen_quantile,
    forecast_rule,
    generated,
    geometric_means,
    read,
    score,
)

USUALLY_PLAYED = ("itp2021_cluster04_gpus_in_use", "generated_cpu-96c-spot")
NAME_WIDTH = 32
Means = dict[str, float | None]


def run(arguments: argparse.Namespace) -> None:
    """Raises SpecError for a folder without series, or a name that none of them has."""
    if arguments.data is None:
        print("no --data: generating demand of an AI cell", file=sys.stderr)
    loads = generated(arguments.seed) if arguments.data is None else read(arguments.data)
    played = _to_play(loads, arguments.series)
    print(f"foretelling {len(loads)} series, then playing {printable(played.name)}", file=sys.stderr)
    scores = [score(load, lead) for lead in LEADS for load in loads]
    permille = chosen_quantile(scores)
    runs = [play(played, sizing, boot_ms, arguments.seed) for boot_ms in BOOTS_MS for sizing in sizings(permille)]
    if arguments.json:
        write_json(_report(arguments, loads, scores, permille, played, runs))
    else:
        write_lines(_lines(arguments, scores, permille, played, runs))


def _to_play(loads: list[Load], name: str) -> Load:
    by_name = {load.name: load for load in loads}
    if name and name not in by_name:
        raise SpecError("--series", f"there is no '{name[:64]}'", f"Series: {', '.join(by_name)}")
    usual = next((known for known in USUALLY_PLAYED if known in by_name), loads[0].name)
    return by_name[name or usual]


def _groups(scores: list[SeriesScore]) -> dict[str, list[SeriesScore]]:
    """What geometric means are of."""
    compared = [each for each in scores if each.series in COMPARED]
    return {"all": scores} | ({"compared": compared} if compared else {})


def _report(
    arguments: argparse.Namespace, loads: list[Load], scores: list[SeriesScore], permille: int, played: Load,
    runs: list[SizingResult],
) -> dict[str, object]:  # fmt: skip
    return {
        "scenario": "predictive-day",
        "seed": arguments.seed,
        "data": "generated" if arguments.data is None else "given",
        "series": [load.name for load in loads],
        "scores": msgspec.to_builtins(scores),
        "geometric_means": {
            name: {str(lead): _means(group, lead) for lead in LEADS} for name, group in _groups(scores).items()
        },
        "best_known": {str(lead): mean for lead, mean in BEST_KNOWN.items()},
        "chosen_permille": permille,
        "played": {
            "series": played.name,
            "hours": runs[0].hours,
            "peak_nodes": PEAK_NODES,
            "on_time_ms": ON_TIME_MS,
            "sizings": msgspec.to_builtins(runs),
        },
        "machine": {"python": platform.python_version(), "cores": os.cpu_count()},
    }


def _means(scores: list[SeriesScore], lead: int) -> dict[str, Means]:
    mine = [each for each in scores if each.lead_h == lead]
    return {
        "test": geometric_means(mine, lambda each: each.over_percent),
        "before": geometric_means(mine, lambda each: each.train_over_percent),
    }


def _lines(
    arguments: argparse.Namespace, scores: list[SeriesScore], permille: int, played: Load, runs: list[SizingResult]
) -> list[str]:
    pairs = [
        ("series", "generated" if arguments.data is None else f"{len(scores) // len(LEADS)} given"),
        ("quantile", f"{permille / 1000:g}, which provides least on the parts before the tests"),
        ("machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"),
    ]
    lines = [*facts(pairs), "", "Unit-hours above demand, % of those demanded, when 1 % is unmet"]
    for lead in LEADS:
        lines += ["", f"decided {lead} h before", *_table([s for s in scores if s.lead_h == lead], permille)]
    for name, group in _groups(scores).items():
        what = "over all series on which every rule can" if name == "all" else f"over the {len(COMPARED)} compared"
        lines += ["", f"geometric means {what}", *_means_table(group, compared=name == "compared")]
    return lines + _played_lines(played, runs)


def _table(scores: list[SeriesScore], permille: int) -> list[str]:
    rules = (*REACTIVE, forecast_rule(permille))
    rows = [[each.series[:NAME_WIDTH], *(_percent(each.over_percent[rule]) for rule in rules)] for each in scores]
    titles = ("SERIES", "LAST", "MAX 24H", "YESTER", "PEAK", "FORECAST")
    return table(titles, rows, (False, *(True,) * len(rules)))


def _means_table(scores: list[SeriesScore], *, compared: bool) -> list[str]:
    rows = []
    for rule in (*REACTIVE, *(forecast_rule(permille) for permille in QUANTILES)):
        found = [_means(scores, lead) for lead in LEADS]
        rows.append([
            rule,
            *(_percent(each["test"].get(rule)) for each in found),
            *(_percent(each["before"].get(rule)) if rule not in REACTIVE else "" for each in found),
        ])  # fmt: skip
    if compared:
        rows.append(["best known (boosted trees)", *(_percent(BEST_KNOWN[lead]) for lead in LEADS), "", ""])
    titles = ("RULE", *(f"{lead} H" for lead in LEADS), *(f"BEFORE {lead} H" for lead in LEADS))
    return table(titles, rows, (False, True, True, True, True))


def _played_lines(played: Load, runs: list[SizingResult]) -> list[str]:
    titles = ("POOL", "USD", "ABOVE", "WAITING", "LATE", "P95 S", "MAX S", "ORDERS")
    lines = [
        "",
        f"{runs[0].hours} h of {played.name} through the engine:",
        f"{runs[0].tasks:,} tasks of one node each, at most {PEAK_NODES} nodes before",
    ]
    for boot_ms in BOOTS_MS:
        rows = [
            [r.sizing, f"{r.cost_microusd / 1e6:,.0f}", f"{r.over_percent:.1f}%", f"{r.waited_percent:.2f}%",
             f"{r.late_permille / 10:.1f}%", f"{r.wait_p95_ms / 1000:,.0f}", f"{r.wait_max_ms / 1000:,.0f}",
             f"{r.orders:,}"]
            for r in runs if r.boot_ms == boot_ms
        ]  # fmt: skip
        median, p95 = (ms // 60_000 for ms in boot_ms)
        lines += ["", f"nodes that boot in {median} min (p95 {p95} min)", *table(titles, rows, (False, *(True,) * 7))]
    return [
        *lines,
        "",
        "ABOVE: node-hours paid above those demanded; WAITING: node-hours that demand",
        f"waited, both in % of those demanded; LATE: waited more than {ON_TIME_MS // 1000} s. One process,",
        "virtual time, a simulated provider: no cloud is in it.",
    ]


def _percent(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
