"""Every workload ever submitted, as columns. Equal specs are kept once, as a class.

Rows are given in order of submission and never reused, so a row is also a workload's age in every queue order.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from engine.capacity.task_shapes import FREE, Bonds, Company, Marks, Shape, bonds_of
from engine.model.columns import Mask, Names, Numbers, Table, view
from engine.model.errors import not_found
from engine.model.spec_parts import RunSpec
from engine.model.specs import (
    FLEXIBLE_TYPES,
    Dependency,
    PriorityClassSpec,
    ServiceSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
    WorkloadState,
)
from engine.state.queue_tree import Charge, QueueTree, Vector

if TYPE_CHECKING:
    from engine.capacity.index import Capacity

UNBOUNDED_MS = 10 * 365 * 86_400_000
"""Value of an unknown run time in backfill: ten years."""
_STEPS_MS = tuple(minutes * 60_000 for minutes in (1, 5, 15, 30, 60, 120, 300, 600, 1200, 3000))
CORRECTIONS_MS = tuple(accumulate(_STEPS_MS))
"""Increments of an estimate that proves too short, one each time; then the last step over and over. Steps of Tsafrir,
Etsion and Feitelson, IEEE TPDS 18(6), 2007.
"""
LAST_STEP_MS = _STEPS_MS[-1]
TRANSITIONS = (
    "submitted", "held", "released", "placed", "running", "finished", "failed", "cancelled", "requeued", "suspended",
    "resumed", "waiting", "woke", "grown", "shrunk", "checkpointing", "priority", "turned to on-demand",
    "swapped", "wanted", "resized",
    "spending approved", "moved", "exited", "vanished",
)  # fmt: skip
"""The kinds of history entries, by code."""
(
    SUBMITTED, HELD, RELEASED, PLACED, RUNNING, FINISHED, FAILED, CANCELLED, EVICTED, SUSPENDED, RESUMED, WAITING,
    WOKE, GROWN, SHRUNK, CHECKPOINTING, PRIORITY, TURNED, SWAPPED, WANTED, RESIZED, APPROVED,
    MOVED, EXITED, VANISHED,
) = range(len(TRANSITIONS))  # fmt: skip
DEPENDS_ON = ("finished", "failed", "ended", "started")
"""Kinds of dependency, by code."""
MET = 64
MIN_TURN_MS = 1000
"""Between being preempted and preempting others, or being preempted again."""
NONE = -1


class ClassTerms(msgspec.Struct, frozen=True, array_like=True):
    """Rare terms, kept once for all workloads with equal ones. As in WorkloadSpec."""

    deadline_ms: int = 0
    max_runtime_ms: int = 0
    retries: int = 0
    backoff_ms: int = 10_000
    not_before_ms: int = 0
    restore_ms: int = 0
    service: ServiceSpec | None = None
    simulated_usage_permille: int = 0
    run: RunSpec | None = None
    rerun: str = ""


USUAL = ClassTerms()
"""The terms of row 0: those of a workload that names none."""


BLANK = {
    "started": -1, "ended": -1, "attempts": 0, "failing": 0, "kept": 0, "done": 0, "rated": -1, "tasks": 0, "flags": 0,
    "evictions": 0, "evicted_at": -1, "preempting": NONE, "confirmed": 0, "failures": 0, "wake": -1, "unmet": 0,
    "terms": 0, "array": NONE, "first_allocation": NONE, "first_dependency": NONE, "first_dependent": NONE,
    "history": NONE, "hot_swap": 0, "state": WorkloadState.QUEUED,
}  # fmt: skip
"""Values of a new workload in these columns, if its spec has no special terms."""


NO_TAGS = "{}"
"""No tags, as they are interned."""


class ClassKey(NamedTuple):
    """The key under which workloads are alike."""

    groups: tuple[TaskGroup, ...]
    estimate_ms: int
    reservation: str = ""
    array: str = ""
    """The array it is a member of, if that limits how many run."""
    bonds: Bonds = FREE


def class_key(spec: WorkloadSpec, company: Company, limited: str = "") -> ClassKey:
    """The key of its class. `limited`: the array it is a member of, if that limits how many run."""
    bonds = bonds_of(spec, company.shunners(spec.tags))
    return ClassKey(spec.groups, spec.estimate_ms, spec.reservation, limited, bonds)


MOVED_TAG = "moved-to"
"""Tag of work that a fleet took back before it had begun: the cell where it went."""


def tags_text(tags: Mapping[str, str]) -> str:
    """Tags as they are interned: JSON, keys in order."""
    return msgspec.json.encode(tags, order="sorted").decode() if tags else NO_TAGS


class WorkloadClass:
    """Workloads that ask for the same: groups, estimate, reservation, bonds. Decisions and reasons go by class."""

    __slots__ = (
        "array", "bonds", "charge", "counts", "estimate_ms", "groups", "least", "least_charge", "request",
        "reservation", "rigid", "shapes", "single", "tasks",
    )  # fmt: skip

    def __init__(self, key: ClassKey) -> None:
        self.groups, self.estimate_ms, self.reservation, self.array, self.bonds = key
        self.counts = tuple(group.count for group in self.groups)
        self.least = tuple(group.min_count or group.count for group in self.groups)
        """Tasks of each group that are enough to start."""
        self.tasks = sum(self.counts)
        self.request = self.request_of(self.counts)
        """Request of all tasks together."""
        self.charge: Charge = QueueTree.total_charge(self.request)
        """The same, as what it costs where there are no quotas by pool."""
        self.least_charge: Charge = QueueTree.total_charge(self.request_of(self.least))
        """What the fewest tasks that are enough cost there."""
        self.rigid = self.least == self.counts
        """True if it runs with all its tasks or not at all."""
        self.single = self.counts == (1,)
        """True if it is one task."""
        self.shapes: tuple[Shape, ...] = ()
        """Compiled groups; filled by `Workloads.compile`."""

    def request_of(self, counts: Sequence[int]) -> Vector:
        """The request of `counts[g]` tasks of each group together."""
        totals = [0, 0, 0, 0]
        for group, count in zip(self.groups, counts, strict=True):
            for i, quantity in enumerate(group.request.vector()):
                totals[i] += quantity * count
        return (totals[0], totals[1], totals[2], totals[3])

    def least_and(self, more: int) -> tuple[int, ...]:
        """The fewest tasks of each group, and so many more, filling up the groups in order."""
        counts = []
        for least, count in zip(self.least, self.counts, strict=True):
            extra = min(more, count - least)
            counts.append(least + extra)
            more -= extra
        return tuple(counts)

    def confined(self, shapes: tuple[Shape, ...], counts: tuple[int, ...]) -> WorkloadClass:
        """The same request with so many tasks of each group, on other shapes."""
        if shapes == self.shapes and counts == self.counts:
            return self
        other = self.copy()
        other.shapes = shapes
        other.counts = counts
        other.tasks = sum(counts)
        return other

    @property
    def key(self) -> ClassKey:
        return ClassKey(self.groups, self.estimate_ms, self.reservation, self.array, self.bonds)

    def copy(self) -> WorkloadClass:
        other = WorkloadClass(self.key)
        other.shapes = self.shapes
        return other

    @property
    def bound_ms(self) -> int:
        """The estimate, or UNBOUNDED_MS when unknown."""
        return self.estimate_ms or UNBOUNDED_MS


class SoundRequests(NamedTuple):
    """Requests that were found to be sound."""

    rules: int
    """`State.rules` when they were."""
    groups: dict[tuple[TaskGroup, ...], int]
    """Groups, numbered as they came."""
    requests: set[tuple[int, str, bool]]
    """(number of the groups, queue, elastic)"""
    drawn: set[tuple[int, tuple[str, ...], bool]]
    """(number of the groups, pools that a queue names, whether its tree has quotas by pool): the groups fit there."""

    def copy(self) -> SoundRequests:
        return SoundRequests(-1, {}, set(), set())


class Workloads(Table):
    """Columns by row, and the classes, names and histories they point into."""

    columns = (
        "ids", "names", "tag_sets", "tenants", "teams", "priority_classes", "class_specs", "cls", "queue", "priority",
        "tenant", "team", "tags", "state", "since", "submitted", "started", "ended", "attempts", "checkpoint",
        "checkpoint_cost", "simulated", "failing", "kept", "done", "rated", "tasks", "flags", "elastic", "hot_swap",
        "evictions", "evicted_at", "preempting", "confirmed", "failures", "wake", "unmet", "terms", "terms_specs",
        "removed_classes", "took", "took_before", "array_names", "array_limits", "array_running", "array",
        "first_allocation", "first_dependency", "first_dependent", "dependency_waiter", "dependency_target",
        "dependency_kind", "dependency_next", "dependent_next", "history", "history_previous", "history_at",
        "history_what", "history_detail", "resized_from", "resized_to", "resized_why", "resized_by",
    )  # fmt: skip

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.names: list[str] = []
        self.tag_sets = Names()
        self.tenants = Names()
        self.teams = Names()
        self.priority_classes: list[Any] = []
        self.class_specs: list[Any] = []
        self.cls = array("i")
        self.queue = array("i")
        self.priority = array("i")
        """Row of the priority class."""
        self.tenant = array("i")
        self.team = array("i")
        self.tags = array("i")
        self.state = array("b")
        self.since = array("q")
        self.submitted = array("q")
        self.started = array("q")
        """Cell time of the present or last start; -1 while it waits for one."""
        self.ended = array("q")
        """-1 until terminal."""
        self.attempts = array("i")
        self.checkpoint = array("q")
        self.checkpoint_cost = array("q")
        self.simulated = array("q")
        self.failing = array("i")
        """Attempts that fail in the simulated executor."""
        self.kept = array("q")
        """Milliseconds of work saved by checkpoints of earlier attempts."""
        self.done = array("q")
        """Milliseconds of work, at the speed of all tasks, done in this attempt up to `rated`; below 0 while a
        checkpoint is still to be read back."""
        self.rated = array("q")
        """Cell time since which it runs with its present number of tasks."""
        self.tasks = array("i")
        """Tasks placed now."""
        self.flags = array("b")
        """Terms under which the present or last attempt was allowed to start: BORROWED, BURST, BACKFILLED of
        `engine.model.events`.
        """
        self.elastic = array("b")
        self.hot_swap = array("b")
        """True if lost members may be replaced one by one."""
        self.evictions = array("i")
        """Number of preemptions."""
        self.evicted_at = array("q")
        """Cell time of its last preemption; -1 when there was none."""
        self.preempting = array("i")
        """Workload for which it is being stopped; NONE when for none."""
        self.confirmed = array("b")
        """True if executors ever confirmed it: it has started at least once."""
        self.failures = array("i")
        """Attempts in which its work failed."""
        self.wake = array("q")
        """While WAITING: cell time before which it stays so; -1 when it waits for others alone."""
        self.unmet = array("i")
        """Dependencies not fulfilled yet; one that can no longer be keeps it above 0."""
        self.terms = array("i")
        self.terms_specs: list[Any] = [USUAL]
        self.removed_classes: list[int] = []
        """Rows of priority classes that nobody can use any more."""
        self.resized_from = array("i")
        """By number of a change of request: class row before it."""
        self.resized_to = array("i")
        self.resized_why = Names()
        self.resized_by = array("i")
        """Index into `resized_why`."""
        self.took = array("q")
        """By class: milliseconds of work of the one that finished last; -1 before any has."""
        self.took_before = array("q")
        """Time of the one before that."""
        self.array_names = Names()
        self.array_limits = array("i")
        self.array_running = array("i")
        """Placed or running workloads of each array."""
        self.array = array("i")
        """Row of its array; NONE when it is no member of one."""
        self.first_allocation = array("i")
        self.first_dependency = array("i")
        """Entry of what it waits for, linked by `dependency_next`."""
        self.first_dependent = array("i")
        """Entry of who waits for it, linked by `dependent_next`."""
        self.dependency_waiter = array("i")
        self.dependency_target = array("i")
        self.dependency_kind = array("b")
        """Index into DEPENDS_ON, plus MET once it is fulfilled."""
        self.dependency_next = array("i")
        self.dependent_next = array("i")
        self.history = array("i")
        """Last history entry of the workload; entries are linked backwards."""
        self.history_previous = array("i")
        self.history_at = array("q")
        self.history_what = array("b")
        self.history_detail = array("q")
        self.derive()

    def derive(self) -> None:
        self.priority_classes = [
            p if isinstance(p, PriorityClassSpec) else msgspec.convert(p, PriorityClassSpec)
            for p in self.priority_classes
        ]
        self.class_specs = [
            key if isinstance(key, ClassKey) else msgspec.convert(key, ClassKey) for key in self.class_specs
        ]
        self.terms_specs = [
            t if isinstance(t, ClassTerms) else msgspec.convert(t, ClassTerms) for t in self.terms_specs
        ]
        self.terms_of = {terms: i for i, terms in enumerate(self.terms_specs)}
        self.row_of: dict[str, int] = dict(zip(self.ids, range(len(self.ids)), strict=True))
        self.priority_of: dict[str, int] = {}
        self.priority_value: list[int] = []
        self.priority_band: list[int] = []
        for row, spec in enumerate(self.priority_classes):
            self._enter_priority_class(row, spec)
        for row in self.removed_classes:
            if self.priority_of.get(self.priority_classes[row].name) == row:
                del self.priority_of[self.priority_classes[row].name]
        self.class_of: dict[ClassKey, int] = {key: i for i, key in enumerate(self.class_specs)}
        self.classes = [WorkloadClass(key) for key in self.class_specs]
        self.class_requests = array("q", chain.from_iterable(each.request for each in self.classes))
        """Request of all tasks of a workload together, by class; WIDTH entries for each."""
        self.shapes: dict[tuple[TaskGroup, Bonds], Shape] = {}
        self.state_counts = [0] * len(WorkloadState)
        for state in self.state:
            self.state_counts[state] += 1

    def dump(self) -> dict[str, Any]:
        plain = {
            "priority_classes": [msgspec.to_builtins(spec) for spec in self.priority_classes],
            "class_specs": [msgspec.to_builtins(key) for key in self.class_specs],
            "terms_specs": [msgspec.to_builtins(terms) for terms in self.terms_specs],
        }
        return super().dump() | plain

    def add_priority_class(self, spec: PriorityClassSpec) -> None:
        self.priority_classes.append(spec)
        self._enter_priority_class(len(self.priority_classes) - 1, spec)

    def _enter_priority_class(self, row: int, spec: PriorityClassSpec) -> None:
        self.priority_of[spec.name] = row
        self.priority_value.append(spec.value)
        self.priority_band.append(spec.value if spec.band is None else spec.band)

    def remove_priority_class(self, name: str) -> None:
        self.removed_classes.append(self.priority_of.pop(name))

    def add_array(self, name: str, limit: int) -> None:
        """An array whose members follow."""
        self.array_names.add(name)
        self.array_limits.append(limit)
        self.array_running.append(0)

    def at_array_limit(self, row: int) -> bool:
        """True if as many members of its array run as may."""
        member_of = self.array[row]
        return member_of != NONE and 0 < self.array_limits[member_of] <= self.array_running[member_of]

    def add(self, spec: WorkloadSpec, queue: int, now_ms: int, capacity: Capacity, member_of: int = NONE) -> int:
        """A new row for the spec: queued, held, or waiting for its time or others. Returns the row."""
        row = len(self.ids)
        self.row_of[spec.id] = row
        self.ids.append(spec.id)
        self.names.append(spec.name)
        limited = self.array_names.names[member_of] if member_of != NONE and self.array_limits[member_of] else ""
        self.cls.append(self.intern(class_key(spec, capacity.company, limited), capacity))
        self.queue.append(queue)
        self.priority.append(self.priority_of[spec.priority_class])
        self.tenant.append(self.tenants.add(spec.tenant))
        self.team.append(self.teams.add(spec.team))
        self.tags.append(self.tag_sets.add(tags_text(spec.tags)))
        self.checkpoint.append(spec.checkpoint_interval_ms)
        self.checkpoint_cost.append(spec.checkpoint_cost_ms)
        self.simulated.append(spec.simulated_runtime_ms)
        self.elastic.append(spec.elastic)
        self.since.append(now_ms)
        self.submitted.append(now_ms)
        for name, value in BLANK.items():
            getattr(self, name).append(value)
        self.failing[row] = spec.simulated_failures
        self.hot_swap[row] = spec.hot_swap
        self.terms[row] = self._intern_terms(spec)
        self.array[row] = member_of
        if spec.after:
            self.unmet[row] = sum([self._depend(row, dependency) for dependency in spec.after])
        waits = self.unmet[row] > 0 or spec.not_before_ms > now_ms
        if waits and spec.not_before_ms > now_ms:
            self.wake[row] = spec.not_before_ms
        state = WorkloadState.HELD if spec.held else WorkloadState.WAITING if waits else WorkloadState.QUEUED
        self.state[row] = state
        self.state_counts[state] += 1
        self.record(row, SUBMITTED, now_ms, 0)
        return row

    def _intern_terms(self, spec: WorkloadSpec) -> int:
        terms = ClassTerms(
            spec.deadline_ms,
            spec.max_runtime_ms,
            spec.retries,
            spec.backoff_ms,
            spec.not_before_ms,
            spec.restore_ms,
            spec.service,
            spec.simulated_usage_permille,
            spec.run,
            spec.rerun,
        )
        found = self.terms_of.get(terms)
        if found is None:
            found = self.terms_of[terms] = len(self.terms_specs)
            self.terms_specs.append(terms)
        return found

    def terms_at(self, row: int) -> ClassTerms:
        terms: ClassTerms = self.terms_specs[self.terms[row]]
        return terms

    # -- dependencies -------------------------------------------------------------------------------------------------

    def _depend(self, row: int, dependency: Dependency) -> bool:
        """Link the row to what it waits for; false when that is fulfilled already."""
        target, kind = self.row_of[dependency.id], DEPENDS_ON.index(dependency.on)
        if self.fulfilled(target, kind):
            return False
        entry = len(self.dependency_target)
        self.dependency_waiter.append(row)
        self.dependency_target.append(target)
        self.dependency_kind.append(kind)
        self.dependency_next.append(self.first_dependency[row])
        self.dependent_next.append(self.first_dependent[target])
        self.first_dependency[row] = self.first_dependent[target] = entry
        return True

    def fulfilled(self, target: int, kind: int) -> bool:
        """True if a dependency of the kind (index into DEPENDS_ON) on the workload is met."""
        state = WorkloadState(self.state[target])
        if kind == 0:
            return state == WorkloadState.FINISHED
        if kind == 1:
            return state in (WorkloadState.FAILED, WorkloadState.CANCELLED)
        if kind == 2:
            return state.terminal
        return state.terminal or bool(self.confirmed[target])

    def hopeless(self, target: int, kind: int) -> bool:
        """True if such a dependency can no longer be met."""
        return WorkloadState(self.state[target]).terminal and not self.fulfilled(target, kind)

    def dependencies(self, row: int) -> list[tuple[int, int]]:
        """(target row, kind) of what the row still waits for, in the order given."""
        found = []
        entry = self.first_dependency[row]
        while entry != NONE:
            if self.dependency_kind[entry] < MET:
                found.append((self.dependency_target[entry], int(self.dependency_kind[entry])))
            entry = self.dependency_next[entry]
        return found[::-1]

    def dependents(self, target: int, most: int) -> list[tuple[int, int]]:
        """(row, kind) of who still waits for the target, the last to say so first; no more than `most`."""
        found: list[tuple[int, int]] = []
        entry = self.first_dependent[target]
        while entry != NONE and len(found) < most:
            if self.dependency_kind[entry] < MET:
                found.append((self.dependency_waiter[entry], int(self.dependency_kind[entry])))
            entry = self.dependent_next[entry]
        return found

    def note_progress(self, target: int) -> list[int]:
        """The workload has started or ended: count down who waits for that. Returns rows that wait for no other now."""
        ready = []
        entry = self.first_dependent[target]
        while entry != NONE:
            kind = int(self.dependency_kind[entry])
            if kind < MET and self.fulfilled(target, kind):
                self.dependency_kind[entry] = kind + MET
                waiter = self.dependency_waiter[entry]
                self.unmet[waiter] -= 1
                if not self.unmet[waiter]:
                    ready.append(waiter)
            entry = self.dependent_next[entry]
        return sorted(ready)

    def intern(self, key: ClassKey, capacity: Capacity) -> int:
        """The row of the class of such workloads. The capacity knows the labels and terms that it names."""
        found = self.class_of.get(key)
        if found is None:
            found = self.class_of[key] = len(self.class_specs)
            self.class_specs.append(key)
            self.classes.append(WorkloadClass(key))
            self.class_requests.extend(self.classes[-1].request)
            self.took.append(-1)
            self.took_before.append(-1)
            self._compile(self.classes[-1], capacity)
        return found

    def compile(self, capacity: Capacity) -> None:
        """Match every class against the pools. Needed after pools were added."""
        self.shapes.clear()
        for workload_class in self.classes:
            capacity.company.name(workload_class.bonds.near, workload_class.bonds.apart)
            self._compile(workload_class, capacity)

    def _compile(self, workload_class: WorkloadClass, capacity: Capacity) -> None:
        shapes = []
        for group in workload_class.groups:
            # How many there are, and under what name, is nothing to a single task.
            task = msgspec.structs.replace(group, name="main", count=1, min_count=0, limit=None)
            bonds = workload_class.bonds
            shape = self.shapes.get((task, bonds))
            if shape is None:
                shape = self.shapes[task, bonds] = Shape(task, capacity.pools, bonds, capacity.company.number)
            shapes.append(shape)
        workload_class.shapes = tuple(shapes)

    def shun(self, term: int, capacity: Capacity) -> bool:
        """Somebody keeps apart, from now on, from work that carries the term's tags: what has not ended of it becomes
        a class of its own. Returns whether there was any."""
        found = [term in capacity.company.carried(self.tags_of(tags)) for tags in range(len(self.tag_sets.names))]
        rows = [row for row, tags in enumerate(self.tags) if found[tags]]
        for row in rows:
            if not WorkloadState(self.state[row]).terminal:
                key: ClassKey = self.class_specs[self.cls[row]]
                bonds = msgspec.structs.replace(key.bonds, shunned=(*key.bonds.shunned, term))
                self._give_class(row, key._replace(bonds=bonds), capacity)
        return bool(rows)

    def turn_on_demand(self, row: int, capacity: Capacity) -> None:
        """Its tasks that may, or go to spot machines first, use on-demand ones alone from now on."""
        key: ClassKey = self.class_specs[self.cls[row]]
        groups = tuple(
            msgspec.structs.replace(group, capacity_type="on-demand")
            if group.capacity_type in FLEXIBLE_TYPES
            else group
            for group in key.groups
        )
        self._give_class(row, key._replace(groups=groups), capacity)

    def has_turned(self, row: int) -> bool:
        """True if its slack ran out and it turned to on-demand machines."""
        entry = self.history[row]
        while entry != NONE and self.history_what[entry] != TURNED:
            entry = self.history_previous[entry]
        return entry != NONE

    def _give_class(self, row: int, key: ClassKey, capacity: Capacity) -> None:
        """Give it another class, which knows by its old one how long such work takes."""
        old = self.cls[row]
        self.cls[row] = new = self.intern(key, capacity)
        if self.took[new] < 0:
            self.took[new], self.took_before[new] = self.took[old], self.took_before[old]

    def reclass(self, row: int, groups: tuple[TaskGroup, ...], evidence: str, capacity: Capacity) -> int:
        """Another request for a workload that is on no node. Returns the number of the change."""
        key: ClassKey = self.class_specs[self.cls[row]]
        self.resized_from.append(self.cls[row])
        self._give_class(row, key._replace(groups=groups), capacity)
        self.resized_to.append(self.cls[row])
        self.resized_by.append(self.resized_why.add(evidence))
        return len(self.resized_to) - 1

    def reestimate(self, row: int, estimate_ms: int, capacity: Capacity) -> None:
        """Another time that a workload is expected to run for."""
        key: ClassKey = self.class_specs[self.cls[row]]
        self._give_class(row, key._replace(estimate_ms=estimate_ms), capacity)

    def tags_of(self, tags: int) -> dict[str, str]:
        """Tags by the row of their set."""
        found: dict[str, str] = msgspec.json.decode(self.tag_sets.names[tags])
        return found

    def marks(self, row: int, company: Company) -> Marks:
        """The tags that the workload counts as for others."""
        tags = self.tags[row]
        carried = company.carried_by.get(tags)
        if carried is None:
            carried = company.carried_by[tags] = company.carried(self.tags_of(tags))
        return carried, tuple([company.number[term] for term in self.class_at(row).bonds.apart])

    def set_state(self, row: int, state: WorkloadState, what: int, now_ms: int, detail: int = 0) -> None:
        """Change state and say so in the history."""
        self.state_counts[self.state[row]] -= 1
        self.state_counts[state] += 1
        self.state[row] = state
        self.since[row] = now_ms
        self.record(row, what, now_ms, detail)

    def record(self, row: int, what: int, now_ms: int, detail: int) -> None:
        self.history_previous.append(self.history[row])
        self.history[row] = len(self.history_at)
        self.history_at.append(now_ms)
        self.history_what.append(what)
        self.history_detail.append(detail)

    def row(self, workload_id: str) -> int:
        found = self.row_of.get(workload_id)
        if found is None:
            raise not_found("workload", [workload_id], self.row_of)
        return found

    def class_at(self, row: int) -> WorkloadClass:
        return self.classes[self.cls[row]]

    def value_at(self, row: int) -> int:
        """Integer priority of the workload."""
        return int(self.priority_value[self.priority[row]])

    def remaining_ms(self, row: int) -> int:
        """The expected run time of the workload, started now with the fewest tasks it may start with: the rest of its
        work, after its last checkpoint has been read back.
        """
        workload_class = self.class_at(row)
        left = workload_class.bound_ms - self.kept[row]
        if self.kept[row]:
            left += self.terms_at(row).restore_ms
        return max(left if workload_class.rigid else -(-left * workload_class.tasks // sum(workload_class.least)), 1)

    def expected_end(self, row: int, now_ms: int) -> int:
        """Cell time, after `now_ms`, at which a placed or running workload is expected to end: by its estimate, or,
        where that was too short, by the first correction that lies ahead."""
        workload_class = self.class_at(row)
        left = workload_class.bound_ms - self.kept[row] - self.done[row]
        end: int = self.rated[row] + max(-(-left * workload_class.tasks // self.tasks[row]), 1)
        if end > now_ms:
            return end
        end += next((more for more in CORRECTIONS_MS if end + more > now_ms), 0)
        if end <= now_ms:
            end += CORRECTIONS_MS[-1] + ((now_ms - end - CORRECTIONS_MS[-1]) // LAST_STEP_MS + 1) * LAST_STEP_MS
        latest = self.started[row] + self.terms_at(row).max_runtime_ms
        return latest if now_ms < latest < end else end

    def work_done(self, row: int, now_ms: int) -> int:
        """Milliseconds of work, at the speed of all tasks, done in all attempts and not lost."""
        done: int = self.done[row]
        if self.state[row] == WorkloadState.RUNNING:
            done += (now_ms - self.rated[row]) * self.tasks[row] // self.class_at(row).tasks
        return self.kept[row] + max(done, 0)

    def lost_if_stopped(self, row: int, now_ms: int) -> int:
        """Milliseconds of that work which stopping it now would lose: all since its last checkpoint."""
        since = self.work_done(row, now_ms) - self.kept[row]
        return since % self.checkpoint[row] if self.checkpoint[row] else since

    def note_finished(self, row: int) -> None:
        """Remember how much work it was, for others of its class that give no estimate. `done` has it all."""
        cls = self.cls[row]
        self.took_before[cls] = self.took[cls]
        self.took[cls] = self.kept[row] + self.done[row]

    def may_preempt_at(self, row: int, settings: Settings) -> int:
        """Cell time from which the workload may preempt others: one that was preempted itself waits like anybody else
        first, or two could take turns for ever."""
        return self.evicted_at[row] + max(settings.preempt_after_ms, MIN_TURN_MS) if self.evicted_at[row] >= 0 else 0

    def spared_until(self, row: int, min_runtime_ms: int) -> int:
        """Cell time from which bound work may be preempted, given the minimum runtime of its queue. Work that was
        preempted and started again keeps its turn for a moment: or each who waits could take it from the one before."""
        evicted_at: int = self.evicted_at[row]
        return max(self.started[row] + min_runtime_ms, evicted_at + MIN_TURN_MS if evicted_at >= 0 else 0)

    def saves_when_asked(self, row: int) -> bool:
        """True if it writes a checkpoint when it is asked to stop."""
        return self.checkpoint_cost[row] > 0

    def band_at(self, row: int) -> int:
        """Order band of the workload's priority class."""
        return self.priority_band[self.priority[row]]


def ends_alone(w: Workloads, row: int) -> bool:
    """True if nobody waits for it, and it runs with all its tasks from its start to its end."""
    full = not w.elastic[row] and w.tasks[row] == w.classes[w.cls[row]].tasks
    return full and w.first_dependent[row] == NONE


def at_full_speed(w: Workloads, rows: Numbers) -> Mask:
    """True for those that run with all their tasks from their start to their end."""
    tasks = np.array([each.tasks for each in w.classes], np.int64)[view(w.cls)[rows]]
    return np.asarray((view(w.elastic)[rows] == 0) & (view(w.tasks)[rows] == tasks))
