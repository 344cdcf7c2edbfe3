"""What facts say in numbers: the quantities that prose is held to, each with what it is of.

A fact says its value, and what stands in its text, which is the same rounded by us. What a number is about is told by
few words, such as waiting, running or free: its matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from runbooks.draft import MOST_FACTS, Fact
from runbooks.quantities import NOUNS, Kind, Quantity, quantities, shadow
from runbooks.vocabulary import METRICS

_MATTERS: Mapping[str, str] = {
    "waiting": "wait waits waited waiting queued queueing queue_time pending backlog starved oldest",
    "running": "running run runs ran executing active",
    "free": "free idle unused spare available vacant",
    "used": "used use uses using busy allocated occupied utilised utilized utilisation utilization",
    "quota": "quota quotas nominal entitled entitlement",
    "borrowed": "borrow borrows borrowed borrowing",
    "lent": "lend lends lent lending",
    "down": "down dead unreachable broken",
    "lost": "lost loses losses lost",
    "suspect": "silent suspect",
    "ready": "ready healthy schedulable",
    "cordoned": "cordoned",
    "draining": "draining drained",
    "booting": "booting boot boots",
    "ordered": "ordered order",
    "held": "held hold",
    "suspended": "suspended",
    "failed": "failed fails failing failure failures errors",
    "finished": "finished completed ended done",
    "started": "started starts attempts restarts restarted retries",
    "spent": "spent spend spending",
    "limit": "limit limits cap",
    "fragmented": "fragmented fragmentation",
    "forecast": "forecast projected predicted expected estimate estimated",
    "p95": "p95 95th", "p50": "p50 median", "mean": "average mean avg",
    "asks": "asks ask asked needs need needed requests requested requires wants size",
    "priority": "priority", "tasks": "tasks task",
}  # fmt: skip
_MATTER = {word: matter for matter, words in _MATTERS.items() for word in words.split()}
_HEARSAY = frozenset(
    ("proposal_title", "proposal_note", "proposal_reason", "proposal_waits_for", "freeze_text", "review_text")
)
"""Metrics whose values are people's own words."""
_LIKE: Mapping[str, frozenset[str]] = {
    "down": frozenset(("lost", "suspect")), "lost": frozenset(("down", "suspect")),
    "suspect": frozenset(("lost", "down")), "booting": frozenset(("ordered",)), "ordered": frozenset(("booting",)),
    "used": frozenset(("spent",)),
}  # fmt: skip
"""Matters that people call by each other's names."""
CLAUSE = re.compile(r"[,;:()\[\]]|\.\s|\b(?:and|but|while|whereas|because|since|so|although|though|which|who|as)\b")
_WORD = re.compile(r"[A-Za-z_0-9]+")
_ID_LIKE = re.compile(r"(?=[\w./-]*\d)\w+(?:[./-]\w+)+")
"""As in tp-64-run: its parts are no words."""
TOKEN = re.compile(r"[^\W_](?:[\w./-]*[\w])?")
OF_WHOLE = re.compile(r"\s?(?:of|out of|/)\s?(?:the\s|its\s)?")


class Reading(NamedTuple):
    """A quantity that something of ours says."""

    value: Fraction
    kind: Kind
    noun: str
    matters: frozenset[str]
    subject: str
    of: str
    """Kind of the subject."""
    fact: str
    """Id of the fact; empty for a text of ours."""
    exact: bool
    """It stands so in a text: no rounding of it."""
    aside: bool = False
    """It stands in the words of a fact without being its value, as the 95 % of a percentile does."""
    hearsay: bool = False
    """Somebody wrote it into a text that a fact repeats: it bears out what cites that fact, and nothing else."""
    nearly: float = 0.0
    """The value, for a first look."""


