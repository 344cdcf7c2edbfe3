"""Whether what is said is borne out: every number, every id and every link in a sentence, held to the facts.

A number is borne out by a fact of the same kind of quantity, about the same object and the same matter, of which it is
the value or a fair rounding; by a reading that is written in a text of ours; or by nothing, and then it is marked. Ids
that no fact names are marked, so is whatever leads away, and so is any word that something was approved, unless a
record says so. What is not a number, an id or a link is not judged: prose stays unverified.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from runbooks.actions.catalog import CATALOG
from runbooks.checks import MEANINGS
from runbooks.confusable import drawn_alike, skeleton, why_confusing
from runbooks.draft import Fact, Mark, Sentence, Span
from runbooks.fact_readings import (
    CLAUSE,
    OF_WHOLE,
    TOKEN,
    Reading,
    around,
    is_hearsay,
    matters_of,
    names_in,
    readings_of,
    widened,
    written,
)
from runbooks.links import defanged, links
from runbooks.quantities import NOUNS, Kind, Quantity, quantities, shadow
from runbooks.vocabulary import METRICS

MOST_OFF = Fraction(1, 10)
"""Share of a value by which a rounding may miss it."""
MOST_ABOUT = Fraction(1, 8)
"""The same where it is said to be about that much."""
FARTHEST = 2
"""More than 10 is said of 12, not of 1,000: beyond this factor it says nothing."""
MOST_ENUMERATION = 9
MOST_NUMBERS = 40
"""Of one text that are held to the facts; what follows is marked unseen: nobody reads it, and each costs time."""

_STATISTICS = frozenset(("p95", "p50", "mean"))
"""A number that is one of these is not another of them."""
_KIND_WORDS: Mapping[str, str] = {
    word: kind for word, kind in NOUNS.items() if kind in
    ("node", "workload", "queue", "pool", "tenant", "zone", "reservation", "budget") and not word.endswith("s")
}  # fmt: skip

_OUR_WORDS = frozenset(
    (*METRICS, *MEANINGS, *CATALOG, *(name for row in CATALOG.values() for name in row.parameters),
     *(word for row in CATALOG.values() for each in row.parameters.values() for word in each.choices))
)  # fmt: skip
"""Metrics, checks, actions and parameters: they are written like ids, and name nothing in the cell."""
_NOT = re.compile(
    r"(?:\b(?:hardly|scarcely|anything but|nowhere near|far from|by no means|no longer(?! than)"
    r"|not|never|neither|nor|isn't|aren't|wasn't|hasn't|haven't|doesn't|don't|didn't|without|isnt|hasnt)"
    r"\s+(?!(?:only|just|merely|more|less|fewer|over|under|above|below|longer|later)\b)(?:[a-z]+\s+){0,2})$",
    re.IGNORECASE,
)  # fmt: skip
_REFUSED = re.compile(
    r"(?:(?:does|do|did|is|are|has|have|was|were)(?: not|n't)|never)\s+(?:yet\s+)?(?:exceed|reach|pass|waited|waiting)"
    r"(?:ed|s)?\s$", re.IGNORECASE,
)  # fmt: skip
_NONE = re.compile(r"(?<![\w-])(?:no|zero|none of the|not one|not a single)\s+(?:[a-z]+\s+){0,2}?([A-Za-z]+)", re.I)
_PERCENTILE = re.compile(r"\b(?:95|50)\s?(?:%|percent|per cent)|\bhalf of\b", re.IGNORECASE)
_IN = re.compile(
    r"(?:[ -](?!and\b|but\b|with\b)[A-Za-z]+){0,3} (?:in|of|on|for|at|from|within|by)(?: the)?(?: [a-z]+)? ",
    re.IGNORECASE,
)
"""Between a quantity and what it is said of."""
_OF_CELL = re.compile(r"\b(?:cell|cluster|overall|in total|altogether|everywhere)\b", re.IGNORECASE)
_OF_WORK = re.compile(r"[ -](?:gang|job|workload|task|run)s?\b", re.IGNORECASE)
"""Behind a quantity: as in "a 64-GPU job", which asks for it, whatever else it does."""
_STEP = re.compile(r"(?:steps?|point|item|option|phase|no\.|number)\s?$", re.IGNORECASE)
_LIST = re.compile(r"(?:^|[;:.]\s)\s{0,3}\(?$")
_VERB = re.compile(r"\s+(?:has|is|was|holds|uses|waits|needs|runs|borrows|lacks|had|wants)\b")
_AFTER_KINDS = """
    wait waiting depth length time quota policy order limit limits capacity size pressure backlog load usage mode
    state health loss losses failure failures recovery status name names priority budget spending cost price share
    pool queue node zone tenant job workload count owner itself alone above below here there now that this which
    it still also and or group side level growth scaling manager controller set
