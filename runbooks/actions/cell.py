"""The actions on how the cell schedules: its policy, and a trial of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.model.errors import RefusedError, SpecError
from runbooks.actions.declaration import Action, Given, PlannedCell, SeenCell, Typed, required
from runbooks.actions.lazy_modules import commands, msgspec, plan
from runbooks.actions.parameters import ORDERS, POLICIES, Argument, Parameter, choice, duration, flag, number
from runbooks.plans.amounts import listed, span

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from runbooks.plans.typed_plan import Act, Canary, Target

MARGIN_MS = 600_000
"""After the window of a canary, within which it must have been judged."""


def express_policy(act: Act) -> AnyCommand:
    """Raises SpecError unless there is exactly one name and it is a known policy."""
    for policy in POLICIES:
        if act.targets == (policy,):
            return commands.SetPolicy(policy=policy)
    raise SpecError("targets", f"{', '.join(act.targets)} is not one policy", f"Give one of {', '.join(POLICIES)}")


def policy_back(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    yield plan.Act(action="set_policy", targets=(shown[0].state,))


# -- canary -----------------------------------------------------------------------------------------------------------


def make_canary(given: Given, cell: PlannedCell) -> Act:
    fields = {name: given[name] for name in ("order", "policy", "worst_permille", "least_starts") if name in given}
    targets = given.get("queues", ()) if "order" in given else (cell.name,)
    return plan.Act(action="canary", targets=targets, canary=plan.Canary(window_ms=given["window"], **fields))


def read_canary(typed: Typed, cell: SeenCell) -> Act:
    """Raises SpecError naming the flag."""
    if bool(typed["ids"]) == bool(typed["policy"]):
        raise SpecError("--order", "is for queues, --policy for the whole cell", "Name queues, or give a policy")
    tried = plan.Canary(
        order=typed["order"],
        policy=typed["policy"],
        window_ms=typed["window"],
        worst_permille=typed["worst_percent"],
        least_starts=typed["least_starts"],
    )
    return plan.Act(action="canary", targets=tuple(typed["ids"]) or (cell.name,), canary=tried)


def express_canary(act: Act) -> AnyCommand:
    """Raises SpecError unless exactly one of order and policy is given."""
    change = required(act.canary, "canary")
    if (change.order is None) == (change.policy is None):
        raise SpecError("canary", "has not exactly one of order and policy", "Give an order for queues, or a policy")
    if change.order is not None:
        return commands.OrderQueues(names=act.targets, order=change.order)
    if len(act.targets) > 1:
        raise SpecError("targets", "are several", "A policy is for the whole cell: name that")
    return commands.SetPolicy(policy=required(change.policy, "canary.policy"))


def has_tried(target: Target, canary: Canary) -> bool:
    """Whether a target has what is tried."""
    if canary.policy is not None:
        return target.state == canary.policy
    return target.queue is not None and target.queue.order == canary.order


def refuse_in_force(act: Act, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError naming the targets that have already what is to be tried."""
    canary = required(act.canary, "canary")
    same = tuple(target.id for target in targets if has_tried(target, canary))
    if same:
        raise RefusedError(f"{listed(same)} has exactly that", "Leave it out; nothing needs doing")


def canary_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    canary = act.canary
    if canary is None:
        return
    if canary.policy is not None:
        yield plan.Act(action="set_policy", targets=(shown[0].state,))
    for target in shown:
        if canary.order is not None and target.queue is not None:
            changed = msgspec.structs.replace(target.queue, order=canary.order)
            change = plan.QueueChange(was=changed, to=target.queue, over="keep")
            yield plan.Act(action="set_quota", targets=(target.id,), queue=change)


def canary_title(act: Act) -> str:
    """As in "Try order fair on 2 queues for 4h"."""
    canary = act.canary
    if canary is None:
        return "Try nothing"
    if canary.policy is not None:
        return f"Try policy {canary.policy} for {span(canary.window_ms)}"
    queues = f"queue {act.targets[0]}" if len(act.targets) == 1 else f"{len(act.targets)} queues"
    return f"Try order {canary.order} on {queues} for {span(canary.window_ms)}"


