"""`muster events`: what happened, and what happens, one line each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from console.cli.show import tell_lines, write_json, write_lines
from console.forms.filters import parse_filter
from console.forms.row_filters import matches
from console.processes.attach import connect
from console.text.terminal_text import printable, timestamp
from console.views.event_log import values_of

if TYPE_CHECKING:
    from engine.model.queries import Change, Changes, Term

MOST = 10_000
"""Events that are looked through for the newest that a filter wants."""


def events(arguments: argparse.Namespace) -> None:
    """The newest that satisfy the filter, oldest first; then, if wanted, what happens from there on."""
    terms = parse_filter("events", " ".join(arguments.filter))
    with closing(connect(arguments)) as client:
        found = client.changes(0, 0.0, MOST)
        wanted = _satisfying(found, terms)
        _write(wanted[len(wanted) - arguments.limit :] if arguments.limit < len(wanted) else wanted, arguments.json)
        if not arguments.follow:
            return
        for fresh in client.follow(found.version):
            if fresh.missed:
                tell_lines([f"muster: {fresh.missed:,} events came too fast to be told"])
            _write(_satisfying(fresh, terms), arguments.json)


def _satisfying(found: Changes, terms: Sequence[Term]) -> list[Change]:
    return [item for item in found.items if matches(terms, values_of(item, found.at_ms))]


def _write(items: Iterable[Change], as_json: bool) -> None:
    if as_json:
        for item in items:
            write_json(item)
    else:
        write_lines(_line(item) for item in items)
    sys.stdout.flush()


def _line(item: Change) -> str:
    what, subject, detail = printable(item.what), printable(item.subject), printable(item.detail)
    return f"{timestamp(item.at_ms)}  {what:<12}  {subject:<28}  {detail}".rstrip()
