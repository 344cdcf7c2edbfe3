"""`muster recommend`, `explain` and `forecast` against a live engine, and what becomes of recommendations over time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import cast, get_args

import msgspec
import pytest
from textual.pilot import Pilot

from console.advisor import Advisor
from console.app import MusterApp
from console.cli import ACTIONS, run
from console.local_client import LocalClient
from console.screens.recommendations import RecommendationsPane
from engine.commands import Cordon, Submit
from engine.loop import EngineLoop
from recommender.suggest import Action
from runbooks.gate import Gate
from runbooks.plan import ActionName
from tests.console.test_app import press, until
from tests.support.served import HOUR_MS, gpu_job, running_loop, served_on_unix

Shell = Callable[..., int]


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def shell(loop: EngineLoop) -> Iterator[Shell]:
    """Runs a command against a small cell."""
    with served_on_unix(loop) as path:
        yield lambda *words: run([words[0], "--connect", str(path), *words[1:]])


def forget_two(loop: EngineLoop) -> None:
    loop.call(lambda engine: engine.command(Cordon(ids=("c0", "c1"))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))


def test_every_action_that_can_be_suggested_is_one_that_the_gate_and_the_shell_know() -> None:
    suggested = set(get_args(Action)) - {"notify"}
    assert suggested == set(get_args(ActionName))
    assert {action.replace("_", "-") for action in suggested} <= set(ACTIONS)


def test_what_is_found_comes_with_the_command_that_proposes_it(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell("recommend") == 0
    assert "nothing found" in capsys.readouterr().out
    forget_two(loop)
    assert shell("recommend") == 0
    out = capsys.readouterr().out
    assert "2 cordoned nodes are empty" in out
    assert "time cordoned, at least: 2.0 h" in out
    assert max(len(line) for line in out.splitlines() if not line.startswith("   muster ")) <= 80
    [words] = [line.split() for line in out.splitlines() if line.startswith("   muster ")]
    assert words[:2] == ["muster", "uncordon"]
    assert run([*words[1:], "--dry-run"]) == 0
    assert "c0" in capsys.readouterr().out
    assert shell("recommend", "--json") == 0
    assert json.loads(capsys.readouterr().out)["open"][0]["suggestion"]["targets"] == ["c0", "c1"]


def test_an_explanation_has_all_it_rests_on(shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]) -> None:
    forget_two(loop)
    assert shell("recommend", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["open"]
    assert shell("explain", found["suggestion"]["id"].upper()) == 0
    out = capsys.readouterr().out
    for told in (
        "capacity out of use",
        "No suggestion if",
        "Do nothing",
        "none of its kind has come due",
        "on the twin",
    ):
        assert told in out
    assert shell("explain", "R-zzzzz") == 3


def test_work_past_its_likes_is_for_its_owners_and_nothing_is_proposed(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tuple(gpu_job(f"train-{number}") for number in range(40))
    loop.call(lambda engine: engine.command(Submit(workloads=jobs)))
    loop.call(lambda engine: engine.advance(engine.now_ms + 15 * HOUR_MS))
    late = msgspec.structs.replace(gpu_job("train-late"), simulated_runtime_ms=100 * HOUR_MS)
    loop.call(lambda engine: engine.command(Submit(workloads=(late,))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 9 * HOUR_MS))
    assert shell("recommend") == 0
    out = capsys.readouterr().out
    assert "notify those who look after train-late; there is nothing to propose" in " ".join(out.split())
    assert "   muster" not in out


def test_a_rejected_one_is_set_aside_with_who_and_why(
    shell: Shell, loop: EngineLoop, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_two(loop)
    assert shell("recommend", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["open"]
    rec_id = found["suggestion"]["id"]
    assert shell("recommend", "--reject", rec_id, "--reason", "firmware\x1bupdate") == 2
    assert shell("recommend", "--reject", rec_id, "--reason", "firmware update") == 0
    capsys.readouterr()
    assert shell("recommend") == 0
    out = capsys.readouterr().out
    assert "nothing found" in out
    assert "because firmware update" in " ".join(out.split())
    loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
    loop.call(lambda engine: engine.advance(engine.now_ms + 2 * HOUR_MS))
    assert shell("recommend") == 0
    again = " ".join(capsys.readouterr().out.split())
    assert "was rejected on" in again
    assert "g0" in again


# -- on the console ---------------------------------------------------------------------------------------------------


def page(pilot: Pilot[None]) -> str:
    pane = cast("MusterApp", pilot.app).navigator.current
    if not isinstance(pane, RecommendationsPane):
        return ""
    views = (pane._left, pane._right)
    return "\n".join("".join(text for text, _ in line.spans) for view in views for line in view._lines)


async def test_a_person_proposes_and_rejects_on_the_page(loop: EngineLoop) -> None:
    forget_two(loop)
    client = LocalClient(loop, Gate(loop.engine), Advisor(loop), who="ada")
    app = MusterApp(lambda: client, start="recommendations", title="test")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "2 cordoned nodes are empty" in page(pilot))
        await until(pilot, lambda: "No suggestion if" in page(pilot))
        await press(pilot, "N")
        await press(pilot, *"broken", "enter")
        await until(pilot, lambda: "because broken" in page(pilot))
        await press(pilot, "A")
        await until(pilot, lambda: len(app.screen_stack) > 1)
        await pilot.pause(0.5)
        await press(pilot, "y")
        await until(pilot, lambda: loop.engine.node("c0").state == "ready")
        await until(pilot, lambda: "Followed up" in page(pilot))


async def test_a_session_that_only_reads_offers_neither(loop: EngineLoop) -> None:
    forget_two(loop)
    client = LocalClient(loop, Gate(loop.engine), Advisor(loop), read_only=True)
    app = MusterApp(lambda: client, start="recommendations", title="test", read_only=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "2 cordoned nodes are empty" in page(pilot))
        assert not {"act_on", "reject"} & set(app.actions)
        await press(pilot, "A", "N")
        assert len(app.screen_stack) == 1
