"""What goes out of the cell: messages, written in the transaction that decides on them and sent afterwards.

Sent at least once: a process that ends between sending and saying so sends again, with the same key, by which whoever
receives can tell. Where a channel leads is in the approval policy, never in a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection, insert, select

from runbooks.audit.log import Audit
from runbooks.audit.row_digests import Rows, reread
from runbooks.gate.store import OUTBOX
from runbooks.people.identity import SYSTEM

if TYPE_CHECKING:
    from engine.control import Engine

MAX_ATTEMPTS = 8
FIRST_PAUSE_MS = 2_000
MAX_AT_ONCE = 20
Send = Callable[[str, str, str], None]
"""(channel, key, text): raises OSError, or what else keeps it from being sent."""


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What waits to be sent."""

    key: str
    """By which whoever receives it can tell that it came before."""
    number: int
    """Of the proposal; 0: of none."""
    channel: str
    """Id of a channel of the policy."""
    text: str
    created_ms: int
    attempts: int


def error_of(failed: Exception) -> str:
    """What a channel said when it failed, in few words."""
    return f"{type(failed).__name__}: {failed}"[:300]


class Outbox:
    """The messages of one engine. Whoever can reach the channels takes what is `due` and settles it; or sets `send`."""

    def __init__(self, engine: Engine, audit: Audit, clock: Callable[[], int]) -> None:
        self._engine = engine
        self._audit = audit
        self._clock = clock
        self.send: Send | None = None

    def put(self, connection: Connection, key: str, number: int, channel: str, text: str, now_ms: int) -> None:
        """In the caller's transaction. The same key again is one message."""
        if connection.execute(select(OUTBOX.c.key).where(OUTBOX.c.key == key)).first() is None:
            connection.execute(
                insert(OUTBOX).values(
                    key=key, number=number, channel=channel, text=text, created_ms=now_ms, state="waiting",
                    next_ms=now_ms,
                )
            )  # fmt: skip
            rows = reread(connection, OUTBOX, OUTBOX.c.key == key)
            self._say(connection, "outbox.queued", number, {"key": key, "channel": channel}, rows)

    def deliver(self) -> None:
        """Send what is due by `send`, if that is set."""
        if self.send is None:
            return
        for message in self.due():
            try:
                self.send(message.channel, message.key, message.text)
            except Exception as failed:  # a channel is the world outside: whatever it does, the others go on
                self.settle(message, error_of(failed))
            else:
                self.settle(message)

    def due(self) -> tuple[OutboxMessage, ...]:
        """What is to be sent now, the oldest first."""
        query = (
            select(OUTBOX)
            .where((OUTBOX.c.state == "waiting") & (OUTBOX.c.next_ms <= self._clock()))
            .order_by(OUTBOX.c.created_ms)
            .limit(MAX_AT_ONCE)
        )
        return self._engine.recorded(
            lambda connection: tuple(
                OutboxMessage(
                    key=row["key"], number=row["number"], channel=row["channel"], text=row["text"],
                    created_ms=row["created_ms"], attempts=row["attempts"],
                )
                for row in connection.execute(query).mappings()
            )
        )  # fmt: skip

    def settle(self, message: OutboxMessage, error: str = "") -> None:
        """Say what became of it: empty: it was sent. What failed is tried again after a pause that doubles, then given
        up; each try is on record."""
        now_ms = self._clock()
        self._engine.record(
            lambda connection: self._sent(connection, message.key, message.number, message.attempts + 1, error, now_ms)
        )

    def _sent(self, connection: Connection, key: str, number: int, attempts: int, error: str, now_ms: int) -> None:
        given_up = bool(error) and attempts >= MAX_ATTEMPTS
        state = "sent" if not error else "failed" if given_up else "waiting"
        settled = {
            "state": state, "attempts": attempts, "error": error, "next_ms": now_ms + (FIRST_PAUSE_MS << attempts),
        }  # fmt: skip
        rows = self._audit.rewrite(connection, OUTBOX, OUTBOX.c.key == key, settled, about(number))
        type_ = "outbox.tried" if state == "waiting" else f"outbox.{state}"
        self._say(connection, type_, number, {"key": key, "attempts": attempts, "error": error}, rows)

    def _say(self, connection: Connection, type_: str, number: int, data: dict[str, object], rows: Rows) -> None:
        self._audit.append(connection, type_, SYSTEM, proposal=about(number), data=data, rows=rows)


def about(number: int) -> str:
    """The proposal of a message; empty: it is of none."""
    return f"P-{number}" if number else ""
