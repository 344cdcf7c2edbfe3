"""What `muster bench spot-week` prints."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import msgspec

from console.plain import facts, table
from console.show import write_json, write_lines
from engine.traces.spot_week import BOOT_MS, NOTICE_MS, Outcome, Result, assumed_market, bench, read_market


def run(arguments: argparse.Namespace) -> None:
    market = read_market(arguments.prices, arguments.seed - 1) if arguments.prices else assumed_market()
    print("a week of work under four policies in virtual time", file=sys.stderr)
    result = bench(market, seed=arguments.seed)
    if arguments.json:
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        write_json(
            {"scenario": "spot-week", "seed": arguments.seed, "result": msgspec.to_builtins(result), "machine": machine}
        )
    else:
        write_lines(_lines(arguments.seed, result))


def _lines(seed: int, result: Result) -> list[str]:
    pairs = [
        ("scenario", f"spot-week, seed {seed}: {result.policies[0].jobs:,} jobs with deadlines, of 12 minutes to 28 hours"),
        ("prices", result.source),
        ("wall time", f"{sum(each.wall_ms for each in result.policies) / 1000:,.1f} s"),
        ("machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"),
    ]  # fmt: skip
    titles = (
        "", "USD", "USD/JOB DONE", "IN TIME", "GOODPUT", "MACHINE-H", "LOST H", "IDLE H", "TAKEN", "STOPS", "TURNED",
    )  # fmt: skip
    rows = [_row(each) for each in result.policies]
    rows.append(
        ["bound", _usd(result.bound_microusd), f"{result.bound_per_job_microusd / 1e6:,.4f}", "100.0%", *[""] * 7]
    )
    return [
        *facts(pairs),
        "",
        *table(titles, rows, (False, *(True,) * 10)),
        "",
        "mixed takes any machine to be had, the cheapest first; spot first waits for spot",
        "machines until the deadline's slack runs out. Jobs that must not be on spot machines",
        "never are. The bound knows all prices: each job by itself buys the",
        "cheapest minutes before its deadline, moves at no cost, and nothing boots or idles.",
        "Goodput: useful time of finished jobs in the time that machines were paid for.",
        f"Machines boot in {BOOT_MS[0] // 1000} s (p95 {BOOT_MS[1] // 1000} s) and are taken after a notice of "
        f"{NOTICE_MS // 1000} s. Simulated in",
        "one process: no cloud, network or batch system.",
    ]


def _row(each: Outcome) -> list[str]:
    return [
        each.policy,
        _usd(each.cost_microusd),
        f"{each.cost_per_finished_microusd / 1e6:,.4f}",
        f"{each.in_time / each.jobs:.1%}",
        f"{each.goodput_permille / 10:.1f}%",
        f"{each.machine_hours:,}",
        f"{each.lost_hours:,}",
        f"{each.idle_hours:,}",
        f"{each.machines_taken:,}",
        f"{each.stops:,}",
        f"{each.turned:,}",
    ]


def _usd(microusd: int) -> str:
    return f"{microusd / 1e6:,.2f}"
