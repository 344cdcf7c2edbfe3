"""`muster cell actions`: the catalogue as people read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from console.actions.registry import ACTIONS
from console.cli.main import parser, run
from runbooks.actions.catalogue import CATALOG

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "actions.md"


def test_every_action_has_a_command_in_the_shell_and_a_row_of_the_console() -> None:
    spelled = dict(parser().commands())
    for action in CATALOG.values():
        words = tuple(action.shell.split())
        assert spelled[words].get_default("action") == action.word
        assert spelled["proposal", "new", *words].get_default("action") == action.word
    assert {action.word for action in CATALOG.values()} <= {name for row in ACTIONS for name in row.commands}


def test_every_action_is_told_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cell", "actions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    usages = [line for line in lines if line.startswith("muster ")]
    assert all(
        f"{line} ".startswith(f"muster {action.shell} ") for line, action in zip(usages, CATALOG.values(), strict=True)
    )
    assert not any("{" in line for line in lines)


def test_a_script_gets_all_that_is_declared(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cell", "actions", "--json"]) == 0
    told = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert told["drain"]["tier"] == "T2"
    assert told["set_quota"]["parameters"] == ["queue"]
    assert all(line["timeout_ms"] > 0 and line["inverse"] and line["verified"] for line in told.values())


def test_the_table_of_the_manual_is_that_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cell", "actions", "--markdown"]) == 0
    assert capsys.readouterr().out in MANUAL.read_text()
