"""Rows beside the journal: whole or not at all, read without holding up who writes, and never the engine's trouble."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select

from engine.control import Engine
from engine.journal import side_tables as records_module
from engine.journal.side_tables import Records, RecordsError
from engine.loop import EngineLoop
from engine.model.commands import Submit
from tests.support.cells import small_cell, workload

pytestmark = pytest.mark.both_databases
META = MetaData()
ROWS = Table("test_row", META, Column("id", Integer, primary_key=True), Column("text", String))

UNIQUE = "UNIQUE|duplicate key"
"""What SQLite and PostgreSQL say to a key that is there."""


def put(records: Records, *numbers: int, text: str = "x") -> None:
    records.write(lambda connection: connection.execute(insert(ROWS), [{"id": n, "text": text} for n in numbers]))


def count(records: Records) -> int:
    with records.reading() as connection:
        return connection.execute(select(func.count()).select_from(ROWS)).scalar() or 0


@pytest.fixture(params=["file", "memory"])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Records]:
    made = Records(tmp_path / "journal.db" if request.param == "file" else None)
    made.create([ROWS])
    yield made
    made.close()


def test_what_is_written_is_read_and_a_failed_write_leaves_nothing(records: Records) -> None:
    put(records, 1, 2)
    with pytest.raises(RecordsError, match=UNIQUE):
        put(records, 3, 1)
    assert count(records) == 2


def test_keeping_stops_by_its_reason_and_is_tried_again(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    put(records, 1)
    with pytest.raises(RecordsError):
        put(records, 1)
    assert re.search(UNIQUE, records.error)
    with pytest.raises(RecordsError, match=UNIQUE):
        put(records, 2)
    monkeypatch.setattr(records, "_retry_at", 0.0)
    put(records, 2)
    assert records.error == ""
    assert count(records) == 2


def test_one_reading_sees_one_moment_and_does_not_hold_up_a_writer(tmp_path: Path) -> None:
    records = Records(tmp_path / "journal.db")
    records.create([ROWS])
    put(records, 1)
    with records.reading() as connection:
        before = connection.execute(select(func.count()).select_from(ROWS)).scalar()
        put(records, 2)
        assert connection.execute(select(func.count()).select_from(ROWS)).scalar() == before == 1
    assert count(records) == 2
    records.close()


def test_readings_cannot_write(tmp_path: Path) -> None:
    records = Records(tmp_path / "journal.db")
    records.create([ROWS])
    with pytest.raises(RecordsError, match=r"read-?only"), records.reading() as connection:
        connection.execute(insert(ROWS), [{"id": 1, "text": ""}])
    records.close()


def test_the_journal_goes_on_beside_them_and_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=small_cell())
    records = Records(path)
    records.create([ROWS])
    for number in range(5):
        engine.command(Submit(workloads=(workload(f"w{number}"),)))
        put(records, number)
        records.checkpoint()
    digest = engine.state.digest()
    records.close()
    engine.close()
    again = Engine.open(path)
    assert again.state.digest() == digest
    records = Records(path)
    assert count(records) == 5
    records.close()
    again.close()


@pytest.mark.about_files("SQLite's own limit stands in for the disk's end")
def test_a_full_disk_stops_keeping_and_not_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=small_cell())
    records = Records(path)
    records.create([ROWS])

    def full(connection: records_module.Connection) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}").all()

    records.write(full)
    with pytest.raises(RecordsError, match="full"):
        put(records, *range(1000), text="x" * 500)
    assert f"history cannot be written to {path}" in records.error
    engine.command(Submit(workloads=(workload("a"),)))
    assert engine.journal_error == ""
    assert count(records) == 0
    records.close()
    engine.close()


def test_writes_are_made_on_the_engines_thread(tmp_path: Path) -> None:
    loop = EngineLoop(Engine.open(tmp_path / "journal.db", cell=small_cell()))
    loop.start()
    records = Records(tmp_path / "journal.db", lambda change: loop.call(lambda _: change()))
    on = records.write(lambda connection: threading.current_thread().name)
    assert (on, threading.current_thread().name) == ("engine", "MainThread")
    records.close()
    loop.stop()
    loop.engine.close()
