"""What the arguments of every command are made of: how an engine is reached, and numbers that are checked."""

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
