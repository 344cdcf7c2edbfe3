"""Queries about the state, and their answers: windows with filter, sort and paging on the engine's side.

Types only, so that a console imports them without loading the engine. `engine.reads.answers` evaluates them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.model.spec_parts import Autoscaling, BudgetSpec, ScalingSpec
from engine.model.specs import Affinity, CapacityType, QueueSpec, RunSpec, Spread, Toleration
from engine.model.twin_queries import StartForecast

Kind = Literal["workloads", "nodes", "queues", "reservations", "pools", "orders"]
Op = Literal["=", "!=", "~", "!~", "<", "<=", ">", ">="]
"""`~` is "contains, ignoring case"; for text `=` accepts `*` as "any characters"."""


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One condition. Terms on the same column with `=` or `~` are alternatives; everything else must all hold."""

    column: str
    op: Op
    value: str | int
    """Integers are in the column's own unit (milli-CPU, MiB, milli-GPU, milliseconds)."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: Kind
    columns: tuple[str, ...] = ()
    """Empty means the kind's default columns."""
    where: tuple[Term, ...] = ()
    sort: tuple[str, ...] = ()
    """Column names, `-` in front for descending. Ties always end in creation order."""
    offset: int = 0
    limit: int = 100
    from_row: int = 0
    """Only rows that are not older than this one, as the `next_row` of another page told it: whoever goes on from there
    meets every row once, whatever happens meanwhile. In creation order only."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A window. `rows[i][j]` is column `columns[j]`: text, integer, or null where it does not apply."""

    version: int
    at_ms: int
    columns: tuple[str, ...]
    rows: list[list[Any]]
    matched: int
    """Number of rows that satisfy the filter."""
    total: int
    """Number of rows of this kind."""
    next_row: int = -1
    """Row at which a page in creation order goes on; -1 at the end, and in any other order."""


class Column(msgspec.Struct, frozen=True):
    """The content of a column. `unit` decides how clients print it and how they read a filter's value."""

    name: str
    title: str
    unit: Literal["text", "count", "cpu", "memory", "gpu", "disk", "duration", "time", "permille", "money"]
    help: str


