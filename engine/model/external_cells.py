"""Observations of a cell that another scheduler decides: its present objects, its earlier runs, and the progress of
intents.

Each observation gives the whole of its subject. Reporting it twice changes nothing, and a missed one is made up for by
the next. Times are of the cell's clock, in milliseconds; 0 = not known.

Earlier runs come from that scheduler's accounting. Run times are learnt from them (`engine.state.run_times`); they are
no work of the cell, and nothing is charged for them. `engine.state.external_cell` keeps the intents. This module
imports nothing heavy, because consoles load it at their start.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from engine.model.specs import (
    NodeSpec,
    Policy,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Resources,
    Spec,
    WorkloadSpec,
)

MAX_RUNS = 5_000
_DIGITS = re.compile(r"\d+")


class PastRun(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One run from its start to its end. Names as the cell has them; times are of the cell's clock, milliseconds."""

    queue: str
    tenant: str
    team: str
    name: str
    tasks: int
    gpu_milli: int
    """GPU of all tasks together."""
    limit_ms: int
    """The time limit by which it would have been ended; 0: without one."""
    run_ms: int
    submitted_ms: int
    started_ms: int
    ended_ms: int
    finished: bool
    """True if it ended by itself and well."""


def stem(name: str) -> str:
    """The common part of names of like work: `train-17` and `train-18`. Empty where it tells nothing."""
    found = _DIGITS.sub("", name)
    return found if found.strip("-_./ ") else ""


Phase = Literal[
    "queued", "held", "waiting", "starting", "running", "suspended", "finished", "failed", "cancelled"
]  # fmt: skip
Standing = Literal["ready", "cordoned", "draining", "down"]
SchedulerName = Literal["Slurm", "Kubernetes"]
SCHEDULERS: dict[str, SchedulerName] = {"slurm": "Slurm", "kubernetes": "Kubernetes"}
"""Who decides a cell -> its name, as people write it."""


class PoolSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="pool"):
    """A pool is what it was when it was first seen: machines that differ are another pool."""

    pool: PoolSpec


class NodeSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="node"):
    node: NodeSpec
    standing: Standing = "ready"
    boot_ms: int = 0
    """Boot time of a node that is powered down and booted on demand; 0: it is on."""


class NodeGone(Spec, frozen=True, kw_only=True, tag_field="seen", tag="node-gone"):
    id: str


class QueueSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="queue"):
    queue: QueueSpec
    open: bool = True
    """True if its work is started at all."""


class PriorityClassSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="priority-class"):
    priority_class: PriorityClassSpec


class ReservationSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="reservation"):
    reservation: ReservationSpec


class ReservationGone(Spec, frozen=True, kw_only=True, tag_field="seen", tag="reservation-gone"):
    name: str


class NodeLoadSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="node-load"):
    """What runs on a node and is no work of any queue, all together."""

    node: str
    resources: Resources = Resources()
    pods: int = 0


class Holding(Spec, frozen=True, kw_only=True):
    """The resources of a workload on one node. With a `group`: of each of `count` tasks of that task group, which may
    move while it runs; without: of its only task there, which does not."""

    node: str
    resources: Resources
    devices: tuple[int, ...] = ()
    """Indexes of its devices there; empty where it is not known which."""
    group: str = ""
    count: int = 1


class QuotaShare(Spec, frozen=True, kw_only=True):
    """Quota of a pool; of all pools together where `pool` is empty."""

    pool: str = ""
    resources: Resources


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
    """Number of returns to the queue after a start."""
    holds: tuple[Holding, ...] = ()
    """While `starting` or `running`."""
    cause: str = ""
    """Cause of a failure or an eviction: one of FAILURE_CAUSES or EVICTION_CAUSES of `engine.model.events`."""
    word: str = ""
    """The reason why it waits, or ended, in the scheduler's words."""
    draws: tuple[tuple[str, int], ...] = ()
    """Caps that count it while it runs, by name, and how much of each it takes."""
    reserves: tuple[QuotaShare, ...] = ()
    """Quota that it has been given for tasks that are on no node yet."""


class WorkloadGone(Spec, frozen=True, kw_only=True, tag_field="seen", tag="workload-gone"):
    """The scheduler does not know it any more, and how it ended was not seen."""

    id: str


class CapsSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="caps"):
    """The scheduler's limits on work that runs together: all caps there are."""

    most: tuple[tuple[str, int], ...]


class PolicySeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="policy"):
    """The policy that is a model of the scheduler: forks of the cell decide by it."""

    policy: Policy


class PastSeen(Spec, frozen=True, kw_only=True, tag_field="seen", tag="past"):
    """Runs that had ended before the cell looked on: all that is known of them."""

    runs: tuple[PastRun, ...]
    until_ms: int


AnySeen = (
    PoolSeen
    | NodeSeen
    | NodeGone
    | NodeLoadSeen
    | QueueSeen
    | PriorityClassSeen
    | ReservationSeen
    | ReservationGone
    | WorkloadSeen
    | WorkloadGone
    | PastSeen
    | CapsSeen
    | PolicySeen
)


StepStanding = Literal["done", "to do", "changing", "gone", "missing"]
"""One step of an intent, as the other scheduler shows it. changing: on its way, and not there yet. gone: there is
nothing to be done to it any more. missing: it is not known there; what was submitted through Muster a moment ago may
come back."""


class IntentView(msgspec.Struct, frozen=True, kw_only=True):
    """An intent as people see it."""

    id: str
    what: str
    """Name of the command, as the shell has it."""
    subjects: tuple[str, ...]
    """Ids it is about, the first ones."""
    count: int
    """The number of objects."""
    phase: str
    job: int
    text: str
    at_ms: int
    changed_ms: int
    tries: int
    token: str


class IntentsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The intents under way to the other scheduler, and the outcomes of the last ones."""

    at_ms: int
    open: int
    sent: int
    accepted: int
    in_doubt: int
    items: tuple[IntentView, ...]
    """The intents, those under way first, each group with the newest first."""


class IntentWord(msgspec.Struct, frozen=True, kw_only=True):
    """A statement about an intent at some time."""

    at_ms: int
    phase: str
    text: str


class FarLook(msgspec.Struct, frozen=True, kw_only=True):
    """The other scheduler's present view of a wanted change. Its own texts are in here: untrusted."""

    at_ms: int
    lines: tuple[str, ...] = ()
    shows: str = ""
    """"done" or "undone" where that is all that can be; empty where it shows neither."""
    since_ms: int = 0
    """Start of its controller; 0: it does not say."""
    since_by: str = ""
    """The source of that time."""
    error: str = ""
    """The reason why it could not be asked."""
