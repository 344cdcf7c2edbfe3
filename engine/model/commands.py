"""The commands of the engine, and their treatment in a cell that another scheduler decides.

A command is checked against the state and turned into events. Anyone with the operator role may submit, define things
at set-up, or, as a fleet does, take back what has not begun. Every other command changes running work or its nodes:
people and advice issue it only through `runbooks.gate.approval_gate`.

In a cell that another scheduler decides, each command is passed to that scheduler, done by Muster alone, or refused
with an alternative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.model.external_cells import AnySeen
from engine.model.specs import (
    BudgetSpec,
    CellSpec,
    NodeSpec,
    Policy,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    ReservationSpec,
    Settings,
    Spec,
    Taint,
    WorkloadSpec,
)


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """Base of all commands."""


class Define(Command, frozen=True, kw_only=True, tag="define"):
    """Set up an empty cell. Refused when the cell has nodes already."""

    cell: CellSpec


class AddPools(Command, frozen=True, kw_only=True, tag="add_pools"):
    pools: tuple[PoolSpec, ...]


class AddNodes(Command, frozen=True, kw_only=True, tag="add_nodes"):
    nodes: tuple[NodeSpec, ...]


class AddQueues(Command, frozen=True, kw_only=True, tag="add_queues"):
    queues: tuple[QueueSpec, ...]


class AddPriorityClasses(Command, frozen=True, kw_only=True, tag="add_priority_classes"):
    priority_classes: tuple[PriorityClassSpec, ...]


class RemovePriorityClasses(Command, frozen=True, kw_only=True, tag="remove_priority_classes"):
    """Refused while a workload that has not ended uses one."""

    names: tuple[str, ...]


class ChangeQueue(Command, frozen=True, kw_only=True, tag="change_queue"):
    """Give a queue another spec: quota, weight, order, burst. Name and parent stay."""

    queue: QueueSpec
    over: Literal["refuse", "keep", "evict"] = "refuse"
    """If the new quota is below what is in use: say what would have to go and change nothing; let it run out, with
    nothing new until then; or evict the least costly work above it."""


class OrderQueues(Command, frozen=True, kw_only=True, tag="order_queues"):
    """Another order within these queues. Everything else of them stays."""

    names: tuple[str, ...]
    order: Literal["best_effort", "strict_fifo", "fair"]


class HoldQueues(Command, frozen=True, kw_only=True, tag="hold_queues"):
    """Start nothing more from these queues and those below them; what runs goes on."""

    names: tuple[str, ...]


class DrainQueues(Command, frozen=True, kw_only=True, tag="drain_queues"):
    """Hold them, take no new workloads, and evict running work."""

    names: tuple[str, ...]


class OpenQueues(Command, frozen=True, kw_only=True, tag="open_queues"):
    names: tuple[str, ...]


class Submit(Command, frozen=True, kw_only=True, tag="submit"):
    """All are accepted or none. Ids must be new: a client that retries gets "already there", never a second run."""

    workloads: tuple[WorkloadSpec, ...]
    owner: str = ""
    """Subject that submits them. Whatever a client says here, the door puts its proved caller in its place; empty:
    nobody's."""


class Cancel(Command, frozen=True, kw_only=True, tag="cancel"):
    ids: tuple[str, ...]


class Recall(Command, frozen=True, kw_only=True, tag="recall"):
    """Take back work that a fleet has sent here, for another cell. Refused once it has begun, or is held. The same
    again changes nothing, so that whoever heard no answer may ask again."""

    ids: tuple[str, ...]
    fleet: str
    """As its tag `fleet` names it."""
    to: str
    """The cell where it goes."""


class Hold(Command, frozen=True, kw_only=True, tag="hold"):
    """Keep queued workloads from starting. What already runs is not touched (refused)."""

    ids: tuple[str, ...]


class Release(Command, frozen=True, kw_only=True, tag="release"):
    ids: tuple[str, ...]


class Requeue(Command, frozen=True, kw_only=True, tag="requeue"):
    """Stop placed or running workloads and put them back at their original age; work kept to the last checkpoint."""

    ids: tuple[str, ...]


