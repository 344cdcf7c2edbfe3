"""The events: one record for each thing that can happen, and the only way in which state changes.

`Tick` sets the cell's clock; the events after it happen at that time. Rows of workloads and nodes are indexes into the
state's columns, given in creation order, so they mean the same at every replay. Node lists are packed int32, because
one gang may bind 130,000 nodes.
"""

from __future__ import annotations

import msgspec

from engine.model.external_cells import PastRun
from engine.model.specs import (
    BudgetSpec,
    NodeSpec,
    Policy,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    ScalingSpec,
    Settings,
    TaskGroup,
    WorkloadSpec,
)


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all events. Positional on the wire: append fields, never reorder them."""

    @property
    def versions(self) -> int:
        """The number of versions by which it moves the state: the single events it stands for."""
        return 1


class Tick(Event, frozen=True, array_like=True, gc=False, tag=0):
    at_ms: int


class CellNamed(Event, frozen=True, array_like=True, gc=False, tag=1):
    name: str


class PoolAdded(Event, frozen=True, array_like=True, gc=False, tag=2):
    pool: PoolSpec


class NodesAdded(Event, frozen=True, array_like=True, gc=False, tag=3):
    nodes: tuple[NodeSpec, ...]


class QueueAdded(Event, frozen=True, array_like=True, gc=False, tag=4):
    queue: QueueSpec


class PriorityClassAdded(Event, frozen=True, array_like=True, gc=False, tag=5):
    priority_class: PriorityClassSpec


class PolicySet(Event, frozen=True, array_like=True, gc=False, tag=6):
    policy: Policy


class Submitted(Event, frozen=True, array_like=True, gc=False, tag=7):
    """Takes the next workload row."""

    workload: WorkloadSpec


class GroupPlacement(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The locations of the tasks of one group: entry i puts `counts[i]` tasks on `nodes[i]`, using `devices[i]`."""

    nodes: bytes
    """int32 node rows."""
    counts: bytes
    """int32 tasks on that node."""
    devices: bytes = b""
    """int64 bit mask of devices used on that node; empty when the group asks for no GPU."""


class Placed(Event, frozen=True, array_like=True, gc=False, tag=8):
    """A gang is bound and its quota charged, all at once."""

    row: int
    groups: tuple[GroupPlacement, ...]
    flags: int = 0
    """The quota and rule that let it start: a sum of BORROWED, BURST, BACKFILLED."""


BORROWED, BURST, BACKFILLED = 1, 2, 4


class Started(Event, frozen=True, array_like=True, gc=False, tag=9):
    """The executor says that every task runs."""

    row: int


class Finished(Event, frozen=True, array_like=True, gc=False, tag=10):
    row: int


class Failed(Event, frozen=True, array_like=True, gc=False, tag=11):
    """The work itself failed, which consumes an attempt, or it ran out of time."""

    row: int
    cause: int = 0
    """Index into FAILURE_CAUSES."""
    retry_at_ms: int = -1
    """Cell time at which it waits for a start again; -1 when it has failed for good."""


FAILURE_CAUSES = (
    "its work failed", "max runtime", "deadline", "out of memory", "node lost", "nodes did not boot",
    "stopped for others",
)  # fmt: skip


class Cancelled(Event, frozen=True, array_like=True, gc=False, tag=12):
    row: int


class Recalled(Event, frozen=True, array_like=True, gc=False, tag=108):
    """What was just cancelled here, before it had begun, is of another cell from now on."""

    row: int
    to: str


class Held(Event, frozen=True, array_like=True, gc=False, tag=13):
    row: int


class Released(Event, frozen=True, array_like=True, gc=False, tag=14):
    row: int


class Evicted(Event, frozen=True, array_like=True, gc=False, tag=15):
    """Back to the queue at its original age; work kept to the last checkpoint."""

    row: int
    cause: int
    """Index into EVICTION_CAUSES."""
    by: int = -1
    """Workload row for which it was preempted; -1 when for none."""
    saved: bool = False
    """It wrote a checkpoint before it stopped: no work is lost."""
    wake_at_ms: int = -1
    """It waits at least until then; -1: queued at once."""


