"""What is typed to describe work: submitted to a cell or to a fleet, or only asked the price of.

What is typed to describe work that is submitted: the same for one cell and for a fleet of them.

What is typed when somebody wants to know what work would cost: the same in the shell and in the `:` bar.

What can be typed behind `muster fleet`. Loads nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import Any

from console.forms.engine_arguments import as_json, command, count, positive

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


def quote_arguments(target: argparse.ArgumentParser) -> None:
    """The work, when it is to start, prices from outside the cell, and how long to look."""
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


STATES = ("waiting", "sending", "routed", "ended", "withdrawn")


def fleet_commands(commands: Any) -> None:
    """Several cells as one: their standing, what was submitted to all of them, and where it went."""
    told = "several cells as one: submit to whichever starts it sooner or for less"
    fleet = commands.add_parser("fleet", help=told, description=told, allow_abbrev=False)
    kinds = fleet.add_subparsers(title="what to do", metavar="WHAT", required=True)
    serve = _command(kinds, "serve", "run the fleet of a file in the foreground", json=False)
    serve.add_argument(
        "--file", required=True, metavar="FILE", help="YAML that names the cells, as docs/fleet.md tells"
    )
    serve.add_argument("--socket-group", metavar="GROUP", help="OS group that may submit too")
    serve.add_argument("--database", metavar="URL", help="PostgreSQL database for its journal, instead of a file")
    serve.add_argument("--standby", action="store_true", help="with --database: wait, and take over from the other")
    check = _command(kinds, "check", "read a fleet's file and say what is wrong with it", json=False)
    check.add_argument("file", metavar="FILE")
    copied = _command(kinds, "copy", "copy a fleet's journal that no process has open, to a new place", json=False)
    copied.add_argument("--file", required=True, metavar="FILE", help="YAML of the fleet, which tells its name")
    copied.add_argument("source", metavar="FROM", help="file or URL")
    copied.add_argument("target", metavar="TO", help="file or URL; must be new")
    _command(kinds, "stop", "stop the fleet's process; nothing is forgotten")
    _command(kinds, "status", "cells, what tenants hold of all of them, and what waits")
    submit = _command(kinds, "submit", "submit to the cell where it starts sooner or costs less")
    submit_arguments(submit)
    routing = submit.add_argument_group("which cells")
    routing.add_argument("--to", nargs="+", metavar="CELL", default=(), help="these cells alone")
    routing.add_argument(
        "--residency", nargs="+", metavar="LABEL", default=(), help="stays in one of these, such as eu"
    )
    routing.add_argument(
        "--dataset", nargs="+", metavar="NAME", default=(), help="reads these data of the fleet's file"
    )
    submit.add_argument("--dry-run", action="store_true", help="say where it would go and why; submit nothing")
    jobs = _command(kinds, "jobs", "what was submitted to the fleet, newest first")
    jobs.add_argument(
        "--state", action="append", choices=STATES, default=[], help="those in this state; may be repeated"
    )
    jobs.add_argument("--before", type=count, default=0, metavar="N", help="those submitted before number N")
    jobs.add_argument("--limit", type=positive, default=100, metavar="N", help="so many at most (100)")
    show = _command(kinds, "show", "one submission: where it went, and what each cell had to offer")
    show.add_argument("id", metavar="ID")
    withdraw = _command(kinds, "withdraw", "take back what waits in the fleet and is in no cell")
    withdraw.add_argument("ids", nargs="+", metavar="ID")
    for name, text in (
        ("close", "send nothing more to a cell; what is there goes on"),
        ("open", "send work to a cell again"),
    ):
        one = _command(kinds, name, text)
        one.add_argument("cell", metavar="CELL")
        one.add_argument("--reason", default="", help="kept with it")


def _command(kinds: Any, name: str, text: str, *, json: bool = True) -> argparse.ArgumentParser:
    made = command(kinds, name, f"console.commands.fleet:{name}", text)
    group = made.add_argument_group("which fleet")
    group.add_argument("--fleet", metavar="DIR", help="folder of its journal and socket (default: the user's)")
    if name in ("submit", "withdraw", "close", "open", "stop"):
        group.add_argument("--readonly", action="store_true", default=argparse.SUPPRESS, help="show, never act")
    if json:
        as_json(made)
    else:
        made.set_defaults(json=False)
    return made
