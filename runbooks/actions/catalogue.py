"""The closed set of actions, and the questions that are answered from a declaration: is an act well formed, which
command does it become, does it apply to a target, has it worked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.model.errors import SpecError
from runbooks.actions import cell, nodes, queues, slurm, taints, workloads
from runbooks.actions.declaration import LIVE, Action

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand, Command
    from runbooks.plans.checks import Verdict
    from runbooks.plans.typed_plan import Act, ActionName, Target

CATALOG: Mapping[str, Action] = {
    row.name: row
    for row in (
        *workloads.ACTIONS, *nodes.NODE_ACTIONS, *queues.ACTIONS, *cell.CELL_ACTIONS, *nodes.POOL_ACTIONS,
        *cell.BUDGET_ACTIONS, *cell.NOTICE_ACTIONS, *slurm.ACTIONS, *taints.ACTIONS,
    )
}  # fmt: skip
"""Name -> declaration, in the order of tables, of the help and of a model's schema."""


def find(name: str) -> Action:
    """The declaration of an action. Raises SpecError for a name that is not in the catalogue."""
    row = CATALOG.get(name)
    if row is None:
        shown = name[:40].encode("unicode_escape").decode()
        raise SpecError("action", f"'{shown}' is not in the catalogue", f"Give one of {', '.join(CATALOG)}")
    return row


def check(act: Act) -> None:
    """Raises SpecError for an act whose parameters are not those of its action, that is out of bounds, or that no
    command can express."""
    from runbooks.plans.typed_plan import check_bounds

    row = find(act.action)
    for field in act.__struct_fields__:
        if field in ("action", "targets"):
            continue
        given = getattr(act, field) not in (None, (), "")
        if given and field not in row.fields:
            raise SpecError(field, f"has no meaning for {act.action}", "Leave it out")
        if field in row.fields and not given and act.targets:
            raise SpecError(field, "is missing", "Give a value")
    if not act.targets:
        raise SpecError("targets", "is empty", f"Give the id of each {row.kind}")
    if len(act.targets) > row.most:
        at_once = "one" if row.most == 1 else f"at most {row.most:,}"
        raise SpecError("targets", f"are {len(act.targets):,}", f"Give {at_once} at a time")
    check_bounds(act)
    if row.command:
        row.express_act(act)


def command(act: Act) -> AnyCommand:
    """The one engine command an act stands for. Raises SpecError for what no command can express."""
    check(act)
    row = find(act.action)
    assert row.command, f"{act.action} does nothing in the cell"
    return row.express_act(act)


def of_command(type_: type[Command]) -> ActionName | None:
    """The action that becomes a command of that type; None where none does."""
    return next((row.name for row in CATALOG.values() if row.command == type_.__name__), None)


def why_not(action: Action, target: Target) -> str:
    """The reason that the action does not apply to a target in its present state; empty when it applies."""
    if action.kind == "policy":
        return f"{target.id} is already in force" if target.id == target.state else ""
    if target.state in action.with_work and not target.work:
        return f"{target.id} is {target.state}, no work left there"
    return "" if target.state in action.states else f"{target.id} is {target.state}"


def needless(act: Act, now: Target) -> bool:
    """True when a target already is as the act would make it, or beyond that: work that has ended, a node that is
    down."""
    row = find(act.action)
    if row.kind == "workload" and now.state not in LIVE:
        return True
    if row.kind == "node" and now.state not in ("ready", "cordoned", "draining"):
        return True
    return row.is_done(act, now, now)


def verdict(act: Act, before: Target, now: Target, *, in_time: bool) -> Verdict:
    """The verdict on a target that was read back: success, inconclusive while the effect may still come, or failure."""
    row = find(act.action)
    if row.is_done(act, before, now):
        return "success"
    return "inconclusive" if row.waits and in_time else "failure"


def timeout_ms(act: Act) -> int:
    """Wall time within which the effect must be seen. A canary is judged when its window, in cell time, is over."""
    least = find(act.action).timeout_ms
    return least if act.canary is None else act.canary.window_ms + least
