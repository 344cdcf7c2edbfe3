"""What is done about what: the rule for each symptom, mildest first; and what is left alone, with the reason.

The live cell decides. A question says where to look; what does not show there is not acted on. What a person has put
aside is taken back only where a person picks just that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from engine.model.specs import NodeState, QueueMode, WorkloadState
from engine.tables.columns import view
from runbooks.drafts.rules import nodes as draft_nodes
from runbooks.drafts.rules import oversized_requests, waits
from runbooks.drafts.rules.findings import FINDINGS, idle_reservation, unknown
from runbooks.drafts.rules.question_reading import LATE_MS, QuestionReading, reading
from runbooks.drafts.rules.questions import Question
from runbooks.drafts.rules.solver import DraftOption, RuleAnswer, Solver
from runbooks.drafts.rules.symptoms import CellScene, Symptom, counted, minutes, wait
from runbooks.drafts.typed_draft import SymptomChoice
from runbooks.plans.typed_plan import ActionName

MAX_TOLD = 4
"""Objects of which it is told how they are."""
MAX_LOOKED = 4
"""Symptoms that are gone into, the most severe first."""
MAX_RELEASED = 20
DECIDED_BY_PEOPLE = frozenset(
    ("uncordon", "open_queue", "release", "resume", "unreserve", "approve_spending", "set_budget")
)
"""Actions that undo what a person has put aside, or spend what a budget does not hold: to be picked, however clear the
question is."""
MAX_LINKS = 100
"""Workloads of one chain that are looked at."""
Rule = Callable[[CellScene, Symptom, Question], RuleAnswer | None]


def answer(scene: CellScene, question: Question) -> RuleAnswer:
    """What should be done about what is asked, or why nothing, or what to pick from."""
    if question.finding is not None and not question.pick:
        found = FINDINGS.get(question.finding.kind, unknown)(scene, question)
        if found is not None:
            return found
    read = reading(scene, question)
    made = _by_rules(scene, question, read) if read.decided else _undecided(scene, question, read)
    return msgspec.structs.replace(made, read_as=read.text)


def _by_rules(scene: CellScene, question: Question, read: QuestionReading) -> RuleAnswer:
    looked: list[RuleAnswer] = []
    for symptom in read.symptoms[:MAX_LOOKED]:
        rule = RULES.get(symptom.kind) or (waits.answer if symptom.kind.startswith("wait_") else None)
        made = rule(scene, symptom, question) if rule is not None else None
        if made is not None and made.option is not None:
            return made if question.pick else _unless_for_people(made, read)
        if made is not None:
            looked.append(made)
    if not looked:
        why = f"{read.symptoms[0].text}; nothing that may be done about it helps without harm"
        looked = [RuleAnswer(option=None, why=why, about=question.named[:MAX_TOLD])]
    return msgspec.structs.replace(looked[0], choices=choices(read.others))


def _unless_for_people(made: RuleAnswer, read: QuestionReading) -> RuleAnswer:
    """The same, but for acts that people decide on: what they are for is to be picked."""
    if made.option is None or DECIDED_BY_PEOPLE.isdisjoint(action for action, _ in made.option.steps):
        return made
    why = f"{made.why}; whether to {made.option.text} is for people to decide"
    return RuleAnswer(option=None, why=why, about=made.about, tried=made.tried, questions=made.questions,
                      undecided=True, choices=choices(read.symptoms))  # fmt: skip


def _undecided(scene: CellScene, question: Question, read: QuestionReading) -> RuleAnswer:
    if question.pick:
        why = f"{question.pick} names none of the symptoms that the cell shows now"
    elif question.named or not read.symptoms:
        why = all_well(scene, question)
    else:
        why = f"the cell shows {counted(len(read.symptoms), 'symptom')} that it may be about"
    return RuleAnswer(option=None, why=why, about=question.named[:MAX_TOLD], undecided=bool(read.symptoms),
                      choices=choices(read.symptoms))  # fmt: skip


def choices(symptoms: tuple[Symptom, ...]) -> tuple[SymptomChoice, ...]:
    return tuple(SymptomChoice(name=one.name, text=one.text) for one in symptoms)


def all_well(scene: CellScene, question: Question) -> str:
    silent = silence(scene)
    if silent:
        return silent
    late = sum(lot.count for lot in scene.lots)
    if question.named:
        names = ", ".join(dict.fromkeys(id_ for _, id_ in question.named[:3]))
        out = [text for kind, id_ in question.named[:3] if (text := out_of_use(scene, kind, id_))]
        told = f"{'; '.join(out)}; nothing else is wrong" if out else "nothing is wrong"
        return f"{told} with {names} as far as the cell shows"
    if late:
        return "what waits has not waited long, and no node, queue or reservation is in its way"
    return "nothing waits, and no node, queue or budget needs anything"


def out_of_use(scene: CellScene, kind: str, id_: str) -> str:
    """What a person has done to it that keeps it from its use; empty where nothing does."""
    state = scene.state
    if kind == "node" and state.capacity.state[row := state.capacity.row(id_)] != NodeState.READY:
        since = minutes(scene.now_ms - state.capacity.since[row])
        text = f"node {id_} has been {NodeState(state.capacity.state[row]).label} for {since}"
    elif kind == "queue" and state.queues.mode[row := state.queues.row(id_)] != QueueMode.OPEN:
        text = f"queue {id_} is {QueueMode(state.queues.mode[row]).label}"
    else:
        return ""
    who = scene.closed_by(kind, (id_,))
    return f"{text}: {who}" if who else text


def looked_at(scene: CellScene) -> str:
    """What there is, by its states: for who is told that nothing should be done."""
    state, work = scene.state, scene.overview.states
    nodes = Counter(NodeState(each).label for each in view(state.capacity.state).tolist())
    nodes.pop(NodeState.REMOVED.label, None)
    queues = Counter(QueueMode(mode).label for mode in state.queues.mode)
    queued = work.get("queued", 0)
    longest = f" (the longest for {minutes(scene.overview.oldest_wait_ms)})" if queued else ""
    aside = [f"{work[label]:,} {label}" for label in ("held", "suspended") if work.get(label)]
    silent = scene.agents.suspect if scene.agents is not None else 0
    return "; ".join(
        [
            f"{work.get('running', 0):,} workloads running, {queued:,} queued{longest}", *aside,
            f"nodes: {by_state(nodes)}", f"queues: {by_state(queues)}",
            counted(len(state.bookings.reservations), "reservation"), counted(len(scene.budgets), "budget"),
            f"{counted(silent, 'node')} silent",
        ]
    )  # fmt: skip


def by_state(found: Counter[str]) -> str:
    return " and ".join(f"{count:,} {label}" for label, count in found.most_common()) or "none"


def silence(scene: CellScene) -> str:
    """What is said of nodes that are not heard of: nothing is done about them by hand."""
    if scene.agents is None or not scene.agents.suspect:
        return ""
    count = f"{scene.agents.suspect:,} of {scene.agents.watched:,} watched nodes are silent"
    if scene.agents.mass_suspicion:
        return f"{count} at once: it may be the network between them and the engine, and what runs there goes on"
    return f"{count}; those that stay so are declared lost by themselves, and their work starts elsewhere"


# -- rules ------------------------------------------------------------------------------------------------------------


def cordoned(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    """Nodes that are out of use and healthy: those that are named, or all."""
    named = [id_ for id_ in symptom.ids if id_ in question.names("node")]
    return draft_nodes.hand_back(scene, symptom.text, tuple(named or symptom.ids)[:12])


def held_queue(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    """A queue that is closed, for what waits in it."""
    lots = scene.queue_lots(symptom.subject)
    if lots:
        return waits.answer(scene, wait(lots[0].queue, lots[0].token, [lots[0]]), question)
    return RuleAnswer(
        option=None, about=(("queue", symptom.subject),),
        why=f"{symptom.text}; {scene.closed_by('queue', (symptom.subject,)) or 'who closed it is not on record'}",
        questions=("Is it still to be closed, and until when?",),
    )  # fmt: skip


def budget(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    option = waits.raised(scene, symptom.subject)
    if not Solver(scene.engine, ()).try_(option).harmless:
        return None
    return RuleAnswer(
        option=option, why=symptom.text, questions=("Has the owner of the money agreed, by name?",),
        risks=(option.harms,),
    )  # fmt: skip


def on_hold(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    """Work that is held or suspended: what is named of it, or all."""
    named = [id_ for id_ in symptom.ids if id_ in question.names("workload")]
    ids = tuple(named or symptom.ids)[:MAX_RELEASED]
    action: ActionName = "resume" if symptom.kind == "parked_Suspended" else "release"
    option = DraftOption(
        text=f"{action} {', '.join(ids[:3])}", steps=((action, {"workloads": ids}),),
        harms="Whoever put it aside may have had a reason that the cell does not know.",
    )  # fmt: skip
    if not Solver(scene.engine, ids).try_(option).harmless:
        return None
    return RuleAnswer(
        option=option, why=symptom.text, risks=(option.harms,), questions=("Who holds it, and what for?",)
    )


def never(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    first = symptom.ids[0]
    reasons = scene.engine.workload(first).reasons
    text = reasons[0].text if reasons else symptom.text
    return RuleAnswer(
        option=None, why=f"{first} {text}: nothing done to the cell starts it, its owner has to submit it anew",
        questions=("Does its owner know?",),
    )  # fmt: skip


def zone_lost(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    """What is more important than what runs elsewhere, and lost its place with the zone, first of all."""
    for late in scene.waits(LATE_MS):
        found = waits.displaced_way(scene, late, question)
        if found is not None:
            return found
    return draft_nodes.zone_lost(scene, symptom, question)


# -- work that waits for other work ------------------------------------------------------------------------------------


def chained(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    """What keeps the named ones, or all of them, from their start: let go of, where it would start at once."""
    named = [id_ for id_ in symptom.ids if id_ in question.names("workload")]
    waiting = tuple(named or symptom.ids)
    roots = keepers(scene, waiting)
    w = scene.state.workloads
    late = [lot for lot in scene.lots if set(roots).intersection(lot.members)]
    for lot in late:
        found = waits.answer(scene, wait(lot.queue, lot.token, [lot]), question)
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
    return RuleAnswer(option=None, why=text, about=tuple(("workload", id_) for id_ in roots[:3]))


def keepers(scene: CellScene, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Up the chains of these: what waits for nothing else, and has not ended."""
    w = scene.state.workloads
    found: dict[str, None] = {}
    seen: set[int] = set()
    rows = [w.row_of[id_] for id_ in ids]
    while rows and len(seen) < MAX_LINKS:
        row = rows.pop(0)
        if row in seen:
            continue
        seen.add(row)
        above = [target for target, _ in w.dependencies(row)]
        rows += above
        if not above and w.ids[row] not in ids:
            found[w.ids[row]] = None
    return tuple(found)


