"""Takes what the outbox holds to the channels of the approval policy, on a thread of its own: the engine's only reads
what is due and writes down what became of it.

    log:                  one line of the engine's own log
    file:/path            one JSON object, as a line
    webhook:https://…     one JSON object by POST, with the message's key as Idempotency-Key

A message may come twice, if the engine ends between sending and writing that down: with the same key.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from console.text.guarded_streams import inert_json
from console.text.terminal_text import printable
from engine.model.errors import MusterError
from runbooks.gate.outbox import OutboxMessage, error_of

if TYPE_CHECKING:
    from engine.loop import EngineLoop
    from runbooks.gate.approval_gate import Gate

EVERY_S = 1.0
TIMEOUT_S = 5.0
"""Longest wait for a webhook to take a connection, and for each part of its answer."""


class Notifier:
    """One gate's messages."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self._loop = loop
        self._gate = gate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="courier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What is under way is not waited for longer than a webhook may take; what is not sent stays in the outbox."""
        self._stopping.set()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                self.turn()
            except MusterError:
                continue  # Nothing can be read or written now: what waits is still there at the next turn.

    def turn(self) -> None:
        """Send what is due. A channel that fails keeps its other messages waiting, and nobody else's."""
        due, channels = self._loop.call(lambda _: (self._gate.outbox.due(), self._gate.channels()))
        failed: set[str] = set()
        for message in due:
            if self._stopping.is_set():
                return
            if message.channel in failed:
                continue
            error = _sent(message, channels.get(message.channel, ""))
            if error:
                failed.add(message.channel)
            self._loop.call(lambda _, m=message, e=error: self._gate.outbox.settle(m, e))  # type: ignore[misc]


def _sent(message: OutboxMessage, address: str) -> str:
    """Empty when it was; else why it was not."""
    try:
        send(message, address)
    except Exception as error:  # a channel is the world outside: whatever it does, the others go on
        return error_of(error)
    return ""


def send(message: OutboxMessage, address: str) -> None:
    """To where the policy says that the channel leads. Raises whatever keeps it from being sent."""
    kind, _, where = address.partition(":")
    body = {
        "key": message.key, "proposal": f"P-{message.number}" if message.number else "", "channel": message.channel,
        "text": message.text, "created_ms": message.created_ms,
    }  # fmt: skip
    if kind == "log":
        print(f"muster: {printable(message.channel)}: {printable(message.text)}", file=sys.stderr, flush=True)
    elif kind == "file":
        _append(where, inert_json(msgspec.json.encode(body, order="sorted").decode()).encode() + b"\n")
    elif kind == "webhook":
        _post(where, msgspec.json.encode(body, order="sorted"), message.key)
    else:
        raise LookupError(f"the policy has no channel {message.channel[:40]!a} any more")


def _append(path: str, line: bytes) -> None:
    """Never through a link that somebody put there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def _post(url: str, body: bytes, key: str) -> None:
    """To that URL and no other: no redirects, no proxies of the environment. The answer's body is not read."""
    import httpx

    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    with (
        httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
        client.stream("POST", url, content=body, headers=headers) as answer,
    ):
        if not 200 <= answer.status_code < 300:
            raise OSError(f"answered {answer.status_code}")
