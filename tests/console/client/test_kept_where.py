"""A cell that is kept in a database is never begun anew in a file by mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from console.cli.main import run
from console.client.launch import NOTE, note, noted
from console.forms.settings import cell_paths, load


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("MUSTER_DATABASE", raising=False)
    found = cell_paths(load({"cell": "prod"})).folder
    found.mkdir(parents=True)
    return found


@pytest.mark.parametrize("words", [["serve"], ["database", "show"]])
def test_without_its_database_it_is_refused_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    note(folder, "PostgreSQL muster@db/muster, schema muster_prod")
    assert run(["--cell", "prod", *words]) == 2
    told = capsys.readouterr().err
    assert "is stored in PostgreSQL muster@db/muster" in told
    assert "MUSTER_DATABASE" in told
    assert not (folder / "journal.db").exists()


def test_a_file_that_was_left_behind_is_not_taken_and_one_that_was_copied_back_is(folder: Path) -> None:
    journal = folder / "journal.db"
    assert noted(folder, journal) == ""
    journal.write_bytes(b"")
    note(folder, "PostgreSQL\x1b[2J")
    os.utime(folder / NOTE, (2_000, 2_000))
    os.utime(journal, (1_000, 1_000))
    assert noted(folder, journal).startswith("PostgreSQL")
    assert "\x1b" not in noted(folder, journal)
    os.utime(journal, (3_000, 3_000))
    assert noted(folder, journal) == ""
