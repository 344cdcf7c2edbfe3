"""Where nothing can be recorded nothing is done: whatever keeps the database from being written, and whenever. What is
there can be looked at all the while, and once it can be written again everything goes on, without loss and once."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from agreement import check_agreement
from cells import small_cell, submit, workload
from effort import THOROUGH
from gate_cells import HOUR, START, Clock
from gate_crash_worker import WIDE, bring_to_an_end, steps
from gates import ME, gate_of
from sqlalchemy import Connection

from engine.control import Engine
from engine.model.commands import AnyCommand, Receipt
from engine.model.errors import JournalError, NotFoundError
from runbooks.gate.approval_gate import Gate

T = TypeVar("T")
Seen = list[tuple[str, str, tuple[str, ...]]]
UNTOUCHED = {"g0": "ready", "w0": "queued"}
PLAN = steps(("cordon", ("g0",)), ("hold", ("w0",)))


class Failing(Engine):
    """An engine whose database cannot be written from one of its transactions on."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.transactions = 0
        self.fail: Callable[[], None] | None = None
        """Called before each."""
        super().__init__(*args, **more)

    def _count(self) -> None:
        self.transactions += 1
        if self.fail is not None:
            self.fail()

    def record(self, change: Callable[[Connection], T]) -> T:
        self._count()
        return super().record(change)

    def command(self, command: AnyCommand, *, audit: Any = None, beside: Any = None) -> Receipt:
        self._count()
        return super().command(command, audit=audit, beside=beside)


# -- what may be wrong ------------------------------------------------------------------------------------------------

pytestmark = pytest.mark.about_files("what keeps it from being written; test_database_failover.py does so to a server")
Failure = Callable[[Engine], contextlib.AbstractContextManager[None]]


def pragma(engine: Engine, text: str) -> Any:
    assert engine._journal is not None
    with engine._journal._store.db.connect() as connection:
        result = connection.exec_driver_sql(f"PRAGMA {text}")
        return result.scalar() if result.returns_rows else None


def other_connection(engine: Engine) -> sqlite3.Connection:
    return sqlite3.connect(str(engine.path))


@contextlib.contextmanager
def read_only(engine: Engine) -> Iterator[None]:
    pragma(engine, "query_only = ON")
    yield
    pragma(engine, "query_only = OFF")


@contextlib.contextmanager
def full(engine: Engine) -> Iterator[None]:
    """SQLite's own page limit stands in for the disk's end: the same error code, SQLITE_FULL. The room that is left
    within pages is taken too."""
    pragma(engine, f"max_page_count = {pragma(engine, 'page_count')}")
    yield
    pragma(engine, "max_page_count = 1073741823")


@contextlib.contextmanager
def locked(engine: Engine) -> Iterator[None]:
    pragma(engine, "busy_timeout = 20")
    with contextlib.closing(other_connection(engine)) as blocker:
        blocker.execute("BEGIN EXCLUSIVE")
        yield
        blocker.rollback()
    pragma(engine, "busy_timeout = 2000")


@contextlib.contextmanager
def audit_refuses(engine: Engine) -> Iterator[None]:
    with contextlib.closing(other_connection(engine)) as other:
        other.execute(
            "CREATE TRIGGER no_more BEFORE INSERT ON audit_record BEGIN SELECT RAISE(ABORT, 'no more records'); END"
        )
        yield
        other.execute("DROP TRIGGER no_more")


FAILURES: dict[str, Failure] = {"read-only": read_only, "full": full, "locked": locked, "audit refuses": audit_refuses}


# -- whenever ---------------------------------------------------------------------------------------------------------


def cell(path: Path) -> tuple[Failing, Gate]:
    """g0 is ready, and w0 waits."""
    engine = Failing.open(path, cell=small_cell())
    assert isinstance(engine, Failing)
    run = workload("r0", gpu=8000, run=100 * HOUR, estimate=100 * HOUR, queue="b")
    engine.command(submit(run, workload("w0", count=4, gpu=8000, queue="b")))
    return engine, gate_of(engine, WIDE, Clock(START))


def play(gate: Gate) -> None:
    shown = gate.propose(ME, PLAN)
    gate.approve(ME, shown.id, shown.digest, "seen and wanted")
    gate.rollback(ME, shown.id, "no longer needed")


