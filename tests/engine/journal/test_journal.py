"""The journal keeps what was acknowledged, and refuses what it cannot vouch for."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cells import small_cell, submit, workload

from engine.control import Engine
from engine.model.errors import JournalBusy, JournalCorrupt, JournalError
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.about_files("damage is done to it; test_databases.py does so to both")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with a snapshot in the middle and batches on both sides of it."""
    where = tmp_path / "journal.db"
    engine = Engine.open(where, cell=small_cell(), seed=5, snapshot_every=30)
    for i in range(25):
        engine.command(submit(workload(f"w{i}", gpu=1000, run=5000 + i)))
        engine.advance(engine.now_ms + 400)
    engine._journal.close()
    return where


def damage(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute(statement, values).rowcount != 0
    connection.commit()
    connection.close()


def test_state_is_the_same_from_the_snapshot_and_from_every_event(path: Path) -> None:
    with_snapshot = Engine.open(path)
    digest = with_snapshot.state.digest()
    with_snapshot.close()
    without = Engine.open(path, use_snapshot=False)
    assert without.state.digest() == digest
    without.close()


def test_verify_reads_everything(path: Path) -> None:
    engine = Engine.open(path)
    assert engine._journal.verify() == engine.version
    engine.close()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            "UPDATE batch SET events = zeroblob(10) WHERE first_version = (SELECT max(first_version) FROM batch)",
            "checksum",
        ),
        ("DELETE FROM batch WHERE first_version = (SELECT max(first_version) FROM batch)", "acknowledged"),
        (
            "DELETE FROM batch WHERE rowid IN (SELECT rowid FROM batch ORDER BY 1 DESC LIMIT 1 OFFSET 1)",
            "missing",
        ),
        ("UPDATE batch SET crc = crc + 1 WHERE first_version = (SELECT max(first_version) FROM batch)", "checksum"),
        ("UPDATE batch SET chain = chain + 1 WHERE first_version = (SELECT max(first_version) FROM batch)", "follow"),
        ("UPDATE head SET last_version = last_version + 1", "acknowledged"),
        ("UPDATE snapshot SET body = zeroblob(100)", "snapshot"),
        ("DELETE FROM head", "no head"),
    ],
)
@pytest.mark.parametrize("use_snapshot", [True, False])
def test_damage_is_found_and_nothing_is_guessed(path: Path, statement: str, says: str, use_snapshot: bool) -> None:
    if "snapshot" in statement and not use_snapshot:
        pytest.skip("snapshots are not read")
    damage(path, statement)
    before = path.read_bytes()
    with pytest.raises(JournalCorrupt, match=says) as caught:
        Engine.open(path, use_snapshot=use_snapshot)
    assert str(path) in caught.value.problem
    assert caught.value.remedy
    assert path.read_bytes() == before


def test_a_swapped_batch_is_found(path: Path) -> None:
    connection = sqlite3.connect(path)
    last_two = connection.execute("SELECT first_version, events, crc FROM batch ORDER BY 1 DESC LIMIT 2").fetchall()
    connection.close()
    (first, _, _), (_, events, crc) = last_two
    damage(path, "UPDATE batch SET events = ?, crc = ? WHERE first_version = ?", events, crc, first)
    with pytest.raises(JournalCorrupt):
        Engine.open(path)


