"""Idempotency keys: a request that is sent twice takes effect once.

The caller of a change chooses a key; another request with the same key and content gets the answer of the first.
Answers are kept in the journal's database. Those of submissions and definitions are written in the same transaction.
Other changes are noted before they begin and again with their answer; one that was cut off in between is not
repeated, because only a look can tell whether it took effect. Refused requests had no effect and are not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from engine.journal.database import create_tables
from engine.model.errors import MusterError, RefusedError, SpecError
from runbooks.gate.approval_gate import wall_ms

if TYPE_CHECKING:
    from engine.control import Engine
    from engine.loop import EngineLoop

T = TypeVar("T")
HEADER = "idempotency-key"
REPLAYED = "idempotent-replayed"
LONGEST_KEY = 200
KEPT_MS = 24 * 3_600_000
MAX_KEPT = 500_000
"""The oldest go first: at hundreds a second a day would be tens of millions."""
TIDY_EVERY = 1_000
"""Keys between two looks at what is too old."""
BEGUN = b""
"""Instead of an answer: nobody has heard one."""
NOTHING_DONE = ("invalid", "not_found", "refused", "busy")
"""Codes of errors after which a request may be tried again with the same key."""

METADATA = MetaData()
KEPT = Table(
    "idempotency",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("caller", String, nullable=False),
    Column("key", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False, index=True),
    Column("answer", LargeBinary, nullable=False),
    UniqueConstraint("caller", "key"),
)
_added = itertools.count(1)


class StoredResponse(NamedTuple):
    """Answer to a change."""

    content: bytes
    version: int
    """State version in which it is seen."""
    again: bool = False
    """Whether it was answered before."""


class IdempotencyKey(msgspec.Struct, frozen=True):
    """Key of one request."""

    caller: str
    key: str
    digest: str
    """SHA-256 of all that it asks for."""


def key_of(text: str, caller: str, method: str, path: str, body: bytes) -> IdempotencyKey:
    """The key of a request. Raises SpecError for a malformed one."""
    if not 0 < len(text) <= LONGEST_KEY or not text.isascii() or not text.isprintable():
        raise SpecError(
            HEADER, f"is not 1 to {LONGEST_KEY} printable ASCII characters", "Use a new random UUID for each change"
        )
    asked = b"\n".join((method.encode(), path.encode(), body))
    return IdempotencyKey(caller, text, hashlib.sha256(asked).hexdigest())


def kept(connection: Connection, keys: Iterable[IdempotencyKey]) -> dict[tuple[str, str], tuple[str, bytes]]:
    """(caller, key) -> digest and answer, of the keys that are known."""
    wanted = {(key.caller, key.key) for key in keys}
    columns = (KEPT.c.caller, KEPT.c.key, KEPT.c.digest, KEPT.c.answer)
    rows = connection.execute(select(*columns).where(KEPT.c.key.in_(sorted({key for _, key in wanted}))))
    return {(caller, key): (digest, answer) for caller, key, digest, answer in rows if (caller, key) in wanted}


def replayed(key: IdempotencyKey, found: tuple[str, bytes]) -> StoredResponse:
    """The stored answer. Raises RefusedError for another request with the same key, and for one whose outcome is
    unknown."""
    digest, answer = found
    if digest != key.digest:
        raise RefusedError(f"the key {key.key[:60]!a} was used for another request", "Use a new key for each change")
    if answer == BEGUN:
        raise RefusedError(
            "a request with this key was started; it may have taken effect",
            "Check whether the change was made; if not, repeat it with a new key",
        )
    version, _, content = answer.partition(b" ")
    return StoredResponse(content, int(version), again=True)


def written(answer: StoredResponse) -> bytes:
    """A response in its stored form."""
    return b"%d %s" % (answer.version, answer.content)


def keep(connection: Connection, answered: Sequence[tuple[IdempotencyKey, bytes]]) -> None:
    """Store answers, in the transaction of their changes; or BEGUN before a change."""
    now_ms = wall_ms()
    rows = [
        {"caller": key.caller, "key": key.key, "digest": key.digest, "at_ms": now_ms, "answer": answer}
        for key, answer in answered
    ]
    if rows:
        connection.execute(insert(KEPT), rows)
        if any(next(_added) % TIDY_EVERY == 0 for _ in rows):
            _tidy(connection, now_ms)


def finish(connection: Connection, key: IdempotencyKey, answer: StoredResponse) -> None:
    """Store the outcome of a change that was begun."""
    connection.execute(update(KEPT).where(_is(key)).values(answer=written(answer)))


def forget(connection: Connection, key: IdempotencyKey) -> None:
    """Remove the key of a refused change, which may be tried again."""
    connection.execute(delete(KEPT).where(_is(key)))


def _is(key: IdempotencyKey) -> ColumnElement[bool]:
    return and_(KEPT.c.caller == key.caller, KEPT.c.key == key.key)


def _tidy(connection: Connection, now_ms: int) -> None:
    newest = connection.execute(select(func.max(KEPT.c.number))).scalar_one()
    connection.execute(delete(KEPT).where(or_(KEPT.c.at_ms < now_ms - KEPT_MS, KEPT.c.number <= newest - MAX_KEPT)))


class IdempotencyKeys:
    """Runs each change once. Made and used in one event loop; the rows are written on the engine's thread."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self._running: dict[tuple[str, str], tuple[str, asyncio.Task[StoredResponse]]] = {}
        self._ready = False
        """Whether there is a table."""

    def known(self, connection: Connection, keys: Sequence[IdempotencyKey]) -> dict[tuple[str, str], tuple[str, bytes]]:
        """As `kept`; in a transaction that may write, on the engine's thread."""
        if not self._ready:
            create_tables(connection, METADATA)
            self._ready = True
        return kept(connection, keys)

    async def once(self, key: IdempotencyKey, do: Callable[[], Awaitable[StoredResponse]]) -> StoredResponse:
        """Answer of `do`, or of its first run. Two equal requests at once get one answer. Raises the errors of `do`,
        and RefusedError as `replayed`."""
        place = (key.caller, key.key)
        if place in self._running:
            digest, task = self._running[place]
            if digest != key.digest:
                raise RefusedError(f"the key {key.key[:60]!a} is being used for another request", "Use a new key")
            return (await asyncio.shield(task))._replace(again=True)
        task = asyncio.create_task(self._first(key, do))
        self._running[place] = key.digest, task
        task.add_done_callback(lambda _: self._running.pop(place))
        return await asyncio.shield(task)

    async def _first(self, key: IdempotencyKey, do: Callable[[], Awaitable[StoredResponse]]) -> StoredResponse:
        known = await self._write(lambda connection: self._begin(connection, key))
        if known is not None:
            return replayed(key, known)
        try:
            answer = await do()
        except MusterError as error:
            if error.code in NOTHING_DONE:
                await self._write(lambda connection: forget(connection, key))
            raise
        await self._write(lambda connection: finish(connection, key, answer))
        return answer

    async def _write(self, change: Callable[[Connection], T]) -> T:
        def work(engine: Engine) -> T:
            return engine.record(change)

        return await asyncio.wrap_future(self._loop.post(work))

    def _begin(self, connection: Connection, key: IdempotencyKey) -> tuple[str, bytes] | None:
        """State of the key; a key without one is begun."""
        found = self.known(connection, [key]).get((key.caller, key.key))
        if found is None:
            keep(connection, [(key, BEGUN)])
        return found
