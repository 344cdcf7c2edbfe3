"""The settings page: what is set and by what, and changes that leave the rest of the file as it was."""

from __future__ import annotations

import os
import stat
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.forms.setting_sources import (
    changed,
    find,
    literal,
    meanings,
    refuse_secret,
    settings_told,
    shown,
    subjects,
    write,
)
from console.forms.settings import ConsoleSettings, load
from console.tui.screens.settings import read
from console.views.settings import SettingChange
from engine.model.errors import RefusedError, SpecError
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, here, notes, press, quick, until
from tests.console.tui.test_app import write as write_bar

__all__ = ["quick"]
FILE = """# my own notes
cell = "lab"     # the small one
runbooks = [
    "/srv/a",  # ours
    "/srv/b",
]

speed = 60.0
"""


def told(folder: Path, text: str, flags: dict[str, object] | None = None, **env: str) -> dict[str, object]:
    path = folder / "muster.toml"
    path.write_text(text)
    found, problem = settings_told(flags or {}, {"MUSTER_CONFIG": str(path), **env})
    return {each.name: each for each in found} | {"problem": problem}


def test_every_setting_has_its_value_its_source_and_its_meaning(tmp_path: Path) -> None:
    found = told(tmp_path, FILE, {"cell": "prod"}, MUSTER_SPEED="2", MUSTER_CELL="other")
    names = [field.name for field in fields(ConsoleSettings)]
    assert [name for name in found if name != "problem"] == names
    cell, speed, theme = (found[name] for name in ("cell", "speed", "theme"))
    assert (cell.value, cell.source, cell.where) == ("prod", "flag", "--cell")
    assert cell.also == ("MUSTER_CELL", f"{tmp_path}/muster.toml:2")
    assert (speed.value, speed.source, speed.where) == (2.0, "environment", "MUSTER_SPEED")
    assert (theme.value, theme.source) == ("auto", "default")
    assert all(meanings()[name] for name in names), "a setting without a docstring says nothing to anybody"
    assert sorted(name for _, group in subjects() for name in group) == sorted(names)


def test_what_is_told_is_what_holds(tmp_path: Path) -> None:
    (tmp_path / "muster.toml").write_text(FILE)
    env = {"MUSTER_CONFIG": str(tmp_path / "muster.toml"), "MUSTER_READONLY": "1"}
    found, _ = settings_told({"operator": "ada"}, env)
    assert {each.name: each.value for each in found} == vars(load({"operator": "ada"}, env))


def test_what_is_wrong_is_said_where_it_is(tmp_path: Path) -> None:
    found = told(tmp_path, 'theme = "purple"\ncolour = 3\n', MUSTER_SPEED="fast")
    assert "Use one of: auto, dark" in found["theme"].problem
    assert found["theme"].value == "auto"
    assert "'speed' cannot be 'fast'" in found["speed"].problem
    assert "muster.toml:2: unknown key 'colour'" in str(found["problem"])
    assert "this is not a value" in str(told(tmp_path, "theme = \n")["problem"])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cell", "prod", FILE.replace('cell = "lab"     # the small one', 'cell = "prod"  # the small one')),
        ("cell", None, FILE.replace('cell = "lab"     # the small one\n', "")),
        ("theme", "light", FILE + 'theme = "light"\n'),
        ("speed", 2.5, FILE.replace("speed = 60.0", "speed = 2.5")),
        ("theme", None, FILE),
    ],
)
def test_a_change_leaves_comments_order_and_all_other_lines(key: str, value: object, expected: str) -> None:
    assert changed(FILE, key, value, "file") == expected  # type: ignore[arg-type]


def test_a_value_over_several_lines_is_replaced_whole() -> None:
    after = changed(FILE, "runbooks", ("/srv/c",), "file")
    assert after == FILE[: FILE.index("runbooks")] + 'runbooks = ["/srv/c"]\n' + FILE[FILE.index("\nspeed") :]


def test_a_key_goes_before_the_first_table_and_what_cannot_be_told_apart_is_refused() -> None:
    assert changed('cell = "a"\n[other]\nx = 1\n', "speed", 2.0, "f") == 'cell = "a"\nspeed = 2.0\n[other]\nx = 1\n'
    assert changed("cell = 'a'", "speed", 2.0, "f") == "cell = 'a'\nspeed = 2.0\n"
    assert find('# cell = "b"\n"cell" = "a"\n', "cell") == (1, 2)
    with pytest.raises(RefusedError, match="without other changes"):
        changed('a.cell = "x"\n', "a", "y", "f")
    with pytest.raises(SpecError, match="f:1:8: this is not a value"):
        changed("cell = \n", "speed", 1.0, "f")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.booleans())
