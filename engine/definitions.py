"""The check of what defines a cell: pools, nodes, queues, priority classes, settings."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from engine import commands as cmd
from engine import events as ev
from engine.devices import check_devices
from engine.errors import NotFoundError, RefusedError, SpecError
from engine.model import (
    LEVELS,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Settings,
    Spec,
    WorkloadState,
    check_id,
    check_node,
    check_pool,
    check_quantity,
)
from engine.naming import listed
from engine.quota import check_queues
from engine.scores import check_weights
from engine.state import State

Checked = tuple[list[ev.AnyEvent], tuple[str, ...]]
"""The events, and the ids they change."""


S = TypeVar("S", bound=Spec)


def canonical(spec: S) -> S:
    """The spec as it will be when read back: a word that is a default is left out only if it is that very object."""
    return msgspec.convert(msgspec.to_builtins(spec), type(spec))


def define(state: State, command: cmd.Define) -> Checked:
    if state.capacity.node_ids or state.queues.specs:
        raise RefusedError(f"cell '{state.cell}' is defined already", "Add to it with add_nodes, add_queues, add_pools")
    cell = command.cell
    check_id(cell.name, "cell.name")
    classes = cell.priority_classes or (PriorityClassSpec(name="normal", value=0),)
    _check_settings(cell.settings, "cell.settings")
    check_flavor_pools(cell.queues, {pool.name for pool in cell.pools}, "cell.queues")
    for i, queue in enumerate(cell.queues):
        check_weights(queue.placement, f"cell.queues[{i}].placement")
    events: list[ev.AnyEvent] = [ev.CellNamed(cell.name)]
    if cell.settings != state.settings:
        events.append(ev.SettingsSet(canonical(cell.settings)))
    events += _pools_added(state, cell.pools)
    events += _nodes_added(state, cell.nodes, {pool.name for pool in cell.pools})
    events += [ev.QueueAdded(canonical(spec)) for spec in check_queues(cell.queues, {}, set())]
    events += _priority_classes_added(state, classes)
    return events, (cell.name,)


def add_pools(state: State, command: cmd.AddPools) -> Checked:
    return _pools_added(state, command.pools), tuple(pool.name for pool in command.pools)


def _pools_added(state: State, pools: tuple[PoolSpec, ...]) -> list[ev.AnyEvent]:
    seen = set(state.capacity.pool_of)
    for i, pool in enumerate(pools):
        check_pool(pool, f"pools[{i}]")
        check_weights(pool.placement, f"pools[{i}].placement")
        check_devices(pool, f"pools[{i}]")
        if pool.name in seen:
            raise SpecError(f"pools[{i}].name", f"pool '{pool.name}' is there already", "Give each pool its own name")
        seen.add(pool.name)
    return [ev.PoolAdded(pool) for pool in pools]


def add_nodes(state: State, command: cmd.AddNodes) -> Checked:
    return _nodes_added(state, command.nodes, set()), tuple(node.id for node in command.nodes)


def _nodes_added(state: State, nodes: tuple[NodeSpec, ...], new_pools: set[str]) -> list[ev.AnyEvent]:
    known = state.capacity.row_of
    pools = new_pools | set(state.capacity.pool_of)
    seen: set[str] = set()
    parents = _parents_by_name(state)
    ways: set[tuple[str, ...]] = set()
    for i, node in enumerate(nodes):
        check_node(node, f"nodes[{i}]")
        if node.id in known or node.id in seen:
            raise SpecError(f"nodes[{i}].id", f"node '{node.id}' is there already", "Give each node its own id")
        if node.pool not in pools:
            raise SpecError(
                f"nodes[{i}].pool", f"there is no pool '{node.pool}'", f"Use one of: {', '.join(sorted(pools))}"
            )
        way = (node.region, node.zone, node.block, node.rack, node.nvlink)
        if way not in ways:
            ways.add(way)
            _check_parents(way, parents, f"nodes[{i}]")
        seen.add(node.id)
    return [ev.NodesAdded(nodes)] if nodes else []


Parents = dict[tuple[str, str, str], str]
"""(level, place, wider level) -> the place of the wider level that it is in."""


def _parents_by_name(state: State) -> Parents:
    names = state.capacity.places.names
    return {
        (LEVELS[level], names[place], LEVELS[wider]): names[parent]
        for (level, place, wider), parent in state.capacity.parents().items()
    }


def _check_parents(way: tuple[str, ...], parents: Parents, where: str) -> None:
    """Refuse a node that says of a place that it is in another one than was said before. `way`: its places, widest
    first."""
    known_places = [(level, place) for level, place in zip(LEVELS, way, strict=False) if place]
    for i, (level, place) in enumerate(known_places):
        for wider, parent in known_places[:i]:
            known = parents.setdefault((level, place, wider), parent)
            if known != parent:
                raise SpecError(
                    f"{where}.{level}",
                    f"{level} '{place}' is in {wider} '{parent}' here, but in {wider} '{known}' elsewhere",
                    f"A {level} is in one {wider}: correct one of the two, or give the other {level} its own name",
                )


def add_queues(state: State, command: cmd.AddQueues) -> Checked:
    busy = {state.queues.specs[row].name for row in set(state.workloads.queue)}
    check_flavor_pools(command.queues, set(state.capacity.pool_of), "queues")
    for i, queue in enumerate(command.queues):
        check_weights(queue.placement, f"queues[{i}].placement")
    ordered = check_queues(command.queues, state.queues.row_of, busy)
    return [ev.QueueAdded(canonical(spec)) for spec in ordered], tuple(spec.name for spec in command.queues)


def check_flavor_pools(queues: tuple[QueueSpec, ...], pools: set[str], where: str) -> None:
    for i, spec in enumerate(queues):
        for j, flavor in enumerate(spec.flavors):
            if flavor.pool not in pools:
                raise SpecError(
                    f"{where}[{i}].flavors[{j}].pool",
                    f"there is no pool '{flavor.pool}'",
                    f"Use one of: {', '.join(sorted(pools))}",
                )


def add_priority_classes(state: State, command: cmd.AddPriorityClasses) -> Checked:
    return (
        _priority_classes_added(state, command.priority_classes),
        tuple(spec.name for spec in command.priority_classes),
    )


def _priority_classes_added(state: State, classes: tuple[PriorityClassSpec, ...]) -> list[ev.AnyEvent]:
    seen = set(state.workloads.priority_of)
    for i, spec in enumerate(classes):
        check_id(spec.name, f"priority_classes[{i}].name")
        check_quantity(spec.value, f"priority_classes[{i}].value", least=-1_000_000_000, most=1_000_000_000)
        if spec.name in seen:
            raise SpecError(f"priority_classes[{i}].name", f"'{spec.name}' is there already", "Give each its own name")
        seen.add(spec.name)
    return [ev.PriorityClassAdded(canonical(spec)) for spec in classes]


def remove_priority_classes(state: State, command: cmd.RemovePriorityClasses) -> Checked:
    w = state.workloads
    for i, name in enumerate(command.names):
        row = w.priority_of.get(name)
        if row is None:
            raise NotFoundError(f"there is no priority class '{name}'", "Nothing to remove")
        users = [w.ids[r] for r, p in enumerate(w.priority) if p == row and not WorkloadState(w.state[r]).terminal]
        if users:
            raise RefusedError(
                f"names[{i}]: priority class '{name}' is used by {listed(users)}", "Let them end or cancel them first"
            )
    return [ev.PriorityClassRemoved(name) for name in dict.fromkeys(command.names)], command.names


def _check_settings(settings: Settings, where: str) -> None:
    for field in ("fair_half_life_ms", "starve_after_ms", "preempt_after_ms", "try_timeout_ms"):
        check_quantity(getattr(settings, field), f"{where}.{field}")
    check_quantity(settings.reservation_depth, f"{where}.reservation_depth", least=1, most=1_000_000)


def set_settings(state: State, command: cmd.SetSettings) -> Checked:
    _check_settings(command.settings, "settings")
    changes = command.settings != state.settings
    return ([ev.SettingsSet(canonical(command.settings))] if changes else []), ("settings",)


def set_policy(state: State, command: cmd.SetPolicy) -> Checked:
    return ([ev.PolicySet(command.policy)] if command.policy != state.policy else []), (command.policy,)
