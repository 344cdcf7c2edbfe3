"""Hand-overs and summaries of incidents: all that was done and is left, each sentence with what it rests on, and
nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from engine.control import Engine
from engine.model.commands import Cordon, FailNodes
from runbooks.drafts.facts import gather
from runbooks.drafts.handover import draft_of
from runbooks.drafts.model_answer import HEADINGS
from runbooks.drafts.shift_facts import shift_facts
from runbooks.drafts.typed_draft import Brief, Draft, Fact, ReportedFinding, Task
from runbooks.gate.approval_gate import Gate
from runbooks.gate.run_limits import FreezeSpec
from runbooks.models.prompt import prompt_of
from runbooks.plans.identity import Actor
from runbooks.plans.incidents import AlertReport
from tests.support.gate_cells import HOUR, Clock, busy_engine
from tests.support.team import Member, members, team, team_gate

T = TypeVar("T")
FOUND = ReportedFinding(id="R-k3vq7", kind="forgotten_cordons", text="node n2 is cordoned for 3 d", action="uncordon")


class Shift:
    """A team before a cell, an hour old by both clocks: r0 and r1 run, w0 and w1 wait, n2 is cordoned."""

    def __init__(self) -> None:
        self.engine = busy_engine()
        self.clock = Clock(self.engine.now_ms)
        self.gate: Gate = team_gate(self.engine, self.clock, team(channels=(("ops", "log:"),)))
        self.of: dict[str, Member] = members(self.gate)

    def pass_(self, ms: int) -> None:
        self.clock.now_ms += ms
        self.engine.advance(self.clock.now_ms)

    def call(self, ask: Callable[[Engine], T], /) -> T:
        return ask(self.engine)

    def do(self, who: str, action: Any, *targets: str, **how: Any) -> str:
        """Proposed by one who may approve it alone."""
        shown = self.of[who].propose(action, targets, **how)
        self.gate.approve(self.of[who].actor, shown.id, shown.digest, "seen", self.of[who].sign(shown))
        return shown.id

    def draft(self, task: Task = "handover", hours: int = 8, findings: tuple[ReportedFinding, ...] = ()) -> Draft:
        since_ms = max(0, self.engine.now_ms - hours * HOUR)
        of_shift = shift_facts(self.call, self.gate, since_ms=since_ms)
        read = gather(self.call, more=of_shift, findings=findings)
        return draft_of(
            Brief(
                task=task, question="", facts=read.facts, cell=read.cell, version=read.version, now_ms=read.now_ms,
                since_ms=since_ms,
            )
        )  # fmt: skip


@pytest.fixture
def shift() -> Shift:
    return Shift()


@pytest.mark.parametrize("task", ["handover", "incident"])
def test_a_time_without_an_engine_is_handed_over(shift: Shift, task: Task) -> None:
    shift.clock.now_ms += 3 * HOUR
    shift.engine.catch_up(shift.clock.now_ms)
    shift.pass_(HOUR)
    draft = shift.draft(task)
    check_cited(draft)
    [said] = [text for text in sentences(draft) if text.startswith("No engine ran from ")]
    assert said.endswith("nothing was scheduled.")
    shift.pass_(9 * HOUR)
    assert not [text for text in sentences(shift.draft(task)) if text.startswith("No engine ran")], "it is long over"


def sentences(draft: Draft, heading: str = "") -> list[str]:
    """Texts, of one part or of all."""
    return [s.text for part in draft.parts if heading in ("", part.heading) for s in part.sentences]


def check_cited(draft: Draft) -> None:
    """Each sentence cites facts that are there, and says no number, time or id that none of them has."""
    facts = {fact.id: fact for fact in draft.facts}
    for sentence in (*draft.summary, *(s for part in draft.parts for s in part.sentences)):
        assert sentence.cites, sentence.text
        cited = [facts[id_] for id_ in sentence.cites]
        known = " ".join(f"{fact.text} {fact.subject} {fact.value}" for fact in cited)
        for number in re.findall(r"\d+(?:[.,:]\d+)*", sentence.text):
            plain = number.replace(",", "")
            assert number in known or plain in known or _is_time(number, cited), (number, sentence.text, known)


def _is_time(text: str, cited: list[Fact]) -> bool:
    """A date or a clock's time of a fact, or a count of things that are cited."""
    return any(text in fact.text for fact in cited) or (text.isdigit() and int(text) <= len(cited))