EVICTION_CAUSES = (
    "asked", "drain", "node lost", "not confirmed", "queue drained", "quota reduced", "expired burst",
    "overran backfill", "reclaimed", "lower priority", "migrated", "node removed", "spot taken", "scaled down",
    "node pressure", "member lost", "gave way", "processes lost", "decided outside",
)  # fmt: skip
PREEMPTIONS = frozenset(range(EVICTION_CAUSES.index("expired burst"), EVICTION_CAUSES.index("lower priority") + 1))
"""Causes by which a workload is preempted for another."""
DISRUPTIONS = PREEMPTIONS | {EVICTION_CAUSES.index(cause) for cause in ("migrated", "scaled down", "gave way")}
"""Causes that count against the limit of a queue on disruptions."""


class NodesChanged(Event, frozen=True, array_like=True, gc=False, tag=16):
    nodes: bytes
    """int32 node rows."""
    state: int
    """A NodeState."""


class AuditEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The actor and the plan that was executed. Written in the same transaction as the effect."""

    at_wall_ms: int
    actor: str
    action: str
    digest: str
    plan: bytes
    """Canonical JSON of what was carried out."""
    key: str = ""
    """The step of the proposal: carried out once at most."""


class Audited(Event, frozen=True, array_like=True, gc=False, tag=17):
    entry: AuditEntry


class QueueChanged(Event, frozen=True, array_like=True, gc=False, tag=18):
    """The queue of that name has this spec from now on."""

    queue: QueueSpec


class QueueModeSet(Event, frozen=True, array_like=True, gc=False, tag=19):
    queue: int
    """Row of the queue."""
    mode: int
    """A QueueMode."""


class PriorityClassRemoved(Event, frozen=True, array_like=True, gc=False, tag=20):
    name: str


class Grown(Event, frozen=True, array_like=True, gc=False, tag=21):
    """An elastic workload got more tasks, and quota for them."""

    row: int
    groups: tuple[GroupPlacement, ...]


class Shrunk(Event, frozen=True, array_like=True, gc=False, tag=22):
    """An elastic workload gave back tasks and their quota."""

    row: int
    groups: tuple[GroupPlacement, ...]
    by: int = -1
    """Workload row for which it shrank; -1 when for none."""
    until_ms: int = -1
    """Cell time before which it does not grow again: a node ran short; -1 when it may at once."""


class Preempting(Event, frozen=True, array_like=True, gc=False, tag=23):
    """Victims write their checkpoints; at `at_ms` all of them are evicted and the preemptor is placed. Until then the
    nodes are kept from everyone else."""

    row: int
    """The preemptor."""
    victims: bytes
    """int32 workload rows."""
    causes: bytes
    """int8 index into EVICTION_CAUSES for each victim."""
    nodes: bytes
    """int32 node rows that are kept."""
    at_ms: int


class PreemptionEnded(Event, frozen=True, array_like=True, gc=False, tag=24):
    """Carried out, or dropped because the preemptor no longer waits: the nodes are free for all."""

    row: int


class Suspended(Event, frozen=True, array_like=True, gc=False, tag=25):
    row: int
    saved: bool = False


class Resumed(Event, frozen=True, array_like=True, gc=False, tag=26):
    row: int


class Woke(Event, frozen=True, array_like=True, gc=False, tag=27):
    """Its wait (for other work, its time, a retry) is over: it is queued."""

    row: int


class Reserved(Event, frozen=True, array_like=True, gc=False, tag=28):
    reservation: ReservationSpec


class Unreserved(Event, frozen=True, array_like=True, gc=False, tag=29):
    """Taken back, or its window has passed."""

    name: str


class SettingsSet(Event, frozen=True, array_like=True, gc=False, tag=30):
    settings: Settings


class PrioritySet(Event, frozen=True, array_like=True, gc=False, tag=31):
    row: int
    priority_class: int
    """Row of the class."""


class Ordered(Event, frozen=True, array_like=True, gc=False, tag=50):
    """Machines were asked for. Takes the next order row."""

    pool: int
    """Row of the pool."""
    zone: str
    count: int
    expires_ms: int
    """Cell time at which it is cancelled if it is not fulfilled."""
    row: int = -1
    """The gang it is for: all of its machines or none; -1 for whoever comes."""


class NodesGranted(Event, frozen=True, array_like=True, gc=False, tag=51):
    """A provider has granted machines of an order: they boot, and they are paid for from now on."""

    order: int
    nodes: tuple[NodeSpec, ...]


class OrderEnded(Event, frozen=True, array_like=True, gc=False, tag=52):
    """The order is over: nothing more comes of it."""

    order: int
    how: int
    """An OrderState."""


class BackedOff(Event, frozen=True, array_like=True, gc=False, tag=53):
    """The pool is not ordered from until then; 0: it delivers again."""

    pool: int
    until_ms: int


class Interrupted(Event, frozen=True, array_like=True, gc=False, tag=54):
    """The machines end at that cell time: they take no more work, and what runs there may save itself meanwhile."""

    nodes: bytes
    """int32 node rows."""
    deadline_ms: int


class MachinesRefused(Event, frozen=True, array_like=True, gc=False, tag=55):
    """Machines that a provider reported and that nobody ordered so: they are given back and never counted."""

    order: int
    """The order they were reported for; -1: for none."""
    names: tuple[str, ...]
    reason: str


class TargetsSet(Event, frozen=True, array_like=True, gc=False, tag=56):
    """The pool has at least so many nodes from those times on; in place of what was set before."""

    pool: int
    """Row of the pool."""
    targets: tuple[tuple[int, int], ...]
    """(cell ms, nodes), ascending."""


class Unneeded(Event, frozen=True, array_like=True, gc=False, tag=57):
    """The nodes are used so little since then that they might go; or, with -1, they are used again."""

    nodes: bytes
    """int32 node rows."""
    since_ms: int


class PoolScalingSet(Event, frozen=True, array_like=True, gc=False, tag=58):
    """The pool's growth limits from now on."""

    pool: int
    """Row of the pool."""
    scaling: ScalingSpec


