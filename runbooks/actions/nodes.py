"""Actions on nodes, on node pools and on the autoscaler: cordon and drain, price, size, limits, targets, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine.model.errors import RefusedError, SpecError
from engine.model.quantities import counted, usd
from runbooks.actions.declaration import (
    BOOTED_MS,
    LARGE_POOL,
    MAX_NODES,
    MINUTES_MS,
    STILL_BUSY,
    Action,
    Argument,
    EffectProof,
    Given,
    PlannedCell,
    SeenCell,
    Typed,
    becomes,
    by_state,
    choice,
    commands,
    duration,
    empty_and,
    flag,
    floors,
    ids,
    nodes_now,
    nodes_of,
    number,
    one,
    plan,
    required,
    schedule_words,
    spec_parts,
    state_of,
)

if TYPE_CHECKING:
    import msgspec

    from engine.model.commands import AnyCommand
    from engine.model.reports import PoolSize
    from engine.model.spec_parts import ScalingSpec
    from runbooks.plans.typed_plan import Act, ActionName, ScalingChange, Target


NODES = {"nodes": ids("node_id")}

NODE_ACTIONS: tuple[Action, ...] = (
    Action(
        name="cordon",
        verb="Cordon",
        summary="nodes take no new work",
        past="cordoned",
        key="C",
        footer=True,
        parameters=NODES,
        kind="node",
        states=("ready", "draining"),
        otherwise="Only ready or draining nodes can be cordoned",
        tier="T1",
        raised=LARGE_POOL,
        impact=("takes_nodes",),
        command="Cordon",
        edit="cordon",
        after=("cordoned",),
        done_outside=becomes("cordoned", "draining"),
        verified="is cordoned",
        proof=(EffectProof("node_state", "==", "cordoned"),),
        inverse="Uncordon {them}",
        back=by_state({"ready": "uncordon", "draining": "drain"}),
        undoes=("uncordon",),
    ),
    Action(
        name="uncordon",
        verb="Uncordon",
        summary="nodes take work again",
        past="uncordoned",
        key="U",
        footer=True,
        parameters=NODES,
        kind="node",
        states=("cordoned", "draining"),
        otherwise="Only cordoned or draining nodes can be uncordoned",
        tier="T1",
        command="Uncordon",
        edit="uncordon",
        after=("ready",),
        verified="is ready",
        proof=(EffectProof("node_state", "==", "ready"),),
        inverse="Cordon {them}",
        back=by_state({"cordoned": "cordon", STILL_BUSY: "cordon", "draining": "drain"}),
    ),
    Action(
        name="drain",
        verb="Drain",
        summary="cordon nodes and move their work away",
        past="drained",
        key="D",
        footer=True,
        parameters=NODES,
        kind="node",
        states=("ready", "cordoned", "draining"),
        with_work=("draining",),
        otherwise="Only nodes that are ready, cordoned, or draining with work on them can be drained",
        depends=("state", "work"),
        tier="T2",
        raised=LARGE_POOL,
        impact=("takes_nodes", "stops_residents"),
        command="Drain",
        edit="drain",
        after=("draining", "cordoned"),
        done=empty_and("draining", "cordoned"),
        verified="is draining or cordoned, and empty",
        proof=(EffectProof("node_workloads", "==", 0),),
        waits=True,
        timeout_ms=MINUTES_MS,
        inverse="Uncordon {them}; work since the last checkpoint is lost and does not return automatically",
        back=by_state({"ready": "uncordon", "cordoned": "cordon"}),
        undoes=("uncordon",),
        found=lambda before, now, done: (
            f"{state_of(now)} with {counted(len(now.work), 'workload')} still there" if now.work else ""
        ),
    ),
    Action(
        name="interrupt",
        verb="Interrupt",
        summary="simulate a provider's interruption notice for nodes",
        past="interrupted",
        parameters=NODES,
        not_for_models="it tells the cell that a provider reclaims nodes",
        kind="node",
        states=("ready", "cordoned"),
        otherwise="Only ready or cordoned nodes can be interrupted; a draining node may already have its notice",
        depends=("state", "work"),
        tier="T3",
        impact=("takes_nodes", "stops_residents"),
        command="Interrupt",
        edit="fail",
        after=("draining",),
        verified="is draining until its end",
        inverse="Cannot be undone: {them} will be gone after the notice; order or add others",
        found=lambda before, now, done: (
            f"{state_of(now)}, with {counted(len(now.work), 'workload')} until its end" if now.work else ""
        ),
    ),
)


AUTOSCALER = "autoscaler"
"""The target of a change of its settings."""
LIMITS = ("least", "most", "headroom", "priority")
POOL_TARGETS: ActionName = "set_targets"
MAY_GO = f"{LARGE_POOL} removed; it may more than double"
SCALING = ("scaling",)
GROWING = ("growing",)
"""State of a pool that grows by itself."""


def scaling_of(act: Act) -> ScalingChange:
    return required(act.scaling, "scaling")


def has_that(target: str) -> RefusedError:
    return RefusedError(f"{target} already has that", "Nothing to do")


def values(of: msgspec.Struct | ScalingChange, fields: list[str]) -> str:
    """As in "least 2, most 8"."""
    return ", ".join(
        f"{field} {', '.join(value) if isinstance(value, tuple) else str(value).lower()}"
        for field, value in ((field, getattr(of, field)) for field in fields)
    )


def found_setting(before: Target, now: Target, done: bool) -> str:
    return f"{now.id} has {'the new setting' if done else 'what it had'}"


# -- set_price --------------------------------------------------------------------------------------------------------


def price_act(pool: str, microusd_hour: int) -> Act:
    return plan.Act(action="set_price", targets=(pool,), money=plan.MoneyChange(price_microusd_hour=microusd_hour))


def price_of(act: Act) -> int | None:
    return None if act.money is None else act.money.price_microusd_hour


def refuse_price(act: Act, targets: tuple[Target, ...]) -> None:
    if price_of(act) == targets[0].price_microusd_hour:
        raise has_that(targets[0].id)


def price_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    change = plan.MoneyChange(price_microusd_hour=shown[0].price_microusd_hour)
    yield plan.Act(action="set_price", targets=act.targets, money=change)


def change_price(act: Act, target: Target) -> tuple[str, str]:
    return usd(target.price_microusd_hour), f"{usd(price_of(act) or 0)} an hour for each node"


# -- scale_pool -------------------------------------------------------------------------------------------------------


def make_nodes(given: Given, cell: PlannedCell) -> Act:
    pool = given["pool"]
    has = cell.nodes(pool)
    nodes = given["nodes"] if "nodes" in given else has + given.get("add_nodes", 0) - given.get("remove_nodes", 0)
    if nodes < 0:
        raise RefusedError(f"pool {pool} has {has:,} nodes, fewer than the number to remove", "Remove fewer")
    return plan.Act(action="scale_pool", targets=(pool,), nodes=nodes)


def has_nodes(act: Act, before: Target, now: Target) -> bool:
    """Larger: at least so many of its nodes are there. Smaller: no more are there or on order."""
    if before.size is None or now.size is None or act.nodes is None:
        return False
    if act.nodes > nodes_of(before.size):
        return now.size.ready + now.size.other >= act.nodes
    return nodes_of(now.size) <= act.nodes


def nodes_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """As many nodes as it had, then the schedule that it had."""
    size = shown[0].size
    if size is not None:
        yield plan.Act(action="scale_pool", targets=act.targets, nodes=nodes_of(size))
        yield targets_act(act.targets[0], size.set_for)


def nodes_steps(action: Action, act: Act, targets: tuple[Target, ...]) -> list[str]:
    return [
        f"scale-pool {target.id}: {nodes_now(target.size) if target.size is not None else 'unknown'} -> {act.nodes:,}"
        for target in targets
    ]


# -- set_scaling ------------------------------------------------------------------------------------------------------


def limits_act(given: Given) -> Act:
    change = plan.ScalingChange(**{field: given[field] for field in LIMITS if given.get(field) is not None})
    return plan.Act(action="set_scaling", targets=(given["pool"],), scaling=change)


def read_limits(typed: Typed, cell: SeenCell) -> Act:
    """Raises SpecError when nothing is given."""
    if all(typed[field] is None for field in LIMITS):
        raise SpecError("", "no value is given", "Give --least, --most, --headroom or --priority")
    return limits_act(typed)


def express_limits(act: Act) -> AnyCommand:
    change = scaling_of(act)
    return commands.SetScaling(pool=act.targets[0], **{field: getattr(change, field) for field in LIMITS})


def has_limits(act: Act, before: Target, now: Target) -> bool:
    """True when each limit that the change names has the new value."""
    change = act.scaling
    return (
        now.size is not None
        and now.size.scaling is not None
        and change is not None
        and all(getattr(change, field) in (None, getattr(now.size.scaling, field)) for field in LIMITS)
    )


def limits_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """A pool that did not grow by itself cannot be made one that does not again."""
    size, change = shown[0].size, act.scaling
    if size is None or size.scaling is None or change is None:
        return
    had = {field: getattr(size.scaling, field) for field in LIMITS if getattr(change, field) is not None}
    yield plan.Act(action="set_scaling", targets=act.targets, scaling=plan.ScalingChange(**had))


def change_limits(act: Act, target: Target) -> tuple[str, str]:
    assert target.size is not None, "a pool's size is read before it is changed"
    change, has = scaling_of(act), target.size.scaling
    fields = [field for field in LIMITS if getattr(change, field) is not None]
    return "is not autoscaled" if has is None else values(has, fields), values(change, fields)


def refuse_unchanged(change: Callable[[Act, Target], tuple[str, str]]) -> Callable[[Act, tuple[Target, ...]], None]:
    """A refusal of changes that leave a setting as it is, for settings that their words tell apart."""

    def refuse(act: Act, targets: tuple[Target, ...]) -> None:
        was, to = change(act, targets[0])
        if was == to:
            raise has_that(targets[0].id)

    return refuse


def fewer_by_limits(act: Act, size: PoolSize) -> int:
    """The most nodes that may go. The autoscaler gives back nodes on order and booting first."""
    was, change = size.scaling, act.scaling
    if was is None or change is None:
        return 0
    to = _limits(was, change)
    lower = (
        min(size.ready, was.least) - to.least, min(size.ready, was.headroom) - to.headroom, nodes_of(size) - to.most
    )  # fmt: skip
    return max(0, *lower)


def more_by_limits(act: Act, size: PoolSize) -> int:
    was, change, have = size.scaling, act.scaling, nodes_of(size)
    if change is None:
        return 0
    if was is None:
        return max(0, (change.most or 0) - have)
    to = _limits(was, change)
    return max(0, to.most - was.most, to.least - max(have, was.least), to.headroom - was.headroom)


def _limits(was: ScalingSpec, change: ScalingChange) -> ScalingSpec:
    """Least, most and headroom after the change; what else a pool says of its scaling does not matter here."""
    least, most, headroom = (
        getattr(was, field) if (to := getattr(change, field)) is None else to for field in ("least", "most", "headroom")
    )
    return spec_parts.ScalingSpec(least=least, most=most, headroom=headroom)


# -- set_targets ------------------------------------------------------------------------------------------------------


def targets_act(pool: str, targets: tuple[tuple[int, int], ...]) -> Act:
    return plan.Act(action=POOL_TARGETS, targets=(pool,), scaling=plan.ScalingChange(targets=targets))


def make_targets(given: Given, cell: PlannedCell) -> Act:
    """The schedule of a pool with at least so many nodes during the window. Entries that are set already stay."""
    pool, nodes = given["pool"], given["nodes"]
    start_ms = cell.now_ms + given.get("starts_in", 0)
    end_ms = start_ms + given["lasts"]
    size = cell.size(pool)
    kept = size.set_for if size is not None else ()

    def standing(at_ms: int) -> int:
        before = [count for since_ms, count in kept if since_ms <= at_ms]
        count = before[-1] if before else 0
        return max(count, nodes) if start_ms <= at_ms < end_ms else count

    targets: list[tuple[int, int]] = []
    for at_ms in sorted({start_ms, end_ms, *(at_ms for at_ms, _ in kept)}):
        if not targets or targets[-1][1] != standing(at_ms):
            targets.append((at_ms, standing(at_ms)))
    return targets_act(pool, tuple(targets))


def has_targets(act: Act, before: Target, now: Target) -> bool:
    return now.size is not None and act.scaling is not None and now.size.set_for == tuple(sorted(act.scaling.targets))


def targets_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    if shown[0].size is not None:
        yield targets_act(act.targets[0], shown[0].size.set_for)


def change_targets(act: Act, target: Target) -> tuple[str, str]:
    assert target.size is not None, "a pool's size is read before it is changed"
    return schedule_words(target.size.set_for), schedule_words(tuple(sorted(scaling_of(act).targets)))


def fewer_by_targets(act: Act, size: PoolSize) -> int:
    """The most nodes that may go. The autoscaler gives back nodes on order and booting first."""
    if size.scaling is None or act.scaling is None:
        return 0
    return max([0, *(min(size.ready, was) - to for was, to in floors(size.set_for, act.scaling.targets))])


def more_by_targets(act: Act, size: PoolSize) -> int:
    if act.scaling is None:
        return 0
    return max([0, *(to - max(nodes_of(size), was) for was, to in floors(size.set_for, act.scaling.targets))])


# -- set_autoscaling --------------------------------------------------------------------------------------------------


def make_settings(given: Given, cell: PlannedCell) -> Act:
    change = plan.ScalingChange(preset=given["preset"])
    return plan.Act(action="set_autoscaling", targets=(AUTOSCALER,), scaling=change)


def read_settings(typed: Typed, cell: SeenCell) -> Act:
    if not typed["preset"] and not typed["settings"]:
        raise SpecError("", "no value is given", "Give --preset, or SETTING=VALUE")
    change = plan.ScalingChange(preset=typed["preset"], settings=typed["settings"])
    return plan.Act(action="set_autoscaling", targets=(AUTOSCALER,), scaling=change)


def express_settings(act: Act) -> AnyCommand:
    """Raises SpecError unless the target is the autoscaler."""
    change = scaling_of(act)
    if act.targets[0] != AUTOSCALER:
        raise SpecError("targets", f"'{act.targets[0][:64]}' is not {AUTOSCALER}", f"Name {AUTOSCALER}")
    return commands.SetAutoscaling(preset=change.preset, changes=change.settings)


def has_settings(act: Act, before: Target, now: Target) -> bool:
    if before.autoscaling is None or act.scaling is None:
        return False
    wanted = spec_parts.changed_settings(before.autoscaling, act.scaling.preset, act.scaling.settings)
    return bool(now.autoscaling == wanted)


def settings_back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    was, change = shown[0].autoscaling, act.scaling
    if was is None or change is None:
        return
    to = spec_parts.changed_settings(was, change.preset, change.settings)
    had = {field: getattr(was, field) for field in was.__struct_fields__ if getattr(was, field) != getattr(to, field)}
    yield plan.Act(action="set_autoscaling", targets=act.targets, scaling=plan.ScalingChange(settings=had))


def change_settings(act: Act, target: Target) -> tuple[str, str]:
    """Raises SpecError for settings that there are not."""
    assert target.autoscaling is not None, "settings are read before they are changed"
    was, change = target.autoscaling, scaling_of(act)
    to = spec_parts.changed_settings(was, change.preset, change.settings)
    fields = [field for field in to.__struct_fields__ if getattr(to, field) != getattr(was, field)]
    return values(was, fields), values(to, fields)


POOL_ACTIONS: tuple[Action, ...] = (
    Action(
        name="set_price",
        label="Set price",
        verb="Set price of",
        summary="set the price of a pool's nodes",
        example=":set-price POOL 12.5",
        parameters={"pool": one("pool"), "microusd_hour": number(10**12, required=True)},
        not_for_models="it changes what people are charged",
        make=lambda given, cell: price_act(given["pool"], given["microusd_hour"]),
        arguments=(
            Argument("pool", metavar="POOL", of="pool"),
            Argument("price", "money", "PRICE", "in USD per hour, such as 12.5"),
        ),
        read=lambda typed, cell: price_act(typed["pool"], typed["price"]),
        kind="pool",
        fields=("money",),
        most=1,
        states=("priced",),
        refuse=refuse_price,
        tier="T1",
        dearer=lambda act, target: max(0, (price_of(act) or 0) - target.price_microusd_hour) * target.count,
        command="SetPrice",
        express=lambda act: commands.SetPrice(
            pool=act.targets[0],
            price_microusd_hour=required(
                required(act.money, "money").price_microusd_hour, "spec_parts.price_microusd_hour"
            ),
        ),
        done=lambda act, before, now: now.price_microusd_hour == price_of(act),
        verified="has the price given",
        inverse="Set price of {them} back to {was}; charges made until then stay",
        back=price_back,
        change=change_price,
        found=lambda before, now, done: f"a node of {now.id} costs {usd(now.price_microusd_hour)} an hour",
    ),
    Action(
        name="scale_pool",
        verb="Scale pool",
        summary="set the size of a pool: missing nodes are ordered, empty ones given back",
        example=":scale-pool POOL 40",
        parameters={
            "pool": one("pool"),
            "nodes": number(MAX_NODES),
            "add_nodes": number(MAX_NODES, 1, counts=True),
            "remove_nodes": number(MAX_NODES, 1, counts=True),
        },
        one_of=(("nodes", "add_nodes", "remove_nodes"),),
        make=make_nodes,
        arguments=(Argument("pool", metavar="POOL", of="pool"), Argument("nodes", "count", "NODES")),
        read=lambda typed, cell: plan.Act(action="scale_pool", targets=(typed["pool"],), nodes=typed["nodes"]),
        kind="scaling",
        fields=("nodes",),
        most=1,
        states=GROWING,
        otherwise="Only an autoscaled pool can be scaled: set-scaling it first",
        tier="T1",
        raised=f"{LARGE_POOL} removed; it more than doubles",
        fewer=lambda act, size: max(0, min(size.ready, nodes_of(size) - (act.nodes or 0))),
        more=lambda act, size: max(0, (act.nodes or 0) - nodes_of(size)),
        command="ScalePool",
        express=lambda act: commands.ScalePool(pool=act.targets[0], nodes=required(act.nodes, "nodes")),
        done=has_nodes,
        verified="has the nodes given",
        proof=(EffectProof("pool_wanted", "==", of="nodes"),),
        waits=True,
        timeout_ms=BOOTED_MS,
        inverse="Scale {them} back to {was}and to its earlier targets; removed nodes are ordered again",
        back=nodes_back,
        title=lambda act: f"Scale pool {act.targets[0]} to {act.nodes or 0:,} node{'s' if act.nodes != 1 else ''}",
        was=lambda act, targets: f"{nodes_of(size):,}" if (size := targets[0].size) is not None else "unknown",
        steps=nodes_steps,
        found=lambda before, now, done: f"{now.id} has {nodes_now(now.size)}" if now.size is not None else "",
    ),
    Action(
        name="set_scaling",
        label="Set scaling",
        verb="Set the size of pool",
        summary="set the autoscaling limits of a pool",
        example=":set-scaling POOL --most 40",
        parameters={
            "pool": one("pool"),
            "least": number(MAX_NODES),
            "most": number(MAX_NODES),
            "headroom": number(MAX_NODES),
            "priority": number(1000),
        },
        some=LIMITS,
        make=lambda given, cell: limits_act(given),
        arguments=(
            Argument("pool", metavar="POOL", of="pool"),
            flag("least", "count", "N", "nodes it never shrinks below"),
            flag("most", "count", "N", "nodes it never grows above"),
            flag("headroom", "count", "N", "whole nodes that are kept free"),
            flag("priority", "integer", "N", "higher first"),
        ),
        read=read_limits,
        kind="scaling",
        fields=SCALING,
        most=1,
        states=("growing", "fixed"),
        refuse=refuse_unchanged(change_limits),
        tier="T1",
        raised=MAY_GO,
        fewer=fewer_by_limits,
        more=more_by_limits,
        command="SetScaling",
        express=express_limits,
        done=has_limits,
        verified="has the given values",
        proof=(EffectProof("pool_most", "==", of="most"), EffectProof("pool_wanted", "<=", of="least")),
        inverse="Set scaling of {them} back to {was}; nodes given back until then are ordered again",
        back=limits_back,
        no_way_back="Cannot be undone: {them} was not autoscaled before, and cannot be reset to that",
        change=change_limits,
        found=found_setting,
    ),
    Action(
        name=POOL_TARGETS,
        label="Set targets",
        verb="Set targets of pool",
        summary="schedule the size of a pool, whatever the demand",
        example=":set-targets POOL +2h=40",
        parameters={
            "pool": one("pool"),
            "nodes": number(MAX_NODES, 1, required=True),
            "starts_in": duration(),
            "lasts": duration(required=True, least=60_000),
        },
        make=make_targets,
        arguments=(
            Argument("pool", metavar="POOL", of="pool"),
            Argument("targets", "schedule", "TIME=NODES", "as +2h=40; none removes them all", many=True),
        ),
        read=lambda typed, cell: targets_act(typed["pool"], typed["targets"]),
        kind="scaling",
        fields=SCALING,
        most=1,
        states=GROWING,
        otherwise="Only an autoscaled pool can have targets: set-scaling it first",
        refuse=refuse_unchanged(change_targets),
        tier="T1",
        raised=MAY_GO,
        fewer=fewer_by_targets,
        more=more_by_targets,
        command="SetTargets",
        express=lambda act: commands.SetTargets(pool=act.targets[0], targets=scaling_of(act).targets),
        done=has_targets,
        verified="has the schedule given",
        proof=(EffectProof("pool_target", ">=", of="nodes"),),
        inverse="Set targets of {them} back: {was}",
        back=targets_back,
        change=change_targets,
        found=found_setting,
    ),
    Action(
        name="set_autoscaling",
        shell="cell set-autoscaling",
        label="Set autoscaling",
        verb="Set the",
        summary="change when the cell orders nodes and gives them back",
        example=":set-autoscaling predict_permille=900",
        metavar="",
        parameters={"preset": choice("seed", "ca", required=True)},
        not_for_models="it changes how the whole cell grows",
        make=make_settings,
        arguments=(
            flag("preset", metavar="NAME", help="seed or ca; what is given besides changes it", default=""),
            Argument(
                "settings", "settings", "SETTING=VALUE", "as scan_every=30s enabled=no", many=True, required=False
            ),
        ),
        read=read_settings,
        kind="scaling",
        fields=SCALING,
        most=1,
        states=("set",),
        refuse=refuse_unchanged(change_settings),
        of_cell=True,
        tier="T1",
        command="SetAutoscaling",
        express=express_settings,
        done=has_settings,
        verified="has the settings given",
        inverse="Set autoscaling back to {was}",
        back=settings_back,
        change=change_settings,
        found=found_setting,
    ),
)  # fmt: skip
