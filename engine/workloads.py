"""Every workload ever submitted, as columns; what equal ones share is kept once, as a class.

Rows are given in order of submission and never reused, so a row is also a workload's age in every queue order.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from engine.columns import Names, Table
from engine.errors import NotFoundError
from engine.model import PoolSpec, PriorityClassSpec, TaskGroup, WorkloadSpec, WorkloadState
from engine.quota import Vector
from engine.shape import Shape

UNBOUNDED_MS = 10 * 365 * 86_400_000
"""What an unknown run time counts as in backfill: ten years."""
TRANSITIONS = (
    "submitted", "held", "released", "placed", "running", "finished", "failed", "cancelled", "requeued",
)  # fmt: skip
"""What a history entry records, by code."""
SUBMITTED, HELD, RELEASED, PLACED, RUNNING, FINISHED, FAILED, CANCELLED, REQUEUED = range(len(TRANSITIONS))


class WorkloadClass:
    """Workloads that ask for the same: one set of groups, one estimate. Decisions and reasons are made per class."""

    __slots__ = ("counts", "estimate_ms", "groups", "request", "shapes", "tasks")

    def __init__(self, groups: tuple[TaskGroup, ...], estimate_ms: int) -> None:
        self.groups = groups
        self.estimate_ms = estimate_ms
        self.counts = tuple(group.count for group in groups)
        self.tasks = sum(self.counts)
        totals = [0, 0, 0, 0]
        for group in groups:
            for i, quantity in enumerate(group.request.vector()):
                totals[i] += quantity * group.count
        self.request: Vector = (totals[0], totals[1], totals[2], totals[3])
        """What all tasks ask for together: the quota charge."""
        self.shapes: tuple[Shape, ...] = ()
        """Compiled groups; filled by `Workloads.compile`."""

    def copy(self) -> WorkloadClass:
        other = WorkloadClass(self.groups, self.estimate_ms)
        other.shapes = self.shapes
        return other

    @property
    def bound_ms(self) -> int:
        """The estimate, or UNBOUNDED_MS when unknown."""
        return self.estimate_ms or UNBOUNDED_MS


class Workloads(Table):
    """Columns by row, and the classes, names and histories they point into."""

    columns = (
        "ids", "names", "tag_sets", "tenants", "teams", "priority_classes", "class_specs", "cls", "queue",
        "priority", "tenant", "team", "tags", "state", "since", "submitted", "started", "ended", "attempts",
        "checkpoint", "simulated", "kept", "first_allocation", "history", "history_previous", "history_at",
        "history_what", "history_detail",
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
        self.simulated = array("q")
        self.kept = array("q")
        """Milliseconds of work saved by checkpoints of earlier attempts."""
        self.first_allocation = array("i")
        self.history = array("i")
        """Last history entry of the workload; entries are linked backwards."""
        self.history_previous = array("i")
        self.history_at = array("q")
        self.history_what = array("b")
        self.history_detail = array("i")
        self.derive()

    def derive(self) -> None:
        self.priority_classes = [
            p if isinstance(p, PriorityClassSpec) else msgspec.convert(p, PriorityClassSpec)
            for p in self.priority_classes
        ]
        self.class_specs = [
            (tuple(g if isinstance(g, TaskGroup) else msgspec.convert(g, TaskGroup) for g in groups), estimate)
            for groups, estimate in self.class_specs
        ]
        self.row_of: dict[str, int] = {name: i for i, name in enumerate(self.ids)}
        self.priority_of = {spec.name: i for i, spec in enumerate(self.priority_classes)}
        self.priority_value = [spec.value for spec in self.priority_classes]
        self.class_of = {key: i for i, key in enumerate(self.class_specs)}
        self.classes = [WorkloadClass(groups, estimate) for groups, estimate in self.class_specs]
        self.shapes: dict[tuple[Any, ...], Shape] = {}
        self.state_counts = [0] * len(WorkloadState)
        for state in self.state:
            self.state_counts[state] += 1

    def dump(self) -> dict[str, Any]:
        plain = {
            "priority_classes": [msgspec.to_builtins(spec) for spec in self.priority_classes],
            "class_specs": [[msgspec.to_builtins(groups), estimate] for groups, estimate in self.class_specs],
        }
        return super().dump() | plain

    def add_priority_class(self, spec: PriorityClassSpec) -> None:
        self.priority_of[spec.name] = len(self.priority_classes)
        self.priority_classes.append(spec)
        self.priority_value.append(spec.value)

    def add(self, spec: WorkloadSpec, queue: int, now_ms: int, pools: list[PoolSpec]) -> int:
        """A new row for the spec, queued or held. Returns the row."""
        row = len(self.ids)
        self.row_of[spec.id] = row
        self.ids.append(spec.id)
        self.names.append(spec.name)
        self.cls.append(self.intern(spec.groups, spec.estimate_ms, pools))
        self.queue.append(queue)
        self.priority.append(self.priority_of[spec.priority_class])
        self.tenant.append(self.tenants.add(spec.tenant))
        self.team.append(self.teams.add(spec.team))
        tags = msgspec.json.encode(spec.tags, order="sorted").decode() if spec.tags else "{}"
        self.tags.append(self.tag_sets.add(tags))
        state = WorkloadState.HELD if spec.held else WorkloadState.QUEUED
        self.state.append(state)
        self.state_counts[state] += 1
        self.since.append(now_ms)
        self.submitted.append(now_ms)
        self.started.append(-1)
        self.ended.append(-1)
        self.attempts.append(0)
        self.checkpoint.append(spec.checkpoint_interval_ms)
        self.simulated.append(spec.simulated_runtime_ms)
        self.kept.append(0)
        self.first_allocation.append(-1)
        self.history.append(-1)
        self.record(row, SUBMITTED, now_ms, 0)
        return row

    def intern(self, groups: tuple[TaskGroup, ...], estimate_ms: int, pools: list[PoolSpec]) -> int:
        """The row of the class of such workloads."""
        key = (groups, estimate_ms)
        found = self.class_of.get(key)
        if found is None:
            found = self.class_of[key] = len(self.class_specs)
            self.class_specs.append(key)
            self.classes.append(WorkloadClass(groups, estimate_ms))
            self._compile(self.classes[-1], pools)
        return found

    def compile(self, pools: list[PoolSpec]) -> None:
        """Match every class against the pools. Needed after pools were added."""
        self.shapes.clear()
        for workload_class in self.classes:
            self._compile(workload_class, pools)

    def _compile(self, workload_class: WorkloadClass, pools: list[PoolSpec]) -> None:
        shapes = []
        for group in workload_class.groups:
            key = (group.request, group.gpu_models, group.pools)
            shape = self.shapes.get(key)
            if shape is None:
                shape = self.shapes[key] = Shape(group, pools)
            shapes.append(shape)
        workload_class.shapes = tuple(shapes)

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
            raise NotFoundError(f"there is no workload '{workload_id}'", "List them with: muster get workloads")
        return found

    def class_at(self, row: int) -> WorkloadClass:
        return self.classes[self.cls[row]]

    def value_at(self, row: int) -> int:
        """Integer priority of the workload."""
        return int(self.priority_value[self.priority[row]])

    def expected_end(self, row: int) -> int:
        """Cell time at which a placed or running workload ends if its estimate holds."""
        return self.started[row] + max(self.class_at(row).bound_ms - self.kept[row], 1)
