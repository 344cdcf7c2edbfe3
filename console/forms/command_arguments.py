"""Arguments that commands of the shell share: the engine to reach, descriptions of work, and checked numbers.

Like `console.cli.main` it loads nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import Any

from console.forms.shell_parser import SHARED

MAX_NUMBER = 2**53 - 1
"""The largest whole number that JSON carries exactly."""


def reach(target: argparse.ArgumentParser, *, sub: bool = False, json: Any = False) -> None:
    """Add the options that select an engine. They may stand before or after the command; the later one wins."""
    default = argparse.SUPPRESS if sub else None
    group = target.add_argument_group(SHARED)
    group.add_argument("--cell", metavar="NAME", default=default, help="the cell, by the name of its state folder")
    group.add_argument("--connect", metavar="URL", default=default, help="URL or socket of a running engine")
    group.add_argument(
        "--environment", metavar="NAME", default=default, help="its [environments.NAME] in the settings file"
    )
    group.add_argument("--readonly", action="store_true", default=default, help="show, never act")
    group.add_argument(
        "--at", metavar="TIME", default=default, help="as it was at that cell time: 03:12, -20m or 2026-04-13 03:12"
    )
    group.add_argument(
        "--as", dest="operator", metavar="PERSON", default=default, help="in whose name; signed with their key"
    )
    if sub:
        as_json(target, json)


SHOWS_PAST = frozenset(
    f"console.{runs}"
    for runs in (
        "cli.start:open_console", "commands.show:overview", "commands.show:get", "commands.show:why",
        "commands.capacity:fairness", "commands.capacity:fragmentation", "commands.money:spot",
        "commands.money:showback", "commands.money:budgets", "commands.external_scheduler:intents",
        "commands.history:history", "commands.history:events",
    )
)  # fmt: skip
"""Commands, by what they run, that can show an earlier time; all others act, or are about what is not kept."""


def reached(target: argparse.ArgumentParser) -> None:
    """Give a command that takes no arguments the options that select an engine."""
    reach(target, sub=True)


def as_json(target: argparse.ArgumentParser, default: Any = False) -> None:
    target.add_argument("--json", action="store_true", default=default, help="JSON on standard output, in raw units")


def long_running(target: argparse.ArgumentParser) -> None:
    """Add options of a command that computes for long and asks no engine."""
    as_json(target)
    target.add_argument(
        "--progress", choices=("auto", "json", "off"), default="auto",
        help="on standard error: auto, a line where that is a terminal; json, a line for programs; off",
    )  # fmt: skip


def ahead(target: argparse.ArgumentParser, *, arrivals: bool = False) -> None:
    """Add options for the horizon, number and load of the twin's runs."""
    target.add_argument("--horizon", default="24h", metavar="TIME", help="how far to run ahead (default 24h)")
    target.add_argument("--seeds", type=positive, metavar="N", help="how often, with other draws of run times")
    target.add_argument("--seed", type=count, default=0, metavar="N", help="of the first; the same gives the same")
    more = "more work arrives as it did of late" if not arrivals else "leave out that more work arrives as of late"
    target.add_argument("--arrivals", action=argparse.BooleanOptionalAction, default=arrivals, help=more)


SCENARIOS = ("gke-65k", "gke-130k", "clemson", "spot-week", "predictive-day")


def scenario(target: argparse.ArgumentParser) -> None:
    target.add_argument("--scenario", choices=SCENARIOS, help="with --demo: watch this instead of days of AI work")
    target.add_argument("--quiet-day", action="store_true", help="with --demo: without a past, and nothing goes wrong")


def speed(target: argparse.ArgumentParser) -> None:
    target.add_argument("--speed", type=ratio, metavar="X", help="cell seconds per second (demo: 60)")


def list_arguments(get: argparse.ArgumentParser) -> None:
    get.add_argument("id", nargs="?", help="show this one only")
    get.add_argument("-f", "--filter", default="", metavar="FILTER", help="such as 'state:queued gpu>=8 sort:-wait'")
    get.add_argument("--sort", default="", metavar="COLUMNS", help="such as gpu:desc,id")
    get.add_argument("--columns", default="", metavar="COLUMNS", help="comma-separated; see --columns help")
    get.add_argument("-o", "--output", choices=("table", "csv", "json"), default="table", help="csv for spreadsheets")
    get.add_argument("--limit", type=count, default=100, metavar="N", help="rows at most, 0 for all (default 100)")
    reach(get, sub=True)


