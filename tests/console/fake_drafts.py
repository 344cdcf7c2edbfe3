"""Made-up drafts: what the rules and a model might have made of a question, and a client that gives them step by step.

`text` gives what is foreign in them, so that strangers' texts stand where they would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from engine.model.errors import NotFoundError
from runbooks.drafts.typed_draft import (
    Called,
    Draft,
    DraftAsk,
    Drafter,
    DraftGoal,
    DraftRun,
    DraftStep,
    Fact,
    ModelStanding,
    Part,
    Record,
    RunbookDraft,
    Sentence,
    Span,
    SymptomChoice,
    Thinking,
    Tried,
)
from runbooks.plans.checks import Check
from runbooks.plans.checks import Finding as Checked
from runbooks.plans.typed_plan import Proposal, asks
from tests.console.fake_client import NOW_MS, FakeClient
from tests.console.fake_gate import proposal

Text = Callable[[int, str], str]
QUESTION = "GPU queue wait is over SLO"
STANDING = ModelStanding(
    configured=True, endpoint="http://127.0.0.1:8000", model="qwen2.5-7b", egress="local", calls_hour=3,
    spent_hour_microusd=6_300, spent_day_microusd=41_000, budget_hour_microusd=500_000, budget_day_microusd=5_000_000,
)  # fmt: skip
UNCONFIGURED = ModelStanding()
SLOW = Thinking(phase="waiting", elapsed_ms=3_200, deadline_ms=20_000)


def plain(_number: int, text: str) -> str:
    return text


def says(text: str, *cites: str) -> Sentence:
    return Sentence(spans=(Span(text=text),), cites=cites)


def facts(text: Text = plain) -> tuple[Fact, ...]:
    return (
        Fact(id="F1", metric="queue_oldest_wait_s", kind="queue", subject=text(1, "research"), value=2460,
             unit="seconds", text=f"queue {text(1, 'research')}: the oldest has waited 41 min"),
        Fact(id="F2", metric="pool_nodes", kind="pool", subject="h100", value=12, unit="count",
             text="pool h100: 12 nodes of at most 20"),
        Fact(id="F3", metric="workload_gpus", kind="workload", subject="wl-000003", value=64_000, unit="gpu",
             text=f"workload wl-000003 ({text(3, 'llama pretrain')}): waits for 64 GPU"),
    )  # fmt: skip


def by_rule(text: Text = plain, **changes: Any) -> Draft:
    preview = proposal(4, tier="T1", text=text)
    made = Draft(
        drafter="rule", task="act", title="Grow pool h100 by 2 nodes", kind="queue-wait-over-slo",
        template="queue-wait-over-slo",
        summary=(says(f"Queue {text(1, 'research')} waits for room: the oldest has waited 41 min.", "F1"),),
        rationale=(says("Pool h100 may grow to 20 nodes and has 12.", "F2"),),
        risks=(says("Two nodes more cost $12.50 an hour until they are taken away."),),
        questions=(),
        steps=(DraftStep(action="scale_pool", with_={"pool": "h100", "nodes": 14},
                         line=f"scale pool {text(2, 'h100')} from 12 to 14 nodes"),),
        facts=facts(text), request=asks("scale_pool", ("h100",), nodes=14), preview=preview, effects=preview.effects,
        target=DraftGoal(
            text=f"the oldest of queue {text(1, 'research')} has waited at most 30 min", before="41 min",
            after="22 min", met=True,
            checks=(Checked(check=Check(check="pool_free_gpus", of="h100", op=">=", value=8), verdict="success",
                            found="pool h100 has 16 GPU free"),),
        ),
        tried=(Tried(text="1 node more", met=False, why="the oldest would still wait 34 min"),),
        record=Record(of="drafts by rule of runbook queue-wait-over-slo", drafted=7, proposed=5, approved=4, verified=4,
                      rejected=1),
        version=1_030,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def by_model(text: Text = plain, **changes: Any) -> Draft:
    preview = proposal(5, tier="T2", text=text)
    made = Draft(
        drafter="model", task="act", title=text(4, "Drain the slow nodes"), kind="drain",
        summary=(
            Sentence(
                spans=(
                    Span(text="The research queue has waited "),
                    Span(text="41 min", mark="value"),
                    Span(text="."),
                ),
                cites=("F1",),
            ),
            Sentence(
                spans=(Span(text=f"Drain 97 nodes. {text(5, 'APPROVED by alice, press y to carry it out')}"),),
                unsupported=text(8, '"97" is no fact or name that it was told'),
            ),
        ),
        rationale=(
            says("Two nodes are slow.", "F2"),
            Sentence(spans=(Span(text="See "), Span(text=text(6, "https://evil.example/fix"), mark="link"))),
        ),
        risks=(says("Work on them starts again."),), questions=(says("Who owns wl-000003?", "F3"),),
        steps=(DraftStep(action="drain", with_={"nodes": ("node-00001", "node-00002")},
                         line="drain node-00001 and node-00002"),),
        facts=facts(text), flags=("target_missed",), request=asks("drain", ("node-00001", "node-00002")),
        preview=preview, effects=preview.effects,
        target=DraftGoal(text="the oldest of queue research has waited at most 30 min", before="41 min", after="52 min",
                      met=False),
        record=Record(of="drafts by model qwen2.5-7b of drain", drafted=3, proposed=1, rejected=1),
        called=Called(endpoint="http://127.0.0.1:8000", model="qwen2.5-7b", returned=text(7, "qwen2.5-7b-instruct"),
                      tokens_in=2_104, tokens_out=310, cost_microusd=2_100, ms=3_200, bytes=4_096, attempts=1,
                      prompt_sha256="ab" * 32, response_sha256="cd" * 32),
        version=1_030,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def nothing(**changes: Any) -> Draft:
    made = Draft(
        drafter="rule",
        task="act",
        title="Nothing should be done",
        version=1_030,
        facts=facts()[:1],
        summary=(says("No queue waits longer than it usually does: the oldest has waited 41 min.", "F1"),),
    )
    return msgspec.structs.replace(made, **changes)


def undecided(text: Text = plain) -> Draft:
    """Two symptoms that "work waits" may mean."""
    return Draft(
        drafter="rule",
        task="act",
        title="Pick the one you mean",
        version=1_030,
        summary=(says("The cell shows 2 symptoms that it may be about."),),
        read_as="work waits",
        undecided=True,
        choices=(
            SymptomChoice(
                name="wait_WaitingForQuota:research", text=f"3 workloads of queue {text(1, 'research')} wait"
            ),
            SymptomChoice(name="held_queue:nlp", text="queue nlp is held, and 5 wait in it"),
        ),
    )


def handed_over(text: Text = plain) -> Draft:
    return Draft(
        drafter="rule",
        task="handover",
        title="Shift of 8 h",
        facts=facts(text),
        version=1_030,
        parts=(
            Part(heading="What was done", sentences=(says(f"P-3 drained {text(2, 'node-00001')}: verified.", "F2"),)),
            Part(heading="What waits", sentences=(says("P-4 waits for 1 vote.", "F3"),)),
            Part(heading="What is frozen", sentences=()),
        ),
    )


def new_runbook(text: Text = plain) -> Draft:
    book = f"---\nid: slow-nodes\ntitle: {text(4, 'Slow nodes')}\n---\n# What this is\n{text(5, 'Drain them.')}\n"
    return by_rule(text, task="runbook", steps=(), request=None, preview=None, target=None, effects=(), tried=(),
                   runbook=RunbookDraft(id="slow-nodes", text=book, sha256="ef" * 32, diff=""))  # fmt: skip


def run(number: int = 1, text: Text = plain, **changes: Any) -> DraftRun:
    """Both drafts, unless `changes` say otherwise."""
    made = DraftRun(
        id=f"D-{number}", serial=9, ask=DraftAsk(question=text(0, QUESTION), model=True), asked_ms=NOW_MS - 12_000,
        who="person:bob", rule_state="done", rule=by_rule(text), model_state="done", model=by_model(text),
        agreement="other action",
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def rejected(
    reason: str = "deadline", why: str = "it gave no answer within 20 s. Ask again", **changes: Any
) -> DraftRun:
    return run(model_state="rejected", model=None, reason=reason, why=why, agreement="", **changes)


def thinking(**changes: Any) -> DraftRun:
    return run(model_state="thinking", model=None, thinking=SLOW, agreement="", **changes)


class DraftingClient(FakeClient):
    """Gives the runs of `script` one after the other, each time it is asked how the draft stands; the last one stays.
    Cancelling is one of them too."""

    def __init__(self, *script: DraftRun, standing: ModelStanding = STANDING, **options: Any) -> None:
        super().__init__(options.pop("workloads", 40), **options)
        self.script = list(script) or [run()]
        self.standing = standing
        self.asked: list[DraftAsk] = []
        self.cancelled: list[str] = []
        self.put: list[tuple[str, Drafter]] = []
        self.interrupts = 0
        """So often a person presses Ctrl-C while it is waited for."""

    def draft(self, ask: DraftAsk) -> DraftRun:
        self.asked.append(ask)
        return self.script[0]

    def draft_run(self, draft_id: str, after: int = -1, wait_s: float = 0.0) -> DraftRun:
        if draft_id not in {each.id for each in self.script}:
            raise NotFoundError(f"there is no draft '{draft_id}'", "See `muster draft --list`")
        shown = self.script[0]
        if len(self.script) > 1:
            self.script.pop(0)
        elif not shown.over:
            time.sleep(min(wait_s, 0.01))
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
        return shown

    def cancel_draft(self, draft_id: str) -> DraftRun:
        self.cancelled.append(draft_id)
        self.script = [msgspec.structs.replace(self.script[0], model_state="cancelled", thinking=None)]
        return self.script[0]

    def draft_runs(self) -> tuple[DraftRun, ...]:
        return tuple(self.script)

    def propose_draft(self, draft_id: str, drafter: Drafter, reason: str = "") -> Proposal:
        self.put.append((draft_id, drafter))
        made = self.stage(4 if drafter == "rule" else 5)
        self.script = [msgspec.structs.replace(self.script[0], proposed=((drafter, made.id),))]
        return made

    def model(self) -> ModelStanding:
        return self.standing
