"""A draft on the console: the rules' at once, the model's beside it, and on to the vote, driven by keys."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot

from console.tui.app import MusterApp
from console.tui.screens.draft import DraftPane, DraftsPane, ask_of, report_of
from console.tui.screens.proposals import ProposalPane
from console.views.draft import UNVERIFIED, by_keys, draft_columns, flowed, frame_section, sentence_lines
from console.views.proposal import GUTTER
from engine.model.commands import HoldQueues
from engine.model.errors import NotFoundError, SpecError
from runbooks.drafts.typed_draft import DraftAsk, DraftRun, Sentence, Span
from tests.console import fake_drafts, fake_gate
from tests.console.fake_client import HOSTILE, NOW_MS
from tests.console.fake_drafts import STANDING, UNCONFIGURED, DraftingClient
from tests.console.tui.screens.test_proposal_pages import cell, on_screen, text_of
from tests.console.tui.test_app import line, notes, press, quick, until, write  # noqa: F401
from tests.console.tui.test_hostile_text import check_screen, take_the_bait
from tests.support.people import ALICE as AUTHOR


@asynccontextmanager
async def shown(
    client: DraftingClient, *lines: str, size: tuple[int, int] = (80, 24), read_only: bool = False
) -> AsyncIterator[Pilot[None]]:
    """A console after these `:` lines."""
    app = MusterApp(lambda: client, title="test", read_only=read_only)  # type: ignore[arg-type,return-value]
    async with app.run_test(size=size, notifications=True) as pilot:
        await until(pilot, lambda: app.connected and app.navigator.current is not None)
        for each in lines:
            app.steering.run(each)
        await pilot.pause()
        yield pilot


def page(pilot: Pilot[None]) -> DraftPane:
    return pilot.app.navigator.current  # type: ignore[attr-defined,no-any-return]


async def arrived(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: isinstance(page(pilot), DraftPane) and page(pilot).detail is not None)
    await pilot.pause()


def hostile(number: int, _text: str) -> str:
    return HOSTILE[number % len(HOSTILE)]


async def test_the_rules_draft_is_on_the_screen_while_the_model_thinks_and_esc_stops_only_that() -> None:
    client = DraftingClient(fake_drafts.thinking())
    async with shown(client, "draft --llm GPU queue wait is over SLO") as pilot:
        await arrived(pilot)
        text = on_screen(pilot)
        assert "waiting for the answer, 3.2s of 20.0s" in text
        assert "scale pool h100 from 12 to 14 nodes" in text
        assert "✓ reached" in text
        assert client.asked == [DraftAsk(question="GPU queue wait is over SLO", model=True)]
        assert "A propose rule's" in line(pilot, "footer"), "nothing waits for the model"
        await press(pilot, "escape")
        await until(pilot, lambda: client.cancelled == ["D-1"])
        await until(pilot, lambda: "the draft by rule stands" in on_screen(pilot))
        assert isinstance(page(pilot), DraftPane)
        await press(pilot, "escape")
        await until(pilot, lambda: not isinstance(page(pilot), DraftPane))


@pytest.mark.thorough
async def test_a_second_esc_leaves_also_when_the_engine_is_slow_to_stop() -> None:
    client = DraftingClient(fake_drafts.thinking())
    client.cancel_draft = lambda draft_id: client.script[0]  # type: ignore[method-assign]
    async with shown(client, "draft D-1") as pilot:
        await arrived(pilot)
        await press(pilot, "escape", "escape")
        await until(pilot, lambda: not isinstance(page(pilot), DraftPane))


@pytest.mark.thorough
async def test_a_second_esc_leaves_also_while_the_engine_is_away() -> None:
    client = DraftingClient(fake_drafts.thinking())
    async with shown(client, "draft D-1") as pilot:
        await arrived(pilot)
        client.down = True
        await press(pilot, "escape", "escape")
        await until(pilot, lambda: not isinstance(page(pilot), DraftPane))


@pytest.mark.thorough
async def test_both_stand_side_by_side_where_there_is_room_and_one_below_the_other_where_not() -> None:
    async with shown(DraftingClient(), "draft D-1", size=(140, 40)) as pilot:
        await arrived(pilot)
        first = next(row for row in on_screen(pilot).splitlines() if "Draft D-1" in row)
        assert "By the model" in first
        await pilot.resize_terminal(100, 40)
        await until(pilot, lambda: not page(pilot)._right.display)
        await pilot.pause()
        assert "By the model" not in next(row for row in on_screen(pilot).splitlines() if "Draft D-1" in row)
        await press(pilot, "G")
        await until(pilot, lambda: UNVERIFIED in on_screen(pilot))


@pytest.mark.parametrize(
    ("key", "drafter", "proposal"),
    [("A", "rule", "P-4"), pytest.param("M", "model", "P-5", marks=pytest.mark.thorough)],
)
async def test_proposing_leads_to_the_ordinary_page_of_the_proposal(key: str, drafter: str, proposal: str) -> None:
    client = DraftingClient()
    async with shown(client, "draft D-1") as pilot:
        await arrived(pilot)
        await press(pilot, key)
        await until(pilot, lambda: isinstance(page(pilot), ProposalPane))
        assert client.put == [("D-1", drafter)]
        assert [*client.approved, *client.deeds] == [], "no votes yet, nothing was done"
        await until(pilot, lambda: proposal in line(pilot, "title"))
        await press(pilot, "escape")
        await until(pilot, lambda: f"proposed as {proposal}" in on_screen(pilot))
        await press(pilot, key)
        await until(pilot, lambda: isinstance(page(pilot), ProposalPane))
        assert len(client.put) == 1, "it is shown again, not proposed again"


async def test_nothing_to_do_cannot_be_proposed_and_says_why() -> None:
    calm = fake_drafts.run(rule=fake_drafts.nothing(), model_state="off", model=None, agreement="")
    client = DraftingClient(calm, standing=UNCONFIGURED)
    async with shown(client, "draft D-1") as pilot:
        await arrived(pilot)
        assert "○ no action needed" in on_screen(pilot)
        assert "not configured; the rules work without one" in on_screen(pilot)
        assert "A propose" not in line(pilot, "footer")
        await press(pilot, "A", "m")
        assert "the rules propose no action" in notes(pilot)
        assert "no model is configured: muster cell model" in notes(pilot)
        assert client.put == []
        assert client.asked == []


@pytest.mark.thorough
async def test_m_asks_the_model_the_same_and_d_drafts_anew() -> None:
    alone = fake_drafts.run(model_state="off", model=None, agreement="", ask=DraftAsk(question="why?", finding="wl-1"))
    client = DraftingClient(alone)
    async with shown(client, "draft D-1") as pilot:
        await arrived(pilot)
        assert "not asked; m asks qwen2.5-7b at 127.0.0.1:8000" in on_screen(pilot)
        await press(pilot, "m")
        await until(pilot, lambda: client.asked)
        await press(pilot, "d")
        await until(pilot, lambda: len(client.asked) == 2)
        assert client.asked == [
            DraftAsk(question="why?", finding="wl-1", model=True), DraftAsk(question="why?", finding="wl-1"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    "where",
    ["recommendations"]
    + [pytest.param(w, marks=pytest.mark.thorough) for w in ("workloads", "nodes", "queues", "workload wl-000001")],
)
async def test_d_drafts_about_what_is_selected(where: str) -> None:
    client = DraftingClient()
    async with shown(client, where) as pilot:
        await until(pilot, lambda: where.split()[0] == page(pilot).NAME and page(pilot).copyable)
        about = page(pilot).copyable
        await press(pilot, "d")
        await arrived(pilot)
        assert client.asked == [DraftAsk(finding=about)]
        await press(pilot, "escape")
        await until(pilot, lambda: where.split()[0] == page(pilot).NAME)


@pytest.mark.thorough
async def test_d_where_nothing_is_selected_begins_the_question() -> None:
    client = DraftingClient()
    async with shown(client) as pilot:
        await press(pilot, "d")
        await write(pilot, "draft why does nlp wait?")
        await press(pilot, "enter")
        await arrived(pilot)
        assert client.asked == [DraftAsk(question="why does nlp wait?")]


@pytest.mark.thorough
async def test_reports_reach_back_as_far_as_was_said() -> None:
    client = DraftingClient(fake_drafts.run(rule=fake_drafts.handed_over(), model_state="off", model=None))
    async with shown(client, "handover 4h") as pilot:
        await arrived(pilot)
        await until(pilot, lambda: "What waits" in on_screen(pilot))
        assert client.asked == [DraftAsk(task="handover", since_ms=NOW_MS - 4 * 3_600_000)]
        with pytest.raises(SpecError, match="duration"):
            pilot.app.steering.run("summary soon")  # type: ignore[attr-defined]


@pytest.mark.thorough
async def test_a_draft_that_is_refused_leaves_the_page_and_says_why() -> None:
    client = DraftingClient()
    async with shown(client, "workloads") as pilot:
        client.refuse = NotFoundError("there is no workload 'wl-x'", "Did you mean wl-1?")
        pilot.app.steering.run("draft --from wl-x")  # type: ignore[attr-defined]
        await until(pilot, lambda: "there is no workload 'wl-x'" in notes(pilot))
        assert page(pilot).NAME == "workloads"


@pytest.mark.thorough
async def test_kept_drafts_are_listed_and_opened() -> None:
    client = DraftingClient(fake_drafts.rejected(), fake_drafts.run(2))
    client.draft_run = lambda draft_id, after=-1, wait_s=0.0: fake_drafts.rejected()  # type: ignore[method-assign]
    async with shown(client, "drafts") as pilot:
        await until(pilot, lambda: isinstance(page(pilot), DraftsPane) and "✓ ✗" in on_screen(pilot))
        await press(pilot, "enter")
        await arrived(pilot)
        assert "✗ no draft (deadline): it gave no answer within 20 s" in on_screen(pilot)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(80, 30), (140, 60)], ids=str)
async def test_hostile_drafts_do_nothing_and_stay_in_their_frame(size: tuple[int, int]) -> None:
    client = DraftingClient(fake_drafts.run(text=hostile), hostile=True)
    async with shown(client, "draft D-1", size=size) as pilot:
        await arrived(pilot)
        await take_the_bait(pilot, 4)
        for _ in range(3):
            check_screen(pilot)
            await press(pilot, "pagedown")
        assert not pilot.app._exit
        assert client.put == []
        assert client.cancelled == []
        assert pilot.app.screen is pilot.app.screen_stack[0]


@pytest.mark.thorough
async def test_from_a_question_to_the_vote_of_another_on_a_live_cell() -> None:
    """The rules find what holds the queue; who asked proposes it and cannot approve it; nothing happens before that."""
    with cell(AUTHOR) as made:
        made.loop.call(lambda engine: engine.command(HoldQueues(names=("a",))))
        made.submit("wl-2")
        made.loop.call(lambda engine: engine.advance(engine.now_ms + 3_600_000))
        client: Any = made.of(AUTHOR)
        async with shown(client, "draft --llm queue a is stuck", size=(120, 40)) as pilot:
            await arrived(pilot)
            await until(pilot, lambda: page(pilot).detail.run.over)  # type: ignore[union-attr]
            text = on_screen(pilot)
            assert "no draft (not_configured)" in text
            assert "1 workload of queue a waits" in text
            assert "enter picks one" in text
            await press(pilot, "enter")
            await until(pilot, lambda: (shown := page(pilot).detail) is not None and shown.run.id == "D-2")
            await until(pilot, lambda: page(pilot).detail.run.over)  # type: ignore[union-attr]
            text = on_screen(pilot)
            assert "from others, once it is proposed" in text
            await press(pilot, "A")
            await until(pilot, lambda: isinstance(page(pilot), ProposalPane) and page(pilot).detail is not None)
            await pilot.pause()
            assert "asked for this plan" in on_screen(pilot)
            kept = made.base.proposal("P-1")
            assert (kept.state, kept.plan.requester, kept.plan.origin) == ("awaiting", "person:alice", "recommender")
            assert made.base.workload("wl-2").state == "queued"


@pytest.mark.thorough
async def test_a_choice_is_picked_by_enter_by_its_line_and_by_its_name() -> None:
    client = DraftingClient(fake_drafts.run(rule=fake_drafts.undecided(), model_state="off", model=None, agreement=""))
    async with shown(client, "draft D-1") as pilot:
        await arrived(pilot)
        text = on_screen(pilot)
        assert "read as   work waits" in text
        assert "pick the one you mean to get a draft" in text
        await press(pilot, "enter")
        await until(pilot, lambda: client.asked)
        for typed in ("draft --pick 2 D-1", "draft --pick held_queue:nlp D-1", "draft --pick nlp jobs wait"):
            before = len(client.asked)
            pilot.app.steering.run(typed)  # type: ignore[attr-defined]
            await until(pilot, lambda before=before: len(client.asked) > before)
        assert [ask.pick for ask in client.asked] == [
            "wait_WaitingForQuota:research", "held_queue:nlp", "held_queue:nlp", "nlp",
        ]  # fmt: skip
        assert client.asked[-1] == DraftAsk(question="jobs wait", pick="nlp")


# --- what is shown, without a screen


def flat(run: DraftRun, width: int = 78) -> list[str]:
    left, right = draft_columns(run, STANDING, NOW_MS, width, two=False, ways=by_keys())
    return text_of([*left, *right])


@pytest.mark.parametrize("width", [24, 40, 58, 78, 118])
def test_every_line_of_the_model_stands_behind_the_gutter_and_fits(width: int) -> None:
    section = frame_section(fake_drafts.by_model(hostile), width)
    lines = text_of([section])
    assert all(text.startswith(GUTTER) for text in lines)
    imitation = "\n".join(["Actions", "  1  cordon node-00001", "A approve   N reject", "━" * 200])
    pasted = fake_drafts.by_model(summary=(Sentence(spans=(Span(text=imitation),)),))
    assert all(text.startswith(GUTTER) for text in text_of([frame_section(pasted, width)]))


def test_an_unsupported_sentence_is_marked_and_says_why_without_colour() -> None:
    text = " ".join(each.removeprefix(GUTTER).strip() for each in flat(fake_drafts.run()))
    assert "unsupported: Drain 97 nodes." in text
    assert '("97" is no fact or name that it was told)' in text
    section = frame_section(fake_drafts.by_model(), 78)
    assert section.note == "advisory only; 1 unsupported"
    assert [tone for line in section.lines for text, tone in line.spans if text.startswith("unsupported:")] == ["bad"]


def test_what_is_to_be_done_comes_before_any_word_about_it() -> None:
    lines = flat(fake_drafts.run())
    order = [
        "scale pool h100 from 12 to 14",
        "✓ reached",
        "rollback ",
        "record",
        "✗ 1 node more",
        "drain node-00001 and",
        UNVERIFIED,
    ]
    left, right = draft_columns(fake_drafts.run(), STANDING, NOW_MS, 78, two=False, ways=by_keys())
    titles = [section.title for section in (*left, *right)]
    at = [next(n for n, text in enumerate(lines) if mark in text) for mark in order[:-1]]
    assert at == sorted(at)
    assert titles.index("By the model") < titles.index(UNVERIFIED) < titles.index("The call")


@pytest.mark.parametrize(
    ("drafted", "told"),
    [
        (fake_drafts.rejected("schema", "steps: Unknown field. It is not used"), "steps: Unknown field"),
        (fake_drafts.run(rule=None, rule_state="failed", rule_why="the cell has no nodes"), "the cell has no nodes"),
        (fake_drafts.run(notes=("there is no finding 'R-x'",)), "! there is no finding 'R-x'"),
        (fake_drafts.run(rule=fake_drafts.by_rule(flags=("not_simulated",))), "! NOT tried on a fork"),
        (
            fake_drafts.run(
                rule=fake_drafts.by_rule(preview=msgspec.structs.replace(fake_gate.proposal(), note="T1 is frozen"))
            ),
            "would deny it: T1 is frozen",
        ),
        (fake_drafts.run(rule=fake_drafts.new_runbook()), "✓ no lint problems; not approved yet"),
    ],
)  # fmt: skip
def test_what_happened_is_said(drafted: DraftRun, told: str) -> None:
    assert told in "\n".join(flat(drafted))


def test_a_draft_that_was_rejected_shows_nothing_of_what_the_model_said() -> None:
    text = "\n".join(flat(fake_drafts.rejected("leak_detected", "it repeated its instructions")))
    assert UNVERIFIED not in text
    assert "Drain the slow nodes" not in text


def test_words_are_wrapped_with_their_looks_whatever_their_width() -> None:
    spans = [("so (", ""), ("two words", "bad"), (") 日本語の名前とても長い " + "x" * 30, "")]
    for width in range(2, 30):
        lines = flowed(spans, width)
        assert all(sum(2 if ord(c) > 0x2000 else 1 for text, _ in row for c in text) <= width for row in lines)
        joined = "".join(text for row in lines for text, _ in row)
        assert joined.replace(" ", "") == "".join(text for text, _ in spans).replace(" ", "")
    marked = Sentence(spans=(Span(text="a "), Span(text="9 nodes", mark="value")), cites=("F1",), unsupported="why")
    assert "".join(text for text, _ in sentence_lines(marked, 40)[0].spans) == "unsupported: a 9 nodes [F1] (why)"


@pytest.mark.parametrize(
    ("typed", "ask"),
    [
        ("what's \"up\" -- here? [/x]", DraftAsk(question="what's \"up\" -- here? [/x]")),
        ("--llm --from R-1 why", DraftAsk(question="why", finding="R-1", model=True)),
        ("--explain --from n1", DraftAsk(task="explain", finding="n1")),
        ("--pick nlp jobs wait", DraftAsk(question="jobs wait", pick="nlp")),
        ("", DraftAsk()),
    ],
)  # fmt: skip
def test_a_question_may_have_any_signs_in_it(typed: str, ask: DraftAsk) -> None:
    assert ask_of(typed) == ask


@pytest.mark.parametrize("typed", ["--from", "--rm -rf", "--llmx why"])
def test_a_flag_that_is_not_there_is_named(typed: str) -> None:
    with pytest.raises(SpecError, match=typed.split()[0]):
        ask_of(typed)


def test_reports_take_how_far_back_and_nothing_else() -> None:
    assert report_of("incident", "--llm")(NOW_MS) == DraftAsk(
        task="incident", model=True, since_ms=NOW_MS - 2 * 3_600_000
    )
    with pytest.raises(SpecError, match="takes a period"):
        report_of("handover", "4h 5h")


def test_fakes_are_what_the_wire_carries() -> None:
    for made in (fake_drafts.run(), fake_drafts.rejected(), fake_drafts.thinking()):
        assert msgspec.json.decode(msgspec.json.encode(made), type=DraftRun) == made
