"""What `muster bench clemson` prints."""

from __future__ import annotations

import argparse
import os
import platform
import sys

import msgspec

from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from engine.scenarios.clemson import (
    BOOT_MS,
    HEAD_CALLS_PER_S,
    LEAD_MS,
    PEAK,
    SOURCE,
    TAKEN_PERMILLE_HOUR,
    Ramp,
    bench,
)


def run(arguments: argparse.Namespace) -> None:
    print(f"ordering {PEAK:,} machines in virtual time", file=sys.stderr)
    result = bench(seed=arguments.seed)
    if arguments.json:
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        assumed = {
            "head_calls_per_s": HEAD_CALLS_PER_S,
            "boot_median_p95_ms": BOOT_MS,
            "taken_permille_hour": TAKEN_PERMILLE_HOUR,
            "stock_before_published_ms": LEAD_MS,
        }
        write_json(
            {"scenario": "clemson", "seed": arguments.seed, "result": msgspec.to_builtins(result), "assumed": assumed,
             "published": {"source": SOURCE}, "machine": machine}
        )  # fmt: skip
        return
    ramp = result.ramp
    pairs = [
        ("scenario", f"clemson, seed {arguments.seed}: {PEAK:,} spot machines of 16 vCPU"),
        ("machines", f"{ramp.peak_machines:,} at the peak; {ramp.taken:,} taken back meanwhile"),
        ("requests", f"{ramp.requests:,}, {ramp.over_quota:,} over the quota, {ramp.out_of_stock:,} out of stock"),
        ("connections", f"{ramp.calls_lost:,} lost; the head node takes {HEAD_CALLS_PER_S} in a second"),
        ("tasks", f"{result.tasks_started:,} started, {result.tasks_finished:,} finished, "
         f"{result.tasks_restarted:,} started over"),
        ("busy", f"{result.busy_permille / 10:.1f}% of the connected machines' time"),
        ("wall time", f"{result.wall_ms / 1000:,.1f} s with the engine"),
        ("machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"),
    ]  # fmt: skip
    lines = [*facts(pairs), "", "vCPU connected, and when", *_marks(ramp), ""]
    compared = {
        "six projects": ramp,
        "one project": result.one_project,
        "six, all stock at once": result.plenty,
        "one, all stock at once": result.plenty_one_project,
    }
    lines += [*_comparison(compared), ""]
    lines += [
        "The bound is what quotas and stock allow if machines needed no time to boot.",
        "Assumed, as it was not published: when stock was to be had (the published",
        f"run's own marks, {LEAD_MS // 60_000} min before it reached them), boots of {BOOT_MS[0] // 1000} s (p95 "
        f"{BOOT_MS[1] // 1000} s), {TAKEN_PERMILLE_HOUR / 10:g}% of",
        "the machines taken back in an hour, and the head node's limit. Muster's",
        "figures are of one process in virtual time: no cloud, network or batch system.",
    ]
    write_lines(lines)


def _marks(ramp: Ramp) -> list[str]:
    rows = [
        [f"{mark.vcpus:,}", _minutes(mark.published_ms), _minutes(mark.reached_ms), _minutes(mark.bound_ms)]
        for mark in ramp.marks
    ]
    return table(("VCPU", "PUBLISHED", "MUSTER", "BOUND"), rows, (True, True, True, True))


def _comparison(ramps: dict[str, Ramp]) -> list[str]:
    """Why several projects: quotas of requests bound how fast machines come and, without any stock to wait for, go."""
    rows = [
        [name, f"{ramp.requests_per_100_s:,}", _minutes(ramp.marks[-1].reached_ms), f"{ramp.calls_lost:,}",
         _minutes(ramp.release_ms), f"{ramp.release_machine_hours:,}"]
        for name, ramp in ramps.items()
    ]  # fmt: skip
    titles = ("", "QUOTA", "2.13 M VCPU", "LOST", "RELEASED IN", "IDLE MACHINE-H")
    return table(titles, rows, (False, True, True, True, True, True))


def _minutes(ms: int | None) -> str:
    return "never" if ms is None else f"{ms / 60_000:,.1f} min"