def fail_at(path: Path, failure: Failure, number: int) -> str:
    """Play until a transaction before which writing begins to fail. Returns the state the proposal was in then; "held"
    where the rest could be written all the same, and "done" where there are not so many transactions."""
    engine, gate = cell(path)
    kept: list[Any] = []
    with contextlib.closing(engine):
        with contextlib.ExitStack() as stack:

            def fail() -> None:
                if engine.transactions >= number:
                    kept[:] = engine.state.digest(), look(gate)
                if engine.transactions == number:
                    stack.enter_context(failure(engine))

            engine.transactions, engine.fail = 0, fail
            try:
                play(gate)
            except JournalError:
                engine.fail = None
                check_nothing_done(engine, gate, *kept)
                if failure is not full:
                    # There may be room for something small.
                    check_nothing_can_be_done(engine, gate)
            else:
                return "held" if kept else "done"
        check_agreement(engine, UNTOUCHED)
        gate.tick()
        bring_to_an_end(gate)
        if not gate.proposals():
            play(gate)
        check_agreement(engine, UNTOUCHED)
        assert gate.proposals()[0].state in ("verified", "rolled_back")
    return str(kept[1][0][1]) if kept[1] else "nothing"


def check_nothing_done(engine: Engine, gate: Gate, digest: str, seen: Seen) -> None:
    """What could not be written has not happened; and what is there can be looked at."""
    assert engine.state.digest() == digest, "the engine has done what could not be recorded"
    assert look(gate) == seen
    assert engine.overview().version == engine.version


def check_nothing_can_be_done(engine: Engine, gate: Gate) -> None:
    before = engine.state.digest(), look(gate)
    with pytest.raises(JournalError):
        gate.propose(ME, steps(("cordon", ("g1",))))
    for shown in gate.proposals(("awaiting", "approved")):
        with pytest.raises(JournalError):
            gate.approve(ME, shown.id, shown.digest, "seen and wanted")
    assert (engine.state.digest(), look(gate)) == before


def look(gate: Gate) -> Seen:
    """What a person sees."""
    return [(shown.id, shown.state, tuple(step.state for step in shown.standing)) for shown in gate.proposals()]


@pytest.mark.parametrize(
    "name", ["audit refuses", *(pytest.param(name, marks=pytest.mark.thorough) for name in list(FAILURES)[:3])]
)
def test_what_cannot_be_recorded_is_not_done(tmp_path: Path, name: str) -> None:
    seen: list[str] = []
    number = 1 if THOROUGH else 2
    while not seen or seen[-1] != "done":
        folder = tmp_path / str(number)
        folder.mkdir()
        seen.append(fail_at(folder / "journal.db", FAILURES[name], number))
        number += 1 if THOROUGH else 6
    if THOROUGH and name != "full":
        assert {"nothing", "awaiting", "approved", "executing", "verifying", "rolling_back"} <= set(seen)


@pytest.mark.parametrize("name", list(FAILURES))
def test_a_gate_that_finds_it_unwritable_can_be_looked_at_and_goes_on_later(tmp_path: Path, name: str) -> None:
    """Also where a plan was under way when the last process ended."""
    path = tmp_path / "journal.db"
    engine, gate = cell(path)
    with contextlib.closing(engine), contextlib.ExitStack() as stack:

        def fail() -> None:
            if look(gate)[:1] == [("P-1", "verifying", ("done", "waiting"))]:
                engine.fail = None
                stack.enter_context(locked(engine))

        engine.fail = fail
        with pytest.raises(JournalError):
            play(gate)
        seen = look(gate)
    with contextlib.closing(Engine.open(path)) as again:
        with FAILURES[name](again):
            gate = gate_of(again, WIDE, Clock(START))
            check_nothing_can_be_done(again, gate)
            check_nothing_done(again, gate, again.state.digest(), seen)
        gate.tick()
        bring_to_an_end(gate)
        assert look(gate) == [("P-1", "verified", ("verified", "verified"))]
        assert check_agreement(again, UNTOUCHED) == {"cordon": 1, "hold": 1}


def test_a_journal_that_never_had_a_gate_and_cannot_be_written_is_not_called_damaged(tmp_path: Path) -> None:
    with contextlib.closing(Engine.open(tmp_path / "journal.db", cell=small_cell())) as engine:
        with locked(engine):
            gate = gate_of(engine, WIDE, Clock(START))
            assert gate.proposals() == ()
            with pytest.raises(NotFoundError, match="P-1"):
                gate.proposal("P-1")
            with pytest.raises(JournalError, match="locked"):
                gate.propose(ME, PLAN)
        assert gate.propose(ME, steps(("cordon", ("g0",)))).state == "awaiting"