def test_an_empty_shift_says_so(shift: Shift) -> None:
    draft = shift.draft()
    assert draft.summary[0].text == "Nothing was proposed or executed, and no node was lost."
    assert "Nothing was proposed or executed." in sentences(draft, "What happened")
    assert "What waits for somebody" not in {part.heading for part in draft.parts}
    check_cited(draft)


def test_how_full_the_cell_was_is_told_only_of_a_time_near_the_beginning(shift: Shift) -> None:
    shift.pass_(HOUR)
    [said] = [text for text in sentences(shift.draft(hours=1)) if text.startswith("At the start")]
    assert said.endswith(" and 2.")
    shift.engine.recent.samples.popleft()
    assert not [text for text in sentences(shift.draft(hours=8)) if text.startswith("At the start")]


def test_what_was_done_is_told_with_by_whom_and_whether_it_verified(shift: Shift) -> None:
    cordoned = shift.do("ann", "cordon", "n0", reason="ECC errors")
    refused = shift.of["ann"].propose("hold_queue", ["q"])
    shift.gate.vote(
        shift.of["ben"].actor, refused.id, refused.digest, "reject", "no", shift.of["ben"].sign(refused, "reject")
    )
    draft = shift.draft()
    happened = " ".join(sentences(draft, "What happened"))
    assert f"{cordoned} (Cordon node n0) because: ECC errors: proposed by ann, approved by ann" in happened
    assert "executed and verified (1 thing read back)" in happened
    assert f"{refused.id} (Hold queue q): proposed by ann; rejected by ben." in happened
    assert any(f"Node n0 has been cordoned for 0 s by {cordoned}" in text for text in sentences(draft, "What is open"))
    check_cited(draft)


def test_what_waits_is_told_with_whose_vote_and_until_when(shift: Shift) -> None:
    waits = shift.of["ann"].propose("drain", ["n1"])
    glass = shift.of["ann"].propose("cancel", ["r0"])
    shift.gate.break_glass(
        shift.of["pat"].actor, glass.id, glass.digest, "the house is on fire",
        shift.of["pat"].sign(glass, "approve", "breakglass"),
    )  # fmt: skip
    shift.pass_(20 * 60_000)
    draft = shift.draft()
    waiting = sentences(draft, "What waits for somebody")
    assert "break-glass of " + glass.id + ", which pat did; somebody else must close it" in waiting[0]
    assert waiting[1].startswith(f"{waits.id} (Drain node n1): proposed by ann; lacks 1 vote (approver")
    assert waiting[1].endswith(" and expires at 02:00 UTC.")
    assert any("its votes skipped by break-glass of pat" in text for text in sentences(draft, "What happened"))
    check_cited(draft)


def test_nodes_queues_freezes_and_findings_are_told(shift: Shift) -> None:
    shift.engine.command(FailNodes(ids=("n1",)))
    held = shift.do("ann", "hold_queue", "q")
    shift.gate.policies.freeze(
        shift.of["sue"].actor, FreezeSpec(name="release", from_ms=HOUR, until_ms=3 * HOUR, reason="release")
    )
    shift.pass_(HOUR)
    draft = shift.draft(findings=(FOUND,))
    happened, left = " ".join(sentences(draft, "What happened")), " ".join(sentences(draft, "What is open"))
    ahead = " ".join(sentences(draft, "What to watch"))
    assert "Node n1 was lost at 01:00 UTC; it is down now." in happened
    assert "Freeze release was set by sue at 01:00 UTC." in happened
    assert "Node n1 has been down for 60 min" in left
    assert f"Queue q is held by {held}; 3 workloads wait there." in left
    assert "Freeze release stops plans now" in left
    assert "Freeze release ends at 03:00 UTC." in ahead
    assert "R-k3vq7: node n2 is cordoned for 3 d. It suggests: uncordon." in ahead
    check_cited(draft)