class DemandNoted(Event, frozen=True, array_like=True, gc=False, tag=59):
    """The nodes of the pool in use or waited for, more than before in that hour."""

    pool: int
    """Row of the pool."""
    hour: int
    """Hour of cell time."""
    nodes: int


class TurnedOnDemand(Event, frozen=True, array_like=True, gc=False, tag=65):
    """Its deadline leaves no time to lose on spot machines: tasks that may use any use on-demand ones from now on."""

    row: int


class Swapped(Event, frozen=True, array_like=True, gc=False, tag=70):
    """A gang that runs lost its tasks on these nodes and goes on from its last checkpoint with others in their place;
    an elastic one perhaps with fewer."""

    row: int
    nodes: bytes
    """int32 node rows that it leaves."""
    groups: tuple[GroupPlacement, ...]
    """The tasks that come instead."""


class RepairStarted(Event, frozen=True, array_like=True, gc=False, tag=71):
    nodes: bytes
    """int32 node rows that are down."""
    until_ms: int
    """Cell time at which it shows whether they are well."""


class Watched(Event, frozen=True, array_like=True, gc=False, tag=72):
    """Agents call from these nodes: from now on their silence means something. The calls themselves are no events."""

    nodes: bytes
    """int32 node rows."""
    watching: bool = True
    """False: their agents have been taken away, and silence means nothing from now on."""


class NodesNoted(Event, frozen=True, array_like=True, gc=False, tag=73):
    """The reason why nodes are kept out."""

    nodes: bytes
    """int32 node rows."""
    note: int
    """Index into NOTES of `engine.state.machines`."""


class PriceSet(Event, frozen=True, array_like=True, gc=False, tag=60):
    """The nodes of the pool cost so much from now on."""

    pool: int
    """Row of the pool."""
    price_microusd_hour: int


class BudgetSet(Event, frozen=True, array_like=True, gc=False, tag=61):
    """A new budget, or another spec for the one of that name."""

    budget: BudgetSpec


class BudgetRemoved(Event, frozen=True, array_like=True, gc=False, tag=62):
    name: str


class BudgetStaged(Event, frozen=True, array_like=True, gc=False, tag=63):
    """A budget runs out, is spent, or its next window has begun."""

    name: str
    stage: int
    """An `engine.state.budgets.BudgetStage`."""
    window: int
    """Number of the window."""


