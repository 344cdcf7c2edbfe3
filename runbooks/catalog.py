"""The closed set of actions a plan may name: what each applies to, how risky it is, how it is taken back, which engine
command its plan becomes, and what must be true afterwards. How plans read is in `runbooks.wording`.

Tiers: T1 reversible, T2 disruptive, T3 hard to undo. An action's own tier is a floor; the state of its targets may
raise it and nothing lowers it. For now a single operator may approve their own plan at any tier; who else must
agree, and from which tier on, is the approval policy of issue 7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal, TypeVar, get_args

import msgspec

from engine.commands import (
    MOST_EVIDENCE,
    AnyCommand,
    ApproveSpending,
    Cancel,
    ChangeQueue,
    Cordon,
    Drain,
    DrainQueues,
    Hold,
    HoldQueues,
    Interrupt,
    Migrate,
    Move,
    OpenQueues,
    Release,
    RemoveBudgets,
    Requeue,
    Reserve,
    Resize,
    Resume,
    SetBudgets,
    SetPolicy,
    SetPrice,
    Suspend,
    Uncordon,
    Unreserve,
)
from engine.errors import SpecError
from engine.model import BudgetSpec, Policy, QueueSpec, ReservationSpec
from engine.scaling import Autoscaling
from engine.scaling_report import PoolSize
from runbooks import sizes
from runbooks.plan import ActionName, Plan

Kind = Literal["workload", "node", "queue", "reservation", "policy", "pool", "budget", "scaling"]
Tier = Literal["T0", "T1", "T2", "T3"]

Given = TypeVar("Given")

TIERS: tuple[Tier, ...] = get_args(Tier)
POLICIES: tuple[Policy, ...] = get_args(Policy)
BOUND = frozenset(("placed", "running"))
"""States in which a workload holds capacity, so that stopping it loses work."""
LARGE_SHARE_PERMILLE = 100
"""Taking more than this share of a pool (and more than one node) out of use is a tier riskier, and so is stopping more
than this share of the cell's running workloads (and more than one) by way of their queue."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One target as the engine's state has it at the moment it was read."""

    id: str
    """Id of a workload or node, name of a queue or reservation; for `set_policy` the name of the policy asked for."""
    state: str
    """Label of its state; for `set_policy` the policy in force, for a reservation "made" or "not made"."""
    attempts: int = 0
    """How often a workload was started: tells a restarted one from the run that was shown."""
    gpu_milli: int = 0
    cpu_milli: int = 0
    unsaved_ms: int = 0
    """Time a bound workload has run since its last checkpoint, or its start; else 0."""
    worked_ms: int = 0
    """Time a workload has run in all its attempts."""
    pool: str = ""
    work: tuple[str, ...] = ()
    """Workloads with a task on a node; of a queue, those that the action stops."""
    queue: QueueSpec | None = None
    """What a queue has."""
    reservation: ReservationSpec | None = None
    """What a reservation that is made keeps."""
    nodes: tuple[str, ...] = ()
    """Nodes that a bound workload is on, as many as the engine tells."""
    asks: tuple[tuple[str, dict[str, int]], ...] = ()
    """(group, request of one task) of a workload."""
    price_microusd_hour: int = 0
    """Of a node of a pool."""
    budget: BudgetSpec | None = None
    """What a budget that is set says."""
    approved: bool = False
    """Somebody approved the spending of a workload."""
    size: PoolSize | None = None
    """What a pool's size goes by, and is."""
    autoscaling: Autoscaling | None = None
    """The autoscaler's settings."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the catalogue."""

    name: ActionName
    kind: Kind
    verb: str
    tier: Tier
    """The least tier a plan with this action can have."""
    states: frozenset[str]
    """States of a target in which the action makes sense. Not used for policies."""
    otherwise: str
    """What a person can do when a target is in another state."""
    inverse: str
    """How it is taken back; `{them}` stands for the targets, `{was}` for what is in force instead."""
    command: Callable[[Plan], AnyCommand]
    """Raises SpecError for a plan that no command can express."""
    done: Callable[[Target, Target], bool]
    """True when the second reading shows the action's effect; the first is from before execution."""


