"""Rules by symptom and by finding: which of them a question means, and what to do about it.

A question decides when every symptom that its names and words leave is about one object. Otherwise nothing is drafted
and a person picks one. A finding of the recommender has a rule by its kind, which applies only while the live cell
bears it out.

The live cell decides. What a person has put aside is taken up again only when a person picks exactly that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

import msgspec

from engine.model.columns import view
from engine.model.quantities import counted, lasting
from engine.model.specs import NodeState, QueueMode, WorkloadState
from engine.reads import pending_reasons
from runbooks.actions.nodes import POOL_TARGETS
from runbooks.actions.workloads import RETURNED
from runbooks.drafts import node_rules, wait_rules
from runbooks.drafts.solver import Case, DraftOption, RuleAnswer, Solver, unless_harmful
from runbooks.drafts.symptoms import SYMPTOM_CLASSES, CellScene, Symptom, SymptomQuestion, wait
from runbooks.drafts.typed_draft import ReportedFinding, SymptomChoice
from runbooks.plans.typed_plan import ActionName

LATE_MS = 5 * 60_000
"""What has waited for less is not late."""
MAX_CHOICES = 9
SEVERITY = {"zone_lost": 80, "spot_storm": 60, "straggler": 45, "flapping": 35, "held_queue": 30, "budget": 15}
"""Kind -> rank among symptoms; waits stand at 50 and above, by their priority."""


class QuestionReading(NamedTuple):
    """The reading of a question: the symptoms that it may mean."""

    text: str
    """As in "work waits; queue research"; empty where nothing of it was known."""
    symptoms: tuple[Symptom, ...]
    """Those that it may mean, most severe first."""
    decided: bool
    """All of them are about one object, which it means."""
    others: tuple[Symptom, ...] = ()
    """Where it is decided: what else it may be about."""


def reading(scene: CellScene, question: SymptomQuestion) -> QuestionReading:
    """The symptoms of the live cell that the question means. A pick that names one of them decides."""
    text = _read_as(question)
    shown = sorted(symptoms(scene, question), key=_severity)
    left = _left(scene, shown, question)
    offered = tuple(left or shown)[:MAX_CHOICES]
    picked = _picked(shown, question.pick)
    if picked is not None:
        return QuestionReading(text, (_focused(picked, question),), True)
    if question.pick or not left:
        return QuestionReading(text, offered, False)
    decided = len({(one.of, one.subject) for one in left}) == 1
    others = [one for one in shown if one not in left and (one.hurts or related(scene, one, question.named))]
    return QuestionReading(
        text, tuple(_focused(one, question) for one in offered), decided, tuple(others[:MAX_CHOICES])
    )


def _read_as(question: SymptomQuestion) -> str:
    words = [SYMPTOM_CLASSES[name].reads for name in SYMPTOM_CLASSES if name in question.classes]
    return "; ".join([*words, *(f"{kind} {id_}" for kind, id_ in question.named)])


def symptoms(scene: CellScene, question: SymptomQuestion) -> list[Symptom]:
    """All symptoms of the cell that a word stands for, and the symptoms of the named objects."""
    found = [
        *scene.waits(LATE_MS),
        *_named_waits(scene, question),
        *scene.nodes(),
        *node_rules.work_symptoms(scene, question),
    ]
    found += wait_rules.oversized_requests(scene)
    found += [*scene.cordons(), *scene.idle_reservations(), *scene.spent_budgets(), *scene.parked()]
    late = {one.subject for one in found if one.kind == f"wait_{pending_reasons.QUEUE_HELD}"}
    found += [one for one in scene.held_queues() if one.subject not in late]
    return [one for one in found if classes_of(one)]


def _named_waits(scene: CellScene, question: SymptomQuestion) -> list[Symptom]:
    """Waits of workloads that are named, however short."""
    named = question.names("workload")
    lots = [lot for lot in scene.lots if lot.wait_ms <= LATE_MS and any(id_ in lot.members for id_ in named)]
    return [wait(lot.queue, lot.token, [lot]) for lot in lots]


def _severity(symptom: Symptom) -> tuple[bool, int, int, str]:
    rank = SEVERITY.get(symptom.kind, 10)
    if symptom.kind.startswith("wait_"):
        rank = 50 + min(max(lot.priority for lot in symptom.lots) // 100, 20)
    return not symptom.hurts, -rank, -symptom.weight, symptom.subject


def _left(scene: CellScene, shown: list[Symptom], question: SymptomQuestion) -> list[Symptom]:
    """The shown symptoms that match the question's names and words; those that hurt somebody, for a question without
    either."""
    if not (question.named or question.classes):
        return [one for one in shown if one.hurts]
    if question.named:
        shown = [one for one in shown if related(scene, one, question.named)]
    matches = [len(classes_of(one) & question.classes) for one in shown]
    most = max(matches, default=0)
    return [one for one, count in zip(shown, matches, strict=True) if count == most and (count or question.named)]


def classes_of(symptom: Symptom) -> frozenset[str]:
    """Classes of words that it is told by."""
    return frozenset(
        name
        for name, row in SYMPTOM_CLASSES.items()
        if symptom.kind in row.kinds or ("wait_" in row.kinds and symptom.kind.startswith("wait_"))
    )


def _picked(shown: list[Symptom], pick: str) -> Symptom | None:
    """The one that is meant by its name, or by its subject where that has one symptom."""
    by_name = [one for one in shown if pick and one.name.lower() == pick.lower()]
    by_subject = [one for one in shown if pick and one.subject.lower() == pick.lower()]
    return by_name[0] if by_name else by_subject[0] if len(by_subject) == 1 else None


def _focused(symptom: Symptom, question: SymptomQuestion) -> Symptom:
    """The symptom limited to the workloads and tenants that the question names; all of it when it names none."""
    if not symptom.kind.startswith("wait_"):
        return symptom
    workloads, tenants = question.names("workload"), question.names("tenant")
    lots = [lot for lot in symptom.lots if any(id_ in lot.members for id_ in workloads)]
    lots = lots or [lot for lot in symptom.lots if any(tenant in lot.tenants for tenant in tenants)]
    whole = not lots or len(lots) == len(symptom.lots)
    return symptom if whole else wait(symptom.subject, symptom.kind.removeprefix("wait_"), lots)


def related(scene: CellScene, symptom: Symptom, objects: tuple[tuple[str, str], ...]) -> bool:
    """True when the symptom is about one of the objects, or has to do with it."""
    return any(_about(scene, symptom, kind, id_) for kind, id_ in objects)


def _about(scene: CellScene, symptom: Symptom, kind: str, id_: str) -> bool:
    if (kind == symptom.of and id_ == symptom.subject) or id_ in symptom.ids:
        return True
    if any(id_ in lot.members or (kind == "tenant" and id_ in lot.tenants) for lot in symptom.lots):
        return True
    if kind == "queue" and symptom.of == "queue":
        tree = scene.state.queues
        return tree.row(id_) in tree.path[tree.row(symptom.subject)]
    if kind == "workload" and symptom.kind == "flapping":
        return _lost_with(scene, id_, symptom.subject)
    return kind in ("pool", "zone") and _of_pool(scene, symptom, kind, id_)


def _of_pool(scene: CellScene, symptom: Symptom, kind: str, id_: str) -> bool:
    """True when the symptom is about nodes of the pool or zone, or about waiting work that may use the pool."""
    c, w = scene.state.capacity, scene.state.workloads
    if symptom.kind == "cordoned":
        return True
    if kind == "zone":
        return False
    if symptom.of == "node":
        return bool(c.pools[c.pool[c.row(symptom.subject)]].name == id_)
    pool = c.pool_of[id_]
    return any(pool in shape.pool_set for lot in symptom.lots for shape in w.class_at(lot.row).shapes)


def _lost_with(scene: CellScene, workload: str, node: str) -> bool:
    """True when the workload is on the node, or went back to its queue when the node was lost."""
    state = scene.state
    row, at = state.capacity.row(node), state.workloads.row(workload)
    if any(state.allocations.workload[a] == at for a in state.allocations.on_node(row)):
        return True
    losses = state.failures.losses.get(row, ())
    history = scene.engine.workload(workload).history
    return any(item.what == RETURNED and item.at_ms in losses for item in history)


OfFinding = Callable[[CellScene, SymptomQuestion], RuleAnswer | None]
WAIT_MS = 5 * 60_000


def finding_of(question: SymptomQuestion) -> ReportedFinding:
    assert question.finding is not None, "a rule of findings is asked for a finding"
    return question.finding


def waits_of_queue(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer for waits of the queue that the finding is about."""
    queues = [name for name in question.names("queue") if name in finding_of(question).about] or question.names("queue")
    for name in queues:
        lots = [lot for lot in scene.queue_lots(name) if lot.wait_ms > WAIT_MS]
        for token in dict.fromkeys(lot.token for lot in lots):
            chosen = [lot for lot in lots if lot.token == token]
            found = wait_rules.answer(scene, wait(chosen[0].queue, token, chosen), question)
            if found is not None:
                return found
    if queues:
        return RuleAnswer(option=None, why=f"nothing of queue {queues[0]} still has a long wait")
    return None


