"""Submissions and definitions over HTTP.

Submissions that arrive while the engine is at work are taken together in one transaction: under load one disk write
serves all of them, and each is answered when it is durable. With an Idempotency-Key the answer is kept in that
transaction, and the same request sent again gets the same answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from anyio import to_thread
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from console.client.credentials import CALLER
from console.server import idempotency
from console.server.idempotency import IdempotencyKey, IdempotencyKeys, StoredResponse
from console.server.load_limits import OVERLOAD_RETRY_S
from console.server.operations import Crowded, Forbidden, body, decoded, forbid_if_read_only
from console.server.request_handler import LARGE_BODY, answer_to, key_of
from engine.model import spans
from engine.model.commands import AnyCommand, Receipt, Submit
from engine.model.errors import MusterError, RefusedError
from engine.model.spans import SpanContext
from runbooks.gate.decisions import admit_all, check_admitted

if TYPE_CHECKING:
    from console.service.local_client import LocalClient
    from engine.control import Engine
    from engine.loop import EngineLoop
    from runbooks.gate.approval_gate import Gate
    from runbooks.plans.identity import Actor


MAX_AT_ONCE = 2_000
"""Workloads of one transaction, unless one request has more: how long the engine may be busy with them."""
MAX_WAITING = 200_000
"""Workloads that may wait to be taken."""
Answer = StoredResponse | BaseException


@dataclass
class _Waiting:
    """A submission that the engine has not taken yet."""

    actor: Actor
    command: Submit
    key: IdempotencyKey | None
    answer: asyncio.Future[StoredResponse] = field(repr=False)
    span: SpanContext | None = field(default_factory=spans.CURRENT.get)

    @property
    def size(self) -> int:
        return len(self.command.workloads)


class SubmissionBatcher:
    """Batches submissions. Made and used in one event loop; only `_take` runs on the engine's thread, and takes all
    that has arrived by then."""

    def __init__(self, client: LocalClient, loop: EngineLoop, gate: Gate, keys: IdempotencyKeys) -> None:
        self._client = client
        self._loop = loop
        self._gate = gate
        self._keys = keys
        self._aio = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        self._size = 0
        """Workloads that wait."""
        self._door = threading.Lock()
        """Held to look at what waits, or to change it."""
        self._asked = False
        """Whether the engine was asked to take what waits."""

    async def command(self, request: Request) -> Response:
        forbid_if_read_only(self._client.read_only)
        content = await body(request)
        if len(content) > LARGE_BODY:
            command: AnyCommand = await to_thread.run_sync(decoded, content, AnyCommand)
        else:
            command = decoded(content, AnyCommand)
        try:
            check_admitted(command)
        except RefusedError as error:
            raise Forbidden(error.problem, error.remedy) from None
        key = key_of(request, content)
        if isinstance(command, Submit):
            return answer_to(await self._submitted(command, key))
        client = self._client.acting_as(CALLER.get())

        async def define() -> StoredResponse:
            receipt = await to_thread.run_sync(client.command, command)
            return StoredResponse(msgspec.json.encode(receipt), receipt.version)

        return answer_to(await (define() if key is None else self._keys.once(key, define)))

    async def _submitted(self, command: Submit, key: IdempotencyKey | None) -> StoredResponse:
        waiting = _Waiting(CALLER.get(), command, key, self._aio.create_future())
        with self._door:
            if self._size and self._size + waiting.size > MAX_WAITING:
                raise Crowded(
                    f"{self._size} workloads are waiting to be accepted",
                    "Try again in a second",
                    OVERLOAD_RETRY_S["change"],
                )
            self._waiting.append(waiting)
            self._size += waiting.size
        self._ask()
        return await waiting.answer

    def _ask(self) -> None:
        """Have the engine take what waits, unless it was asked already. On either thread."""
        with self._door:
            if self._asked or not self._waiting:
                return
            self._asked = True
        try:
            self._loop.post(self._take).add_done_callback(self._taken)
        except MusterError as error:  # the engine is stopping
            self._refuse(error)

    def _batch(self) -> list[_Waiting]:
        """The next batch, with the door held. A key that comes twice goes one after the other: the second is
        answered from the first."""
        batch: list[_Waiting] = []
        keys: set[tuple[str, str]] = set()
        size = 0
        while self._waiting:
            first = self._waiting[0]
            place = (first.key.caller, first.key.key) if first.key is not None else None
            if (batch and size + first.size > MAX_AT_ONCE) or place in keys:
                break
            if place is not None:
                keys.add(place)
            size += first.size
            batch.append(self._waiting.popleft())
        self._size -= size
        return batch

    def _take(self, engine: Engine) -> None:
        """On the engine's thread."""
        with self._door:
            self._asked = False
            batch = self._batch()
        # What did not go into this batch has the next turn.
        self._ask()
        try:
            answers = self._done(engine, batch)
        except BaseException as error:  # whatever it is, it is told to those who wait
            answers = [error] * len(batch)
        if any(isinstance(answer, StoredResponse) for answer in answers):
            self._client.wrote({waiting.actor for waiting in batch})
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._aio.call_soon_threadsafe(self._answered, batch, answers)

    def _done(self, engine: Engine, batch: Sequence[_Waiting]) -> list[Answer]:
        keys = [waiting.key for waiting in batch if waiting.key is not None]
        known = engine.record(lambda connection: self._keys.known(connection, keys)) if keys else {}
        answers: list[Answer | None] = [_replayed(waiting.key, known) for waiting in batch]
        fresh = [waiting for waiting, answer in zip(batch, answers, strict=True) if answer is None]

        def answered(connection: Connection, found: Sequence[Receipt | MusterError]) -> None:
            idempotency.keep(
                connection,
                [
                    (waiting.key, idempotency.written(_told(receipt)))
                    for waiting, receipt in zip(fresh, found, strict=True)
                    if waiting.key is not None and isinstance(receipt, Receipt)
                ],
            )

        if fresh:
            wanted = [(waiting.actor, waiting.command) for waiting in fresh]
            # The turn is part of the first request's trace, and names those of the others.
            first, *others = [waiting.span for waiting in fresh if waiting.span is not None] or [None]
            with spans.going_on(first), spans.span("submissions", links=[each for each in others if each]):
                found = admit_all(engine, self._gate, wanted, answered if keys else None)
            coming = iter(found)
            for place, answer in enumerate(answers):
                if answer is None:
                    receipt = next(coming)
                    answers[place] = _told(receipt) if isinstance(receipt, Receipt) else receipt
        return [answer for answer in answers if answer is not None]

    def _answered(self, batch: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():
                continue  # whoever asked is gone
            if isinstance(answer, StoredResponse):
                waiting.answer.set_result(answer)
            else:
                waiting.answer.set_exception(answer)

    def _taken(self, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:  # the engine stopped before it came to it
            self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        """Answer everybody who waits with an error: nobody takes their work any more."""
        with self._door:
            batch, self._size = list(self._waiting), 0
            self._waiting.clear()
        with contextlib.suppress(RuntimeError):  # the server has stopped
            self._aio.call_soon_threadsafe(self._answered, batch, [error] * len(batch))


def _replayed(key: IdempotencyKey | None, known: dict[tuple[str, str], tuple[str, bytes]]) -> Answer | None:
    """Earlier answer to a key; None where there is none."""
    found = known.get((key.caller, key.key)) if key is not None else None
    if key is None or found is None:
        return None
    try:
        return idempotency.replayed(key, found)
    except RefusedError as error:
        return error


def _told(receipt: Receipt) -> StoredResponse:
    return StoredResponse(msgspec.json.encode(receipt), receipt.version)
