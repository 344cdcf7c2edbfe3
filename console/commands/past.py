"""`muster diff`: what changed between two times."""

from __future__ import annotations

import argparse
from contextlib import closing

from console.client.attach import connect, wait_until_shown
from console.commands.show import WIDTH, write_json, write_lines
from console.forms.past_times import DifferenceWords
from console.text.terminal_text import timestamp
from console.views.difference import columns
from console.views.sections import section_lines
from engine.traces.progress import counter


def diff(arguments: argparse.Namespace) -> None:
    words = DifferenceWords(arguments.since, arguments.until, arguments.queue, arguments.node)
    with closing(connect(arguments)) as client:
        known = client.past(0)
        asked = words.request(known.earliest_ms, known.now_ms, arguments.limit)
        tell = counter("permille of that time read", 1000)
        wait_until_shown(
            client, asked.until_ms, lambda status: tell(status.permille) if tell is not None else None, asked.since_ms
        )
        found = client.difference(asked)
    if arguments.json:
        write_json(found)
        return
    left, right = columns(found, WIDTH)
    write_lines([f"from {timestamp(found.since_ms)} to {timestamp(found.until_ms)} UTC", ""])
    write_lines(section_lines([*left, *right]))
