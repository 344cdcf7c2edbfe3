"""What is asked for the sizes of pools and the autoscaler, in words beside what there is, and how far that may go."""

from __future__ import annotations

import msgspec

from engine.scaling import Autoscaling, ScalingSpec, changed_settings
from engine.scaling_report import PoolSize
from runbooks.amounts import utc
from runbooks.plan import Act, ScalingChange

AUTOSCALER = "autoscaler"
"""The target of a change of its settings."""
FIELDS = ("least", "most", "headroom", "priority")
SHOWN = 6
"""Entries of a schedule that are spelled out."""


def nodes_of(size: PoolSize) -> int:
    """Nodes that a pool has or has on order, whatever their state."""
    return size.ready + size.booting + size.other + size.ordered


def was_and_to(act: Act, size: PoolSize | None, settings: Autoscaling | None) -> tuple[str, str]:
    """What is in force and what shall be, of what the plan changes; the same words where it changes nothing. Raises
    SpecError for settings that there are not."""
    change = act.scaling or ScalingChange()
    if settings is not None:
        to = changed_settings(settings, change.preset, change.settings)
        fields = [field for field in to.__struct_fields__ if getattr(to, field) != getattr(settings, field)]
        return _values(settings, fields), _values(to, fields)
    assert size is not None, "a pool's size is read before it is changed"
    if act.action == "set_targets":
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


# -- how far a pool may shrink or grow because of an act -------------------------------------------------------------


def fewer(act: Act, size: PoolSize) -> int:
    """Most nodes that may go because of it. Of those of a pool, the ones on order and booting go first."""
    have = nodes_of(size)
    if act.action == "scale_pool" and act.nodes is not None:
        return max(0, min(size.ready, have - act.nodes))
    was, change = size.scaling, act.scaling
    if was is None or change is None:
        return 0
    if act.action == "set_targets":
        return max([0, *(min(size.ready, floor) - to for floor, to in _floors(size, change))])
    to = _limits(was, change)
    return max(0, min(size.ready, was.least) - to.least, min(size.ready, was.headroom) - to.headroom, have - to.most)


def more(act: Act, size: PoolSize) -> int:
    """Most nodes that the pool may come to have because of it, besides those it might have had anyway."""
    have = nodes_of(size)
    if act.action == "scale_pool" and act.nodes is not None:
        return max(0, act.nodes - have)
    was, change = size.scaling, act.scaling
    if change is None:
        return 0
    if act.action == "set_targets":
        return max([0, *(to - max(have, floor) for floor, to in _floors(size, change))])
    if was is None:
        return max(0, (change.most or 0) - have)
    to = _limits(was, change)
    return max(0, to.most - was.most, to.least - max(have, was.least), to.headroom - was.headroom)


def _limits(was: ScalingSpec, change: ScalingChange) -> ScalingSpec:
    """Least, most and headroom after the change; what else a pool says of its scaling does not matter here."""
    least, most, headroom = (
        getattr(was, field) if (to := getattr(change, field)) is None else to for field in ("least", "most", "headroom")
    )
    return ScalingSpec(least=least, most=most, headroom=headroom)


def _floors(size: PoolSize, change: ScalingChange) -> list[tuple[int, int]]:
    """(nodes that were set, nodes that shall be set) from each time of either schedule on."""
    times = sorted({at_ms for at_ms, _ in (*size.set_for, *change.targets)})
    return [(_floor(size.set_for, at_ms), _floor(change.targets, at_ms)) for at_ms in times]


def _floor(schedule: tuple[tuple[int, int], ...], at_ms: int) -> int:
    """Nodes set for that time: the last entry that has begun by then."""
    return max(((begins_ms, nodes) for begins_ms, nodes in schedule if begins_ms <= at_ms), default=(0, 0))[1]
