"""How far a long command is: told to people and programs, and gone before the result."""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from console.cli.main import run
from console.text import progress_line
from console.text.progress_line import ProgressStep, TimeLeft, step_words
from engine.traces.progress import counted, counter, listening, stage
from tests.support.patience import PATIENCE_S


def trace(folder: Path, jobs: int) -> Path:
    path = folder / "some.swf"
    rows = [f"{n} {n * 10} 0 60 1 -1 -1 1 60 -1 1 1 1 1 1 -1 -1 -1" for n in range(1, jobs + 1)]
    path.write_text("\n".join(("; UnixStartTime: 0", *rows)) + "\n")
    return path


def test_loops_tell_whoever_listens_and_nobody_else() -> None:
    items = [1, 2, 3]
    assert counted(items, "items", 3) is items
    assert counter("items", 3) is None
    heard: list[tuple[str, int, int]] = []
    with listening(lambda *step: heard.append(step)):
        stage("reading")
        assert list(counted(items, "items", 3)) == items
        tell = counter("more", 9)
        assert tell is not None
        tell(4)
    assert (heard[0], heard[1], heard[-2], heard[-1]) == (
        ("reading", 0, 0), ("items", 0, 3), ("items", 3, 3), ("more", 4, 9),
    )  # fmt: skip
    assert counted(items, "items", 3) is items


def test_the_time_left_is_told_once_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_line.time, "perf_counter", lambda: now[0])
    pace = TimeLeft()
    assert pace.step("jobs", 0, 100).left_s is None
    now[0] = 101.0
    assert pace.step("jobs", 10, 100).left_s is None, "too early to tell"
    now[0] = 110.0
    assert pace.step("jobs", 25, 100).left_s == 30.0
    assert pace.step("jobs", 1, 100).left_s is None, "it began anew"
    assert step_words(ProgressStep("jobs", 25, 100, 30.0)) == "jobs 25 of 100, 25%, 30s left"
    assert step_words(ProgressStep("reading", 0, 0)) == "reading …"


def test_programs_are_told_in_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    progress_line._json(ProgressStep("jobs", 1, 2, 0.5))
    told = capsys.readouterr().err
    assert json.loads(told) == {"progress": {"what": "jobs", "done": 1, "of": 2, "left_s": 0.5}}
    assert told.count("\n") == 1


def test_on_a_terminal_the_line_is_gone_before_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from console.text.guarded_streams import guarded

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    with guarded(), progress_line.told(argparse.Namespace(progress="auto")):
        stage("reading")
        print("figures 7")
    assert out.getvalue() == "\r\x1b[Kreading …\r\x1b[Kfigures 7\n"


@pytest.mark.thorough
def test_a_replay_tells_programs_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path, 30)
    code = run(["replay", str(path), "--format", "swf", "--nodes", "4", "--json"])
    plain = capsys.readouterr()
    assert (code, plain.err) == (0, "")
    with listening(lambda *step: heard.append(step)):
        heard: list[tuple[str, int, int]] = []
        assert run(["replay", str(path), "--format", "swf", "--nodes", "4", "--json"]) == 0
    assert ("jobs", 0, 30) in heard
    again, first = json.loads(capsys.readouterr().out), json.loads(plain.out)
    assert {**again, "wall_s": 0} == {**first, "wall_s": 0}, "counting changes nothing"


def test_a_command_ends_when_its_starter_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from console.text.progress_line import end_with_starter as end; import time; end(); "
         "print('up', flush=True); time.sleep(60)"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"up\n"
    process.stdin.close()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    process.stdout.close()
