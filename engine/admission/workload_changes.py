"""The checks of changes to submitted work: another request, another queue, or the same work submitted again.

No running task gets another request in place. Waiting work gets it before it starts (mode initial). Running work is
stopped at its last checkpoint and waits for a start with the new request (mode recreate); that is refused if all of its
work would be lost. A recommender may supply the new request through the hook here, within bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import msgspec

from engine.admission.definitions import Checked, ids_of, rows_of
from engine.admission.submissions import check_place
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.commands import MAX_EVIDENCE
from engine.model.errors import MusterError, RefusedError, SpecError, listed
from engine.model.specs import (
    RESOURCES,
    Resources,
    Spec,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
    check_workload,
    quantity,
)
from engine.state.cell_state import BOUND, State


def spec_of(state: State, row: int, name: str, **changes: Any) -> WorkloadSpec:
    """The workload's spec, as if it were submitted now under the id `name`, with other fields changed. Dependencies and
    arrays are left out.
    """
    w = state.workloads
    workload_class, terms = w.class_at(row), w.terms_at(row)
    spec = WorkloadSpec(
        id=name,
        name=w.names[row],
        queue=state.queues.specs[w.queue[row]].name,
        groups=workload_class.groups,
        priority_class=w.priority_classes[w.priority[row]].name,
        tenant=w.tenants.names[w.tenant[row]],
        team=w.teams.names[w.team[row]],
        tags=msgspec.json.decode(w.tag_sets.names[w.tags[row]], type=dict[str, str]),
        estimate_ms=workload_class.estimate_ms,
        checkpoint_interval_ms=w.checkpoint[row],
        checkpoint_cost_ms=w.checkpoint_cost[row],
        elastic=bool(w.elastic[row]),
        hot_swap=bool(w.hot_swap[row]),
        not_before_ms=terms.not_before_ms,
        deadline_ms=terms.deadline_ms,
        max_runtime_ms=terms.max_runtime_ms,
        retries=terms.retries,
        backoff_ms=terms.backoff_ms,
        restore_ms=terms.restore_ms,
        qos=workload_class.bonds.qos,
        service=terms.service,
        simulated_usage_permille=terms.simulated_usage_permille,
        run=terms.run,
        rerun=terms.rerun,  # type: ignore[arg-type]
        reservation=workload_class.reservation,
        topology=workload_class.bonds.topology,
        near=workload_class.bonds.near,
        apart=workload_class.bonds.apart,
        data=workload_class.bonds.data,
        simulated_runtime_ms=w.simulated[row],
        simulated_failures=w.failing[row],
    )
    return msgspec.structs.replace(spec, **changes)


MIN_PERMILLE, MAX_PERMILLE = 100, 4000
"""Bounds of a recommended request, in permille of the original one. People are not bound by it."""
RESIZED = ("cpu_milli", "memory_mib")
"""Resources that recommenders may change: devices are requested whole, and disks do not shrink."""


class RequestRecommendation(Spec, frozen=True, kw_only=True):
    """The recommended request of one task of a group, and the reason."""

    group: str = "main"
    cpu_milli: int = 0
    """0: as it asks."""
    memory_mib: int = 0
    evidence: str
    """For people, one line: `p95 800m x 1.15`."""


class RequestRecommender(Protocol):
    """Knows from history what work like this uses. Called on the engine's thread, so it must answer at once."""

    def recommend(self, spec: WorkloadSpec) -> Sequence[RequestRecommendation]:
        """The recommended requests; nothing for unknown work."""
        ...


# -- the command ------------------------------------------------------------------------------------------------------


def resize(state: State, command: cmd.Resize) -> Checked:
    """Raises SpecError for a request that makes no sense or could never start, RefusedError for work that has ended,
    runs without checkpoints, or has no such group."""
    if not command.request:
        raise SpecError("request", "is empty", "Give a resource and its quantity")
    for name in command.request:
        if name not in RESOURCES:
            raise SpecError("request", f"'{name[:64]}' is not a resource", f"Resources: {', '.join(RESOURCES)}")
    evidence = _checked_evidence(command.evidence)
    events: list[ev.AnyEvent] = []
    changed: list[int] = []
    for row in rows_of(state, command.ids):
        groups = _with_request(state, row, command.group, command.request)
        if groups == state.workloads.class_at(row).groups:
            continue
        _check(state, row, groups)
        if state.is_bound(row):
            saved = state.workloads.saves_when_asked(row)
            events.append(ev.Evicted(row, ev.EVICTION_CAUSES.index("asked"), saved=saved))
        events.append(ev.Reclassed(row, groups, evidence))
        changed.append(row)
    return events, ids_of(state, changed)


def _with_request(state: State, row: int, name: str, request: dict[str, int]) -> tuple[TaskGroup, ...]:
    """The workload's groups, one of them with these quantities in place of what it asks for."""
    w = state.workloads
    groups = w.class_at(row).groups
    at = next((i for i, group in enumerate(groups) if group.name == name or (not name and len(groups) == 1)), None)
    if at is None:
        known = ", ".join(group.name for group in groups)
        raise SpecError("group", f"'{w.ids[row]}' has no group '{name[:64]}'", f"Give one of: {known}")
    if groups[at].mig and "gpu_milli" in request:
        raise SpecError("request.gpu_milli", f"is set by the MIG profile of '{w.ids[row]}'", "Leave it out")
    asked = msgspec.structs.replace(groups[at].request, **request)
    return (*groups[:at], msgspec.structs.replace(groups[at], request=asked), *groups[at + 1 :])