COLUMNS: dict[Kind, tuple[Column, ...]] = {
    "workloads": (
        Column("id", "ID", "text", "Unique id"),
        Column("name", "NAME", "text", "Name its owner gave it"),
        Column(
            "state", "STATE", "text", "queued, held, placed, running, finished, failed, cancelled, suspended, waiting"
        ),
        Column("queue", "QUEUE", "text", "Queue it was submitted to"),
        Column("priority", "PRIO", "count", "Integer priority; higher first"),
        Column("tenant", "TENANT", "text", "Who pays"),
        Column("team", "TEAM", "text", "Team inside the tenant"),
        Column("tasks", "TASKS", "count", "Tasks in all groups"),
        Column("cpu", "CPU", "cpu", "CPU asked for by all tasks"),
        Column("memory", "MEM", "memory", "Memory asked for by all tasks"),
        Column("gpu", "GPU", "gpu", "GPU asked for by all tasks"),
        Column("reason", "REASON", "text", "Why it waits: reason token"),
        Column("wait", "WAIT", "duration", "Time spent waiting so far, or before it started"),
        Column("age", "AGE", "duration", "Time since submission"),
        Column("run", "RUN", "duration", "Time running in the present attempt, or in the last"),
        Column("estimate", "EST", "duration", "Requested or estimated run time; 0 unknown"),
        Column("submitted", "SUBMITTED", "time", "When it was submitted"),
        Column("started", "STARTED", "time", "When the present attempt started"),
        Column("ended", "ENDED", "time", "When it ended"),
        Column("attempts", "TRIES", "count", "How often it was started"),
        Column("cost", "COST", "money", "Charged for all its attempts so far"),
        Column("wasted", "WASTED", "money", "Of that for work that was lost and had to be done again"),
        Column("array", "ARRAY", "text", "Array it is a member of"),
    ),
    "nodes": (
        Column("id", "ID", "text", "Unique id"),
        Column("state", "STATE", "text", "ready, cordoned, draining, down"),
        Column("pool", "POOL", "text", "Node pool"),
        Column("zone", "ZONE", "text", "Zone"),
        Column("block", "BLOCK", "text", "Block of racks"),
        Column("rack", "RACK", "text", "Rack"),
        Column("gpu_model", "MODEL", "text", "Device model"),
        Column("cpu", "CPU", "cpu", "CPU capacity"),
        Column("cpu_free", "CPU FREE", "cpu", "CPU not allocated"),
        Column("memory", "MEM", "memory", "Memory capacity"),
        Column("memory_free", "MEM FREE", "memory", "Memory not allocated"),
        Column("gpu", "GPU", "gpu", "Devices"),
        Column("gpu_free", "GPU FREE", "gpu", "Devices not allocated"),
        Column("use", "USE", "permille", "Allocated share of its scarcest resource"),
        Column("workloads", "WORK", "count", "Workloads with a task here"),
        Column("cpu_physical", "CPU PHYS", "cpu", "CPU, its own system's share among it"),
        Column("cpu_allocatable", "CPU ALLOC", "cpu", "CPU left for work; `cpu` is what requests may come to"),
        Column("memory_physical", "MEM PHYS", "memory", "Memory, its own system's share among it"),
        Column("memory_allocatable", "MEM ALLOC", "memory", "Memory left for work; requests may come to `memory`"),
        Column("overcommit", "OVER", "permille", "Requests it takes of what it has, of the resource with most"),
        Column("memory_used", "MEM USED", "memory", "Memory that work is known to use"),
    ),
    "queues": (
        Column("name", "QUEUE", "text", "Queue"),
        Column("parent", "COHORT", "text", "Cohort it belongs to: its parent in the queue tree"),
        Column("depth", "DEPTH", "count", "Levels below the root"),
        Column("state", "STATE", "text", "open, held or draining, by its own mode or that of a cohort above"),
        Column("queued", "QUEUED", "count", "Workloads waiting to be started"),
        Column("held", "HELD", "count", "Workloads on hold"),
        Column("waiting", "WAITING", "count", "Workloads waiting for others, for their time or for a retry"),
        Column("suspended", "SUSPENDED", "count", "Workloads taken off their nodes until resumed"),
        Column("running", "RUNNING", "count", "Workloads placed or running"),
        Column("oldest_wait", "OLDEST", "duration", "Longest wait among its queued workloads"),
        Column("gpu_used", "GPU USED", "gpu", "GPU charged"),
        Column("gpu_nominal", "GPU QUOTA", "gpu", "Nominal GPU quota; null means no limit"),
        Column("cpu_used", "CPU USED", "cpu", "CPU charged"),
        Column("cpu_nominal", "CPU QUOTA", "cpu", "Nominal CPU quota; null means no limit"),
        Column("memory_used", "MEM USED", "memory", "Memory charged"),
        Column("memory_nominal", "MEM QUOTA", "memory", "Nominal memory quota; null means no limit"),
        Column("gpu_borrowed", "GPU BORROWED", "gpu", "GPU drawn above its own quota and what is lent below it"),
        Column("gpu_lent", "GPU LENT", "gpu", "GPU of its idle quota that others use"),
        Column("cpu_borrowed", "CPU BORROWED", "cpu", "CPU drawn above its own quota and what is lent below it"),
        Column("cpu_lent", "CPU LENT", "cpu", "CPU of its idle quota that others use"),
        Column("share", "SHARE", "permille", "Dominant share of the cell above its quota, divided by its weight"),
        Column("past_share", "PAST", "permille", "The same of its average use over the past"),
        Column("burst", "BURST", "text", "idle, burst or cooldown; empty without a burst quota"),
        Column("burst_left", "LEFT", "duration", "Until the burst window or the cool-down ends"),
        Column("weight", "WEIGHT", "count", "Weight in fair sharing"),
        Column("burn", "BURN", "permille", "Late starts of the last hour, of those its objective allows"),
        Column("burn_6h", "BURN 6H", "permille", "The same of the last six hours"),
    ),
    "reservations": (
        Column("name", "RESERVATION", "text", "Advance reservation"),
        Column("state", "STATE", "text", "ahead before its start, active after it"),
        Column("start", "START", "time", "When its window starts"),
        Column("end", "END", "time", "When its window ends"),
        Column("nodes", "NODES", "count", "Nodes kept"),
        Column("queues", "QUEUES", "text", "Queues whose work may use the nodes, besides workloads that name it"),
    ),
    "pools": (
        Column("name", "POOL", "text", "Nodes of one machine type"),
        Column("nodes", "NODES", "count", "Nodes in any state"),
        Column("ready", "READY", "count", "Nodes that take work"),
        Column("use", "USE", "permille", "Allocated share of its GPU, or of its CPU where it has none"),
        Column("gpu_free", "GPU FREE", "gpu", "Devices not allocated, of nodes in any state"),
        Column("gpu", "GPU", "gpu", "Devices of its nodes in any state"),
        Column("down", "DOWN", "count", "Nodes that are lost or broken"),
        Column("booting", "BOOTING", "count", "Granted and paid for, not heard of yet"),
        Column("suspect", "SUSPECT", "count", "Not heard of for a while"),
        Column("ordered", "ORDERED", "count", "Asked for and not granted yet"),
        Column("least", "LEAST", "count", "Nodes it never shrinks below; null where it does not grow by itself"),
        Column("most", "MOST", "count", "Nodes it never grows above; null where it does not grow by itself"),
        Column("headroom", "HEADROOM", "count", "Whole nodes kept free"),
        Column(
            "priority",
            "PRIO",
            "count",
            "Pools of a higher one grow first, where that is what decides; null where it does not grow by itself",
        ),
        Column("price", "PRICE/H", "money", "Of one node, for an hour"),
        Column("spot", "SPOT", "text", "spot where its provider may take nodes back; else on-demand"),
        Column("backed_off", "LEFT ALONE UNTIL", "time", "It failed to deliver, and is not asked before"),
        Column("failures", "FAILURES", "count", "How often in a row it failed to deliver"),
        Column("region", "REGION", "text", "Where its new nodes stand"),
        Column("zones", "ZONES", "text", "Where its new nodes may stand, asked in turn"),
        Column("machine_type", "MACHINE", "text", "What its provider calls the machines"),
    ),
    "orders": (
        Column("id", "ORDER", "text", "Number of the order"),
        Column("state", "STATE", "text", "open, filled, cancelled or refused"),
        Column("pool", "POOL", "text", "Pool that its nodes are of"),
        Column("zone", "ZONE", "text", "Where they are asked for"),
        Column("nodes", "NODES", "count", "Nodes asked for"),
        Column("granted", "GRANTED", "count", "Nodes granted"),
        Column("booting", "BOOTING", "count", "Of them those that have not called yet"),
        Column("refused", "GIVEN BACK", "count", "Machines that were not as ordered"),
        Column("workload", "FOR", "text", "The gang that it is for; empty when for whoever comes"),
        Column("ordered", "ORDERED", "time", "When it was made"),
        Column("ready", "READY", "time", "When its nodes are likely to be ready, by the median of their boot time"),
        Column("expires", "EXPIRES", "time", "When what has not come by then is cancelled and given back"),
        Column("ended", "ENDED", "time", "When it was filled, refused or cancelled"),
    ),
}

