"""What the books say, read past the gate: records of the audit, effects, votes."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import select

from engine.control import Engine
from engine.journal.database import Schema
from runbooks.audit import verify
from runbooks.audit.log import record_table
from runbooks.gate.approval_gate import Gate
from runbooks.gate.store import EFFECT, PROPOSAL


def records(engine: Engine, after: int = 0) -> list[dict[str, Any]]:
    """Every record of the audit after that number, oldest first."""
    query = select(record_table.c.body).where(record_table.c.seq > after).order_by(record_table.c.seq)
    return [json.loads(body) for body in engine.record(lambda c: c.execute(query).scalars().all())]


def types(engine: Engine, after: int = 0, *, of: str = "") -> list[str]:
    """Types of the records, those about one proposal alone if it is given."""
    return [record["type"] for record in records(engine, after) if not of or record["proposal"] == of]


def newest(engine: Engine) -> int:
    return len(records(engine))


def effect_keys(engine: Engine) -> list[str]:
    """In the order in which they were had."""
    query = select(EFFECT.c.key).order_by(EFFECT.c.version, EFFECT.c.at_ms, EFFECT.c.step)
    return list(engine.record(lambda c: c.execute(query).scalars().all()))


def states(gate: Gate) -> dict[str, str]:
    rows = gate._engine.record(lambda c: c.execute(select(PROPOSAL.c.number, PROPOSAL.c.state)).all())
    return {f"P-{number}": state for number, state in rows}


def problems(engine: Engine, folder: Path) -> list[str]:
    """What the stand-alone verifier finds wrong with the log; where there is no journal, on a copy."""
    report = verify.check(verify.open_source(where(engine, folder)))
    assert report.records == newest(engine)
    return [str(problem) for problem in report.problems]


def where(engine: Engine, folder: Path = Path()) -> Path | str:
    """The file or the URL at which the verifier finds the log; of a cell in memory, a copy of it in the folder."""
    place = engine.place or getattr(getattr(engine._memory, "_store", None), "place", None)
    if isinstance(place, Schema):
        return f"{place.conninfo}&schema={place.name}"
    if engine.path is not None:
        return engine.path
    path = folder / "copy.db"
    path.unlink(missing_ok=True)
    source = engine.recorded(lambda connection: connection.connection.driver_connection)
    assert isinstance(source, sqlite3.Connection)
    with contextlib.closing(sqlite3.connect(path)) as target:
        source.backup(target)
    return path
