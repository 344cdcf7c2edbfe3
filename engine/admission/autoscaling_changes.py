"""The check of what people set about how pools grow and shrink."""

from __future__ import annotations

import msgspec

from engine.admission.definitions import Checked, canonical
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.autoscaling import MAX_POOL_NODES, ScalingSpec, changed_settings, check_patience, check_scaling
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.specs import check_quantity
from engine.state.cell_state import State

MAX_TARGETS = 1_000
"""Entries in the schedule of one pool."""


def set_scaling(state: State, command: cmd.SetScaling) -> Checked:
    """Raises NotFoundError for the pool, SpecError naming the field."""
    pool = pool_row(state, command.pool)
    given = {
        field: value
        for field in ("least", "most", "headroom", "priority")
        if (value := getattr(command, field)) is not None
    }
    was = state.capacity.pools[pool].scaling
    if was is None and "most" not in given:
        raise SpecError("most", "is missing", f"Pool '{command.pool}' does not grow by itself: say how far it shall")
    to = ScalingSpec(**given) if was is None else msgspec.structs.replace(was, **given)
    check_scaling(to, "scaling")
    check_patience(to, state.settings.autoscaling, "scaling")
    return ([] if to == was else [ev.PoolScalingSet(pool, canonical(to))]), (command.pool,)


def set_targets(state: State, command: cmd.SetTargets) -> Checked:
    """Raises NotFoundError for the pool, SpecError naming the entry, RefusedError for a pool that does not grow."""
    pool = pool_row(state, command.pool)
    scaling = state.capacity.pools[pool].scaling
    if scaling is None:
        raise RefusedError(
            f"pool '{command.pool}' does not grow by itself", "Say how far it shall first: set-scaling --most"
        )
    if len(command.targets) > MAX_TARGETS:
        raise SpecError("targets", f"has {len(command.targets):,} entries", f"Give at most {MAX_TARGETS:,}")
    seen: set[int] = set()
    for i, (at_ms, nodes) in enumerate(command.targets):
        check_quantity(at_ms, f"targets[{i}][0]")
        check_quantity(nodes, f"targets[{i}][1]", most=MAX_POOL_NODES)
        if nodes > scaling.most:
            raise SpecError(
                f"targets[{i}][1]",
                f"{nodes} is more than the pool may have, {scaling.most}",
                "Give less, or raise most",
            )
        if at_ms in seen:
            raise SpecError(f"targets[{i}][0]", f"{at_ms} ms is given twice", "Give each time once")
        seen.add(at_ms)
    targets = tuple(sorted(command.targets))
    changes = list(targets) != state.sizing.targets.get(pool, [])
    return ([ev.TargetsSet(pool, targets)] if changes else []), (command.pool,)


def set_autoscaling(state: State, command: cmd.SetAutoscaling) -> Checked:
    """Raises SpecError naming the preset or the field, or the pool whose machines boot too long for it."""
    was = state.settings.autoscaling
    to = changed_settings(was, command.preset, command.changes)
    for pool in state.capacity.pools:
        if pool.scaling is not None:
            check_patience(pool.scaling, to, f"pool '{pool.name}': scaling")
    settings = msgspec.structs.replace(state.settings, autoscaling=to)
    return ([] if to == was else [ev.SettingsSet(canonical(settings))]), ("autoscaling",)


def pool_row(state: State, name: str) -> int:
    """Raises NotFoundError."""
    found = state.capacity.pool_of.get(name)
    if found is None:
        known = ", ".join(state.capacity.pool_of) or "none is defined"
        raise NotFoundError(f"there is no pool '{name[:64]}'", f"Use one of: {known}")
    return found
