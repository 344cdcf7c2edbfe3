"""What the console says around a decision: what to press next, what has moved meanwhile, and a report as Markdown."""

from __future__ import annotations

import msgspec
import pytest

from console.cli.demo_cell import AGENTS, cell, feed
from console.tui.page_data import markdown, quoted_text
from console.views.decision_needs import new_votes, press_next, what_moved
from console.views.policy import policy_columns, review_sections
from engine.control import Engine
from engine.model.commands import Submit
from engine.model.specs import WorkloadSpec
from runbooks.drafts.typed_draft import Draft, DraftAsk, DraftRun, Part, Sentence, Span
from runbooks.plans.typed_plan import Review
from tests.console import fake_policy
from tests.console.fake_gate import ALICE, BOB, NOW_MS, halfway, proposal, voted
from tests.console.fake_gate import plain as untouched


def pressed(state: str, me: str = BOB, *, read: bool = True, word: bool = False, unverified: bool = False) -> str:
    shown = proposal(state=state, standing=halfway() if unverified else proposal().standing)
    return press_next(shown, me, NOW_MS, read=read, waits_for_word=word, unverified=unverified)


def test_every_state_says_what_to_press_or_for_what_it_waits() -> None:
    assert pressed("awaiting") == "A approves, N rejects"
    assert "scroll to the end" in pressed("awaiting", read=False)
    assert pressed("awaiting", ALICE) == "waiting for 1 vote from others"
    assert pressed("paused") == "R resumes, U rolls it back"
    assert pressed("paused", word=True).startswith("C confirms")
    assert pressed("paused", unverified=True).startswith("K accepts")
    assert pressed("verified").endswith("U rolls it back")
    assert pressed("stale").startswith("V ")
    assert pressed("executing") == "step 1 of 2, cordon: waiting"


def test_an_answer_to_what_has_moved_is_told_who_was_first_and_when() -> None:
    shown = proposal()
    assert what_moved(shown, shown, ("awaiting",)) == ""
    done = msgspec.structs.replace(shown, state="verified", votes=voted()[:1])
    assert what_moved(shown, done, ("awaiting",)) == (
        "P-1 is verified, approved by bob at 12:00:00 UTC (wall): no answer is needed any more"
    )
    other = msgspec.structs.replace(shown, digest="00" * 32)
    assert "has a new plan" in what_moved(shown, other, ("awaiting",))
    assert new_votes(shown, done) == "bob voted yes just now"


def test_what_strangers_wrote_is_no_markup_in_a_report() -> None:
    hostile = "](javascript:x) <script>\n# heading\x1b[2J `rm`"
    said = Sentence(spans=(Span(text=hostile),))
    draft = Draft(drafter="rule", task="handover", summary=(said,), parts=(Part(heading="Open", sentences=()),))
    text = markdown(DraftRun(id="D-1", serial=1, ask=DraftAsk(task="handover"), asked_ms=NOW_MS, rule=draft))
    assert text.startswith("# Shift handover\n")
    assert "\x1b" not in text
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert text.count("\n# ") == 0, "no line of it begins a heading"
    assert "## Open\n\nNothing." in text
    assert quoted_text("a\nb") == "a b"


def test_what_loosens_a_policy_is_marked_and_what_waits_comes_first() -> None:
    view = fake_policy.view(untouched, ())
    left, _ = policy_columns(view, NOW_MS, 80)
    assert left[0].title == "Waiting for votes: version 2"
    change = msgspec.structs.replace(view.candidates[0].changes[0], loosens=True)
    loose = msgspec.structs.replace(view.candidates[0], changes=(change,))
    left, _ = policy_columns(msgspec.structs.replace(view, candidates=(loose,)), NOW_MS, 80)
    assert any(span[0].startswith("! loosens") for line in left[0].lines for span in line.spans)


def test_reviews_that_wait_come_before_those_that_were_looked_at() -> None:
    waits = Review(id=2, about="P-2", subject=BOB, forced=True, text="break-glass of P-2", opened_ms=NOW_MS)
    over = Review(id=1, about="P-1", subject=BOB, forced=False, text="why", opened_ms=1, closed_ms=2, closed_by=ALICE)
    sections = review_sections((waits, over), 80)
    assert [section.lines[0].link for section in sections] == ["review:2", "review:1"]


@pytest.mark.parametrize("nodes", [20, pytest.param(400, marks=pytest.mark.thorough)])
def test_the_demo_has_a_team_that_waits_for_quota_beside_one_that_uses_none(nodes: int) -> None:
    engine = Engine.open(None, cell=cell(nodes), seed=1)
    for at_ms, what in feed(engine, 1):
        if isinstance(what, WorkloadSpec) and what.queue == AGENTS:
            engine.advance(at_ms)
            engine.command(Submit(workloads=(what,)))
            if what.id == "agents-0002":
                break
    engine.advance(engine.now_ms + 60_000)
    assert engine.workload("agents-0001").state in ("placed", "running")
    waits = engine.workload("agents-0002")
    assert (waits.state, waits.reasons[0].token) == ("queued", "WaitingForQuota")
    later = next(what for _, what in feed(engine, 1) if isinstance(what, WorkloadSpec) and what.queue == AGENTS)
    assert later.id == "agents-0003", "a restart submits nothing twice"
    engine.close()