def fragmented(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    wanted = set(finding_of(question).targets)
    lots = [lot for lot in scene.lots if wanted.intersection(lot.members)]
    if not lots:
        return RuleAnswer(option=None, why="its subject no longer waits")
    return wait_rules.answer(scene, wait(lots[0].queue, lots[0].token, [lots[0]]), question)


def cordons(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    """As few as start what waits; where nothing does, those that are healthy, for people to look at."""
    healthy = set(scene.healthy_cordoned)
    ids = tuple(
        id_ for id_ in finding_of(question).targets if id_ in healthy and scene.is_idle(scene.state.capacity.row(id_))
    )
    if not ids:
        return RuleAnswer(option=None, why="none of them is cordoned, empty and without a visible fault")
    late = [lot for lot in scene.lots if lot.wait_ms > WAIT_MS]
    for token in dict.fromkeys(lot.token for lot in late):
        chosen = [lot for lot in late if lot.token == token]
        case = Case(scene, wait(chosen[0].queue, token, chosen), question)
        for family in node_rules.uncordoned(case):
            result = case.solver.least(family.low, family.high, family.option)
            if result.gain:
                return wait_rules.found(case, result)
    return node_rules.hand_back(scene, finding_of(question).text, ids[:12])


def straggling(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    nodes = set(finding_of(question).targets)
    for symptom in scene.nodes():
        if symptom.kind == "straggler" and symptom.subject in nodes:
            return node_rules.straggler(scene, symptom, question)
    return RuleAnswer(option=None, why="no task on it is still behind its gang, as agents report")


def _nodes_drained(runbook: str) -> OfFinding:
    def rule(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
        finding = finding_of(question)
        there = [id_ for id_ in finding.targets if id_ in scene.state.capacity.row_of]
        if not there:
            return RuleAnswer(option=None, why="the node is no longer in the cell")
        if not borne_out(finding, there[0]):
            return RuleAnswer(
                option=None, why=f"the cell holds node {there[0]} healthy, and the observation is not recorded",
                questions=("What was observed, and does it still hold?",),
            )  # fmt: skip
        return node_rules.drained(scene, there[0], finding.text, runbook)

    return rule


def flapping(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer that drains one of the named nodes that is ready and was lost repeatedly. A cordoned node is out of
    use already."""
    c = scene.state.capacity
    there = [id_ for id_ in finding_of(question).targets if id_ in c.row_of]
    lost = {symptom.subject for symptom in scene.nodes() if symptom.kind == "flapping"}
    lost |= {node for node, _ in scene.agents.flapping} if scene.agents is not None else set()
    if not lost.intersection(there):
        return RuleAnswer(option=None, why="none of them flapped in the last day")
    ready = [id_ for id_ in there if id_ in lost and c.state[c.row_of[id_]] == NodeState.READY]
    if ready:
        return node_rules.drained(scene, ready[0], finding_of(question).text, "node-flapping")
    return RuleAnswer(
        option=None, why=f"{finding_of(question).text}; they already take no work, and need a person",
        questions=("Is it power, network or the agent?",),
    )  # fmt: skip


def idle_pool(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    finding = finding_of(question)
    pool, given = finding.targets[0] if finding.targets else "", _words(finding.parameters)
    size = scene.sizes.get(pool)
    if size is None or size.scaling is None or not given.get("least", "").isdigit():
        return RuleAnswer(
            option=None, why=f"{finding.text}; it does not shrink automatically, so people have to decide"
        )
    to = max(int(given["least"]), size.asked)
    if to >= size.scaling.least:
        return RuleAnswer(
            option=None, why=f"pool {pool} needs {size.asked:,} nodes now, and keeps {size.scaling.least:,}"
        )
    return node_rules.least(scene, pool, to, finding.text)


def ahead(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    """As many nodes, from when to when, as was foretold."""
    finding = finding_of(question)
    pool = finding.targets[0] if finding.targets else ""
    size = scene.sizes.get(pool)
    times = [word.partition("=") for word in finding.parameters if "=" in word]
    if size is None or size.scaling is None or not times:
        return RuleAnswer(option=None, why=f"{finding.text}; the pool is not autoscaled")
    at_ms, nodes = _moment(times[0][0]), int(times[0][2]) if times[0][2].isdigit() else 0
    end_ms = _moment(times[1][0]) if len(times) > 1 else at_ms + 3 * 3_600_000
    nodes = min(nodes, size.scaling.most)
    if end_ms <= scene.now_ms or nodes <= size.ready + size.booting + size.ordered:
        return RuleAnswer(option=None, why=f"pool {pool} has the predicted nodes, or the time is over")
    starts_ms = max(0, at_ms - scene.now_ms - size.scaling.boot_ms[1])
    lasts_ms = max(end_ms - scene.now_ms - starts_ms, 10 * 60_000)
    option = DraftOption(
        text=f"have {nodes:,} nodes in pool {pool} ahead of the peak",
        steps=((POOL_TARGETS, {"pool": pool, "nodes": nodes, "starts_in": starts_ms, "lasts": lasts_ms}),),
        runbook="pre-scale" if nodes <= 1000 and max(starts_ms, lasts_ms) <= 86_400_000 else "",
        inputs={
            "pool": pool, "nodes": str(nodes), "starts_in": f"{starts_ms // 1000}s", "lasts": f"{lasts_ms // 1000}s",
        },
        harms="If the peak does not come, they cost money while idle.",
    )  # fmt: skip
    return unless_harmful(scene, option, finding.text)


def runaway(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    finding = finding_of(question)
    names = (*question.names("tenant"), finding.about, *finding.targets)
    name = next((name for name in names if name in scene.state.workloads.tenants.index), finding.about)
    symptom = Symptom(kind="tenant", of="tenant", subject=name, text=finding.text, hurts=True)
    return node_rules.tenant(scene, symptom, question)


def reservation(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    wanted = finding_of(question).targets
    for symptom in scene.idle_reservations():
        if symptom.subject in wanted:
            return idle_reservation(scene, symptom, question)
    return RuleAnswer(option=None, why="it is now in use, or over")


def idle_reservation(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    spec = scene.engine.reservation(symptom.subject)
    if any(scene.queue_lots(queue) for queue in spec.queues):
        return RuleAnswer(
            option=None, why=f"{symptom.text}, and work of its own queues waits: find out why it does not start",
        )  # fmt: skip
    option = DraftOption(
        text=f"remove reservation {spec.name}", steps=(("unreserve", {"reservations": (spec.name,)}),),
        runbook="stale-reservation", inputs={"reservation": spec.name},
        harms="Its owner may come late and expect empty nodes.",
    )  # fmt: skip
    return unless_harmful(scene, option, symptom.text, "Does its owner still come?")


def overrun(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer for a run that takes too long: restart it only when its tasks are known to stand still."""
    still = {one.workload for one in scene.agents.still} if scene.agents is not None else set()
    for symptom in node_rules.work_symptoms(scene, question):
        if symptom.kind == "stuck" and symptom.subject in still.intersection(finding_of(question).targets):
            return node_rules.stuck(scene, symptom, question)
    return None if "hanging" in question.classes else only_told(scene, question)


def only_told(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer without an act: people have to look."""
    return RuleAnswer(option=None, why=f"{finding_of(question).text}; no action on the cell helps, this needs a person")


def spot(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    for symptom in scene.nodes():
        if symptom.kind == "spot_storm" and symptom.subject in finding_of(question).targets:
            return node_rules.spot_storm(scene, symptom, question)
    return RuleAnswer(option=None, why=f"{finding_of(question).text}; none is being reclaimed now")


def unknown(scene: CellScene, question: SymptomQuestion) -> RuleAnswer | None:
    """A kind that has no rule: what the question says beside it, or an object that is pointed at; else it is told."""
    pointed = finding_of(question).kind.startswith("about_")
    return None if pointed or question.text.strip() else only_told(scene, question)


def borne_out(finding: ReportedFinding, node: str) -> bool:
    """True for a finding against this very node, with an observation of it. Faults that the cell cannot see are acted
    on for nothing less."""
    named = re.compile(rf"(?<![\w.-]){re.escape(node)}(?![\w-]|\.\w)")
    about = finding.about.removeprefix("node:")
    return (
        finding.action in ("drain", "cordon")
        and node in finding.targets
        and about in ("", "cell", node)
        and any(one.value and (about == node or named.search(one.metric)) for one in finding.observed)
    )


def _words(parameters: tuple[str, ...]) -> dict[str, str]:
    """Options of the shell: `--least 3` -> {"least": "3"}."""
    found = {}
    for flag, value in pairwise(parameters):
        if flag.startswith("--"):
            found[flag[2:]] = value
    return found


def _moment(text: str) -> int:
    """Unix ms of a time such as 2026-03-01T08:00; 0 for any other text."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?", text):
        return 0
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


FINDINGS: Mapping[str, OfFinding] = {
    "quota_beside_idle": waits_of_queue,
    "unusual_wait_p95_s": waits_of_queue,
    "fragmented_gangs": fragmented,
    "forgotten_cordons": cordons,
    "straggler": straggling,
    "flapping": flapping,
    "throttled_node": _nodes_drained("drain-failing-node"),
    "unusual_ecc_errors": _nodes_drained("gpu-ecc-rising"),
    "unusual_xid_errors": _nodes_drained("drain-failing-node"),
    "idle_pool": idle_pool,
    "pool_ahead": ahead,
    "runaway_tenant": runaway,
    "stale_reservation": reservation,
    "interruptions": spot,
    "mass_suspicion": only_told,
    "needs_hands": only_told,
    "clock_skew": only_told,
    "strangers": only_told,
    "overrun": overrun,
    "interference": only_told,
    "failing_queue": only_told,
    "failing_node": flapping,
    "never_fits": only_told,
    "mislabelled_pool": only_told,
    "mispriced_pool": only_told,
    "spot_leaving": spot,
}


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
Rule = Callable[[CellScene, Symptom, SymptomQuestion], RuleAnswer | None]


def answer(scene: CellScene, question: SymptomQuestion) -> RuleAnswer:
    """The answer to a question: an act, the reason for none, or symptoms to pick from."""
    if question.finding is not None and not question.pick:
        found = FINDINGS.get(question.finding.kind, unknown)(scene, question)
        if found is not None:
            return found
    read = reading(scene, question)
    made = _by_rules(scene, question, read) if read.decided else _undecided(scene, question, read)
    return msgspec.structs.replace(made, read_as=read.text)


def _by_rules(scene: CellScene, question: SymptomQuestion, read: QuestionReading) -> RuleAnswer:
    looked: list[RuleAnswer] = []
    for symptom in read.symptoms[:MAX_LOOKED]:
        rule = RULES.get(symptom.kind) or (wait_rules.answer if symptom.kind.startswith("wait_") else None)
        made = rule(scene, symptom, question) if rule is not None else None
        if made is not None and made.option is not None:
            return made if question.pick else _unless_for_people(made, read)
        if made is not None:
            looked.append(made)
    if not looked:
        why = f"{read.symptoms[0].text}; no allowed action helps without harm"
        looked = [RuleAnswer(option=None, why=why, about=question.named[:MAX_TOLD])]
    return msgspec.structs.replace(looked[0], choices=choices(read.others))


def _unless_for_people(made: RuleAnswer, read: QuestionReading) -> RuleAnswer:
    """The answer, or symptoms to pick from when its acts are for people to decide on."""
    if made.option is None or DECIDED_BY_PEOPLE.isdisjoint(action for action, _ in made.option.steps):
        return made
    why = f"{made.why}; whether to {made.option.text} is for people to decide"
    return RuleAnswer(option=None, why=why, about=made.about, tried=made.tried, questions=made.questions,
                      undecided=True, choices=choices(read.symptoms))  # fmt: skip


def _undecided(scene: CellScene, question: SymptomQuestion, read: QuestionReading) -> RuleAnswer:
    if question.pick:
        why = f"{question.pick} is not a symptom that the cell shows now"
    elif question.named or not read.symptoms:
        why = all_well(scene, question)
    else:
        why = f"the cell shows {counted(len(read.symptoms), 'symptom')} that it may be about"
    return RuleAnswer(option=None, why=why, about=question.named[:MAX_TOLD], undecided=bool(read.symptoms),
                      choices=choices(read.symptoms))  # fmt: skip


def choices(symptoms: tuple[Symptom, ...]) -> tuple[SymptomChoice, ...]:
    return tuple(SymptomChoice(name=one.name, text=one.text) for one in symptoms)


def all_well(scene: CellScene, question: SymptomQuestion) -> str:
    silent = silence(scene)
    if silent:
        return silent
    late = sum(lot.count for lot in scene.lots)
    if question.named:
        names = ", ".join(dict.fromkeys(id_ for _, id_ in question.named[:3]))
        out = [text for kind, id_ in question.named[:3] if (text := out_of_use(scene, kind, id_))]
        told = f"{'; '.join(out)}; no other problem" if out else "no problem found"
        return f"{told} with {names} as far as the cell shows"
    if late:
        return "what waits has not waited long, and no node, queue or reservation is in its way"
    return "nothing waits, and no node, queue or budget needs anything"


def out_of_use(scene: CellScene, kind: str, id_: str) -> str:
    """The act of a person that keeps the object out of use; empty when there is none."""
    state = scene.state
    if kind == "node" and state.capacity.state[row := state.capacity.row(id_)] != NodeState.READY:
        since = lasting(scene.now_ms - state.capacity.since[row])
        text = f"node {id_} has been {NodeState(state.capacity.state[row]).label} for {since}"
    elif kind == "queue" and state.queues.mode[row := state.queues.row(id_)] != QueueMode.OPEN:
        text = f"queue {id_} is {QueueMode(state.queues.mode[row]).label}"
    else:
        return ""
    who = scene.closed_by(kind, (id_,))
    return f"{text}: {who}" if who else text


def looked_at(scene: CellScene) -> str:
    """Counts of the cell's objects by state, for the explanation that nothing should be done."""
    state, work = scene.state, scene.overview.states
    nodes = Counter(NodeState(each).label for each in view(state.capacity.state).tolist())
    nodes.pop(NodeState.REMOVED.label, None)
    queues = Counter(QueueMode(mode).label for mode in state.queues.mode)
    queued = work.get("queued", 0)
    longest = f" (the longest for {lasting(scene.overview.oldest_wait_ms)})" if queued else ""
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
    """The explanation that silent nodes are not acted on by hand; empty when no node is silent."""
    if scene.agents is None or not scene.agents.suspect:
        return ""
    count = f"{scene.agents.suspect:,} of {scene.agents.watched:,} watched nodes are silent"
    if scene.agents.mass_suspicion:
        return f"{count} at once: it may be the network between them and the engine; their work keeps running"
    return f"{count}; if it lasts, they are declared lost and their work restarts elsewhere"


# -- rules ------------------------------------------------------------------------------------------------------------


def cordoned(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """Nodes that are out of use and healthy: those that are named, or all."""
    named = [id_ for id_ in symptom.ids if id_ in question.names("node")]
    return node_rules.hand_back(scene, symptom.text, tuple(named or symptom.ids)[:12])


def held_queue(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """A queue that is closed, for what waits in it."""
    lots = scene.queue_lots(symptom.subject)
    if lots:
        return wait_rules.answer(scene, wait(lots[0].queue, lots[0].token, [lots[0]]), question)
    return RuleAnswer(
        option=None, about=(("queue", symptom.subject),),
        why=f"{symptom.text}; {scene.closed_by('queue', (symptom.subject,)) or 'who closed it is not on record'}",
        questions=("Should it still be closed, and until when?",),
    )  # fmt: skip


def budget(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    option = wait_rules.raised(scene, symptom.subject)
    return unless_harmful(scene, option, symptom.text, "Has the budget owner agreed?")


def on_hold(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """Work that is held or suspended: what is named of it, or all."""
    named = [id_ for id_ in symptom.ids if id_ in question.names("workload")]
    ids = tuple(named or symptom.ids)[:MAX_RELEASED]
    action: ActionName = "resume" if symptom.kind == "parked_Suspended" else "release"
    return unless_harmful(scene, _taken_up(action, ids), symptom.text, "Who holds it, and what for?")


def _taken_up(action: ActionName, ids: tuple[str, ...]) -> DraftOption:
    """The option to release or resume work that somebody put aside."""
    return DraftOption(
        text=f"{action} {', '.join(ids[:3])}", steps=((action, {"workloads": ids}),),
        harms="It may have been held for a reason that is not recorded here.",
    )  # fmt: skip


def never(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    first = symptom.ids[0]
    reasons = scene.engine.workload(first).reasons
    text = reasons[0].text if reasons else symptom.text
    return RuleAnswer(
        option=None, why=f"{first} {text}: no action on the cell starts it, its owner has to submit it again",
        questions=("Does its owner know?",),
    )  # fmt: skip


def zone_lost(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer for a failing zone. More important work that lost its place with the zone comes first."""
    for late in scene.waits(LATE_MS):
        found = wait_rules.displaced_way(scene, late, question)
        if found is not None:
            return found
    return node_rules.zone_lost(scene, symptom, question)


# -- work that waits for other work ------------------------------------------------------------------------------------


def chained(scene: CellScene, symptom: Symptom, question: SymptomQuestion) -> RuleAnswer | None:
    """The answer for work that waits for other work: release or resume what it waits for, where that would start at
    once."""
    named = [id_ for id_ in symptom.ids if id_ in question.names("workload")]
    waiting = tuple(named or symptom.ids)
    roots = keepers(scene, waiting)
    w = scene.state.workloads
    late = [lot for lot in scene.lots if set(roots).intersection(lot.members)]
    for lot in late:
        found = wait_rules.answer(scene, wait(lot.queue, lot.token, [lot]), question)
        if found is not None and found.option is not None:
            return found
    held = [id_ for id_ in roots if w.state[w.row_of[id_]] == WorkloadState.HELD]
    suspended = [id_ for id_ in roots if w.state[w.row_of[id_]] == WorkloadState.SUSPENDED]
    chain = f"{waiting[0]} waits for {', '.join(roots[:3])}" if roots else symptom.text
    if suspended:
        return _let_go(scene, tuple(suspended[:20]), "resume", f"{chain}, which is suspended")
    if held:
        return _let_go(scene, tuple(held[:20]), "release", f"{chain}, which is on hold")
    text = f"{chain}, which continues by itself" if roots else symptom.text
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
    """The answer that releases or resumes these, when their queue is open and there is room for them now."""
    w = scene.state.workloads
    since_ms = max(_aside_ms(scene, id_) for id_ in ids)
    questions = ("Who held it, and is the reason gone?",)
    if not all(scene.state.queues.is_open(w.queue[w.row_of[id_]]) for id_ in ids):
        return RuleAnswer(option=None, why=why, about=tuple(("workload", id_) for id_ in ids[:3]), questions=questions)
    option = _taken_up(action, ids)
    result = Solver(scene.engine, ids).try_(option)
    if not result.gain:
        return RuleAnswer(option=None, why=f"{why}; there is no room for it now", questions=questions)
    why = f"{why} for {lasting(scene.now_ms - since_ms)}, although there is room for it"
    return RuleAnswer(option=option, why=why, risks=(option.harms,), questions=questions)


def _aside_ms(scene: CellScene, id_: str) -> int:
    """The time at which it was put aside: that of its last history entry."""
    return max((item.at_ms for item in scene.engine.workload(id_).history), default=0)


RULES: Mapping[str, Rule] = {
    "straggler": node_rules.straggler,
    "flapping": node_rules.flapping,
    "zone_lost": zone_lost,
    "spot_storm": node_rules.spot_storm,
    "stuck": node_rules.stuck,
    "tenant": node_rules.tenant,
    "idle_pool": node_rules.idle_pool,
    "oversized": wait_rules.resized,
    "cordoned": cordoned,
    "idle_reservation": idle_reservation,
    "held_queue": held_queue,
    "budget": budget,
    "parked_OnHold": on_hold,
    "parked_Suspended": on_hold,
    "parked_DependencyNeverSatisfied": never,
    "parked_WaitingForDependency": chained,
}