"""
_ORDINARY = frozenset(_AFTER_KINDS.split())
"""Words that stand behind "queue" or "node" without being a name."""
_SPACED = "|".join(r"[\W_]{1,2}".join(word) for word in ("approved", "authorized", "authorised"))
_AUTHORITY = re.compile(
    r"(?<![\w-])(?:(?:pre-?|already[ -]|auto-?)?(?:approved|approves|authori[sz]ed|authori[sz]es|sanctioned"
    r"|green-?lit|green-?lighted|signed[ -]{1,2}off|ratified|rubber-?stamped|okayed|ok'?e?d|endorsed)"
    r"|approvals?|authori[sz]ation|sign-?off|lgtm|break[ -]?glass|consented|go-?ahead|green[ -]?light|quorum"
    r"|(?:permission|consent|clearance) (?:was|is|has been) (?:given|granted)|(?:cleared|vetted|blessed|waived) by"
    r"|(?:gave|given|has|have) (?:her |his |their |the |an? )?(?:okay|ok|blessing|permission|nod|consent|clearance)"
    r"|voted (?:yes|for|in favou?r)|votes? (?:has |have )?(?:passed|are in|is in|were cast)|said yes"
    rf"|{_SPACED}"
    r"|genehmigt|freigegeben|abgesegnet|bewilligt|approuvée?s?|autorisée?s?|validée? par|aprobad[oa]s?|autorizad[oa]s?"
    r"|approvat[oaie]|autorizzat[oaie]|aprovad[oa]s?|goedgekeurd|zatwierdzon\w{0,3}|schválen\w{0,3}|onaylandı"
    r"|(?:одобр|утвержд|разреш|согласован|схвален|погоджен)\w{0,6})(?![\w-])"
    r"|(?<![未待需不])已?[获獲]?(?:批准|授权|授權|核准|许可|承認|同意|승인)"
    r"|(?:تمت|تم) الموافقة|موافق عليه|स्वीकृत|अनुमोदित|אושר",
    re.IGNORECASE,
)
_AWAITED = re.compile(
    r"\b(?:needs?|requires?|await(?:s|ing)?|waits? for|ask(?:s|ing)? for|must(?: first)? be|should be|has to be"
    r"|to be|not|never|nobody has|no one has|if|once|until|before|unless|after|pending|get|gets)"
    r"(?:\s+(?:yet|the|an?|its|human|your|their|operator's?|is|it is))*\s+$",
    re.IGNORECASE,
)
"""In front of it: that it is still to come is no claim that it came."""
_RECORDED = ("proposal", "record")
"""Kinds of facts that can say that somebody approved something."""


class Ground:
    """What sentences may rest on.

    `names`: (kind, id) of things that may be named besides the subjects of facts. `texts`: words of ours, such as the
    lines of the steps and what a fork showed, whose numbers may be repeated.
    """

    def __init__(
        self,
        facts: Sequence[Fact],
        names: Iterable[tuple[str, str]] = (),
        texts: Iterable[str] = (),
        *,
        now_ms: int = 0,
    ) -> None:
        self._facts = {fact.id: fact for fact in facts}
        self._readings = [reading for fact in facts for reading in readings_of(fact, now_ms)]
        self._readings += [reading for text in texts for reading in written(text, "", "", "", frozenset())]
        self._kinds: dict[str, set[str]] = {}
        for fact in facts:
            if fact.subject:
                self._kinds.setdefault(fact.subject, set()).add(fact.kind)
            metric = METRICS.get(fact.metric)
            # The state of a plan is no name, nor is a word of somebody's note.
            if isinstance(fact.value, str) and (metric is None or metric.value != "word"):
                for word in names_in(fact.value):
                    if not (is_hearsay(fact) and word.isalpha()):
                        self._kinds.setdefault(word, set())
        for kind, id_ in names:
            self._kinds.setdefault(id_, set()).add(kind)
        self._said = frozenset(
            word.lower() for fact in facts for word in names_in(f"{fact.text} {fact.metric.replace('_', ' ')}")
        )
        self._lower = {id_.lower(): id_ for id_ in self._kinds}
        self._skeletons = {skeleton(id_): id_ for id_ in self._kinds}
        self._approvals = {
            fact.id: fact.subject for fact in facts
            if fact.kind in _RECORDED and not is_hearsay(fact) and _AUTHORITY.search(f"{fact.text} {fact.value}")
        }  # fmt: skip
        """Facts that say that somebody approved something, and what."""
        self._now_ms = now_ms

    def sentence(self, text: str, cites: Sequence[str] = ()) -> Sentence:
        """The text in spans; what is not borne out is marked `wrong`, what leads away `link` and defanged. `cites`:
        facts that its numbers must rest on alone; none: any. A citation of what is no fact strikes all of it."""
        unknown = [id_ for id_ in cites if id_ not in self._facts]
        if unknown:
            why = f"it cites {', '.join(ascii(id_)[1:-1][:20] for id_ in unknown[:3])}, and there is no such fact"
            return Sentence(spans=(Span(text=_inert(text), mark="wrong", why=why),))
        marks = self._marks(text, tuple(dict.fromkeys(cites)))
        return Sentence(spans=_spans(text, marks), cites=tuple(dict.fromkeys(cites)))

    def _marks(self, text: str, cites: tuple[str, ...]) -> list[tuple[int, int, Mark, str]]:
        found: list[tuple[int, int, Mark, str]] = [
            (start, end, "link", "it leads away; nothing follows it") for start, end in links(text, self._kinds)
        ]
        taken = bytearray(len(text))
        for start, end, _, _ in found:
            taken[start:end] = b"\1" * (end - start)

        def mark(start: int, end: int, why: str) -> None:
            if not any(taken[start:end]):
                found.append((start, end, "wrong", why))
                taken[start:end] = b"\1" * (end - start)

        plain = shadow(text)
        mentions = self._mentions(text)
        for start, end, why in self._odd_tokens(text, plain, mentions, cites):
            mark(start, end, why)
        for start, end, _ in mentions:
            taken[start:end] = b"\1" * (end - start)
        named = {id_ for _, _, id_ in mentions}
        on_record = any(id_ in cites or about in named for id_, about in self._approvals.items())
        drawn = drawn_alike(plain)
        claims = [*_AUTHORITY.finditer(plain), *(_AUTHORITY.finditer(drawn) if drawn != plain.lower() else ())]
        for match in claims:
            if not on_record and not _AWAITED.search(plain[: match.start()]):
                mark(match.start(), match.end(), "a draft approves nothing; no record says that anybody did")
        numbers = [one for one in quantities(text) if not any(taken[one.start : one.end])]
        for quantity in numbers[MOST_NUMBERS:]:
            mark(quantity.start, quantity.end, f"a text with over {MOST_NUMBERS} numbers is not looked through")
        numbers = numbers[:MOST_NUMBERS]
        for i, quantity in enumerate(numbers):
            between = (numbers[i - 1].end if i else 0, numbers[i + 1].start if i + 1 < len(numbers) else len(text))
            why = self._why_not(plain, quantity, mentions, cites, between)
            whole = numbers[i + 1] if i + 1 < len(numbers) else None
            if not why and whole is not None and OF_WHOLE.fullmatch(plain, quantity.end, whole.start):
                why = _why_no_part(quantity, whole)
            if why:
                mark(quantity.start, quantity.end, why)
        for match in _NONE.finditer(plain):
            why = self._why_not_none(plain, match, mentions, cites)
            if why:
                mark(match.start(), match.end(), why)
        return found

    # -- names ----------------------------------------------------------------------------------------------------

    def _mentions(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, id) of each name that is known. One that is a number is a name only behind what it is of."""
        found = []
        last = ""
        for match in TOKEN.finditer(text):
            word, behind = match[0], last.lower() in _KIND_WORDS
            last = word
            if word[0].isdigit() and quantities(word) and not behind:
                continue
            begun = word[:1].lower() + word[1:]
            if word in self._kinds:
                found.append((match.start(), match.end(), word))
                continue
            if begun in self._kinds and text[: match.start()].rstrip()[-1:] in ("", ".", "!", "?", ":"):
                found.append((match.start(), match.end(), begun))
                continue
            at = match.start()
            for part in word.split("/"):
                if part in self._kinds:
                    found.append((at, at + len(part), part))
                at += len(part) + 1
        return found

    def _odd_tokens(
        self, text: str, plain: str, mentions: list[tuple[int, int, str]], cites: tuple[str, ...]
    ) -> Iterable[tuple[int, int, str]]:
        """(start, end, why) of what reads as a name and is none that a fact knows."""
        known = {start: (end, id_) for start, end, id_ in mentions}
        for match in re.finditer(r"\S+", text):
            hidden = next((char for char in match[0] if _is_hidden(char)), "")
            if hidden:
                yield match.start(), match.end(), f"it holds U+{ord(hidden):04X}, which nobody sees"
        last = ""
        for match in TOKEN.finditer(text):
            word, start, end = match[0], match.start(), match.end()
            kind, last = _KIND_WORDS.get(last.lower(), ""), word
            if start in known:
                id_ = known[start][1]
                kinds = self._kinds[id_]
                if kind and kinds and kind not in kinds and id_.lower() not in _KIND_WORDS:
                    yield start, known[start][0], f"{id_} is a {min(kinds)}, not a {kind}"
                continue
            if word in self._facts:
                continue
            why = self._why_no_name(text, word, end, kind)
            if why:
                yield start, end, why

    def _why_no_name(self, text: str, word: str, end: int, kind: str) -> str:
        if not word.isascii():
            alike = self._skeletons.get(skeleton(word))
            if alike is not None and not shadow(word).isdigit() and any(char.isalpha() for char in word):
                return f"it only looks like {alike}"
            why = why_confusing(unicodedata.normalize("NFKC", word))
            if "mixes" in why and not quantities(word):
                return f"it {why}"
        letters, digits = any(char.isalpha() for char in word), any(char.isdigit() for char in word)
        if letters and word.lower() in self._lower and (digits or "-" in word or "_" in word):
            return f"no fact names it; there is {self._lower[word.lower()]}"
        if word in _OUR_WORDS or word.lower() in self._said:
            return ""
        if (digits and letters and word[0].isalpha()) or "_" in word:
            return "no fact names it"
        if kind and ("-" in word or "/" in word) and not _ENGLISH_HYPHEN.fullmatch(word):
            return f"no fact names a {kind} {ascii(word)[1:-1][:40]}"
        quoted = 0 < end < len(text) and text[end] in "'\"`’”" and text[end - len(word) - 1 : end - len(word)] in (
            "'", '"', "`", "‘", "“"
        )  # fmt: skip
        if kind and word.lower() not in _ORDINARY and word.isalpha() and (quoted or _VERB.match(text, end)):
            return f"no fact names a {kind} {ascii(word)[1:-1][:40]}"
        return ""

    # -- numbers --------------------------------------------------------------------------------------------------

    def _why_not(
        self,
        plain: str,
        quantity: Quantity,
        mentions: list[tuple[int, int, str]],
        cites: tuple[str, ...],
        between: tuple[int, int],
    ) -> str:
        if quantity.value is None:
            return "it is no number that anything here has"
        if _is_enumeration(plain, quantity):
            return ""
        shown = " ".join(plain[quantity.start : quantity.end].split())[:40]
        clause = around(plain, quantity, between)
        matters = matters_of(clause) | _statistic(plain[max(0, quantity.start - 60) : quantity.start])
        if quantity.kind in ("gpu", "cpu", "mib") and _OF_WORK.match(plain, quantity.end):
            matters = frozenset(("asks",))
        nearest = self._nearest(plain, quantity, mentions) if not _OF_CELL.search(clause) else None
        fitting = [
            reading for reading in self._readings
            if self._same_kind(quantity, reading) and self._about(reading, nearest, cites)
            and (not reading.hearsay or reading.fact in cites)
        ]  # fmt: skip
        subject = nearest[0] if nearest is not None else ""
        named = frozenset(id_ for _, _, id_ in mentions if self._kinds[id_])
        of_matter = [one for one in fitting if _same_matter(matters, one, subject, named, quantity)]
        # What is known of the very thing decides; what is known of others only where nothing is.
        if subject and any(one.subject == subject for one in of_matter):
            of_matter = [one for one in of_matter if one.subject == subject or not one.fact]
        borne_out = [reading for reading in of_matter if _agrees(quantity, reading)]
        before = plain[max(0, quantity.start - 40) : quantity.start]
        if borne_out and (_REFUSED.search(before) or _NOT.search(before)):
            return f"{_source(borne_out[0])} says that it is so"
        if borne_out:
            return ""
        if any(_agrees(quantity._replace(bound=""), reading) for reading in of_matter):
            return f"what is there is exactly {shown}"
        other = next((reading for reading in fitting if _agrees(quantity, reading)), None)
        if other is not None:
            return f"{_source(other)} says {shown} of something else"
        if cites:
            return f"{', '.join(cites)} {'does' if len(cites) == 1 else 'do'} not say {shown}"
        return f"no fact says {shown}"

    def _why_not_none(
        self, plain: str, match: re.Match[str], mentions: list[tuple[int, int, str]], cites: tuple[str, ...]
    ) -> str:
        """Why "no nodes are down" is contradicted; empty where it is not."""
        word = match[1].lower()
        noun = NOUNS.get(word, "")
        kind: Kind = (
            "gpu" if word in ("gpu", "gpus") else "cpu" if word in ("cpu", "cpus", "core", "cores") else "number"
        )
        if not noun and kind == "number":
            return ""
        none = Quantity(match.start(), match.end(), Fraction(0), Fraction(1), kind, noun)
        matters = matters_of(around(plain, none, (0, len(plain))))
        nearest = self._nearest(plain, none, mentions)
        same = [
            reading for reading in self._readings
            if matters and self._same_kind(none, reading) and self._about(reading, nearest, cites)
            and reading.matters & widened(matters)
        ]  # fmt: skip
        if same and all(reading.value != 0 for reading in same):
            return f"{_source(same[0])} says that there are"
        return ""

    def _nearest(
        self, plain: str, quantity: Quantity, mentions: list[tuple[int, int, str]]
    ) -> tuple[str, frozenset[str]] | None:
        """The thing that a number is said of: one that follows as in "3 jobs in prod", else the last that is named
        before it, else the first after."""
        before = [id_ for _, end, id_ in mentions if end <= quantity.start and self._kinds[id_]]
        after = [(start, id_) for start, _, id_ in mentions if start >= quantity.end and self._kinds[id_]]
        if after and (
            _IN.fullmatch(plain, quantity.end, after[0][0])
            or not (before or CLAUSE.search(plain, quantity.end, after[0][0]))
        ):
            id_ = after[0][1]
        elif before:
            id_ = before[-1]
        else:
            return None
        return id_, frozenset(self._kinds[id_])

    @staticmethod
    def _about(reading: Reading, nearest: tuple[str, frozenset[str]] | None, cites: tuple[str, ...]) -> bool:
        if cites and reading.fact and reading.fact not in cites:
            return False
        return nearest is None or reading.of not in nearest[1] or reading.subject == nearest[0]

    @staticmethod
    def _same_kind(quantity: Quantity, reading: Reading) -> bool:
        if quantity.noun and reading.noun and quantity.noun != reading.noun:
            return False
        if quantity.kind == reading.kind:
            return True
        bare = quantity.kind == "number" and not quantity.noun
        if bare and reading.kind in ("gpu", "cpu"):
            return True
        return bare and reading.kind == "ratio" and quantity.value is not None and 0 < quantity.value < 1


