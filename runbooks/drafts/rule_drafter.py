"""The deterministic drafter: what is asked or found -> what is wrong in the live cell -> a runbook, or acts of the
catalogue -> the smallest of them whose simulation meets the target -> words from templates.

The default, and always there: no network, no model, no randomness. The live cell decides, never a text alone: where
nothing is wrong nothing is drafted, and where the cell cannot tell it says what a person should find out. It holds no
way to change anything: it looks at a fork, and what it drafts is proposed, if at all, by somebody else.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.model.errors import MusterError, RefusedError
from runbooks.actions.target_readings import MAX_COMMENT
from runbooks.actions.wording import title
from runbooks.drafts.handover import wording
from runbooks.drafts.recorded_objects import on_record
from runbooks.drafts.rules import questions, symptom_rules
from runbooks.drafts.rules.solver import DraftOption, RuleAnswer, Solver, made
from runbooks.drafts.rules.symptoms import CellScene
from runbooks.drafts.rules.target_conditions import with_target
from runbooks.drafts.runbook_drafts import runbook_of
from runbooks.drafts.typed_draft import Brief, Draft, DraftStep, Flag
from runbooks.drafts.wording import (
    MAX_QUESTIONS,
    MAX_RISKS,
    MAX_TITLE,
    NOTHING,
    CitedFacts,
    objects_of,
    rationale,
    said,
    summary,
)
from runbooks.plans.checks import MEANINGS
from runbooks.plans.typed_plan import Act, Proposal, Request, RunbookRef, Source, StepRequest
from runbooks.procedures.compiler import Compiled, compile_runbook
from runbooks.procedures.files import LIBRARY
from runbooks.procedures.program import MAX_TITLE as MAX_RUNBOOK_TITLE
from runbooks.procedures.program import Runbook, parse
from runbooks.procedures.registry import EngineCall

if TYPE_CHECKING:
    from engine.control import Engine

BY_RULE = Source(kind="rule")


class Preview(Protocol):
    """What proposing a request now would show, of the gate, in somebody's name. Raises MusterError."""

    def __call__(self, request: Request, runbook: RunbookRef | None = None) -> Proposal: ...


