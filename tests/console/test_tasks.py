"""Long commands that run beside the console: progress, output, their end, and that nothing of them stays."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from console import progress
from console.cli import run
from console.progress import Pace, Step, step_words
from console.tasks import Task, Tasks, check
from console.tasks_text import pages
from engine.errors import NotFoundError, RefusedError, SpecError
from engine.progress import counted, counter, listening, stage
from tests.console.fake_client import FakeClient
from tests.console.test_app import console, here, hint, line, notes, press, quick, until, write
from tests.support.patience import PATIENCE_S

__all__ = ["quick"]


def started(code: str) -> Task:
    """A task that runs this instead of a command."""
    process = subprocess.Popen(
        [sys.executable, "-uc", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", errors="replace", start_new_session=True,
    )  # fmt: skip
    return Task("J-1", ("replay", "x"), process)


def wait(happened: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)


def trace(folder: Path, jobs: int) -> Path:
    path = folder / "some.swf"
    rows = [f"{n} {n * 10} 0 60 1 -1 -1 1 60 -1 1 1 1 1 1 -1 -1 -1" for n in range(1, jobs + 1)]
    path.write_text("\n".join(("; UnixStartTime: 0", *rows)) + "\n")
    return path


# --- counting


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
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    pace = Pace()
    assert pace.step("jobs", 0, 100).left_s is None
    now[0] = 101.0
    assert pace.step("jobs", 10, 100).left_s is None, "too early to tell"
    now[0] = 110.0
    assert pace.step("jobs", 25, 100).left_s == 30.0
    assert pace.step("jobs", 1, 100).left_s is None, "it began anew"
    assert step_words(Step("jobs", 25, 100, 30.0)) == "jobs 25 of 100, 25%, 30s left"
    assert step_words(Step("reading", 0, 0)) == "reading …"


def test_progress_as_json_is_read_back_and_nothing_else_is(capsys: pytest.CaptureFixture[str]) -> None:
    progress._json(Step("jobs", 1, 2, 0.5))
    told = capsys.readouterr().err
    assert progress.read(told) == Step("jobs", 1, 2, 0.5)
    assert progress.read('{"progress": 3}') is None
    assert progress.read("muster: 3 lines could not be read") is None


def test_on_a_terminal_the_line_is_gone_before_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    from console.guarded import guarded

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    with guarded(), progress.told(argparse.Namespace(progress="auto")):
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


# --- tasks


def test_a_task_has_progress_output_and_an_outcome() -> None:
    task = started(
        'import sys; print(\'{"progress": {"what": "jobs", "done": 1, "of": 4}}\', file=sys.stderr);'
        "print('done \\x1b[31m \\u202e'); print('z' * 9000); sys.exit(3)"
    )
    wait(lambda: task.state != "running")
    assert (task.state, task.code) == ("failed", 3)
    assert task.step == Step("jobs", 1, 4)
    whole = "\n".join(task.output)
    assert "done \\x1b[31m \\u202e" in whole
    assert "\x1b" not in whole
    assert max(map(len, task.output)) <= 2_000
    _, right = pages([task], task, 60, two=True)
    assert "failed, exit code 3" in "".join(text for line in right[0].lines for text, _ in line.spans)
    assert not task.stop(), "it is over"


def test_stopping_ends_the_whole_group_also_what_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.tasks.GRACE_S", 0.2)
    task = started(
        "import signal, subprocess, sys, time;"
        "signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(child.pid); time.sleep(60)"
    )
    wait(lambda: task.output)
    child = int(task.output[0])
    assert task.stop()
    wait(lambda: task.state == "stopped")
    wait(lambda: not alive(child))


def alive(pid: int) -> bool:
    """A zombie that nobody has collected counts as gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.thorough
def test_a_real_command_runs_at_low_priority_and_ends_with_whoever_started_it(tmp_path: Path) -> None:
    tasks = Tasks()
    task = tasks.start(["replay", str(trace(tmp_path, 3)), "--format", "swf", "--nodes", "4"])
    assert os.getpriority(os.PRIO_PROCESS, task._process.pid) == 10
    wait(lambda: task.state != "running", 60)
    assert (task.state, task.output[0].split()) == ("done", ["jobs", "3"])
    assert tasks.task("J-1") is task
    with pytest.raises(NotFoundError, match="no task 'J-9'"):
        tasks.task("J-9")


def test_what_the_shell_would_refuse_is_refused_before_anything_starts() -> None:
    for words, said in (
        (["replay"], "required"),
        (["replay", "f", "--format", "tape"], "there is no 'tape'"),
        (["replay", "f", "--format", "swf", "--live"], "needs a console of its own"),
        (["stop"], "no long command"),
        ([], "no long command"),
    ):
        with pytest.raises(SpecError, match=said):
            check(words)


def test_so_many_run_at_once_and_all_end_with_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks()
    sleeping = [started("import time; time.sleep(60)") for _ in range(2)]
    tasks._tasks = sleeping
    with pytest.raises(RefusedError, match="2 tasks run already"):
        tasks.start(["bench", "list"])
    tasks.close()
    wait(lambda: all(task.state == "stopped" for task in sleeping))


# --- on the page


async def test_a_task_survives_its_page_is_asked_about_at_the_end_and_stops_on_escape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = started("import time; print('begun'); time.sleep(60)")

    def start(self: Tasks, words: list[str]) -> Task:
        check(words)
        self._tasks.insert(0, task)
        return task

    monkeypatch.setattr(Tasks, "start", start)
    monkeypatch.setattr("console.screens.tasks.YOUNG_S", 1e9)
    async with console(FakeClient(), size=(140, 30)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "bench nothing")
        await press(pilot, "enter")
        await until(pilot, lambda: "there is no 'nothing'" in hint(pilot))
        await write(pilot, "bench kueue-baseline")
        await press(pilot, "enter")
        await until(pilot, lambda: here(pilot).NAME == "tasks")
        await until(pilot, lambda: "begun" in str(here(pilot)._right._lines))  # type: ignore[attr-defined]
        await press(pilot, "q")
        await until(pilot, lambda: here(pilot).NAME == "workloads")
        assert task.state == "running"
        await press(pilot, "ctrl+c")
        await until(pilot, lambda: "J-1 would end with the console" in notes(pilot))
        assert pilot.app.is_running
        await press(pilot, "colon")
        await write(pilot, "tasks")
        await press(pilot, "enter")
        await until(pilot, lambda: "J-1" in line(pilot, "title"))
        await press(pilot, "escape")
        await until(pilot, lambda: task.state == "stopped")
        assert here(pilot).NAME == "tasks"
        await until(pilot, lambda: "nothing runs" in line(pilot, "title"))


async def test_what_runs_ends_with_the_console() -> None:
    task = started("import time; time.sleep(60)")
    async with console(FakeClient()) as pilot:
        pilot.app.tasks._tasks.append(task)  # type: ignore[attr-defined]
    wait(lambda: task.state == "stopped")


def test_a_command_ends_when_its_starter_is_gone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from console.progress import end_with_starter as end; import time; end(); "
         "print('up', flush=True); time.sleep(60)"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"up\n"
    process.stdin.close()
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    process.stdout.close()