@pytest.mark.parametrize("value", [-1, 2**32, 2**63 - 1, "text", 2.0, 1.5, b"\xff\x00", b""])
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("head", column) for column in ("last_version", "chain")),
        *(("batch", column) for column in ("last_version", "crc", "chain", "events")),
        *(("snapshot", column) for column in ("chain", "crc", "body")),
    ],
)
def test_a_value_that_was_never_written_is_named_whatever_its_type(
    path: Path, table: str, column: str, value: object
) -> None:
    """Damage may leave any type in any column: SQLite keeps it."""
    damage(path, f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT max(rowid) FROM {table})", value)
    for use_snapshot in (True, False):
        if table == "snapshot" and not use_snapshot:
            continue
        with pytest.raises(JournalCorrupt) as caught:
            Engine.open(path, use_snapshot=use_snapshot)
        assert str(path) in caught.value.problem
        assert caught.value.remedy


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 6))])
def test_garbage_anywhere_in_the_file_is_refused_or_has_no_effect(path: Path, seed: int) -> None:
    """Whichever way it is read: from the snapshot on, or from the first event."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    whole = path.read_bytes()
    engine = Engine.open(path)
    digest = engine.state.digest()
    engine._journal.close()
    rng, refused = random.Random(seed), list[JournalError]()
    for turn in range(40):
        data = bytearray(whole)
        # Every fourth in the first pages, where the tables and their names are.
        at = rng.randrange(8192 if turn % 4 == 0 else len(data))
        garbage = rng.randbytes(rng.choice((1, 2, 4, 8, 64, 512)))
        data[at : at + len(garbage)] = garbage
        for use_snapshot in (True, False):
            for left in path.parent.glob("journal.db-*"):
                left.unlink()
            path.write_bytes(data)
            try:
                engine = Engine.open(path, use_snapshot=use_snapshot)
            except JournalError as error:
                refused.append(error)
                continue
            assert engine.state.digest() == digest, f"garbage at {at}"
            engine._journal.close()
    assert refused
    assert all(str(path) in error.problem and error.remedy for error in refused)


@pytest.mark.parametrize("offset", [0, 20, 100])
def test_a_file_that_is_no_database_is_refused(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset : offset + 60] = b"\xff" * 60
    path.write_bytes(bytes(data))
    with pytest.raises(JournalError) as caught:
        Engine.open(path)
    assert caught.value.remedy


def test_an_emptied_file_is_not_a_new_cell(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(JournalCorrupt):
        Engine.open(path)


def test_a_truncated_file_is_refused(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(JournalError):
        Engine.open(path)


def test_a_damaged_snapshot_can_be_passed_over_on_request(path: Path) -> None:
    engine = Engine.open(path)
    digest = engine.state.digest()
    engine._journal.close()
    damage(path, "UPDATE snapshot SET body = zeroblob(100)")
    with pytest.raises(JournalCorrupt, match="--ignore-snapshot"):
        Engine.open(path)
    engine = Engine.open(path, use_snapshot=False)
    assert engine.state.digest() == digest
    engine._journal.close()


def test_a_second_engine_is_told_who_has_the_journal(path: Path) -> None:
    engine = Engine.open(path)
    script = f"from engine.control import Engine; Engine.open({str(path)!r})"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "JournalBusy" in other.stderr
    assert f"process {os.getpid()}" in other.stderr
    engine.close()
    Engine.open(path).close()


def test_a_child_that_a_killed_engine_had_just_begun_does_not_lock_out_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its fork and its exec it has the lock, too."""
    child, parent = os.pipe()
    code = (
        "import os, sys; from engine.control import Engine; engine = Engine.open(sys.argv[1])\n"
        "if os.fork() == 0: os.write(1, b'begun'); os.read(int(sys.argv[2]), 1); os._exit(0)\n"
        "os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(path), str(child)]
    with subprocess.Popen(command, pass_fds=[child], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.read(5) == b"begun"
        killed.wait()
        monkeypatch.setattr("engine.journal.process_locks.ORPHANED_S", 0.0)
        with pytest.raises(JournalBusy):
            Engine.open(path)
        monkeypatch.setattr("engine.journal.process_locks.ORPHANED_S", PATIENCE_S)
        monkeypatch.setattr("engine.journal.process_locks.time.sleep", lambda _: os.write(parent, b"."))
        Engine.open(path).close()
    os.close(child)
    os.close(parent)


@pytest.mark.parametrize("link", ["file", "folder", "chain"])
def test_a_journal_reached_by_a_link_has_one_engine(path: Path, tmp_path: Path, link: str) -> None:
    """Both ways round: whoever is first has it, and the other is told who, and by which file."""
    if link == "folder":
        (tmp_path / "alias").symlink_to(path.parent, target_is_directory=True)
        alias = tmp_path / "alias" / path.name
    else:
        alias = tmp_path / "alias.db"
        (tmp_path / "middle.db").symlink_to(path)
        alias.symlink_to(tmp_path / "middle.db" if link == "chain" else path)
    for number, (first, second) in enumerate([(path, alias), (alias, path)]):
        engine = Engine.open(first)
        with pytest.raises(JournalBusy, match=f"open in another engine .process {os.getpid()}") as caught:
            Engine.open(second)
        assert str(path) in caught.value.problem
        assert "backup" not in str(caught.value)
        engine.command(submit(workload(f"by-{number}", gpu=1000)))
        engine.close()
    engine = Engine.open(path)
    assert {"by-0", "by-1"} < set(engine.state.workloads.ids)
    engine.close()


def test_a_link_to_no_journal_yet_begins_one_where_it_points(tmp_path: Path) -> None:
    alias, real = tmp_path / "alias.db", tmp_path / "elsewhere" / "real.db"
    alias.symlink_to(real)
    Engine.open(alias, cell=small_cell()).close()
    assert alias.is_symlink()
    assert real.exists()
    alias.unlink()
    alias.symlink_to(alias)
    with pytest.raises(JournalError, match="cannot open"):
        Engine.open(alias)


def test_a_journal_with_a_second_name_is_refused_and_stays_as_it_is(path: Path, tmp_path: Path) -> None:
    os.link(path, tmp_path / "second.db")
    for name in (path, tmp_path / "second.db"):
        with pytest.raises(JournalError, match="second name") as caught:
            Engine.open(name)
        assert "samefile" in caught.value.remedy
    (tmp_path / "second.db").unlink()
    Engine.open(path).close()


def test_a_locked_database_is_an_error_and_the_refused_change_leaves_no_trace(path: Path) -> None:
    engine = Engine.open(path)
    digest, version = engine.state.digest(), engine.version
    blocker = sqlite3.connect(path)
    blocker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(JournalBusy, match="locked"):
        engine.command(submit(workload("late", gpu=1000)))
    assert engine.journal_error
    blocker.rollback()
    blocker.close()
    engine.settle()
    assert (engine.state.digest(), engine.version) == (digest, version)
    engine.command(submit(workload("late", gpu=1000)))
    assert engine.journal_error == ""
    digest = engine.state.digest()
    engine._journal.close()
    again = Engine.open(path)
    assert again.state.digest() == digest
    again.close()


def test_a_full_disk_is_an_error_and_the_refused_change_leaves_no_trace(path: Path) -> None:
    """SQLite's own page limit stands in for the disk's end: the same error code, SQLITE_FULL."""
    engine = Engine.open(path)
    digest = engine.state.digest()
    with engine._journal._store.db.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    many = [workload(f"many{i}", gpu=1000) for i in range(2000)]
    with pytest.raises(JournalError, match="disk is full"):
        engine.command(submit(*many))
    assert "disk is full" in engine.journal_error
    with engine._journal._store.db.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1073741823")
    engine.settle()
    assert engine.state.digest() == digest
    engine.command(submit(*many))
    engine.close()
    again = Engine.open(path)
    assert "many1999" in again.state.workloads.row_of
    again.close()


def test_a_fault_half_way_through_a_turn_leaves_no_trace(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.open(path)
    digest = engine.state.digest()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine.scheduler, "cycle", broken)
    with pytest.raises(ZeroDivisionError):
        engine.command(submit(workload("half", gpu=1000)))
    engine.settle()
    assert engine.state.digest() == digest
    engine.command(submit(workload("whole", gpu=1000)))
    digest = engine.state.digest()
    engine._journal.close()
    again = Engine.open(path)
    assert again.state.digest() == digest
    assert "half" not in again.state.workloads.row_of
    again.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(JournalError, match="cannot open journal") as caught:
        Engine.open(blocked / "journal.db")
    assert caught.value.remedy


def test_the_journal_is_readable_by_its_owner_only(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
