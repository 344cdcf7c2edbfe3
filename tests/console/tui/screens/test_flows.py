"""Whole flows of people at the console, over a real engine: from what is seen to what is verified."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from console.cli.demo_cell import AGENTS, feed
from console.cli.demo_cell import cell as demo_cell
from console.client.remote import RemoteClient
from console.client.sockets import bind_unix
from console.forms.settings import ConsoleSettings
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui import decision_dialogs
from console.tui.app import MusterApp
from console.tui.decision_dialogs import DecideDialog
from console.tui.screens.policy import PolicyPane, ReviewsPane
from console.tui.screens.proposals import ProposalPane, RecommendationsPane
from engine.control import Engine
from engine.loop import EngineLoop
from engine.model.commands import Submit
from engine.model.errors import UnreachableError
from engine.model.specs import WorkloadSpec
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import Person
from runbooks.plans.typed_plan import DIGEST_TYPED, Source, asks
from tests.console.tui.screens.test_proposal_pages import (  # noqa: F401
    cell,
    decide,
    give_passphrase,
    keyed,
    on_screen,
    page,
    shown,
    type_digest,
)
from tests.console.tui.test_app import line, notes, press, quick, read_to_the_end, until  # noqa: F401
from tests.support.gates import gate_of
from tests.support.people import ALICE, BOB, CAROL, DAVE
from tests.support.served import gpu_job, running_loop, serving, socket_folder

MINUTE_MS = 60_000


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_dialogs, "LOOK_S", 0.05)


def here(pilot: Pilot[None], kind: type) -> bool:
    return isinstance(pilot.app.navigator.current, kind)  # type: ignore[attr-defined]


# --- why a gang waits, and what would let it start


@pytest.mark.thorough
async def test_from_the_overview_to_why_a_gang_waits_and_what_would_let_it_start() -> None:
    with running_loop() as loop:
        submit(loop, gpu_job("first", tasks=1), gpu_job("gang", tasks=4))
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        async with shown(client, size=(140, 44)) as pilot:
            await press(pilot, "3")
            await until(pilot, lambda: "gang" in on_screen(pilot) and "first" in on_screen(pilot))
            pilot.app.navigator.current.filter("state:queued")  # type: ignore[attr-defined]
            await until(pilot, lambda: "1 of 2" in line(pilot, "title"))
            await press(pilot, "enter")
            await until(pilot, lambda: "gang" in line(pilot, "title"))
            await until(pilot, lambda: "InsufficientCapacity" in on_screen(pilot) or "Fragmented" in on_screen(pilot))
            await until(pilot, lambda: "starts" in on_screen(pilot).lower())


# --- from a suggestion to what is verified, and back


@contextmanager
def labs() -> Iterator[LocalClient]:
    """The demo's cell at 10:10, with nothing but what its new team has submitted; one person."""
    engine = Engine.open(None, cell=demo_cell(40), seed=1)
    start_ms = 0
    for at_ms, what in feed(engine, 1):
        if isinstance(what, WorkloadSpec) and what.queue == AGENTS:
            start_ms = start_ms or at_ms
            engine.advance(at_ms)
            engine.command(Submit(workloads=(what,)))
        if start_ms and at_ms > start_ms:
            break
    engine.advance(start_ms + 40 * MINUTE_MS)
    loop = EngineLoop(engine)
    loop.start()
    try:
        yield LocalClient(loop, gate_of(engine), Advisor(loop), name="demo")
    finally:
        loop.stop()
        engine.close()


@pytest.mark.thorough
async def test_a_suggestion_is_proposed_approved_executed_and_verified_in_three_keys_and_taken_back() -> None:
    with labs() as client:
        assert client.workload("agents-0002").state == "queued"
        async with shown(client, size=(140, 40)) as pilot:
            await press(pilot, "7")
            await until(pilot, lambda: here(pilot, RecommendationsPane) and "1 found" in line(pilot, "title"))
            assert "A shows the plan and asks" in on_screen(pilot)
            await press(pilot, "A")
            await read_to_the_end(pilot)
            assert "idle quota beside it" in on_screen(pilot), "the evidence is behind the plan"
            await press(pilot, "y")
            await until(pilot, lambda: here(pilot, ProposalPane))
            await until(pilot, lambda: "verified: U rolls it back" in line(pilot, "title"))
            assert "roll back" in line(pilot, "footer")
            await until(pilot, lambda: client.workload("agents-0002").state in ("placed", "running"))
            dialog = await decide(pilot, "U")
            shown_now = on_screen(pilot)
            assert "Roll back P-1: Set quota" in shown_now
            assert "Over limit" in shown_now, "the plan itself said that nothing that runs is touched"
            assert "runs on above the quota" in shown_now
            dialog._input.value = "robotics begins today"
            await press(pilot, "enter", "y")
            await until(pilot, lambda: "rolled back" in line(pilot, "title"))
            await press(pilot, "escape")
            assert here(pilot, RecommendationsPane)
        assert client.queue(AGENTS).spec.borrowing_limit == {"gpu_milli": 0}


# --- a what-if


