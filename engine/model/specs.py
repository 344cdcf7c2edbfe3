"""Specs: the requests of people and traces, immutable and validated on entry; device models; quantities and moments in
words.

Units everywhere: milli-CPU, MiB, milli-GPU (1000 = one whole device), milliseconds, micro-USD. Integers only.
"""

from __future__ import annotations

import re
from collections.abc import Sized
from enum import IntEnum
from typing import Literal

from engine.model.errors import SpecError
from engine.model.quantities import with_unit
from engine.model.spec_parts import HOUR_MS as HOUR_MS
from engine.model.spec_parts import ID_PATTERN as ID_PATTERN
from engine.model.spec_parts import MAX_QUANTITY as MAX_QUANTITY
from engine.model.spec_parts import OVERCOMMITTED, check_overcommit, check_run, check_scaling, check_service
from engine.model.spec_parts import Autoscaling as Autoscaling
from engine.model.spec_parts import BudgetSpec as BudgetSpec
from engine.model.spec_parts import HealthSettings as HealthSettings
from engine.model.spec_parts import Pressure as Pressure
from engine.model.spec_parts import Qos as Qos
from engine.model.spec_parts import RunSpec as RunSpec
from engine.model.spec_parts import ScalingSpec as ScalingSpec
from engine.model.spec_parts import ServiceSpec as ServiceSpec
from engine.model.spec_parts import Spec as Spec
from engine.model.spec_parts import check_budget as check_budget
from engine.model.spec_parts import check_id as check_id
from engine.model.spec_parts import check_price as check_price
from engine.model.spec_parts import check_quantity as check_quantity

RESOURCES = ("cpu_milli", "memory_mib", "gpu_milli", "disk_mib")
"""Names of the resource vector, in the order every array and tuple uses."""

MAX_TASKS = 1_000_000
MAX_NAME = 1024


class Resources(Spec, frozen=True, kw_only=True):
    """A resource vector. Zero means "none asked for" in a request and "has none" in a capacity."""

    cpu_milli: int = 0
    memory_mib: int = 0
    gpu_milli: int = 0
    disk_mib: int = 0

    def vector(self) -> tuple[int, int, int, int]:
        """The quantities in the order of RESOURCES."""
        return (self.cpu_milli, self.memory_mib, self.gpu_milli, self.disk_mib)


LEVELS = ("region", "zone", "block", "rack", "nvlink", "node")
"""Levels of the topology tree, widest first. `nvlink` is a domain of nodes that share an NVLink fabric."""
Level = Literal["region", "zone", "block", "rack", "nvlink", "node"]


