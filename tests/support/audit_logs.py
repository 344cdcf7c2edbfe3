"""Audit logs to tamper with: made by the real writer on the real journal."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from engine.control import Engine
from engine.journal import postgres_sessions
from engine.journal.database import Schema, place_of
from runbooks.audit.log import Audit
from runbooks.audit.reader import part
from runbooks.audit.witnesses import Anchor, CheckpointSigner
from runbooks.plans.identity import Actor
from runbooks.plans.queries import AuditPart, AuditRange
from runbooks.plans.typed_plan import Sealed

START_MS = 1_772_366_400_000
"""2026-03-01 12:00:00 UTC."""
ALICE = Actor(subject="person:alice", account="unix:1000", signed=True, key="ab12")
BOB = Actor(subject="person:bob", account="unix:1001")


class Clock:
    """Wall time that moves when told to."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


def signer(number: int = 1) -> CheckpointSigner:
    """The same key each time."""
    return CheckpointSigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


@dataclass
class Log:
    """An engine with its audit."""

    engine: Engine
    audit: Audit
    clock: Clock
    closed: bool = False

    def add(self, type_: str = "exec.step", count: int = 1, **fields: object) -> int:
        """Append that many records, a second apart; returns the number of the last."""

        def change(connection: object) -> int:
            last = 0
            for _ in range(count):
                self.clock.now_ms += 1_000
                last = self.audit.append(connection, type_, ALICE, **{"data": {"n": 1}, **fields})  # type: ignore[arg-type]
            return last

        return self.engine.record(change)

    def add_private(self, text: str) -> Sealed:
        """A record with a text that is kept apart."""

        def change(connection: object) -> Sealed:
            sealed = self.audit.seal(connection, text)  # type: ignore[arg-type]
            self.audit.append(connection, "vote.approve", BOB, proposal="P-1", private=(sealed,))  # type: ignore[arg-type]
            return sealed

        return self.engine.record(change)

    def checkpoint(self) -> None:
        self.audit.after(at_once=True)
        assert self.audit.error == ""

    def export(self, **wanted: object) -> str:
        """A bundle, whole."""
        lines, asked = "", AuditRange(**wanted)  # type: ignore[arg-type]
        while True:
            found: AuditPart = self.engine.record(functools.partial(part, wanted=asked, tool="test"))
            lines += found.lines
            if not found.after:
                return lines
            asked = AuditRange(**{**wanted, "first": found.first, "last": found.last, "after": found.after})  # type: ignore[arg-type]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.audit.close()
            self.engine.close()


def open_log(path: Path | None, key: CheckpointSigner | None = None, anchors: tuple[Anchor, ...] = ()) -> Log:
    engine, clock = Engine.open(path), Clock()
    return Log(engine, Audit(engine, clock, log_id="test", signer=key, anchors=anchors), clock)


def make_log(path: Path, key: CheckpointSigner | None, sizes: tuple[int, ...] = (10, 20, 30), last: int = 33) -> Log:
    """A log with checkpoints at those sizes, and records after the newest. Record 1 opens it."""
    log = open_log(path, key)
    at = 1
    for size in sizes:
        log.add(count=size - at, proposal="P-1")
        log.checkpoint()
        at = size
    log.add(count=last - at)
    return log


def tampered(path: Path, change: Callable[[Any], object]) -> Path:
    """What who owns the machine can do: no trigger stops him. `change` is told a connection of the driver."""
    place = place_of(path)
    if isinstance(place, Schema):
        with postgres_sessions.session(place, "writer") as server:
            server.execute("SET session_replication_role = replica")
            change(server)
        return path
    with sqlite3.connect(path) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        change(database)
    database.close()
    return path
