"""What an operator's words are about: topics, objects of this cell, and how long a wait was promised to be at most.

Words only say where to look: what is found there is the cell's. A name may be misspelt, or be said in part; one that is
an everyday word too ("gpu", "batch") counts for little.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from runbooks.compile import zones
from runbooks.draft import Finding

if TYPE_CHECKING:
    from engine.control import Engine

TOPICS: Mapping[str, str] = {
    "wait": r"wait\w*|queue\w*|pending|slo\w*|backlog\w*|starv\w*|starts?|starting|schedul\w*|unschedul\w*|late"
    r"|delay\w*|sits?|sitting|admitted|admission|eta|p95",
    "quota": r"quotas?|limits?|borrow\w*|lend\w*|lent|cohorts?|nominal|shares?|entitle\w*|allowance",
    "move": r"rebalanc\w*|shift|transfer|donat\w*|donor|swap",
    "capacity": r"capacity|room|full|exhaust\w*|saturat\w*|space|slots",
    "fragment": r"frag\w*|pieces|scatter\w*|defrag\w*|consolidat\w*|contiguous|together|packed|packing|rack|nvlink"
    r"|domain|topology|spread",
    "reservation": r"reserv\w*|booking|booked|demo",
    "cordon": r"cordon\w*|uncordon\w*|maintenance|repair\w*|patched|patching|forgotten|forgot|hand(?:ed)?|returned?"
    r"|unschedulable|drained",
    "planned": r"maintenance|firmware|planned|window|purpose|intentional\w*|deliberate\w*|upgrad\w*|migrat\w*|recabl\w*"
    r"|rma|vendor|bios|quarantin\w*|investigat\w*|debug\w*|repair|repairs|broken|faulty|until|till",
    "finished": r"forg\w+|done|finished|over|complete\w*|repaired|fixed|since|still|ago|back|yesterday|healthy|tested"
    r"|left|weeks?|days?|stale|ready|passed|after|again",
    "flap": r"flap\w*|bounc\w*|rejoin\w*|reconnect\w*|reboot\w*|comes|back|again|restart\w*|unstable"
    r"|intermittent\w*",
    "straggler": r"straggl\w*|slow\w*|lag|lags|lagging|behind|laggard|throughput|speed"
    r"|steps?|ranks?|pace|bottleneck\w*|doubled",
    "stuck": r"stuck|hang\w*|hung|frozen|freez\w*|deadlock\w*|stall\w*|progress|nccl|spinning|wedged|zombie|locked"
    r"|lockup|livelock\w*|inactive|bounce",
    "spot": r"spot|preemptib\w*|interrupt\w*|reclaim\w*|evict\w*|notices?|storm|provider|preempted|taken",
    "zone": r"zones?|az|outage|dark|datacent\w*|region|blackout|power",
    "tenant": r"flood\w*|runaway|spam\w*|loop\w*|hog\w*|noisy|monopol\w*|swamp\w*|sweeps?|crowd\w*|eat(?:s|ing|en)?"
    r"|abus\w*|greedy|bomb\w*|takeover|gobbl\w*|clog\w*|overrun|drown\w*|bogart\w*|monster\w*"
    r"|everyone|everybody",
    "budget": r"budget\w*|spend\w*|spent|costs?|money|bill\w*|usd|dollars?|overspen\w*|funds?|allocation|\$\w*",
    "oversized": r"shrink\w*|maxrss|rss|overestimat\w*|uses?|requests?|requested|oversized|rightsiz\w*|overask\w*"
    r"|overprovision\w*|air|asks?",
    "idle": r"burn\w*|idle|idles|idling|wast\w*|unused|paying|paid|empty|underus\w*|unneeded"
    r"|oversized|shrink\w*|excess\w*|surplus"
    r"|downsiz\w*",
    "ahead": r"forecast\w*|peak|tomorrow|morning|prescale|ahead|surge|expected|foreseen|upcoming|soon|monday|deadline",
    "hold": r"(?:un)?hold\w*|held|(?:un)?paus\w*|(?:un)?suspend\w*|closed|disabled|resume\w*|release\w*|reopen\w*|open",
    "dependency": r"depend\w*|upstream|prerequisite|after\w*|chain",
    "ecc": r"ecc|xid|dbe|remap\w*|uncorrect\w*|faulty|hbm|memory-errors?|bitflips?",
    "throttle": r"throttl\w*|thermal\w*|overheat\w*|heat|temperatures?|cooling",
    "network": r"network|unreachable|silent|suspect\w*|heartbeats?|contact|responding|unresponsive|switch|partitioned",
    "down": r"down|dead|offline|crashed|notready|lost|gone|died",
    "boot": r"boot\w*|provision\w*|stock\w*|autoscal\w*|scal\w*|max|maximum|grow\w*|ordered|orders",
    "clock": r"clocks?|skew\w*|ntp|drift\w*",
    "fail": r"fail\w*|crash\w*|retr\w+|errors?|dies|exit\w*",
    "priority": r"prio\w*|preempt\w*|production|prod|urgent\w*|critical|important|bump|jump"
    r"|escalat\w*|asap|low-priority",
    "behind": r"fifo|ahead|blocks?|blocking|blocked|head|line|order|strict\w*",
}
"""Topic -> words, as one pattern over whole words in lower case."""
_TOPICS = {topic: re.compile(rf"(?:{words})") for topic, words in TOPICS.items()}
EVERYDAY = frozenset(
    (
        "gpu", "gpus", "cpu", "cpus", "batch", "default", "spot", "queue", "queues", "node", "nodes", "pool", "pools",
        "prod", "production", "test", "main", "train", "training", "research", "cell", "zone", "job", "jobs", "work",
        "team", "teams", "ml", "dev", "low", "high", "normal", "all", "and", "the", "for", "not", "are", "on", "off",
        "is", "it", "why", "slow", "night", "day", "wait",
    )
)  # fmt: skip
"""Words that are said of anything, though something here may be called so."""
WORD = re.compile(r"\$?[A-Za-z0-9](?:[A-Za-z0-9._/@:-]*[A-Za-z0-9])?")
SLO = re.compile(
    r"(?:slo|sla|promised|objective|should be|at most)\s*(?:of|is|was|=|:|\(|at|wait)?\s*"
    r"(?:at most|<=?|under|within)?\s*(\d{1,5})\s*(seconds|sec|s|minutes|min|mins|m|hours|hour|hrs|h)\b"
)
"""What was promised; a time that is merely said beside it is how long it has been."""
_HARD = (
    r"(?:xid\s*[:#=]?\s*(?:errors?\s+)?(?:48|64|74|79|92|95|119|120|140|143)\b|uncorrect(?:able|ed)\b|double[ -]?bit"
    r"|dbes?\b|ecc\s+(?:memory\s+)?(?:errors?|faults?)|fell\s+off\s+the\s+bus|fallen\s+off\s+the\s+bus"
    r"|machine[ -]check|mce\s+errors?|memory\s+errors?|remapping\s+fail\w*)"
)
"""What a device says that is broken; XIDs that programs bring about are not among them."""
_SHOWS = (
    r"(?:has|have|had|shows?|showing|reports?|reporting|throws?|throwing|logs|logged|logging|gets?|getting|hits?"
    r"|hitting|with|keeps|gives|:|'s)"
)
_DOUBT = re.compile(
    r"\b(?:no|not|never|none|nothing|without|if|maybe|might|may|could|perhaps|possibly|any|unless|false|fake|test|drill"
    r"|simulat\w*|cleared|resolved|fixed|replaced|repaired|ago|yesterday|once|last|corrected|correctable|single|rumou?r"
    r"|think|guess|someone|somebody|claims?|isn|doesn|wasn|hasn)\b|^\s*(?:is|are|was|were|does|do|did|has|have|can)\b"
)
"""With such a word it is no statement of what is."""
_OVER = re.compile(
    r"\b(?:is|are|was|were|been|got|now|its|it's|s)\s+(?:all\s+|long\s+|now\s+)?(?:back|up|over|done|finished|fixed"
    r"|complete\w*|restored|repaired|replaced|swapped|changed|patched|updated|upgraded|tested|healthy|ready|resolved"
    r"|cancell?ed|gone|passed|clean|fine)\b|\b(?:came|come)\s+back\b|\bforgot(?:ten)?\s+to\b"
    r"|\b(?:work|job|repair|maintenance|upgrade|rollout|swap|test|tests|demo|window|freeze|storm|move|migration|outage|event)"
    r"\s+(?:has\s+|is\s+|was\s+)?(?:done|finished|complete\w*|over|passed|ended|lifted|expired|gone)\b"
    r"|^\(?(?:it\s+|which\s+|that\s+)?ended\b|\bended\s+(?:at\s+)?\d|\b(?:just|pls|please|so|then|^)\s*use\s+(?:it|them|those|these)\b"
)
_NOT_OVER = re.compile(r"\b(?:not|isn|aren|wasn|until|till|when|once|if|unless|before|no)\b")
_LET_GO = re.compile(
    r"\b(?:release|resume|unhold|unsuspend|unpause|let go(?: of)?|restart)\s+(?:please\s+)?"
    r"(?:it|them|all|these|those|this|that|the)\b|\b(?:release|resume|unhold|unsuspend|unpause)\s+(?:it|them)?\s*please\b"
    r"|\bget\s+(?:it|them|this|these)\s+(?:going|running|started)\b"
)
_LET_GO_OF = re.compile(
    r"(?:^|\bplease|\bpls|\byou|\band|\bthen)\s*\b(?:release|resume|unhold|unsuspend|unpause)\s+"
    r"(?:please\s+|(?:work)?loads?\s+|jobs?\s+|runs?\s+|gangs?\s+)*(\S+)"
)
UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
LEAST_NEAR = 5
"""Letters that a misspelt name must have."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a question and a finding are about."""

    text: str
    topics: frozenset[str] = frozenset()
    named: tuple[tuple[str, str], ...] = ()
    """(kind, id) of objects of this cell that are named."""
    hinted: tuple[tuple[str, str], ...] = ()
    """The same by everyday words, by a part of their name, or nearly."""
    slo_ms: int = 0
    """0: nobody said what was promised."""
    finding: Finding | None = None
    broken: tuple[str, ...] = ()
    """Nodes of which it states, in so many words, an error that no program brings about."""
    over: bool = False
    """It states that what something was put aside for is over, or asks for it back."""

    def names(self, *kinds: str) -> tuple[str, ...]:
        return tuple(id_ for kind, id_ in self.named if kind in kinds)


