"""Checks that turn a model's answer into a draft: leaks, names, acts and prose. Nothing of an answer is believed.

An answer that holds the prompt's canary or quotes our instructions is dropped. A step that names an object that the
model was not told of, or that the cell or the policy refuses, ends the whole draft: half of a plan is another plan.

Prose refers to a fact by its id in braces, `{F12}`; value and unit are put in here. A sentence is marked as unsupported
when it holds, outside of references and known names, a digit, a word of number, direction or approval, or a character
that plain English does not need, behind which numbers could hide. The words are a closed English list. A sentence
without a mark is not vouched for either.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from engine.model.errors import MusterError, NotFoundError, RefusedError, SpecError
from runbooks.actions.catalogue import CATALOG, find
from runbooks.actions.declaration import MAX_TEXT, InputType, Parameter, ParameterType, why_not_id
from runbooks.drafts import runbook_drafts
from runbooks.drafts.model_answer import ModelAnswer, ModelDraftStep, action_of, offered, refuse_incomplete
from runbooks.drafts.typed_draft import Brief, Draft, DraftRejected, DraftStep, Fact, Flag, Mark, Part, Sentence, Span
from runbooks.drafts.vocabulary import METRICS, value_of
from runbooks.models.prompt import PromptNames, is_plain
from runbooks.plans.checks import MEANINGS
from runbooks.plans.typed_plan import Act, ActionName, Proposal, Request, Source, StepRequest
from runbooks.procedures.compiler import EXISTS, Maker, exists
from runbooks.procedures.program import milliseconds
from runbooks.untrusted import strict_formats
from runbooks.untrusted.stranger_texts import defanged, drawn_alike, links

if TYPE_CHECKING:
    from engine.control import Engine
    from runbooks.models.calls import PromptMessage
    from runbooks.models.prompt import Prompt
    from runbooks.procedures.registry import EngineCall


MIN_QUOTED = 40
"""Letters and digits in a row of our instructions that are no accident."""
MIN_TEXT = 4
_RUN = re.compile(r"[A-Za-z0-9+/_-]{48,}=*")
_HEX = re.compile(r"[0-9A-Fa-f]{80,}")


def refuse_leak(content: str, canary: str, instructions: Iterable[str]) -> None:
    """Raises DraftRejected `leak_detected` for an answer that holds the canary, or a passage of the instructions, in
    whatever case, spacing or punctuation, across fields, backwards, or in base64 or hex. What it holds is not told."""
    texts = [content, *_decoded(content)]
    whole = _squeezed("".join(texts[1:]) or content)
    if canary:
        marks = {_squeezed(canary), _squeezed(canary)[::-1], canary.encode().hex()}
        if any(mark in text for mark in marks for text in (whole, _squeezed(content))) or any(
            piece in text for piece in _in_base64(canary) for text in texts
        ):
            raise DraftRejected("leak_detected", "the answer holds the mark of its own instructions", "It is dropped")
    readings = (whole, whole[::-1], *(_squeezed(text) for text in _unpacked(texts)))
    for instruction in instructions:
        if any(_quoted(_squeezed(instruction), reading) for reading in readings):
            raise DraftRejected("leak_detected", "the answer quotes its own instructions", "It is dropped")


def _decoded(content: str) -> list[str]:
    """The texts of an answer as a reader sees them: escapes resolved, without the names of fields and the ids between
    them, so that a passage that was spread over several is in one piece."""
    try:
        value = strict_formats.loads(content.encode("utf-8", "surrogatepass"))
    except strict_formats.NotJson:
        return []
    found: list[str] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str) and len(one) >= MIN_TEXT:
            found.append(one)
        elif isinstance(one, dict):
            waiting += reversed(list(one.values()))
        elif isinstance(one, list):
            waiting += reversed(one)
    return found


def _squeezed(text: str) -> str:
    """Letters and digits alone, in their plainest form, and those of other scripts as the Latin ones they look like."""
    folded = drawn_alike(unicodedata.normalize("NFKD", text).casefold())
    return re.sub(r"[\W_]+", "", folded)


def _unpacked(texts: Iterable[str]) -> Iterator[str]:
    """The decodings of long runs of base64 and hex in the texts."""
    for text in texts:
        for run in _RUN.findall(re.sub(r"\s+", "", text)):
            packed = run.rstrip("=").replace("-", "+").replace("_", "/")
            with contextlib.suppress(ValueError):
                yield base64.b64decode(packed[: len(packed) // 4 * 4]).decode("latin-1")
        for run in _HEX.findall(re.sub(r"\s+", "", text)):
            yield bytes.fromhex(run[: len(run) // 2 * 2]).decode("latin-1")


def _in_base64(word: str) -> Iterable[str]:
    """The forms of a word within longer base64, at each of its three possible offsets."""
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + word.encode()).decode().rstrip("=")
        # The first and last characters mix with what stands beside.
        yield coded[(0, 2, 3)[shift] : -1]


def _quoted(instruction: str, text: str) -> bool:
    if len(instruction) < MIN_QUOTED or len(text) < MIN_QUOTED:
        return False
    pieces = {instruction[at : at + MIN_QUOTED] for at in range(len(instruction) - MIN_QUOTED + 1)}
    return any(text[at : at + MIN_QUOTED] in pieces for at in range(len(text) - MIN_QUOTED + 1))


MAX_SHOWN = 40
"""Characters of an offending piece that a reason repeats."""

_NUMBERS = """
    zero none nil null one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion
    trillion dozen half halves third quarter fifth tenth single couple pair both majority percent percentage permille
    twice thrice double doubled triple tripled quadruple quadrupled twofold threefold tenfold halve halved