def _check(state: State, row: int, groups: tuple[TaskGroup, ...]) -> None:
    w = state.workloads
    label = WorkloadState(w.state[row]).label
    if WorkloadState(w.state[row]).terminal:
        raise RefusedError(f"cannot resize: '{w.ids[row]}' is {label}", "Only work that has not ended can be resized")
    restarts = w.checkpoint[row] or w.checkpoint_cost[row] or w.terms_at(row).service is not None
    if w.state[row] in BOUND and not restarts:
        raise RefusedError(
            f"cannot resize: '{w.ids[row]}' is {label} and has no checkpoint to resume from",
            "Wait until it ends, or requeue it first if it may lose its work",
        )
    spec = spec_of(state, row, w.ids[row], groups=groups)
    where = f"workload '{w.ids[row]}'"
    check_workload(spec, where)
    check_place(state, spec, where)


def _checked_evidence(evidence: str) -> str:
    if len(evidence) > MAX_EVIDENCE or not evidence.isprintable():
        raise SpecError("evidence", "is too long or not one line of text", f"Give at most {MAX_EVIDENCE} characters")
    return evidence


# -- the hook ---------------------------------------------------------------------------------------------------------


def recommended(state: State, recommender: RequestRecommender, ids: Iterable[str]) -> list[ev.AnyEvent]:
    """The new workloads as the recommender changes them, within bounds. A workload that could then never start keeps
    its own request.
    """
    events: list[ev.AnyEvent] = []
    w = state.workloads
    for row in (w.row_of[name] for name in ids):
        if w.state[row] in BOUND or WorkloadState(w.state[row]).terminal:
            continue
        groups = w.class_at(row).groups
        said = []
        for recommendation in recommender.recommend(spec_of(state, row, w.ids[row])):
            asked = next((group.request for group in groups if group.name == recommendation.group), None)
            if asked is not None:
                groups = _with_bounded(groups, recommendation, asked)
                said.append(recommendation.evidence)
        if groups == w.class_at(row).groups:
            continue
        try:
            _check(state, row, groups)
            events.append(ev.Reclassed(row, groups, _checked_evidence("; ".join(said)[:MAX_EVIDENCE])))
        except MusterError:
            continue
    return events


def _with_bounded(
    groups: tuple[TaskGroup, ...], recommendation: RequestRecommendation, asked: Resources
) -> tuple[TaskGroup, ...]:
    request = {}
    for name in RESIZED:
        was, to = getattr(asked, name), getattr(recommendation, name)
        if was and to:
            request[name] = min(max(to, -(-was * MIN_PERMILLE // 1000)), was * MAX_PERMILLE // 1000)
    bounded = msgspec.structs.replace(asked, **request)
    return tuple(
        msgspec.structs.replace(group, request=bounded) if group.name == recommendation.group else group
        for group in groups
    )


# -- in words ---------------------------------------------------------------------------------------------------------


def resize_text(before: Sequence[TaskGroup], after: Sequence[TaskGroup], evidence: str) -> str:
    """The change in words: "request cut from 4 CPU to 1 CPU: p95 800m x 1.15". Groups that were divided, or are one
    again, are only counted."""
    alike = len(before) == len(after)
    changes = [] if alike else [f"{len(before)} task groups became {len(after)}"]
    for was, now in zip(before, after, strict=True) if alike else ():
        for i, (old, new) in enumerate(zip(was.request.vector(), now.request.vector(), strict=True)):
            if old != new:
                name = f"{now.name}: " if len(after) > 1 else ""
                how = "cut" if new < old else "raised"
                changes.append(f"{name}request {how} from {quantity(i, old)} to {quantity(i, new)}")
    return ": ".join(part for part in (", ".join(changes), evidence) if part)


def move_to_queue(state: State, command: cmd.MoveToQueue) -> Checked:
    """Raises NotFoundError for workloads, RefusedError for those that hold capacity or have ended, and SpecError for a
    queue that there is not, that takes no work, or in which one of them could never start."""
    w = state.workloads
    rows = rows_of(state, command.ids)
    ended = [w.ids[row] for row in rows if WorkloadState(w.state[row]).terminal]
    if ended:
        raise RefusedError(f"cannot move: {listed(ended)} has ended", "Leave it out")
    running = [w.ids[row] for row in rows if w.state[row] in BOUND]
    if running:
        raise RefusedError(
            f"cannot move: {listed(running)} holds capacity that is charged to its queue",
            "Requeue or suspend it first, or move it when it has ended",
        )
    events: list[ev.AnyEvent] = []
    for row in rows:
        check_place(state, spec_of(state, row, w.ids[row], queue=command.queue), f"workload '{w.ids[row]}'")
        to = state.queues.row(command.queue)
        if to != w.queue[row]:
            events.append(ev.MovedToQueue(row, to))
    return events, ids_of(state, rows)