DEFAULT_COLUMNS: dict[Kind, tuple[str, ...]] = {
    "workloads": ("id", "state", "queue", "priority", "tenant", "tasks", "gpu", "cpu", "wait", "run", "reason", "name"),
    "nodes": ("id", "state", "pool", "rack", "gpu_model", "gpu_free", "gpu", "cpu_free", "cpu", "use", "workloads"),
    "queues": (
        "name", "state", "queued", "held", "running", "oldest_wait", "gpu_used", "gpu_nominal", "gpu_borrowed",
        "gpu_lent", "cpu_used", "cpu_nominal", "share", "burst",
    ),
    "reservations": ("name", "state", "start", "end", "nodes", "queues"),
    "pools": (
        "name", "nodes", "ready", "down", "use", "gpu_free", "gpu", "booting", "ordered", "least", "most", "price",
        "spot", "backed_off", "failures",
    ),
    "orders": (
        "id", "state", "pool", "zone", "nodes", "granted", "booting", "refused", "workload", "ordered", "ready",
    ),
}  # fmt: skip


class Named(msgspec.Struct, frozen=True):
    """Something that has an id, found by the whole of it or by how it begins."""

    kind: str
    """workload, node, queue, pool, order, reservation; a level of the topology; or of what is beside the cell:
    proposal, runbook, draft, recommendation, run, record."""
    id: str
    detail: str = ""
    """Its state, or what it is about."""


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
    """A bound, no forecast: when there is room for it if run times are as estimated and nobody else takes the room. An
    AskStart forecasts the start. Null when unknown or not waiting."""
    placement: tuple[TaskPlace, ...]
    placement_total: int
    """Nodes it is on; `placement` shows at most 1,000 of them."""
    history: tuple[HistoryItem, ...]
    forecast: StartForecast | None = None
    """Its start as told at once; null where it does not wait, and in the past."""
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