def read(engine: Engine, question: str, finding: Finding | None) -> Asked:
    """What is asked, of the cell as it is."""
    lower = question.lower()
    words = WORD.findall(question)
    parts = {part for word in words for part in re.split(r"[._/@:-]", word.lower()) if part} | {
        w.lower() for w in words
    }
    topics = {topic for topic, pattern in _TOPICS.items() if any(pattern.fullmatch(part) for part in parts)}
    named, hinted = objects(engine, words)
    if finding is not None:
        known = _known(engine)
        for id_ in (finding.about, *finding.targets):
            about = (
                id_.partition(":")[2] if ":" in id_ and id_.partition(":")[0] in ("queue", "tenant", "node") else id_
            )
            named |= dict.fromkeys((kind, about) for kind in _kinds(engine, known, about))
    found = SLO.search(lower)
    nodes = [id_ for kind, id_ in named if kind == "node"]
    slo_ms = int(found[1]) * UNITS_MS[found[2][0]] if found else 0
    return Asked(
        text=question, topics=frozenset(topics), named=tuple(named), hinted=tuple(k for k in hinted if k not in named),
        slo_ms=slo_ms, finding=finding, broken=tuple(id_ for id_ in nodes if stated_broken(lower, id_.lower())),
        over=stated_over(lower, {id_.lower() for _, id_ in named}),
    )  # fmt: skip


