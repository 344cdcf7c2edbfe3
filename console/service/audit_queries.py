"""What a face may ask of the audit, answered beside the engine: reading holds nobody up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.version import VERSION
from runbooks.audit import reader as reading
from runbooks.audit.queries import AuditErased, AuditPage, AuditPart, AuditQuery, AuditRange, AuditState

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from engine.control import Engine
    from engine.loop import EngineLoop
    from runbooks.gate.approval_gate import Gate
    from runbooks.people.identity import Actor


class Auditing:
    """The audit of one cell. `actor` is in whose name is asked; who may not is refused, on record."""

    def __init__(self, loop: EngineLoop, gate: Gate) -> None:
        self._loop = loop
        self._gate = gate
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
