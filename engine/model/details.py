"""Answers about one thing: a workload and why it waits, a node, a queue and its objective.

Types only, so that a console imports them without loading the engine. `engine.reads.answers` makes them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.model.specs import Affinity, CapacityType, QueueSpec, RunSpec, Spread, Toleration


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why a workload waits. The first of a list is the primary one."""

    token: str
    """OnHold, Suspended, WaitingForDependency, DependencyNeverSatisfied, WaitingForStartTime, Backoff; of a queued
    one WaitingForPreempted, QueueHeld, BehindInQueue, ArrayLimit, BudgetHold, WaitingForReservation, NoMatchingNodes,
    WaitingForQuota, InsufficientCapacity, Fragmented, NoDomainFits, AwaitingEvaluation. After InsufficientCapacity or
    Fragmented, about nodes that have room and yet are not for it: NodeLabels, NodeTaints, KeptApart, NotNear; and where
    pools grow, WaitingForNodes. After WaitingForQuota, for each rule that bars preemption, PreemptionBarred. Last, of
    one that its deadline keeps from spot machines, TurnedOnDemand."""
    text: str
    """A sentence with the numbers: asked, free, by whom."""
    unblock: str = ""
    """The change that would open this gate, where it is known. Others may be closed behind it."""


class Counterfactual(msgspec.Struct, frozen=True, kw_only=True):
    """One change after which a waiting workload really started, on a fork of the cell."""

    kind: str
    """The kind of change: release, resume, queue, array, dependency, start_time, ahead, policy, estimate, promise,
    reservation, returned, quota, uncordon, consolidate, capacity, topology, tasks; nothing, when the next scheduling
    cycle is enough.
    """
    text: str
    """The change in words, exactly as it was applied."""
    edits: tuple[dict[str, Any], ...]
    """The commands that were applied together, in one turn. Fields are those of `engine.model.commands`."""
    starts: str
    """Id of what starts: the workload, or the copy that the edits submit in its place."""
    smallest: bool
    """True if one less of the same (a task, a slot, a node) was tried too, and was not enough."""
    verified: bool = True


class Unblocking(msgspec.Struct, frozen=True, kw_only=True):
    """The change found that would let a workload start now."""

    version: int
    """State version of the cell that was forked."""
    found: Counterfactual | None
    """None: unknown. What was tried did not start it."""
    tried: tuple[str, ...]
    """Earlier trials, each with its result."""
    forks: int
    """Forks of the cell that were made: one without any change, one for each that was tried."""
    ahead: int = 0
    """Workloads that go before it in its queue and wait for quota or room by the same rule."""
    line: Counterfactual | None = None
    """The change after which all of those start too, each in its turn. None: unknown, or nothing is ahead."""


class HistoryItem(msgspec.Struct, frozen=True, kw_only=True):
    """One transition in the life of a workload."""

    at_ms: int
    what: str
    """One of `engine.state.workloads.TRANSITIONS`."""
    detail: str = ""


class TaskPlace(msgspec.Struct, frozen=True, kw_only=True):
    """`tasks` members of `group` on one node."""

    group: str
    node: str
    rack: str
    tasks: int
    devices: tuple[int, ...] = ()
    """Indexes of the devices used there."""
    rank: int = 0
    """Rank of the first of these tasks; the others follow. Ranks go through the groups in order, and in each along the
    network: by region, zone, block, rack and NVLink domain.
    """


class TopologyDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The requested and the actual closeness of a workload's tasks."""

    required: str
    """Level; empty when it asked for none."""
    preferred: str
    within: str
    """The narrowest level of which one domain holds all of it: `node`, `nvlink`, …, `region`; `cell` when it spans
    regions, or nodes of which nothing is known; empty when it is on no node."""
    domains: dict[str, int] = {}
    """Level -> how many of its domains it uses, at levels where its nodes have names."""
    ring_cost: int = 0
    """Levels that messages climb when each rank sends to the next and the last to the first: 0 within a node, 1 within
    an NVLink domain, 2 a rack, 3 a block, 4 a zone, 5 a region, 6 beyond."""


