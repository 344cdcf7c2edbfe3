"""The cell as of an earlier time is the cell as it was then, and looking back leaves the journal as it is."""

from __future__ import annotations

import random
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from random_cells import SOME, Life, Player, lives
from sqlalchemy import delete, select

from engine.control import Engine
from engine.journal import past_states
from engine.journal.outside_readers import read
from engine.journal.past_states import PastState, span
from engine.journal.tables import Batch, Snapshot, table_of
from engine.model import events as ev
from engine.model.commands import Cordon, Define
from engine.model.details import WorkloadDetail
from engine.model.errors import BusyError, MusterError, NotFoundError, RefusedError, SpecError
from engine.model.overviews import Changes, Overview
from engine.past.process import PastRequest
from engine.past.replicas import PastReplicas
from engine.read_replica import decoded
from tests.support.cells import small_cell, submit, workload
from tests.support.patience import PATIENCE_S

MINUTE_MS = 60_000
START_MS = 1_776_000_000_000
NOT_SEEN = "within an event that stands for many"


class Diary:
    """The digest of an engine's state at each time at which something happened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.digests: dict[int, str] = {}
        note = Engine._record

        def noted(engine: Engine, event: ev.AnyEvent) -> None:
            note(engine, event)
            if engine._journal is not None:
                if isinstance(event, ev.FinishedMany):
                    self.digests |= dict.fromkeys(array("q", event.at_ms), NOT_SEEN)
                self.digests[engine.state.now_ms] = engine.state.digest()

        patch.setattr(Engine, "_record", noted)

    def at(self, at_ms: int) -> str:
        times = sorted(self.digests)
        return self.digests[times[bisect_right(times, at_ms) - 1]]


@settings(SOME, max_examples=examples(20))
@given(lives(durable=True))
def test_a_state_as_of_any_time_is_the_one_the_engine_had(life: Life) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(past_states, "KEEP_EVERY", 25)
        diary = Diary(patch)
        player = Player(life, folder)
        player.play()
        engine = player.engine
        engine._journal.close()
        found = read(engine.place, lambda connection: span(connection, engine.place))
        rng = random.Random(life.seed)
        times = [at for at in diary.digests if at >= found.earliest_ms]
        times += [rng.randint(found.earliest_ms, found.newest_ms + MINUTE_MS) for _ in range(8)]
        rng.shuffle(times)
        past = PastState(engine.place)
        for at_ms in times[:24]:
            past.seek(at_ms)
            expected = diary.at(at_ms)
            assert expected == NOT_SEEN or past.state.digest() == expected, f"as of {at_ms}"
        past.close()


def day(engine: Engine) -> None:
    """Half an hour: one ends, one runs on, one is cancelled with its node cordoned, one comes."""
    engine.command(submit(workload("ends", gpu=1000, run=5 * MINUTE_MS), workload("stays", gpu=1000, run=3_600_000)))
    engine.advance(START_MS + 10 * MINUTE_MS)
    engine.command(Cordon(ids=(engine.workload("stays").placement[0].node,)))
    engine.advance(START_MS + 20 * MINUTE_MS)
    engine.command(submit(workload("comes", gpu=1000, run=3_600_000)))
    engine.advance(START_MS + 30 * MINUTE_MS)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine.open(tmp_path / "journal.db")
    made.advance(START_MS)

    made.command(Define(cell=small_cell()))
    day(made)
    yield made
    made.close()


@pytest.fixture
def replicas(engine: Engine) -> Iterator[PastReplicas]:
    made = PastReplicas(engine.place)
    yield made
    made.close()


def test_the_parts_of_many_ends_are_together_what_the_whole_is() -> None:
    times, rows = array("q", [5, 5, 7, 9]), array("i", [3, 1, 2, 0])
    whole = ev.FinishedMany(rows.tobytes(), times.tobytes(), 3)
    now, later = past_states._parted(whole, 6)
    assert now is not None
    assert later is not None
    assert (array("i", now.rows).tolist(), array("i", later.rows).tolist()) == ([3, 1], [2, 0])
    assert now.versions + later.versions == whole.versions
    assert past_states._parted(whole, 4) == (None, whole)
    assert past_states._parted(whole, 9) == (whole, None)


def told(replicas: PastReplicas, engine: Engine, at_ms: int, what: str, *arguments: object) -> object:
    return decoded(what, replicas.ask(PastRequest(at_ms), what, arguments, PATIENCE_S))


@pytest.mark.both_databases
def test_questions_are_answered_as_of_then_and_the_journal_stays_as_it_is(
    engine: Engine, replicas: PastReplicas
) -> None:
    before = engine._journal.verify(), engine.version, engine.state.digest()
    early = told(replicas, engine, START_MS + 4 * MINUTE_MS, "overview")
    late = told(replicas, engine, START_MS + 25 * MINUTE_MS, "overview")
    assert isinstance(early, Overview)
    assert isinstance(late, Overview)
    assert (early.states["running"], early.states["finished"], early.now_ms) == (2, 0, START_MS + 4 * MINUTE_MS)
    assert (late.states["running"], late.states["finished"]) == (2, 1)
    assert [sum(pool.cordoned for pool in seen.pools) for seen in (early, late)] == [0, 1]
    work = told(replicas, engine, START_MS + 4 * MINUTE_MS, "workload", "ends")
    assert isinstance(work, WorkloadDetail)
    assert work.state == "running"
    with pytest.raises(NotFoundError):
        told(replicas, engine, START_MS + 4 * MINUTE_MS, "workload", "comes")
    happened = told(replicas, engine, START_MS + 12 * MINUTE_MS, "changes", 0, 100)
    assert isinstance(happened, Changes)
    assert [item.what for item in happened.items if item.at_ms > START_MS] == ["finished", "cordoned"]
    assert (engine._journal.verify(), engine.version, engine.state.digest()) == before


def test_a_time_that_cannot_be_shown_is_refused_with_those_that_can(engine: Engine, replicas: PastReplicas) -> None:
    for at_ms in (START_MS - 1, engine.now_ms + 1):
        with pytest.raises(SpecError) as refused:
            replicas.status(PastRequest(at_ms), engine.now_ms)
        assert "from 2026-04-12 13:20:00 UTC to 2026-04-12 13:50:00 UTC" in refused.value.remedy


def test_a_cell_in_memory_has_no_past() -> None:
    with pytest.raises(RefusedError, match="kept in memory"):
        PastReplicas(None).span()


@pytest.mark.both_databases
def test_a_journal_without_its_beginning_is_shown_from_its_oldest_snapshot(
    engine: Engine, replicas: PastReplicas
) -> None:
    engine.snapshot()
    cut = engine.version
    engine.command(submit(workload("last", gpu=1000, run=3_600_000)))
    engine.advance(START_MS + 40 * MINUTE_MS)
    batch, snapshot = table_of(Batch).c, table_of(Snapshot).c
    engine.record(lambda connection: connection.execute(delete(table_of(Batch)).where(batch.last_version <= cut)))
    found = replicas.span()
    assert found.earliest_ms >= START_MS + 20 * MINUTE_MS
    shown = told(replicas, engine, found.newest_ms, "overview")
    assert isinstance(shown, Overview)
    assert shown.states == engine.overview().states
    engine.record(lambda connection: connection.execute(delete(table_of(Snapshot)).where(snapshot.version <= cut)))
    assert engine.recorded(lambda connection: connection.execute(select(snapshot.version)).all()) == []
    with pytest.raises(MusterError, match="no snapshot tells what was before it"):
        replicas.span()


def test_what_was_cancelled_is_made_again_and_only_so_many_are_kept(engine: Engine, replicas: PastReplicas) -> None:
    request = PastRequest(START_MS + 4 * MINUTE_MS)
    replicas.cancel(request)
    assert replicas.status(request, engine.now_ms, PATIENCE_S).state == "ready"
    replicas.cancel(request)
    assert replicas.status(request, engine.now_ms, PATIENCE_S).state == "ready"
    for minute in range(10):
        assert replicas.status(PastRequest(START_MS + minute * MINUTE_MS), engine.now_ms, PATIENCE_S).state == "ready"
    assert len(replicas._replicas) == 4
    process = replicas._process
    assert process is not None
    replicas.close()
    assert process.poll() is not None
    with pytest.raises((RefusedError, BusyError)):
        replicas.status(request, engine.now_ms)
