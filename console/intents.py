"""The command `muster intents`: what is under way to the scheduler that decides, and what came of it."""

from __future__ import annotations

import argparse
from contextlib import closing

from console.attach import connect
from console.intent_text import intent_lines
from console.show import write_json, write_lines


def intents(arguments: argparse.Namespace) -> int:
    """1 where a person has to look at one."""
    with closing(connect(arguments)) as client:
        report = client.intents(arguments.limit)
    if arguments.json:
        write_json(report)
    else:
        write_lines(intent_lines(report))
    return 1 if report.in_doubt else 0
