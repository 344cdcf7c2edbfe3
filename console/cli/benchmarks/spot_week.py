"""What `muster bench spot-week` prints."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import msgspec

from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from engine.scenarios.spot_week import BOOT_MS, NOTICE_MS, SpotWeekResult, assumed_market, bench, read_market


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


def _lines(seed: int, result: SpotWeekResult) -> list[str]:
    prices, _, taken = result.source.partition("; ")
    pairs = [
        ("scenario", f"spot-week, seed {seed}: {result.policies[0].jobs:,} jobs with deadlines"),
        ("prices", prices),
        ("taken", taken),
        ("wall time", f"{sum(each.wall_ms for each in result.policies) / 1000:,.1f} s"),
        ("machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"),
    ]
    costs = [
        [each.policy, _usd(each.cost_microusd), _usd(each.cost_per_finished_microusd, 4),
         f"{each.in_time / each.jobs:.1%}", f"{each.goodput_permille / 10:.1f}%", f"{each.machine_hours:,}"]
        for each in result.policies
    ]  # fmt: skip
    costs.append(["bound", _usd(result.bound_microusd), _usd(result.bound_per_job_microusd, 4), "100.0%", "", ""])
    numbers = ("lost_hours", "idle_hours", "machines_taken", "stops", "turned")
    hours = [[each.policy, *(f"{getattr(each, name):,}" for name in numbers)] for each in result.policies]
    right = (False, *(True,) * 5)
    return [
        *facts(pairs),
        "",
        *table(("", "USD", "USD/JOB DONE", "IN TIME", "GOODPUT", "MACHINE-H"), costs, right),
        "",
        *table(("", "LOST H", "IDLE H", "MACHINES TAKEN", "JOBS STOPPED", "TURNED"), hours, right),
        "",
        "mixed takes any machine to be had, the cheapest first; spot first waits for spot",
        "machines until the deadline's slack runs out, then turns to on-demand ones. Jobs",
        "that must not be on spot machines never are. Goodput: useful time of finished",
        "jobs in the time that machines were paid for. The bound knows all prices: each",
        "job by itself buys the cheapest minutes before its deadline, moves at no cost,",
        "and nothing boots or idles.",
        f"Machines boot in {BOOT_MS[0] // 1000} s (p95 {BOOT_MS[1] // 1000} s) and end {NOTICE_MS // 1000} s after the "
        "notice. Simulated",
        "in one process: no cloud, network or batch system.",
    ]


def _usd(microusd: int, digits: int = 2) -> str:
    return f"{microusd / 1e6:,.{digits}f}"
