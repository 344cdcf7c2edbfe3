"""The approval gate over time: expiry and progress (`GateTicker`), its figures (`GateFigures`), and notifications
(`Notifier`).

About once a second, on the engine's thread, the ticker expires what has run out and looks again at what takes long.
Where that fails, `error` names the reason and what it prevents. The figures answer frequent health checks without
waiting for the engine's thread.

The notifier delivers the outbox to the channels of the approval policy, on a thread of its own; the engine's only
reads what is due and writes down the outcome.

    log:                  one line of the engine's own log
    file:/path            one JSON object, as a line
    webhook:https://…     one JSON object by POST, with the message's key as Idempotency-Key
    slack:https://…       a message of a Slack-compatible chat, by POST to its incoming webhook (`console.service.chat`)

A message may come twice, with the same key, if the engine ends between sending and writing that down.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from console.service.chat import link_of, message_of
from console.text.guarded_streams import inert_json
from console.text.terminal_text import printable
from engine.model.errors import MusterError, UnreachableError
from runbooks.gate.store import OutboxMessage, error_of

if TYPE_CHECKING:
    from console.service.chat import Chat
    from engine.loop import EngineLoop
    from runbooks.gate.approval_gate import Gate


EVERY_S = 1.0
AFTER_FAILURE_S = 5.0
"""A database that another program holds keeps the engine's thread waiting at every try."""
NOTHING_RUNS = "no proposal, vote or action is possible"


class GateTicker:
    """Clock of one gate."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self.error = ""
        """Why the gate can do nothing; empty while all is well."""
        self._loop = loop
        self._gate = gate
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gate-ticker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = EVERY_S
        while not self._stopping.wait(pause_s):
            pause_s = EVERY_S if self.turn() else AFTER_FAILURE_S

    def turn(self) -> bool:
        """One look. Returns False when it failed."""
        try:
            self._loop.call(lambda _: self._gate.tick())
        except UnreachableError:
            return False  # The engine stops, or is busy: that is told elsewhere.
        except MusterError as error:
            self.error = f"{NOTHING_RUNS}: {error.problem}"
            return False
        self.error = ""
        return True


Figures = tuple[str, int, int, int]
"""(mode of approval, proposals that wait for votes, plans that got stuck, incidents that are open)"""


class GateFigures:
    """The last figures that were looked up."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self._loop = loop
        self._gate = gate
        self._figures: Figures | None = None
        self._asked_at = 0.0

    def look(self) -> Figures:
        """Read the present figures. On the engine's thread."""
        self._figures = (self._gate.mode(), *self._gate.pending())
        return self._figures

    def latest(self) -> Figures:
        """Figures from a moment ago; new ones are requested when they are older than a second. From any thread."""
        figures, now = self._figures, time.monotonic()
        if figures is None:
            return self._loop.call(lambda _: self.look())
        if now - self._asked_at > EVERY_S:
            self._asked_at = now
            self._loop.post(lambda _: self.look())
        return figures

    def forget(self) -> None:
        """Drop the figures after a change: the next caller waits for new ones."""
        self._figures = None


TIMEOUT_S = 5.0
"""Longest wait for a webhook to take a connection, and for each part of its answer."""


class Notifier:
    """Delivers the messages of one gate."""

    def __init__(
        self,
        loop: EngineLoop,
        gate: Gate,
        chat: Chat | None = None,
        findings: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`chat`: where proposals and findings are announced; None: nowhere. `findings`: id -> text of what stands out
        now."""
        self._loop = loop
        self._gate = gate
        self._chat = chat
        self._findings = findings
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait for a delivery under way, at most as long as a webhook may take; unsent messages stay in the outbox."""
        self._stopping.set()
        self._thread.join(TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                self.turn()
            except MusterError:
                continue  # Nothing can be read or written now: what waits is still there at the next turn.

    def turn(self) -> None:
        """Send the messages that are due. A channel that fails delays its own messages only."""
        self._announce()
        due, channels = self._loop.call(lambda _: (self._gate.outbox.due(), self._gate.channels()))
        failed: set[str] = set()
        for message in due:
            if self._stopping.is_set():
                return
            if message.channel in failed:
                continue
            error = self._sent(message, channels.get(message.channel, ""))
            if error:
                failed.add(message.channel)
            self._loop.call(lambda _, m=message, e=error: self._gate.outbox.settle(m, e))  # type: ignore[misc]

    def _announce(self) -> None:
        """Queue what waits for votes, and what stands out, for the chat. Each is told once."""
        if self._chat is None:
            return
        channel = self._chat.channel
        found = {
            f"finding:{id_}:{channel}": ("", f"Finding {id_}: {text}. See: muster recommend")
            for id_, text in self._findings().items()
        }
        self._loop.call(lambda _: self._gate.announce(channel))
        self._loop.call(lambda _: self._gate.tell(channel, found))

    def _sent(self, message: OutboxMessage, address: str) -> str:
        """Send a message; returns the reason when it failed, else nothing."""
        try:
            send(message, address, self._chat)
        except Exception as error:  # a channel is the world outside: whatever it does, the others go on
            return error_of(error)
        return ""


def send(message: OutboxMessage, address: str, chat: Chat | None = None) -> None:
    """Send a message to the address of its channel. `chat`: adds links, and buttons where a press can be believed.
    Raises whatever prevents it."""
    kind, _, where = address.partition(":")
    body = {
        "key": message.key, "proposal": f"P-{message.number}" if message.number else "", "channel": message.channel,
        "text": message.text, "created_ms": message.created_ms, "link": link_of(message, chat),
    }  # fmt: skip
    if kind == "log":
        print(f"muster: {printable(message.channel)}: {printable(message.text)}", file=sys.stderr, flush=True)
    elif kind == "file":
        _append(where, inert_json(msgspec.json.encode(body, order="sorted").decode()).encode() + b"\n")
    elif kind == "webhook":
        _post(where, msgspec.json.encode(body, order="sorted"), message.key)
    elif kind == "slack":
        _post(where, msgspec.json.encode(message_of(message, chat)), message.key)
    else:
        raise LookupError(f"the policy no longer has channel {message.channel[:40]!a}")


def _append(path: str, line: bytes) -> None:
    """Never through a link that somebody put there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def _post(url: str, body: bytes, key: str) -> None:
    """POST to that URL and no other: no redirects, no proxies of the environment. The answer's body is not read."""
    import httpx

    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    with (
        httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
        client.stream("POST", url, content=body, headers=headers) as answer,
    ):
        if not 200 <= answer.status_code < 300:
            raise OSError(f"answered {answer.status_code}")
