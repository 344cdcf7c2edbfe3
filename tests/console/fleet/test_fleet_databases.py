"""A fleet whose journal is in PostgreSQL: the server restarts, answers are lost, another process takes over. What was
acknowledged is there once, and who lost the lease neither writes nor sends. All else is as in a file: test_fleet.py."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from console.fleet.journal import FleetJournal, copy
from console.fleet.queries import OPEN, FleetClient, FleetPaths
from engine.control import Engine
from engine.journal import postgres_store
from engine.journal.database import Place, Schema, SqliteFile, place_of
from engine.journal.postgres_store import Holder, LeaseCandidate
from engine.model.errors import JournalError, JournalFormat, JournalTaken, MusterError
from tests.console.fleet.test_fleet import World, job
from tests.support import postgres
from tests.support.database_line import Line
from tests.support.patience import PATIENCE_S, until
from tests.support.served import socket_folder

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.thorough, pytest.mark.skipif(bool(postgres.why_not()), reason=postgres.why_not())]


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
def world(server: postgres.Server, line: Line) -> Iterator[World]:
    made = World(place_of(server.cell(line.port)))
    yield made
    made.kill()


def test_a_restart_of_the_server_is_waited_for(world: World, server: postgres.Server) -> None:
    for end in (server.kill, server.stop):
        end()
        starter = threading.Timer(0.3, server.start)
        starter.start()
        world.submit(end.__name__)
        starter.join()

    def routed() -> bool:
        world.turn()
        return [world.state(name) for name in ("kill", "stop")] == ["routed", "routed"]

    until(routed)


def test_without_a_server_the_fleet_is_shown_and_nothing_is_taken_or_sent(
    world: World, server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "PATIENCE_S", 0.2)
    world.submit("before")
    server.kill()
    with pytest.raises(JournalError):
        world.submit("during")
    with pytest.raises(JournalError):
        world.turn()
    view = world.fleet.view()
    assert (view.counts, view.waiting[0].id, bool(view.error)) == ({"waiting": 1}, "before", True)
    assert not any(cell.there for cell in world.cells.values())
    server.start()
    world.submit("during")
    end = time.monotonic() + PATIENCE_S
    while not world.journal.is_ours:  # until the lease is renewed nothing is sent
        assert time.monotonic() < end
        time.sleep(0.05)
    world.turn()
    assert world.fleet.view().counts == {"routed": 2}
    assert world.fleet.view().error == ""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_submission_nobody_could_tell_of_is_there_once_or_not(
    world: World, line: Line, monkeypatch: pytest.MonkeyPatch, when: Any
) -> None:
    line.lose(b"COMMIT\0", when=when)
    with monkeypatch.context() as cut:
        cut.setattr(world.journal._store, "_end", _unreachable)
        with pytest.raises(JournalError, match="cannot be seen yet"):
            world.submit("x")
    world.turn()
    kept = when == "after"
    assert world.where("x") == ([] if not kept else [world.fleet.submission("x").cell])
    assert world.fleet.view().counts == ({"routed": 1} if kept else {})
    world.submit("x")
    world.turn()
    assert world.fleet.view().counts == {"routed": 1}
    assert len(world.where("x")) == 1


def _unreachable(_deadline: float) -> None:
    raise JournalError("nobody there")


def test_a_withdrawal_nobody_could_tell_of_is_what_was_kept(
    world: World, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit("x")
    line.lose(b"COMMIT\0", when="after")
    with monkeypatch.context() as cut:
        cut.setattr(world.journal._store, "_end", _unreachable)
        with pytest.raises(JournalError, match="cannot be seen yet"):
            world.fleet.withdraw(["x"], "unix:1")
    world.turn()
    assert (world.state("x"), world.where("x")) == ("withdrawn", [])


def test_who_was_taken_over_writes_nothing_and_sends_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.submit("x")
    monkeypatch.setattr(Holder, "is_gone", lambda _: True)  # as somebody on its machine sees a process that ended
    place = world.journal.place
    assert isinstance(place, Schema)
    candidate = LeaseCandidate(place)
    assert candidate.look().taken
    with closing(FleetJournal(place, candidate.lease())) as mine:
        with pytest.raises(JournalTaken):
            world.submit("y")
        with pytest.raises(JournalTaken):
            world.turn()
        assert not world.journal.is_ours
        assert not any(cell.there for cell in world.cells.values())
        assert [each.id for each in mine.open_submissions()] == ["x"]


def test_what_was_decided_is_not_sent_by_one_who_may_have_lost_the_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit("x")
    with monkeypatch.context() as lost:
        lost.setattr(type(world.journal), "is_ours", property(lambda _: False))
        world.turn()
    assert (world.state("x"), world.where("x")) == ("sending", [])
    world.turn()
    assert world.state("x") == "routed"


def test_a_fleet_and_a_cell_are_not_taken_for_each_other(server: postgres.Server) -> None:
    of_fleet, of_cell = place_of(server.cell()), place_of(server.cell())
    FleetJournal(of_fleet).close()
    Engine.open(of_cell).close()
    with pytest.raises(JournalFormat, match="what a fleet remembers"):
        Engine.open(of_fleet)
    with pytest.raises(JournalError, match="the journal of a cell"):
        FleetJournal(of_cell)


def test_a_journal_goes_from_a_file_to_a_server_and_back(server: postgres.Server, tmp_path: Path) -> None:
    old: Place = SqliteFile(tmp_path / "old.db")
    world = World(old)
    world.submit("x", "y")
    world.turn()
    world.fleet.set_closed("b", True, "upgrade", "unix:1")
    uid, found = world.journal.uid, world.journal.found(["x", "y"])
    world.kill()
    for target in (place_of(server.cell()), SqliteFile(tmp_path / "back.db")):
        with closing(FleetJournal(old)) as source, closing(FleetJournal(target)) as new:
            copy(source, new)
            assert (new.uid, new.found(["x", "y"]), new.closed()) == (uid, found, {"b": "upgrade"})
            assert [each.what for each in new.events(2)] == [each.what for each in source.events(2)]
            with pytest.raises(JournalError, match="already"):
                copy(source, new)
        old = target


def test_a_standby_takes_over_what_a_killed_fleet_has_taken(server: postgres.Server) -> None:
    """Real processes: one fleet, one that stands by, and nobody at the cell, so that all of it waits."""
    with socket_folder() as folder:
        (folder / "fleet.yaml").write_text("name: two\ncells:\n  - {name: a, connect: nobody.sock}\n")
        places = [_paths(folder / name) for name in ("1", "2")]
        words = ["--file", str(folder / "fleet.yaml"), "--database", server.cell()]
        first = _serve(folder, places[0], words)
        second = None
        try:
            _until_up(places[0])
            second = _serve(folder, places[1], [*words, "--standby"])
            with closing(FleetClient(places[0].socket)) as client:
                client.submit([job("x"), job("y")])
            first.send_signal(signal.SIGKILL)
            first.wait()
            _until_up(places[1])
            with closing(FleetClient(places[1].socket)) as client:
                view = client.view()
                assert ([each.id for each in view.waiting], view.counts) == (["x", "y"], {"waiting": 2})
                assert "PostgreSQL" in view.kept_in
                client.submit([msgspec.structs.replace(job("x"))])  # the same again changes nothing
                assert {each.state for each in client.page(OPEN).items} == {"waiting"}
        finally:
            for process in (first, second):
                if process is not None:
                    process.terminate()
                    process.wait(PATIENCE_S)
        assert second.returncode == 0


def _paths(folder: Path) -> FleetPaths:
    return FleetPaths(folder, folder / "fleet.db", folder / "fleet.sock", folder / "fleet.pid")


def _serve(folder: Path, paths: FleetPaths, words: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "console.cli.main", "fleet", "serve", "--fleet", str(paths.folder), *words]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _until_up(paths: FleetPaths) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            with closing(FleetClient(paths.socket)) as client:
                client.view()
            return
        except MusterError:
            assert time.monotonic() < end, (paths.folder.parent / "log").read_text()
            time.sleep(0.05)