@lru_cache(maxsize=2 * MOST_FACTS)
def readings_of(fact: Fact, now_ms: int) -> tuple[Reading, ...]:
    """By value, and by what its text says, which is rounded by us. The same facts are held to several texts."""
    # What it is about was named by strangers: a queue can be called "running", and a node 97.
    text = fact.text.replace(fact.subject, "…") if fact.subject else fact.text
    if isinstance(fact.value, str) and fact.value and " " not in fact.value:
        text = text.replace(fact.value, "…")
    matters = matters_of(f"{fact.metric.replace('_', ' ')} {text}")
    found = written(text, fact.id, fact.subject, fact.kind, matters)
    if is_hearsay(fact):
        return tuple(one._replace(hearsay=True) for one in found)
    if isinstance(fact.value, str):
        return tuple(found)
    noun = "" if fact.unit != "count" else _noun_of(fact)

    def reading(value: Fraction, kind: Kind, *, exact: bool = False) -> Reading:
        return Reading(value, kind, noun, matters, fact.subject, fact.kind, fact.id, exact, nearly=float(value))

    number = Fraction(fact.value)
    if fact.unit != "permille":
        found = [one._replace(aside=one.kind == "ratio") for one in found]
    match fact.unit:
        case "gpu" | "cpu":
            found.append(reading(number / 1000, fact.unit))
        case "mib":
            found.append(reading(number, "mib"))
        case "seconds":
            found.append(reading(number, "time"))
        case "permille":
            found.append(reading(number / 1000, "ratio"))
        case "microusd":
            found.append(reading(number / 10**6, "usd"))
        case "microusd_hour":
            found += (reading(number / 10**6, "usd_hour"), reading(number / 10**6, "usd"))
        case "time_ms":
            found += _moments(reading, fact.value, now_ms)
        case _:
            found.append(reading(number, "number"))
    return tuple(found)


def _moments(reading: object, at_ms: int, now_ms: int) -> list[Reading]:
    """Of a moment: its time of day, its date, and how far it is from now."""
    assert callable(reading)
    found: list[Reading] = [reading(Fraction(abs(now_ms - at_ms), 1000), "time")] if now_ms else []
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return found
    found.append(reading(Fraction(at.hour * 3600 + at.minute * 60 + at.second), "clock"))
    found.append(reading(Fraction(at_ms // 86_400_000), "date"))
    return found


def written(text: str, fact: str, subject: str, kind: str, matters: frozenset[str]) -> list[Reading]:
    """The numbers of a text of ours, those inside names left out."""
    plain = shadow(text)
    names = [(match.start(), match.end()) for match in TOKEN.finditer(text) if _is_name(match[0])]
    found = []
    numbers = quantities(text)
    for i, one in enumerate(numbers):
        if one.value is None or any(start <= one.start and one.end <= end for start, end in names):
            continue
        between = (numbers[i - 1].end if i else 0, numbers[i + 1].start if i + 1 < len(numbers) else len(text))
        said = matters or matters_of(around(plain, one, between))
        found.append(
            Reading(one.value, one.kind, one.noun, said, subject, kind, fact, exact=True, nearly=float(one.value))
        )
    return found


def _noun_of(fact: Fact) -> str:
    words = (NOUNS.get(word.lower(), "") for word in re.findall(r"[A-Za-z]+", fact.text) if word.endswith("s"))
    return next(filter(None, words), "")


def _is_name(word: str) -> bool:
    return word[0].isalpha() and any(char.isdigit() for char in word)


def names_in(text: str) -> Iterable[str]:
    return (match[0] for match in TOKEN.finditer(text))


def widened(matters: frozenset[str]) -> frozenset[str]:
    return matters.union(*(_LIKE.get(matter, frozenset()) for matter in matters))


def is_hearsay(fact: Fact) -> bool:
    return fact.metric in _HEARSAY


def matters_of(text: str) -> frozenset[str]:
    words = [word.lower() for word in _WORD.findall(_ID_LIKE.sub(" ", text))]
    # The name of a metric says what it is of: queue_waiting.
    words += [part for word in words if word in METRICS for part in word.split("_")]
    return frozenset(matter for word in words if (matter := _MATTER.get(word)))


def around(plain: str, quantity: Quantity, between: tuple[int, int]) -> str:
    """The clause that a number stands in, as far as no other number begins or ends it."""
    before = plain[between[0] : quantity.start]
    after = plain[quantity.end : between[1]]
    if OF_WHOLE.fullmatch(after):
        after = plain[quantity.end :]
    cuts = [match.end() for match in CLAUSE.finditer(before)]
    cut = CLAUSE.search(after)
    return f"{before[cuts[-1] if cuts else 0 :]} {after[: cut.start() if cut else len(after)]}"
