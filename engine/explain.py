"""Why a workload waits: one primary reason that is true now, the others after it, and what would unblock it.

Reasons are worked out when somebody asks, from the same tests the scheduler makes, and kept per class of like
workloads until something changes: nothing is stored that could go stale.
"""

from __future__ import annotations

from engine.backfill import Reservation
from engine.capacity import Shape
from engine.model import RESOURCES, WorkloadState
from engine.query import Reason
from engine.scheduler import Scheduler
from engine.state import State

ON_HOLD = "OnHold"
NO_NODES = "NoMatchingNodes"
QUOTA = "WaitingForQuota"
CAPACITY = "InsufficientCapacity"
BEHIND = "BehindInQueue"
RESERVED = "WaitingForReservation"
UNSEEN = "AwaitingEvaluation"


class Explainer:
    """Answers for one version of the state at a time."""

    def __init__(self, state: State, scheduler: Scheduler) -> None:
        self._state = state
        self._scheduler = scheduler
        self._version = -1
        self._by_class: dict[tuple[int, int], list[Reason]] = {}
        self._starts: dict[int, int | None] = {}

    def _current(self) -> None:
        if self._version != self._state.version:
            self._version = self._state.version
            self._by_class.clear()
            self._starts.clear()

    def reasons(self, row: int) -> list[Reason]:
        """Primary first; empty unless the workload waits."""
        self._current()
        w = self._state.workloads
        if w.state[row] == WorkloadState.HELD:
            return [
                Reason(token=ON_HOLD, text="an operator or its owner put it on hold", unblock=f"release {w.ids[row]}")
            ]
        if w.state[row] != WorkloadState.QUEUED:
            return []
        key = (w.cls[row], w.queue[row])
        found = self._by_class.get(key)
        if found is None:
            found = self._by_class[key] = self._gates(row)
        return found or [self._order(row)]

    def _gates(self, row: int) -> list[Reason]:
        """What holds for every workload of the class in this queue; empty when only the order stands in its way."""
        reasons = []
        quota = self._quota(row)
        if quota is not None:
            reasons.append(quota)
        w = self._state.workloads
        workload_class = w.class_at(row)
        for group, shape in zip(workload_class.groups, workload_class.shapes, strict=True):
            short = self._capacity(group.name, group.count, shape)
            if short is not None:
                reasons.append(short)
        return reasons

    def _quota(self, row: int) -> Reason | None:
        state = self._state
        w = state.workloads
        request = w.class_at(row).request
        lacking = state.queues.lacking(w.queue[row], request)
        if lacking is None:
            return None
        vertex, i = lacking
        limit, used = state.queues.nominal[vertex][i], state.queues.used_vector(vertex)[i]
        name = state.queues.specs[vertex].name
        return Reason(
            token=QUOTA,
            text=f"asks for {quantity(i, request[i])}; queue {name} uses {quantity(i, used)} of its "
            f"nominal {quantity(i, limit)}",
            unblock=f"{quantity(i, used + request[i] - limit)} returned in {name}, or a larger quota",
        )

    def _capacity(self, name: str, count: int, shape: Shape) -> Reason | None:
        capacity = self._state.capacity
        if not any(capacity.pool_nodes[pool] for pool in shape.pools):
            return Reason(token=NO_NODES, text=f"no node has what a task of group {name} asks for")
        slots = capacity.slots(shape)
        if slots >= count:
            return None
        free_gpu = sum(capacity.indexes[pool].free_devices for pool in shape.pools)
        scattered = ""
        if shape.gpus and free_gpu >= shape.gpus * count:
            scattered = f" ({free_gpu} GPUs are free, but not {shape.gpus} together on enough nodes)"
        return Reason(
            token=CAPACITY,
            text=f"{count} tasks of {task_size(shape)} needed at once, room for {slots} now{scattered}",
            unblock=f"room for {count - slots} more such tasks",
        )

    def _order(self, row: int) -> Reason:
        """It would fit: something else goes first, or has been promised its time."""
        state = self._state
        w = state.workloads
        promise = self._scheduler.reservation
        if promise is not None and promise.row != row and not promise.ends_in_time(row):
            first = w.ids[promise.row]
            return Reason(
                token=RESERVED,
                text=f"fits now, but would run past the start promised to {first} and take what it needs",
                unblock=f"a shorter estimate, or the start of {first}",
            )
        position = state.position(row)
        if not state.pending.by_class and position > 1:
            return Reason(
                token=BEHIND,
                text=f"fits now, but is number {position} in its queue, and the policy is first come, first served",
                unblock="the workloads ahead of it start, or the policy becomes easy",
            )
        groups = w.class_at(row).groups
        if len(groups) > 1:
            return Reason(
                token=CAPACITY,
                text=f"each of its {len(groups)} groups would fit alone, but not all of them together now",
                unblock="more free capacity, or smaller groups",
            )
        return Reason(token=UNSEEN, text="the next scheduling cycle decides")

    def earliest_start(self, row: int) -> int | None:
        """Cell time at which enough is free if estimates hold and nothing else takes it; None when unknown.

        Looks at capacity only: what waits for quota has no such time.
        """
        self._current()
        state = self._state
        w = state.workloads
        if w.state[row] != WorkloadState.QUEUED or self._quota(row) is not None:
            return None
        cls = w.cls[row]
        if cls not in self._starts:
            self._starts[cls] = Reservation(state, row).start_ms
        return self._starts[cls]


def quantity(resource: int, value: int) -> str:
    """A quantity of RESOURCES[resource] as people write it."""
    name = RESOURCES[resource]
    if name == "cpu_milli":
        return f"{value / 1000:g} CPU"
    if name == "gpu_milli":
        return f"{value / 1000:g} GPU"
    what = "memory" if name == "memory_mib" else "disk"
    return f"{value / 1024:.4g} GiB {what}"


def task_size(shape: Shape) -> str:
    """What one task asks for, as people write it."""
    asked = (shape.cpu, shape.memory, shape.gpu_milli, shape.disk)
    return " + ".join(quantity(i, value) for i, value in enumerate(asked) if value)
