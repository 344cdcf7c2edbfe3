"""What is asked for the sizes of pools and the autoscaler: as commands, and in words beside what there is."""

from __future__ import annotations

import msgspec

from engine.commands import AnyCommand, SetAutoscaling, SetScaling, SetTargets
from engine.errors import SpecError
from engine.scaling import Autoscaling, changed_settings
from engine.scaling_report import PoolSize
from runbooks.amounts import utc
from runbooks.plan import Plan, ScalingChange

AUTOSCALER = "autoscaler"
"""The target of a change of its settings."""
FIELDS = ("least", "most", "headroom", "priority")
SHOWN = 6
"""Entries of a schedule that are spelled out."""
ACTIONS = ("set_scaling", "set_targets", "set_autoscaling")


def command(plan: Plan) -> AnyCommand:
    """Raises SpecError unless the plan says what shall change, of one pool or of the autoscaler."""
    change = plan.scaling
    if change is None:
        raise SpecError("scaling", "is missing", "Say what it shall be")
    if len(plan.targets) != 1:
        raise SpecError("targets", f"{len(plan.targets)} are named", "Change one at a time")
    target = plan.targets[0]
    if plan.action == "set_scaling":
        return SetScaling(pool=target, **{field: getattr(change, field) for field in FIELDS})
    if plan.action == "set_targets":
        return SetTargets(pool=target, targets=change.targets)
    if target != AUTOSCALER:
        raise SpecError("targets", f"'{target[:64]}' is not {AUTOSCALER}", f"Name {AUTOSCALER}")
    return SetAutoscaling(preset=change.preset, changes=change.settings)


def was_and_to(plan: Plan, size: PoolSize | None, settings: Autoscaling | None) -> tuple[str, str]:
    """What is in force and what shall be, of what the plan changes; the same words where it changes nothing. Raises
    SpecError for settings that there are not."""
    change = plan.scaling or ScalingChange()
    if settings is not None:
        to = changed_settings(settings, change.preset, change.settings)
        fields = [field for field in to.__struct_fields__ if getattr(to, field) != getattr(settings, field)]
        return _values(settings, fields), _values(to, fields)
    assert size is not None, "a pool's size is read before it is changed"
    if plan.action == "set_targets":
        return schedule(size.set_for), schedule(tuple(sorted(change.targets)))
    fields = [field for field in FIELDS if getattr(change, field) is not None]
    was = "does not grow by itself" if size.scaling is None else _values(size.scaling, fields)
    return was, _values(change, fields)


def schedule(targets: tuple[tuple[int, int], ...]) -> str:
    """As in "6 nodes from 2026-03-01 08:00:00 UTC, 0 from …"."""
    told = [f"{nodes:,}{' nodes' if not i else ''} from {utc(at_ms)}" for i, (at_ms, nodes) in enumerate(targets)]
    more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    return f"{', '.join(told[:SHOWN])}{more}" if told else "nothing set"


def _values(of: msgspec.Struct, fields: list[str]) -> str:
    values = {field: getattr(of, field) for field in fields}
    return ", ".join(
        f"{field} {', '.join(value) if isinstance(value, tuple) else str(value).lower()}"
        for field, value in values.items()
    )