def change_queue_command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless the plan gives its one queue another spec."""
    change = required(plan.queue, "queue")
    names = (change.was.name, change.to.name)
    if plan.targets != (change.to.name,) or len(set(names)) > 1:
        raise SpecError("queue", f"{' and '.join(names)} is not the target", "Change one queue, by its own name")
    return ChangeQueue(queue=change.to, over=change.over)


def reserve_command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless the plan describes its one reservation."""
    reservation = required(plan.reservation, "reservation")
    if plan.targets != (reservation.name,):
        raise SpecError("reservation", f"{reservation.name} is not the target", "Make one reservation, by its own name")
    return Reserve(reservation=reservation)


def consolidate_command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless the plan says of each target where it goes."""
    if plan.targets != tuple(move.id for move in plan.moves):
        raise SpecError("moves", "are not those of the targets", "Give one move for each target, in their order")
    for i, move in enumerate(plan.moves):
        if not move.to or not move.was:
            raise SpecError(f"moves[{i}]", "names no node", "Say on which nodes it is, and to which it goes")
    return Migrate(moves=tuple(Move(id=move.id, nodes=move.to) for move in plan.moves))


def resize_command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless the plan says what the targets ask for from now on."""
    change = required(plan.resize, "resize")
    return Resize(ids=plan.targets, group=change.group, request=change.request, evidence=plan.reason[:MOST_EVIDENCE])


def set_price_command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless the plan says what nodes of its one pool cost."""
    price = required(required(plan.money, "money").price_microusd_hour, "money.price_microusd_hour")
    if len(plan.targets) > 1:
        raise SpecError("targets", "are several pools", "Set one price at a time")
    return SetPrice(pool=plan.targets[0], price_microusd_hour=price)


def set_budget_command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless the plan describes its one budget."""
    budget = required(required(plan.money, "money").budget, "money.budget")
    if plan.targets != (budget.name,):
        raise SpecError("money.budget", f"{budget.name} is not the target", "Set one budget, by its own name")
    return SetBudgets(budgets=(budget,))


