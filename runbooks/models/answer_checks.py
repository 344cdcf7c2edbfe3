"""From what a model answered to a draft: names read back, targets resolved, acts tried, values put into prose.

Nothing of an answer is believed. A step that names what the model was not told of, or what is not there now, or that
the cell or the policy refuses, ends the whole draft: half of a plan is another plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from runbooks.actions.catalogue import find
from runbooks.actions.parameters import MAX_TEXT, Parameter, Type, why_not_id
from runbooks.actions.typed_acts import Maker
from runbooks.drafts import runbook_drafts
from runbooks.drafts.model_answer import ModelAnswer, ModelDraftStep, action_of, offered, refuse_incomplete
from runbooks.drafts.typed_draft import Brief, Draft, DraftRejected, DraftStep, Fact, Flag, Part, Sentence
from runbooks.models.leaks import refuse_leak
from runbooks.models.prose import ProseReader
from runbooks.models.pseudonyms import is_plain
from runbooks.plans.typed_plan import Act, ActionName, Proposal, Request, Source, StepRequest
from runbooks.procedures.compiler import EXISTS, exists
from runbooks.procedures.input_values import milliseconds
from runbooks.procedures.program import InputType

if TYPE_CHECKING:
    from engine.control import Engine
    from runbooks.models.calls import PromptMessage
    from runbooks.models.prompt import Prompt
    from runbooks.procedures.registry import EngineCall

Preview = Callable[[Request], Proposal]
"""What proposing it now would show, simulated on a fork; the rules of the policy that it would break in `note`."""
Named = tuple[str, str]
"""(kind, id) of an object, kinds as in `runbooks.models.pseudonyms`."""
REASON = "drafted by a model"
"""Why it is proposed, as far as that is known here: a model's own words stand nowhere but in its frame."""
MAX_WHY = 300

KINDS: Mapping[Type, str] = {
    "node_id": "node", "workload_id": "workload", "queue": "queue", "pool": "pool", "zone": "zone",
    "reservation": "reservation", "tenant": "tenant", "budget": "budget", "channel": "channel",
}  # fmt: skip
"""Type of a parameter -> kind of what it names."""


def draft_of(
    answered: ModelAnswer,
    content: str,
    brief: Brief,
    told: Prompt,
    *,
    call: EngineCall,
    preview: Preview,
    requester: str = "",
) -> Draft:
    """The draft that an answer makes. `content`: the answer as it came, in which leaks are looked for. `requester`:
    owns what runbook is drafted anew. The record of the call is for the caller to set.

    Raises DraftRejected: `leak_detected`, `unknown_target`, `policy_denied` with the rule, `runbook_invalid`, `schema`
    for what only looks like an answer; and nothing else that the answer could cause.
    """
    refuse_leak(content, told.canary, map(_instructions, told.messages))
    facts = tuple(fact for fact in brief.facts if fact.id in told.facts)
    given = _Steps(answered.steps, told)
    prose = ProseReader(facts, told.names)
    given.tell_notes(prose)
    acts = tuple(_made(call, given))
    refuse_contradictions(acts)
    lines = tuple(line_of(step) for step in given.steps)
    shown = _tried(preview, acts) if acts else None
    runbook = None
    if answered.runbook is not None:
        runbook = runbook_drafts.drafted(
            answered.runbook, id_=brief.runbook, now=brief.runbook_text, owner=requester, real=given.real
        )

    def read(texts: Iterable[str]) -> tuple[Sentence, ...]:
        return tuple(chain.from_iterable(map(prose.sentences, texts)))

    summary, rationale = read((answered.summary,) if answered.summary else ()), read(answered.rationale)
    risks, questions = read(answered.risks), read(answered.questions)
    parts = tuple(Part(heading=part.heading, sentences=read(part.sentences)) for part in answered.parts)
    said = chain(summary, rationale, risks, questions, *(part.sentences for part in parts))
    cited = {id_ for sentence in said for id_ in sentence.cites}
    on_record = tuple(fact for fact in facts if fact.id in cited)
    return Draft(
        drafter="model",
        task=brief.task,
        title=prose.line(answered.title, struck="[…]"),
        summary=summary,
        rationale=rationale,
        parts=parts,
        steps=tuple(
            DraftStep(action=step.action, with_=step.with_, line=line)
            for step, line in zip(given.steps, lines, strict=True)
        ),
        risks=risks,
        questions=questions,
        facts=on_record,
        flags=_flags(brief, told, given.targets, on_record),
        kind=" + ".join(dict.fromkeys(step.action for step in given.steps)),
        request=request_of(acts) if acts else None,
        preview=shown,
        effects=shown.effects if shown is not None else (),
        runbook=runbook,
        version=shown.version if shown is not None else brief.version,
    )


