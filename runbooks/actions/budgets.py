"""The actions on budgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.model.errors import RefusedError, SpecError
from runbooks.actions.declaration import Action, Given, PlannedCell, Proof, SeenCell, Typed, required
from runbooks.actions.lazy_modules import commands, money, msgspec, plan
from runbooks.actions.parameters import Argument, choice, flag, ids, number, one
from runbooks.plans.amounts import hours

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from engine.model.money import BudgetSpec
    from runbooks.plans.typed_plan import Act, Target

THEN = ("warn", "hold", "approve")
"""What happens when all is spent."""
WHOSE = ("tenant", "team", "queue")


def budget_act(spec: BudgetSpec) -> Act:
    return plan.Act(action="set_budget", targets=(spec.name,), money=plan.MoneyChange(budget=spec))


def make(given: Given, cell: PlannedCell) -> Act:
    was = cell.budget(given["budget"])
    changes: dict[str, Any] = {}
    if "limit_usd" in given:
        changes["limit_microusd"] = given["limit_usd"] * money.MICROUSD
    elif "add_usd" in given:
        changes["limit_microusd"] = was.limit_microusd + given["add_usd"] * money.MICROUSD
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
        raise SpecError("--queue", "is missing", "Say whose budget it is: --tenant, --team or --queue")
    if was is None and typed["limit"] is None:
        raise SpecError("--limit", "is missing", "Say how much may be spent, such as --limit 500")
    fields = {} if was is None else {name: getattr(was, name) for name in was.__struct_fields__}
    fields["name"] = typed["name"]
    if given:
        fields["scope"], fields["of"] = given[0]
    told = {"limit_microusd": "limit", "window_ms": "window", "action": "then", "warn_permille": "warn_percent"}
    fields |= {field: typed[name] for field, name in told.items() if typed[name] is not None}
    return budget_act(money.BudgetSpec(**fields))


def express(act: Act) -> AnyCommand:
    """Raises SpecError unless the act describes its one budget."""
    budget = required(required(act.money, "money").budget, "money.budget")
    if act.targets != (budget.name,):
        raise SpecError("money.budget", f"{budget.name} is not the target", "Set one budget, by its own name")
    return commands.SetBudgets(budgets=(budget,))


def given_budget(act: Act) -> BudgetSpec | None:
    return None if act.money is None else act.money.budget


def refuse(act: Act, targets: tuple[Target, ...]) -> None:
    if given_budget(act) == targets[0].budget:
        raise RefusedError(f"{targets[0].id} has exactly that", "Nothing needs doing")


def back(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """Those that there were are set again; those that there were not are removed."""
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
    limit = money.usd(spec.limit_microusd)
    return f"{limit} in {hours(spec.window_ms)} for {spec.scope} {spec.of}, then {spec.action}"


def change(act: Act, target: Target) -> tuple[str, str]:
    return words(target.budget), words(given_budget(act))


def found(before: Target, now: Target, done: bool) -> str:
    return f"budget {now.id} is {words(now.budget)}"


ACTIONS: tuple[Action, ...] = (
    Action(
        name="set_budget",
        label="Set budget",
        verb="Set",
        summary="what a tenant, a team or a queue may spend in each window",
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
        not_for_models="it changes what may be spent",
        make=make,
        arguments=(
            Argument("name", metavar="NAME"),
            flag("tenant", apart="whose", default=""),
            flag("team", apart="whose", default=""),
            flag("queue", apart="whose", default="", help="with all queues below it", of="queue"),
            flag("limit", "money", "USD", "that may be spent in each window"),
            flag("window", "duration", "TIME", "such as 1d, 7d or 30d (default); windows follow each other"),
            flag(
                "then", choices=THEN,
                help="when all is spent: show it (default), start nothing more of it, or only what somebody approves",
            ),
            flag("warn-percent", "percent", "N", "of the limit, shown from then on (80)"),
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
        verified="says what was given",
        proof=(Proof("budget_spent_permille", "<", 1000),),
        inverse="Set {them} back to what it was ({was}); if that is none, remove it",
        back=back,
        change=change,
        found=found,
    ),
    Action(
        name="remove_budget",
        label="Remove budget",
        verb="Remove",
        summary="take budgets back",
        example=":remove-budget NAME",
        parameters={"budgets": ids("budget")},
        not_for_models="it changes what may be spent",
        kind="budget",
        states=("set",),
        tier="T1",
        command="RemoveBudgets",
        after=("not set",),
        verified="is not set any more",
        inverse="Set {them} to {was} again",
        back=back,
        change=change,
        found=found,
    ),
)  # fmt: skip
