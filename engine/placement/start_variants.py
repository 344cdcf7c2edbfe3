"""The ways a workload may start: on which pools and kept nodes each of its groups goes, and how many tasks quota lets
it have there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

from engine.capacity.task_shapes import Shape
from engine.state.cell_state import State
from engine.state.workloads import WorkloadClass

MAX_VARIANTS = 64
"""Assignments of task groups to pools that are tried, in order of preference."""


def variants(state: State, row: int) -> Iterator[tuple[Shape, ...]]:
    """The ways its groups may be laid on pools and kept nodes, in order of preference, to be placed by the scores of
    its queue. Where a tree has quotas by pool, each group goes to one pool."""
    profile = state.queues.profile(state.workloads.queue[row])
    for shapes in _laid_out(state, row):
        yield tuple(shape.scored(profile) for shape in shapes) if profile else shapes


def _laid_out(state: State, row: int) -> Iterator[tuple[Shape, ...]]:
    workload_class = state.workloads.class_at(row)
    bookings = usable_bookings(state, row)
    if workload_class.reservation and not bookings:
        return
    if state.queues.flavored(state.workloads.queue[row]):
        yield from islice(_pool_by_pool(state, row, bookings), MAX_VARIANTS)
    elif bookings or workload_class.reservation:
        yield tuple(_on_kept_nodes(workload_class, shape, bookings) for shape in workload_class.shapes)
    else:
        yield workload_class.shapes


def _on_kept_nodes(workload_class: WorkloadClass, shape: Shape, bookings: tuple[int, ...]) -> Shape:
    """The shape on the nodes that are kept for the workload, and on open ones unless it names a reservation."""
    pools = () if workload_class.reservation else tuple(shape.pools)
    return shape.limited(pools, tuple((booking, pool) for booking in bookings for pool in shape.pools))


def _pool_by_pool(state: State, row: int, bookings: tuple[int, ...]) -> Iterator[tuple[Shape, ...]]:
    """Every assignment of its groups to the pools that its queue has quotas for."""
    workload_class = state.workloads.class_at(row)
    named = state.queues.flavors_of(state.workloads.queue[row])
    choices = []
    for shape in workload_class.shapes:
        pools = [state.capacity.pool_of[name] for name in named] if named else shape.pools
        choices.append(
            [
                shape.limited(
                    () if workload_class.reservation else (pool,), tuple((booking, pool) for booking in bookings)
                )
                for pool in pools
                if pool in shape.pool_set
            ]
        )
    return product(*choices)


def usable_bookings(state: State, row: int) -> tuple[int, ...]:
    """Bookings whose nodes the workload may use now."""
    if not (state.bookings.reservations or state.bookings.clearings):
        return ()
    w = state.workloads
    queues = frozenset(state.queues.specs[vertex].name for vertex in state.queues.path[w.queue[row]])
    end_ms = state.now_ms + w.remaining_ms(row)
    return state.bookings.usable(row, w.class_at(row).reservation, queues, state.now_ms, end_ms)


def counts_in_quota(state: State, row: int, shapes: tuple[Shape, ...], *, borrow: bool) -> tuple[int, ...] | None:
    """As many tasks of each group as quota allows, from the fewest it can start with up to all; None if even the fewest
    are too many."""
    queue = state.workloads.queue[row]
    workload_class = state.workloads.class_at(row)
    wanted = state.counts_wanted(row)
    if not state.queues.limited[queue]:
        return wanted

    def allowed(counts: tuple[int, ...]) -> bool:
        charge = state.charge_if(row, shapes, counts)
        return state.queues.lack(queue, charge, state.now_ms, borrow=borrow) is None

    if allowed(wanted):
        return wanted
    if workload_class.rigid or not allowed(workload_class.least):
        return None
    low, high = 0, sum(wanted) - sum(workload_class.least)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(workload_class.least_and(middle)) else (low, middle)
    return workload_class.least_and(low)
