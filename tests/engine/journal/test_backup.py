"""A cell is copied while it is served, is had again from that, and is kept as it was before it is upgraded."""

from __future__ import annotations

import json
import lzma
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import postgres
import pytest
from cells import small_cell, submit, workload

from console.cli.main import run
from console.commands.database import tables
from engine.control import Engine
from engine.journal.database import Place, SqliteFile, place_of
from engine.journal.outside_readers import backup, check, restore
from engine.journal.tables import MIGRATIONS
from engine.model.errors import JournalBusy, JournalCorrupt, JournalFormat, RefusedError

OLD = Path(__file__).with_name("with_two_migrations.db.xz")
"""A journal as Muster wrote it before its third migration: 216 events, a snapshot in the middle."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(tmp_path / "journal.db" if request.param == "sqlite" else postgres.new_url())


def play(engine: Engine, first: int, count: int) -> None:
    for i in range(first, first + count):
        engine.command(submit(workload(f"w{i}", gpu=1000, run=5000 + i)))
        engine.advance(engine.now_ms + 400)


def digest_of(path: Path) -> str:
    engine = Engine.open(path)
    engine._journal.close()
    return engine.state.digest()


def migrations(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT max(number) FROM migration").fetchone()[0])


def test_a_backup_beside_the_engine_is_the_cell_as_of_one_moment(place: Place, tmp_path: Path) -> None:
    engine = Engine.open(place, cell=small_cell(), seed=5, snapshot_every=30)
    play(engine, 0, 20)
    path = tmp_path / "backup.db"
    assert backup(place, path, tables()) == engine.version
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert digest_of(path) == engine.state.digest()
    with pytest.raises(RefusedError, match="exists already"):
        backup(place, path, tables())
    engine.close()


def test_the_engine_goes_on_while_it_is_copied(tmp_path: Path) -> None:
    engine = Engine.open(tmp_path / "journal.db", cell=small_cell(), snapshot_every=30)
    play(engine, 0, 5)
    taken: list[int] = []

    def copies() -> None:
        for number in range(4):
            taken.append(backup(SqliteFile(tmp_path / "journal.db"), tmp_path / f"{number}.db", tables()))

    copying = threading.Thread(target=copies)
    copying.start()
    first = 5
    while copying.is_alive():
        play(engine, first, 1)
        first += 1
    assert len(taken) == 4
    assert taken == sorted(taken)
    assert taken[0] < engine.version
    engine.close()
    for number, version in enumerate(taken):
        again = Engine.open(tmp_path / f"{number}.db")
        assert again.version == version
        again.close()


def test_a_backup_is_had_again_and_what_was_there_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = Engine.open(path, cell=small_cell(), snapshot_every=30)
    play(engine, 0, 10)
    before = engine.state.digest()
    backup(SqliteFile(path), tmp_path / "backup.db", tables())
    play(engine, 10, 10)
    after = engine.state.digest()
    with pytest.raises(JournalBusy):
        restore(tmp_path / "backup.db", SqliteFile(path))
    killed = tmp_path / "killed" / "journal.db"
    killed.parent.mkdir()
    for name in ("journal.db", "journal.db-wal"):  # with a log that was not moved into the file
        shutil.copy(tmp_path / name, killed.with_name(name))
    engine.close()
    _, former = restore(tmp_path / "backup.db", SqliteFile(killed))
    assert digest_of(killed) == before
    assert former is not None
    assert digest_of(former) == after
    restore(former, SqliteFile(killed))
    assert digest_of(killed) == after


def test_a_damaged_backup_changes_nothing(tmp_path: Path) -> None:
    path, copied = tmp_path / "journal.db", tmp_path / "backup.db"
    engine = Engine.open(path, cell=small_cell())
    play(engine, 0, 5)
    backup(SqliteFile(path), copied, tables())
    engine.close()
    kept = path.read_bytes()
    with closing(sqlite3.connect(copied)) as connection, connection:
        connection.execute("UPDATE batch SET crc = crc + 1 WHERE first_version > 5")
    with pytest.raises(JournalCorrupt):
        restore(copied, SqliteFile(path))
    with pytest.raises(JournalCorrupt):
        backup(SqliteFile(copied), tmp_path / "again.db", tables())
    assert path.read_bytes() == kept
    assert not list(tmp_path.glob("again.db*")) + list(tmp_path.glob("*before*"))


def test_a_journal_of_the_muster_before_is_migrated_with_a_copy_that_takes_it_back(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(lzma.decompress(OLD.read_bytes()))
    assert check(SqliteFile(path)) == (216, 216), "it is read without a change"
    assert migrations(path) == 2
    engine = Engine.open(path)
    assert engine.version == 216
    assert engine.now_ms == 16_000
    assert [engine.state.workloads.ids[row] for row in (0, 39)] == ["w0", "w39"]
    digest, former = engine.state.digest(), engine._journal.former
    assert former is not None
    play(engine, 100, 3)
    engine.close()
    whole = Engine.open(former, use_snapshot=False)
    assert whole.state.digest() == digest, "from the snapshot of that Muster, and from all its events"
    whole.close()
    former.unlink()
    former.write_bytes(lzma.decompress(OLD.read_bytes()))
    assert migrations(path) == len(MIGRATIONS)
    again = Engine.open(path)
    assert again._journal.former is None
    again.close()
    version, upgraded = restore(former, SqliteFile(path))
    assert (version, migrations(path)) == (216, 2), "as the Muster before wrote it"
    assert upgraded is not None
    assert check(SqliteFile(upgraded)).version > 216


def test_what_a_newer_muster_wrote_is_not_had_again(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    Engine.open(path, cell=small_cell()).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO migration VALUES (999, 'of tomorrow', 0)")
    with pytest.raises(JournalFormat):
        restore(path, SqliteFile(tmp_path / "journal.db"))
    assert not (tmp_path / "journal.db").exists()


def test_the_commands_do_it_by_the_name_of_the_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_STATE_DIR", str(tmp_path / "state"))
    journal, copied = tmp_path / "state" / "night" / "journal.db", tmp_path / "backup.db"
    journal.parent.mkdir(parents=True, mode=0o700)
    engine = Engine.open(journal, cell=small_cell())
    play(engine, 0, 3)
    assert run(["database", "backup", str(copied), "--cell", "night", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == engine.version
    assert run(["database", "restore", str(copied), "--cell", "night"]) == 6, "while the engine has it"
    assert "stop it first" in capsys.readouterr().err
    assert run(["database", "restore", str(copied), "--cell", "other"]) == 0, "into a cell that is new"
    told = capsys.readouterr().out
    assert "verified" in told
    assert "is kept" not in told
    assert digest_of(tmp_path / "state" / "other" / "journal.db") == engine.state.digest()
    engine.close()
    assert run(["database", "restore", str(copied), "--cell", "night"]) == 0
    assert "the cell as it was is kept in" in capsys.readouterr().out
