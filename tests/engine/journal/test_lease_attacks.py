"""Who writes a cell when machines stand still, sleep and lose their clocks: one at a time, never who was passed by."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import postgres
import psycopg
import pytest
from cells import small_cell, submit, workload
from database_chaos_worker import NOTES
from sqlalchemy import select

from engine.control import Engine
from engine.journal import postgres_store as leases
from engine.journal.database import Schema, create_some, place_of
from engine.journal.outside_readers import JournalFollower, StandbyResult, stand_by
from engine.journal.postgres_store import Holder, LeaseCandidate
from engine.model.errors import JournalError, JournalFormat
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())]

SUPPORT = Path(postgres.__file__).parent
SLEEPER = """
import os, signal, sys
from engine.journal import postgres_store as cell_lease
from engine.journal.postgres_store import Holder
cell_lease.this_process = lambda: Holder(host="elsewhere", pid=os.getpid(), boot="another")
from sqlalchemy import insert
from cells import submit, workload
from database_chaos_worker import NOTES
from engine.control import Engine
from engine.model.errors import JournalTaken

engine = Engine.open(sys.argv[1])

def sleep_in_the_midst(connection):
    connection.execute(insert(NOTES).values(name="late"))
    print("written", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

told = []
for attempt in range(2):
    try:
        if sys.argv[2] == "turn":
            engine.command(submit(workload(f"late{attempt}", gpu=1000)), beside=sleep_in_the_midst)
        else:
            engine.record(sleep_in_the_midst)
        told.append("kept")
    except JournalTaken:
        told.append("taken")
    except Exception as error:
        told.append(f"{type(error).__name__}: {error}")
print(";".join(told), flush=True)
os._exit(0)
"""
"""An engine that its machine stops with a transaction open, and tries once more when it wakes."""


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.own_server() as made:
        yield made


@pytest.fixture
def place(server: postgres.Server) -> Schema:
    found = place_of(server.cell())
    assert isinstance(found, Schema)
    engine = Engine.open(found, cell=small_cell(), seed=3)
    engine.record(lambda connection: create_some(connection, [NOTES]))
    engine.close()
    return found


def notes(engine: Engine) -> list[str]:
    return list(engine.recorded(lambda c: c.execute(select(NOTES.c.name)).scalars().all()))


def told_by(conninfo: str, schema: str, statement: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as other:
        other.execute(f"SET search_path TO {schema}")  # type: ignore[arg-type]
        other.execute(statement)  # type: ignore[arg-type]


@pytest.mark.parametrize("doing", ["turn", "rows"])
def test_an_engine_that_slept_in_a_transaction_wakes_to_find_that_it_cannot_commit(
    place: Schema, monkeypatch: pytest.MonkeyPatch, doing: str
) -> None:
    """SIGSTOP with the transaction open, long enough for another to take over; then it goes on as if nothing was."""
    monkeypatch.setattr(leases, "TTL_S", 1.5)
    url = f"{place.conninfo}&schema={place.name}"
    roots = f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"
    sleeper = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, url, doing], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "written\n"
        lease = leases.take(place)
        engine = Engine.open(place, stood_by=StandbyResult(lease, JournalFollower(place)))
        engine.command(submit(workload("mine", gpu=1000)))
        sleeper.send_signal(signal.SIGCONT)
        first, second = sleeper.stdout.readline().strip().split(";")
        assert "kept" not in (first, second)
        assert second == "taken", (first, second)
        engine.command(submit(workload("mine-too", gpu=1000)))
        assert notes(engine) == []
        assert set(engine.state.workloads.row_of) == {"mine", "mine-too"}
        assert engine._journal is not None
        assert engine._journal.verify() == engine.version
        engine.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            sleeper.send_signal(signal.SIGCONT)
        sleeper.kill()
        sleeper.wait()
        sleeper.stdout.close()  # type: ignore[union-attr]


def test_of_many_who_want_a_free_lease_one_has_it(place: Schema) -> None:
    """All at once, again and again: each time one epoch more, and one owner."""
    for _ in range(5):
        candidates = [LeaseCandidate(place) for _ in range(6)]
        at_once = threading.Barrier(len(candidates))

        def want(candidate: LeaseCandidate, at_once: threading.Barrier = at_once) -> bool:
            at_once.wait()
            return candidate.look().taken

        with ThreadPoolExecutor(len(candidates)) as threads:
            taken = list(threads.map(want, candidates))
        assert sum(taken) == 1
        winner = candidates[taken.index(True)]
        lease = winner.lease()
        assert not any(candidate.look().taken for candidate in candidates if candidate is not winner)
        lease.release()
        for candidate in candidates:
            candidate.stand_no_more()


def test_two_who_each_believe_that_they_write_are_told_apart(place: Schema) -> None:
    """The first is cut off while the second takes over, and then both write as fast as they can."""
    first = Engine.open(place)
    assert first.lease is not None
    first.lease._stop.set()  # its renewals do not come through
    first.lease._thread.join()
    told_by(place.conninfo, place.name, "UPDATE lease SET owner = ''")
    second = Engine.open(place)
    kept: dict[str, list[str]] = {"first": [], "second": []}

    def write(name: str, engine: Engine) -> None:
        for number in range(20):
            with contextlib.suppress(JournalError):
                engine.command(submit(workload(f"{name}-{number}", gpu=1000)))
                kept[name].append(f"{name}-{number}")

    threads = [threading.Thread(target=write, args=each) for each in (("first", first), ("second", second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (kept["first"], len(kept["second"])) == ([], 20)
    assert set(second.state.workloads.row_of) == set(kept["second"])
    assert first.lease.taken.is_set()
    first.close()
    second.close()


@pytest.mark.parametrize("days", [-400, 400])
def test_clocks_that_jump_move_no_lease(place: Schema, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Wall time of the engine and of the server, forth and back by more than a year."""
    monkeypatch.setattr(leases, "TTL_S", 30.0)
    engine = Engine.open(place)
    candidate = LeaseCandidate(place)
    real = time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() / 1e9 + days * 86_400)
    monkeypatch.setattr(time, "time_ns", lambda: real() + days * 86_400 * 10**9)
    deadline = time.monotonic() + 3.5
    while time.monotonic() < deadline:
        jump = days * 86_400_000
        told_by(place.conninfo, place.name, f"UPDATE lease SET renewed_ms = renewed_ms + {jump}")
        assert not candidate.look().taken, "it is renewed all the while"
        engine.command(submit(workload(f"w{engine.version}", gpu=1000)))
        time.sleep(0.3)
    assert engine.lease is not None
    assert not engine.lease.taken.is_set()
    candidate.stand_no_more()
    engine.close()


