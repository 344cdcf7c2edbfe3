"""What is typed to describe work that is submitted: the same for one cell and for a fleet of them."""

from __future__ import annotations

import argparse
from typing import Any

from console.arguments.parsing import count, positive

QOS = ("guaranteed", "burstable", "best_effort")


def submit_arguments(submit: argparse.ArgumentParser) -> None:
    """The file, or the flags that describe one workload."""
    submit.add_argument("file", nargs="?", help="YAML or JSON with one or many workloads; - for standard input")
    submit.add_argument("--id", help="unique id; made up when not given")
    submit.add_argument("--name", help="what its owner calls it")
    submit.add_argument("--queue", help="queue to submit to")
    submit.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    submit.add_argument("--tenant", help="who pays")
    submit.add_argument("--team")
    submit.add_argument("--tasks", type=positive, metavar="N", help="members of the gang (default 1)")
    submit.add_argument("--cpus", metavar="CORES", help="of one task, such as 4 or 500m")
    submit.add_argument("--memory", metavar="SIZE", help="of one task, such as 64GiB")
    submit.add_argument("--gpus-per-task", metavar="GPUS", help="of one task, such as 8 or 0.5")
    submit.add_argument("--disk", metavar="SIZE", help="of one task, such as 100GiB")
    submit.add_argument("--estimate", metavar="TIME", help="run time, such as 6h or 1h30m")
    submit.add_argument("--max-runtime", metavar="TIME", help="stop it as failed when it runs longer")
    submit.add_argument("--array", metavar="RANGE", help="many of a kind, such as 0-99, 0-99:2 or 0-99%%10 at once")
    submit.add_argument("--after", nargs="+", metavar="ID", help="wait for these, as in prep or prep:failed")
    submit.add_argument("--not-before", metavar="WHEN", help="such as +6h or 2026-03-01T14:30 (UTC)")
    submit.add_argument("--deadline", metavar="WHEN", help="fail it when it waits until it cannot end by then")
    submit.add_argument("--retries", type=count, metavar="N", help="how often it starts again after failing")
    submit.add_argument("--min-tasks", type=positive, metavar="N", help="fewest members it may start with")
    submit.add_argument("--elastic", action="store_true", default=None, help="may grow and shrink while it runs")
    submit.add_argument(
        "--hot-swap", action="store_true", default=None, help="members on lost nodes are replaced, the others stay"
    )
    submit.add_argument("--qos", choices=QOS, help="how sure it may be of what it asks for")
    submit.add_argument("--service", metavar="LEAST-MOST", help="no end, and as many tasks as its load takes")
    submit.add_argument("--reservation", metavar="NAME", help="use the nodes of this reservation, and only those")
    _where_arguments(submit)
    submit.add_argument("--held", action="store_true", help="submit on hold")


def _where_arguments(submit: argparse.ArgumentParser) -> None:
    """Where the tasks may and should go. What a level or a profile may be is checked where files are."""
    many: dict[str, Any] = {"nargs": "+", "metavar": "KEY=VALUE"}
    where = submit.add_argument_group("where it may go")
    where.add_argument("--gpu-model", dest="gpu_models", nargs="+", metavar="MODEL", help="any of these device models")
    where.add_argument("--gpu-memory", metavar="SIZE", help="least memory of a device, such as 80GiB")
    where.add_argument("--mig", metavar="PROFILE", help="one MIG instance for each task, such as 1g.10gb")
    where.add_argument("--pool", dest="pools", nargs="+", metavar="POOL", help="any of these pools")
    kind = where.add_mutually_exclusive_group()
    kind.add_argument(
        "--spot", dest="capacity", action="store_const", const="spot", help="spot machines only, deadline or not"
    )
    kind.add_argument(
        "--spot-first", dest="capacity", action="store_const", const="spot-first",
        help="spot machines until the deadline's slack runs out",
    )  # fmt: skip
    kind.add_argument("--on-demand", dest="capacity", action="store_const", const="on-demand", help="no spot machines")
    where.add_argument(
        "--on-demand-share", dest="on_demand", metavar="TASKS|SHARE", help="on demand always, such as 2 or 30%%"
    )
    where.add_argument("--node-label", dest="node_labels", **many, help="zone=a,b for either, ssd for any value")
    where.add_argument("--avoid-label", dest="avoid_labels", **many, help="no node with such a label")
    where.add_argument("--tolerate", dest="tolerations", **many, help="such taints; KEY for all its values")
    where.add_argument("--required-level", metavar="LEVEL", help="all in one region, zone, block, rack, nvlink or node")
    where.add_argument("--preferred-level", metavar="LEVEL", help="in one if possible, else in the next wider")
    where.add_argument("--spread", metavar="LEVEL[:N]", help="evenly over domains of a level, at most N apart")
    where.add_argument("--tag", dest="tags", **many, help="of this work, for others that want it near or apart")
    where.add_argument("--near", nargs="+", metavar="KEY=VALUE[:LEVEL]", help="where work with such tags is")
    where.add_argument("--apart", nargs="+", metavar="KEY=VALUE[:LEVEL]", help="where no such work is")
    where.add_argument("--data", nargs="+", metavar="ZONE", help="zones that hold its data")
