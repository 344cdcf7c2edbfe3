"""What a face may ask of the audit, answered beside the engine: reading holds nobody up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from console.version import VERSION
from engine.database import Schema
from engine.errors import RefusedError, SpecError
from runbooks import audit_reading as reading
from runbooks import segments
from runbooks.audit_pages import (
    AuditErased,
    AuditPage,
    AuditPart,
    AuditProof,
    AuditProofOf,
    AuditQuery,
    AuditRange,
    AuditSealed,
    AuditState,
)

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from engine.control import Engine
    from engine.loop import EngineLoop
    from runbooks.gate import Gate
    from runbooks.identity import Actor


class Auditing:
    """The audit of one cell. `actor` is in whose name is asked; who may not is refused, on record."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self._loop = loop
        self._gate = gate
        self._path: Path | None = loop.engine.path
        self._reader = reading.AuditReader(
            loop.engine.place, lambda ask: loop.call(lambda engine: engine.recorded(ask))
        )

    def state(self) -> AuditState:
        audit = self._gate.audit
        return self._reader.read(lambda connection: reading.state(connection, audit))

    def page(self, query: AuditQuery) -> AuditPage:
        return self._reader.read(lambda connection: reading.page(connection, query))

    def part(self, actor: Actor, wanted: AuditRange) -> AuditPart:
        """The first part is a record of its own, which the export has too."""
        self._loop.call(lambda engine: self._begin_export(engine, actor, wanted))
        return self._reader.read(lambda connection: reading.part(connection, wanted, f"muster {VERSION}"))

    def _begin_export(self, engine: Engine, actor: Actor, wanted: AuditRange) -> None:
        self._gate.refuse_unless(actor, "export")
        if wanted.after:
            return
        audit = self._gate.audit

        def write(connection: Connection) -> None:
            first, last = reading.bounds(connection, wanted)
            data = {"first": first, "last": last if wanted.last else 0, "private": wanted.private}
            audit.append(connection, "audit.exported", actor, data=data)

        engine.record(write)
        audit.after(at_once=True)

    def proof(self, wanted: AuditProofOf) -> AuditProof:
        folder = None if self._path is None else self._path.parent
        return self._reader.read(lambda connection: reading.proof(connection, wanted, folder))

    def anchor(self, actor: Actor) -> AuditState:
        """A checkpoint now, at all anchors."""

        def change(_engine: Engine) -> None:
            self._gate.refuse_unless(actor, "export")
            self._gate.audit.publish()

        self._loop.call(change)
        return self.state()

    def rotate(self, actor: Actor) -> AuditState:
        """Another key signs from now on."""

        def change(_engine: Engine) -> None:
            self._gate.refuse_unless(actor, "key")
            self._gate.audit.rotate_file(actor)

        self._loop.call(change)
        return self.state()

    def redact(self, actor: Actor, ref: str, reason: str) -> AuditErased:
        audit = self._gate.audit

        def change(engine: Engine) -> int:
            self._gate.refuse_unless(actor, "redact")
            seq = engine.record(lambda connection: audit.redact(connection, actor, ref, reason))
            audit.after(at_once=True)
            return seq

        seq = self._loop.call(change)
        return AuditErased(ref=ref, record=seq, scrubbed=self._loop.call(lambda _: audit.scrub()))

    def seal(self, actor: Actor, before_ms: int) -> AuditSealed:
        """Move the records that are older than that to a file beside the journal."""
        path, audit = self._path, self._gate.audit
        if isinstance(self._loop.engine.place, Schema):
            # A file would be on the machine of one engine, and the next one to take over may be elsewhere.
            raise RefusedError(
                "the audit of a cell in PostgreSQL stays in the database", "Take a copy with `muster audit export`"
            )
        if path is None:
            raise RefusedError("this cell is kept in memory: its audit cannot be sealed", "Start it with a journal")
        if before_ms < 1:
            raise SpecError("before_ms", f"is {before_ms}", "Give Unix milliseconds")
        self._loop.call(lambda _: self._gate.refuse_unless(actor, "redact"))
        wanted = self._reader.read(lambda connection: segments.due(connection, before_ms))
        sealed = AuditSealed()
        if wanted is not None:
            sealed = segments.write(
                lambda more: self._reader.read(lambda connection: reading.part(connection, more, f"muster {VERSION}")),
                wanted, path, audit.log_id,
            )  # fmt: skip
            self._loop.call(
                lambda engine: engine.record(lambda connection: segments.enter(connection, audit, actor, sealed))
            )
        # Also what an earlier sealing was kept from deleting.
        while self._loop.call(lambda engine: engine.record(segments.drop)):
            pass
        self._loop.call(lambda _: audit.after(at_once=True))
        return sealed
