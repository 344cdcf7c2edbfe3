"""The deterministic drafter: from a question or finding to a draft, by rules.

It reads what is wrong in the live cell, picks a runbook or acts of the catalogue, finds the smallest whose simulation
meets the target, and words the draft from templates. Each sentence cites its facts. The checks of a draft are those of
`runbooks.plans.checks`, read before it and on a fork after it.

It needs no network and no model, and uses no randomness. Where nothing is wrong nothing is drafted; where the cell
cannot tell, the draft says what a person should find out. It works on a fork and has no way to change the cell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from engine.model.errors import MusterError, NotFoundError, RefusedError
from runbooks.actions.catalogue import find
from runbooks.actions.wording import title
from runbooks.drafts import handover, symptom_rules, symptoms
from runbooks.drafts.node_rules import AGAIN_MS
from runbooks.drafts.runbook_drafts import runbook_of
from runbooks.drafts.solver import DraftOption, RuleAnswer, Solver, done, forked, made
from runbooks.drafts.symptoms import CellScene, on_record
from runbooks.drafts.typed_draft import Brief, Draft, DraftGoal, DraftStep, Fact, Flag, Sentence, Span
from runbooks.drafts.vocabulary import METRICS, fact
from runbooks.plans.check_readings import READINGS, evaluate
from runbooks.plans.checks import MEANINGS, Check, words
from runbooks.plans.checks import Finding as Checked
from runbooks.plans.typed_plan import MAX_COMMENT, Act, Proposal, Request, RunbookRef, Source, StepRequest
from runbooks.procedures.compiler import Compiled, compile_runbook
from runbooks.procedures.program import LIBRARY, Runbook, parse
from runbooks.procedures.program import MAX_TITLE as MAX_RUNBOOK_TITLE
from runbooks.procedures.registry import EngineCall

if TYPE_CHECKING:
    from engine.control import Engine


MAX_QUESTIONS = 3
MAX_RISKS = 5
MAX_TITLE = 120
NOTHING = "Nothing should be done"
READ_OF: dict[str, tuple[str, ...]] = {
    "queue": ("queue_mode", "queue_waiting", "queue_oldest_wait_s", "queue_gpus", "queue_gpu_quota"),
    "node": ("node_state", "node_workloads", "node_losses_day"),
    "pool": ("pool_nodes", "pool_ready", "pool_most"),
    "workload": ("workload_state", "workload_reason", "workload_wait_s", "workload_run_s"),
    "reservation": ("reservation_state", "reservation_idle_permille"),
    "budget": ("budget_spent_permille", "budget_forecast_permille"),
    "tenant": ("tenant_running", "tenant_waiting", "tenant_gpus"),
    "zone": ("zone_ready", "zone_lost"),
}
"""What is told of an object that an act is on, or that is in question."""
NOTHING_SAID: dict[str, tuple[int | str, ...]] = {
    "workload_reason": ("none",), "workload_run_s": (0,), "node_losses_day": (0,),
}  # fmt: skip
"""Values that need not be said."""
IN_MILLI = ("queue_gpus", "queue_gpu_quota", "tenant_gpus")
MAX_OBJECTS = 4


class CitedFacts:
    """The facts that a draft rests on: those of the brief where it has them, others read off the fork."""

    def __init__(self, engine: Engine, brief: Brief) -> None:
        self._engine = engine
        self._known = {(one.metric, one.subject): one for one in brief.facts}
        self._next = 1 + max((int(f.id[1:]) for f in brief.facts if f.id[1:].isdigit()), default=0)
        self._cited: dict[str, Fact] = {}

    @property
    def facts(self) -> tuple[Fact, ...]:
        return tuple(self._cited.values())

    def of(self, kind: str, subject: str) -> tuple[str, ...]:
        """Ids of what is known of an object."""
        return tuple(found.id for metric in READ_OF.get(kind, ()) if (found := self._one(metric, subject)) is not None)

    def _one(self, metric: str, subject: str) -> Fact | None:
        found = self._known.get((metric, subject))
        if found is None:
            try:
                value = READINGS[metric](self._engine, subject)  # type: ignore[index]
            except NotFoundError:
                return None
            if value is None or value in NOTHING_SAID.get(metric, ()) or metric not in METRICS:
                return None
            if metric in IN_MILLI and isinstance(value, int):
                value *= 1000
            found = msgspec.structs.replace(fact(metric, subject, value), id=f"F{self._next}")
            self._next += 1
            self._known[metric, subject] = found
        self._cited[found.id] = found
        return found


def sentence_of(text: str, cites: Iterable[str] = ()) -> Sentence:
    """A sentence with a capital letter and a full stop."""
    text = text.strip()
    if text.split(" ", 1)[0].isalpha():
        # Not an id, which is what it is.
        text = text[:1].upper() + text[1:]
    return Sentence(spans=(Span(text=text if text.endswith((".", "?", "!")) else f"{text}."),), cites=tuple(cites))


def objects_of(acts: Sequence[Act]) -> list[tuple[str, str]]:
    """(kind, id) of what acts are on, as many as are told of."""
    kinds = {"scaling": "pool"}
    found = [(kinds.get(find(act.action).kind, find(act.action).kind), id_) for act in acts for id_ in act.targets]
    return list(dict.fromkeys(found))[:MAX_OBJECTS]


def summary(answer: RuleAnswer, cites: Sequence[str]) -> tuple[Sentence, ...]:
    """The problem, the proposal, and the result on a fork."""
    sentences = [sentence_of(answer.why, cites)]
    if answer.option is None:
        return tuple(sentences) if answer.undecided else (*sentences, sentence_of(NOTHING))
    sentences.append(sentence_of(f"Proposed: {answer.option.text}"))
    if answer.target is not None:
        verdict = "met" if answer.target.met else "met in part"
        sentences.append(sentence_of(f"On a fork, {answer.target.text}: {answer.target.after} ({verdict})"))
    return tuple(sentences)


def rationale(answer: RuleAnswer, cites: Sequence[str]) -> tuple[Sentence, ...]:
    """The milder options that were tried, and why each was not taken."""
    milder = [one for one in answer.tried if not one.met][:3]
    return tuple(sentence_of(f"Tried on a fork: {one.text}; {one.why}", cites) for one in milder)


MAX_CHECKS = 6


def with_target(scene: CellScene, answer: RuleAnswer, acts: Sequence[Act]) -> DraftGoal | None:
    """The target of an answer, with its checks; of one that has none what its acts are to bring about. None where no
    check says that."""
    if answer.option is None:
        return answer.target
    ran = _ran(scene, answer, tuple(dict.fromkeys(conditions(scene, answer, acts)))[:MAX_CHECKS])
    if ran is None:
        return answer.target
    before, after = ran
    if answer.target is not None:
        return DraftGoal(
            text=answer.target.text, before=answer.target.before, after=answer.target.after, met=answer.target.met,
            checks=after,
        )  # fmt: skip
    return DraftGoal(
        text="; ".join(_aim(one.check) for one in after),
        before="; ".join(_plain(one) for one in before),
        after="; ".join(_plain(one) for one in after),
        met=all(one.verdict == "success" for one in after),
        checks=after,
    )


def conditions(scene: CellScene, answer: RuleAnswer, acts: Sequence[Act]) -> Iterable[Check]:
    """The checks that should hold afterwards: first of the work that waits, then of the targets."""
    yield from (Check(check="workload_reason", of=id_, op="==", value="none") for id_ in answer.starts[:2])
    given = dict(answer.option.steps) if answer.option is not None else {}
    for act in acts:
        if act.action == "cordon" and "drain" in given:
            continue  # it is drained next
        for proof in find(act.action).proof:
            value = given.get(act.action, {}).get(proof.of) if proof.of else proof.value
            if value is not None:
                yield from (Check(check=proof.check, of=id_, op=proof.op, value=value) for id_ in act.targets)
    for kind, id_ in answer.about:
        if kind == "zone":
            yield Check(check="zone_ready", of=id_, op="==", value=0)


def _ran(
    scene: CellScene, answer: RuleAnswer, checks: Sequence[Check]
) -> tuple[tuple[Checked, ...], tuple[Checked, ...]] | None:
    """The checks' findings before the option, and on a fork after it; None when it cannot be carried out there."""
    option: DraftOption | None = answer.option
    if not checks or option is None:
        return None
    solver = Solver(scene.engine, ())
    ahead_ms = answer.ahead_ms or (AGAIN_MS if answer.target is None else 0)
    with forked(scene.engine) as fork:
        try:
            done(fork, option)
            fork.settle()
            solver.run_ahead(fork, solver.ahead(ahead_ms))
            after = tuple(evaluate(fork, check) for check in checks)
        except MusterError:
            return None
    return tuple(evaluate(scene.engine, check) for check in checks), after


