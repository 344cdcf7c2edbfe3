"""The command `muster pack`: a list of GPU pods onto a list of nodes, by the published method, to compare policies."""

from __future__ import annotations

import argparse
import time
from typing import Any

from console.cli.show import write_json, write_lines
from console.text.plain_tables import facts, table
from console.text.terminal_text import printable
from engine.model.errors import SpecError
from engine.scenarios.fgd_packing import MAX_INFLATE, PackingResult, pack, read_nodes, read_pods


def run(arguments: argparse.Namespace) -> None:
    """Pack, and print how much of the GPU is allocated when 100 % and 130 % of it have been asked for."""
    if not 0 < arguments.inflate <= MAX_INFLATE:
        raise SpecError("--inflate", f"{arguments.inflate:g} is not above 0 and at most {MAX_INFLATE}", "Give 1.3")
    nodes = read_nodes(arguments.nodes)
    pods = read_pods(arguments.pods, nodes)
    runs = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        began = time.perf_counter()
        packed = pack(nodes, pods, arguments.policy, seed=seed, inflate=arguments.inflate)
        runs.append(_run_report(packed, time.perf_counter() - began))
    report: dict[str, Any] = {
        "policy": arguments.policy,
        "seed": arguments.seed,
        "seeds": arguments.seeds,
        "inflate": arguments.inflate,
        "alloc_at_100": _mean(runs, "alloc_at_100", 2),
        "alloc_at_130": _mean(runs, "alloc_at_130", 2),
        "nodes": len(nodes.names),
        "gpus": nodes.gpu_milli // 1000,
        "pods": len(pods.shape),
        "arrived": _mean(runs, "arrived"),
        "placed": _mean(runs, "placed"),
        "pods_per_s": _mean(runs, "pods_per_s"),
        "models_nobody_has": pods.nowhere,
        "runs": runs,
    }
    write_json(report) if arguments.json else write_lines(report_lines(report))


def _run_report(packed: PackingResult, seconds: float) -> dict[str, Any]:
    return {
        "seed": packed.seed,
        "alloc_at_100": packed.alloc_at(100),
        "alloc_at_130": packed.alloc_at(130),
        "arrived": packed.arrived,
        "placed": packed.placed,
        "pods_per_s": round(packed.arrived / max(seconds, 1e-9)),
    }


def _mean(runs: list[dict[str, Any]], name: str, digits: int | None = None) -> float | None:
    """Over the seeds; None where one of them has none."""
    values = [run[name] for run in runs]
    return None if None in values else round(sum(values) / len(values), digits)


def report_lines(report: dict[str, Any]) -> list[str]:
    """The report for people."""
    pairs = [
        ("policy", f"{report['policy']}, {_seeds(report)}, inflated to {report['inflate']:g} x the capacity"),
        ("nodes", f"{report['nodes']:,} with {report['gpus']:,} GPU"),
        ("pods", f"{report['placed']:,} of {report['arrived']:,} placed; the list has {report['pods']:,}"),
        *(
            (f"at {percent}%", _allocated(report[f"alloc_at_{percent}"], percent))
            for percent in (100, 130)
        ),
        ("speed", f"{report['pods_per_s']:,} pods/s, in one process: no API server, no kubelet"),
    ]  # fmt: skip
    if report["models_nobody_has"]:
        absent = ", ".join(map(printable, report["models_nobody_has"]))
        pairs.append(("note", f"no node has {absent}: pods that accept nothing else are dropped"))
    return [*facts(pairs), *_each_seed(report["runs"])]


def _each_seed(runs: list[dict[str, Any]]) -> list[str]:
    """A line for each seed, where there are several."""
    if len(runs) == 1:
        return []
    rows = [
        [str(run["seed"]), *("-" if run[at] is None else f"{run[at]:.2f}" for at in ("alloc_at_100", "alloc_at_130"))]
        for run in runs
    ]
    return ["", *table(("SEED", "AT 100%", "AT 130%"), rows, (True, True, True))]


def _seeds(report: dict[str, Any]) -> str:
    first, count = report["seed"], report["seeds"]
    return f"seed {first}" if count == 1 else f"mean of seeds {first} to {first + count - 1}"


def _allocated(share: float | None, percent: int) -> str:
    if share is None:
        return f"never reached: less than {percent}% of the GPU was asked for"
    return f"{share:.2f}% of the GPU allocated when {percent}% have been asked for"