class PoolOverview(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    gpu_model: str
    nodes: int
    ready: int
    cordoned: int
    draining: int
    down: int
    capacity: dict[str, int]
    used: dict[str, int]
    price_microusd_hour: int = 0
    """Price of one node."""
    booting: int = 0
    suspect: int = 0
    ordered: int = 0
    """Asked for and not granted yet."""
    spot: bool = False
    """Its provider may take its nodes back."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    cell: str
    policy: str
    states: dict[str, int]
    """Workload state label -> how many."""
    capacity: dict[str, int]
    used: dict[str, int]
    pools: tuple[PoolOverview, ...]
    blocked: tuple[tuple[str, int], ...]
    """Reason token -> queued workloads, most frequent first."""
    oldest_wait_ms: int
    oldest_waiting: str
    """Id of the longest-waiting queued workload, or empty."""
    wait_p50_ms: int
    wait_p95_ms: int
    """Over the last 1,000 workloads started."""
    started_last_hour: int
    finished_last_hour: int
    history: tuple[tuple[int, int, int], ...]
    """Up to 240 samples (time ms, GPU or else CPU use in permille, queued), oldest first, for sparklines."""
    fragmentation_ppm: int | None = None
    """Share of the free GPU that the work of this cell could not use (`FragmentationReport.ppm`)."""
    watched: int = 0
    """Nodes that agents call from."""
    suspect: int = 0
    """The watched nodes that are silent and not declared lost yet."""
    mass_suspicion: bool = False
    """True if there are so many that it may be the network: few are declared lost at a time."""
    cost_microusd_hour: int = 0
    """Cost of all nodes now."""
    idle_microusd_hour: int = 0
    """The part of that which no workload is charged for."""
    burns: tuple[Burn, ...] = ()
    """Burns of the queues that have an objective."""
    borrowed: dict[str, int] = {}
    """The part of `used` that queues draw above their quotas; nothing where there are no quotas."""
    in_burst: dict[str, int] = {}
    """The part of that which they draw above their borrowing limits too, for a while."""
    tenants: dict[str, dict[str, int]] = {}
    """Requests of placed and running work, by tenant; the empty name is for work without one."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the event tail."""

    version: int
    at_ms: int
    what: str
    subject: str
    detail: str = ""


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at_ms: int
    items: tuple[Change, ...] = ()
    missed: int = 0
    """Number of changes dropped from `items` because the reader was too far behind."""


class BurstReport(msgspec.Struct, frozen=True, kw_only=True):
    state: Literal["idle", "burst", "cooldown"]
    ends_in_ms: int = 0
    """Cell time until the window or the cool-down ends; 0 when idle."""
    excess: dict[str, int] = {}
    """Use above the ceiling: in a cool-down, what is reclaimed first."""


class VertexReport(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex of the queue tree. Keys of dictionaries are resource names for all pools together and `pool/resource`
    for one pool; what is zero is left out, but for `guaranteed`."""

    name: str
    parent: str
    weight: int
    used: dict[str, int]
    guaranteed: dict[str, int]
    """Its nominal quota and what the vertices below lend it. A key that is missing is not limited in this tree."""
    borrowed: dict[str, int]
    """Draw above that."""
    lent: dict[str, int]
    """Use of its idle quota by its siblings. They use up the quota of the cohort itself first. Use beyond that counts
    for all with idle quota, in proportion.
    """
    burst: BurstReport | None
    """None when it has no burst quota."""
    share_ppb: int
    """Weighted dominant share of what it draws now."""
    past_share_ppb: int
    """The same of its average draw over the past."""
    deserved: dict[str, int]
    """Its holding if the cell were divided afresh among all with demand."""


class DecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a workload went first: its place in the order beside that of the next one."""

    at_ms: int
    workload: str
    queue: str
    band: int
    shares_ppb: tuple[int, ...]
    """Weighted dominant shares from the root of its tree down to its queue, as they were before it started; empty when
    it had waited so long that shares did not count."""
    priority: int
    next_workload: str = ""
    """Empty when nothing else was a candidate."""
    next_queue: str = ""
    next_band: int = 0
    next_shares_ppb: tuple[int, ...] = ()
    next_priority: int = 0
    rule: Literal["alone", "band", "waited", "share", "priority", "age"]
    """The rule that decided between the two."""


class FairnessReport(msgspec.Struct, frozen=True, kw_only=True):
    """Each queue's present and deserved holding, and the reasons for the order of the last starts."""

    version: int
    now_ms: int
    half_life_ms: int
    """Past use counts half as much for every such time that has passed."""
    past_counts: bool
    """True if past use counts in the order; else it is only shown."""
    queues: tuple[VertexReport, ...]
    decisions: tuple[DecisionReport, ...]
    """The last starts, newest first. Not kept over a restart."""


class PoolFragmentation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    free_milli: int
    """Free milli-GPU on nodes that take anybody's work."""
    ppm: int | None
    """Fragmentation as for the cell; None when no task of the mix may go there."""


class ShapeFragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of tasks in the live mix, by what one of them asks for."""

    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    disk_mib: int
    pools: tuple[str, ...]
    """The pools it may use, in order of preference."""
    waiting: int
    running: int
    free_milli: int
    """Free in these pools."""
    usable_milli: int
    """The part of that on devices that such a task could be put on now."""
    unusable_ppm: int
    """Share of it that is lost to such a task."""
    fits: int
    """Such tasks that fit now, all together."""
    fits_in_one_piece: int
    """Such tasks that would fit if all that is free there were in one piece."""


class FragmentationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The free GPU that the work of this cell could not use, because it lies in the wrong pieces. The mix is the
    waiting and the running work, by number of tasks.
    """

    version: int
    now_ms: int
    ppm: int | None
    """Share of the free GPU that is lost to a task drawn from the mix, in parts per million, on average. None when no
    task that asks for GPU waits or runs."""
    published_ppm: int | None
    """The same by the rule of the paper it comes from, which counts tasks without GPU, and pools that a task may not
    use, as fragmentation too."""
    free_milli: int
    """Free milli-GPU on nodes that take anybody's work."""
    mix_tasks: int
    """Tasks in the mix, those without GPU too."""
    covered_tasks: int
    """Tasks that the figure is worked out from: of the most frequent kinds that ask for GPU."""
    pools: tuple[PoolFragmentation, ...]
    shapes: tuple[ShapeFragmentation, ...]
    """The most frequent kinds first."""


HeatLevel = Literal["zone", "block", "rack", "node"]


class HeatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of the cell to show as a map, and the level of its tiles."""

    level: HeatLevel
    """The level of one tile."""
    within: dict[str, str] = {}
    """zone, block or rack -> its name; empty names are places that are not known. Only nodes in all of them."""
    offset: int = 0
    limit: int = 2_000
    """Tiles of one answer."""


class HeatTile(msgspec.Struct, frozen=True, kw_only=True):
    """A domain of the topology, or one node."""

    name: str
    """Empty for nodes of which it is not known where they are."""
    zone: str
    block: str
    rack: str
    """Its location at wider levels than its own; its own name at its own level."""
    nodes: int
    states: dict[str, int]
    """Node state -> nodes, of those there are."""
    use_permille: int
    """Allocated share of its scarcest resource."""
    gpu_milli: int
    gpu_free_milli: int
    split_milli: int
    """The part of the free GPU on nodes with other devices, or other parts of a device, in use."""
    price_microusd_hour: int
    """Price of all its nodes."""
    spot: int
    """Nodes that their provider may take back."""
    pool: str = ""
    """Pool of a node."""


class HeatMap(msgspec.Struct, frozen=True, kw_only=True):
    """Tiles by place, in the order of their names; nodes in the order in which they came to their rack."""

    version: int
    now_ms: int
    level: HeatLevel
    within: dict[str, str]
    offset: int
    total: int
    """Tiles there are."""
    tiles: tuple[HeatTile, ...]
    dearest_microusd_hour: int
    """The highest price of one node in the cell."""


class ConsolidationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The aim of moves. With neither a workload nor nodes: the start of the most valuable workload that fragmentation
    holds up.
    """

    unblock: str = ""
    """Id of a waiting workload that is to start."""
    free_nodes: int = 0
    """The number of nodes of the pool that are to be empty, including those that already are."""
    pool: str = ""
    max_moves: int = 0
    """Most workloads to move; 0: as many as a plan ever moves."""
    least_ratio_permille: int = 500
    """Least benefit for its cost; 0 takes a plan at any cost."""


class NodeTasks(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    tasks: int


class Relocation(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that is stopped and goes on elsewhere in the same turn, whole."""

    id: str
    queue: str
    gpu_milli: int
    """GPU of all its tasks."""
    cpu_milli: int
    lost_ms: int
    """Work since its last checkpoint, which is done again; 0 where it writes one when asked."""
    pause_ms: int
    """Time without progress besides: to write that checkpoint, and to start anew."""
    was: tuple[NodeTasks, ...]
    to: tuple[NodeTasks, ...]
    nodes: tuple[str, ...]
    """The nodes it goes to, in the order in which they are filled."""


class Unblocked(msgspec.Struct, frozen=True, kw_only=True):
    """A workload that starts because of the moves."""

    id: str
    tasks: int
    gpu_milli: int
    """GPU of all its tasks."""
    cpu_milli: int
    waits_ms: int | None
    """Its minimum wait without the plan, if estimates hold and nobody else takes the room. None when that is
    not known.
    """
    gains_ms: int
    """Time for which its place would have been of no use to it otherwise: that wait, or its run time if shorter."""


class ConsolidationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Moves that were carried out on a fork of the cell, and what came of it there."""

    moves: tuple[Relocation, ...]
    unblocks: tuple[Unblocked, ...]
    frees: tuple[str, ...]
    """Nodes that are emptied."""
    unit: str
    """Unit of the device seconds below: gpu or cpu."""
    lost_s: int
    """Device-seconds, or core-seconds, of work that is done again."""
    restart_s: int
    """The same of time without progress."""
    gained_s: int
    """The same of what starts because of it, and of what is emptied for an hour."""
    ratio_permille: int
    """Benefit for its cost, each weighed by shares of the cell."""
    worth_it: bool
    """True if that is at least the requested ratio."""
    fragmentation_before_ppm: int | None
    fragmentation_after_ppm: int | None


class Consolidation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    version: int
    """State version of the cell that was forked."""
    now_ms: int
    request: ConsolidationRequest
    found: ConsolidationPlan | None
    why: str
    """The reason why there is no plan, or why the plan is not worth it; empty for one that is."""
    tried: tuple[str, ...] = ()
    """Earlier trials, each with its result."""


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, in nodes."""

    pool: str
    scaling: ScalingSpec | None
    """None: it does not grow by itself."""
    ready: int
    booting: int
    other: int
    """Cordoned, draining, down or not heard of."""
    ordered: int
    """Asked for and not granted yet."""
    asked: int
    """Nodes that running work fills and waiting work, as far as quota allows, would fill."""
    wanted: int
    """Nodes it should have in any case: the largest of its minimum, its target and its forecast."""
    set_for: tuple[tuple[int, int], ...] = ()
    """(cell ms, nodes) that people have set."""
    noted_hours: int = 0
    """Hours of demand that a forecast can go by."""


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    settings: Autoscaling
    pools: tuple[PoolSize, ...]
    forecast: str = ""
    """The source of the demand forecast, in words."""


GROUPINGS = ("tenant", "team", "queue", "pool")
TAG = "tag:"


class ShowbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    by: str = "tenant"
    """One of GROUPINGS, or `tag:KEY`."""
    since_ms: int = 0
    """Cell time; rounded down to the beginning of its day (UTC)."""
    until_ms: int | None = None
    """Cell time, rounded up to the end of its day; not given, or in the future: now."""


class ShowbackLine(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["group", "downtime", "idle"]
    """`downtime`: what no work used while no engine decided; there is such a line only where there was such a time."""
    name: str
    """Name of the group; empty for work that names none, for downtime and for idle."""
    microusd: int
    permille: int
    """Part of the whole, rounded down."""


class Showback(msgspec.Struct, frozen=True, kw_only=True):
    """Dearest first, then downtime, idle last. Lines add up to the total, to the last micro-USD."""

    version: int
    now_ms: int
    by: str
    since_ms: int
    until_ms: int
    total_microusd: int
    """Cost of all nodes in the window, rounded down."""
    lines: tuple[ShowbackLine, ...]


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    spec: BudgetSpec
    stage: str
    """`open`, `warned` or `spent`, in the present window."""
    spent_microusd: int
    rate_microusd_hour: int
    window_start_ms: int
    window_end_ms: int
    forecast_microusd: int
    """At the window's end, if the rate stays as it is."""
    spent_at_ms: int | None
    """Cell time at which all is spent at this rate; null when not within the window."""
    waiting: int
    """Queued workloads that wait for it."""


class BudgetReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    budgets: tuple[BudgetLine, ...]


class PoolGoodput(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of one pool over the whole life of the cell."""

    pool: str
    spot: bool
    nodes: int
    ending: int
    """Those of them with notice."""
    taken: int
    """Nodes that have had notice, those that are gone among them."""
    interruptions_ppm_hour: int
    """Expected of one node in an hour, in millionths: as the pool says, else as measured."""
    cost_microusd: int
    used_microusd: int
    """The part of that charged to work."""


class TenantGoodput(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    """Empty for work that names none."""
    finished: int
    charged_microusd: int
    wasted_microusd: int
    """The part of that for work that was lost, or whose workload failed or was cancelled."""
    per_finished_microusd: int | None
    """Charged, by finished workload; null before any has."""


class GoodputReport(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    now_ms: int
    cost_microusd: int
    """Cost of all nodes."""
    charged_microusd: int
    downtime_microusd: int = 0
    """Their cost without work while no engine decided; with `charged` and the idle part it is `cost`."""
    wasted_microusd: int
    goodput_permille: int
    finished: int
    per_finished_microusd: int | None
    """Cost of all nodes, idle ones too, by finished workload; null before any has."""
    turned: int
    """Workloads that have not ended and turned to on-demand machines because their slack ran out."""
    pools: tuple[PoolGoodput, ...]
    tenants: tuple[TenantGoodput, ...]
    """Dearest first."""