def _instructions(message: PromptMessage) -> str:
    """What of a message nobody is to repeat. What the catalogue says of its actions, a line each, is no secret."""
    if message.role != "system":
        return ""
    return "\n".join(line for line in message.content.split("\n") if not line.startswith("- "))


def request_of(acts: Sequence[Act]) -> Request:
    return Request(steps=tuple(StepRequest(act=act) for act in acts), reason=REASON, source=Source(kind="model"))


def key_of(draft: Draft) -> str:
    """The same for two drafts that would do the same: SHA-256 of the acts. Empty where nothing would be done."""
    if draft.request is None:
        return ""
    acts = [step.act for step in draft.request.steps]
    return hashlib.sha256(b"muster/draft/v1\n" + msgspec.json.encode(acts, order="sorted")).hexdigest()


# -- names and targets ------------------------------------------------------------------------------------------------


class _Steps:
    """The steps of an answer with the names of the cell in the place of those that were told. Raises DraftRejected."""

    def __init__(self, steps: Iterable[ModelDraftStep], told: Prompt) -> None:
        self._real: dict[str, list[Named]] = {}
        for kind, id_ in sorted(told.allowed):
            self._real.setdefault(told.names.shown(kind, id_), []).append((kind, id_))
        self.targets: dict[Named, None] = {}
        self.steps = [self._read(step, f"steps[{i}]") for i, step in enumerate(steps)]

    def _read(self, step: ModelDraftStep, where: str) -> ModelDraftStep:
        action = action_of(step.action, where)
        known = offered(action)
        refuse_incomplete(action, step.with_, where)
        given: dict[str, Any] = {}
        for name, value in step.with_.items():
            if name not in known:
                raise DraftRejected("schema", f"{where}.with: {action} has no {ascii(name)[:42]}")
            at = f"{where}.with.{name}"
            if isinstance(value, tuple):
                given[name] = tuple(self._named(one, known[name], f"{at}[{i}]") for i, one in enumerate(value))
            else:
                given[name] = self._named(value, known[name], at)
        return ModelDraftStep(action=action, with_=given)

    def real(self, value: str, type_: InputType) -> str:
        """For a runbook: the real id of what was told so."""
        why = why_not_id(value)
        if why:
            raise DraftRejected("schema", f"runbook: {ascii(value)[:60]} {why}", "Name each object by its own id")
        return str(self._named(value, Parameter(type=type_), f"runbook: {type_}"))

    def _named(self, value: Any, parameter: Parameter, where: str) -> Any:
        if parameter.type == "name":
            if not is_plain(value):
                raise DraftRejected("schema", f"{where}: {ascii(value)[:60]} is no plain name", "Use a short one")
            return value
        if parameter.type != "object" and parameter.type not in KINDS:
            return value
        kinds = (KINDS[parameter.type],) if parameter.type != "object" else tuple(KINDS.values())
        found = next((one for one in self._real.get(value, ()) if one[0] in kinds), None)
        if found is None:
            what = kinds[0] if len(kinds) == 1 else "object"
            raise DraftRejected(
                "unknown_target", f"{where}: the model was told of no {what} {ascii(value)[:60]}",
                "A draft names only what is in its facts",
            )  # fmt: skip
        self.targets[found] = None
        return found[1]

    def tell_notes(self, prose: ProseReader) -> None:
        """Messages with what is unsupported marked so, and with no links: what is shown is what would be sent."""
        for i, step in enumerate(self.steps):
            if not find(step.action).command:
                text = prose.line(step.with_["text"], struck="[not verified: {}]")
                text = "".join(char if char.isprintable() else f"<{ord(char):04X}>" for char in text)[:MAX_TEXT]
                self.steps[i] = msgspec.structs.replace(step, with_={**step.with_, "text": text})


def _made(call: EngineCall, given: _Steps) -> Iterable[Act]:
    """The acts, each made in a turn of its own on the engine's thread. Raises DraftRejected."""
    if not given.steps:
        return
    targets = tuple(given.targets)
    gone = _asked(lambda: call(lambda engine: _gone(engine, targets)), "targets")
    if gone:
        named = ", ".join(f"{kind} {ascii(id_)[1:-1][:60]}" for kind, id_ in gone[:3])
        raise DraftRejected("unknown_target", f"not there any more: {named}", "Ask again: the facts have changed")
    makers: list[Maker] = []

    def make(engine: Engine, step: ModelDraftStep) -> Act:
        if not makers:
            makers.append(Maker(engine))
        return makers[0].act(action_of(step.action, "step"), _for_maker(step))

    for i, step in enumerate(given.steps):
        yield _asked(lambda step=step: call(lambda engine: make(engine, step)), f"steps[{i}]")  # type: ignore[misc]


