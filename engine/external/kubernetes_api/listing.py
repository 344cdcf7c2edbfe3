"""All objects of a kind, and the events after them.

There are two ways to list, and both give the same: `ReadEvent`s, and at the end the version that they are of.

- `paged`: PAGE objects to an answer, compressed, all of one version. The rest may expire in between (410). The server
  makes the next pages while this one is read (`page_fetching`).
- `streamed`: a watch that begins with all objects (WatchList), where the server has it. Nothing of it can expire, but
  each object is a piece of HTTP and of TLS by itself, which costs four times the CPU time here. Servers are known that
  never say that all have come: silence for INITIAL_SILENCE_S is then the end of trying.

`followed` gives the events after a version. An object that cannot be read is an event without object: it is counted,
and does not end the rest.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any, Generic, Literal, TypeVar

import msgspec

from engine.external.answer_cutter import NOT_PLAIN_JSON
from engine.external.kubernetes_api.core_objects import KubernetesObject
from engine.external.kubernetes_api.errors import (
    GONE,
    ApiStatus,
    KubernetesSilent,
    KubernetesUnavailable,
    KubernetesUnreadable,
    VersionExpired,
    refusal,
)
from engine.external.kubernetes_api.kinds import ObjectKind
from engine.external.kubernetes_api.page_fetching import ListMetadata, pages_ahead
from engine.external.kubernetes_api.transport import KubernetesTransport

T = TypeVar("T", bound=KubernetesObject)

PAGE = 2_500
"""Some 10 MB of pods, which a server reads and compresses within seconds: after a minute it ends an answer."""
EVENTS_AT_ONCE = 1_000
"""Of a list that is streamed."""
INITIAL_SILENCE_S = 20.0
WATCH_S = (240, 480)
"""Seconds after which the server ends a watch: a random number between, so that not all of them end at once."""
INITIAL_END = "k8s.io/initial-events-end"

Happened = Literal["ADDED", "MODIFIED", "DELETED"]
_HAPPENED: dict[str, Happened] = {"ADDED": "ADDED", "MODIFIED": "MODIFIED", "DELETED": "DELETED"}


class ReadEvent(msgspec.Struct, frozen=True, gc=False):
    """`object` None: it could not be read, for what `why` says."""

    happened: Happened
    object: KubernetesObject | None
    why: str = ""


class Came(msgspec.Struct, frozen=True):
    """Some events, in the order in which they happened. `version` is that of the last, or of a bookmark behind it;
    empty within a list. `whole`: with these the list is complete."""

    events: tuple[ReadEvent, ...] = ()
    version: str = ""
    whole: bool = False


class _EndHolder(msgspec.Struct, frozen=True):
    metadata: ListMetadata


class _AnyEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Page(msgspec.Struct, frozen=True):
    metadata: ListMetadata
    items: tuple[msgspec.Raw, ...] | None = None


class _TypedEvent(msgspec.Struct, Generic[T], frozen=True, gc=False):
    type: str
    object: T


class _TypedPage(msgspec.Struct, Generic[T], frozen=True):
    metadata: ListMetadata
    items: tuple[T, ...] | None = None


class KindReader:
    """Lists and follows the objects of one kind."""

    def __init__(self, line: KubernetesTransport, kind: ObjectKind) -> None:
        self.line = line
        self.kind = kind
        shape: Any = kind.shape
        self._object = msgspec.json.Decoder(shape)
        self._event = msgspec.json.Decoder(_TypedEvent[shape])
        self._page = msgspec.json.Decoder(_TypedPage[shape])

    # -- lists --------------------------------------------------------------------------------------------------------

    def paged(self) -> Iterator[Came]:
        """Raises VersionExpired where the rest of that version is not to be had any more."""
        what = f"listing {self.kind.resource}"
        query, version = {"limit": str(PAGE), **self._selected()}, ""
        for events, end in pages_ahead(self.line, what, self.kind.path, query, self._read_page):
            if end.resource_version != (version := version or end.resource_version):
                # Two halves of different lists have things in them that never were at one time.
                raise VersionExpired(
                    GONE, "Expired", f"{what}: the rest of the list is of another version", "List again"
                )
            yield Came(events, "" if end.continue_ else end.resource_version, whole=not end.continue_)

    def streamed(self) -> Iterator[Came]:
        """Raises KubernetesRefused of 400 or 422 where the server has no such watch, and KubernetesSilent where it does
        not come to its end."""
        query = self._query(sendInitialEvents="true", resourceVersionMatch="NotOlderThan", resourceVersion="")
        gathered: list[ReadEvent] = []
        for came in self._watched(f"listing {self.kind.resource}", query, INITIAL_SILENCE_S):
            gathered += came.events
            if came.whole:
                yield Came(tuple(gathered), came.version, whole=True)
                return
            if len(gathered) >= EVENTS_AT_ONCE:
                yield Came(tuple(gathered))
                gathered = []
        raise KubernetesSilent(f"listing {self.kind.resource}: the list ended before its end", "It is tried again")

    def _read_page(self, answer: bytes) -> tuple[tuple[ReadEvent, ...], ListMetadata]:
        try:
            page = self._page.decode(answer)
            return tuple(ReadEvent("ADDED", each) for each in page.items or ()), page.metadata
        except NOT_PLAIN_JSON:
            pass
        try:
            raw = msgspec.json.decode(answer, type=_Page)
        except NOT_PLAIN_JSON:
            raise KubernetesUnreadable(f"listing {self.kind.resource}: the answer is not a list") from None
        return tuple(self._read("ADDED", each) for each in raw.items or ()), raw.metadata

    # -- events -------------------------------------------------------------------------------------------------------

    def followed(self, version: str) -> Iterator[Came]:
        """The events after a version, until the server ends the watch. Raises VersionExpired where it no longer has
        them, as an answer or in the stream."""
        yield from self._watched(f"watching {self.kind.resource}", self._query(resourceVersion=version), None)

    def _watched(self, what: str, query: dict[str, str], silence_s: float | None) -> Iterator[Came]:
        with self.line.stream(what, self.kind.path, query, silence_s=silence_s) as stream:
            for lines in stream.lines():
                yield from self._read_lines(what, lines)

    def _read_lines(self, what: str, lines: list[bytes]) -> Iterator[Came]:
        events: list[ReadEvent] = []
        version = ""
        for line in lines:
            event = self._read_line(what, line)
            if isinstance(event, ReadEvent):
                events.append(event)
                version = event.object.metadata.resource_version if event.object else version
                continue
            version = event.resource_version
            if event.annotations.get(INITIAL_END) == "true":
                yield Came(tuple(events), version, whole=True)
                events, version = [], ""
        if events or version:
            yield Came(tuple(events), version)

    def _read_line(self, what: str, line: bytes) -> ReadEvent | ListMetadata:
        """An event, or a bookmark. Raises what an ERROR event says."""
        try:
            event = self._event.decode(line)
            if (happened := _HAPPENED.get(event.type)) and event.object.metadata.uid:
                return ReadEvent(happened, event.object)
        except NOT_PLAIN_JSON:
            pass
        try:
            raw = msgspec.json.decode(line, type=_AnyEvent)
            if happened := _HAPPENED.get(raw.type):
                return self._read(happened, raw.object)
            if raw.type == "BOOKMARK":
                return msgspec.json.decode(raw.object, type=_EndHolder).metadata
            status = msgspec.json.decode(raw.object, type=ApiStatus)
        except NOT_PLAIN_JSON:
            raise KubernetesUnreadable(f"{what}: a line came that is no event", "It is tried again") from None
        if status.code == GONE or 400 <= status.code < 500 or status.reason in ("Expired", "Gone"):
            raise refusal(what, status.code or GONE, status)
        raise KubernetesUnavailable(f"{what}: the API server says: {status.message or raw.type}", "It is tried again")

    def _read(self, happened: Happened, raw: msgspec.Raw) -> ReadEvent:
        try:
            found = self._object.decode(raw)
        except NOT_PLAIN_JSON as error:
            return ReadEvent(happened, None, str(error)[:200])
        return ReadEvent(happened, found) if found.metadata.uid else ReadEvent(happened, None, "it has no uid")

    def _query(self, **more: str) -> dict[str, str]:
        return {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_S)),
            **self._selected(),
            **more,
        }

    def _selected(self) -> dict[str, str]:
        return {"fieldSelector": self.kind.fields} if self.kind.fields else {}


_DECIMAL = re.compile(r"[1-9][0-9]{0,30}")


def went_back(before: str, now: str) -> bool:
    """True where a version is surely older than one that was seen before: the store of the cluster was set back. Only
    versions that are plain numbers are in an order, and of others nothing is said."""
    return bool(_DECIMAL.fullmatch(before) and _DECIMAL.fullmatch(now)) and int(now) < int(before)
