"""The deterministic drafter: what is asked or found -> what is wrong in the live cell -> a runbook, or acts of the
catalogue -> the smallest of them whose simulation meets the target -> words from templates.

The default, and always there: no network, no model, no randomness. The live cell decides, never a text alone: where
nothing is wrong nothing is drafted, and where the cell cannot tell it says what a person should find out. It holds no
way to change anything: it looks at a fork, and what it drafts is proposed, if at all, by somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from engine.errors import MusterError
from runbooks import draft_rules
from runbooks.draft import Brief, Draft, DraftStep, Fact, Sentence, Span
from runbooks.draft_solver import Solver, forked
from runbooks.plan import Proposal, Request, RunbookRef, StepRequest
from runbooks.shelf import Call
from runbooks.symptoms import Scene, Symptom
from runbooks.wording import title

if TYPE_CHECKING:
    from engine.agents import AgentsReport
    from engine.control import Engine


class Preview(Protocol):
    """What proposing a request now would show, of the gate, in somebody's name. Raises MusterError."""

    def __call__(self, request: Request, runbook: RunbookRef | None = None) -> Proposal: ...


class RuleDrafter:
    """Drafts for one engine. May be used by several threads, but not by the engine's own: `call` is how it asks."""

    def __init__(self, call: Call, preview: Preview) -> None:
        self._call = call
        self._preview = preview

    def draft(self, brief: Brief, requester: str = "") -> Draft:
        """Always a draft: what cannot be made becomes a draft without steps that says why."""
        base, agents = self._call(_forked)
        try:
            base.settle()
            scene = Scene(base, agents)
            return self._act(brief, requester, scene)
        finally:
            base.forget()

    def _act(self, brief: Brief, requester: str, scene: Scene) -> Draft:
        found = draft_rules.found(scene, brief)
        if not found:
            return self._nothing(brief, scene, "nothing that waits has waited too long, and no node needs anything")
        for symptom in found:
            draft = self._for(brief, requester, scene, symptom)
            if draft is not None:
                return draft
        return self._nothing(brief, scene, found[0].text)

    def _for(self, brief: Brief, requester: str, scene: Scene, symptom: Symptom) -> Draft | None:
        rule = draft_rules.RULES.get(symptom.kind)
        if rule is None:
            return None
        best = rule(scene, symptom, brief)
        if best is None:
            return None
        with forked(scene.engine) as fork:
            solver = Solver(fork, lambda _: 0, lambda _: True, ())
            acts = solver.acts(fork, best.option)
        request = Request(
            steps=tuple(StepRequest(act=act) for act in acts), requester=requester, origin="recommender",
            reason=symptom.text[:400],
        )  # fmt: skip
        try:
            preview = self._preview(request)
        except MusterError as error:
            return self._nothing(brief, scene, f"{symptom.text}; {best.option.text} is refused: {error.problem}")
        fact = Fact(id="F1", metric=symptom.kind, kind="queue", subject=symptom.subject, value=symptom.text,
                    text=symptom.text)  # fmt: skip
        return Draft(
            drafter="rule", task=brief.task, title=preview.title, summary=(said(f"{symptom.text}.", "F1"),),
            rationale=(said(best.option.text, "F1"),),
            steps=tuple(
                DraftStep(action=action, with_=dict(given), line=title(act))
                for (action, given), act in zip(best.option.steps, acts, strict=True)
            ),
            facts=(fact,), kind=best.option.runbook, request=request, preview=preview, effects=preview.effects,
            version=scene.engine.version,
        )  # fmt: skip

    @staticmethod
    def _nothing(brief: Brief, scene: Scene, why: str) -> Draft:
        return Draft(
            drafter="rule", task=brief.task, title="Nothing should be done", summary=(said(f"{why}."),),
            version=scene.engine.version,
        )  # fmt: skip


def said(text: str, *cites: str) -> Sentence:
    return Sentence(spans=(Span(text=text),), cites=cites)


def _forked(engine: Engine) -> tuple[Engine, AgentsReport]:
    return engine.fork(), engine.agents.report()
