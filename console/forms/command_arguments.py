"""Arguments that commands of the shell share: the engine to reach, descriptions of work, and checked numbers.

Also the parsers of the commands for databases, work on this machine, tokens and the fleet. Like `console.cli.main` it
loads nothing heavy.
"""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

MAX_NUMBER = 2**53 - 1
"""The largest whole number that JSON carries exactly."""
MAX_CHOICES = 12
"""Longest list of choices in an error: nobody reads a hundred commands to find the one they meant."""


class ShellParser(argparse.ArgumentParser):
    """Parser that reports a wrong value by the name of its argument, and shows the usage only for input it cannot
    read."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # What begins like a negative number is a value, also with a unit behind it: -20m.
        self._negative_number_matcher = re.compile(r"-\d")

    def error(self, message: str) -> NoReturn:
        if not message.startswith("argument "):
            super().error(message)
        self.exit(2, f"muster: {message.removeprefix('argument ')}\n  See {self.prog} --help\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raises ArgumentError that names the nearest choice, where argparse would list them all."""
        if action.choices is None or value in action.choices:
            return
        from difflib import get_close_matches  # a right command does without

        choices = [str(choice) for choice in action.choices]
        near = get_close_matches(str(value), choices, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        if not near and len(choices) <= MAX_CHOICES:
            hint = f"; choose from {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"there is no {str(value)[:40]!a}{hint}")


def command(commands: Any, name: str, runs: str, text: str) -> argparse.ArgumentParser:
    """A command's parser. `runs` is `module:function`, loaded when the command runs."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
    made.set_defaults(run=runs)
    return made


def reach(target: argparse.ArgumentParser, *, sub: bool = False, json: Any = False) -> None:
    """Add the options that select an engine. They may stand before or after the command; the later one wins."""
    default = argparse.SUPPRESS if sub else None
    group = target.add_argument_group("which engine")
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
        "commands.money:showback", "commands.money:budgets", "commands.slurm:intents", "commands.history:history",
        "commands.history:events",
    )
)  # fmt: skip
"""Commands, by what they run, that can show an earlier time; all others act, or are about what is not kept."""


def as_json(target: argparse.ArgumentParser, default: Any = False) -> None:
    target.add_argument("--json", action="store_true", default=default, help="JSON on standard output, in raw units")


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
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not a number from 0 on")
    return value


def integer(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not a whole number") from None
    if abs(value) > MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is too large; give a number up to {MAX_NUMBER:,}")
    return value


_WHERE = "URL of a database or path of a file (default: that of the cell)"


def database_commands(commands: Any) -> None:
    database = command(
        commands, "database", "console.commands.database:show", "where a cell is kept: look, check, move"
    )
    parts = database.add_subparsers(title="commands", metavar="COMMAND", required=True)
    shown = command(parts, "show", "console.commands.database:show", "what is there, who writes it, and who stands by")
    shown.add_argument("where", nargs="?", default="", metavar="WHERE", help=_WHERE)
    reach(shown, sub=True)
    checked = command(
        parts, "check", "console.commands.database:check", "read every event and snapshot, and verify them"
    )
    checked.add_argument("where", nargs="?", default="", metavar="WHERE", help=_WHERE)
    reach(checked, sub=True)
    copied = command(
        parts, "copy", "console.commands.database:copy", "copy a cell that no engine serves, whole, to a new place"
    )
    copied.add_argument("source", metavar="FROM", help="file or URL")
    copied.add_argument("target", metavar="TO", help="file or URL; must be new")
    reach(copied, sub=True)


def here_commands(commands: Any) -> None:
    here = command(commands, "here", "console.cli.start:open_here", "run work on this machine: open its console")
    reach(here, sub=True)
    run = command(
        commands, "run", "console.commands.processes:run", "run a command as a workload, such as: run -- ./train.sh"
    )
    run.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="program and arguments")
    run.add_argument("-f", "--follow", action="store_true", help="show its output and end as it ends")
    run.add_argument("--id", help="unique id; made up when not given")
    run.add_argument("--queue", default="main", help="queue to submit to (main)")
    run.add_argument("--cpus", metavar="CORES", default="1", help="of one task, such as 4 or 500m (1)")
    run.add_argument("--memory", metavar="SIZE", default="1GiB", help="of one task (1GiB); more ends it")
    run.add_argument("--gpus", metavar="GPUS", default="0", help="of one task, such as 1 or 0.5 (0)")
    run.add_argument("--tasks", type=positive, default=1, metavar="N", help="so many at once, as a gang (1)")
    run.add_argument("--array", metavar="RANGE", help="many of a kind, such as 0-99 or 0-99%%10 at once")
    run.add_argument("--after", nargs="+", metavar="ID", help="wait for these, as in prep or prep:failed")
    run.add_argument("--estimate", metavar="TIME", help="how long it may run, such as 6h")
    run.add_argument("--max-runtime", metavar="TIME", help="stop it as failed when it runs longer")
    run.add_argument("--retries", type=int, default=0, metavar="N", help="how often it starts again after failing (0)")
    run.add_argument("--grace", metavar="TIME", default="10s", help="between SIGTERM and SIGKILL (10s)")
    run.add_argument("--cwd", metavar="DIR", help="folder it begins in (this one)")
    run.add_argument("--env", metavar="NAME[=VALUE]", action="append", default=[], help="a variable; may be repeated")
    run.add_argument("--priority", metavar="CLASS", help="priority class (default normal)")
    reach(run, sub=True)
    logs = command(commands, "logs", "console.commands.processes:logs", "what a workload has written on this machine")
    logs.add_argument("id")
    logs.add_argument("-f", "--follow", action="store_true", help="and what it writes from now on, until it ends")
    logs.add_argument("--task", default="", metavar="TASK", help="name or number of a task of a gang (the first)")
    logs.add_argument("--attempt", type=positive, default=0, metavar="N", help="an earlier attempt (the last)")
    logs.add_argument("--tail", metavar="SIZE", default="64KiB", help="begin so far from the end (64KiB)")
    logs.add_argument("--all", action="store_true", help="all that is kept")
    reach(logs, sub=True)
    told = "the processes of a workload, by attempt; without an id of all that runs here"
    processes = command(commands, "processes", "console.commands.processes:processes", told)
    processes.add_argument("id", nargs="?")
    reach(processes, sub=True)


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


def token_commands(commands: Any) -> None:
    text = "tokens that prove over the network who asks"
    tokens = commands.add_parser("token", help=text, description=text, allow_abbrev=False)
    kinds = tokens.add_subparsers(title="commands", metavar="COMMAND", required=True)
    made = command(kinds, "create", "console.commands.tokens:create", "make one; its secret is printed this once")
    made.add_argument("name", metavar="NAME", help="what it is for, such as ci-nightly")
    made.add_argument(
        "--scope", action="append", default=[], choices=tuple(SCOPES), help="what it may be used for (read)"
    )
    made.add_argument("--for", dest="life", default="90d", metavar="TIME", help="how long it holds, such as 8h (90d)")
    made.add_argument("--service", default="", metavar="ID", help="for a service instead of yourself")
    for part in ("pool", "queue", "tenant"):
        made.add_argument(
            f"--{part}", action="append", default=[], metavar="NAME", help=f"only what touches this {part}"
        )
    made.add_argument("--out", metavar="FILE", help="a new file for the secret, readable by you alone")
    listed = command(kinds, "list", "console.commands.tokens:list_", "yours; for an admin all of them")
    listed.add_argument("--all", action="store_true", help="those that are expired or revoked too")
    listed.add_argument("--limit", type=positive, default=200, metavar="N", help="so many (200)")
    revoked = command(kinds, "revoke", "console.commands.tokens:revoke", "it counts for nothing from now on")
    revoked.add_argument("id", metavar="ID", nargs="+", help="as `muster token list` has it")
    for one in (made, listed, revoked):
        reach(one, sub=True)
    who = command(commands, "who", "console.commands.tokens:who", "who is here: the consoles, and what they are on")
    login = command(
        commands, "login", "console.commands.tokens:login", "log in to an engine at a URL with its OpenID provider"
    )
    login.add_argument(
        "--ca-file", default="", metavar="FILE", help="certificates (PEM) that the provider's comes from"
    )
    logout = command(commands, "logout", "console.commands.tokens:logout", "revoke and forget what `muster login` got")
    for one in (login, logout, who):
        reach(one, sub=True)


QOS = ("guaranteed", "burstable", "best_effort")


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


STATES = ("waiting", "sending", "routed", "ended", "withdrawn")


def fleet_commands(commands: Any) -> None:
    """Add `muster fleet`: several cells as one, submissions to all of them, and where each went."""
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