# -- how a number fits ------------------------------------------------------------------------------------------------


def _agrees(quantity: Quantity, reading: Reading) -> bool:
    value, is_ = quantity.value, reading.value
    assert value is not None, "looked at before"
    if quantity.bound in ("", "about") and abs(float(value) - reading.nearly) > (
        2 * float(quantity.step) + abs(reading.nearly) / 4
    ):
        return False  # Far off; exact arithmetic is slow, and a hostile answer is full of numbers.
    match quantity.bound:
        case "above":
            return value < is_ <= value * FARTHEST
        case "below":
            return is_ < value <= is_ * FARTHEST
        case "least":
            return value <= is_ <= value * FARTHEST
        case "most":
            return is_ <= value <= is_ * FARTHEST
        case "about":
            return abs(value - is_) <= is_ * MOST_ABOUT
    if value == is_:
        return True
    if reading.exact or (quantity.kind in ("number", "gpu", "cpu", "date", "times") and quantity.plain):
        return False
    near = abs(value - is_) <= quantity.step / 2 or 0 <= is_ - value < quantity.step
    return near and (quantity.kind == "clock" or abs(value - is_) <= abs(is_) * MOST_OFF)


def _why_no_part(part: Quantity, whole: Quantity) -> str:
    if part.kind == whole.kind and part.value is not None and whole.value is not None and part.value > whole.value:
        return "a part is not more than the whole"
    return ""


