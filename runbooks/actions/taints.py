"""Actions on the taints of Kubernetes' nodes. A taint is written as kubectl writes it, `key[=value]:effect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from engine.model.errors import RefusedError, SpecError
from engine.model.quantities import shortlist
from runbooks.actions.declaration import (
    LARGE_POOL,
    MAX_ID,
    Action,
    Given,
    Parameter,
    PlannedCell,
    SeenCell,
    Typed,
    commands,
    flag,
    ids,
    model,
    plan,
    required,
)

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from engine.model.specs import Taint
    from runbooks.plans.typed_plan import Act, Target

TaintAction = Literal["taint", "untaint"]
PARAMETERS = {"nodes": ids("node_id"), "taint": Parameter(type="text", required=True, most=3 * MAX_ID)}
ARGUMENTS = (flag("taint", metavar="KEY[=VALUE]:EFFECT", help="such as repair=psu:NoSchedule", required=True),)
NODE_STATES = ("ready", "cordoned", "draining")
THEIRS = "node.kubernetes.io/"
"""Prefix of taints that Kubernetes gives, and takes away, by itself."""
NOT_FOR_MODELS = "which taints work tolerates is not among its facts"
INSTEAD = "Cordon, drain or reserve the nodes instead"


def read_taint(text: str) -> Taint:
    """Raises SpecError for what is no taint that can be given or taken away here."""
    if text.endswith("-"):
        raise SpecError("taint", f"'{text[:80]}' is to be removed", "Use untaint, without the '-'")
    name, _, effect = text.rpartition(":")
    key, _, value = name.partition("=")
    if effect == "NoExecute":
        raise SpecError(
            "taint", "NoExecute stops pods whatever their disruption budgets say", "Drain the nodes instead"
        )
    if not key or effect not in ("NoSchedule", "PreferNoSchedule"):
        raise SpecError(
            "taint", f"'{text[:80]}' is not KEY[=VALUE]:EFFECT", "Give the effect NoSchedule or PreferNoSchedule"
        )
    if key.startswith(THEIRS):
        raise SpecError("taint", f"{key[:80]} is given and taken away by Kubernetes", "Cordon or uncordon the nodes")
    soft = effect == "PreferNoSchedule"
    taint = model.Taint(key=key, value=value, effect="PreferNoSchedule" if soft else "NoSchedule")
    model.check_taints((taint,), "taint")
    return taint


def express(remove: bool) -> Callable[[Act], AnyCommand]:
    return lambda act: commands.TaintNodes(ids=act.targets, taint=required(act.taint, "taint"), remove=remove)


def alike(act: Act, target: Target) -> tuple[Taint, ...]:
    """Taints of the node with the key and effect of the act's: Kubernetes keeps one of each."""
    wanted = required(act.taint, "taint")
    return tuple(taint for taint in target.taints if (taint.key, taint.effect) == (wanted.key, wanted.effect))


def refuse_tainted(act: Act, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError for nodes that have the taint, perhaps with another value."""
    told = [f"{target.id} has {taint.label}" for target in targets for taint in alike(act, target)]
    if told:
        raise RefusedError(f"cannot taint: {shortlist(told)}", "Leave it out, or untaint it before")


def refuse_untainted(act: Act, targets: tuple[Target, ...]) -> None:
    """Raises RefusedError for nodes that do not have exactly that taint."""
    lacking = [target.id for target in targets if act.taint not in target.taints]
    if lacking:
        label = required(act.taint, "taint").label
        raise RefusedError(
            f"cannot untaint: {shortlist(lacking)} without {label}", "muster get nodes NODE shows taints"
        )


def steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    label = required(act.taint, "taint").label
    return [f"{action.word} {target.id} ({target.state}): {label}" for target in targets]


def found(before: Target, now: Target, done: bool) -> str:
    return f"{now.id} has {shortlist([taint.label for taint in now.taints]) or 'no taints'}"


def taint_action(name: TaintAction, undo: TaintAction, **more: Any) -> Action:
    """`more`: what the two do not share."""

    def make(given: Given, cell: PlannedCell) -> Act:
        return plan.Act(action=name, targets=given["nodes"], taint=read_taint(given["taint"]))

    def read(typed: Typed, cell: SeenCell) -> Act:
        return plan.Act(action=name, targets=tuple(typed["ids"]), taint=read_taint(typed["taint"]))

    def back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
        yield plan.Act(action=undo, targets=act.targets, taint=act.taint)

    return Action(
        name=name,
        verb=name.capitalize(),
        example=f":{name} NODE --taint repair=psu:NoSchedule",
        parameters=PARAMETERS,
        arguments=ARGUMENTS,
        make=make,
        read=read,
        not_for_models=NOT_FOR_MODELS,
        kind="node",
        fields=("taint",),
        states=NODE_STATES,
        otherwise=f"Only nodes that are there can be {name}ed",
        only_outside=INSTEAD,
        tier="T1",
        command="TaintNodes",
        express=express(remove=name == "untaint"),
        waits=True,
        back=back,
        steps=steps,
        found=found,
        **more,
    )


ACTIONS: tuple[Action, ...] = (
    taint_action(
        "taint",
        undo="untaint",
        summary="Kubernetes keeps work off nodes that does not tolerate a taint",
        refuse=refuse_tainted,
        raised=LARGE_POOL,
        impact=("takes_nodes",),
        done=lambda act, before, now: act.taint in now.taints,
        verified="has the taint given",
        inverse="Untaint {them}; work that went elsewhere until then stays there",
    ),
    taint_action(
        "untaint",
        undo="taint",
        summary="remove a taint from nodes of Kubernetes",
        refuse=refuse_untainted,
        done=lambda act, before, now: not alike(act, now),
        verified="no longer has the taint given",
        inverse="Taint {them} again; work that started there until then stays",
    ),
)