class Taint(Spec, frozen=True, kw_only=True):
    """Keeps work away that does not tolerate it."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule"] = "NoSchedule"

    @property
    def label(self) -> str:
        """`key=value:effect`; the value is left out where it is empty."""
        return f"{self.key}{'=' if self.value else ''}{self.value}:{self.effect}"


class Toleration(Spec, frozen=True, kw_only=True):
    """Tolerates taints of that key: those of that value, or all of them when no value is given."""

    key: str
    value: str = ""

    @property
    def label(self) -> str:
        """`key=value`, or `key` for all values."""
        return f"{self.key}={self.value}" if self.value else self.key


PROFILES: dict[str, dict[str, int]] = {
    "batch": {"pack": 100, "balance": 30, "price": 50},
    "service": {"spread": 100, "balance": 50, "spot_risk": 100},
    "gpu": {"gpu_fragmentation": 100, "topology": 50, "best_fit": 30},
    "cheap": {"price": 100, "spot_risk": 10, "pack": 30},
}
"""Names for weights of scores (`engine.capacity.scores`), which people may give where a placement is asked for."""


class PoolSpec(Spec, frozen=True, kw_only=True):
    """Nodes of one machine type."""

    name: str
    capacity: Resources
    """Allocatable quantities of one node. `gpu_milli` must be 1000 x the number of devices."""
    gpu_model: str = ""
    machine_type: str = ""
    price_microusd_hour: int = 0
    spot: bool = False
    labels: dict[str, str] = {}
    """Labels of each of its nodes, besides the node's own."""
    taints: tuple[Taint, ...] = ()
    gpu_memory_mib: int = 0
    """Memory of one device; 0: by the model, where it is known."""
    nvlink_group: int = 0
    """Devices of a node are linked in sets of so many, in order; 0: all of them are."""
    mig: bool = False
    """Devices may be partitioned into MIG instances while they are idle."""
    placement: dict[str, int] = {}
    """Score name -> weight (`engine.capacity.scores`) for work that goes here and whose queue says nothing. Empty:
    pack."""
    scaling: ScalingSpec | None = None
    """The rules of the pool's growth. None: its nodes are only those that people add."""
    reserved: Resources = Resources()
    """The share of a node's own system."""
    overcommit: dict[str, int] = {}
    """Resource name -> permille of the capacity that requests may come to; 1000 where it is not named. Guaranteed work
    does not go to a pool where it is more (`engine.model.spec_parts`)."""

    @property
    def overcommitted(self) -> bool:
        return bool(self.overcommit) and any(permille > 1000 for permille in self.overcommit.values())

    @property
    def offered(self) -> Resources:
        """The upper bound of requests on one node."""
        if not self.overcommit:
            return self.capacity
        each = zip(RESOURCES, self.capacity.vector(), strict=True)
        return Resources(**{name: have * self.overcommit.get(name, 1000) // 1000 for name, have in each})

    @property
    def physical_memory_mib(self) -> int:
        """Memory of one node, its own system's among it."""
        return self.capacity.memory_mib + self.reserved.memory_mib


class NodeSpec(Spec, frozen=True, kw_only=True):
    """One node. Empty topology names mean "unknown": the node is alone in that level."""

    id: str
    pool: str
    region: str = ""
    zone: str = ""
    block: str = ""
    rack: str = ""
    nvlink: str = ""
    """Domain of nodes on one NVLink fabric."""
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()


class FlavorQuota(Spec, frozen=True, kw_only=True):
    """A queue's quota of one pool. Dictionaries are resource name -> quantity, as in QueueSpec."""

    pool: str
    nominal: dict[str, int] = {}
    borrowing_limit: dict[str, int] = {}
    lending_limit: dict[str, int] = {}


class BurstSpec(Spec, frozen=True, kw_only=True):
    """Use above nominal and borrowing limit, for a while. The window starts when use first passes them; after it the
    excess is the first to be reclaimed, and new excess is refused until the cool-down has passed too."""

    limit: dict[str, int]
    """Resource name -> most the queue may use in all while it bursts."""
    window_ms: int = 4 * HOUR_MS
    cooldown_ms: int = HOUR_MS


class KueueRules(Spec, frozen=True, kw_only=True):
    """What a queue says about preemption and flavors where the policy is `kueue`, beside `reclaim` and `order`; not
    heeded elsewhere. Names and meaning are Kueue's."""

    within_queue: Literal["never", "lower_priority", "lower_or_newer_equal"] = "never"
    """The work of its own that its work may preempt."""
    borrow_within_cohort: Literal["never", "lower_priority"] = "never"
    """The work of other queues that may be preempted although the queue borrows then."""
    borrow_max_priority: int | None = None
    """Priority up to which it may."""
    when_can_borrow: Literal["stop", "try_next"] = "stop"
    """Whether the search for a pool ends with one in which it fits by borrowing."""
    when_can_preempt: Literal["stop", "try_next"] = "try_next"
    """Whether it ends with one in which it fits by preemption."""


class QueueSpec(Spec, frozen=True, kw_only=True):
    """A vertex of the queue tree; an inner vertex is a cohort. Leaves take workloads.

    Quota, as in Kueue: a vertex's nominal quota is its own; what its queue does not use the cohort may borrow, up to
    the lender's lending limit and the borrower's borrowing limit. A cohort's own nominal is shared by all below it, on
    top of theirs. A resource that no vertex of a tree names is not limited in that tree; elsewhere a vertex that does
    not name it has a nominal quota of 0 and may borrow.
    """

    name: str
    parent: str = ""
    nominal: dict[str, int] = {}
    """Resource name -> quantity, in all pools together."""
    borrowing_limit: dict[str, int] = {}
    """Most that may be used above nominal; a resource that is not named has no limit but what others lend."""
    lending_limit: dict[str, int] = {}
    """Most of the unused nominal that others may borrow; a resource that is not named is lent whole."""
    flavors: tuple[FlavorQuota, ...] = ()
    """Quotas by pool, in order of preference, on top of the totals above. Empty: any pool, no preference."""
    weight: int = 1
    """Share it deserves, relative to its siblings."""
    order: Literal["best_effort", "strict_fifo", "fair"] = "best_effort"
    """Within the queue: pass over what cannot start; never start before what is ahead; or, passing over what cannot
    start, the tenant that uses least goes first."""
    burst: BurstSpec | None = None
    reclaim: Literal["never", "lower_priority", "any"] = "any"
    """The queues above their quota whose work it may preempt to get back its own nominal quota."""
    min_runtime_ms: int = 0
    """Its work is not preempted before it has run this long, expired burst excepted."""
    disruptions: int = -1
    """Most preemptions of its workloads within `disruption_window_ms`; -1 is no limit."""
    disruption_window_ms: int = HOUR_MS
    placement: dict[str, int] = {}
    """Score name -> weight (`engine.capacity.scores`) for choosing among nodes that fit. Empty: as the pool says, or
    pack."""
    start_within_ms: int = 0
    """Objective: its work, and that of the queues below, starts within this time after it could. 0: none. Decisions do
    not go by it; it is measured (`engine.state.objectives`)."""
    objective_permille: int = 950
    """The share of its work that should start in that time."""
    kueue: KueueRules = KueueRules()


class PriorityClassSpec(Spec, frozen=True, kw_only=True):
    """A named integer priority. Higher runs first. Whom it may preempt and whether it can be are set independently."""

    name: str
    value: int
    preemption: Literal["never", "lower"] = "never"
    """`lower`: it may preempt work of lower priority in its own queue."""
    preemptible: bool = True
    band: int | None = None
    """Workloads of a higher band go first in the whole cell; within a band the queue with the smaller share goes
    first, and priority orders only within a queue. Not given: the value, so that priority comes before share."""


Rerun = Literal["never", "if-unstarted", "always"]
"""What is done with work that was given to Slurm and is no longer there: a person is asked; it is sent again only where
it is shown that it had not started; or it is sent again, and may run twice."""


class Settings(Spec, frozen=True, kw_only=True):
    """The cell's rules besides its policy. Times in milliseconds; 0 switches a rule off."""

    fair_half_life_ms: int = 0
    """Shares count past use too, halved in weight every so often. 0: shares are of what is in use now."""
    starve_after_ms: int = 0
    """Wait after which work goes before others of its band, whatever its queue's share."""
    preempt_after_ms: int = 30_000
    """Preempt only what would otherwise keep the preemptor waiting longer than this, by the estimates."""
    preempt_across: bool = False
    """True if a class that may preempt lower ones does so in all queues, as Slurm's partitions and QOS do; else in its
    own queue alone.
    """
    try_timeout_ms: int = 30_000
    """Executors must have confirmed every task of a placed gang by then, or all of it is given back."""
    reservation_depth: int = 100
    """Conservative backfill: how many waiting workloads are promised a start."""
    autoscaling: Autoscaling = Autoscaling()
    health: HealthSettings = HealthSettings()
    pressure: Pressure = Pressure()
    decided_by: Literal["muster", "slurm", "kubernetes"] = "muster"
    """The scheduler that admits, places and ends work. Where it is another one, the cell is a mirror of it
    (`engine.external.observed_changes`), and only forks decide, as a model of it. Set when the cell is made.
    """
    executor: Literal["simulated", "process"] = "simulated"
    """The runner of tasks: none, in simulated time; or this machine, as real processes. Set when the cell is made."""
    rightsizing: Literal["off", "initial"] = "off"
    """`initial`: a registered recommender may change the requests of new work before it starts
    (`engine.admission.workload_changes`).
    """
    rerun: Rerun = "if-unstarted"
    """In a cell that Slurm decides: of work that says nothing, in a queue that says nothing. By default nothing runs
    twice because of Muster, and what had plainly not started needs nobody to get up for it."""
    queue_rerun: dict[str, Rerun] = {}
    """Queue -> the same of its work. Slurm's partitions have no such word of their own."""


class CellSpec(Spec, frozen=True, kw_only=True):
    """The definition of a cell before any work is submitted."""

    name: str = "cell"
    pools: tuple[PoolSpec, ...] = ()
    nodes: tuple[NodeSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    priority_classes: tuple[PriorityClassSpec, ...] = ()
    settings: Settings = Settings()
    budgets: tuple[BudgetSpec, ...] = ()


class TopologyRequest(Spec, frozen=True, kw_only=True):
    """All tasks of a workload in one domain of a level: it must be (`required`), or it should be, widening level by
    level where it cannot (`preferred`). Both: within the required one, as close as the preferred one."""

    required: Level | None = None
    preferred: Level | None = None


class Spread(Spec, frozen=True, kw_only=True):
    """Tasks of a group evenly over the domains of a level: none is placed in a domain that then has more than
    `max_skew` above another that could take one. What is placed stays when the others change."""

    level: Level
    max_skew: int = 1


class Affinity(Spec, frozen=True, kw_only=True):
    """The domain of a level where work that carries all these tags is."""

    tags: dict[str, str]
    level: Level = "node"

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.tags.items())), self.level))


