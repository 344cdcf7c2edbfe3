"""Others on this machine, as enemies: whoever shares a fleet's socket, looks at a command line, or is given a process
id that was somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from console.cli.main import run
from console.fleet import callers
from console.fleet.callers import at_socket
from console.fleet.queries import FleetClient
from engine.admission.fleet_routing import BY_TAG
from engine.executors import gang_tasks
from engine.executors.gang_tasks import MARK, of_machine
from engine.journal.database import place_of
from engine.model.commands import Submit
from engine.model.errors import RefusedError, SpecError
from engine.model.specs import RunSpec
from runbooks.gate.decisions import check_commands
from runbooks.plans.identity import OWNER, Actor
from tests.console.fleet.test_fleet import job
from tests.support.fleets import Served, served_fleet
from tests.support.patience import PATIENCE_S, until
from tests.support.served import socket_folder

OTHER = "unix:4242"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with socket_folder() as folder, served_fleet(folder) as made:
        monkeypatch.setenv("MUSTER_FLEET", str(folder))
        yield made


@pytest.fixture
def fleet(served: Served) -> Iterator[FleetClient]:
    client = FleetClient(served.paths.socket)
    yield client
    client.close()


def come_as(account: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "at_socket", lambda _: at_socket(account))


def engine_of_commands() -> Any:
    return SimpleNamespace(processes=SimpleNamespace(open_door=False))


def test_a_cell_hears_whose_word_a_fleet_passes_on_whatever_they_say(
    served: Served, fleet: FleetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = msgspec.structs.replace(job("j"), tags={BY_TAG: OWNER}, run=RunSpec(argv=("id",)))
    come_as(OTHER, monkeypatch)
    fleet.submit([wish])
    (there,) = [cell.there["j"] for cell in served.cells.values() if cell.there]
    assert there.tags[BY_TAG] == OTHER
    fleet_as_owner = Actor(subject=OWNER, account=OWNER)
    with pytest.raises(RefusedError, match="only for the account that owns"):
        check_commands(engine_of_commands(), fleet_as_owner, Submit(workloads=(there,)))
    come_as(OWNER, monkeypatch)
    fleet.submit([msgspec.structs.replace(wish, id="k")])
    (there,) = [cell.there["k"] for cell in served.cells.values() if "k" in cell.there]
    check_commands(engine_of_commands(), fleet_as_owner, Submit(workloads=(there,)))
    for account in ("tcp", OTHER):
        with pytest.raises(RefusedError):
            check_commands(engine_of_commands(), Actor(subject=account, account=account), Submit(workloads=(there,)))


def test_who_shares_a_fleets_socket_touches_what_is_theirs(
    served: Served, fleet: FleetClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cell in "ab":
        fleet.set_closed(cell, closed=True, reason="upgrade")
    fleet.submit([job("owners")])
    come_as(OTHER, monkeypatch)
    fleet.submit([job("theirs")])
    with pytest.raises(RefusedError, match="not yours"):
        fleet.withdraw(["theirs", "owners"])
    with pytest.raises(RefusedError, match="only the owner of the fleet"):
        fleet.set_closed("a", closed=False)
    assert [fleet.submission(name).state for name in ("owners", "theirs")] == ["waiting", "waiting"]
    with pytest.raises(RefusedError, match="already exists, as another"):
        fleet.submit([job("owners")])
    assert fleet.withdraw(["theirs"]) == ("theirs",)


def test_stopping_a_fleet_ends_no_process_but_the_one_that_listens(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append(pid))
    view = served.fleet.view()
    for pid in (1, 0, -1, os.getppid()):
        monkeypatch.setattr(served.fleet, "view", lambda pid=pid: msgspec.structs.replace(view, pid=pid))
        assert run(["fleet", "stop"]) != 0
    assert ended == []
    assert "the process that listens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "postgresql:/u:s3kr3t@h/db", "postgres:u:s3kr3t@h/db", "postgresql+psycopg://u:s3kr3t@h/db",
        "POSTGRES:/u:s3kr3t@h/db", " postgresql:/u:s3kr3t@h/db", "host=h password=s3kr3t dbname=x",
        "postgresql://u:s3k%zzr3t@h/db", "postgresql://u:s3kr3t@h/db?bogus=s3kr3t", "mysql://u:s3kr3t@h/db",
        "postgresql://h/db?password=s3kr3t&schema=a b",
    ],
)  # fmt: skip
def test_a_database_that_is_misspelt_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(SpecError) as told:
        place_of(text)
    assert "r3t" not in str(told.value)


def test_a_password_is_in_no_word_about_a_place() -> None:
    place = place_of("postgresql://u:s3kr3t@h/db?sslpassword=s3kr3t")
    assert "r3t" not in f"{place} {place!r}"
    assert cast("Any", place).has_password
    assert not cast("Any", place_of("postgresql://u@h/db")).has_password


def test_a_password_on_a_command_line_is_warned_of(tmp_path: Path) -> None:
    """Where it is tried: nobody listens there."""
    words = [sys.executable, "-m", "console.cli.main", "serve", "--cell", "x", "--database"]
    url = "postgresql://u:s3kr3t@127.0.0.1:1/db"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*words, url], capture_output=True, text=True, timeout=PATIENCE_S, env=env, check=False)
    assert done.returncode != 0
    assert "other users of this machine can see a password" in done.stderr
    assert "s3kr3t" not in done.stdout + done.stderr


def test_tasks_are_given_no_secret_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MUSTER_TOKEN", "MUSTER_DATABASE", "PGPASSWORD", "OPENAI_API_KEY", "SLURM_JWT", "SSH_AUTH_SOCK"):
        monkeypatch.setenv(name, "s3kr3t")
    assert "s3kr3t" not in str(of_machine())
    assert MARK != "MUSTER_TOKEN"


def test_a_process_that_came_to_its_id_later_is_not_killed() -> None:
    """Between the look for what a task has left and the kill."""
    with subprocess.Popen(["sleep", "60"], env={MARK: "theirs", "PATH": os.defpath}) as other:
        # A program's environment can be read a moment after its start, not with it.
        until(lambda: Path(f"/proc/{other.pid}/environ").read_bytes())
        gang_tasks._kill(other.pid, "ours")
        gang_tasks._kill(other.pid, "their")
        assert other.poll() is None
        gang_tasks._kill(other.pid, "theirs")
        assert other.wait(PATIENCE_S) == -signal.SIGKILL
