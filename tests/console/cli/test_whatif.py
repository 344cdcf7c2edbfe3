"""What-ifs from the shell and on the console: real edits, a real engine, a real fork."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from console.cli.main import run
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui.app import MusterApp
from console.tui.screens.forecast import WhatIfPane
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.twin_queries import Outlook
from tests.console.tui.test_app import line, press, until
from tests.support.gates import gate_of
from tests.support.served import gpu_job, running_loop, served_on_unix

Shell = Callable[..., int]


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    """A small cell with one running and one waiting workload."""
    with running_loop() as running:
        specs = (gpu_job("first", tasks=4), gpu_job("second", tasks=2))
        running.call(lambda engine: engine.command(Submit(workloads=specs)))
        yield running


@pytest.fixture
def shell(loop: EngineLoop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shell]:
    monkeypatch.setenv("MUSTER_CONFIG", str(tmp_path / "none.toml"))
    with served_on_unix(loop) as path:
        yield lambda *arguments: run([*arguments, "--connect", str(path)])


def test_a_what_if_shows_before_and_after(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("whatif", "--edit", "preempt first", "--horizon", "4h", "--seeds", "2", "--watch", "second") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "what if   preempt first"
    assert "Evictions" in out
    assert "second" in out


def test_a_what_if_as_json_is_the_answer(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    edits = ("--edit", "drain g0 at +1h", "--edit", "weight a 3")
    assert shell("whatif", *edits, "--horizon", "2h", "--seeds", "1", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["edits"] == ["drain g0 at +1h", "weight a 3"]
    assert answer["horizon_ms"] == 2 * 3_600_000


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("whatif", "--edit", "drian g0"), 2, "Did you mean: drain"),
        (("whatif", "--edit", "drain nowhere", "--edit", "weight nobody 2"), 2, "nobody"),
        (("whatif", "--edit", "drain g0", "--horizon", "9d"), 2, "--horizon"),
        (("whatif", "--edit", "drain g0", "--seeds", "500"), 2, "--seeds"),
        (("eta",), 2, "--score"),
        (("eta", "nobody"), 3, "nobody"),
        (("eta", "first"), 4, "running"),
    ],
)
def test_what_cannot_be_asked_is_told(
    shell: Shell, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, told: str
) -> None:
    assert shell(*arguments) == code
    assert told in capsys.readouterr().err


@pytest.mark.thorough
def test_eta_tells_when_and_why(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    assert shell("eta", "second", "--seeds", "3") == 0
    out = capsys.readouterr().out
    assert out.startswith("second is queued")
    assert "first" in out
    assert shell("eta", "--score") == 0
    assert "no scores yet" in capsys.readouterr().out


def test_a_dry_run_tells_and_submits_nothing(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    before = loop.engine.version
    asked = ("--queue", "a", "--gpus-per-task", "8", "--estimate", "1h", "--id", "probe")
    assert shell("submit", *asked, "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.startswith("probe")
    assert "nothing was submitted" in out
    assert loop.engine.version == before


async def test_a_what_if_is_composed_run_and_compared_by_keys(loop: EngineLoop) -> None:
    client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
    app = MusterApp(lambda: client, start="nodes", title="test")
    async with app.run_test(size=(140, 40)) as pilot:
        await until(pilot, lambda: "nodes" in line(pilot, "title") and app.context().targets)
        await press(pilot, "w")
        await until(pilot, lambda: app.bars.bar is not None and app.bars.early is None)
        await press(pilot, "enter")
        await until(pilot, lambda: isinstance(app.navigator.current, WhatIfPane))
        pane = app.navigator.current
        assert isinstance(pane, WhatIfPane)
        await until(pilot, lambda: pane.detail is not None)
        assert len(pane.edits) == 1

        await press(pilot, "w")
        await until(pilot, lambda: pane.detail.shown is not None and pane.detail.shown.state == "done")
        assert isinstance(pane.detail.shown.answer, Outlook)

        await press(pilot, "x")
        await until(pilot, lambda: not pane.edits)
        app.steering.run("whatif weight a 3")
        await press(pilot, "w")
        await until(pilot, lambda: len(pane.detail.runs) == 2 and pane.detail.shown.state == "done")
        await press(pilot, "up", "up", "up", "down", "down")
        await press(pilot, "b")
        await until(pilot, lambda: pane.detail.beside is not None)
    assert loop.engine.workload("first").state == "running"