def set_policy_command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless there is exactly one name and it is a known policy."""
    for policy in POLICIES:
        if plan.targets == (policy,):
            return SetPolicy(policy=policy)
    raise SpecError("targets", f"{', '.join(plan.targets)} is not one policy", f"Give one of {', '.join(POLICIES)}")


def required(given: Given | None, where: str) -> Given:
    if given is None:
        raise SpecError(where, "is missing", "Say what it shall be")
    return given


ROWS: tuple[Action, ...] = (
    Action(
        name="cancel",
        kind="workload",
        verb="Cancel",
        tier="T2",
        states=frozenset(("queued", "held", "waiting", "suspended", "placed", "running")),
        otherwise="Only work that has not ended can be cancelled",
        inverse="Cannot be undone: submit {them} again under a new id; work done so far is lost",
        command=lambda plan: Cancel(ids=plan.targets),
        done=lambda before, now: now.state == "cancelled",
    ),
    Action(
        name="hold",
        kind="workload",
        verb="Hold",
        tier="T1",
        states=frozenset(("queued", "waiting")),
        otherwise="Only queued or waiting work can be held; requeue running work first",
        inverse="Release {them}",
        command=lambda plan: Hold(ids=plan.targets),
        done=lambda before, now: now.state == "held",
    ),
    Action(
        name="release",
        kind="workload",
        verb="Release",
        tier="T1",
        states=frozenset(("held",)),
        otherwise="Only held work can be released",
        inverse="Hold {them} while not yet started",
        command=lambda plan: Release(ids=plan.targets),
        done=lambda before, now: now.state != "held",
    ),
    Action(
        name="requeue",
        kind="workload",
        verb="Requeue",
        tier="T2",
        states=BOUND,
        otherwise="Only placed or running work can be requeued",
        inverse="Cannot be undone: work since the last checkpoint is lost; place in the queue is kept",
        command=lambda plan: Requeue(ids=plan.targets),
        # A scheduling cycle may have started it again already: then it is a later attempt.
        done=lambda before, now: now.state not in BOUND or now.attempts > before.attempts,
    ),
    Action(
        name="suspend",
        kind="workload",
        verb="Suspend",
        tier="T1",
        states=BOUND | {"queued", "waiting"},
        otherwise="Only work that runs or waits can be suspended; release held work first",
        inverse="Resume {them}; work since the last checkpoint is lost",
        command=lambda plan: Suspend(ids=plan.targets),
        done=lambda before, now: now.state == "suspended",
    ),
    Action(
        name="resume",
        kind="workload",
        verb="Resume",
        tier="T1",
        states=frozenset(("suspended",)),
        otherwise="Only suspended work can be resumed",
        inverse="Suspend {them}",
        command=lambda plan: Resume(ids=plan.targets),
        done=lambda before, now: now.state != "suspended",
    ),
    Action(
        name="cordon",
        kind="node",
        verb="Cordon",
        tier="T1",
        states=frozenset(("ready",)),
        otherwise="Only ready nodes can be cordoned",
        inverse="Uncordon {them}",
        command=lambda plan: Cordon(ids=plan.targets),
        done=lambda before, now: now.state == "cordoned",
    ),
    Action(
        name="uncordon",
        kind="node",
        verb="Uncordon",
        tier="T1",
        states=frozenset(("cordoned", "draining")),
        otherwise="Only cordoned or draining nodes can be uncordoned",
        inverse="Cordon {them}",
        command=lambda plan: Uncordon(ids=plan.targets),
        done=lambda before, now: now.state == "ready",
    ),
    Action(
        name="drain",
        kind="node",
        verb="Drain",
        tier="T2",
        states=frozenset(("ready", "cordoned")),
        otherwise="Only ready or cordoned nodes can be drained",
        inverse="Uncordon {them}; work since the last checkpoint is lost and does not return by itself",
        command=lambda plan: Drain(ids=plan.targets),
        done=lambda before, now: now.state in ("draining", "cordoned") and not now.work,
    ),
    Action(
        name="interrupt",
        kind="node",
        verb="Interrupt",
        tier="T3",
        states=frozenset(("ready", "cordoned")),
        otherwise="Only ready or cordoned nodes can be interrupted; one that drains may have had its notice",
        inverse="Cannot be undone: after the notice {them} is gone; order or add others",
        command=lambda plan: Interrupt(ids=plan.targets),
        done=lambda before, now: now.state == "draining",
    ),
    Action(
        name="hold_queue",
        kind="queue",
        verb="Hold",
        tier="T1",
        states=frozenset(("open",)),
        otherwise="Only open queues can be held; a draining one holds its work already",
        inverse="Open {them}",
        command=lambda plan: HoldQueues(names=plan.targets),
        done=lambda before, now: now.state == "held",
    ),
    Action(
        name="drain_queue",
        kind="queue",
        verb="Drain",
        tier="T2",
        states=frozenset(("open", "held")),
        otherwise="Only open or held queues can be drained",
        inverse="Open {them}; work since the last checkpoint is lost",
        command=lambda plan: DrainQueues(names=plan.targets),
        done=lambda before, now: now.state == "draining" and not now.work,
    ),
    Action(
        name="open_queue",
        kind="queue",
        verb="Open",
        tier="T1",
        states=frozenset(("held", "draining")),
        otherwise="Only held or draining queues can be opened; look for one above that holds it",
        inverse="Hold {them}; what has started by then goes on",
        command=lambda plan: OpenQueues(names=plan.targets),
        done=lambda before, now: now.state == "open",
    ),
    Action(
        name="set_quota",
        kind="queue",
        verb="Set quota of",
        tier="T1",
        states=frozenset(("open", "held", "draining")),
        otherwise="Nothing needs doing",
        inverse="Set quota of {them} back to {was}",
        command=change_queue_command,
        done=lambda before, now: now.queue is not None and now.queue != before.queue,
    ),
    Action(
        name="reserve",
        kind="reservation",
        verb="Make",
        tier="T1",
        states=frozenset(("not made",)),
        otherwise="Give it another name, or take that one back first",
        inverse="Unreserve {them}",
        command=reserve_command,
        done=lambda before, now: now.state == "made",
    ),
    Action(
        name="unreserve",
        kind="reservation",
        verb="Take back",
        tier="T1",
        states=frozenset(("made",)),
        otherwise="Nothing needs doing",
        inverse="Reserve {was}; others may have taken the nodes by then",
        command=lambda plan: Unreserve(names=plan.targets),
        done=lambda before, now: now.state == "not made",
    ),
    Action(
        name="set_policy",
        kind="policy",
        verb="Set policy to",
        tier="T1",
        states=frozenset(),
        otherwise="Nothing needs doing",
        inverse="Set policy to {was}",
        command=set_policy_command,
        done=lambda before, now: now.state == now.id,
    ),
    Action(
        name="set_price",
        kind="pool",
        verb="Set price of",
        tier="T1",
        states=frozenset(("priced",)),
        otherwise="Nothing needs doing",
        inverse="Set price of {them} back to {was}; what was charged meanwhile stays charged",
        command=set_price_command,
        done=lambda before, now: now.price_microusd_hour != before.price_microusd_hour,
    ),
    Action(
        name="set_budget",
        kind="budget",
        verb="Set",
        tier="T1",
        states=frozenset(("set", "not set")),
        otherwise="Nothing needs doing",
        inverse="Set {them} back to what it was ({was}); if that is none, remove it",
        command=set_budget_command,
        done=lambda before, now: now.budget is not None and now.budget != before.budget,
    ),
    Action(
        name="remove_budget",
        kind="budget",
        verb="Remove",
        tier="T1",
        states=frozenset(("set",)),
        otherwise="Nothing needs doing",
        inverse="Set {them} to {was} again",
        command=lambda plan: RemoveBudgets(names=plan.targets),
        done=lambda before, now: now.state == "not set",
    ),
    Action(
        name="approve_spending",
        kind="workload",
        verb="Approve the spending of",
        tier="T1",
        states=frozenset(("queued", "held", "waiting", "suspended")),
        otherwise="Only the spending of work that waits can be approved; what runs goes on without",
        inverse="Cannot be undone: hold {them} instead",
        command=lambda plan: ApproveSpending(ids=plan.targets),
        done=lambda before, now: now.approved,
    ),
    Action(
        name="set_scaling",
        kind="scaling",
        verb="Set the size of pool",
        tier="T1",
        states=frozenset(("growing", "fixed")),
        otherwise="Nothing needs doing",
        inverse="Set scaling of {them} back to {was}; nodes that were given back by then are ordered anew",
        command=sizes.command,
        done=lambda before, now: now.size != before.size,
    ),
    Action(
        name="set_targets",
        kind="scaling",
        verb="Set targets of pool",
        tier="T1",
        states=frozenset(("growing",)),
        otherwise="Only a pool that grows by itself can have targets: set-scaling it first",
        inverse="Set targets of {them} back: {was}",
        command=sizes.command,
        done=lambda before, now: now.size != before.size,
    ),
    Action(
        name="set_autoscaling",
        kind="scaling",
        verb="Set the",
        tier="T1",
        states=frozenset(("set",)),
        otherwise="Nothing needs doing",
        inverse="Set autoscaling back to {was}",
        command=sizes.command,
        done=lambda before, now: now.autoscaling != before.autoscaling,
    ),
    Action(
        name="resize",
        kind="workload",
        verb="Resize",
        tier="T1",
        states=BOUND | {"queued", "held", "waiting", "suspended"},
        otherwise="Only work that has not ended can be resized",
        inverse="Resize {them} back to {was}",
        command=resize_command,
        done=lambda before, now: now.asks != before.asks,
    ),
    Action(
        name="consolidate",
        kind="workload",
        verb="Move",
        tier="T2",
        states=BOUND,
        otherwise="Only placed or running work can be moved; plan the moves again",
        inverse="Cannot be undone: work since the last checkpoint is lost; moving {them} back would lose more",
        command=consolidate_command,
        done=lambda before, now: now.state in BOUND and now.attempts > before.attempts,
    ),
)

CATALOG: Mapping[str, Action] = {row.name: row for row in ROWS}


def find(name: str) -> Action:
    """The catalogue's row. Raises SpecError when there is no such action."""
    row = CATALOG.get(name)
    if row is None:
        shown = name[:40].encode("unicode_escape").decode()
        raise SpecError("action", f"'{shown}' is not in the catalogue", f"Give one of {', '.join(CATALOG)}")
    return row


