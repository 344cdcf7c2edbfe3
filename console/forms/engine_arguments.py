"""Arguments by which every command finds its engine, and the commands about where a cell is kept.

What the arguments of every command are made of: how an engine is reached, and numbers that are checked.

The commands about where a cell is kept, as they are typed.

The commands of a cell that runs work on this machine, as they are typed.

What can be typed about who asks over the network: `muster token`, `muster login`, `muster logout`.

Like `console.cli.main`, it loads nothing heavy.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

MAX_NUMBER = 2**53 - 1
"""The largest whole number that JSON carries exactly."""
MAX_CHOICES = 12
"""An error lists no more than that: nobody reads a hundred commands to find the one they meant."""


class ShellParser(argparse.ArgumentParser):
    """A wrong value is told by the name of its argument; only what cannot be read at all shows how it is written."""

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
    """How to reach an engine. May stand before or after the command; the one after it wins."""
    default = argparse.SUPPRESS if sub else None
    group = target.add_argument_group("which engine")
    group.add_argument("--cell", metavar="NAME", default=default, help="the cell, by the name of its state folder")
    group.add_argument("--connect", metavar="URL", default=default, help="URL or socket of a running engine")
    group.add_argument("--readonly", action="store_true", default=default, help="show, never act")
    group.add_argument(
        "--as", dest="operator", metavar="PERSON", default=default, help="in whose name; signed with their key"
    )
    if sub:
        as_json(target, json)


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


SCOPES = (
    "read", "submit", "configure", "propose", "vote", "execute", "freeze", "policy", "break-glass", "audit", "agent",
)  # fmt: skip
"""As in `console.client.tokens`, which takes longer to load."""


def token_commands(commands: Any) -> None:
    text = "tokens that prove over the network who asks"
    tokens = commands.add_parser("token", help=text, description=text, allow_abbrev=False)
    kinds = tokens.add_subparsers(title="commands", metavar="COMMAND", required=True)
    made = command(kinds, "create", "console.commands.tokens:create", "make one; its secret is printed this once")
    made.add_argument("name", metavar="NAME", help="what it is for, such as ci-nightly")
    made.add_argument("--scope", action="append", default=[], choices=SCOPES, help="what it may be used for (read)")
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
