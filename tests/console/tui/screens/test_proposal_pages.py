"""What a person sees of the gate, and does with it: proposals, their votes, runbooks, the audit."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from console.actions.registry import actions as registry
from console.actions.registry import by_key
from console.client.credentials import Identity
from console.forms.filters import FilterError
from console.forms.settings import ConsoleSettings, Environment
from console.service.advisor import Advisor
from console.service.local_client import LocalClient
from console.tui import dialog_frames as dialogs
from console.tui.app import MusterApp
from console.tui.decision_dialogs import DecideDialog, InputsDialog, PassphraseDialog
from console.tui.screens.proposals import ProposalPane
from console.tui.widgets.frame import unwritable_banner
from console.views.audit import parse_words
from console.views.decision_needs import by_author_alone, one_key
from console.views.policy import request_words
from console.views.proposal import (
    GUTTER,
    HANG,
    Fresh,
    in_order,
    list_row,
    plan_sections,
    stale_section,
    step_section,
    vote_section,
    word_sections,
)
from console.views.sections import Section
from engine.loop import EngineLoop
from engine.model.commands import Cordon, Submit
from runbooks.gate.approval_policy import Person
from runbooks.gate.run_limits import FreezeSpec
from runbooks.plans.keys import write_new_key
from runbooks.plans.typed_plan import DIGEST_TYPED, Proposal, asks
from tests.console import fake_gate
from tests.console.fake_client import FakeClient
from tests.console.fake_gate import ALICE, IMITATION, NOW_MS, changed_since, halfway, proposal, voted
from tests.console.tui.test_app import hint, line, notes, press, quick, read_to_the_end, until, write  # noqa: F401
from tests.console.tui.test_hostile_text import check_screen, take_the_bait
from tests.support.gates import gate_of
from tests.support.people import ALICE as AUTHOR
from tests.support.people import BOB, CAROL, DAVE, actor, team
from tests.support.served import gpu_job, running_loop

PASSPHRASE = "correct horse battery"


@asynccontextmanager
async def shown(
    client: Any,
    *lines: str,
    size: tuple[int, int] = (120, 36),
    settings: ConsoleSettings | None = None,
    read_only: bool = False,
) -> AsyncIterator[Pilot[None]]:
    """A console after these `:` lines."""
    app = MusterApp(lambda: client, title="test", identity=settings and Identity(settings), read_only=read_only)
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.connected and app.navigator.current is not None)
        for each in lines:
            app.steering.run(each)
        await pilot.pause()
        if isinstance(app.navigator.current, ProposalPane):
            await until(pilot, lambda: page(pilot).detail is not None)
            await pilot.pause()
        yield pilot


def page(pilot: Pilot[None]) -> ProposalPane:
    return pilot.app.navigator.current  # type: ignore[attr-defined,no-any-return]


def text_of(sections: list[Section]) -> list[str]:
    return ["".join(text for text, _ in each.spans) for section in sections for each in section.lines]


def on_screen(pilot: Pilot[None]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def decide(pilot: Pilot[None], key: str, kind: type = DecideDialog) -> Any:
    """Press the key and wait for what asks."""
    await press(pilot, key)
    await until(pilot, lambda: isinstance(pilot.app.screen, kind))
    await pilot.pause()
    return pilot.app.screen


# --- two people, one engine


class Cell(NamedTuple):
    loop: EngineLoop
    base: LocalClient

    def of(self, who: Person) -> LocalClient:
        return self.base.acting_as(actor(who))

    def node_state(self, name: str) -> str:
        return self.base.node(name).state

    def submit(self, *ids: str) -> None:
        self.loop.call(lambda engine: engine.command(Submit(workloads=tuple(map(gpu_job, ids)))))
        self.loop.call(lambda engine: engine.advance(engine.now_ms + 1_000))


@contextmanager
def cell(*people: Person) -> Iterator[Cell]:
    """Four GPU nodes under the policy of a team; wl-1 runs on g0."""
    with running_loop() as loop:
        gate = loop.call(lambda engine: gate_of(engine, team(*people)))
        made = Cell(loop, LocalClient(loop, gate, Advisor(loop), name="lab"))
        made.submit("wl-1")
        yield made


@pytest.fixture
def keyed(tmp_path: Path) -> tuple[Person, ConsoleSettings]:
    """Bob, with a key file of his own."""
    path = tmp_path / "key.pem"
    public = write_new_key(path, PASSPHRASE.encode())
    return msgspec.structs.replace(BOB, keys=(public.line,)), ConsoleSettings(operator="bob", key=str(path))


async def type_digest(pilot: Pilot[None], shown: Proposal) -> None:
    await press(pilot, *shown.digest[:DIGEST_TYPED])


async def give_passphrase(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: isinstance(pilot.app.screen, PassphraseDialog))
    await pilot.pause()
    pilot.app.screen._input.value = PASSPHRASE  # type: ignore[attr-defined]
    assert PASSPHRASE not in on_screen(pilot)
    await press(pilot, "enter")


async def test_two_people_drain_a_node_and_neither_can_alone(keyed: tuple[Person, ConsoleSettings]) -> None:
    bob, settings = keyed
    with cell(AUTHOR, bob) as made:
        async with shown(made.of(AUTHOR), "drain g0") as pilot:
            await read_to_the_end(pilot)
            text = on_screen(pilot)
            assert "needs 1 vote from others: approver" in text
            assert "ask for votes, nothing else" in text
            await press(pilot, "y")
            await until(pilot, lambda: "P-1 is open for votes until" in notes(pilot))
            assert "needs 1 vote from others" in notes(pilot)
            pilot.app.steering.run("proposal P-1")  # type: ignore[attr-defined]
            await until(pilot, lambda: "wrote this plan: another person must" in on_screen(pilot))
        assert made.node_state("g0") == "ready", "nothing was done yet"
        async with shown(made.of(bob), "proposals", settings=settings, size=(80, 24)) as pilot:
            await until(pilot, lambda: "1 waiting for votes" in line(pilot, "title"))
            await press(pilot, "enter")
            await until(pilot, lambda: isinstance(page(pilot), ProposalPane) and page(pilot).detail)
            await press(pilot, "A")
            await until(pilot, lambda: "you have not seen the end of the plan" in notes(pilot))
            assert "scroll to the end" in line(pilot, "title")
            await press(pilot, "pagedown", "pagedown", "pagedown")
            await until(pilot, lambda: "scroll to the end" not in line(pilot, "title"))
            await decide(pilot, "A")
            await press(pilot, "y", "enter")
            await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
            assert made.node_state("g0") == "ready", "neither y nor Enter is a yes to a disruptive plan"
            await decide(pilot, "A")
            await type_digest(pilot, made.base.proposal("P-1"))
            await give_passphrase(pilot)
            await until(pilot, lambda: made.node_state("g0") in ("draining", "cordoned"))
            await until(pilot, lambda: made.base.proposal("P-1").state == "verified")
            await until(pilot, lambda: "✓ yes" in on_screen(pilot) or "drain" in notes(pilot).lower())
        votes = made.base.proposal("P-1").votes
        assert [(vote.subject, vote.counts) for vote in votes] == [("person:bob", "")]


@pytest.mark.thorough
async def test_an_author_who_votes_anyway_is_told_why_it_does_not_count(keyed: tuple[Person, ConsoleSettings]) -> None:
    bob, settings = keyed
    with cell(AUTHOR, bob) as made:
        made.of(bob).propose(asks("drain", ("g0",), "it fails"))
        async with shown(made.of(bob), "proposal P-1", settings=settings, size=(120, 60)) as pilot:
            await until(pilot, lambda: page(pilot).seen_to_the_end)
            await decide(pilot, "A")
            await type_digest(pilot, made.base.proposal("P-1"))
            await give_passphrase(pilot)
            await until(pilot, lambda: "your vote on P-1 does not count: it is the author" in notes(pilot))
        assert made.base.proposal("P-1").state == "awaiting"
        assert made.node_state("g0") == "ready"


@pytest.mark.thorough
async def test_without_a_key_the_page_says_so_and_what_to_do() -> None:
    nobody = msgspec.structs.replace(BOB, keys=())
    with cell(AUTHOR, nobody, CAROL) as made:
        made.of(AUTHOR).propose(asks("drain", ("g0",), "it fails"))
        async with shown(made.of(nobody), "proposal P-1", size=(120, 60)) as pilot:
            await until(pilot, lambda: "muster policy operator new-key" in on_screen(pilot))
            await until(pilot, lambda: page(pilot).seen_to_the_end)
            await decide(pilot, "A")
            await type_digest(pilot, made.base.proposal("P-1"))
            await until(pilot, lambda: "the policy has no key of bob" in notes(pilot))
        assert made.base.proposal("P-1").votes == ()


@pytest.mark.thorough
async def test_to_reject_is_no_harder_than_to_approve_and_its_reason_is_shown_framed() -> None:
    with cell() as made:
        made.of(AUTHOR).propose(asks("drain", ("g0",), "it fails"))
        async with shown(made.of(BOB), "proposal P-1", size=(100, 36)) as pilot:
            dialog = await decide(pilot, "N")
            await press(pilot, "r")
            dialog._input.value = "[@click=app.quit]the canary runs[/] on it"
            await press(pilot, "enter")
            assert made.base.proposal("P-1").state == "awaiting", "the reason is not the answer"
            await press(pilot, "y")
            await until(pilot, lambda: made.base.proposal("P-1").state == "rejected")
            await until(pilot, lambda: "nothing will be executed" in notes(pilot))
            await until(pilot, lambda: page(pilot).detail.proposal.state == "rejected")
            await press(pilot, "G")
            await until(pilot, lambda: GUTTER + "[@click=app.quit]the canary runs[/] on it" in on_screen(pilot))
            check_screen(pilot)
            await take_the_bait(pilot, 4)
            assert not pilot.app._exit


@pytest.mark.thorough
async def test_what_changed_since_stops_it_and_is_shown_in_three_columns(keyed: tuple[Person, ConsoleSettings]) -> None:
    bob, settings = keyed
    with cell(AUTHOR, bob) as made:
        made.of(AUTHOR).propose(asks("drain", ("g0",), "it fails"))
        shown_plan = made.base.proposal("P-1")
        made.loop.call(lambda engine: engine.command(Cordon(ids=("g0",))))
        async with shown(made.of(bob), "proposal P-1", settings=settings, size=(140, 60)) as pilot:
            await until(pilot, lambda: page(pilot).seen_to_the_end)
            await decide(pilot, "A")
            await type_digest(pilot, shown_plan)
            await give_passphrase(pilot)
            await until(pilot, lambda: "is stale, nothing was done" in notes(pilot))
            await until(pilot, lambda: "Changed since it was shown" in on_screen(pilot))
            assert re.search(r"shown +│ now +│ new", on_screen(pilot))
            await press(pilot, "V")
            await read_to_the_end(pilot)
            await press(pilot, "y")
            await until(pilot, lambda: "P-2 is proposed" in notes(pilot))


@pytest.mark.thorough
async def test_a_freeze_in_between_holds_what_is_approved_until_it_ends(keyed: tuple[Person, ConsoleSettings]) -> None:
    bob, settings = keyed
    with cell(AUTHOR, bob, DAVE) as made:
        made.of(AUTHOR).propose(asks("drain", ("g0",), "it fails"))
        async with shown(made.of(bob), "proposal P-1", settings=settings, size=(120, 60)) as pilot:
            await until(pilot, lambda: page(pilot).seen_to_the_end)
            await decide(pilot, "A")
            now_ms = made.base.whoami().now_ms
            made.of(DAVE).freeze(FreezeSpec(name="launch", from_ms=now_ms - 1_000, until_ms=now_ms + 600_000))
            await type_digest(pilot, made.base.proposal("P-1"))
            await give_passphrase(pilot)
            await until(pilot, lambda: "launch" in notes(pilot))
            assert made.base.proposal("P-1").state == "approved"
            assert made.node_state("g0") == "ready"
            made.of(DAVE).thaw("launch")
            await until(pilot, lambda: "execute" in line(pilot, "footer"))
            await decide(pilot, "E")
            await type_digest(pilot, made.base.proposal("P-1"))
            await until(pilot, lambda: made.base.proposal("P-1").state == "verified")


@pytest.mark.thorough
async def test_the_glass_is_broken_by_no_single_key_and_never_without_a_reason(
    keyed: tuple[Person, ConsoleSettings],
) -> None:
    bob, settings = keyed
    oncall = msgspec.structs.replace(bob, on_call=True)
    with cell(AUTHOR, oncall) as made:
        made.of(AUTHOR).propose(asks("drain", ("g0",), "it fails"))
        digest = made.base.proposal("P-1").digest
        async with shown(made.of(oncall), "proposal P-1", settings=settings, size=(120, 60)) as pilot:
            await until(pilot, lambda: page(pilot).seen_to_the_end)
            dialog = await decide(pilot, "B")
            assert "without the votes" in on_screen(pilot)
            await press(pilot, "enter", "y")
            await press(pilot, *digest[:DIGEST_TYPED], "enter")
            assert made.base.proposal("P-1").state == "awaiting", (
                "what is typed there is a reason, and too short for one"
            )
            dialog._input.value = "node g0 is on fire"
            await press(pilot, "enter", "y", "enter")
            await until(pilot, lambda: len(pilot.app.screen_stack) == 1)
            assert made.base.proposal("P-1").state == "awaiting", "Enter is no"
            dialog = await decide(pilot, "B")
            dialog._input.value = "node g0 is on fire"
            await press(pilot, "enter")
            await press(pilot, *digest[:DIGEST_TYPED])
            await give_passphrase(pilot)
            await until(pilot, lambda: "a review is now open" in notes(pilot))
        assert made.base.proposal("P-1").breakglass
        assert [review.proposal for review in made.base.reviews()] == ["P-1"]


# --- one page, made-up proposals


async def test_a_vote_that_arrives_is_shown_and_the_place_is_kept() -> None:
    client = FakeClient(20)
    client.stage(1, tier="T3", notes=True)
    async with shown(client, "proposal P-1", size=(80, 24)) as pilot:
        await press(pilot, "G")
        view = page(pilot)._left
        top = view.render_line(0).text
        assert "1/4" not in on_screen(pilot)
        client.stage(1, tier="T3", notes=True, votes=voted()[:1], needs=1)
        page(pilot).reload()
        await until(pilot, lambda: page(pilot).detail.proposal.votes)
        await pilot.pause()
        assert view.render_line(0).text == top, "lines that come do not move what is read"
        assert page(pilot).seen_to_the_end
        assert "✓ yes      bob" in "\n".join(text_of(page(pilot).columns(page(pilot).detail, 76)[1]))


@pytest.mark.thorough
async def test_a_new_revision_must_be_read_anew_and_the_old_digest_is_no_yes() -> None:
    client = FakeClient(20)
    old = client.stage(1)
    async with shown(client, "proposal P-1", size=(80, 24)) as pilot:
        await press(pilot, "G")
        assert page(pilot).seen_to_the_end
        await press(pilot, "g", "g")
        client.stage(1, notes=True, revision=2)
        page(pilot).reload()
        await until(pilot, lambda: not page(pilot).seen_to_the_end)
        await press(pilot, "A")
        await until(pilot, lambda: "have not seen the end of the plan yet" in notes(pilot))
        await press(pilot, "G")
        dialog = await decide(pilot, "A")
        assert dialog._digest != old.digest
        await type_digest(pilot, old)
        assert client.approved == []


async def test_a_plan_that_is_not_of_its_digest_takes_no_vote() -> None:
    client = FakeClient(20)
    client.stage(1, digest="ab" * 32)
    async with shown(client, "proposal P-1", size=(120, 60)) as pilot:
        await until(pilot, lambda: page(pilot).seen_to_the_end)
        await press(pilot, "A")
        await until(pilot, lambda: "does not match the plan" in notes(pilot))


@pytest.mark.thorough
async def test_keys_typed_ahead_and_an_engine_that_is_lost_decide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(20)
    made = client.stage(1, signed=False)
    async with shown(client, "proposal P-1", size=(120, 60)) as pilot:
        await until(pilot, lambda: page(pilot).seen_to_the_end)
        monkeypatch.setattr(dialogs, "GUARD_S", 1_000)
        await decide(pilot, "A")
        await type_digest(pilot, made)
        assert isinstance(pilot.app.screen, DecideDialog)
        assert client.approved == [], "typed before it could be read"
        monkeypatch.setattr(dialogs, "GUARD_S", 0.0)
        client.down = True
        await type_digest(pilot, made)
        await until(pilot, lambda: "does not answer" in notes(pilot) or "not connected" in notes(pilot))
        assert client.approved == []


@pytest.mark.thorough
async def test_each_deed_asks_first_and_goes_to_the_engine() -> None:
    client = FakeClient(20)
    made = client.stage(1, state="executing", standing=halfway())
    async with shown(client, "proposal P-1", size=(120, 60)) as pilot:
        await until(pilot, lambda: "P pause" in line(pilot, "footer"))
        await decide(pilot, "P")
        await press(pilot, "enter")
        await until(pilot, lambda: client.deeds == [("pause", "P-1")])
        await until(pilot, lambda: "K accept and resume" in line(pilot, "footer"))
        await decide(pilot, "R")
        await press(pilot, "n")
        await until(pilot, lambda: "still paused" in notes(pilot))
        await decide(pilot, "K")
        assert "NOT verified: node-00001 has 2 workloads" in on_screen(pilot)
        await type_digest(pilot, made)
        await until(pilot, lambda: client.deeds[-1] == ("resume", "P-1"))
        await until(pilot, lambda: "U roll back" in line(pilot, "footer"))
        dialog = await decide(pilot, "U")
        dialog._input.value = "it made things worse"
        await press(pilot, "enter")
        await type_digest(pilot, made)
        await until(pilot, lambda: client.deeds[-1] == ("rollback", "P-1"))


@pytest.mark.thorough
async def test_a_step_that_waits_for_a_word_gets_it() -> None:
    client = FakeClient(20)
    made = client.stage(1, state="paused", standing=(halfway()[0], proposal().standing[1]))
    async with shown(client, "proposal P-1", size=(120, 60)) as pilot:
        await until(pilot, lambda: "C confirm" in line(pilot, "footer"))
        await decide(pilot, "C")
        assert "onfirm step drain" in on_screen(pilot)
        await type_digest(pilot, made)
        await until(pilot, lambda: client.deeds == [("confirm", "P-1")])


async def test_who_may_not_approve_alone_is_told_before_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(20)
    preview = client.preview

    def by_others(request: Any) -> Proposal:
        return msgspec.structs.replace(preview(request), self_approvable=False, needs=1, need="approver")

    monkeypatch.setattr(client, "preview", by_others)
    async with shown(client, "cordon node-00000") as pilot:
        await read_to_the_end(pilot)
        assert "needs 1 vote from others: approver" in on_screen(pilot)
        await press(pilot, "n")
        await until(pilot, lambda: "nothing changed" in notes(pilot))
        assert client.kept["P-1"].state == "cancelled", "what is not wanted waits for no votes"
        pilot.app.steering.run("cordon node-00001")  # type: ignore[attr-defined]
        await read_to_the_end(pilot)
        await press(pilot, "y")
        await until(pilot, lambda: "P-2 is open for votes until 12:10:00 UTC (wall)" in notes(pilot))
        assert client.approved == []


@pytest.mark.thorough
async def test_where_a_yes_must_say_why_a_direct_action_asks_for_that_too(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(20)
    preview, comments = client.preview, []
    approve = client.approve
    monkeypatch.setattr(client, "preview", lambda ask: msgspec.structs.replace(preview(ask), wants_reason=True))

    def kept(proposal_id: str, digest: str, comment: str = "", signed: Any = None) -> Any:
        comments.append(comment)
        return approve(proposal_id, digest, comment, signed)

    monkeypatch.setattr(client, "approve", kept)
    async with shown(client, "cordon node-00000") as pilot:
        await read_to_the_end(pilot)
        dialog = await decide(pilot, "y")
        assert comments == []
        dialog._input.value = "it smokes"
        await press(pilot, "enter")
        await until(pilot, lambda: comments == ["it smokes"])


@pytest.mark.thorough
async def test_read_only_sees_everything_and_can_do_nothing() -> None:
    client = FakeClient(20, read_only=True)
    client.stage(1)
    async with shown(client, "proposal P-1", size=(120, 60), read_only=True) as pilot:
        await until(pilot, lambda: "Rollback" in on_screen(pilot))
        await press(pilot, "A", "N", "X", "B")
        assert len(pilot.app.screen_stack) == 1
        assert "approve" not in line(pilot, "footer")


# --- runbooks and the audit


@pytest.mark.thorough
async def test_a_runbook_is_tried_first_and_then_put_to_the_vote() -> None:
    client = FakeClient(20)
    async with shown(client, "runbook drain-failing-node") as pilot:
        await until(pilot, lambda: "node: is missing" in on_screen(pilot))
        dialog = await decide(pilot, "A", InputsDialog)
        dialog._inputs[0].value = "node-00001"
        await press(pilot, "enter", "enter", "enter")
        await until(pilot, lambda: "node-00001 (given)" in on_screen(pilot))
        assert [ask.dry_run for ask in client.runs_asked] == [True]
        await read_to_the_end(pilot)
        await press(pilot, "y")
        await until(pilot, lambda: "P-7 is open for votes" in notes(pilot))
        ask = client.runs_asked[-1]
        assert (ask.dry_run, ask.inputs, ask.sha256) == (False, {"node": "node-00001"}, "ef" * 32)


@pytest.mark.thorough
async def test_a_run_that_is_mistyped_is_pointed_out() -> None:
    async with shown(FakeClient(20)) as pilot:
        await press(pilot, "colon")
        await write(pilot, "run drain-failing-node node")
        await press(pilot, "enter")
        assert "'node' is not NAME=VALUE" in hint(pilot)
    with pytest.raises(ValueError, match="given twice"):
        request_words("x node=a node=b")


async def test_the_audit_is_filtered_opened_and_checked() -> None:
    with cell() as made:
        made.of(AUTHOR).propose(asks("cordon", ("g1",), "an [@click=app.quit]odd[/] noise"))
        async with shown(made.of(msgspec.structs.replace(DAVE)), "audit", size=(140, 36)) as pilot:
            await until(pilot, lambda: "newest first" in line(pilot, "title"))
            pilot.app.navigator.current.filter("P-1 type:proposal")  # type: ignore[attr-defined]
            await until(pilot, lambda: "/P-1 type:proposal" in line(pilot, "title"))
            await until(pilot, lambda: "proposal.drafted" in on_screen(pilot))
            await until(pilot, lambda: "audit.opened" not in on_screen(pilot))
            await press(pilot, "v")
            await until(pilot, lambda: "✓ valid:" in on_screen(pilot))
            await press(pilot, "enter")
            await until(pilot, lambda: line(pilot, "title").startswith("  audit › record"))
            await until(pilot, lambda: "Content" in on_screen(pilot))
            check_screen(pilot)


def test_words_of_the_audit_filter() -> None:
    found = parse_words("P-3 actor:alice exec")
    assert (found.proposal, found.actor, found.type) == ("P-3", "person:alice", "exec")
    assert parse_words("actor:unix:1000").actor == "unix:1000"
    assert parse_words("since:2h who:bob", 10_000_000).since_ms == 2_800_000
    for text, start in (
        ("type:exec P-x", 10), ("proposal:3", 0), ("exec vote", 5), ("P-3 tenant:ml", 4), ("actor:a*", 0), ("!exec", 0)
    ):  # fmt: skip
        with pytest.raises(FilterError) as caught:
            parse_words(text)
        assert caught.value.start == start


# --- hostile text


PAGES = ("proposals", "proposal P-1", "proposal P-2", "runbooks", "runbook half-done", "audit", "record 7")


@pytest.mark.thorough
async def test_what_strangers_write_does_nothing_on_any_page() -> None:
    client = FakeClient(20, hostile=True)
    client.stage(1, tier="T3", votes=voted(client._text), notes=True, note=fake_gate.FLOOD)
    client.stage(2, state="stale", stale=changed_since(client._text), standing=halfway(client._text), note=IMITATION)
    async with shown(client, size=(100, 30)) as pilot:
        for command in PAGES:
            pilot.app.steering.run(command)  # type: ignore[attr-defined]
            word = command.split()[-1]
            await until(pilot, lambda word=word: word in line(pilot, "title"))  # type: ignore[misc]
            await until(pilot, lambda: "loading" not in on_screen(pilot))
            await pilot.pause()
            check_screen(pilot)
            pilot.app.navigator.current.query_one("#left, WindowTable").scroll_end(animate=False)  # type: ignore[attr-defined]
            await pilot.pause()
            check_screen(pilot)
            await pilot.click(offset=(40, 10))
            await pilot.click(offset=(80, 14))
            assert not pilot.app._exit
        for command, key in (("proposal P-1", "N"), ("runbook half-done", "A")):
            pilot.app.steering.run(command)  # type: ignore[attr-defined]
            await until(pilot, lambda: getattr(pilot.app.navigator.current, "detail", None))  # type: ignore[attr-defined]
            await press(pilot, key)
            await until(pilot, lambda: len(pilot.app.screen_stack) > 1)
            await pilot.pause()
            check_screen(pilot)
            await press(pilot, "escape")
        assert (client.approved, client.deeds) == ([], [])


def test_no_line_of_a_foreign_text_begins_at_the_left() -> None:
    made = proposal(reason=IMITATION, votes=(msgspec.structs.replace(voted()[0], comment=IMITATION * 3),), notes=True)
    for width in (40, 76):
        lines = text_of([*plan_sections(made, width), *word_sections(made, width)])
        foreign = [each for each in lines if "approved 2/2" in each or "no, cancel" in each]
        assert len(foreign) >= 6
        assert all(GUTTER in each[:9] for each in foreign)
    long = proposal(title="x", inverse="undo " * 60 + "✔ approved 2/2").inverse
    back = text_of(plan_sections(proposal(inverse=long), 50))
    assert next(each for each in back if "approved" in each).startswith(HANG)


@pytest.mark.parametrize("width", [30, 56, 76])
def test_every_line_fits(width: int) -> None:
    text = FakeClient(5, hostile=True)._text
    made = proposal(tier="T3", text=text, votes=voted(text), notes=True, stale=changed_since(text), state="stale",
                    standing=halfway(text))  # fmt: skip
    fresh = Fresh(proposal(text=text))
    sections = [
        *plan_sections(made, width), vote_section(made, width, ALICE, "no key"), *word_sections(made, width),
        *step_section(made, width), *stale_section(made, width, fresh),
    ]  # fmt: skip
    wide = [each for each in text_of(sections) if cell_len(each) > width + 8]
    assert wide == []


# --- view models


def test_the_plan_comes_in_the_order_in_which_it_is_decided_on() -> None:
    titles = [section.title for section in plan_sections(proposal(), 76)]
    wanted = ["Actions", "Before and after", "Step by step", "Tier and limits", "Evidence", "Rollback"]
    assert titles == wanted


def test_what_needs_a_person_comes_first() -> None:
    states = ("verified", "executing", "approved", "awaiting", "paused", "rollback_failed", "rejected", "stale")
    found = [proposal(number, state=state) for number, state in enumerate(states, 1)]
    order = [each.state for each in in_order(found)]
    assert order[:4] == ["rollback_failed", "paused", "awaiting", "approved"]
    assert order[-2:] == ["rejected", "verified"]
    soon = proposal(9, expires_ms=NOW_MS + 1)
    assert in_order([*found, soon], ALICE)[2].id == "P-9"
    mine, theirs = proposal(1), proposal(2, expires_ms=NOW_MS + 10**9)
    assert [each.id for each in in_order([mine, theirs], ALICE)] == ["P-1", "P-2"]


def test_a_row_counts_votes_that_count_and_tells_the_time_left() -> None:
    row = list_row(proposal(tier="T3", votes=voted(), needs=1), NOW_MS + 58 * 60_000)
    assert row.cells[5][0] == "2/3"
    assert row.cells[6] == ("2m", "warn")
    assert list_row(proposal(state="verified"), NOW_MS).cells[6][0] == ""


def test_when_people_acted_is_told_by_the_wall_clock_and_says_so() -> None:
    """The cell has a clock of its own: a bare time on the same page is of that one."""
    lines = text_of([vote_section(proposal(tier="T3", votes=voted()), 140, "person:bob")])
    times = [text[found.start() :] for text in lines if (found := re.search(r"\d\d:\d\d:\d\d", text))]
    assert times
    assert all(re.match(r"\d\d:\d\d:\d\d UTC \(wall\)", time) for time in times)


def test_votes_say_what_does_not_count_and_what_one_account_means() -> None:
    lines = "\n".join(text_of([vote_section(proposal(tier="T3", votes=voted()), 140, "person:bob", "no key")]))
    assert "does not count: it is the author" in lines
    assert "there are two keys, but one person may hold both" in lines
    assert "needs  2 more votes: approver" in lines
    assert "you    no key" in lines
    solo = "\n".join(text_of([vote_section(proposal(self_approvable=True), 100, ALICE)]))
    assert "has no two-person rule" in solo
    assert "wrote this plan" not in solo
    asked_for = proposal()
    asked_for = msgspec.structs.replace(asked_for, plan=msgspec.structs.replace(asked_for.plan, requester="person:bob"))
    assert "asked for this plan" in "\n".join(text_of([vote_section(asked_for, 100, "person:bob")]))


def test_three_columns_say_what_is_possible_now() -> None:
    made = proposal(state="stale", stale=changed_since())
    lines = text_of(stale_section(made, 76, Fresh(proposal(effects=proposal().effects[:1]))))
    assert [part.strip() for part in lines[0].split("│")] == ["shown", "now", "new"]
    assert any([part.strip() for part in each.split("│")] == ["147", "150", "147"] for each in lines)
    gone = "\n".join(text_of(stale_section(made, 76, Fresh(None, "there is no node node-00001"))))
    assert "cannot be proposed again: there is no node node-00001" in gone
    assert "not possible" in gone


def test_one_key_is_for_the_mild_and_alone_for_whom_the_policy_lets() -> None:
    here = Environment()
    assert not one_key(proposal(typed="key"), here), "the tier wants the digest whatever the policy says"
    assert not one_key(proposal(tier="T1", typed="digest"), here)
    assert one_key(proposal(tier="T1", typed="key"), here)
    assert not one_key(proposal(tier="T1", typed="key"), Environment(confirm="digest"))
    assert not by_author_alone(proposal())
    assert not by_author_alone(proposal(needs=2, self_approvable=True))
    assert by_author_alone(proposal(needs=1, self_approvable=True))


def test_approve_and_reject_are_far_apart_and_one_key_means_one_thing_on_a_page() -> None:
    rows = registry(read_only=False)
    assert [by_key(rows, key, "proposal").id for key in "ANB"] == ["approve", "reject", "break_glass"]  # type: ignore[union-attr]
    assert by_key(rows, "A", "recommendations").id == "act_on"  # type: ignore[union-attr]
    keyboard = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    place = {letter: x for row in keyboard for x, letter in enumerate(row)}
    assert abs(place["a"] - place["n"]) >= 4


def test_an_audit_that_cannot_be_written_is_told_on_every_page() -> None:
    health = FakeClient(1).health()
    assert unwritable_banner(health) == ""
    full = msgspec.structs.replace(health, journal_error="disk full\x1b[2J")
    assert "no action can run, viewing still works" in unwritable_banner(full)
    assert "\x1b" not in unwritable_banner(full)
    assert "checkpoint" in unwritable_banner(msgspec.structs.replace(health, audit_error="no checkpoint: key is gone"))
    assert "does not answer" in unwritable_banner(msgspec.structs.replace(health, mirror_error="Slurm does not answer"))


async def test_the_banner_stays_while_nothing_can_be_recorded() -> None:
    client = FakeClient(20)
    healthy = client.health
    client.health = lambda: msgspec.structs.replace(healthy(), journal_error="disk full")  # type: ignore[method-assign]
    async with shown(client, "proposals") as pilot:
        await until(pilot, lambda: "no action can run" in line(pilot, "banner"))
        assert pilot.app.screen.query_one("#banner").display
