"""A PostgreSQL server that restarts, a line to it that is cut in the midst of a commit, an engine that is taken over:
what was acknowledged is there once, and who lost the lease writes nothing."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import postgres
import psycopg
import pytest
from cells import small_cell, submit, workload
from database_line import Line
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select, text
from sqlalchemy.exc import DBAPIError

from engine.control import Engine
from engine.journal import postgres_store as leases
from engine.journal.database import Schema, create_some, place_of
from engine.journal.event_journal import Journal
from engine.journal.outside_readers import JournalFollower, StandbyResult, stand_by
from engine.journal.postgres_store import Holder, LeaseCandidate
from engine.journal.side_tables import Records, RecordsError
from engine.model.errors import JournalError, JournalTaken, SpecError
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())]

NOTES = Table("note", MetaData(), Column("id", Integer, primary_key=True, autoincrement=True), Column("name", String))


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.own_server() as made:
        yield made


@pytest.fixture
def line(server: postgres.Server) -> Iterator[Line]:
    made = Line(server.port)
    yield made
    made.close()


@pytest.fixture
def place(server: postgres.Server, line: Line) -> Schema:
    found = place_of(server.cell(line.port))
    assert isinstance(found, Schema)
    return found


@pytest.fixture
def engine(place: Schema) -> Iterator[Engine]:
    made = Engine.open(place, cell=small_cell(), seed=3)
    made.record(lambda connection: create_some(connection, [NOTES]))
    yield made
    made.close()


def note(engine: Engine, name: str) -> None:
    engine.record(lambda connection: connection.execute(insert(NOTES).values(name=name)))


def notes(engine: Engine) -> list[str]:
    return list(engine.recorded(lambda c: c.execute(select(NOTES.c.name).order_by(NOTES.c.id)).scalars().all()))


def same_again(engine: Engine) -> None:
    """What the journal has is what is shown, and it verifies."""
    shown = engine.state.digest()
    engine._stale = True
    engine.settle()
    assert engine.state.digest() == shown
    assert engine._journal.verify() == engine.version


# -- a line that is cut -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_turn_whose_answer_is_lost_is_there_once(engine: Engine, line: Line, when: Any) -> None:
    line.lose(b"INSERT INTO batch", when=when)
    engine.command(submit(workload("w1", gpu=1000)))
    assert line.cuts == 1
    assert "w1" in engine.state.workloads.row_of
    same_again(engine)


@pytest.mark.parametrize(("what", "kept"), [(b"INSERT INTO note", False), (b"COMMIT\0", True)])
def test_rows_whose_answer_is_lost_are_told_as_they_are(engine: Engine, line: Line, what: bytes, kept: bool) -> None:
    line.lose(what, when="after" if kept else "before")
    if kept:
        note(engine, "a")
    else:
        with pytest.raises(JournalError):
            note(engine, "a")
    assert line.cuts == 1
    note(engine, "b")
    assert notes(engine) == (["a", "b"] if kept else ["b"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_turn_with_rows_beside_it_is_whole(engine: Engine, line: Line, when: Any) -> None:
    line.lose(b"COMMIT\0", when=when)

    def beside(connection: Any) -> None:
        connection.execute(insert(NOTES).values(name="beside"))

    if when == "after":
        engine.command(submit(workload("w1", gpu=1000)), beside=beside)
    else:
        with pytest.raises(JournalError):
            engine.command(submit(workload("w1", gpu=1000)), beside=beside)
    engine.settle()
    there = "w1" in engine.state.workloads.row_of
    assert (there, notes(engine)) == ((True, ["beside"]) if when == "after" else (False, []))
    same_again(engine)


def test_while_nobody_can_tell_a_turn_is_refused_and_then_seen_for_what_it_was(
    engine: Engine, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, when in enumerate(("after", "before")):
        line.lose(b"INSERT INTO batch", when=when)  # type: ignore[arg-type]
        engine._journal._store._writers.dispose()  # its statements are prepared by name after a while
        with monkeypatch.context() as cut:
            cut.setattr(leases, "PATIENCE_S", 0.2)
            cut.setattr(engine._journal._store, "_end", _unreachable)
            with pytest.raises(JournalError, match="cannot be seen yet"):
                engine.command(submit(workload(f"w{number}", gpu=1000)))
        engine.settle()
        assert (f"w{number}" in engine.state.workloads.row_of) == (when == "after")
        same_again(engine)


def _unreachable(_deadline: float) -> None:
    raise JournalError("nobody there")


def test_a_session_that_was_given_up_can_write_nothing_more(engine: Engine, place: Schema, server: Any) -> None:
    """The statement of a session whose program has long gone on: the fence is another by then."""
    store = engine._journal._store
    epoch = store._epoch
    store._writers.dispose()
    note(engine, "mine")
    assert store._epoch > epoch
    head = engine.version, engine._journal._chain
    late = (engine.version + 1, engine.version + 1, 0, 0, 0, 0, b"")
    with psycopg.connect(place.conninfo, autocommit=True) as other:
        other.execute(f"SET search_path TO {place.name}")
        assert other.execute(leases._ADD_TURN, (epoch, 9, 9, *head, *late)).rowcount == 0
        assert other.execute(leases._MARK, (1, epoch)).rowcount == 0
    same_again(engine)


# -- a server that ends -----------------------------------------------------------------------------------------------


def test_a_restart_of_the_server_is_waited_for(engine: Engine, server: postgres.Server) -> None:
    for end in (server.kill, server.stop):
        end()
        starter = threading.Timer(0.3, server.start)
        starter.start()
        engine.command(submit(workload(f"w-{end.__name__}", gpu=1000)))
        starter.join()
        note(engine, end.__name__)
    assert notes(engine) == ["kill", "stop"]
    same_again(engine)


def test_without_a_server_questions_are_answered_and_changes_refused(
    engine: Engine, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "PATIENCE_S", 0.2)
    engine.command(submit(workload("before", gpu=1000)))
    server.kill()
    with pytest.raises(JournalError, match=r"127\.0\.0\.1"):
        engine.command(submit(workload("during", gpu=1000)))
    assert engine.workload("before").id == "before"
    assert engine.journal_error
    server.start()
    monkeypatch.setattr(leases, "PATIENCE_S", PATIENCE_S)
    engine.command(submit(workload("after", gpu=1000)))
    assert engine.journal_error == ""
    assert {"before", "after"} <= set(engine.state.workloads.row_of)
    assert "during" not in engine.state.workloads.row_of
    same_again(engine)


def test_a_server_that_hangs_is_given_up_and_found_again(
    engine: Engine, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "PATIENCE_S", 0.2)
    monkeypatch.setattr(leases, "STUCK_S", 0.5)
    engine.command(submit(workload("before", gpu=1000)))
    server.hold()
    try:
        with pytest.raises(JournalError):
            engine.command(submit(workload("during", gpu=1000)))
    finally:
        server.go_on()
    monkeypatch.setattr(leases, "PATIENCE_S", PATIENCE_S)
    engine.settle()
    engine.command(submit(workload("after", gpu=1000)))
    assert {"before", "after"} <= set(engine.state.workloads.row_of)
    same_again(engine)


def test_a_text_that_the_server_cannot_keep_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(SpecError, match="NUL"):
        note(engine, "a\0b")
    note(engine, "ok")
    assert notes(engine) == ["ok"]


# -- the lease --------------------------------------------------------------------------------------------------------


def test_who_lost_the_lease_writes_nothing_and_says_so(engine: Engine, place: Schema) -> None:
    records = Records(place, owner=engine.lease.owner)
    with psycopg.connect(place.conninfo, autocommit=True) as other:
        other.execute(f"SET search_path TO {place.name}")
        other.execute("UPDATE lease SET owner = 'other'")
        other.execute("UPDATE fence SET owner = 'other', epoch = epoch + 1")
    version = engine.version
    for write in (
        lambda: engine.command(submit(workload("late", gpu=1000))),
        lambda: note(engine, "late"),
    ):
        with pytest.raises(JournalTaken):
            write()
    with pytest.raises(RecordsError, match="taken the cell over"):
        records.write(lambda connection: connection.execute(text("SELECT 1")))
    records.close()
    with psycopg.connect(place.conninfo) as other:
        other.execute(f"SET search_path TO {place.name}")
        assert other.execute("SELECT last_version FROM head").fetchone() == (version,)
    assert engine.lease.taken.is_set()


def test_a_standby_takes_over_from_a_holder_that_is_silent_and_not_before(
    engine: Engine, place: Schema, server: postgres.Server, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine: whether the holder's process is there cannot be seen."""
    monkeypatch.setattr(leases, "TTL_S", 3.0)
    monkeypatch.setattr(leases, "this_process", lambda: Holder(host="elsewhere", pid=1, boot="another"))
    direct = dataclasses.replace(place, conninfo=place.conninfo.replace(str(line.port), str(server.port)))
    found: list[StandbyResult | None] = []
    waiting = threading.Thread(target=lambda: found.append(stand_by(direct, threading.Event(), lambda _: None)))
    waiting.start()
    for number in range(30):
        engine.command(submit(workload(f"w{number}", gpu=1000)))
        waiting.join(0.15)
    assert waiting.is_alive()
    digest = engine.state.digest()
    began = time.monotonic()
    line.silence()
    waiting.join(PATIENCE_S)
    took = time.monotonic() - began
    assert not waiting.is_alive()
    assert took > 1.5
    stood_by = found[0]
    assert stood_by is not None
    taken = Engine.open(direct, stood_by=stood_by)
    assert taken.state.digest() == digest
    taken.command(submit(workload("by-the-next", gpu=1000)))
    line.speak()
    line.cut()
    with pytest.raises(JournalTaken):
        engine.command(submit(workload("late", gpu=1000)))
    same_again(taken)
    taken.close()


