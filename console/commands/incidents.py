"""`muster incident`: what is open, one of them whole, and what people on call do with it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from console.client.attach import connect
from console.commands.show import tell_lines, write_json, write_lines
from console.text.plain_tables import table
from console.text.terminal_text import cut, printable
from console.views.incidents import HEADINGS, chart, incident_columns, incident_page, parse_words, row_of
from console.views.lists import none_found, rows_that_match
from console.views.proposal import name_of
from console.views.sections import section_lines
from runbooks.plans.incidents import NewIncident

if TYPE_CHECKING:
    from console.client.protocol import Client
    from runbooks.plans.incidents import Incident

WIDTH = 78
CHART_ROWS = 7
CELL = 40
"""Cells of a column of the list, but the last."""


def list_(arguments: argparse.Namespace) -> None:
    """Those that match and are not closed, newest first; with --all, or a state in the filter, the others too."""
    terms, states = parse_words(arguments.filter)
    with closing(connect(arguments)) as client:
        found = client.incidents(() if arguments.all else states)
        now_ms = client.health().now_ms
    kept = rows_that_match([row_of(each, now_ms) for each in found], HEADINGS, terms)
    if arguments.json:
        ids = {row.id for row in kept}
        write_json([each for each in found if each.id in ids])
        return
    rows = [[cut(text, CELL) for text, _ in row.cells] for row in kept]
    titles = [heading.title for heading in HEADINGS]
    write_lines(
        table(titles, rows, [heading.right for heading in HEADINGS])
        if rows
        else [none_found("incidents", printable(arguments.filter))]
    )


def show(arguments: argparse.Namespace) -> None:
    with closing(connect(arguments)) as client:
        page = incident_page(client, arguments.id)
    if arguments.json:
        write_json(page._asdict())
        return
    left, right = incident_columns(page, WIDTH)
    write_lines(section_lines([left[0], *chart(page, WIDTH, CHART_ROWS), *left[1:], *right]))


def open_(arguments: argparse.Namespace) -> None:
    new = NewIncident(title=arguments.title, severity=arguments.severity, objects=tuple(arguments.on))
    _did(arguments, lambda client: client.open_incident(new), "is open")


def claim(arguments: argparse.Namespace) -> None:
    _did(arguments, lambda client: client.claim_incident(arguments.id, arguments.over), "is yours")


def hand_over(arguments: argparse.Namespace) -> None:
    told = f"is {name_of(arguments.to)}'s"
    _did(arguments, lambda client: client.hand_over_incident(arguments.id, arguments.to, arguments.note), told)


def note(arguments: argparse.Namespace) -> None:
    _did(arguments, lambda client: client.note_incident(arguments.id, arguments.text), "has your note")


def close(arguments: argparse.Namespace) -> None:
    _did(arguments, lambda client: client.close_incident(arguments.id, arguments.found), "is closed")


def _did(arguments: argparse.Namespace, do: Callable[[Client], Incident], told: str) -> None:
    """Its id to standard output, what became of it beside that."""
    with closing(connect(arguments)) as client:
        done = do(client)
    if arguments.json:
        write_json(done)
        return
    write_lines([printable(done.id)])
    tell_lines([f"{printable(done.id)} {told}"])
