"""Submissions of many usual workloads, checked and recorded together: what asks for nothing but resources.

The check is a glance: it says that all of them are sound, or nothing. `engine.admission.submissions` looks at them one
by one then and finds what is wrong, if anything is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from engine.model import events as ev
from engine.model.errors import MusterError, RefusedError
from engine.model.specs import ID_PATTERN, MAX_NAME, MAX_QUANTITY, WorkloadSpec, check_workload
from engine.state.workloads import USUAL, SoundRequests

if TYPE_CHECKING:
    from engine.state.cell_state import State

_ID_LINES = re.compile(rf"(?:{ID_PATTERN.pattern}\n)*+")
MAX_REMEMBERED = 1024
"""Requests of which it is remembered that they are sound."""


_wishes = attrgetter(
    "array", "after", "held", "not_before_ms", "deadline_ms", "max_runtime_ms", "retries", "backoff_ms", "reservation",
    "simulated_failures", "hot_swap", "topology", "near", "apart", "data", "restore_ms", "qos", "service",
    "simulated_usage_permille", "run",
)  # fmt: skip
NO_WISHES = (
    None, (), False, 0, 0, 0, 0, USUAL.backoff_ms, "", 0, False, None, (), (), (), 0, "guaranteed", None, 0, None,
)  # fmt: skip
"""In the same order."""


def is_usual(spec: WorkloadSpec) -> bool:
    """Whether it asks for nothing but resources: no array, no dependencies, no times, no terms, no bonds."""
    return _wishes(spec) == NO_WISHES


def all_sound(
    state: State, specs: Sequence[WorkloadSpec], check_place: Callable[[State, WorkloadSpec, str], None]
) -> bool:
    """Whether all are usual and there is nothing to refuse, as far as a glance tells. `check_place` raises MusterError
    for what could never start."""
    w = state.workloads
    ids = [spec.id for spec in specs]
    if not (
        all(map(NO_WISHES.__eq__, map(_wishes, specs)))
        and _numbers_are_sound(specs)
        and _are_ids(ids)
        and len(set(ids)) == len(ids)
        and w.row_of.keys().isdisjoint(ids)
        and w.array_names.index.keys().isdisjoint(ids)
    ):
        return False
    priorities = {spec.priority_class for spec in specs}
    if not priorities <= w.priority_of.keys():
        return False
    names = {name for spec in specs for name in (spec.queue, spec.tenant, spec.team)} | priorities
    if not all(ID_PATTERN.fullmatch(name) for name in names if name):
        return False
    try:
        _check_requests(state, specs, check_place)
    except MusterError:
        return False
    return True


def _are_ids(texts: Sequence[str]) -> bool:
    lines = "\n".join(texts) + "\n"
    return lines.count("\n") == len(texts) and _ID_LINES.fullmatch(lines) is not None


def _check_requests(
    state: State, specs: Sequence[WorkloadSpec], check_place: Callable[[State, WorkloadSpec, str], None]
) -> None:
    """Raise MusterError if one of them could never start. Specs often share their groups, and equal requests need
    looking at once only as long as pools, nodes and queues are as they were."""
    known = state.found_sound
    if known.rules != state.rules or len(known.requests) > MAX_REMEMBERED:
        known = state.found_sound = SoundRequests(state.rules, {}, set())
    asked = {(id(spec.groups), spec.queue, spec.elastic): spec for spec in specs}
    number_of: dict[int, int] = {}
    for (identity, queue, elastic), spec in asked.items():
        number = number_of.get(identity)
        if number is None:
            number = number_of[identity] = _number_of(known, spec)
        if (number, queue, elastic) not in known.requests:
            check_place(state, spec, "")
            known.requests.add((number, queue, elastic))


def _number_of(known: SoundRequests, spec: WorkloadSpec) -> int:
    """The number of its groups, which are checked when they are new."""
    number = known.groups.get(spec.groups)
    if number is None:
        if any(group.mig or group.on_demand for group in spec.groups):
            raise RefusedError("groups that are rewritten at the door are not rewritten here", "It is done one by one")
        check_workload(spec)
        number = known.groups[spec.groups] = len(known.groups)
    return number


def _numbers_are_sound(specs: Sequence[WorkloadSpec]) -> bool:
    columns = (
        [spec.estimate_ms for spec in specs],
        [spec.checkpoint_interval_ms for spec in specs],
        [spec.checkpoint_cost_ms for spec in specs],
        [spec.simulated_runtime_ms for spec in specs],
    )
    return max([len(spec.name) for spec in specs]) <= MAX_NAME and all(
        min(column) >= 0 and max(column) <= MAX_QUANTITY for column in columns
    )


def events_of(specs: Sequence[WorkloadSpec]) -> list[ev.AnyEvent]:
    """One for each, but one for all usual ones that follow each other."""
    events: list[ev.AnyEvent] = []
    for usual, run in groupby(specs, is_usual):
        together = tuple(run)
        if usual and len(together) > 1:
            events.append(ev.SubmittedMany(together))
        else:
            events += [ev.Submitted(spec) for spec in together]
    return events
