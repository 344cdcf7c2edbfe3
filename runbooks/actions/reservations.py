"""The actions on reservations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from engine.model.errors import SpecError
from runbooks.actions.declaration import (
    LARGE_POOL,
    Action,
    Given,
    PlannedCell,
    Proof,
    SeenCell,
    Typed,
    by,
    required,
)
from runbooks.actions.lazy_modules import commands, model, plan
from runbooks.actions.parameters import Argument, Parameter, duration, flag, ids, one
from runbooks.plans.spec_differences import kept

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from runbooks.plans.typed_plan import Act, Target

STARTS_WITHIN_MS = 60_000
"""By how much another scheduler may move the start: it counts in whole minutes, and not in the past."""


def make(given: Given, cell: PlannedCell) -> Act:
    start_ms = cell.now_ms + given.get("starts_in", 0)
    spec = model.ReservationSpec(
        name=given["name"], nodes=given["nodes"], queues=given.get("queues", ()), start_ms=start_ms,
        end_ms=start_ms + given["lasts"],
    )  # fmt: skip
    return plan.Act(action="reserve", targets=(spec.name,), reservation=spec)


def read(typed: Typed, cell: SeenCell) -> Act:
    spec = model.ReservationSpec(
        name=typed["name"], nodes=typed["nodes"], queues=typed["queues"], start_ms=typed["start"], end_ms=typed["end"]
    )
    return plan.Act(action="reserve", targets=(spec.name,), reservation=spec)


def express(act: Act) -> AnyCommand:
    """Raises SpecError unless the act describes its one reservation."""
    reservation = required(act.reservation, "reservation")
    if act.targets != (reservation.name,):
        raise SpecError("reservation", f"{reservation.name} is not the target", "Make one reservation, by its own name")
    return commands.Reserve(reservation=reservation)


def is_made_outside(act: Act, before: Target, now: Target) -> bool:
    made, wanted = now.reservation, act.reservation
    return (
        made is not None
        and wanted is not None
        and set(made.nodes) == set(wanted.nodes)
        and abs(made.start_ms - wanted.start_ms) <= STARTS_WITHIN_MS
    )


def make_again(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    for target in shown:
        if target.reservation is not None:
            yield plan.Act(action="reserve", targets=(target.id,), reservation=target.reservation)


def was_made(act: Act, targets: tuple[Target, ...]) -> str:
    made = [f"{target.id}: {kept(target.reservation)}" for target in targets if target.reservation is not None]
    return "; ".join(made) or targets[0].state


def steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    described = ((target, act.reservation or target.reservation) for target in targets)
    return [f"{action.name} {target.id}: {kept(spec) if spec else target.state}" for target, spec in described]


ACTIONS: tuple[Action, ...] = (
    Action(
        name="reserve",
        label="Reserve nodes",
        verb="Make",
        summary="keep nodes for named queues or workloads during a window",
        example=":reserve NAME --nodes a,b --start +2h --end +6h",
        parameters={
            "name": one("name"),
            "nodes": Parameter(type="node_id", many=True, required=True),
            "queues": Parameter(type="queue", many=True),
            "starts_in": duration(),
            "lasts": duration(required=True, least=60_000),
        },
        make=make,
        arguments=(
            Argument("name", metavar="NAME"),
            flag("nodes", "names", "NODES", "ids with commas between", required=True, of="node_id"),
            flag("start", "moment", "WHEN", "now, +2h or 2026-03-01T14:30 (UTC)", default="now"),
            flag("end", "moment", "WHEN", required=True),
            flag("queues", "names", "QUEUES", "whose work may use the nodes meanwhile", default=""),
        ),
        read=read,
        kind="reservation",
        fields=("reservation",),
        most=1,
        states=("not made",),
        otherwise="Give it another name, or take that one back first",
        tier="T1",
        raised=LARGE_POOL,
        command="Reserve",
        express=express,
        after=("ahead", "active"),
        done=lambda act, before, now: now.reservation == act.reservation,
        done_outside=is_made_outside,
        verified="is made as described",
        inverse="Unreserve {them}",
        back=by("unreserve"),
        undoes=("unreserve",),
        was=was_made,
        steps=steps,
    ),
    Action(
        name="unreserve",
        label="Unreserve nodes",
        verb="Take back",
        summary="take reservations back",
        example=":unreserve NAME",
        parameters={"reservations": ids("reservation")},
        kind="reservation",
        states=("made",),
        tier="T1",
        command="Unreserve",
        after=("not made",),
        verified="is not made any more",
        proof=(Proof("reservation_state", "==", "not made"),),
        inverse="Reserve {was}; others may have taken the nodes by then",
        back=make_again,
        was=was_made,
        steps=steps,
    ),
)