def test_who_slept_does_not_believe_that_its_lease_is_held(place: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was suspended: its clock of uptime stood still, and others' did not."""
    lease = leases.take(place)
    assert lease.is_held
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) + 3600
    monkeypatch.setattr(time, "clock_gettime", lambda clock: asleep)
    assert not lease.is_held
    monkeypatch.undo()
    lease.release()


def test_a_takeover_ends_the_session_that_stands_in_its_way(place: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds the fence in a transaction, whose machine nobody reaches any more."""
    monkeypatch.setattr(leases, "TTL_S", 1.0)
    monkeypatch.setattr(leases, "this_process", lambda: Holder(host="elsewhere", pid=1, boot="another"))
    gone = leases.take(place)
    gone._stop.set()
    gone._thread.join()
    store = leases.PostgresStore(place, 0, gone)
    with contextlib.ExitStack() as left_open:
        left_open.enter_context(contextlib.suppress(JournalError))
        left_open.enter_context(store.writing())
        candidate = LeaseCandidate(place)
        until = time.monotonic() + PATIENCE_S
        while not candidate.look().taken:
            assert time.monotonic() < until
            time.sleep(0.1)
        candidate.lease().release()
    store.close()


def test_a_standby_of_an_older_muster_keeps_nobody_from_the_lease(place: Schema) -> None:
    """While the newer one writes it is refused as it stands by; where nobody does it gives the lease back."""
    engine = Engine.open(place)
    told_by(place.conninfo, place.name, "INSERT INTO migration (number, name, at_ms) VALUES (999, 'of tomorrow', 0)")
    with pytest.raises(JournalFormat, match="newer Muster"):
        stand_by(place, threading.Event(), lambda news: None)
    engine.close()
    stood_by = stand_by(place, threading.Event(), lambda news: None)
    assert stood_by is not None
    with pytest.raises(JournalFormat, match="newer Muster"):
        Engine.open(place, stood_by=stood_by)
    candidate = LeaseCandidate(place)
    assert candidate.look().taken
    candidate.stand_no_more()