class RuleDrafter:
    """Drafts for one engine. May be used by several threads, but not by the engine's own: `call` is how it asks."""

    def __init__(self, call: EngineCall, preview: Preview) -> None:
        self._call = call
        self._preview = preview

    def draft(self, brief: Brief, requester: str = "") -> Draft:
        """Always a draft: what cannot be made becomes one without steps that says why."""
        if brief.task in ("handover", "incident"):
            return wording.told(brief)
        record = self._call(on_record)
        # A turn each: in a large cell either takes its time.
        agents = self._call(lambda engine: engine.agents.report())
        base = self._call(lambda engine: engine.fork())
        try:
            base.settle()
            scene = CellScene(base, agents, record)
            question = questions.read(base, brief.question, brief.finding, brief.pick)
            draft = self._drafted(brief, requester, scene, symptom_rules.answer(scene, question))
            return self._runbook(draft, brief, requester) if brief.task == "runbook" else draft
        finally:
            base.forget()

    def _runbook(self, draft: Draft, brief: Brief, owner: str) -> Draft:
        """What would be done now as a runbook for the next time; the one that is named, as it is, where it is to be
        edited: words are not for rules."""
        if draft.preview is None or brief.runbook:
            return draft
        prose = (
            " ".join(sentence.text for sentence in draft.summary[:1]),
            "`muster draft` found it so; see that it is so now.",
            " ".join(sentence.text for sentence in draft.risks) or "Nothing that is known.",
            "Take it back when what led to it is over.",
        )
        steps = "-and-".join(dict.fromkeys(step.action.replace("_", "-") for step in draft.steps))[:40]
        try:
            made_ = runbook_of(
                draft.preview.plan,
                id_=f"drafted-{steps}",
                title=draft.title[:MAX_RUNBOOK_TITLE],
                owner=owner,
                prose=prose,
            )
        except RefusedError as error:
            return msgspec.structs.replace(draft, questions=(*draft.questions, said(error.problem)))
        return msgspec.structs.replace(draft, runbook=made_)

    def _drafted(self, brief: Brief, requester: str, scene: CellScene, answer: RuleAnswer) -> Draft:
        if answer.option is None or brief.task == "explain":
            return self._words_only(brief, scene, answer)
        bare = msgspec.structs.replace(answer.option, runbook="")
        try:
            try:
                acts, request, ref = self._request(scene, answer, answer.option, requester)
                preview = self._preview(request, ref)
            except MusterError:
                # A runbook may ask for more than these acts need.
                acts, request, ref = self._request(scene, answer, bare, requester)
                preview = self._preview(request, ref)
        except MusterError as error:
            refused = msgspec.structs.replace(
                answer, option=None, why=f"{answer.why}; to {answer.option.text} is refused: {error.problem}"
            )
            return self._words_only(brief, scene, refused)
        cited = CitedFacts(scene.engine, brief)
        about = dict.fromkeys((*answer.about, *objects_of(acts)))
        cites = [id_ for kind, subject in about for id_ in cited.of(kind, subject)]
        target = with_target(scene, answer, acts)
        flags: list[Flag] = ["target_missed"] if answer.partial or (target is not None and not target.met) else []
        flags += too_large(scene)
        return Draft(
            drafter="rule", task=brief.task, title=preview.title[:MAX_TITLE],
            summary=summary(answer, cites), rationale=rationale(answer, cites),
            steps=tuple(
                DraftStep(action=act.action, with_=given_of(answer.option, act), line=title(act)) for act in acts
            ),
            risks=tuple(said(text) for text in answer.risks[:MAX_RISKS]),
            questions=tuple(said(text) for text in answer.questions[:MAX_QUESTIONS]),
            facts=cited.facts, flags=tuple(flags), request=request, read_as=answer.read_as,
            kind=ref.id if ref is not None else " + ".join(dict.fromkeys(act.action for act in acts)),
            template=ref.id if ref is not None else "",
            preview=preview, effects=preview.effects, target=target, tried=answer.tried,
            version=scene.engine.version,
        )  # fmt: skip

    def _request(
        self, scene: CellScene, answer: RuleAnswer, option: DraftOption, requester: str
    ) -> tuple[tuple[Act, ...], Request, RunbookRef | None]:
        """By the runbook, where it applies and comes to these acts and no others; else the acts themselves. Raises
        MusterError."""
        reason = said(answer.why).text[:MAX_COMMENT]
        reason = "".join(char if char.isprintable() else "?" for char in reason)
        if option.runbook:
            compiled = self._compiled(scene, option, reason, requester)
            if compiled is not None:
                request, ref = compiled
                return tuple(step.act for step in request.steps), request, ref
        acts = made(scene.engine, option)
        steps = tuple(StepRequest(act=act) for act in acts)
        return acts, Request(steps=steps, reason=reason, requester=requester, source=BY_RULE), None

    def _compiled(
        self, scene: CellScene, option: DraftOption, reason: str, requester: str
    ) -> tuple[Request, RunbookRef] | None:
        """None where it does not apply now. Against the fork, but for what only the live cell knows."""
        read = library(option.runbook)
        if read is None:
            return None
        runbook, ref = read
        given = {name: text for name, text in option.inputs.items() if text}

        def compile_for(engine: Engine) -> Compiled:
            return compile_runbook(engine, runbook, given, reason=reason, requester=requester)

        live = any(MEANINGS[line.check].live for line in runbook.front.when if line.check in MEANINGS)
        try:
            compiled = self._call(compile_for) if live else compile_for(scene.engine)
        except MusterError:
            return None
        if not compiled.applies:
            return None
        return msgspec.structs.replace(compiled.request, source=BY_RULE), ref

    def _words_only(self, brief: Brief, scene: CellScene, answer: RuleAnswer) -> Draft:
        cited = CitedFacts(scene.engine, brief)
        cites = [id_ for kind, subject in answer.about for id_ in cited.of(kind, subject)]
        looked = (said(f"Looked at: {symptom_rules.looked_at(scene)}"),) if answer.option is None else ()
        heading = "What it means" if answer.option else "Pick what is meant" if answer.undecided else NOTHING
        return Draft(
            drafter="rule", task=brief.task, title=heading, summary=summary(answer, cites),
            rationale=(*rationale(answer, cites), *looked),
            questions=tuple(said(text) for text in answer.questions[:MAX_QUESTIONS]),
            tried=answer.tried, facts=cited.facts, version=scene.engine.version, flags=tuple(too_large(scene)),
            read_as=answer.read_as, undecided=answer.undecided, choices=answer.choices,
        )  # fmt: skip


def too_large(scene: CellScene) -> list[Flag]:
    """Trials that do not run ahead see part of what comes: only what starts, or stops, at once."""
    return [] if Solver(scene.engine, ()).ahead(1) else ["partial"]


def library(id_: str) -> tuple[Runbook, RunbookRef] | None:
    """A built-in runbook."""
    path = LIBRARY / f"{id_}.md"
    if not path.is_file():
        return None
    data = path.read_bytes()
    runbook = parse(data, path.name)
    return runbook, RunbookRef(id=id_, version=runbook.front.version, sha256=hashlib.sha256(data).hexdigest())


def given_of(option: DraftOption, act: Act) -> dict[str, int | str | tuple[str, ...]]:
    """What an act was told, by the names of `runbooks.actions`; of a step that only the runbook has, its targets."""
    for action, given in option.steps:
        if action == act.action and (act.targets[0] in given.values() or len(option.steps) == 1):
            return dict(given)
    for action, given in option.steps:
        if action == act.action:
            return dict(given)
    note = {"text": act.note.text} if act.note is not None else {}
    return {**target_of(act), **note}


def target_of(act: Act) -> dict[str, int | str | tuple[str, ...]]:
    from runbooks.actions.catalogue import find

    found: dict[str, int | str | tuple[str, ...]] = {}
    for name, parameter in find(act.action).parameters.items():
        if parameter.target:
            found[name] = act.targets if parameter.many else act.targets[0]
    return found
