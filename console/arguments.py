"""What the arguments of every command are made of: how an engine is reached, and numbers that are checked."""

from __future__ import annotations

import argparse
from typing import Any


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
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def count(text: str) -> int:
    value = integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
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
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!a} is not a whole number") from None
