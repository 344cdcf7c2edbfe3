"""Rows of the gate's tables as the audit tells of them: each record has the digests of the rows that were written with
it, so that a row that somebody changed, put in or took out beside Muster is found (`runbooks.audit.verify`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, inspect, select, table, text

from runbooks.audit.verify import GATE_TABLES, row_digest, row_name

Rows = Mapping[str, str]
"""Name of a row -> its digest."""
_OF_PROPOSAL = frozenset(
    ("proposal", "proposal_revision", "proposal_step", "vote", "confirmation", "effect", "review", "outbox")
)
"""Tables whose rows name a proposal by its number; 0: none."""


def kept(table: Table, row: Mapping[str, Any]) -> dict[str, str]:
    """Of a row with all its columns."""
    return {row_name(table.name, row): row_digest(row)}


def reread(connection: Connection, table: Table, where: ColumnElement[bool]) -> dict[str, str]:
    """Of rows as they are now."""
    found: dict[str, str] = {}
    for row in connection.execute(select(table).where(where)).mappings():
        found |= kept(table, dict(row))
    return found


def all_rows(connection: Connection) -> Iterator[tuple[str, dict[str, str]]]:
    """(id of the proposal, its rows) of all that is in the gate's tables; "" for what is of none."""
    there = set(inspect(connection).get_table_names())
    found: dict[str, dict[str, str]] = {}
    for name in sorted(GATE_TABLES.keys() & there):
        for values in connection.execute(select(text("*")).select_from(table(name))).mappings():
            row = dict(values)
            number = row["number"] if name in _OF_PROPOSAL else 0
            found.setdefault(f"P-{number}" if number else "", {})[row_name(name, row)] = row_digest(row)
    yield from found.items()