CapacityType = Literal["", "on-demand", "spot", "spot-first"]
SPOT_TYPES = ("spot", "spot-first")
"""Capacity types of which no task begins on an on-demand machine."""
FLEXIBLE_TYPES = ("", "spot-first")
"""Capacity types that a deadline may turn to "on-demand"."""


class TaskGroup(Spec, frozen=True, kw_only=True):
    """Identical members of a gang. `request` is for one task; all `count` start together or none does, unless a
    smaller `min_count` is enough."""

    name: str = "main"
    count: int = 1
    min_count: int = 0
    """Fewest tasks it may start with; 0 means `count`."""
    request: Resources
    gpu_models: tuple[str, ...] = ()
    """Acceptable device models; empty means any."""
    pools: tuple[str, ...] = ()
    """Acceptable pools; empty means any."""
    gpu_memory_mib: int = 0
    """Least memory of a device."""
    mig: str = ""
    """MIG profile that each task gets one instance of, such as `1g.10gb`."""
    node_labels: dict[str, tuple[str, ...]] = {}
    """Label -> acceptable values; a node must match all. A value of `*` accepts any."""
    avoid_labels: dict[str, tuple[str, ...]] = {}
    """Label -> values that a node must not have."""
    tolerations: tuple[Toleration, ...] = ()
    spread: Spread | None = None
    capacity_type: CapacityType = ""
    """Type of the pools it may use; empty: any. `spot-first` waits for spot machines, as `spot` does. Unless it is
    `spot`, work with a deadline turns to on-demand machines when its slack runs out (`engine.state.timers`).
    """
    on_demand: int = 0
    """Number of its tasks that are always on demand. On submission they become a group of their own."""
    limit: Resources | None = None
    """Most CPU and memory that one task of burstable work may use; 0: no limit. None: as much as the node has."""

    def __hash__(self) -> int:
        # By what tells groups apart as a rule: dictionaries have no hash of their own.
        return hash((self.request, self.count, self.min_count, self.gpu_models, self.pools))