class Suspend(Command, frozen=True, kw_only=True, tag="suspend"):
    """Take workloads off their nodes (or out of their queue) until resumed. Work is kept to the last checkpoint, or
    whole where the workload can write one when asked."""

    ids: tuple[str, ...]


class Resume(Command, frozen=True, kw_only=True, tag="resume"):
    """Suspended workloads wait again, at their original age."""

    ids: tuple[str, ...]


class Reserve(Command, frozen=True, kw_only=True, tag="reserve"):
    """Make an advance reservation. Refused when one of the nodes is reserved at that time already."""

    reservation: ReservationSpec


class Unreserve(Command, frozen=True, kw_only=True, tag="unreserve"):
    names: tuple[str, ...]


class Cordon(Command, frozen=True, kw_only=True, tag="cordon"):
    """Nodes take no new work; what runs there goes on. A drained node is cordoned again by it."""

    ids: tuple[str, ...]


class Uncordon(Command, frozen=True, kw_only=True, tag="uncordon"):
    ids: tuple[str, ...]


class Drain(Command, frozen=True, kw_only=True, tag="drain"):
    """Cordon, then evict every workload that has a task there (a gang moves as a whole)."""

    ids: tuple[str, ...]


class TaintNodes(Command, frozen=True, kw_only=True, tag="taint_nodes"):
    """Have Kubernetes keep work away from nodes that does not tolerate the taint, or no longer do so."""

    ids: tuple[str, ...]
    taint: Taint
    remove: bool = False


class RemoveNodes(Command, frozen=True, kw_only=True, tag="remove_nodes"):
    """Evict every workload that has a task there, as in a drain; then the nodes leave the cell for good."""

    ids: tuple[str, ...]


class FailNodes(Command, frozen=True, kw_only=True, tag="fail_nodes"):
    """The nodes are lost: running work goes back to its queue with the progress of its last checkpoint."""

    ids: tuple[str, ...]


class RestoreNodes(Command, frozen=True, kw_only=True, tag="restore_nodes"):
    """Nodes that were lost are back, empty and ready."""

    ids: tuple[str, ...]


class Interrupt(Command, frozen=True, kw_only=True, tag="interrupt"):
    """A provider takes these machines back, or somebody rehearses that: they take no new work, and are gone for good
    after the notice. Machines that had theirs already are left as they are, unless the end comes earlier, and so are
    unknown ones; refused, by name, only when nothing is left to do: one bad id must not lose the others their time."""

    ids: tuple[str, ...]
    notice_ms: int = -1
    """Time until they are gone; -1: as their pool says, or 30 s."""


class WatchNodes(Command, frozen=True, kw_only=True, tag="watch_nodes"):
    """Agents call from these nodes: their silence means something from now on. Those that were booting are ready."""

    ids: tuple[str, ...]


class UnwatchNodes(Command, frozen=True, kw_only=True, tag="unwatch_nodes"):
    """Their agents were taken away on purpose: silence means nothing any more. Suspects are what they were before."""

    ids: tuple[str, ...]


class SetPriority(Command, frozen=True, kw_only=True, tag="set_priority"):
    """Another priority class for workloads that have not ended. Age and place stay."""

    ids: tuple[str, ...]
    priority_class: str


class MoveToQueue(Command, frozen=True, kw_only=True, tag="move_to_queue"):
    """Another queue for workloads that hold no capacity. Age and place stay; what was charged stays where it was."""

    ids: tuple[str, ...]
    queue: str


YIELD_MS = 60_000
"""Minimum wait of a workload that gave way, so that others get the place."""


class Preempt(Command, frozen=True, kw_only=True, tag="preempt"):
    """Placed or running workloads give way: stopped as by Requeue, and not started again for a minute. Refused for
    what the scheduler itself might not preempt: work that is not preemptible, is younger than the minimum run time of
    its queue, or whose queue has had its share of disruptions."""

    ids: tuple[str, ...]


MAX_EVIDENCE = 200
"""Characters."""