def command(plan: Plan) -> AnyCommand:
    """The one engine command a plan stands for. Raises SpecError for what no command can express."""
    for field, action in (("queue", "set_quota"), ("reservation", "reserve"), ("resize", "resize")):
        if getattr(plan, field) is not None and plan.action != action:
            raise SpecError(field, f"has no meaning for {plan.action}", "Leave it out")
    if plan.scaling is not None and plan.action not in sizes.ACTIONS:
        raise SpecError("scaling", f"has no meaning for {plan.action}", "Leave it out")
    if plan.money is not None and plan.action not in ("set_price", "set_budget"):
        raise SpecError("money", f"has no meaning for {plan.action}", "Leave it out")
    if plan.moves and plan.action != "consolidate":
        raise SpecError("moves", f"have no meaning for {plan.action}", "Leave them out")
    return find(plan.action).command(plan)


def why_not(action: Action, target: Target) -> str:
    """Why the action does not apply to a target in its present state; empty when it does."""
    if action.kind == "policy":
        return f"{target.id} is in force already" if target.id == target.state else ""
    return "" if target.state in action.states else f"{target.id} is {target.state}"


def tier(action: Action, targets: tuple[Target, ...], pool_nodes: Mapping[str, int], running: int) -> Tier:
    """The tier of acting on these targets now. `pool_nodes` is pool name -> how many nodes it has, `running` how many
    workloads of the cell are bound."""
    raises = (
        discards_work(action, targets),
        takes_large_share(action, targets, pool_nodes),
        interrupts_work(action, targets),
        stops_large_share(action, targets, running),
    )
    return TIERS[min(TIERS.index(action.tier) + sum(raises), len(TIERS) - 1)]


