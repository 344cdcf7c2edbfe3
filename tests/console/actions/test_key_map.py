"""Keys of a settings file: a wrong one is named with its place, and then none of them holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.actions.key_map import DEFAULT, KeyMap, key_map, rows
from console.actions.registry import ACTIONS
from console.forms.settings import GivenKeys, given_keys
from engine.model.errors import SpecError


def read(folder: Path, text: str) -> KeyMap:
    path = folder / "muster.toml"
    path.write_text(text)
    return key_map(given_keys({"MUSTER_CONFIG": str(path)}))


def test_the_registry_itself_has_no_key_twice_on_a_page() -> None:
    assert key_map({}) == DEFAULT


def test_an_action_gets_the_keys_it_is_given_and_no_other_changes(tmp_path: Path) -> None:
    bound = read(
        tmp_path, '[keys]\ndrain = "ctrl+d"\nset-freeze = ["ctrl+f", "F6"]\noverview = "g z"\nback = "ctrl+b"\n'
    )
    assert bound.problems == ()
    changed = {row.id: (row.keys, row.jump) for row, was in zip(rows(bound.bound), ACTIONS, strict=True) if row != was}
    assert changed == {
        "drain": (("ctrl+d",), ""),
        "set_freeze": (("ctrl+f", "f6"), ""),
        "overview": (("1",), "z"),
        "back": (("ctrl+b", "escape"), ""),
    }, "Esc goes back whatever else does"


def test_an_action_may_have_no_key_at_all(tmp_path: Path) -> None:
    bound = read(tmp_path, "[keys]\nbreak-glass = []\n")
    assert next(row.keys for row in rows(bound.bound) if row.id == "break_glass") == ()


WRONG: dict[str, tuple[str, str]] = {
    "no action": ('drian = "D"', "there is no action 'drian'. Did you mean drain?"),
    "no key": ('drain = "ctlr+d"', "there is no key 'ctlr+d'. Did you mean ctrl+d?"),
    "two keys at once": ('drain = "DD"', "there is no key 'DD'. A key is a character"),
    "no text": ("drain = 7", "'drain' is 7. Give a key"),
    "reserved": ('filter = "enter"', "'enter' opens on every page. Give 'filter' another key"),
    "leaves": ('copy = "ctrl+c"', "'ctrl+c' quits on every page"),
    "moves": ('copy = "j"', "'j' moves on every page"),
    "arrives as another": ('copy = "ctrl+i"', "a terminal sends ctrl+i as tab"),
    "acts by a small letter": ('drain = "b"', "'drain' acts on the cluster, and 'b' is too easily hit"),
    "acts by a digit": ('approve = "5"', "'approve' acts on the cluster, and '5' is too easily hit"),
    "is taken": ('export = "c"', "'c' would be both 'export' and 'columns' on the page queues"),
    "jump is taken": ('nodes = "g w"', "'g w' would be both 'nodes' and 'workloads' on every page"),
    "jump to no page": ('drain = "g z"', "g z leads to a page, and 'drain' is none"),
    "jump that is not a page": ('nodes = "g g"', "gg goes to the first row on every page"),
    "needs values": ('set-quota = "Q"', "'set_quota' needs values, which no key can give. Type :set-quota"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_key_names_file_line_and_remedy_and_none_holds(tmp_path: Path, wrong: str) -> None:
    line, problem = WRONG[wrong]
    bound = read(tmp_path, f'theme = "dark"\n[keys]\nfold = "f9"\n{line}\n')
    assert bound.bound == {}, "half a key map could put an action where another is expected"
    [error] = bound.problems
    assert str(error).startswith(f"{tmp_path}/muster.toml:4: {problem}")
    assert error.remedy


def test_keys_may_change_places_and_a_clash_of_two_lines_names_both(tmp_path: Path) -> None:
    assert read(tmp_path, '[keys]\nsort = "c"\ncolumns = "s"\n').problems == ()
    [error] = read(tmp_path, '[keys]\nsort = "f9"\n\ncolumns = "f9"\n').problems
    assert str(error).startswith(
        f"{tmp_path}/muster.toml:4: 'f9' would be both 'columns' and 'sort' (bound at {tmp_path}/muster.toml:2)"
    )


def test_one_action_under_two_spellings_is_told() -> None:
    twice = {"set-freeze": GivenKeys("F6", "f:1"), "set_freeze": GivenKeys("F7", "f:2")}
    assert [str(each) for each in key_map(twice).problems] == [
        "f:2: 'set_freeze' is bound at f:1 too. Leave one line out"
    ]


def test_keys_that_are_no_table_are_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"muster\.toml:1: 'keys' is a value, and must be a table. Write \[keys\]"):
        read(tmp_path, 'keys = "vim"\n')