class Resize(Command, frozen=True, kw_only=True, tag="resize"):
    """Another request for the tasks of a group. Running work is evicted at its last checkpoint and starts anew with it;
    refused for running work that has none."""

    ids: tuple[str, ...]
    group: str = ""
    """May be left out where there is one group."""
    request: dict[str, int]
    """Resource name -> quantity; a resource that is not named keeps its own."""
    evidence: str = ""
    """The reason, for the history."""


class Move(Spec, frozen=True, kw_only=True):
    """The destination of a running workload: any nodes of a pool, or some of the nodes named, in that order."""

    id: str
    pool: str = ""
    nodes: tuple[str, ...] = ()


class Migrate(Command, frozen=True, kw_only=True, tag="migrate"):
    """Evict the workloads (work is kept to the last checkpoint, or whole where one can be written when asked) and
    place every one of them anew in the same turn. Refused, with nothing changed, when one of them does not fit."""

    moves: tuple[Move, ...]


class SetPolicy(Command, frozen=True, kw_only=True, tag="set_policy"):
    policy: Policy


class SetScaling(Command, frozen=True, kw_only=True, tag="set_scaling"):
    """Set the limits of a pool's own growth. Fields that are not given stay; a pool that did not grow needs `most`."""

    pool: str
    least: int | None = None
    most: int | None = None
    headroom: int | None = None
    priority: int | None = None


class SetTargets(Command, frozen=True, kw_only=True, tag="set_targets"):
    """Set the minimum size of a pool from each of these times on, in place of earlier targets."""

    pool: str
    targets: tuple[tuple[int, int], ...] = ()
    """(cell ms, nodes)"""


class ScalePool(Command, frozen=True, kw_only=True, tag="scale_pool"):
    """The pool shall have so many nodes from now on, within its least and most; what is set for later stays. What lacks
    is ordered. What is too much goes at once: what is on order or boots, then empty nodes, those out of use first;
    refused when so many are not empty."""

    pool: str
    nodes: int


class SetAutoscaling(Command, frozen=True, kw_only=True, tag="set_autoscaling"):
    """Set the rules by which the cell orders nodes and gives them back: a preset with these fields of Autoscaling
    changed.
    """

    preset: str = ""
    """Empty: as it is now."""
    changes: dict[str, int | bool | tuple[str, ...]] = {}


class SetSettings(Command, frozen=True, kw_only=True, tag="set_settings"):
    settings: Settings


class SetPrice(Command, frozen=True, kw_only=True, tag="set_price"):
    """Set the cost of a node of the pool from now on, in micro-USD per hour, also for existing nodes."""

    pool: str
    price_microusd_hour: int


class SetBudgets(Command, frozen=True, kw_only=True, tag="set_budgets"):
    """New budgets, and other specs for those there are."""

    budgets: tuple[BudgetSpec, ...]


class RemoveBudgets(Command, frozen=True, kw_only=True, tag="remove_budgets"):
    names: tuple[str, ...]


class ApproveSpending(Command, frozen=True, kw_only=True, tag="approve_spending"):
    """Workloads may start whatever is left of budgets that ask for approval."""

    ids: tuple[str, ...]


class SetQos(Command, frozen=True, kw_only=True, tag="set_qos"):
    """Another quality of service, by the name it has in Slurm, for jobs that wait there."""

    ids: tuple[str, ...]
    qos: str


class SetJobPriority(Command, frozen=True, kw_only=True, tag="set_job_priority"):
    """Another priority, as Slurm counts it, for jobs that wait there: from then on it stays as it is set."""

    ids: tuple[str, ...]
    priority: int


class PowerUp(Command, frozen=True, kw_only=True, tag="power_up"):
    """Have Slurm start nodes that it powers by need."""

    ids: tuple[str, ...]


class PowerDown(Command, frozen=True, kw_only=True, tag="power_down"):
    """Have Slurm stop nodes that it powers by need, once nothing runs there."""

    ids: tuple[str, ...]