def discards_work(action: Action, targets: tuple[Target, ...]) -> bool:
    """True when a cancel ends work that runs, or throws away what earlier attempts did."""
    return action.name == "cancel" and any(target.state in BOUND or target.worked_ms for target in targets)


def takes_large_share(action: Action, targets: tuple[Target, ...], pool_nodes: Mapping[str, int]) -> bool:
    """True when the action takes a large share of any one pool out of use."""
    if action.name not in ("cordon", "drain", "interrupt"):
        return False
    taken = Counter(target.pool for target in targets)
    return any(n > 1 and n * 1000 > LARGE_SHARE_PERMILLE * pool_nodes.get(pool, 0) for pool, n in taken.items())


def interrupts_work(action: Action, targets: tuple[Target, ...]) -> bool:
    """True when an action that may leave running work alone stops some."""
    return (action.name in ("suspend", "resize") and any(target.state in BOUND for target in targets)) or (
        action.name == "set_quota" and any(target.work for target in targets)
    )


def stops_large_share(action: Action, targets: tuple[Target, ...], running: int) -> bool:
    """True when what is done to queues stops a large share of the cell's work."""
    stopped = {id_ for target in targets for id_ in target.work} if action.kind == "queue" else ()
    return len(stopped) > 1 and len(stopped) * 1000 > LARGE_SHARE_PERMILLE * running


def loses_work(action: Action, target: Target) -> bool:
    """Whether acting on this workload can lose work done."""
    match action.name:
        case "cancel":
            return target.state in BOUND or target.worked_ms > 0
        case "requeue" | "suspend" | "resize" | "drain" | "drain_queue" | "set_quota" | "consolidate" | "interrupt":
            return target.state in BOUND
        case _:
            return False


def loss_ms(action: Action, target: Target) -> int:
    """Run time lost if it happened now: all of it when cancelled, else what no checkpoint has saved."""
    return target.worked_ms if action.name == "cancel" else target.unsaved_ms


def lost(action: Action, stopped: list[Target]) -> str:
    """Work lost when the action stops these: device hours, or core hours where none has devices."""
    gpu = sum(work.gpu_milli * loss_ms(action, work) for work in stopped)
    if gpu:
        return f"{gpu / 3_600_000_000:,.1f} GPU-h"
    return f"{sum(work.cpu_milli * loss_ms(action, work) for work in stopped) / 3_600_000_000:,.1f} CPU-h"
