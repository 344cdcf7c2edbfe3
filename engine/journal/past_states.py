"""States of earlier times, folded from what a journal holds, while another process goes on writing it.

The journal is read in short transactions, so that its writer can tidy up behind itself; the chain of checksums tells
that what they read fits together.
"""

from __future__ import annotations

import contextlib
import zlib
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select
from sqlalchemy import Engine as Database

from engine.journal import tables
from engine.journal.database import Place
from engine.journal.event_journal import batches, beginning, corrupt, head_of, newest_snapshot
from engine.journal.outside_readers import reader, reading
from engine.journal.tables import Batch, Snapshot, table_of
from engine.model import events as ev
from engine.state.cell_state import State

BATCHES = 256
"""Batches that are read in one transaction."""

KEEP_EVERY = 20_000
"""Events between two states that are kept: less than a second of folding."""
MAX_KEPT, MAX_KEPT_BYTES = 100, 192 << 20

Hear = Callable[[ev.AnyEvent | None], None]
"""Called with None as a batch begins, then with each of its events after it was applied."""
Progress = Callable[[int], None]
"""Called with the permille that are done; what it raises ends the work."""


class PastSpan(NamedTuple):
    """The times at which a journal tells how the cell was; cell milliseconds."""

    earliest_ms: int
    newest_ms: int
    """Time of the newest event."""


class JournalMark(NamedTuple):
    """The end of a batch."""

    version: int
    chain: int


def span(connection: Connection, place: Place) -> PastSpan:
    """Raises JournalError for a journal that has no beginning: batches are gone, and no snapshot stands for them."""
    columns = table_of(Batch).c
    ends = select(columns.first_version, columns.at_ms)
    first = connection.execute(ends.order_by(columns.first_version).limit(1)).first()
    last = connection.execute(ends.order_by(columns.first_version.desc()).limit(1)).first()
    if first is None or last is None:
        raise corrupt(place, "has no events yet", "Come back when the cell has begun")
    begun, _ = beginning(connection, place)
    if begun:
        return PastSpan(_time_of(connection, begun), last[1])
    if first[0] == 1:
        return PastSpan(first[1], last[1])
    snapshots = table_of(Snapshot).c.version
    oldest = select(snapshots).where(snapshots >= first[0] - 1).order_by(snapshots).limit(1)
    kept = connection.execute(oldest).scalar()
    if kept is None:
        raise corrupt(place, f"begins at event {first[0]}, and no snapshot tells what was before it")
    return PastSpan(_time_of(connection, kept), last[1])


def _time_of(connection: Connection, version: int) -> int:
    """Cell time from which on a state of this version is certain: that of the batch it ends, or of the next one."""
    columns = table_of(Batch).c
    behind = select(columns.at_ms).where(columns.last_version >= version).order_by(columns.first_version).limit(1)
    return int(connection.execute(behind).scalar_one())


def mark_at(connection: Connection, place: Place, at_ms: int) -> JournalMark:
    """The last batch that was over by then; where none was, what the first follows."""
    columns = table_of(Batch).c
    row = select(columns.first_version, columns.last_version, columns.chain, columns.at_ms)
    last = connection.execute(select(columns.last_version).order_by(columns.first_version.desc()).limit(1)).scalar()
    begun = JournalMark(*beginning(connection, place))
    found, low, high = begun, begun.version + 1, last or 0
    while low <= high:
        middle = (low + high) // 2
        holds = row.where(columns.first_version <= middle).order_by(columns.first_version.desc()).limit(1)
        batch = connection.execute(holds).first()
        if batch is None:  # before the first that is kept
            low = middle + 1
        elif batch.at_ms <= at_ms:
            found, low = JournalMark(batch.last_version, batch.chain), batch.last_version + 1
        else:
            high = batch.first_version - 1
    return found


class KeptState(NamedTuple):
    """A state that was passed on the way, to begin with again."""

    mark: JournalMark
    reached_ms: int
    body: bytes


