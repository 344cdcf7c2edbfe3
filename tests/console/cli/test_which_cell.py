"""Which cell is meant where nobody names one: the one that runs. A cell that nobody named is never started."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from console.cli import start
from console.cli.main import parser, run
from console.client.attach import settings_of
from console.client.credentials import Identity
from console.client.launch import ensure_engine, running
from console.client.sockets import bind_unix
from console.forms.settings import CellPaths, paths_in
from engine.model.errors import UnreachableError
from tests.support.served import running_loop, serving, socket_folder

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with socket_folder() as folder:
        monkeypatch.setenv("MUSTER_STATE_DIR", str(folder))
        yield folder


@contextmanager
def served(state: Path, *names: str) -> Iterator[None]:
    """Cells of these names that run."""
    with ExitStack() as after:
        for name in names:
            paths = paths_in(state / name)
            paths.folder.mkdir(exist_ok=True)
            after.enter_context(serving(after.enter_context(running_loop()), bind_unix(paths.socket)))
        yield


def process_of(paths: CellPaths) -> int:
    peer = running(paths.socket)
    return 0 if peer is None else peer.pid


def test_every_command_means_the_one_that_runs(state: Path, capsys: Out) -> None:
    paths = paths_in(state / "lab")
    ensure_engine(paths, ["--data", str(paths.folder), "--cell", "lab"])
    (state / "stopped").mkdir()
    pid = process_of(paths)
    for command in (["overview"], ["get", "nodes"], ["audit", "verify"], ["policy", "show"], ["doctor", "--json"]):
        assert run(command) == 0, capsys.readouterr().err
    found = {each["name"]: each["found"] for each in json.loads(capsys.readouterr().out.splitlines()[-1])}
    assert found["engine"].startswith(f"'lab', process {pid},")
    assert found["state"] == str(paths.folder)
    assert run(["stop"]) == 0
    assert f"engine of cell 'lab', process {pid}, has stopped" in capsys.readouterr().err
    assert not process_of(paths)


@pytest.mark.parametrize(
    "command", [["overview"], ["node", "drain", "n1"], ["stop"], ["audit", "verify"], ["--linear"]]
)
def test_where_several_run_the_error_lists_them(state: Path, capsys: Out, command: list[str]) -> None:
    with served(state, "default", "demo"):
        assert run(command) == 2
        told = capsys.readouterr().err
        assert "several cells run here: default, demo" in told
        assert "--cell default" in told
        assert run(["overview", "--cell", "demo"]) == 0


def test_where_none_runs_it_is_the_default_cell(capsys: Out) -> None:
    assert run(["overview"]) == 5
    assert "no engine runs for cell 'default'" in capsys.readouterr().err


def test_a_cell_that_is_named_is_meant_whatever_runs(state: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(state, "demo"):
        assert run(["overview", "--cell", "lab"]) == 5
        monkeypatch.setenv("MUSTER_CELL", "default")
        assert run(["overview"]) == 5
        told = capsys.readouterr().err
    assert "no engine runs for cell 'lab'" in told
    assert "no engine runs for cell 'default'" in told
    assert told.count("Running now: demo; choose with --cell demo") == 2


def test_a_console_opens_the_one_that_runs_and_never_starts_it(state: Path) -> None:
    arguments = parser().parse_args([])
    settings = settings_of(arguments)
    with served(state, "demo"):
        connect, title, folder = start._connector(arguments, settings, Identity(settings))
        assert (title, folder) == ("demo", state / "demo")
        with closing(connect()) as client:
            assert client.health().version > 0
    connect, title, _ = start._connector(arguments, settings, Identity(settings))
    assert title == "default", "where none runs"


def test_a_cell_that_ended_before_the_console_reached_it_is_not_started(state: Path) -> None:
    arguments = parser().parse_args(["--readonly"])
    settings = settings_of(arguments)
    with served(state, "demo"):
        connect, _, _ = start._connector(arguments, settings, Identity(settings))
    for _ in range(2):
        with pytest.raises(UnreachableError, match="no engine runs for cell 'demo'"):
            connect()
    assert not process_of(paths_in(state / "demo"))
    assert not (state / "demo" / "engine.log").exists()
