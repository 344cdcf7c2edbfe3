"""The command `muster spot`: what finished work has cost, how much of the money was of use, and what machines do."""

from __future__ import annotations

import argparse
from contextlib import closing

from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.text.plain_tables import facts, table
from console.text.terminal_text import money, printable
from engine.reads.cost_reports import GoodputReport

UNNAMED = "(none)"


def spot(arguments: argparse.Namespace) -> None:
    """Cost per finished workload and goodput, for the cell, by pool and by tenant."""
    with closing(connect(arguments)) as client:
        report = client.goodput()
    write_json(report) if arguments.json else write_lines(lines(report))


def lines(report: GoodputReport) -> list[str]:
    pairs = [
        ("goodput", f"{report.goodput_permille / 10:.1f}% of {money(report.cost_microusd)} that all nodes have cost"),
        ("wasted", f"{money(report.wasted_microusd)} charged for work that was lost, failed or cancelled"),
        ("idle", money(report.cost_microusd - report.charged_microusd - report.downtime_microusd)),
        *([("downtime", f"{money(report.downtime_microusd)} while no engine ran")] if report.downtime_microusd else []),
        ("finished", f"{report.finished:,} workloads, {_each(report.per_finished_microusd)} each, idle nodes included"),
        ("turned", f"{report.turned:,} live workloads wait for on-demand nodes, as their slack ran out"),
    ]
    pools = [
        [printable(pool.pool), "spot" if pool.spot else "on-demand", f"{pool.nodes:,}", f"{pool.ending:,}",
         f"{pool.taken:,}", f"{pool.interruptions_ppm_hour / 10_000:.2f}%" if pool.spot else "",
         money(pool.cost_microusd), money(pool.used_microusd)]
        for pool in report.pools
    ]  # fmt: skip
    tenants = [
        [printable(line.tenant) or UNNAMED, f"{line.finished:,}", money(line.charged_microusd),
         money(line.wasted_microusd), _each(line.per_finished_microusd)]
        for line in report.tenants
    ]  # fmt: skip
    right = (False, False, *(True,) * 6)
    return [
        *facts(pairs),
        "",
        *table(("POOL", "CAPACITY", "NODES", "ENDING", "TAKEN", "IN AN HOUR", "COST", "USED"), pools, right),
        "",
        *table(("TENANT", "FINISHED", "CHARGED", "WASTED", "EACH"), tenants, (False, *(True,) * 4)),
    ]


def _each(microusd: int | None) -> str:
    return "-" if microusd is None else money(microusd)