class PastState:
    """A state that goes along a journal, forward event by event, and back to what was kept on the way. For one
    thread."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.state = State()
        self.seed = 0
        self.earliest_ms = 0
        """The first time that can be told, once something was read."""
        self.reached_ms = -1
        """All events up to this cell time are in the state; -1: nothing was read yet."""
        self._at = JournalMark(0, 0)
        self._rest: list[ev.AnyEvent] = []
        """Events of the batch at `_at` that came later than `reached_ms`."""
        self._kept: list[KeptState] = []
        """Ascending."""
        self._every = KEEP_EVERY
        self._database: Database | None = None

    def close(self) -> None:
        """Let the connection go. Needed before a fork; the next reading opens another."""
        if self._database is not None:
            self._database.dispose()
            self._database = None

    def seek(self, at_ms: int, progress: Progress = lambda _: None) -> None:
        """Hold the state as of then, or of the earliest time there is, from the nearest state before it that is known.
        Raises JournalError."""
        with self._reading() as connection:
            head = head_of(connection, self.place)
            tables.refuse_other(connection, self.place, head)
            self.seed = head["seed"]
            self.earliest_ms = span(connection, self.place).earliest_ms
            at_ms = max(at_ms, self.earliest_ms)
            known = self._known(at_ms)
            body, *at = newest_snapshot(
                connection, self.place, mark_at(connection, self.place, at_ms).version, above=known
            )
        if body is not None:
            self._restart(body, JournalMark(*at))
        elif not 0 <= self.reached_ms <= at_ms or self._at.version < known:
            kept = next((kept for kept in reversed(self._kept) if kept.reached_ms <= at_ms), None)
            self._restart(kept and msgspec.msgpack.decode(zlib.decompress(kept.body)), kept and kept.mark)
        self.go_on(at_ms, None, progress)

    def _known(self, at_ms: int) -> int:
        """Version of the nearest state before then that needs no reading."""
        versions = [kept.mark.version for kept in self._kept if kept.reached_ms <= at_ms]
        if 0 <= self.reached_ms <= at_ms:
            versions.append(self._at.version)
        return max(versions, default=0)

    def _restart(self, body: dict[str, Any] | None, mark: JournalMark | None) -> None:
        self.state, self._rest, self._at = State(), [], mark or JournalMark(0, 0)
        if body is not None:
            self.state.load(body)
        self.reached_ms = self.state.now_ms if body is not None else -1

    def _keep(self) -> None:
        """Keep the state at the end of a batch, now and then; where they become too many, every other one."""
        last = self._kept[-1].mark.version if self._kept else 0
        if self._at.version - last < self._every:
            return
        body = zlib.compress(msgspec.msgpack.encode(self.state.dump()), 1)
        self._kept.append(KeptState(self._at, self.state.now_ms, body))
        if len(self._kept) > MAX_KEPT or sum(len(kept.body) for kept in self._kept) > MAX_KEPT_BYTES:
            self._kept = self._kept[1::2]
            self._every *= 2

    def go_on(self, until_ms: int, hear: Hear | None = None, progress: Progress = lambda _: None) -> None:
        """Apply every event up to that cell time. Raises JournalError."""
        if self._rest:
            self._rest = self._applied(self._rest, until_ms, hear)
        if not self._rest:
            self._read_on(until_ms, hear, progress)
        self.reached_ms = max(self.reached_ms, until_ms)

    def _read_on(self, until_ms: int, hear: Hear | None, progress: Progress) -> None:
        with self._reading() as connection:
            end = mark_at(connection, self.place, until_ms)
        begun = self._at.version
        while self._at.version < end.version:
            for batch in self._some(end):
                self._apply(batch, hear)
            self._keep()
            progress((self._at.version - begun) * 1000 // (end.version - begun))
        for batch in self._some(None):
            if hear is not None:
                hear(None)
            self._rest = self._applied(batch, until_ms, hear)

    def _apply(self, batch: list[ev.AnyEvent], hear: Hear | None) -> None:
        apply = self.state.apply
        if hear is None:
            for event in batch:
                apply(event)
            return
        hear(None)
        for event in batch:
            apply(event)
            hear(event)

    def _some(self, end: JournalMark | None) -> list[list[ev.AnyEvent]]:
        """The next batches up to `end`; the next one alone where there is none."""
        columns = table_of(Batch).c
        ends = select(columns.last_version, columns.chain).where(columns.first_version > self._at.version)
        with self._reading() as connection:
            if end is not None:
                ends = ends.where(columns.first_version <= end.version)
            rows = connection.execute(
                ends.order_by(columns.first_version).limit(BATCHES if end is not None else 1)
            ).all()
            if not rows:
                return []
            upto = JournalMark(*rows[-1])
            found = list(batches(connection, self.place, self._at, upto, more=True))
        self._at = upto
        return found

    def _applied(self, events: list[ev.AnyEvent], until_ms: int, hear: Hear | None) -> list[ev.AnyEvent]:
        """Apply those of a batch up to that time, and return the others."""
        for index, event in enumerate(events):
            now, later = _parted(event, until_ms)
            if now is not None:
                self.state.apply(now)
                if hear is not None:
                    hear(now)
            if later is not None:
                return [later, *events[index + 1 :]]
        return []

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        if self._database is None:
            self._database = reader(self.place)
        with reading(self.place, self._database) as connection:
            yield connection


def _parted(event: ev.AnyEvent, until_ms: int) -> tuple[ev.AnyEvent | None, ev.AnyEvent | None]:
    """The part of an event up to a time, and the part behind it."""
    if isinstance(event, ev.Tick) and event.at_ms > until_ms:
        return None, event
    if isinstance(event, ev.FinishedMany):
        return _parted_ends(event, until_ms)
    return event, None


def _parted_ends(event: ev.FinishedMany, until_ms: int) -> tuple[ev.FinishedMany | None, ev.FinishedMany | None]:
    times, rows = array("q", event.at_ms), array("i", event.rows)
    count = sum(at <= until_ms for at in times)
    if count in (0, len(times)):
        return (event, None) if count else (None, event)
    moves = [i for i in range(1, len(times)) if times[i] != times[i - 1]]
    first = event.ticks - len(moves)
    before = first + sum(i < count for i in moves)
    return (
        ev.FinishedMany(rows[:count].tobytes(), times[:count].tobytes(), before),
        ev.FinishedMany(rows[count:].tobytes(), times[count:].tobytes(), event.ticks - before),
    )