class SpendingApproved(Event, frozen=True, array_like=True, gc=False, tag=64):
    """The workload may start whatever is left of budgets that ask for approval."""

    row: int


class Wanted(Event, frozen=True, array_like=True, gc=False, tag=75):
    """A service should have so many tasks from now on."""

    row: int
    tasks: int
    load: int
    """Tasks that its load takes now, which may be fewer."""


class Reclassed(Event, frozen=True, array_like=True, gc=False, tag=76):
    """A workload that is on no node asks for something else from now on."""

    row: int
    groups: tuple[TaskGroup, ...]
    evidence: str = ""


class MovedToQueue(Event, frozen=True, array_like=True, gc=False, tag=80):
    """A workload that is on no node waits in another queue from now on, at its age."""

    row: int
    queue: int
    """Row of the queue."""


class Dated(Event, frozen=True, array_like=True, gc=False, tag=82):
    """A change by another scheduler was observed late: it happened at that time."""

    row: int
    what: int
    """Code of the transition: the last of its kind in the workload's history."""
    at_ms: int
    """Time of the change, not after the clock."""


class DatedMany(Event, frozen=True, array_like=True, gc=False, tag=104):
    """`Dated` of each of these, one after the other."""

    rows: bytes
    """int32 workload rows."""
    what: int
    at_ms: bytes
    """int64, one for each."""

    @property
    def versions(self) -> int:
        return len(self.rows) // 4


class Parked(Event, frozen=True, array_like=True, gc=False, tag=83):
    """A workload that waits may not start before that time, as another scheduler says."""

    row: int
    wake_at_ms: int
    """-1: only that scheduler knows when."""


class Vanished(Event, frozen=True, array_like=True, gc=False, tag=84):
    """The scheduler that decides no longer knows the workload, and how it ended nobody has seen."""

    row: int


class OutsideSaid(Event, frozen=True, array_like=True, gc=False, tag=85):
    """The reasons why workloads wait or ended, in the words of the scheduler that decides."""

    rows: bytes
    """int32 workload rows."""
    words: tuple[str, ...]
    """One word for each; empty: it gives none."""


class Reestimated(Event, frozen=True, array_like=True, gc=False, tag=86):
    """A workload that is on no node is expected to run for another time, as its scheduler was told."""

    row: int
    estimate_ms: int
    """0: not known."""


class BootsTold(Event, frozen=True, array_like=True, gc=False, tag=87):
    """Nodes that another scheduler has powered down, and boots for who needs them; or that are on again."""

    nodes: bytes
    """int32 node rows."""
    boot_ms: int
    """Likely duration of a boot; 0: they are on."""


class CapsTold(Event, frozen=True, array_like=True, gc=False, tag=88):
    """The caps of another scheduler, and the use of each by workloads (`engine.state.external_cell`)."""

    most: tuple[tuple[str, int], ...] | None
    """All caps there are, by name; None: they are as before."""
    rows: bytes = b""
    """int32 workload rows."""
    draws: tuple[tuple[tuple[str, int], ...], ...] = ()
    """The use of each workload from now on."""


class NodesRelabelled(Event, frozen=True, array_like=True, gc=False, tag=103):
    """Nodes that are there have these labels and taints from now on, besides those of their pools. What runs there
    goes on."""

    nodes: tuple[NodeSpec, ...]


class NodesMoved(Event, frozen=True, array_like=True, gc=False, tag=106):
    """Nodes that are there are of these pools and in these places from now on, with these labels and taints. They have
    as many devices as before, and room for what runs there, which goes on."""

    nodes: tuple[NodeSpec, ...]


class NodeLoadsTold(Event, frozen=True, array_like=True, gc=False, tag=100):
    """What runs on nodes and is no work of any queue: from now on all there is of it."""

    nodes: bytes
    """int32 node rows."""
    loads: bytes
    """int64, five of each node: milli-CPU, MiB of memory, bit mask of devices, MiB of disk, pods."""