def test_any_text_is_written_such_that_it_reads_the_same(text: str, listed: bool) -> None:
    import tomllib

    value = (text, text) if listed else text
    after = changed(FILE, "operator", value, "f")
    assert tomllib.loads(after)["operator"] == (list(value) if listed else value)
    assert changed(after, "operator", None, "f") == FILE
    assert literal(True) == "true"


def test_the_file_is_replaced_as_a_whole_and_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.toml", tmp_path / "sub" / "muster.toml"
    link.parent.mkdir()
    real.write_text(FILE)
    real.chmod(0o640)
    link.symlink_to(real)
    write(link, "theme", "light")
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert real.read_text() == FILE + 'theme = "light"\n'
    new = tmp_path / "new" / "muster.toml"
    write(new, "theme", "dark")
    assert new.read_text() == 'theme = "dark"\n'
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert os.listdir(new.parent) == ["muster.toml"], "nothing is left beside it"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change a file of another account")
def test_a_file_of_another_account_stays_theirs(tmp_path: Path) -> None:
    path = tmp_path / "muster.toml"
    path.write_text(FILE)
    os.chown(path, 65534, 65533)
    write(path, "theme", "light")
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65533)


def test_secrets_are_neither_kept_nor_shown() -> None:
    for secret in ("https://ada:hunter2@host/v1", "sk-proj-abcdefghijklmnopqrstuvwxyz123456"):
        with pytest.raises(SpecError, match="must not hold secrets"):
            refuse_secret("model_url", secret)
        assert "hunter2" not in shown(secret)
        assert "abcdefghij" not in shown(secret)
    refuse_secret("model_key_file", "/home/ada/.config/muster/model.key")
    with pytest.raises(SpecError, match="secrets are not kept in settings"):
        read("model_key=abc")


def test_what_stands_behind_settings_is_read() -> None:
    assert read("") is None
    assert read("theme=light") == SettingChange("theme", "light")
    assert read("-theme") == SettingChange("theme", None)
    assert read("keep_runs=10") == SettingChange("keep_runs", 10)
    assert read("runbooks=/a:/b") == SettingChange("runbooks", ("/a", "/b"))
    for wrong, said in (
        ("theme=purple", "Use one of: auto, dark"), ("them=dark", "Did you mean theme"), ("theme", "needs a value"),
        ("speed=fast", "Give a number"), ("linear=perhaps", "Give true or false"),
    ):  # fmt: skip
        with pytest.raises(SpecError, match=said):
            read(wrong)


@pytest.mark.thorough
async def test_a_change_is_made_for_the_session_or_written_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "muster.toml"
    path.write_text(FILE)
    monkeypatch.setenv("MUSTER_CONFIG", str(path))
    monkeypatch.delenv("NO_COLOR", raising=False)
    async with console(FakeClient(), size=(140, 44)) as pilot:

        async def ask(line: str) -> None:
            await press(pilot, "colon")
            await write_bar(pilot, line)
            await press(pilot, "enter")
            await until(pilot, lambda: here(pilot).NAME == "settings" and here(pilot).detail is not None)  # type: ignore[attr-defined]
            await pilot.app.workers.wait_for_complete()
            await pilot.pause()

        await ask("settings theme=light")
        view = here(pilot)._left  # type: ignore[attr-defined]
        assert view.link == "session:"
        await press(pilot, "enter")
        await until(pilot, lambda: pilot.app.theme == "muster-light")
        assert path.read_text() == FILE
        await ask("settings theme=dark")
        view = here(pilot)._left  # type: ignore[attr-defined]
        await press(pilot, "down")
        assert view.link == "file:"
        await press(pilot, "enter")
        await until(pilot, lambda: path.read_text() == FILE + 'theme = "dark"\n')
        await until(pilot, lambda: pilot.app.theme == "muster-dark")
        await ask("settings model_url=https://ada:hunter2@host/v1")
        await until(pilot, lambda: "must not hold secrets" in notes(pilot))
        assert "hunter2" not in path.read_text()
