"""What is done about a finding of the recommender: the rule of its kind, where the live cell still bears it out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import pairwise

from engine.model.specs import NodeState
from runbooks.drafts.rules import making_room, waits
from runbooks.drafts.rules import nodes as draft_nodes
from runbooks.drafts.rules.questions import Question
from runbooks.drafts.rules.solver import Case, DraftOption, RuleAnswer, Solver
from runbooks.drafts.rules.symptoms import CellScene, Symptom, wait
from runbooks.drafts.typed_draft import ReportedFinding

OfFinding = Callable[[CellScene, Question], RuleAnswer | None]
WAIT_MS = 5 * 60_000


def finding_of(question: Question) -> ReportedFinding:
    assert question.finding is not None, "a rule of findings is asked for a finding"
    return question.finding


def waits_of_queue(scene: CellScene, question: Question) -> RuleAnswer | None:
    """Of the queue that it is about."""
    queues = [name for name in question.names("queue") if name in finding_of(question).about] or question.names("queue")
    for name in queues:
        lots = [lot for lot in scene.queue_lots(name) if lot.wait_ms > WAIT_MS]
        for token in dict.fromkeys(lot.token for lot in lots):
            chosen = [lot for lot in lots if lot.token == token]
            found = waits.answer(scene, wait(chosen[0].queue, token, chosen), question)
            if found is not None:
                return found
    if queues:
        return RuleAnswer(option=None, why=f"nothing of queue {queues[0]} has waited long any more")
    return None


def fragmented(scene: CellScene, question: Question) -> RuleAnswer | None:
    wanted = set(finding_of(question).targets)
    lots = [lot for lot in scene.lots if wanted.intersection(lot.members)]
    if not lots:
        return RuleAnswer(option=None, why="what it is about does not wait any more")
    return waits.answer(scene, wait(lots[0].queue, lots[0].token, [lots[0]]), question)


def cordons(scene: CellScene, question: Question) -> RuleAnswer | None:
    """As few as start what waits; where nothing does, those that are healthy, for people to look at."""
    healthy = set(scene.healthy_cordoned)
    ids = tuple(
        id_ for id_ in finding_of(question).targets if id_ in healthy and scene.is_idle(scene.state.capacity.row(id_))
    )
    if not ids:
        return RuleAnswer(option=None, why="none of them is cordoned, empty and without a fault that shows")
    late = [lot for lot in scene.lots if lot.wait_ms > WAIT_MS]
    for token in dict.fromkeys(lot.token for lot in late):
        chosen = [lot for lot in late if lot.token == token]
        case = Case(scene, wait(chosen[0].queue, token, chosen), question)
        for family in making_room.uncordoned(case):
            result = case.solver.least(family.low, family.high, family.option)
            if result.gain:
                return waits.found(case, result)
    return draft_nodes.hand_back(scene, finding_of(question).text, ids[:12])


def straggling(scene: CellScene, question: Question) -> RuleAnswer | None:
    nodes = set(finding_of(question).targets)
    for symptom in scene.nodes():
        if symptom.kind == "straggler" and symptom.subject in nodes:
            return draft_nodes.straggler(scene, symptom, question)
    return RuleAnswer(option=None, why="no task on it is behind its gang any more, as far as agents report")


def _nodes_drained(runbook: str) -> OfFinding:
    def rule(scene: CellScene, question: Question) -> RuleAnswer | None:
        finding = finding_of(question)
        there = [id_ for id_ in finding.targets if id_ in scene.state.capacity.row_of]
        if not there:
            return RuleAnswer(option=None, why="the node is not in the cell any more")
        if not borne_out(finding, there[0]):
            return RuleAnswer(
                option=None, why=f"the cell holds node {there[0]} for sound, and what was seen of it is not told",
                questions=("What was seen of it, and is it so now?",),
            )  # fmt: skip
        return draft_nodes.drained(scene, there[0], finding.text, runbook)

    return rule


def flapping(scene: CellScene, question: Question) -> RuleAnswer | None:
    """Those of them that are ready and were lost again and again, one at a time; what is cordoned is out of use
    already."""
    c = scene.state.capacity
    there = [id_ for id_ in finding_of(question).targets if id_ in c.row_of]
    lost = {symptom.subject for symptom in scene.nodes() if symptom.kind == "flapping"}
    lost |= {node for node, _ in scene.agents.flapping} if scene.agents is not None else set()
    if not lost.intersection(there):
        return RuleAnswer(option=None, why="none of them was lost again and again in the last day")
    ready = [id_ for id_ in there if id_ in lost and c.state[c.row_of[id_]] == NodeState.READY]
    if ready:
        return draft_nodes.drained(scene, ready[0], finding_of(question).text, "node-flapping")
    return RuleAnswer(
        option=None, why=f"{finding_of(question).text}; they take no work already, and somebody has to look at them",
        questions=("Is it power, network or the agent?",),
    )  # fmt: skip


def idle_pool(scene: CellScene, question: Question) -> RuleAnswer | None:
    finding = finding_of(question)
    pool, given = finding.targets[0] if finding.targets else "", _words(finding.parameters)
    size = scene.sizes.get(pool)
    if size is None or size.scaling is None or not given.get("least", "").isdigit():
        return RuleAnswer(option=None, why=f"{finding.text}; it does not shrink by itself, so people have to decide")
    to = max(int(given["least"]), size.asked)
    if to >= size.scaling.least:
        return RuleAnswer(
            option=None, why=f"pool {pool} needs {size.asked:,} nodes now, and keeps {size.scaling.least:,}"
        )
    return draft_nodes.least(scene, pool, to, finding.text)


def ahead(scene: CellScene, question: Question) -> RuleAnswer | None:
    """As many nodes, from when to when, as was foretold."""
    finding = finding_of(question)
    pool = finding.targets[0] if finding.targets else ""
    size = scene.sizes.get(pool)
    times = [word.partition("=") for word in finding.parameters if "=" in word]
    if size is None or size.scaling is None or not times:
        return RuleAnswer(option=None, why=f"{finding.text}; the pool does not grow by itself")
    at_ms, nodes = _moment(times[0][0]), int(times[0][2]) if times[0][2].isdigit() else 0
    end_ms = _moment(times[1][0]) if len(times) > 1 else at_ms + 3 * 3_600_000
    nodes = min(nodes, size.scaling.most)
    if end_ms <= scene.now_ms or nodes <= size.ready + size.booting + size.ordered:
        return RuleAnswer(option=None, why=f"pool {pool} has as many nodes as were foretold, or the time is over")
    starts_ms = max(0, at_ms - scene.now_ms - size.scaling.boot_ms[1])
    lasts_ms = max(end_ms - scene.now_ms - starts_ms, 10 * 60_000)
    option = DraftOption(
        text=f"have {nodes:,} nodes in pool {pool} ahead of the peak",
        steps=(("set_targets", {"pool": pool, "nodes": nodes, "starts_in": starts_ms, "lasts": lasts_ms}),),
        runbook="pre-scale" if nodes <= 1000 and max(starts_ms, lasts_ms) <= 86_400_000 else "",
        inputs={
            "pool": pool, "nodes": str(nodes), "starts_in": f"{starts_ms // 1000}s", "lasts": f"{lasts_ms // 1000}s",
        },
        harms="If the peak does not come they stand idle, and are paid for.",
    )  # fmt: skip
    if not Solver(scene.engine, ()).try_(option).harmless:
        return None
    return RuleAnswer(option=option, why=finding.text, risks=(option.harms,))


def runaway(scene: CellScene, question: Question) -> RuleAnswer | None:
    finding = finding_of(question)
    name = finding.targets[0] if finding.targets else finding.about
    symptom = Symptom(kind="tenant", of="tenant", subject=name, text=finding.text, hurts=True)
    return draft_nodes.tenant(scene, symptom, question)


def reservation(scene: CellScene, question: Question) -> RuleAnswer | None:
    wanted = finding_of(question).targets
    for symptom in scene.idle_reservations():
        if symptom.subject in wanted:
            return idle_reservation(scene, symptom, question)
    return RuleAnswer(option=None, why="it is in use, or over, by now")


def idle_reservation(scene: CellScene, symptom: Symptom, question: Question) -> RuleAnswer | None:
    spec = scene.engine.reservation(symptom.subject)
    if any(scene.queue_lots(queue) for queue in spec.queues):
        return RuleAnswer(
            option=None, why=f"{symptom.text}, and work of its own queues waits: find out why it does not start",
        )  # fmt: skip
    option = DraftOption(
        text=f"take back reservation {spec.name}", steps=(("unreserve", {"reservations": (spec.name,)}),),
        runbook="stale-reservation", inputs={"reservation": spec.name},
        harms="Its owner may come late and expect empty nodes.",
    )  # fmt: skip
    solver = Solver(scene.engine, ())
    if not solver.try_(option).harmless:
        return None
    return RuleAnswer(option=option, why=symptom.text, questions=("Does its owner still come?",), risks=(option.harms,))


def overrun(scene: CellScene, question: Question) -> RuleAnswer | None:
    """Only where its tasks are known to stand still is it more than a run that takes long."""
    still = {one.workload for one in scene.agents.still} if scene.agents is not None else set()
    for symptom in draft_nodes.told(scene, question):
        if symptom.kind == "stuck" and symptom.subject in still.intersection(finding_of(question).targets):
            return draft_nodes.stuck(scene, symptom, question)
    return None if "hanging" in question.classes else only_told(scene, question)


def only_told(scene: CellScene, question: Question) -> RuleAnswer | None:
    """Nothing done to the cell helps: people have to look."""
    return RuleAnswer(
        option=None, why=f"{finding_of(question).text}; nothing done to the cell helps, people have to look"
    )


def spot(scene: CellScene, question: Question) -> RuleAnswer | None:
    for symptom in scene.nodes():
        if symptom.kind == "spot_storm" and symptom.subject in finding_of(question).targets:
            return draft_nodes.spot_storm(scene, symptom, question)
    return RuleAnswer(option=None, why=f"{finding_of(question).text}; none is being taken back now")


def unknown(scene: CellScene, question: Question) -> RuleAnswer | None:
    """A kind that has no rule: what the question says beside it, or an object that is pointed at; else it is told."""
    pointed = finding_of(question).kind.startswith("about_")
    return None if pointed or question.text.strip() else only_told(scene, question)


def borne_out(finding: ReportedFinding, node: str) -> bool:
    """Whether it is a finding against this very node, with what was observed of it: what the cell itself cannot see is
    acted on for nothing less."""
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
    """Of a time such as 2026-03-01T08:00; 0 for another text."""
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
}
