"""Routes that consoles watch: the event stream, lists page by page, and presence.

Event streams. A long poll, or server-sent events. Everybody who follows from the present on is sent the same bytes,
made once. A reader that reconnects gives the version it has seen (`Last-Event-ID`, or `after`) and gets what it
missed, as far back as is remembered, and how much was forgotten. A slow reader is not waited for: it is told how
much it missed, and continues from the present.

    id: 1042                          the state version up to which this tells
    event: changes                    `engine.model.overviews.Changes` as JSON; without items where only ticks are asked
    for data: {"version":1042,"at_ms":...,"items":[...],"missed":0}

A tick comes at least every second: it shows that the line is up, and carries the cell's clock. A console that gives
its `session` waits for everything on this one line (`console.client.remote`): `present` tells who else is here,
`absent` that the console is not known itself, `gate` that somebody voted, proposed or decided.

Lists. GET with the filters of the console and a cursor.

    GET /v1/workloads?filter=state:queued gpu>=8&columns=id,queue,wait&limit=500
    GET /v1/workloads?filter=state:queued gpu>=8&columns=id,queue,wait&limit=500&cursor=<next of the answer before>

In creation order a cursor continues behind the last row: every row that matches all the time comes once and none is
left out, whatever changes meanwhile. Each page is of the moment it is asked for, and names its version. With `sort`
there is `offset` instead, without that promise.

Presence. A console says where it is and waits for news of the others, without a thread.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from console.client.credentials import CALLER
from console.client.presence import WAIT_S, Presence, PresenceAsk
from console.client.protocol import Client
from console.client.questions import question_of
from console.forms.filters import parse_columns, parse_sort, parse_view
from console.server.operations import Number, Operation, TextParameter, asked_by, body, decoded
from console.server.request_handler import ReplicaReads, VersionWatch, answer_of, least_of
from engine.model.errors import MusterError, SpecError
from engine.model.list_queries import Kind, Page, Query
from engine.model.overviews import Changes
from engine.reads.answers import MAX_ROWS

if TYPE_CHECKING:
    from console.server.metrics import Metrics
    from console.service.local_client import LocalClient
    from console.service.scoped_client import ScopedClient
    from engine.loop import EngineLoop
    from runbooks.plans.identity import Actor


ITEMS = Number("items", 1, 0, 1, "1: what happened, one by one; 0: only that something did")
PACE = Number("pace_s", 0, 0, 10, "With items=0: at least so long between two frames with news, seconds", whole=False)
SESSION_OF = TextParameter("session", "A console's own, as in /v1/presence: it gets who else is here, and votes")
EVERY_S = 0.1
"""Between two frames, at least: what happens meanwhile is told together."""
TICK_S = 1.0
LOOK_S = 0.25
"""How often it is looked whether somebody voted: of that the state version says nothing."""
MAX_IN_FRAME = 2_000
AT_ONCE = 8
"""Streams that are written to at a stretch: about a millisecond."""
MAX_BEHIND = 16
"""Frames that wait for a slow reader; then they are dropped, and what they told counts as missed."""
STREAM = "text/event-stream"
_CHANGES = asked_by(question_of(Client.changes))


class EventFrame(msgspec.Struct, frozen=True):
    """Changes between two looks, ready to send."""

    version: int
    items: int
    missed: int
    whole: bytes
    bare: bytes
    """The same without items."""


class _Head(msgspec.Struct, frozen=True):
    """The parts of a `Changes` that are read before its bytes go out unchanged."""

    version: int
    at_ms: int
    items: tuple[msgspec.Raw, ...]
    missed: int


_HEAD = msgspec.json.Decoder(_Head)


class ConsoleNotice(msgspec.Struct, frozen=True):
    """News for consoles besides changes of the cell."""

    what: Literal["present", "gate"]
    serial: int


class StreamFollower:
    """One stream, and the frames waiting to be sent on it."""

    def __init__(self, *, items: bool, pace_s: float = 0.0, session: str = "") -> None:
        """`session`: of the console that follows; empty: it is none, or asks in other ways who is here."""
        self.items = items
        self.session = session
        self.frames: asyncio.Queue[EventFrame | ConsoleNotice | None] = asyncio.Queue(MAX_BEHIND)
        self.lost = 0
        """Changes that were not told, since the last frame that was sent."""
        self.told = 0
        """Version up to which it was told before it joined the others."""
        self._pace_s = 0.0 if items else pace_s
        self._given = self._due = 0.0
        """Version of the last frame with news, and when the next may come."""

    def give_paced(self, frame: EventFrame, now: float) -> float:
        """Give a frame, unless news came a moment ago. Returns when it is due then, or infinity."""
        if self._pace_s and frame.version > self._given:
            if now < self._due:
                return self._due
            self._given, self._due = frame.version, now + self._pace_s
        self.give(frame)
        return math.inf

    def give(self, frame: EventFrame | ConsoleNotice | None) -> None:
        try:
            self.frames.put_nowait(frame)
        except asyncio.QueueFull:
            kept: dict[str, ConsoleNotice] = {}
            while not self.frames.empty():
                dropped = self.frames.get_nowait()
                if isinstance(dropped, EventFrame):
                    self.lost += dropped.items + dropped.missed
                elif dropped is not None:
                    kept[dropped.what] = dropped
            for news in (*kept.values(), frame):
                self.frames.put_nowait(news)


class EventRoutes:
    """Handlers of the event stream. Made and used in one event loop."""

    def __init__(
        self, client: LocalClient, loop: EngineLoop, watch: VersionWatch, reads: ReplicaReads, metrics: Metrics
    ) -> None:
        self._client = client
        self._loop = loop
        self._watch = watch
        self._reads = reads
        self._metrics = metrics
        self._aio = asyncio.get_running_loop()
        self._followers: set[StreamFollower] = set()
        self._teller: asyncio.Task[None] | None = None
        self._seen = 0
        """Version up to which the followers have been told."""
        self._due = math.inf
        """When one of them is to have news that came too soon after others."""
        self._voted = 0
        """Records of the gate that consoles have been told of."""
        self._closed = False
        self._leave = client.presence.listen(self._moved)

    def operations(self) -> tuple[Operation, ...]:
        return (
            Operation("GET", "/v1/events", "What happens, as it happens, as server-sent events",
                      query=(Number("after", -1, -1, 2**62, "Version from which on to tell; -1: the present"), ITEMS,
                             PACE, SESSION_OF),
                      handler=self.follow, scoped=self.follow_for, gives=str, media=STREAM, follows=True),
        )  # fmt: skip

    def close(self) -> None:
        """End every stream."""
        self._leave()
        self._closed = True
        if self._teller is not None:
            self._teller.cancel()
        for follower in self._followers:
            follower.give(None)

    async def changes(self, request: Request) -> Response:
        after, wait_s, limit = (each.read(request.query_params.get(each.name)) for each in _CHANGES.query)
        if wait_s:
            await self._watch.wait(int(after), wait_s)
        own = self._client.acting_as(CALLER.get()).own_version
        shown = await self._reads.told("changes", (after, limit), own, least_of(request))
        return answer_of(shown.content, shown.version)

    async def changes_for(self, request: Request, client: ScopedClient) -> Response:
        """The same for a caller who sees part of the cell."""
        after, wait_s, limit = (each.read(request.query_params.get(each.name)) for each in _CHANGES.query)
        if wait_s:
            await self._watch.wait(int(after), wait_s)
        found = await to_thread.run_sync(client.changes, int(after), 0.0, int(limit))
        return answer_of(msgspec.json.encode(found), found.version)

    async def follow_for(self, request: Request, client: ScopedClient) -> Response:
        """The stream of a caller who sees part of the cell: made for them alone. Nothing is told of other consoles."""
        after = _after_of(request)
        items = bool(ITEMS.read(request.query_params.get("items")))
        begun = self._loop.copies.shown_version()
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "muster-version": str(begun)}
        stream = self._stream_for(client, CALLER.get(), begun if after < 0 else min(after, begun), items=items)
        return StreamingResponse(stream, headers=headers, media_type=STREAM)

    async def _stream_for(self, client: ScopedClient, actor: Actor, after: int, *, items: bool) -> AsyncIterator[bytes]:
        """Ends when they may see more or less than at its beginning."""
        self._metrics.followers.inc()
        try:
            while not self._closed and await to_thread.run_sync(self._client.visibility_of, actor) == client.seen:
                found = await to_thread.run_sync(client.changes, after, 0.0, MAX_IN_FRAME if items else 0)
                after = found.version
                yield self._counted(_framed(found.version, msgspec.json.encode(found)))
                await asyncio.sleep(EVERY_S)
                await self._watch.wait(after, TICK_S)
        except MusterError:  # it is stopping
            return
        finally:
            self._metrics.followers.dec()

    async def follow(self, request: Request) -> Response:
        after = _after_of(request)
        follower = StreamFollower(
            items=bool(ITEMS.read(request.query_params.get("items"))),
            pace_s=PACE.read(request.query_params.get("pace_s")),
            session=SESSION_OF.read(request.query_params.get("session")),
        )
        actor = CALLER.get()
        if follower.session:
            self._client.presence.keep(actor, follower.session)
        begun = self._loop.copies.shown_version()
        if after > self._loop.engine.version:
            raise SpecError(
                "after", f"this engine is at version {self._loop.engine.version}, before {after}", "Follow from -1"
            )
        stream = self._stream(follower, actor, begun if after < 0 else after)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no", "muster-version": str(begun)}
        return StreamingResponse(stream, headers=headers, media_type=STREAM)

    async def _stream(self, follower: StreamFollower, actor: Actor, after: int) -> AsyncIterator[bytes]:
        """What was missed first, then the frames for everybody."""
        self._metrics.followers.inc()
        try:
            self._join(follower)
            first = await self._looked(after)
            follower.told = first.version
            yield self._counted(first.whole if follower.items else first.bare)
            while not self._closed and (given := await follower.frames.get()) is not None:
                if isinstance(given, ConsoleNotice):
                    yield self._counted(self._news(given, follower, actor))
                    continue
                if given.version < follower.told:
                    continue  # told already, when it joined
                if not await self._sees_all(actor):
                    return
                lost, follower.lost, follower.told = follower.lost, 0, given.version
                if lost:
                    yield self._counted(_missed(given.version, lost))
                yield self._counted(given.whole if follower.items else given.bare)
                if follower.session and not self._client.presence.keep(actor, follower.session):
                    yield self._counted(_ABSENT)
        finally:
            self._followers.discard(follower)
            self._metrics.followers.dec()

    async def _sees_all(self, actor: Actor) -> bool:
        return self._client.sees_all_at_once(actor) or (
            await to_thread.run_sync(self._client.visibility_of, actor) is None
        )

    def _counted(self, content: bytes) -> bytes:
        self._metrics.stream_bytes.inc(len(content))
        return content

    def _news(self, news: ConsoleNotice, follower: StreamFollower, actor: Actor) -> bytes:
        if news.what == "gate":
            return b'event: gate\ndata: {"serial":%d}\n\n' % news.serial
        present = self._client.presence.look(actor, follower.session)
        return b"event: present\ndata: %s\n\n" % msgspec.json.encode(present)

    def _join(self, follower: StreamFollower) -> None:
        self._followers.add(follower)
        if follower.session:
            follower.give(ConsoleNotice("present", 0))
            follower.give(ConsoleNotice("gate", self._client.gate.audit.added))
        if self._teller is None or self._teller.done():
            self._seen = self._loop.copies.shown_version()
            self._teller = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        """While somebody follows: look once, and give the frame to all of them."""
        ticked = self._aio.time()
        while self._followers and not self._closed:
            now = self._aio.time()
            wait_s = min(ticked + TICK_S, self._due) - now
            consoles = any(follower.session for follower in self._followers)
            await self._watch.wait(self._seen, max(0.0, min(wait_s, LOOK_S) if consoles else wait_s))
            self._tell_votes()
            now = self._aio.time()
            if self._watch.version <= self._seen and now < min(ticked + TICK_S, self._due):
                continue
            with contextlib.suppress(MusterError):  # it is stopping, or will answer again
                frame = await self._looked(self._seen)
                ticked = now
                self._seen = max(self._seen, frame.version)
                self._due = await self._given_to_all(frame, now)
            self._client.presence.tidy()
            await asyncio.sleep(EVERY_S)

    async def _given_to_all(self, frame: EventFrame, now: float) -> float:
        """Give a frame to a few streams at a time, so that other requests are answered in between. Returns when the
        first postponed frame is due."""
        due = math.inf
        followers = tuple(self._followers)
        for at in range(0, len(followers), AT_ONCE):
            due = min(due, *(each.give_paced(frame, now) for each in followers[at : at + AT_ONCE]))
            await asyncio.sleep(0)
        return due

    def _tell_votes(self) -> None:
        added = self._client.gate.audit.added
        if added != self._voted:
            self._voted = added
            self._tell_consoles(ConsoleNotice("gate", added))

    def _moved(self) -> None:
        """Tell consoles that somebody came, moved or went. On any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._aio.call_soon_threadsafe(self._tell_consoles, ConsoleNotice("present", 0))

    def _tell_consoles(self, news: ConsoleNotice) -> None:
        for follower in self._followers:
            if follower.session:
                follower.give(news)

    async def _looked(self, after: int) -> EventFrame:
        shown = await self._reads.told("changes", (after, MAX_IN_FRAME), 0)
        found = _HEAD.decode(shown.content)
        bare = msgspec.json.encode(Changes(version=found.version, at_ms=found.at_ms, items=(), missed=found.missed))
        return EventFrame(
            found.version, len(found.items), found.missed, _framed(found.version, shown.content),
            _framed(found.version, bare),
        )  # fmt: skip