def _same_matter(
    matters: frozenset[str], reading: Reading, subject: str, named: frozenset[str], quantity: Quantity
) -> bool:
    """Whether a reading is about what a number is said of. `subject`: the nearest thing that is named, `named`: all of
    them in the sentence. What has no matter of its own is told by its subject alone; and a bound, which many numbers
    are within, needs both."""
    if matters & _STATISTICS and not matters & _STATISTICS & reading.matters:
        return False
    bounded = quantity.bound not in ("", "about")
    if reading.aside and not matters & reading.matters:
        return False
    if not reading.fact:
        same = bool(widened(matters) & reading.matters)
        return same or (not bounded and not (matters and reading.matters))
    if bounded and subject and reading.subject != subject:
        return False
    if not matters:
        return not named or not reading.subject or reading.subject in named
    if not reading.matters:
        return not bounded and subject in ("", reading.subject)
    return bool(widened(matters) & reading.matters)


def _statistic(before: str) -> frozenset[str]:
    """As in "95 % of the last starts waited at most": of the number that follows."""
    found = [match for match in _PERCENTILE.finditer(before) if "." not in before[match.end() :]]
    return frozenset(("p95",) if found[-1][0].startswith("95") else ("p50",)) if found else frozenset()


def _is_enumeration(plain: str, quantity: Quantity) -> bool:
    """Whether it only counts what is said: "step 2", "(1)", "1." before a point of a list."""
    small = quantity.kind == "number" and not quantity.noun and quantity.value in range(1, MOST_ENUMERATION + 1)
    if not small:
        return quantity.kind == "other" and quantity.noun == "ordinal" and (quantity.value or 0) <= MOST_ENUMERATION
    before, after = plain[: quantity.start], plain[quantity.end : quantity.end + 2]
    if _STEP.search(before):
        return True
    return bool(_LIST.search(before)) and after[:1] in (".", ")") and after[1:2] == " "


