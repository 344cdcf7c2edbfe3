"""What a question says is to stay as it is: what somebody keeps, or left alone, on purpose, or until a time to come.

A name in such a clause is that of an object; "it" in one is what was named last. What is said to stay no draft acts on,
whatever the cell shows of it: whoever asks knows what the cell cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.model import QueueMode
from runbooks.symptoms import Intent, Scene

CLAUSE = re.compile(r"[.;!?\n,()]+(?:\s|$)|\s-+\s|\s\(|\bbut\b|\bhowever\b|\bwhile\b|\bwhereas\b")
NEVER = re.compile(
    r"\b(?:just|only|pls|please)\s+(?:to\s+)?confirm\b|\b(?:just|only)\s+(?:checking|asking|curious|fyi|info)\b"
    r"|\bno\s+(?:action|change|changes)\s+(?:is\s+|are\s+)?(?:needed|required|wanted|please|pls)?|\bdo\s+nothing\b"
    r"|\b(?:don'?t|do\s+not|never)\s+(?:change|touch|do)\s+(?:anything|a\s+thing)\b|\bfor\s+(?:your\s+)?info\b"
    r"|\b(?:change|code|config|deploy|deployment|production|prod)\s+freeze\s+(?:is\s+)?(?:on|active|in\s+(?:force|effect))\b"
)
"""Whoever says so wants no act at all."""
STAYS = re.compile(
    r"\b(?:leave|keep|must\s+(?:stay|remain)|should\s+(?:stay|remain)|(?:is|are|has|have)\s+to\s+(?:stay|remain)"
    r"|(?:that|it|this|they|those|these)(?:\s+ones?)?\s+(?:stays?|remains?))\s+(?:\S+\s+){0,4}?"
    r"(?:alone|as\s+(?:is|it|they)|off|out|closed|held|shut|paused|suspended|parked|cordoned|down|drained|frozen|on\s+hold"
    r"|warm|there|put|reserved|that\s+way|like\s+that|at|up|running|empty|ready)\b"
    r"|\b(?:leave|keep)\s+(?:it|them|that|those|this|these|\S+[-_]\S+)\s*$"
    r"|\b(?:don'?t|do\s+not|never|must\s+not|mustn'?t|may\s+not|shall\s+not|should\s+not|shouldn'?t|cannot\s+be|not\s+to\s+be)\s+(?:be\s+)?"
    r"(?:touch\w*|open\w*|release\w*|resume\w*|start\w*|uncordon\w*|return\w*|use|used|approve\w*|kill\w*|stop\w*|preempt\w*"
    r"|evict\w*|move|moved|delete\w*|drain\w*|cancel\w*|requeue\w*|restart\w*|shrink|raise\w*|scale\w*|suspend\w*|remove\w*"
    r"|take|run|hold|lower\w*|bump\w*|disturb\w*|interrupt\w*)\b"
    r"|\b(?:on\s+purpose|intentional(?:ly)?|deliberate(?:ly)?|by\s+design|as\s+(?:agreed|planned|intended))\b"
    r"|\b(?:rejected|denied|declined|not\s+(?:been\s+)?approved|embargo(?:ed)?|for\s+good|off\s+limits|hands\s+off)\b"
    r"|\bnot\s+(?:yet\s+)?(?:finished|done|over|fixed|cleared|repaired)\b"
    r"|\b(?:except|apart\s+from|other\s+than)\b"
)
"""What is named with it is to stay as it is."""
UNTIL = re.compile(
    r"\b(?:freeze|frozen|embargo|hold|holds|held|closed|off|paused?|suspended|cordoned|out|stays?|kept|keep|lasts?|goes|runs"
    r"|moratorium|blackout|locked|reserved|booked|quarantin\w*|maintenance|window|continues?|on|down|shut|parked|warm|needed)\b"
    r"[^.;]*?\b(?:until|till|til)\b"
)
DEMANDS = re.compile(
    r"\b(?:can'?t|cannot|won'?t|not)\s+wait\b|\bneeds?\s+(?:it|them|\d+|more|the|all)\b|\bmust\s+(?:run|finish|be\s+done|start)\b"
    r"|\bwas\s+(?:only\s+)?(?:to|meant|supposed)\b|\b(?:was|were|had)\b[^.;]*\b(?:until|till|til)\b|\bpls\b|\bplease\b"
)
"""With such words a time is one of a wish, or of what is past."""
PAST = re.compile(
    r"\b(?:why|forgot|over|ended|finished|done|passed|lifted|expired|was\s+until|no\s+longer|not\s+any\s?more|forgot\w*|still\s+closed)\b"
)
AHEAD = re.compile(r"\b(?:until|till|til|before|once|unless|yet)\b")
"""With such a word what is over is so only later."""
PRONOUN = re.compile(r"\b(?:it|its|it's|them|they|that|this|those|these|one)\b")


def intent(text: str, named: Sequence[tuple[str, str]]) -> Intent:
    """`named`: objects of this cell that the text names."""
    lower = text.lower()
    if NEVER.search(lower):
        return Intent(True)
    spared: set[tuple[str, str]] = set()
    last: list[tuple[str, str]] = []
    for clause in CLAUSE.split(lower):
        here = [(kind, id_) for kind, id_ in named if says(clause, id_.lower())]
        stays = bool(STAYS.search(clause))
        until = bool(UNTIL.search(clause)) and not DEMANDS.search(clause)
        if (stays or until) and not (PAST.search(clause) and not AHEAD.search(clause)):
            excepted = re.search(r"\b(?:except|apart\s+from|other\s+than)\b(.*)", clause)
            within = [one for one in here if excepted is None or says(excepted[1], one[1].lower())]
            spared.update(within or (last if until or PRONOUN.search(clause) or not excepted else ()))
        last = here or last
    return Intent(False, frozenset(spared))


def says(clause: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", clause) is not None


def ids_in(given: Mapping[str, Any]) -> list[str]:
    """Texts of what an act is told: its targets among them."""
    found: list[str] = []
    for value in given.values():
        found += (
            [value]
            if isinstance(value, str)
            else [id_ for id_ in value if isinstance(id_, str)]
            if isinstance(value, tuple)
            else []
        )
    return found


def touches(scene: Scene, spared: frozenset[tuple[str, str]], ids: Iterable[str]) -> str:
    """The first of what is to stay that acts on these would touch, or what they belong to; empty where none is."""
    if not spared:
        return ""
    state = scene.state
    names = {id_ for _, id_ in spared}
    queues = {id_ for kind, id_ in spared if kind == "queue"}
    pools = {id_ for kind, id_ in spared if kind == "pool"}
    for id_ in ids:
        if id_ in names:
            return id_
        below = _kept_below(scene, spared, id_)
        if below:
            return below
        row = state.workloads.row_of.get(id_)
        if row is not None and queues:
            path = state.queues.path[state.workloads.queue[row]]
            over = [state.queues.specs[at].name for at in path if state.queues.specs[at].name in queues]
            if over and state.queues.mode[state.queues.row(over[0])] != QueueMode.OPEN:
                return str(over[0])
        node = state.capacity.row_of.get(id_)
        if node is not None and state.capacity.pools[state.capacity.pool[node]].name in pools:
            return str(state.capacity.pools[state.capacity.pool[node]].name)
    return ""


def _kept_below(scene: Scene, spared: frozenset[tuple[str, str]], queue: str) -> str:
    """What is to stay as it is and is of a queue, where it is one: what is done to the queue is done to that."""
    tree, w = scene.state.queues, scene.state.workloads
    vertex = next((row for row, spec in enumerate(tree.specs) if spec.name == queue), -1)
    for kind, id_ in sorted(spared) if vertex >= 0 else ():
        leaf = tree.row(id_) if kind == "queue" else w.queue[w.row_of[id_]] if kind == "workload" else -1
        if leaf >= 0 and vertex in tree.path[leaf]:
            return id_
    return ""
