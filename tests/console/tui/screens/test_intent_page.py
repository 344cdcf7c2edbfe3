"""What the console and the shell say of an intent in doubt, and what a person can do about it there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from console.cli.main import run
from console.views.external_scheduler import detail_columns, detail_lines
from engine.model.external_cells import FarLook
from tests.console import fake_far
from tests.console.fake_client import NOW_MS, FakeClient
from tests.console.tui.test_app import console, here, press, quick, until  # noqa: F401


def far() -> FakeClient:
    return fake_far.staged_far(FakeClient())  # type: ignore[no-any-return]


def text_of(width: int, **changes: Any) -> str:
    left, right = detail_columns(replace(fake_far.intent(17), **changes), width)
    lines = [line for section in (*left, *right) for line in (section.title, *section.lines)]
    told = [each if isinstance(each, str) else "".join(text for text, _ in each.spans) for each in lines]
    assert all(len(each) <= width + 2 for each in told), told
    return "\n".join(told)


@pytest.mark.parametrize("width", [38, 58, 118])
def test_it_says_what_was_wanted_what_slurm_shows_and_what_can_be_done(width: int) -> None:
    told = " ".join(text_of(width).replace("┊", "").split())
    for part in (
        "submit evaluate", "in doubt", "job 4690", "carries its token", "without slurmdbd",
        "this does not show whether it was done", "so it may have lost it", "muster intent retry i17",
        "sends it again with the same token", "settle i17 undone", "the name of the workload is free again",
    ):  # fmt: skip
        assert part in told


def test_a_cluster_that_is_away_and_words_of_strangers() -> None:
    look = FarLook(at_ms=NOW_MS, error="nobody answers at \x1b]0;x\x07 10.0.0.1")
    assert "does not answer: nobody answers at" in text_of(58, far=look)
    assert "no address of the cluster" in text_of(58, far=None)
    hostile = FarLook(at_ms=NOW_MS, lines=("job 7: \x1b[2Jx [red]",), shows="done", since_ms=1, since_by="statistics")
    told = text_of(58, far=hostile)
    assert "\x1b" not in told
    assert "this shows that it was done" in told
    assert "not restarted since" in told.replace("\n", " ")
    strange = "\x1b[2J\u202e[red]"
    view = replace(fake_far.intent(3).view, text=strange, subjects=(strange,), token=strange, phase=strange)
    others = {"proposal": strange, "by": strange, "agreed": (strange,), "wants": (strange,), "view": view}
    told = "\n".join(detail_lines(replace(fake_far.intent(3), **others)))
    assert not {"\x1b", "\u202e"} & set(told)
    assert "Needs a person" not in text_of(58, view=replace(fake_far.intent(17).view, phase="done"))


def test_an_act_is_told_with_who_asked_and_agreed() -> None:
    told = "\n".join(detail_lines(fake_far.intent(3)))
    assert "by alice" in told
    assert "P-1, approved by bob" in told
    assert "proposes the same action again" in told


@pytest.mark.usefixtures("quick")
async def test_a_doubt_is_opened_from_the_list_and_settled_with_what_was_found() -> None:
    client = far()
    async with console(client, "intents") as pilot:
        await until(pilot, lambda: "in doubt" in here(pilot).note)
        pane = here(pilot)
        for _ in range(8):
            if any(target.state == "in doubt" for target in pane.targets):
                break
            await press(pilot, "j")
        assert [target.id for target in pane.targets] == ["i17"]
        await press(pilot, "enter")
        await until(pilot, lambda: here(pilot).NAME == "intent" and here(pilot).detail is not None)
        await press(pilot, "N")
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        await pilot.press(*"short", "enter", "y")
        assert not client.deeds, "what was found is not said yet"
        await pilot.press(*" of it all", "enter")
        await pilot.pause(0.1)
        await pilot.press("G", "y")
        await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
        await until(pilot, lambda: client.deeds == [("intent undone", "i17")])


async def test_an_act_is_proposed_anew() -> None:
    client = far()
    async with console(client, "intents") as pilot:
        pilot.app.steering.run("intent i3")  # type: ignore[attr-defined]
        await until(pilot, lambda: here(pilot).NAME == "intent" and here(pilot).detail is not None)
        await press(pilot, "R")
        await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
        assert client.proposed == [fake_far.intent(3).act]


def test_the_shell_shows_retries_and_settles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = far()
    monkeypatch.setattr(client, "close", lambda: None, raising=False)
    monkeypatch.setattr("console.commands.external_scheduler.connect", lambda _arguments: client)
    assert run(["intent", "show", "i17"]) == 1
    assert "this does not show whether it was done" in capsys.readouterr().out
    assert run(["intent", "show", "17", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["view"]["phase"] == "in doubt"
    assert run(["intent", "settle", "i17", "undone", "--reason", "it never came"]) != 0
    assert not client.deeds, "nobody could be asked"
    assert run(["intent", "settle", "i17", "undone", "--reason", "it never came", "--yes"]) == 0
    assert run(["intent", "retry", "i17", "--reason", "it never came", "--yes"]) == 0
    assert client.deeds == [("intent undone", "i17"), ("intent retry", "i17")]
    assert capsys.readouterr().out.splitlines()[-1] == "i99"
    with pytest.raises(SystemExit):
        run(["intent", "show", "x"])
