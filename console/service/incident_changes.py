"""Changes shortly before an incident: plans that were carried out, rules that changed, and what happened to nodes,
queues and pools, with who did it where a person did.

Each is told by how long before the incident it was: plans and events by the clock of the cell, other records by the
wall's. Events are remembered since the engine started, as many as the event tail holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from engine.model.overviews import Change
from engine.state.workloads import TRANSITIONS
from runbooks.plans.incidents import Incident, IncidentChange
from runbooks.plans.queries import AuditPage, AuditQuery
from runbooks.plans.typed_plan import Proposal, StepStanding

BEFORE_MS = 2 * 3_600_000
AFTER_MS = 60_000
"""What follows at once may have come first: clocks and scrapes are not exact."""
AT_ONCE_MS = 10_000
"""Between a plan's step and the events of its targets."""
MAX_TOLD = 40
MAX_ALIKE = 3
"""Events of one kind that are told one by one, where they are not about the incident's own objects."""
MAX_RECORDS = 20
RECORDS = {
    "policy.changed": "approval policy changed", "freeze.set": "freeze set", "freeze.ended": "freeze ended",
    "config.changed": "defined", "breakglass.used": "glass broken", "engine.opened": "engine started",
}  # fmt: skip
"""Types of records that tell of a change, and their words."""
OF_WORK = frozenset((
    *TRANSITIONS, "preempting", "preemption dropped", "re-estimated", "approved", "asked for", "hardly used",
    "used again", "cell",
))  # fmt: skip
"""Events of single workloads, and what is no change: told only of the incident's own."""


def changes_before(
    incident: Incident, plans: Iterable[Proposal], page: Callable[[AuditQuery], AuditPage], events: Iterable[Change],
    pool_of: Callable[[str], str],
) -> tuple[IncidentChange, ...]:  # fmt: skip
    """The latest first, at most MAX_TOLD, those about the incident's own objects before others. `pool_of` gives the
    pool of a node, or nothing. What a plan did is told as the plan, not as events of its targets again."""
    own = {each.id for each in incident.objects}
    near = [plan for plan in plans if _in_window(_before_of(incident, plan))]
    planned = {(target, _before_of(incident, plan)) for plan in near for target in _targets(plan)}
    by_itself = [each for each in events if not _is_of_plan(incident, each, planned)]
    found = [
        *_of_plans(incident, near, own), *_of_records(incident, page),
        *_of_events(incident, by_itself, own, pool_of),
    ]  # fmt: skip
    kept = sorted(found, key=lambda each: (not each.own, not each.who, each.before_ms))[:MAX_TOLD]
    return tuple(sorted(kept, key=lambda each: each.before_ms))


def _of_plans(incident: Incident, plans: Iterable[Proposal], own: set[str]) -> Iterator[IncidentChange]:
    for plan in plans:
        pools = {target.pool: None for step in plan.plan.steps for target in step.shown if target.pool}
        yield IncidentChange(
            before_ms=_before_of(incident, plan), what=plan.title,
            who=plan.plan.requester or plan.plan.author.subject, proposal=plan.id, pools=tuple(pools),
            own=bool(own & _targets(plan)),
        )  # fmt: skip


def _is_of_plan(incident: Incident, event: Change, planned: Iterable[tuple[str, int]]) -> bool:
    """True for what happened to a target of a plan as that was carried out."""
    before_ms = incident.cell_ms - event.at_ms
    return any(target == event.subject and abs(before_ms - at) <= AT_ONCE_MS for target, at in planned)


def _targets(plan: Proposal) -> set[str]:
    return {target for step in plan.plan.steps for target in step.act.targets}


def _before_of(incident: Incident, plan: Proposal) -> int:
    """How long before it the plan began; too long where it has not."""
    begun = [_before(incident, step) for step in plan.standing if step.state != "waiting" and step.at_ms]
    return min(begun, default=-BEFORE_MS)


def _before(incident: Incident, step: StepStanding) -> int:
    """By the clock of the cell, on which its effects are told too; by the wall's for a step of no cell."""
    return incident.cell_ms - step.cell_ms if step.cell_ms else incident.began_ms - step.at_ms


def _of_records(incident: Incident, page: Callable[[AuditQuery], AuditPage]) -> Iterator[IncidentChange]:
    since_ms = incident.began_ms - BEFORE_MS
    for type_, words in RECORDS.items():
        for row in page(AuditQuery(type=type_, since_ms=since_ms, limit=MAX_RECORDS)).rows:
            before_ms = incident.began_ms - row.at_ms
            if _in_window(before_ms):
                name = str(row.data.get("name") or row.data.get("candidate") or row.data.get("command") or "")
                yield IncidentChange(
                    before_ms=before_ms, what=f"{words} {name}".strip(), who=row.subject, proposal=row.proposal
                    if row.proposal.startswith("P-") else "",
                )  # fmt: skip


def _of_events(
    incident: Incident, events: Iterable[Change], own: set[str], pool_of: Callable[[str], str]
) -> Iterator[IncidentChange]:
    """Events of its own objects one by one; of others the first of a kind, and how many more."""
    near = [each for each in events if _in_window(incident.cell_ms - each.at_ms)]
    others = [each for each in near if each.subject not in own and each.what not in OF_WORK]
    for each in near:
        if each.subject in own:
            yield _of_event(incident, each, _words(each), pool_of(each.subject), own=True)
    for _, alike in groupby(sorted(others, key=lambda each: each.what), key=lambda each: each.what):
        kind = list(alike)
        rest = f", and {len(kind) - MAX_ALIKE:,} more like it" if len(kind) > MAX_ALIKE else ""
        for number, each in enumerate(kind[-MAX_ALIKE:], 1):
            words = _words(each) + (rest if number == 1 else "")
            yield _of_event(incident, each, words, pool_of(each.subject), own=False)


def _of_event(incident: Incident, event: Change, what: str, pool: str, *, own: bool) -> IncidentChange:
    return IncidentChange(
        before_ms=incident.cell_ms - event.at_ms, what=what, subject=event.subject, pools=(pool,) if pool else (),
        own=own,
    )  # fmt: skip


def _words(event: Change) -> str:
    detail = f", {event.detail}" if event.detail else ""
    return f"{event.subject} {event.what}{detail}"


def _in_window(before_ms: int) -> bool:
    return -AFTER_MS <= before_ms <= BEFORE_MS
