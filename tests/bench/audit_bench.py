"""What the audit costs: a record beside the engine's own transaction, and reading a long log to its end."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection

from engine.control import Engine
from engine.model.commands import AddQueues, HoldQueues, OpenQueues
from engine.model.specs import QueueSpec
from runbooks.audit import verify
from runbooks.audit.log import Audit
from runbooks.audit.reader import part
from runbooks.audit.verify import Trust
from runbooks.audit.witnesses import CheckpointSigner
from runbooks.plans.identity import Actor
from runbooks.plans.queries import AuditRange

RECORDS = 100_000
CHECKPOINTS = 100
TURNS = 1_000
ACTOR = Actor(subject="person:alice", account="unix:1000", signed=True, session="7f3a", key="ab12cd34")
FIELDS: dict[str, Any] = {
    "proposal": "P-12", "revision": 1, "step": "1", "plan_digest": "a" * 64, "policy_digest": "b" * 64,
    "data": {"action": "cordon", "key": f"{'c' * 64}:1:0", "targets": ["h100-0001", "h100-0002"], "version": 4711},
}  # fmt: skip
"""As the record of an effect."""


def audit() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        yield append(Path(folder) / "append.db")
        yield from read(Path(folder) / "read.db")


def append(path: Path) -> dict[str, Any]:
    """By how much a turn on disk takes longer with a record beside it: turns with and without take turns."""
    engine = Engine.open(path)
    engine.command(AddQueues(queues=(QueueSpec(name="q"),)))
    log = _audit(engine)
    spent: dict[bool, list[float]] = {False: [], True: []}

    def beside(connection: Connection) -> None:
        log.append(connection, "exec.effect", ACTOR, **FIELDS)

    for turn in range(2 * TURNS):
        recorded = turn % 4 in (1, 2)
        command = HoldQueues(names=("q",)) if turn % 2 else OpenQueues(names=("q",))
        began = time.perf_counter()
        engine.command(command, beside=beside if recorded else None)
        spent[recorded].append((time.perf_counter() - began) * 1000)
        if turn % 256 == 0:
            log.after(at_once=True)
    engine.close()
    bare, both = (statistics.median(spent[kind]) for kind in (False, True))
    return {
        "at": f"{TURNS:,} turns on disk, synchronous=FULL", "result": f"{both - bare:.3f} ms a record",
        "ms": both - bare, "p99_ms": statistics.quantiles(spent[True], n=100)[98],
        "reference": f"the turn without it: {bare:.3f} ms (medians)",
    }  # fmt: skip


def read(path: Path) -> Iterator[dict[str, Any]]:
    """A signed log from its first record to its last: in the journal, and as an export."""
    engine = Engine.open(path)
    log = _audit(engine)
    each = RECORDS // CHECKPOINTS

    def many(connection: Connection) -> None:
        for _ in range(each):
            log.append(connection, "exec.effect", ACTOR, **FIELDS)

    for _ in range(CHECKPOINTS):
        engine.record(many)
        log.after(at_once=True)
    assert log.error == ""
    bundle = path.with_suffix(".jsonl")
    with open(bundle, "w", encoding="utf-8") as file:
        after = 0
        while True:
            asked = AuditRange(first=1, after=after)
            found = engine.recorded(lambda connection, asked=asked: part(connection, asked, "bench"))
            file.write(found.lines)
            if not found.after:
                break
            after = found.after
    engine.close()
    for what, file_path in (("the journal", path), ("an export", bundle)):
        began = time.perf_counter()
        code, reports = verify.verify([file_path], Trust())
        spent_s = time.perf_counter() - began
        report = reports[0]
        assert (code, report.records, report.signed) == (0, RECORDS + 1, CHECKPOINTS)
        yield {
            "at": f"{RECORDS:,} records in {what}, {CHECKPOINTS} checkpoints", "result": f"{spent_s:.2f} s",
            "seconds": spent_s, "reference": f"{file_path.stat().st_size / RECORDS:,.0f} bytes a record",
        }  # fmt: skip


def _audit(engine: Engine) -> Audit:
    signer = CheckpointSigner(Ed25519PrivateKey.generate())
    return Audit(engine, lambda: time.time_ns() // 1_000_000, signer=signer)
