"""The checks of a cell's definitions: pools, nodes, queues, priority classes, settings, prices, budgets and pool sizes.

Each turns the ids that people type into rows, and names every id that is unknown. The check of queue specs covers
names, quotas, bursts and the tree they make.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

import msgspec

from engine.capacity.devices import check_devices
from engine.capacity.scores import check_weights
from engine.model import commands as cmd
from engine.model import events as ev
from engine.model.errors import NotFoundError, RefusedError, SpecError, listed, not_found
from engine.model.spec_parts import (
    MAX_POOL_NODES,
    ScalingSpec,
    changed_settings,
    check_autoscaling,
    check_health,
    check_patience,
    check_pressure,
    check_scaling,
)
from engine.model.specs import (
    LEVELS,
    RESOURCES,
    BudgetSpec,
    BurstSpec,
    NodeSpec,
    PoolSpec,
    PriorityClassSpec,
    QueueMode,
    QueueSpec,
    Settings,
    Spec,
    WorkloadState,
    check_budget,
    check_id,
    check_node,
    check_pool,
    check_price,
    check_quantity,
    quantity,
)
from engine.state.cell_state import State
from engine.state.queue_tree import Charge, QueueTree


def rows_of(state: State, ids: tuple[str, ...]) -> list[int]:
    """Rows of all the ids, each once; the id of an array stands for its members. Names every unknown id."""
    known, arrays = state.workloads.row_of, state.workloads.array_names.index
    unknown = [i for i in ids if i not in known and i not in arrays]
    if unknown:
        raise not_found("workload", unknown, chain(known, arrays))
    if not ids:
        raise SpecError("ids", "is empty", "Give at least one")
    rows: list[int] = []
    for name in dict.fromkeys(ids):
        if name in known:
            rows.append(known[name])
        else:
            rows += [row for row in members_of(state, name) if not WorkloadState(state.workloads.state[row]).terminal]
    return list(dict.fromkeys(rows))


def members_of(state: State, array_name: str) -> list[int]:
    """Rows of the members of an array."""
    array_row = state.workloads.array_names.index[array_name]
    return [row for row, member in enumerate(state.workloads.array) if member == array_row]


def nodes_of(state: State, ids: tuple[str, ...]) -> list[int]:
    known = state.capacity.row_of
    unknown = [i for i in ids if i not in known]
    if unknown:
        raise not_found("node", unknown, known)
    if not ids:
        raise SpecError("ids", "is empty", "Give at least one")
    return [known[i] for i in dict.fromkeys(ids)]


def ids_of(state: State, rows: list[int]) -> tuple[str, ...]:
    return tuple(state.workloads.ids[row] for row in rows)


def check_queues(new: tuple[QueueSpec, ...], known: dict[str, int], busy: set[str]) -> list[QueueSpec]:
    """The new queues, parents first. `busy` names queues that hold workloads and so cannot become parents.

    Raises SpecError for bad fields, a parent that is nowhere, and cycles.
    """
    by_name: dict[str, QueueSpec] = {}
    for i, spec in enumerate(new):
        at = f"queues[{i}]"
        check_id(spec.name, f"{at}.name")
        if spec.name in known or spec.name in by_name:
            raise SpecError(f"{at}.name", f"queue '{spec.name}' already exists", "Give each queue its own name")
        _check_fields(spec, at)
        by_name[spec.name] = spec
    for i, spec in enumerate(new):
        at = f"queues[{i}].parent"
        if spec.parent and spec.parent not in by_name and spec.parent not in known:
            raise SpecError(at, f"there is no queue '{spec.parent}'", "Define the parent too, or leave it empty")
        if spec.parent in busy:
            raise SpecError(
                at, f"queue '{spec.parent}' holds workloads", "Only a queue without workloads can be a parent"
            )
    return _parents_first(by_name)


def check_change(tree: QueueTree, spec: QueueSpec) -> None:
    """Check that the named queue can take this spec. Raises NotFoundError, or SpecError for bad fields and for another
    parent.
    """
    present = tree.specs[tree.row(spec.name)]
    if spec.parent != present.parent:
        raise SpecError(
            "queue.parent",
            f"queue '{spec.name}' is below {present.parent or 'no other'} and cannot be moved",
            "Keep its parent, or define a new queue there",
        )
    _check_fields(spec, "queue")


def _check_fields(spec: QueueSpec, at: str) -> None:
    check_quantity(spec.weight, f"{at}.weight", least=1, most=1_000_000)
    check_quantity(spec.min_runtime_ms, f"{at}.min_runtime_ms")
    check_quantity(spec.disruptions, f"{at}.disruptions", least=-1)
    check_quantity(spec.disruption_window_ms, f"{at}.disruption_window_ms", least=1)
    check_quantity(spec.start_within_ms, f"{at}.start_within_ms")
    check_quantity(spec.objective_permille, f"{at}.objective_permille", least=1, most=999)
    _check_quota(spec, spec.nominal, spec.borrowing_limit, spec.lending_limit, at)
    pools: set[str] = set()
    for i, flavor in enumerate(spec.flavors):
        where = f"{at}.flavors[{i}]"
        check_id(flavor.pool, f"{where}.pool")
        if flavor.pool in pools:
            raise SpecError(f"{where}.pool", f"pool '{flavor.pool}' is named twice", "Name each pool once")
        pools.add(flavor.pool)
        _check_quota(spec, flavor.nominal, flavor.borrowing_limit, flavor.lending_limit, where)
    if spec.burst is not None:
        _check_burst(spec, spec.burst, f"{at}.burst")


def _check_quota(
    spec: QueueSpec, nominal: dict[str, int], borrowing: dict[str, int], lending: dict[str, int], at: str
) -> None:
    for field, given in (("nominal", nominal), ("borrowing_limit", borrowing), ("lending_limit", lending)):
        _check_quantities(given, f"{at}.{field}")
    if not spec.parent:
        for field, given, direction in (("borrowing_limit", borrowing, "from"), ("lending_limit", lending, "to")):
            if given:
                raise SpecError(
                    f"{at}.{field}",
                    f"queue '{spec.name}' has no cohort to {'borrow' if direction == 'from' else 'lend'} {direction}",
                    "Give it a parent, or leave the limit out",
                )


def _check_burst(spec: QueueSpec, burst: BurstSpec, at: str) -> None:
    check_quantity(burst.window_ms, f"{at}.window_ms", least=1)
    check_quantity(burst.cooldown_ms, f"{at}.cooldown_ms", least=1)
    if not burst.limit:
        raise SpecError(f"{at}.limit", "is empty", "Give the burst limits by resource, or leave burst out")
    _check_quantities(burst.limit, f"{at}.limit")
    for resource, limit in burst.limit.items():
        if spec.parent and resource not in spec.borrowing_limit:
            raise SpecError(
                f"{at}.limit.{resource}",
                f"queue '{spec.name}' has no borrowing limit for {resource}, so it cannot burst",
                f"Give borrowing_limit.{resource} too; 0 to burst from the nominal quota",
            )
        least = spec.nominal.get(resource, 0) + spec.borrowing_limit.get(resource, 0)
        if limit < least:
            raise SpecError(
                f"{at}.limit.{resource}",
                f"{limit} is below nominal quota and borrowing limit together, {least}",
                f"Give at least {least}",
            )


def _check_quantities(given: dict[str, int], at: str) -> None:
    for resource, amount in given.items():
        if resource not in RESOURCES:
            raise SpecError(at, f"unknown resource '{resource}'", f"Use: {', '.join(RESOURCES)}")
        check_quantity(amount, f"{at}.{resource}")


def _parents_first(by_name: dict[str, QueueSpec]) -> list[QueueSpec]:
    ordered: list[QueueSpec] = []
    placed: set[str] = set()
    for start in by_name.values():
        chain: list[QueueSpec] = []
        at = start
        while at.name not in placed:
            if at in chain:
                loop = " -> ".join([spec.name for spec in chain[chain.index(at) :]] + [at.name])
                raise SpecError("queues", f"the queue tree has a cycle: {loop}", "Make one of them a root")
            chain.append(at)
            if at.parent not in by_name:
                break
            at = by_name[at.parent]
        for spec in reversed(chain):
            placed.add(spec.name)
            ordered.append(spec)
    return ordered


Checked = tuple[list[ev.AnyEvent], tuple[str, ...]]
"""The events, and the ids they change."""


S = TypeVar("S", bound=Spec)


def canonical(spec: S) -> S:
    """The spec as it will be when read back: a word that is a default is left out only if it is that very object."""
    return msgspec.convert(msgspec.to_builtins(spec), type(spec))


def define(state: State, command: cmd.Define) -> Checked:
    if state.capacity.node_ids or state.queues.specs:
        raise RefusedError(f"cell '{state.cell}' is already defined", "Add to it with add_nodes, add_queues, add_pools")
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
            raise SpecError(f"pools[{i}].name", f"pool '{pool.name}' already exists", "Give each pool its own name")
        seen.add(pool.name)
    return [ev.PoolAdded(pool) for pool in pools]


def add_nodes(state: State, command: cmd.AddNodes) -> Checked:
    return _nodes_added(state, command.nodes, set()), tuple(node.id for node in command.nodes)


def _nodes_added(state: State, nodes: tuple[NodeSpec, ...], new_pools: set[str]) -> list[ev.AnyEvent]:
    known = state.capacity.row_of
    pools = new_pools | set(state.capacity.pool_of)
    seen: set[str] = set()
    for i, node in enumerate(nodes):
        check_node(node, f"nodes[{i}]")
        if node.id in known or node.id in seen:
            raise SpecError(f"nodes[{i}].id", f"node '{node.id}' already exists", "Give each node its own id")
        if node.pool not in pools:
            raise SpecError(
                f"nodes[{i}].pool", f"there is no pool '{node.pool}'", f"Use one of: {', '.join(sorted(pools))}"
            )
        seen.add(node.id)
    return [ev.NodesAdded(_with_whole_ways(state, nodes))] if nodes else []


def move_nodes(state: State, nodes: tuple[NodeSpec, ...]) -> ev.NodesMoved:
    """The event by which nodes that are there, and sound, go to other pools and places. Raises SpecError for a place in
    two others."""
    return ev.NodesMoved(_with_whole_ways(state, nodes))


def _with_whole_ways(state: State, nodes: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
    first_at: dict[Way, int] = {}
    for i, (_, way) in enumerate(_with_ways(nodes)):
        first_at.setdefault(way, i)
    whole = _whole_ways(state, first_at)
    return tuple([node if whole[way] == way else _standing_at(node, whole[way]) for node, way in _with_ways(nodes)])


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
                    f"{level} '{place}' already has nodes, and it is not known in which {wider} they are",
                    f"Leave the {wider} out, or give this {level} a name of its own",
                )
            before = told.get((level, place, wider)) or parent
            if before != parent:
                raise SpecError(
                    f"{where}.{level}",
                    f"{level} '{place}' is in {wider} '{parent}' here, but in {wider} '{before}' elsewhere",
                    f"A {level} is in one {wider}: fix one of the two, or give the other {level} its own name",
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
            raise SpecError(f"priority_classes[{i}].name", f"'{spec.name}' already exists", "Give each its own name")
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
    for queue in settings.queue_rerun:
        check_id(queue, f"{where}.queue_rerun")
    check_quantity(settings.reservation_depth, f"{where}.reservation_depth", least=1, most=1_000_000)
    check_autoscaling(settings.autoscaling, f"{where}.autoscaling")
    check_health(settings.health, f"{where}.health")
    check_pressure(settings.pressure, f"{where}.pressure")


def set_settings(state: State, command: cmd.SetSettings) -> Checked:
    _check_settings(command.settings, "settings")
    if command.settings.decided_by != state.settings.decided_by:
        raise RefusedError(
            f"the scheduler of the cell, {state.settings.decided_by}, is fixed at its creation", "Create another cell"
        )
    for pool in state.capacity.pools:
        if pool.scaling is not None:
            check_patience(pool.scaling, command.settings.autoscaling, f"pool '{pool.name}': scaling")
    changes = command.settings != state.settings
    return ([ev.SettingsSet(canonical(command.settings))] if changes else []), ("settings",)


def set_policy(state: State, command: cmd.SetPolicy) -> Checked:
    return ([ev.PolicySet(command.policy)] if command.policy != state.policy else []), (command.policy,)


def set_price(state: State, command: cmd.SetPrice) -> Checked:
    pool = state.capacity.pool_of.get(command.pool)
    if pool is None:
        raise not_found("pool", [command.pool], state.capacity.pool_of)
    check_price(command.price_microusd_hour, "price_microusd_hour")
    same = state.capacity.pools[pool].price_microusd_hour == command.price_microusd_hour
    return [] if same else [ev.PriceSet(pool, command.price_microusd_hour)], (command.pool,)


def set_budgets(state: State, command: cmd.SetBudgets) -> Checked:
    queues = {spec.name for spec in state.queues.specs}
    return budgets_set(command.budgets, queues, "budgets"), tuple(spec.name for spec in command.budgets)


def remove_budgets(state: State, command: cmd.RemoveBudgets) -> Checked:
    names = tuple(dict.fromkeys(command.names))
    unknown = [name for name in names if name not in state.budgets.row_of]
    if unknown:
        raise not_found("budget", unknown, state.budgets.row_of)
    return [ev.BudgetRemoved(name) for name in names], names


def approve_spending(state: State, command: cmd.ApproveSpending) -> Checked:
    """Approve the cost of work that has not ended. The approval stays, whatever its budgets do later."""
    rows = rows_of(state, command.ids)
    w = state.workloads
    ended = [w.ids[row] for row in rows if WorkloadState(w.state[row]).terminal]
    if ended:
        raise RefusedError(f"cannot approve the spending of {listed(ended)}: it has ended", "Leave those out")
    return [ev.SpendingApproved(row) for row in rows if row not in state.budgets.approved], ids_of(state, rows)


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
        raise SpecError("most", "is missing", f"Pool '{command.pool}' is not autoscaled: set its maximum")
    to = ScalingSpec(**given) if was is None else msgspec.structs.replace(was, **given)
    check_scaling(to, "scaling")
    check_patience(to, state.settings.autoscaling, "scaling")
    return ([] if to == was else [ev.PoolScalingSet(pool, canonical(to))]), (command.pool,)


def set_targets(state: State, command: cmd.SetTargets) -> Checked:
    """Raises NotFoundError for the pool, SpecError naming the entry, RefusedError for a pool that does not grow."""
    pool = pool_row(state, command.pool)
    scaling = state.capacity.pools[pool].scaling
    if scaling is None:
        raise RefusedError(f"pool '{command.pool}' is not autoscaled", "First set a maximum: set-scaling --most")
    if len(command.targets) > MAX_TARGETS:
        raise SpecError("targets", f"has {len(command.targets):,} entries", f"Give at most {MAX_TARGETS:,}")
    seen: set[int] = set()
    for i, (at_ms, nodes) in enumerate(command.targets):
        check_quantity(at_ms, f"targets[{i}][0]")
        check_quantity(nodes, f"targets[{i}][1]", most=MAX_POOL_NODES)
        if nodes > scaling.most:
            raise SpecError(
                f"targets[{i}][1]",
                f"{nodes} is above the pool's maximum, {scaling.most}",
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
        raise not_found("pool", [name], state.capacity.pool_of)
    return found


def change_queue(state: State, command: cmd.ChangeQueue, now_ms: int) -> Checked:
    """A quota below what is in use is refused with the names of what would have to go, unless that was asked for."""
    spec = command.queue
    check_change(state.queues, spec)
    check_flavor_pools((spec,), set(state.capacity.pool_of), "queue")
    check_weights(spec.placement, "queue.placement")
    events: list[ev.AnyEvent] = [ev.QueueChanged(canonical(spec))]
    over = state.queues.over_if(spec, now_ms)
    if not over or command.over == "keep":
        return events, (spec.name,)
    leaving = least_costly_above(state, spec, over, now_ms)
    if command.over == "refuse":
        vertex, charge = next(iter(over.items()))
        slot, excess = charge[0]
        raise RefusedError(
            f"queue '{state.queues.specs[vertex].name}' would use {quantity(slot % len(RESOURCES), excess)} over "
            f"its limit; work to stop: {listed([state.workloads.ids[r] for r in leaving])}",
            "Wait for it, or use --over keep to let it finish, or --over evict to requeue it",
        )
    events += [
        ev.Evicted(row, ev.EVICTION_CAUSES.index("quota reduced"), saved=state.workloads.saves_when_asked(row))
        for row in leaving
    ]
    return events, (spec.name, *ids_of(state, leaving))


def least_costly_above(state: State, spec: QueueSpec, over: dict[int, Charge], now_ms: int) -> list[int]:
    """Placed and running workloads whose eviction brings every vertex back within what it may use after the queue
    has the new spec: those that lose least work first, none that is not needed."""
    trial = state.queues.copy()
    trial.change(spec)
    w = state.workloads
    bound = [row for row in range(len(w.ids)) if state.is_bound(row)]
    below = [row for row in bound if not over.keys().isdisjoint(state.queues.path[w.queue[row]])]
    below.sort(key=lambda row: (w.value_at(row), _loss(state, row, now_ms), -row))
    leaving: list[int] = []
    for row in below:
        if not any(trial.over(vertex, now_ms) for vertex in over):
            break
        if any(trial.over(vertex, now_ms) for vertex in state.queues.path[w.queue[row]]):
            trial.give_back(w.queue[row], state.charge_of(row), now_ms)
            leaving.append(row)
    for row in reversed(leaving[:]):
        trial.charge(w.queue[row], state.charge_of(row), now_ms)
        if any(trial.over(vertex, now_ms) for vertex in over):
            trial.give_back(w.queue[row], state.charge_of(row), now_ms)
        else:
            leaving.remove(row)
    return leaving


def _loss(state: State, row: int, now_ms: int) -> int:
    """Work that stopping it would lose, weighed by its share of the cell."""
    w = state.workloads
    if state.workloads.saves_when_asked(row):
        return 0
    return w.lost_if_stopped(row, now_ms) * state.cell_share(w.class_at(row).request)


def order_queues(state: State, command: cmd.OrderQueues) -> Checked:
    """Raises NotFoundError for a queue that there is not."""
    specs = [state.queues.specs[row] for row in _queue_rows(state, command.names)]
    events: list[ev.AnyEvent] = [
        ev.QueueChanged(canonical(msgspec.structs.replace(spec, order=command.order)))
        for spec in specs
        if spec.order != command.order
    ]
    return events, command.names


def hold_queues(state: State, command: cmd.HoldQueues) -> Checked:
    return _set_modes(state, command.names, QueueMode.HELD), command.names


def open_queues(state: State, command: cmd.OpenQueues) -> Checked:
    return _set_modes(state, command.names, QueueMode.OPEN), command.names


def drain_queues(state: State, command: cmd.DrainQueues) -> Checked:
    events = _set_modes(state, command.names, QueueMode.DRAINING)
    drained = set(_queue_rows(state, command.names))
    w = state.workloads
    leaving = [
        row
        for row in range(len(w.ids))
        if state.is_bound(row) and not drained.isdisjoint(state.queues.path[w.queue[row]])
    ]
    cause = ev.EVICTION_CAUSES.index("queue drained")
    events += [ev.Evicted(row, cause, saved=state.workloads.saves_when_asked(row)) for row in leaving]
    return events, (*command.names, *ids_of(state, leaving))


def _set_modes(state: State, names: tuple[str, ...], mode: QueueMode) -> list[ev.AnyEvent]:
    rows = _queue_rows(state, names)
    return [ev.QueueModeSet(row, mode) for row in rows if state.queues.mode[row] != mode]


def _queue_rows(state: State, names: tuple[str, ...]) -> list[int]:
    if not names:
        raise SpecError("names", "is empty", "Give at least one queue")
    return [state.queues.row(name) for name in dict.fromkeys(names)]
