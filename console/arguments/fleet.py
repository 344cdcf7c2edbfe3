"""What can be typed behind `muster fleet`. Loads nothing heavy."""

from __future__ import annotations

import argparse
from typing import Any

from console.arguments.parsing import as_json, command, count, positive
from console.arguments.submissions import submit_arguments

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
    made = command(kinds, name, f"console.cli.fleet:{name}", text)
    group = made.add_argument_group("which fleet")
    group.add_argument("--fleet", metavar="DIR", help="folder of its journal and socket (default: the user's)")
    if name in ("submit", "withdraw", "close", "open", "stop"):
        group.add_argument("--readonly", action="store_true", default=argparse.SUPPRESS, help="show, never act")
    if json:
        as_json(made)
    else:
        made.set_defaults(json=False)
    return made
