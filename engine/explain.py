"""Why a workload waits: one primary reason that is true now, the others after it, and what would unblock it.

Reasons are worked out when somebody asks, from the same tests the scheduler makes, and kept per class of like
workloads until something changes: nothing is stored that could go stale.
"""

from __future__ import annotations

from engine.backfill import Reservation
from engine.model import WorkloadState
from engine.quantities import quantity, task_size
from engine.query import Reason
from engine.scheduler import Scheduler
from engine.shape import Shape
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
        self._slots: dict[Shape, int] = {}
        self._starts: dict[int, int | None] = {}

    def _current(self) -> None:
        if self._version != self._state.version:
            self._version = self._state.version
            self._slots.clear()
            self._starts.clear()

    def token(self, row: int) -> str:
        """The primary reason's token, without working out its numbers; empty unless the workload waits."""
        w = self._state.workloads
        if w.state[row] == WorkloadState.HELD:
            return ON_HOLD
        if w.state[row] != WorkloadState.QUEUED:
            return ""
        if self._stands_behind(row):
            return BEHIND
        if self._state.queues.lacking(w.queue[row], w.class_at(row).request) is not None:
            return QUOTA
        if self._lacks_room(row):
            return CAPACITY if self._has_nodes(row) else NO_NODES
        return RESERVED if self._would_delay(row) else UNSEEN

    def reasons(self, row: int) -> list[Reason]:
        """Primary first; empty unless the workload waits."""
        self._current()
        primary = self.token(row)
        if not primary:
            return []
        if primary == ON_HOLD:
            text = "an operator or its owner put it on hold"
            return [Reason(token=ON_HOLD, text=text, unblock=f"release {self._state.workloads.ids[row]}")]
        reasons = [*self._behind(row), *self._quota(row), *self._room(row), *self._reserved(row)]
        if primary == UNSEEN:
            reasons.append(Reason(token=UNSEEN, text="the next scheduling cycle decides"))
        return sorted(reasons, key=lambda reason: reason.token != primary)

    # -- the gates: the same tests as the scheduler's ------------------------------------------------------------------

    def _stands_behind(self, row: int) -> bool:
        """Strict order, and something of its queue goes first."""
        return not self._state.pending.by_class and self._state.position(row) > 1

    def _has_nodes(self, row: int) -> bool:
        capacity = self._state.capacity
        shapes = self._state.workloads.class_at(row).shapes
        return all(any(capacity.pool_nodes[pool] for pool in shape.pools) for shape in shapes)

    def _lacks_room(self, row: int) -> bool:
        """What the scheduler found when it last tried; where it did not try, a count of slots."""
        w = self._state.workloads
        if self._scheduler.lacks_room(row):
            return True
        workload_class = w.class_at(row)
        return any(
            self._slots_of(shape) < count
            for shape, count in zip(workload_class.shapes, workload_class.counts, strict=True)
        )

    def _slots_of(self, shape: Shape) -> int:
        self._current()
        found = self._slots.get(shape)
        if found is None:
            found = self._slots[shape] = self._state.capacity.slots(shape)
        return found

    def _would_delay(self, row: int) -> bool:
        promise = self._scheduler.reservation
        return promise is not None and promise.row != row and not promise.ends_in_time(row)

    # -- the numbers ---------------------------------------------------------------------------------------------------

    def _behind(self, row: int) -> list[Reason]:
        if not self._stands_behind(row):
            return []
        text = f"number {self._state.position(row)} in its queue, and the policy is first come, first served"
        return [Reason(token=BEHIND, text=text, unblock="the workloads ahead of it start, or the policy becomes easy")]

    def _quota(self, row: int) -> list[Reason]:
        state = self._state
        w = state.workloads
        request = w.class_at(row).request
        lacking = state.queues.lacking(w.queue[row], request)
        if lacking is None:
            return []
        vertex, i = lacking
        limit, used = state.queues.nominal[vertex][i], state.queues.used_vector(vertex)[i]
        name = state.queues.specs[vertex].name
        return [
            Reason(
                token=QUOTA,
                text=f"asks for {quantity(i, request[i])}; queue {name} uses {quantity(i, used)} of its "
                f"nominal {quantity(i, limit)}",
                unblock=f"{quantity(i, used + request[i] - limit)} returned in {name}, or a larger quota",
            )
        ]

    def _room(self, row: int) -> list[Reason]:
        """One reason for each group that finds too little room."""
        if not self._has_nodes(row):
            return [Reason(token=NO_NODES, text="no node of the cell has what its tasks ask for")]
        if not self._lacks_room(row):
            return []
        workload_class = self._state.workloads.class_at(row)
        pairs = zip(workload_class.shapes, workload_class.counts, strict=True)
        short = [self._short(shape, count) for shape, count in pairs if self._slots_of(shape) < count]
        together = Reason(
            token=CAPACITY,
            text="each of its groups would fit alone, but not all of them together",
            unblock="room for its groups on different nodes",
        )
        return short or [together]

    def _short(self, shape: Shape, count: int) -> Reason:
        slots = self._slots_of(shape)
        capacity = self._state.capacity
        free = sum(capacity.indexes[pool].free_devices for pool in shape.pools)
        scattered = ""
        if shape.gpus and free >= shape.gpus * count:
            scattered = f" ({free} GPUs are free, but not {shape.gpus} together on enough nodes)"
        return Reason(
            token=CAPACITY,
            text=f"{count} tasks of {task_size(shape)} needed at once, room for {slots} now{scattered}",
            unblock=f"room for {count - slots} more such tasks",
        )

    def _reserved(self, row: int) -> list[Reason]:
        promise = self._scheduler.reservation
        if promise is None or self._lacks_room(row) or not self._would_delay(row):
            return []
        first = self._state.workloads.ids[promise.row]
        text = f"fits now, but would run past the start promised to {first} and take what it needs"
        return [Reason(token=RESERVED, text=text, unblock=f"a shorter estimate, or the start of {first}")]

    def earliest_start(self, row: int) -> int | None:
        """Cell time at which enough is free if estimates hold and nothing else takes it; None when unknown.

        Looks at capacity only: what waits for quota has no such time.
        """
        self._current()
        state = self._state
        w = state.workloads
        if w.state[row] != WorkloadState.QUEUED or self._quota(row):
            return None
        cls = w.cls[row]
        if cls not in self._starts:
            self._starts[cls] = Reservation(state, row).start_ms
        return self._starts[cls]
