"""Settings: the nearest wins, and a slip of the pen is an error that names its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from console.forms import settings
from console.forms.settings import (
    ConsoleSettings,
    cell_paths,
    environments,
    load,
    problems,
    unknown_environment,
)
from engine.model.errors import SpecError


def written(folder: Path, text: str) -> dict[str, str]:
    """An environment whose settings file says `text`."""
    path = folder / "muster.toml"
    path.write_text(text)
    return {"MUSTER_CONFIG": str(path)}


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    assert load({}, {"MUSTER_CONFIG": str(tmp_path / "none.toml")}) == ConsoleSettings()


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    env = written(tmp_path, 'cell = "from-file"\nspeed = 2\nreadonly = true\n')
    assert load({}, env) == ConsoleSettings(cell="from-file", speed=2.0, readonly=True)
    env |= {"MUSTER_CELL": "from-env", "MUSTER_READONLY": "0"}
    assert load({}, env) == ConsoleSettings(cell="from-env", speed=2.0, readonly=False)
    assert load({"cell": "from-flag", "speed": None, "unrelated": 1}, env).cell == "from-flag"


def test_an_unknown_key_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"muster\.toml:3: unknown key 'conect'\. Did you mean 'connect'\?"):
        load({}, written(tmp_path, '# mine\ncell = "a"\nconect = "x"\n'))
    with pytest.raises(SpecError, match=r"muster\.toml:1: unknown key 'window'\. Known keys: cell"):
        load({}, written(tmp_path, "[window]\nname = 'x'\n"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cell = 3", "'cell' cannot be 3"),
        ("readonly = 1", "true or false"),
        ("speed = true", "a number"),
        ("speed = 0", "speed cannot be 0"),
        ("speed = nan", "speed cannot be nan"),
        ("speed = inf", "speed cannot be inf"),
        ("keep_minutes = 2", "text"),
        ('keep_minutes = "soon"', "'keep_minutes': 'soon' is not a duration"),
        ("keep_runs = 1.5", "a whole number"),
        ("cell = ", "this is not a value"),
        ('cell = "a"\ncell = "b"', "this key is given twice"),
    ],
)
def test_a_malformed_file_is_told(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(SpecError, match=problem):
        load({}, written(tmp_path, text))


@pytest.mark.parametrize(("name", "value"), [("MUSTER_SPEED", "fast"), ("MUSTER_READONLY", "maybe")])
def test_a_malformed_variable_is_named(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SpecError, match=name):
        load({}, {"MUSTER_CONFIG": str(tmp_path / "none"), name: value})


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "muster.toml"
    path.write_bytes(b"\xff\x00")
    with pytest.raises(SpecError, match=r"byte 0 is not UTF-8 text\. Save the file as UTF-8"):
        load({}, {"MUSTER_CONFIG": str(path)})
    with pytest.raises(SpecError, match="cannot be read"):
        load({}, {"MUSTER_CONFIG": str(tmp_path)})


def test_misspelt_variables_are_found() -> None:
    assert unknown_environment({"MUSTER_CELL": "a", "MUSTER_CEL": "a", "HOME": "/"}) == ["MUSTER_CEL"]


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a\x1b[2J", "x" * 65])
def test_a_cell_name_must_be_a_folder_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cell"):
        settings.check_cell_name(name)


def test_a_long_folder_gets_a_short_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = cell_paths(ConsoleSettings(state_dir="/tmp/x", cell="a"))
    assert near.socket == Path("/tmp/x/a/engine.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    far = cell_paths(ConsoleSettings(state_dir="/tmp/" + "x" * 100, cell="a"))
    assert far.socket.parent == Path("/run/user/1/muster")
    assert far.journal == Path("/tmp/" + "x" * 100) / "a" / "journal.db"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/" + "x" * 100)
    farther = cell_paths(ConsoleSettings(state_dir="/tmp/" + "x" * 100, cell="b"))
    assert len(os.fsencode(farther.socket)) <= settings.MAX_SOCKET_BYTES
    assert farther.socket.name != far.socket.name


ENVIRONMENTS = """
cell = "here"
theme = "light"
environment = "lab"
[environments.lab]
cell = "lab-1"
[environments.live]
connect = "https://live:8443"
readonly = true
"""


def test_a_chosen_environment_counts_more_than_the_file_and_less_than_variables_and_flags(tmp_path: Path) -> None:
    env = written(tmp_path, ENVIRONMENTS)
    assert load({}, env) == ConsoleSettings(cell="lab-1", theme="light", environment="lab")
    live = load({"environment": "live"}, env)
    assert (live.connect, live.readonly, live.cell) == ("https://live:8443", True, "here")
    assert load({}, env | {"MUSTER_ENVIRONMENT": "live", "MUSTER_CONNECT": "/x"}).connect == "/x"
    assert load({"environment": "live", "readonly": False}, env).readonly is False
    with pytest.raises(SpecError, match=r"there is no environment 'life'\. Use one of: lab, live"):
        load({"environment": "life"}, env)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[environments.lab]\ncolour = "rde"', ":2: 'colour' cannot be 'rde'. Did you mean 'red'? Use one of: red, "),
        ("[environments.lab]\n\nreadonly = 1", ":3: 'readonly' cannot be 1. Give true or false"),
        ('[environments.a]\n[environments.lab]\ncolor = "red"', ":3: unknown key 'color'. Did you mean 'colour'?"),
        ("environments = 3", ":1: 'environments' is a value, and must be a table"),
        ("[environments]\nlab = 3", ":2: 'lab' is not an environment"),
        ('[environments."a b"]', ":1: 'a b' is not an environment"),
        ('cell = "a"\ncell', ":2: there is no = after the key"),
    ],
)
def test_a_wrong_environment_names_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    env = written(tmp_path, text)
    [found] = problems(env)
    assert str(found).startswith(f"{tmp_path}/muster.toml{problem}")
    with pytest.raises(SpecError, match=r"muster\.toml"):
        (load({}, env), environments(env))


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    env = written(tmp_path, 'thme = "dark"\nspeed = 0\n[environments.a]\ncolour = 1\ntheme = "x"\n')
    assert [each.where.rpartition(":")[2] for each in problems(env)] == ["1", "2", "4", "5"]
