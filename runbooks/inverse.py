"""How an act is taken back: as typed acts, made from what was shown of its targets before it.

An inverse restores what the targets were declared to be, not what was lost on the way: a drained node takes work again,
but the work that was stopped there has lost what no checkpoint saved. What cannot be restored has no inverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from engine.errors import SpecError
from engine.scaling import Autoscaling, changed_settings
from runbooks import sizes
from runbooks.amounts import listed
from runbooks.plan import Act, ActionName, MoneyChange, QueueChange, RequestChange, ScalingChange, Target

NEVER: frozenset[ActionName] = frozenset(
    (
        "cancel",
        "requeue",
        "preempt",
        "interrupt",
        "consolidate",
        "approve_spending",
        "notify",
        "open_review",
        "set_job_priority",
    )
)
"""What cannot be taken back, whatever the state: work has ended or was stopped, machines are gone, words were read."""
STILL_BUSY = "draining with work"


def inverse_of(act: Act, shown: tuple[Target, ...]) -> tuple[Act, ...]:
    """The acts that take `act` back, in the order in which they are done. `shown`: its targets before it, in its order.
    Empty when it cannot be taken back."""
    back = _BACK.get(act.action)
    return tuple(back(act, shown)) if back is not None else ()


def why_not_inverse(act: Act, shown: tuple[Target, ...], rollback: tuple[Act, ...]) -> str:
    """Empty when `rollback` takes `act` back: exactly its targets, to exactly what was shown of them, by the actions
    that do that. Else the first thing that is wrong, in words."""
    expected = inverse_of(act, shown)
    if not expected:
        return f"{act.action} cannot be taken back here, by {rollback[0].action} or otherwise" if rollback else ""
    wanted = _deeds(act, shown, expected)
    try:
        given = _deeds(act, shown, rollback)
    except SpecError as error:
        return f"it cannot be carried out: {error.problem}"
    for id_, deeds in given.items():
        if id_ not in wanted:
            return f"{deeds[0][0]} {id_} is no part of the way back of {act.action}"
    left = tuple(id_ for id_ in wanted if id_ not in given)
    if left:
        return f"it leaves {listed(left)} as {act.action} made it"
    for id_, deeds in given.items():
        ours, theirs = (" then ".join(action for action, _ in some) for some in (wanted[id_], deeds))
        if ours != theirs:
            return f"{theirs} {id_} does not take {act.action} back: {ours} does"
        if wanted[id_] != deeds:
            return f"{theirs} {id_} gives it something else than it was shown with"
    return ""


# -- one function for each kind of way back ---------------------------------------------------------------------------


def _same_targets(action: ActionName) -> Callable[[Act, tuple[Target, ...]], Iterator[Act]]:
    """Another action on all of the targets."""

    def back(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
        yield Act(action=action, targets=act.targets)

    return back


def _by_state(actions: Mapping[str, ActionName]) -> Callable[[Act, tuple[Target, ...]], Iterator[Act]]:
    """State that was shown -> the action that leads back to it. One that is not named needs no way back: a node that
    drained before is out of use as before."""

    def back(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
        for action in dict.fromkeys(actions.values()):
            ids = tuple(target.id for target in shown if actions.get(_state(target)) == action)
            if ids:
                yield Act(action=action, targets=ids)

    return back


def _state(target: Target) -> str:
    """The state that was shown. A node that drains with work on it was only kept from new work: to drain it on the way
    back would stop what nobody meant to stop. Slurm shows every drained node that jobs still run on so."""
    return STILL_BUSY if target.state == "draining" and target.work else target.state


def _was(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """The same action with what each target had, which may differ: a priority class, or a queue."""
    for value in dict.fromkeys(target.was for target in shown if target.was):
        yield Act(action=act.action, targets=tuple(t.id for t in shown if t.was == value), to=value)


def _quota(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """What is in use above the former quota runs out by itself: taking back stops nothing."""
    if act.queue is not None:
        change = QueueChange(was=act.queue.to, to=act.queue.was, over="keep")
        yield Act(action="set_quota", targets=act.targets, queue=change)


def _reserve(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    for target in shown:
        if target.reservation is not None:
            yield Act(action="reserve", targets=(target.id,), reservation=target.reservation)


def _policy(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    yield Act(action="set_policy", targets=(shown[0].state,))


def _price(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    yield Act(
        action="set_price", targets=act.targets, money=MoneyChange(price_microusd_hour=shown[0].price_microusd_hour)
    )


def _budget(_: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """Those that there were are set again; those that there were not are removed."""
    for target in shown:
        if target.budget is not None:
            yield Act(action="set_budget", targets=(target.id,), money=MoneyChange(budget=target.budget))
    new = tuple(target.id for target in shown if target.budget is None)
    if new:
        yield Act(action="remove_budget", targets=new)


def _resize(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """What each asked for of the resources that were changed. What runs starts anew once more."""
    if act.resize is None:
        return
    requests = {target.id: _asked(target, act.resize) for target in shown}
    for request in {tuple(sorted(request.items())): request for request in requests.values()}.values():
        ids = tuple(id_ for id_, asked in requests.items() if asked == request)
        yield Act(action="resize", targets=ids, resize=RequestChange(group=act.resize.group, request=request))


def _asked(target: Target, change: RequestChange) -> dict[str, int]:
    """What one task of the group asks for, of the resources that the change names."""
    of_group = next((request for group, request in target.asks if change.group in ("", group)), {})
    return {name: of_group.get(name, 0) for name in change.request}


def _scaling(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """A pool that did not grow by itself cannot be made one that does not again."""
    size, change = shown[0].size, act.scaling
    if size is None or size.scaling is None or change is None:
        return
    had = {field: getattr(size.scaling, field) for field in sizes.FIELDS if getattr(change, field) is not None}
    yield Act(action="set_scaling", targets=act.targets, scaling=ScalingChange(**had))


def _targets(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    if shown[0].size is not None:
        yield Act(action="set_targets", targets=act.targets, scaling=ScalingChange(targets=shown[0].size.set_for))


def _autoscaling(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    was, change = shown[0].autoscaling, act.scaling
    if was is None or change is None:
        return
    to = changed_settings(was, change.preset, change.settings)
    had = {field: getattr(was, field) for field in was.__struct_fields__ if getattr(was, field) != getattr(to, field)}
    yield Act(action="set_autoscaling", targets=act.targets, scaling=ScalingChange(settings=had))


def _scale_pool(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    """As many nodes as it had, then the schedule that it had."""
    size = shown[0].size
    if size is not None:
        yield Act(action="scale_pool", targets=act.targets, nodes=sizes.nodes_of(size))
        yield Act(action="set_targets", targets=act.targets, scaling=ScalingChange(targets=size.set_for))


def _canary(act: Act, shown: tuple[Target, ...]) -> Iterator[Act]:
    canary = act.canary
    if canary is None:
        return
    if canary.policy is not None:
        yield Act(action="set_policy", targets=(shown[0].state,))
    for target in shown:
        if canary.order is not None and target.queue is not None:
            changed = msgspec.structs.replace(target.queue, order=canary.order)
            change = QueueChange(was=changed, to=target.queue, over="keep")
            yield Act(action="set_quota", targets=(target.id,), queue=change)


_BACK: Mapping[ActionName, Callable[[Act, tuple[Target, ...]], Iterator[Act]]] = {
    "hold": _same_targets("release"),
    "release": _same_targets("hold"),
    "suspend": _same_targets("resume"),
    "resume": _same_targets("suspend"),
    "cordon": _by_state({"ready": "uncordon", "draining": "drain"}),
    "uncordon": _by_state({"cordoned": "cordon", STILL_BUSY: "cordon", "draining": "drain"}),
    "drain": _by_state({"ready": "uncordon", "cordoned": "cordon"}),
    "hold_queue": _by_state({"open": "open_queue", "draining": "drain_queue"}),
    "drain_queue": _by_state({"open": "open_queue", "held": "hold_queue"}),
    "open_queue": _by_state({"held": "hold_queue", "draining": "drain_queue"}),
    "set_quota": _quota,
    "reserve": _same_targets("unreserve"),
    "unreserve": _reserve,
    "set_policy": _policy,
    "resize": _resize,
    "set_price": _price,
    "set_budget": _budget,
    "remove_budget": _budget,
    "set_scaling": _scaling,
    "set_targets": _targets,
    "set_autoscaling": _autoscaling,
    "set_priority": _was,
    "move": _was,
    "set_qos": _was,
    "power_up": _same_targets("power_down"),
    "power_down": _same_targets("power_up"),
    "scale_pool": _scale_pool,
    "canary": _canary,
}
"""Each is given the act and its targets as shown. Those of NEVER are not in it."""


# -- what a rollback comes to, for comparison -------------------------------------------------------------------------


def _deeds(
    act: Act, shown: tuple[Target, ...], rollback: tuple[Act, ...]
) -> dict[str, list[tuple[ActionName, object]]]:
    """Target -> what a rollback does to it in turn, and what it has afterwards, however that is split into acts. Raises
    SpecError for settings that there are not."""
    before = {target.id: target for target in shown}
    found: dict[str, list[tuple[ActionName, object]]] = {}
    for back in rollback:
        for id_ in back.targets:
            found.setdefault(id_, []).append((back.action, _value(act, back, before.get(id_))))
    return found


def _value(act: Act, back: Act, was: Target | None) -> object:
    """What a target has after the rollback's act, where the action alone does not say it. Words of evidence do not
    count; every other field does, so that one which has no meaning for the action is a difference."""
    fields: dict[str, object] = {
        field: value
        for field in Act.__struct_fields__
        if field not in ("action", "targets") and (value := getattr(back, field)) not in (None, (), "")
    }
    if back.queue is not None and back.queue.over in ("keep", "refuse"):
        # Neither stops anything.
        fields["queue"] = (back.queue.was, back.queue.to)
    if back.resize is not None:
        of = next((group for group, _ in was.asks), "") if was is not None and not back.resize.group else ""
        fields["resize"] = (back.resize.group or of, tuple(sorted(back.resize.request.items())))
    if back.scaling is not None and was is not None:
        fields["scaling"] = _scaled(act, back.scaling, was)
    return fields


def _scaled(act: Act, back: ScalingChange, was: Target) -> object:
    """The settings after both, where there were some; else what is given."""
    change = act.scaling or ScalingChange()
    if was.autoscaling is not None:
        changed: Autoscaling = changed_settings(was.autoscaling, change.preset, change.settings)
        return changed_settings(changed, back.preset, back.settings), back.targets, _limits(back)
    if was.size is not None and was.size.scaling is not None:
        limits = [
            next(v for v in (there, here, getattr(was.size.scaling, field)) if v is not None)
            for field, there, here in zip(sizes.FIELDS, _limits(back), _limits(change), strict=True)
        ]
        return limits, tuple(sorted(back.targets)), back.preset, dict(back.settings)
    return back


def _limits(change: ScalingChange) -> list[int | None]:
    return [getattr(change, field) for field in sizes.FIELDS]
