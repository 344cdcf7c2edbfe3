"""Which symptom of the cell a question means: the one that its names and words leave, or a choice between several.

A question decides where all that it leaves is about one object. Else nothing is drafted: a person picks one.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.reads import pending_reasons
from runbooks.drafts.rules import nodes, oversized_requests
from runbooks.drafts.rules.questions import SYMPTOM_CLASSES, Question
from runbooks.drafts.rules.symptoms import CellScene, Symptom, wait

LATE_MS = 5 * 60_000
"""What has waited for less is not late."""
MAX_CHOICES = 9
SEVERITY = {"zone_lost": 80, "spot_storm": 60, "straggler": 45, "flapping": 35, "held_queue": 30, "budget": 15}
"""Kind -> rank among symptoms; waits stand at 50 and above, by their priority."""


class QuestionReading(NamedTuple):
    """What a question is read as."""

    text: str
    """As in "work waits; queue research"; empty where nothing of it was known."""
    symptoms: tuple[Symptom, ...]
    """Those that it may mean, most severe first."""
    decided: bool
    """All of them are about one object, which it means."""
    others: tuple[Symptom, ...] = ()
    """Where it is decided: what else it may be about."""


def reading(scene: CellScene, question: Question) -> QuestionReading:
    """What the question means, of the cell as it is. A pick decides, where it names one of the symptoms."""
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


def _read_as(question: Question) -> str:
    words = [SYMPTOM_CLASSES[name].reads for name in SYMPTOM_CLASSES if name in question.classes]
    return "; ".join([*words, *(f"{kind} {id_}" for kind, id_ in question.named)])


def symptoms(scene: CellScene, question: Question) -> list[Symptom]:
    """All that the cell shows and that there is a word for, and what is so of the objects that are named."""
    found = [*scene.waits(LATE_MS), *_named_waits(scene, question), *scene.nodes(), *nodes.told(scene, question)]
    found += oversized_requests.oversized_requests(scene)
    found += [*scene.cordons(), *scene.idle_reservations(), *scene.spent_budgets(), *scene.parked()]
    late = {one.subject for one in found if one.kind == f"wait_{pending_reasons.QUEUE_HELD}"}
    found += [one for one in scene.held_queues() if one.subject not in late]
    return [one for one in found if classes_of(one)]


def _named_waits(scene: CellScene, question: Question) -> list[Symptom]:
    """Waits of workloads that are named, however short."""
    named = question.names("workload")
    lots = [lot for lot in scene.lots if lot.wait_ms <= LATE_MS and any(id_ in lot.members for id_ in named)]
    return [wait(lot.queue, lot.token, [lot]) for lot in lots]


def _severity(symptom: Symptom) -> tuple[bool, int, int, str]:
    rank = SEVERITY.get(symptom.kind, 10)
    if symptom.kind.startswith("wait_"):
        rank = 50 + min(max(lot.priority for lot in symptom.lots) // 100, 20)
    return not symptom.hurts, -rank, -symptom.weight, symptom.subject


def _left(scene: CellScene, shown: list[Symptom], question: Question) -> list[Symptom]:
    """What the names and the words leave of what is shown; of a question without either, what hurts somebody."""
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


def _focused(symptom: Symptom, question: Question) -> Symptom:
    """Of a wait, the workloads and tenants that are named; else all of it."""
    if not symptom.kind.startswith("wait_"):
        return symptom
    workloads, tenants = question.names("workload"), question.names("tenant")
    lots = [lot for lot in symptom.lots if any(id_ in lot.members for id_ in workloads)]
    lots = lots or [lot for lot in symptom.lots if any(tenant in lot.tenants for tenant in tenants)]
    whole = not lots or len(lots) == len(symptom.lots)
    return symptom if whole else wait(symptom.subject, symptom.kind.removeprefix("wait_"), lots)


def related(scene: CellScene, symptom: Symptom, objects: tuple[tuple[str, str], ...]) -> bool:
    """Whether one of the objects is what it is about, or has to do with it."""
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
    """Whether it is about nodes of a pool or a zone, or work that waits may use the pool."""
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
    """Whether the workload is on the node, or was requeued when the node was lost."""
    state = scene.state
    row, at = state.capacity.row(node), state.workloads.row(workload)
    if any(state.allocations.workload[a] == at for a in state.allocations.on_node(row)):
        return True
    losses = state.failures.losses.get(row, ())
    history = scene.engine.workload(workload).history
    return any(item.what == "requeued" and item.at_ms in losses for item in history)
