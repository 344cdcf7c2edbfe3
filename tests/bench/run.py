"""`make bench`: what this machine makes of the engine and the console, beside a reference measured in the same run.

Prints a table, and JSON with `--json FILE`. Names select benchmarks: `run.py placement first_paint`. Figures are of one
process with no API server, no agents and no network: they are not comparable with a cluster's end-to-end figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterator

import api_bench
import audit_bench
import commands_bench
import cost_bench
import database_bench
import demand_bench
import draft_bench
import engine_bench
import gate_bench
import heartbeats_bench
import pack_bench
import paint_bench
import past_bench
import peers_bench
import placement_bench
import process_bench
import reads_bench
import request_bench
import scale_up_bench
import start_bench
import topology_bench
import twin_bench
import victims_bench

Row = dict[str, object]
BENCHES: dict[str, Callable[[], Iterator[Row]]] = {
    "placement": placement_bench.placement,
    "packing": placement_bench.packing,
    "pack": pack_bench.openb,
    "end_to_end": engine_bench.end_to_end,
    "backlog": engine_bench.backlog,
    "memory": process_bench.memory,
    "gang": engine_bench.gang,
    "gangs_in_a_block": topology_bench.gangs_in_a_block,
    "fewest_blocks": topology_bench.fewest_blocks,
    "undo": topology_bench.undo,
    "gangs_end_to_end": topology_bench.gangs_end_to_end,
    "victims": victims_bench.victims,
    "preemption": victims_bench.preemption_under_load,
    "scale_up": scale_up_bench.scale_up_rows,
    "idle_cycle": engine_bench.idle_cycle,
    "kueue_arrival": engine_bench.kueue_arrival,
    "restart": engine_bench.restart,
    "commands": commands_bench.commands,
    "past": past_bench.past,
    "fork": twin_bench.fork,
    "what_if": twin_bench.what_if,
    "start_estimate": twin_bench.start_estimate,
    "start_forecast": start_bench.start_forecast,
    "cost": cost_bench.cost,
    "demand": demand_bench.demand,
    "audit": audit_bench.audit,
    "query": engine_bench.query,
    "reads": reads_bench.reads,
    "reads_behind": reads_bench.behind,
    "api": api_bench.api,
    "request": request_bench.request,
    "heartbeats": heartbeats_bench.heartbeats,
    "replay": engine_bench.replay_kth,
    "gate": gate_bench.gate,
    "databases": database_bench.databases,
    "draft": draft_bench.draft,
    "first_paint": paint_bench.first_paint,
}
ON_REQUEST: dict[str, Callable[[], Iterator[Row]]] = {"peers": peers_bench.peers}
"""Only when named: they install something."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"any of {', '.join(BENCHES)}; default all these; or peers")
    parser.add_argument("--json", metavar="FILE", help="also write the rows as JSON")
    options = parser.parse_args()
    known = BENCHES | ON_REQUEST
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]}; there are {', '.join(known)}")
    rows: list[Row] = []
    print(f"{'benchmark':<28}{'at':<40}{'result':>22}  reference in the same run")
    for name in options.names or BENCHES:
        for row in known[name]():
            rows.append({"benchmark": name, **row})
            print(f"{name:<28}{row['at']!s:<40}{row['result']!s:>22}  {row.get('reference', '')}", flush=True)
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"machine": machine, "rows": rows}, out, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
