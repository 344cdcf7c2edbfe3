"""Acts as the engine commands they stand for: one function for each action that is more than a list of ids."""

from __future__ import annotations

from typing import TypeVar, get_args

from engine.commands import (
    MOST_EVIDENCE,
    AnyCommand,
    ChangeQueue,
    Migrate,
    Move,
    MoveToQueue,
    OrderQueues,
    Reserve,
    Resize,
    ScalePool,
    SetAutoscaling,
    SetBudgets,
    SetJobPriority,
    SetPolicy,
    SetPrice,
    SetPriority,
    SetQos,
    SetScaling,
    SetTargets,
)
from engine.errors import SpecError
from engine.model import Policy
from runbooks import sizes
from runbooks.plan import Act, ScalingChange

Given = TypeVar("Given")
MOST_JOB_PRIORITY = 0xFFFFFFFE
"""Slurm's own mark for none. 0 is its mark for held."""
POLICIES: tuple[Policy, ...] = get_args(Policy)


def change_queue(act: Act) -> AnyCommand:
    """Raises SpecError unless the act gives its one queue another spec."""
    change = required(act.queue, "queue")
    names = (change.was.name, change.to.name)
    if act.targets != (change.to.name,) or len(set(names)) > 1:
        raise SpecError("queue", f"{' and '.join(names)} is not the target", "Change one queue, by its own name")
    return ChangeQueue(queue=change.to, over=change.over)


def reserve(act: Act) -> AnyCommand:
    """Raises SpecError unless the act describes its one reservation."""
    reservation = required(act.reservation, "reservation")
    if act.targets != (reservation.name,):
        raise SpecError("reservation", f"{reservation.name} is not the target", "Make one reservation, by its own name")
    return Reserve(reservation=reservation)


def consolidate(act: Act) -> AnyCommand:
    """Raises SpecError unless the act says of each target where it goes."""
    if act.targets != tuple(move.id for move in act.moves):
        raise SpecError("moves", "are not those of the targets", "Give one move for each target, in their order")
    for i, move in enumerate(act.moves):
        if not move.to or not move.was:
            raise SpecError(f"moves[{i}]", "names no node", "Say on which nodes it is, and to which it goes")
    return Migrate(moves=tuple(Move(id=move.id, nodes=move.to) for move in act.moves))


def resize(act: Act) -> AnyCommand:
    """Raises SpecError unless the act says what the targets ask for from now on."""
    change = required(act.resize, "resize")
    return Resize(ids=act.targets, group=change.group, request=change.request, evidence=change.evidence[:MOST_EVIDENCE])


def set_price(act: Act) -> AnyCommand:
    """Raises SpecError unless the act says what nodes of its one pool cost."""
    price = required(required(act.money, "money").price_microusd_hour, "money.price_microusd_hour")
    return SetPrice(pool=act.targets[0], price_microusd_hour=price)


def set_budget(act: Act) -> AnyCommand:
    """Raises SpecError unless the act describes its one budget."""
    budget = required(required(act.money, "money").budget, "money.budget")
    if act.targets != (budget.name,):
        raise SpecError("money.budget", f"{budget.name} is not the target", "Set one budget, by its own name")
    return SetBudgets(budgets=(budget,))


def set_policy(act: Act) -> AnyCommand:
    """Raises SpecError unless there is exactly one name and it is a known policy."""
    for policy in POLICIES:
        if act.targets == (policy,):
            return SetPolicy(policy=policy)
    raise SpecError("targets", f"{', '.join(act.targets)} is not one policy", f"Give one of {', '.join(POLICIES)}")


def set_priority(act: Act) -> AnyCommand:
    return SetPriority(ids=act.targets, priority_class=required(act.to, "to"))


def set_qos(act: Act) -> AnyCommand:
    return SetQos(ids=act.targets, qos=required(act.to, "to"))


def set_job_priority(act: Act) -> AnyCommand:
    """Raises SpecError for what is no number that Slurm takes."""
    told = required(act.to, "to")
    if not told.isascii() or not told.isdecimal() or not 0 < int(told) < MOST_JOB_PRIORITY:
        raise SpecError("to", f"'{told[:40]}' is no priority", f"Give a number from 1 to {MOST_JOB_PRIORITY - 1}")
    return SetJobPriority(ids=act.targets, priority=int(told))


def move(act: Act) -> AnyCommand:
    return MoveToQueue(ids=act.targets, queue=required(act.to, "to"))


def set_scaling(act: Act) -> AnyCommand:
    change = required(act.scaling, "scaling")
    return SetScaling(pool=act.targets[0], **{field: getattr(change, field) for field in sizes.FIELDS})


def set_targets(act: Act) -> AnyCommand:
    return SetTargets(pool=act.targets[0], targets=required(act.scaling, "scaling").targets)


def set_autoscaling(act: Act) -> AnyCommand:
    """Raises SpecError unless the target is the autoscaler."""
    change: ScalingChange = required(act.scaling, "scaling")
    if act.targets[0] != sizes.AUTOSCALER:
        raise SpecError("targets", f"'{act.targets[0][:64]}' is not {sizes.AUTOSCALER}", f"Name {sizes.AUTOSCALER}")
    return SetAutoscaling(preset=change.preset, changes=change.settings)


def scale_pool(act: Act) -> AnyCommand:
    return ScalePool(pool=act.targets[0], nodes=required(act.nodes, "nodes"))


def canary(act: Act) -> AnyCommand:
    """Raises SpecError unless exactly one of order and policy is given."""
    change = required(act.canary, "canary")
    if (change.order is None) == (change.policy is None):
        raise SpecError("canary", "has not exactly one of order and policy", "Give an order for queues, or a policy")
    if change.order is not None:
        return OrderQueues(names=act.targets, order=change.order)
    if len(act.targets) > 1:
        raise SpecError("targets", "are several", "A policy is for the whole cell: name that")
    return SetPolicy(policy=required(change.policy, "canary.policy"))


def required(given: Given | None, where: str) -> Given:
    """Raises SpecError for what is left out."""
    if given is None or given == "":
        raise SpecError(where, "is missing", "Say what it shall be")
    return given
