"""The command `muster scaling`, and what is typed to change how pools grow and shrink."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import TYPE_CHECKING

from console.cli.show import write_json, write_lines
from console.processes.attach import connect
from console.text.plain_tables import facts, table
from console.text.terminal_text import duration, printable, timestamp
from engine.model.autoscaling import Autoscaling

if TYPE_CHECKING:
    from engine.elasticity.scaling_report import ScalingReport

TITLES = ("POOL", "READY", "BOOTING", "ORDERED", "OTHER", "ASKED", "WANTED", "LEAST", "MOST", "HEADROOM", "PRIORITY")


def scaling(arguments: argparse.Namespace) -> None:
    """How large each pool is and should be, and what the autoscaler goes by."""
    with closing(connect(arguments)) as client:
        report = client.scaling()
    write_json(report) if arguments.json else write_lines(lines(report))


def lines(report: ScalingReport) -> list[str]:
    rows = []
    for pool in report.pools:
        scaling = pool.scaling
        own: tuple[str, ...] = ("",) * 5
        if scaling is not None:
            own = tuple(map(str, (pool.wanted, scaling.least, scaling.most, scaling.headroom, scaling.priority)))
        counts = (pool.ready, pool.booting, pool.ordered, pool.other, pool.asked)
        rows.append([printable(pool.pool), *(f"{count:,}" for count in counts), *own])
    told = table(TITLES, rows, (False, *(True,) * (len(TITLES) - 1)))
    for pool in report.pools:
        told += [f"{printable(pool.pool)}: {nodes:,} nodes from {timestamp(at_ms)} on" for at_ms, nodes in pool.set_for]
    settings = [(field, _word(field, report)) for field in Autoscaling.__struct_fields__]
    return [*told, "", *facts([*settings, ("forecast", printable(report.forecast))])]


def _word(field: str, report: ScalingReport) -> str:
    value = getattr(report.settings, field)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value)
    return duration(value) if field.endswith("_ms") else f"{value:,}"