class GroupDetail(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    count: int
    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    disk_mib: int
    gpu_models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    gpu_memory_mib: int = 0
    mig: str = ""
    node_labels: dict[str, tuple[str, ...]] = {}
    avoid_labels: dict[str, tuple[str, ...]] = {}
    tolerations: tuple[Toleration, ...] = ()
    spread: Spread | None = None
    capacity_type: CapacityType = ""


class DependencyDetail(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    on: str
    """finished, failed, ended, started: what has to happen to it"""
    state: str
    """State of the other workload."""
    never: bool
    """True if it can no longer be met."""


class ServiceDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A service that has not ended."""

    least: int
    most: int
    wanted: int
    """Replicas that it should have now."""
    target_permille: int
    use_permille: int | None
    """CPU in use, of what its replicas ask for; null where nothing is known."""


class WorkloadDetail(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    id: str
    name: str
    state: str
    since_ms: int
    queue: str
    priority_class: str
    priority: int
    tenant: str
    team: str
    tags: dict[str, str]
    owner: str = ""
    """Subject that submitted it, as the door or the scheduler that decides knew them; empty: not known."""
    groups: tuple[GroupDetail, ...]
    estimate_ms: int
    submitted_ms: int
    started_ms: int | None
    ended_ms: int | None
    attempts: int
    checkpoint_interval_ms: int
    kept_ms: int
    """Work saved by the checkpoints of earlier attempts."""
    loss_ms: int = 0
    """Work that stopping it now would lose; 0 where it writes a checkpoint when asked."""
    position: int | None
    """1 = first of its queue; null when it does not wait."""
    reasons: tuple[Reason, ...]
    """Empty unless it waits."""
    start_not_before_ms: int | None
    """A bound, no forecast: when there is room for it if run times are as estimated and nobody else takes the room.
    `StartForecast` and AskStart foretell the start. Null when unknown or not waiting."""
    placement: tuple[TaskPlace, ...]
    placement_total: int
    """Nodes it is on; `placement` shows at most 1,000 of them."""
    history: tuple[HistoryItem, ...]
    promised_start_ms: int | None = None
    """Cell time at which the policy has promised it a start; null without a promise."""
    flags: tuple[Literal["borrowed", "burst", "backfilled"], ...] = ()
    """Terms under which the present attempt was allowed to start."""
    burst_ends_ms: int | None = None
    """While its queue bursts: when the window ends, after which work in a burst is the first to be stopped."""
    making_room_for: str = ""
    """Id of the workload for which it writes a checkpoint and then stops."""
    tasks_placed: int = 0
    tasks_total: int = 0
    waits_for: tuple[DependencyDetail, ...] = ()
    """Dependencies that are not met yet."""
    needed_by: tuple[DependencyDetail, ...] = ()
    """Workloads that wait for it: id and state, at most 100 of them."""
    needed_by_total: int = 0
    """Number of workloads that wait for it; at most 10,000 are counted."""
    deadline_ms: int | None = None
    """Cell time by which it should have ended."""
    failures: int = 0
    """Attempts in which its work failed."""
    retries: int = 0
    """Number of those that are followed by another attempt."""
    array: str = ""
    """Id of the array it is a member of."""
    topology: TopologyDetail | None = None
    """For a workload that requests a level, or is on several nodes."""
    near: tuple[Affinity, ...] = ()
    apart: tuple[Affinity, ...] = ()
    data: tuple[str, ...] = ()
    qos: str = "guaranteed"
    service: ServiceDetail | None = None
    cost_microusd: int = 0
    """Charged for all its attempts so far."""
    wasted_microusd: int = 0
    """The part of that for work that was lost and had to be done again."""
    rate_microusd_hour: int = 0
    """Its present charge."""
    spending_approved: bool = False
    """Somebody let it start whatever is left of budgets that ask for approval."""
    run: RunSpec | None = None
    """The command of its tasks, if it has one. The values of its environment are left empty."""
    rerun: str = ""
    """What is done if Slurm no longer has it (`WorkloadSpec`); of jobs that were not submitted through Muster empty."""


class MigInstance(msgspec.Struct, frozen=True, kw_only=True):
    profile: str
    used: bool


class NodeDetail(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    id: str
    state: str
    since_ms: int
    pool: str
    zone: str
    block: str
    rack: str
    gpu_model: str
    capacity: dict[str, int]
    free: dict[str, int]
    devices: tuple[int, ...]
    """Free milli-GPU of each device."""
    workloads: tuple[tuple[str, int], ...]
    """Ids and task counts of what is bound here."""
    region: str = ""
    nvlink: str = ""
    labels: dict[str, str] = {}
    """Labels of its pool and its own."""
    taints: tuple[str, ...] = ()
    """`key=value:effect`; the value is left out where it is empty."""
    nvlink_group: int = 0
    """Its devices are linked in sets of so many, in order; 0: all of them are."""
    profiles: tuple[str, ...] = ()
    """MIG profiles that its devices can be partitioned into; empty where they never are."""
    instances: tuple[tuple[MigInstance, ...], ...] = ()
    """MIG instances of each device; none of one that is not partitioned now. Empty without `profiles`."""
    note: str = ""
    """The reason why the node is kept out, where one is known (`engine.state.machines`)."""
    ends_ms: int | None = None
    """Cell time at which its provider takes it back, when it has given notice."""
    physical: dict[str, int] = {}
    """Its full size, the share of its own system included."""
    allocatable: dict[str, int] = {}
    """The rest for work. `capacity` is the upper bound of requests, which is more where it is overcommitted."""
    overcommit: dict[str, int] = {}
    """Resource name -> permille of `allocatable` that requests may come to, where that is more than it has."""
    in_use: dict[str, int] = {}
    """CPU and memory that work here is known to use."""


FULL_BURN = 1000
"""Burn, in thousandths, from which on an objective is missed."""


class BurnWindow(msgspec.Struct, frozen=True, kw_only=True):
    """One window of an objective: the starts in it, and the late ones."""

    started: int
    """Starts in the window."""
    late: int
    """The starts that came later than the objective wants."""
    waiting: int
    """Workloads that have waited longer than that already; they count as late too."""
    burn_permille: int | None
    """Share of late ones, of the share that may be late: at 1000 just as much as is allowed. None without any work."""


class Burn(msgspec.Struct, frozen=True, kw_only=True):
    """The speed at which a queue uses up the late starts that its objective allows."""

    queue: str
    within_ms: int
    objective_permille: int
    """The share of its work that should start within that time."""
    hour: BurnWindow
    six_hours: BurnWindow

    @property
    def is_missed_lately(self) -> bool:
        """More starts of the last hour were late than may be."""
        return (self.hour.burn_permille or 0) > FULL_BURN

    @property
    def is_missed(self) -> bool:
        """So were those of the last six hours: somebody should be paged."""
        return self.is_missed_lately and (self.six_hours.burn_permille or 0) > FULL_BURN


class QueueDetail(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    name: str
    mode: str
    """Its own mode: open, held or draining."""
    closed_by: str
    """The nearest queue above that is not open; empty when all are."""
    spec: QueueSpec
    leaves: tuple[str, ...]
    """The queues at or below it that take workloads."""
    over: dict[str, int]
    """The excess of it, or else of the nearest queue above, over its limit, by resource or `pool/resource`. Empty
    unless a quota was reduced or a burst is over.
    """
    burn: Burn | None = None
    """The burn of its objective; None where it has none."""