class Rebound(Event, frozen=True, array_like=True, gc=False, tag=101):
    """A workload that is on nodes has other tasks than before, as its scheduler shows them: some came, ended or moved.
    It goes on."""

    row: int
    asks: tuple[TaskGroup, ...]
    """Its task groups from now on."""
    groups: tuple[GroupPlacement, ...]
    """All of its tasks."""


class QuotaHeld(Event, frozen=True, array_like=True, gc=False, tag=102):
    """Quota that a workload has been given for tasks that are on no node, in place of what it had so."""

    row: int
    shares: tuple[tuple[str, tuple[int, int, int, int]], ...]
    """(pool, or empty for all pools together; quantities in the order of RESOURCES)."""


class RunsTold(Event, frozen=True, array_like=True, gc=False, tag=89):
    """Run times from before the cell looked on, from the accounting of the scheduler that decides: all that are known
    of it now.
    """

    runs: tuple[PastRun, ...]
    until_ms: int


class Exited(Event, frozen=True, array_like=True, gc=False, tag=96):
    """The end of the task that decides about its workload. The workload's own event follows."""

    row: int
    task: int
    """Its rank."""
    status: int
    """As a shell tells it: the exit code, or 128 and the number of the signal that ended it; plus 256 times the index
    into EXIT_CAUSES of `engine.model.spec_parts`."""


class Intended(Event, frozen=True, array_like=True, gc=False, tag=90):
    """Somebody wants this done in a cell that another scheduler decides on. Nothing there has changed yet."""

    number: int
    token: str
    """Unique, except that an intent carried again keeps it: a submitted job is found again by it."""
    command: bytes
    """MessagePack of the command: `engine.state.external_cell.wanted` reads it."""


class IntentAccepted(Event, frozen=True, array_like=True, gc=False, tag=91):
    """The other scheduler took it. It may still forget it in a crash."""

    number: int
    job: int = 0
    """The id it gave to a job that was submitted; 0: none."""
    submit_s: int = 0
    """Submission time of that job by its own record: an id alone may be given again."""
    text: str = ""
    boot: str = ""
    before: str = ""
    """These as `engine.state.external_cell.Intent`."""


class IntentSent(Event, frozen=True, array_like=True, gc=False, tag=94):
    """It is about to be carried to the other scheduler. From now on it may have arrived, whatever is heard of it."""

    number: int


class IntentReopened(Event, frozen=True, array_like=True, gc=False, tag=92):
    """An accepted object is gone there: it is carried there again."""

    number: int
    text: str = ""


class IntentSettled(Event, frozen=True, array_like=True, gc=False, tag=93):
    """The intent is settled: nothing more is done about it."""

    number: int
    phase: int
    """An `engine.state.external_cell.Phase`."""
    text: str = ""


class IntentAnswered(Event, frozen=True, array_like=True, gc=False, tag=95):
    """It was in doubt; a person has said what holds of it, or has had it carried again."""

    number: int
    phase: int
    """An `engine.state.external_cell.Phase`."""
    text: str = ""


# What follows stands for many events, one after the other: written at once and applied column by column
# (`engine.state.work_changes`), they leave exactly what the single ones would. Those of submissions and placements are
# of workloads with a single task.


class DowntimeBegan(Event, frozen=True, array_like=True, gc=False, tag=97):
    """A downtime began: no engine ran, or it stood still. It is recorded afterwards, with the ends of work
    meanwhile.
    """


class DowntimeEnded(Event, frozen=True, array_like=True, gc=False, tag=98):
    """An engine decides again."""

    since_ms: int
    """Cell time at which it began."""


class ClockHeld(Event, frozen=True, array_like=True, gc=False, tag=99):
    """An engine was started and its host's clock shows another time than the journal: the cell goes on from its own."""

    host_ms: int
    """Time of the host's clock."""


class Owned(Event, frozen=True, array_like=True, gc=False, tag=107):
    """The workloads of the last `count` rows were submitted by this subject."""

    owner: str
    count: int

    @property
    def versions(self) -> int:
        """It comes with the events of the workloads, and is no change of its own."""
        return 0


