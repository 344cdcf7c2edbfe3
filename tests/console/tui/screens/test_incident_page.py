"""Incidents on the console, in the shell and in words, over a real engine: what the page shows, what its keys do, and
how a draft of one becomes a proposal that names it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from console.cli.linear_pages import page_reader
from console.cli.main import run
from console.commands import incidents
from console.service.local_client import LocalClient
from console.tui.screens.incidents import IncidentPane, IncidentsPane
from console.views.incidents import IncidentPage, incident_page
from engine.model.commands import FailNodes, HoldQueues, Submit
from engine.model.errors import RefusedError
from runbooks.drafts.typed_draft import DraftAsk, picked
from runbooks.plans.identity import Actor
from runbooks.plans.incidents import AlertReport, ReportedAlert
from tests.console.tui.screens.test_proposal_pages import Cell, cell, decide, on_screen, shown
from tests.console.tui.test_app import line, notes, press, quick, until, write  # noqa: F401
from tests.support.gates import asked
from tests.support.patience import PATIENCE_S
from tests.support.people import ALICE, BOB
from tests.support.served import gpu_job

SOURCE = Actor(subject="service:alertmanager", kind="service", account="token:service:alertmanager", deeds=("alert",))


@pytest.fixture
def made() -> Iterator[Cell]:
    """Queue b is held, so that its work waits; an alert about it has come."""
    with cell(ALICE, BOB) as there:
        there.loop.call(lambda engine: engine.command(HoldQueues(names=("b",))))
        there.loop.call(lambda engine: engine.command(Submit(workloads=(gpu_job("wl-9", queue="b"),))))
        there.loop.call(lambda engine: engine.advance(engine.now_ms + 2_400_000))
        report(there)
        yield there


def report(there: Cell, status: Any = "firing", key: str = "b") -> None:
    alert = ReportedAlert(
        status=status, labels={"alertname": "QueueWaitHigh", "severity": "critical", "queue": "b", "host": "login-3"},
        annotations={"summary": "wait p95 of b is 40 min"},
    )  # fmt: skip
    there.base.acting_as(SOURCE).report_alerts(AlertReport(status=status, group_key=key, alerts=(alert,)))


def drafted(client: LocalClient) -> None:
    """A draft of I-1 that asks what is meant, and one for what was picked."""
    ask = DraftAsk(finding="I-1")
    for _ in range(2):
        draft = client.draft(ask)
        while not draft.over:
            draft = client.draft_run(draft.id, draft.serial, 5.0)
        ask = picked(draft, "1") if draft.rule is not None and draft.rule.choices else ask


def here(pilot: Any, kind: type) -> bool:
    return isinstance(pilot.app.navigator.current, kind)


async def test_from_the_overview_to_a_claim_a_note_and_a_close(made: Cell) -> None:
    async with shown(made.of(ALICE), "overview", size=(130, 60)) as pilot:
        await until(pilot, lambda: "I-1, nobody has it: wait p95 of b is 40 min" in on_screen(pilot))
        await until(pilot, lambda: "1 incident" in line(pilot, "top"))
        pilot.app.steering.run("incidents")  # type: ignore[attr-defined]
        await until(pilot, lambda: here(pilot, IncidentsPane) and pilot.app.navigator.current.targets)  # type: ignore[attr-defined]
        await press(pilot, "enter")
        await until(pilot, lambda: here(pilot, IncidentPane) and pilot.app.navigator.current.detail is not None)  # type: ignore[attr-defined]
        text = on_screen(pilot)
        assert "host login-3 (host): not in this cell" in text.replace("node login-3", "host login-3")
        assert "b queue held" in text
        assert "▸ wl-9  waits for 40m: queue b is held" in text, "what it says of itself explains it first"
        await press(pilot, "C")
        await until(pilot, lambda: "alice" in line(pilot, "title"))
        await press(pilot, "N")
        await write(pilot, "note I-1 somebody held it last night")
        await press(pilot, "enter")
        await until(pilot, lambda: "somebody held it last night" in on_screen(pilot))
        dialog = await decide(pilot, "K")
        assert "still fire" in on_screen(pilot)
        dialog._input.value = "queue b was held by mistake"
        await press(pilot, "enter")
        await until(pilot, lambda: line(pilot, "title").count("closed"))
    told = made.base.incident("I-1")
    assert [entry.kind for entry in told.entries] == ["opened", "claimed", "noted", "closed"]
    assert told.entries[-1].subject == "person:alice"


async def test_what_another_has_is_taken_over_only_after_a_yes_and_handed_on(made: Cell) -> None:
    made.of(BOB).claim_incident("I-1")
    async with shown(made.of(ALICE), "incident I-1", size=(130, 60)) as pilot:
        await until(pilot, lambda: "bob" in line(pilot, "title"))
        await decide(pilot, "C")
        await press(pilot, "escape")
        await until(pilot, lambda: "I-1 stays bob's" in notes(pilot))
        await decide(pilot, "C")
        await press(pilot, "y")
        await until(pilot, lambda: "alice" in line(pilot, "title"))
        await press(pilot, "H")
        await write(pilot, "hand-over I-1 bob it is yours after all")
        await press(pilot, "enter")
        await until(pilot, lambda: "bob" in line(pilot, "title"))
    assert made.base.incident("I-1").entries[-1].text == "it is yours after all"


async def test_it_is_claimed_before_its_page_is_there(made: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    told = incident_page

    def slow(client: LocalClient, incident_id: str) -> IncidentPage:
        assert asked.wait(PATIENCE_S)
        return told(client, incident_id)

    monkeypatch.setattr("console.tui.screens.incidents.incident_page", slow)
    try:
        async with shown(made.of(ALICE), "incident I-1", size=(100, 30)) as pilot:
            await until(pilot, lambda: "C claim" in line(pilot, "footer"))
            await press(pilot, "C")
            await until(pilot, lambda: "I-1 is yours" in notes(pilot))
            asked.set()
            await until(pilot, lambda: "claimed" in line(pilot, "title"))
    finally:
        asked.set()


async def test_a_draft_of_it_is_shown_with_its_effect_and_proposed(made: Cell) -> None:
    drafted(made.of(ALICE))
    async with shown(made.of(ALICE), "incident I-1", size=(130, 70)) as pilot:
        await until(pilot, lambda: "D-2  " in on_screen(pilot))
        assert "pick what is meant:" in on_screen(pilot)
        assert "16 of 32" in on_screen(pilot)
        await press(pilot, "A")
        await until(pilot, lambda: "P-1 waits for votes" in notes(pilot))
    told = made.base.incident("I-1")
    assert told.proposals == ("P-1",)
    assert "I-1" in {piece.id for piece in made.base.proposal("P-1").plan.evidence}


async def test_a_read_only_console_says_why_its_keys_do_nothing(made: Cell) -> None:
    async with shown(made.of(ALICE), "incident I-1", size=(130, 60), read_only=True) as pilot:
        await until(pilot, lambda: "nobody has it" in line(pilot, "title"))
        await press(pilot, "C")
        await until(pilot, lambda: "read-only" in notes(pilot))
    assert made.base.incident("I-1").owner == ""


def test_a_plan_before_it_is_told_once_as_a_plan_and_where_it_was(made: Cell) -> None:
    """Not as events of its targets again; what happened to a target by itself is."""
    client = made.of(ALICE)
    cordon = client.propose(asked("cordon", ["g3"], "firmware"))
    made.of(BOB).approve(cordon.id, cordon.digest)
    made.loop.call(lambda engine: engine.advance(engine.now_ms + 600_000))
    made.loop.call(lambda engine: engine.command(FailNodes(ids=("g3",))))
    made.loop.call(lambda engine: engine.advance(engine.now_ms + 600_000))
    report(made, key="again")
    told = client.incident_changes("I-2")
    assert [change.pools for change in told if change.proposal == cordon.id] == [("gpu",)]
    of_node = [(change.what, change.pools) for change in told if change.subject == "g3"]
    assert of_node == [("g3 down", ("gpu",))], "the cordon is told as the plan, the failure by itself"


def test_it_is_said_in_words(made: Cell) -> None:
    client = made.of(ALICE)
    listed, _ = page_reader("incidents", lambda: client)(0, 50)
    assert [each.link for each in listed] == ["incident I-1"]
    said = "\n".join(each.text for each in page_reader("incident I-1", lambda: client)(0, 200)[0])
    assert "quoted: wait p95 of b is 40 min" in said
    assert "opened by service:alertmanager" in said


@pytest.fixture
def muster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """A command in somebody's name: exit code, standard output, standard error."""

    def done(client: LocalClient, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(incidents, "connect", lambda _arguments: client)
        code = run(list(words))
        return (code, *capsys.readouterr())

    return done


def test_the_shell_lists_shows_and_does_the_same(made: Cell, muster: Callable[..., tuple[int, str, str]]) -> None:
    alice, bob = made.of(ALICE), made.of(BOB)
    assert "I-1  critical  ! open" in muster(alice, "incident", "list")[1]
    assert muster(alice, "incident", "claim", "1")[:2] == (0, "I-1\n")
    code, _, why = muster(bob, "incident", "close", "i-1", "--found", "not mine to close")
    assert code != 0
    assert "alice has it" in why
    assert muster(alice, "incident", "hand-over", "1", "--to", "bob")[0] == 0
    text = muster(bob, "incident", "show", "I-1")[1]
    assert "owner     bob" in text
    assert "b queue held" in text
    told = json.loads(muster(bob, "incident", "show", "1", "--json")[1])
    assert told["incident"]["owner"] == "person:bob"
    assert any(change["own"] for change in told["changes"])
    assert muster(bob, "incident", "note", "1", "opened the queue")[0] == 0
    report(made, "resolved")
    assert muster(bob, "incident", "close", "1", "--found", "queue b was held")[0] == 0
    assert (
        muster(bob, "incident", "list")[1] == "no incident is open: an alert opens one, or muster incident open TITLE\n"
    )
    assert "closed" in muster(bob, "incident", "list", "--all")[1]


def test_shell_and_page_filter_incidents_alike(made: Cell, muster: Callable[..., tuple[int, str, str]]) -> None:
    alice = made.of(ALICE)
    for text, found in (("severity:critical objects~b", True), ("severity:info", False), ("state:closed", False)):
        assert ("I-1" in muster(alice, "incident", "list", "-f", text)[1]) is found
        assert bool(json.loads(muster(alice, "incident", "list", "-f", text, "--json")[1])) is found
    code, _, why = muster(alice, "incident", "list", "-f", "all stat:open")
    assert code == 2
    assert "filter, character 5: incidents have no column 'stat'\n  Did you mean state?" in why
    alice.claim_incident("I-1")
    alice.close_incident("I-1", "queue b was held")
    assert "I-1" in muster(alice, "incident", "list", "-f", "state:closed")[1], "a state asks for those too"


async def test_the_list_of_incidents_is_filtered_by_the_key_of_every_list(made: Cell) -> None:
    async with shown(made.of(ALICE), "incidents", size=(120, 20)) as pilot:
        await until(pilot, lambda: "I-1" in on_screen(pilot))
        await press(pilot, "slash")
        await write(pilot, "stat:open")
        await until(pilot, lambda: "incidents have no column 'stat'. Did you mean state?" in on_screen(pilot))
        await write(pilot, "state:closed")
        await press(pilot, "enter")
        await until(pilot, lambda: "no incidents match state:closed" in on_screen(pilot))


def test_opened_by_hand_with_an_object_that_must_be_there(
    made: Cell, muster: Callable[..., tuple[int, str, str]]
) -> None:
    alice = made.of(ALICE)
    assert muster(alice, "incident", "open", "login is slow", "--on", "node:g1")[:2] == (0, "I-2\n")
    code, _, why = muster(alice, "incident", "open", "login is slow", "--on", "node:none")
    assert code != 0
    assert "there is no node 'none'" in why
    with pytest.raises(RefusedError, match="you may not respond"):
        made.base.acting_as(SOURCE).claim_incident("I-2")