def test_a_lease_that_is_given_back_is_had_at_once(place: Schema) -> None:
    first = Engine.open(place, cell=small_cell())
    follower = JournalFollower(place)
    follower.catch_up()
    assert follower.version == first.version
    first.command(submit(workload("last", gpu=1000)))
    first.close()
    candidate = LeaseCandidate(place)
    assert candidate.look().taken
    again = Engine.open(place, stood_by=StandbyResult(candidate.lease(), follower))
    assert "last" in again.state.workloads.row_of
    again.close()


def test_an_engine_that_does_no_more_work_gives_the_lease_back(engine: Engine, place: Schema) -> None:
    engine.lease.alive = lambda: False
    assert engine.lease.taken.wait(PATIENCE_S)
    candidate = LeaseCandidate(place)
    assert candidate.look().taken
    candidate.stand_no_more()


def test_a_standby_makes_no_cell(server: postgres.Server) -> None:
    place = place_of(server.url(), "of-no-cell")
    assert isinstance(place, Schema)
    stop, told = threading.Event(), []

    def say(news: str) -> None:
        told.append(news)
        stop.set()

    assert stand_by(place, stop, say) is None
    assert "nothing was begun yet" in told[0]
    with psycopg.connect(server.url()) as connection:
        assert not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'of-no-cell'").fetchall()


