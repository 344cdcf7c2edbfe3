"""Lists by GET, with the filters of the console and a cursor.

    GET /v1/workloads?filter=state:queued gpu>=8&columns=id,queue,wait&limit=500
    GET /v1/workloads?filter=state:queued gpu>=8&columns=id,queue,wait&limit=500&cursor=<next of the answer before>

In creation order a cursor goes on behind the last row that was told: every row that matches all the time comes once and
none is left out, whatever is submitted, ends or changes meanwhile. Each page is of the moment it is asked for, and says
which version that is. With `sort` there is `offset` instead, which makes no such promise.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from console.auth.identity import CALLER
from console.forms.filters import parse_columns, parse_sort, parse_view
from console.server.operations import Number, Operation, TextParameter
from console.server.request_handler import answer_of, least_of
from engine.model.errors import SpecError
from engine.model.queries import Kind, Page, Query
from engine.reads.answers import MAX_ROWS

if TYPE_CHECKING:
    from console.server.cached_reads import Reads
    from console.service.local_client import LocalClient

KINDS: tuple[Kind, ...] = get_args(Kind)
PARAMETERS = (
    TextParameter("filter", "As on the console: state:queued queue:research/* gpu>=8 age>1h !tenant:acme word"),
    TextParameter("columns", "Which, with commas between; none: the usual ones"),
    TextParameter("sort", "Columns, with - in front to turn one around; none: in creation order"),
    Number("limit", 100, 1, MAX_ROWS, "At most so many rows"),
    Number("offset", 0, 0, 2**31, "How many rows to leave out; not with a cursor"),
    TextParameter("cursor", "`next` of the page before"),
)


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """`rows[i][j]` is column `columns[j]`: text, integer, or null where it does not apply."""

    version: int
    at_ms: int
    columns: tuple[str, ...]
    rows: list[list[Any]]
    matched: int
    """How many rows satisfy the filter now."""
    total: int
    """How many rows of this kind there are."""
    next: str
    """The cursor of what follows; empty where nothing does, and where rows are sorted."""


class Listings:
    """Made and used in one event loop."""

    def __init__(self, client: LocalClient, reads: Reads) -> None:
        self._client = client
        self._reads = reads

    def operations(self) -> tuple[Operation, ...]:
        return tuple(
            Operation(
                "GET", f"/v1/{kind}", f"{kind.capitalize()}, filtered, page by page", handler=self.listed,
                query=PARAMETERS, gives=Listing,
            )
            for kind in KINDS
        )  # fmt: skip

    async def listed(self, request: Request) -> Response:
        kind: Any = request.scope["path"].rpartition("/")[2]
        asked = {each.name: each.read(request.query_params.get(each.name)) for each in PARAMETERS}
        view = parse_view(kind, asked["filter"])
        sort = parse_sort(kind, asked["sort"]) if asked["sort"] else view.sort or ()
        if asked["cursor"] and (sort or asked["offset"]):
            raise SpecError("cursor", "goes neither with sort nor with offset", "Leave them out")
        query = Query(
            kind=kind,
            where=view.terms,
            columns=parse_columns(kind, asked["columns"]) if asked["columns"] else view.columns or (),
            sort=sort,
            limit=asked["limit"],
            offset=asked["offset"],
            from_row=row_of(asked["cursor"], kind, asked["filter"]) if asked["cursor"] else 0,
        )
        own = self._client.acting_as(CALLER.get()).own_version
        shown = await self._reads.told("query", (query,), own, least_of(request))
        page = msgspec.json.decode(shown.content, type=Page)
        listing = Listing(
            version=page.version,
            at_ms=page.at_ms,
            columns=page.columns,
            rows=page.rows,
            matched=page.matched,
            total=page.total,
            next=cursor_at(page.next_row, kind, asked["filter"]) if page.next_row >= 0 else "",
        )
        return answer_of(msgspec.json.encode(listing), shown.version)


def cursor_at(row: int, kind: str, filtered: str) -> str:
    """Says nothing to who gets it, but comes back as it was given."""
    return base64.urlsafe_b64encode(b"%d %s" % (row, _mark(kind, filtered))).decode().rstrip("=")


def row_of(cursor: str, kind: str, filtered: str) -> int:
    """Raises SpecError for a cursor that is none, or of another list."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        row, _, mark = base64.b64decode(padded, b"-_", validate=True).partition(b" ")
        if not (row.isdigit() and len(row) < 12):
            raise ValueError
    except (ValueError, binascii.Error):
        raise SpecError("cursor", f"{cursor[:60]!a} is no cursor", "Send `next` of the page before") from None
    if mark != _mark(kind, filtered):
        raise SpecError("cursor", "is of another list", "Keep filter and kind while you go from page to page")
    return int(row)


def _mark(kind: str, filtered: str) -> bytes:
    return hashlib.sha256(f"{kind}\n{filtered}".encode("utf-8", "surrogatepass")).hexdigest()[:8].encode()
