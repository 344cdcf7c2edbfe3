"""The `:` bar: what it offers, what it remembers, and where it points when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual import events

from console.actions.line_completion import CompletionRequest, complete_line, paths
from console.actions.registry import ACTIONS
from console.forms.session_state import SessionState
from console.tui.input_bars import MAX_LENGTH, MAX_LINES, kept_lines
from engine.model.errors import UnreachableError
from tests.console.fake_client import FakeClient
from tests.console.tui.test_app import console, hint, press, quick, until, write

__all__ = ["quick"]  # the fixture of short pauses


@pytest.mark.parametrize(
    ("line", "found", "wanted"),
    [
        ("wo", ["workloads", "workload"], None),
        ("w", ["workloads", "whatif", "withdraw", "workload", "w", "why"], None),
        ("wl-00", [], CompletionRequest("wl-00")),
        ("theme con", ["contrast"], None),
        ("workload wl-", [], CompletionRequest("wl-", ("workload",))),
        ("cancel wl-1 wl-", [], CompletionRequest("wl-", ("workload",))),
        ("drain node-", [], CompletionRequest("node-", ("node",))),
        ("hold-queue res", [], CompletionRequest("res", ("queue",))),
        ("approve P-", [], CompletionRequest("P-", ("proposal",))),
        ("open x", [], CompletionRequest("x")),
        ("move wl-1 --to res", [], CompletionRequest("res", ("queue",))),
        ("whatif dr", ["drain"], None),
        ("whatif drain a,b", [], CompletionRequest("b", ("node",), "a,")),
        ("whatif submit ~/wo", [], CompletionRequest("~/wo", files=True)),
        ("export csv /tmp/x", [], CompletionRequest("/tmp/x", files=True)),
        ("forget st", ["stuck"], None),
        ("stu", ["stuck"], CompletionRequest("stu")),
        ("wizardry x", [], None),
    ],
)
def test_what_a_line_could_become(line: str, found: list[str], wanted: CompletionRequest | None) -> None:
    offers, asked = complete_line(line, len(line), ACTIONS, names=["stuck"])
    assert [each for each in offers if each in found] == found
    assert bool(offers) == bool(found)
    assert asked == wanted


def test_files_and_folders_are_offered_by_how_their_path_begins(tmp_path: Path) -> None:
    (tmp_path / "work.yaml").write_text("")
    (tmp_path / "work folder").mkdir()
    (tmp_path / ".work").write_text("")
    begun = f"{tmp_path}/wo"
    assert paths(CompletionRequest(begun, files=True)) == [f'"{tmp_path}/work folder/"', f"{tmp_path}/work.yaml"]
    assert paths(CompletionRequest(f"{tmp_path}/.w", files=True)) == [f"{tmp_path}/.work"]
    assert paths(CompletionRequest("/nowhere/at/all/x", files=True)) == []
    assert paths(CompletionRequest("~nobody-of-that-name/x", files=True)) == []


def test_lines_are_kept_once_bounded_and_never_what_looks_secret() -> None:
    kept = kept_lines(["a", "b"], "a")
    assert kept == ["b", "a"]
    for secret in ("notify x --text 'token abc'", "freeze x --reason " + "A" * 40, "a" * (MAX_LENGTH + 1)):
        assert kept_lines(kept, secret) == kept
    assert len(kept_lines([str(number) for number in range(2 * MAX_LINES)], "one more")) == MAX_LINES
    assert kept_lines({"not": "lines"}, "a") == ["a"]
    assert kept_lines([1, "a", None]) == ["a"]


async def test_ids_come_from_the_engine_while_one_types_on() -> None:
    client = FakeClient(100)
    async with console(client) as pilot:
        await press(pilot, "colon")
        await write(pilot, "workload wl-00001")
        await until(pilot, lambda: "wl-000011" in hint(pilot))
        await press(pilot, "tab", "tab")
        assert "[wl-00001" in hint(pilot), "the chosen one is marked by more than its tone"
        await press(pilot, "enter")
        await until(pilot, lambda: len(pilot.app.navigator.stack) == 2)  # type: ignore[attr-defined]
        assert client.found == ["wl-00001"], "one question, and none for what Tab put there"


@pytest.mark.thorough
async def test_an_engine_that_is_away_offers_nothing_and_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(100)
    asked: list[object] = []

    def away(*what: object) -> None:
        asked.append(what)
        raise UnreachableError("gone", "")

    async with console(client) as pilot:
        monkeypatch.setattr(client, "find", away)
        await press(pilot, "colon")
        await write(pilot, "workload wl-0")
        await until(pilot, lambda: asked)
        await write(pilot, "nodes")
        await press(pilot, "enter")
        await until(pilot, lambda: pilot.app.navigator.current.NAME == "nodes")  # type: ignore[attr-defined]


async def test_earlier_lines_are_found_by_what_is_typed_also_by_the_next_console(tmp_path: Path) -> None:
    client = FakeClient(100)
    SessionState(tmp_path).remember("lines", ["nodes state:down", "queues", "workloads state:held"])
    async with console(client) as pilot:
        pilot.app.session = SessionState(tmp_path)  # type: ignore[attr-defined]
        bar = pilot.app.bars  # type: ignore[attr-defined]
        await press(pilot, "colon")
        await write(pilot, "state")
        shown = []
        for key in ("up", "ctrl+r", "up", "down", "down"):
            await press(pilot, key)
            shown.append(bar.bar._input.value)
        assert shown == [
            "workloads state:held", "nodes state:down", "nodes state:down", "workloads state:held", "state",
        ]  # fmt: skip
        await write(pilot, "overview")
        await press(pilot, "enter")
        await until(pilot, lambda: SessionState(tmp_path).recall("lines")[-1] == "overview")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("wrokloads", "^^^^^^^^^ there is no command 'wrokloads'. Did you mean :workloads?"),
        ("help now", "^^^ :help takes no arguments"),
        ("set-quota research/train --weight x", " " * 30 + "    ^ "),
        ("theme dakr", " " * 6 + "^^^^ there is no theme 'dakr'"),
    ],
)
async def test_errors_point_at_the_place(typed: str, says: str) -> None:
    async with console(FakeClient(20), size=(160, 30)) as pilot:
        await press(pilot, "colon")
        await write(pilot, typed)
        await press(pilot, "enter")
        assert says in hint(pilot)


@pytest.mark.parametrize("how", ["pasted", "typed", "typed while it opens"])
@pytest.mark.parametrize("line", ["node node-0", "drain node-00009 node-0"])
async def test_tab_completes_what_came_just_before_it(line: str, how: str) -> None:
    """All in one read of the terminal: nothing of it was drawn, nor the engine asked, when Tab is pressed."""
    async with console(FakeClient(100), start="nodes") as pilot:
        if how == "typed while it opens":
            pilot.app.post_message(events.Key("colon", ":"))
        else:
            await press(pilot, "colon")
        if how == "pasted":
            pilot.app.post_message(events.Paste(line))
        else:
            for letter in line:
                pilot.app.post_message(events.Key(letter, letter))
        pilot.app.post_message(events.Key("tab", "\t"))
        bars = pilot.app.bars  # type: ignore[attr-defined]
        await until(pilot, lambda: bars.bar is not None and bars.bar._input.value == f"{line}0000")
        await press(pilot, "tab")
        assert bars.bar._input.value == f"{line}0001"