class Dependency(Spec, frozen=True, kw_only=True):
    """Wait for another workload. `finished` wants success (Slurm: afterok), `failed` its failure or cancellation
    (afternotok), `ended` either (afterany), `started` its first start (after)."""

    id: str
    on: Literal["finished", "failed", "ended", "started"] = "finished"


class ArraySpec(Spec, frozen=True, kw_only=True):
    """Many workloads of one description: their ids are `<id>/<index>`."""

    first: int = 0
    last: int
    step: int = 1
    max_running: int = 0
    """Most that may be placed or running at once; 0 is no limit."""


class ReservationSpec(Spec, frozen=True, kw_only=True):
    """An advance reservation: nodes kept for named queues or workloads during a window of cell time. Work that may run
    past its start does not begin on those nodes; work that still runs there at the start is not stopped."""

    name: str
    nodes: tuple[str, ...]
    start_ms: int
    end_ms: int
    queues: tuple[str, ...] = ()
    """Queues whose work may use the nodes during the window, besides workloads that name the reservation."""


class WorkloadSpec(Spec, frozen=True, kw_only=True):
    """The unit of admission: one or more task groups, placed all-or-nothing (a gang)."""

    id: str
    queue: str
    groups: tuple[TaskGroup, ...]
    name: str = ""
    priority_class: str = "normal"
    tenant: str = ""
    team: str = ""
    tags: dict[str, str] = {}
    estimate_ms: int = 0
    """Requested or estimated run time; 0 means unknown, which backfill treats as unbounded."""
    checkpoint_interval_ms: int = 0
    """Work is kept up to the last multiple of this; 0 means nothing is kept when stopped."""
    checkpoint_cost_ms: int = 0
    """Time it takes to write a checkpoint when asked; preemption then asks first and loses no work. 0: cannot."""
    restore_ms: int = 0
    """Time it takes to read a checkpoint back when it goes on elsewhere, before any new work is done."""
    elastic: bool = False
    """May grow up to `count` tasks of each group while it runs, and shrink to `min_count` for others. The estimate
    is for all tasks; with fewer it takes longer in proportion."""
    hot_swap: bool = False
    """Members on lost nodes are replaced while the others stay where they are, if there is room that its topology
    allows; all go on from the last checkpoint. Else, and without it, the whole gang waits for a start again."""
    after: tuple[Dependency, ...] = ()
    array: ArraySpec | None = None
    not_before_ms: int = 0
    """Cell time before which it does not start."""
    deadline_ms: int = 0
    """Cell time by which it should have ended: fails when it waits until its estimate no longer fits. 0: none. What
    runs is never stopped for it."""
    max_runtime_ms: int = 0
    """Stopped as failed when an attempt has run this long; 0: never."""
    retries: int = 0
    """Number of new starts after failures. Preemptions, lost nodes and other returns to the queue do not count."""
    backoff_ms: int = 10_000
    """Wait before the first retry; doubles each time, up to an hour, with up to a tenth added at random."""
    reservation: str = ""
    """Advance reservation whose nodes it may use, and uses alone."""
    topology: TopologyRequest | None = None
    near: tuple[Affinity, ...] = ()
    """Must be where such other work is; before there is any, it may go anywhere."""
    apart: tuple[Affinity, ...] = ()
    """Must not be where such other work is (its own tasks do not count), nor such work where it is."""
    data: tuple[str, ...] = ()
    """Zones that hold its data, for the score `data`."""
    simulated_runtime_ms: int = 0
    """Run time the simulated executor gives it; 0 lets the executor draw one from the estimate."""
    simulated_failures: int = 0
    """Number of attempts that fail half-way in the simulated executor."""
    held: bool = False
    qos: Qos = "guaranteed"
    """Guaranteed work is only on nodes that are not overcommitted. Best effort asks for room, and is promised none."""
    service: ServiceSpec | None = None
    """For a service: it has no end, and as many tasks as its load needs. `count` and `min_count` of its group are set
    by this.
    """
    simulated_usage_permille: int = 0
    """CPU and memory that its tasks use in the simulated executor, as a part of their request; 0: nobody knows."""
    run: RunSpec | None = None
    """The command of its tasks where they run for real."""
    rerun: Rerun | Literal[""] = ""
    """In a cell that Slurm decides; empty: as its queue says, or the cell."""