# -- what a server must be --------------------------------------------------------------------------------------------


def test_a_server_that_does_not_write_to_its_disk_is_refused() -> None:
    with postgres.own_server(conf="fsync = off\n") as careless, pytest.raises(JournalError, match="fsync = off"):
        Journal(careless.cell(), 1)


def test_two_cells_share_a_database_and_nothing_else(server: postgres.Server) -> None:
    engines = [Engine.open(place_of(server.url(), name), cell=small_cell()) for name in ("muster_a", "muster_b")]
    engines[0].command(submit(workload("of-a")))
    assert "of-a" not in engines[1].state.workloads.row_of
    for engine in engines:
        engine.close()


def test_a_user_who_may_not_make_a_schema_is_told_so(server: postgres.Server) -> None:
    url = server.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE poor LOGIN")
    with pytest.raises(JournalError, match="may not do that"):
        Journal(place_of(url.replace(postgres.USER, "poor", 1), "none"), 1)


def test_the_audit_of_a_server_is_append_only(engine: Engine, place: Schema) -> None:
    from runbooks.audit.log import Audit
    from runbooks.plans.identity import SYSTEM

    audit = Audit(engine, lambda: 1)
    engine.record(lambda connection: audit.append(connection, "test.done", SYSTEM))
    database = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(place.conninfo))
    for statement in (
        "UPDATE audit_record SET type = 'x'", "DELETE FROM audit_record", "TRUNCATE audit_record",
        "DELETE FROM audit_key", "UPDATE audit_log SET v = 2",
    ):  # fmt: skip
        with database.connect() as connection:
            connection.execute(text(f"SET search_path TO {place.name}"))
            with pytest.raises(DBAPIError, match="append-only"):
                connection.execute(text(statement))
    database.dispose()
    audit.close()