def _after_of(request: Request) -> int:
    """The version that a follower has seen. Raises SpecError."""
    text = request.headers.get("last-event-id", request.query_params.get("after", "-1"))
    return int(Number("last-event-id", -1, -1, 2**62, "").read(text))


_ABSENT = b"event: absent\ndata: {}\n\n"


def _framed(version: int, content: bytes) -> bytes:
    return b"id: %d\nevent: changes\ndata: %s\n\n" % (version, content)


def _missed(version: int, lost: int) -> bytes:
    return b'event: missed\ndata: {"version":%d,"missed":%d}\n\n' % (version, lost)


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
    """Handlers of lists by GET. Made and used in one event loop."""

    def __init__(self, client: LocalClient, reads: ReplicaReads) -> None:
        self._client = client
        self._reads = reads

    def operations(self) -> tuple[Operation, ...]:
        return tuple(
            Operation(
                "GET", f"/v1/{kind}", f"{kind.capitalize()}, filtered, page by page", handler=self.listed,
                scoped=self.listed_for, query=PARAMETERS, gives=Listing,
            )
            for kind in KINDS
        )  # fmt: skip

    async def listed(self, request: Request) -> Response:
        query, filtered = _listing_of(request)
        own = self._client.acting_as(CALLER.get()).own_version
        shown = await self._reads.told("query", (query,), own, least_of(request))
        page = msgspec.json.decode(shown.content, type=Page)
        return answer_of(msgspec.json.encode(_listing(page, query, filtered)), shown.version)

    async def listed_for(self, request: Request, client: ScopedClient) -> Response:
        """The same for a caller who sees part of the cell."""
        query, filtered = _listing_of(request)
        page = await to_thread.run_sync(client.query, query)
        return answer_of(msgspec.json.encode(_listing(page, query, filtered)), page.version)


