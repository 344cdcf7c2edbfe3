"""A model double without a network: answers of a test's choice, read and held to a small cell as a model's would be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from sqlalchemy import func, select

from engine.control import Engine
from engine.model.commands import Cordon
from runbooks.audit.log import record_table
from runbooks.drafts.facts import gather
from runbooks.drafts.model_answer import read_answer
from runbooks.drafts.typed_draft import Brief, Draft, DraftRejected, Excerpt, Sentence, Task
from runbooks.gate.approval_gate import Gate
from runbooks.gate.approval_policy import TEAM
from runbooks.models.answer_checks import draft_of
from runbooks.models.endpoint import Egress
from runbooks.models.prompt import Prompt, prompt_of
from runbooks.plans.identity import Actor
from runbooks.plans.typed_plan import Proposal, Request
from tests.support.cells import small_cell, submit, workload
from tests.support.gates import gate_of
from tests.support.runbook_texts import SOUND

T = TypeVar("T")
MODEL = Actor(subject="service:llm-drafter", kind="llm", account="system")
NOW_MS = 1_772_366_400_000
CANARY = "canary7f3a9c51e2"
QUESTION = "queue a waits too long: nodes g3 g9, workloads w0 w1 w2 w3 w8 held1, pool gpu, tenant acme"
SAID: dict[str, Any] = {
    "title": "Give queue a more quota", "summary": "Queue a waits for its quota.", "rationale": [], "steps": [],
    "risks": [], "questions": [],
}  # fmt: skip
POLICY = msgspec.structs.replace(TEAM, channels=(("oncall", "log:"),))


class Desk:
    """A cell of 30 GPU nodes in which queue a waits for quota, a gate of a team, and what a model is told of it."""

    def __init__(
        self, *, egress: Egress = "local", excerpts: tuple[Excerpt, ...] = (), question: str = QUESTION
    ) -> None:
        self.engine = Engine.open(None, cell=small_cell(gpu_nodes=30, quota={"gpu_milli": 64_000}))
        self.engine.advance(60_000)
        works = [workload(f"w{i}", gpu=8000, run=10**8, estimate=10**8, tenant="acme") for i in range(12)]
        others = [workload(f"other-{i}", queue="b", gpu=1000, run=10**8, tenant="zeta") for i in range(20)]
        self.engine.command(submit(*works, *others, workload("held1", gpu=8000, held=True, tenant="acme")))
        self.gate: Gate = gate_of(self.engine, POLICY, lambda: NOW_MS)
        self.engine.command(Cordon(ids=("g8", "g9")))
        self.engine.advance(2_520_000)
        self.excerpts, self.question, self.egress = excerpts, question, egress
        self.brief, self.prompt = self.told("act")
        self._told: dict[Task, tuple[Brief, Prompt]] = {"act": (self.brief, self.prompt)}

    def told(self, task: Task) -> tuple[Brief, Prompt]:
        read = gather(self.call, question=self.question, channels=("oncall",), excerpts=self.excerpts)
        brief = Brief(
            task=task, question=self.question, facts=read.facts, excerpts=self.excerpts, cell=read.cell,
            version=read.version, now_ms=read.now_ms,
        )  # fmt: skip
        if task == "runbook":
            brief = msgspec.structs.replace(brief, runbook="drain-one", runbook_text=SOUND)
        return brief, prompt_of(
            brief, egress=self.egress, tenants=("acme",), key=b"k" * 32, nonce="n0n5e", canary=CANARY
        )

    def call(self, ask: Callable[[Engine], T], /) -> T:
        return ask(self.engine)

    def preview(self, request: Request) -> Proposal:
        return self.gate.preview(MODEL, request)

    def draft(self, answer: dict[str, Any] | str, task: Task = "act") -> Draft:
        """Of an answer as text, or of the fields in which it differs from SAID."""
        if task not in self._told:
            self._told[task] = self.told(task)
        brief, prompt = self._told[task]
        content = answer if isinstance(answer, str) else json.dumps({**SAID, **answer}, ensure_ascii=False)
        return draft_of(read_answer(content, task), content, brief, prompt, call=self.call, preview=self.preview)

    def rejected(self, answer: dict[str, Any] | str, task: Task = "act") -> DraftRejected | None:
        try:
            self.draft(answer, task)
        except DraftRejected as error:
            return error
        return None

    def state(self) -> tuple[object, ...]:
        """What no answer may change: the cell, the proposals and the audit."""
        count = select(func.count()).select_from(record_table)
        records = self.engine.recorded(lambda connection: connection.execute(count).scalar())
        return self.engine.version, self.engine.state.digest(), len(self.gate.proposals()), records


RUNBOOK: dict[str, Any] = {
    "id": "drain-one", "title": "Drain one node", "inputs": [{"name": "node", "type": "node_id", "help": "which"}],
    "when": [{"check": "node_state", "of": "${inputs.node}", "op": "==", "value": "ready"}],
    "why": "It fails.", "evidence": "The log.", "what_can_go_wrong": "No room.", "aftercare": "Test it.",
}  # fmt: skip
STEP: dict[str, Any] = {
    "id": "drain", "action": "drain", "with": {"nodes": ["${inputs.node}"]}, "pre": [], "on_fail": "pause",
    "verify": [{"check": "node_workloads", "of": "${inputs.node}", "op": "==", "value": 0, "within": "10m"}],
}  # fmt: skip


def answer_of(row: dict[str, Any]) -> dict[str, Any] | str:
    """What the row of a table says is answered. What it says of a runbook stands in its one step where that has it."""
    if "content" in row:
        return str(row["content"])
    answer = {**row.get("answer", {}), **({"steps": row["steps"]} if "steps" in row else {})}
    if "runbook" in row:
        of_step = {name: value for name, value in row["runbook"].items() if name in (*STEP, "confirm")}
        rest = {name: value for name, value in row["runbook"].items() if name not in of_step}
        answer["runbook"] = {**RUNBOOK, "steps": [{**STEP, **of_step}], **rest}
    return answer


def step(action: str, **given: Any) -> dict[str, Any]:
    return {"action": action, "with": given}


def unsupported(sentences: Iterable[Sentence]) -> list[str]:
    """Texts of those that are marked so."""
    return [sentence.text for sentence in sentences if sentence.unsupported]


def linked(sentence: Sentence) -> list[str]:
    """Texts of what leads away."""
    return [span.text for span in sentence.spans if span.mark == "link"]
