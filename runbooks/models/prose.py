"""Prose of a model as sentences: values put in from the facts, and sentences that say one of their own marked.

Prose refers to a fact by its id in braces, `{F12}`; the value and its unit are put in here. A sentence is marked as
unsupported when it holds, outside of references and known names, a digit, a word of number, direction or approval, or
a character that plain English does not need: in those, numbers of any script and look-alike letters would hide. The
words are a closed English list. A sentence without a mark is not vouched for either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from runbooks.actions.catalogue import CATALOG
from runbooks.drafts.typed_draft import Fact, Mark, Sentence, Span
from runbooks.drafts.vocabulary import METRICS, value_of
from runbooks.models.pseudonyms import PromptNames
from runbooks.plans.checks import MEANINGS
from runbooks.untrusted.links import defanged, links

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
        found = [Offence(*match.span(), f"{_quoted(match[0])} alters a value") for match in _JOINED.finditer(text)]
        found += _odd_words(plain)
        found += [
            Offence(*match.span(), f"{_quoted(match[0])} refers to no fact")
            for pattern in (_WORDS, _LETTERS_APART) for match in pattern.finditer(plain)
        ]  # fmt: skip
        return sorted(found)

    @staticmethod
    def _blank(piece: str, known: bool) -> str:
        return " " * len(piece) if known else piece

    def _is_name(self, word: str) -> bool:
        """What begins with a digit or is a word of the list is none here, whatever something is called."""
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
                *match.span(), f"{_quoted(match[0])} holds U+{ord(foreign[0]):04X}, which is no plain English"
            )
        elif _DIGIT.search(match[0]):
            yield Offence(*match.span(), f"{_quoted(match[0])} is no fact or name that it was told")


def _quoted(piece: str) -> str:
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
