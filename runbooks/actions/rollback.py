"""How an act is taken back: as typed acts, made from what was shown of its targets before it.

An inverse restores what the targets were declared to be, not what was lost on the way: a drained node takes work again,
but the work that was stopped there has lost what no checkpoint saved. What cannot be restored has no inverse.
"""

from __future__ import annotations

from engine.model.autoscaling import Autoscaling, changed_settings
from engine.model.errors import SpecError
from runbooks.actions.catalogue import find
from runbooks.actions.pools import LIMITS
from runbooks.plans.amounts import listed
from runbooks.plans.typed_plan import Act, ActionName, ScalingChange, Target


def inverse_of(act: Act, shown: tuple[Target, ...]) -> tuple[Act, ...]:
    """The acts that take `act` back, in the order in which they are done. `shown`: its targets before it, in its order.
    Empty when it cannot be taken back."""
    back = find(act.action).back
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
            for field, there, here in zip(LIMITS, _limits(back), _limits(change), strict=True)
        ]
        return limits, tuple(sorted(back.targets)), back.preset, dict(back.settings)
    return back


def _limits(change: ScalingChange) -> list[int | None]:
    return [getattr(change, field) for field in LIMITS]
