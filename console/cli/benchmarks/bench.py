"""The command `muster bench`: a published run through the engine, beside what was published of it."""

from __future__ import annotations

import argparse

from console.cli.show import write_json, write_lines
from console.text.plain_tables import table
from engine.scenarios import gke_phases
from engine.scenarios.clemson import MARKS, PEAK
from engine.scenarios.kueue import SCENARIOS


def run(arguments: argparse.Namespace) -> None:
    if arguments.scenario == "list":
        write_json(_catalog()) if arguments.json else write_lines(_catalog_lines())
    elif arguments.scenario == "clemson":
        from console.cli.benchmarks import clemson

        clemson.run(arguments)
    elif arguments.scenario == "predictive-day":
        from console.cli.benchmarks import predictive_day

        predictive_day.run(arguments)
    elif arguments.scenario == "spot-week":
        from console.cli.benchmarks import spot_week

        spot_week.run(arguments)
    elif arguments.scenario in gke_phases.SCENARIOS:
        from console.cli.benchmarks import gke as bench_gke

        bench_gke.run(arguments)
    else:
        from console.cli.benchmarks import kueue

        kueue.run(arguments)


def _catalog() -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "queues": scenario.cohorts * scenario.queues,
            "workloads": scenario.workloads,
            "capacity_bound_ms": scenario.capacity_bound_ms,
        }
        for name, scenario in SCENARIOS.items()
    ] + [
        {"name": "clemson", "machines": PEAK, "marks": MARKS},
        {"name": "predictive-day"},
        {"name": "spot-week"},
        *({"name": name, "nodes": scenario.nodes} for name, scenario in gke_phases.SCENARIOS.items()),
    ]


def _catalog_lines() -> list[str]:
    rows = [
        [name, f"{s.workloads:,} workloads in {s.cohorts * s.queues:,} queues, none done before "
         f"{s.capacity_bound_ms / 1000:,.1f} s"]
        for name, s in SCENARIOS.items()
    ]  # fmt: skip
    rows.append(["clemson", f"{PEAK:,} spot machines in six regions, and the work on them"])
    rows.append(["predictive-day", "series of demand by the hour, met by rules and by a pool that grows ahead"])
    rows.append(["spot-week", "a week of jobs with deadlines on machines that are taken back, under four policies"])
    rows += [[name, f"{scenario.nodes:,} nodes: {scenario.load}"] for name, scenario in gke_phases.SCENARIOS.items()]
    return table(("NAME", "LOAD"), rows, (False, False))
