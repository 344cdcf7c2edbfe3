"""Work that waits for other work: which of that, up the chain, really keeps it, and what is done about that one.

What runs, or waits for its turn, is in nobody's way: it ends. What somebody holds or has suspended does not, and nobody
looks there when it is the last of the chain that is late.
"""

from __future__ import annotations

from engine.model import WorkloadState
from runbooks import draft_waits
from runbooks.draft_case import Answer
from runbooks.draft_question import Question
from runbooks.draft_solver import Option, Solver
from runbooks.plan import ActionName
from runbooks.symptoms import Scene, Symptom, minutes, wait

MOST_LINKS = 100
"""Workloads of one chain that are looked at."""


def answer(scene: Scene, symptom: Symptom, question: Question) -> Answer | None:
    """What keeps the named ones, or all of them, from their start: let go of, where it would start at once."""
    named = [id_ for id_ in symptom.ids if id_ in question.names("workload")]
    waiting = tuple(named or symptom.ids)
    roots = keepers(scene, waiting)
    w = scene.state.workloads
    late = [lot for lot in scene.lots if set(roots).intersection(lot.members)]
    for lot in late:
        found = draft_waits.answer(scene, wait(lot.queue, lot.token, [lot]), question)
        if found is not None and found.option is not None:
            return found
    held = [id_ for id_ in roots if w.state[w.row_of[id_]] == WorkloadState.HELD]
    suspended = [id_ for id_ in roots if w.state[w.row_of[id_]] == WorkloadState.SUSPENDED]
    chain = f"{waiting[0]} waits for {', '.join(roots[:3])}" if roots else symptom.text
    if suspended:
        return _let_go(scene, tuple(suspended[:20]), "resume", f"{chain}, which is suspended")
    if held:
        return _let_go(scene, tuple(held[:20]), "release", f"{chain}, which is on hold")
    text = f"{chain}, which goes on by itself" if roots else symptom.text
    return Answer(option=None, why=text, about=tuple(("workload", id_) for id_ in roots[:3]))


def keepers(scene: Scene, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Up the chains of these: what waits for nothing else, and has not ended."""
    w = scene.state.workloads
    found: dict[str, None] = {}
    seen: set[int] = set()
    rows = [w.row_of[id_] for id_ in ids]
    while rows and len(seen) < MOST_LINKS:
        row = rows.pop(0)
        if row in seen:
            continue
        seen.add(row)
        above = [target for target, _ in w.dependencies(row)]
        rows += above
        if not above and w.ids[row] not in ids:
            found[w.ids[row]] = None
    return tuple(found)


def _let_go(scene: Scene, ids: tuple[str, ...], action: ActionName, why: str) -> Answer:
    """Where its queue is open and there is room for it now."""
    w = scene.state.workloads
    since_ms = max(_aside_ms(scene, id_) for id_ in ids)
    questions = ("Who put it aside, and is the reason over?",)
    if not all(scene.state.queues.is_open(w.queue[w.row_of[id_]]) for id_ in ids):
        return Answer(option=None, why=why, about=tuple(("workload", id_) for id_ in ids[:3]), questions=questions)
    option = Option(
        text=f"{action} {', '.join(ids[:3])}", steps=((action, {"workloads": ids}),),
        harms="Whoever put it aside may have had a reason that the cell does not know.",
    )  # fmt: skip
    result = Solver(scene.engine, ids).try_(option)
    if not result.gain:
        return Answer(option=None, why=f"{why}; there is no room for it now", questions=questions)
    why = f"{why} for {minutes(scene.now_ms - since_ms)}, beside room for it"
    return Answer(option=option, why=why, risks=(option.harms,), questions=questions)


def _aside_ms(scene: Scene, id_: str) -> int:
    """When it was put aside: the last thing that happened to it."""
    return max((item.at_ms for item in scene.engine.workload(id_).history), default=0)