class WorkloadState(IntEnum):
    """Life of a workload. Names in lower case are what filters, the shell and the console show."""

    QUEUED = 0
    HELD = 1
    PLACED = 2
    """Bound to nodes and charged; the executor has not yet said that it runs."""
    RUNNING = 3
    FINISHED = 4
    FAILED = 5
    CANCELLED = 6
    SUSPENDED = 7
    """Taken off its nodes by a person, its work kept, until resumed."""
    WAITING = 8
    """It waits for other workloads, for its start time, or for a retry."""

    @property
    def terminal(self) -> bool:
        return WorkloadState.FINISHED <= self <= WorkloadState.CANCELLED

    @property
    def label(self) -> str:
        return self.name.lower()


class NodeState(IntEnum):
    """The state of a node. Only READY nodes take new work."""

    READY = 0
    CORDONED = 1
    DRAINING = 2
    """Cordoned, and its work is being moved away."""
    DOWN = 3
    REMOVED = 4
    """Gone for good: in no total, not shown, never back. Its id may be given to a new node."""
    BOOTING = 5
    """Granted by a provider and paid for; it has not called yet."""
    SUSPECT = 6
    """Silent for a while. Its work is assumed to go on."""

    @property
    def label(self) -> str:
        return self.name.lower()


class QueueMode(IntEnum):
    """The work that a queue allows."""

    OPEN = 0
    HELD = 1
    """Takes workloads, starts none."""
    DRAINING = 2
    """Takes no new workloads and starts none; running work went back to its queue."""

    @property
    def label(self) -> str:
        return self.name.lower()


Policy = Literal["fcfs", "easy", "easy-sjbf", "conservative", "kueue"]
"""`kueue` is for mirrors of a cell that Kueue decides: `engine.scheduling.kueue_cycles`."""


def check_resources(resources: Resources, where: str) -> None:
    for name, value in zip(RESOURCES, resources.vector(), strict=True):
        check_quantity(value, f"{where}.{name}")
    gpu = resources.gpu_milli
    if gpu > 1000 and gpu % 1000:
        raise SpecError(
            f"{where}.gpu_milli",
            f"{with_unit('gpu_milli', gpu)} is neither a share of one GPU nor whole GPUs",
            "Give at most 1 for a share, such as 0.5, or a whole number such as 2",
        )