def test_an_incident_is_told_in_the_order_in_which_it_happened(shift: Shift) -> None:
    shift.pass_(HOUR // 2)
    shift.engine.command(FailNodes(ids=("n1",)))
    shift.pass_(HOUR // 6)
    cordoned = shift.do("ann", "cordon", "n0")
    draft = shift.draft("incident", hours=2)
    happened = sentences(draft, "What happened")
    assert happened[0] == "01:30 UTC: node n1 was lost; it is down now."
    assert happened[1] == f"01:40 UTC: {cordoned} (Cordon node n0) started."
    assert "What was done" in {part.heading for part in draft.parts}
    check_cited(draft)


def test_what_was_before_is_not_told(shift: Shift) -> None:
    before = shift.do("ann", "cordon", "n0")
    shift.engine.command(FailNodes(ids=("n1",)))
    shift.pass_(9 * HOUR)
    draft = shift.draft(hours=8)
    assert before not in " ".join(sentences(draft))
    assert not any("was lost" in text and "No node" not in text for text in sentences(draft))
    assert "Node n1 has been down for 9 h" in " ".join(sentences(draft, "What is open"))


@pytest.mark.parametrize("task", ["handover", "incident"])
def test_headings_are_those_of_the_schema_and_a_model_is_told_the_same_without_names(shift: Shift, task: Task) -> None:
    shift.do("ann", "cordon", "n0")
    shift.engine.command(Cordon(ids=("n1",)))
    draft = shift.draft(task)
    assert {part.heading for part in draft.parts} <= set(HEADINGS[task])
    assert not draft.steps
    brief = Brief(task=task, question="", facts=draft.facts, cell="c", version=1, now_ms=shift.engine.now_ms)
    external = prompt_of(brief, egress="external", tenants=(), key=b"k" * 32, nonce="n", canary="c")
    assert "ann" not in external.messages[1].content
    assert "n0" not in external.messages[1].content
    assert '"metric": "proposal_state", "of": "P-1", "value": "verified"' in external.messages[1].content


def test_facts_without_a_shift_say_nothing_that_is_not_in_them() -> None:
    brief = Brief(task="handover", question="", facts=(), cell="c", version=1, now_ms=0)
    draft = draft_of(brief)
    assert (draft.summary, draft.parts, draft.facts) == ((), (), ())
    assert msgspec.json.encode(draft)


def test_incidents_of_the_shift_are_handed_over(shift: Shift) -> None:
    source = Actor(subject="service:alerts", kind="service", account="token:service:alerts", deeds=("alert",))
    report = shift.gate.incidents.report
    for title in ("waits are long", "a fan is loud", "the disk is full", "nothing yet"):
        report(source, AlertReport(title=title, key=title, severity="critical"))
    shift.gate.incidents.claim(shift.of["ann"].actor, "I-2")
    report(source, AlertReport(title="the disk is full", key="the disk is full", status="resolved"))
    shift.gate.incidents.close(shift.of["ben"].actor, "I-4", "a test of the alerts")
    draft = shift.draft()
    check_cited(draft)
    told = sentences(draft)
    for expected in (
        r"Incident I-1 \(critical\) has been open since .* UTC; claimed by nobody: waits are long\.",
        r"Incident I-2 \(critical\) has been open since .* UTC; claimed by ann: a fan is loud\.",
        r"Incident I-3 \(critical\) has been resolved since .* UTC and is not closed; claimed by nobody: the disk",
        r"Incident I-4 \(critical\) was closed at .* UTC; claimed by nobody: nothing yet\.",
    ):
        assert [text for text in told if re.match(expected, text)], (expected, told)