def stated_broken(lower: str, node: str) -> bool:
    """Whether a clause says outright that this very node has an error of its hardware: "g0 shows XID 79", "double-bit
    errors on g0". A word beside a name says nothing, nor does a question, a doubt or a denial."""
    name = rf"(?<![\w.-]){re.escape(node)}(?![\w-]|\.\w)"
    has = re.compile(rf"{name}(?:\s+(?:gpu|device|slot)\s*#?\d*)?\s*{_SHOWS}\s+(?:[\w%#]+\s+){{0,4}}?{_HARD}")
    on = re.compile(
        rf"{_HARD}(?:\s+(?!on\b|at\b|of\b|from\b|in\b)[\w%#]+){{0,4}}\s+(?:on|at|of|from|in)\s+(?:the\s+)?"
        rf"(?:(?:gpu|device|slot)\s*#?\d*\s+(?:on|of|in)\s+)?(?:node|host|machine|box|server)?\s*{name}"
    )
    bus = re.compile(rf"{name}\s+(?:(?:gpu|device|slot)\s*#?\d*\s+)?(?:has\s+)?(?:fell|fallen)\s+off\s+the\s+bus")
    clauses = re.split(r"[.;!?\n,]+(?:\s|$)", lower)
    return any(
        (has.search(clause) or on.search(clause) or bus.search(clause)) and not _DOUBT.search(clause)
        for clause in clauses
    )