class IntentChange(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an intent: `engine.state.external_cell`."""

    number: int
    phase: int
    """An `engine.state.external_cell.Phase`."""
    job: int = 0
    submit_s: int = 0
    text: str = ""
    boot: str = ""
    before: str = ""
    """These as `engine.state.external_cell.Intent`."""


class SettleIntents(Command, frozen=True, kw_only=True, tag="settle_intents"):
    """The report of an outside scheduler's driver on intents."""

    changes: tuple[IntentChange, ...]


class AnswerIntent(Command, frozen=True, kw_only=True, tag="answer_intent"):
    """A person's answer to an intent in doubt: `engine.state.external_cell`."""

    number: int
    outcome: Literal["done", "undone", "retry"]
    by: str
    """Subject of who says it."""


class Observe(Command, frozen=True, kw_only=True, tag="observe"):
    """Observations of the scheduler that decides the cell, in the order they are to be taken. For a cell that Muster
    mirrors alone. The receipt names those that could not be taken; they do not refuse the rest.
    """

    seen: tuple[AnySeen, ...]


AnyCommand = (
    Define
    | AddPools
    | AddNodes
    | AddQueues
    | AddPriorityClasses
    | RemovePriorityClasses
    | ChangeQueue
    | OrderQueues
    | HoldQueues
    | DrainQueues
    | OpenQueues
    | Submit
    | Cancel
    | Recall
    | Hold
    | Release
    | Requeue
    | Suspend
    | Resume
    | Reserve
    | Unreserve
    | Cordon
    | Uncordon
    | Drain
    | TaintNodes
    | SetPolicy
    | SetSettings
    | SetScaling
    | SetTargets
    | ScalePool
    | SetAutoscaling
    | RemoveNodes
    | FailNodes
    | RestoreNodes
    | WatchNodes
    | UnwatchNodes
    | Interrupt
    | SetPriority
    | MoveToQueue
    | Preempt
    | Resize
    | Migrate
    | SetPrice
    | SetBudgets
    | RemoveBudgets
    | ApproveSpending
    | Observe
    | SetQos
    | SetJobPriority
    | PowerUp
    | PowerDown
    | SettleIntents
    | AnswerIntent
)


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Given only after the journal has the change."""

    version: int
    """State version that includes the change."""
    at_ms: int
    changed: tuple[str, ...]
    """Ids the command touched, in the order given."""
    left_out: tuple[str, ...] = ()
    """For an Observe: one line for each observation that could not be taken."""


CARRIED: dict[str, tuple[type[Command], ...]] = {
    "slurm": (
        Submit, Cancel, Hold, Release, Requeue, Preempt, SetPriority, SetQos,
        SetJobPriority, MoveToQueue, Cordon, Uncordon, Drain, RestoreNodes, HoldQueues,
        DrainQueues, OpenQueues, Reserve, Unreserve, PowerUp, PowerDown,
    ),
    "kubernetes": (
        Submit, Cancel, Hold, Release, SetPriority, ChangeQueue, Cordon, Uncordon, TaintNodes, Drain, HoldQueues,
        DrainQueues, OpenQueues,
    ),
}  # fmt: skip
"""Scheduler that decides -> commands that become intents: what it can be asked for."""
OURS: tuple[type[Command], ...] = (
    SettleIntents, AnswerIntent, SetPrice, SetBudgets, RemoveBudgets, ApproveSpending,
    WatchNodes, UnwatchNodes, Define, SetSettings,
)  # fmt: skip
"""Commands about what Muster alone keeps: done as in any cell."""
WHY_NOT: dict[str, dict[type[Command], str]] = {
    "slurm": {
        Suspend: "Slurm suspends a job on its nodes, where it keeps its memory: hold or requeue it instead",
        Resume: "nothing is suspended by Muster here",
        Resize: "Slurm's jobs keep what they asked for: cancel it and submit it anew",
        Migrate: "Slurm chooses the nodes: drain a node, or requeue the work",
        SetPolicy: "the order of work is slurm.conf's",
        OrderQueues: "the order of work is slurm.conf's",
        ChangeQueue: "limits are those of slurmdbd: use sacctmgr",
        SetScaling: "nodes are powered by slurmctld: see SuspendTime in slurm.conf",
        SetTargets: "nodes are powered by slurmctld: power nodes up or down by name",
        ScalePool: "nodes are powered by slurmctld: power nodes up or down by name",
        SetAutoscaling: "nodes are powered by slurmctld: see SuspendTime in slurm.conf",
        Interrupt: "Slurm knows no notice of a provider: drain the nodes",
        FailNodes: "slurmctld finds out itself which nodes are down: drain them",
        RemoveNodes: "nodes are those of slurm.conf",
        AddPools: "nodes are those of slurm.conf",
        AddNodes: "nodes are those of slurm.conf",
        AddQueues: "queues are the partitions of slurm.conf",
        AddPriorityClasses: "they follow from Slurm's partitions and QOS",
        Recall: "what Slurm was asked for stays with it",
        RemovePriorityClasses: "they follow from Slurm's partitions and QOS",
        TaintNodes: "Slurm has no taints: drain the node, or reserve it",
    },
    "kubernetes": {
        Requeue: "Kueue puts work back by its own rules only: preempt by priority, or drain the node",
        Preempt: "Kueue preempts by its own rules only: give other work a higher priority",
        Suspend: "Kueue takes work off its nodes by its own rules only: cancel it, or drain its queue",
        Resume: "nothing is suspended by Muster here",
        Resize: "a Job keeps what its pods ask for: cancel it and submit it anew",
        Migrate: "kube-scheduler chooses the nodes: drain a node",
        MoveToQueue: "a Workload keeps its queue: cancel it and submit it anew",
        SetPolicy: "the order of work is Kueue's configuration",
        OrderQueues: "queueingStrategy belongs to whoever made the ClusterQueue: use kubectl",
        SetScaling: "nodes are ordered by the cluster's autoscaler",
        SetTargets: "nodes are ordered by the cluster's autoscaler",
        ScalePool: "nodes are ordered by the cluster's autoscaler: scale the node pool there",
        SetAutoscaling: "nodes are ordered by the cluster's autoscaler",
        Interrupt: "Kubernetes knows no notice of a provider: drain the nodes",
        FailNodes: "Kubernetes finds out itself which nodes are down: drain them",
        RestoreNodes: "Kubernetes finds out itself which nodes are back: uncordon them",
        RemoveNodes: "nodes leave with their machines: drain them, and delete them with kubectl",
        Reserve: "Kueue has no reservations: lower a quota, or taint nodes",
        Unreserve: "Kueue has no reservations",
        SetQos: "QOS are Slurm's",
        SetJobPriority: "numbers for single jobs are Slurm's: set the priority class",
        PowerUp: "nodes are powered by the cluster's autoscaler",
        PowerDown: "nodes are powered by the cluster's autoscaler",
        AddPools: "nodes are those of the cluster",
        AddNodes: "nodes are those of the cluster",
        AddQueues: "queues are made with kubectl",
        AddPriorityClasses: "WorkloadPriorityClasses are made with kubectl",
        Recall: "what Kueue was asked for stays with it",
        RemovePriorityClasses: "WorkloadPriorityClasses are removed with kubectl",
    },
}
"""Scheduler that decides -> the reason why a command cannot be done in its cell, and the alternative."""


ACT_FLAGS = {"slurm": "--slurm-act", "kubernetes": "--kubernetes-act"}


def why_not(command: type[Command], *, by: str, acts: bool, lacks: Mapping[type[Command], str]) -> str:
    """The reason why it cannot be done in a cell that `by` decides on; empty when it can. `lacks`: requests that this
    cluster cannot serve over this connection.
    """
    carried, never = CARRIED[by], WHY_NOT[by]
    if command in OURS or command not in (*carried, *never):
        return ""
    if command not in carried:
        return never[command]
    if not acts:
        return f"Muster only observes this cluster (muster serve {ACT_FLAGS[by]} lets it act)"
    return lacks.get(command, "")