def _gone(engine: Engine, targets: Sequence[Named]) -> list[Named]:
    """Those that are not in the cell now. Channels are the policy's: the gate looks at them."""
    types = {kind: type_ for type_, kind in KINDS.items()}
    return [
        (kind, id_) for kind, id_ in targets
        if (type_ := next((known for known in EXISTS if known == types[kind]), None)) and not exists(engine, type_, id_)
    ]  # fmt: skip


def _for_maker(step: ModelDraftStep) -> dict[str, Any]:
    """With durations in ms."""
    known = offered(action_of(step.action, "step"))
    return {
        name: milliseconds(value) if known[name].type == "duration" else value for name, value in step.with_.items()
    }


def _tried(preview: Preview, acts: Sequence[Act]) -> Proposal:
    """What proposing it would show. Raises DraftRejected where the gate would refuse it, or the policy deny it."""
    shown: Proposal = _asked(lambda: preview(request_of(acts)), "the plan")
    if shown.note:
        raise DraftRejected("policy_denied", f"the policy denies it: {shown.note[:MAX_WHY]}", "See muster policy show")
    return shown


def _asked(ask: Callable[[], Any], where: str) -> Any:
    """What the engine says; its refusals as DraftRejected."""
    try:
        return ask()
    except DraftRejected:
        raise
    except NotFoundError as error:
        raise DraftRejected("unknown_target", f"{where}: {error.problem[:MAX_WHY]}", error.remedy) from None
    except (RefusedError, SpecError) as error:
        rule = "not-applicable" if isinstance(error, RefusedError) else "out-of-bounds"
        raise DraftRejected("policy_denied", f"{where}: {rule}: {error.problem[:MAX_WHY]}", error.remedy) from None
    except MusterError as error:
        raise DraftRejected("worker", f"{where}: {error.problem[:MAX_WHY]}", error.remedy) from None


def refuse_contradictions(acts: Sequence[Act]) -> None:
    """Raises DraftRejected for steps that do the same twice, or of which one takes back another: a plan that goes round
    in a circle was not thought out."""
    for i, act in enumerate(acts):
        for k, earlier in enumerate(acts[:i]):
            shared = sorted(set(act.targets) & set(earlier.targets))
            if not shared:
                continue
            if act.action == earlier.action:
                raise DraftRejected(
                    "runbook_invalid", f"duplicate-step: steps {k + 1} and {i + 1} both {act.action} {shared[0]}",
                    "Each target is acted on once by one action",
                )  # fmt: skip
            if undo_each_other(act.action, earlier.action):
                raise DraftRejected(
                    "runbook_invalid",
                    f"cycle: step {i + 1} ({act.action}) undoes step {k + 1} ({earlier.action}) on {shared[0]}",
                    "Nothing would come of it",
                )


def undo_each_other(one: ActionName, other: ActionName) -> bool:
    """Whether the later of the two makes the earlier pointless, on the same target."""
    return other in find(one).undoes or one in find(other).undoes


def line_of(step: ModelDraftStep) -> str:
    """The typed act in our own words, as in "set-quota research add_gpus=8"."""
    known = offered(action_of(step.action, "step"))
    named = [one for name, value in step.with_.items() if known[name].target for one in _several(value)]
    rest = [
        f"{name}={','.join(map(str, _several(value)))}"
        for name, value in step.with_.items()
        if not known[name].target and name != "text"
    ]
    said = [repr(step.with_["text"])] if "text" in step.with_ else []
    return " ".join((step.action.replace("_", "-"), *map(str, named), *rest, *said))


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _flags(brief: Brief, told: Prompt, targets: Iterable[Named], cited: Sequence[Fact]) -> tuple[Flag, ...]:
    """`untrusted_influence`: a target that a stranger's text alone brought up; or, where such texts were looked at, one
    that neither the question nor the finding nor any fact that is cited is about."""
    borne_out = {fact.subject for fact in cited} | {fact.value for fact in cited if isinstance(fact.value, str)}
    if brief.finding is not None:
        borne_out |= {brief.finding.about, *brief.finding.targets}
    asked = set(brief.question.replace(",", " ").split())
    flags: list[Flag] = []
    for target in targets:
        if target in told.influenced or (brief.excerpts and target[1] not in borne_out | asked):
            flags.append("untrusted_influence")
            break
    if told.cut:
        flags.append("partial")
    return tuple(flags)
