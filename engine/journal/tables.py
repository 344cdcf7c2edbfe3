"""The tables of the journal itself: batches of events, snapshots, the head; and starts that were foretold."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Column, Table
from sqlmodel import Field, SQLModel

from engine.journal.database import BIG

FORMAT = 2
OF_A_FLEET = -1
"""In place of the format, where a fleet keeps what it remembers: no cell is begun there."""


class Batch(SQLModel, table=True):
    """The events of one turn."""

    __tablename__ = "batch"
    first_version: int = Field(sa_column=Column(BIG, primary_key=True, autoincrement=False))
    last_version: int = Field(sa_type=BIG)
    at_ms: int = Field(sa_type=BIG)
    """Cell time of the last event."""
    wall_ms: int = Field(sa_type=BIG)
    crc: int = Field(sa_type=BIG)
    chain: int = Field(sa_type=BIG)
    """CRC-32 over the chain before and this batch's CRC."""
    events: bytes


class Snapshot(SQLModel, table=True):
    """The whole state at a version."""

    __tablename__ = "snapshot"
    version: int = Field(sa_column=Column(BIG, primary_key=True, autoincrement=False))
    wall_ms: int = Field(sa_type=BIG)
    chain: int = Field(sa_type=BIG)
    """Chain value of the batch that ends at this version."""
    crc: int = Field(sa_type=BIG)
    body: bytes


class Head(SQLModel, table=True):
    """One row: what the journal is and where it ends."""

    __tablename__ = "head"
    id: int = Field(primary_key=True)
    format: int
    last_version: int = Field(sa_type=BIG)
    chain: int = Field(sa_type=BIG)
    seed: int = Field(sa_type=BIG)


class Estimate(SQLModel, table=True):
    """A start that was foretold to somebody. No part of the state: it is only compared with what happened."""

    __tablename__ = "estimate"
    id: int | None = Field(default=None, primary_key=True)
    at_ms: int = Field(sa_type=BIG)
    """Cell time at which it was made; the other times are cell times too."""
    version: int = Field(sa_type=BIG)
    horizon_ms: int = Field(sa_type=BIG)
    kind: str
    """`start` of a workload that waited, or `run`: of one that was tried before it was submitted."""
    workload: str
    attempts: int
    """Starts it had had by then."""
    p10_ms: int | None = Field(sa_type=BIG)
    """None: after the horizon."""
    p50_ms: int | None = Field(sa_type=BIG)
    p90_ms: int | None = Field(sa_type=BIG)
    chance_permille: int


def table_of(model: type[SQLModel]) -> Any:
    """The Core table of a model: bulk rows never become objects."""
    return model.__table__  # type: ignore[attr-defined]


TABLES = tuple(table_of(model) for model in (Batch, Snapshot, Head))


class DatabaseKind(NamedTuple):
    """What a new database is made for."""

    format: int
    tables: tuple[Table, ...]
    """With the head among them."""


OF_A_CELL = DatabaseKind(FORMAT, TABLES)
