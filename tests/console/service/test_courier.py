"""What goes out of the cell, to a real server that fails first; and what comes of channels that hang or are gone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

from console.service.gate_watch import Notifier, send
from engine.loop import EngineLoop
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import SOLO
from runbooks.gate.store import FIRST_PAUSE_MS, MAX_ATTEMPTS, OUTBOX, OutboxMessage
from runbooks.plans.typed_plan import Note, asks
from tests.support.gates import ME, gate_of
from tests.support.patience import PATIENCE_S
from tests.support.served import running_loop

Taken = tuple[str, dict[str, Any]]


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@contextmanager
def receiver(*statuses: int, location: str = "") -> Iterator[tuple[str, list[Taken]]]:
    """A server that answers with these statuses, the last one for good; and what it was sent: (key, body)."""
    taken: list[Taken] = []
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.headers["Idempotency-Key"], json.loads(content)))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def telling(loop: EngineLoop, clock: Clock, **channels: str) -> Gate:
    policy = msgspec.structs.replace(SOLO, channels=tuple(channels.items()))
    return loop.call(lambda engine: gate_of(engine, policy, clock))


def tell(loop: EngineLoop, gate: Gate, *channels: str, text: str = "the pool is short") -> None:
    def say(_: object) -> None:
        shown = gate.propose(ME, asks("notify", channels, note=Note(text=text)))
        gate.approve(ME, shown.id, shown.digest)

    loop.call(say)


def states(loop: EngineLoop) -> list[tuple[str, str, int]]:
    query = select(OUTBOX.c.channel, OUTBOX.c.state, OUTBOX.c.attempts).order_by(OUTBOX.c.channel)
    return loop.call(lambda engine: engine.recorded(lambda c: [tuple(row) for row in c.execute(query)]))


def types(loop: EngineLoop) -> list[str]:
    query = select(record_table.c.type).order_by(record_table.c.seq)
    return loop.call(lambda engine: engine.recorded(lambda c: list(c.execute(query).scalars())))


def test_what_failed_comes_again_with_the_same_key(loop: EngineLoop) -> None:
    clock = Clock()
    with receiver(503, 200) as (url, taken):
        gate = telling(loop, clock, hook=f"webhook:{url}")
        courier = Notifier(loop, gate)
        tell(loop, gate, "hook")
        courier.turn()
        assert states(loop) == [("hook", "waiting", 1)]
        courier.turn()
        assert len(taken) == 1, "not before its pause is over"
        clock.now_ms += 2 * FIRST_PAUSE_MS
        courier.turn()
        courier.turn()
    (first, body), (second, again) = taken
    assert first == second
    assert body == again == {**body, "key": first, "channel": "hook", "proposal": "P-1", "text": "the pool is short"}
    assert states(loop) == [("hook", "sent", 2)]
    assert types(loop).count("outbox.sent") == 1


def test_no_redirect_is_followed_and_what_never_works_is_given_up_on_record(loop: EngineLoop) -> None:
    clock = Clock()
    with receiver(200) as (elsewhere, other), receiver(307, location=elsewhere) as (url, taken):
        gate = telling(loop, clock, hook=f"webhook:{url}")
        courier = Notifier(loop, gate)
        tell(loop, gate, "hook")
        for _ in range(MAX_ATTEMPTS + 2):
            courier.turn()
            clock.now_ms += 24 * 3_600_000
        assert len(taken) == MAX_ATTEMPTS
        assert other == []
    assert states(loop) == [("hook", "failed", MAX_ATTEMPTS)]
    assert types(loop).count("outbox.failed") == 1


def test_one_channel_that_fails_keeps_no_other_waiting(
    loop: EngineLoop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "told.jsonl"
    gate = telling(loop, Clock(), down="webhook:http://127.0.0.1:9/", file=f"file:{file}", log="log:")
    tell(loop, gate, "down", "file", "log", text="drain [me]")
    tell(loop, gate, "down", "file", text="once more")
    Notifier(loop, gate).turn()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["text"] for line in lines] == ["drain [me]", "once more"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert "muster: log: drain [me]" in capsys.readouterr().err
    assert sorted(states(loop)) == [
        ("down", "waiting", 0), ("down", "waiting", 1), ("file", "sent", 1), ("file", "sent", 1), ("log", "sent", 1),
    ]  # fmt: skip


def test_a_file_channel_goes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("precious\n")
    os.symlink(tmp_path / "secret", tmp_path / "told")
    message = OutboxMessage(key="k", number=1, channel="file", text="x", created_ms=0, attempts=0)
    with pytest.raises(OSError, match="symbolic"):
        send(message, f"file:{tmp_path / 'told'}")
    assert (tmp_path / "secret").read_text() == "precious\n"
    with pytest.raises(LookupError, match="no longer has channel"):
        send(message, "")


def test_the_engine_answers_while_a_channel_hangs(loop: EngineLoop) -> None:
    asked, go_on = threading.Event(), threading.Event()

    class Hangs(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.set()
            go_on.wait(PATIENCE_S)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    server = HTTPServer(("127.0.0.1", 0), Hangs)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    gate = telling(loop, Clock(), hook=f"webhook:http://127.0.0.1:{server.server_port}/")
    tell(loop, gate, "hook")
    sending = threading.Thread(target=Notifier(loop, gate).turn)
    sending.start()
    assert asked.wait(PATIENCE_S)
    assert loop.call(lambda engine: engine.version) > 0
    assert loop.call(lambda _: gate.proposal("P-1")).state == "verified"
    loop.call(lambda _: gate.tick())
    go_on.set()
    sending.join(PATIENCE_S)
    server.shutdown()
    serving.join()
    server.server_close()
    assert states(loop) == [("hook", "sent", 1)]