def _source(reading: Reading) -> str:
    return reading.fact or "what was tried"


# -- spans ------------------------------------------------------------------------------------------------------------

_ENGLISH_HYPHEN = re.compile(
    r"(?:[a-z]+-)?(?:wide|level|based|specific|local|related|aware|time|hours?|side|only|loss|by|off|up|out|in|on|to)"
    r"(?:-[a-z]+)*", re.IGNORECASE,
)  # fmt: skip


def _is_hidden(char: str) -> bool:
    if char.isascii():
        return not char.isprintable()
    return (
        unicodedata.category(char) in ("Cf", "Cc", "Co", "Cn", "Cs") or char in "\u034f\u115f\u1160\u2800\u3164\uffa0"
    )


def _inert(text: str) -> str:
    """The whole of a text, its links defanged."""
    shown, at = [], 0
    for start, end in links(text):
        shown += [text[at:start], defanged(text[start:end])]
        at = end
    return "".join((*shown, text[at:]))


def _spans(text: str, marks: Iterable[tuple[int, int, Mark, str]]) -> tuple[Span, ...]:
    spans: list[Span] = []
    at = 0
    for start, end, mark, why in sorted(marks):
        if start > at:
            spans.append(Span(text=text[at:start]))
        shown = defanged(text[start:end]) if mark == "link" else text[start:end]
        spans.append(Span(text=shown, mark=mark, why=why))
        at = end
    if at < len(text) or not spans:
        spans.append(Span(text=text[at:]))
    return tuple(spans)
