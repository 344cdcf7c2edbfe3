"""Old events are let go behind a snapshot: what is left tells the same, and the audit keeps all of its own."""

from __future__ import annotations

from pathlib import Path

import postgres
import pytest
from cells import small_cell, submit, workload
from sqlalchemy import text

from console.commands.database import tables
from engine.control import Engine
from engine.journal.database import Place, SqliteFile, place_of
from engine.journal.event_journal import SPANS, kept_snapshots
from engine.journal.outside_readers import backup, check
from engine.journal.past_states import PastState
from engine.model.errors import JournalCorrupt
from engine.model.events import AuditEntry

KEEP_MS = 20_000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.thorough)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(tmp_path / "journal.db" if request.param == "sqlite" else postgres.new_url())


def live(place: Place, keep_ms: int, turns: int = 150) -> Engine:
    """A life in which every tenth turn is one of an audited plan."""
    engine = Engine.open(place, cell=small_cell(), seed=5, snapshot_every=30, keep_ms=keep_ms)
    for i in range(turns):
        act = None if i % 10 else AuditEntry(1_000 + i, "ann", "submit", f"plan-{i}", b"{}", key=f"key-{i}")
        engine.command(submit(workload(f"w{i}", gpu=1000, run=5000 + i)), audit=act)
        engine.advance(engine.now_ms + 400)
        assert not engine.journal_error
    return engine


def count(engine: Engine, table: str) -> int:
    found = engine._journal.look(lambda connection: connection.execute(text(f"SELECT count(*) FROM {table}")).scalar())
    return int(found or 0)


def test_a_journal_that_lets_go_tells_the_same_of_what_it_keeps(place: Place, tmp_path: Path) -> None:
    whole, pruned = live(SqliteFile(tmp_path / "whole.db"), 0), live(place, KEEP_MS)
    assert pruned.state.digest() == whole.state.digest()
    assert list(pruned._journal.audit()) == list(whole._journal.audit())
    assert count(pruned, "batch") < count(whole, "batch") * 0.7
    assert count(pruned, "snapshot") <= SPANS + 4
    assert 0 < pruned._journal.verify() < pruned.version
    pasts = [PastState(SqliteFile(tmp_path / "whole.db")), PastState(place)]
    pasts[1].seek(0)
    earliest_ms = pasts[1].earliest_ms
    assert earliest_ms <= pruned.now_ms - KEEP_MS, "as far back as was asked"
    assert earliest_ms > pruned.now_ms - 2 * KEEP_MS
    for at_ms in (earliest_ms, pruned.now_ms - KEEP_MS // 2, earliest_ms + 900, pruned.now_ms):
        for past in pasts:
            past.seek(at_ms)
        assert pasts[1].state.digest() == pasts[0].state.digest()
    for past in pasts:
        past.close()
    digest, version = pruned.state.digest(), pruned.version
    backup(place, tmp_path / "backup.db", tables())
    pruned._journal.close()
    whole._journal.close()
    for where in (place, SqliteFile(tmp_path / "backup.db")):
        for use_snapshot in (True, False):
            again = Engine.open(where, use_snapshot=use_snapshot)
            assert (again.version, again.state.digest()) == (version, digest)
            again._journal.close()
        assert check(where).version == version


def test_it_stays_as_small_however_long_it_goes_on(tmp_path: Path) -> None:
    engine = live(SqliteFile(tmp_path / "journal.db"), KEEP_MS, turns=300)
    audited = 300 // 10
    assert count(engine, "batch") - audited < 1.6 * 2 * KEEP_MS / 400, "two turns in 400 ms, kept for so long and a bit"
    engine.close()


def test_a_beginning_without_its_snapshot_is_refused(tmp_path: Path) -> None:
    engine = live(SqliteFile(tmp_path / "journal.db"), KEEP_MS)
    first = "DELETE FROM snapshot WHERE version = (SELECT version FROM pruned)"
    engine._journal.transact(lambda connection: connection.execute(text(first)))
    with pytest.raises(JournalCorrupt, match="the snapshot of that is gone"):
        engine._journal.verify()
    engine._journal.close()


def test_a_time_between_snapshots_is_kept_by_the_one_before_it() -> None:
    hourly = [(hour, hour * 60) for hour in range(1, 101)]
    assert kept_snapshots(hourly, 0) == ([99, 100], 0)
    assert kept_snapshots(hourly, 24 * 60) == ([76, 82, 88, 94, 99, 100], 76)
    assert kept_snapshots(hourly, 500 * 60)[1] == 0
    assert kept_snapshots([(1, 0), (2, 10**9)], 60) == ([1, 2], 1), "never the newest"
    assert kept_snapshots([(5, -1), (9, 70), (12, 80)], 60) == ([5, 9, 12], 5)
