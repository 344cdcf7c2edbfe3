"""What `muster bench` prints of Kueue's published loads."""

from __future__ import annotations

import argparse
import os
import platform
import sys

from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from engine.scenarios.kueue import COMMIT, COMMIT_DATE, SCENARIOS, KueueResult, KueueScenario, bench

RIGHT = (False, *(True,) * 8)
"""Which columns of the table of admissions are numbers."""


def run(arguments: argparse.Namespace) -> None:
    scenario = SCENARIOS[arguments.scenario]
    print(f"running {scenario.workloads:,} workloads in virtual time", file=sys.stderr)
    result = bench(scenario, estimates=arguments.estimates, seed=arguments.seed)
    if arguments.json:
        write_json(_report(arguments, scenario, result))
    else:
        write_lines(_report_lines(arguments, scenario, result))


def _report(arguments: argparse.Namespace, scenario: KueueScenario, result: KueueResult) -> dict[str, object]:
    return {
        "scenario": arguments.scenario,
        "estimates": arguments.estimates,
        "seed": arguments.seed,
        "capacity_bound_ms": scenario.capacity_bound_ms,
        "arrival_bound_ms": scenario.arrival_bound_ms,
        "result": result,
        "published": {
            "config": scenario.config,
            "commit": COMMIT,
            "date": COMMIT_DATE,
            "wall_ms": scenario.published_wall_ms,
            "used_permille": scenario.published_usage_permille,
            "final_admission_mean_ms": {mix.name: mix.published_ms for mix in scenario.mix},
        },
        "machine": {"python": platform.python_version(), "cores": os.cpu_count()},
    }


def _report_lines(arguments: argparse.Namespace, scenario: KueueScenario, result: KueueResult) -> list[str]:
    each = scenario.workloads // (scenario.cohorts * scenario.queues)
    bound_ms = scenario.capacity_bound_ms
    ratio = result.makespan_ms / bound_ms
    lost = f"{result.lost_unit_ms // 1000:,} unit-seconds ({result.lost_unit_ms / scenario.work_unit_ms:.1%}) of work"
    pairs = [
        ("scenario", f"{arguments.scenario}, estimates {arguments.estimates}, seed {arguments.seed}"),
        ("load", f"{scenario.cohorts} cohorts x {scenario.queues} queues x {each} workloads = {result.workloads:,}"),
        ("makespan", f"{_seconds(result.makespan_ms)} of virtual time, {ratio:.3f} x the capacity bound"),
        ("bound", f"{_seconds(bound_ms)} by capacity, {_seconds(scenario.arrival_bound_ms)} with the arrivals"),
        ("utilisation", f"{result.used_permille / 10:.1f}%"),
        ("preemptions", f"{result.preemptions:,}, which lost {lost}"),
        ("withdrawn", f"{result.withdrawn:,} placements, before an executor saw them"),
        ("decisions", f"{result.starts:,} starts, {result.preemptions:,} preemptions in {result.cycles:,} cycles"),
        ("wall time", f"{_seconds(result.wall_ms)}, {result.decisions_per_s:,} decisions/s"),
        ("machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"),
    ]
    return [*facts(pairs), "", *_admission_table(scenario, result), "", *_published_lines(scenario)]


def _admission_table(scenario: KueueScenario, result: KueueResult) -> list[str]:
    """From submission to first and final admission, beside Kueue's mean."""
    titles = ("SECONDS", "FIRST", "P95", "MAX", "FINAL", "P95", "MAX", "PREEMPTED", "KUEUE")
    rows = []
    for mix, met in zip(scenario.mix, result.classes, strict=True):
        times = [
            f"{ms / 1000:,.2f}"
            for spread in (met.first_admission, met.final_admission)
            for ms in (spread.mean_ms, spread.p95_ms, spread.max_ms)
        ]
        size = f"{mix.name} {mix.units} x {mix.runtime_ms / 1000:g}"
        rows.append([size, *times, f"{met.preemptions:,}", f"{mix.published_ms / 1000:,.2f}"])
    return ["mean, p95 and longest time to the first and to the final admission", *table(titles, rows, RIGHT)]


def _published_lines(scenario: KueueScenario) -> list[str]:
    """Kueue's figures, and why they are not to be compared one to one."""
    usage = f"{scenario.published_usage_permille / 10:.1f}%"
    return [
        f"Kueue: means recorded for configs/{scenario.config} in {COMMIT} of {COMMIT_DATE}:",
        f"{_seconds(scenario.published_wall_ms)} of wall time, {usage} usage; final admission in the last column.",
        "Measured end to end on other hardware, with an API server, a client held to",
        "50 requests/s and arrivals in real time. Muster's figures are of one process in",
        "virtual time: no API server, admission webhook, kubelet or network is in them.",
    ]


def _seconds(ms: int) -> str:
    return f"{ms / 1000:,.1f} s"