MAX_LABELS = 64
"""Labels or taints of one node; conditions, tolerations or bonds of one request; values of one condition."""


def check_labels(labels: dict[str, str], where: str) -> None:
    """Labels of a node. A value may be empty, a key may not."""
    _check_size(labels, where, "labels")
    for key, value in labels.items():
        check_id(key, where)
        if value:
            check_id(value, f"{where}.{key}")


def check_taints(taints: tuple[Taint, ...], where: str) -> None:
    _check_size(taints, where, "taints")
    for i, taint in enumerate(taints):
        check_id(taint.key, f"{where}[{i}].key")
        if taint.value:
            check_id(taint.value, f"{where}[{i}].value")
        if taint in taints[:i]:
            raise SpecError(f"{where}[{i}]", f"taint '{taint.key}' is given twice", "Give it once")


def _check_size(given: Sized, where: str, what: str) -> None:
    if len(given) > MAX_LABELS:
        raise SpecError(where, f"has {len(given)} {what}", f"At most {MAX_LABELS}")


def check_node(node: NodeSpec, where: str = "node") -> None:
    check_id(node.id, f"{where}.id")
    for level in LEVELS[:-1]:
        if getattr(node, level):
            check_id(getattr(node, level), f"{where}.{level}")
    check_labels(node.labels, f"{where}.labels")
    check_taints(node.taints, f"{where}.taints")


MAX_DEVICES = 62
"""GPUs of one node: a bit for each in a word of 64, less one that marks a claim of a MIG instance, and the sign."""


def check_pool(pool: PoolSpec, where: str = "pool") -> None:
    check_id(pool.name, f"{where}.name")
    check_resources(pool.capacity, f"{where}.capacity")
    if pool.capacity.gpu_milli % 1000:
        raise SpecError(f"{where}.capacity.gpu_milli", "a node has whole GPUs", "Give a whole number, such as gpu: 8")
    if pool.capacity.gpu_milli > MAX_DEVICES * 1000:
        raise SpecError(
            f"{where}.capacity.gpu_milli", f"a node has at most {MAX_DEVICES} GPUs", "Split it into smaller nodes"
        )
    check_price(pool.price_microusd_hour, f"{where}.price_microusd_hour")
    check_quantity(pool.gpu_memory_mib, f"{where}.gpu_memory_mib")
    if pool.gpu_memory_mib and not pool.capacity.gpu_milli:
        raise SpecError(f"{where}.gpu_memory_mib", "is given for nodes without devices", "Leave it out")
    check_labels(pool.labels, f"{where}.labels")
    check_taints(pool.taints, f"{where}.taints")
    if pool.scaling is not None:
        check_scaling(pool.scaling, f"{where}.scaling")
    check_resources(pool.reserved, f"{where}.reserved")
    check_overcommit(pool.overcommit, f"{where}.overcommit")


_TIMES_AND_COUNTS = (
    "estimate_ms", "checkpoint_interval_ms", "checkpoint_cost_ms", "not_before_ms", "deadline_ms", "max_runtime_ms",
    "retries", "backoff_ms", "simulated_runtime_ms", "simulated_failures", "restore_ms",
    "simulated_usage_permille",
)  # fmt: skip
MAX_MEMBERS = 100_000
"""Workloads in one array."""


def _check_array(array: ArraySpec, name: str, where: str) -> None:
    for field, least in (("first", 0), ("last", array.first), ("step", 1), ("max_running", 0)):
        check_quantity(getattr(array, field), f"{where}.{field}", least=least, most=2**31 - 1)
    count = (array.last - array.first) // array.step + 1
    if count > MAX_MEMBERS:
        raise SpecError(where, f"has {count} members", f"At most {MAX_MEMBERS} in one array")
    check_id(f"{name}/{array.last}", f"{where}.last")


def _check_on_demand(group: TaskGroup, where: str) -> None:
    """Check that tasks besides the guaranteed on-demand ones remain to start with."""
    check_quantity(group.on_demand, f"{where}.on_demand")
    if group.on_demand > group.count:
        raise SpecError(
            f"{where}.on_demand", f"{group.on_demand} is more than count, {group.count}", "Give at most count"
        )
    if 0 < group.min_count <= group.on_demand < group.count:
        raise SpecError(
            f"{where}.min_count",
            f"{group.min_count} leaves no task to start with apart from the {group.on_demand} on demand",
            f"Give at least {group.on_demand + 1}, or make those on demand a workload of their own",
        )