"""
_DIRECTIONS = """
    rise rises rose risen rising fall falls fell fallen falling increase increases increased increasing decrease
    decreases decreased decreasing grow grows grew grown growing growth shrink shrinks shrank shrunk shrinking climb
    climbs climbed climbing drop drops dropped dropping decline declines declined declining surge surges surged spike
    spikes spiked reduce reduces reduced reducing improve improves improved improving worsen worsens worsened worsening
    better worse more most less least fewer fewest higher highest lower lowest larger largest smaller smallest bigger
    biggest greater greatest longer longest shorter shortest faster fastest slower slowest above below beyond exceed
    exceeds exceeded exceeding upward upwards downward downwards
"""
_APPROVALS = """
    approve approves approved approval approvals authorize authorizes authorized authorization authorise authorises
    authorised authorisation sanctioned ratified endorsed greenlit lgtm okayed permission consent consented clearance
    quorum vote votes voted preapproved preauthorized
"""
_PHRASES = (
    r"(?:go|goes|going|went|gone|trend|trends|trending)\s+(?:up|down)", r"green[ -]li(?:t|ghted)",
    r"sign(?:ed|s)?[ -]?off", r"rubber[ -]?stamp(?:s|ed)?", r"break[ -]?glass", r"go[ -]ahead",
)  # fmt: skip
_NUMBER = "|".join(sorted(_NUMBERS.split(), key=lambda word: (-len(word), word)))
_WORDS = re.compile(
    rf"\b(?:(?:{_NUMBER})+s?|{'|'.join(_PHRASES)}|{'|'.join((*_DIRECTIONS.split(), *_APPROVALS.split()))}"
    r"|(?-i:[IVX]{2,}|[IVXLC]{3,}))\b",
    re.IGNORECASE,
)
_LETTERS_APART = re.compile(r"(?<!\w)[A-Za-z](?:[\W_]{1,2}[A-Za-z](?!\w)){3,}")
"""As in "t e n"."""
_DIGIT = re.compile(r"[0-9_]")
_FOREIGN = re.compile("[^ -~‘’“”–—…]")
"""Anything but ASCII and the quotes and dashes of print."""

_REFERENCE = re.compile(r"\{(F[0-9]+)\}")
_JOINED = re.compile(
    r"""[^\s("'‘“]\{F[0-9]+\}"""
    r"""|\{F[0-9]+\}(?![\s)"'’”]|[,.;:!?]+(?:[\s)"'’”]|$)|$)\S*"""
    r"""|(?:[-+<>=~*/^%$#]|\b(?:over|under|past|nearly|almost|within|up\sto))\s\{F[0-9]+\}"""
    r"""|(?:\b(?:not|never|no|hardly|barely|without)|n['’]t)\s(?:\w+\s){0,3}\{F[0-9]+\}""",
    re.IGNORECASE,
)
"""A reference that is one with what stands before or behind it, or is denied: that makes another value of it."""
_TOKEN = re.compile(r"[^\W_](?:[\w./-]*\w)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?![a-z])")
_OUR_WORDS = frozenset(
    (*METRICS, *MEANINGS, *CATALOG, *(name for row in CATALOG.values() for name in row.parameters),
     *(word for row in CATALOG.values() for each in row.parameters.values() for word in each.choices))
)  # fmt: skip
"""Metrics, checks, actions and parameters: they are written like ids, and name nothing in the cell."""

ObjectName = tuple[str, str]
"""(kind, id)."""


class Offence(NamedTuple):
    """A piece of a text that says something without a reference."""

    start: int
    end: int
    why: str


class ProseReader:
    """Reads what a model wrote. `facts`: those that it was told. `names`: what it was told that objects are called."""

    def __init__(self, facts: Iterable[Fact], names: PromptNames) -> None:
        self._facts = {fact.id: fact for fact in facts}
        self._names = names
        self._known: dict[str, set[ObjectName]] = {}
        for kind, id_, shown in names.known():
            self._known.setdefault(shown, set()).add((kind, id_))
        self._real = frozenset(id_ for _, id_, _ in names.known())

    def sentences(self, text: str) -> tuple[Sentence, ...]:
        """Its sentences, each with the facts that it refers to, and why it is unsupported where it is."""
        return tuple(map(self._sentence, _SENTENCE_END.split(" ".join(text.split()))))

    def line(self, text: str, struck: str) -> str:
        """The text as one plain line without links. `struck` stands in the place of each offending piece; `{}` in it
        is that piece."""
        kept, at = [], 0
        text = " ".join(text.split())
        for start, end, _ in self._offences(text):
            if start >= at:
                kept += [text[at:start], struck.format(text[start:end])]
            at = max(at, end)
        return "".join(span.text for span in self._spans("".join((*kept, text[at:]))))

    def _sentence(self, text: str) -> Sentence:
        cites = dict.fromkeys(id_ for id_ in _REFERENCE.findall(text) if id_ in self._facts)
        why = next((offence.why for offence in self._offences(text)), "")
        return Sentence(spans=self._spans(text), cites=tuple(cites), unsupported=why)

    # -- what is said without a reference ------------------------------------------------------------------------------

    def _offences(self, text: str) -> list[Offence]:
        plain = _REFERENCE.sub(lambda match: self._blank(match[0], match[1] in self._facts), text)
        plain = _TOKEN.sub(lambda match: self._blank(match[0], self._is_name(match[0])), plain)
        found = [
            Offence(*match.span(), f"{_quoted_sentence(match[0])} alters a value") for match in _JOINED.finditer(text)
        ]
        found += _odd_words(plain)
        found += [
            Offence(*match.span(), f"{_quoted_sentence(match[0])} refers to no fact")
            for pattern in (_WORDS, _LETTERS_APART) for match in pattern.finditer(plain)
        ]  # fmt: skip
        return sorted(found)

    @staticmethod
    def _blank(piece: str, known: bool) -> str:
        return " " * len(piece) if known else piece

    def _is_name(self, word: str) -> bool:
        """True for a name that was told or a word of ours. A text that begins with a digit, or is a listed word, is
        never a name."""
        named = word in self._known or word in _OUR_WORDS
        return named and not word[0].isdigit() and _WORDS.fullmatch(word) is None

    # -- what is put in ------------------------------------------------------------------------------------------------

    def _spans(self, text: str) -> tuple[Span, ...]:
        """References and pseudonyms read back, links defanged."""
        named = {one for match in _TOKEN.finditer(text) for one in self._known.get(match[0], ())}
        shown, values = "", []
        for i, piece in enumerate(_REFERENCE.split(text)):
            fact = self._facts.get(piece) if i % 2 else None
            if fact is not None:
                value = _value_beside(fact, named)
                values.append((len(shown), len(shown) + len(value)))
                shown += value
            else:
                shown += f"{{{piece}}}" if i % 2 else self._names.restore(piece)
        return tuple(_marked(shown, values, links(shown, self._real)))


def _value_beside(fact: Fact, named: set[ObjectName]) -> str:
    """The value of a fact, and what it is of where the sentence does not name that alone."""
    of_kind = {one for one in named if one[0] == fact.kind}
    if of_kind == {(fact.kind, fact.subject)} or not (named or fact.subject):
        return value_of(fact)
    return f"{value_of(fact)} ({f'{fact.kind} {fact.subject}'.rstrip()})"


def _odd_words(plain: str) -> Iterator[Offence]:
    for match in re.finditer(r"\S+", plain):
        foreign = _FOREIGN.search(match[0])
        if foreign is not None:
            yield Offence(
                *match.span(), f"{_quoted_sentence(match[0])} holds U+{ord(foreign[0]):04X}, which is no plain English"
            )
        elif _DIGIT.search(match[0]):
            yield Offence(*match.span(), f"{_quoted_sentence(match[0])} is no fact or name that it was told")


def _quoted_sentence(piece: str) -> str:
    return f'"{piece.strip()[:MAX_SHOWN]}"'


def _marked(text: str, values: Iterable[tuple[int, int]], found: list[tuple[int, int]]) -> Iterator[Span]:
    """The text in spans; a value within a link is a part of that."""
    marks: list[tuple[int, int, Mark]] = [(start, end, "link") for start, end in found]
    marks += [(*one, "value") for one in values if not any(one[0] < end and start < one[1] for start, end in found)]
    at = 0
    for start, end, mark in sorted(marks):
        if start > at:
            yield Span(text=text[at:start])
        yield Span(text=defanged(text[start:end]) if mark == "link" else text[start:end], mark=mark)
        at = end
    if at < len(text) or not at:
        yield Span(text=text[at:])


Preview = Callable[[Request], Proposal]
"""What proposing it now would show, simulated on a fork; the rules of the policy that it would break in `note`."""
Named = tuple[str, str]
"""(kind, id) of an object, kinds as in `runbooks.models.prompt`."""
REASON = "drafted by a model"
"""Why it is proposed, as far as that is known here: a model's own words stand nowhere but in its frame."""
MAX_WHY = 300

KINDS: Mapping[ParameterType, str] = {
    "node_id": "node", "workload_id": "workload", "queue": "queue", "pool": "pool", "zone": "zone",
    "reservation": "reservation", "tenant": "tenant", "budget": "budget", "channel": "channel",
}  # fmt: skip
"""ParameterType of a parameter -> kind of what it names."""


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
    """The part of a message that must not be repeated. The catalogue's lines about its actions are no secret."""
    if message.role != "system":
        return ""
    return "\n".join(line for line in message.content.split("\n") if not line.startswith("- "))


def request_of(acts: Sequence[Act]) -> Request:
    return Request(steps=tuple(StepRequest(act=act) for act in acts), reason=REASON, source=Source(kind="model"))


def key_of(draft: Draft) -> str:
    """SHA-256 of a draft's acts, equal for drafts that would do the same; empty where nothing would be done."""
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
        """The real id of a name in a runbook."""
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
        raise DraftRejected("unknown_target", f"not there any more: {named}", "Try again: the facts have changed")
    makers: list[Maker] = []

    def make(engine: Engine, step: ModelDraftStep) -> Act:
        if not makers:
            makers.append(Maker(engine))
        return makers[0].act(action_of(step.action, "step"), _for_maker(step))

    for i, step in enumerate(given.steps):
        yield _asked(lambda step=step: call(lambda engine: make(engine, step)), f"steps[{i}]")  # type: ignore[misc]


def _gone(engine: Engine, targets: Sequence[Named]) -> list[Named]:
    """The targets that are no longer in the cell. Channels are the policy's, and the gate checks them."""
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
    """The preview of the acts. Raises DraftRejected when the gate refuses them or the policy denies them."""
    shown: Proposal = _asked(lambda: preview(request_of(acts)), "the plan")
    if shown.note:
        raise DraftRejected("policy_denied", f"the policy denies it: {shown.note[:MAX_WHY]}", "See muster policy show")
    return shown


def _asked(ask: Callable[[], Any], where: str) -> Any:
    """An answer of the engine. Raises its refusals as DraftRejected."""
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
    """True when the later action makes the earlier one pointless on the same target."""
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
