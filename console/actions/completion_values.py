"""Values that only the engine knows, for completion in a filter: queues, pools, tenants, racks, ids.

What has an id is found by how it begins; of other columns those values are offered that the newest rows have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from console.forms.filters import Listed, asked_value, quoted, token_at
from console.forms.row_filters import ANYWHERE
from engine.model.queries import COLUMNS, Query, Term

if TYPE_CHECKING:
    from console.client.protocol import Client
    from engine.model.queries import Kind

MOST = 40
LOOKED_AT = 1_000
"""Rows whose values are offered."""
_BY_ID: dict[tuple[str, str], tuple[str, ...]] = {
    ("workloads", "id"): ("workload",), ("workloads", ANYWHERE): ("workload",), ("workloads", "queue"): ("queue",),
    ("nodes", "id"): ("node",), ("nodes", ANYWHERE): ("node",), ("nodes", "pool"): ("pool",),
    ("nodes", "zone"): ("zone",), ("nodes", "block"): ("block",), ("nodes", "rack"): ("rack",),
    ("queues", "name"): ("queue",), ("queues", ANYWHERE): ("queue",), ("queues", "parent"): ("queue",),
    ("pools", "name"): ("pool",), ("pools", ANYWHERE): ("pool",), ("orders", "pool"): ("pool",),
    ("orders", "workload"): ("workload",), ("events", "subject"): ("workload", "node", "queue", "pool"),
    ("events", ANYWHERE): ("workload", "node"),
}  # fmt: skip
"""Page and column -> kinds of `engine.model.queries.Hit` that its values are ids of."""


class WantedValue(NamedTuple):
    """A value that is being typed: of which column, how it begins, and what stands before it in the word."""

    page: Listed
    column: str
    begun: str
    before: str


def wanted_value(page: Listed, text: str, cursor: int) -> WantedValue | None:
    """What is to be asked for at the cursor; None where no value is typed that the engine would know."""
    asked = asked_value(page, text, cursor)
    if asked is None:
        return None
    column, begun = asked
    if (page, column) not in _BY_ID and (column == ANYWHERE or page not in COLUMNS):
        return None
    token = token_at(text, cursor)
    typed = token.text[: cursor - token.start]
    return WantedValue(page, column, begun, typed[: len(typed) - len(begun)].replace('"', ""))


def values(client: Client, wanted: WantedValue) -> list[str]:
    """Words that the one at the cursor could become. Blocks."""
    kinds = _BY_ID.get((wanted.page, wanted.column))
    if kinds is not None:
        found = [hit.id for hit in client.find(wanted.begun, kinds, MOST)] if wanted.begun else _all_of(client, kinds)
    else:
        where = (Term(wanted.column, "=", f"{wanted.begun}*"),) if wanted.begun and "*" not in wanted.begun else ()
        kind = cast("Kind", wanted.page)
        page = client.query(Query(kind=kind, columns=(wanted.column,), where=where, limit=LOOKED_AT))
        found = [str(row[0]) for row in page.rows if row[0]]
    return [wanted.before + quoted(value) for value in list(dict.fromkeys(found))[:MOST]]


def _all_of(client: Client, kinds: tuple[str, ...]) -> list[str]:
    """The first of them, where nothing is typed yet: there are few queues and pools."""
    kind = {"queue": "queues", "pool": "pools"}.get(kinds[0])
    if kind is None:
        return []
    page = client.query(Query(kind=cast("Kind", kind), columns=("name",), limit=MOST))
    return [str(row[0]) for row in page.rows]
