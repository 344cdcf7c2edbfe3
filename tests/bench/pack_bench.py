"""Packing GPU pods by the published method, every policy beside the published mean: GPU allocated when 100 % and 130 %
of it have been asked for, and pods/s.

`make bench` takes the lists in QUICK with two seeds. The whole table, every list there is with the ten published
seeds: `PACK_BENCH=all .venv/bin/python tests/bench/run.py pack` (ten minutes), or this file with names of lists and
`--seeds`. One process places the pods: no API server, no kubelet, no scheduler framework.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from engine.scenarios.fgd_packing import NodeList, PackingResult, Pods, Policy, pack, read_nodes, read_pods

OPENB = Path(__file__).parents[2].parent / "shared" / "data" / "openb"
QUICK = ("default", "gpuspec20", "multigpu30")
FIRST_SEED = 42
PUBLISHED_SEEDS = 10
PUBLISHED_AS = {"random": "01-Random", "dotprod": "02-DotProd", "bestfit": "05-BestFit", "fgd": "06-FGD"}
RIVAL = "06-FGD"
"""What `muster` is held against: it has no published figures of its own."""
AT = (100, 130)

Pair = tuple[float, float]
"""GPU allocation in % when `AT` % of it have been asked for."""


def openb() -> Iterator[dict[str, Any]]:
    """The quick part of the table, or all of it with PACK_BENCH=all."""
    if os.environ.get("PACK_BENCH") == "all":
        return table(lists(), PUBLISHED_SEEDS)
    return table(QUICK, 2)


def lists() -> list[str]:
    """Names of the pod lists there are."""
    return sorted(path.name.split("_")[3].split(".")[0] for path in OPENB.glob("openb_pod_list_*.csv*"))


def table(names: Sequence[str], seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each list and policy; then the mean of what `muster` is ahead of published FGD, and the least."""
    if not OPENB.exists():
        yield {"at": "openb", "result": "skipped", "reference": "no shared traces beside the checkout"}
        return
    nodes = read_nodes(OPENB / "openb_node_list_gpu_node.csv.gz")
    means = published()
    ahead: list[float] = []
    for name in names:
        pods = read_pods(next(OPENB.glob(f"openb_pod_list_{name}.csv*")), nodes)
        for policy in get_args(Policy):
            ours, pods_per_s = measured(nodes, pods, policy, seeds)
            theirs = means.get((name, PUBLISHED_AS.get(policy, RIVAL)))
            if theirs and policy == "muster":
                ahead += (mine - rival for mine, rival in zip(ours, theirs, strict=True))
            yield {
                "at": f"{name}, {policy}, {seeds} seeds",
                "result": f"{_shown(ours)} %, {pods_per_s:,}/s",
                "alloc": ours,
                "published": theirs,
                "pods_per_s": pods_per_s,
                "reference": _beside(policy, ours, theirs),
            }
    if ahead:
        yield {
            "at": f"muster, {len(ahead) // len(AT)} lists with published figures",
            "result": f"{sum(ahead) / len(ahead):+.2f} points",
            "mean_ahead": sum(ahead) / len(ahead),
            "least_ahead": min(ahead),
            "reference": f"ahead of published FGD on average; least {min(ahead):+.2f}",
        }


def measured(nodes: NodeList, pods: Pods, policy: Policy, seeds: int) -> tuple[Pair, int]:
    """Means over the seeds, and pods per second of all of them together."""
    began = time.perf_counter()
    runs = [pack(nodes, pods, policy, seed=seed) for seed in range(FIRST_SEED, FIRST_SEED + seeds)]
    pods_per_s = round(sum(run.arrived for run in runs) / (time.perf_counter() - began))
    return (_mean(runs, AT[0]), _mean(runs, AT[1])), pods_per_s


def _mean(runs: list[PackingResult], percent: int) -> float:
    return sum(run.alloc_at(percent) or 0.0 for run in runs) / len(runs)


def published() -> dict[tuple[str, str], Pair]:
    """(list, policy as published) -> means over its ten seeds."""
    sums: dict[tuple[str, str], list[Pair]] = {}
    with gzip.open(OPENB / "expected_results" / "analysis_allo_discrete.csv.gz", "rt") as lines:
        for row in csv.DictReader(lines):
            name = row["workload"].removeprefix("openb_pod_list_")
            sums.setdefault((name, row["sc_policy"]), []).append((float(row["100"]), float(row["130"])))
    return {
        key: (sum(first for first, _ in pairs) / len(pairs), sum(second for _, second in pairs) / len(pairs))
        for key, pairs in sums.items()
    }


def _beside(policy: str, ours: Pair, theirs: Pair | None) -> str:
    if theirs is None:
        return "no published figures of this list"
    off = ", ".join(f"{mine - rival:+.2f}" for mine, rival in zip(ours, theirs, strict=True))
    return f"published {PUBLISHED_AS.get(policy, RIVAL)[3:]} {_shown(theirs)} %: {off}"


def _shown(pair: Pair) -> str:
    return " / ".join(f"{share:.2f}" for share in pair)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of pod lists, such as default; default all there are")
    parser.add_argument("--seeds", type=int, default=PUBLISHED_SEEDS, help="orders of arrival, from 42; default 10")
    options = parser.parse_args()
    for row in table(options.names or lists(), options.seeds):
        print(f"{row['at']:<36}{row['result']:>28}  {row['reference']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