def _check_node_terms(group: TaskGroup, where: str) -> None:
    """Check the group's demands on its nodes."""
    check_quantity(group.gpu_memory_mib, f"{where}.gpu_memory_mib")
    if group.gpu_memory_mib and not (group.request.gpu_milli or group.mig):
        raise SpecError(f"{where}.gpu_memory_mib", "is asked for, but no device", "Ask for gpu as well")
    for field in ("node_labels", "avoid_labels"):
        labels: dict[str, tuple[str, ...]] = getattr(group, field)
        _check_size(labels, f"{where}.{field}", "conditions")
        for key, values in labels.items():
            check_id(key, f"{where}.{field}")
            _check_size(values, f"{where}.{field}.{key}", "values")
            if not values:
                raise SpecError(f"{where}.{field}.{key}", "has no value", "Give values, or * for any")
            for value in values:
                if value not in ("", "*"):
                    check_id(value, f"{where}.{field}.{key}")
    for key in group.node_labels.keys() & group.avoid_labels.keys():
        wanted, avoided = set(group.node_labels[key]), set(group.avoid_labels[key])
        if "*" in avoided or wanted <= avoided:
            raise SpecError(
                f"{where}.avoid_labels.{key}", "excludes everything that node_labels asks for", "Remove one of them"
            )
    _check_size(group.tolerations, f"{where}.tolerations", "tolerations")
    for i, toleration in enumerate(group.tolerations):
        check_id(toleration.key, f"{where}.tolerations[{i}].key")
        if toleration.value:
            check_id(toleration.value, f"{where}.tolerations[{i}].value")
    if group.spread is not None:
        check_quantity(group.spread.max_skew, f"{where}.spread.max_skew", least=1, most=MAX_TASKS)


def _check_bonds(spec: WorkloadSpec, where: str) -> None:
    for field in ("near", "apart"):
        terms: tuple[Affinity, ...] = getattr(spec, field)
        _check_size(terms, f"{where}.{field}", "terms")
        for i, term in enumerate(terms):
            if not term.tags:
                raise SpecError(
                    f"{where}.{field}[{i}].tags", "is empty", "Give a tag: without one it would mean all work"
                )
            _check_size(term.tags, f"{where}.{field}[{i}].tags", "tags")
    for term in spec.near:
        if term in spec.apart:
            raise SpecError(f"{where}.apart", "contradicts `near`", "Remove one of the two")
    _check_size(spec.data, f"{where}.data", "zones")
    for i, zone in enumerate(spec.data):
        check_id(zone, f"{where}.data[{i}]")


def _check_limit(spec: WorkloadSpec, group: TaskGroup, where: str) -> None:
    if group.limit is None:
        return
    if spec.qos != "burstable":
        raise SpecError(f"{where}.limit", f"has no meaning for {spec.qos} work", "Leave it out, or make it burstable")
    for name, most, asked in zip(RESOURCES, group.limit.vector(), group.request.vector(), strict=True):
        check_quantity(most, f"{where}.limit.{name}")
        if most and name not in OVERCOMMITTED:
            raise SpecError(f"{where}.limit.{name}", "cannot exceed its request", f"Give {' or '.join(OVERCOMMITTED)}")
        if 0 < most < asked:
            raise SpecError(f"{where}.limit.{name}", f"{most} is below the request, {asked}", "Give at least as much")