def _listing_of(request: Request) -> tuple[Query, str]:
    """The query of a request, and the filter as it was written. Raises SpecError."""
    kind: Any = request.scope["path"].rpartition("/")[2]
    asked: dict[str, Any] = {each.name: each.read(request.query_params.get(each.name)) for each in PARAMETERS}
    view = parse_view(kind, asked["filter"])
    sort = parse_sort(kind, asked["sort"]) if asked["sort"] else view.sort or ()
    if asked["cursor"] and (sort or asked["offset"]):
        raise SpecError("cursor", "cannot be combined with sort or offset", "Leave them out")
    query = Query(
        kind=kind,
        where=view.terms,
        columns=parse_columns(kind, asked["columns"]) if asked["columns"] else view.columns or (),
        sort=sort,
        limit=asked["limit"],
        offset=asked["offset"],
        from_row=row_of(asked["cursor"], kind, asked["filter"]) if asked["cursor"] else 0,
    )
    return query, asked["filter"]


def _listing(page: Page, query: Query, filtered: str) -> Listing:
    return Listing(
        version=page.version,
        at_ms=page.at_ms,
        columns=page.columns,
        rows=page.rows,
        matched=page.matched,
        total=page.total,
        next=cursor_at(page.next_row, query.kind, filtered) if page.next_row >= 0 else "",
    )


