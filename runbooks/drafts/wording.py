"""The words of a draft by rule: templates over typed facts, each sentence with what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from engine.model.errors import NotFoundError
from runbooks.drafts.rules.solver import RuleAnswer
from runbooks.drafts.typed_draft import Brief, Fact, Sentence, Span
from runbooks.drafts.vocabulary import METRICS, fact
from runbooks.plans.check_readings import READINGS
from runbooks.plans.typed_plan import Act

if TYPE_CHECKING:
    from engine.control import Engine

MAX_QUESTIONS = 3
MAX_RISKS = 5
MAX_TITLE = 120
NOTHING = "Nothing should be done"
READ_OF: dict[str, tuple[str, ...]] = {
    "queue": ("queue_mode", "queue_waiting", "queue_oldest_wait_s", "queue_gpus", "queue_gpu_quota"),
    "node": ("node_state", "node_workloads", "node_losses_day"),
    "pool": ("pool_nodes", "pool_ready", "pool_most"),
    "workload": ("workload_state", "workload_reason", "workload_wait_s", "workload_run_s"),
    "reservation": ("reservation_state", "reservation_idle_permille"),
    "budget": ("budget_spent_permille", "budget_forecast_permille"),
    "tenant": ("tenant_running", "tenant_waiting", "tenant_gpus"),
    "zone": ("zone_ready", "zone_lost"),
}
"""What is told of an object that an act is on, or that is in question."""
NOTHING_SAID: dict[str, tuple[int | str, ...]] = {
    "workload_reason": ("none",), "workload_run_s": (0,), "node_losses_day": (0,),
}  # fmt: skip
"""Values that need not be said."""
IN_MILLI = ("queue_gpus", "queue_gpu_quota", "tenant_gpus")
MAX_OBJECTS = 4


class CitedFacts:
    """The facts that a draft rests on: those of the brief where it has them, others read off the fork."""

    def __init__(self, engine: Engine, brief: Brief) -> None:
        self._engine = engine
        self._known = {(one.metric, one.subject): one for one in brief.facts}
        self._next = 1 + max((int(f.id[1:]) for f in brief.facts if f.id[1:].isdigit()), default=0)
        self._cited: dict[str, Fact] = {}

    @property
    def facts(self) -> tuple[Fact, ...]:
        return tuple(self._cited.values())

    def of(self, kind: str, subject: str) -> tuple[str, ...]:
        """Ids of what is known of an object."""
        return tuple(found.id for metric in READ_OF.get(kind, ()) if (found := self._one(metric, subject)) is not None)

    def _one(self, metric: str, subject: str) -> Fact | None:
        found = self._known.get((metric, subject))
        if found is None:
            try:
                value = READINGS[metric](self._engine, subject)  # type: ignore[index]
            except NotFoundError:
                return None
            if value is None or value in NOTHING_SAID.get(metric, ()) or metric not in METRICS:
                return None
            if metric in IN_MILLI and isinstance(value, int):
                value *= 1000
            found = msgspec.structs.replace(fact(metric, subject, value), id=f"F{self._next}")
            self._next += 1
            self._known[metric, subject] = found
        self._cited[found.id] = found
        return found


def said(text: str, cites: Iterable[str] = ()) -> Sentence:
    """One sentence: with a capital letter and a full stop."""
    text = text.strip()
    if text.split(" ", 1)[0].isalpha():
        # Not an id, which is what it is.
        text = text[:1].upper() + text[1:]
    return Sentence(spans=(Span(text=text if text.endswith((".", "?", "!")) else f"{text}."),), cites=tuple(cites))


def objects_of(acts: Sequence[Act]) -> list[tuple[str, str]]:
    """(kind, id) of what acts are on, as many as are told of."""
    from runbooks.actions.catalogue import find

    kinds = {"scaling": "pool"}
    found = [(kinds.get(find(act.action).kind, find(act.action).kind), id_) for act in acts for id_ in act.targets]
    return list(dict.fromkeys(found))[:MAX_OBJECTS]


def summary(answer: RuleAnswer, cites: Sequence[str]) -> tuple[Sentence, ...]:
    """What is wrong, what is proposed against it, and what a fork showed of that."""
    sentences = [said(answer.why, cites)]
    if answer.option is None:
        return tuple(sentences) if answer.undecided else (*sentences, said(NOTHING))
    sentences.append(said(f"Proposed: {answer.option.text}"))
    if answer.target is not None:
        verdict = "met" if answer.target.met else "met in part"
        sentences.append(said(f"On a fork, {answer.target.text}: {answer.target.after} ({verdict})"))
    return tuple(sentences)


def rationale(answer: RuleAnswer, cites: Sequence[str]) -> tuple[Sentence, ...]:
    """Why this and nothing milder."""
    milder = [one for one in answer.tried if not one.met][:3]
    return tuple(said(f"Tried on a fork: {one.text}; {one.why}", cites) for one in milder)
