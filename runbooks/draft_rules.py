"""What is done about what: which symptom a question or a finding is about, and for each what may be done, mildest
first; and what is left alone, with the reason.

The live cell decides. A question or a finding says where to look; what does not show there is not acted on, and what
shows beside it is not either, unless somebody suffers from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from engine.columns import view
from engine.explain import QUOTA
from engine.model import NodeState, QueueMode
from runbooks import draft_chains, draft_intent, draft_nodes, draft_question, draft_told, draft_waits
from runbooks.draft_case import Answer
from runbooks.draft_findings import FINDINGS, idle_reservation, unknown
from runbooks.draft_question import Asked
from runbooks.draft_solver import Option, Solver
from runbooks.symptoms import Scene, Symptom, counted, minutes, wait, without

LATE_MS, ASKED_LATE_MS = 10 * 60_000, 5 * 60_000
"""What has waited for less is not late, unless somebody says what was promised; and where somebody asks about waits."""
ABOUT_WAITS = frozenset(("wait", "fragment", "quota", "capacity"))
LEAST_PREFIX = 4
"""Letters of a word that stands for all workloads whose ids begin with it and a dash."""
MOST_TOLD = 4
"""Objects of which it is told how they are."""
MOST_LOOKED = 4
"""Symptoms that are gone into, the likeliest first."""
Rule = Callable[[Scene, Symptom, Asked], Answer | None]


def answer(scene: Scene, asked: Asked) -> Answer:
    """What should be done about what is asked, or why nothing."""
    if asked.over:
        scene.done_with = frozenset(asked.names("node"))
    scene.intent = draft_intent.intent(asked.text, (*asked.named, *asked.hinted))
    if asked.finding is not None:
        rule = FINDINGS.get(asked.finding.kind, unknown)
        found = rule(scene, asked)
        if found is not None:
            return allowed(scene, found)
    looked: list[Answer] = []
    for symptom in ranked(scene, asked)[:MOST_LOOKED]:
        rule_of = RULES.get(symptom.kind) or (draft_waits.answer if symptom.kind.startswith("wait_") else None)
        made = rule_of(scene, symptom, asked) if rule_of is not None else None
        made = allowed(scene, made) if made is not None else None
        if made is not None and made.option is not None:
            return made
        if made is not None:
            looked.append(made)
    if looked:
        return looked[0]
    return Answer(option=None, why=all_well(scene, asked), about=asked.named[:MOST_TOLD])


def allowed(scene: Scene, made: Answer) -> Answer:
    """The same; without its acts where whoever asks says that what they change is to stay as it is."""
    if made.option is None:
        return made
    ids = [id_ for _, given in made.option.steps for id_ in draft_intent.ids_in(given)]
    kept = draft_intent.touches(scene, scene.intent.spared, ids)
    if not (kept or scene.intent.nothing):
        return made
    why = f"{made.why}; {kept or 'all of it'} is to stay as it is, as whoever asks says"
    return Answer(option=None, why=why, about=made.about, tried=made.tried,
                  questions=("Until when, and who decides that?",))  # fmt: skip


def all_well(scene: Scene, asked: Asked) -> str:
    silent = silence(scene)
    if silent:
        return silent
    late = sum(lot.count for lot in scene.lots)
    if asked.named:
        names = ", ".join(dict.fromkeys(id_ for _, id_ in asked.named[:3]))
        out = [text for kind, id_ in asked.named[:3] if (text := out_of_use(scene, kind, id_))]
        told = f"{'; '.join(out)}; nothing else is wrong" if out else "nothing is wrong"
        return f"{told} with {names} as far as the cell shows"
    if late:
        return "what waits has not waited long, and no node, queue or reservation is in its way"
    return "nothing waits, and no node, queue or budget needs anything"


def out_of_use(scene: Scene, kind: str, id_: str) -> str:
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


def looked_at(scene: Scene) -> str:
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


def silence(scene: Scene) -> str:
    """What is said of nodes that are not heard of: nothing is done about them by hand."""
    if scene.agents is None or not scene.agents.suspect:
        return ""
    count = f"{scene.agents.suspect:,} of {scene.agents.watched:,} watched nodes are silent"
    if scene.agents.mass_suspicion:
        return f"{count} at once: it may be the network between them and the engine, and what runs there goes on"
    return f"{count}; those that stay so are declared lost by themselves, and their work starts elsewhere"


# -- what it is about -------------------------------------------------------------------------------------------------

TOPICS_OF: Mapping[str, tuple[str, ...]] = {
    "straggler": ("straggler", "stuck"),
    "flapping": ("flap", "down", "fail"),
    "zone_lost": ("zone", "down", "network", "flap", "fail"),
    "spot_storm": ("spot", "down", "fail", "flap", "wait"),
    "cordoned": ("cordon",),
    "idle_reservation": ("reservation",),
    "held_queue": ("hold",),
    "budget": ("budget",),
    "node_errors": ("ecc", "throttle"),
    "stuck": ("stuck",),
    "tenant": ("tenant",),
    "parked_OnHold": ("hold",),
    "parked_Suspended": ("hold",),
    "parked_DependencyNeverSatisfied": ("dependency",),
    "parked_WaitingForDependency": ("dependency", "wait"),
    "idle_pool": ("idle", "budget"),
    "priority": ("priority",),
    "move": ("wait",),
    "oversized": ("oversized",),
    "ahead": ("ahead", "boot"),
}
BASE: Mapping[str, int] = {
    "priority": 90, "move": 90, "ahead": 90,
    "zone_lost": 80, "spot_storm": 60, "straggler": 45, "flapping": 35, "held_queue": 30, "budget": 15,
}  # fmt: skip
ONLY_ASKED = frozenset(
    (
        "oversized", "cordoned", "idle_reservation", "node_errors", "tenant", "idle_pool", "budget", "flapping",
        "held_queue", "parked_OnHold", "parked_Suspended", "parked_DependencyNeverSatisfied", "stuck",
        "parked_WaitingForDependency",
    )
)  # fmt: skip
"""Gone into only where they are asked about: by themselves they hurt nobody, or the cell cannot tell."""
BY_NAME = frozenset(
    (
        "idle_reservation", "budget", "flapping", "held_queue", "parked_OnHold", "parked_Suspended", "cordoned",
        "parked_DependencyNeverSatisfied", "parked_WaitingForDependency",
    )
)  # fmt: skip
"""Of those, what is asked about by its name alone."""


def ranked(scene: Scene, asked: Asked) -> list[Symptom]:
    """Symptoms that the question may be about, the likeliest first."""
    about_waits = "wait" in asked.topics or bool(asked.names("queue", "workload", "tenant"))
    late_ms = asked.slo_ms or (ASKED_LATE_MS if about_waits else LATE_MS)
    symptoms = [
        *scene.waits(late_ms),
        *_named_waits(scene, asked, late_ms),
        *scene.nodes(),
        *draft_nodes.told(scene, asked),
    ]
    symptoms += draft_told.told(scene, asked)
    symptoms += [*scene.cordons(), *scene.idle_reservations(), *scene.held_queues(), *scene.spent_budgets()]
    symptoms += [s for s in scene.parked() if s.kind in TOPICS_OF]
    scored = [(score(scene, symptom, asked), symptom) for symptom in symptoms]
    scored = [(points, symptom) for points, symptom in scored if points > 0]
    if asked.named:
        # Whose priority is meant is told by the words themselves.
        near = [one for one in scored if one[1].kind == "priority" or related(scene, one[1], asked.named)]
        # Somebody who asks about waits and names what does not wait means what waits beside it.
        beside = bool(asked.topics & ABOUT_WAITS) and not asked.names("workload", "tenant")
        scored = near or [(points, symptom) for points, symptom in scored if beside and symptom.lots]
    scored = [(points, focused(symptom, asked)) for points, symptom in scored]
    return [symptom for _, symptom in sorted(scored, key=lambda item: (-item[0], -item[1].weight, item[1].subject))]


def focused(symptom: Symptom, asked: Asked) -> Symptom:
    """Of a wait, the workloads and tenants that are named; else all of it."""
    if not symptom.kind.startswith("wait_"):
        return symptom
    workloads, tenants = asked.names("workload"), asked.names("tenant")
    lots = [lot for lot in symptom.lots if any(id_ in lot.members for id_ in workloads)]
    lots = lots or [lot for lot in symptom.lots if any(tenant in lot.tenants for tenant in tenants)]
    whole = not lots or len(lots) == len(symptom.lots)
    return symptom if whole else wait(symptom.subject, symptom.kind.removeprefix("wait_"), lots)


def score(scene: Scene, symptom: Symptom, asked: Asked) -> int:
    """How likely the question is about it; 0 where it is not."""
    topics = TOPICS_OF.get(symptom.kind, ())
    stated = symptom.kind == "node_errors" and symptom.subject in asked.broken
    by_topic = stated or bool(asked.topics.intersection(topics))
    by_name = related(scene, symptom, asked.named)
    is_asked = by_topic or (by_name and symptom.kind in BY_NAME)
    if symptom.kind in ONLY_ASKED and not is_asked:
        return 0
    if topics and asked.topics and not (by_topic or by_name):
        # It is about something else.
        return 0
    points = BASE.get(symptom.kind, 10)
    if symptom.lots:
        points = 50 + min(max(lot.priority for lot in symptom.lots) // 100, 20)
        gpu = any(lot.gpu_milli for lot in symptom.lots)
        lower = asked.text.lower()
        points += 8 * (("gpu" in lower and gpu) or ("cpu" in lower and not gpu))
        points += 15 * ("wait" in asked.topics)
    return points + 60 * by_topic + 100 * by_name + 25 * related(scene, symptom, asked.hinted)


def related(scene: Scene, symptom: Symptom, objects: tuple[tuple[str, str], ...]) -> bool:
    """Whether one of the objects is what it is about, or has to do with it."""
    tree, c, w = scene.state.queues, scene.state.capacity, scene.state.workloads
    for kind, id_ in objects:
        if (kind == symptom.of and id_ == symptom.subject) or id_ in symptom.ids:
            return True
        if kind == "queue" and symptom.of == "queue":
            path = [tree.specs[vertex].name for vertex in tree.path[tree.row(symptom.subject)]]
            if id_ in path:
                return True
            own, other = tree.specs[tree.row(symptom.subject)], tree.specs[tree.row(id_)]
            if symptom.kind == f"wait_{QUOTA}" and own.parent and own.parent == other.parent:
                return True
        if any(id_ in lot.members or (kind == "tenant" and id_ in lot.tenants) for lot in symptom.lots):
            return True
        if kind == "pool" and symptom.lots:
            pool = c.pool_of.get(id_)
            if any(pool in shape.pool_set for lot in symptom.lots for shape in w.class_at(lot.row).shapes):
                return True
        row = c.row_of.get(symptom.subject) if kind == "pool" and symptom.of == "node" else None
        if row is not None and c.pools[c.pool[row]].name == id_:
            return True
        if kind in ("pool", "zone") and symptom.kind == "cordoned":
            return True
        if kind == "workload" and symptom.kind == "flapping" and lost_with(scene, id_, symptom.subject):
            return True
    return False


def lost_with(scene: Scene, workload: str, node: str) -> bool:
    """Whether the workload is on the node, or was requeued when the node was lost."""
    state = scene.state
    row, at = state.capacity.row(node), state.workloads.row(workload)
    if any(state.allocations.workload[a] == at for a in state.allocations.on_node(row)):
        return True
    losses = state.failures.losses.get(row, ())
    history = scene.engine.workload(workload).history
    return any(item.what == "requeued" and item.at_ms in losses for item in history)


def _named_waits(scene: Scene, asked: Asked, late_ms: int) -> list[Symptom]:
    """Waits of workloads that are named, however short."""
    found = []
    for id_ in asked.names("workload"):
        for lot in without(scene.lots, scene.intent.spared):
            if id_ in lot.members and lot.wait_ms <= late_ms:
                found.append(wait(lot.queue, lot.token, [lot]))
    return found


# -- rules ------------------------------------------------------------------------------------------------------------


def cordoned(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    """Nodes that are out of use and healthy, where somebody says that they are to be back."""
    named = [id_ for id_ in symptom.ids if id_ in asked.names("node")]
    ids = tuple(named or symptom.ids)[:12]
    if not (named and asked.over):
        return Answer(
            option=None, why=f"{symptom.text}; nothing late starts on them; {draft_nodes.why_out(scene, ids)}",
            about=tuple(("node", id_) for id_ in ids[:MOST_TOLD]), questions=("Were they tested since?",),
        )  # fmt: skip
    return draft_nodes.hand_back(scene, symptom.text, ids)


def held_queue(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    """A queue that is held, and named: of what waits in it the wait is another symptom, and comes first."""
    tree = scene.state.queues
    if tree.mode[tree.row(symptom.subject)] != QueueMode.HELD or not scene.queue_lots(symptom.subject):
        return Answer(
            option=None, about=(("queue", symptom.subject),),
            why=f"{symptom.text}; {scene.closed_by('queue', (symptom.subject,)) or 'who closed it is not on record'}",
            questions=("Is it still to be closed, and until when?",),
        )  # fmt: skip
    lots = scene.queue_lots(symptom.subject)
    return draft_waits.answer(scene, wait(lots[0].queue, lots[0].token, [lots[0]]), asked)


def budget(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    option = draft_waits.raised(scene, symptom.subject, asked)
    if not Solver(scene.engine, ()).try_(option).harmless:
        return None
    return Answer(
        option=option, why=symptom.text, questions=("Has the owner of the money agreed, by name?",),
        risks=(option.harms,),
    )  # fmt: skip


def on_hold(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    """Work that is named, and that somebody held after it had come; what came on hold is its owner's to release, unless
    whoever asks says that what it waited for is over."""
    words = tuple(f"{word.lower()}-" for word in draft_question.WORD.findall(asked.text) if len(word) >= LEAST_PREFIX)
    named = [id_ for id_ in symptom.ids if id_ in asked.names("workload") or id_.lower().startswith(words)]
    named = [id_ for id_ in named if not scene.is_spared(scene.state.workloads.row(id_))]
    suspended = symptom.kind == "parked_Suspended"
    by_others = [id_ for id_ in named if asked.over or not (suspended or held_by_owner(scene, id_))]
    if not by_others:
        return Answer(
            option=None, why=f"{symptom.text}, held by whoever submitted it or somebody else",
            questions=("Who holds it, and what for?",),
        )  # fmt: skip
    action, verb = ("resume", "resume") if suspended else ("release", "release")
    ids = tuple(by_others[:20])
    option = Option(
        text=f"{verb} {', '.join(ids[:3])}", steps=((action, {"workloads": ids}),),  # type: ignore[arg-type]
        harms="Whoever put it aside may have had a reason that the cell does not know.",
    )  # fmt: skip
    result = Solver(scene.engine, ids).try_(option)
    if not result.harmless:
        return None
    return Answer(option=option, why=symptom.text, risks=(option.harms,))


def held_by_owner(scene: Scene, id_: str) -> bool:
    """Whether it was on hold when it came, and nobody held it after that."""
    return not any(item.what == "held" for item in scene.engine.workload(id_).history)


def never(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    first = symptom.ids[0]
    reasons = scene.engine.workload(first).reasons
    text = reasons[0].text if reasons else symptom.text
    return Answer(
        option=None, why=f"{first} {text}: nothing done to the cell starts it, its owner has to submit it anew",
        questions=("Does its owner know?",),
    )  # fmt: skip


def zone_lost(scene: Scene, symptom: Symptom, asked: Asked) -> Answer | None:
    """What is more important than what runs elsewhere, and lost its place with the zone, first of all."""
    for late in scene.waits(ASKED_LATE_MS):
        found = draft_waits.displaced_way(scene, late, asked)
        if found is not None and allowed(scene, found).option is not None:
            return found
    return draft_nodes.zone_lost(scene, symptom, asked)


RULES: Mapping[str, Rule] = {
    "straggler": draft_nodes.straggler,
    "flapping": draft_nodes.flapping,
    "zone_lost": zone_lost,
    "spot_storm": draft_nodes.spot_storm,
    "node_errors": draft_nodes.node_errors,
    "stuck": draft_nodes.stuck,
    "tenant": draft_nodes.tenant,
    "idle_pool": draft_nodes.idle_pool,
    "priority": draft_told.priority,
    "move": draft_told.move,
    "oversized": draft_told.resized,
    "ahead": draft_told.ahead,
    "cordoned": cordoned,
    "idle_reservation": idle_reservation,
    "held_queue": held_queue,
    "budget": budget,
    "parked_OnHold": on_hold,
    "parked_Suspended": on_hold,
    "parked_DependencyNeverSatisfied": never,
    "parked_WaitingForDependency": draft_chains.answer,
}