@pytest.mark.thorough
async def test_a_what_if_is_composed_run_and_compared() -> None:
    with running_loop() as loop:
        submit(loop, gpu_job("first", tasks=4), gpu_job("second", tasks=2))
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        async with shown(client, "whatif add 2 nodes to gpu", size=(140, 44)) as pilot:
            await until(pilot, lambda: "add 2 nodes to gpu" in on_screen(pilot))
            await press(pilot, "w")
            await until(pilot, lambda: "second" in on_screen(pilot) or "Wait, mean" in on_screen(pilot))
            before = loop.call(lambda engine: engine.version)
            await press(pilot, "b")
            await pilot.pause()
            assert loop.call(lambda engine: engine.version) == before, "looking ahead changes nothing"


# --- two people


@asynccontextmanager
async def two_consoles(
    one: LocalClient, other: LocalClient, proposal: str, settings: ConsoleSettings
) -> AsyncIterator[tuple[Pilot[None], Pilot[None]]]:
    async with AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(
                shown(client, f"proposal {proposal}", size=(120, 60), settings=settings if client is one else None)
            )
            for client in (one, other)
        ]
        for pilot in made:
            await until(pilot, lambda pilot=pilot: page(pilot).seen_to_the_end)  # type: ignore[misc]
        yield made[0], made[1]


def effects(loop: EngineLoop, client: LocalClient) -> int:
    """How often anything was done, by the audit."""
    from runbooks.plans.queries import AuditQuery

    return len(client.audit_page(AuditQuery(type="exec.effect")).rows)


@pytest.mark.thorough
async def test_of_two_who_decide_at_once_the_second_is_told_who_was_first_and_nothing_is_done_twice(
    keyed: tuple[Person, ConsoleSettings],  # noqa: F811
) -> None:
    bob, settings = keyed
    with cell(ALICE, bob, CAROL) as made:
        made.of(ALICE).propose(asks("drain", ("g0",), "it fails"))
        digest = made.base.proposal("P-1").digest
        async with two_consoles(made.of(bob), made.of(CAROL), "P-1", settings) as (first, second):
            await decide(second, "A")
            await decide(first, "A")
            await type_digest(first, made.base.proposal("P-1"))
            await give_passphrase(first)
            await until(first, lambda: made.base.proposal("P-1").state == "verified")
            await until(second, lambda: "approved by bob at" in on_screen(second))
            await press(second, *digest[:DIGEST_TYPED])
            assert isinstance(second.app.screen, DecideDialog), "no answer is taken any more"
            await press(second, "escape")
            await until(second, lambda: "✓ yes      bob" in on_screen(second))
            await until(second, lambda: "verified" in line(second, "title"))
            await press(second, "A")
            assert "only awaiting ones can be approved" in notes(second)
        assert [vote.subject for vote in made.base.proposal("P-1").votes] == ["person:bob"]
        assert effects(made.loop, made.of(DAVE)) == 1


@pytest.mark.thorough
async def test_a_no_takes_as_many_keys_as_a_yes_and_ends_it_for_both() -> None:
    with cell(ALICE, BOB, CAROL) as made:
        for node in ("g2", "g3"):
            made.of(ALICE).propose(
                msgspec.structs.replace(asks("cordon", (node,), "noise"), source=Source(kind="rule"))
            )
        for number, keys, state in ((1, "Ny", "rejected"), (2, "Ay", "verified")):
            async with shown(made.of(BOB), f"proposal P-{number}", size=(120, 60)) as pilot:
                await until(pilot, lambda: page(pilot).seen_to_the_end)
                await decide(pilot, keys[0])
                await press(pilot, keys[1])
                await until(pilot, lambda state=state, number=number: made.base.proposal(f"P-{number}").state == state)  # type: ignore[misc]
        assert made.node_state("g2") == "ready"
        assert made.node_state("g3") == "cordoned"


@pytest.mark.thorough
async def test_the_glass_is_broken_and_another_person_closes_the_review(keyed: tuple[Person, ConsoleSettings]) -> None:  # noqa: F811
    bob, settings = keyed
    oncall = msgspec.structs.replace(bob, on_call=True)
    with cell(ALICE, oncall, CAROL) as made:
        made.of(ALICE).propose(asks("drain", ("g0",), "it fails"))
        shown_plan = made.base.proposal("P-1")
        async with shown(made.of(oncall), "proposal P-1", settings=settings, size=(120, 60)) as pilot:
            await until(pilot, lambda: page(pilot).seen_to_the_end)
            dialog = await decide(pilot, "B")
            dialog._input.value = "node g0 is on fire"
            await press(pilot, "enter")
            await type_digest(pilot, shown_plan)
            await give_passphrase(pilot)
            await until(pilot, lambda: made.base.reviews() and made.base.proposal("P-1").breakglass)
        async with shown(made.of(CAROL), "reviews", size=(120, 36)) as pilot:
            await until(pilot, lambda: here(pilot, ReviewsPane) and "1 open" in line(pilot, "title"))
            dialog = await decide(pilot, "K")
            dialog._input.value = "it was on fire indeed"
            await press(pilot, "enter")
            await until(pilot, lambda: "none is open" in line(pilot, "title"))
        assert made.base.reviews()[0].closed_by == "person:carol"