def canary_steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    """What is tried, and by what it is judged."""
    canary = required(act.canary, "canary")
    judged = (
        f"then for {span(canary.window_ms)}: taken back if the p95 of waits is above "
        f"{canary.worst_permille / 10:,.12g}% of what it was, or fewer than {canary.least_starts:,} start"
    )
    if canary.policy is not None:
        return [f"{targets[0].id}: policy {targets[0].state} -> {canary.policy}, {judged}"]
    return [
        f"{target.id}: order {target.queue.order if target.queue else '?'} -> {canary.order}, {judged}"
        for target in targets
    ]


def found_tried(before: Target, now: Target, done: bool) -> str:
    order = f"orders by {now.queue.order}" if now.queue is not None else f"schedules by {now.state}"
    return f"{now.id} {order}"


ACTIONS: tuple[Action, ...] = (
    Action(
        name="set_policy",
        label="Set policy",
        verb="Set policy to",
        summary="change how the cell orders and backfills",
        example=":set-policy easy",
        parameters={"policy": Parameter(type="choice", required=True, target=True, choices=POLICIES)},
        not_for_models="it changes how the whole cell is scheduled",
        arguments=(Argument("policy", choices=POLICIES),),
        read=lambda typed, cell: plan.Act(action="set_policy", targets=(typed["policy"],)),
        kind="policy",
        most=1,
        of_cell=True,
        tier="T1",
        raised="work has to give way",
        impact=("displaces",),
        command="SetPolicy",
        express=express_policy,
        done=lambda act, before, now: now.state == now.id,
        verified="is in force",
        inverse="Set policy to {was}",
        back=policy_back,
    ),
    Action(
        name="canary",
        label="Canary",
        verb="Try another setting on",
        summary="try another order of queues, or policy of the cell; keep it only if waits stay as they were",
        example=":canary QUEUE --order fair --window 4h",
        parameters={
            "queues": Parameter(type="queue", many=True, target=True),
            "order": choice(*ORDERS),
            # It is for the whole cell.
            "policy": Parameter(type="choice", choices=POLICIES, for_models=False),
            "window": duration(least=60_000, required=True),
            "worst_permille": number(10_000, 1000),
            "least_starts": number(100_000, 1),
        },
        one_of=(("order", "policy"),),
        make=make_canary,
        arguments=(
            Argument("ids", metavar="QUEUE", help="none with --policy", many=True, required=False, of="queue"),
            flag("order", choices=ORDERS, help="of these queues", apart="tried!"),
            flag("policy", choices=POLICIES, help="of the whole cell", apart="tried!"),
            flag("window", "duration", "TIME", "of the cell, after which it is judged (1h)", default="1h"),
            flag("worst-percent", "percent", "N", "waits in percent (110)", default=110),
            flag("least-starts", "count", "N", "that a verdict needs (20)", default=20),
        ),
        read=read_canary,
        kind="canary",
        fields=("canary",),
        states=("open", "held", "draining", *POLICIES),
        refuse=refuse_in_force,
        of_cell=True,
        tier="T1",
        raised="work has to give way",
        impact=("displaces",),
        command="OrderQueues",
        express=express_canary,
        # What it led to is measured by `runbooks.gate.canary`.
        done=lambda act, before, now: act.canary is not None and has_tried(now, act.canary),
        verified="has it; then waits in the window against those before it and those of the others",
        waits=True,
        timeout_ms=MARGIN_MS,
        inverse="Set {them} back to {was}",
        back=canary_back,
        title=canary_title,
        was=lambda act, targets: ", ".join(dict.fromkeys(t.queue.order if t.queue else t.state for t in targets)),
        steps=canary_steps,
        found=found_tried,
    ),
)
