"""What operators do to a database server, or what befalls it, beyond a restart: a failover to its replica, a replica in
its place, no connection left, a full disk, a pool in between that ends sessions, settings of another's taste. All is
named by what it is, nothing is lost and nothing doubled."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import postgres
import psycopg
import pytest
from cells import small_cell, submit, workload
from database_line import Line
from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select

from engine.control import Engine
from engine.journal import postgres_sessions as sessions
from engine.journal import postgres_store
from engine.journal.database import Place, Schema, create_some, place_of
from engine.journal.side_tables import Records
from engine.model.errors import JournalBusy, JournalError
from engine.model.events import Submitted, SubmittedMany
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())]

NOTES = Table("note", MetaData(), Column("id", Integer, primary_key=True, autoincrement=True), Column("name", String))


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with postgres.own_server(conf="max_connections = 14\nsuperuser_reserved_connections = 0\n") as made:
        yield made


@pytest.fixture
def engine(server: postgres.Server) -> Iterator[Engine]:
    made = begun(server.cell())
    yield made
    made.close()


def begun(where: str | Place) -> Engine:
    engine = Engine.open(where, cell=small_cell(), seed=3)
    engine.record(lambda connection: create_some(connection, [NOTES]))
    return engine


def note(engine: Engine, name: str) -> None:
    engine.record(lambda connection: connection.execute(insert(NOTES).values(name=name)))


def notes(engine: Engine) -> list[str]:
    return list(engine.recorded(lambda c: c.execute(select(NOTES.c.name).order_by(NOTES.c.id)).scalars().all()))


def submitted(engine: Engine) -> Counter[str]:
    """How often the journal has each workload submitted."""
    found: Counter[str] = Counter()
    for batch in engine._journal.after(0, 0):
        for event in batch:
            if isinstance(event, Submitted):
                found[event.workload.id] += 1
            elif isinstance(event, SubmittedMany):
                found.update(spec.id for spec in event.workloads)
    return found


def whole(engine: Engine) -> None:
    """What the journal has is what is shown, and it verifies."""
    shown = engine.state.digest()
    engine._stale = True
    engine.settle()
    assert engine.state.digest() == shown
    assert engine._journal.verify() == engine.version


# -- another server in its place --------------------------------------------------------------------------------------


def test_a_failover_to_a_replica_loses_nothing_that_was_acknowledged_and_doubles_nothing() -> None:
    """The primary is killed while work comes in; its synchronous replica is promoted a moment later."""
    with postgres.own_server() as first, postgres.own_server(follows=first) as second:
        first.ask("ALTER SYSTEM SET synchronous_standby_names = '*'")
        first.ask("SELECT pg_reload_conf()")
        hosts = f"host={first.folder},{second.folder}&port={first.port},{second.port}"
        engine = begun(f"postgresql://{postgres.USER}@/postgres?{hosts}&schema=cell")
        told: list[str] = []
        refused: list[str] = []
        enough = threading.Event()

        def work() -> None:
            number = 0
            while not enough.is_set():
                number += 1
                try:
                    engine.command(submit(workload(f"w{number}", gpu=1000)))
                    told.append(f"w{number}")
                except JournalError:
                    refused.append(f"w{number}")

        worker = threading.Thread(target=work)
        worker.start()
        wait_until(lambda: len(told) >= 30)
        first.kill()
        before = len(told)
        second.promote()
        wait_until(lambda: len(told) >= before + 30)
        enough.set()
        worker.join()
        engine.settle()
        found = submitted(engine)
        assert set(told) <= set(found)
        assert max(found.values()) == 1
        whole(engine)
        engine.close()


def wait_until(true: object, within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_server_that_came_back_as_a_replica_is_called_one_and_its_promotion_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.2)
    with postgres.own_server() as server:
        engine = begun(server.cell())
        engine.command(submit(workload("before", gpu=1000)))
        server.become_replica()
        for says in (r"cannot be seen yet: .* it is a replica", "it is a replica"):
            with pytest.raises(JournalError, match=says):
                engine.command(submit(workload("during", gpu=1000)))
        assert engine.workload("before").id == "before"
        server.promote()
        monkeypatch.setattr(postgres_store, "PATIENCE_S", PATIENCE_S)
        engine.command(submit(workload("after", gpu=1000)))
        assert set(submitted(engine)) == {"before", "after"}
        whole(engine)
        engine.close()


def test_a_database_that_was_made_read_only_is_named_and_nothing_is_lost(
    engine: Engine, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a provider does to one that is over its quota: also to sessions that are there."""
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.2)
    server.ask("ALTER SYSTEM SET default_transaction_read_only = on")
    server.ask("SELECT pg_reload_conf()")
    try:
        wait_until(lambda: server.ask("SHOW default_transaction_read_only") == [("on",)])
        with pytest.raises(JournalError, match="it is a replica, or was made read-only"):
            engine.command(submit(workload("during", gpu=1000)))
    finally:
        with psycopg.connect(server.url(), autocommit=True, options="-c default_transaction_read_only=off") as owner:
            owner.execute("ALTER SYSTEM RESET default_transaction_read_only")
            owner.execute("SELECT pg_reload_conf()")
    wait_until(lambda: server.ask("SHOW default_transaction_read_only") == [("off",)])
    monkeypatch.setattr(postgres_store, "PATIENCE_S", PATIENCE_S)
    engine.command(submit(workload("after", gpu=1000)))
    assert set(submitted(engine)) == {"after"}
    whole(engine)