# --- the policy, and freezes


@pytest.mark.thorough
async def test_a_freeze_is_set_and_ended_from_the_console() -> None:
    with cell(ALICE, BOB, DAVE) as made:
        async with shown(made.of(DAVE), "policy", size=(120, 50)) as pilot:
            await until(
                pilot, lambda: here(pilot, PolicyPane) and "none: plans may run at any time" in on_screen(pilot)
            )
            pilot.app.steering.run("freeze launch --for 2h --tier T2 --reason 'no drains'")  # type: ignore[attr-defined]
            await until(pilot, lambda: "1 freeze in effect" in line(pilot, "title"))
            assert made.base.freezes()[0].spec.tier == "T2"
            await decide(pilot, "T")
            await press(pilot, "y")
            await until(pilot, lambda: not made.base.freezes())


@pytest.mark.thorough
async def test_a_policy_that_waits_is_read_and_put_in_force_by_who_is_alone() -> None:
    from runbooks.gate.approval_policy import PolicyChange

    with running_loop() as loop:
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        candidate = client.propose_policy(PolicyChange(built_in="team"))
        async with shown(client, "policy", size=(120, 50)) as pilot:
            await until(pilot, lambda: "1 waits for votes" in line(pilot, "title"))
            assert "Waiting for votes: version" in on_screen(pilot)
            await decide(pilot, "A")
            await press(pilot, "y", *candidate.digest[:DIGEST_TYPED])
            await until(pilot, lambda: client.policy().mode == "team")


# --- the engine goes away in the middle


@asynccontextmanager
async def served(loop: EngineLoop, gate: Gate, path: Path) -> AsyncIterator[None]:
    """An engine's server, begun and ended beside the console that asks it."""
    path.unlink(missing_ok=True)
    server = serving(loop, bind_unix(path), gate=gate)
    await asyncio.to_thread(server.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)


@pytest.mark.thorough
# httpcore leaves the socket of a connection that was refused to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_engine_that_is_lost_during_an_approval_loses_and_doubles_nothing() -> None:
    with running_loop() as loop, socket_folder() as folder:
        path, gate = folder / "engine.sock", gate_of(loop.engine)
        base = LocalClient(loop, gate, Advisor(loop))
        proposed = base.propose(asks("cordon", ("g0",), "it hums"))
        made: list[RemoteClient] = []

        def connect() -> RemoteClient:
            made.append(RemoteClient(str(path)))
            return made[-1]

        async with AsyncExitStack() as stack:
            async with served(loop, gate, path):
                app = MusterApp(connect, title="test")
                pilot = await stack.enter_async_context(app.run_test(size=(120, 60), notifications=True))
                await until(pilot, lambda: app.connected)
                app.steering.run(f"proposal {proposed.id}")
                await until(pilot, lambda: page(pilot).detail is not None)
                await until(pilot, lambda: page(pilot).seen_to_the_end)
                dialog = await decide(pilot, "A")
                await press(pilot, "r")
                dialog._input.value = "heard it too"
            await until(pilot, lambda: "no answer from the engine: nothing is sent" in on_screen(pilot))
            await press(pilot, "enter")
            assert pilot.app.screen is dialog
            async with served(loop, gate, path):
                await until(pilot, lambda: "no answer from the engine" not in on_screen(pilot))
                assert dialog._input.value == "heard it too"
                await press(pilot, "enter", "y")
                await until(pilot, lambda: base.proposal(proposed.id).state == "verified")
                await until(pilot, lambda: "verified" in line(pilot, "title"))
        for client in made:
            client.close()
        assert [vote.comment for vote in base.proposal(proposed.id).votes] == ["heard it too"]


async def test_a_vote_whose_answer_was_lost_is_said_to_be_unknown_and_counts_once() -> None:
    with running_loop() as loop:
        client = LocalClient(loop, gate_of(loop.engine), Advisor(loop), name="lab")
        client.propose(asks("cordon", ("g0",), "it hums"))
        approve = client.approve

        def cut_off(*given: Any, **named: Any) -> Any:
            approve(*given, **named)
            raise UnreachableError("the engine closed the connection before it answered", "")

        client.approve = cut_off  # type: ignore[method-assign]
        async with shown(client, "proposal P-1", size=(120, 60)) as pilot:
            await until(pilot, lambda: page(pilot).seen_to_the_end)
            await decide(pilot, "A")
            await press(pilot, "y")
            await until(pilot, lambda: "trying again cannot do it twice" in notes(pilot))
            await until(pilot, lambda: "verified" in line(pilot, "title"))
            await press(pilot, "A")
            assert "only awaiting ones can be approved" in notes(pilot)
        assert len(client.proposal("P-1").votes) == 1


def submit(loop: EngineLoop, *specs: WorkloadSpec) -> None:
    for spec in specs:
        loop.call(lambda engine, spec=spec: engine.command(Submit(workloads=(spec,))))
        loop.call(lambda engine: engine.advance(engine.now_ms + 1_000))
