"""Standing by for a cell in PostgreSQL: following its journal, so that little is left to read when the lease is had."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from engine.journal import postgres_sessions, tables
from engine.journal.database import Schema
from engine.journal.event_journal import Journal, batches, head_of, newest_snapshot
from engine.journal.postgres_store import LOOK_S, Lease, LeaseCandidate, exists
from engine.model.errors import JournalCorrupt, JournalError, JournalFormat
from engine.state.cell_state import State


class JournalFollower:
    """A state that follows the journal another process writes. To be used by one thread."""

    def __init__(self, place: Schema) -> None:
        self.place = place
        self._reader = postgres_sessions.pool(place, "reader")
        self._state: State | None = None
        self._end = (0, 0)

    @property
    def version(self) -> int:
        return self._end[0]

    def catch_up(self) -> None:
        """Take in what was written meanwhile. Raises JournalError while the database cannot be read."""
        try:
            with self._reader.connect() as connection:
                head = head_of(connection, self.place)
                tables.refuse_other(connection, self.place, head)
                end = (head["last_version"], head["chain"])
                if end == self._end:
                    return
                if self._state is None:
                    self._state = State()
                    body, *at = newest_snapshot(connection, self.place)
                    if body is not None:
                        self._state.load(body)
                    self._end = (at[0], at[1])
                for batch in batches(connection, self.place, self._end, end):
                    for event in batch:
                        self._state.apply(event)
                self._end = end
        except SQLAlchemyError as error:
            # Half a batch may have been taken in.
            self._state, self._end = None, (0, 0)
            raise postgres_sessions.refused(self.place, "follow", error) from error

    def close(self) -> None:
        """Let its connection go. What it knows stays."""
        self._reader.dispose()

    def finish(self, journal: Journal) -> State:
        """The state at the journal's end, now that nobody else writes it. Raises JournalError."""
        self.close()
        body, rest = (None, journal.after(*self._end)) if self._state is not None else journal.load()
        state = self._state or State()
        if body is not None:
            state.load(body)
        for batch in rest:
            for event in batch:
                state.apply(event)
        return state


class StandbyResult(NamedTuple):
    """What waiting has come to."""

    lease: Lease
    follower: JournalFollower


def stand_by(place: Schema, stop: threading.Event, say: Callable[[str], None]) -> StandbyResult | None:
    """Wait until the lease can be had, following meanwhile. None when `stop` was set first. A database that cannot be
    reached is waited for, and so is a cell that nobody has begun: its name may be mistyped. `say` is told of every
    change. Raises JournalFormat and JournalCorrupt."""
    follower = JournalFollower(place)

    def follow() -> str:
        follower.catch_up()
        return f" at version {follower.version:,}"

    try:
        lease = wait_for(place, stop, say, follow)
    finally:
        follower.close()
    return None if lease is None else StandbyResult(lease, follower)


def wait_for(
    place: Schema, stop: threading.Event, say: Callable[[str], None], follow: Callable[[], str] = lambda: ""
) -> Lease | None:
    """The same, of whatever is kept there. `follow` is called now and then, and says how far it is."""
    candidate = LeaseCandidate(place)
    told, there = "", False
    with contextlib.ExitStack() as after:
        after.callback(candidate.stand_no_more)
        while not stop.is_set():
            try:
                there = there or exists(place)
                if there:
                    look = candidate.look()
                    if look.taken:
                        return candidate.lease()
                    candidate.stand()
                    at, key = follow(), look.holder
                    news = f"stands by{at}: {look.holder or 'nobody'} has the lease"
                else:
                    news = key = f"waits: nothing was begun yet at {place}"
            except (JournalFormat, JournalCorrupt):
                raise
            except JournalError as error:
                news = key = str(error)
            if key != told:
                told = key
                say(news)
            stop.wait(LOOK_S)
    return None
