"""The journal and the rows beside it, the same on SQLite and on a real PostgreSQL server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest
from cells import small_cell, submit, workload
from sqlalchemy import Column, Float, Integer, LargeBinary, MetaData, String, Table, func, insert, select, text

from engine.control import Engine
from engine.journal.database import BIG, Place, SqliteFile, create_some, place_of, put, put_new
from engine.journal.event_journal import Journal
from engine.journal.outside_readers import copy
from engine.journal.side_tables import Records, RecordsError
from engine.journal.tables import MIGRATION, PRUNED, TABLES, Estimate, table_of
from engine.model.errors import JournalBusy, JournalCorrupt, JournalError, JournalFormat, RefusedError, SpecError

META = MetaData()
ROWS = Table(
    "test_row",
    META,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String, primary_key=True),
    Column("big", BIG),
    Column("part", Float),
    Column("body", LargeBinary),
)


COUNTED = Table("counted", META, Column("id", Integer, primary_key=True, autoincrement=True), Column("name", String))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(tmp_path / "journal.db" if request.param == "sqlite" else postgres.new_url())


@pytest.fixture
def played(place: Place) -> Place:
    """A journal with a snapshot in the middle and batches on both sides of it."""
    engine = Engine.open(place, cell=small_cell(), seed=5, snapshot_every=30)
    for i in range(25):
        engine.command(submit(workload(f"w{i}", gpu=1000, run=5000 + i)))
        engine.advance(engine.now_ms + 400)
    engine._journal.close()
    return place


@pytest.fixture
def records(place: Place) -> Iterator[Records]:
    Journal(place, 1).close()
    made = Records(place)
    made.create([ROWS])
    yield made
    made.close()


def row(number: int, name: str = "a", **more: object) -> dict[str, object]:
    return {"id": number, "name": name, "big": 2**62, "part": 0.1, "body": b"\0\xff", **more}


def change(place: Place, statement: str) -> None:
    """What somebody does who can write the database."""
    journal = Journal(place, 1)
    journal.transact(lambda connection: connection.execute(text(statement)))
    journal.close()


# -- the journal ------------------------------------------------------------------------------------------------------


def test_state_is_the_same_from_the_snapshot_and_from_every_event(played: Place) -> None:
    with_snapshot = Engine.open(played)
    digest = with_snapshot.state.digest()
    assert with_snapshot._journal.verify() == with_snapshot.version
    with_snapshot.close()
    without = Engine.open(played, use_snapshot=False)
    assert (without.state.digest(), without.seed) == (digest, 5)
    without.close()


def test_both_databases_hold_the_same_history(tmp_path: Path, place: Place) -> None:
    digests = set()
    for where in (tmp_path / "other.db", place):
        engine = Engine.open(where, cell=small_cell(), seed=7)
        for i in range(6):
            engine.command(submit(workload(f"w{i}", gpu=1000, run=3000)))
            engine.advance(engine.now_ms + 1000)
        digests.add(engine.state.digest())
        engine.close()
        again = Engine.open(where)
        digests.add(again.state.digest())
        again.close()
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM batch WHERE first_version = (SELECT max(first_version) FROM batch)", "acknowledged"),
        ("UPDATE batch SET crc = crc + 1 WHERE first_version = (SELECT max(first_version) FROM batch)", "checksum"),
        ("UPDATE batch SET chain = chain + 1 WHERE first_version = (SELECT max(first_version) FROM batch)", "follow"),
        ("UPDATE head SET last_version = last_version + 1", "acknowledged"),
        ("UPDATE snapshot SET crc = crc + 1", "snapshot"),
        ("DELETE FROM head", "no head"),
    ],
)
def test_damage_is_found_and_named(played: Place, statement: str, says: str) -> None:
    change(played, statement)
    with pytest.raises(JournalCorrupt, match=says) as caught:
        Engine.open(played)
    assert str(played) in caught.value.problem
    assert caught.value.remedy


def test_a_second_engine_is_told_who_has_the_journal(played: Place) -> None:
    import os

    engine = Engine.open(played)
    with pytest.raises(JournalBusy, match=f"process {os.getpid()}"):
        Engine.open(played)
    engine.command(submit(workload("still-ours")))
    engine.close()
    Engine.open(played).close()


def test_what_beside_a_turn_fails_undoes_the_turn(played: Place) -> None:
    engine = Engine.open(played)
    digest, version = engine.state.digest(), engine.version

    def refuse(_connection: object) -> None:
        raise SpecError("x", "no")

    with pytest.raises(SpecError):
        engine.command(submit(workload("late", gpu=1000)), beside=refuse)
    engine.settle()
    assert (engine.state.digest(), engine.version) == (digest, version)
    engine.close()


def test_estimates_are_kept(played: Place) -> None:
    journal = Journal(played, 1)
    told = Estimate(
        at_ms=2**41, version=3, horizon_ms=1, kind="start", workload="w", attempts=0, p10_ms=None, p50_ms=2**41,
        p90_ms=None, chance_permille=500,
    )  # fmt: skip
    journal.keep_estimates([told])
    assert [(kept.at_ms, kept.p50_ms, kept.p10_ms) for kept in journal.estimates()] == [(2**41, 2**41, None)]
    journal.close()


def test_a_database_of_another_muster_is_refused_and_left_as_it_is(played: Place) -> None:
    change(played, "INSERT INTO migration (number, name, at_ms) VALUES (999, 'of tomorrow', 0)")
    for _ in range(2):
        with pytest.raises(JournalFormat, match="newer Muster: it has had 999 migrations"):
            Journal(played, 1)


def test_a_journal_of_another_format_is_refused(played: Place) -> None:
    change(played, "UPDATE head SET format = 1")
    with pytest.raises(JournalFormat, match="format 1"):
        Journal(played, 1)


def test_an_older_database_gets_what_it_lacks(played: Place) -> None:
    change(played, "DROP TABLE estimate")
    change(played, "DROP TABLE migration")  # which the opening for the line above had made
    journal = Journal(played, 1)
    assert journal.estimates() == []
    had = journal.look(lambda connection: connection.execute(text("SELECT number FROM migration")).scalars().all())
    assert had == [1, 2, 3, 4]
    journal.close()


# -- rows beside it ---------------------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were_and_in_the_order_of_their_code_points(records: Records) -> None:
    names = ["b", "B", "a", "ä", "Z", "_"]
    records.write(lambda c: c.execute(insert(ROWS), [row(1, name) for name in names]))
    with records.reading() as connection:
        found = connection.execute(select(ROWS).order_by(ROWS.c.name)).all()
    assert [each.name for each in found] == sorted(names)
    assert {(each.big, each.part, bytes(each.body)) for each in found} == {(2**62, 0.1, b"\0\xff")}


def test_a_row_is_replaced_or_left_as_it_is(records: Records) -> None:
    records.write(lambda c: put(c, ROWS, [row(1), row(2)]))
    records.write(lambda c: put(c, ROWS, [row(1, big=5), row(3)]))
    records.write(lambda c: put_new(c, ROWS, [row(2, big=6), row(4)]))
    with records.reading() as connection:
        found = dict(map(tuple, connection.execute(select(ROWS.c.id, ROWS.c.big))))
    assert found == {1: 5, 2: 2**62, 3: 2**62, 4: 2**62}


def test_a_failed_write_leaves_nothing_and_a_reading_cannot_write(records: Records) -> None:
    records.write(lambda c: c.execute(insert(ROWS), [row(1)]))
    with pytest.raises(RecordsError):
        records.write(lambda c: c.execute(insert(ROWS), [row(2), row(1)]))
    with pytest.raises(RecordsError, match=r"read-?only"), records.reading() as connection:
        connection.execute(insert(ROWS), [row(3)])
    with records.reading() as connection:
        assert connection.execute(select(func.count()).select_from(ROWS)).scalar() == 1


def test_a_reading_is_of_one_moment(records: Records) -> None:
    records.write(lambda c: c.execute(insert(ROWS), [row(1)]))
    count = select(func.count()).select_from(ROWS)
    with records.reading() as connection:
        before = connection.execute(count).scalar()
        records.write(lambda c: c.execute(insert(ROWS), [row(2)]))
        assert connection.execute(count).scalar() == before == 1


def test_tables_that_are_there_are_left_alone(records: Records) -> None:
    records.write(lambda c: c.execute(insert(ROWS), [row(1)]))
    records.write(lambda c: create_some(c, [ROWS]))
    with records.reading() as connection:
        assert connection.execute(select(func.count()).select_from(ROWS)).scalar() == 1


# -- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:s3cret@db:5433/m?schema=lab", "PostgreSQL ada@db:5433/m, schema lab"),
        ("postgresql://db/m?password=s3cret&sslmode=require", "PostgreSQL db/m, schema muster"),
        ("postgres://a,b/m?target_session_attrs=read-write", "PostgreSQL a,b/m, schema muster"),
    ],
)
def test_a_url_is_shown_without_what_is_secret(url: str, shown: str) -> None:
    pytest.importorskip("psycopg")
    place = place_of(url)
    assert str(place) == shown
    assert "s3cret" not in repr(place)


@pytest.mark.parametrize(
    "url", ["mysql://db/m", "postgresql://db/m?schema=a;drop", "postgresql://db/m?nonsense=s3cret", "redis://x"]
)
def test_a_url_that_means_nothing_is_refused_without_telling_it(url: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(SpecError) as caught:
        place_of(url)
    assert "s3cret" not in str(caught.value)


def test_a_server_that_is_not_there_is_named() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(JournalError, match=r"PostgreSQL ada@127.0.0.1:1/m"):
        Journal("postgresql://ada:s3cret@127.0.0.1:1/m", 1)


# -- moving -----------------------------------------------------------------------------------------------------------


def test_a_cell_is_copied_whole_and_numbers_go_on(played: Place, tmp_path: Path) -> None:
    """From this database to a file, and from that to another place of this kind."""
    there = tmp_path / "copy.db"
    back = place_of(tmp_path / "back.db") if isinstance(played, SqliteFile) else place_of(postgres.new_url())
    journal = Journal(played, 1)
    journal.transact(lambda connection: create_some(connection, [COUNTED]))
    journal.transact(lambda connection: connection.execute(insert(COUNTED), [{"name": "a"}, {"name": "b"}]))
    journal.close()
    for place in ((played, there), (there, back)):
        with contextlib.closing(Journal(place[0], 0)) as source, contextlib.closing(Journal(place[1], 0)) as target:
            assert copy(source, target, [*TABLES, table_of(Estimate), PRUNED, MIGRATION, COUNTED])["counted"] == 2
    first, last = Engine.open(played), Engine.open(back)
    assert (first.state.digest(), first.seed) == (last.state.digest(), last.seed)
    last.record(lambda connection: connection.execute(insert(COUNTED).values(name="c")))
    numbers = last.recorded(lambda connection: connection.execute(select(COUNTED.c.id)).scalars().all())
    assert sorted(numbers) == [1, 2, 3]
    for engine in (first, last):
        engine.close()


def test_a_copy_writes_over_nothing_and_leaves_out_nothing(played: Place, tmp_path: Path) -> None:
    source, known = Journal(played, 1), [*TABLES, table_of(Estimate), PRUNED, MIGRATION]
    other = Engine.open(tmp_path / "other.db", cell=small_cell())
    with pytest.raises(RefusedError, match="already"):
        copy(source, other._journal, known)
    other.close()
    source.transact(lambda connection: create_some(connection, [COUNTED]))
    target = Journal(tmp_path / "new.db", 0)
    with pytest.raises(JournalError, match="does not know: counted"):
        copy(source, target, known)
    assert target.version == 0
    for journal in (source, target):
        journal.close()
