"""What becomes of work when nodes are lost: members of a gang are replaced in place, or it runs on with fewer, or all
of it is requeued.

Replacements are tried on the capacity with the lost nodes out of it and the rest of the gang in place, one gang after
the other, those of higher priority first; what was tried is undone. The events that follow repeat it exactly, in one
turn, so nothing else can come in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator
from contextlib import contextmanager

from engine.capacity.task_shapes import Shape
from engine.model import events as ev
from engine.model.specs import NodeState, WorkloadState
from engine.placement.gang_placement import Claim, packed, place, unplace
from engine.state.cell_state import State
from engine.state.workloads import NONE

NODE_LOST = ev.REQUEUE_CAUSES.index("node lost")
_GONE = (NodeState.DOWN, NodeState.REMOVED)
Swap = tuple[int, tuple[Shape, ...], list[Claim]]
"""(workload row, shapes its replacements were placed as, claims)"""


def after_loss(state: State, nodes: list[int]) -> list[ev.AnyEvent]:
    """What follows from the loss of these nodes: they are down, and each workload that had tasks there goes on with
    others in their place, or waits again at its original age. Nodes that are down already are left out."""
    lost = [node for node in nodes if state.capacity.state[node] not in _GONE]
    if not lost:
        return []
    rows = sorted({state.allocations.workload[a] for node in lost for a in state.allocations.on_node(node)})
    gone = frozenset(lost)
    swaps = _swaps(state, lost, gone, rows)
    events: list[ev.AnyEvent] = [ev.NodesChanged(array("i", lost).tobytes(), NodeState.DOWN)]
    for row, shapes, claims in swaps:
        events.append(ev.Swapped(row, _leaves(state, row, gone), packed(claims, len(shapes))))
    going_on = {row for row, _, _ in swaps}
    events += [ev.Requeued(row, NODE_LOST) for row in rows if row not in going_on]
    return events


def spared(state: State, row: int, nodes: Container[int]) -> list[Claim] | None:
    """All that running elastic work has on the nodes, (group, node, tasks, device mask) each, if it can do without;
    None when it cannot. Spread evenly, it cannot do without those of one domain alone."""
    w, a = state.workloads, state.allocations
    workload_class = w.class_at(row)
    if not w.elastic[row] or w.state[row] != WorkloadState.RUNNING or any(s.spread for s in workload_class.shapes):
        return None
    left = state.placed_of(row)
    there = [i for i in a.of_workload(w.first_allocation[row]) if a.node[i] in nodes]
    for i in there:
        left[a.group[i]] -= a.count[i]
    if any(have < fewest for have, fewest in zip(left, workload_class.least, strict=True)):
        return None
    return [(a.group[i], a.node[i], a.count[i], a.devices[i]) for i in there]


def _leaves(state: State, row: int, gone: frozenset[int]) -> bytes:
    """Those of the lost nodes that the workload had tasks on."""
    a = state.allocations
    own = {a.node[i] for i in a.of_workload(state.workloads.first_allocation[row])}
    return array("i", sorted(own & gone)).tobytes()


def _swaps(state: State, lost: list[int], gone: frozenset[int], rows: list[int]) -> list[Swap]:
    """The gangs that can go on, in the order in which their replacements were found room for."""
    w = state.workloads
    able = [row for row in rows if _may_go_on(state, row)]
    if not able:
        return []
    able.sort(key=lambda row: (-w.band_at(row), -w.value_at(row), row))
    swaps: list[Swap] = []
    with _out_of_use(state, lost):
        for row in able:
            found = _replacements(state, row, gone)
            if found is not None:
                swaps.append((row, *found))
                state.shift_company(row, 1, [(node, count) for _, node, count, _ in found[1]])
        for row, shapes, claims in reversed(swaps):
            state.shift_company(row, -1, [(node, count) for _, node, count, _ in claims])
            unplace(state.capacity, shapes, claims)
    return swaps


def _may_go_on(state: State, row: int) -> bool:
    """Whether losing members need not stop it: it runs, and nobody is about to take its place."""
    w = state.workloads
    return (
        w.state[row] == WorkloadState.RUNNING and w.preempting[row] == NONE and bool(w.hot_swap[row] or w.elastic[row])
    )


@contextmanager
def _out_of_use(state: State, lost: list[int]) -> Iterator[None]:
    """Meanwhile nothing can be placed on the nodes."""
    capacity = state.capacity
    ready = [(node, capacity.since[node]) for node in lost if capacity.state[node] == NodeState.READY]
    for node, _ in ready:
        capacity.set_state(node, NodeState.DOWN, state.now_ms)
    yield
    for node, since_ms in ready:
        capacity.set_state(node, NodeState.READY, since_ms)


def _replacements(state: State, row: int, gone: frozenset[int]) -> tuple[tuple[Shape, ...], list[Claim]] | None:
    """Claims for the tasks that go where the lost ones were, none where it can do without; None when it cannot go on.
    A gang all of whose tasks are lost has nothing left to go on with."""
    w, a = state.workloads, state.allocations
    workload_class = w.class_at(row)
    missing = [0] * len(workload_class.counts)
    stay: tuple[dict[int, int], ...] = tuple({} for _ in missing)
    pools: list[set[int]] = [set() for _ in missing]
    beside = NONE
    leaving: list[tuple[int, int]] = []
    for i in a.of_workload(w.first_allocation[row]):
        group, node = a.group[i], a.node[i]
        if node in gone:
            missing[group] += a.count[i]
            pools[group].add(state.capacity.pool[node])
            leaving.append((node, a.count[i]))
        else:
            stay[group][node] = stay[group].get(node, 0) + a.count[i]
            beside = node
    if beside == NONE:
        return None
    least = tuple(missing)
    if w.elastic[row] and not any(shape.spread for shape in workload_class.shapes):
        # Spread evenly, it cannot do without those of one domain alone.
        pairs = zip(workload_class.least, stay, strict=True)
        least = tuple(max(fewest - sum(there.values()), 0) for fewest, there in pairs)
    shapes = _shapes(state, row, pools)
    if not w.hot_swap[row]:
        return None if any(least) else (shapes, [])
    remaining = [(node, count) for there in stay for node, count in there.items()]
    state.shift_company(row, -1, leaving + remaining)
    state.capacity.company.placed = stay
    claims = place(state.capacity, shapes, least, tuple(missing), beside)
    state.capacity.company.placed = ()
    state.shift_company(row, 1, leaving + remaining)
    return None if claims is None else (shapes, claims)


def _shapes(state: State, row: int, pools: list[set[int]]) -> tuple[Shape, ...]:
    """Its groups as they may be placed. Where its queue has quotas by pool, tasks stay in the pool they were lost in,
    so that what it is charged stays as it is."""
    w = state.workloads
    queue = w.queue[row]
    workload_class = w.class_at(row)
    names = frozenset(state.queues.specs[vertex].name for vertex in state.queues.path[queue])
    end_ms = state.now_ms + w.remaining_ms(row)
    bookings = state.bookings.usable(row, workload_class.reservation, names, state.now_ms, end_ms)
    by_pool = state.queues.flavored(queue)
    profile = state.queues.profile(queue)
    found = []
    for shape, own in zip(workload_class.shapes, pools, strict=True):
        allowed = tuple(pool for pool in shape.pools if not by_pool or not own or pool in own)
        if bookings or workload_class.reservation or by_pool:
            kept = tuple((booking, pool) for booking in bookings for pool in allowed)
            shape = shape.limited(() if workload_class.reservation else allowed, kept)
        found.append(shape.scored(profile) if profile else shape)
    return tuple(found)