class SubmittedMany(Event, frozen=True, array_like=True, gc=False, tag=40):
    """Usual workloads (`engine.admission.submissions.is_usual`). They take the next rows, in order."""

    workloads: tuple[WorkloadSpec, ...]

    @property
    def versions(self) -> int:
        return len(self.workloads)


class PlacedMany(Event, frozen=True, array_like=True, gc=False, tag=41):
    """Workload `rows[i]` has its one task on `nodes[i]`, using `devices[i]`. None has kept work, none is in a tree with
    quotas by pool, no burst begins, and nothing is being cleared for any."""

    rows: bytes
    """int32 workload rows."""
    nodes: bytes
    """int32 node rows."""
    devices: bytes = b""
    """As in GroupPlacement."""
    flags: bytes = b""
    """int8, as in Placed; empty when all are 0."""

    @property
    def versions(self) -> int:
        return len(self.rows) // 4


class PlacedGangs(Event, frozen=True, array_like=True, gc=False, tag=105):
    """`Placed` of each of these, one after the other."""

    rows: bytes
    """int32 workload rows."""
    groups: tuple[tuple[GroupPlacement, ...], ...]
    """Of each workload."""

    @property
    def versions(self) -> int:
        return len(self.groups)

    def singles(self) -> list[Placed]:
        return [Placed(row, groups) for row, groups in zip(memoryview(self.rows).cast("i"), self.groups, strict=True)]


class StartedMany(Event, frozen=True, array_like=True, gc=False, tag=42):
    """None of them has others that wait for it, and none is elastic."""

    rows: bytes
    """int32 workload rows."""

    @property
    def versions(self) -> int:
        return len(self.rows) // 4


class FinishedMany(Event, frozen=True, array_like=True, gc=False, tag=43):
    """None of them has others that wait for it, and each ran with all its tasks. Sets the cell's clock to each of the
    times in turn."""

    rows: bytes
    """int32 workload rows."""
    at_ms: bytes
    """int64 cell time of each, ascending."""
    ticks: int
    """Number of clock moves."""

    @property
    def versions(self) -> int:
        return len(self.rows) // 4 + self.ticks


AnyEvent = (
    Tick
    | CellNamed
    | PoolAdded
    | NodesAdded
    | QueueAdded
    | PriorityClassAdded
    | PolicySet
    | Submitted
    | Placed
    | Started
    | Finished
    | Failed
    | Cancelled
    | Recalled
    | Held
    | Released
    | Evicted
    | NodesChanged
    | Audited
    | QueueChanged
    | QueueModeSet
    | PriorityClassRemoved
    | Grown
    | Shrunk
    | Preempting
    | PreemptionEnded
    | Suspended
    | Resumed
    | Woke
    | Reserved
    | Unreserved
    | SettingsSet
    | PrioritySet
    | Ordered
    | NodesGranted
    | OrderEnded
    | BackedOff
    | Interrupted
    | PriceSet
    | BudgetSet
    | BudgetRemoved
    | BudgetStaged
    | SpendingApproved
    | TurnedOnDemand
    | MachinesRefused
    | TargetsSet
    | Unneeded
    | PoolScalingSet
    | DemandNoted
    | Swapped
    | RepairStarted
    | Watched
    | NodesNoted
    | Wanted
    | Reclassed
    | MovedToQueue
    | Dated
    | DatedMany
    | Parked
    | Vanished
    | NodesRelabelled
    | NodesMoved
    | NodeLoadsTold
    | Rebound
    | QuotaHeld
    | OutsideSaid
    | Reestimated
    | BootsTold
    | RunsTold
    | CapsTold
    | Exited
    | Intended
    | IntentAccepted
    | IntentSent
    | IntentReopened
    | IntentSettled
    | IntentAnswered
    | DowntimeBegan
    | DowntimeEnded
    | ClockHeld
    | Owned
    | SubmittedMany
    | PlacedMany
    | PlacedGangs
    | StartedMany
    | FinishedMany
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyEvent])


def encode(events: list[AnyEvent]) -> bytes:
    """Encode one journal batch."""
    return _encoder.encode(events)


def decode(payload: bytes) -> list[AnyEvent]:
    """The batch back. Raises msgspec.DecodeError when the bytes are not what `encode` wrote."""
    return _decoder.decode(payload)
