"""The command `muster pack`: a list of GPU pods onto a list of nodes, by the published method, to compare policies."""

from __future__ import annotations

import argparse
import time
from typing import Any

from console.plain import facts
from console.show import write_json, write_lines
from console.text import printable
from engine.errors import SpecError
from engine.packing import MAX_INFLATE, pack, read_nodes, read_pods


def run(arguments: argparse.Namespace) -> None:
    """Pack once, and print how much of the GPU is allocated when 100 % and 130 % of it have been asked for."""
    if not 0 < arguments.inflate <= MAX_INFLATE:
        raise SpecError("--inflate", f"{arguments.inflate:g} is not above 0 and at most {MAX_INFLATE}", "Give 1.3")
    nodes = read_nodes(arguments.nodes)
    pods = read_pods(arguments.pods, nodes)
    began = time.perf_counter()
    packed = pack(nodes, pods, arguments.policy, seed=arguments.seed, inflate=arguments.inflate)
    seconds = time.perf_counter() - began
    report: dict[str, Any] = {
        "policy": packed.policy,
        "seed": packed.seed,
        "inflate": arguments.inflate,
        "alloc_at_100": packed.alloc_at(100),
        "alloc_at_130": packed.alloc_at(130),
        "nodes": len(nodes.names),
        "gpus": nodes.gpu_milli // 1000,
        "pods": len(pods.shape),
        "arrived": packed.arrived,
        "placed": packed.placed,
        "pods_per_s": round(packed.arrived / max(seconds, 1e-9)),
        "models_nobody_has": pods.nowhere,
    }
    write_json(report) if arguments.json else write_lines(report_lines(report))


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    pairs = [
        ("policy", f"{report['policy']}, seed {report['seed']}, inflated to {report['inflate']:g} x the capacity"),
        ("nodes", f"{report['nodes']:,} with {report['gpus']:,} GPU"),
        ("pods", f"{report['placed']:,} of {report['arrived']:,} placed; the list has {report['pods']:,}"),
        *(
            (f"at {percent}%", _allocated(report[f"alloc_at_{percent}"], percent))
            for percent in (100, 130)
        ),
        ("speed", f"{report['pods_per_s']:,} pods/s, in one process: no API server, no kubelet"),
    ]  # fmt: skip
    if report["models_nobody_has"]:
        pairs.append(("note", f"no node has {', '.join(map(printable, report['models_nobody_has']))}"))
    return facts(pairs)


def _allocated(share: float | None, percent: int) -> str:
    if share is None:
        return f"never reached: less than {percent}% of the GPU was asked for"
    return f"{share:.2f}% of the GPU allocated when {percent}% have been asked for"
