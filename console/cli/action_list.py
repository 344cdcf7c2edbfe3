"""The command `muster actions`: everything that can be done to a cell, and what is declared of it."""

from __future__ import annotations

import argparse
import textwrap

from console.arguments.actions import metavar_of
from console.cli.show import write_json, write_lines
from runbooks.actions import catalogue_table
from runbooks.actions.catalogue import find
from runbooks.actions.catalogue_table import ActionLine
from runbooks.plans.amounts import span

WIDTH = 80


def run(arguments: argparse.Namespace) -> None:
    if arguments.json:
        write_json(catalogue_table.lines())
    elif arguments.markdown:
        write_lines(catalogue_table.markdown({line.name: shell(line) for line in catalogue_table.lines()}))
    else:
        write_lines(told for line in catalogue_table.lines() for told in described(line))


def shell(line: ActionLine) -> str:
    """As in `muster drain NODE...`."""
    action = find(line.name)
    metavar = metavar_of(action)
    many = "..." if metavar and action.most > 1 else ""
    return f"muster {action.shell} {metavar}{many}".rstrip()


def described(line: ActionLine) -> list[str]:
    """A heading, and what is declared of it."""
    facts = (
        ("on", f"{line.targets}; {line.when}" if line.when else line.targets),
        ("tier", f"{line.tier}, raised by: {line.raised}" if line.raised else line.tier),
        ("back", line.inverse),
        ("seen", f"{line.verified}; within {span(line.timeout_ms)}"),
    )
    told = [shell(line)]
    for label, text in facts:
        told += textwrap.wrap(text, WIDTH, initial_indent=f"  {label:<5} ", subsequent_indent=" " * 8)
    return told