def cursor_at(row: int, kind: str, filtered: str) -> str:
    """Opaque cursor of a row in this list."""
    return base64.urlsafe_b64encode(b"%d %s" % (row, _mark(kind, filtered))).decode().rstrip("=")


def row_of(cursor: str, kind: str, filtered: str) -> int:
    """Row of a cursor. Raises SpecError for a malformed one, or one of another list."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        row, _, mark = base64.b64decode(padded, b"-_", validate=True).partition(b" ")
        if not (row.isdigit() and len(row) < 12):
            raise ValueError
    except (ValueError, binascii.Error):
        raise SpecError("cursor", f"{cursor[:60]!a} is not a cursor", "Send `next` of the page before") from None
    if mark != _mark(kind, filtered):
        raise SpecError("cursor", "belongs to another list", "Keep filter and kind while you go from page to page")
    return int(row)


def _mark(kind: str, filtered: str) -> bytes:
    return hashlib.sha256(f"{kind}\n{filtered}".encode("utf-8", "surrogatepass")).hexdigest()[:8].encode()


PRESENCE_WAIT_S = 1.0
"""Seconds between two looks for consoles that fell silent, which no event announces."""


class PresenceRoutes:
    """Handler of presence. Made and used in one event loop."""

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._aio = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._closed = False
        self._leave = presence.listen(self._heard)

    def close(self) -> None:
        """Release every waiter."""
        self._leave()
        self._closed = True
        self._wake()

    async def present(self, request: Request) -> Response:
        ask = decoded(await body(request), PresenceAsk)
        answer = self._presence.say(CALLER.get(), ask)
        until = self._aio.time() + min(ask.wait_s, WAIT_S)
        while answer.serial <= ask.after and not ask.leaves and not self._closed:
            left = until - self._aio.time()
            if left <= 0:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, PRESENCE_WAIT_S)):
                    await self._moved.wait()
            answer = self._presence.look(CALLER.get(), ask.session)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    def _heard(self) -> None:
        """On any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._aio.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
