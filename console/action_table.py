"""The command `muster actions`: everything that can be done to a cell, and what is declared of it."""

from __future__ import annotations

import argparse
import textwrap

from console.action_arguments import metavar_of
from console.show import write_json, write_lines
from runbooks import action_table
from runbooks.action_table import ActionLine
from runbooks.actions.catalog import find
from runbooks.amounts import span

WIDTH = 80


def run(arguments: argparse.Namespace) -> None:
    if arguments.json:
        write_json(action_table.lines())
    elif arguments.markdown:
        write_lines(action_table.markdown({line.name: shell(line) for line in action_table.lines()}))
    else:
        write_lines(told for line in action_table.lines() for told in described(line))


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
