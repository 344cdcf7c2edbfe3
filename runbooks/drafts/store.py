"""Record of drafts in the journal's database: the drafts that were made, and what became of those that were proposed.
That record is the only confidence shown with a draft."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, func, insert, select, update

from engine.journal.database import create_tables
from engine.model.errors import JournalError
from runbooks.drafts.typed_draft import Draft, Drafter, Record
from runbooks.gate.store import PROPOSAL, exist, number_of

if TYPE_CHECKING:
    from engine.control import Engine

METADATA = MetaData()
DRAFT = Table(
    "draft",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("drafter", String, primary_key=True),
    Column("task", String, nullable=False),
    Column("kind", String, nullable=False, index=True),
    Column("who", String, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("proposal", Integer, nullable=False, default=0),
)
"""`number` is that of D-17; `proposal` that of P-4, 0: it was never proposed."""

APPROVED = ("approved", "executing", "verifying", "paused", "verified", "failed", "rolling_back", "rolled_back",
            "rollback_failed", "stale")  # fmt: skip
FAILED = ("failed", "rolling_back", "rolled_back", "rollback_failed")


class DraftStore:
    """The drafts of one engine. Call it on the engine's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ready = False

    def _open(self) -> None:
        """Raises JournalError."""
        if not self._ready:
            self._engine.record(lambda connection: create_tables(connection, METADATA))
            self._ready = True

    def newest(self) -> int:
        """Number of the last draft that is on record; 0 where there is none, or none can be read."""
        with contextlib.suppress(JournalError):
            self._open()
            query = select(func.max(DRAFT.c.number))
            return self._engine.recorded(lambda connection: connection.execute(query).scalar()) or 0
        return 0

    def keep(self, number: int, draft: Draft, who: str, at_ms: int) -> None:
        """Raises JournalError."""
        self._open()
        values = {
            "number": number, "drafter": draft.drafter, "task": draft.task, "kind": draft.kind, "who": who,
            "at_ms": at_ms, "version": draft.version,
        }  # fmt: skip
        self._engine.record(lambda connection: connection.execute(insert(DRAFT).values(**values)))

    def proposed(self, number: int, drafter: Drafter, proposal_id: str) -> None:
        """Raises JournalError."""
        self._open()
        where = (DRAFT.c.number == number) & (DRAFT.c.drafter == drafter)
        change = update(DRAFT).where(where).values(proposal=number_of(proposal_id))
        self._engine.record(lambda connection: connection.execute(change))

    def record(self, drafter: Drafter, kind: str = "") -> Record:
        """The record of a drafter's drafts, of one kind if that is given. Raises JournalError."""
        self._open()
        return self._engine.recorded(lambda connection: _record(connection, drafter, kind))


def _record(connection: Connection, drafter: Drafter, kind: str) -> Record:
    whose = "by rule" if drafter == "rule" else "by the model"
    where = DRAFT.c.drafter == drafter
    if kind:
        where &= DRAFT.c.kind == kind
    drafted = connection.execute(select(func.count()).select_from(DRAFT).where(where)).scalar_one()
    ended: dict[str, int] = {}
    if exist(connection):
        joined = DRAFT.join(PROPOSAL, DRAFT.c.proposal == PROPOSAL.c.number)
        query = select(PROPOSAL.c.state, func.count()).select_from(joined).where(where).group_by(PROPOSAL.c.state)
        ended = {row[0]: row[1] for row in connection.execute(query)}
    return Record(
        of=f"drafts {whose}{f' of {kind}' if kind else ''}",
        drafted=drafted,
        proposed=sum(ended.values()),
        approved=sum(ended.get(state, 0) for state in APPROVED),
        verified=ended.get("verified", 0),
        failed=sum(ended.get(state, 0) for state in FAILED),
        rejected=ended.get("rejected", 0),
    )
