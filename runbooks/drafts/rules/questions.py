"""Read a question: objects of this cell that it names, and words of a closed table that name a symptom.

Nothing else of a sentence is read. What it asks for, denies or excepts is left to the person, who picks one of the
symptoms that the cell shows (`runbooks.drafts.rules.question_reading`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from engine.reads import pending_reasons
from runbooks.drafts.typed_draft import ReportedFinding
from runbooks.procedures.compiler import zones

if TYPE_CHECKING:
    from engine.control import Engine

WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/@:-]*[A-Za-z0-9])?")
MAX_TENANTS = 10_000
"""Tenants whose names are looked for in a question."""


class SymptomClass(NamedTuple):
    """A symptom as people name it."""

    reads: str
    """How the reading of it is told."""
    words: str
    """Lower case, between blanks; `*` ends one that may go on."""
    kinds: tuple[str, ...]
    """Kinds of `runbooks.drafts.rules.symptoms.Symptom`; `wait_` stands for every cause of a wait."""


SYMPTOM_CLASSES: Mapping[str, SymptomClass] = {
    "waiting": SymptomClass(
        "work waits",
        "wait* pending queued queueing queuing stuck start* schedul* slo late blocked",
        ("wait_", "parked_WaitingForDependency", "parked_DependencyNeverSatisfied"),
    ),
    "slow": SymptomClass("work is slow", "slow* straggl* lag* throughput", ("straggler",)),
    "hanging": SymptomClass("work hangs", "hang* hung stuck frozen progress", ("stuck",)),
    "failing": SymptomClass("something fails", "fail* crash* error* restarted flap*", ("flapping", "zone_lost")),
    "down": SymptomClass(
        "nodes are down", "down dead lost offline outage gone zone", ("flapping", "zone_lost", "spot_storm")
    ),
    "preempted": SymptomClass("work is preempted", "preempt* evict* interrupt* spot", ("spot_storm",)),
    "quota": SymptomClass("a quota is used up", "quota* borrow* lend*", (f"wait_{pending_reasons.QUOTA}",)),
    "full": SymptomClass(
        "there is no room",
        "full capacity room space fragment* scale* autoscal*",
        tuple(
            f"wait_{token}"
            for token in (pending_reasons.CAPACITY, pending_reasons.FRAGMENTED, pending_reasons.SCATTERED)
        ),
    ),
    "expensive": SymptomClass(
        "it costs too much",
        "expensive cost* budget* spend* spent bill* money idle* unused",
        ("budget", "idle_pool", f"wait_{pending_reasons.BUDGET}"),
    ),
    "oversized": SymptomClass("requests are too large", "request* oversized ask asks", ("oversized",)),
    "held": SymptomClass(
        "something is held",
        "held hold* pause* suspend* closed",
        ("held_queue", f"wait_{pending_reasons.QUEUE_HELD}", "parked_OnHold", "parked_Suspended"),
    ),
    "cordoned": SymptomClass("nodes are out of use", "cordon* drain* maintenance", ("cordoned",)),
    "reserved": SymptomClass(
        "nodes are reserved", "reserv* booked", ("idle_reservation", f"wait_{pending_reasons.RESERVED}")
    ),
    "dependent": SymptomClass(
        "work waits for other work", "depend*", ("parked_WaitingForDependency", "parked_DependencyNeverSatisfied")
    ),
    "crowded": SymptomClass("one tenant has most of the cell", "flood* hog* monopol*", ("tenant",)),
}
"""All words that a symptom is told by."""


def _pattern(words: str) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(word).replace(r"\*", r"\w*") for word in words.split()))


_PATTERNS = {name: _pattern(row.words) for name, row in SYMPTOM_CLASSES.items()}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a question, a finding and a pick are about."""

    text: str
    classes: frozenset[str] = frozenset()
    """Of SYMPTOM_CLASSES."""
    named: tuple[tuple[str, str], ...] = ()
    """(kind, id) of objects of this cell that are named."""
    finding: ReportedFinding | None = None
    pick: str = ""
    """Symptom that a person picked: its name or its subject; empty: none."""

    def names(self, *kinds: str) -> tuple[str, ...]:
        return tuple(id_ for kind, id_ in self.named if kind in kinds)


def read(engine: Engine, text: str, finding: ReportedFinding | None, pick: str = "") -> Question:
    """A question, of the cell as it is."""
    words = WORD.findall(text)
    known = _known(engine)
    named = dict.fromkeys(pair for at in range(len(words)) for pair in _named(engine, known, words, at))
    for id_ in (finding.about, *finding.targets) if finding is not None else ():
        kind, _, name = id_.rpartition(":")
        about = name if kind in ("queue", "tenant", "node") else id_
        named |= dict.fromkeys(_objects(engine, known, about))
    lower = {part for word in words for part in (word.lower(), *re.split(r"[._/@:-]", word.lower()))}
    classes = {name for name, pattern in _PATTERNS.items() if any(pattern.fullmatch(word) for word in lower)}
    return Question(text=text, classes=frozenset(classes), named=tuple(named), finding=finding, pick=pick)


def _named(
    engine: Engine, known: Mapping[str, Mapping[str, str]], words: list[str], at: int
) -> Iterable[tuple[str, str]]:
    """Objects that one word names. A name of one letter counts beside the word for its kind alone."""
    beside = {word.lower().removesuffix("s") for word in words[max(0, at - 1) : at + 2]}
    return (pair for pair in _objects(engine, known, words[at]) if len(words[at]) > 1 or pair[0] in beside)


def _known(engine: Engine) -> dict[str, dict[str, str]]:
    """Kind -> name in lower case -> name, of what there are few of."""
    state = engine.state
    found: dict[str, Iterable[str]] = {
        "queue": (spec.name for spec in state.queues.specs),
        "pool": (pool.name for pool in state.capacity.pools),
        "tenant": state.workloads.tenants.names[:MAX_TENANTS],
        "zone": zones(engine),
        "reservation": (each.spec.name for each in state.bookings.reservations),
        "budget": (spec.name for spec in state.budgets.specs),
    }
    return {kind: {name.lower(): name for name in sorted(names) if name} for kind, names in found.items()}


def _objects(engine: Engine, known: Mapping[str, Mapping[str, str]], word: str) -> Iterable[tuple[str, str]]:
    """(kind, id) of each object that is called so."""
    lower = word.lower()
    yield from ((kind, names[lower]) for kind, names in known.items() if lower in names)
    for kind, rows in (("workload", engine.state.workloads.row_of), ("node", engine.state.capacity.row_of)):
        id_ = word if word in rows else lower
        if id_ in rows:
            yield kind, id_
