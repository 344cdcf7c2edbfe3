"""Actions on the cell as a whole: scheduling policy and canaries, budgets, notices and reviews."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.model.errors import RefusedError, SpecError
from engine.model.quantities import lasting, shortlist, usd
from runbooks.actions.declaration import (
    MAX_TEXT,
    ORDERS,
    POLICIES,
    Action,
    Argument,
    EffectProof,
    Given,
    Parameter,
    PlannedCell,
    SeenCell,
    Typed,
    choice,
    commands,
    duration,
    flag,
    ids,
    msgspec,
    number,
    one,
    plan,
    required,
    spec_parts,
)
from runbooks.plans.amounts import span

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from engine.model.spec_parts import BudgetSpec
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
        raise SpecError("--order", "is for queues, --policy for the whole cell", "Give queues or a policy")
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
        raise SpecError("canary", "needs exactly one of order and policy", "Give an order for queues, or a policy")
    if change.order is not None:
        return commands.OrderQueues(names=act.targets, order=change.order)
    if len(act.targets) > 1:
        raise SpecError("targets", "are several", "A policy applies to the whole cell: give the cell")
    return commands.SetPolicy(policy=required(change.policy, "canary.policy"))


def has_tried(target: Target, canary: Canary) -> bool:
    """True when a target has the setting that is tried."""
    if canary.policy is not None:
        return target.state == canary.policy
    return target.queue is not None and target.queue.order == canary.order


def refuse_in_force(act: Act, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError naming the targets that have already what is to be tried."""
    canary = required(act.canary, "canary")
    same = tuple(target.id for target in targets if has_tried(target, canary))
    if same:
        raise RefusedError(f"{shortlist(same)} already has that", "Leave it out: nothing to do")


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
    """The setting that is tried and the rule by which it is judged, a line for each target."""
    canary = required(act.canary, "canary")
    judged = (
        f"then for {span(canary.window_ms)}: rolled back if p95 wait is above "
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


CELL_ACTIONS: tuple[Action, ...] = (
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
        raised="work must be preempted",
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
        summary="try another queue order or cell policy; keep it only if waits do not get worse",
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
            flag("window", "duration", "TIME", "of cell time before the verdict (1h)", default="1h"),
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
        raised="work must be preempted",
        impact=("displaces",),
        command="OrderQueues",
        express=express_canary,
        # What it led to is measured by `runbooks.gate.aftermath`.
        done=lambda act, before, now: act.canary is not None and has_tried(now, act.canary),
        verified="has it; then waits in the window against waits before it and in other queues",
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


THEN = ("warn", "hold", "approve")
"""What happens when all is spent."""
WHOSE = ("tenant", "team", "queue")


def budget_act(spec: BudgetSpec) -> Act:
    return plan.Act(action="set_budget", targets=(spec.name,), money=plan.MoneyChange(budget=spec))


def make(given: Given, cell: PlannedCell) -> Act:
    was = cell.budget(given["budget"])
    changes: dict[str, Any] = {}
    if "limit_usd" in given:
        changes["limit_microusd"] = given["limit_usd"] * spec_parts.MICROUSD
    elif "add_usd" in given:
        changes["limit_microusd"] = was.limit_microusd + given["add_usd"] * spec_parts.MICROUSD
    if "on_spent" in given:
        changes["action"] = given["on_spent"]
    if "warn_permille" in given:
        changes["warn_permille"] = given["warn_permille"]
    return budget_act(msgspec.structs.replace(was, **changes))


def read(typed: Typed, cell: SeenCell) -> Act:
    """A new budget, or the one there is with what was typed in place of what it had. Raises SpecError naming the
    flag."""
    was = next((spec for spec in cell.budgets() if spec.name == typed["name"]), None)
    given = [(scope, typed[scope]) for scope in WHOSE if typed[scope]]
    if not given and was is None:
        raise SpecError("--queue", "is missing", "Give its owner: --tenant, --team or --queue")
    if was is None and typed["limit"] is None:
        raise SpecError("--limit", "is missing", "Give the amount, such as --limit 500")
    fields = {} if was is None else {name: getattr(was, name) for name in was.__struct_fields__}
    fields["name"] = typed["name"]
    if given:
        fields["scope"], fields["of"] = given[0]
    told = {"limit_microusd": "limit", "window_ms": "window", "action": "then", "warn_permille": "warn_percent"}
    fields |= {field: typed[name] for field, name in told.items() if typed[name] is not None}
    return budget_act(spec_parts.BudgetSpec(**fields))


def express(act: Act) -> AnyCommand:
    """Raises SpecError unless the act describes its one budget."""
    budget = required(required(act.money, "money").budget, "spec_parts.budget")
    if act.targets != (budget.name,):
        raise SpecError("spec_parts.budget", f"{budget.name} is not the target", "Set one budget, by its name")
    return commands.SetBudgets(budgets=(budget,))


def given_budget(act: Act) -> BudgetSpec | None:
    return None if act.money is None else act.money.budget


def refuse(act: Act, targets: tuple[Target, ...]) -> None:
    if given_budget(act) == targets[0].budget:
        raise RefusedError(f"{targets[0].id} already has that", "Nothing to do")


def back(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """The acts that restore the former budgets: those that existed are set again, new ones are removed."""
    for target in shown:
        if target.budget is not None:
            yield plan.Act(action="set_budget", targets=(target.id,), money=plan.MoneyChange(budget=target.budget))
    new = tuple(target.id for target in shown if target.budget is None)
    if new:
        yield plan.Act(action="remove_budget", targets=new)


def words(spec: BudgetSpec | None) -> str:
    """As in "$500.00 in 720 h for queue research, then hold"."""
    if spec is None:
        return "none"
    limit = usd(spec.limit_microusd)
    return f"{limit} in {lasting(spec.window_ms)} for {spec.scope} {spec.of}, then {spec.action}"


def change(act: Act, target: Target) -> tuple[str, str]:
    return words(target.budget), words(given_budget(act))


def found(before: Target, now: Target, done: bool) -> str:
    return f"budget {now.id} is {words(now.budget)}"


BUDGET_ACTIONS: tuple[Action, ...] = (
    Action(
        name="set_budget",
        label="Set budget",
        verb="Set",
        summary="limit what a tenant, team or queue spends in each window",
        example=":set-budget NAME --queue QUEUE --limit 500",
        parameters={
            "budget": one("budget"),
            "limit_usd": number(10**9),
            "add_usd": number(10**9, 1),
            "on_spent": choice(*THEN),
            "warn_permille": number(1000),
        },
        at_most_one=(("limit_usd", "add_usd"),),
        some=("limit_usd", "add_usd", "on_spent", "warn_permille"),
        not_for_models="it changes a spending limit",
        make=make,
        arguments=(
            Argument("name", metavar="NAME"),
            flag("tenant", apart="whose", default=""),
            flag("team", apart="whose", default=""),
            flag("queue", apart="whose", default="", help="with all queues below it", of="queue"),
            flag("limit", "money", "USD", "limit for each window"),
            flag("window", "duration", "TIME", "such as 1d, 7d or 30d (default); windows follow each other"),
            flag(
                "then", choices=THEN,
                help="when it is spent: only warn (default), hold new work, or require approval",
            ),
            flag("warn-percent", "percent", "N", "of the limit: warn from then on (80)"),
        ),
        read=read,
        kind="budget",
        fields=("money",),
        most=1,
        states=("set", "not set"),
        refuse=refuse,
        tier="T1",
        command="SetBudgets",
        express=express,
        done=lambda act, before, now: act.money is not None and now.budget == act.money.budget,
        verified="has the given values",
        proof=(EffectProof("budget_spent_permille", "<", 1000),),
        inverse="Set {them} back to what it was ({was}); if that is none, remove it",
        back=back,
        change=change,
        found=found,
    ),
    Action(
        name="remove_budget",
        label="Remove budget",
        verb="Remove",
        summary="remove budgets",
        example=":remove-budget NAME",
        parameters={"budgets": ids("budget")},
        not_for_models="it changes a spending limit",
        kind="budget",
        states=("set",),
        tier="T1",
        command="RemoveBudgets",
        after=("not set",),
        verified="is no longer set",
        inverse="Set {them} to {was} again",
        back=back,
        change=change,
        found=found,
    ),
)  # fmt: skip


TEXT = Parameter(type="text", required=True, most=MAX_TEXT)
ONE_LINE = flag("text", help="one line", required=True)


def steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    text = act.note.text if act.note is not None else ""
    return [f"{action.word} {target.id}: {text}" for target in targets]


NOTICE_ACTIONS: tuple[Action, ...] = (
    Action(
        name="notify",
        label="Notify",
        verb="Tell",
        summary="send a message to channels of the policy",
        example=":notify CHANNEL --text 'pool h100 is short of nodes'",
        parameters={"channels": ids("channel"), "text": TEXT},
        arguments=(ONE_LINE,),
        kind="channel",
        fields=("note",),
        most=16,
        states=("known",),
        otherwise="Only channels of the policy can be notified",
        tier="T0",
        done=lambda act, before, now: True,
        verified="it is in the outbox; delivery is recorded in the audit",
        inverse="Cannot be undone: the message is sent",
        title=lambda act: f"Notify {shortlist(act.targets)}",
        steps=steps,
        found=lambda before, now, done: f"{now.id} is notified",
    ),
    Action(
        name="open_review",
        label="Open review",
        verb="Open a review of",
        summary="ask others to review a proposal, or anything else with an id",
        example=":open-review ID --text 'why twice?'",
        parameters={"about": one("object"), "text": TEXT},
        arguments=(ONE_LINE,),
        kind="review",
        fields=("note",),
        most=1,
        states=("known",),
        otherwise="Give a proposal or another object",
        tier="T0",
        done=lambda act, before, now: True,
        verified="it is open",
        inverse="Cannot be undone: another person closes it",
        steps=steps,
        found=lambda before, now, done: f"a review of {now.id} is open",
    ),
)
