"""One kind of objects, followed for as long as it goes: what was added, changed and deleted there, each told once.

A reflector lists, then watches from the version of the list on. When a watch ends or breaks it goes on from the last
version that it was told. When that version is too old, or older than one before, it lists again and compares by UID:
what is not in the new list was deleted, and is told so, although nobody saw it happen. An object of the same name with
another UID is another object.

After an error it waits, each time longer, FIRST_WAIT_S to LAST_WAIT_S. What it knows stays until it is listed again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from engine.external.kubernetes_api.core_objects import KubernetesObject
from engine.external.kubernetes_api.errors import (
    KubernetesDenied,
    KubernetesUnavailable,
    VersionExpired,
)
from engine.external.kubernetes_api.kinds import ObjectKind
from engine.external.kubernetes_api.listing import Came, KindReader, ReadEvent, went_back
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.model.errors import MusterError

FIRST_WAIT_S = 0.5
LAST_WAIT_S = 30.0
SHORTEST_WATCH_S = 1.0
"""A watch that ends sooner, and told nothing, counts as an error."""

State = Literal["starting", "listing", "following", "lost", "denied", "refused"]
"""lost: nobody answers, it is tried again. denied: this user may not. refused: the server will not, such as for a kind
that it no longer has. Of the last three nothing is known since `heard_s`."""
Happened = Literal["added", "changed", "deleted"]


class ObjectChange(msgspec.Struct, frozen=True, gc=False):
    """`object` is None for what was deleted: nobody may have seen its end."""

    happened: Happened
    uid: str
    namespace: str
    name: str
    version: str
    object: KubernetesObject | None


class ChangeBatch(msgspec.Struct, frozen=True):
    """Changes of one kind, to be applied in their order and together. `version`: with them everything up to it is
    known; empty in the middle of a list, when only what was told is true. `at_s`: when they came, on the monotonic
    clock."""

    kind: ObjectKind
    changes: tuple[ObjectChange, ...]
    version: str
    at_s: float


class ReflectorReport(msgspec.Struct, kw_only=True):
    """State of a reflector."""

    state: State = "starting"
    trouble: str = ""
    objects: int = 0
    heard_s: float = 0.0
    """Monotonic second of the last event, bookmark or end of a list: how old what is known may be."""
    list_s: float = 0.0
    """Seconds that the last list took."""
    lists: int = 0
    events: int = 0
    unreadable: int = 0
    unreadable_why: str = ""


class _Known(msgspec.Struct, frozen=True, gc=False):
    namespace: str
    name: str
    version: str


class WentBack(KubernetesUnavailable):
    """The server is at an older version than it was before."""


class Reflector:
    """For one thread. `tell` is called with each batch, and may hold it up: nothing is read from the server meanwhile,
    which then ends the watch, and nothing is lost."""

    def __init__(
        self,
        line: KubernetesTransport,
        kind: ObjectKind,
        tell: Callable[[ChangeBatch], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind = kind
        self.report = ReflectorReport()
        self._line = line
        self._reader = KindReader(line, kind)
        self._tell = tell
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._version = ""
        self._errors = 0
        """In a row."""

    def run(self) -> None:
        """Follow until the line is closed."""
        while not self._line.closed.is_set():
            try:
                if not self._version:
                    self.list_now()
                self._follow()
            except MusterError as error:
                if self._line.closed.is_set():
                    return
                self._failed(error)
                if self._line.wait(self._wait_s(error)):
                    return

    def list_now(self) -> None:
        """List once, and tell how that differs from what was known. Raises KubernetesRefused and
        KubernetesUnavailable."""
        self.report.state = "listing"
        begin = self._clock()
        try:
            self._take_list(self._reader.paged)
        except (VersionExpired, KubernetesUnavailable):
            # A busy server ends an answer that takes it a minute, and a stream never.
            self._take_list(self._reader.streamed)
        self.report.lists += 1
        self.report.list_s = self._clock() - begin

    def _take_list(self, way: Callable[[], Iterator[Came]]) -> None:
        seen: set[str] = set()
        for came in way():
            changes = self._changes(came, seen)
            if came.whole:
                changes += [self._gone(uid) for uid in self._known.keys() - seen]
            self._pass_on(changes, came)

    def _follow(self) -> None:
        """One watch, to its end."""
        begin, heard = self._clock(), False
        for came in self._reader.followed(self._version):
            if came.version and went_back(self._version, came.version):
                self._version = ""
                raise WentBack(f"watching {self.kind.resource}: the server went back in time", "It is listed again")
            heard, self._errors = True, 0
            self.report.state, self.report.trouble = "following", ""
            self.report.events += len(came.events)
            self._pass_on(self._changes(came, None), came)
        if not heard and self._clock() - begin < SHORTEST_WATCH_S:
            raise KubernetesUnavailable(f"watching {self.kind.resource}: it ended at once", "It is tried again")

    # -- what differs -------------------------------------------------------------------------------------------------

    def _changes(self, came: Came, seen: set[str] | None) -> list[ObjectChange]:
        changes = []
        for event in came.events:
            if event.object is None:
                self._unread(event)
                continue
            uid = event.object.metadata.uid
            if seen is not None:
                (seen.discard if event.happened == "DELETED" else seen.add)(uid)
            if (change := self._change(event, event.object)) is not None:
                changes.append(change)
        return changes

    def _change(self, event: ReadEvent, found: KubernetesObject) -> ObjectChange | None:
        """None where it was known before."""
        about = found.metadata
        known = self._known.get(about.uid)
        if event.happened == "DELETED":
            return self._gone(about.uid) if known is not None else None
        if known is not None and known.version == about.resource_version:
            return None
        self._known[about.uid] = _Known(about.namespace, about.name, about.resource_version)
        happened: Happened = "changed" if known is not None else "added"
        return ObjectChange(happened, about.uid, about.namespace, about.name, about.resource_version, found)

    def _gone(self, uid: str) -> ObjectChange:
        known = self._known.pop(uid)
        return ObjectChange("deleted", uid, known.namespace, known.name, known.version, None)

    def _unread(self, event: ReadEvent) -> None:
        self.report.unreadable += 1
        self.report.unreadable_why = event.why

    def _pass_on(self, changes: list[ObjectChange], came: Came) -> None:
        now = self._clock()
        if came.version:
            self._version = came.version
            self.report.heard_s = now
        if came.whole:
            self.report.state, self.report.trouble = "following", ""
        self.report.objects = len(self._known)
        if changes or came.version:
            self._tell(ChangeBatch(self.kind, tuple(changes), came.version, now))

    # -- errors -------------------------------------------------------------------------------------------------------

    def _failed(self, error: MusterError) -> None:
        self._errors += 1
        if isinstance(error, VersionExpired):
            self._version = ""
        self.report.trouble = str(error)
        if isinstance(error, KubernetesDenied):
            self.report.state = "denied"
        elif isinstance(error, KubernetesUnavailable | VersionExpired):
            self.report.state = "lost"
        else:
            self.report.state = "refused"

    def _wait_s(self, error: MusterError) -> float:
        """An expired version needs no wait the first time: it is listed at once."""
        if isinstance(error, VersionExpired | WentBack) and self._errors == 1:
            return 0.0
        asked_s = error.wait_s if isinstance(error, KubernetesUnavailable) else 0.0
        wait_s: float = min(LAST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._errors - 1, 10))
        return max(asked_s, wait_s * random.uniform(0.8, 1.2))
