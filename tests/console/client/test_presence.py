"""Who is here: seen by others within a moment, also over HTTP and on the screen; nobody passes for another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from console.client.presence import GONE_S, MAX_OF_ONE, Here, Presence, PresenceAsk, told
from console.server.operations import LONGEST_WAIT_S
from console.tui.app import MusterApp
from engine.loop import EngineLoop
from engine.model.errors import MusterError, RefusedError, SpecError
from runbooks.plans.identity import Actor
from tests.console.fake_client import FakeClient
from tests.support.gates import gate_of
from tests.support.network import Line, reached
from tests.support.patience import PATIENCE_S
from tests.support.people import person, team
from tests.support.served import running_loop

ALICE = Actor(subject="person:alice", account="unix:1")
BOB = Actor(subject="person:bob", account="unix:2")


def ask(of: str, page: str = "proposal", thing: str = "proposal P-1", **more: object) -> PresenceAsk:
    return PresenceAsk(session=of * 32, page=page, thing=thing, **more)  # type: ignore[arg-type]


def here(who: str, thing: str = "proposal P-1", **more: object) -> Here:
    given = {"account": "unix:9", "page": "proposal", "doing": "looks", "since_s": 3, **more}
    return Here(who=who, thing=thing, **given)  # type: ignore[arg-type]


def test_others_are_told_and_oneself_is_not() -> None:
    presence = Presence(lambda: 0.0)
    assert presence.say(ALICE, ask("a")).here == ()
    seen = presence.say(BOB, ask("b", doing="decides"))
    assert [(each.who, each.thing, each.doing, each.mine) for each in seen.here] == [
        ("person:alice", "proposal P-1", "looks", False)
    ]
    again = presence.say(ALICE, ask("a"))
    assert [each.doing for each in again.here] == ["decides"]
    assert presence.say(BOB, ask("b", leaves=True)).here
    assert presence.say(ALICE, ask("a")).here == ()


def test_the_serial_moves_when_somebody_does_and_an_older_word_moves_nobody() -> None:
    presence = Presence(lambda: 0.0)
    first = presence.say(ALICE, ask("a", turn=1))
    assert presence.say(ALICE, ask("a", turn=1)).serial == first.serial
    moved = presence.say(ALICE, ask("a", "nodes", "", turn=2))
    assert moved.serial > first.serial
    assert presence.say(ALICE, ask("a", turn=1)).serial == moved.serial
    assert presence.say(BOB, ask("b")).here[0].page == "nodes"


def test_whoever_falls_silent_is_gone() -> None:
    now = [0.0]
    presence = Presence(lambda: now[0])
    presence.say(ALICE, ask("a"))
    now[0] = GONE_S
    assert presence.say(BOB, ask("b")).here
    now[0] += 0.1
    assert presence.look(BOB, "b" * 32).here == ()


def test_nobody_speaks_for_anothers_console_or_fills_the_room() -> None:
    presence = Presence(lambda: 0.0)
    presence.say(ALICE, ask("a"))
    with pytest.raises(RefusedError, match="somebody else"):
        presence.say(BOB, ask("a", leaves=True))
    for number in range(MAX_OF_ONE):
        presence.say(BOB, PresenceAsk(session=f"{number:032x}", page="nodes"))
    with pytest.raises(RefusedError, match="too many"):
        presence.say(BOB, ask("f"))
    assert presence.say(ALICE, ask("c")).here
    bad = ({"session": "A" * 32}, {"session": "a"}, {"page": "p" * 41}, {"thing": "t" * 301}, {"wait_s": -1.0})
    for given in bad:
        with pytest.raises(SpecError):
            presence.say(ALICE, PresenceAsk(**{"session": "d" * 32, "page": "nodes", **given}))


def test_two_who_share_an_account_and_name_themselves_are_two() -> None:
    presence = Presence()
    for session, says in (("a" * 32, "ann"), ("b" * 32, "bob"), ("c" * 32, "ann")):
        presence.say(ALICE, PresenceAsk(session=session, page="proposal", thing="proposal P-1", says=says))
    seen = presence.look(ALICE, "a" * 32).here
    assert [(each.says, each.mine) for each in seen] == [("bob", False), ("ann", True)]
    assert told(seen, "proposal P-1") == "bob? and you in another session looking at this"


def test_what_is_said_of_others() -> None:
    p1 = "proposal P-1"
    assert told((), p1) == ""
    assert told((here("person:bob"),), p1) == "bob looking at this"
    assert told((here("person:bob"),), "") == "1 other here"
    assert (
        told((here("person:bob", "node n"), here("tcp", "x"), here("person:me", "x", mine=True)), p1) == "2 others here"
    )
    both = (here("person:bob", doing="decides"), here("person:al"), here("person:cy"), here("person:di"))
    assert told(both, p1) == "bob deciding on this · al and 2 more looking at this"
    assert told((here("unix:0", says="person:eve"),), p1) == "eve? looking at this"
    assert told((here("person:root", says="eve"),), p1) == "eve? looking at this"
    assert told((here("person:eve", says="eve"),), p1) == "eve looking at this"
    assert told((here("unix:0", mine=True),), p1) == "you in another session looking at this"
    assert told((here("unix:0", "x", mine=True),), p1) == ""


# -- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture
def loop() -> Iterator[EngineLoop]:
    with running_loop() as running:
        yield running


@pytest.fixture
def line(loop: EngineLoop) -> Iterator[Line]:
    people = team(person("alice", "operator"), person("bob", "operator"), person("dave", "admin"))
    with reached(loop, gate_of(loop.engine, people)) as there:
        yield there


@pytest.mark.thorough
def test_who_waits_hears_of_a_move_at_once(line: Line) -> None:
    alice, bob = (line.client(token=line.make_token(name).token) for name in ("alice", "bob"))
    heard: list[tuple[float, str]] = []
    with closing(alice), closing(bob):
        serial = alice.present(ask("a")).serial

        def listen() -> None:
            answer = alice.present(ask("a", after=serial, wait_s=LONGEST_WAIT_S))
            heard.append((time.monotonic(), answer.here[0].who))

        thread = threading.Thread(target=listen)
        thread.start()
        time.sleep(0.1)  # until it waits; were it too short, it would only be told at once
        moved = time.monotonic()
        bob.present(ask("b"))
        thread.join(PATIENCE_S)
        assert heard[0][1] == "person:bob"
        assert heard[0][0] - moved < LONGEST_WAIT_S, "it was the move that ended it, not the time"
        with pytest.raises(MusterError, match="somebody else"):
            bob.present(ask("a"))


# -- on the screen ----------------------------------------------------------------------------------------------------


async def test_the_first_line_says_who_else_is_on_the_same_thing() -> None:
    client = FakeClient()
    client.here = (here("person:alice", "node n0001", doing="decides"), here("person:\x1b]0;x\x07carl", "nodes"))
    app = MusterApp(lambda: client)
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, lambda: "2 others here" in top(app))
        app.steering.follow("node n0001")
        await until(pilot, lambda: "alice deciding on this" in top(app))
        assert "\x1b" not in top(app)
        await until(pilot, lambda: ("node", "node n0001", "looks") in client.places)


async def test_at_80_columns_too_it_is_read_whole_who_else_is_on_an_incident() -> None:
    client = FakeClient()
    client.here = (here("person:alice", "incident I-1", doing="decides"),)
    app = MusterApp(lambda: client)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: "1 other here " in top(app))
        app.steering.follow("incident I-1")
        await until(pilot, lambda: "alice deciding on this " in top(app))


def top(app: MusterApp) -> str:
    """The first line of the screen."""
    return app.screen._compositor.render_strips()[0].text


async def until(pilot: object, true: object) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not come to be"
        await pilot.pause(0.02)  # type: ignore[attr-defined]
