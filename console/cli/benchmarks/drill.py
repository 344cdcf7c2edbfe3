"""The command `muster drill`: nodes are lost in a large cell full of work, and what becomes of it is told."""

from __future__ import annotations

import argparse
import os
import platform
import sys

from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from console.text.terminal_text import duration, wrap
from engine.model.errors import SpecError
from engine.scenarios.fault_drill import DOWN_MS, NODES, NOTICE_MS, Drill, bench

LEAST, UNIT = 650, 650
"""Nodes."""


def run(arguments: argparse.Namespace) -> None:
    nodes = arguments.nodes or NODES
    if nodes < LEAST or nodes % UNIT:
        raise SpecError("--nodes", f"{nodes:,} nodes cannot be divided as the load is", f"Give a multiple of {UNIT}")
    print(f"losing a rack, a zone and spot nodes of {nodes:,}", file=sys.stderr)
    result = bench(nodes, arguments.seed)
    if arguments.json:
        machine = {"python": platform.python_version(), "cores": os.cpu_count()}
        write_json({"drill": "gke-65k", "seed": arguments.seed, "result": result, "machine": machine})
    else:
        write_lines(_lines(arguments, result))


def _lines(arguments: argparse.Namespace, result: Drill) -> list[str]:
    lost = result.lost_nodes
    waiting = ", ".join(f"{count:,} {reason}" for reason, count in result.waiting.items()) or "none"
    swapped = f"gangs that got others in their place and went on: {result.swapped:,}"
    pairs = [
        ("cell", f"{result.nodes:,} nodes, {result.tasks:,} tasks of {result.workloads:,} workloads"),
        ("lost", f"{lost['rack']:,} nodes of a rack, {lost['zone']:,} of a zone, {lost['spot']:,} spot elsewhere"),
        ("on them", f"{result.tasks_on_lost:,} tasks; {swapped}"),
        ("recovered", f"{duration(result.recovered_ms)} of cell time until the last that finds room ran again"),
        ("waiting", waiting),
        ("idle", f"{result.free_nodes:,} nodes, once all that could run did"),
        ("back", f"all ran {duration(result.back_ms)} of cell time after all came back, {duration(DOWN_MS)} later"),
        ("lost work", "no workload; each went on from its last checkpoint, and ended"),
        ("decisions", f"wall time: {result.fail_wall_ms / 1000:,.1f} s at the loss, "
         f"{result.spot_wall_ms / 1000:,.1f} s as spot went, {result.back_wall_ms / 1000:,.1f} s at the return"),
        ("in all", f"{result.decisions_ms / 1000:,.1f} s in the engine, "
         f"{result.decisions_cpu_ms / 1000:,.1f} s of it on a core"),
        ("checked", f"{result.checks} times: counts, whole gangs, capacity, quota, work kept"),
        ("machine", f"Python {platform.python_version()}, {os.cpu_count()} cores"),
    ]  # fmt: skip
    rows = [
        [each.priority, f"{each.on_lost_nodes:,}", f"{each.made_room:,}", f"{each.running_again:,}",
         f"{each.waiting:,}", duration(each.lost_ms)]
        for each in result.evicted
    ]  # fmt: skip
    titles = ("WORKLOADS", "ON LOST NODES", "MADE ROOM", "RUN AGAIN", "WAIT", "LOST AT MOST")
    told = (
        "Rack and zone go without a word, and that is known at once; how long silence lasts before a node counts as "
        f"lost comes on top. Spot nodes have {NOTICE_MS // 1000} s of notice, during which their work goes on. "
        "Muster's figures are of one process that decides: nothing boots, and tasks run when they are placed."
    )
    return [*facts(pairs), "", *table(titles, rows, (False, *(True,) * 5)), "", *wrap(told, 80)]
