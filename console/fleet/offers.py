"""What cells say of work before it is sent there: asked side by side, of many shapes in one question, within a bounded
time. Work of the same shape shares what they said for a few seconds, as long as what was sent meanwhile leaves room.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.fleet.routing_policy import CellFacts, CellOffer

if TYPE_CHECKING:
    from console.fleet.cell_connection import CellLine
    from engine.fleet.fleet_spec import Routing
    from engine.model.specs import WorkloadSpec

FRESH_S = 5.0
"""How long an answer of a cell holds for other work of the same shape."""
MAX_DELAYED = 10
"""Submissions sent on one answer of a cell that does not start them at once."""
MAX_SHAPES = 16
"""Asked of a cell in one question: they share the time of its twin."""
ASKED_KEPT_S = 60.0
GRACE_S = 0.2
Key = tuple[str, bytes]
"""A cell and a shape."""


class MissingOffer(NamedTuple):
    """A shape of which some cells have not said anything that holds."""

    shape: bytes
    spec: WorkloadSpec
    """One of that shape."""
    cells: Sequence[str]


class OfferRequest(NamedTuple):
    """A shape that a cell is to be asked about."""

    spec: WorkloadSpec
    said: Future[None]


class TimedOffer(NamedTuple):
    """What a cell said."""

    offer: CellOffer | None
    """None: it did not answer."""
    at: float
    """Monotonic seconds."""


class Offers:
    """Of all cells of a fleet. To be used by any thread."""

    def __init__(self, lines: Mapping[str, CellLine], rules: Routing, pool: Executor) -> None:
        self._lines, self._rules, self._pool = lines, rules, pool
        self._kept: dict[Key, TimedOffer] = {}
        self._sent_on: dict[Key, int] = {}
        self._asked_at: dict[Key, float] = {}
        """When last, so that in turn every shape is asked about."""
        self._lock = threading.Lock()
        self._queue: dict[str, dict[bytes, OfferRequest]] = {}
        self._under_way: dict[str, dict[bytes, OfferRequest]] = {}
        """Of every cell that is being asked, about what."""

    def said(self, shape: bytes, cell: CellFacts, asked: Mapping[str, int]) -> TimedOffer | None:
        """What it has said of such work that holds for one more; None: it has to be asked."""
        key = (cell.link.name, shape)
        kept = self._kept.get(key)
        return kept if kept is not None and self._holds(key, kept, cell, asked) else None

    def _holds(self, key: Key, kept: TimedOffer, cell: CellFacts, asked: Mapping[str, int]) -> bool:
        if time.monotonic() - kept.at > FRESH_S:
            return False
        if kept.offer is None or kept.offer.refused:
            return True
        if kept.offer.p50_ms == 0 and not kept.offer.silent:
            room = all(cell.used.get(name, 0) + value <= cell.capacity.get(name, 0) for name, value in asked.items())
            return room or not self._sent_on.get(key)
        return self._sent_on.get(key, 0) < MAX_DELAYED

    def used(self, cell: str, shape: bytes) -> None:
        """One more was sent there on what it said."""
        self._sent_on[cell, shape] = self._sent_on.get((cell, shape), 0) + 1

    def ask(self, wanted: Sequence[MissingOffer]) -> None:
        """Have all cells asked at once, each about so many of these shapes as one question holds, those first that it
        was not asked about for longest. Who has not answered in time has said nothing; what was not asked is for next
        time."""
        self._forget()
        asked: dict[Key, Future[None]] = {}
        for cell, shapes in self._chosen(wanted).items():
            for each in shapes:
                asked[cell, each.shape] = self._queued(cell, each)
            self._begin(cell)
        wait(asked.values(), self._rules.answer_within_ms / 1000 + GRACE_S)
        for key, future in asked.items():
            if not future.done():
                self._keep(key, self._lines[key[0]].unsaid())

    def _queued(self, cell: str, wanted: MissingOffer) -> Future[None]:
        """Done when the cell has said something of it. Who asks the same meanwhile waits for the same answer."""
        with self._lock:
            for known in (self._under_way.get(cell, {}), self._queue.setdefault(cell, {})):
                if wanted.shape in known:
                    return known[wanted.shape].said
            self._queue[cell][wanted.shape] = asked = OfferRequest(wanted.spec, Future())
            return asked.said

    def _begin(self, cell: str) -> None:
        """One question at a time: a cell's twin runs few, and what comes meanwhile is one question more."""
        with self._lock:
            if cell in self._under_way:
                return
            self._under_way[cell] = {}
        self._pool.submit(self._questions, cell)

    def _questions(self, cell: str) -> None:
        """Until nobody wants to know anything of it. On a thread of the pool."""
        while True:
            with self._lock:
                queue = self._queue[cell]
                now = {shape: queue.pop(shape) for shape in list(queue)[:MAX_SHAPES]}
                if not now:
                    del self._under_way[cell]
                    return
                self._under_way[cell] = now
            found: Sequence[CellOffer | None] = [None] * len(now)
            try:
                specs = [each.spec for each in now.values()]
                found = self._lines[cell].offers(specs, self._rules.horizon_ms, self._rules.answer_within_ms)
            except Exception:
                traceback.print_exc()  # a fault of ours must not leave the cell unasked for good
            finally:
                for (shape, asked), offer in zip(now.items(), found, strict=True):
                    self._keep((cell, shape), offer)
                    asked.said.set_result(None)

    def _keep(self, key: Key, offer: CellOffer | None) -> None:
        self._kept[key] = TimedOffer(offer, time.monotonic())
        self._sent_on[key] = 0

    def _chosen(self, wanted: Sequence[MissingOffer]) -> dict[str, list[MissingOffer]]:
        """Cell -> what it is asked about now."""
        lists: dict[str, dict[bytes, MissingOffer]] = {}
        for each in wanted:
            for cell in each.cells:
                lists.setdefault(cell, {}).setdefault(each.shape, each)
        now = time.monotonic()
        chosen = {}
        for cell, shapes in lists.items():
            longest_ago = sorted(shapes.values(), key=lambda each: self._asked_at.get((cell, each.shape), 0.0))
            chosen[cell] = longest_ago[:MAX_SHAPES]
            for each in chosen[cell]:
                self._asked_at[cell, each.shape] = now
        return chosen

    def _forget(self) -> None:
        now = time.monotonic()
        self._kept = {key: kept for key, kept in list(self._kept.items()) if now - kept.at <= FRESH_S}
        self._sent_on = {key: count for key, count in list(self._sent_on.items()) if key in self._kept}
        self._asked_at = {key: at for key, at in list(self._asked_at.items()) if now - at <= ASKED_KEPT_S}


def shape_of(spec: WorkloadSpec) -> bytes:
    """The same for work of which a cell says the same: what its tasks run is not asked."""
    return msgspec.msgpack.encode(msgspec.structs.replace(spec, id="", name="", run=None))