def check_workload(spec: WorkloadSpec, where: str = "workload") -> None:
    """Check everything that does not depend on the cell. Raises SpecError naming the field."""
    check_id(spec.id, f"{where}.id")
    if len(spec.name) > MAX_NAME:
        raise SpecError(f"{where}.name", f"{len(spec.name)} characters", f"Give at most {MAX_NAME}")
    for field in ("queue", "priority_class"):
        check_id(getattr(spec, field), f"{where}.{field}")
    for field in ("tenant", "team"):
        if getattr(spec, field):
            check_id(getattr(spec, field), f"{where}.{field}")
    for field in _TIMES_AND_COUNTS:
        check_quantity(getattr(spec, field), f"{where}.{field}")
    if spec.reservation:
        check_id(spec.reservation, f"{where}.reservation")
    if spec.array is not None:
        _check_array(spec.array, spec.id, f"{where}.array")
    if not spec.groups:
        raise SpecError(f"{where}.groups", "is empty", "Give at least one task group with a request")
    names: set[str] = set()
    total = 0
    for i, group in enumerate(spec.groups):
        at = f"{where}.groups[{i}]"
        check_id(group.name, f"{at}.name")
        if group.name in names:
            raise SpecError(f"{at}.name", f"'{group.name}' is given twice", "Give each group its own name")
        names.add(group.name)
        check_quantity(group.count, f"{at}.count", least=1, most=MAX_TASKS)
        check_quantity(group.min_count, f"{at}.min_count")
        if group.min_count > group.count:
            raise SpecError(
                f"{at}.min_count", f"{group.min_count} is more than count, {group.count}", "Give at most count"
            )
        _check_on_demand(group, at)
        total += group.count
        check_resources(group.request, f"{at}.request")
        if not any(group.request.vector()) and not group.mig:
            raise SpecError(f"{at}.request", "is empty", "Ask for at least one resource")
        _check_node_terms(group, at)
        _check_limit(spec, group, at)
    if total > MAX_TASKS:
        raise SpecError(f"{where}.groups", f"{total} tasks in all", f"At most {MAX_TASKS} in one workload")
    _check_bonds(spec, where)
    if spec.run is not None:
        check_run(spec.run, f"{where}.run")
    if spec.service is not None:
        check_service(spec.service, f"{where}.service")
        if len(spec.groups) > 1:
            raise SpecError(
                f"{where}.groups", "a service has one group of tasks", "Submit the others as separate workloads"
            )
        if spec.groups[0].on_demand:
            raise SpecError(f"{where}.groups[0].on_demand", "has no meaning for a service", "Give it a capacity_type")
        for field in ("estimate_ms", "max_runtime_ms", "deadline_ms", "array"):
            if getattr(spec, field):
                raise SpecError(f"{where}.{field}", "has no meaning for a service, which has no end", "Leave it out")


GIB = 1024
MEMORY_MIB: dict[str, int] = {
    "A2": 16 * GIB, "A10": 24 * GIB, "A10G": 24 * GIB, "A16": 16 * GIB, "A30": 24 * GIB, "A40": 48 * GIB,
    "A100": 40 * GIB, "A800": 40 * GIB, "A6000": 48 * GIB, "B200": 180 * GIB, "GB200": 186 * GIB, "GH200": 96 * GIB,
    "H20": 96 * GIB, "H100": 80 * GIB, "H200": 141 * GIB, "H800": 80 * GIB, "K80": 12 * GIB, "L4": 24 * GIB,
    "L40": 48 * GIB, "L40S": 48 * GIB, "MI100": 32 * GIB, "MI210": 64 * GIB, "MI250": 128 * GIB, "MI250X": 128 * GIB,
    "MI300X": 192 * GIB, "P4": 8 * GIB, "P40": 24 * GIB, "P100": 12 * GIB, "T4": 16 * GIB, "V100": 16 * GIB,
    "V100M16": 16 * GIB, "V100M32": 32 * GIB,
}  # fmt: skip
"""Memory of one device by model, where the name does not say it; of those sold with several sizes, the smallest."""
_SIZE_IN_NAME = re.compile(r"(?<![0-9A-Z])([0-9]{1,3})GI?B?(?![0-9A-Z])")


def device_memory_mib(pool: PoolSpec) -> int:
    """Memory of one of the pool's devices: as the pool says, as the model's name says (`A100-80GB`), or as is known of
    the model. 0 where none of them tells."""
    return pool.gpu_memory_mib or memory_by_name(pool.gpu_model)


def memory_by_name(model: str) -> int:
    """Memory of one device by what its model is called; 0 where that tells nothing."""
    name = model.upper()
    size = _SIZE_IN_NAME.search(name)
    if size:
        return int(size[1]) * GIB
    return next((MEMORY_MIB[word] for word in re.split(r"[^A-Z0-9]+", name) if word in MEMORY_MIB), 0)


def quantity(resource: int, value: int) -> str:
    """A quantity of RESOURCES[resource] as people write it."""
    name = RESOURCES[resource]
    if name == "cpu_milli":
        return f"{value / 1000:g} CPU"
    if name == "gpu_milli":
        return f"{value / 1000:g} GPU"
    what = "memory" if name == "memory_mib" else "disk"
    return f"{value:g} MiB {what}" if 0 < value < 1024 else f"{value / 1024:.4g} GiB {what}"


class UsageSample(Spec, frozen=True, kw_only=True):
    """The joint use of all tasks of a workload on one node."""

    workload: str
    node: str
    cpu_milli: int
    memory_mib: int