def _let_go(scene: CellScene, ids: tuple[str, ...], action: ActionName, why: str) -> RuleAnswer:
    """Where its queue is open and there is room for it now."""
    w = scene.state.workloads
    since_ms = max(_aside_ms(scene, id_) for id_ in ids)
    questions = ("Who put it aside, and is the reason over?",)
    if not all(scene.state.queues.is_open(w.queue[w.row_of[id_]]) for id_ in ids):
        return RuleAnswer(option=None, why=why, about=tuple(("workload", id_) for id_ in ids[:3]), questions=questions)
    option = DraftOption(
        text=f"{action} {', '.join(ids[:3])}", steps=((action, {"workloads": ids}),),
        harms="Whoever put it aside may have had a reason that the cell does not know.",
    )  # fmt: skip
    result = Solver(scene.engine, ids).try_(option)
    if not result.gain:
        return RuleAnswer(option=None, why=f"{why}; there is no room for it now", questions=questions)
    why = f"{why} for {minutes(scene.now_ms - since_ms)}, beside room for it"
    return RuleAnswer(option=option, why=why, risks=(option.harms,), questions=questions)


def _aside_ms(scene: CellScene, id_: str) -> int:
    """When it was put aside: the last thing that happened to it."""
    return max((item.at_ms for item in scene.engine.workload(id_).history), default=0)


RULES: Mapping[str, Rule] = {
    "straggler": draft_nodes.straggler,
    "flapping": draft_nodes.flapping,
    "zone_lost": zone_lost,
    "spot_storm": draft_nodes.spot_storm,
    "stuck": draft_nodes.stuck,
    "tenant": draft_nodes.tenant,
    "idle_pool": draft_nodes.idle_pool,
    "oversized": oversized_requests.resized,
    "cordoned": cordoned,
    "idle_reservation": idle_reservation,
    "held_queue": held_queue,
    "budget": budget,
    "parked_OnHold": on_hold,
    "parked_Suspended": on_hold,
    "parked_DependencyNeverSatisfied": never,
    "parked_WaitingForDependency": chained,
}
