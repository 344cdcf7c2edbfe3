"""What can be told of a cell that another scheduler decides: how each thing is now, as that scheduler shows it.

Each says the whole of its subject, so telling the same twice changes nothing, and what was missed in between is made up
for. Times are of the cell's clock, milliseconds; 0 = not known.
"""

from __future__ import annotations

from typing import Literal

from engine.model.accounting_history import PastRun
from engine.model.specs import (
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    Spec,
    WorkloadSpec,
)

Phase = Literal[
    "queued", "held", "waiting", "starting", "running", "suspended", "finished", "failed", "cancelled"
]  # fmt: skip
Standing = Literal["ready", "cordoned", "draining", "down"]


class PoolSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="pool"):
    """A pool is what it was when it was first seen: machines that differ are another pool."""

    pool: PoolSpec


class NodeSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="node"):
    node: NodeSpec
    standing: Standing = "ready"
    boot_ms: int = 0
    """Of a node that is powered down and booted for who needs it: how long that takes; 0: it is on."""


class NodeGone(Spec, frozen=True, kw_only=True, tag_field="seen", tag="node-gone"):
    id: str


class QueueSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="queue"):
    queue: QueueSpec
    open: bool = True
    """Whether work of it is started at all."""


class PriorityClassSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="priority-class"):
    priority_class: PriorityClassSpec


class ReservationSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="reservation"):
    reservation: ReservationSpec


class ReservationGone(Spec, frozen=True, kw_only=True, tag_field="seen", tag="reservation-gone"):
    name: str


class Holding(Spec, frozen=True, kw_only=True):
    """What a workload has on one node."""

    node: str
    resources: Resources
    devices: tuple[int, ...] = ()
    """Indexes of its devices there; empty where it is not known which."""


class WorkloadSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="workload"):
    """`spec` says what it is and asks for; where the array of the spec is given, that there is such an array, whose
    members are told each by itself."""

    spec: WorkloadSpec
    phase: Phase = "queued"
    submitted_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    wake_ms: int = -1
    """While `waiting`: when it may start; -1: only the scheduler knows."""
    restarts: int = 0
    """How often it was put back after a start."""
    holds: tuple[Holding, ...] = ()
    """While `starting` or `running`."""
    cause: str = ""
    """Of a failure: one of `engine.model.events.FAILURE_CAUSES`; of being put back: one of REQUEUE_CAUSES."""
    word: str = ""
    """Why it waits, or how it ended, as the scheduler says."""
    draws: tuple[tuple[str, int], ...] = ()
    """Caps that count it while it runs, by name, and how much of each it takes."""


class WorkloadGone(Spec, frozen=True, kw_only=True, tag_field="seen", tag="workload-gone"):
    """The scheduler does not know it any more, and how it ended was not seen."""

    id: str


class CapsSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="caps"):
    """How much the scheduler lets run together: all caps there are."""

    most: tuple[tuple[str, int], ...]


class PastSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="past"):
    """Runs that had ended before the cell looked on: all that is known of them."""

    runs: tuple[PastRun, ...]
    until_ms: int


AnySeen = (
    PoolSeen
    | NodeSeen
    | NodeGone
    | QueueSeen
    | PriorityClassSeen
    | ReservationSeen
    | ReservationGone
    | WorkloadSeen
    | WorkloadGone
    | PastSeen
    | CapsSeen
)
