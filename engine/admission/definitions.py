"""The check of what defines a cell: pools, nodes, queues, priority classes, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from engine.admission.id_lookup import listed
from engine.capacity.devices import check_devices
from engine.capacity.scores import check_weights
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.autoscaling import check_autoscaling, check_patience
from engine.model.errors import NotFoundError, RefusedError, SpecError
from engine.model.health_settings import check_health
from engine.model.qos import check_pressure
from engine.model.specs import (
    LEVELS,
    BudgetSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueSpec,
    Settings,
    Spec,
    WorkloadState,
    check_budget,
    check_id,
    check_node,
    check_pool,
    check_quantity,
)
from engine.queues.tree_checks import check_queues
from engine.state.cell_state import State

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
    events += _pools_added(state, cell.pools, cell.settings)
    events += _nodes_added(state, cell.nodes, {pool.name for pool in cell.pools})
    events += [ev.QueueAdded(canonical(spec)) for spec in check_queues(cell.queues, {}, set())]
    events += _priority_classes_added(state, classes)
    events += budgets_set(cell.budgets, {spec.name for spec in cell.queues}, "budgets")
    return events, (cell.name,)


def budgets_set(budgets: tuple[BudgetSpec, ...], queues: set[str], where: str) -> list[ev.AnyEvent]:
    """`queues`: names there are. Raises SpecError."""
    names: set[str] = set()
    for i, spec in enumerate(budgets):
        check_budget(spec, f"{where}[{i}]")
        if spec.name in names:
            raise SpecError(f"{where}[{i}].name", f"'{spec.name}' is given twice", "Give each budget its own name")
        names.add(spec.name)
        if spec.scope == "queue" and spec.of not in queues:
            raise SpecError(
                f"{where}[{i}].of", f"there is no queue '{spec.of}'", f"Use one of: {', '.join(sorted(queues))}"
            )
    return [ev.BudgetSet(canonical(spec)) for spec in budgets]


def add_pools(state: State, command: cmd.AddPools) -> Checked:
    return _pools_added(state, command.pools, state.settings), tuple(pool.name for pool in command.pools)


def _pools_added(state: State, pools: tuple[PoolSpec, ...], settings: Settings) -> list[ev.AnyEvent]:
    seen = set(state.capacity.pool_of)
    for i, pool in enumerate(pools):
        check_pool(pool, f"pools[{i}]")
        check_weights(pool.placement, f"pools[{i}].placement")
        check_devices(pool, f"pools[{i}]")
        if pool.scaling is not None:
            check_patience(pool.scaling, settings.autoscaling, f"pools[{i}].scaling")
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
    first_at: dict[Way, int] = {}
    for i, (node, way) in enumerate(_with_ways(nodes)):
        check_node(node, f"nodes[{i}]")
        if node.id in known or node.id in seen:
            raise SpecError(f"nodes[{i}].id", f"node '{node.id}' is there already", "Give each node its own id")
        if node.pool not in pools:
            raise SpecError(
                f"nodes[{i}].pool", f"there is no pool '{node.pool}'", f"Use one of: {', '.join(sorted(pools))}"
            )
        first_at.setdefault(way, i)
        seen.add(node.id)
    whole = _whole_ways(state, first_at)
    nodes = tuple([node if whole[way] == way else _standing_at(node, whole[way]) for node, way in _with_ways(nodes)])
    return [ev.NodesAdded(nodes)] if nodes else []


Way = tuple[str, ...]
"""Places of a node, widest first; empty where it is not known."""
Parents = dict[tuple[str, str, str], str]
"""(level, place, wider level) -> the place of the wider level that it is in; empty where nobody knows."""


def _with_ways(nodes: tuple[NodeSpec, ...]) -> Iterator[tuple[NodeSpec, Way]]:
    for node in nodes:
        yield node, (node.region, node.zone, node.block, node.rack, node.nvlink)


def _standing_at(node: NodeSpec, way: Way) -> NodeSpec:
    return msgspec.structs.replace(node, **dict(zip(LEVELS[:-1], way, strict=True)))


def _whole_ways(state: State, first_at: dict[Way, int]) -> dict[Way, Way]:
    """Way -> the same with what others tell: a node of a rack is in the block that any other node of the rack says.
    `first_at`: way -> first of the new nodes that has it. Refuses a place in two others."""
    names = state.capacity.places.names
    known = {
        (LEVELS[level], names[place], LEVELS[wider]): names[parent]
        for (level, place, wider), parent in state.capacity.parents().items()
    }
    told = dict(known)
    for way, i in first_at.items():
        _tell_parents(way, told, known, f"nodes[{i}]")
    whole = {way: _filled(way, told) for way in first_at}
    for way, i in first_at.items():
        # What was filled in may tell more of the wider places.
        _tell_parents(whole[way], told, known, f"nodes[{i}]")
    return whole


def _filled(way: Way, told: Parents) -> Way:
    filled = list(way)
    for wider in reversed(range(len(way))):
        inner = [
            told.get((LEVELS[at], filled[at], LEVELS[wider]), "") for at in range(wider + 1, len(way)) if filled[at]
        ]
        filled[wider] = filled[wider] or next((parent for parent in inner if parent), "")
    return tuple(filled)


def _tell_parents(way: Way, told: Parents, known: Parents, where: str) -> None:
    """Note which place is in which. Refuse a place that is in another one than was said before, and what would place
    nodes that are in the cell: they stay where they are."""
    places = [(level, place) for level, place in zip(LEVELS, way, strict=False) if place]
    for i, (level, place) in enumerate(places):
        for wider, parent in places[:i]:
            if known.get((level, place, wider)) == "":
                raise SpecError(
                    f"{where}.{wider}",
                    f"{level} '{place}' has nodes already, and it is not known in which {wider} they are",
                    f"Leave the {wider} out, or give this {level} a name of its own",
                )
            before = told.get((level, place, wider)) or parent
            if before != parent:
                raise SpecError(
                    f"{where}.{level}",
                    f"{level} '{place}' is in {wider} '{parent}' here, but in {wider} '{before}' elsewhere",
                    f"A {level} is in one {wider}: correct one of the two, or give the other {level} its own name",
                )
            told[level, place, wider] = parent


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
    check_autoscaling(settings.autoscaling, f"{where}.autoscaling")
    check_health(settings.health, f"{where}.health")
    check_pressure(settings.pressure, f"{where}.pressure")


def set_settings(state: State, command: cmd.SetSettings) -> Checked:
    _check_settings(command.settings, "settings")
    if command.settings.decided_by != state.settings.decided_by:
        raise RefusedError(
            f"who decides the cell, {state.settings.decided_by}, was set when it was made", "Make another cell for that"
        )
    for pool in state.capacity.pools:
        if pool.scaling is not None:
            check_patience(pool.scaling, command.settings.autoscaling, f"pool '{pool.name}': scaling")
    changes = command.settings != state.settings
    return ([ev.SettingsSet(canonical(command.settings))] if changes else []), ("settings",)


def set_policy(state: State, command: cmd.SetPolicy) -> Checked:
    return ([ev.PolicySet(command.policy)] if command.policy != state.policy else []), (command.policy,)