def _aim(check: Check) -> str:
    return f"workload {check.of} no longer waits" if check.check == "workload_reason" else words(check)


def _plain(found: Checked) -> str:
    return found.found.partition(";")[0]


BY_RULE = Source(kind="rule")


class Preview(Protocol):
    """The gate's preview of a request in somebody's name. Raises MusterError."""

    def __call__(self, request: Request, runbook: RunbookRef | None = None) -> Proposal: ...


class RuleDrafter:
    """Drafts for one engine. May be used by several threads, but not by the engine's own: `call` is how it asks."""

    def __init__(self, call: EngineCall, preview: Preview) -> None:
        self._call = call
        self._preview = preview

    def draft(self, brief: Brief, requester: str = "") -> Draft:
        """Always a draft: what cannot be made becomes one without steps that says why."""
        if brief.task in ("handover", "incident"):
            return handover.draft_of(brief)
        record = self._call(on_record)
        # A turn each: in a large cell either takes its time.
        agents = self._call(lambda engine: engine.agents.report())
        base = self._call(lambda engine: engine.fork())
        try:
            base.settle()
            scene = CellScene(base, agents, record)
            question = symptoms.read(base, brief.question, brief.finding, brief.pick)
            draft = self._drafted(brief, requester, scene, symptom_rules.answer(scene, question))
            return self._runbook(draft, brief, requester) if brief.task == "runbook" else draft
        finally:
            base.forget()

    def _runbook(self, draft: Draft, brief: Brief, owner: str) -> Draft:
        """The draft with a runbook for the next time made from its plan. A runbook that is named for editing is left as
        it is: rules do not edit text."""
        if draft.preview is None or brief.runbook:
            return draft
        prose = (
            " ".join(sentence.text for sentence in draft.summary[:1]),
            "Found by `muster draft`; check that it still holds.",
            " ".join(sentence.text for sentence in draft.risks) or "No known risk.",
            "Roll it back when the cause is gone.",
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
            return msgspec.structs.replace(draft, questions=(*draft.questions, sentence_of(error.problem)))
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
            risks=tuple(sentence_of(text) for text in answer.risks[:MAX_RISKS]),
            questions=tuple(sentence_of(text) for text in answer.questions[:MAX_QUESTIONS]),
            facts=cited.facts, flags=tuple(flags), request=request, read_as=answer.read_as,
            kind=ref.id if ref is not None else " + ".join(dict.fromkeys(act.action for act in acts)),
            template=ref.id if ref is not None else "",
            preview=preview, effects=preview.effects, target=target, tried=answer.tried,
            version=scene.engine.version,
        )  # fmt: skip

    def _request(
        self, scene: CellScene, answer: RuleAnswer, option: DraftOption, requester: str
    ) -> tuple[tuple[Act, ...], Request, RunbookRef | None]:
        """The acts, the request, and the runbook where one applies and comes to exactly these acts. Raises
        MusterError."""
        reason = sentence_of(answer.why).text[:MAX_COMMENT]
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
        """The compiled runbook; None when it does not apply now. Compiled on the fork, or on the live cell when a check
        needs that."""
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
        looked = (sentence_of(f"Checked: {symptom_rules.looked_at(scene)}"),) if answer.option is None else ()
        heading = "What it means" if answer.option else "Pick the one you mean" if answer.undecided else NOTHING
        return Draft(
            drafter="rule", task=brief.task, title=heading, summary=summary(answer, cites),
            rationale=(*rationale(answer, cites), *looked),
            questions=tuple(sentence_of(text) for text in answer.questions[:MAX_QUESTIONS]),
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
    """The parameters of an act, by the names of `runbooks.actions`; its targets alone for a step that only the runbook
    has."""
    for action, given in option.steps:
        if action == act.action and (act.targets[0] in given.values() or len(option.steps) == 1):
            return dict(given)
    for action, given in option.steps:
        if action == act.action:
            return dict(given)
    note = {"text": act.note.text} if act.note is not None else {}
    return {**target_of(act), **note}


def target_of(act: Act) -> dict[str, int | str | tuple[str, ...]]:
    found: dict[str, int | str | tuple[str, ...]] = {}
    for name, parameter in find(act.action).parameters.items():
        if parameter.target:
            found[name] = act.targets if parameter.many else act.targets[0]
    return found