# -- no room ----------------------------------------------------------------------------------------------------------


def test_a_server_without_a_free_session_is_named_and_waited_for(
    engine: Engine, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.2)
    engine._journal._store._writers.dispose()
    with contextlib.ExitStack() as others:
        with contextlib.suppress(psycopg.OperationalError):
            while True:
                others.enter_context(psycopg.connect(server.url()))
        with pytest.raises(JournalError, match="no connection left") as caught:
            engine.command(submit(workload("during", gpu=1000)))
        assert "max_connections" in caught.value.remedy
        monkeypatch.setattr(postgres_store, "PATIENCE_S", PATIENCE_S)
        release = threading.Timer(0.3, others.pop_all().close)
        release.start()
        engine.command(submit(workload("waits", gpu=1000)))
        release.join()
    assert set(submitted(engine)) == {"waits"}


def test_readers_that_stand_still_do_not_hold_up_who_writes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sessions for reading are taken: reading waits its time and is refused by name; the cell goes on."""
    readers = engine._journal._store._readers
    monkeypatch.setattr(readers.pool, "_timeout", 0.2)
    with contextlib.ExitStack() as taken:
        for _ in range(postgres_store.READERS):
            taken.enter_context(readers.connect())
        engine.command(submit(workload("goes-on", gpu=1000)))
        with pytest.raises(JournalError, match="sessions of this process are all taken"):
            notes(engine)
    assert notes(engine) == []


@pytest.fixture
def small_disk() -> Iterator[str]:
    """A folder with a file system of its own, of 100 MiB."""
    folder = tempfile.mkdtemp(prefix="muster-small-")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m,mode=777", "none", folder], capture_output=True)
    if mounted.returncode:
        os.rmdir(folder)
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
    os.rmdir(folder)


def test_a_full_disk_of_the_server_is_named_and_once_there_is_room_the_cell_goes_on(
    small_disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.2)
    with postgres.own_server(beside=small_disk, conf="max_wal_size = 8MB\nmin_wal_size = 8MB\n") as server:
        engine = begun(server.cell())
        fill, told, refused = Path(small_disk, "fill"), [], []
        with open(fill, "wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        for number in range(400):
            try:
                with_much = workload(f"w{number}", gpu=1000)
                engine.command(submit(with_much), beside=lambda c: c.execute(insert(NOTES).values(name="x" * 50_000)))
                told.append(with_much.id)
            except JournalError as error:
                refused.append((with_much.id, str(error)))
                if len(refused) > 3:
                    break
        assert refused
        assert any("disk is full" in text for _, text in refused), refused
        assert set(engine.state.workloads.row_of) >= set(told)
        fill.unlink()
        if server.ended():  # the log of what it writes had no room: it ends itself, and is started again by its keeper
            server.start()
        monkeypatch.setattr(postgres_store, "PATIENCE_S", PATIENCE_S)
        engine.command(submit(workload("after", gpu=1000)))
        found = submitted(engine)
        assert set(found) == {*told, "after"}
        assert max(found.values()) == 1
        assert engine.recorded(lambda c: c.execute(select(func.count()).select_from(NOTES)).scalar()) == len(told)
        whole(engine)
        engine.close()


# -- statements that take too long ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "says"), [("statement_timeout", "took too long"), ("lock_timeout", "locked by another session")]
)
def test_a_statement_that_is_held_up_for_long_is_refused_by_name(
    server: postgres.Server, monkeypatch: pytest.MonkeyPatch, setting: str, says: str
) -> None:
    writer = sessions._SESSION["writer"] | {"lock_timeout": "0", "statement_timeout": "0", setting: "200ms"}
    monkeypatch.setitem(sessions._SESSION, "writer", writer)
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.2)
    place = place_of(server.cell())
    assert isinstance(place, Schema)
    engine = begun(place)
    with psycopg.connect(place.conninfo) as other:
        other.execute(f"LOCK TABLE {place.name}.batch IN SHARE MODE")
        with pytest.raises(JournalError, match=says) as caught:
            engine.command(submit(workload("during", gpu=1000)))
        assert isinstance(caught.value, JournalBusy) == (setting == "lock_timeout")
    engine.command(submit(workload("after", gpu=1000)))
    assert set(submitted(engine)) == {"after"}
    whole(engine)
    engine.close()


# -- in between -------------------------------------------------------------------------------------------------------


def test_a_pool_that_ends_idle_sessions_is_not_noticed(server: postgres.Server) -> None:
    """As pgbouncer, a firewall or `idle_session_timeout` does: every session ends between two things that are asked."""
    line = Line(server.port)
    place = place_of(server.cell(line.port))
    assert isinstance(place, Schema)
    engine = begun(place)
    assert engine.lease is not None
    records = Records(place, owner=engine.lease.owner)
    for number in range(5):
        line.cut()
        engine.command(submit(workload(f"w{number}", gpu=1000)))
        line.cut()
        note(engine, f"n{number}")
        line.cut()
        engine.command(
            submit(workload(f"b{number}", gpu=1000)),
            beside=lambda c, number=number: c.execute(insert(NOTES).values(name=f"b{number}")),  # type: ignore[misc]
        )
        line.cut()
        records.write(lambda connection: None)
        line.cut()
        assert notes(engine)[-1] == f"b{number}"
    lease = engine.lease
    wait_until(lambda: lease.is_held)  # its renewal may have met a line that was just cut
    assert not lease.taken.is_set()
    found = submitted(engine)
    assert set(found) == {f"{kind}{number}" for kind in "wb" for number in range(5)}
    assert max(found.values()) == 1
    whole(engine)
    records.close()
    engine.close()
    line.close()


# -- as somebody else likes it ----------------------------------------------------------------------------------------


def test_settings_of_another_taste_change_nothing(server: postgres.Server) -> None:
    """A database whose owner has set what programs often rely on otherwise, and whose order of letters is Turkish."""
    server.ask("CREATE DATABASE taste TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'")
    for setting in (
        "default_transaction_isolation = 'serializable'", "bytea_output = 'escape'", "datestyle = 'German'",
        "standard_conforming_strings = off", "timezone = 'Asia/Kathmandu'", "extra_float_digits = -3",
        "client_encoding = 'LATIN1'", "search_path = 'public'", "statement_timeout = '500ms'",
        "default_transaction_deferrable = on", "enable_indexscan = off",
    ):  # fmt: skip
        server.ask(f"ALTER DATABASE taste SET {setting}")
    url = f"{server.url('taste')}&schema=cell"
    engine = begun(url)
    names = ["ı", "I", "i", "İ", "b", "B", "ä", "_"]
    for name in names:
        note(engine, name)
        engine.command(submit(workload(f"w-{name.encode().hex()}", gpu=1000)))
    ordered = engine.recorded(lambda c: c.execute(select(NOTES.c.name).order_by(NOTES.c.name)).scalars().all())
    assert list(ordered) == sorted(names)
    whole(engine)
    engine.close()
    again = Engine.open(url, use_snapshot=False)
    assert again.version == engine.version
    again.close()


@pytest.mark.parametrize(
    ("made", "says"),
    [("ENCODING 'SQL_ASCII'", "keeps texts as SQL_ASCII"), ("ENCODING 'LATIN1'", "keeps texts as LATIN1")],
)
def test_a_database_of_another_encoding_is_refused_by_name(server: postgres.Server, made: str, says: str) -> None:
    server.ask(f"CREATE DATABASE other TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' {made}")
    try:
        with pytest.raises(JournalError, match=says):
            Engine.open(server.url("other"))
    finally:
        server.ask("DROP DATABASE other")


@pytest.mark.parametrize(
    ("change", "says", "remedy"),
    [
        (("/postgres?", "/nowhere?"), "there is no such database", "createdb"),
        ((f"{postgres.USER}@", "nobody@"), "does not let this user in", "Check user"),
        ((f"{postgres.USER}@", "sleeper@"), "does not let this user in", "Check user"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    server: postgres.Server, change: tuple[str, str], says: str, remedy: str
) -> None:
    if "sleeper@" in change:
        server.ask("CREATE ROLE sleeper NOLOGIN")
    with pytest.raises(JournalError, match=says) as caught:
        Engine.open(server.url().replace(*change))
    assert remedy in caught.value.remedy
