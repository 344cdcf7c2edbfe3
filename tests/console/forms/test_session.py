"""What the console keeps of a person: choices that several consoles share, and the place of one that was lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from console.forms.session_state import SessionState

ROOT = Path(__file__).parents[3]


def test_choices_outlive_the_console_and_are_its_persons_alone(tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    SessionState(folder).remember("columns:workloads", ["id", "gpu"])
    assert SessionState(folder).recall("columns:workloads") == ["id", "gpu"]
    assert SessionState(folder).recall("columns:nodes") is None
    assert (folder / "console.json").stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0


def test_two_consoles_keep_each_others_choices(tmp_path: Path) -> None:
    one, other = SessionState(tmp_path), SessionState(tmp_path)
    one.alter("bookmarks", lambda kept: {**(kept or {}), "mine": "workloads state:queued"})
    other.alter("bookmarks", lambda kept: {**(kept or {}), "theirs": "nodes state:down"})
    one.remember("theme", "light")
    kept = SessionState(tmp_path)
    assert kept.recall("bookmarks") == {"mine": "workloads state:queued", "theirs": "nodes state:down"}
    assert kept.recall("theme") == "light"
    assert one.recall("bookmarks") == kept.recall("bookmarks"), "what was changed elsewhere is known after a change"


def test_a_file_that_cannot_be_understood_is_named_and_set_aside(tmp_path: Path) -> None:
    (tmp_path / "console.json").write_text('{"theme": "li')
    session = SessionState(tmp_path)
    assert "console.json cannot be read" in session.problems[0]
    assert "console.bad" in session.problems[0]
    assert (tmp_path / "console.bad").read_text() == '{"theme": "li', "it can still be looked at"
    session.remember("theme", "dark")
    assert SessionState(tmp_path).recall("theme") == "dark"


def test_a_folder_that_cannot_be_written_is_told_and_choices_hold_until_the_end(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    session = SessionState(blocked / "cell")
    session.remember("theme", "dark")
    session.note_place({"trail": []})
    assert session.recall("theme") == "dark"
    assert any("cannot be restored" in problem for problem in session.problems)


def test_a_clean_end_leaves_nothing_and_a_living_console_is_not_taken_over(tmp_path: Path) -> None:
    living = SessionState(tmp_path)
    living.note_place({"trail": [["nodes", "", {}]]})
    assert SessionState(tmp_path).lost() is None, "its console lives"
    living.leave()
    living.note_place({"trail": [["pools", "", {}]]})
    assert SessionState(tmp_path).lost() is None
    assert list(tmp_path.glob("console-at-*")) == []


def test_where_a_killed_console_was_is_taken_over_once(tmp_path: Path) -> None:
    code = f"""
        import os, signal
        from pathlib import Path
        from console.forms.session_state import SessionState
        session = SessionState(Path({str(tmp_path)!r}))
        session.note_place({{"trail": [["nodes", "state:down and more words", {{}}]]}})
        session.note_place({{"trail": [["pools", "", {{}}]]}})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    (file,) = tmp_path.glob("console-at-*")
    assert file.stat().st_mode & 0o077 == 0
    assert json.loads(file.read_text()) == {"trail": [["pools", "", {}]]}, "nothing of the longer one is left"
    assert SessionState(tmp_path).lost() == {"trail": [["pools", "", {}]]}
    assert SessionState(tmp_path).lost() is None


def test_a_place_of_long_ago_or_of_nobody_is_not_gone_back_to(tmp_path: Path) -> None:
    old, broken = tmp_path / "console-at-1-a.json", tmp_path / "console-at-2-b.json"
    old.write_text('{"trail": []}')
    os.utime(old, (1_000, 1_000))
    broken.write_text("\x00\x00")
    session = SessionState(tmp_path)
    assert session.lost() is None
    assert any("console-at-2-b" in problem for problem in session.problems)
    assert list(tmp_path.glob("*.json")) == []


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    session = SessionState()
    session.remember("theme", "dark")
    session.note_place({"trail": []})
    assert session.recall("theme") == "dark"
    assert session.lost() is None