def stated_over(lower: str, names: Collection[str]) -> bool:
    """Whether it says outright that something is over, back or mended; or asks to let go of what it names."""
    clauses = re.split(r"[.;!?\n,]+(?:\s|$)|\s-\s|\bbut\b", lower)
    if any(_OVER.search(clause) and not _NOT_OVER.search(clause) for clause in clauses) or _LET_GO.search(lower):
        return True
    return any(found[1].strip(".,:;!?") in names for clause in clauses for found in _LET_GO_OF.finditer(clause))


def objects(engine: Engine, words: list[str]) -> tuple[dict[tuple[str, str], None], dict[tuple[str, str], None]]:
    """(named, hinted) objects."""
    known = _known(engine)
    named: dict[tuple[str, str], None] = {}
    hinted: dict[tuple[str, str], None] = {}
    said = [*words, *("-".join(pair) for pair in pairwise(words))]
    for i, word in enumerate(said):
        kinds = _kinds(engine, known, word)
        before = said[i - 1].lower().rstrip("s") if 0 < i < len(words) else ""
        after = said[i + 1].lower().rstrip("s") if i + 1 < len(words) else ""
        for kind in kinds:
            everyday = word.lower() in EVERYDAY or len(word) < 2
            plain = not everyday or kind in (before, after)
            (named if plain else hinted)[kind, _as_spelt(known, kind, word)] = None
        if not kinds and word.lower() not in EVERYDAY:
            for kind, names in known.items():
                for name in near(word.lower(), names):
                    hinted[kind, name] = None
    return named, hinted


def _known(engine: Engine) -> dict[str, dict[str, str]]:
    """Kind -> lower case -> id, of what there are few of."""
    state = engine.state
    found: dict[str, Iterable[str]] = {
        "queue": (spec.name for spec in state.queues.specs),
        "pool": (pool.name for pool in state.capacity.pools),
        "tenant": state.workloads.tenants.names[:10_000],
        "zone": zones(engine),
        "reservation": (each.spec.name for each in state.bookings.reservations),
        "budget": (spec.name for spec in state.budgets.specs),
    }
    return {kind: {name.lower(): name for name in sorted(names) if name} for kind, names in found.items()}


def _kinds(engine: Engine, known: Mapping[str, Mapping[str, str]], word: str) -> list[str]:
    """Of what kinds there is an object of that name."""
    kinds = [kind for kind, names in known.items() if word.lower() in names]
    if word in engine.state.workloads.row_of or word.lower() in engine.state.workloads.row_of:
        kinds.append("workload")
    if word in engine.state.capacity.row_of or word.lower() in engine.state.capacity.row_of:
        kinds.append("node")
    return kinds


def _as_spelt(known: Mapping[str, Mapping[str, str]], kind: str, word: str) -> str:
    return known.get(kind, {}).get(word.lower(), word)


def near(word: str, names: Mapping[str, str]) -> list[str]:
    """Names that a word may be meant for: one letter off, two in long ones, or one part of them; none where it might be
    several."""
    if len(word) < 4:
        return []
    close = [
        name
        for lower, name in names.items()
        if off_by(word, lower) <= (0 if len(word) < LEAST_NEAR else 1 if len(word) < 9 else 2)
    ]
    part = [name for lower, name in names.items() if word in re.split(r"[._/-]", lower)]
    found = close or part
    return found if len(found) == 1 else []


def off_by(one: str, other: str) -> int:
    """Letters to change, leave out, put in or swap with their neighbour; 3 stands for more than 2 (optimal string
    alignment)."""
    if abs(len(one) - len(other)) > 2:
        return 3
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
    return min(row[-1], 3)
