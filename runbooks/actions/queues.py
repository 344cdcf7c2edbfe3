"""Actions on queues and on reservations, which keep nodes for queues or workloads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.model.errors import RefusedError, SpecError
from engine.model.quantities import counted
from runbooks.actions.declaration import (
    LARGE_POOL,
    MAX_CPUS,
    MAX_GPUS,
    MINUTES_MS,
    ORDERS,
    Action,
    Argument,
    EffectProof,
    Given,
    Parameter,
    PlannedCell,
    SeenCell,
    Typed,
    by,
    by_state,
    choice,
    commands,
    duration,
    empty_and,
    flag,
    ids,
    model,
    msgspec,
    number,
    one,
    plan,
    required,
    state_of,
)
from runbooks.actions.workloads import PUT_BACK
from runbooks.plans.amounts import differences, kept

if TYPE_CHECKING:
    from engine.model.commands import AnyCommand
    from engine.model.specs import BurstSpec, FlavorQuota, QueueSpec
    from runbooks.plans.typed_plan import Act, QueueChange, Target


QUEUES = {"queues": ids("queue")}
MILLI = 1_000


def quantities(had: dict[str, int], words: dict[str, int | None]) -> dict[str, int]:
    """The former quantities with those that were typed in their place; None removes a resource."""
    return {name: quantity for name, quantity in (had | words).items() if quantity is not None}


# -- set_quota: what is given -----------------------------------------------------------------------------------------


def make_quota(given: Given, cell: PlannedCell) -> Act:
    name = given["queue"]
    was = cell.queue(name)
    changes: dict[str, Any] = {}
    if "pool" in given:
        of = next((flavor for flavor in was.flavors if flavor.pool == given["pool"]), None)
        if of is None:
            raise RefusedError(f"queue {name} has no quota of pool {given['pool']}", "See `muster get queues`")
        to = msgspec.structs.replace(of, **_quotas(name, of, given))
        changes["flavors"] = tuple(to if flavor is of else flavor for flavor in was.flavors)
    else:
        changes |= _quotas(name, was, given)
    changes |= {field: given[field] for field in ("weight", "order") if field in given}
    change = plan.QueueChange(was=was, to=msgspec.structs.replace(was, **changes), over=given.get("over", "refuse"))
    return plan.Act(action="set_quota", targets=(name,), queue=change)


def _quotas(queue: str, of: QueueSpec | FlavorQuota, given: Given) -> dict[str, Any]:
    """The changed fields of a quota by name."""
    changes: dict[str, Any] = {}
    for units, resource in (("gpus", "gpu_milli"), ("cpus", "cpu_milli")):
        to = _nominal(queue, of.nominal.get(resource), given, units)
        if to is not None:
            changes["nominal"] = {**changes.get("nominal", of.nominal), resource: to}
        for limit in ("borrowing_limit", "lending_limit"):
            if f"{limit}_{units}" in given:
                limits = changes.get(limit, getattr(of, limit))
                changes[limit] = {**limits, resource: given[f"{limit}_{units}"] * MILLI}
    return changes


def _nominal(queue: str, was: int | None, given: Given, units: str) -> int | None:
    """Nominal quota of one resource, in thousandths of it; None where nothing is said of it."""
    said = units.upper().replace("S", "s")
    if was is None and (f"add_{units}" in given or f"remove_{units}" in given):
        raise RefusedError(f"queue {queue} has no quota of {said} to change by a difference", "Give it one first")
    have = was or 0
    if f"nominal_{units}" in given:
        return int(given[f"nominal_{units}"]) * MILLI
    if f"add_{units}" in given:
        return have + int(given[f"add_{units}"]) * MILLI
    if f"remove_{units}" not in given:
        return None
    less = int(given[f"remove_{units}"])
    if have < less * MILLI:
        raise RefusedError(
            f"queue {queue} has a quota of {have // MILLI:,} {said}, less than {less:,}", "Use a smaller difference"
        )
    return have - less * MILLI


def read_quota(typed: Typed, cell: SeenCell) -> Act:
    change = quota_change(cell.queue(typed["queue"]), typed)
    return plan.Act(action="set_quota", targets=(typed["queue"],), queue=change)


def quota_change(was: QueueSpec, typed: Typed) -> QueueChange:
    """The spec with what was typed in place of what it had. Raises SpecError naming the flag."""
    given: dict[str, Any] = {}
    for field in ("nominal", "borrowing_limit", "lending_limit"):
        if typed[field] is not None:
            given[field] = quantities(getattr(was, field), typed[field])
    for field in ("weight", "order", "reclaim", "disruptions", "placement"):
        if typed[field] is not None:
            given[field] = typed[field]
    for field in ("min_runtime", "disruption_window", "start_within"):
        if typed[field] is not None:
            given[f"{field}_ms"] = typed[field]
    if typed["objective"] is not None:
        given["objective_permille"] = typed["objective"]
    given["burst"] = _burst(was.burst, typed)
    return plan.QueueChange(was=was, to=msgspec.structs.replace(was, **given), over=typed["over"])


def _burst(was: BurstSpec | None, typed: Typed) -> BurstSpec | None:
    if typed["burst"] == NO_QUANTITIES:
        return None
    given: dict[str, Any] = {}
    if typed["burst"] is not None:
        given["limit"] = quantities(was.limit if was else {}, typed["burst"])
    for field in ("window", "cooldown"):
        if typed[f"burst_{field}"] is not None:
            given[f"{field}_ms"] = typed[f"burst_{field}"]
    if was is None and given and "limit" not in given:
        raise SpecError("--burst", "is missing", "Give the burst limit, such as gpu=32")
    if was is None:
        return model.BurstSpec(**given) if given else None
    return msgspec.structs.replace(was, **given)


NO_QUANTITIES: dict[str, int | None] = {}
"""`none` in place of quantities."""


# -- set_quota: what becomes of it ------------------------------------------------------------------------------------


def express_quota(act: Act) -> AnyCommand:
    """Raises SpecError unless the act gives its one queue another spec."""
    change = required(act.queue, "queue")
    names = (change.was.name, change.to.name)
    if act.targets != (change.to.name,) or len(set(names)) > 1:
        raise SpecError("queue", f"{' and '.join(names)} is not the target", "Change one queue, by its name")
    return commands.ChangeQueue(queue=change.to, over=change.over)


def refuse_outdated(act: Act, targets: tuple[Target, ...]) -> None:
    """A change of a queue is refused when it starts from what the queue no longer has, and when it changes nothing."""
    change, present = required(act.queue, "queue"), targets[0].queue
    if present is not None and present != change.was:
        raise RefusedError(
            changed_meanwhile(targets[0].id, change.was, present),
            "Check the queue again, then repeat the change",
        )
    if change.to == change.was:
        raise RefusedError(f"{targets[0].id} already has that", "Nothing to do")


def changed_meanwhile(name: str, was: QueueSpec, to: QueueSpec) -> str:
    """As in "research has changed: nominal gpu 32 GPU -> 48 GPU"."""
    found = (f"{what} {had} -> {has}" for what, had, has in differences(was, to))
    return f"{name} has changed: {', '.join(found)}"


def quota_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """The act that restores the former quota. Work above that quota runs out by itself, so nothing is stopped."""
    if act.queue is not None:
        change = plan.QueueChange(was=act.queue.to, to=act.queue.was, over="keep")
        yield plan.Act(action="set_quota", targets=act.targets, queue=change)


def quota_was(act: Act, targets: tuple[Target, ...]) -> str:
    change = required(act.queue, "queue")
    return ", ".join(f"{what} {was}" for what, was, _ in differences(change.was, change.to))


def quota_steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    change = required(act.queue, "queue")
    return [f"{change.to.name}: {d.what} {d.was} -> {d.to}" for d in differences(change.was, change.to)]


def found_quota(before: Target, now: Target, done: bool) -> str:
    if before.queue is None or now.queue is None:
        return ""
    changed = [f"{what} {to}" for what, _, to in differences(before.queue, now.queue)]
    return f"{now.id} has {', '.join(changed) or 'what it had'}"


QUEUE_ACTIONS: tuple[Action, ...] = (
    Action(
        name="hold_queue",
        label="Hold queue",
        verb="Hold",
        summary="start nothing new from queues; running work continues",
        past="held",
        key="P",
        footer=True,
        parameters=QUEUES,
        kind="queue",
        states=("open", "draining"),
        otherwise="Only open or draining queues can be held",
        tier="T1",
        command="HoldQueues",
        edit="hold-queue",
        after=("held",),
        verified="is held",
        proof=(EffectProof("queue_mode", "==", "held"),),
        inverse="Open {them}",
        back=by_state({"open": "open_queue", "draining": "drain_queue"}),
        undoes=("open_queue", "drain_queue"),
    ),
    Action(
        name="open_queue",
        label="Open queue",
        verb="Open",
        summary="held or draining queues take and start work again",
        past="opened",
        key="O",
        footer=True,
        parameters=QUEUES,
        kind="queue",
        states=("held", "draining"),
        otherwise="Only held or draining queues can be opened; check for a held queue above it",
        tier="T1",
        command="OpenQueues",
        edit="open-queue",
        after=("open",),
        verified="is open",
        proof=(EffectProof("queue_mode", "==", "open"),),
        inverse="Hold {them}; work started until then continues",
        back=by_state({"held": "hold_queue", "draining": "drain_queue"}),
    ),
    Action(
        name="drain_queue",
        label="Drain queue",
        verb="Drain",
        summary=f"take and start nothing new, and {PUT_BACK} running work",
        past="drained",
        key="V",
        parameters=QUEUES,
        kind="queue",
        states=("open", "held"),
        otherwise="Only open or held queues can be drained",
        depends=("state", "work"),
        tier="T2",
        raised=">1 workload and >10% of the cell's",
        impact=("stops_residents",),
        command="DrainQueues",
        after=("draining",),
        done=empty_and("draining"),
        done_outside=empty_and("held", "draining"),
        verified="is draining, nothing running",
        waits=True,
        timeout_ms=MINUTES_MS,
        inverse="Open {them}; work since the last checkpoint is lost",
        back=by_state({"open": "open_queue", "held": "hold_queue"}),
        undoes=("open_queue",),
        found=lambda before, now, done: (
            f"{state_of(now)} with {counted(len(now.work), 'workload')} still there" if now.work else ""
        ),
    ),
    Action(
        name="set_quota",
        label="Set quota",
        verb="Set quota of",
        summary="change a queue's quota, weight, order or burst",
        example=":set-quota QUEUE gpu=24",
        parameters={
            "queue": one("queue"),
            "pool": Parameter(type="pool"),
            "nominal_gpus": number(MAX_GPUS),
            "add_gpus": number(MAX_GPUS, 1),
            "remove_gpus": number(MAX_GPUS, 1),
            "borrowing_limit_gpus": number(MAX_GPUS),
            "lending_limit_gpus": number(MAX_GPUS),
            "nominal_cpus": number(MAX_CPUS),
            "add_cpus": number(MAX_CPUS, 1),
            "remove_cpus": number(MAX_CPUS, 1),
            "borrowing_limit_cpus": number(MAX_CPUS),
            "lending_limit_cpus": number(MAX_CPUS),
            "weight": number(1_000_000, 1),
            "order": choice(*ORDERS),
            "over": choice("refuse", "keep", "evict"),
        },
        at_most_one=(("nominal_gpus", "add_gpus", "remove_gpus"), ("nominal_cpus", "add_cpus", "remove_cpus")),
        some=(
            "nominal_gpus", "add_gpus", "remove_gpus", "borrowing_limit_gpus", "lending_limit_gpus",
            "nominal_cpus", "add_cpus", "remove_cpus", "borrowing_limit_cpus", "lending_limit_cpus", "weight", "order",
        ),
        make=make_quota,
        arguments=(
            Argument("queue", metavar="QUEUE", of="queue"),
            Argument(
                "nominal", "quantities", "QUOTA", "its own quota, such as gpu=24 memory=1TiB; gpu=none removes one",
                many=True, required=False,
            ),
            flag("borrowing-limit", "quantities", "RESOURCE=QUANTITY", "most it may borrow above that", many=True),
            flag(
                "lending-limit", "quantities", "RESOURCE=QUANTITY", "most of its idle quota that others may use",
                many=True,
            ),
            flag("weight", "positive", "N", "its share relative to its siblings"),
            flag("order", choices=ORDERS, help="within the queue"),
            flag("reclaim", choices=("never", "lower_priority", "any"), help="whose work it may preempt"),
            flag(
                "burst", "quantities", "RESOURCE=QUANTITY", "most it may use in total in a burst; none: no burst",
                many=True,
            ),
            flag("burst-window", "duration", "TIME", "how long a burst lasts"),
            flag("burst-cooldown", "duration", "TIME", "pause before the next"),
            flag("min-runtime", "duration", "TIME", "its work is not preempted before"),
            flag("disruptions", "integer", "N", "most preemptions in a window; -1 for no limit"),
            flag("disruption-window", "duration", "TIME"),
            flag("start-within", "duration", "TIME", "objective: start work within this time; 0 for none"),
            flag("objective", "share", "PERCENT", "objective: share of its work, such as 95%%"),
            flag(
                "placement", "weights", "PROFILE|SCORE=WEIGHT", "node scoring; none: as the pools",
                many=True,
            ),
            flag(
                "over", choices=("refuse", "keep", "evict"), default="refuse",
                help=f"if more is in use: list it and refuse (default), let it finish, or {PUT_BACK} it",
            ),
        ),
        read=read_quota,
        kind="queue",
        fields=("queue",),
        most=1,
        states=("open", "held", "draining"),
        refuse=refuse_outdated,
        depends=("work",),
        tier="T1",
        raised="work must be stopped; >10% of the cell's",
        impact=("displaces",),
        command="ChangeQueue",
        express=express_quota,
        done=lambda act, before, now: act.queue is not None and now.queue == act.queue.to,
        verified="has the given spec",
        inverse="Set quota of {them} back to {was}",
        back=quota_back,
        was=quota_was,
        steps=quota_steps,
        found=found_quota,
    ),
)  # fmt: skip


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
        raise SpecError("reservation", f"{reservation.name} is not the target", "Make one reservation, by its name")
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


RESERVATION_ACTIONS: tuple[Action, ...] = (
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
            flag("queues", "names", "QUEUES", "queues whose work may use the nodes", default=""),
        ),
        read=read,
        kind="reservation",
        fields=("reservation",),
        most=1,
        states=("not made",),
        otherwise="Use another name, or remove that one first",
        tier="T1",
        raised=LARGE_POOL,
        command="Reserve",
        express=express,
        after=("ahead", "active"),
        done=lambda act, before, now: now.reservation == act.reservation,
        done_outside=is_made_outside,
        verified="exists as described",
        inverse="Unreserve {them}",
        back=by("unreserve"),
        undoes=("unreserve",),
        was=was_made,
        steps=steps,
    ),
    Action(
        name="unreserve",
        label="Unreserve nodes",
        verb="Remove",
        summary="remove reservations",
        example=":unreserve NAME",
        parameters={"reservations": ids("reservation")},
        kind="reservation",
        states=("made",),
        tier="T1",
        command="Unreserve",
        after=("not made",),
        verified="no longer exists",
        proof=(EffectProof("reservation_state", "==", "not made"),),
        inverse="Reserve {was}; the nodes may be in use by then",
        back=make_again,
        was=was_made,
        steps=steps,
    ),
)

ACTIONS: tuple[Action, ...] = (*QUEUE_ACTIONS, *RESERVATION_ACTIONS)