def path_of(text: str) -> Any:
    from pathlib import Path

    return Path(text)


def positive(text: str) -> int:
    value = integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1; give a whole number from 1 on")
    return value


def count(text: str) -> int:
    value = integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is below 0; give a whole number from 0 on")
    return value


def ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not a number; give one from 0 to 1000000")
    return value


def integer(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not a whole number") from None
    if abs(value) > MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is too large; give a number up to {MAX_NUMBER:,}")
    return value


SCOPES: dict[str, tuple[str, ...]] = {
    "read": ("read",),
    "submit": ("read", "submit"),
    "configure": ("read", "configure"),
    "propose": ("read", "propose", "cancel"),
    "vote": ("read", "vote", "review", "runbook"),
    "execute": ("read", "execute", "pause", "rollback", "cancel"),
    "freeze": ("read", "freeze", "thaw", "pause"),
    "policy": ("read", "policy"),
    "break-glass": ("read", "break_glass"),
    "audit": ("read", "export"),
    "incident": ("read", "respond"),
    "alert": ("alert",),
    "agent": ("agent",),
}
"""Scope of a token -> rights of `runbooks.gate.approval_policy`; "agent" is to report as a node. A token never gives
more than the rights of its subject. No scope allows changing keys or erasing from the audit."""


QOS = ("guaranteed", "burstable", "best_effort")
RERUN = ("never", "if-unstarted", "always")


def submit_arguments(submit: argparse.ArgumentParser) -> None:
    """Add the file, or the flags that describe one workload."""
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
    submit.add_argument("--rerun", choices=RERUN, help="on Slurm: when it is lost there and may have run")
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
    """Add placement constraints. Levels and profiles are checked together with files."""
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


def quote_arguments(target: argparse.ArgumentParser) -> None:
    """Add the work, its start time, prices from outside the cell, and the time to search."""
    target.add_argument("--nodes", type=positive, metavar="N", help="nodes, one task on each")
    target.add_argument("--gpus", type=count, metavar="N", help="GPUs of each node (default all it has)")
    target.add_argument("--model", metavar="MODEL", help="of the GPUs, such as H100")
    target.add_argument("--hours", metavar="X", help="how long it runs; else from what ran before")
    target.add_argument("--start", default="now", metavar="WHEN", help='now, tonight, +6h or "2026-11-22 02:00" (UTC)')
    target.add_argument("--spot", action="store_true", help="spot machines only")
    work = target.add_argument_group("the work")
    work.add_argument("--cpus", metavar="CORES", help="of each node (default its part of them, as of the GPUs)")
    work.add_argument("--memory", metavar="SIZE", help="of each node, such as 64GiB (default as --cpus)")
    work.add_argument("--queue", metavar="NAME", help="queue it would go to (default the largest leaf)")
    work.add_argument("--tenant", metavar="NAME", help="who pays; without --hours, whose work it is like")
    work.add_argument("--name", metavar="NAME", help="without --hours, what it is like")
    work.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    work.add_argument("--checkpoint", metavar="TIME", help="what it keeps when it is stopped: work up to every so long")
    outside = target.add_argument_group("outside the cell")
    outside.add_argument("--prices", metavar="FILE", help="price list, as of `define`")
    outside.add_argument("--machine-type", metavar="TYPE", action="append", help="of the list (default the pools' own)")
    outside.add_argument("--region", metavar="NAME", help="of the list (default all)")
    ahead = target.add_argument_group("how it is found")
    ahead.add_argument("--seeds", type=positive, metavar="N", help="so many rehearsals, to the end, however long")
    ahead.add_argument("--within", metavar="TIME", help="runs ahead for so long, such as 20s (default half a second)")
    ahead.add_argument("--seed", type=count, default=0, metavar="N", help="of the first; the same gives the same")
    ahead.add_argument(
        "--arrivals", action=argparse.BooleanOptionalAction, default=True, help="more work arrives as of late (default)"
    )
